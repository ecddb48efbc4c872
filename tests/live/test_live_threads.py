"""Live fields on threads: a post is stored before it can be read, and a repeated node reads the same posts."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Retry, Run, Thread, live, reducers, view
from dspyer.events import Posted, Withdrawn
from dspyer.stores import Memory, Store
from dspyer.testing import no_pauses
from tests.persistence.failing import Crash, FailingSQLite, crash
from tests.rows import each


class Pad(BaseModel):
    notes: Annotated[list[str], reducers.append, live] = []
    echoes: Annotated[list[str], reducers.append, live] = []


heard: list[list[tuple[Any, int]]] = []


def listens(ctx: Context) -> None:
    """Answers each note as it comes: no withdrawal reaches the loop."""
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
    return [(one.kind, one.header) for one in rows if one.kind in ("post", "withdraw")]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_interrupted_writer_posts_again_and_readers_get_the_new_posts(store: Any, asynchronous: bool) -> None:
    program = graph(store, asks)
    t = program.thread("t")
    run = run_of(t, asynchronous)
    assert (run.status, [question.key for question in run.questions]) == ("interrupted", ["ok"])
    run = resumed(t, asynchronous, {"ok": True})
    run.raise_error()
    assert run.state.to_dict() == {"notes": ["draft", "final"], "echoes": ["draft", "final"]}
    assert [value for value, _ in heard[-1]] == ["draft", "final"]
    rows = rows_of(store, t)
    posted = {head[4] for kind, head in rows if kind == "post"}
    withdrawn = {seq for kind, head in rows if kind == "withdraw" for seq in head[4]}
    of_commits = {seq for commit in run.commits if commit.live for seqs in commit.live.posts.values() for seq in seqs}
    assert (posted - withdrawn, posted & withdrawn) == (of_commits, withdrawn)
    assert t.state == run.state


def test_a_failed_writer_runs_again_and_so_do_its_readers(store: Any) -> None:
    t = graph(store, fails).thread("t")
    run = t.run({})
    assert isinstance(run.error, ValueError)
    assert [event.posts for event in run.events if isinstance(event, Withdrawn) and event.field == "notes"] == [(1,)]
    failing[0] = False
    run = graph(store, fails).thread("t").resume()
    run.raise_error()
    assert run.state.to_dict() == {"notes": ["first"], "echoes": ["first"]}
    assert [value for value, _ in heard[-1]] == ["first"]


def test_posts_of_a_crashed_attempt_are_withdrawn(store: Any) -> None:
    """The store holds the post of a process that came to no end."""
    t = graph(store, fails).thread("t")

    def dies(ctx: Context) -> None:
        ctx.post("notes", "first")
        store.arm(crash, 1, after=False)  # from here on nothing is written, as in a process that is gone
        raise Crash

    with pytest.raises(Crash):
        graph(store, dies).thread("t").run({})
    store.rest()
    assert ("post", ("writer", "notes")) in [(kind, tuple(head[2:4])) for kind, head in rows_of(store, t)]
    failing[0] = False
    run = t.resume(allow_changed_graph=True, take_over=True)
    run.raise_error()
    assert [event.posts for event in run.events if isinstance(event, Withdrawn) and event.field == "notes"] == [(1,)]
    assert run.state.to_dict() == {"notes": ["first"], "echoes": ["first"]}
    (seq,) = [event.seq for event in run.events if isinstance(event, Posted) and event.field == "notes"]
    assert seq > 1


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
    assert not [event for event in run.events if isinstance(event, Posted)]


def test_a_rerun_of_an_isolated_run_is_isolated(store: Any) -> None:
    failing[0] = False
    t = graph(store, fails).thread("t")
    t.run({}, live=False).raise_error()
    for run in (t.rerun(0), asyncio.run(t.arerun(0))):
        run.raise_error()
        assert run.state.to_dict() == {"notes": ["first"], "echoes": []}
        assert not [event for event in run.events if isinstance(event, Posted)]


@pytest.mark.parametrize("attempts", [1, 2], ids=["an error edge", "a later attempt"])
def test_a_copy_and_a_rerun_from_any_commit_read_no_withdrawn_post(attempts: int, store: Any) -> None:
    def flaky(ctx: Context) -> None:
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
        assert whole.state["echoes"] == ["" if attempts == 1 else "attempt 2"]
        for commit in whole.commits[:2]:
            copy = t.copy(to=f"from {commit.node}", at=commit.id)
            assert copy.resume().state == whole.state == t.rerun(commit.id).state


# --- a node commits after all whose posts it has used


NODES = ("START", "reads", "writes", "after", "late", "a", "b", "join:after", "join:END")


class Watched(Memory):
    """Keeps which commits were written together."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[list[str]] = []

    def write(self, change: Any) -> Any:
        rows = [row.header for row in change.rows if row.kind in ("commit", "join")]
        names = [next(name for name in NODES if name in header) for header in rows]
        self.together += [names] if names else []
        return super().write(change)


