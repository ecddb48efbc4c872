"""Rule 4.1: GEPA edits the culprits of a minibatch. And what `gepa.stats` says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph, Run, optimize
from dspyer.optimize.gepa_stats import GEPAStats
from tests.optimize.skills import ONE_EACH, RULES, ChainState, SkillLM, chain, examples, rivalling, rivals, step

pytestmark = pytest.mark.usefixtures("quiet")

BY_FIELD = optimize.by_field({field: optimize.equals(field) for field in RULES}, goal="c")
GOAL = optimize.by_field({"c": optimize.equals("c")}, goal="c")
FIRST = optimize.by_field({"a": optimize.equals("a")}, goal="a")


class Selected:
    """A callback of gepa that notes which components were selected in each iteration, and for which runs."""

    def __init__(self) -> None:
        self.components: list[list[str]] = []
        self.trajectories: list[list[Any]] = []
        self.kept = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Selected:
        return self

    def on_evaluation_end(self, event: Mapping[str, Any]) -> None:
        if event["candidate_idx"] is not None:
            self.trajectories.append(event["trajectories"])

    def on_reflective_dataset_built(self, event: Mapping[str, Any]) -> None:
        self.components.append(list(event["components"]))

    def on_candidate_accepted(self, event: Mapping[str, Any]) -> None:
        self.kept += 1


def tune(
    program: Any, lm: Any = None, metric: Any = BY_FIELD, kind: Any = optimize.GEPA, **options: Any
) -> tuple[Any, Any, Selected]:
    """The tuned program, the optimizer, and what was selected."""
    selected = Selected()
    train, val = options.pop("train", examples(9)), options.pop("val", examples(3, 100))
    settings = {"max_metric_calls": 30, "num_threads": 1, "track_stats": True, "reflection_lm": SkillLM(), **options}
    with dspy.context(lm=lm or SkillLM(hard=ONE_EACH)):
        gepa = kind(metric, gepa_kwargs={"callbacks": [selected]}, **settings)
        tuned = gepa.compile(program, trainset=train, valset=val)
    return tuned, gepa, selected


# --- which components are selected


@pytest.mark.parametrize("threads", [1, 4])
def test_all_culprits_of_a_minibatch_are_selected_and_nothing_else(threads: int) -> None:
    tuned, gepa, selected = tune(chain(), num_threads=threads)

    reflected = [found for found in selected.trajectories if any(one["score"] < 1 for one in found)]
    assert len(reflected) == len(selected.components) > 0
    for trajectories, components in zip(reflected, selected.components, strict=True):
        found = [optimize.culprits(Run.of(one["prediction"]), one["example"], BY_FIELD) for one in trajectories]
        assert components == [
            name for name in ("write_a", "write_b", "write_c") if any(name in one.shares for one in found)
        ]
    assert {len(components) for components in selected.components} > {1}, "several at once, and single ones"
    assert tuned.detailed_results.val_aggregate_scores[tuned.detailed_results.best_idx] == 1
    rows = gepa.stats.nodes
    assert [(rows[name].proposed, rows[name].kept) for name in rows] == [(1, 1), (1, 1), (1, 1)]


def test_a_culprit_that_is_no_predictor_or_frozen_is_never_selected_and_is_in_the_stats() -> None:
    graph = Graph(ChainState, name="Chain").add_node(
        "write_a", lambda n: {"a": n + 1 + 100 * (n % 3 == 0)}, writes=["a"]
    )
    graph.add_node("write_b", dspy.Predict(step("a", "b")), frozen=True)
    graph.add_node("write_c", dspy.Predict(step("b", "c")))
    program = graph.add_path(START, "write_a", "write_b", "write_c", END).compile()

    _, gepa, selected = tune(program)

    assert {name for components in selected.components for name in components} == {"write_c"}
    rows = gepa.stats.nodes
    assert rows["write_a"].culprit
    assert rows["write_b"].culprit
    assert [one.tunable for one in rows.values()] == [False, False, True]
    assert gepa.stats.untunable
    assert "write_b (not tunable)" in str(gepa.stats)


@pytest.mark.slow("two optimizations are compared")
def test_if_only_the_goal_has_a_metric_it_does_what_dspy_does() -> None:
    ours, _, selected = tune(chain(), metric=GOAL)
    dspys, _, thirds = tune(chain(), metric=GOAL, kind=dspy.GEPA, component_selector="round_robin")

    assert selected.components == thirds.components
    assert selected.components[:3] == [["write_a"], ["write_b"], ["write_c"]]
    assert ours.detailed_results.val_subscores == dspys.detailed_results.val_subscores


def test_suspects_are_asked_in_turn_and_those_known_to_be_right_are_not() -> None:
    metric = optimize.by_field({"a": optimize.equals("a"), "c": optimize.equals("c")}, goal="c")
    lm = SkillLM(hard={"a": 5, "b": 2, "c": 5})  # `a` and `c` are always right

    tuned, gepa, selected = tune(chain(), lm, metric)

    assert {name for components in selected.components for name in components} <= {"write_b", "write_c"}
    assert selected.components[0] == ["write_b"]
    assert gepa.stats.nodes["write_b"].suspect
    assert "suspect" in str(gepa.stats)
    assert tuned.write_b.signature.instructions == "Give b. RULE b"


def test_without_a_culprit_it_goes_round_robin_over_what_ran() -> None:
    graph = Graph(ChainState, name="Sides")
    for side in ("left", "right"):
        graph.add_node(side, dspy.Predict(step("n", "a")))
        graph.add_edge(side, END)
    graph.add_conditional_edges(START, lambda n: "right" if n < 1000 else "left", ["left", "right"])

    lm = SkillLM(hard={"a": 5})  # always right
    _, gepa, selected = tune(graph.compile(), lm, FIRST, skip_perfect_score=False, max_metric_calls=30)

    assert selected.components
    assert all(components == ["right"] for components in selected.components)
    assert gepa.stats.judged
    assert not gepa.stats.nodes["right"].culprit


def test_the_predictors_of_a_program_inside_a_node_are_selected_together() -> None:
    inner = Graph(name="Inner").add_node("first", dspy.ChainOfThought(step("n", "a")))
    inner.add_node("second", dspy.Predict(step("a", "b")))
    graph = Graph(ChainState, name="Outer").add_node("begin", inner.add_path(START, "first", "second", END).compile())
    graph.add_node("write_c", dspy.Predict(step("b", "c")))
    program = graph.add_path(START, "begin", "write_c", END).compile()
    names = [name for name, _ in program.named_predictors()]

    lm = SkillLM(hard={"a": 5, "b": 5, "c": 0})
    tuned, gepa, selected = tune(program, lm)
    _, other, both = tune(program, SkillLM(hard={"a": 0, "b": 5, "c": 5}))

    assert names == ["begin.first.predict", "begin.second", "write_c"]
    assert selected.components == [["write_c"]]
    assert tuned.write_c.signature.instructions == "Give c. RULE c"
    assert both.components[0] == names[:2]
    rows = gepa.stats.nodes
    assert list(rows) == ["begin", "write_c"]
    assert other.stats.nodes["begin"].proposed >= 2


def test_a_graph_inside_of_a_module_has_culprits_too() -> None:
    class Around(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph = chain()
            self.unused = dspy.Predict("x -> y")

        def forward(self, n: int) -> Any:
            return self.graph(n=n)

    tuned, gepa, selected = tune(Around())

    assert {name for names in selected.components for name in names} == {f"graph.write_{field}" for field in RULES}
    assert list(gepa.stats.nodes) == ["write_a", "write_b", "write_c", "unused"]
    assert all(gepa.stats.nodes[f"write_{field}"].kept == 1 for field in RULES)
    assert tuned.detailed_results.val_aggregate_scores[-1] == 1


def test_a_module_without_a_graph_is_tuned_in_turn() -> None:
    class ByHand(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = dspy.Predict(step("n", "a"))
            self.two = dspy.Predict(step("a", "b"))

        def forward(self, n: int) -> Any:
            a = self.one(n=n).a
            return dspy.Prediction(a=a, b=self.two(a=a).b)

    metric = optimize.by_field({"a": optimize.equals("a"), "b": optimize.equals("b")}, goal="b")
    _, gepa, selected = tune(ByHand(), metric=metric)

    assert selected.components[:2] == [["one"], ["two"]]
    assert gepa.stats.judged == 0


# --- failed examples


def test_a_failed_example_does_not_stop_the_selector() -> None:
    def fetch(n: int) -> dict[str, Any]:
        if n % 2:
            raise ConnectionError("no route")
        return {}

    graph = Graph(ChainState, name="Fetching").add_node("fetch", fetch, writes=[])
    graph.add_node("write_a", dspy.Predict(step("n", "a")))
    program = graph.add_path(START, "fetch", "write_a", END).compile()

    tuned, gepa, selected = tune(program, SkillLM(), FIRST)

    assert selected.components
    assert gepa.stats.failed_runs >= 5 + 3
    assert tuned.write_a.signature.instructions == "Give a. RULE a"
    assert "failed" in str(gepa.stats)


@pytest.mark.parametrize("shown", [True, False])
def test_responses_that_do_not_parse_do_not_stop_the_selector(shown: bool) -> None:
    program = chain()
    program.write_b.signature = program.write_b.signature.with_instructions("BREAK")

    _, gepa, selected = tune(program, add_format_failure_as_feedback=shown, max_metric_calls=20)

    assert gepa.stats.failed_runs == gepa.stats.metric_calls
    assert all(components == ["write_b"] for components in selected.components) or not shown
    assert bool(selected.components) is shown


# --- the statistics


@pytest.mark.slow("two optimizations are compared, one of them in four threads")
def test_stats_are_those_of_the_last_compile_and_do_not_depend_on_threads() -> None:
    program, lm = chain(), SkillLM(hard=ONE_EACH)
    _, gepa, selected = tune(program, lm)
    first = gepa.stats
    figures = first.to_dict()
    with dspy.context(lm=lm):
        gepa.compile(program, trainset=examples(9), valset=examples(3, 100))
    _, threaded, _ = tune(program, SkillLM(hard=ONE_EACH), num_threads=4)

    assert gepa.stats is not first
    assert first.to_dict() == gepa.stats.to_dict() == threaded.stats.to_dict() == figures
    assert first.candidates == selected.kept / 2 + 1


def test_a_router_with_a_predictor_has_a_row_of_its_own_for_all_that_is_counted() -> None:
    graph = Graph(ChainState, name="Routed").add_node("begin", lambda n: {}, writes=[])
    route = dspy.Predict(dspy.Signature("n: int -> a: Literal['1', '2']", "Give a."))
    graph.add_node("write_b", dspy.Predict(step("n", "b"))).add_edge(START, "begin").add_edge("write_b", END)
    graph.add_conditional_edges("begin", route, {"1": "write_b", "2": END}, writes={"a": "c"}, name="choose")
    lm = SkillLM({"a": lambda n: 1 + n % 2, "b": RULES["b"]}, hard={"a": 5, "b": 5})
    metric = optimize.by_field({"c": lambda example, c: False}, goal="c")

    _, gepa, selected = tune(graph.compile(), lm, metric)

    rows = gepa.stats.nodes
    assert list(rows) == ["begin", "write_b", "choose"]
    assert {name for names in selected.components for name in names} == {"choose"}
    assert not rows["begin"].culprit


def test_an_edit_that_a_merge_brings_together_is_kept_once() -> None:
    """Each candidate is the best one for some examples, so two of them are merged."""
    options = {"train": rivals(), "val": rivals(), "max_metric_calls": 80, "seed": 5}
    tuned, gepa, _ = tune(chain(), SkillLM(), rivalling, component_selector="round_robin", **options)

    assert tuned.detailed_results.parents == [[None], [0], [0], [1, 2]]
    assert [row.kept for row in gepa.stats.nodes.values()] == [1, 1, 0]
    assert gepa.stats.candidates == 4


def test_the_table_and_its_forms() -> None:
    _, gepa, _ = tune(chain())
    stats = gepa.stats

    assert str(stats).splitlines() == [
        "node     culprit  suspect  proposed  kept",
        f"write_a        {stats.nodes['write_a'].culprit}        0         1     1",
        f"write_b        {stats.nodes['write_b'].culprit}        0         1     1",
        f"write_c        {stats.nodes['write_c'].culprit}        0         1     1",
        "metric calls: 30; 0 repeated proposals asked for anew",
        "3 candidates, the given program included",
    ]
    assert stats.to_dict()["nodes"][0]["node"] == "write_a"
    assert stats.to_dict()["metric_calls"] == 30
    assert "<td" in stats._repr_html_()
    assert "<b>" not in GEPAStats(["<b>"], [])._repr_html_()


# --- mistakes of the user


def test_a_metric_that_does_not_fit_is_an_error_before_anything_is_called() -> None:
    lm = SkillLM()

    with pytest.raises(ValueError, match="has no field 'd'"):
        tune(chain(), lm, optimize.by_field({"d": optimize.equals("c")}, goal="d"))
    with pytest.raises(ValueError, match="colour"):
        tune(chain(), lm, optimize.by_field({"c": optimize.equals("colour")}, goal="c"))

    assert not lm.asked
