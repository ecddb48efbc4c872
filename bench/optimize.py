"""What `dspyer.optimize` gains, measured with LMs that are simulated: `python -m bench.optimize`.

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

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import dspy

from bench.machine import describe
from bench.report import markdown, word
from bench.simulated_lms import Conventions, ReflectionLM, Reflector, Skill, TaskLM, Worker
from bench.simulated_programs import (
    FUNCTION_CALLS,
    SHAPES,
    TOOLS_SHAPE,
    Metric,
    Shape,
    field_metrics,
    final_metric,
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
        short: metric calls of an optimization that is compared with and without `optimize.cache`.
        test: new examples, by which the accuracy with demonstrations is measured.
    """

    budget: int = 1_600
    short: int = 400
    test: int = 200


FULL, QUICK = Sizes(), Sizes(40, 30, 10)

FINAL_ROBIN, FINAL_ALL = "final metric, round_robin", "final metric, all"
BY_HAND = "field metrics by hand, all"
OURS_ALL = "optimize.by_field, all"
OURS = "optimize.GEPA"
GOAL_ONLY = "optimize.GEPA, goal only"
GEPA_ARMS = (FINAL_ROBIN, FINAL_ALL, BY_HAND, OURS_ALL, OURS, GOAL_ONLY)

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
    "p_low 0.2, p_high 0.7, careful": Skill(careful=True),
    "p_low 0.7, p_high 0.7": Skill(p_low=0.7),
}
MAIN = next(iter(SWEEPS))
NEEDS_NONE = "p_low 0.7, p_high 0.7"


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
Goal = Mapping[str, float] | None  # by program; "" for those without one of their own


class Watch:
    """Stops GEPA as soon as a candidate reaches the target on the validation set."""

    def __init__(self, target: float = TARGET) -> None:
        self.target = target
        self.score = 0.0

    def __call__(self, state: Any) -> bool:
        self.score = max(state.program_full_scores_val_set, default=0.0)
        return self.score >= self.target


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


def counted_fields(shape: Shape, calls: list[int], names: Sequence[str] | None = None) -> CountedMetric:
    """The field metrics of a program, or some of them."""
    metrics = field_metrics(shape)
    metric = CountedMetric({name: metrics[name] for name in names or metrics}, goal="answer")
    metric.calls = calls
    return metric


def gepa_of(arm: str, shape: Shape, calls: list[int], settings: Mapping[str, Any]) -> Any:
    """The optimizer of an arm."""
    if arm == OURS:
        return optimize.GEPA(counted_fields(shape, calls), **settings)
    if arm == GOAL_ONLY:
        return optimize.GEPA(counted_fields(shape, calls, ["answer"]), **settings)
    if arm == OURS_ALL:
        return dspy.GEPA(counted_fields(shape, calls), component_selector="all", **settings)
    metric = metric_by_hand(shape) if arm == BY_HAND else final_metric
    selector = "round_robin" if arm == FINAL_ROBIN else "all"
    return dspy.GEPA(counted(metric, calls), component_selector=selector, **settings)


def to_the_target(shape: Shape, arm: str, seed: int, skill: Skill, budget: int) -> Figures:
    """One optimization until it reaches the target or has spent its budget."""
    conventions = Conventions(shape.steps, seed)
    worker, reflector = Worker(conventions), Reflector(conventions, skill)
    watch, calls = Watch(), [0]
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
        gepa.compile(
            shape.build(),
            trainset=shape.examples(conventions, "train", TRAIN),
            valset=shape.examples(conventions, "valid", VALID),
        )
    reached = watch.score >= TARGET
    return {
        "metric": calls[0] if reached else max(calls[0], budget),
        "task": worker.calls,
        "reflections": reflector.calls,
        "score": watch.score,
        "reached": reached,
    }


