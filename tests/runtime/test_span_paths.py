"""Spans on the paths that are easily forgotten: what is cancelled, left running or dropped, and tools that raise."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import dspy
import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler

from dspyer import END, START, CompiledGraph, Context, Graph
from dspyer.events import NodeStarted
from dspyer.stores import Memory
from dspyer.stores.base import Change
from tests.runtime import test_garbage as garbage
from tests.runtime.conftest import Play
from tests.runtime.traces import Traces, metering, tracing
from tests.timeouts import TimeIsOver


def one(node: Any, **options: Any) -> Graph:
    return Graph(name="One").add_node("one", node, writes=["n"], **options).add_path(START, "one", END)


def two() -> CompiledGraph:
    graph = Graph(name="Two").add_node("a", lambda: {"a": 1}, writes=["a"]).add_node("b", lambda: {"b": 1})
    return (
        graph.add_node("c", lambda a, b: {"c": 1})
        .add_edge(START, ["a", "b"])
        .add_edge(["a", "b"], "c")
        .add_edge("c", END)
        .compile()
    )


def status(traces: Traces, name: str) -> Any:
    return (traces.named(name).attributes or {}).get("dspyer.status")


# --- tools that raise


class Raising(SpanProcessor):
    """A processor that raises at one of its methods."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.raised = 0

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self._raise("on_start")

    def on_end(self, span: Any) -> None:
        self._raise("on_end")

    def _raise(self, method: str) -> None:
        if method == self.method:
            self.raised += 1
            raise RuntimeError("broken")


