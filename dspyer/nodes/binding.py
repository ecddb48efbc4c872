"""Which parameter of a function gets what. Decided once when the graph is built, done once per call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dspyer.errors import UnsetFieldError, suggestion
from dspyer.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values import FrozenDict, thaw

from .base import Call, Context
from .callables import Described, Parameter, class_of, members, wants_copy
from .names import Names, check_names, listed, no_field
from .resources import is_record, is_value_class, resource_for

ABSENT: Any = object()


class FieldParameter(NamedTuple):
    """A parameter that gets a field, or a value of the overlay.

    Attributes:
        name: the parameter.
        field: the field of the state.
        copy: whether it gets a plain value of its own; else a frozen view.
        default: whether it may be left out.
        readable: whether the field may come from the state; else from an overlay alone.
    """

    name: str
    field: str
    copy: bool
    default: bool
    readable: bool = True


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
    reads: Names | None = None
    schema: Schema | None = None

    @property
    def whole_state(self) -> bool:
        """Whether it reads the state as a whole."""
        return bool(self.states or self.views or self.takes_all)

    def facts(self) -> tuple[Names | None, frozenset[str]]:
        """What it reads, by its own names, and the fields among them that may be unset."""
        if self.whole_state and self.reads is None:
            return None, frozenset()
        names = dict(self.reads or {}) if self.whole_state else {}
        own = [field for field in self.fields if field.readable]
        names.update({field.name: field.field for field in own})
        needed = {field.field for field in own if not field.default}
        return names, frozenset(field.field for field in own if field.default) - needed

    def bind(self, call: Call) -> dict[str, Any]:
        """The arguments for one call.

        Raises:
            UnsetFieldError: if a field is read that nothing has written.
            InputError: if a resource is missing.
        """
        state, overlay = call.state, call.overlay
        arguments: dict[str, Any] = {}
        for name, field, copy, default, readable in self.fields:
            value = ABSENT if overlay is None else read_field(overlay, field, copy)
            if value is ABSENT and readable:
                value = read_field(state, field, copy)
            if value is not ABSENT:
                arguments[name] = value
            elif not default:
                raise unset(field, self.reader)
        for name in self.contexts:
            arguments[name] = call.context
        if self.resources or self.modules or self.whole_state:
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


def _readable(call: Call, reads: Names | None) -> Iterator[tuple[str, str]]:
    """The fields that are set, and an overlay's values, each by the node's own name."""
    own = reads if reads is not None else {field: field for field in call.state}
    for name, field in own.items():
        if field in call.state or (call.overlay is not None and field in call.overlay):
            yield name, field
    for key in call.overlay or ():
        if key not in own.values():
            yield key, key


def snapshot(call: Call, reads: Names | None) -> ImmutableState:
    """The state that a parameter `state` gets: what may be read, by the node's own names."""
    state = with_overlay(call)
    if reads is None:
        return state
    return ImmutableState({name: state.raw(field) for name, field in _readable(call, reads)})


class Plan(NamedTuple):
    """A binding with what is wrong with it.

    Attributes:
        binding: the plan.
        problems: what is wrong, each with its fix.
        unknown: what is wrong unless an overlay brings the missing values.
    """

    binding: Binding
    problems: list[str]
    unknown: list[str]


def plan_binding(
    described: Described,
    who: str,
    schema: Schema,
    *,
    reads: Names | None = None,
    modules: tuple[str, ...] = (),
    overlay: frozenset[str] = frozenset(),
) -> Plan:
    """Decide what each parameter of a function gets.

    Args:
        described: the function.
        who: the node or router, for problems and errors.
        schema: the fields of the state.
        reads: what it may read, its own names on the left; None for everything.
        modules: names of the modules that are bound to it.
        overlay: names that an overlay is known to bring.

    Returns:
        The plan and what is wrong with it.
    """
    planner = _Planner(who, schema, reads, modules, overlay, described)
    for parameter in described.parameters:
        planner.place(parameter)
    planner.check()
    return Plan(planner.binding, planner.problems, planner.unknown)


