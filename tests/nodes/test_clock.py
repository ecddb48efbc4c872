"""`dspyer.testing.clock()`: time stands but for `advance`, for everything in the package that waits for a time."""

from __future__ import annotations

import asyncio
import math
import threading
import time as real
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel
from tenacity import wait_fixed

from dspyer import END, START, Budget, Cache, CompiledGraph, Graph, Retry, live, reducers
from dspyer.errors import BudgetError, ConcurrentRunError, NodeTimeoutError
from dspyer.lms import reliable
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Change
from dspyer.testing import FakeClock, ScriptedLM, clock, no_pauses

MODES = pytest.mark.parametrize("mode", ["sync", "async"])


class Gate:
    """A node that waits for the test."""

    def __init__(self) -> None:
        self.inside, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> dict[str, Any]:
        self.inside.set()
        assert self.opened.wait(20)
        return {}


@pytest.fixture
def gate() -> Iterator[Gate]:
    found = Gate()
    yield found
    found.opened.set()


@pytest.fixture
def time(gate: Gate) -> Iterator[FakeClock]:
    with clock() as found:
        yield found


@pytest.fixture
def start(time: FakeClock, gate: Gate) -> Iterator[Callable[..., Future[Any]]]:
    """Starts a run, or any function, in the background."""
    with ThreadPoolExecutor() as pool:

        def begin(what: Any, mode: str = "sync", **inputs: Any) -> Future[Any]:
            if not hasattr(what, "run"):
                return pool.submit(what)
            return pool.submit(lambda: what.run(inputs) if mode == "sync" else asyncio.run(what.arun(inputs)))

        try:
            yield begin
        finally:
            gate.opened.set()
            time.advance(math.inf)  # a test that has failed waits for nothing


def one_node(node: Any, store: Any = None, **options: Any) -> CompiledGraph:
    graph = Graph(inputs=[]).add_node("node", node, writes=options.pop("writes", []), **options)
    return graph.add_path(START, "node", END).compile(store=store)


@MODES
def test_a_timeout_is_over_when_the_clock_says_so(mode: str, time: FakeClock, gate: Gate, start: Any) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    for node in (gate.__call__, forever):
        run = start(one_node(node, timeout=30), mode)
        assert time.wait_for("timeout") == [30.0]
        time.advance(29)
        assert time.wait_for("timeout") == [1.0]
        assert not run.done()
        time.advance(1)
        assert isinstance(run.result(20).error, NodeTimeoutError)


@MODES
def test_the_time_of_an_attempt_is_what_is_left_of_its_timeout(mode: str, time: FakeClock, start: Any) -> None:
    left: list[float] = []

    def node(ctx: Any) -> None:
        left.append(ctx.seconds_left)
        time.advance(10)
        left.append(ctx.seconds_left)

    assert start(one_node(node, timeout=30), mode).result(20).status == "completed"
    assert left == pytest.approx([30, 20])


def test_a_sync_node_that_takes_too_long_has_timed_out_although_it_returns(time: FakeClock) -> None:
    for _ in range(20):
        assert isinstance(one_node(lambda: time.advance(31), timeout=30).run({}).error, NodeTimeoutError)


@MODES
def test_the_inner_one_of_two_timeouts_ends_first(mode: str, time: FakeClock, start: Any) -> None:
    """The inner graph handles it and goes on, although the outer timeout is nearly over."""

    async def forever() -> None:
        await asyncio.Event().wait()

    inner = Graph().add_node("slow", forever, writes=[], timeout=20).add_node("late", lambda: None, writes=[])
    inner.add_path(START, "slow", END).add_edge("late", END).add_error_edge("slow", "late", on=NodeTimeoutError)
    run = start(one_node(inner.compile(), timeout=30), mode)
    assert time.wait_for("timeout", 2) == [20.0, 30.0]
    time.advance(29.5)
    assert run.result(20).status == "completed"


