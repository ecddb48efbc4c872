"""Runs in a PostgreSQL database, for many threads and processes of many machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import sql

from dspyer.stores.base import NO_EPOCHS, Change, DeletionReport, Owner, Point, Row, RunRow, Snapshot, Store, ThreadRow
from dspyer.stores.content import Content
from dspyer.stores.postgres_server import PATIENCE, Connection, ServerConnections, prepare, split_address, with_schema
from dspyer.stores.reachability import DeletionPlan, RunSummary, ThreadBounds, plan_delete_unreachable, plan_deletion
from dspyer.stores.writes import CurrentRows, WritePlan, check_epochs, plan_write

SCHEMA = "dspyer"
CONNECTIONS = 8

T = TypeVar("T")

_THREAD = """
    SELECT name, head_run, head_seq, fencing, owner, extract(epoch FROM lease_until - clock_timestamp())::float8,
        root_run, root_seq, runs FROM {s}.thread WHERE name = %b"""
_THREADS = "SELECT name FROM {s}.thread ORDER BY name"
_RUN = "SELECT id, thread, parents, header FROM {s}.run WHERE id = %b"
_RUNS = "SELECT id, thread, parents, header FROM {s}.run WHERE thread = %b ORDER BY number"
_ROWS = """
    SELECT seq, kind, head, data, refs FROM {s}.entry
    WHERE run = %b AND seq >= %b AND seq <= coalesce(%b::bigint, 9223372036854775807) ORDER BY seq"""
_BLOBS = "SELECT id, data FROM {s}.blob WHERE id = ANY(%b)"
_SNAPSHOT = "SELECT seq, data, refs FROM {s}.snapshot WHERE run = %b AND seq <= %b ORDER BY seq DESC LIMIT 1"


class Postgres(Store):
    """Runs in the tables of one schema of a PostgreSQL database. The tables are made when the store is first used.

    A write is one transaction that locks the row of its thread; nothing is kept in a session, so poolers that give
    every transaction another connection work. A write whose connection is lost is repeated once on a new one.

    What `write` was given is with the server when it returns: the end of this process loses nothing. It is on the
    server's disk if the change says `flush` or changes an epoch; of others, the server may lose the last ones
    (by default up to 0.6 seconds' worth, and never one in the middle) if it crashes itself.

    Args:
        address: as in `postgresql://user:password@host/database`. The password can also come from where PostgreSQL's
            own programs look for it: the variable PGPASSWORD, a password file or a service file.
        schema: the schema of the tables; `?schema=` in the address says it too.
        connections: how many connections the threads of this process may use at once.

    Example:
        >>> Postgres("postgresql://ada:secret@db.example.org/runs?schema=team")
        Postgres('postgresql://ada@db.example.org/runs?schema=team')
    """

    def __init__(self, address: str, *, schema: str | None = None, connections: int = CONNECTIONS) -> None:
        whole, self._public, named = split_address(address)
        self._schema = schema or named or SCHEMA
        self._most = connections
        self._connections = ServerConnections(whole, connections)
        self._writer = ChangeWriter(self._sql)
        self._prepared = False

    @property
    def address(self) -> str:
        return self._public if self._schema == SCHEMA else with_schema(self._public, self._schema)

    def __repr__(self) -> str:
        return f"Postgres({self.address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Postgres, schema=self._schema, connections=self._most), (self._public,)

    def write(self, change: Change) -> int:
        packed = self._writer.pack(change)
        return self._run(lambda connection: self._writer.write(connection, change, packed))

    def thread(self, name: str) -> ThreadRow | None:
        for columns in self._fetch(_THREAD, pack_text(name)):
            stored, head, head_seq, epoch, owner, lease, root, root_seq, runs = columns
            points = unpack_point(head, head_seq), unpack_point(root, root_seq)
            return ThreadRow(unpack_text(stored), points[0], epoch, unpack_owner(owner), lease or 0.0, points[1], runs)
        return None

    def threads(self) -> list[str]:
        return [unpack_text(name) for (name,) in self._fetch(_THREADS)]

    def run(self, run: str) -> RunRow | None:
        return next((unpack_run(*columns) for columns in self._fetch(_RUN, run)), None)

    def runs(self, thread: str) -> list[RunRow]:
        return [unpack_run(*columns) for columns in self._fetch(_RUNS, pack_text(thread))] if thread else []

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        return [
            Row(seq, kind, tuple(unpack(head)), unpack_content(data, refs))
            for seq, kind, head, data, refs in self._fetch(_ROWS, run, first, last)
        ]

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        return dict(self._fetch(_BLOBS, list(ids))) if ids else {}

    def snapshot(self, at: Point) -> Snapshot | None:
        for seq, data, refs in self._fetch(_SNAPSHOT, at.run, at.seq):
            content = unpack_content(data, refs)
            return None if content is None else Snapshot(Point(at.run, seq), content)
        return None

    def delete(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
        gone = frozenset(threads)
        return self._run(lambda connection: delete_threads(connection, self._sql, gone, epochs))

    def delete_unreachable(self, thread: str) -> DeletionReport:
        return self._run(
            lambda connection: delete_planned(
                connection, self._sql, [thread], lambda ends, runs: plan_delete_unreachable(ends, runs, thread)
            )
        )

    def drop_snapshots(self) -> None:
        self._run(lambda connection: delete_snapshots(connection, self._sql))

    def vacuum(self) -> None:
        """Writes the tables anew without what was removed. Everybody else waits meanwhile."""
        tables = [sql.Identifier(self._schema, name) for name in ("thread", "run", "link", "entry", "snapshot", "blob")]
        statement = sql.SQL("VACUUM (FULL, ANALYZE) {}").format(sql.SQL(", ").join(tables))
        self._run(lambda connection: connection.execute(statement))

    def close(self) -> None:
        self._connections.close()

    def _sql(self, statement: str) -> sql.Composed:
        return sql.SQL(statement).format(s=sql.Identifier(self._schema))

    def _run(self, work: Callable[[Connection], T]) -> T:
        def prepared(connection: Connection) -> T:
            if not self._prepared:
                prepare(connection, self._schema)
                self._prepared = True
            return work(connection)

        return self._connections.run(prepared)

    def _fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        query = self._sql(statement)
        return self._run(lambda connection: connection.execute(query, values, binary=True).fetchall())


# --------------------------------------------------------------------------------------------------------------------
# What the columns of a PostgreSQL store hold.
#
# Text of users goes into `bytea`: `text` refuses the character 0, and `jsonb` rewrites numbers.


class ContentColumns(NamedTuple):
    """Contents on their way to a table, a list for each column.

    Attributes:
        seqs: the numbers of the rows.
        kinds: their kinds.
        heads: their heads.
        datas: the bytes of their contents.
        refs: the ids of the blobs that they refer to, in one text, as arrays of arrays must be of equal lengths.
        blobs: the blobs that may have to be stored, by id.
    """

    seqs: list[int]
    kinds: list[str]
    heads: list[bytes]
    datas: list[bytes | None]
    refs: list[str | None]
    blobs: dict[str, bytes]


def pack_rows(rows: Iterable[Row]) -> ContentColumns:
    """Rows as columns."""
    packed = ContentColumns([], [], [], [], [], {})
    for row in rows:
        data, refs = pack_content(row.content, packed.blobs)
        packed.seqs.append(row.seq)
        packed.kinds.append(row.kind)
        packed.heads.append(pack(row.header))
        packed.datas.append(data)
        packed.refs.append(None if refs is None else " ".join(refs))
    return packed


def pack_content(content: Content | None, blobs: dict[str, bytes]) -> tuple[bytes | None, list[str] | None]:
    """The bytes of a content and the ids that they refer to; its blobs are added to `blobs`."""
    if content is None:
        return None, None
    data, refs = content.data, content.refs
    if refs:
        blobs.update(content.blobs)
    return data, list(refs) or None


def unpack_content(data: bytes | None, refs: list[str] | None) -> Content | None:
    """The content in two columns."""
    return None if data is None else Content.stored(data, refs or ())


def pack(value: Any) -> bytes:
    """JSON as UTF-8."""
    return pack_text(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def unpack(data: bytes) -> Any:
    """What `pack` was given, lists in the place of tuples."""
    return json.loads(unpack_text(data))


def pack_text(text: str) -> bytes:
    """Any text, in the order of its characters."""
    return text.encode("utf-8", "surrogatepass")


def unpack_text(data: bytes) -> str:
    """What `pack_text` was given."""
    return data.decode("utf-8", "surrogatepass")


def unpack_owner(data: bytes | None) -> Owner | None:
    """The owner in a column."""
    return None if data is None else Owner(*unpack(data))


def unpack_point(run: str | None, seq: int | None) -> Point | None:
    """The row of a run in two columns."""
    return None if run is None or seq is None else Point(run, seq)


def unpack_points(data: bytes) -> tuple[Point, ...]:
    """The rows of runs in a column."""
    return tuple(Point(run, seq) for run, seq in unpack(data))


def unpack_run(name: str, thread: bytes, parents: bytes, header: bytes) -> RunRow:
    """A run in its columns."""
    return RunRow(name, unpack_text(thread), unpack_points(parents), unpack(header))


# --------------------------------------------------------------------------------------------------------------------
# Removing from a PostgreSQL store what `dspyer.stores.reachability` says.
#
# Who writes locks the row of its thread first, then the rows of the runs that it names, then those of the large values
# that it refers to, each kind in one order. A removal does the same with all threads and runs that are connected with
# what it removes, and reads again what it had read before it had the locks. Others go on meanwhile.


Decide = Callable[[Mapping[str, ThreadBounds], Mapping[str, RunSummary]], DeletionPlan]
Statement = Callable[[str], sql.Composed]
Near = tuple[dict[str, ThreadBounds], dict[str, RunSummary]]

TRIES = 5
"""How often a removal reads again what others have connected with it meanwhile; then it has the tables alone."""

BOUNDED = f"set_config('lock_timeout', '{1000 * PATIENCE:.0f}', true)"
"""Ends a transaction that waits too long for a lock."""

# Every writer locks one of these tables before it writes: nothing new can refer to what is about to go.
_LOCK = "LOCK TABLE {s}.thread, {s}.entry IN EXCLUSIVE MODE"
_ENDS = "SELECT name, head_run, head_seq, root_run, root_seq FROM {s}.thread"
_SOME_ENDS = f"{_ENDS} WHERE head_run = ANY(%(runs)b) OR name = ANY(%(names)b)"
_EXTENTS = """
    SELECT id, thread, parents, coalesce((SELECT max(seq) FROM {s}.entry WHERE run = run.id), -1)
    FROM {s}.run AS run"""
# What dspyer.stores.reachability.connected says, in one statement.
_NEAR = f"""
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
    ) {_EXTENTS.strip()} WHERE id IN (SELECT id FROM near)"""
_LOCK_THREADS = "SELECT FROM {s}.thread WHERE name = ANY(%b) ORDER BY name FOR UPDATE"
_LOCK_RUNS = "SELECT FROM {s}.run WHERE id = ANY(%b) ORDER BY id FOR UPDATE"
_EPOCHS = "SELECT name, fencing FROM {s}.thread WHERE name = ANY(%b)"
_RAISE = "UPDATE {s}.fence SET largest = greatest(largest, %s)"
_DROP_SPANS = """
    DELETE FROM {s}.%s AS gone USING unnest(%%b::text[], %%b::bigint[], %%b::bigint[]) AS span (run, first, last)
    WHERE gone.run = span.run AND gone.seq BETWEEN span.first AND span.last RETURNING gone.refs"""
_DROP_ROWS = _DROP_SPANS % "entry"
_DROP_SNAPSHOTS = _DROP_SPANS % "snapshot"
_DROP_RUNS = "DELETE FROM {s}.run WHERE id = ANY(%b)"
_DROP_LINKS = "DELETE FROM {s}.link WHERE child = ANY(%b)"
_DROP_THREADS = "DELETE FROM {s}.thread WHERE name = ANY(%b)"
_ORPHAN = "UPDATE {s}.run SET thread = ''::bytea WHERE id = ANY(%b)"
_DROP_ALL_SNAPSHOTS = """
    DELETE FROM {s}.snapshot AS gone WHERE NOT EXISTS (
        SELECT FROM {s}.thread WHERE root_run = gone.run AND root_seq = gone.seq) RETURNING refs"""
_LOCK_BLOBS = "SELECT FROM {s}.blob WHERE id = ANY(%b) ORDER BY id FOR UPDATE"
_DROP_BLOBS = """
    DELETE FROM {s}.blob WHERE id = ANY(%b)
    AND NOT EXISTS (SELECT FROM {s}.entry WHERE refs @> ARRAY[blob.id] AND refs IS NOT NULL)
    AND NOT EXISTS (SELECT FROM {s}.snapshot WHERE refs @> ARRAY[blob.id] AND refs IS NOT NULL)"""
_LAST_ROW = 2**63 - 1


def delete_threads(
    connection: Connection, statement: Statement, gone: Collection[str], epochs: Mapping[str, int]
) -> DeletionReport:
    """Removes threads and what only they reach; without any, all that nothing reaches.

    Raises:
        ConcurrentRunError: if a thread has another epoch than it must have.
    """

    def check(execute: Execute) -> None:
        names = [pack_text(name) for name in {*gone, *epochs}]
        found = {unpack_text(name): epoch for name, epoch in execute(_EPOCHS, [names])}
        check_epochs(found, epochs)
        execute(_RAISE, [max([found[name] for name in gone if name in found], default=0)])

    return delete_planned(connection, statement, gone, lambda threads, runs: plan_deletion(threads, runs, gone), check)


def delete_planned(
    connection: Connection,
    statement: Statement,
    names: Collection[str],
    decide: Decide,
    check: Callable[[Execute], None] | None = None,
) -> DeletionReport:
    """Removes what is decided, and the blobs that nothing refers to then, in one transaction.

    Args:
        connection: where to.
        statement: fills the name of the schema into a statement.
        names: the threads that it is about; none for the whole store.
        decide: says what goes.
        check: is called when the threads are locked; what it raises is raised.
    """
    execute = _executor(connection, statement)
    for turn in range(TRIES + 1):
        with connection.transaction():
            execute(f"SELECT {BOUNDED}")
            if not names or turn == TRIES:
                execute(_LOCK)
                near = _near(execute, names)
            else:
                before = _near(execute, names)
                execute(_LOCK_THREADS, [sorted(pack_text(name) for name in {*before[0], *names})])
                execute(_LOCK_RUNS, [sorted(before[1])])
                near = _near(execute, names)
                if not (near[0].keys() <= before[0].keys() and near[1].keys() <= before[1].keys()):
                    continue  # what has come meanwhile is not locked, and would be out of order now
            if check is not None:
                check(execute)
            return _remove(execute, decide(*near))
    raise AssertionError("the last turn has the tables alone")


def delete_snapshots(connection: Connection, statement: Statement) -> None:
    """Removes the snapshots that are at no thread's root."""
    with connection.transaction():
        execute = _executor(connection, statement)
        execute(f"SELECT {BOUNDED}")
        execute(_LOCK)
        drop_blobs(execute, execute(_DROP_ALL_SNAPSHOTS))


