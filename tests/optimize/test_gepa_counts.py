"""Figures of `gepa.stats`, and what went wrong is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph, optimize
from dspyer.errors import StoreError
from dspyer.testing import ScriptedLM
from tests.optimize.skills import ONE_EACH, RULES, ChainState, SkillLM, candidates, chain, examples, step, stepwise

pytestmark = pytest.mark.usefixtures("quiet")

BY_FIELD = optimize.by_field({field: optimize.equals(field) for field in RULES}, goal="c")


def tune(program: Any, lm: Any = None, metric: Any = BY_FIELD, **options: Any) -> tuple[Any, Any]:
    train, val = options.pop("train", examples(9)), options.pop("val", examples(3, 100))
    settings = {"max_metric_calls": 30, "num_threads": 1, "track_stats": True, "reflection_lm": SkillLM(), **options}
    with dspy.context(lm=lm or SkillLM(hard=ONE_EACH)):
        gepa = optimize.GEPA(metric, **settings)
        tuned = gepa.compile(program, trainset=train, valset=val)
    return tuned, gepa.stats


# --- a predictor that two nodes share


def test_a_shared_predictor_is_selected_for_each_of_its_nodes() -> None:
    shared = dspy.Predict(step("n", "a"))
    graph = Graph(ChainState, name="Shared").add_node("first", shared)
    graph.add_node("second", shared, reads={"n": "a"}, writes={"a": "b"})
    program = graph.add_path(START, "first", "second", END).compile()
    metric = optimize.by_field(
        {"a": lambda example, a: True, "b": lambda example, b: b == RULES["a"](example.a)}, goal="b"
    )

    tuned, stats = tune(program, SkillLM(), metric)

    assert stats.nodes["second"].culprit
    assert not stats.nodes["first"].culprit
    assert not stats.untunable
    assert tuned.second.signature.instructions == "Give a. RULE a"
    rows = [(one.proposed, one.kept) for one in stats.nodes.values()]
    assert rows[0] == rows[1]


# --- what went wrong is visible, and does not end it


def test_runs_that_ask_a_question_have_failed() -> None:
    graph = Graph(ChainState, name="Asking").add_node("write_a", dspy.Predict(step("n", "a")))
    graph.add_interrupt("ask", question="How many?", answer=int, into="b")
    metric = optimize.by_field({"a": optimize.equals("a")}, goal="a")

    _, stats = tune(graph.add_path(START, "write_a", "ask", END).compile(), SkillLM(), metric)

    assert stats.failed_runs == stats.metric_calls == 30


def test_a_field_metric_that_raises_ends_nothing_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    def judged(example: Any, b: int) -> bool:
        if example.n == 3:
            raise ZeroDivisionError("no scale")
        return bool(b == example.b)

    metric = optimize.by_field({"a": optimize.equals("a"), "b": judged, "c": optimize.equals("c")}, goal="c")
    tuned, stats = tune(chain(), metric=metric)

    assert stats.unjudged
    assert f"{stats.unjudged} run" in str(stats)
    assert "no scale" in caplog.text
    assert "in the metric of the field 'b'" in caplog.text
    assert len(candidates(tuned)) > 1, "it learned from the other examples"


def test_what_always_propagates_passes_through_a_field_metric() -> None:
    """C3 of reliable.md: a broken store is no mistake of a node."""
    error = StoreError("full")

    def judged(example: Any, b: int) -> bool:
        raise error

    metric = optimize.by_field({"b": judged, "c": optimize.equals("c")}, goal="c")
    with pytest.raises(StoreError) as raised:
        tune(chain(), metric=metric)
    assert raised.value is error


def test_feedback_that_raises_is_in_the_stats() -> None:
    def broken(example: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        if pred_name is not None:
            raise KeyError("hints")
        return stepwise(example, pred)

    tuned, stats = tune(chain(), metric=broken)

    assert len(candidates(tuned)) == 1
    assert stats.reflection_errors > 1
    assert f"reflection failed {stats.reflection_errors} times: KeyError: 'hints'" in str(stats)


def test_a_reflection_lm_that_raises_is_in_the_stats() -> None:
    def down(prompt: Any) -> str:
        raise ConnectionError("no route")

    _, stats = tune(chain(), reflection_lm=ScriptedLM(down))
    _, fine = tune(chain())

    assert stats.reflection_errors
    assert "no route" in stats.reflection_error
    assert "no route" in str(stats)
    assert not fine.reflection_errors
    assert "reflection failed" not in str(fine)


def test_a_proposer_of_the_user_also_gets_components_without_records() -> None:
    asked: list[tuple[set[str], set[str]]] = []

    def propose(candidate: Any, reflective_dataset: Any, components_to_update: list[str]) -> dict[str, str]:
        asked.append((set(components_to_update), set(reflective_dataset)))
        return {name: f"{candidate[name]} RULE a" for name in components_to_update}

    graph = Graph(ChainState, name="Sides")
    for side in ("left", "right"):
        graph.add_node(side, dspy.Predict(step("n", "a"))).add_edge(side, END)
    graph.add_conditional_edges(START, lambda n: "right" if n < 1000 else "left", ["left", "right"])
    metric = optimize.by_field({"a": optimize.equals("a")}, goal="a")

    options = {"instruction_proposer": propose, "component_selector": "all"}
    tune(graph.compile(), SkillLM(), metric, **options)

    assert asked[0] == ({"left", "right"}, {"right"})


def test_candidates_are_counted_without_an_iteration(tmp_path: Path) -> None:
    _, stats = tune(chain(), max_metric_calls=2)
    tuned, first = tune(chain(), log_dir=str(tmp_path))
    _, again = tune(chain(), log_dir=str(tmp_path))

    assert stats.candidates == 1
    assert stats.metric_calls == 3
    assert again.candidates == first.candidates == len(candidates(tuned)) > 1
