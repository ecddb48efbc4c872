"""What a node reads through views, what it is told of changes, and what it posts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dspyer.errors import InputError, NodeOutputError, suggestion
from dspyer.nodes.names import listed
from dspyer.nodes.viewing import author_problems, form_in, view_problems
from dspyer.patch import DELETE, Replace, diff_value, plain_patch
from dspyer.reducers import Updates
from dspyer.scheduler.provenance import FieldIndex, FieldPart, News, Parts, whole_parts
from dspyer.scheduler.run_state import Branch
from dspyer.schema.schema import Schema
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenList, thaw
from dspyer.views import (
    CUTS,
    Delta,
    Look,
    View,
    ViewForm,
    change_text,
    chosen,
    chosen_in,
    shown,
    summed,
    text_of,
    values_in,
)

if TYPE_CHECKING:
    from dspyer.nodes.attempt import Attempt
    from dspyer.nodes.base import Call

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
    parts: Parts | None


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

    def news(self, field: str, branch: Branch, reader: str) -> News:
        """What of such a field a node has not seen."""

    def changed(self, branch: Branch, reader: str, fields: frozenset[str] | None) -> list[Changed]:
        """What has changed since a node last ran, of some fields or all."""

    def permits(self, node: str, option: str) -> frozenset[str] | None:
        """The fields that a node `"reads"` or `"writes"`; None for all."""

    def looked(self, look: Look) -> None:
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

    def news(self, field: str, branch: Branch, reader: str) -> News:
        """Nothing is known to be new."""
        del field, branch, reader
        return News(frozenset(), [])

    def changed(self, branch: Branch, reader: str, fields: frozenset[str] | None) -> list[Changed]:
        """Nothing is known to have changed."""
        del branch, reader, fields
        return []

    def permits(self, node: str, option: str) -> frozenset[str] | None:
        """Nobody has said what the node may do."""

    def looked(self, look: Look) -> None:
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
    sight, position = attempt.host.sight, attempt.position
    if sent is not DELETE:
        cut = View(view.field, tuple([step for step in view.steps if step.name in (*CUTS, "then")]))
        return shown(cut, *chosen_plainly(cut, sent, form_in(sight.schema, view.field)), form)
    if position is None:
        raise InputError(f"{attempt.who} reads {view!r}: there is no run that it could be a view of")
    value = position.state.raw(view.field, DELETE)
    index = sight.index(view.field, position)
    if index is None:
        shape, selected = chosen_plainly(view, value, form_in(sight.schema, view.field))
    else:
        shape = form_in(sight.schema, view.field)
        if shape == "amount" and form in ("values", "text"):
            total = summed(view, index, attempt.node)
            if total is not None:
                sight.looked(Look(attempt.node, name or view.field, view, position.head))
                return text_of(total) if form == "text" else total
        selected = chosen(view, shape, index, attempt.node, lambda: sight.news(view.field, position, attempt.node))
    result = shown(view, shape, selected, form)  # a function of `.then` may raise
    sight.looked(Look(attempt.node, name or view.field, view, position.head))
    return result


def chosen_plainly(view: View, value: Any, shape: str) -> tuple[str, list[FieldPart]]:
    """What a view chooses of a value whose authors are not known, and what that makes up.

    Args:
        view: the view; it asks for no authors.
        value: the frozen value, `DELETE` if there is none.
        shape: what the parts make up if there is none.
    """
    if isinstance(value, FrozenList) and view.steps and view.steps[0].name == "last":
        value = value[-view.steps[0].argument :]
    shape, parts = whole_parts(value, shape)
    return shape, chosen_in(view, shape, parts)


def read_view_checked(attempt: Attempt, view: View) -> Any:
    """What a view shows, for a node that asks in its code.

    Raises:
        InputError: if the node does not read the field, or the view has no sense for it.
    """
    _check_running(attempt, "looks at a view")
    sight = attempt.host.sight
    allowed = sight.permits(attempt.node, "reads")
    if allowed is not None and view.field not in allowed:
        raise InputError(
            f"{attempt.who} looks at {view!r}, and {view.field!r} is not among its reads ({listed(sorted(allowed))}): "
            "add it there"
        )
    schema = sight.schema
    problems = view_problems(view, "ctx.view", schema, attempt.who)
    problems += author_problems(view, "ctx.view", sight.authors, attempt.who)
    if not schema.open and view.field not in schema.fields:
        hint = suggestion(view.field, schema.fields)
        problems.append(f"{attempt.who} looks at {view!r}: that is no field of the state.{hint}")
    if problems:
        raise InputError(problems[0])
    return read_view(attempt, view, "entries")


def delta(attempt: Attempt) -> Delta:
    """What has changed of the fields that a node reads since it last ran."""
    _check_running(attempt, "asks for a delta")
    sight, position = attempt.host.sight, attempt.position
    if position is None:
        return Delta({}, "")
    patch: dict[str, Any] = {}
    lines: list[str] = []
    for field, before, after, parts in sight.changed(position, attempt.node, sight.permits(attempt.node, "reads")):
        if parts is None:
            patch |= plain_patch({field: DELETE if after is DELETE else diff_value(before, after)})
        else:
            patch[field] = values_in(*parts)
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
    sight = attempt.host.sight
    allowed = sight.permits(attempt.node, "writes")
    if allowed is not None and field not in allowed:
        raise NodeOutputError(
            f"{attempt.who} posts to {field!r}, which is not among its writes ({listed(sorted(allowed))}): add it there"
        )
    schema = sight.schema
    if not schema.open and field not in schema.fields:
        hint = suggestion(field, schema.fields)
        raise NodeOutputError(f"{attempt.who} posts to {field!r}, which is no field of the schema.{hint}")
    if schema.reducer(field) is None and field not in schema.live and attempt.position is not None:
        raise NodeOutputError(
            f"{attempt.who} posts to {field!r}, which has no reducer to fold the post: give the field one, for example "
            f"Annotated[list[str], reducers.append], or return {{{field!r}: ...}}"
        )
    if value is not DELETE and not isinstance(value, (Replace, Updates)):
        value = thaw(freeze(value, (field,)))  # what the node does to it afterwards is its own affair
    if attempt.host.posted(attempt, field, value):
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
