"""Predictors without an LM, in which faults are planted.

A wrong value begins with `bad`. A predictor gives a right one if all that it reads is right and it has no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import dspy

BAD = "bad"
REFUSED = "bad, as a check finds"

Give = Callable[..., Any]


def is_right(value: Any) -> bool:
    """Tell if a value, or all of a list or dict, is right."""
    if isinstance(value, dict):
        return all(map(is_right, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_right, value))
    return not isinstance(value, str) or not value.startswith(BAD)


class FakePredict(dspy.Predict):
    """A predictor with one output, which a function gives, and a step in the trace."""

    def __init__(self, signature: Any, give: Give) -> None:
        super().__init__(signature)
        self.give = give

    def forward(self, **inputs: Any) -> dspy.Prediction:
        return self._noted(inputs)

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        return self._noted(inputs)

    def _noted(self, inputs: dict[str, Any]) -> dspy.Prediction:
        (output,) = self.signature.output_fields
        prediction = dspy.Prediction(**{output: self.give(**inputs)})
        dspy.settings.trace.append((self, inputs, prediction))
        return prediction


class Planting:
    """Makes predictors and functions, some of which are planted with a fault.

    Attributes:
        faults: the names of those.
        calls: how often each of all was called.
    """

    def __init__(self, faults: Iterable[str] = ()) -> None:
        self.faults = set(faults)
        self.calls: Counter[str] = Counter()

    def value(self, name: str, inputs: Iterable[Any], right: Any, wrong: Any = BAD) -> Any:
        """What the node of a name gives for its inputs; `wrong` if a fault is planted in it."""
        self.calls[name] += 1
        if not all(map(is_right, inputs)):
            return BAD if wrong == REFUSED else wrong
        return wrong if name in self.faults else right

    def predictor(self, name: str, signature: str, give: Give | None = None, wrong: Any = BAD) -> FakePredict:
        """A predictor with one output; `give` makes its right value of its inputs, by default `ok` and its name."""
        (output,) = dspy.ensure_signature(signature).output_fields

        def gives(**inputs: Any) -> Any:
            right = f"ok {output}" if give is None else give(**inputs)
            return self.value(name, inputs.values(), right, wrong)

        return FakePredict(signature, gives)
