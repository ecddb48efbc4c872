"""A persistent row: items at numbered places, some of them empty. A change costs by its depth, not by its size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_ROW_BITS = 5
_WIDTH = 1 << _ROW_BITS
_ROW_MASK = _WIDTH - 1

RowNode = list[Any]  # of the lowest level: items, elsewhere nodes; None is empty


class PersistentRow(Generic[T]):
    """Items by place, in the order of their places. A change gives a new row that shares what did not change.

    Example:
        >>> one = Row().set(0, "a").set(7, "b")
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
    def _of(cls, root: RowNode | None, depth: int, count: int) -> PersistentRow[T]:
        new: PersistentRow[T] = object.__new__(cls)
        new._root, new._depth, new.count = root, depth, count
        return new

    def set(self, place: int, item: T) -> PersistentRow[T]:
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
        return PersistentRow._of(root, depth, self.count + grown)

    def discard(self, place: int) -> PersistentRow[T]:
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
        return PersistentRow._of(root, self._depth, self.count - 1)

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
