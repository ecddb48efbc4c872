"""`tokens=True`: the tokens of a run over a real HTTP server, each with its node, execution, attempt and field."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest
from dspy.adapters.types.decision import Noul
from pydantic import BaseModel

from dspyer import END, START, Graph, Retry, lms
from dspyer.errors import NodeTimeoutError
from dspyer.events import AttemptFailed, Committed, NodeFailed, Token
from dspyer.testing import no_pauses
from tests.dspy_optimizers.lm import NotingLM
from tests.http_faults import Cut, ErrorEvent, Hold, Text
from tests.openai_server import Messages, OpenAIServer, prompt_of
from tests.rows import each
from tests.timeouts import TimeIsOver

Key = tuple[tuple[str, ...], str, int, str, str]


def tokens_of(events: list[Any]) -> list[Token]:
    return [event for event in events if isinstance(event, Token)]


def texts(events: list[Any]) -> dict[Key, str]:
    """The text of each field, joined; asserts that its last token, and no other one, says so."""
    found: dict[Key, str] = {}
    done: set[Key] = set()
    for one in tokens_of(events):
        key = (one.scope, one.execution, one.attempt, one.predictor, one.field)
        assert key not in done, f"a token after the last one: {one}"
        found[key] = found.get(key, "") + one.text
        done |= {key} if one.done else set()
    assert done == set(found)
    return found


def by_field(events: list[Any]) -> dict[str, str]:
    return {key[-1]: text for key, text in texts(events).items()}


def streamed(
    program: Any, inputs: dict[str, Any], how: str, seen: Callable[[Any], None] = lambda event: None
) -> tuple[list[Any], Any]:
    """The events of a run, and the run; `how` is sync, async or a thread (`thread`, `athread`).

    `seen` is called with each event when it arrives.
    """
    target = program.thread("t-1") if "thread" in how else program
    events: list[Any] = []

    async def collect() -> Any:
        stream = target.astream(inputs, tokens=True)
        async for event in stream:
            events.append(event)
            seen(event)
        return stream.run

    if how.startswith("a"):
        return events, asyncio.run(collect())
    stream = target.stream(inputs, tokens=True)
    for event in stream:
        events.append(event)
        seen(event)
    return events, stream.run


ways = pytest.mark.parametrize("how", ["thread", "athread"])
modes = pytest.mark.parametrize("how", ["sync", "async"])
ADAPTERS: dict[str, Callable[[], dspy.Adapter]] = {
    "chat": dspy.ChatAdapter,
    "json": dspy.JSONAdapter,
    "xml": dspy.XMLAdapter,
}


def write_as(adapter: str, values: dict[str, Any]) -> str:
    if adapter == "json":
        return json.dumps(values)
    if adapter == "xml":
        return "\n".join(f"<{name}>\n{value}\n</{name}>" for name, value in values.items())
    return "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in values.items()) + "[[ ## completed ## ]]"


class Answers:
    """Answers every output field that a prompt asks for, with what was asked, in the form that it asks for."""

    def __call__(self, messages: Messages) -> str:
        prompt = prompt_of(messages)
        asked = " ".join(str(value) for value in prompt.inputs.values())
        values = {name: f"the {name} of: {asked} [[1]] is {len(asked)}.\n\nAnd so on" for name in prompt.asks}
        return write_as(prompt.form, values)


class _Raising(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage())


@pytest.fixture(autouse=True)
def no_error_in_a_callback() -> Iterator[None]:
    """DSPy logs what a callback raises, and goes on."""
    handler, logger = _Raising(), logging.getLogger("dspy.utils.callback")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(Answers()) as running, dspy.context(lm=running.lm()):
        yield running


def fan(over: str = "question") -> Graph:
    graph = Graph(name="Fan", inputs=[over])
    for name in ("one", "two", "three"):
        predictor = dspy.ChainOfThought(f"{over} -> {name}") if name == "two" else dspy.Predict(f"{over} -> {name}")
        graph.add_node(name, predictor).add_edge(START, name).add_edge(name, END)
    return graph


# --- what is streamed is what is committed


@pytest.mark.parametrize(
    ("adapter", "how"), [("chat", "sync"), ("chat", "athread"), ("json", "async"), ("xml", "thread")]
)
def test_tokens_of_parallel_branches_are_the_committed_values(how: str, adapter: str) -> None:
    with OpenAIServer(Answers()) as server, dspy.context(lm=server.lm(), adapter=ADAPTERS[adapter]()):
        events, run = streamed(fan().compile(store=":memory:"), {"question": "Where?"}, how)

    assert run.status == "completed", run.error
    found = by_field(events)
    assert {name: found[name] for name in ("one", "two", "three")} == {
        name: run.state[name] for name in ("one", "two", "three")
    }
    assert found["reasoning"].startswith("the reasoning of")
    assert len(server.requests) == 3
    assert all(request["stream"] for request in server.requests)
    places = {(one.node, one.branch, one.predictor, one.field) for one in tokens_of(events)}
    assert places == {
        ("one", (0,), "one", "one"),
        ("two", (1,), "two.predict", "two"),
        ("two", (1,), "two.predict", "reasoning"),
        ("three", (2,), "three", "three"),
    }
    assert min(len([one for one in tokens_of(events) if one.node == node]) for node in ("one", "two", "three")) > 5
    ids = {event.commit.node: event.commit.id for event in events if isinstance(event, Committed)}
    assert all(one.execution == ids[one.node] and one.visit == one.attempt == 1 for one in tokens_of(events))


@modes
def test_branches_with_equal_signatures_stay_apart(how: str, server: OpenAIServer) -> None:
    graph = Graph(name="Twins", inputs=["question"])
    for name in ("left", "right"):
        graph.add_node(name, dspy.Predict("question -> answer"), writes={"answer": name})
        graph.add_edge(START, name).add_edge(name, END)
    events, run = streamed(graph.compile(), {"question": "Who?"}, how)
    joined = {one.node: "" for one in tokens_of(events)}
    for one in tokens_of(events):
        joined[one.node] += one.text
    assert joined == {"left": run.state["left"], "right": run.state["right"]}


@ways
def test_every_visit_of_a_loop_has_tokens_of_its_own(how: str, server: OpenAIServer) -> None:
    graph = Graph(name="Loop", inputs=["draft"])
    graph.add_node("write", dspy.Predict("draft -> better"), writes={"better": "draft"})
    graph.add_node("count", lambda rounds=0: {"rounds": rounds + 1}, writes=["rounds"])
    graph.add_path(START, "write", "count")
    graph.add_conditional_edges("count", lambda rounds: END if rounds == 3 else "write", ["write", END])
    events, run = streamed(graph.compile(store=":memory:"), {"draft": "x"}, how)

    drafts = {event.commit.id: event.commit for event in events if isinstance(event, Committed)}
    assert {key[1]: text for key, text in texts(events).items()} == {
        name: commit.patch["draft"] for name, commit in drafts.items() if commit.node == "write"
    }
    assert sorted({one.visit for one in tokens_of(events)}) == [1, 2, 3]
    assert run.state["rounds"] == 3


@ways
def test_tokens_inside_a_graph_have_its_scope(how: str, server: OpenAIServer) -> None:
    inner = fan("topic").compile()
    graph = Graph(name="Outer", inputs=["question"]).add_node("topic", dspy.Predict("question -> topic"))
    graph.add_node("inner", inner).add_path(START, "topic", "inner", END)
    events, run = streamed(graph.compile(store=":memory:"), {"question": "What?"}, how)

    found = texts(events)
    (inner_id,) = [commit.id for commit in run.commits if commit.node == "inner"]
    assert {(key[0], key[3]) for key in found} == {
        ((), "topic"),
        ((inner_id,), "one"),
        ((inner_id,), "two.predict"),
        ((inner_id,), "three"),
    }
    joined = by_field(events)
    assert all(joined[name] == run.state[name] for name in ("topic", "one", "two", "three"))


class Corpus(BaseModel):
    docs: list[str]
    notes: list[str] = []


@ways
def test_each_item_of_a_map_is_an_execution_of_its_own(how: str, server: OpenAIServer) -> None:
    graph = Graph(Corpus, name="Read")
    graph.add_map("read", dspy.Predict("doc -> note"), over="docs", item="doc", into="notes", retry=2)
    events, run = streamed(graph.add_path(START, "read", END).compile(store=":memory:"), {"docs": list("abcde")}, how)
    by_execution = {key[1]: text for key, text in texts(events).items()}
    (execution,) = [commit.id for commit in run.commits if commit.node == "read"]
    assert by_execution == {f"{execution}[{index}]": note for index, note in enumerate(run.state["notes"])}
    assert {one.node for one in tokens_of(events)} == {"read"}


@modes
def test_values_that_are_no_texts_can_be_read_from_their_tokens(how: str) -> None:
    values = {"tags": '["a", "b\\"c"]', "count": "12", "title": "A title"}
    with OpenAIServer(lambda messages: write_as("chat", values)) as server, dspy.context(lm=server.lm()):
        graph = Graph(inputs=["text"]).add_node("tag", dspy.Predict("text -> tags: list[str], count: int, title"))
        events, run = streamed(graph.add_path(START, "tag", END).compile(), {"text": "x"}, how)
    assert by_field(events) == values
    assert run.state["tags"] == ["a", 'b"c']


@modes
def test_modules_that_functions_call_stream(how: str, server: OpenAIServer) -> None:
    """A bound module has its name; one that a function makes for itself has none."""

    def ask(question: str, helper: dspy.Module) -> dict[str, str]:
        own = dspy.Predict("question -> own")
        return {"helped": helper(question=question).helped, "own": own(question=question).own}

    graph = Graph(inputs=["question"])
    graph.add_node("ask", ask, modules={"helper": dspy.Predict("question -> helped")}, writes=["helped", "own"])
    events, run = streamed(graph.add_path(START, "ask", END).compile(), {"question": "x"}, how)
    found = {key[3:]: text for key, text in texts(events).items()}
    assert found == {("ask.helper", "helped"): run.state["helped"], ("", "own"): run.state["own"]}


@ways
def test_a_program_that_a_node_calls_has_tokens_in_its_scope(how: str, server: OpenAIServer) -> None:
    def ask(question: str, team: Any, ctx: Any) -> dict[str, list[str]]:
        return {"found": [ctx.call(team, {"question": question + key}, key=key).one for key in ("a", "b")]}

    graph = Graph(inputs=["question"]).add_node("ask", ask, modules={"team": fan().compile()}, writes=["found"])
    program = graph.add_path(START, "ask", END).compile(store=":memory:")
    events, run = streamed(program, {"question": "x"}, how)
    assert run.status == "completed", run.error
    (execution,) = [commit.id for commit in run.commits if commit.node == "ask"]
    found = {key[0]: text for key, text in texts(events).items() if key[4] == "one"}
    assert found == {(f"{execution}[{key}]",): text for key, text in zip("ab", run.state["found"], strict=True)}


@modes
def test_a_program_that_a_function_calls_directly_is_a_run_of_its_own(how: str, server: OpenAIServer) -> None:
    def ask(question: str, team: dspy.Module) -> dict[str, str]:
        return {"found": team(question=question).one}

    graph = Graph(inputs=["question"]).add_node("ask", ask, modules={"team": fan().compile(retry=2)}, writes=["found"])
    events, run = streamed(graph.add_path(START, "ask", END).compile(), {"question": "x"}, how)
    assert run.status == "completed", run.error
    assert not tokens_of(events)
    assert not any(request.get("stream") for request in server.requests)


# --- calls from threads and loops that DSPy does not stream from by itself


def test_an_async_node_that_calls_a_predictor_without_await(server: OpenAIServer) -> None:
    async def ask(question: str, helper: dspy.Module) -> dict[str, str]:
        return {"answer": helper(question=question).answer}

    graph = Graph(inputs=["question"])
    graph.add_node("ask", ask, modules={"helper": dspy.Predict("question -> answer")}, writes=["answer"])
    program = graph.add_path(START, "ask", END).compile()
    for how in ("sync", "async"):
        events, run = streamed(program, {"question": "x"}, how)
        assert run.status == "completed", run.error
        assert by_field(events) == {"answer": run.state["answer"]}


@modes
def test_a_model_that_runs_a_program_itself(how: str, server: OpenAIServer) -> None:
    """The loop to which chunks are passed is for nothing else: async nodes run on one of their own."""

    async def ask(question: str, helper: dspy.Module) -> dict[str, str]:
        return {"answer": helper(question=question).answer}

    def program_of(node: Any, **modules: Any) -> Any:
        graph = Graph(inputs=["question"]).add_node("ask", node, modules=modules, writes=["answer"])
        return graph.add_path(START, "ask", END).compile()

    inner = program_of(ask, helper=dspy.Predict("question -> answer"))

    class Adapter(dspy.ChatAdapter):
        def format(self, *args: Any, **kwargs: Any) -> Any:
            with dspy.context(adapter=None):
                assert inner(question="y").answer.startswith("the answer")
            return super().format(*args, **kwargs)

    def plain(question: str, helper: dspy.Module) -> dict[str, str]:
        return {"answer": helper(question=question).answer}

    with dspy.context(adapter=Adapter()):
        events, run = streamed(program_of(plain, helper=dspy.Predict("question -> answer")), {"question": "x"}, how)
    assert run.status == "completed", run.error
    assert len(server.requests) >= 2
    assert any(one.field == "answer" for one in tokens_of(events))


@modes
def test_predictors_in_threads_of_dspy_parallel(how: str, server: OpenAIServer) -> None:
    def ask(question: str, helper: dspy.Module) -> dict[str, list[str]]:
        calls = [(helper, {"question": f"{question}{number}"}) for number in range(3)]
        found = dspy.Parallel(num_threads=3, disable_progress_bar=True)(calls)
        return {"answers": [one.answer for one in found]}

    graph = Graph(inputs=["question"])
    graph.add_node("ask", ask, modules={"helper": dspy.Predict("question -> answer")}, writes=["answers"])
    events, run = streamed(graph.add_path(START, "ask", END).compile(), {"question": "x"}, how)
    assert run.status == "completed", run.error
    assert len([one for one in tokens_of(events) if one.done]) == len(run.state["answers"]) == 3


@modes
def test_a_node_with_a_timeout_streams_and_is_silent_once_it_is_over(how: str, time_is_over: TimeIsOver) -> None:
    left = [time_is_over]  # for the first token alone: others may be read when the next attempt has begun

    def seen(event: Any) -> None:
        if isinstance(event, Token) and left:
            left.pop()()

    with OpenAIServer(Answers(), faults=[Hold(after=9)]) as server, dspy.context(lm=server.lm()), no_pauses():
        graph = Graph(inputs=["question"])
        graph.add_node("ask", dspy.Predict("question -> answer"), timeout=0.3, retry=Retry(2, on=NodeTimeoutError))
        events, run = streamed(graph.add_path(START, "ask", END).compile(), {"question": "x"}, how, seen)
        server.release()
    assert run.status == "completed", run.error
    (failed,) = [index for index, event in enumerate(events) if isinstance(event, AttemptFailed)]
    assert {one.attempt for one in tokens_of(events[:failed])} == {1}
    assert {one.attempt for one in tokens_of(events[failed:])} == {2}
    assert by_field(events[failed:]) == {"answer": run.state["answer"]}


# --- responses that are not streamed


@modes
def test_a_cached_response_is_one_token(how: str, server: OpenAIServer, tmp_path: Any) -> None:
    graph = Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer, other"))
    program = graph.add_path(START, "ask", END).compile()
    with dspy.context(lm=server.lm(cache=True)):
        question = {"question": f"cached? {tmp_path} {how}"}
        first, _ = streamed(program, question, how)
        second, run = streamed(program, question, how)
    assert len(server.requests) == 1
    assert len(tokens_of(first)) > 4
    assert [(one.field, one.text, one.done) for one in tokens_of(second)] == [
        ("answer", run.state["answer"], True),
        ("other", run.state["other"], True),
    ]


class OwnFormat(dspy.ChatAdapter):
    """An adapter that parses in a way of its own."""

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        return {name: value.upper() for name, value in super().parse(signature, completion).items()}


@modes
def test_an_adapter_that_parses_in_its_own_way_gives_whole_values(how: str, server: OpenAIServer) -> None:
    graph = Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer"))
    with dspy.context(adapter=OwnFormat()):
        events, run = streamed(graph.add_path(START, "ask", END).compile(), {"question": "x"}, how)
    assert [(one.text, one.done) for one in tokens_of(events)] == [(run.state["answer"], True)]


class Urgency(dspy.Signature):
    """Say whether the text is urgent."""

    text: str = dspy.InputField()
    urgent: Noul = dspy.OutputField(desc="whether the customer waits for money")


@modes
def test_outputs_that_dspy_does_not_stream_are_one_token(how: str) -> None:
    program = Graph(inputs=["text"]).add_node("decide", dspy.Predict(Urgency)).add_path(START, "decide", END).compile()
    with dspy.context(lm=NotingLM()):
        events, run = streamed(program, {"text": "refund me"}, how)
    assert run.status == "completed", run.error
    assert [(one.field, one.done) for one in tokens_of(events)] == [("urgent", True)]


# --- failures


@modes
def test_a_response_without_a_token_may_be_asked_for_again_in_another_format(how: str) -> None:
    """DSPy's chat adapter falls back to JSON, with tokens as without them."""
    with OpenAIServer(Answers(), faults=[Text()]) as server, dspy.context(lm=server.lm()):
        graph = Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer"))
        events, run = streamed(graph.add_path(START, "ask", END).compile(), {"question": "x"}, how)
        assert run.status == "completed", run.error
        assert len(server.requests) == 2
    assert by_field(events) == {"answer": run.state["answer"]}
    assert len(tokens_of(events)) > 3


