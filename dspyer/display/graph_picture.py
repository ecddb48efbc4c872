"""The value that drawings of a graph have in common: its nodes and edges with their looks and labels, as one value.

The SVG drawing (`graph_svg`) takes it, and the Mermaid text, which is made here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dspyer import END, START
from dspyer.extend import Schema
from dspyer.policies import Policies
from dspyer.record import DrawnGraph
from dspyer.scheduler.topology import Edge, Topology

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


# --- as Mermaid text

# What Mermaid would read as markup inside a label, and what its Markdown renderer would read as a list item: a dash in
# front, or a number followed by a dot.
_MARKUP = re.compile(r"[^\w ,?!:()'/.-]|^-|(?<=\d)\.")
_SHAPES = {
    "end": ("([", "])"),
    "module": ("[[", "]]"),
    "subgraph": ("[/", "/]"),
    "map": ("[(", ")]"),
    "interrupt": ("{{", "}}"),
    "check": ("{", "}"),
    "tool": (">", "]"),
}


def draw_mermaid(picture: GraphPicture) -> str:
    """The graph as a Mermaid flowchart.

    Functions are boxes, modules and modes have double sides, subgraphs are slanted, maps are drums, interrupts are
    hexagons, checks are diamonds, tools are flags. Routes carry their labels. Edges that start the next round of a loop
    are dashed, and nodes at which a round begins have a thick border. Error edges are dashed, too; the label says after
    a cross what they take.
    """
    lines = ["flowchart TD"]
    for node in picture.nodes:
        opening, closing = _SHAPES.get(picture.look(node)[0], ("[", "]"))
        lines.append(f'    {_id(node)}{opening}"{_mermaid_text(node)}"{closing}')
    for edge in picture.edges:
        arrow = "-.->" if edge.on_error or picture.goes_back(edge) else "-->"
        label = picture.labels.get((edge.source, edge.target), "")
        text = f'|"{_mermaid_text(label)}"|' if label.strip() else ""
        lines.append(f"    {_id(edge.source)} {arrow}{text} {_id(edge.target)}")
    lines += [f"    style {_id(head)} stroke-width:3px" for head in picture.heads]
    return "\n".join(lines)


def _id(node: str) -> str:
    return node if node in (START, END) else f"{node}_"  # the suffix avoids Mermaid's reserved words, like "end"


def _mermaid_text(text: str) -> str:
    """A text for use inside quotes: quotes and markup become character codes in Mermaid's notation (`#34;`)."""
    return _MARKUP.sub(lambda found: f"#{ord(found[0])};", " ".join(text.split()))