def early(hold: threading.Event, fate: list[str]) -> Graph:
    """A reader takes one note and ends; its writer then ends, fails or asks."""

    def reads(ctx: Context) -> dict[str, Any]:
        found = next(ctx.live("notes")).value
        hold.set()
        return {"echoes": found}

    def writes(ctx: Context) -> None:
        ctx.post("notes", f"{fate[0]} note")
        assert hold.wait(20)
        if fate[0] == "fails":
            raise ValueError("broken")
        if fate[0] == "asks":
            ctx.interrupt("ok", "Go on?")

    built = Graph(Pad).add_node("reads", reads, reads=["notes"], writes=["echoes"])
    built.add_node("after", lambda echoes: {"echoes": f"after {echoes[0]}"}, reads=["echoes"], writes=["echoes"])
    built.add_node("writes", writes, writes=["notes"])
    return built.add_edge(START, ["reads", "writes"]).add_edge("reads", "after").add_edge(["after", "writes"], END)


@each(("fate", "asynchronous"), [("ends", False), ("fails", True), ("asks", False), ("ends", True)])
def test_a_reader_that_leaves_its_loop_early_commits_after_its_writer(fate: str, asynchronous: bool) -> None:
    """What follows it starts then, and it commits nothing if its writer does not."""
    fates = [fate]
    store = Watched()
    t = early(threading.Event(), fates).compile(store=store).thread("t")
    run = run_of(t, asynchronous)
    if fate != "ends":
        assert not [names for names in store.together if "reads" in names]
        fates[0] = "asks" if fate == "asks" else "ends"
        run = resumed(t, asynchronous, {"ok": True} if fate == "asks" else None)
    order = [name for names in store.together for name in names]
    assert order.index("writes") < order.index("reads") < order.index("after")
    note = f"{fates[0]} note"
    assert run.state.to_dict() == {"notes": [note], "echoes": [note, f"after {note}"]}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nodes_that_have_read_each_other_commit_together(asynchronous: bool) -> None:
    """In one write, so that a crash leaves both or none."""

    def talks(ctx: Context) -> None:
        ctx.post("notes", ctx.node)
        next(ctx.live("notes"))

    async def atalks(ctx: Context) -> None:
        ctx.post("notes", ctx.node)
        await anext(ctx.live("notes"))

    store, fn = Watched(), atalks if asynchronous else talks
    built = Graph(Pad).add_node("a", fn, writes=["notes"]).add_node("b", fn, writes=["notes"])
    t = built.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END).compile(store=store).thread("t")
    run_of(t, asynchronous).raise_error()
    assert [sorted(names)[:2] for names in store.together if {"a", "b"} & set(names)] == [["a", "b"]]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_writer_does_not_wait_for_a_reader_that_waits_for_its_commit(asynchronous: bool) -> None:
    """`late` comes behind the reader, which commits after the writer: the writer's loop ends without it."""
    heard: list[str] = []

    def writes(ctx: Context) -> None:
        ctx.post("notes", "note")
        heard.extend(entry.value for entry in ctx.live("echoes"))

    async def awrites(ctx: Context) -> None:
        ctx.post("notes", "note")
        heard.extend([entry.value async for entry in ctx.live("echoes")])

    def reads(ctx: Context) -> None:
        next(ctx.live("notes"))

    async def areads(ctx: Context) -> None:
        await anext(ctx.live("notes"))

    built = Graph(Pad).add_node("reads", areads if asynchronous else reads, reads=["notes"], writes=[])
    built.add_node("writes", awrites if asynchronous else writes, reads=["echoes"], writes=["notes"])
    built.add_node("late", lambda ctx: {"echoes": "late"}, writes=["echoes"])
    built.add_edge(START, ["reads", "writes"]).add_edge("reads", "late").add_edge(["late", "writes"], END)
    run = run_of(built.compile(store=Memory(), max_concurrency=1).thread("t"), asynchronous)
    run.raise_error()
    assert (heard, run.state.to_dict()["echoes"]) == ([], ["late"])


def test_a_cancelled_run_commits_no_reader_of_an_uncommitted_writer() -> None:
    store, ended = Watched(), asyncio.Event()

    async def reads(ctx: Context) -> None:
        await anext(ctx.live("notes"))
        ended.set()

    async def writes(ctx: Context) -> None:
        ctx.post("notes", "note")
        await asyncio.sleep(3600)

    built = Graph(Pad).add_node("reads", reads, reads=["notes"], writes=[]).add_node("writes", writes, writes=["notes"])
    t = built.add_edge(START, ["reads", "writes"]).add_edge(["reads", "writes"], END).compile(store=store).thread("t")

    async def main() -> None:
        task = asyncio.create_task(t.arun({}))
        await asyncio.wait_for(ended.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [name for names in store.together for name in names] == ["START"]


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
