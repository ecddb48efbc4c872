"""Sync work in a worker thread, awaited to its end: a thread cannot be cancelled.

A cancellation that arrives meanwhile is held back. The result is returned, and the caller finds the cancellation in
`cancellations()`: whoever awaits such work must compare before and after, and end soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")

Outcome = tuple[Any, BaseException | None]
"""A result, or an exception. In a future an exception would refer to itself by its traceback."""


def result_of(outcome: Outcome) -> Any:
    """The result; raises the exception."""
    result, error = outcome
    if error is None:
        return result
    try:
        raise error
    finally:
        del outcome, error  # the traceback refers to this frame


def cancellations() -> int:
    """How many cancellations of the current task were asked for and not taken back."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class _Work(Generic[T]):
    """Work that may be waited for again after the first waiting was cut off."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = Lock()
        self._begun = False
        self._refused = False
        self._done = False
        self._wake: Callable[[], object] | None = None
        self._outcome: Outcome = (None, None)

    def __call__(self) -> None:
        with self._lock:
            if self._refused:
                return
            self._begun = True
        try:
            self._outcome = self._work(), None
        except BaseException as error:  # noqa: BLE001 - raised where it is wanted
            self._outcome = None, error
        with self._lock:
            self._done = True
            wake = self._wake
        if wake is not None:
            wake()

    def result(self) -> T:
        """The result, once; raises what the work has raised."""
        outcome, self._outcome = self._outcome, (None, None)
        try:
            found: T = result_of(outcome)
        finally:
            del outcome
        return found

    def refuse(self) -> bool:
        """Prevents work that has not begun; says whether that was in time."""
        with self._lock:
            self._refused = not self._begun
            return self._refused

    async def rest(self) -> None:
        """Waits for the end, whatever is cancelled meanwhile."""
        loop = asyncio.get_running_loop()
        with anyio.CancelScope(shield=True):
            while True:
                ended = loop.create_future()
                with self._lock:
                    if self._done:
                        return
                    self._wake = lambda ended=ended: loop.call_soon_threadsafe(_end, ended)
                try:
                    await ended
                except asyncio.CancelledError:
                    continue


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def finish(work: Callable[[], T]) -> T:
    """The result of sync work that runs in an AnyIO worker thread; see the module about cancellation.

    Each call has a limiter of its own: a shared one could deadlock when a call that holds a token needs another one.

    Raises:
        asyncio.CancelledError: if the task was cancelled before the work had begun. It does not begin then.
    """
    call = _Work(work)
    try:
        await anyio.to_thread.run_sync(call, limiter=anyio.CapacityLimiter(1))
    except asyncio.CancelledError:
        if call.refuse():
            raise
        await call.rest()
    return call.result()
