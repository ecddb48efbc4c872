"""Runs with `live=False`, peers, the events of posts, and live fields of graphs inside of nodes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dspyer import END, START, Context, Graph, Send
from dspyer.events import Doing, Posted
from tests.live.kit import ANSWERED, Pad, echo, finished, team, writer


def test_an_isolated_run_posts_with_its_commits() -> None:
    program = team(echo=(echo("sync"), ["echoes"]), writer=(writer, ["notes"])).compile()
    run = finished(program.run({}, live=False))
    assert run.state.to_dict()["notes"] == ["a", "b", "c"]
    assert run.state.to_dict()["echoes"] == []
    assert not [event for event in run.events if isinstance(event, Posted) and event.live]
    assert all(commit.live is None for commit in run.commits)
    assert finished(asyncio.run(program.arun({}, live=False))).state == run.state


def test_peers_lists_the_other_running_nodes() -> None:
    """S004-13."""
    ready, seen = threading.Event(), threading.Event()

    def works(ctx: Context) -> None:
        ctx.doing("counting")
        ready.set()
        assert seen.wait(20)

    peers = []

    def looks(ctx: Context) -> None:
        assert ready.wait(20)
        peers.extend(ctx.peers())
        seen.set()

    run = finished(team(works=works, looks=looks).compile().run({}))
    assert [tuple(peer) for peer in peers] == [("works", (0,), 1, "counting", "")]
    assert [event.text for event in run.events if isinstance(event, Doing)] == ["counting"]


def test_a_post_is_an_event_at_once() -> None:
    """S004-16."""
    run = finished(team(writer=(writer, ["notes"])).compile().run({}))
    posted = [event for event in run.events if isinstance(event, Posted)]
    assert [(event.node, event.field, event.seq, event.size) for event in posted] == [
        ("writer", "notes", seq, 3) for seq in (1, 2, 3)
    ]
    places = {type(event).__name__: place for place, event in enumerate(run.events)}
    assert places["Posted"] < places["Committed"]


@pytest.mark.parametrize("alive", [True, False])
def test_a_live_field_of_a_graph_inside_is_that_of_the_graph_around(alive: bool) -> None:
    inner = team(writer=(writer, ["notes"]), echo=(echo("sync"), ["echoes"])).compile()
    graph = Graph(Pad).add_node("inner", inner, reads=["task", "notes", "code"], writes=["notes", "echoes"])
    graph.add_node("echo", echo("sync"), reads=["notes"], writes=["echoes"])
    graph.add_edge(START, ["echo", "inner"]).add_edge(["echo", "inner"], END)
    run = finished(graph.compile().run({}, live=alive))
    state = run.state.to_dict()
    assert state["notes"] == ANSWERED["notes"]
    heard = ["inner a", "inner b", "inner c"]
    assert sorted(state["echoes"]) == sorted(heard * 2 if alive else [])


def test_executions_of_one_node_read_each_others_posts() -> None:
    heard: dict[str, list[str]] = {}

    def worker(ctx: Context, name: str) -> dict[str, str]:
        ctx.post("notes", name)
        heard[name] = sorted(note.value for note in ctx.live("notes"))
        return {}

    graph = Graph(Pad).add_node("split", lambda ctx: {}, writes=[]).add_node("worker", worker, writes=["notes"])
    graph.add_edge(START, "split").add_edge("worker", END)
    graph.add_conditional_edges("split", lambda ctx: [Send("worker", {"name": name}) for name in "abc"], ["worker"])
    finished(graph.compile().run({}))
    assert heard == {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]}
