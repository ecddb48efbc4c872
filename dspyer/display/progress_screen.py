"""The screens of `dspyer.progress()`: a terminal and a notebook. This file needs rich, which is an extra.

On a terminal, lines that are printed while the display is there must come above it. So what writes to this terminal
is replaced for that time: `sys.stdout` and `sys.stderr`, and the streams of log handlers that refer to them. A stdout
that goes elsewhere, to a file or a pipe, is left alone: nothing is ever added to it, or taken from it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from io import StringIO
from threading import RLock
from typing import Any, TextIO

from rich.ansi import AnsiDecoder
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from dspyer.display.board import Board
from dspyer.display.running import RunningRuns

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
    """Whether two streams write to one terminal."""
    if file is None or not _is_terminal(file):
        return False
    with suppress(OSError, ValueError, AttributeError):
        return os.fstat(file.fileno()).st_rdev == os.fstat(other.fileno()).st_rdev
    return False


# --- a terminal


class TerminalScreen:
    """A part of a terminal below everything that is printed.

    Args:
        console: writes to the terminal.
        streams: the streams of `sys` that write to the same one.
    """

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
            self._live.start()
            self._console.show_cursor(True)  # a process that is killed could not show it again
            for name in self._streams:
                own: Any = LinesAbove(self, getattr(sys, name))
                self._replaced[name] = own
                setattr(sys, name, own)
            self._replace_in_handlers()

    def show(self, runs: RunningRuns, now: float) -> None:
        """Draws what runs."""
        with self._lock:
            if self._live is None:
                return  # a print has found that the terminal is gone
            begun = [_decoded(text) for lines in self._replaced.values() if (text := lines.begun)]
            self._live.update(Group(*begun, Board(runs, now)), refresh=True)

    def close(self, runs: RunningRuns, now: float) -> None:
        """Ends the display, and leaves the last lines."""
        with self._lock:
            if self._live is None:
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

    A line that has only begun, such as the bar of tqdm, is shown at the top of the display. `\\r` begins it again.

    Args:
        screen: shows the display.
        file: the stream that this one replaces; it gets what is written when the display is over.
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

    def show(self, runs: RunningRuns, now: float) -> None:
        """Draws what runs."""
        self._handle.update(self._html(Board(runs, now)))

    def close(self, runs: RunningRuns, now: float) -> None:
        """Leaves the last lines."""
        self._handle.update(self._html(Board(runs, now, last=True)))

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
