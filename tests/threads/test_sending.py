"""`thread.send`: the inbox of a thread, whatever its run does, in all stores, and what refuses a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import END, START, Archive, CompiledGraph, Graph, Thread, agents
from dspyer.errors import InputError, ThreadError
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.encrypted import Encrypted
from dspyer.stores.postgres import Postgres
from dspyer.testing import ScriptedLM
from tests.agents.scripts import submit
from tests.log.processes import end_of, fork
from tests.rows import each


def agent(store: Store | str = ":memory:") -> CompiledGraph:
    """An agent with another one, which it never asks: what is sent to that stays unread."""
    scout = agents.tool(agents.tool_loop("task -> found", []), name="scout", desc="Looks around.")
    return agents.tool_loop("question -> answer", [scout]).compile(store=store)


def finished(program: CompiledGraph, name: str = "t") -> Thread:
    thread = program.thread(name)
    with ScriptedLM(lambda prompt: submit(answer="done")):
        assert thread.run({"question": "Why?"}).status == "completed"
    return thread


def texts(thread: Thread) -> list[tuple[int, str]]:
    return [(sent.number, sent.text) for sent in thread.unread]


@pytest.fixture(params=["memory", "sqlite", "postgres", "encrypted"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: dict[str, Callable[[], Store]] = {
        "memory": Memory,
        "sqlite": lambda: SQLite(tmp_path / "runs.db"),
        "postgres": lambda: Postgres(request.getfixturevalue("postgres")),
        "encrypted": lambda: Encrypted(SQLite(tmp_path / "secret.db"), Encrypted.new_key()),
    }
    with made[request.param]() as store:
        yield store


def test_messages_have_an_order_and_are_no_run(any_store: Store) -> None:
    thread = finished(agent(any_store))
    listed = [one.to_dict() for one in Archive(any_store).runs()]
    first = thread.send("Leave out Hull.", by="ada", key="m-17")
    assert (first.number, first.by, first.to, first.open) == (0, "ada", None, False)
    assert asyncio.run(thread.asend("Only 2025.")).number == 1
    assert thread.send("Only 2025.").number == 2, "equal texts are two messages"
    assert thread.send("Leave out Hull.", key="m-17").number == 0
    with pytest.raises(InputError, match="message 0 of thread 't', which has another text"):
        thread.send("Leave it in.", key="m-17")
    assert texts(thread) == [(0, "Leave out Hull."), (1, "Only 2025."), (2, "Only 2025.")]
    assert Archive(any_store).thread("t").unread == thread.unread
    assert [one.to_dict() for one in Archive(any_store).runs()] == listed
    assert len(thread.history()) == len(Archive(any_store).thread("t").history())
    assert thread.record().run_id == listed[0]["run_id"]
    assert any_store.threads() == ["t"]
    # The next run has the number that it has without messages.
    assert finished(agent(any_store)).record().steps[0].id.startswith("t.2/")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"text": ""}, "a text that is not empty"),
    ({"text": " \n"}, "a text that is not empty"),
    ({"text": 7}, "a text that is not empty, not 7"),
    ({"text": "ä" * 50_001}, "100,000 bytes, and this one 100,002"),
    ({"text": "x", "to": "writer"}, "to='writer' is no agent"),
    ({"text": "x", "by": None}, "by= is a text"),
    ({"text": "x", "by": "a" * 501}, "by= is a text"),
    ({"text": "x", "key": ""}, "key= is a text"),
]


@each("given, words", REFUSED, ids=lambda value: str(value)[:30])
def test_what_is_refused(given: dict[str, Any], words: str) -> None:
    thread = finished(agent())
    with pytest.raises(InputError, match=words):
        thread.send(**given)
    assert thread.unread == ()


def test_a_thread_that_cannot_read_is_told_nothing() -> None:
    with pytest.raises(ThreadError, match=r"has no run yet: begin with thread\.run"):
        agent().thread("t").send("Hello?")
    plain = Graph().add_node("a", lambda n: {"n": n}, writes=["n"]).add_path(START, "a", END).compile(store=":memory:")
    thread = plain.thread("t")
    thread.run({"n": 1})
    with pytest.raises(ThreadError, match="has no agent that could read a message"):
        thread.send("Hello?")


def test_an_agent_is_named_by_its_nodes() -> None:
    scout = agents.tool(agents.tool_loop("task -> found", []), name="scout", desc="Looks around.")
    graph = Graph().add_node("lead", agents.tool_loop("question -> answer", [scout]))
    graph.add_node("critic", agents.tool_loop("answer -> note", []))
    program = graph.add_path(START, "lead", "critic", END).compile(store=":memory:")
    assert set(program.graph.listeners) == {"lead", "lead/scout", "critic"}
    thread = program.thread("t")
    with ScriptedLM(lambda prompt: submit(answer="done") if "question" in prompt.inputs else submit(note="ok")):
        assert thread.run({"question": "Why?"}).status == "completed"
    assert thread.send("Be brief.", to="lead/scout").to == "lead/scout"
    with pytest.raises(InputError, match=r"Did you mean 'lead/scout'.*Agents: 'lead', 'lead/scout', 'critic'"):
        thread.send("Be brief.", to="lead/scuot")


def test_messages_end_with_their_thread(any_store: Store) -> None:
    program = agent(any_store)
    thread = finished(program)
    thread.send("Leave out Hull.", key="m-17")
    copy = thread.copy("copy")
    assert (copy.unread, copy.send("Mine.").number) == ((), 0)
    thread.delete()
    assert texts(copy) == [(0, "Mine.")]
    again = finished(program)
    assert again.unread == ()
    assert again.send("Another text.", key="m-17").number == 0
    copy.delete()
    again.delete()
    assert any_store.delete().runs == 0, "nothing was left behind"


def test_prune_keeps_what_is_unread(any_store: Store) -> None:
    thread = finished(agent(any_store))
    thread.send("Leave out Hull.", to="scout", key="m-17")
    finished(agent(any_store))
    assert thread.prune(before="t.2/trunk:0").rows
    any_store.delete()  # what no thread reaches
    assert texts(thread) == [(0, "Leave out Hull.")]
    assert thread.send("Leave out Hull.", to="scout", key="m-17").number == 0


def test_an_export_has_the_messages(any_store: Store, tmp_path: Path) -> None:
    thread = finished(agent(any_store))
    thread.send("x" * 20_000, by="ada", key="m-17", to="scout")
    thread.export(tmp_path / "t.jsonl")
    for program in (agent(any_store), agent(SQLite(tmp_path / "other.db"))):
        loaded = program.thread("loaded")
        loaded.load(tmp_path / "t.jsonl")
        assert loaded.unread == thread.unread
        assert loaded.send("x" * 20_000, key="m-17", to="scout").number == 0
        assert loaded.send("More.").number == 1
        assert finished(program, "loaded").record().steps[0].id.startswith("loaded.2/")
    assert texts(thread) == [(0, "x" * 20_000)]


def test_texts_are_encrypted(tmp_path: Path) -> None:
    store = Encrypted(SQLite(tmp_path / "secret.db"), Encrypted.new_key())
    finished(agent(store)).send("Leave out Hull.", by="ada lovelace", key="letter 17")
    store.close()
    written = b"".join([file.read_bytes() for file in tmp_path.iterdir()])
    with SQLite(tmp_path / "secret.db") as plain:
        rows = [row for run in plain.runs("t") for row in plain.rows(run.id)]
    shown = repr([row.header for row in rows]).encode() + written
    assert not [word for word in (b"Hull", b"ada lovelace", b"letter 17") if word in shown]


def test_two_processes_send_at_once(tmp_path: Path) -> None:
    program = agent(SQLite(tmp_path / "runs.db"))
    thread = finished(program)

    def work(name: str) -> None:
        for number in range(20):
            program.thread("t").send(f"{name} {number}", key=f"{name} {number}")
            program.thread("t").send(f"{name} {number}", key=f"{name} {number}")

    children = [fork(partial(work, name)) for name in "ab"]
    assert [end_of(child) for child in children] == [0, 0]
    sent = thread.unread
    assert [one.number for one in sent] == list(range(40))
    for name in "ab":
        assert [one.text for one in sent if one.text.startswith(name)] == [f"{name} {n}" for n in range(20)]


def test_a_message_during_a_run_is_for_it(tmp_path: Path) -> None:
    """No lease is needed: the run works, and is not disturbed."""
    opened: list[bool] = []

    def look(tag: str) -> str:
        """Looks."""
        opened.append(program.thread("t").send(f"At {tag}.").open)
        return "seen"

    program = agents.tool_loop("question -> answer", [look]).compile(store=SQLite(tmp_path / "runs.db"))
    turns = iter([{"next_thought": "so", "tool_calls": {"tool_calls": [{"name": "look", "args": {"tag": "a"}}]}}])
    with ScriptedLM(lambda prompt: next(turns, submit(answer="done"))), dspy.context(trace=[]):
        run = program.thread("t").run({"question": "Why?"})
    assert (run.status, opened) == ("completed", [True])


def test_another_process_may_load_an_older_export_meanwhile(tmp_path: Path) -> None:
    """Who has sent before knows the numbers of messages that are gone: the next one follows those that are there."""
    with SQLite(tmp_path / "runs.db") as store, SQLite(tmp_path / "runs.db") as other:
        thread, same = finished(agent(store)), agent(other).thread("t")
        assert thread.send("One.").number == 0
        thread.export(tmp_path / "t.jsonl")
        assert [same.send(text, key=text).number for text in ("Two.", "Three.")] == [1, 2]
        thread.delete()
        thread.load(tmp_path / "t.jsonl")
        assert [same.send("Three.", key="Three.").number for _ in range(2)] == [1, 1]
        assert texts(same) == texts(thread) == [(0, "One."), (1, "Three.")]
        thread.delete()
        thread.load(tmp_path / "t.jsonl")
        assert [thread.send(text, key=text).number for text in ("Four.", "Five.")] == [1, 2]
        assert same.send("Three.", key="Three.").number == 3, "as many as were there, and other ones"
        assert texts(same) == [(0, "One."), (1, "Four."), (2, "Five."), (3, "Three.")]
