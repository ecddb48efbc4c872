"""A store in one SQLite file, for many threads and processes of one machine.

`dspyer.stores.sqlite_file` has the connections and the log, `dspyer.stores.sqlite_opening` the tables,
`dspyer.stores.sql` nearly all statements; here is what is done otherwise than in PostgreSQL.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dspyer.clock import wall
from dspyer.stores.base import Change, DeletionReport, ThreadRow
from dspyer.stores.columns import decode_point, decode_points, encode_json
from dspyer.stores.reachability import RunSummary, ThreadBounds, relevant_subgraph
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
    read_run,
    write_ended,
    write_planned,
)
from dspyer.stores.sqlite_file import FileConnections
from dspyer.stores.sqlite_opening import ConnectionOpener, ReadOnlyFile
from dspyer.stores.writes import CurrentRows, WritePlan, as_read, check_runs, thread_after

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
        encoded = EncodedChange.of(change)
        return self._connections.write(partial(self._apply, change, encoded), change.flush, encoded.size)

    def write_now(self, change: Change) -> bool:
        encoded = EncodedChange.of(change)
        return self._connections.write_now(partial(self._apply, change, encoded), change.flush, encoded.size)

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
            references = SQLiteReferences(session)
            return delete_planned(
                session, plan(*(relevant_subgraph(references, names) if names else references.whole()))
            )

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

    def stream(self, statement: str, values: Any = ()) -> Iterator[Columns]:
        yield from self.connection.execute(statement.replace("{s}.", ""), values)

    def encode_name(self, name: str) -> str:
        return name

    def decode_name(self, column: str) -> str:
        return column

    def thread_now(self, thread: ThreadRow) -> ThreadRow:
        return as_read(thread, self._clock())

    def at_one_time(self) -> AbstractContextManager[object]:
        return nullcontext()

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

    def lock_blobs(self, blobs: list[bytes]) -> None:
        """Nothing to do: the file has one writer at a time."""


# The next row of a run, if the thread has the epoch of the change.
_APPEND = """
    INSERT INTO entry SELECT ?1, ?2, ?3, ?4 FROM thread WHERE name = ?5 AND fencing = ?6
    AND (SELECT max(seq) FROM entry WHERE run = ?1) = ?2 - 1"""
_NONE_OF_SIX = (None,) * 6


def _append(session: SQLiteSession, change: Change, encoded: EncodedChange) -> bool:
    """Append the next row of a run for the thread's owner; False, without a change, for any other change.

    This is nearly every write of a run, and takes two statements.
    """
    name, epoch, next_epoch, owner, lease, head, root, run, rows_of, rows, snapshot, _, runs = change
    if (next_epoch, owner, lease, root, run, snapshot) != _NONE_OF_SIX or head is None or len(rows) != 1 or runs:
        return False
    row, execute = rows[0], session.connection.execute
    try:
        if not execute(_APPEND, (rows_of, row.seq, row.kind, encoded.bodies[row.seq], name, epoch)).rowcount:
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
    write_ended(session, rows_of, rows)
    return True


_BOUNDS = "SELECT name, head_run, head_seq, root_run, root_seq FROM thread"
_SUMMARY = "SELECT id, thread, parents, coalesce((SELECT max(seq) FROM entry WHERE run = run.id), -1) FROM run"


class SQLiteReferences:
    """The references between threads and runs, as `relevant_subgraph` asks for them."""

    def __init__(self, session: SQLSession) -> None:
        self._execute = session

    def bounds(self, thread: str) -> ThreadBounds | None:
        return next((bounds for _, bounds in self._bounds(f"{_BOUNDS} WHERE name = ?", thread)), None)

    def summary(self, run: str) -> RunSummary | None:
        return next((summary for _, summary in self._summaries(f"{_SUMMARY} WHERE id = ?", run)), None)

    def runs_of(self, thread: str) -> list[str]:
        return self._names("SELECT id FROM run WHERE thread = ?", thread)

    def children(self, run: str) -> list[str]:
        return self._names("SELECT child FROM link WHERE parent = ?", run)

    def threads_at(self, run: str) -> list[str]:
        return self._names("SELECT name FROM thread WHERE head_run = ?", run)

    def whole(self) -> tuple[dict[str, ThreadBounds], dict[str, RunSummary]]:
        """All threads and runs."""
        return dict(self._bounds(_BOUNDS)), dict(self._summaries(_SUMMARY))

    def _names(self, statement: str, name: str) -> list[str]:
        return [found for (found,) in self._execute(statement, (name,))]

    def _bounds(self, statement: str, *values: str) -> Iterator[tuple[str, ThreadBounds]]:
        for name, *ends in self._execute(statement, values):
            yield name, ThreadBounds(decode_point(*ends[:2]), decode_point(*ends[2:]))

    def _summaries(self, statement: str, *values: str) -> Iterator[tuple[str, RunSummary]]:
        for run, thread, parents, last in self._execute(statement, values):
            yield run, RunSummary(thread, decode_points(parents), last)
