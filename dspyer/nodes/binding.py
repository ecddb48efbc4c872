"""Arguments of a function: a plan is made when the graph is built, and arguments from it at each call.

`Binding` is the plan and makes the arguments. `plan_binding` decides by the parameter's name, its annotation and the
node's options; the first rule that fits decides (`_Planner.place`).
"""

from __future__ import annotations

import datetime
import enum
import json
import pathlib
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass, is_dataclass
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import dspy
from pydantic import BaseModel

from dspyer.errors import InputError, StateError, UnsetFieldError, list_names, suggestion
from dspyer.failure import Failure
from dspyer.lm.not_public import COMPILED, serialize_for_json
from dspyer.lm.parameters import VALUES_SETTING, WARNING_SETTING, can_convert, predictors_in, user_instructions
from dspyer.messages import turns_in
from dspyer.nodes.callables import FunctionSignature, Parameter, class_of, members, wants_copy
from dspyer.nodes.context import Context
from dspyer.nodes.field_access import (
    FieldNames,
    check_names,
    fields_of_then,
    form_of,
    form_problems,
    unknown_field_text,
)
from dspyer.nodes.node import NOTHING, Call, Flaws, Node
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.steps import Step, Within
from dspyer.scheduler.schedule import Branch, RunState, run_value, run_value_problem
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.templates import NO_TEMPLATES, RUN, ComputedInput, Fill, Templates, fill_text, is_template, names_in
from dspyer.values.freezing import Opaque, find_opaque, registered_kind
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from dspyer.views import View, ViewForm

if TYPE_CHECKING:
    from dspyer.nodes.context import Context


# --- templates and run values at a node: which names they may have, and the values that are filled in at a call

_NOT_READ: Any = object()


class Filler:
    """The values for the templates of one call, each read when it is asked for; `allowed` None permits every field."""

    def __init__(self, call: Call, allowed: Collection[str] | None) -> None:
        self._call = call
        self._allowed = allowed
        self._known: dict[str, Any] = {}

    def plain(self, name: str) -> Any:
        """The value as a plain copy; `_NOT_READ` if there is none."""
        found = self._known.get(name, self)
        if found is self:
            found = self._known[name] = self._read(name)
        return found

    def text(self, name: str) -> str | None:
        """The value as a prompt shows it; None if there is none."""
        found = self.plain(name)
        return None if found is _NOT_READ else shown_in_prompt(found)

    def _read(self, name: str) -> Any:
        if name.startswith(RUN):
            run = _run_of(self._call.context)
            known = run is not None and run_value_problem(name, run[0].topology.nodes) is None
            found = value_of_run(name, self._call.context) if known else None
            return _NOT_READ if found is None else found
        if self._allowed is not None and name not in self._allowed:
            return _NOT_READ
        overlay, state = self._call.overlay, self._call.state
        if overlay is not None and name in overlay:
            return thaw(overlay.raw(name))
        if name not in state:
            return _NOT_READ
        value = state.raw(name)
        return _NOT_READ if value is None else thaw(value)  # as of a field that no node has written yet


def shown_in_prompt(value: Any) -> str:
    """A value as DSPy shows an input; a failure as one line."""
    if isinstance(value, Failure):
        return str(value)
    plain = serialize_for_json(value)
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, (dict, list)) else str(plain)


def value_of_run(name: str, ctx: Context) -> int | str | None:
    """A run value; None for a node that is called without a run."""
    found = _run_of(ctx)
    if found is None:
        return None
    run, branch = found
    return run_value(name, run.topology, branch)


def _run_of(ctx: Context) -> tuple[RunState, Branch] | None:
    attempt = ctx.delegate
    run: RunState | None = getattr(attempt.host, "run", None)  # none without a run
    if run is None or attempt.position is None or attempt.position.head < 0:
        return None
    return run, attempt.position