@MODES
def test_a_pause_before_the_next_attempt(mode: str, time: FakeClock, start: Any) -> None:
    calls: list[int] = []

    def fails(ctx: Any) -> None:
        calls.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError("no line")

    run = start(one_node(fails, retry=Retry(3, wait=wait_fixed(20))), mode)
    for attempt in (1, 2):
        assert time.wait_for("pause") == [20.0]
        time.advance(19)
        assert time.wait_for("pause") == [1.0]
        assert calls[-1] == attempt
        time.advance(1)
    assert run.result(20).status == "completed"
    assert (calls, time.pauses) == ([1, 2, 3], [20.0, 20.0])


@MODES
def test_a_budget_of_seconds_ends_a_pause(mode: str, time: FakeClock, start: Any) -> None:
    def fails() -> None:
        raise ConnectionError("no line")

    graph = Graph().add_node("node", fails, writes=[], retry=Retry(3, wait=wait_fixed(60)))
    run = start(graph.add_path(START, "node", END).compile(budget=Budget(seconds=30)), mode)
    assert time.wait_for("pause") == [30.0]
    time.advance(30)
    assert isinstance(run.result(20).error, BudgetError)


@MODES
def test_a_live_reader_waits_for_the_clock(mode: str, time: FakeClock, gate: Gate, start: Any) -> None:
    class Pad(BaseModel):
        notes: Annotated[list[str], reducers.append, live] = []

    over = threading.Event()

    def reads(ctx: Any) -> None:
        try:
            next(ctx.live("notes", timeout=40))
        finally:
            over.set()

    async def reads_async(ctx: Any) -> None:
        try:
            await anext(ctx.live("notes", timeout=40))
        finally:
            over.set()

    graph = Graph(Pad).add_node("writes", gate.__call__, writes=["notes"])
    graph.add_node("reads", reads if mode == "sync" else reads_async, reads=["notes"], writes=[])
    graph.add_edge(START, ["writes", "reads"]).add_edge(["writes", "reads"], END)
    run = start(graph.compile(), mode)
    assert time.wait_for("live") == [40.0]
    time.advance(40)
    assert over.wait(20)
    gate.opened.set()
    assert "nothing came to the live field 'notes' for 40 seconds" in str(run.result(20).error)


@MODES
def test_the_requests_of_an_lm(mode: str, time: FakeClock, start: Any) -> None:
    """The rate in a minute, and a place among those that are in progress, which a budget does not wait for."""
    lm = reliable(ScriptedLM(lambda prompt: {"answer": "yes"}), requests_per_minute=1)
    ask = dspy.Predict("-> answer")
    program = one_node(ask, writes=None)

    def runs() -> Any:
        with dspy.context(lm=lm):
            return program.run({}) if mode == "sync" else asyncio.run(program.arun({}))

    assert start(runs).result(20).status == "completed"
    second = start(runs)
    assert time.wait_for("pause") == pytest.approx([60.0])
    time.advance(60)
    assert second.result(20).status == "completed"


@MODES
def test_a_request_under_a_budget_waits_for_others_until_its_end(
    mode: str, time: FakeClock, gate: Gate, start: Any
) -> None:
    def answer(prompt: Any) -> dict[str, Any]:
        gate()
        return {"answer": "yes"}

    lm = reliable(ScriptedLM(answer), max_concurrency=1)
    graph = Graph().add_node("ask", dspy.Predict("-> answer")).add_path(START, "ask", END)
    program = graph.compile(budget=Budget(seconds=50))

    def runs() -> Any:
        with dspy.context(lm=lm):
            return program.run({}) if mode == "sync" else asyncio.run(program.arun({}))

    first = start(runs)
    assert gate.inside.wait(20)
    second = start(runs)
    assert time.wait_for("slot") == pytest.approx([50.0], abs=0.01)
    time.advance(51)
    assert isinstance(second.result(20).error, BudgetError)
    gate.opened.set()
    first.result(20)


class Unplugged(Memory):
    """A store to which renewals of a lease do not get through."""

    plugged = True

    def write(self, change: Change) -> Any:
        return super().write(change) if self.plugged or change != Change(*change[:2], lease=change.lease) else None


