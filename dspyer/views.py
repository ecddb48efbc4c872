"""Views: what a node reads of a field, chosen when the graph is built.

A view is the right side of an item of `reads`: `reads={"findings": view("findings").new()}`. It is an immutable value,
made once and used at each visit of the node. A field with a reducer consists of *parts* (the items of a list, the keys
of a mapping, the amounts of a sum), each with its author, see `scheduler.provenance`. A view selects parts in steps.
The node gets them as values, as text for a prompt, or as `Entry` objects: users know a part as an entry.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, Literal, NamedTuple

from pydantic_core import to_jsonable_python

from dspyer.errors import GraphError, InputError, UnsetFieldError, brief
from dspyer.failure import Failure
from dspyer.message_list import ROLES
from dspyer.patch import DELETE
from dspyer.scheduler.provenance import FieldIndex, FieldPart, FieldParts, UnseenParts, is_new, unattributed_parts
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.values.scalars import is_number

ViewForm = Literal["values", "text", "entries", "history", "frozen"]
"""The form in which a node gets a view: plain values, text, a list of `Entry`, messages for a `dspy.History`, or the
values in a frozen list or dict."""

FILTERS = ("new", "own", "others", "by")
"""The steps that select by author or by what the reader has seen."""

CUTS = ("last", "fit", "turns")
"""The steps that keep only the last parts, up to a number of parts, of tokens or of turns."""


# --- what users write


def view(field: str) -> View:
    """A view of a field, for `reads` and `ctx.view`.

    Args:
        field: name of the field.

    Returns:
        A view of the whole field; its methods return views of less.

    Raises:
        GraphError: if `field` is not a string.

    Example:
        >>> view("findings").new().last(5)
        view('findings').new().last(5)
    """
    if not isinstance(field, str):
        raise GraphError(f'view takes the name of a field, view("findings"), not {field!r}')
    return View(field)


class ViewStep(NamedTuple):
    """One step of a view: the name of the method that made it, and the method's argument, None for none.

    `fields` are, of `then`, the further parameters of its function, each with whether it has a default. `counter` is
    what counts the tokens of `fit`, None for the estimate.
    """

    name: str
    argument: Any = None
    fields: tuple[tuple[str, bool], ...] = ()
    counter: Callable[[str], float] | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A selection of the entries of a field, made in steps from left to right. Make one with `view`.

    An entry is an item of a list, a key of a mapping with its value, a member of a set, or one amount of a sum. Authors
    are known for fields with the reducers `append`, `extend`, `log`, `update`, `union`, `increment` and those of
    messages; for other fields `compile()` refuses `new`, `own`, `others` and `by`. It refuses unknown fields and nodes
    too, and an annotation of the parameter that does not fit the view, that allows several forms, or that cannot be
    resolved. `Annotated[...]` and `| None` make no difference to the form.

    As text, the line of an entry begins with its author if there may be several, with the key in a mapping, and else
    with `- `; only a view of at most one entry of one author shows the entry alone. Further lines of an entry are
    indented by two spaces and odd names are quoted: a line that is not indented always begins an entry.

    The time that a view takes depends on the entries that it selects. A process that runs a thread for the first time
    reads its history once; between runs a program caches the authors of at most 200,000 entries.

    Attributes:
        field: name of the field.
        steps: the steps, first to last.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("write", lambda last: {"report": last[0]},
        ...     reads={"last": view("notes").last(1)})
        >>> graph.add_path(START, "write", END).compile()(notes=["a", "b"]).report
        'b'
    """

    field: str
    steps: tuple[ViewStep, ...] = ()

    def new(self) -> View:
        """Selects what was added since the node last ran: entries of commits that no commit of the node descends from.

        On the first visit all entries are new; after a `Replace`, those of the new value are. A member of a set or a
        message that is added again unchanged is not new, and keeps its author. A value that won a conflict at a join is
        new to nodes that have not seen the commit that won, and entries of a parallel branch are new after the join.
        Of several branches of one node that `Send` started, each has everything as new at first; a value of the `Send`
        is new and has no author. On a thread views span the runs, for fields that are kept; in a subgraph, what was
        added since it began is new. If older history was pruned, or had another reducer, the authors of the entries
        until then are unknown (`""`), these entries are new, and a warning is logged.

        Returns:
            The view with this step.

        Raises:
            GraphError: after `then`.

        Example:
            >>> view("findings").new()
            view('findings').new()
        """
        return self._with("new")

    def last(self, count: int) -> View:
        """Selects the last entries.

        In a conversation, the result of a tool is left out if its call is not selected, so that what is left begins
        with a whole turn. So is it in `fit`.

        Args:
            count: the number of entries at most, 1 or more.

        Returns:
            The view with this step.

        Raises:
            GraphError: for any other number, or after `then`.

        Example:
            >>> view("findings").others().last(3)
            view('findings').others().last(3)
        """
        return self._with("last", _whole_number("last", count))

    def own(self) -> View:
        """Selects the entries that the node itself wrote.

        Returns:
            The view with this step.

        Raises:
            GraphError: after `then`.

        Example:
            >>> view("messages").own()
            view('messages').own()
        """
        return self._with("own")

    def others(self) -> View:
        """Selects the entries that the node did not write itself.

        Returns:
            The view with this step.

        Raises:
            GraphError: after `then`.

        Example:
            >>> view("messages").others().new()
            view('messages').others().new()
        """
        return self._with("others")

    def by(self, *nodes: str) -> View:
        """Selects the entries that some nodes wrote.

        Args:
            nodes: names of the nodes; `"START"` for inputs and defaults, `"update"` for `thread.update`.

        Returns:
            The view with this step.

        Raises:
            GraphError: if no names are given, or after `then`.

        Example:
            >>> view("findings").by("researcher", "START")
            view('findings').by('researcher', 'START')
        """
        if not nodes or not all(type(node) is str for node in nodes):
            raise GraphError(f'view(...).by takes names of nodes, by("researcher", "START"), not {nodes!r}')
        return self._with("by", nodes)

    def fit(self, tokens: int, *, count: Callable[[str], float] | None = None) -> View:
        """Selects the last entries that fit into a number of tokens.

        Tokens are estimated by one rule on every machine, from the letters, digits and other characters of a text.

        Args:
            tokens: the number of tokens at most, 1 or more. If the last entry alone is larger, nothing is left.
            count: counts the tokens of a text in place of the estimate. The number of entries that it leaves is
                recorded with the execution: a resume shows the same ones. Any other result than a number of at least 0
                is an `InputError` in the node.

        Returns:
            The view with this step.

        Raises:
            GraphError: for any other number, if `count` is not callable or is async, or after `then`.

        Example:
            >>> view("findings").new().fit(2000)
            view('findings').new().fit(2000)
            >>> view("findings").fit(2000, count=len)
            view('findings').fit(2000, count=len)
        """
        given: Any = count
        if given is not None and (not callable(given) or iscoroutinefunction(given)):
            raise GraphError(f"view(...).fit(count={given!r}): it takes a function of a text that is not async")
        return self._with("fit", _whole_number("fit", tokens), counter=count)

    def turns(self, count: int) -> View:
        """Selects the last turns of a conversation: messages of assistants, each with the results of its tool calls.

        The user messages just before the first of these turns are selected too, and all messages after it. For `own`,
        `others` and `by` the author of a result is that of its call, and where a result is new, `new` selects its call.

        Args:
            count: the number of turns at most, 1 or more.

        Returns:
            The view with this step.

        Raises:
            GraphError: for any other number, or after `then`.

        Example:
            >>> view("messages").turns(8)
            view('messages').turns(8)
        """
        return self._with("turns", _whole_number("turns", count))

    def then(self, fn: Callable[..., Any]) -> View:
        """Passes the result of a function of the entries to the node, unchanged. It is the last step.

        Args:
            fn: a pure function of a list of `Entry`. Its further parameters get plain copies of the fields of their
                names; one with a default keeps it if it has the name of no field.

        Returns:
            The view with this step.

        Raises:
            GraphError: if `fn` is not callable or is async, or after another `then`.

        Example:
            >>> view("findings").new().then(len)
            view('findings').new().then(len)
            >>> def about(entries, topic): return [entry.value for entry in entries
            ...     if topic in entry.value]
            >>> view("findings").then(about).then_fields
            {'topic': False}
        """
        given: Any = fn
        if not callable(given) or iscoroutinefunction(given):
            raise GraphError(f"view(...).then({fn!r}): it takes a function of a list of Entry that is not async")
        return self._with("then", fn, tuple(_further_parameters(fn).items()))

    def _with(self, *step: Any, **more: Any) -> View:
        added = ViewStep(*step, **more)
        if self.last_step == "then":
            raise GraphError(f"view({self.field!r}): nothing follows .then(...), put .{added.name}(...) before it")
        return View(self.field, (*self.steps, added))

    @property
    def needs_parts(self) -> bool:
        """Return whether a step selects by author or by visit: only fields with parts have these."""
        return any(step.name in FILTERS for step in self.steps)

    @property
    def counts(self) -> bool:
        """Return whether a step counts tokens by a function of the user."""
        return any(step.counter is not None for step in self.steps)

    @property
    def last_step(self) -> str:
        """The name of the last step; `""` if there is none."""
        return self.steps[-1].name if self.steps else ""

    @property
    def then_fields(self) -> dict[str, bool]:
        """The further parameters of the function of `then`, each with whether it has a default."""
        return dict(self.steps[-1].fields) if self.steps else {}

    @property
    def authors(self) -> frozenset[str]:
        """The nodes that its steps name."""
        return frozenset(name for step in self.steps if step.name == "by" for name in step.argument)

    def __repr__(self) -> str:
        return f"view({self.field!r}){''.join(map(_step_text, self.steps))}"


