"""`optimize.GEPA` without its own selector is `dspy.GEPA`: the same candidates, scores and calls."""

from __future__ import annotations

import copy
import functools
import threading
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import pytest

from dspyer import optimize
from tests.optimize.skills import (
    Asked,
    SkillLM,
    candidates,
    chain,
    examples,
    rivalling,
    rivals,
    step,
    stepwise,
)

pytestmark = pytest.mark.usefixtures("quiet")


class Tuned(NamedTuple):
    candidates: list[dict[str, str]]
    scores: list[Any]
    budget: list[Any]
    tasks: list[Asked]
    reflections: list[Asked]


def tune(optimizer: type[dspy.GEPA], lm: SkillLM | None = None, program: Any = None, **options: Any) -> Tuned:
    lm, strong = lm or SkillLM(), SkillLM()
    settings = {"max_metric_calls": 26, "num_threads": 1, "track_stats": True, "reflection_lm": strong, **options}
    metric, train, val = settings.pop("on", (stepwise, examples(6), examples(5, 100)))
    with dspy.context(lm=lm):
        gepa = optimizer(metric, **settings)
        tuned = gepa.compile(program or chain(), trainset=train, valset=val)
    found = tuned.detailed_results
    scores = [found.parents, found.val_subscores, found.val_aggregate_scores, found.best_idx]
    return Tuned(
        candidates(tuned),
        scores,
        [found.discovery_eval_counts, found.total_metric_calls, found.num_full_val_evals],
        lm.tasks,
        strong.reflections,
    )


@functools.cache
def of_dspy() -> Tuned:
    """What DSPy makes of the chain."""
    return tune(dspy.GEPA, component_selector="round_robin")


def by_hand() -> Any:
    class ByHand(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = dspy.Predict(step("n", "a"))
            self.b = dspy.Predict(step("a", "b"))
            self.c = dspy.Predict(step("b", "c"))

        def forward(self, n: int) -> dspy.Prediction:
            a = self.a(n=n).a
            b = self.b(a=a).b
            return dspy.Prediction(a=a, b=b, c=self.c(b=b).c)

    return ByHand()


class Last:
    """A selector as a user passes it."""

    def __call__(self, state: Any, trajectories: Any, scores: Any, index: Any, candidate: Any) -> list[str]:
        assert len(trajectories) == len(scores) == 3
        assert candidate == state.program_candidates[index]
        return [state.list_of_named_predictors[-1]]


RIVALS = (rivalling, rivals(), rivals())
CASES: dict[str, dict[str, Any]] = {
    "round_robin": {"component_selector": "round_robin"},
    "all": {"component_selector": "all"},
    "a selector of the user": {"component_selector": Last()},
    "merges": {"component_selector": "round_robin", "max_metric_calls": 80, "seed": 5, "on": RIVALS},
    "a plain metric has no culprits": {},
    "by hand": {"component_selector": "round_robin", "program": by_hand()},
    "cache of gepa": {"component_selector": "round_robin", "gepa_kwargs": {"cache_evaluation": True}},
    "full evaluations": {"component_selector": "round_robin", "max_metric_calls": None, "max_full_evals": 2},
}


DEAR = pytest.mark.slow("two optimizations until candidates are merged")


@pytest.mark.parametrize("case", [pytest.param(case, marks=[DEAR] * (case == "merges")) for case in CASES])
def test_candidates_scores_calls_and_prompts_are_those_of_dspy(case: str) -> None:
    options = copy.deepcopy(CASES[case])

    ours = tune(optimize.GEPA, **options)

    same = options in ({}, {"component_selector": "round_robin"})
    assert ours == (of_dspy() if same else tune(dspy.GEPA, **{"component_selector": "round_robin", **options}))
    assert len(ours.candidates) > 1
    assert any(len(parents) > 1 for parents in ours.scores[0]) == (case == "merges")


def test_with_several_threads_the_same_calls_are_made() -> None:
    ours = tune(optimize.GEPA, num_threads=3, component_selector="round_robin")
    plain = of_dspy()

    assert (ours.candidates, ours.scores, ours.budget) == (plain.candidates, plain.scores, plain.budget)
    assert sorted(ours.tasks) == sorted(plain.tasks)


def test_an_optimization_of_dspy_in_another_thread_is_left_alone() -> None:
    """Only this call of `compile` sees another `gepa.optimize`."""
    found: list[Tuned] = []

    class Meeting:
        def __call__(self, state: Any, trajectories: Any, scores: Any, index: int, candidate: Any) -> list[str]:
            if not met:
                met.append(threading.get_ident())
                other.start()
                other.join()
            return [state.list_of_named_predictors[0]]

    met: list[int] = []
    other = threading.Thread(target=lambda: found.append(tune(dspy.GEPA)))
    tune(optimize.GEPA, component_selector=Meeting())

    assert found == [of_dspy()]


def test_the_log_dir_of_dspy_is_written_and_read(tmp_path: Path) -> None:
    first = tune(optimize.GEPA, log_dir=str(tmp_path), max_metric_calls=16)
    again = tune(optimize.GEPA, log_dir=str(tmp_path), max_metric_calls=26)

    assert again.candidates[: len(first.candidates)] == first.candidates
    assert again.budget[1] >= 16


def test_the_optimizer_can_be_copied_and_used_again() -> None:
    strong = SkillLM()
    gepa = optimize.GEPA(stepwise, reflection_lm=strong, max_metric_calls=16, num_threads=1)
    twin = copy.deepcopy(gepa)
    with dspy.context(lm=SkillLM()):
        first = gepa.compile(chain(), trainset=examples(6), valset=examples(5, 100))
        figures = gepa.stats.to_dict()
        other = twin.compile(chain(), trainset=examples(6), valset=examples(5, 100))
        gepa.compile(chain(), trainset=examples(6), valset=examples(5, 100))
    copied = copy.deepcopy(gepa)

    assert first.dump_state() == other.dump_state()
    assert twin.stats.to_dict() == gepa.stats.to_dict() == copied.stats.to_dict() == figures


def test_a_selector_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="component_selector: 'culprit' is unknown; it is one of 'culprits'"):
        optimize.GEPA(stepwise, reflection_lm=SkillLM(), max_metric_calls=1, component_selector="culprit")


def test_there_are_no_stats_before_compile() -> None:
    with pytest.raises(LookupError, match="nothing was optimized yet"):
        _ = optimize.GEPA(stepwise, reflection_lm=SkillLM(), max_metric_calls=1).stats


def test_a_proposer_of_the_user_is_asked_for_all_components_at_once() -> None:
    asked: list[list[str]] = []

    def propose(candidate: Any, reflective_dataset: Any, components_to_update: list[str]) -> dict[str, str]:
        asked.append(components_to_update)
        assert set(reflective_dataset) == set(components_to_update)
        return {name: f"{candidate[name]} RULE {name[-1]}" for name in components_to_update}

    found = tune(optimize.GEPA, instruction_proposer=propose, component_selector="all")

    assert set(map(tuple, asked)) == {("write_a", "write_b", "write_c")}
    assert found.scores[2][-1] == 1
