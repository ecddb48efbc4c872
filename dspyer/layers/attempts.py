"""`Retry`, `NodeLM` and `Timeout`: the layers of the options `retry`, `lm` and `timeout` of a node. The first makes the
attempts of an execution, the last gives each of them so many seconds.

An execution is one call of a node in one branch, its attempts are the calls of the node within it. A router that is a
module and the modules of `condense` are parts of an execution with attempts of their own, so that what the node gave is
kept.

When the time of an attempt is over, async code is cancelled, and its `finally` blocks run. Sync code cannot be ended
from outside: it runs in a daemon thread of its own, which is left running. Such an attempt is fenced: the methods of
its `ctx` raise `AttemptOverError`, its LM calls are refused, and what it returns, or adds to the trace from then on, is
dropped.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self, TypeAlias, cast

import dspy

from dspyer import clock
from dspyer.clock import TimeLimit, current_limit
from dspyer.errors import (
    NodeTimeoutError,
    QuestionExpired,
    always_raised,
    annotate,
    brief,
    is_always_raised,
    is_lost_work,
    is_transient,
    lost_work,
    needs_new_response,
    unwrap_stop_iteration,
    with_article,
)
from dspyer.layers.layer import Inner, Layer, Place
from dspyer.lm.requests import with_new_responses
from dspyer.lm.tap import current_gate, gated
from dspyer.lm.tracing import Steps, execute_apart, execute_attempt, recording_apart, step_count, take_steps
from dspyer.log.execution_records import RecordKey
from dspyer.nodes.attempt import Attempt
from dspyer.nodes.node import Call
from dspyer.nodes.steps import Script, Step, Within, is_async, wrapped
from dspyer.values.scalars import is_number, is_whole_number
from dspyer.waiting import cancellation_count
from dspyer.worker_threads import ThreadCall

if TYPE_CHECKING:
    from tenacity.wait import wait_base


RetryOn: TypeAlias = "type[BaseException] | Callable[[BaseException], bool]"
"""What accepts an exception: its type, or a predicate."""


def check_on(on: object, option: str) -> None:
    """Refuse an `on` that is neither an exception type nor a predicate, nor a tuple of these."""
    if on == ():
        raise TypeError(f"{option}(on=()): give an exception type or a function error -> bool; this accepts nothing")
    for one in on if isinstance(on, tuple) else (on,):
        if not callable(one) or (isinstance(one, type) and not issubclass(one, BaseException)):
            raise TypeError(
                f"{option}(on={one!r}): give an exception type, a function error -> bool, or a tuple of these"
            )
        tenacity = sys.modules.get("tenacity")  # who has a condition of it has imported it: it takes 20 ms
        if tenacity is not None and isinstance(one, tenacity.retry_base):
            raise TypeError(
                f"{option}(on={type(one).__name__}(...)) is a condition of tenacity, which is not asked about an "
                "exception: give the exception type itself, or a function error -> bool"
            )
        if is_async(one):  # its coroutine would be true, so it would accept every error
            raise TypeError(f"{option}(on={brief(one)}) is async, and nothing awaits it: give a plain function")


def accepts(on: RetryOn | tuple[RetryOn, ...], error: BaseException) -> bool:
    """Says that an exception is of a type in `on`, or a predicate there accepts it; or so each part of a group."""
    for one in on if isinstance(on, tuple) else (on,):
        if isinstance(error, one) if isinstance(one, type) else _asked(one, error):
            return True
    return isinstance(error, ExceptionGroup) and all(accepts(on, part) for part in error.exceptions)


def _asked(predicate: Callable[[BaseException], bool], error: BaseException) -> bool:
    """The answer of a predicate; what it raises has a note that names it and the kind of the exception."""
    try:
        return predicate(error)
    except Exception as raised:
        name = getattr(predicate, "__name__", type(predicate).__name__)
        annotate(raised, f"in the function {name!r} of on=, which was asked about {with_article(type(error).__name__)}")
        raise


def retry_after(error: BaseException) -> float:
    """The seconds that a server asked to wait, as its exception says; 0 if it asked for none. Of a group, the most."""
    if isinstance(error, BaseExceptionGroup):
        return max(map(retry_after, error.exceptions))
    asked = getattr(error, "retry_after", None)
    return float(asked) if isinstance(asked, int | float) and math.isfinite(asked) and asked > 0 else 0.0


# Full jitter: a pause between 0 and the exponential bound. Clients that failed together do not return together.
# Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
_FIRST_BOUND: Final = 0.5
_LONGEST_BOUND: Final = 60.0


def _full_jitter(attempt: int) -> float:
    return random.uniform(0, min(_FIRST_BOUND * 2 ** min(attempt - 1, 16), _LONGEST_BOUND))  # more would overflow


def _asked_pause(wait: wait_base, attempt: int, error: BaseException) -> float:
    """The pause that a wait strategy of tenacity gives."""
    from tenacity import RetryCallState, Retrying

    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = attempt
    state.set_exception((type(error), error, error.__traceback__))
    return float(wait(state))


@dataclass(frozen=True, slots=True)
class Retry(Layer):
    """Retries a step that failed: a node, an item of a map, or a request of `dspyer.lms.reliable`.

    Each attempt starts clean, with the same inputs. Results of `ctx.once` are kept; one that the failed attempt has
    left in progress is waited for. What else it left behind does not count. A crash is no attempt: a resume counts
    from 1 again. Of an `ExceptionGroup`, `on` must accept each part, and the longest `Retry-After` counts.

    Args:
        attempts: the most attempts, the first included.
        on: what is retried: an exception type, a predicate `error -> bool`, or a tuple of both.
        wait: the pause before the next attempt, a wait strategy of tenacity; by default full jitter, between 0 and
            0.5, 1, 2, ... seconds.
        max_wait: the longest pause in seconds. If the server asks for a longer one (`Retry-After`), there is no further
            attempt.

    Raises:
        ValueError: for less than one attempt, a negative `max_wait`, or an `on` that is never retried.
        TypeError: for an `on` or `wait` of another kind.

    Example:
        >>> policy = Retry(3, on=ConnectionError)
        >>> (policy.pause(1, ConnectionError()) is None,
        ...     policy.pause(1, ValueError()) is None)
        (False, True)
    """

    place: ClassVar[Place] = "retry"
    around_parts: ClassVar[bool] = True

    attempts: int = 3
    on: RetryOn | tuple[RetryOn, ...] = is_transient
    wait: wait_base | None = None
    max_wait: float = 60.0

    def __post_init__(self) -> None:
        attempts: Any = self.attempts
        if not is_whole_number(attempts):
            raise TypeError(f"Retry(attempts={attempts!r}): give a number of attempts, the first one included")
        if attempts < 1:
            raise ValueError(f"Retry(attempts={attempts}): give 1 or more; the first attempt counts")
        check_on(self.on, "Retry")
        for one in self.on if isinstance(self.on, tuple) else (self.on,):
            lasting = isinstance(one, type) and is_always_raised(one) and not issubclass(one, lost_work())
            if isinstance(one, type) and (lasting or one is QuestionExpired):
                raise ValueError(
                    f"Retry(on={one.__name__}) retries nothing: this error passes every retry, since no attempt can "
                    "mend it. Leave it out, and handle it where the program is run"
                )
        wait: Any = self.wait
        if wait is not None and not callable(wait):
            kind = with_article(type(wait).__name__)
            raise TypeError(f"Retry(wait=) takes a wait strategy of tenacity, such as wait_fixed(2), and got {kind}")
        if wait is not None and is_async(wait):
            raise TypeError(f"Retry(wait={brief(wait)}) is async, and nothing awaits it: give a plain function")
        max_wait: Any = self.max_wait
        if not is_number(max_wait) or math.isnan(max_wait) or max_wait < 0:
            raise ValueError(f"Retry(max_wait={max_wait!r}): give seconds, 0 or more")

    @classmethod
    def from_option(cls, given: Self | int | None) -> Self | None:
        """The policy that an option `retry=` means: 3 means `Retry(3)`, None means none.

        Raises:
            TypeError: for anything else.
            ValueError: for less than one attempt.

        Example:
            >>> Retry.from_option(2).attempts
            2
        """
        if given is None or isinstance(given, cls):
            return given
        if is_whole_number(given):
            return cls(given)
        raise TypeError(f"retry={given!r}: give a number of attempts, a dspyer.Retry, or None")

    def pause(self, attempt: int, error: BaseException) -> float | None:
        """The pause before the next attempt.

        Args:
            attempt: the number of the attempt that failed, from 1.
            error: what it raised.

        Returns:
            Seconds; None if there is no further attempt.

        Example:
            >>> from tenacity import wait_fixed
            >>> Retry(2, wait=wait_fixed(1.5)).pause(1, TimeoutError())
            1.5
        """
        if attempt >= self.attempts or not accepts(self.on, error):
            return None
        # The next attempt may find another executor; none brings back the time of a question.
        if isinstance(error, QuestionExpired) or (always_raised(error) and not is_lost_work(error)):
            return None
        least = retry_after(error)
        if least > self.max_wait:
            return None  # a fallback, or a resume later, is better than a long sleep in a thread
        pause = _full_jitter(attempt) if self.wait is None else _asked_pause(self.wait, attempt, error)
        return max(least, min(least + pause, self.max_wait))

    @property
    def note(self) -> str:
        """The words of `explain()` for it."""
        return f"up to {self.attempts} attempts"

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The output of `inner`, which is made again with a new call as long as the policy gives a pause."""
        first, number = call.context.delegate, 1
        place, asked_before = RecordKey(first.local_id, ""), first.host.records.new_responses
        asked = asked_before.get(place, 0) if asked_before else 0  # by earlier attempts of a node around this one
        whole = not first.part and first.index is None
        steps = 0 if whole else step_count()  # the recording of a node begins with it

        def lose(steps: Steps) -> None:
            first.host.lose_steps(first, max(number - 1, 1), steps)

        while True:
            try:
                made = inner(call)
                if asked or number > 1:
                    made = wrapped(made, apart_from_earlier(asked, lose))
                found = yield from made
            except Exception as error:
                # No other local may refer to the error: its traceback refers to this frame.
                if needs_new_response(unwrap_stop_iteration(error)):
                    # In a run that was resumed, also the responses of the earlier process are known to be of no use.
                    asked = max(asked, RESUME_STRIDE * first.host.records.resumes) + 1
                    asked_before[place] = asked
                seconds = self.pause(number, unwrap_stop_iteration(error))
                if seconds is None:
                    raise
                first.host.lose_steps(first, number, take_steps(steps))
                call = _next_call(call, number, cast("Exception", unwrap_stop_iteration(error)), seconds)
            else:
                if asked:
                    asked_before.pop(place, None)
                return found
            yield Pause(seconds), call
            number += 1


