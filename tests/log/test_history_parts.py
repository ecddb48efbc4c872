"""Snapshots, and the parts of a history that are read from them: they equal those of the whole, and cost few rows.

Both are caches: what they get wrong shows where a snapshot happens to lie, one in 480 rows, so this file moves them.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, Archive, CompiledGraph, Context, Graph, Kept, Thread, reducers
from dspyer.errors import ThreadError
from dspyer.log.history import History
from dspyer.log.journal import Heads
from dspyer.log.reader import AT_END, EVERY, latest_snapshot
from dspyer.log.time_travel import ThreadReader
from dspyer.stores import Memory, SQLite, Store, open_store
from dspyer.stores.base import Point, Row
from dspyer.values.json import decode
from tests.log.counting import Counting
from tests.log.kinds import CALLS, INPUTS, KINDS
from tests.log.pages import page_of
from tests.rows import in_turn, sampled
from tests.stores.bodies import body

MODULES = ("dspyer.log.reader", "dspyer.log.history", "dspyer.log.time_travel")


def take_snapshots(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Takes a snapshot every few rows, and reads in short pages."""
    for module in MODULES:
        monkeypatch.setattr(f"{module}.EVERY", every)
    monkeypatch.setattr("dspyer.log.reader.AT_END", max(every // 2, 1))
    monkeypatch.setattr("dspyer.log.reader.ROW", 1_000_000)  # enough, however large the state is
    monkeypatch.setattr("dspyer.log.history.PAGE", 2)
    monkeypatch.setattr("dspyer.log.reader.PAGE", 2)


class NoPages:
    """Reads no part of a history."""

    def none(self, *_: Any) -> None: ...

    writers = around = none


def history_of(thread: Any) -> Any:
    return thread._stored.history if isinstance(thread, Thread) else thread._thread_reader


def reader_of_all(thread: Any) -> Any:
    """A reader of the same thread that reads nothing but the whole history."""
    reader = ThreadReader(history_of(thread)._reader, thread.name)
    pages: Any = NoPages()
    reader.pages = pages
    return reader


def check(thread: Thread) -> None:
    """Compares what is read in pages with the whole history."""
    whole_reader = reader_of_all(thread)
    listed = whole_reader.listed()
    whole = list(listed.commits)
    assert thread.history() == whole
    for number, commit in enumerate(whole):
        state = listed.state(number)
        assert thread.at(commit.id) == state
        if commit.version is not None:
            assert thread.at(commit.version) == state
    firsts = (None, len(whole) // 2, len(whole) + 5, *[one.version for one in whole[-2:]])
    for newest, first, count in sampled((False, True), firsts, (1, 7, len(whole) + 1)):
        page = thread.history(first=first, count=count, newest=newest)
        assert page == page_of(whole, first, count, newest), (first, count, newest)
    for path in {(key,) for commit in whole for key in commit.patch}:
        assert said(thread, path) == said(whole_reader, path), path


def said(reader: Any, path: tuple[Any, ...]) -> Any:
    try:
        return reader.blame(path)
    except LookupError as error:
        return str(error)


KINDS_READ = [name for name in KINDS if name != "LM router"]


@pytest.mark.parametrize("kind", KINDS_READ)
def test_parts_of_a_history_equal_those_of_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_snapshots(monkeypatch, [1, 4][KINDS_READ.index(kind) % 2])
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

    graph = Graph(Notes, inputs=["q"], keep="all")
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
    thread.run({"q": "next"}, if_open="abandon").raise_error()


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


def pruned_beside(thread: Thread) -> None:
    """A copy that is pruned leaves a snapshot at the end of the open fork."""
    ends_in_a_fork(thread)
    twin = thread.copy(to="twin")
    twin.run({"q": "there"}, if_open="abandon").raise_error()
    twin.prune(before="twin.1/trunk:0")
    thread.run({"q": "next"}, if_open="abandon").raise_error()


def merged(thread: Thread) -> None:
    twin = thread.copy(to="twin")
    twin.update({"left": 70})
    thread.update({"right": 80})
    thread.merge(twin)
    thread.run({"q": "after"}).raise_error()


def without_snapshots(thread: Thread) -> None:
    thread._store.drop_snapshots()


CHANGES = (
    forked,
    resumed,
    abandoned,
    by_hand,
    made_in_the_name_of_a_node,
    rerun,
    pruned,
    pruned_beside,
    merged,
    without_snapshots,
)


@pytest.mark.parametrize(
    ("change", "every"),
    [
        *in_turn(CHANGES, (1, 4)),
        *in_turn((resumed, rerun, merged, pruned), (4, 1)),
        *((change, 480) for change in (resumed, rerun, merged)),
    ],
)
def test_parts_equal_the_whole_after_any_change_of_the_thread(
    change: Callable[[Thread], None], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_snapshots(monkeypatch, every)
    made = program(laps=2)
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
        Graph(Steps, inputs=["first"], keep="all")
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
    store, runs = Counting(), 300
    made = chat(store)
    for _ in range(runs):
        made.thread("t").run({"first": "a"})
    for what, read in RUNS.items():
        store.read = 0
        read(made.thread("t"), runs)
        assert store.read <= 700, what  # of 1,200 rows


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


# --- who has written each field at a step of a long run


FIELDS = ["a", "b", "c", "seen", "by"]
ROUNDS = 40


class Board(BaseModel):
    n: int = 0
    a: int = 0
    b: int = 0
    c: int | None = None
    seen: Annotated[list[int], reducers.extend] = []
    by: dict[str, int] = {}
    results: list[int] = []
    old: int = 0


def writer(seed: int, node: str) -> Callable[[int], dict[str, Any]]:
    """A node that writes some fields in few rounds: also what they hold already."""

    def write(n: int) -> dict[str, Any]:
        chance = random.Random(f"{seed} {node} {n}")
        found: dict[str, Any] = {"n": n + 1} if node == "begin" else {}
        if n % 37 == 5 or chance.random() < 0.05:
            for field in chance.sample(FIELDS, chance.randint(1, 3)):
                value = chance.choice([0, 1, n])
                found[field] = [value] if field == "seen" else {node: value} if field == "by" else value
        return found

    return write


def looping(seed: int, rounds: int = ROUNDS) -> Graph:
    """A map, then rounds with a fork in two of three."""
    graph = Graph(Board, name="Rounds", inputs=["old"], merge=dict.fromkeys(["a", "b", "c", "by"], "last_write_wins"))
    graph.add_map("each", lambda x: x, over="seen", item="x", into="results")
    for node in ("begin", "left", "more", "right", "meet"):
        graph.add_node(node, writer(seed, node), writes=[*FIELDS, "n"] if node == "begin" else FIELDS)
    graph.add_path(START, "each", "begin")
    graph.add_conditional_edges("begin", lambda n: ["left", "right"] if n % 3 else "meet", ["left", "right", "meet"])
    graph.add_edge("left", "more").add_edge(["more", "right"], "meet")
    return graph.add_conditional_edges("meet", lambda n: "begin" if n % rounds else END, ["begin", END])


@pytest.mark.parametrize("seed", range(2))
def test_writers_are_those_of_the_whole_history(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    take_snapshots(monkeypatch, 2 * ROUNDS)
    store = Memory()
    thread = looping(seed).compile(store=store, max_steps=10 * ROUNDS).thread("t")
    for _ in range(2):
        thread.run({"old": seed}).raise_error()
    there = Archive(store).thread("t")
    pages, whole = history_of(there).pages, reader_of_all(there)
    for commit in random.Random(seed).sample(thread.history(), 25):
        expected = {(field,): one.id for field, one in whole.writers(commit.id).items()}
        found = pages.writers(list(expected), commit.id)
        assert found is not None  # the whole history was not read
        assert {field: one.id for field, one in found.items()} == expected, commit.id


def test_a_step_reads_few_blocks_of_a_long_run_with_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    take_snapshots(monkeypatch, 40)
    store = Memory()
    thread = looping(-1, 2 * ROUNDS).compile(store=store, max_steps=10_000).thread("t")
    thread.run({"old": 1}).raise_error()
    there, last = Archive(store).thread("t"), thread.history()[-1]
    folds: list[int] = []
    add = History.add

    def counted(history: History, rows: Any, *rest: Any) -> None:
        folds.append(len(rows.rows))
        add(history, rows, *rest)

    monkeypatch.setattr(History, "add", counted)
    assert there.blame("old", at=last.id).node == "START"
    first, folds[:] = len(folds), []
    assert there.blame("old", at=last.parents[0]).node == "START"
    assert first <= 12
    assert len(folds) <= 2  # its neighbour


# --- with and without snapshots


class Chat(BaseModel):
    """Fields that grow, change and stay."""

    messages: Annotated[list[dict[str, str]], reducers.extend] = []
    n: Annotated[int, reducers.increment] = 0
    left: int = 0
    right: int = 0
    more: int = 0
    note: str = ""


STEPS: list[int] = []


def step(n: int, more: int) -> dict[str, Any]:
    """One step of the loop."""
    STEPS.append(n)
    if more == 13 and n % 3 == 1:
        raise RuntimeError("unlucky")
    return {"messages": [{"role": "user", "content": f"message {n}"}], "n": 1}


def chatting(store: Store | None) -> CompiledGraph:
    """As many rounds as `more` says; each forks in two every other time."""
    graph = Graph(Chat, keep="all").add_node(step, writes=["messages", "n"])
    graph.add_node("l", lambda n: {"left": n, "messages": [{"role": "l", "content": str(n)}]})
    graph.add_node("r", lambda n: {"right": n, "messages": [{"role": "r", "content": str(n)}]})
    graph.add_node("join", lambda left, right: {"note": f"{left}{right}"}, writes=["note"])
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda n: ["l", "r"] if n % 2 else "join", ["l", "r", "join"])
    graph.add_edge(["l", "r"], "join")
    graph.add_conditional_edges("join", lambda n, more: "step" if n % max(more, 1) else END, ["step", END])
    return graph.compile(store=store, max_steps=100_000)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes snapshots every few rows."""
    monkeypatch.setattr("dspyer.log.reader.EVERY", 5)
    monkeypatch.setattr("dspyer.log.reader.AT_END", 3)
    monkeypatch.setattr("dspyer.log.reader.ROW", 1_000_000)  # enough, however large the state is


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with open_store(":memory:" if request.param == "memory" else tmp_path / "runs.db") as made:
        yield made


def seen(program: CompiledGraph) -> tuple[Any, ...]:
    """What a new handle says of the thread."""
    t = program.thread("t")
    return t.state.to_dict(), t.status


@pytest.mark.slow("a law over two stores in files, with several runs in each example")
@pytest.mark.usefixtures("often")
@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(st.sampled_from([1, 2, 5, 13]), st.booleans()), min_size=1, max_size=6))
def test_deleting_all_snapshots_changes_nothing(turns: list[tuple[int, bool]], tmp_path_factory: Any) -> None:
    paths = [tmp_path_factory.mktemp("runs") / "runs.db" for _ in range(2)]
    with open_store(paths[0]) as kept, open_store(paths[1]) as dropped:
        pair = [(each, chatting(each)) for each in (kept, dropped)]
        for more, resumes in turns:
            found = []
            for one, program in pair:
                if one is dropped:
                    one.drop_snapshots()
                STEPS.clear()
                t = program.thread("t")
                run = t.resume() if resumes and t.status == "failed" else t.run({"more": more}, if_open="abandon")
                commits = [(c.id, c.version, c.node, c.route) for c in run.commits]
                found.append((run.status, STEPS.copy(), run.state.to_dict(), commits, seen(program)))
            assert found[0] == found[1]


@pytest.mark.usefixtures("often")
def test_few_rows_follow_a_snapshot(store: Store) -> None:
    program = chatting(store)
    t = program.thread("t")
    for _ in range(3):
        t.run({"more": 20})
    row = store.thread("t")
    assert row is not None
    assert row.head is not None
    found = store.snapshot(row.head)
    assert found is not None
    assert found.at == row.head
    rows, asked = store.rows, []

    def counted(run: str, first: int = 0, last: int | None = None) -> list[Row]:
        asked.append(first)
        return rows(run, first, last)

    store.rows = counted  # type: ignore[method-assign]
    Heads.of(store).forget()
    assert program.thread("t").state["n"] == 60
    assert asked == [row.head.seq]
    for at in range(row.head.seq):
        before = store.snapshot(Point(row.head.run, at))
        assert at < 12 or (before is not None and at - before.at.seq <= 10), at


UNREADABLE = {
    "no JSON": b"?",
    "another form": b'[99,0,"",{"n":1}]',
    "no state": b'[1,"",5]',
}


@pytest.mark.usefixtures("often")
def test_an_unreadable_snapshot_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for damage, data in UNREADABLE.items():
        caplog.clear()
        path = tmp_path / f"{damage}.db"
        with open_store(path) as store:
            program = chatting(store)
            program.thread("t").run({"more": 9})
            wanted = seen(program)
            file = sqlite3.connect(path)
            file.execute("UPDATE snapshot SET body = ?", (body({}, data),))
            file.commit()
            file.close()
            Heads.of(store).forget()
            assert seen(program) == wanted, damage
            assert "is skipped" in caplog.text, damage
            program.thread("t").run({"more": 9})
            assert program.thread("t").state["n"] == 18, damage


def test_in_memory_nothing_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspyer.log.reader.AT_END", 1)
    with open_store(":memory:") as store:
        program = chatting(store)
        t = program.thread("t")
        state = t.run({"more": 2}).state
        row = store.thread("t")
        assert row is not None
        assert row.head is not None
        found = latest_snapshot(store, row.head, decode)
        assert found is not None
        assert found[1].state["messages"] is state["messages"]


def test_the_limits_keep_the_promise() -> None:
    assert AT_END <= EVERY <= 500


class Book(BaseModel):
    q: str = ""
    notes: Kept[Annotated[list[str], reducers.extend]] = []


def test_who_brought_old_items_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    take_snapshots(monkeypatch, 8)
    store = Counting()
    built = Graph(Book).add_node("note", lambda q: {"notes": [q]}, writes=["notes"])
    thread = built.add_path(START, "note", END).compile(store=store).thread("t")
    for q in map(str, range(40)):
        thread.run({"q": q})
    read = built.compile(store=store).thread("t")
    assert read.blame(("notes", 0)).id == "t.1/trunk:1"
    store.read = 0
    assert [read.blame(("notes", item)).id for item in range(1, 40)] == [f"t.{run}/trunk:1" for run in range(2, 41)]
    assert store.read == 0
    thread.run({"q": "last"})
    assert read.blame(("notes", -1)).id == "t.41/trunk:1", "what others have written meanwhile is read"
