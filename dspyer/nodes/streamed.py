"""Tokens of nodes: what the predictors that a node calls stream becomes `Token` events of the node's attempt.

A run with tokens puts `Streamed` around each step of its scripts, so every attempt of a node, a router, a condenser or
an item of a map has a callback of its own, which knows whose tokens they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import dspy

from dspyer.display.redaction import Redaction, Redactor
from dspyer.dspy_module.parameters import parameter_names
from dspyer.dspy_module.token_stream import TokenCallback, without_tokens
from dspyer.events import Token
from dspyer.nodes.node import Call, Node
from dspyer.nodes.steps import Step


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


class TokenRules:
    """Whose tokens they are, and what of them is shown.

    Attributes:
        around: the redactions of the graphs around the run, outermost first, each with the node that it is inside of.
        names: the names of the program's predictors, by id.
    """

    def __init__(self, around: tuple[Hiding, ...] = ()) -> None:
        self.around = around
        self.names: dict[int, str] = {}
        self._redaction: tuple[Redaction, Redactor] | None = None
        self._nodes: Mapping[str, Node] = {}

    def within(
        self, program: dspy.Module, nodes: Mapping[str, Node], redaction: Redaction | None, redactor: Redactor | None
    ) -> TokenRules:
        """The rules for the run of a program."""
        rules = TokenRules(self.around)
        rules.names = parameter_names(program)
        rules._nodes = nodes
        if redaction is not None and redactor is not None:
            rules._redaction = redaction, redactor
        return rules

    def inside(self, node: str) -> TokenRules:
        """The rules for a run inside a node."""
        return TokenRules(self._hiding(node))

    def redaction(self, node: str) -> TokenRedaction | None:
        """What to show of the outputs of a node's predictors; None for all of it, as it arrives."""
        hiding = self._hiding(node)
        return TokenRedaction(hiding) if hiding else None

    def _hiding(self, node: str) -> tuple[Hiding, ...]:
        if self._redaction is None:
            return self.around
        found = self._nodes.get(node)
        return (*self.around, Hiding(*self._redaction, None if found is None else found.may_give))


class Streamed(NamedTuple):
    """A step whose tokens are published."""

    step: Step

    def call(self, call: Call) -> Any:
        """Make the step in sync code."""
        with _streaming(call):
            return self.step.call(call)

    async def acall(self, call: Call) -> Any:
        """Make the step in async code."""
        with _streaming(call):
            return await self.step.acall(call)


def token_rules(call: Call) -> TokenRules | None:
    """The rules of the run that a call belongs to; None without tokens."""
    session = call.runner.session
    return None if session is None else session.tokens


@contextmanager
def _streaming(call: Call) -> Iterator[None]:
    """A block whose predictors stream to the run of a call; the callback around it, if there is one, gives way."""
    rules, attempt, visit = token_rules(call), call.context.delegate, call.context.visit
    assert rules is not None
    names, session = rules.names, call.runner.session

    def show(predictor: dspy.Predict, field: str, text: str, done: bool) -> None:
        if attempt.timed_out or attempt.following is not None:
            return  # code that was left running
        place = (attempt.node, attempt.branch, attempt.execution, visit, attempt.number)
        attempt.host.publish(Token(*place, names.get(id(predictor), ""), field, text, done))

    others = without_tokens(dspy.settings.callbacks or [])
    callback = TokenCallback(show, rules.redaction(attempt.node), session.queue)
    with dspy.context(callbacks=[*others, callback]):
        yield
