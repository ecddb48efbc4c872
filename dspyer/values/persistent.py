"""Persistent containers: a change gives a new version that shares whatever did not change with the old one.

- `PersistentMap`: a dict that is copied up to `SMALL` entries, above that a trie over the hashes of the keys (a hash
  array mapped trie in the manner of Bagwell, with small dicts as leaves). Maps keep insertion order in every process:
  each entry of the trie carries the number of its insertion.
- `PersistentVector`: a sequence that only grows; its versions share one list.
- `SparseVector`: items at numbered positions, some of them empty; a trie over the bits of the position.
- `as_map` and `as_sequence`: the bare storage for `FrozenDict` and `FrozenList`. Long sequences are pyrsistent's vector
  in its pure Python form.

pyrsistent's C vector, and so every `PMap`, is avoided on purpose: the garbage collector walks its whole tree once per
live version, so a run that keeps its history would pay for all versions in each collection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar, cast, overload

# A private module: the public `pyrsistent.pvector` is the C vector wherever that was compiled. `pyproject.toml` bounds
# the version, and tests/values/test_persistent.py tests what is used of it.
from pyrsistent._pvector import python_pvector

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

SMALL = 64  # entries up to which copying a dict or a tuple is faster than a tree
_ABSENT: Any = object()

# --- maps


class PersistentMap(Mapping[K, V]):
    """An insertion-ordered map. The cost of a change depends on the change, not on the size of the map.

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
        """Return a map with `key` set to `value`; an existing key keeps its position in the order."""
        data = self._data
        new: PersistentMap[K, V] = object.__new__(PersistentMap)  # `_of`, inlined: a node call sets several keys
        new._data = {**data, key: value} if type(data) is dict and len(data) < SMALL else with_key(data, key, value)
        return new

    def update(self, entries: Mapping[K, V]) -> PersistentMap[K, V]:
        """Return a map with all `entries` set."""
        data = self._data
        if type(data) is dict and len(data) + len(entries) <= SMALL:
            return self._of({**data, **entries})
        for key, value in entries.items():
            data = with_key(data, key, value)
        return self._of(data)

    def discard(self, key: K) -> PersistentMap[K, V]:
        """Return a map without `key`; the same map if the key is absent."""
        data = without_key(self._data, key)
        return self if data is self._data else self._of(data)

    def items(self) -> Any:  # in one walk, where that of `Mapping` looks each key up
        return self._data.items()

    def values(self) -> Any:
        return self._data.values()

    def __getitem__(self, key: K) -> V:
        return self._data[key]

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[K]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self.items())!r})"

    def __reduce__(self) -> tuple[Any, ...]:  # hashes of strings differ between processes: the trie is rebuilt
        return PersistentMap, (dict(self.items()),)

    def __copy__(self) -> PersistentMap[K, V]:
        return self


# --- the storage of maps


def as_map(entries: dict[K, V]) -> MapData[K, V]:
    """Return the storage for a map: the dict itself, which the caller must not change any more, or a trie."""
    return entries if len(entries) <= SMALL else Trie.of(entries)


def with_key(data: MapData[K, V], key: K, value: V) -> MapData[K, V]:
    """Return a copy of `data` with `key` set."""
    if type(data) is dict:
        copy = data.copy()
        copy[key] = value
        return copy if len(copy) <= SMALL else Trie.of(copy)
    return cast("Trie[K, V]", data).set(key, value)


def without_key(data: MapData[K, V], key: K) -> MapData[K, V]:
    """Return a copy of `data` without `key`; `data` itself if the key is absent."""
    if type(data) is not dict:
        return cast("Trie[K, V]", data).discard(key)
    if key not in data:
        return data
    copy = data.copy()
    del copy[key]
    return copy


_BITS = 4  # bits of the hash that choose a child: a node has 2**4 children
_MASK = (1 << _BITS) - 1
_LEAF = 32  # entries of a leaf before it splits
_HASH_BITS = 60  # below this depth all keys of a leaf have the same hash: splitting would not end, the leaf grows

TrieNode = Any  # a leaf: a dict of key -> (insertion number, value); or a list of 16 nodes


class Trie(Generic[K, V]):
    """A map of more than `SMALL` entries: lists of 16 nodes over small dicts, chosen by bits of the key's hash."""

    __slots__ = ("_count", "_next", "_order", "_root")

    _root: TrieNode
    _count: int
    _next: int  # number of the next insertion
    # Keys in insertion order, computed on first use; versions that only change values share it.
    _order: tuple[K, ...] | None

    def __init__(self, root: TrieNode, count: int, following: int, order: tuple[K, ...] | None) -> None:
        self._root = root
        self._count = count
        self._next = following
        self._order = order

    @classmethod
    def of(cls, entries: Mapping[K, V]) -> Trie[K, V]:
        """Build a trie from a mapping, in its order."""
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
        """Return a trie with `key` set; an existing key keeps its position in the order."""
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
        """Return a map without `key`: a plain dict if few entries remain."""
        if key not in self:
            return self
        if self._count <= SMALL // 2:  # half of it: a size that varies around `SMALL` must not rebuild each time
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
    """Split a leaf with too many entries by the next bits of their hashes."""
    if len(leaf) <= _LEAF or shift >= _HASH_BITS:
        return leaf
    children: list[dict[Any, tuple[int, Any]]] = [{} for _ in range(1 << _BITS)]
    for key, entry in leaf.items():
        children[(hash(key) >> shift) & _MASK][key] = entry
    return [_grow(child, shift + _BITS) for child in children]


