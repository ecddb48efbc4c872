"""The route behind a real server, and the protocol's own client in Node: what a page is shown in the end."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
import uuid
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, agents
from dspyer.testing import ScriptedLM
from tests.asgi_server import PATIENCE, served
from tests.serve.posting import app_of, of_kind

CLIENT = Path(__file__).parent / "agui_client"


class Client:
    """A process of Node with agents of `@ag-ui/client`; commands may run at the same time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._results: dict[str, Future[dict[str, Any]]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            result = json.loads(line)
            self._results[result["id"]].set_result(result)

    def begin(self, url: str, user: str = "ada", thread: str = "t", **command: Any) -> Future[dict[str, Any]]:
        command |= {"id": uuid.uuid4().hex, "url": f"{url}/agui", "user": user, "thread": thread}
        command["agent"] = f"{url} {user} {thread}"
        self._results[command["id"]] = Future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._results[command["id"]]

    def run(self, url: str, **command: Any) -> dict[str, Any]:
        return self.begin(url, **command).result(PATIENCE)


@pytest.fixture(scope="module")
def client(pytestconfig: pytest.Config) -> Client:
    """Node ends after the last test of the session, whose cost it would be otherwise."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed: the route was not tried with the client of AG-UI")
    if not (CLIENT / "node_modules" / "@ag-ui" / "client").exists():
        pytest.skip(
            "the client of AG-UI is not installed: the route was not tried with it; npm ci in tests/serve/agui_client/"
        )
    command = ["node", "client.mjs"]
    process = subprocess.Popen(command, cwd=CLIENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end() -> None:
        with process:
            process.kill()

    pytestconfig.add_cleanup(end)
    return Client(process)


def texts(result: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in result["messages"]]


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def test_an_agent_asks_before_a_call_and_goes_on_with_the_answer(client: Client) -> None:
    paid: list[float] = []

    def refund(amount: float) -> str:
        """Pays money back."""
        paid.append(amount)
        return f"paid {amount:g}"

    program = agents.tool_loop("message -> reply", tools=[agents.tool(refund, approve=True)]).compile(store=":memory:")
    script = [
        {"next_thought": "Pay.", "tool_calls": [call("refund", amount=70)]},
        {"next_thought": "Done.", "tool_calls": [call("submit", reply="You have 70 back.")]},
    ]
    program.set_lm(ScriptedLM(script))
    with served(app_of(program)) as url:
        asked = client.run(url, say="I want 70 back.")
        (question,) = asked["interrupts"]
        assert (question["reason"], question["message"], paid) == ("tool_call", "refund(amount=70)?", [])
        made = asked["messages"][-1]["toolCalls"][0]
        assert (made["id"], made["function"]["name"]) == (question["toolCallId"], "refund")

        unanswered = client.run(url, say="And?")  # the client itself knows the rule
        assert "pending interrupt" in unanswered["error"]["message"]
        done = client.run(url, resume=[{"interruptId": question["id"], "status": "resolved", "payload": {"ok": True}}])
    assert "error" not in done
    assert [one for one in texts(done) if one[0] != "user"] == [
        ("assistant", None),
        ("tool", "paid 70"),
        ("assistant", "You have 70 back."),
    ]
    (result,) = (one for one in done["messages"] if one["role"] == "tool")
    assert result["toolCallId"] == question["toolCallId"]
    assert (done["state"], done["interrupts"], paid) == ({"reply": "You have 70 back."}, [], [70])


def test_the_state_of_the_client_is_that_of_the_thread_after_each_run(client: Client) -> None:
    class Plan(BaseModel):
        message: str
        rows: list[dict[str, Any]] = []
        by_name: dict[str, Any] = {}
        note: str | None = None

    def change(message: str, rows: list[dict[str, Any]], by_name: dict[str, Any]) -> dict[str, Any]:
        if message == "fill":
            return {"rows": [{"a/b": 1}, {"~": [1, 2]}], "by_name": {"x": {"y": 1}}, "note": "new"}
        return {"rows": [{"a/b": 2}], "by_name": {"x": {"y": None}, "z": float("inf")}, "note": None}

    graph = Graph(Plan, inputs=["message"]).add_node(change, writes=["rows", "by_name", "note"])
    graph.add_node("again", lambda rows: {"rows": [*rows, {"last": b"\xff"}]}, writes=["rows"])
    program = graph.add_path(START, "change", "again", END).compile(store=":memory:")
    with served(app_of(program, text=())) as url:
        filled = client.run(url, say="fill")
        assert filled["state"] == {
            "rows": [{"a/b": 1}, {"~": [1, 2]}, {"last": "_w=="}],
            "by_name": {"x": {"y": 1}},
            "note": "new",
        }
        less = client.run(url, say="less")
    assert len(of_kind(less["events"], "STATE_SNAPSHOT")) == 3  # at the beginning, and after each node that changed it
    assert less["state"] == {"rows": [{"a/b": 2}, {"last": "_w=="}], "by_name": {"x": {}, "z": None}, "note": None}


def test_a_client_that_leaves_stops_the_run_and_its_next_message_starts_another_one(client: Client) -> None:
    came, cancelled = threading.Event(), threading.Event()

    async def work(message: str, ctx: Any) -> dict[str, Any]:
        ctx.emit({"at": message})
        if message == "wait":
            came.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        return {"reply": message}

    graph = Graph(inputs=["message"]).add_node(work, writes=["reply"])
    program = graph.add_path(START, "work", END).compile(store=":memory:")
    with served(app_of(program)) as url:
        left = client.run(url, say="wait", leaveAt="CUSTOM")
        assert came.is_set()
        assert cancelled.wait(PATIENCE)
        assert of_kind(left["events"], "CUSTOM") == [{"type": "CUSTOM", "name": "work", "value": {"at": "wait"}}]
        thread = program.thread("ada/t")
        assert next(status for status in iter(lambda: thread.status, None) if status != "running") == "stopped"
        assert client.run(url, say="go")["state"] == {"reply": "go"}
    assert [commit.node for commit in thread.history()] == ["START", "START", "work"]
