"""DSPy's trace, usage and callbacks in a run: recorded per node call, handed over in lineage order."""

from __future__ import annotations

from collections.abc import Sequence
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


def hand_over(steps: Steps) -> None:
    """Appends to the trace around a run, in place, as DSPy itself does: `max_trace_size` drops the oldest steps."""
    trace = dspy.settings.trace
    limit = dspy.settings.max_trace_size
    if trace is None or limit <= 0:
        return
    for step in steps:
        while len(trace) >= limit:
            trace.pop(0)
        trace.append(step)


def calls_in(steps: Steps) -> tuple[int, int]:
    """How often predictors were called, and how often tools: as `ReAct` and `ReActV2` say in their predictions."""
    tools = 0
    for _, _, prediction in steps:
        if prediction.get("next_tool_name") not in (None, "finish"):
            tools += 1
        tools += len(getattr(prediction.get("tool_calls"), "tool_calls", ()))
    return len(steps), tools
