"""Lists of messages with one message per id: the functions of `reducers.add_messages` and `reducers.conversation`.

Nodes only add messages. `edited` is what a person does with `thread.update`: messages are replaced and removed there.

A message is a mapping with an `"id"`, or an object with an `id` (a pydantic model, a dataclass). Messages keep the
order in which they were added.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, get_origin

from pydantic import BaseModel

from dspyer.errors import NodeOutputError, ThreadError, brief
from dspyer.patch import DELETE
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import CopyOnRead, FrozenDict, FrozenList, RecentFindings
from dspyer.values.json import with_valid_text
from dspyer.values.persistent import SMALL, PersistentMap

ROLES = ("user", "assistant", "tool")

TURN = "turn"
"""A key of a message: in a turn (see `messages`) it holds the inputs and outputs of the node's signature."""

VALUE = "value"
"""A key of a result: the value that the tool has returned, of which `content` is the text."""

COVERS = "covers"
"""A key of a summary: the id of the last message that it stands for."""

EXAMPLE = '{"role": "user", "content": "..."}'
EMPTY: FrozenList[Any] = FrozenList()


# --- adding messages


def add(current: FrozenList[Any], update: FrozenList[Any]) -> FrozenList[Any]:
    """Adds messages; one with a known id replaces the message that has it."""
    length, index = len(current), _index_of(current)
    replaced: dict[int, Any] = {}
    added: list[Any] = []
    for message in update.raw_items():
        key = _id_of(message)
        position = None if key is None else index.get(key)
        if position is None:
            added.append(message)
            index = index if key is None else index.set(key, length + len(added) - 1)
        elif position < length:
            replaced[position] = message
        else:
            added[position - length] = message  # this update has the id twice: the later message counts
    # A new list only if an old message changes: adding shares what is there.
    if replaced:
        current = EMPTY.plus([replaced.get(position, message) for position, message in enumerate(current.raw_items())])
    new = current.plus(added)
    index_cache.put(new, index)
    return new


def add_new(current: FrozenList[Any], update: FrozenList[Any]) -> FrozenList[Any]:
    """Adds messages to a list that only grows; a message that it has is not added again.

    Raises `NodeOutputError` if a message has the id of another one with different content.
    """
    index = _index_of(current)
    existing: list[Any] | None = None  # read at most once, and only if an id is known
    new: dict[Any, Any] = {}
    for message in update.raw_items():
        key = _id_of(message)
        position = index.get(key)
        if position is not None and existing is None:
            existing = list(current.raw_items())
        # Also within the update: a model may send one message twice.
        same_id = new.get(key) if position is None or existing is None else existing[position]
        if same_id is None:
            new[key] = message
        elif not same(same_id, message):
            raise NodeOutputError(
                f"the message {_id_of(message)!r} is there already with another content: messages are only added, so "
                "give this one an id of its own, or none"
            )
    return add(current, EMPTY.plus(list(new.values()))) if new else current


def parts(update: FrozenList[Any]) -> list[tuple[Any, Any]]:
    """The messages of an update, each with its id."""
    return [(_id_of(message), message) for message in update.raw_items()]


def find(messages: FrozenList[Any], key: Any) -> Any:
    """The message with an id; `DELETE` if there is none."""
    position = _index_of(messages).get(key)
    return DELETE if position is None else messages.raw(position)


def make_update(by_id: Mapping[Any, Any]) -> FrozenList[Any]:
    """The update that adds messages, given by id."""
    return EMPTY.plus(list(by_id.values()))


def without(messages: FrozenList[Any], key: Any) -> FrozenList[Any]:
    """The messages without the one with an id."""
    return EMPTY.plus([message for message in messages.raw_items() if _id_of(message) != key])


# --- edits of a person


@dataclasses.dataclass(frozen=True, slots=True)
class Remove:
    """The marker that `remove` makes. `message` is the id of a message."""

    message: str

    def __repr__(self) -> str:
        return f"remove({self.message!r})"


def remove(message: str) -> Remove:
    """The marker that removes a message of a conversation, in the patch of `thread.update` or `thread.copy`.

    The results of its calls go with it: `thread.update({"messages": remove("t-42.1/trunk:1/0")})`.

    Args:
        message: the id of the message.

    Returns:
        The marker, alone or in the list of an update, beside messages that are added or replaced.

    Raises:
        TypeError: if the id is no text.

    Example:
        >>> remove("t-42.1/trunk:1/0")
        remove('t-42.1/trunk:1/0')
    """
    if not isinstance(message, str):
        raise TypeError(f"remove({brief(message)}): give the id of a message, remove(message['id'])")
    return Remove(message)


