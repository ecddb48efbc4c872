"""The workloads of this repository's graphs."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import dspy
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from pydantic import BaseModel

from bench.peers.handwritten_bench import CHAIN, FOUR, called, evaluated
from bench.peers.measure import Round, Watch, Work, at_once, expect, filler, timed
from dspyer import END, START, Cache, Graph, Send, reducers

PACKAGES = ["dspyer", "dspy", "pydantic", "pyrsistent", "anyio"]


def loop(keys: int, steps: int, history: bool = False, retry: int | None = None, tracing: str | None = None) -> Round:
    """One node in a loop. With history it is a run, whose commits and past states can be read.

    `tracing` is None for a program that does not trace, `"recorded"`, or `"left out"` by a sampler.
    """
    watch = Watch()

    def step(n: int) -> dict[str, int]:
        if n == 0:
            watch.start()
        return {"n": n + 1}

    inputs = {**filler(keys), "n": 0}
    graph = Graph(inputs=list(inputs), outputs=["n"]).add_node(step, retry=retry)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda n: "again" if n < steps else "done", {"again": "step", "done": END})
    program = graph.compile(max_steps=steps + 1)

    def measure() -> float:
        if history:
            run = program.run(inputs)
            value = watch.per(steps)
            expect((run.state["n"], run.at(steps // 2)["n"]), (steps, steps // 2))
            return value
        with nullcontext() if tracing is None else traced(tracing):
            result = program(**inputs)
        value = watch.per(steps)
        expect(result["n"], steps)
        return value

    return measure


class Dropped(SpanExporter):
    """An exporter that drops the spans: what it costs to send them is not dspyer's."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@contextmanager
def traced(how: str) -> Iterator[None]:
    """A block in which the program has a tracer provider."""
    provider = TracerProvider(sampler=ALWAYS_ON if how == "recorded" else ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(Dropped()))
    trace._TRACER_PROVIDER = provider
    try:
        yield
    finally:
        trace._TRACER_PROVIDER = None


def step_of(n: int) -> dict[str, int]:
    """A node of module level: its key is the same in each program."""
    return {"n": n + 1}


def cached(steps: int, hits: bool) -> Round:
    """One node in a loop whose results are kept on disk; each step reads another number."""

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            graph = Graph(inputs=["n"]).add_node("step", step_of, writes=["n"], cache=Cache(folder=folder))
            graph.add_edge(START, "step")
            ways = {"again": "step", "done": END}
            graph.add_conditional_edges("step", lambda n: "again" if n < steps else "done", ways)
            program = graph.compile(max_steps=steps + 1)
            program.run({"n": steps - 1})  # opens the folder
            if hits:
                program.run({"n": 0})
            watch = Watch()
            watch.start()
            run = program.run({"n": 0})
            value = watch.per(steps)
            expect(sum(commit.cached for commit in run.commits), steps if hits else 1)
        return value

    return measure


