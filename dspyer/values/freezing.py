"""`freeze`, from any supported value to its frozen form, and `same`, the equality of values with their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dspyer.errors import UnsupportedValueError
from dspyer.values.frozen import (
    Container,
    CopyOnRead,
    FrozenDict,
    FrozenList,
    FrozenSet,
    check_depth,
    depth_of,
    rebuild_tuple,
)
from dspyer.values.persistent import MapData, as_map, as_sequence
from dspyer.values.refusals import MAX_DEPTH, KeyPath, TooDeepError, refuse_depth, refuse_value
from dspyer.values.scalars import PLAIN, SCALARS, freeze_key, is_scalar, same_scalar, scalar_identity
from dspyer.values.types import BUNDLE, kind_of

_FROZEN: frozenset[type] = frozenset({FrozenDict, FrozenList, FrozenSet, CopyOnRead})


def freeze(value: object, path: KeyPath = ()) -> Any:
    """Return the frozen form of a value: a deep, immutable copy that shares whatever is frozen already.

    Args:
        value: any supported value.
        path: the path at which it will be stored, for error messages.

    Returns:
        The frozen value; `value` itself if it is frozen.

    Raises:
        UnsupportedValueError: a part of it cannot be protected from later changes, or it is nested too deep.

    Example:
        >>> freeze({"tags": ["a"]})
        FrozenDict({'tags': FrozenList(['a'])})
    """
    cls = type(value)
    if cls in SCALARS or cls in _FROZEN:
        return value
    try:
        return freeze_within(value, path, MAX_DEPTH)
    except TooDeepError:
        refuse_depth(value, path, UnsupportedValueError)


def freeze_within(value: Any, path: KeyPath, levels_left: int) -> Any:
    """Freeze a value that may have `levels_left` levels; raises `TooDeepError`, without a path, if it has more."""
    cls = type(value)
    if cls in SCALARS or cls in _FROZEN:
        return value
    if levels_left <= 0:
        raise TooDeepError
    if cls is dict:
        return _mapping(value, path, levels_left)
    if cls is list:
        return _list(value, path, levels_left)
    if cls is tuple or cls is set or cls is frozenset:
        return _members(value, cls, path, levels_left)
    return _other(value, path, levels_left)


def _other(value: Any, path: KeyPath, levels_left: int) -> Any:
    kind = kind_of(value)
    if kind is not None:
        content = kind.pack(value)
        return check_depth(
            CopyOnRead(
                kind, type(value), freeze_within(content, path, levels_left - 1) if kind.freezes_content else content
            )
        )
    if is_scalar(value):
        return value
    if isinstance(value, FrozenDict):  # a state inside a value becomes a plain FrozenDict
        return FrozenDict._of(value._map, value._depth)
    if isinstance(value, Mapping):
        return _mapping(value, path, levels_left)
    if isinstance(value, list):
        return _list(value, path, levels_left)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _members(value, type(value), path, levels_left)
    return refuse_value(value, path)


def _mapping(value: Mapping[Any, Any], path: KeyPath, levels_left: int) -> Any:
    plain = {}
    depth = 0
    for key, item in value.items():
        name = key if type(key) is str else freeze_key(key, path)
        if type(item) in SCALARS:
            plain[name] = item
        else:
            plain[name] = frozen = freeze_within(item, (*path, name), levels_left - 1)
            depth = max(depth, depth_of(frozen))
    new: FrozenDict[Any, Any] = FrozenDict._of(as_map(plain), depth + 1)
    return check_depth(new)


def _list(value: list[Any], path: KeyPath, levels_left: int) -> Any:
    items = []
    depth = 0
    for index, item in enumerate(value):
        if type(item) in SCALARS:
            items.append(item)
        else:
            frozen = freeze_within(item, (*path, index), levels_left - 1)
            items.append(frozen)
            depth = max(depth, depth_of(frozen))
    new: FrozenList[Any] = FrozenList._of(as_sequence(items), depth + 1)
    return check_depth(new)


def _members(value: Iterable[Any], cls: Any, path: KeyPath, levels_left: int) -> Any:
    """Freeze a tuple or set; the result is a `CopyOnRead` if a member is one, or if the tuple has attributes."""
    members = []
    changed = copied = False
    for index, member in enumerate(value):
        part = member if type(member) in SCALARS else freeze_within(member, (*path, index), levels_left - 1)
        changed = changed or part is not member
        copied = copied or type(part) is CopyOnRead
        members.append(part)
    frozen: Any = value
    if copied or (issubclass(cls, tuple) and cls.__dictoffset__):  # an instance with a `__dict__` can be changed
        frozen = CopyOnRead(BUNDLE, cls, tuple(members))
    elif cls is set:
        frozen = FrozenSet(members)
    elif changed:
        frozen = frozenset(members) if cls is frozenset else rebuild_tuple(cls, members)
    return check_depth(frozen)


Container._freeze = staticmethod(freeze)  # `FrozenDict.set` and others call it; see the class


# --- same


_ABSENT: Any = object()
_MAPS = (FrozenDict, dict)  # tuples: a union type would be built at each test
_LISTS = (FrozenList, list)
_SETS = (FrozenSet, set)


def same(a: Any, b: Any) -> bool:
    """Whether two values and all their parts have the same types and contents.

    Stricter than `==`: `1`, `True` and `1.0` differ, and so do `-0.0` and `0.0`. NaN is the same as NaN, arrays are
    compared as a whole, and a frozen container counts as the plain type that it is the form of.

    Example:
        >>> same([1], [1]), same([1], [True])
        (True, False)
    """
    if a is b:
        return True
    cls = type(a)
    if cls in SCALARS:
        return cls is type(b) and (bool(a == b) if cls in PLAIN else same_scalar(a, b))
    if cls is FrozenList and type(b) is FrozenList:
        return _same_items(a._seq, b._seq)
    if isinstance(a, _MAPS):
        return isinstance(b, _MAPS) and _same_maps(_map_of(a), _map_of(b))
    if isinstance(a, _LISTS):
        return isinstance(b, _LISTS) and _same_items(_items_of(a), _items_of(b))
    if isinstance(a, CopyOnRead):
        return isinstance(b, CopyOnRead) and a.cls is b.cls and a.kind.same(a.content, b.content, same)
    if isinstance(a, _SETS):
        return isinstance(b, _SETS) and _same_sets(a, b)
    if isinstance(a, frozenset):
        return type(b) is cls and _same_sets(a, b)
    if is_scalar(a):
        return same_scalar(a, b)
    if isinstance(a, tuple):
        return type(b) is cls and _same_items(a, b)
    return type(a) is type(b) and same(freeze(a), freeze(b))  # not frozen yet, such as models


def _map_of(value: Any) -> MapData[Any, Any]:
    return value._map if isinstance(value, FrozenDict) else value


def _items_of(value: Any) -> Any:
    return value.raw_items() if isinstance(value, FrozenList) else value


def _same_maps(a: MapData[Any, Any], b: MapData[Any, Any]) -> bool:
    if a is b:
        return True
    if len(a) != len(b):
        return False
    other_keys = False
    for key, value in a.items():
        theirs = b.get(key, _ABSENT)
        if theirs is not value and (theirs is _ABSENT or not same(value, theirs)):
            return False
        other_keys = other_keys or type(key) is not str
    # A dict finds 1 for the key True: keys that are not strings are compared with their types as well.
    return not other_keys or _identities(a) == _identities(b)


def _same_items(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if len(a) != len(b):
        return False
    return all(map(same, a, b))


def _same_sets(a: Any, b: Any) -> bool:
    return len(a) == len(b) and _identities(a) == _identities(b)


def _identities(members: Any) -> frozenset[Any]:
    return frozenset([_identity(member) for member in members])


def _identity(member: Any) -> Any:
    """Return a hashable key that is equal exactly for members that are the same."""
    if isinstance(member, tuple) and not is_scalar(member):
        return type(member), tuple([_identity(part) for part in member])
    if isinstance(member, frozenset):
        return FrozenSet if isinstance(member, FrozenSet) else frozenset, _identities(member)
    return scalar_identity(member) if is_scalar(member) else member