def computed_value(source: ComputedInput, form: ViewForm, call: Call) -> Any:
    """The value of an input that is a template or a run value."""
    if isinstance(source, Fill):
        return fill_text(source.text, Filler(call, None).text)[0]
    found = value_of_run(source.name, call.context)
    return ("" if found is None else str(found)) if form == "text" else found


def warning_of(call: Call) -> str:
    """The warning near the step limit of the run, "" for none: it is part of the prompt and of the conversation."""
    attempt = call.context.delegate
    return "" if attempt.position is None else attempt.host.views.warning(attempt.position)


def filled(step: Step, templates: Templates, warning: str = "") -> Step:
    """A step in which the predictors of a node fill in their instructions, and append a warning.

    Args:
        step: the step that calls them.
        templates: what `plan_templates` found.
        warning: a text that is shown to the model after its instructions; "" for none.

    Returns:
        The step.

    Example:
        >>> from dspyer.extend import FunctionStep, Templates
        >>> filled(FunctionStep(len, {}), Templates())
        FunctionStep(fn=<built-in function len>, arguments={}, asynchronous=False)
    """
    if not templates.in_instructions and not warning:
        return step
    return Within(step, partial(_filling, templates, warning))


def _filling(templates: Templates, warning: str, call: Call) -> AbstractContextManager[Any]:
    settings: dict[str, Any] = {WARNING_SETTING: warning}
    if templates.in_instructions:
        settings[VALUES_SETTING] = Filler(call, templates.allowed)
    context: AbstractContextManager[Any] = dspy.context(**settings)
    return context


def plan_templates(
    modules: Collection[object], options: NodeOptions, names_read: FieldNames | None, found: Flaws
) -> Templates:
    """The templates of a node and of the modules that it calls.

    Args:
        modules: the modules.
        options: those of the node.
        names_read: the fields that it reads otherwise, by its own names; None for all.
        found: where to add what is wrong.

    Returns:
        The templates.

    Example:
        >>> from dspyer.extend import Flaws, NodeOptions
        >>> judge = dspy.Predict(dspy.Signature("text -> label",
        ...     "Name the label, in {language}."))
        >>> options = NodeOptions("judge", Schema.of(None))
        >>> plan_templates([judge], options, {"text": "text"},
        ...     Flaws(options.who)).names
        ('language',)
    """
    if not (modules or options.computed or options.views):  # as of most nodes
        return NO_TEMPLATES
    reads = None if names_read is None else names_read.values()
    names: dict[str, None] = {}
    written: list[tuple[tuple[str, ...], str]] = []  # what texts of the user name, and where
    inside = False
    brought: set[str] = set()  # by a `Send`, or a problem
    for own, computed in options.computed.items():
        names |= dict.fromkeys(computed.names)
        written.append((computed.names, f"in reads[{own!r}]"))
    of_views: dict[str, bool] = {}
    for view in options.views.values():
        for name, has_default in fields_of_then(view, options.schema).items():
            of_views[name] = has_default and of_views.get(name, True)
    for module in modules:
        if not isinstance(module, dspy.Module):
            continue
        texts = [text for text in user_instructions(module) if is_template(text)]
        named = tuple(dict.fromkeys(name for text in texts for name in names_in(text)))
        known = [name for name in named if is_known(name, options)]
        inside = inside or bool(texts)
        names |= dict.fromkeys(known)
        brought |= {name for name in named if name not in known}
        # Instructions that an optimizer wrote before are text: braces in them need not be fields.
        if not getattr(module, COMPILED, False):
            written.append((named, "in its instructions"))
        found.problems += _cannot(module, known, found.who) if known else ()
    for named, where in written:
        found.unknown += unknown_names(named, where, options, found.who)
    fields = frozenset(name for name in names if not name.startswith(RUN))
    may = None if reads is None else frozenset(reads) | fields | options.overlay | brought
    typed = [name for named, _ in written for name in named if name in fields.difference(reads or (), options.overlay)]
    typed += [view.field for view in options.views.values()]
    return Templates(tuple(names), may, inside, tuple(of_views.items()), tuple(typed))


