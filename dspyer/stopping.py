"""What ends work early: the signal that stops a run, and the time limit of one attempt of a node."""

from __future__ import annotations

import asyncio
import math
from _thread import start_new_thread
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Lock
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from dspyer import clock
from dspyer.errors import AttemptOverError, BudgetError, InputError, with_article
from dspyer.values.scalars import is_number, is_whole_number

T = TypeVar("T")

TIMED_OUT: Final = "a node that contains it timed out"
OVER: Final = "this attempt timed out and was left running in its thread: nothing that it does counts any more"


class StopSignal:
    """Stops a run, and the runs inside of it, before its end. May be used from any thread.

    Attributes:
        reason: why the run stops; None as long as it does not. The first reason is kept.
        error: what the run ends with if a budget stops it, or a failure: then the nodes that run are finished, async
            ones too. None for any other stop.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.error: Exception | None = None
        self._lock = Lock()
        self._callbacks: dict[int, Callable[[str], object]] = {}
        self._last = 0

    def stop(self, reason: str, error: Exception | None = None) -> None:
        """Stops the runs: nothing new starts, and the callbacks are called. A second call does nothing."""
        with self._lock:
            if self.reason is None:
                self.reason, self.error = reason, error
            callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():  # without the lock: a callback may wait, or register another one
            callback(reason)

    def stop_from_handler(self, reason: str) -> None:
        """The same from the handler of a signal, which must take no lock: the callbacks are called in a thread."""
        if self.reason is None:
            self.reason = reason
        with suppress(RuntimeError):  # the system has no thread left: what waits goes on to wait
            start_new_thread(self.stop, (reason,))

    @contextmanager
    def on_stop(self, callback: Callable[[str], object]) -> Iterator[None]:
        """Calls `callback` with the reason if the run is stopped during the block, or was before."""
        with self._lock:
            # Reading the reason and registering under one lock: a stop in between would be missed, or called twice.
            self._last += 1
            key, reason = self._last, self.reason
            if reason is None:
                self._callbacks[key] = callback
        try:
            if reason is not None:
                callback(reason)
            yield
        finally:
            with self._lock:
                self._callbacks.pop(key, None)


class AsyncCalls:
    """Async calls that sync code waits for, which another thread can cancel."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tasks: dict[asyncio.Task[Any], asyncio.AbstractEventLoop] = {}
        self._cancelled = False
        self._idle: Event | None = None  # made by `wait`, which few calls need: it costs more than the rest

    @property
    def running(self) -> bool:
        """Whether a call is in progress."""
        return bool(self._tasks)

    def cancel(self, reason: str = "") -> None:
        """Cancel the running and the later calls. May be called from any thread."""
        del reason
        with self._lock:
            self._cancelled = True
            tasks = list(self._tasks.items())
        for task, loop in tasks:
            with suppress(RuntimeError):  # the loop has been closed, so the call is over
                loop.call_soon_threadsafe(task.cancel)

    def wait(self) -> None:
        """Wait until no call is in progress."""
        with self._lock:
            if not self._tasks:
                return
            idle = self._idle = self._idle or Event()
        idle.wait()

    async def watch(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that `cancel` can cancel."""
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._tasks[task] = asyncio.get_running_loop()
            cancelled = self._cancelled
        try:
            if cancelled:
                raise asyncio.CancelledError
            return await call()
        finally:
            with self._lock:
                del self._tasks[task]
                if self._idle is not None and not self._tasks:
                    self._idle.set()


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
        self.ends = clock.now() + seconds
        self._lock: Lock = Lock() if around is None else around._lock

    @property
    def over(self) -> bool:
        """Whether the time of the attempt, or of a node that contains it, is over."""
        return self.signal.reason is not None or (self.around is not None and self.around.over)

    def left(self) -> float:
        """The seconds that are left, at least 0."""
        own = max(self.ends - clock.now(), 0.0)
        return own if self.around is None else min(own, self.around.left())

    def end(self) -> None:
        """Ends the time: runs inside are stopped, async calls cancelled."""
        self.signal.stop(TIMED_OUT)
        self.calls.cancel()  # after the runs were stopped: to them the cancellation is a part of the stop

    @property
    def left_running(self) -> bool:
        """Whether sync code of the attempt, or of a node that contains it, was left running in its thread."""
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


# `Budget`: what a run may spend. `Spending`: what a run has spent, and the stop when a limit is reached.


_LIMITS = ("tokens", "cost", "requests", "seconds")
_COUNTS = ("tokens", "requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run may spend. When a limit is reached, the run is stopped, and `t.resume()` can continue it.

    The limits are checked before each node and before each request to a language model. Requests in progress are
    finished, and so are the nodes that ask for no further one, so more may be spent than the limit: at most what was in
    progress. A response from a cache costs nothing. A request that the LM repeats itself (`num_retries`) counts once.

    Args:
        tokens: the most tokens, of prompts and responses. A response that does not say how many it has used fails the
            run.
        cost: the most US dollars, by the prices that DSPy knows, or `prices`.
        requests: the most requests to language models; one that failed counts, too. A call with `n=5` counts as five.
        seconds: how long the run may take.
        prices: for models whose price DSPy does not know, or that cost you something else: USD per million tokens of
            prompts and of responses, by the name of the model, `{"openai/x": (0.1, 0.4)}`.

    Raises:
        ValueError: without a limit, or for one that is not greater than 0.
        TypeError: for a limit that is no number, or prices of another form.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_edge(START, "add")
        >>> program = graph.add_conditional_edges("add", lambda n: "add", ["add", END]).compile(max_steps=10**9)
        >>> run = program.run({"n": 0}, budget=Budget(seconds=0.05))
        >>> run.status, run.error.reason[:8]
        ('stopped', 'seconds:')
    """

    tokens: int | None = None
    cost: float | None = None
    requests: int | None = None
    seconds: float | None = None
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _LIMITS:
            _check_limit(name, getattr(self, name))
        if all(getattr(self, name) is None for name in _LIMITS):
            raise ValueError("Budget() has no limit: give tokens, cost (USD), requests or seconds")
        object.__setattr__(self, "prices", MappingProxyType(_checked_prices(self.prices)))

    @classmethod
    def of(cls, given: Self | None) -> Self | None:
        """The budget that an option `budget=` means.

        Raises:
            TypeError: for what is neither a `Budget` nor None.

        Example:
            >>> Budget.of(None) is None
            True
        """
        if given is None or isinstance(given, cls):
            return given
        raise TypeError(f"budget={given!r}: give a dspyer.Budget, for example Budget(cost=0.50), or None")

    def __reduce__(self) -> tuple[Any, ...]:
        limits = {name: getattr(self, name) for name in _LIMITS}
        return partial(type(self), **limits, prices=dict(self.prices)), ()


def _check_limit(name: str, limit: object) -> None:
    if limit is None:
        return
    if not (is_whole_number(limit) if name in _COUNTS else is_number(limit)):
        kind = "a whole number" if name in _COUNTS else "US dollars" if name == "cost" else "a number"
        raise TypeError(f"Budget({name}={limit!r}): give {kind}, or None for no limit")
    assert isinstance(limit, int | float)
    if not math.isfinite(limit) or limit <= 0:
        raise ValueError(f"Budget({name}={limit!r}): give more than 0, or None for no limit")


def _checked_prices(prices: object) -> dict[str, tuple[float, float]]:
    form = "give USD per million tokens in and out by model, prices={'openai/x': (0.1, 0.4)}"
    if not isinstance(prices, Mapping):
        raise TypeError(f"Budget(prices=) got {with_article(type(prices).__name__)}: {form}")
    found: dict[str, tuple[float, float]] = {}
    for model, price in prices.items():
        pair = tuple(price) if isinstance(price, tuple | list) else ()
        numbers = [one for one in pair if is_number(one)]
        if not isinstance(model, str) or len(pair) != 2 or len(numbers) != 2:
            raise TypeError(f"Budget(prices=) has {price!r} for {model!r}: {form}")
        if not all(math.isfinite(one) and one >= 0 for one in numbers):
            raise ValueError(f"Budget(prices=) has {price!r} for {model!r}: a price is 0 or more")
        found[model] = (float(numbers[0]), float(numbers[1]))
    return found


class Spending:
    """What the runs of one call of a program have spent. May be used from any thread.

    Attributes:
        budget: the limits.
    """

    def __init__(self, budget: Budget, signal: StopSignal) -> None:
        self.budget = budget
        self._signal = signal
        self._lock = Lock()
        self._began = clock.now()
        self._counted: dict[str, float] = {"tokens": 0, "cost": 0.0, "requests": 0}
        self._ended: float | None = None
        self._used_up = False

    def check(self) -> bool:
        """Whether another request may start; stops the run when a limit is reached.

        A run that something else has stopped may make requests: its sync nodes are finished.
        """
        if not self._used_up and (reached := self._reached()):
            self._ended = clock.now()
            self._used_up = True  # before the stop: what it wakes asks again
            self._signal.stop(reached, self._error())
        return not self._used_up

    @contextmanager
    def on_used_up(self, callback: Callable[[str], object]) -> Iterator[None]:
        """Calls `callback` with the reason if the budget stops the run during the block, or did before."""

        def stopped(reason: str) -> None:
            if self._used_up:
                callback(reason)

        with self._signal.on_stop(stopped):
            yield

    def add(self, model: str, tokens: int | None, cost: float | None, requests: int) -> None:
        """Adds what an LM call has spent; tokens and cost are None if they are not known."""
        with self._lock:
            for name, more in zip(self._counted, (tokens, cost, requests), strict=True):
                self._counted[name] += more or 0
        unbounded = cost is None and self.budget.cost is not None
        if tokens is None and (unbounded or self.budget.tokens is not None):
            bounded = "the cost" if unbounded else "tokens"
            self._fail(
                f"the budget bounds {bounded}, and a response of {model!r} does not say how many tokens it has used: "
                "bound requests or seconds instead"
            )
        elif unbounded:
            self.refuse(f"what a response of {model!r} has cost is not known", model)
        if not self.check() and isinstance(self._signal.error, BudgetError):
            self._signal.error = self._error()  # with what was in progress at the limit

    def refuse(self, what: str, model: str) -> None:
        """Fails the run: without a price, its cost cannot be bounded."""
        self._fail(
            f"the budget bounds the cost, and {what}: give its price in USD per million tokens in and out, "
            f"Budget(cost={self.budget.cost:g}, prices={{{model!r}: (0.1, 0.4)}}), or bound tokens or requests instead"
        )

    def _fail(self, text: str) -> None:
        self._used_up = True
        self._signal.stop(text, InputError(text))

    def seconds_left(self) -> float | None:
        """The seconds that the run has left, at least 0; None for no limit."""
        seconds = self.budget.seconds
        return None if seconds is None else max(self._began + seconds - clock.now(), 0.0)

    def _spent(self) -> dict[str, float]:
        """What was spent, by the name of the limit."""
        now = self._ended if self._ended is not None else clock.now()
        with self._lock:
            found = {**self._counted, "seconds": now - self._began}
        return {name: found[name] for name in self._limits()}

    def _error(self) -> BudgetError:
        """The error of a run that was stopped by the budget."""
        reason = self._reached()
        return BudgetError(reason, reason, self._spent(), self._limits())

    def _limits(self) -> dict[str, float]:
        return {name: limit for name in _LIMITS if (limit := getattr(self.budget, name)) is not None}

    def _reached(self) -> str:
        """The limits that are reached, as text: `"cost: 0.51 of 0.50 USD"`; "" for none."""
        spent, limits = self._spent(), self._limits()
        return ", ".join(_text(name, spent[name], limit) for name, limit in limits.items() if spent[name] >= limit)


def _text(name: str, spent: float, limit: float) -> str:
    if name == "cost":
        digits = 2 if limit >= 0.1 else 6
        return f"cost: {spent:.{digits}f} of {limit:.{digits}f} USD"
    if name == "seconds":
        return f"{name}: {spent:.{1 if limit >= 1 else 3}f} of {limit:g}"
    return f"{name}: {spent:.0f} of {limit}"
