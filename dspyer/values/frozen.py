"""Immutable values without parts: which types they have, and when two of them are the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import GenericAlias, NoneType
from typing import Any, ClassVar, NoReturn, Protocol, Self, TypeVar, cast, overload
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic_core import core_schema

from dspyer.errors import UnsupportedValueError, with_article
from dspyer.values.persistent import MapData, SequenceData, as_map, as_sequence, extended, with_key, without_key
from dspyer.values.refusals import MAX_DEPTH, KeyPath, TooDeepError, refuse_change, refuse_key, refuse_missing

ADDRESSES = (IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network)
PATHS = (PosixPath, PurePosixPath, PureWindowsPath, WindowsPath)

# Scalars for which equal values of one type are the same value.
PLAIN: frozenset[type] = frozenset(
    {NoneType, bool, int, str, bytes, date, timedelta, UUID, Fraction, range, *ADDRESSES, *PATHS}
)
# Scalars that compare equal although they differ: -0.0 and 0.0, 1.0 and 1.00, one instant in two time zones.
SUBTLE: frozenset[type] = frozenset({float, complex, Decimal, datetime, time, timezone, ZoneInfo})
SCALARS: frozenset[type] = PLAIN | SUBTLE

_BASES = (str, int, float, bytes, complex, datetime, date, time, timedelta, Decimal, UUID, Fraction)


def is_scalar(value: object) -> bool:
    """Whether a value is immutable and has no parts."""
    cls = type(value)
    return cls in SCALARS or isinstance(value, Enum) or scalar_base(cls) is not None or is_array_scalar(value)


def freeze_key(key: Any, path: KeyPath) -> Hashable:
    """A key of a mapping: a scalar, or a tuple of scalars.

    Raises:
        UnsupportedValueError: it is neither.
    """
    if is_scalar(key):
        return cast("Hashable", key)
    if isinstance(key, str):  # of a class whose instances can be given attributes
        return str.__str__(key)
    if type(key) is tuple:
        return tuple([freeze_key(part, path) for part in key])
    return refuse_key(key, path, "use a string, a number or another immutable value without parts")


def scalar_base(cls: type) -> type | None:
    """The scalar type behind a subclass whose instances cannot be given attributes; None for anything else."""
    if issubclass(cls, Enum) or cls.__dictoffset__:
        return None
    for base in _BASES:
        if issubclass(cls, base):
            return None if _is_numpy(cls) or _has_slots(cls, base) else base
    return None


def is_array_scalar(value: object) -> bool:
    """Whether a value is a scalar of numpy; structured ones (`numpy.void`) can be changed in place and are not."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and not isinstance(value, (numpy.void, numpy.object_))


def same_scalar(a: Any, b: Any) -> bool:
    """Whether two scalars have one type and one value; NaN is the same as NaN."""
    kind = type(a)
    if kind is not type(b):
        return False
    if kind in PLAIN:
        return bool(a == b)
    return bool(scalar_identity(a) == scalar_identity(b))


def scalar_identity(value: Any) -> object:
    """A hashable that is equal exactly for scalars that are the same."""
    kind = type(value)
    if kind in PLAIN or isinstance(value, Enum):
        return kind, value
    if isinstance(value, datetime | time):
        return kind, repr(value.replace(tzinfo=None)), str(value.utcoffset()), scalar_identity(value.tzinfo)
    if is_array_scalar(value):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, ZoneInfo) and value.key is not None:
        return kind, value.key
    return kind, repr(value) if scalar_base(kind) is None else _BASE_REPR[scalar_base(kind)](value)


def _is_numpy(cls: type) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and issubclass(cls, numpy.generic)


def _has_slots(cls: type, base: type) -> bool:
    return any(parent.__dict__.get("__slots__") for parent in cls.__mro__ if parent not in base.__mro__)


_BASE_REPR: dict[type | None, Any] = {base: base.__repr__ for base in _BASES}


# --------------------------------------------------------------------------------------------------------------------
# Frozen values that need work to be read: the base of all containers, and boxes for what is read as a copy.


Same = Callable[[object, object], bool]


class Container:
    """Base of the frozen values that have parts, tuples apart."""

    __slots__ = ()

    _freeze: ClassVar[Callable[..., Any]]  # `freeze`, which is built on the containers and puts itself here

    def _thaw(self) -> Any:
        raise NotImplementedError

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self


