"""Which execution runs here: what is known of an LM call when DSPy reports it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dspyer.ids import part_id


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

    __slots__ = ("attempt", "id", "node", "program")

    def __init__(self, execution: str = "", node: str = "", program: Any = None, attempt: int = 1) -> None:
        self.id = execution
        self.node = node
        self.program = program
        self.attempt = attempt

    def enter(self, execution: str, node: str) -> None:
        """Name the execution that runs here next, in its first attempt."""
        self.id = execution
        self.node = node
        self.attempt = 1
        if executing.get() is not self:
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
