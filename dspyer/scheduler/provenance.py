"""The writers of parts and values, and the parts that a node has not seen: derived from the commits, stored nowhere.

A field with a reducer consists of *parts*: the items of a list, the keys of a mapping, the amounts of a sum. Each part
belongs to the commit whose update brought it, as `git blame` gives each line to a commit.

A node has seen what its own last commits in the lineage contain; everything else that its branch contains is new to it.
That is git's `rev-list branch ^seen`, and joins compare branches in the same way. So there is no read cursor that
a crash could lose, a retry advance twice, or a join have to merge.

The parts of a field after a commit are an index, made from the index after the commit before. An index is a persistent
value, which shares with the one before what did not change: a view that asks for the last parts, or for those of one
author, costs what it returns and not the length of the history.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from heapq import merge
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from dspyer.events import Commit
from dspyer.ids import Address, prefix_at
from dspyer.message_list import TURN
from dspyer.patch import DELETE, Replace, each_update, resets
from dspyer.reducers import Reducer, Updates, add_messages
from dspyer.scheduler.lineage import (
    Log,
    LogEntry,
    ReachableCommit,
    ancestry,
    by_branch,
    commits_lacking,
    merge_base,
    unshared_commits,
    value_at,
)
from dspyer.scheduler.topology import START
from dspyer.schema.fields import Field
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, FrozenList
from dspyer.values.persistent import PersistentMap, SparseVector
from dspyer.values.scalars import KeyPath


class FieldPart(NamedTuple):
    """One part of a field.

    Attributes:
        value: the frozen item, value of a key, or amount.
        key: the key in a mapping, the id of a message, None elsewhere.
        author: the node that brought it; `"START"` for inputs and defaults, `""` if it is not known.
        commit: the global id of the commit; where a join kept the value of a branch, of the commit that won.
        also_from: global ids of commits of other branches that brought the same.
        owner: whose it is in a view: its author, or for the result of a tool, the author of the call.
        slot: its position in the index of the field, -1 for none.
        call: the slot of the tool call that it is a result of, -1 for none.
    """

    value: Any
    key: Any
    author: str
    commit: str
    also_from: tuple[str, ...] = ()
    owner: str = ""
    slot: int = -1
    call: int = -1


class FieldParts(NamedTuple):
    """The parts of a field.

    Attributes:
        kind: what they make up: `"items"`, `"messages"`, `"keys"`, `"members"` or `"amount"`.
        parts: in the order in which they were folded; of a mapping, in the order in which its keys were last written.
    """

    kind: str
    parts: tuple[FieldPart, ...]


def unattributed_parts(value: Any, kind: str = "items") -> FieldParts:
    """The parts of a frozen value whose authors are not known; `kind` is used where the value does not show it."""
    if kind == "messages" and isinstance(value, FrozenList):  # the results of tools belong to their calls
        log = PriorHistory.of_state(ImmutableState({"": value}), "").log
        return FieldParts(kind, tuple(FieldIndexes(IndexedField("", add_messages)).at(log, 0).parts))
    kind = "keys" if isinstance(value, FrozenDict) else kind
    return FieldParts(kind, tuple([FieldPart(part, key, "", "") for key, part in _parts_of_value(value)]))


def _ids_of_calls(message: FrozenDict[Any, Any]) -> list[str]:
    """The ids of the tool calls of a message."""
    calls = message.raw("tool_calls", None)
    found = [
        call for call in (calls.raw_items() if isinstance(calls, FrozenList) else ()) if isinstance(call, FrozenDict)
    ]
    return [call.raw("id") for call in found if isinstance(call.raw("id", None), str)]


# --- the index of a field

_NONE: PersistentMap[Any, Any] = PersistentMap()
_NO_PARTS: SparseVector[FieldPart] = SparseVector()


class IndexedField(NamedTuple):
    """A field and what is needed to index it.

    Attributes:
        field: its name.
        reducer: its reducer, one that has parts.
        default: what a deletion leaves, frozen; `DELETE` for nothing.
        whole: whether the first commit of the run holds whole values: the inputs of a run that continues no other.
        prefix: put before the ids of the run's commits, it makes them global.
        id_prefixes: the prefixes for commits copied from other runs, as pairs (end, prefix) in order: the prefix is
            for the commits before index `end`.
        live: whether posts are folded in the order in which they arrived.
        limited: whether a limit drops the oldest parts.
    """

    field: str
    reducer: Reducer
    default: Any = DELETE
    whole: bool = False
    prefix: str = ""
    id_prefixes: tuple[tuple[int, str], ...] = ()
    live: bool = False
    limited: bool = False

    @classmethod
    def of(
        cls,
        field: Field | None,
        whole: bool = False,
        prefix: str = "",
        id_prefixes: tuple[tuple[int, str], ...] = (),
    ) -> IndexedField | None:
        """The indexed form of a field of a schema; None if it has no parts."""
        if field is None or field.reducer is None or field.reducer.parts is None:
            return None
        limited = field.limit is not None and field.limit.full == "drop_oldest"
        live = field.live is not None
        return cls(field.name, field.reducer, field.fixed_default, whole, prefix, id_prefixes, live, limited)

    def global_id(self, log: Log, index: int) -> str:
        """The id of a commit among all runs of a thread. Earlier runs' commits (index below 0) have it already."""
        local = log[index].commit.id
        if index < 0:
            return local
        return prefix_at(index, self.id_prefixes, self.prefix) + local

    def updates(self, log: Log, at: int) -> Iterator[tuple[bool, Iterable[tuple[Any, Any]]]]:
        """By update of a commit, whether it discards the parts before it, and its own parts as (key, part)."""
        for number, update in enumerate(each_update(log[at].commit.patch[self.field])):
            yield self.parts_of_update(update, whole=self.whole and at == 0 and number == 0)  # an input of the run

    def parts_of_update(self, update: Any, whole: bool = False) -> tuple[bool, Iterable[tuple[Any, Any]]]:
        """Read of an update, or a `whole` value, if it discards the parts before it, and its parts as (key, part)."""
        if whole or update is DELETE or isinstance(update, Replace):
            value = self.default if update is DELETE else update.value if isinstance(update, Replace) else update
            return True, _parts_of_value(value if value is DELETE else freeze(value), self.reducer)
        assert self.reducer.parts is not None  # only fields with parts have an index
        return False, self.reducer.parts(update)


