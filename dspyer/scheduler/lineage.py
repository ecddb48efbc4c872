"""The log as a graph of commits: what a branch contains, and where branches parted.

The rule is git's. A branch is its last commit, the head. Its lineage is that commit and all commits that it descends
from: the branch *contains* them. The changes that branches bring to a join are the commits after their merge base.

`merge_base` walks the graph as git's merge-base search does: from the heads backwards, latest first, each commit
passing a set of bits, one per head that has reached it, on to its parents. The walk ends when one commit is left that
all heads have reached, so the base lies on every path of the lineage and there is only one (git may find several).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, Protocol

from dspyer.events import BranchPath, Commit, MergedConflict
from dspyer.patch import DELETE
from dspyer.record_codec import changed
from dspyer.reducers import Updates
from dspyer.state import ImmutableState
from dspyer.values.frozen import FrozenDict
from dspyer.values.persistent import PersistentMap
from dspyer.values.scalars import KeyPath


class LogEntry(NamedTuple):
    """One commit of the log, with what the scheduler keeps for it.

    Attributes:
        commit: the commit as users see it.
        state: the state after it.
        parents: log indexes of the parents.
        counts: the counts of its lineage; kept where branches part, since only a join needs them.
        winners: for a join, the log index of the commit that wrote each resolved value.
        conflicts: for a join, the conflicts that were resolved.
        sends: what a `Send` brings to each branch that starts here, None for one without; empty if none has one.
    """

    commit: Commit
    state: ImmutableState
    parents: tuple[int, ...]
    counts: LineageCounts | None
    winners: Mapping[KeyPath, int] = FrozenDict()
    conflicts: tuple[MergedConflict, ...] = ()
    sends: tuple[FrozenDict[str, Any] | None, ...] = ()

    @property
    def sent(self) -> FrozenDict[str, Any] | None:
        """The values that its branch takes along, if it continues as the only branch of a `Send`; None otherwise."""
        return self.sends[0] if len(self.sends) == 1 else None

    def send_of(self, path: BranchPath) -> int | None:
        """The index of the `Send` that began the branch at a path, which follows it; None if none did."""
        # With several, which of them is for this branch stands in its path, behind that of the branch that has forked.
        rest = path[len(self.commit.branch) :] if len(self.sends) > 1 else (0,)
        return rest[0] if self.sends and rest else None


def canonical_order(log: list[LogEntry], first: int = 0) -> list[LogEntry]:
    """The log in canonical order, with a version for each commit up to the last at which only one branch was active.

    Commits are logged in the order in which they were made, which differs between runs of one fork. Sorted by step and
    branch, every run of the same graph with the same results has the same versions.
    """
    if [entry.commit.version for entry in log] == list(range(first, first + len(log))):
        return log  # no fork
    settled = max((i for i, entry in enumerate(log) if entry.commit.version is not None), default=-1) + 1

    order = sorted(range(len(log)), key=lambda i: (i >= settled, log[i].commit.step, log[i].commit.branch))
    moved = {old: new for new, old in enumerate(order)}
    return [
        log[old]._replace(
            commit=changed(log[old].commit, version=first + new if old < settled else None),
            parents=tuple([moved[parent] for parent in log[old].parents]),
            winners={path: moved[winner] for path, winner in log[old].winners.items()},
        )
        for new, old in enumerate(order)
    ]


NOTHING_SENT: FrozenDict[str, Any] = FrozenDict()


class Log(Protocol):
    """The entries of a run by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> LogEntry: ...


def sent_to(log: Log, parents: tuple[int, ...], path: BranchPath) -> FrozenDict[str, Any]:
    """Values that a `Send` brings to the execution that follows some commits on the branch at `path`."""
    # One that changes the state alone sends nothing; one with a route has decided anew.
    while len(parents) == 1 and log[parents[0]].commit.is_manual() and not log[parents[0]].commit.route:
        parents = log[parents[0]].parents
    if len(parents) != 1:
        return NOTHING_SENT
    entry = log[parents[0]]
    at = entry.send_of(path)
    return (None if at is None else entry.sends[at]) or NOTHING_SENT


