"""Joining branches by what each of them committed.

A branch is known by its last commit, and its lineage is that commit with all commits behind it. Of two branches the
common
commits are the base, what only one of them has are its changes, and each change is applied exactly once, however the
branches
were forked and crossed before.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol

from ._persistent import PersistentMap
from .errors import annotate
from .events import Commit, MergedConflict
from .merge import Conflict, Resolve, merge_values
from .patch import DELETE, Replace, apply_value
from .policies import Policies, settle
from .reducers import Updates
from .schema import Schema
from .state import ImmutableState
from .values import FrozenDict, same, thaw

Keys = tuple[Any, ...]


class Entry(NamedTuple):
    """One commit of the log, with what the scheduler remembers of it.

    Attributes:
        commit: the commit as users see it.
        state: the state after it.
        parents: places of the parents in the log.
        tally: how often each node has committed in this lineage, and how many commits each branch path has.
        winners: for a join, the place in the log of the commit that wrote each resolved value.
        conflicts: for a join, the conflicts that were resolved.
    """

    commit: Commit
    state: ImmutableState
    parents: tuple[int, ...]
    tally: PersistentMap[Any, int]
    winners: Mapping[Keys, int] = FrozenDict()
    conflicts: tuple[MergedConflict, ...] = ()


class Log(Protocol):
    """The entries of a run by place."""

    def __getitem__(self, index: int, /) -> Entry: ...


class Own(NamedTuple):
    """A commit by its place in the log, which not all joining branches need have. Bit i of `mask`: branch i has it."""

    place: int
    mask: int


def divergence(log: Log, heads: Sequence[int]) -> tuple[int, list[Own]]:
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
    return heap[0][1], [Own(index, masks[index]) for index in lineage(log, heads, after)]


def lineage(log: Log, heads: Sequence[int], within: Container[int] | None = None) -> list[int]:
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


def touches(patch: Mapping[Any, Any], path: Keys) -> bool:
    """Whether a patch writes at, in or above a path."""
    update: Any = patch
    for key in path:
        if not isinstance(update, Mapping):
            return True
        if key not in update:
            return False
        update = update.raw(key) if hasattr(update, "raw") else update[key]
    return True


class Merged(NamedTuple):
    """What a join makes of its branches."""

    state: ImmutableState
    patch: dict[str, Any]
    conflicts: tuple[MergedConflict, ...]
    winners: dict[Keys, int]
    tally: PersistentMap[Any, int]


class ConflictRaisedError(Exception):
    """A policy or a reducer raised; carries its error and what was found until then."""

    def __init__(self, error: Exception, conflicts: tuple[MergedConflict, ...]) -> None:
        super().__init__(str(error))
        self.error = error
        self.conflicts = conflicts


class Join:
    """One join of branches, folded left to right in the order in which they are given."""

    def __init__(self, log: Log, node: str, schema: Schema, policies: Policies, index: int) -> None:
        self.log = log
        self.node = node
        self.author = f"join:{node}"
        self.schema = schema
        self.policies = policies
        self.index = index
        self.conflicts: dict[Keys, MergedConflict] = {}
        self.winners: dict[Keys, int] = {}

    def merge(self, heads: Sequence[int], states: Sequence[ImmutableState]) -> Merged:
        """Merges the states of branches.

        Args:
            heads: the place in the log of each branch's last commit, in path order.
            states: the state of each branch.

        Raises:
            ConflictRaisedError: if a policy raises.
        """
        base, own = divergence(self.log, heads)
        self.base = self.log[base]
        self.written: dict[str, list[Own]] = {}
        disjoint = True
        first: list[list[Own]] = [[] for _ in heads]
        for item in own:
            lowest = item.mask & -item.mask
            disjoint = disjoint and item.mask == lowest
            first[lowest.bit_length() - 1].append(item)
        state = states[0]
        seen: dict[str, list[Own]] = {}
        self.resets: dict[str, list[Own]] = {}
        for bit, items in enumerate(first):
            touched: dict[str, list[Own]] = {}
            for item in items:
                for field in self.log[item.place].commit.patch:
                    touched.setdefault(field, []).append(item)
            if bit:
                for field in self._in_order_of(states[bit], touched):
                    left = seen.get(field, [])
                    if not disjoint:
                        left = [item for item in left if not item.mask >> bit & 1]
                    state = self._field(state, states[bit], field, left, touched[field], bit, own)
            for field, items_of_field in touched.items():
                seen.setdefault(field, []).extend(items_of_field)
                if self.schema.reducer(field) is not None:
                    self.resets.setdefault(field, []).extend(self._resets(items_of_field, field))
        return Merged(state, self._resolutions(state), tuple(self.conflicts.values()), self.winners, self._tally(own))

    @staticmethod
    def _in_order_of(state: ImmutableState, touched: dict[str, list[Own]]) -> list[str]:
        if len(touched) == 1:
            return list(touched)
        return [key for key in state if key in touched] + [key for key in touched if key not in state]

    def _field(
        self,
        left: ImmutableState,
        right: ImmutableState,
        field: str,
        left_only: list[Own],
        right_only: list[Own],
        bit: int,
        own: list[Own],
    ) -> ImmutableState:
        """Folds what only the right branch did to one field into the left state."""
        if self.schema.reducer(field) is None:
            value = right.raw(field, DELETE)
            if left_only:
                base = self._base(field, bit, own)
                writers = self._writers(left_only, right_only)
                value = merge_values(base, left.raw(field, DELETE), value, (field,), self._resolver(writers))
        else:
            value = self._fold(left, right, field, left_only, right_only, bit, own)
        return left.discard(field) if value is DELETE else left.set(field, value)

    def _fold(
        self,
        left: ImmutableState,
        right: ImmutableState,
        field: str,
        left_only: list[Own],
        right_only: list[Own],
        bit: int,
        own: list[Own],
    ) -> Any:
        """Replays updates of a reducer; a reset beside a sibling's update is a conflict: only one can be meant."""
        reset = any(not item.mask >> bit & 1 for item in self.resets.get(field, ()))
        if left_only and (reset or self._resets(right_only, field)):
            value, base = right.raw(field, DELETE), self._base(field, bit, own)
            if same(left.raw(field, DELETE), value):
                return value
            resolve = self._resolver(self._writers(left_only, right_only))
            return resolve((field,), base, left.raw(field, DELETE), value)
        value = left.raw(field, DELETE)
        for item in right_only:
            value = self._replay(field, value, self.log[item.place].commit.patch[field])
        return value

    def _replay(self, field: str, value: Any, update: Any) -> Any:
        """Folds one update; a reducer, or a constraint of the field, may refuse what branches made together."""
        try:
            return self.schema.fold(field, value, update)
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> ConflictRaisedError:
        annotate(error, f"raised when branches joined at node {self.node!r}")
        return ConflictRaisedError(error, tuple(self.conflicts.values()))

    def _resets(self, items: list[Own], field: str) -> list[Own]:
        """The commits that put a value in the place of what was there."""
        found = []
        for item in items:
            update = self.log[item.place].commit.patch[field]
            parts = update.updates if isinstance(update, Updates) else (update,)
            if any(part is DELETE or type(part) is Replace for part in parts):
                found.append(item)
        return found

    def _base(self, field: str, bit: int, own: list[Own]) -> Any:
        """The value of a field after the last common commits: each path as its last common writer left it."""
        value = self.base.state.raw(field, DELETE)
        before = (1 << bit) - 1
        for item in own:
            if item.mask >> bit & 1 and item.mask & before:
                patch = self.log[item.place].commit.patch
                if field in patch:
                    if self.schema.reducer(field) is None:
                        value = apply_value(value, patch[field])
                    else:
                        value = self._replay(field, value, patch[field])
        return value

    def _writers(self, left_only: list[Own], right_only: list[Own]) -> Callable[[Keys], tuple[int, int]]:
        def find(path: Keys) -> tuple[int, int]:
            known = self.winners.get(path)
            return self._author(left_only, path) if known is None else known, self._author(right_only, path)

        return find

    def _author(self, items: list[Own], path: Keys) -> int:
        """The commit that last wrote at, in or above a path: a resolved value keeps its winner."""
        for item in reversed(items):
            entry = self.log[item.place]
            if touches(entry.commit.patch, path):
                for length in range(len(path), 0, -1):
                    if path[:length] in entry.winners:
                        return entry.winners[path[:length]]
                return item.place
        return items[-1].place

    def _name(self, index: int) -> str:
        return self.author if index == self.index else self.log[index].commit.node

    def _resolver(self, writers: Callable[[Keys], tuple[int, int]]) -> Resolve:
        def resolve(path: Keys, base: Any, left: Any, right: Any) -> Any:
            left_index, right_index = writers(path)
            policy = self.policies.policy_for(path)
            conflict = Conflict(path, base, left, right, self._name(left_index), self._name(right_index))
            known = self.conflicts.get(path)
            values = known.values if known else ((conflict.left_author, thaw(left)),)
            values = (*values, (conflict.right_author, thaw(right)))
            record = MergedConflict(self.node, path, thaw(base), values, policy.name)
            try:
                value = settle(policy, conflict)
            except Exception as error:
                self.conflicts[path] = record
                raise self._failed(error) from error
            winner = right_index if value is right else left_index if value is left else self.index
            self.winners[path] = winner
            self.conflicts[path] = record._replace(value=thaw(value), winner=self._name(winner))
            return value

        return resolve

    def _resolutions(self, state: ImmutableState) -> dict[str, Any]:
        """The resolved values as one patch. A later conflict above a path takes its place."""
        patch: dict[str, Any] = {}
        for path in self.winners:
            if any(path[:length] in self.winners for length in range(1, len(path))):
                continue
            value: Any = state
            for key in path:
                value = value.raw(key, DELETE)
            inner: dict[Any, Any] = patch
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            whole = isinstance(value, Mapping) or value is None or self.schema.reducer(path[0]) is not None
            inner[path[-1]] = Replace(value) if whole and value is not DELETE else value
        return patch

    def _tally(self, own: list[Own]) -> PersistentMap[Any, int]:
        tally = self.base.tally
        for item in own:
            commit = self.log[item.place].commit
            tally = tally.set(commit.node, tally.get(commit.node, 0) + 1)
            tally = tally.set(commit.branch, tally.get(commit.branch, 0) + 1)
        return tally
