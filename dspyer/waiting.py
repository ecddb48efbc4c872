"""Ctrl-C and forks while the library works, the signal that stops a run, loops for threads, the queue of events.

The parts stand in this order, each below its own line. What they have in common: none holds a lock while it waits, and
none waits on an event loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock, Thread
from types import CodeType, FrameType
from typing import Any, Final, Generic, Self, TypeVar

import anyio.from_thread
import anyio.lowlevel

# --- Ctrl-C and forks: neither cuts off a write, nor leaves a lock taken
#
# Python raises `KeyboardInterrupt` in the main thread between any two instructions: between a commit of the store and
# the bookkeeping of it, or between taking a lock and the block that releases it. So while the library works in the main
# thread, `held_back` takes the signal, and raises `KeyboardInterrupt` once at its end. Meanwhile it is raised only in
# code that the library calls, and where it waits; and of a run only when Ctrl-C is pressed again: the first time stops
# the run.
#
# Nothing is taken from a handler that is not Python's own: of the caller, of `asyncio.run`, of a block around this one.


F = TypeVar("F", bound=Callable[..., Any])
Hook = Callable[[], object]

_signal: Any = vars(signal)["_signal"]  # the functions of `signal` look for enums of handlers: ten times as slow

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals that are held back where they raise `KeyboardInterrupt`: SIGTERM does so under the command line."""

_raising: set[CodeType] = set()
_active: list[held_back] = []
"""The outermost block, while it has the signals."""


def may_raise(function: F) -> F:
    """Marks a function of the library in which Ctrl-C may be raised: it waits.

    It does so by a call of the interpreter, such as `SimpleQueue.get`: one of Python's own functions that wait holds a
    lock before and after.
    """
    _raising.add(function.__code__)
    return function


class held_back:  # noqa: N801 - used as a function: `with held_back()`
    """A block in which the library works. Elsewhere than in the main thread, and within another block, it does nothing.

    `stop` is called, from the signal handler, when Ctrl-C is pressed for the first time: it must take no lock. Without
    it, the first time is like the second one.
    """

    __slots__ = ("_pressed", "_stop")

    def __init__(self, stop: Callable[[], object] | None = None) -> None:
        self._stop, self._pressed = stop, 0

    def __enter__(self) -> Self:
        if threading.get_ident() == threading.main_thread().ident:
            # Without a block, `_note` is Python's own: the code of a node had replaced it, and gave it back later.
            own = (signal.default_int_handler,) if _active else (signal.default_int_handler, _note)
            taken = [number for number in SIGNALS if _signal.getsignal(number) in own]
            if taken:
                _active[:] = [self]  # first, since Ctrl-C may be raised here: the next block replaces it
            for number in taken:
                _signal.signal(number, _note)
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if self.release() and kind is not KeyboardInterrupt:
            raise KeyboardInterrupt

    def release(self) -> bool:
        """Gives the signals back, if this block has them; returns whether one has arrived."""
        if self not in _active:
            return False
        _active.clear()
        for number in SIGNALS:
            if _signal.getsignal(number) is _note:  # else the code of a node has set a handler of its own
                _signal.signal(number, signal.default_int_handler)
        return self._pressed > 0


def _note(number: int, frame: FrameType | None) -> None:
    if not _active:
        signal.default_int_handler(number, frame)
    block = _active[0]
    block._pressed += 1
    if block._pressed == 1 and block._stop is not None:
        block._stop()  # meanwhile it may be pressed again
    if block._pressed > (block._stop is not None) and _is_raised_in(frame):
        raise KeyboardInterrupt


