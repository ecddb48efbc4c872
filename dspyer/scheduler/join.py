"""Joining branches: each change is applied exactly once, and conflicts go to the merge policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dspyer.errors import NodeOutputError, StoreError, annotate
from dspyer.events import Commit, MergedConflict
from dspyer.patch import DELETE, Replace, apply_value, each_update, resets
from dspyer.policies import Conflict, Resolve, merge_values
from dspyer.reducers import Keyed
from dspyer.scheduler.lineage import (
    LineageCounts,
    Log,
    Obstacle,
    ReachableCommit,
    Resolution,
    existing_prefix,
    extra_counts,
    last_writer,
    merge_base,
    value_at,
)
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import same
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.values.persistent import PersistentMap
from dspyer.values.refusals import KeyPath

FindWriters = Callable[[KeyPath, Any, Any], tuple[int, int]]
"""Who wrote the left and the right value of a path: `(path, left, right)`."""

PolicyLookup = Callable[[KeyPath], tuple[str, Callable[[Conflict], Any]]]
"""Gives, for the path of a conflict, the name of a policy and what it decides."""


class RecordedResolutions:
    """Decides conflicts as a join has decided them before: no policy is called again.

    Args:
        resolutions: those of the join, in their order.
    """

    def __init__(self, resolutions: Iterable[Resolution]) -> None:
        self.resolutions = tuple(resolutions)
        self._left = iter(self.resolutions)

    def __call__(self, path: KeyPath) -> tuple[str, Callable[[Conflict], Any]]:
        """The next decision."""
        resolution = next(self._left, None)
        if resolution is None:
            raise _UnresolvedError(
                f"the log has no resolution for the conflict at {path!r}: it is not the log of this join"
            )
        return resolution.policy, resolution.value_of


class _UnresolvedError(StoreError):
    """A log has fewer resolutions than its join has conflicts."""


class JoinResult(NamedTuple):
    """What a join makes of its branches."""

    state: ImmutableState
    patch: dict[str, Any]
    conflicts: tuple[MergedConflict, ...]
    winners: dict[KeyPath, int]
    counts: LineageCounts
    resolutions: tuple[Resolution, ...] = ()


class JoinFailedError(Exception):
    """A policy or a reducer raised; carries its error and what was found until then."""

    def __init__(self, error: Exception, conflicts: tuple[MergedConflict, ...]) -> None:
        super().__init__(str(error))
        self.error = error
        self.conflicts = conflicts


def value_at_key(keyed: Keyed, value: Any, key: Any) -> Any:
    """The value under a key of a field; `DELETE` if there is none."""
    return keyed.find(value, key) if isinstance(value, (FrozenDict, FrozenList)) else DELETE


def last_not_in(items: Sequence[ReachableCommit], bit: int) -> ReachableCommit | None:
    """The last of some commits that does not lie behind a branch; None if all do."""
    return next((item for item in reversed(items) if not item.mask >> bit & 1), None)


class Join:
    """One join of branches, folded left to right in the order in which they are given."""

    def __init__(
        self, log: Log, node: str, schema: Schema, policies: PolicyLookup, index: int, by_key: bool = True
    ) -> None:
        self.log = log
        self.node = node
        self.author = f"join:{node}"
        self.schema = schema
        self.policies = policies
        self.index = index
        self.by_key = by_key
        self.chosen: list[Resolution] = []
        self.conflicts: dict[KeyPath, MergedConflict] = {}
        self.winners: dict[KeyPath, int] = {}
        self.resolved: dict[KeyPath, Any] = {}
        self.merged: set[str] = set()

    def merge(self, heads: Sequence[int], states: Sequence[ImmutableState]) -> JoinResult:
        """Merges the states of branches.

        Args:
            heads: the place in the log of each branch's last commit, in path order.
            states: the state of each branch.

        Raises:
            JoinFailedError: if a policy raises.
            StoreError: if a log does not say how the conflicts were resolved.
        """
        try:
            return self._merge(heads, states)
        except _UnresolvedError:
            # A log of 0.4: there two values under one key were no conflict, the one of the later branch was kept.
            assert isinstance(self.policies, RecordedResolutions)
            earlier = Join(
                self.log, self.node, self.schema, RecordedResolutions(self.policies.resolutions), self.index, False
            )
            return earlier._merge(heads, states)

    def _merge(self, heads: Sequence[int], states: Sequence[ImmutableState]) -> JoinResult:
        base, own = merge_base(self.log, heads)
        self.base = self.log[base]
        self.heads = heads
        self.own = own
        disjoint = True
        first: list[list[ReachableCommit]] = [[] for _ in heads]
        for item in own:
            lowest = item.mask & -item.mask
            disjoint = disjoint and item.mask == lowest
            first[lowest.bit_length() - 1].append(item)
        self.disjoint = disjoint
        self.first = first
        state = states[0]
        seen: dict[str, list[ReachableCommit]] = {}
        live = self._live_updates(own)
        self.resets: dict[str, list[ReachableCommit]] = {}
        self.keys: dict[str, dict[Any, list[ReachableCommit]]] = {}
        for bit, items in enumerate(first):
            touched: dict[str, list[ReachableCommit]] = {}
            for item in items:
                for field in self.log[item.log_index].commit.patch:
                    touched.setdefault(field, []).append(item)
            if bit:
                for field in self._in_order_of(states[bit], touched):
                    if field in live:
                        continue
                    left = last_not_in(seen.get(field, ()), bit)
                    state = self._field(state, states[bit], field, left, touched[field], bit)
            for field, items_of_field in touched.items():
                seen.setdefault(field, []).extend(items_of_field)
                if self.schema.reducer(field) is not None:
                    self.resets.setdefault(field, []).extend(self._resets(items_of_field, field))
                if self._keyed(field) is not None:
                    self._index(field, items_of_field)
        state = self._validated(state)
        for field, updates in live.items():
            state = state.set(field, self._by_arrival(field, updates))
        self._drop_stale_resolutions(state)
        conflicts, resolutions = tuple(self.conflicts.values()), tuple(self.chosen)
        return JoinResult(state, self._resolutions(state), conflicts, self.winners, self._counts(own), resolutions)

    def measured(self, commit: Commit, merged: JoinResult) -> Commit:
        """The commit of this join with the sizes that it says."""
        return self.schema.with_sizes(commit, self.base.state, self._patches(merged), merged.state)

    def check_whole(self, merged: JoinResult) -> None:
        """Refuses a joined state that is too large for the limit on the whole.

        Raises:
            JoinFailedError: with the error that names the writers.
        """
        if self.schema.state_limit is None:
            return
        why = self.schema.excess(self.base.state, self._patches(merged), merged.state)
        if why:
            wrote: dict[str, dict[str, None]] = {}
            for item in self.own:
                commit = self.log[item.log_index].commit
                if commit.patch and not commit.node.startswith("join:"):
                    wrote.setdefault(commit.node, {}).update(dict.fromkeys(commit.patch))
            authors = "; ".join(f"{node} wrote {', '.join(map(repr, names))}" for node, names in wrote.items())
            error = NodeOutputError(f"branches joined at node {self.node!r}, where {authors}: together {why}")
            raise JoinFailedError(error, merged.conflicts)

    def _patches(self, merged: JoinResult) -> list[Mapping[str, Any]]:
        """What the branches wrote, and where a field is as none of them left it, its value."""
        values = {path[0]: merged.state.raw(path[0], DELETE) for path in merged.winners if len(path) == 1}
        anew = {field: value if value is DELETE else Replace(value) for field, value in values.items()}
        return [*[self.log[item.log_index].commit.patch for item in self.own], anew]

    @staticmethod
    def _in_order_of(state: ImmutableState, touched: dict[str, list[ReachableCommit]]) -> list[str]:
        if len(touched) == 1:
            return list(touched)
        return [key for key in state if key in touched] + [key for key in touched if key not in state]

    def _field(
        self,
        left: ImmutableState,
        right: ImmutableState,
        field: str,
        left_last: ReachableCommit | None,
        right_only: list[ReachableCommit],
        bit: int,
    ) -> ImmutableState:
        """Folds what only the right branch did to one field into the left state."""
        if self.schema.reducer(field) is None:
            value = right.raw(field, DELETE)
            if left_last is not None:
                base = self._base(field, bit)
                writers = self._writers(left_last, right_only, bit)
                value = merge_values(base, left.raw(field, DELETE), value, (field,), self._resolver(writers))
                self.merged.add(field)
        else:
            value = self._fold(left, right, field, left_last, right_only, bit)
        return left.discard(field) if value is DELETE else left.set(field, value)

    def _fold(
        self,
        left: ImmutableState,
        right: ImmutableState,
        field: str,
        left_last: ReachableCommit | None,
        right_only: list[ReachableCommit],
        bit: int,
    ) -> Any:
        """Replays updates of a reducer; a reset beside a sibling's update is a conflict: only one can be meant."""
        reset = any(not item.mask >> bit & 1 for item in self.resets.get(field, ()))
        if left_last is not None and (reset or self._resets(right_only, field)):
            value, base = right.raw(field, DELETE), self._base(field, bit)
            writers = self._writers(left_last, right_only, bit)
            if same(left.raw(field, DELETE), value):  # no conflict, but a later join must not replay both sides
                self.winners[field,], self.resolved[field,] = writers((field,), value, value)[0], value
                return value
            self.merged.add(field)
            return self._resolver(writers)((field,), base, left.raw(field, DELETE), value)
        value = left.raw(field, DELETE)
        keyed = self._keyed(field)
        if keyed is not None and left_last is not None:
            return self._by_key(keyed, value, right.raw(field, DELETE), field, right_only, bit)
        for item in right_only:
            value = self._replay(field, value, self.log[item.log_index].commit.patch[field])
        return value

    def _keyed(self, field: str) -> Keyed | None:
        reducer = self.schema.reducer(field)
        return None if reducer is None or not self.by_key else reducer.keyed

    def _keys(self, field: str, item: ReachableCommit) -> Iterator[Any]:
        """The keys under which a commit has put values, in its order."""
        reducer, update = self.schema.reducer(field), self.log[item.log_index].commit.patch.get(field, DELETE)
        assert reducer is not None
        assert reducer.parts is not None  # what has keys has parts
        for one in each_update(update):
            if one is not DELETE and type(one) is not Replace:
                yield from (key for key, _ in reducer.parts(one))

    def _by_key(
        self, keyed: Keyed, left: Any, right: Any, field: str, right_only: list[ReachableCommit], bit: int
    ) -> Any:
        """Folds what the right branch has put under its keys into the left value, as one update.

        Two branches that put different values under one key conflict there; one that has put back what was there has
        changed nothing.
        """
        theirs = {key: item for item in right_only for key in self._keys(field, item)}
        ours = self._left_of(field, theirs, bit)
        base = self._base(field, bit) if ours else DELETE
        value, update = left, {}
        for key, item in theirs.items():
            mine, new = value_at_key(keyed, left, key), value_at_key(keyed, right, key)
            if key in ours and not same(mine, new):
                new = self._of_key(keyed, (field, key), (value_at_key(keyed, base, key), mine, new), ours[key], item)
            if new is not DELETE:
                update[key] = new
            elif value is not DELETE:
                value = keyed.without(value, key)
        return self._replay(field, value, keyed.make_update(update))

    def _index(self, field: str, items: list[ReachableCommit]) -> None:
        """Notes the commits of one more branch by the keys that they have put values under."""
        known = self.keys.setdefault(field, {})
        for item in items:
            for key in self._keys(field, item):
                known.setdefault(key, []).append(item)

    def _left_of(self, field: str, keys: Iterable[Any], bit: int) -> dict[Any, ReachableCommit]:
        """The last commit under each key that lies behind a branch before `bit`, and not behind that one."""
        known, found = self.keys.get(field, {}), {}
        for key in keys:
            last = last_not_in(known.get(key, ()), bit)
            if last is not None:
                found[key] = last
        return found

    def _of_key(
        self, keyed: Keyed, path: KeyPath, values: tuple[Any, Any, Any], ours: ReachableCommit, theirs: ReachableCommit
    ) -> Any:
        """The value under a key that both sides have written differently."""
        base, left, right = values
        writers = self.winners.get(path, self._winner(ours, path)), self._winner(theirs, path)
        if same(left, base):
            return right
        if same(right, base):
            self.winners[path], self.resolved[path] = writers[0], left
            return left
        value = self._resolver(lambda *_: writers)(path, base, left, right)
        if value is not DELETE and value_at_key(keyed, keyed.make_update({path[1]: value}), path[1]) is DELETE:
            policy = self.conflicts[path].policy
            wrong = (
                f"merge policy {policy!r} gave a value for {path!r} that does not have the id {path[1]!r}: keep the id"
            )
            raise self._failed(NodeOutputError(wrong))
        if value is not DELETE and value is not left and value is not right:
            value = self._valid_answer(keyed, path, value)
        return value

    def _valid_answer(self, keyed: Keyed, path: KeyPath, value: Any) -> Any:
        """What a policy made up for a key, validated like an update of a node."""
        try:
            valid = self.schema.valid_update(path[0], keyed.make_update({path[1]: value}))
        except Exception as error:
            raise self._failed(error, path[0]) from error
        valid = value_at_key(keyed, valid, path[1])
        self.resolved[path] = valid
        self.conflicts[path] = self.conflicts[path]._replace(value=thaw(valid))
        return valid

    def _winner(self, item: ReachableCommit, path: KeyPath) -> int:
        return self.log[item.log_index].winners.get(path, item.log_index)

    def _live_updates(self, own: list[ReachableCommit]) -> dict[str, list[tuple[int, Any]]]:
        """What came to each live field after the base, with the number of its arrival: each update once.

        In an isolated run no update has such a number: there the field is joined like any other.
        """
        found: dict[str, list[tuple[int, Any]]] = {}
        for item in own:
            commit = self.log[item.log_index].commit
            if commit.live is not None:
                for field, seqs in commit.live.posts.items():
                    update = commit.patch[field]
                    found.setdefault(field, []).extend(zip(seqs, each_update(update), strict=True))
        return found

    def _by_arrival(self, field: str, updates: list[tuple[int, Any]]) -> Any:
        """The value of a live field: all updates after the base, folded as they arrived."""
        value = self.base.state.raw(field, DELETE)
        latest = self.schema.reducer(field) is None
        for _, update in sorted(updates, key=lambda numbered: numbered[0]):
            value = apply_value(value, update) if latest else self._replay(field, value, update)
        return value

    def _replay(self, field: str, value: Any, update: Any) -> Any:
        """Folds one update; a reducer, or a constraint of the field, may refuse what branches made together."""
        try:
            return self.schema.fold(field, value, update)
        except Exception as error:
            raise self._failed(error, field) from error

    def _validated(self, state: ImmutableState) -> ImmutableState:
        """Validates the fields that more than one branch has changed, where they are now as in none of them."""
        for field in sorted(self.merged):
            value = state.raw(field, DELETE)
            sides = [self.log[head].state.raw(field, DELETE) for head in self.heads]
            if value is DELETE or any(value is side for side in sides):
                continue
            try:
                valid = self.schema.validate_joined(field, value, sides, state)
            except Exception as error:
                raise self._failed(error, field) from error
            if valid is not value and not same(valid, value):
                state = state.set(field, valid)
                self.winners[field,] = self.index
        return state

    def _failed(self, error: Exception, field: str = "") -> JoinFailedError:
        wrote = [self.log[item.log_index].commit for item in self.own] if field else []
        authors = dict.fromkeys(commit.node for commit in wrote if field in commit.patch and commit.node[:5] != "join:")
        about = f", where {', '.join(authors)} had written {field!r}" if authors else ""
        annotate(error, f"raised when branches joined at node {self.node!r}{about}")
        return JoinFailedError(error, tuple(self.conflicts.values()))

    def _resets(self, items: list[ReachableCommit], field: str) -> list[ReachableCommit]:
        """The commits that put a value in the place of what was there."""
        return [item for item in items if resets(self.log[item.log_index].commit.patch[field])]

    def _base(self, field: str, bit: int) -> Any:
        """The value of a field after the last common commits: each path as its last common writer left it."""
        if self.disjoint:
            return self.base.state.raw(field, DELETE)
        before = (1 << bit) - 1
        common = [item.log_index for item in self.own if item.mask >> bit & 1 and item.mask & before]
        inner = {parent for place in common for parent in self.log[place].parents}
        last = [place for place in common if place not in inner]
        if len(last) == 1:
            return self.log[last[0]].state.raw(field, DELETE)
        value = self.base.state.raw(field, DELETE)
        for place in common:
            patch = self.log[place].commit.patch
            if field in patch:
                if self.schema.reducer(field) is None:
                    value = apply_value(value, patch[field])
                else:
                    value = self._replay(field, value, patch[field])
        return value

    def _writers(self, left_last: ReachableCommit, right_only: list[ReachableCommit], bit: int) -> FindWriters:
        def find(path: KeyPath, left: Any, right: Any) -> tuple[int, int]:
            known = self.winners.get(path)
            if known is None or not same(self.resolved[path], left):
                known = self._left_writer(bit, path, left)
            theirs = [item.log_index for item in self.first[bit]]
            other = last_writer(self.log, theirs, self.heads[bit : bit + 1], path, right)
            return left_last.log_index if known is None else known, right_only[-1].log_index if other is None else other

        return find

    def _left_writer(self, bit: int, path: KeyPath, left: Any) -> int | None:
        """Who wrote a value of the branches before one; where none of them crossed, a look at each finds it."""
        for other in reversed(range(bit if self.disjoint else 0)):
            if same(value_at(self.log[self.heads[other]].state, path), left):
                places = [item.log_index for item in self.first[other]]
                writer = last_writer(self.log, places, [self.heads[other]], path, left)
                if writer is not None:
                    return writer
        before = (1 << bit) - 1
        ours = [item.log_index for item in self.own if item.mask & before and not item.mask >> bit & 1]
        return last_writer(self.log, ours, self.heads[:bit], path, left)

    def _name(self, index: int) -> str:
        return self.author if index == self.index else self.log[index].commit.node

    def _resolver(self, writers: FindWriters) -> Resolve:
        def resolve(path: KeyPath, base: Any, left: Any, right: Any) -> Any:
            left_index, right_index = writers(path, left, right)
            policy, decide = self.policies(path)
            conflict = Conflict(path, base, left, right, self._name(left_index), self._name(right_index))
            known = self.conflicts.get(path)
            values = known.values if known else ()
            if known is None or not same(self.resolved[path], left):  # a branch between built on what was kept
                values = (*values, (conflict.left_author, thaw(left)))
            values = (*values, (conflict.right_author, thaw(right)))
            record = MergedConflict(self.node, path, thaw(base), values, policy)
            try:
                value = decide(conflict)
            except Exception as error:
                self.conflicts[path] = record
                raise self._failed(error) from error
            winner = right_index if value is right else left_index if value is left else self.index
            chosen = "right" if value is right else "left" if value is left else "new"
            self.chosen.append(Resolution(policy, chosen, value if chosen == "new" else None))
            self.winners[path] = winner
            self.resolved[path] = value
            self.conflicts[path] = record._replace(value=thaw(value), winner=self._name(winner))
            return value

        return resolve

    def _drop_stale_resolutions(self, state: ImmutableState) -> None:
        """A later branch may change what was resolved without a conflict: if it builds on the value that was kept."""
        resolved = set(self.winners)
        for path, value in self.resolved.items():
            final = self._value_at(state, path)
            if same(final, value) or any(path[:length] in resolved for length in range(1, len(path))):
                continue
            at = path
            if self._has_key(path):
                winner = self._winner([item for item in self.own if self._puts(item, path)][-1], path)
            else:
                holds = [head for head in self.heads if same(value_at(self.log[head].state, path), final)]
                writer = last_writer(self.log, [item.log_index for item in self.own], holds, path, final)
                winner = self.index if writer is None else writer
                at = existing_prefix(state, path)
            del self.winners[path]
            self.winners[at] = winner
            name, record = self._name(winner), self.conflicts.get(path)
            if record is None:  # no conflict: one side had put back what was there
                continue
            kept = thaw(final.value if isinstance(final, Obstacle) else final)
            self.conflicts[path] = record._replace(values=(*record.values, (name, kept)), value=kept, winner=name)

    def _has_key(self, path: KeyPath) -> bool:
        """Whether a path is a key of a field whose reducer keeps one value per key."""
        return len(path) == 2 and self._keyed(path[0]) is not None

    def _puts(self, item: ReachableCommit, path: KeyPath) -> bool:
        """Whether a commit has put a value under such a key, or in the place of the whole field."""
        field, key = path
        written = field in self.log[item.log_index].commit.patch
        return written and (bool(self._resets([item], field)) or key in self._keys(field, item))

    def _value_at(self, state: ImmutableState, path: KeyPath) -> Any:
        """The frozen value at a path, which may be a key of a field with a reducer."""
        keyed = self._keyed(path[0]) if len(path) == 2 else None
        return value_at(state, path) if keyed is None else value_at_key(keyed, state.raw(path[0], DELETE), path[1])

    def _resolutions(self, state: ImmutableState) -> dict[str, Any]:
        """The resolved values as one patch: of a field with a reducer, an update. What a later conflict above a path
        decided takes its place.
        """
        patch: dict[str, Any] = {}
        by_key: dict[str, dict[Any, Any]] = {}
        for path in self.winners:
            if any(path[:length] in self.winners for length in range(1, len(path))):
                continue
            if self._has_key(path):
                by_key.setdefault(path[0], {})[path[1]] = self._value_at(state, path)
                continue
            value = value_at(state, path)
            inner: dict[Any, Any] = patch
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            whole = isinstance(value, Mapping) or value is None or self.schema.reducer(path[0]) is not None
            inner[path[-1]] = Replace(value) if whole and value is not DELETE else value
        for field, values in by_key.items():
            keyed, gone = self._keyed(field), any(value is DELETE for value in values.values())
            assert keyed is not None
            patch[field] = (
                Replace(state.raw(field)) if gone else keyed.make_update(values)
            )  # no update takes a key away
        return patch

    def _counts(self, own: list[ReachableCommit]) -> LineageCounts:
        assert self.base.counts is not None  # branches that join have parted at the base
        counts = parted = self.base.counts
        grown: dict[Any, Any] = {}

        def before(key: Any, none: int) -> Any:
            return grown.get(key) or parted.get(key, none)

        for item in own:
            commit = self.log[item.log_index].commit
            for key in (commit.node, commit.branch):
                grown[key] = (grown.get(key) or counts.get(key, 0)) + 1
            grown |= extra_counts(commit, self.schema.none_by_default, before)
        if len(grown) > len(counts):
            return PersistentMap({**dict(counts.items()), **grown})
        for key, count in grown.items():
            counts = counts.set(key, count)
        return counts