class FieldIndex(NamedTuple):
    """The parts of a field after one commit.

    Attributes:
        parts: the parts by slot, in their order.
        next_slot: the slot of the next part.
        owners: the parts of each owner.
        keys: the slot of each key.
        sums: of amounts, the sum of each author.
        calls: of messages, the slot of the last message with a tool call, by the id of the call.
        results: of messages, the slots of tool results, by the slot of the call.
    """

    parts: SparseVector[FieldPart] = SparseVector()
    next_slot: int = 0
    owners: PersistentMap[str, SparseVector[FieldPart]] = _NONE
    keys: PersistentMap[Any, int] = _NONE
    sums: PersistentMap[str, Any] = _NONE
    calls: PersistentMap[str, int] = _NONE
    results: PersistentMap[int, tuple[int, ...]] = _NONE

    def backwards(self, owners: Iterable[str] | None = None) -> Iterator[FieldPart]:
        """The parts from the last to the first, of some owners or of all."""
        if owners is None:
            return self.parts.backwards()
        of_owners = [parts for parts in (self.owners.get(owner) for owner in owners) if parts]
        walks = [parts.backwards() for parts in of_owners]
        return walks[0] if len(walks) == 1 else merge(*walks, key=attrgetter("slot"), reverse=True)

    def item(self, of: IndexedField, value: Any, key: Any) -> FieldPart | None:
        """The part with a key, or at a position in the frozen list that the parts make up, also from its end."""
        if isinstance(value, FrozenList) and not (isinstance(key, str) and key in self.keys):
            at, length = _position(key), len(value)
            if at is None or not -length <= at < length:
                return None
            ((key, _),) = _parts_of_value(FrozenList((value.raw(at),)), of.reducer)
            if key is None:  # the slots of items without keys are without gaps: a limit drops the first ones
                return self.parts.get(self.next_slot - length + at % length)
        return self.parts.get(self.keys.get(key, self.next_slot))


def _position(key: Any) -> int | None:
    """The position in a list that a key of a path names, `3` or `"3"`; None if it names none."""
    if isinstance(key, str) and key.removeprefix("-").isdecimal():
        return int(key)
    return key if isinstance(key, int) else None


EMPTY_INDEX = FieldIndex()