class Edited(NamedTuple):
    """All messages of a conversation after an edit."""

    messages: FrozenList[Any]


def edited(current: FrozenList[Any], changes: Iterable[Any], commit_id: str, runs_on: bool) -> Edited | None:
    """The messages after the changes of a person; None if the changes only add messages.

    Args:
        current: the messages before.
        changes: messages without an id, which are added, messages with a known id, and `Remove`s.
        commit_id: the id of the commit, of which those of new messages are derived.
        runs_on: whether a run goes on with the conversation: tools that it has called are still to give their results.

    Raises:
        ThreadError: for an unknown id, two changes of one message, a result without its call, and a call that loses its
            result.
        NodeOutputError: for what is no message.
    """
    index, before = _index_of(current), list(current.raw_items())
    changed: dict[int, Any] = {}
    added: list[Any] = []
    for change in changes:
        key = change.message if isinstance(change, Remove) else _id_of(change)
        place = None if key is None else index.get(key)
        if key is None:
            added.append(valid_message(change))
        elif place is None:
            raise ThreadError(f"no message has the id {key!r}: a message that is added has no id, it gets one")
        elif place in changed:
            raise ThreadError(f"the message {key!r} is changed twice: give one change of it")
        else:
            changed[place] = DELETE if isinstance(change, Remove) else _replacement(before[place], change)
    _with_results_and_summaries(before, index, changed)
    kept = [message for place, old in enumerate(before) if (message := changed.get(place, old)) is not DELETE]
    after = [*kept, *(freeze(message) for message in assign_ids(added, commit_id, current))]
    _check_pairs(before, after, runs_on)
    return Edited(EMPTY.plus(after)) if changed else None


def _replacement(old: Any, new: Any) -> Any:
    """The message that replaces another, with the values of its turn."""
    message = freeze(valid_message(new))
    if not isinstance(old, FrozenDict) or not isinstance(message, FrozenDict):
        return message
    if not same(message.raw("content", None), old.raw("content", None)):
        # A model is shown these in place of the content: words that are taken out must not stay there.
        for key in (TURN, VALUE):
            message = message.discard(key) if same(message.raw(key, None), old.raw(key, None)) else message
    if TURN in message or _calls_of(old):
        return message
    turn, content = old.raw(TURN, None), message.raw("content", None)
    if not isinstance(turn, FrozenDict):
        return message
    values = list(turn.raw_items())
    # Of one text, the content says all. What else is in a turn, no content gives.
    if old.raw("role") == "user" and len(values) == 1 and all(isinstance(one, str) for one in (values[0][1], content)):
        return message.set(TURN, turn.set(values[0][0], content))
    raise ThreadError(
        f"the message {_id_of(old)!r} holds the values of {', '.join(map(repr, turn))}, which a model is shown: give "
        f"them too, under the key {TURN!r}"
    )


def _with_results_and_summaries(before: list[Any], index: IdIndex, changed: dict[int, Any]) -> None:
    """Remove the results of calls that an edit removes too, and summaries of messages that it changes."""
    first, gone = min(changed, default=len(before)), set[str]()
    for place, message in enumerate(before):
        covered = None if not isinstance(message, FrozenDict) else index.get(message.raw(COVERS, None))
        called, result_of = _calls_of(message), _result_of(message)
        if called:  # by the last message before it that has a call with its id, a result is known
            left = _calls_of(changed.get(place, message))
            gone = (gone - called.keys()) | (called.keys() - left.keys())
        if (result_of in gone or (covered is not None and first <= covered)) and place not in changed:
            changed[place] = DELETE


def _check_pairs(before: list[Any], after: list[Any], runs_on: bool) -> None:
    """Refuse results without their call, and calls that have lost their result; what was so before is let be."""
    open_before, alone_before = _unpaired(before)
    open_after, alone_after = _unpaired(after)
    for call_id in alone_after:
        if call_id not in alone_before:
            raise ThreadError(f"the result of call {call_id!r} is there without its call: give both, or neither")
    calls = {call_id for message in before for call_id in _calls_of(message)}
    for call_id in open_after:
        if call_id in calls and call_id not in open_before:
            raise ThreadError(
                f"the call {call_id!r} is there without its result: replace the result, or remove the message with the "
                "call, and the results of its calls go with it"
            )
    now = {call_id: call for message in after for call_id, call in _calls_of(message).items()}
    for call_id, call in open_before.items() if runs_on else ():
        if not same(now.get(call_id), call):
            raise ThreadError(
                f"the call {call_id!r} has no result yet, and its tool is called when the run is resumed: change it "
                "when it has one"
            )


