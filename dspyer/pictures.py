"""Pictures of a graph: Mermaid text and SVG, from its shape alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from .rounds import Edge
from .topology import END, START, Topology


@dataclass(frozen=True, slots=True)
class Picture:
    """What a picture of a graph shows.

    Attributes:
        topology: the shape.
        labels: text of a route by source and target.
        kinds: kind of each node: function, module, subgraph or map.
    """

    topology: Topology
    labels: Mapping[tuple[str, str], str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)


_SHAPES = {"module": ("[[", "]]"), "subgraph": ("[/", "/]"), "map": ("[(", ")]")}


def draw_mermaid(picture: Picture) -> str:
    """The graph as a Mermaid flowchart. Edges that go back are dashed, routes carry their labels."""
    topology = picture.topology
    lines = ["flowchart TD", f"    {START}([START])"]
    for node in topology.nodes:
        opening, closing = _SHAPES.get(picture.kinds.get(node, ""), ("[", "]"))
        lines.append(f"    {node}_{opening}{node}{closing}")
    lines.append(f"    {END}([END])")
    for edge in topology.edges:
        back = topology.rounds.goes_back(edge.source, edge.target)
        arrow = "-.->" if back else "-->"
        label = picture.labels.get((edge.source, edge.target), "")
        text = f'|"{label}"|' if label else ""
        lines.append(f"    {_id(edge.source)} {arrow}{text} {_id(edge.target)}")
    for loop in topology.rounds.loops:
        for head in loop.heads:
            lines.append(f"    style {_id(head)} stroke-width:3px")
    return "\n".join(lines)


def _id(node: str) -> str:
    return node if node in (START, END) else f"{node}_"  # Mermaid has reserved words, such as "end"


def draw_svg(picture: Picture) -> str:
    """The graph as an SVG document."""
    return f"<svg xmlns='http://www.w3.org/2000/svg'><title>{escape(picture.topology.name)}</title></svg>"
