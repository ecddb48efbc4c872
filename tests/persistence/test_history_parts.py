"""Parts of a history, each read from the snapshot before it, equal those of the whole, and cost few rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Thread, reducers
from dspyer.errors import ThreadError
from dspyer.persistence.time_travel import cut_page
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Store
from tests.persistence.counting import Counting
from tests.persistence.kinds import CALLS, INPUTS, KINDS

MODULES = ("dspyer.persistence.journal", "dspyer.persistence.history_parts")


@pytest.fixture(params=[1, 4, 480], ids=lambda every: f"snapshots every {every} rows")
def every(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    for module in MODULES:
        monkeypatch.setattr(f"{module}.EVERY", request.param)
    monkeypatch.setattr("dspyer.persistence.journal.AT_END", max(request.param // 2, 1))
    monkeypatch.setattr("dspyer.persistence.history_parts.PAGE", 2)
    monkeypatch.setattr("dspyer.persistence.reader.PAGE", 2)
    return int(request.param)


def check(thread: Thread) -> None:
    """Compares what is read in pages with the whole history."""
    handle = Thread(thread._program, thread._store, thread.name)
    listed = handle._thread_reader.cache.listed()
    whole = list(listed.commits)
    assert thread.history() == whole
    for number, commit in enumerate(whole):
        state = listed.state(number)
        assert thread.at(commit.id) == state
        if commit.version is not None:
            assert thread.at(commit.version) == state
    for newest in (False, True):
        for first in (None, len(whole) // 2, len(whole) + 5, *[one.version for one in whole[-2:]]):
            for count in (1, 7, len(whole) + 1):
                page = thread.history(first=first, count=count, newest=newest)
                assert page == cut_page(whole, first, count, newest), (first, count, newest)
    paths = {(key,) for commit in whole for key in commit.patch}
    for path in paths:
        assert said(thread, path) == said(handle, path, whole=True), path


def said(thread: Thread, path: tuple[Any, ...], whole: bool = False) -> Any:
    pages = thread._thread_reader.pages
    if whole:
        thread._thread_reader.pages = type("NoPages", (), {"blame": lambda *_: None})()
    try:
        return thread.blame(path)
    except LookupError as error:
        return str(error)
    finally:
        thread._thread_reader.pages = pages


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "LM router"])
def test_parts_of_a_history_equal_those_of_the_whole(kind: str, every: int) -> None:
    made = KINDS[kind].compile("sync", Memory())
    thread = made.thread("a/t")
    for _ in range(3):
        thread.run(INPUTS).raise_error()
    CALLS.take()
    check(made.thread("a/t"))


class Notes(BaseModel):
    q: str = ""
    log: Annotated[list[str], reducers.extend] = []
    left: int = 0
    right: int = 0
    both: int = 0


FAIL: list[str] = []


def program(store: Store | str = ":memory:", laps: int = 3) -> CompiledGraph:
    def node(name: str) -> Callable[..., dict[str, Any]]:
        def work(left: int, right: int, both: int, ctx: Context) -> dict[str, Any]:
            if name in FAIL:
                raise RuntimeError(name)
            mine = {"left": left + 1} if name == "left" else {"right": right + 1} if name == "right" else {}
            return {"log": [ctx.execution], **mine, **({"both": both + 1} if name == "meet" else {})}

        return work

    graph = Graph(Notes, inputs=["q"])
    for name in ("begin", "left", "right", "more", "meet"):
        own = {"left": ["left"], "right": ["right"], "meet": ["both"]}.get(name, [])
        graph.add_node(name, node(name), writes=["log", *own])
    graph.add_edge(START, "begin").add_edge("begin", ["left", "right"]).add_edge("right", "more")
    graph.add_edge(["left", "more"], "meet")
    graph.add_conditional_edges("meet", lambda both: END if both % laps == 0 else "begin", [END, "begin"])
    return graph.compile(store=store)


def ends_in_a_fork(thread: Thread) -> None:
    FAIL.append("more")
    assert thread.run({"q": "fails"}).status == "failed"
    FAIL.clear()


def forked(thread: Thread) -> None:
    ends_in_a_fork(thread)


def resumed(thread: Thread) -> None:
    ends_in_a_fork(thread)
    assert thread.resume().status == "completed"


def abandoned(thread: Thread) -> None:
    ends_in_a_fork(thread)
    thread.run({"q": "next"}, abandon=True).raise_error()


def by_hand(thread: Thread) -> None:
    thread.update({"left": 50})
    thread.update({"right": 60}, as_node="begin")
    thread.resume().raise_error()


def made_in_the_name_of_a_node(thread: Thread) -> None:
    thread.update({"right": 60}, as_node="begin")


def rerun(thread: Thread) -> None:
    thread.rerun(from_version=7).raise_error()
    thread.run({"q": "after"}).raise_error()


def pruned(thread: Thread) -> None:
    thread.run({"q": "b"}).raise_error()
    thread.prune(before=[commit.version for commit in thread.history() if commit.node == "START"][1] or 0)
    thread.run({"q": "c"}).raise_error()


def merged(thread: Thread) -> None:
    twin = thread.copy(to="twin")
    twin.update({"left": 70})
    thread.update({"right": 80})
    thread.merge(twin)
    thread.run({"q": "after"}).raise_error()


def landed(thread: Thread) -> None:
    thread.run({"q": "beside"}, on_conflict="merge").raise_error()
    thread.run({"q": "after"}).raise_error()


def without_snapshots(thread: Thread) -> None:
    thread._store.drop_snapshots()


@pytest.mark.parametrize(
    "change",
    [
        forked,
        resumed,
        abandoned,
        by_hand,
        made_in_the_name_of_a_node,
        rerun,
        pruned,
        merged,
        landed,
        without_snapshots,
    ],
)
def test_parts_equal_the_whole_after_any_change_of_the_thread(change: Callable[[Thread], None], every: int) -> None:
    made = program()
    thread = made.thread("t")
    for question in "xy":
        thread.run({"q": question}).raise_error()
    change(thread)
    check(thread)
    ids = [commit.id for commit in thread.history()]
    copy = thread.copy(to="u", at=ids[len(ids) // 2])
    copy.resume() if copy.status == "stopped" else copy.run({"q": "z"})
    check(made.thread("u"))


def test_a_page_has_at_least_one_commit_and_takes_no_node() -> None:
    thread = program().thread("t")
    assert thread.history(count=3) == thread.history(newest=True) == []
    with pytest.raises(ThreadError, match="count=0"):
        thread.history(count=0)
    with pytest.raises(ThreadError, match="inside= alone"):
        thread.history(inside=1, count=1)


class Steps(BaseModel):
    n: int = 0
    first: str = ""


def loop(store: Store, steps: int) -> CompiledGraph:
    graph = Graph(Steps, inputs=["first"]).add_node("step", lambda n: {"n": n + 1}, writes=["n"])
    graph.add_node("ask", lambda n, ctx: {"n": n if ctx.interrupt("ok", "?") else 0}, writes=["n"])
    graph.add_edge(START, "step").add_edge("ask", END)
    graph.add_conditional_edges("step", lambda n: "ask" if n >= steps else "step", ["step", "ask"])
    return graph.compile(store=store, max_steps=10**6)


READS: dict[str, tuple[Callable[[Thread, int], Any], int]] = {
    "status": (lambda t, n: t.status, 20),
    "questions": (lambda t, n: t.questions, 20),
    "failures": (lambda t, n: t.failures, 20),
    "state": (lambda t, n: t.state, 600),
    "at": (lambda t, n: [t.at(n // 2), t.at(n - 1), t.at(f"t.1/trunk:{n // 3}")], 2_000),
    "diff": (lambda t, n: t.diff(n // 2, n // 2 + 3), 2_000),
    "blame": (lambda t, n: t.blame("n"), 600),
    "pages": (lambda t, n: [t.history(count=9, newest=True), t.history(first=n // 2, count=9)], 2_000),
    "copy": (lambda t, n: t.copy(to="u"), 600),
}


def test_rows_read_do_not_grow_with_the_run() -> None:
    store, steps = Counting(), 3_000
    made = loop(store, steps)
    made.thread("t").run({"first": "a"})
    for what, (read, most) in READS.items():
        store.read = 0
        read(made.thread("t"), steps)
        assert store.read <= most, what


def chat(store: Store) -> CompiledGraph:
    return (
        Graph(Steps, inputs=["first"])
        .add_node("step", lambda n: {"n": n + 1}, writes=["n"])
        .add_path(START, "step", END)
        .compile(store=store)
    )


RUNS: dict[str, Callable[[Thread, int], Any]] = {
    "status": lambda t, n: t.status,
    "questions": lambda t, n: t.questions,
    "failures": lambda t, n: t.failures,
    "state": lambda t, n: t.state,
    "run": lambda t, n: t.run({"first": "b"}),
    "at": lambda t, n: [t.at(n // 2), t.at(2 * n - 1), t.at(f"t.{n // 3}/trunk:1")],
    "blame": lambda t, n: t.blame("n"),
    "pages": lambda t, n: [t.history(count=9, newest=True), t.history(first=n // 2, count=9)],
    "update": lambda t, n: t.update({"n": 1}),
    "copy": lambda t, n: t.copy(to="u", patch={"n": 1}),
}


def test_rows_read_do_not_grow_with_the_number_of_runs() -> None:
    store, runs = Counting(), 800
    made = chat(store)
    for _ in range(runs):
        made.thread("t").run({"first": "a"})
    for what, read in RUNS.items():
        store.read = 0
        read(made.thread("t"), runs)
        assert store.read <= 800, what  # of 3,200 rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def test_successive_commits_are_read_together(path: Path) -> None:
    """Reading all states of a run in turn reads each row a few times at most."""
    store, steps = Counting(), 1_000
    made = loop(store, steps)
    made.thread("t").run({"first": "a"})
    thread = made.thread("t")
    store.read = 0
    assert [thread.at(version)["n"] for version in range(steps)] == list(range(steps))
    assert store.read <= 4 * steps
    with SQLite(path) as file:
        loop(file, 30).thread("t").run({"first": "a"})
        assert [loop(file, 30).thread("t").at(version)["n"] for version in (29, 0)] == [29, 0]
