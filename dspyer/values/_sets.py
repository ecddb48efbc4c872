"""Immutable sets of frozen values."""

from __future__ import annotations

from typing import Any, NoReturn

from dspyer.values._boxes import Container, container_schema
from dspyer.values._refusals import refuse_change


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
