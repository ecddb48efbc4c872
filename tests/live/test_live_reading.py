"""Reading a live field: a reader gets every post while its author still runs, and every loop ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dspyer import END, START, Context, Graph
from tests.live.kit import ANSWERED, MODES, Pad, driven, drives, echo, finished, modes, team, writer


@driven("run sync", "run async", "arun sync", "arun async", "worker thread sync", "stream async", "astream sync")
def test_a_reader_gets_every_post_and_its_loop_ends(go: Any, colour: str) -> None:
    for sequence in (False, True):
        check_reader(go, colour, sequence)


def check_reader(go: Any, colour: str, sequence: bool) -> None:
    """S004-17: how far it has read is part of its commit."""
    nodes = {"writer": (writer, ["notes"]), "echo": (echo(colour), ["echoes"])}
    run = finished(go(team(sequence=sequence, **nodes).compile()))
    state = run.state.to_dict()
    assert {name: state[name] for name in ANSWERED} == ANSWERED
    commit = next(commit for commit in run.commits if commit.node == "echo")
    assert commit.live is not None
    seqs = next(commit.live.posts["notes"] for commit in run.commits if commit.node == "writer" and commit.live)
    assert commit.live.reads == {"notes": seqs[-1]}


@modes
def test_a_post_is_read_while_its_author_still_runs(go: Any) -> None:
    """S004-12."""
    heard = threading.Event()

    def posts(ctx: Context) -> None:
        ctx.post("notes", "now")
        assert heard.wait(20)

    def listens(ctx: Context) -> None:
        assert next(ctx.live("notes")).value == "now"
        heard.set()

    finished(go(team(posts=(posts, ["notes"]), listens=listens).compile()))


@pytest.mark.parametrize(("go", "limit"), [(MODES["run"], 1), (MODES["worker thread"], 2), (MODES["arun"], 1)])
def test_fifty_sync_waiters_hold_no_slot(go: Any, limit: int) -> None:
    def waits(ctx: Context) -> dict[str, int]:
        return {"done": len([note for note in ctx.live("notes") if note.value == "go"])}

    def posts(ctx: Context) -> None:
        ctx.post("notes", "go")

    nodes: dict[str, Any] = {f"w{number}": (waits, ["done"]) for number in range(50)}
    graph = team(*nodes, "last", **nodes, last=(posts, ["notes"]))
    assert finished(go(graph.compile(max_concurrency=limit))).state["done"] == 50


@drives
def test_no_more_nodes_work_at_once_than_max_concurrency(go: Any, colour: str) -> None:
    """A waiting reader that continues takes a slot again."""
    lock, working, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        with lock:
            working -= 1

    def listens(ctx: Context) -> None:
        for _ in ctx.live("notes"):
            work()

    async def alistens(ctx: Context) -> None:
        async for _ in ctx.live("notes"):
            work()

    def posts(ctx: Context) -> None:
        for number in range(20):
            work()
            ctx.post("notes", str(number))

    nodes: dict[str, Any] = {f"n{number}": listens if colour == "sync" else alistens for number in range(6)}
    finished(go(team(*nodes, "last", **nodes, last=(posts, ["notes"])).compile(max_concurrency=1)))
    assert most == 1


@drives
def test_of_a_ring_of_waiters_the_first_in_path_order_is_released(go: Any, colour: str) -> None:
    ended: list[str] = []

    def member(ctx: Context) -> None:
        for _ in ctx.live("notes"):
            pass
        ended.append(ctx.node)
        ctx.post("notes", f"{ctx.node} ends")

    async def amember(ctx: Context) -> None:
        async for _ in ctx.live("notes"):
            pass
        ended.append(ctx.node)
        ctx.post("notes", f"{ctx.node} ends")

    fn = member if colour == "sync" else amember
    nodes = {name: (fn, ["notes"]) for name in ("c", "a", "b")}
    run = finished(go(team(**nodes).compile()))
    assert ended == ["c", "a", "b"]
    assert run.state.to_dict()["notes"] == ["c ends", "a ends", "b ends"]
    commits = {commit.node: commit for commit in run.commits}
    assert commits["b"].live is not None
    assert commits["b"].live.reads == {"notes": 2}


def test_a_field_is_open_while_a_node_that_writes_it_can_still_start() -> None:
    """The writer comes two nodes behind a sibling, and behind a router."""
    graph = Graph(Pad)
    graph.add_node("listens", echo("sync"), reads=["notes"], writes=["echoes"])
    graph.add_node("early", lambda ctx: {"done": 1}, writes=["done"])
    graph.add_node("late", lambda ctx: {"notes": "late"}, writes=["notes"])
    graph.add_node("other", lambda ctx: {}, writes=[])
    graph.add_edge(START, ["listens", "early"]).add_edge("listens", END).add_edge(["late", "other"], END)
    graph.add_conditional_edges("early", lambda done: "late" if done else "other", ["late", "other"])
    assert finished(graph.compile(max_concurrency=1).run({})).state.to_dict()["echoes"] == ["late late"]


def test_a_writer_that_comes_after_the_reader_does_not_keep_the_field_open() -> None:
    """The node at the join writes the field, and can only start once the listener has ended."""
    graph = Graph(Pad)
    graph.add_node("listens", echo("sync"), reads=["notes"], writes=["echoes"])
    graph.add_node("beside", lambda ctx: {}, writes=[])
    graph.add_node("joined", lambda ctx: {"notes": "after"}, writes=["notes"])
    graph.add_edge(START, ["listens", "beside"]).add_edge(["listens", "beside"], "joined").add_edge("joined", END)
    state = finished(graph.compile().run({})).state.to_dict()
    assert (state["notes"], state["echoes"]) == (["after"], [])
