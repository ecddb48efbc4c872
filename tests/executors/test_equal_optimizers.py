"""Optimizers make of a program with an executor what they make of the program itself, with the same LM calls."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Executor
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, Run, optimize
from tests.dspy_optimizers.programs import PAIRS, Pair, exact
from tests.dspy_optimizers.table import ROWS, Row
from tests.executors.comparing import plain
from tests.executors.pools import BytesExecutor
from tests.executors.shared_lms import SharedNotingLM, SharedSkillLM
from tests.optimize.conftest import quiet  # noqa: F401 - a fixture
from tests.optimize.skills import ONE_EACH, RULES, chain, examples, step, stepwise

pytestmark = pytest.mark.usefixtures("quiet")

BY_FIELD = optimize.by_field({field: optimize.equals(field) for field in RULES}, goal="c")
CHAIN = PAIRS[0]
TUNING = [row for row in ROWS if row.name != "GEPA_one_by_one"]  # as "GEPA", for longer


def tuned_by(row: Row, pair: Pair, pool: Executor | None) -> Any:
    """State, prompts, score and answers after an optimizer of DSPy."""
    lm = SharedNotingLM()
    program = pair.graph() if pool is None else pair.graph().with_executor(pool)
    with dspy.context(lm=lm):
        if row.pins_lm:
            program.set_lm(lm)
        found = row.tune(program, pair.trainset, lm)
        prompts = Counter(lm.sent)
        result = dspy.Evaluate(devset=pair.trainset[5:], num_threads=1, display_progress=False)(found, metric=exact)
    state = {name: predictor.dump_state() for name, predictor in found.named_predictors()}
    scores = [(dict(prediction), score) for _, prediction, score in result.results]
    return state, prompts, result.score, scores


@pytest.mark.parametrize("row", TUNING, ids=[row.name for row in TUNING])
def test_an_optimizer_of_dspy_gives_the_same(row: Row, pool: BytesExecutor) -> None:
    local, far = tuned_by(row, CHAIN, None), tuned_by(row, CHAIN, pool)
    assert far == local


GEPAS: dict[str, Any] = {
    "dspy.GEPA": (dspy.GEPA, stepwise, {"component_selector": "round_robin", "num_threads": 1}),
    "dspy.GEPA by field": (dspy.GEPA, BY_FIELD, {"component_selector": "all", "num_threads": 4}),
    "optimize.GEPA": (optimize.GEPA, BY_FIELD, {"num_threads": 4}),
}


@pytest.mark.parametrize(("kind", "metric", "options"), GEPAS.values(), ids=GEPAS)
def test_gepa_gives_the_same(kind: Any, metric: Any, options: Any, pool: BytesExecutor) -> None:
    """Candidates, scores, the budget, the calls of both LMs and the statistics: culprits are found as locally."""

    def tune(program: Any) -> Any:
        lm, strong = SharedSkillLM(hard=ONE_EACH), SharedSkillLM()
        settings = {"max_metric_calls": 20, "track_stats": True, "reflection_lm": strong}
        with dspy.context(lm=lm):
            gepa = kind(metric, **settings, **options)
            tuned = gepa.compile(program, trainset=examples(6), valset=examples(4, 100))
        found = tuned.detailed_results
        state = {name: predictor.dump_state() for name, predictor in tuned.named_predictors()}
        scores = found.parents, found.val_subscores, found.val_aggregate_scores, found.best_idx
        budget = found.discovery_eval_counts, found.total_metric_calls, found.num_full_val_evals
        stats = str(getattr(gepa, "stats", ""))
        return state, scores, budget, Counter(lm.tasks), strong.reflections, stats

    assert tune(chain().with_executor(pool)) == tune(chain())


def test_culprits_and_feedback_of_a_metric_by_field_are_the_same(pool: BytesExecutor) -> None:
    program, (_example, *_) = chain(), examples(3)
    found = []
    for one in (program, program.with_executor(pool)):
        trace: list[Any] = []
        with dspy.context(lm=SharedSkillLM(hard=ONE_EACH), trace=trace):
            prediction = one(n=2)
            judged = optimize.culprits(one, examples(3)[2], BY_FIELD)
        feedback = [BY_FIELD(examples(3)[2], prediction, trace, "a name", [step]).feedback for step in trace]
        found.append((judged.to_dict(), feedback, len(trace)))
    assert found[0] == found[1]
    assert found[0][-1] == 3


@pytest.mark.parametrize("options", [{}, {"max_labeled_demos": 0}, {"rollouts": 2}], ids=str)
def test_few_shot_gives_the_same(options: dict[str, Any], pool: BytesExecutor) -> None:
    def tune(program: Any) -> Any:
        lm = SharedSkillLM(hard=ONE_EACH)
        with dspy.context(lm=lm):
            tuned = optimize.FewShot(BY_FIELD, **options).compile(program, trainset=examples(8))
        return {name: predictor.dump_state() for name, predictor in tuned.named_predictors()}, Counter(lm.tasks)

    far, local = tune(chain().with_executor(pool)), tune(chain())
    assert far == local
    assert any(one["demos"] for one in local[0].values())


class Brittle(BaseModel):
    n: int
    a: int = 0
    b: int = 0
    c: int = 0


def brittle() -> Any:
    """The steps of the chain, of which one raises for every second input, after the first has been right."""
    graph = Graph(Brittle, name="Brittle").add_node("write_a", dspy.Predict(step("n", "a")))
    graph.add_node("stop", stop_at_odd, writes=["b"]).add_node("write_c", dspy.Predict(step("b", "c")))
    return graph.add_path(START, "write_a", "stop", "write_c", END).compile()


def stop_at_odd(a: int) -> dict[str, int]:
    if a % 2:
        raise ValueError(f"{a} is odd")
    return {"b": RULES["b"](a)}


def test_few_shot_learns_from_runs_that_fail_as_locally(pool: BytesExecutor) -> None:
    def tune(program: Any) -> Any:
        lm = SharedSkillLM(hard={"a": 5, "c": 5})
        with dspy.context(lm=lm):
            few_shot = optimize.FewShot(BY_FIELD, max_labeled_demos=0, max_errors=99)
            tuned = few_shot.compile(program, trainset=examples(8))
        return {name: predictor.dump_state() for name, predictor in tuned.named_predictors()}, Counter(lm.tasks)

    local, far = tune(brittle()), tune(brittle().with_executor(pool))
    assert far == local
    assert local[0]["write_a"]["demos"]


def test_accepted_only_keeps_refused_steps_from_the_trace(pool: BytesExecutor) -> None:
    from tests.executors.comparing import step_of
    from tests.executors.programs import WordLM, checked

    program, found = checked().compile(), []
    for one in (program, program.with_executor(pool)):
        accepted = optimize.accepted_only(one)
        trace: list[Any] = []
        with dspy.context(lm=WordLM(), trace=trace):
            accepted(q="why")
        found.append([step_of(accepted, step) for step in trace])
    assert found[0] == found[1]


def reward(inputs: Any, prediction: Any) -> float:
    return len(str(prediction.c)) / 100


@pytest.mark.parametrize("kind", [dspy.BestOfN, dspy.Refine])
def test_modules_of_dspy_around_it_give_the_same(kind: Any, pool: BytesExecutor) -> None:
    from tests.executors.programs import WordLM
    from tests.executors.programs import chain as words

    program, found = words().compile(), []
    for one in (program, program.with_executor(pool)):
        with dspy.context(lm=WordLM(), track_usage=True):
            prediction = kind(one, N=3, reward_fn=reward, threshold=2.0)(q="why")
        found.append((plain(prediction), prediction.get_lm_usage(), Run.of(prediction).state.to_dict()))
    assert found[0] == found[1]


@pytest.mark.parametrize("threads", [1, 4])
def test_evaluate_keeps_the_order_and_counts_failures(threads: int, pool: BytesExecutor) -> None:
    from tests.executors.programs import WordLM
    from tests.executors.programs import mapped as reads

    rows = [dspy.Example(docs=["bad" if n % 4 == 3 else f"d{n}"], n=n).with_inputs("docs") for n in range(8)]

    def metric(example: Any, prediction: Any, trace: Any = None) -> float:
        return float(prediction.notes == [f"D{example.n}"] and Run.of(prediction).blame("notes").node == "read")

    program, found = reads().compile(), []
    for one in (program, program.with_executor(pool)):
        with dspy.context(lm=WordLM()):
            result = dspy.Evaluate(devset=rows, metric=metric, num_threads=threads, display_progress=False)(one)
        found.append((result.score, [(example.n, plain(given), score) for example, given, score in result.results]))
    assert found[0] == found[1]
    assert found[0][0] == 75
