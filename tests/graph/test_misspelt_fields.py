"""Misspelt fields of a graph without a schema, where any name may be an input: texts are refused, a run gets a hint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph, Send, fill, view
from dspyer.errors import GraphError, InputError, UnsetFieldError
from tests.rows import each


def told(instructions: str, signature: str = "topic -> note") -> dspy.Predict:
    return dspy.Predict(dspy.Signature(signature, instructions))


def drafting(**options: Any) -> Graph:
    return Graph(**options).add_node("write", lambda topic: {"draft": "x"}, writes=["draft"])


def after(graph: Graph, name: str = "next") -> Graph:
    return graph.add_path(START, "write", name, END)


def noted(reads: Any, **options: Any) -> Graph:
    return after(drafting(**options).add_node("next", lambda text: {"note": text}, reads=reads, writes=["note"]))


WAY = "draft -> way: Literal['x', 'y']"
TEXTS: dict[str, Callable[[], Graph]] = {
    "question": lambda: after(drafting().add_interrupt("next", question="Send {drafft}?", into="sent")),
    "input": lambda: noted({"text": fill("About {topic}: {drafft}")}),
    "view": lambda: noted({"text": view("drafft").last(1)}),
    "instructions": lambda: after(drafting().add_node("next", told("Note {drafft}"))),
    "instructions of a map": lambda: after(
        drafting().add_map("next", told("Note {drafft}"), over="topics", item="topic", into="notes")
    ),
    "instructions of a bound module": lambda: after(
        drafting().add_node("next", lambda ask: {"note": 1}, modules={"ask": told("Note {drafft}")}, writes=["note"])
    ),
    "instructions of a router": lambda: (
        drafting()
        .add_edge(START, "write")
        .add_conditional_edges("write", told("Go on with {drafft}", WAY), {"x": END, "y": "write"})
    ),
    "instructions of a router at the start": lambda: (
        drafting()
        .add_conditional_edges(START, told("Go on with {drafft}", WAY), {"x": END, "y": "write"})
        .add_edge("write", END)
    ),
    "instructions of a condenser": lambda: (
        Graph()
        .add_node("write", lambda draft: {"text": draft}, writes=["text"], condense={"text": told("For {drafft}")})
        .add_path(START, "write", END)
    ),
    "with declared inputs": lambda: noted({"text": fill("{drafft}")}, inputs=["topic"]),
}


@each("build", TEXTS.values(), ids=TEXTS)
def test_a_text_that_misspells_a_field_is_refused(build: Callable[[], Graph]) -> None:
    """It would be filled with nothing, or ask the caller for one more input."""
    with pytest.raises(GraphError, match=r"names 'drafft', which no node writes\. Did you mean 'draft'\?"):
        build().compile()


def tuned() -> dspy.Predict:
    module = told("Note {drafft}")
    module._compiled = True
    return module


def sent() -> Graph:
    graph = Graph().add_node("split", lambda drafts: {"parts": 1}, writes=["parts"])
    graph.add_node("next", lambda text: {"note": text}, reads={"text": fill("{draft}")}, writes=["note"])

    def each(drafts: Any) -> list[Send]:
        return [Send("next", {"draft": one}) for one in drafts]

    return graph.add_edge(START, "split").add_conditional_edges("split", each, ["next"]).add_edge("next", END)


MEANT: dict[str, Callable[[], Graph]] = {
    "an input of its own": lambda: noted({"text": fill("{title}")}),
    "one of a series": lambda: noted({"text": fill("{draft_2} {draft3} {topic_a}")}),
    "a declared input": lambda: noted({"text": fill("{drafft}")}, inputs=["topic", "drafft"]),
    "read by another node": lambda: (
        noted({"text": fill("{drafft}")})
        .add_node("also", lambda drafft: {"other": 1}, writes=["other"])
        .add_edge(START, "also")
        .add_edge("also", END)
    ),
    "an input of the module": lambda: after(drafting().add_node("next", told("Note {drafft}", "drafft -> note"))),
    "the item of a map": lambda: after(
        drafting().add_map("next", told("Note {drafft}", "drafft -> note"), over="list", item="drafft", into="notes")
    ),
    "brought by a Send": sent,
    "of an optimizer": lambda: after(drafting().add_node("next", tuned())),
    "perhaps written by a node": lambda: (
        noted({"text": fill("{drafft}")})
        .add_node("any", lambda state: {**state})
        .add_edge(START, "any")
        .add_edge("any", END)
    ),
}


@each("build", MEANT.values(), ids=MEANT)
def test_a_name_in_a_text_may_be_a_field_of_its_own(build: Callable[[], Graph]) -> None:
    build().compile()


@pytest.mark.parametrize("writes", [["draft"], None], ids=["declared writes", "unknown writes"])
def test_a_field_that_is_missing_or_unset_names_the_one_that_is_spelt_like_it(writes: list[str] | None) -> None:
    def start() -> Graph:
        return Graph().add_node("write", lambda topic: {"draft": "x"}, writes=writes)

    def routed(route: Any) -> Graph:
        return start().add_edge(START, "write").add_conditional_edges("write", route, {"x": END, "y": "write"})

    for graph in (
        after(start().add_node("next", lambda drafft: {"note": 1})),
        after(start().add_node("next", lambda text: {"note": 1}, reads={"text": "drafft"})),
        after(start().add_node("next", dspy.Predict("drafft -> note"))),
        after(start().add_map("next", lambda one: 1, over="drafft", item="one", into="notes")),
        start().add_check("next", lambda drafft: [], of="write", max_fixes=0).add_path(START, "write", END),
        routed("drafft"),
        routed(lambda drafft: "x"),
        routed(dspy.Predict("drafft -> way: Literal['x', 'y']")),
    ):
        with pytest.raises((InputError, UnsetFieldError), match=r"'drafft'.*\. Did you mean 'draft'\?"):
            graph.compile()(topic="t")
