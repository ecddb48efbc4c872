"""A page that can no longer be renewed says so: what it shows is old."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dspyer.inspector
from dspyer import END, START, CompiledGraph, Graph
from dspyer.stores import Memory
from tests.asgi_server import Server, served, uvicorn


@contextmanager
def served_at(listening: socket.socket, app: Any) -> Iterator[None]:
    """Serves an app on a socket that stays open, as a server that is started again."""
    server = Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening.dup()]}, daemon=True)
    thread.start()
    assert server.listens.wait(20)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(20)


def made(store: Memory) -> CompiledGraph:
    graph = Graph(name="Add", inputs=["n"]).add_node("add", lambda n: {"m": n + 1}, writes=["m"])
    program = graph.add_path(START, "add", END).compile(store=store)
    program.thread("t").run({"n": 1})
    return program


def test_a_deleted_thread_is_said_to_be_gone(page: Any) -> None:
    store = Memory()
    program = made(store)
    with served(dspyer.inspector.app(store, token="token")) as address:
        page.goto(f"{address}/#token=token/run?thread=t")
        page.locator(".runhead").wait_for()
        program.thread("t").delete()
        page.get_by_text("What is shown here was read before.").wait_for()
        assert "no thread 't'" in page.locator(".problem").inner_text()


def test_a_server_that_ends_is_missed_and_its_new_token_asked_for(page: Any) -> None:
    store = Memory()
    made(store)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with served_at(listening, dspyer.inspector.app(store, token="first")):
            page.goto(f"{address}/#token=first/run?thread=t")
            page.locator(".runhead").wait_for()
            assert page.locator(".problem").count() == 0
        with served_at(listening, dspyer.inspector.app(store, token="second")):
            page.get_by_label("Address or token").fill("second")
            page.get_by_role("button", name="Open").click()
            page.locator(".runhead").wait_for()
            assert page.locator(".problem").count() == 0
