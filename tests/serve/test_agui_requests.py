"""Requests of AG-UI clients: what is refused and how, questions and their answers, and who may ask."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import httpx
import pytest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dspyer import END, START, Budget, CompiledGraph, Graph, Messages
from dspyer.errors import InputError, ThreadError
from dspyer.serve import agui
from tests.rows import each
from tests.serve.posting import Page, app_of, asend, body, kinds, of_kind, send, user


class Calls:
    """Counts the calls of a node."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def __call__(self, message: str) -> dict[str, str]:
        self.given.append(message)
        return {"reply": f"You said {message}."}


def echo(calls: Calls | None = None, **options: Any) -> CompiledGraph:
    graph = Graph(inputs=["message"]).add_node("echo", calls or Calls(), writes=["reply"])
    return graph.add_path(START, "echo", END).compile(store=":memory:", **options)


class Letter(BaseModel):
    message: str
    ok: bool = False
    copies: int = 0
    sent: str = ""


def letter(*questions: str) -> CompiledGraph:
    """A program that asks one or two questions at once."""
    graph = Graph(Letter, inputs=["message"])
    graph.add_interrupt("ok", question="Send {message}?", answer=bool, into="ok")
    graph.add_interrupt("copies", question="How many?", answer=int, into="copies")
    graph.add_node("send", lambda ok, copies: {"sent": f"{ok} {copies}"}, writes=["sent"])
    for name in questions:
        graph.add_edge(START, name).add_edge(name, "send")
    for name in {"ok", "copies"} - set(questions):
        graph.add_edge("send", name).add_edge(name, END)
    if len(questions) == 2:
        graph.add_edge("send", END)
    return graph.compile(store=":memory:")


def resolved(interrupt: str, payload: Any) -> dict[str, Any]:
    return {"interruptId": interrupt, "status": "resolved", "payload": payload}


def cancelled(interrupt: str) -> dict[str, Any]:
    return {"interruptId": interrupt, "status": "cancelled"}


