"""Reducers: how an update folds into a field.

A reducer is a pure function `(current, update) -> new`. It is given to a field of a schema by `Annotated`, and what a
node returns for the field is then an update, not a value: `extend` takes the new items alone, `increment` the amount.
The updates of branches are folded in branch order. Where an update puts a value under a key (`update`, `add_messages`),
two branches that put different values under one key conflict at this key.

    class Research(BaseModel):
        findings: Annotated[list[str], reducers.extend] = []
        calls: Annotated[int, reducers.increment] = 0

Any function of two arguments will do. It gets frozen values and must not keep or change anything.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Union, get_args, get_origin

from dspyer import message_list as messages
from dspyer.errors import NodeOutputError, brief
from dspyer.hints import signature_of
from dspyer.patch import DELETE, Replace, apply_value
from dspyer.patch import Updates as Updates
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, FrozenList

UNIONS = (Union, types.UnionType)


class Keyed(NamedTuple):
    """How a reducer keeps one value per key, of which a later one takes the place of an earlier one.

    Attributes:
        find: gives the value under a key of the field, `DELETE` if there is none: `(value, key) -> value`.
        make_update: makes one update of values by key.
        without: gives the field without a key: `(value, key) -> value`.
    """

    find: Callable[[Any, Any], Any]
    make_update: Callable[[Mapping[Any, Any]], Any]
    without: Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Reducer:
    """How updates fold into a field.

    Attributes:
        name: what errors call it.
        function: the fold, `(current, update) -> new`, over frozen values.
        empty: what a field without a value starts from; `DELETE` if the first update is the value.
        check: raises if an update has the wrong kind, naming what to return instead.
        update_type: the type of an update to a field of the given type; None where only the new value can be validated.
            Raises `TypeError` if the reducer does not fit the type.
        assign_ids: makes an update replayable: `(update, id of its commit, current) -> update`.
        hint: what an error about an invalid update adds.
        folds: whether the updates of sibling branches fold. If not, they conflict like those of a field without
            reducer.
        parts: gives the parts that an update adds, as (key, part): items of a list, keys of a mapping, one amount of a
            sum; the key is None where parts have none. None if updates have no parts.
        kind: what the parts make up: `"items"`, `"messages"`, `"keys"`, `"members"` or `"amount"`.
        parts_of_value: gives the parts of a whole value, where they have keys that its kind does not tell.
        append_only: whether what is there stays: nodes can neither replace nor reset the field.
        keyed: how values are found by key, where a later value takes the place of an earlier one with the same key:
            sibling branches that put different values under one key conflict there. None where nothing takes the
            place of anything.
        appends: whether the new value of a list is always the one before with more at its end.
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
    parts_of_value: Callable[[Any], Iterable[tuple[Any, Any]]] | None = None
    append_only: bool = False
    keyed: Keyed | None = None
    appends: bool = False

    @classmethod
    def of(cls, function: object) -> Reducer:
        """The reducer that an object in `Annotated` stands for.

        Args:
            function: a reducer, or a callable `(current, update) -> new`.

        Returns:
            The reducer.

        Raises:
            TypeError: if it is neither.
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
            raise TypeError(f"reducer {name!r} is async: a reducer only folds; await in the node that writes")
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
        """Folds one update in.

        Args:
            current: the frozen value of the field, `DELETE` if it has none.
            update: the frozen update.

        Returns:
            The frozen new value.
        """
        if current is DELETE:
            if self.empty is DELETE:
                return update
            current = self.empty
        return freeze(self.function(current, update))

    def __call__(self, current: Any, update: Any) -> Any:
        """Folds one update of plain values, as a field of a graph would.

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

    def __deepcopy__(self, memo: object) -> Reducer:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        if BUILT_IN.get(self.name) is self:
            return self.name  # a name of this module
        return Reducer, tuple(getattr(self, field.name) for field in fields(self))


