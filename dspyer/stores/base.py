"""What a store is: rows of runs, and where threads stand. A store keeps what it is given and understands none of it.

A *thread* stands at a row of a *run*. A run is a list of rows, numbered from 0 without gaps, and names the row of
another run that it goes on from. So the history of a thread is its run up to a row, then that run's parent up to a
row, and so on; a copy of a thread is one row of the table of threads.

Everything that changes goes through `Store.write`: one `Change`, one transaction, applied whole or not at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from dspyer.stores.content import Content


class Owner(NamedTuple):
    """Who works on a thread.

    Attributes:
        host: the machine.
        pid: the process on it.
        started: when that process started, as the system tells it: process numbers are used again.
        token: a random text, another for each owner.
    """

    host: str
    pid: int
    started: str
    token: str


class Point(NamedTuple):
    """A row of a run."""

    run: str
    seq: int


class ThreadRow(NamedTuple):
    """Where a thread stands.

    Attributes:
        name: its name.
        head: the last row that belongs to it; None if it has none.
        epoch: its fencing token. It grows whenever another owner gets the thread, and a thread that is made again
            under the name of a removed one begins above every epoch that was removed: no name has an epoch twice.
            Every write names the epoch that it knows, and is refused under another one.
        owner: who works on it; None for nobody, and after a release.
        lease: seconds until the owner counts as gone, by the clock of the store; 0 or less once it has.
        root: the row at which its history begins, if older history was pruned.
        runs: how many runs were ever made for it.
    """

    name: str
    head: Point | None
    epoch: int
    owner: Owner | None = None
    lease: float = 0.0
    root: Point | None = None
    runs: int = 0


class RunRow(NamedTuple):
    """A run, as it was begun.

    Attributes:
        id: a random text, another for each run.
        thread: the thread that it was made for; `""` once that was removed or has disowned it, if others keep the run.
        parents: the rows that it goes on from; two for the merge of two threads.
        header: what is known of it from the start, JSON values only.
    """

    id: str
    thread: str
    parents: tuple[Point, ...]
    header: Mapping[str, Any]


class Row(NamedTuple):
    """One entry of a run.

    Attributes:
        seq: its number within the run.
        kind: a short word.
        header: its structure, JSON values only, never encrypted.
        content: what it holds; None for nothing.
    """

    seq: int
    kind: str
    header: tuple[Any, ...]
    content: Content | None = None


class Snapshot(NamedTuple):
    """What a run had come to at one of its rows. A cache: nothing but time is lost with it."""

    at: Point
    content: Content


class Change(NamedTuple):
    """One transaction.

    Attributes:
        thread: the thread that is changed or whose owner writes; `""` touches no thread.
        epoch: the epoch that the thread must have; 0 for a thread that must not exist yet: it is made.
        next_epoch: the epoch that it has afterwards, a larger one; None leaves it. A thread that is made gets its
            epoch from the store, which says what it is.
        owner: who owns it afterwards, if `lease` is given; None leaves the owner that it has.
        lease: seconds that the owner has from now; 0 releases the thread, which has no owner then; None leaves owner
            and lease.
        head: where the thread stands afterwards; None leaves it.
        root: where its history begins afterwards; None leaves it.
        run: a run to begin; the thread, if one is named, counts it.
        runs: how many further runs the thread counts, which are not here: those of a thread that comes from a file.
        rows_of: the run that gets the rows; it is there, or is `run`.
        rows: rows to append, in the order of their numbers, the first of them next to the last one that is there.
        snapshot: a snapshot to keep.
        flush: whether the change must be on the disk when `write` returns, and not only with the operating system.
    """

    thread: str = ""
    epoch: int = 0
    next_epoch: int | None = None
    owner: Owner | None = None
    lease: float | None = None
    head: Point | None = None
    root: Point | None = None
    run: RunRow | None = None
    rows_of: str = ""
    rows: Sequence[Row] = ()
    snapshot: Snapshot | None = None
    flush: bool = False
    runs: int = 0


class DeletionReport(NamedTuple):
    """What a removal has removed, and what stayed because others reach it.

    Attributes:
        threads: names of the removed threads.
        runs: how many runs were removed.
        rows: how many rows were removed, of runs that stay in part too.
        kept: by the name of each thread that stays, the ids of the removed threads' runs that it still reaches.
        erased: whether its bytes were overwritten too, as far as the store can do that: False if another program kept
            the log of an SQLite file from being emptied, and for PostgreSQL, whose server keeps removed rows for a
            while.
    """

    threads: tuple[str, ...]
    runs: int
    rows: int
    kept: Mapping[str, tuple[str, ...]]
    erased: bool = True


NO_EPOCHS: Mapping[str, int] = MappingProxyType({})


class Store(ABC):
    """Where runs are kept. Safe for many threads of one process, and for many processes if it is shared by them.

    Every method may block, and is called from any thread. What goes wrong in a store is raised as it is (the caller
    makes a `StoreError` of it); only `write` decides something: whether the epoch is still the one that it was given.
    `dspyer.testing.store_conformance` has the tests that every store must pass.
    """

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it is, for people and for opening it again: without password."""

    @abstractmethod
    def write(self, change: Change) -> int:
        """Applies a change as a whole, or nothing of it.

        Writing a change a second time, after an answer that got lost, does nothing: rows that are there already with
        equal content, and a run that is there already, are no error if the epoch is still the same. If it is the next
        one already, the change was written if its rows, run, owner and head are all there; a change without rows, run
        and owner has nothing to know it by, and is refused. `dspyer.stores.writes.admit` decides so for all stores.

        Args:
            change: what to do.

        Returns:
            The epoch that the thread has afterwards; 0 for a change without thread.

        Raises:
            ConcurrentRunError: the thread has another epoch, or a row or run of that name is another one.
            ValueError: rows with a gap before or between them, a row, head or snapshot of a run that is not there, or
                a `next_epoch` that is not larger.
        """

    def write_now(self, change: Change) -> bool:
        """Applies a change if that needs no waiting for others, and says whether it did.

        Async code calls this on its event loop first, and `write` in a thread if it says False.
        """
        del change
        return False

    @abstractmethod
    def thread(self, name: str) -> ThreadRow | None:
        """Where a thread stands; None if there is none of this name."""

    @abstractmethod
    def threads(self) -> list[str]:
        """The names of all threads, sorted."""

    @abstractmethod
    def run(self, run: str) -> RunRow | None:
        """A run by its id; None if there is none."""

    @abstractmethod
    def runs(self, thread: str) -> list[RunRow]:
        """The runs that were made for a thread and are still there, in the order in which they were begun."""

    @abstractmethod
    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        """Rows of a run in order.

        Args:
            run: its id.
            first: the number of the first row.
            last: the number of the last row, included; None for all.
        """

    @abstractmethod
    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        """The large values by id; those that are not there are left out."""

    @abstractmethod
    def snapshot(self, at: Point) -> Snapshot | None:
        """The last snapshot of a run at or before a row; None if there is none."""

    @abstractmethod
    def delete(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
        """Removes threads and, in the same transaction, all that they had and nothing else reaches.

        A thread reaches from its head back to its root (or to the first run), and all runs that were made for it; a
        run that only a part is reached of keeps that part. The snapshots at the roots of threads are kept. Only the
        threads, their runs, and what is connected with these is looked at: `dspyer.stores.reachability.connected`.

        Args:
            threads: names of the threads; without any, the whole store is searched for what nothing reaches.
            epochs: by name, the epochs that threads must have; the others are removed whatever their epoch is.

        Raises:
            ConcurrentRunError: a thread is there and has another epoch than `epochs` says; nothing was removed.
        """

    @abstractmethod
    def delete_unreachable(self, thread: str) -> DeletionReport:
        """Removes what was made for a thread but lies outside of what it reaches from its head back to its root.

        A run that stays for others is the thread's no more. `dspyer.stores.reachability` computes what is deleted.
        """

    @abstractmethod
    def drop_snapshots(self) -> None:
        """Removes all snapshots but those at the roots of threads."""

    @abstractmethod
    def vacuum(self) -> None:
        """Gives the space of what was removed back to the system."""

    @abstractmethod
    def close(self) -> None:
        """Ends the use of the store; what was written stays. A second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        """Copies of a program share its store."""
        return self
