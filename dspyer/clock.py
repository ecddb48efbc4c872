"""The one clock of the package: pauses, time limits of nodes, leases, waits for an LM, and patience with stores.

`testing.clock` and `testing.no_pauses` replace it, for the whole process, by a `FakeClock`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from threading import Condition, Lock
from typing import Final, Literal, NamedTuple, TypeVar

from dspyer.errors import AttemptOverError
from dspyer.waiting import AsyncCalls, StopSignal, may_raise, task_signal

T = TypeVar("T")
Kind = Literal["pause", "timeout", "lease", "live", "slot", "connection", "idle"]
OnStop = Callable[[Callable[[str], object]], AbstractContextManager[None]]
"""`on_stop` of what can end a pause early: a block in which a function is called once with the reason."""

FOREVER = 1e6  # seconds


class Alarm(NamedTuple):
    """A wait that a fake clock holds: until when, and how it is woken."""

    until: float
    kind: Kind
    ring: Callable[[], object]


class FakeClock:
    """A clock that a test moves. What has waited when its block ends waits no longer: its time is over.

    Attributes:
        pauses: the pauses between attempts that were asked for, in seconds, in order.

    Example:
        >>> from dspyer.testing import clock
        >>> with clock() as time:
        ...     before = time.now()
        ...     time.advance(60)
        ...     time.now() - before
        60.0
    """

    def __init__(self, stands: bool) -> None:
        self.pauses: list[float] = []
        self.skips_pauses = False
        # In whole 2**-20 s: sums with whole, half or quarter seconds are exact then, as tests compare them.
        self._stands_at = math.ceil(time.monotonic() * 2**20) / 2**20 if stands else None
        self._ahead = 0.0
        self._alarms: set[Alarm] = set()
        self._changed = Condition()

    def now(self) -> float:
        """Seconds, as `time.monotonic`.

        Example:
            >>> from dspyer.testing import clock
            >>> with clock() as time:
            ...     time.now() == time.now()
            True
        """
        return self._ahead + (time.monotonic() if self._stands_at is None else self._stands_at)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass: what is due by then is woken, in order, before this returns.

        It is as if the process had been suspended: what waits again counts from the new time.

        Args:
            seconds: how many.

        Example:
            >>> from dspyer.testing import clock
            >>> with clock() as time:
            ...     before = time.now()
            ...     time.advance(0.5)
            ...     time.now() - before
            0.5
        """
        with self._changed:
            self._ahead += seconds
            due = {alarm for alarm in self._alarms if alarm.until <= self.now()}
            self._alarms -= due
        for alarm in sorted(due, key=lambda one: one.until):
            alarm.ring()

    def wait_for(self, kind: Kind, count: int = 1, patience: float = 10.0) -> list[float]:
        """Wait until so many things wait for the clock, and return the seconds that each has left, in order.

        In async code: `await asyncio.to_thread(time.wait_for, "pause")`.

        Args:
            kind: `"pause"` (before the next attempt, or an LM's next request), `"timeout"` (an attempt that has one),
                `"lease"` (the renewal of leases), `"live"` (a `ctx.live` with a timeout), `"slot"` (a request that
                waits for others of its LM, under a budget of seconds), `"connection"` (a store on PostgreSQL),
                `"idle"` (a worker thread without a job).
            count: how many, at least.
            patience: seconds of the real clock.

        Raises:
            TimeoutError: there were not so many in time; the message names what waits.

        Example:
            >>> from dspyer.testing import clock
            >>> with clock() as time:
            ...     time.wait_for("lease", patience=0.01)
            Traceback (most recent call last):
            ...
            TimeoutError: only 0 of 1 'lease' waited within 0.01 s; what waits: nothing
        """
        left: list[float] = []

        def waiting() -> bool:
            left[:] = sorted(alarm.until - self.now() for alarm in self._alarms if alarm.kind == kind)
            return len(left) >= count

        with self._changed:
            if self._changed.wait_for(waiting, patience):
                return left
            others = ", ".join(sorted(repr(alarm.kind) for alarm in self._alarms)) or "nothing"
        raise TimeoutError(f"only {len(left)} of {count} {kind!r} waited within {patience:g} s; what waits: {others}")

    @contextmanager
    def _alarm(self, alarm: Alarm) -> Iterator[float | None]:
        """A block in which the alarm rings when it is due; yields the seconds of the real clock until then, if any.

        They are below 0 if it is due already: then the clock was moved before this thread came to wait.
        """
        with self._changed:
            left = alarm.until - self.now()
            if left > 0:
                self._alarms.add(alarm)
                self._changed.notify_all()
        try:
            yield -1.0 if left <= 0 else left if self._stands_at is None else None
        finally:
            with self._changed:
                self._alarms.discard(alarm)


