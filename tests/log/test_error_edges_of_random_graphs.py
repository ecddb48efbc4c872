"""Random graphs with error edges and random failures: any order of completion, and crashes at any writes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Annotated, Any, NamedTuple

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Failure, Graph, Retry, Run, Send, reducers
from dspyer.stores import Store
from dspyer.testing import no_pauses
from tests.log.equality import Outcome, outcome
from tests.log.failing import Failing, FailingMemory
from tests.log.kinds import CALLS, Called
from tests.log.test_crashes_of_random_graphs import check
from tests.runtime.test_drivers import unreached
from tests.scheduler.test_schedule import Plan, plans


class Failures(BaseModel):
    """A state that shows who did what, and who failed."""

    log: Annotated[list[str], reducers.extend] = []
    count: Annotated[int, reducers.increment] = 0
    value: Any = None
    problems: Annotated[list[Failure], reducers.append] = []


class LeftError(Exception):
    """What some error edges take."""


class RightError(Exception):
    """What others take."""


KINDS: dict[str, type[Exception]] = {"l": LeftError, "r": RightError, "t": TimeoutError}


class Faults(NamedTuple):
    """What fails.

    Attributes:
        edges: error edges, as (source, target, kinds that it takes).
        raised: by node, the kind that it raises at each visit, "" for none.
        flaky: by node, how many attempts time out first.
    """

    edges: list[tuple[str, str, str]]
    raised: dict[str, list[str]]
    flaky: dict[str, int]


@st.composite
def faults(draw: st.DrawFn, plan: Plan) -> Faults:
    """Failures of which nearly all are taken by an edge."""
    edges: list[tuple[str, str, str]] = []
    raised: dict[str, list[str]] = {}
    for node in plan.nodes:
        kinds = draw(st.lists(st.sampled_from(["", "l", "r"]), max_size=3))
        raised[node] = kinds
        if any(kinds):
            taken = draw(st.sampled_from([["lr"], ["l", "r"], ["r", "lr"], ["l"]]))
            edges += [(node, draw(st.sampled_from([*plan.nodes, END])), one) for one in taken]
    flaky = {node: draw(st.sampled_from([0, 0, 1, 2])) for node in plan.nodes}
    return Faults(edges, raised, flaky)


@st.composite
def faulty_plans(draw: st.DrawFn) -> tuple[Plan, Faults]:
    plan = draw(plans())
    return plan, draw(faults(plan))


class Behaviour:
    """What the nodes of a plan do; all programs of one test share it."""

    def __init__(self, plan: Plan, given: Faults) -> None:
        self.plan = plan
        self.faults = given

    def work(self, name: str, ctx: Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            CALLS.note("node", name, ctx.execution if "/" in ctx.execution else f"run/{ctx.execution}")
        if ctx.attempt <= self.faults.flaky[name]:
            raise TimeoutError(f"attempt {ctx.attempt}")
        kinds = self.faults.raised[name]
        if ctx.visit <= len(kinds) and kinds[ctx.visit - 1]:
            raise KINDS[kinds[ctx.visit - 1]](f"{name} at visit {ctx.visit}")
        update: dict[str, Any] = {"log": [name], "count": 1}
        return update if self.plan.writes[name] % 3 == 0 else {**update, "value": f"{name}{ctx.visit}"}

    def route(self, name: str, ctx: Context) -> list[str | Send]:
        CALLS.note("router", name, ctx.execution)
        ways = self.plan.routes[name]
        chosen = ways[min(ctx.visit, len(ways)) - 1].split()
        return [Send(way.strip("()"), {"by": name}) if way.startswith("(") else way for way in chosen]

    def program(self, rng: random.Random, store: Store | None, is_async: bool = True) -> CompiledGraph:
        """The graph. Its async nodes yield to the event loop a random number of times before they return."""
        plan, graph = self.plan, Graph(Failures, merge=self.plan.merge)

        def node(name: str) -> Any:
            async def awork(ctx: Context) -> dict[str, Any]:
                for _ in range(rng.randrange(4)):
                    await anyio.lowlevel.checkpoint()
                return self.work(name, ctx)

            def work(ctx: Context) -> dict[str, Any]:
                return self.work(name, ctx)

            return awork if is_async else work

        def router(name: str) -> Any:
            return lambda ctx: self.route(name, ctx)

        for name in plan.nodes:
            graph.add_node(name, node(name), retry=Retry(3))
        for source, targets in plan.edges.items():
            graph.add_edge(source, targets.split())
        for source, targets in plan.conditional.items():
            graph.add_conditional_edges(source, router(source), targets.split())
        for name in unreached(plan):
            graph.add_edge(START, name)
        taken: dict[str, set[type[Exception]]] = {}
        for source, target, kinds in self.faults.edges:
            on = tuple(KINDS[kind] for kind in kinds)
            if not taken.setdefault(source, set()).issuperset(on):  # the build refuses an edge that is never taken
                taken[source].update(on)
                graph.add_error_edge(source, target, on=on, into="problems")
        return graph.compile(max_steps=40, store=store)


def calls_and_outcome(run: Run) -> tuple[Outcome, Counter[Called]]:
    return outcome(run), CALLS.take()


@pytest.mark.slow("a law over random graphs: each example is run four times, sync and async")
@given(faulty_plans(), st.integers(0, 2**32))
def test_failures_that_are_taken_keep_runs_confluent(plan: tuple[Plan, Faults], seed: int) -> None:
    """Commits, failures, conflicts and calls do not depend on the order of completion, nor on the driver."""
    rng, behaviour = random.Random(seed), Behaviour(*plan)
    CALLS.take()
    with no_pauses():
        first = calls_and_outcome(behaviour.program(rng, None, is_async=False).run({}))
        for _ in range(3):
            other = calls_and_outcome(asyncio.run(behaviour.program(rng, None).arun({})))
            if first[0].status == "completed":
                assert other == first
            else:
                assert other[0].status == "failed"
    if first[0].status == "completed":
        called = Counter(call.execution for call in first[1].elements() if call.what == "node")
        assert max(called.values()) == 1
        nodes = [commit for commit in first[0].commits if commit[2] in plan[0].nodes]
        failed = [commit[-1] for commit in nodes if commit[-1] is not None]
        assert first[0].state["count"] == len(nodes) - len(failed)
        assert sorted(failed, key=str) == sorted(first[0].state["problems"], key=str)


@pytest.mark.slow("a law over random graphs, with up to six crashes in each example")
@given(
    faulty_plans(), st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=6)
)
def test_a_run_with_failures_recovers_from_crashes_at_any_writes(
    plan: tuple[Plan, Faults], seed: int, crashes: list[tuple[int, bool]]
) -> None:
    """A resume calls neither a failed node nor a finished handler again, and ends like a run without a crash."""
    behaviour = Behaviour(*plan)

    def build(_: Plan, rng: random.Random, store: Failing) -> CompiledGraph:
        return behaviour.program(rng, store)

    with no_pauses():
        check(plan[0], seed, crashes, FailingMemory(), build)
