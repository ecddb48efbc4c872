"""The rows that the threads of a store reach, and what a deletion deletes: pure functions, the same for every store.

The rule is that of a mark-and-sweep garbage collector, with threads as roots and rows as objects. A thread reaches
the rows from its head back to its root, along all parents, and the whole of the runs that were made for it with what
they continue. The row at the root is reached, and the walk ends there; a second way to older rows, around the root,
is walked to its end, so nothing that can still be read is deleted.

`plan_deletion` and `plan_delete_unreachable` decide about the threads and runs that they are given. These need not be
the whole store. For the threads `names`, the decision is the same about what two searches find: first, backwards, the
runs behind these threads. A run that was made for another thread with its whole history is kept whatever happens,
with everything behind it, so the search ends there. Then, forwards, all runs that continue one of those, and the
threads that have their head in one of them or that one was made for. Every path from any thread to a run of the first
search lies within the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from dspyer.stores.base import INBOX, Point, ThreadRow, never

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
    """The threads, runs and rows that a store must delete.

    Attributes:
        threads: threads to delete.
        runs: runs to delete with all their rows and snapshots.
        rows: the runs, first and last numbers of rows to delete, with their snapshots, of runs that are kept.
        orphans: runs that are kept for other threads: their thread is `""` from now on.
        kept: by the name of each remaining thread, the ids of the runs that it keeps from being deleted.
        busy: threads that were named, and stay.
        epoch: the largest epoch of the threads to delete.
    """

    threads: tuple[str, ...]
    runs: tuple[str, ...]
    rows: tuple[tuple[str, int, int], ...]
    orphans: tuple[str, ...]
    kept: Mapping[str, tuple[str, ...]]
    busy: tuple[str, ...] = ()
    epoch: int = 0


def plan_deletion(
    threads: Mapping[str, ThreadRow],
    runs: Mapping[str, RunSummary],
    names: Collection[str] = (),
    busy: Callable[[ThreadRow], bool] = never,
) -> DeletionPlan:
    """Delete those of the threads `names` that are not busy, and all that no other thread reaches."""
    left = {name for name in names if name in threads and busy(threads[name])}
    gone = {*names} - left
    stays = {name: ends for name, ends in threads.items() if name not in gone}
    own = _runs_by_thread(runs)
    reached = {name: reachable_rows(ends, runs, own.get(name, ())) for name, ends in stays.items()}
    candidates = {run: [(0, summary.last)] for run, summary in runs.items() if summary.thread in gone}
    going = sorted(threads.keys() - stays.keys())
    plan = _plan(tuple(going), runs, reached, candidates, candidates)
    return plan._replace(busy=tuple(sorted(left)), epoch=max((threads[name].epoch for name in going), default=0))


def plan_delete_unreachable(
    threads: Mapping[str, ThreadRow], runs: Mapping[str, RunSummary], thread: str
) -> DeletionPlan:
    """Delete what was made for a thread and neither it, from its head, nor another thread reaches."""
    own = _runs_by_thread(runs)
    made = own.pop(thread, []) if thread in threads else []
    # What was sent to it may not have been read, whatever the history is.
    own[thread] = [run for run in made if run.startswith(INBOX)]
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
        # Parents once per run: a history with many merges has more ways to a run than runs.
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
    """Return whether two lists of spans have a row in common; a run without rows is shared by all that reach it."""
    if not right or all(last < first for first, last in right):
        return True
    return any(first <= end and start <= last for first, last in left for start, end in right)
