"""Scripts: what a node does as a generator of steps, and the two loops that make the steps, in sync and in async code.

A script is a generator (PEP 342). It yields a step with the call to pass to it, is sent the reply, and what the step
raises is thrown into it. So everything that is decided around a call (whether to try again, where to go) is written
once, and not once for each kind of driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from dspyer import clock
from dspyer.nodes.node import Call
from dspyer.retry import Retry

T = TypeVar("T")


class Step(Protocol):
    """One thing that a driver does for a script: the call of a node or a router, a pause."""

    def call(self, call: Call, /) -> Any:
        """Make the step in sync code."""

    async def acall(self, call: Call, /) -> Any:
        """Make the step in async code."""


Script: TypeAlias = Generator[tuple[Step, Call], Any, T]


def run_script(script: Script[T]) -> T:
    """Make the steps of a script in sync code."""
    try:
        step, call = next(script)
        while True:
            try:
                reply = step.call(call)
            except BaseException as error:  # noqa: BLE001 - the script decides: it tries again, or raises it
                # Within this block, whose end deletes `error`: its traceback refers to this frame.
                step, call = script.throw(error)
            else:
                step, call = script.send(reply)
    except StopIteration as done:
        return cast("T", done.value)


async def arun_script(script: Script[T]) -> T:
    """Make the steps of a script in async code."""
    try:
        step, call = next(script)
        while True:
            try:
                reply = await step.acall(call)
            except BaseException as error:  # noqa: BLE001 - as in run_script
                step, call = script.throw(error)
            else:
                step, call = script.send(reply)
    except StopIteration as done:
        return cast("T", done.value)


class Pause(NamedTuple):
    """A step that waits before the next attempt. If the run is stopped meanwhile, the execution is left open."""

    seconds: float

    def call(self, call: Call) -> None:
        """Wait in sync code."""
        session = call.runner.session
        clock.pause(self.seconds, None if session is None else session.stop_signal)
        _leave_open_if_stopped(session)

    async def acall(self, call: Call) -> None:
        """Wait in async code."""
        session = call.runner.session
        await clock.apause(self.seconds, None if session is None else session.stop_signal)
        _leave_open_if_stopped(session)


def _leave_open_if_stopped(session: Any) -> None:
    if session is not None and session.stopped:
        raise asyncio.CancelledError


AttemptFailure: TypeAlias = Callable[[Call, int, Exception, float], Call]
"""Is told of a failed attempt that another one follows: its call, its number, what it raised, the pause in seconds.
Returns the call of the next attempt."""


def next_attempt(call: Call, number: int, error: Exception, pause: float) -> Call:
    """Records a failed attempt of a node or an item; returns the call of the next one, which starts clean."""
    delegate = call.context.delegate
    delegate.host.attempt_failed(delegate, number, error, pause)
    return call._replace(context=replace(call.context, delegate=delegate.next(number + 1)))


def same_call(call: Call, number: int, error: Exception, pause: float) -> Call:
    """Records a failed attempt of a condenser or a router; the node's own output is kept, and so is its attempt."""
    delegate = call.context.delegate
    delegate.host.attempt_failed(delegate, number, error, pause)
    return call


def retried(
    policy: Retry | None,
    call: Call,
    attempt: Callable[[Call], Script[T]],
    failed: AttemptFailure = next_attempt,
) -> Script[T]:
    """The result of `attempt`, which is made again with a new call as long as the policy gives a pause."""
    number = 1
    while True:
        try:
            return (yield from attempt(call))
        except Exception as error:
            seconds = None if policy is None else policy.pause(number, error)
            if seconds is None:
                raise
            call = failed(call, number, error, seconds)
        yield Pause(seconds), call
        number += 1