def asked(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    outcome = events[-1]["outcome"]
    assert outcome["type"] == "interrupt"
    found: list[dict[str, Any]] = outcome["interrupts"]
    return found


# --- questions


def test_a_question_has_the_schema_of_its_answer_and_an_answer_goes_on() -> None:
    program = letter("ok", "copies")
    app = app_of(program)
    first = send(app, body("it"))
    assert kinds(first)[-1] == "RUN_FINISHED"
    assert asked(first) == [
        {
            "id": "ada/t.1/0:0/ok",
            "reason": "confirmation",
            "message": "Send it?",
            "responseSchema": {"type": "boolean"},
            "metadata": {"node": "ok", "key": "ok"},
        },
        {
            "id": "ada/t.1/1:0/copies",
            "reason": "input_required",
            "message": "How many?",
            "responseSchema": {"type": "integer"},
            "metadata": {"node": "copies", "key": "copies"},
        },
    ]
    answers = [resolved("ada/t.1/0:0/ok", True), resolved("ada/t.1/1:0/copies", 2)]
    done = send(app, body(run="r2", resume=answers))
    assert done[-1]["outcome"] == {"type": "success"}
    assert program.thread("ada/t").state["sent"] == "True 2"

    again = send(app, body(run="r2", resume=answers))  # delivered twice: nothing is called again
    assert (again[-1], len(program.thread("ada/t").history())) == (done[-1], len(program.thread("ada/t").history()))
    assert of_kind(again, "STEP_STARTED") == []


OK, COPIES = "ada/t.1/0:0/ok", "ada/t.1/1:0/copies"


@each(
    ("resume", "code", "text"),
    [
        ([], "waiting", "waits for an answer"),
        (
            [resolved(OK, True), resolved(OK, False), resolved(COPIES, 1)],
            "invalid",
            "an interrupt has two answers",
        ),
        ([resolved(OK, True)], "invalid", f"`resume` lacks '{COPIES}'"),
        ([resolved(OK, True), cancelled(COPIES)], "invalid", "answer all interrupts or cancel all"),
        ([cancelled(OK), cancelled("other")], "invalid", "there is no open interrupt 'other'"),
        ([cancelled(OK)], "invalid", f"`resume` lacks '{COPIES}'"),
        ([resolved(OK, True), resolved(COPIES, 1), resolved("other", 1)], "conflict", ""),
        ([resolved(OK, True), resolved(COPIES, "many")], "invalid", "not valid"),
        ([resolved(OK, None), resolved(COPIES, 1)], "invalid", "not valid"),
    ],
)
def test_a_resume_that_does_not_answer_is_refused_and_changes_nothing(
    resume: list[dict[str, Any]], code: str, text: str
) -> None:
    program = letter("ok", "copies")
    app = app_of(program)
    send(app, body("it"))
    (refused,) = send(app, body("more", run="r2", resume=resume))
    assert (refused["type"], refused["code"]) == ("RUN_ERROR", code)
    assert text in refused["message"]
    assert program.thread("ada/t").status == "interrupted"
    done = send(app, body(run="r3", resume=[resolved(OK, True), resolved(COPIES, 1)]))
    assert done[-1]["outcome"] == {"type": "success"}


def test_questions_that_are_cancelled_end_their_run_and_the_next_message_starts_another_one() -> None:
    program = letter("ok", "copies")
    app = app_of(program)
    send(app, body("it"))
    for _ in range(2):  # also when it is delivered twice
        done = send(app, body("it", run="r2", resume=[cancelled(OK), cancelled(COPIES)]))
        assert (kinds(done), done[-1]["outcome"]) == (["RUN_STARTED", "RUN_FINISHED"], {"type": "cancelled"})
        assert program.thread("ada/t").status == "stopped"
    assert [one["message"] for one in asked(send(app, body("that", run="r3")))] == ["Send that?", "How many?"]
    late = send(app, body(run="r4", resume=[resolved(OK, True), resolved(COPIES, 1)]))
    assert kinds(late) == ["RUN_ERROR"]  # an answer to the run that was given up


def test_questions_that_were_answered_cannot_be_cancelled_any_more() -> None:
    app = app_of(letter("ok", "copies"))
    (refused,) = send(app, body(resume=[cancelled("bob/t.1/0:0/ok")]))  # of another user, and nothing has begun
    assert (refused["code"], refused["message"]) == ("invalid", "there is no open interrupt 'bob/t.1/0:0/ok'")
    send(app, body("it"))
    send(app, body(run="r2", resume=[resolved(OK, True), resolved(COPIES, 1)]))
    (refused,) = send(app, body(run="r3", resume=[cancelled(OK), cancelled(COPIES)]))
    assert refused["code"] == "invalid"


def test_a_message_that_is_sent_again_is_asked_the_same_question() -> None:
    app = app_of(letter("ok", "copies"))
    first, again = send(app, body("it")), send(app, body("it"))
    assert asked(again) == asked(first)
    (refused,) = send(app, body("other"))
    assert refused["code"] == "conflict"


def test_a_run_that_fails_after_its_answers_is_resumed_by_them_or_given_up() -> None:
    tries: list[bool] = []

    def send_it(ok: bool) -> dict[str, Any]:
        tries.append(ok)
        if len(tries) < 2:
            raise ValueError("not yet")
        return {"sent": "yes"}

    def program() -> CompiledGraph:
        tries.clear()
        graph = Graph(Letter, inputs=["message"]).add_node("send_it", send_it, writes=["sent"])
        graph.add_interrupt("ok", question="Send?", answer=bool, into="ok")
        return graph.add_path(START, "ok", "send_it", END).compile(store=":memory:")

    answers = [resolved("ada/t.1/trunk:1/ok", True)]
    app = app_of(program())
    send(app, body())
    assert kinds(send(app, body(run="r2", resume=answers)))[-1] == "RUN_ERROR"  # the client keeps the question
    assert send(app, body(run="r3", resume=answers))[-1]["outcome"] == {"type": "success"}
    app = app_of(program())
    send(app, body())
    send(app, body(run="r2", resume=answers))
    given_up = send(app, body(run="r3", resume=[cancelled("ada/t.1/trunk:1/ok")]))
    assert given_up[-1]["outcome"] == {"type": "cancelled"}


def test_an_answer_without_a_question_is_refused() -> None:
    app = app_of(echo())
    (refused,) = send(app, body(resume=[resolved("ok", True)]))
    assert refused["code"] == "conflict"


# --- a request that comes twice, or too early


def test_the_same_request_is_one_run() -> None:
    calls = Calls()
    app = app_of(echo(calls))
    first, again = send(app, body("Hi")), send(app, body("Hi"))
    assert calls.given == ["Hi"]
    for events in (first, again):
        assert [event["delta"] for event in of_kind(events, "TEXT_MESSAGE_CONTENT")] == ["You said Hi."]
    (refused,) = send(app, body("Other"))
    assert refused["code"] == "conflict"
    send(app, body("Hi", run="r2"))
    assert calls.given == ["Hi", "Hi"]


def test_a_second_request_while_a_run_is_open_is_refused() -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def work(message: str) -> dict[str, str]:
        began.set()
        await go.wait()
        return {"reply": message}

    graph = Graph(inputs=["message"]).add_node(work, writes=["reply"])
    app = app_of(graph.add_path(START, "work", END).compile(store=":memory:"))

    async def both() -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
        first = asyncio.ensure_future(asend(app, body("one")))
        await began.wait()
        second = await asend(app, body("two", run="r2"))
        other = asyncio.ensure_future(asend(app, body("three", run="r3", thread="other")))
        go.set()
        return await first, second, await other

    first, (refused,), other = asyncio.run(both())
    assert refused == {
        "type": "RUN_ERROR",
        "message": "Another request is being worked on. Try again when it has ended.",
        "code": "busy",
    }
    assert kinds(first)[-1] == kinds(other)[-1] == "RUN_FINISHED"


def test_a_run_that_failed_is_resumed_by_the_same_request() -> None:
    tries: list[str] = []

    def first(message: str) -> dict[str, str]:
        tries.append("first")
        return {"draft": message}

    def second(draft: str) -> dict[str, str]:
        tries.append("second")
        if tries.count("second") == 1:
            raise ValueError("not yet")
        return {"reply": draft}

    graph = Graph(inputs=["message"]).add_node(first, writes=["draft"]).add_node(second, writes=["reply"])
    app = app_of(graph.add_path(START, "first", "second", END).compile(store=":memory:"), text="reply")
    assert kinds(send(app, body()))[-1] == "RUN_ERROR"
    again = send(app, body())
    assert (kinds(again)[-1], tries) == ("RUN_FINISHED", ["first", "second", "second"])
    assert Page().read(again).state == {"draft": "Hi", "reply": "Hi"}


def test_a_run_that_failed_is_given_up_for_a_new_message(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[str] = []

    def work(message: str) -> dict[str, str]:
        tries.append(message)
        if message == "bad":
            raise ValueError("postgres://user:secret@host")
        return {"reply": message}

    graph = Graph(inputs=["message"]).add_node(work, writes=["reply"])
    app = app_of(graph.add_path(START, "work", END).compile(store=":memory:"))
    failed = send(app, body("bad"))
    assert failed[-1] == {
        "type": "RUN_ERROR",
        "message": "The request has failed. The log of the server says why.",
        "code": "failed",
    }
    assert "secret" not in str(failed)
    assert "secret" in caplog.text
    assert kinds(failed)[-2] == "STEP_FINISHED"
    assert kinds(send(app, body("good", run="r2")))[-1] == "RUN_FINISHED"
    assert tries == ["bad", "good"]


# --- how a run ends


def test_a_budget_that_is_spent_is_an_error_and_a_run_that_is_stopped_is_cancelled() -> None:
    def work(message: str) -> dict[str, str]:
        program.thread("ada/t").stop()
        return {"reply": message}

    graph = Graph(inputs=["message"]).add_node(work, writes=["reply"]).add_node("late", Calls())
    program = graph.add_path(START, "work", "late", END).compile(store=":memory:")
    assert send(app_of(program), body())[-1]["outcome"] == {"type": "cancelled"}

    (*_, spent) = send(app_of(echo(budget=Budget(seconds=1e-9))), body())
    assert (spent["type"], spent["code"]) == ("RUN_ERROR", "limit")


def test_what_is_redacted_is_hidden_from_the_client() -> None:
    class Case(BaseModel):
        message: str
        reply: str = ""
        notes: dict[str, Any] = {}
        messages: Messages = []

    def work(message: str) -> dict[str, Any]:
        call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"card": "4711-0815"}'}}
        return {
            "notes": {"card": "4711-0815", "open": "yes"},
            "messages": [{"role": "assistant", "content": "Found 4711-0815", "tool_calls": [call]}],
        }

    def ask(notes: dict[str, Any], ctx: Any) -> dict[str, Any]:
        ctx.emit({"found": notes["card"]})
        ctx.interrupt("sure", f"Is {notes['card']} right?", bool)
        return {"reply": f"It is {notes['card']}"}

    graph = Graph(Case, inputs=["message"]).add_node(work, writes=["notes", "messages"])
    graph.add_node(ask, writes=["reply"])
    program = graph.add_path(START, "work", "ask", END).compile(
        store=":memory:", redact=["notes.card", "messages.*.content"]
    )
    app = app_of(program, text=["reply", "messages"])
    first = send(app, body())
    (question,) = asked(first)
    assert question["message"] == "Is 4711-0815 right?", "who is to answer must see it"
    assert json.dumps(first).count("4711-0815") == 1
    for _ in range(2):  # the second time, the run is returned as it was stored
        done = send(app, body(run="r2", resume=[resolved(question["id"], True)]))
        assert "4711" not in json.dumps(done)
        assert "[redacted]" in json.dumps(done)
    assert of_kind(first, "STATE_SNAPSHOT")[-1]["snapshot"]["notes"] == {"card": "[redacted]", "open": "yes"}


# --- who asks, and what


async def _post(app: Any, content: Any, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://agent") as client:
        return await client.post("/agui", content=content, headers={"x-user": "ada", **headers})


@pytest.mark.parametrize(
    ("content", "kind", "status", "detail"),
    [
        ("{", "application/json", 400, "body: Invalid JSON: EOF while parsing an object at line 1 column 1"),
        ('{"threadId": 1}', "application/json", 400, "threadId: Input should be a valid string; runId: Field required"),
        ("{", "Application/JSON ; charset=utf-8", 400, "body: Invalid JSON: EOF"),
        (json.dumps(body()), "text/plain", 415, "the content type is 'text/plain': send application/json"),
    ],
)
def test_what_is_no_request_of_the_protocol_has_an_error_status(
    content: str, kind: str, status: int, detail: str
) -> None:
    calls = Calls()
    response = asyncio.run(_post(app_of(echo(calls)), content, **{"content-type": kind}))
    assert (response.status_code, calls.given) == (status, [])
    assert response.text.startswith(detail)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_name_of_the_thread_is_the_application_s(is_async: bool) -> None:
    def name(request: Any, given: Any) -> str:
        if request.headers["x-user"] == "eve":
            raise HTTPException(403, "not yours")
        return f"{request.headers['x-user']}/{given.thread_id}"

    async def later(request: Any, given: Any) -> str:
        return name(request, given)

    program = echo()
    app = app_of(program, thread=later if is_async else name)
    send(app, body(thread="t"))
    send(app, body(thread="t"), who="bob")
    assert program.threads() == ["ada/t", "bob/t"]
    refused = asyncio.run(_post(app, json.dumps(body()), **{"content-type": "application/json", "x-user": "eve"}))
    assert (refused.status_code, program.threads()) == (403, ["ada/t", "bob/t"])


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "the last message of the request is not the user's"),
        ([user("Hi"), {"id": "a", "role": "assistant", "content": "Yes"}], "the last message of the request is not"),
        (
            [user([{"type": "image", "source": {"type": "url", "value": "http://x/y.png"}}])],
            "the message has parts of the type 'image': this program takes text alone",
        ),
    ],
)
def test_a_request_without_a_text_of_the_user_is_refused(messages: list[Any], text: str) -> None:
    (refused,) = send(app_of(echo()), body(messages=messages))
    assert (refused["type"], refused["code"]) == ("RUN_ERROR", "invalid")
    assert refused["message"].startswith(text)


