"""Lists of runs, the status of each, and that reading leaves everything as it is."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Archive, CompiledGraph, Graph, Thread
from dspyer.errors import StoreError, ThreadError
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Change, Store
from dspyer.stores.encrypted import Encrypted
from dspyer.testing import ScriptedLM
from tests.log.failing import Crash, FailingMemory, crash
from tests.log.processes import end_of, fork
from tests.stores.bodies import body
from tests.threads.owned_runs import BackgroundRun, Gate, gated


class Reading(BaseModel):
    text: str


class Letter(BaseModel):
    name: str
    reading: Reading | None = None
    n: float = 0


def program(store: Store | str | Path, name: str = "Letters") -> CompiledGraph:
    """Reads a letter; fails at "bad", and asks at "ask"."""

    def read(name: str) -> dict[str, Any]:
        if name == "bad":
            raise ValueError(f"cannot read {name!r}")
        return {"reading": Reading(text=name * 2)}

    graph = Graph(Letter, name=name, inputs=["name"]).add_node("read", read, writes=["reading"])
    graph.add_node("check", lambda name, ctx: {"n": ctx.interrupt("ok", "Sure?") if name == "ask" else 1}, writes=["n"])
    return graph.add_path(START, "read", "check", END).compile(store=store)


def fill(made: CompiledGraph) -> None:
    for thread, name in (("a", "good"), ("b", "bad"), ("b", "good"), ("c", "ask"), ("d/ü", "bad")):
        made.thread(thread).run({"name": name}, if_open="abandon")
        time.sleep(0.002)  # runs of one millisecond have no order


def facts(archive: Archive, **filters: Any) -> list[tuple[str, str]]:
    return [(info.thread, info.status) for info in archive.runs(**filters)]


def test_lists_are_newest_first_and_filtered() -> None:
    store = Memory()
    fill(program(store))
    program(store, "Other").thread("e").run({"name": "good"})
    archive = Archive(store)
    everything = [
        ("e", "completed"),
        ("d/ü", "failed"),
        ("c", "interrupted"),
        ("b", "completed"),
        ("b", "failed"),
        ("a", "completed"),
    ]
    assert facts(archive) == everything
    assert [(info.thread, info.status) for info in archive.threads()] == [*everything[:4], everything[5]]
    assert facts(archive, status="failed") == [("d/ü", "failed"), ("b", "failed")]
    assert facts(archive, status="running") == facts(archive, status="crashed") == []
    assert [info.thread for info in archive.threads(status="failed")] == ["d/ü"]
    assert facts(archive, graph="Other") == [("e", "completed")]
    assert facts(archive, thread="b") == [("b", "completed"), ("b", "failed")]
    assert facts(archive, contains="D/Ü") == [("d/ü", "failed")]
    assert facts(archive, contains="CANNOT READ") == [("d/ü", "failed"), ("b", "failed")]
    middle = archive.runs()[2].started
    assert facts(archive, since=middle) == everything[:3]
    assert facts(archive, until=middle) == everything[3:]
    local = middle.astimezone().replace(tzinfo=None)  # without a zone: local time
    assert facts(archive, since=local) == everything[:3]
    assert facts(archive, since=datetime.now(UTC) + timedelta(days=1)) == []
    asked = archive.threads(thread="c")[0]
    assert [question.key for question in asked.questions] == ["ok"]
    assert asked.failure is None
    failed = archive.runs(status="failed")[0]
    assert failed.failure is not None
    assert (failed.failure.execution, failed.failure.traceback) == ("d/ü.1/trunk:1", "")
    assert "ValueError" in archive.thread("d/ü").failures()[0].traceback
    assert failed.ended is not None
    assert failed.started <= failed.ended <= datetime.now(UTC)
    assert (failed.steps, failed.cost, failed.usage) == (1, 0.0, {})


def test_pages_have_each_run_once_whatever_is_added_meanwhile() -> None:
    store = Memory()
    made = program(store)
    fill(made)
    archive = Archive(store)
    before = facts(archive)
    filters: dict[str, str]
    for filters, counts in (({}, 5), ({"contains": "b"}, 3), ({"status": "failed"}, 2)):
        found, after = [], None
        while True:
            page = archive.runs(**filters, after=after, limit=1)  # type: ignore[arg-type]
            found += [(info.thread, info.status) for info in page]
            made.thread(f"new b {len(found)}").run({"name": "bad"})
            if page.next is None:
                break
            after = page.next
        assert found == [one for one in before if one in found]
        assert len(found) == counts
        for name in store.threads():
            if name.startswith("new"):
                made.thread(name).delete()
    page = archive.runs(limit=2)
    assert page.to_dict() == {"items": [info.to_dict() for info in page], "next": page.next}
    assert json.loads(json.dumps(page.to_dict())) == page.to_dict()


def test_bad_arguments_are_refused() -> None:
    archive = Archive(Memory())
    with pytest.raises(ValueError, match=r"no status 'fail'.*'failed'"):
        archive.runs(status="fail")
    for limit in (0, 1.0, 2.5):
        with pytest.raises(ValueError, match=f"limit={limit}"):
            archive.runs(limit=limit)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"since='2026-01-01': give a datetime"):
        archive.runs(since="2026-01-01")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="graph=3: give a name"):
        archive.runs(graph=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"until=.* too far away to be a local time: give it a time zone"):
        archive.runs(until=datetime(1, 1, 1))  # noqa: DTZ001
    assert list(archive.runs(since=datetime.min.replace(tzinfo=UTC), limit=10**30)) == []
    for cursor in ("x", "1.0", "x,y,z"):
        with pytest.raises(ValueError, match=r"pass page\.next"):
            archive.runs(after=cursor)
    with pytest.raises(ThreadError, match=r"archive\.threads\(\) lists them"):
        archive.thread("t")


def test_of_many_threads_those_that_begin_alike_are_suggested() -> None:
    store = Memory()
    for name in ("desk-12", "desk-17", *(f"mail-{number}" for number in range(1_000))):
        store.write(Change(name))
    for name, words in {"zoe": "lists them", "desk-71": "Did you mean 'desk-17'"}.items():
        with pytest.raises(ThreadError, match=words):
            Archive(store).thread(name)


def test_an_unknown_thread_suggests_known_ones() -> None:
    store = Memory()
    fill(program(store))
    program(store).thread("customer-17").run({"name": "good"})
    with pytest.raises(ThreadError, match="Did you mean 'customer-17'"):
        Archive(store).thread("customer-71")


# --- status


def test_a_run_is_running_while_its_owner_lives_and_crashed_after_that() -> None:
    store, gate = Memory(), Gate()
    thread = gated(gate, store).thread("t")
    archive = Archive(store)
    run = BackgroundRun(lambda: thread.run({"n": 1}))
    assert gate.inside.wait(20)
    assert facts(archive) == facts(archive, status="running") == [("t", "running")]
    info = archive.threads()[0]
    assert (info.steps, info.ended, info.cost) == (2, None, None)
    gate.opened.set()
    run.end()
    assert facts(archive) == [("t", "completed")]


def test_the_usage_of_a_run_is_of_all_processes_that_worked_on_it() -> None:
    store = FailingMemory()
    graph = Graph(inputs=["q"]).add_node("ask", dspy.Predict("q -> a")).add_node("again", dspy.Predict("a -> b"))
    thread = graph.add_path(START, "ask", "again", END).compile(store=store).thread("t")
    with ScriptedLM([{"a": "x"}, {"b": "y"}]):
        store.arm(crash, 3, after=True)
        with pytest.raises(Crash):
            thread.run({"q": "?"})
        store.rest()
        run = thread.resume()
    (info,) = Archive(store).runs()
    assert info.usage == thread.usage
    assert info.usage["scripted"]["total_tokens"] > run.usage["scripted"]["total_tokens"] > 0


def killed(path: Path) -> None:
    def die(n: int) -> None:
        os._exit(9)

    graph = Graph().add_node("one", lambda: {"n": 1}, writes=["n"]).add_node("die", die, writes=[])
    program = graph.add_path(START, "one", "die", END).compile
    assert end_of(fork(lambda: program(store=path).thread("killed").run({}))) == 9


def test_a_file_is_read_as_it_is_and_its_folder_stays_as_it_is(tmp_path: Path) -> None:
    """A killed process, a closed file, a folder that cannot be written to."""
    path = tmp_path / "runs.db"
    killed(path)  # its log is still there
    with SQLite(path) as store:
        fill(program(store))
    expected = [
        ("d/ü", "failed", 1),
        ("c", "interrupted", 2),
        ("b", "completed", 3),
        ("b", "failed", 1),
        ("a", "completed", 3),
        ("killed", "crashed", 2),
    ]
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    with Archive(path) as archive:
        assert [(info.thread, info.status, info.steps) for info in archive.runs()] == expected
        assert {info.started.date() for info in archive.runs()} <= {datetime.now(UTC).date()}
        assert [info.ended is None for info in archive.runs()] == [False] * 5 + [True]
        assert [commit.node for commit in archive.thread("b").history()] == ["START", "START", "read", "check"]
        assert list(archive.thread("a").record().to_dict()["values"].values()).count({"text": "goodgood"})
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


def test_a_program_at_work_is_read_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLite(path) as store:
        made = program(store)
        made.thread("a").run({"name": "good"})
        with Archive(path) as archive:
            assert facts(archive) == [("a", "completed")]
            made.thread("b").run({"name": "bad"})
            assert facts(archive) == [("b", "failed"), ("a", "completed")]
            store.close()
            assert len(facts(archive)) == 2
            program(SQLite(path)).thread("c").run({"name": "good"})
            assert len(facts(archive)) == 3
            with pytest.raises(StoreError, match="opened for reading only"):
                program(archive._store).thread("d").run({"name": "good"})


def test_what_is_no_store_is_refused_and_not_made(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no database" * 200)
    (tmp_path / "empty").touch()
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE cats (name)").connection.close()
    before = sorted(tmp_path.rglob("*"))
    for kind in ("missing", "folder", "text", "other", "empty"):
        with pytest.raises(StoreError, match=r"ame the file of a store|Name another file"):
            Archive(tmp_path / kind).runs()
        assert sorted(tmp_path.rglob("*")) == before, kind
    with pytest.raises(StoreError, match="which has no runs"):
        Archive(":memory:")


@pytest.mark.slow("starts Python anew: what a process has imported is what is asked")
def test_nothing_of_the_program_and_no_dspy_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLite(path) as store:
        fill(program(store))
    code = f"""
