"""`if_open="amend"`: what the user writes while a call waits to be approved."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Breakpoints, Context, Graph, Run, Thread, agents, to_chat
from dspyer.errors import ConcurrentRunError, InputError, OpenRunError, ThreadError
from dspyer.stores import Memory, SQLite, Store
from dspyer.testing import ScriptedLM
from tests.agents.kit import SUBMIT, modes, results, turn
from tests.agents.recording import RecordingLM
from tests.log.failing import Crash, FailingMemory, crash
from tests.log.processes import end_of, fork
from tests.rows import each

AGAIN = "Never mind, send a new one."
REFUSED = "The call was refused: the user has written again"


class Notes(BaseModel):
    note: str = ""


class Desk:
    """A thread of an agent with a tool that needs approval, one that does not, and one that asks the user."""

    def __init__(self, store: Store | str = ":memory:", signature: str = "question -> answer", **options: Any) -> None:
        self.calls: list[str] = []
        tools = [self.look, agents.tool(self.refund, approve=True, effect=True), agents.ask_user]
        graph = agents.tool_loop(signature, tools, schema=Notes, **options)
        self.thread: Thread = graph.compile(store=store).thread("t")

    def look(self, order: str) -> str:
        """Looks up an order."""
        self.calls.append(f"look {order}")
        return f"order {order}"

    def refund(self, order: str) -> str:
        """Refunds an order."""
        self.calls.append(f"refund {order}")
        return "paid"


REFUND = ("refund", {"order": "A-17"})
LOOK = ("look", {"order": "A-17"})
ASK = ("ask_user", {"question": "Which one?"})


def run_of(thread: Thread, mode: str, script: Any, text: str = AGAIN, **options: Any) -> Run:
    """A run of a thread whose model follows a script, sync or async, or by its events."""
    inputs = {"question": text}
    with dspy.context(lm=ScriptedLM(script)):
        if mode == "sync":
            return thread.run(inputs, **options)
        if mode == "async":
            return asyncio.run(thread.arun(inputs, **options))
        events = thread.stream(inputs, **options)
        list(events)
        assert events.run is not None
        return events.run


def asked(desk: Desk, *calls: tuple[str, dict[str, Any]], mode: str = "sync") -> Run:
    run = run_of(desk.thread, mode, [turn(*calls)], "Refund A-17.")
    assert run.status == "interrupted", run.error
    return run


@pytest.mark.parametrize("mode", ["sync", "async", "stream"])
def test_the_open_calls_are_refused_and_the_text_follows_the_results_of_the_turn(mode: str) -> None:
    desk = Desk()
    first = asked(desk, LOOK, REFUND, mode="sync" if mode == "stream" else mode)
    run = run_of(desk.thread, mode, [SUBMIT], if_open="amend")
    assert (run.status, desk.calls) == ("completed", ["look A-17"])
    assert run.run_id == first.run_id
    assert results(run) == [("look", "order A-17", False), ("refund", REFUSED, True)]
    roles = [message["role"] for message in run.state["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "user", "assistant", "tool"]
    assert run.state["messages"][4]["content"] == AGAIN
    assert [message["role"] for message in to_chat(run.state["messages"])] == roles
    assert run_of(desk.thread, "sync", [SUBMIT], if_open="amend").run_id != run.run_id, "nothing is open"


@modes
def test_ask_user_gets_the_text_as_its_answer(mode: str) -> None:
    desk = Desk()
    asked(desk, ASK, REFUND, mode=mode)
    run = run_of(desk.thread, mode, [SUBMIT], if_open="amend")
    assert results(run) == [("ask_user", AGAIN, False), ("refund", REFUSED, True)]
    assert run.state["messages"][4]["content"] == AGAIN


def test_the_model_is_shown_the_refusal_and_the_text() -> None:
    desk = Desk()
    asked(desk, REFUND)
    with dspy.context(lm=(lm := RecordingLM([SUBMIT]))):
        desk.thread.run({"question": AGAIN}, if_open="amend")
    (request,) = lm.requests
    assert request.index("Refund A-17.") < request.index(REFUSED) < request.index(AGAIN)


def test_it_is_the_same_run_whose_turns_and_answers_count_on() -> None:
    desk = Desk(max_turns=1)
    asked(desk, REFUND)
    run = run_of(desk.thread, "sync", [SUBMIT], if_open="amend")
    assert run.state["messages"][-2]["forced"] == "max_turns", "the turn before was the last ordinary one"


def test_outputs_that_were_submitted_beside_an_open_call_end_no_run() -> None:
    """Who has written again gets an answer."""
    desk = Desk()
    asked(desk, REFUND, ("submit", {"answer": "paid"}))
    run = run_of(desk.thread, "sync", [SUBMIT], if_open="amend")
    assert run.state["answer"] == "done"


def with_helper(desk: Desk) -> Thread:
    """A thread of an agent with a sub-agent that has the tool that needs approval."""
    inner = agents.tool_loop("topic -> found", [agents.tool(desk.refund, approve=True), agents.ask_user])
    helper = agents.tool(inner, name="help", desc="Helps.")
    return agents.tool_loop("question -> answer", [helper, desk.look]).compile(store=Memory()).thread("t")


def test_a_turn_that_waits_again_keeps_all_that_was_written() -> None:
    """A sub-agent asks for another approval, in the same turn of the agent that the user talks to."""
    desk = Desk()
    thread = with_helper(desk)
    run = run_of(thread, "sync", [turn(("help", {"topic": "refund"})), turn(REFUND)])
    assert run.status == "interrupted"
    run = run_of(thread, "sync", [turn(REFUND)], "one", if_open="amend")
    assert run.status == "interrupted"
    script = [turn(("submit", {"found": "nothing"})), SUBMIT]
    run = run_of(thread, "sync", script, "two", if_open="amend")
    assert (run.status, desk.calls) == ("completed", [])
    texts = [message["content"] for message in run.state["messages"] if message["role"] == "user"]
    assert texts == [AGAIN, "one", "two"]
    (session,) = run.state["sessions"].values()
    assert [message["value"] for message in session if message.get("name") == "refund"] == [REFUSED] * 2
    assert "one" not in [message["content"] for message in session]


@modes
def test_an_approval_in_a_sub_agent_is_refused_there(mode: str) -> None:
    desk = Desk()
    thread = with_helper(desk)
    script = [turn(("help", {"topic": "refund"}), LOOK), turn(REFUND, ASK)]
    assert run_of(thread, mode, script).status == "interrupted"
    run = run_of(thread, mode, [turn(("submit", {"found": "nothing"})), SUBMIT], "Wait.", if_open="amend")
    assert (run.status, desk.calls) == ("completed", ["look A-17"])
    (session,) = run.state["sessions"].values()
    values = [message["value"] for message in session if message["role"] == "tool"]
    assert values[:2] == [REFUSED, "Wait."]
    assert run.state["messages"][4]["content"] == "Wait."


def test_of_several_inputs_the_text_names_each() -> None:
    desk = Desk(signature="question, policy: list[str] -> answer")
    with dspy.context(lm=ScriptedLM([turn(REFUND)])):
        desk.thread.run({"question": "Refund A-17.", "policy": ["none"]})
    with dspy.context(lm=ScriptedLM([SUBMIT])):
        run = desk.thread.run({"question": AGAIN, "policy": ["all"]}, if_open="amend")
    assert run.state["messages"][3]["content"] == f'question: {AGAIN}\npolicy: ["all"]'


# --- what cannot be amended: refused before anything is written


def asks(ctx: Context) -> str:
    """Asks."""
    return str(ctx.interrupt("sure", "Sure?", bool))


def of_another_kind() -> Thread:
    thread = agents.tool_loop("question -> answer", [asks]).compile(store=FailingMemory()).thread("t")
    run_of(thread, "sync", [turn(("asks", {}))])
    return thread


def of_a_breakpoint() -> Thread:
    graph = agents.tool_loop("question -> answer", [])
    thread = graph.compile(store=FailingMemory(), layers=[Breakpoints(before=["react"])]).thread("t")
    run_of(thread, "sync", [])
    return thread


def failed() -> Thread:
    desk = Desk(FailingMemory(), max_turns=0)
    run_of(desk.thread, "sync", [turn(), turn()])
    return desk.thread


def no_agent() -> Thread:
    graph = Graph(inputs=["question"]).add_interrupt("ask_user", question="Sure?", answer=str, into="ok")
    thread = graph.add_path(START, "ask_user", END).compile(store=FailingMemory()).thread("t")
    thread.run({"question": "a"})
    return thread


def a_nested_agent() -> Thread:
    inner = agents.tool_loop("question -> answer", [agents.tool(Desk().refund, approve=True)])
    graph = Graph(inputs=["question"]).add_node("inner", inner).add_path(START, "inner", END)
    thread = graph.compile(store=FailingMemory()).thread("t")
    run_of(thread, "sync", [turn(REFUND)])
    return thread


def waiting() -> Thread:
    desk = Desk(FailingMemory())
    asked(desk, REFUND)
    return desk.thread


REFUSALS: dict[str, tuple[Callable[[], Thread], dict[str, Any], type[Exception], str]] = {
    "a question of another kind": (of_another_kind, {"question": "b"}, ThreadError, "neither an approval nor"),
    "a breakpoint": (of_a_breakpoint, {"question": "b"}, ThreadError, "neither an approval nor"),
    "a run that failed": (failed, {"question": "b"}, ThreadError, r"does not wait .*thread.resume\(\)"),
    "a program that is no agent": (no_agent, {"question": "b"}, ThreadError, "is not one agent"),
    "an agent in another graph": (a_nested_agent, {"question": "b"}, ThreadError, "is not one agent"),
    "a missing input": (waiting, {}, InputError, "missing inputs: 'question'"),
    "an unknown input": (waiting, {"question": "b", "answers": {}}, InputError, "has no input 'answers'"),
    "an input of another type": (waiting, {"question": 7}, InputError, "question"),
    "a field of the schema": (waiting, {"question": "b", "note": "x"}, InputError, "and not 'note'"),
}


@each("case", REFUSALS)
def test_what_cannot_be_amended_is_refused_before_anything_is_written(case: str) -> None:
    make, inputs, kind, text = REFUSALS[case]
    thread = make()
    store: Any = thread._store
    store.rest()
    before = thread.status, thread.questions
    for call in (thread.run, lambda given, **options: asyncio.run(thread.arun(given, **options))):
        with pytest.raises(kind, match=text):
            call(inputs, if_open="amend")
    assert (store.writes, (thread.status, thread.questions)) == (0, before)


def test_an_open_run_is_refused_with_its_questions() -> None:
    thread = waiting()
    cases: list[dict[str, Any]] = [{}, {"if_open": "refuse"}]
    for options in cases:
        with pytest.raises(OpenRunError, match="waits for answers") as refused:
            thread.run({"question": "b"}, **options)
        assert refused.value.questions == thread.questions
    wrong: Any = "append"
    with pytest.raises(ValueError, match="if_open='append'"):
        thread.run({"question": "b"}, if_open=wrong)


# --- keys, crashes and several processes


def test_a_key_amends_once() -> None:
    desk = Desk()
    run_of(desk.thread, "sync", [turn(REFUND)], "Refund A-17.", key="m-1")
    run = run_of(desk.thread, "sync", [turn(REFUND)], key="m-2", if_open="amend")
    assert run.status == "interrupted"
    again = run_of(desk.thread, "sync", [], key="m-2", if_open="amend")
    assert (again.status, len(again.questions)) == ("interrupted", 1)
    run = run_of(desk.thread, "sync", [SUBMIT], "And now?", key="m-3", if_open="amend")
    assert run.status == "completed"
    for key, text in (("m-3", "And now?"), ("m-2", AGAIN), ("m-1", "Refund A-17.")):
        assert run_of(desk.thread, "sync", [], text, key=key, if_open="amend").status == "completed"
    texts = [message["content"] for message in desk.thread.state["messages"] if message["role"] == "user"]
    assert texts == ["Refund A-17.", AGAIN, "And now?"]
    with pytest.raises(ThreadError, match="other inputs"):
        run_of(desk.thread, "sync", [], "Else", key="m-3", if_open="amend")
    assert desk.calls == []


@pytest.mark.parametrize("key", [None, "m-2"])
def test_a_crash_loses_no_word_and_repeats_no_finished_call(key: str | None) -> None:
    at, ended = 1, False
    while not ended:
        store = FailingMemory()
        desk = Desk(store)
        asked(desk, LOOK, REFUND)
        store.arm(crash, at, after=True)
        try:
            run = run_of(desk.thread, "sync", [SUBMIT], if_open="amend", key=key)
            ended = True
        except Crash:
            store.rest()
            with dspy.context(lm=ScriptedLM([SUBMIT])):
                run = desk.thread.resume() if desk.thread.status != "completed" else desk.thread.run({"question": "x"})
        texts = [message["content"] for message in run.state["messages"] if message["role"] == "user"]
        assert texts[:2] == ["Refund A-17.", AGAIN], at
        assert desk.calls == ["look A-17"]
        at += 1
    assert at > 3


def test_of_two_processes_one_amends(tmp_path: Path) -> None:
    path, refused, called = tmp_path / "runs.db", os.pipe(), os.pipe()
    with SQLite(path) as store:
        asked(Desk(store), REFUND)

    def answer(_: Any) -> Any:
        os.write(called[1], b"1")
        assert select.select([refused[0]], [], [], 60)[0]  # the other process comes while this one works
        return SUBMIT

    def amend(who: str) -> None:
        with SQLite(path) as store, dspy.context(lm=ScriptedLM(answer)):
            try:
                Desk(store).thread.run({"question": f"{who} writes"}, if_open="amend")
            except ConcurrentRunError:
                os.write(refused[1], who.encode())

    children = [fork(partial(amend, who)) for who in "ab"]
    assert [end_of(child) for child in children] == [0, 0]
    loser = os.read(refused[0], 9).decode()
    assert (len(loser), os.read(called[0], 9)) == (1, b"1")
    with SQLite(path) as store:
        texts = [message["content"] for message in Desk(store).thread.state["messages"] if message["role"] == "user"]
    assert texts == ["Refund A-17.", "b writes" if loser == "a" else "a writes"]
