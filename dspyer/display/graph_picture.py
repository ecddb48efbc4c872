"""The nodes and edges of a graph as all drawings show them: the SVG drawing (`graph_svg`), and Mermaid, made here."""

from __future__ import annotations

import re

from dspyer import END, START
from dspyer.record import DrawnGraph
from dspyer.scheduler.topology import Edge, Rounds

EdgeKey = tuple[str, str]  # an edge by source and target


class GraphPicture:
    """A graph as drawings show it.

    Attributes:
        nodes: `START`, the nodes, and `END` if an edge leads there (a graph that loops until it is stopped has none).
        edges: one for each pair of connected nodes; conditional if all parallel ones are, and so is `on_error`.
        heads: the nodes at which the rounds of loops begin.
        labels: the labels of routers and error edges, by source and target.
    """

    def __init__(self, graph: DrawnGraph) -> None:
        self.labels, self._looks = graph.labels, graph.looks
        # `END` is given in any case: every edge needs both of its ends there, and a node without edges is in no loop.
        self._rounds = Rounds((START, *graph.looks, END), graph.edges)
        ends = (END,) if any(edge.target == END for edge in graph.edges) else ()
        self.nodes = (START, *graph.looks, *ends)
        found: dict[EdgeKey, Edge] = {}
        for edge in graph.edges:
            # Two routers may lead to one node, and an error edge beside them: it is one line.
            known = found.get(edge[:2], edge)
            conditional, on_error = known.conditional and edge.conditional, known.on_error and edge.on_error
            found[edge[:2]] = Edge(*edge[:2], conditional, on_error)
        self.edges = tuple(found.values())
        self.heads = tuple(dict.fromkeys(head for loop in self._rounds.loops for head in loop.heads))

    def look(self, node: str) -> tuple[str, str]:
        """The shape of a node, `"end"` for `START` and `END`, and the word below its name.

        The shape is a class of the colours of `svg` as well.
        """
        return ("end", "") if node in (START, END) else self._looks.get(node, ("function", ""))

    def goes_back(self, edge: Edge) -> bool:
        """True if an edge starts the next round of a loop: drawings dash it."""
        return self._rounds.goes_back(edge.source, edge.target)


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


def draw_mermaid(graph: DrawnGraph) -> str:
    """The graph as a Mermaid flowchart.

    Functions are boxes, modules and modes have double sides, subgraphs are slanted, maps are drums, interrupts are
    hexagons, checks are diamonds, tools are flags. Routes carry their labels. Edges that start the next round of a loop
    are dashed, and nodes at which a round begins have a thick border. Error edges are dashed, too; the label says after
    a cross what they take.
    """
    picture, lines = GraphPicture(graph), ["flowchart TD"]
    for node in picture.nodes:
        opening, closing = _SHAPES.get(picture.look(node)[0], ("[", "]"))
        lines.append(f'    {_id(node)}{opening}"{_mermaid_text(node)}"{closing}')
    for edge in picture.edges:
        arrow = "-.->" if edge.on_error or picture.goes_back(edge) else "-->"
        label = picture.labels.get(edge[:2], "")
        text = f'|"{_mermaid_text(label)}"|' if label.strip() else ""
        lines.append(f"    {_id(edge.source)} {arrow}{text} {_id(edge.target)}")
    lines += [f"    style {_id(head)} stroke-width:3px" for head in picture.heads]
    return "\n".join(lines)


def _id(node: str) -> str:
    return node if node in (START, END) else f"{node}_"  # the suffix avoids Mermaid's reserved words, like "end"


def _mermaid_text(text: str) -> str:
    """A text for use inside quotes: quotes and markup become character codes in Mermaid's notation (`#34;`)."""
    return _MARKUP.sub(lambda found: f"#{ord(found[0])};", " ".join(text.split()))
