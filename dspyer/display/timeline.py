"""A run by time: when each node worked, which branches waited at a join and for whom, what was attempted or failed.

What is known of time are the commits: when a node began, and how long it took, all its attempts included. A node that
failed, or asked a question, has no commit: it is drawn from the end of what came before it to the end of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import floor, log10
from typing import Any, NamedTuple

from dspyer.display.amounts import duration_text, elapsed_text
from dspyer.display.run_rows import DisplayRow, leaves_of
from dspyer.display.svg import SMALL, document, draw_text, escape, fmt, shorten, text_width
from dspyer.events import BranchPath
from dspyer.ids import path_text
from dspyer.record_codec import encode

DRAWN = 500
"""Bars that a picture has at most: the first and the last half of them."""


class TimelineBar(NamedTuple):
    """One execution of a node.

    Attributes:
        id: id of the execution, which is that of its commit.
        node: name of the node.
        branch: path of its branch.
        lane: number of the lane in which it is drawn, from 0.
        start: seconds after the begin of the run.
        seconds: how long it took, all attempts and the pauses between them included.
        status: `"committed"`; `"handled"` if it failed and an error edge led on; `"failed"`; `"interrupted"` if it
            waits for an answer.
        attempts: how often the node was called, for this execution.
        visit: as in `Commit`; 0 if there is none.
        waited: seconds between the end of what it builds on and its start: it waited for a free slot, or a process.
        after: ids of the executions that it builds on, over joins: several after a join.
        failure: class of the exception and its text; of earlier attempts, too. Empty for none.
    """

    id: str
    node: str
    branch: BranchPath
    lane: int
    start: float
    seconds: float
    status: str = "committed"
    attempts: int = 1
    visit: int = 0
    waited: float = 0.0
    after: tuple[str, ...] = ()
    failure: str = ""

    @property
    def end(self) -> float:
        """When it ended, seconds after the begin of the run."""
        return self.start + self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return encode(self)


class TimelineWait(NamedTuple):
    """A branch that had arrived at a join, and waited there for another one.

    Attributes:
        node: name of the node at which the branches joined.
        branch: path of the branch that waited.
        lane: number of its lane.
        id: id of its last execution.
        waits_for: id of the execution that ended last, for which it waited.
        start: seconds after the begin of the run.
        seconds: how long it waited.
    """

    node: str
    branch: BranchPath
    lane: int
    id: str
    waits_for: str
    start: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return encode(self)


class TimelinePause(NamedTuple):
    """A long time in which no node ran, as between two processes: pictures cut it out."""

    start: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return encode(self)


class Timeline:
    """A run by time: one bar for each execution of a node, in the lane of its branch. A notebook shows the picture.

    As text it has one line for each execution, with a bar, and who waited for whom.

    Attributes:
        started: the begin of the run, wall clock, seconds since the epoch.
        seconds: from there to the end of the last node.
        bars: the executions, by start.
        waits: the branches that waited at joins, by start.
        pauses: long times in which no node ran.
        lanes: name of each lane: the path of its branch.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
        >>> timeline = graph.compile().run({"n": 1}).timeline()
        >>> [(bar.node, bar.lane, bar.status) for bar in timeline.bars]
        [('add', 0, 'committed')]
    """

    def __init__(self, rows: Sequence[DisplayRow], ended: float | None = None) -> None:
        """`ended` is when the run ended, wall clock; None for the end of its last commit."""
        commits = [row.commit for row in rows if row.commit is not None]
        self.started = min([commit.started for commit in commits], default=0.0)
        last = max([commit.ended for commit in commits], default=self.started)
        self._ended = max(last, ended or 0.0) - self.started
        bars, waits = _bars_and_waits(rows, self.started, self._ended)
        self.bars: tuple[TimelineBar, ...] = tuple(sorted(bars, key=lambda bar: (bar.start, bar.lane, bar.id)))
        self.waits: tuple[TimelineWait, ...] = tuple(sorted(waits, key=lambda wait: (wait.start, wait.lane, wait.id)))
        self.seconds = max([bar.end for bar in self.bars], default=0.0)
        self.pauses = _pauses(self.bars, self.waits)
        self.lanes = _lane_names(rows)

    def to_dict(self) -> dict[str, Any]:
        """The timeline as JSON: its attributes by name, times in seconds.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
            >>> list(graph.compile().run({"n": 1}).timeline().to_dict())
            ['started', 'seconds', 'lanes', 'bars', 'waits', 'pauses']
        """
        return {
            "started": self.started,
            "seconds": self.seconds,
            "lanes": list(self.lanes),
            "bars": [bar.to_dict() for bar in self.bars],
            "waits": [wait.to_dict() for wait in self.waits],
            "pauses": [pause.to_dict() for pause in self.pauses],
        }

    def to_svg(self) -> str:
        """The timeline as a picture: a self-contained SVG document.

        Of more than 500 executions it has the first and the last ones, and says how many are between.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
            >>> graph.compile().run({"n": 1}).timeline().to_svg()[:4]
            '<svg'
        """
        return _draw(self)

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __str__(self) -> str:
        return _as_text(self)

    __repr__ = __str__


# --- from rows to bars


def _bars_and_waits(
    rows: Sequence[DisplayRow], begin: float, end: float
) -> tuple[list[TimelineBar], list[TimelineWait]]:
    lanes = {path: first for path, (first, _) in leaves_of(rows).items()}
    ends: dict[str, float] = {}  # by commit; of a join, when its last branch had arrived
    # The executions that a commit stands for: of START none, of a join several.
    sources: dict[str, tuple[str, ...]] = {}
    bars, waits = [], []
    for row in rows:
        parents = [parent for parent in row.parents if parent in ends]
        after = tuple(dict.fromkeys(source for parent in parents for source in sources[parent]))
        ready = max([ends[parent] for parent in parents], default=0.0)
        commit = row.commit
        if commit is None:
            if row.error is not None or row.questions:
                status = "failed" if row.error is not None else "interrupted"
                bar = TimelineBar(row.execution, row.node, row.branch, lanes[row.branch], ready, max(0.0, end - ready))
                bars.append(bar._replace(status=status, after=after, failure=_text_of(row)))
            continue
        start, took = max(0.0, commit.started - begin), max(0.0, commit.duration)
        ends[commit.id], sources[commit.id] = start + took, (commit.id,)
        if row.node == "START":
            sources[commit.id] = ()
        elif row.node.startswith("join:"):
            sources[commit.id] = after
            waits += _waits(row, ends, lanes, max(start, ready))
        else:
            bar = TimelineBar(commit.id, row.node, row.branch, lanes[row.branch], start, took)
            status = "handled" if commit.failure is not None else "committed"
            waited = max(0.0, start - ready) if parents else 0.0
            bars.append(
                bar._replace(
                    status=status,
                    attempts=commit.attempt,
                    visit=commit.visit,
                    waited=waited,
                    after=after,
                    failure=_text_of(row),
                )
            )
    return bars, waits


def _text_of(row: DisplayRow) -> str:
    """What an execution, or an attempt before it, has raised; "" for nothing."""
    if row.error is not None:
        return shorten(str(row.error), 200)
    if row.failure is not None:
        return shorten(f"{row.failure.type}: {row.failure.message}", 200)
    return row.attempts


def _waits(
    row: DisplayRow, ends: Mapping[str, float], lanes: Mapping[BranchPath, int], joined: float
) -> list[TimelineWait]:
    """The branches of a join that were there before its last one."""
    here = [(branch, parent) for branch, parent in zip(row.came, row.parents, strict=True) if parent in ends]
    if not here:
        return []
    last = max(here, key=lambda one: ends[one[1]])[1]
    node = row.node.removeprefix("join:")
    return [
        TimelineWait(node, branch, lanes[branch], parent, last, ends[parent], joined - ends[parent])
        for branch, parent in here
        if parent != last and joined > ends[parent]
    ]


def _pauses(bars: Sequence[TimelineBar], waits: Sequence[TimelineWait]) -> tuple[TimelinePause, ...]:
    """The times without a node that are longer than a second, and than half of the time with one."""
    busy: list[tuple[float, float]] = []
    for start, end in sorted([(bar.start, bar.end) for bar in bars] + [(one.start, one.start) for one in waits]):
        if busy and start <= busy[-1][1]:
            busy[-1] = (busy[-1][0], max(busy[-1][1], end))
        else:
            busy.append((start, end))
    least = max(1.0, sum(end - start for start, end in busy) / 2)
    between = pairwise(busy)
    return tuple([TimelinePause(end, start - end) for (_, end), (start, _) in between if start - end > least])


def _lane_names(rows: Sequence[DisplayRow]) -> tuple[str, ...]:
    """The branch of each lane: the shortest path that is drawn there."""
    found: dict[int, BranchPath] = {}
    for path, (first, _) in sorted(leaves_of(rows).items(), key=lambda one: len(one[0])):
        found.setdefault(first, path)
    return tuple([path_text(found[lane]) for lane in sorted(found)])


# --- as text

WIDTH, NAMES = 60, 24  # characters of the bars, and of the longest name
LINES = 200  # executions that are listed: the first and the last half of them


def _executions(timeline: Timeline) -> str:
    count = len(timeline.bars)
    return f"{count:,} executions of nodes" if count != 1 else "1 execution of a node"


def _as_text(timeline: Timeline) -> str:
    axis = _Axis(timeline.seconds, [(one.start, one.seconds) for one in timeline.pauses], 1.0, WIDTH)
    waits: dict[str, list[TimelineWait]] = {}
    for wait in timeline.waits:
        waits.setdefault(wait.id, []).append(wait)
    names = {bar.id: shorten(bar.node, NAMES) for bar in timeline.bars}
    width = max(map(len, names.values()), default=0)
    lines = [f"{elapsed_text(timeline.seconds)}, {_executions(timeline)}"]
    for number, bar in enumerate(timeline.bars):
        if LINES // 2 <= number < len(timeline.bars) - LINES // 2:
            if number == LINES // 2:
                lines.append(f"... {len(timeline.bars) - 2 * (LINES // 2):,} more")
            continue
        first, last = floor(axis.x(bar.start)), floor(axis.x(bar.end))
        mark = {"failed": "✗", "handled": "✗", "interrupted": "?"}.get(bar.status, "█")
        drawn = " " * min(first, WIDTH - 1) + mark * max(1, last - first)
        facts = [duration_text(bar.seconds)]
        facts += [path_text(bar.branch)] if bar.branch else []
        facts += [f"attempt {bar.attempts}"] if bar.attempts > 1 else []
        facts += [f"{bar.status}"] if bar.status != "committed" else []
        for wait in waits.get(bar.id, ()):
            facts.append(f"waited {duration_text(wait.seconds)} for {names.get(wait.waits_for, wait.waits_for)}")
        lines.append(f"{names[bar.id].ljust(width)}  {drawn.ljust(WIDTH)}  {', '.join(facts)}")
    return "\n".join(lines)


# --- as a picture

PLOT = 900.0  # pixels of the axis
MARGIN = 24.0
TOP = 40.0
CUT = 30.0  # pixels of a pause
BAR = 16.0
LANES = ((16, 44.0), (60, 24.0))  # (number of lanes up to which it holds, pixels between two); more are NARROW
NARROW = 9.0
LEAST = 1.5  # pixels of the shortest bar
AFTER = 110.0  # pixels after the axis, for names
LABEL_LIMIT = 24
HUES = ("module", "map", "join", "subgraph", "interrupt", "function", "check")
TICKS = 9


class _Axis:
    """Places on an axis of a given length, on which each pause has the same length."""

    def __init__(self, total: float, pauses: Sequence[tuple[float, float]], cut: float, length: float) -> None:
        self.pauses = sorted(pauses)
        self._cut = min(cut, length / 4 / max(1, len(pauses)))
        busy = total - sum(took for _, took in pauses)
        self._scale = (length - self._cut * len(pauses)) / busy if busy > 0 else 0.0

    def x(self, at: float) -> float:
        """Where a time is."""
        place = 0.0
        for start, took in self.pauses:
            if at <= start:
                break
            inside = min(at - start, took)
            place += self._cut * (inside / took) - self._scale * inside
        return place + self._scale * at

    def ticks(self) -> list[float]:
        """Round times at which the axis is marked; none inside of a pause."""
        span = PLOT / self._scale if self._scale else 0.0
        if not span:
            return [0.0]
        step: float = 10.0 ** floor(log10(span / TICKS))
        step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= TICKS)
        found: list[float] = []
        at, count = 0.0, 0
        while self.x(at) <= PLOT + 0.1 and len(found) < 4 * TICKS:
            within = next(((start, took) for start, took in self.pauses if start < at < start + took), None)
            if within is None:
                found.append(at)
                count += 1
            else:  # the first round time after the pause
                count = floor((within[0] + within[1]) / step) + 1
            at = step * count
        return found


def _draw(timeline: Timeline) -> str:
    count = len(timeline.lanes)
    gap = next((pixels for most, pixels in LANES if count <= most), NARROW)
    named = gap > NARROW
    bars, hidden = _shown(timeline)
    pauses = [(pause.start, pause.seconds) for pause in timeline.pauses]
    if hidden is not None:
        begin, end = hidden
        pauses = [(start, took) for start, took in pauses if start + took <= begin or start >= end]
        pauses += [(begin, end - begin)]
    axis = _Axis(timeline.seconds, pauses, CUT, PLOT)
    left = MARGIN + (max([text_width(name, SMALL) for name in timeline.lanes], default=0.0) + 14 if named else 0.0)
    bottom = TOP + gap * max(count, 1)
    parts = []
    for at in axis.ticks():
        x = left + axis.x(at)
        parts.append(f'<path d="M{fmt(x)} {fmt(TOP - 10)} V{fmt(bottom)}" class="ground"/>')
        parts.append(draw_text(x, TOP - 20, elapsed_text(at), "quiet"))
    if named:
        middles = [TOP + gap * (lane + 0.5) for lane in range(count)]
        parts += [draw_text(MARGIN, y, name, "quiet", "start") for y, name in zip(middles, timeline.lanes, strict=True)]
    drawn = {bar.id for bar in bars}
    of_node = {bar.id: bar.node for bar in timeline.bars}
    for wait in timeline.waits:
        if wait.id in drawn:
            parts.append(_wait(wait, left, axis, gap, of_node.get(wait.waits_for, "")))
    hues = {node: HUES[place % len(HUES)] for place, node in enumerate(dict.fromkeys(of_node.values()))}
    rooms = _rooms(bars, axis) if named else {}
    for bar in bars:
        middle = TOP + gap * (bar.lane + 0.5)
        parts.append(_bar(bar, left, axis, middle, min(BAR, gap - 3), hues[bar.node], rooms.get(bar.id, 0.0)))
    for start, took in axis.pauses:
        between = len(timeline.bars) - len(bars) if hidden is not None and start == hidden[0] else 0
        parts += _pause(left + axis.x(start), left + axis.x(start + took), bottom, took, between)
    width = left + PLOT + (AFTER if named else 0.0) + MARGIN
    title = f"{_executions(timeline)} in {elapsed_text(timeline.seconds)}"
    return document(title, width, bottom + 20, parts)


def _shown(timeline: Timeline) -> tuple[Sequence[TimelineBar], tuple[float, float] | None]:
    """The bars that a picture has, and from when to when others were left out."""
    bars = timeline.bars
    if len(bars) <= DRAWN:
        return bars, None
    first, last = bars[: DRAWN // 2], bars[-(DRAWN // 2) :]
    begin, end = max(bar.end for bar in first), last[0].start
    if begin >= end:  # they overlap in time: what is left out began between these
        begin, end = first[-1].start, max(end, first[-1].start)
    return (*first, *last), (begin, end)


def _rooms(bars: Sequence[TimelineBar], axis: _Axis) -> dict[str, float]:
    """The pixels between each bar and the next one in its lane."""
    found: dict[str, float] = {}
    following: dict[int, float] = {}
    for bar in reversed(bars):
        end = max(axis.x(bar.end), axis.x(bar.start) + LEAST)
        found[bar.id] = following.get(bar.lane, PLOT + AFTER) - end
        following[bar.lane] = axis.x(bar.start)
    return found


def _bar(bar: TimelineBar, left: float, axis: _Axis, middle: float, tall: float, hue: str, room: float) -> str:
    """One execution: its colour is that of its node, or of its failure; a ring marks further attempts."""
    begin, end = left + axis.x(bar.start), left + axis.x(bar.end)
    wide = max(LEAST, end - begin)
    kind = {"failed": "failed frame back", "handled": "failed frame", "interrupted": "interrupt frame back"}.get(
        bar.status, f"{hue} frame"
    )
    y = fmt(middle - tall / 2)
    parts = [f"<title>{escape(_tooltip(bar))}</title>"]
    if bar.waited and axis.x(bar.start) - axis.x(bar.start - bar.waited) > LEAST:
        from_x = left + axis.x(bar.start - bar.waited)
        parts.append(f'<path d="M{fmt(from_x)} {fmt(middle)} H{fmt(begin)}" class="line back"/>')
    parts.append(
        f'<rect x="{fmt(begin)}" y="{y}" width="{fmt(wide)}" height="{fmt(tall)}" rx="{fmt(min(3, wide / 2))}" '
        f'class="{kind}"/>'
    )
    words = shorten(bar.node, LABEL_LIMIT)
    words += f" × {bar.attempts}" if bar.attempts > 1 else ""
    if room and text_width(words, SMALL) + 8 <= wide:
        parts.append(draw_text(begin + wide / 2, middle, words, "quiet"))
    elif text_width(words, SMALL) + 10 <= room:
        parts.append(draw_text(begin + wide + 5, middle, words, "quiet", "start"))
    if bar.attempts > 1:
        parts.append(f'<circle cx="{fmt(begin)}" cy="{y}" r="4" class="warned frame"/>')
    return f"<g>{''.join(parts)}</g>"


def _tooltip(bar: TimelineBar) -> str:
    facts = [f"{bar.node}, {bar.status}", f"branch {path_text(bar.branch)}"]
    facts.append(f"{duration_text(bar.seconds)}, from {elapsed_text(bar.start)}")
    facts += [f"started {duration_text(bar.waited)} after what it builds on"] if bar.waited > 0.001 else []
    facts += [f"attempt {bar.attempts}"] if bar.attempts > 1 else []
    facts += [bar.failure] if bar.failure else []
    return "; ".join(facts)


def _wait(wait: TimelineWait, left: float, axis: _Axis, gap: float, other: str) -> str:
    """A branch that waits: a dashed line from the end of its bar to the time of the join."""
    begin, end = left + axis.x(wait.start), left + axis.x(wait.start + wait.seconds)
    y = TOP + gap * (wait.lane + 0.5)
    meaning = f"branch {path_text(wait.branch)} waited {duration_text(wait.seconds)} before {wait.node} for {other}"
    path = f'<path d="M{fmt(begin)} {fmt(y)} H{fmt(end)}" class="line back"/>'
    path += f'<path d="M{fmt(end)} {fmt(y - 6)} V{fmt(y + 6)}" class="line"/>'
    return f"<g><title>{escape(meaning)}</title>{path}</g>"


def _pause(begin: float, end: float, bottom: float, took: float, between: int) -> list[str]:
    """A part that the axis leaves out, with how long it is and how many executions it had."""
    words = elapsed_text(took)
    words = f"{between:,} more in {words}" if between else f"{words} later"
    x, width = fmt(begin), fmt(max(2.0, end - begin))
    height = fmt(bottom - TOP + 10)
    box = f'<rect x="{x}" y="{fmt(TOP - 10)}" width="{width}" height="{height}" class="mask"/>'
    lines = [f'<path d="M{fmt(at)} {fmt(TOP - 10)} V{fmt(bottom)}" class="line back"/>' for at in (begin, end)]
    return [box, *lines, draw_text((begin + end) / 2, bottom + 4, words, "quiet")]
