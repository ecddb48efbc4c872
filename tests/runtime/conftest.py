"""One test body for sync and async: a test that takes `play` runs in each place where a program may be called."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest

from dspyer import CompiledGraph, Run
from tests.runtime.traces import Traces, tracing

Play = Callable[..., Run]


def _sync(program: CompiledGraph, inputs: dict[str, Any], **options: Any) -> Run:
    return program.run(inputs, **options)


def _async(program: CompiledGraph, inputs: dict[str, Any], **options: Any) -> Run:
    return asyncio.run(program.arun(inputs, **options))


def _inside_a_loop(program: CompiledGraph, inputs: dict[str, Any], **options: Any) -> Run:
    """A sync call on the thread of a running event loop, as in a notebook."""

    async def cell() -> Run:
        return program.run(inputs, **options)

    return asyncio.run(cell())


def _asyncified(program: CompiledGraph, inputs: dict[str, Any], **options: Any) -> Run:
    """A sync call in an AnyIO worker thread, as under `dspy.asyncify` and `dspy.streamify`."""

    async def call() -> Run:
        run: Run = await dspy.asyncify(program.run)(inputs, **options)
        return run

    return asyncio.run(call())


def _streamed(program: CompiledGraph, inputs: dict[str, Any], **options: Any) -> Run:
    stream = program.stream(inputs, **options)
    try:
        for _ in stream:
            pass
    except Exception:
        if stream.run is None:
            raise
    assert stream.run is not None
    return stream.run


PLAYS = {
    "sync": _sync,
    "async": _async,
    "inside a loop": _inside_a_loop,
    "asyncified": _asyncified,
    "streamed": _streamed,
}


@pytest.fixture(params=["sync", "async"])
def play(request: pytest.FixtureRequest) -> Play:
    """An async run, and a run of sync code in one of the four places where that is called from.

    Which one is drawn by the name of the test, the same in every run: a failure shows its function. What may differ
    between the places takes `everywhere`.
    """
    if request.param == "async":
        return _async
    places = [play for name, play in PLAYS.items() if name != "async"]
    return places[zlib.crc32(request.node.nodeid.encode()) % len(places)]


@pytest.fixture(params=list(PLAYS.values()), ids=list(PLAYS))
def everywhere(request: pytest.FixtureRequest) -> Play:
    """A run in each place, one after the other."""
    chosen: Play = request.param
    return chosen


@pytest.fixture
def traces() -> Iterator[Traces]:
    with tracing() as found:
        yield found
