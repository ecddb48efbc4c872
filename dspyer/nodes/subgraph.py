"""Compiled graphs as nodes of another graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import dspy

from dspyer.patch import DELETE
from dspyer.schema import Schema
from dspyer.topology import Topology

from .base import Built, Call, Node, Reply
from .module import Input, gather_inputs, plan_inputs
from .module_io import ModuleIO
from .names import Names, check_names, listed
from .spec import Spec


class GraphView(Protocol):
    """What a subgraph says about itself, as `program.graph`."""

    @property
    def topology(self) -> Topology:
        """Its frozen topology."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The fields that a run may be given."""

    @property
    def required(self) -> frozenset[str]:
        """The fields that a run must be given."""

    @property
    def outputs(self) -> tuple[str, ...] | None:
        """The fields that it returns; None for every field that is no input."""

    @property
    def writes(self) -> tuple[str, ...] | None:
        """The fields that its nodes may write; None for unknown."""


class Program(Protocol):
    """A compiled graph, as a node of another one sees it."""

    @property
    def graph(self) -> GraphView:
        """What it says about itself."""

    def run_inside(self, inputs: dict[str, Any], call: Call) -> Mapping[str, object]:
        """Run it as a part of the run that `call` belongs to.

        Returns:
            What its commits changed, by field: `Updates` of a reducer, `Replace` or `DELETE`. No input is echoed.
        """

    async def arun_inside(self, inputs: dict[str, Any], call: Call) -> Mapping[str, object]:
        """The same from async code."""


def is_program(module: object) -> bool:
    """Whether a module is a compiled graph."""
    return hasattr(type(module), "_dspyer_program")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubgraphNode(Node):
    """A node that is a compiled graph. The program itself is an attribute of the outer one.

    Attributes:
        inputs: what it gets.
        folds: own names of the fields whose raw updates the outer state folds; of the others it gets the value.
        per_item: whether it runs inside a map, which wants all values and not what changed.
    """

    inputs: tuple[Input, ...] = ()
    folds: frozenset[str] = frozenset()
    per_item: bool = False

    def call(self, call: Call) -> Reply:
        """Run the graph as a part of the run."""
        program: Program = getattr(call.program, self.name)
        inputs = self._inputs(call)
        changes = program.run_inside(inputs, call)
        return self.reply(program, inputs, changes)

    async def acall(self, call: Call) -> Reply:
        """The same from async code."""
        program: Program = getattr(call.program, self.name)
        inputs = self._inputs(call)
        changes = await program.arun_inside(inputs, call)
        return self.reply(program, inputs, changes)

    def _inputs(self, call: Call) -> dict[str, Any]:
        return gather_inputs(self.inputs, call, self.who)

    def reply(self, program: Program, inputs: dict[str, Any], changes: Mapping[str, object]) -> Reply:
        """What changed inside, as updates of the outer state. What the node does not write stays inside."""
        schema = program.graph.topology.schema
        raw = {name for name in changes if schema.reducer(name) is not None}
        if self.per_item or raw - self.folds:
            state = schema.initial(inputs)
            values = {name: state.raw(name) for name in state} if self.per_item else {}
            values |= {name: change for name, change in changes.items() if name not in raw or name in self.folds}
            values |= {name: schema.fold(name, state.raw(name, DELETE), changes[name]) for name in raw - self.folds}
            values = {name: value for name, value in values.items() if not (self.per_item and value is DELETE)}
        else:
            values = dict(changes)
        if self.writes is None:
            return Reply(values, None, True)
        return Reply({field: values[name] for name, field in self.writes.items() if name in values}, None, True)


def build_subgraph(module: dspy.Module, spec: Spec) -> Built:
    """Make a node of a compiled graph.

    Args:
        module: the program.
        spec: the node's options.

    Returns:
        The node with its program, and what is wrong with it.
    """
    graph = cast(Program, module).graph
    optional = frozenset(graph.inputs) - graph.required
    found = ModuleIO(inputs=dict.fromkeys(graph.inputs, Any), optional=optional)
    planned = plan_inputs(found, spec, spec.who)
    writes, problems = _plan_writes(graph, spec)
    reads, unset = planned.facts()
    node = SubgraphNode(
        name=spec.name,
        reads=reads,
        optional=unset,
        writes=writes,
        inputs=planned.inputs,
        folds=frozenset() if spec.overlay else _folded(writes, spec.schema),
        per_item=bool(spec.overlay),
    )
    return Built(node, module, (*planned.problems, *problems), tuple(planned.unknown))


def _plan_writes(graph: GraphView, spec: Spec) -> tuple[Names | None, list[str]]:
    """What it gives back: its outputs and the inputs that it changes, as far as the outer state has such fields."""
    schema = spec.output_schema
    own = _given_back(graph)
    if spec.writes is not None:
        return spec.writes, check_names(spec.writes, "writes", spec.who, own=own, schema=schema)
    if own is None:
        return (None, []) if schema.open else ({name: name for name in schema.fields}, [])
    writes = {name: name for name in own if schema.open or name in schema.fields}
    if own and not writes:
        problem = (
            f"{spec.who}: the graph writes {listed(own)}, and none of these is a field of the state "
            f"({listed(schema.fields)}): say where its results go, as writes={{{own[0]!r}: 'a field'}}"
        )
        return {}, [problem]
    return writes, []


def _folded(writes: Names | None, schema: Schema) -> frozenset[str]:
    """The own names of what is written to fields with a reducer."""
    return frozenset(name for name, field in (writes or {}).items() if schema.reducer(field) is not None)


def _given_back(graph: GraphView) -> tuple[str, ...] | None:
    """The fields that may have changed for the outside; None for unknown."""
    if graph.outputs is None:
        return graph.writes
    changed = graph.inputs if graph.writes is None else graph.writes
    return tuple(dict.fromkeys((*graph.outputs, *(name for name in changed if name in graph.inputs))))
