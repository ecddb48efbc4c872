"""Scripts: what a node does as a generator of steps, and the two loops that make the steps, in sync and in async code.

A script is a generator (PEP 342). It yields a step with the call to pass to it, is sent the reply, and what the step
raises is thrown into it. So what a node does, and all that is decided around it (whether to try again, where to go), is
written once, and not once for each kind of driver. Only the leaf steps, such as the call of a function or of a module,
differ between sync and async code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import dspy

from dspyer.errors import AttemptError, Interrupt, NodeOutputError, brief, list_names
from dspyer.lm.not_public import TRACE
from dspyer.lm.tracing import Steps, append_to_trace, executing, recording
from dspyer.nodes.sync_async import acall_function, acall_module, call_function, call_module
from dspyer.schema.schema import NONE_VALID
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict
from dspyer.waiting import StopSignal

if TYPE_CHECKING:
    from dspyer.nodes.attempt import Attempt
    from dspyer.nodes.node import Call


# Calls of programs by the function of a node, `ctx.call`: each is a run inside of the run that the node belongs to.
#
# The calls of one attempt may overlap, as tasks or threads. Two things must not depend on which of them is faster:
# the
# order of their steps in the DSPy trace is that in which the calls began, and the attempt ends when all of them have
# ended, so that all their questions come together and no later attempt meets a run that still works.


T = TypeVar("T")

ENDED_EARLY = "the node that called it has failed or was cancelled"


class InsideRun(NamedTuple):
    """A completed run of a program inside of a node, made here or by a worker.

    Attributes:
        prediction: its outputs as plain values.
        inputs: the state with which it began.
        changes: gives what its commits changed, by field: `Updates` of a reducer, `Replace` or `DELETE`. Inputs that it
            did not change are not in it.
    """

    prediction: dspy.Prediction
    inputs: ImmutableState
    changes: Callable[[], Mapping[str, object]]


def is_program(module: object) -> bool:
    """Whether an object is a compiled graph."""
    return hasattr(type(module), "_dspyer_program")


# --- one call


def call_program(attempt: Attempt, program: object, inputs: Mapping[str, Any], key: str | None) -> dspy.Prediction:
    """The outputs of a program that runs as a part of the run of an attempt."""
    if executing.get() is None and attempt.home is not None:
        # A thread that has not got the context of the node: without it no step would reach the trace of the run.
        return attempt.home.copy().run(_call, attempt, program, inputs, key)
    return _call(attempt, program, inputs, key)


def _call(attempt: Attempt, program: object, inputs: Mapping[str, Any], key: str | None) -> dspy.Prediction:
    with _begun(attempt, program, inputs, key) as (found, given, name, stop_signal):
        inside = found._run_inside(given, attempt, name, stop_signal)
    attempt.check_time()
    return inside.prediction


async def acall_program(
    attempt: Attempt, program: object, inputs: Mapping[str, Any], key: str | None
) -> dspy.Prediction:
    """The same from async code. A question is raised when no other call of the attempt is in progress."""
    try:
        with _begun(attempt, program, inputs, key) as (found, given, name, stop_signal):
            inside = await found._arun_inside(given, attempt, name, stop_signal)
    except Interrupt:
        # An `asyncio.TaskGroup` cancels all its tasks as soon as one raises: what they were doing would be done again.
        await attempt.open_calls().others_end()
        raise
    attempt.check_time()
    return inside.prediction


@contextmanager
def _begun(
    attempt: Attempt, program: object, inputs: Mapping[str, Any], key: str | None
) -> Iterator[tuple[Any, dict[str, Any], str, StopSignal]]:
    """A block that runs a program, with its frozen inputs, its key, and the signal that stops it."""
    attempt.check_running("calls a program")
    bound = _bound_name(attempt, program)
    name = bound if key is None else key
    attempt.claim_key("call", name)
    if not isinstance(inputs, Mapping):
        raise AttemptError(
            f"{attempt.who}: ctx.call({bound}, ...) takes the inputs as a dict, not {brief(inputs)}: write "
            f'ctx.call({bound}, {{"question": ...}})'
        )
    frozen = freeze(dict(inputs), ("inputs",))
    assert isinstance(frozen, FrozenDict)
    calls = attempt.open_calls()
    call = calls.begin(attempt.who)
    steps: list[Any] = []
    try:
        with recording() as steps:
            yield program, {field: frozen[field] for field in frozen}, name, call.stop_signal
    except Interrupt as interrupt:
        attempt.note_questions(interrupt.questions)
        raise
    finally:
        calls.end(call, tuple(steps))


def _bound_name(attempt: Attempt, program: object) -> str:
    """The name under which a program is bound to the node; raises `AttemptError` if it is not."""
    container = getattr(attempt.host.program, attempt.node, None)
    held: dict[str, object] = vars(container) if isinstance(container, dspy.Module) else {}
    bound = {name: module for name, module in held.items() if is_program(module)}
    for name, module in bound.items():
        if module is program:
            return name
    if not is_program(program):
        what = f"{brief(program)} is no program: call it, and give ctx.call what Graph(...).compile() returns"
        raise AttemptError(f"{attempt.who}: {what}")
    called: Any = program
    graph = called.graph.name
    raise AttemptError(
        f"{attempt.who} calls the program {graph!r}, which is not bound to it (bound: {list_names(bound)}): write "
        f"add_node({attempt.node!r}, ..., modules={{'program': program}}), take the parameter `program`, and call that"
    )


# --- all calls of one attempt


def not_cancelled() -> Future[None]:
    """A future for what is going on: a task that waits for it and is cancelled does not cancel it."""
    found: Future[None] = Future()
    found.set_running_or_notify_cancel()
    return found


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call in progress.

    Attributes:
        ended: done when the call has ended.
        stop_signal: stops its run.
        trace: the DSPy trace of the code that made it.
        steps: its own steps, once it has ended.
    """

    ended: Future[None] = field(default_factory=not_cancelled)
    stop_signal: StopSignal = field(default_factory=StopSignal)
    trace: list[Any] | None = field(default_factory=partial(dspy.settings.get, TRACE))
    steps: Steps = ()


