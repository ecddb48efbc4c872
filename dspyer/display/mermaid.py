"""A graph as Mermaid text."""

from __future__ import annotations

import re

from dspyer import END, START
from dspyer.display.graph_svg import drawing_of
from dspyer.record import DrawnGraph

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


def draw_mermaid(graph: DrawnGraph) -> str:
    """The graph as a Mermaid flowchart.

    Functions are boxes, modules and modes have double sides, subgraphs are slanted, maps are drums, interrupts are
    hexagons, checks are diamonds, tools are flags. Routes carry their labels. Edges that start the next round of a loop
    are dashed, and nodes at which a round begins have a thick border. Error edges are dashed, too; the label says after
    a cross what they take.
    """
    drawing, lines = drawing_of(graph), ["flowchart TD"]
    for node in drawing.nodes:
        opening, closing = _SHAPES.get(node.shape, ("[", "]"))
        lines.append(f'    {_id(node.name)}{opening}"{_mermaid_text(node.name)}"{closing}')
    for edge in drawing.edges:
        arrow = "-.->" if edge.on_error or edge.back else "-->"
        text = f'|"{_mermaid_text(edge.whole)}"|' if edge.whole else ""
        lines.append(f"    {_id(edge.source)} {arrow}{text} {_id(edge.target)}")
    lines += [f"    style {_id(node.name)} stroke-width:3px" for node in drawing.nodes if node.head]
    return "\n".join(lines)


def _id(node: str) -> str:
    return node if node in (START, END) else f"{node}_"  # the suffix avoids Mermaid's reserved words, like "end"


def _mermaid_text(text: str) -> str:
    """A text for use inside quotes: quotes and markup become character codes in Mermaid's notation (`#34;`)."""
    return _MARKUP.sub(lambda found: f"#{ord(found[0])};", " ".join(text.split()))
