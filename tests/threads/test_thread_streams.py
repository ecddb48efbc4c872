"""Streams on threads: the events of a run that is stored, each shown once it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dspyer import END, START, Graph, Run, Thread
from dspyer.errors import ConcurrentRunError, StoreError
from dspyer.events import Committed, Event, NodeStarted, RunEnded, RunStarted
from tests.log.equality import finished, outcome
from tests.log.failing import FailingMemory, disk_full
from tests.log.kinds import CALLS, INPUTS, KINDS, Fault, State
from tests.rows import each

Streaming = Callable[..., tuple[list[Event], Run | None, BaseException | None]]


def _drained(thread: Thread, how: str, **options: Any) -> tuple[list[Event], Run | None, BaseException | None]:
    stream = thread.stream(INPUTS, **options) if how == "run" else thread.stream_resume(**options)
    events: list[Event] = []
    try:
        events.extend(stream)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return events, stream.run, error
    return events, stream.run, None


def _adrained(thread: Thread, how: str, **options: Any) -> tuple[list[Event], Run | None, BaseException | None]:
    async def drain() -> tuple[list[Event], Run | None, BaseException | None]:
        stream = thread.astream(INPUTS, **options) if how == "run" else thread.astream_resume(**options)
        events: list[Event] = []
        try:
            async for event in stream:
                events.append(event)  # noqa: PERF401 - what came before an error counts
        except Exception as error:  # noqa: BLE001 - as above
            return events, stream.run, error
        return events, stream.run, None

    return asyncio.run(drain())


@pytest.fixture(params=[_drained, _adrained], ids=["sync", "async"])
def drained(request: pytest.FixtureRequest) -> Streaming:
    chosen: Streaming = request.param
    return chosen


@each("kind", ["fork", "policy", "subgraph", "map"])
def test_the_events_are_those_of_the_run(kind: str, drained: Streaming) -> None:
    program = KINDS[kind].compile("sync", FailingMemory())
    events, run, error = drained(program.thread("t"), "run")
    assert error is None
    assert run is not None
    assert outcome(run) == outcome(program.thread("other").run(INPUTS))
    assert [type(event) for event in (events[0], events[-1])] == [RunStarted, RunEnded]
    made = [event.commit.id for event in events if isinstance(event, Committed) and not event.scope]
    assert sorted(made) == sorted(commit.id for commit in run.commits)
    assert run.events == tuple(events)


def test_a_resume_streams_new_events_only(drained: Streaming) -> None:
    program = KINDS["fork"].compile("sync", FailingMemory())
    whole = program.thread("whole").run(INPUTS)
    CALLS.fault = next(call for call in CALLS.take() if call.name == "b2")
    thread = program.thread("t")
    events, run, error = drained(thread, "run")
    CALLS.fault = None
    assert isinstance(error, Fault)
    assert run is not None
    assert run.status == "failed"
    events, run, error = drained(thread, "resume")
    assert error is None
    assert run is not None
    assert outcome(run) == outcome(whole)
    assert [event.node for event in events if isinstance(event, NodeStarted)] == ["b2", "d"]


def test_a_commit_is_streamed_after_it_is_stored() -> None:
    """And never if the store fails."""
    store = FailingMemory()
    program = KINDS["chain"].compile("sync", store)
    thread = program.thread("t")
    for event in thread.stream(INPUTS):
        if isinstance(event, Committed):
            assert event.commit.id in finished(store, "t")
    store.arm(disk_full, 4, after=False)
    events, run, error = _drained(program.thread("failing"), "run")
    assert isinstance(error, StoreError)
    assert run is not None
    assert [event.commit.node for event in events if isinstance(event, Committed)] == ["START", "a"]


def test_a_stream_begins_with_its_first_event_and_owns_its_thread_until_the_last() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(state: Any) -> dict[str, Any]:
        inside.set()
        assert go_on.wait(20)
        return {"log": ["slow"]}

    graph = Graph(State, inputs=[]).add_node("slow", slow).add_path(START, "slow", END)
    thread = graph.compile(store=FailingMemory()).thread("t")
    stream = thread.stream({})
    assert thread.status == "new"
    next(stream)
    assert inside.wait(20)
    assert thread.status == "running"
    for other in (thread.stream({}), thread.stream_resume()):
        with pytest.raises(ConcurrentRunError):
            next(other)
    go_on.set()
    assert isinstance(list(stream)[-1], RunEnded)
    assert thread.status == "completed"
