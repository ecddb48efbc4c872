"""Runs in one SQLite file, for many threads and processes of one machine."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dspyer.stores.base import NO_EPOCHS, Change, DeletionReport, Point, Row, RunRow, Snapshot, Store, ThreadRow
from dspyer.stores.reach import disowning
from dspyer.stores.sqlite_connections import FileConnections
from dspyer.stores.sqlite_file import ConnectionOpener
from dspyer.stores.sqlite_reading import read_blobs, read_rows, read_run, read_runs, read_snapshot, read_thread
from dspyer.stores.sqlite_sweep import sweep, sweep_snapshots, sweep_threads
from dspyer.stores.sqlite_writing import PackedChange, packed, write

PATIENCE = 15.0
"""Seconds that a call waits for a lock: half of a lease, so that an owner that waits is not taken for gone."""


class SQLite(Store):
    """Runs in one SQLite file.

    Several threads and processes of one machine may use the file at the same time. What `write` was given is with the
    operating system when it returns, and on the disk if the change says `flush`.

    Args:
        path: the file; it is made when it is first used.
        clock: seconds, the same for every process that uses the file: leases are compared by it.
        patience: seconds that a call waits for the lock of another process, or for other threads of this one.

    Raises:
        StoreError: (by the first use) if the file is not one of ours, was made by a later version of dspyer, or is
            on a network file system.

    Example:
        >>> SQLite("/tmp/runs.db")
        SQLite('/tmp/runs.db')
    """

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time, patience: float = PATIENCE
    ) -> None:
        self._path = Path(path).absolute()
        self._clock = clock
        self._patience = patience
        self._opener = ConnectionOpener(self._path)
        self._connections = FileConnections(self._path, self._opener, patience)

    @property
    def address(self) -> str:
        """The absolute path of the file."""
        return str(self._path)

    def __repr__(self) -> str:
        return f"SQLite({self.address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SQLite, clock=self._clock, patience=self._patience), (self.address,)

    def write(self, change: Change) -> int:
        """Applies a change in one transaction; waits for whoever else is writing."""
        contents = packed(change)
        return self._connections.write(partial(self._apply, change, contents), change.flush, contents.size)

    def write_now(self, change: Change) -> bool:
        """Applies a change, unless somebody else is writing at this moment."""
        contents = packed(change)
        return self._connections.write_now(partial(self._apply, change, contents), change.flush, contents.size)

    def _apply(self, change: Change, contents: PackedChange, connection: sqlite3.Connection) -> int:
        if change.flush:
            self._opener.check_same()
        return write(connection, change, contents, self._clock())

    def thread(self, name: str) -> ThreadRow | None:
        """Where a thread stands."""
        return self._connections.read(lambda connection: read_thread(connection, name, self._clock()))

    def threads(self) -> list[str]:
        """The names of all threads, sorted."""
        statement = "SELECT name FROM thread ORDER BY name"
        return [name for (name,) in self._connections.read(lambda connection: connection.execute(statement).fetchall())]

    def run(self, run: str) -> RunRow | None:
        """A run by its id."""
        return self._connections.read(lambda connection: read_run(connection, run))

    def runs(self, thread: str) -> list[RunRow]:
        """The runs that were made for a thread, in the order in which they were begun."""
        return self._connections.read(lambda connection: read_runs(connection, thread))

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        """Rows of a run in order."""
        return self._connections.read(lambda connection: read_rows(connection, run, first, last))

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        """Large values by id."""
        return self._connections.read(lambda connection: read_blobs(connection, ids))

    def snapshot(self, at: Point) -> Snapshot | None:
        """The last snapshot of a run at or before a row."""
        return self._connections.read(lambda connection: read_snapshot(connection, at))

    def remove(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
        """Removes threads, and all that they had and nothing else reaches."""
        return self._erased(lambda connection: sweep_threads(connection, frozenset(threads), epochs))

    def disown(self, thread: str) -> DeletionReport:
        """Removes what was made for a thread and lies outside of what it reaches from its head."""
        return self._erased(
            lambda connection: sweep(connection, [thread], lambda found, runs: disowning(found, runs, thread))
        )

    def _erased(self, work: Callable[[sqlite3.Connection], DeletionReport]) -> DeletionReport:
        """Removes something; then it is overwritten in the file, and the log, which has it still, is emptied."""
        swept = self._connections.write(work)
        if not (swept.threads or swept.runs or swept.rows):
            return swept
        return swept._replace(erased=self._connections.erase())

    def drop_snapshots(self) -> None:
        """Removes all snapshots but those at the roots of threads."""
        self._connections.write(sweep_snapshots)

    def vacuum(self) -> None:
        """Writes the file anew, without gaps and without any trace of what was removed, while no other writes."""
        self._connections.exclusively(lambda connection: connection.execute("VACUUM"))
        self._connections.erase()

    def close(self) -> None:
        """Empties the log and closes all connections of this process, each as soon as it rests."""
        self._connections.close()
