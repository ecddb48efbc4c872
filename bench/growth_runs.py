"""What a run costs with more steps, more branches, more keys: measurements for the rows of `bench.growth`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any
from uuid import uuid4

import cloudpickle
import dspy
from pydantic import BaseModel

from bench.peers.measure import Watch, filler
from dspyer import END, START, Archive, CompiledGraph, Graph, Run, Send, agents, reducers, view
from dspyer.stores.memory import Memory
from dspyer.testing import ScriptedLM


class Fan(BaseModel):
    """The state of fan-outs."""

    width: int
    done: Annotated[int, reducers.increment] = 0
    table: Annotated[dict[str, int], reducers.update] = {}


def steps(number: int, keys: int = 0) -> float:
    """A step of a loop of that many steps, with keys that no node reads. Reading the inputs is not part of it."""
    watch = Watch()

    def step(n: int) -> dict[str, int]:
        if not n:
            watch.start()
        return {"n": n + 1}

    inputs = {**filler(keys), "n": 0}
    graph = Graph(inputs=list(inputs), outputs=["n"]).add_node(step).add_edge(START, "step")
    graph.add_conditional_edges("step", lambda n: "on" if n < number else "off", {"on": "step", "off": END})
    graph.compile(max_steps=number + 1)(**inputs)
    return watch.per(number)


def hidden_steps(number: int) -> float:
    """A step of a loop of that many, each of which writes another text that `redact` hides."""
    watch = Watch()

    def step(n: int) -> dict[str, Any]:
        if not n:
            watch.start()
        return {"n": n + 1, "token": f"{7_919 * n % 100_003:06}-token"}

    graph = Graph(inputs=["n"], outputs=["n"]).add_node(step, writes=["n", "token"]).add_edge(START, "step")
    graph.add_conditional_edges("step", lambda n: "on" if n < number else "off", {"on": "step", "off": END})
    graph.compile(max_steps=number + 1, redact=["token"])(n=0)
    return watch.per(number)


def step_beside_keys(keys: int) -> float:
    """A step in a state of that many keys."""
    return steps(2_000, keys)


def _sent(graph: Graph, targets: Callable[[int], list[Send]]) -> CompiledGraph:
    graph.add_node("last", lambda done: {}, writes=[])
    graph.add_conditional_edges(START, targets, ["work"])
    return graph.add_edge("last", END).compile(max_steps=100)


def _timed(program: CompiledGraph, width: int, mode: str = "sync") -> float:
    program(width=2)
    watch = Watch()
    watch.start()
    result: Any = program(width=width) if mode == "sync" else asyncio.run(program.acall(width=width))
    value = watch.per(width)
    assert result.done >= width, result
    return value


def sent(mode: str) -> Callable[[int], float]:
    """A branch of a `Send` to that many, in a sync or async run; each writes its own key."""

    def work(i: int) -> dict[str, Any]:
        return {"done": 1, "table": {str(i): i}}

    def measure(width: int) -> float:
        graph = Graph(Fan, inputs=["width"]).add_node("work", work, writes=["done", "table"]).add_edge("work", "last")
        return _timed(_sent(graph, lambda width: [Send("work", {"i": i}) for i in range(width)]), width, mode)

    return measure


def sent_on(width: int) -> float:
    """A branch of a `Send` to that many, each of which sends two more: joins of branches that share commits."""
    graph = Graph(Fan, inputs=["width"]).add_node("work", lambda i: {}, writes=[])
    graph.add_node("again", lambda i: {"done": 1}, writes=["done"]).add_edge("again", "last")
    graph.add_conditional_edges("work", lambda width: [Send("again", {"i": i}) for i in range(2)], ["again"])
    return _timed(_sent(graph, lambda width: [Send("work", {"i": i}) for i in range(width)]), width)


def laps(width: int) -> float:
    """A branch of that many, each of which runs a loop three times."""
    graph = Graph(Fan, inputs=["width"]).add_node("work", lambda width: {"done": 1}, writes=["done"])

    def go_on(ctx: Any) -> list[Send | str]:
        return [Send("work", {"width": 0})] if ctx.visit < 3 else ["last"]

    graph.add_conditional_edges("work", go_on, ["work", "last"])
    return _timed(_sent(graph, lambda width: [Send("work", {"width": i}) for i in range(width)]), width)


def mapped(width: int) -> float:
    """An item of a map over that many."""
    graph = Graph(inputs=["items"], outputs=["found"]).add_map(
        "map", lambda n: {"n": n + 1}, over="items", item="n", into="found"
    )
    program = graph.add_path(START, "map", END).compile()
    start = perf_counter()
    result = program(items=list(range(width)))
    elapsed = perf_counter() - start
    assert len(result.found) == width
    return elapsed / width


def _diamonds(number: int) -> Graph:
    """That many forks and joins, one after the other."""
    graph = Graph(Fan, inputs=["width"])
    before = START
    for i in range(number):
        for side in ("left", "right", "join"):
            graph.add_node(f"{side}{i}", lambda: {"done": 1}, writes=["done"])
        graph.add_edge(before, [f"left{i}", f"right{i}"])
        graph.add_edge([f"left{i}", f"right{i}"], f"join{i}")
        before = f"join{i}"
    return graph.add_edge(before, END)


def diamonds_compiled(number: int) -> float:
    """A fork and its join in a graph of that many, compiled."""
    graph = _diamonds(number)
    start = perf_counter()
    graph.compile()
    return (perf_counter() - start) / number


def diamonds_run(number: int) -> float:
    """A fork and its join in the first run of a graph of that many."""
    program = _diamonds(number).compile(max_steps=10 * number)
    start = perf_counter()
    program(width=1)
    return (perf_counter() - start) / number


class Answerer(dspy.Module):
    """A module with a history of its own, as each module has one."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        """Ask the predictor."""
        return self.answer(question=question)


def _stream(program: CompiledGraph) -> None:
    with program.stream({"question": "q"}) as events:
        list(events)


AFTER_CALLS: dict[str, Callable[[CompiledGraph], object]] = {
    "a call": lambda program: program(question="q"),
    "a run": lambda program: program.run({"question": "q"}),
    "a run on a new thread": lambda program: program.thread(uuid4().hex).run({"question": "q"}),
    "a stream": _stream,
    "a deepcopy": lambda program: program.deepcopy(),
    "a pickle": cloudpickle.dumps,
    "set_lm": lambda program: program.set_lm(None),
}


def after_calls(operate: Callable[[CompiledGraph], object], times: int = 30) -> Callable[[int], float]:
    """An operation on a program that has been called so often: DSPy keeps an entry of each call in each module."""

    def measure(calls: int) -> float:
        graph = Graph().add_node("ask", Answerer()).add_path(START, "ask", END)
        program = graph.compile(store=Memory(max_threads=2))
        with ScriptedLM(lambda prompt: {"answer": "a"}):
            operate(program)
            program(question="q")
            for module in (program, program.ask, program.ask.answer):
                entry = module.history[-1]
                module.history += [{**entry, "messages": [*entry["messages"]]} for _ in range(calls)]
            watch = Watch()
            watch.start()
            for _ in range(times):
                operate(program)
            return watch.per(times)

    return measure


def turns_read(number: int) -> float:
    """A turn of the trajectory of a run of that many, which is read for the first time."""
    answers = [{"name": "add", "args": {"a": 1, "b": i}} for i in range(number - 1)]
    calls = [*answers, {"name": "submit", "args": {"answer": "done"}}]
    loop = agents.tool_loop("question -> answer", [add], max_turns=number, context=view("messages").turns(2))
    with ScriptedLM([{"next_thought": "so", "tool_calls": {"tool_calls": [call]}} for call in calls]):
        prediction: Any = loop.compile(max_steps=10**9)(question="Why?")
    run = Run.of(prediction)
    gc.collect()
    start = perf_counter()
    assert len(run.trajectory) == number
    return (perf_counter() - start) / number


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def items_read(stored: bool) -> Callable[[int], float]:
    """An item of a map of that many: of a run, or of a file that a new reader opens."""

    def measure(number: int) -> float:
        graph = Graph(inputs=["texts"]).add_map(
            "shout", lambda text: text.upper(), over="texts", item="text", into="loud"
        )
        with TemporaryDirectory() as folder:
            path = Path(folder) / "runs.db"
            program = graph.add_path(START, "shout", END).compile(store=path if stored else None)
            inputs = {"texts": [f"text {i}" for i in range(number)]}
            source: Any = program.thread("t").run(inputs) if stored else program.run(inputs)
            with Archive(path) if stored else nullcontext() as archive:
                source = source if archive is None else archive.thread("t")
                gc.collect()
                start = perf_counter()
                assert source.items("shout").done == number
                return (perf_counter() - start) / number

    return measure
