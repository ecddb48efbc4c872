"""Live fields of graphs inside nodes: one field at any depth, through failures, questions and killed processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Retry, errors, live, reducers
from dspyer.events import Posted
from dspyer.testing import no_pauses
from tests.children import run_python
from tests.live.kit import Notes, colours, driven, echo, finished, modes, writer

BOTH = ["notes", "echoes"]


class Board(BaseModel):
    notes: Notes = []
    echoes: Notes = []
    parts: list[int] = []
    results: list[Any] = []


def team(depth: int = 0, reads: Any = BOTH, writes: Any = BOTH, **nodes: Callable[..., Any]) -> Graph:
    """A graph of nodes that run at once, inside as many others."""
    graph = Graph(Board)
    for name, node in nodes.items():
        graph.add_node(name, node, reads=reads if depth else BOTH, writes=writes if depth else BOTH)
    graph.add_edge(START, list(nodes)).add_edge(list(nodes), END)
    for _ in range(depth):
        graph = Graph(Board).add_node("inner", graph, reads=reads, writes=writes).add_path(START, "inner", END)
    return graph


def beside(**graphs: tuple[Any, list[str], list[str]]) -> Graph:
    graph = Graph(Board)
    for name, (node, reads, writes) in graphs.items():
        graph.add_node(name, node, reads=reads, writes=writes)
    return graph.add_edge(START, list(graphs)).add_edge(list(graphs), END)


@pytest.mark.parametrize("depth", [0, 1])
@driven("run sync", "run async", "arun async", "astream sync")
def test_posts_and_reads_at_any_depth(go: Any, colour: str, depth: int) -> None:
    """The author is the node of the outermost graph. With one slot, all read while the writer works or has worked."""
    writes = team(depth, one=writer).compile()
    reads = team(depth, two=echo(colour)).compile()
    graph = beside(flat=(echo(colour), BOTH, BOTH), echo=(reads, BOTH, BOTH), writer=(writes, BOTH, BOTH))
    run = finished(go(graph.compile(max_concurrency=1)))
    assert list(run.state["notes"]) == ["a", "b", "c"]
    assert sorted(run.state["echoes"]) == sorted(["writer a", "writer b", "writer c"] * 2)
    assert [event.node for event in run.events if isinstance(event, Posted) and event.field == "notes"] == [
        "writer"
    ] * 3


def listens(ctx: Context) -> None:
    for _ in ctx.live("notes"):
        pass


@pytest.mark.parametrize(
    ("node", "reads", "writes", "error", "text"),
    [
        (writer, ["notes"], ["echoes"], errors.NodeOutputError, "does not write it there: name it, add_node('team'"),
        (lambda ctx: {"notes": "x"}, ["notes"], ["echoes"], errors.NodeOutputError, "does not write it there"),
        (listens, ["echoes"], BOTH, errors.InputError, "does not read it there: name it, add_node('team'"),
    ],
    ids=["post", "return", "read"],
)
@pytest.mark.parametrize("depth", [0, 1])
def test_the_nodes_around_must_permit_it(
    node: Any, reads: list[str], writes: list[str], error: type[Exception], text: str, depth: int
) -> None:
    run = beside(team=(team(depth, one=node).compile(), reads, writes)).compile().run({})
    assert isinstance(run.error, error)
    assert text in str(run.error)


@modes
@pytest.mark.parametrize("graph", [False, True])
def test_items_of_a_map_post(go: Any, graph: bool) -> None:
    """Each post once, although the second item fails once after it."""
    failed: list[bool] = []

    def item(one: int, ctx: Context) -> dict[str, Any]:
        ctx.post("notes", f"item {one}")
        if one == 2 and not failed:
            failed.append(True)
            raise ConnectionError("once")
        return {"notes": f"end {one}", "result": one * 10}

    class Part(BaseModel):
        one: int
        notes: Notes = []
        result: int = 0

    node: Any = item
    if graph:
        inner = Graph(Part).add_node("item", item, writes=["notes", "result"], retry=Retry(2, on=ConnectionError))
        node = inner.add_path(START, "item", END).compile()
    outer = Graph(Board).add_node("begin", lambda: {"parts": [1, 2, 3]}, writes=["parts"])
    retry: dict[str, Any] = {} if graph else {"retry": Retry(2, on=ConnectionError)}
    outer.add_map(
        "map", node, over="parts", item="one", into="results", writes={"notes": "notes", "result": ""}, **retry
    )
    outer.add_node("listens", echo("sync"), reads=["notes"], writes=["echoes"])
    outer.add_edge(START, ["begin", "listens"]).add_path("begin", "map", END).add_edge("listens", END)
    with no_pauses():
        run = finished(go(outer.compile()))
    assert sorted(run.state["notes"]) == [f"{word} {one}" for word in ("end", "item") for one in (1, 2, 3)]
    assert sorted(run.state["echoes"]) == [f"map {word} {one}" for word in ("end", "item") for one in (1, 2, 3)]
    assert list(run.state["results"]) == [10, 20, 30]


KILLED = """
import os, signal
from tests.live.test_live_inside import killed_team
killed_team({path!r}, lambda: os.kill(os.getpid(), signal.SIGKILL)).thread("t").run({{}})
"""


def killed_team(path: str, ends: Callable[[], object]) -> CompiledGraph:
    def posts(ctx: Context) -> None:
        ctx.post("notes", "before")
        ends()
        ctx.post("notes", "after")

    graph = beside(
        writer=(team(1, one=posts).compile(), BOTH, BOTH), echo=(team(1, two=echo("sync")).compile(), BOTH, BOTH)
    )
    return graph.compile(store=path)


def test_a_process_that_is_killed_between_post_and_commit_repeats_no_post(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    assert run_python(KILLED.format(path=path)).returncode == -signal.SIGKILL
    run = finished(killed_team(path, lambda: None).thread("t").resume(take_over=True))
    assert list(run.state["notes"]) == ["before", "after"]
    assert list(run.state["echoes"]) == ["writer before", "writer after"]


@colours
def test_a_question_beside_calls_waiting_nodes_inside_again(colour: str) -> None:
    def asks(ctx: Context) -> None:
        ctx.post("notes", "draft")
        ctx.interrupt("ok", "Fine?")
        ctx.post("notes", "final")

    graph = beside(asks=(asks, BOTH, BOTH), echo=(team(1, two=echo(colour)).compile(), BOTH, BOTH))
    thread = graph.compile(store=":memory:").thread("t")
    run = thread.run({})
    assert (run.status, [question.key for question in run.questions]) == ("interrupted", ["ok"])
    run = finished(thread.resume({"ok": True}))
    assert list(run.state["echoes"]) == ["asks draft", "asks final"]


@modes
def test_a_failed_graph_leaves_its_posts_to_its_error_edge(go: Any) -> None:
    def fails(ctx: Context) -> None:
        ctx.post("notes", "seen")
        raise ValueError("broken")

    graph = Graph(Board).add_node("team", team(1, one=fails).compile(), reads=BOTH, writes=BOTH)
    graph.add_node("mend", lambda ctx: {}, writes=[]).add_node("echo", echo("sync"), reads=BOTH, writes=BOTH)
    graph.add_edge(START, ["team", "echo"]).add_path("team", END).add_path("mend", END).add_edge("echo", END)
    run = finished(go(graph.add_error_edge("team", "mend").compile()))
    assert (list(run.state["notes"]), list(run.state["echoes"])) == (["seen"], ["team seen"])


@modes
def test_a_ring_of_graphs_that_wait_for_each_other_ends(go: Any) -> None:
    """The first in path order is released, at each level."""
    ended: list[str] = []

    def waits(ctx: Context) -> None:
        for _ in ctx.live("notes"):
            pass
        ended.append(ctx.node)
        ctx.post("notes", ctx.node)

    graph = beside(
        one=(team(1, a=waits, b=waits).compile(), BOTH, BOTH),
        two=(team(0, c=waits).compile(), BOTH, BOTH),
        d=(waits, BOTH, BOTH),
    )
    run = finished(go(graph.compile(max_concurrency=1)))
    assert ended[0] == "a"
    assert list(run.state["notes"]) == ended


class Numbers(BaseModel):
    notes: Annotated[list[str], reducers.extend, live] = []
    more: Notes = []


@pytest.mark.parametrize(
    ("reads", "writes", "text"),
    [
        (["notes"], [], "folded by extend inside and by append here: give both the same reducer"),
        ({"more": "notes"}, {"more": "echoes"}, "is read from 'notes' and written to 'echoes'"),
    ],
)
def test_what_cannot_be_one_field_is_an_error_of_the_graph(reads: Any, writes: Any, text: str) -> None:
    inner = Graph(Numbers).add_node("one", listens, reads=["notes"], writes=[]).add_path(START, "one", END)
    graph = Graph(Board).add_node("team", inner, reads=reads, writes=writes)
    with pytest.raises(errors.GraphError, match=text):
        graph.add_path(START, "team", END).compile()


@pytest.mark.parametrize("options", [{"inputs": ["echoes"]}, {}], ids=["named", "inferred"])
def test_a_live_field_that_is_no_input_is_given_by_a_graph_around_alone(options: dict[str, Any]) -> None:
    inner = Graph(Board, **options).add_node("one", writer, writes=["notes"]).add_path(START, "one", END)
    with pytest.raises(errors.InputError, match="has no input 'notes'"):
        inner.compile().run({"notes": "mine"})
    graph = Graph(Board, inputs=["notes"]).add_node("team", inner)
    run = graph.add_path(START, "team", END).compile().run({"notes": "mine"})
    assert list(run.state["notes"]) == ["mine", "a", "b", "c"]


def test_a_field_of_the_same_name_that_is_another_one_is_a_warning() -> None:
    graph = (
        Graph(Board).add_node("team", team(one=writer), reads=["notes"], writes=["notes"]).add_path(START, "team", END)
    )
    with pytest.warns(UserWarning, match="node 'team' has a live field 'echoes' of its own"):
        run = graph.compile().run({})
    assert list(run.state["notes"]) == ["a", "b", "c"]
