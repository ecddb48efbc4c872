"""A run that began with `t.update(..., as_node=...)`: until it is resumed, its first commit is its open row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, reducers
from dspyer.events import Commit
from dspyer.stores import Memory


def counting(store: Memory | None = None, route: Callable[[], object] = lambda: "two") -> CompiledGraph:
    graph = Graph(inputs=["n"], keep=["n"]).add_node("one", lambda n: {"n": n + 1}, writes=["n"])
    graph.add_node("two", lambda n: {"n": n * 2}, writes=["n"])
    graph.add_edge(START, "one").add_conditional_edges("one", route, ["two"]).add_edge("two", END)
    return graph.compile(store=store or Memory())


def listed(commits: Iterable[Commit]) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(commit.id, commit.parents, commit.route) for commit in commits]


@pytest.mark.parametrize("runs_before", [0, 1])
def test_rerun_from_the_manual_commit_that_opened_a_run(runs_before: int) -> None:
    thread = counting().thread("t")
    for _ in range(runs_before):
        thread.run({"n": 1})
    commit = thread.update({"n": 5}, as_node="one")
    run = thread.rerun(commit.id)
    assert (run.status, run.state["n"], thread.replay()["n"]) == ("completed", 10, 10)
    assert [one.node for one in thread.history()][-2:] == ["one", "two"]
    assert thread.rerun(commit.version or 0).state["n"] == 10  # again, now that the run has a commit row


def test_copy_at_the_manual_commit_that_opened_a_run() -> None:
    thread = counting().thread("t")
    commit = thread.update({"n": 5}, as_node="one")
    copied = thread.copy("d", at=commit.id)
    assert (copied.status, copied.resume().state["n"], thread.status) == ("stopped", 10, "stopped")


def test_rerun_from_the_opening_of_an_abandoned_run() -> None:
    thread = counting().thread("t")
    commit = thread.update({"n": 5}, as_node="one")
    thread.run({"n": 100}, if_open="abandon")
    assert thread.rerun(commit.id).state["n"] == 10


@pytest.mark.parametrize("how", ["rerun", "copy", "copy_at"])
def test_pages_and_the_whole_history_give_an_opening_the_same_id(how: str) -> None:
    program = counting()
    thread = program.thread("t")
    commit = thread.update({"n": 5}, as_node="one")
    if how == "rerun":
        thread.rerun(commit.id)
    else:
        thread = thread.copy("d", at=commit.id if how == "copy_at" else None)
        thread.resume()
    whole = listed(thread.history())
    assert whole[0][0] == commit.id
    assert listed(program.thread(thread.name).history(count=9)) == whole
    thread.update({"n": 1})
    assert listed(program.thread(thread.name).history(count=1, newest=True)) == listed(thread.history())[-1:]


def test_an_opening_that_was_read_before_the_resume_has_its_route_afterwards() -> None:
    program = counting()
    thread, other = program.thread("t"), program.thread("t")
    commit = thread.update({"n": 5}, as_node="one")
    assert [thread.history()[0].route, thread.blame("n").route] == [()] * 2
    other.resume()
    assert thread.history()[0].route == ("two",)
    assert [one.route for one in thread.history() if one.id == commit.id] == [("two",)]


@pytest.mark.parametrize("resumed_once", [False, True])
@pytest.mark.parametrize(("as_node", "doubled"), [(None, 14), ("one", 14)])
def test_an_opening_can_be_corrected_until_it_is_resumed(as_node: str | None, doubled: int, resumed_once: bool) -> None:
    memory = Memory()
    broken = counting(memory, lambda: 1 / 0)
    thread = broken.thread("t")
    thread.run({"n": 1}, if_open="abandon")
    thread.update({"n": 5}, as_node="one")
    if resumed_once:
        assert thread.resume().status == "failed"  # in its router: nothing is committed
    thread = counting(memory).thread("t")
    assert thread.update({"n": 7}, as_node=as_node).node == (as_node or "one")
    assert (thread.status, thread.state["n"]) == ("stopped", 7)
    changed = thread.copy("changed", patch={"n": 8})
    assert (changed.state["n"], changed.resume().state["n"], thread.state["n"]) == (8, doubled + doubled // 7, 7)
    first = thread.copy("first", at=thread.history()[-2].id, patch={"n": 9})
    assert (first.resume().state["n"], thread.resume().state["n"]) == (18, doubled)
    assert thread.replay() == thread.state


class Log(BaseModel):
    log: Annotated[list[str], reducers.append] = []


@pytest.mark.parametrize("runs_before", [0, 1])
def test_an_opening_that_a_reducer_folds_is_read_without_the_program_and_loaded(
    runs_before: int, tmp_path: Path
) -> None:
    """It is folded by the schema of the graph that wrote it, as any other commit is."""
    graph = Graph(Log, inputs=["log"]).add_node("one", lambda log: {"log": log[-1]}, writes=["log"])
    program = (
        graph.add_node("two", lambda log: None, writes=[]).add_path(START, "one", "two", END).compile(store=Memory())
    )
    thread = program.thread("t")
    for _ in range(runs_before):
        thread.run({"log": "a"})
    commit = thread.update({"log": "b"}, as_node="one")
    thread.export(tmp_path / "t.jsonl")
    loaded = program.thread("u")
    loaded.load(tmp_path / "t.jsonl")  # reads the thread without a program
    assert (loaded.state, loaded.at(commit.id), loaded.status) == (thread.state, thread.at(commit.id), "stopped")
