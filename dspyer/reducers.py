"""Reducers: how an update folds into a field.

A reducer is a pure function `(current, update) -> new`. It is given to a field of a schema by `Annotated`, and what a node
returns for the field is then an update, not a value: `extend` takes the new items alone, `increment` the amount. Branches that
update one field never conflict; their updates are folded in branch order.

    class Research(BaseModel):
        findings: Annotated[list[str], reducers.extend] = []
        calls: Annotated[int, reducers.increment] = 0

Any function of two arguments will do. It gets frozen values and must not keep or change anything.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from .errors import NodeOutputError, brief
from .patch import DELETE, apply_value
from .values import FrozenDict, FrozenList, freeze, thaw

EMPTY_LIST: FrozenList[Any] = FrozenList()


class Updates:
    """Several updates of one field with a reducer, folded in order.

    Args:
        *updates: the updates, the first one first.

    Example:
        >>> Updates(1, 2)
        Updates(1, 2)
    """

    __slots__ = ("updates",)

    def __init__(self, *updates: Any) -> None:
        flat: list[Any] = []
        for update in updates:
            flat.extend(update.updates if isinstance(update, Updates) else (update,))
        self.updates: tuple[Any, ...] = tuple(flat)

    def __eq__(self, other: object) -> bool:
        return self.updates == other.updates if isinstance(other, Updates) else NotImplemented

    def __hash__(self) -> int:
        return hash((Updates, self.updates))

    def __repr__(self) -> str:
        return f"Updates({', '.join(map(repr, self.updates))})"

    def __reduce__(self) -> tuple[type[Updates], tuple[Any, ...]]:
        return Updates, self.updates


@dataclass(frozen=True, slots=True)
class Reducer:
    """How updates fold into a field.

    Attributes:
        name: what errors call it.
        function: the fold, `(current, update) -> new`, over frozen values.
        empty: what a field without a value starts from; `DELETE` if the first update is the value.
        check: raises if an update has the wrong shape, naming what to return instead.
        update_type: the type of an update to a field of the given type; None where only the new value can be validated. Raises
            `TypeError` if the reducer does not fit the type.
        stamp: makes an update replayable, given the id of its commit.
        folds: whether the updates of sibling branches fold. If not, they conflict like those of a field without reducer.
    """

    name: str
    function: Callable[[Any, Any], Any]
    empty: Any = DELETE
    check: Callable[[Any], None] | None = None
    update_type: Callable[[Any], Any] | None = None
    stamp: Callable[[Any, str], Any] | None = None
    folds: bool = True

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
            raise TypeError(
                f"{brief(function)} is no reducer; use one of dspyer.reducers or a function (current, update) -> new"
            )
        name = str(getattr(function, "__name__", type(function).__name__))
        if function is sum:
            raise TypeError("the built-in sum is no reducer; use reducers.increment")
        try:
            inspect.signature(function).bind(None, None)
        except TypeError:
            raise TypeError(
                f"reducer {name!r} must take two arguments, (current, update), and return the new value"
            ) from None
        except ValueError:  # max, min and other builtins without a signature
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
        if current is DELETE or (current is None and self.check is not None):
            if self.empty is DELETE:
                return update
            current = self.empty
        return freeze(self.function(current, update))

    def __call__(self, current: Any, update: Any) -> Any:
        """Folds one update of plain values, as a field of a graph would."""
        if self.check is not None:
            self.check(update)
        return self.fold(current if current is DELETE else freeze(current), freeze(update))

    def __repr__(self) -> str:
        return f"reducers.{self.name}" if self is BUILT_IN.get(self.name) else f"Reducer({self.name})"


def _refuse(name: str, wants: str, update: Any, advice: str) -> NodeOutputError:
    return NodeOutputError(f"reducer {name!r} takes {wants}, not {type(update).__name__} {brief(update)}; {advice}")


def without_none(annotation: Any) -> Any:
    """A type without its `| None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [member for member in get_args(annotation) if member is not types.NoneType]
        if len(rest) == 1:
            return rest[0]
    return annotation


def _container(annotation: Any, name: str, *kinds: type) -> tuple[Any, ...]:
    """The arguments of a container type; `(Any, ...)` where the type says nothing."""
    bare = without_none(annotation)
    origin = get_origin(bare) or bare
    if bare is Any or origin is object:
        return (Any, Any)
    if not (isinstance(origin, type) and issubclass(origin, kinds)):
        names = " or ".join(kind.__name__ for kind in kinds[:1])
        raise TypeError(f"reducer {name!r} needs a field of type {names}, not {bare!r}")
    return get_args(bare) or (Any, Any)


def _whole_type(annotation: Any) -> Any:
    return without_none(annotation)


# --- lists


def _append_type(annotation: Any) -> Any:
    return _container(annotation, "append", list)[0]


def _append(current: FrozenList[Any], item: Any) -> FrozenList[Any]:
    return current.plus((item,))


def _anything(update: Any) -> None:
    del update


def _extend_type(annotation: Any) -> Any:
    return list[_container(annotation, "extend", list)[0]]  # type: ignore[misc]


def _check_extend(update: Any) -> None:
    if isinstance(update, (str, bytes)) or not isinstance(update, (Sequence, FrozenList)):
        advice = "return its items as a list" if isinstance(update, (Set, Mapping)) else f"return [{brief(update)}]"
        raise _refuse("extend", "a list of items", update, f"{advice}, or give the field reducers.append")


def _extend(current: FrozenList[Any], items: Any) -> FrozenList[Any]:
    return current.plus(items.raw_items() if isinstance(items, FrozenList) else items)


# --- mappings and sets


def _update_type(annotation: Any) -> Any:
    key, value = _container(annotation, "update", dict)
    return dict[key, value]  # type: ignore[valid-type]


def _check_update(update: Any) -> None:
    if not isinstance(update, Mapping):
        raise _refuse("update", "a dict of the keys to set", update, 'return for example {"key": value}')


def _update(current: FrozenDict[Any, Any], update: FrozenDict[Any, Any]) -> FrozenDict[Any, Any]:
    for key, value in update.raw_items():
        current = current.set(key, value)
    return current


def _union_type(annotation: Any) -> Any:
    return set[_container(annotation, "union", set, frozenset)[0]]  # type: ignore[misc]


def _check_union(update: Any) -> None:
    if isinstance(update, (str, bytes, Mapping)) or not isinstance(update, (Set, Sequence)):
        raise _refuse("union", "a set of items", update, f"return {{{brief(update)}}}")


def _union(current: Any, update: Any) -> Any:
    new = [item for item in update if item not in current]
    if not new:
        return current
    union = frozenset(current).union(new)
    return union if type(current) is frozenset else set(union)


# --- numbers and anything with an order


def _check_increment(update: Any) -> None:
    if (
        isinstance(update, (bool, str, bytes, Mapping, Sequence, Set))
        or update is None
        or not hasattr(update, "__add__")
    ):
        raise _refuse("increment", "the amount to add", update, "return a number, for example 1")


def _increment(current: Any, update: Any) -> Any:
    return current + update


def _lesser(current: Any, update: Any) -> Any:
    return update if update < current else current


def _greater(current: Any, update: Any) -> Any:
    return update if update > current else current


# --- messages


def _messages_type(annotation: Any) -> Any:
    return list[_container(annotation, "add_messages", list)[0]]  # type: ignore[misc]


def _check_messages(update: Any) -> None:
    messages = update if isinstance(update, (list, tuple, FrozenList)) else [update]
    for message in messages:
        if not isinstance(message, Mapping) and not hasattr(message, "id"):
            advice = 'a message is a dict such as {"role": "user", "content": "..."} or an object with an `id`'
            raise _refuse("add_messages", "one message or a list of messages", message, advice)


def _message_id(message: Any) -> Any:
    if isinstance(message, FrozenDict):
        return message.raw("id", None)
    return message.get("id") if isinstance(message, Mapping) else getattr(thaw(message), "id", None)


def _with_id(message: Any, new_id: str) -> Any:
    if isinstance(message, Mapping):
        return {**message, "id": new_id}
    if hasattr(message, "model_copy"):
        return message.model_copy(update={"id": new_id})
    raise _refuse("add_messages", "messages with an id", message, "set its `id`")


def _stamp_messages(update: Any, commit_id: str) -> list[Any]:
    """A list of messages, each with an id: the same one however often the commit is replayed."""
    messages = update if isinstance(update, (list, tuple, FrozenList)) else [update]
    return [
        message if _message_id(message) is not None else _with_id(message, f"{commit_id}/{index}")
        for index, message in enumerate(messages)
    ]


def _add_messages(current: FrozenList[Any], update: FrozenList[Any]) -> FrozenList[Any]:
    places = {_message_id(message): place for place, message in enumerate(current.raw_items())}
    changed: dict[int, Any] = {}
    added: list[Any] = []
    for message in update.raw_items():
        place = places.setdefault(_message_id(message), len(places))
        if place < len(current):
            changed[place] = message
        elif place < len(current) + len(added):
            added[place - len(current)] = message
        else:
            added.append(message)
    if changed:
        kept = [changed.get(place, message) for place, message in enumerate(current.raw_items())]
        return EMPTY_LIST.plus([*kept, *added])
    return current.plus(added)


def _replace(current: Any, update: Any) -> Any:
    del current
    return update


def _number_type(annotation: Any) -> Any:
    bare = without_none(annotation)
    if isinstance(get_origin(bare) or bare, type) and issubclass(
        get_origin(bare) or bare, (str, bytes, bool, list, dict, set)
    ):
        raise TypeError(f"reducer 'increment' needs a field of numbers, not {bare!r}")
    return bare


patch = Reducer("patch", apply_value, folds=False)
replace = Reducer("replace", _replace, folds=False)
append = Reducer("append", _append, EMPTY_LIST, _anything, _append_type)
extend = Reducer("extend", _extend, EMPTY_LIST, _check_extend, _extend_type)
update = Reducer("update", _update, FrozenDict(), _check_update, _update_type)
increment = Reducer("increment", _increment, 0, _check_increment, _number_type)
union = Reducer("union", _union, freeze(set()), _check_union, _union_type)
add_messages = Reducer("add_messages", _add_messages, EMPTY_LIST, _check_messages, _messages_type, _stamp_messages)
min = Reducer("min", _lesser, DELETE, _anything, _whole_type)  # noqa: A001
max = Reducer("max", _greater, DELETE, _anything, _whole_type)  # noqa: A001

BUILT_IN: Mapping[str, Reducer] = types.MappingProxyType(
    {each.name: each for each in (patch, replace, append, extend, update, increment, union, add_messages, min, max)}
)
