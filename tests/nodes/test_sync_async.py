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

from dspyer import END, START, CompiledGraph, Graph, Run
from dspyer.testing import call_node
from tests.nodes.kit import MODES
from tests.rows import each

WHERE: ContextVar[str] = ContextVar("WHERE", default="nowhere")


async def place() -> dict[str, Any]:
    await anyio.lowlevel.checkpoint()
    return {"where": WHERE.get(), "thread": threading.get_ident()}


def sync_place() -> dict[str, Any]:
    return {"where": WHERE.get(), "thread": threading.get_ident()}


@pytest.fixture(autouse=True)
def _here() -> Any:
    token = WHERE.set("here")
    yield
    WHERE.reset(token)


def program_of(*nodes: Any, **options: Any) -> CompiledGraph:
    """A chain of nodes."""
    graph = Graph(**options)
    for number, node in enumerate(nodes):
        graph.add_node(f"n{number}", node)
    return graph.add_path(START, *(f"n{number}" for number in range(len(nodes))), END).compile()


def run(program: CompiledGraph, mode: str = "sync", **inputs: Any) -> dict[str, Any]:
    """The last state of a run in sync or async code."""
    ran: Run = program.run(inputs) if mode == "sync" else asyncio.run(program.arun(inputs))
    ran.raise_error()
    return ran.state.to_dict()


def test_async_code_from_a_plain_thread_keeps_context_variables() -> None:
    found = run(program_of(place))
    assert found["where"] == "here"
    assert found["thread"] != threading.get_ident()


@MODES
@each("name", ["work", "call", "fn", "kwargs", "limiter", "func"])
def test_a_parameter_of_any_name_reaches_a_function_of_the_other_mode(name: str, mode: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"{'async ' * (mode == 'sync')}def gives({name}): return {{'found': {name} + 1}}", namespace)
    assert run(program_of(namespace["gives"]), mode, **{name: 1})["found"] == 2


def test_calls_to_worker_threads_wait_for_no_token() -> None:
    """With a limit of any size, as many calls that wait for one another would wait for ever."""
    together = threading.Barrier(60, timeout=60)
    graph = Graph().add_map("wait", lambda n: together.wait(), over="ns", item="n", into="places", max_concurrency=60)
    found = run(graph.add_path(START, "wait", END).compile(max_concurrency=60), "async", ns=[*range(60)])
    assert sorted(found["places"]) == [*range(60)]


def test_async_code_from_a_thread_with_a_running_loop() -> None:
    async def notebook() -> dict[str, Any]:
        return run(program_of(place))

    assert asyncio.run(notebook())["where"] == "here"


def test_async_code_from_an_anyio_worker_thread_runs_on_its_loop() -> None:
    async def main() -> tuple[int, dict[str, Any]]:
        return threading.get_ident(), await dspy.asyncify(run)(program_of(place))

    loop_thread, found = asyncio.run(main())
    assert found == {"where": "here", "thread": loop_thread}


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "dspyer-async"}


def test_one_loop_for_all_calls_of_a_run() -> None:
    before, threads, counts = own_threads(), list[int](), list[int]()

    def count() -> None:
        counts.append(len(own_threads() - before))

    async def asynchronous() -> None:
        threads.append(threading.get_ident())

    run(program_of(count, asynchronous, asynchronous, count, asynchronous))
    assert (len(threads), len(set(threads)), counts) == (3, 1, [0, 1])
    assert own_threads() <= before


def test_a_call_after_the_end_of_the_run_gets_a_loop_of_its_own() -> None:
    before, contexts = own_threads(), list[Any]()
    run(program_of(place, lambda: contexts.append(copy_context())))
    assert contexts[0].run(call_node, program_of(place), "n0", {})["where"] == "here"
    assert own_threads() <= before


def test_a_program_in_an_async_function_of_another_does_not_wait_for_itself() -> None:
    async def outer() -> dict[str, Any]:
        found = [run(program_of(place))["where"], call_node(program_of(place), "n0", {})["where"]]
        worker = threading.Thread(target=lambda: found.append(run(program_of(place))["where"]))
        worker.start()
        worker.join()
        return {"found": found}

    assert run(program_of(outer))["found"] == ["here", "here", "nowhere"]


