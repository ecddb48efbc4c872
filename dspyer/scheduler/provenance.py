"""Who added what to a field, and what a node has not seen: from the commits behind a branch.

A field with a reducer is made of *parts*: the items of a list, the keys of a mapping, the amounts of a sum. Each part
belongs to the commit whose update brought it. What a node has seen is what lies behind its own commits, the joins' own
rule: there is no cursor that could be lost, doubled or merged.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, Protocol

from dspyer.events import Commit
from dspyer.message_list import TURN
from dspyer.patch import DELETE, Replace, each_update, resets
from dspyer.reducers import Reducer, Updates
from dspyer.scheduler.lineage import Log, LogEntry, ReachableCommit, ancestry, merge_base
from dspyer.scheduler.topology import START
from dspyer.schema.fields import Field
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, FrozenList
from dspyer.values.persistent import PersistentMap, SparseVector


class FieldPart(NamedTuple):
    """One part of a field.

    Attributes:
        value: the frozen item, value of a key, or amount.
        key: the key in a mapping, the id of a message, None elsewhere.
        author: who brought it: a node; `"START"` for the inputs and the defaults, `""` if it is not known any more.
        commit: the id of the commit; where a join chose the value of a branch, that of the commit that won.
        again: the ids of commits of other branches that brought the same.
        owner: whose it is in a view: its author; of a tool's result, the author of the call.
        place: its place in the index of the field, -1 for none.
        call: the place of the call that it is a result of, -1 for none.
        weight: its size, where sizes are counted.
    """

    value: Any
    key: Any
    author: str
    commit: str
    again: tuple[str, ...] = ()
    owner: str = ""
    slot: int = -1
    call: int = -1
    weight: int = 0


class FieldParts(NamedTuple):
    """The parts of a field.

    Attributes:
        kind: what they make up: `"items"`, `"messages"`, `"keys"`, `"members"` or `"amount"`.
        parts: in the order in which they were folded; of a mapping, in the order in which its keys were last written.
    """

    kind: str
    parts: tuple[FieldPart, ...]


class PriorLog(Log, Protocol):
    """The commits of earlier runs by place: from 0 on, as many as it is long."""

    def __len__(self) -> int: ...


class PriorHistory(NamedTuple):
    """What lies behind a run.

    Attributes:
        log: the commits of earlier runs.
        heads: the places of the last of them that all their branches shared.
        known: the parts of the field that was asked for, as they are there; None where they must be made from the log.
    """

    log: PriorLog
    heads: tuple[int, ...]
    known: FieldIndex | None = None

    @classmethod
    def state(cls, state: ImmutableState, author: str) -> PriorHistory:
        """A state of which nothing more is known than who brought it."""
        patch = {name: Replace(value) for name, value in state.raw_items()}
        return cls([LogEntry(Commit("", None, author, (), 1, 0, patch, ()), state, (), None)], (0,))


NO_HISTORY = PriorHistory((), ())


class ThreadLog:
    """The commits of a run, and behind them, at places below 0, those of the runs before it.

    Args:
        log: the commits of the run.
        behind: gives what lies behind it; it is asked once somebody looks there.
    """

    def __init__(self, log: Log, behind: Callable[[], PriorHistory]) -> None:
        self._log = log
        self._behind = behind

    def __getitem__(self, place: int, /) -> LogEntry:
        if place > 0:
            return self._log[place]
        earlier = self._behind()
        count = len(earlier.log)
        if not place:
            return self._log[0]._replace(parents=tuple([head - count for head in earlier.heads]))
        entry = earlier.log[place + count]
        winners = {path: winner - count for path, winner in entry.winners.items()}
        return entry._replace(parents=tuple([parent - count for parent in entry.parents]), winners=winners)


def unseen_commits(log: Log, heads: Sequence[int], reader: str) -> set[int]:
    """The places of the commits that are not behind a commit of a node. It looks no further back than it must.

    Args:
        log: the commits; a commit is at a higher place than those that it builds on.
        heads: the last commits of the branch.
        reader: the node.
    """
    heap = [-head for head in set(heads)]
    heapify(heap)
    known = dict.fromkeys(heads, False)  # by place, whether the node has seen it
    open_places = len(known)
    found: set[int] = set()
    while open_places:
        place = -heappop(heap)
        entry = log[place]
        seen = known[place]
        open_places -= not seen
        if not seen and entry.commit.node == reader:
            seen = True
        if not seen:
            found.add(place)
        for parent in entry.parents:
            before = known.get(parent)
            if before is None:
                heappush(heap, -parent)
                known[parent] = seen
                open_places += not seen
            elif seen and not before:
                known[parent] = True
                open_places -= 1
    return found


def last_visits(log: Log, fresh: set[int], heads: Sequence[int], reader: str) -> list[int]:
    """The places of the last commits of a node: those behind which none of its commits is that is not behind another.

    Args:
        log: the commits.
        fresh: the places that the node has not seen.
        heads: the last commits of the branch.
        reader: the node.
    """
    edge = {parent for place in fresh for parent in log[place].parents} | set(heads)
    found = sorted([place for place in edge - fresh if log[place].commit.node == reader])
    if len(found) < 2:
        return found
    near = range(found[0], found[-1] + 1)  # what a commit builds on is at a lower place
    behind = {place for visit in found for place in ancestry(log, log[visit].parents, near)}
    return [place for place in found if place not in behind]


def unattributed_parts(value: Any, kind: str = "items") -> FieldParts:
    """The parts of a value whose authors are not known.

    Args:
        value: the frozen value, `DELETE` if there is none.
        kind: what they make up if there is none.
    """
    if isinstance(value, FrozenDict):
        kind = "keys"
    return FieldParts(kind, tuple([FieldPart(part, key, "", "") for key, part in parts_of_value(value)]))


def parts_of_value(value: Any, reducer: Reducer | None = None) -> Iterable[tuple[Any, Any]]:
    """The parts of a whole value, as (key, part).

    Args:
        value: the frozen value; `DELETE` and None have none.
        reducer: what folds the field.
    """
    if value is DELETE or value is None:
        return ()
    if reducer is not None and reducer.parts_of_value is not None:
        return reducer.parts_of_value(value)
    if isinstance(value, FrozenDict):
        return value.raw_items()
    if isinstance(value, FrozenList):
        return [(None, item) for item in value.raw_items()]
    if isinstance(value, AbstractSet):
        return [(None, item) for item in sorted(value, key=repr)]  # a set has another order in every process
    return [(None, item) for item in value] if isinstance(value, tuple) else ((None, value),)


# --------------------------------------------------------------------------------------------------------------------
# The parts of a field at each commit, each time made from those at the commit before.
#
# An `Index` is a value that shares what did not change with the one before it, as states do: what a view asks for, such
# as the last parts or those of one author, costs by the answer and not by the history.


_NONE: PersistentMap[Any, Any] = PersistentMap()


class IndexedField(NamedTuple):
    """How a field comes about.

    Attributes:
        field: its name.
        reducer: what folds it; it has parts.
        default: what a deletion leaves, frozen; `DELETE` for nothing.
        whole: whether the first commit of the run holds whole values, as the inputs of a run do that goes on from
            nothing.
        prefix: what the ids of the commits of the run begin with.
        taken: the same for commits that it has from earlier parts, with the place at which the next part begins.
        live: whether posts are folded as they arrived.
        limited: whether a limit drops the oldest parts.
        weigh: gives the size of a part, where sizes are counted.
    """

    field: str
    reducer: Reducer
    default: Any = DELETE
    whole: bool = False
    prefix: str = ""
    taken: tuple[tuple[int, str], ...] = ()
    live: bool = False
    limited: bool = False
    weigh: Callable[[str, FieldPart], int] | None = None

    @classmethod
    def of(
        cls,
        field: Field | None,
        whole: bool = False,
        prefix: str = "",
        taken: tuple[tuple[int, str], ...] = (),
        weigh: Callable[[str, FieldPart], int] | None = None,
    ) -> IndexedField | None:
        """How a field of a schema comes about; None if it has no parts."""
        if field is None or field.reducer is None or field.reducer.parts is None:
            return None
        limited = field.limit is not None and field.limit.full == "drop_oldest"
        live = field.live is not None
        return cls(field.name, field.reducer, field.fixed_default, whole, prefix, taken, live, limited, weigh)


class FieldIndex(NamedTuple):
    """The parts of a field at one commit.

    Attributes:
        row: the parts in their order.
        end: the place of the next one.
        owners: the parts of each owner.
        keys: the place of the part of each key.
        sums: of amounts, the sum of each author.
        calls: of messages, the place of the last one that calls a tool, by the id of the call.
        results: of messages, the places of the results, by the place of the call.
        weight: the sizes of all parts.
    """

    row: SparseVector[FieldPart] = SparseVector()
    end: int = 0
    owners: PersistentMap[str, SparseVector[FieldPart]] = _NONE
    keys: PersistentMap[Any, int] = _NONE
    sums: PersistentMap[str, Any] = _NONE
    calls: PersistentMap[str, int] = _NONE
    results: PersistentMap[int, tuple[int, ...]] = _NONE
    weight: int = 0

    def backwards(self, owners: Iterable[str] | None = None) -> Iterator[FieldPart]:
        """The parts, the last one first.

        Args:
            owners: whose; None for all.
        """
        if owners is None:
            return self.row.backwards()
        rows = [row for row in (self.owners.get(owner) for owner in owners) if row]
        return rows[0].backwards() if len(rows) == 1 else _merged([row.backwards() for row in rows])


EMPTY_INDEX = FieldIndex()


def _merged(walks: Sequence[Iterator[FieldPart]]) -> Iterator[FieldPart]:
    """Parts of several rows, the one at the highest place first."""
    heap = [(-part.slot, number, part) for number, walk in enumerate(walks) for part in [next(walk, None)] if part]
    heapify(heap)
    while heap:
        _, number, part = heappop(heap)
        yield part
        following = next(walks[number], None)
        if following is not None:
            heappush(heap, (-following.slot, number, following))


class FieldIndexes:
    """The indexes of one field at the commits of a run. It is not safe for several threads at once.

    An index is kept where it may be asked for again: at the last commit of each branch that was looked at, and where
    branches part. Any other is made again from the log.

    Args:
        of: the field.
        base: gives the index of what lies behind the run; None, or if it gives None, the log has that too.
    """

    def __init__(self, of: IndexedField, base: Callable[[], FieldIndex | None] | None = None) -> None:
        self.of = of
        self._base = base
        self._known: dict[int, FieldIndex] = {}

    def begin(self, place: int, index: FieldIndex) -> None:
        """Takes the index after a commit as it is.

        Args:
            place: the place of the commit.
            index: the index.
        """
        self._known[place] = index

    def at(self, log: Log, place: int) -> FieldIndex:
        """The index after a commit.

        Args:
            log: the commits of the run.
            place: the place of the commit.
        """
        known = self._known
        chain: list[int] = []
        here, index, behind = place, EMPTY_INDEX, None
        while here not in known:
            chain.append(here)
            behind = self._base() if not here and self._base is not None else None
            parents = () if behind is not None else log[here].parents
            if not parents:
                index = behind or EMPTY_INDEX
                break
            here = parents[0]
        else:
            index = known[here]
        for here in reversed(chain):
            entry = log[here]
            parents = () if behind is not None and not here else entry.parents
            index = self._after(log, here, entry, index, parents)
            if _parts_ways(entry) or self.of.live:
                known[here] = index
            for parent in entry.parents:
                if parent in known and not self.of.live and not _parts_ways(log[parent]):
                    del known[parent]  # it has one commit behind it, which has an index now
        known[place] = index
        return index

    def _after(self, log: Log, place: int, entry: LogEntry, index: FieldIndex, parents: tuple[int, ...]) -> FieldIndex:
        field = self.of.field
        touched = field in entry.commit.patch
        if len(parents) < 2 and not touched:
            return index
        made = _IndexBuilder(self.of, index)
        if len(parents) > 1:
            made = self._joined(log, place, parents, made)
        if touched:
            made.commit(log, place)
        if self.of.limited:
            once = len(parents) < 2 and not isinstance(entry.commit.patch[field], Updates)
            made.keep(entry.state.raw(field, DELETE), once)
        return made.done()

    def _joined(self, log: Log, place: int, parents: tuple[int, ...], made: _IndexBuilder) -> _IndexBuilder:
        """The parts behind a join: as the join folded them, without what it did itself."""
        field = self.of.field
        if self.of.live and len({_run_of(log[one].commit.id) for one in (place, *parents)}) == 1:
            base, own = merge_base(log, parents)
            posted = [item.log_index for item in own if field in log[item.log_index].commit.patch]
            if any(log[one].commit.live is not None for one in posted):
                made = _IndexBuilder(self.of, self.at(log, base))
                made.by_arrival(log, posted)
                return made
        own = unshared_commits(log, parents)
        firsts: list[list[ReachableCommit]] = [[] for _ in parents]
        for item in own:
            if field in log[item.log_index].commit.patch:
                lowest = item.mask & -item.mask
                firsts[lowest.bit_length() - 1].append(item)
        before: list[ReachableCommit] = []
        for bit, items in enumerate(firsts):
            beside = [item for item in before if not item.mask >> bit & 1]
            reset = any(resets(log[item.log_index].commit.patch[field]) for item in (*beside, *items))
            if bit and not (beside and reset):  # else both sides agree, or the join has decided, which is its patch
                for item in items:
                    made.commit(log, item.log_index, parallel=True)
            before += items
        return made


class _IndexBuilder:
    """An index in the making.

    Args:
        of: the field.
        index: what it begins with.
    """

    def __init__(self, of: IndexedField, index: FieldIndex) -> None:
        self._of = of
        self._kind = of.reducer.kind
        self.row, self.end, self.owners, self.keys, self.sums, self.calls, self.results, self.weight = index

    def done(self) -> FieldIndex:
        """The index."""
        return FieldIndex(self.row, self.end, self.owners, self.keys, self.sums, self.calls, self.results, self.weight)

    def commit(self, log: Log, place: int, *, parallel: bool = False) -> None:
        """Adds what a commit brought.

        Args:
            log: the commits.
            place: the place of the commit.
            parallel: whether it belongs to another branch than what is here.
        """
        of = self._of
        for number, one in enumerate(each_update(log[place].commit.patch[of.field])):
            self.add(log, place, one, first=of.whole and not place and not number, parallel=parallel)

    def by_arrival(self, log: Log, places: Iterable[int]) -> None:
        """Adds what commits brought to a live field, each update when it arrived."""
        found: list[tuple[int, int, Any]] = []
        latest = 0
        for place in places:
            commit = log[place].commit
            updates = each_update(commit.patch[self._of.field])
            seqs = commit.live.posts.get(self._of.field, ()) if commit.live is not None else ()
            for number, one in enumerate(updates):
                seq = seqs[number] if seqs else latest
                latest = max(latest, seq)
                found.append((seq, place, one))
        found.sort(key=lambda update: update[0])
        for _, place, one in found:
            self.add(log, place, one, parallel=True)

    def add(self, log: Log, place: int, update: Any, *, first: bool = False, parallel: bool = False) -> None:
        """Adds one update of a commit.

        Args:
            log: the commits.
            place: the place of the commit.
            update: the update.
            first: whether it is a whole value.
            parallel: whether it belongs to another branch than what is here.
        """
        of = self._of
        reset, found = parts_of_update(of, update, first)
        winners, here = log[place].winners, global_id_at(log, place, of)
        before = {part.key: part for part in self.row} if reset and winners else {}
        if reset:
            self._clear()
        author, name = log[place].commit, here
        for key, value in found:
            there = None if key is None else before.get(key)
            if there is not None and same(there.value, value):  # the join has left it as it was
                self._put(there._replace(slot=self.end))
                continue
            if winners:  # who has seen the commit that won has seen the value
                winner = winners.get((of.field, key), winners.get((of.field,), place))
                author, name = log[winner].commit, global_id_at(log, winner, of)
            known = None if key is None else self.keys.get(key)
            if known is None:
                self._put(FieldPart(value, key, author.node, name, (), author.node, self.end))
            else:
                self._again(known, value, author, name, parallel)

    def _again(self, known: int, value: Any, author: Commit, name: str, parallel: bool) -> None:
        """A part with a key that is there: a key of a mapping moves to the end, what is the same stays as it is."""
        there = self.row.get(known)
        assert there is not None
        if self._kind == "keys":
            self._drop(there)
            self._put(FieldPart(value, there.key, author.node, name, (), author.node, self.end))
        elif self._kind == "members" or self._of.reducer.append_only or same(there.value, value):
            if parallel:
                self._drop(there, gone=False)
                self._put(there._replace(again=(*there.again, name)))
        else:
            self._drop(there, gone=False)
            self._put(FieldPart(value, there.key, author.node, name, (), author.node, known))

    def _put(self, part: FieldPart) -> None:
        place = part.slot
        if self._kind == "messages":
            part = self._in_its_turn(part)
        if self._of.weigh is not None:
            part = part._replace(weight=self._of.weigh(self._kind, part))
            self.weight += part.weight
        if part.key is not None:
            self.keys = self.keys.set(part.key, place)
        self.row = self.row.set(place, part)
        self.owners = self.owners.set(part.owner, self.owners.get(part.owner, _NO_PARTS).set(place, part))
        self.end = max(self.end, place + 1)
        if self._kind == "amount":
            sums, author = self.sums, part.author
            self.sums = sums.set(author, sums[author] + part.value if author in sums else part.value)

    def _in_its_turn(self, part: FieldPart) -> FieldPart:
        """A message with the call that it is a result of; a call is remembered. A turn that a run was given is its
        node's: so a node of a graph in another one knows its own turns again when that runs again.
        """
        value = part.value
        if not isinstance(value, FrozenDict):
            return part
        named = value.raw("name", None)
        if part.author == START and isinstance(named, str) and isinstance(value.raw(TURN, None), FrozenDict):
            part = part._replace(author=named, owner=named)
        calls = value.raw("tool_calls", None)
        for call in calls.raw_items() if isinstance(calls, FrozenList) else ():
            if isinstance(call, FrozenDict) and isinstance(call.raw("id", None), str):
                self.calls = self.calls.set(call.raw("id"), part.slot)
        if value.raw("role", None) != "tool":
            return part
        called = self.calls.get(value.raw("tool_call_id", None), -1)
        of = self.row.get(called) if called >= 0 else None
        if of is None:
            return part
        if part.slot not in self.results.get(called, ()):
            self.results = self.results.set(called, (*self.results.get(called, ()), part.slot))
        return part._replace(owner=of.owner, call=called)

    def _drop(self, part: FieldPart, *, gone: bool = True) -> None:
        self.row = self.row.discard(part.slot)
        self.owners = self.owners.set(part.owner, self.owners[part.owner].discard(part.slot))
        self.weight -= part.weight
        if gone and part.key is not None:
            self.keys = self.keys.discard(part.key)

    def keep(self, value: Any, once: bool) -> None:
        """Drops what a limit has dropped.

        Args:
            value: what the field holds, frozen.
            once: whether that was one update, which drops nothing that it brings again.
        """
        held = [] if once or self._kind not in ("keys", "messages") else list(parts_of_value(value, self._of.reducer))
        if not held:
            for part in list(itertools.islice(self.row, max(len(self.row) - _count(value), 0))):
                self._drop(part)
        elif [key for key, _ in held] != [part.key for part in self.row]:  # a key that was dropped may come again
            parts = {part.key: part for part in self.row}
            self._clear()
            for key, item in held:
                self._put((parts.get(key) or FieldPart(item, key, "", ""))._replace(slot=self.end))

    def _clear(self) -> None:
        self.row, self.end, self.owners, self.keys, self.sums, self.calls, self.results, self.weight = EMPTY_INDEX


_NO_PARTS: SparseVector[FieldPart] = SparseVector()


def parts_of_update(of: IndexedField, update: Any, first: bool) -> tuple[bool, Iterable[tuple[Any, Any]]]:
    """Whether an update throws away what was there, and the parts that it brings, as (key, part).

    Args:
        of: the field.
        update: one update.
        first: whether it is a whole value.
    """
    if first or update is DELETE or isinstance(update, Replace):
        return True, parts_of_value(_value(of, update), of.reducer)
    assert of.reducer.parts is not None  # fields without parts have no index
    return False, of.reducer.parts(update)


def _count(value: Any) -> int:
    return 0 if value is DELETE or value is None else len(value)


def _value(of: IndexedField, update: Any) -> Any:
    value = of.default if update is DELETE else update.value if isinstance(update, Replace) else update
    return value if value is DELETE else freeze(value)


def global_id_at(log: Log, place: int, of: IndexedField) -> str:
    """The id of a commit among those of all runs of a thread.

    Args:
        log: the commits; those of earlier runs, at places below 0, have whole ids.
        place: the place of the commit.
        of: the field, which knows what the ids of this run begin with.
    """
    name = log[place].commit.id
    if place < 0:
        return name
    part = bisect_right(of.taken, place, key=_end) if of.taken else 0
    return f"{of.taken[part][1] if part < len(of.taken) else of.prefix}{name}"


def _end(part: tuple[int, str]) -> int:
    return part[0]


def _parts_ways(entry: LogEntry) -> bool:
    """Whether branches part behind a commit."""
    return len(entry.commit.route) > 1


def _run_of(commit_id: str) -> str:
    return commit_id.rpartition("/")[0]


def unshared_commits(log: Log, heads: Sequence[int]) -> list[ReachableCommit]:
    """The commits behind some heads that are not behind all of them, in lineage order.

    Args:
        log: the commits; a commit is at a higher place than those that it builds on.
        heads: the last commit of each branch.
    """
    everyone = (1 << len(heads)) - 1
    masks: dict[int, int] = {}
    for bit, head in enumerate(heads):
        masks[head] = masks.get(head, 0) | 1 << bit
    heap = [-head for head in masks]
    heapify(heap)
    partial = sum([mask != everyone for mask in masks.values()])  # among those in the heap
    found: dict[int, int] = {}
    while partial:
        place = -heappop(heap)
        mask = masks[place]
        if mask != everyone:
            partial -= 1
            found[place] = mask
        for parent in log[place].parents:
            before = masks.get(parent)
            if before is None:
                heappush(heap, -parent)
                partial += mask != everyone
            else:
                partial -= before != everyone and before | mask == everyone
            masks[parent] = (before or 0) | mask
    return [ReachableCommit(place, found[place]) for place in ancestry(log, heads, found)]


class UnseenParts(NamedTuple):
    """What of a field a node has not seen.

    Attributes:
        names: the ids of the commits that it has not seen.
        parts: the parts, in their order.
    """

    names: AbstractSet[str]
    parts: list[FieldPart]


def unseen_parts(index: FieldIndex, log: Log, fresh: AbstractSet[int], of: IndexedField) -> UnseenParts:
    """What of a field a node has not seen. It costs by what that is.

    Args:
        index: the field where the node's branch is.
        log: the commits.
        fresh: the places of the commits that the node has not seen.
        of: the field.
    """
    names = {global_id_at(log, place, of) for place in fresh}
    found: dict[int, FieldPart] = {}
    unkeyed = 0
    for place in fresh:
        patch = log[place].commit.patch
        if of.field not in patch:
            continue
        for number, one in enumerate(each_update(patch[of.field])):
            for key, _ in parts_of_update(of, one, of.whole and not place and not number)[1]:
                part = None if key is None else index.row.get(index.keys.get(key, index.end))
                if part is not None and is_new(part, names):
                    found[part.slot] = part
                unkeyed += key is None
    for part in index.backwards() if unkeyed else ():
        if part.key is None and part.commit in names:
            found[part.slot] = part
            unkeyed -= 1
            if not unkeyed:
                break
    calls = {place if place in index.results else found[place].call for place in found}
    for call in calls - {-1}:  # a call and its results are shown together
        for part in map(index.row.get, (call, *index.results.get(call, ()))):
            if part is not None:
                found[part.slot] = part
    return UnseenParts(names, [found[place] for place in sorted(found)])


def is_new(part: FieldPart, names: AbstractSet[str]) -> bool:
    """Whether a part was brought by commits that a node has not seen, and by no other."""
    return part.commit in names and not any(name not in names for name in part.again)