def _unpaired(messages: list[Any]) -> tuple[dict[str, Any], list[str]]:
    """The calls without a result by id, and the ids of calls of which there is a result alone."""
    called: dict[str, Any] = {}
    alone = []
    for message in messages:
        called.update(_calls_of(message))
        result_of = _result_of(message)
        if result_of is not None and called.pop(result_of, None) is None:
            alone.append(result_of)
    return called, alone


def _calls_of(message: Any) -> dict[str, Any]:
    """The calls of a chat message by id; none of another object."""
    calls = message.raw("tool_calls", None) if isinstance(message, FrozenDict) else None
    return {call.raw("id", None): call for call in calls or () if isinstance(call, FrozenDict)}


def _result_of(message: Any) -> str | None:
    """The id of the call of which a message is the result."""
    is_result = isinstance(message, FrozenDict) and message.raw("role", None) == "tool"
    return message.raw("tool_call_id", None) if is_result else None


# --- ids


def assign_ids(update: Any, commit_id: str, current: Any = DELETE) -> list[Any]:
    """The messages of an update, each valid and with an id; missing ids are derived from the commit's, always the same.

    A derived id is never one of `current`, the messages so far: the commits of two runs have the same ids, so in a
    conversation that is passed from run to run, a later message would replace an earlier one.

    Example:
        >>> assign_ids({"role": "user", "content": "Hi"}, "trunk:3")
        [{'role': 'user', 'content': 'Hi', 'id': 'trunk:3/0'}]
    """
    messages = [valid_message(message) for message in _added(update)]
    ids = [_id_of(message) for message in messages]
    if None not in ids:
        return messages
    index = _index_of(current) if isinstance(current, FrozenList) else NO_IDS
    taken = set(ids)
    with_ids = []
    for number, message in enumerate(messages):
        if ids[number] is None:
            new_id = _free_id(f"{commit_id}/{number}", taken, index)
            taken.add(new_id)
            with_ids.append(_with_id(message, new_id))
        else:
            with_ids.append(message)
    return with_ids


def valid_message(message: Any) -> Any:
    """A message whose texts are valid Unicode, those that the arguments of its calls hold as escapes too."""
    message = with_valid_text(message)
    if isinstance(message, Mapping) and "\\ud" in str(message.get("tool_calls")).lower():
        with contextlib.suppress(LookupError, TypeError, ValueError):  # of a reducer that takes any message
            return {**message, "tool_calls": [_valid_call(call, call["function"]) for call in message["tool_calls"]]}
    return message


def _valid_call(call: Mapping[str, Any], function: Mapping[str, Any]) -> dict[str, Any]:
    args = with_valid_text(json.loads(function["arguments"]))
    return {**call, "function": {**function, "arguments": json.dumps(args, ensure_ascii=False)}}


def _free_id(wanted: str, taken: AbstractSet[Any], index: IdIndex) -> str:
    candidates = itertools.chain([wanted], (f"{wanted}~{number}" for number in itertools.count(2)))
    return next(each for each in candidates if each not in taken and each not in index)


def _id_of(message: Any) -> Any:
    if isinstance(message, FrozenDict):
        return message.raw("id", None)
    if isinstance(message, Mapping):
        return message.get("id")
    return getattr(message.read() if isinstance(message, CopyOnRead) else message, "id", None)


def _with_id(message: Any, new_id: str) -> Any:
    if isinstance(message, FrozenDict):
        return message.set("id", freeze(new_id))
    if isinstance(message, Mapping):
        return {**message, "id": new_id}
    if isinstance(message, BaseModel):
        return message.model_copy(update={"id": new_id})
    if dataclasses.is_dataclass(message) and not isinstance(message, type):
        return dataclasses.replace(message, id=new_id)
    raise NodeOutputError(f"reducer 'add_messages' got a {type(message).__name__} without an id; set its `id`")


# --- the index of a list: the position of each id

