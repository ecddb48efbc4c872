"""The walk over the parts of a module, by the paths that DSPy gives them, such as `steps[0].predict`.

Each call of a module adds to its history, up to 10,000 entries. So no code of this package walks over the attributes
of a module by itself, or by `dspy.Module.named_sub_modules`: a run would cost more with every run before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import dspy

RECORDS: Final = frozenset({"history", "callbacks"})
"""The attributes of modules and language models in which DSPy keeps what it has called."""

HOLDING: Final = (dspy.Module, list, tuple, dict)
"""What the walk goes into."""


def walk(value: object, into: Callable[[object], bool] | None = None) -> Iterator[tuple[str, Any]]:
    """A value and its parts at any depth with their paths, each once; not the parts of which `into` says no."""
    seen: set[int] = set()
    ahead = [("", value)]
    while ahead:
        path, value = ahead.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        if isinstance(value, HOLDING) and (into is None or into(value)):
            ahead += reversed(parts_with_paths(path, value))


def modules_in(module: object) -> Iterator[tuple[str, Any]]:
    """A module and the modules in it, each with its path."""
    return ((path, part) for path, part in walk(module) if isinstance(part, dspy.Module))


def predictors_in(module: object, graphs: bool = False) -> Iterator[tuple[str, Any]]:
    """The predictors of a module with their paths, those of compiled modules too; of graphs in it if asked."""

    def into(part: object) -> bool:
        return not isinstance(part, dspy.Predict) and (graphs or not hasattr(type(part), "_dspyer_program"))

    return ((path, part) for path, part in walk(module, into=into) if isinstance(part, dspy.Predict))


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
    """The attributes of a module but for `RECORDS`, the values of a dict or the items of a list, each with its path.

    Example:
        >>> parts_with_paths("answer", [1, 2])
        [('answer[0]', 1), ('answer[1]', 2)]
    """
    if isinstance(value, dspy.Module):
        parts = [(name, part) for name, part in vars(value).items() if name not in RECORDS]
        return [(f"{path}.{name}" if path else name, part) for name, part in parts]
    if isinstance(value, Mapping):
        return [(f"{path}['{key}']", part) for key, part in value.items()]
    return [(f"{path}[{index}]", part) for index, part in enumerate(value)]
