"""`serve.router` behind a real server: what each route answers, who may ask, a client that leaves, crashed runs."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dspy
import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request

from dspyer import END, START, CompiledGraph, Graph, Thread, agents, serve
from dspyer.errors import InputError, ThreadError
from dspyer.stores import Memory, SQLite
from dspyer.testing import ScriptedLM
from tests.asgi_server import PATIENCE, served
from tests.threads.test_leases import set_owner_on_another_host
from tests.threads.test_recovery import crash, letters


class Mail(BaseModel):
    customer: str
    draft: str = ""
    approved: bool | None = None
    status: str = "new"


class Calls:
    """A graph with a question, and one whose first node waits until the test lets it go."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.began, self.cancelled = threading.Event(), threading.Event()
        self.open = False

    def write(self, customer: str) -> dict[str, Any]:
        self.made.append(f"write {customer}")
        if customer == "Mallory":
            raise ConnectionError("secret-host does not answer")
        return {"draft": f"Dear {customer}"}

    def send(self, approved: bool) -> dict[str, Any]:
        self.made.append("send")
        return {"status": "sent" if approved else "dropped"}

    def mails(self, **options: Any) -> CompiledGraph:
        graph = Graph(Mail, inputs=["customer"], outputs=["draft", "status"], name="Mails")
        graph.add_node("write", self.write, writes=["draft"])
        graph.add_interrupt("approve", question="Send {draft}?", answer=bool, into="approved")
        graph.add_node("send", self.send, writes=["status"])
        return graph.add_path(START, "write", "approve", "send", END).compile(**{"store": ":memory:", **options})

    async def wait(self, customer: str) -> dict[str, Any]:
        self.made.append(f"wait {customer}")
        self.began.set()
        try:
            if not self.open:
                await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return {"draft": customer}

    def waiting(self) -> CompiledGraph:
        graph = Graph(Mail, inputs=["customer"], outputs=["draft"], name="Mails")
        return graph.add_node(self.wait, writes=["draft"]).add_path(START, "wait", END).compile(store=":memory:")


def own(request: Request, name: str) -> str:
    return f"{request.headers['x-user']}/{name}"


def user(request: Request) -> str:
    return request.headers["x-user"]


@contextmanager
def service(program: CompiledGraph, who: str = "ada", **options: Any) -> Iterator[httpx.Client]:
    """A client of a FastAPI app in which the router is mounted."""
    app = FastAPI()
    app.mount("/chats", serve.router(program, **{"thread": own, "by": user, **options}))
    with (
        served(app) as address,
        httpx.Client(base_url=f"{address}/chats", headers={"x-user": who}, timeout=PATIENCE) as client,
    ):
        yield client


@pytest.fixture
def calls() -> Calls:
    return Calls()


def names(response: httpx.Response) -> list[str]:
    return [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]


def data(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line.startswith("data: ")]


JSON, EVENTS = {"content-type": "application/json"}, {"accept": "text/event-stream"}


