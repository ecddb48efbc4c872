"""The service of docs/guides/serving.md and its script in a real browser: users at once, answers, all kinds of ends."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import dspy
import httpx
import pytest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import HTMLResponse, StreamingResponse

from dspyer import END, START, Graph
from dspyer.testing import Prompt, ScriptedLM
from tests.asgi_server import PATIENCE, served
from tests.test_serving import ADA, PAGE, app_of, ended

FOLLOW = """<script>
const seen = {};
async function follow(name, url, body) {
  const own = seen[name] = {events: [], error: null, over: false};
  try {
    for await (const event of events(url, body)) {
      own.events.push(event);
      if (own.leave === event.event) break;
    }
  } catch (error) { own.error = String(error); }
  own.over = true;
}
</script>"""


class Mail(BaseModel):
    customer: str
    draft: str = ""
    approved: bool = False
    status: str = "new"


class Desk:
    """A node that waits to be let go, a language model, a question, and a payment that may fail."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self.open = False
        self.bank = True
        self.waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self.paid: list[str] = []
        graph = Graph(Mail, inputs=["customer"], name="Mails")
        graph.add_node("check", self.check, writes=[])
        graph.add_node("write", dspy.Predict("customer -> draft"))
        graph.add_interrupt("approve", question="Send this? {draft}", answer=bool, into="approved")
        graph.add_node("pay", self.pay, writes=["status"])
        graph.add_path(START, "check", "write", "approve", "pay", END)
        self.program = graph.compile(store=":memory:")
        self.program.set_lm(ScriptedLM(self.write))

    async def check(self) -> None:
        go = asyncio.Event()
        self.waiting.append((asyncio.get_running_loop(), go))
        self.inside.release()
        try:
            if not self.open:
                await go.wait()
        except asyncio.CancelledError:
            self.cancelled.release()
            raise

    def write(self, prompt: Prompt) -> dict[str, Any]:
        return {"draft": letter(prompt.inputs["customer"])}

    def pay(self, customer: str, approved: bool) -> dict[str, Any]:
        self.paid.append(customer)
        if not self.bank:
            raise ConnectionError("the bank does not answer")
        return {"status": "paid" if approved else "dropped"}

    def let_go(self) -> None:
        self.open = True
        for loop, go in self.waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(go.set)

    def app(self) -> Any:
        """The app of the page with one more route: the script of the page."""
        (script,) = re.findall(r"```html\n(.*?)```", PAGE.read_text(), re.DOTALL)

        async def show(_request: Request) -> HTMLResponse:
            return HTMLResponse(f"<!doctype html>{script}{FOLLOW}")

        app = app_of(self.program)
        app.add_api_route("/", show, response_class=HTMLResponse)
        app.add_api_route("/bytes", single_bytes, methods=["POST"], response_class=StreamingResponse)
        return app


async def single_bytes(request: Request) -> StreamingResponse:
    """A response of some events, of which each byte is a chunk of its own."""
    ends = ["StreamEnded"] if "ended" in request.query_params else []
    data = [{"event": name, "text": "\U0001f600 \n\n data: {}"} for name in ("Token", *ends)]
    whole = "".join(f"event: {one['event']}\ndata: {json.dumps(one, ensure_ascii=False)}\n\n" for one in data).encode()

    async def parts() -> AsyncIterator[bytes]:
        for number in range(len(whole)):
            yield whole[number : number + 1]
            await asyncio.sleep(0)

    return StreamingResponse(parts(), media_type="text/event-stream")


def letter(customer: str) -> str:
    return f'Dear {customer},\n\n<b>data: {{}}</b> & "thanks" \U0001f600.'


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def address(desk: Desk) -> Iterator[str]:
    with served(desk.app()) as address:
        yield address


def start(page: Any, name: str, url: str, customer: str | None = None, leave: str | None = None) -> None:
    """Begins to follow a run; the page goes on."""
    body = {} if customer is None else {"customer": customer}
    call = "([name, url, body, leave]) => { follow(name, url, body); seen[name].leave = leave; }"
    page.evaluate(call, [name, url, body, leave])


def over(page: Any, name: str) -> tuple[list[str], list[dict[str, Any]], str | None]:
    """The names of the events, the events, and the error, once the response has ended."""
    page.wait_for_function("name => seen[name].over", arg=name)
    own = page.evaluate("name => seen[name]", name)
    return [event["event"] for event in own["events"]], own["events"], own["error"]


def wait_inside(desk: Desk, count: int = 1) -> None:
    assert all(desk.inside.acquire(timeout=PATIENCE) for _ in range(count))


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["event"] == "Token")


def answer(address: str, mail: str, approved: bool) -> dict[str, Any]:
    """Another client reads the question of a mail, and answers it."""
    with httpx.Client(base_url=address, headers=ADA, timeout=PATIENCE) as client:
        (question,) = client.get(f"/tickets/{mail}").json()["questions"]
        assert question["answer"] == {"type": "boolean"}
        found: dict[str, Any] = client.post(f"/tickets/{mail}/answers", json={question["id"]: approved}).json()
    return {"status": found["status"], "mail": found["outputs"].get("status")}


