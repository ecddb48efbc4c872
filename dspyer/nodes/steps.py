"""Scripts: what a node does as a generator of steps, and the two loops that make the steps, in sync and in async code.

A script is a generator (PEP 342). It yields a step with the call to pass to it, is sent the reply, and what the step
raises is thrown into it. So everything that is decided around a call (whether to try again, where to go) is written
once, and not once for each kind of driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from dspyer import clock
from dspyer.dspy_module.executing import execute_attempt
from dspyer.dspy_module.lm_requests import with_new_responses
from dspyer.dspy_module.tracing import Steps, recording_apart, step_count, take_steps
from dspyer.errors import Interrupt, needs_new_response, unwrap_stop_iteration
from dspyer.nodes.node import Call
from dspyer.nodes.program_calls import questions_in
from dspyer.persistence.execution_records import RecordKey
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
                step, call = script.throw(_failure_or_questions(error))
            else:
                step, call = script.send(reply)
    except StopIteration as done:
        # No local of this frame may hold the result: a failed item of a map has the exception, and so this frame.
        return cast("T", done.value)


async def arun_script(script: Script[T]) -> T:
    """Make the steps of a script in async code."""
    try:
        step, call = next(script)
        while True:
            try:
                reply = await step.acall(call)
            except BaseException as error:  # noqa: BLE001 - as in run_script
                step, call = script.throw(_failure_or_questions(error))
            else:
                step, call = script.send(reply)
    except StopIteration as done:
        return cast("T", done.value)


def _failure_or_questions(error: BaseException) -> BaseException:
    """What a step has raised. Of a group, as an `asyncio.TaskGroup` raises it, the failures, or else the questions."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    asked, failures = error.split(Interrupt)
    return error if asked is None else failures or Interrupt(questions_in(asked))


class Spans(Protocol):
    """The OpenTelemetry spans of a run."""

    def attempt(self, call: Call, number: int, layer: str, script: Script[T], /) -> Script[T]:
        """A script with a span around it: a further attempt, of `layer` if it is not one of the node."""

    def item(self, call: Call, script: Script[T], /) -> Script[T]:
        """The same for an item of a map, or a trial of a search."""


def spans_of(call: Call) -> Spans | None:
    """The spans of the run that a call belongs to; None if the program does not trace."""
    session = call.runner.session
    return None if session is None else session.spans


class Pause(NamedTuple):
    """A step that waits before the next attempt. If the run is stopped meanwhile, the execution is left open."""

    seconds: float

    def call(self, call: Call) -> None:
        """Wait in sync code."""
        session = call.runner.session
        clock.pause(self._bounded(session), None if session is None else session.stop_signal.on_stop)
        _leave_open_if_stopped(session)

    async def acall(self, call: Call) -> None:
        """Wait in async code."""
        session = call.runner.session
        await clock.apause(self._bounded(session), None if session is None else session.stop_signal.on_stop)
        _leave_open_if_stopped(session)

    def _bounded(self, session: Any) -> float:
        """The seconds to wait: at most until the end of the run's budget."""
        left = None if session is None or session.spending is None else session.spending.seconds_left()
        return self.seconds if left is None else min(self.seconds, left)


def _leave_open_if_stopped(session: Any) -> None:
    if session is None:
        return
    if session.spending is not None:
        session.spending.check()
    if session.stopped:
        raise asyncio.CancelledError


class Again(NamedTuple):
    """A step of another attempt: what an earlier one has left behind is kept from it.

    What tasks or threads of an earlier attempt still add to the DSPy trace is no step of this one. If `asked`, the
    requests to LMs differ from those of all earlier attempts, so that no cache serves an unusable response again.
    """

    step: Step
    asked: int
    lose: Callable[[Steps], None]

    def call(self, call: Call) -> Any:
        """Make the step in sync code."""
        with recording_apart(self.lose), with_new_responses(self.asked):
            return self.step.call(call)

    async def acall(self, call: Call) -> Any:
        """Make the step in async code."""
        with recording_apart(self.lose), with_new_responses(self.asked):
            return await self.step.acall(call)


