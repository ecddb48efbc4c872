"""The clock of tests: it stands, or lets no pause wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import NamedTuple

from dspyer.clock import Clock, Kind, current, set_clock


class Alarm(NamedTuple):
    """A wait that a fake clock holds: until when, and how it is woken."""

    until: float
    kind: Kind
    ring: Callable[[], object]


class FakeClock(Clock):
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
        # Read once: a thread that is interrupted between two reads would see time go backwards.
        self._epoch = math.ceil((time.time() - time.monotonic()) * 2**20) / 2**20
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
        # Outside of the lock: what is woken may ask for the time, or wait again, before `ring` returns.
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
            # By the real clock: this one stands, and a test that waits for nothing must end.
            if self._changed.wait_for(waiting, patience):
                return left
            others = ", ".join(sorted(repr(alarm.kind) for alarm in self._alarms)) or "nothing"
        raise TimeoutError(f"only {len(left)} of {count} {kind!r} waited within {patience:g} s; what waits: {others}")

    def wall(self) -> float:
        """Unix time: that of the system when this clock was made, moved as this clock was.

        Example:
            >>> from dspyer.testing import clock
            >>> with clock() as time:
            ...     before = time.wall()
            ...     time.advance(60)
            ...     round(time.wall() - before)
            60
        """
        return self._epoch + self.now()

    def skips(self, seconds: float) -> bool:
        """Note a pause, and let it pass if that is asked for; return whether it was.

        Args:
            seconds: how long the pause is.

        Example:
            >>> from dspyer.testing import clock
            >>> with clock() as time:
            ...     time.skips(5.0), time.pauses
            (False, [5.0])
        """
        self.pauses.append(seconds)
        if self.skips_pauses:
            self.advance(seconds)
        return self.skips_pauses

    @contextmanager
    def alarm(self, until: float | None, kind: Kind, ring: Callable[[], object]) -> Iterator[float | None]:
        """A block in which `ring` is called when it is so late; yields the seconds of the real clock until then.

        They are below 0 if it is due already: then the clock was moved before this thread came to wait.

        Args:
            until: the time by `now`; None for never.
            kind: what waits, as in `wait_for`.
            ring: may be called in any thread.

        Example:
            >>> from dspyer.testing import clock
            >>> with clock() as time, time.alarm(time.now() - 1, "pause",
            ...     print) as left:
            ...     left
            -1.0
        """
        if until is None:
            yield None
            return
        alarm = Alarm(until, kind, ring)
        with self._changed:
            left = until - self.now()
            if left > 0:
                self._alarms.add(alarm)
                self._changed.notify_all()
        try:
            yield -1.0 if left <= 0 else left if self._stands_at is None else None
        finally:
            with self._changed:
                self._alarms.discard(alarm)


@contextmanager
def fake_clock(*, stands: bool = True, skips_pauses: bool = True) -> Iterator[FakeClock]:
    """A block with a fake clock. What it does not ask for is as around the block."""
    before = current()
    around = before if isinstance(before, FakeClock) else None
    clock = FakeClock(stands) if around is None or stands else around
    own = clock.skips_pauses, clock.pauses
    set_clock(clock)
    clock.skips_pauses, clock.pauses = skips_pauses, []
    if around is not None and around.skips_pauses and not skips_pauses:
        clock.skips_pauses, clock.pauses = True, around.pauses
    try:
        yield clock
    finally:
        set_clock(before)
        # A block inside of another one has changed that one's clock, and gives it back as it was.
        if clock is before:
            clock.skips_pauses, clock.pauses = own
        else:
            clock.advance(float("inf"))


@contextmanager
def clock() -> Iterator[FakeClock]:
    """A block in which time stands still, but for `advance`: what waits for a time waits for the test.

    These are the pauses between attempts and before requests to an LM, the timeouts of nodes and of `ctx.live`, the
    seconds of budgets, the leases of threads in memory or SQLite and their renewal, `lock_timeout`, and the time that a
    cached reply is kept. PostgreSQL compares leases by the clock of its server. The block holds for the whole process;
    what a node itself waits for, and the duration of events, are not changed. With `no_pauses`, in it or around it, no
    pause waits.

    Returns:
        The clock, which any thread may move.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from threading import Event
        >>> from dspyer import END, START, Graph
        >>> answered = Event()
        >>> graph = Graph().add_node("ask", lambda: answered.wait(60) and {},
        ...     writes=[], timeout=30)
        >>> program = graph.add_path(START, "ask", END).compile()
        >>> with clock() as time, ThreadPoolExecutor() as pool:
        ...     run = pool.submit(program.run, {})
        ...     left = time.wait_for("timeout")  # until the node has begun
        ...     time.advance(31)
        ...     error = run.result().error
        >>> left, type(error).__name__
        ([30.0], 'NodeTimeoutError')
        >>> answered.set()  # a sync function is left running
    """
    with fake_clock(skips_pauses=False) as found:
        yield found


@contextmanager
def no_pauses() -> Iterator[list[float]]:
    """A block in which the pauses between attempts do not wait: those of retries, and of `dspyer.lms.reliable`.

    It holds for the whole process. What a node itself waits for is not changed; a timeout or a budget counts a pause as
    time that has passed.

    Returns:
        The pauses that were asked for in the block, in seconds, in order.

    Example:
        >>> from tenacity import wait_fixed
        >>> from dspyer import END, START, Graph, Retry
        >>> calls = iter([ConnectionError("no line"), {"text": "hello"}])
        >>> def fetch():
        ...     found = next(calls)
        ...     if isinstance(found, Exception):
        ...         raise found
        ...     return found
        >>> graph = Graph().add_node("fetch", fetch, writes=["text"],
        ...     retry=Retry(3, wait=wait_fixed(20)))
        >>> with no_pauses() as pauses:
        ...     run = graph.add_path(START, "fetch", END).compile().run({})
        >>> run.status, pauses
        ('completed', [20.0])
    """
    with fake_clock(stands=False) as found:
        yield found.pauses
