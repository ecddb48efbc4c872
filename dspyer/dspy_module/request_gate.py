"""`RequestGate`: counts what the LM calls of a node spend, and refuses those that the budget does not allow.

It also refuses those of sync code that was left running after its attempt had timed out: nothing bounds what they
would spend, and nothing they give counts.

It is a callback of DSPy, so it sees the calls of all predictors, also those in modules, tools and threads of DSPy. For
the time of an LM call it replaces the usage tracker, which gets the usage of each response that no cache gave, and
stands in the list of calling modules, in whose histories DSPy puts the entry with the cost.

DSPy logs what a callback raises, if it is an `Exception`. `CancelledError` is none: it passes through user code and
DSPy up to the driver, which leaves the execution open, so that a resume calls the node again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

import dspy

from dspyer.budget import Spending, Spent
from dspyer.dspy_module.lm_prices import cost_of, known_prices, requests_of, responses_asked, token_counts
from dspyer.dspy_module.lm_records import with_lm_callback, without_callbacks
from dspyer.dspy_module.not_public import CALLERS, ENGINE, TRACKER, BaseCallback, calling_modules
from dspyer.errors import Interrupt
from dspyer.events import LMCall
from dspyer.stopping import TimeLimit

T = TypeVar("T")


class RequestGate(BaseCallback):
    """The gate of one execution of a node whose run has a budget, or of one attempt that has a timeout.

    Attributes:
        refused: whether the budget has refused an LM call, so that the execution must not commit.
        spendings: what the runs around the caller have spent of their budgets.
    """

    def __init__(self, around: RequestGate | None, spending: Spending | None, limit: TimeLimit | None) -> None:
        self.refused = False
        self._around = around
        own = () if spending is None else (spending,)
        outer = () if around is None else around.spendings
        self.spendings: tuple[Spending, ...] = (*own, *[one for one in outer if one is not spending])
        self._limit: TimeLimit | None = around._limit if limit is None and around is not None else limit
        self._calls: dict[str, tuple[LMCallRecord, AbstractContextManager[None]]] = {}  # that run, by the id of DSPy

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Refuses an LM call beyond a limit, or lets it be counted."""
        self._raise_if_left_running()
        if not self.spendings:
            return
        for spending in self.spendings:
            if spending.check() and spending.budget.cost is not None and not _has_price(spending, instance):
                spending.refuse(f"the price of {instance.model!r} is not known", instance.model)
        self.raise_if_used_up()
        record = LMCallRecord(instance, inputs.get("kwargs", {}), dspy.settings.get(TRACKER))
        callers = [*calling_modules(), record]
        context = dspy.context(**{TRACKER: record, CALLERS: callers})
        context.__enter__()
        self._calls[call_id] = (record, context)

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Counts what an LM call has spent."""
        del outputs
        if not self.spendings:
            return
        record, context = self._calls.pop(call_id)
        context.__exit__(None, None, None)
        for spending in self.spendings:
            spending.add(record.lm.model, record.spent(spending, failed=exception is not None))

    def count_returned(self, calls: Iterable[LMCall]) -> None:
        """Counts what the LM calls have spent that a worker of an executor has made."""
        for call in calls:
            tokens = None if call.requests and not call.tokens and call.failed is None else call.tokens
            for spending in self.spendings:
                spending.add(call.model, Spent(tokens, call.cost, call.requests))

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


class LMCallRecord:
    """One LM call: a usage tracker that passes on what it gets, and the history that gets the entry of the call."""

    def __init__(self, lm: Any, options: Mapping[str, Any], tracker: Any) -> None:
        self.lm = lm
        self._asked = responses_asked(lm, options)
        self.history: list[dict[str, Any]] = []
        self._tracker = tracker
        self._usages: list[Mapping[str, Any]] = []

    def add_usage(self, model: str, usage: dict[str, Any]) -> None:
        """Keeps the usage of a response; DSPy reports none for a response from a cache."""
        self._usages.append(usage)
        if self._tracker is not None:
            self._tracker.add_usage(model, usage)

    def spent(self, spending: Spending, failed: bool) -> Spent:
        """What the call has spent."""
        entry = self.history[-1] if self.history else None
        requests = requests_of(self._asked, entry, self._usages, failed)
        if not self._usages:
            return Spent(requests=requests)
        counts = [token_counts(usage).total for usage in self._usages]
        tokens = sum(counts) if all(counts) else None
        budget = spending.budget
        cost = None if budget.cost is None else cost_of(self.lm, budget.prices, entry, self._usages)
        return Spent(tokens, cost, requests)


def _has_price(spending: Spending, lm: Any) -> bool:
    """Whether the cost of a request to an LM will be known, as far as that can be told before the request."""
    if lm.model in spending.budget.prices:
        return True
    engine = getattr(lm, ENGINE, None)
    if engine is None:
        return True  # a class of its own, which may report a cost: its first response shows it
    return isinstance(engine, str) and known_prices(lm) is not None  # DSPy knows no price for an engine of the user


def current_gate() -> RequestGate | None:
    """The gate around the caller, in any thread that has its DSPy settings; None for no budget and no timeout."""
    return next((one for one in dspy.settings.callbacks or () if isinstance(one, RequestGate)), None)


def raise_if_refused() -> None:
    """Raises `CancelledError` if an LM call was refused in what runs here: no result of it may be recorded."""
    gate = current_gate()
    if gate is not None:
        gate.raise_if_refused()


def run_within(spending: Spending, work: Callable[..., T], *args: Any) -> T:
    """Runs an execution, or an item of a map, with its LM calls counted and bounded."""
    with gated(spending) as gate:
        try:
            result = work(*args)
        except (Exception, Interrupt):
            gate.raise_if_refused()
            raise
        gate.raise_if_refused()
        return result


async def arun_within(spending: Spending, work: Callable[..., Awaitable[T]], *args: Any) -> T:
    """The same in async code."""
    with gated(spending) as gate:
        try:
            result = await work(*args)
        except (Exception, Interrupt):
            gate.raise_if_refused()
            raise
        gate.raise_if_refused()
        return result


@contextmanager
def gated(spending: Spending | None = None, limit: TimeLimit | None = None) -> Iterator[RequestGate]:
    """A block whose LM calls are counted and bounded; the gate around it, if there is one, gives way to its own."""
    around = current_gate()
    gate = RequestGate(around, spending, limit)
    others = without_callbacks(dspy.settings.callbacks or [], [around])
    with dspy.context(callbacks=with_lm_callback(others, gate, first=True)):
        yield gate
