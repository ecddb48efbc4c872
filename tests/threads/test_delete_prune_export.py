"""Deleting, pruning, exporting and loading threads: rows that a thread reaches stay, and no others."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Failure, Graph, Kept, Thread, reducers
from dspyer.errors import ConcurrentRunError, StoreError, ThreadError
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.base import Point
from dspyer.stores.encrypted import Encrypted
from dspyer.testing import no_pauses
from tests.log.failing import FailingSQLite, kill
from tests.log.processes import end_of, fork
from tests.stores.kit import begin
from tests.threads.test_key_deliveries import Stepped, Steps

LONG = "a long text " * 3_000


class State(BaseModel):
    q: str = ""
    log: Kept[Annotated[list[str], reducers.extend]] = []
    long: Kept[str] = ""
    raw: Kept[bytes] = b""


def work(q: str) -> dict[str, Any]:
    if q == "boom":
        raise ValueError("no " + q)
    found: dict[str, Any] = {"log": [q]}
    return {**found, "long": LONG + q, "raw": q.encode() * 9_000} if q.startswith("long") else found


def program(store: Store) -> CompiledGraph:
    graph = Graph(State, inputs=["q"]).add_node("work", work, writes=["log", "long", "raw"])
    graph.add_node("side", lambda q: {"log": ["side"]}, writes=["log"])
    graph.add_edge(START, ["work", "side"]).add_node("last", lambda log: {}, writes=[])
    return graph.add_edge(["work", "side"], "last").add_edge("last", END).compile(store=store)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A file, whose values are encrypted."""
    with SQLite(tmp_path / "runs.db") as store:
        yield Encrypted(store, key=Encrypted.new_key())


@pytest.fixture(params=["memory", "encrypted"])
def each_store(request: pytest.FixtureRequest, store: Store) -> Store:
    return Memory() if request.param == "memory" else store


def commits_and_states(t: Thread) -> list[Any]:
    return [(commit, t.at(commit.id)) for commit in t.history()]


def counted(store: Store) -> dict[str, int]:
    return {name: sum(len(store.rows(run.id)) for run in store.runs(name)) for name in store.threads()}


# --- failures


def test_the_last_failure_can_be_read_after_a_restart(store: Store) -> None:
    assert program(store).thread("t").run({"q": "boom"}).status == "failed"
    t = program(store).thread("t")
    error = t.error
    assert error is not None
    assert (error.node, error.type, error.message) == ("work", "ValueError", "no boom")
    assert error.traceback.rstrip().endswith("visit 1, attempt 1)")
    assert "raise ValueError" in error.traceback
    assert str(error) == "work (execution 0:0, attempt 1): ValueError: no boom"
    assert isinstance(error, Failure)
    assert not error.retryable
    assert t.failures == (error,)
    t.run({"q": "a"}, if_open="abandon")
    assert t.error is None
    assert program(store).thread("new").error is None


class GoneError(ConnectionError):
    """A transient error."""


def test_a_stored_failure_knows_its_attempt_and_whether_another_one_may_help(store: Store) -> None:
    def reach(q: str) -> None:
        raise GoneError("x" * 1000)

    graph = Graph(State, inputs=["q"]).add_node("reach", reach, retry=3).add_path(START, "reach", END)
    t = graph.compile(store=store).thread("t")
    with no_pauses():
        t.run({"q": "a"})
    error = t.error
    assert error is not None
    assert (error.attempt, error.retryable, error.type, error.message) == (3, True, "GoneError", "x" * 500)
    assert "x" * 1000 in error.traceback


# --- deleting


def test_delete_removes_what_no_other_thread_reaches(each_store: Store) -> None:
    graph = program(each_store)
    t, other = graph.thread("t"), graph.thread("other")
    for q in ("a", "long b"):
        t.run({"q": q})
        other.run({"q": q})
    twin = t.copy("twin")
    t.run({"q": "c"})
    before = commits_and_states(twin)
    swept = t.delete()
    assert swept.threads == ("t",)
    assert swept.runs == 1, "what the copy does not reach"
    assert set(swept.kept) == {"twin"}
    assert len(swept.kept["twin"]) == 2
    assert graph.threads() == ["other", "twin"]
    assert commits_and_states(program(each_store).thread("twin")) == before
    assert t.status == "new"
    with pytest.raises(ThreadError, match="there is no thread 't'"):
        t.delete()
    assert twin.delete().kept == {}
    other.delete()
    assert each_store.threads() == []


