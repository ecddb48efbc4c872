"""Frozen values: immutable mappings, lists and sets, private copies of everything else, and `thaw`.

A frozen value is a scalar (see `scalars`), a tuple or frozenset of frozen values, or one of the containers of this
file. `FrozenDict` and `FrozenList` store persistent maps and vectors, so versions share whatever did not change. A
value that could be changed in place and has no frozen form of its own (a model, a dataclass, an array) is stored as a
`CopyOnRead`: a private copy, of which each read gives a new copy. `freeze` is in `freezing`.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from functools import partial, total_ordering
from types import GenericAlias
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar, cast, overload

from pydantic_core import core_schema

from dspyer.errors import UnsupportedValueError, with_article
from dspyer.values.persistent import MapData, SequenceData, as_map, as_sequence, extended, with_key, without_key
from dspyer.values.scalars import MAX_DEPTH, SCALARS, TooDeepError, Uncopied, freeze_key, refuse_change, refuse_missing

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F")
FoundT = TypeVar("FoundT")
Same = Callable[[object, object], bool]
_ABSENT: Any = object()
_GENERATION = 16  # containers in a half of `RecentFindings`
_new = object.__new__


class Container(Uncopied):
    """Base of the frozen values that have parts, except tuples and frozensets, which are Python's own classes."""

    __slots__ = ()

    # Set by `freezing`, which imports this module: freezing and containers need each other.
    _freeze: ClassVar[Callable[..., Any]]

    def _thaw(self) -> Any:
        raise NotImplementedError


class NestedContainer(Container):
    """Base of the mappings and lists, which carry an upper bound of their depth and may carry their size."""

    __slots__ = ("_depth", "_measured")

    _depth: int  # at least the number of levels, including this one
    _measured: int  # set by `store_size`, unset before; not part of the value

    def _parts(self) -> Iterable[Any]:
        raise NotImplementedError


# --- mappings


