"""A run that completed, waits or was stopped is freed at once by its reference counts; one that failed may wait."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import dspy
import pytest
from dspy.utils import DummyLM
from hypothesis import settings
from pydantic import BaseModel

from dspyer import (
    END,
    START,
    CompiledGraph,
    Context,
    Graph,
    Send,
    live,
    reducers,
    view,
)
from dspyer.events import AttemptFailed
from dspyer.testing import no_pauses


class Board(BaseModel):
    n: int = 0
    out: Annotated[list[int], reducers.append] = []
    notes: Annotated[list[str], reducers.append, live] = []


class Plain(BaseModel):
    n: int = 0
    out: Annotated[list[int], reducers.append] = []


def grow(n: int) -> dict[str, int]:
    return {"n": n + 1}


async def agrow(n: int) -> dict[str, int]:
    return {"n": n + 1}


def fail(n: int, ctx: Context) -> dict[str, int]:
    ctx.emit(n)
    raise ValueError(n)


def fail_of_odd(n: int) -> int:
    if n % 2:
        raise ValueError(n)
    return n


def ask(n: int, ctx: Context) -> dict[str, bool]:
    return {"ok": ctx.interrupt("ok", "go on?")}


async def aask(n: int, ctx: Context) -> dict[str, bool]:
    return {"ok": ctx.interrupt("ok", "go on?")}


def hear(ctx: Context) -> dict[str, int]:
    return {"n": len([entry for entry in ctx.live("notes")])}  # noqa: C416 - it is no sequence


def post(ctx: Context) -> dict[str, Any]:
    ctx.post("notes", "a")
    ctx.post("notes", "b")
    return {}


def seen(ctx: Context) -> dict[str, int]:
    ctx.view(view("out").new())
    return {"n": len(ctx.delta().text)}


def one(node: Any, **options: Any) -> Graph:
    return Graph(Plain, inputs=["n"]).add_node("one", node, **options).add_path(START, "one", END)


def one_without_schema(node: Any) -> Graph:
    return Graph(inputs=["n"]).add_node("one", node, cache=True).add_path(START, "one", END)


def loop(node: Any) -> Graph:
    graph = Graph().add_node("step", node).add_edge(START, "step")
    return graph.add_conditional_edges("step", lambda n: "on" if n < 5 else "off", {"on": "step", "off": END})


def fork(left: Any, right: Any, **options: Any) -> Graph:
    graph = Graph(**options).add_node("left", left, writes={"n": "a"}).add_node("right", right, writes={"n": "b"})
    graph.add_node("last", lambda a, b: {"c": a + b})
    return graph.add_edge(START, ["left", "right"]).add_edge(["left", "right"], "last").add_edge("last", END)


def send(worker: Any) -> Graph:
    graph = Graph(Plain, inputs=["n"]).add_node("split", lambda n: {}).add_node("work", worker, writes=["out"])
    graph.add_node("last", lambda out: {"n": len(out)}, writes=["n"]).add_edge(START, "split").add_edge("work", "last")
    graph.add_conditional_edges("split", lambda n: [Send("work", {"i": i}) for i in range(n + 3)], ["work"])
    return graph.add_edge("last", END)


def mapped(node: Any, **options: Any) -> Graph:
    graph = Graph(inputs=["n"]).add_node("list", lambda n: {"items": [n, n + 1, n + 2]}, writes=["items"])
    graph.add_map("map", node, over="items", item="n", into="found", **options)
    return graph.add_path(START, "list", "map", END)


def team(listener: Any) -> Graph:
    graph = Graph(Board, inputs=["n"]).add_node("post", post, writes=["notes"])
    graph.add_node("hear", listener, reads=["notes"], writes=["n"])
    return graph.add_edge(START, ["post", "hear"]).add_edge(["post", "hear"], END)


def inside(inner: Graph) -> Graph:
    return Graph(inputs=["n"]).add_node("sub", inner.compile()).add_path(START, "sub", END)


def predictors() -> Graph:
    graph = Graph(inputs=["n"], outputs=["check"]).add_node("ask", lambda n: {"question": str(n)}, writes=["question"])
    graph.add_node("answer", dspy.Predict("question -> answer")).add_node("audit", dspy.Predict("answer -> check"))
    return graph.add_path(START, "ask", "answer", "audit", END)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "loop": lambda: loop(grow),
    "loop, async": lambda: loop(agrow),
    "fork": lambda: fork(grow, agrow),
    "send": lambda: send(lambda i: {"out": i}),
    "map": lambda: mapped(grow),
    "live": lambda: team(hear),
    "views": lambda: one(seen, reads=["out"], writes=["n"]),
    "predictors": predictors,
    "graph inside": lambda: inside(one(grow)),
    "graph inside a graph inside": lambda: inside(inside(send(lambda i: {"out": i}))),
    "some failed in a map": lambda: mapped(fail_of_odd, failures="lost"),
    "asks": lambda: one(ask),
    "asks, async": lambda: one(aask),
    "asks inside": lambda: inside(one(ask)),
    "asks in a map": lambda: mapped(ask),
    "cached": lambda: one(grow, cache=True),
    "cached, cannot be kept": lambda: one_without_schema(lambda n: {"found": Plain(n=n)}),
}


ONE_LM = DummyLM([{"answer": "a", "check": "c"}] * 1_000)
"""It is in a cycle of its own: one for each test could be freed late, during another test."""

Use = Callable[[CompiledGraph], Awaitable[Any]]


async def call(program: CompiledGraph) -> None:
    program(n=0)


async def run(program: CompiledGraph) -> None:
    program.run({"n": 0})


async def acall(program: CompiledGraph) -> None:
    await program.acall(n=0)


async def arun(program: CompiledGraph) -> None:
    await program.arun({"n": 0})


async def stored(program: CompiledGraph) -> None:
    program.thread("t").run({"n": 0}, if_open="abandon")


async def astored(program: CompiledGraph) -> None:
    await program.thread("t").arun({"n": 0}, if_open="abandon")


async def resumed(program: CompiledGraph) -> None:
    thread = program.thread("t")
    thread.run({"n": 0}, if_open="abandon")
    if thread.status in ("failed", "interrupted"):
        thread.resume()


async def streamed(program: CompiledGraph) -> None:
    for _ in program.stream({"n": 0}):
        pass


async def astreamed(program: CompiledGraph) -> None:
    async for _ in program.astream({"n": 0}):
        pass


async def stored_and_streamed(program: CompiledGraph) -> None:
    for _ in program.thread("t").stream({"n": 0}, if_open="abandon"):
        pass


USES: dict[str, Use] = {
    "streamed": streamed,
    "streamed, async": astreamed,
    "stored and streamed": stored_and_streamed,
    "call": call,
    "run": run,
    "acall": acall,
    "arun": arun,
    "stored": stored,
    "stored, async": astored,
    "resumed": resumed,
}


@contextmanager
def no_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def garbage_of(use: Use, program: CompiledGraph) -> Counter[str]:
    """What only the cyclic collector frees after a use: the classes of the objects."""
    for _ in range(3):  # what is made once
        await quietly(use, program)
    with no_collector():
        gc.freeze()  # leaves out what lives already: bounded caches of DSPy may drop objects of other tests meanwhile
        gc.set_debug(gc.DEBUG_SAVEALL)
        await quietly(use, program)
        gc.collect()
        return Counter(type(found).__name__ for found in gc.garbage)


async def quietly(use: Use, program: CompiledGraph) -> None:
    with suppress(Exception):
        await use(program)


def sampled(how: str) -> list[str]:
    """The kinds of graph for one use: together the uses have each kind three times, or all in the deep profile."""
    uses, nth = list(USES), list(USES).index(how)
    part = len(uses) if settings().max_examples > 100 else 3
    return [what for place, what in enumerate(GRAPHS) if (nth - 3 * place) % len(uses) < part]


async def all_garbage(use: Use, kinds: Iterable[str]) -> dict[str, Counter[str]]:
    """The garbage by kind of graph, of those that leave some."""
    found = {}
    for what in kinds:
        program = GRAPHS[what]().compile(store=":memory:")
        found[what] = await garbage_of(use, program)
    return {what: classes for what, classes in found.items() if classes}


@pytest.mark.parametrize("how", USES)
def test_a_run_leaves_nothing_to_the_cyclic_collector(how: str) -> None:
    with dspy.context(lm=ONE_LM):
        assert asyncio.run(all_garbage(USES[how], sampled(how))) == {}


def test_a_dropped_stream_leaves_nothing_to_the_cyclic_collector() -> None:
    async def leave(program: CompiledGraph) -> None:
        for _ in program.stream({"n": 0}):
            break

    assert asyncio.run(all_garbage(leave, ["loop", "fork", "send", "map", "live", "asks"])) == {}


def test_a_cancelled_run_leaves_nothing_to_the_cyclic_collector() -> None:
    begun: asyncio.Event

    async def wait(n: int) -> dict[str, int]:
        begun.set()
        await asyncio.Event().wait()
        return {"n": n}

    async def cancelled(program: CompiledGraph) -> None:
        nonlocal begun
        begun = asyncio.Event()  # it belongs to one loop
        task = asyncio.ensure_future(program.acall(n=0))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for graph in (one(wait), fork(wait, wait), inside(one(wait)), mapped(wait)):
        assert asyncio.run(garbage_of(cancelled, graph.compile())) == Counter()


@pytest.mark.parametrize("how", ["run", "arun", "stream"])
def test_the_events_of_a_run_do_not_keep_the_values_of_failed_attempts(how: str) -> None:
    class Large:
        pass

    kept: list[weakref.ref[Large]] = []

    def fetch(n: int, ctx: Context) -> dict[str, int]:
        large = Large()
        kept.append(weakref.ref(large))
        if ctx.attempt == 1:
            try:
                raise KeyError("the cause")
            except KeyError as cause:
                raise ConnectionError("no line") from cause
        return {"n": n + 1}

    graph = Graph().add_node("fetch", fetch, writes=["n"], retry=2).add_path(START, "fetch", END)
    program = graph.compile()
    with no_pauses():
        if how == "run":
            run = program.run({"n": 0})
        elif how == "arun":
            run = asyncio.run(program.arun({"n": 0}))
        else:
            with program.stream({"n": 0}) as stream:
                list(stream)
            run = stream.run
    gc.collect()
    (failed,) = [event for event in run.events if isinstance(event, AttemptFailed)]
    assert isinstance(failed.error.__cause__, KeyError)
    assert [large() for large in kept] == [None, None]
