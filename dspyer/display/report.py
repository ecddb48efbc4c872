"""A run as text for a terminal: what `run.report()` returns.

The commits come one below the other in canonical order. Branches are drawn as vertical bars next to each other, as
`git log --graph` draws them, with a line where a fork opens new ones and where a join closes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from dspyer.display.amounts import count_of, duration_text
from dspyer.display.run_rows import (
    SHOWN,
    DisplayRow,
    ErrorText,
    leaves_of,
    one_line,
    outcome,
    row_label,
    written,
)
from dspyer.display.tokens import total_of
from dspyer.events import BranchPath, Committed, Event, ItemFinished, NodeStarted, RunStarted, is_built_in, told
from dspyer.ids import path_text, whole_execution

WIDTH = 100  # characters of a line
LANES = 12  # branches next to each other; further ones share the last lane
TOLD = 20  # lines of events
ROWS = 400  # commits that are listed: the first and the last half of them

_MARKS = {"failed": "✗", "waits for an answer": "?", "was not started": "○"}


class MapCount(NamedTuple):
    """The items of a map: how many have a result, have failed, and are left; None if that is not known."""

    node: str
    completed: int
    failed: int = 0
    left: int | None = None


class RunFacts(NamedTuple):
    """What the first line of a report says of a run.

    Attributes:
        graph: name of its graph.
        status: how it has ended.
        seconds: how long it took.
        calls: node calls; None if that is not known.
        usage: tokens by language model.
        maps: the items of its maps.
        error: why it is not completed; None for one that is, or that waits for answers.
        told: the events that a report does not know, as lines.
        since_resumed: whether seconds, calls, usage and maps are those since the run was last resumed.
    """

    graph: str
    status: str
    seconds: float
    calls: int | None
    usage: Mapping[str, Mapping[str, Any]]
    maps: Sequence[MapCount] = ()
    error: ErrorText | None = None
    told: Sequence[str] = ()
    since_resumed: bool = False


def describe_run(rows: Sequence[DisplayRow], facts: RunFacts) -> str:
    """The report of a run, at most 100 columns wide: one line that sums it up, its commits, and its error."""
    lanes = {path: min(first, LANES - 1) for path, (first, _) in leaves_of(rows).items()}
    labels = {row.commit.id: f"{row_label(row.commit)} {row.commit.node}" for row in rows if row.commit}
    lines = [*wrap(_summary(rows, facts), WIDTH), ""]
    active: dict[BranchPath, int] = {}  # the branches that are drawn as bars at this row, with their lanes
    for number, row in enumerate(rows):
        if not ROWS // 2 <= number < len(rows) - ROWS // 2:
            lines += _row_lines(row, active, lanes, labels, number == len(rows) - 1)
        elif number == ROWS // 2:
            lines.append(f"... {len(rows) - 2 * (ROWS // 2)} more: run.commits has them all")
        for path in row.came:
            active.pop(path, None)
        if row.commit:
            active.update((path, lanes[path]) for path in row.children or (row.branch,))
    if facts.told:
        lines += ["", "Events", *[f"  {_clip(text, WIDTH - 2)}" for text in facts.told]]
    if facts.error is not None:
        texts = _error_lines(facts.error)
        lines += ["", *(line for text in texts for line in wrap(text, WIDTH, subsequent_indent="  "))]
    return "\n".join(lines)


def facts_of_events(
    events: Sequence[Event],
    commits: int,
    *,
    status: str,
    duration: float,
    usage: Mapping[str, Mapping[str, Any]],
    error: BaseException | None,
) -> RunFacts:
    """What the events of a run say of it: of a resumed one they are those of the last process only."""
    started = next(event for event in events if isinstance(event, RunStarted))
    own = [event for event in events if event.scope == started.scope]
    # A resumed run has the commits of all its processes, but the events and tokens of the last one only.
    resumed = sum(isinstance(event, Committed) for event in own) < commits
    return RunFacts(
        started.graph,
        status,
        duration,
        sum(isinstance(event, NodeStarted) for event in own),
        usage,
        _maps(own, left_is_known=status != "completed" and not resumed),
        None if error is None else ErrorText.of(error),
        _told(events),
        resumed,
    )


def _told(events: Sequence[Event]) -> list[str]:
    """The lines of the events of other classes than those of `dspyer.events`; of equal ones, one with their number."""
    counts = Counter([one_line(told(event)) for event in events if not is_built_in(event)])
    lines = [text if count == 1 else f"{text} × {count}" for text, count in counts.items()]
    more = sum(list(counts.values())[TOLD:])
    return [*lines[:TOLD], *([f"... {more} more: run.events has them all"] if more else [])]


def _maps(events: Sequence[Event], left_is_known: bool) -> list[MapCount]:
    """The items of each map. How many are left is not known if an earlier process may have finished some."""
    ended: dict[str, Counter[str]] = {}
    totals: dict[str, dict[str, int]] = {}  # by node, the number of items of each execution
    for event in events:
        if isinstance(event, ItemFinished):
            ended.setdefault(event.node, Counter())[event.status] += 1
            totals.setdefault(event.node, {})[whole_execution(event.execution)] = event.items
    found = []
    for node, statuses in ended.items():
        left = sum(totals[node].values()) - statuses["completed"] - statuses["failed"]
        found.append(MapCount(node, statuses["completed"], statuses["failed"], left if left_is_known else None))
    return found


# --- the first line


def _summary(rows: Sequence[DisplayRow], facts: RunFacts) -> str:
    commits = sum(row.commit is not None for row in rows)
    conflict_count = sum(len(row.conflicts) for row in rows)
    conflicts = [count_of(conflict_count, "conflict")] if conflict_count else []
    whole = [f"graph {facts.graph!r}", count_of(commits, "commit")]
    work = [] if facts.calls is None else [count_of(facts.calls, "node call")]
    work += [] if facts.since_resumed else conflicts
    for node, completed, failed, left in facts.maps:
        text = f"{count_of(completed, 'item')} of {node!r}" + (f", {failed} failed" if failed else "")
        work.append(text + (f", {left} left" if left else ""))
    tokens = sum(total_of(of_model) for of_model in facts.usage.values())
    if tokens:
        work.append(count_of(tokens, "token"))
    text = f"Run {facts.status} {'in' if facts.status == 'completed' else 'after'} {duration_text(facts.seconds)}: "
    if facts.since_resumed:
        return f"{text}{', '.join(whole + conflicts)}; since it was resumed: {', '.join(work)}"
    return text + ", ".join(whole + work)


# --- the lines of one commit


def _row_lines(
    row: DisplayRow,
    active: Mapping[BranchPath, int],
    lanes: Mapping[BranchPath, int],
    labels: Mapping[str, str],
    last: bool,
) -> list[str]:
    """The lines of one row, below which the `active` branches have their bars."""
    lines = []
    if len(row.came) > 1:
        lines.append(_junction(active, [lanes[path] for path in row.came], "╯", "┴"))
    came, lane = set(row.came), lanes[row.branch]
    here = {path: other for path, other in active.items() if path not in came} | {row.branch: lane}
    lines.append(_headline(row, _bars(here, lane, "●" if row.commit else _MARKS[row.outcome]), _details(row)))
    bars = _bars(here, lane, " " if last or not row.commit else "│")
    for text in _facts(row, labels):
        lines += [f"{bars}   {line}" for line in wrap(text, WIDTH - len(bars) - 3, subsequent_indent="  ")]
    if row.children:
        lines.append(_junction(here, [lanes[path] for path in row.children], "╮", "┬"))
    return lines


def _bars(active: Mapping[BranchPath, int], lane: int, mark: str) -> str:
    """A bar for each active branch, and `mark` in the lane of the row's own branch."""
    cells = dict.fromkeys(active.values(), "│") | {lane: mark}
    return " ".join(cells.get(i, " ") for i in range(max(cells) + 1))


