"""Calls of functions with LangGraph's `@task`: effects of the node that makes them, which are made once."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from dspyer.errors import GraphError
from dspyer.nodes.context import Context


class TaskCalls:
    """What LangGraph calls for each call of a task. A node that runs again gets the recorded results, in their order.

    A task of a sync node runs when it is called, and not in the background. `name` is that of the node, or of its error
    handler.
    """

    def __init__(self, ctx: Context, name: str) -> None:
        self.ctx, self.name = ctx, name
        self._numbers = itertools.count()
        self._results: dict[str, Any] = {}  # in this attempt, whose effects have a key each

    def begin(self) -> None:
        """Count anew: the code of the node runs from its start."""
        self._numbers = itertools.count()

    def __call__(
        self, function: Callable[..., Any], given: tuple[Sequence[Any], Mapping[str, Any]], **options: Any
    ) -> Future[Any] | asyncio.Future[Any]:
        name = getattr(function, "__name__", "task")
        policies = [key for key in ("retry_policy", "cache_policy", "timeout") if options.get(key)]
        if policies:
            raise GraphError(
                f"the task {name!r}, which node {self.name!r} calls, has a {policies[0]}: make it a node with that "
                "policy, or call a plain function"
            )
        key = f"{self.name}.{name}-{next(self._numbers)}"
        args, kwargs = given

        def call() -> Any:
            return function(*args, **kwargs)

        async def async_call() -> Any:
            return await function(*args, **kwargs)

        def result() -> Any:
            self._results[key] = found = self.ctx.once(key, call)
            return found

        async def async_result() -> Any:
            self._results[key] = found = await self.ctx.once(key, async_call)
            return found

        if key in self._results:
            return _done(lambda: self._results[key])
        if not inspect.iscoroutinefunction(function):
            return _done(result)
        started: asyncio.Future[Any] = asyncio.ensure_future(async_result())
        return started


def _done(call: Callable[[], Any]) -> Future[Any] | asyncio.Future[Any]:
    """A future with the result of a call: one that can be awaited, if the caller is async code."""
    future: Future[Any] | asyncio.Future[Any]
    try:
        future = asyncio.get_running_loop().create_future()
    except RuntimeError:
        future = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - the caller gets it from the future
        future.set_exception(error)
    return future
