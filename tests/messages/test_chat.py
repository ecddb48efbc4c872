"""`to_chat` gives a chat that any provider accepts, and `from_chat` takes it back; what a conversation refuses."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, ImmutableState, Messages, agents, from_chat, to_chat
from dspyer.errors import NodeOutputError
from dspyer.testing import ScriptedLM
from tests.budget import deep
from tests.messages.providers import problems_of
from tests.rows import each


def call(call_id: str, name: str = "look", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def says(*calls: dict[str, Any], content: Any = "so", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}


def result(call_id: str, content: Any = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


ASK = {"role": "user", "content": "?"}

# --- the kit refuses what providers refuse

REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "nothing": ([], "messages is empty"),
    "no result": ([ASK, says(call("a"))], "have no result"),
    "a late result": ([ASK, says(call("a")), ASK, result("a")], "have no result"),
    "no call": ([ASK, result("a")], "waits for a result"),
    "two results": ([ASK, says(call("a")), result("a"), result("a")], "waits for a result"),
    "no content": ([{"role": "user", "content": None}], "no content"),
    "empty text": ([ASK, says(content=" ")], "a text without letters"),
    "an unknown key": ([{**ASK, "turn": {}}], "unknown key 'turn'"),
    "a name": ([{**ASK, "name": "join:x"}], "the name 'join:x'"),
    "a long id": ([ASK, says(call("a" * 41)), result("a" * 41)], "the id of the call"),
    "an id": ([ASK, says(call("a/b")), result("a/b")], "the id 'a/b'"),
    "the same id again": ([ASK, says(call("a")), result("a"), says(call("a")), result("a")], "is there twice"),
    "the assistant first": ([says(), ASK], "the first message is not the user's"),
    "no calls": ([ASK, {**says(), "tool_calls": []}], "no list with calls"),
    "a key of a call": ([ASK, says({**call("a"), "index": 0}), result("a")], "unknown or missing keys"),
    "a function": ([ASK, says(call("a", "a.b")), result("a")], "the name of the function 'a.b'"),
    "an image of the assistant": ([ASK, says(content=[{"type": "image_url"}])], "a part of the type 'image_url'"),
}


@each(("chat", "text"), REFUSED.values())
def test_the_kit_refuses_what_a_provider_refuses(chat: Any, text: str) -> None:
    assert text in "\n".join(problems_of(chat))


def test_the_kit_accepts_a_chat() -> None:
    assert problems_of([ASK, says(call("a"), call("b"), content=None), result("b", ""), result("a"), ASK, ASK]) == []


# --- laws

texts = st.sampled_from(["", " ", "text", "né\n"])
names = st.sampled_from([None, "react", "join:x", "a b", "ü", "n" * 80])
ids = st.sampled_from(["c0", "c1", "c2", "c3", "", "a/b", "x" * 41, "call_0", "call_1"])


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Any messages that a conversation takes, in any order."""
    found: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 9))):
        role = draw(st.sampled_from(["user", "assistant", "calls", "calls", "tool", "tool", "tool"]))
        message: dict[str, Any] = {"id": f"m{number}", "content": draw(texts)}
        if role == "calls":
            chosen = draw(st.lists(ids, min_size=1, max_size=3, unique=True))
            arguments = st.sampled_from(["", "{}", '{"a": [1]}'])
            made = [call(one, draw(names) or "look", draw(arguments)) for one in chosen]
            message |= {"role": "assistant", "tool_calls": made, "content": draw(st.none() | texts)}
            message |= {"turn": {"next_thought": None}} if draw(st.booleans()) else {}
        elif role == "tool":
            message |= result(draw(ids), draw(st.sampled_from(["", " ", "[1]", '{"a": null}'])))
            if draw(st.booleans()):
                message["content"] = [{"type": "text", "text": draw(texts)}, {"type": "image_url", "image_url": {}}]
        else:
            message |= {"role": role}
            if draw(st.booleans()):
                message["content"] = [{"type": "text", "text": draw(texts)}, {"type": "text", "text": "x"}]
        name = draw(names)
        found.append(message if name is None else {**message, "name": name})
    return found