def _is_raised_in(frame: FrameType | None) -> bool:
    """Return whether code of others works, as a node, a store or an LM, or a function that `may_raise` has marked."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__")).partition(".")[0]
        if name == "dspyer":
            return frame.f_code in _raising
        if name not in sys.stdlib_module_names and not name.startswith("namedtuple_"):
            return True
        frame = frame.f_back  # of Python's own functions, the caller decides
    return False


def gives_up() -> bool:
    """Return whether Ctrl-C was pressed again: then what waits in the main thread gives up."""
    for one in _active:
        if one._pressed > (one._stop is not None):
            return threading.current_thread() is threading.main_thread()
    return False


# --- forks

_hooks: tuple[list[Hook], list[Hook], list[Hook]] = ([], [], [])
_forking = threading.local()


def at_fork(in_child: Hook, before: Hook | None = None, in_parent: Hook | None = None) -> None:
    """Calls functions when this process is forked, without signals between the first and the last of them."""
    for hooks, hook in zip(_hooks, (before, in_parent, in_child), strict=True):
        hooks.extend([hook] if hook else ())


def _before_fork() -> None:
    # The mask holds in the child, which has one thread. In the parent another thread may get the signal, for which
    # Python calls the handler in the main thread.
    # The block is one that the first signal does not end: what the hooks of others raise is dropped.
    _forking.block, _forking.mask = held_back(int).__enter__(), signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for hook in _hooks[0]:
        hook()


def _after_fork(hooks: list[Hook]) -> None:
    try:
        for hook in hooks:
            hook()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)
        if _forking.block.release():
            # What is raised here would be dropped. A real signal ends also what this thread waits for by then.
            start_new_thread(signal.pthread_kill, (threading.get_ident(), signal.SIGINT))


def _after_fork_in_child() -> None:
    _after_fork(_hooks[2])
    for block in _active[:]:  # of a run of the parent, in a node of which it was forked
        block.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    in_parent = partial(_after_fork, _hooks[1])
    os.register_at_fork(before=_before_fork, after_in_parent=in_parent, after_in_child=_after_fork_in_child)


# --- what sync and async code need to wait for each other

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
    """Return whether this is code of an event loop, which must not wait."""
    return asyncio._get_running_loop() is not None


class StopSignal:
    """Stops a run, and the runs inside of it, before its end. May be used from any thread.

    Attributes:
        reason: why the run stops; None as long as it does not. The first reason is kept.
        error: what the run ends with if a budget stops it, or a failure: then the nodes that run are finished, async
            ones too. None for any other stop.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.error: Exception | None = None
        self._lock = Lock()
        self._callbacks: dict[int, Callable[[str], object]] = {}
        self._last = 0

    def stop(self, reason: str, error: Exception | None = None) -> None:
        """Stops the runs: nothing new starts, and the callbacks are called. A second call does nothing."""
        with self._lock:
            if self.reason is None:
                self.reason, self.error = reason, error
            callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():  # without the lock: a callback may wait, or register another one
            callback(reason)

    def stop_from_handler(self, reason: str) -> None:
        """The same from the handler of a signal, which must take no lock: the callbacks are called in a thread."""
        if self.reason is None:
            self.reason = reason
        with suppress(RuntimeError):  # the system has no thread left: what waits goes on to wait
            start_new_thread(self.stop, (reason,))

    @contextmanager
    def on_stop(self, callback: Callable[[str], object]) -> Iterator[None]:
        """Calls `callback` with the reason if the run is stopped during the block, or was before."""
        with self._lock:
            # Reading the reason and registering under one lock: a stop in between would be missed, or called twice.
            self._last += 1
            key, reason = self._last, self.reason
            if reason is None:
                self._callbacks[key] = callback
        try:
            if reason is not None:
                callback(reason)
            yield
        finally:
            with self._lock:
                self._callbacks.pop(key, None)