def is_known(name: str, options: NodeOptions) -> bool:
    """Return whether a name in a text of a node is a field, a run value, or what a map or a condenser gives it."""
    return name.startswith(RUN) or name in options.schema or name in options.overlay


def unknown_names(names: Iterable[str], where: str, options: NodeOptions, who: str) -> list[str]:
    """Problems of names in a text of a node that are none of these."""
    return [
        f"{who}: {{{name}}} {where} {unknown_field_text(name, options.schema)} Double the braces to show them as they "
        "are."
        for name in names
        if not is_known(name, options)
    ]


def _cannot(module: dspy.Module, names: list[str], who: str) -> list[str]:
    """Predictors with templates whose class cannot fill them in."""
    kinds = [type(predictor).__name__ for _, predictor in predictors_in(module) if not can_convert(predictor)]
    return [
        f"{who}: its instructions name {list_names(names)}, and nothing is filled into those of a {kind}, which has a "
        "`forward` of its own: use dspy.Predict, or give the text as an input, reads={'name': fill('...')}"
        for kind in dict.fromkeys(kinds)
    ]


class FieldParameter(NamedTuple):
    """A parameter that gets a field, a value of the overlay, or a computed input.

    Attributes:
        name: the parameter.
        field: the field of the state.
        copy: whether it gets a plain copy; else a frozen view.
        default: whether it has a default.
        readable: whether the field may come from the state; else from an overlay alone.
        view: the view through which it comes; None for the whole field.
        form: the form in which it gets the view.
        computed: the template or run value that it is; None for a field.
    """

    name: str
    field: str
    copy: bool
    default: bool
    readable: bool = True
    view: View | None = None
    form: ViewForm = "values"
    computed: ComputedInput | None = None


class ResourceParameter(NamedTuple):
    """A parameter that gets a resource of the run."""

    name: str
    kind: type
    default: bool


