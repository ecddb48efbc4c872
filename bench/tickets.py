"""Three optimizers on real text, by themselves and with `dspyer.optimize`: `python -m bench.tickets`.

The program is the desk of `examples/tune.py` with a tool in it; the tickets are those of `examples/data`. Each line is
an optimizer, tuned and scored on the same tickets with and without `cache=` for the tool, in turn. Calls are counted
where they are made: those of the LM in its engine, so that a response from DSPy's cache is none; those of the tool in
the tool; and metric calls are runs of the desk, gold runs among them. DSPy's cache is on in every line, and empty when
the line begins. With `cache=`, the tuned programs, scores and runs must be the same. The LM is the offline one, slowed
down to `--delay` seconds a call.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import dspy

from bench.machine import describe
from dspyer import END, START, Cache, CompiledGraph, Graph, optimize
from dspyer.testing import NearestLM
from dspyer.testing.nearest import TextIndex, nearest_answer
from dspyer.testing.prompt import LMAnswer, Prompt, Sampling, TextLM

sys.path.append(str(Path(__file__).parent.parent / "examples"))  # examples are programs, not a package

import tune  # found by the line above

TRAIN, DEV, TEST = 144, 48, 96
"""Tickets to learn from, to choose candidates by, and held out."""
DEMOS, ROLLOUTS, BUDGET, MINIBATCH, TRIALS = 16, 8, 800, 24, 8
FIELD_OF = {"classify": "category", "judge": "urgency"}


class Calls:
    """Counts calls by kind, in any thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1


class SlowWriter:
    """Answers as `NearestLM` does, counts its answers, and takes its time for each."""

    def __init__(self, calls: Calls, kind: str, delay: float) -> None:
        self.calls, self.kind, self.delay = calls, kind, delay

    def __deepcopy__(self, memo: dict[int, Any]) -> SlowWriter:
        return self  # copies of the LM count in one place

    def __call__(self, prompt: Prompt, sampling: Sampling, /) -> LMAnswer:
        self.calls.add(self.kind)
        time.sleep(self.delay)
        return nearest_answer(prompt, sampling)


class SlowLM(TextLM):
    """The offline LM at the pace of one over a network, with DSPy's cache."""

    def __init__(self, calls: Calls, kind: str, delay: float) -> None:
        super().__init__(kind, SlowWriter(calls, kind, delay), cache=True)


class Measured(NamedTuple):
    """What one optimization gave and cost."""

    score: float
    lm: int
    reflection: int
    run: int
    tool: int
    seconds: float


class Desk(tune.Ticket):
    """A ticket with what earlier tickets are like it."""

    alike: tuple[str, ...] = ()


def slow_desk(calls: Calls, delay: float, cache: Cache | None) -> CompiledGraph:
    """The desk of the example, with a search among old tickets as its tool.

    Without a cache, the tool is called by every run.
    """
    old = [example.text for example in tune.examples("train")]
    index = TextIndex(old)

    def search(text: str) -> dict[str, Any]:
        calls.add("tool")
        time.sleep(delay)
        near = index.similarities(text)
        return {"alike": [old[number] for number in sorted(range(len(old)), key=lambda each: -near[each])[:3]]}

    @functools.wraps(tune.assign)
    def assign(**values: Any) -> Any:
        calls.add("run")
        return tune.assign(**values)

    graph = Graph(Desk, name="Desk", inputs=["text"])
    graph.add_node("classify", dspy.Predict(tune.Classify))
    graph.add_node("judge", dspy.Predict(tune.Judge))
    graph.add_node("quote", dspy.Predict(tune.Extract))
    graph.add_node("search", search, writes=["alike"], cache=cache)
    graph.add_node("assign", assign, writes=["queue", "note"])
    first = ["classify", "judge", "quote", "search"]
    graph.add_edge(START, first)
    graph.add_edge(first, "assign")
    graph.add_edge("assign", END)
    return graph.compile()


