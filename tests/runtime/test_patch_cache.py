"""Entries of the node cache on disk: killed and forked processes, damaged files, a full disk. No run fails."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from dspyer import END, START, Cache, CompiledGraph, Graph
from dspyer.stores import SQLite
from tests.log.processes import end_of, fork
from tests.runtime.cached import Doc, Later, Library, library, search, slow, warnings_of
from tests.runtime.calls import CALLS, GATES, Gate, count_call
from tests.runtime.conftest import PLAYS


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


# --- processes: threads of a store, crashes, forks


def stored(folder: Path, cache: bool = True) -> CompiledGraph:
    graph = Graph(Library, inputs=["query"])
    graph.add_node("search", search, writes=["docs", "log", "count"], cache=cache and Cache(folder=folder / "cache"))
    graph.add_node("after", after, writes=["found"]).add_path(START, "search", "after", END)
    return graph.compile(store=folder / "runs.db")


def after(docs: list[Any]) -> dict[str, Any]:
    return {"found": len(docs)}


def test_a_thread_records_that_a_patch_was_cached(tmp_path: Path) -> None:
    program = stored(tmp_path)
    for name in ("one", "two"):
        program.thread(name).run({"query": "tides"})
    flags = [[one.cached for one in program.thread(name).history()] for name in ("one", "two")]
    assert [any(row) for row in flags] == [False, True]
    assert CALLS == {"tides": 1}


def test_a_cache_is_no_part_of_the_graph_that_a_thread_belongs_to(tmp_path: Path) -> None:
    """Design: policies are not part of the fingerprint, and a hit leaves the same digests."""
    with_cache, without = stored(tmp_path), stored(tmp_path, cache=False)
    ends = []
    for name, programs in [("one", (without, without)), ("two", (with_cache, without)), ("three", (with_cache,) * 2)]:
        for program in programs:
            run = program.thread(name).run({"query": "tides"})
        ends.append((run.state.to_dict(), [one.id for one in run.commits], run.state))
    assert ends[0] == ends[1] == ends[2]
    assert CALLS == {"tides": 4}


def test_a_run_that_was_killed_before_its_commit_finds_the_result_on_resume(tmp_path: Path) -> None:
    program = stored(tmp_path)

    def dies_at_the_commit() -> None:
        thread = program.thread("t")
        writes = SQLite.write

        def write(self: Any, change: Any) -> Any:
            if any(row.kind == "commit" and row.header["node"] == "search" for row in change.rows):
                os.kill(os.getpid(), signal.SIGKILL)
            return writes(self, change)

        SQLite.write = write  # type: ignore[method-assign]
        thread.run({"query": "tides"})

    assert end_of(fork(dies_at_the_commit)) == -signal.SIGKILL
    run = program.thread("t").resume()
    assert run.status == "completed"
    assert [one.cached for one in run.commits if one.node == "search"] == [True]
    assert not CALLS, "the call was made in the process that was killed"


@pytest.mark.parametrize("query", ["tides", "tides" * 9000], ids=["in the row", "in a file"])
@pytest.mark.parametrize("when", ["before", "in the file", "after"])
def test_a_process_that_is_killed_in_a_write_leaves_an_entry_or_none(query: str, when: str, tmp_path: Path) -> None:
    import diskcache

    program = library(folder=tmp_path).compile()

    def child() -> None:
        def die(*args: Any, **kwargs: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        own_set, own_store = diskcache.Cache.set, diskcache.Disk.store

        def half(self: Any, *args: Any, **options: Any) -> Any:
            found = own_store(self, *args, **options)
            for file in tmp_path.rglob("*.val"):
                os.truncate(file, file.stat().st_size // 2)
                die()
            return found

        def whole(self: Any, *args: Any, **options: Any) -> None:
            own_set(self, *args, **options)
            die()

        if when == "in the file":
            diskcache.Disk.store = half
        else:
            diskcache.Cache.set = die if when == "before" else whole
        program.run({"query": query})

    ended = end_of(fork(child))
    assert ended == (0 if when == "in the file" and query == "tides" else -signal.SIGKILL)
    run = program.run({"query": query})
    assert run.state["docs"] == [Doc(title=query)]
    assert run.commits[-1].cached is (when == "after" or ended == 0)
    assert program.run({"query": query}).commits[-1].cached


def test_a_forked_process_does_not_wait_for_threads_of_its_parent(tmp_path: Path) -> None:
    GATES["tides"] = gate = Gate()
    program = library(slow, ["found"], folder=tmp_path).compile()
    leader = threading.Thread(target=lambda: program.run({"query": "tides"}))
    leader.start()
    assert gate.entered.acquire(timeout=20)

    def child() -> None:
        gate.open = threading.Event()
        gate.open.set()
        assert program.run({"query": "tides"}).state["found"] == "tides"

    assert end_of(fork(child)) == 0
    gate.open.set()
    leader.join(20)


# --- a bad disk


@pytest.mark.parametrize("how", ["sync", "inside a loop", "streamed"])
def test_a_folder_that_cannot_be_used_is_a_miss(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    program = library(folder=folder).compile()
    folder.write_text("no folder")
    for _ in range(2):
        assert PLAYS[how](program, {"query": "tides"}).status == "completed"
    assert CALLS == {"tides": 2}
    assert len(warnings_of(caplog)) == 1
    folder.unlink()
    for _ in range(2):
        assert PLAYS[how](program, {"query": "tides"}).status == "completed"
    assert CALLS == {"tides": 3}, "the folder can be used again"


def rows(folder: Path, statement: str, *values: Any) -> list[Any]:
    connection = sqlite3.connect(folder / "cache.db")
    with connection:
        found = connection.execute(statement, values).fetchall()
    connection.close()
    return found


DAMAGES: dict[str, Any] = {
    "cut": lambda data: data[:-1],
    "changed": lambda data: data.replace(b"tides", b"rides"),
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(40),
    "text": lambda data: data.decode("latin-1"),
}


def test_a_damaged_entry_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, damage in DAMAGES.items():
        CALLS.clear()
        caplog.clear()
        program = library(folder=tmp_path / name).compile()
        program.run({"query": "tides"})
        ((data,),) = rows(tmp_path / name, "SELECT value FROM Cache")
        rows(tmp_path / name, "UPDATE Cache SET value = ?", damage(data))
        run = program.run({"query": "tides"})
        assert run.state["docs"] == [Doc(title="tides")], name
        assert CALLS == {"tides": 2}, name
        assert "is damaged" in warnings_of(caplog)[0], name
        assert program.run({"query": "tides"}).commits[-1].cached, f"{name}: the next call has replaced it"


def test_an_entry_of_another_key_is_a_miss(tmp_path: Path) -> None:
    program = library(folder=tmp_path).compile()
    for query in ("tides", "moon"):
        program.run({"query": query})
    first, second = rows(tmp_path, "SELECT rowid, value FROM Cache ORDER BY rowid")
    rows(tmp_path, "UPDATE Cache SET value = ? WHERE rowid = ?", second[1], first[0])
    assert program.run({"query": "tides"}).state["docs"] == [Doc(title="tides")]


def explode() -> None:
    count_call("exploded")


class Bomb:
    def __reduce__(self) -> Any:
        return explode, ()


def test_a_pickle_in_the_folder_is_never_read(tmp_path: Path) -> None:
    from diskcache import Cache as Disk

    program = library(folder=tmp_path).compile()
    program.run({"query": "tides"})
    ((key,),) = rows(tmp_path, "SELECT key FROM Cache")
    with Disk(tmp_path) as disk:
        disk.set(key, Bomb())
    assert program.run({"query": "tides"}).status == "completed"
    assert CALLS == {"tides": 2}


def big(query: str) -> dict[str, Any]:
    count_call(query)
    return {"found": query * 40_000}


def test_a_large_result_whose_file_is_gone_or_cut_is_a_miss(tmp_path: Path) -> None:
    program = library(big, ["found"], folder=tmp_path).compile()
    program.run({"query": "tides"})
    assert program.run({"query": "tides"}).commits[-1].cached
    (file,) = tmp_path.rglob("*.val")
    file.write_bytes(file.read_bytes()[:1000])
    assert len(program.run({"query": "tides"}).state["found"]) == 200_000
    for file in tmp_path.rglob("*.val"):
        file.unlink()
    assert len(program.run({"query": "tides"}).state["found"]) == 200_000
    assert CALLS == {"tides": 3}


@pytest.mark.parametrize("how", ["async", "asyncified"])
def test_a_full_disk_fails_no_run(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import diskcache

    def full(*args: Any, **kwargs: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(diskcache.Cache, "set", full)
    program = library(folder=tmp_path).compile()
    for _ in range(2):
        assert PLAYS[how](program, {"query": "tides"}).status == "completed"
    assert CALLS == {"tides": 2}
    assert [("it cannot be written" in text, "disk is full" in text) for text in warnings_of(caplog)] == [(True, True)]


def test_redacted_values_are_not_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def secret(query: str) -> dict[str, Any]:
        return {"found": Later(text=query)}

    program = library(secret, ["found"], folder=tmp_path).compile(redact=["found", "query"])
    program.run({"query": "Later"})  # the error names the class
    assert "[redacted]" in "".join(warnings_of(caplog))
    assert "Later" not in caplog.text
