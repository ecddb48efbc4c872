"""Messages to a thread and the turns that take them: each once to each agent, in order, whatever is killed."""

from __future__ import annotations

import signal
from itertools import count
from pathlib import Path
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Messages, Run, Thread, agents
from dspyer.stores import Store
from dspyer.testing import Prompt, ScriptedLM
from tests.agents.scripts import submit, turn
from tests.log.failing import FailingSQLite, kill
from tests.log.processes import end_of, fork


def look(tag: str) -> str:
    """Looks."""
    return f"seen {tag}"


class Two(BaseModel):
    question: str = ""
    found: str = ""
    answer: str = ""
    notes: Messages = []
    said: Messages = []


def of_one(store: Store) -> CompiledGraph:
    return agents.tool_loop("question -> answer", [look]).compile(store=store)


def of_two(store: Store) -> CompiledGraph:
    """Two agents in a row, whose conversations the graph has."""
    graph = Graph(Two).add_node(
        "scout",
        agents.tool_loop("question -> found", [look]),
        reads={"question": "question", "messages": "notes"},
        writes={"found": "found", "messages": "notes"},
    )
    graph.add_node(
        "writer",
        agents.tool_loop("found -> answer", [look]),
        reads={"found": "found", "messages": "said"},
        writes={"answer": "answer", "messages": "said"},
    )
    return graph.add_path(START, "scout", "writer", END).compile(store=store)


def answers(thread: Thread, sends: int) -> Any:
    """A model that looks twice and submits; before each answer somebody sends a message, twice, as after a time-out."""

    def answer(prompt: Prompt) -> dict[str, Any]:
        who = "scout" if "question" in prompt.inputs else "writer"
        seen = sum(text.count("seen ") for text in prompt.inputs.values() if isinstance(text, str))
        for _ in range(2):
            if seen < sends:
                thread.send(f"{who} {seen}", by="ada", key=f"{who} {seen}")
        if seen < 2:
            return turn(("look", {"tag": str(seen)}))
        return submit(found="f", answer="end") if who == "scout" else submit(answer="end")

    return answer


def play(thread: Thread, sends: int = 2) -> Run:
    with dspy.context(lm=ScriptedLM(answers(thread, sends))):
        return thread.run({"question": "q"}) if thread.status == "new" else thread.resume()


def taken(thread: Thread, field: str) -> list[tuple[int, str]]:
    return [(one["sent"]["number"], one["content"]) for one in thread.state[field] if "sent" in one]


FIELDS = {of_one: ["messages"], of_two: ["notes", "said"]}


@pytest.mark.slow("a process is killed after each of the writes of a run, and the run resumed from the file")
@pytest.mark.parametrize("made", [of_one, of_two])
def test_kill_9_at_every_write_of_a_run_that_gets_messages(made: Any, tmp_path: Path) -> None:
    store = FailingSQLite(tmp_path / "runs.db")
    program = made(store)
    whole = program.thread("whole")
    assert play(whole).status == "completed"
    expected = {name: taken(whole, name) for name in FIELDS[made]}
    assert [text for _, text in expected[FIELDS[made][0]]][:2] == ["scout 0", "scout 1"]
    for at in count(1):
        thread = program.thread(f"t {at}")

        def child(thread: Thread = thread, at: int = at) -> None:
            store.arm(kill, at, after=True)
            play(thread)

        ended = end_of(fork(child))
        assert ended in (0, -signal.SIGKILL)
        if thread.status != "completed":
            assert play(thread).status == "completed"
        found = {name: taken(thread, name) for name in FIELDS[made]}
        assert found == expected, f"killed after write {at}"
        assert thread.replay() == thread.state
        if ended == 0:
            break
    assert at > 10
