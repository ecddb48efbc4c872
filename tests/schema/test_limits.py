"""Limits: the most that a field holds, in sequence, over joins, and after a replay."""

from __future__ import annotations

import copy
import pickle
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from dspyer import DELETE, END, START, Context, Graph, Replace, errors, limit, reducers
from dspyer.stores import open_store
from tests.rows import each
from tests.schema.research import calls_of_a_write, write


class Board(BaseModel):
    notes: Annotated[list[str], reducers.append, limit(kb=0.03, full="drop_oldest")] = []
    pages: Annotated[list[str], reducers.extend, limit(kb=0.03)] = []
    table: Annotated[dict[str, int], reducers.update, limit(kb=0.03, full="drop_oldest")] = {}
    seen: Annotated[set[str], reducers.union, limit(kb=0.03)] = set()


def written(*updates: dict[str, Any], model: Any = Board) -> dict[str, Any]:
    """The state after these updates. Each commit has the size of each limited field that it has written."""
    run = write(model, *updates)
    sizes = {name: size for commit in run.commits[1:] for name, size in commit.sizes.items()}
    assert [list(commit.sizes) for commit in run.commits[1:]] == [[*update] for update in updates or [{}]]
    assert sizes == {name: size for name, size in run.state.sizes().items() if name in sizes}
    return run.state.to_dict()


def test_drop_oldest_removes_the_oldest_entries() -> None:
    """S004-5."""
    assert written(*[{"notes": f"note {n}"} for n in range(9)])["notes"] == ["note 6", "note 7", "note 8"]
    keys = [{"table": {"a": 1}}, {"table": {"b": 2}}, {"table": {"a": 3}}, {"table": {"c": 4}}, {"table": {"d": 5}}]
    assert written(*keys)["table"] == {"a": 3, "c": 4, "d": 5}
    assert written({"notes": Replace(["one note", "two note", "six note"])})["notes"] == ["two note", "six note"]


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "full": ([{"pages": ["a" * 20]}, {"pages": ["b" * 20]}], "field 'pages' would hold 0.048 KB, at most 0.03 KB"),
    "a set": ([{"seen": {"a" * 20}}, {"seen": {"b" * 20}}], "field 'seen' would hold"),
    "one alone": ([{"notes": "a" * 40}], "one entry of field 'notes' takes 0.044 KB alone"),
    "one alone, refused": ([{"pages": ["a" * 40]}], "one entry of field 'pages' takes 0.044 KB alone"),
    "one key alone": ([{"table": {"a" * 40: 1}}], "one entry of field 'table' takes"),
    "a replace": ([{"pages": Replace(["a" * 20, "b" * 20])}], "field 'pages' would hold"),
}


@each(("updates", "text"), REFUSED.values(), ids=REFUSED)
def test_the_error_of_an_exceeded_limit_names_node_and_field(updates: list[dict[str, Any]], text: str) -> None:
    """S004-5."""
    with pytest.raises(errors.NodeOutputError, match=f"node 'search' writes .*{text}"):
        written(*updates)


def test_inputs_have_the_same_limit() -> None:
    with pytest.raises(errors.InputError, match="field 'pages' would hold"):
        write(Board, inputs={"pages": ["a" * 20, "b" * 20]})


BAD: dict[str, tuple[Any, Any, str]] = {
    "no reducer": (Annotated[list[str], limit(kb=1)], [], "is for a list, dict or set with a reducer"),
    "a number": (Annotated[int, reducers.increment, limit(kb=1)], 0, "is for a list, dict or set with a reducer"),
    "a set": (Annotated[set[str], reducers.union, limit(kb=1, full="drop_oldest")], set(), "a set has no oldest entry"),
    "its default": (Annotated[list[str], reducers.append, limit(kb=0.01)], ["a" * 40], "its default: .* takes"),
    "no size": (Annotated[list[str], reducers.append, limit], [], "limit needs its size"),
}


@pytest.mark.parametrize(("kind", "default", "text"), BAD.values(), ids=BAD)
def test_a_limit_that_a_field_cannot_have_is_a_graph_error(kind: Any, default: Any, text: str) -> None:
    with pytest.raises(errors.GraphError, match=text):
        Graph(create_model("Model", notes=(kind, default)))


@pytest.mark.parametrize("options", [{"kb": 0}, {"kb": "4"}, {"kb": True}, {"kb": 1, "full": "drop"}])
def test_invalid_options_of_limit_raise(options: dict[str, Any]) -> None:
    with pytest.raises(errors.GraphError, match="limit"):
        limit(**options)


def board(count: int) -> Graph:
    def write(ctx: Context) -> dict[str, Any]:
        return {"notes": f"{ctx.node} {ctx.visit}"}

    graph = Graph(Board)
    for name in ("ann", "bob", "cat"):
        graph.add_node(name, write)
    graph.add_node("meet", lambda: {"table": {"m": 1}}, writes=["table"])
    graph.add_edge(START, ["ann", "bob", "cat"]).add_edge(["ann", "bob", "cat"], "meet")
    graph.add_conditional_edges(
        "meet",
        lambda ctx: ["ann", "bob", "cat"] if ctx.visit < count else END,
        {"ann": "ann", "bob": "bob", "cat": "cat", END: END},
    )
    return graph


