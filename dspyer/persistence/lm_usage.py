"""Sums of what language models used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def add_tokens(total: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds counts to counts, in place; values that are no counts are left out.

    Example:
        >>> total = {"lm": {"prompt_tokens": 1}}
        >>> add_tokens(total, {"lm": {"prompt_tokens": 2, "details": {"cached": 1}, "id": "x"}})
        >>> total
        {'lm': {'prompt_tokens': 3, 'details': {'cached': 1}}}
    """
    for name, value in more.items():
        if isinstance(value, Mapping):
            add_tokens(total.setdefault(name, {}), value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            total[name] = total.get(name, 0) + value