def with_a_cache(shape: Shape, arm: str, seed: int, budget: int) -> Figures:
    """One optimization of fixed length, with and without `optimize.cache`, with and without DSPy's cache of LM calls.

    The three are the same optimization if their candidates and scores are equal.
    """
    figures: Figures = {}
    for name, dspy_caches, ours in (
        ("none", False, False),
        ("dspy", True, False),
        ("both", True, True),
        ("ours", False, True),
    ):
        conventions = Conventions(shape.steps, seed)
        worker, reflector = Worker(conventions), Reflector(conventions, Skill())
        trainset = shape.examples(conventions, "train", TRAIN)
        valset = shape.examples(conventions, "valid", VALID)
        fresh_cache(dspy_caches)
        FUNCTION_CALLS[0] = 0
        settings = {
            "reflection_lm": ReflectionLM(reflector),
            "max_metric_calls": budget,
            "num_threads": 1,
            "seed": seed,
            "track_stats": True,
            "warn_on_score_mismatch": False,
        }
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            program = shape.build(folder) if ours and shape.counts_functions else shape.build()
            stack.enter_context(quiet())
            stack.enter_context(dspy.context(lm=TaskLM(worker)))
            if ours:
                stack.enter_context(optimize.cache(folder))
            tuned = gepa_of(arm, shape, [0], settings).compile(program, trainset=trainset, valset=valset)
        found, made = tuned.detailed_results.to_dict(), FUNCTION_CALLS[0]
        figures[name] = {
            "task": worker.calls,
            "reflections": reflector.calls,
            "functions": made,
            "trajectory": [found["candidates"], found["val_aggregate_scores"]],
        }
    for cached, without in (("both", "dspy"), ("ours", "none")):
        figures[cached]["equal"] = figures[cached]["trajectory"] == figures[without]["trajectory"]
    for one in figures.values():
        del one["trajectory"]
    return figures


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
            few = optimize.FewShot(counted_fields(shape, calls), max_demos=4, rollouts=extra)
        tuned = few.compile(shape.build(), trainset=trainset)
        made = worker.calls
        test = shape.examples(conventions, "test", tests)
        score = sum(tuned(question=one.question).answer == one.gold_answer for one in test) / len(test)
    return {"task": made, "metric": calls[0], "score": score}


def run(job: Job) -> tuple[Job, Figures]:
    """Does a job, in whichever process."""
    shape = next(shape for shape in (*SHAPES, TOOLS_SHAPE) if shape.name == job.shape)
    if job.kind == "gepa":
        return job, to_the_target(shape, job.arm, job.seed, SWEEPS[job.sweep], job.sizes.budget)
    if job.kind == "cache":
        return job, with_a_cache(shape, job.arm, job.seed, job.sizes.short)
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
            if "cache" in parts:
                found.extend(Job("cache", shape.name, arm, seed) for arm in (FINAL_ROBIN, OURS))
        if "cache" in parts:
            found.extend(Job("cache", TOOLS_SHAPE.name, arm, seed) for arm in (FINAL_ROBIN, OURS))
    return list(dict.fromkeys(found))


@dataclass
class Results:
    """The figures of all jobs, by kind, program, arm and sweep."""

    done: list[tuple[Job, Figures]]

    def of(self, kind: str, shape: str, arm: str, sweep: str = MAIN) -> list[Figures]:
        """The figures of each seed."""
        wanted = (kind, shape, arm, sweep)
        return [found for job, found in self.done if (job.kind, job.shape, job.arm, job.sweep) == wanted]

    def values(self, figure: str, *which: str) -> list[float]:
        """One figure of each seed."""
        return [float(found[figure]) for found in self.of(*which)]

    def shapes(self, kind: str) -> list[str]:
        """The programs for which there are figures."""
        return list(dict.fromkeys(job.shape for job, _ in self.done if job.kind == kind))

    def sweeps(self) -> list[str]:
        """The reflection LMs for which there are figures."""
        return [name for name in SWEEPS if any(job.sweep == name and job.kind == "gepa" for job, _ in self.done)]


def shown(values: Sequence[float], digits: int = 0) -> str:
    """Median and quartiles."""
    if not values:
        return "–"
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return f"{median(values):,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


