"""Spans of LM calls, of tools and of agents, by the conventions for generative AI; none where DSPy has one already."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import LMRateLimitError
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan

from dspyer import END, START, Budget, CompiledGraph, Graph, Retry, agents
from dspyer.lms import reliable
from dspyer.testing import ScriptedLM, no_pauses
from tests.http_faults import Status
from tests.openai_server import OpenAIServer
from tests.runtime.conftest import Play
from tests.runtime.traces import Traces

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def answers(**options: Any) -> CompiledGraph:
    graph = Graph(name="Answers")
    graph.add_node("answer", dspy.Predict("question -> answer"), retry=options.pop("retry", None))
    return graph.add_path(START, "answer", END).compile(**options)


def lm(*script: Any, model: str = "scripted") -> Any:
    return dspy.context(lm=ScriptedLM(script or [{"answer": "It left at 9:40."}], model=model))


def told(span: ReadableSpan) -> dict[str, Any]:
    """Its attributes in the conventions for generative AI, and the cost."""
    named = ("gen_ai", "error", "dspyer.cost", "openinference", "session")
    return {name: value for name, value in (span.attributes or {}).items() if name.startswith(named)}


def test_each_lm_call_is_a_span_below_that_of_its_node(traces: Traces, play: Play) -> None:
    with lm(model="gemini/flash"):
        program = answers(store=":memory:", budget=Budget(cost=1.0, prices={"gemini/flash": (1.0, 2.0)}))
        run = play(program.thread("t"), {"question": "?"})
    (call,) = run.lm_calls
    assert traces.tree() == "invoke_workflow Answers\n  invoke_node answer\n    chat flash"
    span = traces.named("chat flash")
    assert told(span) == {
        "openinference.span.kind": "LLM",
        "session.id": "t",
        "gen_ai.conversation.id": "t",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "flash",
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.output_tokens": call.response_tokens,
        **({} if call.response_model is None else {"gen_ai.response.model": call.response_model}),
        **({} if call.finish_reason is None else {"gen_ai.response.finish_reasons": (call.finish_reason,)}),
        "dspyer.cost": call.cost,
    }
    assert call.cost
    assert span.kind is trace.SpanKind.CLIENT
    assert not trace.get_current_span().get_span_context().is_valid


def test_messages_are_in_the_form_of_the_conventions_if_the_variable_asks_for_them(
    traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("", "true"):
        monkeypatch.setenv(CAPTURE, value)
        traces.clear()
        with lm():
            answers().run({"question": "Where is my train?"})
        shown = told(traces.spans[-1])
        found = {name: json.loads(str(text)) for name, text in shown.items() if name.endswith("messages")}
        if not value:
            assert found == {}
            continue
        system, user = found["gen_ai.input.messages"]
        assert (system["role"], user["role"]) == ("system", "user")
        assert user["parts"][0]["type"] == "text"
        assert "Where is my train?" in user["parts"][0]["content"]
        (said,) = found["gen_ai.output.messages"]
        assert (said["role"], said["finish_reason"]) == ("assistant", "stop")
        assert "It left at 9:40." in said["parts"][0]["content"]
        traces.clear()
        with lm():  # prompts hold what is hidden, and what was made of it
            answers(redact=["question"]).run({"question": "Where is my train?"})
        assert not [name for name in told(traces.spans[-1]) if name.endswith("messages")]
        assert "train" not in "".join(span.to_json() for span in traces.spans)


def test_a_call_that_fails_is_an_error_with_its_class(traces: Traces, play: Play) -> None:
    with no_pauses(), lm(LMRateLimitError("slow"), {"answer": "a"}):
        assert play(answers(retry=Retry(2)), {"question": "?"}).status == "completed"
    failed, done = [span for span in traces.spans if span.name == "chat scripted"]
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert told(failed)["error.type"] == failed.status.description == "LMRateLimitError"
    assert done.status.status_code is trace.StatusCode.UNSET
    assert traces.tree().splitlines()[-1].strip() == "chat scripted"


def test_each_request_of_a_reliable_lm_is_a_span(traces: Traces) -> None:
    served = OpenAIServer(lambda _: "[[ ## answer ## ]]\nyes", faults=[Status(429)])
    with served as server, no_pauses(), dspy.context(lm=reliable(server.lm())):
        run = answers().run({"question": "?"})
    assert run.status == "completed"
    assert len([span for span in traces.spans if span.name.startswith("chat")]) == len(run.lm_calls) == 2


def test_a_thread_without_a_context_has_the_span_of_its_node_around_its_calls(traces: Traces) -> None:
    predictor = dspy.Predict("question -> answer")

    def work(question: str, predictor: Any) -> dict[str, Any]:
        found, settings = [], copy_context()

        def call() -> None:
            context.attach(context.Context())
            found.append(predictor(question=question).answer)

        thread = threading.Thread(target=settings.run, args=[call])
        thread.start()
        thread.join()
        return {"answer": found[0]}

    graph = Graph(name="Works").add_node("work", work, writes=["answer"], modules={"predictor": predictor})
    with lm():
        graph.add_path(START, "work", END).compile().run({"question": "?"})
    assert traces.tree() == "invoke_workflow Works\n  invoke_node work\n    chat scripted"


# --- agents and their tools


def turn(name: str, **args: Any) -> dict[str, Any]:
    return {"next_thought": "", "tool_calls": {"tool_calls": [{"name": name, "args": args}]}}


def search(query: str) -> str:
    """Searches."""
    if query == "nothing":
        raise LookupError("no such thing")
    return f"<{query}>"


def test_an_agent_and_its_tools_have_the_operations_of_the_conventions(traces: Traces, play: Play) -> None:
    reader = agents.tool_loop("topic -> findings", [search], name="Reader")
    lead = agents.tool_loop("task -> report", [agents.tool(reader, desc="Reads.", name="read")], name="Lead")
    script = [turn("read", topic="trains"), turn("search", query="nothing"), turn("submit", findings="f")]
    with lm(*script, turn("submit", report="r")):
        run = play(lead.compile(), {"task": "t"})
    assert run.status == "completed"
    shown = [line for line in traces.tree().splitlines() if not line.strip().startswith("invoke_node")]
    assert [line.strip() for line in shown] == [
        *("invoke_agent Lead", "execute_tool read", "invoke_agent Reader", "execute_tool search", "chat scripted"),
        *("chat scripted", "chat scripted", "chat scripted"),
    ]
    assert told(traces.named("invoke_agent Reader")) == {
        "openinference.span.kind": "AGENT",
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "Reader",
    }
    for name in ("read", "search"):
        assert told(traces.named(f"execute_tool {name}")) == {
            "openinference.span.kind": "TOOL",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": "call_0_0",
        }


# --- where DSPy makes spans of its own


class Instrumented(BaseCallback):
    """A callback that makes a span of each LM call, as MLflow and that of DSPy do."""

    def __init__(self) -> None:
        self.open: dict[str, Any] = {}

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        span = trace.get_tracer_provider().get_tracer("other").start_span("callback")
        self.open[call_id] = span, context.attach(trace.set_span_in_context(span))

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        span, token = self.open.pop(call_id)
        context.detach(token)
        span.end()


@contextmanager
def by_a_callback() -> Iterator[None]:
    with lm(), dspy.context(callbacks=[Instrumented()]):
        yield


@contextmanager
def by_a_wrapper() -> Iterator[None]:
    class Wrapped(ScriptedLM):
        def __call__(self, *args: Any, **options: Any) -> Any:
            tracer = trace.get_tracer_provider().get_tracer("other")
            with tracer.start_as_current_span("wrapper", attributes={"openinference.span.kind": "LLM"}):
                return super().__call__(*args, **options)

    with dspy.context(lm=Wrapped([{"answer": "a"}])):
        yield


@contextmanager
def by_the_user() -> Iterator[None]:
    """A span of another kind around everything is no span of the call."""
    with lm(), trace.get_tracer_provider().get_tracer("own").start_as_current_span("mine"):
        yield


@pytest.mark.parametrize(
    ("instrumented", "name"),
    [(by_a_callback, "callback"), (by_a_wrapper, "wrapper"), (by_the_user, "chat scripted")],
)
def test_a_call_that_has_a_span_gets_no_other(traces: Traces, instrumented: Callable[[], Any], name: str) -> None:
    with instrumented():
        answers().run({"question": "?"})
    known = ("invoke_workflow Answers", "invoke_node answer", "mine")
    (leaf,) = [span for span in traces.spans if span.name not in known]
    assert leaf.name == name
    assert leaf.parent is not None
    assert leaf.parent.span_id == traces.named("invoke_node answer").context.span_id
