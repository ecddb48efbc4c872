"""Messages of states, as AG-UI sees them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from dspyer.message_list import TURN
from dspyer.serve.agui_messages import Said, ToolUse, said
from tests.rows import each


def call(name: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}


def turn(name: str, **more: Any) -> dict[str, Any]:
    return {"id": "m", "role": "assistant", "content": "I think.", "tool_calls": [call(name)], **more}


def result(name: str, **more: Any) -> dict[str, Any]:
    return {"id": "m", "role": "tool", "tool_call_id": "c1", "name": name, "content": "done", **more}


PARTS: list[Any] = ["a", {"type": "text", "text": "b"}, {"type": "image_url"}]
SEEN = {
    "user": ({"id": "m", "role": "user", "content": "Hi"}, Said("m", "user", "Hi")),
    "no content": ({"id": "m", "role": "assistant", "content": None}, Said("m", "assistant", "")),
    "parts": ({"id": "m", "role": "user", "content": PARTS}, Said("m", "user", "ab")),
    "turn": (turn("look", **{TURN: 1}), Said("m", "assistant", "", (ToolUse("c1", "look", "{}"),))),
    "last turn": (turn("submit", **{TURN: 1}), Said("m", "assistant", "")),
    "not an agent's turn": (turn("submit"), Said("m", "assistant", "I think.", (ToolUse("c1", "submit", "{}"),))),
    "result": (result("look", value=1), Said("m", "tool", "done", answers="c1")),
    "result that failed": (result("look", error=True), Said("m", "tool", "done", answers="c1", error="done")),
    "last result": (result("submit", value={}), None),
    "not an agent's result": (result("submit"), Said("m", "tool", "done", answers="c1")),
    "LangChain: user": (HumanMessage("Hi", id="m"), Said("m", "user", "Hi")),
    "LangChain: parts": (HumanMessage(PARTS, id="m"), Said("m", "user", "ab")),
    "LangChain: call": (
        AIMessage("I look.", id="m", tool_calls=[{"id": "c1", "name": "look", "args": {"n": 1}}]),
        Said("m", "assistant", "I look.", (ToolUse("c1", "look", '{"n": 1}'),)),
    ),
    "LangChain: result": (ToolMessage("done", id="m", tool_call_id="c1"), Said("m", "tool", "done", answers="c1")),
    "LangChain: result that failed": (
        ToolMessage("done", id="m", tool_call_id="c1", status="error"),
        Said("m", "tool", "done", answers="c1", error="done"),
    ),
    "another object": (SimpleNamespace(type="ai", id="m"), None),
}


@each(("message", "seen"), SEEN.values(), ids=SEEN)
def test_what_a_message_says(message: Any, seen: Said | None) -> None:
    assert said(message) == seen