class FrozenDict(NestedContainer, Mapping[K, V_co]):
    """An immutable mapping in insertion order; equal to a plain dict with the same items.

    Args:
        mapping: a mapping, or pairs of key and value; the values are frozen.

    Raises:
        UnsupportedValueError: a value cannot be protected from later changes.

    Example:
        >>> user = FrozenDict({"name": "Ada", "tags": ["a"]})
        >>> user == {"name": "Ada", "tags": ["a"]}
        True
        >>> user.set("name", "Bob")
        FrozenDict({'name': 'Bob', 'tags': FrozenList(['a'])})
    """

    __slots__ = ("__weakref__", "_map")

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
    def from_scalars(cls, entries: dict[str, Any]) -> Self:
        """Wrap a fresh `dict[str, scalar]` without copying or validating it; the caller must not keep it.

        Example:
            >>> FrozenDict.from_scalars({"a": 1})
            FrozenDict({'a': 1})
        """
        return cls._of(as_map(entries), 1)

    _key = staticmethod(freeze_key)

    def __getitem__(self, key: K) -> V_co:
        value = self._map.get(key, _ABSENT)
        if value is _ABSENT:
            refuse_missing(key, self._map)
        return cast("V_co", value.read() if type(value) is CopyOnRead else value)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or `default` if the key is absent.

        Example:
            >>> FrozenDict({"a": 1}).get("b", 0)
            0
        """
        value = self._map.get(key, default)
        return value.read() if type(value) is CopyOnRead else value

    def raw(self, key: Any, default: Any = _ABSENT) -> Any:
        """Return the frozen value of a key as it is stored: a `CopyOnRead` is not read.

        Args:
            key: the key.
            default: what to return if the key is absent.

        Returns:
            The frozen value.

        Raises:
            UnsetFieldError: the key is absent and there is no default.

        Example:
            >>> import decimal
            >>> FrozenDict({"a": [decimal.Decimal(1)]}).raw("a")
            FrozenList([Decimal('1')])
        """
        value = self._map.get(key, default)
        if value is _ABSENT:
            refuse_missing(key, self._map)
        return value

    def raw_items(self) -> Iterable[tuple[Any, Any]]:
        """Return keys and frozen values as they are stored, in insertion order.

        Example:
            >>> list(FrozenDict({"a": 1}).raw_items())
            [('a', 1)]
        """
        return self._map.items()

    def items(self) -> ItemsView[K, V_co]:
        """Return a view of keys and values, in insertion order.

        Example:
            >>> list(FrozenDict({"a": 1}).items())
            [('a', 1)]
        """
        return _Items(self)

    def values(self) -> ValuesView[V_co]:
        """Return a view of the values, in insertion order.

        Example:
            >>> list(FrozenDict({"a": 1}).values())
            [1]
        """
        return _Values(self)

    def set(self, key: Any, value: object) -> Self:
        """Return a mapping with `key` set to `value`; the same mapping if this very object is its value already.

        Args:
            key: the key; an existing one keeps its position.
            value: the value; it is frozen.

        Returns:
            The new mapping.

        Raises:
            UnsupportedValueError: the value cannot be protected from later changes.

        Example:
            >>> FrozenDict({"a": 1}).set("b", 2)
            FrozenDict({'a': 1, 'b': 2})
        """
        if type(key) is not str:
            key = self._key(key, ())
        depth = self._depth
        if type(value) not in SCALARS:
            value = self._freeze(value, (key,))
            depth = max(depth, 1 + depth_of(value))
        # Identity costs nothing; a caller that asks for equal values compares them before.
        if self._map.get(key, _ABSENT) is value:
            return self
        return check_depth(self._of(with_key(self._map, key, value), depth))

    def discard(self, key: Any) -> Self:
        """Return a mapping without `key`; the same mapping if the key is absent.

        Example:
            >>> FrozenDict({"a": 1}).discard("a")
            FrozenDict({})
        """
        data = without_key(self._map, key)
        return self if data is self._map else self._of(data, self._depth)

    def copy(self) -> dict[Any, Any]:
        """Return a plain dict, deeply copied.

        Example:
            >>> FrozenDict({"a": [1]}).copy()
            {'a': [1]}
        """
        data = self._map
        plain = data.copy() if type(data) is dict else dict(data.items())
        if self._depth > 1:  # else it has scalars only
            for key, value in data.items():
                if type(value) not in SCALARS:
                    plain[key] = value._thaw() if isinstance(value, Container) else thaw(value)
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

    def __reduce__(self) -> tuple[Any, ...]:  # hashes of strings differ between processes: the storage is rebuilt
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
    """Return the dict of the pairs from which a `cls` is built."""
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


# --- lists


@total_ordering
class FrozenList(NestedContainer, Sequence[T_co]):
    """An immutable list; equal to a plain list with the same items. `+` with a list, on either side, gives a new one.

    Args:
        items: the items; they are frozen.

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
        """Return the frozen items as they are stored: a `CopyOnRead` is not read.

        Example:
            >>> list(FrozenList([1, [2]]).raw_items())
            [1, FrozenList([2])]
        """
        return cast("Iterable[Any]", self._seq)

    def raw(self, index: int) -> Any:
        """Return the frozen item at an index as it is stored: a `CopyOnRead` is not read.

        Example:
            >>> FrozenList([1, [2]]).raw(1)
            FrozenList([2])
        """
        return self._seq[index]

    def plus(self, items: Iterable[object]) -> FrozenList[Any]:
        """Return a list with `items` added at the end; the same list if there are none.

        Args:
            items: the new items; they are frozen.

        Returns:
            The new list.

        Raises:
            UnsupportedValueError: an item cannot be protected from later changes.

        Example:
            >>> FrozenList([1]).plus([2, 3])
            FrozenList([1, 2, 3])
        """
        more = tuple(items)
        if not more:
            return self
        depth = self._depth
        if len(more) == 1 and type(more[0]) not in SCALARS:  # most calls: an `append` of one container
            more = (self._freeze(more[0], (len(self._seq),)),)
            depth = max(depth, 1 + depth_of(more[0]))
        elif not SCALARS.issuperset(map(type, more)):
            size = len(self._seq)
            more = tuple([self._freeze(item, (size + number,)) for number, item in enumerate(more)])
            depth = max(depth, 1 + max(map(depth_of, more)))
        new: FrozenList[Any] = FrozenList._of(extended(self._seq, more), depth)
        return new if depth == self._depth else check_depth(new)

    def copy(self) -> list[Any]:
        """Return a plain list, deeply copied.

        Example:
            >>> FrozenList([1, [2]]).copy()
            [1, [2]]
        """
        items = self._seq if type(self._seq) is tuple else self._seq.tolist()
        if self._depth == 1:  # it has scalars only
            return list(items)
        return [value if type(value) in SCALARS else thaw(value) for value in items]

    _thaw = copy

    def _parts(self) -> Iterable[Any]:
        return cast("Iterable[Any]", self._seq)

    def __add__(self, other: Any) -> FrozenList[Any]:
        if isinstance(other, FrozenList):  # both are frozen already
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


