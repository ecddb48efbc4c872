"""`check=` of an agent: its six forms, what they read, and what optimizers see of a refused output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from pydantic import BaseModel, Field

from dspyer import Command, agents
from dspyer.errors import CheckError, NodeOutputError
from dspyer.testing import Asks, ScriptedLM, stub
from tests.agents.test_loop import add, turn
from tests.rows import each

TEXT = "it is a draft"


def submit(answer: str) -> dict[str, Any]:
    return turn(("submit", {"answer": answer}))


def found(answer: str) -> list[str]:
    return [TEXT] if "draft" in answer else []


async def found_later(answer: str) -> list[str]:
    return found(answer)


class Final(BaseModel):
    answer: str = Field(max_length=5)


Judge = dspy.Signature("question, answer -> problems: list[str]")


def judge() -> Any:
    return agents.tool_loop("question, answer -> problems: list[str]", [add], name="Judge")


IN_TURNS = [turn(("submit", {"problems": [TEXT]})), turn(("submit", {"problems": []}))]
FORMS: dict[str, tuple[Callable[[], Any], list[tuple[Any, Any]], str]] = {
    "function": (lambda: found, [], TEXT),
    "async function": (lambda: found_later, [], TEXT),
    "model": (lambda: Final, [], "answer: String should have at most 5 characters"),
    "module": (lambda: dspy.Predict(Judge), [(Asks("problems"), [{"problems": [TEXT]}, {"problems": []}])], TEXT),
    "program": (judge, [(lambda prompt: "`problems` from" in prompt.turns[0].content, IN_TURNS)], TEXT),
    "itself": (lambda: True, [(Asks("problems"), [{"problems": [TEXT]}, {"problems": []}])], TEXT),
    "mode": (lambda: "react", [(Asks("problems"), [{"problems": [TEXT]}, {"problems": []}])], TEXT),
}


@pytest.mark.parametrize("mode", ["sync", "async"])
@each("form", FORMS, items=2)
def test_each_form_of_a_check(form: str, mode: str) -> None:
    make, answers, text = FORMS[form]
    program = agents.tool_loop("question -> answer", [add], check=make()).compile()
    script = [*answers, (lambda prompt: True, [submit("draft 1"), submit("final")])]
    with ScriptedLM(script):
        run = program.run({"question": "?"}) if mode == "sync" else asyncio.run(program.arun({"question": "?"}))
    assert (run.status, run.error) == ("completed", None)
    assert (run.state["answer"], run.state["problems"]) == ("final", [])
    refusal = next(message for message in run.state["messages"] if message.get("name") == "check")
    assert refusal["role"] == "user"
    assert f"\n- {text}\n" in refusal["content"]
    status = [step.status for step in run.trace_steps if step.node == "react"]
    assert status == ["rejected", "used"]


def test_a_mode_that_checks_itself_sees_the_conversation_with_its_own_instructions() -> None:
    task = dspy.Signature("question -> answer", "Answer like a pirate.")
    program = agents.tool_loop(task, [add], check="react").compile()
    with ScriptedLM([turn(("add", {"a": 1, "b": 2})), submit("3"), {"problems": []}]) as lm:
        run = program.run({"question": "1 + 2?"})
    asked = lm.calls[-1].prompt
    assert "Answer like a pirate." in asked.turns[0].content
    assert asked.inputs["answer"] == "3"
    assert 'add({"a": 1, "b": 2})' in asked.inputs["conversation"]
    # Every step of the trace is of a predictor of the program: GRPO fails at any other.
    assert [step[0] is program.react for step in run.trace] == [True, True]
    assert [(step.node, step.status) for step in run.trace_steps] == [
        ("react", "used"),
        ("react", "used"),
        ("check", "lost"),
    ]


class Planned(BaseModel):
    plan: list[str] = []


def report_plan(steps: list[str]) -> Command[Any]:
    """Reports the plan."""
    return Command(update={"plan": steps}, goto="work", result="noted")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_mode_that_checks_itself_fills_in_its_instructions(mode: str) -> None:
    modes = {
        "plan": agents.Mode("Plan.", [report_plan], to=["work"]),
        "work": agents.Mode("Carry out {plan}."),
    }
    program = agents.modes("question -> answer", modes, schema=Planned, check="work").compile()
    with ScriptedLM([turn(("report_plan", {"steps": ["count"]})), submit("3"), {"problems": []}]) as lm:
        run = program.run({"question": "?"}) if mode == "sync" else asyncio.run(program.arun({"question": "?"}))
    assert (run.status, run.error) == ("completed", None)
    assert 'Carry out ["count"].' in lm.calls[-1].prompt.turns[0].content


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_mode_that_submitted_is_asked_also_if_its_turn_has_handed_off(mode: str) -> None:
    modes = {
        "plan": agents.Mode("Plan.", to=["work"]),
        "work": agents.Mode("Carry it out like a pirate.", to=["plan"]),
    }
    program = agents.modes("question -> answer", modes, check=True).compile()
    work = turn(("submit", {"answer": "draft"}), ("to_plan", {}))
    script = [turn(("to_work", {})), work, {"problems": [TEXT]}, submit("3"), {"problems": []}]
    with ScriptedLM(script) as lm:
        run = program.run({"question": "?"}) if mode == "sync" else asyncio.run(program.arun({"question": "?"}))
    assert (run.status, run.error, run.state["answer"]) == ("completed", None, "3")
    asked = [call.prompt.turns[0].content for call in lm.calls if Asks("problems")(call.prompt)]
    assert ["pirate" in text for text in asked] == [True, False]


def test_no_demo_is_made_of_a_refused_output_or_of_a_question_for_problems() -> None:
    program = agents.tool_loop("question -> answer", [add], check="react").compile()
    tuner = dspy.BootstrapFewShot(lambda example, found, trace=None: found.answer == "final", max_bootstrapped_demos=4)
    answers = [submit("draft"), {"problems": [TEXT]}, submit("final"), {"problems": []}]
    with ScriptedLM(answers):
        tuned = tuner.compile(program, trainset=[dspy.Example(question="?").with_inputs("question")])
    assert [demo["tool_calls"].tool_calls[0].args for demo in tuned.react.demos] == [{"answer": "final"}]


STUBS: dict[str, Any] = {
    "problems": {"problems": []},
    "a function": lambda answer: [],
    "a function that refuses one": lambda answer: [TEXT] if answer == "draft" else [],
}


@each("case", STUBS)
def test_a_stub_stands_for_the_check(case: str) -> None:
    refuses = "refuses" in case
    program = agents.tool_loop("question -> answer", [add], check=dspy.Predict(Judge)).compile()
    with ScriptedLM([submit("draft"), submit("final")] if refuses else [submit("draft")]):
        run = stub(program, check=STUBS[case]).run({"question": "?"})
    assert (run.status, run.state["answer"]) == ("completed", "final" if refuses else "draft")


def test_a_check_may_read_the_conversation() -> None:
    def used_a_tool(messages: list[dict[str, Any]]) -> list[str]:
        return [] if any(message.get("name") == "add" for message in messages) else ["no tool was used"]

    program = agents.tool_loop("question -> answer", [add], check=used_a_tool).compile()
    with ScriptedLM([submit("3"), turn(("add", {"a": 1, "b": 2}), ("submit", {"answer": "3"}))]):
        assert program(question="1 + 2?").answer == "3"


def test_the_outputs_are_unset_while_the_agent_corrects_them() -> None:
    program = agents.tool_loop("question -> answer", [add], check=found).compile(store=":memory:")
    thread = program.thread("t")
    with ScriptedLM([submit("draft"), submit("final")]):
        thread.run({"question": "?"})
    check = next(commit for commit in thread.history() if commit.node == "check")
    assert check.version is not None
    assert "answer" not in thread.at(check.version)
    assert thread.state["answer"] == "final"


def test_a_check_that_gives_no_list_fails() -> None:
    program = agents.tool_loop("question -> answer", [add], check=lambda answer: "a text").compile()
    with ScriptedLM([submit("3")]):
        run = program.run({"question": "?"})
    assert isinstance(run.error, NodeOutputError)


def test_without_corrections_the_check_decides_at_once() -> None:
    program = agents.tool_loop("question -> answer", [add], check=found, max_fixes=0).compile()
    with ScriptedLM([submit("draft")]):
        run = program.run({"question": "?"})
    assert isinstance(run.error, CheckError)
    assert run.error.problems == (TEXT,)
    assert [step.status for step in run.trace_steps] == ["rejected"]