def call(keys: int) -> Round:
    """One call of a graph of one node."""
    inputs = {**filler(keys), "n": 0}
    graph = Graph(inputs=list(inputs), outputs=["n"]).add_node("step", lambda n: {"n": n + 1}, writes=["n"])
    program = graph.add_path(START, "step", END).compile()
    calls = max(1, 100 // keys)

    def work() -> Any:
        for _ in range(calls):
            result = program(**inputs)
        return result

    return lambda: timed(work, calls, lambda result: expect(result["n"], 1))


def crowd(runs: int, mode: str = "sync") -> Round:
    """Runs of one program at once: threads, or tasks of one event loop. Each goes through a router."""

    def plan(n: int) -> dict[str, int]:
        return {"half": n // 2}

    async def aplan(n: int) -> dict[str, int]:
        return {"half": n // 2}

    graph = Graph(inputs=["n"], outputs=["found"])
    graph.add_node("plan", plan if mode == "sync" else aplan, writes=["half"])
    graph.add_node("even", lambda half: {"found": 2 * half}, writes=["found"])
    graph.add_node("odd", lambda half: {"found": 2 * half + 1}, writes=["found"])
    graph.add_edge(START, "plan").add_edge(["even", "odd"], END)
    graph.add_conditional_edges("plan", lambda n: "odd" if n % 2 else "even", ["even", "odd"])
    program = graph.compile()

    def one(n: int) -> Any:
        return program(n=n)["found"]

    async def aone(n: int) -> Any:
        return (await program.acall(n=n))["found"]

    return lambda: timed(at_once(one, aone, runs, mode), runs, lambda found: expect(found, list(range(runs))))


def square(i: int) -> dict[str, list[int]]:
    """One branch."""
    return {"squares": [i * i]}


async def asquare(i: int) -> dict[str, list[int]]:
    """One branch of the asynchronous fan-out."""
    return {"squares": [i * i]}


def total(squares: list[int]) -> dict[str, int]:
    """The join."""
    return {"total": sum(squares)}


def run_program(program: Any, mode: str, inputs: dict[str, Any]) -> Any:
    """One call, sync or async."""
    return program(**inputs) if mode == "sync" else asyncio.run(program.acall(**inputs))


class Fan(BaseModel):
    """The state of a fan-out."""

    squares: Annotated[list[int], reducers.extend] = []
    total: int = 0


def fan_out(branches: int, mode: str = "sync") -> Round:
    """`Send` to one node, and a join that folds what the branches appended. `mixed`: sync nodes in an async run."""
    graph = Graph(Fan, outputs=["total"])
    graph.add_node("square", asquare if mode == "async" else square, writes=["squares"])
    graph.add_node(total, writes=["total"])
    graph.add_conditional_edges(START, lambda: [Send("square", {"i": i}) for i in range(branches)], ["square"])
    graph.add_path("square", "total", END)
    program = graph.compile()
    wanted = sum(i * i for i in range(branches))
    return lambda: timed(
        lambda: run_program(program, mode, {}), branches, lambda result: expect(result["total"], wanted)
    )


def map_items(branches: int, mode: str = "sync") -> Round:
    """`add_map` over a list."""

    def worker(i: int) -> dict[str, int]:
        return {"square": i * i}

    async def aworker(i: int) -> dict[str, int]:
        return {"square": i * i}

    graph = Graph(outputs=["total"])
    graph.add_map("square", worker if mode == "sync" else aworker, over="items", item="i", into="squares")
    graph.add_node(total, writes=["total"]).add_path(START, "square", "total", END)
    program = graph.compile()
    inputs = {"items": list(range(branches))}
    wanted = sum(i * i for i in range(branches))
    return lambda: timed(
        lambda: run_program(program, mode, inputs), branches, lambda result: expect(result["total"], wanted)
    )


def fork(keys: int, steps: int, mode: str = "sync") -> Round:
    """A loop of a fork in two branches and their join; one round is three nodes and one join."""
    watch = Watch()

    def start(n: int) -> dict[str, int]:
        if n == 0:
            watch.start()
        return {"n": n + 1}

    def left(n: int) -> dict[str, int]:
        return {"left": n}

    def right(n: int) -> dict[str, int]:
        return {"right": -n}

    async def aleft(n: int) -> dict[str, int]:
        return {"left": n}

    async def aright(n: int) -> dict[str, int]:
        return {"right": -n}

    def join(left: int, right: int) -> None:
        expect(left + right, 0)

    inputs = {**filler(keys), "n": 0}
    graph = Graph(inputs=list(inputs), outputs=["n"]).add_node(start, writes=["n"]).add_node(join, writes=[])
    graph.add_node("left", left if mode == "sync" else aleft, writes=["left"])
    graph.add_node("right", right if mode == "sync" else aright, writes=["right"])
    graph.add_edge(START, "start").add_edge("start", ["left", "right"]).add_edge(["left", "right"], "join")
    graph.add_conditional_edges("join", lambda n: "again" if n < steps else "done", {"again": "start", "done": END})
    program = graph.compile(max_steps=4 * steps + 4)

    def measure() -> float:
        result = run_program(program, mode, inputs)
        value = watch.per(steps)
        expect(result["n"], steps)
        return value

    return measure


class Chain(BaseModel):
    """The state of a chain."""

    n: int = 0


def compile_chain(nodes: int) -> Round:
    """Building and compiling a chain; seconds for the whole."""

    def step(n: int) -> dict[str, int]:
        return {"n": n + 1}

    def work() -> Any:
        graph = Graph(Chain, inputs=["n"], outputs=["n"])
        names = [f"step{i}" for i in range(nodes)]
        for name in names:
            graph.add_node(name, step, writes=["n"])
        return graph.add_path(START, *names, END).compile(max_steps=nodes + 1)

    return lambda: timed(work, 1, lambda program: expect(program(n=0)["n"], nodes))


def pair_graph() -> Any:
    """`handwritten_bench.Pair` as a graph."""
    graph = Graph(outputs=["answer"])
    graph.add_node("ask", dspy.Predict("question -> query")).add_node("answer", dspy.Predict("query -> answer"))
    return graph.add_path(START, "ask", "answer", END).compile()


def four_graph() -> Any:
    """`handwritten_bench.Four` as a graph."""
    graph = Graph(outputs=["answer"])
    for name, signature in FOUR.items():
        graph.add_node(name, dspy.Predict(signature))
    return graph.add_path(START, *FOUR, END).compile()


def chain_graph() -> Any:
    """`handwritten_bench.Chain` as a graph."""
    graph = Graph(outputs=["answer"])
    for name, signature in zip(("ask", "find", "answer"), CHAIN, strict=True):
        graph.add_node(name, dspy.Predict(signature))
    return graph.add_path(START, "ask", "find", "answer", END).compile()


def loop_graph() -> Any:
    """`handwritten_bench.Loop` as a graph."""
    graph = Graph(outputs=["answer"]).add_node("ask", dspy.Predict("question -> answer")).add_edge(START, "ask")
    graph.add_conditional_edges("ask", lambda ctx: "again" if ctx.visit < 10 else "done", {"again": "ask", "done": END})
    return graph.compile()


def fork_graph() -> Any:
    """`handwritten_bench.Fork` as a graph."""
    graph = Graph(outputs=["verdict"])
    graph.add_node("answer", dspy.Predict("question -> answer"))
    graph.add_node("audit", dspy.Predict("question -> risk"))
    graph.add_node("judge", lambda answer, risk: {"verdict": f"{answer}: {risk}"}, writes=["verdict"])
    graph.add_edge(START, ["answer", "audit"]).add_edge(["answer", "audit"], "judge").add_edge("judge", END)
    return graph.compile()


WORKS: dict[str, Work] = {
    "loop": loop,
    "cached": cached,
    "call": call,
    "crowd": crowd,
    "fan_out": fan_out,
    "map": map_items,
    "fork": fork,
    "compile_chain": compile_chain,
    "modules_pair": lambda calls: called(pair_graph(), calls, "answer", "an answer"),
    "modules_pair_run": lambda calls: called(pair_graph(), calls, "answer", "an answer", "run"),
    "modules_four": lambda calls: called(four_graph(), calls, "answer", "an answer"),
    "modules_evaluate": lambda examples: evaluated(four_graph(), examples),
    "modules_chain_async": lambda calls: called(chain_graph(), calls, "answer", "an answer", "async"),
    "modules_loop": lambda calls: called(loop_graph(), calls, "answer", "an answer"),
    "modules_fork": lambda calls: called(fork_graph(), calls, "verdict", "an answer: low"),
    "modules_fork_async": lambda calls: called(fork_graph(), calls, "verdict", "an answer: low", "async"),
}
