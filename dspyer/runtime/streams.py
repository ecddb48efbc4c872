"""The events of a run as they happen: the run has a thread or task of its own, which puts events into a queue.

The thread or task does not refer to the stream. So a stream that its reader drops is freed at once by its reference
count, and its `__del__` stops the run.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - it registers its exit handler when imported: ours must come later, to run first
import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
import dspy

from dspyer.errors import RunStoppedError
from dspyer.events import Event
from dspyer.lm.not_public import SEND_STREAM
from dspyer.runtime.request import CANCELLED, CLOSED, DROPPED, EXITING, Request
from dspyer.runtime.run import Run
from dspyer.server_sent import HEARTBEAT, OPENING, checked_heartbeat, data_of, last_of_refusal, last_of_run, message
from dspyer.values.scalars import check_flags
from dspyer.waiting import EventQueue, at_fork, end_of, held_back, join_loop, loop_of_worker, may_raise

if TYPE_CHECKING:
    from dspyer.runtime.session import Session

_NOT_OVER = "the run of this stream has not ended: read its events to the end, or close the stream, then use stream.run"
_NOT_BEGUN = "the stream was closed before its run had begun: nothing was started"
_NOT_HERE = "the run of this stream is in the process that this one was forked from: read its events there"
_OTHER_LOOP = (
    "the run of this stream is a task of another event loop, the one on which its first event was asked for: read the "
    "stream and close it there"
)


def _raise_failure(run: Run) -> None:
    """Raises the error of a failed run. A `StopIteration` is wrapped: it would end the reader's loop as a success."""
    error = run.error if run.status == "failed" else None
    if isinstance(error, StopIteration | StopAsyncIteration):
        raise RuntimeError(f"a node raised {type(error).__name__}") from error  # noqa: TRY004 - as Python does for generators
    if error is not None:
        raise error


class _Stream:
    """A stream, sync or async: a request, whose outcome gets the queue, and how to play its run."""

    _future: Future[Run] | asyncio.Task[Run] | None = None  # None before the run has begun

    def __init__(self, work: Callable[[], Any], request: Request) -> None:
        self._work = work
        self._request = request
        self._queue = request.outcome.queue = EventQueue[Event]()
        self._exhausted = False

    @property
    def run(self) -> Run:
        """The run, once it has ended.

        Raises:
            RuntimeError: if it has not ended.
            RunStoppedError: if the stream was closed before the run had begun.
            Exception: why the run could not begin: invalid inputs, a thread that another run owns.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> stream = graph.compile().stream({"n": 1})
            >>> count = len(list(stream))
            >>> stream.run.status
            'completed'
        """
        future = self._future
        if self._exhausted if future is None else future.cancelled():
            raise RunStoppedError(_NOT_BEGUN, CLOSED)
        if future is None or not future.done():
            raise RuntimeError(_NOT_OVER)
        return future.result()


