"""`tool_loop`: what it commits, how it ends, and how the next run continues."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError

from dspyer import agents
from dspyer.errors import AgentError
from dspyer.testing import ScriptedLM


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def turn(*calls: tuple[str, dict[str, Any]], thought: str = "so") -> dict[str, Any]:
    listed = [{"name": name, "args": args} for name, args in calls]
    return {"next_thought": thought, "tool_calls": {"tool_calls": listed}}


ADD = turn(("add", {"a": 1, "b": 2}))
SUBMIT = turn(("submit", {"answer": 3}))


def loop(**options: Any) -> Any:
    return agents.tool_loop("question -> answer: int", [add], **options)


def test_each_turn_and_each_result_is_a_commit() -> None:
    with ScriptedLM([turn(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), ("nothing", {})), SUBMIT]):
        run = loop().compile().run({"question": "1 + 2?"})
    assert run.state["answer"] == 3
    nodes = ["START", "begin", "react", "add", "add", "join:settle", "settle", "react", "settle"]
    assert [commit.node for commit in run.commits] == nodes
    results = [message for message in run.state["messages"] if message["role"] == "tool"]
    assert [(one["name"], one["tool_call_id"], one["error"]) for one in results] == [
        ("add", "call_0_0", False),
        ("add", "call_0_1", False),
        ("nothing", "call_0_2", True),
        ("submit", "call_1_0", False),
    ]


def test_the_requests_are_those_of_react_v2() -> None:
    with ScriptedLM([ADD, SUBMIT]) as ours:
        loop().compile()(question="1 + 2?")
    with ScriptedLM([ADD, SUBMIT]) as theirs:
        dspy.ReActV2("question -> answer: int", [add])(question="1 + 2?")
    assert [call.messages for call in ours.calls] == [call.messages for call in theirs.calls]


def test_no_trace_and_no_saved_file_holds_a_tool() -> None:
    program = loop().compile()
    with ScriptedLM([ADD, SUBMIT]):
        run = program.run({"question": "1 + 2?"})
    assert [sorted(inputs) for _, inputs, _ in run.trace] == [["history", "question"], ["history"]]
    assert "add" not in json.dumps(program.dump_state()["react"]["demos"])


@pytest.mark.parametrize(
    ("answers", "options", "reason", "turns"),
    [
        ([ADD, ADD], {"max_turns": 1}, "max_turns", 1),
        ([turn(), ADD], {}, "empty_tool_calls", 0),
        ([ADD, "x", "x", ADD], {}, "parse_error", 1),
        ([turn(), turn(("submit", {}))], {}, "empty_tool_calls", 0),
    ],
)
def test_a_run_without_a_final_output_fails(answers: Any, options: Any, reason: str, turns: int) -> None:
    with ScriptedLM(answers):
        run = loop(**options).compile().run({"question": "1 + 2?"})
    assert run.status == "failed"
    assert isinstance(run.error, AgentError)
    assert (run.error.reason, run.error.turns) == (reason, turns)
    assert isinstance(run.error.__cause__, AdapterParseError) == (reason == "parse_error")


def test_the_next_run_continues_the_conversation() -> None:
    thread = loop().compile(store=":memory:").thread("t")
    with ScriptedLM([ADD, SUBMIT]):
        thread.run({"question": "1 + 2?"})
    with ScriptedLM([turn(("submit", {"answer": 7}))]) as lm:
        run = thread.run({"question": "And 3 + 4?"})
    assert run.state["answer"] == 7
    assert "1 + 2?" in str(lm.calls[0].messages)
    ids = [call["id"] for message in run.state["messages"] for call in message.get("tool_calls", ())]
    assert ids == ["call_0_0", "call_1_0", "call_2_0"]
