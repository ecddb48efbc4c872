"""Tokens of nodes: what the predictors that a node calls stream becomes `Token` events of the node's attempt.

A run with tokens puts `Streamed` around each step of its scripts, so every attempt of a node, a router, a condenser or
an item of a map has a callback of its own, which knows whose tokens they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import dspy

from dspyer.display.redaction import Redaction
from dspyer.dspy_module.token_stream import Hide, TokenCallback
from dspyer.events import Token
from dspyer.nodes.node import Call, Node
from dspyer.nodes.steps import Step

Hiding = tuple[Redaction, frozenset[str] | None]
"""A redaction of a graph, and the fields that a node of the graph may write; None for any."""


class TokenRules:
    """Whose tokens they are, and what of them is shown.

    Attributes:
        around: the redactions of the graphs around the run, outermost first, each with the node that it is inside of.
        names: the names of the program's predictors, by id.
    """

    def __init__(self, around: tuple[Hiding, ...] = ()) -> None:
        self.around = around
        self.names: dict[int, str] = {}
        self._redaction: Redaction | None = None
        self._nodes: Mapping[str, Node] = {}

    def within(self, program: dspy.Module, redaction: Redaction | None, nodes: Mapping[str, Node]) -> TokenRules:
        """The rules for the run of a program."""
        rules = TokenRules(self.around)
        rules.names = {id(predictor): name for name, predictor in program.named_predictors()}
        rules._redaction, rules._nodes = redaction, nodes
        return rules

    def inside(self, node: str) -> TokenRules:
        """The rules for a run inside a node."""
        return TokenRules(self._hiding(node))

    def hide(self, node: str) -> Hide | None:
        """What to show of the texts of a node's predictors; None for all of it, as it arrives."""
        hiding = self._hiding(node)
        if not hiding:
            return None

        def shown(field: str, text: str) -> str:
            for redaction, fields in hiding:
                text = redaction.output(field, fields, text)
            return text

        return shown

    def _hiding(self, node: str) -> tuple[Hiding, ...]:
        if self._redaction is None:
            return self.around
        found = self._nodes.get(node)
        return (*self.around, (self._redaction, None if found is None else found.may_write))


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
    names = rules.names

    def show(predictor: dspy.Predict, field: str, text: str, done: bool) -> None:
        if attempt.timed_out or attempt.replaced:
            return  # code that was left running
        place = (attempt.node, attempt.branch, attempt.execution, visit, attempt.number)
        attempt.host.publish(Token(*place, names.get(id(predictor), ""), field, text, done))

    others = [one for one in dspy.settings.callbacks or () if not isinstance(one, TokenCallback)]
    with dspy.context(callbacks=[*others, TokenCallback(show, rules.hide(attempt.node))]):
        yield
