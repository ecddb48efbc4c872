"""Stores and files that were not written by dspyer: refused with a reason, without hanging or filling the memory."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Archive, CompiledGraph, Context, Graph, Thread, reducers
from dspyer.errors import DspyerError, StoreError
from dspyer.log.journal import Heads
from dspyer.stores import Memory, content
from dspyer.stores.base import Change, Point, RunRow, Snapshot
from dspyer.stores.content import Content, blob_id
from dspyer.threads import export as exported


class State(BaseModel):
    q: str = ""
    log: Annotated[list[str], reducers.extend] = []


def program(store: Any) -> CompiledGraph:
    graph = Graph(State, inputs=["q"], keep="all").add_node("work", lambda q: {"log": [q]}, writes=["log"])
    return graph.add_path(START, "work", END).compile(store=store)


Line = dict[str, Any]


def spoil(path: Path, change: Callable[[list[Line]], None]) -> None:
    """Changes the lines of an exported file, and gives it the digest that it has then."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()][:-1]
    change(lines)
    write(path, lines)


def write(path: Path, lines: list[Line]) -> None:
    """Writes lines with their digest."""
    data = b"".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for line in lines)
    digest = blake2b(data, digest_size=16).hexdigest()
    path.write_bytes(data + json.dumps({"digest": digest}).encode() + b"\n")


def runs_of(lines: list[Line]) -> list[Line]:
    return [line for line in lines if "run" in line]


def own_parent(lines: list[Line]) -> None:
    (*_, last) = runs_of(lines)
    last["parents"] = [[last["run"], 0]]


def circle(lines: list[Line]) -> None:
    first, *_, last = runs_of(lines)
    first["parents"] = [[last["run"], 0]]


def twice(lines: list[Line]) -> None:
    lines.append(dict(runs_of(lines)[0]))


def gap(lines: list[Line]) -> None:
    del lines[next(place for place, line in enumerate(lines) if line.get("row") == 1)]


def no_run(lines: list[Line]) -> None:
    lines[:] = [line for line in lines if "run" not in line]


def far_head(lines: list[Line]) -> None:
    lines[0]["head"] = [lines[0]["head"][0], 999]


def negative(lines: list[Line]) -> None:
    next(line for line in lines if "row" in line)["row"] = -1


def many_runs(lines: list[Line]) -> None:
    lines[0]["runs"] = 1 << 40


def forged_blob(lines: list[Line]) -> None:
    lines.insert(1, {"blob": blob_id(b"what others store"), "text": "what they would read"})


def root(lines: list[Line], data: bytes, refs: tuple[str, ...] = ()) -> None:
    lines[0]["root"] = lines[0]["head"]
    lines.append({"snapshot": lines[0]["head"], "base64": base64.b64encode(data).decode(), "refs": refs})


def lost_root(lines: list[Line]) -> None:
    lines[0]["root"] = lines[0]["head"]


def no_snapshot(lines: list[Line]) -> None:
    root(lines, b"no JSON")


def bomb(lines: list[Line]) -> None:
    root(lines, b'[1,"",{"v":[' + b"[]," * 20_000 + b"[]]}]")


def long_bomb(lines: list[Line]) -> None:
    root(lines, b'[1,"",{"v":"' + b"a" * 200_000 + b'"}]')


