"""`freeze`: from any supported value to its immutable form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dspyer.errors import UnsupportedValueError
from dspyer.values._boxes import Container, CopyOnRead, KeyPath, rebuild_tuple
from dspyer.values._depth import check_depth, depth_of
from dspyer.values._dicts import FrozenDict
from dspyer.values._kinds import BUNDLE, kind_of
from dspyer.values._lists import FrozenList
from dspyer.values._persistent import as_map, as_sequence
from dspyer.values._refusals import MAX_DEPTH, TooDeepError, refuse_depth, refuse_value
from dspyer.values._scalars import SCALARS, freeze_key, is_scalar
from dspyer.values._sets import FrozenSet

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
            CopyOnRead(kind, type(value), freeze_within(content, path, room - 1) if kind.in_parts else content)
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
