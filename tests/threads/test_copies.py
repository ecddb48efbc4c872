"""Copies and reruns from any commit: the state there, the commits before, and the nodes still to be called."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dspyer import END, START, Context, Graph, Run, Thread
from dspyer.errors import ThreadError
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Change
from tests.log.equality import finished, left_to_call, outcome
from tests.log.failing import FailingMemory
from tests.log.kinds import CALLS, INPUTS, KINDS, Called, State
from tests.log.test_crashes_of_random_graphs import program_of
from tests.scheduler.test_schedule import Plan, plans


def resume(thread: Thread, mode: str) -> Run:
    return thread.resume() if mode == "sync" else asyncio.run(thread.aresume())


def start_run(thread: Thread, mode: str, inputs: dict[str, Any]) -> Run:
    return thread.run(inputs) if mode == "sync" else asyncio.run(thread.arun(inputs))


@pytest.mark.parametrize(("name", "mode"), [(name, ("sync", "async")[n % 2]) for n, name in enumerate(KINDS)])
def test_every_commit_can_be_read_copied_and_resumed(name: str, mode: str) -> None:
    kind, store = KINDS[name], Memory()
    program = kind.compile(mode, store)
    CALLS.take()
    with kind.lm():
        thread = program.thread("t")
        first = start_run(thread, mode, INPUTS)
        calls = CALLS.take()
        second = start_run(thread, mode, INPUTS)
        CALLS.take()
        history = thread.history()
        assert [commit.version for commit in history] == list(range(len(history)))
        ids = [commit.id.partition("/")[2] for commit in history]
        assert ids == [commit.id for run in (first, second) for commit in run.commits]
        assert thread.replay() == thread.state == second.state
        for commit in history:
            run = first if commit.id.startswith("t.1/") else second
            assert thread.at(commit.version or 0) == thread.at(commit.id) == run.at(commit.version or 0)
        for commit in first.commits[::2]:  # the others are where reruns begin below
            twin = thread.copy(f"to {commit.version}", at=commit.version)
            assert twin.at(commit.id) == thread.at(f"t.1/{commit.id}")
            assert [found.id for found in twin.history()] == [found.id for found in history[: len(twin.history())]]
            assert len(twin.history()) == (commit.version or 0) + 1
            assert CALLS.take() == {}
            if twin.status == "completed":
                assert commit is first.commits[-1]
                continue
            left = left_to_call(calls, finished(store, twin.name))
            with pytest.raises(ThreadError, match=r"thread\.resume"):
                twin.run(INPUTS)
            assert outcome(resume(twin, mode)) == outcome(first)
            made = CALLS.take()
            policies = {call: count for call, count in made.items() if call.what == "policy"}
            assert made - type(made)(policies) == type(left)({c: n for c, n in left.items() if c.what != "policy"})
            assert twin.replay() == twin.state == first.state
        assert thread.history() == history


@pytest.mark.slow("a law: copies each of the commits of 25 random graphs and goes on with it")
@given(plans(), st.integers(0, 2**32))
def test_copies_of_random_graphs_at_every_commit(plan: Plan, seed: int) -> None:
    store = FailingMemory()
    program = program_of(plan, random.Random(seed), store)
    thread = program.thread("t")
    whole = asyncio.run(thread.arun({}))
    assume(whole.status == "completed")
    history = thread.history()
    for commit in history:
        assert thread.at(commit.id) == whole.at(commit.version or 0)
        twin = thread.copy(f"to {commit.version}", at=commit.id)
        assert twin.at(commit.id) == thread.at(commit.id)
        if twin.status != "completed":
            assert outcome(asyncio.run(twin.aresume())) == outcome(whole)
        of_copy = twin.history()
        assert [found.id.partition("/")[2] for found in of_copy] == [found.id.partition("/")[2] for found in history]
    assert thread.history()[: len(history)] == history


def test_a_copy_of_a_copy_in_a_fork() -> None:
    program = KINDS["fork"].compile("sync", Memory())
    thread = program.thread("t")
    run = thread.run(INPUTS)
    for commit in run.commits[2:-2]:
        name = f"c{commit.version}"
        twin = thread.copy(name, at=commit.version)
        for other in twin.history():
            third = twin.copy(f"{name} {other.id}", at=other.id)
            assert outcome(third.resume()) == outcome(run)


def test_a_copy_is_small_and_refuses_a_name_that_is_taken(tmp_path: Path) -> None:
    with SQLite(tmp_path / "runs.db") as store:
        thread = KINDS["loop"].compile("sync", store).thread("t")
        for _ in range(5):
            thread.run(INPUTS)
        last = len(thread.history()) - 1
    before = (tmp_path / "runs.db").stat().st_size
    with SQLite(tmp_path / "runs.db") as store:
        thread = KINDS["loop"].compile("sync", store).thread("t")
        for number in range(30):
            thread.copy(f"c{number}", at=last - number % 10)
        with pytest.raises(ThreadError, match="there is a thread 'c1' already"):
            thread.copy("c1")
        with pytest.raises(ThreadError, match="no run yet"):
            KINDS["loop"].compile("sync", store).thread("new").copy("c200")
    assert (tmp_path / "runs.db").stat().st_size - before <= 30 * 1024


@pytest.mark.parametrize("name", KINDS)
def test_a_rerun_repeats_what_came_after_its_commit(name: str) -> None:
    kind = KINDS[name]
    program = kind.compile("sync", Memory())
    CALLS.take()
    with kind.lm():
        thread = program.thread("t")
        first = thread.run(INPUTS)
        calls = CALLS.take()
        thread.run(INPUTS)
        before = thread.history()
        CALLS.take()
        for commit in first.commits[1:-1:2]:
            before = thread.history()
            again = thread.rerun(commit.version or 0)
            assert outcome(again) == outcome(first)
            assert CALLS.take() <= calls
            assert thread.state == first.state
            assert [found.version for found in thread.history()] == list(range(len(first.commits)))
            assert thread.history()[: (commit.version or 0) + 1] == before[: (commit.version or 0) + 1]
        for commit in before:  # what has left the history can still be read
            assert thread.at(commit.id) is not None
        with pytest.raises(ThreadError, match="end of a run"):
            thread.rerun(len(first.commits) - 1)
        assert asyncio.run(thread.arerun(0)).state == first.state


def test_the_name_of_a_thread_is_a_non_empty_text(tmp_path: Path) -> None:
    program = (
        Graph().add_node("n", lambda state: {"n": 1}).add_path(START, "n", END).compile(store=tmp_path / "runs.db")
    )
    thread = program.thread("t")
    thread.run({})
    names: list[Any] = ["", None, 5, b"t", "\ud800"]
    for name in names:
        for make in (program.thread, thread.copy):
            with pytest.raises(ThreadError, match="is no name of a thread"):
                make(name)
    assert program.threads() == ["t"]


@pytest.mark.parametrize("number", range(3))
def test_commits_replaced_by_a_rerun_can_be_copied_and_rerun(number: int, tmp_path: Path) -> None:
    calls = []

    def draw(wish: str) -> dict[str, Any]:
        calls.append(wish)
        return {"card": f"{wish} drawn"}

    graph = Graph().add_node(draw, writes=["card"])
    graph.add_node("keep", lambda card: {"cards": [card]}, writes=["cards"]).add_path(START, "draw", "keep", END)
    thread = graph.compile(store=tmp_path / "runs.db").thread("t")
    thread.run({"wish": "ace"})
    first = thread.history()
    thread.rerun(from_version=first[0].id)
    thread.rerun(from_version=0)
    calls.clear()
    again = graph.compile(store=tmp_path / "runs.db").thread("t")  # a handle that has read nothing yet
    twin = again.copy("twin", at=first[number].id)
    assert [commit.id for commit in twin.history()] == [commit.id for commit in first[: number + 1]]
    if number < 2:
        assert twin.resume().status == "completed"
        assert again.rerun(from_version=first[number].id).status == "completed"
        assert [commit.id for commit in again.history()][: number + 1] == [commit.id for commit in first[: number + 1]]
        assert twin.state["cards"] == ["ace drawn"]
        assert again.state == twin.state == twin.replay()
    assert calls == (["ace", "ace"] if number == 0 else [])


def test_copies_of_a_waiting_run_are_answered_independently() -> None:
    charged: list[str] = []

    def ask(ctx: Context) -> dict[str, Any]:
        ctx.once("charge", lambda: charged.append(ctx.execution))
        name = ctx.interrupt("name", "Who?", answer=str)
        return {"q": f"{name} {ctx.interrupt('age', 'How old?', answer=int)}"}

    graph = Graph(State).add_node("ask", ask, writes=["q"]).add_path(START, "ask", END)
    thread = graph.compile(store=Memory()).thread("t")
    thread.run({})
    assert [question.key for question in thread.resume({"name": "Ada"}).questions] == ["age"]
    twin, earlier = thread.copy("twin"), thread.copy("earlier", at=0)
    assert twin.status == "interrupted"
    assert [question.key for question in twin.questions] == ["age"]
    assert twin.resume({"age": 1}).state["q"] == "Ada 1"
    assert thread.resume({"age": 2}).state["q"] == "Ada 2"
    assert charged == ["t.1/trunk:1"]
    assert earlier.questions == ()  # nothing was asked there yet
    assert [question.key for question in earlier.resume().questions] == ["name"]
    assert charged == ["t.1/trunk:1", "earlier.1/trunk:1"]
    again = thread.rerun(0)
    assert [question.key for question in again.questions] == ["name"]
    assert len(charged) == 3  # a new execution, and a new effect
    assert thread.resume({"name": "Bo"}).status == "interrupted"
    assert thread.resume({"age": 3}).state["q"] == "Bo 3"


def test_a_copy_of_a_run_in_a_map_keeps_finished_items() -> None:
    program = KINDS["map"].compile("sync", Memory())
    CALLS.take()
    CALLS.fault = Called("node", "measure", "trunk:2[1]")
    thread = program.thread("t")
    try:
        assert thread.run(INPUTS).status == "failed"
    finally:
        CALLS.fault = None
    made = CALLS.take()
    twin = thread.copy("twin")
    assert twin.resume().state["sizes"] == [1, 3, 2]
    measured = [call for call in CALLS.take() if call.name == "measure"]
    assert Called("node", "measure", "trunk:2[1]") in measured
    done = [call for call in made if call.name == "measure" and call.execution != "trunk:2[1]"]
    assert not set(done) & set(measured)
    assert thread.resume().state == twin.state


@pytest.mark.parametrize("pauses", [{"b2": 30, "c": 5}, {"a1": 30, "a2": 30, "b1": 5, "b2": 5, "c": 5}])
def test_every_commit_of_a_run_that_was_resumed_and_rerun_can_be_copied(pauses: dict[str, int]) -> None:
    """Also one inside a fork that the first run has made, with rows before it that the rerun has left out."""

    def node(name: str) -> Any:
        async def write(ctx: Context) -> dict[str, Any]:
            for _ in range(pauses.get(name, 0)):
                await asyncio.sleep(0)
            return {name: ctx.execution}

        return write

    names = ("a1", "a2", "b1", "b2", "c", "end")
    graph = Graph().add_node("fork", lambda: None, writes=[])
    for name in names:
        graph.add_node(name, node(name), reads=[], writes=[name])
    graph.add_edge(START, "fork").add_edge("fork", ["a1", "b1", "c"]).add_path("a1", "a2").add_path("b1", "b2")
    graph.add_edge(["a2", "b2", "c"], "end").add_edge("end", END)
    store = Memory()
    program = graph.compile(store=store)
    for first in range(2, 6):
        for second in (first % 4 + 2, 5):
            thread = program.thread(f"{first} {second}")
            asyncio.run(thread.arun({})).raise_error()
            for version in (first, second):
                before = [commit for commit in thread.history() if (commit.version or 0) <= version]
                copy = thread.copy(to=f"{thread.name} {version} {len(program.threads())}", at=version)
                runs = {copy: asyncio.run(copy.aresume()), thread: asyncio.run(thread.arerun(from_version=version))}
                for made, run in runs.items():
                    history = made.history()
                    assert history[: len(before)] == before
                    assert len({commit.id.rpartition("/")[2] for commit in history}) == len(history)
                    assert made.replay() == made.state == run.state
                    assert graph.compile(store=store).thread(made.name).state == run.state
                    assert sorted(run.state) == sorted(names)


class Meanwhile(Memory):
    """Another process acts just before the store gets the copy."""

    def __init__(self) -> None:
        super().__init__()
        self.act: Any = None

    def write(self, change: Change) -> int:
        act, self.act = (self.act, None) if change.thread == "copy" else (None, self.act)
        if act is not None:
            act()
        return super().write(change)


@pytest.mark.parametrize("part", ["whole", "at", "patch"])
def test_a_copy_whose_history_is_pruned_while_it_is_made_is_none(part: str) -> None:
    store = Meanwhile()
    graph = Graph(keep=["n"]).add_node("count", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "count", END)
    program = graph.compile(store=store)
    thread = program.thread("t")
    for n in (1, 2, 3):
        thread.run({"n": n})
    commits = thread.history()
    store.act = lambda: program.thread("t").prune(before=commits[4].id)
    of_part: dict[str, dict[str, Any]] = {"whole": {}, "at": {"at": commits[5].id}, "patch": {"patch": {"n": 7}}}
    options = of_part[part]
    with pytest.raises(ThreadError, match="was pruned while it was copied: nothing was copied"):
        thread.copy("copy", **options)
    assert program.threads() == ["t"]
    assert thread.replay() == thread.state
    assert thread.copy("copy", **options).state["n"] == (7 if part == "patch" else 4)