class FieldIndexes:
    """The indexes of one field after the commits of a run. Not thread-safe.

    An index is kept where it may be needed again: after the last commit of each branch that was asked for, where
    branches part, and before the first commit of the log. Others are made again from the log.
    """

    def __init__(self, of: IndexedField) -> None:
        self.of = of
        self._known: dict[int, FieldIndex] = {}

    def begin(self, at: int, index: FieldIndex) -> None:
        """Sets the index after a commit, -1 for what comes before the log."""
        self._known[at] = index

    def at(self, log: Log, head: int) -> FieldIndex:
        """The index after a commit, given its log index."""
        known = self._known
        chain: list[int] = []  # the commits back to the last known index, along first parents
        here: int | None = head
        while here is not None and here not in known:
            chain.append(here)
            here = next(iter(log[here].parents), None)
        index = EMPTY_INDEX if here is None else known[here]
        for here in reversed(chain):
            entry = log[here]
            index = self._after(log, here, entry, index)
            # The join of a live field starts again from its merge base, which may be any commit: all are kept.
            if _forks(entry) or self.of.live:
                known[here] = index
            for parent in entry.parents:
                if parent in known and parent >= 0 and not self.of.live and not _forks(log[parent]):
                    del known[parent]  # its only child has an index now: nothing asks for this one again
        known[head] = index
        return index

    def _after(self, log: Log, at: int, entry: LogEntry, index: FieldIndex) -> FieldIndex:
        """The index after a commit, given that after its first parent."""
        field, parents = self.of.field, entry.parents
        touched = field in entry.commit.patch
        if len(parents) < 2 and not touched:
            return index
        value = entry.state.raw(field, DELETE)
        is_chosen = entry.winners.get((field,), at) != at
        if is_chosen:  # the value of a branch, or of several that were folded: its parts stay whose they are
            for parent in parents:
                if same(log[parent].state.raw(field, DELETE), value):
                    return self.at(log, parent)
        builder = _IndexBuilder(self.of, index)
        if len(parents) > 1:
            builder = self._joined(log, at, parents, builder)
        if touched and not (is_chosen and builder.holds(value)):
            builder.add_commit(log, at)
        if self.of.limited:
            single = len(parents) < 2 and not isinstance(entry.commit.patch[field], Updates)
            builder.keep(value, single)
        return builder.index()

    def _joined(self, log: Log, at: int, parents: tuple[int, ...], builder: _IndexBuilder) -> _IndexBuilder:
        """The parts of the joined branches, folded as the join folded them. Its own patch is not applied yet."""
        field = self.of.field
        # Only within one run: posts are numbered by run.
        if self.of.live and len({Address.parse(log[one].commit.id).run for one in (at, *parents)}) == 1:
            base, commits = merge_base(log, parents)
            writes = [item.log_index for item in commits if field in log[item.log_index].commit.patch]
            if any(log[one].commit.live is not None for one in writes):
                builder = _IndexBuilder(self.of, self.at(log, base))
                builder.add_by_arrival(log, writes)
                return builder
        writes_apart = [item for item in unshared_commits(log, parents) if field in log[item.log_index].commit.patch]
        resetting = {item.log_index for item in writes_apart if resets(log[item.log_index].commit.patch[field])}
        before: list[ReachableCommit] = []
        for bit, items in enumerate(by_branch(writes_apart, len(parents))):  # as in `Join`
            left_only = [item for item in before if not item.mask >> bit & 1]
            reset = resetting and any(item.log_index in resetting for item in (*left_only, *items))
            # The parts of the first parent are in the index already. With a reset, either both sides were the same, or
            # the join has decided by a policy: then its patch, which comes next, holds the result.
            if bit and not (left_only and reset):
                for item in items:
                    entry = log[item.log_index]
                    if len(entry.parents) > 1 and item.log_index in resetting:  # see `_after`
                        builder = _IndexBuilder(self.of, self.at(log, item.log_index))
                    else:
                        builder.add_commit(log, item.log_index, parallel=True)
            before += items
        return builder