# --- sets


class FrozenSet(Container, frozenset[Any]):
    """The frozen form of a `set`: a frozenset that `thaw` turns into a set again."""

    __slots__ = ("_measured",)

    _measured: int  # as in `NestedContainer`

    def copy(self) -> Any:
        """Return a plain set.

        Example:
            >>> FrozenSet([1]).copy()
            {1}
        """
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

    def __reduce__(self) -> tuple[Any, ...]:  # without the size, which is not part of the value
        return FrozenSet, (list(self),)

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


# --- private copies of values that could be changed in place


class CopyOnRead(Container):
    """A private copy of a value that could be changed in place, such as a model or an array. Each read copies it."""

    __slots__ = ("_copier", "cls", "content", "kind")

    def __init__(self, kind: ValueKind, cls: type, content: Any) -> None:
        self.kind = kind
        self.cls = cls
        self.content = content
        self._copier: Callable[[], Any] | None = None  # made by the first read

    def read(self) -> Any:
        """Return a new copy of the value."""
        copier = self._copier
        if copier is None:
            copier = self._copier = self.kind.copier(self.cls, self.content)
        return copier()

    _thaw = read

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


class ValueKind:
    """The way in which values of a type are kept as private copies: one for dataclasses, one for models, and so on.

    A kind has one instance, which is pickled as the name of a constant of its module.
    """

    name = ""
    freezes_content = False
    """True if the content consists of supported values and is frozen itself."""

    def pack(self, value: Any) -> Any:
        """Return the private content for a value. Content that is not frozen never leaves its `CopyOnRead`."""
        return value

    def copier(self, cls: type, content: Any) -> Callable[[], Any]:
        """Return a function that returns a new value of class `cls` from the content, at each call."""
        raise NotImplementedError

    def same(self, a: Any, b: Any, same: Same) -> bool:
        """Return whether two contents are the same; `same` compares supported values."""
        return same(a, b)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return self.name.upper()


# --- plain copies