def test_joins_replays_and_the_history_obey_the_limit() -> None:
    """S004-5, S004-6, S004-16, S004-20: branches and their join are within the limit; each commit has its sizes."""
    thread = board(2).compile(store=":memory:").thread("t")
    run = thread.run({})
    run.raise_error()
    assert run.state["notes"] == ["ann 2", "bob 2", "cat 2"]
    assert thread.replay() == run.state
    sizes = [dict(commit.sizes) for commit in run.commits]
    assert sizes == [dict(commit.sizes) for commit in thread.history()]
    assert sizes[1] == {"notes": 9}
    joins = [commit for commit in run.commits if commit.node.startswith("join:")]
    assert [commit.sizes["notes"] for commit in joins] == [27, 27]
    assert pickle.loads(pickle.dumps(copy.deepcopy(run.commits)))[1].sizes == {"notes": 9}


def test_a_join_that_exceeds_the_limit_is_refused() -> None:
    graph = Graph(Board).add_node("a", lambda: {"pages": ["a" * 20]}, writes=["pages"])
    graph.add_node("b", lambda: {"pages": ["b" * 20]}, writes=["pages"]).add_node("c", lambda: None, writes=[])
    run = graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "c").add_edge("c", END).compile().run({})
    assert "field 'pages' would hold" in str(run.error)
    assert "raised when branches joined at node 'c', where a, b had written 'pages'" in run.error.__notes__  # type: ignore[union-attr]


def test_a_run_of_an_earlier_graph_keeps_its_limit() -> None:
    """Existing commits are folded with the limit of their graph; the new limit applies to new commits only."""

    def thread_of(kind: Any) -> Any:
        graph = Graph(create_model("Board", notes=(kind, [])), keep="all")
        graph.add_node("node", lambda ctx: {"notes": f"note {ctx.visit}"}, writes=["notes"]).add_edge(START, "node")
        graph.add_conditional_edges("node", lambda ctx: "node" if ctx.visit < 5 else END, ["node", END])
        return graph.compile(store=store).thread("t")

    store = open_store(":memory:")
    first = thread_of(Annotated[list[str], reducers.append, limit(kb=0.03, full="drop_oldest")])
    assert list(first.run({}).state["notes"]) == ["note 3", "note 4", "note 5"]
    later = thread_of(Annotated[list[str], reducers.append])
    assert list(later.state["notes"]) == ["note 3", "note 4", "note 5"]
    assert later.replay() == first.state
    assert len(later.run({}).state["notes"]) == 8


def test_sizes_are_those_of_the_json_form() -> None:
    class Model(BaseModel):
        items: Annotated[list[Any], reducers.extend, limit(kb=1)] = []
        table: Annotated[dict[str, Any], reducers.update, limit(kb=1)] = {}

    run = write(Model, {"items": ["ä", {"k": 1}]}, {"table": {"k": [1, 2]}}, {"items": DELETE})
    sizes = [dict(commit.sizes) for commit in run.commits[1:]]
    assert sizes == [{"items": len('["ä", {"k": 1}]'.encode())}, {"table": len(b'{"k": [1, 2]}')}, {"items": 2}]


class Wide(BaseModel):
    items: Annotated[list[str], reducers.extend, limit(kb=0.2, full="drop_oldest")] = []
    table: Annotated[dict[str, str], reducers.update, limit(kb=0.2, full="drop_oldest")] = {}
    said: Annotated[list[dict[str, Any]], reducers.add_messages, limit(kb=0.3, full="drop_oldest")] = []
    seen: Annotated[set[str], reducers.union, limit(kb=9)] = set()
    own: Annotated[list[str], lambda current, update: [update, *current], limit(kb=9)] = []


texts = st.text("aé\n\ud800", max_size=9)
keys = st.sampled_from(["a", "b", "ü"])
some_updates = st.one_of(
    st.tuples(st.just("items"), st.lists(texts, max_size=3)),
    st.tuples(st.just("table"), st.dictionaries(keys, texts, max_size=3)),
    st.tuples(
        st.just("said"), st.lists(st.builds(lambda key, text: {"id": key, "text": text}, keys, texts), max_size=3)
    ),
    st.tuples(st.just("seen"), st.sets(texts, max_size=3)),
    st.tuples(st.just("own"), texts),
    st.tuples(st.just("table"), st.builds(Replace, st.dictionaries(keys, texts, max_size=2))),
    st.tuples(st.just("said"), st.just(DELETE)),
)


@given(st.lists(some_updates, max_size=12))
def test_the_incremental_size_is_the_size_of_the_value(updates: list[tuple[str, Any]]) -> None:
    written(*[{field: update} for field, update in updates], model=Wide)


class Large(BaseModel):
    items: Annotated[list[str], reducers.extend, limit(kb=99, full="drop_oldest")] = []
    table: Annotated[dict[str, str], reducers.update, limit(kb=99, full="drop_oldest")] = {}
    said: Annotated[list[dict[str, Any]], reducers.add_messages, limit(kb=99, full="drop_oldest")] = []
    seen: Annotated[set[str], reducers.union, limit(kb=99)] = set()


@each("update", [{"items": ["x"]}, {"table": {"7": "x"}}, {"said": {"id": "7", "text": "x"}}, {"seen": {"x"}}])
def test_the_cost_of_measuring_depends_on_the_update(update: dict[str, Any]) -> None:
    def cost(size: int) -> int:
        many = [str(n) for n in range(size)]
        said = [{"id": name, "text": ""} for name in many]
        before = {"items": many, "table": dict.fromkeys(many, ""), "said": said, "seen": set(many)}
        return calls_of_a_write(Large, before, update)

    assert cost(300) < cost(30) + 400, "it would be more if each entry were measured"
