"""Live fields on threads: a post is stored before it can be read, and a repeated node reads the same posts."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Kept, Retry, Run, Thread, live, reducers, view
from dspyer.events import Posted
from dspyer.stores import Memory, Store
from dspyer.testing import no_pauses
from tests.log.failing import Crash, FailingMemory, FailingSQLite, crash
from tests.rows import each


class Pad(BaseModel):
    notes: Kept[Annotated[list[str], reducers.append, live]] = []
    echoes: Kept[Annotated[list[str], reducers.append, live]] = []


heard: list[list[tuple[Any, int]]] = []


def listens(ctx: Context) -> None:
    """Answers each note as it comes."""
    found: list[tuple[Any, int]] = []
    heard.append(found)
    for note in ctx.live("notes"):
        found.append((note.value, note.seq))
        ctx.post("echoes", note.value)


def asks(ctx: Context) -> None:
    ctx.post("notes", "draft")
    ctx.post("notes", "final" if ctx.interrupt("ok", "Is it good?") else "bin")


failing = [True]


def fails(ctx: Context) -> None:
    ctx.post("notes", "first")
    if failing[0]:
        raise ValueError("broken")


def others(ctx: Context) -> None:
    """Done, whatever becomes of its siblings."""


def graph(store: Any, writer: Any) -> CompiledGraph:
    built = Graph(Pad).add_node("listens", listens, writes=["echoes"]).add_node("writer", writer, writes=["notes"])
    built.add_edge(START, ["listens", "writer"]).add_edge(["listens", "writer"], END)
    return built.compile(store=store)


@pytest.fixture(autouse=True)
def fresh() -> None:
    heard.clear()
    failing[0] = True


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return FailingSQLite(tmp_path / "runs.db")


def run_of(t: Thread, asynchronous: bool) -> Run:
    return asyncio.run(t.arun({})) if asynchronous else t.run({})


def resumed(t: Thread, asynchronous: bool, answers: dict[str, Any] | None = None) -> Run:
    return asyncio.run(t.aresume(answers)) if asynchronous else t.resume(answers)


def rows_of(store: Store, t: Thread) -> list[tuple[str, Any]]:
    row = store.thread(t.name)
    assert row is not None
    assert row.head is not None
    rows = store.rows(row.head.run, 0, row.head.seq)
    return [(one.kind, one.header) for one in rows if one.kind == "post"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_interrupted_writer_does_not_repeat_its_posts(store: Any, asynchronous: bool) -> None:
    program = graph(store, asks)
    t = program.thread("t")
    run = run_of(t, asynchronous)
    assert (run.status, [question.key for question in run.questions]) == ("interrupted", ["ok"])
    assert [value for value, _ in heard[-1]] == ["draft"]
    run = resumed(t, asynchronous, {"ok": True})
    run.raise_error()
    assert run.state.to_dict() == {"notes": ["draft", "final"], "echoes": ["draft", "final"]}
    assert [value for value, _ in heard[-1]] == ["draft", "final"]
    stored = [header["seq"] for _, header in rows_of(store, t)]
    of_commits = {seq for commit in run.commits if commit.live for seqs in commit.live.posts.values() for seq in seqs}
    assert (len(stored), set(stored)) == (4, of_commits)
    assert t.state == run.state


def test_a_failed_writer_and_its_reader_are_called_again(store: Any) -> None:
    t = graph(store, fails).thread("t")
    run = t.run({})
    assert isinstance(run.error, ValueError)
    failing[0] = False
    run = graph(store, fails).thread("t").resume()
    run.raise_error()
    assert not [event for event in run.events if isinstance(event, Posted) and event.live]
    assert run.state.to_dict() == {"notes": ["first"], "echoes": ["first"]}
    assert heard == [[("first", 1)], [("first", 1)]]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_crash_between_post_and_commit_repeats_no_post(store: Any, asynchronous: bool) -> None:
    """The store holds the post of a process that came to no end."""
    t = graph(store, fails).thread("t")

    def dies(ctx: Context) -> None:
        ctx.post("notes", "first")
        store.arm(crash, 1, after=False)  # from here on nothing is written, as in a process that is gone
        raise Crash

    with pytest.raises(Crash):
        run_of(graph(store, dies).thread("t"), asynchronous)
    store.rest()
    stored = [(header["node"], header["field"], header["seq"]) for _, header in rows_of(store, t)]
    failing[0] = False
    run = t.resume(allow_changed_graph=True, take_over=True)
    run.raise_error()
    assert [header for header in stored if header[1] == "notes"] == [("writer", "notes", 1)]
    assert run.state.to_dict() == {"notes": ["first"], "echoes": ["first"]}
    assert [event.value for event in run.events if isinstance(event, Posted) and event.field == "notes"] == []
    assert len(rows_of(store, t)) == 2


@each(
    ("asynchronous", "after", "forever"),
    [(False, False, True), (False, True, False), (True, True, True), (True, False, False)],
)
def test_a_crash_at_any_write_ends_the_run_and_a_resume_repeats_no_post(
    asynchronous: bool, after: bool, forever: bool
) -> None:
    """A reader waits while what follows the first node begins, so that a write may end the process between the two."""

    def posts(ctx: Context) -> dict[str, str]:
        ctx.post("notes", ctx.node)
        return {"notes": f"{ctx.node} returned"}

    built = Graph(Pad).add_node("listens", listens, reads=["notes"], writes=["echoes"])
    built.add_node("first", posts, writes=["notes"]).add_node("second", posts, writes=["notes"])
    built.add_edge(START, ["listens", "first"]).add_path("first", "second", END).add_edge("listens", END)
    notes = ["first", "first returned", "second", "second returned"]
    for at in range(1, 20):
        store = FailingMemory()
        store.arm(crash, at, after=after, forever=forever)
        t = built.compile(store=store).thread("t")
        try:
            run = asyncio.run(t.arun({}, key="k")) if asynchronous else t.run({}, key="k")
            assert run.status != "failed", run.error
        except Crash:
            store.rest()
            run = t.run({}, key="k", take_over=True)  # resumes it, or returns it
        run.raise_error()
        assert run.state.to_dict() == {"notes": notes, "echoes": notes}
        numbers = [header["seq"] for _, header in rows_of(store, t)]
        assert (numbers, len(numbers)) == (sorted(set(numbers)), 8)
        if store.writes < at and store.at is not None:
            break
    assert at > 10


def test_a_stored_run_reads_as_it_ran(store: Any) -> None:
    """The history folds posts as they arrived, across the branches."""
    turn = [threading.Event() for _ in range(3)]

    def one(ctx: Context) -> None:
        ctx.post("notes", "1")
        turn[0].set()
        assert turn[1].wait(20)
        ctx.post("notes", "3")

    def two(ctx: Context) -> None:
        assert turn[0].wait(20)
        ctx.post("notes", "2")
        turn[1].set()

    built = Graph(Pad).add_node("one", one, writes=["notes"]).add_node("two", two, writes=["notes"])
    t = built.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END).compile(store=store).thread("t")
    run = t.run({})
    run.raise_error()
    assert run.state.to_dict()["notes"] == ["1", "2", "3"]
    assert t.state == run.state
    assert t.at(len(run.commits) - 1).to_dict()["notes"] == ["1", "2", "3"]
    live_of = {f"t.1/{commit.id}": commit.live for commit in run.commits}
    assert {commit.id: commit.live for commit in t.history()} == live_of


def test_a_later_run_begins_with_the_posts_of_the_thread(store: Any) -> None:
    failing[0] = False
    t = graph(store, fails).thread("t")
    for _ in range(2):
        t.run({}).raise_error()
    assert [value for value, _ in heard[1]] == ["first", "first"]
    assert heard[1][0][1] == 0 < heard[1][1][1]
    assert t.state.to_dict()["notes"] == ["first", "first"]


def test_a_resumed_isolated_run_stays_isolated(store: Any) -> None:
    t = graph(store, fails).thread("t")
    assert t.run({}, live=False).error
    failing[0] = False
    run = t.resume()
    run.raise_error()
    assert run.state.to_dict() == {"notes": ["first"], "echoes": []}
    assert not [event for event in run.events if isinstance(event, Posted) and event.live]


def test_a_rerun_of_an_isolated_run_is_isolated(store: Any) -> None:
    failing[0] = False
    t = graph(store, fails).thread("t")
    t.run({}, live=False).raise_error()
    for run in (t.rerun(0), asyncio.run(t.arerun(0))):
        run.raise_error()
        assert run.state.to_dict() == {"notes": ["first"], "echoes": []}
        assert not [event for event in run.events if isinstance(event, Posted) and event.live]


@pytest.mark.parametrize("attempts", [1, 2], ids=["an error edge", "a later attempt"])
def test_a_copy_and_a_rerun_from_any_commit_have_the_posts_once(attempts: int, store: Any) -> None:
    def flaky(ctx: Context) -> None:
        ctx.post("notes", "same")
        ctx.post("notes", f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ConnectionError("broken")

    def reads(ctx: Context) -> dict[str, str]:
        return {"echoes": " ".join(note.value for note in ctx.live("notes"))}

    built = Graph(Pad).add_node("flaky", flaky, writes=["notes"], retry=Retry(attempts))
    built.add_node("reads", reads, writes=["echoes"]).add_edge(START, ["flaky", "reads"])
    built.add_edge("flaky", END).add_edge("reads", END).add_error_edge("flaky", END)
    t = built.compile(store=store, max_concurrency=1).thread("t")
    with no_pauses():
        whole = t.run({})
        notes = ["same", "attempt 1", *(["attempt 2"] if attempts == 2 else [])]
        assert whole.state.to_dict() == {"notes": notes, "echoes": [" ".join(notes)]}
        for commit in whole.commits[:2]:
            copy = t.copy(to=f"from {commit.node}", at=commit.id)
            assert copy.resume().state == whole.state == t.rerun(commit.id).state


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_cancelled_or_stopped_run_keeps_what_readers_have_committed(asynchronous: bool) -> None:
    """The reader has used a post of a node that has not come to its end; a resume repeats no post."""
    store, go_on = Memory(), threading.Event()

    def reads(ctx: Context) -> dict[str, Any]:
        return {"echoes": next(ctx.live("notes")).value}

    def writes(ctx: Context) -> None:
        ctx.post("notes", "note")
        if not go_on.is_set():
            go_on.set()
            raise KeyboardInterrupt

    built = Graph(Pad).add_node("reads", reads, reads=["notes"], writes=["echoes"])
    built.add_node("writes", writes, writes=["notes"]).add_edge(START, ["reads", "writes"])
    t = built.add_edge(["reads", "writes"], END).compile(store=store).thread("t")
    with pytest.raises(KeyboardInterrupt):
        run_of(t, asynchronous)
    run = resumed(t, asynchronous)
    run.raise_error()
    assert run.state.to_dict() == {"notes": ["note"], "echoes": ["note"]}
    assert [header["seq"] for _, header in rows_of(store, t)] == [1, 2]


def test_views_of_a_later_run_show_posts_in_the_order_of_their_arrival(store: Any) -> None:
    first, second = threading.Event(), threading.Event()
    seen: list[tuple[list[str], list[str]]] = []

    def one(ctx: Context) -> None:
        if not first.is_set():
            assert first.wait(20)
            ctx.post("notes", "2")
            second.set()

    def two(ctx: Context) -> None:
        if not first.is_set():
            ctx.post("notes", "1")
            first.set()
            assert second.wait(20)
            ctx.post("notes", "3")

    def reads(notes: list[str], shown: list[str]) -> None:
        seen.append((list(notes), list(shown)))

    built = Graph(Pad).add_node("one", one, writes=["notes"]).add_node("two", two, writes=["notes"])
    built.add_node("reads", reads, reads={"notes": "notes", "shown": view("notes").last(9)}, writes=[])
    built.add_edge(START, ["one", "two"]).add_edge(["one", "two"], "reads").add_edge("reads", END)
    t = built.compile(store=store).thread("t")
    for _ in range(2):
        t.run({}).raise_error()
    assert seen == [(["1", "2", "3"], ["1", "2", "3"])] * 2
