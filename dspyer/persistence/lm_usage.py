"""Sums of what language models used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from dspyer.events import LMCall

LMUsage = dict[str, Any]
"""What one language model has used: token counts as its provider names them, `requests`, and `cost` in US dollars."""


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


def sum_usage(parts: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, LMUsage]:
    """The sum of several usages of language models; a cost that is not known makes the sum unknown.

    Example:
        >>> one = {"lm": {"total_tokens": 1, "requests": 1, "cost": 0.5}}
        >>> sum_usage([one, {"lm": {"total_tokens": 1, "requests": 1, "cost": None}}])
        {'lm': {'total_tokens': 2, 'requests': 2, 'cost': None}}
    """
    total: dict[str, LMUsage] = {}
    for model, used in chain.from_iterable(part.items() for part in parts):
        into = total.setdefault(model, {})
        costs = into.get("cost", 0.0), used.get("cost")
        add_tokens(into, {name: value for name, value in used.items() if name != "cost"})
        into["cost"] = None if None in costs else sum(costs)
    return total


def usage_of_calls(calls: Iterable[LMCall]) -> dict[str, LMUsage]:
    """The usage of LM calls by language model.

    Example:
        >>> from dataclasses import replace
        >>> call = LMCall("trunk:1", "a", "a", "lm", None, 3, 1, 0.5, 0.1, 0.0)
        >>> usage_of_calls([call, replace(call, requests=0, cached=True, cost=0.0)])["lm"]
        {'prompt_tokens': 6, 'completion_tokens': 2, 'total_tokens': 8, 'requests': 1, 'cost': 0.5}
    """
    return sum_usage(
        {
            call.model: {
                "prompt_tokens": call.prompt_tokens,
                "completion_tokens": call.response_tokens,
                "total_tokens": call.tokens,
                "requests": call.requests,
                "cost": call.cost,
            }
        }
        for call in calls
    )


def total_cost(usage: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The cost of all language models in US dollars; None if that of one is not known.

    Example:
        >>> total_cost({"a": {"cost": 0.25}, "b": {"cost": 0.5}}), total_cost({"a": {"cost": None}}), total_cost({})
        (0.75, None, 0.0)
    """
    costs = [used.get("cost") for used in usage.values()]
    return None if None in costs else float(sum(cost for cost in costs if cost is not None))