def final_metric(
    example: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> float | dspy.Prediction:
    """The metric of the result alone: right or wrong, and what was expected."""
    right = pred.queue == example.queue
    if not pred_name:
        return float(right)
    expected = f"`queue` is {pred.queue!r}, expected {example.queue!r}."
    return dspy.Prediction(score=float(right), feedback="`queue` is right." if right else expected)


def metric_by_hand(
    example: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> float | dspy.Prediction:
    """The same with what each step should have given, as one writes it for `dspy.GEPA`."""
    field = FIELD_OF.get(pred_name or "")
    if field is None:
        return final_metric(example, pred, trace, pred_name, pred_trace)
    given, expected = pred_trace[0][2][field], example[field]
    feedback = f"`{field}` is right." if given == expected else f"`{field}` is {given!r}, expected {expected!r}."
    return dspy.Prediction(score=float(pred.queue == example.queue), feedback=feedback)


WEIGHTED = optimize.by_field(tune.metric.metrics, goal="queue", weights={"category": 0.3, "urgency": 0.3, "queue": 0.4})
"""The metric of the example with another score: each field counts."""


class Bench(NamedTuple):
    """What an optimizer works with."""

    reflection_lm: dspy.LM
    seed: int

    @property
    def train(self) -> list[dspy.Example]:
        return tune.examples("train")[:TRAIN]

    @property
    def dev(self) -> list[dspy.Example]:
        return tune.examples("dev")[:DEV]


def bootstrap(bench: Bench, program: CompiledGraph, rounds: int = 1, labeled: int = 0) -> Any:
    few = dspy.BootstrapFewShot(
        metric=final_metric,
        max_bootstrapped_demos=DEMOS,
        max_labeled_demos=labeled,
        max_rounds=rounds,
    )
    return few.compile(program, trainset=shuffled(bench))


def few_shot(bench: Bench, program: CompiledGraph, rollouts: int = 0, labeled: int = 0) -> Any:
    few = optimize.FewShot(tune.metric, max_demos=DEMOS, rollouts=rollouts, max_labeled_demos=labeled)
    return few.compile(program, trainset=shuffled(bench))


def mipro(bench: Bench, program: CompiledGraph, metric: Callable[..., Any]) -> Any:
    search = dspy.MIPROv2(
        metric=metric,
        prompt_model=bench.reflection_lm,
        auto=None,
        num_candidates=4,
        max_bootstrapped_demos=4,
        max_labeled_demos=0,
        seed=bench.seed,
        num_threads=4,
        verbose=False,
    )
    return search.compile(program, trainset=bench.train, valset=bench.dev, num_trials=TRIALS, minibatch=False)


def gepa(bench: Bench, program: CompiledGraph, kind: type[dspy.GEPA], metric: Any, **settings: Any) -> Any:
    optimizer = kind(
        metric=metric,
        reflection_lm=bench.reflection_lm,
        max_metric_calls=BUDGET,
        reflection_minibatch_size=MINIBATCH,
        num_threads=4,
        seed=bench.seed,
        **settings,
    )
    return optimizer.compile(program, trainset=bench.train, valset=bench.dev)


def shuffled(bench: Bench) -> list[dspy.Example]:
    """The tickets in an order that depends on the seed: the optimizers of demonstrations take the first that fit."""
    found = bench.train
    random.Random(bench.seed).shuffle(found)
    return found


OPTIMIZERS: dict[str, Callable[[Bench, CompiledGraph], Any]] = {
    "as written": lambda bench, program: program,
    "`dspy.BootstrapFewShot`": bootstrap,
    "`dspy.BootstrapFewShot`, 3 rounds": lambda bench, program: bootstrap(bench, program, 3),
    "`optimize.FewShot`": few_shot,
    "`optimize.FewShot`, rollouts": lambda bench, program: few_shot(bench, program, ROLLOUTS),
    "`dspy.LabeledFewShot`": lambda bench, program: dspy.LabeledFewShot(k=DEMOS).compile(
        program, trainset=shuffled(bench)
    ),
    "`dspy.BootstrapFewShot`, labels": lambda bench, program: bootstrap(bench, program, 1, DEMOS),
    "`optimize.FewShot`, labels": lambda bench, program: few_shot(bench, program, 0, DEMOS),
    "`optimize.FewShot`, labels, rollouts": lambda bench, program: few_shot(bench, program, ROLLOUTS, DEMOS),
    "`dspy.MIPROv2`, the result": lambda bench, program: mipro(bench, program, final_metric),
    "`dspy.MIPROv2`, `by_field(weights=)`": lambda bench, program: mipro(bench, program, WEIGHTED),
    "`dspy.GEPA`, the result": lambda bench, program: gepa(
        bench, program, dspy.GEPA, final_metric, component_selector="all"
    ),
    "`dspy.GEPA`, fields by hand": lambda bench, program: gepa(
        bench, program, dspy.GEPA, metric_by_hand, component_selector="all"
    ),
    "`optimize.GEPA`": lambda bench, program: gepa(bench, program, optimize.GEPA, tune.metric),
}


def measure(name: str, seed: int, delays: tuple[float, float], cached: bool) -> tuple[Measured, Any]:
    """One optimization, from empty caches, with its score on the held-out tickets; and the state of its program."""
    calls = Calls()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        stack.callback(setattr, dspy, "cache", dspy.cache)
        dspy.configure_cache(enable_disk_cache=False)
        lm, reflection_lm = SlowLM(calls, "lm", delays[0]), SlowLM(calls, "reflection", delays[0])
        stack.enter_context(dspy.context(lm=lm))
        stack.enter_context(tune.quietly())
        program = slow_desk(calls, delays[1], Cache(version="1", folder=folder) if cached else None)
        began = time.perf_counter()
        tuned = OPTIMIZERS[name](Bench(reflection_lm, seed), program)
        seconds = time.perf_counter() - began
        spent = dict(calls.counts)
        with dspy.context(lm=NearestLM()):
            test = tune.examples("test")[:TEST]
            score = dspy.Evaluate(devset=test, metric=final_metric, num_threads=2, display_progress=False)(tuned)
    kinds = ("lm", "reflection", "run", "tool")
    return Measured(float(score.score), *(spent.get(kind, 0) for kind in kinds), seconds), tuned.dump_state()


def table(names: list[str], seeds: int, delays: tuple[float, float]) -> Iterator[str]:
    """The lines of the table: medians over the seeds, and both ways of one seed in turn."""
    columns = (
        "optimizer",
        "held out",
        "LM calls",
        "reflections",
        "runs",
        "tool calls",
        "minutes",
        "with `cache=`",
    )
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for name in names:
        plain, cached = [], []
        for seed in range(seeds):
            plain.append(measure(name, seed, delays, cached=False))
            cached.append(measure(name, seed, delays, cached=True))
        scores = [each.score for each, _ in plain]
        middle, other = (
            Measured(*(median(column) for column in zip(*(each for each, _ in found), strict=True)))
            for found in (plain, cached)
        )
        pairs = zip(plain, cached, strict=True)
        # Not the LM calls: of equal requests of two threads, both or one may ask the LM.
        same = all((one.score, one.run, a) == (two.score, two.run, b) for (one, a), (two, b) in pairs)
        yield (
            f"| {name} | {middle.score:.0f} % ({min(scores):.0f}–{max(scores):.0f}) | {middle.lm:,.0f} "
            f"| {middle.reflection:.0f} | {middle.run:,.0f} | {middle.tool:,.0f} | {middle.seconds / 60:.2f} "
            f"| {other.tool:,.0f} tool calls, {other.seconds / 60:.2f} min{'' if same else ', OTHER RESULTS'} |"
        )


def main(arguments: list[str] | None = None) -> int:
    """Prints the table as Markdown, a line as soon as it is measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.tickets", description="Optimizers on real text.")
    parser.add_argument("--seeds", type=int, default=3, help="optimizations of each kind (3)")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds of an LM call (0.02)")
    parser.add_argument("--tool-delay", type=float, default=0.05, help="seconds of a call of the tool (0.05)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="only optimizers with one of these")
    given = parser.parse_args(arguments)
    names = [name for name in OPTIMIZERS if not given.only or any(word in name for word in given.only)]
    for line in table(names, given.seeds, (given.delay, given.tool_delay)):
        print(line, flush=True)
    print(f"\n{describe()}; {given.seeds} seeds, LM calls of {given.delay:g} s, tool calls of {given.tool_delay:g} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
