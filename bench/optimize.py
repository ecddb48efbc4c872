"""What `dspyer.optimize` gains, measured with simulated LMs: `python -m bench.optimize`. See `optimizations`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles

import dspy

import dspyer
from bench.optimizations import (
    BY_HAND,
    FEW_SHOT_ARMS,
    FINAL_ALL,
    FINAL_ROBIN,
    GEPA_ARMS,
    GOAL_ONLY,
    MAIN,
    OURS,
    OURS_ALL,
    SWEEPS,
    WEIGHTED,
    Figures,
    Job,
    jobs,
    run,
)
from bench.report import NO, markdown, put_section, word
from bench.simulated_programs import SHAPES

PARTS = ("gepa", "few_shot", "sweeps")
SECTION = "Optimizing"
TITLES = {
    FINAL_ROBIN: "`dspy.GEPA`, final metric, `round_robin`",
    FINAL_ALL: "`dspy.GEPA`, final metric, `all`",
    BY_HAND: "`dspy.GEPA`, field metrics by hand, `all`",
    OURS_ALL: "`dspy.GEPA`, `optimize.by_field`, `all`",
    OURS: "`optimize.GEPA`",
    GOAL_ONLY: "`optimize.GEPA`, only the goal compared",
    WEIGHTED: "`optimize.GEPA`, all fields weighted alike",
}
ABOUT = """\
What [`dspyer.optimize`](guides/tuning.md) spares, in calls. The LMs are simulated: what they answer depends on the
texts of their prompts alone. A task LM does a step right if it knows the convention for the kind of input, or if the
instruction or a demonstration tells it. A reflection LM writes the rule that a record shows with probability `p_high`
if the feedback is about the output of this very step, and with `p_low` if it only says that the final answer is
wrong; it is misled by a value that was expected for other inputs. `python -m bench.optimize` measures it, and
`bench/optimizations.py` and `bench/simulated_lms.py` say why each parameter is what it is. They were fixed before the
first result.

