"""Scripts: what a node does as a generator of steps, and the two loops that make the steps, in sync and in async code.

A script is a generator (PEP 342). It yields a step with the call to pass to it, is sent the reply, and what the step
raises is thrown into it. So what a node does, and all that is decided around it (whether to try again, where to go), is
written once, and not once for each kind of driver. Only the leaf steps, such as the call of a function or of a module,
differ between sync and async code. The rest of this file is what they need: calls from sync to async code and back, and
calls of programs inside of a node.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from _thread import start_new_thread
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import anyio
import dspy
from anyio.from_thread import BlockingPortal, start_blocking_portal
from anyio.from_thread import run as run_on_host_loop
from anyio.lowlevel import current_token

from dspyer.clock import current_limit
from dspyer.errors import AttemptError, Interrupt, NodeOutputError, brief, list_names
from dspyer.lm.not_public import TRACE
from dspyer.lm.tap import gated
from dspyer.lm.tracing import Steps, append_to_trace, executing, recording, recording_apart
from dspyer.nodes.callables import own_call
from dspyer.schema.schema import NONE_VALID
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze
from dspyer.values.frozen import FrozenDict
from dspyer.waiting import (
    AsyncCalls,
    Outcome,
    StopSignal,
    cancellation_count,
    forget_cancellations,
    gives_up,
    has_lent_loop,
    may_raise,
    result_of,
)
from dspyer.worker_threads import ThreadCall, run_in_thread

if TYPE_CHECKING:
    from dspyer.nodes.attempt import Attempt
    from dspyer.nodes.node import Call

T = TypeVar("T")


class Step(Protocol):
    """One thing that a driver does for a script: the call of a function or a module, a pause."""

    def call(self, call: Call, /) -> Any:
        """Make the step in sync code."""

    async def acall(self, call: Call, /) -> Any:
        """Make the step in async code."""


Script: TypeAlias = Generator[tuple[Step, "Call"], Any, T]


def run_script(script: Script[T]) -> T:
    """Make the steps of a script in sync code.

    Args:
        script: the script.

    Returns:
        What it returns.

    Example:
        >>> def doubled():
        ...     return 2 * (yield FunctionStep(lambda text: len(text),
        ...         {"text": "abc"}), None)
        >>> run_script(doubled())
        6
    """
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
    """Make the steps of a script in async code, as `run_script` does in sync code.

    Args:
        script: the script.

    Returns:
        What it returns.

    Example:
        >>> import asyncio
        >>> def doubled():
        ...     return 2 * (yield FunctionStep(lambda text: len(text),
        ...         {"text": "abc"}), None)
        >>> asyncio.run(arun_script(doubled()))
        6
    """
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
    """The error that a step has raised, as a script gets it; of what is no step, a `TypeError`."""
    if type(asked) is tuple:
        return failure_or_questions(error)
    return TypeError(
        f"a script asked for {brief(asked)}, which is no step: yield call.module(...) or call.function(...); "
        "write `yield from` before inner(call) or another script"
    )


def failure_or_questions(error: BaseException) -> BaseException:
    """The error of a step. Of a group, as an `asyncio.TaskGroup` raises it, the failures, or else the questions."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    # A failure counts more than a question: answered, the node would fail all the same.
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
        >>> graph = Graph().add_node("shout", lambda text: {"loud": text.upper()},
        ...     layers=[Shows()])
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

    def call(self, _call: Call) -> Any:
        """Call it from sync code."""
        return call_function(self.fn, self.arguments, self.asynchronous)

    async def acall(self, _call: Call) -> Any:
        """Call it from async code."""
        return await acall_function(self.fn, self.arguments, self.asynchronous)


class ModuleStep(NamedTuple):
    """Calls a module."""

    module: dspy.Module
    inputs: Mapping[str, Any]

    def call(self, _call: Call) -> Any:
        """Call it from sync code."""
        return call_module(self.module, self.inputs)

    async def acall(self, _call: Call) -> Any:
        """Call it from async code."""
        return await acall_module(self.module, self.inputs)


class TwoWays(NamedTuple):
    """A step that does one thing which is written differently in sync and in async code: a wait, or a write to a store.

    Attributes:
        sync: does it in sync code.
        asynchronous: does it in async code.

    Example:
        >>> import asyncio, time
        >>> from functools import partial
        >>> from dspyer.extend import TwoWays
        >>> step = TwoWays(partial(time.sleep, 0), partial(asyncio.sleep, 0))
    """

    sync: Callable[[], Any]
    asynchronous: Callable[[], Awaitable[Any]]

    def call(self, _call: Call) -> Any:
        """Do it in sync code."""
        return self.sync()

    async def acall(self, _call: Call) -> Any:
        """Do it in async code."""
        return await self.asynchronous()


