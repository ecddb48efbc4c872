"""What a visit of a node costs after many visits, by how it reads what they have written."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Annotated, Any

from pydantic import BaseModel

from dspyer import END, START, Context, Graph, Messages, fill, reducers, view

VISITS = 40  # that are timed, after those that are there already


class Board(BaseModel):
    log: Annotated[list[str], reducers.append] = []
    table: Annotated[dict[str, int], reducers.update] = {}
    total: Annotated[int, reducers.increment] = 0
    messages: Messages = []
    note: str | None = None


READS: dict[str, Any] = {
    "what is new of a list": view("log").new(),
    "the last entries of a list": view("log").last(3),
    "the last own entries": view("log").own().last(3),
    "the last entries of others": view("log").others().last(3),
    "the last entries that fit": view("log").by("write").fit(20),
    "the last keys of a mapping": view("table").last(3),
    "the sum of what others brought": view("total").others(),
    "the last messages": view("messages").last(3),
    "a count of calls": "run.write.calls",
    "the reason of a router": "run.routing_reason",
    "a template": fill("{run.count} {note}"),
}


def visiting(read: Any) -> Callable[[int], float]:
    """A loop of a writer and a reader."""

    def measure(size: int) -> float:
        clock: dict[int, float] = {}

        def write(ctx: Context) -> dict[str, Any]:
            visit = ctx.visit
            clock[visit] = perf_counter()
            said = {"role": "user", "content": f"message {visit}"}
            return {"log": f"entry {visit}", "table": {f"key {visit}": visit}, "total": 1, "messages": said}

        def look(seen: Any) -> dict[str, Any]:
            return {"log": "seen"}

        return timed(write, look, read, size, clock)

    return measure


def asking_what_changed(size: int) -> float:
    """A loop of a writer and a reader that asks for what has changed."""
    clock: dict[int, float] = {}

    def write(ctx: Context) -> dict[str, Any]:
        clock[ctx.visit] = perf_counter()
        return {"log": f"entry {ctx.visit}"}

    def look(ctx: Context, seen: Any) -> dict[str, Any]:
        ctx.delta()
        return {"log": "seen"}

    return timed(write, look, view("log").last(1), size, clock)


def forking(size: int) -> float:
    """Rounds of two branches that each read what is new to them."""
    clock: dict[int, float] = {}

    def begin(ctx: Context) -> None:
        clock[ctx.visit] = perf_counter()

    def branch(seen: list[str], ctx: Context) -> dict[str, Any]:
        return {"log": f"{ctx.node} {ctx.visit}"}

    graph = Graph(Board).add_node("begin", begin, writes=[]).add_node("meet", lambda: None, writes=[])
    for name in ("left", "right"):
        graph.add_node(name, branch, reads={"seen": view("log").new()}, writes=["log"])
    graph.add_edge(START, "begin").add_edge("begin", ["left", "right"]).add_edge(["left", "right"], "meet")
    last = size + VISITS
    graph.add_conditional_edges("meet", lambda ctx: "begin" if ctx.visit < last else END, ["begin", END])
    graph.compile(max_steps=10 * last).run({}).raise_error()
    return (clock[last] - clock[size]) / VISITS


def timed(write: Any, look: Any, read: Any, size: int, clock: dict[int, float]) -> float:
    """Seconds of one round, after a number of rounds."""
    graph = Graph(Board)
    graph.add_node("write", write, writes=["log", "table", "total", "messages"])
    graph.add_node("look", look, reads={"seen": read}, writes=["log"]).add_path(START, "write", "look")
    last = size + VISITS
    graph.add_conditional_edges("look", lambda ctx: "write" if ctx.visit < last else END, ["write", END])
    graph.compile(max_steps=10 * last).run({}).raise_error()
    return (clock[last] - clock[size]) / VISITS