def _further_parameters(fn: Callable[..., Any]) -> dict[str, bool]:
    """The named parameters of a function after the first, each with whether it has a default; those of a partial that
    are given are left out.
    """
    try:
        parameters = list(signature(fn).parameters.values())
    except (TypeError, ValueError):  # some functions of C have no signature that can be read
        return {}
    given = fn.keywords if isinstance(fn, partial) else {}
    return {
        each.name: each.default is not Parameter.empty
        for place, each in enumerate(parameters)
        if each.name not in given
        and (each.kind is Parameter.KEYWORD_ONLY or (place and each.kind is Parameter.POSITIONAL_OR_KEYWORD))
    }


def _step_text(step: ViewStep) -> str:
    if step.name == "by":
        return f".by({', '.join(map(repr, step.argument))})"
    if step.name == "then":
        return f".then({getattr(step.argument, '__name__', 'fn')})"
    if step.counter is not None:
        return f".fit({step.argument}, count={getattr(step.counter, '__name__', 'fn')})"
    return f".{step.name}({'' if step.argument is None else step.argument})"


def _whole_number(name: str, count: Any) -> int:
    if type(count) is not int or count < 1:  # not isinstance: True is no number here
        raise GraphError(f"view(...).{name}({count!r}): it takes a whole number of at least 1")
    return count


