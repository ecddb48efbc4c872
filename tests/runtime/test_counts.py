"""How often nodes have run and called predictors and tools can be read after the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dspy

from dspyer import END, START, Commit, CompiledGraph, Graph, agents
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

    graph = Graph(inputs=["question", "n"], keep=["n"])
    graph.add_node("twice", twice, modules={"ask": dspy.Predict("question -> answer")}, writes=["answer"])
    graph.add_node("check", check, writes=["n"])
    graph.add_edge(START, ["twice", "check"]).add_edge("twice", END)
    graph.add_conditional_edges("check", lambda n: END if n > 2 else "check", [END, "check"])
    return graph.compile(store=store)


def counts(commits: Iterable[Commit]) -> dict[str, tuple[int, int, int]]:
    """The visits of each node, and the calls of predictors and of tools in them."""
    found: dict[str, tuple[int, int, int]] = {}
    for commit in commits:
        visits, asked, used = found.get(commit.node, (0, 0, 0))
        found[commit.node] = (visits + 1, asked + commit.calls[0], used + commit.calls[1])
    return {node: one for node, one in found.items() if node.isidentifier() and node not in ("START", "update")}


def test_counts_of_a_run_and_of_a_thread() -> None:
    with dspy.context(lm=ScriptedLM([{"answer": "a"}, {"answer": "b"}] * 3)):
        run = program([]).run({"question": "q", "n": 0})
        assert counts(run.commits) == {"twice": (1, 2, 0), "check": (3, 0, 0)}
        thread = program([True], ":memory:").thread("t")
        assert thread.run({"question": "q", "n": 0}).status == "failed"
        resumed = thread.resume()
        assert counts(resumed.commits) == {"twice": (1, 2, 0), "check": (3, 0, 0)}
        thread.update({"n": 0})
        thread.run({"question": "q", "n": 0}).raise_error()
        assert counts(thread.history()) == {"twice": (2, 4, 0), "check": (6, 0, 0)}


def test_a_question_of_an_agent_to_itself_is_counted() -> None:
    submit = {"next_thought": "", "tool_calls": [{"name": "submit", "args": {"answer": "a"}}]}
    with ScriptedLM([submit, {"problems": []}]):
        run = agents.tool_loop("question -> answer", [], check="react").compile().run({"question": "q"})
    assert (counts(run.commits)["react"], counts(run.commits)["check"]) == ((1, 1, 1), (1, 1, 0))


def test_it_is_counted_in_a_graph_around_it_and_is_no_step_of_the_trace() -> None:
    submit = {"next_thought": "", "tool_calls": [{"name": "submit", "args": {"answer": "a"}}]}
    agent = agents.tool_loop("question -> answer", [], check="react")
    program = Graph().add_node("lead", agent).add_path(START, "lead", END).compile()
    with ScriptedLM([submit, {"problems": []}] * 2), dspy.context(trace=[]):
        run = program.run({"question": "q"})
        program(question="q")
        assert [step[0] for step in dspy.settings.trace] == [program.lead.react] * 2
    assert counts(run.commits) == {"lead": (1, 2, 1)}
    assert [step[0] for step in run.trace] == [program.lead.react]
    assert [step.status for step in run.trace_steps] == ["used", "lost"]
