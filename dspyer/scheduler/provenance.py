"""Who added what to a field, and what of it a node has not seen: from the commits behind a branch.

A field with a reducer is made of *parts*: the items of a list, the keys of a mapping, the amounts of a sum. Each part
belongs to the commit whose update brought it. What a node has seen is what lies behind its own commits, the joins' own
rule: there is no cursor that could be lost, doubled or merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

from dspyer.patch import DELETE, Replace
from dspyer.reducers import Reducer, Updates
from dspyer.scheduler.lineage import Log, lineage
from dspyer.values import FrozenDict, FrozenList, freeze


class Part(NamedTuple):
    """One part of a field.

    Attributes:
        value: the frozen item, value of a key, or amount.
        key: the key in a mapping, None elsewhere.
        author: who brought it: a node; `"START"` for the inputs and the defaults.
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
        shape: what they make up: `"items"`, `"keys"` or `"amount"`.
        parts: in the order in which they were folded.
    """

    shape: str
    parts: tuple[Part, ...]


def parts_of(log: Log, heads: Sequence[int], field: str, reducer: Reducer, reader: str, whole: bool) -> Parts:
    """The parts of a field whose reducer has parts, in the order in which they were folded.

    Args:
        log: the commits.
        heads: the last commits of the branch.
        field: the field.
        reducer: its reducer.
        reader: the node that looks.
        whole: whether a commit without parents holds whole values, as the inputs of a run do that goes on from nothing.

    Returns:
        The parts; what a `Replace` or a deletion has thrown away is not among them.
    """
    order = lineage(log, heads)
    seen = set(lineage(log, [place for place in order if log[place].commit.node == reader]))
    parts: list[Part] = []
    for place in order:
        entry = log[place]
        if field not in entry.commit.patch:
            continue
        update = entry.commit.patch[field]
        updates = update.updates if isinstance(update, Updates) else (update,)
        author = log[entry.winners.get((field,), place)].commit
        for number, one in enumerate(updates):
            first = whole and not entry.parents and not number and not isinstance(one, Replace)
            if first or one is DELETE or isinstance(one, Replace):
                parts = []  # what was there is gone
                found = _whole(freeze(one.value) if isinstance(one, Replace) else one)
            else:
                assert reducer.parts is not None  # fields without parts have no views of them
                found = reducer.parts(one)
            parts += [Part(value, key, author.node, author.id, place in seen) for key, value in found]
    if reducer.shape == "items":
        parts = _latest(parts)
    return Parts(reducer.shape, tuple(parts))


def _latest(parts: list[Part]) -> list[Part]:
    """Of several parts with one key, as messages have, the last one."""
    last = {part.key: number for number, part in enumerate(parts) if part.key is not None}
    return [part for number, part in enumerate(parts) if part.key is None or last[part.key] == number]


def whole_parts(value: Any) -> Parts:
    """The parts of a value of which nobody knows who brought what.

    Args:
        value: the frozen value, `DELETE` if there is none.
    """
    shape = "keys" if isinstance(value, FrozenDict) else "items"
    return Parts(shape, tuple([Part(part, key, "", "") for key, part in _whole(value)]))


def _whole(value: Any) -> Iterable[tuple[Any, Any]]:
    """The parts of a whole value."""
    if value is DELETE or value is None:
        return ()
    if isinstance(value, FrozenDict):
        return value.raw_items()
    if isinstance(value, FrozenList):
        return [(None, item) for item in value.raw_items()]
    return [(None, item) for item in value] if isinstance(value, Set) else ((None, value),)
