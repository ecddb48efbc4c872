"""Pages in a real browser: that of examples/support_chat.py, and small ones that use `EventSource`."""

from __future__ import annotations

import asyncio
import runpy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import fastapi
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from dspyer import END, START, Graph
from dspyer.runtime.streams import AsyncEvents
from dspyer.stores import SQLite
from dspyer.testing import ScriptedLM
from tests.asgi_server import PATIENCE, served

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the support chat."""
    module = runpy.run_path(str(EXAMPLES / "support_chat.py"))
    store = SQLite(tmp_path / "chats.db")
    program = module["support"](module["Bank"](tmp_path), store)
    program.set_lm(ScriptedLM(module["scripted"]))
    with served(module["service"](program, store), lifespan="on") as address:
        yield address


def test_two_tabs_of_the_support_chat(page: Any, chat: str, tmp_path: Path) -> None:
    """A customer asks for money, another person approves half of it, and the customer sees who did."""
    page.goto(f"{chat}/?user=ada")
    other = page.context.new_page()
    other.goto(f"{chat}/?user=eve")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("The desk looks at it.").wait_for()
    amount = other.get_by_label("Amount")
    assert amount.input_value() == "90"
    amount.fill("45")
    other.get_by_role("button", name="Approve").click()
    page.locator("[data-status=completed]").wait_for()
    assert page.get_by_role("status").inner_text() == "45 USD are on their way, half of the price."
    assert page.locator("#answers li").all_inner_texts() == ["approved by eve"]
    (paid,) = (tmp_path / "bank.txt").read_text().splitlines()
    assert paid.endswith(" A-17 45.00")

    page.get_by_label("Message").fill("<b>And</b> the toaster, A-18? <script>window.hacked = 1</script>")
    page.get_by_label("Photo").fill("")
    page.get_by_role("button", name="Send").click()
    other.get_by_text("refund(order='A-18', amount=35.0)?").wait_for()  # the photo of the kettle is gone
    other.get_by_role("button", name="Refuse").click()
    page.get_by_text("Please send a photo of the toaster first.").wait_for()
    assert page.locator("#answers li").all_inner_texts() == ["approved by eve", "refused by eve"]
    assert page.evaluate("window.hacked") is None
    assert other.evaluate("window.hacked") is None


# --- small pages

READS = """<!doctype html><script>
const events = [], source = new EventSource("/run");
const note = (message) => events.push([message.lastEventId, JSON.parse(message.data)]);
const names = ["RunStarted", "Emitted", "Token", "Committed", "RunEnded", "StreamEnded"];
for (const name of names) source.addEventListener(name, note);
let errors = 0;
source.onerror = () => { errors += 1; };
CLOSES
</script>"""
CLOSES = 'source.addEventListener("StreamEnded", () => source.close());'


class Site:
    """A page, and the run that it reads; what the browser asked for."""

    def __init__(self, stream: Callable[[], AsyncEvents], page: str, change: Callable[[bytes], bytes] = bytes) -> None:
        self.stream = stream
        self.page = page
        self.change = change
        self.asked: list[str | None] = []
        self.twice = threading.Event()

    async def show(self, request: Request) -> Response:
        return HTMLResponse(self.page)

    async def run(self, request: Request) -> Response:
        self.asked.append(request.headers.get("last-event-id"))
        if len(self.asked) > 1:
            self.twice.set()
        if "last-event-id" in request.headers:
            return Response(status_code=204)
        return StreamingResponse(self.parts(), media_type="text/event-stream")

    async def parts(self) -> Any:
        async for part in self.stream().sse():
            yield self.change(part)

    def starlette(self) -> Any:
        return Starlette(routes=[Route("/", self.show), Route("/run", self.run)])

    def fastapi(self) -> Any:
        app = fastapi.FastAPI()
        app.add_api_route("/", self.show, response_class=HTMLResponse)
        app.add_api_route("/run", self.run, response_class=StreamingResponse)
        return app


ANSWER = "\u2028Tides & <i>currents</i>:\r\nthe moon pulls.\n\nevent: RunEnded\ndata: {}"


def answering() -> Any:
    graph = Graph(inputs=["question"]).add_node("say", lambda ctx: ctx.emit(ANSWER), writes=[])
    graph.add_node("answer", dspy.Predict("question -> answer"))
    program = graph.add_path(START, "say", "answer", END).compile()
    program.set_lm(ScriptedLM([{"answer": ANSWER}]))
    return program


@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
def test_a_browser_reads_every_token_and_asks_once(page: Any, framework: str) -> None:
    site = Site(lambda: answering().astream({"question": "Why?"}, tokens=True), READS.replace("CLOSES", CLOSES))
    with served(getattr(site, framework)()) as address:
        page.goto(address)
        page.wait_for_function("source.readyState === EventSource.CLOSED")
        events = page.evaluate("events")
        assert page.evaluate("errors") == 0
    names = [event["event"] for _, event in events]
    assert (names[0], names[-2:], names.count("RunEnded")) == ("RunStarted", ["RunEnded", "StreamEnded"], 1)
    (answer,) = [event["commit"]["patch"]["answer"] for _, event in events if event.get("position") == 2]
    assert "".join(event["text"] for _, event in events if event["event"] == "Token") == answer
    assert [event["value"] for _, event in events if event["event"] == "Emitted"] == [ANSWER]
    numbers = [int(number) for number, _ in events]
    assert numbers == sorted(set(numbers))
    assert site.asked == [None]


def test_a_page_that_does_not_close_starts_no_second_run(page: Any) -> None:
    """A browser connects again when a response ends: after a day, and the status 204 ends that."""

    def soon(part: bytes) -> bytes:
        return part.replace(b"retry: 86400000", b"retry: 10")

    site = Site(lambda: answering().astream({"question": "Why?"}), READS.replace("CLOSES", ""), soon)
    with served(site.starlette()) as address:
        page.goto(address)
        assert site.twice.wait(PATIENCE)
        page.wait_for_function("source.readyState === EventSource.CLOSED")
        last = page.evaluate("events.at(-1)")
    assert (last[1]["event"], site.asked) == ("StreamEnded", [None, last[0]])

    site = Site(lambda: answering().astream({"question": "Why?"}), READS.replace("CLOSES", ""))
    with served(site.starlette()) as address:
        page.goto(address)
        page.wait_for_function("errors === 1")
        assert page.evaluate("source.readyState === EventSource.CONNECTING"), "it waits for a day"
    assert site.asked == [None]


def test_a_page_that_is_left_stops_the_run(page: Any) -> None:
    inside, cancelled = threading.Event(), threading.Event()

    async def waits(n: int) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    graph = Graph(inputs=["n"]).add_node(waits, writes=[]).add_path(START, "waits", END)
    t = graph.compile(store=":memory:").thread("t")
    site = Site(lambda: t.astream({"n": 1}), READS.replace("CLOSES", CLOSES))
    with served(site.starlette()) as address:
        page.goto(address)
        page.wait_for_function("events.length > 0")
        assert inside.wait(PATIENCE)
        page.goto("about:blank")
        assert cancelled.wait(PATIENCE)
    assert t.status == "stopped"