def _near(execute: Execute, names: Collection[str]) -> Near:
    """The threads and runs that decide what goes; all for no names."""
    packed = [pack_text(name) for name in names]
    found = execute(_NEAR, {"names": packed}) if names else execute(_EXTENTS)
    runs = {run: RunSummary(unpack_text(thread), unpack_points(parents), last) for run, thread, parents, last in found}
    owners = {pack_text(extent.thread) for extent in runs.values() if extent.thread}
    some = {"names": [*{*packed, *owners}], "runs": list(runs)}
    threads = {
        unpack_text(name): ThreadBounds(unpack_point(*points[:2]), unpack_point(*points[2:]))
        for name, *points in (execute(_SOME_ENDS, some) if names else execute(_ENDS))
    }
    return threads, runs


def _remove(execute: Execute, gone: DeletionPlan) -> DeletionReport:
    spans = [(run, 0, _LAST_ROW) for run in gone.runs] + [tuple(span) for span in gone.rows]
    columns = [list(column) for column in zip(*spans, strict=True)]
    rows = execute(_DROP_ROWS, columns) if spans else []
    snapshots = execute(_DROP_SNAPSHOTS, columns) if spans else []
    if gone.runs:
        execute(_DROP_RUNS, [list(gone.runs)])
        execute(_DROP_LINKS, [list(gone.runs)])
    if gone.orphans:
        execute(_ORPHAN, [list(gone.orphans)])
    if gone.threads:
        execute(_DROP_THREADS, [[pack_text(name) for name in gone.threads]])
    drop_blobs(execute, [*rows, *snapshots])
    return DeletionReport(gone.threads, len(gone.runs), len(rows), gone.kept, False)


