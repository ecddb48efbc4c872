"""Pages in a real browser: those of examples/web.py and examples/desk.py, and small ones that use `EventSource`."""

from __future__ import annotations

import asyncio
import runpy
import sys
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

from dspyer import END, START, CompiledGraph, Graph
from dspyer.runtime.streams import AsyncEvents
from dspyer.testing import ScriptedLM
from tests.asgi_server import PATIENCE, served

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, CompiledGraph]]:
    monkeypatch.delenv("DSPYER_MODEL", raising=False)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    module = runpy.run_path(str(EXAMPLES / "web.py"))
    program = module["desk"]()
    with served(module["service"](program)) as address:
        yield address, program
    for name in {"model", "triage"} & (set(sys.modules) - before):
        del sys.modules[name]


def only_thread(program: CompiledGraph) -> Any:
    (name,) = program.threads()
    return program.thread(name)


def test_the_example(page: Any, example: tuple[str, CompiledGraph]) -> None:
    address, program = example
    page.goto(address)
    page.get_by_label("Ticket").fill('<b>Bold</b> & "odd": the export fails. <script>window.hacked = 1</script>')
    page.get_by_role("button", name="Write a letter").click()
    page.get_by_role("button", name="Send it").wait_for()
    t = only_thread(program)
    assert t.status == "interrupted"
    shown = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_text_contents(), strict=True))
    assert shown == {"classify: category": t.state["category"], "extract: wish": t.state["wish"]}
    assert page.locator("#question p").text_content() == f"Send this letter? {t.state['letter']}"
    page.get_by_role("button", name="Send it").click()
    page.locator("[data-ended=completed]").wait_for()
    assert page.get_by_role("status").inner_text() == t.state["outcome"]
    assert "was sent" in t.state["outcome"]
    assert page.evaluate("window.hacked") is None


def test_two_tabs_of_the_desk(page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A customer asks for money, a supervisor approves half of it, and the customer sees who did."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    desk = runpy.run_path(str(EXAMPLES / "desk.py"))
    bank, store = desk["Bank"](tmp_path / "calls.txt"), tmp_path / "desk.db"
    program = desk["support_desk"](bank, store)
    program.set_lm(ScriptedLM(desk["scripted"]))
    with served(desk["service"](program, store), lifespan="on") as address:
        page.goto(f"{address}/?user=ada")
        other = page.context.new_page()
        other.goto(f"{address}/?user=eve")
        page.get_by_role("button", name="Send").click()
        page.get_by_text("The desk looks at it.").wait_for()
        amount = other.get_by_label("Amount")
        assert amount.input_value() == "90"
        amount.fill("45")
        other.get_by_role("button", name="Approve").click()
        page.locator("[data-status=completed]").wait_for()
        assert page.get_by_role("status").inner_text() == "45 USD are on their way, half of the price: the lid is fine."
        assert page.locator("#answers li").all_inner_texts() == ["approved by eve"]
    assert [(kind, *rest[1:]) for kind, *rest in bank.noted()] == [("asked",), ("paid", "A-17", 45.0)]


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
