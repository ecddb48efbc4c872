"""`optimize.GEPA`: a component selector that makes gold runs. Rules 6 to 8, and what `gepa.stats` says of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, Send, optimize, reducers
from dspyer.errors import StoreError
from tests.optimize.skills import ONE_EACH, RULES, ChainState, SkillLM, chain, examples, rivalling, rivals, step

pytestmark = pytest.mark.usefixtures("quiet")

BY_FIELD = optimize.by_field({field: optimize.equals(field) for field in RULES}, goal="c")
GOAL = optimize.by_field({"c": optimize.equals("c")}, goal="c")
NAMES = ["write_a", "write_b", "write_c"]


class Seen:
    """A callback of gepa that notes the records of each proposal, and what was spent."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, list[Mapping[str, Any]]]] = []
        self.spent = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Seen:
        return self

    @property
    def components(self) -> list[list[str]]:
        return [list(records) for records in self.records]

    def texts(self, name: str) -> list[str]:
        """The feedback of each record of a predictor."""
        return [record["Feedback"] for records in self.records for record in records.get(name, ())]

    def on_reflective_dataset_built(self, event: Mapping[str, Any]) -> None:
        self.records.append(event["dataset"])

    def on_optimization_end(self, event: Mapping[str, Any]) -> None:
        self.spent = event["final_state"].total_num_evals


def tune(program: Any, lm: Any = None, metric: Any = BY_FIELD, **options: Any) -> tuple[Any, Any, Seen]:
    """The tuned program, the figures, and what the reflection LM was shown."""
    seen = Seen()
    train, val = options.pop("train", examples(9)), options.pop("val", examples(3, 100))
    settings = {"max_metric_calls": 40, "num_threads": 1, "track_stats": True, "reflection_lm": SkillLM(), **options}
    with dspy.context(lm=lm or SkillLM(hard=ONE_EACH)):
        gepa = optimize.GEPA(metric, gepa_kwargs={"callbacks": [seen]}, **settings)
        tuned = gepa.compile(program, trainset=train, valset=val)
    return tuned, gepa.stats, seen


def best(program: Any) -> float:
    found = program.detailed_results
    return float(found.val_aggregate_scores[found.best_idx])


# --- what is selected, and what the reflection LM is shown


@pytest.mark.parametrize("threads", [1, 4])
def test_all_that_is_wrong_by_itself_is_edited_at_once_on_right_inputs(threads: int) -> None:
    tuned, stats, seen = tune(chain(), SkillLM(), num_threads=threads)

    assert seen.components[0] == NAMES
    for records in seen.records:
        for record in (one for found in records.values() for one in found):
            ((name, given),), ((field, wrote),) = record["Inputs"].items(), record["Generated Outputs"].items()
            right = RULES[field](given)
            assert name == "n" or given < 100, "the inputs are right in a gold run"
            expected = f"`{field}` is {wrote}, expected {right}."
            assert record["Feedback"] == (f"`{field}` is right." if wrote == right else expected)
    assert best(tuned) == 1
    assert [stats.predictors[name].kept for name in NAMES] == [1, 1, 1]
    assert stats.gold_runs > 0


def test_gold_runs_count_as_metric_calls() -> None:
    _, stats, seen = tune(chain(), SkillLM(), max_metric_calls=12)
    assert (stats.gold_runs, seen.spent) == (3, 3 + 3 + 3 + 3 + 3), "val, minibatch, gold runs, minibatch, val"


def test_a_run_in_which_nothing_wrong_was_read_has_no_gold_run() -> None:
    tuned, stats, seen = tune(chain(), SkillLM(hard={"a": 5, "b": 5, "c": 0}))
    assert {name for names in seen.components for name in names} == {"write_c"}
    assert (stats.gold_runs, best(tuned)) == (0, 1)


