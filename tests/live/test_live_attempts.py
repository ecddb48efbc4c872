"""Attempts of nodes that share live fields: a post stays, and an attempt that posts the same again gets the post that
is there.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Retry, Run, live, reducers
from dspyer.events import Posted
from dspyer.testing import no_pauses
from tests.live.kit import MODES, Pad, colours, modes, team
from tests.rows import each

ANY = Retry(3, on=ValueError)


@pytest.fixture(autouse=True)
def pauses() -> Iterator[list[float]]:
    with no_pauses() as asked:
        yield asked


def posted(run: Run, field: str = "notes") -> list[tuple[int, Any]]:
    return [(event.seq, event.value) for event in run.events if isinstance(event, Posted) and event.field == field]


class Talk:
    """A writer whose first attempts fail after a reader has seen their last post, and a reader of everything."""

    def __init__(self, failures: int = 1) -> None:
        self.calls: Counter[str] = Counter()
        self.failures = failures
        self.heard: list[tuple[str, int]] = []
        self.read = threading.Event()

    def begin(self, ctx: Context) -> bool:
        self.calls["writer"] += 1
        ctx.post("notes", "the same")
        ctx.post("notes", f"attempt {ctx.attempt}")
        ctx.post("notes", "the same")
        return ctx.attempt <= self.failures

    def hear(self, ctx: Context, note: Any) -> None:
        self.heard.append((note.value, note.seq))
        ctx.post("echoes", note.value)
        if note.value == f"attempt {self.calls['writer']}":
            self.read.set()

    def writer(self, ctx: Context) -> dict[str, Any]:
        if self.begin(ctx):
            assert self.read.wait(20)
            self.read.clear()
            raise ValueError("broken")
        return {"notes": "end"}

    async def awriter(self, ctx: Context) -> dict[str, Any]:
        if self.begin(ctx):
            assert await asyncio.to_thread(self.read.wait, 20)
            self.read.clear()
            raise ValueError("broken")
        return {"notes": "end"}

    def reader(self, ctx: Context) -> None:
        self.calls["reader"] += 1
        for note in ctx.live("notes"):
            self.hear(ctx, note)

    async def areader(self, ctx: Context) -> None:
        self.calls["reader"] += 1
        async for note in ctx.live("notes"):
            self.hear(ctx, note)

    def program(self, colour: str, **options: Any) -> CompiledGraph:
        write, read = (self.writer, self.reader) if colour == "sync" else (self.awriter, self.areader)
        graph = team(writer=(write, ["notes"]), reader=(read, ["echoes"]))
        return graph.compile(retry=ANY, **options)


def check(run: Run, talk: Talk) -> None:
    """Each value as often as one attempt posts it, in one order for the reader, the state and the events."""
    assert run.status == "completed", run.error
    attempts = talk.failures + 1
    notes = ["the same", "attempt 1", "the same", *[f"attempt {number}" for number in range(2, attempts + 1)], "end"]
    assert run.state["notes"] == run.state["echoes"] == [value for value, _ in talk.heard] == notes
    numbers = [seq for _, seq in talk.heard]
    assert numbers == sorted(set(numbers))
    assert talk.calls == {"writer": attempts, "reader": 1}
    commits = {commit.node: commit for commit in run.commits}
    assert (commits["writer"].attempt, commits["reader"].attempt) == (attempts, 1)
    assert len(commits["writer"].failed_attempts) == talk.failures
    assert commits["writer"].live is not None
    assert list(commits["writer"].live.posts["notes"]) == numbers
    if run.events:
        assert [(value, seq) for seq, value in posted(run)] == talk.heard


@each(
    ("mode", "colour", "failures"),
    [("run", "sync", 1), ("run", "async", 2), ("arun", "async", 1), ("arun", "sync", 2), ("worker thread", "sync", 1)],
)
def test_a_repeated_attempt_does_not_repeat_its_posts(mode: str, colour: str, failures: int) -> None:
    talk = Talk(failures)
    check(MODES[mode](talk.program(colour)), talk)


@pytest.mark.parametrize(("mode", "colour"), [("sync", "async"), ("async", "sync")])
def test_nor_does_it_on_a_thread(mode: str, colour: str, tmp_path: Path) -> None:
    talk = Talk(2)
    program = talk.program(colour, store=tmp_path / "runs.db")
    t = program.thread("t")
    run = t.run({}) if mode == "sync" else asyncio.run(t.arun({}))
    check(run, talk)
    assert program.thread("t").replay() == run.state


@colours
def test_a_reader_commits_at_once(colour: str) -> None:
    """What follows it starts while the writer, whose post it has read, works on."""
    followed = threading.Event()

    def after() -> None:
        followed.set()

    def writes(ctx: Context) -> None:
        ctx.post("notes", "note")
        assert followed.wait(20)

    async def awrites(ctx: Context) -> None:
        ctx.post("notes", "note")
        assert await asyncio.to_thread(followed.wait, 20)

    def reads(ctx: Context) -> dict[str, Any]:
        return {"echoes": next(ctx.live("notes")).value}

    async def areads(ctx: Context) -> dict[str, Any]:
        return {"echoes": (await anext(ctx.live("notes"))).value}

    write, read = (writes, reads) if colour == "sync" else (awrites, areads)
    graph = Graph(Pad).add_node("reads", read, reads=["notes"], writes=["echoes"])
    graph.add_node("writes", write, writes=["notes"]).add_node("after", after, writes=[])
    graph.add_edge(START, ["reads", "writes"]).add_edge("reads", "after").add_edge(["after", "writes"], END)
    run = MODES["run" if colour == "sync" else "arun"](graph.compile())
    assert run.status == "completed", run.error
    order = [commit.node for commit in run.commits]
    assert order.index("reads") < order.index("writes")


@modes
def test_a_reader_that_is_attempted_again_reads_from_the_start(go: Any) -> None:
    calls: list[list[str]] = []

    def reader(ctx: Context) -> None:
        calls.append([note.value for note in ctx.live("notes")])
        if ctx.attempt == 1:
            raise ValueError("broken")

    graph = team(writer=(lambda ctx: {"notes": "note"}, ["notes"]), reader=(reader, []))
    run = go(graph.compile(retry=ANY))
    assert run.status == "completed", run.error
    assert calls == [["note"], ["note"]]
    (commit,) = [commit for commit in run.commits if commit.node == "reader"]
    assert commit.live is not None
    assert commit.live.reads == {"notes": 1}


class Paper(BaseModel):
    draft: Annotated[str, live] = ""
    code: Annotated[dict[str, str], reducers.update, live] = {}
    chat: Annotated[list[Any], reducers.add_messages, live] = []
    notes: Annotated[list[Any], reducers.append, live] = []


def twice(node: Any) -> Run:
    """A run of a node whose first attempt fails after it has posted."""
    return (
        Graph(Paper)
        .add_node("node", node, writes=list(Paper.model_fields), retry=2)
        .add_path(START, "node", END)
        .compile()
        .run({})
    )


def test_what_a_node_returns_is_what_the_field_has() -> None:
    """Also if an earlier attempt has posted it, and something else after it."""

    def writes(ctx: Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            for text in ("one", "two"):
                ctx.post("draft", text)
                ctx.post("code", {"a": text})
                ctx.post("notes", text)
            raise ConnectionError("broken")
        return {"draft": "one", "code": {"a": "one"}, "notes": "one"}

    run = twice(writes)
    assert run.status == "completed", run.error
    assert run.state.to_dict() == {"draft": "one", "code": {"a": "one"}, "chat": [], "notes": ["one", "two"]}


def test_equal_values_of_different_types_are_different_posts() -> None:
    values: list[Any] = ["1", 1, 1.0, True, None, "true", "null", "'1", ["1"], [1], {"a": 1}]

    def writes(ctx: Context) -> None:
        for value in values if ctx.attempt == 1 else reversed(values):
            ctx.post("notes", value)
        if ctx.attempt == 1:
            raise ConnectionError("broken")

    run = twice(writes)
    assert run.status == "completed", run.error
    assert [seq for seq, _ in posted(run)] == list(range(1, len(values) + 1))
    assert repr(run.state.to_dict()["notes"]) == repr(values)


def test_messages_keep_their_ids_in_each_attempt() -> None:
    """In whatever order they are posted; and a new one gets an id of its own."""

    def writes(ctx: Context) -> None:
        for text in ("a", "b") if ctx.attempt == 1 else ("c", "b", "a"):
            ctx.post("chat", {"role": "user", "content": text})
        if ctx.attempt == 1:
            raise ConnectionError("broken")

    run = twice(writes)
    assert run.status == "completed", run.error
    messages = run.state.to_dict()["chat"]
    assert [message["content"] for message in messages] == ["a", "b", "c"]
    assert len({message["id"] for message in messages}) == 3


@modes
def test_the_last_attempt_leaves_its_posts_too(go: Any) -> None:
    """But there is no commit that they could be a part of."""
    talk = Talk(9)
    run = go(talk.program("sync"))
    assert isinstance(run.error, ValueError)
    assert [commit.node for commit in run.commits] == ["START"]
    assert talk.calls == {"writer": 3, "reader": 1}
    assert [value for _, value in posted(run)] == ["the same", "attempt 1", "the same", "attempt 2", "attempt 3"]


@modes
def test_a_graph_that_is_attempted_again_has_the_posts_of_its_nodes(go: Any) -> None:
    """Without a store: its run is a part of an attempt of the node around it, and a post is a fact all the same."""
    tries = Counter[str]()

    def writer(ctx: Context) -> None:
        tries["writer"] += 1
        for note in ("same", f"try {tries['writer']}"):
            ctx.post("notes", note)
        if tries["writer"] == 1:
            raise ValueError("once")

    graph = Graph(Pad).add_node("inner", team(writer=(writer, ["notes"])).compile(), writes=["notes"], retry=ANY)
    run = go(graph.add_path(START, "inner", END).compile())
    assert list(run.state["notes"]) == ["same", "try 1", "try 2"]
    posts = [(event.node, event.seq, event.value) for event in run.events if isinstance(event, Posted)]
    assert posts == [("inner", 1, "same"), ("inner", 2, "try 1"), ("inner", 3, "try 2")]
