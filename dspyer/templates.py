"""Templates: text with names of fields in braces, filled from the state when a node runs.

Only `{name}` is filled, in one pass, and only if the name is known. Everything else is text: JSON, other braces, and
the braces in a value. So no text can fail, whoever wrote it. `{{name}}` gives `{name}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dspyer.errors import GraphError, brief

RUN = "run."
"""How the names of run values begin."""

_NAME = r"run\.\w+(?:\.\w+)?|[^\W\d]\w*"
_PLACE = re.compile(rf"\{{\{{({_NAME})\}}\}}|\{{({_NAME})\}}")


class FilledText(NamedTuple):
    """A template with values in it.

    Attributes:
        text: the text.
        used: the names that had a value.
        left: the names that had none and stay as they are.
    """

    text: str
    used: tuple[str, ...]
    left: tuple[str, ...]


def names_in(text: str) -> tuple[str, ...]:
    """The names that a text would be filled with, each once, in order.

    Example:
        >>> names_in('{who} says {"json": 1} and {{this}} in {run.count} steps to {who}')
        ('who', 'run.count')
    """
    return tuple(dict.fromkeys(name for _, name in _PLACE.findall(text) if name))


def is_template(text: str) -> bool:
    """Whether a text has a name in braces, or in double ones."""
    return "{" in text and _PLACE.search(text) is not None


def fill_text(text: str, value_of: Callable[[str], str | None]) -> FilledText:
    """Puts values into a text, once: what a value holds is not filled again.

    Args:
        text: the template.
        value_of: gives the text for a name, None to leave the name as it is.

    Example:
        >>> filled("{a}, {b}, {{a}}", {"a": "{b}"}.get).text
        '{b}, {b}, {a}'
    """
    used: dict[str, None] = {}
    left: dict[str, None] = {}

    def put(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        if escaped is not None:
            return f"{{{escaped}}}"
        value = value_of(name)
        if value is None:
            left[name] = None
            return found.group()
        used[name] = None
        return value

    return FilledText(_PLACE.sub(put, text), tuple(used), tuple(left))


@dataclass(frozen=True, slots=True)
class Fill:
    """An input that is a text with values of the state in it. Make one with `fill`.

    Attributes:
        text: the template.
    """

    text: str

    @property
    def names(self) -> tuple[str, ...]:
        """The fields and run values in it."""
        return names_in(self.text)

    def __repr__(self) -> str:
        return f"fill({self.text!r})"


def fill(text: str) -> Fill:
    """A text with fields of the state in braces, for the right side of `reads`.

    Args:
        text: the template. `{name}` is a field, or a run value such as `{run.remaining}`; a field that nothing has
            written stays as it is; `{{name}}` gives `{name}`.

    Raises:
        GraphError: if it is no text, or has no name in it.

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
class RunValue:
    """An input that the run itself knows, such as `run.remaining`.

    Attributes:
        name: its name, from `run.` on.
    """

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """Itself."""
        return (self.name,)

    def __repr__(self) -> str:
        return self.name


ComputedInput = Fill | RunValue
"""What an input can be made of that is no one field."""


class Templates(NamedTuple):
    """The templates of a node.

    Attributes:
        names: the fields and run values that they name.
        allowed: the fields that may be filled into the instructions of its predictors; None for all.
        in_instructions: whether these instructions are templates at all.
    """

    names: tuple[str, ...] = ()
    allowed: frozenset[str] | None = frozenset()
    in_instructions: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields among the names."""
        return tuple(name for name in self.names if not name.startswith(RUN))

    @property
    def takes(self) -> frozenset[str]:
        """The fields that may come in their place with a `Send`."""
        return frozenset(self.fields).union(self.allowed or ()) if self.in_instructions else frozenset(self.fields)

    def read(self, reads: Mapping[str, str]) -> dict[str, str]:
        """What a node reads, with the fields in its templates."""
        more = [name for name in self.fields if name not in reads.values()]
        return {**reads, **{name if name not in reads else f"{{{name}}}": name for name in more}}

    def unset(self, reads: Mapping[str, str], optional: frozenset[str]) -> frozenset[str]:
        """The fields among `read` that may be unset: a template is filled with what there is."""
        return optional | {name for name in self.fields if name not in reads.values()}


NO_TEMPLATES = Templates()
