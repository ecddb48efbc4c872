"""The predictors of a module, by the paths that DSPy gives them, such as `steps[0].predict`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dspy


def predictors_in(
    value: object, path: str = "", seen: set[int] | None = None, graphs: bool = False
) -> Iterator[tuple[str, Any]]:
    """The predictors of a module with their paths, those of compiled modules too; of graphs in it if asked."""
    seen = set() if seen is None else seen
    if not isinstance(value, (dspy.Module, list, tuple, dict)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dspy.Predict):
        yield path, value
        return
    if hasattr(type(value), "_dspyer_program") and not graphs:
        return
    if isinstance(value, dspy.Module):  # its history may be long, and holds no predictor
        parts = [(name, part) for name, part in vars(value).items() if name not in _OF_DSPY]
        named = [(f"{path}.{name}" if path else name, part) for name, part in parts]
    else:
        named = parts_with_paths(path, value)
    for inner, part in named:
        yield from predictors_in(part, inner, seen, graphs)


_OF_DSPY = frozenset({"history", "callbacks"})


def user_instructions(module: dspy.Module) -> Iterator[str]:
    """The instructions that the user wrote: without what a module of DSPy adds to them, such as the texts of tools."""
    signature = getattr(module, "signature", None)
    of_dspy = type(module).__module__.partition(".")[0] == "dspy" and not isinstance(module, dspy.Predict)
    if of_dspy and signature is not None:
        yield signature.instructions
        return
    for _, predictor in predictors_in(module):
        yield predictor.signature.instructions


def parts_with_paths(
    path: str, value: dspy.Module | Mapping[Any, object] | Iterable[object]
) -> list[tuple[str, object]]:
    """The attributes of a module, the values of a dict or the items of a list, each with its path.

    Example:
        >>> parts_with_paths("answer", [1, 2])
        [('answer[0]', 1), ('answer[1]', 2)]
    """
    if isinstance(value, dspy.Module):
        return [(f"{path}.{name}" if path else name, part) for name, part in vars(value).items()]
    if isinstance(value, Mapping):
        return [(f"{path}['{key}']", part) for key, part in value.items()]
    return [(f"{path}[{index}]", part) for index, part in enumerate(value)]
