"""One row per optimizer of DSPy 3.4: how the tests call it, and what it must change in the program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import dspy
import numpy as np
import optuna
from dspy.teleprompt import BootstrapFewShotWithOptuna
from dspy.teleprompt.grpo import GRPO

from tests.dspy_optimizers.lm import NotingLM
from tests.dspy_optimizers.programs import exact, generous

Examples = list[dspy.Example]
Tune = Callable[[Any, Examples, NotingLM], Any]
FEW = {"max_bootstrapped_demos": 2, "max_labeled_demos": 2}


@dataclass(frozen=True)
class Row:
    """An optimizer.

    Attributes:
        name: what the test is called.
        tune: compiles a program.
        learns: which predictors must carry something new afterwards: `"all"` of them, `"some"`, or `"none"`.
        pins_lm: it needs an LM on each predictor.
    """

    name: str
    tune: Tune
    learns: str = "some"
    pins_lm: bool = False


def labeled(program: Any, trainset: Examples, lm: NotingLM) -> Any:
    return dspy.LabeledFewShot(k=3).compile(program, trainset=trainset)


def bootstrap(program: Any, trainset: Examples, lm: NotingLM) -> Any:
    return dspy.BootstrapFewShot(metric=generous, **FEW).compile(program, trainset=trainset)


def bootstrap_rounds(program: Any, trainset: Examples, lm: NotingLM) -> Any:
    optimizer = dspy.BootstrapFewShot(metric=exact, max_rounds=2, **FEW)
    return optimizer.compile(program, trainset=trainset)


def random_search(program: Any, trainset: Examples, lm: NotingLM) -> Any:
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        metric=generous, num_candidate_programs=1, num_threads=1, max_bootstrapped_demos=5, max_labeled_demos=6
    )
    return optimizer.compile(program, trainset=trainset[:6])


def with_optuna(program: Any, trainset: Examples, lm: NotingLM) -> Any:
    optimizer = BootstrapFewShotWithOptuna(metric=generous, num_candidate_programs=2, num_threads=1, **FEW)
    seeded = functools.partial(optuna.create_study, sampler=optuna.samplers.TPESampler(seed=0))
    with mock.patch("optuna.create_study", seeded):  # DSPy gives no seed
        return optimizer.compile(program, max_demos=2, trainset=trainset)


def mipro(program: Any, trainset: Examples, lm: NotingLM, demos: int = 2, aware: bool = False) -> Any:
    optimizer = dspy.MIPROv2(
        metric=generous,
        auto=None,
        num_candidates=3,
        num_threads=1,
        max_bootstrapped_demos=demos,
        max_labeled_demos=demos,
        seed=0,
    )
    return optimizer.compile(
        program, trainset=trainset, valset=trainset[:4], num_trials=3, minibatch=False, program_aware_proposer=aware
    )


def gepa(program: Any, trainset: Examples, lm: NotingLM, **options: Any) -> Any:
    settings = {
        "max_metric_calls": 24,
        "component_selector": "all",
        "reflection_minibatch_size": 3,
        "num_threads": 1,
        "seed": 0,
        **options,
    }
    optimizer = dspy.GEPA(metric=advising, reflection_lm=lm, **settings)
    return optimizer.compile(program, trainset=trainset, valset=trainset[:4])


def advising(
    example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    return dspy.Prediction(score=exact(example, prediction), feedback=f"the label is {example.label}")


def simba(program: Any, trainset: Examples, lm: NotingLM) -> Any:
    """With this seed one step finds rules and demonstrations: two trajectories of an example differ in score."""
    optimizer = dspy.SIMBA(metric=exact, bsize=4, num_candidates=2, max_steps=1, max_demos=3, num_threads=1)
    return optimizer.compile(program, trainset=trainset, seed=9)


def copro(program: Any, trainset: Examples, lm: NotingLM) -> Any:
    options = {"num_threads": 1, "display_progress": False, "display_table": 0}
    return dspy.COPRO(metric=exact, breadth=2, depth=2).compile(program, trainset=trainset[:1], eval_kwargs=options)


def infer_rules(program: Any, trainset: Examples, lm: NotingLM) -> Any:
    optimizer = dspy.InferRules(metric=generous, num_candidates=1, num_rules=2, num_threads=1, **FEW)
    return optimizer.compile(program, trainset=trainset[:4], valset=trainset[4:])


def knn(program: Any, trainset: Examples, lm: NotingLM) -> Any:
    embedder = dspy.Embedder(embed, caching=False)
    optimizer = dspy.KNNFewShot(k=3, trainset=trainset, vectorizer=embedder, metric=generous, **FEW)
    return optimizer.compile(program)


def embed(texts: list[str]) -> Any:
    return np.array([[len(text), text.count("e"), text.count("a")] for text in texts], dtype=np.float32)


def ensemble(program: Any, trainset: Examples, lm: NotingLM) -> Any:
    tuned = bootstrap(program, trainset, lm)
    return dspy.Ensemble(reduce_fn=functools.partial(dspy.majority, field="label")).compile([tuned, program])


def finetune(program: Any, trainset: Examples, lm: NotingLM, multitask: bool = True, teacher: Any = None) -> Any:
    optimizer = dspy.BootstrapFinetune(metric=generous, multitask=multitask, num_threads=4 if not multitask else 1)
    return optimizer.compile(program, trainset=trainset[:3], teacher=teacher)


def better_together(program: Any, trainset: Examples, lm: NotingLM, strategy: str = "p -> w") -> Any:
    optimizer = dspy.BetterTogether(
        metric=exact,
        p=dspy.BootstrapFewShot(metric=generous, **FEW),
        w=dspy.BootstrapFinetune(metric=generous, num_threads=1),
    )
    return optimizer.compile(program, trainset=trainset, valset_ratio=0, strategy=strategy, seed=0)


def grpo(program: Any, trainset: Examples, lm: NotingLM, teacher: Any = None, steps: int = 2) -> Any:
    optimizer = GRPO(
        metric=exact,
        exclude_demos=True,
        num_train_steps=steps,
        num_dspy_examples_per_grpo_step=2,
        num_rollouts_per_grpo_step=2,
        num_threads=1,
        adapter=dspy.ChatAdapter(),
    )
    return optimizer.compile(program, trainset=trainset[:4], teacher=teacher)


ROWS = [
    Row("LabeledFewShot", labeled, "all"),
    Row("BootstrapFewShot", bootstrap, "all"),
    Row("BootstrapFewShot_rounds", bootstrap_rounds, "all"),
    Row("BootstrapFewShotWithRandomSearch", random_search),
    Row("BootstrapFewShotWithOptuna", with_optuna, "all"),
    Row("MIPROv2", mipro),
    Row("MIPROv2_zero_shot", functools.partial(mipro, demos=0)),
    Row("MIPROv2_program_aware", functools.partial(mipro, aware=True)),
    Row("GEPA", gepa, "all"),
    Row("GEPA_one_by_one", functools.partial(gepa, component_selector="round_robin", max_metric_calls=48)),
    Row("SIMBA", simba),
    Row("COPRO", copro),
    Row("InferRules", infer_rules, "all"),
    Row("KNNFewShot", knn, "none"),
    Row("BootstrapFinetune", finetune, "none", pins_lm=True),
    Row("BetterTogether", better_together, "all", pins_lm=True),
    Row("GRPO", grpo, "none", pins_lm=True),
]
ROW = {row.name: row for row in ROWS}
