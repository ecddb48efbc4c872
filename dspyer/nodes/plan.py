"""The plan of a binding, made once when the graph is built: which rule fits each parameter of a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from dspyer.errors import suggestion
from dspyer.nodes.base import NOTHING, Context
from dspyer.nodes.binding import Binding, FieldParameter, ResourceParameter
from dspyer.nodes.callables import Described, Parameter, class_of, members, wants_copy
from dspyer.nodes.names import FieldNames, check_names, listed, no_field
from dspyer.nodes.resources import is_record, is_value_class
from dspyer.nodes.viewing import form_of, form_problems
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.templates import Made
from dspyer.views import View


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
    reads: FieldNames | None = None,
    modules: tuple[str, ...] = (),
    overlay: frozenset[str] = frozenset(),
    views: Mapping[str, View] = NOTHING,
    made: Mapping[str, Made] = NOTHING,
) -> Plan:
    """Decide what each parameter of a function gets.

    Args:
        described: the function.
        who: the node or router, for problems and errors.
        schema: the fields of the state.
        reads: what it may read, its own names on the left; None for everything.
        modules: names of the modules that are bound to it.
        overlay: names that an overlay is known to bring.
        views: the views through which it reads, its own names on the left.
        made: the templates and run values that it reads, its own names on the left.

    Returns:
        The plan and what is wrong with it.
    """
    planner = _Planner(who, schema, reads, modules, overlay, described, views, made)
    for parameter in described.parameters:
        planner.place(parameter)
    planner.check()
    return Plan(planner.binding, planner.problems, planner.unknown)


class _Planner:
    def __init__(
        self,
        who: str,
        schema: Schema,
        reads: FieldNames | None,
        modules: tuple[str, ...],
        overlay: frozenset[str],
        described: Described,
        views: Mapping[str, View],
        made: Mapping[str, Made],
    ) -> None:
        self.views, self.made = views, made
        self.who, self.schema, self.reads, self.modules, self.overlay = who, schema, reads, modules, overlay
        self.described = described
        self.problems: list[str] = list(described.problems)
        self.unknown: list[str] = []
        fields = None if reads is None else {name: field for name, field in reads.items() if name not in made}
        self.binding = Binding(who, reads=fields, schema=schema, takes_all=described.takes_all)

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
        made = self.made.get(name)
        readable = readable and field not in self.overlay and made is None
        copy, view = wants_copy(parameter.annotation), self.views.get(name)
        form = form_of(parameter.annotation)
        if view is not None:
            self.problems += form_problems(view, parameter.annotation, name, self.schema, self.who, parameter.text)
        entry = FieldParameter(name, field, copy, parameter.default, readable, view, form, made)
        self._add(fields=(*self.binding.fields, entry))
        if not readable and field not in self.overlay and made is None:
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
        if self.schema.open or name in self.schema.fields:
            allowed = listed(self.reads or ())
            return f"{self.who}: its parameter {name!r} is not among its reads ({allowed}): add it there"
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
            asks = bool(self.binding.contexts)  # for any of its reads, with ctx.view
            own = None if self.binding.whole_state or asks else [name for name in taken if name not in self.modules]
            self.problems += check_names(
                self.reads,
                "reads",
                self.who,
                own=own,
                schema=self.schema,
                overlay={*self.overlay, *map(repr, self.made.values())},
            )
            self.problems += [
                f"{self.who}: reads gives {name!r} a value of its own, {made!r}: take it as the parameter {name!r}"
                for name, made in self.made.items()
                if name not in taken and own is None
            ]
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
