"""Which classes the rows of a graph may name: those of its schema, and the registered ones.

Whatever else they name becomes an opaque value: nothing is imported, and no class is called that nobody has named.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

from dspyer.errors import StateError
from dspyer.patch import Replace
from dspyer.persistence.rows import COMMITS, CommitContent, CommitHeader
from dspyer.reducers import Updates
from dspyer.schema.schema import Schema
from dspyer.stores.base import Change, Row
from dspyer.values import json as encoding
from dspyer.values.frozen import CopyOnRead, FrozenDict, FrozenList
from dspyer.values.types import Opaque, class_name, known_class

NAMED = (Enum, tuple, str, int, float, bytes)
"""Bases of classes that JSON names, beside models and dataclasses."""


def decoder(schema: Schema) -> Callable[[Any], Any]:
    """What makes frozen values of the JSON form in which rows of a graph hold them."""
    return encoding.decoder(named_classes(schema), Opaque.of)


def named_classes(schema: Schema) -> tuple[type, ...]:
    """The classes that the types of the fields name, and those that these name in their turn."""
    found: dict[type, None] = {}
    if schema.model is not None:
        _collect(schema.model, found)
    return tuple(found)


class Unnamed:
    """Refuses to write what no later process could read back, since nothing names its class.

    What was read from the store already, as an opaque value, is written again as it is.

    Args:
        graph: the name of the graph.
        schema: its schema.
    """

    def __init__(self, graph: str, schema: Schema) -> None:
        self._graph = graph
        self._named = {class_name(cls) for cls in named_classes(schema)}

    def __call__(self, change: Change) -> None:
        """Looks at what is to be written.

        Raises:
            StateError: if it holds a value of a class that nothing names.
        """
        for row in change.rows:
            content = row.content
            value = None if content is None else content.fresh
            if content is None or value is None or _CLASS not in content.data:
                continue
            for name in dict.fromkeys(_CLASSES.findall(content.data)):
                self._check(name.decode(), row, value)

    def _check(self, name: str, row: Row, value: Any) -> None:
        if name in self._named or known_class(name) is not None or not _holds(value, name):
            return
        patch = value.patch if isinstance(value, CommitContent) else None
        field = next((field for field, update in (patch or {}).items() if _holds(update, name)), None)
        node = CommitHeader.of(row.head).node if row.kind in COMMITS else row.kind
        short = name.rpartition(":")[2]
        where = f"{node!r}" if field is None else f"{node!r}, field {field!r}"
        raise StateError(
            f"graph {self._graph!r}, {where}: a {name} cannot be stored, "
            "since no other process could read it back: name its class in the type of a field of the schema, or call "
            f"register_value_type({short}) wherever the thread is used. Nothing was written"
        )


def _holds(value: Any, name: str) -> bool:
    """Whether a value has a part of a class; what an opaque value holds is no part of it."""
    if isinstance(value, CopyOnRead):
        return not isinstance(value.content, Opaque) and (class_name(value.cls) == name or _holds(value.content, name))
    if class_name(type(value)) == name:
        return True
    if isinstance(value, FrozenDict):
        return any(_holds(part, name) for pair in value.raw_items() for part in pair)
    if isinstance(value, FrozenList):
        return any(_holds(part, name) for part in value.raw_items())
    if isinstance(value, Replace):
        return _holds(value.value, name)
    if isinstance(value, Updates):
        return any(_holds(part, name) for part in value.updates)
    if isinstance(value, Mapping):
        return any(_holds(part, name) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(_holds(part, name) for part in value)
    return False


_CLASS = b'","class":"'
_CLASSES = re.compile(rb'"\$type":"\w+","class":"([^"\\]+)"')


def _collect(annotation: Any, found: dict[type, None]) -> None:
    annotation = getattr(annotation, "__value__", annotation)  # what `type X = ...` names
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
    except NameError:  # it names what only type checkers import
        return
    for hint in hints.values():
        _collect(hint, found)