def test_a_run_its_question_and_its_answer(calls: Calls) -> None:
    program = calls.mails()
    with service(program) as client:
        started = client.post("/1", json={"customer": "Ada"})
        assert started.status_code == 200
        found = started.json()
        (question,) = found["questions"]
        assert (found["status"], found["outputs"]) == ("interrupted", {"draft": "Dear Ada", "status": "new"})
        assert (found["error"], question["text"]) == (None, "Send Dear Ada?")
        assert client.get("/1").json() == {**found, "answers": []}
        answered = client.post("/1/answers", json={question["id"]: True})
        done: dict[str, Any] = {
            "status": "completed",
            "outputs": {"draft": "Dear Ada", "status": "sent"},
            "questions": [],
            "error": None,
        }
        assert (answered.status_code, answered.json()) == (200, done)
        assert answered.headers["cache-control"] == "no-store"
        shown = client.get("/1").json()
        (answer,) = shown.pop("answers")
        assert shown == done
        assert (answer["question"]["id"], answer["value"], answer["by"]) == (question["id"], True, "ada")
        again = client.post("/1/answers", json={question["id"]: True})  # delivered twice
        assert (again.status_code, again.json()) == (200, done)
        assert client.get("/").json() == {"names": ["1"]}
    assert calls.made == ["write Ada", "send"]
    assert program.threads() == ["ada/1"]


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code"),
    [
        ("POST", "/2", {"content": "customer=Ada"}, 415, "invalid"),
        ("POST", "/2", {"data": {"customer": "Ada"}}, 415, "invalid"),
        ("POST", "/2", {"content": "{", "headers": JSON}, 400, "invalid"),
        ("POST", "/2", {"content": "", "headers": JSON}, 400, "invalid"),
        ("POST", "/2", {"content": "[" * 100_000, "headers": JSON}, 400, "invalid"),
        (
            "POST",
            "/2",
            {"content": '{"customer": NaN}', "headers": JSON},
            400,
            "invalid",
        ),
        ("POST", "/2", {"content": b'{"\xff": 1}', "headers": JSON}, 400, "invalid"),
        ("POST", "/2", {"json": ["Ada"]}, 400, "invalid"),
        ("POST", "/2", {"json": {}}, 422, "invalid"),
        ("POST", "/2", {"json": {"customer": 7}}, 422, "invalid"),
        ("POST", "/2", {"json": {"customer": "Ada", "status": "sent"}}, 422, "invalid"),
        ("POST", "/1", {"json": {"customer": "Eve"}}, 409, "waiting"),
        ("POST", "/1", {"json": {"customer": "Eve"}, "headers": EVENTS}, 409, "waiting"),
        ("POST", "/1/answers", {"content": "{}"}, 415, "invalid"),
        ("POST", "/1/answers", {"json": {}}, 422, "invalid"),
        ("POST", "/1/answers", {"json": {"approve": True}}, 422, "invalid"),
        ("POST", "/1/answers", {"json": {"ada/1.1/trunk:2/approve": "yes"}}, 422, "invalid"),
        ("POST", "/1/answers", {"json": {"ada/9.1/trunk:2/approve": True}}, 422, "invalid"),
        ("POST", "/1/stop", {}, 409, "conflict"),
        ("GET", "/2", {}, 404, "unknown"),
        ("POST", "/2/answers", {"json": {"ada/2.1/trunk:2/approve": True}}, 404, "unknown"),
        ("POST", "/2/resume", {}, 404, "unknown"),
        ("POST", "/2/stop", {}, 404, "unknown"),
    ],
)
def test_what_is_refused_has_a_status_and_an_error_and_changes_nothing(
    calls: Calls, method: str, path: str, sent: dict[str, Any], status: int, code: str
) -> None:
    program = calls.mails()
    program.thread("ada/1").run({"customer": "Ada"})
    before = len(program.thread("ada/1").history())
    with service(program) as client:
        refused = client.request(method, path, **sent)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
        assert refused.json()["error"]["message"]
        assert client.get("/1").json()["status"] == "interrupted"
    assert (calls.made, program.threads()) == (["write Ada"], ["ada/1"])
    assert len(program.thread("ada/1").history()) == before


def test_events_with_tokens_where_the_client_asks_for_them() -> None:
    predictor = dspy.Predict("message -> reply")
    predictor.set_lm(ScriptedLM([{"reply": "in the north"}] * 2))
    graph = Graph(inputs=["message"]).add_node("reply", predictor).add_path(START, "reply", END)
    with service(graph.compile(store=":memory:")) as client:
        streamed = client.post("/1", json={"message": "Where?"}, headers=EVENTS)
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert "".join(one["text"] for one in data(streamed) if one["event"] == "Token") == "in the north"
        assert (names(streamed)[0], names(streamed)[-1]) == ("RunStarted", "StreamEnded")
        assert client.post("/2", json={"message": "Where?"}).json()["outputs"] == {"reply": "in the north"}