FILES: list[tuple[Callable[[list[Line]], None], str]] = [
    (own_parent, "run '.*' is its own parent"),
    (circle, "is its own parent, or comes after a run"),
    (twice, "run '.*' is there twice"),
    (gap, "row 2 does not follow"),
    (no_run, "row 0 does not follow"),
    (far_head, "its head is in none of its runs"),
    (negative, "-1 is no number of a row"),
    (many_runs, "1099511627776 is no number of runs"),
    (forged_blob, "is another one than its id says"),
    (lost_root, "lacks the snapshot at its root"),
    (no_snapshot, "the snapshot at which the pruned history begins cannot be read"),
    (bomb, "about 40,0.* values; 10,000 are"),
    (long_bomb, "besides its long texts and bytes; 150,000 are stored and read at most"),
]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value inside of a line."""
    if at:
        yield at
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(one, (*at, key))


WRONG: list[Any] = ["x", -5, None, {"a": 1}, [], 10**30]


def damages(lines: list[Line]) -> Iterator[list[Line]]:
    """Lines that are missing, twice or in another order, lack a key, or have another value somewhere."""
    for number, line in enumerate(lines):
        rest = lines[:number], lines[number + 1 :]
        yield [*rest[0], *rest[1]]
        yield [*rest[0], line, line, *rest[1]]
        yield [*rest[0], *rest[1][:1], line, *rest[1][1:]]
        yield from ([*rest[0], {name: line[name] for name in line if name != key}, *rest[1]] for key in line)
        for place in places(line):
            for value in WRONG:
                damaged = copy.deepcopy(line)
                inner = damaged
                for key in place[:-1]:
                    inner = inner[key]
                inner[place[-1]] = value
                yield [*rest[0], damaged, *rest[1]]


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An open run with what rows can hold: a join, a map, an effect, an answer, a question, a large value."""

    def add(old: list[str], new: list[str]) -> list[str]:
        return old + new

    class Rich(BaseModel):
        xs: Annotated[list[str], add] = []
        big: str = ""
        parts: list[str] = []
        ok: bool = False

    def ask(ctx: Context) -> dict[str, bool]:
        return {"ok": ctx.interrupt("one", "really?") and ctx.interrupt("two", "fine?")}

    graph = Graph(Rich).add_node("l", lambda: {"xs": ["l"]}, writes=["xs"])
    graph.add_node("r", lambda: {"xs": ["r"]}, writes=["xs"]).add_node(ask, writes=["ok"])
    graph.add_node("work", lambda ctx: {"big": ctx.once("k", lambda: "b" * 20_000)}, writes=["big"])
    graph.add_map("each", lambda item: {"parts": item}, over="xs", item="item", into="parts")
    graph.add_edge(START, ["l", "r"]).add_edge(["l", "r"], "work").add_path("work", "each", "ask", END)
    thread = graph.compile(store=Memory()).thread("t")
    thread.run({})
    thread.resume({"one": True})
    path = tmp_path_factory.mktemp("rich") / "t.jsonl"
    thread.export(path)
    return path


def test_each_damage_is_one_error_of_the_library(rich: Path, tmp_path: Path) -> None:
    """Of all damages, some at random. What is loaded all the same is readable, or says which commit is not."""
    lines = [json.loads(line) for line in rich.read_bytes().splitlines()][:-1]
    found, path = list(damages(lines)), tmp_path / "t.jsonl"
    for damaged in (lines, *random.Random(7).sample(found, 50)):
        write(path, damaged)
        store = Memory()
        thread, refused = program(store).thread("t"), ""
        try:
            thread.load(path)
        except StoreError as error:
            refused = str(error)
        if refused:
            assert "Nothing was loaded; export the thread again" in refused
            assert (damaged is not lines, store.threads(), store.runs("t")) == (True, [], [])
            continue
        looks = (lambda: thread.status, lambda: thread.state, thread.history, lambda: thread.questions, thread.replay)
        for look in (*looks, lambda: [run.to_dict() for run in Archive(store).runs()]):
            with suppress(DspyerError):
                look()


