"""`same`: when two values have one type and one content, all the way down."""

from __future__ import annotations

from typing import Any

from dspyer.values._boxes import CopyOnRead
from dspyer.values._dicts import FrozenDict
from dspyer.values._freezing import freeze
from dspyer.values._lists import FrozenList
from dspyer.values._persistent import MapData
from dspyer.values._scalars import PLAIN, SCALARS, is_scalar, same_scalar, scalar_identity
from dspyer.values._sets import FrozenSet

_ABSENT: Any = object()
_MAPS = (FrozenDict, dict)  # tuples: a union would be made anew at each test
_LISTS = (FrozenList, list)
_SETS = (FrozenSet, set)


def same(a: Any, b: Any) -> bool:
    """Whether two values have one type and one content, all the way down.

    Stricter than `==`: `1`, `True` and `1.0` differ, and so do `-0.0` and `0.0`. NaN is the same as NaN, arrays give
    one truth value, and a view counts as the plain type that it stands for.

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
    return _same_plain(a, b)


def _same_plain(a: Any, b: Any) -> bool:
    """Models and the like that are not frozen yet."""
    return type(a) is type(b) and same(freeze(a), freeze(b))


def _map_of(value: Any) -> MapData[Any, Any]:
    return value._map if isinstance(value, FrozenDict) else value


def _items_of(value: Any) -> Any:
    return value.raw_items() if isinstance(value, FrozenList) else value


def _same_maps(a: MapData[Any, Any], b: MapData[Any, Any]) -> bool:
    if a is b:
        return True
    if len(a) != len(b):
        return False
    odd = False
    for key, value in a.items():
        theirs = b.get(key, _ABSENT)
        if theirs is not value and (theirs is _ABSENT or not same(value, theirs)):
            return False
        odd = odd or type(key) is not str
    return not odd or _identities(a) == _identities(b)


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
    """A hashable that is equal exactly for members that are the same."""
    if isinstance(member, tuple) and not is_scalar(member):
        return type(member), tuple([_identity(part) for part in member])
    if isinstance(member, frozenset):
        return FrozenSet if isinstance(member, FrozenSet) else frozenset, _identities(member)
    return scalar_identity(member) if is_scalar(member) else member
