"""`t.stop()` ends the run that works on a thread, in whatever process it is."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, live, reducers
from dspyer.errors import RunStoppedError, ThreadError
from dspyer.events import NodeFailed
from tests.children import Child
from tests.rows import each


class Log(BaseModel):
    log: Annotated[list[str], reducers.append] = []


class Stage:
    """A run whose second node waits for the test."""

    def __init__(self, kind: str, store: str = ":memory:") -> None:
        self.inside, self.go_on, self.cancelled = threading.Event(), threading.Event(), threading.Event()
        self.calls: list[str] = []
        self.runs: list[Any] = []
        self.program = self._program(kind, store)

    def _program(self, kind: str, store: str) -> CompiledGraph:
        def first() -> dict[str, Any]:
            self.calls.append("first")
            return {"log": "first"}

        def slow() -> dict[str, Any]:
            self.calls.append("slow")
            self.inside.set()
            assert self.go_on.wait(20)
            return {"log": "slow"}

        async def aslow() -> dict[str, Any]:
            self.calls.append("slow")
            self.inside.set()
            try:
                if not self.go_on.is_set():
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return {"log": "slow"}

        graph = Graph(Log).add_node("first", first).add_node("slow", slow if kind == "sync" else aslow)
        graph.add_node("late", lambda: {"log": "late"})
        return graph.add_path(START, "first", "slow", "late", END).compile(store=store)

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=lambda: self.runs.append(self.program.thread("t").run({})))
        thread.start()
        assert self.inside.wait(20)
        return thread


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_stop_ends_the_run_and_a_resume_continues_it(kind: str) -> None:
    stage = Stage(kind)
    running = stage.start()
    t = stage.program.thread("t")
    t.stop()
    assert t.status == "stopped"
    if kind == "async":
        assert stage.cancelled.wait(5)  # at once in this process, and not at the next renewal, after 10 s
    stage.go_on.set()
    running.join(20)
    (run,) = stage.runs
    assert (run.status, list(run.state["log"])) == ("stopped", ["first"])
    assert isinstance(run.error, RunStoppedError)
    assert "thread.stop() was called" in str(run.error)
    assert (t.status, t.state["log"]) == ("stopped", ["first"])
    assert run.record() == t.record()
    assert t.resume().state["log"] == ["first", "slow", "late"]
    assert stage.calls == ["first", "slow", "slow"]
    assert t.replay() == t.state


def test_the_record_of_a_run_whose_items_were_writing_when_it_was_stopped(tmp_path: Path) -> None:
    """Rows that the stop has refused have numbers, too."""
    threads: list[Any] = []

    def work(n: int) -> int:
        if n == 2:
            threads[0].stop()
        return n

    graph = Graph().add_map("each", work, over="items", item="n", into="found").add_path(START, "each", END)
    for number in range(4):
        threads[:] = [graph.compile(store=str(tmp_path / "runs.db")).thread(f"t{number}")]
        run = threads[0].run({"items": [1, 2, 3, 4]})
        assert run.status == "stopped"
        assert run.record().to_dict() == threads[0].record().to_dict()


def post_one(ctx: Any) -> dict[str, Any]:
    ctx.post("heard", "one")
    return {}


WRITES: dict[str, Any] = {
    "its commit": lambda ctx: {"log": "late"},
    "an effect": lambda ctx: {"log": ctx.once("charge", lambda: "late")},
    "a live post": post_one,
}


@each(("kind", "nested"), [*((kind, False) for kind in WRITES), ("a live post", True)])
def test_what_a_node_writes_after_a_stop_is_no_failure(kind: str, nested: bool) -> None:
    class State(Log):
        heard: Annotated[list[str], reducers.append, live] = []

    def stopping(ctx: Any) -> Any:
        if stops:
            stops.pop().stop()
        return WRITES[kind](ctx)

    graph = Graph(State).add_node("write", stopping, writes=["log", "heard"]).add_path(START, "write", END)
    if nested:
        graph = Graph(State).add_node("part", graph).add_path(START, "part", END)
    t = graph.compile(store=":memory:").thread("t")
    stops = [t]
    run = t.run({})
    assert (run.status, t.status, run.failures, t.failures) == ("stopped", "stopped", (), ())
    assert not [event for event in run.events if isinstance(event, NodeFailed)]
    assert isinstance(run.error, RunStoppedError)
    assert t.resume().status == "completed"


@pytest.mark.parametrize(("nested", "parallel"), [(False, True), (True, False)])
def test_stop_cancels_the_async_nodes_of_an_async_run(nested: bool, parallel: bool) -> None:
    """The task of the run is not cancelled: it returns the stopped run."""
    stage = Stage("async")

    async def waits() -> None:
        stage.inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            stage.cancelled.set()

    graph = Graph(Log)
    for name in ["one", "two"] if parallel else ["one"]:
        if nested:
            graph.add_node(name, stage.program)
        else:
            graph.add_node(name, waits, writes=[])
        graph.add_edge(START, name).add_edge(name, END)
    t = graph.compile(store=":memory:").thread("t")

    async def main() -> None:
        task = asyncio.create_task(t.arun({}))
        assert await asyncio.to_thread(stage.inside.wait, 20)
        await asyncio.to_thread(t.stop)
        run = await asyncio.wait_for(task, 20)
        assert (run.status, t.status, task.cancelling()) == ("stopped", "stopped", 0)
        assert isinstance(run.error, RunStoppedError)

    asyncio.run(main())
    assert stage.cancelled.is_set()


def test_stop_while_nothing_runs_says_so() -> None:
    stage = Stage("sync")
    t = stage.program.thread("t")
    with pytest.raises(ThreadError, match="no run works on thread 't'"):
        t.stop()
    stage.go_on.set()
    t.run({})
    with pytest.raises(ThreadError, match="nothing to stop"):
        t.stop()
    assert t.status == "completed"


def test_two_stops_and_a_run_after_them() -> None:
    stage = Stage("sync")
    running = stage.start()
    t = stage.program.thread("t")
    t.stop()
    with pytest.raises(ThreadError, match="nothing to stop"):
        t.stop()
    stage.go_on.set()
    running.join(20)
    assert t.run({}, if_open="abandon").state["log"] == ["first", "slow", "late"]
    assert t.status == "completed"


OWNER = """
import sys
from dspyer import END, START, Graph
def slow():
    print("inside", flush=True)
    sys.stdin.readline()
    return {"n": 1}
graph = Graph(inputs=["n"]).add_node("slow", slow, writes=["n"]).add_node("late", lambda n: print("late"), writes=[])
run = graph.add_path(START, "slow", "late", END).compile(store=sys.argv[1]).thread("t").run({"n": 0})
print(run.status, type(run.error).__name__, run.state["n"], flush=True)
"""


def test_stop_from_another_process(tmp_path: Any) -> None:
    store = str(tmp_path / "runs.db")
    graph = Graph(inputs=["n"]).add_node("slow", lambda: {"n": 2}, writes=["n"])
    graph.add_node("late", lambda n: None, writes=[]).add_path(START, "slow", "late", END)
    t = graph.compile(store=store).thread("t")
    owner = Child(OWNER, store)
    assert owner.stdout.readline() == "inside\n"
    t.stop()
    assert (t.status, t.state["n"]) == ("stopped", 0)
    owner.stdin.write("go on\n")
    owner.stdin.close()
    assert owner.stdout.read() == "stopped RunStoppedError 0\n"
    assert owner.wait() == 0
    assert (t.status, t.state["n"]) == ("stopped", 0)
    assert t.resume().state["n"] == 2
