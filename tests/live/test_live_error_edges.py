"""An error edge takes a failure: the posts of the node are withdrawn, and what has read them is called again."""

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
from dspyer.events import NodeFailed, Withdrawn
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


@each(("go", "limit"), [(MODES["run"], 1), (MODES["arun"], 32), (MODES["run"], 32)])
def test_a_reader_of_withdrawn_posts_is_called_again_without_them(go: Any, limit: int) -> None:
    """The writer fails after its post was read. The reader runs again, and hears nothing."""
    read, calls = threading.Event(), []

    def fails(ctx: Context) -> None:
        ctx.post("notes", "lost")
        assert read.wait(20)
        raise ValueError("broken")

    def listens(ctx: Context) -> dict[str, Any]:
        calls.append(ctx.execution)
        heard = []
        for entry in ctx.live("notes"):
            heard.append(entry.value)
            read.set()
        return {"echoes": ",".join(heard)}

    if limit == 1:
        read.set()  # there is one slot: the writer holds it until it fails
    program = desk(fails=(fails, ["notes"]), listens=(listens, ["echoes"])).compile(max_concurrency=limit)
    run = go(program)
    assert run.status == "completed", run.error
    assert list(run.state["echoes"]) == [""]
    assert list(run.state["notes"]) == []
    assert [each.node for each in run.state["problems"]] == ["fails"]
    assert len(set(calls)) == 1
    names = [type(event).__name__ for event in run.events if isinstance(event, Withdrawn | NodeFailed)]
    assert names == ["NodeFailed", "Withdrawn"]


@modes
def test_readers_of_readers_are_called_again(go: Any) -> None:
    echoed = threading.Event()

    def fails(ctx: Context) -> None:
        ctx.post("notes", "lost")
        assert echoed.wait(20)
        raise ValueError("broken")

    def last(ctx: Context) -> dict[str, Any]:
        heard = []
        for entry in ctx.live("echoes"):
            heard.append(entry.value)
            echoed.set()
        return {"done": len(heard)}

    nodes = {"fails": (fails, ["notes"]), "middle": (echo("sync"), ["echoes"]), "last": (last, ["done"])}
    run = go(desk(**nodes).compile())
    assert run.status == "completed", run.error
    assert (list(run.state["echoes"]), run.state["done"]) == ([], 0)


@modes
def test_a_reader_that_had_returned_is_called_again(go: Any) -> None:
    """It is held until the writer commits. The writer fails instead."""
    returned = threading.Event()
    calls = []

    def fails(ctx: Context) -> None:
        ctx.post("notes", "lost")
        assert returned.wait(20)
        raise ValueError("broken")

    def takes_one(ctx: Context) -> dict[str, Any]:
        calls.append(ctx.execution)
        for entry in ctx.live("notes"):
            returned.set()
            return {"echoes": entry.value}
        return {"echoes": "nothing"}

    run = go(desk(fails=(fails, ["notes"]), takes=(takes_one, ["echoes"])).compile())
    assert run.status == "completed", run.error
    assert list(run.state["echoes"]) == ["nothing"]
    assert len(calls) == 2


def test_two_that_read_each_other_do_not_undo_each_other_for_ever() -> None:
    """Each fails whenever it has heard the other."""

    def talks(own: str, other: str) -> Any:
        def node(ctx: Context) -> None:
            ctx.post(own, "hello")
            for _ in ctx.live(other):
                raise ValueError("heard something")

        return node

    run = desk(one=(talks("notes", "echoes"), ["notes"]), two=(talks("echoes", "notes"), ["echoes"])).compile().run({})
    assert run.status == "completed", run.error
    # The second one is called again without the posts of the first, hears nothing, and commits.
    assert len(run.state["problems"]) == 1
    assert len(run.state["notes"]) + len(run.state["echoes"]) == 1


def test_a_failure_without_an_edge_leaves_its_readers_undone() -> None:
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
def test_a_stored_run_keeps_withdrawn_posts_withdrawn(tmp_path: Any, crash: bool) -> None:
    calls: list[str] = []
    armed = [crash]

    def fails(ctx: Context) -> None:
        calls.append("fails")
        ctx.post("notes", "lost")
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
    assert (list(run.state["notes"]), list(run.state["echoes"])) == ([], [])
    assert calls == ["fails", "handle", *(["handle"] if crash else [])]
    assert [commit.live for commit in run.commits if commit.node == "fails"] == [None]


SCRIPTS = st.lists(st.lists(st.sampled_from(["post", "read", "fail"]), max_size=4), min_size=2, max_size=4)


@given(SCRIPTS, st.sampled_from([1, 2, 32]), st.booleans(), st.sampled_from([1, 2]))
@example([["read"], ["post", "read", "read", "fail"], ["read", "post"]], 1, False, 1)  # two are undone, with one slot
def test_no_committed_value_depends_on_a_withdrawn_post(
    scripts: list[list[str]], limit: int, is_async: bool, attempts: int
) -> None:
    """Nodes post, read one entry and fail in any order. Each run completes, with the posts of those that succeed."""

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
    posts = {
        f"{number}.{place}"
        for number, script in enumerate(scripts)
        for place, step in enumerate(script)
        if step == "post" and f"n{number}" not in failed
    }
    assert set(run.state["notes"]) == posts
    assert {word for echo in run.state["echoes"] for word in echo.split()} <= posts
    assert len(run.state["echoes"]) == len(scripts) - len(failed)
