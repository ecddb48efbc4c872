"""Lists of messages as `reducers.add_messages` keeps them: one message per id, in the order in which they came.

A message is a mapping with an `"id"`, or an object with an `id` (a pydantic model, a dataclass).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, get_origin

from pydantic import BaseModel

from dspyer.errors import NodeOutputError, brief
from dspyer.patch import DELETE
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import CopyOnRead, FrozenDict, FrozenList
from dspyer.values.persistent import SMALL, PersistentMap

EMPTY: FrozenList[Any] = FrozenList()
EXAMPLE = '{"role": "user", "content": "..."}'
ROLES = ("user", "assistant", "tool")
TURN = "turn"
"""The key under which the turn of a node holds the values of its signature."""
IdIndex = PersistentMap[Any, int]
NO_IDS: IdIndex = PersistentMap()

CACHED = 32  # long lists whose ids are known at once


class IdIndexCache:
    """The places of the ids in the long lists used last: a cache, so that adding one message to many reads one.

    Lists are known by identity, and are held so that no identity is used twice. The older half goes when the younger
    is full.
    """

    def __init__(self) -> None:
        self.young: dict[int, tuple[FrozenList[Any], IdIndex]] = {}
        self.old: dict[int, tuple[FrozenList[Any], IdIndex]] = {}

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    def get(self, messages: FrozenList[Any]) -> IdIndex | None:
        """The places of a list, None if it is not known."""
        found = self.young.get(id(messages))
        if found is None:
            found = self.old.get(id(messages))
            if found is not None:
                self.put(messages, found[1])
        return None if found is None else found[1]

    def put(self, messages: FrozenList[Any], places: IdIndex) -> None:
        """Remembers the places of a list, if it is long."""
        if len(messages) > SMALL:
            if len(self.young) >= CACHED // 2:
                self.old, self.young = self.young, {}
            self.young[id(messages)] = messages, places


index_cache = IdIndexCache()


def item_type(annotation: Any) -> Any:
    """The type of the messages of a field, refused if it has no place for an id.

    Args:
        annotation: the type of one message.

    Raises:
        TypeError: if messages of this type cannot have an `id`.
    """
    if hasattr(annotation, "__required_keys__"):  # a TypedDict, of typing or of typing_extensions
        named = {*annotation.__required_keys__, *annotation.__optional_keys__}
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        named = {"id"} if annotation.model_config.get("extra") == "allow" else set(annotation.model_fields)
    elif isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        named = {field.name for field in dataclasses.fields(annotation)}
    elif get_origin(annotation) is None and annotation in (str, int, float, bool, bytes):
        named = set()
    else:
        return annotation
    if "id" not in named:
        raise TypeError(
            "reducer 'add_messages' needs messages with an `id`, and "
            f"{getattr(annotation, '__name__', annotation)} has none: add `id: str | None = None`"
        )
    return annotation


def check(update: Any) -> None:
    """Refuses what is neither a message nor a list of messages."""
    for message in _listed(update):
        if not isinstance(message, Mapping) and not hasattr(message, "id"):
            raise NodeOutputError(
                f"reducer 'add_messages' takes one message or a list of messages, not {type(message).__name__} "
                f"{brief(message)}; a message is a dict such as {EXAMPLE} or an object with an `id`"
            )


def assign_ids(update: Any, commit_id: str, current: Any = DELETE) -> list[Any]:
    """The messages of an update, each with an id: the same one however often its commit is made.

    Args:
        update: one message or a list of messages.
        commit_id: what missing ids are derived from.
        current: the messages so far. A derived id is never one of theirs, so that a conversation which is handed from
            run to run loses nothing.

    Returns:
        The messages; those without an id as copies with one.

    Example:
        >>> assign_ids({"role": "user", "content": "Hi"}, "trunk:3")
        [{'role': 'user', 'content': 'Hi', 'id': 'trunk:3/0'}]
    """
    messages = _listed(update)
    ids = [_id_of(message) for message in messages]
    if None not in ids:
        return list(messages)
    places = _index_of_ids(current) if isinstance(current, FrozenList) else NO_IDS
    taken = set(ids)
    with_ids = []
    for index, message in enumerate(messages):
        if ids[index] is None:
            new_id = _free_id(f"{commit_id}/{index}", taken, places)
            taken.add(new_id)
            with_ids.append(_with_id(message, new_id))
        else:
            with_ids.append(message)
    return with_ids


def _free_id(wanted: str, taken: AbstractSet[Any], places: IdIndex) -> str:
    tries = itertools.chain([wanted], (f"{wanted}~{again}" for again in itertools.count(2)))
    return next(each for each in tries if each not in taken and each not in places)


def parts(update: FrozenList[Any]) -> list[tuple[Any, Any]]:
    """The messages of an update, each with its id."""
    return [(_id_of(message), message) for message in update.raw_items()]


def find(messages: FrozenList[Any], key: Any) -> Any:
    """The message with an id; `DELETE` if there is none."""
    place = _index_of_ids(messages).get(key)
    return DELETE if place is None else messages.raw(place)


def make_update(found: Mapping[Any, Any]) -> FrozenList[Any]:
    """The update that adds messages, given by id."""
    return EMPTY.plus(list(found.values()))


def without(messages: FrozenList[Any], key: Any) -> FrozenList[Any]:
    """The messages without the one with an id."""
    return EMPTY.plus([message for message in messages.raw_items() if _id_of(message) != key])


def add(current: FrozenList[Any], update: FrozenList[Any]) -> FrozenList[Any]:
    """Adds messages; one with a known id takes the place of the message that has it.

    Args:
        current: the messages so far.
        update: the messages to add.

    Returns:
        The new list.
    """
    before, places = len(current), _index_of_ids(current)
    replaced: dict[int, Any] = {}
    added: list[Any] = []
    for message in update.raw_items():
        key = _id_of(message)
        place = None if key is None else places.get(key)
        if place is None:
            added.append(message)
            places = places if key is None else places.set(key, before + len(added) - 1)
        elif place < before:
            replaced[place] = message
        else:
            added[place - before] = message
    if replaced:
        kept = [replaced.get(place, message) for place, message in enumerate(current.raw_items())]
        current = EMPTY.plus(kept)
    new = current.plus(added)
    index_cache.put(new, places)
    return new


def check_chat(update: Any) -> None:
    """Refuses what is no chat message, and system messages."""
    for message in _listed(update):
        if not isinstance(message, Mapping):
            raise NodeOutputError(
                f"a message is a dict such as {EXAMPLE}, not {type(message).__name__} {brief(message)}"
            )
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer"):
            raise NodeOutputError(
                "system messages are not kept: put what a model is told into the instructions of its signature"
            )
        if role not in ROLES:
            raise NodeOutputError(f"the message {brief(dict(message))} has the role {role!r}: give one of {ROLES}")
        if role == "tool" and not isinstance(message.get("tool_call_id"), str):
            raise NodeOutputError(f"the result of a tool {brief(dict(message))} lacks its tool_call_id")
        if not isinstance(content, (str, list, FrozenList)) and not (content is None and message.get("tool_calls")):
            raise NodeOutputError(f"the message {brief(dict(message))} has no content: give a text")


def add_new(current: FrozenList[Any], update: FrozenList[Any]) -> FrozenList[Any]:
    """Adds messages to a list that only grows; one that is there already is not added again.

    Args:
        current: the messages so far.
        update: the messages to add.

    Returns:
        The new list.

    Raises:
        NodeOutputError: if another message has the id of one that is there.
    """
    places = _index_of_ids(current)
    known: list[Any] | None = None
    new: dict[Any, Any] = {}
    for message in update.raw_items():
        key = _id_of(message)
        place = places.get(key)
        if place is not None and known is None:
            known = list(current.raw_items())
        there = new.get(key) if place is None or known is None else known[place]
        if there is None:
            new[key] = message
        elif not same(there, message):
            raise NodeOutputError(
                f"the message {_id_of(message)!r} is there already with another content: messages are only added, so "
                "give this one an id of its own, or none"
            )
    return add(current, EMPTY.plus(list(new.values()))) if new else current


def _listed(update: Any) -> Any:
    return update if isinstance(update, (list, tuple, FrozenList)) else [update]


def _index_of_ids(messages: FrozenList[Any]) -> IdIndex:
    known = index_cache.get(messages)
    if known is not None:
        return known
    ids = (_id_of(message) for message in messages.raw_items())
    places: IdIndex = PersistentMap({key: place for place, key in enumerate(ids) if key is not None})
    index_cache.put(messages, places)
    return places


def _id_of(message: Any) -> Any:
    if isinstance(message, FrozenDict):
        return message.raw("id", None)
    if isinstance(message, Mapping):
        return message.get("id")
    return getattr(message.open() if isinstance(message, CopyOnRead) else message, "id", None)


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
