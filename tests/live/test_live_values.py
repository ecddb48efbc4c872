"""Live fields that are no lists: the latest value; the events of live fields; peers in any graph."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Context, Graph, limit, live, reducers
from dspyer.errors import MergeConflictError
from dspyer.events import LiveConflict, Posted, RunStarted
from tests.live.kit import drives, finished, modes, team

# --- the latest value


class Draft(BaseModel):
    draft: Annotated[str, live] = ""
    plan: Annotated[dict[str, int], live] = {}


@drives
def test_a_live_field_without_a_reducer_has_the_latest_value(go: Any, colour: str) -> None:
    """S004-12, S004-3: in the order of arrival, whichever node ends first."""
    turns = [threading.Event() for _ in range(3)]
    heard: list[tuple[Any, str]] = []

    def one(ctx: Context) -> None:
        ctx.post("draft", "first")
        ctx.post("plan", {"a": 1})
        turns[0].set()
        assert turns[1].wait(20)
        ctx.post("draft", "third")
        turns[2].set()

    def two(ctx: Context) -> dict[str, Any]:
        assert turns[0].wait(20)
        ctx.post("draft", "second")
        ctx.post("plan", {"b": 2})
        turns[1].set()
        assert turns[2].wait(20)
        return {}

    def listens(ctx: Context) -> None:
        heard.extend((entry.value, entry.author) for entry in ctx.live("draft"))

    async def alistens(ctx: Context) -> None:
        heard.extend([(entry.value, entry.author) async for entry in ctx.live("draft")])

    graph = Graph(Draft).add_node("one", one, writes=["draft", "plan"]).add_node("two", two, writes=["draft", "plan"])
    graph.add_node("listens", listens if colour == "sync" else alistens, reads=["draft"], writes=[])
    graph.add_edge(START, ["one", "two", "listens"]).add_edge(["one", "two", "listens"], END)
    run = finished(go(graph.compile()))
    assert run.state.to_dict() == {"draft": "third", "plan": {"b": 2}}
    assert heard == [("first", "one"), ("second", "two"), ("third", "one")]
    exchanged = {commit.node: commit.live for commit in run.commits if commit.live is not None}
    assert {field: len(seqs) for field, seqs in exchanged["one"].posts.items()} == {"draft": 1, "plan": 1}
    conflicts = [(event.field, event.author) for event in run.events if isinstance(event, LiveConflict)]
    assert ("draft", "two") in conflicts


@pytest.mark.parametrize("alive", [True, False], ids=["live", "isolated"])
def test_the_latest_value_counts_in_one_branch_too(alive: bool) -> None:
    def one(ctx: Context) -> dict[str, Any]:
        ctx.post("draft", "first")
        ctx.post("draft", "second")
        return {"plan": {"a": 1}}

    def two(ctx: Context) -> dict[str, Any]:
        return {"draft": f"{list(ctx.live('draft'))[-1].value} and more"}

    graph = Graph(Draft).add_node("one", one, writes=["draft", "plan"]).add_node("two", two, writes=["draft"])
    run = finished(graph.add_path(START, "one", "two", END).compile().run({}, live=alive))
    assert run.state.to_dict() == {"draft": "second and more", "plan": {"a": 1}}
    assert [commit.patch["draft"] for commit in run.commits[1:]] == ["second", "second and more"]


def test_two_isolated_branches_conflict_over_the_latest_value() -> None:
    graph = Graph(Draft).add_node("one", lambda: {"draft": "1"}, writes=["draft"])
    graph.add_node("two", lambda: {"draft": "2"}, writes=["draft"])
    program = graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END).compile()
    assert isinstance(program.run({}, live=False).error, MergeConflictError)
    assert program.run({}).state["draft"] in ("1", "2")


# --- what events say


def test_the_first_event_lists_the_live_fields() -> None:
    """S004-15: fields, types, limits."""

    class Shared(BaseModel):
        task: str
        notes: Annotated[list[str], reducers.append, live(on_conflict="reject"), limit(kb=2, full="drop_oldest")] = []

    run = finished(
        Graph(Shared).add_node("n", lambda ctx: {}, writes=[]).add_path(START, "n", END).compile().run({"task": ""})
    )
    event = run.events[0]
    assert isinstance(event, RunStarted)
    assert [field.to_dict() for field in event.fields] == [
        {"name": "task", "type": "str", "reducer": "", "live": "", "limit_kb": None, "full": ""},
        {
            "name": "notes",
            "type": "list[str]",
            "reducer": "append",
            "live": "reject",
            "limit_kb": 2,
            "full": "drop_oldest",
        },
    ]


def test_the_event_of_a_post_has_update_reducer_and_time() -> None:
    """S004-16: agent, field, operation, delta, time, size."""
    program = team(sequence=True, one=(lambda ctx: ctx.post("code", {"k": "été"}), ["code"])).compile()
    began = time.time()
    run = finished(program.run({}))
    (event,) = [event for event in run.events if isinstance(event, Posted)]
    assert (event.node, event.field, event.operation, event.value) == ("one", "code", "update", {"k": "été"})
    assert began - 1 <= event.time <= time.time() + 1
    assert event.size == len('{"k": "été"}'.encode())
    assert event.to_dict()["value"] == {"k": "été"}
    hidden = team(sequence=True, one=(lambda ctx: ctx.post("code", {"k": "secret"}), ["code"])).compile(redact="code.k")
    assert "secret" not in str([event.to_dict() for event in hidden.run({}).events])


# --- who is there, in any graph


@modes
def test_peers_works_without_live_fields(go: Any) -> None:
    """S004-13."""
    seen: list[Any] = []
    ready, done = threading.Event(), threading.Event()

    def works(ctx: Context) -> None:
        ctx.doing("page 3")
        ready.set()
        assert done.wait(20)

    def looks(ctx: Context) -> None:
        assert ready.wait(20)
        seen.extend(ctx.peers())
        done.set()

    async def alooks(ctx: Context) -> None:
        await asyncio.to_thread(looks, ctx)

    async def aworks(ctx: Context) -> None:
        await asyncio.to_thread(works, ctx)

    graph = Graph().add_node("works", aworks, writes=[]).add_node("looks", alooks, writes=[])
    graph.add_node("last", lambda ctx: {"alone": ctx.peers() == []}, writes=["alone"])
    graph.add_edge(START, ["works", "looks"]).add_edge(["works", "looks"], "last").add_edge("last", END)
    run = finished(go(graph.compile()))
    assert [tuple(peer) for peer in seen] == [("works", (0,), 1, "page 3", "")]
    assert run.state["alone"] is True


def test_an_isolated_run_has_no_peers() -> None:
    ready = threading.Barrier(2)

    def looks(ctx: Context) -> dict[str, Any]:
        ready.wait(20)
        found = {ctx.node: len(ctx.peers())}
        ready.wait(20)
        return found

    graph = Graph().add_node("a", looks, writes=["a"]).add_node("b", looks, writes=["b"])
    program = graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END).compile()
    assert finished(program.run({}, live=False)).state.to_dict() == {"a": 0, "b": 0}
    assert finished(program.run({})).state.to_dict() == {"a": 1, "b": 1}
