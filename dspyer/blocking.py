"""Run sync work in a worker thread and await its end, even if the awaiting task is cancelled: threads cannot be.

`run_in_thread` holds back a cancellation that arrives while the work runs, and returns the result. The caller sees the
cancellation in `cancellation_count()`: it must compare the number before and after the call, and end soon if it grew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Generic, Self, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")

Outcome = tuple[Any, BaseException | None]
"""A result, or an exception. A future would keep the exception, whose traceback refers to the future: a cycle."""


async def run_in_thread(work: Callable[..., T], /, **kwargs: Any) -> T:
    """Return the result of `work(**kwargs)`, run in an AnyIO worker thread.

    Raises:
        asyncio.CancelledError: the task was cancelled before the work started; it will not start.
    """
    call = _Work(work, kwargs)
    try:
        await anyio.to_thread.run_sync(call, limiter=_NO_LIMIT)
    except asyncio.CancelledError:
        if call.take_ticket():
            raise
        await call.wait()
    return call.result()


def cancellation_count() -> int:
    """Return the number of pending cancellation requests of the current task (`Task.cancelling`)."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def result_of(outcome: Outcome) -> Any:
    """Return the result, or raise the exception."""
    result, error = outcome
    if error is None:
        return result
    try:
        raise error
    finally:
        del outcome, error  # the traceback refers to this frame: its variables would close a cycle


class _NoLimit(anyio.CapacityLimiter):
    """Lets every call start at once: the driver already bounds how many nodes run at the same time.

    A limiter with tokens could deadlock if a call that holds one needs another one, and costs one more pass of the
    event loop per call.
    """

    def __new__(cls) -> Self:
        """Create an instance without the event loop that AnyIO's own limiters look up."""
        return object.__new__(cls)

    async def __aenter__(self) -> None:
        """Acquire nothing."""

    async def __aexit__(self, *raised: object) -> None:
        """Release nothing."""


_NO_LIMIT = _NoLimit()
_completion_lock = Lock()  # one for all work: it is held for two assignments, and a lock per call would cost more


class _Work(Generic[T]):
    """One call, which can be awaited again after the first `await` was cancelled."""

    __slots__ = ("_done", "_kwargs", "_outcome", "_ticket", "_wake", "_work")

    def __init__(self, work: Callable[..., T], kwargs: Mapping[str, Any]) -> None:
        self._work = work
        self._kwargs = kwargs
        self._ticket = [True]  # popped once, by the worker or by `run_in_thread`: `list.pop` is atomic
        self._done = False
        self._wake: Callable[[], object] | None = None
        self._outcome: Outcome = (None, None)

    def __call__(self) -> None:
        """Run the work, in the worker thread."""
        if not self.take_ticket():
            return
        try:
            self._outcome = self._work(**self._kwargs), None
        except BaseException as error:  # noqa: BLE001 - `result` raises it in the awaiting task
            self._outcome = None, error
        # Under the lock, `wait` either sees that the work is done or has set `_wake` in time.
        with _completion_lock:
            self._done = True
            wake = self._wake
        if wake is not None:
            wake()

    def take_ticket(self) -> bool:
        """Take the right to start the work, which keeps the other thread from it; False if it is taken already."""
        try:
            return self._ticket.pop()
        except IndexError:
            return False

    async def wait(self) -> None:
        """Wait for the end of the work, through any further cancellation."""
        loop = asyncio.get_running_loop()
        with anyio.CancelScope(shield=True):
            while True:
                ended = loop.create_future()
                with _completion_lock:
                    if self._done:
                        return
                    self._wake = lambda ended=ended: loop.call_soon_threadsafe(_complete, ended)
                try:
                    await ended
                except asyncio.CancelledError:
                    continue  # `task.cancel()` passes the shield of AnyIO

    def result(self) -> T:
        """Return the result, or raise the exception of the work. Can be called once: it keeps no reference to it."""
        outcome, self._outcome = self._outcome, (None, None)
        try:
            found: T = result_of(outcome)
        finally:
            del outcome
        return found


def _complete(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
