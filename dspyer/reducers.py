"""Reducers: how an update folds into a field.

A reducer is a pure function `(current, update) -> new`. A field gets one by `Annotated`, and what a node returns for
the field is then an update, not a value: `extend` takes the new items alone, `increment` the amount. At a join the
updates of all branches fold in, in branch order. Where an update puts a value under a key (`update`, `add_messages`),
two branches that put different values under one key conflict at this key.

    class Research(BaseModel):
        findings: Annotated[list[str], reducers.extend] = []
        calls: Annotated[int, reducers.increment] = 0

Any function of two arguments is a reducer. It gets frozen values, and must not keep or change them.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from dataclasses import replace as derived
from typing import Any, NamedTuple, get_args, get_origin

from dspyer import message_list
from dspyer.errors import NodeOutputError, brief, missing_in
from dspyer.hints import signature_of, without_none
from dspyer.patch import DELETE, Replace, apply_value
from dspyer.patch import Updates as Updates
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, FrozenList
from dspyer.values.scalars import Uncopied

__all__ = [
    "BUILT_IN",
    "Keyed",
    "Reducer",
    "Updates",
    "add_messages",
    "append",
    "conversation",
    "conversations",
    "extend",
    "increment",
    "log",
    "max",
    "min",
    "patch",
    "replace",
    "union",
    "update",
]


@dataclass(frozen=True, slots=True)
class Reducer(Uncopied):
    """The rule by which updates fold into a field.

    Attributes:
        name: its name in errors.
        function: the fold, `(current, update) -> new`, over frozen values.
        empty: what a field without a value starts from; `DELETE` if its first update is its value.
        check: raises `NodeOutputError` for an invalid update, with what to return instead. None for a user's function.
        update_type: the type of an update, from the type of the field; raises `TypeError` if the reducer does not fit
            the field. None if only the new value can be validated.
        assign_ids: adds ids to the parts of an update, `(update, id of the commit, current) -> update`. They are
            derived from the id of the commit, so that a replay of the commit assigns the same ones.
        hint: advice that an error about an invalid update ends with.
        folds: whether the updates of sibling branches fold. If not, they conflict like those of a field without
            a reducer.
        parts: the parts that an update adds, as (key, part): items of a list, keys of a mapping, the amount added to a
            sum; the key is None where parts have none. None if updates have no parts.
        kind: what the parts make up: `"items"`, `"messages"`, `"keys"`, `"members"` or `"amount"`. A whole value of
            messages or members has the parts that it has as an update; of others, its type says what they are.
        append_only: whether nodes can neither replace nor reset the field.
        keyed: how to find values by key, where a later value replaces an earlier one with the same key: sibling
            branches that put different values under one key conflict there. None if nothing is replaced by key.
        appends: whether the new value of a list is always the old one with more at its end.
        transient: whether the next commit of a branch resets the field unless it writes it, of a reducer that does
            not fold.

    Example:
        >>> longest = Reducer("longest", lambda current, update: current
        ...     if len(current) >= len(update) else update)
        >>> longest("rates", "on rates")
        'on rates'
    """

    name: str
    function: Callable[[Any, Any], Any]
    empty: Any = DELETE
    check: Callable[[Any], None] | None = None
    update_type: Callable[[Any], Any] | None = None
    assign_ids: Callable[[Any, str, Any], Any] | None = None
    hint: str = ""
    folds: bool = True
    parts: Callable[[Any], Iterable[tuple[Any, Any]]] | None = None
    kind: str = "items"
    append_only: bool = False
    keyed: Keyed | None = None
    appends: bool = False
    transient: bool = False

    @classmethod
    def of(cls, function: object) -> Reducer:
        """The reducer for an object in `Annotated`.

        Args:
            function: a reducer, or a callable `(current, update) -> new`.

        Returns:
            The reducer.

        Raises:
            TypeError: if it is neither.

        Example:
            >>> import operator
            >>> Reducer.of(operator.add)(["a"], ["b"])
            FrozenList(['a', 'b'])
        """
        if isinstance(function, Reducer):
            return function
        if not callable(function) or isinstance(function, type):
            known = ", ".join(f"reducers.{name}" for name in BUILT_IN)
            raise TypeError(
                f"{brief(function)} is no reducer; use one of {known}, or a function (current, update) -> new"
            )
        name = str(getattr(function, "__name__", type(function).__name__))
        if inspect.iscoroutinefunction(function):
            raise TypeError(
                f"reducer {name!r} is async, and a fold cannot await: make it a plain function, and await in the node "
                "that writes the field"
            )
        try:
            signature_of(function).bind(None, None)
        except TypeError:
            raise TypeError(
                f"reducer {name!r} must take two arguments, (current, update), and return the new value"
            ) from None
        except ValueError:  # max, min and other builtins have no signature
            pass
        return cls(name, function)

    def fold(self, current: Any, update: Any) -> Any:
        """Folds a valid, frozen update in: a call of the reducer without its checks.

        Args:
            current: the frozen value of the field, `DELETE` if it has none.
            update: the frozen update.

        Returns:
            The frozen new value.

        Example:
            >>> extend.fold(freeze(["a"]), freeze(["b"]))
            FrozenList(['a', 'b'])
        """
        # Without an empty value the first update is the value: there is nothing that `max` could begin with.
        if current is DELETE:
            if self.empty is DELETE:
                return update
            current = self.empty
        return freeze(self.function(current, update))

    def __call__(self, current: Any, update: Any) -> Any:
        """Folds one update of plain values, as a field of a graph would.

        Raises:
            NodeOutputError: if the update is invalid.

        Example:
            >>> extend(["a"], ["b"])
            FrozenList(['a', 'b'])
        """
        if self.check is not None:
            self.check(update)
        frozen = current if current is DELETE else freeze(current)
        if self.assign_ids is not None:
            update = self.assign_ids(update, "update", frozen)
        return self.fold(frozen, freeze(update))

    def __repr__(self) -> str:
        return f"reducers.{self.name}" if BUILT_IN.get(self.name) is self else f"Reducer({self.name})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        if BUILT_IN.get(self.name) is self:
            return self.name  # pickled by reference, as a name of this module
        return Reducer, tuple(getattr(self, field.name) for field in fields(self))


class Keyed(NamedTuple):
    """The functions of a field where a later value replaces an earlier one with the same key.

    Attributes:
        find: the value under a key, `DELETE` if there is none: `(value of the field, key) -> value`.
        make_update: one update that sets values by key.
        without: the value of the field without a key: `(value of the field, key) -> value of the field`.

    Example:
        >>> (update.keyed.find(freeze({"a": 1}), "a"),
        ...     update.keyed.make_update({"b": 2}))
        (1, FrozenDict({'b': 2}))
    """

    find: Callable[[Any, Any], Any]
    make_update: Callable[[Mapping[Any, Any]], Any]
    without: Callable[[Any, Any], Any]


# The built-in reducers follow, each behind the functions that it consists of. A new one is a group of these, and a row
# in the table of tests/test_reducers.py.


def _any_update(update: Any) -> None:
    """A check that accepts every update."""
    del update


def _as_one_part(update: Any) -> Iterable[tuple[Any, Any]]:
    return ((None, update),)


# --- patch, replace: what a field without a reducer does, and the plain assignment


patch = Reducer("patch", apply_value, folds=False)
replace = Reducer("replace", lambda _current, update: update, folds=False)


# --- append, log, extend: lists


def _append(current: FrozenList[Any], item: Any) -> FrozenList[Any]:
    return current.plus((item,))


def _extend(current: FrozenList[Any], items: Any) -> FrozenList[Any]:
    return current.plus(items.raw_items() if isinstance(items, FrozenList) else items)


def _check_extend(update: Any) -> None:
    if isinstance(update, (list, tuple, FrozenList)):
        return
    if isinstance(update, (AbstractSet, Iterator)):
        raise _refused("extend", "a list of items", update, "return them as a list, in the order that is meant")
    raise _refused("extend", "a list of items", update, f"return [{brief(update)}], or give the field reducers.append")


def _item_type(name: str) -> Callable[[Any], Any]:
    def update_type(annotation: Any) -> Any:
        return _type_arguments(annotation, name, list)[0]

    return update_type


def _items(update: Any) -> Iterable[tuple[Any, Any]]:
    return [(None, item) for item in (update.raw_items() if isinstance(update, FrozenList) else update)]


_LOG_HINT = "log takes one item; for several return Updates(*items)"

append = Reducer(
    "append",
    _append,
    message_list.EMPTY,
    _any_update,
    _item_type("append"),
    hint="append takes one item; for a list of items give the field reducers.extend",
    parts=_as_one_part,
    appends=True,
)
log = derived(append, name="log", append_only=True, update_type=_item_type("log"), hint=_LOG_HINT)
extend = Reducer(
    "extend",
    _extend,
    message_list.EMPTY,
    _check_extend,
    lambda annotation: list[_type_arguments(annotation, "extend", list)[0]],  # type: ignore[misc]  # made at run time
    parts=_items,
    appends=True,
)


# --- update: mappings


def _update(current: FrozenDict[Any, Any], update: FrozenDict[Any, Any]) -> FrozenDict[Any, Any]:
    for key, value in update.raw_items():
        current = current.set(key, value)
    return current


def _check_update(update: Any) -> None:
    if not isinstance(update, Mapping):
        raise _refused("update", "a dict of the keys to set", update, 'return for example {"key": value}')
    if any(value is DELETE or isinstance(value, Replace) for value in update.values()):
        advice = "return Replace({...}) with the whole dict, or give the field no reducer: a patch can delete keys"
        raise _refused("update", "values, not markers", update, advice)


def _update_type(annotation: Any) -> Any:
    key, value = _type_arguments(annotation, "update", dict)
    return dict[key, value]  # type: ignore[valid-type]  # a type made at run time


update = Reducer(
    "update",
    _update,
    FrozenDict(),
    _check_update,
    _update_type,
    parts=FrozenDict.raw_items,
    kind="keys",
    keyed=Keyed(lambda value, key: value.raw(key, DELETE), FrozenDict, FrozenDict.discard),
)


# --- increment: numbers


def _check_increment(update: Any) -> None:
    containers = (bool, str, bytes, Mapping, Sequence, AbstractSet)
    if isinstance(update, containers) or not hasattr(update, "__add__"):
        raise _refused("increment", "the amount to add", update, "return a number, for example 1")


def _increment_type(annotation: Any) -> Any:
    bare = without_none(annotation)
    if (get_origin(bare) or bare) in (str, bytes, bool, list, tuple, dict, set, frozenset):
        raise TypeError(f"reducer 'increment' needs a field of numbers, not {getattr(bare, '__name__', bare)}")
    return bare


increment = Reducer("increment", operator.add, 0, _check_increment, _increment_type, parts=_as_one_part, kind="amount")


# --- union: sets


def _union(current: frozenset[Any], update: Any) -> frozenset[Any]:
    # The same object if nothing is new: then the state does not change, and nothing is measured or stored.
    new = [item for item in update if item not in current]
    return type(current)([*current, *new]) if new else current


def _check_union(update: Any) -> None:
    if isinstance(update, (str, bytes, Mapping)) or not isinstance(update, (AbstractSet, list, tuple, FrozenList)):
        raise _refused("union", "a set of items", update, f"return {{{brief(update)}}}")


def _members(members: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Members of a set, each its own key; sorted by their text, since the order of a set differs between processes."""
    return [(item, item) for item in sorted(members, key=repr)]


