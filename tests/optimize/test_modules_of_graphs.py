"""Modules written by hand that call several graphs, a graph and predictors, or one graph several times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy
import pytest

from dspyer import END, START, CompiledGraph, Graph, optimize
from dspyer.testing import NearestLM, ScriptedLM

LABEL = "label: Literal['north', 'south', 'east']"
LETTERS = {
    "My invoice is wrong, charged twice.": "north",
    "When does the train leave?": "south",
    "Is there a vegan dish on the menu?": "east",
    "Please refund the charge on my card.": "north",
    "The flight is late, which bus?": "south",
    "How spicy is the soup?": "east",
}
TRAIN = [dspy.Example(question=q, label=label, note=label).with_inputs("question") for q, label in LETTERS.items()]
OF_LABEL = optimize.by_field({"label": optimize.equals("label")}, goal="label")
OF_BOTH = optimize.by_field({"label": optimize.equals("label"), "note": optimize.equals("note")}, goal="label")


class Parts(dspy.Module):
    """A module of some parts, and the function that calls them."""

    def __init__(self, call: Callable[..., dspy.Prediction], **parts: Any) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, question: str) -> dspy.Prediction:
        return self.call(self, question)


def graph(name: str, module: Any) -> CompiledGraph:
    return Graph(name=name).add_node(name, module).add_path(START, name, END).compile()


def noting(name: str = "note") -> CompiledGraph:
    return graph(name, dspy.Predict("question -> note"))


def sorting(name: str = "sort") -> CompiledGraph:
    return graph(name, dspy.Predict(f"question, note -> {LABEL}"))


def chained(self: Any, question: str) -> dspy.Prediction:
    return self.sort(question=question, note=self.notes(question=question).note)


def in_a_list(self: Any, question: str) -> dspy.Prediction:
    return self.parts[1](question=question, note=self.parts[0](question=question).note)


def in_a_dict(self: Any, question: str) -> dspy.Prediction:
    return self.parts["sort"](question=question, note=self.parts["notes"](question=question).note)


def again(self: Any, question: str) -> dspy.Prediction:
    return self.sort(question=question, note=self.first(question=question, note="?").label)


def in_threads(self: Any, question: str) -> dspy.Prediction:
    calls = [(self.notes, {"question": text}) for text in (question, question.upper())]
    notes = dspy.Parallel(num_threads=2, disable_progress_bar=True)(calls)
    return self.sort(question=question, note=" ".join(str(one.note) for one in notes))


def shared() -> Parts:
    predictor = dspy.Predict("question -> note")
    return Parts(chained, notes=graph("a", predictor), more=graph("b", predictor), sort=sorting())


def called_twice() -> Parts:
    sort = sorting()
    return Parts(again, first=sort, sort=sort)


def copied() -> Parts:
    sort = sorting()
    return Parts(again, first=sort.deepcopy(), sort=sort)


def nested() -> Parts:
    """A graph whose node is a module that calls two graphs, in a module that calls another one before it."""
    within = Parts(chained, notes=noting(), sort=sorting())
    outer = Graph(name="Outer").add_node("within", within, reads=["question"], writes=["label"])

    def call(self: Any, question: str) -> dspy.Prediction:
        self.before(question=question)
        return self.outer(question=question)

    return Parts(call, before=noting("before"), outer=outer.add_path(START, "within", END).compile())


MODULES: dict[str, Callable[[], Parts]] = {
    "two graphs": lambda: Parts(chained, notes=noting(), sort=sorting()),
    "a predictor and a graph": lambda: Parts(chained, notes=dspy.Predict("question -> note"), sort=sorting()),
    "a graph and a predictor": lambda: Parts(chained, notes=noting(), sort=dspy.Predict(f"question, note -> {LABEL}")),
    "graphs with a shared predictor": shared,
    "one graph, called twice": called_twice,
    "copies of a graph": copied,
    "graphs with equal names": lambda: Parts(chained, notes=noting("same"), sort=sorting("same")),
    "graphs in a list": lambda: Parts(in_a_list, parts=[noting(), sorting()]),
    "graphs in a dict": lambda: Parts(in_a_dict, parts={"notes": noting(), "sort": sorting()}),
    "a graph in threads": lambda: Parts(in_threads, notes=noting(), sort=sorting()),
    "a module of graphs in a graph": nested,
}


def score(program: dspy.Module) -> float:
    return float(dspy.Evaluate(devset=TRAIN, metric=OF_LABEL, display_progress=False, num_threads=1)(program).score)


@pytest.mark.parametrize("name", MODULES)
def test_gepa_learns_where_a_plain_module_would(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = MODULES[name]()
    with dspy.context(lm=NearestLM()):
        before = score(program)
        tuner = optimize.GEPA(OF_BOTH, reflection_lm=NearestLM(), max_metric_calls=30, num_threads=1, seed=0)
        tuned = tuner.compile(program, trainset=TRAIN, valset=TRAIN)
        assert before < 50 <= score(tuned)
    assert not tuner.stats.untunable
    capsys.readouterr()


@pytest.mark.parametrize("name", MODULES)
def test_few_shot_demonstrates_what_bootstrap_demonstrates(name: str) -> None:
    with dspy.context(lm=NearestLM()):
        plain = dspy.BootstrapFewShot(metric=OF_BOTH, max_labeled_demos=0).compile(MODULES[name](), trainset=TRAIN)
        few = optimize.FewShot(OF_BOTH, max_labeled_demos=0, rollouts=1)
        tuned = few.compile(MODULES[name](), trainset=TRAIN)
    least = [len(predictor.demos) for predictor in plain.predictors()]
    assert any(least)
    assert all(len(own.demos) >= least[at] for at, own in enumerate(tuned.predictors()))


def test_parts_outside_of_the_run_are_told_what_was_expected() -> None:
    program = MODULES["two graphs"]()
    with ScriptedLM([{"note": "none"}, {"label": "south"}]), dspy.context(trace=[]):
        prediction = program(question="Where?")
        trace = [*dspy.settings.trace]
    example = dspy.Example(question="Where?", label="north", note="a note")
    found = [OF_BOTH(example, prediction, trace, "any", [step]).feedback for step in trace]
    assert found == ["`label` is 'south', expected 'north'."] * 2
