"""Lists of the runs in a PostgreSQL database: they read the columns of runs, and the ends of those that are listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg import sql

from dspyer.stores.base import END, ListedRun, Row, RunQuery, RunRow, ThreadRow, is_listed
from dspyer.stores.columns import (
    decode_content,
    decode_json,
    decode_owner,
    decode_point,
    decode_points,
    decode_text,
    encode_text,
)
from dspyer.stores.postgres_server import LAST_ENDING, Connection, ending_column

Statement = Callable[[str], sql.Composed]

_LAST = "coalesce((SELECT max(seq) FROM {s}.entry WHERE run = run.id), -1)"
_LISTED = f"""
    SELECT run.id, run.thread, run.parents, run.header, run.started, run.ended, {_LAST},
    thread.name, head_run, head_seq, fencing, owner,
    extract(epoch FROM lease_until - clock_timestamp())::float8, root_run, root_seq, runs
    FROM {{s}}.run AS run JOIN {{s}}.thread AS thread ON JOINED
    WHERE CHOSEN ORDER BY run.started DESC, run.id DESC, thread.name DESC LIMIT %(limit)b"""
_ENDS = f"""
    SELECT entry.run, entry.seq, entry.head, entry.data, entry.blob_ids
    FROM unnest(%b::text[]) AS wanted (run) JOIN {{s}}.entry AS entry ON entry.run = wanted.run AND kind = '{END}'
    ORDER BY entry.seq"""


def list_runs(connection: Connection, statement: Statement, query: RunQuery) -> list[ListedRun]:
    """The runs that a query asks for."""
    found: list[ListedRun] = []
    with connection.transaction():
        # All statements see the same rows.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        while len(found) < query.limit:
            text, values = _statement(query)
            columns = connection.execute(statement(text), values, binary=True).fetchall()
            batch = _listed(connection, statement, columns, query.last)
            found += [listed for listed in batch if is_listed(listed, query._replace(after=None))]
            if len(batch) < query.limit:
                break
            query = query._replace(after=batch[-1].place)
    return found[: query.limit]


def _statement(query: RunQuery) -> tuple[str, dict[str, Any]]:
    """The statement of a query, and its values. It may find runs that the query does not ask for."""
    terms: list[str] = []
    after = query.after
    if query.statuses is not None:
        chosen = ["run.ended = ANY(%(statuses)b)"] + ["run.ended IS NULL"] * ("" in query.statuses)
        chosen += [f"head_seq <> {_LAST}"] * query.last  # a copy of a part of a run: see `_listed`
        terms.append(f"({' OR '.join(chosen)})")
    terms += ["thread.name = %(thread)b"] * (query.thread is not None)
    terms += ["run.id = %(run)b"] * (query.run is not None)
    terms += ["run.graph = %(graph)b"] * (query.graph is not None)
    terms += ["run.started >= %(since)b::float8"] * (query.since is not None)
    terms += ["run.started < %(until)b::float8"] * (query.until is not None)
    if after is not None:
        place = "(run.started, run.id, thread.name) < (%(started)b::float8, %(id)b, %(name)b)"
        terms.append(f"{place} AND run.started <= %(started)b::float8")
    values = {
        "statuses": [encode_text(status) for status in query.statuses or ()],
        "run": query.run,
        "thread": None if query.thread is None else encode_text(query.thread),
        "graph": None if query.graph is None else encode_text(query.graph),
        "since": query.since,
        "until": query.until,
        "started": None if after is None else after.started,
        "id": None if after is None else after.run,
        "name": None if after is None else encode_text(after.thread),
        "limit": query.limit,
    }
    join = "thread.head_run = run.id" if query.last else "thread.name = run.thread"
    text = _LISTED.replace("JOINED", join).replace("CHOSEN", " AND ".join(terms) or "true")
    return text, {name: value for name, value in values.items() if f"%({name})b" in text}


def _listed(
    connection: Connection, statement: Statement, found: list[tuple[Any, ...]], is_last: bool
) -> list[ListedRun]:
    ends: dict[str, list[Row]] = {}
    runs = list({columns[0] for columns in found})
    for run, seq, head, data, refs in connection.execute(statement(_ENDS), [runs], binary=True) if runs else ():
        row = Row(seq, END, decode_json(head), decode_content(data, refs or ()))
        ends.setdefault(run, []).append(row)
    listed = []
    for run_id, own_thread, parents, header, started, ended, last_seq, name, *of_thread in found:
        head_run, head_seq, epoch, owner, lease, root_run, root_seq, made = of_thread
        head, root = decode_point(head_run, head_seq), decode_point(root_run, root_seq)
        thread = ThreadRow(decode_text(name), head, epoch, decode_owner(owner), lease or 0.0, root, made)
        run = RunRow(run_id, decode_text(own_thread), decode_points(parents), decode_json(header))
        last, status = last_seq, ended
        if is_last and last != head_seq:  # the thread reaches a part of the run
            last = head_seq
            marks = connection.execute(statement(LAST_ENDING), (run_id, last), binary=True)
            status = next((ending_column(*mark) for mark in marks), None)
        counted = tuple([row for row in ends.get(run_id, ()) if row.seq <= last])
        listed.append(ListedRun(thread, run, started, "" if status is None else decode_text(status), last, counted))
    return listed
