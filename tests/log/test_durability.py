"""What is written and flushed when, and what a failed write or a dead process loses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dspyer import END, START, CompiledGraph, Context, Graph
from dspyer.errors import StoreError
from dspyer.stores import Memory, Store
from dspyer.stores.base import Change
from tests.log.failing import FailingMemory

MODES = ["sync", "async"]


class Recorder(Memory):
    """Records the changes, and fails while `fails` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self.fails = False

    def write(self, change: Change) -> int:
        """Keeps a change."""
        if self.fails:
            raise OSError("no space left")
        epoch = super().write(change)
        self.changes.append(change)
        return epoch

    def rows_of(self) -> list[list[str]]:
        """The kinds of the rows of each change that has any."""
        return [[row.kind for row in change.rows] for change in self.changes if change.rows]


def loop(store: Store, during: Callable[[int], None] = lambda n: None, last: int = 5) -> CompiledGraph:
    """A loop of `last` steps."""

    def step(n: int) -> dict[str, int]:
        during(n)
        return {"n": n + 1}

    graph = Graph(outputs=["n"]).add_node(step).add_edge(START, "step")
    graph.add_conditional_edges("step", lambda n: "step" if n < last else END, ["step", END])
    return graph.compile(store=store)


def run(program: CompiledGraph, mode: str) -> Any:
    """A run in a mode, from 0."""
    t = program.thread("t")
    return t.run({"n": 0}) if mode == "sync" else asyncio.run(t.arun({"n": 0}))


STEPS = [["commit"]] * 6


@pytest.mark.parametrize("mode", MODES)
def test_what_is_written_together_and_what_is_flushed(mode: str) -> None:
    store = Recorder()
    assert run(loop(store), mode).status == "completed"
    assert store.rows_of() == [["open"], *STEPS, ["end"]]
    assert [change.flush for change in store.changes if change.rows] == [True, *[False] * 6, True]


def test_kinds_of_stored_rows_are_plain_strings() -> None:
    """Enums would be converted by the drivers of databases, each in its own way."""
    store = Recorder()
    t = loop(store).thread("t")
    t.run({"n": 0})
    assert {type(row.kind) for change in store.changes for row in change.rows} == {str}
    assert {type(row.kind) for row in store.rows(store.runs("t")[0].id)} == {str}


def ctrl_c() -> None:
    """Ctrl-C, in the middle of a write."""
    raise KeyboardInterrupt


def interrupt(n: int) -> None:
    """Ctrl-C, in the middle of a node."""
    if n == 3:
        raise KeyboardInterrupt


def fail(n: int) -> None:
    """A failure."""
    if n == 3:
        raise RuntimeError("boom")


def test_a_failure_is_written_with_all_before_it() -> None:
    store = Recorder()
    failed = run(loop(store, fail), "sync")
    assert failed.status == "failed"
    assert [row.kind for row in store.rows(store.runs("t")[0].id)][-1] == "end"
    calls: list[int] = []
    done = loop(store, calls.append).thread("t").resume()
    assert (done.status, done.state["n"], calls) == ("completed", 5, [3, 4])


def test_a_run_that_is_interrupted_by_ctrl_c_is_written_and_stopped() -> None:
    store = Recorder()
    with pytest.raises(KeyboardInterrupt):
        run(loop(store, interrupt), "sync")
    calls: list[int] = []
    t = loop(store, calls.append).thread("t")
    assert t.status == "stopped"
    assert t.state["n"] == 3
    assert t.resume().state["n"] == 5
    assert calls == [3, 4]


@pytest.mark.parametrize("after", [False, True], ids=["before it took effect", "after that"])
@pytest.mark.parametrize("mode", MODES)
def test_ctrl_c_in_the_middle_of_a_write_neither_loses_nor_doubles_a_commit(mode: str, after: bool) -> None:
    for at in range(2, 9):  # the writes of the inputs, of five steps, and of the end
        store = FailingMemory()
        store.arm(ctrl_c, at, after, forever=False)
        with pytest.raises(KeyboardInterrupt):
            run(loop(store), mode)
        calls: list[int] = []
        t = loop(store, calls.append).thread("t")
        assert t.status == ("stopped" if at < 7 else "completed"), at
        if at < 7:
            assert t.resume().status == "completed", at
        assert (t.state["n"], calls) == (5, list(range(at - 2, 5)))
        assert [commit.node for commit in t.history()] == ["START", *["step"] * 5], at


def test_a_process_that_dies_loses_no_transition() -> None:
    store = Recorder()

    def during(n: int) -> None:
        if n == 3:
            store.write = lambda change: change.epoch  # type: ignore[method-assign]  # nothing reaches it any more
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(loop(store, during), "sync")
    del store.write
    calls: list[int] = []
    done = loop(store, calls.append).thread("t").resume(take_over=True)
    assert done.state["n"] == 5
    assert calls == [3, 4]


def test_effects_and_questions_are_flushed() -> None:
    store = Recorder()
    seen: list[bool] = []

    def effect() -> int:
        return 7

    def charge(ctx: Context, n: int) -> dict[str, int]:
        got = ctx.once("charge", effect)
        row = store.rows(store.runs("t")[0].id)[-1]
        seen.append(row.kind == "once" and store.changes[-1].flush)
        return {"n": got + ctx.interrupt("sure", "how many?", int)}

    graph = Graph(outputs=["n"]).add_node(charge, writes=["n"]).add_path(START, "charge", END)
    program = graph.compile(store=store)
    t = program.thread("t")
    assert t.run({"n": 0}).status == "interrupted"
    assert store.changes[-1].flush
    assert [question.key for question in program.thread("t").questions] == ["sure"]
    done = t.resume({"sure": 1})
    assert done.state["n"] == 8
    assert seen[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_write_that_fails_takes_back_the_commit_it_was_to_write(mode: str) -> None:
    store = Recorder()
    calls: list[int] = []

    def during(n: int) -> None:
        calls.append(n)
        store.fails = n == 3

    failed = run(loop(store, during), mode)
    assert isinstance(failed.error, StoreError)
    assert isinstance(failed.error.__cause__, OSError)
    assert [commit.node for commit in failed.commits] == ["START", "step", "step", "step"]
    assert calls == [0, 1, 2, 3]
    store.fails = False
    calls.clear()
    done = loop(store, calls.append).thread("t").resume(take_over=True)
    assert done.state["n"] == 5
    assert calls == [3, 4]
