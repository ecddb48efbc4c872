"""A sample of every event and record, made from the declared types of its attributes: new events need no code here."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from dspyer import Failure, Replace, events
from dspyer.events import Answer, Commit, Event, Exchange, LMCall, MergedConflict, Question, TraceStep

RECORDS: tuple[type, ...] = (Commit, MergedConflict, Question, Answer, Exchange, TraceStep, LMCall)


def event_types() -> Iterator[type]:
    """Every event of the package."""
    known = [one for one in vars(events).values() if isinstance(one, type)]
    return (one for one in known if issubclass(one, Event) and one is not Event)


def names_of(cls: Any) -> list[str]:
    """The names of the fields of a record."""
    return [one.name for one in fields(cls)]


def sample(cls: Any, value: Any, text: str = "text") -> Any:
    """An instance with a value wherever a value of the state may be, and a text wherever a text may be."""
    hints = get_type_hints(cls, include_extras=True)
    return cls(**{name: _of(hints[name], value, text) for name in names_of(cls)})


def _of(hint: Any, value: Any, text: str) -> Any:
    kind, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if kind is Annotated:
        return {"field": text} if "json" in parts else Replace(value)
    if kind in (Union, types.UnionType):
        return _of(next(part for part in parts if part is not type(None)), value, text)
    if kind is tuple:
        return tuple([_of(part, value, text) for part in parts if part is not ...])
    if kind is not None and issubclass(kind, Mapping):
        return {"field": _of(parts[1], value, text)}
    if is_dataclass(hint):
        return sample(hint, value, text)
    if issubclass(hint, BaseException):
        return ValueError(text)
    if hint is Failure:
        return Failure(node=text, type="ValueError", message=text)
    return {str: text, int: 7, float: 0.5, bool: True}[hint]
