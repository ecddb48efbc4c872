"""The optimizations that `bench.optimize` compares: what is counted, and the parameters.

The LMs of `simulated_lms` answer after the texts of their prompts alone, so an optimizer can only win by showing the
reflection LM better records, or by running less. Nothing here is a time: it counts the calls of the metric, of the task
LM (those that DSPy's cache did not serve) and of the reflection LM, each where it is made.

**An optimization** has 30 training and 20 validation examples, and a budget of 1,600 metric calls, which is about what
`auto="light"` gives a program of four predictors. It ends when a candidate answers 90 % of the validation set, which
takes nearly every rule that there is to learn; at the start a program answers a fifth to a third. A run that does not
get there counts with its whole budget, so a ratio to a baseline that often misses is larger than it really is.

**The parameters** were fixed before any result was seen. A step of a program knows 4 of 6 conventions, so a program of
four steps starts with (4/6)^4 = 20 %. `p_high` = 0.7: shown input, output and what was expected, a strong LM mostly
finds the difference. `p_low` = 0.2: shown only that the final answer is wrong, it seldom finds which convention of an
earlier step was broken. The sweeps move both, up to a reflection LM that needs no feedback (`p_low` = `p_high`).

Every seed has conventions, examples and random numbers of its own. The figures are medians with quartiles.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from bench.simulated_lms import Conventions, ReflectionLM, Reflector, Skill, TaskLM, Worker
from bench.simulated_programs import (
    SHAPES,
    Metric,
    Shape,
    field_metrics,
    metric_by_hand,
)
from dspyer import optimize

TARGET = 0.9
TRAIN, VALID = 30, 20


@dataclass(frozen=True)
class Sizes:
    """How much a job does.

    Attributes:
        budget: metric calls of an optimization.
        test: new examples, by which the accuracy with demonstrations is measured.
    """

    budget: int = 1_600
    test: int = 200


FULL, QUICK = Sizes(), Sizes(20, 4)

FINAL_ROBIN, FINAL_ALL = "final metric, round_robin", "final metric, all"
BY_HAND = "field metrics by hand, all"
OURS_ALL = "optimize.by_field, all"
OURS = "optimize.GEPA"
GOAL_ONLY = "optimize.GEPA, goal only"
WEIGHTED = "optimize.GEPA, weights"
GEPA_ARMS = (FINAL_ROBIN, FINAL_ALL, BY_HAND, OURS_ALL, OURS, GOAL_ONLY, WEIGHTED)

FEW_SHOT_ARMS = {
    "BootstrapFewShot(max_rounds=1)": 1,
    "FewShot()": 0,
    "BootstrapFewShot(max_rounds=3)": 3,
    "FewShot(rollouts=3)": 3,
}

SWEEPS = {
    "p_low 0.2, p_high 0.7": Skill(),
    "p_low 0.05, p_high 0.7": Skill(p_low=0.05),
    "p_low 0.4, p_high 0.7": Skill(p_low=0.4),
    "p_low 0.2, p_high 0.4": Skill(p_high=0.4),
    "p_low 0.2, p_high 1": Skill(p_high=1.0),
    "p_low 0.2, p_high 0.7, careful": Skill(misled="plausibly"),
    "p_low 0.2, p_high 0.7, never misled": Skill(misled="never"),
    "p_low 0.7, p_high 0.7": Skill(p_low=0.7),
}
MAIN = next(iter(SWEEPS))


@dataclass(frozen=True)
class Job:
    """One optimization of one seed.

    Attributes:
        kind: `gepa`, `few_shot` or `cache`.
        shape: the program.
        arm: what optimizes it.
        seed: of conventions, examples, LMs and optimizer.
        sweep: the reflection LM, by its name in `SWEEPS`.
        quick: whether it only shows that it works.
    """

    kind: str
    shape: str
    arm: str
    seed: int
    sweep: str = MAIN
    quick: bool = False

    @property
    def sizes(self) -> Sizes:
        """How much it does."""
        return QUICK if self.quick else FULL


Figures = dict[str, Any]


class Watch:
    """Stops GEPA as soon as a candidate answers enough of the validation set.

    By default that is the score that GEPA has found. For another score, `measure` is the share of right answers of a
    candidate.
    """

    def __init__(self, measure: Callable[[Mapping[str, str]], float] | None = None) -> None:
        self.measure = measure
        self.score = 0.0
        self._seen = 0

    def __call__(self, state: Any) -> bool:
        for index in range(self._seen, len(state.program_candidates)):
            found = state.program_full_scores_val_set[index]
            self.score = max(self.score, self.measure(state.program_candidates[index]) if self.measure else found)
        self._seen = len(state.program_candidates)
        return self.score >= TARGET


def answered(shape: Shape, conventions: Conventions, valset: Sequence[dspy.Example]) -> Callable[..., float]:
    """Measures the share of right answers of a candidate, with an LM that nothing counts and that fills no cache."""

    def measure(candidate: Mapping[str, str]) -> float:
        program = shape.build()
        for name, module in program.named_predictors():
            module.signature = module.signature.with_instructions(candidate[name])
        with dspy.context(lm=TaskLM(Worker(conventions), cache=False)):
            return sum(program(question=one.question).answer == one.gold_answer for one in valset) / len(valset)

    return measure


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars and logs of the optimizers."""
    logging.disable(logging.CRITICAL)
    try:
        with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
            yield
    finally:
        logging.disable(logging.NOTSET)


def fresh_cache(enabled: bool = True) -> None:
    """Empties DSPy's cache of LM calls, which is in memory here."""
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=enabled, memory_max_entries=10**6)


