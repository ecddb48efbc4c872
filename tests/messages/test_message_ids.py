"""Ids of messages: the same in every run, and unique across forks, subgraphs and later runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, reducers


class Talk(BaseModel):
    messages: Annotated[list[dict[str, Any]], reducers.add_messages] = []


def says(text: str) -> Callable[[Any], dict[str, Any]]:
    return lambda messages: {"messages": {"text": text}}


def talk() -> CompiledGraph:
    inner = Graph(Talk, inputs=["messages"]).add_node("x", says("inner")).add_path(START, "x", END)
    graph = Graph(Talk, inputs=["messages"])
    for name in ("left", "right", "join"):
        graph.add_node(name, says(name))
    graph.add_node("inside", inner.compile())
    graph.add_edge(START, ["left", "right"]).add_edge(["left", "right"], "join").add_path("join", "inside", END)
    return graph.compile()


def test_ids_are_the_same_in_every_run() -> None:
    first, second = (talk()(messages=[{"text": "hi"}]).messages for _ in range(2))
    assert first == second
    assert [each["text"] for each in first] == ["hi", "left", "right", "join", "inner"]
    assert len({each["id"] for each in first}) == 5


def test_a_conversation_handed_to_the_next_run_loses_nothing() -> None:
    program = talk()
    first = program(messages=[{"text": "hi"}]).messages
    both = program(messages=[*first, {"text": "again"}]).messages
    assert both[:5] == first
    assert [each["text"] for each in both[5:]] == ["again", "left", "right", "join", "inner"]
    assert len({each["id"] for each in both}) == 10
