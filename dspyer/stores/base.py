"""The protocol of a store: runs, their rows, threads, and the one change that writes them.

A *run* is a list of rows, numbered from 0 without gaps, and names the row of another run that it continues (two rows
if it merges two threads). A *thread* is a name with a *head*: the last row of its history, which is its run up to that
row, then the parent run up to the row that was continued, and so on. Copying a thread copies no rows: it adds one row
to the table of threads.

All writes go through `Store.write`: one `Change` is one transaction, applied whole or not at all. A store does not
interpret what it keeps: headers are JSON values, contents are bytes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from dspyer.errors import ConcurrentRunError
from dspyer.stores.content import Content

P = ParamSpec("P")
T = TypeVar("T")


class Owner(NamedTuple):
    """The process that runs a thread.

    Attributes:
        host: the name of the machine.
        pid: the process id on it.
        started: the start time of the process, as the system reports it: a process id is used again later.
        token: a random text, different for each owner.
    """

    host: str
    pid: int
    started: str
    token: str


class Point(NamedTuple):
    """A row of a run, by the run's id and the row's number."""

    run: str
    seq: int


class ThreadRow(NamedTuple):
    """A thread: where its history ends, and who may write to it.

    Attributes:
        name: its name.
        head: the last row of its history; None before its first row.
        epoch: its fencing token. It grows with each new owner. Every write names the epoch that the writer knows and
            is refused if the thread has another one. A thread that is created under the name of a deleted one gets an
            epoch above those of all deleted threads, so no name has an epoch twice.
        owner: the owner; None before the first claim and after a release.
        lease: seconds until the owner counts as dead, by the store's clock. Once the lease has expired, or the thread
            was released or made without an owner, minus the seconds since then.
        root: the first row of its history, if older history was pruned.
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
    """A run, as it was created.

    Attributes:
        id: a text that no other run has: random, or, for a run with a key, a hash of its thread and its key.
        thread: the thread that it was made for; `""` once that thread was deleted or no longer reaches it, and other
            threads keep it.
        parents: the rows that it continues: none for the first run of a history, two for the merge of two threads.
        header: what is known of it from the start, JSON values only, never encrypted.
    """

    id: str
    thread: str
    parents: tuple[Point, ...]
    header: Mapping[str, Any]


class Row(NamedTuple):
    """One entry of a run.

    Attributes:
        seq: its number within the run.
        kind: what it records, as a short word.
        header: its structure, JSON values only, never encrypted.
        content: the user's values in it; None for none.
    """

    seq: int
    kind: str
    header: Mapping[str, Any]
    content: Content | None = None


class Snapshot(NamedTuple):
    """The state of a run at one of its rows. A cache: it can be computed again from the rows."""

    at: Point
    content: Content


