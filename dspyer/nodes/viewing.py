"""Reading through views: whether one has a sense for its field, and in which form a reader gets it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, get_args, get_origin

import dspy

from dspyer.errors import suggestion
from dspyer.nodes.callables import class_of
from dspyer.reducers import without_none
from dspyer.schema import Schema
from dspyer.views import Entry, Form, View

CONTAINERS = (list, tuple, dict, set, frozenset)
SCALARS = (int, float, bool, bytes)
BY_HAND = "update"
"""The author of a commit that somebody made by hand."""


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
        text = (
            f"{who}: {name!r} reads {view!r}, and without a schema no field has a reducer that could tell who brought "
        )
        return [f"{text}what: write Graph(Schema), with Annotated[list[str], reducers.extend] for the field"]
    field = schema.fields.get(view.field)
    if field is None or (field.reducer is not None and field.reducer.parts is not None):
        return []  # an unknown field is found with the other names
    if view.needs_parts:
        known = "extend, append, add_messages, union, update or increment"
        text = (
            f"{who}: {name!r} reads {view!r}, but the field has no reducer that keeps its parts apart: give it one of "
        )
        return [f"{text}{known}, or read the whole field"]
    kind = class_of(without_none(field.annotation))
    if kind is not None and not issubclass(kind, CONTAINERS):
        return [f"{who}: {name!r} reads {view!r}, but the field holds one {kind.__name__}: read the field itself"]
    return []


def author_problems(view: View, name: str, nodes: Collection[str], who: str) -> list[str]:
    """Why nobody whom a view names can have brought anything.

    Args:
        view: the view.
        name: what the node calls it.
        nodes: the nodes of the graph, and `START`.
        who: the node.
    """
    unknown = [author for author in sorted(view.authors) if not _may_write(author, nodes)]
    return [
        f"{who}: {name!r} reads {view!r}, and {author!r} is no node.{suggestion(author, nodes)} Nodes: "
        f"{', '.join(nodes)}"
        for author in unknown
    ]


def _may_write(author: str, nodes: Collection[str]) -> bool:
    return author in nodes or author == BY_HAND or (author.startswith("join:") and author[5:] in nodes)


def shape_in(schema: Schema, name: str) -> str:
    """What the parts of a field make up, so far as its type tells."""
    field = schema.fields.get(name)
    if field is None:
        return "items"
    if field.reducer is not None and field.reducer.parts is not None:
        return field.reducer.shape
    kind = class_of(without_none(field.annotation))
    return "keys" if kind is not None and issubclass(kind, Mapping) else "items"


def form_of(annotation: Any) -> Form:
    """The form in which a reader with this annotation gets a view."""
    bare = without_none(annotation)
    if bare is str:
        return "text"
    if annotation is dspy.History:
        return "history"
    if get_origin(bare) is list and get_args(bare) == (Entry,):
        return "entries"
    return "values"


def form_problems(view: View, annotation: Any, name: str, schema: Schema, who: str) -> list[str]:
    """Why a reader with this annotation cannot get a view.

    Args:
        view: the view.
        annotation: what the reader says that it gets.
        name: what the node calls it.
        schema: the fields of the state.
        who: the node.
    """
    if dspy.History in (annotation, without_none(annotation)):
        return history_problems(view, annotation, name, schema, who)
    bare = without_none(annotation)
    kind = class_of(bare)
    known = kind in (*CONTAINERS, *SCALARS) and view.field in schema.fields
    if not known or kind is None or view.last_step == "then" or form_of(annotation) != "values":
        return []
    shape = shape_in(schema, view.field)
    if kind not in CONTAINERS if shape == "amount" else kind is (dict if shape == "keys" else list):
        return []
    what = {"keys": "a dict of keys", "amount": "one amount"}.get(shape, "a list")
    text = f"{who}: {name!r} reads {view!r}, which gives {what}, and it is annotated with {kind.__name__}: annotate it "
    return [f"{text}with what it gets, with str for a text, or with list[Entry] for the parts with their authors"]


def history_problems(view: View, annotation: Any, name: str, schema: Schema, who: str) -> list[str]:
    """Why a view cannot be given as a history of DSPy, whose entries are turns in the fields of one signature.

    Args:
        view: the view.
        annotation: what the reader says that it gets.
        name: what the node calls it.
        schema: the fields of the state.
        who: the node.
    """
    if annotation is not dspy.History:
        return [f"{who}: {name!r} is annotated with {annotation}, which DSPy shows as JSON: write dspy.History alone"]
    start = f"{who}: {name!r} is a dspy.History and reads {view!r}"
    if not is_conversation(view.field, schema):
        return [f"{start}, which is no field of the type dspyer.Messages: give the field that type, or take it as text"]
    if not any(step.name == "own" for step in view.steps):
        fix = f"view({view.field!r}).own(), and the messages of others as text, by an ordinary input"
        return [f"{start}, but a history holds turns in the node's own fields only: {fix}"]
    if view.last_step == "then":
        return [f"{start}, but what .then(...) gives is no list of turns: leave it out"]
    return []


def is_conversation(name: str, schema: Schema) -> bool:
    """Whether a field holds messages that only grow."""
    reducer = schema.reducer(name)
    return reducer is not None and reducer.keeps
