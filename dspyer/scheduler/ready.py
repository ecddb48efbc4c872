"""The groups that may start, as a priority queue that is a value: who keeps an older queue keeps what was in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from dspyer.events import BranchPath

if TYPE_CHECKING:
    from dspyer.scheduler.runstate import Group

# A leftist heap (Crane 1972): path, group, length of the right spine, left and right heap. Two heaps are merged along
# their right spines, which are never longer than a logarithm.
Heap: TypeAlias = "tuple[BranchPath, Group, int, Heap | None, Heap | None]"


class Ready:
    """Groups by the smallest path among their branches, the smallest first.

    Groups come and go in logarithmic time; of those that came together, the first goes in constant time.
    """

    __slots__ = ("_heap",)

    def __init__(self, heap: Heap | None = None) -> None:
        self._heap = heap

    @classmethod
    def of(cls, groups: Iterable[Group]) -> Ready:
        """A queue of some groups, in any order."""
        heap: Heap | None = None
        for path, group in sorted([(_first_path(group), group) for group in groups], key=_path, reverse=True):
            heap = (path, group, 1, heap, None)
        return cls(heap)

    def added(self, groups: Iterable[Group]) -> Ready:
        """A queue with further groups, in any order."""
        return Ready(_merged(self._heap, Ready.of(groups)._heap))

    def taken(self, position: int = 0) -> tuple[Group, Ready]:
        """The group at a position, and the queue without it.

        Raises:
            IndexError: if there are not so many groups.
        """
        heap = self._heap
        if not position and heap is not None:
            rest = _merged(heap[3], heap[4])
            return heap[1], NONE_READY if rest is None else Ready(rest)
        before: list[Group] = []
        while heap is not None:
            _, group, _, left, right = heap
            heap = _merged(left, right)
            if len(before) == position:
                return group, Ready(heap).added(before) if before else Ready(heap)
            before.append(group)
        raise IndexError(f"no group at {position}: {len(before)} may start")

    def __iter__(self) -> Iterator[Group]:
        heap = self._heap
        while heap is not None:
            yield heap[1]
            heap = _merged(heap[3], heap[4])

    def __bool__(self) -> bool:
        return self._heap is not None

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Ready) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ready.of({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Ready.of, (list(self),)


NONE_READY = Ready()


def _merged(one: Heap | None, two: Heap | None) -> Heap | None:
    if one is None:
        return two
    if two is None:
        return one
    if two[0] < one[0]:
        one, two = two, one
    path, group, _, left, right = one
    right = _merged(right, two)
    if left is None or (right is not None and left[2] < right[2]):
        left, right = right, left
    return path, group, 1 if right is None else right[2] + 1, left, right


def _path(one: tuple[BranchPath, Group]) -> BranchPath:
    return one[0]


def _first_path(group: Group) -> BranchPath:
    branches = group.branches
    return branches[0].path if len(branches) == 1 else min([branch.path for branch in branches])