class Change(NamedTuple):
    """One transaction.

    Attributes:
        thread: the thread that is changed or whose owner writes; `""` for a write that concerns no thread.
        epoch: the epoch that the thread must have; 0 creates the thread, which must not exist.
        next_epoch: the epoch of the thread afterwards, larger than `epoch`; None keeps it. The store chooses the epoch
            of a new thread, and `write` returns it.
        owner: the owner afterwards, if `lease` is given; None keeps the owner.
        lease: seconds from now until the lease of the owner expires; 0 releases the thread, which has no owner then;
            None keeps owner and lease.
        head: the head of the thread afterwards; None keeps it.
        root: the first row of its history afterwards; None keeps it.
        run: a run to create; it counts as one of the thread's runs if a thread is named.
        rows_of: the run that gets `rows`: it exists, or is `run`.
        rows: rows to append, in the order of their numbers, directly after the last stored one.
        snapshot: a snapshot to keep.
        flush: whether the change must be on the disk when `write` returns, not only with the operating system.
        runs: how many further runs to count for the thread that are not stored here: those of a loaded export.
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
    """The outcome of a deletion: what is gone, and what is kept because other threads reach it.

    Attributes:
        threads: names of the deleted threads.
        runs: how many runs were deleted whole; one that is kept in part, since others reach it, is not among them.
        rows: how many rows were deleted, including those of runs that are kept in part.
        kept: by the name of each remaining thread, the ids of the runs that it keeps from being deleted.
        erased: whether the deleted bytes were overwritten as well. False if another program kept the log of an SQLite
            file from being emptied, and for PostgreSQL, whose server keeps deleted rows until it vacuums.
        busy: names of the threads that were left, since a run owns them, or since they were used a short time ago.
    """

    threads: tuple[str, ...]
    runs: int
    rows: int
    kept: Mapping[str, tuple[str, ...]]
    erased: bool = True
    busy: tuple[str, ...] = ()


ABOUT: ContextVar[str] = ContextVar("about", default="")
"""The thread about which a store is asked, whose runs and blobs lie where it does; `""` if it may be any."""


def never(_: object) -> bool:
    """Return False."""
    return False


class RunPlace(NamedTuple):
    """The place of a run in the order of lists: newest first, by the time of its start, then in any fixed order.

    Attributes:
        started: seconds since the Unix epoch.
        run: the id of the run.
        thread: the name of the thread that it is listed for.
    """

    started: float
    run: str
    thread: str

    @property
    def text(self) -> str:
        """Its text, which `of` reads: the cursor of a page."""
        return f"{self.started!r},{self.run},{self.thread}"

    @classmethod
    def of(cls, text: str) -> RunPlace:
        """The place of a text."""
        try:
            started, run, thread = text.split(",", 2)
            if not (run and run.isascii() and run.isprintable() and thread.encode()):
                raise ValueError(text)
            return cls(float(started), run, thread)
        except ValueError:
            raise ValueError(f"after={text!r} is no cursor: pass page.next of the page before") from None


class RunQuery(NamedTuple):
    """A choice of runs for a list.

    Attributes:
        thread: only those that were made for this thread; None for all threads.
        graph: only those whose header has this `"graph"`; None for all.
        statuses: only those that ended so, where `""` is a run that has not ended; None for all.
        since: only those that were started then or later, seconds since the Unix epoch; None for all.
        until: only those that were started before; None for all.
        after: only those after this place; None from the first one on.
        limit: the most that are returned.
        last: only the last run of each thread, the one of its head, as far as the thread reaches it.
        run: only the run of this id; None for all.
    """

    thread: str | None = None
    graph: str | None = None
    statuses: frozenset[str] | None = None
    since: float | None = None
    until: float | None = None
    after: RunPlace | None = None
    limit: int = 100
    last: bool = False
    run: str | None = None


class ListedRun(NamedTuple):
    """A run as a list has it, all read at one time.

    Attributes:
        thread: the thread that it is listed for.
        run: the run.
        started: when it was started, seconds since the Unix epoch; 0 if that is not known.
        status: how it ended: the `"status"` in the header of its last row of the kind `"end"`; `""` if there is none,
            or a row of the kind `"resume"` came after it.
        last: the number of its last row, or of the last one that the thread reaches; -1 without rows.
        end: the row of the kind `"end"` with which it ended, without its content; None where `status` is `""`.
    """

    thread: ThreadRow
    run: RunRow
    started: float
    status: str
    last: int
    end: Row | None

    @property
    def place(self) -> RunPlace:
        """Its place in the order of lists."""
        return RunPlace(self.started, self.run.id, self.thread.name)


def listed_run(thread: ThreadRow, run: RunRow, rows: Sequence[Row]) -> ListedRun:
    """Return a run as lists have it, from all its rows up to the last one that counts."""
    end = end_of(reversed(rows))
    status = "" if end is None else ending_of(end)
    return ListedRun(thread, run, start_of(run), status, rows[-1].seq if rows else -1, end)


def end_of(newest_first: Iterable[Row]) -> Row | None:
    """The row with which a run ended, without its content; None if it has not, or was resumed since."""
    last = next((row for row in newest_first if row.kind in ENDINGS), None)
    return None if last is None or last.kind == RESUME else last._replace(content=None)


def ending_of(row: Row) -> str:
    """Return how a run ended, by its row of the kind `"end"`."""
    status = row.header.get("status")
    return status if isinstance(status, str) else ""


def start_of(run: RunRow) -> float:
    """Return when a run was started; 0 if that is not known."""
    return float(run.header.get("started", 0.0))


def is_listed(listed: ListedRun, query: RunQuery) -> bool:
    """Return whether a list has a run, whatever its thread and the limit."""
    return (
        not listed.run.id.startswith(INBOX)
        and (query.run is None or listed.run.id == query.run)
        and (query.graph is None or listed.run.header.get("graph") == query.graph)
        and (query.statuses is None or listed.status in query.statuses)
        and (query.since is None or listed.started >= query.since)
        and (query.until is None or listed.started < query.until)
        and (query.after is None or listed.place < query.after)
    )


INBOX = "inbox-"
"""Begins the ids of the runs that are inboxes, which no list has, and no prune deletes."""

END, RESUME, COMMIT = "end", "resume", "commit"
ENDINGS = frozenset((END, RESUME))
"""The kinds of rows by which a list of runs knows how a run ended; stores do not interpret other ones."""


class Store(ABC):
    """A place for runs: the base class for stores of your own.

    A store is used by many threads of a process at once, and by many processes if they share it. Every method may
    block and is called from any thread. Exceptions of the store's own are raised unchanged; the caller turns them into
    `StoreError`. `dspyer.testing.StoreConformance` tests that a store keeps its promises.

    `plan_write` here and `dspyer.stores.reachability` decide, without input or output, what a write and a deletion
    do. A store of your own calls them inside its transactions.

    Example:
        >>> from dspyer.stores import Memory
        >>> from dspyer.stores.content import Content
        >>> store = Memory()
        >>> rows = [Row(0, "open", {"node": "START"}),
        ...     Row(1, "commit", {"id": "trunk:1"}, Content("42"))]
        >>> store.write(Change("t-1", run=RunRow("r", "t-1", (), {}), rows_of="r",
        ...     rows=rows, head=Point("r", 1)))
        1
        >>> store.write(Change("t-1", epoch=1, next_epoch=2,
        ...     owner=Owner("host", 7, "today", "x"), lease=30.0))
        2
        >>> store.write(Change("t-1", epoch=1, rows_of="r",
        ...     rows=[Row(2, "end", {})]))
        Traceback (most recent call last):
        ...
        dspyer.errors.ConcurrentRunError: thread 't-1' was taken over by another
        run: it has epoch 2, ...
        >>> store.thread("t-1").head
        Point(run='r', seq=1)
        >>> store.rows("r", first=1)[0].content.value(store.blobs)
        '42'
        >>> store.delete(["t-1"]).rows
        2
    """

    @property
    @abstractmethod
    def address(self) -> str:
        """The address of the store for people, and for `open_store`: without a password."""

    @abstractmethod
    def write(self, change: Change) -> int:
        """Apply a change in one transaction: the whole of it, or nothing.

        Writing the same change again, as a caller does that has lost the answer, changes nothing. Existing rows with
        equal content, and an existing equal run, are no error while the thread has the epoch of the change. If it has
        the next epoch already, the change counts as written if its rows, run, owner and head are all stored; a change
        that has none of rows, run and owner cannot be recognized, and is refused. All stores let
        `plan_write` decide this.

        Args:
            change: what to write.

        Returns:
            The epoch of the thread afterwards; 0 for a change without a thread.

        Raises:
            ConcurrentRunError: the thread has another epoch, or another row or run has this number or id.
            ValueError: there is a gap before or between the rows; the run of a row, head, root or snapshot does not
                exist; or `next_epoch` is not larger than `epoch`.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> change = Change("t", run=RunRow("r", "t", (), {}), rows_of="r",
            ...     rows=[Row(0, "open", {})])
            >>> # the second one changes nothing
            ... (store.write(change), store.write(change))
            (1, 1)
        """

    def write_now(self, change: Change) -> bool:
        """Apply a change if that needs no waiting; return whether it was applied.

        Async code calls this on its event loop first, and `write` in a worker thread if it returns False. The default
        never applies the change.

        Args:
            change: what to write.

        Raises:
            ConcurrentRunError: as for `write`.
            ValueError: as for `write`.

        Example:
            >>> from dspyer.stores import Memory
            >>> Memory().write_now(Change("t"))
            True
        """
        del change
        return False

    @abstractmethod
    def thread(self, name: str) -> ThreadRow | None:
        """The thread of this name; None if there is none.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> _ = store.write(Change("t"))
            >>> store.thread("t").epoch, store.thread("u")
            (1, None)
        """

    @abstractmethod
    def threads(self, after: str = "", limit: int | None = None, idle: float | None = None) -> list[str]:
        """The names of the threads, sorted by code point: of all, or of a page.

        The cost of a page should not grow with the names before it.

        Args:
            after: only names that come after this one, whether there is a thread of this name or not.
            limit: the most names, 1 or more; None for all.
            idle: only threads whose lease has expired, or that were released or made without an owner, at least so many
                seconds ago by the store's clock, 0 or more; None for all.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> _ = [store.write(Change(name)) for name in "baC"]
            >>> store.threads(), store.threads(after="C", limit=1)
            (['C', 'a', 'b'], ['a'])
        """

    @abstractmethod
    def run(self, run: str) -> RunRow | None:
        """The run of this id; None if there is none.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> _ = store.write(Change("t", run=RunRow("r", "t", (), {"nodes": ["a"]})))
            >>> store.run("r").header
            {'nodes': ['a']}
        """

    @abstractmethod
    def runs(self, thread: str) -> list[RunRow]:
        """The stored runs that were made for a thread, in the order of their start, by the clocks of their machines.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> for epoch, run in enumerate("ba"):
            ...     _ = store.write(Change("t", epoch,
            ...         run=RunRow(run, "t", (), {"started": epoch})))
            >>> [run.id for run in store.runs("t")]
            ['b', 'a']
        """

    def list_runs(self, query: RunQuery) -> list[ListedRun]:
        """Runs of all threads, newest first, with what a list shows of each.

        This reads all rows of the threads in question. A store with an index does better.

        Args:
            query: which ones.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> rows = [Row(0, "open", {"node": "START"}),
            ...     Row(1, "end", {"status": "failed"})]
            >>> run = RunRow("r", "t-1", (), {"graph": "Support",
            ...     "started": 1_760_000_000.0})
            >>> _ = store.write(Change("t-1", run=run, rows_of="r", rows=rows,
            ...     head=Point("r", 1)))
            >>> [(listed.run.id, listed.status) for listed in store.list_runs(
            ...     RunQuery(graph="Support"))]
            [('r', 'failed')]
        """
        asked = None if query.run is None or query.last else self.run(query.run)
        if query.run is not None and not query.last:  # the other threads are not looked at
            names = [] if asked is None or query.thread not in (None, asked.thread) else [asked.thread]
        else:
            names = self.threads() if query.thread is None else [query.thread]
        found: list[ListedRun] = []
        for name in names:
            thread = self.thread(name)
            if thread is None:
                continue
            if query.last:  # the thread may reach a part of it, and another thread may have made it
                run = None if thread.head is None else self.run(thread.head.run)
                made, last = [] if run is None else [run], thread.head and thread.head.seq
            else:
                made, last = self.runs(name) if asked is None else [asked], None
            found += [self._listed(thread, run, last) for run in made]
        chosen = sorted([one for one in found if is_listed(one, query)], key=lambda one: one.place, reverse=True)
        return chosen[: query.limit]

    def _listed(self, thread: ThreadRow, run: RunRow, last: int | None) -> ListedRun:
        return listed_run(thread, run, self.rows(run.id, 0, last))

    @abstractmethod
    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        """Rows of a run in order.

        Args:
            run: its id.
            first: the number of the first row.
            last: the number of the last row, included; None for all.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> rows = [Row(seq, "commit", {}) for seq in range(5)]
            >>> _ = store.write(Change(run=RunRow("r", "", (), {}), rows_of="r",
            ...     rows=rows))
            >>> [row.seq for row in store.rows("r", 1, 3)]
            [1, 2, 3]
        """

    @abstractmethod
    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        """Blobs (long values that are stored apart from their rows) by id; missing ones are left out.

        Example:
            >>> from dspyer.stores import Memory
            >>> store, content = Memory(), Content("x" * 20_000)
            >>> rows = [Row(0, "commit", {}, content)]
            >>> _ = store.write(Change(run=RunRow("r", "", (), {}), rows_of="r",
            ...     rows=rows))
            >>> [len(blob) for blob in store.blobs(content.refs).values()]
            [20000]
        """

    @abstractmethod
    def snapshot(self, at: Point) -> Snapshot | None:
        """The last snapshot of a run at or before a row; None if there is none.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> taken = Snapshot(Point("r", 3), Content("state"))
            >>> _ = store.write(Change(run=RunRow("r", "", (), {}), snapshot=taken))
            >>> store.snapshot(Point("r", 7)).at, store.snapshot(Point("r", 2))
            (Point(run='r', seq=3), None)
        """

    @abstractmethod
    def delete(self, threads: Collection[str] = (), busy: Callable[[ThreadRow], bool] = never) -> DeletionReport:
        """Delete threads and, in the same transaction, everything of theirs that no other thread reaches.

        A thread reaches the rows from its head back to its root (or to the first run), and all runs that were made for
        it. A run that other threads reach in part keeps that part. Snapshots at the roots of threads are kept.

        Args:
            threads: names of the threads; missing ones are ignored. Without names, no thread is deleted, and the whole
                store is searched for runs and rows that no thread reaches.
            busy: called with each of the threads as it is in that transaction, and maybe more than once; those for
                which it returns True are left.

        Returns:
            What was deleted, what was left, and what other threads keep.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> rows = [Row(seq, "commit", {}) for seq in range(5)]
            >>> _ = store.write(Change("t", run=RunRow("r", "t", (), {}), rows_of="r",
            ...     rows=rows, head=Point("r", 4)))
            >>> _ = store.write(Change("copy", head=Point("r", 2)))
            >>> store.delete(["t"], lambda thread: thread.epoch != 2).busy
            ('t',)
            >>> report = store.delete(["t"])
            >>> report.rows, report.kept  # rows 3 and 4; the copy keeps the others
            (2, {'copy': ('r',)})
        """

    @abstractmethod
    def delete_unreachable(self, thread: str) -> DeletionReport:
        """Delete the part of a thread's own runs that the thread does not reach from its head back to its root.

        Such rows are left behind by a moved root (pruning), an abandoned run or a repeated one. A run that the thread
        does not reach, but another thread does, is kept and no longer counts as made for this thread.

        Args:
            thread: the name of the thread; nothing is deleted if it does not exist.

        Returns:
            What was deleted, and what other threads keep.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> rows = [Row(seq, "commit", {}) for seq in range(5)]
            >>> _ = store.write(Change("t", run=RunRow("r", "t", (), {}), rows_of="r",
            ...     rows=rows, head=Point("r", 4)))
            >>> _ = store.write(Change("t", 1, root=Point("r", 3)))
            >>> store.delete_unreachable("t").rows
            3
        """

    @abstractmethod
    def drop_snapshots(self) -> None:
        """Delete all snapshots except those at the roots of threads, which nothing can compute again.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> taken = Snapshot(Point("r", 3), Content("state"))
            >>> _ = store.write(Change(run=RunRow("r", "", (), {}), snapshot=taken))
            >>> store.drop_snapshots()
            >>> store.snapshot(Point("r", 3)) is None
            True
        """

    @abstractmethod
    def vacuum(self) -> None:
        """Return the space of deleted data to the operating system.

        Example:
            >>> from dspyer.stores import Memory
            >>> store = Memory()
            >>> _ = store.delete()
            >>> store.vacuum()
        """

    @abstractmethod
    def close(self) -> None:
        """Release files and connections; the data stays. Closing a second time does nothing.

        Example:
            >>> from dspyer.stores import Memory
            >>> with Memory() as store:  # closes it at the end
            ...     store.threads()
            []
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        # Copies of a program share its store.
        return self


