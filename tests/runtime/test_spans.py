"""OpenTelemetry: the spans of a run and of its nodes form one tree, in every mode, and are ended on every path."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from dspy.utils.exceptions import LMRateLimitError
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan
from pydantic import BaseModel

from dspyer import (
    END,
    START,
    Breakpoints,
    Cache,
    CompiledGraph,
    Context,
    Graph,
    Retry,
    agents,
    live,
    reducers,
)
from dspyer.errors import MapError
from dspyer.testing import ScriptedLM, no_pauses
from tests.runtime.conftest import Play
from tests.runtime.traces import Traces, metering


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


def test_without_a_provider_no_span_object_is_made(monkeypatch: pytest.MonkeyPatch, play: Play) -> None:
    made: list[object] = []
    monkeypatch.setattr(trace.NoOpTracer, "start_span", lambda *args, **options: made.append(args))
    monkeypatch.setattr(trace, "NonRecordingSpan", lambda *args: made.append(args))
    for provider in (trace.ProxyTracerProvider(), trace.NoOpTracerProvider()):
        monkeypatch.setattr(trace, "get_tracer_provider", lambda provider=provider: provider)
        with no_pauses():
            run = play(everything(), {})
        assert run.status == "completed"
    assert made == []


def test_a_program_without_opentelemetry_enters_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("context", "trace", "metrics"):
        monkeypatch.delitem(sys.modules, f"opentelemetry.{part}", raising=False)
    program, entered = inner(), set[str]()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: entered.add(frame.f_code.co_filename))
    try:
        program()
        program.run({})
    finally:
        sys.setprofile(before)
    assert any("/dspyer/runtime/" in name for name in entered)
    assert not [name for name in entered if "/dspyer/tracing/" in name]


def test_a_program_that_suppresses_instrumentation_is_not_traced(traces: Traces) -> None:
    token = context.attach(context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, True))
    try:
        assert inner()().deep == ""
    finally:
        context.detach(token)
    assert traces.spans == []


# --- attributes and events


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "tracing.md"
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


FIELDS = ["n", "secret"]


class Board(BaseModel):
    n: int = 0
    secret: str = ""
    notes: Annotated[list[str], reducers.append, live] = []
    problem: Any = None


def test_the_attributes_of_a_stored_run(traces: Traces, play: Play) -> None:
    graph = Graph(Board, inputs=FIELDS, name="Facts").add_node("one", lambda n: {"n": n + 1}, writes=["n"])
    graph.add_node("two", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "one", "two", END)
    run = play(graph.compile(store=":memory:").thread("t-42"), {"n": 1})
    (root,) = [span for span in traces.spans if span.parent is None]
    common = {"session.id": "t-42", "gen_ai.conversation.id": "t-42", "openinference.span.kind": "CHAIN"}
    assert dict(root.attributes or {}) == common | {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "Facts",
        "dspyer.run_id": run.run_id,
        "dspyer.status": "completed",
    }
    assert root.kind is trace.SpanKind.INTERNAL
    assert dict(traces.named("invoke_node two").attributes or {}) == common | {
        "gen_ai.operation.name": "invoke_node",
        "graph.node.id": "two",
        "graph.node.name": "two",
        "graph.node.parent_id": "one",
        "dspyer.branch": "trunk",
        "dspyer.visit": 1,
        "dspyer.execution": "trunk:2",
        "dspyer.version": 2,
    }


def test_the_session_is_the_thread_or_that_of_the_program(traces: Traces, play: Play) -> None:
    """The instrumentation of OpenInference puts the session of the context on DSPy's spans."""

    def see() -> dict[str, Any]:
        return {"n": str(context.get_value("session.id"))}

    program = Graph(name="See").add_node("see", see, writes=["n"]).add_path(START, "see", END).compile(store=":memory:")
    assert play(program.thread("t-1"), {}).state["n"] == "t-1"
    own = context.attach(context.set_value("session.id", "web"))
    try:
        assert play(program.thread("t-2"), {}).state["n"] == "web"
    finally:
        context.detach(own)
    found = [dict(span.attributes or {}) for span in traces.spans]
    assert [one["session.id"] for one in found] == ["t-1", "t-1", "web", "web"]
    assert [one["gen_ai.conversation.id"] for one in found] == ["t-1", "t-1", "t-2", "t-2"]
    assert context.get_value("session.id") is None


