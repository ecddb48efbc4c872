"""Whether a change may be written, and which part of it is new: pure functions, the same for every store.

A thread's epoch is a fencing token (the sequencer of Burrows, "The Chubby lock service", OSDI 2006): a write names the
epoch under which its owner claimed the thread, and is refused under any other one, so an owner that was replaced can
write nothing, however late its writes arrive. A caller whose answer was lost repeats its write; a change that is stored
already is therefore recognized, and is no conflict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Change, Point, Row, RunRow, ThreadRow


class CurrentRows(NamedTuple):
    """What a store holds where a change will write, read in the writing transaction.

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
    """What a store must write.

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
    return thread._replace(lease=0.0 if thread.owner is None else thread.lease - now)


def check_epochs(current: Mapping[str, int], required: Mapping[str, int]) -> None:
    """Refuse a deletion if a thread was claimed since the caller read its epoch.

    Args:
        current: the epochs of the threads that exist, by name.
        required: the epochs that threads must have if they exist, by name.

    Raises:
        ConcurrentRunError: a thread has another epoch.
    """
    for name, epoch in required.items():
        if current.get(name, epoch) != epoch:
            raise ConcurrentRunError(
                f"thread {name!r} was taken over by another run: it has epoch {current[name]}, this call knows "
                f"{epoch}. Nothing was deleted. Wait for the other run's end, or delete the thread with take_over=True"
            )


def same_run(left: RunRow, right: RunRow) -> bool:
    """Whether two runs were created equal; a store may have cleared the thread of one since, so it is not compared."""
    return (left.id, tuple(left.parents)) == (right.id, tuple(right.parents)) and _same_json(
        dict(left.header), dict(right.header)
    )


def same_row(left: Row, right: Row) -> bool:
    """Whether two rows are equal as they are stored."""
    return (left.seq, left.kind) == (right.seq, right.kind) and (
        _same_json(left.header, right.header) and left.content == right.content
    )


def _same_json(left: Any, right: Any) -> bool:
    """Equal as JSON: a tuple equals a list, and True does not equal 1."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _was_written(change: Change, current: CurrentRows, thread: ThreadRow) -> bool:
    """Whether a thread of another epoch has it because of this very change."""
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


# Which rows the threads of a store reach, and what a deletion deletes: pure functions, the same for every store.
#
# The rule is that of a mark-and-sweep garbage collector, with threads as roots and rows as objects. A thread reaches
# the
# rows from its head back to its root, along all parents, and the whole of the runs that were made for it with what
# they
# continue. The row at the root is reached, and the walk ends there; a second way to older rows, around the root, is
# walked to its end, so nothing that can still be read is deleted.
#
# `plan_deletion` and `plan_delete_unreachable` decide about the threads and runs that they are given. These need not
# be
# the whole store. For the threads `names`, the decision is the same about what two searches find: first, backwards,
# the
# runs behind these threads. A run that was made for another thread with its whole history is kept whatever happens,
# with
# everything behind it, so the search ends there. Then, forwards, all runs that continue one of those, and the threads
# that have their head in one of them or that one was made for. Every path from any thread to a run of the first
# search
# lies within the result.


Spans = dict[str, list[tuple[int, int]]]
"""The reached rows of each run as pairs of first and last numbers; no pair for a reached run without rows."""


class RunSummary(NamedTuple):
    """A run without its rows.

    Attributes:
        thread: the thread that it was made for.
        parents: the rows that it continues.
        last: the number of its last row; -1 if it has none.
    """

    thread: str
    parents: tuple[Point, ...]
    last: int


class DeletionPlan(NamedTuple):
    """What a store must delete.

    Attributes:
        threads: threads to delete.
        runs: runs to delete with all their rows and snapshots.
        rows: the runs, first and last numbers of rows to delete, with their snapshots, of runs that are kept.
        orphans: runs that are kept for other threads: their thread is `""` from now on.
        kept: by the name of each remaining thread, the ids of the runs that it keeps from being deleted.
    """

    threads: tuple[str, ...]
    runs: tuple[str, ...]
    rows: tuple[tuple[str, int, int], ...]
    orphans: tuple[str, ...]
    kept: Mapping[str, tuple[str, ...]]