def drop_blobs(execute: Execute, removed: list[tuple[Any, ...]]) -> None:
    """Removes those of the blobs of removed contents that nothing refers to any more.

    They are locked first, and looked for afterwards: who wrote a reference to one held it until its end.
    """
    candidates = sorted({name for (refs,) in removed for name in refs or ()})
    if candidates:
        execute(_LOCK_BLOBS, [candidates])
        execute(_DROP_BLOBS, [candidates])


Execute = Callable[..., list[tuple[Any, ...]]]


def _executor(connection: Connection, statement: Statement) -> Execute:
    def execute(text: str, values: Any = None) -> list[tuple[Any, ...]]:
        cursor = connection.execute(statement(text), values, binary=True)
        return cursor.fetchall() if cursor.description else []

    return execute


# --------------------------------------------------------------------------------------------------------------------
# Writing to a PostgreSQL store: one statement where that is enough, else one transaction.


MAX_NAME = 2_500
"""Bytes of a thread's name: what an index of PostgreSQL can hold."""

MESSAGE = 16 * 1024 * 1024
"""Bytes of blobs that are sent together."""

# How far a commit waits: on the disk as the server is set up for it, or until the server has it in its memory.
_FLUSHED = (
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END"
)
_DURABILITY = f"set_config('synchronous_commit', CASE WHEN %(flush)s THEN {_FLUSHED} ELSE 'off' END, true)"

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
_INSERT_ROWS = "INSERT INTO {s}.entry (run, seq, kind, head, data, refs)" + _NEW_ROWS.replace("{source}", "")

