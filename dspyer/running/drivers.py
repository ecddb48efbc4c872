"""The two drivers, threads for sync code and tasks for async code: they start calls and decide nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

import anyio
import anyio.from_thread
import anyio.to_thread

from dspyer.bond.tracing import Steps, hand_over, recording
from dspyer.nodes import Decision, Reply, Router, portal_scope
from dspyer.running.session import Observe, Script, Session
from dspyer.scheduler.runstate import Execution, Transition
from dspyer.scheduler.schedule import plan

T = TypeVar("T")
Outcome = tuple[Any, BaseException | None, Steps]


def attempt(work: Callable[..., Any], *args: Any) -> Outcome:
    """Runs one piece of work with a DSPy trace of its own; an exception is an outcome."""
    with recording() as steps:
        return attempt_here(steps, work, *args)


def attempt_here(steps: list[Any], work: Callable[..., Any], *args: Any) -> Outcome:
    """The same inside a recording that nothing else uses meanwhile: takes the steps out of it."""
    try:
        return work(*args), None, take(steps) if steps else ()
    except BaseException as error:  # noqa: BLE001 - the driver raises what is no Exception
        return None, error, take(steps)


async def aattempt_here(steps: list[Any], work: Callable[..., Awaitable[Any]], *args: Any) -> Outcome:
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


def follow(script: Script) -> Transition:
    """Makes the calls of a script in sync code."""
    reply: Reply | Decision | None = None
    while True:
        try:
            step, call = script.send(reply)
        except StopIteration as done:
            return cast(Transition, done.value)
        reply = step.decide(call) if isinstance(step, Router) else step.call(call)


async def afollow(script: Script) -> Transition:
    """Makes the calls of a script in async code."""
    reply: Reply | Decision | None = None
    while True:
        try:
            step, call = script.send(reply)
        except StopIteration as done:
            return cast(Transition, done.value)
        reply = await (step.adecide(call) if isinstance(step, Router) else step.acall(call))


class Threads:
    """Sync work in threads, each with a copy of the caller's context variables.

    In an AnyIO worker thread (under `dspy.streamify` or `dspy.asyncify`) the work goes to further AnyIO worker threads
    of the same loop, so that tokens can be streamed from it; a limiter of its own keeps it from waiting for the thread
    that waits for it.
    """

    def __init__(self, limit: int) -> None:
        self.busy = 0
        self._limit = limit
        self._jobs: SimpleQueue[tuple[Context, Any, Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Any, Outcome]] = SimpleQueue()
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
            thread.start()
            self._threads.append(thread)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            context, key, work, args = job
            self._done.put((key, context.run(attempt, work, *args)))

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

    def next(self) -> tuple[Any, Outcome]:
        """Waits for the next outcome."""
        found = self._done.get()
        self.busy -= 1
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()


_tasks: set[asyncio.Future[None]] = set()  # asyncio itself keeps only weak references to tasks


def in_worker_thread() -> bool:
    """Whether this is a worker thread of AnyIO, whose event loop can be reached."""
    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:
        return False
    return True


class Tasks:
    """Async work in tasks of the running event loop: an AnyIO task group costs six times as much for each task."""

    def __init__(self) -> None:
        self.busy = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: deque[tuple[Any, Outcome]] = deque()
        self._wake = asyncio.Event()

    def start(self, key: Any, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Starts work; `next` gives its outcome under `key`."""
        self.busy += 1
        self._tasks.add(asyncio.create_task(self._run(key, work, *args)))

    async def _run(self, key: Any, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        # a cancellation that comes from inside is an outcome after all: whoever waits for it has to know
        outcome: Outcome = (None, asyncio.CancelledError(), ())
        try:
            with recording() as steps:
                outcome = await aattempt_here(steps, work, *args)
        finally:
            self._done.append((key, outcome))
            self._wake.set()
            self._tasks.remove(cast("asyncio.Task[None]", asyncio.current_task()))

    async def next(self) -> tuple[Any, Outcome]:
        """Waits for the next outcome."""
        while not self._done:
            self._wake.clear()
            await self._wake.wait()
        self.busy -= 1
        return self._done.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(tuple(self._tasks))


def drive(session: Session, **overrides: Any) -> None:
    """Runs a session to its end with threads. A lone branch runs on the caller's thread.

    Args:
        session: the run.
        overrides: DSPy settings for it.
    """
    with (
        recording(**overrides) as steps,
        portal_scope(),
        Threads(session.blueprint.max_concurrency) as threads,
    ):
        while True:
            started = session.start_ready()
            if len(started) == 1 and not threads.busy and not plan(session.run):
                script = session.script(started[0], Gather(session, started[0]))
                settle(session, started[0], attempt_here(steps, follow, script))
                continue
            for execution in started:
                script = session.script(execution, Gather(session, execution))
                threads.start(execution, follow, script)
            if not threads.busy:
                return
            settle(session, *threads.next())


async def adrive(session: Session, **overrides: Any) -> None:
    """Runs a session to its end with tasks. A lone branch runs in the caller's task.

    Args:
        session: the run.
        overrides: DSPy settings for it.
    """
    with recording(**overrides) as steps:
        async with Tasks() as tasks:
            await _adrive(session, tasks, steps)


async def _adrive(session: Session, tasks: Tasks, steps: list[Any]) -> None:
    while True:
        started = session.start_ready()
        if len(started) == 1 and not tasks.busy and not plan(session.run):
            script = session.script(started[0], Gather(session, started[0]))
            settle(session, started[0], await aattempt_here(steps, afollow, script))
            continue
        for execution in started:
            script = session.script(execution, Gather(session, execution))
            tasks.start(execution, afollow, script)
        if not tasks.busy:
            return
        settle(session, *await tasks.next())


def settle(session: Session, execution: Execution, outcome: Outcome) -> None:
    """Hands an outcome to the session; what is no `Exception` (an interrupt of the process) goes on up at once."""
    transition, error, steps = outcome
    if error is not None and not isinstance(error, Exception):
        raise error
    session.finish(execution, error or transition, steps)


class Gather:
    """Runs the calls of one node at once (the items of a map), with the trace in the order of the calls.

    Args:
        session: the run.
        execution: the node's.
    """

    __slots__ = ("_execution", "_session")

    def __init__(self, session: Session, execution: Execution) -> None:
        self._session = session
        self._execution = execution

    @property
    def observe(self) -> Observe:
        """Where the events of a graph inside the node go."""
        return self._session.record

    @property
    def scope(self) -> tuple[str, ...]:
        """The executions around such a graph."""
        return (*self._session.scope, self._execution.id)

    @property
    def _limit(self) -> int:
        return self._session.blueprint.max_concurrency

    def gather(self, calls: Sequence[Callable[[], T]], max_concurrency: int | None) -> list[T]:
        """Runs sync calls. After a failure nothing new starts, and the first failure in order is raised."""
        batch: Batch[T] = Batch(len(calls), min(self._limit, max_concurrency or self._limit))
        with Threads(batch.limit) as threads:
            while batch.wants(threads.busy):
                index = batch.take()
                threads.start(index, calls[index])
                while threads.busy and not batch.wants(threads.busy):
                    batch.put(*threads.next())
        return batch.results()

    async def agather(self, calls: Sequence[Callable[[], Awaitable[T]]], max_concurrency: int | None) -> list[T]:
        """Runs async calls, in the same way."""
        batch: Batch[T] = Batch(len(calls), min(self._limit, max_concurrency or self._limit))
        async with Tasks() as tasks:
            while batch.wants(tasks.busy):
                index = batch.take()
                tasks.start(index, calls[index])
                while tasks.busy and not batch.wants(tasks.busy):
                    batch.put(*await tasks.next())
        return batch.results()


class Batch(Generic[T]):
    """Which of several calls to start next, and what became of them."""

    def __init__(self, count: int, limit: int) -> None:
        self.limit = limit
        self._count = count
        self._next = 0
        self._outcomes: dict[int, Outcome] = {}
        self._failed = False

    def wants(self, busy: int) -> bool:
        """Whether another call may start beside `busy` others."""
        return self._next < self._count and busy < self.limit and not self._failed

    def take(self) -> int:
        """The next call to start."""
        self._next += 1
        return self._next - 1

    def put(self, index: int, outcome: Outcome) -> None:
        """Keeps an outcome."""
        if outcome[1] is not None:
            if not isinstance(outcome[1], Exception):
                raise outcome[1]
            self._failed = True
        self._outcomes[index] = outcome

    def results(self) -> list[T]:
        """The results in order; raises the first failure in order. The traces are handed over either way."""
        ordered = [self._outcomes[index] for index in sorted(self._outcomes)]
        for _, _, steps in ordered:
            hand_over(steps)
        for _, error, _ in ordered:
            if error is not None:
                raise error
        return [result for result, _, _ in ordered]
