"""How the cache of `optimize.cache` gets between a node and the modules that it calls.

The cache (`runtime.module_cache`) sets an interceptor for the steps of each attempt of a node, an item, a router or a
condenser. `call_module` and `acall_module` hand their calls to it. Without such a cache there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

import dspy


class CallInterceptor(Protocol):
    """What the calls of modules are handed to."""

    def call_module(self, module: dspy.Module, inputs: Mapping[str, Any], /) -> Any:
        """What a module returns, from the cache if it is there, in sync code."""

    async def acall_module(self, module: dspy.Module, inputs: Mapping[str, Any], /) -> Any:
        """The same in async code."""


call_interceptor: Final[ContextVar[CallInterceptor | None]] = ContextVar("dspyer_call_interceptor", default=None)


@contextmanager
def intercepted_by(interceptor: CallInterceptor | None) -> Iterator[None]:
    """A block whose calls of modules are handed to an interceptor; to none, if it is None."""
    token = call_interceptor.set(interceptor)
    try:
        yield
    finally:
        call_interceptor.reset(token)
