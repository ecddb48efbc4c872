"""A run that is ended early is stopped: nothing new starts, what was committed stays, and `resume` continues it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Thread, reducers
from dspyer.errors import ConcurrentRunError, OpenRunError, RunStoppedError
from dspyer.events import Asked, NodeStarted, RunEnded
from tests.log.equality import outcome
from tests.log.failing import FailingMemory
from tests.log.kinds import CALLS, INPUTS, KINDS
from tests.rows import each


class Log(BaseModel):
    log: Annotated[list[str], reducers.extend] = []


UNREAD = 1100
"""More events than wait for a reader: who emits them in a stream goes on when they are read, or the run is stopped."""


class Stage:
    """Two nodes in a row: `slow` runs while a test leaves, `late` must not start.

    Mode "told" is a sync `slow` that ends once its run was told to stop.
    """

    def __init__(self, mode: str) -> None:
        self.calls: list[str] = []
        self.inside = threading.Event()
        self.go_on = threading.Event()
        self.cleaned = threading.Event()
        self.program = self._program(mode)
        self.thread = self.program.thread("t")

    def _program(self, mode: str) -> CompiledGraph:
        def slow(state: Any) -> dict[str, Any]:
            self.calls.append("slow")
            self.inside.set()
            assert self.go_on.wait(20)
            return {"log": ["slow"]}

        def told(state: Any, ctx: Context) -> dict[str, Any]:
            self.calls.append("slow")
            self.inside.set()
            for _ in range(UNREAD):
                ctx.emit("")
            return {"log": ["slow"]}

        async def aslow(state: Any) -> dict[str, Any]:
            self.calls.append("slow")
            self.inside.set()
            try:
                if not self.go_on.is_set():
                    await asyncio.Event().wait()
            finally:
                self.cleaned.set()
            return {"log": ["slow"]}

        def late(state: Any) -> dict[str, Any]:
            self.calls.append("late")
            return {"log": ["late"]}

        kinds: dict[str, Callable[..., Any]] = {"sync": slow, "told": told, "async": aslow}
        graph = Graph(Log).add_node("slow", kinds[mode]).add_node("late", late)
        return graph.add_path(START, "slow", "late", END).compile(store=":memory:")

    def check(self, finished: bool) -> None:
        """Check that the run is stopped and can be resumed."""
        assert self.thread.status == "stopped"
        assert self.calls == ["slow"]
        assert self.thread.state["log"] == (["slow"] if finished else [])
        with pytest.raises(OpenRunError, match="was stopped"):
            self.thread.run({})
        self.go_on.set()
        run = self.thread.resume()
        assert run.state["log"] == ["slow", "late"]
        assert self.calls == (["slow", "late"] if finished else ["slow", "slow", "late"])


def reaches(stage: Stage, events: Iterator[Any]) -> None:
    for event in events:
        if isinstance(event, NodeStarted):
            assert stage.inside.wait(20)
            return


def closes(stage: Stage) -> None:
    stream = stage.thread.stream({})
    reaches(stage, stream)
    stream.close()
    assert stream.run.status == "stopped"


def leaves_the_block(stage: Stage) -> None:
    with stage.thread.stream({}) as stream:
        reaches(stage, stream)
    assert isinstance(stream.run.error, RunStoppedError)
    assert stream.run.error.reason == "its stream was closed"
    with pytest.raises(RunStoppedError, match=r"its stream was closed. .* thread.resume\(\)"):
        _ = stream.run.prediction


def breaks(stage: Stage) -> None:
    for event in stage.thread.stream({}):
        if isinstance(event, NodeStarted):
            assert stage.inside.wait(20)
            break


def returns(stage: Stage) -> None:
    gc.disable()
    try:
        reaches(stage, stage.thread.stream({}))
    finally:
        gc.enable()


def raises(stage: Stage) -> None:
    def fails() -> None:
        with stage.thread.stream({}) as stream:
            reaches(stage, stream)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()


@pytest.mark.parametrize("leave", [closes, leaves_the_block, breaks, returns, raises])
@pytest.mark.parametrize("mode", ["told", "async"])
def test_a_sync_reader_that_leaves_stops_the_run(leave: Callable[[Stage], None], mode: str) -> None:
    stage, before = Stage(mode), set(threading.enumerate())
    leave(stage)
    assert stage.cleaned.is_set() == (mode == "async")
    stage.check(finished=mode == "told")
    for one in set(threading.enumerate()) - before:
        if one.name.startswith("dspyer") and "lease" not in one.name:
            one.join(20)
            assert not one.is_alive(), one.name


async def acloses(stage: Stage) -> None:
    stream = stage.thread.astream({})
    await areaches(stage, stream)
    await stream.aclose()
    assert stream.run.status == "stopped"


async def areaches(stage: Stage, events: Any) -> None:
    async for event in events:
        if isinstance(event, NodeStarted):
            await asyncio.to_thread(stage.inside.wait, 20)
            return


async def aleaves_the_block(stage: Stage) -> None:
    async with stage.thread.astream({}) as stream:
        await areaches(stage, stream)
    assert isinstance(stream.run.error, RunStoppedError)


async def abreaks(stage: Stage) -> None:
    await areaches(stage, stage.thread.astream({}))
    me = asyncio.current_task()
    await asyncio.wait([task for task in asyncio.all_tasks() if task is not me], timeout=20)  # it ends by itself


async def is_cancelled(stage: Stage) -> None:
    async def read() -> None:
        async for _ in stage.thread.astream({}):
            pass

    await _cancelled(stage, asyncio.create_task(read()))


async def run_is_cancelled(stage: Stage) -> None:
    await _cancelled(stage, asyncio.create_task(stage.thread.arun({})))


async def _cancelled(stage: Stage, task: asyncio.Task[Any]) -> None:
    await asyncio.to_thread(stage.inside.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # once more, while it is ending
    if isinstance(stage, SyncStage):
        stage.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def times_out(stage: Stage) -> None:
    async def let() -> None:
        await asyncio.to_thread(stage.inside.wait, 20)
        inside.set()
        if isinstance(stage, SyncStage):
            while not limits[0].expired():  # noqa: ASYNC110 - until the run is cancelled, which sets no event
                await asyncio.sleep(0)
            stage.go_on.set()

    async def limited() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            task = asyncio.ensure_future(inside.wait())
            task.add_done_callback(lambda _: limit.reschedule(0))
            await stage.thread.arun({})

    inside, limits = asyncio.Event(), list[asyncio.Timeout]()
    letting = asyncio.create_task(let())
    with pytest.raises(TimeoutError):
        await limited()
    await letting
    await asyncio.sleep(0)  # no cancellation is left over


async def scope_is_cancelled(stage: Stage) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(stage.thread.arun, {})
        await asyncio.to_thread(stage.inside.wait, 20)
        group.cancel_scope.cancel()
        if isinstance(stage, SyncStage):
            stage.go_on.set()


class SyncStage(Stage):
    def __init__(self) -> None:
        super().__init__("sync")


@each("leave", [acloses, aleaves_the_block, abreaks, is_cancelled, run_is_cancelled, times_out, scope_is_cancelled])
def test_an_async_reader_or_caller_that_leaves_stops_the_run(
    leave: Callable[[Stage], Coroutine[Any, Any, None]],
) -> None:
    stage = Stage("async")
    asyncio.run(leave(stage))
    assert stage.cleaned.is_set()
    stage.check(finished=False)


@pytest.mark.parametrize("leave", [is_cancelled, run_is_cancelled, times_out, scope_is_cancelled])
def test_a_sync_node_of_a_cancelled_run_is_finished_and_committed(
    leave: Callable[[Stage], Coroutine[Any, Any, None]],
) -> None:
    stage = SyncStage()
    asyncio.run(leave(stage))
    stage.check(finished=True)


def test_a_run_without_a_thread_says_that_it_cannot_be_continued() -> None:
    stage = Stage("async")
    with stage.program.stream({}) as stream:
        reaches(stage, stream)
    assert stream.run.status == "stopped"
    with pytest.raises(RunStoppedError, match="Start it again"):
        stream.run.raise_error()
    assert "stopped" in stream.run.report()


def test_a_stream_that_is_never_read_starts_nothing(recwarn: pytest.WarningsRecorder) -> None:
    stage = Stage("async")
    for stream in (stage.thread.stream({}), stage.thread.astream({})):
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = stream.run
        del stream
    with stage.thread.stream({}) as closed:
        pass
    assert list(closed) == []
    with pytest.raises(RunStoppedError, match="before its run had begun"):
        _ = closed.run
    gc.collect()
    assert (stage.thread.status, stage.calls) == ("new", [])
    assert not recwarn.list


def test_two_readers_share_the_events_and_both_end() -> None:
    graph = Graph(Log).add_node("a", lambda state: {"log": ["a"]}).add_path(START, "a", END)
    stream = graph.compile().stream({})
    found: list[list[Any]] = [[], []]
    readers = [threading.Thread(target=events.extend, args=(stream,)) for events in found]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(20)
        assert not reader.is_alive()
    assert len(found[0]) + len(found[1]) == len(stream.run.events)


def test_a_reader_that_leaves_at_a_question_can_answer_it_later() -> None:
    graph = Graph().add_interrupt("ok", question="Go?", answer=bool, into="yes").add_path(START, "ok", END)
    thread = graph.compile(store=":memory:").thread("t")
    for event in thread.stream({}):
        if isinstance(event, Asked):
            break
    assert thread.status == "interrupted"
    assert thread.resume({"ok": True}).status == "completed"


EXITS = f"""
import asyncio, sys, threading
from dspyer import END, START, Graph