union = Reducer(
    "union",
    _union,
    freeze(set()),
    _check_union,
    lambda annotation: set[_type_arguments(annotation, "union", set, frozenset)[0]],  # type: ignore[misc]  # as above
    parts=_members,
    kind="members",
)


# --- add_messages, conversation: messages by id, see `message_list`


def _messages_type(annotation: Any) -> Any:
    message = message_list.item_type(_type_arguments(annotation, "add_messages", list)[0])
    return list[message]  # type: ignore[valid-type]  # a type made at run time


add_messages = Reducer(
    "add_messages",
    message_list.add,
    message_list.EMPTY,
    message_list.check,
    _messages_type,
    message_list.assign_ids,
    parts=message_list.parts,
    kind="messages",
    keyed=Keyed(message_list.find, message_list.make_update, message_list.without),
)
conversation = derived(
    add_messages,
    name="conversation",
    function=message_list.add_new,
    check=message_list.check_chat,
    keyed=None,
    append_only=True,
    appends=True,
)


# --- conversations: a conversation under each key


def _fold_by_key(current: FrozenDict[Any, Any], update: FrozenDict[Any, Any]) -> FrozenDict[Any, Any]:
    for key, messages in update.raw_items():
        current = current.set(key, conversation.fold(current.raw(key, DELETE), messages))
    return current


