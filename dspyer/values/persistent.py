"""Persistent containers: every change gives a new one that shares what did not change.

Small maps are dicts that are copied, large ones a trie of dicts; short sequences are tuples, long ones pyrsistent's
vector in its Python form. pyrsistent's C vector, and so every `PMap`, is left out on purpose: the garbage collector
walks its whole tree once per live version, so that a run which keeps its history pays for all versions each time.

Maps keep insertion order in every process: each entry of the trie carries the number of its insertion.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import islice
from typing import Any, Generic, TypeVar, cast, overload

from pyrsistent._pvector import PythonPVector, python_pvector

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

SMALL = 64  # entries up to which copying a dict, or a tuple, beats a tree
_BITS = 4
_MASK = (1 << _BITS) - 1
_LEAF = 32  # entries of a leaf before it splits
_HASH_BITS = 60  # below this depth all keys of a leaf have one hash: it grows instead
_ABSENT: Any = object()

TrieNode = Any  # a leaf: dict of key -> (number, value); or a list of 16 nodes


class Trie(Generic[K, V]):
    """A map above `SMALL` entries: lists of 16 nodes over small dicts, chosen by the bits of the key's hash."""

    __slots__ = ("_count", "_next", "_order", "_root")

    _root: TrieNode
    _count: int
    _next: int  # number of the next insertion
    _order: tuple[K, ...] | None  # keys in insertion order, made when first needed, shared by changes of values

    def __init__(self, root: TrieNode, count: int, following: int, order: tuple[K, ...] | None) -> None:
        self._root = root
        self._count = count
        self._next = following
        self._order = order

    @classmethod
    def of(cls, entries: Mapping[K, V]) -> Trie[K, V]:
        """Build from a mapping, in its order."""
        numbered = {key: (number, value) for number, (key, value) in enumerate(entries.items())}
        return cls(_grow(numbered, 0), len(numbered), len(numbered), tuple(numbered))

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        return self.get(cast(K, key), _ABSENT) is not _ABSENT

    def __getitem__(self, key: K) -> V:
        value: V = self.get(key, _ABSENT)
        if value is _ABSENT:
            raise KeyError(key)
        return value

    def get(self, key: K, default: Any = None) -> Any:
        bits = hash(key)
        node = self._root
        while type(node) is list:
            node = node[bits & _MASK]
            bits >>= _BITS
        entry = node.get(key)
        return default if entry is None else entry[1]

    def set(self, key: K, value: V) -> Trie[K, V]:
        """A map with `key` set; a known key keeps its place."""
        bits = hash(key)
        root, parent, index, leaf, shift = _copy_path(self._root, bits)
        known = leaf.get(key)
        if known is not None:
            leaf[key] = (known[0], value)
            parent[index] = leaf
            return Trie(root, self._count, self._next, self._order)
        leaf[key] = (self._next, value)
        parent[index] = leaf if len(leaf) <= _LEAF else _grow(leaf, shift)
        return Trie(root, self._count + 1, self._next + 1, None)

    def discard(self, key: K) -> Trie[K, V] | dict[K, V]:
        """A map without `key`; a plain dict again where few entries are left."""
        if key not in self:
            return self
        if self._count <= SMALL // 2:
            left = dict(self.items())
            del left[key]
            return left
        root, parent, index, leaf, _ = _copy_path(self._root, hash(key))
        del leaf[key]
        parent[index] = leaf
        return Trie(root, self._count - 1, self._next, None)

    def items(self) -> Iterable[tuple[K, V]]:
        flat: dict[K, tuple[int, V]] = {}
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            if type(node) is list:
                nodes.extend(node)
            else:
                flat.update(node)
        if self._order is None:
            self._order = tuple(sorted(flat, key=flat.__getitem__))  # numbers are unique: values are never compared
        return [(key, flat[key][1]) for key in self._order]

    def keys(self) -> tuple[K, ...]:
        if self._order is None:
            self.items()
        return cast("tuple[K, ...]", self._order)

    def values(self) -> Iterable[V]:
        return [value for _, value in self.items()]

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


def _grow(leaf: dict[Any, tuple[int, Any]], shift: int) -> TrieNode:
    if len(leaf) <= _LEAF or shift >= _HASH_BITS:
        return leaf
    children: list[dict[Any, tuple[int, Any]]] = [{} for _ in range(1 << _BITS)]
    for key, entry in leaf.items():
        children[(hash(key) >> shift) & _MASK][key] = entry
    return [_grow(child, shift + _BITS) for child in children]


def _copy_path(root: TrieNode, bits: int) -> tuple[TrieNode, TrieNode, int, dict[Any, tuple[int, Any]], int]:
    """Copy the nodes down to the leaf of a hash: root, parent of the leaf, index in it, leaf, depth in bits."""
    top = parent = root.copy()
    index = bits & _MASK
    node = parent[index]
    shift = _BITS
    bits >>= _BITS
    while type(node) is list:
        node = node.copy()
        parent[index] = node
        parent = node
        index = bits & _MASK
        node = parent[index]
        shift += _BITS
        bits >>= _BITS
    return top, parent, index, node.copy(), shift


