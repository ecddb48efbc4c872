"""`Reports`: the layer by which a node commits a report of what its last attempt raised, as a tool of an agent does.

It is around all attempts, since the node itself cannot know which one is the last, and inside of error edges: these
take what it does not report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dspyer.errors import unwrap_stop_iteration
from dspyer.layers.layer import Inner, Layer
from dspyer.nodes.node import Call, Node, Output
from dspyer.nodes.steps import Script

if TYPE_CHECKING:
    from dspyer.nodes.attempt import Attempt


class Reports(Layer):
    """Reports what the last attempt of one node raised."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """What `inner` gives, or the report of what it raised."""
        try:
            return (yield from inner(call))
        except Exception as error:
            # No local may refer to the error: its traceback refers to this frame.
            output = self._reported(call, cast("Exception", unwrap_stop_iteration(error)))
            if output is None:
                raise
        return output

    def _reported(self, call: Call, error: Exception) -> Output | None:
        # The attempt is the last one, which commits, since the answers to its questions count.
        last: Attempt = call.context.delegate.last
        call = call.of_attempt(last)
        reply = self._node.error_reply(call, error)
        if reply is None:
            return None
        last.finish()
        last.over, last.posts = True, None
        failure = last.failure(error, last.number)
        call.runner.session.failure_caught(call, error, failure)
        output: Output = call.reply(reply)
        return output._replace(failure=failure)