class _IndexBuilder:
    """A mutable copy of an index. `parallel` updates come from another branch than what the index holds."""

    def __init__(self, of: IndexedField, index: FieldIndex) -> None:
        self._of = of
        self._kind = of.reducer.kind
        self._load(index)

    def _load(self, index: FieldIndex) -> None:
        self.parts, self.next_slot, self.owners, self.keys, self.sums, self.calls, self.results = index

    def index(self) -> FieldIndex:
        """The index as it is now."""
        return FieldIndex(self.parts, self.next_slot, self.owners, self.keys, self.sums, self.calls, self.results)

    def holds(self, value: Any) -> bool:
        """Return whether the parts make up a value."""
        found = [item for _, item in _parts_of_value(value, self._of.reducer)]
        return len(found) == len(self.parts) and all(
            same(part.value, item) for part, item in zip(self.parts, found, strict=True)
        )

    def add_commit(self, log: Log, at: int, *, parallel: bool = False) -> None:
        """Adds the parts of a commit's updates."""
        for reset, parts in self._of.updates(log, at):
            self._add(log, at, reset, parts, parallel)

    def add_by_arrival(self, log: Log, commits: Iterable[int]) -> None:
        """Adds the parts of posts to a live field, in the order in which they arrived."""
        found: list[tuple[int, int, Any]] = []
        latest = 0
        for at in commits:
            commit = log[at].commit
            seqs = commit.live.posts.get(self._of.field, ()) if commit.live is not None else ()
            for number, update in enumerate(each_update(commit.patch[self._of.field])):
                seq = seqs[number] if seqs else latest  # what was no post (a manual commit) follows those before it
                latest = max(latest, seq)
                found.append((seq, at, update))
        found.sort(key=itemgetter(0))
        for _, at, update in found:
            self._add(log, at, *self._of.parts_of_update(update), parallel=True)

    def _add(self, log: Log, at: int, reset: bool, found: Iterable[tuple[Any, Any]], parallel: bool) -> None:
        of = self._of
        winners, this_commit = log[at].winners, of.global_id(log, at)
        # A person who edits a conversation gives all messages, and has changed some.
        edited = self._kind == "messages" and log[at].commit.node != START
        before = {part.key: part for part in self.parts} if reset and (winners or edited) else {}
        if reset:
            self._load(EMPTY_INDEX)
        author, commit = log[at].commit, this_commit
        for key, value in found:
            old = None if key is None else before.get(key)
            if old is not None and same(old.value, value):  # the join replaced the field, and this part is unchanged
                self._put(old._replace(slot=self.next_slot))
                continue
            if winners:  # a node that has seen the commit that won has seen this value
                winner = winners.get((of.field, key), winners.get((of.field,), at))
                author, commit = log[winner].commit, of.global_id(log, winner)
            slot = None if key is None else self.keys.get(key)
            if slot is None:
                self._put(FieldPart(value, key, author.node, commit, (), author.node, self.next_slot))
            else:
                self._set_key(slot, value, author, commit, parallel)

    def _set_key(self, slot: int, value: Any, author: Commit, commit: str, parallel: bool) -> None:
        """Sets the value of a key that is there already, as the reducer of the field does."""
        old = self.parts.get(slot)
        assert old is not None
        if self._kind == "keys":  # the order is that of the last writes
            self._drop(old)
            self._put(FieldPart(value, old.key, author.node, commit, (), author.node, self.next_slot))
        elif self._kind == "members" or self._of.reducer.append_only or same(old.value, value):
            if parallel:  # the commits of both branches brought the part: a node that has seen one of them has seen it
                self._drop(old, forget_key=False)
                self._put(old._replace(also_from=(*old.also_from, commit)))
        else:  # a message with a known id: changed in its place
            self._drop(old, forget_key=False)
            self._put(FieldPart(value, old.key, author.node, commit, (), author.node, slot))

    def _put(self, part: FieldPart) -> None:
        slot = part.slot
        if self._kind == "messages":
            part = self._with_call(part)
        if part.key is not None:
            self.keys = self.keys.set(part.key, slot)
        self.parts = self.parts.set(slot, part)
        self.owners = self.owners.set(part.owner, self.owners.get(part.owner, _NO_PARTS).set(slot, part))
        self.next_slot = max(self.next_slot, slot + 1)
        if self._kind == "amount":
            sums, author = self.sums, part.author
            self.sums = sums.set(author, sums[author] + part.value if author in sums else part.value)

    def _with_call(self, part: FieldPart) -> FieldPart:
        """A message with its author and, for the result of a tool, its call; its own calls are recorded.

        A turn among the inputs of a run belongs to the node that it names: a nested graph that runs again gets the
        earlier turns of its own nodes as inputs.
        """
        value = part.value
        if not isinstance(value, FrozenDict):
            return part
        named = value.raw("name", None)
        if part.author == START and isinstance(named, str) and isinstance(value.raw(TURN, None), FrozenDict):
            part = part._replace(author=named, owner=named)
        for call_id in _ids_of_calls(value):
            self.calls = self.calls.set(call_id, part.slot)
        if value.raw("role", None) != "tool":
            return part
        called = self.calls.get(value.raw("tool_call_id", None), -1)
        call_part = self.parts.get(called) if called >= 0 else None
        if call_part is None:
            return part
        if part.slot not in self.results.get(called, ()):
            self.results = self.results.set(called, (*self.results.get(called, ()), part.slot))
        return part._replace(owner=call_part.owner, call=called)

    def _drop(self, part: FieldPart, *, forget_key: bool = True) -> None:
        self.parts = self.parts.discard(part.slot)
        self.owners = self.owners.set(part.owner, self.owners[part.owner].discard(part.slot))
        if forget_key and part.key is not None:
            self.keys = self.keys.discard(part.key)

    def keep(self, value: Any, single: bool) -> None:
        """Drops the parts that a limit has dropped from the frozen value of the field.

        `single`: whether the commit made one update. A limit drops no part that the update itself brought, so the
        dropped parts are then the first ones.
        """
        held = (
            [] if single or self._kind not in ("keys", "messages") else list(_parts_of_value(value, self._of.reducer))
        )
        if not held:
            count = 0 if value is DELETE or value is None else len(value)
            for part in list(itertools.islice(self.parts, max(len(self.parts) - count, 0))):
                self._drop(part)
        elif [key for key, _ in held] != [part.key for part in self.parts]:
            # One update dropped a key and a later one brought it again: the parts are ordered as in the value.
            parts = {part.key: part for part in self.parts}
            self._load(EMPTY_INDEX)
            for key, item in held:
                self._put((parts.get(key) or FieldPart(item, key, "", ""))._replace(slot=self.next_slot))


