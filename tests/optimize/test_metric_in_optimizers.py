"""A metric by field under `dspy.Evaluate` and DSPy's own optimizers, and what these do with its errors."""

from __future__ import annotations

import logging
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph
from dspyer.optimize import by_field, equals
from tests.dspy_optimizers.lm import NotingLM
from tests.dspy_optimizers.programs import LABEL, TEXTS
from tests.dspy_optimizers.table import FEW
from tests.optimize.planted import FakePredict

pytestmark = pytest.mark.usefixtures("quiet")

TRAIN = [
    dspy.Example(question=text, topic=f"about {label}", label=label).with_inputs("question") for text, label in TEXTS
]


def program() -> Any:
    graph = Graph(name="Desk").add_node("topic", dspy.Predict("question -> topic"))
    graph.add_node("sort", dspy.Predict(f"topic -> {LABEL}"))
    return graph.add_path(START, "topic", "sort", END).compile()


def metric_of(**fields: str) -> Any:
    return by_field({field: equals(column) for field, column in fields.items()}, goal="label")


BOTH = metric_of(topic="topic", label="label")


@pytest.mark.parametrize("threads", [1, 3])
def test_evaluate_gives_the_score_of_the_goal(threads: int) -> None:
    evaluate = dspy.Evaluate(devset=TRAIN, metric=BOTH, num_threads=threads, display_progress=False)
    with dspy.context(lm=NotingLM()):
        found = evaluate(program())
    right = [float(prediction.label == example.label) for example, prediction, _ in found.results]
    assert [score for *_, score in found.results] == right
    assert found.score == pytest.approx(100 * sum(right) / len(right), abs=0.01)


class Seen:
    """A metric that notes what it is asked, and what it answers."""

    def __init__(self, metric: Any) -> None:
        self.metric = metric
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        found = self.metric(gold, pred, trace, pred_name, pred_trace)
        self.calls.append((gold, pred, pred_name, pred_trace, found))
        return found


def looped() -> Any:
    """A step that is wrong at its first visit, and right at its second."""
    graph = Graph(name="Looped")
    graph.add_node("write", dspy.Predict("question, rounds: int -> label"))
    graph.add_node("count", lambda rounds: {"rounds": rounds + 1}, writes=["rounds"])
    graph.add_path(START, "write", "count")
    graph.add_conditional_edges("count", lambda rounds: END if rounds > 1 else "write", [END, "write"])
    made = graph.compile()
    made.write = FakePredict("question, rounds -> label", lambda question, rounds: "no" if not rounds else "east")
    return made


def test_gepa_gets_feedback_for_the_step_that_it_shows_in_a_loop_too() -> None:
    trainset = [
        dspy.Example(question="?", rounds=0, label=label).with_inputs("question", "rounds") for label in ("east", "no")
    ] * 6
    seen = Seen(metric_of(label="label"))
    lm = NotingLM()
    options: dict[str, Any] = {"max_metric_calls": 40, "num_threads": 1, "component_selector": "all"}
    with dspy.context(lm=lm):
        dspy.GEPA(metric=seen, reflection_lm=lm, **options).compile(looped(), trainset=trainset, valset=trainset[:2])
    told = [
        (gold.label, pred_trace[0][2].label, found.feedback) for gold, _, name, pred_trace, found in seen.calls if name
    ]
    assert {(label, shown) for label, shown, _ in told} >= {("east", "no"), ("east", "east")}, "both visits were shown"
    for label, shown, text in told:
        assert text == ("`label` is right." if label == shown else f"`label` is {shown!r}, expected {label!r}.")
    assert all(found.score == (gold.label == "east") for gold, _, name, _, found in seen.calls if name)


def test_gepa_gets_other_feedback_for_each_predictor() -> None:
    seen, lm = Seen(BOTH), NotingLM()
    options: dict[str, Any] = {"max_metric_calls": 30, "num_threads": 2, "component_selector": "all"}
    with dspy.context(lm=lm):
        dspy.GEPA(metric=seen, reflection_lm=lm, **options).compile(program(), trainset=TRAIN, valset=TRAIN[:3])
    told = {(name, found.feedback) for _, _, name, _, found in seen.calls if name}
    assert all(text.startswith("`topic` is ") for name, text in told if name == "topic")
    assert ("sort", "It had read `topic`, which was already wrong: nothing to fix here.") in told
    assert {name for name, _ in told} == {"topic", "sort"}


