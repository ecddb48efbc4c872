"""The workloads of `bench.overhead` in dspyer: typed states, nodes that do almost nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from pydantic import BaseModel, create_model

import dspyer
from bench.peers.dspyer_bench import pair_graph, run_program
from bench.peers.handwritten_bench import Pair
from bench.peers.measure import Round, Watch, allocated, expect, timed
from dspyer import END, START, CompiledGraph, Graph, reducers
from dspyer.stores import open_store

PACKAGE = str(Path(dspyer.__file__).parent)


class Count(BaseModel):
    """A counter, and where it ends."""

    goal: int
    turn: int = 0


class Agent(Count):
    """The state of a small program."""

    note: str = ""
    score: float = 0.0


def looping(watch: Watch, turns: int, fields: int, mode: str) -> CompiledGraph:
    """A loop as programs have it: a schema, a node that reads and writes one field or three, a router."""

    def one(turn: int) -> dict[str, Any]:
        if not turn:
            watch.start()
        return {"turn": turn + 1}

    def three(turn: int, note: str, score: float) -> dict[str, Any]:
        if not turn:
            watch.start()
        return {"turn": turn + 1, "note": f"turn {turn}", "score": score + len(note)}

    async def aone(turn: int) -> dict[str, Any]:
        return one(turn)

    async def athree(turn: int, note: str, score: float) -> dict[str, Any]:
        return three(turn, note, score)

    node: Callable[..., Any] = ((aone, athree) if mode == "async" else (one, three))[fields > 1]
    writes = ["turn", "note", "score"][:fields]
    graph = Graph(Agent if fields > 1 else Count, inputs=["goal"], outputs=["turn"])
    graph.add_node("work", node, writes=writes).add_edge(START, "work")
    graph.add_conditional_edges("work", lambda turn, goal: "on" if turn < goal else "off", {"on": "work", "off": END})
    return graph.compile(max_steps=turns + 1)


def loop(turns: int, fields: int, mode: str = "sync") -> Round:
    """A step of a loop. `mixed`: sync nodes in an async run."""
    watch = Watch()
    program = looping(watch, turns, fields, mode)

    def measure() -> float:
        result = run_program(program, mode, {"goal": turns})
        value = watch.per(turns)
        expect(result["turn"], turns)
        return value

    return measure


def calls_of(work: Callable[[], object]) -> int:
    """How many Python functions of dspyer are called; a generator that goes on counts as a call."""
    found = 0

    def see(frame: FrameType, event: str, _: object) -> None:
        nonlocal found
        found += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def loop_calls(turns: int) -> Round:
    """Calls of dspyer per step: those of a run of so many steps more, so that what a run takes itself is not in it."""
    programs = [(size, looping(Watch(), size, 1, "sync")) for size in (turns, 2 * turns)]

    def measure() -> float:
        few, many = (calls_of(lambda: expect(program(goal=size)["turn"], size)) for size, program in programs)  # noqa: B023
        return (many - few) / turns

    return measure


class Number(BaseModel):
    """One field."""

    n: int = 0


def one_node() -> CompiledGraph:
    """A graph of one trivial node."""
    graph = Graph(Number, inputs=["n"], outputs=["n"]).add_node("step", lambda n: {"n": n + 1}, writes=["n"])
    return graph.add_path(START, "step", END).compile()


def call(calls: int) -> Round:
    """A whole call of one trivial node."""
    program = one_node()

    def work() -> Any:
        for _ in range(calls):
            result = program(n=0)
        return result

    return lambda: timed(work, calls, lambda result: expect(result["n"], 1))


def call_calls() -> Round:
    """How many functions of dspyer that calls."""
    program = one_node()
    return lambda: float(calls_of(lambda: program(n=0)))


def branch(i: int, name: str, mode: str) -> Callable[..., Any]:
    """A node that writes a field of its own."""

    def node(n: int) -> dict[str, int]:
        return {name: n + i}

    async def anode(n: int) -> dict[str, int]:
        return {name: n + i}

    return anode if mode == "async" else node


def fork(branches: int, mode: str, calls: int) -> Callable[[], Any]:
    """Calls of a program that is one fork and its join."""
    names = [f"b{i}" for i in range(branches)]
    fields: dict[str, Any] = dict.fromkeys(("n", *names), (int, 0))
    graph = Graph(create_model("Forked", **fields), inputs=["n"])
    for i, name in enumerate(names):
        graph.add_node(name, branch(i, name, mode), reads=["n"], writes=[name])
    program = graph.add_edge(START, names).add_edge(names, END).compile()

    def work() -> None:
        for _ in range(calls):
            expect(program(n=1)[names[-1]], branches)

    async def awork() -> None:
        for _ in range(calls):
            expect((await program.acall(n=1))[names[-1]], branches)

    return work if mode == "sync" else lambda: asyncio.run(awork())


class Talk(BaseModel):
    """A conversation."""

    question: str = ""
    said: Annotated[list[str], reducers.extend] = []


def turning(stack: ExitStack, store: str) -> Callable[[str, int], None]:
    """Makes a turn of the named thread, in a new store."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    opened = stack.enter_context(open_store(store if store == ":memory:" else folder / store))
    graph = Graph(Talk, inputs=["question"])
    graph.add_node("ask", lambda question: {"said": [question]}, writes=["said"])
    graph.add_node("answer", lambda said: {"said": [f"that is {len(said)}"]}, writes=["said"])
    program = graph.add_path(START, "ask", "answer", END).compile(store=opened)

    def turn(thread: str, number: int) -> None:
        run = program.thread(thread).run({"question": str(number)})
        run.raise_error()
        expect(run.state["said"][-2], str(number))

    return turn


def kept(steps: int) -> Round:
    """What the object that `run()` returns keeps, for each commit."""
    program = looping(Watch(), steps, 1, "sync")
    return lambda: allocated(lambda: program.run({"goal": steps})) / steps


def copied(calls: int, by_hand: bool) -> Round:
    """`deepcopy` of two predictors."""
    program = Pair() if by_hand else pair_graph()

    def work() -> None:
        for _ in range(calls):
            program.deepcopy()

    return lambda: timed(work, calls)


IMPORTED = """
import time, dspy
began = time.process_time()
from dspyer import END, START, Graph
print(time.process_time() - began)
"""


def imported() -> float:
    """Seconds of the import in a new process that has imported DSPy; the first one compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", IMPORTED]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
