"""The size of a whole state, counted by what its commits change, and the limit on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dspyer.patch import DELETE, resets
from dspyer.reducers import Reducer, Updates
from dspyer.schema.limits import Limit, entry_size, grown, kilobytes, known_size, remember, size_of
from dspyer.state import ImmutableState, counted, keep_count
from dspyer.values.frozen import FrozenDict, FrozenList

Patches = Sequence[Mapping[str, Any]]
_SHOWN = 3  # fields that an error names


def total_of(state: ImmutableState) -> int:
    """The bytes of the JSON forms of all fields of a state."""
    size = counted(state)
    if size is None:
        size = sum([_size(value) for _, value in state.raw_items()])
        keep_count(state, size)
    return size


def total_after(
    before: ImmutableState, patches: Patches, after: ImmutableState, reducers: Mapping[str, Reducer | None]
) -> int:
    """The bytes of a state after some patches: what it had before, where that is known, and what they changed.

    Args:
        before: the state before.
        patches: the patches; they name every field that differs.
        after: the state after them.
        reducers: what folds the updates of a field, for those that have a reducer.
    """
    size = counted(before)
    if counted(after) is not None or size is None:
        return total_of(after)
    for name in dict.fromkeys(name for patch in patches for name in patch):
        old, new = before.raw(name, DELETE), after.raw(name, DELETE)
        if old is new:
            continue
        size -= _size(old)  # first: what was inside of it is known then
        size += _size_after(old, [patch[name] for patch in patches if name in patch], new, reducers.get(name))
    keep_count(after, size)
    return size


def excess(limit: Limit, before: ImmutableState, after: ImmutableState, size: int) -> str:
    """Why a state is refused; empty if it is within its limit, or no larger than before.

    Args:
        limit: the most that a state holds.
        before: the state before.
        after: the state.
        size: the bytes of the state.
    """
    if size <= limit.most or size <= total_of(before):
        return ""
    largest = sorted([(-_size(value), name) for name, value in after.raw_items()])[:_SHOWN]
    fields = ", ".join(f"{name!r} {kilobytes(-held)}" for held, name in largest)
    return (
        f"the state would hold {kilobytes(size)}, at most {kilobytes(limit.most)}; its largest fields: {fields}. Write "
        "less, delete what is no longer needed, limit single fields with limit(full='drop_oldest'), or raise "
        "Graph(limit=limit(kb=...))"
    )


def _size(value: Any) -> int:
    if value is DELETE:
        return 0
    return size_of(value) if isinstance(value, (FrozenDict, FrozenList, frozenset)) else entry_size(None, value)


def _size_after(old: Any, updates: Sequence[Any], new: Any, reducer: Reducer | None) -> int:
    """The size of a value after some updates, counted by what they name where the size before is known."""
    known = known_size(new)
    if known is not None or not isinstance(new, (FrozenDict, FrozenList, frozenset)):
        return _size(new) if known is None else known
    ones = Updates(*updates).updates
    if any(map(resets, updates)):
        return size_of(new)
    if reducer is not None:
        size = grown(old, ones, new, reducer)
    elif type(old) is type(new) is FrozenDict and all(isinstance(one, Mapping) for one in ones):
        size = size_of(old) if len(old) else 0
        for key in dict.fromkeys(key for one in ones for key in one):
            before, now = old.raw(key, DELETE), new.raw(key, DELETE)
            if before is now:
                continue
            around = entry_size(key, None) - entry_size(None, None) + 2  # its key, and what separates entries
            size -= 0 if before is DELETE else _inner(before) + around
            if now is DELETE:
                continue
            same_kind = type(before) is type(now) is FrozenDict
            inside = [one[key] for one in ones if key in one]
            size += around + (_size_after(before, inside, now, None) if same_kind else _inner(now))
        size = max(2, size)
    else:
        return size_of(new)
    remember(new, size)
    return size


def _inner(value: Any) -> int:
    return entry_size(None, value)
