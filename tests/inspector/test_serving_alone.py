"""`dspyer.inspector.inspect`: its address, what it binds to, and its end at Ctrl-C, with a run and a reader open."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import dspyer.inspector
from dspyer.stores import Memory
from tests.children import Child
from tests.rows import each

PATIENCE = 20.0

PROGRAM = """
import asyncio, sys, threading
import dspyer.inspector
from dspyer import END, START, Graph

cancelled = threading.Event()

async def waits(n):
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()

def slow(n):
    print("began")
    assert cancelled.wait(20)
    return {"m": n + 1}

graph = Graph(inputs=["n"]).add_interrupt("ask", question="Go on?", answer=bool, into="ok")
graph.add_node(slow, reads=["n"], writes=["m"]).add_node("next", lambda m: {"k": m}, writes=["k"])
graph.add_node(waits, writes=["w"]).add_node("end", lambda: None, writes=[]).add_edge(START, "ask")
graph.add_edge("ask", ["slow", "waits"]).add_edge("slow", "next").add_edge(["next", "waits"], "end")
program = graph.add_edge("end", END).compile(store=sys.argv[1])
program.thread("t").run({"n": 1})
dspyer.inspector.inspect(sys.argv[1], program, browser=False)
print("the end")
"""


def test_ctrl_c_ends_readers_and_runs(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    process = Child(PROGRAM, store)
    try:
        found = re.fullmatch(r"(http://127\.0\.0\.1:(\d+))/#token=([\w-]{43})\n", process.stdout.readline())
        assert found is not None, process.stderr.read()
        address, port, token = found.groups()
        auth = {"X-Dspyer-Token": token}
        assert "<div" in httpx.get(address, headers={"Host": f"localhost:{port}"}, timeout=PATIENCE).text
        with httpx.stream("GET", f"{address}/api/follow?thread=t", headers=auth, timeout=PATIENCE) as reader:
            chunks = reader.iter_text()
            next(chunks)
            done = httpx.post(
                f"{address}/api/answer", json={"thread": "t", "answers": {"ask": True}}, headers=auth, timeout=PATIENCE
            )
            assert done.status_code == 200
            assert process.stdout.readline() == "began\n"
            os.kill(process.pid, signal.SIGINT)
            assert "waiting" not in "".join(chunks)
        out, errors = process.stdout.read(), process.stderr.read()
        assert (process.wait(PATIENCE), out) == (0, "the end\n"), errors
        assert errors.startswith("stopping 1 run: ")
        assert "Traceback" not in errors
        thread = dspyer.Archive(store).thread("t")
        assert thread.info().status == "stopped"
        assert {commit.node for commit in thread.history()} == {"START", "ask", "slow"}  # what worked is committed
    finally:
        process.kill()


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Lets SIGINT be Ctrl-C: workers of the suite ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Recorded:
    """A server that ends as soon as it listens, and what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.opened = threading.Event()
        self.addresses: list[str] = []
        monkeypatch.setattr("webbrowser.open", self.open)

    def open(self, address: str) -> None:
        self.addresses.append(address)
        self.opened.set()

    def say(self, address: str) -> None:
        self.said.append(address)
        signal.raise_signal(signal.SIGINT)  # the server takes it as Ctrl-C

    def inspect(self, **options: Any) -> None:
        dspyer.inspector.inspect(Memory(), say=self.say, **options)


def test_it_opens_a_browser_unless_told_not_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Recorded(monkeypatch)
    server.inspect(browser=False)
    server.inspect()
    assert server.opened.wait(PATIENCE)
    assert server.addresses == server.said[1:]
    assert server.said[0] != server.said[1]  # each has a token of its own
    assert caplog.messages == []


def test_another_host_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    server = Recorded(monkeypatch)
    server.inspect(host="0.0.0.0", browser=False)
    assert server.said[0].startswith(f"http://{socket.gethostname()}:")
    assert "SSH tunnel" in caplog.text


def test_a_port_that_is_taken_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Recorded(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        server.inspect(port=taken.getsockname()[1], browser=False)
    assert server.said == []


@each(
    ("host", "loopback", "name"),
    [
        ("127.0.0.1", True, "127.0.0.1"),
        ("127.8.8.8", True, "127.8.8.8"),
        ("::1", True, "[::1]"),
        ("localhost", True, "localhost"),
        ("0.0.0.0", False, socket.gethostname()),
        ("::", False, socket.gethostname()),
        ("10.0.0.7", False, "10.0.0.7"),
        ("ops.example.com", False, "ops.example.com"),
    ],
)
def test_which_hosts_are_this_machine_alone(
    host: str, loopback: bool, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Recorded(monkeypatch)
    with monkeypatch.context() as patch:  # a machine that has all of these addresses
        bound = partial(socket.create_server, ("127.0.0.1", 0))
        patch.setattr(socket, "create_server", lambda *_, **__: bound())
        server.inspect(host=host, browser=False)
    assert server.said[0].startswith(f"http://{name}:")
    assert bool(caplog.messages) != loopback