def program_step(
    program: Any,
    inputs: dict[str, Any],
    call: Call,
    valid: Mapping[str, Any] = NONE_VALID,
    shared: SharedFields | None = None,
) -> tuple[Step, Call]:
    """The step that runs a program as a part of the run.

    `valid` are the frozen inputs that need no validation, `shared` the live fields that both graphs have.
    """
    given, options = (inputs, call.context.delegate), {"valid": valid, "shared": shared}
    sync, asynchronous = program._run_inside, program._arun_inside
    return TwoWays(partial(sync, *given, **options), partial(asynchronous, *given, **options)), call


class SharedFields(NamedTuple):
    """The live fields that a graph inside a node has in common with the graph around, by its own names.

    Attributes:
        reads: those that the node reads, and `writes` those that it writes, with their names in the graph around.
    """

    reads: Mapping[str, str]
    writes: Mapping[str, str]

    @property
    def names(self) -> dict[str, str]:
        """All of them."""
        return {**self.reads, **self.writes}


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


# --- calls between sync and async code: functions and modules of both kinds run, whichever way a program is called

# Async code calls sync functions in worker threads. Sync code calls async functions on an event loop: that of the host
# if it runs in one of AnyIO's worker threads, else that of the run's `async_bridge`, in a thread of its own.


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether `fn` is an async function, a partial of one, or an object with an async `__call__`.

    Example:
        >>> is_async(print)
        False
    """
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


def call_module(module: dspy.Module, inputs: Mapping[str, Any]) -> Any:
    """Call a module from sync code."""
    if _call_modes(module)[0]:
        return module(**inputs)
    return call_async(module.acall, inputs)


async def acall_module(module: dspy.Module, inputs: Mapping[str, Any]) -> Any:
    """Call a module from async code."""
    if _call_modes(module)[1]:
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


def _call_modes(module: dspy.Module) -> tuple[bool, bool]:
    """Return whether a module is called by `module(...)` in sync code, and by `module.acall` in async code.

    Of `forward` and `aforward`, the one that comes first in the class hierarchy counts: a subclass of `dspy.Predict`
    that overrides `forward` alone inherits an `aforward` that would bypass it.
    """
    forward, aforward = _nearness(module, "forward"), _nearness(module, "aforward")
    return forward <= aforward, aforward <= forward and aforward != _NOT_DEFINED


def _nearness(module: dspy.Module, method: str) -> int:
    own = vars(module).get(method)
    # An optimizer may leave the bound original method on the instance, which overrides nothing.
    if own is not None and getattr(own, "__func__", own) is not getattr(type(module), method, None):
        return -1
    return _depth(type(module).__mro__, method)


_NOT_DEFINED = 1_000_000  # deeper than any class


@lru_cache(maxsize=512)
def _depth(bases: tuple[Hashable, ...], method: str) -> int:
    """The place in the bases of a class where a method is defined: smaller is nearer."""
    return next((depth for depth, base in enumerate(bases) if method in vars(base)), _NOT_DEFINED)


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
        # A loop that waits for the run itself cannot run its code: that would be a deadlock.
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
        """The bridge that passes calls to the loop; None in the loop's own thread, and after the bridge has ended."""
        with self._lock:
            # From its own thread a call would wait for itself.
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


# --- calls of programs by the function of a node, `ctx.call`: each is a run inside of the run that the node belongs to

# The calls of one attempt may overlap, as tasks or threads. Two things must not depend on which of them is faster: the
# order of their steps in the DSPy trace is that in which the calls began, and the attempt ends when all of them have
# ended, so that all their questions come together and no later attempt meets a run that still works.

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
    """Return whether an object is a compiled graph.

    Example:
        >>> is_program(dspy.Predict("question -> answer"))
        False
    """
    return hasattr(type(module), "_dspyer_program")


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
        # A cancellation ends the wait, not the calls.
        while running := attempt.open_calls().running():
            await _until_ended(running)
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
        # Its steps are kept apart until the calls before it have ended.
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
            # In the order in which they began, so that the trace does not depend on which one was faster.
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
            # Under the same lock as `begin`: no call can slip in between the last look and the end.
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
