"""A store in a PostgreSQL database, for many threads and processes of many machines.

How concurrent writers are kept apart:

- *One statement.* A usual append is one statement, hence one message to the server and back: it updates the row of the
  thread on condition of its epoch (the fencing token) and of the last row of the run, and inserts the new rows only if
  that update found the thread. A conflict updates nothing, and the change is tried again the general way, which finds
  out what is wrong.
- *Fencing.* Every other change is a transaction that first locks the row of its thread. So of two owners that claim a
  thread, the second one waits, reads the epoch of the first, and is refused.
- *Lock order.* The row of the thread, then the rows of the runs that are named, sorted, then the blobs, sorted.
  Transactions that lock in one order cannot deadlock. A deletion locks all threads and runs that decide what it deletes
  in the same order, and reads them again once it has the locks.
- *Poolers.* Nothing is kept in a session (prepared statements, advisory locks, settings), so a pooler that gives each
  transaction another connection may be in between. A lost connection is replaced and the write repeated once:
  `plan_write` recognizes a change that was written the first time.

`dspyer.stores.postgres_server` has the connections, addresses and tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import psycopg

from dspyer.errors import StoreError
from dspyer.stores.base import (
    ENDINGS,
    NO_EPOCHS,
    RESUME,
    Change,
    DeletionReport,
    ListedRun,
    Point,
    Row,
    RunQuery,
    RunRow,
    Snapshot,
    Store,
    ThreadRow,
    start_of,
)
from dspyer.stores.columns import (
    BLOB_ID,
    DAMAGED,
    decode_body,
    decode_point,
    decode_points,
    decode_text,
    encode_blob_id,
    encode_body,
    encode_ended,
    encode_json,
    encode_text,
)
from dspyer.stores.postgres_reading import (
    LAST,
    MAX_SEQ,
    ROW,
    RUN,
    THREAD,
    decode_row,
    decode_run,
    decode_snapshot,
    decode_thread,
    last_end,
    list_runs,
)
from dspyer.stores.postgres_server import (
    PATIENCE,
    SHARED,
    Connection,
    PostgresSession,
    ServerConnections,
    Values,
    prepare,
    split_address,
    with_schema,
)
from dspyer.stores.reachability import DeletionPlan, RunSummary, ThreadBounds, plan_delete_unreachable, plan_deletion
from dspyer.stores.writes import CurrentRows, WritePlan, check_epochs, plan_write

SCHEMA = "dspyer"
CONNECTIONS = 8

T = TypeVar("T")

# In all statements, {s} is the schema, and %b a value that is sent in binary form.
_THREAD = f"{THREAD} FROM {{s}}.thread WHERE name = %b"
_NAMES = "SELECT name FROM {s}.thread WHERE name > %b ORDER BY name LIMIT %b::bigint"
_RUN = f"{RUN} FROM {{s}}.run WHERE id = %b"
_RUNS = f"{RUN} FROM {{s}}.run WHERE thread = %b ORDER BY started, id"
_ROWS = f"{ROW} WHERE run = %b AND seq BETWEEN %b AND %b::bigint ORDER BY seq"
_BLOBS = "SELECT id, body FROM {s}.blob WHERE id = ANY(%b)"
_SNAPSHOT = "SELECT run, seq, body FROM {s}.snapshot WHERE run = %b AND seq <= %b ORDER BY seq DESC LIMIT 1"


class Postgres(Store):
    """A store in the tables of one schema of a PostgreSQL database; they are created on first use.

    It works behind poolers that give each transaction another connection. A write whose connection is lost is repeated
    once on a new one.

    A written change is with the server when `write` returns: it survives the end of this process. It is on the
    server's disk if the change has `flush` or changes an epoch; of other changes, a crash of the server itself may lose
    the latest (by default up to 0.6 seconds' worth), but never one before a later one.

    Args:
        address: as in `postgresql://user:password@host/database`. The password may also be where PostgreSQL's own
            programs look for it: the variable PGPASSWORD, a password file or a service file.
        schema: the schema of the tables; `?schema=` in the address names it as well.
        connections: how many connections this process may have at once. Stores with the same server, user and number
            share them, whatever their schemas are.
        read_only: reads the tables and writes nothing: they are not created.

    Raises:
        ValueError: the address does not start with `postgresql://`.
        StoreError: (on first use) the tables were made by another version of dspyer.

    Example:
        >>> Postgres("postgresql://ada:secret@db.example.org/runs?schema=team")
        Postgres('postgresql://ada@db.example.org/runs?schema=team')
    """

    def __init__(
        self, address: str, *, schema: str | None = None, connections: int = CONNECTIONS, read_only: bool = False
    ) -> None:
        whole, self._public, named = split_address(address)
        self._schema = schema or named or SCHEMA
        self._max_connections = connections
        self._connections = SHARED.setdefault((whole, connections), ServerConnections(whole, connections))
        self._connections.users.add(self)
        self._prepared = False
        self._read_only = read_only

    @property
    def address(self) -> str:
        return self._public if self._schema == SCHEMA else with_schema(self._public, self._schema)

    def __repr__(self) -> str:
        return f"Postgres({self.address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        connections, read_only = self._max_connections, self._read_only
        make = partial(Postgres, schema=self._schema, connections=connections, read_only=read_only)
        return make, (self._public,)

    def write(self, change: Change) -> int:
        encoded = encode_change(change)
        return self._run(lambda session: write_change(session, change, encoded), writes=True)

    def thread(self, name: str) -> ThreadRow | None:
        return next((decode_thread(*columns) for columns in self._fetch(_THREAD, encode_text(name))), None)

    def threads(self, after: str = "", limit: int | None = None) -> list[str]:
        return [decode_text(name) for (name,) in self._fetch(_NAMES, encode_text(after), limit)]

    def run(self, run: str) -> RunRow | None:
        return next((decode_run(*columns) for columns in self._fetch(_RUN, run)), None)

    def runs(self, thread: str) -> list[RunRow]:
        return [decode_run(*columns) for columns in self._fetch(_RUNS, encode_text(thread))] if thread else []

    def list_runs(self, query: RunQuery) -> list[ListedRun]:
        return self._run(lambda session: list_runs(session, query))

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        found = self._fetch(_ROWS, run, first, MAX_SEQ if last is None else last)
        return [decode_row(*columns) for columns in found]

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        keys = [bytes.fromhex(name) for name in ids if BLOB_ID.fullmatch(name)]
        return {key.hex(): body for key, body in self._fetch(_BLOBS, keys)} if keys else {}

    def snapshot(self, at: Point) -> Snapshot | None:
        return next((decode_snapshot(*columns) for columns in self._fetch(_SNAPSHOT, at.run, at.seq)), None)

    def delete(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
        gone = frozenset(threads)
        return self._run(lambda session: delete_threads(session, gone, epochs), writes=True)

    def delete_unreachable(self, thread: str) -> DeletionReport:
        plan = partial(plan_delete_unreachable, thread=thread)
        return self._run(lambda session: delete_planned(session, [thread], plan), writes=True)

    def drop_snapshots(self) -> None:
        self._run(delete_snapshots, writes=True)

    def vacuum(self) -> None:
        """Rewrite the tables without deleted rows; all other users of the tables wait meanwhile."""
        tables = ", ".join([f"{{s}}.{name}" for name in ("thread", "run", "entry", "snapshot", "blob", "ref", "link")])
        self._run(lambda session: session(f"VACUUM (FULL, ANALYZE) {tables}"), writes=True)

    def close(self) -> None:
        self._connections.close(self)

    def _run(self, work: Callable[[PostgresSession], T], writes: bool = False) -> T:
        if writes and self._read_only:
            raise StoreError(
                f"the store {self.address!r} was opened for reading only: open_store(address) opens it to write"
            )

        def prepared(connection: Connection) -> T:
            if not self._prepared:
                prepare(connection, self._schema, self._read_only)
                self._prepared = True
            return work(PostgresSession(connection, self._schema))

        return self._connections.run(self, prepared)

    def _fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._run(lambda session: session(statement, values))


# --- writing: one statement where that is enough, else one transaction

MAX_NAME = 2_500
"""Bytes of a thread's name at most: an index of PostgreSQL cannot hold more than about 2,700."""

LOCK_TIMEOUT = f"set_config('lock_timeout', '{1000 * PATIENCE:.0f}', true)"
"""Ends the transaction if it waits longer than PATIENCE for a lock."""

_AVOIDED_PLANS = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")
# Writes and deletions look rows up by their keys. The planner cannot know that: it guesses how many runs a recursive
# query finds, or how many rows refer to a blob, and with statistics from when a store was small it reads whole tables.
# `jit`: before version 18, a plan that cannot do without what is avoided counts as expensive, and would be compiled.
BY_KEYS = ", ".join(f"set_config('{plan}', 'off', true)" for plan in _AVOIDED_PLANS)
"""Makes the statements of the transaction use the indexes."""

# How far the commit waits: `off` only until the server has it in memory. `flush` waits for the disk, as far as the
# server is set up for it (for example, for a standby), but at least for its own.
_FLUSHED = (
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END"
)
_DURABILITY = f"set_config('synchronous_commit', CASE WHEN %(flush)s THEN {_FLUSHED} ELSE 'off' END, true)"

# Whether the first new row directly follows the last stored one; a second row of its number violates the primary key.
_FOLLOWS = """
    CASE %(first)s::bigint WHEN -1 THEN true WHEN 0 THEN EXISTS (SELECT FROM {s}.run WHERE id = %(run)b)
        ELSE EXISTS (SELECT FROM {s}.entry WHERE run = %(run)b AND seq = %(first)s::bigint - 1) END"""
_COLUMNS = """
    head_run = coalesce(%(head_run)b, head_run), head_seq = coalesce(%(head_seq)s::bigint, head_seq),
    root_run = coalesce(%(root_run)b, root_run), root_seq = coalesce(%(root_seq)s::bigint, root_seq),
    owner = CASE WHEN %(lease)s::float8 = 0 THEN NULL ELSE coalesce(%(owner)b::bytea, owner) END,
    lease_until = coalesce(clock_timestamp() + make_interval(secs => %(lease)s::float8), lease_until)"""
_INSERT_ROWS = """
    INSERT INTO {s}.entry (run, seq, kind, body) SELECT %(run)b, new.*
    FROM unnest(%(seqs)b::bigint[], %(kinds)b::text[], %(bodies)b::bytea[]) AS new"""
# How the run ended, or that it was resumed: see `dspyer.stores.base.ListedRun`.
_WRITE_ENDED = "UPDATE {s}.run SET ended = %(ended)b::bytea WHERE id = %(run)b"

# A usual append, of rows without blobs: `held` is the row of the thread if its epoch is right, else nothing, and then
# `added` adds nothing. Its answer is how many threads were found: 1, or 0 for a conflict.
_APPEND = f"""
    WITH held AS (
        UPDATE {{s}}.thread SET {_COLUMNS} WHERE name = %(thread)b AND fencing = %(epoch)s AND {_FOLLOWS} RETURNING 1
    ), added AS ({_INSERT_ROWS}, held) SELECT count(*), {_DURABILITY} FROM held"""
_APPEND_END = _APPEND.replace(
    " SELECT count", f", ended AS ({_WRITE_ENDED} AND EXISTS (SELECT FROM held)) SELECT count"
)
_APPEND_WITHOUT_THREAD = f"""
    WITH held AS (SELECT 1 FROM {{s}}.run WHERE id = %(run)b AND {_FOLLOWS} FOR KEY SHARE OF run),
    added AS ({_INSERT_ROWS}, held) SELECT count(*), {_DURABILITY} FROM held"""

_NEW_THREAD = """
    INSERT INTO {s}.thread (name, fencing, lease_until, runs) VALUES (%(thread)b, 0, clock_timestamp(), 0)
    ON CONFLICT DO NOTHING"""
_LOCK_THREAD = f"{THREAD} FROM {{s}}.thread WHERE name = %(thread)b FOR UPDATE"
_LARGEST_DELETED_EPOCH = "SELECT largest FROM {s}.fence"
# KEY SHARE: writers do not exclude each other, but a deletion of these rows waits for them, and they for it.
_HOLD_RUNS = "SELECT id FROM {s}.run WHERE id = ANY(%b) ORDER BY id FOR KEY SHARE"
_HOLD_BLOBS = "SELECT id FROM {s}.blob WHERE id = ANY(%b) ORDER BY id FOR KEY SHARE"
_RUNS_WITH_LAST = f"{RUN}, {LAST} FROM {{s}}.run AS run WHERE id = ANY(%b)"
_INSERT_RUN = """
    INSERT INTO {s}.run (id, thread, parents, header, graph, started) VALUES (%b, %b, %b, %b, %b::bytea, %b::float8)"""
_INSERT_LINKS = "INSERT INTO {s}.link SELECT DISTINCT unnest(%b::text[]), %b ON CONFLICT DO NOTHING"
# An update that changes nothing, not DO NOTHING: it locks a blob that another writer has just inserted, so that no
# deletion can take it away before this transaction has committed its reference.
_INSERT_BLOB = "INSERT INTO {s}.blob (id, body) VALUES (%b, %b) ON CONFLICT (id) DO UPDATE SET id = excluded.id"
_INSERT_REFS = "INSERT INTO {s}.ref SELECT * FROM unnest(%b::bytea[], %b::text[], %b::bigint[]) ON CONFLICT DO NOTHING"
_DELETE_SNAPSHOT = "DELETE FROM {s}.snapshot WHERE run = %b AND seq = %b RETURNING run, -1 - seq, body"
_INSERT_SNAPSHOT = """
    INSERT INTO {s}.snapshot (run, seq, body) VALUES (%b, %b, %b)
    ON CONFLICT (run, seq) DO UPDATE SET body = excluded.body"""
_WRITE_THREAD = (
    f"UPDATE {{s}}.thread SET fencing = %(after)s, runs = runs + %(new_runs)s, {_COLUMNS} WHERE name = %(thread)b"
)

Ref = tuple[bytes, str, int]
"""A use of a blob: the columns of the table `ref`."""


class PostgresChange(NamedTuple):
    """A change, encoded before any lock is taken.

    Attributes:
        values: the values of the statements, by name.
        snapshot: the body of its snapshot.
        blobs: the blobs that may not be stored yet.
        refs: what its rows and its snapshot refer to.
    """

    values: dict[str, Any]
    snapshot: bytes
    blobs: dict[bytes, bytes]
    refs: list[Ref]


def encode_change(change: Change) -> PostgresChange:
    if len(change.thread) > MAX_NAME // 4 and len(encode_text(change.thread)) > MAX_NAME:
        raise ValueError(
            f"the thread's name has more than {MAX_NAME} bytes, which PostgreSQL cannot index: use a shorter one"
        )
    last = next((row for row in reversed(change.rows) if row.kind in ENDINGS), None)
    (head_run, head_seq), (root_run, root_seq) = change.head or (None, None), change.root or (None, None)
    lease, snapshot = change.lease, change.snapshot
    values: dict[str, Any] = {
        "thread": encode_text(change.thread),
        "epoch": change.epoch,
        "head_run": head_run,
        "head_seq": head_seq,
        "root_run": root_run,
        "root_seq": root_seq,
        "owner": encode_json(change.owner) if change.owner is not None and lease else None,
        "lease": None if lease is None else max(float(lease), 0.0),
        # An epoch that a crash of the server loses could be given to a second owner.
        "flush": change.flush or change.next_epoch is not None or not change.epoch,
        "run": change.rows_of,
        "first": change.rows[0].seq if change.rows else -1,
        "ended": None if last is None or last.kind == RESUME else encode_ended(last),
        "seqs": [row.seq for row in change.rows],
        "kinds": [row.kind for row in change.rows],
        "bodies": [encode_body(row.header, row.content) for row in change.rows],
    }
    contents = [(change.rows_of, row.seq, row.content) for row in change.rows]
    if snapshot is not None:
        contents.append((snapshot.at.run, -1 - snapshot.at.seq, snapshot.content))
    blobs: dict[bytes, bytes] = {}
    refs: list[Ref] = []
    for run, seq, content in contents:
        if content is not None and content.refs:
            blobs.update({encode_blob_id(name): data for name, data in content.blobs.items()})
            refs += [(encode_blob_id(name), run, seq) for name in content.refs]
    return PostgresChange(values, b"" if snapshot is None else encode_body({}, snapshot.content), blobs, refs)


def write_change(session: PostgresSession, change: Change, encoded: PostgresChange) -> int:
    """Write what is new of a change; return the epoch of its thread afterwards."""
    if not encoded.refs and _is_append(change) and _append(session, change, encoded.values):
        return change.epoch
    with session.connection.transaction():
        return _transact(session, change, encoded)


def _append(session: PostgresSession, change: Change, values: Values) -> bool:
    """Append with one statement; False, and nothing is written, on any conflict."""
    statement = _APPEND if change.thread else _APPEND_WITHOUT_THREAD
    if any(row.kind in ENDINGS for row in change.rows):
        statement = _APPEND_END
    try:
        return bool(session(statement, values)[0][0])
    except (psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure):
        return False


def _transact(session: PostgresSession, change: Change, encoded: PostgresChange) -> int:
    session(f"SELECT {_DURABILITY}, {LOCK_TIMEOUT}, {BY_KEYS}", encoded.values)
    current = _lock_thread(session, change, encoded.values)
    named = sorted(_runs_of(change))
    held = {run for (run,) in session(_HOLD_RUNS, (named,))} if named else set()
    plan = plan_write(change, _with_rows(session, change, current))
    if plan is None:
        return 0 if current.thread is None else current.thread.epoch
    if plan.new_run and change.run is not None:
        run, graph = change.run, change.run.header.get("graph")
        columns = run.id, encode_text(run.thread), encode_json(run.parents), encode_json(dict(run.header))
        session(_INSERT_RUN, (*columns, encode_text(graph) if isinstance(graph, str) else None, start_of(run)))
        if run.parents:
            session(_INSERT_LINKS, ([parent.run for parent in run.parents], run.id))
        held.add(run.id)
    for point in (change.head, change.root, change.snapshot and change.snapshot.at):
        if point is not None and point.run not in held:
            raise ValueError(f"run {point.run!r} does not exist: nothing was written. Create it with Change(run=...)")
    _insert(session, change, encoded, plan)
    if not change.thread:
        return 0
    session(_WRITE_THREAD, {**encoded.values, "after": plan.epoch, "new_runs": plan.new_run + change.runs})
    return plan.epoch


def _lock_thread(session: PostgresSession, change: Change, values: Values) -> CurrentRows:
    """Lock the row of the thread, inserted first if the change creates it; return what `plan_write` must know of it."""
    if not change.thread:
        session("LOCK TABLE {s}.thread IN ROW SHARE MODE")  # excludes a deletion that searches the whole store
        return CurrentRows()
    if not change.epoch:
        session(_NEW_THREAD, values)
    for columns in session(_LOCK_THREAD, values):
        thread = decode_thread(*columns)
        if thread.epoch:  # 0: this transaction has just inserted it
            return CurrentRows(thread)
    return CurrentRows(max_deleted_epoch=0 if change.epoch else session(_LARGEST_DELETED_EPOCH)[0][0])


def _with_rows(session: PostgresSession, change: Change, current: CurrentRows) -> CurrentRows:
    """The same with what `plan_write` must know of the run and the rows."""
    made = "" if change.run is None else change.run.id
    for *columns, last in session(_RUNS_WITH_LAST, ([made, change.rows_of],)) if made or change.rows else ():
        run = decode_run(*columns)
        if run.id == made:
            current = current._replace(run=run)
        if run.id == change.rows_of:
            current = current._replace(last=last)
    if current.last is None or not change.rows or change.rows[0].seq > current.last:
        return current
    stored = session(_ROWS, (change.rows_of, change.rows[0].seq, change.rows[-1].seq))
    return current._replace(rows=[decode_row(*columns) for columns in stored])


def _insert(session: PostgresSession, change: Change, encoded: PostgresChange, plan: WritePlan) -> None:
    """Insert blobs, rows and snapshot."""
    values, blobs = encoded.values, encoded.blobs
    if blobs:
        # Stored ones are locked and not sent again. Sorted: two writers of the same blobs wait, in one order.
        held = {key for (key,) in session(_HOLD_BLOBS, (sorted(blobs),))}
        session.each(_INSERT_BLOB, [(key, blobs[key]) for key in sorted(blobs.keys() - held)])
    if plan.rows:
        new = {name: values[name][-len(plan.rows) :] for name in ("seqs", "kinds", "bodies")}
        session(_INSERT_ROWS, {**values, **new})
        if any(row.kind in ENDINGS for row in change.rows):
            session(_WRITE_ENDED, values)
    freed: Collection[bytes] = ()
    if change.snapshot is not None:
        _, freed = _delete_refs(session, session(_DELETE_SNAPSHOT, change.snapshot.at))
        session(_INSERT_SNAPSHOT, (*change.snapshot.at, encoded.snapshot))
    if encoded.refs:
        session(_INSERT_REFS, _columns(encoded.refs))
    _delete_unused_blobs(session, freed)


def _is_append(change: Change) -> bool:
    """Whether a change only appends to a run, moves the head to its rows, or renews a lease."""
    if change.run or change.snapshot or change.root or change.runs or change.next_epoch is not None:
        return False
    seqs = [row.seq for row in change.rows]
    if change.rows and (seqs[0] < 0 or seqs != list(range(seqs[0], seqs[0] + len(seqs)))):
        return False
    if not change.thread:
        return bool(change.rows) and change.head is None and not any(row.kind in ENDINGS for row in change.rows)
    own_head = change.head is None or (change.head.run == change.rows_of and bool(change.rows))
    return change.epoch > 0 and own_head


def _runs_of(change: Change) -> set[str]:
    """The runs that a change names, which must not be deleted before it is committed."""
    made, snapshot = change.run, change.snapshot
    points = [change.head, change.root, snapshot and snapshot.at, *(made.parents if made else ())]
    return {made.id if made else "", change.rows_of, *[point.run for point in points if point]} - {""}


# --- deletion

Plan = Callable[[Mapping[str, ThreadBounds], Mapping[str, RunSummary]], DeletionPlan]
Subgraph = tuple[dict[str, ThreadBounds], dict[str, RunSummary]]

TRIES = 5
"""How often a deletion starts again because others have changed what it read; after that, it locks the tables."""

# Every writer locks one of these tables before it writes: nothing new can refer to what is about to be deleted.
_LOCK = "LOCK TABLE {s}.thread, {s}.entry IN EXCLUSIVE MODE"
_BOUNDS = "SELECT name, head_run, head_seq, root_run, root_seq FROM {s}.thread"
_SOME_BOUNDS = f"{_BOUNDS} WHERE head_run = ANY(%(runs)b) OR name = ANY(%(names)b)"
_SUMMARIES = """
    SELECT id, thread, parents, coalesce((SELECT max(seq) FROM {s}.entry WHERE run = run.id), -1)
    FROM {s}.run AS run"""
# The runs of dspyer.stores.reachability.relevant_subgraph in one statement: `held` are the threads whose runs are kept
# anyway, `behind` is its search backwards, `near` the one forwards.
_SUBGRAPH = f"""
    WITH RECURSIVE
    held AS NOT MATERIALIZED (SELECT name FROM {{s}}.thread WHERE root_run IS NULL AND name <> ALL(%(names)b)),
    behind (id) AS (
        SELECT run.id FROM {{s}}.run AS run WHERE run.thread = ANY(%(names)b)
        UNION SELECT run.id FROM {{s}}.thread AS own JOIN {{s}}.run AS run ON run.id = own.head_run
            WHERE own.name = ANY(%(names)b) AND NOT EXISTS (SELECT FROM held WHERE held.name = run.thread)
        UNION SELECT run.id FROM behind JOIN {{s}}.link ON link.child = behind.id
            JOIN {{s}}.run AS run ON run.id = link.parent
            WHERE NOT EXISTS (SELECT FROM held WHERE held.name = run.thread)
    ), near (id) AS (
        SELECT id FROM behind UNION SELECT link.child FROM near JOIN {{s}}.link ON link.parent = near.id
    ) {_SUMMARIES.strip()} WHERE id IN (SELECT id FROM near)"""
_LOCK_THREADS = "SELECT FROM {s}.thread WHERE name = ANY(%b) ORDER BY name FOR UPDATE"
_LOCK_RUNS = "SELECT FROM {s}.run WHERE id = ANY(%b) ORDER BY id FOR UPDATE"
_EPOCHS = "SELECT name, fencing FROM {s}.thread WHERE name = ANY(%b)"
# Only if it grows: deletions of other threads would wait for the lock of its row.
_RAISE_MAX_DELETED_EPOCH = "UPDATE {s}.fence SET largest = %(largest)s WHERE largest < %(largest)s"


_DELETE_SPANS = """
    DELETE FROM {s}.TABLE AS gone USING unnest(%b::text[], %b::bigint[], %b::bigint[]) AS span (run, first, last)
    WHERE gone.run = span.run AND gone.seq BETWEEN span.first AND span.last RETURNING gone.run, SEQ, gone.body"""
_DELETE_ROWS = _DELETE_SPANS.replace("TABLE", "entry").replace("SEQ", "gone.seq")
_DELETE_SNAPSHOTS = _DELETE_SPANS.replace("TABLE", "snapshot").replace("SEQ", "-1 - gone.seq")
_DELETE_REFS = """
    DELETE FROM {s}.ref USING unnest(%b::bytea[], %b::text[], %b::bigint[]) AS gone (blob, run, seq)
    WHERE ref.blob = gone.blob AND ref.run = gone.run AND ref.seq = gone.seq"""
# What a damaged body refers to is not known: this reads the whole table.
_DELETE_REFS_OF_DAMAGED = """
    DELETE FROM {s}.ref USING unnest(%b::text[], %b::bigint[]) AS gone (run, seq)
    WHERE ref.run = gone.run AND ref.seq = gone.seq RETURNING ref.blob"""
_DELETE_RUNS = "DELETE FROM {s}.run WHERE id = ANY(%b)"
_DELETE_LINKS = "DELETE FROM {s}.link WHERE child = ANY(%b)"
_DELETE_THREADS = "DELETE FROM {s}.thread WHERE name = ANY(%b)"
_CLEAR_THREAD = "UPDATE {s}.run SET thread = ''::bytea WHERE id = ANY(%b)"
_DELETE_SNAPSHOTS_BUT_ROOTS = """
    DELETE FROM {s}.snapshot AS gone WHERE NOT EXISTS (
        SELECT FROM {s}.thread WHERE root_run = gone.run AND root_seq = gone.seq)
    RETURNING run, -1 - seq, body"""
_LOCK_BLOBS = "SELECT FROM {s}.blob WHERE id = ANY(%b) ORDER BY id FOR UPDATE"
# OFFSET 0: the search stops at the first reference. As a join, it might read all references of the store.
_DELETE_BLOBS = """
    DELETE FROM {s}.blob WHERE id = ANY(%b) AND NOT EXISTS (SELECT FROM {s}.ref WHERE ref.blob = blob.id OFFSET 0)"""


def delete_threads(session: PostgresSession, gone: Collection[str], epochs: Mapping[str, int]) -> DeletionReport:
    """Delete threads and what only they reach; without any, all that no thread reaches."""

    def check() -> None:
        names = [encode_text(name) for name in {*gone, *epochs}]
        current = {decode_text(name): epoch for name, epoch in session(_EPOCHS, [names])}
        check_epochs(current, epochs)
        largest = max([current[name] for name in gone if name in current], default=0)
        session(_RAISE_MAX_DELETED_EPOCH, {"largest": largest})

    return delete_planned(session, gone, partial(plan_deletion, gone=gone), check)


def delete_planned(
    session: PostgresSession, names: Collection[str], plan_for: Plan, check: Callable[[], None] | None = None
) -> DeletionReport:
    """Delete what `plan_for` plans for the threads and runs around `names`, or for the whole store without names.

    What was read before the locks may have changed since, so it is read again with them. If that finds threads or runs
    that are not locked, locking them now would break the lock order: the transaction starts again. `check` is called
    once all locks are held, and may raise.
    """
    for turn in range(TRIES + 1):
        with session.connection.transaction():
            session(f"SELECT {LOCK_TIMEOUT}, {BY_KEYS}" if names else f"SELECT {LOCK_TIMEOUT}")
            before: Subgraph | None = None
            if not names or turn == TRIES:
                session(_LOCK)
            else:
                before = _subgraph(session, names)
                session(_LOCK_THREADS, [sorted(encode_text(name) for name in {*before[0], *names})])
                session(_LOCK_RUNS, [sorted(before[1])])
            threads, runs = _subgraph(session, names)
            if before is None or (threads.keys() <= before[0].keys() and runs.keys() <= before[1].keys()):
                if check is not None:
                    check()
                return _delete(session, plan_for(threads, runs))
    raise AssertionError("the last turn locks the tables, and returns")


def delete_snapshots(session: PostgresSession) -> None:
    """Delete the snapshots that are not at the root of a thread."""
    with session.connection.transaction():
        session(f"SELECT {LOCK_TIMEOUT}")
        session(_LOCK)
        _delete_unused_blobs(session, _delete_refs(session, session.stream(_DELETE_SNAPSHOTS_BUT_ROOTS))[1])


def _subgraph(session: PostgresSession, names: Collection[str]) -> Subgraph:
    """The threads and runs that decide what is deleted; all without names."""
    encoded = [encode_text(name) for name in names]
    found = session(_SUBGRAPH, {"names": encoded}) if names else session(_SUMMARIES)
    runs = {run: RunSummary(decode_text(thread), decode_points(parents), last) for run, thread, parents, last in found}
    owners = {encode_text(summary.thread) for summary in runs.values() if summary.thread}
    values = {"names": [*{*encoded, *owners}], "runs": list(runs)}
    threads = {
        decode_text(name): ThreadBounds(decode_point(*points[:2]), decode_point(*points[2:]))
        for name, *points in (session(_SOME_BOUNDS, values) if names else session(_BOUNDS))
    }
    return threads, runs


def _delete(session: PostgresSession, plan: DeletionPlan) -> DeletionReport:
    spans = [(run, 0, MAX_SEQ) for run in plan.runs] + [tuple(span) for span in plan.rows]
    columns = _columns(spans) if spans else [[], [], []]
    rows, freed = _delete_refs(session, session.stream(_DELETE_ROWS, columns))
    freed |= _delete_refs(session, session.stream(_DELETE_SNAPSHOTS, columns))[1]
    if plan.runs:
        session(_DELETE_RUNS, [list(plan.runs)])
        session(_DELETE_LINKS, [list(plan.runs)])
    for run in {span.run for span in plan.rows}:  # the end of a run may be among the deleted rows
        end = last_end(session, run)
        session(_WRITE_ENDED, {"ended": None if end is None else encode_ended(end), "run": run})
    if plan.orphans:
        session(_CLEAR_THREAD, [list(plan.orphans)])
    if plan.threads:
        session(_DELETE_THREADS, [[encode_text(name) for name in plan.threads]])
    _delete_unused_blobs(session, freed)
    return DeletionReport(plan.threads, len(plan.runs), rows, plan.kept, erased=False)


def _delete_refs(session: PostgresSession, deleted: Iterable[tuple[Any, ...]]) -> tuple[int, set[bytes]]:
    """Delete the references of deleted rows or snapshots, given by their columns in `ref` and their bodies.

    Returns:
        How many rows or snapshots these were, and the blobs that they referred to.
    """
    count, refs, damaged = 0, list[Ref](), list[tuple[str, int]]()
    for run, seq, body in deleted:
        count += 1
        header, content = decode_body(body)
        refs += [(encode_blob_id(name), run, seq) for name in (() if content is None else content.refs)]
        damaged += [(run, seq)] * (isinstance(header, dict) and DAMAGED in header)
    if refs:
        session(_DELETE_REFS, _columns(refs))
    found = session(_DELETE_REFS_OF_DAMAGED, _columns(damaged)) if damaged else ()
    return count, {blob for blob, *_ in (*refs, *found)}


def _columns(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _delete_unused_blobs(session: PostgresSession, freed: Collection[bytes]) -> None:
    """Delete those of the blobs that nothing refers to any more.

    They are locked before the references are searched: a writer of a new reference holds the blob until its commit.
    """
    if freed:
        session(_LOCK_BLOBS, [sorted(freed)])
        session(_DELETE_BLOBS, [sorted(freed)])
