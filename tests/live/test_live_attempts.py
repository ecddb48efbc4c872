"""Attempts of nodes that share live fields (rule 6): what one that raised has posted is withdrawn."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dspyer import CompiledGraph, Context, Retry, Run
from dspyer.events import AttemptFailed, Withdrawn
from dspyer.testing import no_pauses
from tests.live.kit import MODES, colours, modes, team
from tests.rows import each

ANY = Retry(3, on=ValueError)


@pytest.fixture(autouse=True)
def pauses() -> Iterator[list[float]]:
    with no_pauses() as asked:
        yield asked


class Talk:
    """A writer that fails after a reader has seen its first post, and a reader of everything."""

    def __init__(self, failures: int = 1) -> None:
        self.calls: Counter[str] = Counter()
        self.failures = failures
        self.read = threading.Event()
        self.attempts: list[int] = []

    def writer(self, ctx: Context) -> dict[str, Any]:
        self.calls["writer"] += 1
        number = self.calls["writer"]
        ctx.post("notes", f"draft {number}")
        if number <= self.failures:
            assert self.read.wait(20)
            self.read.clear()
            raise ValueError("broken")
        return {"notes": "end"}

    async def awriter(self, ctx: Context) -> dict[str, Any]:
        self.calls["writer"] += 1
        number = self.calls["writer"]
        ctx.post("notes", f"draft {number}")
        if number <= self.failures:
            assert await asyncio.to_thread(self.read.wait, 20)
            self.read.clear()
            raise ValueError("broken")
        return {"notes": "end"}

    def reader(self, ctx: Context) -> dict[str, Any]:
        self.calls["reader"] += 1
        self.attempts.append(ctx.attempt)
        for note in ctx.live("notes"):
            ctx.post("echoes", note.value)
            self.read.set()
        return {}

    async def areader(self, ctx: Context) -> dict[str, Any]:
        self.calls["reader"] += 1
        self.attempts.append(ctx.attempt)
        async for note in ctx.live("notes"):
            ctx.post("echoes", note.value)
            self.read.set()
        return {}

    def program(self, colour: str, **options: Any) -> CompiledGraph:
        write, read = (self.writer, self.reader) if colour == "sync" else (self.awriter, self.areader)
        graph = team(writer=(write, ["notes"]), reader=(read, ["echoes"]))
        return graph.compile(retry=ANY, **options)


def check(run: Run, talk: Talk) -> None:
    assert run.status == "completed", run.error
    last = talk.failures + 1
    assert run.state["notes"] == run.state["echoes"] == [f"draft {last}", "end"]
    assert talk.calls == {"writer": last, "reader": last}
    assert set(talk.attempts) == {1}  # undone is not failed
    commits = {commit.node: commit for commit in run.commits}
    assert (commits["writer"].attempt, commits["reader"].attempt) == (last, 1)
    assert len(commits["writer"].failed_attempts) == talk.failures
    assert commits["reader"].failed_attempts == ()
    if run.events:
        gone = [event.posts for event in run.events if isinstance(event, Withdrawn) and event.field == "notes"]
        assert len(gone) == talk.failures
        kinds = [type(event) for event in run.events if isinstance(event, (AttemptFailed, Withdrawn))]
        assert kinds[:2] == [AttemptFailed, Withdrawn]


@each(
    ("mode", "colour", "failures"),
    [("run", "sync", 1), ("run", "async", 2), ("arun", "async", 1), ("arun", "sync", 2), ("worker thread", "sync", 1)],
)
def test_what_a_failed_attempt_has_posted_is_withdrawn(mode: str, colour: str, failures: int) -> None:
    talk = Talk(failures)
    check(MODES[mode](talk.program(colour)), talk)


@pytest.mark.parametrize(("mode", "colour"), [("sync", "async"), ("async", "sync")])
def test_posts_stay_withdrawn_on_a_thread(mode: str, colour: str, tmp_path: Path) -> None:
    talk = Talk(2)
    program = talk.program(colour, store=tmp_path / "runs.db")
    t = program.thread("t")
    run = t.run({}) if mode == "sync" else asyncio.run(t.arun({}))
    check(run, talk)
    assert program.thread("t").replay() == run.state


@colours
def test_a_reader_that_is_called_again_waits_for_a_slot(colour: str) -> None:
    """The reader that is called again waits for a slot; the writer keeps its own during the pause."""
    talk = Talk(1)
    check(talk.program(colour, max_concurrency=2).run({}), talk)


@modes
def test_a_reader_that_had_finished_is_called_again(go: Any) -> None:
    """It had not been committed: it waited for the writer."""
    calls: Counter[str] = Counter()
    finished = threading.Event()

    def writer(ctx: Context) -> dict[str, Any]:
        calls["writer"] += 1
        ctx.post("notes", f"draft {calls['writer']}")
        assert finished.wait(20)
        if calls["writer"] == 1:
            finished.clear()
            raise ValueError("broken")
        return {}

    def reader(ctx: Context) -> dict[str, Any]:
        calls["reader"] += 1
        first = next(iter(ctx.live("notes")))
        finished.set()
        return {"echoes": first.value}

    graph = team(writer=(writer, ["notes"]), reader=(reader, ["echoes"]))
    run = go(graph.compile(retry=ANY))
    assert run.status == "completed", run.error
    assert run.state["echoes"] == ["draft 2"]
    assert calls == {"writer": 2, "reader": 2}


@modes
def test_of_two_that_read_each_other_the_one_that_raised_is_not_undone(go: Any) -> None:
    calls: Counter[str] = Counter()

    def one(ctx: Context) -> dict[str, Any]:
        calls["one"] += 1
        ctx.post("notes", f"one {calls['one']}")
        answer = next(iter(ctx.live("echoes"))).value
        if calls["one"] == 1:
            raise ValueError("broken")
        return {"notes": answer}

    def two(ctx: Context) -> dict[str, Any]:
        calls["two"] += 1
        note = next(iter(ctx.live("notes"))).value
        ctx.post("echoes", f"two {calls['two']} after {note}")
        return {}

    graph = team(one=(one, ["notes"]), two=(two, ["echoes"]))
    run = go(graph.compile(retry=ANY))
    assert run.status == "completed", run.error
    assert run.state["echoes"] == ["two 2 after one 2"]
    assert run.state["notes"] == ["one 2", "two 2 after one 2"]
    assert calls == {"one": 2, "two": 2}


@modes
def test_the_last_attempt_undoes_its_readers_as_a_failure_does(go: Any) -> None:
    talk = Talk(9)
    run = go(talk.program("sync"))
    assert isinstance(run.error, ValueError)
    assert [commit.node for commit in run.commits] == ["START"]
    assert talk.calls["writer"] == 3
