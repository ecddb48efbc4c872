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
  in the same order, and reads them again once it has the locks. All of these begin with the table of threads: what
  locks that table excludes them, and then has no writer before it.
- *Poolers.* Nothing is kept in a session (prepared statements, advisory locks, settings), so a pooler that gives each
  transaction another connection may be in between. A lost connection is replaced and the write repeated once:
  `plan_write` recognizes a change that was written the first time.

First the connections, addresses and tables of the server, then the store. `dspyer.stores.sql` has the statements that
are the same in SQLite.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote, unquote, urlsplit
from weakref import WeakSet, WeakValueDictionary, finalize

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import TransactionStatus
except ImportError as error:
    raise ImportError("a store in PostgreSQL needs psycopg: pip install 'psycopg[binary]'") from error

from dspyer import clock
from dspyer.errors import ConcurrentRunError, StoreError, ThreadError, brief
from dspyer.stores.base import ENDINGS, Change, CurrentRows, DeletionReport, Store, WritePlan
from dspyer.stores.sql import (
    ALL_TABLES,
    LAST,
    PATIENCE,
    THREAD,
    VERSION,
    EncodedChange,
    Plan,
    SQLSession,
    SQLStore,
    decode_text,
    decode_thread,
    delete_planned,
    encode_json,
    encode_text,
    ended_by,
    ended_range,
    read_around,
    read_run,
    write_planned,
)
from dspyer.values.scalars import check_flags
from dspyer.waiting import at_fork

# The server of a PostgreSQL store: its connections, its address and its tables.
#
# Connections are kept open between uses and shared by the threads of a process, but never by processes: two that use
# one connection would mix their messages to the server.


Connection = psycopg.Connection[tuple[Any, ...]]
Values = Sequence[Any] | Mapping[str, Any]
T = TypeVar("T")

PAUSE = 1.0
"""Seconds for which a server that has refused a connection is not asked for another, while there are some."""

LIMITS = "connect_timeout=5 keepalives_idle=5 keepalives_interval=2 keepalives_count=3 tcp_user_timeout=10000"
"""When a server that does not answer counts as lost, unless the address says otherwise: seconds, but the last one in
milliseconds. These are settings of the client; they are sent to no server or pooler."""


# --- connections


