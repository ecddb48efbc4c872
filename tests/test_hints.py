"""Annotations that cannot be evaluated: names imported for type checkers only, and from Python 3.14 on lazy ones."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Any

import pytest
from pydantic import create_model

from dspyer import END, START, Graph

LATE = """
def node(question: Unknown) -> Unknown:
    return {"answer": question}

def again() -> Unknown:
    return {"answer": "done"}

def route(answer: Unknown) -> Unknown:
    return "again" if answer == "q" else "END"

def keep(current: Unknown, update: Unknown) -> Unknown:
    return update

def choose(conflict: Unknown) -> Unknown:
    return conflict.right
"""


def test_annotations_may_be_strings_that_name_nothing() -> None:
    def node(question: Unknown, limit: int = 3) -> Unknown:  # type: ignore[name-defined]  # noqa: F821
        return {"answer": f"{question} {limit}"}

    graph = Graph().add_node("node", node, writes=["answer"]).add_path(START, "node", END)
    assert graph.compile()(question="q").answer == "q 3"


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated when a function is made")
def test_a_graph_of_functions_whose_annotations_cannot_be_evaluated() -> None:
    found: dict[str, Any] = {}
    exec(compile(LATE, "late.py", "exec", dont_inherit=True), found)
    with pytest.raises(NameError):
        inspect.signature(found["node"])
    fields: dict[str, Any] = {"question": (str, ...), "answer": (Annotated[str, found["keep"]], "")}
    model = create_model("Late", **fields)
    graph = Graph(model, name="Late", merge={"question": found["choose"]})
    graph.add_node("node", found["node"]).add_node("again", found["again"]).add_path(START, "node")
    graph.add_conditional_edges("node", found["route"], ["again", END]).add_edge("again", END)
    assert graph.compile()(question="q").answer == "done"
