"""The tap of LM calls: the one place where dspyer hears of them. What wants to know of them subscribes.

DSPy tells of an LM call in three ways. A callback sees that it begins and how it ends, also if it fails. In the history
of each calling module DSPy puts an entry with response and cost. A usage tracker gets the usage of what no cache has
served, also where histories are off. One callback makes a `TappedCall`, which is the other two while the call runs.

Who subscribes is a setting of DSPy, so it holds in all threads that DSPy starts: the record of a run, its budget, the
notes of retries, what `progress()` shows, what an optimizer counts. What is off does not subscribe.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeVar

import dspy

from dspyer.budget import Spending
from dspyer.clock import TimeLimit
from dspyer.errors import LMCallError, error_text, mark_lm_retries, retries_of_lm
from dspyer.events import LMCall
from dspyer.lm.not_public import (
    CALLED,
    CALLERS,
    DECIDES,
    ENGINE,
    TRACKER,
    BaseCallback,
    LM15Error,
    Request,
    UsageTracker,
    _adapter_calls,
    adapter_message_call,
    history_messages,
    model_info,
    rate,
    resolve,
)
from dspyer.lm.parameters import parameter_names
from dspyer.lm.tracing import Executing, executing, executing_copy
from dspyer.log.execution_records import LMCallLog, usage_alone
from dspyer.log.rows import LMUsage, add_tokens, usage_of_calls

# --- what an LM call has cost: by given prices, by DSPy's figure, or by the prices that DSPy knows

Prices = Mapping[str, tuple[float, float]]
"""US dollars per million tokens of prompts and of responses by the name of the model, as in `Budget(prices=)`."""


class TokenCounts(NamedTuple):
    """The tokens of one response: of its prompt, of the response, and of both."""

    prompt: int
    response: int
    total: int


def token_counts(usage: Mapping[str, Any]) -> TokenCounts:
    """The tokens in the usage of a response, by the names of either of OpenAI's protocols; 0 where there is no number.

    Example:
        >>> token_counts({"prompt_tokens": 2, "completion_tokens": 3}).total
        5
    """
    prompt = usage.get("prompt_tokens") or usage.get("input_tokens") or 0
    response = usage.get("completion_tokens") or usage.get("output_tokens") or 0
    return TokenCounts(prompt, response, usage.get("total_tokens") or prompt + response)


def known_prices(lm: Any) -> tuple[float, float] | None:
    """The prices that DSPy knows, in USD per million tokens in and out; None for none."""
    try:
        route = resolve(lm)
        info = model_info(route.provider, route.model)
    except LM15Error:  # a model that only LiteLLM can route
        info = model_info(*lm.model.split("/", 1)) if "/" in lm.model else {}
    prices = [rate(info, key) for key in ("input_cost_per_token", "output_cost_per_token")]
    return None if prices[0] is None or prices[1] is None else (prices[0] * 1e6, prices[1] * 1e6)


def responses_asked(lm: Any, options: Mapping[str, Any]) -> int:
    """The number of responses that a call asks for, by its options or those of its LM."""
    found: int = options.get("n") or getattr(lm, "kwargs", {}).get("n") or 1
    return found


S = TypeVar("S", bound="Subscriber")

_SUBSCRIBERS: Final = "dspyer_lm_subscribers"
PRICES: Final = "dspyer_prices"
"""The setting with prices that come before those of DSPy."""


class Subscriber:
    """A listener that hears of the LM calls of a block."""

    def begins(self, call: TappedCall) -> None:
        """Hears that a call begins. `CancelledError` refuses it: an `Exception` would only be logged by DSPy."""

    def ended(self, call: TappedCall) -> None:
        """Hears that a call has ended."""

    def returned(self, calls: Sequence[LMCall]) -> None:
        """Hears of calls that a worker of an executor has made."""


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
        self.callers = [one for one in dspy.settings.get(CALLERS) or () if not isinstance(one, TappedCall)]
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
        """The number of requests that were made, one for each response; 0 if a cache gave them."""
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

    def record(self, predictor: str = "", *, texts: bool) -> LMCall:
        """The record of the call, which has ended, with messages and responses or without."""
        entry, here, counts, error = self.entry or {}, self.execution, self.counts, self.error
        made = LMCall(
            here.id,
            here.node,
            predictor,
            str(self.lm.model),
            entry.get("response_model"),
            sum(one.prompt for one in counts),
            sum(one.response for one in counts),
            self.cost,
            self.seconds,
            self.began,
            error is None and not counts,
            _finish_reason(entry.get("response")),
            here.attempt,
            None if error is None else type(error).__name__,
            requests=self.requests,
            fallback=bool(entry.get(FALLBACK) or (error is None and getattr(self.lm, FALLBACK, False))),
        )
        if not texts:
            return made
        if error is not None:
            return replace(made, messages=_messages(self), failed=f"{made.failed}: {error_text(error)}")
        return replace(made, messages=_messages(self), response=_response(entry.get("outputs", self.outputs)))


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
        callers = dspy.settings.get(CALLERS)
        if callers and isinstance(callers[0], TappedCall):
            return
        call = TappedCall(SimpleNamespace(model=str(entry.get("model"))), {"kwargs": entry.get("kwargs")})
        call.history.append(entry)
        call.usages += [entry["usage"]] if entry.get("usage") else []
        call.end(entry.get("outputs"), None)


class _LMCallbacks(list[Any]):
    """Callbacks that concern LMs alone: DSPy adds them to those of an LM, and to those of nothing else.

    Callbacks that DSPy calls for each module, adapter and tool would take 0.2 ms for each call of a predictor.
    """

    def __add__(self, others: Any) -> Any:
        # DSPy adds the callbacks of an instance to these (`with_callbacks`); the instance is a local of its frame.
        instance = sys._getframe(1).f_locals.get(CALLED, self)
        if isinstance(instance, (dspy.Module, dspy.Adapter)):  # first: most calls are theirs
            return others
        if instance is self or isinstance(instance, dspy.BaseLM) or hasattr(instance, DECIDES):
            return [*self, *others]
        return others


_tap = _Tap()


def prices_here() -> Prices:
    """The prices of the budgets around the caller; those of the innermost one come first."""
    found: Prices = dspy.settings.get(PRICES) or {}
    return found


def subscribers() -> tuple[Subscriber, ...]:
    """The listeners that hear of the LM calls here, in the order in which they do."""
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
    callers = dspy.settings.get(CALLERS) or []
    callbacks = (dspy.settings.callbacks or []) if callbacks is None else callbacks
    if not any(one is _tap for one in callbacks):
        found["callbacks"] = [_tap, *callbacks] if callbacks else _LMCallbacks([_tap])
    if not any(one is _tap for one in callers):
        found[CALLERS] = [_tap, *callers]
    return found


# --- the gate: counts what the LM calls of a node spend, and refuses those that the budget does not allow.
#
# It also refuses those of sync code that was left running after its attempt had timed out: nothing bounds what they
# would spend, and nothing they give counts.
#
# It subscribes to the LM calls of all predictors, also those in modules, tools and threads of DSPy. `CancelledError`
# passes through user code and DSPy up to the driver, which leaves the execution open, so that a resume calls the node
# again.


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

    def returned(self, calls: Iterable[LMCall]) -> None:
        """Counts what the LM calls have spent that a worker of an executor has made."""
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
    """Return whether the cost of a request will be known, as far as that can be told before it."""
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


class LMRetryNotes(Subscriber):
    """Notes on the exception of an LM call how often the LM was allowed to repeat the request (`is_transient`)."""

    def ended(self, call: TappedCall) -> None:
        """Mark what the call has raised."""
        if call.error is None or retries_of_lm(call.error) or any(one.emitted for one in _adapter_calls.get()):
            return  # of a stream that has shown a token, `dspy.LM` repeats nothing
        if isinstance(call.lm, dspy.LM):  # another `BaseLM` makes each request once
            mark_lm_retries(call.error, call.lm.num_retries)


# --- the record of a run: each LM call with the execution that made it, where DSPy counts by language model only

FALLBACK = "fallback"
"""The key of a history entry, and the attribute of its LM, that says whether the response came from a backup."""


class LMRecorder(Subscriber):
    """Records the LM calls of a run. May be used from several threads.

    Args:
        log: gets the calls that are to be stored; None for none.
        keeps_texts: whether to keep messages and responses for the run around this one, whose log wants them.

    Attributes:
        made: the calls in the order in which they ended, each without messages and responses, as the run shows it, and
            as the run around this one gets it.
        tracker: DSPy's usage tracker of the run.
    """

    def __init__(self, log: LMCallLog | None = None, *, keeps_texts: bool = False) -> None:
        self.log = log
        self.made: list[tuple[LMCall, LMCall, LMCall]] = []  # one list: an append is atomic, three would need a lock
        self._keeps_texts = keeps_texts
        self.tracker = RunUsage()
        self._names: dict[int, tuple[Any, dict[int, str]]] = {}  # of predictors, by id of their program, which is kept

    @property
    def wants_texts(self) -> bool:
        """Return whether the log, or that of a run around this one, wants messages and responses."""
        return self._keeps_texts or (self.log is not None and self.log.wants_texts)

    def ended(self, call: TappedCall) -> None:
        """Records a call that has ended."""
        self._add(call.record(self._name(call), texts=self.wants_texts))

    def returned(self, calls: Iterable[LMCall]) -> None:
        """Adds the calls that a worker of an executor has made."""
        for call in calls:
            self._add(call)

    def _add(self, whole: LMCall) -> None:
        """Add a call, with its texts if they are wanted; log, run and the run around it get what they may."""
        shown = call = usage_alone(whole) if self.wants_texts else whole
        if (log := self.log) is not None:
            logged = log.add(whole if log.wants_texts else call)
            shown = logged if log.wants_texts else call
        self.made.append((call, shown, whole if self._keeps_texts else call))

    def _name(self, call: TappedCall) -> str:
        """The name of the predictor in its program; of one that the program does not have, that of its class."""
        predictor = next((one for one in reversed(call.callers) if isinstance(one, dspy.Predict)), None)
        program = call.execution.program
        if predictor is None:
            return ""
        known = self._names.get(id(program))
        if known is None:
            names = {} if program is None else parameter_names(program)
            known = self._names[id(program)] = (program, names)
        return known[1].get(id(predictor)) or type(predictor).__name__

    def counted(self) -> Counted:
        """The numbers from which the usage so far is computed: a node that was left running may add some meanwhile."""
        data = self.tracker.usage_data
        return tuple([call for call, _, _ in self.made]), {name: list(entries) for name, entries in list(data.items())}

    def add_inner(self, inner: LMRecorder, here: Executing) -> None:
        """Adds the calls of a run that was made by code of a node: they are calls of that node."""
        for *_, whole in tuple(inner.made):  # a node that was left running may add some meanwhile
            self._add(replace(whole, execution=here.id, node=here.node, attempt=here.attempt))


Counted = tuple[Sequence[LMCall], Mapping[str, list[Any]]]
"""The LM calls of a run, and what DSPy has counted of them, by language model."""


def usage_of(calls: Sequence[LMCall], data: Mapping[str, list[Any]]) -> dict[str, LMUsage]:
    """The usage of a run: tokens as DSPy counts them, requests and cost."""
    found: dict[str, LMUsage] = {}
    if not calls and not data:
        return found
    so_far = UsageTracker()
    so_far.usage_data.update(data)
    add_tokens(found, so_far.get_total_tokens())
    for name, counted in usage_of_calls([call for call in calls if call.requests]).items():
        known = found.setdefault(name, {})
        known["requests"], known["cost"] = counted["requests"], counted["cost"]
    return found


Spent = tuple[int, float | None]
"""What an LM call has used: tokens, and US dollars (None if no price is known)."""


class LMWatcher(Subscriber):
    """Passes on what each LM call has used, and keeps nothing."""

    def __init__(self, note: Callable[[Spent], object]) -> None:
        self._note = note

    def ended(self, call: TappedCall) -> None:
        """Pass on what a call has used; a response from a cache costs nothing."""
        self._note((sum(one.total for one in call.counts), call.cost))

    def returned(self, calls: Iterable[LMCall]) -> None:
        """Pass on what the calls that a worker has made have used."""
        for call in calls:
            self._note((call.tokens, call.cost))


class RunUsage(UsageTracker):
    """DSPy's usage tracker of a run."""

    def __deepcopy__(self, memo: dict[int, Any]) -> RunUsage:
        # `dspy.Parallel` gives each thread a copy, which it drops: the calls are those of the run there, too.
        return self


