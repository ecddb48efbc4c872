"""Field metrics as functions: what they may take and return, how they are called, and what they say of a value."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import dspy
from pydantic_core import to_jsonable_python

from dspyer.errors import annotate, brief, list_names, suggestion, with_article
from dspyer.extend import is_async, read_signature
from dspyer.lm.not_public import TRACE

logger = logging.getLogger("dspyer")

LONGEST = 2000  # characters of a value in feedback
ROUNDING = 1e-6  # beyond 0 or 1, or below 1: weights that add up to 1 on paper add up to 0.9999999999999999
NO_GOLD: Final[Any] = object()  # of a value whose metric only judges, or of an example without gold
NONE_FOR = "For examples without gold, give a function that returns None: equals(lambda example: example.get({!r}))"

SHEET: Final = "dspyer_sheet"
"""The setting with the sheet of the call of a program, the key of the outermost run in it, and the layer that has
put them there. DSPy carries it to the threads of nodes."""


class FieldResult(NamedTuple):
    """The verdict of a field metric on one value.

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


class FieldFunction:
    """The metric of a key: a function of `example` and of the value by the name of its field, and maybe of `state`.

    Attributes:
        column: the column with gold, of `equals` of a column; else None.
        takes_state: whether it wants the state where the value was written.
    """

    column: str | None = None

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.takes_state = any(one.name == "state" for one in read_signature(function, "").parameters)

    def expected(self, example: Any, state: Any = None) -> Any:
        """The gold for a value that was written with a state; `NO_GOLD` if there is none."""
        del example, state
        return NO_GOLD

    def judge(self, key: str, example: Any, value: Any, state: Any) -> FieldResult:
        """The verdict on one value."""
        try:
            found = self._judged(key.rpartition(".")[2], example, value, state)
        except Exception as error:
            annotate(error, f"in the metric of {key!r}")
            raise
        return _result(found, key)

    def _judged(self, field: str, example: Any, value: Any, state: Any) -> Any:
        return self._called({"example": example, field: value}, state)

    def _called(self, given: Mapping[str, Any], state: Any) -> Any:
        layer = (dspy.settings.get(SHEET) or [None])[-1]
        with dspy.context(**{SHEET: (None, "", layer), TRACE: None}):  # it may call an LM, or a graph: none is watched
            # A field of the name `state` is itself.
            return self._function(**{**({"state": state} if self.takes_state else {}), **given})

    def __repr__(self) -> str:
        return getattr(self._function, "__name__", type(self._function).__name__)


class Equals(FieldFunction):
    """A metric with gold, which a value equals: what `equals` makes."""

    def __init__(self, gold: str | Callable[..., Any]) -> None:
        self._warned = False
        if isinstance(gold, str):
            self.column, self.takes_state = gold, False
            return
        given: object = gold
        problems = [f"equals takes the name of a column of the examples, or a function of `example`, not {brief(gold)}"]
        if callable(given) and not isinstance(given, type | dspy.Module):
            problems = argument_problems(gold, "the function in equals", ("example",))
        if problems:
            raise TypeError("; ".join(problems))
        super().__init__(gold)

    def __call__(self, example: Any, value: Any, state: Any = None) -> bool | None:
        gold = self.expected(example, state)
        return None if gold is NO_GOLD else self.is_equal(value, gold)

    def is_equal(self, value: Any, expected: Any) -> bool:
        """Tell if a value equals gold; warns once if two differ in their types alone."""
        equal = bool(value == expected)
        if not equal and not self._warned and _differ_in_type_alone(value, expected):
            self._warned = True
            text = (
                f"the value {value!r:.200} and the expected {expected!r:.200} differ in their types alone, and are not "
                "equal: give examples with values of the type of the field, or a function that compares them"
            )
            logger.warning("%r: %s", self, text)
        return equal

    def expected(self, example: Any, state: Any = None) -> Any:
        """The gold of an example, for a value that was written with a state."""
        if self.column is None:
            found = self._called({"example": example}, state)
            return NO_GOLD if found is None else found
        if self.column not in example:
            raise ValueError(self.lacks(example))
        return example[self.column]

    def lacks(self, example: Any) -> str:
        """The problem with an example without the column."""
        return (
            f"equals({self.column!r}): the example has no {self.column!r}; it has {list_names(example.keys())}."
            f"{suggestion(str(self.column), example.keys())} {NONE_FOR.format(self.column)}"
        )

    def _judged(self, field: str, example: Any, value: Any, state: Any) -> bool | None:
        del field
        return self(example, value, state)

    def __repr__(self) -> str:
        return f"equals({super().__repr__() if self.column is None else repr(self.column)})"


