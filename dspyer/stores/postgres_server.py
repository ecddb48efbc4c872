"""Connections to a PostgreSQL server: kept open between uses, shared by threads, never by processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit
from weakref import WeakSet, finalize

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from dspyer.errors import StoreError

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")


PATIENCE = 15.0
"""Seconds that a call waits for a connection, or for a lock: half of a lease."""

LIMITS: Mapping[str, int] = MappingProxyType(
    {
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }
)
"""What a server that is gone without a word may cost, unless the address says otherwise: seconds, but the last one in
milliseconds. These are settings of the driver, of which neither server nor poolers are told."""


class ServerConnections:
    """Connections to one server.

    They run without prepared statements and hold no state of a session, so a pooler that gives each transaction
    another connection may stand between.

    Args:
        address: where the server is, with the password if it needs one.
        most: how many may be in use at once; further threads wait.
    """

    def __init__(self, address: str, most: int) -> None:
        self._address = address
        self._most = most
        self._closed = False
        self._begin()
        _ALL.add(self)

    def run(self, work: Callable[[Connection], T]) -> T:
        """Does some work with a connection, and once more with a new one if the connection was lost.

        Args:
            work: what to do; a second time it must do no harm.
        """
        with self._one_of_them():
            if self._closed:
                raise StoreError("the store is closed: open it again")
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._open()
            try:
                return self._work(connection, work)
            except psycopg.Error as error:
                if not (connection.closed or _is_lost(error)):
                    raise
            connection.close()
            self._forget_idle()  # what is as old is lost too, most likely
            return self._work(self._open(), work)

    @contextmanager
    def _one_of_them(self) -> Iterator[None]:
        """While one connection more is in use."""
        free = self._free
        if not free.acquire(timeout=PATIENCE):
            raise StoreError(
                f"all {self._most} connections have been in use for {PATIENCE:g} s: nothing was done. Allow more with "
                "Postgres(address, connections=...)"
            )
        try:
            yield
        finally:
            free.release()

    def close(self) -> None:
        """Closes what is idle; what is in use is closed when its work is done."""
        self._closed = True
        self._forget_idle()

    def after_fork(self) -> None:
        """Starts afresh in a child process: the parent's connections are not touched, they are still the parent's."""
        self._finish.detach()
        _INHERITED.extend([*self._idle, *self._busy])
        self._begin()

    def _begin(self) -> None:
        self._free = threading.BoundedSemaphore(self._most)
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._finish = finalize(self, _close_all, self._idle)

    def _open(self) -> Connection:
        given: dict[str, Any] = {**LIMITS, **conninfo_to_dict(self._address)}
        if "PGCONNECT_TIMEOUT" in os.environ and "connect_timeout" not in conninfo_to_dict(self._address):
            del given["connect_timeout"]
        connection = psycopg.connect(**given, autocommit=True, prepare_threshold=None)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connection

    def _work(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        self._busy.add(connection)
        try:
            result = work(connection)
        except BaseException as error:
            # Whatever came in between (a signal, say): a connection in the middle of something is no use to others.
            if connection.info.transaction_status == TransactionStatus.IDLE and not _is_lost(error):
                self._give_back(connection)
            else:
                connection.close()
            raise
        else:
            self._give_back(connection)
            return result
        finally:
            self._busy.discard(connection)

    def _give_back(self, connection: Connection) -> None:
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)

    def _forget_idle(self) -> None:
        _close_all(self._idle)


def _close_all(connections: list[Connection]) -> None:
    while connections:
        with suppress(IndexError):  # a thread was faster
            connections.pop().close()


def _is_lost(error: BaseException) -> bool:
    """Whether an error says that the server ends the connection, even if that has not been noticed yet."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state is not None and (state.startswith(("08", "57P")) or state == "25P03")


_ALL: WeakSet[ServerConnections] = WeakSet()
_INHERITED: list[Connection] = []  # never closed: that would end the session of the parent process


