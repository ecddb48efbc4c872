"""The tap of LM calls: the one place where dspyer hears of them. What wants to know of them subscribes.

DSPy tells of an LM call in three ways. A callback sees that it begins and how it ends, also if it fails. In the history
of each calling module DSPy puts an entry with response and cost. A usage tracker gets the usage of what no cache has
served, also where histories are off. One callback makes a `TappedCall`, which is the other two while the call runs.

Who subscribes is a setting of DSPy, so it holds in all threads that DSPy starts: the record of a run, its budget, the
notes of retries, what `progress()` shows, what an optimizer counts. What is off does not subscribe.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, TypeVar

import dspy

from dspyer.dspy_module.executing import executing_copy
from dspyer.dspy_module.lm_prices import Prices, TokenCounts, known_prices, responses_asked, token_counts
from dspyer.dspy_module.not_public import CALLED, CALLERS, DECIDES, TRACKER, BaseCallback, UsageTracker, calling_modules
from dspyer.events import LMCall

S = TypeVar("S", bound="Subscriber")

_SUBSCRIBERS: Final = "dspyer_lm_subscribers"
PRICES: Final = "dspyer_prices"
"""The setting with prices that come before those of DSPy."""


class Subscriber:
    """What hears of the LM calls of a block."""

    def begins(self, call: TappedCall) -> None:
        """Hears that a call begins. `CancelledError` refuses it: an `Exception` would only be logged by DSPy."""

    def ended(self, call: TappedCall) -> None:
        """Hears that a call has ended."""

    def returned(self, calls: Sequence[LMCall], program: Any, nodes: Mapping[str, str]) -> None:
        """Hears of calls that a worker of an executor has made. `nodes` of the program have run, by execution."""


class TappedCall:
    """One LM call: to DSPy a calling module with a history, and a usage tracker that passes on what it gets.

    Attributes:
        lm: the LM.
        given: what it was called with.
        execution: the execution that made it. A copy: the driver names its next execution in the same object.
        callers: the modules around it.
        asked: how many responses it asked for.
        began: when it began, in seconds since the epoch.
        seconds: how long it took.
        prices: prices that come before those of DSPy.
        usages: the usage of each response that no cache gave.
        history: where DSPy puts its entry; empty if histories are off, or the call failed.
        outputs: what it gave.
        error: what it raised.
    """

    def __init__(self, lm: Any, given: Mapping[str, Any]) -> None:
        tracker = dspy.settings.get(TRACKER)
        self.execution = executing_copy()
        self.lm = lm
        self.given = given
        # An LM that calls another one is told nothing of the other one's response.
        self.callers = [one for one in calling_modules() if not isinstance(one, TappedCall)]
        self.asked = responses_asked(lm, given.get("kwargs") or {})
        self.prices = prices_here()
        self.usages: list[Mapping[str, Any]] = []
        self.history: list[Mapping[str, Any]] = []
        self.outputs: Any = None
        self.error: BaseException | None = None
        self.began = time.time()
        self.seconds = 0.0
        self._clock = time.perf_counter()
        self._tracker: Any = (tracker._tracker if isinstance(tracker, TappedCall) else tracker) or UsageTracker()
        self._subscribers = subscribers()

    def add_usage(self, model: str, usage: dict[str, Any]) -> None:
        """Get the usage of a response that no cache gave."""
        self.usages.append(usage)
        self._tracker.add_usage(model, usage)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tracker, name)  # what else the code of an LM may ask a tracker

    def begin(self) -> AbstractContextManager[None]:
        """Tell subscribers that the call begins; return the block in which it hears of itself."""
        for one in self._subscribers:
            one.begins(self)
        block: AbstractContextManager[None] = dspy.context(**{TRACKER: self, CALLERS: [self, *self.callers]})
        return block

    def end(self, outputs: Any, error: BaseException | None) -> None:
        """Tell subscribers how the call has ended."""
        self.outputs, self.error, self.seconds = outputs, error, time.perf_counter() - self._clock
        for one in self._subscribers:
            one.ended(self)

    @property
    def entry(self) -> Mapping[str, Any] | None:
        """DSPy's history entry of the call, or None."""
        return self.history[-1] if self.history else None

    @property
    def counts(self) -> list[TokenCounts]:
        """The tokens of each response that no cache gave."""
        return [token_counts(usage) for usage in self.usages]

    @property
    def requests(self) -> int:
        """How many requests were made, one for each response; 0 if a cache gave them."""
        if self.error is not None:
            return min(len(self.usages) + 1, self.asked)  # each response before the failure has its own usage
        if not self.usages or self.entry is None:
            return self.asked if self.usages else 0
        given = self.entry.get("response")
        return len(given) if isinstance(given, tuple) else 1  # LiteLLM gives all of them in one

    @property
    def cost(self) -> float | None:
        """The cost in USD at its prices, else by DSPy's figure, else at the prices that it knows; None if unknown."""
        known, counts = self.prices.get(self.lm.model), self.counts
        if not counts:
            return 0.0
        if known is None and self.entry is not None:
            cost: float | None = self.entry.get("cost")
            return cost
        known = known or known_prices(self.lm)
        if known is None or not all(one.total for one in counts):
            return None
        return sum((one.prompt * known[0] + one.response * known[1]) / 1e6 for one in counts)


