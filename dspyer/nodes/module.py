"""DSPy modules as nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import dspy

from dspyer.errors import NodeOutputError, brief, suggestion
from dspyer.nodes.base import Built, Call, Node, Reply
from dspyer.nodes.binding import unset, usable
from dspyer.nodes.color import acall_module, call_module
from dspyer.nodes.module_io import BY_PRODUCTS, ModuleIO, module_io
from dspyer.nodes.names import FieldNames, check_names, listed, no_field
from dspyer.nodes.sight import read_view, sent_to
from dspyer.nodes.spec import NodeOptions
from dspyer.nodes.templating import filling, made_for, plan_templates
from dspyer.nodes.turns import NO_TURNS, Turns, plan_turns, with_warning
from dspyer.nodes.viewing import form_of, form_problems
from dspyer.schema.type_fit import misfit, shown_type, update_type
from dspyer.templates import Made
from dspyer.values.frozen import thaw
from dspyer.values.types import Opaque
from dspyer.views import View, ViewForm


class Input(NamedTuple):
    """One input of a module.

    Attributes:
        name: the module's own name for it.
        field: the field that it comes from.
        default: whether it may be left out.
        readable: whether it may come from the state; else from an overlay alone.
        view: the view through which it comes; None for the whole field.
        form: how the view is handed over.
        made: the template or run value that it is; None for a field.
    """

    name: str
    field: str
    default: bool = False
    readable: bool = True
    view: View | None = None
    form: ViewForm = "values"
    made: Made | None = None


def gather_inputs(inputs: tuple[Input, ...], call: Call, reader: str) -> dict[str, Any]:
    """The inputs of a module as plain values of its own, in the order of its signature.

    Raises:
        UnsetFieldError: if a field is read that nothing has written.
    """
    state, overlay = call.state, call.overlay
    found: dict[str, Any] = {}
    for name, field, default, readable, view, form, made in inputs:
        if view is not None:
            found[name] = read_view(call.context.attempt, view, form, name, sent_to(call, field))
        elif overlay is not None and field in overlay:
            found[name] = thaw(overlay.raw(field))
        elif readable and field in state:
            found[name] = thaw(state.raw(field))
        elif made is not None:
            found[name] = made_for(made, form, call)
        elif not default:
            raise unset(field, reader)
        if Opaque.made and name in found:
            usable(found[name], field, reader)
    return found


def taken(inputs: tuple[Input, ...]) -> frozenset[str]:
    """The names that an overlay may bring for some inputs."""
    return frozenset([item.field for item in inputs if item.made is None])


def with_rest(given: dict[str, Any], inputs: tuple[Input, ...], call: Call) -> dict[str, Any]:
    """The inputs of a module that takes any, with what an overlay brings besides."""
    overlay, known = call.overlay, taken(inputs)
    return given if overlay is None else given | {key: thaw(overlay.raw(key)) for key in overlay if key not in known}


def values_of_prediction(result: object, who: str, known: bool) -> Mapping[str, object]:
    """What a module gave, by its own names.

    Raises:
        NodeOutputError: if it is no prediction and no dict.
    """
    if isinstance(result, dspy.Prediction):
        return dict(result.items())
    if isinstance(result, Mapping):
        return result
    if result is None and not known:
        return {}
    raise NodeOutputError(
        f"the module of {who} gave {brief(result)}, of type {type(result).__name__}: a module gives a dspy.Prediction "
        "or a dict"
    )


def selected(values: Mapping[str, object], writes: FieldNames | None, who: str) -> dict[str, object]:
    """Of what a module gave, what the node writes, by field.

    Raises:
        NodeOutputError: if something is missing.
    """
    if writes is None:
        return {name: value for name, value in values.items() if name not in BY_PRODUCTS}
    for name in writes:
        if name not in values:
            raise NodeOutputError(
                f"the module of {who} gave no {name!r}, which is in its writes; it gave {listed(values)}."
                f"{suggestion(name, values)}"
            )
    return {field: values[name] for name, field in writes.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleNode(Node):
    """A node that is a DSPy module. The module itself is an attribute of the program.

    Attributes:
        inputs: what the module gets.
        known: whether its outputs were known when the graph was built.
        gives: what of its outputs the node writes, where that is not all of `writes`.
        takes_all: whether its `forward` has `**kwargs`, which get what a `Send` brings besides.
        turns: how it takes part in conversations.
    """

    inputs: tuple[Input, ...] = ()
    known: bool = True
    gives: FieldNames | None = None
    takes_all: bool = False
    turns: Turns = NO_TURNS

    @property
    def takes(self) -> frozenset[str] | None:
        """The names that a `Send` to it may bring; None for any."""
        return None if self.takes_all else self.templates.takes | taken(self.inputs)

    def call(self, call: Call) -> Reply:
        """Call the program's module with its inputs."""
        inputs, warning = self._inputs(call), self._warning(call)
        with filling(self.templates, call, warning):
            return self.reply(call_module(getattr(call.program, self.name), inputs), inputs, warning)

    async def acall(self, call: Call) -> Reply:
        """The same from async code."""
        inputs, warning = self._inputs(call), self._warning(call)
        with filling(self.templates, call, warning):
            return self.reply(await acall_module(getattr(call.program, self.name), inputs), inputs, warning)

    def _warning(self, call: Call) -> str:
        """The warning near the limit of the run, "" for none; it is part of the conversation, and of the prompt."""
        attempt = call.context.attempt
        if not self.turns.fields or attempt.position is None:
            return ""
        return attempt.host.sight.warning(attempt.position)

    def _inputs(self, call: Call) -> dict[str, Any]:
        inputs = gather_inputs(self.inputs, call, self.who)
        if self.takes_all:
            inputs = with_rest(inputs, self.inputs, call)
        return inputs if not self.turns.histories else self.turns.given(inputs)

    def reply(self, result: object, inputs: Mapping[str, Any], warning: str = "") -> Reply:
        """What the module gave, as updates of the state."""
        who = self.who
        values = values_of_prediction(result, who, self.known)
        updates = selected(values, self.gives, who) if values or self.known else {}
        if self.turns.fields:
            updates |= self.turns.updates(self.name, inputs, values)
        if warning:
            updates = with_warning(self.turns, updates, warning)
        return Reply(updates, None, True)