@pytest.mark.parametrize("headers", [{}, EVENTS], ids=["JSON", "events"])
def test_a_request_with_a_key_is_one_run(calls: Calls, headers: dict[str, str]) -> None:
    with service(calls.mails()) as client:
        for customer, status in (("Ada", 200), ("Ada", 200), ("Eve", 409)):
            sent = client.post("/1", json={"customer": customer}, headers={"idempotency-key": "5f3a", **headers})
            assert sent.status_code == status
        assert client.get("/1").json()["status"] == "interrupted"
    assert calls.made == ["write Ada"]


@pytest.mark.parametrize("headers", [{}, EVENTS], ids=["JSON", "events"])
def test_a_client_that_leaves_stops_its_run(calls: Calls, headers: dict[str, str]) -> None:
    program = calls.waiting()
    with service(program) as client:
        with ThreadPoolExecutor(1) as pool, httpx.Client(timeout=PATIENCE) as leaving:
            address = str(client.base_url)
            given: dict[str, Any] = {"json": {"customer": "Ada"}, "headers": {"x-user": "ada", **headers}}

            def leave() -> None:
                with leaving.stream("POST", f"{address}1", **given) as response:
                    for _ in response.iter_raw():
                        pass

            reading = pool.submit(leave)
            assert calls.began.wait(PATIENCE)
            for connection in leaving._transport._pool.connections:  # type: ignore[attr-defined]
                stream = connection._connection._network_stream
                stream.get_extra_info("socket").shutdown(2)
            assert reading.exception(PATIENCE) is not None
        assert calls.cancelled.wait(PATIENCE)
        status = "running"
        while status == "running":
            status = client.get("/1").json()["status"]
        assert status == "stopped"
        calls.open = True
        resumed = client.post("/1/resume").json()
        assert (resumed["status"], resumed["outputs"]) == ("completed", {"draft": "Ada"})
    assert calls.made == ["wait Ada"] * 2


