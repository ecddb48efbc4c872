"""Conversations: the field type `Messages`, conversion from and to chat dicts, and the turns of a node for DSPy.

A message is a chat dict: `role`, `content`, an `id`, and for tools `tool_calls` or `tool_call_id`. A turn is the
message of one visit of a node: it has the node's `name` as well, and under `turn` the inputs and outputs of its
signature, from which the `dspy.History` of the node's next visit is made. `inputs` names the inputs among them that the
conversation does not show otherwise: in a chat, they are what the user has said.

In the conversation of an agent, the user's message of a task has its inputs under `turn`, that of a mode the thought,
and the result of a tool has `value` and `error`: `agents.conversation` makes these messages, and shows them to a
predictor.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from dspyer import reducers
from dspyer.message_list import COVERS, TURN, check_chat, valid_message
from dspyer.patch import Replace
from dspyer.reducers import Updates
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.views import text_of

Messages = Annotated[list[dict[str, Any]], reducers.conversation]
"""The type of a field that holds a conversation: `messages: Messages = []`. Runs only add to it.

A node adds one message or a list of them; each gets an `id`. It can neither change nor remove a message: a different
message with its `id` is refused, and the same one again is no change. A person can, by `thread.update`. System
messages are refused too: instructions belong in the signature of the node that calls the model. At a join, messages
are added in branch order. Half of a surrogate pair in a text becomes U+FFFD. Tool calls need an `id`, a name, and a
JSON object as the text of their arguments.

A module node adds its turn: its `name`, the answer as text in `content`, and under `turn` the outputs, and the inputs
as it got them. Inputs that would repeat the conversation are left out: a `dspy.History`, the whole field, a view of
it without `new`, `last` or `fit`, and a template with the field in it. A `ReAct` adds its calls and results before. A
turn in the inputs of a run is one of the node that it names, so a subgraph has its earlier turns when it runs again.

A `dspy.History` holds the node's own turns alone, each with a value for every output: `compile()` refuses a view of
other nodes for it, `dspy.History | None`, two histories, one without a view, and one for a `ReAct`. It is a copy,
part of the inputs in DSPy's trace and in demonstrations.
"""

# --- chat dicts

ARGS = "args"
"""A key of a tool's message: the arguments of the call, if a person has changed those of the model."""

PROBLEMS = "problems"
"""A key of a tool's message, and a field of an agent: what a check has found in the result, and in the outputs."""

FORCED = "forced"
"""A key of an assistant message: why it had to submit."""

SENT = "sent"
"""A key of a user's message that `thread.send` sent: its number and its time."""

MESSAGES, HANDOFFS = "messages", "handoffs"
"""The fields of an agent with its conversation, and with results that the end of a turn decides about."""

INPUTS = "inputs"
"""A key of a turn: the names of the inputs that `to_chat` gives as the user's message before it."""


