"""`Redacted`: the layer that hides what `compile(redact=...)` names in the events, logs, errors and questions of a run.
`Streaming`: the one that shows tokens as they come, as far as that one allows. `ShowsReads` shows what is read.

A run inside of a node has a part as well if a graph around it hides something. What a graph hides is known by the paths
of its state, and a failure may be led out of several graphs before a state holds it: so each part knows the one around.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import dspy

from dspyer.errors import MapError, error_text
from dspyer.events import Event, NodeFailed, Read, Token
from dspyer.failure import Failure
from dspyer.layers.layer import Inner, Layer, Place
from dspyer.lm.parameters import parameter_names
from dspyer.lm.token_stream import TokenCallback, without_tokens
from dspyer.nodes.node import Call
from dspyer.nodes.steps import Script, Within, wrapped
from dspyer.redaction import OutputRedaction, Redactor
from dspyer.values.scalars import KeyPath


class Redacted(Layer):
    """Hides values of a run: the layer of a graph that was given `redact=`.

    Args:
        run: the run of a part; None for the layer itself.
        around: the part of the run around it; None if the graphs around it hide nothing.

    Attributes:
        own: what hides values of the run itself; None if its graph hides nothing.
        redactors: this one, and those of the runs around it.
    """

    __slots__ = ("_around", "_graph", "_in_node", "own", "redactors")

    def __init__(self, run: Any = None, around: Redacted | None = None) -> None:
        self._around = around
        self.own: Redactor | None = None
        self.redactors: tuple[Redactor, ...] = ()
        if run is None:
            return
        inside = run.inside
        self._graph, self._in_node = run.graph, ("", None) if inside is None else (inside.node, inside.item)
        if run.graph.redaction is not None:
            self.own = Redactor(run.graph.redaction, dict(run.run_start.state.raw_items()))
        own = () if self.own is None else (self.own,)
        self.redactors = own if around is None else (*own, *around.redactors)
        for entry in run.run_start.run.log:  # of a resumed run: its values may appear in later errors
            commit = entry.commit
            for redactor in self.redactors:
                for patch in (commit.patch, *filter(None, entry.sends)):
                    redactor.learn_patch(patch)
            for failure in (*commit.failed_attempts, *([] if commit.failure is None else [commit.failure])):
                self._learn([failure], self._places(commit.node, failure.index))
        if inside is None and self.own is not None:
            for patch in run.records.patches_inside():
                self.own.learn_patch(patch)

    def of(self, run: Any) -> Redacted:
        """Its part in one run; that of a run inside of a node is made by the part of the run around it."""
        return Redacted(run, self if self.redactors else None)

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of an execution; what a `Send` has brought to it is in no commit."""
        if self.own is not None and call.overlay is not None:
            self.own.learn_patch(dict(call.overlay))
        return inner(call)

    def event(self, event: Event) -> Event:
        """An event without what the graph of this run hides; it goes on to the run around."""
        self._learn_items(event)
        return event if self.own is None else self.own.event(event)

    def shown(self, value: Any, failure: Failure | None = None, *, ends: bool = False) -> Any:
        """A value without what this graph and those around it hide.

        At the end of the run without what this graph hides: the error then goes on to the node around.
        """
        if ends:
            if self.own is None:
                return value
            return self.own.error(value) if isinstance(value, BaseException) else self.own.redact(value)
        if failure is not None:  # whose text may be shorter than that of the exception
            whole = failure.model_copy(update={"message": error_text(value)})
            self._learn([failure, whole], self._places(failure.node, failure.index))
        self._learn_items(value)
        # All learn before one hides: a value that the first has hidden could not be learned by the next.
        for redactor in self.redactors:
            redactor.learn(value)
        for redactor in self.redactors:
            value = redactor.event(value)
        return value

    def hiding(self, node: str) -> tuple[tuple[Redactor, frozenset[str] | None], ...]:
        """The redactors of the outputs of a node, with the fields that it may write, None for any; outermost first."""
        around = () if self._around is None else self._around.hiding(self._in_node[0])
        if self.own is None:
            return around
        found = self._graph.nodes.get(node)
        return (*around, (self.own, None if found is None else found.may_give))

    # --- failures, whose texts are hidden as in the fields that may get them

    def _learn_items(self, event: Any) -> None:
        """Remembers the texts of items of a map, which the error of the map repeats."""
        if isinstance(event, NodeFailed) and isinstance(event.error, MapError):
            for failure in event.error.failures:
                self._learn([failure], self._places(event.node, failure.index))

    def _learn(self, failures: Iterable[Failure], paths: list[KeyPath]) -> None:
        """Remembers failures that a state may hold at these paths, or where the node around this run leads its own."""
        if self.own is not None:
            self.own.learn_failures(failures, paths)
        if self._around is not None:
            self._around._learn(failures, [*paths, *self._around._places(*self._in_node)])

    def _places(self, node: str, index: int | None) -> list[KeyPath]:
        """The places that may hold a failure: the fields of error edges, of an item its place in that of the map."""
        paths: list[KeyPath] = [(field,) for field in self._graph.failure_fields(node)]
        found = self._graph.nodes.get(node)
        mapped = None if found is None else found.mapped
        if mapped is not None and mapped.failures is not None and index is not None:
            paths.append((mapped.failures, index))
        return paths


def redacted(run: Any) -> Redacted:
    """The part of a run that hides values of it; one that hides nothing if neither its graph nor one around it does."""
    return next((part for part in run.layers.asked if isinstance(part, Redacted)), Redacted())


# --- tokens


class Streaming(Layer):
    """Publishes what predictors stream as `Token` events: the layer of a call with `tokens=True`.

    Every attempt of a node, a router, a condenser or an item of a map has a callback of its own, which knows whose
    tokens they are. Runs inside of nodes have parts of it, too.
    """

    __slots__ = ("_names",)
    place: ClassVar[Place] = "attempt"
    around_parts: ClassVar[bool] = True

    def __init__(self, names: dict[int, str] | None = None) -> None:
        self._names = names or {}  # of the program's predictors, by id

    def of(self, run: Any) -> Streaming:
        """Its part in one run, which knows the names of its predictors."""
        return Streaming(parameter_names(run.program))

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

        # The innermost attempt alone shows a token: with two callbacks it would be shown twice, under two names.
        others = without_tokens(dspy.settings.callbacks or [])
        callback = TokenCallback(show, OutputRedaction(hiding) if hiding else None, call.runner.session.events.queue)
        with dspy.context(callbacks=[*others, callback]):
            yield


# --- reads


class ShowsReads(Layer):
    """Publishes what each execution of a node reads as a `Read` event: the layer of a call with `reads=True`."""

    __slots__ = ()

    def around(self, call: Call, inner: Inner) -> Script[Any]:
        """The script of an execution, after the event."""
        attempt, node = call.context.delegate, call.runner.session.graph.nodes[call.node]
        found = [field for _, field in node.whole_fields(call.state)] if node.reads is None else node.reads.values()
        attempt.host.publish(Read(attempt.node, attempt.execution, tuple(dict.fromkeys(found))))
        return inner(call)
