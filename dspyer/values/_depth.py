"""How deep frozen values are nested. Containers carry an upper bound; it is made exact before anything is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from dspyer.values._boxes import CopyOnRead, Levels
from dspyer.values._refusals import MAX_DEPTH, TooDeepError
from dspyer.values._scalars import SCALARS

F = TypeVar("F")


def depth_of(frozen: Any) -> int:
    """At least the number of levels of a frozen value: none for a scalar; a box is a level of its own."""
    if type(frozen) in SCALARS:
        return 0
    if isinstance(frozen, Levels):
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
    elif isinstance(frozen, Levels | tuple | frozenset):
        parts = frozen._parts() if isinstance(frozen, Levels) else frozen
        for part in parts:
            _correct(part, seen)
        if isinstance(frozen, Levels):
            frozen._depth = 1 + _deepest(parts)
