"""Sync code calls async functions and the other way round, with context variables and errors intact."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

import anyio
import dspy
import pytest

from dspyer.nodes.sync_async import (
    acall_module,
    async_bridge,
    call_async,
    call_modes,
    call_module,
    is_async,
    to_thread,
    uses_acall,
)
from tests.nodes.kit import MODES, run_node
from tests.rows import each

WHERE: ContextVar[str] = ContextVar("WHERE", default="nowhere")


async def place() -> tuple[str, int]:
    await anyio.lowlevel.checkpoint()
    return WHERE.get(), threading.get_ident()


def sync_place() -> tuple[str, int]:
    return WHERE.get(), threading.get_ident()


@pytest.fixture(autouse=True)
def _here() -> Any:
    token = WHERE.set("here")
    yield
    WHERE.reset(token)


def test_async_code_from_a_plain_thread_keeps_context_variables() -> None:
    where, thread = call_async(place, {})
    assert where == "here"
    assert thread != threading.get_ident()


@each("name", ["work", "call", "self", "fn", "kwargs", "limiter"])
def test_a_parameter_of_any_name_reaches_a_sync_function_that_async_code_calls(name: str) -> None:
    def gives(**given: int) -> dict[str, int]:
        return given

    async def main() -> dict[str, int]:
        return await to_thread(gives, {name: 1})

    assert anyio.run(main) == {name: 1}


def test_calls_to_worker_threads_wait_for_no_token() -> None:
    """With a limit of any size, as many calls that wait for one another would wait for ever."""
    number = 60
    together = threading.Barrier(number, timeout=60)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(number):
                group.start_soon(to_thread, together.wait, {})

    anyio.run(main)


def test_async_code_from_a_thread_with_a_running_loop() -> None:
    async def notebook() -> tuple[str, int]:
        return call_async(place, {})

    assert asyncio.run(notebook())[0] == "here"


def test_async_code_from_an_anyio_worker_thread_runs_on_its_loop() -> None:
    async def main() -> tuple[int, tuple[str, int]]:
        return threading.get_ident(), await to_thread(call_async, {"fn": place, "kwargs": {}})

    loop_thread, found = anyio.run(main)
    assert found == ("here", loop_thread)


@pytest.fixture
def own_threads() -> Callable[[], int]:
    """How many threads of event loops there are beside those that other tests have left."""

    def all_threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "dspyer-async"}

    before = all_threads()
    return lambda: len(all_threads() - before)


def test_one_loop_for_all_calls_of_a_scope(own_threads: Callable[[], int]) -> None:
    with async_bridge():
        assert own_threads() == 0
        threads = {call_async(place, {})[1] for _ in range(3)}
        assert (len(threads), own_threads()) == (1, 1)
    assert own_threads() == 0
    with async_bridge():
        pass


def test_a_call_after_the_end_of_the_bridge_gets_a_loop_of_its_own(own_threads: Callable[[], int]) -> None:
    with async_bridge():
        call_async(place, {})
        later = copy_context()
    assert later.run(call_async, place, {})[0] == "here"
    assert own_threads() == 0


def test_a_program_in_an_async_function_of_another_does_not_wait_for_itself() -> None:
    async def inner() -> str:
        return WHERE.get()

    async def outer() -> list[str]:
        found = [call_async(inner, {})]
        with async_bridge():
            found.append(call_async(inner, {}))
            worker = threading.Thread(target=lambda: found.append(call_async(inner, {})))
            worker.start()
            worker.join()
        return found

    with async_bridge():
        assert call_async(outer, {}) == ["here", "here", "nowhere"]


@pytest.mark.parametrize("error", [ValueError("mine"), RuntimeError("mine"), KeyError("mine")])
@pytest.mark.parametrize("worker", [False, True])
def test_errors_come_through_unwrapped_and_the_call_is_made_once(error: Exception, worker: bool) -> None:
    calls = []

    async def fails() -> None:
        calls.append(1)
        raise error

    async def main() -> None:
        await to_thread(call_async, {"fn": fails, "kwargs": {}})

    with pytest.raises(type(error)) as caught:
        anyio.run(main) if worker else call_async(fails, {})
    assert caught.value is error
    assert calls == [1]


def test_sync_code_from_async_code_runs_in_a_worker_thread_with_its_context() -> None:
    async def main() -> tuple[str, int]:
        return await to_thread(sync_place, {})

    where, thread = anyio.run(main)
    assert where == "here"
    assert thread != threading.get_ident()


def test_worker_threads_do_not_wait_for_each_other() -> None:
    async def nested(depth: int) -> int:
        if depth == 0:
            return 0
        inner: int = await to_thread(call_async, {"fn": nested, "kwargs": {"depth": depth - 1}})
        return 1 + inner

    async def main() -> int:
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        return await nested(10)

    assert anyio.run(main) == 10


@MODES
def test_functions_of_both_modes_see_the_callers_context(mode: str) -> None:
    def sync_node() -> dict[str, str]:
        return {"where": WHERE.get()}

    async def async_node() -> dict[str, str]:
        return {"where": WHERE.get()}

    for fn in (sync_node, async_node):
        with dspy.context(trace=[]):
            assert run_node(fn, mode=mode).updates == {"where": "here"}


def test_dspy_settings_reach_both_modes() -> None:
    async def traced() -> None:
        dspy.settings.trace.append("step")

    for mode in ("sync", "async"):
        with dspy.context(trace=[]):
            run_node(traced, mode=mode)
            assert dspy.settings.trace == ["step"]


# --- modules


class Both(dspy.Module):
    def forward(self) -> dspy.Prediction:
        return dspy.Prediction(by="forward")

    async def aforward(self) -> dspy.Prediction:
        return dspy.Prediction(by="aforward")


class OnlySync(dspy.Module):
    def forward(self) -> dspy.Prediction:
        return dspy.Prediction(by="forward")


class OnlyAsync(dspy.Module):
    async def aforward(self) -> dspy.Prediction:
        return dspy.Prediction(by="aforward")


class OverridesForward(Both):
    def forward(self) -> dspy.Prediction:
        return dspy.Prediction(by="own forward")


class OverridesAforward(Both):
    async def aforward(self) -> dspy.Prediction:
        return dspy.Prediction(by="own aforward")


class OverridesBoth(OverridesForward, OverridesAforward):
    def forward(self) -> dspy.Prediction:
        return dspy.Prediction(by="both forward")

    async def aforward(self) -> dspy.Prediction:
        return dspy.Prediction(by="both aforward")


class Neither(dspy.Module):
    pass


class AsyncCallable:
    async def __call__(self) -> None: ...


class Mixin:
    def forward(self) -> dspy.Prediction:
        return dspy.Prediction(by="mixin")


class Mixed(Mixin, Both):
    pass


@each(
    ("kind", "found", "sync", "asynchronous"),
    [
        (Both, {"sync", "async"}, "forward", "aforward"),
        (OnlySync, {"sync"}, "forward", "forward"),
        (OnlyAsync, {"async"}, "aforward", "aforward"),
        (OverridesForward, {"sync"}, "own forward", "own forward"),
        (OverridesAforward, {"async"}, "own aforward", "own aforward"),
        (OverridesBoth, {"sync", "async"}, "both forward", "both aforward"),
        (Mixed, {"sync"}, "mixin", "mixin"),
    ],
)
def test_the_nearer_of_forward_and_aforward_counts(
    kind: type[dspy.Module], found: set[str], sync: str, asynchronous: str
) -> None:
    module = kind()
    assert call_modes(module) == found
    assert uses_acall(module) == ("async" in found)
    assert call_module(module, {}).by == sync
    assert anyio.run(acall_module, module, {}).by == asynchronous


def test_a_module_without_either_has_no_mode() -> None:
    assert call_modes(Neither()) == frozenset()


def test_a_forward_set_on_the_instance_counts_but_a_left_over_original_does_not() -> None:
    module = Both()
    module.__dict__["forward"] = Both.forward.__get__(module)
    assert call_modes(module) == {"sync", "async"}
    module.__dict__["forward"] = lambda: dspy.Prediction(by="patched")
    assert call_modes(module) == {"sync"}


@each(
    ("fn", "expected"),
    [
        (place, True),
        (functools.partial(place), True),
        (AsyncCallable(), True),
        (sync_place, False),
        (lambda: None, False),
        (print, False),
    ],
)
def test_is_async_sees_partials_and_callable_objects(fn: Any, expected: bool) -> None:
    assert is_async(fn) == expected


def test_no_thread_of_the_default_limiter_is_taken() -> None:
    async def main() -> float:
        limiter = anyio.to_thread.current_default_thread_limiter()
        return await to_thread(lambda: limiter.borrowed_tokens, {})

    assert anyio.run(main) == 0
