"""The classes that types name: those of values that may be stored under the name of their class."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from enum import Enum
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

NAMED = (Enum, tuple, str, int, float, bytes)
"""Bases of the classes that rows name, in addition to models and dataclasses."""


_HELD = "__dspyer_held_classes__"


def set_held_classes(model: type[BaseModel], classes: Iterable[type]) -> None:
    """Say of which classes the values of a model may be besides those that its types name.

    An attribute of the class: it goes with a copy of the class to another process.
    """
    setattr(model, _HELD, tuple(classes))


def held_classes(model: type[BaseModel]) -> tuple[type, ...]:
    """The classes of which the values of a model may be: those that its types name, and those that were set."""
    return (*vars(model).get(_HELD, ()), *classes_in([model]))


def classes_in(annotations: Iterable[Any]) -> tuple[type, ...]:
    """The classes that some types name."""
    found: dict[type, None] = {}
    for annotation in annotations:
        _collect(annotation, found)
    return tuple(found)


def _collect(annotation: Any, found: dict[type, None]) -> None:
    """Add the classes that a type names to `found`, which also keeps recursive types from looping."""
    annotation = getattr(annotation, "__value__", annotation)  # of an alias, `type X = ...`
    for argument in get_args(annotation):
        _collect(argument, found)
    if not isinstance(annotation, type) or annotation in found:
        return
    if issubclass(annotation, BaseModel):
        found[annotation] = None
        for field in annotation.model_fields.values():
            _collect(field.annotation, found)
    elif dataclasses.is_dataclass(annotation) or hasattr(annotation, "__required_keys__"):
        found[annotation] = None
        _collect_hints(annotation, found)
    elif issubclass(annotation, NAMED) and annotation not in NAMED:
        found[annotation] = None
        if hasattr(annotation, "_fields"):
            _collect_hints(annotation, found)


def _collect_hints(cls: type, found: dict[type, None]) -> None:
    try:
        hints = get_type_hints(cls)
    except NameError:  # a name that is imported under TYPE_CHECKING only
        return
    for hint in hints.values():
        _collect(hint, found)