def _breaks(*given: Any) -> Any:
    raise KeyError("secret")


def _refuses(*given: Any) -> Any:
    raise HTTPException(402, "no money")


@pytest.mark.parametrize(
    ("options", "request_", "code"),
    [
        ({"inputs": _breaks}, body(), "failed"),
        ({"inputs": _refuses}, body(), "invalid"),
        ({"inputs": lambda given: given.state}, body(state=7), "invalid"),
        ({}, body(run=""), "conflict"),
    ],
)
def test_a_response_that_has_begun_says_why_it_ends(
    options: dict[str, Any], request_: dict[str, Any], code: str
) -> None:
    (refused,) = send(app_of(echo(), **options), request_)
    assert (refused["type"], refused["code"], "secret" in refused["message"]) == ("RUN_ERROR", code, False)


def test_a_name_that_is_none_has_the_status_of_an_error_of_the_server() -> None:
    with pytest.raises(RuntimeError, match="has returned no name of a thread"):
        send(app_of(echo(), thread=lambda request, given: ""), body())


@pytest.mark.parametrize("leaves", ["while a chunk is sent", "and the server says so"])
def test_a_client_that_leaves_stops_the_run_before_the_response_ends(leaves: str) -> None:
    ran: list[str] = []
    gone, ended = asyncio.Event(), asyncio.Event()

    async def first(message: str) -> dict[str, str]:
        return {"draft": message}

    async def second(draft: str) -> dict[str, str]:
        await ended.wait()
        ran.append(draft)
        return {"reply": draft}

    graph = Graph(inputs=["message"]).add_node(first, writes=["draft"]).add_node(second, writes=["reply"])
    program = graph.add_path(START, "first", "second", END).compile(store=":memory:")
    headers = [(b"content-type", b"application/json"), (b"x-user", b"ada")]
    asgi = {"spec_version": "2.4" if leaves.endswith("so") else "2.3"}
    scope = {"type": "http", "method": "POST", "path": "/agui", "headers": headers, "query_string": b"", "asgi": asgi}
    requests = [{"type": "http.request", "body": json.dumps(body()).encode()}]

    async def receive() -> dict[str, Any]:
        if requests:
            return requests.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def refuse(message: Any) -> None:
        if b"STEP_STARTED" in message.get("body", b""):
            gone.set()
            if leaves.endswith("so"):
                raise OSError("the client has gone")
            await asyncio.Event().wait()

    async def leave() -> None:
        app = app_of(program, text=())
        with suppress(ClientDisconnect):
            await app(scope, receive, refuse)
        assert program.thread("ada/t").status == "stopped"
        ended.set()
        for _ in range(20):
            await asyncio.sleep(0)  # a task that was left behind would go on

    gc.disable()  # nothing may depend on it
    try:
        asyncio.run(leave())
    finally:
        gc.enable()
    assert ran == []