def _check_by_key(update: Any) -> None:
    if not isinstance(update, Mapping):
        raise _refused("conversations", "a dict of messages by key", update, 'return for example {"key": message}')
    for messages in update.values():
        message_list.check_chat(messages)


def _type_by_key(annotation: Any) -> Any:
    key, value = _type_arguments(annotation, "conversations", dict)
    return dict[key, _messages_type(value)]  # type: ignore[misc, valid-type]  # a type made at run time


def _assign_ids_by_key(update: Any, commit_id: str, current: Any) -> dict[Any, Any]:
    values = current if isinstance(current, FrozenDict) else FrozenDict()
    items = update.raw_items() if isinstance(update, FrozenDict) else update.items()
    return {key: message_list.assign_ids(value, commit_id, values.raw(key, DELETE)) for key, value in items}


conversations = Reducer(
    "conversations", _fold_by_key, FrozenDict(), _check_by_key, _type_by_key, _assign_ids_by_key, append_only=True
)


# --- min, max: whatever can be compared


min = Reducer("min", builtins.min, DELETE, _any_update, without_none)  # noqa: A001  # users write `reducers.min`
max = Reducer("max", builtins.max, DELETE, _any_update, without_none)  # noqa: A001  # users write `reducers.max`


BUILT_IN: Mapping[str, Reducer] = types.MappingProxyType(
    {reducer.name: reducer for reducer in list(vars().values()) if isinstance(reducer, Reducer)}
)
"""The built-in reducers by name."""

__getattr__ = missing_in(__name__)

WITH_PARTS = ", ".join([name for name, reducer in BUILT_IN.items() if reducer.parts is not None])
"""The names of those that keep what each update has brought apart, for errors."""


# --- shared by the checks and types above


def _refused(name: str, wants: str, update: Any, advice: str) -> NodeOutputError:
    if update is None:
        advice = "leave the field out to change nothing, or return DELETE to reset it"
    return NodeOutputError(f"reducer {name!r} takes {wants}, not {type(update).__name__} {brief(update)}; {advice}")


def _type_arguments(annotation: Any, name: str, *containers: type) -> tuple[Any, ...]:
    """The type arguments of a field's container type, `Any` where it has none; refuses any other type."""
    bare = without_none(annotation)
    origin = get_origin(bare) or bare
    if bare is Any:
        return (Any, Any)
    if origin not in containers:
        text = getattr(bare, "__name__", bare) if get_origin(bare) is None else bare
        raise TypeError(f"reducer {name!r} needs a field of type {containers[0].__name__}, not {text}")
    return get_args(bare) or (Any, Any)
