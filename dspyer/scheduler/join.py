"""Joining branches: each change is applied exactly once, and conflicts go to the merge policy.

The rule is the three-way merge of version control (diff3, git), over the commits of a run, for any number of branches:

- The base is the last commit on every path of their lineage (see `lineage.merge_base`). The changes of a branch are the
  commits after the base that it contains.
- Branches are folded into the leftmost one from left to right. Folding in a branch applies the commits that it contains
  and no branch before it does. So a commit that several branches contain, because they crossed in earlier joins, is
  applied once.
- A field without a reducer is merged by value against the base (`policies.merge_values`); a path that both sides
  changed differently is a conflict. A field with a reducer replays the updates, as a rebase replays commits. Two of
  those can conflict too: a reset (an update that replaces or deletes the whole field) with any other update, and
  different values under one key of a *keyed* field, whose reducer keeps one value per key.
- Live fields are folded in the order in which their posts arrived: their readers have seen that order already.
- For each value that a conflict decided, the join records which commit wrote it (`winners`), for `blame` and for later
  joins. All of these values are the patch of the join's own commit.

"Left" are the branches folded so far, "right" is the branch that is folded in; `bit` is its index. In masks, bit i
stands for branch i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dspyer.errors import NodeOutputError, annotate
from dspyer.events import MergedConflict
from dspyer.patch import DELETE, Replace, apply_value, each_update, resets
from dspyer.policies import Conflict, Resolve, merge_values
from dspyer.reducers import Keyed
from dspyer.scheduler.lineage import (
    LineageCounts,
    Log,
    Obstacle,
    ReachableCommit,
    by_branch,
    existing_prefix,
    joined_counts,
    merge_base,
    value_at,
)
from dspyer.scheduler.provenance import Writers
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import same
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.values.scalars import KeyPath

FindWriters = Callable[[KeyPath, Any, Any], tuple[int, int]]
"""`(path, left, right)` -> log indexes of the commits that wrote the left and the right value."""

PolicyLookup = Callable[[KeyPath], tuple[str, Callable[[Conflict], Any]]]
"""The path of a conflict -> the name of its merge policy, and the function that decides."""


class JoinResult(NamedTuple):
    """The outcome of a join.

    Attributes:
        state: the joined state.
        patch: the values that resolutions decided: the patch of the join's own commit.
        conflicts: the conflicts, as users see them.
        winners: for each path that was resolved, the log index of the commit that wrote the kept value.
        counts: the counts of the joined lineage.
    """

    state: ImmutableState
    patch: Mapping[str, Any]
    conflicts: tuple[MergedConflict, ...]
    winners: dict[KeyPath, int]
    counts: LineageCounts


class JoinFailedError(Exception):
    """A policy, a reducer or a limit refused the join: its error, and the conflicts found until then."""

    def __init__(self, error: Exception, conflicts: tuple[MergedConflict, ...]) -> None:
        super().__init__(str(error))
        self.error = error
        self.conflicts = conflicts


def value_at_key(keyed: Keyed, value: Any, key: Any) -> Any:
    """The value under a key of a field; `DELETE` if there is none."""
    return keyed.find(value, key) if isinstance(value, (FrozenDict, FrozenList)) else DELETE


def value_in(schema: Schema, state: ImmutableState, path: KeyPath) -> Any:
    """The frozen value at a path, which may be a key of a keyed field."""
    reducer = schema.reducer(path[0]) if len(path) == 2 else None
    if reducer is None or reducer.keyed is None:
        return value_at(state, path)
    return value_at_key(reducer.keyed, state.raw(path[0], DELETE), path[1])


class Join:
    """One join. Its result is committed at `index` of the log, under the name of `node`."""

    def __init__(self, log: Log, node: str, schema: Schema, policies: PolicyLookup, index: int) -> None:
        self.log = log
        self.node = node
        self.author = f"join:{node}"
        self.schema = schema
        self.policies = policies
        self.index = index
        self.conflicts: dict[KeyPath, MergedConflict] = {}
        self.winners: dict[KeyPath, int] = {}
        self.resolved: dict[KeyPath, Any] = {}  # the value that was kept at each path of `winners`
        self.merged: set[str] = set()  # fields that more than one branch changed

    # --- the merge

    def merge(self, heads: Sequence[int], states: Sequence[ImmutableState]) -> JoinResult:
        """Merges branches, given the log index of each head and its state, in path order."""
        base, commits = merge_base(self.log, heads)
        self.base = self.log[base]
        self.base_index = base
        self.writers: dict[int, Writers] = {}  # who has written what since then; see `_writers_apart`
        self.heads = heads
        self.commits = commits  # those after the base, in lineage order
        self.crossed = any(item.mask.bit_count() > 1 for item in commits)  # some are in several branches
        live = self._live_updates()
        state = states[0]
        # What the branches folded so far have done, by field: all writes, resets, and writes by key.
        self.writes: dict[str, list[ReachableCommit]] = {}
        self.resets: dict[str, list[ReachableCommit]] = {}
        self.keys: dict[str, dict[Any, list[ReachableCommit]]] = {}
        for bit, items in enumerate(by_branch(commits, len(heads))):
            touched: dict[str, list[ReachableCommit]] = {}
            for item in items:
                for field in self.log[item.log_index].commit.patch:
                    touched.setdefault(field, []).append(item)
            if bit:  # the leftmost branch is what the others are folded into
                for field in _in_order_of(states[bit], touched):
                    if field not in live:
                        state = self._fold_field(state, states[bit], field, touched[field], bit)
            for field, writes in touched.items():
                self._record_writes(field, writes)
        state = self._validated(state)
        for field, updates in live.items():
            state = state.set(field, self._fold_by_arrival(field, updates))
        first = [name for name in states[0] if name in state]
        if first != list(state)[: len(first)]:  # one branch deleted a field, and a later one had another value
            state = ImmutableState({name: state.raw(name) for name in dict.fromkeys((*first, *state))})
        self._drop_stale_resolutions(state)
        counts = joined_counts(self.log, base, commits)
        return JoinResult(state, self._patch(state), tuple(self.conflicts.values()), self.winners, counts)

    def _record_writes(self, field: str, writes: list[ReachableCommit]) -> None:
        self.writes.setdefault(field, []).extend(writes)
        if self.schema.reducer(field) is not None:
            self.resets.setdefault(field, []).extend(self._resets(writes, field))
        if self._keyed(field) is not None:
            by_key = self.keys.setdefault(field, {})
            for item in writes:
                for key, _ in self._parts_of(field, item):
                    by_key.setdefault(key, []).append(item)

    def _fold_field(
        self, left: ImmutableState, right: ImmutableState, field: str, writes: list[ReachableCommit], bit: int
    ) -> ImmutableState:
        """The left state with the writes to one field that only the right branch contains."""
        left_last = _last_not_in(self.writes.get(field, ()), bit)
        if self.schema.reducer(field) is None:
            value = right.raw(field, DELETE)
            if left_last is not None:
                transient = self.schema.transient  # a branch that has only reset one has written nothing
                base = transient[field] if field in transient else self._base_value(field, bit)
                find = self._writers(left_last, writes, bit)
                value = merge_values(base, left.raw(field, DELETE), value, (field,), self._resolver(find))
                self.merged.add(field)
        else:
            value = self._fold_updates(left, right, field, left_last, writes, bit)
        return left.discard(field) if value is DELETE else left.set(field, value)

    def _fold_updates(
        self,
        left: ImmutableState,
        right: ImmutableState,
        field: str,
        left_last: ReachableCommit | None,
        writes: list[ReachableCommit],
        bit: int,
    ) -> Any:
        """The value of a field with a reducer: the right branch's updates replayed on the left value.

        A reset on one side and any update on the other is a conflict: replaying both would lose one silently.
        """
        value = left.raw(field, DELETE)
        left_resets = any(not item.mask >> bit & 1 for item in self.resets.get(field, ()))
        if left_last is not None and (left_resets or self._resets(writes, field)):
            new, base = right.raw(field, DELETE), self._base_value(field, bit)
            find = self._writers(left_last, writes, bit)
            if same(value, new):  # no conflict; noted as resolved, lest a later join replays the updates of both sides
                self.winners[field,], self.resolved[field,] = find((field,), new, new)[0], new
                return new
            self.merged.add(field)
            return self._resolver(find)((field,), base, value, new)
        keyed = self._keyed(field)
        if keyed is not None and (left_last is not None or (self.crossed and not self._resets(writes, field))):
            return self._fold_by_key(keyed, value, right.raw(field, DELETE), field, writes, bit)
        for item in writes:
            value = self._replay(field, value, self.log[item.log_index].commit.patch[field])
        if keyed is not None and self.crossed and not same(value, right.raw(field, DELETE)):
            # The right branch contains all writes of the left one, and one of those came after the reset that was
            # replayed here: its value is the joined one.
            value = right.raw(field, DELETE)
            self.winners[field,], self.resolved[field,] = self.index, value
        return value

    def _replay(self, field: str, value: Any, update: Any) -> Any:
        """Folds one update. The reducer, or a constraint of the field, may refuse the combination of two branches."""
        try:
            return self.schema.fold(field, value, update)
        except Exception as error:
            raise self._failed(error, field) from error

    def _resets(self, items: list[ReachableCommit], field: str) -> list[ReachableCommit]:
        """Those commits that replace or delete the whole field."""
        return [item for item in items if resets(self.log[item.log_index].commit.patch[field])]

    def _base_value(self, field: str, bit: int) -> Any:
        """The value of a field that the right branch and those before it have in common.

        Without crossings it is that of the base. Otherwise the branches may share later commits; if those have several
        heads, no commit has the common value, and it is made by applying them all (git's recursive strategy makes such
        a virtual base too).
        """
        if not self.crossed:
            return self.base.state.raw(field, DELETE)
        before = (1 << bit) - 1  # the bits of all branches left of this one
        common = [item.log_index for item in self.commits if item.mask >> bit & 1 and item.mask & before]
        parents = {parent for index in common for parent in self.log[index].parents}
        heads = [index for index in common if index not in parents]
        if len(heads) == 1:
            return self.log[heads[0]].state.raw(field, DELETE)
        value = self.base.state.raw(field, DELETE)
        for index in common:
            patch = self.log[index].commit.patch
            if field in patch:
                if self.schema.reducer(field) is None:
                    value = apply_value(value, patch[field])
                else:
                    value = self._replay(field, value, patch[field])
        return value

    def _validated(self, state: ImmutableState) -> ImmutableState:
        """Validates the fields that several branches changed. A value that a branch held already is valid."""
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

    # --- keyed fields: their reducer keeps one value per key

    def _keyed(self, field: str) -> Keyed | None:
        reducer = self.schema.reducer(field)
        return None if reducer is None else reducer.keyed

    def _parts_of(self, field: str, item: ReachableCommit) -> Iterator[tuple[Any, Any]]:
        """The keys that a commit's updates of a field set, in order, with their values."""
        reducer, update = self.schema.reducer(field), self.log[item.log_index].commit.patch.get(field, DELETE)
        assert reducer is not None
        assert reducer.parts is not None  # what has keys has parts
        for one in each_update(update):
            if one is not DELETE and type(one) is not Replace:
                yield from reducer.parts(one)

    def _fold_by_key(
        self, keyed: Keyed, left: Any, right: Any, field: str, writes: list[ReachableCommit], bit: int
    ) -> Any:
        """The left value with the keys that the right branch set, as one update.

        Different values under one key are a conflict at that key. A side that restored the base's value counts as
        unchanged.
        """
        right_last = {key: (item, put) for item in writes for key, put in self._parts_of(field, item)}
        # By key, the last commit that set it in a branch before this one, and that this one does not contain.
        by_key = self.keys.get(field, {})
        last = {key: _last_not_in(by_key.get(key, ()), bit) for key in right_last}
        left_last = {key: item for key, item in last.items() if item is not None}
        base = self._base_value(field, bit) if left_last else DELETE
        value, update = left, {}
        for key, (item, put) in right_last.items():
            old, new = value_at_key(keyed, left, key), value_at_key(keyed, right, key)
            if key in left_last and not same(old, new):
                sides = value_at_key(keyed, base, key), old, new
                new = self._merge_key(keyed, (field, key), sides, left_last[key], item)
            if self.crossed and (field, key) not in self.winners and not same(put, new):
                # The last commit of this branch alone to set the key did not put this value: one that several branches
                # contain has overwritten it. Without the value in the join's patch, `blame`, views and later joins,
                # which apply the commits of one branch after the shared ones, would take the older value.
                shared = [one for one in by_key.get(key, ()) if one.mask >> bit & 1]
                self.winners[field, key] = self._credited(shared[-1], (field, key)) if shared else self.index
                self.resolved[field, key] = new
            if new is not DELETE:
                update[key] = new
            elif value is not DELETE:
                value = keyed.without(value, key)
        return self._replay(field, value, keyed.make_update(update))

    def _merge_key(
        self,
        keyed: Keyed,
        path: KeyPath,
        values: tuple[Any, Any, Any],
        left_last: ReachableCommit,
        right_last: ReachableCommit,
    ) -> Any:
        """The three-way merge of (base, left, right) under one key."""
        base, left, right = values
        writers = self.winners.get(path, self._credited(left_last, path)), self._credited(right_last, path)
        if same(left, base):
            return right
        if same(right, base):
            # No conflict, but recorded: the right branch wrote the key too, and later in lineage order. Without the
            # left value in the join's patch, `blame` and later joins would take the right one.
            self.winners[path], self.resolved[path] = writers[0], left
            return left
        value = self._resolver(lambda *_: writers)(path, base, left, right)
        if value is not DELETE and value_at_key(keyed, keyed.make_update({path[1]: value}), path[1]) is DELETE:
            policy = self.conflicts[path].policy
            wrong = f"merge policy {policy!r} returned a value for {path!r} without the id {path[1]!r}: keep the id"
            raise self._failed(NodeOutputError(wrong))
        if value is not DELETE and value is not left and value is not right:
            value = self._valid_answer(keyed, path, value)
        return value

    def _valid_answer(self, keyed: Keyed, path: KeyPath, value: Any) -> Any:
        """A value that a policy made for a key, validated like an update of a node."""
        try:
            valid = self.schema.valid_update(path[0], keyed.make_update({path[1]: value}))
        except Exception as error:
            raise self._failed(error, path[0]) from error
        valid = value_at_key(keyed, valid, path[1])
        self.resolved[path] = valid
        self.conflicts[path] = replace(self.conflicts[path], value=thaw(valid))
        return valid

    def _is_key(self, path: KeyPath) -> bool:
        """Return whether a path is a key of a keyed field, and not a path into a plain value."""
        return len(path) == 2 and self._keyed(path[0]) is not None

    def _sets_key(self, item: ReachableCommit, path: KeyPath) -> bool:
        """Return whether a commit set a key of a keyed field, or the whole field."""
        field, key = path
        written = field in self.log[item.log_index].commit.patch
        return written and (bool(self._resets([item], field)) or key in dict(self._parts_of(field, item)))

    # --- live fields

    def _live_updates(self) -> dict[str, list[tuple[int, Any]]]:
        """By live field, the updates posted after the base, each once, with their numbers of arrival.

        In an isolated run updates have no such numbers: then the field is joined like any other.
        """
        found: dict[str, list[tuple[int, Any]]] = {}
        for item in self.commits:
            commit = self.log[item.log_index].commit
            if commit.live is not None:
                for field, seqs in commit.live.posts.items():
                    updates = each_update(commit.patch[field])
                    found.setdefault(field, []).extend(zip(seqs, updates, strict=True))
        return found

    def _fold_by_arrival(self, field: str, updates: list[tuple[int, Any]]) -> Any:
        value = self.base.state.raw(field, DELETE)
        plain = self.schema.reducer(field) is None
        for _, update in sorted(updates, key=lambda numbered: numbered[0]):
            value = apply_value(value, update) if plain else self._replay(field, value, update)
        return value

    # --- conflicts, and the commits that won them

    def _resolver(self, find_writers: FindWriters) -> Resolve:
        """A function that asks the policy about one conflict and records what it decided."""

        def resolve(path: KeyPath, base: Any, left: Any, right: Any) -> Any:
            left_index, right_index = find_writers(path, left, right)
            policy, decide = self.policies(path)
            conflict = Conflict(path, base, left, right, self._author(left_index), self._author(right_index))
            known = self.conflicts.get(path)
            values = known.values if known else ()
            # With three branches or more, the left value may be the result of an earlier conflict of this join at the
            # path: then its sides are listed already. It is another value if a branch in between changed the path
            # without a conflict.
            if known is None or not same(self.resolved[path], left):
                values = (*values, (conflict.left_author, thaw(left)))
            values = (*values, (conflict.right_author, thaw(right)))
            record = MergedConflict(self.node, path, thaw(base), values, policy)
            try:
                value = decide(conflict)
            except Exception as error:
                self.conflicts[path] = record
                raise self._failed(error) from error
            winner = right_index if value is right else left_index if value is left else self.index
            self.winners[path] = winner
            self.resolved[path] = value
            self.conflicts[path] = replace(record, value=thaw(value), winner=self._author(winner))
            return value

        return resolve

    def _writers(self, left_last: ReachableCommit, right_writes: list[ReachableCommit], bit: int) -> FindWriters:
        """Finds the writers of the two sides of a conflict; the last writers of the whole field where none is known."""

        def find(path: KeyPath, left: Any, right: Any) -> tuple[int, int]:
            ours = self.winners.get(path)
            if ours is None or not same(self.resolved[path], left):
                ours = self._left_writer(bit, path, left)
            theirs = self._writers_apart((1 << bit) - 1).last([self.heads[bit]], path, right)
            return (
                left_last.log_index if ours is None else ours,
                right_writes[-1].log_index if theirs is None else theirs,
            )

        return find

    def _left_writer(self, bit: int, path: KeyPath, left: Any) -> int | None:
        """The commit that wrote the value that the branches before `bit` hold at a path; None if it is not known."""
        # Without crossings the writer is a commit of one branch alone: the last branch that holds the value.
        writers = self._writers_apart(1 << bit)
        for other in () if self.crossed else reversed(range(bit)):
            if same(value_at(self.log[self.heads[other]].state, path), left):
                writer = writers.last([self.heads[other]], path, left)
                if writer is not None:
                    return writer
        return writers.last(self.heads[:bit], path, left)

    def _writers_apart(self, mask: int) -> Writers:
        """The writers of values since the base, in commits that no branch of a mask contains."""
        mask = mask if self.crossed else 0  # without crossings, a branch has none of the commits of another one
        if mask not in self.writers:
            shared = [item.log_index for item in self.commits if item.mask & mask]
            self.writers[mask] = Writers(self.log, [self.base_index, *shared])
        return self.writers[mask]

    def _credited(self, item: ReachableCommit, path: KeyPath) -> int:
        """The commit that a path of `item` is credited to: `item` itself, or if it is a join, the winner there."""
        return self.log[item.log_index].winners.get(path, item.log_index)

    def _author(self, index: int) -> str:
        return self.author if index == self.index else self.log[index].commit.node

    def _drop_stale_resolutions(self, state: ImmutableState) -> None:
        """Drops resolutions that a later branch has since overwritten, in favour of that branch's commit.

        Such a branch descends from the winner, so its different value has raised no new conflict.
        """
        paths = set(self.winners)
        for path, value in self.resolved.items():
            final = value_in(self.schema, state, path)
            if same(final, value) or any(path[:length] in paths for length in range(1, len(path))):
                continue  # as it was decided, or decided again by a conflict above the path
            at = path
            if self._is_key(path):
                winner = self._credited([item for item in self.commits if self._sets_key(item, path)][-1], path)
            else:
                holders = [head for head in self.heads if same(value_at(self.log[head].state, path), final)]
                writer = self._writers_apart(0).last(holders, path, final)
                winner = self.index if writer is None else writer
                at = existing_prefix(state, path)
            del self.winners[path]
            self.winners[at] = winner
            author, record = self._author(winner), self.conflicts.get(path)
            if record is None:  # there was no conflict: one side had restored the base's value
                continue
            kept = thaw(final.value if isinstance(final, Obstacle) else final)
            self.conflicts[path] = replace(record, values=(*record.values, (author, kept)), value=kept, winner=author)

    def _failed(self, error: Exception, field: str = "") -> JoinFailedError:
        """The failure of the join by an error, which is annotated with the node and the writers of the field."""
        wrote = [self.log[item.log_index].commit for item in self.commits] if field else []
        nodes = [commit.node for commit in wrote if field in commit.patch]
        authors = dict.fromkeys(node for node in nodes if not node.startswith("join:"))
        about = f", where {', '.join(authors)} had written {field!r}" if authors else ""
        annotate(error, f"raised when branches joined at node {self.node!r}{about}")
        return JoinFailedError(error, tuple(self.conflicts.values()))

    # --- what the join commits

    def _patch(self, state: ImmutableState) -> dict[str, Any]:
        """The resolved values as a patch. Of nested paths the outer one counts: it was decided later."""
        patch: dict[str, Any] = {}
        by_key: dict[str, dict[Any, Any]] = {}
        for path in self.winners:
            if any(path[:length] in self.winners for length in range(1, len(path))):
                continue
            if self._is_key(path):
                by_key.setdefault(path[0], {})[path[1]] = value_in(self.schema, state, path)
                continue
            value = value_at(state, path)
            inner: dict[Any, Any] = patch
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            # A patch merges mappings, deletes where it says None, and folds by a reducer: none of that is meant here.
            whole = isinstance(value, Mapping) or value is None or self.schema.reducer(path[0]) is not None
            inner[path[-1]] = Replace(value) if whole and value is not DELETE else value
        for field, values in by_key.items():
            keyed = self._keyed(field)
            assert keyed is not None
            if any(value is DELETE for value in values.values()):  # no update removes a key
                patch[field] = Replace(state.raw(field))
            else:
                patch[field] = keyed.make_update(values)
        return patch


def _in_order_of(state: ImmutableState, touched: dict[str, list[ReachableCommit]]) -> list[str]:
    """The fields of `touched` in the order of a state, in which they join the merged state; deleted ones last."""
    if len(touched) == 1:
        return list(touched)
    return [key for key in state if key in touched] + [key for key in touched if key not in state]


def _last_not_in(items: Sequence[ReachableCommit], bit: int) -> ReachableCommit | None:
    """The last of some commits that branch `bit` does not contain."""
    return next((item for item in reversed(items) if not item.mask >> bit & 1), None)