def _junction(active: Mapping[BranchPath, int], lanes: Sequence[int], corner: str, tee: str) -> str:
    """The line where lanes fork or join: a tee for each lane, a corner for the last, crossings in between."""
    first, end = min(lanes), max(lanes)
    cells = dict.fromkeys(active.values(), "│")
    for lane in range(first, end + 1):
        cells[lane] = "├" if lane == first else tee if lane in lanes else "┼" if lane in cells else "─"
    if end > first:
        cells[end] = corner
    text = ""
    for lane in range(max(cells) + 1):
        text += cells.get(lane, " ") + ("─" if first <= lane < end else " ")
    return text.rstrip()


def _headline(row: DisplayRow, bars: str, details: str) -> str:
    if row.commit:
        route = [] if row.node.startswith("join:") else _grouped(row.commit.route)
        arrow = f" → {', '.join(route)}" if route else ""
        failed = " failed" if row.failure else ""
        text = f"{bars} {row_label(row.commit)} {row.node}{failed}{arrow}"
    else:
        text = f"{bars} {row.node} {row.outcome}"
    return f"{_clip(text, WIDTH - len(details) - 2)}  {details}"


def _grouped(route: Iterable[str]) -> list[str]:
    """The names of a route; a node that several branches go to is named once, with their number."""
    counts: dict[str, int] = {}
    for node in route:
        counts[node] = counts.get(node, 0) + 1
    return [node if count == 1 else f"{node} × {count}" for node, count in counts.items()]


def _details(row: DisplayRow) -> str:
    facts = [f"step {row.step}"]
    if row.branch:
        facts.append(f"branch {path_text(row.branch)}")
    if row.commit:
        if row.commit.visit > 1:
            facts.append(f"visit {row.commit.visit}")
        if row.commit.attempt > 1:
            facts.append(f"attempt {row.commit.attempt}")
        if row.commit.duration and not row.node.startswith("join:"):
            facts.append(duration_text(row.commit.duration))
    return f"({', '.join(facts)})"


def _facts(row: DisplayRow, labels: Mapping[str, str]) -> list[str]:
    """The lines below the headline of a row: what was joined, conflicts, writes, reason, error, questions."""
    facts = []
    if len(row.came) > 1:
        facts.append(f"joins {', '.join(labels[parent] for parent in row.parents[:SHOWN])}")
        if len(row.parents) > SHOWN:
            facts[-1] += f" and {len(row.parents) - SHOWN} more"
    facts += [text for conflict in row.conflicts for text in outcome(conflict)]
    if row.commit:
        if row.failure:
            facts.append(f"{row.failure.type}: {_clip(one_line(row.failure.message), 240)}")
        if row.attempts:
            facts.append(row.attempts)
        resolved = {conflict.path[0] for conflict in row.conflicts if conflict.path}
        facts += written(row.commit, resolved)
        if row.commit.reason:
            facts.append(f"because: {_clip(one_line(row.commit.reason), 240)}")
    elif row.error and not row.conflicts:
        facts += _error_lines(row.error)[:1]
    facts += [f"{question.key}: {_clip(one_line(question.text), 240)}" for question in row.questions]
    return facts


def _error_lines(error: ErrorText) -> list[str]:
    """The error on one line, and one line for each of its notes."""
    text = _clip(one_line(error.message), 600)
    return [f"{error.type}{': ' if text else ''}{text}", *map(one_line, error.notes)]


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
