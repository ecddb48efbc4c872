"""One run owns a thread: others are refused or wait, a dead owner is replaced, a replaced one writes nothing more."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from dspyer import END, START, Graph, Run, Thread
from dspyer.errors import ConcurrentRunError, OpenRunError
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Change, DeletionReport, Store, ThreadRow, never
from tests.log.failing import Crash, FailingMemory, crash
from tests.log.processes import end_of, fork
from tests.threads.owned_runs import BackgroundRun, Count, Gate, WatchedStore, gated


def test_a_second_run_is_refused_before_any_node_is_called(store: Store) -> None:
    gate, other = Gate(), Gate()
    first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(20)
    thread = gated(other, store).thread("t")
    assert thread.status == "running"
    for ask in (
        lambda: thread.run({"n": 1}),
        lambda: thread.run({"n": 1}, if_open="abandon"),
        thread.resume,
        lambda: asyncio.run(thread.arun({"n": 1})),
        lambda: asyncio.run(thread.aresume()),
        lambda: thread.run({"n": 1}, on_conflict="wait", lock_timeout=0.0),
        lambda: list(thread.stream({"n": 1})),
    ):
        with pytest.raises(ConcurrentRunError, match=r"owned by another run.*take_over=True"):
            ask()
    assert other.calls == 0
    gate.opened.set()
    assert first.end().state.to_dict() == {"n": 1, "log": ["before", "gate", "after"]}
    other.opened.set()
    assert thread.run({"n": 1}).state["n"] == 2


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_on_conflict_wait_starts_when_the_other_run_has_ended(colour: str) -> None:
    store, gate = WatchedStore(), Gate()
    first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(20)
    thread = gated(gate, store).thread("t")
    if colour == "sync":
        second = BackgroundRun(lambda: thread.run({"n": 10}, on_conflict="wait"))
    else:
        second = BackgroundRun(lambda: asyncio.run(thread.arun({"n": 10}, on_conflict="wait")))
    store.wait_for_reads(3)
    assert gate.calls == 1
    gate.opened.set()
    assert first.end().state["n"] == 1
    assert second.end().state["n"] == 11


def test_tasks_that_wait_for_a_thread_occupy_no_worker_threads() -> None:
    """More tasks wait than AnyIO has worker threads, and the run that they wait for needs one to write."""
    store = WatchedStore()
    store.writes_at_once = False

    async def step(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"log": ["step"]}

    graph = Graph(Count, inputs=["n"]).add_node("step", step).add_path(START, "step", END)
    thread = graph.compile(store=store).thread("t")

    async def all_of_them() -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 2
        await asyncio.gather(*[thread.arun({"n": 1}, on_conflict="wait") for _ in range(6)])

    asyncio.run(all_of_them())
    assert thread.state["n"] == 6


@pytest.mark.parametrize("how", ["resume", "run"])
def test_a_replaced_owner_commits_nothing_more(store: Store, how: str) -> None:
    gate, other = Gate(), Gate()
    other.opened.set()
    first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(20)
    thread = gated(other, store).thread("t")
    if how == "resume":
        run = thread.resume(take_over=True)
    else:
        with pytest.raises(OpenRunError):
            thread.run({"n": 10}, take_over=True)
        run = thread.run({"n": 10}, take_over=True, if_open="abandon")
    state = run.state
    assert (run.status, state["n"]) == ("completed", 1 if how == "resume" else 11)
    gate.opened.set()
    replaced = first.end()
    assert isinstance(replaced.error, ConcurrentRunError)
    assert [commit.node for commit in replaced.commits] == ["START", "before"]
    assert (thread.state, thread.status) == (state, "completed")
    assert other.calls == 1


def test_commits_of_the_old_owner_during_a_take_over_are_kept() -> None:
    """It commits after the new owner has read the thread, and before the new owner has acquired it."""
    store, gate, other = WatchedStore(), Gate(), Gate()
    written, replaced = threading.Event(), threading.Event()
    first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(20)

    def before(change: Change) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert not written.is_set() or replaced.wait(20)
        elif not written.is_set():
            gate.opened.set()
            assert written.wait(20)

    def after(change: Change) -> None:
        done = replaced if threading.current_thread() is threading.main_thread() else written
        done.set()

    store.before, store.after = before, after
    run = gated(other, store).thread("t").resume(take_over=True)
    assert run.state["log"] == ["before", "gate", "after"]
    assert other.calls == 0
    assert isinstance(first.end().error, ConcurrentRunError)


def test_an_owner_counts_as_alive_from_its_first_write_on() -> None:
    """Other runs of the process ask for the thread right after the write that makes the owner visible."""
    store, gate = WatchedStore(), Gate()
    gate.opened.set()
    program = gated(gate, store)
    seen: list[BaseException] = []

    def look(change: Change) -> None:
        store.after = lambda change: None
        asked: list[Callable[[], Run]] = [lambda: program.thread("t").run({"n": 1}), program.thread("t").resume]
        for ask in asked:
            with pytest.raises(ConcurrentRunError) as caught:
                ask()
            seen.append(caught.value)

    store.after = look
    assert program.thread("t").run({"n": 1}).status == "completed"
    assert len(seen) == 2


class StoreWithRace(WatchedStore):
    """Calls functions of the test around the first read of the thread's row by the main thread."""

    def __init__(self) -> None:
        super().__init__()
        self.before_read: Callable[[], None] | None = None
        self.after_read: Callable[[], None] | None = None
        self.count = 0

    def thread(self, name: str) -> ThreadRow | None:
        if (
            threading.current_thread() is not threading.main_thread()
            or self.before_read is None
            or self.after_read is None
        ):
            return super().thread(name)
        self.count += 1
        if self.count != 1:
            return super().thread(name)
        self.before_read()
        found = super().thread(name)
        self.after_read()
        return found