@pytest.mark.parametrize("worker", [False, True])
@each("error", [ValueError("mine"), RuntimeError("mine"), KeyError("mine")])
def test_errors_come_through_unwrapped_and_the_call_is_made_once(error: Exception, worker: bool) -> None:
    calls = []

    async def fails() -> None:
        calls.append(1)
        raise error

    program = program_of(fails)
    found = asyncio.run(dspy.asyncify(program.run)({})) if worker else program.run({})
    assert found.error is error
    assert calls == [1]


def test_sync_code_from_async_code_runs_in_a_worker_thread_with_its_context() -> None:
    found = run(program_of(sync_place), "async")
    assert found["where"] == "here"
    assert found["thread"] != threading.get_ident()


def test_worker_threads_do_not_wait_for_each_other() -> None:
    """Nor is one of the default limiter taken: it may have a single one."""
    borrowed: list[float] = []

    async def main() -> Any:
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1

        def sync_node(depth: int) -> dict[str, int]:
            borrowed.append(limiter.borrowed_tokens)
            return {"found": run(goes_down, depth=depth)["found"] if depth else 0}

        async def async_node(depth: int) -> dict[str, int]:
            return {"found": 1 + (await goes_up.arun({"depth": depth - 1})).state["found"]}

        goes_up, goes_down = program_of(sync_node), program_of(async_node)
        return (await goes_up.arun({"depth": 4})).state["found"]

    assert (asyncio.run(main()), borrowed) == (4, [0] * 5)


@MODES
def test_functions_of_both_modes_see_the_callers_context_and_settings(mode: str) -> None:
    found = []

    async def traced() -> None:
        found.append((WHERE.get(), dspy.settings.max_errors))

    def sync_traced() -> None:
        found.append((WHERE.get(), dspy.settings.max_errors))

    with dspy.context(max_errors=77):
        run(program_of(traced, sync_traced), mode)
    assert found == [("here", 77)] * 2


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


class Mixin:
    def forward(self) -> dspy.Prediction:
        return dspy.Prediction(by="mixin")


class Mixed(Mixin, Both):
    pass


def patched(forward: Callable[[Both], Any]) -> Both:
    """A module with a `forward` of its own on the instance."""
    module = Both()
    module.__dict__["forward"] = forward(module)
    return module


@each(
    ("make", "sync", "asynchronous"),
    [
        (Both, "forward", "aforward"),
        (OnlySync, "forward", "forward"),
        (OnlyAsync, "aforward", "aforward"),
        (OverridesForward, "own forward", "own forward"),
        (OverridesAforward, "own aforward", "own aforward"),
        (OverridesBoth, "both forward", "both aforward"),
        (Mixed, "mixin", "mixin"),
        (lambda: patched(lambda module: lambda: dspy.Prediction(by="patched")), "patched", "patched"),
        (lambda: patched(Both.forward.__get__), "forward", "aforward"),  # a left-over original
    ],
)
def test_the_nearer_of_forward_and_aforward_counts(make: Callable[[], Any], sync: str, asynchronous: str) -> None:
    program = program_of(make())
    assert run(program)["by"] == sync
    assert run(program, "async")["by"] == asynchronous


class AsyncCallable:
    async def __call__(self) -> dict[str, Any]:
        return await place()


def gives_awaitable() -> Any:
    return place()


class SyncCallable:
    def __call__(self) -> dict[str, Any]:
        return sync_place()


@each("fn", [place, functools.partial(place), functools.partial(functools.partial(place)), AsyncCallable()])
def test_async_partials_and_callable_objects_run_on_the_loop(fn: Any) -> None:
    assert run(program_of(fn), "async")["thread"] == threading.get_ident()
    assert run(program_of(fn))["where"] == "here"


@each("fn", [sync_place, functools.partial(sync_place), SyncCallable(), gives_awaitable])
def test_other_callables_run_in_a_thread_or_here(fn: Any) -> None:
    """And what they return may be an awaitable."""
    assert run(program_of(fn), "async")["where"] == "here"
    assert run(program_of(fn))["where"] == "here"
