"""The one clock of the package: pauses, time limits of nodes, leases, waits for an LM, and patience with stores.

`testing.clock` and `testing.no_pauses` replace it, for the whole process, by a `testing.FakeClock`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from threading import Condition, Lock
from typing import Final, Literal, TypeVar

from dspyer.errors import AttemptOverError
from dspyer.waiting import AsyncCalls, StopSignal, may_raise, task_signal

T = TypeVar("T")
Kind = Literal["pause", "timeout", "lease", "live", "slot", "connection", "idle"]
OnStop = Callable[[Callable[[str], object]], AbstractContextManager[None]]
"""`on_stop` of what can end a pause early: a block in which a function is called once with the reason."""

FOREVER = 1e6  # seconds


class Clock:
    """The real clock, of which a fake one changes what it needs."""

    def now(self) -> float:
        """Seconds, as `time.monotonic`."""
        return time.monotonic()

    def wall(self) -> float:
        """Unix time, as `time.time`."""
        return time.time()

    @contextmanager
    def alarm(self, until: float | None, kind: Kind, ring: Callable[[], object]) -> Iterator[float | None]:
        """A block in which something is waited for; yields the seconds to wait by the real clock, None for no end.

        A clock that is moved calls `ring` when it is so late.
        """
        del kind, ring
        yield None if until is None else max(until - time.monotonic(), 0.0)

    def skips(self, seconds: float) -> bool:
        """Return whether a pause ends at once."""
        del seconds
        return False


# One for the process, and not one for each context: the threads of a run, of DSPy and of an LM must see the same time.
REAL: Final = Clock()
_clock: Clock = REAL


def current() -> Clock:
    """The clock that holds now."""
    return _clock


def set_clock(clock: Clock) -> None:
    """Makes a clock that of the process."""
    global _clock  # noqa: PLW0603 - see above
    _clock = clock


def now() -> float:
    """Seconds, as `time.monotonic`."""
    return _clock.now()


def wall() -> float:
    """Unix time, as `time.time`; a fake clock advances it, too."""
    return _clock.wall()


def after(seconds: float | None) -> float | None:
    """The value of `now` at that time; None for never."""
    return None if seconds is None else now() + seconds


METRICS: Final = "opentelemetry.metrics"
"""The module that a program which counts has imported."""

timers: Final[list[Callable[[str, object, float], object]]] = []
"""Called with what took how many seconds, and the store; they must not raise. See `dspyer.tracing`."""


def report_time(what: str, store: object, began: float) -> None:
    """Tells those who count the times of stores; they hear of nothing in a program that does not count."""
    if METRICS in sys.modules:
        for timer in timers:
            timer(what, store, now() - began)


@may_raise
def get(queue: SimpleQueue[T | None], until: float | None, kind: Kind) -> T | None:
    """The next item of a queue, or None once it is so late. It holds no lock, as `may_raise` asks."""
    if until is not None and _clock is REAL:  # without the block, which would cost more than the rest
        with suppress(Empty):
            return queue.get(timeout=max(until - time.monotonic(), 0.0))
        return None
    with _clock.alarm(until, kind, partial(queue.put, None)) as seconds, suppress(Empty):
        if seconds is None or seconds >= 0:  # else it is too late for what came meanwhile
            return queue.get(timeout=seconds)
    return None


def wait(changed: Condition, until: float, kind: Kind) -> None:
    """Waits for a condition, whose lock is held, until it is so late."""

    def ring() -> None:
        with changed:
            changed.notify_all()

    with _clock.alarm(until, kind, ring) as seconds:
        changed.wait(seconds)


@asynccontextmanager
async def timeout(until: float | None, kind: Kind, first: Callable[[], object] = int) -> AsyncIterator[None]:
    """A block of async code that is cancelled, and raises `TimeoutError`, once it is so late; `first` comes before."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as timer:

        def end() -> None:
            if handle.cancelled():  # the block has ended, or this was called before
                return
            handle.cancel()
            first()
            timer.reschedule(loop.time())

        def ring() -> None:  # in any thread
            with suppress(RuntimeError):  # the loop was closed meanwhile: nothing waits there any more
                loop.call_soon_threadsafe(end)

        with _clock.alarm(until, kind, ring) as seconds:
            handle = loop.call_later(FOREVER if seconds is None else seconds, end)
            try:
                yield
            finally:
                handle.cancel()


