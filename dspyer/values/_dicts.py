"""Immutable mappings of frozen values."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, NoReturn, Self, TypeVar, cast

from dspyer.errors import UnsupportedValueError, with_article
from dspyer.values._boxes import CopyOnRead, Levels, container_schema, equal, thaw
from dspyer.values._depth import check_depth, depth_of
from dspyer.values._persistent import MapData, as_map, with_key, without_key
from dspyer.values._refusals import refuse_change, refuse_missing
from dspyer.values._scalars import SCALARS, freeze_key

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)
_ABSENT: Any = object()
_new = object.__new__


class FrozenDict(Levels, Mapping[K, V_co]):
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
        frozen = cls._freeze(mapping if isinstance(mapping, Mapping) else entries_of(mapping, cls))
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
        return cast("V_co", value.open() if type(value) is CopyOnRead else value)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value under a key, `default` where there is none."""
        value = self._map.get(key, default)
        return value.open() if type(value) is CopyOnRead else value

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


def entries_of(pairs: Any, cls: type) -> dict[Any, Any]:
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
            yield key, value.open() if type(value) is CopyOnRead else value


class _Values(ValuesView[Any]):
    _mapping: Any

    def __iter__(self) -> Iterator[Any]:
        for _, value in self._mapping.raw_items():
            yield value.open() if type(value) is CopyOnRead else value


def _restore_dict(cls: Any, entries: dict[Any, Any], depth: int) -> Any:
    return cls._of(as_map(entries), depth)