class NestedContainer(Container):
    """Base of the mappings and lists, which know how deep they are."""

    __slots__ = ("_depth", "_measured")

    _depth: int  # at least the number of levels, this one included
    _measured: int  # what `measured` gives; not there until `measure` was called

    def _parts(self) -> Iterable[Any]:
        raise NotImplementedError


def measured_size(value: object) -> int | None:
    """The size that `measure` has put on a mapping or list; None if there is none."""
    size: int | None = getattr(value, "_measured", None)
    return size


def store_size(value: object, size: int) -> None:
    """Remembers the size of a mapping or list as long as it lives. It is no part of the value."""
    if isinstance(value, NestedContainer):
        value._measured = size


def thaw(frozen: Any) -> Any:
    """A plain copy of a frozen value: dicts, lists, sets and models of the caller's own.

    Args:
        frozen: a value read from a state, or a state.

    Returns:
        The value with every immutable view replaced by the plain type.

    Example:
        >>> from dspyer.values.freezing import freeze
        >>> thaw(freeze({"tags": ["a"]}))
        {'tags': ['a']}
    """
    if type(frozen) in SCALARS:
        return frozen
    if isinstance(frozen, Container):
        return frozen._thaw()
    return _thaw_tuple(frozen) if isinstance(frozen, tuple) else frozen


def _thaw_tuple(frozen: tuple[Any, ...]) -> tuple[Any, ...]:
    items = []
    changed = False
    for item in frozen:
        plain = thaw(item)
        changed = changed or plain is not item
        items.append(plain)
    return rebuild_tuple(type(frozen), items) if changed else frozen


