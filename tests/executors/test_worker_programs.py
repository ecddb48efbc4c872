"""What a worker keeps: the last programs. And what the caller keeps: nothing but the calls in flight."""

from __future__ import annotations

import asyncio
import gc
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from typing import Any

import dspy
import pytest

from dspyer import END, START, CompiledGraph, Graph, Run
from dspyer.errors import ExecutorLost
from tests.executors.pools import BytesExecutor
from tests.executors.programs import WordLM

loads: list[str] = []
together = Barrier(2, timeout=30)


class Loaded(dspy.Module):
    """Notes when a worker loads it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, n: int) -> dspy.Prediction:
        return dspy.Prediction(found=f"{self.name}{n}")

    def __setstate__(self, state: dict[str, Any]) -> None:
        loads.append(state["name"])
        super().__setstate__(state)


def named(name: str) -> CompiledGraph:
    graph = Graph().add_node("node", Loaded(name), reads=["n"], writes=["found"])
    return graph.add_path(START, "node", END).compile()


def meet(n: int) -> dict[str, int]:
    together.wait()
    return {"twice": 2 * n}


def test_a_worker_loads_a_program_once_and_keeps_the_last_eight(pool: BytesExecutor) -> None:
    programs = [named(name).with_executor(pool) for name in "abcdefghi"]
    loads.clear()  # of the copies that `compile` makes
    for program in programs[:8]:
        program(n=1)
        program(n=2)
    assert "".join(loads) == "abcdefgh"
    programs[0](n=3)
    programs[-1](n=1)  # the ninth one: that which was not called for the longest time goes
    assert programs[0](n=4).found == "a4"
    assert "".join(loads) == "abcdefghi"
    programs[1](n=1)
    assert "".join(loads) == "abcdefghib"


def test_a_changed_program_is_another_one(pool: BytesExecutor) -> None:
    far = named("x").with_executor(pool)
    assert far(n=1).found == "x1"
    far.node.name = "y"
    assert far(n=1).found == "y1"


def test_a_worker_with_several_threads_makes_calls_of_one_program_at_once() -> None:
    far = Graph().add_node("meet", meet, writes=["twice"]).add_path(START, "meet", END).compile()
    with BytesExecutor(threads=2) as pool, ThreadPoolExecutor(2) as callers:
        far = far.with_executor(pool)
        found = list(callers.map(lambda n: far(n=n).twice, range(6)))  # each waits in its node for another one
    assert found == [0, 2, 4, 6, 8, 10]


def measure(page: str, notes: list[Any]) -> dict[str, int]:
    return {"size": len(page)}


def test_inputs_do_not_come_back(pool: BytesExecutor) -> None:
    here = Graph().add_node("measure", measure, writes=["size"]).add_path(START, "measure", END).compile()
    page, inner, photo = "p" * 100_000, "i" * 100_000, b"b" * 100_000
    inputs = {"page": page, "notes": [{"one": inner}, [photo, page], "short"]}
    prediction = here.with_executor(pool)(**inputs)
    assert pool.sent[-1] > 300_000
    assert pool.returned[-1] < 5_000
    run = Run.of(prediction)
    assert run.state["page"] is page
    assert run.state.to_dict() == {**inputs, "size": 100_000}


def test_inputs_and_modules_that_hold_themselves_end_no_walk(pool: BytesExecutor) -> None:
    loop: list[Any] = []
    loop.append(loop)
    far = Graph().add_node("measure", measure, writes=["size"]).add_path(START, "measure", END).compile()
    with pytest.raises(Exception, match=r"deep|nested|itself|depth"):
        far.with_executor(pool)(page="p", notes=loop)
    program = named("z")
    program.node.itself = [program.node]
    assert program.with_executor(pool)(n=1).found == "z1"


async def which_loop(kind: str) -> dict[str, Any]:
    if kind == "exit":
        raise SystemExit(3)
    if kind == "cancelled":
        raise asyncio.CancelledError
    return {"loop": id(asyncio.get_running_loop())}


def test_async_calls_of_a_worker_share_a_loop_that_nothing_ends(pool: BytesExecutor) -> None:
    far = Graph().add_node("which", which_loop, writes=["loop"]).add_path(START, "which", END).compile()
    far = far.with_executor(pool)
    first = asyncio.run(far.acall(kind="")).loop
    for kind, error in (("exit", SystemExit), ("cancelled", asyncio.CancelledError)):
        with pytest.raises(error):
            asyncio.run(far.acall(kind=kind))
    assert asyncio.run(far.acall(kind="")).loop == first


def fail(n: int) -> dict[str, int]:
    raise ValueError(n)


def test_nothing_of_a_call_is_kept_and_the_collector_has_nothing_to_free() -> None:
    graph = Graph().add_node("ask", dspy.Predict("q -> a")).add_path(START, "ask", END)
    failing = Graph().add_node("fail", fail, writes=["m"]).add_path(START, "fail", END)
    futures: list[weakref.ref[Future[Any]]] = []

    class Broken(ThreadPoolExecutor):
        def submit(self, *task: Any, **options: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(OSError("lost"))
            futures.append(weakref.ref(future))
            return future

    with BytesExecutor() as pool, Broken() as broken, dspy.context(lm=WordLM(), trace=[]):
        far, odd, lost = graph.compile(), failing.compile().with_executor(pool), failing.compile().with_executor(broken)
        far = far.with_executor(pool)
        far(q="1"), far.run({"q": "1"}), odd.run({"n": 1})
        pool.futures.clear()
        gc.collect()
        gc.disable()
        try:
            prediction = far(q="1")
            run, failed = Run.of(prediction), odd.run({"n": 1})
            kept = [weakref.ref(run), weakref.ref(failed), weakref.ref(prediction)]
            del prediction, run, failed
            with pytest.raises(ValueError, match="1"):
                odd(n=1)
            with pytest.raises(ExecutorLost, match="lost"):
                lost(n=1)
            dspy.settings.trace.clear()
            assert [one() for one in (*kept, *futures)] == [None] * 4
        finally:
            gc.enable()


def test_a_signature_that_was_changed_many_times_is_as_small_as_a_new_one(pool: BytesExecutor) -> None:
    """The fields of a signature refer to those that they were made from: in pydantic, and so in DSPy."""
    here = Graph().add_node("ask", dspy.Predict("q -> a")).add_path(START, "ask", END).compile()
    far = here.with_executor(pool)
    with dspy.context(lm=WordLM()):
        far(q="why")
        for number in range(400):
            far.ask.signature = far.ask.signature.with_instructions(f"Be number {number}.")
        assert far(q="why") == here(q="why")
    assert pool.sent[-1] < 1.05 * pool.sent[-2]
