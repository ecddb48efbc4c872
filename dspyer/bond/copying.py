"""Copies of modules that keep what is shared shared, and copies to be pickled."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import dspy

ProgramT = TypeVar("ProgramT", bound=dspy.Module)


def copy_tree(modules: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    """Copies modules together, so that a part that two of them share is still shared by their copies.

    What cannot be copied (a client, a lock) is shared with the original. `dspy.Module.deepcopy` would in that case
    copy each attribute alone, so that one predictor becomes two.

    Args:
        modules: modules and other attributes by name.
        memo: the memo of `copy.deepcopy`.

    Returns:
        The copies by name.
    """
    known = dict(memo)
    try:
        return copy.deepcopy(modules, memo)
    except Exception:  # noqa: BLE001 - whatever a third-party object raises when it is copied
        memo.clear()
        memo.update(known)
        for value in _attributes(modules, set()):
            try:
                copy.deepcopy(value, dict(known))
            except Exception:  # noqa: BLE001 - the same as above: this one is shared
                memo[id(value)] = value
        return copy.deepcopy(modules, memo)


def without_histories(program: ProgramT) -> ProgramT:
    """A program to be pickled: its language models have no histories, which hold every prompt of the process.

    Args:
        program: the program; it keeps its histories.

    Returns:
        A copy, in which what is shared is shared; the program itself if there is no history to leave out.
    """
    memo: dict[int, Any] = {}
    for value in _attributes(vars(program), set()):
        if isinstance(value, dspy.BaseLM) and value.history:
            memo[id(value)] = twin = copy.copy(value)
            twin.history = []
    return copy.deepcopy(program, memo) if memo else program


def _attributes(value: Any, seen: set[int]) -> list[Any]:
    """All values in modules and plain containers that are no modules or plain containers themselves."""
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, dspy.Module):
        inner = list(vars(value).values())
    elif isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, (list, tuple)):
        inner = list(value)
    else:
        return [value]
    return [leaf for item in inner for leaf in _attributes(item, seen)]