def without_none(annotation: Any) -> Any:
    """A type without its `| None`."""
    if get_origin(annotation) in UNIONS:
        rest = [member for member in get_args(annotation) if member is not types.NoneType]
        if len(rest) == 1:
            return rest[0]
    return annotation


def _refuse(name: str, wants: str, update: Any, advice: str) -> NodeOutputError:
    if update is None:
        advice = "leave the field out to change nothing, or return DELETE to reset it"
    return NodeOutputError(f"reducer {name!r} takes {wants}, not {type(update).__name__} {brief(update)}; {advice}")


def _arguments(annotation: Any, name: str, *kinds: type) -> tuple[Any, ...]:
    """The arguments of a container type; `Any` where the type says nothing."""
    bare = without_none(annotation)
    origin = get_origin(bare) or bare
    if bare is Any:
        return (Any, Any)
    if origin not in kinds:
        text = getattr(bare, "__name__", bare) if get_origin(bare) is None else bare
        raise TypeError(f"reducer {name!r} needs a field of type {kinds[0].__name__}, not {text}")
    return get_args(bare) or (Any, Any)


def _item_of(name: str) -> Callable[[Any], Any]:
    def update_type(annotation: Any) -> Any:
        return _arguments(annotation, name, list)[0]

    return update_type


def _extend_type(annotation: Any) -> Any:
    return list[_arguments(annotation, "extend", list)[0]]  # type: ignore[misc]


def _update_type(annotation: Any) -> Any:
    key, value = _arguments(annotation, "update", dict)
    return dict[key, value]  # type: ignore[valid-type]


def _union_type(annotation: Any) -> Any:
    return set[_arguments(annotation, "union", set, frozenset)[0]]  # type: ignore[misc]


def _messages_type(annotation: Any) -> Any:
    return list[messages.item_type(_arguments(annotation, "add_messages", list)[0])]  # type: ignore[misc]


def _increment_type(annotation: Any) -> Any:
    bare = without_none(annotation)
    if (get_origin(bare) or bare) in (str, bytes, bool, list, tuple, dict, set, frozenset):
        raise TypeError(f"reducer 'increment' needs a field of numbers, not {getattr(bare, '__name__', bare)}")
    return bare


def _accept(update: Any) -> None:
    """Any update has the right kind."""
    del update


def _check_extend(update: Any) -> None:
    if isinstance(update, (list, tuple, FrozenList)):
        return
    if isinstance(update, (AbstractSet, Iterator)):
        raise _refuse("extend", "a list of items", update, "return them as a list, in the order that is meant")
    raise _refuse("extend", "a list of items", update, f"return [{brief(update)}], or give the field reducers.append")


def _check_update(update: Any) -> None:
    if not isinstance(update, Mapping):
        raise _refuse("update", "a dict of the keys to set", update, 'return for example {"key": value}')
    if any(value is DELETE or isinstance(value, Replace) for value in update.values()):
        advice = "return Replace({...}) with the whole dict, or give the field no reducer: a patch can delete keys"
        raise _refuse("update", "values, not markers", update, advice)


def _check_union(update: Any) -> None:
    if isinstance(update, (str, bytes, Mapping)) or not isinstance(update, (AbstractSet, list, tuple, FrozenList)):
        raise _refuse("union", "a set of items", update, f"return {{{brief(update)}}}")


def _check_increment(update: Any) -> None:
    containers = (bool, str, bytes, Mapping, Sequence, AbstractSet)
    if isinstance(update, containers) or not hasattr(update, "__add__"):
        raise _refuse("increment", "the amount to add", update, "return a number, for example 1")


def _replace(current: Any, update: Any) -> Any:
    del current
    return update


def _append(current: FrozenList[Any], item: Any) -> FrozenList[Any]:
    return current.plus((item,))


def _extend(current: FrozenList[Any], items: Any) -> FrozenList[Any]:
    return current.plus(items.raw_items() if isinstance(items, FrozenList) else items)


