"""No optimizer ever treats an output that a check refused as good, and the fix learns from what it got right.

The LM gives refused output to every `draft` at first: a short text. It is a function of what it is shown.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph, optimize
from dspyer.testing import Prompt
from tests.dspy_optimizers import table
from tests.dspy_optimizers.lm import NotingLM, NotingWriter, Sent, written
from tests.dspy_optimizers.programs import LABEL, TEXTS
from tests.dspy_optimizers.table import ROW, Row

REFUSED = "refused-text"
PREVIOUS = re.compile(rf"previous.draft\W+{REFUSED}", re.IGNORECASE)
"""Where it is shown as what it is: the input of a correction."""


class DraftingWriter(NotingWriter):
    """Drafts what the check refuses, except in a correction; each second question is drafted well at once."""

    def write(self, prompt: Prompt, sampling: Any, /) -> str:
        fields = [field.name for field in prompt.output_fields]
        if "draft" not in fields or "question" not in prompt.inputs:
            return super().write(prompt, sampling)
        with self._lock:
            self.sent.append(Sent(prompt.turns, None))
        question = str(prompt.inputs["question"])
        bad = "problems" not in prompt.inputs and len(question) % 2 == 0
        answer = {"reasoning": "so", "draft": REFUSED if bad else f"on {question}"}
        return written(prompt, {name: answer[name] for name in fields})


class DraftingLM(NotingLM):
    """The LM of these tests."""

    writer_type = DraftingWriter


def is_long(draft: str) -> list[str]:
    return ["it says too little"] if draft == REFUSED else []


def correcting() -> Any:
    graph = Graph(name="Correcting")
    graph.add_node("draft", dspy.ChainOfThought("question -> draft"))
    graph.add_check("is_long", is_long, of="draft")
    graph.add_node("label", dspy.Predict(f"question, draft -> {LABEL}"))
    return graph.add_path(START, "draft", "label", END).compile()


TRAIN = [dspy.Example(question=text, label=label).with_inputs("question") for text, label in TEXTS]


def tune(row: Row, program: Any) -> tuple[Any, DraftingLM]:
    lm = DraftingLM()
    with dspy.context(lm=lm):
        if row.pins_lm:
            program.set_lm(lm)
        return row.tune(program, TRAIN, lm), lm


def shown_as_good(lm: NotingLM, tuned: Any) -> Iterator[str]:
    """Where refused output is an example to follow: in a demo, as a turn of an assistant, in data to train on."""
    for name, predictor in tuned.named_predictors():
        yield from (f"demo of {name}" for demo in predictor.demos if demo.get("draft") == REFUSED)
    for sent in lm.sent:
        yield from ("a turn" for turn in sent.turns if turn.role == "assistant" and REFUSED in turn.content)
    for job in lm.provider.jobs:
        yield from ("finetuning" for data in job if REFUSED in data["messages"][-1]["content"])
    for item in getattr(getattr(lm, "reinforced", None), "groups", ()):
        yield from ("reinforcement" for one in item["group"] if REFUSED in json.dumps(one["completion"]))


KINDS = {
    "demos": ["LabeledFewShot", "BootstrapFewShot", "KNNFewShot"],
    "candidates": ["BootstrapFewShotWithRandomSearch", "InferRules"],
    "MIPROv2": ["MIPROv2"],
    "GEPA": ["GEPA"],
    "SIMBA": ["SIMBA"],
    "COPRO": ["COPRO"],
    "weights": ["BootstrapFinetune", "BetterTogether", "GRPO"],
}
"""Variants of these optimizers and `BootstrapFewShotWithOptuna` learn from the same steps."""


@pytest.mark.parametrize("kind", KINDS)
def test_refused_output_is_no_example(kind: str) -> None:
    for row in (ROW[name] for name in KINDS[kind]):
        program = correcting()
        tuned, lm = tune(row, optimize.accepted_only(program) if row.pins_lm else program)
        with dspy.context(lm=lm):  # KNNFewShot chooses its demos now
            assert tuned(question="Where is my refund now").draft != REFUSED, row.name

        refused = any("previous_draft" in turn.content for sent in lm.sent for turn in sent.turns)
        assert refused, f"{row.name}: nothing was refused"
        assert not list(shown_as_good(lm, tuned)), row.name
        if row.name != "GEPA":  # which reflects on it
            texts = [turn.content for sent in lm.sent for turn in sent.turns]
            assert not [text for text in texts if text.count(REFUSED) > len(PREVIOUS.findall(text))], row.name


def finetune_with_teacher(teacher: Any, trainset: table.Examples, lm: NotingLM) -> Any:
    student = optimize.accepted_only(correcting())
    student.set_lm(lm)
    return table.finetune(student, trainset, lm, teacher=teacher)


MANY = {
    "finetuning": [
        Row("BootstrapFinetune", table.finetune, pins_lm=True),
        Row("BootstrapFinetune_teacher", finetune_with_teacher, pins_lm=True),
        Row("BetterTogether", functools.partial(table.better_together, strategy="w -> p"), pins_lm=True),
    ],
    "reinforcement": [Row("GRPO", functools.partial(table.grpo, steps=8), pins_lm=True)],
}


@pytest.mark.parametrize("kind", MANY)
def test_without_accepted_only_these_would_train_on_it(kind: str) -> None:
    for row in MANY[kind]:
        tuned, lm = tune(row, correcting())
        assert list(shown_as_good(lm, tuned)), row.name
        tuned, lm = tune(row, optimize.accepted_only(correcting()))
        assert not list(shown_as_good(lm, tuned)), row.name


def test_the_fix_gets_demos_of_its_own() -> None:
    tuned, _ = tune(ROW["BootstrapFewShot"], correcting())
    demos = [demo for demo in tuned.draft_fix.demos if demo.get("augmented")]
    assert demos
    assert {demo["previous_draft"] for demo in demos} == {REFUSED}
    assert REFUSED not in {demo["draft"] for demo in demos}
    assert {demo["draft"][:2] for demo in tuned.draft.predict.demos if demo.get("augmented")} == {"on"}


def test_gepa_reflects_on_refused_output() -> None:
    _, lm = tune(Row("GEPA", functools.partial(table.gepa, component_selector="all")), correcting())
    shown = [turn.content for sent in lm.sent for turn in sent.turns if "examples_with_feedback" in turn.content]
    assert any(f'"draft": "{REFUSED}"' in text for text in shown)


def test_a_refused_step_stays_a_step_of_its_predictor_by_signature() -> None:
    program = correcting()
    with dspy.context(lm=DraftingLM(), trace=[]):
        program(question="even")
        (first, *_), (fix, *_), _ = trace = dspy.settings.trace
    assert first is not program.draft.predict
    assert first.signature is program.draft.predict.signature
    assert fix is program.draft_fix
    assert len(trace) == 3
    run = None
    with dspy.context(lm=DraftingLM()):
        run = program.run({"question": "even"})
    assert [(step.node, step.status) for step in run.trace_steps] == [
        ("draft", "rejected"),
        ("draft_fix", "used"),
        ("label", "used"),
    ]


def test_steps_that_an_inner_check_refused_stay_refused_outside() -> None:
    graph = Graph(name="Outer").add_node("inner", correcting()).add_path(START, "inner", END)
    program = graph.compile()
    with dspy.context(lm=DraftingLM()):
        run = program.run({"question": "even"})
    assert [(step.node, step.status) for step in run.trace_steps] == [
        ("inner", "rejected"),
        ("inner", "used"),
        ("inner", "used"),
    ]
    with dspy.context(lm=DraftingLM(), trace=[]):
        optimize.accepted_only(program)(question="even")
        assert [outputs.get("draft") for _, _, outputs in dspy.settings.trace] == ["on even", None]


def test_accepted_only_keeps_what_it_is_through_copies() -> None:
    program = optimize.accepted_only(correcting())
    for each in (program, program.deepcopy(), program.reset_copy(), program.with_resources([])):
        with dspy.context(lm=DraftingLM(), trace=[]):
            each(question="even")
            assert len(dspy.settings.trace) == 2
    with pytest.raises(TypeError, match="accepted_only takes a compiled graph, and got a Predict"):
        optimize.accepted_only(dspy.Predict("a -> b"))
