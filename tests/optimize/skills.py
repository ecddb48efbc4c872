"""Programs whose predictors lack a rule each, an LM that follows the rules it is told, and one that writes them."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import dspy
from pydantic import BaseModel

from dspyer import END, START, Graph
from dspyer.testing import Prompt
from tests.dspy_optimizers.lm import WriterLM, written

RULES: Mapping[str, Callable[..., int]] = {
    "a": lambda n: n + 1,
    "b": lambda a: 2 * a,
    "c": lambda b: b + 3,
}
"""What each field is made of, and how. A predictor whose instructions lack `RULE field` is wrong by 100."""


ONE_EACH = {"a": 0, "b": 2, "c": 0}
"""`SkillLM(hard=)`: each field is wrong for every third input alone, so that each example of a chain lacks one rule."""


class Asked(NamedTuple):
    """One call of an LM."""

    field: str
    text: str
    rollout: int | None


class Writer:
    """Responds as a function of the prompt and the rollout id; notes every call.

    It reflects by what the feedback says: `expected` gives the rule of the predictor, anything else a rule by chance.
    """

    def __init__(self, rules: Mapping[str, Callable[..., int]], hard: Mapping[str, int]) -> None:
        self.rules = rules
        self.hard = hard
        self.asked: list[Asked] = []
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Writer:
        return self

    def write(self, prompt: Prompt, sampling: Any, /) -> str:
        text = "\n".join(turn.content for turn in prompt.turns)
        names = [field.name for field in prompt.output_fields]
        with self._lock:
            self.asked.append(Asked(names[-1], text, sampling.rollout))
        if "new_instruction" in names:
            return written(prompt, {"new_instruction": self.reflect(prompt, sampling.rollout)})
        (name,) = (name for name in names if name in self.rules)
        if "BREAK" in prompt.instructions:
            return "no field at all"
        given = [int(value) for value in prompt.inputs.values()]
        value = self.rules[name](*given)
        knows = f"RULE {name}" in prompt.instructions or (name in self.hard and given[0] % 3 != self.hard[name])
        rest = dict.fromkeys(names, "because")
        return written(prompt, {**rest, name: value if knows else value + 100})

    def reflect(self, prompt: Prompt, rollout: int | None) -> str:
        current, examples = prompt.inputs["current_instruction"], prompt.inputs["examples_with_feedback"]
        digest = hashlib.sha256(f"{rollout}{current}{examples}".encode()).digest()
        own = re.search(r"Give (\w)", current) if "expected" in examples else None
        rule = own[1] if own else sorted(self.rules)[digest[0] % len(self.rules)]
        return f"{current} RULE {rule}"


class SkillLM(WriterLM):
    """The LM of these tests."""

    def __init__(
        self, rules: Mapping[str, Callable[..., int]] = RULES, *, hard: Mapping[str, int] | None = None, **options: Any
    ) -> None:
        super().__init__("skills", Writer(rules, hard or {}), **options)

    @property
    def asked(self) -> list[Asked]:
        found: list[Asked] = self.writer.asked
        return found

    @property
    def tasks(self) -> list[Asked]:
        """Those that are no reflection."""
        return [one for one in self.asked if one.field != "new_instruction"]

    @property
    def reflections(self) -> list[Asked]:
        return [one for one in self.asked if one.field == "new_instruction"]


def step(given: str, field: str) -> Any:
    """The signature of a predictor that lacks the rule of its field."""
    return dspy.Signature(f"{given}: int -> {field}: int", f"Give {field}.")


class ChainState(BaseModel):
    n: int
    a: int = 0
    b: int = 0
    c: int = 0


def chain(**frozen: bool) -> Any:
    """n -> a -> b -> c."""
    graph = Graph(ChainState, name="Chain")
    for inputs, field in (("n", "a"), ("a", "b"), ("b", "c")):
        graph.add_node(
            f"write_{field}",
            dspy.Predict(step(inputs, field)),
            frozen=frozen.get(field, False),
        )
    return graph.add_path(START, "write_a", "write_b", "write_c", END).compile()


def examples(count: int, first: int = 0) -> list[dspy.Example]:
    """Inputs of the chain with the gold value of each field."""
    found = []
    for n in range(first, first + count):
        a = RULES["a"](n)
        b = RULES["b"](a)
        found.append(dspy.Example(n=n, a=a, b=b, c=RULES["c"](b)).with_inputs("n"))
    return found


def stepwise(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    """A plain metric of DSPy: which share of the steps follow their rules."""
    del trace, pred_trace
    values = [example.n, *(getattr(prediction, field, None) for field in RULES)]
    right = [rule(before) == after for rule, before, after in zip(RULES.values(), values, values[1:], strict=False)]
    score = sum(right) / len(right)
    return score if pred_name is None else dspy.Prediction(score=score, feedback=f"right: {right}")


def candidates(program: Any) -> list[dict[str, str]]:
    """The instructions of all candidates of an optimization with `track_stats=True`."""
    return [
        {name: predictor.signature.instructions for name, predictor in candidate.named_predictors()}
        for candidate in program.detailed_results.candidates
    ]


def rivals() -> list[dspy.Example]:
    """Inputs of the chain for which another edit each is the best one, by `rivalling`: GEPA merges such candidates."""
    return [dspy.Example(n=n, kind=("neither", "a", "b")[n % 3]).with_inputs("n") for n in range(6)]


def rivalling(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    del trace, pred_name, pred_trace
    a, b = prediction.a, prediction.b
    edited = {"a": a == RULES["a"](example.n), "b": b == RULES["b"](a)}
    return dspy.Prediction(score=float(edited.get(example.kind, not any(edited.values()))), feedback="expected")