class Inputs(NamedTuple):
    """The inputs of a module as the graph gives them, with what is wrong."""

    inputs: tuple[Input, ...]
    problems: list[str]
    unknown: list[str]

    def facts(self) -> tuple[dict[str, str], frozenset[str]]:
        """What is read, by the module's own names, and the fields among them that may be unset."""
        reads = {item.name: item.field for item in self.inputs if item.readable}
        needed = {item.field for item in self.inputs if item.readable and not item.default}
        return reads, frozenset(item.field for item in self.inputs if item.default and item.readable) - needed


def plan_inputs(found: ModuleIO, spec: NodeOptions, who: str) -> Inputs:
    """Decide where each input of a module comes from: from the field of its name, or as `reads` says."""
    any_name = "**" in found.extras
    own = None if any_name else (*found.inputs, *found.extras)
    problems: list[str] = []
    unknown: list[str] = []
    if spec.reads is not None:
        problems += check_names(spec.reads, "reads", who, own=own, schema=spec.schema, overlay=spec.known)
    elif any_name and not found.inputs:
        problems.append(f"{who}: its `forward` takes **kwargs, which does not say what it reads: give reads=[...]")
    names = list(found.inputs)
    names += [name for name in spec.reads or () if name not in names and (any_name or name in found.extras)]
    names += [name for name in found.extras if name not in names and name != "**"]
    inputs = []
    for name in names:
        default = name in found.optional or name not in found.inputs
        if spec.reads is not None and name in spec.reads:
            view, made = spec.views.get(name), spec.made.get(name)
            default = default or view is not None  # nothing to see is no error
            form = form_of(found.inputs.get(name, Any))
            if view is not None:
                problems += form_problems(view, found.inputs.get(name, Any), name, spec.schema, who)
            readable = spec.reads[name] not in spec.known
            inputs.append(Input(name, spec.reads[name], default, readable, view, form, made))
        elif name in spec.overlay:
            inputs.append(Input(name, name, default, readable=False))
        elif name in found.inputs and spec.reads is None and (spec.schema.open or name in spec.schema.fields):
            inputs.append(Input(name, name, default))
        else:
            inputs.append(Input(name, name, default, readable=False))  # a `Send` may bring it
            unknown += () if default else (_unknown_input(name, spec, who),)
    return Inputs(tuple(inputs), problems, unknown)


