"""The optimizations that `bench.optimize` compares: what is counted, and the parameters.

The LMs of `simulated_lms` answer after the texts of their prompts alone, so an optimizer can only win by showing the
reflection LM better records, or by running less. Nothing here is a time: it counts metric calls with gold runs (what
the budget of GEPA counts), the calls of the task LM that DSPy's cache did not serve, and those of the reflection LM.

**An optimization** has 30 training and 20 validation examples, and a budget of 500 metric calls. It ends when a
candidate answers 90 % of the validation set, which takes nearly every rule that there is to learn; at the start a
program answers a fifth to a third.

**The parameters** were fixed before any result was seen. A step of a program knows 4 of 6 conventions, so a program of
four steps starts with (4/6)^4 = 20 %. `p_high` = 0.7: shown input, output and what was expected, a strong LM mostly
finds the difference. `p_low` = 0.2: shown only that the final answer is wrong, it seldom finds which convention of an
earlier step was broken.

Every seed has conventions, examples and random numbers of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from bench.simulated_lms import Conventions, ReflectionLM, Reflector, Skill, TaskLM, Worker
from bench.simulated_programs import SHAPES, Metric, Shape, field_metrics, metric_by_hand, with_strict_gold
from dspyer import optimize

TARGET = 0.9
TRAIN, VALID = 30, 20


@dataclass(frozen=True)
class Sizes:
    """How much a job does.

    Attributes:
        budget: metric calls of an optimization, gold runs among them.
        test: new examples, by which the accuracy with demonstrations is measured.
    """

    budget: int = 500
    test: int = 200


FULL, QUICK = Sizes(), Sizes(20, 4)

EXPERT = "dspy.GEPA, expert's metric"
OURS = "optimize.GEPA"
GEPA_ARMS = (EXPERT, OURS)

FEW_SHOT_ARMS = {
    "BootstrapFewShot(max_rounds=1)": 1,
    "FewShot()": 0,
    "BootstrapFewShot(max_rounds=3)": 3,
    "FewShot(rollouts=3)": 3,
}
FEW_SHOT_SHAPES = ("pipeline", "fork", "router")
STRICT = "strict"
STRICT_SHAPES = ("pipeline", "fork", "nested")


@dataclass(frozen=True)
class Job:
    """One optimization of one seed.

    Attributes:
        kind: `gepa`; `strict`, in which one field has gold in another style; `few_shot`.
        shape: the program.
        arm: what optimizes it.
        seed: of conventions, examples, LMs and optimizer.
        quick: whether it only shows that it works.
    """

    kind: str
    shape: str
    arm: str
    seed: int
    quick: bool = False

    @property
    def sizes(self) -> Sizes:
        """How much it does."""
        return QUICK if self.quick else FULL


Figures = dict[str, Any]


class Watch:
    """Stops GEPA as soon as a candidate answers enough of the validation set.

    Attributes:
        score: the best score so far.
        spent: the metric calls so far, gold runs among them.
    """

    def __init__(self) -> None:
        self.score, self.spent = 0.0, 0

    def __call__(self, state: Any) -> bool:
        self.score, self.spent = max(state.program_full_scores_val_set), state.total_num_evals
        return self.score >= TARGET


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


def fields_of(shape: Shape) -> optimize.FieldMetric:
    """The metric by field of a program."""
    return optimize.by_field(field_metrics(shape), goal="answer")


def to_the_target(shape: Shape, arm: str, seed: int, skill: Skill, budget: int) -> Figures:
    """One optimization until it reaches the target or has spent its budget."""
    conventions = Conventions(shape.steps, seed)
    worker, reflector, watch = Worker(conventions), Reflector(conventions, skill), Watch()
    trainset, valset = (shape.examples(conventions, *which) for which in (("train", TRAIN), ("valid", VALID)))
    settings = {
        "reflection_lm": ReflectionLM(reflector),
        "max_metric_calls": budget,
        "num_threads": 1,
        "seed": seed,
        "gepa_kwargs": {"stop_callbacks": [watch]},
        "warn_on_score_mismatch": False,
    }
    fresh_cache()
    ours = optimize.GEPA(fields_of(shape), **settings) if arm == OURS else None
    gepa = ours or dspy.GEPA(metric_by_hand(shape), component_selector="all", **settings)
    with quiet(), dspy.context(lm=TaskLM(worker)):
        gepa.compile(shape.build(), trainset=trainset, valset=valset)
    return {
        "metric": watch.spent,
        "gold": 0 if ours is None else ours.stats.gold_runs,
        "warnings": 0 if ours is None else len(ours.stats.warnings),
        "task": worker.calls,
        "reflections": reflector.calls,
        "score": watch.score,
        "reached": watch.score >= TARGET,
    }


def final_metric(gold: Any, pred: Any, trace: Any = None) -> bool:
    """The answer alone."""
    return bool(pred.answer == gold.gold_answer)


def counted(metric: Metric, calls: list[int]) -> Metric:
    """The metric, which counts the scores that it gives; feedback on a run that was scored is not counted again."""

    def counting(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        calls[0] += pred_name is None
        return metric(gold, pred, trace, pred_name, pred_trace)

    return counting


def few_shot(shape: Shape, arm: str, seed: int, tests: int) -> Figures:
    """Accuracy on new examples after demonstrations were gathered, and the LM calls that it took."""
    conventions = Conventions(shape.steps, seed)
    worker, extra = Worker(conventions), FEW_SHOT_ARMS[arm]
    fresh_cache()
    trainset = shape.examples(conventions, "train", TRAIN)
    with quiet(), dspy.context(lm=TaskLM(worker)):
        if arm.startswith("Bootstrap"):
            few: Any = dspy.BootstrapFewShot(
                final_metric, max_bootstrapped_demos=4, max_labeled_demos=0, max_rounds=extra
            )
        else:
            few = optimize.FewShot(fields_of(shape), max_demos=4, rollouts=extra, max_labeled_demos=0)
        tuned = few.compile(shape.build(), trainset=trainset)
        made = worker.calls
        test = shape.examples(conventions, "test", tests)
        score = sum(tuned(**one.inputs()).answer == one.gold_answer for one in test) / len(test)
    return {"task": made, "score": score}


def run(job: Job) -> tuple[Job, Figures]:
    """Does a job, in whichever process."""
    shape = next(shape for shape in SHAPES if shape.name == job.shape)
    if job.kind == "few_shot":
        return job, few_shot(shape, job.arm, job.seed, job.sizes.test)
    # With gold in another style, no reflection LM could learn what it asks for: it is misled in no other way.
    shape = with_strict_gold(shape) if job.kind == STRICT else shape
    skill = Skill(misled="never") if job.kind == STRICT else Skill()
    return job, to_the_target(shape, job.arm, job.seed, skill, job.sizes.budget)


def jobs(parts: Sequence[str], seeds: int, shapes: Sequence[Shape] = SHAPES) -> list[Job]:
    """Everything that is measured, seed by seed."""
    arms: dict[str, tuple[Sequence[str], Sequence[str]]] = {
        "gepa": (GEPA_ARMS, [shape.name for shape in SHAPES]),
        STRICT: (GEPA_ARMS, STRICT_SHAPES),
        "few_shot": (list(FEW_SHOT_ARMS), FEW_SHOT_SHAPES),
    }
    return [
        Job(part, shape.name, arm, seed)
        for seed in range(seeds)
        for shape in shapes
        for part in parts
        for arm in arms[part][0]
        if shape.name in arms[part][1]
    ]
