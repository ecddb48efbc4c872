"""Known traps of LangGraph with threads, failures and resume; the letters are those of the study that found them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Kept, Run, Thread, reducers
from dspyer.errors import ImmutableError, MergeConflictError, NodeOutputError, OpenRunError
from dspyer.stores import SQLite
from dspyer.stores.base import Store


class Log(BaseModel):
    log: Kept[Annotated[list[str], reducers.extend]] = []
    x: Any = None
    size: int = 0


class World:
    """What is wrong at the moment, and what was called."""

    def __init__(self) -> None:
        self.broken = True
        self.calls: list[str] = []

    def says(self, name: str, **more: Any) -> Any:
        """A node."""

        def node(state: Any) -> dict[str, Any]:
            self.calls.append(name)
            return {"log": [name], **more}

        return node

    def fails(self, name: str) -> Any:
        """A node that raises while the world is broken."""

        def node(state: Any) -> dict[str, Any]:
            self.calls.append(name)
            if self.broken:
                raise RuntimeError("boom")
            return {"log": [name]}

        return node


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return SQLite(tmp_path / "runs.db")


def run(thread: Thread, **options: Any) -> Run:
    return thread.run({}, **options)


def resume(thread: Thread) -> Run:
    """In async code, whatever the run began with: the colour of a driver is not stored."""
    return asyncio.run(thread.aresume())


def fork_of(left: Any, right: Any, store: Store, **options: Any) -> CompiledGraph:
    graph = Graph(Log, inputs=[], **options).add_node("ok", left).add_node("bad", right)
    graph.add_node("j", lambda state: {"log": ["j"]})
    return graph.add_edge(START, ["ok", "bad"]).add_edge(["ok", "bad"], "j").add_edge("j", END).compile(store=store)


def test_a_conflict_is_found_before_anything_is_stored_and_can_be_resolved_later(store: Store) -> None:
    """Two parallel writes of one key: the thread stays readable, and a graph with a policy resumes without a call."""
    world = World()
    nodes = world.says("ok", x=1), world.says("bad", x=2)
    thread = fork_of(*nodes, store).thread("t")
    failed = run(thread)
    assert isinstance(failed.error, MergeConflictError)
    assert (thread.status, thread.state["x"], thread.state["log"]) == ("failed", None, [])
    assert [commit.node for commit in thread.history()] == ["START", "ok", "bad"]
    world.calls.clear()
    again = fork_of(*nodes, store, merge="last_write_wins").thread("t")
    assert again.resume(allow_changed_graph=True).state["x"] == 2
    assert world.calls == []


def test_b_a_finished_branch_is_not_run_again(store: Store, world: World) -> None:
    thread = fork_of(world.says("ok"), world.fails("bad"), store).thread("t")
    assert run(thread).status == "failed"
    assert thread.state["log"] == [], "writes of one branch are not shown as the state of the thread"
    with pytest.raises(OpenRunError):  # new inputs never replace a failed run silently
        run(thread)
    world.broken = False
    assert resume(thread).state["log"] == ["ok", "bad", "j"]
    assert sorted(world.calls) == ["bad", "bad", "ok"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_b2_a_slow_sibling_finishes_and_is_kept(store: Store, world: World, mode: str) -> None:
    failed = threading.Event()

    def fails(state: Any) -> dict[str, Any]:
        failed.set()
        return dict(world.fails("bad")(state))

    async def slow_async(state: Any) -> dict[str, Any]:
        await asyncio.to_thread(failed.wait, 20)
        return dict(world.says("ok")(state))

    def slow(state: Any) -> dict[str, Any]:
        assert failed.wait(20)
        return dict(world.says("ok")(state))

    thread = fork_of(slow if mode == "sync" else slow_async, fails, store).thread("t")
    failed_run = run(thread) if mode == "sync" else asyncio.run(thread.arun({}))
    assert failed_run.status == "failed"
    world.broken = False
    assert resume(thread).state["log"] == ["ok", "bad", "j"]
    assert sorted(world.calls) == ["bad", "bad", "ok"]


def test_b4_a_router_that_raised_is_asked_again_and_its_node_with_it(store: Store, world: World) -> None:
    """A transition is whole: without a route nothing of it is stored, and nothing is skipped on resume."""

    def route(state: Any) -> str:
        world.calls.append("router")
        if world.broken:
            raise TimeoutError("the router was away")
        return "after"

    graph = Graph(Log, inputs=[]).add_node("node", world.says("node")).add_node("after", world.says("after"))
    graph.add_edge(START, "node").add_conditional_edges("node", route, ["after", END]).add_edge("after", END)
    thread = graph.compile(store=store).thread("t")
    assert isinstance(run(thread).error, TimeoutError)
    assert thread.state["log"] == []
    world.broken = False
    assert resume(thread).state["log"] == ["node", "after"]
    assert world.calls == ["node", "router", "node", "router", "after"]


def test_d_arrivals_at_a_join_do_not_count_in_the_next_run(store: Store, world: World) -> None:
    """Turn 1 takes only `a`, turn 2 only `b`: nothing of turn 1 is left for the join of turn 2."""
    turns = iter(["a", "b"])
    graph = Graph(Log, inputs=[]).add_node("a", world.says("a")).add_node("b", world.says("b"))
    graph.add_node("j", world.says("j")).add_conditional_edges(START, lambda state: next(turns), ["a", "b"])
    thread = graph.add_edge(["a", "b"], "j").add_edge("j", END).compile(store=store).thread("t")
    assert run(thread).state["log"] == ["a", "j"]
    assert run(thread).state["log"] == ["a", "j", "b", "j"]


def test_f_a_node_cannot_change_what_was_stored(store: Store, world: World) -> None:
    def mutates(state: Any) -> dict[str, Any]:
        if world.broken:
            state["log"].append("evil")
        return {"log": ["b"]}

    graph = Graph(Log, inputs=[]).add_node("a", world.says("a")).add_node("b", mutates).add_path(START, "a", "b", END)
    thread = graph.compile(store=store).thread("t")
    assert isinstance(run(thread).error, ImmutableError)
    assert thread.state["log"] == ["a"]
    world.broken = False
    assert resume(thread).state["log"] == ["a", "b"]


def test_f2_changes_that_a_node_makes_after_its_return_are_not_stored(store: Store) -> None:
    kept: list[dict[str, list[int]]] = []

    def first(state: Any) -> dict[str, Any]:
        kept.append({"k": [1]})
        return {"x": kept[0]}

    def second(state: Any) -> dict[str, Any]:
        kept[0]["k"].append(2)
        return {"log": ["second"]}

    graph = Graph(Log, inputs=[]).add_node("first", first).add_node("second", second)
    thread = graph.add_path(START, "first", "second", END).compile(store=store).thread("t")
    run(thread)
    assert [thread.at(version)["x"] for version in range(3)] == [None, {"k": [1]}, {"k": [1]}]


def test_h_an_invalid_value_is_never_stored_and_leaves_the_thread_usable(store: Store, world: World) -> None:
    def bad(state: Any) -> dict[str, Any]:
        return {"log": ["bad"], "size": "large" if world.broken else 1}

    def build() -> Thread:
        graph = Graph(Log, inputs=[]).add_node("a", world.says("a")).add_node("bad", bad)
        return graph.add_path(START, "a", "bad", END).compile(store=store).thread("t")

    thread = build()
    failed = run(thread)
    assert isinstance(failed.error, NodeOutputError)
    assert "bad" in str(failed.error)
    assert (thread.state["log"], len(thread.history())) == (["a"], 2)
    world.broken = False
    assert resume(build()).state.to_dict() == {"log": ["a", "bad"], "x": None, "size": 1}
    assert run(build()).state["log"] == ["a", "bad", "a", "bad"]


@pytest.mark.parametrize("where", ["node", "router", "policy", "validation", "reducer"])
def test_the_thread_is_readable_after_every_failure(where: str, store: Store) -> None:
    def raises(*args: Any) -> Any:
        raise RuntimeError("boom")

    class Bad(BaseModel):
        log: Annotated[list[str], reducers.extend] = []
        x: Any = None
        total: Annotated[int, raises] = 0
        size: int = 0

    graph = Graph(Bad, inputs=[], merge=raises).add_node("a", lambda state: {"log": ["a"], "x": 1})
    returned = {
        "node": lambda state: raises(),
        "validation": lambda state: {"size": "large"},
        "reducer": lambda state: {"total": 1},
    }
    graph.add_node("b", returned.get(where, lambda state: {"log": ["b"], "x": 2}))
    if where == "policy":
        graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END)
    elif where == "router":
        graph.add_path(START, "a", "b").add_conditional_edges("b", lambda state: raises(), [END])
    else:
        graph.add_path(START, "a", "b", END)
    thread = graph.compile(store=store).thread("t")
    failed = run(thread)
    assert failed.status == thread.status == "failed"
    assert thread.state == failed.state
    assert thread.history()[0].node == "START"
    assert thread.at(0)["log"] == []
    assert thread.questions == ()
    assert resume(thread).status == "failed"
