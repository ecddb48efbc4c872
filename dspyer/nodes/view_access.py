"""What a node reads through views, what it is told of changes, and what it posts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from threading import Lock
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args, get_origin, is_typeddict

import dspy
from pydantic import BaseModel

from dspyer.errors import InputError, NodeOutputError, suggestion
from dspyer.hints import without_none
from dspyer.nodes.callables import class_of, members
from dspyer.nodes.field_names import listed
from dspyer.patch import DELETE, Replace, diff_value, plain_patch
from dspyer.reducers import Updates, conversation
from dspyer.scheduler.provenance import FieldIndex, FieldPart, FieldParts, UnseenParts, unattributed_parts
from dspyer.scheduler.run_state import Branch
from dspyer.schema.schema import Schema
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenList, thaw
from dspyer.views import (
    CUTS,
    Delta,
    Entry,
    View,
    ViewForm,
    ViewRead,
    change_text,
    render,
    select_parts,
    select_plain_parts,
    sum_of_amounts,
    text_of,
    value_of_parts,
)

if TYPE_CHECKING:
    from dspyer.nodes.context import Attempt
    from dspyer.nodes.node import Call


OPEN = Schema.of(None)
_posting = Lock()


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


def sent_to(call: Call, field: str) -> Any:
    """The frozen value that a `Send` or a map has brought for a field; `DELETE` if it has brought none."""
    return DELETE if call.overlay is None else call.overlay.raw(field, DELETE)


def read_view(attempt: Attempt, view: View, form: ViewForm, name: str = "", sent: Any = DELETE) -> Any:
    """What a view shows, in the form in which it is wanted.

    Args:
        attempt: who looks.
        view: the view; it has a sense for its field.
        form: the form.
        name: what the node calls it.
        sent: the frozen value that a `Send` has brought: it takes the place of the field, is new and has no author.

    Raises:
        InputError: if nobody can know what the view asks for, since the node was called without a run.
    """
    views, position = attempt.host.views, attempt.position
    if sent is not DELETE:
        cut = View(view.field, tuple([step for step in view.steps if step.name in (*CUTS, "then")]))
        return render(cut, *chosen_plainly(cut, sent, kind_of_parts(views.schema, view.field)), form)
    if position is None:
        raise InputError(f"{attempt.who} reads {view!r}: there is no run that it could be a view of")
    value = position.state.raw(view.field, DELETE)
    index = views.index(view.field, position)
    if index is None:
        parts_kind, selected = chosen_plainly(view, value, kind_of_parts(views.schema, view.field))
    else:
        parts_kind = kind_of_parts(views.schema, view.field)
        if parts_kind == "amount" and form in ("values", "text"):
            total = sum_of_amounts(view, index, attempt.node)
            if total is not None:
                views.record_read(ViewRead(attempt.node, name or view.field, view, position.head))
                return text_of(total) if form == "text" else total
        selected = select_parts(
            view, parts_kind, index, attempt.node, lambda: views.news(view.field, position, attempt.node)
        )
    result = render(view, parts_kind, selected, form)  # a function of `.then` may raise
    views.record_read(ViewRead(attempt.node, name or view.field, view, position.head))
    return result


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


def read_view_checked(attempt: Attempt, view: View) -> Any:
    """What a view shows, for a node that asks in its code.

    Raises:
        InputError: if the node does not read the field, or the view has no sense for it.
    """
    _check_running(attempt, "looks at a view")
    views = attempt.host.views
    allowed = views.permitted_fields(attempt.node, "reads")
    if allowed is not None and view.field not in allowed:
        raise InputError(
            f"{attempt.who} looks at {view!r}, and {view.field!r} is not among its reads ({listed(sorted(allowed))}): "
            "add it there"
        )
    schema = views.schema
    problems = view_problems(view, "ctx.view", schema, attempt.who)
    problems += author_problems(view, "ctx.view", views.authors, attempt.who)
    if not schema.accepts_any_key and view.field not in schema.fields:
        hint = suggestion(view.field, schema.fields)
        problems.append(f"{attempt.who} looks at {view!r}: that is no field of the state.{hint}")
    if problems:
        raise InputError(problems[0])
    return read_view(attempt, view, "entries")


def delta(attempt: Attempt) -> Delta:
    """What has changed of the fields that a node reads since it last ran."""
    _check_running(attempt, "asks for a delta")
    views, position = attempt.host.views, attempt.position
    if position is None:
        return Delta({}, "")
    patch: dict[str, Any] = {}
    lines: list[str] = []
    for field, before, after, parts in views.changed(
        position, attempt.node, views.permitted_fields(attempt.node, "reads")
    ):
        if parts is None:
            patch |= plain_patch({field: DELETE if after is DELETE else diff_value(before, after)})
        else:
            patch[field] = value_of_parts(*parts)
        lines.append(change_text(field, after, parts))
    return Delta(patch, "\n".join(lines))


def post(attempt: Attempt, field: str, value: object) -> None:
    """Adds an update to what a node commits. May be called from any thread.

    Raises:
        NodeOutputError: if the node may not write the field, or nothing folds the post.
    """
    if attempt.inside:
        raise NodeOutputError(f"{attempt.who} posts to {field!r} from an item of a map: return it in the item's result")
    _check_running(attempt, f"posts to {field!r}")
    views = attempt.host.views
    allowed = views.permitted_fields(attempt.node, "writes")
    if allowed is not None and field not in allowed:
        raise NodeOutputError(
            f"{attempt.who} posts to {field!r}, which is not among its writes ({listed(sorted(allowed))}): add it there"
        )
    schema = views.schema
    if not schema.accepts_any_key and field not in schema.fields:
        hint = suggestion(field, schema.fields)
        raise NodeOutputError(f"{attempt.who} posts to {field!r}, which is no field of the schema.{hint}")
    if schema.reducer(field) is None and field not in schema.live_fields and attempt.position is not None:
        raise NodeOutputError(
            f"{attempt.who} posts to {field!r}, which has no reducer to fold the post: give the field one, for example "
            f"Annotated[list[str], reducers.append], or return {{{field!r}: ...}}"
        )
    if value is not DELETE and not isinstance(value, (Replace, Updates)):
        value = thaw(freeze(value, (field,)))  # what the node does to it afterwards is its own affair
    if attempt.host.post_live(attempt, field, value):
        return
    with _posting:
        if attempt.posts is None:
            attempt.posts = []
        attempt.posts.append((field, value))


def with_posts(updates: Mapping[str, object], posts: Sequence[tuple[str, object]], schema: Schema) -> dict[str, object]:
    """What a node has posted, in the order of its calls, before what it returned.

    Args:
        updates: what it returned.
        posts: what it has posted.
        schema: the fields; of one without a reducer the latest value is left.
    """
    together: dict[str, list[object]] = {}
    for field, value in (*posts, *updates.items()):
        found = together.setdefault(field, [])
        if schema.reducer(field) is None:
            found.clear()
        found.append(value)
    return {field: Updates(*found) if len(found) > 1 else found[0] for field, found in together.items()}


def _check_running(attempt: Attempt, what: str) -> None:
    if attempt.over:
        raise NodeOutputError(
            f"{attempt.who} {what} after the node has returned: a router gets what it decides by as parameters, and "
            "threads of a node must end before it does"
        )


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
