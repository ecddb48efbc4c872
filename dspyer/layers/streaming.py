"""`Streaming`: the layer by which what the predictors of a node stream becomes `Token` events of the node's attempt.

Every attempt of a node, a router, a condenser or an item of a map has a callback of its own, which knows whose tokens
they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import dspy

from dspyer.display.redaction import OutputRedaction
from dspyer.dspy_module.parameters import parameter_names
from dspyer.dspy_module.token_stream import TokenCallback, without_tokens
from dspyer.events import Token
from dspyer.layers.layer import Inner, Layer, Place
from dspyer.layers.redacted import redacted
from dspyer.nodes.node import Call
from dspyer.nodes.steps import Script, Within, wrapped


class Streaming(Layer):
    """Publishes tokens: the layer of a call with `tokens=True`. Runs inside of nodes have parts of it, too."""

    __slots__ = ("_names",)
    place: ClassVar[Place] = "attempt"
    around_parts: ClassVar[bool] = True

    def __init__(self) -> None:
        self._names: dict[int, str] = {}  # of the program's predictors, by id

    def of(self, run: Any) -> Streaming:
        """Its part in one run, which knows the names of its predictors."""
        part = Streaming()
        part._names = parameter_names(run.program)
        return part

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of an attempt, whose predictors stream to the run."""
        return wrapped(inner(call), partial(Within, context=self.streaming))

    @contextmanager
    def streaming(self, call: Call) -> Iterator[None]:
        """A block whose predictors stream to the run of a call; the callback around it, if there is one, gives way."""
        attempt, visit = call.context.delegate, call.context.visit
        hiding = redacted(call.runner.session).hiding(attempt.node)

        def show(predictor: dspy.Predict, field: str, text: str, done: bool) -> None:
            if attempt.timed_out or attempt.following is not None:
                return  # code that was left running
            place = (attempt.node, attempt.branch, attempt.execution, visit, attempt.number)
            attempt.host.publish(Token(*place, self._names.get(id(predictor), ""), field, text, done))

        others = without_tokens(dspy.settings.callbacks or [])
        callback = TokenCallback(show, OutputRedaction(hiding) if hiding else None, call.runner.session.events.queue)
        with dspy.context(callbacks=[*others, callback]):
            yield
