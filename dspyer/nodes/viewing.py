"""Reading through views: whether one has a sense for its field, and in which form a reader gets it."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import dspy

from dspyer.nodes.callables import class_of
from dspyer.schema import Schema
from dspyer.views import Entry, Form, View


def view_problems(view: View, name: str, schema: Schema, who: str) -> list[str]:
    """Why a view has no sense for its field, each with its fix.

    Args:
        view: the view.
        name: what the node calls it.
        schema: the fields of the state.
        who: the node.
    """
    if schema.open:
        if not view.needs_parts:
            return []
        return [
            f"{who}: {name!r} reads {view!r}, and without a schema no field has a reducer that could tell who brought "
            "what: write Graph(Schema), with Annotated[list[str], reducers.extend] for the field"
        ]
    field = schema.fields.get(view.field)
    if field is None or (field.reducer is not None and field.reducer.parts is not None):
        return []  # an unknown field is found with the other names
    if view.needs_parts:
        known = "extend, append, add_messages, union, update or increment"
        return [
            f"{who}: {name!r} reads {view!r}, but the field has no reducer that keeps its parts apart: give it one of "
            f"{known}, or read the whole field"
        ]
    kind = class_of(field.annotation)
    if kind is not None and not issubclass(kind, (list, tuple, dict, set, frozenset)):
        return [f"{who}: {name!r} reads {view!r}, but the field holds one {kind.__name__}: read the field itself"]
    return []


def form_of(annotation: Any) -> Form:
    """The form in which a reader with this annotation gets a view."""
    if annotation is str:
        return "text"
    if get_origin(annotation) is list and get_args(annotation) == (Entry,):
        return "entries"
    return "values"


def history_problem(annotation: Any, name: str, who: str) -> list[str]:
    """Why a view cannot be given as a history of DSPy."""
    if annotation is dspy.History:
        return [f"{who}: {name!r} is a dspy.History, which a view cannot give: take the messages as text or as values"]
    return []