class _Tap(BaseCallback):
    """The callback of DSPy. There is one: a call finds its subscribers where it is made."""

    def __init__(self) -> None:
        self.history: Any = _Untapped()
        self._open: dict[str, tuple[TappedCall, AbstractContextManager[None]]] = {}  # by DSPy's id of the call

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Begin a call, if no subscriber refuses it."""
        call = TappedCall(instance, inputs)
        block = call.begin()
        block.__enter__()
        self._open[call_id] = call, block

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """End a call that has begun."""
        found = self._open.pop(call_id, None)
        if found is not None:
            call, block = found
            try:
                call.end(outputs, exception)
            finally:
                block.__exit__(None, None, None)


class _Untapped(list[Any]):
    """A history that keeps nothing. Of an LM whose class calls no callbacks, its entry is all that there is."""

    def append(self, entry: Mapping[str, Any]) -> None:
        callers = calling_modules()
        if callers and isinstance(callers[0], TappedCall):
            return
        call = TappedCall(_NamedLM(str(entry.get("model"))), {"kwargs": entry.get("kwargs")})
        call.history.append(entry)
        call.usages += [entry["usage"]] if entry.get("usage") else []
        call.end(entry.get("outputs"), None)


class _NamedLM(NamedTuple):
    """An LM of which the name alone is known."""

    model: str


class _LMCallbacks(list[Any]):
    """Callbacks that concern LMs alone: DSPy adds them to those of an LM, and to those of nothing else.

    Callbacks that DSPy calls for each module, adapter and tool would take 0.2 ms for each call of a predictor.
    """

    def __add__(self, others: Any) -> Any:
        # DSPy adds the callbacks of an instance to these (`with_callbacks`); the instance is a local of its frame.
        instance = sys._getframe(1).f_locals.get(CALLED, self)
        if instance is self or isinstance(instance, dspy.BaseLM) or hasattr(instance, DECIDES):
            return [*self, *others]
        return others


_tap = _Tap()


def prices_here() -> Prices:
    """The prices of the budgets around the caller; those of the innermost one come first."""
    found: Prices = dspy.settings.get(PRICES) or {}
    return found


def subscribers() -> tuple[Subscriber, ...]:
    """What hears of the LM calls here, in the order in which it does."""
    found: tuple[Subscriber, ...] = dspy.settings.get(_SUBSCRIBERS) or ()
    return found


def subscriber(kind: type[S]) -> S | None:
    """The subscriber of a class around the caller, in any thread that has its DSPy settings; None for none."""
    return next((one for one in subscribers() if isinstance(one, kind)), None)


def subscribing(
    *added: Subscriber, instead_of: tuple[type[Subscriber], ...] = (), callbacks: list[Any] | None = None
) -> dict[str, Any]:
    """DSPy settings of a block whose LM calls these hear of, before those that hear of them here.

    Those of the classes `instead_of` hear of them no more. `callbacks` are those of the block, if it has others.
    """
    kept = [one for one in subscribers() if not isinstance(one, instead_of)]
    found: dict[str, Any] = {_SUBSCRIBERS: (*added, *kept)}
    callers = calling_modules()
    callbacks = (dspy.settings.callbacks or []) if callbacks is None else callbacks
    if not any(one is _tap for one in callbacks):
        found["callbacks"] = [_tap, *callbacks] if callbacks else _LMCallbacks([_tap])
    if not any(one is _tap for one in callers):
        found[CALLERS] = [_tap, *callers]
    return found