def _parts_of_value(value: Any, reducer: Reducer | None = None) -> Iterable[tuple[Any, Any]]:
    """The parts of a whole frozen value, as (key, part); none of `DELETE` and None."""
    if value is DELETE or value is None:
        return ()
    if reducer is not None and reducer.parts is not None and reducer.kind in ("members", "messages"):
        return reducer.parts(value)
    if isinstance(value, FrozenDict):
        return value.raw_items()
    if isinstance(value, FrozenList):
        return [(None, item) for item in value.raw_items()]
    if isinstance(value, AbstractSet):
        return [(None, item) for item in sorted(value, key=repr)]  # the order of a set differs between processes
    return [(None, item) for item in value] if isinstance(value, tuple) else ((None, value),)


def _forks(entry: LogEntry) -> bool:
    return len(entry.commit.route) > 1


# --- what a node has not seen


def unseen_commits(log: Log, heads: Sequence[int], reader: str) -> set[int]:
    """The commits that `heads` contain and no commit of the node `reader` among them does."""
    return set(commits_lacking(log, dict.fromkeys(heads, 0), 1, lambda index: log[index].commit.node == reader))


def last_visits(log: Log, unseen: set[int], heads: Sequence[int], reader: str) -> list[int]:
    """The last commits of a node that `heads` contain: none of them contains another one.

    `unseen` are the commits that the node has not seen. Several are last if they were made in parallel branches.
    """
    edge = {parent for index in unseen for parent in log[index].parents} | set(heads)
    found = sorted([index for index in edge - unseen if log[index].commit.node == reader])
    if len(found) < 2:
        return found
    near = range(found[0], found[-1] + 1)  # ancestors below the first visit cannot contain another one
    contained = {index for visit in found for index in ancestry(log, log[visit].parents, near)}
    return [index for index in found if index not in contained]


class UnseenParts(NamedTuple):
    """Parts of a field that a node has not seen: the global ids of the commits, and the parts in their order."""

    commits: AbstractSet[str]
    parts: list[FieldPart]


def unseen_parts(index: FieldIndex, log: Log, unseen: AbstractSet[int], of: IndexedField) -> UnseenParts:
    """The parts that `unseen` commits have brought, given the index at the node's branch.

    These parts are looked up, not searched for among all parts: the cost grows with their number alone.
    """
    commits = {of.global_id(log, at) for at in unseen}
    found: dict[int, FieldPart] = {}
    unkeyed = 0
    for at in unseen:
        updates = of.updates(log, at) if of.field in log[at].commit.patch else ()
        for key, _ in itertools.chain.from_iterable(parts for _, parts in updates):
            part = None if key is None else index.parts.get(index.keys.get(key, index.next_slot))
            if part is not None and is_new(part, commits):
                found[part.slot] = part
            unkeyed += key is None
    # Parts without keys are found from the end, until all that these commits brought have been found.
    for part in index.backwards() if unkeyed else ():
        if part.key is None and part.commit in commits:
            found[part.slot] = part
            unkeyed -= 1
            if not unkeyed:
                break
    calls = {slot if slot in index.results else found[slot].call for slot in found}
    for call in calls - {-1}:  # a call and its results are shown together
        for part in map(index.parts.get, (call, *index.results.get(call, ()))):
            if part is not None:
                found[part.slot] = part
    return UnseenParts(commits, [found[slot] for slot in sorted(found)])