class ReachableCommit(NamedTuple):
    """A commit with the heads that contain it: bit i of `mask` is set if head i does."""

    log_index: int
    mask: int


def merge_base(log: Log, heads: Sequence[int]) -> tuple[int, list[ReachableCommit]]:
    """The index of the last commit on every path of the lineage, and the commits after it in lineage order."""
    all_heads = (1 << len(heads)) - 1
    masks: dict[int, int] = {}
    heap: list[tuple[int, int]] = []  # (-step, index): a commit has a larger step than its parents, so it comes first
    for bit, head in enumerate(heads):
        if head not in masks:
            heappush(heap, (-log[head].commit.step, head))
        masks[head] = masks.get(head, 0) | (1 << bit)
    after: set[int] = set()
    # A commit that all heads contain is not yet the base while others are in the heap: a path may pass by it.
    while len(heap) > 1 or masks[heap[0][1]] != all_heads:
        _, index = heappop(heap)
        mask = masks[index]
        after.add(index)
        for parent in log[index].parents:
            if parent not in masks:
                heappush(heap, (-log[parent].commit.step, parent))
            masks[parent] = masks.get(parent, 0) | mask
    return heap[0][1], [ReachableCommit(index, masks[index]) for index in ancestry(log, heads, after)]


def ancestry(log: Log, heads: Sequence[int], within: Container[int] | None = None) -> list[int]:
    """The commits that any of `heads` contains, in lineage order: parents first, a left branch before a right one.

    `heads` are in path order. Commits that are not in `within` are left out, and ancestors that only they lead to.
    """
    ordered: list[int] = []
    seen: set[int] = set()
    stack = [(head, False) for head in reversed(heads)]
    while stack:
        index, parents_done = stack.pop()
        if parents_done:
            ordered.append(index)
        elif index not in seen and (within is None or index in within):
            seen.add(index)
            stack.append((index, True))
            stack.extend((parent, False) for parent in reversed(log[index].parents))
    return ordered


def by_branch(commits: Iterable[ReachableCommit], width: int) -> list[list[ReachableCommit]]:
    """By branch, the commits that it contains and no branch before it does."""
    found: list[list[ReachableCommit]] = [[] for _ in range(width)]
    for item in commits:  # `mask & -mask` is the lowest bit of a mask: the leftmost branch that contains the commit
        found[(item.mask & -item.mask).bit_length() - 1].append(item)
    return found


def unshared_commits(log: Log, heads: Sequence[int]) -> list[ReachableCommit]:
    """The commits that at least one of `heads` contains and at least one does not, in lineage order."""
    masks: dict[int, int] = {}
    for bit, head in enumerate(heads):
        masks[head] = masks.get(head, 0) | 1 << bit
    found = commits_lacking(log, masks, (1 << len(heads)) - 1)
    return [ReachableCommit(index, found[index]) for index in ancestry(log, heads, found)]


def commits_lacking(
    log: Log, masks: dict[int, int], full: int, own: Callable[[int], int] | None = None
) -> dict[int, int]:
    """The commits that lack some bits of a full mask, with those that they have.

    `masks` are those of some heads; those of the commits on the way are added. A commit passes its bits, and its `own`
    one, on to its parents. The walk goes back highest index first, since parents have lower indexes, and ends when no
    open commit lacks a bit.
    """
    heap = [-head for head in masks]
    heapify(heap)
    lacking = sum([mask != full for mask in masks.values()])  # commits in the heap that are known to lack bits
    found: dict[int, int] = {}
    while lacking:
        index = -heappop(heap)
        mask = masks[index]
        lacking -= mask != full
        if own is not None:
            mask |= own(index)
        if mask != full:
            found[index] = mask
        for parent in log[index].parents:
            before = masks.get(parent)
            if before is None:
                heappush(heap, -parent)
                lacking += mask != full
            else:
                lacking -= before != full and before | mask == full
            masks[parent] = (before or 0) | mask
    return found


# --- paths


