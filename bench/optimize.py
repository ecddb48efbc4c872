"""What `dspyer.optimize` gains, measured with simulated LMs: `python -m bench.optimize`. See `optimizations`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import dspy

import dspyer
from bench.optimizations import EXPERT, FEW_SHOT_ARMS, GEPA_ARMS, OURS, STRICT, Figures, Job, jobs, run
from bench.report import markdown, put_section
from bench.simulated_programs import SHAPES

PARTS = ("gepa", STRICT, "few_shot")
SECTION = "Optimizing"
ABOUT = """\
What `dspyer.optimize` spares, in calls. The LMs are simulated: what they answer depends on the
texts of their prompts alone. A task LM does a step right if it knows the convention for the kind of input, or if the
instruction or a demonstration tells it. A reflection LM writes the rule that a record shows with probability 0.7 if
the feedback is about the output of this very step, and with 0.2 if it only says that the final answer is wrong; it is
misled by a value that was expected for other inputs. `python -m bench.optimize` measures it, and
`bench/optimizations.py` and `bench/simulated_lms.py` say why each parameter is what it is.

**What this can show**: what an optimizer gains by showing the reflection LM the right records, and by running less.
**What it cannot show**: how much a real LM learns from a record, whether its rules disturb one another, and how often
the fields of a real task have gold values. Measure with your own program: `optimize.headroom` costs a few runs.

An optimization has 30 training and 20 validation examples, and ends at 90 % on the latter, or after 500 metric calls,
gold runs among them."""
RATIOS = """\
`optimize.GEPA` with a metric of every field, compared with `dspy.GEPA` (selector `all`) with an expert's metric by
hand: it compares what a step gave with gold, unless one of its inputs was wrong. Geometric means of the ratios of the
seeds, lower is better; one seed varies by 0.4 to 1.6. LM calls are those that DSPy's cache did not serve."""
STRICTS = """\
One field in the middle has gold in another style, which no value ever equals. The reflection LM is misled by nothing
else. The best score on the validation set, seed by seed, and how often `stats.warnings` named the field."""
SHOTS = """\
Accuracy on 200 new examples, and the LM calls that it took to gather demonstrations, DSPy's cache on. All take at most
4 demonstrations per predictor, and no labeled ones. Means over the seeds."""


@dataclass
class Results:
    """The figures of all jobs, by kind, program and arm."""

    done: list[tuple[Job, Figures]]

    def of(self, kind: str, shape: str, arm: str) -> list[Figures]:
        """The figures of each seed, in their order."""
        found = [
            (job.seed, figures) for job, figures in self.done if (job.kind, job.shape, job.arm) == (kind, shape, arm)
        ]
        return [figures for _, figures in sorted(found, key=lambda one: one[0])]

    def shapes(self, kind: str) -> list[str]:
        """The programs for which there are figures."""
        return list(dict.fromkeys(job.shape for job, _ in self.done if job.kind == kind))


def ratio(results: Results, shape: str, name: str) -> str:
    """The geometric mean, over the seeds, of our figure in theirs."""
    pairs = zip(results.of("gepa", shape, OURS), results.of("gepa", shape, EXPERT), strict=True)
    logs = [math.log(max(ours[name], 1) / max(theirs[name], 1)) for ours, theirs in pairs]
    return f"{math.exp(sum(logs) / len(logs)):.2f}"


def mean(found: Sequence[Figures], name: str) -> float:
    """The mean of a figure over the seeds."""
    return sum(one[name] for one in found) / len(found)


def ratios_table(results: Results) -> list[list[str]]:
    """What `optimize.GEPA` needs of what the expert's metric needs."""
    lines = [["program", "metric calls", "LM calls", "reflections", "gold runs", "target reached: expert, ours"]]
    for shape in results.shapes("gepa"):
        ours, theirs = results.of("gepa", shape, OURS), results.of("gepa", shape, EXPERT)
        cells = [ratio(results, shape, name) for name in ("metric", "task", "reflections")]
        reached = [str(sum(one["reached"] for one in found)) for found in (theirs, ours)]
        lines.append([shape, *cells, f"{mean(ours, 'gold'):.0f}", f"{', '.join(reached)} of {len(ours)}"])
    return lines


def strict_table(results: Results) -> list[list[str]]:
    """The scores with a metric that is too strict."""
    lines = [["program", *(f"`{arm}`" for arm in GEPA_ARMS), "warned"]]
    for shape in results.shapes(STRICT):
        found = [results.of(STRICT, shape, arm) for arm in GEPA_ARMS]
        scores = [", ".join(f"{one['score']:.2f}" for one in figures) for figures in found]
        lines.append([shape, *scores, f"{sum(one['warnings'] > 0 for one in found[1])} of {len(found[1])}"])
    return lines


def few_shot_table(results: Results) -> list[list[str]]:
    """Accuracy after demonstrations, and the LM calls that they took."""
    lines = [["program", "optimizer", "accuracy", "LM calls"]]
    for shape in results.shapes("few_shot"):
        for arm in FEW_SHOT_ARMS:
            found = results.of("few_shot", shape, arm)
            lines.append([shape, f"`{arm}`", f"{mean(found, 'score'):.2f}", f"{mean(found, 'task'):.0f}"])
    return lines


def as_text(results: Results) -> str:
    """All tables for which there are figures, as a section of the results."""
    parts = [f"## {SECTION}", ABOUT, f"dspy {dspy.__version__}, dspyer {dspyer.__version__}."]
    tables = {
        "gepa": ("Against an expert's metric", RATIOS, ratios_table),
        STRICT: ("A metric that is too strict", STRICTS, strict_table),
        "few_shot": ("Demonstrations", SHOTS, few_shot_table),
    }
    for kind, (title, about, table) in tables.items():
        if results.shapes(kind):
            seeds = len({job.seed for job, _ in results.done if job.kind == kind})
            parts += [f"### {title}", f"{about} {seeds} seed{'s' if seeds != 1 else ''}.", markdown(table(results))]
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.optimize", description="What dspyer.optimize gains.")
    parser.add_argument("--seeds", type=int, default=10, help="optimizations of each kind (10)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these parts")
    parser.add_argument("--shapes", nargs="+", default=[], metavar="NAME", help="only these programs")
    parser.add_argument("--quick", action="store_true", help="one seed of the pipeline")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, and go on from those it has")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the section of bench/results.md")
    given = parser.parse_args(arguments)
    shapes = [shape for shape in SHAPES if shape.name in (given.shapes or [one.name for one in SHAPES])]
    wanted = jobs(given.parts, given.seeds, shapes)
    if given.quick:
        wanted = [replace(job, quick=True) for job in jobs(given.parts, 1, shapes[:1])]
    results = Results(load(given.json) if given.json else [])
    known = {job for job, _ in results.done}
    for job, found in each([job for job in wanted if job not in known], given.jobs):
        results.done.append((job, found))
        print(f"... {job.shape}, {job.arm}, {job.seed}: {found}", file=sys.stderr)
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
