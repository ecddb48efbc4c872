"""The gate of one LM: when its next request may be sent. Threads, event loops and copies of the LM share it.

A caller takes a slot of `max_concurrency`, and then a time. Times are given out evenly spaced, as in the generic cell
rate algorithm with a burst of one (ITU-T I.371): a server that counts in windows of any length sees no more than its
limit. The next time is one number, so a caller sleeps once and wakes once however many wait; it depends on no other
thread or loop to wake it.

A server that asks to wait (`Retry-After`) holds back every caller: times before the end of the hold are void, and a
caller that had one asks for another when it wakes.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple
from weakref import WeakSet

from dspyer import clock
from dspyer.clock import OVER, current_limit
from dspyer.errors import AttemptOverError
from dspyer.lm.tap import current_gate
from dspyer.waiting import at_fork, end_of, is_on_loop

NO_TIME = 1e-9
"""Seconds that are the rest of a rounded sum, and no time to wait."""


class RateLimits(NamedTuple):
    """The limits of a gate, per LM. None is no limit."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrency: int | None = None


class InQueue:
    """Limits that end a wait before a request: the time of the node, and the budgets of the runs around the caller.

    Async code has no need of the first: its task is cancelled.
    """

    __slots__ = ("_budget", "_limit")

    def __init__(self, is_async: bool) -> None:
        self._limit = None if is_async else current_limit.get()
        self._budget = current_gate()

    def bounded(self, seconds: float | None) -> float | None:
        """The seconds to wait, at most until the deadline of a budget; None for no bound."""
        left = None if self._budget is None else self._budget.seconds_left()
        if left is None:
            return seconds
        left += 0.001  # after the deadline: rounding must not wake the caller before it
        return left if seconds is None else min(seconds, left)

    @contextmanager
    def on_stop(self, callback: Callable[[str], object]) -> Iterator[None]:
        """Calls `callback` if something ends the wait during the block, or has ended it before."""
        with ExitStack() as stack:
            if self._limit is not None:
                stack.enter_context(self._limit.signal.on_stop(callback))
            if self._budget is not None:
                stack.enter_context(self._budget.on_used_up(callback))
            yield

    def raise_if_ended(self) -> None:
        """Raises what the request itself would raise: it must not be made any more."""
        if self._limit is not None:
            raise_if_over()
        if self._budget is not None:
            self._budget.raise_if_used_up()


class Sleep(NamedTuple):
    """A step that waits."""

    seconds: float

    def call(self, _call: object) -> None:
        """In sync code: other threads run."""
        waiting = InQueue(is_async=False)
        clock.pause(waiting.bounded(self.seconds) or 0.0, waiting.on_stop)
        waiting.raise_if_ended()

    async def acall(self, _call: object) -> None:
        """In async code: other tasks run."""
        waiting = InQueue(is_async=True)
        await clock.apause(waiting.bounded(self.seconds) or 0.0, waiting.on_stop)
        waiting.raise_if_ended()


def raise_if_over() -> None:
    """A sync node that has timed out was left running: it must not make requests any more."""
    limit = current_limit.get()
    if limit is not None and limit.over:
        raise AttemptOverError(OVER)


class SlotPlace(Future[None]):
    """A place in the queue for a slot: done once its caller has one. A task waits in its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__()
        self._loop = loop

    def take(self) -> bool:
        """Return whether the caller still waits; then it is to be granted a slot."""
        if self._loop is not None and self._loop.is_closed():
            return False  # its task never runs again, and would keep the slot
        return self.set_running_or_notify_cancel()


class Slots:
    """A semaphore for threads and the tasks of several event loops at once, first come first served."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[SlotPlace] = deque()
        # Reentrant: the garbage collector, which runs at any time, ends the tasks of loops that were closed.
        self._lock = threading.RLock()

    def acquire(self, wait: bool = True, loop: asyncio.AbstractEventLoop | None = None) -> SlotPlace | None:
        """Takes a slot and returns None; if none is free, returns a place that is done once the caller has one.

        Without `wait` the slot is taken in any case, so that one more than allowed may be in use.
        """
        place = SlotPlace(loop)
        with self._lock:
            if self._free > 0 or not wait:
                self._free -= 1
                return None
            self._waiting.append(place)
            return place

    def release(self) -> None:
        """Gives a slot back: to the first that waits and has not given up."""
        granted: SlotPlace | None = None
        with self._lock:
            self._free += 1
            while self._free > 0 and self._waiting and granted is None:
                first = self._waiting.popleft()
                if first.take():
                    self._free -= 1
                    granted = first
        if granted is not None:
            granted.set_result(None)  # outside of the lock: it runs callbacks


class SlotStep(NamedTuple):
    """A step that takes a slot."""

    slots: Slots

    def call(self, _call: object) -> None:
        """In sync code."""
        # A sync call within an event loop blocks the loop. If it waited, then the tasks of the loop that hold the slots
        # would never give them back. So it goes first: one request too many, and only one per loop at a time.
        slot = self.slots.acquire(wait=not is_on_loop())
        if slot is None:
            return
        waiting = InQueue(is_async=False)
        try:
            with waiting.on_stop(lambda _reason: slot.cancel()):
                while clock.get(end_of(slot), clock.after(waiting.bounded(None)), "slot") is None or slot.cancelled():
                    waiting.raise_if_ended()
        except BaseException:
            self._give_up(slot)
            raise

    async def acall(self, _call: object) -> None:
        """In async code."""
        slot = self.slots.acquire(loop=asyncio.get_running_loop())
        if slot is None:
            return
        waiting, here = InQueue(is_async=True), asyncio.wrap_future(slot)
        try:
            with waiting.on_stop(lambda _reason: slot.cancel()):
                while not await _granted_here(here, waiting.bounded(None)):
                    waiting.raise_if_ended()
        except BaseException:
            self._give_up(slot)
            raise

    def _give_up(self, slot: Future[None]) -> None:
        if not slot.cancel():  # it was granted meanwhile
            self.slots.release()