@given(conversations())
def test_any_conversation_becomes_a_chat_that_providers_accept(messages: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(messages)
    chat = to_chat(messages)
    assert messages == before
    assert chat == to_chat(ImmutableState({"messages": messages})["messages"])
    assert chat == [] or problems_of(chat) == []
    again = from_chat(chat)
    assert again == chat
    assert to_chat(again) == chat  # what went through once stays as it is


@given(conversations())
def test_no_text_and_no_finished_call_is_lost(messages: list[dict[str, Any]]) -> None:
    chat = to_chat(messages)
    open_calls: dict[str, int] = {}
    finished = 0
    for message in messages:
        open_calls.update(dict.fromkeys([each["id"] for each in message.get("tool_calls", ())], 1))
        finished += open_calls.pop(message.get("tool_call_id", "-"), 0)
    assert sum(message["role"] == "tool" for message in chat) == finished
    said = [message for message in messages if message["role"] == "user" and str(message["content"]).strip()]
    assert [message["role"] for message in chat].count("user") - len(said) in (0, 1)


# --- cases


def test_results_follow_their_calls_in_the_order_of_the_calls() -> None:
    hint = {"role": "user", "content": "Hurry."}
    messages = [ASK, says(call("a"), call("b")), result("b", "2"), hint, result("a", "1"), says(content="Done.")]
    assert to_chat(messages) == [ASK, messages[1], result("a", "1"), result("b", "2"), hint, says(content="Done.")]


def test_a_call_without_its_result_is_left_out_and_so_is_a_result_without_its_call() -> None:
    messages = [ASK, says(call("a"), call("b")), result("b"), result("c"), says(call("d"), content="")]
    assert to_chat(messages) == [ASK, says(call("b")), result("b")]
    assert to_chat([ASK, says(call("a"))]) == [ASK, says()]


def test_what_providers_refuse_is_changed() -> None:
    messages = [
        says(call("a/b", "to/x", ""), content="", name="join:x"),
        result("a/b", " "),
        {"role": "user", "content": " "},
        says(call("a/b"), content=[], turn={"next_thought": "t"}, id="m"),
        result("a/b", [{"type": "image_url", "image_url": {"url": "u"}}]),
    ]
    first, second = {**call("call_0", "to_x"), "type": "function"}, call("call_1")
    assert to_chat(messages) == [
        {"role": "user", "content": "..."},
        {"role": "assistant", "content": None, "name": "join_x", "tool_calls": [first]},
        result("call_0", ""),
        {"role": "assistant", "content": None, "tool_calls": [second]},
        result("call_1", '[{"type": "image_url", "image_url": {"url": "u"}}]'),
    ]


def test_a_chat_of_react_v2_with_the_same_ids_in_two_runs() -> None:
    run = [ASK, says(call("call_0_0")), result("call_0_0")]
    chat = to_chat(from_chat([*run, *run]))
    assert [message.get("tool_call_id") for message in chat if message["role"] == "tool"] == ["call_0_0", "call_1"]
    assert problems_of(chat) == []


def test_the_images_of_a_user_stay() -> None:
    parts = [{"type": "text", "text": ""}, {"type": "image_url", "image_url": {"url": "u"}}]
    assert to_chat([{"role": "user", "content": parts}]) == [{"role": "user", "content": parts[1:]}]


# --- what a conversation refuses

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a call that is a text": (says("look"), "a call is a dict such as"),  # type: ignore[arg-type]
    "no id": (says({"type": "function", "function": {"name": "look", "arguments": "{}"}}), "a call is a dict such as"),
    "no function": (says({"id": "a", "name": "look", "args": {}}), "a call is a dict such as"),
    "arguments that are a dict": (says(call("a", "look", {})), "a call is a dict such as"),  # type: ignore[arg-type]
    "arguments that are no JSON": (says(call("a", "look", "{")), "with the arguments '{': give a JSON object as text"),
    "arguments that are a list": (says(call("a", "look", "[1]")), "give a JSON object as text"),
    "two calls with one id": (says(call("a"), call("a")), "two calls with the id 'a'"),
    "a user that calls": ({**ASK, "tool_calls": [call("a")]}, "only an assistant calls tools"),
    "one call and no list": ({**says(), "tool_calls": {"a": 1}}, "a call is a dict such as"),
}


class Talk(BaseModel):
    messages: Messages = []


@each(("message", "text"), WRONG.values())
def test_calls_in_another_form_are_refused_by_the_field_and_by_from_chat(message: Any, text: str) -> None:
    program = Graph(Talk).add_node("say", lambda: {"messages": message}).add_path(START, "say", END).compile()
    run = program.run({})
    assert isinstance(run.error, NodeOutputError)
    assert text in str(run.error)
    with pytest.raises(NodeOutputError) as caught:
        from_chat([message])
    assert text in str(caught.value)


# --- ids


def look() -> str:
    """Looks."""
    return "here"


@functools.cache
def agent() -> CompiledGraph:
    return agents.tool_loop("question -> answer", tools=[look]).compile()


def ids_of(turns: list[list[str | None]]) -> list[list[str]]:
    """The ids in the conversation of an agent whose model gives these ids, and then submits."""
    calls: list[list[dict[str, Any]]] = [[{"id": one, "name": "look", "args": {}} for one in turn] for turn in turns]
    calls.append([{"name": "submit", "args": {"answer": "a"}}])
    with ScriptedLM([{"next_thought": "t", "tool_calls": turn} for turn in calls]):
        run = agent().run({"question": "?"})
    run.raise_error()
    return [[one["id"] for one in said["tool_calls"]] for said in run.state["messages"] if "tool_calls" in said]


GIVEN = st.sampled_from([None, "c0", "call_0_0", "call_1_0", "call_1_1"])


@settings(max_examples=500 if deep else 10)
@given(st.lists(st.lists(GIVEN, min_size=1, max_size=2), max_size=2))
def test_the_ids_of_calls_are_unique_in_a_conversation(turns: list[list[str | None]]) -> None:
    taken: set[str] = set()
    turns = [*turns, [None]]
    for given_ids, found in zip(turns, ids_of(turns[:-1]), strict=True):
        for wanted, new in zip(given_ids, found, strict=True):
            assert new not in taken
            assert new == wanted or wanted is None or wanted in taken
            taken.add(new)


def test_ids_of_calls_are_those_of_react_v2_where_the_model_gives_none() -> None:
    assert ids_of([["call_0_0"], [None, "call_1_0"]]) == [["call_0_0"], ["call_2_0", "call_1_0"], ["call_3_0"]]
    assert ids_of([["x", "x"], [None]]) == [["x", "call_0_1"], ["call_1_0"], ["call_2_0"]]
