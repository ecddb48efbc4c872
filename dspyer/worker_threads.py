"""Threads for sync work: they belong to the process, and are used again by all runs, sync and async.

A thread that has nothing to do waits ten seconds for its next job and then ends. There are as many as there are jobs at
once: the runs bound how many nodes work, and a job that waits for another one must never wait for a thread.

- A job runs in a copy of the context variables of the code that starts it. What it leaves in the thread's own place for
  an event loop is cleared, and no variable of an idle thread refers to it.
- Code that runs in such a thread for an event loop, or for a worker thread of AnyIO, reaches that loop through
  `anyio.from_thread` as from a worker thread of AnyIO: DSPy streams tokens in this way.
- The threads are daemons, so that idle ones do not keep the process up. Its end waits for jobs as it waits for threads
  that are none: for those that were started from such a thread, unless they may be left running.

`run_in_thread` awaits the end of the work even if the awaiting task is cancelled, since threads cannot be: it holds
back a cancellation that arrives meanwhile, and returns the result. The caller sees the cancellation in
`cancellation_count()`: it must compare the number before and after the call, and end soon if it grew.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from dspyer import clock
from dspyer.waiting import Outcome, at_fork, is_on_loop, join_loop, leave_loop, loop_of_worker, result_of

try:
    from sniffio import current_async_library_cvar as _library
except ImportError:  # AnyIO can do without it
    _library = ContextVar("dspyer_no_library", default=None)

T = TypeVar("T")
Job = tuple[Context, Callable[[], Any], Callable[[Any], object], EventLoopToken | None, bool, None]

IDLE: Final = 10.0
"""Seconds in which a thread waits for its next job."""


_jobs: SimpleQueue[Any] = SimpleQueue()
_places: list[None] = []  # one for each thread that waits, or will wait, for a job which is not on its way yet
_awaited: set[threading.Thread] = set()  # at work on something that the end of the process waits for


def _serve(first: list[Job]) -> None:
    """Run in a thread: its first job, then others until none comes for a while."""
    job: Job | None = first.pop()
    while job is not None:
        context, work, end, loop, awaited, place = job
        if awaited:
            _awaited.add(threading.current_thread())
        join_loop(loop)
        # No variable takes the outcome: the traceback of an error refers to this frame.
        _finish(end, place, context.run(work))
        del job, context, work, end, loop  # while the thread is idle, it refers to nothing that it has done
        job = _next()


def _finish(end: Callable[[Any], object], place: None, outcome: Any) -> None:
    leave_loop()
    _awaited.discard(threading.current_thread())
    _places.append(place)  # first: what the outcome leads to finds this thread
    end(outcome)


def _next() -> Job | None:
    while True:
        job: Job | tuple[()] | None = clock.get(_jobs, clock.now() + IDLE, "idle")
        if job:
            return job
        if job is not None:
            _jobs.put(job)  # the end of the process, also for the next thread
        with suppress(IndexError):  # a job is on its way
            _places.pop()
            return None


def start_work(
    work: Callable[[], T], end: Callable[[T], object], loop: EventLoopToken | None = None, *, awaited: bool = True
) -> None:
    """Starts work, which must not raise, in a worker thread; `end` gets there what it returns.

    Args:
        work: runs in a copy of the context variables of the caller.
        end: must not raise, nor wait.
        loop: the event loop that the work can reach. By default it is that of the caller, if that is a worker thread;
            not one that runs in the caller's thread, which a sync run blocks, as in a notebook.
        awaited: whether the end of the process waits for the work; it never does if the caller's thread is a daemon.
    """
    context = copy_context()
    if is_on_loop():
        context.run(_library.set, None)  # else AnyIO takes the thread for that of the loop
    job = (context, work, end, loop or loop_of_worker(), awaited and not threading.current_thread().daemon)
    try:
        _jobs.put((*job, _places.pop()))  # in one line, so that no trace function or handler comes between
    except IndexError:
        thread = threading.Thread(target=_serve, args=([(*job, None)],), name="dspyer worker thread", daemon=True)
        Context().run(thread.start)  # from Python 3.14 on, a thread may keep the context that it is started in


def _end_awaited() -> None:
    _jobs.put(())
    for thread in tuple(_awaited):
        thread.join()


def _keep_alive() -> None:
    if _awaited or not _jobs.empty():  # in a thread that is no daemon: the end waits for it, and Ctrl-C ends that
        threading.Thread(target=_end_awaited, name="dspyer worker threads end", daemon=False).start()


def _forget_threads() -> None:
    global _jobs  # noqa: PLW0603 - the threads that share it, and its lock, are in the parent
    _jobs = SimpleQueue()
    _places.clear()
    _awaited.clear()


at_fork(_forget_threads)
# Before the process waits for threads, as also a child of `multiprocessing` does, which runs no `atexit`.
vars(threading)["_register_atexit"](_keep_alive)


class ThreadCall(Generic[T]):
    """Work in a worker thread, which has started when this returns.

    Args:
        work: what to call.
        loop: as in `start_work`.
        awaited: as well.
    """

    __slots__ = ("_outcome", "_wake")

    def __init__(self, work: Callable[[], T], loop: EventLoopToken | None = None, *, awaited: bool = True) -> None:
        self._outcome: Outcome | None = None
        self._wake: Callable[[], object] | None = None
        start_work(partial(_outcome_of, work), self._end, loop, awaited=awaited)

    def _end(self, outcome: Outcome) -> None:
        self._outcome = outcome
        if self._wake is not None:
            self._wake()

    @property
    def done(self) -> bool:
        """Return whether the work has ended."""
        return self._outcome is not None

    def on_end(self, wake: Callable[[], object]) -> None:
        """Calls `wake` when the work has ended: in its thread, or at once; perhaps both."""
        self._wake = wake
        if self._outcome is not None:
            wake()

    async def ended(self) -> None:
        """Waits for the end of the work. A cancellation ends the wait, not the work."""
        loop = asyncio.get_running_loop()
        wakeups = _wakeups.get(loop)
        if wakeups is None:
            wakeups = _wakeups[loop] = _WakeUps()
        waits = loop.create_future()
        self._wake = partial(wakeups.put, loop, waits)
        if self._outcome is None:
            await waits

    def result(self) -> T:
        """Returns the result, or raises the exception of the work. Can be called once: it keeps no reference to it."""
        outcome, self._outcome = self._outcome, (None, None)
        assert outcome is not None
        try:
            found: T = result_of(outcome)
        finally:
            del outcome  # the traceback of an error refers to this frame: its variables would close a cycle
        return found


def _outcome_of(work: Callable[[], T]) -> Outcome:
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001 - `result` raises it where it is waited for
        return None, error


class _WakeUps:
    """Tasks of one event loop that worker threads wake up: the loop is woken once for those that come together."""

    def __init__(self) -> None:
        self._ended: deque[asyncio.Future[None]] = deque()
        self._called = False

    def put(self, loop: asyncio.AbstractEventLoop, waits: asyncio.Future[None]) -> None:
        """Ends the wait of a task. Called in a worker thread, which no signal interrupts."""
        self._ended.append(waits)
        if not self._called:  # else what was called has not looked yet
            self._called = True
            with suppress(RuntimeError):  # the loop has been closed: nothing waits any more
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._called = False
        while self._ended:
            waits = self._ended.popleft()
            if not waits.done():
                waits.set_result(None)


_wakeups: WeakKeyDictionary[asyncio.AbstractEventLoop, _WakeUps] = WeakKeyDictionary()


async def run_in_thread(work: Callable[..., T], /, **kwargs: Any) -> T:
    """Returns the result of `work(**kwargs)`, run in a worker thread: it starts also if the task was cancelled before.

    That is for writes of what counts as done already, which would be lost or made again, and for releases of threads.
    """
    call = ThreadCall(partial(work, **kwargs), current_token())
    try:
        await call.ended()
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            while not call.done:
                with suppress(asyncio.CancelledError):  # `task.cancel()` passes the shield of AnyIO
                    await call.ended()
    return call.result()
