"""Maps with failures on a thread: finished items are rows, failed ones are not, and a resume calls what has no row."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel
from tenacity import wait_none

from dspyer import END, START, CompiledGraph, Context, Failure, Graph, Retry, Run
from dspyer.errors import MapError
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.base import Change
from tests.log.equality import finished, outcome
from tests.log.failing import Crash, FailingMemory, crash
from tests.log.processes import end_of, fork
from tests.nodes.kit import MODES


class Corpus(BaseModel):
    docs: list[str] = []
    notes: list[str] = []
    unread: list[Failure] = []


Calls = Counter[str]


def reading(store: Store | str | None, node: Any, *, limit: int = 4, **options: Any) -> CompiledGraph:
    graph = Graph(Corpus, inputs=["docs"])
    graph.add_map("read", node, over="docs", item="doc", into="notes", failures="unread", **options)
    graph.add_node("end", lambda: None, writes=[])
    return graph.add_path(START, "read", "end", END).compile(store=store, max_concurrency=limit)


def reader(calls: Calls, rng: random.Random | None = None) -> Any:
    """A node that notes the executions that it is called in, and fails for some documents."""

    async def read(doc: str, ctx: Context) -> str:
        calls[ctx.execution.partition("/")[2] or ctx.execution] += 1
        for _ in range(0 if rng is None else rng.randrange(4)):
            await anyio.lowlevel.checkpoint()
        if doc == "bad" or (doc == "flaky" and ctx.attempt < 3):
            raise ConnectionError(doc)
        return f"{doc}!"

    return read


def inside(node: Any) -> CompiledGraph:
    """A graph of two nodes, the second of which reads."""
    graph = Graph(inputs=["doc"], outputs=["text"]).add_node("first", lambda doc: {"text": doc}, writes=["text"])

    async def last(text: str, ctx: Context) -> dict[str, str]:
        return {"text": await node(text, ctx)}

    return graph.add_node("last", last, writes=["text"]).add_path(START, "first", "last", END).compile()


def plain(run: Run) -> Any:
    found = outcome(run)
    return found._replace(drawn=[])


@pytest.mark.slow("a law: each example runs a map whole, and with up to three crashes")
@example(docs=["a", "a"], limit=1, seed=0, crashes=[(7, True), (1, False)], share=0.0, graphs=False)
@given(
    docs=st.lists(st.sampled_from(["a", "b", "bad", "flaky"]), max_size=12),
    limit=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    crashes=st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=3),
    share=st.sampled_from([0.0, 0.5]),
    graphs=st.booleans(),
)
def test_items_that_fail_and_crashes_change_no_result(
    docs: list[str], limit: int, seed: int, crashes: list[tuple[int, bool]], share: float, graphs: bool
) -> None:
    """In any order of completion, ended anywhere: equal commits, and no finished item is called again."""
    calls: Calls = Counter()
    rng, store = random.Random(seed), FailingMemory()
    retry = None if graphs else Retry(3, wait=wait_none())

    def program(rng: random.Random | None, limit: int) -> CompiledGraph:
        node = reader(calls, rng)
        return reading(store, inside(node) if graphs else node, limit=limit, retry=retry, min_success=share)

    whole = asyncio.run(program(None, 1).thread("whole").arun({"docs": docs}))
    bad = sum(doc == "bad" or (graphs and doc == "flaky") for doc in docs)
    lost = bool(docs) and (bad == len(docs) or (len(docs) - bad) / len(docs) < share)
    assert whole.status == ("failed" if lost else "completed")
    assert isinstance(whole.error, MapError) == lost

    def attempt() -> Run:
        calls.clear()
        thread = program(rng, limit).thread("t")
        done = finished(store, "t")
        new = thread.status == "new"
        try:
            return asyncio.run(thread.arun({"docs": docs}) if new else thread.aresume(max_resumes=100))
        finally:
            called = {name.partition("/")[0] for name in calls}
            assert not called & done
            assert not any(name == "trunk:1" for name in done) or not calls

    for at, after in crashes:
        if program(None, 1).thread("t").status == "completed":
            break  # the process before crashed after the write that ended the run
        store.arm(crash, at, after)
        try:
            attempt()
        except Crash:
            continue
        break
    store.rest()
    thread = program(rng, limit).thread("t")
    if thread.status != "completed":
        assert plain(attempt()) == plain(whole) if not lost else attempt().status == "failed"
    assert thread.state == whole.state


@MODES
def test_kill_9_in_an_item(mode: str, tmp_path: Path) -> None:
    path, marks = tmp_path / "runs.db", tmp_path / "marks"
    marks.mkdir()

    def read(doc: str, ctx: Context) -> str:
        with (marks / doc).open("a") as file:
            file.write("x")
        if doc == "7" and ctx.attempt == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if doc == "3" or (doc == "7" and not (marks / "again").exists()):
            raise ConnectionError(doc)
        return doc

    async def aread(doc: str, ctx: Context) -> str:
        return read(doc, ctx)

    retry = Retry(2, wait=wait_none())
    program = reading(SQLite(path), read if mode == "sync" else aread, limit=1, retry=retry)
    docs = {"docs": [str(i) for i in range(10)]}
    thread = program.thread("t")
    killed = fork(lambda: thread.run(docs) if mode == "sync" else asyncio.run(thread.arun(docs)))
    assert end_of(killed) == -signal.SIGKILL
    (marks / "again").touch()
    run = thread.resume() if mode == "sync" else asyncio.run(thread.aresume())
    assert run.state["notes"] == [str(i) for i in range(10) if i != 3]
    assert [(one.index, one.attempt) for one in run.state["unread"]] == [(3, 2)]
    counts = {doc: len((marks / doc).read_text()) for doc in docs["docs"]}
    # 3 failed in both processes, twice in each; 7 was in its second attempt, and a resume counts from 1 again.
    assert counts == dict.fromkeys(docs["docs"], 1) | {"3": 4, "7": 3}


@MODES
def test_the_commit_refers_to_the_rows_of_the_items_that_succeeded(mode: str, tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    docs = {"docs": ["bad", "a", "b", "bad", "c", "bad"]}
    thread = reading(path, reader(Counter())).thread("t")
    run = thread.run(docs) if mode == "sync" else asyncio.run(thread.arun(docs))
    with SQLite(path) as store:
        head = store.thread("t")
        assert head is not None
        assert head.head is not None
        rows = store.rows(head.head.run, 0)
        (row,) = [row for row in rows if row.kind == "commit" and row.header["node"] == "read"]
        assert row.header["items"] == {"field": "notes", "number": 3, "failed": [0, 3, 5]}
        assert row.content is not None
        assert b"a!" not in row.content.data
        assert {row.header["execution"] for row in rows if row.kind == "item"} == {f"trunk:1[{i}]" for i in (1, 2, 4)}
    again = reading(path, reader(Counter())).thread("t")
    assert again.state == run.state
    assert [dict(commit.patch) for commit in again.history()] == [dict(commit.patch) for commit in run.commits]
    assert [type(one) for one in again.state["unread"]] == [Failure] * 3
    again.export(tmp_path / "t.jsonl")
    loaded = reading(Memory(), reader(Counter())).thread("loaded")
    loaded.load(tmp_path / "t.jsonl")
    assert loaded.state == run.state


class Counting(Memory):
    """Counts writes."""

    writes = 0

    def write(self, change: Change) -> int:
        self.writes += 1
        return super().write(change)


def test_failures_and_attempts_of_items_write_nothing() -> None:
    counts = []
    for docs in (["a"] * 6, ["a", "flaky", "a", "flaky", "a", "a"], ["a"] * 6 + ["bad"] * 6):
        store = Counting()
        asyncio.run(
            reading(store, reader(Counter()), limit=1, retry=Retry(3, wait=wait_none()))
            .thread("t")
            .arun({"docs": docs})
        )
        counts.append(store.writes)
    assert counts[0] == counts[1] == counts[2]


def test_failed_items_of_graphs_leave_a_history_that_can_be_read() -> None:
    program = reading(Memory(), inside(reader(Counter())))
    thread = program.thread("t")
    run = asyncio.run(thread.arun({"docs": ["a", "bad", "b"]}))
    assert run.state["notes"] == ["a!", "b!"]
    assert [commit.node for commit in thread.history()] == ["START", "read", "end"]
    assert thread.at("trunk:1") == run.state