# --- what nodes get


class Entry(NamedTuple):
    """One part of a field with its author, as a view returns it.

    Attributes:
        value: a plain copy of the item, of the value of a key, or of the amount.
        author: the node that wrote it; `"START"` for inputs and defaults, `""` if it is not known any more.
        commit: the id of its commit.
        key: the key, for a field that is a mapping; else None.

    Example:
        >>> Entry("The order ships at six.", "search", "trunk:1").author
        'search'
    """

    value: Any
    author: str
    commit: str
    key: Any = None


class Delta(NamedTuple):
    """The changes since a node last ran, as `ctx.delta()` returns them.

    Attributes:
        patch: the new plain values by field; for a field without a reducer its net change, as in a patch.
        text: the same for a prompt, a paragraph for each field.

    Example:
        >>> Delta({"topic": "rates"}, "topic: rates").patch
        {'topic': 'rates'}
    """

    patch: dict[str, Any]
    text: str


class ViewRead(NamedTuple):
    """A record that a node read a view. Its result is not stored: it is computed again from the commits when needed.

    Attributes:
        node: the node.
        name: the name of the input that the view is for.
        view: the view.
        head: the index of the last commit of the node's branch.
    """

    node: str
    name: str
    view: View
    head: int


# --- `fit` with a tokenizer of the user: what it has left is recorded, since a later attempt may count otherwise