import sys
from dspyer import Archive
with Archive({str(path)!r}) as archive:
    for info in archive.runs(contains="b"):
        thread = archive.thread(info.thread)
        info.to_dict(), thread.graph().to_svg(), thread.graph().explain(), thread.failures(), thread.info().questions
        for commit in thread.history():
            step = thread.record().to_dict(), thread.lm_calls(commit.id), thread.blame("name", commit.id)
    print(archive.thread("a").at(1))
print([name for name in sys.modules if name.split(".")[0] in ("dspy", "litellm", "tests") or "not_public" in name])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    *_, shown, modules = found.stdout.splitlines()
    assert modules == "[]"
    assert "archive.test_archive:Reading: {'text': 'goodgood'}>" in shown


# --- encrypted and damaged stores


def test_an_encrypted_store_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, path = Encrypted.new_key(), tmp_path / "runs.db"
    with Encrypted(path, key) as store:
        fill(program(store))
    with Archive(path, key=key) as archive:
        assert facts(archive, contains="cannot read") == [("d/ü", "failed"), ("b", "failed")]
        assert archive.thread("a").at(2)["n"] == 1
    with Archive(path) as archive:
        assert [info.status for info in archive.runs(thread="a")] == ["completed"]
        with pytest.raises(StoreError, match="DSPYER_STORE_KEY"):
            archive.thread("a").history()
    monkeypatch.setenv("DSPYER_STORE_KEY", key)
    with Archive(path) as archive:
        assert archive.thread("a").at(2)["n"] == 1


