"""What a budget and `max_calls` bound besides the nodes: routers, merge policies, items, branches of a fork."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import dspy
import pytest

from dspyer import END, START, Budget, CompiledGraph, Graph
from dspyer.errors import BudgetError, CallLimitError
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
def test_of_a_fork_no_more_nodes_are_called_than_max_calls(mode: str) -> None:
    calls: Counter[str] = Counter()

    def node(name: str) -> Any:
        return lambda: {name: calls.update([name])}

    names = list("bcdef")
    graph = Graph().add_node("a", node("a"), writes=["a"]).add_edge(START, "a").add_edge("a", names)
    for name in names:
        graph.add_node(name, node(name), writes=[name]).add_edge(name, END)
    found = run(graph.compile(max_calls=4), mode, {})
    assert (found.status, calls.total()) == ("failed", 4)
    assert isinstance(found.error, CallLimitError)
    assert run(graph.compile(max_calls=6), mode, {}).status == "completed"
