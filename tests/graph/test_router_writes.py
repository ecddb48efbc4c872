"""What a module router writes is part of its node's commit: joins fold it like the node's own updates."""

from __future__ import annotations

from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, Updates, reducers
from dspyer.testing import ScriptedLM


class Case(BaseModel):
    q: str
    steps: Annotated[list[str], reducers.append] = []
    label: str = ""


def run(first: list[str], field: str) -> Any:
    graph = Graph(Case)
    graph.add_node("a", lambda q: {"steps": "a"})
    graph.add_node("b", lambda q: {"steps": "b"})
    graph.add_node("join", lambda steps: None)
    graph.add_edge(START, first)
    router = dspy.Predict("q -> label: Literal['join', 'stop']")
    graph.add_conditional_edges("a", router, {"join": "join", "stop": END}, writes={"label": field})
    graph.add_edge("b", "join").add_edge("join", END)
    with dspy.context(lm=ScriptedLM([{"label": "join"}])):
        return graph.compile().run({"q": "x"})


@pytest.mark.parametrize(
    ("first", "steps"), [(["a", "b"], ["a", "join", "b"]), (["b", "a"], ["b", "a", "join"])], ids=["left", "right"]
)
def test_updates_of_a_node_and_its_router_fold_once_each(first: list[str], steps: list[str]) -> None:
    done = run(first, "steps")
    assert done.state["steps"] == steps
    (commit,) = [commit for commit in done.commits if commit.node == "a"]
    assert commit.patch["steps"] == Updates("a", "join")


def test_the_net_change_of_other_fields_is_stored() -> None:
    done = run(["a", "b"], "label")
    (commit,) = [commit for commit in done.commits if commit.node == "a"]
    assert dict(commit.patch) == {"steps": "a", "label": "join"}