@dataclass(frozen=True, slots=True)
class Binding:
    """The plan by which the arguments of a function are made.

    Attributes:
        reader: who reads, for errors.
        fields: parameters that get a field.
        states: parameters that get a snapshot of the state.
        views: parameters that get the state as the schema's model.
        contexts: parameters that get the `Context`.
        resources: parameters that get a resource.
        modules: parameters that get a module of the program.
        takes_all: whether `**kwargs` gets all readable fields.
        rest: whether what else an overlay brings is given by its name, as plain copies (True) or frozen (False); None
            if it is not given.
        reads: the fields that it may read, by its own names; None for all.
        schema: the fields of the state.
        turn: by which inputs and outputs a history shows turns, and which of them each turn must have; all for none.
    """

    reader: str
    fields: tuple[FieldParameter, ...] = ()
    states: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    resources: tuple[ResourceParameter, ...] = ()
    modules: tuple[str, ...] = ()
    takes_all: bool = False
    rest: bool | None = None
    reads: FieldNames | None = None
    schema: Schema | None = None
    turn: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def whole_state(self) -> bool:
        """Return whether it reads the state as a whole."""
        return bool(self.states or self.views or self.takes_all)

    def facts(self, templates: Templates = NO_TEMPLATES) -> dict[str, Any]:
        """The facts that a `BoundNode` declares whose arguments these are, and which has these templates."""
        reads, optional = self.reading()
        takes: frozenset[str] | None = None
        # What takes the state as a whole sees any name that is sent.
        if not (self.states or self.takes_all) and self.rest is None:
            every = () if self.schema is None else self.schema.fields
            seen = (self.reads.values() if self.reads is not None else every) if self.views else ()
            takes = templates.takes.union(seen, self._named(), [resource.name for resource in self.resources])
        return {
            "takes": takes,
            **templates.facts(reads, optional),
            "resources": {resource.name: resource.kind for resource in self.resources if not resource.default},
            "binding": self,
        }

    def reading(self) -> tuple[FieldNames | None, frozenset[str]]:
        """The fields that it reads, by its own names (None for the whole state), and those that may be unset."""
        if self.whole_state and self.reads is None:
            return None, frozenset()
        # A function with `ctx` may read by `ctx.view` all that its `reads` name, also what is none of its parameters.
        names = dict(self.reads or {}) if self.whole_state or self.contexts else {}
        asked = set() if self.whole_state else set(names.values())
        own = [field for field in self.fields if field.readable]
        names.update({field.name: field.field for field in own})
        needed = {field.field for field in own if not field.default and field.view is None}
        return names, frozenset({field.field for field in own if field.default or field.view} | asked) - needed

    def _named(self) -> set[str]:
        """The names in an overlay that hide a field."""
        return {field.field for field in self.fields if field.computed is None}

    def bind(self, call: Call) -> dict[str, Any]:
        """The arguments of one call."""
        state, overlay = call.state, call.overlay
        arguments: dict[str, Any] = {}
        for name, field, copy, default, readable, view, form, computed in self.fields:
            value = _NOT_READ if overlay is None else read_field(overlay, field, copy)
            if view is not None:
                value = call.read_view(view, form, name)
                if form == "history" and isinstance(value, list):
                    value = dspy.History(messages=turns_in(value, *self.turn))
            elif value is _NOT_READ and readable:
                value = read_field(state, field, copy) if copy else state.get(field, _NOT_READ)
            elif value is _NOT_READ and computed is not None:
                value = computed_value(computed, form, call)
            # An argument is searched for a value of an unknown class only while the process has one.
            if value is not _NOT_READ:
                arguments[name] = value if not Opaque.alive else usable(value, field, self.reader)
            elif not default:
                raise unset(field, self.reader, call.state)
        for name in self.contexts:
            arguments[name] = call.context
        if self.rest is not None and overlay is not None:
            known = self._named()
            arguments |= {key: read_field(overlay, key, self.rest) for key in overlay if key not in known}
        # Most functions take fields alone: one check in place of five loops.
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
            if self.contexts:
                # Threads of the function may call programs, and do not have its context variables: the trace and the
                # settings of DSPy.
                call.context.delegate.home = copy_context()
        for name in self.states:
            arguments[name] = snapshot(call, self.reads)
        for name in self.views:
            assert self.schema is not None
            readable = None if self.reads is None else frozenset(self.reads.values())
            arguments[name] = self.schema.view(with_overlay(call), readable)
        if self.takes_all:
            arguments |= {name: value for name, value in snapshot(call, self.reads).items() if name not in arguments}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundNode(Node):
    """A node whose arguments are made by a plan."""

    binding: Binding

    @property
    def sources(self) -> FieldNames:
        """The fields that it is given as they are, by its own names: without views and templates."""
        return {one.name: one.field for one in self.binding.fields if one.view is None and one.computed is None}

    def whole_fields(self, state: ImmutableState) -> list[tuple[str, str]]:
        """The fields that a call reads whole, without a view, each as the node's own name and the field."""
        own = self.binding
        found = [(one.name, one.field) for one in own.fields if one.readable and not one.view and not one.computed]
        found += [(name, name) for name in state] if own.whole_state and own.reads is None else []
        return [(name, field) for name, field in found if field in state]

    @property
    def input_names(self) -> tuple[str, ...]:
        """The node's own names of what `read_inputs` gives."""
        return tuple([item.name for item in self.binding.fields])

    def read_inputs(self, call: Call) -> dict[str, Any]:
        """Values that a call reads, by its own names: fields, views and templates, without resources and modules."""
        # Neither resources nor modules: what was read is asked for after the call too, when they are gone.
        own = self.binding
        return Binding(self.who, own.fields, rest=own.rest, schema=own.schema, turn=own.turn).bind(call)


def read_field(source: FrozenDict[str, Any], field: str, copy: bool) -> Any:
    """A field as a plain copy or as a frozen view; `_NOT_READ` if it is not set."""
    return thaw(source.raw(field, _NOT_READ)) if copy else source.get(field, _NOT_READ)


