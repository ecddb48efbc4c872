"""Corrections that the check of an agent asked for: figures of the turns, examples to learn from, the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import END, START, Breakpoints, CompiledGraph, Graph, agents
from dspyer.display.stats import NodeStats
from dspyer.errors import CheckError
from dspyer.testing import ScriptedLM
from tests.agents.kit import modes, start, turn
from tests.rows import each

DRAFT = "it is a draft"
QUESTION = {"question": "Why?"}


def submit(answer: str) -> dict[str, Any]:
    return turn(("submit", {"answer": answer}))


def finished(answer: str) -> list[str]:
    return [DRAFT] if "draft" in answer else []


def look(word: str) -> str:
    """Looks up a word."""
    return word


LOOK = turn(("look", {"word": "a"}))


def checked(store: Any = None, **options: Any) -> CompiledGraph:
    return agents.tool_loop("question -> answer", [look], check=finished, **options).compile(store=store)


def shares(one: NodeStats) -> dict[str, int]:
    names = ("first_try", "retried", "corrected", "accepted", "failed")
    return {name: getattr(one, name) for name in names if getattr(one, name)}


CASES: dict[str, tuple[dict[str, Any], list[Any], dict[str, int], int]] = {
    "accepted at once": ({}, [LOOK, submit("a")], {"first_try": 2}, 0),
    "corrected": ({}, [submit("draft"), submit("a")], {"first_try": 1, "corrected": 1}, 1),
    "corrected after a call": ({}, [LOOK, submit("draft"), LOOK, submit("a")], {"first_try": 3, "corrected": 1}, 1),
    "called beside submit": (
        {},
        [turn(("look", {"word": "a"}), ("look", {"word": "b"}), ("submit", {"answer": "draft"})), submit("a")],
        {"first_try": 1, "corrected": 1},
        1,
    ),
    "corrected twice": ({}, [submit("draft")] * 2 + [submit("a")], {"first_try": 1, "corrected": 2}, 2),
    "accepted with problems": ({"max_fixes": 1, "accept": True}, [submit("draft")] * 2, {"accepted": 2}, 2),
    "accepted without corrections": ({"max_fixes": 0, "accept": True}, [submit("draft")], {"accepted": 1}, 1),
    "refused to the end": ({"max_fixes": 1}, [LOOK] + [submit("draft")] * 2, {"first_try": 1, "failed": 2}, 1),
}


@each("case", CASES)
def test_stats_count_turns_as_those_of_a_checked_node(case: str) -> None:
    options, script, expected, problems = CASES[case]
    thread = checked(":memory:", **options).thread("t")
    with ScriptedLM(script):
        run = thread.run(QUESTION)
    for stats in (run.stats(), thread.stats()):
        react = stats.nodes["react"]
        assert shares(react) == expected
        assert react.visits == len(script)
        # A CheckError ends the run without a commit: its problems are those of the error.
        assert dict(stats.nodes["check"].problems) == ({DRAFT: problems} if problems else {})
    refused = sum(step.status == "rejected" for step in run.trace_steps)
    assert (run.stats().nodes["react"].rejected_tokens or 0) / 100 >= refused
    assert (react.rejected_seconds > 0) == (refused > 0)


def test_a_turn_whose_correction_never_came_has_no_share(tmp_path: Path) -> None:
    """Nor does the next run on the thread correct it."""
    thread = checked(tmp_path / "runs.db").thread("t")
    with ScriptedLM([submit("draft"), ConnectionError("no line")]):
        assert thread.run(QUESTION).status == "failed"
    assert shares(thread.stats().nodes["react"]) == {"failed": 1}
    with ScriptedLM([submit("a")]):
        thread.run({"question": "How?"}, if_open="abandon")
    assert shares(thread.stats().nodes["react"]) == {"first_try": 1, "failed": 1}
    assert thread.repairs() == []


def test_turns_of_two_modes_are_counted_where_they_were_taken() -> None:
    graph = agents.modes(
        "question -> answer",
        {"plan": agents.Mode("Plan.", to=["work"]), "work": agents.Mode("Work.", tools=[look])},
        check=finished,
    )
    with ScriptedLM([turn(("to_work", {})), LOOK, submit("draft"), submit("a")]):
        stats = graph.compile().run(QUESTION).stats()
    assert shares(stats.nodes["plan"]) == {"first_try": 1}
    assert shares(stats.nodes["work"]) == {"first_try": 2, "corrected": 1}


def test_a_check_whose_error_edge_leads_on() -> None:
    graph = agents.tool_loop("question -> answer", [look], check=finished, max_fixes=1)
    graph.add_node("give_up", lambda answer: {"answer": f"{answer}?"}, writes=["answer"]).add_error_edge(
        "check", "give_up", on=CheckError
    )
    with ScriptedLM([submit("draft")] * 2):
        run = graph.add_edge("give_up", END).compile().run(QUESTION)
    assert run.status == "completed", run.error
    assert run.state["answer"] == "draft?"
    assert shares(run.stats().nodes["react"]) == {"failed": 2}
    assert run.repairs() == []


# --- repairs


@modes
def test_a_repair_leads_from_the_task_to_the_accepted_outputs(mode: str, tmp_path: Path) -> None:
    thread = checked(tmp_path / "runs.db").thread("t")
    with ScriptedLM([LOOK, submit("draft 1"), submit("draft 2"), LOOK, submit("a")]):
        run = start(thread, mode)
    (example,) = run.repairs()
    assert thread.repairs() == [example]
    assert dict(example.inputs()) == QUESTION
    assert example.answer == "a"
    assert example.problems == [[DRAFT], [DRAFT]]
    assert example.rejected == [{"answer": "draft 1"}, {"answer": "draft 2"}]
    assert run.commits[-1].node == "check"
    assert example.commit == f"t.1/{run.commits[-1].id}"
    with ScriptedLM([submit("b")]):
        assert start(thread, mode).repairs() == []
    with ScriptedLM([submit("draft"), submit("c")]):
        later = thread.run({"question": "How?"}).repairs()
    assert [(one.question, one.answer, one.problems) for one in later] == [("How?", "c", [[DRAFT]])]
    assert thread.repairs() == [example, *later]


@each("case", ["accepted at once", "accepted with problems", "refused to the end"])
def test_only_accepted_corrections_are_repairs(case: str) -> None:
    options, script, _, _ = CASES[case]
    with ScriptedLM(script):
        assert checked(**options).run(QUESTION).repairs() == []


def in_a_node() -> Graph:
    agent = agents.tool_loop("question -> answer", [look], check=finished, name="Inner")
    return Graph().add_node("ask", agent).add_path(START, "ask", END)


def as_a_tool() -> Graph:
    agent = agents.tool_loop("question -> answer", [look], check=finished, name="Inner")
    return agents.tool_loop("task -> report", [agents.tool(agent, name="ask", desc="Asks.")])


INNER: dict[str, tuple[Callable[[], Graph], dict[str, Any], list[Any], list[Any]]] = {
    "a node": (in_a_node, QUESTION, [], []),
    "a tool": (as_a_tool, {"task": "Ask."}, [turn(("ask", QUESTION))], [turn(("submit", {"report": "r"}))]),
}


@each("case", INNER)
def test_repairs_of_an_agent_inside_of_a_node(case: str, tmp_path: Path) -> None:
    make, inputs, before, after = INNER[case]
    thread = make().compile(store=tmp_path / "runs.db").thread("t")
    with ScriptedLM([*before, submit("draft"), submit("a"), *after]):
        run = thread.run(inputs)
    assert run.status == "completed", run.error
    (example,) = run.repairs()
    assert (dict(example.inputs()), example.answer, example.rejected) == (QUESTION, "a", [{"answer": "draft"}])
    assert thread.repairs() == [example]


def test_what_a_person_changed_before_the_check_was_accepted_too(tmp_path: Path) -> None:
    graph = agents.tool_loop("question -> answer", [look], check=finished)
    thread = graph.compile(store=tmp_path / "runs.db", layers=[Breakpoints(before=["check"])]).thread("t")
    with ScriptedLM([submit("draft"), submit("draft 2")]):
        thread.run(QUESTION)
        thread.resume({"before": True})
    thread.update({"answer": "by hand"})
    run = thread.resume({"before": True})
    assert run.status == "completed", run.error
    (example,) = run.repairs()
    assert (example.answer, example.rejected) == ("by hand", [{"answer": "draft"}])
    assert thread.repairs() == [example]


def test_repairs_and_the_log_are_redacted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dspyer")
    graph = agents.tool_loop(
        "question, email -> answer", [look], check=lambda answer, email: [] if "Dear" in answer else [f"greet {email}"]
    )
    program = graph.compile(redact="email", store=":memory:")
    with ScriptedLM([submit("Hi"), submit("Dear ann@example.org")]):
        run = program.thread("t").run({"question": "Why?", "email": "ann@example.org"})
    (example,) = run.repairs()
    assert program.thread("t").repairs() == [example]
    assert "ann@" not in repr(example)
    assert example.answer.startswith("Dear ")
    lines = [record.getMessage() for record in caplog.records if record.name == "dspyer"]
    assert lines == ["check 'check' refused the outputs of the agent, a correction follows: greet [redacted]"]


def test_repairs_train_the_whole_agent() -> None:
    """They are examples of the task. A turn has other inputs and outputs, so no repair is a demo of the predictor."""
    with ScriptedLM([submit("draft"), submit("a")]):
        trainset = checked().run(QUESTION).repairs()

    def metric(example: dspy.Example, found: dspy.Prediction, trace: Any = None) -> bool:
        return bool(found.answer == example.answer)

    tuner = dspy.BootstrapFewShot(metric, max_bootstrapped_demos=4, max_labeled_demos=0)
    with ScriptedLM([submit("a")]):
        tuned = tuner.compile(checked(), trainset=trainset)
    assert [demo["tool_calls"].tool_calls[0].args for demo in tuned.react.demos] == [{"answer": "a"}]
    with ScriptedLM([submit("a")]) as lm:
        labelled = dspy.LabeledFewShot(k=1).compile(checked(), trainset=trainset)
        labelled(question="How?")
    assert len(lm.calls[0].prompt.turns) == 2  # the instructions and the task: DSPy shows no demo without outputs
