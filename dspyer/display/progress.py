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
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from threading import Event as Flag
from threading import Lock, Thread
from typing import TYPE_CHECKING

from dspyer.errors import error_text
from dspyer.events import (
    Asked,
    AttemptFailed,
    BranchPath,
    Commit,
    Committed,
    Doing,
    Emitted,
    Forked,
    ItemFinished,
    ItemStarted,
    Joined,
    LiveConflict,
    NodeFailed,
    NodeStarted,
    Numbered,
    Posted,
    Read,
    RunEnded,
    RunStarted,
    Token,
    is_built_in,
    told,
)
from dspyer.extend import Address, Event, whole_execution
from dspyer.runtime.session import watching
from dspyer.waiting import at_fork

if TYPE_CHECKING:
    from dspyer.display.progress_screen import NotebookScreen, TerminalScreen


# What runs right now, counted from events, with the times at which they arrived. Of what has ended there are only
# counts: it does not grow with the number of runs or steps.


ENDED_RUNS = 4  # runs that are kept after their end
TOLD = 3  # events of a run that have a line of their own


Spending = tuple[int, float | None]
"""The usage of an LM call: tokens, and US dollars; None if no price is known."""


@dataclass(slots=True)
class SpentSum:
    """LM calls, their tokens and US dollars; `unpriced` is the number of calls without a known price."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0

    def add(self, spending: Spending) -> None:
        """Counts a call."""
        tokens, cost = spending
        self.calls += 1
        self.tokens += tokens
        self.cost += cost or 0.0
        self.unpriced += cost is None


@dataclass(slots=True)
class MapProgress:
    """The items of one execution of a map, or the trials of a search.

    Items start in their order, and those that an earlier attempt has finished do not start again. So the items before
    the last one that has started, which have not started themselves, are done.
    """

    total: int
    begun: float  # when the first one started
    started: int = 0
    last: int = -1  # the highest index of one that has started
    ended: Counter[str] = field(default_factory=Counter)  # by status
    retries: int = 0  # attempts of items that were followed by another one

    @property
    def running(self) -> int:
        """Number of items that run."""
        return max(0, self.started - self.ended.total())

    @property
    def done(self) -> int:
        """Number of items that have a result, a failure included."""
        return min(self.total, self.last + 1 - self.started + self.ended["completed"] + self.ended["failed"])

    def remaining(self, now: float) -> float | None:
        """The seconds until the last item ends, at the rate of those that have ended; None if that is not known."""
        ended, left = self.ended["completed"] + self.ended["failed"], self.total - self.done
        return (now - self.begun) / ended * left if ended and left else None


@dataclass(slots=True)
class RunningNode:
    """One execution that runs; `inside` has the graphs in it, by what follows its id: `""`, or `"[3]"` of an item."""

    node: str
    branch: BranchPath
    visit: int
    started: float
    attempt: int = 1
    doing: str = ""  # what the node says that it is doing
    asks: bool = False
    items: MapProgress | None = None
    inside: dict[str, RunningGraph] = field(default_factory=dict)


@dataclass(slots=True)
class EndedVisits:
    """Counts of the commits and failures of a node, the seconds of its commits, and the items of a map by status."""

    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    items: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class RunningGraph:
    """A graph that runs: visits that have ended by node, in the order of their first start; what runs by execution."""

    name: str
    ended: dict[str, EndedVisits] = field(default_factory=dict)
    running: dict[str, RunningNode] = field(default_factory=dict)

    def commit(self, commit: Commit) -> None:
        """Notes that a node has committed; of a join, or after a failure that an edge takes, nothing runs any more."""
        node = self.running.pop(commit.id, None)
        if node is not None and commit.failure is None:
            visits = self.ended[node.node]
            visits.done += 1
            visits.seconds += commit.duration
            if node.items is not None:
                visits.items["items"] += node.items.total
                visits.items["failed"] += node.items.ended["failed"]


@dataclass(slots=True)
class RunningRun:
    """A run: its graph, and what it has used so far; `told` are the last events of classes that are not known here."""

    graph: RunningGraph
    started: float
    status: str = "running"
    ended: float = 0.0
    commits: int = 0
    retries: int = 0
    spent: SpentSum = field(default_factory=SpentSum)
    error: str = ""
    told: deque[str] = field(default_factory=lambda: deque(maxlen=TOLD))

    def elapsed(self, now: float) -> float:
        """Seconds for which it has run."""
        return (now if self.status == "running" else self.ended) - self.started


class RunningRuns:
    """All runs since the display began: those that run by id, and of those that have ended the last ones and counts."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.runs: dict[str, RunningRun] = {}
        self.ended: Counter[str] = Counter()
        self.latest: deque[RunningRun] = deque(maxlen=ENDED_RUNS)
        self.failed: deque[RunningRun] = deque(maxlen=ENDED_RUNS)
        self.spent = SpentSum()

    @property
    def count(self) -> int:
        """Number of runs that have begun."""
        return len(self.runs) + self.ended.total()

    def note(self, at: float, run_id: str, event: Event | Spending) -> None:
        """Counts an event, or an LM call, of the outermost run `run_id`, that arrived `at` a time in seconds."""
        if isinstance(event, RunStarted) and not event.scope:
            self.runs[run_id] = RunningRun(RunningGraph(event.graph), at)
            return
        run = self.runs.get(run_id)
        if run is None:
            return  # it began before the display did
        if isinstance(event, tuple):
            run.spent.add(event)
            self.spent.add(event)
            return
        if not is_built_in(event):
            run.told.append(told(event))
            return
        graph = _graph_at(run, event.scope)
        if graph is None:
            return
        if isinstance(event, NodeStarted):
            if event.node != "START":
                graph.ended.setdefault(event.node, EndedVisits())
                graph.running[event.execution] = RunningNode(event.node, event.branch, event.visit, at)
        elif isinstance(event, Committed):
            run.commits += not event.scope
            graph.commit(event.commit)
        elif isinstance(event, RunEnded) and not event.scope:
            run.status, run.ended = event.status, at
            graph.running.clear()
            self.ended[event.status] += 1
            self.latest.append(self.runs.pop(run_id))
            if event.status == "failed":
                self.failed.append(run)
        else:
            _note(run, graph, at, event)