def counted(metric: Metric, calls: list[int]) -> Metric:
    """The metric, which counts the scores that it gives; feedback on a run that was scored is not counted again."""

    def counting(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        if pred_name is None:
            calls[0] += 1
        return metric(gold, pred, trace, pred_name, pred_trace)

    return counting


class CountedMetric(optimize.FieldMetric):
    """A field metric that counts the scores that it gives."""

    calls: list[int]

    def __call__(
        self, example: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        if pred_name is None:
            self.calls[0] += 1
        return super().__call__(example, pred, trace, pred_name, pred_trace)


def counted_fields(
    shape: Shape, calls: list[int], names: Sequence[str] | None = None, weighted: bool = False
) -> CountedMetric:
    """The field metrics of a program, or some of them; with the same weight in the score, or with the goal alone."""
    metrics = field_metrics(shape)
    metric = CountedMetric(
        {name: metrics[name] for name in names or metrics}, "answer", dict.fromkeys(metrics, 1.0) if weighted else None
    )
    metric.calls = calls
    return metric


def gepa_of(arm: str, shape: Shape, calls: list[int], settings: Mapping[str, Any]) -> Any:
    """The optimizer of an arm."""
    if arm == OURS:
        return optimize.GEPA(counted_fields(shape, calls), **settings)
    if arm == GOAL_ONLY:
        return optimize.GEPA(counted_fields(shape, calls, ["answer"]), **settings)
    if arm == WEIGHTED:
        return optimize.GEPA(counted_fields(shape, calls, weighted=True), **settings)
    if arm == OURS_ALL:
        return dspy.GEPA(counted_fields(shape, calls), component_selector="all", **settings)
    metric = metric_by_hand(shape) if arm == BY_HAND else final_metric
    selector = "round_robin" if arm == FINAL_ROBIN else "all"
    return dspy.GEPA(counted(metric, calls), component_selector=selector, **settings)


def to_the_target(shape: Shape, arm: str, seed: int, skill: Skill, budget: int) -> Figures:
    """One optimization until it reaches the target or has spent its budget."""
    conventions = Conventions(shape.steps, seed)
    worker, reflector = Worker(conventions), Reflector(conventions, skill)
    trainset, valset = (shape.examples(conventions, *which) for which in (("train", TRAIN), ("valid", VALID)))
    watch, calls = Watch(answered(shape, conventions, valset) if arm == WEIGHTED else None), [0]
    fresh_cache()
    gepa = gepa_of(
        arm,
        shape,
        calls,
        {
            "reflection_lm": ReflectionLM(reflector),
            "max_metric_calls": budget,
            "num_threads": 1,
            "seed": seed,
            "gepa_kwargs": {"stop_callbacks": [watch]},
            "warn_on_score_mismatch": False,
        },
    )
    with quiet(), dspy.context(lm=TaskLM(worker)):
        gepa.compile(shape.build(), trainset=trainset, valset=valset)
    reached = watch.score >= TARGET
    return {
        "metric": calls[0] if reached else max(calls[0], budget),
        "task": worker.calls,
        "reflections": reflector.calls,
        "score": watch.score,
        "reached": reached,
    }


def few_shot(shape: Shape, arm: str, seed: int, tests: int) -> Figures:
    """Accuracy on new examples after demonstrations were gathered, and the LM calls that it took."""
    conventions = Conventions(shape.steps, seed)
    worker, calls = Worker(conventions), [0]
    fresh_cache()
    trainset = shape.examples(conventions, "train", TRAIN)
    extra = FEW_SHOT_ARMS[arm]
    with quiet(), dspy.context(lm=TaskLM(worker)):
        if arm.startswith("Bootstrap"):
            metric = counted(lambda *given: final_metric(*given).score, calls)
            few: Any = dspy.BootstrapFewShot(metric, max_bootstrapped_demos=4, max_labeled_demos=0, max_rounds=extra)
        else:
            few = optimize.FewShot(counted_fields(shape, calls), max_demos=4, rollouts=extra, max_labeled_demos=0)
        tuned = few.compile(shape.build(), trainset=trainset)
        made = worker.calls
        test = shape.examples(conventions, "test", tests)
        score = sum(tuned(question=one.question).answer == one.gold_answer for one in test) / len(test)
    return {"task": made, "metric": calls[0], "score": score}


def run(job: Job) -> tuple[Job, Figures]:
    """Does a job, in whichever process."""
    shape = next(shape for shape in SHAPES if shape.name == job.shape)
    if job.kind == "gepa":
        return job, to_the_target(shape, job.arm, job.seed, SWEEPS[job.sweep], job.sizes.budget)
    return job, few_shot(shape, job.arm, job.seed, job.sizes.test)


def jobs(parts: Sequence[str], seeds: int, shapes: Sequence[Shape] = SHAPES) -> list[Job]:
    """Everything that is measured, seed by seed."""
    found: list[Job] = []
    for seed in range(seeds):
        for shape in shapes:
            if "gepa" in parts:
                found.extend(Job("gepa", shape.name, arm, seed) for arm in GEPA_ARMS)
            if "few_shot" in parts:
                found.extend(Job("few_shot", shape.name, arm, seed) for arm in FEW_SHOT_ARMS)
            if "sweeps" in parts:
                swept = (*(FINAL_ROBIN, FINAL_ALL), BY_HAND, OURS)
                found.extend(Job("gepa", shape.name, arm, seed, sweep) for sweep in SWEEPS for arm in swept)
    return list(dict.fromkeys(found))