def ratio(ours: Sequence[float], *theirs: Sequence[float]) -> float | None:
    """The median of ours in medians of theirs, of the smaller one if there are several."""
    rivals = [median(values) for values in theirs if values]
    return median(ours) / min(rivals) if ours and rivals and min(rivals) else None


def figure(value: float | None, goal: float | None = None, at_least: bool = False) -> str:
    """A ratio, with its goal if there is one."""
    if value is None:
        return "–"
    if goal is None:
        return f"{value:.2f}"
    met = value >= goal if at_least else value <= goal
    return f"{value:.2f} ({'≥' if at_least else '≤'} {goal:g}: {word(met)})"


def calls_table(results: Results) -> list[list[str]]:
    """What each arm needed to reach the target."""
    lines = [["program", "optimizer", "metric calls", "LM calls", "reflection calls", "missed"]]
    for shape in results.shapes("gepa"):
        for arm in GEPA_ARMS:
            found = results.of("gepa", shape, arm)
            if found:
                cells = [shown([one[name] for one in found]) for name in ("metric", "task", "reflections")]
                missed = sum(not one["reached"] for one in found)
                lines.append([shape, arm, *cells, f"{missed} of {len(found)}"])
    return lines


def claims_table(results: Results) -> list[list[str]]:
    """The ratios of medians, with the goals of the design."""
    shapes = results.shapes("gepa")
    lines = [["ratio of medians", "against", *shapes]]

    def add(figure_name: str, what: str, against: str, ours: str, theirs: Sequence[str], goal: Goal = None) -> None:
        cells = []
        for shape in shapes:
            rivals = [results.values(figure_name, "gepa", shape, one) for one in theirs]
            value = ratio(results.values(figure_name, "gepa", shape, ours), *rivals)
            cells.append(figure(value, goal.get(shape, goal[""]) if goal else None))
        lines.append([what, against, *cells])

    finals, best = (FINAL_ROBIN, FINAL_ALL), "`dspy.GEPA`, final metric, the better selector"
    hand, same = "`dspy.GEPA`, field metrics by hand, all", "`dspy.GEPA`, `optimize.by_field`, all"
    add("metric", "metric calls", best, OURS, finals, {"": 0.5})
    add("task", "LM calls", best, OURS, finals, {"": 0.55, "loop": 0.75})
    add("metric", "metric calls", hand, OURS, [BY_HAND], {"": 0.95, "router": 0.65})
    add("reflections", "reflection calls", hand, OURS, [BY_HAND], {"": 0.4, "loop": 0.6})
    add("task", "LM calls", hand, OURS, [BY_HAND])
    add("metric", "metric calls", same, OURS, [OURS_ALL])
    add("reflections", "reflection calls", same, OURS, [OURS_ALL])
    add("metric", "metric calls, only the goal compared (0.8–1.2)", best, GOAL_ONLY, finals)
    return lines


def sweeps_table(results: Results) -> list[list[str]]:
    """Metric calls by what the reflection LM can do."""
    shapes = results.shapes("gepa")
    lines = [["reflection LM", "against", *shapes]]
    for sweep in results.sweeps():
        for against, theirs in (("final metric", (FINAL_ROBIN, FINAL_ALL)), ("by hand", (BY_HAND,))):
            cells = []
            for shape in shapes:
                ours = results.values("metric", "gepa", shape, OURS, sweep)
                cells.append(
                    figure(ratio(ours, *(results.values("metric", "gepa", shape, one, sweep) for one in theirs)))
                )
            lines.append([sweep, against, *cells])
    return lines


