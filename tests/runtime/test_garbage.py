"""An ended run is freed at once by its reference counts: the cyclic garbage collector finds nothing of it."""

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
from tenacity import wait_none

from dspyer import (
    END,
    START,
    Breakpoints,
    CompiledGraph,
    Context,
    Graph,
    Retry,
    Run,
    Send,
    live,
    reducers,
    view,
)
from dspyer.errors import StoreError
from dspyer.events import AttemptFailed, Question
from dspyer.stores import Memory
from dspyer.stores.base import Change
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


async def afail(n: int, ctx: Context) -> dict[str, int]:
    ctx.emit(n)
    raise ValueError(n)


def fail_item(i: int, ctx: Context) -> dict[str, int]:
    return fail(i, ctx)


def ask(n: int, ctx: Context) -> dict[str, bool]:
    return {"ok": ctx.interrupt("ok", "go on?")}


async def aask(n: int, ctx: Context) -> dict[str, bool]:
    return {"ok": ctx.interrupt("ok", "go on?")}


def twice(ctx: Context) -> dict[str, int]:
    ctx.once("a", lambda: 1)
    return {"n": ctx.once("a", lambda: 2)}


def wrong_output(n: int) -> Any:
    return n


def hear(ctx: Context) -> dict[str, int]:
    return {"n": len([entry for entry in ctx.live("notes")])}  # noqa: C416 - it is no sequence


def hear_and_fail(ctx: Context) -> dict[str, int]:
    for entry in ctx.live("notes"):
        raise ValueError(entry)
    return {}


def post(ctx: Context) -> dict[str, Any]:
    ctx.post("notes", "a")
    ctx.post("notes", "b")
    return {}


def seen(ctx: Context) -> dict[str, int]:
    ctx.view(view("out").new())
    return {"n": len(ctx.delta().text)}


def bad_router(n: int) -> str:
    raise LookupError(n)


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


def conflict() -> Graph:
    graph = Graph(merge="raise").add_node("left", lambda n: {"a": 1}).add_node("right", lambda n: {"a": 2})
    graph.add_node("last", lambda a: {"c": a}).add_edge(START, ["left", "right"])
    return graph.add_edge(["left", "right"], "last").add_edge("last", END)


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
    "graph inside": lambda: inside(loop(grow)),
    "graph inside a graph inside": lambda: inside(inside(send(lambda i: {"out": i}))),
    "failed": lambda: one(fail),
    "failed, async": lambda: one(afail),
    "failed beside another": lambda: fork(grow, fail),
    "failed beside another that failed": lambda: fork(afail, fail),
    "failed in a Send": lambda: send(fail_item),
    "failed in a map": lambda: mapped(fail),
    "failed in a map, async": lambda: mapped(afail),
    "some failed in a map": lambda: mapped(fail_of_odd, failures="lost"),
    "all failed in a map": lambda: mapped(fail, failures="lost", retry=Retry(2, on=ValueError, wait=wait_none())),
    "failed inside": lambda: inside(inside(one(fail))),
    "failed inside, async": lambda: inside(fork(grow, afail)),
    "failed in a router": lambda: one(grow).add_conditional_edges("one", bad_router, {"a": END}),
    "failed while it listened": lambda: team(hear_and_fail),
    "used a key twice": lambda: one(twice),
    "wrong output": lambda: one(wrong_output),
    "conflict": conflict,
    "asks": lambda: one(ask),
    "asks, async": lambda: one(aask),
    "asks inside": lambda: inside(one(ask)),
    "asks in a map": lambda: mapped(ask),
    "asks, refused": lambda: one(ask),
    "asks, function fails": lambda: one(ask),
    "asks to go on, function fails": lambda: one(grow),
    "step limit": lambda: loop(grow),
    "cached": lambda: one(grow, cache=True),
    "cached, failed": lambda: one(lambda n: {"n": n // 0}, cache=True),
    "cached, cannot be kept": lambda: one_without_schema(lambda n: {"found": Plain(n=n)}),
}


def no_answer(question: Question) -> object:
    raise LookupError(question.key)


ONE_LM = DummyLM([{"answer": "a", "check": "c"}] * 1_000)
"""It is in a cycle of its own: one for each test could be freed late, during another test."""

OPTIONS: dict[str, dict[str, Any]] = {
    "asks, refused": {"answers": {"ok": "perhaps"}},
    "asks, function fails": {"answers": no_answer},
    "asks to go on, function fails": {"answers": no_answer, "layers": [Breakpoints(after=["one"])]},
    "step limit": {"max_steps": 2},
}

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
    program.thread("t").run({"n": 0}, abandon=True)


async def astored(program: CompiledGraph) -> None:
    await program.thread("t").arun({"n": 0}, abandon=True)


async def resumed(program: CompiledGraph) -> None:
    thread = program.thread("t")
    thread.run({"n": 0}, abandon=True)
    if thread.status in ("failed", "interrupted"):
        thread.resume()


async def streamed(program: CompiledGraph) -> None:
    for _ in program.stream({"n": 0}):
        pass


async def astreamed(program: CompiledGraph) -> None:
    async for _ in program.astream({"n": 0}):
        pass


async def stored_and_streamed(program: CompiledGraph) -> None:
    for _ in program.thread("t").stream({"n": 0}, abandon=True):
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
        program = GRAPHS[what]().compile(store=":memory:", **OPTIONS.get(what, {}))
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


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_store_that_fails_leaves_nothing_to_the_cyclic_collector(how: str) -> None:
    class Full(Memory):
        full = False

        def write(self, change: Change) -> int:
            if self.full and change.rows:
                raise OSError("no space left")
            return super().write(change)

        def write_now(self, change: Change) -> bool:
            self.write(change)
            return True

    def fill(n: int) -> dict[str, int]:
        store.full = True
        return {"n": n + 1}

    async def fail_to_write(program: CompiledGraph) -> None:
        store.full = False
        thread = program.thread("t")
        if how == "sync":
            check(thread.run({"n": 0}, abandon=True))
        else:
            check(await thread.arun({"n": 0}, abandon=True))

    def check(run: Run) -> None:  # the caller's frame is in the traceback: it keeps no run
        assert isinstance(run.error, StoreError)

    store = Full()
    assert asyncio.run(garbage_of(fail_to_write, loop(fill).compile(store=store))) == Counter()


def test_the_error_of_a_run_keeps_its_traceback_and_not_the_states() -> None:
    program = fork(grow, fail).compile()
    failed = program.run({"n": 0})
    names = []
    trace = failed.error.__traceback__ if failed.error is not None else None
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-1] == "fail"
    error = failed.error
    with no_collector():
        before = len([found for found in gc.get_objects() if type(found).__name__ == "Commit"])
        del failed
        after = len([found for found in gc.get_objects() if type(found).__name__ == "Commit"])
    assert error is not None
    assert after < before


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
