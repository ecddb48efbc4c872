"""`Breakpoints`: the layer that asks before a node runs, for `compile(interrupt_before=)`."""

from __future__ import annotations

from typing import ClassVar

from dspyer.errors import Interrupt
from dspyer.events import Question
from dspyer.layers.layer import Layer, Place
from dspyer.nodes.node import Call
from dspyer.persistence.execution_records import RecordKey


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
