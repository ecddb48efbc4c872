"""Where the calls of modules meet the cache that a block of code asks for (`runtime.module_cache`).

The cache surrounds each attempt of a node, of an item, of a router and of a condenser. While one of these makes its
steps, its frame is what the modules that it calls are looked up in. Without such a cache there is no frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

import dspy


class ResultFrame(Protocol):
    """One attempt, as the modules that it calls see it."""

    def call_module(self, module: dspy.Module, inputs: Mapping[str, Any], /) -> Any:
        """What a module returns, from the cache if it is there, in sync code."""

    async def acall_module(self, module: dspy.Module, inputs: Mapping[str, Any], /) -> Any:
        """The same in async code."""


result_frame: Final[ContextVar[ResultFrame | None]] = ContextVar("dspyer_result_frame", default=None)
