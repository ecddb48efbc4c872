"""Work at the same time: in threads for sync code, in tasks for async code. An exception of the work is an outcome."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Self, cast

import anyio
import anyio.from_thread
import anyio.to_thread

from dspyer.dspy_module.tracing import Steps, recording

WorkOutcome = tuple[Any, BaseException | None, Steps]


def attempt(work: Callable[..., Any], *args: Any) -> WorkOutcome:
    """Runs one piece of work with a DSPy trace of its own; an exception is an outcome."""
    with recording() as steps:
        return attempt_here(steps, work, *args)


def attempt_here(steps: list[Any], work: Callable[..., Any], *args: Any) -> WorkOutcome:
    """The same inside a recording that nothing else uses meanwhile: takes the steps out of it."""
    try:
        return work(*args), None, take(steps) if steps else ()
    except BaseException as error:  # noqa: BLE001 - the driver raises what is no Exception
        return None, error, take(steps)


async def aattempt_here(steps: list[Any], work: Callable[..., Awaitable[Any]], *args: Any) -> WorkOutcome:
    """The same inside a recording. A cancellation is no outcome: it belongs to whoever cancelled."""
    try:
        return await work(*args), None, take(steps) if steps else ()
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        return None, error, take(steps)


def take(steps: list[Any]) -> Steps:
    """Empties a recording."""
    taken = tuple(steps)
    steps.clear()
    return taken


class ThreadWorkers:
    """Sync work in threads, each with a copy of the caller's context variables.

    In an AnyIO worker thread (under `dspy.streamify` or `dspy.asyncify`) the work goes to further AnyIO worker threads
    of the same loop, so that tokens can be streamed from it; a limiter of its own keeps it from waiting for the thread
    that waits for it.
    """

    def __init__(self, limit: int) -> None:
        self.busy = 0
        self._limit = limit
        self._jobs: SimpleQueue[tuple[Context, Any, Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Any, WorkOutcome]] = SimpleQueue()
        self._threads: list[Thread] = []
        self._limiter: anyio.CapacityLimiter | None = None
        self._on_loop: bool | None = None

    def start(self, key: Any, work: Callable[..., Any], *args: Any) -> None:
        """Starts work; `next` gives its outcome under `key`."""
        self.busy += 1
        if self._on_loop is None:
            self._on_loop = in_worker_thread()
        if self._on_loop:
            anyio.from_thread.run_sync(self._spawn, key, work, *args)
            return
        self._jobs.put((copy_context(), key, work, args))
        if len(self._threads) < min(self.busy, self._limit):
            thread = Thread(target=self._serve, name=f"dspyer_{len(self._threads)}")
            try:
                thread.start()
            finally:  # Ctrl-C may come when it has begun
                self._threads.append(thread)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            context, key, work, args = job
            self._done.put((key, context.run(attempt, work, *args)))
        self._jobs.put(None)  # for the next one

    def _spawn(self, key: Any, work: Callable[..., Any], *args: Any) -> None:
        def run() -> None:
            self._done.put((key, attempt(work, *args)))

        def ended(task: asyncio.Future[None]) -> None:
            _tasks.discard(task)
            if task.cancelled():  # the loop shuts down, and the work may never have begun: nobody waits for it
                self._done.put((key, (None, asyncio.CancelledError(), ())))

        self._limiter = self._limiter or anyio.CapacityLimiter(self._limit)
        task = asyncio.ensure_future(anyio.to_thread.run_sync(run, limiter=self._limiter))
        _tasks.add(task)
        task.add_done_callback(ended)

    @property
    def done(self) -> bool:
        """Whether `next` need not wait."""
        return not self._done.empty()

    def next(self) -> tuple[Any, WorkOutcome]:
        """Waits for the next outcome; a `nudge` is one of nothing."""
        found = self._done.get()
        self.busy -= found is not NUDGE
        return found

    def nudge(self) -> None:
        """Wakes whoever waits for an outcome. May be called from any thread."""
        self._done.put(NUDGE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()


NUDGE: tuple[Any, WorkOutcome] = (None, (None, None, ()))
"""Stands for no outcome: whoever waits looks again at what may start."""

_tasks: set[asyncio.Future[None]] = set()  # asyncio itself keeps only weak references to tasks


def in_worker_thread() -> bool:
    """Whether this is a worker thread of AnyIO, whose event loop can be reached."""
    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:
        return False
    return True


class TaskWorkers:
    """Async work in tasks of the running event loop: an AnyIO task group costs six times as much for each task."""

    def __init__(self) -> None:
        self.busy = 0
        self._tasks: dict[asyncio.Task[None], Any] = {}
        self._done: deque[tuple[Any, WorkOutcome]] = deque()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def start(self, key: Any, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Starts work; `next` gives its outcome under `key`."""
        self.busy += 1
        self._tasks[asyncio.create_task(self._run(key, work, *args))] = key

    async def _run(self, key: Any, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        # a cancellation that comes from inside is an outcome after all: whoever waits for it has to know
        outcome: WorkOutcome = (None, asyncio.CancelledError(), ())
        try:
            with recording() as steps:
                outcome = await aattempt_here(steps, work, *args)
        finally:
            self._done.append((key, outcome))
            self._wake.set()
            del self._tasks[cast("asyncio.Task[None]", asyncio.current_task())]

    @property
    def done(self) -> bool:
        """Whether `next` need not wait."""
        return bool(self._done)

    async def next(self) -> tuple[Any, WorkOutcome]:
        """Waits for the next outcome; a `nudge` is one of nothing."""
        while not self._done:
            self._wake.clear()
            await self._wake.wait()
        found = self._done.popleft()
        self.busy -= found is not NUDGE
        return found

    def nudge(self) -> None:
        """Wakes whoever waits for an outcome. May be called from any thread."""

        def wake() -> None:
            self._done.append(NUDGE)
            self._wake.set()

        self._loop.call_soon_threadsafe(wake)

    def cancel(self) -> None:
        """Cancels what runs; `next` gives its outcomes still."""
        for task in self._tasks:
            task.cancel()
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Gives the outcome of a task that was cancelled before its first step, and so could not give it itself."""
        if task in self._tasks:
            self._done.append((self._tasks.pop(task), (None, asyncio.CancelledError(), ())))
            self._wake.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._tasks:
            return  # a scope costs something
        self.cancel()
        with anyio.CancelScope(shield=True):
            while self._tasks:  # a further cancellation cuts off the waiting, and is on its way up already
                with suppress(asyncio.CancelledError):
                    await asyncio.wait(tuple(self._tasks))