@modes
def test_a_backup_lm_is_asked_until_a_token_was_shown(how: str) -> None:
    with OpenAIServer(Answers(), faults=[Cut(after=1)]) as server:
        lm = lms.reliable(server.lm(), server.lm(temperature=0.5), retry=None)
        with dspy.context(lm=lm):
            graph = Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer"))
            events, run = streamed(graph.add_path(START, "ask", END).compile(), {"question": "x"}, how)
            assert run.status == "completed", run.error
            assert len(server.requests) == 2
    assert by_field(events) == {"answer": run.state["answer"]}
    assert len(tokens_of(events)) > 5


@modes
def test_of_several_responses_the_first_is_streamed(how: str) -> None:
    responses = [f"[[ ## answer ## ]]\n{word} answer of them" for word in ("first", "second")]

    class Choose(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("question -> answer", n=2, temperature=1.0)

        def forward(self, question: str) -> dspy.Prediction:
            return self.ask(question=question)

    with OpenAIServer(lambda messages: responses[0], faults=[None, Text(responses[1])]) as server:
        with dspy.context(lm=server.lm()):
            graph = Graph(inputs=["question"]).add_node("ask", Choose(), writes=["answer"])
            events, run = streamed(graph.add_path(START, "ask", END).compile(), {"question": "x"}, how)
        assert run.status == "completed", run.error
        assert len(server.requests) == 2
    assert by_field(events) == {"answer": "first answer of them"}


@modes
def test_a_signature_that_a_call_brings_with_it_has_its_own_fields(how: str, server: OpenAIServer) -> None:
    def ask(question: str, helper: dspy.Module) -> dict[str, str]:
        return {"answer": helper(question=question, signature="question -> other").other}

    graph = Graph(inputs=["question"])
    graph.add_node("ask", ask, modules={"helper": dspy.Predict("question -> answer")}, writes=["answer"])
    events, run = streamed(graph.add_path(START, "ask", END).compile(), {"question": "x"}, how)
    assert by_field(events) == {"other": run.state["answer"]}


@each(
    ("fault", "how"),
    [
        (Cut(after=8), "sync"),
        (Cut(after=8), "athread"),
        (ErrorEvent(after=8), "async"),
        (Text("[[ ## answer ## ]]\nhalf"), "thread"),
    ],
    ids=repr,
)
def test_tokens_of_a_failed_attempt_are_followed_by_its_failure(how: str, fault: Any) -> None:
    with OpenAIServer(Answers(), faults=[fault, None]) as server, dspy.context(lm=server.lm()), no_pauses():
        graph = Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer, rest"), retry=2)
        events, run = streamed(
            graph.add_path(START, "ask", END).compile(store=":memory:"), {"question": "Where is it?"}, how
        )
        assert len(server.requests) == 2
    assert run.status == "completed", run.error
    (failed,) = [index for index, event in enumerate(events) if isinstance(event, AttemptFailed)]
    before, after = tokens_of(events[:failed]), tokens_of(events[failed:])
    assert before
    assert {one.attempt for one in before} == {1}
    assert {one.attempt for one in after} == {2}
    assert by_field(events[failed:]) == {name: run.state[name] for name in ("answer", "rest")}
    if not isinstance(fault, Text):  # `rest` is missing in that response
        assert not any(one.done and one.field == "rest" for one in before)


@ways
def test_an_item_that_is_tried_again_has_tokens_of_both_attempts(how: str) -> None:
    with OpenAIServer(Answers(), faults=[Cut(after=9)]) as server, dspy.context(lm=server.lm()), no_pauses():
        graph = Graph(Corpus, name="Read")
        graph.add_map("read", dspy.Predict("doc -> note"), over="docs", item="doc", into="notes", retry=2)
        program = graph.add_path(START, "read", END).compile(store=":memory:")
        events, run = streamed(program, {"docs": list("abc")}, how)
    (failed,) = [event for event in events if isinstance(event, AttemptFailed)]
    last: dict[str, tuple[int, str]] = {}  # by execution, the text of its last attempt
    for one in tokens_of(events):
        attempt, text = last.get(one.execution, (1, ""))
        last[one.execution] = (one.attempt, one.text if one.attempt > attempt else text + one.text)
    assert [text for _, (_, text) in sorted(last.items())] == run.state["notes"]
    assert {execution for execution, (attempt, _) in last.items() if attempt == 2} == {failed.execution}
    assert [one.attempt for one in tokens_of(events[: events.index(failed)]) if one.execution == failed.execution]


@pytest.mark.parametrize(("part", "how"), [("condense", "sync"), ("route", "async")])
def test_tokens_of_a_condenser_or_router_have_attempts_of_their_own(how: str, part: str) -> None:
    """A reader who drops what the failed attempt showed keeps what the node has shown: its output is kept."""
    shortens: dict[str, Any] = {"condense": {"answer": dspy.Predict("text -> short")}} if part == "condense" else {}
    graph = Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer"), retry=2, **shortens)
    graph.add_edge(START, "ask")
    if part == "route":
        route = dspy.ChainOfThought("answer -> next: Literal['stop']")
        graph.add_conditional_edges("ask", route, {"stop": END})
    else:
        graph.add_edge("ask", END)

    def answer(messages: Messages) -> str:
        values = {"reasoning": "one two three four", "next": "stop"}
        return write_as("chat", {name: values.get(name, f"the {name}") for name in prompt_of(messages).asks})

    with OpenAIServer(answer, faults=[None, Cut(after=7)]) as server, dspy.context(lm=server.lm()), no_pauses():
        events, run = streamed(graph.compile(), {"question": "x"}, how)
        assert len(server.requests) == 3
    assert run.status == "completed", run.error
    (failed,) = [event for event in events if isinstance(event, AttemptFailed)]
    assert (failed.execution, failed.attempt) == (f"trunk:1[{part}]", 1)
    assert run.commits[1].failed_attempts[0].execution == failed.execution
    shown = [one for one in tokens_of(events) if (one.execution, one.attempt) != (failed.execution, failed.attempt)]
    assert by_field(shown)["answer"] == "the answer"
    found = {(one.execution, one.attempt) for one in tokens_of(events)}
    assert found == {("trunk:1", 1), (failed.execution, 1), (failed.execution, 2)}
    assert {one.execution for one in tokens_of(events[: events.index(failed)])} == {"trunk:1", failed.execution}


@modes
def test_without_a_retry_the_failure_follows_the_tokens(how: str) -> None:
    events: list[Any] = []

    def read_all(program: Any) -> None:
        for event in program.stream({"question": "x"}, tokens=True):
            events.append(event)  # noqa: PERF402 - the stream ends with an exception

    async def aread_all(program: Any) -> None:
        async for event in program.astream({"question": "x"}, tokens=True):
            events.append(event)  # noqa: PERF401 - as above

    with OpenAIServer(Answers(), faults=[Cut(after=8)]) as server, dspy.context(lm=server.lm()):
        graph = Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer"))
        program = graph.add_path(START, "ask", END).compile()
        with pytest.raises(dspy.utils.exceptions.LMError):
            read_all(program) if how == "sync" else asyncio.run(aread_all(program))
    kinds = [type(event) for event in events]
    last = max(index for index, kind in enumerate(kinds) if kind is Token)
    assert kinds.index(NodeFailed) > last
    assert not any(one.done for one in tokens_of(events))


def test_an_output_that_a_check_rejects_keeps_its_tokens(server: OpenAIServer) -> None:
    graph = Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer"))
    problems = iter([["too long"], []])
    graph.add_check("short", lambda answer: next(problems), of="ask", max_fixes=1)
    events, run = streamed(graph.add_path(START, "ask", END).compile(), {"question": "x"}, "sync")
    assert run.status == "completed", run.error
    assert [key[3] for key in texts(events)] == ["ask", "ask_fix"]
    assert not [event for event in events if isinstance(event, AttemptFailed | NodeFailed)]


# --- redaction


@ways
def test_a_field_that_is_redacted_arrives_as_one_redacted_token(how: str, server: OpenAIServer) -> None:
    program = fan().compile(store=":memory:", redact=["one"])
    events, run = streamed(program, {"question": "Where?"}, how)
    assert [(one.text, one.done) for one in tokens_of(events) if one.field == "one"] == [("[redacted]", True)]
    assert run.state["one"] not in str([one.to_dict() for one in tokens_of(events)])
    assert by_field(events)["three"] == run.state["three"]
    assert len([one for one in tokens_of(events) if one.field == "three"]) > 5  # others arrive as without `redact`


@modes
def test_a_hidden_input_does_not_appear_in_the_tokens_that_repeat_it(how: str, server: OpenAIServer) -> None:
    program = fan().compile(redact=["question"])
    events, run = streamed(program, {"question": "sesame-opens-it"}, how)
    assert "sesame-opens-it" in run.state["three"]
    joined = "".join(one.text for one in tokens_of(events))
    assert "sesame" not in joined
    assert by_field(events)["three"] == run.state["three"].replace("sesame-opens-it", "[redacted]")
    assert len([one for one in tokens_of(events) if one.field == "three"]) > 5


def test_no_token_shows_a_part_of_a_hidden_text() -> None:
    """It comes cut at each place, and at last character by character."""
    secret = "sesame-opens"
    cut = [piece for at in range(1, len(secret)) for piece in (f"({secret[:at]}", f"{secret[at:]})")]
    pieces = ["[[ ## answer ## ]]\n", *cut, *secret, "\n\n[[ ## completed ## ]]"]
    with OpenAIServer(lambda messages: "".join(pieces), pieces=lambda text: pieces) as server:
        graph = Graph(inputs=["question"]).add_node("ask", dspy.Predict("question -> answer"))
        program = graph.add_path(START, "ask", END).compile(redact=["question"])
        with dspy.context(lm=server.lm()):
            events, run = streamed(program, {"question": secret}, "sync")
    assert run.state["answer"].count(secret) == len(secret)
    assert by_field(events) == {"answer": run.state["answer"].replace(secret, "[redacted]")}
    assert len(tokens_of(events)) > len(secret)


@modes
def test_a_redaction_hides_tokens_of_the_graphs_inside(how: str, server: OpenAIServer) -> None:
    graph = Graph(name="Outer", inputs=["question"])
    graph.add_node("inner", fan(), writes={"one": "first", "two": "second"})
    program = graph.add_path(START, "inner", END).compile(redact=["first"])
    events, run = streamed(program, {"question": "Where?"}, how)
    assert run.state["first"] not in str([one.to_dict() for one in tokens_of(events)])
    assert {one.text for one in tokens_of(events)} == {"[redacted]"}


@modes
def test_what_is_no_output_of_a_node_inside_delays_none_of_its_tokens(how: str, server: OpenAIServer) -> None:
    graph = Graph(name="Outer", inputs=["question", "other"]).add_node("inner", fan(), writes=["one", "two", "three"])
    events, run = streamed(
        graph.add_path(START, "inner", END).compile(redact=["other"]), {"question": "Where?", "other": "x"}, how
    )
    assert run.status == "completed", run.error
    assert len([one for one in tokens_of(events) if one.field == "three"]) > 5


@modes
def test_graphs_that_hide_different_things_give_whole_tokens(how: str, server: OpenAIServer) -> None:
    graph = Graph(name="Outer", inputs=["question", "secret"])
    graph.add_node("inner", fan().compile(redact=["question"]), writes=["one"])
    program = graph.add_path(START, "inner", END).compile(redact=["secret"])
    inputs = {"question": "sesame-opens", "secret": "opens the one"}
    events, run = streamed(program, inputs, how)
    assert run.status == "completed", run.error
    joined = str([one.to_dict() for one in tokens_of(events)])
    assert "sesame" not in joined
    assert len(tokens_of(events)) == len(texts(events)) == 4


@modes
def test_a_function_that_redacts_gets_the_whole_text(how: str, server: OpenAIServer) -> None:
    def mask(path: Any, value: Any) -> Any:
        return re.sub(r"\d", "#", value) if isinstance(value, str) and re.search(r"\d", value) else value

    events, run = streamed(fan().compile(redact=mask), {"question": "4711"}, how)
    assert {one.field: one.text for one in tokens_of(events)} == by_field(events)
    assert by_field(events)["one"] == re.sub(r"\d", "#", run.state["one"])


# --- what stays as it is


@modes
def test_a_run_keeps_no_tokens(how: str, server: OpenAIServer) -> None:
    events, run = streamed(fan().compile(), {"question": "x"}, how)
    assert tokens_of(events)
    assert [one.to_dict() for one in events if not isinstance(one, Token)] == [one.to_dict() for one in run.events]


def test_without_tokens_no_lm_is_asked_to_stream(server: OpenAIServer) -> None:
    program = fan().compile()
    events = list(program.stream({"question": "x"}))
    assert not tokens_of(events)
    assert not any(request.get("stream") for request in server.requests)


@modes
def test_usage_and_trace_are_those_of_a_run_without_tokens(how: str, server: OpenAIServer) -> None:
    program = fan().compile()
    plain = program.run({"question": "x"})
    _, run = streamed(program, {"question": "x"}, how)
    assert run.usage == plain.usage
    assert run.state == plain.state
    assert [(type(one), dict(two), dict(three)) for one, two, three in run.trace] == [
        (type(one), dict(two), dict(three)) for one, two, three in plain.trace
    ]


def test_a_resumed_run_streams_what_it_does_now(server: OpenAIServer) -> None:
    graph = Graph(inputs=["question"]).add_node("first", dspy.Predict("question -> first"))
    graph.add_interrupt("ok", question="Go on?", answer=bool, into="ok")
    graph.add_node("second", dspy.Predict("first -> second")).add_path(START, "first", "ok", "second", END)
    t = graph.compile(store=":memory:").thread("t-1")
    assert by_field(list(t.stream({"question": "x"}, tokens=True))) == {"first": t.state["first"]}
    assert by_field(list(t.stream_resume({"ok": True}, tokens=True))) == {"second": t.state["second"]}

    async def again() -> list[Any]:
        t = graph.compile(store=":memory:").thread("t-2")
        await t.arun({"question": "x"})
        return [event async for event in t.astream_resume({"ok": True}, tokens=True)]

    assert set(by_field(asyncio.run(again()))) == {"second"}


# --- closing


@modes
def test_a_reader_that_leaves_between_tokens_stops_the_run(how: str) -> None:
    graph = Graph(inputs=["question"]).add_node("first", dspy.Predict("question -> first"))
    graph.add_node("second", dspy.Predict("first -> second")).add_path(START, "first", "second", END)
    t = graph.compile(store=":memory:").thread("t-1")

    async def leave() -> Any:
        async with t.astream({"question": "x"}, tokens=True) as stream:
            async for event in stream:
                if isinstance(event, Token):
                    return stream
        raise AssertionError

    with OpenAIServer(Answers(), faults=[Hold(after=9)]) as server, dspy.context(lm=server.lm()):
        if how == "async":
            run = asyncio.run(leave()).run
        else:
            with t.stream({"question": "x"}, tokens=True) as stream:
                next(event for event in stream if isinstance(event, Token))
                server.release()  # a sync node is finished
            run = stream.run
        assert run.status == t.status == "stopped"
        assert t.resume().status == "completed"
        assert len(server.requests) == (3 if how == "async" else 2)
