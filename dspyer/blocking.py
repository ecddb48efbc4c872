"""What sync and async code need to wait for each other: cancellations, outcomes, signals, and loops for threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

import anyio.from_thread
import anyio.lowlevel

from dspyer.ctrl_c import at_fork

T = TypeVar("T")

# What AnyIO keeps for each of its worker threads: the event loop that `anyio.from_thread.run` uses. There is no public
# way to give another thread a loop that code of others (DSPy's) finds.
_threadlocals: Any = vars(anyio.from_thread)["threadlocals"]

Outcome = tuple[Any, BaseException | None]
"""A result, or an exception. A future would keep the exception, whose traceback refers to the future: a cycle."""


def cancellation_count() -> int:
    """Return the number of pending cancellation requests of the current task (`Task.cancelling`)."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def forget_cancellations(count: int) -> None:
    """Take back the cancellation requests of the current task beyond a count."""
    task = asyncio.current_task()
    while task is not None and task.cancelling() > count:
        task.uncancel()


def result_of(outcome: Outcome) -> Any:
    """Return the result, or raise the exception."""
    result, error = outcome
    if error is None:
        return result
    try:
        raise error
    finally:
        del outcome, error  # the traceback refers to this frame: its variables would close a cycle


def end_of(future: Future[Any]) -> SimpleQueue[Any]:
    """Return a queue that gets the future when it has ended. To wait for it holds no lock, as `may_raise` asks."""
    ended: SimpleQueue[Any] = SimpleQueue()
    future.add_done_callback(ended.put)
    return ended


def task_signal() -> tuple[asyncio.Future[None], Callable[..., None]]:
    """Return what this task can await, and what ends that wait: a function for any thread, with any arguments."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def end(*_reasons: object) -> None:
        with suppress(RuntimeError):  # the loop has been closed: nothing waits any more
            loop.call_soon_threadsafe(_complete, ended)

    return ended, end


def is_on_loop() -> bool:
    """Whether this is code of an event loop, which must not wait."""
    return asyncio._get_running_loop() is not None


# --- the loops that threads can reach


def loop_of_worker() -> anyio.lowlevel.EventLoopToken | None:
    """The event loop of this thread, if it is a worker thread of AnyIO; else None."""
    return None if has_lent_loop() else getattr(_threadlocals, "current_token", None)


def join_loop(token: anyio.lowlevel.EventLoopToken | None) -> None:
    """Make this thread a worker thread of an event loop; of none for None."""
    if token is not None:
        _threadlocals.current_token = token
        _threadlocals.current_cancel_scope = None


def leave_loop() -> None:
    """End what `join_loop` has begun, and whatever else AnyIO keeps in this thread."""
    vars(_threadlocals).clear()


def reachable_loop() -> object | None:
    """The event loop that runs in this thread, or to which AnyIO lets it pass calls; None for none."""
    token = anyio.lowlevel.current_token() if is_on_loop() else loop_of_worker()
    return None if token is None else token.native_token


def lend_loop() -> bool:
    """Let code in this thread pass calls to an event loop through `anyio.from_thread`; False if it can already.

    DSPy passes the chunks of a stream in this way. Its callers are told that they need a worker thread of AnyIO, but
    users call predictors from threads of `dspy.Parallel`, and from async functions without `await`.
    """
    if hasattr(_threadlocals, "current_token"):
        return False
    _threadlocals.current_token = _lent_loop.start()
    return True


def has_lent_loop() -> bool:
    """Whether the loop of this thread is lent: then it is for chunks alone, and no other code may run on it."""
    token = _lent_loop.token
    return token is not None and getattr(_threadlocals, "current_token", None) is token


def take_back_loop() -> None:
    """End what `lend_loop` has begun."""
    del _threadlocals.current_token


class DaemonLoop:
    """An event loop in a daemon thread, one for the process, started when it is first needed.

    Attributes:
        token: what AnyIO needs to know of the loop; None until it is started.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._forget()
        at_fork(self._forget)  # the thread is in the parent only

    def _forget(self) -> None:
        self._lock = Lock()
        self.token: anyio.lowlevel.EventLoopToken | None = None

    def start(self) -> anyio.lowlevel.EventLoopToken:
        """The token of the loop, which runs from now on."""
        with self._lock:
            if self.token is None:
                loop = asyncio.new_event_loop()
                Thread(target=self._serve, args=(loop,), name=self._name, daemon=True).start()
                self.token = asyncio.run_coroutine_threadsafe(_token(), loop).result()
            return self.token

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            with suppress(KeyboardInterrupt, SystemExit):  # of a task that a node has left behind
                loop.run_forever()


async def _token() -> anyio.lowlevel.EventLoopToken:
    return anyio.lowlevel.current_token()


_lent_loop = DaemonLoop("dspyer-loop")


def _complete(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