# --- attempts

RESUME_STRIDE: Final = 1000
"""How far apart the numbers of the attempts of two processes are: an execution has fewer attempts in one."""


def _next_call(call: Call, number: int, error: Exception, pause: float) -> Call:
    """Records a failed attempt, and returns the call of the next one, which starts clean."""
    delegate = call.context.delegate
    following = delegate.following = delegate.next(number + 1)
    if delegate.part:  # its execution has called the node already, whose posts and LM calls stay as they are
        following.over = delegate.over
    delegate.over = True
    delegate.host.attempt_failed(delegate, number, error, pause)
    if not delegate.part:
        execute_attempt(number + 1)
    return call.of_attempt(following)


class Pause(NamedTuple):
    """A step that waits before the next attempt. If the run is stopped meanwhile, the execution is left open."""

    seconds: float

    def call(self, call: Call) -> None:
        """Wait in sync code."""
        session = call.runner.session
        clock.pause(self._bounded(), None if session is None else session.stop_signal.on_stop)
        _leave_open_if_stopped(session)

    async def acall(self, call: Call) -> None:
        """Wait in async code."""
        session = call.runner.session
        await clock.apause(self._bounded(), None if session is None else session.stop_signal.on_stop)
        _leave_open_if_stopped(session)

    def _bounded(self) -> float:
        """The seconds to wait: at most until the deadline of the run."""
        gate = current_gate()
        left = None if gate is None else gate.seconds_left()
        return self.seconds if left is None else min(self.seconds, left)


