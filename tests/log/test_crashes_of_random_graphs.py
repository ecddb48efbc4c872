"""Runs of random graphs that crash at random writes, several times, with random orders of completion."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dspyer import START, CompiledGraph, Context, Graph, Run, Send, Thread
from tests.log.equality import finished, left_to_call, outcome
from tests.log.failing import Crash, Failing, FailingMemory, crash
from tests.log.kinds import CALLS, Called
from tests.runtime.test_drivers import Log, unreached
from tests.scheduler.test_schedule import Plan, plans


def program_of(plan: Plan, rng: random.Random, store: Failing) -> CompiledGraph:
    """The graph of a plan. Its nodes yield to the event loop a random number of times before they return."""
    graph = Graph(Log, merge=plan.merge)

    def node(name: str, write: int) -> Any:
        async def work(ctx: Context) -> dict[str, Any]:
            CALLS.note("node", name, ctx.execution)
            for _ in range(rng.randrange(4)):
                await anyio.lowlevel.checkpoint()
            update: dict[str, Any] = {"log": [name], "count": 1}
            return update if write % 3 == 0 else {**update, "value": f"{name}{ctx.visit}"}

        return work

    def route(name: str) -> Any:
        def decide(ctx: Context) -> list[str | Send]:
            CALLS.note("router", name, ctx.execution)
            ways = plan.routes[name]
            chosen = ways[min(ctx.visit, len(ways)) - 1].split()
            return [Send(way.strip("()"), {"by": name}) if way.startswith("(") else way for way in chosen]

        return decide

    for name in plan.nodes:
        graph.add_node(name, node(name, plan.writes[name]))
    for source, targets in plan.edges.items():
        graph.add_edge(source, targets.split())
    for source, targets in plan.conditional.items():
        graph.add_conditional_edges(source, route(source), targets.split())
    for name in unreached(plan):
        graph.add_edge(START, name)
    return graph.compile(max_steps=40, store=store)


def attempt(thread: Thread, whole: Counter[Called]) -> Run:
    """Starts or resumes a run, and checks that it calls only nodes that had not finished, each at most once."""
    left = left_to_call(whole, finished(thread._store, thread.name))
    CALLS.take()
    try:
        if thread.status == "new":
            return asyncio.run(thread.arun({}))
        return asyncio.run(thread.aresume(max_resumes=1000))
    finally:
        assert CALLS.take() <= left


@pytest.mark.slow("a law over random graphs, with up to six crashes in each example")
@given(plans(), st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=6))
def test_a_run_recovers_from_crashes_at_any_writes(plan: Plan, seed: int, crashes: list[tuple[int, bool]]) -> None:
    check(plan, seed, crashes, FailingMemory())


Build = Callable[[Plan, random.Random, Failing], CompiledGraph]


def check(plan: Plan, seed: int, crashes: list[tuple[int, bool]], store: Failing, build: Build = program_of) -> None:
    rng = random.Random(seed)
    CALLS.take()
    programs = cycle([build(plan, rng, store) for _ in range(2)])
    whole = asyncio.run(next(programs).thread("whole").arun({}))
    assume(whole.status == "completed")
    calls = CALLS.take()
    name = f"t{seed}"
    for at, after in crashes:
        thread = next(programs).thread(name)
        if thread.status == "completed":
            break
        store.arm(crash, at, after)
        try:
            attempt(thread, calls)
        except Crash:
            continue
        break
    store.rest()
    thread = next(programs).thread(name)
    if thread.status != "completed":
        assert outcome(attempt(thread, calls)) == outcome(whole)
    assert thread.state == whole.state