def test_a_thread_with_a_running_run_is_deleted_only_with_take_over(store: Store) -> None:
    graph: CompiledGraph
    seen: list[Any] = []

    def meddle(q: str) -> dict[str, Any]:
        with pytest.raises(ConcurrentRunError, match="take_over=True"):
            graph.thread("t").delete()
        seen.append(graph.thread("t").delete(take_over=True).threads)
        return {"log": [q]}

    built = Graph(State, inputs=["q"]).add_node("meddle", meddle, writes=["log"])
    graph = built.add_path(START, "meddle", END).compile(store=store)
    run = graph.thread("t").run({"q": "a"})
    assert seen == [("t",)]
    assert run.status == "failed"
    assert "it was deleted" in str(run.error)
    assert store.threads() == []


# --- pruning


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_prune_keeps_states_and_versions_from_its_commit_on(store: Store, kept: int) -> None:
    graph = program(store)
    t = graph.thread("t")
    for q in ("a", "long b", "c", "d"):
        t.run({"q": q})
    before = {commit.version: state for commit, state in commits_and_states(t)}
    rows = counted(store)["t"]
    swept = t.prune(before=5 * kept + 2)
    t = program(store).thread("t")
    assert counted(store)["t"] == rows - swept.rows
    assert (swept.rows > 0) is (kept > 0)
    history = t.history()
    assert [commit.version for commit in history] == list(range(5 * kept - bool(kept), 20))
    assert {commit.version: t.at(commit.version or 0) for commit in history} == {
        version: state for version, state in before.items() if version is not None and version >= 5 * kept - bool(kept)
    }
    assert t.state == before[19]
    assert t.replay() == t.state
    assert t.run({"q": "e"}).commits[0].version == 20
    assert t.state["log"] == [*before[19]["log"], "e", "side"]
    if kept:
        assert history[0].node == "pruned"
        assert t.blame("long").node == ("pruned" if kept > 1 else "work")
        with pytest.raises(LookupError, match=rf"they go from {5 * kept - 1} to 24"):
            t.at(0)
    store.drop_snapshots()
    assert program(store).thread("t").state == t.state, "the snapshot at the root is no cache"


def test_a_pruned_thread_runs_on_and_copies_keep_their_history(each_store: Store) -> None:
    graph = program(each_store)
    t = graph.thread("t")
    for q in ("a", "b"):
        t.run({"q": q})
    twin = t.copy("twin", at=4)
    t.run({"q": "c"})
    before = commits_and_states(twin)
    swept = t.prune(before=12)
    assert set(swept.kept) == {"twin"}
    assert commits_and_states(program(each_store).thread("twin")) == before
    third = t.copy("third")
    assert third.state == t.state
    assert [commit.version for commit in third.history()] == [commit.version for commit in t.history()]
    third.run({"q": "d"})
    assert third.state["log"][-2:] == ["d", "side"]
    t.prune(before=12)
    assert t.replay() == t.state


def test_pruning_keeps_the_failed_last_run(store: Store) -> None:
    t = program(store).thread("t")
    t.run({"q": "a"})
    t.run({"q": "boom"})
    t.prune(before=5)
    t = program(store).thread("t")
    assert t.error is not None
    assert [commit.node for commit in t.history()] == ["pruned", "START", "side"]
    with pytest.raises(ThreadError):
        t.run({"q": "b"})
    t.run({"q": "b"}, if_open="abandon")
    assert t.state["log"] == ["a", "side", "b", "side"]


# --- files


