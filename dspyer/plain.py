"""The JSON form of commits, events and questions: one conversion by the declared types of their attributes.

What is declared as `Any` is a value of a state and gets the state's own encoding, as in a store or an export. Paths,
names and numbers become lists, texts and numbers. So a new event needs no code of its own here.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from dspyer.errors import StateError, brief
from dspyer.patch import DELETE, encode_update
from dspyer.values import encoding
from dspyer.values._freezing import freeze
from dspyer.values.encoding import TAG

Convert = Callable[[Any], Any]

_UPDATE = "update"
Update = Annotated[Any, _UPDATE]
"""The type of an attribute that holds an update of a patch, not a value."""


def record_dict(record: Any) -> dict[str, Any]:
    """The attributes and properties of a record by name, as JSON."""
    cls: Any = type(record)
    return {name: convert(getattr(record, name)) for name, convert in _converters(cls).items()}


def event_dict(event: Any) -> dict[str, Any]:
    """The same for an event, with its name in front."""
    return {"event": type(event).__name__, **record_dict(event)}


def error_dict(error: BaseException) -> dict[str, Any]:
    """Class, text and notes of an exception."""
    return {"type": type(error).__name__, "message": text_of(error), "notes": list(getattr(error, "__notes__", ()))}


def text_of(error: BaseException) -> str:
    """The text of an exception, of one that cannot say it too."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - a user's own class, and the run has failed already
        return f"<{type(error).__name__}.__str__ raised {type(problem).__name__}>"


@cache
def _converters(cls: Any) -> dict[str, Convert]:
    hints = get_type_hints(cls, include_extras=True)
    found = {name: _converter(hints[name]) for name in cls._fields}
    for name, value in vars(cls).items():
        if isinstance(value, property):
            found[name] = _converter(get_type_hints(value.fget)["return"])
    return found


def _converter(hint: Any) -> Convert:
    kind, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return _value
    if kind is Annotated and _UPDATE in parts:
        return encode_update
    if kind in (Union, types.UnionType):
        (inner,) = [_converter(part) for part in parts if part is not type(None)]
        return lambda value: None if value is None else inner(value)
    if kind is tuple and parts[-1] is ...:
        item = _converter(parts[0])
        return lambda items: [item(value) for value in items]
    if kind is tuple:
        converts = [_converter(part) for part in parts]
        return lambda items: [convert(value) for convert, value in zip(converts, items, strict=True)]
    if kind is not None and issubclass(kind, Mapping):
        item = _converter(parts[1])
        return lambda values: {str(key): item(values[key]) for key in values}
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return record_dict
    if isinstance(hint, type) and issubclass(hint, BaseException):
        return error_dict
    if hint in (str, int, float, bool):
        return _same
    raise TypeError(f"records have no attributes of the type {hint!r}: declare how it becomes JSON")


def _same(value: Any) -> Any:
    return value


def _value(value: Any) -> Any:
    """A value of a state; of what no state can hold (`ctx.emit` takes anything) class and text."""
    if value is DELETE:
        return {TAG: "delete"}
    try:
        return encoding.encode(freeze(value))
    except StateError:
        return {TAG: "object", "class": f"{type(value).__module__}:{type(value).__qualname__}", "value": brief(value)}