class Fitted:
    """A function of `fit` in one read: checks what it gives, and knows how many entries it has left.

    Attributes:
        left: the number of entries; None until it has counted.
    """

    def __init__(self, of: str, count: Callable[[str], float] | None, left: int | None, name: str) -> None:
        self.of, self.count, self.left, self.__name__ = of, count, left, name

    def __call__(self, text: str) -> float:
        assert self.count is not None
        found: Any = self.count(text)
        if not is_number(found) or not 0 <= found < math.inf:
            raise InputError(f"count= of {self.of} gave {brief(found)} for a text: return its number of tokens")
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of a run needs no tokenizer, which may be local.
        return Fitted, (self.of, None, self.left, self.__name__)


def fitted(view: View, known: Iterable[int]) -> View:
    """A view for one read. `known` are the numbers of entries that its functions of `fit` have left in one before."""
    numbers, of = iter(known), repr(view)
    steps = [
        step
        if (count := step.counter) is None
        else step._replace(counter=Fitted(of, count, next(numbers, None), getattr(count, "__name__", "fn")))
        for step in view.steps
    ]
    return View(view.field, tuple(steps))


# --- selecting parts


def select_parts(
    view: View, kind: str, index: FieldIndex, reader: str, unseen: Callable[[], UnseenParts]
) -> list[FieldPart]:
    """The parts of a field that a view selects for the node `reader`, in time that grows with their number alone.

    `kind` is the `Reducer.kind` of the field. `unseen` returns the parts that the node has not seen; it is called only
    if a step needs them.
    """
    filters = list(itertools.takewhile(lambda step: step.name in FILTERS, view.steps))
    remaining = view.steps[len(filters) :]
    if any(step.name == "new" for step in filters):
        found = unseen().parts
        remaining = tuple([step for step in view.steps if step.name != "new"])
    else:
        # Parts are walked from the last one back, so that a `last` or `fit` after the filters ends the walk early.
        owners = None
        if filters:
            owners = [name for name in index.owners if all(_selects(step, name, reader) for step in filters)]
        walk = index.backwards(owners)
        if remaining and remaining[0].name in CUTS:
            found, remaining = _cut(remaining[0], kind, walk), remaining[1:]
        else:
            found = list(walk)[::-1]
    for step in remaining:
        found = _apply_step(step, kind, found, reader, unseen)
    return found


def select_plain_parts(view: View, value: Any, kind: str) -> tuple[str, list[FieldPart]]:
    """The parts that a view selects of a value whose authors are not known, and the kind of these parts."""
    if isinstance(value, FrozenList) and view.steps and view.steps[0].name == "last" and kind != "messages":
        # Cut the list before its parts are made: `last(3)` of a long list then costs three parts.
        value = value[-view.steps[0].argument :]
    kind, parts = unattributed_parts(value, kind)
    found = list(parts)
    # Steps by author were refused when the graph was built.
    for step in view.steps:
        found = _apply_step(step, kind, found, "", None)
    return kind, found


