"""The value that drawings of a graph have in common: its nodes and edges with their looks and labels, as one value.

The SVG drawing (`graph_svg`) and the Mermaid text (`dspyer.graph.spec`) both take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dspyer.policies import Policies
from dspyer.record.drawn import DrawnGraph
from dspyer.scheduler.topology import END, START, Edge, Topology
from dspyer.schema.schema import Schema

EdgeKey = tuple[str, str]  # an edge by source and target


@dataclass(frozen=True, slots=True)
class GraphPicture:
    """A compiled graph as drawings show it.

    Attributes:
        topology: nodes, edges and loops.
        labels: the labels of routers and error edges, by source and target.
        looks: the shape of each node, which is a class of the colours of `svg` as well, and the word below its name.
    """

    topology: Topology
    labels: Mapping[EdgeKey, str] = field(default_factory=dict)
    looks: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: DrawnGraph) -> GraphPicture:
        """The picture of a graph as a run has stored it."""
        topology = Topology(graph.name, tuple(graph.looks), graph.edges, Schema.of(None), Policies.of())
        return cls(topology, graph.labels, graph.looks)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """One edge for each pair of connected nodes; conditional if all parallel ones are, and so is `on_error`."""
        found: dict[EdgeKey, Edge] = {}
        for edge in self.topology.edges:
            key = (edge.source, edge.target)
            # Two routers may lead to one node, and an error edge beside them: it is one line.
            known = found.get(key, edge)
            conditional, on_error = known.conditional and edge.conditional, known.on_error and edge.on_error
            found[key] = Edge(*key, conditional, on_error)
        return tuple(found.values())

    @property
    def nodes(self) -> tuple[str, ...]:
        """`START`, the nodes, and `END` if an edge leads there (a graph that loops until it is stopped has none)."""
        ends = (END,) if any(edge.target == END for edge in self.topology.edges) else ()
        return (START, *self.topology.nodes, *ends)

    @property
    def heads(self) -> tuple[str, ...]:
        """The nodes at which the rounds of loops begin."""
        return tuple(dict.fromkeys(head for loop in self.topology.rounds.loops for head in loop.heads))

    def look(self, node: str) -> tuple[str, str]:
        """The shape of a node, `"end"` for `START` and `END`, and the word below its name."""
        return ("end", "") if node in (START, END) else self.looks.get(node, ("function", ""))

    def goes_back(self, edge: Edge) -> bool:
        """True if an edge starts the next round of a loop: drawings dash it."""
        return self.topology.rounds.goes_back(edge.source, edge.target)
