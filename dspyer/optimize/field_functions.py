"""Field metrics as functions: what they may take and return, how they are called, and what they say of a value."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, SupportsFloat

import dspy
from pydantic_core import to_jsonable_python

from dspyer.errors import annotate, brief, list_names, suggestion, with_article
from dspyer.nodes.callables import read_signature
from dspyer.nodes.sync_async import is_async

logger = logging.getLogger("dspyer")

LONGEST = 2000
"""The most characters of a value in feedback."""

ROUNDING = 1e-6
"""How far a score may be beyond 0 or 1, or below 1: weights that add up to 1 on paper add up to 0.9999999999999999."""


class FieldResult(NamedTuple):
    """What a field metric says of one value.

    Attributes:
        score: from 0 to 1; None if the metric cannot tell.
        feedback: its own words; None if it gave none.
    """

    score: float | None
    feedback: str | None = None

    @property
    def verdict(self) -> str:
        """`"right"` for a score of 1, `"wrong"` for a lower one, `"unknown"` for none."""
        return "unknown" if self.score is None else "right" if self.score >= 1 else "wrong"


class Equals:
    """Whether a field equals a column of the example: what `equals` makes."""

    def __init__(self, column: str) -> None:
        if not isinstance(column, str):
            raise TypeError(f"equals takes the name of a column of the examples, not {brief(column)}")
        self.column = column
        self._warned = False

    def __call__(self, example: Any, value: Any) -> bool:
        expected = self.expected(example)
        equal = bool(value == expected)
        if not equal and not self._warned and _differ_in_type_alone(value, expected):
            self._warned = True
            logger.warning(
                "equals(%r): the value %s and the expected %s differ in their types alone, and are not equal: give "
                "examples with values of the type of the field, or a function that compares them",
                self.column,
                repr(value)[:200],
                repr(expected)[:200],
            )
        return equal

    def expected(self, example: Any) -> Any:
        """The value of the column."""
        if self.column not in example:
            raise ValueError(self.lacks(example))
        return example[self.column]

    def lacks(self, example: Any) -> str:
        """What is wrong with an example without the column."""
        return (
            f"equals({self.column!r}): the example has no {self.column!r}; it has {list_names(example.keys())}."
            f"{suggestion(self.column, example.keys())} For examples without it, give a function that returns None"
        )

    def __repr__(self) -> str:
        return f"equals({self.column!r})"


def _differ_in_type_alone(value: Any, expected: Any) -> bool:
    """Whether two values that are not equal are the same as JSON, or as texts: a model and a dict, 17 and "17"."""
    if type(value) is type(expected) and isinstance(value, str | int | float | bool | None):
        return False
    try:
        return bool(to_jsonable_python(value) == to_jsonable_python(expected)) or (
            isinstance(value, str) is not isinstance(expected, str) and str(value) == str(expected)
        )
    except Exception:  # noqa: BLE001 - a value without a JSON form
        return False


class FieldJudge:
    """Calls the metrics of fields, and words what they found."""

    def __init__(self, metrics: Mapping[str, Callable[..., Any]]) -> None:
        self.metrics = dict(metrics)
        self._takes_state = {field for field, metric in metrics.items() if _takes_state(metric)}

    def takes_state(self, field: str) -> bool:
        """Whether the metric of a field wants the state after it was written."""
        return field in self._takes_state

    def judge(self, field: str, example: Any, value: Any, state: Any) -> FieldResult:
        """What the metric of a field says of one value."""
        metric = self.metrics[field]
        arguments = {"example": example, field: value}
        if field in self._takes_state:
            arguments.setdefault("state", state)  # a field of this name is itself
        try:
            found = metric(example, value) if isinstance(metric, Equals) else metric(**arguments)
        except Exception as error:
            annotate(error, f"in the metric of the field {field!r}")
            raise
        return _result(found, field)

    def text(self, field: str, example: Any, value: Any, result: FieldResult) -> str:
        """The feedback on a value: the metric's own, else what it is and what was expected."""
        if result.feedback is not None:
            return result.feedback
        if result.verdict == "right":
            return f"`{field}` is right."
        metric = self.metrics[field]
        if isinstance(metric, Equals):
            return f"`{field}` is {shown(value)}, expected {shown(metric.expected(example))}."
        degree = f" (score {result.score:g} of 1)" if result.score else ""
        return f"`{field}` is {shown(value)}, which is wrong{degree}."


def shown(value: object) -> str:
    """A value as feedback shows it."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def metric_name(metric: Any) -> str:
    return repr(metric) if isinstance(metric, Equals) else getattr(metric, "__name__", type(metric).__name__)


# --- what is wrong with a field metric


def metric_problems(field: str, metric: Any) -> list[str]:
    who = f"the metric of {field!r}"
    if isinstance(metric, Equals):
        return []
    if not callable(metric) or isinstance(metric, type | dspy.Module):
        kind = with_article(type(metric).__name__)
        return [f"{who} is {brief(metric)}, {kind}: give a function of `example` and `{field}`, or equals('column')"]
    if field == "example":
        return [f"{who} cannot take both the example and a field of this name: compare it with equals('column')"]
    if is_async(metric):
        return [f"{who} is async: give a plain function"]
    signature = read_signature(metric, who)
    names = {parameter.name for parameter in signature.parameters if not parameter.default}
    unknown = [name for name in names if name not in ("example", field, "state")]
    problems = list(signature.problems)
    if unknown:
        hint = "" if len(unknown) > 1 else suggestion(unknown[0], ["example", field, "state"])
        problems.append(
            f"{who} takes {list_names(sorted(unknown))}: it may take `example`, `{field}` and `state`.{hint}"
        )
    given = {parameter.name for parameter in signature.parameters}
    missing = [name for name in ("example", field) if name not in given and not signature.takes_all]
    if missing and not unknown:
        problems.append(f"{who} takes no {list_names(missing)}: make it a function of `example` and `{field}`")
    return problems


def _takes_state(metric: Any) -> bool:
    if isinstance(metric, Equals):
        return False
    return any(parameter.name == "state" for parameter in read_signature(metric, "").parameters)


def _result(found: Any, field: str) -> FieldResult:
    """What a field metric returned, validated."""
    feedback = None
    given = found
    if isinstance(found, dspy.Prediction):
        feedback, given = found.get("feedback"), found.get("score")
        if feedback is not None and not isinstance(feedback, str):
            raise ValueError(f"the metric of {field!r} gave the feedback {brief(feedback)}: give a text")
    feedback = feedback if feedback and feedback.strip() else None
    if given is None:
        return FieldResult(None, feedback)
    score = _number(given)
    if not -ROUNDING <= score <= 1 + ROUNDING:
        raise ValueError(
            f"the metric of {field!r} returned {brief(given)}: give a bool, a number from 0 to 1, None if it cannot "
            "tell, or dspy.Prediction(score=..., feedback=...)"
        )
    return FieldResult(1.0 if score > 1 - ROUNDING else max(0.0, score), feedback)


def _number(given: Any) -> float:
    if not isinstance(given, SupportsFloat) or isinstance(given, str):
        return math.nan
    try:
        return float(given)
    except (TypeError, ValueError):  # an array of several numbers, or of none
        return math.nan
