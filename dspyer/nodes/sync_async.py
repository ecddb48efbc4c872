"""Calls between sync and async code: functions and modules of both kinds run, whichever way a program is called.

Async code calls sync functions in worker threads. Sync code calls async functions on an event loop: that of the host
if it runs in one of AnyIO's worker threads, else that of the run's `async_bridge`, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from _thread import start_new_thread
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent import futures
from contextlib import ExitStack
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import anyio
import dspy
from anyio.from_thread import BlockingPortal, start_blocking_portal
from anyio.from_thread import run as run_on_host_loop
from anyio.lowlevel import current_token

from dspyer.clock import current_limit
from dspyer.lm.tap import gated
from dspyer.lm.tracing import recording_apart
from dspyer.nodes.callables import own_call
from dspyer.waiting import (
    AsyncCalls,
    Outcome,
    cancellation_count,
    forget_cancellations,
    gives_up,
    has_lent_loop,
    may_raise,
    result_of,
)
from dspyer.worker_threads import ThreadCall, run_in_thread

T = TypeVar("T")


# --- functions


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether `fn` is an async function, a partial of one, or an object with an async `__call__`."""
    while isinstance(fn, partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(own_call(fn))


@may_raise
def call_function(fn: Callable[..., Any], kwargs: Mapping[str, Any], asynchronous: bool) -> Any:
    """Call a sync or async function from sync code."""
    if asynchronous:
        return call_async(fn, kwargs)
    result = fn(**kwargs)
    if result is None or type(result) is dict:  # the usual results, faster than `isawaitable`
        return result
    return call_async(_wait, {"awaitable": result}) if inspect.isawaitable(result) else result


async def acall_function(fn: Callable[..., Any], kwargs: Mapping[str, Any], asynchronous: bool) -> Any:
    """Call a sync or async function from async code."""
    if asynchronous:
        return await _ended(fn(**kwargs))
    result = await to_thread(fn, kwargs)
    return await _ended(result) if inspect.isawaitable(result) else result


async def _wait(awaitable: Awaitable[T]) -> T:
    return await awaitable


# --- modules


def call_module(module: dspy.Module, inputs: Mapping[str, Any]) -> Any:
    """Call a module from sync code."""
    if "sync" in call_modes(module) or "async" not in call_modes(module):
        return module(**inputs)
    return call_async(module.acall, inputs)


async def acall_module(module: dspy.Module, inputs: Mapping[str, Any]) -> Any:
    """Call a module from async code."""
    if uses_acall(module):
        return await _ended(module.acall(**inputs))
    return await to_thread(module, inputs)


async def _ended(code: Awaitable[T]) -> T:
    """The result of async code of the user, which has dealt with its cancellations unless it raises `CancelledError`.

    In Python 3.11 and 3.12 an `asyncio.TaskGroup` in which a task fails cancels the task around it, and does not take
    that back, also where the code handles the error. The driver would take it for a cancellation of the run.
    """
    before = cancellation_count()  # of the task, to which no local refers: its error refers to this frame
    try:
        return await code
    except asyncio.CancelledError:
        before = cancellation_count()
        raise
    finally:
        if cancellation_count() > before:
            forget_cancellations(before)


def uses_acall(module: dspy.Module) -> bool:
    """Whether async code awaits `module.acall`; else it calls the module in a worker thread."""
    return "async" in call_modes(module)


def call_modes(module: dspy.Module) -> frozenset[str]:
    """How a module can be called: `"sync"`, `"async"` or both.

    Of `forward` and `aforward`, the one that comes first in the class hierarchy counts: a subclass of `dspy.Predict`
    that overrides `forward` alone inherits an `aforward` that would bypass it.
    """
    forward, aforward = _nearness(module, "forward"), _nearness(module, "aforward")
    found = []
    if forward <= aforward and forward != _NOT_DEFINED:
        found.append("sync")
    if aforward <= forward and aforward != _NOT_DEFINED:
        found.append("async")
    return frozenset(found)


def _nearness(module: dspy.Module, method: str) -> int:
    own = vars(module).get(method)
    # An optimizer may leave the bound original method on the instance, which overrides nothing.
    if own is not None and getattr(own, "__func__", own) is not getattr(type(module), method, None):
        return -1
    return _depth(type(module).__mro__, method)


_NOT_DEFINED = 1_000_000  # deeper than any class


@lru_cache(maxsize=512)
def _depth(bases: tuple[Hashable, ...], method: str) -> int:
    """How far up in the bases of a class a method is defined: smaller is nearer."""
    return next((depth for depth, base in enumerate(bases) if method in vars(base)), _NOT_DEFINED)


# --- the bridge


def call_async(fn: Callable[..., Awaitable[T]], kwargs: Mapping[str, Any]) -> T:
    """Call an async function from sync code and wait for its result. Context variables are carried over.

    In an AnyIO worker thread it runs on the loop that the thread belongs to, else on the loop of `async_bridge`, else
    on one of its own.
    """
    began = False
    loop_thread = _loop_thread.get()
    call: Callable[..., Awaitable[T]] = partial(fn, **kwargs)
    if loop_thread is not None:
        call = partial(loop_thread.calls.watch, call)
    limit = current_limit.get()
    while limit is not None:  # a limit that ends cancels the calls of its attempt, and of the attempts inside of it
        call = partial(limit.calls.watch, call)
        limit = limit.around

    async def run() -> Outcome:
        nonlocal began
        began = True
        try:
            return await call(), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - returned, and raised in the calling thread with its traceback
            return None, error

    try:
        if not has_lent_loop():
            try:
                return cast(T, result_of(run_on_host_loop(run)))
            except RuntimeError:  # of AnyIO: this is none of its worker threads
                if began:  # then the function itself has raised it
                    raise
        portal = None if loop_thread is None else loop_thread.portal()
        if portal is not None:
            return cast(T, result_of(portal.call(run)))
        with start_blocking_portal() as portal:
            return cast(T, result_of(portal.call(run)))
    except futures.CancelledError:
        raise asyncio.CancelledError from None


async def to_thread(fn: Callable[..., T], kwargs: Mapping[str, Any]) -> T:
    """Call a sync function from async code in a worker thread. Context variables are carried over.

    Cancelling the task does not end the call: see `dspyer.worker_threads`. Only an attempt that has timed out leaves it
    running. The driver limits how many nodes run at once.
    """
    limit = current_limit.get()
    if limit is None:
        return await run_in_thread(fn, **kwargs)
    with gated(limit=limit), recording_apart(), anyio.CancelScope(shield=True):
        work = ThreadCall(partial(fn, **kwargs), current_token(), awaited=False)
        while not work.done:
            try:
                await work.ended()
            except asyncio.CancelledError:
                if limit.over:
                    limit.leave_running()
                    raise
    return work.result()


class _LoopThread:
    """The event loop of an `async_bridge`, in a thread of its own, which is started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._thread: int | None = None
        self._stopped = False
        self.calls = AsyncCalls()
        loop = asyncio._get_running_loop()
        self.blocked: tuple[object, ...] = blocked_loops() if loop is None else (loop, *blocked_loops())

    def portal(self) -> BlockingPortal | None:
        """What passes calls to the loop; None in the loop's own thread, and after the bridge has ended."""
        with self._lock:
            if self._stopped or self._thread == threading.get_ident():
                return None
            if self._portal is None:
                self._portal = self._stack.enter_context(start_blocking_portal(name="dspyer-async"))
                self._thread = self._portal.call(threading.get_ident)
            return self._portal

    def stop(self) -> None:
        with self._lock:  # else a call that was left running could make the loop after that
            self._stopped = True
        if gives_up():  # async code that does not end is left running
            start_new_thread(self._stack.close, ())
        else:
            self._stack.close()


_loop_thread: ContextVar[_LoopThread | None] = ContextVar("dspyer_loop_thread", default=None)


def blocked_loops() -> tuple[object, ...]:
    """The event loops on whose threads the sync runs around the caller were started, as in a notebook.

    What needs one of them cannot proceed before these runs have ended.
    """
    found = _loop_thread.get()
    return () if found is None else found.blocked


class async_bridge:  # noqa: N801 - used as a function: `with async_bridge()`
    """One event loop for all async functions that sync code calls inside the block; it is stopped at the end.

    The loop runs in a thread of its own, so it works where the calling thread has a running loop (a notebook), and a
    program inside a node of another program has its own. The block's value is a function that cancels these calls, from
    any thread.
    """

    __slots__ = ("_loop_thread", "_token")

    def __enter__(self) -> Callable[[str], None]:
        self._loop_thread = _LoopThread()
        self._token = _loop_thread.set(self._loop_thread)
        return self._loop_thread.calls.cancel

    def __exit__(self, *raised: object) -> None:
        _loop_thread.reset(self._token)
        self._loop_thread.stop()