class OpenCalls:
    """The calls of one attempt, in the order in which they began. May be used from several threads at once.

    Attributes:
        cut_off: whether the run of a call was stopped with the run around it, so that the node must not commit.
    """

    def __init__(self) -> None:
        self.cut_off = False
        self._lock = Lock()
        self._calls: list[OpenCall] = []
        self._stopped = False
        self._closed = False

    def begin(self, who: str) -> OpenCall:
        """A new call; it is stopped at once if the others were."""
        call = OpenCall()
        with self._lock:
            if self._closed:
                raise NodeOutputError(
                    f"{who} calls a program after its function has ended: threads and tasks of a node must end before "
                    "it does"
                )
            self._calls.append(call)
            stopped = self._stopped
        if stopped:
            call.stop_signal.stop(ENDED_EARLY)
        return call

    def end(self, call: OpenCall, steps: Steps) -> None:
        """Ends a call. Its steps are appended to the trace once no call that began before it is in progress."""
        with self._lock:
            call.steps = steps
            call.ended.set_result(None)
            while self._calls and self._calls[0].ended.done():
                first = self._calls.pop(0)
                append_to_trace(first.steps, first.trace)

    def running(self) -> list[OpenCall]:
        """The calls that have not ended."""
        with self._lock:
            return [call for call in self._calls if not call.ended.done()]

    def stop(self) -> None:
        """Stops the runs of all calls, of later ones too: what runs in them is finished, and nothing new starts."""
        with self._lock:
            self._stopped = True
        for call in self.running():
            call.stop_signal.stop(ENDED_EARLY)

    async def others_end(self) -> None:
        """Waits until no call is in progress. A cancellation ends the wait, not the calls."""
        while running := self.running():
            await _until_ended(running)

    def close(self) -> None:
        """Waits until all calls have ended, and refuses later ones."""
        while running := self._closed_or_running():
            running[0].ended.result()

    async def aclose(self) -> None:
        """The same from async code. A cancellation stops the runs, and is raised when they have ended."""
        cancelled = False
        while running := self._closed_or_running():
            try:
                await _until_ended(running)
            except asyncio.CancelledError:
                cancelled = True
                self.stop()
        if cancelled:
            raise asyncio.CancelledError

    def raise_if_cut_off(self) -> None:
        """Raises `CancelledError` if the run of a call was stopped, whatever the code of the node has made of it."""
        if self.cut_off:
            raise asyncio.CancelledError

    def _closed_or_running(self) -> list[OpenCall]:
        """Refuses later calls if none is in progress; returns those that are."""
        with self._lock:
            running = [call for call in self._calls if not call.ended.done()]
            self._closed = not running
        return running


async def _until_ended(calls: list[OpenCall]) -> None:
    await asyncio.wait([asyncio.wrap_future(call.ended) for call in calls])


def questions_in(error: BaseException) -> list[Any]:
    """The questions that a node has raised, one by one or as the group of an `asyncio.TaskGroup`.

    Empty if anything else was raised with them.
    """
    if isinstance(error, Interrupt):
        return list(error.questions)
    if not isinstance(error, BaseExceptionGroup):
        return []
    found: list[Any] = []
    for part in error.exceptions:
        questions = questions_in(part)
        if not questions:
            return []
        found += questions
    return found


class Step(Protocol):
    """One thing that a driver does for a script: the call of a function or a module, a pause."""

    def call(self, call: Call, /) -> Any:
        """Make the step in sync code."""

    async def acall(self, call: Call, /) -> Any:
        """Make the step in async code."""


Script: TypeAlias = Generator[tuple[Step, "Call"], Any, T]


