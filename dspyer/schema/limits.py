"""Limits on the size of a field, and how sizes are measured.

A limit is applied in the fold of the field, so joins and replays apply it too. A size is the bytes of the JSON form. It
is stored with a container once it was measured, and after an update it is computed from the size before and from what
the update changed: the cost of measuring depends on the change, not on the size of the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from dspyer.errors import GraphError, NodeOutputError, brief
from dspyer.patch import DELETE
from dspyer.reducers import Reducer
from dspyer.values import json as encoding
from dspyer.values.frozen import FrozenDict, FrozenList, measured_size, store_size
from dspyer.values.scalars import is_number

Full = Literal["refuse", "drop_oldest"]


def limit(*, kb: float, full: Full = "refuse") -> Limit:
    """Limit what a field may hold, as part of its annotation, after the reducer.

    Joins and replays keep it. `commit.sizes` has the bytes of the limited fields that a commit wrote.
    The cost of measuring depends on the update, not on the size of the field.

    Args:
        kb: kilobytes (thousands of bytes) of the JSON form.
        full: `"refuse"`: an update that would exceed the limit is an error; `"drop_oldest"`: the oldest entries are
            removed, in a mapping the keys that were written longest ago. A single entry that is too
            large is an error either way.

    Returns:
        The limit.

    Raises:
        GraphError: `kb` is not a number above 0, or there is no such rule.

    Example:
        >>> from typing import Annotated
        >>> from dspyer import reducers
        >>> Notes = Annotated[list[str], reducers.append,
        ...     limit(kb=40, full="drop_oldest")]
        >>> limit(kb=500)
        limit(kb=500, full='refuse')
    """
    given: Any = kb
    if not is_number(given) or not given > 0:
        raise GraphError(f"limit(kb={kb!r}): it takes a number of kilobytes above 0")
    if full not in get_args(Full):
        raise GraphError(f"limit(full={full!r}): it is one of {', '.join(map(repr, get_args(Full)))}")
    return Limit(kb, full)


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a field may hold. Created by `limit`.

    Attributes:
        kb: kilobytes (thousands of bytes) of the JSON form.
        full: what happens to an update that would exceed them.
    """

    kb: float
    full: Full

    def enforce(self, name: str, current: Any, update: Any, new: Any, reducer: Reducer | None = None) -> Any:
        """Return `new`, the value of field `name` after an update, without its oldest entries if it is too large.

        `current` is the value before, `DELETE` for none. `reducer` is what folded the update in; None if the value was
        replaced. Raises `NodeOutputError` for a value that is too large and cannot be shortened.
        """
        if isinstance(update, FrozenDict) and isinstance(new, FrozenDict) and self.full == "drop_oldest":
            for key in update:  # move the written keys to the end: the order of a mapping is the order of writing
                new = new.discard(key).set(key, new.raw(key)) if key in new else new
        size = _size_after(current, update, new, reducer)
        most = int(self.kb * 1000)
        # Also of a value that is within the limit: the next update computes its size from this one.
        if size <= most:
            store_size(new, size)
            return new
        entries = _entries(new)
        for key, value in entries if len(entries) < 2 or self.full == "drop_oldest" else ():
            alone = entry_size(key, value) + 2
            if alone > most:
                raise NodeOutputError(
                    f"one entry of field {name!r} takes {kilobytes(alone)} alone, and the field holds at most "
                    f"{kilobytes(most)}: write less, for example with add_node(..., condense={{{name!r}: module}}), or "
                    f"raise limit(kb=...); it is {brief(value)}"
                )
        if self.full == "refuse":
            raise NodeOutputError(
                f"field {name!r} would hold {kilobytes(size)}, at most {kilobytes(most)}: write less, for example with "
                f"add_node(..., condense={{{name!r}: module}}), raise limit(kb=...), or let the oldest entries go with "
                "limit(full='drop_oldest')"
            )
        return _without_oldest(new, size, most)

    def __repr__(self) -> str:
        return f"limit(kb={self.kb:g}, full={self.full!r})"


