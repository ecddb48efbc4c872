"""Values of classes that the reader does not know are kept, shown and written unchanged; a node cannot use them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from dspyer import END, START, Context, Graph
from dspyer.errors import StateError
from dspyer.stores import SQLite
from tests.log.places import go_on, start


class Colour(Enum):
    RED = 1


class Pair(NamedTuple):
    left: int
    right: Colour


@dataclass
class Point:
    x: int


class Draft(BaseModel):
    title: str
    points: list[Point] = []


class Text(str):
    __slots__ = ()


def test_a_node_fails_only_if_it_reads_an_opaque_value(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")

    def read(draft: object) -> dict[str, object]:
        raise AssertionError("called with an opaque value")

    class Drafts(BaseModel):
        draft: list[Draft] = []

    first = Graph(Drafts, name="Graph").add_node("write", lambda: {"draft": [Draft(title="a")]}, writes=["draft"])
    first.add_path(START, "write", END).compile(store=store).thread("t").run({})
    other = Graph(keep="all").add_node("count", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "count", END)
    run = other.compile(store=store).thread("t", graphs=["Graph"]).run({"n": 1})
    assert run.state["n"] == 2
    assert "<opaque" in repr(run.state["draft"])
    reader = Graph(keep="all").add_node("read", read, writes=[]).add_path(START, "read", END)
    run = reader.compile(store=store).thread("t", graphs="Graph").run({})
    assert run.status == "failed"
    assert "node 'read' reads 'draft': this stored value is a" in str(run.error)


UNNAMED: dict[str, Callable[[], Any]] = {
    "a dataclass": lambda: Secret(1),
    "in a list": lambda: [1, [Secret(2)]],
    "in a mapping": lambda: {"a": {"b": Secret(3)}},
    "a key": lambda: {Colour.RED: 1},
    "an enum": lambda: Colour.RED,
    "a class of a function": lambda: local_class()(n=1),
}


def local_class() -> type[BaseModel]:
    class Local(BaseModel):
        n: int

    return Local


def test_what_no_other_process_could_read_back_is_refused_when_it_is_written(tmp_path: Path) -> None:
    """With node and field; the thread stays where it was. A store in memory keeps values, and refuses none."""
    for name, made in UNNAMED.items():
        graph = Graph().add_node("write", lambda state, made=made: {"value": made()}).add_path(START, "write", END)
        t = graph.compile(store=tmp_path / "runs.db").thread(name)
        run = t.run({"n": 1})
        assert run.status == "failed", name
        assert isinstance(run.error, StateError)
        assert re.search(
            r"'write', field 'value': a .*(Secret|Colour|Local) cannot be stored.*register", str(run.error)
        )
        assert t.state.to_dict() == {"n": 1}, name
        with pytest.raises(StateError, match="field 'given'"):
            t.run({"given": made()}, if_open="abandon")
        assert t.state.to_dict() == {"n": 1}, name
        assert graph.compile(store=":memory:").thread("t").run({"n": 1}).status == "completed", name


def refused_node(made: Any) -> Graph:
    return Graph(inputs=["ns"]).add_node("write", lambda state: {"value": made()}).add_path(START, "write", END)


def refused_in_a_subgraph(made: Any) -> Graph:
    return Graph(inputs=["ns"]).add_node("inner", refused_node(made).compile()).add_path(START, "inner", END)


def refused_item(made: Any) -> Graph:
    return (
        Graph(inputs=["ns"])
        .add_map("size", lambda n: made(), over="ns", item="n", into="value")
        .add_path(START, "size", END)
    )


def refused_effect(made: Any) -> Graph:
    def write(ctx: Context) -> dict[str, Any]:
        return {"value": ctx.once("make", made)}

    return Graph(inputs=["ns"]).add_node(write, writes=["value"]).add_path(START, "write", END)


def refused_decision(made: Any) -> Graph:
    graph = Graph(inputs=["ns"], merge=lambda conflict: made())
    graph.add_node("a", lambda: {"value": 1}, writes=["value"]).add_node("b", lambda: {"value": 2}, writes=["value"])
    graph.add_node("j", lambda value: {"seen": True}, writes=["seen"])
    return graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "j").add_edge("j", END)


REFUSED: dict[str, tuple[Callable[[Any], Graph], str]] = {
    "a node": (refused_node, "write"),
    "a node of a graph inside the graph": (refused_in_a_subgraph, "inner"),
    "an item of a map": (refused_item, "size"),
    "an effect": (refused_effect, "write"),
    "what a merge policy decides": (refused_decision, "join:j"),
}


@pytest.mark.parametrize("call_mode", ["sync", "async"])
@pytest.mark.parametrize("where", REFUSED)
def test_a_run_with_a_refused_value_has_failed_for_other_processes_too(
    where: str, call_mode: str, tmp_path: Path
) -> None:
    """The store works: the end of the run is written, with its error, and resume continues from there."""
    flush = bool((list(REFUSED).index(where) + (call_mode == "async")) % 2)
    build, node = REFUSED[where]
    made: list[Any] = [Secret(1)]
    program = build(lambda: made[0]).compile(store=SQLite(tmp_path / "runs.db", flush=flush))
    run = start(program.thread("t"), call_mode, {"ns": [1, 2]})
    t = build(lambda: made[0]).compile(store=tmp_path / "runs.db").thread("t")
    assert (run.status, t.status) == ("failed", "failed")
    assert t.error is not None
    assert (t.error.node, t.error.type) == (node, "StateError")
    assert t.state.to_dict() == {"ns": [1, 2]}, "what was written before is kept, flushed or not"
    made[0] = 7
    run = go_on(t, call_mode)
    assert (run.status, t.status, run.state["value"]) == ("completed", "completed", [7, 7] if node == "size" else 7)


def test_what_may_be_written(tmp_path: Path) -> None:
    """What the schema names, texts that only look like a class, and what was read as an opaque value before."""

    class Named(BaseModel):
        draft: Draft | None = None
        value: Any = None

    values: list[Any] = [Draft(title="a"), {"class": "x:Y", "$type": "z"}, '","class":"x:Y"']
    graph = Graph(Named, inputs=[], name="Graph").add_node("write", lambda: {"value": values}, writes=["value"])
    store = tmp_path / "runs.db"
    assert graph.add_path(START, "write", END).compile(store=store).thread("t").run({}).status == "completed"
    again = (
        Graph(keep="all")
        .add_node("pass_on", lambda state: {"value": [*state["value"], 1]})
        .add_path(START, "pass_on", END)
    )
    t = again.compile(store=store).thread("t")
    assert t.run({}).status == "completed"
    assert "<opaque" in repr(t.state["value"])


@dataclass
class Secret:
    n: int