def test_an_export_is_readable_json_lines(store: Store, tmp_path: Path) -> None:
    t = program(store).thread("t")
    t.run({"q": "a"})
    digest = t.export(tmp_path / "t.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert lines[0]["thread"] == "t"
    assert lines[-1] == {"digest": digest}
    assert {"log": ["a"]} in [line.get("content", {}).get("patch") for line in lines if line.get("kind") == "commit"]
    assert not (tmp_path / "t.jsonl.part").exists()


@pytest.mark.parametrize("cut", ["delete", "prune"])
def test_an_export_beside_a_deletion_is_whole_or_none(cut: str, tmp_path: Path) -> None:
    """At every read of it. The file of an earlier export is replaced by a whole one alone."""
    file, steps, at, refused = tmp_path / "t", Steps(), 0, list[str]()
    while at <= steps.count:
        at += 1
        plain, steps = program(store := Memory()), Steps(at)
        thread = plain.thread("t")
        for q in ("one", "boom", "long"):
            thread.run({"q": q}, if_open="abandon")
        thread.export(file)
        before, state, last = file.read_bytes(), thread.state, thread.history()[-1].id
        works: dict[str, Callable[[], Any]] = {"delete": thread.delete, "prune": partial(thread.prune, last)}
        steps.do = works[cut]
        try:
            program(Stepped(store, steps)).thread("t").export(file)
        except ThreadError as error:
            refused.append(str(error))
        assert not refused or {path.read_bytes() for path in tmp_path.iterdir()} == {before} or cut == "prune"
        loaded = program(Memory()).thread("t")
        loaded.load(file)
        assert loaded.state == state
    assert len([text for text in refused if "was deleted or pruned while it was exported" in text]) > 4


def test_an_exported_thread_can_be_loaded_into_any_store(each_store: Store, tmp_path: Path) -> None:
    store = each_store
    t = program(store).thread("t")
    for q in ("a", "long b", "boom"):
        t.run({"q": q}, if_open="abandon")
    t.run({"q": "c"}, if_open="abandon")
    t.export(tmp_path / "t.jsonl")
    with SQLite(tmp_path / "other.db") if isinstance(store, Memory) else Memory() as other:
        u = program(other).thread("t")
        u.load(tmp_path / "t.jsonl")
        assert commits_and_states(u) == commits_and_states(t)
        assert u.replay() == t.state
        with pytest.raises(ThreadError, match="there is a thread 't' already"):
            u.load(tmp_path / "t.jsonl")
        u.export(tmp_path / "u.jsonl")
        assert (tmp_path / "u.jsonl").read_bytes() == (tmp_path / "t.jsonl").read_bytes()
        u.run({"q": "d"})
        ids = [commit.id for commit in u.history()]
        assert len(ids) == len(set(ids))


def test_a_thread_loaded_into_its_own_store_shares_its_runs(store: Store, tmp_path: Path) -> None:
    t = program(store).thread("t")
    t.run({"q": "long a"})
    t.run({"q": "b"})
    t.export(tmp_path / "t.jsonl")
    before = counted(store)
    twin = program(store).thread("twin")
    twin.load(tmp_path / "t.jsonl")
    assert {**counted(store), "twin": 0} == {**before, "twin": 0}
    assert commits_and_states(twin) == commits_and_states(t)
    twin.run({"q": "c"})
    assert t.state["log"] == ["long a", "side", "b", "side"]


@pytest.mark.parametrize("at", range(1, 7))
def test_a_load_that_was_killed_can_be_repeated(at: int, tmp_path: Path) -> None:
    t = program(Memory()).thread("t")
    t.run({"q": "a"})
    t.run({"q": "b"})
    t.export(tmp_path / "t.jsonl")

    def load() -> None:
        store = FailingSQLite(tmp_path / "u.db")
        store.arm(kill, at, after=True)
        program(store).thread("u").load(tmp_path / "t.jsonl")

    assert end_of(fork(load)) == -signal.SIGKILL
    with SQLite(tmp_path / "u.db") as store:
        u = program(store).thread("u")
        if u.status == "new":
            u.load(tmp_path / "t.jsonl")
        assert commits_and_states(u) == commits_and_states(t)
        assert len(store.runs("u")) == 2
        with pytest.raises(ThreadError, match="there is a thread 'u' already"):
            u.load(tmp_path / "t.jsonl")


def test_loading_leaves_other_runs_with_the_same_ids_as_they_are(store: Store, tmp_path: Path) -> None:
    t = program(store).thread("t")
    t.run({"q": "a"})
    path = tmp_path / "t.jsonl"
    t.export(path)
    other = Memory()
    (name,) = [run.id for run in store.runs("t")]
    begin(other, "theirs", name, 3)
    u = program(other).thread("t")
    u.load(path)
    assert commits_and_states(u) == commits_and_states(t)
    assert len(other.rows(name)) == 3


@pytest.mark.parametrize(
    ("first", "later"),
    [
        pytest.param(0, 2, id="inside of the first run"),
        pytest.param(0, 10, id="inside of the last run"),
        pytest.param(2, 8, id="a run that was pruned before the export"),
        pytest.param(5, 10, id="a run that is gone"),
    ],
)
def test_an_export_can_be_loaded_after_its_thread_was_pruned_further(
    each_store: Store, tmp_path: Path, first: int, later: int
) -> None:
    t = program(each_store).thread("t")
    for q in ("a", "long b", "c"):
        t.run({"q": q})
    if first:
        t.prune(before=first)
    exported = commits_and_states(t)
    t.export(tmp_path / "t.jsonl")
    t.prune(before=later)
    pruned = commits_and_states(t)
    u = program(each_store).thread("u")
    u.load(tmp_path / "t.jsonl")
    assert [(c.version, c.node, state) for c, state in commits_and_states(u)] == [
        (c.version, c.node, state) for c, state in exported
    ]
    assert u.replay() == u.state == t.state
    assert commits_and_states(t) == pruned
    u.run({"q": "d"})
    assert u.state["log"] == [*t.state["log"], "d", "side"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda data: data.replace(b'"a"', b'"b"', 1), "its digest differs", id="changed"),
        pytest.param(lambda data: data[: len(data) // 2], r"line \d+: .*|its digest differs", id="cut"),
        pytest.param(lambda data: data.rpartition(b"\n")[0].rpartition(b"\n")[0] + b"\n", "end is missing", id="short"),
        pytest.param(lambda data: b"hello\n", "no thread that this dspyer has exported", id="something else"),
        pytest.param(lambda data: b"", "end is missing", id="empty"),
        pytest.param(lambda data: data + b"{}\n", r"line \d+: more follows it, which is its last line", id="longer"),
    ],
)
def test_a_file_that_was_changed_is_refused(tmp_path: Path, spoil: Callable[[bytes], bytes], words: str) -> None:
    path = tmp_path / "t.jsonl"
    t = program(Memory()).thread("t")
    t.run({"q": "a"})
    t.export(path)
    path.write_bytes(spoil(path.read_bytes()))
    store = Memory()
    with pytest.raises(StoreError, match=words):
        program(store).thread("t").load(path)
    assert store.threads() == []


@pytest.mark.slow("a law: 25 histories with copies and prunings are exported and loaded")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["run", "boom", "copy", "update", "prune", "long"]), st.integers(0, 9)), max_size=8
    )
)
def test_export_and_load_after_any_operations_restore_the_thread(tmp_path: Path, steps: list[tuple[str, int]]) -> None:
    store = Memory()
    t = program(store).thread("t")
    for number, (step, where) in enumerate(steps):
        if step == "copy" and t.status != "new":
            t = t.copy(f"t{number}")
        elif step == "update" and t.status == "completed":
            t.update({"log": [f"manual {where}"]})
        elif step == "prune" and t.status == "completed":
            versions = [commit.version for commit in t.history() if commit.version is not None]
            t.prune(versions[where % len(versions)])
        elif step in ("run", "boom", "long"):
            t.run({"q": step}, if_open="abandon")
    if t.status == "new":
        return
    path = tmp_path / "t.jsonl"
    t.export(path)
    u = program(Memory()).thread("u")
    u.load(path)
    assert commits_and_states(u) == commits_and_states(t)
    assert (u.status, u.state, u.error) == (t.status, t.state, t.error)