BYTES: list[Callable[[bytes], bytes]] = [
    lambda data: b"",
    gzip.compress,
    lambda data: data.decode().encode("utf-16"),
    lambda data: data.decode().encode("utf-8-sig"),
    lambda data: data[: len(data) // 2],
    lambda data: data.replace(b"trunk", b"tr\xffnk", 1),
    lambda data: b"null\n",
    lambda data: b"[" * 100_000,
]


def test_other_bytes_are_one_error_of_the_library(rich: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for change in BYTES:
        path.write_bytes(change(rich.read_bytes()))
        store = Memory()
        with pytest.raises(
            StoreError, match=r"t.jsonl' is no thread .*line \d+: .*Nothing was loaded; export .* again"
        ):
            program(store).thread("t").load(path)
        assert store.threads() == []


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can reach."""
    monkeypatch.setattr(content, "MAX_JSON_BYTES", 150_000)
    monkeypatch.setattr(content, "MAX_VALUES", 10_000)
    monkeypatch.setattr(content, "UNCOUNTED", 10_000)
    monkeypatch.setattr(exported, "VALUES", 50_000)
    monkeypatch.setattr(exported, "LONGEST", 400_000)


@pytest.mark.usefixtures("small")
def test_a_file_that_is_no_export_is_refused(tmp_path: Path) -> None:
    """It says where in the file; nothing of it is in the store."""
    t = program(Memory()).thread("t")
    for q in ("a", "b"):
        t.run({"q": q})
    whole, path = tmp_path / "whole.jsonl", tmp_path / "t.jsonl"
    t.export(whole)
    spoil(whole, lambda lines: None)
    program(Memory()).thread("t").load(whole)
    wrong = []
    for change, words in FILES:
        path.write_bytes(whole.read_bytes())
        spoil(path, change)
        store, said = Memory(), "it was loaded"
        try:
            program(store).thread("t").load(path)
        except StoreError as error:
            said = str(error)
        told = re.search(rf"line \d+: .*{words}.*Nothing was loaded", said)
        if not told or store.threads() or store.delete().runs:
            wrong.append((change.__name__, said, store.threads()))
    assert wrong == []


LINES: list[tuple[bytes, str]] = [
    (b'{"row":' + b"[" * 120_000, "about 120,001 values"),
    (b'{"row":"' + b"a" * 200_000, "200,009 bytes of JSON"),
    (b'{"blob":"' + b"a" * 500_000, "more than the 400,000 bytes"),
    (b'{"blob":' + b"[[]," * 50_000, "more than the 50,000 values"),
    (b'{"row":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "RecursionError"),
    (b"[]", "it is no object"),
]


@pytest.mark.usefixtures("small")
def test_lines_have_limits_before_they_are_parsed(tmp_path: Path) -> None:
    t = program(Memory()).thread("t")
    t.run({"q": "a"})
    path = tmp_path / "t.jsonl"
    t.export(path)
    first = path.read_bytes().splitlines()[0]
    for line, words in LINES:
        path.write_bytes(first + b"\n" + line + b"\n")
        with pytest.raises(StoreError, match=f"line 2: .*{words}"):
            program(Memory()).thread("u").load(path)


ASKED: dict[str, Callable[[Thread], object]] = {
    "state": lambda t: t.state,
    "history": lambda t: t.history(),
    "at": lambda t: t.at(1),
    "run": lambda t: t.run({"q": "x"}),
    "resume": lambda t: t.resume(),
    "replay": lambda t: t.replay(),
    "copy": lambda t: t.copy("copy"),
}


@pytest.mark.parametrize("segments", [False, True], ids=["runs", "parts of a run"])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_runs_that_continue_from_themselves_raise(length: int, segments: bool) -> None:
    """Whatever is asked comes back: with an answer where none of them is needed, else with an error that names one."""
    for asked, ask in ASKED.items():
        first, store = Memory(), Memory()
        program(first).thread("t").run({"q": "a"})
        (made,) = first.runs("t")
        rows = first.rows(made.id)
        header = {**made.header, **({"continues": True} if segments else {})}
        names = [made.id, *(f"run {number}" for number in range(1, length))]
        for name, parent in zip(names, [*names[1:], names[0]], strict=True):
            store.write(Change(run=RunRow(name, "t", (Point(parent, 1),), header), rows_of=name, rows=rows))
        store.write(Change("t", head=Point(made.id, rows[-1].seq)))
        t = program(store).thread("t")
        with suppress(StoreError):
            ask(t)
        store.delete(["copy"])
        assert t.delete().threads == ("t",), asked
        assert not any(store.run(name) for name in names), asked


def test_a_thread_with_a_cyclic_history_can_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    t = program(path).thread("t")
    t.run({"q": "a"})
    connection = sqlite3.connect(path)
    (name,) = connection.execute("SELECT id FROM run").fetchone()
    connection.execute("UPDATE run SET parents = ?", (json.dumps([[name, 0]]).encode(),))
    connection.execute("INSERT INTO link SELECT id, id FROM run")
    connection.commit()
    connection.close()
    t = program(path).thread("t")
    with pytest.raises(StoreError, match="continues from itself"):
        t.export(tmp_path / "t.jsonl")
    with pytest.raises(StoreError, match="continues from itself"):
        t.run({"q": "b"})
    assert t.delete().runs == 1


BOMBS = {
    "values": b'[1,"",{"v":[' + b"[]," * 20_000 + b"[]]}]",
    "bytes": b'[1,"",{"v":"' + b"a" * 2_000_000 + b'"}]',
    "depth": b'[1,"",{"v":' + b"[" * 5_000 + b"]" * 5_000 + b"}]",
    "no state": b'[1,"",7]',
    "another form": b'[9,1,"",{"v":7}]',
}


@pytest.mark.usefixtures("small")
def test_a_snapshot_that_is_too_large_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """It is a cache: the rows say the same."""
    for name, bomb in BOMBS.items():
        caplog.clear()
        store = Memory()
        t = program(store).thread("t")
        for q in "abc":
            t.run({"q": q})
        row = store.thread("t")
        assert row is not None
        assert row.head is not None
        store.write(Change("t", row.epoch, snapshot=Snapshot(row.head, Content.stored(bomb))))
        Heads.of(store).forget()
        assert program(store).thread("t").state["log"] == ["a", "b", "c"], name
        assert "is skipped" in caplog.text, name


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "value", ["a" * 200_000, ["", *range(10**11, 10**11 + 10_000)]], ids=["a long text is stored apart", "many values"]
)
def test_what_could_not_be_read_again_is_refused_when_it_is_written(value: Any, tmp_path: Path) -> None:
    graph = Graph().add_node("work", lambda state: {"out": value}).add_path(START, "work", END)
    t = graph.compile(store=tmp_path / "runs.db").thread("t")
    run = t.run({})
    if isinstance(value, str):
        assert t.state["out"] == value
        return
    assert run.status == "failed"
    assert "10,000 are stored and read at most" in str(run.error)
    assert "out" not in t.state


def test_a_run_whose_commit_is_too_large_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = [list(range(9_000))]
    graph = Graph(inputs=["ns"]).add_node("write", lambda state: {"value": made[0]}).add_path(START, "write", END)
    run = graph.compile(store=tmp_path / "runs.db").thread("t").run({"ns": []})
    assert run.status == "completed"
    monkeypatch.setattr(content, "MAX_JSON_BYTES", 20_000)
    t = graph.compile(store=tmp_path / "runs.db").thread("u")
    assert (t.run({"ns": []}).status, t.status) == ("failed", "failed")
    assert t.error is not None
    assert t.error.node == "write"
    made[0] = 7
    assert t.resume().state["value"] == 7


@pytest.mark.usefixtures("small")
def test_a_snapshot_that_could_not_be_read_again_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each commit is small enough, and the rows have it all."""
    graph = Graph(State, inputs=["q"], keep="all").add_node("work", lambda q: {"log": [q] * 100}, writes=["log"])
    graph.add_path(START, "work").add_conditional_edges(
        "work", lambda log: len(log) > 11_000, {True: END, False: "work"}
    )
    assert graph.compile(store=tmp_path / "runs.db", max_steps=200).thread("t").run({"q": "a"}).status == "completed"
    assert "is left out: it has about 11," in caplog.text
    assert len(graph.compile(store=tmp_path / "runs.db").thread("t").state["log"]) > 11_000


@pytest.mark.usefixtures("small")
def test_a_history_cannot_be_pruned_at_a_state_that_is_too_large(tmp_path: Path) -> None:
    """Its snapshot would be all that is left of what is pruned."""
    graph = Graph(State, inputs=["q"], keep="all").add_node("work", lambda q: {"log": [q] * 4_000}, writes=["log"])
    t = graph.add_path(START, "work", END).compile(store=tmp_path / "runs.db").thread("t")
    for number in range(4):
        t.run({"q": str(number)})
    before = [commit.id for commit in t.history()]
    with pytest.raises(StoreError, match="cannot be read again"):
        t.prune(before=6)
    assert [commit.id for commit in t.history()] == before
    assert len(t.state["log"]) == 16_000


@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        pytest.param({"id": "x", "a": 1}, "which is none of a CommitRow", id="not the header of a commit"),
        pytest.param(None, "has no row 99", id="a head behind the last row"),
    ],
)
def test_malformed_rows_raise(spoiled: dict[str, Any] | None, words: str) -> None:
    store = Memory()
    t = program(store).thread("t")
    t.run({"q": "a"})
    (made,) = store.runs("t")
    if spoiled is None:
        store.write(Change("t", 1, head=Point(made.id, 99)))
    else:
        store._rows[made.id][1] = store._rows[made.id][1]._replace(header=spoiled)
    store._snapshots[made.id].clear()
    Heads.of(store).forget()
    t = program(store).thread("t")
    # A history shows the commits that cannot be read, each with the reason.
    asks: list[Callable[[], object]] = [lambda: t.state, lambda: t.run({"q": "b"})]
    for ask in [*asks, t.history] if spoiled is None else asks:
        with pytest.raises(StoreError, match=words):
            ask()
