"""Hundreds of concurrent runs of one compiled program, in threads and in tasks: each gets its own results. S001-11."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Run, Send, reducers
from dspyer.testing import NearestLM, ScriptedLM
from tests.nodes.kit import MODES

RUNS = 120


class Client:
    """A resource that is each run's own."""

    def __init__(self, name: str) -> None:
        self.name = name


class Order(BaseModel):
    number: int
    parts: Annotated[list[int], reducers.extend] = []
    seen: Annotated[dict[str, str], reducers.update] = {}
    total: int = 0
    said: str = ""


class Gate:
    """Lets the first nodes of some runs continue when all of them have begun, so that the runs are truly concurrent."""

    def __init__(self, runs: int) -> None:
        self.threads = threading.Barrier(runs)
        self.missing = runs
        self.tasks = asyncio.Event()

    def wait(self) -> None:
        self.threads.wait(60)

    async def await_all(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.tasks.set()
        await asyncio.wait_for(self.tasks.wait(), 60)


def program(mode: str, gate: Gate) -> CompiledGraph:
    def enter(number: int, client: Client, ctx: Context) -> dict[str, Any]:
        gate.wait()
        return {"parts": [number], "seen": {"enter": f"{client.name} {ctx.run_id}"}}

    async def aenter(number: int, client: Client, ctx: Context) -> dict[str, Any]:
        await gate.await_all()
        return {"parts": [number], "seen": {"enter": f"{client.name} {ctx.run_id}"}}

    inner = Graph(Order, inputs=["number"], outputs=["said"])
    inner.add_node("speak", lambda number: {"said": f"order {number}"}, writes=["said"]).add_path(START, "speak", END)
    graph = Graph(Order, inputs=["number"])
    graph.add_node("enter", enter if mode == "sync" else aenter, writes=["parts", "seen"])
    graph.add_node("work", lambda item, number: {"parts": [item + number]}, writes=["parts"])
    graph.add_node("inner", inner.compile())
    graph.add_node("sum", lambda parts: {"total": sum(parts)}, writes=["total"])
    graph.add_edge(START, "enter").add_edge("enter", "inner").add_edge(["work", "inner"], "sum").add_edge("sum", END)
    graph.add_conditional_edges(
        "enter", lambda number: [Send("work", {"item": item}) for item in range(number % 3 + 1)], ["work"]
    )
    return graph.compile(store=":memory:", max_concurrency=1)


def run_all(mode: str, one: Callable[[int], Any], aone: Callable[[int], Any], runs: int) -> list[Any]:
    """The results of runs at once, in the order of their numbers."""
    if mode == "sync":
        with ThreadPoolExecutor(runs) as threads:
            return list(threads.map(one, range(runs)))

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(aone(number) for number in range(runs)))

    return asyncio.run(all_of_them())


def check(number: int, run: Run) -> None:
    items = [item + number for item in range(number % 3 + 1)]
    assert run.error is None, run.error
    assert run.state["number"] == number
    assert list(run.state["parts"]) == [number, *items]
    assert run.state["total"] == number + sum(items)
    assert run.state["said"] == f"order {number}"
    assert run.state["seen"]["enter"] == f"client {number} {run.run_id}"
    assert run.blame("total").node == ("sum" if number else "START")  # a total of 0 was there before
    assert [commit.node for commit in run.commits if commit.node in ("enter", "sum")] == ["enter", "sum"]


@pytest.mark.parametrize(("mode", "stored"), [("sync", False), ("async", False), ("sync", True), ("async", True)])
def test_concurrent_runs_are_not_mixed(mode: str, stored: bool) -> None:
    runs = 50 if stored else RUNS
    made = program(mode, Gate(runs))

    def one(number: int) -> Run:
        where = made.thread(f"t{number}") if stored else made
        return where.run({"number": number}, resources=[Client(f"client {number}")])

    async def aone(number: int) -> Run:
        where = made.thread(f"t{number}") if stored else made
        return await where.arun({"number": number}, resources=[Client(f"client {number}")])

    found = run_all(mode, one, aone, runs)
    for number, run in enumerate(found):
        check(number, run)
    assert len({run.run_id for run in found}) == runs


@MODES
def test_modules_of_concurrent_runs_are_not_mixed(mode: str) -> None:
    """Each run has its LM, its templates and its trace."""
    say = dspy.Predict(dspy.Signature("number: int -> said", "Say {number} as {run.count}."))
    graph = Graph(Order, inputs=["number"], outputs=["said"]).add_node("say", say).add_path(START, "say", END)
    made = graph.compile()

    def lm(number: int) -> ScriptedLM:
        return ScriptedLM(lambda prompt: {"said": f"{number}: {prompt.instructions} {prompt.inputs['number']}"})

    def one(number: int) -> tuple[str, int]:
        with dspy.context(lm=lm(number), trace=[]):
            return made(number=number).said, len(dspy.settings.trace)

    async def aone(number: int) -> tuple[str, int]:
        with dspy.context(lm=lm(number), trace=[]):
            said = (await made.acall(number=number)).said
            return said, len(dspy.settings.trace)

    runs = 100
    found = run_all(mode, one, aone, runs)
    assert found == [(f"{number}: Say {number} as 0. {number}", 1) for number in range(runs)]


def test_a_program_is_tuned_while_it_runs() -> None:
    """A copy that an optimizer makes shares nothing with the program that serves."""
    classify = dspy.Predict("letter -> desk: Literal['support', 'billing']")
    made = Graph().add_node("desk", classify).add_path(START, "desk", END).compile()
    trainset = [dspy.Example(letter=f"refund {n}", desk="billing").with_inputs("letter") for n in range(3)]
    with dspy.context(lm=NearestLM()), ThreadPoolExecutor(8) as threads:
        before = made.desk.dump_state()
        served = [threads.submit(_serve, made, n) for n in range(100)]
        metric = lambda example, found, trace=None: True  # noqa: E731
        tuned = dspy.BootstrapFewShot(metric=metric).compile(made, trainset=trainset)
        assert [each.result() for each in served] == [_serve(made, n) for n in range(100)]
        assert tuned.desk.demos
        assert made.desk.dump_state() == before


def _serve(made: CompiledGraph, number: int) -> str:
    with dspy.context(lm=NearestLM()):
        return str(made(letter=f"letter {number}").desk)
