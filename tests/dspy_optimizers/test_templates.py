"""Optimizers tune the template: its names stay, the traces hold its values, and no tuned text fails."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, fill
from tests.dspy_optimizers.lm import NotingLM
from tests.dspy_optimizers.programs import PAIRS, Label, exact
from tests.dspy_optimizers.table import ROWS, Row


class State(BaseModel):
    question: str
    mood: str = ""
    label: str = ""


class Sort(dspy.Signature):
    """Say which desk takes it; the writer is {mood}. Not {"json": 1}."""

    request: str = dspy.InputField()
    label: Label = dspy.OutputField()


def look_up(word: str) -> str:
    """Looks a {word} up."""
    return word


REACT = functools.partial(dspy.ReAct, tools=[look_up], max_iters=1)
TUNED = ("GEPA", "MIPROv2", "MIPROv2_zero_shot", "COPRO", "SIMBA", "BootstrapFewShot", "InferRules")
REWRITES = ("GEPA", "MIPROv2", "MIPROv2_zero_shot", "COPRO", "SIMBA")  # what these show to a model is the template
CASES = [
    *(pytest.param(dspy.Predict, row, id=f"Predict-{row.name}") for row in ROWS if row.name in TUNED),
    *(pytest.param(dspy.ChainOfThought, row, id=f"CoT-{row.name}") for row in ROWS if row.name == "BootstrapFewShot"),
    *(pytest.param(REACT, row, id=f"ReAct-{row.name}") for row in ROWS if row.name == "GEPA"),
]


def program_of(make: Any) -> Any:
    graph = Graph(State, name="Templated")
    graph.add_node("mood", dspy.Predict("question -> mood: Literal['angry', 'calm']"))
    graph.add_node("sort", make(Sort), reads={"request": fill("Sort: {question}")})
    return graph.add_path(START, "mood", "sort", END).compile()


@pytest.mark.parametrize(("make", "row"), CASES)
def test_a_template_is_tuned(make: Any, row: Row, tmp_path: Path) -> None:
    lm = NotingLM()
    (chain,) = [pair for pair in PAIRS if pair.name == "chain"]
    with dspy.context(lm=lm):
        tuned = row.tune(program_of(make), chain.trainset, lm)
        result = dspy.Evaluate(devset=chain.trainset[5:], num_threads=1, display_progress=False)(tuned, metric=exact)
    assert len(result.results) == 3
    sent = [turn.content for call in lm.sent for turn in call.turns]
    assert any("the writer is {mood}" in text for text in sent) == (row.name in REWRITES)
    before = tuned.dump_state()
    tuned.save(str(tmp_path / "tuned.json"))
    other = program_of(make)
    other.load(str(tmp_path / "tuned.json"))
    assert other.dump_state() == before
    lm.sent.clear()
    with dspy.context(lm=lm):
        other(question="Where is my refund?")
    shown = [call.turns[0].content for call in lm.sent if "`request`" in call.turns[0].content]
    assert shown
    assert all("calm" in text or "angry" in text for text in shown)


def test_reflection_sees_the_values() -> None:
    """GEPA's reflection is shown the inputs of the trace: with the names alone it could not learn from them."""
    lm = NotingLM()
    (chain,) = [pair for pair in PAIRS if pair.name == "chain"]
    (gepa,) = [row for row in ROWS if row.name == "GEPA"]
    with dspy.context(lm=lm):
        gepa.tune(program_of(dspy.Predict), chain.trainset, lm)
    reflections = [text for call in lm.sent for turn in call.turns if "the label is" in (text := turn.content)]
    assert any("mood" in text and ("calm" in text or "angry" in text) and "Sort: " in text for text in reflections)


def test_demos_hold_the_values_and_do_not_show_them() -> None:
    lm = NotingLM()
    (chain,) = [pair for pair in PAIRS if pair.name == "chain"]
    (row,) = [row for row in ROWS if row.name == "BootstrapFewShot"]
    with dspy.context(lm=lm):
        tuned = row.tune(program_of(dspy.Predict), chain.trainset, lm)
        demos = [demo for demo in tuned.sort.demos if demo.get("augmented")]
        lm.sent.clear()
        tuned(question="Where is my refund?")
    assert demos
    assert all(demo["mood"] in ("angry", "calm") for demo in demos)
    sort = next(call for call in lm.sent if "`request`" in call.turns[0].content)
    assert not any("mood" in turn.content for turn in sort.turns[1:])