def rebuild_tuple(cls: type, items: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple or namedtuple of class `cls`."""
    return tuple(items) if cls is tuple else tuple.__new__(cls, items)


class ValueKind(Protocol):
    """How values of some type are kept as private copies."""

    name: str
    freezes_content: bool  # the content is made of supported values, and is frozen in its turn

    def pack(self, value: Any) -> Any:
        """The private content for a value: never handed out, if it is not frozen."""
        ...

    def unpack(self, cls: type, content: Any) -> Any:
        """A fresh value of class `cls` from the content."""
        ...

    def same(self, a: Any, b: Any, same: Same) -> bool:
        """Whether two contents are the same; `same` compares supported values."""
        ...


class CopyOnRead(Container):
    """A private copy of a value that could be changed in place; each read gives a fresh copy."""

    __slots__ = ("cls", "content", "kind")

    def __init__(self, kind: ValueKind, cls: type, content: Any) -> None:
        self.kind = kind
        self.cls = cls
        self.content = content

    def read(self) -> Any:
        """A fresh copy of the value."""
        return self.kind.unpack(self.cls, self.content)

    def _thaw(self) -> Any:
        return self.read()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CopyOnRead):
            return equal(self.read(), other)
        if self.cls is other.cls and equal(self.content, other.content):
            return True
        return equal(self.read(), other.read())

    def __hash__(self) -> int:
        return hash(self.read())

    def __repr__(self) -> str:
        return repr(self.read())

    def __reduce__(self) -> tuple[Any, ...]:
        return CopyOnRead, (self.kind, self.cls, self.content)


def equal(a: Any, b: Any) -> bool:
    """`==` as one truth value, also for arrays and for what holds them."""
    if a is b:
        return True
    if type(a) in SCALARS and type(b) in SCALARS:
        return bool(a == b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if not isinstance(a, Container) and getattr(a, "shape", ()) != getattr(b, "shape", ()):
        return False
    result = a == b
    return bool(result.all()) if hasattr(result, "all") else bool(result)


def container_schema(cls: type, plain: type, source: Any, handler: Any) -> Any:
    """How pydantic validates and writes a field that is annotated with a frozen container."""
    arguments = getattr(source, "__args__", ())

    def validate(value: Any, inner: Any) -> Any:
        return value if type(value) is cls and not arguments else cls(inner(value))

    return core_schema.no_info_wrap_validator_function(
        validate,
        handler.generate_schema(GenericAlias(plain, arguments) if arguments else plain),
        serialization=core_schema.plain_serializer_function_ser_schema(thaw),
    )


# --------------------------------------------------------------------------------------------------------------------
# How deep frozen values are nested. Containers carry an upper bound; it is made exact before anything is refused.


F = TypeVar("F")


def depth_of(frozen: Any) -> int:
    """At least the number of levels of a frozen value: none for a scalar; a box is a level of its own."""
    if type(frozen) in SCALARS:
        return 0
    if isinstance(frozen, NestedContainer):
        return frozen._depth
    if isinstance(frozen, CopyOnRead):
        return 1 + depth_of(frozen.content)
    if isinstance(frozen, tuple | frozenset):
        return 1 + _deepest(frozen)
    return 0


def _deepest(parts: Iterable[Any]) -> int:
    deepest = 0
    for part in parts:
        if type(part) not in SCALARS:
            deepest = max(deepest, depth_of(part))
    return deepest


def check_depth(frozen: F) -> F:
    """The frozen value itself, if it is not nested too deep. A bound that is too high is computed anew first.

    Raises:
        TooDeepError: it is nested too deep.
    """
    if depth_of(frozen) > MAX_DEPTH:
        _correct(frozen, set())
        if depth_of(frozen) > MAX_DEPTH:
            raise TooDeepError
    return frozen


def _correct(frozen: Any, seen: set[int]) -> None:
    """Make the bounds of a value and of all containers in it exact."""
    if type(frozen) in SCALARS or id(frozen) in seen:
        return
    seen.add(id(frozen))
    if isinstance(frozen, CopyOnRead):
        _correct(frozen.content, seen)
    elif isinstance(frozen, NestedContainer | tuple | frozenset):
        parts = frozen._parts() if isinstance(frozen, NestedContainer) else frozen
        for part in parts:
            _correct(part, seen)
        if isinstance(frozen, NestedContainer):
            frozen._depth = 1 + _deepest(parts)


# --------------------------------------------------------------------------------------------------------------------
# Immutable mappings of frozen values.


K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)
_ABSENT: Any = object()
_new = object.__new__


class FrozenDict(NestedContainer, Mapping[K, V_co]):
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

    __slots__ = ("_map",)

    _map: MapData[Any, Any]

    def __new__(cls, mapping: Mapping[K, V_co] | Iterable[tuple[K, V_co]] = ()) -> Self:
        """Freeze a mapping."""
        frozen = cls._freeze(mapping if isinstance(mapping, Mapping) else dict_of_pairs(mapping, cls))
        return cls._of(frozen._map, frozen._depth)

    @classmethod
    def _of(cls, data: MapData[Any, Any], depth: int) -> Self:
        new = _new(cls)
        new._map = data
        new._depth = depth
        return new

    @classmethod
    def flat(cls, entries: dict[str, Any]) -> Self:
        """A mapping of strings to scalars, made of a dict that nobody else has and that is not looked at."""
        return cls._of(as_map(entries), 1)

    _key = staticmethod(freeze_key)

    def __getitem__(self, key: K) -> V_co:
        value = self._map.get(key, _ABSENT)
        if value is _ABSENT:
            refuse_missing(key, self._map)
        return cast("V_co", value.read() if type(value) is CopyOnRead else value)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value under a key, `default` where there is none."""
        value = self._map.get(key, default)
        return value.read() if type(value) is CopyOnRead else value

    def raw(self, key: Any, default: Any = _ABSENT) -> Any:
        """The frozen value under a key, as it is kept: a box is not opened."""
        value = self._map.get(key, default)
        if value is _ABSENT:
            refuse_missing(key, self._map)
        return value

    def raw_items(self) -> Iterable[tuple[Any, Any]]:
        """Keys and frozen values, as they are kept, in insertion order."""
        return self._map.items()

    def items(self) -> ItemsView[K, V_co]:
        """A view of keys and values, in insertion order."""
        return _Items(self)

    def values(self) -> ValuesView[V_co]:
        """A view of the values, in insertion order."""
        return _Values(self)

    def set(self, key: Any, value: object) -> Self:
        """A mapping with `value` under `key`; the same mapping where this very object is there already."""
        if type(key) is not str:
            key = self._key(key, ())
        depth = self._depth
        if type(value) not in SCALARS:
            value = self._freeze(value, (key,))
            depth = max(depth, 1 + depth_of(value))
        if self._map.get(key, _ABSENT) is value:
            return self
        return check_depth(self._of(with_key(self._map, key, value), depth))

    def discard(self, key: Any) -> Self:
        """A mapping without `key`; the same mapping where it is not there."""
        data = without_key(self._map, key)
        return self if data is self._map else self._of(data, self._depth)

    def copy(self) -> dict[Any, Any]:
        """A plain dict, the caller's own down to the last value."""
        plain = {}
        for key, value in self._map.items():
            plain[key] = value if type(value) in SCALARS else thaw(value)
        return plain

    _thaw = copy

    def _parts(self) -> Iterable[Any]:
        return self._map.values()

    def __contains__(self, key: object) -> bool:
        return key in self._map

    def __iter__(self) -> Iterator[K]:
        return iter(self._map)

    def __reversed__(self) -> Iterator[K]:
        return reversed(list(iter(self)))

    def __len__(self) -> int:
        return len(self._map)

    def __eq__(self, other: object) -> bool:
        theirs: Any = other._map if isinstance(other, FrozenDict) else other
        if self._map is theirs:
            return True
        if type(self._map) is dict and isinstance(other, FrozenDict) and type(theirs) is dict:
            return self._map == theirs
        if not isinstance(other, Mapping):
            return NotImplemented
        if len(self._map) != len(theirs):
            return False
        return all(key in theirs and equal(value, theirs[key]) for key, value in self._map.items())

    def __hash__(self) -> int:
        return hash(frozenset(self._map.items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self._map.items())!r})"

    def __reduce__(self) -> tuple[Any, ...]:  # hashes differ between processes, so the storage is rebuilt
        return _restore_dict, (type(self), dict(self._map.items()), self._depth)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        refuse_change(
            with_article(type(self).__name__),
            "return a patch from the node, {'key': new_value}, nested for nested keys and with DELETE to remove one; "
            "or change a plain copy, `.copy()`",
        )

    __setitem__ = __delitem__ = pop = popitem = clear = update = setdefault = _refuse
    __ior__: Any = _refuse

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return container_schema(cls, dict, source, handler)