class Events(_Stream, Iterator[Event]):
    """The events of a run in a thread of its own. Made by `stream`.

    Use it as an iterator, best in a `with` block. It ends after the last event: when the run is completed, waits for
    answers, or was stopped; if a node failed, its error is raised then. `run` is the run in each of these cases.

    At most 1,000 events wait for the reader, in order; none is dropped. A run that is further ahead waits: a plain
    function in `ctx.emit`, an LM between two tokens, every run before its next step. An async node does not wait in
    `ctx.emit`. This time counts for the timeout of the node and for the budget.

    A reader that goes away stops the run: `close()`, the end of the `with` block, or a `break` or `return` out of the
    loop after which nothing refers to the stream any more. Nothing new starts, async nodes are cancelled, sync nodes
    are finished and committed, and the end of the run is written before this returns; only the cyclic garbage collector
    does not wait for it. On a thread, `resume` continues the run.

    Example:
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
        ...     writes=["n"]).add_path(START, "add", END)
        >>> with graph.compile().stream({"n": 1}) as stream:
        ...     print([event.commit.node for event in stream if type(event).__name__
        ...         == "Committed"])
        ['START', 'add']
        >>> stream.run.state["n"]
        2
    """

    _future: Future[Run] | None

    def __init__(self, work: Callable[[], Run], request: Request) -> None:
        super().__init__(work, request)
        self._start_lock = threading.Lock()
        self._reader: threading.Thread | None = None

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Event:
        with self._request.until_ctrl_c():
            self._reader = threading.current_thread()
            with self._start_lock:  # two readers must not begin two runs
                if self._future is None and not self._exhausted:
                    self._future = Future()
                    _start(self._work, self._request, self._queue, self._future)
            if self._future is None or self._exhausted:
                raise StopIteration
            if _is_elsewhere(self._future):
                raise RuntimeError(_NOT_HERE)
            event = self._queue.get()
            if event is not None:
                return event
            if not self._exhausted:
                self._exhausted = True
                _raise_failure(self._future.result())
            raise StopIteration

    def close(self) -> None:
        """Stops the run, unless it has ended, and waits for its end.

        Example:
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> stream = graph.compile().stream({"n": 1})
            >>> # before the first event was asked for: nothing was started
            ... stream.close()
            >>> list(stream)
            []
        """
        self._end(CLOSED)

    @may_raise
    def _end(self, reason: str) -> None:
        with self._start_lock:
            self._exhausted = True
        if self._future is not None and _is_elsewhere(self._future):
            return
        with held_back():
            _stop(self._request, reason, self._queue)
            if self._future is not None:
                end_of(self._future).get()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __del__(self) -> None:
        future = self._future
        if future not in _open:  # it has not begun, has ended, or is that of the process that this one was forked from
            return
        _dropped.put(partial(_stop, self._request, DROPPED, self._queue))
        # The collector may call this in any thread at any time: in the run's own, which would wait for itself, and in
        # the reader's while that holds a lock which the run needs. So only a reader that drops the stream itself waits.
        if threading.current_thread() is self._reader and not _dropped.is_collected_here():
            future.exception()


def _stop(request: Request, reason: str, queue: EventQueue[Event]) -> None:
    """Stops the run of a stream that has no reader any more."""
    request.stop_signal.stop(reason)
    queue.close()  # afterwards: what waits for the reader must find the run stopped


def _start(work: Callable[[], Run], request: Request, queue: EventQueue[Event], future: Future[Run]) -> None:
    """Begins the run in a thread that does not refer to the stream."""
    # Under `dspy.streamify` the LMs send their chunks to its stream, on the loop of its worker thread.
    loop = None if dspy.settings.get(SEND_STREAM) is None else loop_of_worker()
    context = copy_context()

    def drive() -> None:
        nonlocal future, queue
        join_loop(loop)
        try:
            with request.stop_signal.on_stop(queue.stop_waiting_for):
                future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001 - raised by `Events.run`
            future.set_exception(error)
        finally:
            del _open[future]
            queue.end()
            del future, queue  # frames below this one, to which the error of a stopped run refers, refer to this one

    _open[future] = request
    try:
        _dropped.serve()
        threading.Thread(target=drive, name="dspyer-stream", daemon=True).start()
    except RuntimeError as error:  # the system has no thread left: the run cannot begin
        del _open[future]
        future.set_exception(error)
        queue.end()


def _is_elsewhere(future: Future[Run]) -> bool:
    """Return whether a run goes on in the process that this one was forked from, whose threads are not in this one."""
    return future not in _open and not future.done()  # in this order: it leaves `_open` once it is done


_open: dict[Future[Run], Request] = {}
"""The runs of streams that have not ended, each with its request."""


def _stop_all() -> None:
    """Stops the runs of open streams when the process exits, and waits until their ends are written."""
    for request in list(_open.values()):
        request.stop_signal.stop(EXITING)  # and so nothing waits for a reader any more
    for future in list(_open):
        future.exception()