def test_nodes_of_graphs_inside_have_ids_below_that_of_their_node(traces: Traces) -> None:
    everything_with = Graph(name="Outer").add_node("sub", inner()).add_path(START, "sub", END).compile()
    everything_with.run({})
    deep, sub = traces.named("invoke_node deep").attributes or {}, traces.named("invoke_node sub").attributes or {}
    assert (deep["graph.node.id"], deep["graph.node.parent_id"], deep["graph.node.name"]) == ("sub/deep", "sub", "deep")
    assert deep["dspyer.execution"] == "trunk:1/trunk:1"
    assert "graph.node.parent_id" not in sub


def ask_once(ctx: Context) -> dict[str, Any]:
    return {"n": ctx.interrupt("go", "Shall I?")}


def clash() -> Graph:
    graph = Graph(Board, inputs=FIELDS, name="Clash", merge="last_write_wins")
    graph.add_node("a", lambda: {"secret": "a"}, writes=["secret"])
    graph.add_node("b", lambda: {"secret": "b"}, writes=["secret"])
    graph.add_node("c", lambda secret: {"n": 1}, writes=["n"])
    return graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "c").add_edge("c", END)


def chatter() -> Graph:
    def talk(ctx: Context) -> dict[str, Any]:
        ctx.post("notes", "hello")
        if ctx.attempt == 1:
            raise ConnectionError("no line")
        return {}

    graph = Graph(Board, inputs=FIELDS, name="Chatter").add_node("talk", talk, writes=["notes"], retry=2)
    return graph.add_path(START, "talk", END)


def test_joins_and_conflicts_are_events_of_the_run(traces: Traces, play: Play) -> None:
    play(clash().compile(), {})
    assert traces.events("invoke_workflow Clash") == [
        (
            "dspyer.conflict",
            {"join": "c", "path": "secret", "authors": ("a", "b"), "policy": "last_write_wins", "winner": "b"},
        ),
        ("dspyer.join", {"node": "c", "branches": ("0", "1"), "branch": "trunk"}),
    ]


def test_posts_and_failed_attempts_are_events_of_the_node(traces: Traces, play: Play) -> None:
    with no_pauses():
        play(chatter().compile(), {})
    names = [name for name, _ in traces.events("invoke_node talk")]
    assert names == ["dspyer.post", "dspyer.attempt_failed"]  # the second attempt posts the same again
    told = dict(traces.events("invoke_node talk"))
    assert told["dspyer.attempt_failed"] == {
        "attempt": 1,
        "pause": told["dspyer.attempt_failed"]["pause"],
        "exception.type": "ConnectionError",
        "exception.message": "no line",
    }


def test_routes_and_cache_hits_are_events_of_the_node(traces: Traces, tmp_path: Path) -> None:
    graph = Graph(Board, inputs=FIELDS, name="Ways").add_node(
        "a", lambda n: {"n": n + 1}, writes=["n"], cache=Cache(folder=tmp_path)
    )
    graph.add_node("b", lambda n: {"n": n}, writes=["n"]).add_edge(START, "a").add_edge("b", END)
    program = graph.add_conditional_edges("a", lambda n: ["b", END], ["b", END]).compile()
    program.run({"n": 1})
    program.run({"n": 1})
    assert traces.events("invoke_node a") == [
        ("dspyer.route", {"targets": ("b", "END")}),
        ("dspyer.cache_hit", {}),
        ("dspyer.route", {"targets": ("b", "END")}),
    ]
    assert traces.events("invoke_node b") == []


def test_questions_are_events(traces: Traces, play: Play) -> None:
    graph = Graph(Board, inputs=FIELDS, name="Asks").add_node("ask", ask_once, writes=["n"]).add_path(START, "ask", END)
    assert play(graph.compile(), {}).status == "interrupted"
    span = traces.named("invoke_node ask")
    assert traces.events("invoke_node ask") == [("dspyer.interrupt", {"key": "go", "node": "ask"})]
    assert (span.attributes or {})["dspyer.status"] == "interrupted"
    assert span.status.status_code is trace.StatusCode.UNSET
    assert (traces.named("invoke_workflow Asks").attributes or {})["dspyer.status"] == "interrupted"


