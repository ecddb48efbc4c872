"""Sync work in a worker thread, awaited to its end: a thread cannot be cancelled.

A cancellation that arrives meanwhile is held back. The result is returned, and the caller finds the cancellation in
`cancellations()`: code that awaits such work must compare before and after, and end soon.
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


def cancellation_count() -> int:
    """How many cancellations of the current task were asked for and not taken back."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class _Unlimited(anyio.CapacityLimiter):
    """Lets every call begin at once; how many nodes run at once is the driver's to bound.

    A limiter with tokens could deadlock when a call that holds one needs another one, and costs one more pass of the
    event loop for each call.
    """

    def __new__(cls) -> Self:
        """Makes one that belongs to no event loop."""
        return object.__new__(cls)

    async def __aenter__(self) -> None:
        """Waits for nothing."""

    async def __aexit__(self, *raised: object) -> None:
        """Has nothing to give back."""


_UNLIMITED = _Unlimited()
_ending = Lock()  # one for all work: it is held for two assignments, and a lock for each call would cost more


class _Work(Generic[T]):
    """Work that may be waited for again after the first waiting was cut off."""

    __slots__ = ("_done", "_kwargs", "_outcome", "_ticket", "_wake", "_work")

    def __init__(self, work: Callable[..., T], kwargs: Mapping[str, Any]) -> None:
        self._work = work
        self._kwargs = kwargs
        self._ticket = [True]  # taken once, by the call or by `refuse`: `pop` is atomic
        self._done = False
        self._wake: Callable[[], object] | None = None
        self._outcome: Outcome = (None, None)

    def __call__(self) -> None:
        if not self.refuse():
            return
        try:
            self._outcome = self._work(**self._kwargs), None
        except BaseException as error:  # noqa: BLE001 - raised where it is wanted
            self._outcome = None, error
        with _ending:
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
        try:
            return self._ticket.pop()
        except IndexError:
            return False

    async def rest(self) -> None:
        """Waits for the end, whatever is cancelled meanwhile."""
        loop = asyncio.get_running_loop()
        with anyio.CancelScope(shield=True):
            while True:
                ended = loop.create_future()
                with _ending:
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


async def run_in_thread(work: Callable[..., T], /, **kwargs: Any) -> T:
    """The result of sync work that runs in an AnyIO worker thread; see the module about cancellation.

    Raises:
        asyncio.CancelledError: if the task was cancelled before the work had begun. It does not begin then.
    """
    call = _Work(work, kwargs)
    try:
        await anyio.to_thread.run_sync(call, limiter=_UNLIMITED)
    except asyncio.CancelledError:
        if call.refuse():
            raise
        await call.rest()
    return call.result()