def _passed_on(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a `StoreAround` that passes a call of this one on."""
    name = method.__name__
    return lambda self, /, *args, **kwargs: self.pass_on(name, *args, **kwargs)


class StoreAround(Store):
    """A store around another one, to which it passes on every call that a subclass does not make itself.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def address(self) -> str:
        """The address of that store."""
        return self.store.address

    def pass_on(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the store."""
        return getattr(self.store, name)(*args, **kwargs)

    write = _passed_on(Store.write)
    write_now = _passed_on(Store.write_now)
    thread = _passed_on(Store.thread)
    threads = _passed_on(Store.threads)
    run = _passed_on(Store.run)
    runs = _passed_on(Store.runs)
    list_runs = _passed_on(Store.list_runs)
    rows = _passed_on(Store.rows)
    blobs = _passed_on(Store.blobs)
    snapshot = _passed_on(Store.snapshot)
    delete = _passed_on(Store.delete)
    delete_unreachable = _passed_on(Store.delete_unreachable)
    drop_snapshots = _passed_on(Store.drop_snapshots)
    vacuum = _passed_on(Store.vacuum)
    close = _passed_on(Store.close)


# What a write may do: pure functions, the same for every store.
#
# A thread's epoch is a fencing token (the sequencer of Burrows, "The Chubby lock service", OSDI 2006): a write names
# the epoch under which its owner claimed the thread, and is refused under any other one, so an owner that was replaced
# can write nothing, however late its writes arrive. A caller whose answer was lost repeats its write; a change that is
# stored already is therefore recognized, and is no conflict.


class CurrentRows(NamedTuple):
    """The rows that a store holds where a change will write, read in the writing transaction.

    Attributes:
        thread: the thread of the change.
        run: the run with the id of the change's `run`.
        last: the number of the last row of `rows_of`, -1 if it has none; None if there is no such run.
        rows: the rows of `rows_of` that have the numbers of the change's rows.
        max_deleted_epoch: the largest epoch of all deleted threads; needed only to create a thread.
    """

    thread: ThreadRow | None = None
    run: RunRow | None = None
    last: int | None = None
    rows: Sequence[Row] = ()
    max_deleted_epoch: int = 0


class WritePlan(NamedTuple):
    """The part of a change that a store must write.

    Attributes:
        epoch: the epoch of the thread afterwards.
        new_run: whether the run of the change is to be created.
        rows: the rows that are not stored yet.
    """

    epoch: int
    new_run: bool
    rows: Sequence[Row]


def plan_write(change: Change, current: CurrentRows) -> WritePlan | None:
    """The part of a change that is to be written; None if an earlier call has written all of it.

    Raises:
        ConcurrentRunError: the thread has another epoch, or another row or run has this number or id.
        ValueError: there is a gap before or between the rows, their run does not exist, or `next_epoch` is not larger.
    """
    if change.thread and change.epoch != (current.thread.epoch if current.thread else 0):
        if current.thread is not None and _was_written(change, current, current.thread):
            return None
        raise ConcurrentRunError(_wrong_epoch(change, current.thread))
    if change.run is not None and current.run is not None and not same_run(change.run, current.run):
        raise ConcurrentRunError(
            f"run {change.run.id!r} exists already and is another one: nothing was written. Use a new run id"
        )
    # An equal run is there already if the answer to an earlier try was lost.
    new_run = change.run is not None and current.run is None
    return WritePlan(_next_epoch(change, current.max_deleted_epoch), new_run, _new_rows(change, current))


_NONE = (None,) * 6


def appended(change: Change) -> Point | None:
    """The new head of the thread, if the change only appends one row for its owner: nearly every write of a run."""
    name, _, next_epoch, owner, lease, head, root, run, _, rows, snapshot, _, runs = change
    only = name and len(rows) == 1 and not runs and (next_epoch, owner, lease, root, run, snapshot) == _NONE
    return head if only else None


def check_runs(change: Change, exists: Callable[[str], bool]) -> None:
    """Refuse a head, root or snapshot of a run that does not exist; that of the change's rows is there, or begun."""
    known = (change.run.id if change.run else None, change.rows_of if change.rows else None)
    for point in (change.head, change.root, change.snapshot.at if change.snapshot else None):
        if point is not None and point.run not in known and not exists(point.run):
            raise ValueError(f"run {point.run!r} does not exist: nothing was written. Create it with Change(run=...)")


def thread_after(change: Change, thread: ThreadRow | None, plan: WritePlan, now: float) -> ThreadRow:
    """The row of a thread after a change, and `lease` of both rows by the store's clock: when it expires.

    That of a thread without owner is the time at which it was released, or made.
    """
    found = thread or ThreadRow(change.thread, None, plan.epoch, lease=now)
    owner, lease = found.owner, found.lease
    if change.lease is not None:
        owner, lease = (None, now) if change.lease <= 0 else (change.owner or owner, now + change.lease)
    head, root = change.head or found.head, change.root or found.root
    return ThreadRow(change.thread, head, plan.epoch, owner, lease, root, found.runs + plan.new_run + change.runs)


def as_read(thread: ThreadRow, now: float) -> ThreadRow:
    """The row of a thread, of which the store keeps when its lease expires, as callers get it: with the seconds."""
    return thread._replace(lease=thread.lease - now)


def same_run(left: RunRow, right: RunRow) -> bool:
    """Return whether two runs were created equal, but for the thread: a store may have cleared that of one since."""
    return (left.id, tuple(left.parents)) == (right.id, tuple(right.parents)) and _same_json(
        dict(left.header), dict(right.header)
    )


def same_row(left: Row, right: Row) -> bool:
    """Return whether two rows are equal as they are stored."""
    return (left.seq, left.kind) == (right.seq, right.kind) and (
        _same_json(left.header, right.header) and left.content == right.content
    )


def _same_json(left: Any, right: Any) -> bool:
    """Equal as JSON: a tuple equals a list, and True does not equal 1."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _was_written(change: Change, current: CurrentRows, thread: ThreadRow) -> bool:
    """Return whether a thread of another epoch has it because of this very change."""
    owner = change.owner if change.lease else None
    if not (change.rows or change.run or owner):
        return False  # only an epoch, a head or a snapshot: another owner could have written the same
    if change.epoch and thread.epoch != (change.epoch if change.next_epoch is None else change.next_epoch):
        return False
    if (owner is not None and thread.owner != owner) or (change.head is not None and thread.head != change.head):
        return False
    if change.run is not None and (current.run is None or not same_run(change.run, current.run)):
        return False
    stored = {row.seq: row for row in current.rows}
    return all(row.seq in stored and same_row(row, stored[row.seq]) for row in change.rows)


def _next_epoch(change: Change, max_deleted_epoch: int) -> int:
    if not change.epoch:
        # Above every deleted thread: the owner of an earlier thread of this name can never match the new epoch.
        return max_deleted_epoch + 1
    if change.next_epoch is None:
        return change.epoch
    if change.next_epoch <= change.epoch:
        raise ValueError(f"next_epoch={change.next_epoch} is not larger than epoch {change.epoch}: nothing was written")
    return change.next_epoch


def _new_rows(change: Change, current: CurrentRows) -> Sequence[Row]:
    """The rows after the last stored one; the others must equal what is stored."""
    if not change.rows:
        return ()
    last = current.last
    if last is None:
        if change.run is None or change.run.id != change.rows_of:
            raise ValueError(f"rows for run {change.rows_of!r}, which does not exist: create it with Change(run=...)")
        last = -1
    # A gap would cut a history in two: nothing could fold what follows it.
    first = change.rows[0].seq
    numbers = [row.seq for row in change.rows]
    if first < 0 or first > last + 1 or numbers != list(range(first, first + len(numbers))):
        raise ValueError(
            f"rows {numbers} of run {change.rows_of!r} leave a gap: the next row has the number {last + 1}. "
            "Nothing was written."
        )
    if first > last:
        return change.rows
    stored = {row.seq: row for row in current.rows}
    for row in change.rows:
        if row.seq <= last and (row.seq not in stored or not same_row(row, stored[row.seq])):
            raise ConcurrentRunError(
                f"row {row.seq} of run {change.rows_of!r} exists already with other content: another process has "
                "continued this run. Nothing was written; read the thread again."
            )
    return change.rows[last + 1 - first :]


def _wrong_epoch(change: Change, thread: ThreadRow | None) -> str:
    name = change.thread
    if thread is None:
        return f"thread {name!r} does not exist any more: it was deleted. Nothing was written."
    if not change.epoch:
        return (
            f"thread {name!r} exists already, or another process has just begun it: nothing was written. Start the run "
            "again, or with on_conflict='wait'; for a copy or an import use another name."
        )
    if thread.owner is None:
        owner = "it has no owner at the moment"
    else:
        owner = f"process {thread.owner.pid} on host {thread.owner.host!r} owns it"
    return (
        f"thread {name!r} was taken over by another run: it has epoch {thread.epoch}, this write names {change.epoch}; "
        f"{owner}. Nothing was written. Wait for the other run's end and start again from the thread's new head, or "
        "take the thread over."
    )
