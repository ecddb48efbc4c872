"""The reducers of LangGraph's channels as reducers of dspyer.

A function that folds updates was written for plain values, and may change what it is given: it gets a plain copy of
the old value and of the update, and its result is frozen. Where that copy would be the main cost and cannot matter,
with an addition of lists and messages that are only added, the frozen values are folded without it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

from langchain_core.messages import (
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    RemoveMessage,
    convert_to_messages,
    message_chunk_to_message,
)
from langgraph.channels import BinaryOperatorAggregate, DeltaChannel
from langgraph.graph.message import add_messages

from dspyer import message_list
from dspyer.errors import NodeOutputError, brief
from dspyer.migrate.dict_classes import rebuilt_dict
from dspyer.migrate.internals import add_message_batches
from dspyer.nodes.callables import mentions
from dspyer.patch import DELETE
from dspyer.reducers import BUILT_IN, Reducer
from dspyer.values.freezing import freeze
from dspyer.values.frozen import CopyOnRead, FrozenList, thaw

ADD_MESSAGES: Any = add_messages
_VARIABLE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_BARE_ADD_MESSAGES = ADD_MESSAGES(format=None).func  # of which add_messages(format=...) makes a partial


def reducer_of(channel: BinaryOperatorAggregate[Any] | DeltaChannel[Any]) -> Reducer:
    """Return the reducer of a field that does what a channel does."""
    if isinstance(channel, DeltaChannel):
        function: Callable[..., Any] = channel.reducer
        fold: Callable[[Any, Any], Any] = partial(_fold_batch, function)
    else:
        function = channel.operator
        fold = partial(_fold_messages if _adds_messages(function) else _fold_plain, function)
        if (rebuilt := rebuilt_dict(channel.typ)) is not None:
            fold = partial(_fold_dicts, rebuilt, function)
    return Reducer(_name(function), fold, update_type=_anything, assign_ids=_stamp_of(channel, function))


def start_of(channel: BinaryOperatorAggregate[Any] | DeltaChannel[Any]) -> Any:
    """Return the frozen value that a channel has before its first update; `DELETE` if it has none.

    Raises what the type of the channel raises, and `UnsupportedValueError` for a value that no state can hold.
    """
    if isinstance(channel, DeltaChannel):
        return freeze(channel.typ())
    return freeze(channel.get()) if channel.is_available() else DELETE


def _name(function: Callable[..., Any]) -> str:
    """The name under which a fingerprint has a reducer: never that of a reducer of dspyer, which folds otherwise."""
    name = "add_messages" if _adds_messages(function) else str(getattr(function, "__name__", type(function).__name__))
    return f"langgraph.{name}" if name in BUILT_IN else name


def _anything(_annotation: Any) -> Any:
    return Any


# --- folds


def _fold_plain(function: Callable[[Any, Any], Any], current: Any, update: Any) -> Any:
    if type(current) is FrozenList and type(update) is FrozenList and _is_addition(function):
        return current.plus(update.raw_items())
    return function(thaw(current), thaw(update))


_ADDITION = (lambda left, right: left + right).__code__


def _is_addition(function: Any) -> bool:
    """Whether a function only adds its two arguments: `operator.add`, or a function with the code of an addition."""
    if function is operator.add:
        return True
    code = function.__code__ if type(function) is FunctionType else None
    return code is not None and (code.co_argcount, code.co_flags & _VARIABLE, code.co_code) == (2, 0, _ADDITION.co_code)


def _fold_dicts(rebuilt: Callable[[Any], Any], function: Callable[[Any, Any], Any], current: Any, update: Any) -> Any:
    return function(rebuilt(thaw(current)), rebuilt(thaw(update)))


def _fold_batch(function: Callable[[Any, Sequence[Any]], Any], current: Any, update: Any) -> Any:
    if function is add_message_batches and _only_adds(current, update):
        return _added(current, update)
    return function(thaw(current), [thaw(update)])


def _fold_messages(function: Callable[[Any, Any], Any], current: Any, update: Any) -> Any:
    if function is ADD_MESSAGES and _only_adds(current, update):
        return _added(current, update)
    return function(_with_ids(_messages(thaw(current)), "left", ()), thaw(update))


_of_messages: message_list.ListCache[bool] = message_list.ListCache()


def _added(current: FrozenList[Any], update: FrozenList[Any]) -> FrozenList[Any]:
    new = message_list.add(current, update)
    _of_messages.put(new, True)
    return new


def _only_adds(current: Any, update: Any) -> bool:
    """Whether messages are added to messages or replace those with their ids, and none is removed."""
    return (
        _all_messages(current)
        and type(update) is FrozenList
        and all(type(each) is CopyOnRead and _only_added(each.cls) for each in update.raw_items())
    )


def _all_messages(value: Any) -> bool:
    if type(value) is not FrozenList:
        return False
    if _of_messages.get(value):
        return True
    classes = {each.cls if type(each) is CopyOnRead else None for each in value.raw_items()}
    return all(cls is not None and issubclass(cls, BaseMessage) for cls in classes)


def _only_added(cls: type) -> bool:
    return issubclass(cls, BaseMessage) and not issubclass(cls, (BaseMessageChunk, RemoveMessage))


# --- ids of messages


def _adds_messages(function: Any) -> bool:
    return function is ADD_MESSAGES or (isinstance(function, partial) and function.func is _BARE_ADD_MESSAGES)


def _stamp_of(channel: object, function: Any) -> Callable[[Any, str, Any], Any] | None:
    """Return how updates get the ids of their messages; None for a reducer that assigns none."""
    if _adds_messages(function):
        return _stamp
    if isinstance(channel, DeltaChannel):
        return _stamp_each if function is add_message_batches else partial(_stamp_found, ())
    return partial(_stamp_found, (str, tuple)) if mentions(function, ADD_MESSAGES) else None


def _stamp(update: Any, commit_id: str, current: Any) -> list[BaseMessage]:
    """Return the messages of an update, each with an id."""
    return _with_ids(_messages(thaw(update)), commit_id, current)


def _stamp_each(update: Any, commit_id: str, current: Any) -> list[BaseMessage]:
    """The same for a channel in which an empty id counts as none."""
    return _with_ids(
        [each.model_copy(update={"id": None}) if each.id == "" else each for each in _messages(thaw(update))],
        commit_id,
        current,
    )


def _stamp_found(others: tuple[type, ...], update: Any, commit_id: str, current: Any) -> Any:
    """Return an update in which messages have ids: objects, and in lists also the dicts that stand for one.

    Items of the types `others` stand for messages too. Everything else stays as it is.
    """
    value = thaw(update)
    if not isinstance(value, list):
        if isinstance(value, BaseMessage):
            return _with_ids([value], commit_id, current)[0]
        if _stands_for_message(value) and not value.get("id"):
            return {**value, "id": _with_ids([HumanMessage("")], commit_id, current)[0].id}
        return value
    items = [_messages(each)[0] if isinstance(each, others) or _stands_for_message(each) else each for each in value]
    stamped = iter(_with_ids([each for each in items if isinstance(each, BaseMessage)], commit_id, current))
    return [next(stamped) if isinstance(each, BaseMessage) else each for each in items]


_ROLES = frozenset({"user", "human", "assistant", "ai", "tool", "system", "function"})
_TYPES = frozenset({"human", "ai", "tool", "system", "function", "remove"})


def _stands_for_message(value: Any) -> bool:
    return isinstance(value, dict) and (value.get("role") in _ROLES or value.get("type") in _TYPES)


def _messages(value: Any) -> list[BaseMessage]:
    """Return the messages that LangChain reads in a value: one message or a list, in any of its notations."""
    given = value if isinstance(value, list) else [value]
    try:
        found = convert_to_messages(given)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise NodeOutputError(f"{brief(value)} is no message or list of messages: {error}") from error
    return [message_chunk_to_message(each) if isinstance(each, BaseMessageChunk) else each for each in found]


def _with_ids(messages: Iterable[BaseMessage], commit_id: str, current: Any) -> list[BaseMessage]:
    """Return messages, those without an id with one that is derived from the commit and that no other message has."""
    return message_list.assign_ids(list(messages), commit_id, freeze(current) if current is not DELETE else current)


MESSAGES = replace(reducer_of(BinaryOperatorAggregate(list, ADD_MESSAGES)), empty=FrozenList())
"""The reducer of LangGraph's messages, by which a stored thread is read without its program."""
