"""A stored run keeps its trace: a resume continues it, in another process too; what runs a day later links to it."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from dspyer import END, START, CompiledGraph, Context, Graph, Run, Thread
from dspyer.stores import Memory
from dspyer.stores.base import Change, Row, Store
from tests.log.processes import end_of, fork
from tests.runtime.traces import Traces, tracing

HOW = pytest.mark.parametrize("how", ["sync", "async"])


def asks(store: Any, **options: Any) -> CompiledGraph:
    def ask(ctx: Context) -> dict[str, Any]:
        return {"ok": ctx.interrupt("ok", "go on?")}

    graph = Graph(name="Asks").add_node("first", lambda: {"n": 1}, writes=["n"]).add_node("ask", ask, writes=["ok"])
    graph.add_node("last", lambda ok: {"done": ok}, writes=["done"])
    return graph.add_path(START, "first", "ask", "last", END).compile(store=store, **options)


def run(thread: Thread, how: str, **options: Any) -> Run:
    return thread.run({}, **options) if how == "sync" else asyncio.run(thread.arun({}, **options))


def resume(thread: Thread, how: str, *args: Any) -> Run:
    return thread.resume(*args) if how == "sync" else asyncio.run(thread.aresume(*args))


def rows(store: Store, traces: bool = True) -> list[Row]:
    """The rows of traces, or all others, of all runs of the thread `t`."""
    found = store.thread("t")
    assert found is not None
    assert found.head is not None
    return [row for row in store.rows(found.head.run, 0, found.head.seq) if (row.kind == "trace") is traces]


RESUMED = """\
invoke_workflow Asks
  invoke_node ask
  invoke_node first
  invoke_workflow Asks
    invoke_node ask
    invoke_node last"""


@HOW
def test_a_resume_continues_the_trace(traces: Traces, how: str) -> None:
    store = Memory()
    thread = asks(store).thread("t")
    assert run(thread, how).status == "interrupted"
    assert resume(thread, how, {"ok": True}).status == "completed"
    assert traces.tree() == RESUMED
    assert len({span.context.trace_id for span in traces.spans}) == 1
    (row,) = rows(store)
    assert row.header["carrier"]["traceparent"].split("-")[1] == f"{traces.spans[0].context.trace_id:032x}"


@HOW
def test_a_resume_below_the_span_of_a_request_continues_the_trace_and_links_to_the_request(
    traces: Traces, how: str
) -> None:
    thread = asks(Memory()).thread("t")
    tracer = trace.get_tracer("web")
    with tracer.start_as_current_span("POST /chats") as first:
        run(thread, how)
    with tracer.start_as_current_span("POST /answers") as second:
        resume(thread, how, {"ok": True})
        assert trace.get_current_span() is second
    begun, resumed = [span for span in traces.spans if span.name.startswith("invoke_workflow")]
    assert begun.parent is not None
    assert begun.parent.span_id == first.get_span_context().span_id
    assert resumed.parent is not None
    assert resumed.parent.span_id == begun.context.span_id
    assert [link.context.span_id for link in resumed.links] == [second.get_span_context().span_id]


def test_a_graph_inside_of_a_resumed_run_has_no_link_of_its_own(traces: Traces) -> None:
    inner = Graph(name="Inner").add_node("one", lambda ok: {"n": 1}, writes=["n"]).add_path(START, "one", END)
    ask = Graph(name="Asks").add_node("ask", lambda ctx: {"ok": ctx.interrupt("ok", "go on?")}, writes=["ok"])
    thread = ask.add_node("sub", inner.compile()).add_path(START, "ask", "sub", END).compile(store=Memory()).thread("t")
    thread.run({})
    with trace.get_tracer("web").start_as_current_span("POST /answers"):
        thread.resume({"ok": True})
    assert [len(span.links) for span in traces.spans if span.name.startswith("invoke_workflow")] == [0, 1, 0]


def test_a_resume_within_the_trace_is_below_the_current_span(traces: Traces) -> None:
    thread = asks(Memory()).thread("t")
    with trace.get_tracer("web").start_as_current_span("job"):
        thread.run({})
        thread.resume({"ok": True})
    assert traces.tree() == (
        "job\n  invoke_workflow Asks\n    invoke_node ask\n    invoke_node first\n"
        "  invoke_workflow Asks\n    invoke_node ask\n    invoke_node last"
    )


def links_of(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


@HOW
def test_a_resume_after_a_day_begins_a_trace_that_links_to_it(
    traces: Traces, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Memory()
    thread = asks(store).thread("t")
    run(thread, how)
    (begun,) = [span for span in traces.spans if span.parent is None]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 24 * 60 * 60 + 2)
    resume(thread, how)  # without the answer: it asks again
    *_, resumed = [span for span in traces.spans if span.parent is None]
    assert resumed.context.trace_id != begun.context.trace_id
    assert links_of(resumed) == [begun.context.span_id]
    assert len(rows(store)) == 2
    resume(thread, how, {"ok": True})  # within a day of the second trace
    assert len({span.context.trace_id for span in traces.spans}) == 2
    assert len(rows(store)) == 2


def test_a_rerun_and_a_copy_begin_traces_that_link_to_the_original(traces: Traces) -> None:
    program = asks(Memory())
    thread = program.thread("t")
    thread.run({})
    (begun,) = [span for span in traces.spans if span.parent is None]
    thread.copy(to="copy")
    program.thread("copy").resume({"ok": True})
    thread.rerun(1)
    _, copied, rerun = [span for span in traces.spans if span.parent is None]
    assert links_of(copied) == links_of(rerun) == [begun.context.span_id]
    assert (copied.attributes or {})["session.id"] == "copy"


def test_a_run_without_a_trace_that_is_resumed_with_one_begins_one() -> None:
    store = Memory()
    thread = asks(store).thread("t")
    thread.run({})
    assert rows(store) == []
    with tracing() as traces:
        thread.resume({"ok": True})
        assert traces.tree() == "invoke_workflow Asks\n  invoke_node ask\n  invoke_node last"
    assert len(rows(store)) == 1


def test_a_damaged_trace_row_breaks_no_resume(traces: Traces) -> None:
    class Damaged(Memory):
        def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
            found = super().rows(run, first, last)
            broken = {"carrier": {"traceparent": "00-zz"}, "at": 0, "thread": "t"}
            return [row._replace(header=broken) if row.kind == "trace" else row for row in found]

    thread = asks(Damaged()).thread("t")
    thread.run({})
    assert thread.resume({"ok": True}).status == "completed"


class ToFile(SpanExporter):
    """Writes each span as it ends: what a process has exported when it is killed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def export(self, spans: Any) -> SpanExportResult:
        with self.path.open("ab") as file:
            for span in spans:
                parent = None if span.parent is None else span.parent.span_id
                pickle.dump((span.name, span.context.trace_id, span.context.span_id, parent), file)
        return SpanExportResult.SUCCESS