def test_a_loaded_thread_refers_to_its_own_rows(store: Store, tmp_path: Path) -> None:
    t = program(store).thread("t")
    t.run({"q": "a"})
    t.export(tmp_path / "t.jsonl")
    row = store.thread("t")
    assert row is not None
    assert isinstance(row.head, Point)
    fresh = Memory()
    program(fresh).thread("t").load(tmp_path / "t.jsonl")
    loaded = fresh.thread("t")
    assert loaded is not None
    assert (loaded.head, loaded.runs, loaded.owner) == (row.head, row.runs, None)


def test_a_handle_forgets_what_it_has_read_of_the_thread_that_it_deletes(store: Store, tmp_path: Path) -> None:
    """An export that is loaded again has runs with the same ids, which may go on otherwise."""
    calls: list[int] = []

    def count() -> dict[str, int]:
        calls.append(len(calls))
        return {"n": calls[-1] + 0 // calls[-1]}  # the first call raises

    graph = Graph(inputs=[]).add_node("count", count, writes=["n"]).add_path(START, "count", END)
    t = graph.compile(store=store).thread("t")
    t.run({})
    t.export(tmp_path / "t.jsonl")
    t.resume()
    assert t.history()[-1].patch == {"n": 1}
    t.delete()
    t.load(tmp_path / "t.jsonl")
    t.resume()
    assert t.history()[-1].patch == {"n": 2}
    assert t.at(1)["n"] == 2
