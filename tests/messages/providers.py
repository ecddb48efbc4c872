"""What two providers refuse in the messages of a request, as far as their documentation and their errors say.

Each function returns the problems of a chat, a list of texts that is empty for an accepted one. They are stricter where
limits differ between versions of a provider: OpenAI has refused ids of calls with more than 40 letters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

Chat = list[dict[str, Any]]

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
KEYS = {
    "system": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}
PARTS = {"user": {"text", "image_url", "input_audio", "file"}, "assistant": {"text", "refusal"}, "tool": {"text"}}


def openai_problems(chat: Chat) -> list[str]:
    """What the endpoint for chat completions refuses."""
    problems = [f"messages.{place}: {text}" for place, one in enumerate(chat) for text in _openai_message(one)]
    problems += [] if chat else ["messages is empty"]
    waiting: list[str] = []
    for place, message in enumerate(chat):
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                problems.append(f"messages.{place}: no call {message['tool_call_id']!r} before it waits for a result")
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            problems.append(f"messages.{place}: the calls {waiting} before it have no result")
        waiting = [call["id"] for call in message.get("tool_calls", ())]
    return problems + ([f"the calls {waiting} have no result"] if waiting else [])


def _openai_message(message: dict[str, Any]) -> Iterator[str]:
    role = message.get("role")
    if role not in KEYS:
        yield f"the role {role!r}"
        return
    for key in sorted(set(message) - KEYS[role]):
        yield f"unknown key {key!r}"
    content = message.get("content")
    if content is None and not (role == "assistant" and message.get("tool_calls")):
        yield "no content"
    elif isinstance(content, list):
        if not content:
            yield "an empty list of parts"
        for part in content:
            if part.get("type") not in PARTS.get(role, {"text"}):
                yield f"a part of the type {part.get('type')!r}"
    elif not isinstance(content, (str, type(None))):
        yield f"content of the type {type(content).__name__}"
    if "name" in message and not (isinstance(message["name"], str) and NAME.fullmatch(message["name"])):
        yield f"the name {message['name']!r}"
    if "tool_calls" in message:
        yield from _openai_calls(message["tool_calls"])
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield "no tool_call_id"


def _openai_calls(calls: Any) -> Iterator[str]:
    if not isinstance(calls, list) or not calls:
        yield "tool_calls is no list with calls"
        return
    for call in calls:
        if set(call) != {"id", "type", "function"} or set(call["function"]) != {"name", "arguments"}:
            yield f"unknown or missing keys in the call {call}"
            continue
        if call["type"] != "function" or not isinstance(call["id"], str) or not 1 <= len(call["id"]) <= 40:
            yield f"the type or the id of the call {call}"
        if not isinstance(call["function"]["arguments"], str):
            yield f"the arguments of the call {call} are no text"
        if not NAME.fullmatch(call["function"]["name"]):
            yield f"the name of the function {call['function']['name']!r}"


def anthropic_problems(chat: Chat) -> list[str]:
    """What the endpoint for messages refuses of a chat that was converted as its clients do it."""
    messages = _anthropic_messages(chat)
    if not messages:
        return ["messages is empty"]
    problems = [] if messages[0]["role"] == "user" else ["the first message is not the user's"]
    used: set[str] = set()
    waiting: list[str] = []
    for place, message in enumerate(messages):
        blocks = message["content"]
        problems += [] if blocks else [f"messages.{place}: no content"]
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if message["role"] == "user":
            if sorted(results) != sorted(waiting):
                problems.append(f"messages.{place}: results of {results}, and {waiting} wait for theirs")
            kinds = [block["type"] == "tool_result" for block in blocks]
            if kinds != sorted(kinds, reverse=True):
                problems.append(f"messages.{place}: results come first")
            waiting = []
            continue
        if waiting:
            problems.append(f"messages.{place}: {waiting} have no results")
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        problems += [f"messages.{place}: the id {one!r} is there twice" for one in waiting if one in used]
        used.update(waiting)
    problems += [f"{waiting} have no results"] if waiting else []
    blocks = [(place, block) for place, message in enumerate(messages) for block in message["content"]]
    return problems + [f"messages.{place}: {text}" for place, block in blocks for text in _anthropic_block(block)]


def _anthropic_block(block: dict[str, Any]) -> Iterator[str]:
    if block["type"] == "text" and not block["text"].strip():
        yield "a text without letters"
    if block["type"] == "tool_use":
        if not isinstance(block["input"], dict):
            yield f"the input {block['input']!r} is no object"
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
            yield f"the id {block['id']!r}"
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", block["name"]):
            yield f"the name {block['name']!r}"
    if block["type"] == "tool_result" and isinstance(block["content"], str) and block["content"].isspace():
        yield "a result of spaces alone"


def _anthropic_messages(chat: Chat) -> Chat:
    """A chat in the form of the endpoint: results are the user's, and messages of one role in a row are one message."""
    found: Chat = []
    for message in chat:
        role = "assistant" if message["role"] == "assistant" else "user"
        if not found or found[-1]["role"] != role:
            found.append({"role": role, "content": []})
        content = message["content"]
        if message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
            found[-1]["content"].append(block)
            continue
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        found[-1]["content"] += [part for part in parts if part.get("text", "x") is not None]
        for call in message.get("tool_calls", ()):
            block = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
            found[-1]["content"].append({**block, "input": json.loads(call["function"]["arguments"])})
    return found


PROVIDERS: dict[str, Callable[[Chat], list[str]]] = {"openai": openai_problems, "anthropic": anthropic_problems}


def problems_of(chat: Chat) -> list[str]:
    """What any of the providers refuses of a chat."""
    return [f"{name}: {text}" for name, check in PROVIDERS.items() for text in check(chat)]
