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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import sql

from dspyer.errors import StoreError
from dspyer.stores.base import (
    ENDINGS,
    NO_EPOCHS,
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
    decode_content,
    decode_json,
    decode_owner,
    decode_point,
    decode_points,
    decode_text,
    encode_json,
    encode_text,
)
from dspyer.stores.content import Content
from dspyer.stores.postgres_lists import list_runs
from dspyer.stores.postgres_server import (
    LAST_ENDING,
    MAX_SEQ,
    PATIENCE,
    SHARED,
    Connection,
    ServerConnections,
    check_tables,
    ending_column,
    graph_column,
    prepare,
    split_address,
    with_schema,
)
from dspyer.stores.reachability import DeletionPlan, RunSummary, ThreadBounds, plan_delete_unreachable, plan_deletion
from dspyer.stores.writes import CurrentRows, WritePlan, check_epochs, plan_write

SCHEMA = "dspyer"
CONNECTIONS = 8

T = TypeVar("T")
Execute = Callable[..., list[tuple[Any, ...]]]
"""Executes a statement with values and returns its rows."""

# In all statements, {s} is the schema, and %b a value that is sent in binary form.
_THREAD = """
    SELECT head_run, head_seq, fencing, owner, extract(epoch FROM lease_until - clock_timestamp())::float8,
        root_run, root_seq, runs FROM {s}.thread WHERE name = %b"""
_NAMES = "SELECT name FROM {s}.thread WHERE name > %b ORDER BY name LIMIT %b::bigint"
_RUN = "SELECT id, thread, parents, header FROM {s}.run WHERE id = %b"
_RUNS = "SELECT id, thread, parents, header FROM {s}.run WHERE thread = %b ORDER BY number"
_ROWS = """
    SELECT seq, kind, head, data, blob_ids FROM {s}.entry
    WHERE run = %b AND seq >= %b AND seq <= coalesce(%b::bigint, 9223372036854775807) ORDER BY seq"""