def test_a_run_that_ends_while_its_owner_is_checked_has_not_crashed() -> None:
    """The run begins and ends while another one checks whether the owner of the thread is alive."""
    store, gate = StoreWithRace(), Gate()
    runs: list[BackgroundRun] = []

    def begins() -> None:
        runs.append(BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1})))
        assert gate.inside.wait(20)

    def ends() -> None:
        gate.opened.set()
        runs[0].end()

    store.before_read, store.after_read = begins, ends
    assert gated(gate, store).thread("t").run({"n": 10}).state["n"] == 11
    assert len(runs) == 1


def test_a_crashed_run_of_this_process_is_replaced_at_once() -> None:
    store, gate = FailingMemory(), Gate()
    gate.opened.set()
    store.arm(crash, 3, after=False)
    with pytest.raises(Crash):
        gated(gate, store).thread("t").run({"n": 1})
    row = store.thread("t")
    assert row is not None
    assert row.owner is not None
    assert row.owner.pid == os.getpid()
    store.rest()
    assert gated(gate, store).thread("t").resume().status == "completed"


@pytest.mark.slow("forks eight processes that run on one thread at the same time")
@pytest.mark.parametrize("how", ["wait", "raise"])
def test_no_increment_of_eight_processes_is_lost(how: str, tmp_path: Path) -> None:
    graph = Graph(Count, inputs=["n"]).add_node("step", lambda state: None).add_path(START, "step", END)
    program = graph.compile(store=SQLite(tmp_path / "runs.db"))

    def increment(thread: Thread) -> None:
        if how == "wait":
            thread.run({"n": 1}, on_conflict="wait")
            return
        while True:
            try:
                thread.run({"n": 1})
            except ConcurrentRunError:
                os.sched_yield()
                continue
            return

    def work() -> None:
        for _ in range(5):
            increment(program.thread("t"))

    children = [fork(work) for _ in range(8)]
    assert [end_of(child) for child in children] == [0] * 8
    assert program.thread("t").state["n"] == 40


def test_another_process_is_refused_until_the_owner_has_ended(tmp_path: Path) -> None:
    """The child owns the thread; the parent is refused until the child has ended."""
    gate = Gate()
    program = gated(gate, SQLite(tmp_path / "runs.db"))
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()

    def child() -> None:
        def waits(state: Any) -> dict[str, Any]:
            os.write(to_parent, b"x")
            os.read(from_parent, 1)
            return {"log": ["gate"]}

        assert gated(gate, SQLite(tmp_path / "runs.db"), waits).thread("t").run({"n": 1}).status == "completed"

    pid = fork(child)
    assert os.read(from_child, 1) == b"x"
    with pytest.raises(ConcurrentRunError, match=f"process {pid} on "):
        program.thread("t").run({"n": 1})
    assert program.thread("t").status == "running"
    os.write(to_child, b"x")
    assert end_of(pid) == 0
    assert gate.calls == 0
    gate.opened.set()
    assert program.thread("t").run({"n": 1}).state["n"] == 2


@pytest.mark.parametrize("kept", [True, False], ids=["a copy keeps its rows", "its rows are gone"])
@pytest.mark.parametrize("stale_first", [True, False], ids=["the stale owner first", "the new owner first"])
def test_the_owner_of_a_deleted_thread_writes_nothing_to_its_successor(
    store: Store, kept: bool, stale_first: bool
) -> None:
    """Neither rows nor head, and it does not release the thread of the new owner."""
    old, new = Gate(), Gate()
    stale = BackgroundRun(lambda: gated(old, store).thread("t").run({"n": 1}))
    assert old.inside.wait(20)
    thread = gated(Gate(), store).thread("t")
    if kept:
        thread.copy(to="kept")
    thread.delete(take_over=True)
    owner = BackgroundRun(lambda: gated(new, store).thread("t").run({"n": 2}))
    assert new.inside.wait(20)
    for gate, run in ((old, stale), (new, owner)) if stale_first else ((new, owner), (old, stale)):
        before = store.thread("t")
        gate.opened.set()
        ended = run.end()
        after = store.thread("t")
        assert before is not None
        assert after is not None
        if run is stale:
            assert isinstance(ended.error, ConcurrentRunError)
            assert (after.epoch, after.head, after.owner) == (before.epoch, before.head, before.owner)
    assert owner.end().status == "completed"
    assert thread.state.to_dict() == {"n": 2, "log": ["before", "gate", "after"]}
    assert thread.status == "completed"


def test_a_thread_that_a_run_acquires_meanwhile_is_not_deleted() -> None:
    """`delete` has checked that no run owns the thread, and checks it again in the transaction that deletes."""
    gate = Gate()
    begun: list[BackgroundRun] = []

    class Late(Memory):
        def delete(self, threads: Collection[str] = (), busy: Callable[[ThreadRow], bool] = never) -> DeletionReport:
            if not begun:
                begun.append(BackgroundRun(lambda: gated(gate, self).thread("t").run({"n": 1}, if_open="abandon")))
                assert gate.inside.wait(20)
            return super().delete(threads, busy)

    store = Late()
    thread = gated(gate, store).thread("t")
    thread.update({"n": 1})
    with pytest.raises(ConcurrentRunError, match="is owned by another run"):
        thread.delete()
    gate.opened.set()
    assert begun[0].end().status == "completed"
    assert thread.state["n"] == 2
    gate.inside.clear()
    gate.opened.clear()
    begun.clear()
    assert thread.delete(take_over=True).threads == ("t",)
    gate.opened.set()
    assert isinstance(begun[0].end().error, ConcurrentRunError)
    assert store.threads() == []
