"""Scripts: what a node does as a generator of steps, and the two loops that make the steps, in sync and in async code.

A script is a generator (PEP 342). It yields a step with the call to pass to it, is sent the reply, and what the step
raises is thrown into it. So what a node does, and all that is decided around it (whether to try again, where to go), is
written once, and not once for each kind of driver. Only the leaf steps, such as the call of a function or of a module,
differ between sync and async code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import dspy

from dspyer.errors import Interrupt, brief
from dspyer.nodes.program_calls import questions_in
from dspyer.nodes.sync_async import acall_function, acall_module, call_function, call_module
from dspyer.schema.schema import NONE_VALID

if TYPE_CHECKING:
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
