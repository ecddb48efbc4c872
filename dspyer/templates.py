"""Templates: text with names of fields in braces, filled from the state when a node runs.

Only `{name}` with a known name is filled, in one pass. All other text stays as it is: JSON, other braces, and braces in
a value. So no template can fail, and no value can inject a name. `{{name}}` becomes `{name}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dspyer.errors import GraphError, brief

RUN = "run."
"""The prefix of the names of run values."""

_NAME = r"run\.\w+(?:\.\w+)?|[^\W\d]\w*"
_PLACEHOLDER = re.compile(rf"\{{\{{({_NAME})\}}\}}|\{{({_NAME})\}}")  # in double braces, or in single ones


# --- what users write


def fill(text: str) -> Fill:
    """A text with fields of the state in braces, for the right side of `reads`.

    The instructions of predictors are templates as well: those of a node, inside `ChainOfThought`, `ReAct` and modules
    that a function calls through `modules=`, of routers that are modules, and of `condense=`, which may name their
    input too. A node reads the fields that its templates name. Templates are filled in one pass: braces in a value are
    plain text. The texts of `fill` belong to the graph and are not tuned; instructions are, as templates.

    `compile()` refuses a name that is no field, and warns of a field that nothing can have written by then. Without a
    schema a new name is an input, unless it is spelt almost like another field. In the descriptions of a `ReAct`'s
    tools unknown names stay as they are. A text that an optimizer wrote may lack a name, which is then added to the end
    as `severity: high`, or have an unknown one, which stays; both are logged once. It reads no more than its node does.

    A predictor with a template must be called by its node, in the node's context (`contextvars.copy_context().run` or
    `dspy.Parallel` in threads of your own); any other call raises. Its class becomes a subclass of its own class, so
    `compile()` refuses a template in a subclass of `dspy.Predict` with a `forward` of its own.

    Run values (`run.count`, `run.remaining`, `run.routing_reason`, `run.NODE.visits`, `.calls`, `.tool_calls`) are
    computed from the commits that led to the branch: a resumed run has the same ones, a join adds up those of its
    branches, and a subgraph has its own. No field may be called `run`.

    Args:
        text: the template. `{name}` is a field, or a run value such as `{run.remaining}`; a field that no node has
            written, or that is None, stays as it is; `{{name}}` becomes `{name}`.

    Returns:
        The input, for the right side of `reads`.

    Raises:
        GraphError: if `text` is not a string, or has no name in it.

    Example:
        >>> fill("Case {alert_text}")
        fill('Case {alert_text}')
    """
    if not isinstance(text, str):
        raise GraphError(f"fill takes a text with fields in braces, not {brief(text)}: fill('Case {{alert_text}}')")
    if not names_in(text):
        raise GraphError(f"fill({brief(text)}) has no field in it: name one in braces, fill('Case {{alert_text}}')")
    return Fill(text)


@dataclass(frozen=True, slots=True)
class Fill:
    """An input that is a text with values of the state in it. Make one with `fill`.

    Attributes:
        text: the template.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("note", lambda case: {"note": case},
        ...     reads={"case": fill("Case {alert}")})
        >>> graph.add_path(START, "note", END).compile()(alert="disk full").note
        'Case disk full'
    """

    text: str

    @property
    def names(self) -> tuple[str, ...]:
        """The fields and run values in the text."""
        return names_in(self.text)

    def __repr__(self) -> str:
        return f"fill({self.text!r})"


@dataclass(frozen=True, slots=True)
class RunValue:
    """An input that is a value of the run itself, such as `run.remaining`; its name includes `run.`."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def __repr__(self) -> str:
        return self.name


ComputedInput = Fill | RunValue
"""An input that is not one field, but computed from several or from the run."""


# --- filling


def names_in(text: str) -> tuple[str, ...]:
    """The names that a text is filled with, each once, in order.

    Example:
        >>> names_in(
        ...     '{who} says {"json": 1} and {{this}} in {run.count} steps to {who}')
        ('who', 'run.count')
    """
    return tuple(dict.fromkeys(name for _, name in _PLACEHOLDER.findall(text) if name))


def is_template(text: str) -> bool:
    """Return whether filling can change a text: it has a name in single or double braces."""
    return "{" in text and _PLACEHOLDER.search(text) is not None


def fill_text(text: str, value_of: Callable[[str], str | None]) -> tuple[str, tuple[str, ...]]:
    """A text with values in it, put there in one pass, and the names that had one.

    A name for which `value_of` returns None stays as it is.

    Example:
        >>> fill_text("{a}, {b}, {{a}}", {"a": "{b}"}.get)[0]
        '{b}, {b}, {a}'
    """
    used: dict[str, None] = {}  # a dict as an ordered set

    def replace(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        if escaped is not None:
            return f"{{{escaped}}}"
        value = value_of(name)
        if value is None:
            return found.group()
        used[name] = None
        return value

    return _PLACEHOLDER.sub(replace, text), tuple(used)


# --- the templates of a node


class Templates(NamedTuple):
    """The templates of a node.

    Attributes:
        names: the fields and run values that they name.
        allowed: the fields that may be filled into the instructions of the node's predictors; None for all.
        in_instructions: whether these instructions are templates at all.
        of_views: what the node reads besides its inputs and templates: the fields that functions of its views take,
            each with whether it may be unset.
        typed: the fields that only texts and views of the node name, as its author wrote them.
    """

    names: tuple[str, ...] = ()
    allowed: frozenset[str] | None = frozenset()
    in_instructions: bool = False
    of_views: tuple[tuple[str, bool], ...] = ()
    typed: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields among the names."""
        return tuple(name for name in self.names if not name.startswith(RUN))

    @property
    def takes(self) -> frozenset[str]:
        """The fields that a `Send` may bring instead of the state."""
        named = frozenset([*self.fields, *dict(self.of_views)])
        return named.union(self.allowed or ()) if self.in_instructions else named

    def facts(self, reads: Mapping[str, str] | None, optional: frozenset[str]) -> dict[str, Any]:
        """The facts of a node that has these templates: what it reads (None for the whole state), and may be unset.

        A field whose name another input has is read as input `{field}`. A template is filled with the values that
        there are, so what only templates name may be unset.
        """
        if reads is not None:
            more = [name for name in dict.fromkeys([*self.fields, *dict(self.of_views)]) if name not in reads.values()]
            optional = optional.union(more) - {name for name, unset in self.of_views if not unset}
            reads = {**reads, **{name if name not in reads else f"{{{name}}}": name for name in more}}
        return {"reads": reads, "optional": optional, "templates": self}


NO_TEMPLATES = Templates()