def test_parts_of_text_are_one_text() -> None:
    calls = Calls()
    send(app_of(echo(calls)), body([{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]))
    assert calls.given == ["Hi you"]


def test_inputs_are_what_a_function_makes_of_the_request() -> None:
    class Form(BaseModel):
        city: str
        days: int
        plan: str = ""

    graph = Graph(Form, inputs=["city", "days"])
    graph.add_node("plan_it", lambda city, days: {"plan": f"{days} days in {city}"}, writes=["plan"])
    program = graph.add_path(START, "plan_it", END).compile(store=":memory:")

    async def inputs(given: Any) -> dict[str, Any]:
        return {"city": given.state["city"], **given.forwarded_props}

    app = app_of(program, inputs=inputs)
    events = send(app, body(state={"city": "Rome"}, forwardedProps={"days": 3}, messages=[]))
    assert of_kind(events, "STATE_SNAPSHOT")[-1]["snapshot"] == {"plan": "3 days in Rome"}
    (refused,) = send(app, body(run="r2", state={"city": "Rome"}, forwardedProps={"days": "some"}))
    assert refused["code"] == "invalid"


# --- options


class Two(BaseModel):
    topic: str
    style: str
    text: str = ""
    title: str = ""


def two(store: str | None = ":memory:", **options: Any) -> Callable[[], Any]:
    graph = Graph(Two, inputs=["topic", "style"])
    graph.add_node("write", lambda topic: {"text": topic, "title": topic}, writes=["text", "title"])
    program = graph.add_path(START, "write", END).compile(store=store)
    return lambda: agui(program, **{"thread": lambda request, given: "t", **options})


def styled() -> Any:
    """A program that needs more than `message`."""

    class Styled(BaseModel):
        message: str
        style: str
        reply: str = ""

    graph = Graph(Styled, inputs=["message", "style"]).add_node("echo", Calls(), writes=["reply"])
    return agui(graph.add_path(START, "echo", END).compile(store=":memory:"), thread=lambda request, given: "t")


@each(
    ("make", "error", "text"),
    [
        (two(), InputError, "which of the fields 'text', 'title' of graph .* is what the assistant says?"),
        (two(text="txt"), InputError, "has no field 'txt'.* Did you mean 'text'?"),
        (two(text="text"), InputError, "the inputs of graph .* are 'style', 'topic': pass inputs="),
        (styled, InputError, "the inputs of graph .* are 'message', 'style': pass inputs="),
        (
            lambda: agui(cast("Any", Graph()), thread=lambda request, given: "t"),
            InputError,
            "Graph is no compiled graph: pass graph.compile",
        ),
        (two(store=None), ThreadError, "store"),
    ],
)
def test_options_that_cannot_work_are_refused_when_the_route_is_made(
    make: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()
