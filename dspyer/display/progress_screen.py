"""The screens of `dspyer.progress()`: a terminal and a notebook. This file needs rich, which is an extra.

On a terminal, lines that are printed while the display is there must come above it. So what writes to this terminal
is replaced for that time: `sys.stdout` and `sys.stderr`, and the streams of log handlers that refer to them. A stdout
that goes elsewhere, to a file or a pipe, is left alone: nothing is ever added to it, or taken from it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from io import StringIO
from threading import RLock
from typing import Any, TextIO

from rich.ansi import AnsiDecoder
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text
from rich.tree import Tree

from dspyer.display.amounts import cost_text, count_of, duration_text, one_line
from dspyer.display.progress import (
    EndedVisits,
    MapProgress,
    RunningGraph,
    RunningNode,
    RunningRun,
    RunningRuns,
    SpentSum,
)
from dspyer.extend import path_text

# What runs right now, as lines for rich: never more than one screen, and every text of a program as plain text.


TREES = 3  # runs that are shown with their nodes; of more of them, each has a line
LATEST = 8  # runs that have a line then
SHOWN_ENDED = 8  # nodes that are over
SHOWN_ITEMS = 3  # items of a map whose graphs are shown
BAR = 24  # characters of the bar of a map
LEAST_LINES = 2
MOST_LINES = 40


# The signs of a terminal. Python writes to terminals in UTF-8, on Windows and in the C locale, too.
DONE, FAILED, RUNS, ASKS = "✓", "✗", "●", "?"
FULL, EMPTY, DOT, MORE = "━", "─", " · ", "…"


class Board:
    """The runs as a renderable of rich, as they are at a time; `last` for the lines that stay after the end."""

    def __init__(self, runs: RunningRuns, now: float, *, last: bool = False) -> None:
        self._runs = runs
        self._now = now
        self._last = last

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(LEAST_LINES, min(options.size.height - 2, MOST_LINES))
        plain = options.update(no_wrap=True, overflow="ellipsis", height=None)
        lines = console.render_lines(self._lines(), plain, pad=False)
        if len(lines) > room:
            more = Text(f"{MORE} and {len(lines) - room + 1:,} more", "dim")
            lines = [*lines[: room - 1], *console.render_lines(more, plain, pad=False)]
        for line in lines:
            yield from line
            yield Segment.line()

    def _lines(self) -> Group:
        runs, now = self._runs, self._now
        if runs.count == 1:
            return Group(*[_tree(run, now) for run in runs.runs.values() or runs.latest])
        found: list[RenderableType] = [_summary(runs, now)]
        shown = [] if self._last else list(runs.runs.values())
        if len(shown) <= TREES:
            found += [_tree(run, now) for run in shown]
        else:
            found += [_short(run, now) for run in shown[-LATEST:]]
            if len(shown) > LATEST:
                found.append(Text(f"{MORE} and {len(shown) - LATEST:,} more", "dim"))
        return Group(*found, *[_failed(run, now) for run in runs.failed])


# --- lines of runs


def _summary(runs: RunningRuns, now: float) -> Text:
    """All runs on one line."""
    ended = runs.ended
    facts = [f"{ended['completed']:,} completed"] if ended["completed"] else []
    facts += [f"{ended[status]:,} {status}" for status in ("failed", "interrupted", "stopped") if ended[status]]
    facts += [f"{len(runs.runs):,} running"] if runs.runs else []
    elapsed = now - runs.began
    if ended.total() and elapsed > 0:
        rate = ended.total() / elapsed
        facts.append(f"{rate:,.1f} runs/s" if rate >= 1 else f"{rate * 60:,.1f} runs/min")
    facts += [*_spent(runs.spent), duration_text(elapsed)]
    if not runs.count:
        return Text(f"no run yet{DOT}{duration_text(elapsed)}", "dim")
    text = Text("Runs: ", "bold")
    text.append(DOT.join(facts), "red" if ended["failed"] else "not bold")
    return text


def _spent(spent: SpentSum) -> list[str]:
    facts = [count_of(spent.calls, "LM call")] if spent.calls else []
    facts += [count_of(spent.tokens, "token")] if spent.tokens else []
    if spent.cost:
        facts.append(f"{'at least ' if spent.unpriced else ''}{cost_text(spent.cost)} USD")
    return facts


def _headline(run: RunningRun, now: float) -> Text:
    mark, style = {
        "running": (RUNS, "yellow"),
        "completed": (DONE, "green"),
        "failed": (FAILED, "red"),
    }.get(run.status, (ASKS, "yellow"))
    facts = [] if run.status == "running" else [run.status]
    facts += [duration_text(run.elapsed(now)), count_of(run.commits, "commit")]
    facts += [count_of(run.retries, "retry", "retries")] if run.retries else []
    return _with_facts(mark, style, run.graph.name, [*facts, *_spent(run.spent)])


def _with_facts(mark: str, style: str, name: str, facts: Sequence[str]) -> Text:
    text = Text.assemble((f"{mark} ", style), (one_line(name), "bold"))
    text.append("".join(DOT + fact for fact in facts), "dim")
    return text


def _short(run: RunningRun, now: float) -> Text:
    """A run on one line, with the nodes that run."""
    text = _headline(run, now)
    nodes = list(dict.fromkeys(one_line(node.node) for node in run.graph.running.values()))
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    text.append(f"  {', '.join(nodes[:3])}{more}")
    return text


def _failed(run: RunningRun, now: float) -> Text:
    name = f"{FAILED} {one_line(run.graph.name)} failed after {duration_text(run.elapsed(now))}: "
    return Text(name + one_line(run.error), "red")


# --- the tree of one run


def _tree(run: RunningRun, now: float) -> Tree:
    tree = Tree(_headline(run, now), guide_style="dim")
    _add_graph(tree, run.graph, now)
    for text in run.told:
        tree.add(Text(one_line(text), "italic"))
    if run.error and run.status == "failed":
        tree.add(Text(one_line(run.error), "red"))
    return tree


def _add_graph(tree: Tree, graph: RunningGraph, now: float) -> None:
    """The nodes of a graph in the order in which they started first; of many that are over, the last ones."""
    running: dict[str, list[RunningNode]] = {name: [] for name in graph.ended}
    for node in graph.running.values():
        running.setdefault(node.node, []).append(node)
    over = [name for name, nodes in running.items() if not nodes][:-SHOWN_ENDED]
    if over:  # what runs counts more than what is over
        tree.add(Text(f"{DONE} {count_of(len(over), 'node')}", "dim"))
    for name, nodes in running.items():
        visits = graph.ended.get(name, EndedVisits())
        if len(nodes) > 1:
            facts = [f"{len(nodes):,} running", *([f"{visits.done:,} done"] if visits.done else [])]
            branches = tree.add(_with_facts(RUNS, "yellow", name, facts))
            for node in nodes:
                _add_running(branches, node, None, now, f"branch {path_text(node.branch)}")
        elif nodes:
            _add_running(tree, nodes[0], visits, now, name)
        elif name not in over:
            tree.add(_ended(name, visits))


def _ended(name: str, visits: EndedVisits) -> Text:
    failed = visits.failed and not visits.done
    mark, style = (FAILED, "red") if failed else (DONE, "green")
    if not visits.done and not visits.failed:
        mark, style = ASKS, "yellow"  # it has asked, or was cancelled
    text = Text.assemble((f"{mark} ", style), one_line(name))
    text.append(f" × {visits.done:,}" if visits.done > 1 else "", "dim")
    facts = [duration_text(visits.seconds)] if visits.done else []
    facts += [count_of(visits.items["items"], "item")] if visits.items["items"] else []
    facts += [f"{visits.items['failed']:,} of them failed"] if visits.items["failed"] else []
    facts += [f"{visits.failed:,} failed"] if visits.failed else []
    text.append("".join(DOT + fact for fact in facts), "dim")
    return text


def _add_running(tree: Tree, node: RunningNode, visits: EndedVisits | None, now: float, name: str) -> None:
    """An execution that runs, with the graphs inside of it: that of a subgraph, or of the last items that started."""
    facts = [f"branch {path_text(node.branch)}"] if node.branch and visits is not None else []
    facts += [f"visit {node.visit}"] if node.visit > 1 else []
    facts += [f"attempt {node.attempt}"] if node.attempt > 1 else []
    facts.append(duration_text(now - node.started))
    facts += ["waits for an answer"] if node.asks else []
    text = _with_facts(ASKS if node.asks else RUNS, "yellow", name, facts)
    if node.items is not None:
        text.append_text(_items(node.items, now))
    if node.doing:
        text.append(f"  {one_line(node.doing)}", "italic")
    below = tree.add(text)
    graphs = sorted(node.inside.items(), key=lambda inside: (len(inside[0]), inside[0]))  # in the order of the items
    for key, graph in graphs[-SHOWN_ITEMS:]:
        title = Text(f"{one_line(key)} {one_line(graph.name)}", "dim")
        _add_graph(below.add(title) if key else below, graph, now)
    if len(graphs) > SHOWN_ITEMS:
        below.add(Text(f"{MORE} and {len(graphs) - SHOWN_ITEMS:,} more", "dim"))


def _items(items: MapProgress, now: float) -> Text:
    """The items of a map: a bar, how many are done, and the time that remains."""
    full = BAR * items.done // items.total if items.total else BAR
    text = Text("  ")
    text.append(FULL * full, "green")
    text.append(EMPTY * (BAR - full), "dim")
    facts = [f" {items.done:,} of {items.total:,}"]
    facts += [f"{items.running:,} running"] if items.running else []
    facts += [f"{items.ended['failed']:,} failed"] if items.ended["failed"] else []
    facts += [count_of(items.retries, "retry", "retries")] if items.retries else []
    remaining = items.remaining(now)
    # Not more exact than an estimate can be.
    facts += [f"{duration_text(max(1, round(remaining))).replace('.0', '')} left"] if remaining is not None else []
    text.append(DOT.join(facts))
    return text


logger = logging.getLogger("dspyer")

NOTEBOOK_WIDTH = 100  # characters
_NO_DISPLAY = ("dumb", "unknown")


def screen_of_process() -> TerminalScreen | NotebookScreen | None:
    """The terminal or notebook of this process; None if there is none, and in CI."""
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        return None
    displays = _notebook_displays()
    if displays is not None:
        return NotebookScreen(displays)
    file: TextIO | None = sys.stderr
    if file is None or not _is_terminal(file) or os.environ.get("TERM", "").lower() in _NO_DISPLAY:
        return None
    console = Console(file=file, force_terminal=True, highlight=False, markup=False, emoji=False)
    return TerminalScreen(console, [name for name in ("stdout", "stderr") if _same_terminal(getattr(sys, name), file)])


def _is_terminal(file: TextIO) -> bool:
    with suppress(ValueError, AttributeError):  # it is closed, or no real file
        return file.isatty()
    return False


def _same_terminal(file: TextIO | None, other: TextIO) -> bool:
    """True if two streams write to one terminal."""
    if file is None or not _is_terminal(file):
        return False
    with suppress(OSError, ValueError, AttributeError):
        return os.fstat(file.fileno()).st_rdev == os.fstat(other.fileno()).st_rdev
    return False


# --- a terminal


class TerminalScreen:
    """A part of a terminal below everything that is printed; `streams` of `sys` write to the same one."""

    def __init__(self, console: Console, streams: Iterable[str] = ()) -> None:
        self._console = console
        self._streams = tuple(streams)
        self._lock = RLock()  # rich locks each write, but computes before it where the cursor is
        self._live: Live | None = None
        self._replaced: dict[str, LinesAbove] = {}
        self._handlers: list[tuple[logging.StreamHandler[Any], TextIO]] = []

    def open(self) -> None:
        """Begins the display."""
        with self._lock:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            # Drawn by the thread of the display alone: with a refresh of its own, rich would draw in a thread more.
            self._live.start()
            self._console.show_cursor(True)  # a process that is killed could not show it again
            for name in self._streams:
                own: Any = LinesAbove(self, getattr(sys, name))
                self._replaced[name] = own
                setattr(sys, name, own)
            self._replace_in_handlers()

    def show(self, runs: RunningRuns, now: float, *, last: bool) -> None:
        """Draws what runs; at the end it leaves the `last` lines, and gives back the streams."""
        with self._lock:
            if self._live is None:
                return  # a print has found that the terminal is gone
            if not last:
                begun = [_decoded(text) for lines in self._replaced.values() if (text := lines.begun)]
                self._live.update(Group(*begun, Board(runs, now)), refresh=True)
                return
            self._live.stop()
            self._live = None
            self._console.print(Board(runs, now, last=True))
            self._restore(forked=False)

    def release(self, *, forked: bool = False) -> None:
        """Gives back the streams, and draws nothing more. In a `forked` process no lock is free for sure."""
        with nullcontext() if forked else self._lock:
            if self._live is not None and not forked:
                with suppress(Exception):  # the display has failed already, and that error is the one to be logged
                    self._console.file.write("\n")
            self._live = None
            self._restore(forked=forked)

    def print_above(self, lines: list[str]) -> None:
        """Prints complete lines above the display, as they are: rich must not wrap or colour them."""
        with self._lock:
            self._console.print(Text("\n").join(map(_decoded, lines)), soft_wrap=True)

    def _replace_in_handlers(self) -> None:
        """Lets log handlers write above the display, if they refer to a stream that is replaced."""
        loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
        handlers = {handler for one in loggers for handler in getattr(one, "handlers", ())}
        replaced = {id(own.file): own for own in self._replaced.values()}
        for handler in handlers:
            if isinstance(handler, logging.StreamHandler) and id(handler.stream) in replaced:
                self._handlers.append((handler, handler.stream))
                handler.setStream(replaced[id(handler.stream)])

    def _restore(self, *, forked: bool) -> None:
        handlers, self._handlers = self._handlers, []
        for handler, stream in handlers:
            if isinstance(handler.stream, LinesAbove):
                handler.stream = stream
        replaced, self._replaced = self._replaced, {}
        for name, own in replaced.items():
            if getattr(sys, name) is own:
                setattr(sys, name, own.file)
            own.end(dropped=forked)


class LinesAbove:
    """A stream whose lines appear above the display.

    A line that has only begun, such as the bar of tqdm, is shown at the top of the display. `\\r` begins it again. What
    is written when the display is over goes to the `file` that this one replaces.
    """

    def __init__(self, screen: TerminalScreen, file: TextIO) -> None:
        self._screen: TerminalScreen | None = screen
        self._lock = screen._lock
        self.file = file
        self.begun = ""

    def write(self, text: str) -> int:
        """Prints the lines that are complete."""
        screen = self._screen
        if screen is None:
            return self.file.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            *lines, begun = (self.begun + text).split("\n")
            self.begun = begun.rpartition("\r")[2] if not begun.endswith("\r") else begun
            if lines:
                try:
                    screen.print_above([line.removesuffix("\r").rpartition("\r")[2] for line in lines])
                except Exception:
                    screen.release()
                    self.file.write("\n".join(lines) + "\n")
                    logger.exception("the display of dspyer.progress() has failed; the runs go on without it")
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Prints some texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Does nothing: complete lines are printed at once, and others shown when the display is drawn next."""
        if self._screen is None:
            self.file.flush()

    def end(self, *, dropped: bool) -> None:
        """Leaves the stream to itself. A line that has only begun is written there, unless another process does it."""
        self._screen = None
        if self.begun and not dropped:
            self.file.write(self.begun)
        self.begun = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def _decoded(line: str) -> Text:
    """A printed line with its colours, and without codes that would move the cursor."""
    return AnsiDecoder().decode_line(line)


# --- a notebook


class NotebookScreen:
    """An output of a notebook cell, which each picture replaces."""

    def __init__(self, displays: Any) -> None:
        self._displays = displays
        self._handle: Any = None

    def open(self) -> None:
        """Begins the display."""
        self._handle = self._displays.display(self._html(Text()), display_id=True)

    def show(self, runs: RunningRuns, now: float, *, last: bool) -> None:
        """Draws what runs, or the last lines."""
        self._handle.update(self._html(Board(runs, now, last=last)))

    def release(self, *, forked: bool = False) -> None:
        """Does nothing: it has replaced no stream."""

    def _html(self, board: RenderableType) -> Any:
        console = Console(
            file=StringIO(), record=True, width=NOTEBOOK_WIDTH, force_jupyter=False, highlight=False, markup=False
        )
        console.print(board)
        style = "font-family: monospace; line-height: 1.3; white-space: pre"
        return self._displays.HTML(
            console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')
        )


def _notebook_displays() -> Any:
    """The module of IPython for displays, in a notebook; else None."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return ipython.display if shell is not None and hasattr(shell, "kernel") else None