# Python joins its threads before it calls `atexit` handlers, and would wait for runs that have no reader any more. The
# private hook runs before that; where it is missing, `atexit` is the next best.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
at_fork(_open.clear)  # the threads exist in the parent only


class AsyncEvents(_Stream, AsyncIterator[Event]):
    """The events of a run in a task of its own. Made by `astream`.

    Use it as an async iterator, best in an `async with` block. It ends as `Events` does.

    A reader that goes away stops the run: `await aclose()`, the end of the `async with` block, a cancelled reader, or a
    `break` out of the loop after which nothing refers to the stream any more. Nothing new starts, async nodes are
    cancelled, sync nodes are finished and committed. As with every async generator, cancelling `anext(stream)` ends the
    stream: to wait for an event with a time limit, use `asyncio.wait`.

    The run belongs to the event loop on which its first event was asked for: the stream is read and closed there.

    Example:
        >>> import asyncio
        >>> from dspyer import END, START, Graph
        >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
        ...     writes=["n"]).add_path(START, "add", END)
        >>> async def main():
        ...     async with graph.compile().astream({"n": 1}) as stream:
        ...         nodes = [event.commit.node async for event in stream
        ...             if type(event).__name__ == "Committed"]
        ...     return nodes, stream.run.state["n"]
        >>> asyncio.run(main())
        (['START', 'add'], 2)
    """

    _future: asyncio.Task[Run] | None

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> Event:
        if self._begin():
            event = await self._next()
            if event is not None:
                return event
            self._raise_at_end()
        raise StopAsyncIteration

    def _begin(self) -> bool:
        """Begins the run, once; returns whether its events can be read."""
        if self._exhausted:
            return False
        if self._future is None:
            self._future = _begin(self._work, self._request, self._queue)
        elif _is_of_other_loop(self._future):
            raise RuntimeError(_OTHER_LOOP)
        return True

    async def _next(self, patience: float | None = None) -> Event | None:
        """The next event, None after the last one; `TimeoutError` after so many seconds without one."""
        try:
            if patience is None:
                return await self._queue.get_async()
            async with asyncio.timeout(patience):
                return await self._queue.get_async()
        except asyncio.CancelledError:
            await self._end(CANCELLED)
            raise

    def _raise_at_end(self) -> None:
        """Raises, to the first reader that comes to the end, why the run has failed or could not begin."""
        if not self._exhausted:
            self._exhausted = True
            _raise_failure(self.run)

    async def start(self) -> Self:
        """Begins the run and waits for its first event, which stays in the stream.

        A server that answers a request with the stream calls it first: what refuses the run is raised here, early
        enough for an error status.

        Returns:
            The stream.

        Raises:
            Exception: why the run could not begin: invalid inputs, a thread that another run owns.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> graph = Graph(inputs=["n"]).add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"])
            >>> program = graph.add_path(START, "add", END).compile()
            >>> async def main(inputs):
            ...     async with await program.astream(inputs).start() as stream:
            ...         return len([event async for event in stream])
            >>> asyncio.run(main({"n": 1}))
            5
            >>> asyncio.run(main({"m": 1}))
            Traceback (most recent call last):
                ...
            dspyer.errors.InputError: ...
        """
        if self._begin():
            try:
                await self._queue.news()
            except asyncio.CancelledError:
                await self._end(CANCELLED)
                raise
            if not len(self._queue):
                self._raise_at_end()
        return self

    def sse(self, heartbeat: float | None = 15.0, *, public: bool = False) -> AsyncIterator[bytes]:
        """The stream as the body of an HTTP response, in the format of server-sent events.

        Each event is a message with its name (the class: `Token`), an `id` that counts from 1, and `event.to_dict()`
        as JSON. One more is the last: `StreamEnded`, with the `run_id`, the `status` of the run, and the `error` of
        one that failed or was stopped, as `{"type", "message", "notes"}`. Nothing is raised into the response, and what
        `redact` hides is hidden in it. A run that could not begin, or whose store failed, has the status
        `"refused"`.

        A response that is cancelled or closed, because its client has gone, stops the run. Starlette only drops it if
        the client goes while a chunk is sent: that run goes on until Python frees the response. A response without
        `StreamEnded` was cut; its run is on the thread. `JSON.parse` rounds integers above 2**53.

        A browser's `EventSource` connects again when a response ends, which would start another run. So a page closes
        it at `StreamEnded`. For pages that do not, the first lines ask the browser to wait a day; such a request has
        the header `Last-Event-ID`, and the status 204 in answer ends it.

        Args:
            heartbeat: seconds without an event after which a comment is sent, so that no proxy takes the connection for
                dead; None for none.
            public: whether a customer reads it: then it has of each error no more than `errors.public` gives, and of an
                answer neither who gave it nor the comment. Events have the names of nodes and what they wrote all the
                same.

        Raises:
            InputError: if `heartbeat` is not positive.
            TypeError: if `public` is neither True nor False.

        Returns:
            An iterator of messages, for the streaming response of any ASGI framework, with the media type
            `text/event-stream`.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> async def main():
            ...     return [message async for message in graph.compile().astream(
            ...         {"n": 1}).sse()]
            >>> print(asyncio.run(main())[-2].decode())
            event: RunEnded
            id: 5
            data: {"event": "RunEnded", "run_id": "...", "status": "completed", "scope":
            [], "at": ...}
        """
        check_flags(public=public)
        return self._messages(checked_heartbeat(heartbeat), public)

    async def _messages(self, heartbeat: float | None, public: bool) -> AsyncIterator[bytes]:
        number = 0
        async with self, aclosing(self._paced(heartbeat)) as events:
            yield OPENING
            async for event in events:
                if event is None:
                    yield HEARTBEAT
                    continue
                number += 1
                yield message(number, data_of(event, public))
            end = await self._end_of_run()
            if isinstance(end, Run):
                yield message(number + 1, last_of_run(end.run_id, end.status, end.error, public))
            else:
                yield message(number + 1, last_of_refusal(end, public))

    async def _paced(self, patience: float | None) -> AsyncGenerator[Event | None, None]:
        """The events, and None after so many seconds without one. Why the run failed or was refused is not raised."""
        while self._begin():
            try:
                event = await self._next(patience)
            except TimeoutError:
                yield None
                continue
            if event is None:
                return
            yield event

    async def _end_of_run(self) -> Run | BaseException:
        """The run once it has ended, or why it could not begin."""
        self._exhausted = True
        task = self._future
        if task is not None:
            await asyncio.wait([task])  # another task may have closed the stream
        if task is None or task.cancelled():
            return RunStoppedError(_NOT_BEGUN, CLOSED)
        return task.exception() or task.result()  # not raised, which would add this frame to its traceback

    @property
    def _session(self) -> Session | None:
        """The run while it is played; None before its first event, and for a run that is returned as it was stored."""
        sessions = self._request.outcome.sessions
        return sessions[-1] if sessions else None

    async def aclose(self) -> None:
        """Stops the run, unless it has ended, and waits for its end.

        Example:
            >>> import asyncio
            >>> from dspyer import END, START, Graph
            >>> graph = Graph().add_node("add", lambda n: {"n": n + 1},
            ...     writes=["n"]).add_path(START, "add", END)
            >>> async def main():
            ...     stream = graph.compile().astream({"n": 1})
            ...     # before the first event was asked for: nothing was started
            ...     await stream.aclose()
            ...     return [event async for event in stream]
            >>> asyncio.run(main())
            []
        """
        await self._end(CLOSED)

    async def _end(self, reason: str) -> None:
        self._exhausted = True
        elsewhere = self._future is not None and _is_of_other_loop(
            self._future
        )  # asked first: the stop may end the task
        _stop(self._request, reason, self._queue)
        if self._future is None:
            return
        if elsewhere:
            _cancel_from_any_thread(self._future)
            raise RuntimeError(_OTHER_LOOP)
        cancelled: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):
            self._future.cancel()
            while not self._future.done():
                try:
                    await asyncio.wait([self._future])
                except asyncio.CancelledError as error:
                    cancelled = error
                    self._future.cancel()
        if cancelled is not None:
            raise cancelled

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        task = self._future
        if task is None or task.done():
            return
        _dropped.put(partial(_stop, self._request, DROPPED, self._queue))
        _dropped.put(partial(_cancel_from_any_thread, task))


