"""`RequestGate`: counts what the LM calls of a node spend, and refuses those that the budget does not allow.

It also refuses those of sync code that was left running after its attempt had timed out: nothing bounds what they
would spend, and nothing they give counts.

It subscribes to the LM calls of all predictors, also those in modules, tools and threads of DSPy. `CancelledError`
passes through user code and DSPy up to the driver, which leaves the execution open, so that a resume calls the node
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import dspy

from dspyer.budget import Spending
from dspyer.dspy_module.lm_prices import known_prices
from dspyer.dspy_module.not_public import ENGINE
from dspyer.dspy_module.tap import PRICES, Subscriber, TappedCall, prices_here, subscriber, subscribing
from dspyer.events import LMCall
from dspyer.stopping import TimeLimit


class RequestGate(Subscriber):
    """The gate of a run that has a budget, of one step of its nodes, or of one attempt that has a timeout.

    Attributes:
        refused: whether the budget has refused an LM call, so that the step must give nothing.
        spendings: what the runs around the caller have spent of their budgets.
    """

    def __init__(self, around: RequestGate | None, spending: Spending | None, limit: TimeLimit | None) -> None:
        self.refused = False
        self._around = around
        own = () if spending is None else (spending,)
        outer = () if around is None else around.spendings
        self.spendings: tuple[Spending, ...] = (*own, *[one for one in outer if one is not spending])
        self._limit: TimeLimit | None = around._limit if limit is None and around is not None else limit

    def begins(self, call: TappedCall) -> None:
        """Refuses an LM call beyond a limit."""
        self._raise_if_left_running()
        for spending in self.spendings:
            if spending.check() and spending.budget.cost is not None and not _has_price(call):
                spending.refuse(f"the price of {call.lm.model!r} is not known", call.lm.model)
        self.raise_if_used_up()

    def ended(self, call: TappedCall) -> None:
        """Counts what an LM call has spent."""
        counts = [one.total for one in call.counts]
        self._add(call.lm.model, sum(counts) if all(counts) else None, call.cost, call.requests)

    def returned(self, calls: Iterable[LMCall], program: Any, nodes: Mapping[str, str]) -> None:
        """Counts what the LM calls have spent that a worker of an executor has made."""
        del program, nodes
        for call in calls:
            tokens = None if call.requests and not call.tokens and call.failed is None else call.tokens
            self._add(call.model, tokens, call.cost, call.requests)

    def _add(self, model: str, tokens: int | None, cost: float | None, requests: int) -> None:
        for spending in self.spendings:
            spending.add(model, tokens, cost, requests)

    def raise_if_refused(self) -> None:
        """Raises `CancelledError` if an LM call was refused, whatever the code of the node has made of it."""
        if self.refused:
            raise asyncio.CancelledError

    # --- an LM that waits before its request (`dspyer.lms`)

    def raise_if_used_up(self) -> None:
        """Refuses a request, with `CancelledError`, if a budget allows no further one, or its code was left running."""
        self._raise_if_left_running()
        for spending in self.spendings:
            if not spending.check():
                self._refuse(spending)

    def seconds_left(self) -> float | None:
        """The seconds until the first deadline of a budget; None for none."""
        found = [left for spending in self.spendings if (left := spending.seconds_left()) is not None]
        return min(found, default=None)

    @contextmanager
    def on_used_up(self, callback: Callable[[str], object]) -> Iterator[None]:
        """Calls `callback` if another call reaches a limit of a budget during the block, or has reached it before."""
        with ExitStack() as stack:
            for spending in self.spendings:
                stack.enter_context(spending.on_used_up(callback))
            yield

    def _raise_if_left_running(self) -> None:
        """Ends code that was left running. What refuses it here refuses nothing of a later attempt."""
        if self._limit is not None and self._limit.left_running:
            raise asyncio.CancelledError

    def _refuse(self, spending: Spending) -> None:
        """Cancels what runs here, up to the run of the budget: a run around that one goes on."""
        gate: RequestGate | None = self
        while gate is not None and spending in gate.spendings:
            gate.refused = True
            gate = gate._around
        raise asyncio.CancelledError


def _has_price(call: TappedCall) -> bool:
    """Whether the cost of a request will be known, as far as that can be told before it."""
    if call.lm.model in call.prices:
        return True
    engine = getattr(call.lm, ENGINE, None)
    if engine is None:
        return True  # a class of its own, which may report a cost: its first response shows it
    return isinstance(engine, str) and known_prices(call.lm) is not None  # DSPy has none for an engine of the user


def current_gate() -> RequestGate | None:
    """The gate around the caller, in any thread that has its DSPy settings; None for no budget and no timeout."""
    return subscriber(RequestGate)


@contextmanager
def gated(spending: Spending | None = None, limit: TimeLimit | None = None) -> Iterator[RequestGate]:
    """A block whose LM calls are counted and bounded; the gate around it, if there is one, gives way to its own."""
    gate = RequestGate(current_gate(), spending, limit)
    own = spending.budget.prices if spending is not None else None
    prices = {PRICES: {**prices_here(), **own}} if own else {}
    with dspy.context(**prices, **subscribing(gate, instead_of=(RequestGate,))):
        yield gate
