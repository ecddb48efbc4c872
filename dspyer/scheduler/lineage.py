"""Joining branches by what each of them committed.

A branch is known by its last commit, and its lineage is that commit with all commits behind it. Of two branches the
common commits are the base, what only one of them has are its changes, and each change is applied exactly once,
however the branches were forked and crossed before.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol

from dspyer.events import Commit, MergedConflict
from dspyer.patch import DELETE
from dspyer.policies import Conflict
from dspyer.reducers import Updates
from dspyer.state import ImmutableState
from dspyer.values.freezing import same
from dspyer.values.frozen import FrozenDict
from dspyer.values.persistent import PersistentMap
from dspyer.values.refusals import KeyPath


class Resolution(NamedTuple):
    """What a merge policy decided about one conflict.

    Attributes:
        policy: its name.
        chosen: `"left"`, `"right"` or `"new"`.
        value: the new value.
    """

    policy: str
    chosen: str
    value: Any = None

    def value_of(self, conflict: Conflict) -> Any:
        """The decided value."""
        return self.value if self.chosen == "new" else getattr(conflict, self.chosen)


class LogEntry(NamedTuple):
    """One commit of the log, with what the scheduler remembers of it.

    Attributes:
        commit: the commit as users see it.
        state: the state after it.
        parents: places of the parents in the log.
        counts: how often each node has committed in this lineage, how many commits each branch path has, and what else
            is known of it; kept where branches part, since only a join needs it.
        winners: for a join, the place in the log of the commit that wrote each resolved value.
        conflicts: for a join, the conflicts that were resolved.
        resolutions: for a join, what the merge policies decided, in the order in which they were asked.
    """

    commit: Commit
    state: ImmutableState
    parents: tuple[int, ...]
    counts: LineageCounts | None
    winners: Mapping[KeyPath, int] = FrozenDict()
    conflicts: tuple[MergedConflict, ...] = ()
    resolutions: tuple[Resolution, ...] = ()


class Log(Protocol):
    """The entries of a run by place."""

    def __getitem__(self, index: int, /) -> LogEntry: ...


class ReachableCommit(NamedTuple):
    """A commit by its place in the log, which not all joining branches need have. Bit i of `mask`: branch i has it."""

    log_index: int
    mask: int


def merge_base(log: Log, heads: Sequence[int]) -> tuple[int, list[ReachableCommit]]:
    """Finds the last commit that every branch went through alone, and all commits after it.

    Args:
        log: the entries of the run.
        heads: the last commit of each branch.

    Returns:
        The place of that commit, and the commits after it in lineage order with the branches that have them.
    """
    everyone = (1 << len(heads)) - 1
    masks: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    for bit, head in enumerate(heads):
        if head not in masks:
            heappush(heap, (-log[head].commit.step, head))
        masks[head] = masks.get(head, 0) | (1 << bit)
    after: set[int] = set()
    while len(heap) > 1 or masks[heap[0][1]] != everyone:
        _, index = heappop(heap)
        mask = masks[index]
        after.add(index)
        for parent in log[index].parents:
            if parent not in masks:
                heappush(heap, (-log[parent].commit.step, parent))
            masks[parent] = masks.get(parent, 0) | mask
    return heap[0][1], [ReachableCommit(index, masks[index]) for index in ancestry(log, heads, after)]


def ancestry(log: Log, heads: Sequence[int], within: Container[int] | None = None) -> list[int]:
    """The commits behind some heads, in lineage order: what a commit builds on comes first, a left branch before a
    right one.

    Args:
        log: the entries of the run.
        heads: the last commit of each branch, in path order.
        within: leaves out all commits that are not in it, and those behind them.
    """
    ordered: list[int] = []
    seen: set[int] = set()
    stack = [(head, False) for head in reversed(heads)]
    while stack:
        index, done = stack.pop()
        if done:
            ordered.append(index)
        elif index not in seen and (within is None or index in within):
            seen.add(index)
            stack.append((index, True))
            stack.extend((parent, False) for parent in reversed(log[index].parents))
    return ordered


def touches(patch: Any, path: KeyPath) -> bool:
    """Whether a patch writes at, in or above a path."""
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
    """A value that is no mapping where a path goes on: `x` is 1, and the path `x.a`."""

    depth: int
    value: Any


def value_at(state: FrozenDict[Any, Any], path: KeyPath) -> Any:
    """The frozen value at a path; `DELETE` if there is none, an `Obstacle` if something stands in its way."""
    value: Any = state
    for depth, key in enumerate(path):
        if not isinstance(value, FrozenDict):
            return value if value is DELETE else Obstacle(depth, value)
        value = value.raw(key, DELETE)
    return value


def existing_prefix(state: FrozenDict[Any, Any], path: KeyPath) -> KeyPath:
    """The path as far as it can be followed: to its end, to something in its way, or to a key that is not there."""
    value: Any = state
    for depth, key in enumerate(path):
        if not isinstance(value, FrozenDict):
            return path[:depth]
        value = value.raw(key, DELETE)
    return path


def last_writer(log: Log, places: Iterable[int], heads: Iterable[int], path: KeyPath, value: Any) -> int | None:
    """The commit that last wrote at, in or above a path.

    Where branches have joined, those count that hold what was made of them: one that wrote a value and restored the
    old one has changed nothing. A resolved value keeps its winner.

    Args:
        log: the entries of the run.
        places: the commits to look at, in lineage order.
        heads: the last commits of the branches to look at.
        path: keys from the state down.
        value: what these branches came to at the path.

    Returns:
        The place of the commit, None if none of them wrote there.
    """
    found: dict[int, tuple[int, int]] = {}  # by place: when in lineage order, and who

    def latest(branches: Iterable[int], value: Any) -> tuple[int, int] | None:
        wrote = [place for place in branches if place in found]
        hold = [place for place in wrote if len(wrote) == 1 or same(value_at(log[place].state, path), value)]
        return max([found[place] for place in hold or wrote], default=None)

    for order, place in enumerate(places):
        entry = log[place]
        value_here = value_at(entry.state, path)
        last: tuple[int, int] | None = (order, place)
        if not touches(entry.commit.patch, path):
            last = latest(entry.parents, value_here)
        elif len(entry.parents) > 1:
            known = [path[:length] for length in range(len(path), 0, -1) if path[:length] in entry.winners]
            winner = entry.winners[known[0]] if known else place
            kept = winner == place or same(value_at(log[winner].state, path), value_here)
            last = (order, winner) if kept else latest(entry.parents, value_here) or last
        if last is not None:
            found[place] = last
    last = latest(heads, value)
    return None if last is None else last[1]


# --------------------------------------------------------------------------------------------------------------------
# What a branch knows of its lineage without a look at it: kept with its counts, and added up where branches join.

LineageCounts = PersistentMap[Any, Any]
"""By node and by branch path the number of their commits; and the keys of this module."""

CALL_KINDS = ("calls", "tool_calls")
REASON_KEY = ("reason",)
NO_CALLS = (0, 0)


def calls_key(kind: str, node: str) -> tuple[str, str]:
    """The key of how often a node has called predictors (`"calls"`) or tools (`"tool_calls"`)."""
    return kind, node


def written_key(field: str) -> tuple[str, str]:
    """The key of whether a field that may be None was written by a commit that is not the first."""
    return "wrote", field


def extra_counts(commit: Commit, nullable: AbstractSet[str], before: Callable[[Any, int], Any]) -> dict[Any, Any]:
    """What a commit adds to a counts beside its counts.

    Args:
        commit: the commit.
        nullable: the fields that are None as long as nothing writes them.
        before: gives what a key had before, `(key, default)`.
    """
    found: dict[Any, Any] = {}
    if commit.calls == NO_CALLS and commit.reason is None and not nullable:
        return found
    for kind, count in zip(CALL_KINDS, commit.calls, strict=True):
        if count:
            key = calls_key(kind, commit.node)
            found[key] = before(key, 0) + count
    if commit.reason is not None:
        found[REASON_KEY] = commit.reason
    if commit.step and nullable and not nullable.isdisjoint(commit.patch):
        found |= {written_key(field): True for field in nullable if field in commit.patch}
    return found