def _note(run: RunningRun, graph: RunningGraph, at: float, event: Event) -> None:
    """Counts an event that is rarer than starts and commits of nodes."""
    match event:
        case RunStarted():  # inside of a node; a repeated attempt begins it again
            graph.name, graph.ended, graph.running = event.graph, {}, {}
        case RunEnded() if (around := _graph_at(run, event.scope[:-1])) is not None:
            node, key = _place(around, event.scope[-1])
            if node is not None:
                node.inside.pop(key, None)
        case NodeFailed():
            graph.running.pop(event.execution, None)
            graph.ended.setdefault(event.node, EndedVisits()).failed += 1
            if not event.scope:
                run.error = f"{type(event.error).__name__}: {error_text(event.error)}"
        case Asked():
            execution = whole_execution(Address.parse(event.question.execution).inside[len(event.scope)])
            if execution in graph.running:
                graph.running[execution].asks = True
        case ItemStarted() | ItemFinished() | AttemptFailed() | Doing():
            _note_in_node(run, graph, at, event)
        case _:
            pass


def _note_in_node(
    run: RunningRun, graph: RunningGraph, at: float, event: ItemStarted | ItemFinished | AttemptFailed | Doing
) -> None:
    """Counts what a node reports, or one of its items."""
    node, part = _place(graph, event.execution)
    if node is None:
        return
    items = node.items
    match event:
        case ItemStarted():
            if items is None:
                items = node.items = MapProgress(event.items, at)
            items.total = max(items.total, event.items)
            items.started += 1
            items.last = max(items.last, event.item)
        case ItemFinished():
            if items is not None:
                items.ended[event.status] += 1
            node.inside.pop(part, None)
        case Doing():
            node.doing = event.text
        case AttemptFailed():
            run.retries += 1
            keys = Address.parse(event.execution).keys
            if items is not None and keys and keys[0].isdecimal():  # of an item, and not of a router or condenser
                items.retries += 1
            elif not keys:
                node.attempt, node.doing, node.items = event.attempt + 1, "", None
                node.inside.clear()


