"""The service of examples/background.py behind a real server: runs continue without their requests."""

from __future__ import annotations

import asyncio
import runpy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dspyer import END, START, CompiledGraph, Graph
from dspyer.testing import clock
from tests.asgi_server import PATIENCE, served
from tests.test_serving import ended

EXAMPLE = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "background.py"))


def app_of(program: CompiledGraph) -> Any:
    """The app of the example over a program of the test's own."""
    return EXAMPLE["service"](program)


class Office:
    """A fork: a node that waits to be let go beside one that does not, then a payment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[str] = []
        self.inside = threading.Event()
        self.cancelled = threading.Event()
        self.open = False
        self.waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def write(self, customer: str) -> dict[str, Any]:
        self.calls.append("write")
        go = asyncio.Event()
        self.waiting.append((asyncio.get_running_loop(), go))
        self.inside.set()
        try:
            if not self.open:
                await go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return {"draft": customer}

    def pay(self, customer: str) -> dict[str, Any]:
        self.calls.append("pay")
        if customer == "Mallory":
            raise ConnectionError("the bank does not answer")
        return {"status": "paid"}

    def let_go(self) -> None:
        self.open = True
        for loop, go in self.waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(go.set)

    def program(self) -> CompiledGraph:
        """As each process of the service compiles it."""
        graph = Graph(name="Letters", inputs=["customer"])
        graph.add_node(self.write, writes=["draft"]).add_node("size", lambda customer: {"size": 1}, writes=["size"])
        graph.add_node(self.pay, writes=["status"]).add_edge(START, ["write", "size"])
        return graph.add_edge(["write", "size"], "pay").add_edge("pay", END).compile(store=self.path)


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path / "letters.db")


@pytest.fixture
def address(office: Office) -> Iterator[str]:
    with served(app_of(office.program())) as address:
        yield address


def news(address: str, after: int = -1) -> tuple[str, list[str]]:
    found = httpx.get(f"{address}/letters/1", params={"after": after}, timeout=PATIENCE).json()
    return found["status"], found["steps"]


def start(address: str, customer: str = "Ada") -> httpx.Response:
    return httpx.post(f"{address}/letters/1?customer={customer}", timeout=PATIENCE)


def test_the_run_continues_and_any_page_follows_it(office: Office, address: str) -> None:
    assert news(address) == ("new", [])
    assert start(address).status_code == 202
    assert office.inside.wait(PATIENCE)
    assert news(address) == ("running", ["START"]), "a fork has no versions before it joins"
    with served(app_of(office.program())) as another:
        assert news(another) == ("running", ["START"])
        office.let_go()
        assert ended(office.program().thread("1")) == "completed"
        assert news(another, after=0) == ("completed", ["write", "size", "join:pay", "pay"])
    assert news(address) == ("completed", ["START", "write", "size", "join:pay", "pay"])
    assert office.calls == ["write", "pay"]


def test_a_second_request_and_a_stop_by_another_process(office: Office, address: str) -> None:
    start(address)
    assert office.inside.wait(PATIENCE)
    with served(app_of(office.program())) as another:
        second = start(another, "Eve")
        assert (second.status_code, second.json()["detail"]) == (409, "the letter is being written")
        stopped = httpx.post(f"{another}/letters/1/stop", timeout=PATIENCE)
        assert stopped.json() == {"status": "stopped"}
        again = httpx.post(f"{another}/letters/1/stop", timeout=PATIENCE)
        assert (again.status_code, office.calls) == (422, ["write"])


def test_a_restart_stops_the_run_and_the_next_process_resumes_it(office: Office) -> None:
    with served(app_of(office.program())) as address:
        start(address)
        assert office.inside.wait(PATIENCE)
    assert office.cancelled.wait(PATIENCE)
    assert ended(office.program().thread("1")) == "stopped"
    office.let_go()
    with served(app_of(office.program())) as address:
        refused = start(address)
        assert (refused.status_code, "resume" in refused.json()["detail"]) == (422, True)
        assert httpx.post(f"{address}/letters/1/resume", timeout=PATIENCE).status_code == 202
        assert ended(office.program().thread("1")) == "completed"
    assert office.calls == ["write", "write", "pay"]


def test_a_failure_is_on_the_thread(office: Office, address: str) -> None:
    office.let_go()
    assert start(address, "Mallory").status_code == 202
    thread = office.program().thread("1")
    assert ended(thread) == "failed"
    assert (news(address)[0], thread.error and thread.error.type) == ("failed", "ConnectionError")


def test_the_job_for_what_is_due(tmp_path: Path) -> None:
    """Each thread goes on once, however often its job is delivered; what waits for a person stays."""
    store = str(tmp_path / "letters.db")
    graph = Graph(name="Letters").add_interrupt("ok", question="?", answer=bool, into="ok", expires=60, default=False)
    graph.add_interrupt("stamp", question="Has it a stamp?", answer=bool, into="stamped").add_path(
        START, "ok", "stamp", END
    )
    program = graph.compile(store=store)
    with clock() as time:
        for name in ("1", "2", "3"):
            program.thread(name).run({})
            time.advance(25)
        assert EXAMPLE["due"](store) == ["1"]
        told = [EXAMPLE["advance"](program, store, name) for name in ("1", "1", "2")]
        assert told == ["interrupted", "done", "done"]
        assert [question.key for question in program.thread("1").questions] == ["stamp"]
