"""What describes a run is decided by the outermost program: the same settings of a program inside have no effect."""

from __future__ import annotations

import asyncio
from threading import Barrier
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Budget, CompiledGraph, Context, Graph, reducers
from dspyer.events import Committed, NodeStarted
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM
from tests.executors.pools import BytesExecutor
from tests.log.test_durability import Recorder


class Talk(BaseModel):
    item: int = 0
    items: list[int] = [0]
    answers: Annotated[list[str], reducers.append] = []
    results: list[Any] = []


def as_node(inner: CompiledGraph) -> Graph:
    return Graph(Talk, name="Outer").add_node("part", inner, writes=["answers"])


def as_item(inner: CompiledGraph) -> Graph:
    return Graph(Talk, name="Outer").add_map("part", inner, over="items", item="item", into="results")


def as_call(inner: CompiledGraph) -> Graph:
    def work(inner: Any, ctx: Context) -> dict[str, Any]:
        return {"answers": ctx.call(inner, {}).answers[-1]}

    return Graph(Talk, name="Outer").add_node("part", work, modules={"inner": inner}, writes=["answers"])


PLACES = {"node": as_node, "item": as_item, "ctx.call": as_call}
INSIDE = pytest.mark.parametrize(("place", "mode"), [("node", "sync"), ("item", "async"), ("ctx.call", "sync")])


def run(runner: Any, mode: str) -> Any:
    found = runner.run({}) if mode == "sync" else asyncio.run(runner.arun({}))
    assert found.status == "completed", found.error
    return found


def fork(names: str) -> Graph:
    graph = Graph(Talk, name="Inner", outputs=["answers"])
    for name in names:
        graph.add_node(name, lambda: {"answers": "x"}, writes=["answers"]).add_edge(START, name).add_edge(name, END)
    return graph


@INSIDE
def test_max_concurrency(place: str, mode: str) -> None:
    """As many nodes start before the first one is committed."""
    for inner, outer in ((1, 3), (8, 2), (8, 1)):
        graph = PLACES[place](fork("abcd").compile(max_concurrency=inner)).add_path(START, "part", END)
        begun = 0
        for event in run(graph.compile(max_concurrency=outer), mode).events:
            if event.scope and isinstance(event, NodeStarted):
                begun += 1
            elif event.scope and isinstance(event, Committed) and event.commit.node != "START":
                break
        assert (inner, begun) == (inner, outer)


def test_max_concurrency_of_a_program_that_a_worker_runs() -> None:
    """The two nodes meet."""
    Meeting.both = Barrier(2)
    inner = Graph(Talk, name="Inner")
    for name in "ab":
        inner.add_node(name, Meeting(), writes=["answers"]).add_edge(START, name).add_edge(name, END)
    executor = BytesExecutor(1)
    graph = as_node(inner.compile(max_concurrency=1).with_executor(executor)).add_path(START, "part", END)
    assert run(graph.compile(max_concurrency=2), "sync").state["answers"] == ["met", "met"]
    executor.shutdown()


class Meeting:
    """A function that can be sent to a worker of this process."""

    both: Barrier

    def __call__(self) -> dict[str, Any]:
        type(self).both.wait(20)
        return {"answers": "met"}


@INSIDE
def test_store_budget_and_what_is_recorded_of_lm_calls(place: str, mode: str) -> None:
    graph = Graph(Talk, name="Inner", outputs=["answers"])
    for name in ("one", "two"):
        graph.add_node(name, dspy.Predict("item -> answer"), writes={"answer": "answers"})
    unused, used = Memory(), Recorder()
    inner = graph.add_path(START, "one", "two", END).compile(
        store=unused, budget=Budget(requests=1), record_lm_calls="full"
    )
    program = PLACES[place](inner).add_path(START, "part", END).compile(store=used, record_lm_calls="usage")
    thread = program.thread("t")
    with dspy.context(lm=ScriptedLM([{"answer": "x"}] * 2)):
        run(thread, mode)
    assert not unused.threads()
    flushed = [[row.kind for row in change.rows] for change in used.changes if change.flush and change.rows]
    assert flushed == [["open"], ["end"]]
    calls = thread.lm_calls(1)
    assert [call.messages for call in calls] == [None, None]
    again = PLACES[place](inner).add_path(START, "part", END)
    thread = again.compile(store=":memory:", record_lm_calls="none").thread("t")
    with dspy.context(lm=ScriptedLM([{"answer": "x"}] * 2)):
        run(thread, mode)
    assert thread.lm_calls(1) == ()
