"""Runs that own a thread while a test looks on: gates, background runs, a store that reports its use, a clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Kept, Run, reducers
from dspyer.stores import Memory
from dspyer.stores.base import Change, Owner, Store, ThreadRow
from dspyer.testing import FakeClock


class Count(BaseModel):
    n: Kept[Annotated[int, reducers.increment]] = 0
    log: Kept[Annotated[list[str], reducers.extend]] = []


class Gate:
    """A node that waits until the test opens the gate."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.opened = threading.Event()
        self.calls = 0

    def work(self, state: Any) -> dict[str, Any]:
        self.calls += 1
        self.inside.set()
        assert self.opened.wait(20)
        return {"log": ["gate"]}

    async def awork(self, state: Any) -> dict[str, Any]:
        self.calls += 1
        self.inside.set()
        await asyncio.sleep(3600)
        return {"log": ["gate"]}


def gated(gate: Gate, store: Store, work: Callable[..., Any] | None = None) -> CompiledGraph:
    graph = Graph(Count, inputs=["n"]).add_node("before", lambda state: {"log": ["before"]})
    graph.add_node("gate", work or gate.work).add_node("after", lambda state: {"log": ["after"]})
    return graph.add_path(START, "before", "gate", "after", END).compile(store=store)


class BackgroundRun:
    """A run in a thread of its own."""

    def __init__(self, work: Callable[[], Run | None]) -> None:
        self.result: Run | None = None
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised by `end`
            self.error = error

    def wait(self) -> None:
        """Wait for its end, and raise what it has raised."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def end(self) -> Run:
        self.wait()
        assert self.result is not None
        return self.result


class WatchedStore(Memory):
    """Counts reads of the rows of threads, and calls functions of the test before and after each write."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = threading.Semaphore(0)
        self.before: Callable[[Change], None] = lambda change: None
        self.after: Callable[[Change], None] = lambda change: None
        self.writes_at_once = True

    def thread(self, name: str) -> ThreadRow | None:
        found = super().thread(name)
        self.reads.release()
        return found

    def write(self, change: Change) -> int:
        self.before(change)
        epoch = super().write(change)
        self.after(change)
        return epoch

    def write_now(self, change: Change) -> bool:
        if self.writes_at_once:
            self.write(change)
        return self.writes_at_once

    def wait_for_reads(self, times: int) -> None:
        """Wait until the row of a thread was read so many times more."""
        while self.reads.acquire(blocking=False):
            pass
        for _ in range(times):
            assert self.reads.acquire(timeout=20)


class Clock:
    """The clock of the process, which the test puts forward without waking anybody: as of a machine that slept."""

    def __init__(self, time: FakeClock) -> None:
        self.ahead = 0.0
        standing = time.now
        time.now = lambda: standing() + self.ahead  # type: ignore[method-assign]


def owner_of(store: Store, thread: str = "t") -> Owner | None:
    """The owner of a thread that exists."""
    row = store.thread(thread)
    assert row is not None
    return row.owner


Row = TypeVar("Row")


def failing_rows(rows: Mapping[str, Row], check: Callable[[Row], object]) -> list[str]:
    """The rows of a table for which a check raises, each with what it has raised."""
    found = []
    for name, row in rows.items():
        try:
            check(row)
        except Exception as error:  # noqa: BLE001 - the test lists it
            found.append(f"{name}: {type(error).__name__}: {error}")
    return found
