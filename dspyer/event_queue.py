"""The queue between a run and the reader of its events. It is bounded: a run that is ahead of its reader waits.

`put` never waits, so that an event can be published under a lock or on an event loop. What produces events waits
afterwards, where it holds nothing: `wait_for_room` in a thread, `room` in async code. The queue therefore holds its
limit and what its producers had in their hands, one event each.

Python's queues are not used: a thread and a task cannot wait for the same one. Here there is no lock: operations of a
deque are atomic, and who waits looks again after having said so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Final, Generic, TypeVar

from dspyer.blocking import is_on_loop, task_signal
from dspyer.ctrl_c import may_raise

T = TypeVar("T")

LIMIT: Final = 1000
"""How many events may wait for the reader."""


class EventQueue(Generic[T]):
    """Events in the order in which they were put. Any thread and any task may put and get them."""

    __slots__ = ("_closed", "_ended", "_events", "_producers", "_readers", "_waits")

    def __init__(self) -> None:
        self._events: deque[T] = deque()
        self._ended = False
        self._closed = False
        self._waits = True
        self._readers = _Waiters()
        self._producers = _Waiters()

    def __len__(self) -> int:
        return len(self._events)

    # --- what produces events

    def put(self, event: T) -> None:
        """Add an event, without waiting; none after `end` or `close`, from a thread that a node has left running."""
        if not (self._closed or self._ended):
            self._events.append(event)
            self._readers.wake()

    @property
    def is_full(self) -> bool:
        """Whether what produces events has to wait."""
        return len(self._events) >= LIMIT and self._waits

    def wait_for_room(self) -> None:
        """Wait until the reader has taken events. On the thread of a running event loop it returns at once.

        There it would stop everything else on the loop, perhaps the reader.
        """
        if self.is_full and not is_on_loop():
            self._producers.wait(lambda: not self.is_full)

    async def room(self) -> None:
        """Wait until the reader has taken events."""
        if self.is_full:
            await self._producers.wait_async(lambda: not self.is_full)

    def end(self) -> None:
        """Say that no further event comes: the reader gets what is there, and then None. Nothing waits any more."""
        self._ended = True
        self._readers.wake()
        self.stop_waiting_for()

    def stop_waiting_for(self, reason: str = "") -> None:
        """From now on nothing waits for the reader: the run is stopped, and what still runs must be able to end."""
        del reason
        self._waits = False
        self._producers.wake()

    # --- the reader

    def get(self) -> T | None:
        """Remove the next event, and wait for it in this thread; None after the last one."""
        while True:
            with suppress(IndexError):
                return self._take()
            if self._ended or self._closed:
                return None
            self._readers.wait(self._has_news)

    async def get_async(self) -> T | None:
        """Remove the next event, and wait for it in this task; None after the last one."""
        while True:
            with suppress(IndexError):
                return self._take()
            if self._ended or self._closed:
                return None
            await self._readers.wait_async(self._has_news)

    async def news(self) -> None:
        """Wait in this task until there is an event, or no further one comes."""
        await self._readers.wait_async(self._has_news)

    def _take(self) -> T:
        event = self._events.popleft()
        if not self.is_full:
            self._producers.wake()
        return event

    def _has_news(self) -> bool:
        return bool(self._events) or self._ended or self._closed

    def close(self) -> None:
        """Drop what is there and what will be put: the reader has gone. Nothing waits any more."""
        self._closed = True
        self._events.clear()
        self._readers.wake()
        self.stop_waiting_for()


class _Waiters:
    """Threads and tasks that wait until something is so."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def wake(self) -> None:
        """Let all look again."""
        while self._waiting:
            with suppress(IndexError):  # another thread has woken the last one
                self._waiting.popleft()()

    @may_raise
    def wait(self, done: Callable[[], bool]) -> None:
        """Wait in this thread."""
        while not done():
            gate = Lock()
            gate.acquire()
            self._waiting.append(gate.release)
            if done():  # only now: what happened before was not seen by `wake`
                return
            gate.acquire()

    async def wait_async(self, done: Callable[[], bool]) -> None:
        """Wait in this task."""
        while not done():
            gate, open_gate = task_signal()
            self._waiting.append(open_gate)
            if done():
                return
            await gate
