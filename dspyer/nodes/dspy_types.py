"""DSPy's own types as values of a state: `dspy.Tool`, which holds a function, and `dspy.Code["python"]`."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NoReturn

import dspy

from dspyer.errors import StateError
from dspyer.values.named_classes import classes_in
from dspyer.values.types import RegisteredKind, class_name, known_class, register_kind, register_value_type

_STORED = ("name", "desc", "args", "arg_desc", "has_kwargs")


@dataclass(frozen=True)
class _NotStored:
    """In the place of the function of a tool that was read from a store."""

    tool: str

    def __call__(self, **_: Any) -> NoReturn:
        raise StateError(
            f"the tool {self.tool!r} was read from a store, which does not hold its function: let the node that "
            "calls it find the function by this name in your own code"
        )


def _facts(tool: dspy.Tool) -> dict[str, Any]:
    return {name: getattr(tool, name) for name in _STORED}


def _stored_tool(facts: dict[str, Any]) -> dspy.Tool:
    return dspy.Tool.model_construct(func=_NotStored(facts["name"]), arg_types={}, **facts)


def _copied(tool: dspy.Tool) -> dspy.Tool:
    return tool.model_copy(update=copy.deepcopy(_facts(tool)))  # the function is that of the tool


register_kind(RegisteredKind(_facts, _stored_tool, _copied, dspy.Tool, unstored=attrgetter("func")))


def register_dspy_types(annotations: Iterable[Any]) -> None:
    """Let stores hold values of the classes of DSPy that annotations name, also of those that no import finds."""
    for cls in classes_in(annotations):
        if cls.__module__.startswith("dspy.") and known_class(class_name(cls)) is None:
            register_value_type(cls)
