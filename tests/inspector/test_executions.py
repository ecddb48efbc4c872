"""What an execution that failed or asks could read: its own branch, and what a `Send` brought to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dspyer.inspector
from dspyer import END, START, Archive, Graph, Send
from dspyer.stores import Memory
from tests.inspector.asking import TOKEN, get


def fails(message: str) -> Any:
    raise ValueError(message)


def sends(z: int) -> list[Send]:
    return [Send("w", {"q": number}) for number in (1, 2)]


def stopping(kind: str) -> Graph:
    """A graph that ends early, in a way."""
    rules = {"b": lambda conflict: fails("not decided")} if kind == "join" else {}
    graph = Graph(inputs=["a"], name=kind, merge=rules)
    graph.add_node("pre", lambda a: {"z": a}, writes=["z"]).add_edge(START, "pre")
    if kind == "send":
        graph.add_node("w", lambda q, z: {"o": q} if q == 1 else fails("q"), writes=["o"])
        return graph.add_conditional_edges("pre", sends, ["w"]).add_edge("w", END)
    if kind == "router":
        graph.add_node("one", lambda a: {"b": 1}, writes=["b"]).add_edge("pre", "one")
        return graph.add_conditional_edges("one", lambda b: fails("route"), [END])
    if kind == "map":
        graph.add_map("each", lambda x: {"y": fails("item")}, over="xs", item="x", into="ys")
        graph.add_node("many", lambda a: {"xs": [1, 2]}, writes=["xs"])
        return graph.add_path("pre", "many", "each", END)
    if kind == "nested":
        graph.add_node("inside", stopping("questions").compile(), writes=["e"])
        return graph.add_path("pre", "inside", END)
    graph.add_node("one", lambda a: {"b": 1}, writes=["b"])
    graph.add_node("end", lambda b: {"e": 1}, writes=["e"]).add_edge("end", END)
    if kind == "questions":
        graph.add_interrupt("ask", question="One?", answer=bool, into="x")
        graph.add_interrupt("other", question="Two?", answer=bool, into="y")
        return graph.add_edge("pre", ["one", "other"]).add_edge("one", "ask").add_edge(["ask", "other"], "end")
    if kind == "join":
        graph.add_node("two", lambda a: {"b": 2}, writes=["b"])
        return graph.add_edge("pre", ["one", "two"]).add_edge(["one", "two"], "end")
    graph.add_node("two", lambda a: fails("two"), writes=["c"])
    graph.add_node("three", lambda b: {"d": 1}, writes=["d"])
    return graph.add_edge("pre", ["one", "two"]).add_edge("one", "three").add_edge(["two", "three"], "end")


PRE = {"z": 1}
BY_PRE = {"z": "trunk:1"}
EXPECTED: dict[str, dict[str, Any]] = {  # by node: parents, state, blame and what was sent, without the input
    "fork": {"two": [["trunk:1"], PRE, BY_PRE, {}]},
    "questions": {
        "other": [["trunk:1"], PRE, BY_PRE, {}],
        "ask": [["0:0"], {**PRE, "b": 1}, {**BY_PRE, "b": "0:0"}, {}],
    },
    "join": {"join:end": [["0:0", "1:0"], {**PRE, "b": 1}, {**BY_PRE, "b": "0:0"}, {}]},
    "send": {"w": [["trunk:1"], PRE, BY_PRE, {"q": 2}]},
    "router": {"one": [["trunk:1"], PRE, BY_PRE, {}]},
    "map": {"each": [["trunk:2"], {**PRE, "xs": [1, 2]}, {**BY_PRE, "xs": "trunk:2"}, {}]},
    "nested": {"inside": [["trunk:1"], PRE, BY_PRE, {}]},
}


def names(run: dict[str, Any]) -> list[str]:
    return [one["execution"] for one in run["failures"]] + [one["id"] for one in run["questions"]]


def told(answer: dict[str, Any]) -> list[Any]:
    """An answer without the label of the run and the input."""
    parents = [one.rpartition("/")[2] for one in answer["parents"]]
    state = {name: value for name, value in answer["state"].items() if name != "a"}
    blame = {name: one["commit"].rpartition("/")[2] for name, one in answer["blame"].items() if name != "a"}
    return [parents, state, blame, answer["sent"]]


def in_file(path: Path) -> dict[str, Any]:
    """The executions in a file, by node, as the page finds them."""
    data = json.loads(path.read_text().partition('id="embedded">')[2].partition("</script>")[0])

    def at(place: int) -> Any:
        entry = data["values"][place]
        if isinstance(entry, dict):
            return {name: at(part) for name, part in entry.items()}
        return [at(part) for part in entry] if isinstance(entry, list) else entry

    executions = at(data["lists"]["executions"])
    return {one["node"]: told(one) for one in (executions[name] for name in names(data["run"]))}


@pytest.mark.parametrize("kind", EXPECTED)
def test_what_an_execution_without_a_commit_could_read(kind: str, tmp_path: Path) -> None:
    store = Memory()
    graph = stopping(kind)
    thread = graph.compile(store=store).thread("t")
    thread.run({"a": 1})
    app, there = dspyer.inspector.app(store, token=TOKEN), Archive(store).thread("t")
    shown = get(app, "run", thread="t", run=there.info().run_id)
    found = {}
    for name in names(shown):
        answer = get(app, "execution", thread="t", run=there.info().run_id, id=name)
        found[answer["node"]] = told(answer)
    assert found == EXPECTED[kind]
    assert in_file(there.to_html(tmp_path / "stored.html")) == found
    assert in_file(graph.compile().run({"a": 1}).to_html(tmp_path / "memory.html")) == found


def test_what_a_send_brought_is_shown_with_the_commit() -> None:
    store = Memory()
    stopping("send").compile(store=store).thread("t").run({"a": 1})
    app = dspyer.inspector.app(store, token=TOKEN)
    assert get(app, "commit", thread="t", id="t.1/0:0")["sent"] == {"q": 1}
    assert get(app, "commit", thread="t", id="t.1/trunk:1")["sent"] == {}