def _after_fork() -> None:
    for connections in _ALL:
        connections.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def split_address(address: str) -> tuple[str, str, str | None]:
    """An address as the server's driver takes it, the same without the password, and the schema that it names.

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
        _joined(parts.scheme, parts.netloc, parts.path, whole),
        _joined(parts.scheme, user.partition(":")[0] + at + host, parts.path, public),
        schema,
    )


def with_schema(address: str, schema: str) -> str:
    """An address that names a schema too."""
    return f"{address}{'&' if '?' in address else '?'}schema={quote(schema, safe='')}"


def _joined(scheme: str, place: str, path: str, options: list[str]) -> str:
    # Not urlunsplit: it leaves out the slashes before an empty place.
    return f"{scheme}://{place}{path}{'?' if options else ''}{'&'.join(options)}"


# --------------------------------------------------------------------------------------------------------------------
# The tables of a PostgreSQL store, and how older ones become those of today.


MIGRATIONS: list[str] = [
    """
    CREATE TABLE {s}.thread (
        name bytea PRIMARY KEY,
        epoch bigint NOT NULL,
        head_run text COLLATE "C",
        head_seq bigint,
        root_run text COLLATE "C",
        root_seq bigint,
        owner bytea,
        lease_until timestamptz,
        runs bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50);
    CREATE TABLE {s}.run (
        id text COLLATE "C" PRIMARY KEY,
        number bigint GENERATED ALWAYS AS IDENTITY,
        thread bytea NOT NULL,
        parents bytea NOT NULL,
        header bytea NOT NULL
    );
    CREATE INDEX run_of_thread ON {s}.run (thread, number);
    CREATE TABLE {s}.entry (
        run text COLLATE "C",
        seq bigint,
        kind text NOT NULL,
        head bytea NOT NULL,
        data bytea,
        refs text[],
        PRIMARY KEY (run, seq)
    );
    CREATE INDEX entry_refs ON {s}.entry USING gin (refs) WHERE refs IS NOT NULL;
    CREATE TABLE {s}.snapshot (
        run text COLLATE "C",
        seq bigint,
        data bytea NOT NULL,
        refs text[],
        PRIMARY KEY (run, seq)
    );
    CREATE INDEX snapshot_refs ON {s}.snapshot USING gin (refs) WHERE refs IS NOT NULL;
    CREATE TABLE {s}.blob (
        id text COLLATE "C" PRIMARY KEY,
        data bytea NOT NULL
    );
    """,
    # What refers to what, so that a removal looks at nothing else, and how far epochs have been given. The column of
    # epochs has a new name: a program of version 1 that is at work would write no links, so it must not go on writing.
    """
    ALTER TABLE {s}.thread RENAME COLUMN epoch TO fencing;
    CREATE TABLE {s}.fence (largest bigint NOT NULL);
    INSERT INTO {s}.fence SELECT coalesce(max(fencing), 0) FROM {s}.thread;
    CREATE INDEX thread_head ON {s}.thread (head_run) WHERE head_run IS NOT NULL;
    CREATE TABLE {s}.link (
        parent text COLLATE "C",
        child text COLLATE "C",
        PRIMARY KEY (parent, child)
    );
    CREATE INDEX link_child ON {s}.link (child);
    INSERT INTO {s}.link SELECT DISTINCT parent ->> 0, id
        FROM {s}.run, json_array_elements(convert_from(parents, 'UTF8')::json) AS parent;
    """,
]
"""What leads from each version of the tables to the next; the first makes them. Never changed, only added to."""


def prepare(connection: Connection, schema: str) -> None:
    """Makes the tables, or brings them to the version of today; does nothing where they are of today.

    Raises:
        StoreError: the tables are of a later version.
    """
    if version_of(connection, schema) == len(MIGRATIONS):
        return
    names = {"s": sql.Identifier(schema)}
    with connection.transaction():
        # Held until the transaction ends: of many that start at once, one makes the tables and the others find them.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('dspyer ' || %s, 0))", [schema])
        version = version_of(connection, schema)
        if version > len(MIGRATIONS):
            raise StoreError(
                f"the tables in schema {schema!r} are of version {version}, and this dspyer knows {len(MIGRATIONS)}: "
                f"use the later dspyer that made them, or another schema"
            )
        if not connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).rowcount:
            connection.execute(sql.SQL("CREATE SCHEMA {s}").format(**names))
        if not version:
            table = "CREATE TABLE {s}.version (number int PRIMARY KEY, since timestamptz DEFAULT clock_timestamp())"
            connection.execute(sql.SQL(table).format(**names))
        for number in range(version, len(MIGRATIONS)):
            connection.execute(sql.SQL(MIGRATIONS[number]).format(**names))
            connection.execute(sql.SQL("INSERT INTO {s}.version (number) VALUES (%s)").format(**names), [number + 1])


def version_of(connection: Connection, schema: str) -> int:
    """The version of the tables in a schema; 0 for none."""
    # Read from the catalog: to_regclass may still answer from what the session knew before it waited for the lock.
    tables = "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'version'"
    if not connection.execute(tables, [schema]).rowcount:
        return 0
    table = sql.Identifier(schema, "version")
    row = connection.execute(sql.SQL("SELECT coalesce(max(number), 0) FROM {}").format(table)).fetchone()
    return int(row[0]) if row else 0