def is_new(part: FieldPart, unseen: AbstractSet[str]) -> bool:
    """Return whether a part was brought by unseen commits only, given their global ids."""
    return part.commit in unseen and not any(commit not in unseen for commit in part.also_from)


# --- the runs before a run


class PriorHistory(NamedTuple):
    """The runs before a run.

    Attributes:
        log: their commits.
        heads: the log indexes of the last commits that all of their branches shared.
        field_index: the index after them of the field that was asked for; None if it must be made from the log.
    """

    log: Log
    heads: tuple[int, ...]
    field_index: FieldIndex | None = None

    @classmethod
    def of_state(cls, state: ImmutableState, author: str) -> PriorHistory:
        """A state of which only the author is known, as a history of one commit."""
        patch = {name: Replace(value) for name, value in state.raw_items()}
        return cls([LogEntry(Commit("", None, author, (), 1, 0, patch, ()), state, (), None)], (0,))


class ThreadLog:
    """The commits of a run, and at indexes below 0 those of the runs before it, which are loaded when first needed."""

    def __init__(self, log: Log, prior: Callable[[], PriorHistory]) -> None:
        self._log = log
        self._prior = prior

    def __len__(self) -> int:
        return len(self._log)

    def __getitem__(self, index: int, /) -> LogEntry:
        if index > 0:
            return self._log[index]
        prior = self._prior()
        count = len(prior.log)
        if not index:  # the first commit descends from the prior runs
            return self._log[0]._replace(parents=tuple([head - count for head in prior.heads]))
        entry = prior.log[index + count]
        winners = {path: winner - count for path, winner in entry.winners.items()}
        return entry._replace(parents=tuple([parent - count for parent in entry.parents]), winners=winners)


# --- who wrote each value: an index of the log by path, folded commit by commit when it is first asked for

# It answers as `git blame` does. A value belongs to the last commit that wrote at, in or above its path. Where branches
# joined, the branches that hold the joined value count: one that wrote a value and later put the old one back has
# changed nothing. If several hold it, the last of those that have written since they parted counts, in the order of the
# branches. A value that a conflict decided belongs to the commit that won.
#
# The index after a commit is a tree that shares with the one before what the commit did not write. Of a field with a
# reducer it has the parts too: an item belongs to the commit that brought it or last changed it.


class Written(NamedTuple):
    """The writers of a value, and the values in it.

    Attributes:
        at: the log index of the commit that last wrote at, in or above the path; -1 if none did.
        writer: the log index of the commit that the value belongs to: `at`, or of a decided conflict the winner.
        made: the log index of the commit that has made this entry of the index: `at`, or a join of the values in it.
        keys: by key, of what was written apart since the value was last written as a whole.
        rest: of all other keys; None if nothing was written apart: they are as the value.
        sides: of a joined value, those of the branches that hold it or, if none does, of those that changed it; of a
            decided conflict, that of the winner.
        depth: the length of the path that the sides are of. As `rest`, an entry stands for paths below that one too.
    """

    at: int = -1
    writer: int | None = None
    made: int = -1
    keys: PersistentMap[Any, Written] = PersistentMap()
    rest: Written | None = None
    sides: tuple[Written, ...] = ()
    depth: int = 0

    def under(self, *path: Any) -> Written:
        """The writers of what is at a path in the value."""
        found = self
        for key in path:
            found = found.keys.get(key) or found.rest or found
        return found


NOT_WRITTEN = Written()

FindParts = Callable[[str, int], tuple[IndexedField, FieldIndex] | None]
"""Finds the parts of a field after a commit of the log; None if it has none."""


