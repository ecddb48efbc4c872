"""The names by which a node reads and writes fields, and views: what they need of a run, and when they do not fit.

A view is checked when the graph is built (`reads={...}`) or when the node asks for it (`ctx.view`): whether the type of
its field supports it, whether the authors that it names can have written, and in which form the reader gets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import NoneType
from typing import Any, TypeAlias, get_args, get_origin, is_typeddict

import dspy
from pydantic import BaseModel

from dspyer.errors import list_names, suggestion
from dspyer.hints import without_none
from dspyer.nodes.callables import class_of, members
from dspyer.reducers import WITH_PARTS, conversation
from dspyer.schema.schema import Schema
from dspyer.templates import Fill
from dspyer.views import Entry, View, ViewForm

# --- the names of `reads` and `writes`: a node's own names on the left, the fields of the state on the right

FieldNames: TypeAlias = Mapping[str, str]
NamesSpec: TypeAlias = Mapping[str, str] | Iterable[str]
ReadsSpec: TypeAlias = Mapping[str, str | View | Fill] | Iterable[str]


def name_map(spec: NamesSpec | None, option: str, who: str) -> tuple[dict[str, str] | None, list[str]]:
    """A list or a map of names as a map from the node's own names, and what is wrong with it."""
    if spec is None:
        return None, []
    # A text is a collection too: its letters would be taken for names.
    if isinstance(spec, str):
        return None, [f"{who}: {option}={spec!r} is one name: write {option}=[{spec!r}]"]
    found = dict(spec) if isinstance(spec, Mapping) else {name: name for name in spec}
    wrong = [name for pair in found.items() for name in pair if not isinstance(name, str)]
    if wrong:
        return None, [f"{who}: {option} holds {list_names(wrong)}: names are strings"]
    return found, []


def check_names(
    names: FieldNames,
    option: str,
    who: str,
    *,
    own: Collection[str] | None,
    schema: Schema,
    overlay: Collection[str] = (),
) -> list[str]:
    """Problems of a map of names: own names that the node does not have, and fields that the state does not have.

    Args:
        names: the fields by the node's own names.
        option: `"reads"` or `"writes"`.
        who: how problems name the node.
        own: the names that the node has; None for any.
        schema: the fields of the state: `options.schema`, or `options.output_schema` for what it writes.
        overlay: names that are as good as fields.

    Returns:
        The problems, each with its fix.

    Example:
        >>> from dspyer.schema.schema import Schema
        >>> check_names({"labl": "kind"}, "writes", "node 'judge'", own=["label"],
        ...     schema=Schema.of(None))
        ["node 'judge': 'labl' in writes is none of its outputs ('label'). Did you
        mean 'label'?"]
    """
    problems = []
    for left, right in names.items():
        # Names that are right are most: they leave the loop here.
        known_left = own is None or left in own
        if known_left and (right in schema or right in overlay):
            continue
        swap = ""
        if left != right and (own is None or right in own) and (left in schema or left in overlay):
            swap = f" The node's own name is on the left: write {option}={{{right!r}: {left!r}}}."
        if not known_left:
            parts = "inputs" if option == "reads" else "outputs"
            hint = swap or suggestion(left, own or ()) or " Leave it out."
            problems.append(f"{who}: {left!r} in {option} is none of its {parts} ({list_names(own or ())}).{hint}")
        else:
            problems.append(f"{who}: {right!r} in {option} {unknown_field_text(right, schema)}{swap}")
    if option == "writes":
        twice = [field for field, count in Counter(names.values()).items() if count > 1] if len(names) > 1 else ()
        problems.extend(f"{who}: writes names the field {field!r} more than once" for field in twice)
    return problems


def unknown_field_text(name: str, schema: Schema) -> str:
    """A text that a name is no field of the state, with the name that may have been meant."""
    return f"is no field of the state ({list_names(schema.fields)}).{suggestion(name, schema.fields)}"


def unknown_outputs_text(names: Iterable[str], schema: Schema) -> str:
    """A text that no name that a function returns is a field, with how to store them as one value."""
    return (
        f"has {list_names(names)}, none of which is a field of the state ({list_names(schema.fields)}). What a "
        "function returns is a patch, also as a model: to store all of it in one field, return {'field': ...}"
    )


# --- checks

CONTAINERS = (list, tuple, dict, set, frozenset)
MANUAL_AUTHOR = "update"
"""The author of a commit that was made with `thread.update`."""


