"""What the page of one run shows, as JSON: the same for a stored run, which the inspector serves, and for a `Run` in
memory, which `run.to_html` writes into a file.

The forms are listed in `dspyer/inspector/README.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dspyer.display.cut_values import VALUE, Places
from dspyer.display.graph_svg import GraphDrawing
from dspyer.events import Commit, FieldShape, LMCall, Question
from dspyer.failure import Failure
from dspyer.record_codec import changed

_QUESTIONS = [{"text": VALUE}]
_CALL = {"messages": VALUE, "response": VALUE, "failed": VALUE}
_CONFLICT = {"base": VALUE, "value": VALUE, "values": [{1: VALUE}]}  # `values` are pairs of an author and a value
RECORD: Places = {
    **{name: [VALUE] for name in ("before", "after", "diff", "state", "sent")},
    "commit": {"patch": [VALUE], "reason": VALUE, "live": VALUE},
    "lm_calls": [_CALL],
    "conflicts": [_CONFLICT],
    "conflict": _CONFLICT,
    "info": {"questions": _QUESTIONS},
    "questions": _QUESTIONS,
    "failures": [{"traceback": VALUE}],
    "events": [{"text": VALUE, "event": VALUE}],
    "value": VALUE,
    **_CALL,
}
"""Where a run, a step, an execution, an LM call, a post or a conflict holds values, and texts of any length."""


def run_answer(
    info: Any,
    drawing: GraphDrawing | None,
    fields: Iterable[FieldShape],
    questions: Iterable[Question],
    failures: Iterable[Failure],
    count: int,
) -> dict[str, Any]:
    """A run as a whole; `count` is the number of its commits."""
    return {
        "info": info.to_dict(),
        "graph": None if drawing is None else drawing.to_dict(),
        "fields": [field.to_dict() for field in fields],
        "questions": [question.to_dict() for question in questions],
        "failures": [failure.to_dict() for failure in failures],
        "count": count,
    }


def commit_row(commit: Commit, calls: Sequence[LMCall] | None = None) -> dict[str, Any]:
    """A commit as one row of a list, without values. `calls` are the LM calls of its execution; None for none."""
    found = changed(commit, patch={}).to_dict()
    for name in ("patch", "live", "calls", "sizes", "size", "ended"):
        del found[name]
    return {**found, "writes": list(map(str, commit.patch)), "lm": None if calls is None else lm_figures(calls)}


def lm_figures(calls: Sequence[LMCall]) -> dict[str, Any]:
    """The sums of some LM calls; the cost is None if one of them has no known price."""
    costs = [call.cost for call in calls]
    cost = None if None in costs else sum(cost for cost in costs if cost is not None)
    return {"calls": len(calls), "tokens": sum(call.tokens for call in calls), "cost": cost}