def _apply_step(
    step: ViewStep, kind: str, parts: list[FieldPart], reader: str, unseen: Callable[[], UnseenParts] | None
) -> list[FieldPart]:
    if step.name in CUTS:
        return _cut(step, kind, reversed(parts))
    if step.name == "new":
        names = unseen().commits if unseen is not None else frozenset()
        # The call of a tool and its results are new together: a part with `call` is a result of the part in that slot.
        slots = {part.slot if part.call < 0 else part.call for part in parts if is_new(part, names)}
        return [part for part in parts if (part.slot if part.call < 0 else part.call) in slots]
    if step.name == "then":
        return parts  # applied by `render`
    return [part for part in parts if _selects(step, part.owner, reader)]


def _selects(step: ViewStep, owner: str, reader: str) -> bool:
    """Return whether `own`, `others` or `by` selects the parts of an owner."""
    return owner in step.argument if step.name == "by" else (owner == reader) == (step.name == "own")


def _cut(step: ViewStep, kind: str, backwards: Iterable[FieldPart]) -> list[FieldPart]:
    """The last parts, up to a number of parts, tokens or turns, given the parts from the last one back."""
    fit = step.counter if isinstance(step.counter, Fitted) else None
    if step.name == "last":
        walk: Iterator[FieldPart] = itertools.islice(backwards, step.argument)
    elif fit is not None and fit.left is not None:
        walk = itertools.islice(backwards, fit.left)
    elif step.name == "fit":
        walk = _fitting(kind, backwards, step.argument, step.counter or estimate_tokens)
    else:
        walk = _of_last_turns(backwards, step.argument)
    parts = list(walk)[::-1]
    if fit is not None:
        fit.left = len(parts)
    found = _without_lone_results(parts)
    # After an agent the last message is the result of a call: as text, a reader of the last one is shown it.
    return found if found or step.name != "last" else parts[-1:]


def _without_lone_results(parts: list[FieldPart]) -> list[FieldPart]:
    """Leaves out the results of tools whose call was not selected: no provider accepts a result without its call.

    A tool's message whose call is nowhere in the field stays: it is a message like any other.
    """
    if all(part.call < 0 for part in parts):
        return parts
    slots = {part.slot for part in parts}
    return [part for part in parts if part.call < 0 or part.call in slots]


def _of_last_turns(backwards: Iterable[FieldPart], count: int) -> Iterator[FieldPart]:
    """The parts of the last turns, and the user messages just before the first of them, the last one first."""
    for part in backwards:
        value = part.value
        role = value.raw("role", None) if isinstance(value, FrozenDict) else getattr(value, "role", None)
        # The user messages before the first turn belong to it: they asked for it.
        if not count and role != "user":
            return
        count -= role == "assistant"
        yield part


def _fitting(
    kind: str, backwards: Iterable[FieldPart], budget: float, count: Callable[[str], float]
) -> Iterator[FieldPart]:
    """The parts that fit into a number of tokens, the last one first."""
    for part in backwards:
        # Before the comparison: an entry that does not fit ends the walk, so that no gap is in what is shown.
        budget -= count(_line(kind, part))
        if budget < 0:
            return
        yield part


def sum_of_amounts(view: View, index: FieldIndex, reader: str) -> Any:
    """The sum of the amounts that a view selects, from the sums by author; None if its steps need single amounts."""
    if not all(step.name in ("own", "others", "by") for step in view.steps):
        return None
    sums = [total for owner, total in index.sums.items() if all(_selects(step, owner, reader) for step in view.steps)]
    return sum(sums[1:], sums[0]) if sums else 0


# --- rendering parts


