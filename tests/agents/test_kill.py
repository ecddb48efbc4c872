"""An agent with parallel calls and a sub-agent, killed after any write and resumed: no finished call is repeated."""

from __future__ import annotations

import os
import signal
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import Context, Run, Thread, agents, to_chat
from dspyer.testing import Prompt, ScriptedLM
from tests.agents.scripts import submit, turn
from tests.log.equality import finished
from tests.log.failing import FailingSQLite, kill
from tests.log.processes import end_of, fork

CALLS = turn(("look", {"tag": "a"}), ("mail", {"tag": "m"}), ("research", {"topic": "t", "session": "s"}))


class Desk:
    """Three parallel calls, of which one is an effect and one a sub-agent. What is called is noted in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = FailingSQLite(path / "runs.db")
        self.effects = path / "effects"
        self.effects.mkdir()
        self.notes = -1
        mail = agents.tool(self.mail, effect=True)
        research = agents.tool(agents.tool_loop("topic -> found", [self.look]), name="research", desc="Looks.")
        self.program = agents.tool_loop("question -> answer", [self.look, mail, research]).compile(store=self.store)

    def look(self, tag: str, ctx: Context) -> str:
        """Looks."""
        self.note(f"look {ctx.execution.partition('/')[2]}")
        return f"seen {tag}"

    def mail(self, tag: str, key: str) -> str:
        """Sends a mail, as a server that recognizes keys does."""
        (self.effects / key.replace("/", "_")).touch()
        return f"sent {tag}"

    def answer(self, prompt: Prompt) -> dict[str, Any]:
        """The answer of the model, from the prompt alone: another process gives the same."""
        agent = "inner" if "topic" in prompt.inputs else "outer"
        number = int("seen" in prompt.inputs.get("tool_call_results", ""))
        self.note(f"lm {agent} {number}")
        if agent == "inner":
            return submit(found="seen") if number else turn(("look", {"tag": "i"}))
        return submit(answer="end") if number else CALLS

    def note_in(self, name: str) -> Path:
        """Notes are in this file from now on."""
        path = self.path / name
        self.notes = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        return path

    def note(self, what: str) -> None:
        os.write(self.notes, f"{what}\n".encode())

    def run(self, thread: Thread) -> Run:
        with dspy.context(lm=ScriptedLM(self.answer)):
            return thread.run({"question": "q"}) if thread.status == "new" else thread.resume()


def counted(path: Path) -> Counter[str]:
    return Counter(path.read_text().splitlines())


@pytest.mark.slow("a process is killed after each of the writes of a run, and the run resumed from the file")
def test_kill_9_after_every_write(tmp_path: Path) -> None:
    """And before the first one: before any other is after the one before it."""
    desk = Desk(tmp_path)
    noted = desk.note_in("whole")
    whole = desk.run(desk.program.thread("whole"))
    undisturbed = counted(noted)
    assert undisturbed.total() == 2 + 2 + 2
    looked = {call.removeprefix("look ") for call in undisturbed if call.startswith("look ")}
    assert looked < finished(desk.store, "whole")
    for at in count(0):
        first, thread = desk.note_in(f"first {at}"), desk.program.thread(f"t {at}")

        def child(thread: Thread = thread, at: int = at) -> None:
            desk.store.arm(kill, max(at, 1), after=at > 0)
            desk.run(thread)

        ended = end_of(fork(child))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        done = finished(desk.store, thread.name)
        said = thread.state.get("messages", []) if thread.status != "new" else []
        turns = sum(message["role"] == "assistant" for message in said)
        second = desk.note_in(f"second {at}")
        run = desk.run(thread) if thread.status != "completed" else None
        assert thread.state["answer"] == "end"
        assert to_chat(thread.state["messages"]) == to_chat(whole.state["messages"])
        before, again = counted(first), counted(second)
        assert before <= undisturbed
        assert again <= undisturbed
        assert before | again == undisturbed
        assert not [call for call in again if call.partition(" ")[2] in done], "a finished call is not made again"
        assert not [number for number in range(turns) if again[f"lm outer {number}"]], "a turn is not taken again"
        assert len(list(desk.effects.iterdir())) == at + 2, "each thread has sent its mail once"
        assert run is None or run.status == "completed"
    assert at > 12