def dict_of_pairs(pairs: Any, cls: type) -> dict[Any, Any]:
    """The dict of pairs that a mapping is built from."""
    try:
        return dict(pairs)
    except (TypeError, ValueError):
        what, given = with_article(cls.__name__), with_article(type(pairs).__name__)
        text = f"{what} is built from a mapping or from pairs, not from {given}"
        raise UnsupportedValueError(text) from None


class _Items(ItemsView[Any, Any]):
    _mapping: Any

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for key, value in self._mapping.raw_items():
            yield key, value.read() if type(value) is CopyOnRead else value


class _Values(ValuesView[Any]):
    _mapping: Any

    def __iter__(self) -> Iterator[Any]:
        for _, value in self._mapping.raw_items():
            yield value.read() if type(value) is CopyOnRead else value


def _restore_dict(cls: Any, entries: dict[Any, Any], depth: int) -> Any:
    return cls._of(as_map(entries), depth)


# --------------------------------------------------------------------------------------------------------------------
# Immutable lists of frozen values.


T_co = TypeVar("T_co", covariant=True)


class FrozenList(NestedContainer, Sequence[T_co]):
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

    __slots__ = ("_seq",)

    _seq: SequenceData

    def __new__(cls, items: Iterable[T_co] = ()) -> Self:
        """Freeze the items."""
        return cast("Self", cls._freeze(list(items)))

    @classmethod
    def _of(cls, data: SequenceData, depth: int) -> Self:
        new = _new(cls)
        new._seq = data
        new._depth = depth
        return new

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> FrozenList[T_co]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return FrozenList._of(as_sequence(tuple(self._seq)[index]), self._depth)
        value = self._seq[index]
        return value.read() if type(value) is CopyOnRead else value

    def raw_items(self) -> Iterable[Any]:
        """The frozen items, as they are kept: boxes are not opened."""
        return cast("Iterable[Any]", self._seq)

    def raw(self, index: int) -> Any:
        """The frozen item at a place, as it is kept: a box is not opened."""
        return self._seq[index]

    def plus(self, items: Iterable[object]) -> FrozenList[Any]:
        """A list with `items` behind these; the same list where there are none."""
        more = tuple(items)
        if not more:
            return self
        depth = self._depth
        if len(more) == 1 and type(more[0]) not in SCALARS:  # the usual case, without lists
            more = (self._freeze(more[0], (len(self._seq),)),)
            depth = max(depth, 1 + depth_of(more[0]))
        elif not SCALARS.issuperset(map(type, more)):
            size = len(self._seq)
            more = tuple([self._freeze(item, (size + place,)) for place, item in enumerate(more)])
            depth = max(depth, 1 + max(map(depth_of, more)))
        new: FrozenList[Any] = FrozenList._of(extended(self._seq, more), depth)
        return new if depth == self._depth else check_depth(new)

    def copy(self) -> list[Any]:
        """A plain list, the caller's own down to the last item."""
        return [value if type(value) in SCALARS else thaw(value) for value in self._seq]

    _thaw = copy

    def _parts(self) -> Iterable[Any]:
        return cast("Iterable[Any]", self._seq)

    def __add__(self, other: Any) -> FrozenList[Any]:
        if isinstance(other, FrozenList):  # all of it is frozen already
            depth = max(self._depth, other._depth)
            return FrozenList._of(extended(self._seq, tuple(other._seq)), depth) if len(other) else self
        return self.plus(other) if isinstance(other, list) else NotImplemented

    def __radd__(self, other: Any) -> FrozenList[Any]:
        return FrozenList(other).plus(self._seq) if isinstance(other, list) else NotImplemented

    def __mul__(self, times: int) -> FrozenList[T_co]:
        return cast("FrozenList[T_co]", FrozenList._of(as_sequence(tuple(self._seq) * times), self._depth))

    __rmul__ = __mul__

    def __iter__(self) -> Iterator[T_co]:
        for value in self._seq:
            yield value.read() if type(value) is CopyOnRead else value

    def __len__(self) -> int:
        return len(self._seq)

    def __eq__(self, other: object) -> bool:
        theirs: Any = other._seq if isinstance(other, FrozenList) else other
        if self._seq is theirs:
            return True
        if not isinstance(other, FrozenList | list):
            return NotImplemented
        return len(self._seq) == len(theirs) and all(map(equal, self._seq, theirs))

    def __lt__(self, other: Any) -> bool:
        return list(self) < list(other) if isinstance(other, FrozenList | list) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return list(self) <= list(other) if isinstance(other, FrozenList | list) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return list(self) > list(other) if isinstance(other, FrozenList | list) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return list(self) >= list(other) if isinstance(other, FrozenList | list) else NotImplemented

    def __hash__(self) -> int:
        return hash((FrozenList, tuple(self._seq)))

    def __repr__(self) -> str:
        return f"FrozenList({list(self._seq)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_list, (tuple(self._seq), self._depth)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        refuse_change(
            "a list of a state",
            "return a new list, {'items': items + [item]}; or give the field the reducer `append` or `extend` and "
            "return the new items alone; or change a plain copy, `.copy()`",
        )

    __setitem__ = __delitem__ = append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return container_schema(cls, list, source, handler)