async def waits(n):
    insides["async"].set()
    await asyncio.Event().wait()

def emits(n, ctx):
    for number in range({UNREAD}):  # until the process ends; it waits for its reader before that
        ctx.emit(n)
        if number == 990:
            insides["sync"].set()
    return {{"n": 1}}

insides, streams = {{}}, []
for name, node in [("async", waits), ("sync", emits)]:
    graph = Graph(inputs=["n"]).add_node("wait", node, writes=["n"])
    graph.add_node("late", lambda n: print("late"), writes=[]).add_path(START, "wait", "late", END)
    insides[name] = threading.Event()
    streams.append(graph.compile(store=sys.argv[1]).thread(name).stream({{"n": 0}}))
    next(streams[-1])
    insides[name].wait(20)
"""


@pytest.mark.slow("starts a Python process: what is done at its end is what the test is about")
def test_a_process_that_ends_with_an_open_stream_stops_its_run(tmp_path: Any) -> None:
    store = str(tmp_path / "runs.db")
    done = subprocess.run([sys.executable, "-c", EXITS, store], timeout=60, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    graph = Graph(inputs=["n"]).add_node("wait", lambda n: {"n": 1}, writes=["n"])
    program = (
        graph.add_node("late", lambda n: None, writes=[]).add_path(START, "wait", "late", END).compile(store=store)
    )
    threads = [program.thread(name) for name in ("async", "sync")]
    assert [(thread.status, thread.state["n"]) for thread in threads] == [("stopped", 0), ("stopped", 1)]


def stopped_at(thread: Thread, event_number: int, mode: str, leave: str) -> None:
    """Leaves a stream after some events."""

    async def aleave() -> None:
        stream = thread.astream(INPUTS)
        async for _ in aislice(stream, event_number + 1):
            pass
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if leave == "close":
            await stream.aclose()
        elif leave == "cancel":
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)  # it begins to wait
            reading.cancel()
            await asyncio.wait([reading])
            reading.cancelled() or reading.exception()
        del stream
        if tasks:
            await asyncio.wait(tasks)

    if mode == "async":
        asyncio.run(aleave())
        return
    stream = thread.stream(INPUTS)
    for _ in islice(stream, event_number + 1):
        pass
    if leave != "drop":
        stream.close()
    del stream


async def aislice(events: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        with suppress(StopAsyncIteration):
            yield await anext(events)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=settings().max_examples // 5)
@given(
    mode=st.sampled_from(["sync", "async"]),
    number=st.integers(0, 30),
    leave=st.sampled_from(["close", "drop", "cancel"]),
)
def test_a_run_stopped_at_any_event_and_resumed_equals_the_whole_run(
    kind: str, mode: str, number: int, leave: str
) -> None:
    """And no node that has finished is called twice."""
    with KINDS[kind].lm():
        check_stopped(KINDS[kind].compile(mode, FailingMemory()), mode, number, leave)


CALLERS = ("work", "mid")
"""Functions that call programs: they begin anew after a stop, and the programs go on."""


def check_stopped(program: CompiledGraph, mode: str, number: int, leave: str) -> None:
    CALLS.take()
    whole = program.thread("whole").run(INPUTS) if mode == "sync" else asyncio.run(program.thread("whole").arun(INPUTS))
    expected = sorted(call.name for call in CALLS.take() if call.what == "node" and call.name not in CALLERS)
    thread = program.thread("t")
    stopped_at(thread, number, mode, leave)
    first = CALLS.take()
    status = thread.status
    if status == "completed":
        return
    assert status == "stopped"
    with thread.stream_resume() as stream:
        events = list(stream)
    assert isinstance(events[-1], RunEnded)
    assert outcome(stream.run) == outcome(whole)
    if mode == "sync":  # sync nodes are finished; a subgraph's START is no call
        called = [call.name for call in (*first, *CALLS.take()) if call.what == "node"]
        assert sorted(name for name in called if name not in CALLERS) == expected


def test_the_advice_to_resume_names_parameters_of_resume() -> None:
    stage = Stage("sync")
    stream = stage.thread.stream({})
    reaches(stage, stream)
    with pytest.raises(ConcurrentRunError) as caught:
        stage.thread.resume()
    assert "on_conflict" not in str(caught.value)
    assert "take_over=True" in str(caught.value)
    with pytest.raises(ConcurrentRunError, match="on_conflict"):
        stage.thread.run({})
    stage.go_on.set()
    list(stream)
