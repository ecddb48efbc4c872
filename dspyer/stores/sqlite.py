"""A store in one SQLite file, for many threads and processes of one machine.

`dspyer.stores.sqlite_file` has the connections and the log, `dspyer.stores.sqlite_opening` the tables,
`dspyer.stores.sql` nearly all statements; here is what is done otherwise than in PostgreSQL.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dspyer.clock import wall
from dspyer.stores.base import Change, DeletionReport, ThreadRow
from dspyer.stores.columns import encode_json
from dspyer.stores.sql import (
    PATIENCE,
    Columns,
    EncodedChange,
    Plan,
    SQLSession,
    SQLStore,
    decode_thread,
    delete_planned,
    insert_refs,
    read_around,
    read_run,
    write_ended,
    write_planned,
)
from dspyer.stores.sqlite_file import FileConnections
from dspyer.stores.sqlite_opening import ConnectionOpener, ReadOnlyFile
from dspyer.stores.writes import CurrentRows, WritePlan, appended, as_read, check_runs, thread_after

T = TypeVar("T")


class SQLite(SQLStore):
    """A store in one SQLite file, which several threads and processes of one machine may use at the same time.

    A written change is in the operating system's memory when `write` returns: it survives the end of the process. With
    `Change.flush` it is on the disk: it survives a power failure.

    Args:
        path: the file; the first write creates it.
        clock: returns seconds, the same for every process that uses the file: leases are compared by it.
        patience: seconds to wait for the lock of another process, or for other threads of this one.
        read_only: reads the file and writes nothing: it is not created, and no file is made next to it.

    Raises:
        StoreError: (on first use) the file is not a store, was made by another version of dspyer, or is on a network
            file system; or it does not exist, with `read_only`.

    Example:
        >>> import tempfile
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("a", lambda state: {"n": 1}).add_path(START, "a", END)
        >>> with tempfile.TemporaryDirectory() as folder, SQLite(f"{folder}/runs.db") as store:
        ...     _ = graph.compile(store=store).thread("t-1").run({})
        ...     store.threads()
        ['t-1']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = wall,
        patience: float = PATIENCE,
        read_only: bool = False,
    ) -> None:
        self._path = Path(path).absolute()
        self._clock = clock
        self._patience = patience
        self._read_only = read_only
        self._opener = ConnectionOpener(self._path)
        self._connections: FileConnections | ReadOnlyFile = (
            ReadOnlyFile(self._path) if read_only else FileConnections(self._path, self._opener, patience)
        )

    @property
    def address(self) -> str:
        return str(self._path)

    def __repr__(self) -> str:
        return f"SQLite({self.address!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(SQLite, clock=self._clock, patience=self._patience, read_only=self._read_only)
        return make, (self.address,)

    def write(self, change: Change) -> int:
        return self._connections.write(partial(self._apply, change, EncodedChange.of(change)), change.flush)

    def write_now(self, change: Change) -> bool:
        return self._connections.write_now(partial(self._apply, change, EncodedChange.of(change)), change.flush)

    def _apply(self, change: Change, encoded: EncodedChange, connection: sqlite3.Connection) -> int:
        if change.flush:  # not for each write: a flush is rare, and takes longer than this look at the file
            self._opener.check_same_file()
        session = SQLiteSession(connection, self._clock)
        return change.epoch if _append(session, change, encoded) else write_planned(session, change, encoded)

    def _read(self, work: Callable[[SQLSession], T]) -> T:
        return self._connections.read(lambda connection: work(SQLiteSession(connection, self._clock)))

    def _write(self, work: Callable[[SQLSession], T]) -> T:
        return self._connections.write(lambda connection: work(SQLiteSession(connection, self._clock)))

    def _delete(self, names: Collection[str], plan: Plan, check: Callable[[SQLSession], None]) -> DeletionReport:
        """Delete, then empty the log, which still has what was overwritten in the file."""

        def work(session: SQLSession) -> DeletionReport:
            check(session)
            return delete_planned(session, plan(*read_around(session, names)))

        report = self._write(work)
        if not (report.threads or report.runs or report.rows):
            return report
        return report._replace(erased=self._connections.erase())

    def vacuum(self) -> None:
        """Rewrite the file without gaps and without any trace of deleted data; other writers wait meanwhile."""
        self._connections.exclusively(lambda connection: connection.execute("VACUUM"))
        self._connections.erase()

    def close(self) -> None:
        """Empty the log and close all connections of this process, each as soon as it is idle."""
        self._connections.close()


