"""Nodes that replace others: what they read must be there."""

from __future__ import annotations

from typing import Any, TypedDict

import dspy
import pytest
from langgraph.graph import START, StateGraph

from dspyer.errors import InputError
from dspyer.migrate import from_langgraph
from dspyer.testing import ScriptedLM


class Letter(TypedDict):
    letter: str
    desk: str
    label: str


class NotedLetter(Letter):
    problem: Any


def desk(letter: str) -> dict[str, str]:
    return {"desk": f"desk of {letter}"}


builder = StateGraph(Letter)
builder.add_node("desk", lambda state: {"desk": "billing"})
builder.add_node("label", lambda state: {"label": state["desk"].upper()})
builder.add_edge(START, "desk")
builder.add_edge("desk", "label")


@pytest.mark.parametrize("node", [dspy.Predict("letter -> desk"), desk], ids=["module", "function"])
def test_what_the_first_node_reads_is_required_of_the_first_run(node: Any) -> None:
    program = from_langgraph(builder, nodes={"desk": node}).compile(store=":memory:")
    with dspy.context(lm=ScriptedLM(lambda prompt: {"desk": "desk of a"})):
        assert program(letter="a").label == "DESK OF A"
        thread = program.thread("one")
        thread.run({"letter": "a"})
        assert thread.run({}).state["label"] == "DESK OF A", "a later run finds the value of an earlier one"
        with pytest.raises(InputError, match="'letter', read by 'desk'"):
            program(label="b")


def test_the_failures_of_a_replaced_node_are_led_on_by_an_error_edge() -> None:
    def fails(letter: str) -> dict[str, str]:
        raise ConnectionError("down")

    noted = StateGraph(NotedLetter)
    noted.add_node("desk", lambda state: {"desk": "billing"}, error_handler=lambda state: {"desk": "left out"})
    noted.add_node("label", lambda state: {"label": state["desk"].upper()})
    noted.add_edge(START, "desk").add_edge("desk", "label")
    graph = from_langgraph(noted, nodes={"desk": {"node": fails, "writes": ["desk"]}})
    graph.add_node("guess", lambda problem: {"desk": f"any after {problem.type}"}, writes=["desk"])
    graph.add_error_edge("desk", "guess", into="problem").add_edge("guess", "label")
    assert graph.compile()(letter="a").label == "ANY AFTER CONNECTIONERROR"
