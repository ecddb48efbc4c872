"""Messages between nodes: a field type, chat dicts in and out, and a node's own turns as DSPy's history wants them.

A message is a chat dict: `role`, `content`, an `id`, and for tools `tool_calls` or `tool_call_id`. A turn of a node has
its `name` as well, and the values of its signature as `turn`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any

from dspyer import reducers
from dspyer.message_list import TURN, check_chat
from dspyer.views import text_of

Messages = Annotated[list[dict[str, Any]], reducers.conversation]
"""The type of a field that holds a conversation: `messages: Messages = []`. It only grows.

A node adds one message or a list of them; each gets an `id`. A message that is there is never changed or removed:
another one with its `id` is refused. System messages are refused too: what a model is told belongs into the
instructions of its signature.
"""

_CHAT = ("role", "content", "name", "tool_calls", "tool_call_id")


def from_chat(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages for a field, from the chat dicts of an LM's API.

    Args:
        messages: the dicts; system messages among them are left out.

    Raises:
        NodeOutputError: if one has another shape.

    Example:
        >>> from_chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
        [{'role': 'user', 'content': 'Hi'}]
    """
    found = [dict(message) for message in messages if message.get("role") not in ("system", "developer")]
    check_chat(found)
    return found


def to_chat(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Chat dicts for an LM's API, from the messages of a field: without their ids and the values of turns.

    Args:
        messages: the messages.

    Example:
        >>> to_chat([{"role": "user", "content": "Hi", "id": "trunk:1/0"}])
        [{'role': 'user', 'content': 'Hi'}]
    """
    return [{key: message[key] for key in _CHAT if key in message} for message in messages]


def turn_message(node: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The message that a node's turn is. Messages among its values are kept without turns of their own.

    Args:
        node: the node.
        inputs: what was new to it, by the names of its signature.
        outputs: what it answered.
    """
    said = {name: value for name, value in outputs.items() if name != "reasoning"}
    texts = {name: text_of(value) for name, value in said.items()}
    text = next(iter(texts.values())) if len(texts) == 1 else "\n".join(map(": ".join, texts.items()))
    return {"role": "assistant", "name": node, "content": text, TURN: _without_turns({**inputs, **outputs})}


def _without_turns(value: Any) -> Any:
    """A plain value in which no message holds a turn: a turn in a turn would double a conversation at each visit."""
    if isinstance(value, dict):
        turn = "role" in value and TURN in value
        return {key: _without_turns(one) for key, one in value.items() if not (turn and key == TURN)}
    return [_without_turns(one) for one in value] if isinstance(value, list) else value


def turns_in(messages: Iterable[Mapping[str, Any]], fields: Collection[str], answers: Collection[str]) -> list[Any]:
    """The turns among messages, each as the fields of a signature with their values.

    Args:
        messages: a node's own messages.
        fields: the fields of its signature; none for all.
        answers: those among them that a turn must have. None is an answer.
    """
    turns = [message[TURN] for message in messages if isinstance(message.get(TURN), Mapping)]
    turns = [turn for turn in turns if all(name in turn for name in answers)]
    return [{name: value for name, value in turn.items() if not fields or name in fields} for turn in turns]