# All that a write must know, in one statement.
_LAST = "(SELECT max(seq) FROM entry WHERE run = :rows_of)"
_CURRENT = f"""
    SELECT largest, {_LAST}, EXISTS (SELECT 1 FROM run WHERE id = :rows_of), EXISTS (SELECT 1 FROM run WHERE id = :run),
    thread.* FROM fence LEFT JOIN thread ON name = :thread"""


class SQLiteSession(SQLSession):
    """Executes statements with a connection, within the transaction of its caller.

    Args:
        connection: the connection.
        clock: returns seconds.
    """

    lease = "lease_until"

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self.connection = connection
        self._clock = clock

    def __call__(self, statement: str, values: Any = ()) -> list[Columns]:
        return self.connection.execute(statement.replace("{s}.", ""), values).fetchall()

    def count(self, statement: str, values: Any = ()) -> int:
        return self.connection.execute(statement.replace("{s}.", ""), values).rowcount

    def each(self, statement: str, values: Iterable[Any]) -> None:
        self.connection.executemany(statement.replace("{s}.", ""), values)

    def thread_now(self, thread: ThreadRow) -> ThreadRow:
        return as_read(thread, self._clock())

    def lock(self, change: Change) -> CurrentRows:
        run = "" if change.run is None else change.run.id
        values = {"rows_of": change.rows_of, "run": run, "thread": change.thread}
        ((largest, last, has_rows_of, has_run, *columns),) = self(_CURRENT, values)
        thread = None if columns[0] is None else decode_thread(self, columns)
        last = (-1 if last is None else last) if has_rows_of else None
        return CurrentRows(thread, read_run(self, run) if has_run else None, last, max_deleted_epoch=largest)

    def insert_blobs(self, blobs: Mapping[bytes, bytes]) -> None:
        self.each("INSERT OR IGNORE INTO blob VALUES (?, ?)", blobs.items())

    def write_thread(self, change: Change, current: CurrentRows, plan: WritePlan) -> None:
        name, head, epoch, owner, lease, root, runs = thread_after(change, current.thread, plan, self._clock())
        owned = None if owner is None else encode_json(owner)
        columns = name, epoch, *(head or (None, None)), *(root or (None, None)), owned, lease, runs
        self("INSERT OR REPLACE INTO thread VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", columns)


# The next row of a run, if the thread has the epoch of the change.
_APPEND = """
    INSERT INTO entry SELECT ?1, ?2, ?3, ?4 FROM thread WHERE name = ?5 AND fencing = ?6
    AND (SELECT max(seq) FROM entry WHERE run = ?1) = ?2 - 1"""


def _append(session: SQLiteSession, change: Change, encoded: EncodedChange) -> bool:
    """Append the next row of a run for the thread's owner; False, without a change, for any other change.

    It takes two statements.
    """
    head, run, name = appended(change), change.rows_of, change.thread
    if head is None:
        return False
    row, execute = change.rows[0], session.connection.execute
    try:
        if not execute(_APPEND, (run, row.seq, row.kind, encoded.bodies[row.seq], name, change.epoch)).rowcount:
            return False
    except sqlite3.IntegrityError:
        return False  # the row is there already: the statement has changed nothing
    # Naming `head_run` would write its index too, even with the same value.
    moved = execute("UPDATE thread SET head_seq = ? WHERE name = ? AND head_run = ?", (head.seq, name, head.run))
    if not moved.rowcount:
        check_runs(change, lambda run: read_run(session, run) is not None)
        execute("UPDATE thread SET head_run = ?, head_seq = ? WHERE name = ?", (*head, name))
    if encoded.refs:
        session.insert_blobs(encoded.blobs)
        insert_refs(session, encoded.refs)
    write_ended(session, run, change.rows)
    return True
