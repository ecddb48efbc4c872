"""One kind of graph on a store that fails, and a second program that resumes what the first one left."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from dspyer import CompiledGraph, Run, Thread
from dspyer.stores import Store
from tests.log.equality import Outcome, decided, finished, left_to_call, outcome
from tests.log.failing import Failing, FailingMemory, FailingSQLite
from tests.log.kinds import CALLS, INPUTS, Called, Kind


class Mode(NamedTuple):
    """Whether nodes and driver are sync or async, over which store, and whether async writes go to a thread."""

    call_mode: str
    store: Callable[[Path], Failing]
    inline: bool = True


MODES = {
    "sync, memory": Mode("sync", lambda path: FailingMemory()),
    "sync, sqlite": Mode("sync", lambda path: FailingSQLite(path / "runs.db")),
    "async, memory, writes in a thread": Mode("async", lambda path: FailingMemory(), inline=False),
    "async, sqlite": Mode("async", lambda path: FailingSQLite(path / "runs.db")),
}


FEWER = ["sync, sqlite", "async, memory, writes in a thread"]
"""Modes that show each difference once."""

ON_DISK = ("chain", "fork", "map", "error edges")
"""Kinds of graphs that are tried in a file as well: a graph and a store know nothing of each other."""


FAULTS = (
    (0, False, 1),
    (0, True, 2),
    (1, True, 1),
    (1, False, 4),
)
"""Number of the mode, whether after the write, first write of every fourth: all lengths of the log, each once."""


def modes_of(kind: str) -> list[str]:
    """The modes that share the writes of a kind of graph between them."""
    return ["sync, sqlite" if kind in ON_DISK else "sync, memory", FEWER[1]]


def start(thread: Thread, call_mode: str, inputs: dict[str, Any] = INPUTS) -> Run:
    """Run, sync or async."""
    return thread.run(inputs) if call_mode == "sync" else asyncio.run(thread.arun(inputs))


def go_on(thread: Thread, call_mode: str, **options: Any) -> Run:
    """Resume, sync or async."""
    return thread.resume(**options) if call_mode == "sync" else asyncio.run(thread.aresume(**options))


class Whole(NamedTuple):
    """A run that nothing has happened to."""

    outcome: Outcome
    calls: Counter[Called]


class Place:
    """One kind of graph in one mode, with two programs.

    Attributes:
        whole: what comes of a run that nothing happens to.
    """

    def __init__(self, kind: Kind, mode: Mode, path: Path) -> None:
        self.kind = kind
        self.mode = mode
        self.call_mode = mode.call_mode
        self.store = mode.store(path)
        self.first = kind.compile(self.call_mode, self.store)
        self.second = kind.compile(self.call_mode, self.store)
        CALLS.take()
        with kind.lm():
            self.whole = Whole(outcome(start(self.first.thread("whole"), self.call_mode)), CALLS.take())
        assert self.whole.outcome.status == "completed"

    def arm(self, fail: Callable[[], None], at: int, after: bool, forever: bool = True) -> None:
        """Lets a write fail."""
        self.store.arm(fail, at, after, forever)
        self.store.inline = self.mode.inline
        CALLS.take()

    def check_the_rest(self, name: str) -> None:
        """Goes on in the other program, as `check_the_rest` says."""
        self.store.rest()
        with self.kind.lm():
            check_the_rest(self.second, self.store, name, self.whole, self.call_mode)


def check_the_rest(program: CompiledGraph, store: Store, name: str, whole: Whole, call_mode: str) -> None:
    """Goes on with a thread to the same end, with each call that is left made once and no other.

    A thread without a run is run; one whose run is complete is only read.
    """
    CALLS.take()
    thread = program.thread(name)
    status, done, policies = thread.status, finished(store, name), decided(store, name)
    if status == "completed":
        assert thread.state.to_dict() == whole.outcome.state
        return
    run = start(thread, call_mode) if status == "new" else go_on(thread, call_mode)
    calls = CALLS.take()
    assert outcome(run) == whole.outcome
    assert (thread.state, thread.status) == (run.state, "completed")
    assert nodes(calls) == nodes(left_to_call(whole.calls, done))
    assert policies_of(calls) == policies_of(whole.calls) - policies


def nodes(calls: Counter[Called]) -> Counter[Called]:
    """The calls of all but policies, which know no execution."""
    return Counter({call: count for call, count in calls.items() if call.what != "policy"})


def policies_of(calls: Counter[Called]) -> int:
    """How often a policy was called."""
    return sum(count for call, count in calls.items() if call.what == "policy")