def _unknown_input(name: str, spec: NodeOptions, who: str) -> str:
    if spec.reads is not None:
        return f"{who}: its input {name!r} is not in reads ({listed(spec.reads)}): add {{{name!r}: 'a field'}}"
    missing = no_field(name, spec.schema)
    return f"{who}: its input {name!r} {missing} Add the field, or map it: reads={{{name!r}: 'a field'}}"


def plan_writes(found: ModuleIO, spec: NodeOptions, who: str, kind: str) -> tuple[FieldNames | None, list[str]]:
    """Decide what is written: the outputs of the signature, or as `writes` says."""
    schema = spec.output_schema
    outputs = None if found.outputs is None else (*found.outputs, *found.by_products)
    if spec.writes is not None:
        return spec.writes, check_names(spec.writes, "writes", who, own=outputs, schema=schema)
    if found.outputs is not None:
        names = {name: name for name in found.outputs}
        problems = [
            f"{who}: its output {name!r} {no_field(name, schema)} Add the field, or say what is written: "
            f"writes={{{name!r}: 'a field'}}"
            for name in names
            if not schema.open and name not in schema.fields
        ]
        return names, problems
    if schema.open:
        return None, []
    fields = [name for name in schema.fields if name not in found.inputs][:2] or ["a field"]
    line = f"add_node({spec.name!r}, ..., writes={fields!r})"
    problem = f"{who}: a module of class {kind} does not say what it gives; with a schema, say what is written: {line}"
    return None, [problem]


def _type_problems(found: ModuleIO, gives: FieldNames | None, spec: NodeOptions) -> list[str]:
    """Outputs whose declared types can never be written to their fields."""
    problems = []
    for name, field in (gives or {}).items():
        wrong = misfit(spec.output_schema, field, found.type_of(name))
        if wrong:
            problems.append(
                f"{spec.who}: its output {name!r} {wrong}: declare the type in the signature (... -> {name}: "
                f"{shown_type(update_type(spec.output_schema, field))}), or change the field"
            )
    return problems


def build_module(module: dspy.Module, spec: NodeOptions) -> Built:
    """Make a node of a module.

    Args:
        module: any DSPy module but a compiled graph.
        spec: the node's options.

    Returns:
        The node with its module, and what is wrong with it.
    """
    found = module_io(module)
    planned = plan_inputs(found, spec, spec.who)
    turns, own_writes, amiss = plan_turns(module, found, spec)
    gives, problems = plan_writes(found, spec._replace(writes=own_writes), spec.who, type(module).__name__)
    reads, optional = planned.facts()
    templates, wrong, missing = plan_templates([module], spec, reads.values(), spec.who)
    node = ModuleNode(
        name=spec.name,
        reads=templates.read(reads),
        optional=templates.unset(reads, optional),
        templates=templates,
        writes=gives if gives is None else {**gives, **{field: field for field in turns.fields}},
        inputs=planned.inputs,
        known=found.outputs is not None,
        gives=gives,
        takes_all="**" in found.extras,
        turns=turns,
    )
    problems += _type_problems(found, gives, spec)
    problems = [*(f"{spec.who}: {problem}" for problem in found.problems), *planned.problems, *problems, *wrong, *amiss]
    if spec.modules:
        problems.append(f"{spec.who}: modules={{...}} binds modules to a function; this node is a module itself")
    if spec.goto:
        problems.append(f"{spec.who}: goto=[...] is for functions that return Command; give a module edges or a router")
    return Built(node, module, tuple(problems), (*planned.unknown, *missing))
