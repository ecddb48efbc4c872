"""A run as a picture by steps: one lane for each branch.

A picture that would be too wide is drawn in bands, one below the other, as a text is in lines. A band ends where a
single line leads on, so that no fork is torn apart. Of more than `DRAWN` rows the first and the last are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from dspyer.display.run_rows import DisplayRow, leaves_of, outcome, row_label, written
from dspyer.display.svg import SMALL, document, draw_text, escape, fmt, shorten, text_width
from dspyer.events import BranchPath
from dspyer.ids import path_text

MARGIN = 30.0
TOP = 46.0  # from the upper edge to the first lane: room for the names above it
GAP = 18.0  # between two steps
BEND = 46.0  # the same where lines change lanes
DOT = 10.0
LABEL_LIMIT = 24  # characters of what a commit wrote
LANES = ((12, 80.0), (40, 34.0))  # (number of lanes up to which it holds, pixels between two); more are NARROW
NARROW = 12.0

DRAWN = 500  # rows, half of them the first and half the last ones
WRAP = 1600.0  # pixels after which a band ends
EDGE = 22.0  # of lines that come from another band, or lead to one

_DOTS = ("module", "map", "join", "subgraph")  # classes with the colours of lane0 to lane3


@dataclass(frozen=True, slots=True)
class _Plan:
    """The layout of a band.

    Attributes:
        x: the middle of each step.
        half: half of the width of each step; lines change lanes between the steps.
        y: the lane of each branch.
        named: whether there is room for names.
        detailed: whether there is room for what was written.
        left: where lines from earlier bands begin.
        right: where lines to later bands end.
    """

    x: Mapping[int, float]
    half: Mapping[int, float]
    y: Mapping[BranchPath, float]
    named: bool
    detailed: bool
    left: float
    right: float

    def after(self, step: int) -> float:
        """The x at which lines that fork after a step leave its lane."""
        return self.x[step] + self.half[step]

    def before(self, step: int) -> float:
        """The x at which lines that join at a step leave their own lanes."""
        return self.x[step] - self.half[step] - BEND


def draw_run(rows: Sequence[DisplayRow], title: str) -> str:
    """A run as a self-contained SVG document; `title` describes it for screen readers.

    Of more than 500 commits it has the first and the last ones, and says how many are between.
    """
    halves = [rows] if len(rows) <= DRAWN else [rows[: DRAWN // 2], rows[-(DRAWN // 2) :]]
    hidden = len(rows) - sum(map(len, halves))
    after: dict[
        str, list[tuple[BranchPath, DisplayRow]]
    ] = {}  # the rows that build on a commit, and along which branch
    for row in rows:
        for branch, parent in zip(row.came, row.parents, strict=True):
            after.setdefault(parent, []).append((branch, row))
    parts: list[str] = []
    width = height = 0.0
    for number, half in enumerate(halves):
        if number:
            text = f"{hidden:,} {'commit' if hidden == 1 else 'commits'} between are not drawn"
            parts.append(draw_text(MARGIN, height, f"… {text} …", "quiet", "start"))
            title = f"{title}, {text}"
            height += GAP
        for band in _bands(half, rows):
            drawn, wide, high = _band(band, after, height, final=band[-1:] == rows[-1:])
            parts += drawn
            width, height = max(width, wide), height + high
    return document(title, width, max(height, 2 * TOP), parts)


def _bands(rows: Sequence[DisplayRow], whole: Sequence[DisplayRow]) -> list[list[DisplayRow]]:
    """The rows in bands: a new one begins before the last step at which that is possible, and needed."""
    x, half = _columns(rows, named=True, detailed=True)
    found: list[list[DisplayRow]] = [[]]
    breaks = _breaks(whole) if max(x.values(), default=0.0) > WRAP else set()
    starts: list[int] = []
    begin = candidate = min(x, default=0)
    for step in sorted(x):
        if step in breaks:
            candidate = step
        if x[step] + half[step] - x[begin] > WRAP and candidate > begin:
            starts.append(candidate)
            begin = candidate
    for row in rows:
        if starts and row.step >= starts[0]:
            starts.pop(0)
            found.append([])
        found[-1].append(row)
    return found


def _breaks(rows: Sequence[DisplayRow]) -> set[int]:
    """The steps before which a single line leads on, which stays in its lane."""
    lines: Counter[int] = Counter()  # by step, how many more lines pass its left side than that of the step before
    straight: Counter[int] = Counter()
    steps = {row.commit.id: row for row in rows if row.commit}
    for row in rows:
        for branch, parent in zip(row.came, row.parents, strict=True):
            source = steps[parent]
            level = branch == source.branch == row.branch and len(row.came) == 1 and not source.children
            for counts in (lines, straight) if level else (lines,):
                counts[source.step + 1] += 1
                counts[row.step + 1] -= 1
    found: set[int] = set()
    passing = level_ones = 0
    for step in range(max((row.step for row in rows), default=-1) + 1):
        passing, level_ones = passing + lines[step], level_ones + straight[step]
        if passing == level_ones == 1:
            found.add(step)
    return found


def _band(
    rows: Sequence[DisplayRow], after: Mapping[str, Sequence[tuple[BranchPath, DisplayRow]]], top: float, final: bool
) -> tuple[list[str], float, float]:
    """The elements of a band, with its width and height; `final` is the band with the last row."""
    lanes = leaves_of(rows)
    count = 1 + max(last for _, last in lanes.values())
    gap = next((pixels for most, pixels in LANES if count <= most), NARROW)
    named, detailed = gap > NARROW, gap == LANES[0][1]
    y = {path: top + TOP + gap * (first + last) / 2 for path, (first, last) in lanes.items()}
    steps = {row.commit.id: row for row in rows if row.commit}
    first, last_step = min((row.step for row in rows), default=0), max((row.step for row in rows), default=0)
    edge = EDGE if any(parent not in steps for row in rows for parent in row.parents) else 0.0
    joins_first = any(len(row.came) > 1 for row in rows if row.step == first)
    forks_last = any(row.children for row in rows if row.step == last_step)
    x, half = _columns(rows, named, detailed, MARGIN + edge + (BEND if joins_first else 0.0))
    end = max((x[step] + half[step] for step in x), default=0.0)
    plan = _Plan(x, half, y, named, detailed, MARGIN - 8, end + (BEND if forks_last else 0.0) + EDGE)
    here = {id(row) for row in rows}
    parts = [part for row in rows for part in _lines(row, plan, steps)]
    parts += [part for row in rows for part in _leading_on(row, plan, after, here)]
    parts += [part for row in rows for part in _children(row, plan)]
    last = rows[-1] if rows else None
    if final and last is not None and last.commit and last.commit.route == ("END",):
        at = y[last.branch]
        parts.append(f'<path d="M{fmt(x[last.step])} {fmt(at)} H{fmt(end + 24)}" class="line" {_TIP}/>')
        parts.append(draw_text(end + 30, at, "END", anchor="start"))
        end += 30 + text_width("END")
    parts += [part for row in rows for part in _dot(row, plan)]
    return parts, max(end, plan.right if not final else end) + MARGIN, TOP + gap * (count - 1) + TOP


_TIP = 'marker-end="url(#dspyer-tip)"'


def _columns(
    rows: Sequence[DisplayRow], named: bool, detailed: bool, left: float = MARGIN
) -> tuple[dict[int, float], dict[int, float]]:
    """The middle of each step and half of its width, which depends on the texts there."""
    half: dict[int, float] = {}
    bends: set[int] = set()  # steps before which lines change lanes
    for row in rows:
        words = [text_width(_name(row))] if named else []
        if detailed:
            words += [text_width(line, SMALL) for line, _ in _below(row)]
        half[row.step] = max([half.get(row.step, DOT), *(width / 2 for width in words)])
        bends |= {row.step + 1} if row.children else set()
        bends |= {row.step} if len(row.came) > 1 else set()
    x: dict[int, float] = {}
    at = left
    for step in sorted(half):
        if x:
            at += BEND if step in bends else GAP
        x[step] = at + half[step]
        at += 2 * half[step]
    return x, half


def _hue(branch: BranchPath) -> int | None:
    """The colour of a branch; None for the trunk."""
    return (branch[-1] + len(branch) - 1) % len(_DOTS) if branch else None


def _line(branch: BranchPath) -> str:
    hue = _hue(branch)
    return "line" if hue is None else f"line lane{hue}"


def _lines(row: DisplayRow, plan: _Plan, steps: Mapping[str, DisplayRow]) -> list[str]:
    """The lines to a row: from each parent into the lane of the branch, along it, and at a join over to its lane."""
    parts = []
    x, y = plan.x[row.step], plan.y[row.branch]
    for branch, parent in zip(row.came, row.parents, strict=True):
        source = steps.get(parent)
        lane, end = plan.y[branch], x
        at, begin = (lane, plan.left) if source is None else (plan.y[source.branch], plan.x[source.step])
        if source is not None and branch != source.branch:
            parts.append(_level(begin, plan.after(source.step), at, source.branch))
            begin = plan.after(source.step)
        if branch != row.branch:
            end = plan.before(row.step) + BEND
            parts.append(_level(end, x, y, row.branch))
        path = f"M{fmt(begin)} {fmt(at)}"
        if at != lane:
            path += _over((begin, at), lane)
        if lane != y:
            path += _over((plan.before(row.step), lane), y)
        parts.append(f'<path d="{path} H{fmt(end)}" class="{_line(branch)}"/>')
    return parts


def _leading_on(
    row: DisplayRow,
    plan: _Plan,
    after: Mapping[str, Sequence[tuple[BranchPath, DisplayRow]]],
    here: Container[int],
) -> list[str]:
    """The lines from a row to the right edge: what builds on it is in another band, or not drawn."""
    if row.commit is None:
        return []
    parts = []
    for branch, target in after.get(row.commit.id, ()):
        if id(target) in here:
            continue
        at, lane, begin = plan.y[row.branch], plan.y[branch], plan.x[row.step]
        path = f"M{fmt(begin)} {fmt(at)}" + (_over((plan.after(row.step), at), lane) if at != lane else "")
        parts.append(f'<path d="{path} H{fmt(plan.right)}" class="{_line(branch)}"/>')
    return parts


def _level(begin: float, end: float, y: float, branch: BranchPath) -> str:
    return f'<path d="M{fmt(begin)} {fmt(y)} H{fmt(end)}" class="{_line(branch)}"/>'


def _over(start: tuple[float, float], lane: float) -> str:
    """A path along a lane to a point, and from there in a curve to another lane."""
    x, y = start
    numbers = (x + BEND / 2, y, x + BEND / 2, lane, x + BEND, lane)
    return f" H{fmt(x)} C{' '.join(map(fmt, numbers))}"


def _children(row: DisplayRow, plan: _Plan) -> list[str]:
    """The names of the branches of a fork, at the beginning of their lanes and outside of the curves."""
    if not plan.detailed:
        return []
    x = plan.after(row.step) + BEND - 3
    lane = plan.y[row.branch]
    sides = {path: 10 if plan.y[path] > lane else -10 for path in row.children}
    return [draw_text(x, plan.y[path] + side, path_text(path), "quiet", "end") for path, side in sides.items()]


def _name(row: DisplayRow) -> str:
    return shorten(row.node, LABEL_LIMIT + 8)


def _below(row: DisplayRow) -> list[tuple[str, str]]:
    """The lines under a dot, each with its CSS class."""
    if row.conflicts:
        paths = ", ".join(".".join(map(str, conflict.path)) for conflict in row.conflicts)
        return [(shorten(f"conflict: {paths}", LABEL_LIMIT + 8), "alarm" if row.error else "warning")]
    if row.error:
        return [(shorten(row.error.type, LABEL_LIMIT), "alarm")]
    if row.failure:
        return [(shorten(row.failure.type, LABEL_LIMIT), "alarm")]
    if row.questions:
        return [(shorten(question.text, LABEL_LIMIT), "quiet") for question in row.questions[:2]]
    if row.commit is None:
        return [("not started", "quiet")]
    lines = written(row.commit)
    text = [shorten(lines[0], LABEL_LIMIT)] if lines else []
    if len(lines) > 1:
        text.append(shorten(lines[1], LABEL_LIMIT) if len(lines) == 2 else f"and {len(lines) - 1} more")
    again = [(f"attempt {row.commit.attempt}", "warning")] if row.commit.attempt > 1 else []
    return [*again, *[(line, "quiet") for line in text]][:2]


def _dot(row: DisplayRow, plan: _Plan) -> list[str]:
    x, y = plan.x[row.step], plan.y[row.branch]
    hue = _hue(row.branch)
    kind = "function" if hue is None else _DOTS[hue]
    weight = "frame"
    if row.error or row.failure or row.conflicts:
        kind, weight = "failed" if row.error or row.failure else "warned", "head"
    elif row.questions:
        kind, weight = "interrupt", "head"
    elif row.commit is None:
        weight = "frame back"
    radius = DOT if plan.named else 4.0
    parts = [f"<title>{escape(_tooltip(row))}</title>"]
    parts.append(f'<circle cx="{fmt(x)}" cy="{fmt(y)}" r="{fmt(radius)}" class="{kind} {weight}"/>')
    if plan.named:
        version = row.commit.version if row.commit else None
        mark = "✗" if row.error else "?" if row.questions else "" if version is None else str(version)
        if mark:
            parts.append(draw_text(x, y, mark, "alarm" if row.error else "quiet"))
        parts.append(draw_text(x, y - DOT - 10, _name(row)))
    if plan.detailed:
        parts += [draw_text(x, y + DOT + 10 + 14 * i, words, kind) for i, (words, kind) in enumerate(_below(row))]
    return [f"<g>{''.join(parts)}</g>"]


def _tooltip(row: DisplayRow) -> str:
    facts = [f"{row_label(row.commit)} {row.node}" if row.commit else f"{row.node}, {row.outcome.removeprefix('was ')}"]
    facts.append(f"branch {path_text(row.branch)}, step {row.step}")
    facts += [line for conflict in row.conflicts for line in outcome(conflict)]
    if row.attempts:
        facts.append(row.attempts)
    if row.failure:
        facts.append(f"failed: {row.failure.type}: {shorten(row.failure.message, 200)}")
    elif row.commit:
        facts += written(row.commit)
    elif row.questions:
        facts += [shorten(f"{question.key}: {question.text}", 200) for question in row.questions]
    elif row.error:
        facts.append(f"{row.error.type}: {shorten(row.error.message, 200)}")
    return "; ".join(" ".join(fact.split()) for fact in facts)
