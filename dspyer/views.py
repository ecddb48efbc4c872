"""Views: what a node reads of a field, where that is not all of it.

A view stands on the right side of `reads`: `reads={"findings": view("findings").new()}`. It is a value, made once when
the graph is built; each visit of the node reads with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dspyer.errors import GraphError
from dspyer.scheduler.provenance import Part
from dspyer.values import thaw

Form = Literal["values", "text", "entries"]
"""How a view is handed over: as plain values, as text, as a list of `Entry`."""


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
        if not nodes:
            raise GraphError('view(...).by() names no node: by("researcher")')
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
        return self._with("then", fn)

    def _with(self, name: str, argument: Any = None) -> View:
        if self.steps and self.steps[-1].name == "then":
            raise GraphError(f"view({self.field!r}): nothing follows .then(...), put .{name}(...) before it")
        return View(self.field, (*self.steps, Step(name, argument)))

    @property
    def needs_parts(self) -> bool:
        """Whether it asks who brought what, which only fields with parts can tell."""
        return any(step.name in ("new", "own", "others", "by") for step in self.steps)

    def __repr__(self) -> str:
        steps = "".join(f".{name}({'' if argument is None else argument})" for name, argument in self.steps)
        return f"view({self.field!r}){steps}"


def view(field: str) -> View:
    """A view of a field, for `reads` and `ctx.view`.

    Args:
        field: name of the field.

    Example:
        >>> view("findings").new().last(5)
        view('findings').new().last(5)
    """
    return View(field)


def chosen(view: View, parts: Sequence[Part], reader: str) -> list[Part]:
    """The parts that a view chooses.

    Args:
        view: the view.
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
            found = _fitting(found, argument)
    return found


class Look(NamedTuple):
    """What one view has shown once.

    Attributes:
        node: who looked.
        name: what the node calls it.
        field: the field.
        sent: estimated tokens of what was shown.
        full: estimated tokens of the whole field.
    """

    node: str
    name: str
    field: str
    sent: int
    full: int


def size_of(parts: Sequence[Part]) -> int:
    """The estimated tokens of parts."""
    return sum([tokens_in(text_of(thaw(part.value))) for part in parts])


def shown(view: View, shape: str, parts: Sequence[Part], form: Form) -> Any:
    """The chosen parts in the form in which they are wanted.

    Args:
        view: the view.
        shape: what the parts make up.
        parts: what it has chosen.
        form: the form.
    """
    if view.steps and view.steps[-1].name == "then":
        return view.steps[-1].argument(entries(parts))
    if form == "entries":
        return entries(parts)
    values = _values(shape, parts)
    if form == "values":
        return values
    if isinstance(values, dict):
        return "\n".join(f"{key}: {text_of(value)}" for key, value in values.items())
    if not isinstance(values, list):
        return text_of(values)
    alone = any(step.name in ("own", "by") for step in view.steps)
    said = [text_of(thaw(part.value)) for part in parts]
    alone = alone or not any(part.author for part in parts)
    return "\n".join(said if alone else [f"{part.author}: {text}" for part, text in zip(parts, said, strict=True)])


def _values(shape: str, parts: Sequence[Part]) -> Any:
    if shape == "keys":
        return {part.key: thaw(part.value) for part in parts}
    if shape == "amount":
        return sum([part.value for part in parts[1:]], parts[0].value) if parts else 0
    return [thaw(part.value) for part in parts]


def entries(parts: Sequence[Part]) -> list[Entry]:
    """The parts as users see them."""
    return [Entry(thaw(part.value), part.author, part.commit, part.key) for part in parts]


def text_of(value: Any) -> str:
    """A value as a prompt shows it."""
    return value if isinstance(value, str) else repr(value)


def tokens_in(text: str) -> int:
    """The estimated tokens of a text: the same on every machine.

    Example:
        >>> tokens_in("four bytes each")
        4
    """
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def _fitting(parts: list[Part], budget: int) -> list[Part]:
    kept = 0
    for part in reversed(parts):
        budget -= tokens_in(text_of(thaw(part.value)))
        if budget < 0:
            break
        kept += 1
    return parts[len(parts) - kept :]


def _whole_number(name: str, count: int) -> int:
    if count < 1:
        raise GraphError(f"view(...).{name}({count!r}): it takes a whole number of at least 1")
    return count
