"""Compiled graphs as nodes of another graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dspyer.errors import list_names
from dspyer.nodes.binding import BoundNode, FieldParameter
from dspyer.nodes.field_names import FieldNames, check_names
from dspyer.nodes.module import ModuleIO, completions_by_field, plan_inputs
from dspyer.nodes.node import SENT, Built, Call, Look, Reply
from dspyer.nodes.options import NodeOptions
from dspyer.nodes.program_calls import InsideRun
from dspyer.nodes.steps import ProgramStep, Script
from dspyer.nodes.template_plans import plan_templates
from dspyer.patch import DELETE
from dspyer.schema.schema import Schema
from dspyer.schema.type_fit import misfit, update_type, value_type


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubgraphNode(BoundNode):
    """A node that is a compiled graph. The program itself is an attribute of the outer one.

    Attributes:
        gives: the fields of the outer state that get its changed fields, by its own names; None for all of them. This
            may be more than `writes` declares: an input that an inner node may change without declaring it.
        folds: own names of the fields whose updates the outer state folds; for the others it gets the new value.
        per_item: whether it runs inside a map, which needs all values and not the changes.
        same_types: the inputs that come from fields whose values are valid inside too, each as its name and the field.
    """

    kind: ClassVar[str] = "subgraph"
    look = Look("subgraph", "subgraph", inner=True)

    gives: FieldNames | None = None
    folds: frozenset[str] = frozenset()
    per_item: bool = False
    same_types: tuple[tuple[str, str], ...] = ()

    @property
    def may_give(self) -> frozenset[str] | None:
        """The fields that a call may change; None for any."""
        if self.writes is None or self.gives is None:
            return None
        return frozenset((*self.writes.values(), *self.gives.values()))

    def script(self, call: Call) -> Script[Reply]:
        """Run the graph as a part of the run."""
        program = getattr(call.program, self.name)
        inputs = self._inputs(call)
        inside = yield ProgramStep(program, inputs, self._valid(call)), call
        return self.reply(program, inside, inputs, _is_sent(call))

    def _inputs(self, call: Call) -> dict[str, Any]:
        if call.overlay is None or SENT not in call.overlay:
            return self.binding.bind(call)
        sent, known = call.overlay.raw(SENT), self.input_names  # nothing else; further keys are for others
        return {name: sent[name] for name in sent if name in known}

    def _valid(self, call: Call) -> dict[str, Any]:
        """The values that the graph need not validate, since they are those of a field of the same type."""
        if _is_sent(call):
            return {}
        sent = call.overlay or ()
        found = [(name, field) for name, field in self.same_types if field not in sent and field in call.state]
        return {name: call.state.raw(field) for name, field in found}

    def reply(self, program: Any, inside: InsideRun, inputs: Collection[str], sent: bool = False) -> Reply:
        """What changed in the inner graph, as updates of the outer state; other values stay inside.

        If its whole state was sent, the outer state has none of it, and gets all.
        """
        schema, changes = program.graph.topology.schema, inside.changes()
        raw = {name for name in changes if schema.reducer(name) is not None}
        whole, as_updates = self.per_item or sent, frozenset() if sent else self.folds
        if whole or raw - as_updates:
            state = inside.inputs
            values = {name: state.raw(name) for name in state} if whole else {}
            values |= {name: change for name, change in changes.items() if name not in raw or name in as_updates}
            values |= {name: schema.fold(name, state.raw(name, DELETE), changes[name]) for name in raw - as_updates}
        else:
            values = dict(changes)
        if self.per_item:
            values = {name: value for name, value in values.items() if value is not DELETE}
        if self.gives is not None:
            values = {field: values[name] for name, field in self.gives.items() if name in values}
        elif self.per_item:
            values = {name: value for name, value in values.items() if name not in inputs}
        return Reply(values, None, True, completions_by_field(inside.prediction, self.gives))


def _is_sent(call: Call) -> bool:
    """Whether a `Send` brings all that the graph gets."""
    return call.overlay is not None and SENT in call.overlay


def build_subgraph(module: Any, options: NodeOptions) -> Built:
    """A node of a compiled graph, and what is wrong with it."""
    graph = module.graph
    optional = frozenset(graph.inputs) - graph.required
    found = ModuleIO(dict.fromkeys(graph.inputs, Any), optional, tuple(sorted(graph.also)))
    planned = plan_inputs(found, options, options.who, copy=False)
    binding = planned.binding if graph.closed else replace(planned.binding, rest=False)
    writes, problems = _plan_writes(graph, options)
    reads = binding.reading()[0] or {}
    gives = writes
    if options.writes is None and writes is not None and options.map is None:
        # A view without a reducer shows a part of its field: writing that part back would lose the rest.
        partial = {name for name in options.views if options.schema.reducer(name) is None}
        changed = [name for name in _changed_inputs(graph, reads) if name not in partial]
        gives = {**_fields(changed, options.schema), **writes}
        writes = {**writes, **{name: name for name in gives if name in (graph.writes or ())}}
    templates, wrong, missing = plan_templates((), options, reads, options.who)
    node = SubgraphNode(
        name=options.name,
        **binding.facts(templates),
        writes=writes,
        gives=gives,
        folds=_folded(gives, options.schema) if options.map is None else frozenset(),
        per_item=options.map is not None,
        same_types=_same_types(binding.fields, graph.topology.schema, options.schema),
    )
    problems += _type_problems(graph.topology.schema, gives, node.folds, options)
    types = [value_type(graph.topology.schema, name) for name in gives or ()]
    return Built(node, module, (*planned.problems, *problems, *wrong), (*planned.unknown, *missing), types=types)


def _same_types(inputs: Iterable[FieldParameter], inner: Schema, outer: Schema) -> tuple[tuple[str, str], ...]:
    """The inputs that come from fields whose values are valid inside too, each as its name and the field."""
    return tuple(
        [
            (one.name, one.field)
            for one in inputs
            if one.readable and one.view is None and one.computed is None
            if one.name in inner.fields and one.field in outer.fields
            if inner.fields[one.name].holds_values_of(outer.fields[one.field])
        ]
    )


def _plan_writes(graph: Any, options: NodeOptions) -> tuple[FieldNames | None, list[str]]:
    """The fields that it declares to write: by `writes=`, or else its outputs that are fields of the outer state."""
    schema = options.output_schema
    own = graph.writes if graph.outputs is None else graph.outputs
    if options.writes is not None:
        known = None if own is None else tuple(dict.fromkeys((*own, *graph.inputs, *graph.also)))
        return options.writes, check_names(options.writes, "writes", options.who, own=known, schema=schema)
    if own is None:
        return (None if schema.accepts_any_key else _fields(schema.fields, schema)), []
    writes = _fields(own, schema)
    if own and not writes:
        problem = (
            f"{options.who}: the graph gives {list_names(own)}, and none of these is a field of the state "
            f"({list_names(schema.fields)}): say where its results go, as writes={{{own[0]!r}: 'a field'}}"
        )
        return {}, [problem]
    return writes, []


def _type_problems(inner: Schema, gives: FieldNames | None, folds: frozenset[str], options: NodeOptions) -> list[str]:
    """Fields of the graph whose types can never be written to those of the outer state."""
    problems = []
    for name, field in (gives or {}).items():
        if name not in inner.fields:
            continue
        raw = name in folds and inner.reducer(name) is not None
        wrong = misfit(options.output_schema, field, update_type(inner, name) if raw else value_type(inner, name))
        if wrong:
            problems.append(
                f"{options.who}: its output {name!r} {wrong}: give both fields one type, or say writes={{...}}"
            )
    return problems


def _fields(names: Iterable[str], schema: Schema) -> dict[str, str]:
    """The names that are fields of a state, each under its own name."""
    return {name: name for name in names if schema.accepts_any_key or name in schema.fields}


def _changed_inputs(graph: Any, reads: FieldNames) -> list[str]:
    """The inputs that the graph may change and that come from the field of their name."""
    changed = graph.inputs if graph.writes is None else graph.writes
    return [name for name in (*graph.inputs, *graph.also) if name in changed and reads.get(name) == name]


def _folded(gives: FieldNames | None, schema: Schema) -> frozenset[str]:
    """The own names of what goes to fields with a reducer."""
    return frozenset(name for name, field in (gives or {}).items() if schema.reducer(field) is not None)