def usable(value: Any, field: str, reader: str) -> Any:
    """The value, unless it holds an object whose class this process does not know: that cannot be read."""
    found = find_opaque(value)
    if found is not None:
        raise StateError(f"{reader} reads {field!r}: {found.explanation}")
    return value


def unset(field: str, reader: str, state: ImmutableState) -> UnsetFieldError:
    """The error for a field that is read before it was written."""
    return UnsetFieldError(
        f"{reader} reads {field!r}, which nothing has written yet: give it as an input, write it before, "
        f"or give the parameter a default.{suggestion(field, state)}"
    )


def with_overlay(call: Call) -> ImmutableState:
    """The state with the overlay's values over its own."""
    state = call.state
    for key, value in () if call.overlay is None else call.overlay.raw_items():
        state = state.set(key, value)
    return state


def snapshot(call: Call, reads: FieldNames | None) -> ImmutableState:
    """The state for a parameter `state`: what may be read, by the node's own names."""
    state = with_overlay(call)
    if reads is None:
        return state
    # What an overlay brings may be read in any case, by the name that it has there.
    names = {**reads, **{key: key for key in call.overlay or () if key not in reads.values()}}
    return ImmutableState({name: state.raw(field) for name, field in names.items() if field in state})


# --- the plan, made once when the graph is built: which rule fits each parameter


def plan_binding(signature: FunctionSignature, options: NodeOptions, found: Flaws) -> Binding:
    """Decide what each parameter of a function gets: a field, the state, `ctx` or a resource.

    Args:
        signature: that of the function.
        options: those of the node.
        found: where to add what is wrong.

    Returns:
        The plan.

    Example:
        >>> from dspyer.extend import Flaws, NodeOptions, read_signature
        >>> signature = read_signature(lambda question: None, "node 'search'")
        >>> options = NodeOptions("search", Schema.of(None))
        >>> plan_binding(signature, options, Flaws(options.who)).reading()
        ({'question': 'question'}, frozenset())
    """
    planner = _Planner(signature, options, found)
    for parameter in signature.parameters:
        planner.place(parameter)
    return planner.binding()


