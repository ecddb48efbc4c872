"""OpenTelemetry: the spans of a run and of its nodes form one tree, in every mode, and are ended on every path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

from dspyer import END, START, CompiledGraph, Context, Graph, Retry
from dspyer.runtime import spans as module
from dspyer.testing import no_pauses
from tests.runtime.conftest import Play
from tests.runtime.traces import Traces


def current() -> str:
    """The name of the current span."""
    return str(getattr(trace.get_current_span(), "name", ""))


def see(name: str) -> Any:
    """A node that writes which span is current while it runs."""

    def node() -> dict[str, str]:
        return {name: current()}

    return node


def asee(name: str) -> Any:
    async def node() -> dict[str, str]:
        await asyncio.sleep(0)
        return {name: current()}

    return node


def flaky(ctx: Context) -> dict[str, str]:
    if ctx.attempt < 3:
        raise ConnectionError("no line")
    return {"flaky": current()}


def inner() -> CompiledGraph:
    return Graph(name="Inner").add_node("deep", see("deep"), writes=["deep"]).add_path(START, "deep", END).compile()


def everything() -> CompiledGraph:
    """A graph with a fork, a join, a router, a map, graphs inside, timeouts, further attempts, sync and async code."""

    def call(helper: CompiledGraph, ctx: Context) -> dict[str, str]:
        return {"called": ctx.call(helper, {}).deep}

    graph = Graph(
        name="All", outputs=["joined", "found", "deep", "called", "left", "right", "timed", "atimed", "flaky"]
    )
    graph.add_node("left", see("left"), writes=["left"]).add_node("right", asee("right"), writes=["right"])
    graph.add_node("timed", see("timed"), writes=["timed"], timeout=60)
    graph.add_node("atimed", asee("atimed"), writes=["atimed"], timeout=60)
    graph.add_node("joined", lambda: {"joined": current(), "docs": [1, 2]}, writes=["joined", "docs"])
    graph.add_map("each", lambda doc: current(), over="docs", item="doc", into="found")
    graph.add_node("flaky", flaky, writes=["flaky"], retry=Retry(3))
    graph.add_node("inner", inner(), writes={"deep": "deep"})
    graph.add_node("call", call, writes=["called"], modules={"helper": inner()})
    graph.add_edge(START, ["left", "right", "timed", "atimed"])
    graph.add_edge(["left", "right", "timed", "atimed"], "joined")
    graph.add_conditional_edges("joined", lambda: "each", ["each", END])
    return graph.add_path("each", "flaky", "inner", "call", END).compile()


TREE = """\
invoke_workflow All
  invoke_node atimed
  invoke_node call
    invoke_workflow Inner
      invoke_node deep
  invoke_node each
    item 0
    item 1
  invoke_node flaky
    attempt 2
    attempt 3
  invoke_node inner
    invoke_workflow Inner
      invoke_node deep
  invoke_node joined
  invoke_node left
  invoke_node right
  invoke_node timed"""

SEEN = {
    "left": "invoke_node left",
    "right": "invoke_node right",
    "timed": "invoke_node timed",
    "atimed": "invoke_node atimed",
    "joined": "invoke_node joined",
    "found": ["item 0", "item 1"],
    "flaky": "attempt 3",
    "deep": "invoke_node deep",
    "called": "invoke_node deep",
}


def test_a_run_is_one_tree_and_the_span_of_a_node_is_current_while_it_runs(traces: Traces, play: Play) -> None:
    with no_pauses():
        run = play(everything(), {})
    assert run.status == "completed", run.error
    assert dict(run.prediction.items()) == SEEN
    assert traces.tree() == TREE
    assert current() == ""
    assert nested(traces)


def nested(traces: Traces) -> bool:
    """Whether every span lies within its parent in time."""
    by_id = {span.context.span_id: span for span in traces.spans}
    for span in traces.spans:
        parent = None if span.parent is None else by_id.get(span.parent.span_id)
        assert span.end_time is not None
        if parent is not None:
            assert times(parent)[0] <= times(span)[0] <= times(span)[1] <= times(parent)[1], span.name
    return True


def times(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


@pytest.mark.parametrize("provider", [None, trace.ProxyTracerProvider(), trace.NoOpTracerProvider()])
def test_without_a_provider_no_span_object_is_made(provider: Any, monkeypatch: pytest.MonkeyPatch, play: Play) -> None:
    made: list[object] = []
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(trace.NoOpTracer, "start_span", lambda *args, **options: made.append(args))
    monkeypatch.setattr(trace.NonRecordingSpan, "__init__", lambda *args: made.append(args))
    monkeypatch.setattr(module.RunSpans, "__init__", lambda *args: made.append(args))
    with no_pauses():
        run = play(everything(), {})
    assert run.status == "completed"
    assert made == []
