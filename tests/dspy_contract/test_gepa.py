"""What `optimize.GEPA` takes from `dspy.GEPA` and `gepa`, and would silently lack if they changed.

Each test is a `dspy.GEPA` with a component selector and a callback, as `optimize.GEPA` makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dspy
import pytest
from gepa.strategies.component_selector import RoundRobinReflectionComponentSelector

from tests.optimize.skills import SkillLM, chain, examples, rivalling, rivals, stepwise

NAMES = ["write_a", "write_b", "write_c"]

Select = Callable[..., list[str]]


class Noted:
    """A callback of gepa that notes each event by its name."""

    def __init__(self, *kinds: str) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        for kind in kinds:
            setattr(self, kind, lambda event, kind=kind: self.events.append((kind, event)))

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [event for name, event in self.events if name == kind]


def tune(select: Select, noted: Noted, **options: Any) -> Any:
    settings = {"max_metric_calls": 30, "num_threads": 1, "track_stats": True, "reflection_lm": SkillLM(), **options}
    metric, train = settings.pop("metric", stepwise), settings.pop("train", examples(3))
    with dspy.context(lm=SkillLM()):
        gepa = dspy.GEPA(metric, component_selector=select, gepa_kwargs={"callbacks": [noted]}, **settings)
        return gepa.compile(chain(), trainset=train, valset=settings.get("val", train))


def test_the_records_are_made_of_the_very_list_that_a_selector_got(caplog: pytest.LogCaptureFixture) -> None:
    """In the order of the list, one for each trajectory whose trace has a step of the predictor."""

    def select(state: Any, trajectories: list[Any], scores: list[float], index: int, candidate: Any) -> list[str]:
        first = trajectories[0]
        steps = [next(one for one in each["trace"] if "b" in one[2]) for each in trajectories]
        trajectories[:] = [{**first, "trace": [step]} for step in reversed(steps)]
        trajectories.insert(1, {**first, "trace": [(steps[0][0], {"a": 7}, dspy.Prediction(b=70))]})
        return ["write_b", "write_a"]

    noted = Noted("on_reflective_dataset_built")
    tune(select, noted)

    for event in noted.of("on_reflective_dataset_built"):
        assert event["dataset"].keys() == {"write_b"}, "without a step there is no record"
        inputs = [record["Inputs"]["a"] for record in event["dataset"]["write_b"]]
        assert inputs[1] == 7
        assert len(inputs) == 4
        assert set(event["dataset"]["write_b"][1]) == {"Inputs", "Generated Outputs", "Feedback"}
    assert noted.of("on_reflective_dataset_built")
    caplog.clear()  # DSPy has logged that it has nothing to reflect on for `write_a`


def test_the_metric_is_asked_for_the_feedback_of_a_record_with_the_very_outputs_of_its_step() -> None:
    """So that `optimize.GEPA` knows which words belong to them; `pred_name` is the predictor that is edited."""
    outputs: list[Any] = []
    asked: list[tuple[str, Any, Any]] = []

    def select(state: Any, trajectories: list[Any], scores: list[float], index: int, candidate: Any) -> list[str]:
        made = [dspy.Prediction(a=number) for number in range(len(trajectories))]
        for one, prediction in zip(trajectories, made, strict=True):
            step = one["trace"][0]
            one["trace"] = [(step[0], step[1], prediction)]
        outputs.extend(made)
        return ["write_a"]

    def metric(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        if pred_name is not None:
            asked.append((pred_name, pred_trace[0][2], example))
        return stepwise(example, prediction, trace, pred_name, pred_trace)

    tune(select, Noted(), metric=metric)

    assert {name for name, _, _ in asked} == {"write_a"}
    assert [id(one) for _, one, _ in asked] == [id(one) for one in outputs]


def test_a_minibatch_is_traced_by_a_list_of_each_call_and_its_trajectories_have_the_very_outputs() -> None:
    """The list is `dspy.settings.trace` while the program is called; other evaluations leave the list around them."""
    traces: dict[int, Any] = {}
    outer: list[Any] = []
    found: list[bool] = []

    class Watched(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add = dspy.Predict("n: int -> a: int")

        def forward(self, n: int) -> Any:
            made = self.add(n=n)
            trace = dspy.settings.get("trace")
            if trace is not outer:
                traces[id(trace[-1][2])] = dspy.settings.get("caller_modules")[0]
            return made

    def select(state: Any, trajectories: list[Any], scores: list[float], index: int, candidate: Any) -> list[str]:
        for one in trajectories:
            assert {"trace", "example", "prediction", "score"} <= one.keys()
            caller = traces[id(one["trace"][0][2])]
            found.append([name for name, _ in caller.named_predictors()] == ["add"])
        return ["add"]

    lm = SkillLM()
    with dspy.context(lm=lm, trace=outer):
        gepa = dspy.GEPA(
            metric_of_a, reflection_lm=SkillLM(), max_metric_calls=20, num_threads=1, component_selector=select
        )
        gepa.compile(Watched(), trainset=examples(3), valset=examples(3, 50))

    assert found
    assert all(found)
    assert len(traces) < len(lm.tasks), "evaluations for scores alone are not traced"


def metric_of_a(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    return dspy.Prediction(score=float(prediction.a == example.a), feedback="expected")


def test_metric_calls_that_a_selector_counts_are_of_the_budget() -> None:
    def counting(count: int) -> tuple[int, int]:
        asked: list[int] = []

        def select(state: Any, trajectories: Any, scores: Any, index: int, candidate: Any) -> list[str]:
            state.increment_evals(count)
            asked.append(count)
            return ["write_a"]

        noted = Noted("on_optimization_end")
        tune(select, noted, max_metric_calls=60)
        return len(asked), noted.of("on_optimization_end")[0]["final_state"].total_num_evals

    few, plain = counting(0)
    fewer, counted = counting(20)
    assert fewer < few, "the budget was spent by what was counted"
    assert counted >= 60 <= plain


def test_round_robin_goes_on_with_the_turns_in_the_state() -> None:
    """`optimize.GEPA` asks it again if it does not want the component."""
    chosen: list[str] = []

    def select(state: Any, trajectories: Any, scores: Any, index: int, candidate: Any) -> list[str]:
        assert list(candidate) == NAMES
        turn = RoundRobinReflectionComponentSelector()
        chosen.extend([turn(state, [], [], index, candidate)[0] for _ in range(4)])
        return [chosen[-1]]

    tune(select, Noted(), metric=never)
    assert chosen[:8] == [*NAMES, *NAMES, *NAMES][:8]


def never(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    return dspy.Prediction(score=0.0, feedback="no")


def test_the_callbacks_say_what_is_evaluated_begun_and_accepted() -> None:
    begun: list[int] = []
    noted = Noted("on_iteration_start", "on_evaluation_end", "on_candidate_accepted")

    def select(state: Any, trajectories: list[Any], scores: Any, index: int, candidate: Any) -> list[str]:
        begun.append(noted.of("on_iteration_start")[-1]["iteration"])
        assert [one["prediction"] for one in trajectories] == noted.of("on_evaluation_end")[-1]["outputs"]
        return list(candidate)

    tuned = tune(select, noted, metric=rivalling, train=rivals(), max_metric_calls=120, seed=5)

    assert begun == sorted(set(begun)), "each proposal has a number of its own"
    accepted = noted.of("on_candidate_accepted")
    state = noted.of("on_iteration_start")[-1]["state"]
    assert [event["new_candidate_idx"] for event in accepted] == [*range(1, len(state.program_candidates))]
    assert [list(event["parent_ids"]) for event in accepted] == tuned.detailed_results.parents[1:]
    assert all(list(candidate) == NAMES for candidate in state.program_candidates)


def test_dspy_gepa_uses_what_it_keeps_of_its_arguments() -> None:
    """A copy with another metric, selector and callbacks optimizes with these."""
    lm = SkillLM()
    gepa = dspy.GEPA(never, reflection_lm=lm, max_metric_calls=7, num_threads=3, gepa_kwargs={"cache_evaluation": True})

    assert gepa.metric_fn is never
    assert (gepa.reflection_lm, gepa.num_threads, gepa.component_selector) == (lm, 3, "round_robin")
    assert gepa.gepa_kwargs == {"cache_evaluation": True}