def thaw(frozen: Any) -> Any:
    """Return a plain copy of a frozen value: dicts, lists, sets and models that the caller may change.

    Args:
        frozen: a value read from a state, or a state.

    Returns:
        The value with every frozen container replaced by the plain type.

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


def copier_of(frozen: Any) -> Callable[[], Any]:
    """Return a function that returns a plain copy of a frozen value with parts, at each call, as `thaw` does."""
    if isinstance(frozen, NestedContainer) and frozen._depth == 1:  # it has scalars only
        if isinstance(frozen, FrozenDict):
            return frozen._map.copy if type(frozen._map) is dict else frozen.copy
        return partial(list, frozen._parts()) if frozen._parts() else list
    if type(frozen) is CopyOnRead:
        return frozen.read
    return partial(thaw, frozen)


def _thaw_tuple(frozen: tuple[Any, ...]) -> tuple[Any, ...]:
    items = []
    changed = False
    for item in frozen:
        plain = thaw(item)
        changed = changed or plain is not item
        items.append(plain)
    return rebuild_tuple(type(frozen), items) if changed else frozen


def rebuild_tuple(cls: type, items: Iterable[Any]) -> tuple[Any, ...]:
    """Return a tuple or namedtuple of class `cls`, without a call of its `__new__`."""
    return tuple(items) if cls is tuple else tuple.__new__(cls, items)


# --- equality


def equal(a: Any, b: Any) -> bool:
    """Return `a == b` as one truth value, also for arrays, whose `==` gives an array, and for values that hold them."""
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


# --- depth: containers carry an upper bound, which is made exact before anything is refused


def check_depth(frozen: F) -> F:
    """Return the frozen value, or raise `TooDeepError`.

    A change never lowers the bound, so it can be too high: before anything is refused it is computed exactly.
    """
    if depth_of(frozen) > MAX_DEPTH:
        _correct(frozen, set())
        if depth_of(frozen) > MAX_DEPTH:
            raise TooDeepError
    return frozen


def depth_of(frozen: Any) -> int:
    """Return an upper bound of the levels of a frozen value: 0 for a scalar; a `CopyOnRead` is a level of its own."""
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


def _correct(frozen: Any, seen: set[int]) -> None:
    """Compute the exact depth of a value and of all containers in it, and store it as their bound."""
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


# --- size: stored with a container once it was measured


def measured_size(value: object) -> int | None:
    """Return the size that `store_size` has stored with a container; None if there is none."""
    size: int | None = getattr(value, "_measured", None)
    return size


def store_size(value: object, size: int) -> None:
    """Store the size of a container with it. It is not part of the value: copies and pickles lack it."""
    if isinstance(value, (NestedContainer, FrozenSet)):
        value._measured = size


class RecentFindings(Generic[FoundT]):
    """The findings in the most recently used containers: those in a list need not be made again after each addition.

    Args:
        least: the fewest parts of a container whose findings are kept: reading a short one again is as fast.
    """

    # By the identity of a container; an entry holds the container itself, so that no other object gets its identity.
    # Two generations: when the young one is full, it becomes the old one, and the old one is dropped. No lock is
    # needed: two threads can at worst lose an entry, which is then made again.

    def __init__(self, least: int = 0) -> None:
        self._least = least
        self._young: dict[int, tuple[Any, FoundT]] = {}
        self._old: dict[int, tuple[Any, FoundT]] = {}

    def get(self, container: Any) -> FoundT | None:
        """Return what was found in a container; None if that is not known any more."""
        found = self._young.get(id(container))
        if found is None:
            found = self._old.get(id(container))
            if found is not None:
                self.put(*found)
        return None if found is None else found[1]

    def put(self, container: Any, found: FoundT) -> None:
        """Remember what was found in a container."""
        if len(container) >= self._least:
            if len(self._young) >= _GENERATION:
                self._old, self._young = self._young, {}
            self._young[id(container)] = container, found


# --- pydantic


def container_schema(cls: type, plain: type, source: Any, handler: Any) -> Any:
    """Return the pydantic schema of a field annotated with `cls`: validated and dumped as the plain type."""
    arguments = getattr(source, "__args__", ())

    def validate(value: Any, inner: Any) -> Any:
        return value if type(value) is cls and not arguments else cls(inner(value))

    return core_schema.no_info_wrap_validator_function(
        validate,
        handler.generate_schema(GenericAlias(plain, arguments) if arguments else plain),
        serialization=core_schema.plain_serializer_function_ser_schema(thaw),
    )