def run_script(script: Script[T]) -> T:
    """Make the steps of a script in sync code."""
    try:
        asked = next(script)
        while True:
            try:
                step, call = asked
                reply = step.call(call)
            except BaseException as error:  # noqa: BLE001 - the script decides: it tries again, or raises it
                # Within this block, whose end deletes `error`: its traceback refers to this frame.
                asked = script.throw(_to_throw(asked, error))
            else:
                asked = script.send(reply)
    except StopIteration as done:
        # No local of this frame may hold the result: a failed item of a map has the exception, and so this frame.
        return cast("T", done.value)


async def arun_script(script: Script[T]) -> T:
    """Make the steps of a script in async code."""
    try:
        asked = next(script)
        while True:
            try:
                step, call = asked
                reply = await step.acall(call)
            except BaseException as error:  # noqa: BLE001 - as in run_script
                asked = script.throw(_to_throw(asked, error))
            else:
                asked = script.send(reply)
    except StopIteration as done:
        return cast("T", done.value)


def _to_throw(asked: object, error: BaseException) -> BaseException:
    """What a step has raised, as a script gets it; of what is no step, a `TypeError`."""
    if type(asked) is tuple:
        return failure_or_questions(error)
    return TypeError(
        f"a script asked for {brief(asked)}, which is no step: yield call.module(...) or call.function(...); "
        "write `yield from` before inner(call) or another script"
    )


def failure_or_questions(error: BaseException) -> BaseException:
    """What a step has raised. Of a group, as an `asyncio.TaskGroup` raises it, the failures, or else the questions."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    asked, failures = error.split(Interrupt)
    return error if asked is None else failures or Interrupt(questions_in(asked))


def wrapped(script: Script[T], wrap: Callable[[Step], Step]) -> Script[T]:
    """The same script with something around each of its steps; a script like any other for a driver.

    Args:
        script: what `inner(call)` gave.
        wrap: gives for a step what is made in its place: an object with `call(call)` and `async acall(call)`.

    Example:
        >>> from dspyer import END, START, Graph
        >>> from dspyer.extend import Layer, wrapped
        >>> class Shown:
        ...     def __init__(self, step):
        ...         self.step = step
        ...     def call(self, call):
        ...         print("a call of", call.node)
        ...         return self.step.call(call)
        ...     async def acall(self, call):
        ...         return await self.step.acall(call)
        >>> class Shows(Layer):
        ...     def around(self, call, inner):
        ...         return wrapped(inner(call), Shown)
        >>> graph = Graph().add_node("shout", lambda text: {"loud": text.upper()}, layers=[Shows()])
        >>> graph.add_path(START, "shout", END).compile()(text="hey").loud
        a call of shout
        'HEY'
    """
    try:
        asked = next(script)
        while True:
            try:
                step, call = asked
                reply = yield wrap(step), call
            except BaseException as error:  # noqa: BLE001 - as in run_script
                asked = script.throw(_to_throw(asked, error))
            else:
                asked = script.send(reply)
    except StopIteration as done:
        return cast("T", done.value)


# --- leaf steps


class FunctionStep(NamedTuple):
    """Calls a function. In async code a sync one runs in a worker thread."""

    fn: Callable[..., Any]
    arguments: Mapping[str, Any]
    asynchronous: bool = False

    def call(self, call: Call) -> Any:
        """Call it from sync code."""
        del call
        return call_function(self.fn, self.arguments, self.asynchronous)

    async def acall(self, call: Call) -> Any:
        """Call it from async code."""
        del call
        return await acall_function(self.fn, self.arguments, self.asynchronous)


class ModuleStep(NamedTuple):
    """Calls a module."""

    module: dspy.Module
    inputs: Mapping[str, Any]

    def call(self, call: Call) -> Any:
        """Call it from sync code."""
        del call
        return call_module(self.module, self.inputs)

    async def acall(self, call: Call) -> Any:
        """Call it from async code."""
        del call
        return await acall_module(self.module, self.inputs)


class ProgramStep(NamedTuple):
    """Runs a program as a part of the run. `valid` are the frozen inputs that need no validation."""

    program: Any
    inputs: dict[str, Any]
    valid: Mapping[str, Any] = NONE_VALID

    def call(self, call: Call) -> Any:
        """Run it from sync code."""
        return self.program._run_inside(self.inputs, call.context.delegate, valid=self.valid)

    async def acall(self, call: Call) -> Any:
        """Run it from async code."""
        return await self.program._arun_inside(self.inputs, call.context.delegate, valid=self.valid)


class Within(NamedTuple):
    """Makes a step within a context."""

    step: Step
    context: Callable[[Call], AbstractContextManager[Any]]

    def call(self, call: Call) -> Any:
        """Make it in sync code."""
        with self.context(call):
            return self.step.call(call)

    async def acall(self, call: Call) -> Any:
        """Make it in async code."""
        with self.context(call):
            return await self.step.acall(call)
