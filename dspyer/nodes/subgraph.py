"""Compiled graphs as nodes of another graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import dspy

from dspyer.patch import DELETE, Replace
from dspyer.topology import Topology
from dspyer.values import freeze, thaw

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
        per_item: whether it runs inside a map, which wants values and not what changed.
    """

    inputs: tuple[Input, ...] = ()
    per_item: bool = False

    def call(self, call: Call) -> Reply:
        """Run the graph as a part of the run."""
        program: Program = getattr(call.program, self.name)
        inputs = self._inputs(call)
        changes = program.run_inside(inputs, call)
        return self.reply(changes_applied(program, inputs, changes) if self.per_item else changes)

    async def acall(self, call: Call) -> Reply:
        """The same from async code."""
        program: Program = getattr(call.program, self.name)
        inputs = self._inputs(call)
        changes = await program.arun_inside(inputs, call)
        return self.reply(changes_applied(program, inputs, changes) if self.per_item else changes)

    def _inputs(self, call: Call) -> dict[str, Any]:
        return gather_inputs(self.inputs, call, f"node {self.name!r}")

    def reply(self, changes: Mapping[str, object]) -> Reply:
        """What changed inside, as updates of the outer state. What the node does not write stays inside."""
        if self.writes is None:
            return Reply(dict(changes))
        return Reply({field: changes[name] for name, field in self.writes.items() if name in changes})


def changes_applied(program: Program, inputs: Mapping[str, Any], changes: Mapping[str, object]) -> dict[str, object]:
    """The values of a subgraph's fields after it has run with `inputs` and changed what `changes` says."""
    schema = program.graph.topology.schema
    state = schema.initial(inputs)
    values: dict[str, object] = {name: state.raw(name) for name in state}
    for name, change in changes.items():
        if schema.reducer(name) is not None:
            values[name] = schema.fold(name, state.raw(name, DELETE), change)
        else:
            values[name] = freeze(change.value) if isinstance(change, Replace) else change
    return {name: thaw(value) for name, value in values.items() if value is not DELETE}


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


def _given_back(graph: GraphView) -> tuple[str, ...] | None:
    """The fields that may have changed for the outside; None for unknown."""
    if graph.outputs is None:
        return graph.writes
    changed = () if graph.writes is None else graph.writes
    return tuple(dict.fromkeys((*graph.outputs, *(name for name in changed if name in graph.inputs))))
