"""Timeouts of nodes that end when a test says so: on a slow machine an attempt that must be in time always is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dspyer.nodes import timed
from dspyer.stopping import TimeLimit, current_limit

TimeIsOver = Callable[[], None]
PATIENCE = 20.0  # seconds after which a test gives up
LONG = 5.0  # a timeout of so many seconds is one that no attempt reaches


class Timers:
    """What `dspyer.nodes.timed` measures time with."""

    def __init__(self) -> None:
        self._ends: list[tuple[TimeLimit | None, Callable[[], object]]] = []

    def time_is_over(self) -> None:
        """Ends the short timeouts of the attempt that calls it, or of all attempts that have begun if none does."""
        limit, limits = current_limit.get(), list[TimeLimit]()
        while limit is not None:
            limits.append(limit)
            limit = limit.around
        for one, end in list(self._ends):
            if one in limits or not limits:
                self._ends.remove((one, end))
                end()

    def event(self) -> Event:
        """In place of `threading.Event()`: what sync code waits for."""
        found = Event()
        self._ends.append((current_limit.get(), found.end))
        return found

    def get_running_loop(self) -> Any:
        """In place of `asyncio.get_running_loop()`: what async code gets a timer from."""
        loop = asyncio.get_running_loop()

        def call_later(seconds: float, end: Callable[[], None]) -> Any:
            if seconds >= LONG:
                return loop.call_later(seconds, end)
            waiting = [end]

            def end_now() -> None:
                if waiting:
                    waiting.pop()()

            self._ends.append((current_limit.get(), lambda: waiting and loop.call_soon_threadsafe(end_now)))
            return SimpleNamespace(cancel=waiting.clear)

        return SimpleNamespace(time=loop.time, call_later=call_later)


class Event:
    """The end of an attempt in a thread: it is waited for until the attempt or its time has ended."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._set = self._over = False

    def end(self) -> None:
        """The time is over."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def set(self) -> None:
        """The attempt has ended."""
        with self._changed:
            self._set = True
            self._changed.notify_all()

    def is_set(self) -> bool:
        """Whether the attempt has ended."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """Waits for one of both; once the time was over, for the end of the attempt."""
        with self._changed:
            self._changed.wait_for(lambda: self._set or (self._over and seconds < LONG), max(seconds, PATIENCE))
            self._over = False
        return self._set


@pytest.fixture
def time_is_over(monkeypatch: pytest.MonkeyPatch) -> TimeIsOver:
    """Ends the time of the attempt that calls it, or of all that have begun; none ends by itself."""
    timers = Timers()
    monkeypatch.setattr(timed, "Event", timers.event)
    asyncio_ = SimpleNamespace(
        get_running_loop=timers.get_running_loop, timeout=asyncio.timeout, CancelledError=asyncio.CancelledError
    )
    monkeypatch.setattr(timed, "asyncio", asyncio_)
    return timers.time_is_over
