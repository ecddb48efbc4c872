"""Copies and reruns of an agent's thread from the middle of a turn: what is done is kept, what is missing is called."""

from __future__ import annotations

from typing import Any

import dspy

from dspyer import Thread, agents, to_chat
from dspyer.testing import Prompt, ScriptedLM
from tests.agents.parity import ADAPTERS
from tests.agents.scripts import submit, turn
from tests.messages.providers import problems_of


class Desk:
    """An agent that makes three calls at once and then submits; counts what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.turns: list[int] = []
        self.lm = ScriptedLM(self.answer)
        self.program = agents.tool_loop("question -> answer", [self.look]).compile(store=":memory:")

    def look(self, tag: str) -> str:
        """Looks."""
        self.calls.append(tag)
        return f"seen {tag}"

    def answer(self, prompt: Prompt) -> dict[str, Any]:
        found = "seen c" in prompt.inputs.get("tool_call_results", "")
        self.turns.append(int(found))
        return submit(answer=prompt.inputs["question"]) if found else turn(*(("look", {"tag": tag}) for tag in "abc"))

    def taken(self) -> tuple[str, list[int]]:
        """What was called since the last time."""
        calls, turns, self.calls, self.turns = "".join(sorted(self.calls)), self.turns, [], []
        return calls, turns

    def ran(self) -> Thread:
        """A thread with a run."""
        thread = self.program.thread("t")
        assert thread.run({"question": "q"}).status == "completed"
        assert self.taken() == ("abc", [0, 1])
        return thread


LEFT = {  # what a copy at a commit has still to call
    "START": ("abc", [0, 1]),
    "begin": ("abc", [0, 1]),
    "react": ("abc", [1]),
    "look 1": ("bc", [1]),
    "look 2": ("c", [1]),
    "look 3": ("", [1]),
    "join:settle": ("", [1]),
    "settle": ("", [1]),
    "react 2": ("", []),
    "settle 2": ("", []),
}


def test_a_copy_at_any_commit_makes_the_calls_that_are_missing() -> None:
    desk = Desk()
    with desk.lm, dspy.context(adapter=ADAPTERS["chat, native"]()):
        thread = desk.ran()
        whole = to_chat(thread.state["messages"])
        for commit, left in zip(thread.history(), LEFT.values(), strict=True):
            copy = thread.copy(to=f"copy at {commit.id}", at=commit.id)
            assert desk.taken() == ("", [])
            if copy.status != "completed":
                copy.resume()
            assert desk.taken() == left, commit.node
            assert to_chat(copy.state["messages"]) == whole


def test_a_rerun_from_the_middle_of_a_turn_repeats_what_came_after() -> None:
    desk = Desk()
    with desk.lm, dspy.context(adapter=ADAPTERS["chat"]()):
        thread = desk.ran()
        whole = to_chat(thread.state["messages"])
        for version, left in ((3, ("bc", [1])), (1, ("abc", [0, 1]))):
            assert thread.rerun(from_version=version).status == "completed"
            assert desk.taken() == left
            assert to_chat(thread.state["messages"]) == whole


def test_a_message_is_inserted_between_two_turns() -> None:
    """The model is shown it after the results of the turn before, and the chat stays one that providers accept."""
    desk = Desk()
    with desk.lm, dspy.context(adapter=ADAPTERS["chat, native"]()):
        thread = desk.ran()
        settled = next(commit for commit in thread.history() if commit.node == "settle")
        hint = {"role": "user", "content": "Be brief."}
        copy = thread.copy(to="side", at=settled.id, patch={"messages": hint})
        copy.resume()
    assert [message["role"] for message in copy.state["messages"]] == [
        *("user", "assistant", "tool", "tool", "tool", "user"),
        *("assistant", "tool"),
    ]
    assert not problems_of(to_chat(copy.state["messages"]))
    assert any("Be brief." in text for text in desk.lm.calls[-1].prompt.inputs.values())
    assert "Be brief." not in str(to_chat(thread.state["messages"]))