def touches(patch: Any, path: KeyPath) -> bool:
    """Return whether a patch writes at, in or above a path."""
    update = patch
    for depth, key in enumerate(path):
        if isinstance(update, Updates):
            return any(touches(one, path[depth:]) for one in update.updates)
        if not isinstance(update, Mapping):
            return True
        if key not in update:
            return False
        update = update.raw(key) if hasattr(update, "raw") else update[key]
    return True


class Obstacle(NamedTuple):
    """A value in the middle of a path that is no mapping: for the path `x.a` of `{"x": 1}` the 1, at depth 1."""

    depth: int
    value: Any


def value_at(state: FrozenDict[Any, Any], path: KeyPath) -> Any:
    """The frozen value at a path; `DELETE` if there is none, an `Obstacle` if the path leads through a plain value."""
    value: Any = state
    for depth, key in enumerate(path):
        if not isinstance(value, FrozenDict):
            return value if value is DELETE else Obstacle(depth, value)
        value = value.raw(key, DELETE)
    return value


def existing_prefix(state: FrozenDict[Any, Any], path: KeyPath) -> KeyPath:
    """The path up to its end, or to the first key whose value is absent or no mapping (with that key)."""
    value: Any = state
    for depth, key in enumerate(path):
        if not isinstance(value, FrozenDict):
            return path[:depth]
        value = value.raw(key, DELETE)
    return path


# --- counts of a lineage

LineageCounts = PersistentMap[Any, Any]
"""Facts about a lineage that need no walk: the number of commits by node and by branch path, and the keys below.

They are counted as commits are made. Where branches join, they are added up over the commits after the base."""

CALL_KINDS = ("calls", "tool_calls")  # of predictors and of tools; a key is one of them with the name of a node
REASON_KEY = ("reason",)
READS = "reads"  # how far a node has read live fields; a key is it with the name of the node
NO_CALLS = (0, 0)


def extra_counts(commit: Commit, before: Callable[[Any, Any], Any]) -> dict[Any, Any]:
    """Changes by a commit in the counts of its lineage, except for the numbers of commits.

    `before(key, default)` returns the value before the commit.
    """
    found: dict[Any, Any] = {}
    for kind, count in zip(CALL_KINDS, commit.calls, strict=True):
        if count:
            key = (kind, commit.node)
            found[key] = before(key, 0) + count
    if commit.reason is not None:
        found[REASON_KEY] = commit.reason
    if commit.live is not None and commit.live.reads:
        key = (READS, commit.node)
        known = before(key, {})  # where branches joined, several visits are the last ones
        found[key] = {**known, **{name: max(seq, known.get(name, 0)) for name, seq in commit.live.reads.items()}}
    return found


def joined_counts(log: Log, base: int, commits: Iterable[ReachableCommit]) -> LineageCounts:
    """The counts at the base of a join, and each commit after it once: those of the heads would count some twice."""
    counts = log[base].counts
    assert counts is not None  # they are kept where branches part, and these have parted at the base
    at_base = counts
    added: dict[Any, Any] = {}

    def before(key: Any, default: Any) -> Any:
        return added.get(key) or at_base.get(key, default)

    for item in commits:
        commit = log[item.log_index].commit
        for key in (commit.node, commit.branch):
            added[key] = before(key, 0) + 1
        added |= extra_counts(commit, before)
    if len(added) > len(counts):  # setting so many keys one by one costs more than a new map
        return PersistentMap({**dict(counts.items()), **added})
    for key, count in added.items():
        counts = counts.set(key, count)
    return counts


UPDATE_AUTHOR = "update"
"""The author of a manual commit, unless it was made as a node."""


def decided_by(log: Log, head: int) -> LogEntry:
    """Return the entry of the node behind which manual commits stand: its route is the one that they may change."""
    while log[head].commit.is_manual():
        head = log[head].parents[0]
    return log[head]


def lineage_counts(log: Log, head: int) -> LineageCounts:
    """The counts of a lineage that run values read, counted again by a walk; those by branch path are left out."""
    counts: dict[Any, Any] = {}
    for index in ancestry(log, [head]):
        commit = log[index].commit
        if not commit.is_manual():
            counts[commit.node] = counts.get(commit.node, 0) + 1
        counts.update(extra_counts(commit, counts.get))
    return LineageCounts().update(counts)
