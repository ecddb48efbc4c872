"""Scripts: what a node does as a generator of steps, and the two loops that make the steps, in sync and in async code.

A script is a generator (PEP 342). It yields a step with the call to pass to it, is sent the reply, and what the step
raises is thrown into it. So everything that is decided around a call (whether to try again, where to go) is written
once, and not once for each kind of driver.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from dspyer.errors import Interrupt, NodeOutputError, brief
from dspyer.nodes.node import Call, Node, Reply
from dspyer.nodes.outputs import mark_of_module
from dspyer.nodes.program_calls import questions_in

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
    """What a step has raised. Of a group, as an `asyncio.TaskGroup` raises it, the failures, or else the questions."""
    if type(asked) is not tuple:
        return TypeError(
            f"a script asked for {brief(asked)}, which is no step: write `output = yield from inner(call)`, with `from`"
        )
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


def attempted(node: Node, step: Step | None = None) -> Callable[[Call], Script[Any]]:
    """What all layers are around: the scripts that call a node, or make the step that does, and validate its reply."""
    made = node if step is None else step

    def attempt(call: Call) -> Script[Any]:
        attempt = call.context.delegate
        if attempt.over:  # a layer calls the node again: what the call before has posted and used is not of this one
            attempt.following = attempt.next(attempt.number)
            call = call.of_attempt(attempt.following)
        try:
            reply: Reply = yield made, call
            return call.made(call, reply)
        except NodeOutputError as error:
            mark_of_module(error, node)
            raise
        finally:
            call.context.delegate.over = True

    return attempt
