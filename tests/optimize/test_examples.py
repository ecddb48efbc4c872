"""Examples that do not fit are refused before the first run, and figures say what failed in the runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy
import pytest

from dspyer import END, START, CompiledGraph, Graph, optimize
from dspyer.testing import ScriptedLM

pytestmark = pytest.mark.usefixtures("quiet")

METRIC = optimize.by_field({"place": optimize.equals("place")}, goal="place")
GOOD = dspy.Example(question="Where?", place="north").with_inputs("question")


def program() -> CompiledGraph:
    return Graph(name="Find").add_node("find", dspy.Predict("question -> place")).add_path(START, "find", END).compile()


def gepa(examples: Any, metric: Any = METRIC, **options: Any) -> optimize.GEPA:
    made = optimize.GEPA(metric, reflection_lm=ScriptedLM([]), max_metric_calls=6, num_threads=1, **options)
    made.compile(program(), trainset=[GOOD], valset=examples)
    return made


def few_shot(examples: Any) -> None:
    optimize.FewShot(METRIC).compile(program(), trainset=examples)


@pytest.mark.parametrize("optimizer", [gepa, few_shot])
@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (GOOD.toDict(), TypeError, r"set\[1\] is a dict: give dspy\.Example\(\*\*values\)\.with_inputs\(\.\.\.\)"),
        (dspy.Example(**GOOD.toDict()), ValueError, r"set\[1\] .*: call example\.with_inputs\('question'\)"),
        (
            dspy.Example(text="Where?", place="north").with_inputs("text"),
            ValueError,
            r"set\[1\]: graph 'Find' has no input 'text'",
        ),
    ],
    ids=["dict", "no inputs", "other inputs"],
)
def test_an_example_that_is_none_is_named_before_anything_runs(
    optimizer: Callable[[Any], object], bad: Any, error: type[Exception], text: str
) -> None:
    with ScriptedLM([]) as lm, pytest.raises(error, match=text):
        optimizer([GOOD, bad])
    assert not lm.calls


def test_the_figures_name_what_a_metric_raised() -> None:
    metric = optimize.by_field({"place": lambda example, place: 85}, goal="place")
    with ScriptedLM(lambda prompt: {"place": "north"}):
        stats = gepa([GOOD, GOOD.copy()], metric).stats
    assert stats.failed > 0
    assert f"{stats.failed} runs failed: ValueError: the metric of 'place' returned 85" in str(stats)


def test_the_figures_count_runs_that_failed() -> None:
    def fails(prompt: Any) -> Any:
        raise RuntimeError("the provider does not answer")

    with ScriptedLM(fails):
        stats = gepa([GOOD, GOOD.copy()]).stats
    assert stats.failed > 0
    assert str(stats).endswith(f"\n{stats.failed} runs failed: see the log")


def test_a_run_that_failed_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fails(prompt: Any) -> Any:
        raise RuntimeError("the provider does not answer")

    with ScriptedLM(fails):
        optimize.FewShot(METRIC, max_errors=9).compile(program(), trainset=[GOOD])
    assert "FewShot: a run failed" in caplog.text
    assert "the provider does not answer" in caplog.text


def test_a_program_without_a_predictor_to_edit_is_refused() -> None:
    compiled = dspy.ChainOfThought("question -> place")
    compiled._compiled = True
    made = optimize.GEPA(METRIC, reflection_lm=ScriptedLM([]), max_metric_calls=6)
    steps: list[Any] = [compiled, lambda question: {"place": question}]
    for step in steps:
        frozen = Graph().add_node("find", step, writes=["place"]).add_path(START, "find", END).compile()
        with pytest.raises(ValueError, match="there is nothing to edit: the program has no predictor, or all of its"):
            made.compile(frozen, trainset=[GOOD])