def pause(seconds: float, on_stop: OnStop | None = None) -> None:
    """Waits in sync code. A stop ends the wait at once."""
    if not _clock.skips(seconds):
        ended: SimpleQueue[str | None] = SimpleQueue()
        with nullcontext() if on_stop is None else on_stop(ended.put):
            get(ended, now() + seconds, "pause")


async def apause(seconds: float, on_stop: OnStop | None = None) -> None:
    """Waits in async code. A stop ends the wait at once."""
    if _clock.skips(seconds):
        await asyncio.sleep(0)
        return
    ended, end = task_signal()
    with suppress(TimeoutError), nullcontext() if on_stop is None else on_stop(end):  # the wait is over: no error
        async with timeout(now() + seconds, "pause"):
            await ended


# --- the time of one attempt of a node

TIMED_OUT: Final = "a node that contains it timed out"
OVER: Final = "this attempt timed out and was left running in its thread: nothing that it does counts any more"


class TimeLimit:
    """The time that one attempt of a node has. What the attempt does after it does not count.

    Attributes:
        seconds: how long it is.
        ends: when it is over, by `clock.now`.
        around: the limit of a node that contains this one.
        signal: stops the runs inside of the attempt when the time is over.
        calls: the async calls that sync code of the attempt waits for; they are cancelled.
    """

    __slots__ = ("_left_running", "_lock", "_on_leave", "around", "calls", "ends", "seconds", "signal")

    def __init__(self, seconds: float, around: TimeLimit | None = None) -> None:
        self.seconds = seconds
        self.around = around
        self.signal = StopSignal()
        self.calls = AsyncCalls()
        self._left_running = False
        self._on_leave: dict[object, Callable[[], object]] = {}
        self.ends = now() + seconds
        self._lock: Lock = Lock() if around is None else around._lock

    @property
    def over(self) -> bool:
        """Return whether the time of the attempt, or of a node that contains it, is over."""
        return self.signal.reason is not None or (self.around is not None and self.around.over)

    def left(self) -> float:
        """The seconds that are left, at least 0."""
        own = max(self.ends - now(), 0.0)
        return own if self.around is None else min(own, self.around.left())

    def end(self) -> None:
        """Ends the time: runs inside are stopped, async calls cancelled."""
        self.signal.stop(TIMED_OUT)
        self.calls.cancel()  # after the runs were stopped: to them the cancellation is a part of the stop

    @property
    def left_running(self) -> bool:
        """Return whether sync code of the attempt, or of a node that contains it, was left running in its thread."""
        return self._left_running or (self.around is not None and self.around.left_running)

    def leave_running(self) -> None:
        """Marks the attempt as left running, and those around it whose time is over: they contain its code.

        When this returns, no run inside of them writes anything any more, and each has handed over what it has written.
        """
        with self._lock:
            limit: TimeLimit | None = self
            while limit is not None and limit.over:
                limit._left_running = True
                for hand_over in list(limit._on_leave.values()):
                    hand_over()
                limit = limit.around

    @contextmanager
    def on_leave(self, hand_over: Callable[[], object]) -> Iterator[None]:
        """Calls a function if code of the attempt is left running during the block, or was before; no run writes then.

        It may be called several times.
        """
        limits: list[TimeLimit] = []
        limit: TimeLimit | None = self
        while limit is not None:
            limits.append(limit)
            limit = limit.around
        key = object()
        with self._lock:
            for one in limits:
                one._on_leave[key] = hand_over
            if self.left_running:
                hand_over()
        try:
            yield
        finally:
            with self._lock:
                for one in limits:
                    del one._on_leave[key]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A block in which a run inside of the attempt writes to the store."""
        with self._lock:
            if self.left_running:
                raise AttemptOverError(OVER)
            yield


current_limit: ContextVar[TimeLimit | None] = ContextVar("dspyer_time_limit", default=None)
"""The limit of the attempt in which the code runs; None for none."""
