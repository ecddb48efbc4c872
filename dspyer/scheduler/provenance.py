"""Who added what to a field, and what a node has not seen: from the commits behind a branch.

A field with a reducer is made of *parts*: the items of a list, the keys of a mapping, the amounts of a sum. Each part
belongs to the commit whose update brought it. What a node has seen is what lies behind its own commits, the joins' own
rule: there is no cursor that could be lost, doubled or merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dspyer.events import Commit
from dspyer.patch import DELETE, Replace
from dspyer.reducers import Reducer
from dspyer.scheduler.lineage import Log, LogEntry, lineage
from dspyer.state import ImmutableState
from dspyer.values.frozen import FrozenDict, FrozenList


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
    place: int = -1
    call: int = -1
    weight: int = 0


class Parts(NamedTuple):
    """The parts of a field.

    Attributes:
        shape: what they make up: `"items"`, `"messages"`, `"keys"`, `"members"` or `"amount"`.
        parts: in the order in which they were folded; of a mapping, in the order in which its keys were last written.
    """

    shape: str
    parts: tuple[FieldPart, ...]


class PriorCommits(Log, Protocol):
    """The commits of earlier runs by place: from 0 on, as many as it is long."""

    def __len__(self) -> int: ...


class Behind(NamedTuple):
    """What lies behind a run.

    Attributes:
        log: the commits of earlier runs.
        heads: the places of the last of them that all their branches shared.
        known: the parts of the field that was asked for, as they are there; None where they must be made from the log.
    """

    log: PriorCommits
    heads: tuple[int, ...]
    known: FieldIndex | None = None

    @classmethod
    def state(cls, state: ImmutableState, author: str) -> Behind:
        """A state of which nothing more is known than who brought it."""
        patch = {name: Replace(value) for name, value in state.raw_items()}
        return cls([LogEntry(Commit("", None, author, (), 1, 0, patch, ()), state, (), None)], (0,))


if TYPE_CHECKING:
    from dspyer.scheduler.indexing import FieldIndex

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
    near = range(found[0], found[-1] + 1)  # what a commit builds on is at a lower place
    behind = {place for visit in found for place in lineage(log, log[visit].parents, near)}
    return [place for place in found if place not in behind]


def whole_parts(value: Any, shape: str = "items") -> Parts:
    """The parts of a value whose authors are not known.

    Args:
        value: the frozen value, `DELETE` if there is none.
        shape: what they make up if there is none.
    """
    if isinstance(value, FrozenDict):
        shape = "keys"
    return Parts(shape, tuple([FieldPart(part, key, "", "") for key, part in whole_of(value)]))


def whole_of(value: Any, reducer: Reducer | None = None) -> Iterable[tuple[Any, Any]]:
    """The parts of a whole value, as (key, part).

    Args:
        value: the frozen value; `DELETE` and None have none.
        reducer: what folds the field.
    """
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
