"""Concurrent runs on one thread with on_conflict="merge": nothing is lost, in whatever order they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Run, Thread, reducers
from dspyer.errors import ConcurrentRunError, InputError, MergeConflictError, OpenRunError, StoreError, ThreadError
from dspyer.events import Commit
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Change, Point, Row, Snapshot, Store, ThreadRow
from tests.log.processes import end_of, fork


class Count(BaseModel):
    who: str = ""
    n: Annotated[int, reducers.increment] = 0
    log: Annotated[list[str], reducers.extend] = []
    said: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    best: str = ""


Hook = Callable[[str], object]


def program(store: Store, hook: Hook = lambda who: None, merge: object = "raise") -> CompiledGraph:
    """Counts up; a hook is called in the node, where other runs can be made to happen."""

    def count(who: str) -> dict[str, Any]:
        hook(who)
        return {
            "n": 1,
            "log": [who],
            "said": [{"role": "user", "content": who}],
            **({"best": who} if "!" in who else {}),
        }

    graph = Graph(Count, merge=merge, keep=["n", "log", "said", "best"])
    return (
        graph.add_node("count", count, writes=["n", "log", "said", "best"])
        .add_path(START, "count", END)
        .compile(store=store)
    )


def run_merging(thread: Thread, who: str) -> Run:
    return thread.run({"who": who}, on_conflict="merge")


def check(thread: Thread, n: int) -> list[Commit]:
    """Every run is there once, and the history is whole."""
    assert thread.state["n"] == n
    assert len(thread.state["log"]) == len(set(thread.state["log"])) == n
    assert len({message["id"] for message in thread.state["said"]}) == n
    history = thread.history()
    assert [commit.version for commit in history] == list(range(len(history)))
    assert thread.replay() == thread.state
    assert thread.status == "completed"
    return history


def test_a_run_on_an_unchanged_thread_is_a_fast_forward() -> None:
    thread = program(Memory()).thread("t")
    assert run_merging(thread, "a").status == "completed"
    run = run_merging(thread, "b")
    assert run.prediction.n == 2
    assert run.state == thread.state
    history = check(thread, 2)
    assert [commit.node for commit in history] == ["START", "START", "count", "START", "count"]
    assert run.at(4) == thread.at(4) == thread.state


def test_refused_inputs_begin_no_thread() -> None:
    store = Memory()
    with pytest.raises(InputError):
        program(store).thread("t").run({"whom": "a"}, on_conflict="merge")
    assert store.thread("t") is None


def test_concurrent_runs_are_merged() -> None:
    store = Memory()
    others = iter(["b", "c"])

    def hook(who: str) -> None:
        other = next(others, None)
        if other is not None:  # the other one starts and is merged while this one is in its node
            assert run_merging(program(store, hook).thread("t"), other).status == "completed"

    run = run_merging(program(store, hook).thread("t"), "a")
    thread = program(store).thread("t")
    history = check(thread, 3)
    assert run.state["log"] == ["a"]  # the run itself has its own end
    assert thread.state["log"] == ["c", "b", "a"]
    assert [commit.node for commit in history if commit.node.startswith("join")] == ["join:t", "join:t"]
    assert run_merging(thread, "d").status == "completed"
    check(thread, 4)


def test_a_merge_waits_for_the_run_that_owns_the_thread() -> None:
    store = Memory()
    guests: list[threading.Thread] = []
    done: list[Run] = []

    def hook(who: str) -> None:
        if who == "owner":
            work = threading.Thread(target=lambda: done.append(run_merging(program(store, hook).thread("t"), "guest")))
            guests.append(work)
            work.start()
            assert inside.wait(20)
        elif who == "guest":
            inside.set()

    inside = threading.Event()
    thread = program(store, hook).thread("t")
    thread.run({"who": "first"})
    assert thread.run({"who": "owner"}).status == "completed"
    guests[0].join(20)
    assert [run.status for run in done] == ["completed"]
    check(thread, 3)
    assert thread.state["log"] == ["first", "owner", "guest"]


def test_a_run_whose_merge_conflicts_has_failed_and_its_commits_stay() -> None:
    store = Memory()
    seen: list[Run] = []

    def hook(who: str) -> None:
        if who == "a!":
            seen.append(run_merging(program(store, hook).thread("t"), "b!"))

    thread = program(store, hook).thread("t")
    run = run_merging(thread, "a!")
    assert seen[0].status == "completed"
    assert run.status == "failed"
    assert isinstance(run.error, MergeConflictError)
    with pytest.raises(MergeConflictError, match="'best'"):
        run.raise_error()
    check(thread, 1)
    assert thread.state["best"] == "b!"
    label = next(found.header["label"] for found in store.runs("t") if found.id == run.run_id)
    assert thread.at(f"{label}/trunk:1")["best"] == "a!"  # what it did can be read
    thread = program(store, hook, merge="last_write_wins").thread("t")
    assert run_merging(thread, "a!").status == "completed"
    assert thread.state["best"] == "a!"


def test_a_failed_run_merges_nothing_and_leaves_the_thread_free() -> None:
    def hook(who: str) -> None:
        if who == "bad":
            raise RuntimeError(who)

    thread = program(Memory(), hook).thread("t")
    run_merging(thread, "a")
    before = thread.history()
    assert run_merging(thread, "bad").status == "failed"
    assert thread.history() == before
    check(thread, 1)
    assert run_merging(thread, "b").status == "completed"


def test_a_run_that_asks_a_question_fails() -> None:
    def ask(ctx: Context) -> dict[str, Any]:
        return {"n": int(ctx.interrupt("how many", "How many?", answer=int))}

    graph = Graph(Count).add_node("ask", ask, writes=["n"]).add_path(START, "ask", END)
    thread = graph.compile(store=Memory()).thread("t")
    run = thread.run({}, on_conflict="merge")
    assert run.status == "failed"
    assert isinstance(run.error, ThreadError)
    assert "resume() cannot find a run" in str(run.error)
    assert thread.status == "completed"
    thread = graph.compile(store=Memory(), answers={"how many": 3}).thread("t")
    assert thread.run({}, on_conflict="merge").state["n"] == 3
    assert thread.state["n"] == 3


def test_a_merge_into_an_open_run_is_refused() -> None:
    def hook(who: str) -> None:
        if who == "bad":
            raise RuntimeError(who)

    thread = program(Memory(), hook).thread("t")
    thread.run({"who": "bad"})
    with pytest.raises(OpenRunError):
        run_merging(thread, "a")
    assert thread.run({"who": "a"}, on_conflict="merge", abandon=True).status == "completed"
    check(thread, 1)


def test_a_merge_gives_up_when_the_thread_is_owned_for_too_long() -> None:
    store = Memory()

    def hook(who: str) -> None:
        if who == "owner":
            found.append(program(store).thread("t").run({"who": "guest"}, on_conflict="merge", lock_timeout=0.0))

    found: list[Run] = []
    thread = program(store, hook).thread("t")
    thread.run({"who": "first"})
    assert thread.run({"who": "owner"}).status == "completed"
    assert isinstance(found[0].error, ConcurrentRunError)
    assert found[0].status == "failed"
    check(thread, 2)


@pytest.mark.parametrize("shared", [True, False], ids=["one handle", "a handle each"])
def test_many_threads_lose_nothing(shared: bool) -> None:
    store = Memory()
    one = program(store)
    programs = [one if shared else program(store) for _ in range(6)]
    handle = one.thread("t")

    def work(worker: int) -> None:
        for number in range(4):
            thread = handle if shared else programs[worker].thread("t")
            assert run_merging(thread, f"{worker}.{number}").status == "completed"

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    check(program(store).thread("t"), 24)


def test_many_tasks_lose_nothing() -> None:
    thread = program(Memory()).thread("t")

    async def work(worker: int) -> None:
        for number in range(3):
            run = await thread.arun({"who": f"{worker}.{number}"}, on_conflict="merge")
            assert run.status == "completed"

    async def main() -> None:
        await asyncio.gather(*map(work, range(6)))

    asyncio.run(main())
    check(thread, 18)


def test_many_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    def work(worker: int) -> None:
        with SQLite(path) as store:
            thread = program(store).thread("t")
            for number in range(4):
                assert run_merging(thread, f"{worker}.{number}").status == "completed"

    with SQLite(path):
        pass
    children = [fork(lambda worker=worker: work(worker)) for worker in range(3)]  # type: ignore[misc]
    assert [end_of(child) for child in children] == [0] * 3
    with SQLite(path) as store:
        check(program(store).thread("t"), 12)


class OneUnreadableRun(Memory):
    """A store in which the commits of one run, and its snapshots, are lost."""

    unreadable = ""

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        found = super().rows(run, first, last)
        if run != self.unreadable:
            return found
        return [
            row._replace(content=type(row.content).stored(b"?")) if row.kind == "commit" and row.content else row
            for row in found
        ]

    def snapshot(self, at: Point) -> Snapshot | None:
        return None if at.run == self.unreadable else super().snapshot(at)


def test_a_run_does_not_begin_on_commits_that_cannot_be_read() -> None:
    """While the thread has an owner, a run begins with the commit before the owner's run.

    Here a snapshot makes the owner's run readable, and that earlier commit is not. The state before that commit would
    be an older one than the thread has.
    """
    store = OneUnreadableRun()
    errors: list[StoreError] = []

    def note(who: str) -> dict[str, Any]:
        return {"log": [who]}

    def count(who: str) -> dict[str, Any]:
        if who == "owner":
            store.unreadable = store.runs("t")[0].id
            with pytest.raises(StoreError, match="cannot be read") as refused:
                run_merging(compiled().thread("t"), "guest")
            store.unreadable = ""
            errors.append(refused.value)
        return {"n": 1}

    def compiled() -> CompiledGraph:
        graph = Graph(Count, keep=["n", "log"]).add_node("note", note, writes=["log"])
        graph.add_node("steps", lambda: None, writes=[]).add_node("count", count, writes=["n"])
        graph.add_path(START, "note", "steps").add_conditional_edges("steps", after_steps, ["steps", "count"])
        return graph.add_edge("count", END).compile(store=store, max_steps=1_000)

    def after_steps(who: str, ctx: Context) -> str:
        return "steps" if who == "owner" and ctx.visit < 490 else "count"  # there is a snapshot every 480 rows

    thread = compiled().thread("t")
    thread.run({"who": "first"})
    assert thread.run({"who": "owner"}).status == "completed"
    assert len(errors) == 1
    assert len(store.runs("t")) == 2  # nothing was written of the refused run
    assert (thread.state["n"], thread.state["log"]) == (2, ["first", "owner"])


def test_a_run_that_owns_the_thread_is_not_disturbed_by_a_merge() -> None:
    """A run merged between two others moves the head; a run that started from the old head finds out."""
    store = Memory()
    thread = program(store).thread("t")
    run_merging(thread, "a")
    row = store.thread("t")
    assert row is not None
    run_merging(thread, "b")
    with pytest.raises(ConcurrentRunError):
        store.write(Change("t", row.epoch, row.epoch + 1, head=row.head, lease=0.0))
    check(thread, 2)


class Looked(Memory):
    """Calls a function of the test whenever it is asked for the thread: at each attempt to merge."""

    look: Callable[[], object] | None = None

    def thread(self, name: str) -> ThreadRow | None:
        if self.look is not None:
            self.look()
        return super().thread(name)


def test_a_cancelled_run_that_waits_for_its_merge_does_not_merge_later() -> None:
    store, begun, tried = Looked(), threading.Event(), threading.Semaphore(0)

    def count() -> None:
        tried.release()
        begun.set()

    async def cancelled() -> None:
        task = asyncio.create_task(program(store, hook).thread("t").arun({"who": "guest"}, on_conflict="merge"))
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while tried.acquire(blocking=False):
            pass
        assert not tried.acquire(timeout=0.05), "the first pauses between two attempts are 1, 2 and 4 ms"
        store.look = None

    def hook(who: str) -> None:
        if who == "owner":
            asyncio.run(cancelled())
        elif who == "guest":
            store.look = count

    thread = program(store, hook).thread("t")
    thread.run({"who": "first"})
    assert thread.run({"who": "owner"}).status == "completed"
    check(thread, 2)


def test_a_run_that_is_cancelled_in_its_merge_ends_when_it_is_merged() -> None:
    store, begun, cancelled = Looked(), threading.Event(), threading.Event()

    def hold() -> None:
        store.look = None
        begun.set()
        assert cancelled.wait(20)

    def hook(who: str) -> None:
        store.look = hold

    thread = program(store, hook).thread("t")

    async def main() -> None:
        task = asyncio.create_task(thread.arun({"who": "guest"}, on_conflict="merge"))
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        check(thread, 1)

    asyncio.run(main())
