"""Runs in a PostgreSQL database, for many threads and processes of many machines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

from psycopg import sql

from dspyer.stores.base import NO_EPOCHS, Change, DeletionReport, Point, Row, RunRow, Snapshot, Store, ThreadRow
from dspyer.stores.postgres_columns import (
    pack_text,
    unpack,
    unpack_content,
    unpack_owner,
    unpack_point,
    unpack_run,
    unpack_text,
)
from dspyer.stores.postgres_connections import Connection, ServerConnections, split_address, with_schema
from dspyer.stores.postgres_schema import prepare
from dspyer.stores.postgres_sweep import sweep, sweep_snapshots, sweep_threads
from dspyer.stores.postgres_write import ChangeWriter
from dspyer.stores.reach import disowning

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

    def remove(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
        gone = frozenset(threads)
        return self._run(lambda connection: sweep_threads(connection, self._sql, gone, epochs))

    def disown(self, thread: str) -> DeletionReport:
        return self._run(
            lambda connection: sweep(connection, self._sql, [thread], lambda ends, runs: disowning(ends, runs, thread))
        )

    def drop_snapshots(self) -> None:
        self._run(lambda connection: sweep_snapshots(connection, self._sql))

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