MapData = dict[K, V] | Trie[K, V]


def as_map(entries: dict[K, V]) -> MapData[K, V]:
    """The storage of a map: the dict itself (which nobody may change any more), or a trie."""
    return entries if len(entries) <= SMALL else Trie.of(entries)


def with_key(data: MapData[K, V], key: K, value: V) -> MapData[K, V]:
    """A copy of `data` with `key` set."""
    if type(data) is dict:
        copy = data.copy()
        copy[key] = value
        return copy if len(copy) <= SMALL else Trie.of(copy)
    return cast("Trie[K, V]", data).set(key, value)


def without_key(data: MapData[K, V], key: K) -> MapData[K, V]:
    """A copy of `data` without `key`; `data` itself where the key is unknown."""
    if type(data) is not dict:
        return cast("Trie[K, V]", data).discard(key)
    if key not in data:
        return data
    copy = data.copy()
    del copy[key]
    return copy


class PersistentMap(Generic[K, V]):
    """An insertion-ordered map; a change gives a new one and costs by the change, not by the size.

    Example:
        >>> one = PersistentMap({"a": 1})
        >>> two = one.set("b", 2)
        >>> list(one.items()), list(two.items())
        ([('a', 1)], [('a', 1), ('b', 2)])
    """

    __slots__ = ("_data",)

    _data: MapData[K, V]

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._data = as_map(dict(entries))

    @classmethod
    def _of(cls, data: MapData[K, V]) -> PersistentMap[K, V]:
        new = object.__new__(cls)
        new._data = data
        return new

    def get(self, key: K, default: Any = None) -> Any:
        return self._data.get(key, default)

    def set(self, key: K, value: V) -> PersistentMap[K, V]:
        """A map with `key` set to `value`; a known key keeps its place in the order."""
        data = self._data
        new: PersistentMap[K, V] = object.__new__(PersistentMap)
        new._data = {**data, key: value} if type(data) is dict and len(data) < SMALL else with_key(data, key, value)
        return new

    def update(self, entries: Mapping[K, V]) -> PersistentMap[K, V]:
        """A map with all `entries` set."""
        data = self._data
        new: PersistentMap[K, V] = object.__new__(PersistentMap)
        if type(data) is dict and len(data) + len(entries) <= SMALL:
            new._data = {**data, **entries}
            return new
        for key, value in entries.items():
            data = with_key(data, key, value)
        new._data = data
        return new

    def discard(self, key: K) -> PersistentMap[K, V]:
        """A map without `key`; the same map where the key is unknown."""
        data = self._data
        if type(data) is dict:
            if key not in data:
                return self
            data = data.copy()
            del data[key]
        else:
            data = cast("Trie[K, V]", data).discard(key)
            if data is self._data:
                return self
        new: PersistentMap[K, V] = object.__new__(PersistentMap)
        new._data = data
        return new

    def keys(self) -> KeysView[K] | tuple[K, ...]:
        return self._data.keys()

    def items(self) -> ItemsView[K, V] | Iterable[tuple[K, V]]:
        return self._data.items()

    def values(self) -> ValuesView[V] | Iterable[V]:
        return self._data.values()

    def __getitem__(self, key: K) -> V:
        return self._data[key]

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[K]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PersistentMap):
            return NotImplemented
        return self._data is other._data or dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]  # values may be unhashable

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self.items())!r})"

    def __reduce__(self) -> tuple[Any, ...]:  # hashes differ between processes, so the trie is rebuilt
        return PersistentMap, (dict(self.items()),)

    def __copy__(self) -> PersistentMap[K, V]:
        return self


_vector: Any = python_pvector

SequenceData = Any  # a tuple, or a PythonPVector


def as_sequence(items: Iterable[Any]) -> SequenceData:
    """The storage of a sequence: a tuple, or a vector above `SMALL` items."""
    data = tuple(items)
    return data if len(data) <= SMALL else _vector(data)


def extended(data: SequenceData, items: tuple[Any, ...]) -> SequenceData:
    """A sequence with `items` behind `data`."""
    if type(data) is tuple:
        return as_sequence(data + items)
    return data.append(items[0]) if len(items) == 1 else data.extend(items)