def test_a_question_after_a_node_is_an_event_of_the_run(traces: Traces) -> None:
    graph = (
        Graph(Board, inputs=FIELDS, name="After")
        .add_node("a", lambda n: {"n": 1}, writes=["n"])
        .add_path(START, "a", END)
    )
    graph.compile(layers=[Breakpoints(after=["a"])]).run({})
    assert traces.events("invoke_workflow After") == [("dspyer.interrupt", {"key": "after", "node": "a"})]


# --- failures


def fails(text: str = "no line") -> Callable[[], Any]:
    def fail() -> Any:
        raise ConnectionError(text)

    return fail


def failure(span: ReadableSpan) -> tuple[str, str | None, list[Any]]:
    recorded = [(event.attributes or {}).get("exception.message") for event in span.events if event.name == "exception"]
    return span.status.status_code.name, span.status.description, recorded


def test_a_failure_is_the_status_and_an_exception(traces: Traces, play: Play) -> None:
    graph = Graph(Board, inputs=FIELDS, name="Fails").add_node("bad", fails(), writes=["n"]).add_path(START, "bad", END)
    with pytest.raises(ConnectionError):
        play(graph.compile(), {}).raise_error()
    expected = ("ERROR", "ConnectionError: no line", ["no line"])
    assert failure(traces.named("invoke_node bad")) == failure(traces.named("invoke_workflow Fails")) == expected
    (event,) = traces.named("invoke_node bad").events
    assert "in fail" in str((event.attributes or {})["exception.stacktrace"])


def test_a_failure_that_an_error_edge_takes_is_one_of_the_node_and_not_of_the_run(traces: Traces, play: Play) -> None:
    graph = (
        Graph(Board, inputs=FIELDS, name="Caught")
        .add_node("bad", fails(), writes=["n"])
        .add_node("mend", lambda n: {"n": 2}, writes=["n"])
    )
    graph.add_path(START, "bad", END).add_error_edge("bad", "mend", into="problem").add_edge("mend", END)
    assert play(graph.compile(), {}).status == "completed"
    assert failure(traces.named("invoke_node bad")) == ("ERROR", "ConnectionError: no line", ["no line"])
    assert (traces.named("invoke_node bad").attributes or {})["dspyer.version"] == 1
    assert failure(traces.named("invoke_workflow Caught")) == ("UNSET", None, [])


def test_a_failure_that_no_node_raised_is_one_of_the_run(traces: Traces, play: Play) -> None:
    graph = clash()
    with pytest.raises(Exception, match="max_steps"):
        play(graph.compile(max_steps=1), {}).raise_error()
    assert failure(traces.named("invoke_workflow Clash"))[0] == "ERROR"


def test_failed_items_and_attempts_have_a_status(traces: Traces, play: Play) -> None:
    def work(item: int) -> int:
        if item == 1:
            raise ConnectionError("no line")
        return item

    graph = Graph(name="Map").add_node("list", lambda: {"items": [0, 1]}, writes=["items"])
    graph.add_map("map", work, over="items", item="item", into="found", failures="lost", retry=2)
    with no_pauses():
        assert play(graph.add_path(START, "list", "map", END).compile(), {}).status == "completed"
    assert failure(traces.named("item 0")) == ("UNSET", None, [])
    lost = ("ERROR", "ConnectionError: no line", ["no line"])
    assert failure(traces.named("attempt 2")) == lost
    assert failure(traces.named("item 1")) == lost
    assert [name for name, _ in traces.events("item 1")] == ["dspyer.attempt_failed", "exception"]
    assert failure(traces.named("invoke_node map"))[0] == "UNSET"


# --- what is shown


