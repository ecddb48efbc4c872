"""Fields with a reducer at a join: what folds, and what a fold that fails leaves behind."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from dspyer import END, START, Graph, Run, reducers
from dspyer.errors import NodeOutputError


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
