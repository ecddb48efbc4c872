"""What the threads of a store reach, and what may go: pure, the same for every store.

A thread reaches the rows from its head back to its root, along all parents, and whole runs that were made for it with
what they go on from. The root's row is reached, and the walk goes no further there; a way around the root is walked
to its end, so nothing that can still be read is removed.

`removal` and `disowning` decide about all threads and runs that they are given. That need not be the whole store:
`connected` gives the part of it in which they decide the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from dspyer.stores.base import Point

Spans = dict[str, list[tuple[int, int]]]
"""By run, the first and last rows of what is reached of it; none of a run that is reached and has no rows."""


class ThreadBounds(NamedTuple):
    """Between what a thread lies.

    Attributes:
        head: its last row.
        root: its first row, if older history was pruned.
    """

    head: Point | None = None
    root: Point | None = None


class RunSummary(NamedTuple):
    """What must be known of a run.

    Attributes:
        thread: the thread that it was made for.
        parents: the rows that it goes on from.
        last: the number of its last row; -1 if it has none.
    """

    thread: str
    parents: tuple[Point, ...]
    last: int


class References(Protocol):
    """What refers to what in a store."""

    def bounds(self, thread: str) -> ThreadBounds | None:
        """Head and root of a thread; None if there is none of this name."""

    def summary(self, run: str) -> RunSummary | None:
        """A run; None if there is none of this id."""

    def runs_of(self, thread: str) -> Iterable[str]:
        """The runs that were made for a thread."""

    def children(self, run: str) -> Iterable[str]:
        """The runs that have a run as a parent."""

    def threads_at(self, run: str) -> Iterable[str]:
        """The threads whose head is in a run."""


class RowSpan(NamedTuple):
    """Rows of a run, from `first` to `last`, both included."""

    run: str
    first: int
    last: int


class DeletionPlan(NamedTuple):
    """What a store has to do.

    Attributes:
        threads: threads to remove.
        runs: runs to remove with all rows and snapshots.
        rows: rows to remove, with their snapshots, of runs that stay.
        orphans: runs that stay for others: their thread is `""` from now on.
        kept: by the name of each thread that stays, the ids of the runs that were to go and that it still reaches.
    """

    threads: tuple[str, ...]
    runs: tuple[str, ...]
    rows: tuple[RowSpan, ...]
    orphans: tuple[str, ...]
    kept: Mapping[str, tuple[str, ...]]


def relevant_subgraph(
    network: References, names: Collection[str]
) -> tuple[dict[str, ThreadBounds], dict[str, RunSummary]]:
    """The threads and runs that decide what may go when threads are removed, or give something up.

    These are the runs behind the threads, all runs that go on from one of those, and the threads that have their head
    in one of them or that one was made for. Every way from a thread to one of these runs leads through them alone. A
    run that was made for another thread, whose history was never pruned, stays with all that is behind it, whatever
    happens: there the search ends.

    Args:
        network: what refers to what.
        names: the threads.

    Returns:
        The threads and the runs, by name and id.
    """
    threads: dict[str, ThreadBounds] = {}
    behind: dict[str, RunSummary] = {}
    for name in names:
        ends = network.bounds(name)
        if ends is not None:
            threads[name] = ends
        waiting = [*network.runs_of(name), *([ends.head.run] if ends is not None and ends.head is not None else [])]
        while waiting:
            run = waiting.pop()
            extent = None if run in behind else network.summary(run)
            if extent is not None and not _is_held(network, extent.thread, names):
                behind[run] = extent
                waiting.extend(parent.run for parent in extent.parents)
    runs: dict[str, RunSummary] = {}
    waiting = list(behind)
    while waiting:
        run = waiting.pop()
        extent = None if run in runs else behind.get(run) or network.summary(run)
        if extent is None:
            continue
        runs[run] = extent
        waiting.extend(network.children(run))
        for name in (extent.thread, *network.threads_at(run)):
            ends = network.bounds(name) if name and name not in threads else None
            if ends is not None:
                threads[name] = ends
    return threads, runs


def _is_held(network: References, thread: str, names: Collection[str]) -> bool:
    """Whether a run that was made for a thread stays as a whole, with all that is behind it."""
    ends = network.bounds(thread) if thread and thread not in names else None
    return ends is not None and ends.root is None


def plan_deletion(
    threads: Mapping[str, ThreadBounds], runs: Mapping[str, RunSummary], gone: Collection[str] = ()
) -> DeletionPlan:
    """What goes when threads are removed: they, and all that nothing else reaches.

    Args:
        threads: every thread of the store.
        runs: every run of the store.
        gone: names of the threads to remove; those that are not there are left out.
    """
    stays = {name: ends for name, ends in threads.items() if name not in gone}
    made = _made_for(runs)
    reached = {name: reachable_rows(ends, runs, made.get(name, ())) for name, ends in stays.items()}
    candidates = {run: [(0, extent.last)] for run, extent in runs.items() if extent.thread in gone}
    return _removal(tuple(sorted(threads.keys() - stays.keys())), runs, reached, candidates, candidates)


def plan_delete_unreachable(
    threads: Mapping[str, ThreadBounds], runs: Mapping[str, RunSummary], thread: str
) -> DeletionPlan:
    """What goes when a thread gives up what was made for it and lies outside of what it reaches from its head.

    Args:
        threads: every thread of the store.
        runs: every run of the store.
        thread: the name of the thread; nothing is given up if there is none.
    """
    made = _made_for(runs)
    own = made.pop(thread, []) if thread in threads else []
    reached = {name: reachable_rows(ends, runs, made.get(name, ())) for name, ends in threads.items()}
    inside = reached.get(thread, {})
    candidates = {run: list(_gaps(inside.get(run, ()), runs[run].last)) for run in own}
    outside = {run: spans for run, spans in candidates.items() if spans or run not in inside}
    return _removal((), runs, reached, outside, outside.keys() - inside.keys())


def reachable_rows(ends: ThreadBounds, runs: Mapping[str, RunSummary], made: Iterable[str] = ()) -> Spans:
    """What a thread reaches.

    Args:
        ends: its head and root.
        runs: every run of the store.
        made: the ids of the runs that were made for it.
    """
    spans: Spans = {}
    walked: set[str] = set()
    waiting = [Point(run, runs[run].last) for run in made]
    if ends.head is not None:
        waiting.append(ends.head)
    root = ends.root
    while waiting:
        run, last = waiting.pop()
        extent = runs.get(run)
        if extent is None:  # pruned before
            continue
        stops = root is not None and root.run == run and root.seq <= last
        first = root.seq if root is not None and stops else 0
        found = spans.setdefault(run, [])
        if first <= last and (first, last) not in found:
            found.append((first, last))
        if not stops and run not in walked:
            walked.add(run)
            waiting.extend(extent.parents)
    return spans


def _made_for(runs: Mapping[str, RunSummary]) -> dict[str, list[str]]:
    made: dict[str, list[str]] = {}
    for run, extent in runs.items():
        if extent.thread:
            made.setdefault(extent.thread, []).append(run)
    return made


def _removal(
    threads: tuple[str, ...],
    runs: Mapping[str, RunSummary],
    reached: Mapping[str, Spans],
    candidates: Mapping[str, list[tuple[int, int]]],
    given_up: Collection[str],
) -> DeletionPlan:
    """What nothing reaches goes; of what was to go (`candidates`), what stays is said with the name of who keeps it."""
    union: Spans = {}
    for spans in reached.values():
        for run, found in spans.items():
            union.setdefault(run, []).extend(found)
    kept = {
        name: tuple(sorted(run for run in spans.keys() & candidates.keys() if _meet(spans[run], candidates[run])))
        for name, spans in reached.items()
    }
    return DeletionPlan(
        threads,
        tuple(sorted(runs.keys() - union.keys())),
        tuple(RowSpan(run, *gap) for run, found in union.items() for gap in _gaps(found, runs[run].last)),
        tuple(sorted(union.keys() & set(given_up))),
        {name: ids for name, ids in kept.items() if ids},
    )


def _gaps(spans: Iterable[tuple[int, int]], last: int) -> Iterator[tuple[int, int]]:
    """What lies between the spans, from 0 to the last row."""
    after = 0
    for first, end in sorted(spans):
        if first > after:
            yield after, min(first - 1, last)
        after = max(after, end + 1)
    if after <= last:
        yield after, last


def _meet(left: Iterable[tuple[int, int]], right: Collection[tuple[int, int]]) -> bool:
    """Whether two lists of spans have a row in common; a run without rows is met by whoever reaches it."""
    if not right or all(last < first for first, last in right):
        return True
    return any(first <= end and start <= last for first, last in left for start, end in right)