def wrapped(script: Script[T], wrap: Callable[[Step], Step]) -> Script[T]:
    """The same script with something around each of its steps; a script like any other for a driver."""
    try:
        step, call = next(script)
        while True:
            try:
                reply = yield wrap(step), call
            except BaseException as error:  # noqa: BLE001 - as in run_script
                step, call = script.throw(error)
            else:
                step, call = script.send(reply)
    except StopIteration as done:
        return cast("T", done.value)


AttemptFailure: TypeAlias = Callable[[Call, int, Exception, float], Call]
"""What to do about a failed attempt that another one follows: takes its call, its number, what it raised, and the pause
in seconds; returns the call of the next attempt."""

RESUME_STRIDE: Final = 1000
"""How far apart the numbers of the attempts of two processes are: an execution has fewer attempts in one."""


def next_attempt(call: Call, number: int, error: Exception, pause: float) -> Call:
    """Records a failed attempt of a node or an item; returns the call of the next one, which starts clean."""
    delegate = call.context.delegate
    delegate.over = delegate.replaced = True
    delegate.host.attempt_failed(delegate, number, error, pause)
    delegate.host.withdraw_posts(delegate)
    execute_attempt(number + 1)
    return call._replace(context=replace(call.context, delegate=delegate.next(number + 1)))


def next_of_part(call: Call, number: int, error: Exception, pause: float) -> Call:
    """Records a failed attempt of a part of an execution, and returns the call of the next one; the rest is kept."""
    delegate = call.context.delegate
    delegate.replaced = True
    delegate.host.attempt_failed(delegate, number, error, pause)
    following = delegate.next(number + 1)
    following.over = delegate.over
    return call._replace(context=replace(call.context, delegate=following))


def retried(
    policy: Retry | None,
    call: Call,
    attempt: Callable[[Call], Script[T]],
    failed: AttemptFailure = next_attempt,
    layer: str = "",
) -> Script[T]:
    """The result of `attempt`, which is made again with a new call as long as the policy gives a pause.

    `layer` names what of an execution is tried, if it is not the node: each layer counts its own attempts.
    """
    if policy is None:
        return (yield from attempt(call))
    first, number = call.context.delegate, 1
    asked_before = first.host.records.new_responses  # by earlier attempts of a node around this one
    asked = asked_before.get(RecordKey(first.local_id, layer), 0) if asked_before else 0
    steps = step_count() if layer or first.index is not None else 0  # the recording of a node begins with it

    def lose(steps: Steps) -> None:
        first.host.lose_steps(first, max(number - 1, 1), steps)

    while True:
        try:
            made = attempt(call)
            if asked or number > 1:
                made = wrapped(made, partial(Again, asked=asked, lose=lose))
            if number > 1 and (spans := spans_of(call)) is not None:
                made = spans.attempt(call, number, layer, made)
            found = yield from made
        except Exception as error:
            # No other local may refer to the error: its traceback refers to this frame.
            if needs_new_response(unwrap_stop_iteration(error)):
                # In a run that was resumed, also the responses of the earlier process are known to be of no use.
                asked = max(asked, RESUME_STRIDE * first.host.records.resumes) + 1
                asked_before[RecordKey(first.local_id, layer)] = asked
            seconds = policy.pause(number, unwrap_stop_iteration(error))
            if seconds is None:
                raise
            first.host.lose_steps(first, number, take_steps(steps))
            call = failed(call, number, cast("Exception", unwrap_stop_iteration(error)), seconds)
        else:
            if asked:
                asked_before.pop(RecordKey(first.local_id, layer), None)
            return found
        yield Pause(seconds), call
        number += 1


def retried_after(policy: Retry | None, call: Call, layer: str, attempt: Callable[[Call], Script[T]]) -> Script[T]:
    """The result of a layer after a node's own code, which may do nothing more: its condensers, or a router.

    Each is a part of the execution with attempts of its own, so that what the node gave is kept.
    """
    part = call.context.delegate.part(layer)
    part.over = True
    call = call._replace(context=replace(call.context, delegate=part))
    return retried(policy, call, attempt, next_of_part, layer)