@pytest.mark.parametrize("kind", ["memory", "sqlite", "unplugged"])
def test_a_lease_is_renewed_by_the_clock_and_ends_by_it(
    kind: str, tmp_path: Path, time: FakeClock, gate: Gate, start: Any
) -> None:
    store: Any = SQLite(tmp_path / "runs.db") if kind == "sqlite" else Unplugged()
    thread = one_node(gate.__call__, store).thread("t")
    run = start(thread)
    assert gate.inside.wait(20)
    for _ in range(4):
        assert time.wait_for("lease") == [10.0]
        time.advance(10)
        time.wait_for("lease")
        with pytest.raises(ConcurrentRunError):
            thread.resume()
    if kind == "unplugged":
        store.plugged = False
        time.advance(31)
        assert one_node(lambda: None, store).thread("t").resume().status == "completed"
        gate.opened.set()
        assert isinstance(run.result(20).error, ConcurrentRunError)
    else:
        gate.opened.set()
        assert run.result(20).status == "completed"


def test_a_run_waits_for_a_thread_by_the_clock(time: FakeClock, gate: Gate, start: Any) -> None:
    program = one_node(gate.__call__, ":memory:")
    first = start(program.thread("t"))
    assert gate.inside.wait(20)
    second = start(lambda: program.thread("t").run({}, on_conflict="wait", lock_timeout=100))
    while not second.done():  # whenever it has begun to wait
        time.wait_for("lease")  # the first run has renewed its lease
        time.advance(9)
    assert isinstance(second.exception(), ConcurrentRunError)
    gate.opened.set()
    assert first.result(20).status == "completed"


def test_a_cached_reply_is_kept_by_the_clock(tmp_path: Path, time: FakeClock) -> None:
    graph = Graph().add_node("node", lambda: {"text": "a"}, writes=["text"], cache=Cache(ttl=60, folder=tmp_path))
    program = graph.add_path(START, "node", END).compile()
    cached = []
    for seconds in (0, 59, 2):
        time.advance(seconds)
        cached.append(program.run({}).commits[-1].cached)
    assert cached == [False, True, False]


def test_pauses_may_be_skipped_while_time_stands(time: FakeClock, gate: Gate, start: Any) -> None:
    def fails_once(ctx: Any) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("no line")
        gate()

    with no_pauses() as pauses:
        run = start(one_node(fails_once, retry=Retry(2, wait=wait_fixed(20)), timeout=30))
        assert gate.inside.wait(20)
        assert (pauses, time.pauses) == ([20.0], pauses)
        assert time.wait_for("timeout") == [30.0]
    assert time.pauses == []
    time.advance(31)
    assert isinstance(run.result(20).error, NodeTimeoutError)


def test_time_that_stands_among_skipped_pauses() -> None:
    def fails_once(ctx: Any) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("no line")

    with no_pauses() as pauses, clock() as time:
        assert one_node(fails_once, retry=Retry(2, wait=wait_fixed(20))).run({}).status == "completed"
        assert time.pauses == [20.0]
    assert pauses == [20.0]


def test_a_skipped_pause_is_time_that_has_passed() -> None:
    inner = one_node(lambda: 1 / 0, retry=Retry(3, wait=wait_fixed(20), on=ZeroDivisionError))
    began = real.monotonic()
    with no_pauses() as pauses:
        run = one_node(inner, timeout=30).run({})
    assert pauses == [20.0, 20.0]
    assert isinstance(run.error, NodeTimeoutError)
    assert real.monotonic() - began < 20


def test_what_still_waits_at_the_end_waits_no_longer(gate: Gate) -> None:
    with ThreadPoolExecutor() as pool:
        with clock() as time:
            run = pool.submit(one_node(gate.__call__, timeout=3000).run, {})
            time.wait_for("timeout")
        assert isinstance(run.result(20).error, NodeTimeoutError)


def test_a_wait_that_does_not_come_is_an_error_that_says_what_waits(time: FakeClock, gate: Gate, start: Any) -> None:
    with pytest.raises(TimeoutError, match=r"only 0 of 1 'pause' waited within 0 s; what waits: (nothing|'idle')"):
        time.wait_for("pause", patience=0)
    start(one_node(gate.__call__, timeout=30))
    time.wait_for("timeout")
    with pytest.raises(TimeoutError, match=r"only 1 of 2 'timeout' waited within 0 s; what waits: .*'timeout'"):
        time.wait_for("timeout", 2, patience=0)
