"""What GEPA may edit of a program, its components: the predictors by name. And which nodes of the graph they are in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dspy

from dspyer.events import TraceStep
from dspyer.lm.parameters import modules_in, path_in_program, walk
from dspyer.nodes.router import Router
from dspyer.runtime.program import CompiledGraph
from dspyer.runtime.run import Run
from dspyer.scheduler.topology import START


class Components:
    """The components of a program and its nodes.

    A component is in the node whose module has its predictor, at any depth: `write.draft.predict` is in the node
    `write`, whose program has a node `draft`. A router and a condenser with a module count as nodes of their own. The
    graph may also be inside of a module that does more than call it. A component outside of the graph stands for
    itself; so does every component of a module with several graphs, or none.

    Attributes:
        nodes: the names of the nodes, in the order of the graph; of a program without one, the components.
        exact: whether the program is a graph, so that its run knows of everything that ran.
    """

    def __init__(self, program: dspy.Module, components: Iterable[str]) -> None:
        self._all = tuple(components)
        graph = only_graph(program)
        self.exact = graph is program
        if graph is None:
            self._in = {name: (name,) for name in self._all}
            self._used: dict[str, tuple[str, ...]] = {}
            self._modules: tuple[str, ...] = ()
            self.nodes: tuple[str, ...] = self._all
            return
        names = {id(parameter): name for name, parameter in program.named_parameters() if name in self._all}
        modules = {name: part for name, part in vars(graph).items() if isinstance(part, dspy.Module)}
        self._in = {
            attribute: tuple(dict.fromkeys(names[id(part)] for _, part in walk(module) if id(part) in names))
            for attribute, module in modules.items()
        }
        spec = graph.graph
        self._modules = tuple(modules)
        inside = {name for names in self._in.values() for name in names}
        self._in |= {name: (name,) for name in self._all if name not in inside}
        self._used = {
            node: (
                node,
                *(way.module_name for way in spec.exits.get(node, ()) if isinstance(way, Router) and way.module_name),
                *(part.name for part in spec.condensers.get(node, {}).values()),
            )
            for node in (START, *spec.nodes)
        }
        self.nodes = tuple(dict.fromkeys([*spec.nodes, *self._in]))

    @property
    def tunable(self) -> tuple[str, ...]:
        """The nodes with a component."""
        return tuple(node for node in self.nodes if self._in.get(node))

    def nodes_of(self, component: str) -> tuple[str, ...]:
        """The nodes that a component is in, several if they share it; of one outside of the graph, its own name."""
        return tuple(node for node, inside in self._in.items() if component in inside) or (component,)

    def node_of_step(self, step: TraceStep) -> str:
        """The node that made a step of a run: for a router or condenser this one, and not the node that it follows."""
        path = path_in_program(step.predictor) or ""
        if path in self._in.get(step.node, ()):  # also one that another node has, too, under whose name it is listed
            return step.node
        within = (node for node in self._modules if path == node or path.startswith((f"{node}.", f"{node}[")))
        return next(within, step.node)

    def used_in(self, prediction: Any) -> tuple[str, ...]:
        """The components that the run of a prediction may have called: those of the nodes that ran."""
        if not self.exact:
            return self._all
        try:
            run = Run.of(prediction)
        except (LookupError, TypeError):
            return self._all
        ran = {START, *(commit.node for commit in run.commits), *(step.node for step in run.trace_steps)}
        of_nodes = {
            component
            for attributes in self._used.values()
            for attribute in attributes
            for component in self._in.get(attribute, ())
        }
        used = {
            component
            for node in ran
            for attribute in self._used.get(node, (node,))
            for component in self._in.get(attribute, ())
        }
        return tuple(component for component in self._all if component in used or component not in of_nodes)


def nodes_by_part(program: dspy.Module) -> dict[int, tuple[str, ...]]:
    """The nodes of each module and predictor of a program, by id; outside of the graph, the component."""
    graph = only_graph(program)
    found: dict[int, tuple[str, ...]] = {}
    for attribute, module in vars(graph).items() if graph is not None else ():
        if isinstance(module, dspy.Module):
            for _, part in modules_in(module):
                found[id(part)] = (*found.get(id(part), ()), attribute)
    return {id(parameter): (name,) for name, parameter in program.named_parameters()} | found


def only_graph(program: dspy.Module) -> CompiledGraph | None:
    """The graph of a program, if it has just one, those inside of it not counted."""
    if isinstance(program, CompiledGraph):
        return program
    graphs = [part for _, part in modules_in(program) if isinstance(part, CompiledGraph)]
    inner = {id(part) for graph in graphs for _, part in modules_in(graph) if part is not graph}
    outer = [graph for graph in graphs if id(graph) not in inner]
    return outer[0] if len(outer) == 1 else None
