"""What executors cost and gain: `python -m bench.executors`. Ratios of times within one process, round by round.

Each ratio is that of two measurements made one after the other, in turn, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import dspy

from bench.machine import calibrate, describe, spread
from bench.report import markdown, put_section
from dspyer import END, START, CompiledGraph, Graph
from dspyer.executors.pickling import encode_sent

SECTION = "Executors"
ABOUT = """\
What an executor costs and gains: `python -m bench.executors`. A ratio compares two ways of doing
the same calls, measured in turn in one process; cells are medians of {rounds} rounds ± half the distance of their
quartiles, and the range of all rounds. More than 1 is faster. The spread is wide where the machine has other work to
do: two processes gain nothing while the second core is busy.

{machine}, load {load:.0f}. Noise: a fixed loop of pure Python took
{noise}."""
WORKERS = 2


# --- the work


def burn(seconds: float) -> int:
    """Uses the processor for so many seconds of its time."""
    end, turns = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        turns += sum(range(200)) > 0
    return turns


def cpu(n: int, seconds: float) -> dict[str, Any]:
    """A node that uses the processor."""
    burn(seconds)
    return {"m": n + 1}


def wait(n: int, seconds: float) -> dict[str, Any]:
    """A node that waits for a language model, as long as one takes to respond."""
    time.sleep(seconds)
    return {"m": n + 1}


def burn_in(pool: Executor, seconds: float) -> None:
    """The same in a pool: what the function of a node does that has one as a resource."""
    pool.submit(burn, seconds).result()


def program_of(work: Callable[..., Any], seconds: float) -> CompiledGraph:
    """One node that does some work."""

    def node(n: int) -> dict[str, Any]:
        found: dict[str, Any] = work(n, seconds)
        return found

    graph = Graph(name="Work", inputs=["n"]).add_node("work", node, writes=["m"])
    return graph.add_path(START, "work", END).compile()


def mixed(cpu_seconds: float, lm_seconds: float, heavy: Callable[[float], object] = burn) -> CompiledGraph:
    """A node that waits for a language model, and one that uses the processor."""

    def ask(n: int) -> dict[str, Any]:
        return wait(n, lm_seconds)

    def parse(m: int) -> dict[str, Any]:
        heavy(cpu_seconds)
        return {"k": m}

    graph = Graph(name="Mixed", inputs=["n"]).add_node("ask", ask, writes=["m"]).add_node("parse", parse, writes=["k"])
    return graph.add_path(START, "ask", "parse", END).compile()


def right(example: Any, prediction: Any, trace: Any = None) -> float:
    """The metric: every call must give its own result."""
    return float(prediction.m == example.n + 1)


def evaluate(program: CompiledGraph, calls: int, threads: int) -> float:
    """The seconds of an evaluation, whose score must be 100."""
    rows = [dspy.Example(n=n).with_inputs("n") for n in range(calls)]
    measured = dspy.Evaluate(devset=rows, metric=right, num_threads=threads, display_progress=False)
    start = time.perf_counter()
    score = measured(program).score
    taken = time.perf_counter() - start
    if score != 100:
        raise AssertionError(f"the score is {score}, not 100")
    return taken


def bare(pool: Executor, calls: int, seconds: float) -> float:
    """The seconds of the same work in a pool without dspyer."""
    start = time.perf_counter()
    for future in [pool.submit(burn, seconds) for _ in range(calls)]:
        future.result()
    return time.perf_counter() - start


def caller_seconds(program: CompiledGraph, calls: int) -> float:
    """The processor time that a call takes in this process, all its threads included."""
    program(n=0)
    start = time.process_time()
    for n in range(calls):
        if program(n=n).m != n + 1:
            raise AssertionError("a wrong result")
    return (time.process_time() - start) / calls


def predictors() -> CompiledGraph:
    """A tuned program, as optimizers send it."""
    graph = Graph(name="Tuned")
    for before, after in (("question", "topic"), ("topic", "draft"), ("draft", "answer")):
        graph.add_node(f"write_{after}", dspy.ChainOfThought(f"{before} -> {after}"))
    program = graph.add_path(START, "write_topic", "write_draft", "write_answer", END).compile()
    demo = dspy.Example(question="Where?", topic="places", draft="North.", answer="In the north.", reasoning="A map.")
    for _, predictor in program.named_predictors():
        predictor.demos = [demo] * 4
    return program


def pickled(program: CompiledGraph, calls: int) -> tuple[float, float]:
    """The bytes of a program, without the settings that are sent with it, and the seconds that encoding it takes."""
    start = time.perf_counter()
    for _ in range(calls):
        data = encode_sent(program)
    return float(len(data)), (time.perf_counter() - start) / calls


# --- the pools


@dataclass
class Pools:
    """The executors that are compared, with workers that have imported everything."""

    processes: Executor
    loky: Executor
    dask: Executor
    wide: Executor


@contextmanager
def started(wide: int) -> Iterator[Pools]:
    """The executors, of which `wide` has so many threads in each of its processes."""
    loky: Any = import_module("loky")
    dask: Any = import_module("distributed")
    with ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        processes = stack.enter_context(ProcessPoolExecutor(WORKERS, mp_context=spawn))
        other = loky.ProcessPoolExecutor(WORKERS)
        stack.callback(other.shutdown, wait=True, kill_workers=True)
        found = []
        for threads in (1, wide):
            options = {"n_workers": WORKERS, "threads_per_worker": threads, "dashboard_address": ":0"}
            cluster = stack.enter_context(dask.LocalCluster(processes=True, silence_logs=50, **options))
            found.append(stack.enter_context(dask.Client(cluster)).get_executor(retries=3))
        pools = Pools(processes, other, *found)
        program = program_of(wait, 0.3)
        for pool in (processes, other, *found):  # each worker makes one call
            far = program.with_executor(pool)
            asyncio.run(_several(far, WORKERS * 2))
        yield pools


async def _several(program: CompiledGraph, calls: int) -> None:
    await asyncio.gather(*[program.acall(n=n) for n in range(calls)])


# --- rows


@dataclass
class Row:
    """A line of the table: its values in the rounds, and how they are shown."""

    title: str
    unit: str = "×"
    digits: int = 2
    values: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        """The line: median with spread, and the range."""
        low, high, d = min(self.values), max(self.values), self.digits
        share = f" ± {spread(self.values):.0%}"
        return [
            self.title,
            f"{median(self.values):,.{d}f} {self.unit}{share}",
            f"{low:,.{d}f}–{high:,.{d}f}",
        ]


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int = 5
    cpu_calls: int = 60
    lm_calls: int = 256
    cost_calls: int = 50
    cpu_seconds: float = 0.02
    lm_seconds: float = 0.05


def measure(sizes: Sizes, pools: Pools, wide: int) -> tuple[list[Row], list[float]]:
    """All rows, and the noise of the machine meanwhile."""
    rows: dict[str, Row] = {}
    noise: list[float] = []

    def add(title: str, value: float, unit: str = "×", digits: int = 2) -> None:
        rows.setdefault(title, Row(title, unit, digits)).values.append(value)

    heavy, waiting, tiny = program_of(cpu, sizes.cpu_seconds), program_of(wait, sizes.lm_seconds), program_of(cpu, 0)
    both = mixed(sizes.cpu_seconds, sizes.lm_seconds)
    aside = mixed(sizes.cpu_seconds, sizes.lm_seconds, lambda seconds: burn_in(pools.processes, seconds))
    kinds = {"process pool": pools.processes, "loky": pools.loky, "Dask": pools.dask}
    for number in range(sizes.rounds):
        print(f"... round {number + 1} of {sizes.rounds}", file=sys.stderr)
        noise.append(calibrate())
        threads = evaluate(heavy, sizes.cpu_calls, 8)
        pool = evaluate(heavy.with_executor(pools.processes), sizes.cpu_calls, 8)
        alone = bare(pools.processes, sizes.cpu_calls, sizes.cpu_seconds)
        add("CPU node of 20 ms: 2 processes / 8 threads", threads / pool)
        add("the same, a bare pool without dspyer / 8 threads", threads / alone)
        add("the same, 2 processes / the bare pool", alone / pool)
        threads = evaluate(waiting, sizes.lm_calls, 128)
        share = max(sizes.lm_calls // 8, 1)  # of which each call takes as long
        pool = evaluate(waiting.with_executor(pools.processes), share, 128) * sizes.lm_calls / share
        far = evaluate(waiting.with_executor(pools.wide), sizes.lm_calls, 128)
        add("LM call of 50 ms: 128 threads / 2 processes with one call each", pool / threads)
        add(f"the same, Dask with 2 × {wide} threads / 2 processes with one call each", pool / far)
        threads = evaluate(both, sizes.cpu_calls, 32)
        resource = evaluate(aside, sizes.cpu_calls, 32)
        whole = evaluate(both.with_executor(pools.processes), sizes.cpu_calls, 32)
        add("both: only the CPU part in 2 processes / 32 threads", threads / resource)
        add("both: the whole program in 2 processes / 32 threads", threads / whole)
        add("a call, CPU time of the caller: no executor", caller_seconds(tiny, sizes.cost_calls) * 1e3, "ms")
        for name, executor in kinds.items():
            cost = caller_seconds(tiny.with_executor(executor), sizes.cost_calls) * 1e3
            add(f"a call, CPU time of the caller: {name}", cost, "ms")
        size, seconds = pickled(predictors(), sizes.cost_calls)
        add("a program of three predictors with 4 demonstrations each, as bytes", size / 1024, "KiB", 1)
        add("the same, encoded", seconds * 1e3, "ms")
    return list(rows.values()), noise


def as_section(rows: list[Row], noise: list[float], rounds: int) -> str:
    """The section of the results."""
    told = f"{median(noise) * 1e3:.1f} ms ± {spread(noise):.0%} (slowest {max(noise) * 1e3:.1f} ms)"
    about = ABOUT.format(rounds=rounds, machine=describe(), load=os.getloadavg()[0], noise=told)
    table = markdown([["work", "median", "all rounds"], *[row.cells() for row in rows]])
    return f"## {SECTION}\n\n{about}\n\n{table}\n"


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.executors", description="What executors cost and gain.")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each row (5)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the section of bench/results.md")
    given = parser.parse_args(arguments)
    logging.getLogger("dspy").setLevel(logging.ERROR)
    sizes, wide = Sizes(max(1, given.rounds)), 32
    with started(wide) as pools:
        rows, noise = measure(sizes, pools, wide)
    section = as_section(rows, noise, sizes.rounds)
    print(section)
    if given.write:
        given.write.write_text(put_section(given.write.read_text(), section))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
