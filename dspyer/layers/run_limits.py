"""Limits of a run as layers of its call: `Spends` for a budget, `CallCount` for `max_calls`.

Runs inside of nodes have the same layers, so what they do counts for the run around them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import Lock
from typing import Any, ClassVar

from dspyer.budget import Spending
from dspyer.errors import CallLimitError, Interrupt
from dspyer.events import Question
from dspyer.ids import path_text
from dspyer.layers.layer import Inner, Layer, Place, Stop
from dspyer.lm.tap import gated
from dspyer.log.execution_records import RecordKey
from dspyer.nodes.node import Call
from dspyer.nodes.steps import Script, Within, wrapped


class Spends(Layer):
    """Bounds what the run and the runs inside of it spend.

    Args:
        spending: what they have spent.
    """

    __slots__ = ("spending",)
    place: ClassVar[Place] = "attempt"
    around_parts: ClassVar[bool] = True

    def __init__(self, spending: Spending) -> None:
        self.spending = spending

    def run(self, run: object) -> AbstractContextManager[object]:
        """Counts and bounds the LM calls of all that belongs to the run, routers and merge policies too."""
        del run
        return gated(self.spending)

    def admit(self, call: Call) -> None:
        """Stops the run before a node if a limit is reached."""
        del call
        if not self.spending.check():
            raise Stop

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of an attempt, which ends before an item or a further attempt if a limit is reached."""
        attempt = call.context.delegate
        begins_item = attempt.index is not None and not attempt.part  # parts end what has begun, if they ask no LM
        if (begins_item or attempt.number > 1) and not self.spending.check():
            raise asyncio.CancelledError
        return wrapped(inner(call), partial(Within, context=self._bounded))

    @contextmanager
    def _bounded(self, call: Call) -> Iterator[None]:
        """A block that gives nothing if an LM call in it was refused, whatever its code has made of that."""
        del call
        with gated(self.spending) as gate:
            try:
                yield
            except (Exception, Interrupt):
                gate.raise_if_refused()
                raise
            gate.raise_if_refused()


class CallCount(Layer):
    """Counts the node calls of a run with `max_calls`, those of the runs inside its nodes too, from several threads.

    Args:
        graph: the name of its graph.
        most: how many calls it may make.
        count: how many it has made in earlier processes.
    """

    __slots__ = ("_graph", "_lock", "_most", "count")
    place: ClassVar[Place] = "outside"

    def __init__(self, graph: str, most: int, count: int) -> None:
        self._graph = graph
        self._most = most
        self.count = count
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._graph, self._most, self.count)

    def add(self, calls: int) -> bool:
        """Counts calls; returns whether the run may make so many."""
        with self._lock:
            self.count += calls
            return self.count <= self._most

    def admit(self, call: Call) -> None:
        """Counts a call of a node, and fails the node if it is one too many."""
        if not self.add(1):
            raise CallLimitError(
                f"the run of graph {self._graph!r} reached max_calls={self._most} before node {call.node!r} (branch "
                f"{path_text(call.context.branch)}), with the calls of the graphs inside its nodes. Raise the limit "
                "with compile(max_calls=...)"
            )


# `Breakpoints`: the layer that asks before a node runs, for `compile(interrupt_before=)`.


class Breakpoints(Layer):
    """Stops each run before a node, until it is resumed."""

    __slots__ = ()
    place: ClassVar[Place] = "outside"

    def admit(self, call: Call) -> None:
        """Asks once whether to go on."""
        attempt = call.context.delegate
        host, node, execution = attempt.host, attempt.node, attempt.local_id
        text = f"{node!r} comes next; continue?"
        if not host.records.ask(
            Question("before", text, None, node, attempt.branch, execution, host.label), host.answer
        ):
            raise Interrupt([host.records.questions[RecordKey(execution, "before")]])