IdIndex = PersistentMap[Any, int]
NO_IDS: IdIndex = PersistentMap()


index_cache: RecentFindings[IdIndex] = RecentFindings(least=SMALL + 1)


def _index_of(messages: FrozenList[Any]) -> IdIndex:
    known = index_cache.get(messages)
    if known is not None:
        return known
    ids = (_id_of(message) for message in messages.raw_items())
    index: IdIndex = PersistentMap({key: position for position, key in enumerate(ids) if key is not None})
    index_cache.put(messages, index)
    return index


# --- what is refused


def _added(update: Any) -> Iterator[Any]:
    """The messages of an update, which is one message or a list of them."""
    for message in update if isinstance(update, (list, tuple, FrozenList)) else [update]:
        if isinstance(message, Remove):
            raise NodeOutputError(
                f"{message!r} is for thread.update(...): the nodes and the inputs of a run only add messages"
            )
        yield message


def check(update: Any) -> None:
    """Refuses what is neither a message nor a list of messages."""
    for message in _added(update):
        if not isinstance(message, Mapping) and not hasattr(message, "id"):
            raise NodeOutputError(
                f"reducer 'add_messages' takes one message or a list of messages, not {type(message).__name__} "
                f"{brief(message)}; a message is a dict such as {EXAMPLE} or an object with an `id`"
            )


def check_chat(update: Any) -> None:
    """Refuses what is no chat message, and system messages."""
    for message in _added(update):
        if not isinstance(message, Mapping):
            raise NodeOutputError(
                f"a message is a dict such as {EXAMPLE}, not {type(message).__name__} {brief(message)}"
            )
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer"):
            raise NodeOutputError("system messages are not kept: put instructions for a model into its signature")
        if role not in ROLES:
            raise NodeOutputError(f"the message {brief(dict(message))} has the role {role!r}: give one of {ROLES}")
        if role == "tool" and not isinstance(message.get("tool_call_id"), str):
            raise NodeOutputError(f"the result of a tool {brief(dict(message))} lacks its tool_call_id")
        if not isinstance(content, (str, list, FrozenList)) and not (content is None and message.get("tool_calls")):
            raise NodeOutputError(f"the message {brief(dict(message))} has no content: give a text")
        if message.get("tool_calls"):
            _check_calls(message)


EXAMPLE_CALL = '{"id": "call_0_0", "type": "function", "function": {"name": "search", "arguments": "{}"}}'


def _check_calls(message: Mapping[str, Any]) -> None:
    """Refuses calls of tools that no provider would accept, and that nothing could be shown of."""
    calls = message["tool_calls"]
    found: set[str] = set()
    who = f"the message {brief(dict(message))}"
    if message.get("role") != "assistant":
        raise NodeOutputError(f"{who} has tool_calls: only an assistant calls tools")
    for call in calls if isinstance(calls, (list, tuple, FrozenList)) else [calls]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not all(
            isinstance(text, str) for text in (call.get("id"), function.get("name"), function.get("arguments"))
        ):
            raise NodeOutputError(f"{who} has the tool call {brief(call)}: a call is a dict such as {EXAMPLE_CALL}")
        if not _is_json_object(function["arguments"] or "{}"):
            raise NodeOutputError(
                f"{who} calls {function['name']!r} with the arguments {brief(function['arguments'])}: give a JSON "
                "object as text, json.dumps(...)"
            )
        if call["id"] in found:
            raise NodeOutputError(f"{who} has two calls with the id {call['id']!r}: give each call its own")
        found.add(call["id"])


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def item_type(annotation: Any) -> Any:
    """The type of one message of a field; raises `TypeError` if messages of this type cannot have an `id`."""
    if hasattr(annotation, "__required_keys__"):  # a TypedDict, of typing or of typing_extensions
        attributes = {*annotation.__required_keys__, *annotation.__optional_keys__}
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        attributes = {"id"} if annotation.model_config.get("extra") == "allow" else set(annotation.model_fields)
    elif isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        attributes = {field.name for field in dataclasses.fields(annotation)}
    elif get_origin(annotation) is None and annotation in (str, int, float, bool, bytes):
        attributes = set()
    else:
        return annotation
    if "id" not in attributes:
        raise TypeError(
            "reducer 'add_messages' needs messages with an `id`, and "
            f"{getattr(annotation, '__name__', annotation)} has none: add `id: str | None = None`"
        )
    return annotation
