"""The service of docs/guides/serving.md behind a real server: users at once, and a graph of LangGraph."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypedDict

import httpx
from langchain_core.messages import AIMessage
from langgraph.graph import START as LANGGRAPH_START
from langgraph.graph import StateGraph, add_messages
from langgraph.types import interrupt

from dspyer import END, START, CompiledGraph, Graph, Thread
from dspyer.migrate import from_langgraph
from tests.asgi_server import PATIENCE, served
from tests.serve.test_router import EVENTS, data, names

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "serving.md"
ADA = {"x-user": "ada"}


def app_of(program: CompiledGraph) -> Any:
    """The app of the page over a program of the test's own."""
    page, service, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    module = ModuleType("serving_page")
    exec(page, module.__dict__)
    module.__dict__["program"] = program
    exec(service, module.__dict__)
    return module.__dict__["app"]


def ended(thread: Thread) -> str:
    """The status of a thread once its run has ended: the server notices a closed connection when it gets to it."""
    waiting = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if thread.status != "running":
            break
        waiting.wait(0.01)
    return thread.status


def test_concurrent_users_have_conversations_of_their_own() -> None:
    paid: list[str] = []
    graph = Graph(name="Mails", inputs=["customer"])
    graph.add_node("write", lambda customer: {"draft": customer}, writes=["draft"])

    def pay(customer: str) -> dict[str, Any]:
        paid.append(customer)
        return {"paid": None}

    graph.add_node(pay, writes=["paid"])
    program = graph.add_path(START, "write", "pay", END).compile(store=":memory:")
    customers = [f"customer-{number}" for number in range(24)]
    with served(app_of(program)) as address, httpx.Client(timeout=PATIENCE) as client, ThreadPoolExecutor(8) as pool:

        def ask(customer: str) -> list[str]:
            headers = {"x-user": customer, **EVENTS}
            return names(client.post(f"{address}/tickets/m", json={"customer": customer}, headers=headers))

        told = list(pool.map(ask, customers))
    assert all(found[0] == "RunStarted" and found[-2:] == ["RunEnded", "StreamEnded"] for found in told)
    assert sorted(paid) == sorted(customers)
    assert [program.thread(f"{name}/m").state["draft"] for name in customers] == customers


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
    program = from_langgraph(builder).compile(store=":memory:")
    with served(app_of(program)) as address, httpx.Client(base_url=address, headers=ADA, timeout=PATIENCE) as client:
        started = data(client.post("/tickets/m-1", json={"customer": "Ada"}, headers=EVENTS))
        assert started[-1]["status"] == "interrupted"
        (commit,) = [
            one["commit"] for one in started if one["event"] == "Committed" and one["commit"]["node"] == "write"
        ]
        assert commit["patch"]["messages"][0]["value"]["content"] == "Dear Ada"
        (question,) = client.get("/tickets/m-1").json()["questions"]
        assert (question["key"], question["text"]) == ("send-0", "Send 'Dear Ada'?")
        answered = client.post("/tickets/m-1/answers", json={question["id"]: True}).json()
        assert (answered["status"], answered["outputs"]["status"]) == ("completed", "sent")
        assert answered["outputs"]["messages"][0]["content"] == "Dear Ada"
