"""Who added what to a field, and what of it a node has not seen: from the commits behind a branch.

A field with a reducer is made of *parts*: the items of a list, the keys of a mapping, the amounts of a sum. Each part
belongs to the commit whose update brought it. What a node has seen is what lies behind its own commits, the joins' own
rule: there is no cursor that could be lost, doubled or merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from dspyer.events import Commit
from dspyer.patch import DELETE, Replace
from dspyer.reducers import Reducer, Updates
from dspyer.scheduler.lineage import Entry, Log, lineage
from dspyer.state import ImmutableState
from dspyer.values import FrozenDict, FrozenList, freeze


class Part(NamedTuple):
    """One part of a field.

    Attributes:
        value: the frozen item, value of a key, or amount.
        key: the key in a mapping, the id of a message, None elsewhere.
        author: who brought it: a node; `"START"` for the inputs and the defaults, `""` if nobody knows any more.
        commit: the id of the commit.
        seen: whether the reader has seen it.
    """

    value: Any
    key: Any
    author: str
    commit: str
    seen: bool = False


class Parts(NamedTuple):
    """The parts of a field.

    Attributes:
        shape: what they make up: `"items"`, `"keys"`, `"members"` or `"amount"`.
        parts: in the order in which they were folded; of a mapping, in the order in which its keys were last written.
    """

    shape: str
    parts: tuple[Part, ...]


class Folded(NamedTuple):
    """How a field came about.

    Attributes:
        field: its name.
        reducer: what folds it; it has parts.
        default: what a deletion leaves, frozen; `DELETE` for nothing.
        whole: whether the first commit of the run holds whole values, as the inputs of a run do that goes on from
            nothing.
        most: how many of the last parts are left, if a limit drops the oldest; None for all.
        prefix: what stands before the ids of the commits of the run.
    """

    field: str
    reducer: Reducer
    default: Any = DELETE
    whole: bool = False
    most: int | None = None
    prefix: str = ""


class Behind(NamedTuple):
    """What lies behind a run: the commits of earlier ones, and the last of them that all their branches shared."""

    log: Sequence[Entry]
    heads: tuple[int, ...]

    @classmethod
    def state(cls, state: ImmutableState, author: str) -> Behind:
        """A state of which nothing more is known than who brought it."""
        patch = {name: Replace(value) for name, value in state.raw_items()}
        return cls([Entry(Commit("", None, author, (), 1, 0, patch, ()), state, (), None)], (0,))


NOWHERE = Behind((), ())


class Spanning:
    """The commits of a run, and behind them, at places below 0, those of the runs before it.

    Args:
        log: the commits of the run.
        behind: gives what lies behind it; it is asked once somebody looks there.
    """

    def __init__(self, log: Log, behind: Callable[[], Behind]) -> None:
        self._log = log
        self._behind = behind

    def __getitem__(self, place: int, /) -> Entry:
        if place > 0:
            return self._log[place]
        earlier = self._behind()
        count = len(earlier.log)
        if not place:
            return self._log[0]._replace(parents=tuple([head - count for head in earlier.heads]))
        entry = earlier.log[place + count]
        winners = {path: winner - count for path, winner in entry.winners.items()}
        return entry._replace(parents=tuple([parent - count for parent in entry.parents]), winners=winners)


def unseen(log: Log, heads: Sequence[int], reader: str) -> set[int]:
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
    behind = {place for visit in found for place in lineage(log, log[visit].parents)}
    return [place for place in found if place not in behind]


def parts_of(log: Log, heads: Sequence[int], of: Folded, reader: str, *, new: bool = False) -> Parts:
    """The parts of a field whose reducer has parts, in the order in which they were folded.

    Args:
        log: the commits.
        heads: the last commits of the branch.
        of: the field.
        reader: the node that looks.
        new: leaves out what the node has seen.

    Returns:
        The parts; what a `Replace` or a deletion has thrown away is not among them.
    """
    fresh = unseen(log, heads, reader)
    shape = of.reducer.shape
    within = fresh if new and shape != "members" and _is_last(log, heads, fresh) else None
    parts: list[Part] = []
    for place, number, one in _updates(log, lineage(log, heads, within), of.field):
        winners = log[place].winners
        first = of.whole and not place and not number
        if first or one is DELETE or isinstance(one, Replace):
            parts = []  # what was there is gone
            value = of.default if one is DELETE else one.value if isinstance(one, Replace) else one
            found = _whole(value if value is DELETE else freeze(value), of.reducer)
        else:
            assert of.reducer.parts is not None  # fields without parts have no views of them
            found = of.reducer.parts(one)
        for key, value in found:
            winner = winners.get((of.field, key), winners.get((of.field,), place)) if winners else place
            author = log[winner].commit
            name = f"{of.prefix}{author.id}" if winner >= 0 else author.id
            parts.append(Part(value, key, author.node, name, place not in fresh))
    parts = _united(shape, parts)
    if of.most is not None:
        parts = parts[max(len(parts) - of.most, 0) :]
    return Parts(shape, tuple([part for part in parts if not part.seen] if new else parts))


def _updates(log: Log, order: Iterable[int], field: str) -> list[tuple[int, int, Any]]:
    """The updates of a field in the order in which they were folded: place of the commit, number in it, update.

    Posts to a live field were folded as they arrived, whichever commit they belong to.
    """
    found: list[tuple[int, int, int, Any]] = []
    latest = 0
    for place in order:
        commit = log[place].commit
        if field not in commit.patch:
            continue
        update = commit.patch[field]
        updates = update.updates if isinstance(update, Updates) else (update,)
        seqs = commit.live.posts.get(field, ()) if commit.live is not None and place >= 0 else ()
        for number, one in enumerate(updates):
            seq = seqs[number] if seqs else latest
            latest = max(latest, seq)
            found.append((seq, place, number, one))
    if latest:
        found.sort(key=lambda update: update[0])
    return [(place, number, one) for _, place, number, one in found]


def _is_last(log: Log, heads: Sequence[int], fresh: set[int]) -> bool:
    """Whether all that is fresh was folded after all that is not, so that it can be told without that."""
    edge = {parent for place in fresh for parent in log[place].parents if parent not in fresh}
    return len(edge.union(head for head in heads if head not in fresh)) < 2


def _united(shape: str, parts: list[Part]) -> list[Part]:
    """Parts of which each key has one: of a mapping the last one, of a set the first, of messages the last in the place
    of the first.
    """
    if shape == "amount" or not any(part.key is not None for part in parts):
        return parts
    if shape == "keys":
        last = {part.key: number for number, part in enumerate(parts)}
        return [part for number, part in enumerate(parts) if last[part.key] == number]
    places: dict[Any, int] = {}
    found: list[Part] = []
    for part in parts:
        place = None if part.key is None else places.get(part.key)
        if place is None:
            if part.key is not None:
                places[part.key] = len(found)
            found.append(part)
        elif shape == "members":
            found[place] = found[place]._replace(seen=found[place].seen or part.seen)
        else:
            found[place] = part
    return found


def whole_parts(value: Any, shape: str = "items") -> Parts:
    """The parts of a value of which nobody knows who brought what.

    Args:
        value: the frozen value, `DELETE` if there is none.
        shape: what they make up if there is none.
    """
    if isinstance(value, FrozenDict):
        shape = "keys"
    return Parts(shape, tuple([Part(part, key, "", "") for key, part in _whole(value)]))


def _whole(value: Any, reducer: Reducer | None = None) -> Iterable[tuple[Any, Any]]:
    """The parts of a whole value."""
    if value is DELETE or value is None:
        return ()
    if reducer is not None and reducer.whole is not None:
        return reducer.whole(value)
    if isinstance(value, FrozenDict):
        return value.raw_items()
    if isinstance(value, FrozenList):
        return [(None, item) for item in value.raw_items()]
    if isinstance(value, AbstractSet):
        return [(None, item) for item in sorted(value, key=repr)]  # a set has another order in every process
    return [(None, item) for item in value] if isinstance(value, tuple) else ((None, value),)
