"""DSPy's optimizers on an agent with tools, and on one with modes: each predictor learns, and no demo holds a tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import agents
from dspyer.testing.prompt import Prompt, write_answer
from dspyer.testing.text_engine import Sampling
from tests.optimizers.lm import NotingLM, NotingWriter
from tests.optimizers.programs import LABEL, TEXTS
from tests.optimizers.table import ROWS, Row

NAMES = ("BootstrapFewShot", "MIPROv2", "GEPA", "SIMBA", "InferRules", "BootstrapFinetune", "GRPO")
TRAIN = [dspy.Example(question=text, label=label).with_inputs("question") for text, label in TEXTS]
DESKS = dict(TEXTS)
LEARNED = ("This is an example of the task", "Weigh every sentence")
"""What is in prompts with demos, and in the instructions that the LM of these tests proposes."""


def look_up(word: str) -> str:
    """Finds the desk that has a word in its list."""
    return f"{word} is in a list"


class TurnWriter(NotingWriter):
    """Takes the turns of agents: it looks a word up, hands off if it may, and submits a label.

    The label is right if the prompt has demos or instructions of an optimizer.
    """

    def write(self, prompt: Prompt, sampling: Sampling, /) -> str:
        if "tool_calls" not in {field.name for field in prompt.output_fields}:
            return super().write(prompt, sampling)
        text = "\n".join(turn.content for turn in prompt.turns)
        question = max(DESKS, key=text.rfind)
        if question in prompt.turns[-1].content:
            call = {"name": "look_up", "args": {"word": question.split()[1]}}
        elif "`to_answer`" in prompt.turns[0].content:
            call = {"name": "to_answer", "args": {}}
        else:
            tuned = any(learned in text for learned in LEARNED)
            call = {"name": "submit", "args": {"label": DESKS[question] if tuned else "north"}}
        return write_answer(prompt, {"next_thought": "so", "tool_calls": {"tool_calls": [call]}})


class TurnLM(NotingLM):
    writer_type = TurnWriter


def loop() -> Any:
    return agents.tool_loop(f"question -> {LABEL}", [look_up]).compile()


def two_modes() -> Any:
    modes = {"search": agents.Mode("Search.", tools=[look_up], to=["answer"]), "answer": agents.Mode("Answer.")}
    return agents.modes(f"question -> {LABEL}", modes).compile()


CASES = [
    pytest.param(row, make, id=f"{row.name}-{make.__name__}")
    for row in ROWS
    for make in (loop, two_modes)
    if row.name in NAMES and (make is two_modes or row.name not in ("GEPA", "SIMBA"))  # slow, and alike in a loop
]


def tuned_by(row: Row, program: Any) -> tuple[Any, TurnLM]:
    lm = TurnLM()
    with dspy.context(lm=lm):
        if row.pins_lm:
            program.set_lm(lm)
        return row.tune(program, TRAIN, lm), lm


@pytest.mark.parametrize(("row", "make"), CASES)
def test_each_optimizer_tunes_an_agent(row: Row, make: Any, tmp_path: Path) -> None:
    program = make()
    before = {name: predictor.dump_state() for name, predictor in program.named_predictors()}
    tuned, lm = tuned_by(row, program)
    after = {name: predictor.dump_state() for name, predictor in tuned.named_predictors()}
    assert list(after) == list(before)
    changed = [name for name in before if after[name] != before[name]]
    assert changed == list(before) if row.learns == "all" else changed or row.learns == "none"
    for predictor in tuned.predictors():
        assert not any("tools" in demo for demo in predictor.demos)
    tuned.set_lm(None)
    tuned.save(tmp_path / "agent.json")
    saved = json.loads((tmp_path / "agent.json").read_text())
    assert not any("has a word in its list" in json.dumps(saved[name]["demos"]) for name in before)
    make().load(tmp_path / "agent.json")
    with dspy.context(lm=lm):
        assert tuned(question=TEXTS[0][0]).label in ("north", "east")