@contextmanager
def record_lm_calls(log: LMCallLog | None = None, *, keeps_texts: bool = False) -> Iterator[LMRecorder]:
    """Records the LM calls of a block, which is one run. At its end they are added to those of the run around it."""
    tracker, around, before = dspy.settings.get(TRACKER), subscriber(LMRecorder), executing.get()
    recorder = LMRecorder(log, keeps_texts=keeps_texts or (around is not None and around.wants_texts))
    place = executing_copy()
    executing.set(Executing())
    try:
        with dspy.context(**subscribing(recorder, instead_of=(LMRecorder,)), **{TRACKER: recorder.tracker}):
            yield recorder
    finally:
        executing.set(before)
        # A tracker of the caller's own (`dspy.track_usage()`) passes on what it has to the one around it.
        own = isinstance(tracker, UsageTracker) and not isinstance(tracker, RunUsage)
        taker = tracker if own else None if around is None else around.tracker
        if taker is not None:
            for model, entries in list(recorder.tracker.usage_data.items()):
                taker.usage_data[model] += entries
        if around is not None:
            around.add_inner(recorder, place)


def usage_so_far() -> dict[str, LMUsage]:
    """The usage of the run around the caller so far, by language model: tokens, requests and cost."""
    recorder = subscriber(LMRecorder)
    return {} if recorder is None else usage_of(*recorder.counted())


