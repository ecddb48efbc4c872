"""The service of docs/guides/serving.md behind a real server: a client that hangs up, users at once, errors."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START as LANGGRAPH_START
from langgraph.graph import StateGraph, add_messages
from langgraph.types import interrupt

from dspyer import END, START, CompiledGraph, Graph, Thread
from dspyer.migrate import from_langgraph
from tests.asgi_server import PATIENCE, served

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "serving.md"


def app_of(program: CompiledGraph, name: str = "app") -> Any:
    """The app of the page, `starlette_app` for that of Starlette, over a program of the test's own."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    module = ModuleType("serving_page")
    exec("\n".join([*code[:2], *(block for block in code if "starlette_app = " in block)]), module.__dict__)
    module.__dict__["program"] = program
    return module.__dict__[name]


class Calls:
    """Two nodes: the first one waits to be let go, the second one counts its calls."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.cancelled = threading.Event()
        self.open = False
        self.waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self.paid: list[str] = []

    async def write(self, customer: str) -> dict[str, Any]:
        go = asyncio.Event()
        self.waiting.append((asyncio.get_running_loop(), go))
        self.began.set()
        try:
            if not self.open:
                await go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return {"draft": customer}

    def let_go(self) -> None:
        self.open = True
        for loop, go in self.waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(go.set)

    def pay(self, customer: str, draft: str) -> dict[str, Any]:
        self.paid.append(customer)
        if customer == "Mallory":
            raise ConnectionError("the bank does not answer")
        return {"status": "paid"}

    def program(self) -> CompiledGraph:
        graph = Graph(name="Mails", inputs=["customer"])
        graph.add_node(self.write, writes=["draft"]).add_node(self.pay, writes=["status"])
        return graph.add_path(START, "write", "pay", END).compile(store=":memory:")


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture(params=["app", "starlette_app"])
def service(calls: Calls, request: pytest.FixtureRequest) -> Iterator[tuple[str, CompiledGraph]]:
    program = calls.program()
    with served(app_of(program, request.param)) as address:
        yield address, program


def names(response: httpx.Response) -> list[str]:
    return [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]


def ended(thread: Thread) -> str:
    """The status of a thread once its run has ended: the server notices a closed connection when it gets to it."""
    waiting = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if thread.status != "running":
            break
        waiting.wait(0.01)
    return thread.status


def test_a_client_that_hangs_up_stops_its_run(service: tuple[str, CompiledGraph], calls: Calls) -> None:
    address, program = service
    with httpx.stream("POST", f"{address}/mails/m-1?customer=Ada", timeout=PATIENCE) as response:
        lines = response.iter_lines()
        assert "event: RunStarted" in lines
        assert calls.began.wait(PATIENCE)
    assert calls.cancelled.wait(PATIENCE)
    thread = program.thread("m-1")
    assert ended(thread) == "stopped"
    assert calls.paid == []
    calls.let_go()
    run = asyncio.run(thread.aresume())
    assert (run.status, run.state["status"], calls.paid) == ("completed", "paid", ["Ada"])


def test_concurrent_users_have_conversations_of_their_own(service: tuple[str, CompiledGraph], calls: Calls) -> None:
    address, program = service
    calls.let_go()
    customers = [f"customer {number}" for number in range(24)]
    with httpx.Client(timeout=PATIENCE) as client, ThreadPoolExecutor(8) as pool:
        ask = [pool.submit(client.post, f"{address}/mails/m-{name}", params={"customer": name}) for name in customers]
        told = [names(one.result()) for one in ask]
    assert all(found[0] == "RunStarted" and found[-2:] == ["RunEnded", "StreamEnded"] for found in told)
    assert sorted(calls.paid) == sorted(customers)
    assert [program.thread(f"m-{name}").state["draft"] for name in customers] == customers


def test_a_second_request_to_a_busy_conversation_is_refused(service: tuple[str, CompiledGraph], calls: Calls) -> None:
    address, program = service
    with httpx.stream("POST", f"{address}/mails/m-1?customer=Ada", timeout=PATIENCE) as response:
        lines = response.iter_lines()
        next(lines)
        assert calls.began.wait(PATIENCE)
        second = httpx.post(f"{address}/mails/m-1?customer=Eve", timeout=PATIENCE)
        assert (second.status_code, names(second)) == (409, [])
        assert second.json()["detail"] == "another request works on this mail"
        assert httpx.post(f"{address}/mails/m-1/answers", json={}, timeout=PATIENCE).status_code == 409
        calls.let_go()
        list(lines)
    assert (ended(program.thread("m-1")), calls.paid) == ("completed", ["Ada"])


def test_a_failure_is_the_last_message_and_the_server_continues(
    service: tuple[str, CompiledGraph], calls: Calls
) -> None:
    address, _ = service
    calls.let_go()
    response = httpx.post(f"{address}/mails/m-1?customer=Mallory", timeout=PATIENCE)
    assert response.status_code == 200
    assert names(response)[-3:] == ["NodeFailed", "RunEnded", "StreamEnded"]
    shown = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line.startswith("data")]
    assert (shown[-1]["status"], shown[-1]["error"]["type"]) == ("failed", "ConnectionError")
    assert httpx.get(f"{address}/mails/m-1", timeout=PATIENCE).json()["status"] == "failed"
    refused = httpx.post(f"{address}/mails/m-1?customer=Eve", timeout=PATIENCE)
    assert (refused.status_code, "resume" in refused.json()["detail"]) == (422, True)
    again = httpx.post(f"{address}/mails/m-1/resume", timeout=PATIENCE)
    assert (names(again)[0], names(again)[-1], calls.paid) == ("RunStarted", "StreamEnded", ["Mallory", "Mallory"])
    assert httpx.get(f"{address}/mails/nothing", timeout=PATIENCE).status_code == 404


class Letter(TypedDict, total=False):
    customer: str
    messages: Annotated[list[Any], add_messages]
    draft: str
    status: str


def write(state: Letter) -> Letter:
    return {"messages": [AIMessage(f"Dear {state['customer']}")], "draft": f"Dear {state['customer']}"}


def send(state: Letter) -> Letter:
    return {"status": "sent" if interrupt(f"Send {state['draft']!r}?") else "dropped"}


def test_a_graph_of_langgraph_is_served_like_any() -> None:
    """Its messages are JSON in the events, and its question is answered by another request."""
    builder = StateGraph(Letter).add_sequence([write, send]).add_edge(LANGGRAPH_START, "write")
    with served(app_of(from_langgraph(builder).compile(store=":memory:"))) as address:
        started = httpx.post(f"{address}/mails/m-1?customer=Ada", timeout=PATIENCE)
        data = [
            json.loads(line.removeprefix("data: ")) for line in started.text.splitlines() if line.startswith("data")
        ]
        assert data[-1]["status"] == "interrupted"
        (commit,) = [one["commit"] for one in data if one["event"] == "Committed" and one["commit"]["node"] == "write"]
        assert commit["patch"]["messages"][0]["value"]["content"] == "Dear Ada"
        (question,) = httpx.get(f"{address}/mails/m-1", timeout=PATIENCE).json()["questions"]
        assert (question["key"], question["text"]) == ("send-0", "Send 'Dear Ada'?")
        answered = httpx.post(f"{address}/mails/m-1/answers", json={question["id"]: True}, timeout=PATIENCE)
        assert answered.json() == {"status": "completed", "mail": "sent"}