def _leave_open_if_stopped(session: Any) -> None:
    if session is not None and session.stopped:
        raise asyncio.CancelledError


def apart_from_earlier(asked: int, lose: Callable[[Steps], None]) -> Callable[[Step], Step]:
    """The wrapper of the steps of another attempt: what an earlier one has left behind is kept from them.

    What tasks or threads of an earlier attempt still add to the DSPy trace is no step of this one. If `asked`, the
    requests to LMs differ from those of all earlier attempts, so that no cache serves an unusable response again.
    """

    @contextmanager
    def apart(_call: Call) -> Iterator[None]:
        with recording_apart(lose), with_new_responses(asked):
            yield

    return partial(Within, context=apart)


logger = logging.getLogger("dspyer")

GRACE = 1.0
"""Seconds in which a thread that waited for async code may end after that code was cancelled."""


@dataclass(frozen=True, slots=True)
class NodeLM(Layer):
    """Gives a language model to the predictors of a node that have none, those in graphs inside too.

    It comes as a setting of DSPy: a predictor stays what optimizers and saved states know, and the node that is nearest
    to it decides.

    Args:
        lm: the language model.
    """

    place: ClassVar[Place] = "outside"  # around condensers too

    lm: dspy.BaseLM

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of the node, each step of it with the language model."""
        return wrapped(inner(call), partial(Within, context=self._chosen))

    def _chosen(self, _: Call) -> AbstractContextManager[Any]:
        chosen: AbstractContextManager[Any] = dspy.context(lm=self.lm)
        return chosen


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