def test_what_no_text_can_mend_is_in_the_stats_and_never_selected() -> None:
    graph = Graph(ChainState, name="Chain").add_node("write_a", lambda n: {"a": n + 101}, writes=["a"])
    graph.add_node("write_b", dspy.Predict(step("a", "b")), frozen=True)
    graph.add_node("write_c", dspy.Predict(step("b", "c")))
    _, stats, seen = tune(graph.add_path(START, "write_a", "write_b", "write_c", END).compile(), SkillLM())

    assert {name for names in seen.components for name in names} == {"write_c"}
    assert [stats.predictors[name].tunable for name in ("write_c", "write_a", "write_b")] == [True, False, False]
    assert "write_a (not tunable)" in str(stats)


def test_suspects_are_edited_in_turn_and_told_so() -> None:
    metric = optimize.by_field({"a": optimize.equals("a"), "c": optimize.equals("c")}, goal="c")
    lm = SkillLM(hard={"a": 5, "b": 2, "c": 5})  # `a` and `c` are always right
    tuned, stats, seen = tune(chain(), lm, metric)

    assert {name for names in seen.components for name in names} <= {"write_b", "write_c"}
    assert any(text.endswith("This step may be the cause.") for text in seen.texts("write_b"))
    assert tuned.write_b.signature.instructions == "Give b. RULE b"
    assert stats.predictors["write_b"].judged == 0


class Sheet(BaseModel):
    ns: list[int] = []
    parts: list[int] = []
    many: list[int] = []
    a: Annotated[list[int], reducers.append] = []


def mapped() -> tuple[Any, Any, str]:
    graph = Graph(Sheet, name="Mapped", inputs=["ns"])
    graph.add_node("split", lambda ns: {"parts": [*ns]}, writes=["parts"])
    graph.add_map("each", dspy.Predict(step("n", "a")), over="parts", item="n", into="many")
    metric = optimize.by_field({"many": optimize.equals("many")}, goal="many")
    return graph.add_path(START, "split", "each", END).compile(), metric, "many"


def sent() -> tuple[Any, Any, str]:
    graph = Graph(Sheet, name="Sent", inputs=["ns"]).add_node("each", dspy.Predict(step("n", "a")))
    graph.add_conditional_edges(START, lambda ns: [Send("each", {"n": n}) for n in ns], ["each"])
    metric = optimize.by_field({"a": optimize.equals("a")}, goal="a")
    return graph.add_edge("each", END).compile(), metric, "a"


@pytest.mark.parametrize("make", [mapped, sent])
def test_each_wrong_item_is_a_record_and_12_at_most_are_shown(make: Any) -> None:
    program, metric, field = make()
    gold = list(range(1, 7))
    train = [dspy.Example(ns=list(range(6)), **{field: gold}).with_inputs("ns")] * 3
    _, _, seen = tune(program, SkillLM(hard={"a": 0}), metric, train=train, val=train, max_metric_calls=4)
    _, stats, all_wrong = tune(program, SkillLM(), metric, train=train, val=train, max_metric_calls=4)

    assert len(seen.records[0]["each"]) == 2 * 3, "0 and 3 of each example"
    assert len(all_wrong.records[0]["each"]) == 12
    assert stats.predictors["each"].judged >= 18, "what a function makes of right inputs is right"