def calls_so_far() -> Sequence[LMCall]:
    """The LM calls of the run around the caller so far."""
    recorder = subscriber(LMRecorder)
    return () if recorder is None else recorder.counted()[0]


# --- a call that is made once more


class _Heard(Subscriber):
    """Keeps the first call that it hears of: an LM may ask others for its response."""

    def __init__(self) -> None:
        self.calls: list[TappedCall] = []

    def begins(self, call: TappedCall) -> None:
        """Keep a call."""
        self.calls.append(call)


def call_again(call: LMCall, lm: Any, messages: Sequence[Mapping[str, Any]] | None) -> LMCall:
    """The call that sends the messages of another one again, or others: `LMCall.again`."""
    if not (messages := call.messages if messages is None else messages):
        raise LMCallError(call)
    if (lm := lm or dspy.settings.lm) is None:
        raise ValueError("no language model is set: pass lm=..., or dspy.configure(lm=...)")
    heard, lm, sent = _Heard(), lm.copy(cache=False), [dict(one) for one in messages]
    with dspy.context(**subscribing(heard)), adapter_message_call(lm, sent):  # in the form that an adapter sends
        lm(messages=sent)
    made = heard.calls[0].record(call.predictor, texts=True)
    return replace(made, execution=call.execution, node=call.node, attempt=1)


# --- the texts of a call


def _messages(call: TappedCall) -> list[Any]:
    """The prompt of a call as a list of messages."""
    entry, given = call.entry, call.given
    source = given if entry is None else entry
    messages, prompt = source.get("messages"), source.get("prompt")
    if messages:
        return list(messages)
    if isinstance(prompt, Request):
        return list(history_messages(prompt))
    return [] if prompt is None else [{"role": "user", "content": str(prompt)}]


def _response(outputs: Any) -> Any:
    """The response: of several, or of one with parts, a list."""
    if not isinstance(outputs, list):
        return None if outputs is None else str(outputs)
    return outputs[0] if len(outputs) == 1 and isinstance(outputs[0], str) else outputs


def _finish_reason(response: Any) -> str | None:
    """The reason why a response ended; of several, what is not `"stop"` first."""
    found = [_reason_of(one) for one in (response if isinstance(response, tuple) else (response,))]
    return next((one for one in found if one not in (None, "stop")), next(iter(found), None))


def _reason_of(response: Any) -> str | None:
    reason = getattr(response, "finish_reason", None)
    if reason is None:
        choices = getattr(response, "choices", None)
        reason = getattr(choices[0], "finish_reason", None) if choices else None
    return None if reason is None else str(reason)
