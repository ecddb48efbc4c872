"""How often nodes have run and called predictors and tools can be read after the run."""

from __future__ import annotations

from typing import Any

import dspy

from dspyer import END, START, CompiledGraph, Graph
from dspyer.runtime.run import Counts
from dspyer.testing import ScriptedLM


def program(fails: list[bool], store: str | None = None) -> CompiledGraph:
    def check(n: int) -> dict[str, Any]:
        if n == 1 and fails:
            fails.pop()
            raise RuntimeError("once")
        return {"n": n + 1}

    def twice(question: str, ask: dspy.Module) -> dict[str, Any]:
        ask(question=question)
        return {"answer": ask(question=question).answer}

    graph = Graph(inputs=["question", "n"])
    graph.add_node("twice", twice, modules={"ask": dspy.Predict("question -> answer")}, writes=["answer"])
    graph.add_node("check", check, writes=["n"])
    graph.add_edge(START, ["twice", "check"]).add_edge("twice", END)
    graph.add_conditional_edges("check", lambda n: END if n > 2 else "check", [END, "check"])
    return graph.compile(store=store)


def test_counts_of_a_run_and_of_a_thread() -> None:
    with dspy.context(lm=ScriptedLM([{"answer": "a"}, {"answer": "b"}] * 3)):
        run = program([]).run({"question": "q", "n": 0})
        assert run.counts == {"twice": Counts(1, 2, 0), "check": Counts(3, 0, 0)}
        thread = program([True], ":memory:").thread("t")
        assert thread.run({"question": "q", "n": 0}).status == "failed"
        resumed = thread.resume()
        assert resumed.counts == {"twice": Counts(1, 2, 0), "check": Counts(3, 0, 0)}
        thread.update({"n": 0})
        thread.run({"question": "q", "n": 0}).raise_error()
        assert thread.counts == {"twice": Counts(2, 4, 0), "check": Counts(6, 0, 0)}