def test_two_users_at_once_and_answers_by_another_client(page: Any, desk: Desk, address: str) -> None:
    page.set_extra_http_headers(ADA)
    page.goto(address)
    for name in ("ada", "bob"):
        start(page, name, f"/tickets/{name}", name)
    wait_inside(desk, 2)
    desk.let_go()
    for name in ("ada", "bob"):
        names, events, error = over(page, name)
        assert (names[0], names[-3:], error) == ("RunStarted", ["Asked", "RunEnded", "StreamEnded"], None)
        assert text_of(events) == letter(name)
        assert next(event for event in events if event["event"] == "Asked")["question"]["text"].endswith(letter(name))
        assert events[-1]["status"] == "interrupted"
    assert answer(address, "bob", False) == {"status": "completed", "mail": "dropped"}
    assert desk.program.thread("ada/ada").status == "interrupted", "nothing of bob's is ada's"
    assert answer(address, "ada", True) == {"status": "completed", "mail": "paid"}
    assert sorted(desk.paid) == ["ada", "bob"]


def test_a_second_request_while_a_run_is_open(page: Any, desk: Desk, address: str) -> None:
    page.set_extra_http_headers(ADA)
    page.goto(address)
    start(page, "first", "/tickets/m-1", "Ada")
    wait_inside(desk)
    start(page, "second", "/tickets/m-1", "Eve")
    names, _, error = over(page, "second")
    assert (names, "Error: 409" in (error or ""), '"busy"' in (error or "")) == ([], True, True)
    desk.let_go()
    names, events, error = over(page, "first")
    assert (names[-1], text_of(events), error) == ("StreamEnded", letter("Ada"), None)
    start(page, "third", "/tickets/m-1", "Eve")
    names, _, error = over(page, "third")
    assert (names, "Error: 409" in (error or ""), '"waiting"' in (error or "")) == ([], True, True)
    assert answer(address, "m-1", True)["mail"] == "paid"
    assert desk.paid == ["Ada"]


def test_a_break_in_the_loop_over_the_events_stops_the_run(page: Any, desk: Desk, address: str) -> None:
    page.set_extra_http_headers(ADA)
    page.goto(address)
    start(page, "left", "/tickets/m-1", "Ada", leave="NodeStarted")
    names, _, error = over(page, "left")
    assert (names[-1], error) == ("NodeStarted", None)
    assert desk.cancelled.acquire(timeout=PATIENCE)
    assert ended(desk.program.thread("ada/m-1")) == "stopped"
    desk.let_go()
    start(page, "again", "/tickets/m-1/resume")
    names, events, error = over(page, "again")
    assert (names[0], names[-1], error) == ("RunStarted", "StreamEnded", None)
    assert text_of(events) == letter("Ada")


def test_a_failure_and_its_resume(page: Any, desk: Desk, address: str) -> None:
    desk.let_go()
    desk.bank = False
    page.set_extra_http_headers(ADA)
    page.goto(address)
    start(page, "run", "/tickets/m-1", "Ada")
    over(page, "run")
    assert answer(address, "m-1", True)["status"] == "failed"
    start(page, "resumed", "/tickets/m-1/resume")
    names, events, error = over(page, "resumed")
    assert (names[-3:], error) == (["NodeFailed", "RunEnded", "StreamEnded"], None)
    assert (events[-1]["status"], events[-1]["error"]["code"]) == ("failed", "failed")
    desk.bank = True
    start(page, "again", "/tickets/m-1/resume")
    _, events, _ = over(page, "again")
    assert (events[-1]["status"], desk.paid, text_of(events)) == ("completed", ["Ada"] * 3, "")


def test_a_server_that_goes_away(page: Any, desk: Desk) -> None:
    with served(desk.app()) as address:
        page.set_extra_http_headers(ADA)
        page.goto(address)
        start(page, "run", "/tickets/m-1", "Ada")
        wait_inside(desk)
    names, _, error = over(page, "run")
    assert "StreamEnded" not in names
    assert error in ("Error: the connection was lost", "TypeError: network error")
    assert desk.cancelled.acquire(timeout=PATIENCE)
    assert ended(desk.program.thread("ada/m-1")) == "stopped"
    desk.let_go()
    with served(desk.app()) as address:
        assert httpx.get(f"{address}/tickets/m-1", headers=ADA, timeout=PATIENCE).json()["status"] == "stopped"
        page.set_extra_http_headers(ADA)
        page.goto(address)
        start(page, "again", "/tickets/m-1/resume")
        names, events, error = over(page, "again")
    assert (names[-1], text_of(events), error) == ("StreamEnded", letter("Ada"), None)


def test_chunks_end_anywhere_and_a_response_without_its_last_event_was_cut(page: Any, address: str) -> None:
    page.set_extra_http_headers(ADA)
    page.goto(address)
    for name, url in (("whole", "/bytes?ended"), ("cut", "/bytes")):
        start(page, name, url)
    names, events, error = over(page, "whole")
    assert (names, events[0]["text"], error) == (["Token", "StreamEnded"], "\U0001f600 \n\n data: {}", None)
    assert over(page, "cut")[::2] == (["Token"], "Error: the connection was lost")
