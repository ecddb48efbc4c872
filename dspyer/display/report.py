"""A run in words, for a terminal: `run.report()`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from dspyer.display.run_rows import SHOWN, DisplayRow, leaves_of, outcome, row_label, seconds, written
from dspyer.events import BranchPath, Committed, ItemFinished, NodeStarted, RunStarted
from dspyer.scheduler.run_state import path_text

if TYPE_CHECKING:
    from dspyer.runtime.run import Run

WIDTH = 100  # characters of a line
LANES = 12  # branches beside each other; the others share the last lane
ROWS = 400  # commits that are shown: the first and the last ones


_MARKS = {"failed": "✗", "waits for an answer": "?", "was not started": "○"}


def describe(run: Run, rows: Sequence[DisplayRow]) -> str:
    """A run in words: the commits in canonical order, branches beside each other, forks and joins drawn.

    Args:
        run: the run.
        rows: its commits and where it ended.

    Returns:
        A text of at most 100 columns.
    """
    lanes = {path: min(first, LANES - 1) for path, (first, _) in leaves_of(rows).items()}
    names = {row.commit.id: f"{row_label(row.commit)} {row.commit.node}" for row in rows if row.commit}
    lines = [*wrap(_summary(run), WIDTH), ""]
    live: dict[BranchPath, int] = {}
    for number, row in enumerate(rows):
        if not ROWS // 2 <= number < len(rows) - ROWS // 2:
            lines += _part(row, live, lanes, names, number == len(rows) - 1)
        elif number == ROWS // 2:
            lines.append(f"... {len(rows) - 2 * (ROWS // 2)} more: run.commits has them all")
        for path in row.came:
            live.pop(path, None)
        if row.commit:
            live.update((path, lanes[path]) for path in row.children or (row.branch,))
    if run.error is not None:
        lines += ["", *(line for text in _problem(run.error) for line in wrap(text, WIDTH, subsequent_indent="  "))]
    return "\n".join(lines)


def _part(
    row: DisplayRow,
    live: Mapping[BranchPath, int],
    lanes: Mapping[BranchPath, int],
    names: Mapping[str, str],
    last: bool,
) -> list[str]:
    """The lines of one row, given the branches that are live above it."""
    lines = []
    if len(row.came) > 1:
        lines.append(_joint(live, [lanes[path] for path in row.came], "╯", "┴"))
    came, lane = set(row.came), lanes[row.branch]
    here = {path: other for path, other in live.items() if path not in came} | {row.branch: lane}
    lines.append(_headline(row, _bars(here, lane, "●" if row.commit else _MARKS[row.outcome]), _meta(row)))
    bars = _bars(here, lane, " " if last or not row.commit else "│")
    for text in _facts(row, names):
        lines += [f"{bars}   {line}" for line in wrap(text, WIDTH - len(bars) - 3, subsequent_indent="  ")]
    if row.children:
        lines.append(_joint(here, [lanes[path] for path in row.children], "╮", "┬"))
    return lines


def _summary(run: Run) -> str:
    started = next(event for event in run.events if isinstance(event, RunStarted))
    calls = sum(1 for event in run.events if isinstance(event, NodeStarted) and event.scope == started.scope)
    facts = [f"graph {started.graph!r}", _count(len(run.commits), "commit")]
    conflicts = [_count(len(run.conflicts), "conflict")] if run.conflicts else []
    # A resumed run has the commits of all its attempts; its events and tokens are those of the last one.
    made = sum(1 for event in run.events if isinstance(event, Committed) and event.scope == started.scope)
    resumed = made < len(run.commits)
    work = [_count(calls, "node call"), *([] if resumed else conflicts), *_items(run, started.scope, resumed)]
    tokens = sum(_tokens(usage) for usage in run.usage.values())
    if tokens:
        work.append(_count(tokens, "token"))
    verb = "in" if run.status == "completed" else "after"
    text = f"Run {run.status} {verb} {seconds(run.duration)}: "
    if resumed:
        return f"{text}{', '.join(facts + conflicts)}; since it was resumed: {', '.join(work)}"
    return text + ", ".join(facts + work)


def _items(run: Run, scope: tuple[str, ...], resumed: bool) -> list[str]:
    """How far the maps of the run came; what is left is unknown where an earlier attempt may have finished items."""
    ended: dict[str, Counter[str]] = {}
    totals: dict[str, dict[str, int]] = {}
    for event in run.events:
        if isinstance(event, ItemFinished) and event.scope == scope:
            ended.setdefault(event.node, Counter())[event.status] += 1
            totals.setdefault(event.node, {})[event.execution.rpartition("[")[0]] = event.items
    found = []
    for node, statuses in ended.items():
        text = f"{_count(statuses['completed'], 'item')} of {node!r}"
        failed, left = statuses["failed"], sum(totals[node].values()) - statuses["completed"] - statuses["failed"]
        text += f", {failed} failed" if failed else ""
        found.append(text + (f", {left} left" if left and run.status != "completed" and not resumed else ""))
    return found


def _tokens(usage: Mapping[str, Any]) -> int:
    total = usage.get("total_tokens")
    return total if isinstance(total, int) else 0


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _bars(live: Mapping[BranchPath, int], lane: int, mark: str) -> str:
    """A line of the tree: a bar for each live branch, a mark for the one that the line is about."""
    cells = dict.fromkeys(live.values(), "│") | {lane: mark}
    return " ".join(cells.get(i, " ") for i in range(max(cells) + 1))


def _joint(live: Mapping[BranchPath, int], lanes: Sequence[int], last: str, middle: str) -> str:
    """A line of the tree where lanes part or meet."""
    first, end = min(lanes), max(lanes)
    cells = dict.fromkeys(live.values(), "│")
    for lane in range(first, end + 1):
        cells[lane] = "├" if lane == first else middle if lane in lanes else "┼" if lane in cells else "─"
    if end > first:
        cells[end] = last
    text = ""
    for lane in range(max(cells) + 1):
        text += cells.get(lane, " ") + ("─" if first <= lane < end else " ")
    return text.rstrip()


def _headline(row: DisplayRow, bars: str, meta: str) -> str:
    if row.commit:
        goal = (
            f" → {', '.join(_folded(row.commit.route))}"
            if row.commit.route and not row.node.startswith("join:")
            else ""
        )
        text = f"{bars} {row_label(row.commit)} {row.node}{goal}"
    else:
        text = f"{bars} {row.node} {row.outcome}"
    return f"{_clip(text, WIDTH - len(meta) - 2)}  {meta}"


def _folded(route: Iterable[str]) -> list[str]:
    """The names of a route; a node to which several branches went is named once, with their number."""
    counts: dict[str, int] = {}
    for node in route:
        counts[node] = counts.get(node, 0) + 1
    return [node if count == 1 else f"{node} × {count}" for node, count in counts.items()]


def _meta(row: DisplayRow) -> str:
    facts = [f"step {row.step}"]
    if row.branch:
        facts.append(f"branch {path_text(row.branch)}")
    if row.commit:
        if row.commit.visit > 1:
            facts.append(f"visit {row.commit.visit}")
        if row.commit.attempt > 1:
            facts.append(f"attempt {row.commit.attempt}")
        if row.commit.duration and not row.node.startswith("join:"):
            facts.append(seconds(row.commit.duration))
    return f"({', '.join(facts)})"


def _facts(row: DisplayRow, names: Mapping[str, str]) -> list[str]:
    """What is said below the headline of a row."""
    facts = []
    if len(row.came) > 1:
        facts.append(f"joins {', '.join(names[parent] for parent in row.parents[:SHOWN])}")
        if len(row.parents) > SHOWN:
            facts[-1] += f" and {len(row.parents) - SHOWN} more"
    facts += [text for conflict in row.conflicts for text in outcome(conflict)]
    if row.commit:
        resolved = {conflict.path[0] for conflict in row.conflicts if conflict.path}
        facts += written(row.commit, resolved)
        if row.commit.reason:
            facts.append(f"because: {_clip(_plain(row.commit.reason), 240)}")
    elif row.error and not row.conflicts:
        facts += _problem(row.error)[:1]
    facts += [f"{question.key}: {_clip(_plain(question.text), 240)}" for question in row.questions]
    return facts


def _problem(error: BaseException) -> list[str]:
    """An error and its notes."""
    text = _clip(_plain(str(error)), 600)
    return [f"{type(error).__name__}{': ' if text else ''}{text}", *map(_plain, getattr(error, "__notes__", ()))]


def _plain(text: str) -> str:
    """A text on one line, without anything that a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
