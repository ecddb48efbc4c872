"""Writing one field: who writes, what is stored, and the error that says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import ValidationError

from dspyer.errors import DspyerError, InputError, NodeOutputError, brief
from dspyer.patch import resets
from dspyer.schema.field_types import NO_OTHERS, Field
from dspyer.state import ImmutableState

ShowPath = Callable[[tuple[Any, ...], Any], str]
"""How errors show a value, by its path."""


def plainly(_path: tuple[Any, ...], value: Any) -> str:
    """A value as errors show it where nothing is hidden."""
    return brief(value)


class Write(NamedTuple):
    """Who writes, for errors, and how: a node, or the caller who gives the inputs (None)."""

    node: str | None
    commit_id: str
    whole: bool
    shown: ShowPath

    @property
    def error(self) -> type[DspyerError]:
        """The class of errors by culprit."""
        return InputError if self.node is None else NodeOutputError

    @property
    def author(self) -> str:
        """How an error's sentence starts."""
        return "the caller gives" if self.node is None else f"node {self.node!r} writes"

    def one(self, field: Field, old: Any, update: Any, state: ImmutableState) -> tuple[Any, Any]:
        """The stored update of a field and its new value."""
        if field.constant and self.node is not None:
            raise NodeOutputError(
                f"{self.author} field {field.name!r}, which is frozen in the schema: only inputs of a run set it"
            )
        if field.reducer is not None and field.reducer.keeps and self.node is not None:
            self._check_kept(field, update)
        try:
            if field.reducer is None:
                return update, field.place(old, update, self.whole, state if field.wants_others else NO_OTHERS)
            stored = field.prepare(old, update, self.commit_id)
            return stored, field.fold(old, stored)
        except ValidationError as refusal:
            raise self._refusal(field, update, reasons(refusal, field.name)) from None
        except NodeOutputError as refusal:
            raise self._refusal(field, update, str(refusal)) from None

    def _check_kept(self, field: Field, update: Any) -> None:
        assert field.reducer is not None  # which keeps what is there
        if resets(update):
            raise NodeOutputError(
                f"{self.author} field {field.name!r} anew, whose entries are never removed (reducer "
                f"{field.reducer.name!r}): return new ones alone"
            )

    def _refusal(self, field: Field, update: Any, why: str) -> DspyerError:
        text = f"{self.author} {self.shown((field.name,), update)} for field {field.name!r}, which is refused: {why}"
        if field.reducer is not None and field.reducer.hint:
            text += f"; {field.reducer.hint}"
        if update is None and field.reducer is None:
            text += ". None is a value of a field with a type; DELETE resets the field to its default"
        return self.error(text)


def reasons(refusal: ValidationError, name: str) -> str:
    """Why pydantic refuses a value of a field, in one line."""
    found = []
    for problem in refusal.errors(include_url=False, include_context=False, include_input=False)[:3]:
        inside = problem["loc"][1:] if problem["loc"][:1] == (name,) else problem["loc"]
        place = "".join(f"[{part!r}]" for part in inside)
        found.append(f"{place}: {problem['msg']}" if place else problem["msg"])
    more = refusal.error_count() - len(found)
    return "; ".join(found) + (f"; and {more} more" if more else "")