# The whole of a usual append, in one message to the server and back.
_APPEND = f"""
    WITH held AS (%s), added AS (
        INSERT INTO {{s}}.entry (run, seq, kind, head, data, refs) {_NEW_ROWS.replace("{source}", "held, ")}
    ) SELECT count(*), {_DURABILITY} FROM held"""
_HOLD = f"UPDATE {{s}}.thread SET {_COLUMNS} WHERE name = %(thread)b AND fencing = %(epoch)s AND "
_APPEND_ROWS = _APPEND.replace("%s", f"{_HOLD}{_FOLLOWS} RETURNING 1", 1)
_APPEND_NOTHING = f"WITH held AS ({_HOLD} true RETURNING 1) SELECT count(*), {_DURABILITY} FROM held"
_APPEND_APART = _APPEND.replace(
    "%s", f"SELECT 1 FROM {{s}}.run WHERE id = %(run)b AND {_FOLLOWS} FOR KEY SHARE OF run", 1
)

_LOCK_THREAD = """
    SELECT fencing, owner, head_run, head_seq FROM {s}.thread WHERE name = %(thread)b FOR UPDATE"""
_NEW_THREAD = "INSERT INTO {s}.thread (name, fencing) VALUES (%(thread)b, 0) ON CONFLICT DO NOTHING"
_FENCE = "SELECT largest FROM {s}.fence"
# Those that others would remove wait until this has ended, and the other way round; in one order by all.
_HOLD_RUNS = "SELECT id FROM {s}.run WHERE id = ANY(%b) ORDER BY id FOR KEY SHARE"
_HOLD_BLOBS = "SELECT id FROM {s}.blob WHERE id = ANY(%b) ORDER BY id FOR KEY SHARE"
_LAST = """
    SELECT coalesce((SELECT max(seq) FROM {s}.entry WHERE run = run.id), -1) FROM {s}.run AS run WHERE id = %b"""
