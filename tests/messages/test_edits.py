"""Edits of a conversation by `thread.update` and `thread.copy(patch=)`: messages are replaced and removed there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import DELETE, END, START, Graph, Messages, Replace, Thread, Updates, agents, reducers, remove, to_chat
from dspyer.errors import InputError, NodeOutputError, ThreadError
from dspyer.testing import ScriptedLM
from tests.agents.kit import SUBMIT, turn
from tests.agents.parity import ADAPTERS
from tests.messages.providers import problems_of


def look(tag: str) -> str:
    """Looks."""
    return f"seen {tag}"


def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


LOOKS = turn(("look", {"tag": "a"}), ("look", {"tag": "b"}))


def finished(store: Any = ":memory:") -> Thread:
    """A thread of an agent with one task: its message, a turn of two calls, their results, `submit` and its result."""
    thread = agents.tool_loop("question -> answer", [look]).compile(store=store).thread("t")
    with ScriptedLM([LOOKS, SUBMIT]):
        thread.run({"question": "q"})
    return thread


def ids(thread: Thread) -> list[str]:
    return [message["id"] for message in thread.state["messages"]]


def contents(thread: Thread) -> list[str]:
    return [message["content"] for message in thread.state["messages"]]


def said(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def result(call: str, content: str = "seen") -> dict[str, Any]:
    return {"role": "tool", "name": "look", "tool_call_id": call, "content": content}


Change = Callable[[list[Any]], Any]

ALLOWED: dict[str, tuple[Change, list[str]]] = {
    "a message is removed": (lambda m: remove(m[0]["id"]), ["so", "seen a", "seen b", "so", '{"answer": "done"}']),
    "the results of its calls go with a turn": (lambda m: remove(m[1]["id"]), ["q", "so", '{"answer": "done"}']),
    "one of several calls goes with its result": (
        lambda m: {**m[1], "tool_calls": m[1]["tool_calls"][1:]},
        ["q", "so", "seen b", "so", '{"answer": "done"}'],
    ),
    "a turn is removed with its results": (
        lambda m: [remove(m[1]["id"]), remove(m[2]["id"]), remove(m[3]["id"])],
        ["q", "so", '{"answer": "done"}'],
    ),
    "a result is replaced": (
        lambda m: [{**result("call_0_1", "hidden"), "id": m[3]["id"]}],
        ["q", "so", "seen a", "hidden", "so", '{"answer": "done"}'],
    ),
    "a message is replaced, one removed and one added": (
        lambda m: Updates({"id": m[0]["id"], **said("Q")}, [remove(m[1]["id"])], said("+")),
        ["Q", "so", '{"answer": "done"}', "+"],
    ),
    "a whole turn is added": (
        lambda m: [{**m[1], "id": None, "tool_calls": [{**m[1]["tool_calls"][0], "id": "c"}]}, result("c")],
        ["q", "so", "seen a", "seen b", "so", '{"answer": "done"}', "so", "seen"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ALLOWED)
def test_messages_are_replaced_and_removed(case: str, tmp_path: Path) -> None:
    change, expected = ALLOWED[case]
    thread = finished(tmp_path / "t.db")
    before, version = thread.state["messages"], thread.history()[-1].version
    given = change([dict(message) for message in before])
    assert thread.update({"messages": given}).node == "update"
    assert contents(thread) == expected
    assert len(set(ids(thread))) == len(expected)
    assert thread.at(version or 0)["messages"] == before  # the log keeps what was there
    assert thread.replay() == thread.state
    assert not problems_of(to_chat(thread.state["messages"]))
    authors = {message["id"]: thread.blame(("messages", message["id"])).node for message in thread.state["messages"]}
    kept = [message for message in before if message in list(thread.state["messages"])]
    assert all(authors[message["id"]] != "update" for message in kept)
    for other in (thread.copy("at the end"), thread.copy("u", at=version, patch={"messages": given})):
        assert contents(other) == expected
    with ScriptedLM([SUBMIT]), dspy.context(adapter=ADAPTERS["chat, native"]()):
        assert thread.run({"question": "more"}).status == "completed"


REFUSED: dict[str, tuple[Change, str]] = {
    "remove an unknown id": (lambda m: remove("t.1/trunk:99/0"), "no message has the id 't.1/trunk:99/0'"),
    "an unknown id": (lambda m: {"id": "x", "role": "user", "content": "."}, "added has no id, it gets one"),
    "remove a result": (lambda m: remove(m[2]["id"]), "'call_0_0' is there without its result"),
    "a result becomes another message": (
        lambda m: {"id": m[2]["id"], "role": "user", "content": "."},
        "'call_0_0' is there without its result",
    ),
    "a result alone": (lambda m: result("call_9_9"), "the result of call 'call_9_9' is there without its call"),
    "a second result": (lambda m: result("call_0_0"), "the result of call 'call_0_0' is there without its call"),
    "a result of a call that is removed": (
        lambda m: [remove(m[1]["id"]), m[2]],
        "the result of call 'call_0_0' is there without its call",
    ),
    "two changes of one message": (lambda m: [remove(m[1]["id"]), m[1]], "is changed twice"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_break_the_conversation_is_refused_before_anything_is_written(case: str) -> None:
    change, message = REFUSED[case]
    thread = finished()
    before, given = thread.history(), change([dict(one) for one in thread.state["messages"]])
    for refused in (
        lambda: thread.update({"messages": given}),
        lambda: thread.update({"messages": given}, as_node="look"),
        lambda: thread.copy("u", patch={"messages": given}),
    ):
        with pytest.raises(ThreadError, match=f"field 'messages' .*{message}.*Nothing was written"):
            refused()
    assert thread.history() == before
    assert thread._program.thread("u").status == "new"  # type: ignore[attr-defined]


@pytest.mark.parametrize("bad", [remove("t.1/trunk:1/0"), [{"role": "user", "content": "."}, remove("x")]])
def test_runs_only_add(bad: Any) -> None:
    class Talk(BaseModel):
        messages: Messages = []
        said: Annotated[list[dict[str, Any]], reducers.add_messages] = []

    for field in ("messages", "said"):

        def say(name: str) -> dict[str, Any]:
            return {name: bad}

        graph = Graph(Talk, inputs=["messages", "said"]).add_node(
            "say", partial(say, field), writes=["messages", "said"]
        )
        program = graph.add_path(START, "say", END).compile(store=":memory:")
        with pytest.raises(NodeOutputError, match=r"remove\(.* is for thread.update"):
            program()
        with pytest.raises(InputError, match=r"remove\(.* is for thread.update"):
            program.thread("t").run({field: bad})
    with pytest.raises(TypeError, match="give the id of a message"):
        remove({"id": "x"})  # type: ignore[arg-type]


def test_a_field_of_add_messages_is_edited_too() -> None:
    class Talk(BaseModel):
        said: Annotated[list[dict[str, Any]], reducers.add_messages] = []

    graph = Graph(Talk).add_node(
        "say", lambda: {"said": [{"role": "user", "content": text} for text in "ab"]}, writes=["said"]
    )
    thread = graph.add_path(START, "say", END).compile(store=":memory:").thread("t")
    thread.run({})
    first, second = [message["id"] for message in thread.state["said"]]
    thread.update({"said": [remove(first), {"id": second, "role": "user", "content": "B"}]})
    assert [message["content"] for message in thread.state["said"]] == ["B"]
    with pytest.raises(ThreadError, match="no message has the id"):
        thread.update({"said": [remove(first)]})


@pytest.mark.parametrize("patch", [DELETE, Replace([])])
def test_a_conversation_is_not_reset(patch: Any) -> None:
    with pytest.raises(NodeOutputError, match="never removed"):
        finished().update({"messages": patch})


def test_the_values_of_a_turn_are_asked_for() -> None:
    """A task of one text has new words; of several inputs, no text says what each is."""
    thread = agents.tool_loop("question, year: int -> answer", [look]).compile(store=":memory:").thread("t")
    with ScriptedLM([SUBMIT]):
        thread.run({"question": "q", "year": 1})
    message = dict(thread.state["messages"][0])
    with pytest.raises(ThreadError, match=r"holds the values of 'question', 'year'.*under the key 'turn'"):
        thread.update({"messages": {"id": message["id"], "role": "user", "content": "Q"}})
    thread.update({"messages": {**message, "turn": {"question": "Q", "year": 2}}})
    assert thread.state["messages"][0]["turn"] == {"question": "Q", "year": 2}
    thread = finished()
    thread.update({"messages": {"id": ids(thread)[0], "role": "user", "content": "Q"}})
    assert thread.state["messages"][0]["turn"] == {"question": "Q"}


@pytest.mark.parametrize("place", range(3), ids=["inputs", "turn", "result"])
def test_a_new_content_is_shown_without_the_values_of_the_old_one(place: int) -> None:
    """A message that is given as it was, but for its content, is what a person writes to take words out of it."""
    thread = agents.tool_loop("question -> answer", [look]).compile(store=":memory:").thread("t")
    calls = {**turn(("look", {"tag": "x"})), "next_thought": "think secret 1"}
    with ScriptedLM([calls, SUBMIT, SUBMIT]) as lm:
        thread.run({"question": "ask secret 0"})
        old = thread.state["messages"][place]
        thread.update({"messages": {**old, "content": "taken out"}})
        thread.run({"question": "again"})
    shown = str(lm.calls[-1].messages)
    assert "taken out" in shown
    assert [text in shown for text in ("secret 0", "secret 1", "seen x")] == [place != each for each in range(3)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_call_that_waits_stays_as_it_is(mode: str) -> None:
    """Its tool is called when the run is resumed; what came before it may be edited, and the model is shown that."""
    thread = (
        agents.tool_loop("question -> answer", [look, agents.tool(pay, approve=True)])
        .compile(store=":memory:")
        .thread("t")
    )
    lm = ScriptedLM([turn(("look", {"tag": "a"})), turn(("pay", {"amount": 9})), SUBMIT])
    with lm:
        assert thread.run({"question": "q"}).status == "interrupted"
        said = [dict(message) for message in thread.state["messages"]]
        less = {**said[3]["tool_calls"][0], "function": {"name": "pay", "arguments": '{"amount": 1}'}}
        for change in (remove(said[3]["id"]), {**said[3], "tool_calls": [less]}):
            with pytest.raises(ThreadError, match="has no result yet, and its tool is called when the run is resumed"):
                thread.update({"messages": change})
        thread.update({"messages": [{"id": said[0]["id"], "role": "user", "content": "Q"}, remove(said[1]["id"])]})
        assert [question.key for question in thread.questions] == ["pay"]
        run = thread.resume({"pay": True}) if mode == "sync" else asyncio.run(thread.aresume({"pay": True}))
    assert run.status == "completed"
    assert contents(thread)[:3] == ["Q", "so", "paid 9"]
    shown = lm.calls[-1].prompt.inputs
    assert "seen a" not in str(shown)
    assert "Q" in str(shown)