def from_chat(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages for a field, from the chat dicts of an LM's API.

    Args:
        messages: the dicts; system messages among them are left out.

    Returns:
        The messages, as new dicts. Half of a surrogate pair in a text becomes U+FFFD.

    Raises:
        NodeOutputError: if a dict is no chat message.

    Example:
        >>> from_chat([{"role": "system", "content": "Be brief."},
        ...     {"role": "user", "content": "Hi"}])
        [{'role': 'user', 'content': 'Hi'}]
    """
    found = [dict(message) for message in messages if message.get("role") not in ("system", "developer")]
    check_chat(found)
    return [valid_message(message) for message in found]


def to_chat(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Chat dicts for an LM's API, from the messages of a field, in a form that all providers accept.

    The results of a turn follow their calls, in the order of the calls. A call is left out while it has no result, and
    a result if its call is not among the messages. Messages without a text or a call are left out, and summaries.
    Names and ids that providers refuse are changed. Before the turn of a module come its inputs, as the user's message,
    but for those that show the conversation. If the first message is not the user's, one with the text "..." precedes
    it.

    Args:
        messages: the messages.

    Returns:
        The chat dicts, without ids of messages and the values of turns.

    Raises:
        NodeOutputError: if an item is no chat message, or a system message.

    Example:
        >>> to_chat([{"role": "user", "content": "Hi", "id": "trunk:1/0"}])
        [{'role': 'user', 'content': 'Hi'}]
    """
    found = [thaw(message) for message in messages]
    check_chat(found)
    found = [message for message in found if COVERS not in message]  # what a summary stands for is there
    calls_of = [[call["id"] for call in message.get("tool_calls") or ()] for message in found]
    results = places_of_results(
        (calls, message["tool_call_id"] if message["role"] == "tool" else None)
        for calls, message in zip(calls_of, found, strict=True)
    )
    given_ids, used_ids = set(itertools.chain(*calls_of)), set[str]()
    chat: list[dict[str, Any]] = []
    for place, message in enumerate(found):
        if message["role"] == "tool":
            continue
        # Providers refuse a call without its result: the result may come in a later turn, or never.
        calls = [call for call in message.get("tool_calls") or () if call["id"] in results[place]]
        content = _chat_content(message)
        asked = {"role": "user", "content": _inputs_text(message)}
        if asked["content"] and asked not in chat[-1:]:  # a node may have added the user's message itself
            chat.append(asked)
        if not calls and not content:
            continue
        # Anthropic refuses a conversation that the user does not begin.
        if not chat and message["role"] != "user":
            chat.append({"role": "user", "content": "..."})
        entry: dict[str, Any] = {"role": message["role"], "content": content or None}
        if name := _accepted_name(message.get("name")):
            entry["name"] = name
        if calls:
            own = _accepted_ids([call["id"] for call in calls], given_ids, used_ids)
            given = {given_id: found[results[place][given_id]] for given_id in own}
            entry["tool_calls"] = [_chat_call(call, own[call["id"]], given[call["id"]]) for call in calls]
            chat.append(entry)
            for given_id, call_id in own.items():
                content = _chat_content(given[given_id])
                chat.append({"role": "tool", "content": content, "tool_call_id": call_id})
        else:
            chat.append(entry)
    return chat


def places_of_results(messages: Iterable[tuple[Collection[str], str | None]]) -> dict[int, dict[str, int]]:
    """The places of results by the place of the message that made the calls, and by the id of the call.

    Each message is given as the ids of its calls, and the id of the call of which it is the result. If two messages
    have calls with the same id, a result belongs to the last one before it.

    Example:
        >>> places_of_results([(["a", "b"], None), ([], "b"), (["b"], None),
        ...     ([], "b")])
        {0: {'b': 1}, 2: {'b': 3}}
    """
    callers: dict[str, int] = {}
    results: dict[int, dict[str, int]] = {}
    for place, (calls, result_of) in enumerate(messages):
        if result_of in callers:
            results[callers[result_of]].setdefault(result_of, place)
        if calls:
            results[place] = {}
            callers.update(dict.fromkeys(calls, place))
    return results


_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def _accepted_ids(calls: Iterable[str], given: Collection[str], used: set[str]) -> dict[str, str]:
    """The ids of calls in a chat: OpenAI limits their length, Anthropic their letters, and both want each one once."""
    ids = {}
    for call in calls:
        # By the number of calls before it: the same conversation gives the same ids, and so the same cache key.
        numbered = (f"call_{number}" for number in itertools.count(len(used)))
        fits = call not in used and _CALL_ID.fullmatch(call)
        ids[call] = call if fits else next(each for each in numbered if each not in used and each not in given)
        used.add(ids[call])
    return ids


def _accepted_name(name: object) -> str:
    """A name of an author or a tool in the letters and the length that providers accept; "" for none."""
    return _NOT_IN_NAMES.sub("_", str(name))[:64] if name else ""


def _chat_call(call: Mapping[str, Any], call_id: str, result: Mapping[str, Any]) -> dict[str, Any]:
    edited, arguments = result.get(ARGS), call["function"]["arguments"] or "{}"
    function = {
        "name": _accepted_name(call["function"]["name"]) or "_",
        "arguments": arguments if edited is None else json.dumps(edited, ensure_ascii=False),
    }
    return {"id": call_id, "type": "function", "function": function}


def _chat_content(message: Mapping[str, Any]) -> Any:
    """The content of a message, "" if nothing is in it: a text, and of the user also a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, list):
        parts = [part for part in content if not (_is_text(part) and not str(part["text"]).strip())]
        if parts and message["role"] != "user" and not all(map(_is_text, parts)):
            return text_of(parts)
        return parts or ""
    return content if content.strip() else ""


def _inputs_text(message: Mapping[str, Any]) -> str:
    """The inputs of a turn that the conversation does not show otherwise, as text."""
    turn, names = message.get(TURN), message.get(INPUTS)
    if not isinstance(turn, dict) or not isinstance(names, list):
        return ""
    return text_by_name({name: turn[name] for name in names if turn.get(name) is not None}).strip()


def text_by_name(values: Mapping[str, Any]) -> str:
    r"""Values as a text: a single one by itself, several in a line each, with their names.

    Example:
        >>> (text_by_name({"question": "Why?"}),
        ...     text_by_name({"question": "Why?", "year": 1}))
        ('Why?', 'question: Why?\nyear: 1')
    """
    texts = {name: text_of(value) for name, value in values.items()}
    return "".join(texts.values()) if len(texts) < 2 else "\n".join(map(": ".join, texts.items()))


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and "text" in part


# --- turns of a node


def turn_message(
    node: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], asked: Iterable[str] = ()
) -> dict[str, Any]:
    """The message of one visit of a node: its outputs as text, and both sides of its signature under `turn`.

    `asked` are the inputs that the conversation does not show otherwise.

    Example:
        >>> turn_message("answer", {"question": "Why?"},
        ...     {"reasoning": "...", "answer": "The moon."})["content"]
        'The moon.'
    """
    text = text_by_name({name: value for name, value in outputs.items() if name != "reasoning"})
    turn, names = _without_turns({**inputs, **outputs}), [name for name in asked if name in inputs]
    return {"role": "assistant", "name": node, "content": text, TURN: turn, **({INPUTS: names} if names else {})}


ToolStep = tuple[object, Sequence[tuple[str, Any, Any, bool]]]
"""A step of a module before it answers: a thought, and tool calls, each as the name of the tool, the arguments, the
result and whether that is an error.
"""


def tool_messages(node: str, steps: Iterable[ToolStep], call_id: str) -> list[dict[str, Any]]:
    """The messages of the tool calls of a node: of each step the node's, then the results.

    Example:
        >>> step = "I look it up.", [("time", {"day": 1}, "9:40", False)]
        >>> [message["content"] for message in tool_messages("search", [step],
        ...     "search_0")]
        ['I look it up.', '9:40']
    """
    found: list[dict[str, Any]] = []
    for at, (thought, calls) in enumerate(steps):
        content = "" if thought is None else text_of(thought)
        made: list[dict[str, Any]] = []
        found.append({"role": "assistant", "name": node, "content": content, "tool_calls": made})
        for place, (name, args, value, error) in enumerate(calls):
            own = f"{call_id}_{at}_{place}"
            arguments = json.dumps(args or {}, ensure_ascii=False, default=text_of)
            made.append({"id": own, "type": "function", "function": {"name": name, "arguments": arguments}})
            result = {"name": name, "tool_call_id": own, "content": text_of(value), "error": error}
            found.append({"role": "tool", **result})
    return found


def _without_turns(value: Any) -> Any:
    """A plain value in which no message holds a turn: a turn in a turn would double a conversation at each visit."""
    if isinstance(value, dict):
        is_turn = "role" in value and TURN in value
        return {key: _without_turns(inner) for key, inner in value.items() if not (is_turn and key == TURN)}
    return [_without_turns(inner) for inner in value] if isinstance(value, list) else value


def turns_in(messages: Iterable[Mapping[str, Any]], fields: Collection[str], required: Collection[str]) -> list[Any]:
    """The turns among messages, for a `dspy.History`: of each turn the named fields, all of them if `fields` is empty.

    A turn that lacks one of the `required` fields is left out; None counts as a value.

    Example:
        >>> messages = [{"role": "user", "content": "Hi"},
        ...     turn_message("answer", {"question": "?"}, {"answer": "!"})]
        >>> turns_in(messages, ["answer"], ["answer"])
        [{'answer': '!'}]
    """
    turns = [message[TURN] for message in messages if isinstance(message.get(TURN), Mapping)]
    turns = [turn for turn in turns if all(name in turn for name in required)]
    return [{name: value for name, value in turn.items() if not fields or name in fields} for turn in turns]


def messages_in(update: Any) -> Iterator[FrozenDict[str, Any]]:
    """The messages that an update of a conversation adds or replaces."""
    found = update.frozen if isinstance(update, Replace) else update
    if isinstance(found, FrozenDict):
        yield found
    elif isinstance(found, Updates | FrozenList):
        for part in found.updates if isinstance(found, Updates) else found.raw_items():
            yield from messages_in(part)


def warning_message(warning: str) -> dict[str, Any]:
    """The message by which a run warns in its conversation that it comes near a limit."""
    return {"role": "user", "name": "dspyer", "content": warning}
