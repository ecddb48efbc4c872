"""The list of runs, when others make many runs meanwhile."""

from __future__ import annotations

from typing import Any

import dspyer.inspector
from dspyer import END, START, Graph
from dspyer.stores import Memory
from tests.asgi_server import served
from tests.browser import HURRY

THREADS = "[...document.querySelectorAll('a.listrow b')].map((one) => one.textContent)"


def test_no_run_is_left_out_when_more_than_a_page_is_new(page: Any) -> None:
    store = Memory()
    graph = Graph(name="Add", inputs=["n"]).add_node("add", lambda n: {"m": n}, writes=["m"])
    program = graph.add_path(START, "add", END).compile(store=store)
    names = [f"t{number}" for number in range(120)]
    program.thread("old").run({"n": 1})
    with served(dspyer.inspector.app(store, token="token")) as address:
        page.goto(f"{address}/#token=token/run?thread=old")
        page.locator("[role=treeitem]").first.wait_for()
        page.evaluate(HURRY)
        page.locator("a.brand").click()
        page.locator("a.listrow").wait_for()
        page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        for name in names:
            program.thread(name).run({"n": 1})
        # Until now it has not looked for what is new.
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        page.get_by_role("button", name="Show 100 new runs").click()
        page.get_by_role("button", name="Show 100 more").click()
        page.locator("a.listrow").nth(len(names)).wait_for()
        assert sorted(page.evaluate(THREADS)) == sorted([*names, "old"])