def test_a_module_of_two_graphs_is_tuned_by_the_paths_of_its_predictors() -> None:
    class Both(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.begin = (
                Graph(ChainState).add_node("a", dspy.Predict(step("n", "a"))).add_path(START, "a", END).compile()
            )
            self.finish = (
                Graph(name="Finish").add_node("b", dspy.Predict(step("a", "b"))).add_path(START, "b", END).compile()
            )

        def forward(self, n: int) -> Any:
            return self.finish(a=self.begin(n=n).a)

    metric = optimize.by_field({"a": optimize.equals("a"), "finish.b": optimize.equals("b")}, goal="finish.b")
    tuned, stats, seen = tune(Both(), SkillLM(), metric)
    assert seen.components[0] == list(stats.predictors) == ["begin.a", "finish.b"]
    assert best(tuned) == 1


def test_without_anything_wrong_it_goes_round_robin_over_what_ran() -> None:
    graph = Graph(ChainState, name="Sides")
    for side in ("left", "right"):
        graph.add_node(side, dspy.Predict(step("n", "a"))).add_edge(side, END)
    graph.add_conditional_edges(START, lambda n: "right" if n < 1000 else "left", ["left", "right"])
    metric = optimize.by_field({"a": optimize.equals("a")}, goal="a")
    _, _, seen = tune(graph.compile(), SkillLM(hard={"a": 5}), metric, skip_perfect_score=False)
    assert seen.components
    assert all(names == ["right"] for names in seen.components)


# --- proposals


def test_each_proposal_has_a_rollout_id_and_a_second_start_the_same() -> None:
    first, second = SkillLM(), SkillLM()
    broken = optimize.by_field({"c": lambda example, c: False}, goal="c")  # nothing is ever accepted
    for lm in (first, second):
        tune(chain(), SkillLM(), broken, reflection_lm=lm)
    rollouts = [one.rollout for one in first.reflections]
    assert rollouts == sorted(map(int, filter(None, rollouts))) == [one.rollout for one in second.reflections]
    assert len(set(rollouts)) == len(rollouts) > 3


def test_a_culprit_edited_in_vain_lets_others_notice() -> None:
    """Rule 7: every second proposal after the fifth shows who has read a wrong value."""
    lm = SkillLM(hard={"b": 5, "c": 5})  # `a` is wrong by itself alone, and what follows from it is wrong too
    metric = optimize.by_field({field: optimize.equals(field) for field in RULES}, goal="c")

    def nothing(candidate: Any, reflective_dataset: Any, components_to_update: list[str]) -> dict[str, str]:
        return {name: candidate[name] + " " for name in components_to_update}

    _, _, seen = tune(chain(), lm, metric, instruction_proposer=nothing, reflection_lm=None, max_metric_calls=70)
    assert seen.components[:5] == [["write_a"]] * 5
    assert seen.components[5] == NAMES
    assert seen.components[6] == ["write_a"]
    told = seen.texts("write_c")[0]
    assert told.endswith("It had read `b`, which was wrong: mend this step only if it should have noticed.")


def test_gold_that_harms_is_not_used_any_more(caplog: pytest.LogCaptureFixture) -> None:
    """Rule 8: `c` is right after `b` as it is, and wrong after the gold of `b`."""
    train = [dspy.Example(n=n, a=n + 1, b=-1, c=2 * (n + 1) + 3).with_inputs("n") for n in range(9)]
    tuned, stats, _ = tune(chain(), SkillLM(hard={"a": 0, "b": 5, "c": 5}), train=train, val=train, max_metric_calls=80)
    (text,) = stats.warnings
    assert text.startswith(
        "the gold of 'b' is not used any more: 2 readers of it were right in the run and wrong after gold"
    )
    assert text in caplog.text
    assert text in str(stats)
    assert stats.predictors["write_c"].judged == 1, "what gold made wrong is not held against it"
    assert best(tuned) == 1, "what comes before and after it is tuned"


# --- what goes wrong


def test_a_question_and_a_node_that_raises_are_counted() -> None:
    def fetch(n: int) -> dict[str, Any]:
        if n % 2:
            raise ConnectionError("no route")
        return {}

    graph = Graph(ChainState, name="Fetching").add_node("fetch", fetch, writes=[])
    graph.add_node("write_a", dspy.Predict(step("n", "a"))).add_path(START, "fetch", "write_a", END)
    asking = Graph(ChainState, name="Asking").add_node("write_a", dspy.Predict(step("n", "a")))
    asking.add_interrupt("ask", question="How many?", answer=int, into="b").add_path(START, "write_a", "ask", END)
    metric = optimize.by_field({"a": optimize.equals("a")}, goal="a")

    tuned, stats, _ = tune(graph.compile(), SkillLM(), metric)
    assert stats.failed > 0
    assert tuned.write_a.signature.instructions == "Give a. RULE a"
    _, stats, _ = tune(asking.compile(), SkillLM(), metric)
    assert stats.failed > 0
    tuned, stats, _ = tune(asking.compile(answers={"ask": 3}), SkillLM(), metric)
    assert (stats.failed, best(tuned)) == (0, 1)


def test_a_field_metric_that_raises_ends_nothing_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    def judged(example: Any, b: int) -> bool:
        if example.n == 3:
            raise ZeroDivisionError("no scale")
        return bool(b == example.b)

    metric = optimize.by_field({"a": optimize.equals("a"), "b": judged, "c": optimize.equals("c")}, goal="c")
    _, stats, seen = tune(chain(), SkillLM(), metric, max_metric_calls=80)
    assert stats.failed
    assert "ZeroDivisionError: no scale" in str(stats)
    assert "in the metric of 'b'" in caplog.text
    assert seen.records


def test_what_always_propagates_passes_through() -> None:
    error = StoreError("full")

    def judged(example: Any, b: int) -> bool:
        raise error

    metric = optimize.by_field({"b": judged, "c": optimize.equals("c")}, goal="c")
    with pytest.raises(StoreError) as raised:
        tune(chain(), SkillLM(), metric)
    assert raised.value is error


def test_a_metric_or_an_example_that_does_not_fit_is_an_error_before_anything_is_called() -> None:
    lm = SkillLM()
    with pytest.raises(ValueError, match="nothing writes 'd'"):
        tune(chain(), lm, optimize.by_field({"d": optimize.equals("c")}, goal="d"))
    with pytest.raises(ValueError, match="colour"):
        tune(chain(), lm, optimize.by_field({"c": optimize.equals("colour")}, goal="c"))
    with pytest.raises(ValueError, match="nothing to edit"):
        tune(Graph().add_node("c", lambda n: {"c": n}, writes=["c"]).add_path(START, "c", END).compile(), lm, GOAL)
    assert not lm.asked


def test_it_goes_on_from_its_log(tmp_path: Path) -> None:
    whole, _, _ = tune(chain(), SkillLM(), max_metric_calls=40)
    tune(chain(), SkillLM(), max_metric_calls=20, log_dir=str(tmp_path))
    on, _, _ = tune(chain(), SkillLM(), max_metric_calls=40, log_dir=str(tmp_path))
    assert [dict(one.named_predictors()).keys() for one in on.detailed_results.candidates]
    assert best(on) == best(whole) == 1


def test_an_edit_that_a_merge_brings_together_is_kept_once() -> None:
    """Each candidate is the best one for some examples, so two of them are merged."""
    metric = optimize.by_field({"c": rivals_of}, goal="c")
    tuned, stats, _ = tune(chain(), SkillLM(), metric, train=rivals(), val=rivals(), max_metric_calls=120, seed=8)
    kept = sum(row.kept for row in stats.predictors.values())
    parents = [[one for one in found if one is not None] for found in tuned.detailed_results.parents]
    assert any(len(found) == 2 for found in parents)
    assert kept <= sum(len(found) == 1 for found in parents) * len(NAMES)


def rivals_of(example: Any, c: int, state: Any) -> float:
    return float(rivalling(example, dspy.Prediction(a=state["a"], b=state["b"])).score)


def test_the_forms_of_the_table() -> None:
    _, stats, _ = tune(chain(), SkillLM())
    assert str(stats).splitlines()[0] == "predictor  right given right inputs  selected  kept"
    assert stats.to_dict()["predictors"][0]["predictor"] == "write_a"
    assert stats._repr_html_().startswith("<pre>predictor")
    with pytest.raises(LookupError, match="nothing was optimized yet"):
        _ = optimize.GEPA(BY_FIELD, reflection_lm=SkillLM(), max_metric_calls=1).stats
    with pytest.raises(ValueError, match="component_selector: 'culprit' is unknown"):
        optimize.GEPA(BY_FIELD, component_selector="culprit", reflection_lm=SkillLM(), max_metric_calls=1)