def _restore_list(items: tuple[Any, ...], depth: int) -> Any:
    return FrozenList._of(as_sequence(items), depth)


# --------------------------------------------------------------------------------------------------------------------
# Immutable sets of frozen values.


class FrozenSet(Container, frozenset[Any]):
    """A frozenset that was a set, and becomes one again as a plain value."""

    __slots__ = ()

    def copy(self) -> Any:
        """A plain set, the caller's own."""
        return set(self)

    _thaw = copy

    def __or__(self, other: Any) -> Any:
        return _as_set(frozenset.__or__(self, other))

    def __and__(self, other: Any) -> Any:
        return _as_set(frozenset.__and__(self, other))

    def __sub__(self, other: Any) -> Any:
        return _as_set(frozenset.__sub__(self, other))

    def __xor__(self, other: Any) -> Any:
        return _as_set(frozenset.__xor__(self, other))

    def __repr__(self) -> str:
        return f"FrozenSet({set(self)!r})" if self else "FrozenSet()"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        refuse_change(
            "a set of a state",
            "return a new set, {'seen': seen | {item}}; or give the field the reducer `union` and return the new items "
            "alone; or change a plain copy, `.copy()`",
        )

    add = discard = remove = pop = clear = update = _refuse
    difference_update = intersection_update = symmetric_difference_update = _refuse

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return container_schema(cls, set, source, handler)


def _as_set(result: Any) -> Any:
    return FrozenSet(result) if isinstance(result, frozenset) else result
