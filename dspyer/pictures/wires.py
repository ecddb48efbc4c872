"""How the edges of a drawn graph run: forward ones as curves through their cells, others along lanes at the side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dspyer.pictures.layout import ROW_GAP, Cell, EdgeKey, Grid, NodeBox, across
from dspyer.pictures.svg import Coordinates, angular, curve

LABEL_HEIGHT = 18.0
LANE_GAP = 20.0  # from what stands in the rows to a lane, and between lanes
CHANNEL = 12.0  # height of a way between two rows
PORT = 16.0  # between the ends of edges at one node
MARGIN = 22.0


class LabelPosition(NamedTuple):
    """Where a label stands."""

    x: float
    y: float
    anchor: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A laid out graph.

    Attributes:
        boxes: the place of each node.
        paths: the SVG path of each edge.
        starts: where each edge begins.
        labels: where the label of each labelled edge stands.
        width: of the whole picture.
        height: of the whole picture.
    """

    boxes: Mapping[str, NodeBox]
    paths: Mapping[EdgeKey, str]
    starts: Mapping[EdgeKey, Coordinates]
    labels: Mapping[EdgeKey, LabelPosition]
    width: float
    height: float


@dataclass(slots=True)
class Lane:
    """The way of an edge that goes back: out of its source, along a lane at one side, into its target.

    Attributes:
        way: the edge.
        side: 1 for the right side, -1 for the left one.
        x: of the lane.
        beside: whether it leaves its source, and enters its target, at the side; else through the gap below or above.
        ends: the y of both ends, or of the ways through the gaps.
    """

    way: EdgeKey
    side: int
    x: float
    beside: tuple[bool, bool]
    ends: list[float] = field(default_factory=lambda: [0.0, 0.0])


def lay_out(
    grid: Grid, sizes: Mapping[str, Coordinates], back: Sequence[EdgeKey], labels: Mapping[EdgeKey, float]
) -> Layout:
    """Gives every part of a graph its place.

    Args:
        grid: nodes and forward edges in rows.
        sizes: width and height of each node.
        back: the edges that go back.
        labels: the width of each edge's label.
    """
    widths: dict[Cell, float] = {node: width for node, (width, _) in sizes.items()}
    widths |= {cell: labels[source, target] for (source, target), cell in _label_cells(grid, labels).items()}
    x = across(grid, widths)
    lanes = _lanes(grid, x, widths, back, labels)
    edges = [
        extent for cell, at in x.items() for extent in (at - widths.get(cell, 0) / 2, at + widths.get(cell, 0) / 2)
    ]
    edges += [lane.x + lane.side * _room(labels.get(lane.way)) for lane in lanes]
    shift = MARGIN - min(edges)
    x = {cell: at + shift for cell, at in x.items()}
    for lane in lanes:
        lane.x += shift
    tops, heights, height = _down(grid, sizes, lanes, labels)
    boxes = {
        node: NodeBox(x[node], tops[row] + heights[row] / 2, *sizes[node])
        for row, cells in enumerate(grid.rows)
        for node in cells
        if isinstance(node, str)
    }
    _settle_ends(grid, boxes, tops, heights, lanes)
    layout = Layout(boxes, {}, {}, {}, max(edges) + shift + MARGIN, height)
    return _with_lanes(_with_curves(layout, grid, x, tops, heights, labels), lanes, labels)


def _label_cells(grid: Grid, labels: Mapping[EdgeKey, float]) -> dict[EdgeKey, Cell]:
    """The cell in which the label of each labelled forward edge stands: the first one, close to its source."""
    found: dict[EdgeKey, Cell] = {}
    for cells in grid.rows:
        for cell in cells:
            if not isinstance(cell, str) and cell[:2] in labels:
                found.setdefault(cell[:2], cell)
    return found


def _room(label: float | None) -> float:
    return 0.0 if label is None else label + 8


def _lanes(
    grid: Grid,
    x: Mapping[Cell, float],
    widths: Mapping[Cell, float],
    back: Sequence[EdgeKey],
    labels: Mapping[EdgeKey, float],
) -> list[Lane]:
    """A lane for each edge that goes back, short ones inside; on the side where the way is shorter."""
    rows = {node: grid.row_of(node) for way in back for node in way}
    reach = {}
    for side in (1, -1):
        reach[side] = [max(side * x[cell] + widths.get(cell, 0) / 2 for cell in row) for row in grid.rows]
    lanes = []
    for way in sorted(back, key=lambda way: rows[way[0]] - rows[way[1]]):
        source, target = way
        span = range(rows[target], rows[source] + 1)
        choices = []
        for side in (1, -1):
            beside = tuple(_is_outermost(grid.rows[rows[node]], node, side) for node in way)
            place = max(reach[side][row] for row in span) + LANE_GAP
            if source == target:
                place = side * x[source] + widths[source] / 2 + LANE_GAP
                beside = (True, True)
            cost = sum(place - side * x[node] - widths[node] / 2 for node in way) + 60 * beside.count(False)
            choices.append((cost, -side, place, side, (beside[0], beside[1])))
        _, _, place, side, sides = min(choices)
        lanes.append(Lane(way, side, side * place, sides))
        for row in span:
            reach[side][row] = max(reach[side][row], place + _room(labels.get(way)))
    return lanes


def _is_outermost(row: Sequence[Cell], node: str, side: int) -> bool:
    beyond = row[row.index(node) + 1 :] if side > 0 else row[: row.index(node)]
    return not any(isinstance(cell, str) for cell in beyond)