def limit_problem(found: Limit, reducer: str, origin: Any) -> str:
    """Return why a field cannot have this limit, with the fix; empty if it can.

    `reducer` is the name of its reducer, `""` for none; `origin` is the class of its values.
    """
    kinds = (list, dict, set, frozenset)
    if not reducer or not (isinstance(origin, type) and issubclass(origin, kinds)):
        return (
            f"{found!r} is for a list, dict or set with a reducer, as Annotated[list[str], reducers.append, limit(...)]"
            "; the length of a text is limited by Field(max_length=...)"
        )
    if found.full == "drop_oldest" and issubclass(origin, (set, frozenset)):
        return "a set has no oldest entry: give the field limit(full='refuse'), or make it a list"
    return ""


# --- measuring


def size_of(value: Any) -> int:
    """Return the bytes of the JSON form of a frozen container."""
    known = measured_size(value)
    if known is None:
        if isinstance(value, frozenset):  # its JSON form is an object with the type
            known = len(_encoded(value))
        else:
            known = max(2, sum([entry_size(key, entry) + 2 for key, entry in _entries(value)]))
        store_size(value, known)
    return known


def _entries(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, FrozenDict):
        return list(value.raw_items())
    if isinstance(value, FrozenList):
        return [(None, item) for item in value.raw_items()]
    return [(None, item) for item in value] if isinstance(value, (frozenset, tuple)) else []


def entry_size(key: Any, value: Any) -> int:
    """Return the bytes of an entry: of its value, and of its key if there is one."""
    own = size_of(value) if type(value) is FrozenDict else len(_encoded(value))
    return own if key is None else own + 2 + len(_encoded(key))


def _encoded(value: Any) -> bytes:
    return encoding.to_json(value).encode("utf-8", "surrogatepass")


def _size_after(current: Any, update: Any, new: Any, reducer: Reducer | None) -> int:
    """Return the size of `new`, computed from the size of `current` and what the update changed if that is possible.

    `current` is the value before, `DELETE` for none. `reducer` folded the update in; None if the value was replaced.
    """
    before = measured_size(current)
    if before is None or reducer is None or type(current) is not type(new):
        return size_of(new)
    if reducer.appends:
        added = [new.raw(index) for index in range(len(current), len(new))]
        change = sum([entry_size(None, item) + 2 for item in added])
    elif reducer.keyed is not None:
        assert reducer.parts is not None  # what has keys has parts
        change = 0
        for key in dict.fromkeys(key for key, _ in reducer.parts(update)):
            old, now = reducer.keyed.find(current, key), reducer.keyed.find(new, key)
            change += _size_under(reducer, key, now) - _size_under(reducer, key, old)
    elif reducer.kind == "members":
        change = sum([entry_size(None, item) + 2 for item in new.difference(current)]) if new is not current else 0
    else:
        return size_of(new)
    # Brackets, and a separator of two bytes between entries: n entries have n - 1 separators and one pair of brackets,
    # so every entry counts two bytes more, and an empty container two bytes in all.
    empty = 2
    return before - (0 if len(current) else empty) + change + (0 if len(new) else empty)


def _size_under(reducer: Reducer, key: Any, value: Any) -> int:
    """Return the bytes that an entry adds; the key of an entry of a list is part of its value."""
    return 0 if value is DELETE else entry_size(key if reducer.kind == "keys" else None, value) + 2


def _without_oldest(value: Any, size: int, most: int) -> Any:
    entries = _entries(value)
    dropped = 0
    while size > most:
        size -= entry_size(*entries[dropped]) + 2
        dropped += 1
    if isinstance(value, FrozenList):
        kept: Any = FrozenList([item for _, item in entries[dropped:]])
    else:
        kept = value
        for key, _ in entries[:dropped]:
            kept = kept.discard(key)
    store_size(kept, max(2, size))
    return kept


def kilobytes(size: int) -> str:
    """Return a size as errors show it."""
    return f"{size / 1000:.3g} KB"
