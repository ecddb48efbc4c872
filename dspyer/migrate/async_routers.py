"""Routers that are `async def`: a router of dspyer is a plain function, so that one which awaits is refused.

Many are `async def` by habit and await nothing: such a coroutine ends at its first step, and needs no event loop.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from copy import copy
from types import CodeType
from typing import Any

from dspyer.migrate.code_reading import main_function
from dspyer.migrate.internals import RunnableCallable


def has_sync_form(path: Any) -> bool:
    """Whether a router can be called without an event loop."""
    if not _is_async(path):
        return True
    fn = main_function(path)
    return fn is not None and inspect.iscoroutinefunction(fn) and not _awaits(fn.__code__)


def sync_form(path: Any) -> Any:
    """The router with a sync form: itself, or one that takes the single step of its coroutine."""
    if not _is_async(path):
        return path
    made = copy(path)  # it has read what the parameters ask for
    made.func = _one_step(path.afunc)
    return made


def _is_async(path: Any) -> bool:
    """Whether a router has only an async form."""
    return isinstance(path, RunnableCallable) and path.func is None


def _awaits(code: CodeType) -> bool:
    """Whether code awaits; `async for` and `async with` do, too. What a function inside of it awaits is its own."""
    return any(step.opname in {"GET_AWAITABLE", "GET_ANEXT"} for step in dis.get_instructions(code))


def _one_step(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        coroutine = fn(*args, **kwargs)
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
        coroutine.close()
        raise AssertionError("a coroutine without an await has waited")

    return call