_BLOBS = "SELECT id, data FROM {s}.blob WHERE id = ANY(%b)"
_SNAPSHOT = "SELECT seq, data, blob_ids FROM {s}.snapshot WHERE run = %b AND seq <= %b ORDER BY seq DESC LIMIT 1"


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
        self._writer = ChangeWriter(self._sql)
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
        self._check_writable()
        encoded = self._writer.encode(change)
        return self._run(lambda connection: self._writer.write(connection, change, encoded))

    def thread(self, name: str) -> ThreadRow | None:
        for head, head_seq, epoch, owner, lease, root, root_seq, runs in self._fetch(_THREAD, encode_text(name)):
            head_and_root = decode_point(head, head_seq), decode_point(root, root_seq)
            return ThreadRow(name, head_and_root[0], epoch, decode_owner(owner), lease or 0.0, head_and_root[1], runs)
        return None

    def threads(self, after: str = "", limit: int | None = None) -> list[str]:
        return [decode_text(name) for (name,) in self._fetch(_NAMES, encode_text(after), limit)]

    def run(self, run: str) -> RunRow | None:
        return next((decode_run(*columns) for columns in self._fetch(_RUN, run)), None)

    def runs(self, thread: str) -> list[RunRow]:
        return [decode_run(*columns) for columns in self._fetch(_RUNS, encode_text(thread))] if thread else []

    def list_runs(self, query: RunQuery) -> list[ListedRun]:
        return self._run(lambda connection: list_runs(connection, self._sql, query))

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        return [decode_row(*columns) for columns in self._fetch(_ROWS, run, first, last)]

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        return dict(self._fetch(_BLOBS, list(ids))) if ids else {}

    def snapshot(self, at: Point) -> Snapshot | None:
        for seq, data, refs in self._fetch(_SNAPSHOT, at.run, at.seq):
            content = decode_content(data, refs or ())
            return None if content is None else Snapshot(Point(at.run, seq), content)
        return None

    def delete(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
        self._check_writable()
        gone = frozenset(threads)
        return self._run(lambda connection: delete_threads(connection, self._sql, gone, epochs))

    def delete_unreachable(self, thread: str) -> DeletionReport:
        def plan(threads: Mapping[str, ThreadBounds], runs: Mapping[str, RunSummary]) -> DeletionPlan:
            return plan_delete_unreachable(threads, runs, thread)

        self._check_writable()
        return self._run(lambda connection: delete_planned(connection, self._sql, [thread], plan))

    def drop_snapshots(self) -> None:
        self._check_writable()
        self._run(lambda connection: delete_snapshots(connection, self._sql))

    def vacuum(self) -> None:
        """Rewrite the tables without deleted rows; all other users of the tables wait meanwhile."""
        self._check_writable()
        tables = [
            sql.Identifier(self._schema, name) for name in ("thread", "run", "link", "entry", "snapshot", "blob", "ref")
        ]
        statement = sql.SQL("VACUUM (FULL, ANALYZE) {}").format(sql.SQL(", ").join(tables))
        self._run(lambda connection: connection.execute(statement))

    def close(self) -> None:
        self._connections.close(self)

    def _check_writable(self) -> None:
        if self._read_only:
            raise StoreError(
                f"the store {self.address!r} was opened for reading only: open_store(address) opens it to write"
            )

    def _sql(self, statement: str) -> sql.Composed:
        return sql.SQL(statement).format(s=sql.Identifier(self._schema))

    def _run(self, work: Callable[[Connection], T]) -> T:
        def prepared(connection: Connection) -> T:
            if not self._prepared:
                (check_tables if self._read_only else prepare)(connection, self._schema)
                self._prepared = True
            return work(connection)

        return self._connections.run(self, prepared)

    def _fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        query = self._sql(statement)
        return self._run(lambda connection: connection.execute(query, values, binary=True).fetchall())


# --- columns: text of users is stored as bytes, see dspyer.stores.columns


class RowColumns(NamedTuple):
    """Rows on their way to the table, one list per column, in the order of the rows.

    Attributes:
        refs: for each row, the ids of its blobs in one text: an array of arrays would need equal lengths.
        blobs: the blobs that may not be stored yet, by id.
    """

    seqs: list[int]
    kinds: list[str]
    heads: list[bytes]
    datas: list[bytes | None]
    refs: list[str | None]
    blobs: dict[str, bytes]


def encode_rows(rows: Iterable[Row]) -> RowColumns:
    columns = RowColumns([], [], [], [], [], {})
    for row in rows:
        data, refs = encode_content(row.content, columns.blobs)
        columns.seqs.append(row.seq)
        columns.kinds.append(row.kind)
        columns.heads.append(encode_json(row.header))
        columns.datas.append(data)
        columns.refs.append(None if refs is None else " ".join(refs))
    return columns


def encode_content(content: Content | None, blobs: dict[str, bytes]) -> tuple[bytes | None, list[str] | None]:
    """The bytes of a content and the ids of its blobs; the blobs themselves are added to `blobs`."""
    if content is None:
        return None, None
    data, refs = content.data, content.refs
    if refs:
        blobs.update(content.blobs)
    return data, list(refs) or None


def decode_row(seq: int, kind: str, head: bytes, data: bytes | None, refs: list[str] | None) -> Row:
    return Row(seq, kind, decode_json(head), decode_content(data, refs or ()))


def decode_run(name: str, thread: bytes, parents: bytes, header: bytes) -> RunRow:
    return RunRow(name, decode_text(thread), decode_points(parents), decode_json(header))


# --- writing: one statement where that is enough, else one transaction

MAX_NAME = 2_500
"""Bytes of a thread's name at most: an index of PostgreSQL cannot hold more than about 2,700."""

MESSAGE = 16 * 1024 * 1024
"""Bytes of blobs that are sent in one message."""

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
    CASE %(first)s::bigint WHEN 0 THEN EXISTS (SELECT FROM {s}.run WHERE id = %(run)b)
        ELSE EXISTS (SELECT FROM {s}.entry WHERE run = %(run)b AND seq = %(first)s::bigint - 1) END"""
_COLUMNS = """
    head_run = coalesce(%(head_run)b, head_run), head_seq = coalesce(%(head_seq)s::bigint, head_seq),
    root_run = coalesce(%(root_run)b, root_run), root_seq = coalesce(%(root_seq)s::bigint, root_seq),
    owner = CASE WHEN %(lease)s::float8 <= 0 THEN NULL WHEN %(lease)s::float8 > 0
        THEN coalesce(%(owner)b::bytea, owner) ELSE owner END,
    lease_until = CASE WHEN %(lease)s::float8 <= 0 THEN NULL WHEN %(lease)s::float8 > 0
        THEN clock_timestamp() + make_interval(secs => %(lease)s::float8) ELSE lease_until END"""
_NEW_ROWS = """
    SELECT %(run)b, new.seq, new.kind, new.head, new.data, string_to_array(new.refs, ' ')
    FROM {source}unnest(%(seqs)b::bigint[], %(kinds)b::text[], %(heads)b::bytea[], %(datas)b::bytea[], %(refs)b::text[])
    AS new (seq, kind, head, data, refs)"""
_INSERT_ROWS = f"""
    WITH added AS (
        INSERT INTO {{s}}.entry (run, seq, kind, head, data, blob_ids) {_NEW_ROWS.replace("{source}", "")}
        RETURNING run, seq, blob_ids
    ) INSERT INTO {{s}}.ref SELECT unnest(blob_ids), run, seq FROM added ON CONFLICT DO NOTHING"""

# A usual append, of rows without blobs: `held` is the row of the thread if its epoch is right, else nothing, and then
# `added` adds nothing. Its answer is how many threads were found: 1, or 0 for a conflict.
_APPEND = f"""
    WITH held AS (%s), added AS (
        INSERT INTO {{s}}.entry (run, seq, kind, head, data, blob_ids) {_NEW_ROWS.replace("{source}", "held, ")}
    ) SELECT count(*), {_DURABILITY} FROM held"""
_HOLD = f"UPDATE {{s}}.thread SET {_COLUMNS} WHERE name = %(thread)b AND fencing = %(epoch)s AND "
_APPEND_ROWS = _APPEND.replace("%s", f"{_HOLD}{_FOLLOWS} RETURNING 1", 1)
_APPEND_NOTHING = f"WITH held AS ({_HOLD} true RETURNING 1) SELECT count(*), {_DURABILITY} FROM held"
# How the run ended, or that it was resumed: see `dspyer.stores.base.ListedRun`.
_WRITE_ENDING = "UPDATE {s}.run SET ended = %(ended)b::bytea WHERE id = %(run)b"
_APPEND_END = _APPEND_ROWS.replace(") SELECT", f"), ended AS ({_WRITE_ENDING} AND EXISTS (SELECT FROM held)) SELECT", 1)
_APPEND_WITHOUT_THREAD = _APPEND.replace(
    "%s", f"SELECT 1 FROM {{s}}.run WHERE id = %(run)b AND {_FOLLOWS} FOR KEY SHARE OF run", 1
)

_LOCK_THREAD = """
    SELECT fencing, owner, head_run, head_seq FROM {s}.thread WHERE name = %(thread)b FOR UPDATE"""
_NEW_THREAD = "INSERT INTO {s}.thread (name, fencing) VALUES (%(thread)b, 0) ON CONFLICT DO NOTHING"
_MAX_DELETED_EPOCH = "SELECT largest FROM {s}.fence"
# KEY SHARE: writers do not exclude each other, but a deletion of these rows waits for them, and they for it.
_HOLD_RUNS = "SELECT id FROM {s}.run WHERE id = ANY(%b) ORDER BY id FOR KEY SHARE"
_HOLD_BLOBS = "SELECT id FROM {s}.blob WHERE id = ANY(%b) ORDER BY id FOR KEY SHARE"
_LAST = """
    SELECT coalesce((SELECT max(seq) FROM {s}.entry WHERE run = run.id), -1) FROM {s}.run AS run WHERE id = %b"""
_ROWS_OF_RUN = "SELECT seq, kind, head, data, blob_ids FROM {s}.entry WHERE run = %b AND seq >= %b AND seq <= %b"
_INSERT_RUN = """
    INSERT INTO {s}.run (id, thread, parents, header, started, graph) VALUES (%b, %b, %b, %b, %b::float8, %b::bytea)"""
_INSERT_LINKS = "INSERT INTO {s}.link (parent, child) SELECT unnest(%b::text[]), %b ON CONFLICT DO NOTHING"
# An update that changes nothing, not DO NOTHING: it locks a blob that another writer has just inserted, so that no
# deletion can take it away before this transaction has committed its reference.
_INSERT_BLOBS = """
    INSERT INTO {s}.blob (id, data) SELECT * FROM unnest(%b::text[], %b::bytea[]) ORDER BY 1
    ON CONFLICT (id) DO UPDATE SET id = excluded.id"""
_DELETE_SNAPSHOT = "DELETE FROM {s}.snapshot AS gone WHERE run = %b AND seq = %b"
_INSERT_SNAPSHOT = """
    WITH added AS (
        INSERT INTO {s}.snapshot (run, seq, data, blob_ids) VALUES (%b, %b, %b, %b)
        ON CONFLICT (run, seq) DO UPDATE SET data = excluded.data, blob_ids = excluded.blob_ids
        RETURNING run, seq, blob_ids
    ) INSERT INTO {s}.ref SELECT unnest(blob_ids), run, -1 - seq FROM added ON CONFLICT DO NOTHING"""

_WRITE_THREAD = (
    f"UPDATE {{s}}.thread SET fencing = %(after)s, runs = runs + %(new_runs)s, {_COLUMNS} WHERE name = %(thread)b"
)


class PostgresChange(NamedTuple):
    """A change, encoded before any lock is taken.

    Attributes:
        rows: its rows.
        snapshot: the bytes of its snapshot, and the ids of its blobs.
        values: the values of the statements, by name.
        is_append: whether one statement may be enough.
        ends: whether one of the rows is the end of the run, or a resume after it.
    """

    rows: RowColumns
    snapshot: tuple[bytes, list[str] | None] | None
    values: dict[str, Any]
    is_append: bool
    ends: bool


class ChangeWriter:
    """Encodes changes and writes them with a connection; `statement` fills in the name of the schema."""

    def __init__(self, statement: Callable[[str], sql.Composed]) -> None:
        self._sql = statement
        self._append_rows = statement(_APPEND_ROWS)
        self._append_end = statement(_APPEND_END)
        self._append_nothing = statement(_APPEND_NOTHING)
        self._append_without_thread = statement(_APPEND_WITHOUT_THREAD)

    def encode(self, change: Change) -> PostgresChange:
        if len(change.thread) > MAX_NAME // 4 and len(encode_text(change.thread)) > MAX_NAME:
            raise ValueError(
                f"the thread's name has more than {MAX_NAME} bytes, which PostgreSQL cannot index: use a shorter one"
            )
        rows = encode_rows(change.rows)
        last = next((row for row in reversed(change.rows) if row.kind in ENDINGS), None)
        snapshot = None
        if change.snapshot is not None:
            data, refs = encode_content(change.snapshot.content, rows.blobs)
            snapshot = data or b"", refs
        head, root, lease = change.head, change.root, change.lease
        new_epoch = change.next_epoch is not None
        values: dict[str, Any] = {
            "thread": encode_text(change.thread),
            "epoch": change.epoch,
            "head_run": None if head is None else head.run,
            "head_seq": None if head is None else head.seq,
            "root_run": None if root is None else root.run,
            "root_seq": None if root is None else root.seq,
            "owner": encode_json(change.owner) if change.owner is not None else None,
            "lease": None if lease is None else float(lease),
            # An epoch that a crash of the server loses could be given to a second owner.
            "flush": change.flush or new_epoch or not change.epoch,
            "run": change.rows_of,
            "first": rows.seqs[0] if rows.seqs else 0,
            "ended": None if last is None else ending_column(last.kind, encode_json(last.header)),
            **rows._asdict(),
        }
        del values["blobs"]
        refers = any(refs is not None for refs in rows.refs)
        is_append = not new_epoch and _is_append(change) and not refers and (last is None or bool(change.thread))
        return PostgresChange(rows, snapshot, values, is_append, last is not None)

    def write(self, connection: Connection, change: Change, encoded: PostgresChange) -> int:
        """Write what is new of a change; return the epoch of its thread afterwards."""
        if encoded.is_append and self._append(connection, change, encoded):
            return change.epoch
        with connection.transaction():
            return self._transact(connection, change, encoded)

    def _append(self, connection: Connection, change: Change, encoded: PostgresChange) -> bool:
        """Append with one statement; False, and nothing is written, on any conflict."""
        statement = self._append_rows if change.rows else self._append_nothing
        if encoded.ends:
            statement = self._append_end
        elif not change.thread:
            statement = self._append_without_thread
        try:
            found = connection.execute(statement, encoded.values).fetchone()
        except (psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure):
            return False
        return found is not None and found[0] == 1

    def _transact(self, connection: Connection, change: Change, encoded: PostgresChange) -> int:
        execute = _executor(connection, self._sql)
        execute(f"SELECT {_DURABILITY}, {LOCK_TIMEOUT}, {BY_KEYS}", encoded.values)
        thread, max_deleted_epoch = self._lock_thread(execute, change, encoded)
        held = {run for (run,) in execute(_HOLD_RUNS, (sorted(_runs_of(change)),))}
        current = self._current_rows(execute, change, encoded)
        plan = plan_write(change, current._replace(thread=thread, max_deleted_epoch=max_deleted_epoch))
        if plan is None:
            return 0 if thread is None else thread.epoch
        if plan.new_run and change.run is not None:
            run = change.run
            columns = run.id, encode_text(run.thread), encode_json(run.parents), encode_json(dict(run.header))
            execute(_INSERT_RUN, (*columns, start_of(run), graph_column(run)))
            if run.parents:
                execute(_INSERT_LINKS, (sorted({parent.run for parent in run.parents}), run.id))
            held.add(run.id)
        for point in (change.head, change.root, change.snapshot and change.snapshot.at):
            if point is not None and point.run not in held:
                raise ValueError(
                    f"run {point.run!r} does not exist: nothing was written. Create it with Change(run=...)"
                )
        self._insert(execute, change, encoded, plan)
        if not change.thread:
            return 0
        execute(_WRITE_THREAD, {**encoded.values, "after": plan.epoch, "new_runs": plan.new_run + change.runs})
        return plan.epoch

    def _lock_thread(self, execute: Execute, change: Change, encoded: PostgresChange) -> tuple[ThreadRow | None, int]:
        """Lock the row of the thread, inserted first if the change creates it.

        Return the thread, None if it is new or missing; and for a new one, the largest epoch of deleted threads.
        """
        if not change.thread:
            execute("LOCK TABLE {s}.thread IN ROW SHARE MODE")  # excludes a deletion that searches the whole store
            return None, 0
        if not change.epoch:
            execute(_NEW_THREAD, encoded.values)
        for epoch, owner, run, seq in execute(_LOCK_THREAD, encoded.values):
            if epoch:  # 0: this transaction has just inserted it
                return ThreadRow(change.thread, decode_point(run, seq), epoch, decode_owner(owner)), 0
        return None, 0 if change.epoch else execute(_MAX_DELETED_EPOCH)[0][0]

    def _current_rows(self, execute: Execute, change: Change, encoded: PostgresChange) -> CurrentRows:
        """What `plan_write` must know, except for the thread."""
        run_row: RunRow | None = None
        if change.run is not None:
            run_row = next((decode_run(*columns) for columns in execute(_RUN, (change.run.id,))), None)
        if not change.rows:
            return CurrentRows(run=run_row)
        last = next((last for (last,) in execute(_LAST, (change.rows_of,))), None)
        found = execute(_ROWS_OF_RUN, (change.rows_of, min(encoded.rows.seqs), max(encoded.rows.seqs)))
        return CurrentRows(None, run_row, last, [decode_row(*columns) for columns in found])

    def _insert(self, execute: Execute, change: Change, encoded: PostgresChange, plan: WritePlan) -> None:
        """Insert blobs, rows and snapshot."""
        rows, snapshot = encoded.rows, encoded.snapshot
        if rows.blobs:
            # Stored ones are locked and not sent again. Sorted: two writers of the same blobs wait, in one order.
            held = {name for (name,) in execute(_HOLD_BLOBS, (sorted(rows.blobs),))}
            for batch in _batches({name: rows.blobs[name] for name in sorted(rows.blobs.keys() - held)}):
                execute(_INSERT_BLOBS, (list(batch), list(batch.values())))
        if plan.rows:
            stored = len(change.rows) - len(plan.rows)
            values = {name: column[stored:] for name, column in rows._asdict().items() if name != "blobs"}
            execute(_INSERT_ROWS, {**values, "run": change.rows_of})
            if encoded.ends and any(row.kind in ENDINGS for row in plan.rows):
                execute(_WRITE_ENDING, encoded.values)
        if snapshot is not None and change.snapshot is not None:
            before = execute(_returning_blobs(_DELETE_SNAPSHOT, "-1 - seq"), change.snapshot.at)
            execute(_INSERT_SNAPSHOT, (*change.snapshot.at, *snapshot))
            delete_unused_blobs(execute, before)


def _is_append(change: Change) -> bool:
    """Whether a change only appends to a run, moves the head to its rows, or renews a lease."""
    if change.run is not None or change.snapshot is not None or change.root is not None or change.runs:
        return False
    seqs = [row.seq for row in change.rows]
    if change.rows and (seqs[0] < 0 or seqs != list(range(seqs[0], seqs[0] + len(seqs)))):
        return False
    if not change.thread:
        return bool(change.rows) and change.head is None
    own_head = change.head is None or (change.head.run == change.rows_of and bool(change.rows))
    return change.epoch > 0 and own_head


def _batches(blobs: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """The blobs in parts of about MESSAGE bytes; a larger blob is a part of its own."""
    batch: dict[str, bytes] = {}
    size = 0
    for name, data in blobs.items():
        if batch and size + len(data) > MESSAGE:
            yield batch
            batch, size = {}, 0
        batch[name] = data
        size += len(data)
    if batch:
        yield batch


def _runs_of(change: Change) -> set[str]:
    """The runs that a change names, which must not be deleted before it is committed."""
    points = [
        change.head,
        change.root,
        change.snapshot and change.snapshot.at,
        *(change.run.parents if change.run else ()),
    ]
    named = {change.run.id if change.run else "", change.rows_of} - {""}
    return named | {point.run for point in points if point is not None}


def _executor(connection: Connection, statement: Callable[[str], sql.Composed]) -> Execute:
    def execute(text: str, values: Any = None) -> list[tuple[Any, ...]]:
        cursor = connection.execute(statement(text), values, binary=True)
        return cursor.fetchall() if cursor.description else []

    return execute


# --- deletion

Statement = Callable[[str], sql.Composed]
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


def _returning_blobs(deletion: str, place: str) -> str:
    """A statement that deletes rows or snapshots with their references, and returns the ids of their blobs."""
    return f"""
        WITH deleted AS ({deletion} RETURNING gone.run, gone.seq, gone.blob_ids), freed AS (
            DELETE FROM {{s}}.ref USING (SELECT unnest(blob_ids) AS blob, run, {place} AS place FROM deleted) AS old
            WHERE ref.blob = old.blob AND ref.run = old.run AND ref.place = old.place
        ) SELECT blob_ids FROM deleted"""


_DELETE_SPANS = """
    DELETE FROM {s}.%s AS gone USING unnest(%%b::text[], %%b::bigint[], %%b::bigint[]) AS span (run, first, last)
    WHERE gone.run = span.run AND gone.seq BETWEEN span.first AND span.last"""
_DELETE_ROWS = _returning_blobs(_DELETE_SPANS % "entry", "seq")
_DELETE_SNAPSHOTS = _returning_blobs(_DELETE_SPANS % "snapshot", "-1 - seq")
_DELETE_RUNS = "DELETE FROM {s}.run WHERE id = ANY(%b)"
_DELETE_LINKS = "DELETE FROM {s}.link WHERE child = ANY(%b)"
_DELETE_THREADS = "DELETE FROM {s}.thread WHERE name = ANY(%b)"
_CLEAR_THREAD = "UPDATE {s}.run SET thread = ''::bytea WHERE id = ANY(%b)"
_DELETE_SNAPSHOTS_BUT_ROOTS = """
    DELETE FROM {s}.snapshot AS gone WHERE NOT EXISTS (
        SELECT FROM {s}.thread WHERE root_run = gone.run AND root_seq = gone.seq)"""
_LOCK_BLOBS = "SELECT FROM {s}.blob WHERE id = ANY(%b) ORDER BY id FOR UPDATE"
# OFFSET 0: the search stops at the first reference. As a join, it might read all references of the store.
_DELETE_BLOBS = """
    DELETE FROM {s}.blob WHERE id = ANY(%b) AND NOT EXISTS (SELECT FROM {s}.ref WHERE ref.blob = blob.id OFFSET 0)"""


def delete_threads(
    connection: Connection, statement: Statement, gone: Collection[str], epochs: Mapping[str, int]
) -> DeletionReport:
    """Delete threads and what only they reach; without any, all that no thread reaches."""

    def check(execute: Execute) -> None:
        names = [encode_text(name) for name in {*gone, *epochs}]
        current = {decode_text(name): epoch for name, epoch in execute(_EPOCHS, [names])}
        check_epochs(current, epochs)
        largest = max([current[name] for name in gone if name in current], default=0)
        execute(_RAISE_MAX_DELETED_EPOCH, {"largest": largest})

    return delete_planned(connection, statement, gone, lambda threads, runs: plan_deletion(threads, runs, gone), check)


def delete_planned(
    connection: Connection,
    statement: Statement,
    names: Collection[str],
    plan_for: Plan,
    check: Callable[[Execute], None] | None = None,
) -> DeletionReport:
    """Delete what `plan_for` plans for the threads and runs around `names`, or for the whole store without names.

    What was read before the locks may have changed since, so it is read again with them. If that finds threads or runs
    that are not locked, locking them now would break the lock order: the transaction starts again. `check` is called
    once all locks are held, and may raise.
    """
    execute = _executor(connection, statement)
    for turn in range(TRIES + 1):
        with connection.transaction():
            execute(f"SELECT {LOCK_TIMEOUT}, {BY_KEYS}" if names else f"SELECT {LOCK_TIMEOUT}")
            if not names or turn == TRIES:
                execute(_LOCK)
                subgraph = _subgraph(execute, names)
            else:
                before = _subgraph(execute, names)
                execute(_LOCK_THREADS, [sorted(encode_text(name) for name in {*before[0], *names})])
                execute(_LOCK_RUNS, [sorted(before[1])])
                subgraph = _subgraph(execute, names)
                if not (subgraph[0].keys() <= before[0].keys() and subgraph[1].keys() <= before[1].keys()):
                    continue
            if check is not None:
                check(execute)
            return _delete(execute, plan_for(*subgraph))
    raise AssertionError("the last turn locks the tables, and returns")


def delete_snapshots(connection: Connection, statement: Statement) -> None:
    """Delete the snapshots that are not at the root of a thread."""
    with connection.transaction():
        execute = _executor(connection, statement)
        execute(f"SELECT {LOCK_TIMEOUT}")
        execute(_LOCK)
        delete_unused_blobs(execute, execute(_returning_blobs(_DELETE_SNAPSHOTS_BUT_ROOTS, "-1 - seq")))


def _subgraph(execute: Execute, names: Collection[str]) -> Subgraph:
    """The threads and runs that decide what is deleted; all without names."""
    encoded = [encode_text(name) for name in names]
    found = execute(_SUBGRAPH, {"names": encoded}) if names else execute(_SUMMARIES)
    runs = {run: RunSummary(decode_text(thread), decode_points(parents), last) for run, thread, parents, last in found}
    owners = {encode_text(summary.thread) for summary in runs.values() if summary.thread}
    values = {"names": [*{*encoded, *owners}], "runs": list(runs)}
    threads = {
        decode_text(name): ThreadBounds(decode_point(*points[:2]), decode_point(*points[2:]))
        for name, *points in (execute(_SOME_BOUNDS, values) if names else execute(_BOUNDS))
    }
    return threads, runs


def _delete(execute: Execute, plan: DeletionPlan) -> DeletionReport:
    spans = [(run, 0, MAX_SEQ) for run in plan.runs] + [tuple(span) for span in plan.rows]
    columns = [list(column) for column in zip(*spans, strict=True)]
    rows = execute(_DELETE_ROWS, columns) if spans else []
    snapshots = execute(_DELETE_SNAPSHOTS, columns) if spans else []
    if plan.runs:
        execute(_DELETE_RUNS, [list(plan.runs)])
        execute(_DELETE_LINKS, [list(plan.runs)])
    for run in {span.run for span in plan.rows}:  # the end of a run may be among the deleted rows
        ended = next((ending_column(*mark) for mark in execute(LAST_ENDING, (run, MAX_SEQ))), None)
        execute(_WRITE_ENDING, {"ended": ended, "run": run})
    if plan.orphans:
        execute(_CLEAR_THREAD, [list(plan.orphans)])
    if plan.threads:
        execute(_DELETE_THREADS, [[encode_text(name) for name in plan.threads]])
    delete_unused_blobs(execute, [*rows, *snapshots])
    return DeletionReport(plan.threads, len(plan.runs), len(rows), plan.kept, erased=False)


def delete_unused_blobs(execute: Execute, deleted: list[tuple[Any, ...]]) -> None:
    """Delete the blobs of deleted contents, given by their ids, that nothing refers to any more.

    They are locked before the references are searched: a writer of a new reference holds the blob until its commit.
    """
    candidates = sorted({name for (ids,) in deleted for name in ids or ()})
    if candidates:
        execute(_LOCK_BLOBS, [candidates])
        execute(_DELETE_BLOBS, [candidates])
