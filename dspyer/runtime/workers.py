"""Concurrent work: threads for sync code, tasks for async code, and one queue of outcomes for the driver.

The pattern is that of a completion queue (Java's `ExecutorCompletionService`, for example): any number of workers, one
consumer. Work never raises into the consumer. An exception is part of its outcome, so that the driver sees outcomes in
the order in which they arrived, failures too.

- Threads are those of `dspyer.worker_threads`: as many as there is work, used again by later runs.
- Each piece of work runs in a copy of the caller's context variables (PEP 567), and so with its DSPy settings, but with
  a trace of its own: DSPy's trace is one list, in which concurrent nodes would mix their steps.
- `wake` puts an empty outcome into the queue, so that a waiting consumer checks again which executions may start.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Self, cast

import anyio

from dspyer.ctrl_c import gives_up, may_raise
from dspyer.dspy_module.tracing import Steps, recording
from dspyer.worker_threads import start_work

WorkOutcome = tuple[Any, BaseException | None, Steps]
"""The result or None, the exception or None, and the DSPy trace of a piece of work."""

_WAKE_UP: tuple[Any, WorkOutcome] = (None, (None, None, ()))


def run(work: Callable[..., Any], *args: Any) -> WorkOutcome:
    """Runs one piece of work with a DSPy trace of its own."""
    with recording() as steps:
        return run_here(steps, work, *args)


def run_here(steps: list[Any], work: Callable[..., Any], *args: Any) -> WorkOutcome:
    """Runs one piece of work in a recording that nothing else uses meanwhile, and empties the recording."""
    try:
        return work(*args), None, _take(steps) if steps else ()
    except BaseException as error:  # noqa: BLE001 - an outcome; the driver raises what is no Exception
        return None, error, _take(steps)


async def arun_here(steps: list[Any], work: Callable[..., Awaitable[Any]], *args: Any) -> WorkOutcome:
    """Runs async work in a recording. A cancellation is no outcome: it belongs to the task that was cancelled."""
    try:
        return await work(*args), None, _take(steps) if steps else ()
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - as in run_here
        return None, error, _take(steps)


def _take(steps: list[Any]) -> Steps:
    taken = tuple(steps)
    steps.clear()
    return taken


class ThreadWorkers:
    """Sync work in threads."""

    def __init__(self) -> None:
        self._outcomes: deque[tuple[Any, WorkOutcome]] = deque()
        self._arrived: SimpleQueue[bool] = SimpleQueue()  # True for an outcome, False for a wake-up
        self.busy = 0  # how many outcomes of started work `next` has not returned

    def start(self, key: Any, work: Callable[..., Any], *args: Any) -> None:
        """Starts work; `next` returns its outcome under `key`."""
        start_work(partial(run, work, *args), partial(self._put, key))
        self.busy += 1  # after the work has started: nothing waits for what has not

    def _put(self, key: Any, outcome: WorkOutcome) -> None:
        self._outcomes.append((key, outcome))
        self._arrived.put(True)

    @property
    def done(self) -> bool:
        """Whether `next` returns an outcome at once."""
        return bool(self._outcomes)

    @may_raise
    def next(self) -> tuple[Any, WorkOutcome]:
        """Waits for the next outcome; its key is None for a wake-up."""
        while not self._outcomes:
            if gives_up():
                raise KeyboardInterrupt
            if not self._arrived.get():
                return _WAKE_UP
        self.busy -= 1  # first: where the handler of a signal raises, an outcome may be lost, but nothing waits for it
        return self._outcomes.popleft()

    def wake(self) -> None:
        """Makes `next` return at once, with None as the key. May be called from any thread."""
        self._arrived.put(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        while self.busy and not gives_up():  # else it is left running
            self.next()


class TaskWorkers:
    """Async work in tasks of the running event loop. Plain tasks: an AnyIO task group costs six times as much each."""

    def __init__(self) -> None:
        self.busy = 0
        self._tasks: dict[asyncio.Task[None], Any] = {}
        self._done: deque[tuple[Any, WorkOutcome]] = deque()
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._here: asyncio.Task[Any] | None = None  # the consumer's own task, while it works itself
        self._here_cancelled = False

    async def run_here(self, steps: list[Any], work: Callable[..., Awaitable[Any]], *args: Any) -> WorkOutcome:
        """Returns the outcome of work that the consumer does itself; `cancel` ends it like other work."""
        task = self._here = cast("asyncio.Task[Any]", asyncio.current_task())
        before = task.cancelling()
        try:
            outcome = await arun_here(steps, work, *args)
        except asyncio.CancelledError:
            if not self._uncancelled() or task.cancelling() > before:
                raise
            # The caller has not cancelled this task: the cancellation is an outcome, as that of another task.
            return None, asyncio.CancelledError(), _take(steps)
        self._uncancelled()  # a sync node was finished
        return outcome

    def _uncancelled(self) -> bool:
        """Takes back the cancellation of the consumer's task by `cancel`; returns whether there was one."""
        assert self._here is not None
        cancelled = self._here_cancelled
        if cancelled:
            self._here.uncancel()
        self._here, self._here_cancelled = None, False
        return cancelled

    def start(self, key: Any, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Starts work; `next` returns its outcome under `key`."""
        self.busy += 1
        self._tasks[asyncio.create_task(self._run(key, work, *args))] = key

    async def _run(self, key: Any, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        # If the work raises CancelledError itself, nothing has cancelled the driver: it waits for this outcome.
        outcome: WorkOutcome = (None, asyncio.CancelledError(), ())
        try:
            with recording() as steps:
                outcome = await arun_here(steps, work, *args)
        finally:
            self._put(key, outcome)
            del self._tasks[cast("asyncio.Task[None]", asyncio.current_task())]

    def _put(self, key: Any, outcome: WorkOutcome) -> None:
        self._done.append((key, outcome))
        self._arrived.set()

    @property
    def done(self) -> bool:
        """Whether `next` returns at once."""
        return bool(self._done)

    async def next(self) -> tuple[Any, WorkOutcome]:
        """Waits for the next outcome; its key is None for a wake-up."""
        while not self._done:
            self._arrived.clear()
            await self._arrived.wait()
        found = self._done.popleft()
        self.busy -= found is not _WAKE_UP
        return found

    def wake(self) -> None:
        """Makes `next` return at once, with None as the key. May be called from any thread."""

        def wake_up() -> None:
            self._done.append(_WAKE_UP)
            self._arrived.set()

        self._loop.call_soon_threadsafe(wake_up)

    def cancel(self) -> None:
        """Cancels what runs; `next` still returns its outcomes."""
        for task in self._tasks:
            task.cancel()
            task.add_done_callback(self._cancelled)
        if self._here is not None and not self._here_cancelled:
            self._here_cancelled = True
            self._here.cancel()

    def cancel_from_any_thread(self, _reason: str) -> None:
        """The same, for a stop signal."""
        with suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self.cancel)

    def _cancelled(self, task: asyncio.Task[None]) -> None:
        """Puts the outcome of a task that was cancelled before its first step: its `finally` never runs."""
        if task in self._tasks:
            self._put(self._tasks.pop(task), (None, asyncio.CancelledError(), ()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        if not self._tasks:
            return  # without entering a scope, which most runs do not need
        self.cancel()
        with anyio.CancelScope(shield=True):
            while self._tasks:
                # A further cancellation is dropped: tasks remain only if an exception has led here, and that one is
                # raised when this returns.
                with suppress(asyncio.CancelledError):
                    await asyncio.wait(tuple(self._tasks))