class Gate:
    """Says when a request may be sent. `enter` before it, `leave` after it."""

    def __init__(self, limits: RateLimits) -> None:
        self.limits = limits
        self._slots = None if limits.max_concurrency is None else Slots(limits.max_concurrency)
        per_minute = limits.requests_per_minute
        self._interval = 0.0 if per_minute is None else 60 / per_minute
        self._per_token = 0.0 if limits.tokens_per_minute is None else 60 / limits.tokens_per_minute
        self._lock = threading.RLock()  # as that of `Slots`
        self._next = 0.0  # from when on the next request may be sent
        self._tokens_next = 0.0  # the same, by the tokens of the requests before it
        self._corrected = 0.0  # by how many seconds all corrections have moved it
        self._returned: list[float] = []  # a heap of times that callers have given back
        self._held_until = 0.0
        self._cooling_until = 0.0
        self._cooled_at = 0.0
        _gates.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Gate:
        return self  # optimizers copy programs with their LMs, and all of these share the provider's limit

    def __reduce__(self) -> tuple[type[Gate], tuple[RateLimits]]:
        return type(self), (self.limits,)

    @property
    def is_open(self) -> bool:
        """Return whether a request never has to wait here."""
        return self.limits == RateLimits() and clock.now() >= self._held_until

    def enter(self, tokens: int, requests: int = 1) -> Generator[tuple[Any, Any], Any, None]:
        """Waits until so many tokens may be sent, in so many requests one after the other. A caller that is cancelled
        gives back what it has.
        """
        if self._slots is not None:
            yield SlotStep(self._slots), None
        try:
            while not (yield from self._take_time(tokens, requests)):
                pass
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Gives the slot back."""
        if self._slots is not None:
            self._slots.release()

    def _take_time(self, tokens: int, requests: int) -> Generator[tuple[Any, Any], Any, bool]:
        at, uncorrected = self._reserve(tokens, requests)
        try:
            # While this caller waits, responses show that requests before it have used more than they had reserved.
            while (left := max(at, uncorrected + self._corrected) - clock.now()) > NO_TIME:
                yield Sleep(left), None
        except BaseException:
            self._return(at, tokens)
            raise
        if at >= self._held_until:
            return True
        self._return(at, tokens)  # the server has asked to wait while this caller did
        return False

    def _reserve(self, tokens: int, requests: int) -> tuple[float, float]:
        """Returns when the requests may be sent, and the same by tokens alone, before any correction."""
        with self._lock:
            uncorrected = self._tokens_next - self._corrected
            earliest = max(clock.now(), self._held_until, self._tokens_next)
            while self._returned and self._returned[0] < earliest:
                heapq.heappop(self._returned)
            at = heapq.heappop(self._returned) if self._returned else max(earliest, self._next)
            self._next = max(self._next + (requests - 1) * self._interval, at + requests * self._interval)
            if self._per_token:
                self._tokens_next = at + tokens * self._per_token
            return at, uncorrected

    def _return(self, at: float, tokens: int) -> None:
        with self._lock:
            if self._interval:
                heapq.heappush(self._returned, at)
            self._tokens_next -= tokens * self._per_token

    def correct(self, reserved: int, used: int) -> None:
        """Replaces the tokens that were reserved for a request by those that it used."""
        seconds = (used - reserved) * self._per_token
        with self._lock:
            self._tokens_next += seconds
            self._corrected += seconds

    def hold(self, seconds: float) -> None:
        """Lets nothing be sent for so long: the server has asked for it."""
        with self._lock:
            self._held_until = max(self._held_until, clock.now() + seconds)

    # --- cooldown

    @property
    def cooling(self) -> bool:
        """Return whether the LM has failed so recently that another one should be asked."""
        return clock.now() < self._cooling_until

    def cool(self, seconds: float) -> None:
        """Skip the LM for so long, if there is another one."""
        self._cooled_at = clock.now()
        self._cooling_until = max(self._cooling_until, self._cooled_at + seconds)

    def succeeded(self, sent: float) -> None:
        """A request that was sent at this time has succeeded. An earlier one than the failure says nothing about it."""
        if sent >= self._cooled_at:
            self._cooling_until = 0.0


async def _granted_here(slot: asyncio.Future[None], seconds: float | None) -> bool:
    """Return whether a slot is granted within so many seconds; False once it is cancelled."""
    with suppress(TimeoutError):
        async with clock.timeout(clock.after(seconds), "slot"):
            await asyncio.wait((slot,))
    return slot.done() and not slot.cancelled()


_gates: WeakSet[Gate] = WeakSet()


def _after_fork() -> None:
    """Gives each gate of the new process limits of its own: the callers that held slots or locks are in the parent."""
    for gate in list(_gates):
        Gate.__init__(gate, gate.limits)


at_fork(_after_fork)
