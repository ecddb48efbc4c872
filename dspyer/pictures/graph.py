"""Pictures of a graph: Mermaid text and SVG, from its shape alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dspyer.pictures.layout import EdgeKey, NodeBox, arrange
from dspyer.pictures.svg import SMALL, document, draw_text, escape, fmt, shorten, text_width
from dspyer.pictures.wires import LabelPosition, Layout, lay_out
from dspyer.scheduler.loops import Edge
from dspyer.scheduler.topology import END, START, Topology

LABEL_LIMIT = 28  # characters; the whole label is in the tooltip
NAME_LIMIT = 36


@dataclass(frozen=True, slots=True)
class Picture:
    """What a picture of a graph shows.

    Attributes:
        topology: the shape.
        labels: text of a route by source and target.
        kinds: kind of each node: function, module, subgraph, map or interrupt.
    """

    topology: Topology
    labels: Mapping[EdgeKey, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges, each pair of nodes once: conditional if every way between the two is."""
        found: dict[EdgeKey, bool] = {}
        for edge in self.topology.edges:
            way = (edge.source, edge.target)
            found[way] = found.get(way, True) and edge.conditional
        return tuple(Edge(source, target, conditional) for (source, target), conditional in found.items())

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes between `START` and `END`; a loop without an end has no `END`."""
        ends = (END,) if any(edge.target == END for edge in self.topology.edges) else ()
        return (START, *self.topology.nodes, *ends)

    @property
    def heads(self) -> tuple[str, ...]:
        """The nodes at which rounds begin."""
        return tuple(dict.fromkeys(head for loop in self.topology.rounds.loops for head in loop.heads))

    def kind(self, node: str) -> str:
        """The kind of a node; `"end"` for `START` and `END`."""
        return "end" if node in (START, END) else self.kinds.get(node, "function")

    def goes_back(self, edge: Edge) -> bool:
        """Whether an edge starts the next round of a loop."""
        return self.topology.rounds.goes_back(edge.source, edge.target)


# Also what makes a line a list in Markdown: a dash in front, or a number and a dot.
_MARKUP = re.compile(r"[^\w ,?!:()'/.-]|^-|(?<=\d)\.")
_SHAPES = {
    "end": ("([", "])"),
    "module": ("[[", "]]"),
    "subgraph": ("[/", "/]"),
    "map": ("[(", ")]"),
    "interrupt": ("{{", "}}"),
}


def draw_mermaid(picture: Picture) -> str:
    """The graph as a Mermaid flowchart.

    Functions are boxes, modules have double sides, subgraphs are slanted, maps are drums, interrupts have six sides.
    Routes carry their labels. Edges that go back are dashed, and the node at which a round begins has a thick border.

    Args:
        picture: the graph.

    Returns:
        A `flowchart` from the top to the bottom.
    """
    lines = ["flowchart TD"]
    for node in picture.nodes:
        opening, closing = _SHAPES.get(picture.kind(node), ("[", "]"))
        lines.append(f'    {_id(node)}{opening}"{_mermaid_text(node)}"{closing}')
    for edge in picture.edges:
        arrow = "-.->" if picture.goes_back(edge) else "-->"
        label = picture.labels.get((edge.source, edge.target), "")
        text = f'|"{_mermaid_text(label)}"|' if label.strip() else ""
        lines.append(f"    {_id(edge.source)} {arrow}{text} {_id(edge.target)}")
    lines += [f"    style {_id(head)} stroke-width:3px" for head in picture.heads]
    return "\n".join(lines)


def _id(node: str) -> str:
    return node if node in (START, END) else f"{node}_"  # Mermaid has reserved words, such as "end"


def _mermaid_text(text: str) -> str:
    """A text inside quotes: what could end it or be markup is a character code, as Mermaid wants it."""
    return _MARKUP.sub(lambda found: f"#{ord(found[0])};", " ".join(text.split()))


def draw_svg(picture: Picture) -> str:
    """The graph as an SVG document that needs nothing from outside.

    Args:
        picture: the graph.

    Returns:
        The document. The same graph gives the same text.
    """
    edges = picture.edges
    labels = {
        (edge.source, edge.target): shorten(picture.labels[edge.source, edge.target], LABEL_LIMIT)
        for edge in edges
        if picture.labels.get((edge.source, edge.target), "").strip()
    }
    ahead = [(edge.source, edge.target) for edge in edges if not picture.goes_back(edge)]
    back = [(edge.source, edge.target) for edge in edges if picture.goes_back(edge)]
    nodes = picture.nodes
    sizes = {node: _size(picture, node) for node in nodes}
    widths = {way: text_width(label, SMALL) + 8 for way, label in labels.items()}
    layout = lay_out(arrange(nodes, ahead), sizes, back, widths)
    parts = [_edge(layout, edge, picture.goes_back(edge)) for edge in edges]
    for way, label in labels.items():
        parts += _label(layout.labels[way], label, picture.labels[way], widths[way])
    for node in nodes:
        parts.append(_node(layout.boxes[node], node, picture.kind(node), node in picture.heads))
    parts += [_choice(layout, edge) for edge in edges if edge.conditional]
    return document(f"graph {picture.topology.name}", layout.width, layout.height, parts)


def _size(picture: Picture, node: str) -> tuple[float, float]:
    kind = picture.kind(node)
    width = text_width(shorten(node, NAME_LIMIT))
    if kind == "end":
        return width + 28, 28.0
    if kind == "interrupt":
        return max(width + 48, 96.0), 46.0
    return max(width + 32, 72.0), 38.0 if kind == "function" else 46.0


def _edge(layout: Layout, edge: Edge, back: bool) -> str:
    way = (edge.source, edge.target)
    meaning = f"{edge.source} to {edge.target}{', the next round' if back else ''}"
    classes = "line back" if back else "line"
    title = f"<title>{escape(meaning)}</title>"
    return f'<path d="{layout.paths[way]}" class="{classes}" marker-end="url(#dspyer-tip)">{title}</path>'


def _label(spot: LabelPosition, label: str, whole: str, width: float) -> list[str]:
    """A label, on a patch of the ground that interrupts the edge."""
    parts = []
    if spot.anchor == "middle":
        x, y = fmt(spot.x - width / 2), fmt(spot.y - 8)
        parts.append(f'<rect x="{x}" y="{y}" width="{fmt(width)}" height="16" class="mask"/>')
    words = draw_text(spot.x, spot.y, label, "quiet", spot.anchor)
    return [*parts, f"<g><title>{escape(whole)}</title>{words}</g>"]


def _choice(layout: Layout, edge: Edge) -> str:
    """The mark where a route begins: one of these edges is taken, not all."""
    x, y = layout.starts[edge.source, edge.target]
    return f'<path d="M{fmt(x - 5)} {fmt(y)} l5 -5 l5 5 l-5 5 z" class="function frame"/>'


def _node(box: NodeBox, node: str, kind: str, head: bool) -> str:
    """One node: shape and colour say its kind, and so does a word."""
    facts = [node] if kind == "end" else [f"{node}: {kind}"]
    weight = "frame"
    if head:
        facts.append("a round begins here")
        weight = "head"
    parts = [f"<title>{escape(', '.join(facts))}</title>"]
    if kind == "map":
        parts += [_rect(box, "map frame", 6, shift) for shift in (6.0, 3.0)]
    if kind == "interrupt":
        parts.append(_hexagon(box, f"{kind} {weight}"))
    else:
        parts.append(_rect(box, f"{kind} {weight}", box.height / 2 if kind == "end" else 8))
    if kind == "subgraph":
        parts.append(_rect(NodeBox(box.x, box.y, box.width - 8, box.height - 8), "subgraph frame", 5))
    elif kind == "module":
        inner = f"V{fmt(box.bottom)} M{fmt(box.right - 6)} {fmt(box.top)} V{fmt(box.bottom)}"
        parts.append(f'<path d="M{fmt(box.left + 6)} {fmt(box.top)} {inner}" class="module frame"/>')
    name = shorten(node, NAME_LIMIT)
    if kind in ("end", "function"):
        parts.append(draw_text(box.x, box.y, name))
    else:
        parts += [draw_text(box.x, box.y - 6.5, name), draw_text(box.x, box.y + 10, kind, "quiet")]
    return f"<g>{''.join(parts)}</g>"


def _hexagon(box: NodeBox, classes: str) -> str:
    tip, width = 12.0, box.width - 24.0
    half = fmt(box.height / 2)
    path = f"M{fmt(box.left)} {fmt(box.y)} l{fmt(tip)} -{half} h{fmt(width)} l{fmt(tip)} {half}"
    return f'<path d="{path} l-{fmt(tip)} {half} h-{fmt(width)} z" class="{classes}"/>'


def _rect(box: NodeBox, classes: str, radius: float, shift: float = 0.0) -> str:
    x, y = fmt(box.left + shift), fmt(box.top + shift)
    return (
        f'<rect x="{x}" y="{y}" width="{fmt(box.width)}" height="{fmt(box.height)}" rx="{fmt(radius)}" '
        f'class="{classes}"/>'
    )
