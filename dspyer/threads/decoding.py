"""Which classes the rows of a graph may name: those of its schema, and the registered ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

from dspyer.schema import Schema
from dspyer.values import encoding


def decoder(schema: Schema) -> Callable[[Any], Any]:
    """What makes frozen values of the JSON form in which rows of a graph hold them."""
    found: dict[type, None] = {}
    if schema.model is not None:
        _collect(schema.model, found)
    return partial(encoding.decode, types=tuple(found))


def _collect(annotation: Any, found: dict[type, None]) -> None:
    for argument in get_args(annotation):
        _collect(argument, found)
    if not isinstance(annotation, type) or annotation in found:
        return
    if issubclass(annotation, BaseModel):
        found[annotation] = None
        for field in annotation.model_fields.values():
            _collect(field.annotation, found)
    elif dataclasses.is_dataclass(annotation):
        found[annotation] = None
        for hint in get_type_hints(annotation).values():
            _collect(hint, found)
    elif issubclass(annotation, (Enum, tuple, str, int, float, bytes)):
        found[annotation] = None
