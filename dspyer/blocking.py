"""Run sync work in a worker thread and await its end, even if the awaiting task is cancelled: threads cannot be.

`run_in_thread` holds back a cancellation that arrives while the work runs, and returns the result. The caller sees the
cancellation in `cancellation_count()`: it must compare the number before and after the call, and end soon if it grew.

`DaemonCall` is for work that may be left running, since it has a time limit: its thread does not keep the process up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Generic, Self, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from dspyer.ctrl_c import at_fork

T = TypeVar("T")

# What AnyIO keeps for each of its worker threads: the event loop that `anyio.from_thread.run` uses. There is no public
# way to give another thread a loop that code of others (DSPy's) finds.
_threadlocals: Any = vars(anyio.from_thread)["threadlocals"]

Outcome = tuple[Any, BaseException | None]
"""A result, or an exception. A future would keep the exception, whose traceback refers to the future: a cycle."""


async def run_in_thread(work: Callable[..., T], /, **kwargs: Any) -> T:
    """Return the result of `work(**kwargs)`, run in an AnyIO worker thread.

    Raises:
        asyncio.CancelledError: the task was cancelled before the work started; it will not start.
    """
    return await _end_of(_Work(work, kwargs), anyway=False)


async def finish_in_thread(work: Callable[[], T]) -> T:
    """Return the result of `work()`, as `run_in_thread`, but start it even if the task is cancelled before.

    For a write of what counts as done already, which would be lost or made again, and for the release of a thread.
    """
    return await _end_of(_Work(work, {}), anyway=True)


async def _end_of(call: _Work[T], *, anyway: bool) -> T:
    try:
        await anyio.to_thread.run_sync(call, limiter=_NO_LIMIT)
    except asyncio.CancelledError:
        if anyway:
            # A thread of its own, which starts without an `await` that could be cancelled again. If the worker has the
            # ticket already, it ends at once.
            Thread(target=copy_context().run, args=(call,), name="dspyer-finish").start()
        elif call.take_ticket():
            raise
        await call.wait()  # the caller sees the cancellation in `cancellation_count()`
    return call.result()


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


def _take_result(work: DaemonCall[T] | _Work[T]) -> T:
    """Return the result of work that has ended, or raise its exception; the work keeps no reference to either."""
    outcome, work._outcome = work._outcome, (None, None)
    try:
        found: T = result_of(outcome)
    finally:
        del outcome  # the traceback of an error refers to this frame: its variables would close a cycle
    return found


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


class DaemonCall(Generic[T]):
    """Work in a daemon thread of its own, with a copy of the caller's context variables. It starts at once.

    From the thread the event loop of the caller can be reached as from a worker thread of AnyIO, so that DSPy can
    stream tokens from it.
    """

    __slots__ = ("_done", "_lock", "_outcome", "_wake", "_work")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._outcome: Outcome = (None, None)
        self._lock = Lock()
        self._done = False
        self._wake: Callable[[], object] | None = None
        token, context = _loop_token(), copy_context()
        Thread(target=self._run, args=(token, context.run), name="dspyer-timed", daemon=True).start()

    def _run(self, token: anyio.lowlevel.EventLoopToken | None, run: Callable[..., T]) -> None:
        join_loop(token)
        try:
            self._outcome = run(self._work), None
        except BaseException as error:  # noqa: BLE001 - `result` raises it in the waiting thread
            self._outcome = None, error
        with self._lock:
            self._done = True
            wake = self._wake
        if wake is not None:
            wake()

    @property
    def done(self) -> bool:
        """Whether the work has ended."""
        return self._done

    def on_end(self, wake: Callable[[], object]) -> None:
        """Call `wake` when the work has ended: in its thread, or at once."""
        with self._lock:
            self._wake = wake
            done = self._done
        if done:
            wake()

    async def ended(self) -> None:
        """Wait for the end of the work. A cancellation ends the wait, not the work."""
        ended, end = task_signal()
        self.on_end(end)
        await ended

    def result(self) -> T:
        """Return the result, or raise the exception of the work. Can be called once: it keeps no reference to it."""
        return _take_result(self)


def _loop_token() -> anyio.lowlevel.EventLoopToken | None:
    """The event loop of the caller, if it runs on one or in a worker thread of AnyIO; else None."""
    return anyio.lowlevel.current_token() if is_on_loop() else loop_of_worker()


# --- a loop for threads that have none


def loop_of_worker() -> anyio.lowlevel.EventLoopToken | None:
    """The event loop of this thread, if it is a worker thread of AnyIO; else None."""
    return None if has_lent_loop() else getattr(_threadlocals, "current_token", None)


def join_loop(token: anyio.lowlevel.EventLoopToken | None) -> None:
    """Make this thread a worker thread of an event loop; of none for None."""
    if token is not None:
        _threadlocals.current_token = token
        _threadlocals.current_cancel_scope = None


def reachable_loop() -> object | None:
    """The event loop that runs in this thread, or to which AnyIO lets it pass calls; None for none."""
    token = _loop_token()
    return None if token is None else token.native_token


def lend_loop() -> bool:
    """Let code in this thread pass calls to an event loop through `anyio.from_thread`; False if it can already.

    DSPy passes the chunks of a stream in this way. Its callers are told that they need a worker thread of AnyIO, but
    users call predictors from threads of `dspy.Parallel`, and from async functions without `await`.
    """
    if hasattr(_threadlocals, "current_token"):
        return False
    _threadlocals.current_token = _lent_loop.token()
    return True


def has_lent_loop() -> bool:
    """Whether the loop of this thread is lent: then it is for chunks alone, and no other code may run on it."""
    return _lent_loop.lent and getattr(_threadlocals, "current_token", None) is _lent_loop.token()


def take_back_loop() -> None:
    """End what `lend_loop` has begun."""
    del _threadlocals.current_token


class _LentLoop:
    """An event loop in a daemon thread, one for the process, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._token: anyio.lowlevel.EventLoopToken | None = None

    @property
    def lent(self) -> bool:
        """Whether it was needed already."""
        return self._token is not None

    def token(self) -> anyio.lowlevel.EventLoopToken:
        """What AnyIO needs to know of the loop."""
        with self._lock:
            if self._token is None:
                started = Event()
                Thread(target=asyncio.run, args=(self._serve(started),), name="dspyer-loop", daemon=True).start()
                started.wait()
            assert self._token is not None
            return self._token

    async def _serve(self, started: Event) -> None:
        self._token = anyio.lowlevel.current_token()
        started.set()
        await asyncio.get_running_loop().create_future()


_lent_loop = _LentLoop()
at_fork(_lent_loop.__init__)  # type: ignore[misc]  # the thread is in the parent only


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
        self._ticket = [True]  # popped once, by the worker or by the awaiting task: `list.pop` is atomic
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
        with anyio.CancelScope(shield=True):
            while True:
                ended, end = task_signal()
                with _completion_lock:
                    if self._done:
                        return
                    self._wake = end
                try:
                    await ended
                except asyncio.CancelledError:
                    continue  # `task.cancel()` passes the shield of AnyIO

    def result(self) -> T:
        """Return the result, or raise the exception of the work. Can be called once: it keeps no reference to it."""
        return _take_result(self)


def _complete(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
