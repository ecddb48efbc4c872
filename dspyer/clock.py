"""The time that dspyer waits between two attempts. `testing.no_pauses` replaces it by a clock that does not wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from dspyer.ctrl_c import may_raise


class Stop(Protocol):
    """What can end a pause early: the stop signal of a run."""

    def on_stop(self, callback: Callable[[str], object]) -> AbstractContextManager[None]:
        """A block in which `callback` is called with the reason if the run is stopped, or was before."""


class FakeClock:
    """A clock for tests: a pause ends at once, and the clock advances by it.

    Attributes:
        pauses: the pauses that were asked for, in seconds, in order of arrival.
    """

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._lock = threading.Lock()
        self._now = time.monotonic()

    def now(self) -> float:
        """Seconds, as `time.monotonic`."""
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        """Records a pause, and lets its time pass."""
        with self._lock:
            self.pauses.append(seconds)
            self._now += seconds


# One for the process, and not one for each context: the threads of a run, of DSPy and of an LM must see the same time.
_fake: FakeClock | None = None


@contextmanager
def fake_clock() -> Iterator[FakeClock]:
    """A block in which no pause waits."""
    global _fake  # noqa: PLW0603 - see above
    before, _fake = _fake, FakeClock()
    try:
        yield _fake
    finally:
        _fake = before


def now() -> float:
    """Seconds, as `time.monotonic`."""
    return time.monotonic() if _fake is None else _fake.now()


def wall() -> float:
    """Unix time, as `time.time`; a fake clock advances it, too."""
    return time.time() if _fake is None else time.time() + _fake.now() - time.monotonic()


@may_raise
def pause(seconds: float, stop: Stop | None = None) -> None:
    """Waits in sync code. A stop ends the wait at once."""
    if _fake is not None:
        _fake.advance(seconds)
        return
    ended: SimpleQueue[str] = SimpleQueue()
    with nullcontext() if stop is None else stop.on_stop(ended.put), suppress(Empty):
        ended.get(timeout=seconds)


async def apause(seconds: float, stop: Stop | None = None) -> None:
    """Waits in async code. A stop ends the wait at once."""
    if _fake is not None:
        _fake.advance(seconds)
        await asyncio.sleep(0)
        return
    if stop is None:
        await asyncio.sleep(seconds)
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake(_reason: str) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile: nothing waits there any more
            loop.call_soon_threadsafe(ended.set)

    with stop.on_stop(wake), suppress(TimeoutError):  # the wait is over, and that is no error
        await asyncio.wait_for(ended.wait(), seconds)
