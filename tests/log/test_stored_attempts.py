"""Failed attempts are a part of the commit that follows them: no row and no write of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dspyer import END, START, CompiledGraph, Context, Failure, Graph, Retry
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Row, Store
from dspyer.stores.encrypted import Encrypted
from dspyer.testing import no_pauses
from tests.log.test_durability import Recorder

MODES = ["sync", "async"]
QUICK = Retry(4)


@pytest.fixture(autouse=True)
def pauses() -> Iterator[list[float]]:
    with no_pauses() as asked:
        yield asked


def failing(failures: int, message: str = "no line") -> Callable[..., dict[str, int]]:
    """A node whose first calls fail."""
    calls = iter([ConnectionError(f"{message} {count}") for count in range(failures)])

    def step(n: int) -> dict[str, int]:
        error = next(calls, None)
        if error is not None:
            raise error
        return {"n": n + 1}

    return step


def program(store: Store | str, failures: int = 2, message: str = "no line", **options: Any) -> CompiledGraph:
    """Two steps and a question; the first step fails a few times."""
    graph = Graph(outputs=["n"]).add_node("one", failing(failures, message), retry=QUICK)
    graph.add_node("ask", lambda n, ctx: {"n": n + ctx.interrupt("on", "On?", answer=int)}).add_path(
        START, "one", "ask", END
    )
    return graph.compile(store=store, **options)


def start(made: CompiledGraph, mode: str) -> Any:
    t = made.thread("t")
    return t.run({"n": 0}) if mode == "sync" else asyncio.run(t.arun({"n": 0}))


def expected(failures: int = 2, **changed: Any) -> tuple[Failure, ...]:
    return tuple(
        [
            Failure(
                **{"node": "one", "execution": "trunk:1", "type": "ConnectionError", "retryable": True, **changed},
                message=f"no line {count}",
                attempt=count + 1,
            )
            for count in range(failures)
        ]
    )


def commit_of(commits: Any, node: str = "one") -> Any:
    return next(commit for commit in commits if commit.node == node)


@pytest.mark.parametrize("mode", MODES)
def test_a_retry_adds_no_write_and_no_row(mode: str) -> None:
    """Rule 24."""
    writes = {}
    for failures in (0, 3):
        store = Recorder()
        assert start(program(store, failures), mode).status == "interrupted"
        writes[failures] = store.rows_of()
    assert writes[0] == writes[3]


def test_without_failures_a_row_has_the_size_of_before() -> None:
    store = Recorder()
    start(program(store, 0), "sync")
    rows = [row for change in store.changes for row in change.rows if row.kind == "commit"]
    assert [set(row.header) - {"step"} for row in rows] == [{"id", "node", "to", "at"}] * 2
    assert rows[1].content is not None
    assert rows[1].content.data == b'{"patch":{"n":1}}'


@pytest.mark.parametrize("mode", MODES)
def test_what_is_read_again_has_the_failed_attempts(tmp_path: Path, mode: str) -> None:
    """History, resume, replay, rerun, a copy, an export."""
    address = str(tmp_path / "runs.db")
    run = start(program(address), mode)
    found = commit_of(run.commits)
    assert (found.attempt, found.failed_attempts, found.failure, found.cached) == (3, expected(), None, False)

    later = program(address, 0).thread("t")
    stored = commit_of(later.history())
    assert (stored.attempt, stored.failed_attempts) == (3, expected())
    assert stored.to_dict()["failed_attempts"] == found.to_dict()["failed_attempts"]

    resumed = later.resume({"on": 5}) if mode == "sync" else asyncio.run(later.aresume({"on": 5}))
    assert resumed.status == "completed"
    assert commit_of(resumed.commits).failed_attempts == expected()  # replayed
    assert later.replay() == later.state

    later.copy(to="two", at=1)
    again = program(address, 0).thread("two")
    assert commit_of(again.history()).failed_attempts == expected()
    version = next(commit.version for commit in later.history() if commit.node == "one")
    assert version is not None
    rerun = later.rerun(version)
    assert commit_of(rerun.commits).failed_attempts == expected()

    later.export(tmp_path / "t.jsonl")
    loaded = program(Memory(), 0).thread("t")
    loaded.load(tmp_path / "t.jsonl")
    assert commit_of(loaded.history()).failed_attempts == expected()


def rows(store: Store) -> list[Row]:
    thread = store.thread("t")
    assert thread is not None
    assert thread.head is not None
    return store.rows(thread.head.run)


def test_texts_of_errors_are_encrypted(tmp_path: Path) -> None:
    """They may quote user data, and headers stay readable: only the number of the attempt is there."""
    with closing(SQLite(tmp_path / "runs.db")) as plain:
        start(program(Encrypted(plain, b"k" * 32), message="SECRET"), "sync")
        found = rows(plain)
    assert not [row for row in found if "SECRET" in repr(row.header)]
    assert not [row for row in found if row.content is not None and b"SECRET" in row.content.data]
    assert [row.header["attempt"] for row in found if row.kind == "commit" and "attempt" in row.header] == [3]


def test_half_of_a_surrogate_pair_in_an_error_loses_no_result(tmp_path: Path) -> None:
    address = str(tmp_path / "runs.db")
    assert start(program(address, 1, message="\ud800"), "sync").status == "interrupted"
    (failed,) = commit_of(program(address).thread("t").history()).failed_attempts
    assert failed.message == "\\ud800 0"


def test_a_resume_counts_attempts_from_1_again(tmp_path: Path) -> None:
    """A crash is no attempt: what failed before it was not committed."""
    address = str(tmp_path / "runs.db")
    numbers: list[int] = []

    def step(ctx: Context) -> dict[str, int]:
        numbers.append(ctx.attempt)
        if len(numbers) == 2:
            raise KeyboardInterrupt
        if len(numbers) < 4:
            raise ConnectionError("no line")
        return {"n": 1}

    graph = Graph(outputs=["n"]).add_node("one", step, writes=["n"], retry=QUICK).add_path(START, "one", END)
    t = graph.compile(store=address).thread("t")
    with pytest.raises(KeyboardInterrupt):
        t.run({})
    run = t.resume()
    assert numbers == [1, 2, 1, 2]
    assert (commit_of(run.commits).attempt, len(commit_of(run.commits).failed_attempts)) == (2, 1)