class PersistentVector(Generic[T]):
    """A sequence that only grows, such as the commits of a run; its versions share one list.

    A version sees the items that it was made with and no later ones. Appending to the newest version costs the same
    whatever its length; appending to an older one copies the list.

    Example:
        >>> one = PersistentVector([1])
        >>> two, other = one.append(2), one.append(3)
        >>> list(one), list(two), list(other)
        ([1], [1, 2], [1, 3])
    """

    __slots__ = ("_count", "_items")

    _items: list[T]  # shared, and only ever appended to
    _count: int

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._count = len(self._items)

    def append(self, item: T) -> PersistentVector[T]:
        items, count = self._items, self._count
        if len(items) == count:
            items.append(item)
        if items[count] is not item:  # another version, or another thread, has put its own item there
            items = [*items[:count], item]
        new: PersistentVector[T] = object.__new__(PersistentVector)
        new._items = items
        new._count = count + 1
        return new

    def extend(self, items: Iterable[T]) -> PersistentVector[T]:
        new = self
        for item in items:
            new = new.append(item)
        return new

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> PersistentVector[T]: ...
    def __getitem__(self, index: int | slice) -> T | PersistentVector[T]:
        if type(index) is int and 0 <= index < self._count:
            return self._items[index]
        items = self._items[: self._count]
        return PersistentVector(items[index]) if isinstance(index, slice) else items[index]

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._count)

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PersistentVector):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # items may be unhashable

    def __repr__(self) -> str:
        return f"PersistentVector({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return PersistentVector, (list(self),)

    def __copy__(self) -> PersistentVector[T]:
        return self


def is_vector(data: object) -> bool:
    """Whether the storage of a sequence is a tree rather than a tuple."""
    return isinstance(data, PythonPVector)


# --------------------------------------------------------------------------------------------------------------------
# A persistent row: items at numbered places, some of them empty. A change costs by its depth, not by its size.


_ROW_BITS = 5
_WIDTH = 1 << _ROW_BITS
_ROW_MASK = _WIDTH - 1

RowNode = list[Any]  # of the lowest level: items, elsewhere nodes; None is empty


class SparseVector(Generic[T]):
    """Items by place, in the order of their places. A change gives a new row that shares what did not change.

    Example:
        >>> one = PersistentRow().set(0, "a").set(7, "b")
        >>> two = one.discard(0)
        >>> list(one), list(two), list(one.backwards())
        (['a', 'b'], ['b'], ['b', 'a'])
    """

    __slots__ = ("_depth", "_root", "count")

    _root: RowNode | None
    _depth: int  # levels above the lowest one
    count: int

    def __init__(self) -> None:
        self._root, self._depth, self.count = None, 0, 0

    @classmethod
    def _of(cls, root: RowNode | None, depth: int, count: int) -> SparseVector[T]:
        new: SparseVector[T] = object.__new__(cls)
        new._root, new._depth, new.count = root, depth, count
        return new

    def set(self, place: int, item: T) -> SparseVector[T]:
        """A row with an item at a place."""
        root, depth = self._root, self._depth
        if root is None:
            root, depth = [None] * _WIDTH, 0
        else:
            root = root.copy()
        while place >> (_ROW_BITS * (depth + 1)):
            above: RowNode = [None] * _WIDTH
            above[0] = root
            root, depth = above, depth + 1
        node = root
        for level in range(depth, 0, -1):
            index = place >> (_ROW_BITS * level) & _ROW_MASK
            below = node[index]
            node[index] = below = [None] * _WIDTH if below is None else below.copy()
            node = below
        grown = node[place & _ROW_MASK] is None
        node[place & _ROW_MASK] = item
        return SparseVector._of(root, depth, self.count + grown)

    def discard(self, place: int) -> SparseVector[T]:
        """A row with nothing at a place; the same row where nothing is."""
        if self.get(place) is None:
            return self
        assert self._root is not None
        root = self._root.copy()
        path: list[tuple[RowNode, int]] = []
        node = root
        for level in range(self._depth, 0, -1):
            index = place >> (_ROW_BITS * level) & _ROW_MASK
            path.append((node, index))
            node[index] = node[index].copy()
            node = node[index]
        node[place & _ROW_MASK] = None
        for above, index in reversed(path):  # empty nodes go, so that nothing walks through them
            if any(one is not None for one in above[index]):
                break
            above[index] = None
        return SparseVector._of(root, self._depth, self.count - 1)

    def get(self, place: int) -> T | None:
        """The item at a place; None for nothing."""
        node: Any = self._root
        if node is None or place >> (_ROW_BITS * (self._depth + 1)):
            return None
        for level in range(self._depth, 0, -1):
            node = node[place >> (_ROW_BITS * level) & _ROW_MASK]
            if node is None:
                return None
        found: T | None = node[place & _ROW_MASK]
        return found

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[T]:
        return self._walk(1)

    def backwards(self) -> Iterator[T]:
        """The items, the last one first. It costs by the items that are asked for."""
        return self._walk(-1)

    def _walk(self, step: int) -> Iterator[T]:
        if self._root is None:
            return
        stack: list[tuple[RowNode, int]] = [(self._root, self._depth)]
        while stack:
            node, level = stack.pop()
            if not level:
                yield from [item for item in node[::step] if item is not None]
            else:
                stack += [(below, level - 1) for below in node[::-step] if below is not None]
