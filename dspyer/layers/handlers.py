"""`ErrorEdges` and `Reports`: the layers that go on after a node has failed, along an error edge or with a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from dspyer.errors import always_raised, unwrap_stop_iteration
from dspyer.layers.attempts import RetryOn, accepts
from dspyer.layers.layer import Inner, Layer, Place
from dspyer.nodes.function import folded
from dspyer.nodes.node import Call, Node, Output
from dspyer.nodes.steps import Script
from dspyer.scheduler.schedule import Target, last_attempt

if TYPE_CHECKING:
    from dspyer.nodes.attempt import Attempt


class ErrorEdge(NamedTuple):
    """An error edge of one node.

    Attributes:
        source: the node whose failures it takes.
        target: the handler, or `END`.
        on: which exceptions it takes.
        into: the field that gets the `Failure`; None for none.
    """

    source: str
    target: str
    on: RetryOn | tuple[RetryOn, ...] = Exception
    into: str | None = None

    def takes(self, error: BaseException) -> bool:
        """Says that the branch goes along this edge after an exception of its source."""
        return not always_raised(error) and accepts(self.on, error)

    @property
    def condition(self) -> str:
        """The exceptions that it takes, in words: the names of the exception types and predicates."""
        return ", ".join(_name(one) for one in (self.on if isinstance(self.on, tuple) else (self.on,)))

    @property
    def who(self) -> str:
        """Its name in problems."""
        return f"the error edge {self.source!r} -> {self.target!r}"


def _name(on: object) -> str:
    name = str(getattr(on, "__name__", type(on).__name__))
    return "a function" if name == "<lambda>" else name


class _Catches(Layer):
    """Gives an output in place of what was raised inside of it."""

    __slots__ = ()

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The output of `inner`, or the one that takes the place of what it raised."""
        try:
            return (yield from inner(call))
        except Exception as error:
            # No local may refer to the error: its traceback refers to this frame, so both would wait for the cyclic
            # garbage collector, and with them the state of the run.
            output = self.caught(call, cast("Exception", unwrap_stop_iteration(error)))
            if output is None:
                raise
        return output

    def caught(self, call: Call, error: Exception) -> Output | None:
        """The output in place of an error; None to raise it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ErrorEdges(_Catches):
    """The error edges of one node, of which the first that takes an exception counts."""

    place: ClassVar[Place] = "errors"

    edges: Sequence[ErrorEdge]

    def caught(self, call: Call, error: Exception) -> Output | None:
        """The output that leads to the handler; None if no edge takes the error."""
        edge = next((edge for edge in self.edges if edge.takes(error)), None)
        if edge is None:
            return None
        attempt: Attempt = call.context.delegate
        session = call.runner.session
        # The number of the last attempt stands in the notes: the one at hand is the first, since retries are inside.
        failed = last_attempt(session.notes.failed_attempts.get(attempt.execution, ()))
        failure = attempt.failure(error, failed, _send_index(call))
        updates = {} if edge.into is None else {edge.into: failure}
        patch, after = folded(call, updates, session.graph.topology.schema, whole=True)
        session.failure_caught(call, error, failure)
        return Output(patch, after, None, (Target(edge.target),), False, failure, call)


@dataclass(frozen=True, slots=True)
class Reports(_Catches):
    """Reports what the last attempt of one node raised, as a tool of an agent does.

    It is around all attempts, since the node itself cannot know which one is the last, and inside of error edges: these
    take what it does not report.
    """

    node: Node

    def caught(self, call: Call, error: Exception) -> Output | None:
        """The output with the report; None if the node reports no such error."""
        # The attempt is the last one, which commits, since the answers to its questions count.
        last: Attempt = call.context.delegate.last
        call = call.of_attempt(last)
        reply = self.node.error_reply(call, error)
        if reply is None:
            return None
        last.finish()
        last.over, last.posts = True, None
        failure = last.failure(error, last.number)
        call.runner.session.failure_caught(call, error, failure)
        output: Output = call.reply(reply)
        return output._replace(failure=failure)


def _send_index(call: Call) -> int | None:
    """The position of the `Send` that started an execution among the targets of its node; None if none did.

    A check and the corrections after a node are started by Sends of their own: theirs is the position of the node.
    """
    session, attempt, sent = call.runner.session, call.context.delegate, call.overlay
    assert attempt.position is not None  # a run calls it
    name, log, head = attempt.node, session.run.log, attempt.position.head
    check = session.graph.checks.get(name) or session.graph.checked.get(name)
    if check is not None and check.of != name:
        of = check.visit_at(log, head).of
        head, sent = (log[of].parents[0], log[of].sent or None) if of >= 0 else (head, None)
    if sent is None:
        return None
    return attempt.branch[-1] if len(log[head].commit.route) > 1 else 0