class BrokenSampler(Sampler):
    def should_sample(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("broken")

    def get_description(self) -> str:
        return "broken"


def test_a_tool_that_raises_breaks_no_run_and_is_logged_once(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    for method in ("on_start", "on_end", "sampler"):
        processor = Raising(method)
        sampler = BrokenSampler() if method == "sampler" else None
        caplog.clear()
        with tracing(sampler, processor), caplog.at_level(logging.WARNING, "dspyer"):
            run = play(two(), {})
            assert run.status == "completed"
            assert not trace.get_current_span().get_span_context().is_valid
        assert len([record for record in caplog.records if "could not record a span" in record.message]) == 1, method
        assert processor.raised == (0 if sampler else 4)


def test_an_error_without_a_text_is_recorded_with_its_type(
    traces: Traces, caplog: pytest.LogCaptureFixture, play: Play
) -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    def fail() -> Any:
        raise OddError

    with caplog.at_level(logging.WARNING, "dspyer"), pytest.raises(OddError):
        play(one(fail).compile(), {}).raise_error()
    for name in ("invoke_node one", "invoke_workflow One"):
        assert traces.named(name).status.status_code is trace.StatusCode.ERROR
        assert str(traces.events(name)[0][1]["exception.type"]).endswith("OddError")
    assert "span" not in caplog.text


def test_a_provider_that_cannot_be_loaded_leaves_the_run_untraced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise RuntimeError("no such provider")

    monkeypatch.setattr(trace, "get_tracer_provider", broken)
    assert one(lambda: {"n": 1}).compile().run({}).status == "completed"
    assert "no usable tracer provider" in caplog.text


# --- spans that are not recorded


def test_unsampled_spans_are_passed_on_and_record_nothing(play: Play) -> None:
    def see() -> dict[str, Any]:
        found = trace.get_current_span()
        return {"n": (found.is_recording(), found.get_span_context().is_valid)}

    with tracing(ALWAYS_OFF) as traces:
        assert play(one(see, timeout=60).compile(), {}).state["n"] == (False, True)
        with pytest.raises(ZeroDivisionError):
            play(one(lambda: 1 // 0).compile(), {}).raise_error()
    assert traces.spans == []


# --- where the caller is


def test_a_run_is_below_the_span_that_is_current_at_the_caller(traces: Traces, play: Play) -> None:
    with trace.get_tracer("web").start_as_current_span("GET /answer") as request:
        play(two(), {})
        assert trace.get_current_span() is request
    assert traces.tree() == (
        "GET /answer\n  invoke_workflow Two\n    invoke_node a\n    invoke_node b\n    invoke_node c"
    )


def test_a_stream_is_below_the_span_that_is_current_when_it_begins(traces: Traces) -> None:
    stream = two().stream({})
    with trace.get_tracer("web").start_as_current_span("reader"):
        next(stream)
    list(stream)
    assert traces.named("invoke_workflow Two").parent is not None


def test_runs_in_several_threads_are_trees_of_their_own(traces: Traces) -> None:
    program = two()
    threads = [threading.Thread(target=program.run, args=({},)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert traces.tree() == "\n".join(["invoke_workflow Two\n  invoke_node a\n  invoke_node b\n  invoke_node c"] * 4)
    assert len({span.context.trace_id for span in traces.spans}) == 4


def test_a_context_that_a_node_leaves_behind_ends_with_the_node(traces: Traces, play: Play) -> None:
    def leave() -> dict[str, Any]:
        context.attach(context.set_value("left", True))
        return {"n": context.get_value("left")}

    graph = Graph(name="Left").add_node("one", leave, writes=["n"])
    graph.add_node("two", lambda: {"m": str(context.get_value("left"))}, writes=["m"]).add_path(
        START, "one", "two", END
    )
    run = play(graph.compile(), {})
    assert (run.state["n"], run.state["m"]) == (True, "None")
    assert context.get_value("left") is None


# --- what is cancelled, left running or dropped


async def forever(ctx: Context) -> dict[str, int]:
    ctx.emit("begun")
    await asyncio.Event().wait()
    return {"n": 1}


def test_a_cancelled_run_ends_its_spans(traces: Traces) -> None:
    async def main() -> None:
        stream = one(forever).compile().astream({})
        async for event in stream:
            if isinstance(event, NodeStarted):
                break
        await stream.aclose()
        assert not trace.get_current_span().get_span_context().is_valid

    asyncio.run(main())
    assert status(traces, "invoke_node one") == status(traces, "invoke_workflow One") == "stopped"


def test_a_coroutine_that_is_closed_elsewhere_leaves_the_context_there_as_it_is(traces: Traces) -> None:
    kept: list[bool] = []

    async def main() -> None:
        begun = one(forever).compile().arun({})
        copy_context().run(begun.send, None)
        with trace.get_tracer("web").start_as_current_span("another"):
            here = context.get_current()
            with suppress(ValueError):  # of DSPy, whose settings are those of a context
                begun.close()
            kept.append(context.get_current() is here)

    with suppress(asyncio.CancelledError):  # the run has cancelled the task that it was in
        asyncio.run(main())
    assert kept == [True]
    assert status(traces, "invoke_workflow One") == "stopped"


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_thread_that_is_left_running_ends_its_own_spans(traces: Traces, how: str, time_is_over: TimeIsOver) -> None:
    going, ended = threading.Event(), threading.Event()

    def slow() -> dict[str, Any]:
        with trace.get_tracer("node").start_as_current_span("late"):
            time_is_over()
            going.wait(20)
        ended.set()
        return {"n": 1}

    graph = one(slow, timeout=0.01).add_node("next", lambda: {"n": 2}, writes=["n"]).add_edge("next", END)
    program = graph.add_error_edge("one", "next").compile()
    run = program.run({}) if how == "sync" else asyncio.run(program.arun({}))
    assert run.state["n"] == 2
    assert traces.tree() == "invoke_workflow One\n  invoke_node next\n  invoke_node one"
    going.set()
    assert ended.wait(20)
    assert traces.named("late").parent is not None


def test_a_run_inside_a_thread_that_is_left_running_ends_its_spans(traces: Traces, time_is_over: TimeIsOver) -> None:
    going, ended = threading.Event(), threading.Event()

    def slow() -> dict[str, Any]:
        time_is_over()
        going.wait(20)
        ended.set()
        return {"n": 1}

    graph = Graph(name="Outer").add_node("sub", one(slow).compile(), timeout=0.01).add_node("next", lambda: {"m": 1})
    program = graph.add_path(START, "sub", END).add_error_edge("sub", "next").add_edge("next", END).compile()
    assert program.run({}).status == "completed"
    going.set()
    assert ended.wait(20)
    time_is_over.wait_for_workers()
    assert traces.tree().count("invoke_node one") == 1


def test_ctrl_c_ends_the_spans(traces: Traces) -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one(interrupt).compile().run({})
    assert traces.tree() == "invoke_workflow One\n  invoke_node one"
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_store_that_fails_ends_the_spans_of_what_it_did_not_write(traces: Traces) -> None:
    class Full(Memory):
        full = False

        def write(self, change: Change) -> int:
            if self.full and change.rows:
                raise OSError("no space left")
            return super().write(change)

        def write_now(self, change: Change) -> bool:
            self.write(change)
            return True

    store = Full()

    def fill() -> dict[str, int]:
        store.full = True
        return {"n": 1}

    assert one(fill).compile(store=store).thread("t").run({}).status == "failed"
    assert status(traces, "invoke_node one") == "stopped"
    assert traces.named("invoke_workflow One").status.status_code is trace.StatusCode.ERROR


# --- nothing is left behind

KINDS = ["loop", "fork", "map", "live", "graph inside", "asks"]


@pytest.mark.parametrize("how", ["call", "arun", "stored", "resumed", "streamed", "streamed, async"])
def test_a_traced_run_leaves_nothing_to_the_cyclic_collector(how: str) -> None:
    with tracing() as traces, metering(), dspy.context(lm=garbage.ONE_LM):

        async def use(program: CompiledGraph) -> None:
            traces.clear()
            await garbage.quietly(garbage.USES[how], program)
            traces.clear()

        assert asyncio.run(garbage.all_garbage(use, KINDS)) == {}