**What this can show**: what an optimizer gains by showing the reflection LM the right records, and by running less.
**What it cannot show**: how much a real LM learns from a record, whether its rules disturb one another, and how often
the fields of a real task have gold values. Anyone can compare fields in a metric by hand for `dspy.GEPA`: those are
the rows *by hand*. They lose most where a value that was expected for other inputs misleads the reflection LM, which
`optimize.by_field` never shows. Real LMs may see through that; [other reflection LMs](#other-reflection-lms) show how
much depends on it. Measure with your own program.

An optimization has 30 training and 20 validation examples, and ends at 90 % on the latter, or after 1,600 metric
calls, which then count: a baseline that often misses the target would need more than its figure. Cells are medians
(quartiles) over the seeds; ratios are ratios of medians, lower is better."""
RATIOS = """\
`optimize.GEPA` with a metric of every field, compared with `dspy.GEPA`: with the final metric and the selector that
is better in this figure; with the same field metrics written by hand, which say what a field is and what it should be
(selector `all`); and with `optimize.by_field` (selector `all`). The goals are those of the design. The last two rows
are `optimize.GEPA` with `weights`, and with a metric of the goal alone, when it edits one predictor after the other,
as `round_robin` does. Where one mistake hides another behind it (a question that goes to the wrong desk, and a right
desk that does not know its kind), mending the first does not change the score of the goal, and an optimizer may stop
there for good: `weights` let it see the progress."""
SWEPT = """\
Metric calls of `optimize.GEPA` as a multiple of those of `dspy.GEPA`, for reflection LMs that learn more or less
easily. *Careful* ones are misled by plausible values only, and those that are *never misled* write no wrong rule at
all. With `p_low` = `p_high` the reflection LM needs no feedback."""
SHOTS = """\
Accuracy on 200 new examples, and the LM calls that it took to gather demonstrations, DSPy's cache on. The last
columns are ratios to the `BootstrapFewShot` above. All take at most 4 demonstrations per predictor, and no labeled
ones."""
OTHERS = [name for name in SWEEPS if name != MAIN]
Goal = Mapping[str, float] | None  # by program; "" for those without one of their own


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

    def seeds(self, kind: str, sweep: str = MAIN) -> int:
        """How many seeds there are."""
        return len({job.seed for job, _ in self.done if (job.kind, job.sweep) == (kind, sweep)})

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


def alike(value: str) -> str:
    """A ratio that should be neither a gain nor a loss."""
    return f"{value} (0.8–1.2: {word(0.8 <= float(value) <= 1.2)})"


def calls_table(results: Results, shape: str) -> list[list[str]]:
    """What each optimizer needed to reach the target."""
    lines = [["optimizer", "metric calls", "LM calls", "reflection calls", "missed"]]
    for arm in GEPA_ARMS:
        found = results.of("gepa", shape, arm)
        if found:
            cells = [shown([one[name] for one in found]) for name in ("metric", "task", "reflections")]
            missed = sum(not one["reached"] for one in found)
            lines.append([TITLES[arm], *cells, f"{missed} of {len(found)}"])
    return lines


def claims_table(results: Results) -> list[list[str]]:
    """The ratios of medians, with the goals of the design."""
    shapes = results.shapes("gepa")
    lines = [["ratio of medians", *shapes]]

    def add(figure_name: str, what: str, against: str, ours: str, theirs: Sequence[str], goal: Goal = None) -> None:
        cells = []
        for shape in shapes:
            rivals = [results.values(figure_name, "gepa", shape, one) for one in theirs]
            value = ratio(results.values(figure_name, "gepa", shape, ours), *rivals)
            cells.append(figure(value, goal.get(shape, goal[""]) if goal else None))
        lines.append([f"{what} / {against}", *cells])

    finals, best, hand, same = (FINAL_ROBIN, FINAL_ALL), "final metric", "by hand", "`by_field`, all"
    add("metric", "metric calls", best, OURS, finals, {"": 0.5})
    add("task", "LM calls", best, OURS, finals, {"": 0.55, "loop": 0.75})
    add("metric", "metric calls", hand, OURS, [BY_HAND], {"": 0.95, "router": 0.65})
    add("reflections", "reflection calls", hand, OURS, [BY_HAND], {"": 0.4, "loop": 0.6})
    add("task", "LM calls", hand, OURS, [BY_HAND])
    add("metric", "metric calls", same, OURS, [OURS_ALL])
    add("reflections", "reflection calls", same, OURS, [OURS_ALL])
    add("metric", "metric calls, with `weights`", best, WEIGHTED, finals)
    add("metric", "metric calls, only the goal compared", best, GOAL_ONLY, finals)
    lines[-1] = [cell if cell in (lines[-1][0], "–") else alike(cell) for cell in lines[-1]]
    return lines


def sweeps_table(results: Results) -> list[list[str]]:
    """Metric calls by what the reflection LM can do."""
    shapes = [shape for shape in results.shapes("gepa") if any(results.of("gepa", shape, OURS, s) for s in OTHERS)]
    lines = [["reflection LM", *(f"{shape} / {what}" for shape in shapes for what in ("final metric", "by hand"))]]
    for sweep in results.sweeps():
        cells = []
        for shape in shapes:
            ours = results.values("metric", "gepa", shape, OURS, sweep)
            for theirs in ((FINAL_ROBIN, FINAL_ALL), (BY_HAND,)):
                rivals = [results.values("metric", "gepa", shape, one, sweep) for one in theirs]
                cells.append(figure(ratio(ours, *rivals)))
        lines.append([sweep, *cells])
    return lines


def few_shot_table(results: Results) -> list[list[str]]:
    """Accuracy after demonstrations, and the LM calls that they took, each also as a ratio to the arm before."""
    lines = [["program", "optimizer", "accuracy", "LM calls", "accuracy, ratio", "calls, ratio"]]
    goals = {"pipeline": 1.2, "fork": 1.2, "router": 1.0}
    for shape in results.shapes("few_shot"):
        for arm, against in zip(FEW_SHOT_ARMS, (None, *FEW_SHOT_ARMS), strict=False):
            scores, calls = (results.values(name, "few_shot", shape, arm) for name in ("score", "task"))
            if not scores:
                continue
            ratios = ["", ""]
            if against is not None and not arm.startswith("Bootstrap"):
                goal = goals.get(shape) if arm == "FewShot(rollouts=3)" else None
                rivals = [results.values(name, "few_shot", shape, against) for name in ("score", "task")]
                ratios = [figure(ratio(scores, rivals[0]), goal, at_least=True), figure(ratio(calls, rivals[1]))]
            lines.append([shape, f"`{arm}`", shown(scores, 2), shown(calls), *ratios])
    return lines


def shortfalls(tables: Mapping[str, list[list[str]]]) -> str:
    """The goals that were missed, so that no reader must look for them."""
    missed = []
    for title, (head, *lines) in tables.items():
        for line in lines:
            name = [cell for cell, column in zip(line, head, strict=True) if column in ("program", "optimizer")]
            for column, cell in zip(head, line, strict=True):
                if NO in cell:
                    row = ", ".join(name) or line[0]
                    missed.append(f"- {title}: {row}, {column}: {cell.replace(f': {NO}', '')}")
    return "Goals that were missed:\n\n" + "\n".join(missed) if missed else "Every goal was met."


def count_of_seeds(results: Results, kind: str, sweep: str = MAIN) -> str:
    """How many seeds a table has."""
    seeds = results.seeds(kind, sweep)
    return f"{seeds} seed{'s' if seeds != 1 else ''}."


def as_text(results: Results) -> str:
    """All tables for which there are figures, as a section of the page of benchmarks."""
    parts = [f"## {SECTION}", ABOUT, f"dspy {dspy.__version__}, dspyer {dspyer.__version__}."]
    tables: dict[str, list[list[str]]] = {}

    def add(title: str, about: str, kind: str, table: list[list[str]], sweep: str = MAIN) -> None:
        tables[title] = table
        parts.extend([f"### {title}", f"{about} {count_of_seeds(results, kind, sweep)}", markdown(table)])

    if shapes := results.shapes("gepa"):
        add("Ratios", RATIOS, "gepa", claims_table(results))
        for shape in shapes:
            parts += [f"### Calls to the target: {shape}", markdown(calls_table(results, shape))]
    if swept := [name for name in results.sweeps() if name in OTHERS]:
        add("Other reflection LMs", SWEPT, "gepa", sweeps_table(results), swept[0])
    if results.shapes("few_shot"):
        add("Demonstrations", SHOTS, "few_shot", few_shot_table(results))
    return "\n\n".join([*parts[:3], shortfalls(tables), *parts[3:]])


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.optimize", description="What dspyer.optimize gains.")
    parser.add_argument("--seeds", type=int, default=10, help="optimizations of each kind (10)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these parts")
    parser.add_argument("--shapes", nargs="+", default=[], metavar="NAME", help="only these programs")
    parser.add_argument("--quick", action="store_true", help="one seed of the pipeline, without the sweeps")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, and go on from those it has")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the section of that page")
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
    if given.write:
        given.write.write_text(put_section(given.write.read_text(), as_text(results) + "\n"))
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
