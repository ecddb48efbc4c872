"""An error edge takes a failure: the posts of the node are part of the commit that it makes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, Context, Failure, Graph, Retry, reducers
from dspyer.events import Posted
from dspyer.testing import no_pauses
from tests.live.kit import MODES, Notes, echo, modes
from tests.rows import each


class Desk(BaseModel):
    notes: Notes = []
    echoes: Notes = []
    done: int = 0
    problems: Annotated[list[Failure], reducers.append] = []
    said: Annotated[list[str], reducers.append] = []


def desk(**nodes: Any) -> Graph:
    """Nodes that run at once, whose failures go to `handle`."""
    graph = Graph(Desk)
    for name, (fn, writes) in nodes.items():
        graph.add_node(name, fn, reads=["notes", "echoes"], writes=writes)
    graph.add_node("handle", lambda problems: {"said": problems[-1].node}, writes=["said"])
    graph.add_edge(START, list(nodes)).add_edge([*nodes, "handle"], END)
    return graph.add_error_edge(list(nodes), "handle", on=ValueError, into="problems")


@each(("go", "colour", "limit"), [(MODES["run"], "sync", 1), (MODES["arun"], "async", 32), (MODES["run"], "async", 32)])
def test_the_posts_of_a_failed_node_are_in_its_commit(go: Any, colour: str, limit: int) -> None:
    """Its reader has heard them, is called once, and commits."""

    def fails(ctx: Context) -> None:
        ctx.post("notes", "one")
        ctx.post("notes", "two")
        raise ValueError("broken")

    async def afails(ctx: Context) -> None:
        fails(ctx)

    nodes = {"fails": (fails if colour == "sync" else afails, ["notes"]), "listens": (echo(colour), ["echoes"])}
    run = go(desk(**nodes).compile(max_concurrency=limit))
    assert run.status == "completed", run.error
    assert list(run.state["notes"]) == ["one", "two"]
    assert list(run.state["echoes"]) == ["fails one", "fails two"]
    assert [each.node for each in run.state["problems"]] == ["fails"]
    (commit,) = [commit for commit in run.commits if commit.node == "fails"]
    posts = [event.seq for event in run.events if isinstance(event, Posted) and event.node == "fails"]
    assert commit.failure is not None
    assert commit.live is not None
    assert commit.live.to_dict() == {"posts": {"notes": posts}, "reads": {}}
    assert run.blame("notes").node == "fails"


@modes
def test_what_a_failed_node_has_read_it_reads_again_on_its_next_visit(go: Any) -> None:
    heard: list[list[str]] = []

    def listens(ctx: Context) -> None:
        heard.append([entry.value for entry in ctx.live("notes")])
        if ctx.visit == 1:
            raise ValueError("broken")

    graph = Graph(Desk).add_node("writes", lambda ctx: {"notes": "note"}, writes=["notes"])
    graph.add_node("listens", listens, reads=["notes"], writes=[]).add_node(
        "handle", lambda: {"done": 1}, writes=["done"]
    )
    graph.add_path(START, "writes", "listens", END).add_edge("handle", "listens").add_error_edge("listens", "handle")
    run = go(graph.compile())
    assert run.status == "completed", run.error
    assert heard == [["note"], ["note"]]


@modes
def test_two_that_fail_whenever_they_hear_each_other_end(go: Any) -> None:
    def talks(own: str, other: str) -> Any:
        def node(ctx: Context) -> None:
            ctx.post(own, "hello")
            for _ in ctx.live(other):
                raise ValueError("heard something")

        return node

    nodes = {"one": (talks("notes", "echoes"), ["notes"]), "two": (talks("echoes", "notes"), ["echoes"])}
    run = go(desk(**nodes).compile())
    assert run.status == "completed", run.error
    assert (list(run.state["notes"]), list(run.state["echoes"])) == (["hello"], ["hello"])
    assert sorted(each.node for each in run.state["problems"]) == ["one", "two"]


def test_after_a_failure_without_an_edge_readers_commit_nothing() -> None:
    heard = threading.Event()

    def fails(ctx: Context) -> None:
        ctx.post("notes", "lost")
        assert heard.wait(20)
        raise KeyError("no edge takes this")

    def listens(ctx: Context) -> None:
        for _ in ctx.live("notes"):
            heard.set()

    run = desk(fails=(fails, ["notes"]), listens=(listens, ["echoes"])).compile().run({})
    assert isinstance(run.error, KeyError)
    assert [commit.node for commit in run.commits] == ["START"]
    assert [failure.node for failure in run.failures] == ["fails"]


@pytest.mark.parametrize("crash", [False, True])
def test_a_stored_run_keeps_the_posts_of_a_failed_node(tmp_path: Any, crash: bool) -> None:
    calls: list[str] = []
    armed = [crash]

    def fails(ctx: Context) -> None:
        calls.append("fails")
        ctx.post("notes", "kept")
        raise ValueError("broken")

    def handle(problems: list[Failure]) -> dict[str, Any]:
        calls.append("handle")
        if armed.pop() if armed else False:
            raise KeyError("crash")
        return {"said": "handled"}

    graph = Graph(Desk).add_node("fails", fails, writes=["notes"]).add_node("handle", handle, writes=["said"])
    graph.add_node("listens", echo("sync"), reads=["notes"], writes=["echoes"])
    graph.add_path(START, "fails", "listens", END).add_edge("handle", "listens")
    graph.add_error_edge("fails", "handle", into="problems")
    program = graph.compile(store=tmp_path / "runs.db")
    run = program.thread("t").run({})
    if crash:
        assert run.status == "failed"
        run = asyncio.run(program.thread("t").aresume())
    assert run.status == "completed", run.error
    assert (list(run.state["notes"]), list(run.state["echoes"])) == (["kept"], ["fails kept"])
    assert program.thread("t").replay() == run.state
    assert calls == ["fails", "handle", *(["handle"] if crash else [])]
    lives = [commit.live for commit in run.commits if commit.node == "fails"]
    assert [live.to_dict() for live in lives if live is not None] == [{"posts": {"notes": [1]}, "reads": {}}]


SCRIPTS = st.lists(st.lists(st.sampled_from(["post", "read", "fail"]), max_size=4), min_size=2, max_size=4)


@given(SCRIPTS, st.sampled_from([1, 2, 32]), st.booleans(), st.sampled_from([1, 2]))
@example([["read"], ["post", "read", "read", "fail"], ["read", "post"]], 1, False, 1)
def test_each_post_is_committed_once_whatever_becomes_of_its_node(
    scripts: list[list[str]], limit: int, is_async: bool, attempts: int
) -> None:
    """Nodes post, read one entry and fail in any order. Each run completes, and has all posts."""

    def steps(number: int, ctx: Context) -> Iterator[str]:
        for place, step in enumerate(scripts[number]):
            if step == "post":
                ctx.post("notes", f"{number}.{place}")
            elif step == "fail":
                raise ValueError(str(number))
            else:
                yield step

    def talks(number: int) -> Any:
        def node(ctx: Context) -> dict[str, Any]:
            heard = [entry.value for _ in steps(number, ctx) for entry in islice(ctx.live("notes"), 1)]
            return {"echoes": " ".join(heard)}

        async def anode(ctx: Context) -> dict[str, Any]:
            heard = []
            for _ in steps(number, ctx):
                async for entry in ctx.live("notes"):
                    heard.append(entry.value)
                    break
            return {"echoes": " ".join(heard)}

        return anode if is_async else node

    nodes = {f"n{number}": (talks(number), ["notes", "echoes"]) for number in range(len(scripts))}
    program = desk(**nodes).compile(max_concurrency=limit, retry=Retry(attempts, on=ValueError))
    with no_pauses():
        run = asyncio.run(program.arun({})) if is_async else program.run({})
    assert run.status == "completed", run.error
    assert {failure.attempt for failure in run.state["problems"]} <= {attempts}
    failed = {failure.node for failure in run.state["problems"]}
    assert failed == {f"n{number}" for number, script in enumerate(scripts) if "fail" in script}
    posts = [
        f"{number}.{place}"
        for number, script in enumerate(scripts)
        for place, step in enumerate(script)
        if step == "post" and "fail" not in script[:place]
    ]
    assert sorted(run.state["notes"]) == sorted(posts)
    heard = [echo.split() for echo in run.state["echoes"]]
    order = list(run.state["notes"])
    assert all(words == sorted(words, key=order.index) for words in heard)
    assert len(heard) == len(scripts) - len(failed)
