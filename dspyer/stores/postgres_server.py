"""The server of a PostgreSQL store: its connections, its address and its tables.

Connections are kept open between uses and shared by the threads of a process, but never by processes: two that use one
connection would mix their messages to the server.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit
from weakref import WeakSet, WeakValueDictionary, finalize

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from dspyer import clock
from dspyer.ctrl_c import at_fork
from dspyer.errors import StoreError
from dspyer.stores import columns
from dspyer.stores.columns import VERSION
from dspyer.stores.sql import PATIENCE

Connection = psycopg.Connection[tuple[Any, ...]]
Values = Sequence[Any] | Mapping[str, Any]
T = TypeVar("T")

PAUSE = 1.0
"""Seconds for which a server that has refused a connection is not asked for another, while there are some."""

LIMITS: Mapping[str, int] = MappingProxyType(
    {
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }
)
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
        with self._changed:
            _close_all(self._idle)  # most likely lost as well, as after a restart of the server
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
        self._busy: set[object] = set()  # connections in use, and a mark for each that is being opened
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
                    self._busy.add(connection := self._idle.pop())
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
                has_waited, self._waiting = True, self._waiting + 1
                try:
                    clock.wait(self._changed, end, "connection")
                except BaseException:
                    self._changed.notify()  # this call may have been woken
                    raise
                finally:
                    self._waiting -= 1
            self._changed.notify()
        raise StoreError("the store is closed: open it again")

    def _add(self) -> Connection:
        """Open a connection, without the lock meanwhile."""
        self._busy.add(mark := object())
        self._changed.release()
        try:
            connection = self._open()
        finally:
            self._changed.acquire()
            self._busy.discard(mark)
            self._refusal, self._ask_again = "", 0.0
            self._changed.notify()
        self._busy.add(connection)
        return connection

    def _open(self) -> Connection:
        options: dict[str, Any] = {**LIMITS, **conninfo_to_dict(self._address)}
        if "PGCONNECT_TIMEOUT" in os.environ and "connect_timeout" not in conninfo_to_dict(self._address):
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
                self._busy.discard(connection)
                if not self.users:
                    connection.close()
                elif not connection.closed:
                    self._idle.append(connection)
                self._changed.notify()


def _close_all(connections: list[Connection]) -> None:
    while connections:
        with suppress(IndexError):  # another thread has taken the last one
            connections.pop().close()


def _is_lost(error: BaseException) -> bool:
    """Whether the server ends the connection, even if the client has not noticed yet.

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


def split_address(address: str) -> tuple[str, str, str | None]:
    """An address for the driver, the same one without its password, and the schema that it names.

    Example:
        >>> split_address("postgresql://ada:secret@db/runs?schema=team&sslmode=require")
        ('postgresql://ada:secret@db/runs?sslmode=require', 'postgresql://ada@db/runs?sslmode=require', 'team')
    """
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
TABLES = columns.TABLES.format(**_TYPES, thread="WITH (fillfactor = 50)", keyed="", version=VERSION, s="{s}")


def prepare(connection: Connection, schema: str, read_only: bool) -> None:
    """Create the tables if there are none and that is allowed.

    Raises:
        StoreError: there are none, or they have another version.
    """
    version = _version_of(connection, schema)
    if not version and not read_only:
        with connection.transaction():
            # Held until the transaction ends: of many processes that start at once, one creates the tables.
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('dspyer ' || %s, 0))", [schema])
            version = _version_of(connection, schema)
            if not version:
                if not connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).rowcount:
                    # Asked first: CREATE SCHEMA IF NOT EXISTS needs the right to create even if the schema exists.
                    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
                connection.execute(sql.SQL(TABLES).format(s=sql.Identifier(schema)))
                return
    if not version:
        raise StoreError(f"there are no tables of a store in schema {schema!r}: name the database of a store")
    if version != VERSION:
        raise StoreError(
            f"the tables in schema {schema!r} are of version {version}, and this dspyer knows version {VERSION}: use "
            "the dspyer that made them, or another schema"
        )


def _version_of(connection: Connection, schema: str) -> int:
    """The version of the tables in a schema; 0 without tables."""
    # Read from the catalog: to_regclass may answer from what the session had cached before it waited for the lock.
    tables = "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'version'"
    if not connection.execute(tables, [schema]).rowcount:
        return 0
    number = sql.SQL("SELECT coalesce(max(number), 0) FROM {s}.version").format(s=sql.Identifier(schema))
    return int(connection.execute(number).fetchall()[0][0])