def view_problems(view: View, name: str, schema: Schema, who: str) -> list[str]:
    """Reasons why the type of its field does not support a view, with fixes. `name` is the node's name for it."""
    if not schema.accepts_any_key:
        unknown = [
            each for each, has_default in view.then_fields.items() if not has_default and each not in schema.fields
        ]
        if unknown:
            text = f"{who}: {name!r} reads {view!r}, whose function takes {unknown[0]!r}, which"
            return [f"{text} {unknown_field_text(unknown[0], schema)}"]
    reducer = schema.reducer(view.field)
    has_turns = reducer is not None and reducer.kind == "messages"
    if any(step.name == "turns" for step in view.steps) and not has_turns:
        text = f"{who}: {name!r} reads {view!r}, and only a conversation has turns: give the field the type "
        return [f"{text}dspyer.Messages, or take a number of entries, .last(n)"]
    if schema.accepts_any_key:
        if not view.needs_parts:
            return []
        text = f"{who}: {name!r} reads {view!r}, and without a schema no field has a reducer that records who wrote "
        return [f"{text}what: write Graph(Schema), with Annotated[list[str], reducers.extend] for the field"]
    field = schema.fields.get(view.field)
    if field is None or (field.reducer is not None and field.reducer.parts is not None):
        return []  # an unknown field is found with the other names
    if view.needs_parts:
        text = f"{who}: {name!r} reads {view!r}, but the field has no reducer that keeps its parts apart"
        return [f"{text}: give it one of {WITH_PARTS}, or read the whole field"]
    kind = class_of(without_none(field.annotation))
    if kind is not None and not issubclass(kind, CONTAINERS):
        return [f"{who}: {name!r} reads {view!r}, but the field holds one {kind.__name__}: read the field itself"]
    return []


def fields_of_then(view: View, schema: Schema) -> dict[str, bool]:
    """The fields that the function of a view reads besides that of the view, each with whether it may be unset."""
    return {
        name: has_default
        for name, has_default in view.then_fields.items()
        if name in schema.fields or (schema.accepts_any_key and not has_default)
    }


def author_problems(view: View, name: str, nodes: Collection[str], who: str) -> list[str]:
    """The authors that a view names and that are no nodes, each with its fix."""
    unknown = [author for author in sorted(view.authors) if not _may_write(author, nodes)]
    return [
        f"{who}: {name!r} reads {view!r}, and {author!r} is no node.{suggestion(author, nodes)} Nodes: "
        f"{', '.join(nodes)}"
        for author in unknown
    ]


def _may_write(author: str, nodes: Collection[str]) -> bool:
    # Joins write under `join:` and the name of their node.
    return author in nodes or author == MANUAL_AUTHOR or (author.startswith("join:") and author[5:] in nodes)


def kind_of_parts(schema: Schema, name: str) -> str:
    """The kind of a field's parts, as far as its type shows it: items, keys, or one amount."""
    field = schema.fields.get(name)
    if field is None:
        return "items"
    if field.reducer is not None and field.reducer.parts is not None:
        return field.reducer.kind
    kind = class_of(without_none(field.annotation))
    return "keys" if kind is not None and issubclass(kind, Mapping) else "items"


def form_of(annotation: Any) -> ViewForm:
    """The form in which a reader with this annotation gets a view, once `form_problems` has found nothing."""
    forms = {_form_of(member) for member in _alternatives(annotation)}
    return forms.pop() if len(forms) == 1 else "values"


def _alternatives(annotation: Any) -> list[Any]:
    """The alternatives of an annotation besides None, without `Annotated`."""
    return [member for member in members(annotation) if member not in (None, NoneType)]


def _form_of(member: Any) -> ViewForm:
    if member is str:
        return "text"
    if member is dspy.History:
        return "history"
    return "entries" if get_args(member)[:1] == (Entry,) and _takes(get_origin(member), list) else "values"


def _takes(kind: Any, given: type) -> bool:
    """Return whether a parameter of this class accepts another class: `Sequence` and `Iterable` accept a list."""
    return isinstance(kind, type) and issubclass(given, kind)


def form_problems(view: View, annotation: Any, name: str, schema: Schema, who: str, text: str = "") -> list[str]:
    """Reasons why a reader with this annotation cannot get a view.

    `text` is the annotation as it was written, if it cannot be resolved; `name` is the node's name for the view.
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
    """Return whether no alternative of an annotation accepts the plain values of a view."""
    kinds = [get_origin(member) or member for member in alternatives]
    if not kinds or Any in kinds or not all(isinstance(kind, type) for kind in kinds):
        return False  # Any, a type variable: it says nothing
    if parts_kind == "amount":
        return all(issubclass(kind, (*CONTAINERS, Sequence, Mapping, AbstractSet, BaseModel)) for kind in kinds)
    given = dict if parts_kind == "keys" else list
    return not any(_takes(kind, given) or (is_typeddict(kind) and given is dict) for kind in kinds)


def history_problems(view: View, annotation: Any, name: str, schema: Schema, who: str) -> list[str]:
    """Reasons why a view cannot be a `dspy.History`, whose entries are turns in the fields of one signature."""
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
    """Return whether a field holds messages and has the reducer that only adds to them."""
    reducer = schema.reducer(name)
    return reducer is not None and reducer.name == conversation.name
