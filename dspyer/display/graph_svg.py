"""A graph as an SVG picture: the layout of its nodes and edges, and the elements that show them.

The layout is the layered one of Sugiyama, Tagawa and Toda ("Methods for Visual Understanding of Hierarchical System
Structures", IEEE Trans. SMC 1981): a node's row is its longest path from the start; an edge over several rows passes
through an empty *cell* in each; rows are ordered by the barycentre of their neighbours; then each cell moves to the
mean of its neighbours as far as its row allows. Odd rows hold the labels of edges, so that labels take part in all of
this and never cover each other. Edges that start the next round of a loop run in lanes along the sides.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import TopologicalSorter
from html import escape as escape_html
from itertools import pairwise
from typing import Any, NamedTuple

from dspyer import END, START
from dspyer.display.amounts import count_of
from dspyer.display.report import OUTCOMES, outcome
from dspyer.record import DrawnGraph, Record
from dspyer.scheduler.topology import Edge, Rounds

Coordinates = tuple[float, float]
EdgeKey = tuple[str, str]  # an edge by source and target

LABEL_LIMIT = 28  # characters; the whole label is in the tooltip
NAME_LIMIT = 36


class DrawnNode(NamedTuple):
    """A node of a drawing: its box by the middle, in pixels, as all lengths are."""

    name: str
    shape: str  # a class of the colours of `svg`
    word: str  # below its name; "" for none
    label: str  # the name as it is shown: on one line, and shortened
    head: bool  # whether a round of a loop begins here
    x: float
    y: float
    w: float
    h: float

    @property
    def left(self) -> float:
        """The x of the left side."""
        return self.x - self.w / 2

    @property
    def right(self) -> float:
        """The x of the right side."""
        return self.x + self.w / 2

    @property
    def top(self) -> float:
        """The y of the upper side."""
        return self.y - self.h / 2

    @property
    def bottom(self) -> float:
        """The y of the lower side."""
        return self.y + self.h / 2


class DrawnEdge(NamedTuple):
    """An edge of a drawing: one for each pair of connected nodes."""

    source: str
    target: str
    path: str  # its course, as the `d` of an SVG path
    start: list[float]  # the place of the mark of a conditional edge
    label: str  # as it is shown; empty for none
    whole: str  # the whole label
    conditional: bool  # whether a router or an error decides if it is taken
    back: bool  # whether it starts the next round of a loop
    on_error: bool  # whether it is taken after a failure
    x: float | None  # of the label; None without one
    y: float | None
    anchor: str | None  # the part of the label that is at `x`, as in SVG


class GraphDrawing(NamedTuple):
    """A graph with the positions of its parts: what the SVG picture and the inspector's page show."""

    name: str
    width: float
    height: float
    nodes: tuple[DrawnNode, ...]  # in the order of declaration, first the start
    edges: tuple[DrawnEdge, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        nodes, edges = ([one._asdict() for one in parts] for parts in (self.nodes, self.edges))
        return {**self._asdict(), "nodes": nodes, "edges": edges}


def _tenths(length: float) -> float:
    return round(length, 1) + 0.0  # adding 0.0 turns -0.0 into 0.0


KEPT = 16
"""Drawings that are kept: a page asks for that of its run again with every step."""


@lru_cache(KEPT)
def drawing_of(graph: DrawnGraph) -> GraphDrawing:
    """The graph with all positions. The same graph gives the same drawing in every process."""
    # `END` is given in any case: every edge needs both of its ends there, and a node without edges is in no loop.
    rounds = Rounds((START, *graph.looks, END), graph.edges)
    heads = {head for loop in rounds.loops for head in loop.heads}
    looks = {START: ("end", ""), **graph.looks}
    if any(edge.target == END for edge in graph.edges):  # not in a graph that loops until it is stopped
        looks[END] = ("end", "")
    merged: dict[EdgeKey, Edge] = {}
    for edge in graph.edges:
        # Two routers may lead to one node, and an error edge beside them: it is one line.
        known = merged.get(edge[:2], edge)
        conditional, on_error = known.conditional and edge.conditional, known.on_error and edge.on_error
        merged[edge[:2]] = Edge(*edge[:2], conditional, on_error)
    back = {key: rounds.goes_back(*key) for key in merged}
    whole = {key: text for key in merged if (text := graph.labels.get(key, "")).strip()}
    labels = {key: shorten(text, LABEL_LIMIT) for key, text in whole.items()}
    grid = arrange(tuple(looks), [key for key, goes_back in back.items() if not goes_back])
    # The width of what is shown, not of the whole label: labels take part in the layout of the rows.
    widths = {key: _label_width(label) for key, label in labels.items()}
    nodes = {name: _unplaced(name, *look, name in heads) for name, look in looks.items()}
    layout = Layout(grid, nodes, [key for key, goes_back in back.items() if goes_back], widths)
    edges = []
    for key, edge in merged.items():
        start, (x, y, anchor) = list(map(_tenths, layout.starts[key])), layout.labels.get(key, (None, None, None))
        texts = labels.get(key, ""), whole.get(key, "")
        kinds = edge.conditional, back[key], edge.on_error
        at = x and _tenths(x), y and _tenths(y)
        edges.append(DrawnEdge(*key, layout.paths[key], start, *texts, *kinds, *at, anchor))
    return GraphDrawing(graph.name, _tenths(layout.width), _tenths(layout.height), tuple(nodes.values()), tuple(edges))


class RunPath(NamedTuple):
    """The way of a run through its graph: how often each node ran and each edge was taken."""

    status: str
    visits: Mapping[str, int]
    taken: Mapping[EdgeKey, int]
    ended: Mapping[str, str]  # the nodes that left no commit, and why

    @classmethod
    def of(cls, record: Record) -> RunPath:
        """The way that a run has gone."""
        visits, taken = Counter[str](), Counter[EdgeKey]()
        ended: dict[str, str] = {}
        for step in record.steps:
            if step.parent is not None or (step.commit is None and step.status not in OUTCOMES):
                continue
            if step.commit is None:
                ended.setdefault(step.node.removeprefix("join:"), outcome(step))  # failures come first
            elif not step.node.startswith("join:"):  # the edges into a join are in the routes of the nodes before it
                visits[step.node] += 1
                visits[END] += END in step.to
                taken.update((step.node, target) for target in step.to)
        return cls(record.status, visits, taken, ended)


def draw_svg(graph: DrawnGraph, path: RunPath | None = None) -> str:
    """The graph as a self-contained SVG document, with the path of a run if there is one.

    The same graph and path give the same text in every process.
    """
    drawing = drawing_of(graph)
    # Later parts cover earlier ones: labels lie on edges, nodes on both, and the marks of choices on the nodes.
    parts = [_edge(edge, path) for edge in drawing.edges]
    for edge in drawing.edges:
        parts += _label(edge)
    parts += [_node(node, path) for node in drawing.nodes]
    parts += [_choice(edge) for edge in drawing.edges if edge.conditional]
    title = f"graph {drawing.name}" if path is None else f"run {path.status}"
    return document(title, drawing.width, drawing.height, parts)


def _unplaced(name: str, shape: str, word: str, head: bool) -> DrawnNode:
    """A node with the size of its box."""
    label = shorten(name, NAME_LIMIT)
    more, least, height = {"end": (28, 0, 28.0), "interrupt": (48, 96, 46.0)}.get(
        shape, (32, 72, 46.0 if word else 38.0)
    )
    return DrawnNode(name, shape, word, label, head, 0.0, 0.0, _tenths(max(text_width(label) + more, least)), height)


def _label_width(label: str) -> float:
    return text_width(label, SMALL) + 8


def _edge(edge: DrawnEdge, path: RunPath | None) -> str:
    facts = ["after a failure"] if edge.on_error else []
    facts += ["the next round"] if edge.back else []
    meaning = ", ".join([f"{edge.source} to {edge.target}", *facts])
    # An error edge that goes back, too, is dotted: that it follows a failure says more than that it repeats.
    classes = "line error" if edge.on_error else "line back" if edge.back else "line"
    if path is not None:
        times = path.taken.get((edge.source, edge.target), 0)
        meaning += f": taken {count_of(times, 'time')}" if times else ": not taken"
        classes += " taken" if times else " idle"
    title = f"<title>{escape(meaning)}</title>"
    return f'<path d="{edge.path}" class="{classes}" marker-end="url(#dspyer-tip)">{title}</path>'


def _label(edge: DrawnEdge) -> list[str]:
    """The label of an edge, on a patch in the background colour that interrupts the edge; nothing without one."""
    if edge.x is None or edge.y is None or edge.anchor is None:
        return []
    parts = []
    if edge.anchor == "middle":
        width = _label_width(edge.label)
        x, y = fmt(edge.x - width / 2), fmt(edge.y - 8)
        parts.append(f'<rect x="{x}" y="{y}" width="{fmt(width)}" height="16" class="mask"/>')
    words = draw_text(edge.x, edge.y, edge.label, "quiet", edge.anchor)
    return [*parts, f"<g><title>{escape(edge.whole)}</title>{words}</g>"]


def _choice(edge: DrawnEdge) -> str:
    """The mark at the start of a conditional edge, of which one is taken: a diamond, or the cross of an error edge."""
    x, y = edge.start
    if edge.on_error:
        return f'<path d="M{fmt(x - 4)} {fmt(y - 4)} l8 8 m0 -8 l-8 8" class="failed frame"/>'
    return f'<path d="M{fmt(x - 5)} {fmt(y)} l5 -5 l5 5 l-5 5 z" class="function frame"/>'


_COLOURS = {"failed": "failed", "waits for an answer": "interrupt"}


def _node(node: DrawnNode, path: RunPath | None) -> str:
    """One node: its shape, its colour and a word show its kind; on a path also how often it ran and why it ended."""
    shape = node.shape
    visits, outcome = (1, "") if path is None else (path.visits.get(node.name, 0), path.ended.get(node.name, ""))
    hue = _COLOURS.get(outcome, shape)
    facts = [node.name] if shape == "end" else [f"{node.name}: {node.word or shape}"]
    weight = "frame"
    if node.head:
        facts.append("a round begins here")
        weight = "head"
    if path is not None:
        facts += [f"ran {count_of(visits, 'time')}"] if visits else [] if outcome else ["did not run"]
        facts += [outcome] if outcome else []
        weight = "head" if outcome else weight
    parts = [f"<title>{escape(', '.join(facts))}</title>"]
    if shape == "map":
        parts += [_rect(node, f"{hue} frame", 6, shift) for shift in (6.0, 3.0)]
    if shape == "interrupt":
        parts.append(_hexagon(node, f"{hue} {weight}"))
    else:
        parts.append(_rect(node, f"{hue} {weight}", node.h / 2 if shape == "end" else 8))
    if shape == "subgraph":
        parts.append(_rect(node._replace(w=node.w - 8, h=node.h - 8), f"{hue} frame", 5))
    elif shape == "module":
        inner = f"V{fmt(node.bottom)} M{fmt(node.right - 6)} {fmt(node.top)} V{fmt(node.bottom)}"
        parts.append(f'<path d="M{fmt(node.left + 6)} {fmt(node.top)} {inner}" class="{hue} frame"/>')
    if not node.word:
        parts.append(draw_text(node.x, node.y, node.label))
    else:
        parts += [draw_text(node.x, node.y - 6.5, node.label), draw_text(node.x, node.y + 10, node.word, "quiet")]
    if visits > 1:
        parts.append(draw_text(node.right + 3, node.top + 2, f"×{visits:,}", "quiet", "start"))
    group = "<g>" if visits or outcome else '<g class="idle">'
    return f"{group}{''.join(parts)}</g>"


def _hexagon(box: DrawnNode, classes: str) -> str:
    tip, width = 12.0, box.w - 24.0
    half = fmt(box.h / 2)
    path = f"M{fmt(box.left)} {fmt(box.y)} l{fmt(tip)} -{half} h{fmt(width)} l{fmt(tip)} {half}"
    return f'<path d="{path} l-{fmt(tip)} {half} h-{fmt(width)} z" class="{classes}"/>'


def _rect(box: DrawnNode, classes: str, radius: float, shift: float = 0.0) -> str:
    x, y = fmt(box.left + shift), fmt(box.top + shift)
    return f'<rect x="{x}" y="{y}" width="{fmt(box.w)}" height="{fmt(box.h)}" rx="{fmt(radius)}" class="{classes}"/>'


# --- rows and columns

Cell = str | tuple[str, str, int]  # a node, or an edge where it passes a row

GAP = 34.0  # between neighbours in a row
EDGE_GAP = 22.0  # the same next to an edge that passes
ROW_GAP = 21.0  # between rows
SWEEPS = 8  # orders that are tried to reduce crossings
ROUNDS = 160  # passes that move each cell to the mean of its neighbours
STRAIGHTENED = 40  # passes that move each cell to the mean of its chain


@dataclass(frozen=True, slots=True)
class Grid:
    """A graph in rows: the cells of each from left to right, and the neighbours of each cell above and below."""

    rows: tuple[tuple[Cell, ...], ...]
    above: Mapping[Cell, Sequence[Cell]]
    below: Mapping[Cell, Sequence[Cell]]


def arrange(nodes: Sequence[str], keys: Sequence[EdgeKey]) -> Grid:
    """Puts nodes and edges into rows and orders the rows.

    `nodes` are in the order of declaration, first the start, last the end if there is one; none of the `keys` goes
    back.
    """
    rank = _ranks(nodes, keys)
    # Nothing leads on from the end: it is drawn below all, also if a short path reaches it.
    if all(source != nodes[-1] for source, _ in keys):
        rank[nodes[-1]] = max(rank.values())
    above: dict[Cell, list[Cell]] = {node: [] for node in nodes}
    below: dict[Cell, list[Cell]] = {node: [] for node in nodes}
    level: dict[Cell, int] = {node: 2 * rank[node] for node in nodes}
    for source, target in keys:
        before: Cell = source
        for number in range(level[source] + 1, level[target] + 1):
            cell: Cell = target if number == level[target] else (source, target, number)
            level[cell] = number
            below.setdefault(before, []).append(cell)
            above.setdefault(cell, []).append(before)
            before = cell
    rows: list[list[Cell]] = [[] for _ in range(max(level.values()) + 1)]
    for cell in _first_visits(nodes, below):
        rows[level[cell]].append(cell)
    return Grid(_uncross(rows, above, below), above, below)


def _ranks(nodes: Sequence[str], keys: Sequence[EdgeKey]) -> dict[str, int]:
    """The length of the longest path to each node."""
    before = {node: [source for source, target in keys if target == node] for node in nodes}
    rank: dict[str, int] = {}
    for node in TopologicalSorter(before).static_order():
        rank[node] = max([rank[one] + 1 for one in before[node]], default=0)
    return rank


def _first_visits(nodes: Sequence[str], below: Mapping[Cell, Sequence[Cell]]) -> list[Cell]:
    """All cells, depth first: the branches of a fork come in the order in which they were declared."""
    seen: dict[Cell, None] = {}
    for node in nodes:
        stack: list[Cell] = [node]
        while stack:
            cell = stack.pop()
            if cell not in seen:
                seen[cell] = None
                stack.extend(reversed(below.get(cell, ())))
    return list(seen)


def _uncross(
    rows: list[list[Cell]], above: Mapping[Cell, Sequence[Cell]], below: Mapping[Cell, Sequence[Cell]]
) -> tuple[tuple[Cell, ...], ...]:
    """Orders the rows by barycentre, down and up in turn; keeps the order with the fewest crossings."""
    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(SWEEPS):
        if not fewest:  # most graphs have no crossing at first
            break
        down = sweep % 2 == 0
        numbers = range(1, len(rows)) if down else range(len(rows) - 2, -1, -1)
        rows = [list(row) for row in rows]
        for number in numbers:
            fixed = {cell: i for i, cell in enumerate(rows[number - 1 if down else number + 1])}
            centre: dict[Cell, float] = {}
            for i, cell in enumerate(rows[number]):
                columns = [fixed[other] for other in (above if down else below).get(cell, ())]
                centre[cell] = sum(columns) / len(columns) if columns else float(i)
            rows[number].sort(key=centre.__getitem__)
        crossings = _crossings(rows, below)
        if crossings < fewest:
            best, fewest = rows, crossings
    return tuple(tuple(row) for row in best)


def _crossings(rows: Sequence[Sequence[Cell]], below: Mapping[Cell, Sequence[Cell]]) -> int:
    count = 0
    for row, following in pairwise(rows):
        column = {cell: i for i, cell in enumerate(following)}
        passed: list[int] = []
        for cell in row:
            ends = sorted(column[other] for other in below.get(cell, ()))
            count += sum(len(passed) - bisect_right(passed, end) for end in ends)
            for end in ends:
                insort(passed, end)
    return count


def across(grid: Grid, widths: Mapping[Cell, float]) -> dict[Cell, float]:
    """The middle of each cell from left to right: near the mean of its neighbours, without overlap.

    Cells that follow one another without a fork or join move as one, so that chains and long edges come out straight. A
    cell without a width is an edge without a label.
    """
    x: dict[Cell, float] = {}

    def settle(row: Sequence[Cell], wanted: Sequence[float], weights: Sequence[float]) -> None:
        gaps = [_distance(left, right, widths) for left, right in pairwise(row)]
        x.update(zip(row, spread(wanted, gaps, weights), strict=True))

    for row in grid.rows:
        settle(row, [0.0] * len(row), [1.0] * len(row))
    cells = [cell for row in grid.rows for cell in row]
    near = {cell: (*grid.above.get(cell, ()), *grid.below.get(cell, ())) for cell in cells}
    # To the neighbours, then with little weight for what is no chain: the first alone would leave long edges slanted.
    for groups, rounds in ((near, ROUNDS), ({cell: chain for chain in _chains(grid) for cell in chain}, STRAIGHTENED)):
        for sweep in range(rounds):
            # Down and up in turn: one direction alone would pull all rows after the first one.
            for row in grid.rows if sweep % 2 == 0 else reversed(grid.rows):
                weights = [len(groups[cell]) for cell in row]
                settle(row, [sum(x[one] for one in groups[cell]) / len(groups[cell]) for cell in row], weights)
    return x


def _chains(grid: Grid) -> list[tuple[Cell, ...]]:
    """All cells, in chains: between two cells of a chain nothing forks or joins."""
    found = []
    for row in grid.rows:
        for cell in row:
            above = grid.above.get(cell, ())
            if len(above) == 1 and len(grid.below[above[0]]) == 1:
                continue
            chain = [cell]
            while len(below := grid.below.get(chain[-1], ())) == 1 and len(grid.above[below[0]]) == 1:
                chain.append(below[0])
            found.append(tuple(chain))
    return found


def _distance(left: Cell, right: Cell, widths: Mapping[Cell, float]) -> float:
    gap = GAP if isinstance(left, str) and isinstance(right, str) else EDGE_GAP
    return (widths.get(left, 0.0) + widths.get(right, 0.0)) / 2 + gap


def spread(wanted: Sequence[float], gaps: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The positions nearest to the wanted ones (weighted least squares) that keep the order and the gaps.

    Positions that would be too near form a block that moves as one: pooled adjacent violators (Ayer et al. 1955).

    Example:
        >>> spread([0.0, 0.0, 9.0], [4.0, 4.0], [1.0, 1.0, 1.0])
        [-2.0, 2.0, 9.0]
    """
    offset = [0.0]
    for gap in gaps:
        offset.append(offset[-1] + gap)
    # (mean of the wanted positions less their offsets, weight, number of positions)
    blocks: list[tuple[float, float, int]] = []
    for i, position in enumerate(wanted):
        mean, weight, size = position - offset[i], weights[i], 1
        while blocks and blocks[-1][0] > mean:
            other_mean, other_weight, other_size = blocks.pop()
            mean = (mean * weight + other_mean * other_weight) / (weight + other_weight)
            weight, size = weight + other_weight, size + other_size
        blocks.append((mean, weight, size))
    flat = [mean for mean, _, size in blocks for _ in range(size)]
    return [mean + shift for mean, shift in zip(flat, offset, strict=True)]


# --- the course of edges

LABEL_HEIGHT = 18.0
LANE_GAP = 20.0  # from the cells of the rows to a lane, and between lanes
CHANNEL = 12.0  # height of an edge that runs between two rows
PORT = 16.0  # between the ends of edges at one node
MARGIN = 22.0


@dataclass(slots=True)
class Lane:
    """The course of an edge that goes back: out of its source, along a lane at one side, into its target.

    At its source, and at its target, it is `at_side` of the node, else in the gap below or above: `ends` has the y.
    """

    key: EdgeKey
    side: int  # 1 for the right side, -1 for the left one
    x: float  # of the lane
    at_side: tuple[bool, bool]
    ends: list[float] = field(default_factory=lambda: [0.0, 0.0])


class Layout:
    """All positions: of nodes and forward edges by their rows, then of the edges that go back.

    The `boxes` of nodes get their places; `labelled` has the width of the label of each edge that has one.
    """

    def __init__(
        self,
        grid: Grid,
        boxes: dict[str, DrawnNode],
        back: Sequence[EdgeKey],
        labelled: Mapping[EdgeKey, float],
    ) -> None:
        self._rows, self._boxes, self._labelled = grid.rows, boxes, labelled
        self._row = {cell: number for number, row in enumerate(grid.rows) for cell in row}
        # The cell of the label of each labelled forward edge: the first one, close to its source.
        self._named: dict[EdgeKey, Cell] = {}
        for cell in self._row:
            if not isinstance(cell, str) and cell[:2] in labelled:
                self._named.setdefault(cell[:2], cell)
        self._widths: dict[Cell, float] = {name: node.w for name, node in boxes.items()}
        self._widths |= {cell: labelled[key] for key, cell in self._named.items()}
        self._x = across(grid, self._widths)
        lanes = self._lanes(back)
        edges = [at + side * self._half(cell) for cell, at in self._x.items() for side in (-1, 1)]
        edges += [lane.x + lane.side * self._room(lane.key) for lane in lanes]
        # The leftmost part may be a node, a label or a lane: all is moved by what keeps the margin free of it.
        shift = MARGIN - min(edges)
        self._x = {cell: at + shift for cell, at in self._x.items()}
        for lane in lanes:
            lane.x += shift
        self.width = max(edges) + shift + MARGIN
        self._tops, self._heights, self.height = self._down(lanes)
        for name, node in boxes.items():
            row = self._row[name]
            y = self._tops[row] + self._heights[row] / 2
            boxes[name] = node._replace(x=_tenths(self._x[name]), y=_tenths(y))
        self.paths: dict[EdgeKey, str] = {}
        self.starts: dict[EdgeKey, Coordinates] = {}
        self.labels: dict[EdgeKey, tuple[float, float, str]] = {}
        self._settle_ends(lanes)
        self._add_curves()
        self._add_lanes(lanes)

    def _half(self, cell: Cell) -> float:
        return self._widths.get(cell, 0.0) / 2

    def _room(self, key: EdgeKey) -> float:
        return self._labelled[key] + 8 if key in self._labelled else 0.0

    def _lanes(self, back: Sequence[EdgeKey]) -> list[Lane]:
        """A lane for each edge that goes back: short ones inside, each on the side where it is shorter."""
        rows, x, reach = self._row, self._x, {}
        for side in (1, -1):
            reach[side] = [max(side * x[cell] + self._half(cell) for cell in row) for row in self._rows]
        lanes = []
        for key in sorted(back, key=lambda key: abs(rows[key[0]] - rows[key[1]])):
            source, target = key
            top, bottom = sorted((rows[source], rows[target]))  # in a loop with several heads, one may be below it
            span = range(top, bottom + 1)
            choices = []
            for side in (1, -1):
                at_side = self._is_outermost(source, side), self._is_outermost(target, side)
                out = max(reach[side][row] for row in span) + LANE_GAP
                if source == target:
                    out, at_side = side * x[source] + self._half(source) + LANE_GAP, (True, True)
                cost = sum(out - side * x[node] - self._half(node) for node in key)
                choices.append((cost, -side, out, side, at_side))
            _, _, out, side, at_side = min(choices)
            lanes.append(Lane(key, side, side * out, at_side))
            for row in span:
                reach[side][row] = max(reach[side][row], out + self._room(key))
        return lanes

    def _is_outermost(self, node: str, side: int) -> bool:
        row = self._rows[self._row[node]]
        beyond = row[row.index(node) + 1 :] if side > 0 else row[: row.index(node)]
        return not any(isinstance(cell, str) for cell in beyond)

    def _down(self, lanes: Sequence[Lane]) -> tuple[list[float], list[float], float]:
        """The top and height of each row, and the height of all. Gaps are higher where edges go back through them."""
        channels = [0] * (len(self._rows) + 1)
        for lane in lanes:
            channels[self._row[lane.key[0]] + 1] += not lane.at_side[0]
            channels[self._row[lane.key[1]]] += not lane.at_side[1]
        labels = set(self._named.values())
        tops, heights, at = [], [], MARGIN
        for number, row in enumerate(self._rows):
            at += ROW_GAP * bool(number) + CHANNEL * channels[number]
            tops.append(at)
            tall = [self._boxes[cell].h if isinstance(cell, str) else LABEL_HEIGHT * (cell in labels) for cell in row]
            heights.append(max(tall))
            at += heights[-1]
        return tops, heights, at + CHANNEL * channels[-1] + MARGIN

    def _settle_ends(self, lanes: Sequence[Lane]) -> None:
        """Sets the y of the ends of lanes: in the gaps, or at the side of a node, ordered so that no two cross."""
        at_side: dict[tuple[str, int], list[tuple[tuple[int, float], Lane, int]]] = {}
        used = Counter[int]()
        for lane in lanes:
            for end, node in enumerate(lane.key):
                row = self._row[node]
                if lane.at_side[end]:
                    out = lane.side * lane.x
                    self_loop = lane.key[0] == lane.key[1]
                    # From the top: what leaves, loops to itself, what enters: outer lanes enclose inner ones.
                    rank = (1, -end) if self_loop else (0, out) if end == 0 else (2, -out)
                    at_side.setdefault((node, lane.side), []).append((rank, lane, end))
                elif end == 0:
                    used[row + 1] += 1
                    lane.ends[end] = self._tops[row] + self._heights[row] + CHANNEL * used[row + 1]
                else:
                    used[row] += 1
                    lane.ends[end] = self._tops[row] - CHANNEL * used[row] - 4
        for (node, _), ends in at_side.items():
            step = min(14.0, (self._boxes[node].h - 12) / max(len(ends) - 1, 1))
            for i, (_, lane, end) in enumerate(sorted(ends, key=lambda item: item[0])):
                lane.ends[end] = self._boxes[node].y + step * (i - (len(ends) - 1) / 2)

    def _add_curves(self) -> None:
        """Adds the forward edges."""
        chains: dict[EdgeKey, list[Cell]] = {}
        for cell in self._row:
            if not isinstance(cell, str):
                chains.setdefault(cell[:2], []).append(cell)
        for key, end in self._ports(chains).items():
            source = self._boxes[key[0]]
            points = [(source.x, source.bottom)]
            for cell in chains[key]:
                row, x = self._row[cell], self._x[cell]
                top, height = self._tops[row], self._heights[row]
                if row % 2 == 0:
                    points += [(x, top), (x, top + height)]
                elif height:
                    points.append((x, top + height / 2))
                if cell == self._named.get(key):
                    self.labels[key] = (*points[-1], "middle")
            self.starts[key] = points[0]
            self.paths[key] = curve([*points, end])

    def _ports(self, chains: Mapping[EdgeKey, Sequence[Cell]]) -> dict[EdgeKey, Coordinates]:
        """The end of each forward edge at its target: side by side, in the order in which they arrive."""
        coming: dict[str, list[tuple[float, EdgeKey]]] = {}
        for key, cells in chains.items():
            coming.setdefault(key[1], []).append((self._x[cells[-1]], key))
        ports = {}
        for node, keys in coming.items():
            box = self._boxes[node]
            step = min(PORT, (box.w - 24) / max(len(keys) - 1, 1))
            for i, (_, key) in enumerate(sorted(keys, key=lambda item: item[0])):
                ports[key] = (box.x + step * (i - (len(keys) - 1) / 2), box.top)
        return ports

    def _add_lanes(self, lanes: Sequence[Lane]) -> None:
        """Adds the edges that go back."""
        for lane in lanes:
            source, target = (self._boxes[node] for node in lane.key)
            leave, enter = lane.ends
            points: list[Coordinates] = [(lane.x, leave), (lane.x, enter)]
            if lane.at_side[0]:
                points.insert(0, (source.x + lane.side * source.w / 2, leave))
            else:
                points[:0] = [(source.x, source.bottom), (source.x, leave)]
            if lane.at_side[1]:
                points.append((target.x + lane.side * target.w / 2, enter))
            else:
                at = target.x + lane.side * (target.w / 2 - 12)
                points += [(at, enter), (at, target.top)]
            self.paths[lane.key] = angular(points)
            self.starts[lane.key] = points[0]
            if lane.key in self._labelled:
                anchor = "start" if lane.side > 0 else "end"
                self.labels[lane.key] = (lane.x + 7 * lane.side, (leave + enter) / 2, anchor)


# --- the parts of a picture: it follows the light or dark setting of the reader, and loads nothing from elsewhere; all
# style rules are scoped to it, because a notebook inserts it into a page as it is

FONT_SIZE = 13.5
SMALL = 11.5  # for labels and details
CORNER = 9.0

_HUES = {  # class: (fill, stroke) by day, by night
    "ground": (("#ffffff", "#e3e6ee"), ("#1c1f29", "#333847")),
    "mask": (("#ffffff", "none"), ("#1c1f29", "none")),
    "function": (("#f5f6fb", "#8a93ab"), ("#272b38", "#77819c")),
    "module": (("#e7f1ff", "#3f7fd6"), ("#1b2d47", "#5b9bf0")),
    "subgraph": (("#f3ebff", "#8457c9"), ("#33254b", "#ab85e8")),
    "map": (("#fff1e2", "#d98324"), ("#40301c", "#e9a254")),
    "interrupt": (("#dff5f4", "#1f8f8b"), ("#14393a", "#45bdb8")),
    "tool": (("#e9f7ec", "#3f9b57"), ("#1d3626", "#62bf7c")),
    "check": (("#fff5d1", "#b08400"), ("#3d3413", "#dcb23c")),
    "end": (("#e9ebf2", "#8a93ab"), ("#333847", "#77819c")),
    "failed": (("#ffe9e7", "#cf3d30"), ("#4a2320", "#f0776b")),
    "line": (("none", "#6b7389"), ("none", "#97a0b8")),
    "tip": (("#6b7389", "none"), ("#97a0b8", "none")),
}
_TEXTS = {  # class: colour by day, by night
    "name": ("#1f2430", "#e6e8ef"),
    "quiet": ("#5d667a", "#a3acc0"),
}
_FONTS = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'
_RULES = (
    f".dspyer text {{ font-family: {_FONTS}; font-size: {FONT_SIZE}px; font-weight: 600; stroke: none }}",
    f".dspyer text.small {{ font-size: {SMALL}px; font-weight: 400 }}",
    ".dspyer .frame { stroke-width: 1.2 }",
    ".dspyer .head { stroke-width: 3 }",
    ".dspyer .line { stroke-width: 1.5 }",
    ".dspyer .back { stroke-dasharray: 5 4 }",
    ".dspyer .error { stroke-dasharray: 2 3 }",
    ".dspyer .taken { stroke-width: 3 }",
    ".dspyer .idle { opacity: 0.45 }",
)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]+")


def escape(text: str) -> str:
    """A text escaped for SVG content and attributes; characters that XML forbids become spaces.

    Example:
        >>> escape('a < "b"')
        'a &lt; &quot;b&quot;'
    """
    return escape_html(_CONTROL.sub(" ", text))


def shorten(text: str, limit: int) -> str:
    """A text on one line, cut to `limit` characters.

    Example:
        >>> shorten("a long way home", 8)
        'a long …'
    """
    line = " ".join(_CONTROL.sub(" ", text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def text_width(text: str, size: float = FONT_SIZE) -> float:
    """The estimated width of a text in pixels. The font of the reader is unknown, so a wide one is assumed."""
    return size * sum(_width(character) for character in text)


def _width(character: str) -> float:
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.05
    if character in "ijlI.,:;'|!()[] ":
        return 0.38
    if character in "mwMW@%—":
        return 0.95
    return 0.72 if character.isupper() else 0.63


def fmt(value: float) -> str:
    """A length as SVG text, with one decimal at most.

    Example:
        >>> fmt(12.0), fmt(12.34)
        ('12', '12.3')
    """
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")  # adding 0.0 turns -0.0 into 0.0


def draw_text(x: float, y: float, words: str, kind: str = "name", anchor: str = "middle") -> str:
    """A line of text whose vertical middle is `y`."""
    classes = kind if kind == "name" else f"{kind} small"
    dy = (FONT_SIZE if kind == "name" else SMALL) * 0.35
    return f'<text x="{fmt(x)}" y="{fmt(y + dy)}" class="{classes}" text-anchor="{anchor}">{escape(words)}</text>'


def document(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """A whole SVG document of `parts` in drawing order, sized in pixels; `title` describes it for screen readers."""
    w, h = fmt(width), fmt(height)
    body = "\n".join(f"  {part}" for part in parts)
    # A page with several pictures has this id several times: they are all the same, so it may take any.
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" class="dspyer" '
        f'role="img" aria-label="{escape(title)}">\n'
        f"  <title>{escape(title)}</title>\n"
        f"  <style>\n{_style()}\n  </style>\n"
        '  <defs><marker id="dspyer-tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.5 L8 4 L0 7.5 z" class="tip"/></marker></defs>\n'
        f'  <rect x="0.5" y="0.5" width="{fmt(width - 1)}" height="{fmt(height - 1)}" rx="10" class="ground"/>\n'
        f"{body}\n</svg>\n"
    )


def _style() -> str:
    day = [f".dspyer .{name} {{ fill: {fill}; stroke: {stroke} }}" for name, ((fill, stroke), _) in _HUES.items()]
    day += [f".dspyer text.{name} {{ fill: {colour} }}" for name, (colour, _) in _TEXTS.items()]
    night = [f".dspyer .{name} {{ fill: {fill}; stroke: {stroke} }}" for name, (_, (fill, stroke)) in _HUES.items()]
    night += [f".dspyer text.{name} {{ fill: {colour} }}" for name, (_, colour) in _TEXTS.items()]
    # Those of the night come last: they weigh as much as those of the day, and the last one counts.
    lines = [f"    {rule}" for rule in (*_RULES, *day)]
    lines += ["    @media (prefers-color-scheme: dark) {", *(f"      {rule}" for rule in night), "    }"]
    return "\n".join(lines)


def curve(points: Sequence[Coordinates]) -> str:
    """A smooth SVG path downwards, which passes all its points straight down."""
    path = [f"M{fmt(points[0][0])} {fmt(points[0][1])}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        path.append(f"V{fmt(y1)}" if x0 == x1 else "C" + " ".join(map(fmt, (x0, middle, x1, middle, x1, y1))))
    return " ".join(path)


def angular(points: Sequence[Coordinates]) -> str:
    """An SVG path of vertical and horizontal lines with round corners.

    Example:
        >>> angular([(0, 0), (40, 0), (40, 40)])
        'M0 0 L31 0 Q40 0 40 9 L40 40'
    """
    path = [f"M{fmt(points[0][0])} {fmt(points[0][1])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        into, out = _towards(corner, before), _towards(corner, after)
        path.append(f"L{fmt(into[0])} {fmt(into[1])}")
        path.append(f"Q{fmt(corner[0])} {fmt(corner[1])} {fmt(out[0])} {fmt(out[1])}")
    path.append(f"L{fmt(points[-1][0])} {fmt(points[-1][1])}")
    return " ".join(path)


def _towards(corner: Coordinates, other: Coordinates) -> Coordinates:
    (x, y), (u, v) = corner, other
    far = abs(u - x) + abs(v - y)
    part = min(CORNER, far / 2) / far if far else 0.0
    return x + (u - x) * part, y + (v - y) * part


# --- the graph as Mermaid text

# What Mermaid would read as markup inside a label, and what its Markdown renderer would read as a list item: a dash in
# front, or a number followed by a dot.
_MARKUP = re.compile(r"[^\w ,?!:()'/.-]|^-|(?<=\d)\.")
_MERMAID_SHAPES = {
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
        opening, closing = _MERMAID_SHAPES.get(node.shape, ("[", "]"))
        lines.append(f'    {_mermaid_id(node.name)}{opening}"{_mermaid_text(node.name)}"{closing}')
    for edge in drawing.edges:
        arrow = "-.->" if edge.on_error or edge.back else "-->"
        text = f'|"{_mermaid_text(edge.whole)}"|' if edge.whole else ""
        lines.append(f"    {_mermaid_id(edge.source)} {arrow}{text} {_mermaid_id(edge.target)}")
    lines += [f"    style {_mermaid_id(node.name)} stroke-width:3px" for node in drawing.nodes if node.head]
    return "\n".join(lines)


def _mermaid_id(node: str) -> str:
    return node if node in (START, END) else f"{node}_"  # the suffix avoids Mermaid's reserved words, like "end"


def _mermaid_text(text: str) -> str:
    """A text for use inside quotes: quotes and markup become character codes in Mermaid's notation (`#34;`)."""
    return _MARKUP.sub(lambda found: f"#{ord(found[0])};", " ".join(text.split()))