class ServerConnections:
    """The connections of this process to one server. Stores with an equal address and limit share them (`SHARED`).

    They use no prepared statements and set nothing in a session, so a pooler that gives each transaction another
    connection may be in between. At most `limit` connections are open at once; further calls wait. So does a call for
    which the server opens no further one while there are others: it gets the next one that is given back.
    """

    def __init__(self, address: str, limit: int) -> None:
        self._address = address
        self._limit = limit
        self.users: WeakSet[object] = WeakSet()  # the stores that are not closed
        self._reset()
        _ALL.add(self)

    def run(self, store: object, work: Callable[[Connection], T]) -> T:
        """Call `work` with a connection, and once more with a new one if the first connection was lost.

        The server may have committed what was done before the connection was lost, so `work` must do no harm when it
        is done twice.
        """
        connection = self._take(store)
        try:
            return self._work(connection, work)
        except psycopg.Error as error:
            if not (connection.closed or _is_lost(error)):
                raise
        with self._changed:  # most likely all are lost, as after a restart of the server: none of them is used again
            self._losses += 1
            _close_all(self._idle)
        return self._work(self._take(store), work)

    def close(self, store: object) -> None:
        """Close a store: its calls that wait are refused. With the last store, idle connections are closed.

        Those in use are closed when their work is done.
        """
        with self._changed:
            self.users.discard(store)
            if not self.users:
                _close_all(self._idle)
            self._changed.notify_all()

    def after_fork(self) -> None:
        """Start without connections in a child process.

        The parent's are neither used nor closed: closing one, even by collecting it as garbage, would end the parent's
        session on the server.
        """
        self._finish.detach()
        _INHERITED.extend([*self._idle, *self._busy])
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting = 0
        self._idle: list[Connection] = []
        self._losses = 0  # how often a connection was found to be lost
        # Connections in use, and a mark for each that is being opened, with the losses before it was opened.
        self._busy: dict[object, int] = {}
        self._refusal, self._ask_again = "", 0.0  # why the server opened none when it was last asked, and until when
        self._finish = finalize(self, _close_all, self._idle)

    def _take(self, store: object) -> Connection:
        """An idle connection, or a new one. While there is neither, wait for the next one that is given back.

        `notify` wakes the call that has waited longest, and later ones leave an idle connection to it.
        """
        end, has_waited = clock.now() + PATIENCE, False
        with self._changed:
            while store in self.users:
                if len(self._idle) > (0 if has_waited else self._waiting):
                    self._busy[connection := self._idle.pop()] = self._losses
                    return connection
                held = len(self._idle) + len(self._busy)
                if not held or (held < self._limit and clock.now() >= self._ask_again):
                    try:
                        return self._add()
                    except psycopg.OperationalError as error:
                        if not (self._idle or self._busy):
                            raise
                        why = f", and the server opens no further one ({error})"
                        self._refusal, self._ask_again = why, clock.now() + PAUSE
                        continue
                if clock.now() >= end:
                    raise StoreError(
                        f"all {held} connections have been in use for {PATIENCE:g} s{self._refusal}: "
                        "nothing was done. Allow more with Postgres(address, connections=...) or max_connections"
                    )
                has_waited, self._waiting, began = True, self._waiting + 1, clock.now()
                try:
                    clock.wait(self._changed, end, "connection")
                except BaseException:
                    self._changed.notify()  # this call may have been woken
                    raise
                finally:
                    self._waiting -= 1
                    clock.report_time("pool.wait", store, began)
            self._changed.notify()
        raise StoreError("the store is closed: open it again")

    def _add(self) -> Connection:
        """Open a connection, without the lock meanwhile."""
        self._busy[mark := object()] = losses = self._losses
        self._changed.release()
        try:
            connection = self._open()
        finally:
            self._changed.acquire()
            self._busy.pop(mark, None)
            self._refusal, self._ask_again = "", 0.0
            self._changed.notify()
        self._busy[connection] = losses
        return connection

    def _open(self) -> Connection:
        given = conninfo_to_dict(self._address)
        options: dict[str, Any] = {**conninfo_to_dict(LIMITS), **given}
        if "PGCONNECT_TIMEOUT" in os.environ and "connect_timeout" not in given:
            del options["connect_timeout"]
        connection = psycopg.connect(**options, autocommit=True, prepare_threshold=None)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connection

    def _work(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        try:
            return work(connection)
        except BaseException as error:
            # An interrupt may come in the middle of a transaction: such a connection is not used again.
            if connection.info.transaction_status != TransactionStatus.IDLE or _is_lost(error):
                connection.close()
            raise
        finally:
            with self._changed:
                losses = self._busy.pop(connection, self._losses)
                if not self.users or losses < self._losses:
                    connection.close()
                elif not connection.closed:
                    self._idle.append(connection)
                self._changed.notify()


def _close_all(connections: list[Connection]) -> None:
    while connections:
        with suppress(IndexError):  # another thread has taken the last one
            connections.pop().close()


def _is_lost(error: BaseException) -> bool:
    """Return whether the server ends the connection, even if the client has not noticed yet.

    SQLSTATE classes: 08 is a connection failure, 57P a shutdown or a terminated session, 25P03 an idle transaction that
    took too long.
    """
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state is not None and (state.startswith(("08", "57P")) or state == "25P03")


_ALL: WeakSet[ServerConnections] = WeakSet()
SHARED: WeakValueDictionary[tuple[str, int], ServerConnections] = WeakValueDictionary()
"""Those of the stores that are in use, by address and limit."""
_INHERITED: list[object] = []  # of the parent process, kept so that they are never collected


def _after_fork() -> None:
    for connections in _ALL:
        connections.after_fork()


at_fork(_after_fork)


# --- addresses


# What the driver and `urlsplit` read differently, so that a part of a password would be shown as a host or a path.
_NOT_ENCODED = re.compile("#|%(?![0-9A-Fa-f]{2})|//[^/?]*@[^/?]*@|//[^?]*/[^?]*@|\\?[^=]*@")


def split_address(address: str) -> tuple[str, str, str | None]:
    """An address for the driver, the same one without its password, and the schema that it names.

    Example:
        >>> split_address(
        ...     "postgresql://ada:secret@db/runs?schema=team&sslmode=require")
        ('postgresql://ada:secret@db/runs?sslmode=require',
        'postgresql://ada@db/runs?sslmode=require', 'team')
    """
    if _NOT_ENCODED.search(address):
        raise ValueError(
            "the address of a PostgreSQL store has a character that must be encoded in a user's name or a password: "
            "write % as %25, @ as %40, / as %2F, ? as %3F, # as %23"
        )
    parts = urlsplit(address)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError(
            "the address of a PostgreSQL store starts with postgresql://, as in postgresql://user@host/database"
        )
    options = [(option, unquote(option.partition("=")[0])) for option in parts.query.split("&") if option]
    schema = next((unquote(option.partition("=")[2]) for option, name in options if name == "schema"), None)
    whole = [option for option, name in options if name != "schema"]
    public = [option for option, name in options if name not in ("schema", "password", "sslpassword")]
    user, at, host = parts.netloc.rpartition("@")
    return (
        _join_address(parts.scheme, parts.netloc, parts.path, whole),
        _join_address(parts.scheme, user.partition(":")[0] + at + host, parts.path, public),
        schema,
    )


def with_schema(address: str, schema: str) -> str:
    """An address that names a schema as well."""
    return f"{address}{'&' if '?' in address else '?'}schema={quote(schema, safe='')}"


def _join_address(scheme: str, host: str, path: str, options: list[str]) -> str:
    # Not urlunsplit: it drops the slashes before an empty host, as in postgresql:///runs?host=/tmp
    return f"{scheme}://{host}{path}{'?' if options else ''}{'&'.join(options)}"


# --- tables

_TYPES = {"name": "bytea", "id": 'text COLLATE "C"', "bytes": "bytea", "time": "timestamptz"}
_LATER = {"s": "{s}", "largest": "{largest}"}
TABLES = ALL_TABLES.format(**_TYPES, **_LATER, thread="WITH (fillfactor = 50)", keyed="", version=VERSION)


def prepare(connection: Connection, schema: str, largest: str | None) -> bool:
    """Return whether there are tables. Without any, create them, with `largest` in the table `fence`, if that is given.

    Raises:
        StoreError: they have another version.
    """
    version = _version_of(connection, schema)
    if not version and largest is not None:
        with connection.transaction():
            # Held until the transaction ends: of many processes that start at once, one creates the tables.
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('dspyer ' || %s, 0))", [schema])
            version = _version_of(connection, schema)
            if not version:
                if not connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).rowcount:
                    # Asked first: CREATE SCHEMA IF NOT EXISTS needs the right to create even if the schema exists.
                    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
                connection.execute(sql.SQL(TABLES).format(s=sql.Identifier(schema), largest=sql.SQL(largest)))
                return True
    if version and version != VERSION:
        raise StoreError(
            f"the tables in schema {schema!r} are of version {version}, and this dspyer knows version {VERSION}: use "
            "the dspyer that made them, or another schema"
        )
    return bool(version)


