"""Immutable lists of frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn, Self, TypeVar, cast, overload

from dspyer.values._boxes import CopyOnRead, Levels, container_schema, equal, thaw
from dspyer.values._depth import check_depth, depth_of
from dspyer.values._persistent import SequenceData, as_sequence, extended
from dspyer.values._refusals import refuse_change
from dspyer.values._scalars import SCALARS

T_co = TypeVar("T_co", covariant=True)
_new = object.__new__


class FrozenList(Levels, Sequence[T_co]):
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
        return value.open() if type(value) is CopyOnRead else value

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
            yield value.open() if type(value) is CopyOnRead else value

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
