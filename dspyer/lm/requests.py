"""What a later attempt asks an LM, and whether the LM has repeated a request already.

DSPy caches every response, also one that did not parse. So an attempt that follows such a response must not make the
same request: it adds a *rollout id*, which DSPy has for that purpose, in the adapter. All modules of DSPy make their
requests through it (`ReAct`, `BestOfN`, a predictor with an LM of its own), and the trace keeps the program's own
predictors.

A trial of a search asks in the same way for a response of its own (`in_rollout`): its rollout id is the number of the
trial, as that of `dspy.BestOfN` is.

An attempt that follows a transport error repeats its requests as they were, so the cache may serve those that
succeeded. There `dspy.LM` may have repeated the request itself; only its callbacks tell which LM made it.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import dspy

from dspyer.budget import Spending
from dspyer.clock import TimeLimit
from dspyer.errors import mark_lm_retries, retries_of_lm
from dspyer.events import LMCall
from dspyer.lm.not_public import ENGINE, BaseCallback, _adapter_calls
from dspyer.lm.tap import PRICES, Subscriber, TappedCall, known_prices, prices_here, subscriber, subscribing

# `RequestGate`: counts what the LM calls of a node spend, and refuses those that the budget does not allow.
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


STRIDE: Final = 10**6
"""The distance between the rollout ids of two attempts. `BestOfN` and the like count up from the LM's own id by 1."""

_ADDED = "_dspyer_added_rollouts"
_ROLLOUT = "_dspyer_rollout"


class Rollout(NamedTuple):
    """What the requests of a trial have: the number of the trial, and the temperature where a predictor has none."""

    number: int
    temperature: float


def with_new_responses(number: int) -> AbstractContextManager[None]:
    """A block whose requests differ from those of all other numbers, also in DSPy's cache. Blocks may be nested.

    With 0 they stay as they are.
    """
    if not number:
        return nullcontext()
    adapter = asked_adapter()
    return _with_adapter(adapter, _ADDED, getattr(adapter, _ADDED, 0) + STRIDE * number)


def in_rollout(number: int, temperature: float) -> AbstractContextManager[None]:
    """A block whose requests are those of one trial: each LM has the rollout id `number` there.

    In a trial around this one they differ from the requests of all other trials.
    """
    adapter = asked_adapter()
    around: Rollout | None = getattr(adapter, _ROLLOUT, None)
    if around is not None:
        number = _combined(around.number, number)
    return _with_adapter(adapter, _ROLLOUT, Rollout(number, temperature))


def _with_adapter(adapter: Any, name: str, value: object) -> AbstractContextManager[None]:
    """A block in which the adapter is a copy that changes requests, and so is any that a module sets instead."""
    twin = _asking_copy(adapter)
    setattr(twin, name, value)
    callbacks = with_own_adapters(dspy.settings.callbacks or [], twin)
    block: AbstractContextManager[None] = dspy.context(adapter=twin, callbacks=callbacks)
    return block


def with_own_adapters(callbacks: list[Any], adapter: Any) -> list[Any]:
    """Callbacks with which an adapter that a module sets itself changes requests as this one does, if it does."""
    if not isinstance(adapter, AsksAnew):
        return callbacks
    return [*[one for one in callbacks if not isinstance(one, OwnAdapters)], OwnAdapters(adapter)]


def _asking_copy(adapter: Any) -> Any:
    twin = copy.copy(adapter)
    kind: Any = type(adapter)
    twin.__class__ = _asking_anew(kind)
    return twin


def _combined(first: int, second: int) -> int:
    """A rollout id for a pair of them: large, so that it is none of those that are counted up from a small number.

    A sum would not do: `BestOfN` in a trial counts up from the number of the trial, and so would meet the next trials.
    """
    digest = blake2b(f"{first} {second}".encode(), digest_size=6).digest()
    return 2**48 + int.from_bytes(digest, "big")


def asked_adapter() -> Any:
    """The adapter that makes the requests of predictors here."""
    return dspy.settings.adapter or dspy.ChatAdapter()


class AsksAnew:
    """The part of an adapter that adds a rollout id to each request, to that of the LM or of the predictor."""

    def __call__(self, lm: Any, lm_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Make the request in sync code."""
        return super().__call__(lm, self._changed(lm, lm_kwargs), *args, **kwargs)  # type: ignore[misc]

    async def acall(self, lm: Any, lm_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Make the request in async code."""
        return await super().acall(lm, self._changed(lm, lm_kwargs), *args, **kwargs)  # type: ignore[misc]

    def _changed(self, lm: Any, lm_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        given = {**getattr(lm, "kwargs", {}), **lm_kwargs}
        rollout_id, temperature = given.get("rollout_id") or 0, given.get("temperature")
        trial: Rollout | None = getattr(self, _ROLLOUT, None)
        if trial is not None:
            rollout_id = _combined(rollout_id, trial.number) if rollout_id else trial.number
            temperature = lm_kwargs.get("temperature") or trial.temperature
        # At temperature 0 the same prompt gives the same response, which could not be used.
        temperature = 1.0 if not temperature and trial is None else temperature
        return {**lm_kwargs, "rollout_id": rollout_id + getattr(self, _ADDED, 0), "temperature": temperature}


@cache
def _asking_anew(adapter_class: Any) -> Any:
    """The class with the same name, by which DSPy's stream listeners know an adapter, that asks for new responses."""
    if issubclass(adapter_class, AsksAnew):
        return adapter_class
    made = type(adapter_class.__name__, (AsksAnew, adapter_class), {"__module__": adapter_class.__module__})
    for name in ("format", "parse"):  # each subclass of `dspy.Adapter` calls the callbacks of these once more
        if name in vars(made):
            delattr(made, name)
    return made


class OwnAdapters(BaseCallback):
    """Changes the requests of modules that set an adapter of their own, by `dspy.context(adapter=...)`."""

    def __init__(self, asking: AsksAnew) -> None:
        self._asking = asking
        self._blocks: dict[str, AbstractContextManager[None]] = {}  # by the id of the module call

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Replace the adapter for the call of a module by a copy that changes requests, if it is none."""
        del instance, inputs
        adapter = asked_adapter()
        if isinstance(adapter, AsksAnew):
            return
        twin = _asking_copy(adapter)
        for name in (_ADDED, _ROLLOUT):
            if hasattr(self._asking, name):
                setattr(twin, name, getattr(self._asking, name))
        self._blocks[call_id] = block = dspy.context(adapter=twin)
        block.__enter__()

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Put back the adapter."""
        del outputs, exception
        block = self._blocks.pop(call_id, None)
        if block is not None:
            block.__exit__(None, None, None)


class LMRetryNotes(Subscriber):
    """Notes on the exception of an LM call how often the LM was allowed to repeat the request (`is_transient`)."""

    def ended(self, call: TappedCall) -> None:
        """Mark what the call has raised."""
        if call.error is None or retries_of_lm(call.error) or any(one.emitted for one in _adapter_calls.get()):
            return  # of a stream that has shown a token, `dspy.LM` repeats nothing
        if isinstance(call.lm, dspy.LM):  # another `BaseLM` makes each request once
            mark_lm_retries(call.error, call.lm.num_retries)