def render(
    view: View, kind: str, parts: Sequence[FieldPart], form: ViewForm, read: Callable[[str], Any] = lambda _: DELETE
) -> Any:
    """The selected parts in the form that the node takes; a function of `then` gets entries, whatever the form.

    `read` returns the frozen value of a field, `DELETE` if it is not set.
    """
    if form == "text" and view.last_step != "then":
        return text_of_parts(view, kind, parts)
    parts = _without_lone_results(list(parts))
    if view.last_step == "then":
        return view.steps[-1].argument(entries(kind, parts), **_fields_for_then(view, read))
    if form == "entries":
        return entries(kind, parts)
    if form == "frozen":
        return freeze(value_of_parts(kind, parts, _as_it_is), (view.field,))
    return value_of_parts(kind, parts)  # of a history too


def _fields_for_then(view: View, read: Callable[[str], Any]) -> dict[str, Any]:
    found = {}
    for name, has_default in view.then_fields.items():
        value = read(name)
        if value is not DELETE:
            found[name] = thaw(value)
        elif not has_default:
            raise UnsetFieldError(
                f"the function of {view!r} reads {name!r}, which nothing has written yet: give it as an input, write "
                "it before, or give the parameter a default"
            )
    return found


def entries(kind: str, parts: Sequence[FieldPart]) -> list[Entry]:
    """Parts as users get them, with plain values."""
    keyed = kind == "keys"
    return [Entry(thaw(part.value), part.author, part.commit, part.key if keyed else None) for part in parts]


def _as_it_is(value: Any) -> Any:
    return value


def value_of_parts(kind: str, parts: Sequence[FieldPart], take: Callable[[Any], Any] = thaw) -> Any:
    """Parts as the plain value that they make up: a list, a dict, or a sum; `take` gets what is in it."""
    if kind == "keys":
        return {part.key: take(part.value) for part in parts}
    if kind == "amount":
        return sum([part.value for part in parts[1:]], parts[0].value) if parts else 0
    return [take(part.value) for part in parts]


def text_of_parts(view: View, kind: str, parts: Sequence[FieldPart]) -> str:
    """Parts as text: a line each, with its key in a mapping, or with its author where there may be several.

    Further lines of a part are indented, so that a line without indentation always begins a part: text in a value
    cannot imitate another part or its author.
    """
    if kind == "amount":
        return text_of(value_of_parts(kind, parts))
    if kind == "keys":
        return "\n".join([indented(_line(kind, part)) for part in parts])
    one_author = any(name == "own" or (name == "by" and len(argument) == 1) for name, argument, *_ in view.steps)
    if not one_author and any(part.author for part in parts):
        return "\n".join([indented(f"{label(part.author)}: {_line(kind, part)}") for part in parts])
    if next((step.argument == 1 for step in reversed(view.steps) if step.name == "last"), False):  # one part at most
        return "".join([_line(kind, part) for part in parts])
    return "\n".join([indented(f"- {_line(kind, part)}") for part in parts])


def change_text(field: str, after: Any, parts: FieldParts | None) -> str:
    """A paragraph of `Delta.text`: the new parts of a field with their authors; its value if it has no parts."""
    name = label(field)
    if parts is None:
        return f"{name} (removed)" if after is DELETE else f"{name}: {indented(text_of(thaw(after)))}"
    if parts.kind == "amount":
        return f"{name}: {indented(text_of(value_of_parts(*parts)))} more"
    lines = [indented(f"- {label(part.author)}: {_line(parts.kind, part)}") for part in parts.parts]
    return "\n".join([f"{name}:", *lines] if lines else [f"{name} (emptied)"])


def _line(kind: str, part: FieldPart) -> str:
    value = thaw(part.value)
    text = _message_text(value) if kind == "messages" and _is_message(value) else text_of(value)
    return f"{label(part.key)}: {text}" if kind == "keys" else text


def _is_message(value: Any) -> bool:
    """Return whether an item of a list of messages is a chat message."""
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        return False
    return isinstance(value.get("content"), (str, list)) or bool(value.get("tool_calls"))