_ROWS_OF_RUN = "SELECT seq, kind, head, data, refs FROM {s}.entry WHERE run = %b AND seq >= %b AND seq <= %b"
_BEGIN_RUN = "INSERT INTO {s}.run (id, thread, parents, header) VALUES (%b, %b, %b, %b)"
_LINKS = "INSERT INTO {s}.link (parent, child) SELECT unnest(%b::text[]), %b ON CONFLICT DO NOTHING"
_INSERT_BLOBS = """
    INSERT INTO {s}.blob (id, data) SELECT * FROM unnest(%b::text[], %b::bytea[]) ORDER BY 1
    ON CONFLICT (id) DO UPDATE SET id = excluded.id"""
_SNAPSHOT_BEFORE = "SELECT refs FROM {s}.snapshot WHERE run = %b AND seq = %b"
_INSERT_SNAPSHOT = """
    INSERT INTO {s}.snapshot (run, seq, data, refs) VALUES (%b, %b, %b, %b)
    ON CONFLICT (run, seq) DO UPDATE SET data = excluded.data, refs = excluded.refs"""
_WRITE_THREAD = (
    f"UPDATE {{s}}.thread SET fencing = %(after)s, runs = runs + %(begins)s, {_COLUMNS} WHERE name = %(thread)b"
)