class _Planner:
    def __init__(self, signature: FunctionSignature, options: NodeOptions, found: Flaws) -> None:
        self.signature, self.options, self.who = signature, options, found.who
        self.schema, self.reads = options.schema, options.reads
        self.problems, self.unknown = found.problems, found.unknown
        self.problems += signature.problems
        self.planned: dict[str, list[Any]] = defaultdict(list)  # by what the parameters get, as in `Binding`

    def place(self, parameter: Parameter) -> None:
        """Add one parameter to the plan; the first rule that fits decides."""
        name = parameter.name
        is_field = not self.schema.accepts_any_key and name in self.schema.fields
        kind = class_of(parameter.annotation)
        # What the user has said comes before what a name or an annotation may mean.
        if name in self.options.modules:
            self.planned["modules"].append(name)
        elif name in self.options.overlay or (self.reads is not None and name in self.reads):
            self._add_field(parameter)
        elif kind is Context or _wrote(parameter, Context) or (name == "ctx" and not is_field):
            self.planned["contexts"].append(name)
        # An annotation counts before a field of the same name: the parameter would get a value of another type.
        elif kind is ImmutableState or _wrote(parameter, ImmutableState):
            self.planned["states"].append(name)
        elif is_field:
            self._add_field(parameter, readable=self.reads is None)
        elif self._is_view(parameter):
            self.planned["views"].append(name)
        elif name == "state":
            self.planned["states"].append(name)
        # With a schema, objects of a model or dataclass may be resources, without one values.
        elif (
            kind is not None
            and not parameter.text
            and not (self.schema.accepts_any_key if is_record(kind) else is_value_class(kind))
        ):
            self.planned["resources"].append(ResourceParameter(name, kind, parameter.default))
        else:
            self._add_field(parameter, readable=self.schema.accepts_any_key and self.reads is None)

    def _add_field(self, parameter: Parameter, readable: bool = True) -> None:
        name = parameter.name
        field = name if self.reads is None else self.reads.get(name, name)
        computed, view = self.options.computed.get(name), self.options.views.get(name)
        sent = field in self.options.overlay
        if not readable and not sent and computed is None:
            self.unknown.append(self._unknown_text(parameter))
        form: ViewForm = "values"  # the annotation of a whole field says in no other form how it comes
        if view is not None or computed is not None:
            form = form_of(parameter.annotation)
        if view is not None:
            self.problems += form_problems(view, parameter.annotation, name, self.schema, self.who, parameter.text)
        readable, copy = readable and not sent and computed is None, wants_copy(parameter.annotation)
        given = FieldParameter(name, field, copy, parameter.default, readable, view, form, computed)
        self.planned["fields"].append(given)

    def _is_view(self, parameter: Parameter) -> bool:
        model = self.schema.model
        return model is not None and (model in members(parameter.annotation) or _wrote(parameter, model))

    def _unknown_text(self, parameter: Parameter) -> str:
        name = parameter.name
        if name in self.schema:
            allowed = list_names(self.reads or ())
            return f"{self.who}: its parameter {name!r} is not among its reads ({allowed}): add it there"
        text = f"{self.who}: its parameter {name!r} {unknown_field_text(name, self.schema)}"
        if parameter.text:
            text += (
                f" Its annotation {parameter.text!r} cannot be resolved from here: if it is the schema or the class of "
                "a resource, define that at module level."
            )
        elif len(self.signature.parameters) == 1:
            text += " For the state as a whole, name it `state`."
        if parameter.default:
            text += " If its default is meant to stay, bind it with functools.partial."
        if name == "self":
            text += " Give a method of an object: `obj.method`, not `Class.method`."
        return text + (
            " A parameter is a field, `state`, `ctx`, a module of modules={...}, or annotated with the class of a "
            "resource."
        )

    def binding(self) -> Binding:
        """The plan, after `reads` and `modules` were compared with the parameters."""
        taken = [parameter.name for parameter in self.signature.parameters]
        reads = self.reads
        if reads is not None:
            # What takes the state as a whole, or reads with ctx.view, may read any of them.
            any_name = self.signature.takes_all or self.planned.keys() & {"states", "views", "contexts"}
            own = None if any_name else [name for name in taken if name not in self.options.modules]
            overlay, computed = self.options.not_fields, self.options.computed
            self.problems += check_names(reads, "reads", self.who, own=own, schema=self.schema, overlay=overlay)
            self.problems += [
                f"{self.who}: reads gives {name!r} a value of its own, {one!r}: take it as the parameter {name!r}"
                for name, one in computed.items()
                if name not in taken and own is None
            ]
            renamed = [name for name, field in reads.items() if name != field]
            if "views" in self.planned and renamed:
                self.problems.append(
                    f"{self.who}: a parameter annotated with the schema reads fields by their own names, but reads "
                    f"renames {list_names(renamed)}: take `state` or the fields themselves as parameters"
                )
            reads = {name: field for name, field in reads.items() if name not in computed}
        for name in self.options.modules:
            if name not in taken and not self.signature.takes_all:
                self.problems.append(
                    f"{self.who}: modules binds {name!r}, but the function has no such parameter: add it."
                    f"{suggestion(name, taken)}"
                )
            elif name not in taken:
                self.planned["modules"].append(name)
        planned: dict[str, Any] = {gets: tuple(parameters) for gets, parameters in self.planned.items()}
        return Binding(self.who, **planned, takes_all=self.signature.takes_all, reads=reads, schema=self.schema)


def _wrote(parameter: Parameter, kind: type) -> bool:
    """Return whether an annotation that cannot be resolved is the plain name of a class."""
    return parameter.text.rpartition(".")[2] == kind.__name__


# --- resources of a run: clients and other objects that are no values of a state, given to parameters by their type