def plan_deletion(
    threads: Mapping[str, ThreadRow], runs: Mapping[str, RunSummary], gone: Collection[str] = ()
) -> DeletionPlan:
    """Delete the threads `gone`, and everything that no other thread reaches; missing names are ignored."""
    stays = {name: ends for name, ends in threads.items() if name not in gone}
    own = _runs_by_thread(runs)
    reached = {name: reachable_rows(ends, runs, own.get(name, ())) for name, ends in stays.items()}
    candidates = {run: [(0, summary.last)] for run, summary in runs.items() if summary.thread in gone}
    return _plan(tuple(sorted(threads.keys() - stays.keys())), runs, reached, candidates, candidates)


def plan_delete_unreachable(
    threads: Mapping[str, ThreadRow], runs: Mapping[str, RunSummary], thread: str
) -> DeletionPlan:
    """Delete what was made for a thread and neither it, from its head, nor another thread reaches."""
    own = _runs_by_thread(runs)
    made = own.pop(thread, []) if thread in threads else []
    # Without its own runs as starting points: the thread itself reaches only what lies behind its head.
    reached = {name: reachable_rows(ends, runs, own.get(name, ())) for name, ends in threads.items()}
    inside = reached.get(thread, {})
    candidates = {run: list(_gaps(inside.get(run, ()), runs[run].last)) for run in made}
    outside = {run: spans for run, spans in candidates.items() if spans or run not in inside}
    return _plan((), runs, reached, outside, outside.keys() - inside.keys())


def reachable_rows(thread: ThreadRow, runs: Mapping[str, RunSummary], made: Iterable[str] = ()) -> Spans:
    """The rows that a thread reaches from its head, and from the last rows of the runs `made` for it."""
    spans: Spans = {}
    walked: set[str] = set()
    waiting = [Point(run, runs[run].last) for run in made]
    if thread.head is not None:
        waiting.append(thread.head)
    root = thread.root
    while waiting:
        run, last = waiting.pop()
        summary = runs.get(run)
        if summary is None:  # pruned before
            continue
        ends_here = root is not None and root.run == run and root.seq <= last
        first = root.seq if root is not None and ends_here else 0
        found = spans.setdefault(run, [])
        if first <= last and (first, last) not in found:
            found.append((first, last))
        if not ends_here and run not in walked:
            walked.add(run)
            waiting.extend(summary.parents)
    return spans


def _plan(
    threads: tuple[str, ...],
    runs: Mapping[str, RunSummary],
    reached: Mapping[str, Spans],
    candidates: Mapping[str, list[tuple[int, int]]],
    given_up: Collection[str],
) -> DeletionPlan:
    """Delete all that is not reached; report which of the `candidates` a thread keeps.

    Runs in `given_up` that are reached no longer belong to the thread that they were made for.
    """
    union: Spans = {}
    for spans in reached.values():
        for run, found in spans.items():
            union.setdefault(run, []).extend(found)
    kept = {
        name: tuple(sorted(run for run in spans.keys() & candidates.keys() if _overlap(spans[run], candidates[run])))
        for name, spans in reached.items()
    }
    return DeletionPlan(
        threads,
        tuple(sorted(runs.keys() - union.keys())),
        tuple((run, *gap) for run, found in union.items() for gap in _gaps(found, runs[run].last)),
        tuple(sorted(union.keys() & set(given_up))),
        {name: ids for name, ids in kept.items() if ids},
    )


def _runs_by_thread(runs: Mapping[str, RunSummary]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for run, summary in runs.items():
        if summary.thread:
            found.setdefault(summary.thread, []).append(run)
    return found


def _gaps(spans: Iterable[tuple[int, int]], last: int) -> Iterator[tuple[int, int]]:
    """The spans between the given ones, from 0 to the last row."""
    after = 0
    for first, end in sorted(spans):
        if first > after:
            yield after, min(first - 1, last)
        after = max(after, end + 1)
    if after <= last:
        yield after, last


def _overlap(left: Iterable[tuple[int, int]], right: Collection[tuple[int, int]]) -> bool:
    """Whether two lists of spans have a row in common; a run without rows is shared by all that reach it."""
    if not right or all(last < first for first, last in right):
        return True
    return any(first <= end and start <= last for first, last in left for start, end in right)
