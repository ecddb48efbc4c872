"""Fields with a reducer at a join: updates are folded, joined values are validated, and an error fails the join."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from dspyer import END, START, Graph, Replace, Run, limit, reducers
from dspyer.errors import NodeOutputError
from tests.plain_values import frozen as frozen_value
from tests.plain_values import same
from tests.rows import each, sampled


def picky(current: list[str], update: str) -> list[str]:
    if update in current:
        raise LookupError(f"{update} is there")
    return [*current, update]


class Notes(BaseModel):
    question: str = ""
    few: Annotated[list[str], reducers.extend, Field(max_length=3)] = []
    each: Annotated[list[str], picky] = []
    total: Annotated[int, reducers.increment] = 0


def run(left: dict[str, Any], right: dict[str, Any]) -> Run:
    graph = Graph(Notes, outputs=["few"])
    graph.add_node("left", lambda question: left).add_node("right", lambda question: right)
    graph.add_node("join", lambda question: None)
    graph.add_edge(START, ["left", "right"]).add_edge(["left", "right"], "join").add_edge("join", END)
    return graph.compile().run({})


def test_updates_of_branches_fold_in_branch_order() -> None:
    done = run({"few": ["l"], "each": "l", "total": 1}, {"few": ["r"], "each": "r", "total": 2})
    assert (done.state["few"], done.state["each"], done.state["total"]) == (["l", "r"], ["l", "r"], 3)
    assert done.conflicts == ()


def test_a_value_that_the_field_refuses_fails_the_join() -> None:
    failed = run({"few": ["a", "b"]}, {"few": ["c", "d"]})
    assert failed.status == "failed"
    assert isinstance(failed.error, NodeOutputError)
    assert "'few' fold to a value that it refuses: List should have at most 3 items" in str(failed.error)
    assert any("joined at node 'join'" in note for note in failed.error.__notes__)
    assert [state["few"] for state in failed.branches.values()] == [["a", "b"], ["c", "d"]]


def test_an_error_of_a_reducer_fails_the_join() -> None:
    failed = run({"each": "same"}, {"each": "same"})
    assert failed.status == "failed"
    assert isinstance(failed.error, LookupError)
    assert any("reducer 'picky' of field 'each'" in note for note in failed.error.__notes__)


class Counted(BaseModel):
    tags: Annotated[list[str], reducers.extend] = ["a"]
    total: Annotated[int, reducers.increment] = 1
    done: str = ""


@pytest.mark.parametrize(("order", "first", "beside"), sampled(["xy", "yx"], [True, False], ["nothing", "an update"]))
def test_equal_values_of_a_reset_and_of_updates_are_not_folded_twice_by_an_outer_join(
    order: str, first: bool, beside: str
) -> None:
    """The outer join of a nested one: where its two branches agreed there is no conflict, and nothing counts twice."""
    writes = {
        "x": lambda: {"tags": Replace(["a", "b"]), "total": Replace(3)},
        "y": lambda: {"tags": ["b"], "total": 2},
        "z": lambda: {"done": "z", **({} if beside == "nothing" else {"tags": ["z"], "total": 10})},
    }
    graph = Graph(Counted, merge={"tags": "combine_lists", "total": lambda conflict: -1})
    for name in ("fork", "inner", "outer"):
        graph.add_node(name, lambda: None, writes=[])
    for name, fn in writes.items():
        graph.add_node(name, fn, writes=["tags", "total", *(["done"] if name == "z" else [])])
    graph.add_edge(START, ["z", "fork"] if first else ["fork", "z"])
    graph.add_edge("fork", list(order)).add_edge(list(order), "inner").add_edge(["z", "inner"], "outer")
    done = graph.add_edge("outer", END).compile().run({})
    found = [(conflict.join, conflict.path) for conflict in done.conflicts]
    if beside == "nothing":
        assert (done.state.to_dict(), found) == ({"tags": ["a", "b"], "total": 3, "done": "z"}, [])
    else:  # the reset counts beside the update of the other branch
        together = ["a", "z", "b"] if first else ["a", "b", "z"]
        assert (done.state.to_dict(), found) == (
            {"tags": together, "total": -1, "done": "z"},
            [("outer", ("tags",)), ("outer", ("total",))],
        )


class Pair(TypedDict, total=False):
    a: int
    b: int


class Mappings(BaseModel):
    one: Annotated[dict[str, int], Field(max_length=1)] = {}
    inner: dict[str, Annotated[dict[str, int], Field(max_length=1)]] = {}
    pair: Pair = {}
    checked: dict[str, int] = {}
    few: Annotated[list[str], Field(max_length=2)] = []
    number: int = 0
    table: Annotated[dict[str, int], reducers.update] = {}
    pages: Annotated[list[str], reducers.extend, limit(kb=0.03)] = []

    @field_validator("checked")
    @classmethod
    def one_at_most(cls, value: dict[str, int]) -> dict[str, int]:
        if "left" in value and "right" in value:
            raise ValueError("one of both")
        return value if len(value) < 2 else {"sum": sum(value.values())}


def joined(field: str, left: Any, right: Any, merge: Any = None) -> Run:
    graph = Graph(Mappings, inputs=list(Mappings.model_fields), outputs=[field], merge=merge)
    graph.add_node("ann", lambda: {field: left}, writes=[field]).add_node("bob", lambda: {field: right}, writes=[field])
    graph.add_edge(START, ["ann", "bob"]).add_edge(["ann", "bob"], END)
    return graph.compile().run({})


REFUSED: dict[str, tuple[str, Any, Any, Any, str]] = {
    "a mapping": ("one", {"l": 1}, {"r": 1}, None, "field 'one' refuses .* at most 1 item"),
    "a mapping in it": (
        "inner",
        {"k": {"l": 1}},
        {"k": {"r": 1}},
        None,
        "field 'inner' refuses .*'k'.* at most 1 item",
    ),
    "a validator": ("checked", {"left": 1}, {"right": 1}, None, "field 'checked' refuses .*one of both"),
    "a combined list": ("few", ["a", "b"], ["c"], "combine_lists", "field 'few' refuses .* at most 2 items"),
    "an answer": ("number", 1, 2, lambda conflict: "many", "field 'number' refuses .*'many'.* valid integer"),
    "an answer for a key": ("pair", {"a": 1}, {"a": 2}, lambda conflict: "x", "field 'pair' refuses .* valid integer"),
    "an answer for a folded key": ("table", {"a": 1}, {"a": 2}, lambda conflict: "x", "field 'table' refuses .*'x'"),
    "an answer for a whole": ("table", {"a": 1}, Replace({}), lambda conflict: 7, "field 'table' refuses .*7"),
    "a limit": ("pages", ["a" * 20], ["b" * 20], None, "field 'pages' would hold 0.048 KB, at most 0.03 KB"),
}


@each(("field", "left", "right", "merge", "text"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_joined_value_fails_the_join(field: str, left: Any, right: Any, merge: Any, text: str) -> None:
    run = joined(field, left, right, merge)
    assert run.status == "failed"
    assert isinstance(run.error, NodeOutputError)
    assert re.search(text, str(run.error), re.DOTALL)
    assert run.error.__notes__[0] == f"raised when branches joined at node 'END', where ann, bob had written {field!r}"
    assert [state[field] for state in run.branches.values()] == [
        left,
        right.value if isinstance(right, Replace) else right,
    ]


VALID: dict[str, tuple[str, Any, Any, Any, Any]] = {
    "other keys": ("pair", {"a": 1}, {"b": 2}, None, {"a": 1, "b": 2}),
    "a validator": ("checked", {"z": 1}, {"a": 2}, None, {"sum": 3}),
    "an answer": ("number", 1, 2, lambda conflict: "3", 3),
    "an answer for a folded key": ("table", {"a": 1, "b": 1}, {"a": 2}, lambda conflict: "3", {"a": 3, "b": 1}),
}


@pytest.mark.parametrize(("field", "left", "right", "merge", "value"), VALID.values(), ids=VALID)
def test_a_valid_joined_value_is_the_one_that_the_field_returns(
    field: str, left: Any, right: Any, merge: Any, value: Any
) -> None:
    run = joined(field, left, right, merge)
    assert run.status == "completed"
    assert run.state[field] == value
    assert same(run.state[field], frozen_value(value))
    assert run.at(run.commits[-1].id) == run.state


def test_a_join_that_merges_nothing_validates_nothing() -> None:
    calls: list[Any] = []

    class Counted(BaseModel):
        a: dict[str, int] = {}
        b: dict[str, int] = {}

        @field_validator("a", "b")
        @classmethod
        def count(cls, value: Any) -> Any:
            calls.append(value)
            return value

    graph = Graph(Counted, inputs=["a", "b"], outputs=["a", "b"])
    graph.add_node("one", lambda: {"a": {"k": 1}}, writes=["a"]).add_node("two", lambda: {"b": {"k": 1}}, writes=["b"])
    graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END)
    assert graph.compile().run({}).status == "completed"
    assert len(calls) == 2
