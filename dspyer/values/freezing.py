"""`freeze`: from any supported value to its immutable form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dspyer.errors import UnsupportedValueError
from dspyer.values.frozen import (
    PLAIN,
    SCALARS,
    Container,
    CopyOnRead,
    FrozenDict,
    FrozenList,
    FrozenSet,
    check_depth,
    depth_of,
    freeze_key,
    is_scalar,
    rebuild_tuple,
    same_scalar,
    scalar_identity,
)
from dspyer.values.persistent import MapData, as_map, as_sequence
from dspyer.values.refusals import MAX_DEPTH, KeyPath, TooDeepError, refuse_depth, refuse_value
from dspyer.values.types import BUNDLE, kind_of

_FROZEN: frozenset[type] = frozenset({FrozenDict, FrozenList, FrozenSet, CopyOnRead})


def freeze(value: object, path: KeyPath = ()) -> Any:
    """The frozen form of a value: a deep, immutable copy that shares whatever is frozen already.

    Args:
        value: any supported value.
        path: where it is to be put, for error messages.

    Returns:
        The frozen value; `value` itself where it is frozen.

    Raises:
        UnsupportedValueError: something in it cannot be protected from later changes, or it is nested too deep.

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


def freeze_within(value: Any, path: KeyPath, room: int) -> Any:
    """`freeze` for a value that may have `room` levels.

    Raises:
        TooDeepError: it has more; nothing says where yet.
    """
    cls = type(value)
    if cls in SCALARS or cls in _FROZEN:
        return value
    if room <= 0:
        raise TooDeepError
    if cls is dict:
        return _mapping(value, path, room)
    if cls is list:
        return _list(value, path, room)
    if cls is tuple or cls is set or cls is frozenset:
        return _members(value, cls, path, room)
    return _other(value, path, room)


def _other(value: Any, path: KeyPath, room: int) -> Any:
    kind = kind_of(value)
    if kind is not None:
        content = kind.pack(value)
        return check_depth(
            CopyOnRead(kind, type(value), freeze_within(content, path, room - 1) if kind.freezes_content else content)
        )
    if is_scalar(value):
        return value
    if isinstance(value, FrozenDict):  # a state inside a value
        return FrozenDict._of(value._map, value._depth)
    if isinstance(value, Mapping):
        return _mapping(value, path, room)
    if isinstance(value, list):
        return _list(value, path, room)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _members(value, type(value), path, room)
    return refuse_value(value, path)


def _mapping(value: Mapping[Any, Any], path: KeyPath, room: int) -> Any:
    plain = {}
    depth = 0
    for key, item in value.items():
        name = key if type(key) is str else freeze_key(key, path)
        if type(item) in SCALARS:
            plain[name] = item
        else:
            plain[name] = frozen = freeze_within(item, (*path, name), room - 1)
            depth = max(depth, depth_of(frozen))
    new: FrozenDict[Any, Any] = FrozenDict._of(as_map(plain), depth + 1)
    return check_depth(new)


def _list(value: list[Any], path: KeyPath, room: int) -> Any:
    items = []
    depth = 0
    for index, item in enumerate(value):
        if type(item) in SCALARS:
            items.append(item)
        else:
            frozen = freeze_within(item, (*path, index), room - 1)
            items.append(frozen)
            depth = max(depth, depth_of(frozen))
    new: FrozenList[Any] = FrozenList._of(as_sequence(items), depth + 1)
    return check_depth(new)


def _members(value: Iterable[Any], cls: Any, path: KeyPath, room: int) -> Any:
    """Tuples and sets: themselves where every member is frozen, in a box where a member reads as a copy."""
    members = []
    changed = boxed = False
    for index, member in enumerate(value):
        part = member if type(member) in SCALARS else freeze_within(member, (*path, index), room - 1)
        changed = changed or part is not member
        boxed = boxed or type(part) is CopyOnRead
        members.append(part)
    frozen: Any = value
    if boxed or (issubclass(cls, tuple) and cls.__dictoffset__):
        frozen = CopyOnRead(BUNDLE, cls, tuple(members))
    elif cls is set:
        frozen = FrozenSet(members)
    elif changed:
        frozen = frozenset(members) if cls is frozenset else rebuild_tuple(cls, members)
    return check_depth(frozen)


Container._freeze = staticmethod(freeze)


# --------------------------------------------------------------------------------------------------------------------
# `same`: when two values have one type and one content, all the way down.


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
