"""Where the parts of a drawn graph go: rows from the top to the bottom, few crossings, straight long edges.

The method is that of Sugiyama, Tagawa and Toda ("Methods for Visual Understanding of Hierarchical System Structures",
IEEE Trans. SMC 1981): a node's row is its longest way from the start; an edge over several rows passes through an empty
*cell* in each; rows are ordered by the barycentre of their neighbours; then each cell moves to the mean of its
neighbours as far as its row allows. Odd rows hold the labels of edges, so that these take part in all of it and never
cover each other.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

EdgeKey = tuple[str, str]  # an edge by source and target
Cell = str | tuple[str, str, int]  # a node, or the place where an edge passes a row

GAP = 34.0  # between neighbours in a row
EDGE_GAP = 22.0  # the same where one of them is an edge that passes
ROW_GAP = 21.0  # between rows
SWEEPS = 8
ROUNDS = 160


class NodeBox(NamedTuple):
    """A rectangle by its middle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> float:
        """The x of the left side."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """The x of the right side."""
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        """The y of the upper side."""
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        """The y of the lower side."""
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Grid:
    """A graph in rows.

    Attributes:
        rows: the cells of each row from left to right.
        above: the neighbours of each cell in the row above.
        below: the same in the row below.
    """

    rows: tuple[tuple[Cell, ...], ...]
    above: Mapping[Cell, Sequence[Cell]]
    below: Mapping[Cell, Sequence[Cell]]

    def row_of(self, node: str) -> int:
        """The number of the row that holds a node."""
        return next(number for number, row in enumerate(self.rows) if node in row)


def arrange(nodes: Sequence[str], ways: Sequence[EdgeKey]) -> Grid:
    """Puts nodes and edges into rows and orders these.

    Args:
        nodes: the nodes in the order of declaration, the start first; the end, if there is one, last.
        ways: the edges, none of which goes back, in the order of declaration.
    """
    rank = _ranks(nodes, ways)
    if all(source != nodes[-1] for source, _ in ways):
        rank[nodes[-1]] = max(rank.values())
    above: dict[Cell, list[Cell]] = {node: [] for node in nodes}
    below: dict[Cell, list[Cell]] = {node: [] for node in nodes}
    level: dict[Cell, int] = {node: 2 * rank[node] for node in nodes}
    for source, target in ways:
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


def _ranks(nodes: Sequence[str], ways: Sequence[EdgeKey]) -> dict[str, int]:
    """The longest way to each node."""
    rank = dict.fromkeys(nodes, 0)
    missing = {node: sum(1 for _, target in ways if target == node) for node in nodes}
    ready = [node for node in nodes if not missing[node]]
    for node in ready:
        for source, target in ways:
            if source == node:
                rank[target] = max(rank[target], rank[node] + 1)
                missing[target] -= 1
                if not missing[target]:
                    ready.append(target)
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
    """Orders the rows by barycentre, down and up again. Another order is taken only if fewer edges cross."""
    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        numbers = range(1, len(rows)) if down else range(len(rows) - 2, -1, -1)
        rows = [list(row) for row in rows]
        for number in numbers:
            fixed = {cell: i for i, cell in enumerate(rows[number - 1 if down else number + 1])}
            centre: dict[Cell, float] = {}
            for i, cell in enumerate(rows[number]):
                places = [fixed[other] for other in (above if down else below).get(cell, ())]
                centre[cell] = sum(places) / len(places) if places else float(i)
            rows[number].sort(key=centre.__getitem__)
        crossings = _crossings(rows, below)
        if crossings < fewest:
            best, fewest = rows, crossings
    return tuple(tuple(row) for row in best)


def _crossings(rows: Sequence[Sequence[Cell]], below: Mapping[Cell, Sequence[Cell]]) -> int:
    count = 0
    for row, following in pairwise(rows):
        place = {cell: i for i, cell in enumerate(following)}
        passed: list[int] = []
        for cell in row:
            ends = sorted(place[other] for other in below.get(cell, ()))
            count += sum(len(passed) - bisect_right(passed, end) for end in ends)
            for end in ends:
                insort(passed, end)
    return count


def across(grid: Grid, widths: Mapping[Cell, float]) -> dict[Cell, float]:
    """The middle of each cell from left to right: near the mean of its neighbours, without overlap.

    Cells that follow one another without a fork or join move as one, so that chains and long edges come out straight.

    Args:
        grid: the rows.
        widths: the width of each cell; 0 for an edge without a label.
    """
    x: dict[Cell, float] = {}
    for row in grid.rows:
        at = 0.0
        for i, cell in enumerate(row):
            at += _distance(row[i - 1], cell, widths) if i else 0.0
            x[cell] = at
        for cell in row:
            x[cell] -= at / 2
    pulls = {cell: _pulls(grid, cell) for row in grid.rows for cell in row}
    for sweep in range(ROUNDS):
        for row in grid.rows if sweep % 2 == 0 else reversed(grid.rows):
            weights = [sum(pulls[cell].values()) for cell in row]
            wanted = [sum(x[other] * pull for other, pull in pulls[cell].items()) for cell in row]
            wanted = [total / weight for total, weight in zip(wanted, weights, strict=True)]
            x.update(zip(row, spread(wanted, _gaps(row, widths), weights), strict=True))
    chains = {cell: chain for chain in _chains(grid) for cell in chain}
    for _ in range(5 * SWEEPS):
        for row in grid.rows:
            wanted = [sum(x[other] for other in chains[cell]) / len(chains[cell]) for cell in row]
            x.update(zip(row, spread(wanted, _gaps(row, widths), [len(chains[cell]) for cell in row]), strict=True))
    return x


def _pulls(grid: Grid, cell: Cell) -> dict[Cell, float]:
    """How much each neighbour of a cell pulls it, and it the neighbour: less the more edges one of them has there."""
    upper, lower = grid.above.get(cell, ()), grid.below.get(cell, ())
    pulls = {other: 1 / max(len(upper), len(grid.below[other])) for other in upper}
    return pulls | {other: 1 / max(len(lower), len(grid.above[other])) for other in lower}


def _gaps(row: Sequence[Cell], widths: Mapping[Cell, float]) -> list[float]:
    return [_distance(left, right, widths) for left, right in pairwise(row)]


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
    """The places nearest to the wanted ones (least squares) that keep the order and the gaps.

    Places that want to be too near form a block that moves as one: pooled adjacent violators (Ayer et al. 1955).

    Example:
        >>> spread([0.0, 0.0, 9.0], [4.0, 4.0], [1.0, 1.0, 1.0])
        [-2.0, 2.0, 9.0]
    """
    offset = [0.0]
    for gap in gaps:
        offset.append(offset[-1] + gap)
    blocks: list[tuple[float, float, int]] = []  # (where its first place would be without offset, weight, places)
    for i, place in enumerate(wanted):
        mean, weight, size = place - offset[i], weights[i], 1
        while blocks and blocks[-1][0] > mean:
            other, more, places = blocks.pop()
            mean = (mean * weight + other * more) / (weight + more)
            weight, size = weight + more, size + places
        blocks.append((mean, weight, size))
    flat = [mean for mean, _, size in blocks for _ in range(size)]
    return [mean + shift for mean, shift in zip(flat, offset, strict=True)]