def cache_table(results: Results) -> list[list[str]]:
    """What `optimize.cache` spares in an optimization of fixed length."""
    lines = [["program", "optimizer", "LM calls, DSPy's cache on", "LM calls, off", "function calls", "equal"]]
    for shape in results.shapes("cache"):
        for arm in (FINAL_ROBIN, OURS):
            found = results.of("cache", shape, arm)
            if not found:
                continue

            def cell(name: str, cached: str, without: str, goal: float, found: list[Figures] = found) -> str:
                return figure(ratio(*([one[which][name] for one in found] for which in (cached, without))), goal)

            equal = sum(one["both"]["equal"] and one["ours"]["equal"] for one in found)
            calls = (cell("task", "both", "dspy", 1.0), cell("task", "ours", "none", 0.65))
            lines.append([shape, arm, *calls, cell("functions", "both", "dspy", 0.35), f"{equal} of {len(found)}"])
    return lines


def few_shot_table(results: Results) -> list[list[str]]:
    """Accuracy after demonstrations, and the LM calls that they took."""
    lines = [["program", "optimizer", "accuracy", "LM calls", "ratio of accuracies"]]
    for shape in results.shapes("few_shot"):
        for arm, against in zip(FEW_SHOT_ARMS, (None, *FEW_SHOT_ARMS), strict=False):
            scores, calls = (results.values(name, "few_shot", shape, arm) for name in ("score", "task"))
            if not scores:
                continue
            gain = (
                ""
                if against is None or arm.startswith("Boot")
                else figure(
                    ratio(scores, results.values("score", "few_shot", shape, against)),
                    None if arm == "FewShot()" else 1.0 if shape == "router" else 1.2,
                    at_least=True,
                )
            )
            lines.append([shape, arm, shown(scores, 2), shown(calls), gain])
    return lines


def as_text(results: Results, level: int = 2) -> str:
    """All tables for which there are figures."""
    tables = (
        ("Calls to the target", "gepa", calls_table),
        ("Ratios and goals", "gepa", claims_table),
        ("By what the reflection LM can do: metric calls", "gepa", sweeps_table),
        ("With and without `optimize.cache`", "cache", cache_table),
        ("Demonstrations", "few_shot", few_shot_table),
    )
    parts = [f"{describe()}. dspy {dspy.__version__}."]
    for title, kind, table in tables:
        if results.shapes(kind) and (table is not sweeps_table or len(results.sweeps()) > 1):
            parts.append(f"{'#' * level} {title}\n\n{markdown(table(results))}")
    return "\n\n".join(parts)


PARTS = ("gepa", "few_shot", "cache", "sweeps")


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.optimize", description="What dspyer.optimize gains.")
    parser.add_argument("--seeds", type=int, default=10, help="optimizations of each kind (10)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these parts")
    parser.add_argument("--shapes", nargs="+", default=[], metavar="NAME", help="only these programs")
    parser.add_argument("--quick", action="store_true", help="one seed of the pipeline, without the sweeps")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, and go on from those it has")
    given = parser.parse_args(arguments)
    shapes = [shape for shape in SHAPES if shape.name in (given.shapes or [one.name for one in SHAPES])]
    wanted = jobs(given.parts, given.seeds, shapes)
    if given.quick:
        parts = [part for part in given.parts if part != "sweeps"]
        wanted = [replace(job, quick=True) for job in jobs(parts, 1, shapes[:1])]
    results = Results(load(given.json) if given.json else [])
    known = {job for job, _ in results.done}
    for job, found in each([job for job in wanted if job not in known], given.jobs):
        results.done.append((job, found))
        print(f"... {job.shape}, {job.arm}, {job.seed}, {job.sweep}: {found}", file=sys.stderr)
        if given.json:
            given.json.write_text(json.dumps([[asdict(job), found] for job, found in results.done], indent=1))
    print(as_text(results))
    return 0


def each(wanted: Sequence[Job], processes: int) -> Iterator[tuple[Job, Figures]]:
    """The jobs as they are done."""
    if processes < 2:
        yield from map(run, wanted)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run, wanted)


def load(path: Path) -> list[tuple[Job, Figures]]:
    """The figures of an earlier call."""
    return [(Job(**job), found) for job, found in json.loads(path.read_text())] if path.exists() else []


if __name__ == "__main__":
    raise SystemExit(main())
