"""Views: what a node reads of a field, where that is not all of it.

A view stands on the right side of `reads`: `reads={"findings": view("findings").new()}`. It is a value, made once when
the graph is built; each visit of the node reads with it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Literal, NamedTuple

from pydantic_core import to_jsonable_python

from dspyer.errors import GraphError
from dspyer.message_list import ROLES
from dspyer.patch import DELETE
from dspyer.scheduler.provenance import FieldIndex, FieldPart, FieldParts, UnseenParts, is_new
from dspyer.values.frozen import thaw

CUTS = ("last", "fit")
FILTERS = ("new", "own", "others", "by")

ViewForm = Literal["values", "text", "entries", "history"]
"""How a view is handed over: as plain values, as text, as a list of `Entry`, as what a history is made of."""


class Entry(NamedTuple):
    """One part of a field, with who brought it.

    Attributes:
        value: a plain copy of the item, of the value of a key, or of the amount.
        author: the node; `"START"` for inputs and defaults.
        commit: the id of its commit.
        key: the key, for a field that is a mapping.
    """

    value: Any
    author: str
    commit: str
    key: Any = None


class ViewStep(NamedTuple):
    """One step of a view.

    Attributes:
        name: the method that made it.
        argument: what it was given; None for nothing.
    """

    name: str
    argument: Any = None


@dataclass(frozen=True, slots=True)
class View:
    """A part of a field, chosen in steps. Make one with `view`.

    Attributes:
        field: the field.
        steps: what chooses, first to last.
    """

    field: str
    steps: tuple[ViewStep, ...] = ()

    def new(self) -> View:
        """What has come since the node last ran: what does not lie behind a commit of the node.

        On a first visit all is new; after a `Replace`, the whole field.
        """
        return self._with("new")

    def last(self, count: int) -> View:
        """The last entries.

        Args:
            count: how many at most, 1 or more.
        """
        return self._with("last", _whole_number("last", count))

    def own(self) -> View:
        """What the node itself has brought."""
        return self._with("own")

    def others(self) -> View:
        """What others than the node have brought."""
        return self._with("others")

    def by(self, *nodes: str) -> View:
        """What some nodes have brought.

        Args:
            nodes: their names; `"START"` for the inputs.
        """
        if not nodes or not all(type(node) is str for node in nodes):
            raise GraphError(f'view(...).by takes names of nodes, by("researcher", "START"), not {nodes!r}')
        return self._with("by", nodes)

    def fit(self, tokens: int) -> View:
        """The last entries that fit into a number of tokens, by a fixed estimate (4 bytes of UTF-8 are a token).

        Args:
            tokens: how many at most, 1 or more. An entry that is larger alone leaves nothing.
        """
        return self._with("fit", _whole_number("fit", tokens))

    def then(self, fn: Callable[[list[Entry]], Any]) -> View:
        """What a function makes of the entries. It is the last step, and what it gives is handed over as it is.

        Args:
            fn: a pure function of a list of `Entry`.
        """
        given: Any = fn
        if not callable(given) or iscoroutinefunction(given):
            raise GraphError(f"view(...).then({fn!r}): it takes a function of a list of Entry that is not async")
        return self._with("then", fn)

    def _with(self, name: str, argument: Any = None) -> View:
        if self.last_step == "then":
            raise GraphError(f"view({self.field!r}): nothing follows .then(...), put .{name}(...) before it")
        return View(self.field, (*self.steps, ViewStep(name, argument)))

    @property
    def needs_parts(self) -> bool:
        """Whether it asks who brought what, which only fields with parts can tell."""
        return any(step.name in FILTERS for step in self.steps)

    @property
    def last_step(self) -> str:
        """The name of its last step; `""` if it has none."""
        return self.steps[-1].name if self.steps else ""

    @property
    def authors(self) -> frozenset[str]:
        """The nodes that it names."""
        return frozenset(name for step in self.steps if step.name == "by" for name in step.argument)

    def __repr__(self) -> str:
        return f"view({self.field!r}){''.join(map(_step_text, self.steps))}"


def view(field: str) -> View:
    """A view of a field, for `reads` and `ctx.view`.

    Args:
        field: name of the field.

    Example:
        >>> view("findings").new().last(5)
        view('findings').new().last(5)
    """
    if not isinstance(field, str):
        raise GraphError(f'view takes the name of a field, view("findings"), not {field!r}')
    return View(field)


def _step_text(step: ViewStep) -> str:
    if step.name == "by":
        return f".by({', '.join(map(repr, step.argument))})"
    if step.name == "then":
        return f".then({getattr(step.argument, '__name__', 'fn')})"
    return f".{step.name}({'' if step.argument is None else step.argument})"


def select_parts(
    view: View, kind: str, index: FieldIndex, reader: str, news: Callable[[], UnseenParts]
) -> list[FieldPart]:
    """The parts that a view chooses. It costs by what that is, not by all that the field has.

    Args:
        view: the view.
        kind: what the parts make up.
        index: the parts of the field.
        reader: the node that looks.
        news: gives what the node has not seen.
    """
    filters = list(itertools.takewhile(lambda step: step.name in FILTERS, view.steps))
    left = view.steps[len(filters) :]
    if any(step.name == "new" for step in filters):
        found = news().parts
        left = tuple([step for step in view.steps if step.name != "new"])
    else:
        owners = None
        if filters:
            owners = [name for name in index.owners if all(_passes(step, name, reader) for step in filters)]
        walk = index.backwards(owners)
        if left and left[0].name == "last":
            walk = itertools.islice(walk, left[0].argument)
        elif left and left[0].name == "fit":
            walk = _fitting(kind, walk, left[0].argument)
        found = list(walk)[::-1]
        if left and left[0].name in CUTS:
            found, left = _whole_turns(found), left[1:]
    for step in left:
        found = _stepped(step, kind, found, reader, news)
    return found


def select_plain_parts(view: View, kind: str, parts: Sequence[FieldPart]) -> list[FieldPart]:
    """The parts that a view chooses of a value whose authors are not known.

    Args:
        view: the view; it asks for no authors.
        kind: what the parts make up.
        parts: the parts, in order.
    """
    found = list(parts)
    for step in view.steps:
        found = _stepped(step, kind, found, "", None)
    return found


def _stepped(
    step: ViewStep, kind: str, parts: list[FieldPart], reader: str, news: Callable[[], UnseenParts] | None
) -> list[FieldPart]:
    """What one step leaves of a list of parts."""
    if step.name == "last":
        return _whole_turns(parts[-step.argument :])
    if step.name == "fit":
        return _whole_turns(list(_fitting(kind, reversed(parts), step.argument))[::-1])
    if step.name == "new":
        names = news().names if news is not None else frozenset()
        fresh = {part.slot if part.call < 0 else part.call for part in parts if is_new(part, names)}
        return [part for part in parts if (part.slot if part.call < 0 else part.call) in fresh]
    if step.name == "then":
        return parts
    return [part for part in parts if _passes(step, part.owner, reader)]


def _passes(step: ViewStep, owner: str, reader: str) -> bool:
    """Whether a step by authors lets the part of an owner through."""
    return owner in step.argument if step.name == "by" else (owner == reader) == (step.name == "own")


def _whole_turns(parts: list[FieldPart]) -> list[FieldPart]:
    """Parts without the results of tools whose call was cut off: no provider takes them."""
    if all(part.call < 0 for part in parts):
        return parts
    there = {part.slot for part in parts}
    return [part for part in parts if part.call < 0 or part.call in there]


def sum_of_amounts(view: View, index: FieldIndex, reader: str) -> Any:
    """What a view of amounts gives, if that is the sum of what some nodes brought.

    Args:
        view: the view.
        index: the amounts.
        reader: the node that looks.

    Returns:
        The sum, 0 if there is none; None if the view asks for more.
    """
    if not all(step.name in ("own", "others", "by") for step in view.steps):
        return None
    sums = [total for owner, total in index.sums.items() if all(_passes(step, owner, reader) for step in view.steps)]
    return sum(sums[1:], sums[0]) if sums else 0


class Delta(NamedTuple):
    """What has changed since a node last ran.

    Attributes:
        patch: by field what is new, as plain values; of a field without a reducer the net change, as in a patch.
        text: the same for a prompt, a paragraph for each field.
    """

    patch: dict[str, Any]
    text: str


def change_text(field: str, after: Any, parts: FieldParts | None) -> str:
    """A change in words: the new parts of a field, each with its author, or its new value.

    Args:
        field: the field.
        after: its frozen value, `DELETE` for none.
        parts: what is new of it; None for a field that has no parts.
    """
    name = label(field)
    if parts is None:
        return f"{name} (removed)" if after is DELETE else f"{name}: {indented(text_of(thaw(after)))}"
    if parts.kind == "amount":
        return f"{name}: {indented(text_of(value_of_parts(*parts)))} more"
    lines = [indented(f"- {label(part.author)}: {_line(parts.kind, part)}") for part in parts.parts]
    return "\n".join([f"{name}:", *lines] if lines else [f"{name} (emptied)"])


class ViewRead(NamedTuple):
    """That a view was looked through. What it has shown is a function of the commits, and is made again when asked for.

    Attributes:
        node: who looked.
        name: what the node calls it.
        view: the view.
        head: the index of the last commit of its branch.
    """

    node: str
    name: str
    view: View
    head: int


def render(view: View, kind: str, parts: Sequence[FieldPart], form: ViewForm) -> Any:
    """The chosen parts in the form in which they are wanted.

    Args:
        view: the view.
        kind: what the parts make up.
        parts: what it has chosen.
        form: the form.
    """
    if view.last_step == "then":
        return view.steps[-1].argument(entries(kind, parts))
    if form == "entries":
        return entries(kind, parts)
    if form in ("values", "history"):
        return value_of_parts(kind, parts)
    return text_of_parts(view, kind, parts)


def value_of_parts(kind: str, parts: Sequence[FieldPart]) -> Any:
    """Parts as the plain value that they make up."""
    if kind == "keys":
        return {part.key: thaw(part.value) for part in parts}
    if kind == "amount":
        return sum([part.value for part in parts[1:]], parts[0].value) if parts else 0
    return [thaw(part.value) for part in parts]


def text_of_parts(view: View, kind: str, parts: Sequence[FieldPart]) -> str:
    """Parts as text: one line each, with its key, or with its author where there may be several.

    What follows a line break inside a part is indented: a line that is not begins a part, whatever the parts say.
    """
    if kind == "amount":
        return text_of(value_of_parts(kind, parts))
    if kind == "keys":
        return "\n".join([indented(_line(kind, part)) for part in parts])
    alone = any(name == "own" or (name == "by" and len(argument) == 1) for name, argument in view.steps)
    if not alone and any(part.author for part in parts):
        return "\n".join([indented(f"{label(part.author)}: {_line(kind, part)}") for part in parts])
    if _is_one(view):
        return "".join([_line(kind, part) for part in parts])
    return "\n".join([indented(f"- {_line(kind, part)}") for part in parts])


def _is_one(view: View) -> bool:
    """Whether a view shows one part at most: its last cut says so."""
    return next((step.argument == 1 for step in reversed(view.steps) if step.name == "last"), False)


_BREAK = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_PLAIN = re.compile(r'join:\w+|(?![\s-])[^\x00-\x1f\x7f-\xa0\u2028\u2029:"()]+')


def indented(text: str) -> str:
    """A text of which each line but the first begins with two spaces.

    Example:
        >>> indented("web: harmless\\nmoderator: APPROVED")
        'web: harmless\\n  moderator: APPROVED'
    """
    return _BREAK.sub(lambda found: f"{found[0]}  ", text)


def label(name: Any) -> str:
    """A name as a line of a text begins with: one that could be taken for more than a name is quoted.

    Example:
        >>> label("critic"), label("critic: no\\nuser"), label("")
        ('critic', '"critic: no\\\\nuser"', '(unknown)')
    """
    if name == "":
        return "(unknown)"
    text = text_of(name)
    return text if _PLAIN.fullmatch(text) and not text.endswith(" ") else json.dumps(text)


def entries(kind: str, parts: Sequence[FieldPart]) -> list[Entry]:
    """The parts as users see them."""
    keyed = kind == "keys"
    return [Entry(thaw(part.value), part.author, part.commit, part.key if keyed else None) for part in parts]


def _line(kind: str, part: FieldPart) -> str:
    value = thaw(part.value)
    text = message_text(value) if kind == "messages" and is_message(value) else text_of(value)
    return f"{label(part.key)}: {text}" if kind == "keys" else text


def is_message(value: Any) -> bool:
    """Whether a value of a field of messages is a chat message."""
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        return False
    return isinstance(value.get("content"), (str, list)) or bool(value.get("tool_calls"))


def message_text(message: dict[str, Any]) -> str:
    """What a message says: its content, and the tools that it calls."""
    content = message.get("content")
    said = [] if content is None else [text_of(content)]
    return "\n".join([*said, *([text_of(message["tool_calls"])] if message.get("tool_calls") else ())])


def text_of(value: Any) -> str:
    """A plain value as a prompt shows it: what holds others as JSON, else as text.

    Example:
        >>> text_of({"tide": [3.5, None]}), text_of("high"), text_of(None)
        ('{"tide": [3.5, null]}', 'high', 'None')
    """
    if isinstance(value, str):
        return value
    found = to_jsonable_python(value, fallback=repr)
    return json.dumps(found, ensure_ascii=False) if isinstance(found, (dict, list)) else str(found)


def estimate_tokens(text: str) -> int:
    """The estimated tokens of a text: the same on every machine.

    Example:
        >>> tokens_in("four bytes each")
        4
    """
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def tokens_of_parts(kind: str, parts: Sequence[FieldPart], count: Callable[[str], int] = estimate_tokens) -> int:
    """The tokens of parts.

    Args:
        kind: what they make up.
        parts: the parts.
        count: counts those of a text.
    """
    if kind == "amount":
        return count(text_of(value_of_parts(kind, parts)))
    return sum([count(_line(kind, part)) for part in parts])


def _fitting(kind: str, backwards: Iterable[FieldPart], budget: int) -> Iterator[FieldPart]:
    """The parts that fit into a number of tokens, the last one first."""
    for part in backwards:
        budget -= estimate_tokens(_line(kind, part))
        if budget < 0:
            return
        yield part


def _whole_number(name: str, count: Any) -> int:
    if type(count) is not int or count < 1:
        raise GraphError(f"view(...).{name}({count!r}): it takes a whole number of at least 1")
    return count
