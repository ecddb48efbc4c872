"""Optimizers tune the module of a search by what its best trials gave, never by what lost; its judge they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph
from dspyer.search import best_of
from dspyer.testing import Prompt
from tests.dspy_optimizers.lm import NotingLM, NotingWriter, Sent, written
from tests.dspy_optimizers.programs import LABEL
from tests.dspy_optimizers.table import ROW, Row
from tests.dspy_optimizers.test_checks import REFUSED as LOST
from tests.dspy_optimizers.test_checks import TRAIN, shown_as_good


class TryingWriter(NotingWriter):
    """The first trial of each search gives a draft that loses, the second a good one. The judge knows them apart."""

    def write(self, prompt: Prompt, sampling: Any, /) -> str:
        fields = [field.name for field in prompt.output_fields]
        if "quality" in fields and "draft" in prompt.inputs:
            return written(prompt, {"quality": 0.1 if prompt.inputs["draft"] == LOST else 0.9})
        if "draft" not in fields or "question" not in prompt.inputs:
            return super().write(prompt, sampling)
        with self._lock:
            self.sent.append(Sent(prompt.turns, sampling.rollout))
        draft = LOST if sampling.rollout == 0 else f"on {prompt.inputs['question']}"
        return written(prompt, {name: {"reasoning": "so", "draft": draft}[name] for name in fields})


class TryingLM(NotingLM):
    """The LM of these tests."""

    writer_type = TryingWriter


JUDGE = "question, draft -> quality: float"


def searching() -> Any:
    graph = Graph(name="Searching")
    search = best_of(dspy.ChainOfThought("question -> draft"), 2, dspy.Predict(JUDGE), name="Drafts")
    graph.add_node("draft", search, writes=["draft"])
    graph.add_node("label", dspy.Predict(f"question, draft -> {LABEL}"))
    return graph.add_path(START, "draft", "label", END).compile()


def tune(row: Row, program: Any) -> tuple[Any, TryingLM]:
    lm = TryingLM()
    with dspy.context(lm=lm):
        if row.pins_lm:
            program.set_lm(lm)
        return row.tune(program, TRAIN, lm), lm


KINDS = {
    "demos": ["BootstrapFewShot", "KNNFewShot", "InferRules"],
    "MIPROv2": ["MIPROv2"],
    "GEPA": ["GEPA"],
    "SIMBA": ["SIMBA"],
    "COPRO": ["COPRO"],
    "weights": ["BootstrapFinetune", "GRPO"],
    "BetterTogether": ["BetterTogether"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_lost_is_no_example(kind: str) -> None:
    for row in (ROW[name] for name in KINDS[kind]):
        program = searching()
        tuned, lm = tune(row, program)
        with dspy.context(lm=lm):  # KNNFewShot chooses its demos now
            assert tuned(question="Where is my refund now").draft != LOST, row.name
        assert any(sent.rollout == 0 for sent in lm.sent), f"{row.name}: nothing lost"
        assert not list(shown_as_good(lm, tuned)), row.name
        names = [name for name, _ in program.named_predictors()]
        assert names == ["draft.trial.predict", "label"]
        if row.learns == "all":
            assert all(predictor.demos or row.name == "GEPA" for _, predictor in tuned.named_predictors()), row.name
        # The judge is not tuned. GRPO gives a program of its own.
        for _, part in tuned.named_sub_modules():
            judge = getattr(part, "reward", None)
            if judge is not None:
                before = program.draft.reward.signature.instructions
                assert (judge.demos, judge.signature.instructions) == ([], before), row.name


def test_the_demos_of_a_trial_are_those_of_the_winner() -> None:
    tuned, _ = tune(ROW["BootstrapFewShot"], searching())
    demos = [demo for demo in tuned.draft.trial.predict.demos if demo.get("augmented")]
    assert demos
    assert all(demo["draft"] == f"on {demo['question']}" for demo in demos)


def test_a_saved_module_loads_into_the_search_and_back(tmp_path: Path) -> None:
    module = dspy.ChainOfThought("question -> draft")
    module.predict.demos = [dspy.Example(question="why?", draft="so")]
    module.save(tmp_path / "module.json")
    program = searching()
    program.draft.trial.load(tmp_path / "module.json")
    assert program.draft.trial.predict.demos[0]["draft"] == "so"
    program.save(tmp_path / "program.json")
    other = searching()
    other.load(tmp_path / "program.json")
    assert other.draft.trial.predict.demos[0]["draft"] == "so"
    assert sorted(other.dump_state()) == ["draft.reward", "draft.trial.predict", "label"]
    other.draft.trial.save(tmp_path / "back.json")
    back = dspy.ChainOfThought("question -> draft")
    back.load(tmp_path / "back.json")
    assert back.predict.demos[0]["draft"] == "so"