def _copy_path(root: TrieNode, bits: int) -> tuple[TrieNode, TrieNode, int, dict[Any, tuple[int, Any]], int]:
    """Copy the nodes on the path to the leaf of a hash: root, parent of the leaf, index in it, leaf, depth in bits."""
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


# --- sequences that grow


class PersistentVector(Generic[T]):
    """A sequence that only grows, such as the commits of a run; its versions share one list.

    Each version sees its own first items and no later ones. Appending to the newest version takes constant time;
    appending to an older one copies the list.

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
        # Checked after the append, which is atomic, and so without a lock: if another version or another thread was
        # first, its item is at this index, and this version gets a list of its own.
        if items[count] is not item:
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


# --- the storage of frozen lists

_vector: Any = python_pvector

SequenceData = Any  # a tuple, or a PythonPVector


def as_sequence(items: Iterable[Any]) -> SequenceData:
    """Return the storage for a sequence: a tuple, or a vector above `SMALL` items."""
    data = tuple(items)
    return data if len(data) <= SMALL else _vector(data)


def extended(data: SequenceData, items: tuple[Any, ...]) -> SequenceData:
    """Return the storage for `data` followed by `items`."""
    if type(data) is tuple:
        return as_sequence(data + items)
    return data.append(items[0]) if len(items) == 1 else data.extend(items)


# --- sequences with empty positions

_INDEX_BITS = 5
_WIDTH = 1 << _INDEX_BITS
_INDEX_MASK = _WIDTH - 1

SparseNode = list[Any]  # on the lowest level the items, above it nodes; None is empty


class SparseVector(Generic[T]):
    """Items at numbered positions, some of them empty. The cost of a change depends on the depth, not on the size.

    Example:
        >>> one = SparseVector().set(0, "a").set(7, "b")
        >>> two = one.discard(0)
        >>> list(one), list(two), list(one.backwards())
        (['a', 'b'], ['b'], ['b', 'a'])
    """

    __slots__ = ("_depth", "_root", "count")

    _root: SparseNode | None
    _depth: int  # number of levels above the lowest one
    count: int

    def __init__(self, root: SparseNode | None = None, depth: int = 0, count: int = 0) -> None:
        self._root, self._depth, self.count = root, depth, count

    def set(self, index: int, item: T) -> SparseVector[T]:
        """Return a vector with `item` at `index`; None is not an item."""
        root, depth = self._root, self._depth
        if root is None:
            root, depth = [None] * _WIDTH, 0
        else:
            root = root.copy()
        while index >> (_INDEX_BITS * (depth + 1)):  # beyond the last position: one more level on top
            above: SparseNode = [None] * _WIDTH
            above[0] = root
            root, depth = above, depth + 1
        node = root
        for level in range(depth, 0, -1):
            slot = index >> (_INDEX_BITS * level) & _INDEX_MASK
            below = node[slot]
            node[slot] = below = [None] * _WIDTH if below is None else below.copy()
            node = below
        grown = node[index & _INDEX_MASK] is None
        node[index & _INDEX_MASK] = item
        return SparseVector(root, depth, self.count + grown)

    def discard(self, index: int) -> SparseVector[T]:
        """Return a vector with nothing at `index`; the same vector if it is empty there."""
        if self.get(index) is None:
            return self
        assert self._root is not None
        root = self._root.copy()
        path: list[tuple[SparseNode, int]] = []
        node = root
        for level in range(self._depth, 0, -1):
            slot = index >> (_INDEX_BITS * level) & _INDEX_MASK
            path.append((node, slot))
            node[slot] = node[slot].copy()
            node = node[slot]
        node[index & _INDEX_MASK] = None
        for above, slot in reversed(path):  # drop empty nodes, so that iteration does not walk through them
            if any(item is not None for item in above[slot]):
                break
            above[slot] = None
        return SparseVector(root, self._depth, self.count - 1)

    def get(self, index: int) -> T | None:
        """Return the item at `index`; None if it is empty there."""
        node: Any = self._root
        if node is None or index >> (_INDEX_BITS * (self._depth + 1)):
            return None
        for level in range(self._depth, 0, -1):
            node = node[index >> (_INDEX_BITS * level) & _INDEX_MASK]
            if node is None:
                return None
        found: T | None = node[index & _INDEX_MASK]
        return found

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[T]:
        return self._walk(1)

    def backwards(self) -> Iterator[T]:
        """Iterate from the last item to the first, without visiting more than the caller takes."""
        return self._walk(-1)

    def _walk(self, step: int) -> Iterator[T]:
        if self._root is None:
            return
        stack: list[tuple[SparseNode, int]] = [(self._root, self._depth)]
        while stack:
            node, level = stack.pop()
            if not level:
                yield from [item for item in node[::step] if item is not None]
            else:
                stack += [(below, level - 1) for below in node[::-step] if below is not None]
