"""Laws of checks on random graphs with forks, loops and `Send`s: as many calls as a program written by hand makes, the
same commits whatever finishes first, and the same again after a crash at any write.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from dspyer import END, START, Graph, Run, Send
from dspyer.errors import CheckError
from tests.log.equality import outcome
from tests.log.failing import Crash, FailingMemory, crash


class Step(NamedTuple):
    """A checked node: its output is good if it is a multiple of `good`, and a fix adds 1."""

    good: int
    max_fixes: int
    accept: bool


class Plan(NamedTuple):
    """A loop of some rounds over a fork; each branch is a chain of checked nodes."""

    branches: tuple[tuple[Step, ...], ...]
    rounds: int
    sends: bool
    start: int


STEPS = st.builds(Step, st.integers(1, 4), st.integers(0, 3), st.sampled_from([True, True, True, False]))
PLANS = st.builds(
    Plan,
    st.lists(st.lists(STEPS, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3).map(tuple),
    st.integers(1, 2),
    st.booleans(),
    st.integers(0, 5),
)


class RefusedError(Exception):
    """What the program written by hand raises in place of a `CheckError`."""


def by_hand(plan: Plan) -> tuple[Counter[str], dict[str, int], bool]:
    """The calls of each part, the values in the end, and whether all checks passed."""
    calls: Counter[str] = Counter()
    values: dict[str, int] = {}
    passed = True
    for number in range(plan.rounds):
        for branch, chain in enumerate(plan.branches):
            value = plan.start + number
            try:
                for place, step in enumerate(chain):
                    value = run_by_hand(step, f"n{branch}_{place}", value, calls)
                    values[f"v{branch}_{place}"] = value
            except RefusedError:
                passed = False
        if not passed:
            return calls, values, False
    return calls, values, passed


def run_by_hand(step: Step, name: str, value: int, calls: Counter[str]) -> int:
    calls[name] += 1
    value += 1
    for fixes in range(step.max_fixes + 1):
        calls[f"c{name}"] += 1
        if value % step.good == 0:
            return value
        if fixes < step.max_fixes:
            calls[f"{name}_fix"] += 1
            value += 1
    if not step.accept:
        raise RefusedError
    return value


def as_graph(plan: Plan, calls: Counter[str], delays: Mapping[str, int]) -> Graph:
    fields: dict[str, Any] = {"start": (int, ...), "number": (int, 0)}
    for branch, chain in enumerate(plan.branches):
        for place in range(len(chain)):
            fields[f"v{branch}_{place}"] = (int, 0)
            fields[f"p{branch}_{place}"] = (list[str], [])
    schema: type[BaseModel] = create_model("State", **fields)
    graph = Graph(schema, inputs=["start"])
    graph.add_node("enter", lambda: None, writes=[])
    graph.add_node("count", lambda number: {"number": number + 1}, writes=["number"])
    for branch, chain in enumerate(plan.branches):
        for place, step in enumerate(chain):
            add_step(graph, plan.sends, step, branch, place, calls, delays)
        names = [f"n{branch}_{place}" for place in range(len(chain))]
        graph.add_path(*names, "count") if names else None
    firsts = [f"n{branch}_0" for branch in range(len(plan.branches))]
    graph.add_edge(START, "enter")
    if plan.sends:
        graph.add_conditional_edges(
            "enter", lambda start, number: [Send(first, {"given": start + number}) for first in firsts], firsts
        )
    else:
        graph.add_edge("enter", firsts)
    more = {True: "enter", False: END}
    return graph.add_conditional_edges("count", lambda number: number < plan.rounds, more)


def add_step(
    graph: Graph, sends: bool, step: Step, branch: int, place: int, calls: Counter[str], delays: Mapping[str, int]
) -> None:
    name, field, before = f"n{branch}_{place}", f"v{branch}_{place}", f"v{branch}_{place - 1}"

    async def wait(what: str) -> None:
        calls[what] += 1
        for _ in range(delays.get(what, 0)):
            await asyncio.sleep(0)

    async def first(start: int, number: int) -> dict[str, int]:
        await wait(name)
        return {field: start + number + 1}

    async def sent(given: int) -> dict[str, int]:
        await wait(name)
        return {field: given + 1}

    async def later(value: int) -> dict[str, int]:
        await wait(name)
        return {field: value + 1}

    async def check(value: int) -> list[str]:
        await wait(f"c{name}")
        return [] if value % step.good == 0 else [f"{value} is no multiple of {step.good}"]

    async def fix(problems: list[str], state: Any) -> dict[str, int]:
        await wait(f"{name}_fix")
        old = int(problems[0].split()[0])
        assert state[f"previous_{field}"] == old
        return {field: old + 1}

    if place:
        graph.add_node(name, later, reads={"value": before}, writes=[field])
    else:
        graph.add_node(name, sent if sends else first, writes=[field])
    namespace: dict[str, Any] = {"check": check}
    exec(f"async def checks({field}: int) -> list:\n    return await check({field})", namespace)
    graph.add_check(
        f"c{name}",
        namespace["checks"],
        of=name,
        max_fixes=step.max_fixes,
        fix=fix if step.max_fixes else None,
        into=f"p{branch}_{place}",
        accept=step.accept,
    )


def run_async(plan: Plan, delays: Mapping[str, int], calls: Counter[str]) -> Run:
    return asyncio.run(as_graph(plan, calls, delays).compile().arun({"start": plan.start}))


@given(PLANS, st.data())
def test_random_checks_make_the_calls_of_a_program_by_hand(plan: Plan, data: st.DataObject) -> None:
    calls: Counter[str] = Counter()
    run = run_async(plan, {}, calls)
    expected, values, passed = by_hand(plan)
    assert run.status == ("completed" if passed else "failed"), run.error
    if passed:
        assert calls == expected
        assert {name: run.state[name] for name in values} == values
    else:
        assert isinstance(run.error, CheckError)
        assert not calls - expected
    again: Counter[str] = Counter()
    delays = {name: data.draw(st.integers(0, 4), label=name) for name in sorted(expected)}
    other = run_async(plan, delays, again)
    assert other.status == run.status
    if passed:
        assert again == calls
        assert outcome(other) == outcome(run)
        assert other.repairs() == run.repairs()
        assert [step[1:3] for step in other.trace] == [step[1:3] for step in run.trace]


CRASHES = [Plan(((Step(3, 2, False), Step(2, 1, True)), (Step(4, 3, True),)), 2, sends, 1) for sends in (False, True)]


@pytest.mark.slow("a run and its resume for each of some 30 writes")
@pytest.mark.parametrize(("plan", "after"), [(CRASHES[0], False), (CRASHES[1], True)], ids=["fork", "sends"])
def test_a_run_that_crashed_at_any_write_has_the_same_commits(plan: Plan, after: bool) -> None:
    calls: Counter[str] = Counter()
    whole = FailingMemory()
    expected = asyncio.run(as_graph(plan, calls, {}).compile(store=whole).thread("t").arun({"start": plan.start}))
    assert expected.status == "completed", expected.error
    assert len(expected.repairs()) > 2
    for at in range(2, whole.writes):
        store = FailingMemory()
        store.arm(crash, at, after)
        thread = as_graph(plan, Counter(), {}).compile(store=store).thread("t")
        with pytest.raises(Crash):
            asyncio.run(thread.arun({"start": plan.start}))
        store.rest()
        thread = as_graph(plan, Counter(), {}).compile(store=store).thread("t")
        resumed = asyncio.run(thread.aresume(take_over=True))
        assert outcome(resumed) == outcome(expected), at
        assert resumed.repairs() == expected.repairs()
        assert thread.repairs() == expected.repairs()