class Writers:
    """The index of a log. Safe for use by several threads at once.

    Args:
        log: the commits.
        before: commits whose writes do not count, and so do those that they descend from.
        parts: finds the parts of a field; None if they are not asked for.
    """

    def __init__(self, log: Log, before: Iterable[int] = (), parts: FindParts | None = None) -> None:
        self._log = log
        self._before = tuple(before)
        self._parts = parts
        self._known = dict.fromkeys(self._before, NOT_WRITTEN)
        self._by_id: Mapping[str, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:  # it is made again
        return Writers, (self._log, self._before, self._parts)

    def of(self, index: int, path: KeyPath) -> int | None:
        """The commit that what is at a path after a commit belongs to; None if no commit that counts has written it."""
        item = self.item(index, path)
        if item is None:
            return self.at(index).under(*path).writer
        place = self._places(item[0]).get(item[1].commit)
        return None if place in self._before else place

    def item(self, index: int, path: KeyPath) -> tuple[IndexedField, FieldPart] | None:
        """The item of a list, message or member that a path leads to or into; None if it leads to none."""
        found = self._parts(path[0], index) if self._parts is not None and len(path) > 1 else None
        if found is None or found[0].reducer.kind in ("keys", "amount"):
            return None
        part = found[1].item(found[0], self._log[index].state.raw(path[0], None), path[1])
        return None if part is None else (found[0], part)

    def of_parts(self, of: IndexedField, parts: Iterable[FieldPart]) -> set[int]:
        """The commits of the log that brought parts of a field."""
        places = self._places(of)
        ids = {commit for part in parts for commit in (part.commit, *part.also_from)}
        return {places[commit] for commit in ids if commit in places}

    def commits_behind(self, field: str, index: int, folds: bool) -> set[int]:
        """All commits that contributed to what a field holds after a commit.

        Of parts these are the commits that brought them, of a mapping those of its keys. `folds`: whether a reducer has
        made one value of the updates; then all those since it was last replaced count.
        """
        parts = None if self._parts is None else self._parts(field, index)
        if parts is not None and (brought := self.of_parts(parts[0], parts[1].parts)):
            return brought
        value, found = self._log[index].state.raw(field, None), set[int]()
        path: KeyPath = (field,)
        stack, seen = [(self.at(index).under(field), path, value)], set[tuple[int, KeyPath]]()
        while stack:
            one, path, value = stack.pop()
            if (id(one), path) in seen:
                continue
            seen.add((id(one), path))
            if isinstance(value, FrozenDict) and one.rest is not None and value and not folds:
                inside = [key for key in one.keys if key in value]
                stack += [(one.keys[key], (*path, key), value.raw(key)) for key in inside]
                if len(inside) == len(value):
                    continue
                if one.rest.sides:  # several commits may have written the other keys
                    stack += [(one.rest, (*path, key), value.raw(key)) for key in value if key not in one.keys]
                elif one.rest.writer is not None:
                    found.add(one.rest.writer)
            elif one.sides:
                stack += [(side.under(*path[one.depth :]), path, value) for side in one.sides]
            elif one.writer is not None:
                found.add(one.writer)
                entry = self._log[one.at]
                if folds and not resets(entry.commit.patch[field]):
                    stack += [(self.at(parent).under(field), path, value) for parent in entry.parents]
        return found

    def at(self, index: int) -> Written:
        """The writers of the state after a commit."""
        known, stack = self._known, [index]
        while stack:
            here = stack.pop()
            if here in known:
                continue
            entry = self._log[here]
            missing = [parent for parent in entry.parents if parent not in known]
            if missing:
                stack += [here, *missing]
            else:  # another thread may have made it meanwhile: entries are compared by identity, so the first one stays
                known.setdefault(here, self._after(here, entry))
        return known[index]

    def last(self, heads: Sequence[int], path: KeyPath, value: Any) -> int | None:
        """The commit to which a value at a path belongs that branches hold together; None if no commit wrote it."""
        written = [(self.at(head).under(*path), value_at(self._log[head].state, path)) for head in heads]
        written = [(one, held) for one, held in written if one.writer is not None]
        if not written:
            return None
        trees, values = zip(*written, strict=True)
        return _Branches(self._log, heads, -1).holding(trees, values, value)[-1].writer

    def _places(self, of: IndexedField) -> Mapping[str, int]:
        """The log index of each commit by its global id, as parts have it."""
        if not self._by_id:
            self._by_id = {of.global_id(self._log, at): at for at in range(len(self._log))}
        return self._by_id

    def _after(self, index: int, entry: LogEntry) -> Written:
        parents = [self._known[parent] for parent in entry.parents]
        if len(parents) > 1:
            states = [self._log[parent].state for parent in entry.parents]
            joined = _Branches(self._log, entry.parents, index).joined(parents, states, entry.state, 0)
            return self._decided(index, entry, joined, entry.commit.patch, (), index)
        return _updated(parents[0] if parents else NOT_WRITTEN, entry.commit.patch, index)

    def _decided(
        self, index: int, entry: LogEntry, joined: Written, update: Any, path: KeyPath, winner: int
    ) -> Written:
        """The writers of a joined value at a path after what the join itself has decided."""
        winner = entry.winners.get(path, winner)
        if isinstance(update, Mapping):
            keys = joined.keys
            for key, part in _raw_items(update):
                keys = keys.set(key, self._decided(index, entry, joined.under(key), part, (*path, key), winner))
            return Written(index, winner, index, keys, joined.rest or joined)
        if winner == index:
            return Written(index, index, index)
        value, won = value_at(entry.state, path), value_at(self._log[winner].state, path)
        if same(value, won):
            sides = (self._known.get(winner, NOT_WRITTEN).under(*path),)
            return Written(index, winner, index, sides=sides, depth=len(path))
        found = Written(index, index, index) if joined.writer is None else joined
        if not isinstance(value, FrozenDict) or not isinstance(won, FrozenDict):
            return found
        below = [(key, (*path, key)) for key in (*value, *won)]
        apart = {key: self._decided(index, entry, joined.under(key), None, inner, winner) for key, inner in below}
        return found._replace(made=index, keys=PersistentMap(apart), rest=Written(index, winner, index))


def _updated(old: Written, patch: Any, index: int) -> Written:
    """The writers of a value after an update by one commit: of a mapping, which is merged, by key."""
    for update in each_update(patch):
        if isinstance(update, Mapping):
            keys = old.keys
            for key, part in _raw_items(update):
                keys = keys.set(key, _updated(old.under(key), part, index))
            old = Written(index, index, index, keys, old.rest or old)
        else:
            old = Written(index, index, index)
    return old


def _raw_items(update: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return update.raw_items() if isinstance(update, FrozenDict) else update.items()


class _Branches:
    """Branches that join at an index of the log."""

    def __init__(self, log: Log, heads: Sequence[int], index: int) -> None:
        self._log = log
        self._heads = heads
        self._index = index

    @cached_property
    def _order(self) -> Mapping[int, int]:
        """The place of each commit since they parted in lineage order."""
        return {item.log_index: place for place, item in enumerate(unshared_commits(self._log, self._heads))}

    def holding(self, trees: Sequence[Written], values: Sequence[Any], value: Any) -> list[Written]:
        """Those of the branches that hold the joined value, or of all if none does, in the order of the last write."""
        hold = [one for one, held in zip(trees, values, strict=True) if same(held, value)] or trees
        return sorted({id(one): one for one in hold}.values(), key=lambda one: self._order.get(one.at, -1))

    def joined(self, trees: Sequence[Written], values: Sequence[Any], value: Any, depth: int) -> Written:
        """The writers of a joined value at a path of some length, given who wrote that of each branch."""
        different = {id(one): one for one in trees}
        changed = [one for one in different.values() if len(different) == 1 or one.made in self._order]
        if len(changed) == 1:
            return changed[0]
        hold = self.holding(trees, values, value)
        sides = tuple([one for one in hold if one.made in self._order]) or (hold[-1],)
        rests = [one.rest or one for one in trees]
        keys = {key for one in trees for key in one.keys}
        if any(rest is not rests[0] for rest in rests) and not all(same(held, value) for held in values):
            keys.update(key for held in (*values, value) if isinstance(held, FrozenDict) for key in held)
        is_apart = bool(keys) or any(one.rest is not None for one in trees)
        rest = self._under(object(), rests, values, value, depth) if is_apart else None
        found = {key: self._under(key, trees, values, value, depth) for key in keys}
        apart = PersistentMap({key: one for key, one in found.items() if one is not rest})
        return Written(hold[-1].at, hold[-1].writer, self._index, apart, rest, sides, depth)

    def _under(self, key: Any, trees: Sequence[Written], values: Sequence[Any], value: Any, depth: int) -> Written:
        """The writers of what is under a key; a key that none of the branches has stands for all other ones."""
        below = [value_at(held, (key,)) for held in values]
        return self.joined([one.under(key) for one in trees], below, value_at(value, (key,)), depth + 1)
