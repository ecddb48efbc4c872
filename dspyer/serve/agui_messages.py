"""Messages of a state, of dspyer's conversations or LangChain's, as AG-UI sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from dspyer.agents.conversation import SUBMIT
from dspyer.message_list import TURN

_ROLES = {"ai": "assistant", "human": "user"}


class ToolUse(NamedTuple):
    """A tool call of a message; the arguments are JSON."""

    id: str
    name: str
    arguments: str


class Said(NamedTuple):
    """A message.

    Attributes:
        id: its id.
        role: `"assistant"`, `"tool"` or another one.
        text: what it says to the user; empty for the thought of an agent.
        calls: the tool calls that it makes, without an agent's final one.
        answers: the id of the call whose result it is; empty for other messages.
        error: why the call failed; None if it did not.
    """

    id: str
    role: str
    text: str
    calls: tuple[ToolUse, ...] = ()
    answers: str = ""
    error: str | None = None


def said(message: Any) -> Said | None:
    """A plain message of a state; None if it is none, or if it only ends an agent's work."""
    if isinstance(message, Mapping):
        return _chat(message)
    kind = getattr(message, "type", None)
    if not isinstance(kind, str) or not hasattr(message, "content"):
        return None
    calls = [
        ToolUse(str(call["id"]), call["name"], json.dumps(call["args"])) for call in getattr(message, "tool_calls", ())
    ]
    text = _text(message.content)
    error = text if getattr(message, "status", "") == "error" else None
    answers = str(getattr(message, "tool_call_id", ""))
    return Said(str(message.id), _ROLES.get(kind, kind), text, tuple(calls), answers, error)


def _chat(message: Mapping[str, Any]) -> Said | None:
    role, text = str(message.get("role")), _text(message.get("content"))
    of_agent = TURN in message or "value" in message
    # A summary is for the model: the user sees what it stands for.
    if (role == "tool" and of_agent and message.get("name") == SUBMIT) or "covers" in message:
        return None
    calls = [
        ToolUse(str(call["id"]), call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
        if not (of_agent and call["function"]["name"] == SUBMIT)
    ]
    if TURN in message and "tool_calls" in message:
        text = ""  # what the agent thinks
    error = text if message.get("error") else None
    return Said(str(message.get("id")), role, text, tuple(calls), str(message.get("tool_call_id", "")), error)


def _text(content: Any) -> str:
    """The text of a content, which may be a list of parts."""
    if isinstance(content, list):
        parts = [part.get("text", "") if isinstance(part, Mapping) else part for part in content]
        return "".join(map(str, parts))
    return "" if content is None else str(content)
