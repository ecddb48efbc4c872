"""DSPy's trace, usage and callbacks in a run: recorded per node call, handed over in lineage order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dspy

Steps = Sequence[tuple[Any, dict[str, Any], Any]]


class recording:  # noqa: N801  read as `with recording() as steps`
    """Gives the block a DSPy trace of its own.

    A node sees an empty trace, so that what it appends can be put where it belongs, whatever runs beside it.

    Args:
        overrides: further DSPy settings for the block.
    """

    __slots__ = ("_context", "_steps")

    def __init__(self, **overrides: Any) -> None:
        self._steps: list[Any] = []
        self._context = dspy.context(trace=self._steps, **overrides)

    def __enter__(self) -> list[Any]:
        self._context.__enter__()
        return self._steps

    def __exit__(self, *raised: object) -> None:
        self._context.__exit__(*raised)


def append_to_trace(steps: Steps) -> None:
    """Appends to the trace around a run, in place, as DSPy itself does: `max_trace_size` drops the oldest steps."""
    trace = dspy.settings.trace
    limit = dspy.settings.max_trace_size
    if trace is None or limit <= 0:
        return
    for step in steps:
        while len(trace) >= limit:
            trace.pop(0)
        trace.append(step)


def count_calls(steps: Steps) -> tuple[int, int]:
    """How often predictors were called, and how often tools: as `ReAct` and `ReActV2` say in their predictions."""
    tools = 0
    for _, _, prediction in steps:
        if prediction.get("next_tool_name") not in (None, "finish"):
            tools += 1
        tools += len(getattr(prediction.get("tool_calls"), "tool_calls", ()))
    return len(steps), tools


def tokens_used() -> dict[str, dict[str, Any]]:
    """The tokens that the run around the caller has used so far, by language model, as plain JSON."""
    tracker = dspy.settings.get("usage_tracker")
    total: dict[str, dict[str, Any]] = {}
    if tracker is not None:
        add_tokens(total, tracker.get_total_tokens())
    return total


def add_tokens(total: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds counts to counts, in place; what is no count is left out.

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
