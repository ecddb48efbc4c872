"""Failures, questions, stops and time limits: a reader of a live field never waits for what will not come."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

from dspyer import END, START, Breakpoints, Context, Graph
from dspyer.events import Event, NodeFailed, NodeStarted, Posted
from dspyer.extend import Layer
from tests.live.kit import MODES, Pad, colours, drives, echo, finished, modes, team
from tests.rows import each


class Counted(Pad):
    n: int = 0


@drives
def test_a_reader_commits_nothing_while_its_failed_writer_may_go_on(go: Any, colour: str) -> None:
    """A resume calls both again. The run has the error of the writer, although the listener is first in path order."""
    listening = threading.Event()

    def fails(ctx: Context) -> None:
        ctx.post("notes", "lost")
        assert listening.wait(20)
        raise ValueError("broken")

    def listens(ctx: Context) -> None:
        for _ in ctx.live("notes"):
            listening.set()

    async def alistens(ctx: Context) -> None:
        async for _ in ctx.live("notes"):
            listening.set()

    nodes = {"listens": listens if colour == "sync" else alistens, "fails": (fails, ["notes"])}
    program = team(**nodes).compile()
    if go is MODES["astream"]:
        with pytest.raises(ValueError, match="broken"):
            go(program)
        return
    run = go(program)
    assert isinstance(run.error, ValueError)
    assert [commit.node for commit in run.commits] == ["START"]
    assert [(event.seq, event.value) for event in run.events if isinstance(event, Posted)] == [(1, "lost")]


@modes
def test_a_reader_commits_nothing_while_its_writer_asks(go: Any) -> None:
    def asks(ctx: Context) -> None:
        ctx.post("notes", "draft")
        ctx.interrupt("ok", "Is it good?")

    run = go(team(listens=(echo("sync"), ["echoes"]), asks=(asks, ["notes"])).compile())
    assert (run.status, [question.key for question in run.questions]) == ("interrupted", ["ok"])
    assert [commit.node for commit in run.commits] == ["START"]


@each(
    ("go", "stops"),
    [
        (MODES["run"], {"layers": [Breakpoints(before=["late"])]}),
        (MODES["arun"], {"layers": [Breakpoints(before=["late"])]}),
        (MODES["run"], {"layers": [Breakpoints(after=["early"])]}),
    ],
)
def test_a_reader_commits_nothing_while_its_writer_cannot_start(go: Any, stops: dict[str, Any]) -> None:
    graph = Graph(Pad)
    graph.add_node("listens", echo("sync"), reads=["notes"], writes=["echoes"])
    graph.add_node("early", lambda ctx: {}, writes=[])
    graph.add_node("late", lambda ctx: {"notes": "late"}, writes=["notes"])
    graph.add_edge(START, ["listens", "early"]).add_path("early", "late", END).add_edge("listens", END)
    run = go(graph.compile(**stops))
    assert run.status == "interrupted"
    assert [commit.node for commit in run.commits] == ["START", "early"]


@modes
def test_a_reader_does_not_wait_for_a_graph_that_a_failure_has_cut_off(go: Any) -> None:
    """The graph inside ends before its next node, and is left open: it works no more, and has no outcome either."""
    failed = threading.Event()

    class Hears(Layer):
        def event(self, event: Event) -> Event:
            if isinstance(event, NodeFailed):
                failed.set()
            return event

    def goes_on(n: int) -> dict[str, int]:
        assert failed.wait(20)
        return {"n": n + 1}

    def fails(ctx: Context) -> None:
        raise ValueError("broken")

    inner = Graph().add_node("goes_on", goes_on).add_edge(START, "goes_on")
    inner.add_conditional_edges("goes_on", lambda n: "goes_on" if n < 10**6 else END, ["goes_on", END])
    graph = Graph(Counted)
    graph.add_node("listens", echo("sync"), reads=["notes"], writes=["echoes"]).add_node("fails", fails, writes=[])
    graph.add_node("inside", inner.compile(max_steps=10**7), reads=["n"], writes=["n"])
    graph.add_edge(START, ["listens", "fails", "inside"]).add_edge(["listens", "fails", "inside"], END)
    run = go(graph.compile(layers=[Hears()]))
    assert isinstance(run.error, ValueError)
    assert [commit.node for commit in run.commits] == ["START"]


@modes
def test_a_failure_lets_a_reader_go_on_with_what_is_there(go: Any) -> None:
    """A loop that it leaves by itself is over: it commits, and the run fails nevertheless."""
    read = threading.Event()

    def fails(ctx: Context) -> None:
        ctx.post("notes", "note")
        assert read.wait(20)
        raise ValueError("broken")

    def takes_one(ctx: Context) -> dict[str, Any]:
        found = next(ctx.live("notes")).value
        read.set()
        return {"echoes": found}

    run = go(team(fails=(fails, ["notes"]), takes=(takes_one, ["echoes"])).compile())
    assert isinstance(run.error, ValueError)
    assert [commit.node for commit in run.commits] == ["START", "takes"]


@modes
def test_a_loop_ends_when_nobody_else_works(go: Any) -> None:
    """Also of nodes that could not have written the field."""
    order: list[str] = []
    listening = threading.Event()

    def works(ctx: Context) -> None:
        assert listening.wait(20)
        order.append("worked")

    def listens(ctx: Context) -> None:
        listening.set()
        list(ctx.live("notes"))
        order.append("listened")

    async def alistens(ctx: Context) -> None:
        listening.set()
        assert not [note async for note in ctx.live("notes")]
        order.append("listened")

    graph = Graph(Pad).add_node("one", listens, reads=["notes"], writes=[]).add_node("works", works, writes=[])
    graph.add_node("two", alistens, reads=["notes"], writes=[])
    finished(go(graph.add_edge(START, ["one", "works", "two"]).add_edge(["one", "works", "two"], END).compile()))
    assert order == ["worked", "listened", "listened"]


@colours
def test_a_cancelled_run_releases_all_readers(colour: str) -> None:
    async def main() -> None:
        listening, ended = anyio.Event(), threading.Event()

        async def never(ctx: Context) -> None:
            await anyio.sleep_forever()

        def listens(ctx: Context) -> None:
            anyio.from_thread.run_sync(listening.set)
            try:
                list(ctx.live("notes"))
            finally:
                ended.set()

        async def alistens(ctx: Context) -> None:
            listening.set()
            try:
                async for _ in ctx.live("notes"):
                    pass
            finally:
                ended.set()

        fn = listens if colour == "sync" else alistens
        program = team(listens=fn, never=(never, ["notes"])).compile()
        task = asyncio.create_task(program.arun({}))
        await listening.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await anyio.to_thread.run_sync(ended.wait, 20)

    asyncio.run(main())


def test_an_interrupt_of_the_process_releases_all_readers() -> None:
    listening = threading.Event()

    def stops(ctx: Context) -> None:
        assert listening.wait(20)
        raise KeyboardInterrupt

    def listens(ctx: Context) -> None:
        listening.set()
        list(ctx.live("notes"))

    with pytest.raises(KeyboardInterrupt):
        team(listens=listens, stops=(stops, ["notes"])).compile().run({})


def test_closing_a_stream_releases_readers() -> None:
    """The writer behind the first node does not start any more."""
    listening = threading.Event()

    def first(ctx: Context) -> None:
        for _ in range(1100):  # more than wait for a reader: it ends when the run is told to stop
            ctx.emit("")

    def listens(ctx: Context) -> None:
        listening.set()
        list(ctx.live("notes"))

    graph = Graph(Pad).add_node("listens", listens, reads=["notes"], writes=[]).add_node("first", first, writes=[])
    graph.add_node("late", lambda ctx: {"notes": "late"}, writes=["notes"])
    graph.add_edge(START, ["listens", "first"]).add_path("first", "late", END).add_edge("listens", END)
    events = graph.compile().stream({})
    for event in events:
        if isinstance(event, NodeStarted) and event.node == "first":
            break
    assert listening.wait(20)
    events.close()
    assert events.run.status == "stopped"


@colours
def test_a_timeout_is_an_error_of_the_loop(colour: str) -> None:
    hold = threading.Event()

    def waits(ctx: Context) -> None:
        assert hold.wait(20)

    def listens(ctx: Context) -> dict[str, int]:
        with pytest.raises(TimeoutError, match="nothing came to the live field 'notes'"):
            next(ctx.live("notes", timeout=0))
        hold.set()
        return {"done": 1}

    async def alistens(ctx: Context) -> dict[str, int]:
        with pytest.raises(TimeoutError, match="nothing came to the live field 'notes'"):
            await anext(ctx.live("notes", timeout=0))
        hold.set()
        return {"done": 1}

    fn = listens if colour == "sync" else alistens
    program = team(listens=(fn, ["done"]), waits=(waits, ["notes"])).compile()
    assert finished(program.run({})).state["done"] == 1
