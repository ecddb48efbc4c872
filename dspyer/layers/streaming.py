"""`Streaming`: the layer by which what the predictors of a node stream becomes `Token` events of the node's attempt.

Every attempt of a node, a router, a condenser or an item of a map has a callback of its own, which knows whose tokens
they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple

import dspy

from dspyer.display.redaction import Redaction, Redactor
from dspyer.dspy_module.parameters import parameter_names
from dspyer.dspy_module.token_stream import TokenCallback, without_tokens
from dspyer.events import Token
from dspyer.layers.layer import Inner, Layer, Place
from dspyer.nodes.node import Call, Node
from dspyer.nodes.steps import Script, Within, wrapped


class Hiding(NamedTuple):
    """What a graph hides of the outputs of one of its nodes.

    Attributes:
        redaction: hides values by their path.
        redactor: hides what is known to be hidden wherever it occurs, in each token.
        fields: the fields that the node may write; None for any.
    """

    redaction: Redaction
    redactor: Redactor
    fields: frozenset[str] | None


class TokenRedaction:
    """What is shown of the outputs of a node, by all graphs around it."""

    def __init__(self, hiding: tuple[Hiding, ...]) -> None:
        self._hiding = hiding

    def may_hide(self, field: str) -> bool:
        """Whether an output is shown when it is complete: it, or a part of it, may be hidden by its path.

        So is any output inside of several graphs that hide something: each changes what the next one looks at.
        """
        return len(self._hiding) > 1 or any(one.redaction.may_hide(field, one.fields) for one in self._hiding)

    def output(self, field: str, text: str) -> str:
        """What to show of the whole text of an output."""
        for one in self._hiding:
            text = one.redaction.output(field, one.fields, text)
        return text

    def settled(self, text: str) -> int:
        """How many of the first characters of a text that goes on can be shown: the rest may begin a hidden text."""
        return self._hiding[0].redactor.settled(text)


class Streaming(Layer):
    """Publishes tokens: the layer of a call with `tokens=True`. Runs inside of nodes have parts of it, too."""

    __slots__ = ("_around", "_hiding", "_names", "_nodes", "_queue")
    place: ClassVar[Place] = "attempt"
    around_parts: ClassVar[bool] = True

    def __init__(self) -> None:
        self._around: tuple[Hiding, ...] = ()  # of the graphs around the run, outermost first
        self._hiding: tuple[Redaction, Redactor] | None = None
        self._names: dict[int, str] = {}  # of the program's predictors, by id
        self._nodes: Mapping[str, Node] = {}
        self._queue: Any = None

    def of(self, run: Any) -> Streaming:
        """Its part in one run, which knows the names of its predictors, and what it hides."""
        part = Streaming()
        part._around = self._hiding_of(run.events.node_around)
        part._names = parameter_names(run.program)
        part._nodes = run.graph.nodes
        part._queue = run.events.queue
        if run.graph.redaction is not None and run.redactor is not None:
            part._hiding = run.graph.redaction, run.redactor
        return part

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of an attempt, whose predictors stream to the run."""
        return wrapped(inner(call), partial(Within, context=self.streaming))

    def _hiding_of(self, node: str) -> tuple[Hiding, ...]:
        if self._hiding is None:
            return self._around
        found = self._nodes.get(node)
        return (*self._around, Hiding(*self._hiding, None if found is None else found.may_give))

    @contextmanager
    def streaming(self, call: Call) -> Iterator[None]:
        """A block whose predictors stream to the run of a call; the callback around it, if there is one, gives way."""
        attempt, visit = call.context.delegate, call.context.visit
        hiding = self._hiding_of(attempt.node)

        def show(predictor: dspy.Predict, field: str, text: str, done: bool) -> None:
            if attempt.timed_out or attempt.following is not None:
                return  # code that was left running
            place = (attempt.node, attempt.branch, attempt.execution, visit, attempt.number)
            attempt.host.publish(Token(*place, self._names.get(id(predictor), ""), field, text, done))

        others = without_tokens(dspy.settings.callbacks or [])
        callback = TokenCallback(show, TokenRedaction(hiding) if hiding else None, self._queue)
        with dspy.context(callbacks=[*others, callback]):
            yield
