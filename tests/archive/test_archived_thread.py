"""What an archive reads of a thread is what the thread's own program reads, whatever was done to the thread."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dspyer import END, START, Archive, CompiledGraph, Graph, ImmutableState, Thread
from dspyer.archive.archived_thread import ArchivedThread
from dspyer.errors import ThreadError
from dspyer.record import DrawnGraph
from dspyer.stores import Memory, SQLite, open_store
from dspyer.stores.base import Store
from tests.log import test_history_parts as parts
from tests.log.kinds import CALLS, INPUTS, KINDS
from tests.log.pages import page_of

TIMES = re.compile(r"\d[\d.,]* (µs|ms|s)\b|\d+:\d\d")
CHANGES = (
    parts.forked,
    parts.resumed,
    parts.abandoned,
    parts.by_hand,
    parts.made_in_the_name_of_a_node,
    parts.rerun,
    parts.pruned,
    parts.merged,
    parts.without_snapshots,
)


def plain(commits: list[Any]) -> list[dict[str, Any]]:
    """Commits as JSON: values of classes that the archive does not know are opaque there, and written as before."""
    return [commit.to_dict() for commit in commits]


def state_dict(state: ImmutableState) -> dict[str, Any]:
    return dict(json.loads(state.to_json()))


def check(archive: Archive, thread: Thread) -> None:
    """Compare an archived thread with what its program reads of it."""
    there = archive.thread(thread.name)
    whole = thread.history()
    assert plain(there.history()) == plain(whole)
    assert state_dict(there.state()) == state_dict(thread.state)
    for newest in (False, True):
        for first in (None, 0, len(whole) // 2):
            page = there.history(first=first, count=5, newest=newest)
            assert plain(page) == plain(page_of(whole, first, 5, newest)), (first, newest)
    for number, commit in enumerate(whole):
        state = state_dict(thread.at(commit.id))
        if number % 4 and number < len(whole) - 2:
            continue
        assert state_dict(there.at(commit.id)) == state
        record = there.record()
        with suppress(ThreadError):  # of a copy, the run before it was pruned
            record = there.record(commit.id[: commit.id.rindex("/")])
        if record.has(commit.id):  # else of a run that a rerun has replaced
            assert state_dict(record.state(commit.id)) == state
            written = {name: one.by for name, one in record.fields(commit.id).items()}
            assert written == blamed(there, commit.id, state)
    for path in {(key,) for commit in whole for key in commit.patch}:
        assert who(lambda: there.blame(path)) == who(lambda: thread.blame(path)), path
    check_runs(archive, there, whole)


def blamed(there: ArchivedThread, at: str, state: dict[str, Any]) -> dict[str, str]:
    """The last writers of all fields up to a commit, one by one."""
    found = {}
    for name in state:
        with suppress(LookupError):
            found[name] = there.blame((name,), at).id
    return found


def who(read: Callable[[], Any]) -> Any:
    try:
        return read().id
    except LookupError as error:
        return str(error)


def check_runs(archive: Archive, there: ArchivedThread, whole: list[Any]) -> None:
    """The commits of each run, in pages of any length; together they have all commits of the thread."""
    listed = archive.runs(thread=there.name, limit=50)
    seen = set()
    for info in listed:
        commits = there.history(run=info.run_id)
        pruned = any(commit.node == "pruned" for commit in commits)  # then the list has what the run had
        assert info.steps == len(commits) or pruned, info
        assert there.info(info.run_id) == info
        assert len({commit.id for commit in commits}) == len(commits)
        for newest in (False, True):
            for count in (1, 4, 100):
                expected = page_of(commits, None, count, newest)
                assert there.history(run=info.run_id, count=count, newest=newest) == expected, (info, newest, count)
        joined = [commit.id for commit in commits if commit.version is not None]
        if joined:  # also of a run that a rerun has replaced, whose versions are other commits now
            assert there.state(info.run_id) == there.at(joined[-1]), info
        seen |= {commit.id for commit in commits}
    own = {commit.id for commit in whole if commit.id.startswith(f"{there.name}.") and commit.node != "pruned"}
    assert own <= seen


@pytest.mark.parametrize("change", CHANGES)
def test_an_archive_reads_what_the_program_reads(change: Callable[[Thread], None], tmp_path: Path) -> None:
    store = SQLite(tmp_path / "runs.db") if change in (parts.rerun, parts.forked) else Memory()
    made = parts.program(store, laps=2)
    thread = made.thread("t")
    for question in "xy":
        thread.run({"q": question}).raise_error()
    change(thread)
    archive = Archive(store)
    check(archive, thread)
    ids = [commit.id for commit in thread.history()]
    copy = thread.copy(to="u", at=ids[len(ids) // 2])
    check(archive, copy)
    copy.resume() if copy.status == "stopped" else copy.run({"q": "z"})
    check(archive, made.thread("u"))
    statuses = {info.thread: info.status for info in archive.threads()}
    assert statuses == {name: made.thread(name).status for name in store.threads()}


READ = [name for name in KINDS if name != "LM router"]


@pytest.mark.parametrize("kinds", [READ[first::5] for first in range(5)], ids=", ".join)
def test_an_archive_reads_every_kind_of_graph(kinds: list[str]) -> None:
    store = Memory()
    archive = Archive(store)
    for kind in kinds:
        made = KINDS[kind].compile("sync", store)
        thread = made.thread(f"a/{kind}")
        for _ in range(2):
            run = thread.run(INPUTS)
            run.raise_error()
        CALLS.take()
        check(archive, thread)
        graph = archive.thread(thread.name).graph()
        assert (graph.explain(), graph.to_mermaid(), graph.to_svg()) == (
            made.graph.explain(),
            made.graph.to_mermaid(),
            made.graph.to_svg(),
        ), kind
        told = [TIMES.sub("", one.report()).split() for one in (archive.thread(thread.name), run)]
        assert told[0] == told[1]


def test_a_node_of_less_than_a_microsecond_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cut to 0 microseconds when it was stored, and a report says nothing of those."""
    store = Memory()
    monkeypatch.setattr("time.perf_counter", partial(next, itertools.count(0.0, 4e-7)))
    counter(store).thread("t").run({"n": 1})
    monkeypatch.undo()
    assert "(step 0, " in Archive(store).thread("t").report()


