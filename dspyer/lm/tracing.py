"""DSPy's trace in a run, and which execution runs here.

DSPy appends each predictor call to the list `settings.trace`, in order of arrival. Optimizers read it, so its order
must not depend on which branch was faster: each node call records into a list of its own (`recording`), and the lists
are appended to the trace around the run in the order of the run's commits (`append_to_trace`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import dspy

from dspyer.ids import part_id
from dspyer.lm.not_public import TRACE, TRACE_SIZE

Steps = Sequence[tuple[Any, dict[str, Any], Any]]
"""Entries of a trace: predictor, inputs, prediction."""

REJECTED = "_dspyer_rejected"
"""The attribute of the copy of a predictor whose output a check has refused: the `id()` of that predictor."""


class recording:  # noqa: N801  # a context manager, read as `with recording() as steps`
    """Gives the block an empty DSPy trace of its own, with further DSPy settings."""

    __slots__ = ("_context", "_steps")  # a class, since each execution enters one and a generator costs twice as much

    def __init__(self, **settings: Any) -> None:
        self._steps: list[Any] = []
        self._context = dspy.context(**{TRACE: self._steps, **settings})

    def __enter__(self) -> list[Any]:
        self._context.__enter__()
        return self._steps

    def __exit__(self, *raised: object) -> None:
        self._context.__exit__(*raised)


def step_count() -> int:
    """The number of steps in the recording around the caller."""
    return len(dspy.settings.get(TRACE) or ())


def take_steps(count: int) -> Steps:
    """Removes all steps but the first `count` from the recording around the caller, and returns them."""
    trace = dspy.settings.get(TRACE)
    if not trace:
        return ()
    taken = tuple(trace[count:])
    del trace[count:]
    return taken


@contextmanager
def recording_apart(lose: Callable[[Steps], None] | None = None) -> Iterator[None]:
    """A block for code that may be left running: its steps are appended at the end of the block, later ones lost.

    With `lose`, nothing but the block adds to the trace around it, except code that was left running before: what
    arrives there meanwhile is taken out, and passed to `lose`.
    """
    taken: Steps = ()
    before = step_count()
    try:
        with recording() as steps:
            try:
                yield
            finally:
                taken = tuple(steps)
    finally:
        if lose is not None and (late := take_steps(before)):
            lose(late)
        append_to_trace(taken)


def append_to_trace(steps: Steps, trace: list[Any] | None = None) -> None:
    """Appends to a trace, in place, as DSPy itself does: `max_trace_size` drops the oldest steps.

    By default it is the trace around the caller.
    """
    if trace is None:
        trace = dspy.settings.get(TRACE)
    limit = dspy.settings.get(TRACE_SIZE)
    if trace is None or limit <= 0:
        return
    for step in steps:  # in place: callers hold the list itself
        while len(trace) >= limit:
            trace.pop(0)
        trace.append(step)


def rejected_step(step: tuple[Any, dict[str, Any], Any], copies: dict[int, Any]) -> tuple[Any, dict[str, Any], Any]:
    """A step whose output a check has refused, with a shallow copy of its predictor instead of the program's own.

    Optimizers that make demonstrations find the predictor of a step by identity, so they skip it. Those that reflect on
    what went wrong find it by its signature, which is the same. `copies` holds the copy of each predictor by its id.
    """
    predictor, inputs, outputs = step
    twin = copies.get(id(predictor))
    if twin is None:
        twin = copies[id(predictor)] = rejected_copy(predictor)
    return twin, inputs, outputs


def rejected_copy(predictor: Any) -> Any:
    """A shallow copy of a predictor, for the steps whose output a check has refused."""
    twin = copy.copy(predictor)
    vars(twin)[REJECTED] = vars(predictor).get(REJECTED) or id(predictor)
    return twin


def steps_since(count: int) -> Steps:
    """The steps of the recording around the caller, but the first `count`."""
    return tuple((dspy.settings.get(TRACE) or ())[count:])


def reject_steps(steps: Steps) -> None:
    """Puts rejected steps in the place of these in the recording around the caller."""
    trace, copies = dspy.settings.get(TRACE), dict[int, Any]()
    rejected = {id(step): rejected_step(step, copies) for step in steps}
    if trace and rejected:
        trace[:] = [rejected.get(id(step), step) for step in trace]


def is_rejected(predictor: object) -> bool:
    """Return whether the predictor of a step is the copy that `rejected_step` has made."""
    return REJECTED in vars(predictor)


def original_id(predictor: object) -> int:
    """The `id()` of the predictor of a step; of the copy that `rejected_step` has made, that of the original."""
    found: int = vars(predictor).get(REJECTED) or id(predictor)
    return found


def set_apart(predictor: Any) -> None:
    """Marks a predictor that the program does not have: its steps are counted, and leave the trace at its end.

    An optimizer may fail at them: GRPO does.
    """
    vars(predictor)[_APART] = True  # not a list of ids: copies of the predictor are apart, too


def set_steps_apart(count: int) -> None:
    """Do the same with the steps of the recording around the caller, but for the first `count`."""
    trace = dspy.settings.get(TRACE)
    for index in range(count, len(trace or ())):
        predictor, inputs, outputs = trace[index]
        twin = copy.copy(predictor)
        set_apart(twin)
        trace[index] = twin, inputs, outputs


def is_apart(predictor: object) -> bool:
    """Return whether a predictor is one that `set_apart` has marked."""
    return _APART in vars(predictor)


_APART = "_dspyer_apart"


def count_calls(steps: Steps) -> tuple[int, int]:
    """The number of predictor calls and of tool calls, the latter as predictions of `ReAct` and `ReActV2` name them."""
    tools = 0
    for _, _, prediction in steps:
        if prediction.get("next_tool_name") not in (None, "finish"):
            tools += 1
        tools += len(getattr(prediction.get("tool_calls"), "tool_calls", ()))
    return len(steps), tools


# --- which execution runs here: what is known of an LM call when DSPy reports it


@dataclass(slots=True, eq=False)
class Executing:
    """The execution that runs in a context.

    A driver that runs one node after the other changes its own object: setting a context variable for each of them
    would take 1 µs. What runs at the same time as something else gets an object of its own.

    Attributes:
        id: the id of the execution, after those that it is inside of; "" for none.
        node: name of its node.
        program: the program whose node it is; None for none.
        attempt: the number of the attempt.
    """

    id: str = ""
    node: str = ""
    program: Any = None
    attempt: int = 1

    def enter(self, execution: str, node: str) -> None:
        """Name the execution that runs here next, in its first attempt."""
        self.id = execution
        self.node = node
        self.attempt = 1
        if executing.get() is not self:  # a node has set another one in this context
            executing.set(self)


executing: ContextVar[Executing | None] = ContextVar("dspyer_executing", default=None)


def executing_id() -> str:
    """The execution that runs here; "" outside of any."""
    here = executing.get()
    return "" if here is None else here.id


def executing_copy() -> Executing:
    """The execution that runs here, for what is asked when the driver may be at the next one."""
    here = executing.get() or Executing()
    return Executing(here.id, here.node, here.program, here.attempt)


def execute_apart() -> None:
    """Give what runs here an object of its own: it may still run when the driver is at the next execution."""
    executing.set(executing_copy())


def execute_item(key: object) -> None:
    """Name the execution of an item of the node that runs here, by its index."""
    here = executing.get() or Executing()
    # A new object: other items run at the same time, in contexts that refer to the node's.
    executing.set(Executing(part_id(here.id, key), here.node, here.program))


def execute_attempt(number: int) -> None:
    """Count a further attempt of what runs here. Code that an earlier one has left running keeps its own number."""
    here = executing.get() or Executing()
    executing.set(Executing(here.id, here.node, here.program, number))


@contextmanager
def executing_here(program: Any) -> Iterator[Executing]:
    """A block that runs executions of a program, after which the one around it runs here again."""
    before = executing.get()
    try:
        yield Executing(program=program)
    finally:
        executing.set(before)