def _begin(work: Callable[[], Awaitable[Run]], request: Request, queue: EventQueue[Event]) -> asyncio.Task[Run]:
    """Begins the run in a task that does not refer to the stream."""
    _dropped.serve()

    async def play() -> Run:
        try:
            with request.stop_signal.on_stop(queue.stop_waiting_for):
                return await work()
        except asyncio.CancelledError:
            outcome = request.outcome
            run, outcome.cut_off = outcome.cut_off, None
            if run is None:
                raise
            return run

    async def drive() -> Run:
        # A task around that of the run: a cancellation arrives here at once. Inside it may be held back by a sync node,
        # which may wait for the reader.
        playing = asyncio.ensure_future(play())
        while not playing.done():
            try:
                await asyncio.wait([playing])
            except asyncio.CancelledError:
                queue.stop_waiting_for(CANCELLED)
                playing.cancel()
        try:
            return playing.result()
        finally:
            del playing  # as in the thread of a sync stream

    def ended(task: asyncio.Task[Run]) -> None:
        _tasks.discard(task)
        if not task.cancelled():
            task.exception()  # else asyncio logs it as never retrieved if the reader has gone before the end
        queue.end()

    task = asyncio.get_running_loop().create_task(drive())
    _tasks.add(task)
    task.add_done_callback(ended)
    return task


