"""A graph that is much wider than the page."""

from __future__ import annotations

from typing import Any

import dspyer.inspector
from dspyer import END, START, Graph
from dspyer.stores import Memory
from tests.asgi_server import served

WIDTH = 60
IN_SIGHT = """() => {
  const node = document.querySelector(".gnode.current")?.getBoundingClientRect();
  const view = document.querySelector(".canvas").getBoundingClientRect();
  return node !== undefined && node.left >= view.left && node.right <= view.right;
}"""


def wide() -> Graph:
    graph = Graph(name="Wide", inputs=["n"])
    names = [f"node_{number}" for number in range(WIDTH)]
    for name in names:
        graph.add_node(name, lambda n: {}, writes=[f"{name}_done"])
    return graph.add_edge(START, names).add_node("last", lambda n: {}).add_edge(names, "last").add_edge("last", END)


def test_the_node_of_the_selected_step_is_in_sight(page: Any) -> None:
    store = Memory()
    wide().compile(store=store).thread("t").run({"n": 1}).raise_error()
    with served(dspyer.inspector.app(store, token="token")) as address:
        page.goto(f"{address}/#token=token/run?thread=t&view=graph")
        for name in ("last", "last", f"node_{WIDTH - 1}"):
            page.locator(f".gnode.current[data-node={name}]").wait_for()
            assert page.evaluate(IN_SIGHT), name
            page.keyboard.press("k")
