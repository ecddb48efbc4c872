"""Early ends of work: the signal that stops a run, and the time limit of one attempt of a node."""

from __future__ import annotations

import asyncio
from _thread import start_new_thread
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Event, Lock
from typing import Any, Final, TypeVar

from dspyer import clock
from dspyer.errors import AttemptOverError

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
        """Return whether a call is in progress."""
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
        """Return whether the time of the attempt, or of a node that contains it, is over."""
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
