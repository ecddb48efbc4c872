"""`Spends`: the layer of a call with a budget.

Runs inside of nodes have the same layer, so what they do counts for the run around them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, ClassVar

from dspyer.budget import Spending
from dspyer.errors import Interrupt
from dspyer.layers.layer import Inner, Layer, Place, Stop
from dspyer.lm.tap import gated
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
        attempt = call.context.delegate
        # What a resume goes on inside of was counted when it began: else a budget below the depth of graphs in graphs
        # would never get to a new node.
        counts = attempt.local_id not in attempt.host.records.begun
        # `begin_node` has stopped the run, with the reason: this only keeps the node from being called.
        if not self.spending.begin_node(counts):
            raise Stop

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of an attempt, which ends before an item or a further attempt if a limit is reached."""
        attempt = call.context.delegate
        begins_item = attempt.index is not None and not attempt.part  # parts end what has begun, if they ask no LM
        if (begins_item or attempt.number > 1) and not self.spending.check():
            # As a cancellation: the execution stays open, and a resume makes what is missing. A failure could be taken
            # by an error edge.
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
