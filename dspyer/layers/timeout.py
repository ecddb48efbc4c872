"""`Timeout`: the layer that gives each attempt of a node so many seconds, all its steps together.

Async code is cancelled when its time is over, and its `finally` blocks run. Sync code cannot be ended from outside: it
runs in a daemon thread of its own, which is left running. Such an attempt is fenced: the methods of its `ctx` raise
`AttemptOverError`, its LM calls are refused, and what it returns, or adds to the trace from then on, is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, NamedTuple

from dspyer import clock
from dspyer.clock import TimeLimit, current_limit
from dspyer.errors import NodeTimeoutError
from dspyer.layers.layer import Inner, Layer, Place
from dspyer.lm.tap import gated
from dspyer.lm.tracing import execute_apart, recording_apart
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.node import Call
from dspyer.nodes.steps import Script, Step, wrapped
from dspyer.waiting import cancellation_count
from dspyer.worker_threads import ThreadCall

logger = logging.getLogger("dspyer")

GRACE = 1.0
"""Seconds in which a thread that waited for async code may end after that code was cancelled."""


@dataclass(frozen=True, slots=True)
class Timeout(Layer):
    """Gives each attempt so many seconds: the value of `add_node(timeout=)`."""

    place: ClassVar[Place] = "call"

    seconds: float

    @property
    def note(self) -> str:
        """The words of `explain()` for it."""
        return f"timeout {self.seconds:g} s"

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The output of `inner`, if it comes in time."""
        attempt = call.context.delegate
        limit = attempt.limit = TimeLimit(self.seconds, current_limit.get())
        found = yield from wrapped(inner(call), partial(Timed, limit=limit))
        _raise_if_over(attempt, limit)
        return found


class Timed(NamedTuple):
    """A step of an attempt that has a time limit."""

    step: Step
    limit: TimeLimit

    def call(self, call: Call) -> Any:
        """Make it from sync code, in a thread of its own."""
        attempt, limit = call.context.delegate, self.limit
        _raise_if_over(attempt, limit)
        with _limited(limit), gated(limit=limit), recording_apart():
            ended: SimpleQueue[bool | None] = SimpleQueue()
            work: ThreadCall[Any] = ThreadCall(partial(self.step.call, call), awaited=False)
            work.on_end(partial(ended.put, True))
            try:
                if clock.get(ended, limit.ends, "timeout") is None:
                    _end(limit, work, ended)
            except BaseException:  # Ctrl-C: the call is left running here, too
                limit.end()
                limit.leave_running()
                raise
        if limit.signal.reason is not None:
            raise _timeout_error(attempt, limit)
        return work.result()

    async def acall(self, call: Call) -> Any:
        """Make it from async code: async code is cancelled, a sync function is left running."""
        attempt, limit = call.context.delegate, self.limit
        _raise_if_over(attempt, limit)
        found: Any = None
        cause: Exception | None = None
        before = cancellation_count()
        with _limited(limit):
            try:
                # The limit ends before the cancellation: what the attempt does from there on does not count.
                async with clock.timeout(limit.ends, "timeout", limit.end):
                    found = await self.step.acall(call)
            except asyncio.CancelledError:
                # The limit may have ended a run inside before the cancellation came: no one else has cancelled this.
                if limit.signal.reason is None or cancellation_count() > before:
                    raise
            except Exception as error:
                if limit.signal.reason is None:
                    raise
                if not isinstance(error, TimeoutError) or not isinstance(error.__cause__, asyncio.CancelledError):
                    cause = error
        # Also if it returned: `ctx` has refused it since then.
        if limit.signal.reason is not None:
            raise _timeout_error(attempt, limit) from cause
        return found


class _limited:  # noqa: N801 - used as a function: `with _limited(...)`; a generator costs twice as much
    """A block in which an attempt has a time limit."""

    __slots__ = ("_limit", "_token")

    def __init__(self, limit: TimeLimit) -> None:
        self._limit = limit

    def __enter__(self) -> None:
        execute_apart()
        self._token = current_limit.set(self._limit)

    def __exit__(self, *raised: object) -> None:
        current_limit.reset(self._token)


def _raise_if_over(attempt: Attempt, limit: TimeLimit) -> None:
    """Ends an attempt whose time is over between two steps, or after the last one."""
    if clock.now() >= limit.ends:
        limit.end()
        raise _timeout_error(attempt, limit)


def _end(limit: TimeLimit, work: ThreadCall[Any], ended: SimpleQueue[bool | None]) -> None:
    """Ends an attempt in sync code: what is async in it is awaited, the rest left running."""
    waits_for_async = limit.calls.running
    limit.end()
    if waits_for_async:
        limit.calls.wait()
        with suppress(Empty):
            ended.get(timeout=GRACE)
    if not work.done:
        limit.leave_running()


def _timeout_error(attempt: Attempt, limit: TimeLimit) -> NodeTimeoutError:
    what = f"{attempt.who}: attempt {attempt.number} took longer than its timeout of {limit.seconds:g} s"
    if not limit.left_running:
        return NodeTimeoutError(what)
    error = NodeTimeoutError(
        f"{what}. Its sync code still runs in a thread, which Python cannot end; nothing that it does counts any more. "
        "Give what it waits for (the LM, an HTTP client) a smaller timeout of its own"
    )
    error.left_running = True
    logger.warning("%s, and its sync code still runs in a thread", what)
    return error