def test_pages_of_the_three_stores_are_equal(tmp_path: Path, postgres: str) -> None:
    """The same thread, loaded into each."""
    made = parts.program(Memory(), laps=2)
    thread = made.thread("t")
    for question in "xy":
        thread.run({"q": question}).raise_error()
    parts.resumed(thread)
    parts.rerun(thread)
    thread.export(tmp_path / "t.jsonl")
    stores = [open_store(address) for address in (":memory:", tmp_path / "runs.db", postgres)]
    pages = []
    for store in stores:
        parts.program(store, laps=2).thread("t").load(tmp_path / "t.jsonl")
        there = Archive(store).thread("t")
        pages.append([plain(there.history(first=first, count=6)) for first in range(0, 30, 6)])
        assert [info.to_dict() for info in Archive(store).runs()] == [
            info.to_dict() for info in Archive(stores[0]).runs()
        ]
        with pytest.raises(ThreadError, match=r"no run 'a\\x00'"):
            there.record("a\0")
        store.close()
    assert pages == [pages[0]] * 3
    assert any(pages[0])


def counter(store: Store | str) -> CompiledGraph:
    graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    return graph.compile(store=store)


def test_following_a_thread_yields_each_commit_once() -> None:
    store = Memory()
    made = counter(store)
    thread = made.thread("t")
    thread.run({"n": 1}).raise_error()

    found: list[str] = []

    async def follow() -> None:
        async for commit in Archive(store).thread("t").follow(after="t.1/trunk:0", interval=0.0):
            found.append(commit.id)
            if len(found) == 1:
                await made.thread("t").arun({"n": 5})
            elif len(found) == 3:
                await made.thread("t").arerun(2)  # version 3 again: another commit
            elif len(found) == 4:
                made.thread("t").delete()

    with pytest.raises(ThreadError, match="was deleted"):
        asyncio.run(follow())
    assert found == ["t.1/trunk:1", "t.2/trunk:0", "t.2/trunk:1", "t.3/trunk:1"]


def test_a_cancellation_while_the_store_is_read_ends_follow() -> None:
    class Cancels(Memory):
        cancel: Callable[[], object] = staticmethod(int)

        def thread(self, name: str) -> Any:
            self.cancel()
            return super().thread(name)

    store = Cancels()
    counter(store).thread("t").run({"n": 1}).raise_error()

    async def follow() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        async for _ in Archive(store).thread("t").follow(interval=0.0):
            store.cancel = lambda: loop.call_soon_threadsafe(task.cancel)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(follow(), 20))


def test_a_commit_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    store = SQLite(tmp_path / "runs.db")
    counter(store).thread("t").run({"n": 1}).raise_error()
    there = Archive(store).thread("t")
    reads: list[Callable[[Any], Any]] = [
        there.at,
        lambda at: there.record().step(str(at)),
        lambda at: there.blame("n", at),
    ]
    for read in reads:
        for missing in (7, 10**30, "t.1/trunk:9", "x", "\ud800"):
            with pytest.raises(LookupError):
                read(missing)
    reads = [there.info, there.record, there.graph, there.failures, lambda run: there.history(run=run)]
    odd: list[Any] = ["x", "a\0", "\ud800", 10**30, []]
    for read in reads:
        for run in odd:
            with pytest.raises(ThreadError, match=r"no run .*; the last ones: t\.1"):
                read(run)
    with pytest.raises(LookupError, match=r"no commit up to 'x' has written|no commit has the id"):
        there.blame("m", at="x")


def test_a_graph_is_read_once_for_all_who_look_at_its_runs() -> None:
    store = Memory()

    def drawn(name: str) -> DrawnGraph:
        return Archive(store).thread(name).graph()

    graph = Graph(name="LaidOutOnce").add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    for name in ("a", "b"):
        graph.compile(store=store).thread(name).run({"n": 1})
    first = drawn("a")
    assert drawn("b") is drawn("a") is first
    for number in range(20):
        other = Graph(name=f"LaidOut{number}").add_node("add", lambda n: {"n": n + 1}, writes=["n"])
        other.add_path(START, "add", END).compile(store=store).thread(f"t{number}").run({"n": 1})
        drawn(f"t{number}")
    assert drawn("t19") is drawn("t19")
    assert drawn("a") is not first, "the least used one was let go"
    assert drawn("a").to_mermaid() == first.to_mermaid()