def damage(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


A = "(SELECT id FROM run WHERE thread = 'a')"
DAMAGES = {
    "body": f"UPDATE entry SET body = 'no body' WHERE run = {A} AND seq = 2",
    "header": f"UPDATE entry SET body = x'{body({'id': 1}).hex()}' WHERE run = {A} AND seq = 2",
    "end": f"UPDATE entry SET body = x'{body({}).hex()}' WHERE kind = 'end' AND run = {A}",
    "rows": f"DELETE FROM entry WHERE run = {A}",
    "circle": "UPDATE run SET parents = '[[\"' || id || '\",2]]' WHERE thread = 'a'",
}


def test_damage_of_one_thread_is_told_and_leaves_the_others(tmp_path: Path) -> None:
    whole = tmp_path / "whole.db"
    with SQLite(whole) as store:
        fill(program(store))
    for kind, statement in DAMAGES.items():
        path = tmp_path / f"{kind}.db"
        path.write_bytes(whole.read_bytes())
        damage(path, statement)
        with Archive(path) as archive:
            assert [commit.node for commit in archive.thread("b").history(newest=True, count=2)] == ["check", "read"]
            assert facts(archive, thread="b") == [("b", "completed"), ("b", "failed")], kind
            assert len(archive.threads()) == 4, kind
            for read in READS:
                with suppress(StoreError, LookupError):
                    read(archive)
            assert archive.runs(thread="a")[0].failure is None  # a list reads no row of a run that is completed
            assert len(archive.thread("a").failures()) == (kind == "end")


READS: list[Callable[[Archive], Any]] = [
    lambda archive: archive.runs(thread="a"),
    lambda archive: archive.thread("a").history(),
    lambda archive: archive.thread("a").at(2),
    lambda archive: archive.thread("a").record().to_dict(),
    lambda archive: archive.thread("a").blame("n"),
    lambda archive: archive.thread("a").info(),
    lambda archive: archive.thread("a").lm_calls(1),
]


def test_a_thread_that_is_deleted_while_it_is_read(tmp_path: Path) -> None:
    with SQLite(tmp_path / "runs.db") as store:
        made = program(store)
        fill(made)
        with Archive(tmp_path / "runs.db") as archive:
            there = archive.thread("a")
            made.thread("a").delete()
            assert there.history() == []
            for read in (there.info, there.failures, there.graph):
                with pytest.raises(ThreadError, match="was deleted"):
                    read()
            assert "a" not in [info.thread for info in archive.runs()]


def test_copies_are_listed_with_the_run_that_they_were_made_of() -> None:
    store = Memory()
    made = program(store)
    fill(made)
    thread: Thread = made.thread("a")
    thread.copy(to="copy")
    archive = Archive(store)
    (info,) = archive.threads(thread="copy")
    assert (info.thread, info.status, info.run_id) == ("copy", "completed", archive.threads(thread="a")[0].run_id)
    assert facts(archive, thread="copy") == []
    thread.delete()
    assert archive.thread("copy").info() == info
    assert archive.thread("copy").info(info.run_id) == info
    assert len(archive.thread("copy").history(run="a.1")) == 3
