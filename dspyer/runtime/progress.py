"""`progress()`: a live display of what runs in the process.

The terminal belongs to the process, so the display shows every run of the process, wherever it was started: by
`Evaluate` and optimizers in DSPy's thread pools, in tasks, in streams, or in a plain thread of the user's. A context
variable would miss the last of these, and two displays would overwrite each other.

The threads of the runs only append to a queue. A thread of its own counts and draws, four times a second, so that the
cost hardly depends on the number of events.

An error of the display is no error of a run: that is paid for, and must not be lost to a picture of it. The display
then ends, gives back the terminal, and logs the error with its traceback.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event as Flag
from threading import Lock, Thread
from typing import TYPE_CHECKING

from dspyer.display.running import LMUse, RunningRuns
from dspyer.events import Emitted, Event, Forked, Heard, Joined, LiveConflict, Posted, Token
from dspyer.runtime.session import watching
from dspyer.waiting import at_fork

if TYPE_CHECKING:
    from dspyer.display.progress_screen import NotebookScreen, TerminalScreen

logger = logging.getLogger("dspyer")

REFRESH = 0.25  # seconds between two pictures
_NOT_SHOWN = frozenset((Token, Emitted, Posted, Heard, LiveConflict, Forked, Joined))


@contextmanager
def progress() -> Iterator[None]:
    """Shows what runs inside the block: nodes and branches, items of maps with the time left, attempts, tokens, cost.

    It shows every run of the process, wherever it is started: by `run`, `batch`, `dspy.Evaluate` or an optimizer, in
    threads, tasks and streams. Of many runs at once it shows their number and rate, and the latest ones. What nodes
    print appears above the display.

    It is drawn on the terminal, through stderr, or in a notebook. It shows nothing if stderr is no terminal, with
    `TERM=dumb`, and in CI (if the variable `CI` is set). An error of the display ends the display and is logged; it
    never fails a run. A block inside of another one adds nothing.

    Raises:
        ImportError: if rich is not installed: `pip install rich`.

    Example:
        >>> import dspyer
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
        >>> with dspyer.progress():
        ...     run = graph.compile().run({"n": 1})
        >>> run.state["n"]
        2
    """
    try:
        from dspyer.display.progress_screen import screen_of_process
    except ImportError as error:
        raise ImportError("dspyer.progress() needs rich: pip install rich") from error
    _shared.enter(screen_of_process)
    try:
        yield
    finally:
        _shared.leave()


class Display:
    """Counts the events of all runs, and has them drawn by a thread of its own."""

    def __init__(self, screen: TerminalScreen | NotebookScreen) -> None:
        self._screen = screen
        self._arrived: deque[tuple[float, str, Event | LMUse]] = deque()
        self._runs = RunningRuns(time.monotonic())
        self._stop = Flag()
        self._over = False
        self._watching = watching(self.see, self.see)
        self._thread = Thread(target=self._draw, name="dspyer-progress", daemon=True)

    def see(self, run_id: str, event: Event | LMUse) -> None:
        """Takes an event of a run. Called by the thread of the run: it does nothing that could fail."""
        if type(event) not in _NOT_SHOWN and not self._over:
            self._arrived.append((time.monotonic(), run_id, event))

    def start(self) -> None:
        """Begins to draw."""
        with self._ending_on_error():
            self._screen.open()
        self._thread.start()
        self._watching.__enter__()

    def stop(self) -> None:
        """Draws the last lines, and ends."""
        self._watching.__exit__(None, None, None)
        self._stop.set()
        self._thread.join()
        if not self._over:
            with self._ending_on_error():
                self._screen.close(self._counted(), time.monotonic())
        self._over = True

    def forget(self) -> None:
        """Ends without drawing: in a forked process, which does not have the thread."""
        self._over = True
        self._watching.__exit__(None, None, None)
        self._arrived.clear()
        self._screen.release(forked=True)

    def _draw(self) -> None:
        while not self._over and not self._stop.wait(REFRESH):
            with self._ending_on_error():
                self._screen.show(self._counted(), time.monotonic())

    def _counted(self) -> RunningRuns:
        while self._arrived:
            self._runs.note(*self._arrived.popleft())
        return self._runs

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._over = True
            self._arrived.clear()
            self._screen.release()
            logger.exception("the display of dspyer.progress() has failed; the runs go on without it")


class _SharedDisplay:
    """The display of the process, for all blocks that are active at once: the last one that ends closes it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks = 0
        self._display: Display | None = None

    def enter(self, screen_of: Callable[[], TerminalScreen | NotebookScreen | None]) -> None:
        """Opens the display for the first block."""
        with self._lock:
            screen = None if self._blocks else screen_of()
            if screen is not None:
                self._display = Display(screen)
                self._display.start()
            self._blocks += 1

    def leave(self) -> None:
        """Closes it after the last one."""
        with self._lock:
            self._blocks = max(0, self._blocks - 1)  # a forked process leaves blocks that it has not entered
            if not self._blocks and self._display is not None:
                display, self._display = self._display, None
                display.stop()

    def forget(self) -> None:
        """Drops the display in a forked process, where another thread may have held the lock."""
        self._lock = Lock()
        if self._display is not None:
            self._display.forget()
        self._blocks, self._display = 0, None


_shared = _SharedDisplay()
at_fork(_shared.forget)
