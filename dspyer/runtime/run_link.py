"""`RunLink`: what the prediction of a program knows of its run, so that `Run.of(prediction)` finds it.

A prediction refers to its link, and the link to its run; a run refers to its prediction weakly, so that both are freed
by their reference counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NoReturn

import dspy

ATTRIBUTE = "_dspyer_run"
"""The attribute of a prediction with its link. It is no field: DSPy keeps fields in a store of their own."""

MakeRun = Callable[[dspy.Prediction], Any]
"""Makes the `Run` of a prediction (a module of its own, which imports this one)."""


@dataclass(slots=True, eq=False, repr=False)
class RunLink:
    """The run of a prediction, made when it is first asked for. Copies of the prediction share it."""

    _make: MakeRun | None = None
    _run: Any = None
    _lock: Any = field(default_factory=RLock)  # a run that is made sets itself

    def run(self, prediction: dspy.Prediction) -> Any:
        """The run. May be called from any thread."""
        with self._lock:
            if self._run is None:
                assert self._make is not None
                self.set(self._make(prediction))
            return self._run

    def set(self, run: Any) -> None:
        """Sets the run."""
        with self._lock:
            self._run, self._make = run, None

    def __copy__(self) -> RunLink:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RunLink:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a pickled prediction has no run, and needs no dspyer where it is loaded


class KeptPrediction:
    """The prediction of a run, as the run keeps it: weakly, and its parts, to make another one if it is gone."""

    __slots__ = ("_made", "_parts")

    def __init__(self, prediction: dspy.Prediction) -> None:
        self._parts = _without_link(prediction)
        self._made = weakref.ref(prediction)

    def of(self, run: Any) -> dspy.Prediction:
        """The prediction of `run`."""
        prediction = self._made()
        if prediction is None:
            prediction = _prediction_of(self._parts)
            prediction.__dict__[ATTRIBUTE] = RunLink(None, run)
            self._made = weakref.ref(prediction)
        return prediction

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptPrediction, (_prediction_of(self._parts),)


def without_run(prediction: dspy.Prediction) -> dspy.Prediction:
    """The same prediction without a link, so that it keeps no run alive."""
    return _prediction_of(_without_link(prediction))


def _without_link(prediction: dspy.Prediction) -> dict[str, Any]:
    parts: dict[str, Any] = vars(prediction).copy()
    parts.pop(ATTRIBUTE, None)
    return parts


def _prediction_of(parts: dict[str, Any]) -> dspy.Prediction:
    """A prediction with the attributes of another one: what is set in one of them is set in both."""
    prediction: dspy.Prediction = object.__new__(dspy.Prediction)
    vars(prediction).update(parts)
    return prediction


def link_of(prediction: dspy.Prediction) -> RunLink | None:
    """The link of a prediction; None if a program has not given it."""
    found = getattr(prediction, "__dict__", {}).get(ATTRIBUTE)
    return found if isinstance(found, RunLink) else None


def has_no_run(prediction: object) -> NoReturn:
    """Raises the error for a prediction without a run."""
    if not isinstance(prediction, dspy.Prediction):
        raise TypeError(f"Run.of takes the prediction that a program gave, not {type(prediction).__name__}")
    raise LookupError(
        "this prediction has no run: a compiled graph did not give it, or it was pickled, or made anew from the fields "
        "of another one, as prediction.copy() does. Pass on the prediction that program(...) returned"
    )
