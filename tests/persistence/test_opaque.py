"""Values of classes that the reader does not know are kept, shown and written unchanged; a node cannot use them."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from dspyer import END, START, Context, Graph
from dspyer.errors import StateError
from dspyer.schema.schema import Schema
from dspyer.stores import content
from dspyer.threads.graph_fingerprint import decoder, named_classes
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.frozen import thaw
from dspyer.values.refusals import MAX_DEPTH
from dspyer.values.types import Opaque
from tests.persistence.places import go_on, start


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


UNKNOWN = decoder(Schema.of(None))


@pytest.mark.parametrize(
    ("value", "whole"),
    [
        pytest.param(Draft(title="a", points=[Point(1)]), True, id="a model"),
        pytest.param(Point(2), True, id="a dataclass"),
        pytest.param(Colour.RED, True, id="an enum"),
        pytest.param(Pair(1, Colour.RED), True, id="a namedtuple"),
        pytest.param(Text("a"), True, id="a subclass of a scalar"),
        pytest.param({"a": [Point(1), 2]}, False, id="inside"),
        pytest.param({Colour.RED: 1}, True, id="a key makes its mapping opaque"),
        pytest.param({Colour.RED}, True, id="a member makes its set opaque"),
        pytest.param((Point(1), "x" * 20_000), False, id="beside a long text"),
    ],
)
def test_an_opaque_value_is_written_unchanged(value: Any, whole: bool) -> None:
    written = encoding.encode(freeze(value))
    read = UNKNOWN(written)
    assert isinstance(thaw(read), Opaque) is whole
    assert encoding.encode(read) == written
    assert encoding.encode(freeze(thaw(read))) == written, "also through a node that passes it on"
    assert "<opaque " in repr(read)


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda value: value.title, id="attribute"),
        pytest.param(str, id="text"),
        pytest.param(lambda value: f"{value}", id="f-string"),
        pytest.param(bool, id="truth"),
        pytest.param(list, id="iteration"),
        pytest.param(len, id="length"),
        pytest.param(lambda value: value["title"], id="item"),
        pytest.param(lambda value: setattr(value, "title", "b"), id="assignment"),
    ],
)
def test_using_an_opaque_value_raises(use: Callable[[Any], Any]) -> None:
    read = thaw(UNKNOWN(encoding.encode(freeze(Draft(title="a")))))
    with pytest.raises(StateError, match=r"test_opaque:Draft, which cannot be read here.*register_value_type"):
        use(read)


def test_the_schema_names_what_may_be_read() -> None:
    class State(BaseModel):
        draft: Draft | None = None
        pairs: dict[str, tuple[Pair, ...]] = {}

    schema = Schema.of(State)
    assert set(named_classes(schema)) == {State, Draft, Point, Pair, Colour}
    value = {"draft": Draft(title="a", points=[Point(1)]), "pairs": {"a": (Pair(1, Colour.RED),)}}
    assert thaw(decoder(schema)(encoding.encode(freeze(value)))) == value


@pytest.mark.parametrize(
    ("form", "words"),
    [
        pytest.param({"$type": "enum", "class": f"{__name__}:Colour", "value": "BLUE"}, "BLUE", id="a member is gone"),
        pytest.param({"$type": "quaternion", "value": [1]}, "does not know", id="a tag of a later version"),
        pytest.param({"$type": "fraction", "value": "1e999999999"}, "ValueError", id="a text that would grow"),
        pytest.param({"$type": "decimal", "value": "x"}, "InvalidOperation", id="no number"),
        pytest.param({"$type": "model", "class": "os:system", "value": {}}, "os:system", id="an unnamed class"),
    ],
)
def test_what_cannot_be_read_is_opaque(form: Any, words: str) -> None:
    read = thaw(encoding.decoder([Colour], Opaque.of)(form))
    assert isinstance(read, Opaque)
    assert words in read.reason
    assert json.loads(read.text) == form


def test_json_that_is_too_deep_is_opaque() -> None:
    form: Any = "bottom"
    for _ in range(MAX_DEPTH * 50):
        form = [form]
    with pytest.raises(StateError, match=f"deeper than {MAX_DEPTH} levels"):
        UNKNOWN(form)


def test_a_node_fails_only_if_it_reads_an_opaque_value(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")

    def read(draft: object) -> dict[str, object]:
        raise AssertionError("called with an opaque value")

    class Drafts(BaseModel):
        draft: list[Draft] = []

    first = Graph(Drafts, name="Graph").add_node("write", lambda: {"draft": [Draft(title="a")]}, writes=["draft"])
    first.add_path(START, "write", END).compile(store=store).thread("t").run({})
    other = Graph().add_node("count", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "count", END)
    run = other.compile(store=store, shares_threads_with=["Graph"]).thread("t").run({"n": 1})
    assert run.state["n"] == 2
    assert "<opaque" in repr(run.state["draft"])
    reader = Graph().add_node("read", read, writes=[]).add_path(START, "read", END)
    run = reader.compile(store=store, shares_threads_with="Graph").thread("t").run({})
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


@pytest.mark.parametrize("value", UNNAMED)
def test_what_no_other_process_could_read_back_is_refused_when_it_is_written(value: str, tmp_path: Path) -> None:
    """With node and field; the thread stays where it was. A store in memory keeps values, and refuses none."""
    made = UNNAMED[value]
    graph = Graph().add_node("write", lambda state: {"value": made()}).add_path(START, "write", END)
    t = graph.compile(store=tmp_path / "runs.db").thread("t")
    run = t.run({"n": 1})
    assert run.status == "failed"
    assert isinstance(run.error, StateError)
    assert re.search(r"'write', field 'value': a .*(Secret|Colour|Local) cannot be stored.*register", str(run.error))
    assert t.state.to_dict() == {"n": 1}
    with pytest.raises(StateError, match="field 'given'"):
        t.run({"given": made()}, abandon=True)
    assert t.state.to_dict() == {"n": 1}
    assert graph.compile(store=":memory:").thread("t").run({"n": 1}).status == "completed"


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


@pytest.mark.parametrize("durability", ["sync", "flush"])
@pytest.mark.parametrize("call_mode", ["sync", "async"])
@pytest.mark.parametrize("where", REFUSED)
def test_a_run_with_a_refused_value_has_failed_for_other_processes_too(
    where: str, call_mode: str, durability: Any, tmp_path: Path
) -> None:
    """The store works: the end of the run is written, with its error, and resume continues from there."""
    build, node = REFUSED[where]
    made: list[Any] = [Secret(1)]
    program = build(lambda: made[0]).compile(store=tmp_path / "runs.db", durability=durability)
    run = start(program.thread("t"), call_mode, {"ns": [1, 2]})
    t = build(lambda: made[0]).compile(store=tmp_path / "runs.db").thread("t")
    assert (run.status, t.status) == ("failed", "failed")
    assert t.error is not None
    assert (t.error.node, t.error.type) == (node, "StateError")
    assert t.state.to_dict() == {"ns": [1, 2]}, "what was written before is kept with any durability"
    made[0] = 7
    run = go_on(t, call_mode)
    assert (run.status, t.status, run.state["value"]) == ("completed", "completed", [7, 7] if node == "size" else 7)


def test_a_run_whose_commit_is_too_large_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = [list(range(9_000))]
    graph = refused_node(lambda: made[0])
    run = graph.compile(store=tmp_path / "runs.db").thread("t").run({"ns": []})
    assert run.status == "completed"
    monkeypatch.setattr(content, "MAX_JSON_BYTES", 20_000)
    t = graph.compile(store=tmp_path / "runs.db").thread("u")
    assert (t.run({"ns": []}).status, t.status) == ("failed", "failed")
    assert t.error is not None
    assert t.error.node == "write"
    made[0] = 7
    assert t.resume().state["value"] == 7


def test_what_may_be_written(tmp_path: Path) -> None:
    """What the schema names, texts that only look like a class, and what was read as an opaque value before."""

    class Named(BaseModel):
        draft: Draft | None = None
        value: Any = None

    values: list[Any] = [Draft(title="a"), {"class": "x:Y", "$type": "z"}, '","class":"x:Y"']
    graph = Graph(Named, inputs=[], name="Graph").add_node("write", lambda: {"value": values}, writes=["value"])
    store = tmp_path / "runs.db"
    assert graph.add_path(START, "write", END).compile(store=store).thread("t").run({}).status == "completed"
    again = Graph().add_node("pass_on", lambda state: {"value": [*state["value"], 1]}).add_path(START, "pass_on", END)
    t = again.compile(store=store).thread("t")
    assert t.run({}).status == "completed"
    assert "<opaque" in repr(t.state["value"])


@dataclass
class Secret:
    n: int


def test_sizes_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_JSON_BYTES", 1_000)
    with pytest.raises(StateError, match=r"1,002 bytes of JSON besides .*; 1,000 are stored and read at most"):
        content.Content.stored(b'"' + b"a" * 1_000 + b'"').value(lambda ids: {})
    with pytest.raises(StateError, match="more than the 1,000 bytes"):
        content.ReadBudget().inflate(zlib.compress(b"a" * 1_001))
    assert content.ReadBudget().inflate(zlib.compress(b"a" * 1_000)) == b"a" * 1_000
    with pytest.raises(StateError, match="truncated"):
        content.ReadBudget().inflate(zlib.compress(b"a" * 1_000)[:-3])
