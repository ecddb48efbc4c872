"""`call_node`, `route` and `stub`: tests of single nodes and routes, and programs with a node replaced."""

from __future__ import annotations

from typing import Annotated, Any

import dspy
import pytest
from dspy.utils import DummyLM
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Send, reducers
from dspyer.errors import GraphError, Interrupted, NodeOutputError, UnsetFieldError
from dspyer.testing import call_node, route, stub


class Research(BaseModel):
    question: str
    findings: Annotated[list[str], reducers.extend] = []
    answer: str | None = None


def program() -> CompiledGraph:
    async def search(question: str) -> dict[str, Any]:
        return {"findings": [f"about {question}"]}

    def check(findings: list[str]) -> str:
        return "done" if findings else "again"

    graph = Graph(Research)
    graph.add_node("search", search, writes=["findings"])
    graph.add_node("answer", dspy.Predict("question, findings -> answer"))
    graph.add_edge(START, "search").add_edge("search", "answer")
    graph.add_conditional_edges("answer", check, {"again": "search", "done": END})
    return graph.compile()


def test_call_node_gives_the_patch() -> None:
    assert call_node(program(), "search", {"question": "bees"}) == {"findings": ["about bees"]}
    with dspy.context(lm=DummyLM([{"answer": "honey"}])):
        assert call_node(program(), "answer", {"question": "bees"}) == {"answer": "honey"}


def test_nothing_seems_to_run_after_call_node() -> None:
    """Else the LM calls of later runs would count as those of the node."""
    graph = Graph().add_map("double", lambda number: 2 * number, over="numbers", item="number", into="doubled")
    call_node(graph.add_path(START, "double", END).compile(), "double", {"numbers": [1, 2]})
    with pytest.raises(Interrupted) as asked:
        asking()()
    assert "the code of a node" not in str(asked.value)


def test_call_node_needs_the_fields_that_the_node_reads() -> None:
    with pytest.raises(UnsetFieldError, match="question"):
        call_node(program(), "search", {})
    with pytest.raises(NodeOutputError, match="qestion"):
        call_node(program(), "search", {"qestion": "bees"})
    with pytest.raises(GraphError, match="Did you mean 'search'"):
        call_node(program(), "serch", {"question": "bees"})


def test_route_asks_edges_and_routers() -> None:
    assert route(program(), START, {}) == ["search"]
    assert route(program(), "search", {}) == ["answer"]
    assert route(program(), "answer", {"findings": ["x"]}) == [END]
    assert route(program(), "answer", {"findings": []}) == ["search"]


def test_route_gives_sends() -> None:
    def split(docs: list[str]) -> list[Send]:
        return [Send("read", {"doc": doc}) for doc in docs]

    graph = Graph().add_node("read", lambda doc: {"seen": doc}, writes=["seen"])
    graph.add_conditional_edges(START, split, ["read"]).add_edge("read", END)
    assert route(graph.compile(), START, {"docs": ["a", "b"]}) == [
        Send("read", {"doc": "a"}),
        Send("read", {"doc": "b"}),
    ]


def test_stub_replaces_functions_and_modules() -> None:
    fake = stub(program(), search={"findings": ["stubbed"]}, answer=lambda findings: {"answer": findings[0].upper()})
    assert fake(question="bees").answer == "STUBBED"
    assert fake.named_predictors() == []
    assert [name for name, _ in program().named_predictors()] == ["answer"], "the original is as it was"


def test_stub_keeps_permissions_and_validation() -> None:
    with pytest.raises(NodeOutputError, match="answer"):
        stub(program(), search={"answer": "sneaked in"})(question="bees")
    with pytest.raises(NodeOutputError, match="findings"):
        stub(program(), search={"findings": 3})(question="bees")
    with pytest.raises(GraphError, match="weather"):
        stub(program(), search=lambda weather: None)


def asking(**options: Any) -> CompiledGraph:
    graph = Graph().add_node("work", lambda ctx: {"ok": ctx.interrupt("ok", "Sure?")})
    graph.add_interrupt("approve", question="Send {ok}?", into="approved").add_path(START, "work", "approve")
    graph.add_conditional_edges("approve", lambda ctx: ctx.interrupt("left", "Left?"), {True: "work", False: END})
    return graph.compile(**options)


def test_questions_of_nodes_and_routes_get_an_answer() -> None:
    assert call_node(asking(), "work", {}, answers={"ok": False}) == {"ok": False}
    assert call_node(asking(answers={"ok": True}), "work", {}) == {"ok": True}
    assert call_node(asking(), "approve", {"ok": 1}, answers=lambda question: question.text == "Send 1?") == {
        "approved": True
    }
    assert route(asking(), "approve", {}, answers={"left": True}) == ["work"]


def test_questions_without_an_answer_are_an_error() -> None:
    for call in (lambda: call_node(asking(), "work", {}), lambda: route(asking(), "approve", {})):
        with pytest.raises(Interrupted, match=r"asks '(ok': Sure|left': Left)\?; give the answer with answers="):
            call()


def test_stub_replaces_an_interrupt() -> None:
    program = stub(asking(answers={"left": False}), work={"ok": 1}, approve={"approved": False})
    assert program().approved is False
