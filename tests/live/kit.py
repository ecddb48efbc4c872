"""A state with live fields, graphs over it, and the ways of running them, for the tests of live fields."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import anyio
import anyio.to_thread
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Run, live, reducers

Notes = Annotated[list[str], reducers.append, live]


class Pad(BaseModel):
    task: str = "t"
    notes: Notes = []
    echoes: Notes = []
    code: Annotated[dict[str, Any], reducers.update, live] = {}
    done: Annotated[int, reducers.increment] = 0


def team(*names: str, sequence: Any = False, **nodes: Any) -> Graph:
    """A graph of nodes that run at once, or one after the other. Each may read and write what its name says."""
    graph = Graph(Pad)
    for name, node in nodes.items():
        fn, writes = node if isinstance(node, tuple) else (node, [])
        graph.add_node(name, fn, reads=["notes", "echoes", "code"], writes=writes)
    order = list(names or nodes)
    if sequence:
        return graph.add_path(START, *order, END)
    return graph.add_edge(START, order).add_edge(order, END)


def in_worker_thread(program: CompiledGraph) -> Run:
    async def main() -> Run:
        return await anyio.to_thread.run_sync(lambda: program.run({}))

    return asyncio.run(main())


def streamed(program: CompiledGraph) -> Run:
    with program.stream({}) as events:
        list(events)
    assert events.run is not None
    return events.run


async def streamed_async(program: CompiledGraph) -> Run:
    async with program.astream({}) as events:
        async for _ in events:
            pass
    assert events.run is not None
    return events.run


MODES: dict[str, Callable[[CompiledGraph], Run]] = {
    "run": lambda program: program.run({}),
    "arun": lambda program: asyncio.run(program.arun({})),
    "worker thread": in_worker_thread,
    "stream": streamed,
    "astream": lambda program: asyncio.run(streamed_async(program)),
}


modes = pytest.mark.parametrize("go", [MODES["run"], MODES["arun"]], ids=["run", "arun"])
"""The two drivers. That a program does the same in a worker thread and as a stream is shown where all are used."""


def driven(*pairs: str) -> pytest.MarkDecorator:
    """A way of running a program, and the colour of a node: `"run sync"`."""
    parts = [pair.rpartition(" ") for pair in pairs]
    return pytest.mark.parametrize(("go", "colour"), [(MODES[go], colour) for go, _, colour in parts], ids=pairs)


drives = driven("run sync", "run async", "arun async", "astream sync")
colours = pytest.mark.parametrize("colour", ["sync", "async"])


def finished(run: Run) -> Run:
    run.raise_error()
    return run


def writer(ctx: Context) -> dict[str, str]:
    for name in ("a", "b"):
        ctx.post("notes", name)
    return {"notes": "c"}


def echo(colour: str) -> Callable[..., Any]:
    """A node that answers each note."""

    def listen(ctx: Context) -> None:
        for note in ctx.live("notes"):
            ctx.post("echoes", f"{note.author} {note.value}")

    async def alisten(ctx: Context) -> None:
        async for note in ctx.live("notes"):
            ctx.post("echoes", f"{note.author} {note.value}")

    return listen if colour == "sync" else alisten


ANSWERED = {"notes": ["a", "b", "c"], "echoes": ["writer a", "writer b", "writer c"]}


def fields(**annotations: Any) -> type[BaseModel]:
    return type("Fields", (BaseModel,), {"__annotations__": annotations, **{name: [] for name in annotations}})