def test_a_bootstrap_takes_only_runs_that_are_right() -> None:
    with dspy.context(lm=NotingLM()):
        plain = program()
        right = [example for example in TRAIN if plain(**example.inputs()).label == example.label]
        tuned = dspy.BootstrapFewShot(metric=BOTH, **FEW).compile(program(), trainset=TRAIN)
        half = by_field({"label": lambda example, label: 0.5}, goal="label")
        none = dspy.BootstrapFewShot(metric=half, **FEW).compile(program(), trainset=TRAIN)
        some = dspy.BootstrapFewShot(metric=half, metric_threshold=0.5, **FEW).compile(program(), trainset=TRAIN)

    def bootstrapped(found: Any) -> int:
        return len([demo for demo in found.sort.demos if demo.get("augmented")])

    assert (bootstrapped(tuned), bootstrapped(none), bootstrapped(some)) == (min(2, len(right)), 0, 2)


def test_mipro_takes_it() -> None:
    options: dict[str, Any] = {"num_trials": 2, "minibatch": False, "program_aware_proposer": False}
    with dspy.context(lm=NotingLM()):
        optimizer = dspy.MIPROv2(metric=BOTH, auto=None, num_candidates=2, num_threads=1, seed=0, **FEW)
        tuned = optimizer.compile(program(), trainset=TRAIN, valset=TRAIN[:4], **options)
    assert tuned.score >= 0


class ByHand(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sort = dspy.Predict(f"question -> {LABEL}")

    def forward(self, question: str) -> dspy.Prediction:
        return dspy.Prediction(label=self.sort(question=question).label)


def test_a_module_written_by_hand_gets_the_goal_as_feedback() -> None:
    seen, lm = Seen(BOTH), NotingLM()
    BOTH.validate(ByHand(), TRAIN)
    options: dict[str, Any] = {"max_metric_calls": 20, "num_threads": 1}
    with dspy.context(lm=lm):
        dspy.GEPA(metric=seen, reflection_lm=lm, **options).compile(ByHand(), trainset=TRAIN, valset=TRAIN[:3])
    told = [(gold, pred, found) for gold, pred, name, _, found in seen.calls if name]
    assert told
    for gold, pred, found in told:
        wrong = f"`label` is {pred.label!r}, expected {gold.label!r}."
        assert found.feedback == ("`label` is right." if found.score else wrong)


def test_feedback_by_the_goal_has_gold_for_the_state_where_it_was_written() -> None:
    """The state has the inputs, which the prediction lacks."""
    graph = Graph().add_node("say", lambda text: {"answer": "0"}, writes=["answer"])
    made = graph.add_path(START, "say", END).compile()(text="?")
    metric = by_field({"answer": equals(lambda example, state: example.plan[state["text"]])}, goal="answer")
    found = metric(dspy.Example(text="?", plan={"?": "1"}), made, None, "another", [(None, {}, {})])
    assert found == dspy.Prediction(score=0.0, feedback="`answer` is '0', expected '1'.")


def test_what_evaluate_and_gepa_do_with_a_metric_that_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    """They score 0 and go on: hence `validate`, which `optimize.GEPA` and `optimize.FewShot` call."""
    misfit = by_field({"labels": equals("label")}, goal="labels")
    with pytest.raises(ValueError, match=r"nothing writes 'labels'. Did you mean 'label'\?"):
        misfit.validate(program(), TRAIN)
    with dspy.context(lm=NotingLM()), caplog.at_level(logging.WARNING):
        evaluate = dspy.Evaluate(devset=TRAIN, metric=misfit, num_threads=1, display_progress=False)
        assert evaluate(program()).score == 0
    assert "a prediction has no field 'labels', which scores 0" in caplog.text
