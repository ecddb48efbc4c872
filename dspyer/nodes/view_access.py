"""What a node reads through views, what it is told of changes, and what it posts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import NoneType
from typing import Any, Literal, NamedTuple, Protocol, get_args, get_origin, is_typeddict

import dspy
from pydantic import BaseModel

from dspyer.errors import suggestion
from dspyer.hints import without_none
from dspyer.nodes.callables import class_of, members
from dspyer.reducers import conversation
from dspyer.scheduler.provenance import FieldIndex, FieldPart, FieldParts, UnseenParts, unattributed_parts
from dspyer.scheduler.run_state import Branch
from dspyer.schema.schema import Schema
from dspyer.values.frozen import FrozenList
from dspyer.views import (
    Entry,
    View,
    ViewForm,
    ViewRead,
    select_plain_parts,
)

OPEN = Schema.of(None)


class Changed(NamedTuple):
    """What has become of a field since a node last ran.

    Attributes:
        field: its name.
        before: the frozen value then, `DELETE` for none.
        after: the frozen value now.
        parts: its new parts; None for a field that has none.
    """

    field: str
    before: Any
    after: Any
    parts: FieldParts | None


class ViewSource(Protocol):
    """What can be seen in a run, and who may see and post what."""

    @property
    def schema(self) -> Schema:
        """The fields of the state."""

    @property
    def authors(self) -> Sequence[str]:
        """The nodes, and `START`."""

    def index(self, field: str, branch: Branch) -> FieldIndex | None:
        """Who brought what to a field, up to the last commit of a branch; None if the field has no parts."""

    def news(self, field: str, branch: Branch, reader: str) -> UnseenParts:
        """What of such a field a node has not seen."""

    def changed(self, branch: Branch, reader: str, fields: frozenset[str] | None) -> list[Changed]:
        """What has changed since a node last ran, of some fields or all."""

    def permitted_fields(self, node: str, option: Literal["reads", "writes"]) -> frozenset[str] | None:
        """The fields that a node `"reads"` or `"writes"`; None for all."""

    def record_read(self, read: ViewRead) -> None:
        """Counts what a view has shown. May be called from any thread."""

    def warning(self, branch: Branch) -> str:
        """The warning for a node that runs near the limit of its run; "" if it is not near."""


class NoRunViews:
    """Stands for what is seen where there is no run."""

    schema = OPEN
    authors: Sequence[str] = ()

    def index(self, field: str, branch: Branch) -> FieldIndex | None:
        """No author is known."""
        del field, branch
        return None

    def news(self, field: str, branch: Branch, reader: str) -> UnseenParts:
        """Nothing is known to be new."""
        del field, branch, reader
        return UnseenParts(frozenset(), [])

    def changed(self, branch: Branch, reader: str, fields: frozenset[str] | None) -> list[Changed]:
        """Nothing is known to have changed."""
        del branch, reader, fields
        return []

    def permitted_fields(self, node: str, option: Literal["reads", "writes"]) -> frozenset[str] | None:
        """Nobody has said what the node may do."""

    def record_read(self, read: ViewRead) -> None:
        """Nothing is counted."""

    def warning(self, branch: Branch) -> str:
        """There is no limit."""
        del branch
        return ""


def chosen_plainly(view: View, value: Any, parts_kind: str) -> tuple[str, list[FieldPart]]:
    """What a view chooses of a value whose authors are not known, and what that makes up.

    Args:
        view: the view; it asks for no authors.
        value: the frozen value, `DELETE` if there is none.
        parts_kind: what the parts make up if there is none.
    """
    if isinstance(value, FrozenList) and view.steps and view.steps[0].name == "last":
        value = value[-view.steps[0].argument :]
    parts_kind, parts = unattributed_parts(value, parts_kind)
    return parts_kind, select_plain_parts(view, parts_kind, parts)


# --------------------------------------------------------------------------------------------------------------------
# Reading through views: whether one has a sense for its field, and in which form a reader gets it.

CONTAINERS = (list, tuple, dict, set, frozenset)
BY_HAND = "update"
"""The author of a commit that was made with `t.update`."""


def view_problems(view: View, name: str, schema: Schema, who: str) -> list[str]:
    """Why a view has no sense for its field, each with its fix.

    Args:
        view: the view.
        name: what the node calls it.
        schema: the fields of the state.
        who: the node.
    """
    if schema.accepts_any_key:
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


def kind_of_parts(schema: Schema, name: str) -> str:
    """What the parts of a field make up, so far as its type tells."""
    field = schema.fields.get(name)
    if field is None:
        return "items"
    if field.reducer is not None and field.reducer.parts is not None:
        return field.reducer.kind
    kind = class_of(without_none(field.annotation))
    return "keys" if kind is not None and issubclass(kind, Mapping) else "items"


def form_of(annotation: Any) -> ViewForm:
    """The form in which a reader with this annotation gets a view. `form_problems` lets it pass."""
    forms = {_form_of(member) for member in _alternatives(annotation)}
    return forms.pop() if len(forms) == 1 else "values"


def _alternatives(annotation: Any) -> list[Any]:
    """What an annotation allows beside None, without `Annotated`."""
    return [member for member in members(annotation) if member not in (None, NoneType)]


def _form_of(member: Any) -> ViewForm:
    if member is str:
        return "text"
    if member is dspy.History:
        return "history"
    return "entries" if get_args(member)[:1] == (Entry,) and _takes(get_origin(member), list) else "values"


def _takes(kind: Any, given: type) -> bool:
    """Whether what is annotated with a class may be a value of another: `Sequence` and `Iterable` take a list."""
    return isinstance(kind, type) and issubclass(given, kind)


def form_problems(view: View, annotation: Any, name: str, schema: Schema, who: str, text: str = "") -> list[str]:
    """Why a reader with this annotation cannot get a view.

    Args:
        view: the view.
        annotation: what the reader says that it gets.
        name: what the node calls it.
        schema: the fields of the state.
        who: the node.
        text: the annotation as it was written, if it cannot be resolved.
    """
    alternatives = _alternatives(annotation)
    if dspy.History in alternatives:
        return history_problems(view, annotation, name, schema, who)
    start = f"{who}: {name!r} reads {view!r}"
    if text:
        why = f"{start}, and its annotation {text!r} cannot be resolved, which says in which form it comes"
        return [f"{why}: import its names at module level, not under TYPE_CHECKING"]
    if view.last_step == "then":
        return []
    shown = " | ".join([getattr(one, "__name__", str(one)) if not get_args(one) else str(one) for one in alternatives])
    if len({_form_of(member) for member in alternatives}) > 1:
        why = f"{start}, and its annotation {shown} allows several forms: choose one"
        return [f"{why}, str for a text, list[Entry] for the parts with their authors, or the type of the values"]
    if any(Entry in (member, *get_args(member)) and _form_of(member) != "entries" for member in alternatives):
        return [f"{start}, and it is annotated with {shown}: entries come as a list, annotate it with list[Entry]"]
    parts_kind = kind_of_parts(schema, view.field)
    if form_of(annotation) != "values" or view.field not in schema.fields or not _is_refused(parts_kind, alternatives):
        return []
    what = {"keys": "a dict of keys", "amount": "one amount"}.get(parts_kind, "a list")
    why = f"{start}, which gives {what}, and it is annotated with {shown}: annotate it with what it gets"
    return [f"{why}, with str for a text, or with list[Entry] for the parts with their authors"]


def _is_refused(parts_kind: str, alternatives: list[Any]) -> bool:
    """Whether no alternative of an annotation takes the plain values of a view."""
    kinds = [get_origin(member) or member for member in alternatives]
    if not kinds or Any in kinds or not all(isinstance(kind, type) for kind in kinds):
        return False  # Any, a type variable: it says nothing
    if parts_kind == "amount":
        return all(issubclass(kind, (*CONTAINERS, Sequence, Mapping, AbstractSet, BaseModel)) for kind in kinds)
    given = dict if parts_kind == "keys" else list
    return not any(_takes(kind, given) or (is_typeddict(kind) and given is dict) for kind in kinds)


def history_problems(view: View, annotation: Any, name: str, schema: Schema, who: str) -> list[str]:
    """Why a view cannot be given as a history of DSPy, whose entries are turns in the fields of one signature.

    Args:
        view: the view.
        annotation: what the reader says that it gets.
        name: what the node calls it.
        schema: the fields of the state.
        who: the node.
    """
    if members(annotation) != (dspy.History,):
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
    return reducer is not None and reducer.name == conversation.name