def exported(path: Path) -> list[tuple[str, int, int, int | None]]:
    found = []
    with path.open("rb") as file:
        while file.peek(1):
            found.append(pickle.load(file))
    return found


@HOW
def test_after_a_kill_the_resume_of_another_process_continues_the_trace(tmp_path: Path, how: str) -> None:
    """The spans that the killed process had not ended are lost; those of both processes hang below the run's span."""
    address, files = str(tmp_path / "runs.db"), [tmp_path / "first", tmp_path / "second"]

    def die() -> dict[str, Any]:
        if not files[1].exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return {"died": True}

    def process(file: Path, work: Any) -> int:
        def inside() -> None:
            file.touch()
            with tracing(processor=SimpleSpanProcessor(ToFile(file))):
                graph = Graph(name="Dies").add_node("first", lambda: {"n": 1}, writes=["n"])
                graph.add_node("die", die, writes=["died"]).add_path(START, "first", "die", END)
                assert work(graph.compile(store=address).thread("t")).status == "completed"

        return end_of(fork(inside))

    assert process(files[0], lambda thread: run(thread, how)) == -signal.SIGKILL
    assert process(files[1], lambda thread: resume(thread, how)) == 0
    (first,), (die_span, again) = map(exported, files)
    assert (first[0], die_span[0], again[0]) == ("invoke_node first", "invoke_node die", "invoke_workflow Dies")
    assert first[1] == die_span[1] == again[1], "one trace"
    assert die_span[3] == again[2]
    assert first[3] == again[3], "both below the span of the run, which the kill has lost"


# --- a trace is no part of what a run is


def plain(store: Store) -> list[Any]:
    """What a thread's rows hold, but times and ids of processes."""
    return [
        (
            row.kind,
            {
                name: part
                for name, part in row.header.items()
                if name not in ("at", "visits") and not isinstance(part, int | float)
            },
        )
        for row in rows(store, traces=False)
    ]


class Slow(Memory):
    """Notes when it is asked to write."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[int] = []

    def write(self, change: Change) -> int:
        self.times.append(time.time_ns())
        return super().write(change)

    def write_now(self, change: Change) -> bool:
        self.write(change)
        return True


@HOW
def test_a_traced_run_makes_no_further_write_and_spans_end_before_the_write_of_their_commit(how: str) -> None:
    stores = Slow(), Slow()
    run(asks(stores[0], answers={"ok": True}).thread("t"), how)
    with tracing() as traces:
        run(asks(stores[1], answers={"ok": True}).thread("t"), how)
    assert len(stores[0].times) == len(stores[1].times)
    ends = [span.end_time or 0 for span in traces.spans if span.name.startswith("invoke_node")]
    first, *_ = (moment for moment in stores[1].times if moment > ends[0])
    begun = [span.start_time or 0 for span in traces.spans if span.name.startswith("invoke_node")]
    assert ends[0] < first < begun[1]
    assert ends[-1] < stores[1].times[-1]


@HOW
def test_a_traced_run_writes_what_an_untraced_one_writes_and_one_row(how: str) -> None:
    stores = Memory(), Memory()
    found = []
    for store, traced in zip(stores, (False, True), strict=True):
        program = asks(store)
        if traced:
            with tracing():
                run(program.thread("t"), how)
                ended = resume(program.thread("t"), how, {"ok": True})
        else:
            run(program.thread("t"), how)
            ended = resume(program.thread("t"), how, {"ok": True})
        history = program.thread("t").history()
        found.append((ended.state, [(c.id, c.version, c.node, c.patch, c.parents) for c in history], plain(store)))
    assert found[0] == found[1]
    assert [len(rows(store)) for store in stores] == [0, 1]


def test_a_traced_thread_is_read_exported_and_loaded(traces: Traces, tmp_path: Path) -> None:
    program = asks(Memory())
    thread = program.thread("t")
    thread.run({})
    assert thread.at(1)["n"] == thread.at(thread.history()[1].id)["n"] == 1
    thread.export(tmp_path / "t.zip")
    for name, number in (("t", 1), ("u", 2)):  # under another name it is a copy
        loaded = asks(Memory()).thread(name)
        loaded.load(tmp_path / "t.zip")
        assert loaded.status == "interrupted"
        assert loaded.resume({"ok": True}).status == "completed"
        assert len({span.context.trace_id for span in traces.spans}) == number
        assert (traces.spans[-1].attributes or {})["session.id"] == name
