"""Messages to a thread and the turns that take them: each once to each agent, in order, whatever is killed."""

from __future__ import annotations

import os
import re
import signal
import threading
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Archive, CompiledGraph, Graph, Messages, Run, Thread, agents
from dspyer.__main__ import main
from dspyer.stores import Memory, SQLite, Store
from dspyer.testing import Prompt, ScriptedLM
from tests.agents.scripts import submit, turn
from tests.budget import deep
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
        who = "writer" if "`answer`" in prompt.instructions else "scout"
        seen = len({*re.findall(r"seen (\d+)", str([one.content for one in prompt.turns]))})
        for _ in range(2):
            if seen < sends:
                thread.send(f"{who} {seen}", by="ada", key=f"{who} {seen}")
        if seen < 2:
            return turn(("look", {"tag": str(seen)}))
        return submit(found="f") if who == "scout" else submit(answer="end")

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
    assert [len(found) for found in expected.values()] == ([2] if made is of_one else [2, 4])
    for at in count(1, 1 if deep or made is of_one else 2):  # of two agents after every second write
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


def test_two_processes_send_while_one_runs_and_one_resumes(tmp_path: Path) -> None:
    program = of_one(SQLite(tmp_path / "runs.db"))
    thread = program.thread("t")
    play(thread, sends=0)

    def work(name: str) -> None:
        for number in range(5):
            thread.send(f"{name} {number}", key=f"{name} {number}")

    def run() -> None:
        with dspy.context(lm=ScriptedLM(answers(thread, 0))):
            thread.run({"question": "again"}, on_conflict="wait")
        os._exit(0)

    children = [fork(partial(work, name)) for name in "ab"]
    children += [fork(run), fork(run)]
    assert [end_of(child) for child in children] == [0] * 4
    if thread.unread:
        with dspy.context(lm=ScriptedLM(answers(thread, 0))):
            thread.run({"question": "last"})
    found = taken(thread, "messages")
    assert [number for number, _ in found] == list(range(10))
    assert {text for _, text in found} == {f"{name} {number}" for name in "ab" for number in range(5)}
    assert thread.unread == ()


class Task(BaseModel):
    question: str = ""
    answer: str = ""


def test_each_run_of_a_node_takes_what_the_runs_before_have_not(tmp_path: Path) -> None:
    """The conversation of the node does not last, and what it has read does; also over a run that is abandoned."""
    graph = Graph(Task).add_node("writer", agents.tool_loop("question -> answer", [look]))
    store = SQLite(tmp_path / "runs.db")
    program = graph.add_path(START, "writer", END).compile(store=store)
    thread, shown = program.thread("t"), list[str]()

    def answer(prompt: Prompt) -> dict[str, Any]:
        shown.append(" ".join(re.findall(r"say \d", str([one.content for one in prompt.turns]))))
        if "fail" in prompt.inputs.get("question", ""):
            raise RuntimeError("no answer")
        return submit(answer="end")

    def run(question: str, **options: Any) -> Run:
        with dspy.context(lm=ScriptedLM(answer)):
            return thread.run({"question": question}, **options)

    run("one")
    thread.send("say 1")
    assert [sent.open for sent in thread.unread] == [False]
    assert run("fail").status == "failed"
    thread.send("say 2")
    assert [(sent.text, sent.open) for sent in thread.unread] == [("say 2", True)]
    run("two", if_open="abandon")
    run("three")
    thread.send("say 3", to="writer")
    run("four")
    assert [text for text in shown if text] == ["say 1", "say 2", "say 3"]
    taken_by = {
        one["text"]: one["step"] for info in Archive(store).runs() for one in thread.record(info.run_id).messages()
    }
    assert {text: step.partition("/")[0] for text, step in taken_by.items()} == {
        "say 1": "t.2",
        "say 2": "t.3",
        "say 3": "t.5",
    }


def test_one_of_two_calls_at_once_of_a_sub_agent_gets_a_message() -> None:
    scout = agents.tool(agents.tool_loop("task -> found", [look]), name="scout", desc="Looks around.")
    program = agents.tool_loop("question -> answer", [scout]).compile(store=Memory())
    thread, both, shown = program.thread("t"), threading.Barrier(2, timeout=20), list[str]()

    def answer(prompt: Prompt) -> dict[str, Any]:
        text = str([one.content for one in prompt.turns])
        if "`found`" in prompt.instructions:
            if "seen a" not in text:
                thread.send("say 1", to="scout", key="m-1")
                both.wait()
                return turn(("look", {"tag": "a"}))
            both.wait()  # both turns have begun, and neither is committed
            shown.append(" ".join(re.findall(r"say \d", text)))
            return submit(found="f")
        return next(outer)

    done = submit(answer="end")
    outer = iter([turn(("scout", {"task": "a"}), ("scout", {"task": "b"})), done])
    with dspy.context(lm=ScriptedLM(answer)):
        assert thread.run({"question": "q"}).status == "completed"
    assert sorted(shown) == ["", "say 1"]
    assert thread.unread == ()


def test_a_rerun_and_a_copy(tmp_path: Path) -> None:
    """What was taken after the commit to which a rerun goes back is taken again; a copy has an inbox of its own."""
    program = of_one(SQLite(tmp_path / "runs.db"))
    thread = program.thread("t")
    play(thread)
    copy = thread.copy("c")
    copy.send("for the copy")
    with dspy.context(lm=ScriptedLM(answers(copy, 0))):
        copy.run({"question": "again"})
    assert taken(copy, "messages") == [*taken(thread, "messages"), (0, "for the copy")]
    with dspy.context(lm=ScriptedLM(answers(thread, 0))):
        thread.rerun(0)
    assert taken(thread, "messages") == [(0, "writer 0"), (1, "writer 1")]


def test_records_and_commands_list_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.db"
    program = of_one(SQLite(path))
    thread = program.thread("t")
    play(thread, sends=1)
    thread.send("Later.", by="bob")
    (one,) = thread.record().messages()
    assert (one["number"], one["text"], one["by"]) == (0, "writer 0", "ada")
    steps = {step["id"]: step["messages"] for step in thread.record().to_dict()["steps"] if step["messages"]}
    assert steps == {one["step"]: [{name: one[name] for name in ("number", "text", "by", "at")}]}
    with pytest.raises(SystemExit):
        main(["show", "t", "--store", str(path)])
    shown = capsys.readouterr().out
    assert f"by ada, taken by {one['step']}: writer 0" in shown
    assert "by bob, unread: Later." in shown


def test_what_is_redacted_is_in_no_list_of_messages(tmp_path: Path) -> None:
    program = agents.tool_loop("question -> answer", [look]).compile(store=Memory(), redact=["messages"])
    thread = program.thread("t")
    play(thread, sends=1)
    assert "writer 0" not in str(thread.record().to_dict())
