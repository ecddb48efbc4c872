"""Where the parts of a module stand, by the paths that DSPy gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dspy


def parts_with_paths(
    path: str, value: dspy.Module | Mapping[Any, object] | Iterable[object]
) -> list[tuple[str, object]]:
    """What a module, a dict or a list holds, each with its path.

    Example:
        >>> parts_with_paths("answer", [1, 2])
        [('answer[0]', 1), ('answer[1]', 2)]
    """
    if isinstance(value, dspy.Module):
        return [(f"{path}.{name}" if path else name, part) for name, part in vars(value).items()]
    if isinstance(value, Mapping):
        return [(f"{path}['{key}']", part) for key, part in value.items()]
    return [(f"{path}[{index}]", part) for index, part in enumerate(value)]