def _graph_at(run: RunningRun, scope: tuple[str, ...]) -> RunningGraph | None:
    """The graph that a scope leads to; None if what is around it does not run any more."""
    graph = run.graph
    for execution in scope:
        node, key = _place(graph, execution)
        if node is None:
            return None
        graph = node.inside.setdefault(key, RunningGraph(""))
    return graph


def _place(graph: RunningGraph, execution: str) -> tuple[RunningNode | None, str]:
    return graph.running.get(whole_execution(execution)), Address.parse(execution).part


logger = logging.getLogger("dspyer")

REFRESH = 0.25  # seconds between two pictures
_NOT_SHOWN = frozenset((Token, Emitted, Posted, LiveConflict, Forked, Joined, Numbered, Read))


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
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
        ...     writes=["n"]).add_path(START, "add", END)
        >>> with dspyer.progress():
        ...     run = graph.compile().run({"n": 1})
        >>> run.state["n"]
        2
    """
    try:
        from dspyer.display.progress_screen import screen_of_process
    except ImportError as error:
        raise ImportError("dspyer.progress() needs rich: pip install rich") from error
    _display.enter(screen_of_process)
    try:
        yield
    finally:
        _display.leave()


class Display:
    """The display of the process, for all blocks that are active at once: the last one that ends closes it.

    It counts the events of all runs, and has them drawn by a thread of its own.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks = 0
        self._screen: TerminalScreen | NotebookScreen | None = None  # None: nothing is drawn
        self._watching: AbstractContextManager[None] | None = None
        self._arrived: deque[tuple[float, str, Event | Spending]] = deque()

    def enter(self, screen_of: Callable[[], TerminalScreen | NotebookScreen | None]) -> None:
        """Begins to draw for the first block."""
        with self._lock:
            screen = None if self._blocks else screen_of()
            self._blocks += 1
            if screen is None:
                return
            self._screen, self._runs, self._stop = screen, RunningRuns(time.monotonic()), Flag()
            with self._ending_on_error():
                screen.open()
            self._thread = Thread(target=self._draw, name="dspyer-progress", daemon=True)
            self._thread.start()
            self._watching = watching(self._see)
            self._watching.__enter__()  # last: what arrives before the thread runs would only wait

    def leave(self) -> None:
        """Draws the last lines after the last block, and ends."""
        with self._lock:
            self._blocks = max(0, self._blocks - 1)  # a forked process leaves blocks that it has not entered
            if self._blocks or self._watching is None:
                return
            self._watching.__exit__(None, None, None)  # first: nothing arrives while the last lines are drawn
            self._watching = None
            self._stop.set()
            self._thread.join()
            self._show(last=True)
            self._screen = None

    def forget(self) -> None:
        """Ends without drawing: in a forked process, which does not have the thread."""
        self._lock = Lock()  # another one: who held it does not exist here
        if self._watching is not None:
            self._watching.__exit__(None, None, None)
        if self._screen is not None:
            self._screen.release(forked=True)
        self._blocks, self._screen, self._watching = 0, None, None
        self._arrived.clear()

    def _see(self, run_id: str, event: Event | Spending) -> None:
        """Takes an event of a run. Called by the thread of the run: it does nothing that could fail."""
        # An append to a deque is atomic: threads of runs never wait here.
        if type(event) not in _NOT_SHOWN and self._screen is not None:
            self._arrived.append((time.monotonic(), run_id, event))

    def _draw(self) -> None:
        while self._screen is not None and not self._stop.wait(REFRESH):
            self._show()

    def _show(self, *, last: bool = False) -> None:
        if self._screen is not None:
            with self._ending_on_error():
                while self._arrived:  # only one thread at a time takes from the queue, so it needs no lock
                    self._runs.note(*self._arrived.popleft())
                self._screen.show(self._runs, time.monotonic(), last=last)

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            screen, self._screen = self._screen, None
            self._arrived.clear()
            if screen is not None:
                screen.release()
            logger.exception("the display of dspyer.progress() has failed; the runs go on without it")


_display = Display()
at_fork(_display.forget)
