"""`tool_loop`: what it commits, how it ends, and how the next run continues."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError
from pydantic import BaseModel

from dspyer import END, START, Breakpoints, Conversations, Graph, Messages, agents, from_chat
from dspyer.errors import AgentError, StepLimitError
from dspyer.testing import ScriptedLM, no_pauses


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


# --- in graphs


def scripted(prompt: Any) -> dict[str, Any]:
    """Calls a tool in the first turn of a task, and submits in the second one."""
    outputs = re.findall(r"call `submit` with `(\w+)`", prompt.turns[0].content)
    return ADD if "## ]]\n" in prompt.turns[-1].content.split("tools")[0] else turn(("submit", {outputs[0]: 3}))


def two_agents() -> tuple[Graph, Graph]:
    first = agents.tool_loop("question -> answer: int", [add], name="First")
    return first, agents.tool_loop("answer: int -> other: int", [add], name="Second")


def test_agents_in_a_graph_have_conversations_of_their_own() -> None:
    first, second = two_agents()
    graph = Graph().add_node("first", first).add_node("second", second).add_path(START, "first", "second", END)
    with ScriptedLM(scripted) as lm:
        run = graph.compile().run({"question": "1 + 2?"})
    assert run.state.to_dict() == {"question": "1 + 2?", "answer": 3, "other": 3}
    assert [len(call.messages) for call in lm.calls] == [2, 5, 2, 5]


def test_agents_run_side_by_side() -> None:
    first = agents.tool_loop("question -> answer: int", [add], name="First")
    third = agents.tool_loop("question -> third: int", [add], name="Third")
    graph = Graph().add_node("first", first).add_node("third", third).add_edge(START, ["first", "third"])
    graph.add_node("end", lambda answer, third: {"sum": answer + third}).add_edge(["first", "third"], "end")
    with ScriptedLM(scripted):
        assert graph.add_edge("end", END).compile()(question="1 + 2?").sum == 6


class Chat(BaseModel):
    question: str
    answer: int = 0
    messages: Messages = []


def test_an_agent_shares_a_conversation_that_reads_names() -> None:
    graph = Graph(Chat).add_node("lead", loop(), reads=["question", "messages"]).add_path(START, "lead", END)
    thread = graph.compile(store=":memory:").thread("t")
    with ScriptedLM([SUBMIT, SUBMIT]) as lm:
        thread.run({"question": "1 + 2?"})
        run = thread.run({"question": "And 3 + 4?"})
    assert [message["role"] for message in run.state["messages"]] == ["user", "assistant", "tool"] * 2
    assert "1 + 2?" in str(lm.calls[1].messages)


def test_an_agent_runs_for_each_item_of_a_map() -> None:
    graph = Graph().add_map("each", loop(), over="questions", item="question", into="answers")
    with ScriptedLM(scripted):
        program = graph.add_path(START, "each", END).compile()
        assert asyncio.run(program.acall(questions=["a", "b"])).answers == [3, 3]


def test_a_run_may_be_given_a_conversation() -> None:
    before = from_chat([{"role": "user", "content": "Be brief."}])
    with ScriptedLM([SUBMIT]) as lm:
        loop().compile()(question="1 + 2?", messages=before)
    assert "Be brief." in lm.calls[0].messages[-1]["content"]


class Hinted(dspy.Signature):
    """Answer, with a hint if there is one."""

    question: str = dspy.InputField()
    hint: str | None = dspy.InputField(default=None)
    answer: int = dspy.OutputField()


def test_an_input_that_is_left_out_is_not_shown() -> None:
    with ScriptedLM([SUBMIT]) as lm:
        agents.tool_loop(Hinted, [add]).compile()(question="1 + 2?")
    assert "[[ ## hint ## ]]" not in lm.calls[0].messages[-1]["content"]


# --- optimizers and files


def test_an_optimizer_learns_from_many_turns_and_no_file_holds_a_tool(tmp_path: Any) -> None:
    examples = [dspy.Example(question=text, answer=3).with_inputs("question") for text in ("a", "b")]
    tuner = dspy.BootstrapFewShot(lambda example, found, trace=None: found.answer == example.answer)
    file = tmp_path / "agent.json"
    with ScriptedLM(scripted):
        tuned = tuner.compile(loop().compile(), trainset=examples)
    tuned.save(file)
    demos = tuned.react.demos
    assert len(demos) == 2
    assert not any("tools" in demo for demo in demos)
    assert b"Adds two" not in pickle.dumps(demos)
    assert "Adds two" not in file.read_text()
    reference = dspy.ReActV2("question -> answer: int", [add])
    reference.load(file)
    with ScriptedLM(scripted) as ours:
        tuned(question="c")
    with ScriptedLM(scripted) as theirs:
        reference(question="c")
    assert [call.messages for call in ours.calls] == [call.messages for call in theirs.calls]
    reference.save(file)
    again = loop().compile()
    again.load(file)
    assert len(again.react.demos) == 2


# --- limits and policies


def test_a_message_that_is_inserted_in_a_turn_is_shown_in_the_next_one() -> None:
    thread = loop().compile(store=":memory:", layers=[Breakpoints(before=["settle"])]).thread("t")
    with ScriptedLM([ADD]):
        thread.run({"question": "1 + 2?"})
    thread.update({"messages": {"role": "user", "content": "Hurry up."}})
    with ScriptedLM([SUBMIT]) as lm:
        thread.resume({"before": True})
    assert "Hurry up." in lm.calls[0].messages[-1]["content"]
    middle = next(commit for commit in thread.history() if commit.node == "add")
    other = thread.copy(to="u", at=middle.version, patch={"messages": {"role": "user", "content": "Be kind."}})
    other.resume()
    with ScriptedLM([SUBMIT]) as lm:
        other.resume({"before": True})
    assert "Be kind." in lm.calls[0].messages[-1]["content"]
    assert "Hurry up." not in str(lm.calls[0].messages)


def test_a_message_of_another_assistant_is_no_turn() -> None:
    thread = loop(max_turns=2).compile(store=":memory:", layers=[Breakpoints(before=["settle"])]).thread("t")
    with ScriptedLM([ADD]):
        thread.run({"question": "1 + 2?"})
    thread.update({"messages": {"role": "assistant", "name": "helper", "content": "Let me help."}})
    with ScriptedLM([ADD]) as lm:
        thread.resume({"before": True})
    assert "Let me help." in lm.calls[0].messages[-1]["content"]


def test_a_run_that_gave_no_output_is_resumed_with_another_response() -> None:
    thread = loop().compile(store=":memory:").thread("t")
    with ScriptedLM([ADD, turn(), turn()]):
        assert thread.run({"question": "1 + 2?"}).status == "failed"
    with ScriptedLM([SUBMIT]) as lm:
        assert thread.resume().state["answer"] == 3
    assert len(lm.calls) == 1


def test_the_calls_of_an_abandoned_turn_have_results_that_warn_of_a_repetition() -> None:
    """Of its two calls one was made. The model is told of both, else it would make that one again."""
    thread = loop().compile(store=":memory:", layers=[Breakpoints(before=["add"])]).thread("t")
    with ScriptedLM([turn(("add", {"a": 1, "b": 2}), ("nothing", {}))]):
        assert thread.run({"question": "1 + 2?"}).status == "interrupted"
    with ScriptedLM([turn(("submit", {"answer": 7}))]) as lm:
        run = thread.run({"question": "3 + 4?"}, if_open="abandon")
    assert run.state["answer"] == 7
    results = [message for message in run.state["messages"] if message["role"] == "tool"]
    assert [(one["tool_call_id"], one["error"]) for one in results] == [
        ("call_0_0", True),
        ("call_0_1", True),
        ("call_1_0", False),
    ]
    assert "It may have been made" in results[0]["content"]
    prompt = str(lm.calls[0].messages)
    assert prompt.count("It may have been made") == 2
    assert "3 + 4?" in lm.calls[0].messages[-1]["content"]
    with ScriptedLM([SUBMIT]):
        again = thread.run({"question": "And now?"})
    assert len([one for one in again.state["messages"] if one["role"] == "tool"]) == 4


def test_a_retry_comes_before_the_forced_turn() -> None:
    with no_pauses(), ScriptedLM(["x", "x", SUBMIT]):
        run = loop().compile(retry=2).run({"question": "1 + 2?"})
    assert run.state["answer"] == 3
    assert [len(commit.failed_attempts) for commit in run.commits if commit.node == "react"] == [1]


def test_the_last_steps_of_a_run_are_warned_of() -> None:
    with ScriptedLM([ADD, SUBMIT]) as lm:
        run = loop().compile(max_steps=1000, layers=[Conversations(warn_at=996)]).run({"question": "1 + 2?"})
    warnings = [message["content"] for message in run.state["messages"] if message.get("name") == "dspyer"]
    assert warnings == ["995 steps are left of 1000: come to an end."]
    assert warnings[0] in lm.calls[1].messages[0]["content"]


def test_config_and_lm_are_those_of_the_agent() -> None:
    lm = ScriptedLM([SUBMIT])
    program = loop(lm=lm, config={"temperature": 0.3}).compile()
    assert program(question="1 + 2?").answer == 3
    assert (len(lm.calls), program.react.config) == (1, {"temperature": 0.3})


def test_the_edges_of_an_agent_have_one_order_in_every_process() -> None:
    """Else another process, with other hashes, would refuse to resume a run: the graph would have changed."""
    names = [f"tool_{letter}" for letter in "qwertzuiop"]
    graph = agents.tool_loop("question -> answer: int", [agents.tool(add, name=name) for name in names])
    line = next(line for line in graph.compile().graph.explain().splitlines() if line.strip().startswith("react:"))
    assert line.partition("-> ")[2] == f"{', '.join(names)}, settle"


def test_an_error_of_the_context_is_no_response_that_cannot_be_read() -> None:
    def recent(messages: Any) -> Any:
        raise ValueError("no such message")

    with ScriptedLM([]) as lm:
        run = loop(context=recent).compile().run({"question": "1 + 2?"})
    assert type(run.error) is ValueError
    assert not lm.calls


@pytest.mark.slow("takes more steps than the default of max_steps")
def test_turns_are_bounded_by_max_turns_alone_unless_max_steps_is_given() -> None:
    script = [turn(("nothing", {}))] * 335 + [SUBMIT]  # three steps each
    graph = loop(max_turns=335, context=lambda messages: messages[-2:])
    with ScriptedLM(script):
        assert graph.compile().run({"question": "1 + 2?"}).status == "completed"
    with ScriptedLM(script[:2]):
        assert isinstance(graph.compile(max_steps=5).run({"question": "1 + 2?"}).error, StepLimitError)
