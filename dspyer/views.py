"""Views: what a node reads of a field, where that is not all of it.

A view stands on the right side of `reads`: `reads={"findings": view("findings").new()}`. It is a value, made once when
the graph is built; each visit of the node reads with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Literal, NamedTuple

from pydantic_core import to_jsonable_python

from dspyer.errors import GraphError
from dspyer.patch import DELETE
from dspyer.scheduler.provenance import Part, Parts
from dspyer.values import thaw

Form = Literal["values", "text", "entries", "history"]
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


class Step(NamedTuple):
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
    steps: tuple[Step, ...] = ()

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
        return View(self.field, (*self.steps, Step(name, argument)))

    @property
    def needs_parts(self) -> bool:
        """Whether it asks who brought what, which only fields with parts can tell."""
        return any(step.name in ("new", "own", "others", "by") for step in self.steps)

    @property
    def only_new(self) -> bool:
        """Whether it can be told from what is new alone: nothing before counts entries."""
        names = [step.name for step in self.steps]
        return "new" in names and not {"last", "fit"} & set(names[: names.index("new")])

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


def _step_text(step: Step) -> str:
    if step.name == "by":
        return f".by({', '.join(map(repr, step.argument))})"
    if step.name == "then":
        return f".then({getattr(step.argument, '__name__', 'fn')})"
    return f".{step.name}({'' if step.argument is None else step.argument})"


def chosen(view: View, shape: str, parts: Sequence[Part], reader: str) -> list[Part]:
    """The parts that a view chooses.

    Args:
        view: the view.
        shape: what the parts make up.
        parts: the parts of the field, in order.
        reader: the node that looks.
    """
    found = list(parts)
    for name, argument in view.steps:
        if name == "new":
            found = [part for part in found if not part.seen]
        elif name == "last":
            found = found[-argument:]
        elif name in ("own", "others"):
            found = [part for part in found if (part.author == reader) == (name == "own")]
        elif name == "by":
            found = [part for part in found if part.author in argument]
        elif name == "fit":
            found = _fitting(shape, found, argument)
    return found


class Delta(NamedTuple):
    """What has changed since a node last ran.

    Attributes:
        patch: by field what is new, as plain values; of a field without a reducer the net change, as in a patch.
        text: the same for a prompt, a paragraph for each field.
    """

    patch: dict[str, Any]
    text: str


def change_text(field: str, after: Any, parts: Parts | None) -> str:
    """A change in words: the new parts of a field, each with its author, or its new value.

    Args:
        field: the field.
        after: its frozen value, `DELETE` for none.
        parts: what is new of it; None for a field that has no parts.
    """
    if parts is None:
        return f"{field}: {'(removed)' if after is DELETE else text_of(thaw(after))}"
    if parts.shape == "amount":
        return f"{field}: {text_of(values_in(*parts))} more"
    lines = [f"- {part.author}: {_line(parts.shape, part)}" for part in parts.parts]
    return "\n".join([f"{field}:", *lines] if lines else [f"{field}: (emptied)"])


class Look(NamedTuple):
    """What one view has shown once.

    Attributes:
        node: who looked.
        name: what the node calls it.
        view: the view.
        shape: what the parts make up.
        shown: the parts that were shown.
        whole: the frozen value of the field.
    """

    node: str
    name: str
    view: View
    shape: str
    shown: tuple[Part, ...]
    whole: Any


def shown(view: View, shape: str, parts: Sequence[Part], form: Form) -> Any:
    """The chosen parts in the form in which they are wanted.

    Args:
        view: the view.
        shape: what the parts make up.
        parts: what it has chosen.
        form: the form.
    """
    if view.last_step == "then":
        return view.steps[-1].argument(entries(shape, parts))
    if form == "entries":
        return entries(shape, parts)
    if form in ("values", "history"):
        return values_in(shape, parts)
    return text_in(view, shape, parts)


def values_in(shape: str, parts: Sequence[Part]) -> Any:
    """Parts as the plain value that they make up."""
    if shape == "keys":
        return {part.key: thaw(part.value) for part in parts}
    if shape == "amount":
        return sum([part.value for part in parts[1:]], parts[0].value) if parts else 0
    return [thaw(part.value) for part in parts]


def text_in(view: View, shape: str, parts: Sequence[Part]) -> str:
    """Parts as text: one line each, with its key, or with its author where there may be several."""
    if shape == "amount":
        return text_of(values_in(shape, parts))
    if shape == "keys":
        return "\n".join([_line(shape, part) for part in parts])
    alone = any(name == "own" or (name == "by" and len(argument) == 1) for name, argument in view.steps)
    named = not alone and any(part.author for part in parts)
    return "\n".join([f"{part.author}: {_line(shape, part)}" if named else _line(shape, part) for part in parts])


def entries(shape: str, parts: Sequence[Part]) -> list[Entry]:
    """The parts as users see them."""
    keyed = shape == "keys"
    return [Entry(thaw(part.value), part.author, part.commit, part.key if keyed else None) for part in parts]


def _line(shape: str, part: Part) -> str:
    value = thaw(part.value)
    text = said_in(value) if isinstance(value, dict) and "role" in value else text_of(value)
    return f"{part.key}: {text}" if shape == "keys" else text


def said_in(message: dict[str, Any]) -> str:
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


def tokens_in(text: str) -> int:
    """The estimated tokens of a text: the same on every machine.

    Example:
        >>> tokens_in("four bytes each")
        4
    """
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def tokens_of(shape: str, parts: Sequence[Part], count: Callable[[str], int] = tokens_in) -> int:
    """The tokens of parts.

    Args:
        shape: what they make up.
        parts: the parts.
        count: counts those of a text.
    """
    if shape == "amount":
        return count(text_of(values_in(shape, parts)))
    return sum([count(_line(shape, part)) for part in parts])


def _fitting(shape: str, parts: list[Part], budget: int) -> list[Part]:
    kept = 0
    for part in reversed(parts):
        budget -= tokens_in(_line(shape, part))
        if budget < 0:
            break
        kept += 1
    return parts[len(parts) - kept :]


def _whole_number(name: str, count: Any) -> int:
    if type(count) is not int or count < 1:
        raise GraphError(f"view(...).{name}({count!r}): it takes a whole number of at least 1")
    return count
