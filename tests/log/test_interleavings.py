"""Two processes work on the same threads in random order: the store stays consistent, and holds nothing else."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Thread, reducers
from dspyer.errors import ConcurrentRunError, StoreError, ThreadError
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.base import Change
from tests.log.processes import end_of, fork

NAMES = ("a", "b", "c")
STEPS = 24
LONG = "a long text " * 2_000

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")


class State(BaseModel):
    log: Annotated[list[str], reducers.extend] = []
    long: str = ""


def work(log: list[str]) -> dict[str, Any]:
    return {"log": [log[-1].upper()], "long": LONG + log[-1][-1]}


def program(store: Store) -> CompiledGraph:
    graph = Graph(State, inputs=["log"]).add_node("work", work, writes=["log", "long"])
    return graph.add_path(START, "work", END).compile(store=store)


def export_and_load(t: Thread, other: Thread, folder: Path) -> None:
    path = folder / f"{os.getpid()}.jsonl"
    t.export(path)
    other.load(path)


def prune(t: Thread) -> None:
    commits = t.history()
    if commits:
        t.prune(before=commits[len(commits) // 2].id)


def play(seed: int, who: str, folder: Path) -> None:
    chance = random.Random(f"{seed} {who}")
    with SQLite(folder / "runs.db") as store:
        made = program(store)
        for step in range(STEPS):
            t, other = (made.thread(name) for name in chance.choices(NAMES, k=2))
            acts: list[Callable[[], object]] = [
                lambda t=t, step=step: t.run({"log": [f"{who}{step}"]}, if_open="abandon", take_over=step % 3 == 0),  # type: ignore[misc]
                lambda t=t, other=other: t.copy(other.name),  # type: ignore[misc]
                lambda t=t, step=step: t.delete(take_over=step % 2 == 0),  # type: ignore[misc]
                lambda t=t: prune(t),  # type: ignore[misc]
                lambda t=t, other=other: export_and_load(t, other, folder),  # type: ignore[misc]
            ]
            # What it reads may be deleted meanwhile: then one of these errors is raised.
            with suppress(ConcurrentRunError, ThreadError, StoreError, LookupError):
                chance.choices(acts, weights=[6, 2, 1, 1, 1])[0]()


@pytest.mark.parametrize("seed", range(6))
def test_two_processes_leave_a_consistent_store(seed: int, tmp_path: Path) -> None:
    with SQLite(tmp_path / "runs.db") as store:
        program(store).thread("a").run({"log": ["first"]})
    children = [fork(lambda who=who: play(seed, who, tmp_path)) for who in "xy"]  # type: ignore[misc]
    assert [end_of(child) for child in children] == [0, 0]
    with SQLite(tmp_path / "runs.db") as store:
        made = program(store)
        for name in made.threads():
            t = made.thread(name)
            if store.runs(name) or t.history():
                assert t.replay() == t.state
                log = t.state["log"]
                # A run that was taken over before its node committed leaves its input: the next run continues from it.
                answers = [place for place, said in enumerate(log) if said.isupper()]
                assert all(place and log[place - 1].upper() == log[place] for place in answers), log
                assert not log or t.state["long"].startswith(LONG), "a large value is lost"
        for name in made.threads():
            made.thread(name).delete(take_over=True)
        store.delete()
    file = sqlite3.connect(tmp_path / "runs.db")
    tables = ("thread", "run", "entry", "snapshot", "blob", "link", "ref")
    left = {table: file.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    file.close()
    assert set(left.values()) == {0}, left


class Waiting(Memory):
    """A store that async code has to wait for, as for a server."""

    def write_now(self, change: Change) -> bool:
        del change
        return False


def test_a_cancellation_at_any_write_that_waits_neither_loses_nor_repeats_a_row() -> None:
    for at in range(1, 40):
        check_cancellation(at)


def check_cancellation(at: int) -> None:
    paid: list[int] = []

    async def pay() -> int:
        paid.append(1)
        return len(paid)

    async def work(n: int, ctx: Context) -> dict[str, Any]:
        return {"n": n + await ctx.once("pay", pay)}

    graph = Graph().add_node("first", work, writes=["n"]).add_node("second", lambda n: {"n": n + 1}, writes=["n"])
    thread = graph.add_path(START, "first", "second", END).compile(store=Waiting()).thread("t")

    async def cancelled() -> None:
        task = asyncio.ensure_future(thread.arun({"n": 0}))
        for _ in range(at):
            await asyncio.sleep(0)
        for _ in range(40):  # one cancellation ends the run; the others arrive during its last writes
            task.cancel()
            await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    if thread.status == "new":
        asyncio.run(thread.arun({"n": 0}))
    elif thread.status != "completed":
        asyncio.run(thread.aresume(take_over=True))
    commits = [commit.id for commit in thread.history()]
    assert (thread.status, thread.state["n"], len(paid)) == ("completed", 2, 1), at
    assert len(commits) == len(set(commits)) == 3, at