class _Planner:
    def __init__(
        self,
        who: str,
        schema: Schema,
        reads: Names | None,
        modules: tuple[str, ...],
        overlay: frozenset[str],
        described: Described,
    ) -> None:
        self.who, self.schema, self.reads, self.modules, self.overlay = who, schema, reads, modules, overlay
        self.described = described
        self.problems: list[str] = list(described.problems)
        self.unknown: list[str] = []
        self.binding = Binding(who, reads=reads, schema=schema, takes_all=described.takes_all)

    def place(self, parameter: Parameter) -> None:
        """Put one parameter where it belongs; the first rule that fits decides."""
        name = parameter.name
        is_field = not self.schema.open and name in self.schema.fields
        kind = class_of(parameter.annotation)
        if name in self.modules:
            self._add(modules=(*self.binding.modules, name))
        elif name in self.overlay or (self.reads is not None and name in self.reads):
            self._add_field(parameter)
        elif kind is Context or _wrote(parameter, Context) or (name == "ctx" and not is_field):
            self._add(contexts=(*self.binding.contexts, name))
        elif kind is ImmutableState or _wrote(parameter, ImmutableState):
            self._add(states=(*self.binding.states, name))
        elif is_field:
            self._add_field(parameter, readable=self.reads is None)
        elif self._is_view(parameter):
            self._add(views=(*self.binding.views, name))
        elif name == "state":
            self._add(states=(*self.binding.states, name))
        elif kind is not None and not parameter.text and self._is_resource(kind):
            self._add(resources=(*self.binding.resources, ResourceParameter(name, kind, parameter.default)))
        else:
            self._add_field(parameter, readable=self.schema.open and self.reads is None)

    def _add(self, **changes: Any) -> None:
        self.binding = replace(self.binding, **changes)

    def _add_field(self, parameter: Parameter, readable: bool = True) -> None:
        name = parameter.name
        field = name if self.reads is None else self.reads.get(name, name)
        readable = readable and field not in self.overlay
        entry = FieldParameter(name, field, wants_copy(parameter.annotation), parameter.default, readable)
        self._add(fields=(*self.binding.fields, entry))
        if not readable and field not in self.overlay:
            self.unknown.append(self._unknown_text(parameter))

    def _is_view(self, parameter: Parameter) -> bool:
        model = self.schema.model
        return model is not None and (model in members(parameter.annotation) or _wrote(parameter, model))

    def _is_resource(self, kind: type) -> bool:
        if is_record(kind):
            return not self.schema.open
        return not is_value_class(kind)

    def _unknown_text(self, parameter: Parameter) -> str:
        name = parameter.name
        if self.reads is not None and (self.schema.open or name in self.schema.fields):
            return f"{self.who}: its parameter {name!r} is not among its reads ({listed(self.reads)}): add it there"
        text = f"{self.who}: its parameter {name!r} {no_field(name, self.schema)}"
        if parameter.text:
            text += (
                f" Its annotation {parameter.text!r} cannot be resolved from here: if it is the schema or the class of "
                "a resource, define that at module level."
            )
        elif len(self.described.parameters) == 1:
            text += " For the state as a whole, name it `state`."
        if parameter.default:
            text += " If its default is meant to stay, bind it with functools.partial."
        if name == "self":
            text += " Give a method of an object: `obj.method`, not `Class.method`."
        return text + (
            " A parameter is a field, `state`, `ctx`, a module of modules={...}, or annotated with the class of a "
            "resource."
        )

    def check(self) -> None:
        """Compare `reads` and `modules` with the parameters."""
        taken = [parameter.name for parameter in self.described.parameters]
        if self.reads is not None:
            own = None if self.binding.whole_state else [name for name in taken if name not in self.modules]
            self.problems += check_names(
                self.reads, "reads", self.who, own=own, schema=self.schema, overlay=self.overlay
            )
        renamed = [name for name, field in (self.reads or {}).items() if name != field]
        if self.binding.views and renamed:
            self.problems.append(
                f"{self.who}: a parameter annotated with the schema reads fields by their own names, but reads renames "
                f"{listed(renamed)}: take `state` or the fields themselves as parameters"
            )
        for name in self.modules:
            if name not in taken and not self.described.takes_all:
                self.problems.append(
                    f"{self.who}: modules binds {name!r}, but the function has no such parameter: add it."
                    f"{suggestion(name, taken)}"
                )
            elif name not in taken:
                self._add(modules=(*self.binding.modules, name))


def _wrote(parameter: Parameter, kind: type) -> bool:
    """Whether an annotation that cannot be resolved is the plain name of a class."""
    return parameter.text.rpartition(".")[2] == kind.__name__
