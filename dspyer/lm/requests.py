"""Requests of a later attempt, or another trial of a search: responses that no cache has.

DSPy caches every response, also one that did not parse. So an attempt that follows such a response must not make the
same request: it adds a *rollout id*, which DSPy has for that purpose, in the adapter. All modules of DSPy make their
requests through it (`ReAct`, `BestOfN`, a predictor with an LM of its own), and the trace keeps the program's own
predictors. An attempt that follows a transport error repeats its requests as they were: the cache may serve those that
succeeded.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import dspy

from dspyer.lm.not_public import BaseCallback

STRIDE: Final = 10**6
"""The distance between the rollout ids of two attempts. `BestOfN` and the like count up from the LM's own id by 1."""


class Asking(NamedTuple):
    """Changes of an adapter to requests: what it adds to rollout ids, and the trial around, with its temperature."""

    added: int = 0
    trial: int | None = None
    temperature: float = 1.0


def with_new_responses(number: int) -> AbstractContextManager[None]:
    """A block whose requests differ from those of all other numbers, also in DSPy's cache. Blocks may be nested.

    With 0 they stay as they are.
    """
    if not number:
        return nullcontext()
    asking = _asking_here()
    return _asking_block(asking._replace(added=asking.added + STRIDE * number))


def in_rollout(number: int, temperature: float) -> AbstractContextManager[None]:
    """A block whose requests are those of one trial: each LM has the rollout id `number` there, as in `dspy.BestOfN`.

    In a trial around this one they differ from the requests of all other trials. The temperature is for predictors
    that have none.
    """
    asking = _asking_here()
    number = number if asking.trial is None else _combined(asking.trial, number)
    return _asking_block(asking._replace(trial=number, temperature=temperature))


def _asking_here() -> Asking:
    adapter = asked_adapter()
    return adapter.asking if isinstance(adapter, AsksAnew) else Asking()


def _asking_block(asking: Asking) -> AbstractContextManager[None]:
    """A block in which the adapter is a copy that changes requests, and so is any that a module sets instead."""
    twin = _asking_copy(asked_adapter(), asking)
    callbacks = with_own_adapters(dspy.settings.callbacks or [], twin)
    block: AbstractContextManager[None] = dspy.context(adapter=twin, callbacks=callbacks)
    return block


def with_own_adapters(callbacks: list[Any], adapter: Any) -> list[Any]:
    """Callbacks with which an adapter that a module sets itself changes requests as this one does, if it does."""
    if not isinstance(adapter, AsksAnew):
        return callbacks
    return [*[one for one in callbacks if not isinstance(one, OwnAdapters)], OwnAdapters(adapter.asking)]


def _asking_copy(adapter: Any, asking: Asking) -> Any:
    twin = copy.copy(adapter)
    kind: Any = type(adapter)
    twin.__class__ = _asking_anew(kind)
    twin.asking = asking
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

    asking = Asking()

    def __call__(self, lm: Any, lm_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Make the request in sync code."""
        return super().__call__(lm, self._changed(lm, lm_kwargs), *args, **kwargs)  # type: ignore[misc]

    async def acall(self, lm: Any, lm_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Make the request in async code."""
        return await super().acall(lm, self._changed(lm, lm_kwargs), *args, **kwargs)  # type: ignore[misc]

    def _changed(self, lm: Any, lm_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        given = {**getattr(lm, "kwargs", {}), **lm_kwargs}
        rollout_id, temperature = given.get("rollout_id") or 0, given.get("temperature")
        added, trial, of_trial = self.asking
        if trial is not None:
            rollout_id = _combined(rollout_id, trial) if rollout_id else trial
            temperature = lm_kwargs.get("temperature") or of_trial
        # At temperature 0 the same prompt gives the same response, which could not be used.
        temperature = 1.0 if not temperature and trial is None else temperature
        return {**lm_kwargs, "rollout_id": rollout_id + added, "temperature": temperature}


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

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._blocks: dict[str, AbstractContextManager[None]] = {}  # by the id of the module call

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Replace the adapter for the call of a module by a copy that changes requests, if it is none."""
        del instance, inputs
        adapter = asked_adapter()
        if isinstance(adapter, AsksAnew):
            return
        self._blocks[call_id] = block = dspy.context(adapter=_asking_copy(adapter, self._asking))
        block.__enter__()

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Put back the adapter."""
        del outputs, exception
        block = self._blocks.pop(call_id, None)
        if block is not None:
            block.__exit__(None, None, None)
