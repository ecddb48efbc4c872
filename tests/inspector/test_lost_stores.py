"""A page that can no longer be renewed says so: what it shows is old."""

from __future__ import annotations

from typing import Any

import dspyer.inspector
from dspyer import END, START, CompiledGraph, Graph
from dspyer.stores import Memory
from tests.asgi_server import served
from tests.browser import HURRY


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
        page.locator("[role=treeitem]").first.wait_for()
        program.thread("t").delete()
        page.locator(".trouble", has_text="no thread 't'").wait_for()


def test_a_server_that_ends_is_missed_and_its_new_token_asked_for(page: Any) -> None:
    store = Memory()
    made(store)
    with served(dspyer.inspector.app(store, token="first")) as address:
        page.goto(f"{address}/#token=first/run?thread=t")
        page.locator("[role=treeitem]").first.wait_for()
        assert page.locator(".trouble").count() == 0
        page.evaluate(HURRY)
    page.locator(".trouble", has_text="The server does not respond").wait_for()
    with served(dspyer.inspector.app(store, token="second"), int(address.rpartition(":")[2])):
        page.get_by_label("Address or token").fill("second")
        page.get_by_role("button", name="Open").click()
        page.locator("[role=treeitem]").first.wait_for()
        assert page.locator(".trouble").count() == 0