class AsyncCalls:
    """Async calls that sync code waits for, which another thread can cancel."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tasks: dict[asyncio.Task[Any], asyncio.AbstractEventLoop] = {}
        self._cancelled = False
        self._idle: Event | None = None  # made by `wait`, which few calls need: it costs more than the rest

    @property
    def running(self) -> bool:
        """Return whether a call is in progress."""
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
    """Return whether the loop of this thread is lent: then it is for chunks alone, and no other code may run on it."""
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

    @contextmanager
    def joined(self) -> Iterator[None]:
        """A block in which async code that this thread calls runs on the loop."""
        join_loop(self.start())
        try:
            yield
        finally:
            leave_loop()

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


# --- the queue between a run and the reader of its events
#
# It is bounded: a run that is ahead of its reader waits. `put` never waits, so that an event can be published under a
# lock or on an event loop. What produces events waits afterwards, where it holds nothing: `wait_for_room` in a thread,
# `room` in async code. The queue therefore holds its limit and what its producers had in their hands, one event each.
#
# Python's queues are not used: a thread and a task cannot wait for the same one. Here there is no lock: operations of a
# deque are atomic, and who waits looks again after having said so.

LIMIT: Final = 1000
"""How many events may wait for the reader."""


class EventQueue(Generic[T]):
    """Events in the order in which they were put. Any thread and any task may put and get them."""

    __slots__ = ("_closed", "_ended", "_events", "_producers", "_readers", "_waits")

    def __init__(self) -> None:
        self._events: deque[T] = deque()
        self._ended = False
        self._closed = False
        self._waits = True
        self._readers = _Waiters()
        self._producers = _Waiters()

    def __len__(self) -> int:
        return len(self._events)

    # --- what produces events

    def put(self, event: T) -> None:
        """Add an event, without waiting; none after `end` or `close`, from a thread that a node has left running."""
        if not (self._closed or self._ended):
            self._events.append(event)
            self._readers.wake()

    @property
    def is_full(self) -> bool:
        """Return whether what produces events has to wait."""
        return len(self._events) >= LIMIT and self._waits

    def wait_for_room(self) -> None:
        """Wait until the reader has taken events. On the thread of a running event loop it returns at once.

        There it would stop everything else on the loop, perhaps the reader.
        """
        if self.is_full and not is_on_loop():
            self._producers.wait(lambda: not self.is_full)

    async def room(self) -> None:
        """Wait until the reader has taken events."""
        if self.is_full:
            await self._producers.wait_async(lambda: not self.is_full)

    def end(self) -> None:
        """Say that no further event comes: the reader gets what is there, and then None. Nothing waits any more."""
        self._ended = True
        self._readers.wake()
        self.stop_waiting_for()

    def stop_waiting_for(self, reason: str = "") -> None:
        """From now on nothing waits for the reader: the run is stopped, and what still runs must be able to end."""
        del reason
        self._waits = False
        self._producers.wake()

    # --- the reader

    def get(self) -> T | None:
        """Remove the next event, and wait for it in this thread; None after the last one."""
        while True:
            with suppress(IndexError):
                return self._take()
            if self._ended or self._closed:
                return None
            self._readers.wait(self._has_news)

    async def get_async(self) -> T | None:
        """Remove the next event, and wait for it in this task; None after the last one."""
        while True:
            with suppress(IndexError):
                return self._take()
            if self._ended or self._closed:
                return None
            await self._readers.wait_async(self._has_news)

    async def news(self) -> None:
        """Wait in this task until there is an event, or no further one comes."""
        await self._readers.wait_async(self._has_news)

    def _take(self) -> T:
        event = self._events.popleft()
        if not self.is_full:
            self._producers.wake()
        return event

    def _has_news(self) -> bool:
        return bool(self._events) or self._ended or self._closed

    def close(self) -> None:
        """Drop what is there and what will be put: the reader has gone. Nothing waits any more."""
        self._closed = True
        self._events.clear()
        self._readers.wake()
        self.stop_waiting_for()


class _Waiters:
    """Threads and tasks that wait until something is so."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def wake(self) -> None:
        """Let all look again."""
        while self._waiting:
            with suppress(IndexError):  # another thread has woken the last one
                self._waiting.popleft()()

    @may_raise
    def wait(self, done: Callable[[], bool]) -> None:
        """Wait in this thread."""
        while not done():
            gate = Lock()
            gate.acquire()
            self._waiting.append(gate.release)
            if done():  # only now: what happened before was not seen by `wake`
                return
            gate.acquire()

    async def wait_async(self, done: Callable[[], bool]) -> None:
        """Wait in this task."""
        while not done():
            gate, open_gate = task_signal()
            self._waiting.append(open_gate)
            if done():
                return
            await gate
