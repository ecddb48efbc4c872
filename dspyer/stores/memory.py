"""Runs in the memory of one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from threading import RLock
from typing import Any, NamedTuple

from dspyer.stores.base import NO_EPOCHS, Change, DeletionReport, Owner, Point, Row, RunRow, Snapshot, Store, ThreadRow
from dspyer.stores.content import Content
from dspyer.stores.reachability import (
    DeletionPlan,
    RunSummary,
    ThreadBounds,
    plan_delete_unreachable,
    plan_deletion,
    relevant_subgraph,
)
from dspyer.stores.writes import CurrentRows, WritePlan, check_epochs, plan_write

_CONTAINERS = (list, dict, tuple)


class Memory(Store):
    """Runs in the memory of one process: values stay as they are, nothing is encoded.

    A pickle of it is an empty one.

    Args:
        max_threads: how many threads are kept; the one that was written to longest ago goes first, never one that has
            an owner. None keeps all.
        max_commits: how many rows of a thread are kept when it is released, as far as its history has a snapshot to
            begin with at a row from which a run went on. None keeps all.
        clock: seconds, by which leases are compared.

    Raises:
        ValueError: for a limit below 1.

    Example:
        >>> Memory(max_threads=1000)
        Memory(1000, None)
    """

    def __init__(
        self,
        max_threads: int | None = None,
        max_commits: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, limit in (("max_threads", max_threads), ("max_commits", max_commits)):
            if limit is not None and limit < 1:
                raise ValueError(f"{name}={limit}: keep at least 1, or None for all")
        self._limits = (max_threads, max_commits)
        self._clock = clock
        self._lock = RLock()
        self._threads: dict[str, ThreadRow] = {}  # lease: the time at which it ends; in the order of their writes
        self._runs: dict[str, RunRow] = {}
        self._rows: dict[str, dict[int, Row]] = {}
        self._snapshots: dict[str, dict[int, Snapshot]] = {}
        self._blobs: dict[str, bytes] = {}
        self._holders: dict[str, set[_ContentPlace]] = {}  # by blob, where the contents are that refer to it
        self._references = _MemoryReferences(self._threads, self._runs, self._rows)
        self._fence = 0

    @property
    def address(self) -> str:
        """`":memory:"`."""
        return ":memory:"

    def __repr__(self) -> str:
        return f"Memory({', '.join(map(repr, self._limits))})" if any(self._limits) else "Memory()"

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, self._limits

    def write(self, change: Change) -> int:
        """Applies a change."""
        with self._lock:
            thread = self._threads.get(change.thread)
            if thread is not None and self._appends(change, thread):
                return thread.epoch
            admitted = plan_write(change, self._found(change, thread))
            if admitted is None:
                return thread.epoch if thread is not None else 0
            self._check(change)
            if admitted.begins and change.run is not None:
                self._runs[change.run.id] = _own_run(change.run)
                self._rows[change.run.id] = {}
                self._snapshots[change.run.id] = {}
                self._references.add_run(change.run)
            if admitted.rows:
                self._rows[change.rows_of].update((row.seq, _own_row(row)) for row in admitted.rows)
                for row in admitted.rows:
                    self._keep_blobs(row.content, _ContentPlace(change.rows_of, row.seq))
            if change.snapshot is not None:
                shots, seq = self._snapshots[change.snapshot.at.run], change.snapshot.at.seq
                place = _ContentPlace(change.snapshot.at.run, seq, "snapshot")
                before = shots.get(seq)
                shots[seq] = change.snapshot
                if before is not None:
                    self._drop_blobs(before.content, place, change.snapshot.content)
                self._keep_blobs(change.snapshot.content, place)
            if not change.thread:
                return 0
            self._threads.pop(change.thread, None)  # the last one that was written to is at the end
            self._threads[change.thread] = changed = self._changed(change, thread, admitted)
            self._references.move_head(change.thread, thread and thread.head, changed.head)
            self._keep_limits(change)
            return admitted.epoch

    def _appends(self, change: Change, thread: ThreadRow) -> bool:
        """Does the usual: one row of a run of the thread's owner. Says whether it was that."""
        name, epoch, next_epoch, owner, lease, head, root, run, rows_of, rows, snapshot, _, runs = change
        known = self._rows.get(rows_of)
        if not known or len(rows) != 1 or epoch != thread.epoch or head is None or head.run != rows_of:
            return False
        if not (next_epoch is None and owner is None and lease is None):
            return False
        if not (root is None and run is None and snapshot is None) or runs:
            return False
        row = rows[0]
        if row.seq != next(reversed(known)) + 1:
            return False
        known[row.seq] = _own_row(row)
        content = row.content
        if content is not None and (content.is_encoded or content.extra_blobs):
            self._keep_blobs(content, _ContentPlace(rows_of, row.seq))
        del self._threads[name]  # the last one that was written to is at the end
        self._threads[name] = ThreadRow(name, head, epoch, thread.owner, thread.lease, thread.root, thread.runs)
        if thread.head is None or thread.head[0] != rows_of:
            self._references.move_head(name, thread.head, head)
        return True

    def write_now(self, change: Change) -> bool:
        """Applies a change: nobody is waited for longer than that takes."""
        self.write(change)
        return True

    def thread(self, name: str) -> ThreadRow | None:
        """Where a thread stands."""
        with self._lock:
            found = self._threads.get(name)
            if found is None or found.owner is None:
                return found
            return found._replace(lease=found.lease - self._clock())

    def threads(self) -> list[str]:
        """The names of all threads, sorted."""
        with self._lock:
            return sorted(self._threads)

    def run(self, run: str) -> RunRow | None:
        """A run by its id."""
        found = self._runs.get(run)
        return None if found is None else _own_run(found)

    def runs(self, thread: str) -> list[RunRow]:
        """The runs that were made for a thread, in the order in which they were begun."""
        with self._lock:
            return [_own_run(self._runs[run]) for run in self._references.runs_of(thread)]

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        """Rows of a run in order."""
        with self._lock:
            found = self._rows.get(run, {})
            if not found:
                return []
            end = next(reversed(found)) if last is None else min(last, next(reversed(found)))
            return [_own_row(found[seq]) for seq in range(max(first, 0), end + 1) if seq in found]

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        """Large values by id. Those of values that are not encoded have none."""
        with self._lock:
            missing = set(ids) - self._blobs.keys()
            if missing:  # somebody may have encoded a content since it was written
                for place, content in self._contents():
                    if content.is_encoded and not missing.isdisjoint(content.refs):
                        self._keep_blobs(content, place)
            return {name: self._blobs[name] for name in ids if name in self._blobs}

    def snapshot(self, at: Point) -> Snapshot | None:
        """The last snapshot of a run at or before a row."""
        with self._lock:
            found = self._snapshots.get(at.run, {})
            seq = max((seq for seq in found if seq <= at.seq), default=None)
            return None if seq is None else found[seq]

    def delete(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
        """Removes threads, and all that they had and nothing else reaches."""
        with self._lock:
            check_epochs({name: self._threads[name].epoch for name in epochs if name in self._threads}, epochs)
            gone = frozenset(threads)
            near = relevant_subgraph(self._references, gone) if gone else (self._ends(), self._extents())
            return self._delete_planned(plan_deletion(*near, gone))

    def delete_unreachable(self, thread: str) -> DeletionReport:
        """Removes what was made for a thread and lies outside of what it reaches from its head."""
        with self._lock:
            return self._delete_planned(plan_delete_unreachable(*relevant_subgraph(self._references, [thread]), thread))

    def drop_snapshots(self) -> None:
        """Removes all snapshots but those at the roots of threads."""
        with self._lock:
            roots = {thread.root for thread in self._threads.values()}
            for run, found in self._snapshots.items():
                for seq in [seq for seq in found if Point(run, seq) not in roots]:
                    self._drop_snapshot(run, seq)

    def vacuum(self) -> None:
        """Does nothing: there are no gaps."""

    def close(self) -> None:
        """Does nothing: what was written stays as long as the store."""

    def _check(self, change: Change) -> None:
        """Refuses points of runs that are not there, before anything is changed."""
        named = [change.head, change.root, change.snapshot.at if change.snapshot else None]
        begun = change.run.id if change.run else None
        for point in named:
            if point is not None and point.run not in self._runs and point.run != begun:
                raise ValueError(f"there is no run {point.run!r}: nothing was written. Begin it with Change(run=...)")

    def _found(self, change: Change, thread: ThreadRow | None) -> CurrentRows:
        run = None if change.run is None else self._runs.get(change.run.id)
        rows = self._rows.get(change.rows_of)
        if not change.rows or rows is None:
            return CurrentRows(thread, run, fence=self._fence)
        last = next(reversed(rows), -1)
        there = [rows[row.seq] for row in change.rows if row.seq in rows] if change.rows[0].seq <= last else []
        return CurrentRows(thread, run, last, there, self._fence)

    def _changed(self, change: Change, thread: ThreadRow | None, admitted: WritePlan) -> ThreadRow:
        found = thread or ThreadRow(change.thread, None, admitted.epoch)
        owner: Owner | None = found.owner
        lease = found.lease
        if change.lease is not None:
            owner, lease = (None, 0.0) if change.lease <= 0 else (change.owner or owner, self._clock() + change.lease)
        return ThreadRow(
            change.thread,
            change.head or found.head,
            admitted.epoch,
            owner,
            lease,
            change.root or found.root,
            found.runs + admitted.begins + change.runs,
        )

    def _keep_blobs(self, content: Content | None, place: _ContentPlace) -> None:
        if content is not None:
            self._blobs.update(content.blobs if content.is_encoded else content.extra_blobs)
            for name in content.refs if content.is_encoded else content.extra_blobs:
                self._holders.setdefault(name, set()).add(place)

    def _drop_blobs(self, content: Content | None, place: _ContentPlace, successor: Content | None = None) -> None:
        """Removes the blobs to which nothing refers but a content that goes, nor the one that comes in its place."""
        if content is None:
            return
        stay = successor.refs if successor is not None and successor.is_encoded else ()
        for name in content.refs if content.is_encoded else content.extra_blobs:
            holders = self._holders.get(name, set())
            holders.discard(place)
            if not holders and name not in stay:
                self._holders.pop(name, None)
                self._blobs.pop(name, None)

    def _drop_snapshot(self, run: str, seq: int) -> None:
        self._drop_blobs(self._snapshots[run].pop(seq).content, _ContentPlace(run, seq, "snapshot"))

    def _drop_rows(self, run: str, first: int, last: int) -> int:
        """Removes rows with their snapshots and says how many rows there were."""
        rows, shots = self._rows[run], self._snapshots[run]
        gone = [seq for seq in range(first, last + 1) if seq in rows]
        for seq in gone:
            self._drop_blobs(rows.pop(seq).content, _ContentPlace(run, seq))
        for seq in [seq for seq in shots if first <= seq <= last]:
            self._drop_snapshot(run, seq)
        return len(gone)

    def _contents(self) -> Iterable[tuple[_ContentPlace, Content]]:
        for run, rows in self._rows.items():
            yield from ((_ContentPlace(run, row.seq), row.content) for row in rows.values() if row.content is not None)
        for run, shots in self._snapshots.items():
            yield from ((_ContentPlace(run, seq, "snapshot"), shot.content) for seq, shot in shots.items())

    def _ends(self) -> Mapping[str, ThreadBounds]:
        return {name: ThreadBounds(thread.head, thread.root) for name, thread in self._threads.items()}

    def _extents(self) -> Mapping[str, RunSummary]:
        return {
            name: RunSummary(run.thread, run.parents, next(reversed(self._rows[name]), -1))
            for name, run in self._runs.items()
        }

    def _delete_planned(self, gone: DeletionPlan) -> DeletionReport:
        """Removes what was decided, and the blobs that nothing refers to then."""
        rows = 0
        for name in gone.threads:
            thread = self._threads.pop(name)
            self._fence = max(self._fence, thread.epoch)
            self._references.move_head(name, thread.head, None)
        for run in gone.runs:
            rows += self._drop_rows(run, 0, next(reversed(self._rows[run]), -1))
            for seq in list(self._snapshots[run]):  # one of rows that were never there
                self._drop_snapshot(run, seq)
            del self._rows[run], self._snapshots[run]
            self._references.remove_run(self._runs.pop(run))
        for run, first, last in gone.rows:
            rows += self._drop_rows(run, first, last)
        for run in gone.orphans:
            self._references.clear_thread(self._runs[run])
            self._runs[run] = self._runs[run]._replace(thread="")
        return DeletionReport(gone.threads, len(gone.runs), rows, gone.kept)

    def _keep_limits(self, change: Change) -> None:
        """Drops the oldest threads at rest, and the oldest part of a history when its thread comes to rest."""
        max_threads, max_commits = self._limits
        if max_threads is not None and len(self._threads) > max_threads:
            resting = (name for name, row in self._threads.items() if row.owner is None and name != change.thread)
            self.delete(tuple(islice(resting, len(self._threads) - max_threads)))
        thread = self._threads[change.thread]
        if max_commits is None or thread.head is None or change.lease is None or thread.owner is not None:
            return
        root = self._later_root(thread.head, thread.root, max_commits)
        if root is not None:
            self._threads[change.thread] = thread._replace(root=root)
            self.delete_unreachable(change.thread)

    def _later_root(self, head: Point, root: Point | None, limit: int) -> Point | None:
        """The row on the way back from the head at which the history may begin; None if it is short enough as it is.

        A row from which a run went on, with a snapshot: the first one with at most as many rows before the head, else
        the last one.
        """
        count, at, best = 0, head, None
        while at != root and (run := self._runs.get(at.run)) is not None:
            if count and at.seq in self._snapshots[at.run] and (best is None or count < limit):
                best = at
            stop = root.seq if root is not None and root.run == at.run else -1
            count += at.seq - stop
            if count > limit and best is not None:
                return best
            if stop >= 0 or len(run.parents) != 1:
                return None if count <= limit else best
            at = run.parents[0]
        return None if count <= limit else best


class _ContentPlace(NamedTuple):
    """Where a content is."""

    run: str
    seq: int
    kind: str = "row"


class _MemoryReferences:
    """What refers to what in the store, found without a search.

    Args:
        threads: the threads of the store.
        runs: its runs.
        rows: their rows.
    """

    def __init__(
        self, threads: Mapping[str, ThreadRow], runs: Mapping[str, RunRow], rows: Mapping[str, dict[int, Row]]
    ) -> None:
        self._threads = threads
        self._runs = runs
        self._rows = rows
        self._made: dict[str, dict[str, None]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._heads: dict[str, dict[str, None]] = {}

    def bounds(self, thread: str) -> ThreadBounds | None:
        """Head and root of a thread."""
        found = self._threads.get(thread)
        return None if found is None else ThreadBounds(found.head, found.root)

    def summary(self, run: str) -> RunSummary | None:
        """A run."""
        found = self._runs.get(run)
        return None if found is None else RunSummary(found.thread, found.parents, next(reversed(self._rows[run]), -1))

    def runs_of(self, thread: str) -> list[str]:
        """The runs that were made for a thread, in the order in which they were begun."""
        return list(self._made.get(thread, ()))

    def children(self, run: str) -> list[str]:
        """The runs that have a run as a parent."""
        return list(self._children.get(run, ()))

    def threads_at(self, run: str) -> list[str]:
        """The threads whose head is in a run."""
        return list(self._heads.get(run, ()))

    def add_run(self, run: RunRow) -> None:
        """Notes a new run."""
        if run.thread:
            self._made.setdefault(run.thread, {})[run.id] = None
        for parent in run.parents:
            self._children.setdefault(parent.run, {})[run.id] = None

    def remove_run(self, run: RunRow) -> None:
        """Forgets a run that was removed."""
        self.clear_thread(run)
        for parent in run.parents:
            _take(self._children, parent.run, run.id)

    def clear_thread(self, run: RunRow) -> None:
        """Forgets for which thread a run was made."""
        _take(self._made, run.thread, run.id)

    def move_head(self, thread: str, before: Point | None, head: Point | None) -> None:
        """Notes where the head of a thread is."""
        if before is not None and (head is None or head.run != before.run):
            _take(self._heads, before.run, thread)
        if head is not None:
            self._heads.setdefault(head.run, {})[thread] = None


def _take(index: dict[str, dict[str, None]], key: str, entry: str) -> None:
    entries = index.get(key, {})
    entries.pop(entry, None)
    if not entries:
        index.pop(key, None)


def _own_run(run: RunRow) -> RunRow:
    """The same run; what can be changed in it is not shared."""
    return run._replace(header=_own(dict(run.header)))


def _own_row(row: Row) -> Row:
    """The same row; what can be changed in it is not shared."""
    for part in row.header:
        if isinstance(part, _CONTAINERS):
            return row._replace(header=tuple(map(_own, row.header)))
    return row


def _own(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    return type(value)(map(_own, value)) if type(value) in (list, tuple) else value
