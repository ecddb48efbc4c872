"""Pictures of a run over time: `draw_run` has one lane for each branch, `Lanes` one for each field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from string import ascii_lowercase, ascii_uppercase
from typing import NamedTuple

from dspyer.display.run_rows import DisplayRow, leaves_of, outcome, row_label, write_text, written
from dspyer.display.svg import SMALL, document, draw_text, escape, fmt, shorten, text_width
from dspyer.events import BranchPath, Commit
from dspyer.patch import update_size
from dspyer.scheduler.run_state import path_text
from dspyer.views import label

MARGIN = 30.0
TOP = 46.0  # from the upper edge to the first lane: room for the names above it
GAP = 18.0  # between two steps
BEND = 46.0  # the same where lines change lanes
DOT = 10.0
LABEL_LIMIT = 24  # characters of what a commit wrote
LANES = ((12, 80.0), (40, 34.0))  # (number of lanes up to which it holds, pixels between two); more are NARROW
NARROW = 12.0

_DOTS = ("module", "map", "join", "subgraph")  # classes with the colours of lane0 to lane3


@dataclass(frozen=True, slots=True)
class _Plan:
    """The layout of a picture.

    Attributes:
        x: the middle of each step.
        half: half of the width of each step; lines change lanes between the steps.
        y: the lane of each branch.
        named: whether there is room for names.
        detailed: whether there is room for what was written.
    """

    x: Mapping[int, float]
    half: Mapping[int, float]
    y: Mapping[BranchPath, float]
    named: bool
    detailed: bool

    def after(self, step: int) -> float:
        """The x at which lines that fork after a step leave its lane."""
        return self.x[step] + self.half[step]

    def before(self, step: int) -> float:
        """The x at which lines that join at a step leave their own lanes."""
        return self.x[step] - self.half[step] - BEND


def draw_run(rows: Sequence[DisplayRow], title: str) -> str:
    """A run as a self-contained SVG document; `title` describes it for screen readers."""
    lanes = leaves_of(rows)
    count = 1 + max(last for _, last in lanes.values())
    gap = next((pixels for most, pixels in LANES if count <= most), NARROW)
    named, detailed = gap > NARROW, gap == LANES[0][1]
    y = {path: TOP + gap * (first + last) / 2 for path, (first, last) in lanes.items()}
    x, half = _columns(rows, named, detailed)
    plan = _Plan(x, half, y, named, detailed)
    steps = {row.commit.id: row for row in rows if row.commit}
    parts = [part for row in rows for part in _lines(row, plan, steps)]
    parts += [part for row in rows for part in _children(row, plan)]
    end = max((plan.after(step) for step in x), default=0.0)
    final = rows[-1] if rows else None
    if final and final.commit and final.commit.route == ("END",):
        at = y[final.branch]
        parts.append(f'<path d="M{fmt(x[final.step])} {fmt(at)} H{fmt(end + 24)}" class="line" {_TIP}/>')
        parts.append(draw_text(end + 30, at, "END", anchor="start"))
        end += 30 + text_width("END")
    parts += [part for row in rows for part in _dot(row, plan)]
    return document(title, end + MARGIN, TOP + gap * (count - 1) + TOP, parts)


_TIP = 'marker-end="url(#dspyer-tip)"'


def _columns(rows: Sequence[DisplayRow], named: bool, detailed: bool) -> tuple[dict[int, float], dict[int, float]]:
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
    at = MARGIN
    for step in range(max(half, default=-1) + 1):
        if step:
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
        source = steps[parent]
        at, lane = plan.y[source.branch], plan.y[branch]
        begin, end = plan.x[source.step], x
        if branch != source.branch:
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
        return [(shorten(type(row.error).__name__, LABEL_LIMIT), "alarm")]
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
        facts.append(f"{type(row.error).__name__}: {shorten(str(row.error), 200)}")
    return "; ".join(" ".join(fact.split()) for fact in facts)


# --- fields over time

WIDE = 80  # commits in one block of the terminal
LANES_MARGIN = 24.0
LANE = 40.0  # between two fields
STEP = 26.0  # between two commits
LANES_TOP = 52.0
HUES = ("module", "map", "join", "subgraph", "interrupt", "function")


class FieldWrite(NamedTuple):
    """One write to a field.

    Attributes:
        field: the field.
        author: the node; `"START"` for the inputs and the defaults.
        commit: the id of the commit.
        text: what was written, in short.
        size: bytes of its JSON form.
    """

    field: str
    author: str
    commit: str
    text: str
    size: int


class Lanes:
    """The fields of a run over time: as text one line per field with a letter for each write, then totals.

    A notebook shows it as a picture whose dots grow with the size of the writes.

    Attributes:
        commits: the commits, in order.
        fields: the fields that they wrote, in the order of the first writes.
        authors: the nodes that wrote, in the order of the first writes.
        writes: each write, in the order of the commits.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
        >>> print(graph.compile().run({"n": 1}).lanes())
           0
        n  Sa  2 x, 2 bytes, last: 2
        <BLANKLINE>
        S START, a add
    """

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.commits = tuple(commits)
        self.fields = tuple(dict.fromkeys(field for commit in self.commits for field in commit.patch))
        writers = [commit.node for commit in self.commits if commit.patch]
        self.authors = tuple(dict.fromkeys(writers))
        self.writes = tuple(
            [
                FieldWrite(field, commit.node, commit.id, shorten(write_text(update), 40), update_size(update))
                for commit in self.commits
                for field, update in commit.patch.items()
            ]
        )

    def __str__(self) -> str:
        letters = _letters(self.authors)
        width = max([len(shorten(label(field), 24)) for field in self.fields], default=0) + 2
        sums = self._sums()
        blocks = []
        for start in range(0, max(len(self.commits), 1), WIDE):
            block = self.commits[start : start + WIDE]
            ruler = "".join(str(place).ljust(10) for place in range(start, start + len(block), 10))
            lines = [" " * width + ruler[: max(len(block), len(str(start)))].rstrip()]
            for field in self.fields:
                marks = "".join(letters[commit.node] if field in commit.patch else "." for commit in block)
                total = f"  {sums[field]}" if start + WIDE >= len(self.commits) else ""
                lines.append(shorten(label(field), 24).ljust(width) + marks + total)
            blocks.append("\n".join(lines))
        legend = ", ".join(f"{letter} {author}" for author, letter in letters.items())
        return "\n\n".join([*blocks, legend])

    __repr__ = __str__

    def _sums(self) -> dict[str, str]:
        """By field, the number of writes, their bytes, and the last one."""
        counts = dict.fromkeys(self.fields, 0)
        sizes = dict.fromkeys(self.fields, 0)
        last = dict.fromkeys(self.fields, "")
        for one in self.writes:
            counts[one.field] += 1
            sizes[one.field] += one.size
            last[one.field] = one.text
        return {field: f"{counts[field]} x, {sizes[field]:,} bytes, last: {last[field]}" for field in self.fields}

    def to_svg(self) -> str:
        """The lanes as a picture: a self-contained SVG document.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
            >>> graph.compile().run({"n": 1}).lanes().to_svg()[:4]
            '<svg'
        """
        hues = {author: HUES[place % len(HUES)] for place, author in enumerate(self.authors)}
        left = LANES_MARGIN + max([text_width(shorten(field, 24)) for field in self.fields], default=0.0) + 20
        right = left + STEP * max(len(self.commits) - 1, 0)
        parts = self._legend(left, hues)
        found = {(one.field, one.commit): one for one in self.writes}
        for row, field in enumerate(self.fields):
            y = LANES_TOP + LANE * row
            parts.append(draw_text(LANES_MARGIN, y, shorten(field, 24), anchor="start"))
            parts.append(f'<path d="M{fmt(left)} {fmt(y)} H{fmt(right)}" class="line"/>')
            for place, commit in enumerate(self.commits):
                if field in commit.patch:
                    one = found[field, commit.id]
                    what = f"{commit.node} wrote {field} (commit {commit.id}): {one.text}, {one.size:,} bytes"
                    title, x, r = escape(what), left + STEP * place, min(11.0, 5.0 + log10(max(one.size, 1)))
                    dot = f'<circle cx="{fmt(x)}" cy="{fmt(y)}" r="{fmt(r)}" class="{hues[commit.node]} frame"/>'
                    parts.append(f"<g><title>{title}</title>{dot}</g>")
        height = LANES_TOP + LANE * max(len(self.fields) - 1, 0) + LANE
        legend = left + sum([text_width(author) + 34 for author in self.authors])
        return document("fields over time", max(right, legend) + LANES_MARGIN, height, parts)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    @staticmethod
    def _legend(x: float, hues: Mapping[str, str]) -> list[str]:
        parts = []
        for author, hue in hues.items():
            parts.append(f'<circle cx="{fmt(x)}" cy="22" r="6" class="{hue} frame"/>')
            parts.append(draw_text(x + 12, 22, author, anchor="start"))
            x += text_width(author) + 34
        return parts


def _letters(authors: Sequence[str]) -> dict[str, str]:
    """A letter for each author: the first one of its name that is free, then any free one, then `*`."""
    found: dict[str, str] = {}
    for author in authors:
        own = [letter for letter in author if letter.isalnum()]
        wanted = (*own, *ascii_lowercase, *ascii_uppercase)
        found[author] = next((letter for letter in wanted if letter not in found.values()), "*")
    return found
