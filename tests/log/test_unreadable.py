"""Whatever is wrong with a row of a thread, the rows before it can be read, and a new run can start from them."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Archive, CompiledGraph, Context, Graph, Kept, Thread, live, reducers
from dspyer.errors import StoreError
from dspyer.events import Commit
from dspyer.extend import Layer, NewRow
from dspyer.reducers import Reducer
from dspyer.stores import SQLite
from dspyer.stores.base import Point, Row, Snapshot
from dspyer.testing import ScriptedLM
from tests.stores.kit import Content

LONG = "long " * 9_000


class State(BaseModel):
    q: str = ""
    log: Kept[Annotated[list[str], reducers.extend]] = []
    long: Kept[str] = ""


def graph(store: Any, schema: type[BaseModel] = State) -> CompiledGraph:
    built = Graph(schema, inputs=["q"]).add_node("first", lambda q: {"log": [q]}, writes=["log"])
    built.add_node("second", lambda q: {"log": [q + q], "long": LONG + " " + q}, writes=["log", "long"])
    built.add_node("third", lambda q: {"log": ["end"]}, writes=["log"])
    return built.add_path(START, "first", "second", "third", END).compile(store=store)


class Spoiled(SQLite):
    """A store in which one row has gone bad: the commit of `second` in the second run, or of `first` in the only one.

    Attributes:
        bad: what that row holds.
        lost: large values that are not there any more.
    """

    bad: bytes | None = None
    lost: Callable[[bytes], bool] = staticmethod(lambda data: False)

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        found = super().rows(run, first, last)
        runs = [known.id for known in self.runs("t")]
        if self.bad is None or run != runs[:2][-1]:
            return found
        commits = [row.seq for row in super().rows(run) if row.kind == "commit"]
        content = Content.stored(self.bad)
        return [row._replace(content=content) if row.seq == commits[len(runs[:2])] else row for row in found]

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        return {name: data for name, data in super().blobs(ids).items() if not self.lost(data)}

    def snapshot(self, at: Point) -> Snapshot | None:
        return None


def with_bytes(data: bytes) -> Callable[[Spoiled], None]:
    def spoil(store: Spoiled) -> None:
        store.bad = data

    return spoil


def without_the_large_value(store: Spoiled) -> None:
    store.lost = lambda data: data.endswith(b" b")


SPOIL = [
    pytest.param(with_bytes(b'{"patch": ['), id="half of it"),
    pytest.param(with_bytes(b"\xff\xfe\x00"), id="no text"),
    pytest.param(with_bytes(b'[{"log": {"$type": "updates", "value": 7}}]'), id="another form"),
    pytest.param(with_bytes(b'[{"log": 7}]'), id="it does not fold"),
    pytest.param(with_bytes(b'[{"log": ' + b"[" * 5_000 + b"]" * 5_000 + b"}]"), id="too deep"),
    pytest.param(without_the_large_value, id="a large value is lost"),
]


@pytest.fixture
def spoiled(tmp_path: Path) -> Callable[[Callable[[Spoiled], None]], Thread]:
    def make(spoil: Callable[[Spoiled], None]) -> Thread:
        store = Spoiled(tmp_path / "runs.db")
        for q in "ab":
            assert graph(store).thread("t").run({"q": q}).status == "completed"
        reopened = Spoiled(tmp_path / "runs.db")  # the first one's process remembers what it has written
        spoil(reopened)
        return graph(reopened).thread("t")

    return make


@pytest.mark.parametrize("spoil", SPOIL)
def test_the_history_is_readable_up_to_the_unreadable_row(spoil: Any, spoiled: Callable[[Any], Thread]) -> None:
    t = spoiled(spoil)
    history = t.history()
    assert [commit.node for commit in history] == ["START", "first", "second", "third"] * 2, "the structure of all"
    assert t.at(5)["log"] == ["a", "aa", "end", "b"]
    with pytest.raises(StoreError, match="continue from version 5"):
        _ = t.state  # an older one would be a lie
    broken, behind = history[6:]
    assert "commit trunk:2 of 'second' cannot be read" in repr(broken.patch)
    assert repr(behind.patch) == repr(broken.patch), "what builds on it is not known"
    assert not broken.patch
    assert broken.version is None
    with pytest.raises(StoreError, match=r"commit trunk:2 of 'second' cannot be read"):
        t.at(broken.id)
    with pytest.raises(StoreError, match="cannot be read"):
        t.replay()
    assert t.status == "completed"
    check_that_a_new_run_can_start_before_it(t)


def check_that_a_new_run_can_start_before_it(t: Thread) -> None:
    with pytest.raises(StoreError, match=r"continue from version 5 with thread.run\(..., if_open='abandon'\)"):
        t.run({"q": "c"})
    twin = t.copy("twin", at=3)
    assert twin.run({"q": "d"}).state["log"] == ["a", "aa", "end", "d", "dd", "end"]
    run = t.run({"q": "c"}, if_open="abandon")
    assert run.state["log"] == ["a", "aa", "end", "b", "c", "cc", "end"]
    assert [commit.version for commit in t.history()] == list(range(10))
    assert t.replay() == t.state
    assert t.run({"q": "d"}).commits[0].version == 10


def test_an_unreadable_open_run_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    def fail(q: str) -> dict[str, Any]:
        raise RuntimeError("boom")

    def built(store: Any) -> CompiledGraph:
        made = Graph(State, inputs=["q"]).add_node("first", lambda q: {"log": [q]}, writes=["log"])
        return made.add_node("fail", fail, writes=[]).add_path(START, "first", "fail", END).compile(store=store)

    store = Spoiled(path)
    assert built(store).thread("t").run({"q": "a"}).status == "failed"
    store.bad = b"\x00"
    t = built(store).thread("t")
    with pytest.raises(StoreError, match="cannot be read"):
        t.resume()
    assert [commit.node for commit in t.history()] == ["START", "first"]
    assert t.error is not None
    assert t.delete().threads == ("t",)


def counts(current: Any, update: Any) -> Any:
    return (current or 0) + update


def test_a_field_is_readable_whose_reducer_is_gone(tmp_path: Path) -> None:
    class Before(State):
        n: Kept[Annotated[int, Reducer("counts", counts)]] = 0

    class After(State):
        pass

    def built(schema: type[BaseModel]) -> CompiledGraph:
        made = Graph(schema, inputs=["q"])
        made.add_node("count", lambda q: {"n": 1} if schema is Before else {}, writes=["n"] if schema is Before else [])
        return made.add_path(START, "count", END).compile(store=tmp_path / "runs.db")

    for _ in range(2):
        built(Before).thread("t").run({"q": "a"})
    t = built(After).thread("t")
    assert [t.at(version)["n"] for version in range(4)] == [0, 1, 1, 2]
    assert t.run({"q": "b"}).state.to_dict() == {"q": "b", "log": [], "long": ""}
    assert built(Before).thread("t").at(3)["n"] == 2


# By kind of the damaged row of the second run: what can still be read of the versions.
DAMAGED_ROWS = {"open": 4, "commit": 5, "end": 8}


@pytest.mark.parametrize("kind", DAMAGED_ROWS)
def test_a_damaged_body_is_named_and_the_rest_is_readable(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLite(path) as store:
        thread = graph(store).thread("t")
        states = [thread.run({"q": q}).state for q in "ab"]
        _, second = (run.id for run in store.runs("t"))
        seq = [row.seq for row in store.rows(second) if row.kind == kind][int(kind == "commit")]
    for body in (b"", b"no body", zlib.compress(b"?")):
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("UPDATE entry SET body = ? WHERE run = ? AND seq = ?", (body, second, seq))
        with SQLite(path) as store:
            thread = graph(store).thread("t")
            readable = [one for one in thread.history() if one.version is not None]
            assert len(readable) == DAMAGED_ROWS[kind], body
            assert thread.at(3) == states[0], body
            assert [one.thread for one in Archive(store).runs()] == ["t", "t"], body
            with pytest.raises(StoreError, match=f"row {seq}, of kind '{kind}', is damaged: in run {second}"):
                _ = thread.status if kind == "end" else thread.state
            with pytest.raises(StoreError, match=f"row {seq}, of kind '{kind}', is damaged"):
                thread.run({"q": "c"})
            assert thread.copy(to=f"u{body!r}", at=3).state == states[0], body


class AllKinds(BaseModel):
    q: str = ""
    docs: list[str] = []
    texts: list[str] = []
    notes: Annotated[list[str], reducers.append, live] = []
    made: str = ""
    ok: bool | None = None


class Named(Layer):
    """Stores a row with each commit."""

    def rows(self, commit: Commit) -> list[NewRow]:
        return [NewRow("name", commit.node)]


def of_all_kinds(store: Any) -> CompiledGraph:
    """A graph whose runs have a row of each kind: they ask, and are failed if the answer is no."""

    def work(q: str, ctx: Context) -> dict[str, str]:
        ctx.post("notes", q)
        return {"made": ctx.once("key", lambda: LONG + q)}

    def approve(q: str, ctx: Context, judge: dspy.Predict) -> dict[str, bool]:
        judge(q=q)
        ok = ctx.interrupt("sure", "Sure?")
        if not ok:
            raise ValueError("it must not be")
        return {"ok": ok}

    built = Graph(AllKinds, inputs=["q", "docs"]).add_node("work", work, writes=["made", "notes"])
    built.add_map("each", lambda doc: LONG + doc, over="docs", item="doc", into="texts")
    built.add_node("approve", approve, modules={"judge": dspy.Predict("q -> verdict")}, writes=["ok"])
    built.add_path(START, "work", "each", "approve", END)
    return built.compile(store=store, record_lm_calls="full", layers=[Named()])


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("all") / "runs.db"
    with SQLite(path) as store, ScriptedLM([{"verdict": "v"}] * 4):
        thread = of_all_kinds(store).thread("t")
        for q in "ab":
            assert thread.run({"q": q, "docs": [q, q + q]}).status == "interrupted"
            assert thread.resume(answers={"sure": q == "a"}).status == ("completed" if q == "a" else "failed")
    return path


KINDS = ["open", "commit", "item", "once", "ask", "answer", "post", "layer", "lm_call", "resume", "end"]


@pytest.mark.parametrize(("kind", "place"), [*[(kind, 0) for kind in KINDS], ("commit", 1), ("lm_call", 1), ("end", 1)])
def test_whoever_looks_is_shown_all_but_the_damaged_row(
    kind: str, place: int, all_kinds: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(shutil.copy(all_kinds, tmp_path))
    with SQLite(path) as store:
        first, second = (run.id for run in store.runs("t"))
        rows = store.rows(second)
        seq = [row.seq for row in rows if row.kind == kind][place]
        whole = Archive(store).thread("t")
        steps = whole.record(second).steps
        posts = sum(len(step.posts) for step in steps)
        calls = sum(len(whole.lm_calls(commit.id)) for commit in whole.history())
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE entry SET body = x'1234' WHERE run = ? AND seq = ?", (second, seq))
    caplog.set_level(logging.WARNING, "dspyer")
    with SQLite(path) as store:
        archive, thread = Archive(store), of_all_kinds(store).thread("t")
        there = archive.thread("t")
        named = f"row {seq}, of kind '{kind}', is damaged: in run {second}"
        history = thread.history()
        assert len(history) == 7
        assert kind not in ("open", "commit", "item") or named in repr(history[-1].patch)
        assert kind != "commit" or history[4 + place].node == "?"
        failures = [info.failure for info in archive.runs()]
        assert kind not in ("ask", "answer", "end") or not place or named in str(failures)
        assert [len(there.history(run=run)) for run in (first, second)] == [4, 3]
        record = there.record(second)
        assert sum(len(step.posts) for step in record.steps) == posts - (kind == "post")
        assert kind in ("open", "commit", "item") or len(record.steps) >= len(steps) - (kind == "ask")
        assert named in str([step.reason for step in record.steps if step.status == "unreadable"])
        assert sum([len(there.lm_calls(commit.id)) for commit in history]) == calls
        assert len(there.lm_calls("t.2/trunk:3")) == 2 - (kind == "lm_call"), "of the execution that has failed"
        assert kind not in ("post", "lm_call") or named in caplog.text
        unknown = there.stats(second).unknown
        assert kind not in ("open", "commit") or named in str(unknown)
        for shown in (there.report(second), there.to_svg(second)):
            assert "each" in shown
        there.to_html(tmp_path / "run.html", second)
        caplog.clear()
        thread.export(tmp_path / "t.jsonl")
        assert named in caplog.text
        if kind == "lm_call":
            assert thread.blame("made").id == "t.2/trunk:1"
            return
        with pytest.raises(StoreError, match=named):  # of what a resume needs, nothing is guessed
            thread.resume()
        assert len(thread.history()) == len(history)
        if kind in ("open", "commit"):
            with pytest.raises(StoreError, match=named):  # it may have written it
                thread.blame("made")
            with pytest.raises(StoreError, match=named):
                there.blame("made", at=history[-1].id)


@pytest.mark.parametrize("sql", ["UPDATE blob SET body = x'1234'", "UPDATE blob SET body = 'text'", "DELETE FROM blob"])
def test_a_damaged_large_value_is_a_lost_one(sql: str, all_kinds: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(all_kinds, tmp_path))
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(f"{sql} WHERE length(body) > ?", (len(LONG),))
    with SQLite(path) as store:
        thread = of_all_kinds(store).thread("t")
        assert ["is lost or damaged" in repr(commit.patch) for commit in thread.history()] == [False] + 6 * [True]
        with pytest.raises(StoreError, match="commit trunk:1 of 'work' cannot be read: LookupError: the large value"):
            thread.resume()


class Counted(BaseModel):
    q: str = ""
    n: Kept[int] = 0


def test_who_wrote_what_a_damaged_row_may_have_written_is_not_said(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    built = Graph(Counted, inputs=["q"]).add_node("count", lambda n: {"n": n + 1}, writes=["n"])
    built.add_edge(START, "count").add_conditional_edges("count", lambda n: "count" if n % 600 else END, ["count", END])
    with SQLite(path) as store:
        thread = built.compile(store=store, max_steps=700).thread("t")
        thread.update({"n": 0})
        thread.run({"q": "a"}).raise_error()
        assert thread.blame("q").node == "START"
        (_, run) = (run.id for run in store.runs("t"))
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE entry SET body = x'1234' WHERE run = ? AND seq = 9", (run,))
    with SQLite(path) as store:
        thread = built.compile(store=store).thread("t")
        assert thread.state["n"] == 600, "a later snapshot has it"
        assert thread.blame("n").id == "t.2/trunk:600"
        with pytest.raises(StoreError, match="row 9, of kind 'commit', is damaged"):
            thread.blame("q")


def test_items_of_a_map_that_are_gone_make_its_commit_unreadable(all_kinds: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(all_kinds, tmp_path))
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("DELETE FROM entry WHERE kind = 'item'")
    with SQLite(path) as store:
        thread = of_all_kinds(store).thread("t")
        assert thread.at(1)["q"] == "a"
        assert "of kind 'commit', is damaged" in repr(thread.history()[2].patch), "it may have been one"


def test_a_row_that_is_gone_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLite(path) as store:
        for q in "ab":
            graph(store).thread("t").run({"q": q})
        _, run = (run.id for run in store.runs("t"))
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("DELETE FROM entry WHERE run = ? AND seq = 2", (run,))
    with SQLite(path) as store:
        thread, there = graph(store).thread("t"), Archive(store).thread("t")
        named = f"row 2, of kind 'commit', is damaged: in run {run}, it is not there"
        history = thread.history()
        assert [commit.node for commit in history[5:]] == ["?", "second", "third"]
        assert all(named in repr(commit.patch) for commit in history[5:])
        assert thread.at(4)["log"] == ["a", "aa", "end"]
        for read in (
            lambda: thread.state,
            lambda: thread.blame("q"),
            lambda: there.record("t.2").state("t.2/trunk:2"),
            lambda: thread.run({"q": "c"}),
        ):
            with pytest.raises(StoreError, match=named):
                read()


@pytest.mark.parametrize(
    ("column", "value"), [*[(column, "oops") for column in ("header", "ended", "parents", "started")], ("header", "7")]
)
def test_a_damaged_row_of_a_run_is_named_and_lists_have_the_others(
    column: str, value: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs.db"
    with SQLite(path) as store:
        for name in "tu":
            graph(store).thread(name).run({"q": name})
        (run,) = store.runs("t")
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(f"UPDATE run SET {column} = ? WHERE id = ?", (value, run.id))
    with SQLite(path) as store:
        archive, named = Archive(store), f"row '{run.id}' of the table 'run' is damaged"
        for listed in (archive.runs(), archive.runs(limit=1), archive.threads()):
            assert [info.thread for info in listed] == ["u"]
            assert f"left out: {named}" in caplog.text
        thread = graph(store).thread("t")
        if column in ("header", "parents"):
            for read in (thread.history, thread.record, archive.thread("t").record):
                with pytest.raises(StoreError, match=f"{named}.*Restore the store from a backup"):
                    read()
        else:  # only lists need it
            assert thread.record().status == archive.thread("t").info().status == "completed"
        assert len(archive.thread("u").history()) == 4


def test_a_row_of_a_run_that_is_gone_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLite(path) as store:
        graph(store).thread("t").run({"q": "t"})
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("DELETE FROM run")
    with SQLite(path) as store:
        thread = graph(store).thread("t")
        for read in (thread.history, thread.record, Archive(store).thread("t").info):
            with pytest.raises(StoreError, match=r"has no run .* rows were removed by hand"):
                read()


def test_a_damaged_row_of_a_thread_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLite(path) as store:
        for name in "tu":
            graph(store).thread(name).run({"q": name})
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE thread SET owner = 'oops' WHERE name = 't'")
    with SQLite(path) as store:
        assert [info.thread for info in Archive(store).threads()] == ["u"]
        with pytest.raises(StoreError, match="row 't' of the table 'thread' is damaged"):
            graph(store).thread("t").history()