class PostgresChange(NamedTuple):
    """A change, encoded before any lock is taken.

    Attributes:
        rows: its rows.
        snapshot: the bytes of its snapshot and the ids that they refer to.
        values: the values of its statements.
        usual: whether one statement may do.
    """

    rows: ContentColumns
    snapshot: tuple[bytes, list[str] | None] | None
    values: dict[str, Any]
    usual: bool


class ChangeWriter:
    """Writes changes with a connection.

    Args:
        statement: fills the name of the schema into a statement.
    """

    def __init__(self, statement: Callable[[str], sql.Composed]) -> None:
        self._sql = statement
        self._append_rows = statement(_APPEND_ROWS)
        self._append_nothing = statement(_APPEND_NOTHING)
        self._append_apart = statement(_APPEND_APART)

    def pack(self, change: Change) -> PostgresChange:
        """Encodes a change.

        Raises:
            ValueError: for a name of a thread that is too long for an index.
        """
        if len(change.thread) > MAX_NAME // 4 and len(pack_text(change.thread)) > MAX_NAME:
            raise ValueError(f"a thread's name of more than {MAX_NAME} bytes: PostgreSQL keeps shorter ones")
        rows = pack_rows(change.rows)
        snapshot = None
        if change.snapshot is not None:
            data, refs = pack_content(change.snapshot.content, rows.blobs)
            snapshot = data or b"", refs
        head, root, lease = change.head, change.root, change.lease
        moves = change.next_epoch is not None
        values: dict[str, Any] = {
            "thread": pack_text(change.thread),
            "epoch": change.epoch,
            "head_run": None if head is None else head.run,
            "head_seq": None if head is None else head.seq,
            "root_run": None if root is None else root.run,
            "root_seq": None if root is None else root.seq,
            "owner": pack(change.owner) if change.owner is not None else None,
            "lease": None if lease is None else float(lease),
            # An epoch that the server forgets could be given to a second owner.
            "flush": change.flush or moves or not change.epoch,
            "run": change.rows_of,
            "first": rows.seqs[0] if rows.seqs else 0,
            **rows._asdict(),
        }
        del values["blobs"]
        return PostgresChange(rows, snapshot, values, not moves and _is_usual(change) and not rows.blobs)

    def write(self, connection: Connection, change: Change, written: PostgresChange) -> int:
        """Applies a change, and says the epoch that its thread has afterwards."""
        if written.usual and self._append(connection, change, written):
            return change.epoch
        with connection.transaction():
            return self._transact(connection, change, written)

    def _append(self, connection: Connection, change: Change, written: PostgresChange) -> bool:
        """A change that only adds what must be new; False if it does not fit: nothing was written then."""
        statement = self._append_rows if change.rows else self._append_nothing
        if not change.thread:
            statement = self._append_apart
        try:
            found = connection.execute(statement, written.values).fetchone()
        except (psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure):
            return False
        return found is not None and found[0] == 1

    def _transact(self, connection: Connection, change: Change, written: PostgresChange) -> int:
        def execute(statement: str, values: Any = None) -> list[tuple[Any, ...]]:
            cursor = connection.execute(self._sql(statement), values, binary=True)
            return cursor.fetchall() if cursor.description else []

        execute(f"SELECT {_DURABILITY}, {BOUNDED}", written.values)
        thread, fence = self._thread(execute, change, written)
        held = {run for (run,) in execute(_HOLD_RUNS, (sorted(_runs_of(change)),))}
        plan = plan_write(
            change, self._found(execute, change, written)._replace(thread=thread, max_deleted_epoch=fence)
        )
        if plan is None:
            return 0 if thread is None else thread.epoch
        if plan.new_run and change.run is not None:
            run = change.run
            execute(_BEGIN_RUN, (run.id, pack_text(run.thread), pack(run.parents), pack(dict(run.header))))
            if run.parents:
                execute(_LINKS, (sorted({parent.run for parent in run.parents}), run.id))
            held.add(run.id)
        for point in (change.head, change.root, change.snapshot and change.snapshot.at):
            if point is not None and point.run not in held:
                raise ValueError(
                    f"run {point.run!r} does not exist: nothing was written. Create it with Change(run=...)"
                )
        self._add(execute, change, written, plan)
        if not change.thread:
            return 0
        more = {"after": plan.epoch, "begins": plan.new_run + change.runs}
        execute(_WRITE_THREAD, {**written.values, **more})
        return plan.epoch

    def _thread(self, execute: _Execute, change: Change, written: PostgresChange) -> tuple[ThreadRow | None, int]:
        """The thread, whose row is locked, and made if it must be new; then the largest epoch of removed ones too."""
        if not change.thread:
            execute("LOCK TABLE {s}.thread IN ROW SHARE MODE")  # a removal from the whole store has it alone
            return None, 0
        if not change.epoch:
            execute(_NEW_THREAD, written.values)
        for epoch, owner, run, seq in execute(_LOCK_THREAD, written.values):
            if epoch:  # 0: just made, by this transaction
                return ThreadRow(change.thread, unpack_point(run, seq), epoch, unpack_owner(owner)), 0
        return None, 0 if change.epoch else execute(_FENCE)[0][0]

    def _found(self, execute: _Execute, change: Change, written: PostgresChange) -> CurrentRows:
        """What is there where the change wants to write, without the thread."""
        run_row: RunRow | None = None
        if change.run is not None:
            run_row = next((unpack_run(*columns) for columns in execute(_RUN, (change.run.id,))), None)
        if not change.rows:
            return CurrentRows(run=run_row)
        last = next((last for (last,) in execute(_LAST, (change.rows_of,))), None)
        there = execute(_ROWS_OF_RUN, (change.rows_of, min(written.rows.seqs), max(written.rows.seqs)))
        rows = [Row(seq, kind, tuple(unpack(head)), unpack_content(*content)) for seq, kind, head, *content in there]
        return CurrentRows(None, run_row, last, rows)

    def _add(self, execute: _Execute, change: Change, written: PostgresChange, plan: WritePlan) -> None:
        packed, snapshot = written.rows, written.snapshot
        if packed.blobs:
            # In one order by all: two that bring the same blobs wait for each other, and not in a circle.
            held = {name for (name,) in execute(_HOLD_BLOBS, (sorted(packed.blobs),))}
            for batch in _batches({name: packed.blobs[name] for name in sorted(packed.blobs.keys() - held)}):
                execute(_INSERT_BLOBS, (list(batch), list(batch.values())))
        if plan.rows:
            new = len(change.rows) - len(plan.rows)
            values = {name: column[new:] for name, column in packed._asdict().items() if name != "blobs"}
            execute(_INSERT_ROWS, {**values, "run": change.rows_of})
        if snapshot is not None and change.snapshot is not None:
            before = execute(_SNAPSHOT_BEFORE, change.snapshot.at)
            execute(_INSERT_SNAPSHOT, (*change.snapshot.at, *snapshot))
            drop_blobs(execute, before)


_Execute = Callable[..., list[tuple[Any, ...]]]


def _is_usual(change: Change) -> bool:
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
    """The blobs in parts that one message can hold."""
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
    """The runs that a change names, and that must not go before it has ended."""
    points = [
        change.head,
        change.root,
        change.snapshot and change.snapshot.at,
        *(change.run.parents if change.run else ()),
    ]
    named = {change.run.id if change.run else "", change.rows_of} - {""}
    return named | {point.run for point in points if point is not None}
