"""Immutable mappings and lists of frozen values, and `freeze`, which makes them."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from types import GenericAlias
from typing import Any, NoReturn, TypeVar, cast, overload

from pydantic_core import core_schema

from ._boxes import Box, Container, Path, equal, rebuild_tuple, thaw
from ._kinds import BUNDLE, kind_of
from ._persistent import MapData, SequenceData, as_map, as_sequence, extended, with_key, without_key
from ._refusals import MAX_DEPTH, SLACK, TooDeep, refuse_depth, refuse_key, refuse_value
from ._scalars import SCALARS, is_scalar
from .errors import ImmutableError, UnsetFieldError, UnsupportedValueError

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)
_RAISE: Any = object()
_new = object.__new__


class FrozenDict(Container, Mapping[K, V_co]):
    """An immutable mapping in insertion order; equal to the plain dict with the same items.

    Args:
        mapping: what to freeze, a mapping or pairs.

    Raises:
        UnsupportedValueError: a value in it cannot be protected from later changes.

    Example:
        >>> user = FrozenDict({"name": "Ada", "tags": ["a"]})
        >>> user == {"name": "Ada", "tags": ["a"]}
        True
        >>> user.set("name", "Bob")
        FrozenDict({'name': 'Bob', 'tags': FrozenList(['a'])})
    """

    __slots__ = ("_depth", "_map")

    _map: MapData[Any, Any]
    _depth: int  # at least the number of levels below and with this one

    def __new__(cls, mapping: Mapping[K, V_co] | Iterable[tuple[K, V_co]] = ()) -> FrozenDict[K, V_co]:
        plain = mapping if isinstance(mapping, Mapping) else dict(mapping)
        frozen = freeze(plain)
        return cls._of(frozen._map, frozen._depth)

    @classmethod
    def _of(cls, data: MapData[Any, Any], depth: int) -> Any:
        new = _new(cls)
        new._map = data
        new._depth = depth
        return new

    def __getitem__(self, key: K) -> V_co:
        try:
            value = self._map[key]
        except KeyError:
            raise UnsetFieldError(self._missing(key)) from None
        return value.open() if type(value) is Box else value

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._map.get(key, default)
        return value.open() if type(value) is Box else value

    def raw(self, key: Any, default: Any = _RAISE) -> Any:
        """The frozen value under a key, as it is kept: a box is not opened."""
        value = self._map.get(key, default)
        if value is _RAISE:
            raise UnsetFieldError(self._missing(key))
        return value

    def raw_items(self) -> Iterable[tuple[Any, Any]]:
        """Keys and frozen values, as they are kept, in insertion order."""
        return self._map.items()

    def items(self) -> ItemsView[K, V_co]:
        return _Items(self)

    def values(self) -> ValuesView[V_co]:
        return _Values(self)

    def set(self, key: Any, frozen: object) -> Any:
        """A mapping with a frozen value under `key`; the same mapping where it is there already."""
        if self._map.get(key, _RAISE) is frozen:
            return self
        depth = self._depth
        if type(frozen) not in SCALARS:
            depth = max(depth, 1 + depth_of(frozen))
        return checked(self._of(with_key(self._map, key, frozen), depth))

    def discard(self, key: Any) -> Any:
        """A mapping without `key`; the same mapping where it is not there."""
        data = without_key(self._map, key)
        return self if data is self._map else self._of(data, self._depth)

    def __contains__(self, key: object) -> bool:
        return key in self._map

    def __iter__(self) -> Iterator[K]:
        return iter(self._map)

    def __reversed__(self) -> Iterator[K]:
        return reversed(tuple(self._map))

    def __len__(self) -> int:
        return len(self._map)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, FrozenDict):
            other_map = other._map
            if type(self._map) is dict and type(other_map) is dict:
                return self._map == other_map
        elif isinstance(other, Mapping):
            other_map = cast("dict[Any, Any]", other)
        else:
            return NotImplemented
        if self._map is other_map:
            return True
        if len(self._map) != len(other_map):
            return False
        for key, value in self._map.items():
            theirs = other_map.get(key, _RAISE)
            if theirs is not value and (theirs is _RAISE or not equal(value, theirs)):
                return False
        return True

    def __hash__(self) -> int:
        return hash(frozenset(self._map.items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self._map.items())!r})"

    def __reduce__(self) -> tuple[Any, ...]:  # hashes differ between processes, so the storage is rebuilt
        return _restore_dict, (type(self), dict(self._map.items()), self._depth)

    def _thaw(self) -> dict[Any, Any]:
        plain = {}
        for key, value in self._map.items():
            plain[key] = value if type(value) in SCALARS else thaw(value)
        return plain

    def _missing(self, key: object) -> str:
        keys = [known for known in self._map if isinstance(known, str)] if len(self._map) <= 1000 else []
        near = difflib.get_close_matches(key, keys, 3) if isinstance(key, str) else []
        if near:
            return f"no key {key!r} here; did you mean {' or '.join(map(repr, near))}?"
        shown = ", ".join(map(repr, list(self._map)[:10])) if len(self._map) <= 1000 else ""
        return f"no key {key!r} among the {len(self._map)} here{': ' + shown if shown else ''}"

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise ImmutableError(
            f"a {type(self).__name__} cannot be changed in place: return a patch from the node instead, for example "
            f"{{'key': new_value}} (a nested one for nested keys, DELETE to remove a key)"
        )

    __setitem__ = __delitem__ = pop = popitem = clear = update = setdefault = _refuse
    __ior__: Any = _refuse

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _pydantic_schema(cls, dict, source, handler)


class _Items(ItemsView[Any, Any]):
    _mapping: Any

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for key, value in self._mapping.raw_items():
            yield key, value.open() if type(value) is Box else value


class _Values(ValuesView[Any]):
    _mapping: Any

    def __iter__(self) -> Iterator[Any]:
        for _, value in self._mapping.raw_items():
            yield value.open() if type(value) is Box else value


class FrozenList(Container, Sequence[V_co]):
    """An immutable list; equal to the plain list with the same items. `+` with a list, on either side, gives a new one.

    Args:
        items: what to freeze.

    Raises:
        UnsupportedValueError: an item cannot be protected from later changes.

    Example:
        >>> tags = FrozenList(["a"])
        >>> tags + ["b"]
        FrozenList(['a', 'b'])
        >>> tags == ["a"]
        True
    """

    __slots__ = ("_depth", "_seq")

    _seq: SequenceData
    _depth: int

    def __new__(cls, items: Iterable[V_co] = ()) -> FrozenList[V_co]:
        return cast("FrozenList[V_co]", freeze(list(items)))

    @classmethod
    def _of(cls, data: SequenceData, depth: int) -> Any:
        new = _new(cls)
        new._seq = data
        new._depth = depth
        return new

    @overload
    def __getitem__(self, index: int) -> V_co: ...
    @overload
    def __getitem__(self, index: slice) -> FrozenList[V_co]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return FrozenList._of(as_sequence(tuple(self._seq)[index]), self._depth)
        value = self._seq[index]
        return value.open() if type(value) is Box else value

    def raw_items(self) -> Iterable[Any]:
        """The frozen items, as they are kept: boxes are not opened."""
        return cast("Iterable[Any]", self._seq)

    def plus(self, frozen: Iterable[object]) -> FrozenList[Any]:
        """A list with frozen items behind these; the same list where there are none."""
        items = tuple(frozen)
        if not items:
            return self
        depth = self._depth
        for item in items:
            if type(item) not in SCALARS:
                depth = max(depth, 1 + depth_of(item))
        return cast("FrozenList[Any]", checked(FrozenList._of(extended(self._seq, items), depth)))

    def __add__(self, other: Sequence[Any]) -> FrozenList[Any]:
        if isinstance(other, FrozenList):
            return self.plus(other._seq)
        if not isinstance(other, list):
            return NotImplemented
        size = len(self._seq)
        return self.plus(
            [item if type(item) in SCALARS else freeze(item, (size + i,)) for i, item in enumerate(other)]
        )

    def __radd__(self, other: list[Any]) -> FrozenList[Any]:
        return FrozenList(other).plus(self._seq) if isinstance(other, list) else NotImplemented

    def __mul__(self, times: int) -> FrozenList[V_co]:
        return cast("FrozenList[V_co]", FrozenList._of(as_sequence(tuple(self._seq) * times), self._depth))

    __rmul__ = __mul__

    def __iter__(self) -> Iterator[V_co]:
        for value in self._seq:
            yield value.open() if type(value) is Box else value

    def __len__(self) -> int:
        return len(self._seq)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, FrozenList):
            theirs = other._seq
        elif isinstance(other, list):
            theirs = other
        else:
            return NotImplemented
        if len(self._seq) != len(theirs):
            return False
        for a, b in zip(self._seq, theirs, strict=True):
            if a is not b and not equal(a, b):
                return False
        return True

    def __lt__(self, other: Any) -> bool:
        return list(self) < list(other) if isinstance(other, list | FrozenList) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return list(self) <= list(other) if isinstance(other, list | FrozenList) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return list(self) > list(other) if isinstance(other, list | FrozenList) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return list(self) >= list(other) if isinstance(other, list | FrozenList) else NotImplemented

    def __hash__(self) -> int:
        return hash((FrozenList, tuple(self._seq)))

    def __repr__(self) -> str:
        return f"FrozenList({list(self._seq)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_list, (tuple(self._seq), self._depth)

    def _thaw(self) -> list[Any]:
        plain = []
        for value in self._seq:
            plain.append(value if type(value) in SCALARS else thaw(value))
        return plain

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise ImmutableError(
            "a list of a state cannot be changed in place: return a new list instead, for example "
            "{'items': items + [item]}, or give the field the reducer `append` or `extend` and return the new items alone"
        )

    __setitem__ = __delitem__ = append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _pydantic_schema(cls, list, source, handler)


class FrozenSet(Container, frozenset[Any]):
    """A frozenset that was a set, and becomes one again as a plain value."""

    __slots__ = ()

    def _thaw(self) -> set[Any]:
        return set(self)

    def __repr__(self) -> str:
        return f"FrozenSet({set(self)!r})" if self else "FrozenSet()"

    def __or__(self, other: Any) -> Any:
        return _as_set(frozenset.__or__(self, other))

    def __and__(self, other: Any) -> Any:
        return _as_set(frozenset.__and__(self, other))

    def __sub__(self, other: Any) -> Any:
        return _as_set(frozenset.__sub__(self, other))

    def __xor__(self, other: Any) -> Any:
        return _as_set(frozenset.__xor__(self, other))

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise ImmutableError(
            "a set of a state cannot be changed in place: return a new set instead, for example {'seen': seen | {item}}, "
            "or give the field the reducer `union` and return the new items alone"
        )

    add = discard = remove = pop = clear = update = _refuse
    difference_update = intersection_update = symmetric_difference_update = _refuse


def _as_set(result: Any) -> Any:
    return FrozenSet(result) if isinstance(result, frozenset) else result


def freeze(value: object, path: Path = ()) -> Any:
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
    if type(value) in SCALARS:
        return value
    try:
        return _freeze(value, path)
    except TooDeep:
        refuse_depth(value, path, UnsupportedValueError)


def _freeze(value: Any, path: Path) -> Any:
    """`freeze` without the explanation of what is nested too deep. The length of the path bounds the recursion."""
    cls = type(value)
    if cls is dict:
        return _freeze_mapping(value, path)
    if cls is list:
        return _freeze_list(value, path)
    if cls in _FROZEN or cls in SCALARS:
        return value
    if cls is tuple:
        return _freeze_members(value, tuple, path)
    if cls is set or cls is frozenset:
        return _freeze_members(value, cls, path)
    return _freeze_other(value, path)


def _freeze_other(value: Any, path: Path) -> Any:
    kind = kind_of(value)
    if kind is not None:
        return Box(kind, type(value), kind.pack(value, _freeze, path))
    if is_scalar(value):
        return value
    if isinstance(value, FrozenDict):
        return FrozenDict._of(value._map, value._depth)
    if isinstance(value, Mapping):
        return _freeze_mapping(value, path)
    if isinstance(value, list):
        return _freeze_list(value, path)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _freeze_members(value, type(value), path)
    refuse_value(value, path)


def _freeze_mapping(value: Mapping[Any, Any], path: Path) -> FrozenDict[Any, Any]:
    if len(path) > MAX_DEPTH + SLACK:
        raise TooDeep
    plain = {}
    depth = 0
    for key, item in value.items():
        if type(key) is not str:
            key = freeze_key(key, path)
        if type(item) not in SCALARS:
            item = _freeze(item, (*path, key))
            below = depth_of(item)
            if below > depth:
                depth = below
        plain[key] = item
    return cast("FrozenDict[Any, Any]", checked(FrozenDict._of(as_map(plain), depth + 1)))


def _freeze_list(value: list[Any], path: Path) -> FrozenList[Any]:
    if len(path) > MAX_DEPTH + SLACK:
        raise TooDeep
    items = []
    depth = 0
    for index, item in enumerate(value):
        if type(item) not in SCALARS:
            item = _freeze(item, (*path, index))
            below = depth_of(item)
            if below > depth:
                depth = below
        items.append(item)
    return cast("FrozenList[Any]", checked(FrozenList._of(as_sequence(items), depth + 1)))


def _freeze_members(value: Iterable[Any], cls: type, path: Path) -> Any:
    """Tuples and sets: kept as they are where every member is, boxed where a member reads as a copy."""
    if len(path) > MAX_DEPTH + SLACK:
        raise TooDeep
    members = []
    changed = boxed = False
    for index, member in enumerate(value):
        if type(member) not in SCALARS:
            frozen = _freeze(member, (*path, index))
            changed = changed or frozen is not member
            boxed = boxed or type(frozen) is Box
            member = frozen
        members.append(member)
    if boxed or (issubclass(cls, tuple) and cls.__dictoffset__):
        return Box(BUNDLE, cls, tuple(members))
    if issubclass(cls, tuple):
        frozen = rebuild_tuple(cls, members) if changed else value
        if depth_of(frozen) > MAX_DEPTH:
            raise TooDeep
        return frozen
    return FrozenSet(members) if cls is set else frozenset(members) if changed else value


def freeze_key(key: Any, path: Path) -> Hashable:
    """A key of a mapping: a scalar, or a tuple of scalars."""
    if isinstance(key, str) and type(key).__str__ is str.__str__:
        return str(key)
    if is_scalar(key) and type(key).__hash__ is not None:
        return cast(Hashable, key)
    if type(key) is tuple:
        return tuple([freeze_key(part, path) for part in key])
    refuse_key(key, path)


def depth_of(frozen: Any) -> int:
    """At least the number of levels of a frozen value: 0 for a scalar, 1 for a flat container."""
    cls = type(frozen)
    if cls in SCALARS:
        return 0
    if cls is FrozenDict or cls is FrozenList:
        return cast(int, frozen._depth)
    if cls is Box:
        return depth_of(frozen.content)
    if isinstance(frozen, FrozenDict):
        return frozen._depth
    if isinstance(frozen, tuple | frozenset):
        below = 0
        for member in frozen:
            if type(member) not in SCALARS:
                below = max(below, depth_of(member))
        return below + 1
    return 0


def checked(frozen: Any) -> Any:
    """The container itself, if it is not nested too deep. A bound that is too high is computed anew first."""
    if frozen._depth > MAX_DEPTH and _exact_depth(frozen) > MAX_DEPTH:
        raise TooDeep
    return frozen


def _exact_depth(frozen: Any) -> int:
    """The number of levels; corrects the bounds of the containers on the way."""
    if isinstance(frozen, FrozenDict | FrozenList):
        if type(frozen) is FrozenList:
            parts: Iterable[Any] = frozen._seq
        else:
            parts = frozen._map.values()
        frozen._depth = 1 + max((_exact_depth(part) for part in parts if depth_of(part)), default=0)
        return frozen._depth
    if isinstance(frozen, Box):
        return _exact_depth(frozen.content)
    if isinstance(frozen, tuple | frozenset):
        return 1 + max((_exact_depth(part) for part in frozen), default=0)
    return 0


def _restore_dict(cls: Any, entries: dict[Any, Any], depth: int) -> Any:
    return cls._of(as_map(entries), depth)


def _restore_list(items: tuple[Any, ...], depth: int) -> Any:
    return FrozenList._of(as_sequence(items), depth)


def _pydantic_schema(cls: type, plain: type, source: Any, handler: Any) -> Any:
    args = getattr(source, "__args__", ())
    inner = handler.generate_schema(GenericAlias(plain, args) if args else plain)
    return core_schema.no_info_after_validator_function(
        cls, inner, serialization=core_schema.plain_serializer_function_ser_schema(thaw)
    )


_FROZEN: frozenset[type] = frozenset({FrozenDict, FrozenList, FrozenSet, Box})