_tasks: set[asyncio.Task[Run]] = set()
"""Keeps tasks alive until they are done: an event loop keeps only weak references to them, a dropped stream none."""


def _cancel_from_any_thread(task: asyncio.Task[Run]) -> None:
    with suppress(RuntimeError):  # the loop has been closed, and its tasks cancelled
        task.get_loop().call_soon_threadsafe(task.cancel)


def _is_of_other_loop(task: asyncio.Task[Run]) -> bool:
    """Return whether a run can neither be awaited nor cancelled from here."""
    return not task.done() and task.get_loop() is not asyncio.get_running_loop()


class _Dropped:
    """Stops the runs of dropped streams, in a thread of its own, which is started when the first stream begins.

    The garbage collector may free a stream in any thread at any time, also in one that holds a lock which a stop needs.
    So the stream only puts what is to be done into a queue, whose `put` works even inside of itself.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._serves = False
        self._collecting = 0  # the thread in which the cyclic garbage collector works: one at a time
        self.put = self._work.put

    def serve(self) -> None:
        """Starts the thread, once."""
        if self._serves:
            return
        with self._lock:
            if not self._serves:
                if self._note_collector not in gc.callbacks:  # it is after a fork
                    gc.callbacks.append(self._note_collector)
                threading.Thread(target=self._serve, name="dropped-streams", daemon=True).start()
                self._serves = True

    def _note_collector(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        """Called by the collector before and after its work."""
        del info
        self._collecting = threading.get_ident() if phase == "start" else 0

    def is_collected_here(self) -> bool:
        """Return whether the collector works in this thread."""
        return self._collecting == threading.get_ident()

    def _serve(self) -> None:
        while True:
            self._work.get()()


_dropped = _Dropped()
at_fork(_dropped.__init__)  # type: ignore[misc]  # the thread is in the parent only