def _version_of(connection: Connection, schema: str) -> int:
    """The version of the tables in a schema; 0 without tables."""
    # Read from the catalog: to_regclass may answer from what the session had cached before it waited for the lock.
    tables = "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'version'"
    if not connection.execute(tables, [schema]).rowcount:
        return 0
    number = sql.SQL("SELECT coalesce(max(number), 0) FROM {s}.version").format(s=sql.Identifier(schema))
    return int(connection.execute(number).fetchall()[0][0])


SCHEMA = "dspyer"
CONNECTIONS = 8


class Postgres(SQLStore):
    """A store in the tables of one schema of a PostgreSQL database; the first write creates them.

    It works behind poolers that give each transaction another connection. A write whose connection is lost is repeated
    once on a new one.

    A written change is with the server when `write` returns: it survives the end of this process. It is on the
    server's disk if the change has `flush` or changes an epoch; of other changes, a crash of the server itself may lose
    the latest (by default up to 0.6 seconds' worth), but never one before a later one.

    Args:
        address: as in `postgresql://user:password@host/database`. The password may also be where PostgreSQL's own
            programs look for it: the variable PGPASSWORD, a password file or a service file.
        schema: the schema of the tables; `?schema=` in the address names it as well.
        connections: how many connections this process may have at once, 8 by default. Stores with the same server,
            user and number share them, whatever their schemas are.
        read_only: reads the tables, which must exist, and writes nothing.
        flush: whether each change is on the server's disk when its write returns, so that a crash of the server loses
            nothing.

    Raises:
        ValueError: the address does not start with `postgresql://`.
        StoreError: (on first use) the tables were made by another version of dspyer.

    Example:
        >>> Postgres("postgresql://ada:secret@db.example.org/runs?schema=team")
        Postgres('postgresql://ada@db.example.org/runs?schema=team')
    """

    def __init__(
        self,
        address: str,
        *,
        schema: str | None = None,
        connections: int = CONNECTIONS,
        read_only: bool = False,
        flush: bool = False,
    ) -> None:
        super().__init__(connections=connections, read_only=read_only, flush=flush)
        whole, self._public, named = split_address(address)
        self._schema = schema or named or SCHEMA
        self._connections = SHARED.setdefault((whole, connections), ServerConnections(whole, connections))
        self._connections.users.add(self)
        self._prepared = False
        self._read_only = read_only
        self._flush = flush

    _LARGEST: ClassVar = "0"
    """The largest epoch of the deleted threads of a new schema."""

    @property
    def address(self) -> str:
        return self._public if self._schema == SCHEMA else with_schema(self._public, self._schema)

    def write(self, change: Change) -> int:
        if len(change.thread) > MAX_NAME // 4 and len(encode_text(change.thread)) > MAX_NAME:
            raise ValueError(
                f"the thread's name has more than {MAX_NAME} bytes, which PostgreSQL cannot index: use a shorter one"
            )
        if self._flush:
            change = change._replace(flush=True)
        encoded = EncodedChange.of(change)

        def work(session: PostgresSession) -> int:
            if not encoded.refs and _is_append(change) and _append(session, change, encoded):
                return change.epoch
            with session.connection.transaction():
                return write_planned(session, change, encoded)

        return self._run(work, writes=True, creates=not change.epoch and bool(change.thread or change.run))

    def _read(self, work: Callable[[SQLSession], T]) -> T:
        return self._run(work)

    def _write(self, work: Callable[[SQLSession], T]) -> T:
        def locked(session: PostgresSession) -> T:
            with session.connection.transaction():
                session(f"SELECT {LOCK_TIMEOUT}")
                session(_LOCK)
                return work(session)

        return self._run(locked, writes=True)

    def _delete(self, names: Collection[str], plan: Plan) -> DeletionReport:
        done: list[DeletionReport] = []
        self._run(lambda session: _delete(session, names, plan, done), writes=True)
        # Repeated after the answer to its COMMIT was lost, it finds nothing: what was done is in the report before.
        return max(done, key=lambda report: len(report.threads))

    def vacuum(self) -> None:
        """Rewrite the tables without deleted rows; all other users of the tables wait meanwhile."""
        self._run(lambda session: session(f"VACUUM (FULL, ANALYZE) {_WITH_ROWS}"), writes=True)

    def close(self) -> None:
        self._connections.close(self)

    def _run(self, work: Callable[[PostgresSession], T], writes: bool = False, creates: bool = False) -> T:
        if writes and self._read_only:
            raise StoreError(
                f"the store {self.address!r} was opened for reading only: open_store(address) opens it to write"
            )

        def prepared(connection: Connection) -> T:
            ready = self._prepared or prepare(connection, self._schema, self._LARGEST if creates else None)
            self._prepared = ready  # not read again: another thread may find that the schema was dropped
            if self._read_only and not ready:
                raise StoreError(
                    f"there are no tables of a store in schema {self._schema!r}: name the database of a store"
                )
            return work((PostgresSession if ready else _NoTables)(connection, self._schema))

        def again(connection: Connection) -> T:
            for _ in range(20 * TRIES):  # a drop may come between the making of the tables and the write each time
                with suppress(psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                    return prepared(connection)
                self._prepared = False  # the schema was dropped since
            return prepared(connection)

        return self._connections.run(self, again)


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
_NEW_THREAD = """
    INSERT INTO {s}.thread (name, fencing, lease_until, runs) VALUES (%(thread)b, 0, clock_timestamp(), 0)
    ON CONFLICT DO NOTHING"""
_LOCK_THREAD = f"{THREAD} WHERE name = %(thread)b FOR UPDATE"
_LARGEST_DELETED_EPOCH = "SELECT largest FROM {s}.fence"
# KEY SHARE: writers do not exclude each other, but a deletion of these rows waits for them, and they for it.
_HOLD_RUNS = f"SELECT id, {LAST} FROM {{s}}.run WHERE id = ANY(%b) ORDER BY id FOR KEY SHARE OF run"
_HOLD_BLOBS = "SELECT id FROM {s}.blob WHERE id = ANY(%b) ORDER BY id FOR KEY SHARE"
# An update that changes nothing, not DO NOTHING: it locks a blob that another writer has just inserted, so that no
# deletion can take it away before this transaction has committed its reference.
_INSERT_BLOB = "INSERT INTO {s}.blob (id, body) VALUES (%b, %b) ON CONFLICT (id) DO UPDATE SET id = excluded.id"
_WRITE_THREAD = (
    f"UPDATE {{s}}.thread SET fencing = %(after)s, runs = runs + %(new_runs)s, {_COLUMNS} WHERE name = %(thread)b"
)


class PostgresSession(SQLSession):
    """Executes statements with a connection. `{s}` in them is the name of the schema, `?` a value in binary form."""

    lease = "extract(epoch FROM lease_until - clock_timestamp())::float8"
    ago = "now() - make_interval(secs => least(?, 1e10))"  # now(): read once, not for each row
    options = MappingProxyType({"binary": True})

    def __init__(self, connection: Connection, schema: str) -> None:
        super().__init__(connection)
        self._schema = sql.Identifier(schema).as_string(None).replace("%", "%%")

    def text(self, statement: str) -> str:
        return statement.replace("?", "%b").replace("{s}", self._schema)

    def encode_name(self, name: str) -> bytes:
        return encode_text(name)

    def decode_name(self, column: bytes) -> str:
        return decode_text(column)

    @contextmanager
    def at_one_time(self) -> Iterator[None]:
        with self.connection.transaction():
            self("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield

    def lock(self, change: Change) -> CurrentRows:
        values = _values(change)
        self(f"SELECT {_DURABILITY}, {LOCK_TIMEOUT}, {BY_KEYS}", values)
        current = self._lock_thread(change, values)
        named = sorted(_runs_of(change))
        held: dict[str, int] = dict(self(_HOLD_RUNS, (named,)) if named else ())
        run = read_run(self, change.run.id) if change.run is not None and change.run.id in held else None
        return current._replace(run=run, last=held.get(change.rows_of))

    def _lock_thread(self, change: Change, values: Values) -> CurrentRows:
        """Lock the row of the thread, inserted first if the change creates it."""
        if not change.thread:
            self(_BEGIN)
            return CurrentRows()
        if not change.epoch:
            self(_NEW_THREAD, values)
        for columns in self(_LOCK_THREAD.replace("LEASE", self.lease), values):
            thread = decode_thread(self, columns)
            if thread.epoch:  # 0: this transaction has just inserted it
                return CurrentRows(thread)
        return CurrentRows(max_deleted_epoch=0 if change.epoch else self(_LARGEST_DELETED_EPOCH)[0][0])

    def insert_blobs(self, blobs: Mapping[bytes, bytes]) -> None:
        if blobs:
            # Stored ones are locked and not sent again. Sorted: two writers of the same blobs wait, in one order.
            held = {key for (key,) in self(_HOLD_BLOBS, (sorted(blobs),))}
            self.each(_INSERT_BLOB, [(key, blobs[key]) for key in sorted(blobs.keys() - held)])

    def write_thread(self, change: Change, current: CurrentRows, plan: WritePlan) -> None:  # noqa: ARG002
        self(_WRITE_THREAD, {**_values(change), "after": plan.epoch, "new_runs": plan.new_run + change.runs})

    def lock_blobs(self, blobs: list[bytes]) -> None:
        # Before the references are searched: a writer of a new reference holds the blob until its commit.
        self(_LOCK_BLOBS, [blobs])


class _NoTables(PostgresSession):
    """A session in a schema without tables: it finds nothing, and there is nothing to change."""

    def __call__(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:  # noqa: ARG002
        return []

    def count(self, statement: str, values: Any = ()) -> int:  # noqa: ARG002
        return 0


def _values(change: Change) -> dict[str, Any]:
    """The values of the statements about the thread of a change."""
    (head_run, head_seq), (root_run, root_seq) = change.head or (None, None), change.root or (None, None)
    lease = change.lease
    return {
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
    }


def _append(session: PostgresSession, change: Change, encoded: EncodedChange) -> bool:
    """Append with one statement; False, and nothing is written, on any conflict."""
    statement = _APPEND_END if any(row.kind in ENDINGS for row in change.rows) else _APPEND
    values = {
        **_values(change),
        "run": change.rows_of,
        "first": change.rows[0].seq if change.rows else -1,
        "ended": ended_by(change.rows),
        "seqs": [row.seq for row in change.rows],
        "kinds": [row.kind for row in change.rows],
        "bodies": [encoded.bodies[row.seq] for row in change.rows],
    }
    try:
        return any(count for count, _ in session(statement, values))
    except (psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure):
        return False


def _is_append(change: Change) -> bool:
    """Return whether a change only appends to a run, moves the head to its rows, or renews a lease."""
    if change.run or change.snapshot or change.root or change.runs or change.next_epoch is not None:
        return False
    seqs = [row.seq for row in change.rows]
    if change.rows and (seqs[0] < 0 or seqs != list(range(seqs[0], seqs[0] + len(seqs)))):
        return False
    own_head = change.head is None or (change.head.run == change.rows_of and bool(change.rows))
    return change.epoch > 0 and own_head


def _runs_of(change: Change) -> set[str]:
    """The runs that a change names, which must not be deleted before it is committed."""
    made, snapshot = change.run, change.snapshot
    points = [change.head, change.root, snapshot and snapshot.at, *(made.parents if made else ())]
    return {made.id if made else "", change.rows_of, *[point.run for point in points if point]} - {""}


# --- deletion

TRIES = 5
"""How often a call starts again because others have changed what it read, or dropped it. A deletion then locks it."""

# Every writer locks one of these tables before it writes: nothing new can refer to what is about to be deleted.
_LOCK = "LOCK TABLE {s}.thread, {s}.entry IN EXCLUSIVE MODE"
_BEGIN = "LOCK TABLE {s}.thread IN ROW SHARE MODE"
"""Begins a transaction that does not begin with a row of a thread: one that excludes all writers then waits for it."""
_LOCK_THREADS = "SELECT FROM {s}.thread WHERE name = ANY(%b) ORDER BY name FOR UPDATE"
_LOCK_RUNS = "SELECT FROM {s}.run WHERE id = ANY(%b) ORDER BY id FOR UPDATE"
_LOCK_BLOBS = "SELECT FROM {s}.blob WHERE id = ANY(%b) ORDER BY id FOR UPDATE"


def _delete(session: PostgresSession, names: Collection[str], plan: Plan, done: list[DeletionReport]) -> None:
    """Delete what `plan` says for the threads and runs around `names`, or for the whole store without names.

    The report comes to `done` before the commit. What was read before the locks may have changed since, so it is read
    again with them. If that finds threads or runs that are not locked, locking them now would break the lock order: the
    transaction starts again.
    """
    for turn in range(TRIES + 1):
        with session.connection.transaction():
            session(f"SELECT {LOCK_TIMEOUT}, {BY_KEYS}" if names else f"SELECT {LOCK_TIMEOUT}")
            before = None
            if not names or turn == TRIES:
                session(_LOCK)
            else:
                session(_BEGIN)
                before = read_around(session, names)
                session(_LOCK_THREADS, [sorted(encode_text(name) for name in {*before[0], *names})])
                session(_LOCK_RUNS, [sorted(before[1])])
            threads, runs = read_around(session, names)
            if before is None or (threads.keys() <= before[0].keys() and runs.keys() <= before[1].keys()):
                done.append(delete_planned(session, plan(threads, runs))._replace(erased=False))
                return
    raise AssertionError("the last turn locks the tables, and returns")


# --- the schemas of one database

_LABEL = re.compile("[A-Za-z0-9_-]{1,40}")
_PREFIX = re.compile("[A-Za-z0-9_-]{1,23}")  # 63 bytes with a label: PostgreSQL cuts off the rest of a name

_WITH_ROWS = "{s}.run, {s}.thread, {s}.entry, {s}.snapshot, {s}.blob, {s}.ref, {s}.link"
_SCHEMAS = """
    SELECT nspname FROM pg_namespace JOIN pg_class ON relnamespace = pg_namespace.oid AND relname = 'fence'
    WHERE starts_with(nspname, %s)"""
_THREADS_WHERE = """
    SELECT count(*) OVER (), name FROM {s}.thread LEFT JOIN {s}.run ON run.id = head_run
    WHERE %s ORDER BY name LIMIT 3"""
_OWNED = "owner IS NOT NULL AND lease_until > clock_timestamp()"
# A head before the last row is that of a copy, and of a part of a run.
_UNFINISHED = f"""
    head_run IS NOT NULL AND ((ended >= ? AND ended < ?) IS NOT TRUE OR (run.thread <> name AND head_seq <> {LAST}))"""


class Schemas(Mapping[str, Store]):
    """The stores in the schemas of one database, by their labels: a schema for each day, or for each tenant.

    Any label has a store: it is empty as long as there is no schema, and the first write creates that. Iteration asks
    the database for the labels that have schemas, and sorts them. All stores share the connections of this process.

    Args:
        address: as `Postgres` takes it, without a schema.
        prefix: begins the names of the schemas: 1 to 23 letters, digits, `-` and `_`. One that begins like another
            prefix of the same database lists the schemas of that one as well.
        connections: how many connections this process may have at once, 8 by default.

    Raises:
        ValueError: the address names a schema, or does not start with `postgresql://`.
        StoreError: the prefix has other characters or another length; and for a label that is not 1 to 40 letters,
            digits, `-` and `_`.

    Example:
        >>> days = Schemas("postgresql://ada:secret@db/desk", prefix="runs_")
        >>> days["2026-11-23"].address
        'postgresql://ada@db/desk?schema=runs_2026-11-23'
    """

    def __init__(self, address: str, *, prefix: str, connections: int = CONNECTIONS) -> None:
        if split_address(address)[2] is not None:
            raise ValueError("the address names a schema, and each label has one of its own: leave out schema=")
        _check_name("prefix", prefix, _PREFIX)
        self._address, self._prefix, self._limit = address, prefix, connections
        self._database = Postgres(address, connections=connections)
        self._stores: dict[str, Postgres] = {}

    def __getitem__(self, label: str) -> Postgres:
        _check_name("label", label, _LABEL)
        return self._stores.get(label) or self._stores.setdefault(
            label, _OfLabel(self._address, schema=self._prefix + label, connections=self._limit)
        )

    def __contains__(self, label: object) -> bool:
        return any(label == one for one in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[str]:
        with _told(f"the list of the schemas {self._prefix}..."):
            found = self._database._connections.run(
                self._database, lambda connection: connection.execute(_SCHEMAS, [self._prefix]).fetchall()
            )
        return iter(sorted(filter(_LABEL.fullmatch, [name.removeprefix(self._prefix) for (name,) in found])))

    def __repr__(self) -> str:
        return f"Schemas({self._database.address!r}, prefix={self._prefix!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Schemas, prefix=self._prefix, connections=self._limit), (self._database.address,)

    def drop(self, label: str, *, unfinished: bool = False) -> bool:
        """Drop the schema of a label, with all its threads and keys: 100,000 threads in about a second.

        Others of this label wait meanwhile. A writer that comes later is refused if its thread was dropped, and else
        makes a new schema: let what chooses labels refuse those that are over.

        Args:
            label: the label.
            unfinished: whether threads are dropped whose last run has not completed: it has failed, crashed or was
                stopped, or it waits for an answer.

        Returns:
            Whether there was such a schema.

        Raises:
            ConcurrentRunError: a run is at work in a thread; nothing was dropped.
            ThreadError: the last run of a thread has not completed; nothing was dropped.
            StoreError: others have used the tables for 15 s, the schema holds something else, or the server failed.

        Example:
            >>> from datetime import date, timedelta
            >>> def drop_old(days: Schemas) -> None:
            ...     first = f"{date.today() - timedelta(days=90):%Y-%m-%d}"
            ...     for day in days:
            ...         if day < first:
            ...             days.drop(day)
        """
        check_flags(unfinished=unfinished)
        with _told(f"dropping the schema {self._prefix}{label}"):
            return self[label]._run(partial(_drop, unfinished=unfinished, done=[]), writes=True)


class _OfLabel(Postgres):
    """The store of a label, whose schema may be dropped while others use it, and made again.

    What a process knows of a dropped schema must fit nothing in a new one. Each epoch takes a transaction, so those of
    a new schema, which begin above the number of the transaction that makes it, are above all that were there before.
    """

    _LARGEST = "txid_current()"

    def close(self) -> None:
        """Do nothing: the connections are those of all labels."""


def _drop(session: PostgresSession, unfinished: bool, done: list[bool]) -> bool:
    with session.connection.transaction():
        session(f"SELECT {LOCK_TIMEOUT}")
        session("LOCK TABLE {s}.thread IN EXCLUSIVE MODE")  # writers begin with it; readers go on
        if not session("SELECT number FROM {s}.version"):
            return bool(done)  # by this very call, whose connection was lost before the answer to its COMMIT
        _refuse(session, ConcurrentRunError, "at work: wait for the ends of their runs", _OWNED)
        if not unfinished:
            what = "with a last run that has not completed: resume or abandon it, or pass unfinished=True"
            _refuse(session, ThreadError, what, _UNFINISHED, ended_range("completed"))
        # Locks them in this order, which is that of lists of runs: one that has locked the first gets the others.
        session(f"DROP TABLE {_WITH_ROWS}, {{s}}.version, {{s}}.fence")
        session("DROP SCHEMA {s}")
        done.append(True)
        return True


def _refuse(session: PostgresSession, error: type[ThreadError], what: str, where: str, values: Any = ()) -> None:
    """Raise if there are such threads."""
    if found := session(_THREADS_WHERE % where, values):
        names = ", ".join([repr(session.decode_name(name)) for _, name in found])
        raise error(f"nothing was dropped, since there are threads ({found[0][0]}: {names}) {what}")


def _check_name(what: str, name: object, pattern: re.Pattern[str]) -> None:
    if not isinstance(name, str) or not pattern.fullmatch(name):
        most = pattern.pattern.partition(",")[2].rstrip("}")
        raise StoreError(f"{what} {brief(name)}: give 1 to {most} letters, digits, - and _")


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise StoreError(f"{what} failed: {error}") from error