def _differ_in_type_alone(value: Any, expected: Any) -> bool:
    """Tell if two values that are not equal are the same as JSON, or as texts: a model and a dict, 17 and "17"."""
    if type(value) is type(expected) and isinstance(value, str | int | float | bool | None):
        return False
    try:
        return bool(to_jsonable_python(value) == to_jsonable_python(expected)) or (
            isinstance(value, str) is not isinstance(expected, str) and str(value) == str(expected)
        )
    except Exception:  # noqa: BLE001 - a value without a JSON form
        return False


def wrong_text(output: str, value: Any, result: FieldResult, gold: Any) -> str:
    """The feedback on a value, under the name that its author has for it: the metric's own, else what was expected.

    Nothing if the metric cannot tell.
    """
    if result.feedback is not None:
        return result.feedback
    if result.verdict != "wrong":
        return f"`{output}` is right." if result.verdict == "right" else ""
    if gold is not NO_GOLD:
        return f"`{output}` is {shown(value)}, expected {shown(gold)}."
    degree = f" (score {result.score:g} of 1)" if result.score else ""
    return f"`{output}` is {shown(value)}, which is wrong{degree}."


def shown(value: object) -> str:
    """A value as feedback shows it."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


# --- what is wrong with a field metric


def metric_problems(key: str, metric: Any) -> list[str]:
    """Problems with the metric of a key."""
    who, field = f"the metric of {key!r}", key.rpartition(".")[2]
    if isinstance(metric, Equals):
        return []
    if not callable(metric) or isinstance(metric, type | dspy.Module):
        kind = with_article(type(metric).__name__)
        return [f"{who} is {brief(metric)}, {kind}: give a function of `example` and `{field}`, or equals('column')"]
    if field == "example":
        return [f"{who} cannot take both the example and a field of this name: compare it with equals('column')"]
    return argument_problems(metric, who, ("example", field))


def argument_problems(function: Any, who: str, needed: tuple[str, ...]) -> list[str]:
    """Problems with the parameters of a function that is called with some arguments by name, and maybe `state`."""
    if is_async(function):
        return [f"{who} is async: give a plain function"]
    signature, may = read_signature(function, who), list(dict.fromkeys((*needed, "state")))
    problems = list(signature.problems)
    unknown = [one.name for one in signature.parameters if not one.default and one.name not in may]
    if unknown:
        hint = "" if len(unknown) > 1 else suggestion(unknown[0], may)
        taken = f"{', '.join(f'`{name}`' for name in may[:-1])} and `{may[-1]}`"
        problems.append(f"{who} takes {list_names(sorted(unknown))}: it may take {taken}.{hint}")
    missing = [name for name in needed if name not in {one.name for one in signature.parameters}]
    missing = [] if signature.takes_all else missing
    if missing and not unknown:
        wanted = " and ".join(f"`{name}`" for name in needed)
        problems.append(f"{who} takes no {list_names(missing)}: make it a function of {wanted}")
    return problems


def _result(found: Any, key: str) -> FieldResult:
    """The result of a field metric, validated."""
    feedback, given = None, found
    if isinstance(found, dspy.Prediction):
        feedback, given = found.get("feedback"), found.get("score")
        if feedback is not None and not isinstance(feedback, str):
            raise ValueError(f"the metric of {key!r} gave the feedback {brief(feedback)}: give a text")
    feedback = feedback if feedback and feedback.strip() else None
    if given is None:
        return FieldResult(None, feedback)
    try:
        score = math.nan if isinstance(given, str) else float(given)
    except (TypeError, ValueError):  # no number, or an array of several
        score = math.nan
    if not -ROUNDING <= score <= 1 + ROUNDING:
        raise ValueError(
            f"the metric of {key!r} returned {brief(given)}: give a bool, a number from 0 to 1, None if it cannot "
            "tell, or dspy.Prediction(score=..., feedback=...)"
        )
    return FieldResult(1.0 if score > 1 - ROUNDING else max(0.0, score), feedback)
