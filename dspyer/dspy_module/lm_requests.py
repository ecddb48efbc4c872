"""What a later attempt asks an LM, and whether the LM has repeated a request already.

DSPy caches every response, also one that did not parse. So an attempt that follows such a response must not make the
same request: it adds a *rollout id*, which DSPy has for that purpose, in the adapter. All modules of DSPy make their
requests through it (`ReAct`, `BestOfN`, a predictor with an LM of its own), and the trace keeps the program's own
predictors.

An attempt that follows a transport error repeats its requests as they were, so the cache may serve those that
succeeded. There `dspy.LM` may have repeated the request itself; only its callbacks tell which LM made it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final

import dspy
from dspy.clients.call_context import _adapter_calls  # whether a token was shown, for DSPy's own fallback
from dspy.utils.callback import BaseCallback

from dspyer.errors import mark_lm_retries, retries_of_lm

STRIDE: Final = 10**6
"""The distance between the rollout ids of two attempts. `BestOfN` and the like count up from the LM's own id by 1."""

_ADDED = "_dspyer_added_rollouts"


def with_new_responses(number: int) -> AbstractContextManager[None]:
    """A block whose requests differ from those of all other numbers, also in DSPy's cache. Blocks may be nested.

    With 0 they stay as they are.
    """
    if not number:
        return nullcontext()
    adapter = dspy.settings.adapter or dspy.ChatAdapter()
    twin = copy.copy(adapter)
    kind: Any = type(adapter)
    twin.__class__ = _asking_anew(kind)
    setattr(twin, _ADDED, getattr(adapter, _ADDED, 0) + STRIDE * number)
    block: AbstractContextManager[None] = dspy.context(adapter=twin)
    return block


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
        rollout_id = (given.get("rollout_id") or 0) + getattr(self, _ADDED)
        # At temperature 0 the same prompt gives the same response, which could not be used.
        return {**lm_kwargs, "rollout_id": rollout_id, "temperature": given.get("temperature") or 1.0}


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


class LMRetryNotes(BaseCallback):
    """Notes on the exception of an LM call how often the LM was allowed to repeat the request (`is_transient`)."""

    def __init__(self) -> None:
        self._lms: dict[str, Any] = {}

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Remember the LM of a call."""
        del inputs
        self._lms[call_id] = instance

    def on_lm_end(self, call_id: str, outputs: dict[str, Any] | None, exception: BaseException | None = None) -> None:
        """Mark what the call has raised."""
        del outputs
        lm = self._lms.pop(call_id, None)
        if exception is None or retries_of_lm(exception) or any(call.emitted for call in _adapter_calls.get()):
            return  # of a stream that has shown a token, `dspy.LM` repeats nothing
        if isinstance(lm, dspy.LM):  # another `BaseLM` makes each request once
            mark_lm_retries(exception, lm.num_retries)


def noting_lm_retries() -> dict[str, Any]:
    """DSPy settings under which exceptions of LM calls are marked; `{}` if a run around this one has them."""
    callbacks = dspy.settings.callbacks or []
    if any(isinstance(callback, LMRetryNotes) for callback in callbacks):
        return {}
    return {"callbacks": [*callbacks, LMRetryNotes()]}
