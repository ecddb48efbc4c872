"""`run.sources`: the commits behind every value that a node and its routers have read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, Replace, Send, live, reducers, view


class Desk(BaseModel):
    n: int = 0
    other: int = 0
    label: str = ""
    card: dict[str, Any] = {}
    notes: Annotated[list[str], reducers.extend] = []
    total: Annotated[int, reducers.increment] = 0
    most: Annotated[int, max] = 0
    pages: Annotated[dict[str, str], reducers.update] = {}
    posts: Annotated[list[str], reducers.append, live] = []
    problems: list[str] = []


def writes(**values: Any) -> Callable[[], dict[str, Any]]:
    def node() -> dict[str, Any]:
        return copy.deepcopy(values)

    return node


def reads(*fields: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def node(state: dict[str, Any]) -> dict[str, Any]:
        return {"label": ",".join(f"{name}={state[name]!r}" for name in fields)}

    return node


def sources(graph: Graph, node: str = "read", **inputs: Any) -> dict[str, list[str]]:
    """The sources of the last commit of a node, by the nodes that made the commits."""
    run = graph.compile().run(inputs)
    run.raise_error()
    last = [commit for commit in run.commits if commit.node == node][-1]
    by_id = {commit.id: commit for commit in run.commits}
    return {field: [by_id[one].node for one in ids] for field, ids in run.sources(last.id).items()}


def chain(read: str | list[str], **nodes: dict[str, Any]) -> Graph:
    names = [read] if isinstance(read, str) else read
    graph = Graph(Desk, inputs=["n"])
    for name, values in nodes.items():
        graph = graph.add_node(name, writes(**values), writes=list(values))
    graph = graph.add_node("read", reads(*names), reads=names, writes=["label"])
    return graph.add_path(START, *nodes, "read", END)


CHAINS: dict[str, tuple[Graph, dict[str, list[str]]]] = {
    "an input": (chain("n"), {"n": ["START"]}),
    "a default": (chain("other", a={"n": 1}), {"other": ["START"]}),
    "the last writer": (chain("n", a={"n": 1}, b={"n": 2}, c={"other": 1}), {"n": ["b"]}),
    "several fields": (chain(["n", "other"], a={"n": 1}, b={"other": 2}), {"n": ["a"], "other": ["b"]}),
    "a dict by key": (chain("card", a={"card": {"x": 1}}, b={"card": {"y": 2}}), {"card": ["a", "b"]}),
    "a key that was overwritten": (
        chain("card", a={"card": {"x": 1}}, b={"card": {"x": 3}}, c={"card": {"y": 2}}),
        {"card": ["b", "c"]},
    ),
    "a key below": (
        chain("card", a={"card": {"x": {"p": 1, "q": 1}}}, b={"card": {"x": {"p": 2}}}),
        {"card": ["a", "b"]},
    ),
    "items": (chain("notes", a={"notes": ["x"]}, b={"notes": ["y"]}, c={"n": 3}), {"notes": ["a", "b"]}),
    "keys": (
        chain("pages", a={"pages": {"x": "1"}}, b={"pages": {"x": "2"}}, c={"pages": {"y": "3"}}),
        {"pages": ["b", "c"]},
    ),
    "an amount": (chain("total", a={"total": 1}, b={"total": 2}), {"total": ["START", "a", "b"]}),
    "a reducer without parts": (chain("most", a={"most": 1}, b={"most": 2}), {"most": ["START", "a", "b"]}),
    "an empty list": (chain("notes", a={"n": 1}), {"notes": ["START"]}),
}


def test_in_a_row() -> None:
    for case, (graph, expected) in CHAINS.items():
        assert (case, sources(graph, n=0)) == (case, expected)


def test_start_and_a_node_without_reads() -> None:
    run = chain("n", a={"other": 1}).compile().run({"n": 1})
    assert run.sources(0) == {}
    assert run.sources("trunk:1") == {}


def test_a_node_that_declares_no_reads_has_read_all_that_is_set() -> None:
    graph = Graph(inputs=["n"]).add_node("a", lambda n: {"m": n}, writes=["m"]).add_node("read", lambda state: {})
    assert sources(graph.add_path(START, "a", "read", END), n=1) == {"n": ["START"], "m": ["a"]}


def test_the_names_are_those_of_the_state() -> None:
    graph = Graph(Desk, inputs=["n"]).add_node("read", lambda text: {}, reads={"text": "label"}, writes=["other"])
    assert sources(graph.add_path(START, "read", END), n=1) == {"label": ["START"]}


def fork(
    join_reads: list[str], left: dict[str, Any], right: dict[str, Any], first: dict[str, Any], **merge: Any
) -> Graph:
    graph = Graph(Desk, inputs=["n"], merge=merge).add_node("first", writes(**first), writes=list(first) or ["other"])
    graph = graph.add_node("left", writes(**left), writes=list(left))
    graph = graph.add_node("right", writes(**right), writes=list(right))
    graph = graph.add_node("read", reads(*join_reads), reads=join_reads, writes=["label"])
    graph = graph.add_edge(START, "first").add_edge("first", ["left", "right"])
    return graph.add_edge(["left", "right"], "read").add_edge("read", END)


FORKS: dict[str, tuple[Graph, dict[str, list[str]]]] = {
    "each its field": (fork(["n", "other"], {"n": 1}, {"other": 1}, {}), {"n": ["left"], "other": ["right"]}),
    "one of them": (fork(["n"], {"other": 1}, {"n": 2}, {"n": 1}), {"n": ["right"]}),
    "none of them": (fork(["n"], {"other": 1}, {"label": "r"}, {"n": 1}), {"n": ["first"]}),
    "both the same": (fork(["n"], {"n": 1}, {"n": 1}, {}, n="last_write_wins"), {"n": ["left", "right"]}),
    "a policy chose": (fork(["n"], {"n": 1}, {"n": 2}, {}, n="last_write_wins"), {"n": ["right"]}),
    "a policy made": (
        fork(["n"], {"n": 1}, {"n": 2}, {}, n=lambda conflict: conflict.left + conflict.right),
        {"n": ["join:read"]},
    ),
    "a policy made a key": (
        fork(["card"], {"card": {"x": 1, "l": 1}}, {"card": {"x": 2, "r": 1}}, {}, **{"card.x": lambda conflict: 3}),
        {"card": ["left", "right", "join:read"]},
    ),
    "items": (
        fork(["notes"], {"notes": ["l"]}, {"notes": ["r"]}, {"notes": ["f"]}),
        {"notes": ["first", "left", "right"]},
    ),
    "keys of a dict": (fork(["card"], {"card": {"l": 1}}, {"card": {"r": 1}}, {}), {"card": ["left", "right"]}),
    "below a key": (
        fork(["card"], {"card": {"x": {"l": 1}}}, {"card": {"x": {"r": 1}}}, {"card": {"x": {"f": 1}, "y": 2}}),
        {"card": ["first", "left", "right"]},
    ),
    "an equal value in place of it": (
        fork(["most"], {"most": Replace(4)}, {"n": 1}, {"most": 4}),
        {"most": ["left"]},
    ),
    "without parts": (fork(["most"], {"most": 4}, {"n": 1}, {"most": 2}), {"most": ["START", "first", "left"]}),
}


def test_after_a_join() -> None:
    for case, (graph, expected) in FORKS.items():
        assert (case, sources(graph, n=0)) == (case, expected)


def test_who_wrote_again_what_it_was_before_the_fork_has_written_it() -> None:
    graph = Graph(Desk, inputs=["n"])
    for name, values in {"first": {"n": 1}, "away": {"n": 2}, "back": {"n": 1}, "right": {"other": 1}}.items():
        graph.add_node(name, writes(**values), writes=list(values))
    graph.add_node("read", reads("n"), reads=["n"], writes=["label"])
    graph.add_edge(START, "first").add_edge("first", ["away", "right"]).add_edge("away", "back")
    assert sources(graph.add_edge(["back", "right"], "read").add_edge("read", END), n=0) == {"n": ["back"]}


def test_a_join_reads_what_it_decides_about() -> None:
    graph = fork(["n"], {"n": 1}, {"n": 2, "other": 1}, {"n": 5}, n=lambda conflict: conflict.left + conflict.right)
    assert sources(graph, "join:read", n=0) == {"n": ["left", "right"]}


def test_what_a_send_brought_comes_from_the_commit_that_sent_it() -> None:
    def spread(n: int) -> list[Send]:
        return [Send("read", {"item": i}) for i in range(n)]

    graph = Graph(Desk, inputs=["n"]).add_node("plan", writes(other=1), writes=["other"])
    graph = graph.add_node("read", lambda item, other: {"notes": [str(item + other)]}, writes=["notes"])
    graph = graph.add_node("end", lambda notes: {"label": str(notes)}, writes=["label"])
    graph = graph.add_path(START, "plan").add_conditional_edges("plan", spread, ["read"]).add_path("read", "end", END)
    assert sources(graph, n=2) == {"item": ["plan"], "other": ["plan"]}
    assert sources(graph, "end", n=2) == {"notes": ["read", "read"]}
    assert sources(graph, "plan", n=2) == {"n": ["START"]}  # by its router


def test_a_router_reads_the_state_after_its_node() -> None:
    graph = Graph(Desk, inputs=["n"]).add_node("read", lambda n: {"n": n + 1}, writes=["n"])
    graph = graph.add_edge(START, "read")
    graph = graph.add_conditional_edges("read", lambda n, other: "read" if n < 2 else END, ["read", END])
    run = graph.compile().run({"n": 0})
    assert run.sources("trunk:2") == {"n": ("trunk:1", "trunk:2"), "other": ("trunk:0",)}


def test_a_view_has_the_commits_whose_parts_it_showed() -> None:
    graph = Graph(Desk, inputs=["n"])
    for name in "abc":
        graph = graph.add_node(name, writes(notes=[name]), writes=["notes"])
    graph = graph.add_node("read", lambda last: {}, reads={"last": view("notes").last(1)}, writes=["label"])
    graph = graph.add_node("by", lambda x: {}, reads={"x": view("notes").by("a", "b")}, writes=["label"])
    graph = graph.add_node("new", lambda x: {}, reads={"x": view("notes").new()}, writes=["notes"])
    graph = graph.add_path(START, "a", "b", "c", "read", "by", "new", END)
    assert sources(graph, n=0) == {"notes": ["c"]}
    assert sources(graph, "by", n=0) == {"notes": ["a", "b"]}
    assert sources(graph, "new", n=0) == {"notes": ["a", "b", "c"]}


def test_a_version_or_an_id_and_an_unknown_one() -> None:
    run = chain("n").compile().run({"n": 1})
    assert run.sources(1) == run.sources("trunk:1") == {"n": ("trunk:0",)}
    with pytest.raises(LookupError, match="no commit has the id 'trunk:9'"):
        run.sources("trunk:9")