def _update(current: FrozenDict[Any, Any], update: FrozenDict[Any, Any]) -> FrozenDict[Any, Any]:
    for key, value in update.raw_items():
        current = current.set(key, value)
    return current


def _increment(current: Any, update: Any) -> Any:
    return current + update


def _union(current: frozenset[Any], update: Any) -> frozenset[Any]:
    new = [item for item in update if item not in current]
    return type(current)([*current, *new]) if new else current


def _lesser(current: Any, update: Any) -> Any:
    return update if update < current else current  # noqa: FURB136  # `min` is a reducer here


def _greater(current: Any, update: Any) -> Any:
    return update if update > current else current  # noqa: FURB136  # `max` is a reducer here


def _one(update: Any) -> Iterable[tuple[Any, Any]]:
    return ((None, update),)


def _each(update: Any) -> Iterable[tuple[Any, Any]]:
    return [(None, item) for item in (update.raw_items() if isinstance(update, FrozenList) else update)]


def _members(update: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Members of a set, each its own key; in the order of their text, since that of a set differs between processes."""
    return [(item, item) for item in sorted(update, key=repr)]


def _by_key(update: FrozenDict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return update.raw_items()


def _value_of(value: FrozenDict[Any, Any], key: Any) -> Any:
    return value.raw(key, DELETE)


def _without_key(value: FrozenDict[Any, Any], key: Any) -> FrozenDict[Any, Any]:
    return value.discard(key)


EMPTY_LIST: FrozenList[Any] = FrozenList()
ONE_ITEM = "append takes one item; for a list of items give the field reducers.extend"
ONE_ENTRY = "log takes one item; for several return Updates(*items)"

BY_KEY = Keyed(_value_of, FrozenDict, _without_key)
BY_ID = Keyed(messages.find, messages.make_update, messages.without)

patch = Reducer("patch", apply_value, folds=False)
replace = Reducer("replace", _replace, folds=False)
append = Reducer("append", _append, EMPTY_LIST, _accept, _item_of("append"), hint=ONE_ITEM, parts=_one, appends=True)
extend = Reducer("extend", _extend, EMPTY_LIST, _check_extend, _extend_type, parts=_each, appends=True)
log = Reducer(
    "log", _append, EMPTY_LIST, _accept, _item_of("log"), hint=ONE_ENTRY, parts=_one, append_only=True, appends=True
)
update = Reducer("update", _update, FrozenDict(), _check_update, _update_type, parts=_by_key, kind="keys", keyed=BY_KEY)
increment = Reducer("increment", _increment, 0, _check_increment, _increment_type, parts=_one, kind="amount")
union = Reducer(
    "union", _union, freeze(set()), _check_union, _union_type, parts=_members, parts_of_value=_members, kind="members"
)
add_messages = Reducer(
    "add_messages",
    messages.add,
    EMPTY_LIST,
    messages.check,
    _messages_type,
    messages.assign_ids,
    parts=messages.parts,
    kind="messages",
    parts_of_value=messages.parts,
    keyed=BY_ID,
)
conversation = Reducer(
    "conversation",
    messages.add_new,
    EMPTY_LIST,
    messages.check_chat,
    _messages_type,
    messages.assign_ids,
    parts=messages.parts,
    kind="messages",
    parts_of_value=messages.parts,
    append_only=True,
    appends=True,
)
min = Reducer("min", _lesser, DELETE, _accept, without_none)  # noqa: A001
max = Reducer("max", _greater, DELETE, _accept, without_none)  # noqa: A001

BUILT_IN: Mapping[str, Reducer] = types.MappingProxyType(
    {
        each.name: each
        for each in (
            patch,
            replace,
            append,
            log,
            extend,
            update,
            increment,
            union,
            add_messages,
            conversation,
            min,
            max,
        )
    }
)