def test_a_client_that_leaves_while_a_plain_function_runs_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The function ends, and the run stops behind it: nothing of that is for the log of the server."""
    left = threading.Event()

    def wait(customer: str) -> dict[str, Any]:
        assert left.wait(PATIENCE)
        for _ in range(20):  # in the meantime the server hears of it
            time.sleep(0.01)
        return {"draft": customer}

    graph = Graph(Mail, inputs=["customer"], name="Mails").add_node(wait, writes=["draft"])
    graph.add_node("last", lambda: None, writes=[])
    with service(graph.add_path(START, "wait", "last", END).compile(store=":memory:")) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/1", json={"customer": "Ada"}, timeout=0.5)
        left.set()
        status = "running"
        while status == "running":
            status = client.get("/1").json()["status"]
        assert status == "stopped"
    assert [one.message for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_a_busy_thread_and_a_stop_from_another_request(calls: Calls) -> None:
    with service(calls.waiting()) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/1", json={"customer": "Ada"})
        assert calls.began.wait(PATIENCE)
        for path, body in (("/1", {"customer": "Eve"}), ("/1/resume", None)):
            busy = client.post(path, json=body)
            assert (busy.status_code, busy.json()["error"]["code"]) == (409, "busy"), path
        assert client.get("/1").json()["status"] == "running"
        stopped = client.post("/1/stop")
        assert (stopped.status_code, stopped.json()["status"]) == (200, "stopped")
        assert first.result(PATIENCE).json()["status"] == "stopped"
        assert calls.cancelled.wait(PATIENCE)
    assert calls.made == ["wait Ada"]


def test_a_failure_is_told_without_its_text(calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    with service(calls.mails()) as client:
        failed = client.post("/1", json={"customer": "Mallory"})
        assert (failed.status_code, failed.json()["status"], failed.json()["error"]["code"]) == (
            500,
            "failed",
            "failed",
        )
        read = client.get("/1")
        assert (read.status_code, read.json()["status"]) == (200, "failed")
        assert read.json()["error"] == failed.json()["error"]
        streamed = client.post("/1/resume", headers=EVENTS)
        assert (streamed.status_code, data(streamed)[-1]["status"]) == (200, "failed")
        assert data(streamed)[-1]["error"] == failed.json()["error"]
        assert "secret" not in failed.text + read.text + streamed.text
        assert client.post("/2", json={"customer": "Ada"}).status_code == 200
    assert "secret-host does not answer" in caplog.text


def by_name(request: Request, name: str) -> str:
    if user(request) == "eve":
        raise HTTPException(403, "not yours", {"x-why": "owner"})
    return f"{user(request)}/{name}"


async def later(request: Request, name: str) -> str:
    return by_name(request, name)


def handle(program: CompiledGraph) -> Callable[[Request, str], Thread]:
    return lambda request, name: program.thread(by_name(request, name))


@pytest.mark.parametrize("kind", ["sync", "async", "a thread"])
def test_the_application_names_the_thread(calls: Calls, kind: str) -> None:
    program = calls.mails()
    thread: Any = {"sync": by_name, "async": later, "a thread": handle(program)}[kind]
    with service(program, thread=thread) as client:
        for who in ("ada", "bob"):
            assert client.post("/1", json={"customer": who}, headers={"x-user": who}).status_code == 200
        refused = client.post("/1", json={"customer": "Eve"}, headers={"x-user": "eve"})
        assert (refused.status_code, refused.headers["x-why"]) == (403, "owner")
        assert refused.json() == {"error": {"code": "invalid", "status": 403, "message": "not yours"}}
        assert client.get("/1", headers={"x-user": "bob"}).json()["outputs"]["draft"] == "Dear bob"
        assert client.get("/2", headers={"x-user": "bob"}).status_code == 404
        assert client.get("/a%2F1").status_code == 404
    assert program.threads() == ["ada/1", "bob/1"]


def test_who_may_not_answer_is_refused_by_the_application(calls: Calls) -> None:
    """A customer starts and reads runs; who approves them has a router of their own."""

    def supervisor(request: Request) -> str:
        if user(request) != "boss":
            raise HTTPException(403, "you may not approve")
        return user(request)

    program = calls.mails()
    with service(program, by=supervisor) as client:
        asked = client.post("/1", json={"customer": "Ada"}).json()["questions"][0]["id"]
        for given in ({}, EVENTS):
            refused = client.post("/1/answers", json={asked: True}, headers=given)
            assert (refused.status_code, refused.json()["error"]["message"]) == (403, "you may not approve")
        assert (client.get("/1").json()["status"], calls.made) == ("interrupted", ["write Ada"])
    with service(program, "boss", thread=lambda _, name: name.replace(":", "/"), by=supervisor) as client:
        assert client.post("/ada:1/answers", json={asked: True}).json()["outputs"]["status"] == "sent"
        assert [one["by"] for one in client.get("/ada:1").json()["answers"]] == ["boss"]


def test_an_error_of_the_application_is_one_of_the_server(calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    with service(calls.mails(), thread=lambda request, name: None) as client:
        broken = client.post("/1", json={"customer": "Ada"})
        assert (broken.status_code, broken.json()["error"]["code"]) == (500, "failed")
    with service(calls.mails(), by=lambda request: 7) as client:
        asked = client.post("/1", json={"customer": "Ada"}).json()["questions"][0]["id"]
        assert client.post("/1/answers", json={asked: True}).status_code == 500
        assert client.get("/1").json()["status"] == "interrupted"
    with service(calls.mails()) as client:
        no_header = httpx.get(f"{client.base_url}1", timeout=PATIENCE)
        assert (no_header.status_code, no_header.json()["error"]["code"]) == (500, "failed")
    assert "x-user" in caplog.text


class Many(Memory):
    """A store with many threads."""

    def threads(self, after: str = "", limit: int | None = None, idle: float | None = None) -> list[str]:
        found = [*(f"ada/{number:04}" for number in range(1_500)), "ada/x/1", "ada0/1", "bob/1"]
        return [name for name in found if name > after][:limit]


def test_names_are_those_of_the_user_page_by_page(calls: Calls) -> None:
    program = calls.mails(store=Many())
    with service(program) as client:
        first = client.get("/").json()["names"]
        assert (first[0], first[-1], len(first)) == ("0000", "0999", 1_000)
        rest = client.get("/", params={"after": first[-1]}).json()["names"]
        assert (rest[0], rest[-1], len(rest)) == ("1000", "1499", 500)
        assert client.get("/", params={"after": rest[-1]}).json() == {"names": []}
        assert client.get("/", headers={"x-user": "eve"}).json() == {"names": []}
        assert client.get("/", headers={"x-user": "bob"}).json() == {"names": ["1"]}


def test_what_is_redacted_is_hidden(calls: Calls) -> None:
    with service(calls.mails(redact=["draft"])) as client:
        started = client.post("/1", json={"customer": "Ada"})
        shown = client.get("/1")
    assert started.json()["outputs"] == {"draft": "[redacted]", "status": "new"} == shown.json()["outputs"]
    assert started.json()["questions"][0]["text"] == "Send Dear Ada?"  # who answers must see it


def test_outputs_are_json_whatever_they_are() -> None:
    values = {"nan": float("nan"), "half": "\ud800", "raw": b"\x00", "when": 1e400, "pair": (1, 2)}
    graph = Graph(inputs=[]).add_node("give", lambda: {"values": values}, writes=["values"])
    with service(graph.add_path(START, "give", END).compile(store=":memory:")) as client:
        found = client.post("/1", json={})
    assert found.json()["outputs"]["values"] == {
        "nan": None,
        "half": "\ud800",
        "raw": "AA==",
        "when": None,
        "pair": [1, 2],
    }


def desk(paid: list[float]) -> CompiledGraph:
    def refund(order: str, amount: float) -> str:
        """Pays money back."""
        paid.append(amount)
        return f"paid {amount}"

    call = {"name": "refund", "args": {"order": "A-17", "amount": 90}}
    last = {"name": "submit", "args": {"reply": "Done."}}
    script = [{"next_thought": "?", "tool_calls": [each]} for each in (call, last)]
    program = agents.tool_loop("message -> reply", [agents.tool(refund, approve=True)]).compile(store=":memory:")
    program.set_lm(ScriptedLM(script))
    return program


def test_an_approval_has_the_call_and_may_change_it() -> None:
    paid: list[float] = []
    with service(desk(paid)) as client:
        (question,) = client.post("/1", json={"message": "Refund A-17"}).json()["questions"]
        assert question["call"]["args"] == {"order": "A-17", "amount": 90}
        half = {"ok": True, "args": {"order": "A-17", "amount": 45}}
        for wrong in ({**half, "ok": "yes"}, {**half, "args": {"order": "A-17"}}):
            assert client.post("/1/answers", json={question["id"]: wrong}).status_code == 422
        assert client.post("/1/answers", json={question["id"]: half}).json()["outputs"] == {"reply": "Done."}
        (answer,) = client.get("/1").json()["answers"]
        assert (answer["value"], answer["by"]) == (half, "ada")
    assert paid == [45]


def test_new_words_amend_an_open_run_where_the_service_says_so() -> None:
    paid: list[float] = []
    with service(desk(paid), if_open="amend") as client:
        client.post("/1", json={"message": "Refund A-17"})
        assert client.post("/1", json={"message": "Never mind."}).json()["status"] == "completed"
        (answer,) = client.get("/1").json()["answers"]
        assert (answer["value"]["ok"], answer["by"]) == (False, None)
    assert paid == []


def test_a_message_is_taken_in_while_a_run_waits() -> None:
    program = desk([])
    with service(program) as client:
        assert client.post("/1/messages", json={"text": "Quick."}).status_code == 404
        client.post("/1", json={"message": "Refund A-17"})
        for _ in range(2):
            sent = client.post("/1/messages", json={"text": "Quick."}, headers={"idempotency-key": "m-1"})
            assert (sent.status_code, sent.json()) == (202, {"number": 0, "open": True})
        for wrong in ({}, {"text": ""}, {"text": "x", "by": "eve"}, {"text": "x", "to": "bob"}):
            refused = client.post("/1/messages", json=wrong)
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid"), wrong
    assert [(one.text, one.by) for one in program.thread("ada/1").unread] == [("Quick.", "ada")]


def test_new_inputs_abandon_an_open_run_where_the_service_says_so(calls: Calls) -> None:
    with service(calls.mails(), if_open="abandon") as client:
        for customer in ("Ada", "Bob"):
            started = client.post("/1", json={"customer": customer})
            assert (started.status_code, started.json()["outputs"]["draft"]) == (200, f"Dear {customer}")


@pytest.mark.parametrize("start", ["with the app", "with the first request", "as an app"])
def test_crashed_runs_go_on_when_the_service_starts(
    tmp_path: Path, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    crash(tmp_path, "ada/1")
    done = threading.Event()

    def send(customer: str) -> dict[str, Any]:
        done.set()
        return {"sent": True}

    program = letters(SQLite(tmp_path / "runs.db"), send)
    caplog.set_level(logging.INFO, "dspyer")
    router = serve.router(program, thread=own, recover=True)
    app = FastAPI(lifespan=router.lifespan_context if start == "with the app" else None)
    app.mount("/chats", router)
    lifespan: Any = "off" if start == "with the first request" else "on"
    with served(router if start == "as an app" else app, lifespan=lifespan) as address:
        if start == "with the first request":
            assert not done.is_set()
            httpx.get(f"{address}/chats/", headers={"x-user": "bob"}, timeout=PATIENCE)
        assert done.wait(PATIENCE)
    thread = program.thread("ada/1")
    while thread.status == "running":
        threading.Event().wait(0.01)
    assert thread.status == "completed"


def test_a_run_of_a_lost_container_goes_on_once_its_lease_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new container starts at once, when nobody can know yet that the owner is gone: so it looks again."""
    crash(tmp_path, "t")
    store, done, looked, minute = SQLite(tmp_path / "runs.db"), threading.Event(), threading.Event(), threading.Event()
    set_owner_on_another_host(store)
    sleep = time.sleep

    def passing(seconds: float) -> None:
        if seconds != 60:
            sleep(seconds)
        elif not looked.is_set():
            looked.set()
            minute.wait(PATIENCE)

    monkeypatch.setattr(time, "sleep", passing)

    def send(customer: str) -> dict[str, Any]:
        done.set()
        return {"sent": None}

    program = letters(store, send)
    with served(serve.router(program, thread=own, recover=True), lifespan="on"):
        assert looked.wait(PATIENCE)
        assert program.thread("t").status == "running"
        set_owner_on_another_host(store, lease=0.0)
        minute.set()
        assert done.wait(PATIENCE)


