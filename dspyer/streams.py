"""Events of a run as they happen, from a thread or a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from dspyer.events import Event
from dspyer.run import Run
from dspyer.running.observing import Observe


def raise_error(run: Run) -> None:
    """Raises what stopped a run; a `StopIteration` would end the loop over the events as if nothing had happened."""
    if isinstance(run.error, StopIteration | StopAsyncIteration):
        raise RuntimeError(f"a node raised {type(run.error).__name__}") from run.error  # noqa: TRY004
    run.raise_error()


class Events(Iterator[Event]):
    """The events of a run that works in a thread. Use it as an iterator, or in a `with` block to stop it early.

    Attributes:
        run: the run, once the events are through.
    """

    def __init__(self, work: Callable[[Observe], Run], stop: Callable[[], None]) -> None:
        self.run: Run | None = None
        self._work = work
        self._stop = stop
        self._queue: SimpleQueue[Event | None] = SimpleQueue()
        self._future: Future[Run] | None = None
        self._through = False

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Event:
        if self._future is None:
            self._future = self._start()
        if self._through:
            raise StopIteration
        event = self._queue.get()
        if event is not None:
            return event
        self._through = True
        self.run = self._future.result()
        raise_error(self.run)
        raise StopIteration

    def _start(self) -> Future[Run]:
        pool = ThreadPoolExecutor(1, "dspyer-stream")
        future = pool.submit(copy_context().run, self._work, self._queue.put)
        future.add_done_callback(lambda _: self._queue.put(None))
        pool.shutdown(wait=False)
        return future

    def close(self) -> None:
        """Lets nothing new start and waits for what runs."""
        self._stop()
        if self._future is not None:
            self._future.exception()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncEvents(AsyncIterator[Event]):
    """The events of a run that works in a task. Use it as an async iterator, or in an `async with` block to stop it
    early.

    Attributes:
        run: the run, once the events are through.
    """

    def __init__(self, work: Callable[[Observe], Awaitable[Run]]) -> None:
        self.run: Run | None = None
        self._work = work
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._task: asyncio.Future[Run] | None = None
        self._through = False

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> Event:
        if self._task is None:
            self._task = self._start()
        if self._through:
            raise StopAsyncIteration
        event = await self._queue.get()
        if event is not None:
            return event
        self._through = True
        self.run = await self._task
        raise_error(self.run)
        raise StopAsyncIteration

    def _start(self) -> asyncio.Future[Run]:
        loop = asyncio.get_running_loop()

        def observe(event: Event) -> None:  # may be called from a worker thread
            loop.call_soon_threadsafe(self._queue.put_nowait, event)

        task = asyncio.ensure_future(self._work(observe))
        task.add_done_callback(lambda _: loop.call_soon(self._queue.put_nowait, None))
        return task

    async def aclose(self) -> None:
        """Cancels the run, if it still works, and waits for its end."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
