"""What the parameters of a function get, put together once per call by a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import dspy

from dspyer.errors import StateError, UnsetFieldError
from dspyer.messages import turns_in
from dspyer.nodes.base import Call
from dspyer.nodes.names import FieldNames
from dspyer.nodes.resources import resource_for
from dspyer.nodes.sight import read_view, sent_to
from dspyer.nodes.templating import made_for
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.templates import Made
from dspyer.values.frozen import FrozenDict, thaw
from dspyer.values.types import Opaque, opaque_in
from dspyer.views import View, ViewForm

ABSENT: Any = object()


class FieldParameter(NamedTuple):
    """A parameter that gets a field, or a value of the overlay.

    Attributes:
        name: the parameter.
        field: the field of the state.
        copy: whether it gets a plain value of its own; else a frozen view.
        default: whether it may be left out.
        readable: whether the field may come from the state; else from an overlay alone.
        view: the view through which it comes; None for the whole field.
        form: how the view is handed over.
        made: the template or run value that it is; None for a field.
    """

    name: str
    field: str
    copy: bool
    default: bool
    readable: bool = True
    view: View | None = None
    form: ViewForm = "values"
    made: Made | None = None


class ResourceParameter(NamedTuple):
    """A parameter that gets a resource of the run."""

    name: str
    kind: type
    default: bool


@dataclass(frozen=True, slots=True)
class Binding:
    """The plan by which a function's arguments are put together.

    Attributes:
        reader: who reads, for errors.
        fields: parameters that get a field.
        states: parameters that get the snapshot of the state.
        views: parameters that get the typed view of it.
        contexts: parameters that get the run context.
        resources: parameters that get a resource.
        modules: parameters that get a module of the program.
        takes_all: whether `**kwargs` gets all readable fields.
        reads: what may be read, by the function's own names; None for everything.
        schema: the types of the fields.
    """

    reader: str
    fields: tuple[FieldParameter, ...] = ()
    states: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    resources: tuple[ResourceParameter, ...] = ()
    modules: tuple[str, ...] = ()
    takes_all: bool = False
    reads: FieldNames | None = None
    schema: Schema | None = None

    @property
    def whole_state(self) -> bool:
        """Whether it reads the state as a whole."""
        return bool(self.states or self.views or self.takes_all)

    def facts(self) -> tuple[FieldNames | None, frozenset[str]]:
        """What it reads, by its own names, and the fields among them that may be unset."""
        if self.whole_state and self.reads is None:
            return None, frozenset()
        names = dict(self.reads or {}) if self.whole_state or self.contexts else {}
        asked = set() if self.whole_state else set(names.values())
        own = [field for field in self.fields if field.readable]
        names.update({field.name: field.field for field in own})
        needed = {field.field for field in own if not field.default and field.view is None}
        return names, frozenset({field.field for field in own if field.default or field.view} | asked) - needed

    @property
    def takes(self) -> frozenset[str] | None:
        """The names that an overlay may bring; None for any."""
        if self.states or self.takes_all:
            return None
        seen = {*(self.reads.values() if self.reads is not None else self._model_fields())} if self.views else set()
        named = {field.field for field in self.fields if field.made is None}
        return frozenset({*seen, *named, *(resource.name for resource in self.resources)})

    def _model_fields(self) -> Iterable[str]:
        return () if self.schema is None else self.schema.fields

    def bind(self, call: Call) -> dict[str, Any]:
        """The arguments for one call.

        Raises:
            UnsetFieldError: if a field is read that nothing has written.
            InputError: if a resource is missing.
        """
        state, overlay = call.state, call.overlay
        arguments: dict[str, Any] = {}
        for name, field, copy, default, readable, view, form, made in self.fields:
            value = ABSENT if overlay is None else read_field(overlay, field, copy)
            if view is not None:
                value = read_view(call.context.attempt, view, form, name, sent_to(call, field))
                if form == "history" and isinstance(value, list):
                    value = dspy.History(messages=turns_in(value, (), ()))
            elif value is ABSENT and readable:
                value = read_field(state, field, copy) if copy else state.get(field, ABSENT)
            elif value is ABSENT and made is not None:
                value = made_for(made, form, call)
            if value is not ABSENT:
                arguments[name] = value if not Opaque.made else usable(value, field, self.reader)
            elif not default:
                raise unset(field, self.reader)
        for name in self.contexts:
            arguments[name] = call.context
        if self.resources or self.modules or self.states or self.views or self.takes_all:
            self._bind_rest(call, arguments)
        return arguments

    def _bind_rest(self, call: Call, arguments: dict[str, Any]) -> None:
        for resource in self.resources:
            found, value = resource_for(call, self.reader, *resource)
            if found:
                arguments[resource.name] = value
        if self.modules:
            container = getattr(call.program, call.context.node)
            for name in self.modules:
                arguments[name] = getattr(container, name)
        for name in self.states:
            arguments[name] = snapshot(call, self.reads)
        for name in self.views:
            assert self.schema is not None
            readable = None if self.reads is None else frozenset(self.reads.values())
            arguments[name] = self.schema.view(with_overlay(call), readable)
        if self.takes_all:
            for name, field in _readable(call, self.reads):
                arguments.setdefault(name, with_overlay(call)[field])


def read_field(source: FrozenDict[str, Any], field: str, copy: bool) -> Any:
    """A field as a plain copy or as a frozen view; `ABSENT` if it is not there."""
    return thaw(source.raw(field, ABSENT)) if copy else source.get(field, ABSENT)


def usable(value: Any, field: str, reader: str) -> Any:
    """A value that can be read.

    Raises:
        StateError: if the class of something in it is unknown here.
    """
    found = opaque_in(value)
    if found is not None:
        raise StateError(f"{reader} reads {field!r}: {found.refusal}")
    return value


def unset(field: str, reader: str) -> UnsetFieldError:
    """The error for a field that is read before anything has written it."""
    return UnsetFieldError(
        f"{reader} reads {field!r}, which nothing has written yet: give it as an input, write it before, "
        f"or give the parameter a default"
    )


def with_overlay(call: Call) -> ImmutableState:
    """The state with the overlay's values in the place of its own."""
    state = call.state
    for key in call.overlay or ():
        assert call.overlay is not None
        state = state.set(key, call.overlay.raw(key))
    return state


def _readable(call: Call, reads: FieldNames | None) -> Iterator[tuple[str, str]]:
    """The fields that are set, and an overlay's values, each by the node's own name."""
    own = reads if reads is not None else {field: field for field in call.state}
    for name, field in own.items():
        if field in call.state or (call.overlay is not None and field in call.overlay):
            yield name, field
    for key in call.overlay or ():
        if key not in own.values():
            yield key, key


def snapshot(call: Call, reads: FieldNames | None) -> ImmutableState:
    """The state that a parameter `state` gets: what may be read, by the node's own names."""
    state = with_overlay(call)
    if reads is None:
        return state
    return ImmutableState({name: state.raw(field) for name, field in _readable(call, reads)})