class Passing(BaseHTTPMiddleware):
    """Reads and sends nothing of its own; it hands requests on in a task."""

    async def dispatch(self, request: Request, call_next: Any) -> Any:
        return await call_next(request)


@pytest.mark.parametrize("headers", [{}, EVENTS], ids=["JSON", "events"])
def test_a_middleware_around_the_router_changes_nothing(calls: Calls, headers: dict[str, str]) -> None:
    app = FastAPI()
    app.add_middleware(Passing)
    program = calls.mails()
    app.mount("/chats", serve.router(program, thread=own))
    with served(app) as address, httpx.Client(base_url=address, headers={"x-user": "ada", **headers}) as client:
        assert client.post("/chats/1", json={"customer": "Ada"}).status_code == 200
        assert client.post("/chats/1", json={"customer": "Ada"}).json()["error"]["code"] == "waiting"
        assert client.post("/chats/1/stop").status_code == 409
    assert program.thread("ada/1").status == "interrupted"


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"program": Graph()}, InputError, "Graph is no compiled graph"),
        ({"program": letters(None)}, ThreadError, "compiled without a store"),
        ({"thread": "t"}, InputError, r"router\(thread='t'\): pass a function"),
        ({"by": "ada"}, InputError, r"router\(by='ada'\): pass a function"),
        ({"if_open": "merge"}, ValueError, "if_open='merge'"),
    ],
)
def test_options_that_cannot_work_are_refused_when_the_router_is_made(
    calls: Calls, change: dict[str, Any], error: type[Exception], text: str
) -> None:
    options = {"program": calls.mails(), "thread": own, **change}
    with pytest.raises(error, match=text):
        serve.router(options.pop("program"), **options)