def test_inputs_and_outputs_are_recorded_if_the_variable_asks_for_it(
    traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph(Board, inputs=FIELDS, name="Shows")
    graph.add_node("one", lambda n, secret: {"n": n + 1, "secret": secret * 2}, writes=FIELDS)
    program = graph.add_path(START, "one", END).compile()
    node = {"input.value": {"n": 1, "secret": "ab"}, "output.value": {"n": 2, "secret": "abab"}}
    hidden = dict.fromkeys([None, "", "false", "no_content", "EVENT_ONLY"], False)
    for value, captured in (hidden | dict.fromkeys(["true", "True", "SPAN_ONLY", "span_and_event"], True)).items():
        monkeypatch.delenv(CAPTURE, raising=False)
        if value is not None:
            monkeypatch.setenv(CAPTURE, value)
        traces.clear()
        program.run({"n": 1, "secret": "ab"})
        found: dict[str, dict[str, Any]] = {}
        for span in traces.spans:
            shown = {
                name: str(text)
                for name, text in (span.attributes or {}).items()
                if name.startswith(("input", "output")) and name.endswith("value")
            }
            found[span.name.partition(" ")[0]] = {name: json.loads(text) for name, text in shown.items()}
        assert (value, found["invoke_node"]) == (value, node if captured else {})
        assert bool(found["invoke_workflow"]) is captured
        if captured:
            assert found["invoke_workflow"]["input.value"] == {"n": 1, "secret": "ab"}


SECRET = "the code is 4711"


def text_of(traces: Traces) -> str:
    return "".join(span.to_json() for span in traces.spans)


def leaky(**options: Any) -> CompiledGraph:
    """A graph whose secret is in a state, a question, an error, a route and what attempts raise."""

    def tell(secret: str, ctx: Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            raise ConnectionError(f"cannot send {secret}")
        return {"n": 1, "secret": secret}

    def ask(secret: str, ctx: Context) -> dict[str, Any]:
        try:
            raise KeyError(secret)
        except KeyError as cause:
            raise ValueError(f"refused: {secret}") from cause

    def question(secret: str, ctx: Context) -> dict[str, Any]:
        return {"n": ctx.interrupt("q", f"send {secret}?")}

    graph = Graph(Board, inputs=FIELDS, name="Leaky").add_node("tell", tell, writes=["n", "secret"], retry=2)
    graph.add_node("ask", ask, writes=["n"]).add_node("question", question, writes=["n"])
    graph.add_path(START, "tell", "ask", END).add_error_edge("ask", "question", on=ValueError, into="problem")
    return graph.add_edge("question", END).compile(**options)


def test_what_is_redacted_is_in_no_span(traces: Traces, monkeypatch: pytest.MonkeyPatch, play: Play) -> None:
    monkeypatch.setenv(CAPTURE, "true")
    redact = ["secret", "problem"]
    graph = Graph(Board, inputs=FIELDS, name="Outer").add_node("sub", leaky()).add_path(START, "sub", END)
    for program in (leaky(redact=redact), graph.compile(redact=redact)):  # the outermost program's redaction counts
        traces.clear()
        with no_pauses():
            assert play(program, {"secret": SECRET}).status == "interrupted"
        assert SECRET not in text_of(traces)
        assert "[redacted]" in text_of(traces)


@pytest.mark.parametrize("how", ["node", "call", "map"])
def test_what_the_outer_graph_hides_is_in_no_span_of_a_graph_inside_that_fails(
    traces: Traces, how: str, play: Play
) -> None:
    def fail(secret: str) -> Any:
        raise ValueError(f"refused: {secret}")

    def call(secret: str, helper: CompiledGraph, ctx: Context) -> dict[str, Any]:
        return {"n": ctx.call(helper, {"secret": secret}).n}

    inside = Graph(Board, inputs=["secret"], name="Inside").add_node("fail", fail, writes=["n"])
    program = inside.add_path(START, "fail", END).compile()
    graph = Graph(name="Outer", inputs=["secret"])
    if how == "node":
        graph.add_node("sub", program)
    elif how == "call":
        graph.add_node("sub", call, writes=["n"], modules={"helper": program})
    else:
        graph.add_node("list", lambda secret: {"secrets": [secret]}, writes=["secrets"])
        graph.add_map("sub", program, over="secrets", item="secret", into="found", retry=2).add_edge("list", "sub")
    graph.add_edge(START, "list" if how == "map" else "sub").add_edge("sub", END)
    with no_pauses(), pytest.raises(Exception, match="refused"):
        play(graph.compile(redact=["secret", "secrets"]), {"secret": SECRET}).raise_error()
    assert SECRET not in text_of(traces)
    assert traces.named("invoke_workflow Outer").status.status_code is trace.StatusCode.ERROR
    assert failure(traces.spans[-1])[0] == "ERROR"


class OwnTextError(Exception):
    """An exception whose text cannot be changed: the redaction replaces it by another one."""

    def __str__(self) -> str:
        return f"refused: {SECRET}"


@pytest.mark.parametrize("inside", [False, True])
def test_texts_that_cannot_be_changed_and_short_values_are_hidden_too(
    traces: Traces, inside: bool, monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    monkeypatch.setenv(CAPTURE, "true")

    def fail(secret: str, n: int, number: dict[str, int]) -> Any:
        raise OwnTextError

    def item(secret: str) -> Any:
        raise OwnTextError

    def listed(secret: str, n: int) -> dict[str, Any]:
        return {"secrets": [secret], "number": {"copied": n}}

    graph = Graph(name="Inner", inputs=["secret", "n"]).add_node("list", listed)
    graph.add_map(
        "map", item, over="secrets", item="secret", into="found", failures="lost", retry=Retry(2, on=OwnTextError)
    )
    graph.add_node("fail", fail, writes=["out"]).add_path(START, "list", "map", "fail", END)
    graph.add_error_edge("map", "fail", on=MapError)
    hidden = ["secret", "n", "secrets.*", "lost.*.message"]
    program = graph.compile(redact=None if inside else hidden)
    if inside:
        outer = Graph(name="Outer", inputs=["secret", "n"]).add_node("sub", program).add_path(START, "sub", END)
        program = outer.compile(redact=hidden)
    with no_pauses(), pytest.raises(Exception, match="redacted"):
        play(program, {"secret": SECRET, "n": 99887766}).raise_error()
    assert SECRET not in text_of(traces)
    values = [str(value) for span in traces.spans for value in (span.attributes or {}).values()]
    assert not [value for value in values if "99887766" in value]
    assert traces.named("attempt 2").status.status_code is trace.StatusCode.ERROR


def test_without_redaction_the_same_run_shows_it(traces: Traces) -> None:
    with no_pauses():
        leaky().run({"secret": SECRET})
    assert SECRET in text_of(traces)


def names(traces: Traces) -> set[str]:
    """The names of all attributes and events of the spans; those of OpenTelemetry for exceptions are none of ours."""
    found = {name for span in traces.spans for name in span.attributes or {}}
    found |= {event.name for span in traces.spans for event in span.events}
    return {name for name in found if not name.startswith("exception")}


def test_the_guide_lists_every_name(traces: Traces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CAPTURE, "true")
    graph = Graph(Board, inputs=FIELDS, name="Ways").add_node(
        "a", lambda n: {"n": n + 1}, writes=["n"], cache=Cache(folder=tmp_path)
    )
    graph.add_edge(START, "a").add_conditional_edges("a", lambda n: END, [END])
    condensed = Graph(Board, inputs=FIELDS, name="Short")
    condensed.add_node("a", lambda: {"secret": "long"}, writes=["secret"], condense={"secret": Flaky()}, retry=2)
    asks = Graph(Board, inputs=FIELDS, name="Asks").add_node("ask", ask_once, writes=["n"]).add_path(START, "ask", END)
    cached = graph.compile()
    with no_pauses(), metering() as meter:
        for program in (everything(), clash().compile(), chatter().compile(), cached, cached):
            program.run({})
        list(clash().compile().stream({}, reads=True))
        condensed.add_path(START, "a", END).compile().run({})
        asks.compile(store=":memory:").thread("t").run({})
        calls = [{"name": "upper", "args": {"text": "a"}}, {"name": "submit", "args": {"b": "A"}}]
        script = [{"next_thought": "", "tool_calls": {"tool_calls": calls}}, LMRateLimitError("slow")]
        with ScriptedLM(script, model="x/y"):
            agent = agents.tool_loop("a -> b", [upper], name="Agent").compile()
            assert [agent.run({"a": "a"}).status for _ in script] == ["completed", "failed"]
    listed = set(re.findall(r"^\| `([a-z_.]+)` \|", PAGE.read_text(), re.MULTILINE))
    names_here = names(traces) | {"gen_ai.response.model", "gen_ai.response.finish_reasons"}  # of a server
    counted = {f"dspyer.{name}" for name, _, _ in meter.points()} | {"dspyer.store.pool.wait"}  # of a server
    assert listed == names_here | counted


def upper(text: str) -> str:
    """Writes it in capitals."""
    return text.upper()


class Flaky(dspy.Module):
    """A condenser that fails once."""

    calls = 0

    def forward(self, text: str) -> dspy.Prediction:
        Flaky.calls += 1
        if Flaky.calls == 1:
            raise ConnectionError("no line")
        return dspy.Prediction(short=text[:1])
