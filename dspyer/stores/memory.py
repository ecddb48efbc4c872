"""A store in the memory of one process, with limits for long-running services."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from heapq import nsmallest
from itertools import islice
from math import inf
from threading import RLock
from typing import Any

from dspyer.clock import now
from dspyer.errors import names_options
from dspyer.stores.base import (
    Change,
    CurrentRows,
    DeletionReport,
    ListedRun,
    Point,
    Row,
    RunQuery,
    RunRow,
    Snapshot,
    Store,
    ThreadRow,
    appended,
    as_read,
    check_runs,
    end_of,
    ending_of,
    never,
    plan_write,
    start_of,
    thread_after,
)
from dspyer.stores.content import Content
from dspyer.stores.reachability import DeletionPlan, RunSummary, plan_delete_unreachable, plan_deletion

_CONTAINERS = (list, dict, tuple)


class Memory(Store):
    """A store in the memory of one process. Values are kept as they are, without encoding them.

    Its data ends with the process. A pickle of it is an empty store with the same limits.

    Args:
        max_threads: how many threads are kept. The least recently written one is deleted first, but none that has an
            owner. None keeps all.
        max_commits: about how many rows of a thread's history are kept: older ones are pruned whenever the thread is
            released, back to a row with a snapshot at which a run was continued. None keeps all.

    Raises:
        ValueError: a limit is below 1.

    Example:
        >>> from dspyer import END, START, Graph
        >>> program = Graph().add_node("a", lambda state: {"n": 1}).add_path(START,
        ...     "a", END).compile(store=Memory())
        >>> program.thread("t-1").run({}).state["n"]
        1
        >>> Memory(max_threads=1000)
        Memory(1000, None)
    """

    @names_options("Memory")
    def __init__(self, max_threads: int | None = None, max_commits: int | None = None) -> None:
        for name, limit in (("max_threads", max_threads), ("max_commits", max_commits)):
            if limit is not None and limit < 1:
                raise ValueError(f"{name}={limit}: keep at least 1, or None for all")
        self._limits = (max_threads, max_commits)
        self._lock = RLock()
        # Least recently written first. In these rows, `lease` is the time at which the lease expires.
        self._threads: dict[str, ThreadRow] = {}
        self._runs: dict[str, RunRow] = {}
        self._rows: dict[str, dict[int, Row]] = {}
        self._snapshots: dict[str, dict[int, Snapshot]] = {}
        self._blobs: dict[str, bytes] = {}  # of the contents that are there, as far as they are known
        # What a deletion would have to search for: by thread, the runs that were made for it; by run, those that
        # continue it, and the threads with their heads in it.
        self._made: dict[str, dict[str, None]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._threads_at: dict[str, dict[str, None]] = {}
        self._max_deleted_epoch = 0

    @property
    def address(self) -> str:
        return ":memory:"

    def __repr__(self) -> str:
        return f"Memory({', '.join(map(repr, self._limits))})" if any(self._limits) else "Memory()"

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, self._limits

    def write(self, change: Change) -> int:
        with self._lock:
            thread = self._threads.get(change.thread)
            if thread is not None and self._append(change, thread):
                return thread.epoch
            plan = plan_write(change, self._current_rows(change, thread))
            if plan is None:
                return thread.epoch if thread is not None else 0
            check_runs(change, self._runs.__contains__)
            if plan.new_run and change.run is not None:
                self._runs[change.run.id] = _copy_run(change.run)
                self._rows[change.run.id] = {}
                self._snapshots[change.run.id] = {}
                if change.run.thread:
                    self._made.setdefault(change.run.thread, {})[change.run.id] = None
                for parent in change.run.parents:
                    self._children.setdefault(parent.run, {})[change.run.id] = None
            if plan.rows:
                self._rows[change.rows_of].update((row.seq, self._kept_row(row)) for row in plan.rows)
            if change.snapshot is not None:
                at, content = change.snapshot.at, self._kept(change.snapshot.content)
                # The replaced snapshot may have been the last with a blob: what there is, is found anew when asked for.
                if at.seq in self._snapshots[at.run]:
                    self._blobs.clear()
                self._snapshots[at.run][at.seq] = Snapshot(at, content)
            if not change.thread:
                return 0
            self._threads.pop(change.thread, None)  # inserted again below: the most recently written comes last
            self._threads[change.thread] = changed = thread_after(change, thread, plan, now())
            self._move_head(change.thread, thread and thread.head, changed.head)
            self._enforce_limits(change)
            return plan.epoch

    def _append(self, change: Change, thread: ThreadRow) -> bool:
        """Append one row to the run of the thread's owner; False, without a change, for any other change.

        It goes without a plan and without the limits.
        """
        run, head, known = change.rows_of, appended(change), self._rows.get(change.rows_of)
        # Whatever is not the plain case goes the general way, which says what is wrong.
        if head is None or head.run != run or change.epoch != thread.epoch or not known:
            return False
        row = change.rows[0]
        if row.seq != next(reversed(known)) + 1:
            return False
        known[row.seq] = self._kept_row(row)
        del self._threads[thread.name]  # the most recently written comes last
        self._threads[thread.name] = ThreadRow(thread.name, head, *thread[2:])
        if thread.head is None or thread.head[0] != run:
            self._move_head(thread.name, thread.head, head)
        return True

    def write_now(self, change: Change) -> bool:
        self.write(change)
        return True

    def thread(self, name: str) -> ThreadRow | None:
        with self._lock:
            found = self._threads.get(name)
            return None if found is None else as_read(found, now())

    def threads(self, after: str = "", limit: int | None = None, idle: float | None = None) -> list[str]:
        until = inf if idle is None else now() - idle
        with self._lock:
            names = [name for name, thread in self._threads.items() if name > after and thread.lease <= until]
        return sorted(names) if limit is None else nsmallest(limit, names)

    def run(self, run: str) -> RunRow | None:
        found = self._runs.get(run)
        return None if found is None else _copy_run(found)

    def runs(self, thread: str) -> list[RunRow]:
        with self._lock:
            return [_copy_run(self._runs[run]) for run in self._made.get(thread, ())]

    def list_runs(self, query: RunQuery) -> list[ListedRun]:
        with self._lock:
            return super().list_runs(query)

    def _listed(self, thread: ThreadRow, run: RunRow, last: int | None) -> ListedRun:
        rows = self._rows[run.id]
        last = next(reversed(rows), -1) if last is None else last
        end = end_of(rows[seq] for seq in range(last, -1, -1) if seq in rows)
        status = "" if end is None else ending_of(end)
        return ListedRun(thread, run, start_of(run), status, last, end and _copy_row(end))

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        with self._lock:
            found = self._rows.get(run, {})
            if not found:
                return []
            end = next(reversed(found)) if last is None else min(last, next(reversed(found)))
            return [_copy_row(found[seq]) for seq in range(max(first, 0), end + 1) if seq in found]

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        with self._lock:
            if not self._blobs.keys() >= set(ids):  # a content may have been encoded since, as by an export
                contents = [row.content for rows in self._rows.values() for row in rows.values()]
                contents += [found.content for kept in self._snapshots.values() for found in kept.values()]
                for content in [one for one in contents if one is not None]:
                    self._blobs.update(content.blobs if content.is_encoded else content.extra_blobs)
            return {name: self._blobs[name] for name in ids if name in self._blobs}

    def snapshot(self, at: Point) -> Snapshot | None:
        with self._lock:
            found = self._snapshots.get(at.run, {})
            seq = max((seq for seq in found if seq <= at.seq), default=None)
            return None if seq is None else found[seq]

    def delete(self, threads: Collection[str] = (), busy: Callable[[ThreadRow], bool] = never) -> DeletionReport:
        with self._lock:
            names = frozenset(threads)
            return self._delete_planned(
                plan_deletion(*self._around(names), names, lambda thread: busy(as_read(thread, now())))
            )

    def delete_unreachable(self, thread: str) -> DeletionReport:
        with self._lock:
            return self._delete_planned(plan_delete_unreachable(*self._around([thread]), thread))

    def drop_snapshots(self) -> None:
        with self._lock:
            roots = {thread.root for thread in self._threads.values()}
            for run, found in self._snapshots.items():
                for seq in [seq for seq in found if Point(run, seq) not in roots]:
                    del found[seq]
            self._blobs.clear()

    def vacuum(self) -> None:
        """Do nothing: deleted data is freed at once."""

    def close(self) -> None:
        """Do nothing: the data stays as long as the object."""

    def _kept_row(self, row: Row) -> Row:
        copied, content = _copy_row(row), row.content
        return copied._replace(content=self._kept(content)) if content is not None and content.is_encoded else copied

    def _kept(self, content: Content) -> Content:
        """A content as it is kept: with all blobs that it refers to, also those that came with another one."""
        if content.is_encoded:
            if not content.blobs.keys() >= set(content.refs):
                blobs = {**self.blobs(content.refs), **content.blobs}
                content = Content.stored(content.data, content.refs, blobs)
            self._blobs.update(content.blobs)
        return content

    def _current_rows(self, change: Change, thread: ThreadRow | None) -> CurrentRows:
        run = None if change.run is None else self._runs.get(change.run.id)
        rows = self._rows.get(change.rows_of)
        if not change.rows or rows is None:
            return CurrentRows(thread, run, max_deleted_epoch=self._max_deleted_epoch)
        last = next(reversed(rows), -1)
        stored = [rows[row.seq] for row in change.rows if row.seq in rows] if change.rows[0].seq <= last else []
        return CurrentRows(thread, run, last, stored, self._max_deleted_epoch)

    def _drop_rows(self, run: str, first: int, last: int) -> int:
        """Delete rows with their snapshots; return how many rows there were."""
        rows, snapshots = self._rows[run], self._snapshots[run]
        gone = [seq for seq in range(first, last + 1) if seq in rows]
        for seq in gone:
            del rows[seq]
        for seq in [seq for seq in snapshots if first <= seq <= last]:
            del snapshots[seq]
        self._blobs.clear()
        return len(gone)

    def _around(self, names: Collection[str]) -> tuple[Mapping[str, ThreadRow], dict[str, RunSummary]]:
        """The threads and runs that decide what is deleted with some threads, as `reachability` says; all without."""
        threads = {name: self._threads[name] for name in names if name in self._threads}
        behind = dict[str, None]() if names else dict.fromkeys(self._runs)
        waiting = [run for name in names for run in self._made.get(name, ())]
        waiting += [thread.head.run for thread in threads.values() if thread.head is not None]
        while waiting:
            run = self._runs.get(waiting.pop())
            if run is None or run.id in behind:
                continue
            owner = None if run.thread in names else self._threads.get(run.thread)
            if owner is None or owner.root is not None:
                behind[run.id] = None
                waiting += [parent.run for parent in run.parents]
        runs: dict[str, RunSummary] = {}
        waiting = list(behind)
        while waiting:
            run = self._runs[waiting.pop()]
            if run.id not in runs:
                runs[run.id] = RunSummary(run.thread, run.parents, next(reversed(self._rows[run.id]), -1))
                waiting += self._children.get(run.id, ())
                near = (run.thread, *self._threads_at.get(run.id, ()))
                threads.update({name: self._threads[name] for name in near if name in self._threads})
        return threads if names else self._threads, runs

    def _move_head(self, thread: str, before: Point | None, head: Point | None) -> None:
        if before is not None and (head is None or head.run != before.run):
            _discard(self._threads_at, before.run, thread)
        if head is not None:
            self._threads_at.setdefault(head.run, {})[thread] = None

    def _delete_planned(self, gone: DeletionPlan) -> DeletionReport:
        rows = 0
        for name in gone.threads:
            self._move_head(name, self._threads.pop(name).head, None)
        self._max_deleted_epoch = max(self._max_deleted_epoch, gone.epoch)
        for run in gone.runs:
            rows += self._drop_rows(run, 0, next(reversed(self._rows[run]), -1))
            del self._rows[run], self._snapshots[run]
            gone_run = self._runs.pop(run)
            _discard(self._made, gone_run.thread, run)
            for parent in gone_run.parents:
                _discard(self._children, parent.run, run)
        for run, first, last in gone.rows:
            rows += self._drop_rows(run, first, last)
        for run in gone.orphans:
            _discard(self._made, self._runs[run].thread, run)
            self._runs[run] = self._runs[run]._replace(thread="")
        return DeletionReport(gone.threads, len(gone.runs), rows, gone.kept, busy=gone.busy)

    def _enforce_limits(self, change: Change) -> None:
        """Delete the least recently written threads, and prune the thread of the change if it was released."""
        max_threads, max_commits = self._limits
        if max_threads is not None and len(self._threads) > max_threads:
            released = (name for name, row in self._threads.items() if row.owner is None and name != change.thread)
            self.delete(tuple(islice(released, len(self._threads) - max_threads)))
        thread = self._threads[change.thread]
        if max_commits is None or thread.head is None or change.lease is None or thread.owner is not None:
            return
        root = self._later_root(thread.head, thread.root, max_commits)
        if root is not None:
            self._threads[change.thread] = thread._replace(root=root)
            self.delete_unreachable(change.thread)

    def _later_root(self, head: Point, root: Point | None, limit: int) -> Point | None:
        """The row that becomes the root of a history longer than `limit`; None if it is short enough.

        Only a row at which a run was continued, and that has a snapshot, can be a root. Walking back from the head, it
        is the last one reached with fewer than `limit` rows after it, or else the first one reached.
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


def _discard(index: dict[str, dict[str, None]], key: str, entry: str) -> None:
    entries = index.get(key, {})
    entries.pop(entry, None)
    if not entries:
        index.pop(key, None)


def _copy_run(run: RunRow) -> RunRow:
    """A copy of a run that shares nothing mutable with it."""
    return run._replace(header=_copy(dict(run.header)))


def _copy_row(row: Row) -> Row:
    """A copy of a row that shares nothing mutable with it."""
    header = {key: _copy(part) if isinstance(part, _CONTAINERS) else part for key, part in row.header.items()}
    return Row(row.seq, row.kind, header, row.content)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return type(value)(map(_copy, value)) if type(value) in (list, tuple) else value
