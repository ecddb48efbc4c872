"""Operations on a thread with a long history, for `bench.growth`. Each starts with a new `Thread` object."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Annotated, Any

from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Thread, reducers, view
from dspyer.views import View

TIMES = 5
VIEWS = ("new", "last", "own")


class Steps(BaseModel):
    n: int = 0
    log: Annotated[list[str], reducers.append] = []


class Talk(BaseModel):
    question: str = ""
    said: Annotated[list[str], reducers.append] = []


@cache
def long_run(steps: int) -> CompiledGraph:
    """A program with a thread that has one run of so many steps."""
    graph = Graph(Steps, inputs=[]).add_node("step", lambda n: {"n": n + 1, "log": "x"}, writes=["n", "log"])
    graph.add_edge(START, "step").add_conditional_edges("step", lambda n: END if n >= steps else "step", [END, "step"])
    program = graph.compile(store=":memory:", max_steps=10**9)
    program.thread("t").run({}).raise_error()
    return program


@cache
def talk(runs: int, what: str = "") -> CompiledGraph:
    """A program with a thread that has had so many runs, whose node reads through a view."""
    seen: dict[str, str | View] = {
        "": "question",
        "new": view("said").new(),
        "last": view("said").last(5),
        "own": view("said").own().last(5),
    }
    reads: dict[str, str | View] = {"seen": seen[what]}
    graph = Graph(Talk, inputs=["question"]).add_node("ask", lambda question: {"said": question}, writes=["said"])
    graph.add_node("answer", lambda seen: {"said": "yes"}, reads=reads, writes=["said"])
    program = graph.add_path(START, "ask", "answer", END).compile(store=":memory:")
    for number in range(runs):
        program.thread("t").run({"question": str(number)}).raise_error()
    return program


def reading(read: Callable[[Thread, int], Any]) -> Callable[[int], float]:
    """Reads something of a thread with one run of so many steps."""

    def measure(size: int) -> float:
        program = long_run(size)
        start = perf_counter()
        for _ in range(TIMES):
            read(program.thread("t"), size)
        return (perf_counter() - start) / TIMES

    return measure


def replaying(size: int) -> float:
    """Checks a run: seconds for each of its steps."""
    program = long_run(size)
    start = perf_counter()
    program.thread("t").replay()
    return (perf_counter() - start) / size


def after_runs(what: str, do: Callable[[Thread, int], Any]) -> Callable[[int], float]:
    """Does something with a thread that has had so many runs."""

    def measure(size: int) -> float:
        program = talk(size, what)
        do(program.thread("t"), size)
        start = perf_counter()
        for _ in range(TIMES):
            do(program.thread("t"), size)
        return (perf_counter() - start) / TIMES

    return measure


def again(thread: Thread, _: int) -> None:
    """Another run."""
    thread.run({"question": "?"}).raise_error()