def _message_text(message: dict[str, Any]) -> str:
    """The text of a chat message: its content, and the tools that it calls."""
    content = message.get("content")
    lines = [] if content is None else [text_of(content)]
    return "\n".join([*lines, *([text_of(message["tool_calls"])] if message.get("tool_calls") else ())])


# --- texts

_LINE_BREAK = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # all that `str.splitlines` splits at
_PLAIN_NAME = re.compile(r'join:\w+|(?![\s-])[^\x00-\x1f\x7f-\xa0\u2028\u2029:"()]+')


def indented(text: str) -> str:
    """A text with two spaces before each line but the first.

    Example:
        >>> indented("web: harmless\\nmoderator: APPROVED")
        'web: harmless\\n  moderator: APPROVED'
    """
    return _LINE_BREAK.sub(lambda found: f"{found[0]}  ", text)


def label(name: Any) -> str:
    """A name for the beginning of a line, quoted if it could be taken for more than a name.

    Example:
        >>> label("critic"), label("critic: no\\nuser"), label("")
        ('critic', '"critic: no\\\\nuser"', '(unknown)')
    """
    if name == "":
        return "(unknown)"
    text = text_of(name)
    return text if _PLAIN_NAME.fullmatch(text) and not text.endswith(" ") else json.dumps(text)


def text_of(value: Any) -> str:
    """A plain value as a prompt shows it: containers and models as JSON, anything else, a failure too, as text.

    Bytes that are no UTF-8 are shown in base64.

    Example:
        >>> (text_of({"time": [3.5, None]}), text_of("high"), text_of(None),
        ...     text_of(b"\\xff"))
        ('{"time": [3.5, null]}', 'high', 'None', '_w==')
    """
    if isinstance(value, (str, Failure)):
        return str(value)
    try:
        plain = to_jsonable_python(value, fallback=repr)
    except UnicodeDecodeError:  # bytes that are no text
        plain = to_jsonable_python(value, fallback=repr, bytes_mode="base64")
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, (dict, list)) else str(plain)


# --- tokens


# What is about one token to common tokenizers: a part of a word, of one case but for its first letter; up to three
# digits; the space before a number, which is not joined to it; a line break or an indentation.
_UNITS = re.compile(r"[a-z]{1,6}|[A-Z][a-z]{1,5}|[A-Z]{1,6}|[0-9]{1,3}| (?=[0-9])|\s{2,}|[^\S ]", re.ASCII)
_MARKS = re.compile(r"[^A-Za-z0-9\s\x80-\U0010ffff]", re.ASCII)
_LETTERS = re.compile("[\x80-\u07ff]")  # with accents, Greek, Cyrillic, Arabic: several may share a token
_SIGNS = re.compile("[\u0800-\U0010ffff]")


def estimate_tokens(text: str) -> int:
    """The estimated number of tokens of a text, the same on every machine.

    Part of a word, three digits or a line break are a token, other ASCII marks 0.6, further letters 0.75, signs such as
    Chinese ones 1.1.

    Example:
        >>> (estimate_tokens("The order ships at 18:45."), estimate_tokens("潮水"),
        ...     estimate_tokens("9f86d081"))
        (9, 3, 5)
    """
    # In twentieths: whole numbers give the same sum everywhere.
    found = 20 * len(_UNITS.findall(text)) + 12 * len(_MARKS.findall(text))
    if not text.isascii():
        found += 15 * len(_LETTERS.findall(text)) + 22 * len(_SIGNS.findall(text))
    return -(-found // 20)


def tokens_of_parts(kind: str, parts: Sequence[FieldPart], count: Callable[[str], int] = estimate_tokens) -> int:
    """The tokens of the texts of parts, by a function that counts those of one text."""
    if kind == "amount":
        return count(text_of(value_of_parts(kind, parts)))
    return sum([count(_line(kind, part)) for part in parts])
