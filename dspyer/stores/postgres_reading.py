"""What a PostgreSQL store reads of threads, runs and rows, and its lists of runs."""

from __future__ import annotations

from math import inf
from typing import Any

from dspyer.stores.base import (
    ListedRun,
    Point,
    Row,
    RunPlace,
    RunQuery,
    RunRow,
    Snapshot,
    ThreadRow,
    end_of,
    ending_of,
    is_listed,
)
from dspyer.stores.columns import (
    decode_body,
    decode_ended,
    decode_json,
    decode_owner,
    decode_point,
    decode_points,
    decode_text,
    encode_text,
    ended_range,
)
from dspyer.stores.content import Content
from dspyer.stores.postgres_server import PostgresSession

# --- columns: text of users is stored as bytes, see dspyer.stores.columns

THREAD = """
    SELECT thread.name, head_run, head_seq, fencing, owner,
        CASE WHEN owner IS NOT NULL THEN extract(epoch FROM lease_until - clock_timestamp()) ELSE 0 END::float8,
        root_run, root_seq, runs"""
RUN = "SELECT run.id, run.thread, run.parents, run.header"
ROW = "SELECT seq, kind, body FROM {s}.entry"
LAST = "coalesce((SELECT max(seq) FROM {s}.entry WHERE run = run.id), -1)"

MAX_SEQ = 2**63 - 1


def decode_thread(name: bytes, *columns: Any) -> ThreadRow:
    head, head_seq, epoch, owner, lease, root, root_seq, runs = columns
    points = decode_point(head, head_seq), decode_point(root, root_seq)
    return ThreadRow(decode_text(name), points[0], epoch, decode_owner(owner), lease, points[1], runs)


def decode_run(name: str, thread: bytes, parents: bytes, header: bytes) -> RunRow:
    return RunRow(name, decode_text(thread), decode_points(parents), decode_json(header))


def decode_row(seq: int, kind: str, body: bytes) -> Row:
    header, content = decode_body(body)
    return Row(seq, kind, header, content)


def decode_snapshot(run: str, seq: int, body: bytes) -> Snapshot:
    """A snapshot; the content of a damaged one cannot be read either, so that its reader takes the one before."""
    return Snapshot(Point(run, seq), decode_body(body)[1] or Content.stored(b""))


# --- lists

# The values are known when the server plans: what a query leaves out costs nothing. A status may not be that of a copy
# of a part of a run, see `_listed`.
_LISTED = f"""
    {RUN}, run.started, run.ended, {LAST}, {THREAD.strip().removeprefix("SELECT ")}
    FROM {{s}}.run AS run JOIN {{s}}.thread AS thread ON JOINED
    WHERE (%(thread)b::bytea IS NULL OR thread.name = %(thread)b) AND (%(run)b::text IS NULL OR run.id = %(run)b)
        AND (%(graph)b::bytea IS NULL OR run.graph = %(graph)b)
        AND run.started >= %(since)b::float8 AND run.started < %(until)b::float8 AND run.started <= %(started)b::float8
        AND (run.started, run.id, thread.name) < (%(started)b::float8, %(id)b::text, %(name)b::bytea)
        AND (%(any)b::bool OR (%(last)b::bool AND head_seq <> {LAST}) OR (%(open)b::bool AND run.ended IS NULL)
            OR EXISTS (SELECT FROM unnest(%(lowest)b::bytea[], %(below)b::bytea[]) AS span (lowest, below)
                WHERE run.ended >= span.lowest AND run.ended < span.below))
    ORDER BY run.started DESC, run.id DESC, thread.name DESC LIMIT %(limit)b"""
_LAST_ENDING = f"{ROW} WHERE run = %b AND seq <= %b AND kind IN ('end', 'resume') ORDER BY seq DESC LIMIT 1"


def last_end(session: PostgresSession, run: str, last: int = MAX_SEQ) -> Row | None:
    """The row with which a run ended, as far as a row; None if it had not ended there, or was resumed."""
    return end_of([decode_row(*columns) for columns in session(_LAST_ENDING, (run, last))])


def list_runs(session: PostgresSession, query: RunQuery) -> list[ListedRun]:
    """The runs that a query asks for."""
    found: list[ListedRun] = []
    with session.connection.transaction():
        session("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")  # all statements see the same rows
        statement = _LISTED.replace("JOINED", "head_run = run.id" if query.last else "thread.name = run.thread")
        while len(found) < query.limit:
            batch = [_listed(session, query, columns) for columns in session(statement, _values(query))]
            found += [listed for listed in batch if is_listed(listed, query._replace(after=None))]
            if len(batch) < query.limit:
                break
            query = query._replace(after=batch[-1].place)
    return found[: query.limit]


def _values(query: RunQuery) -> dict[str, Any]:
    """The values of the statement, which may find runs that the query does not ask for."""
    ranges = [ended_range(status) for status in query.statuses or ()]
    after = query.after or RunPlace(inf, "", "")
    return {
        "thread": None if query.thread is None else encode_text(query.thread),
        "run": query.run,
        "graph": None if query.graph is None else encode_text(query.graph),
        "since": -inf if query.since is None else float(query.since),
        "until": inf if query.until is None else float(query.until),
        "started": after.started,
        "id": after.run,
        "name": encode_text(after.thread),
        "any": query.statuses is None,
        "last": query.last,
        "open": "" in (query.statuses or ()),
        "lowest": [lowest for lowest, _ in ranges],
        "below": [below for _, below in ranges],
        "limit": query.limit,
    }


def _listed(session: PostgresSession, query: RunQuery, columns: tuple[Any, ...]) -> ListedRun:
    run, thread = decode_run(*columns[:4]), decode_thread(*columns[7:])
    started, ended, last = columns[4:7]
    end = None if ended is None else decode_ended(ended)[1]
    if query.last and thread.head is not None and last != thread.head.seq:  # the thread reaches a part of the run
        last = thread.head.seq
        end = last_end(session, run.id, last)
    return ListedRun(thread, run, started, "" if end is None else ending_of(end), last, end)
