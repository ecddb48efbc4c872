"""What a budget bounds besides the nodes: routers, merge policies, items, branches of a fork."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import dspy
import pytest

from dspyer import END, START, Breakpoints, Budget, CompiledGraph, Context, Graph
from dspyer.errors import BudgetError
from dspyer.testing import ScriptedLM, no_pauses
from tests.runtime.calls import let_pass

MODES = pytest.mark.parametrize("mode", ["sync", "async"])


def ask(question: object) -> str:
    """Asks with a module that no graph sees."""
    return str(dspy.Predict("question -> answer")(question=f"{question}").answer)


def ask_again(answer: str) -> str:
    return ask(answer)


def run(runner: Any, mode: str, inputs: dict[str, Any], **options: Any) -> Any:
    if mode == "sync":
        return runner.run(inputs, **options)
    return asyncio.run(runner.arun(inputs, **options))


def resume(thread: Any, mode: str) -> Any:
    return thread.resume() if mode == "sync" else asyncio.run(thread.aresume())


def asked_by_a_router() -> CompiledGraph:
    graph = Graph().add_node("ask", dspy.Predict("question -> answer")).add_node("last", lambda: {"n": 1}, writes=["n"])
    graph.add_edge(START, "ask").add_edge("last", END)
    return graph.add_conditional_edges("ask", ask_again, ["last"]).compile(store=":memory:")


def asked_by_a_policy() -> CompiledGraph:
    graph = Graph(merge={"found": lambda conflict: ask(conflict.left)})
    graph.add_node("one", lambda question: {"found": ask(question) + "1"}, writes=["found"])
    graph.add_node("two", lambda: {"found": "2"}, writes=["found"])
    return graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END).compile(store=":memory:")


@MODES
@pytest.mark.parametrize("make", [asked_by_a_router, asked_by_a_policy])
def test_no_request_beside_the_nodes_starts_after_the_limit(make: Any, mode: str) -> None:
    """A router belongs to its node, which is called again; what a join was to merge is kept."""
    with ScriptedLM(lambda prompt: {"answer": "last"}) as lm:
        thread = make().thread("t")
        stopped = run(thread, mode, {"question": "Is it?"}, budget=Budget(requests=1))
        assert (stopped.status, len(lm.calls)) == ("stopped", 1)
        assert isinstance(stopped.error, BudgetError)
        done = resume(thread, mode)
        assert (done.status, len(lm.calls)) == ("completed", 3 if make is asked_by_a_router else 2), done.error
        whole = run(make(), mode, {"question": "Is it?"}, budget=Budget(requests=3))
    assert whole.status == "completed"
    assert whole.state.to_dict() == done.state.to_dict()


@MODES
def test_a_question_whose_answer_needs_a_refused_request_stays_open(mode: str) -> None:
    graph = Graph().add_node("first", dspy.Predict("question -> answer")).add_path(START, "first", END)
    thread = graph.compile(
        store=":memory:", layers=[Breakpoints(after=["first"])], answers=lambda question: ask(question.text)
    ).thread("t")
    with ScriptedLM([{"answer": "yes"}]):
        waits = run(thread, mode, {"question": "Is it?"}, budget=Budget(requests=1))
    assert (waits.status, [question.key for question in waits.questions]) == ("interrupted", ["after"])
    assert thread.resume({"after": None}).status == "completed"


@MODES
def test_no_item_starts_after_the_deadline(mode: str) -> None:
    """What is finished by then is kept."""
    calls: list[int] = []

    def slow(n: int) -> int:
        calls.append(n)
        let_pass(20)
        return n

    graph = Graph().add_map("each", slow, over="items", item="n", into="found", max_concurrency=1)
    thread = graph.add_path(START, "each", END).compile(store=":memory:").thread("t")
    with no_pauses():
        stopped = run(thread, mode, {"items": [1, 2, 3, 4]}, budget=Budget(seconds=30))
        assert (stopped.status, calls) == ("stopped", [1, 2])
        assert (resume(thread, mode).state["found"], calls) == ([1, 2, 3, 4], [1, 2, 3, 4])


@MODES
def test_of_a_fork_no_more_nodes_are_called_than_the_budget_says(mode: str) -> None:
    calls: Counter[str] = Counter()

    def node(name: str) -> Any:
        return lambda: {name: calls.update([name])}

    names = list("bcdef")
    graph = Graph().add_node("a", node("a"), writes=["a"]).add_edge(START, "a").add_edge("a", names)
    for name in names:
        graph.add_node(name, node(name), writes=[name]).add_edge(name, END)
    found = run(graph.compile(budget=Budget(node_calls=4)), mode, {})
    assert (found.status, calls.total()) == ("stopped", 4)
    assert isinstance(found.error, BudgetError)
    assert run(graph.compile(budget=Budget(node_calls=6)), mode, {}).status == "completed"


@MODES
@pytest.mark.parametrize("most", [1, 2])
def test_a_budget_below_the_depth_of_nested_graphs_comes_further_with_each_resume(mode: str, most: int) -> None:
    calls: list[int] = []

    def leaf(n: int) -> dict[str, int]:
        calls.append(n)
        return {"n": n + 1}

    def called(part: Any, n: int, ctx: Context) -> dict[str, int]:
        return {"n": ctx.call(part, {"n": n}).n}

    inner = Graph(inputs=["n"]).add_node("leaf", leaf, writes=["n"]).add_path(START, "leaf", END)
    inner = Graph(inputs=["n"]).add_node("deep", inner).add_path(START, "deep", END)
    inner = Graph(inputs=["n"]).add_node("call", called, modules={"part": inner}, writes=["n"])
    graph = Graph().add_map("each", inner.add_path(START, "call", END), over="items", item="n", into="found")
    thread = graph.add_path(START, "each", END).compile(store=":memory:", budget=Budget(node_calls=most)).thread("t")
    run(thread, mode, {"items": [1, 2]})
    for _ in range(9):
        if thread.status == "stopped":
            resume(thread, mode)
    assert (thread.status, sorted(calls)) == ("completed", [1, 2])
    assert thread.state["found"] == [2, 3]


@MODES
def test_a_node_that_fails_or_asks_after_a_refusal_is_stopped(mode: str) -> None:
    """What it makes of the refusal is neither its failure nor its question."""

    def node(ctx: Context, raises: bool) -> dict[str, Any]:
        try:
            return {"answer": ask("first") + ask("second")}
        finally:
            if raises:
                raise ValueError("odd")
            ctx.interrupt("go_on", "Go on?")

    program = Graph().add_node("node", node, writes=["answer"]).add_path(START, "node", END).compile()
    with ScriptedLM(lambda prompt: {"answer": "yes"}):
        for raises in (True, False):
            stopped = run(program, mode, {"raises": raises}, budget=Budget(requests=1))
            assert (stopped.status, stopped.questions, type(stopped.error)) == ("stopped", (), BudgetError)


class Swallows(dspy.Predict):  # type: ignore[misc,unused-ignore]  # Any without DSPy's types
    """A router that goes to its target whatever comes of its request."""

    def forward(self, **inputs: Any) -> Any:
        try:
            return super().forward(**inputs)
        except:  # noqa: E722 - what users write
            return dspy.Prediction(way="last")

    async def aforward(self, **inputs: Any) -> Any:
        try:
            return await super().aforward(**inputs)
        except:  # noqa: E722 - what users write
            return dspy.Prediction(way="last")


@MODES
def test_a_router_that_swallows_the_refusal_leads_nowhere(mode: str) -> None:
    graph = Graph().add_node("first", lambda: {"n": 1}, writes=["n"]).add_node("last", lambda: {"n": 2}, writes=["n"])
    graph.add_node("asks", dspy.Predict("question -> answer")).add_edge(START, "first").add_edge("first", "asks")
    graph.add_conditional_edges("asks", Swallows("answer -> way: Literal['last', 'END']"), ["last", END])
    thread = graph.add_edge("last", END).compile(store=":memory:").thread("t")
    with ScriptedLM([{"answer": "yes"}, {"answer": "yes"}, {"way": "END"}]) as lm:
        stopped = run(thread, mode, {"question": "Is it?"}, budget=Budget(requests=1))
        assert (stopped.status, [commit.node for commit in stopped.commits]) == ("stopped", ["START", "first"])
        assert (resume(thread, mode).state["n"], len(lm.calls)) == (1, 3)