_SCALARS = (
    str, int, float, complex, bytes, bytearray, list, tuple, dict, set, frozenset, type(None), type, enum.Enum,
    datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, pathlib.PurePath, uuid.UUID, Decimal,
    FrozenDict, FrozenList, dspy.Example,
)  # fmt: skip
_VALUE_MODULES = {"builtins", "collections.abc", "typing", "numpy", "types"}


def is_record(kind: type) -> bool:
    """Tell if a class is a model or a dataclass: with a schema its objects may be resources, without one values."""
    return issubclass(kind, BaseModel) or is_dataclass(kind)


def is_value_class(kind: type) -> bool:
    """Return whether objects of a class are certainly values of a state, never resources."""
    if issubclass(kind, _SCALARS) or kind.__module__ in _VALUE_MODULES:
        return True
    try:
        registered_kind(kind)
    except LookupError:
        return False
    return True


def resources_of(resources: Mapping[type, object] | Iterable[object] | None) -> Mapping[type, object]:
    """The resources of a run by type, from a map or from the objects alone.

    Example:
        >>> resources_of([print])
        mappingproxy({<class 'builtin_function_or_method'>: <built-in function
        print>})
    """
    if resources is None:
        return NOTHING
    if isinstance(resources, Mapping):
        wrong = [repr(key) for key in resources if not isinstance(key, type)]
        if wrong:
            raise InputError(f"resources are given by type, as {{Client: client}}: {', '.join(wrong)} is no type")
        return MappingProxyType(dict(resources))
    if not hasattr(resources, "__iter__") or isinstance(resources, str):
        name = type(resources).__name__
        raise InputError(f"resources are given as a list or by type, not as one {name}: write resources=[...]")
    found: dict[type, object] = {}
    for resource in resources:
        if isinstance(resource, type):
            raise InputError(f"the resource {resource.__name__} is a class: give an object of it")
        if type(resource) in found:
            raise InputError(f"two resources are of type {type(resource).__name__}: give them as {{Type: object}}")
        found[type(resource)] = resource
    return MappingProxyType(found)


def find_resource(kind: type, resources: Mapping[type, object]) -> tuple[bool, Any]:
    """Find a resource of a type, and say if there is one: of the type itself, else the first of a subclass."""
    if kind in resources:
        return True, resources[kind]
    for given, resource in resources.items():
        # `__mro__` and not `issubclass`, which a class may answer with code of its own; that is asked where the type
        # has such code, as protocols have.
        if kind in given.__mro__ or (type(kind) is not type and _extends(given, kind)):
            return True, resource
    return False, None


def _extends(given: type, kind: type) -> bool:
    try:
        return issubclass(given, kind)
    except TypeError:  # a protocol that is not runtime-checkable
        return False


def missing_resource(reader: str, parameter: str, kind: type) -> InputError:
    """The error for a resource that the run was not given."""
    name = kind.__name__
    return InputError(
        f"{reader} needs a resource of type {name} for its parameter {parameter!r}: give the run "
        f"resources={{{name}: ...}}, or take program.with_resources({{{name}: ...}})"
    )


def check_resources(nodes: Collection[Node], resources: Mapping[type, object]) -> None:
    """Check at the start of a run that every resource is there; the error names all that are missing.

    A model or dataclass that a node asks for may also come with a `Send`, and is looked up when the node is called.
    """
    sent = {target for node in nodes if node.sends for target in node.goto}
    missing = [
        str(missing_resource(node.who, parameter, kind))
        for node in nodes
        for parameter, kind in node.resources.items()
        if not find_resource(kind, resources)[0] and not (node.name in sent and is_record(kind))
    ]
    if missing:
        raise InputError("; ".join(missing))


def resource_for(call: Call, reader: str, parameter: str, kind: type, default: bool) -> tuple[bool, Any]:
    """Find the resource of a parameter, and say if it has one; a value of its name in the overlay takes precedence."""
    if call.overlay is not None and parameter in call.overlay:
        return True, call.overlay[parameter]
    found, resource = find_resource(kind, call.resources)
    if not found and not default:
        raise missing_resource(reader, parameter, kind)
    return found, resource