# One for the process, and not one for each context: the threads of a run, of DSPy and of an LM must see the same time.
_fake: FakeClock | None = None


@contextmanager
def fake_clock(*, stands: bool = True, skips_pauses: bool = True) -> Iterator[FakeClock]:
    """A block with a fake clock. What it does not ask for is as around the block."""
    global _fake  # noqa: PLW0603 - see above
    before = _fake
    clock = FakeClock(stands) if before is None or stands else before
    own = clock.skips_pauses, clock.pauses
    _fake, clock.skips_pauses, clock.pauses = clock, skips_pauses, []
    if before is not None and before.skips_pauses and not skips_pauses:
        clock.skips_pauses, clock.pauses = True, before.pauses
    try:
        yield clock
    finally:
        _fake = before
        if clock is before:
            clock.skips_pauses, clock.pauses = own
        else:
            clock.advance(float("inf"))


def current() -> FakeClock | None:
    """The fake clock, while there is one."""
    return _fake


def now() -> float:
    """Seconds, as `time.monotonic`."""
    return time.monotonic() if _fake is None else _fake.now()


def wall() -> float:
    """Unix time, as `time.time`; a fake clock advances it, too."""
    return time.time() if _fake is None else time.time() + _fake.now() - time.monotonic()


def after(seconds: float | None) -> float | None:
    """The value of `now` at that time; None for never."""
    return None if seconds is None else now() + seconds


@may_raise
def get(queue: SimpleQueue[T | None], until: float | None, kind: Kind) -> T | None:
    """The next item of a queue, or None once it is so late. It holds no lock, as `may_raise` asks."""
    if until is not None and _fake is None:  # without the block, which would cost more than the rest
        with suppress(Empty):
            return queue.get(timeout=max(until - time.monotonic(), 0.0))
        return None
    with _alarm(until, kind, partial(queue.put, None)) as seconds, suppress(Empty):
        if seconds is None or seconds >= 0:  # else it is too late for what came meanwhile
            return queue.get(timeout=seconds)
    return None


def wait(changed: Condition, until: float, kind: Kind) -> None:
    """Waits for a condition, whose lock is held, until it is so late."""

    def ring() -> None:
        with changed:
            changed.notify_all()

    with _alarm(until, kind, ring) as seconds:
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

        with _alarm(until, kind, ring) as seconds:
            handle = loop.call_later(FOREVER if seconds is None else seconds, end)
            try:
                yield
            finally:
                handle.cancel()


@contextmanager
def _alarm(until: float | None, kind: Kind, ring: Callable[[], object]) -> Iterator[float | None]:
    """A block in which a fake clock calls `ring` when it is so late; yields the seconds to wait by the real clock."""
    if until is None:
        yield None
    elif (fake := _fake) is None:
        yield max(until - time.monotonic(), 0.0)
    else:
        with fake._alarm(Alarm(until, kind, ring)) as seconds:
            yield seconds


def pause(seconds: float, on_stop: OnStop | None = None) -> None:
    """Waits in sync code. A stop ends the wait at once."""
    if not _is_skipped(seconds):
        ended: SimpleQueue[str | None] = SimpleQueue()
        with nullcontext() if on_stop is None else on_stop(ended.put):
            get(ended, now() + seconds, "pause")


async def apause(seconds: float, on_stop: OnStop | None = None) -> None:
    """Waits in async code. A stop ends the wait at once."""
    if _is_skipped(seconds):
        await asyncio.sleep(0)
        return
    ended, end = task_signal()
    with suppress(TimeoutError), nullcontext() if on_stop is None else on_stop(end):  # the wait is over: no error
        async with timeout(now() + seconds, "pause"):
            await ended


def _is_skipped(seconds: float) -> bool:
    """Return whether a pause ends at once; a fake clock knows of it in any case."""
    if (fake := _fake) is None:
        return False
    fake.pauses.append(seconds)
    if fake.skips_pauses:
        fake.advance(seconds)
    return fake.skips_pauses


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
