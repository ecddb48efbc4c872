"""Which classes the rows of a graph may name: those of its schema, and the registered ones.

Whatever else they name becomes an opaque value: nothing is imported, and no class is called that nobody has named.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from enum import Enum
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

from dspyer.schema import Schema
from dspyer.stores.base import Change
from dspyer.values import Opaque, class_name, encoding, known_class

logger = logging.getLogger("dspyer")

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
    """Warns, once for each class, that what was written cannot be read back, since nothing names its class.

    Args:
        graph: the name of the graph.
        schema: its schema.
    """

    def __init__(self, graph: str, schema: Schema) -> None:
        self._graph = graph
        self._named = {class_name(cls) for cls in named_classes(schema)}

    def __call__(self, change: Change) -> None:
        """Looks at what was written, as far as it was encoded."""
        for row in change.rows:
            content = row.content
            if content is not None and content.encoded and _CLASS in content.data:
                for name in dict.fromkeys(_CLASSES.findall(content.data)):
                    self._warn(name.decode())

    def _warn(self, name: str) -> None:
        if name in self._named or (self._graph, name) in _warned or known_class(name) is not None:
            return
        _warned.add((self._graph, name))
        short = name.rpartition(":")[2]
        logger.warning(
            "graph %r has stored a %s, which no thread can read back: name the class in the schema, or call "
            "register_value_type(%s) wherever the thread is used",
            self._graph,
            name,
            short,
        )


_warned: set[tuple[str, str]] = set()
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