def _down(
    grid: Grid, sizes: Mapping[str, Coordinates], lanes: Sequence[Lane], labels: Mapping[EdgeKey, float]
) -> tuple[list[float], list[float], float]:
    """The top and height of each row, and the height of all. Gaps are higher where edges go back through them."""
    labelled = set(_label_cells(grid, labels).values())
    channels = [0] * (len(grid.rows) + 1)
    for lane in lanes:
        source, target = (grid.row_of(node) for node in lane.way)
        channels[source + 1] += not lane.beside[0]
        channels[target] += not lane.beside[1]
    tops, heights, at = [], [], MARGIN
    for number_, row in enumerate(grid.rows):
        if number_:
            at += ROW_GAP
        at += CHANNEL * channels[number_]
        tops.append(at)
        tall = [sizes[cell][1] if isinstance(cell, str) else LABEL_HEIGHT * (cell in labelled) for cell in row]
        heights.append(max(tall))
        at += heights[-1]
    return tops, heights, at + CHANNEL * channels[-1] + MARGIN


def _settle_ends(
    grid: Grid, boxes: Mapping[str, NodeBox], tops: Sequence[float], heights: Sequence[float], lanes: Sequence[Lane]
) -> None:
    """Gives the ends of lanes their heights: in the gaps, or beside a node in such an order that no two cross."""
    beside: dict[tuple[str, int], list[tuple[tuple[int, float], Lane, int]]] = {}
    used: dict[int, int] = {}
    for lane in lanes:
        for end, node in enumerate(lane.way):
            row = grid.row_of(node)
            if lane.beside[end]:
                out = lane.side * lane.x
                selfish = lane.way[0] == lane.way[1]
                rank = (1, -end) if selfish else (0, out) if end == 0 else (2, -out)
                beside.setdefault((node, lane.side), []).append((rank, lane, end))
            else:
                gap = row + 1 if end == 0 else row
                used[gap] = used.get(gap, 0) + 1
                if end == 0:
                    lane.ends[end] = tops[row] + heights[row] + CHANNEL * used[gap]
                else:
                    lane.ends[end] = tops[row] - CHANNEL * used[gap] - 4
    for (node, _), ends in beside.items():
        step = min(14.0, (boxes[node].height - 12) / max(len(ends) - 1, 1))
        for i, (_, lane, end) in enumerate(sorted(ends, key=lambda item: item[0])):
            lane.ends[end] = boxes[node].y + step * (i - (len(ends) - 1) / 2)


def _with_curves(
    layout: Layout,
    grid: Grid,
    x: Mapping[Cell, float],
    tops: Sequence[float],
    heights: Sequence[float],
    labels: Mapping[EdgeKey, float],
) -> Layout:
    """Adds the forward edges."""
    chains: dict[EdgeKey, list[tuple[Cell, int]]] = {}
    for row, cells in enumerate(grid.rows):
        for cell in cells:
            if not isinstance(cell, str):
                chains.setdefault(cell[:2], []).append((cell, row))
    named = _label_cells(grid, labels)
    paths, starts, spots = dict(layout.paths), dict(layout.starts), dict(layout.labels)
    for way, end in _ports(layout.boxes, chains, x).items():
        source = layout.boxes[way[0]]
        points = [(source.x, source.bottom)]
        upright = [True]
        for cell, row in chains[way]:
            if row % 2 == 0:
                points += [(x[cell], tops[row]), (x[cell], tops[row] + heights[row])]
                upright += [True, True]
            elif heights[row]:
                points.append((x[cell], tops[row] + heights[row] / 2))
                upright.append(False)
            if cell == named.get(way):
                spots[way] = LabelPosition(*points[-1], "middle")
        starts[way] = points[0]
        paths[way] = curve([*points, end], [*upright, True])
    return Layout(layout.boxes, paths, starts, spots, layout.width, layout.height)


def _ports(
    boxes: Mapping[str, NodeBox], chains: Mapping[EdgeKey, list[tuple[Cell, int]]], x: Mapping[Cell, float]
) -> dict[EdgeKey, Coordinates]:
    """Where each forward edge ends at its target: side by side in the order in which they come."""
    coming: dict[str, list[tuple[float, EdgeKey]]] = {}
    for way, cells in chains.items():
        coming.setdefault(way[1], []).append((x[cells[-1][0]], way))
    ports = {}
    for node, ways in coming.items():
        box = boxes[node]
        step = min(PORT, (box.width - 24) / max(len(ways) - 1, 1))
        for i, (_, way) in enumerate(sorted(ways, key=lambda item: item[0])):
            ports[way] = (box.x + step * (i - (len(ways) - 1) / 2), box.top)
    return ports


def _with_lanes(layout: Layout, lanes: Sequence[Lane], labels: Mapping[EdgeKey, float]) -> Layout:
    """Adds the edges that go back."""
    paths, starts, spots = dict(layout.paths), dict(layout.starts), dict(layout.labels)
    for lane in lanes:
        source, target = (layout.boxes[node] for node in lane.way)
        leave, enter = lane.ends
        points: list[Coordinates] = [(lane.x, leave), (lane.x, enter)]
        if lane.beside[0]:
            points.insert(0, (source.x + lane.side * source.width / 2, leave))
        else:
            points[:0] = [(source.x, source.bottom), (source.x, leave)]
        if lane.beside[1]:
            points.append((target.x + lane.side * target.width / 2, enter))
        else:
            at = target.x + lane.side * (target.width / 2 - 12)
            points += [(at, enter), (at, target.top)]
        paths[lane.way] = angular(points)
        starts[lane.way] = points[0]
        if lane.way in labels:
            anchor = "start" if lane.side > 0 else "end"
            spots[lane.way] = LabelPosition(lane.x + 7 * lane.side, (leave + enter) / 2, anchor)
    return Layout(layout.boxes, paths, starts, spots, layout.width, layout.height)
