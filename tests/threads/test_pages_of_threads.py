"""`program.threads(after=, limit=, idle=)` and `program.delete(names)`: pages of names, in every store."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspyer import END, START, Archive, CompiledGraph, Context, Graph
from dspyer.errors import StoreError, ThreadError
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.base import Change, Owner
from dspyer.stores.encrypted import Encrypted
from dspyer.testing import clock

GRAPH = Graph(name="Pages").add_node("a", lambda state: {"n": 1}, writes=["n"]).add_path(START, "a", END)


def program(store: Store | str, *names: str) -> CompiledGraph:
    compiled = GRAPH.compile(store=store)
    for name in names:
        compiled.thread(name).run({}).raise_error()
    return compiled


@pytest.mark.parametrize("make", [Memory, lambda: Encrypted(Memory())])
def test_pages_hold_every_name_once(make: Any) -> None:
    store = make()
    names = sorted(f"t-{number}" for number in range(11))
    for name in reversed(names):
        store.write(Change(name))
    compiled = GRAPH.compile(store=store)
    assert compiled.threads() == names
    pages, after = [], ""
    while page := compiled.threads(after=after, limit=3):
        pages.append(page)
        after = page[-1]
    assert [len(page) for page in pages] == [3, 3, 3, 2]
    assert [name for page in pages for name in page] == names
    assert compiled.threads(after="t-5x") == ["t-6", "t-7", "t-8", "t-9"]
    assert compiled.threads(limit=10**30) == names


@given(
    names=st.sets(st.sampled_from([*"abcdefgh"])),
    changes=st.lists(st.tuples(st.booleans(), st.sampled_from([*"abcdefgh"]))),
    limit=st.integers(1, 4),
)
def test_changes_between_pages_move_no_other_name(names: set[str], changes: list[tuple[bool, str]], limit: int) -> None:
    store = Memory()
    for name in names:
        store.write(Change(name))
    compiled, found, after = GRAPH.compile(store=store), [], ""
    changed, waiting = set(), list(changes)
    while page := compiled.threads(after=after, limit=limit):
        found += page
        after = page[-1]
        if waiting:
            made, name = waiting.pop()
            changed.add(name)
            if made and store.thread(name) is None:
                store.write(Change(name))
            elif not made:
                store.delete([name])
    assert found == sorted(set(found)), "none comes twice, and the order stays"
    assert names - changed <= set(found), "none is left out"


def test_a_page_has_names_and_comes_after_a_text() -> None:
    compiled = program(Memory(), "t")
    limits: list[Any] = [0, -1, 1.5, "10"]
    for limit in limits:
        with pytest.raises(ValueError, match=re.escape(f"limit={limit!r}: a page has at least one name")):
            compiled.threads(limit=limit)
    names: list[Any] = [None, 7, b"t", "\ud800"]
    for after in names:
        with pytest.raises(ThreadError, match=r"is no name of a thread.*after='' for the first page"):
            compiled.threads(after=after)


def test_a_missing_thread_of_a_large_store_is_compared_with_few_names() -> None:
    store = Memory()
    for number in range(1_100):
        store.write(Change(f"order {number:04}"))
    store.write(Change("ticket 7"))
    with Archive(store) as archive:
        with pytest.raises(ThreadError, match=r"Did you mean 'ticket 7'\?$"):
            archive.thread("ticket 77")
        with pytest.raises(ThreadError, match=r"archive\.threads\(\) lists them\.$"):
            archive.thread("quite another name")
    with pytest.raises(ThreadError, match=r"archive\.threads\(\) lists them\.$"):
        Archive(Memory()).thread("t")


@pytest.mark.parametrize("deleted", ["run", "rows"])
def test_a_thread_that_is_deleted_while_it_is_read_is_said_to_be(deleted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a job meets it that pages through the threads, when another one deletes them."""
    store = Memory()
    thread = program(store, "t").thread("t")
    monkeypatch.setattr(store, deleted, {"run": lambda _: None, "rows": lambda *_: []}[deleted])
    with pytest.raises(StoreError, match=r"another process has deleted.*read it again"):
        thread.history(count=1, newest=True)


# --- idle threads, and the deletion of many

DAYS = timedelta(days=90)


def desk(store: Store, begun: Callable[[], object] = lambda: None) -> CompiledGraph:
    """A program whose runs complete, fail or wait, as their input says."""

    def answer(say: str, ctx: Context) -> dict[str, Any]:
        begun()
        if say == "fail":
            raise ValueError(say)
        return {"said": ctx.interrupt("sure", "sure?") if say == "ask" else say}

    graph = Graph(name="Desk", keep=["said"]).add_node(answer, writes=["said"])
    return graph.add_path(START, "answer", END).compile(store=store)


@pytest.mark.parametrize("kind", ["memory", "SQLite, encrypted"])
def test_threads_that_were_idle_are_listed_and_deleted(kind: str, tmp_path: Path) -> None:
    store: Store = Memory() if kind == "memory" else Encrypted(SQLite(tmp_path / "runs.db"), Encrypted.new_key())
    program = desk(store)
    elsewhere = Owner("another host", 7, "today", "token")
    with store, clock() as time:
        for name in ("fail", "ask", "a", "run", "changed", "told"):
            program.thread(name).run({"say": name})
        program.thread("a").copy(to="copy")
        for name, lease in (("crashed", 30.0), ("runs", 10.0 * DAYS.total_seconds())):
            store.write(Change(name, owner=elsewhere, lease=lease))
        time.advance(DAYS.total_seconds() + 1.0)
        assert program.threads(idle=DAYS) == ["a", "ask", "changed", "copy", "fail", "run", "told"]
        assert program.threads(idle=DAYS, after="ask", limit=2) == ["changed", "copy"]
        assert program.threads(idle=DAYS + timedelta(seconds=2)) == program.threads(idle=timedelta.max) == []
        program.thread("run").run({"say": "again"})
        program.thread("changed").update({"said": "by hand"})
        assert program.threads(idle=DAYS) == ["a", "ask", "copy", "fail", "told"]
        report = program.delete(["a", "a", "missing", "run", "runs", "crashed"], idle=DAYS)
        assert (report.threads, report.busy, set(report.kept)) == (("a",), ("crashed", "run", "runs"), {"copy"})
        assert program.thread("copy").state["said"] == "a"
        time.advance(30.0)
        deleted, busy = list[str](), list[str]()
        while names := program.threads(idle=DAYS, limit=2):
            if "told" in names:
                program.thread("told").update({"said": "meanwhile"})
            report = program.delete(names, idle=DAYS)
            deleted += report.threads
            busy += report.busy
        assert (deleted, busy) == (["ask", "copy", "crashed", "fail"], ["told"])
        assert program.threads() == ["changed", "run", "runs", "told"]
        assert program.delete(program.threads()).busy == ("runs",)
        assert (store.threads(), store.delete().rows) == (["runs"], 0)


def test_a_thread_that_runs_is_left_and_a_deleted_one_begins_anew() -> None:
    store, deleted = Memory(), list[Any]()
    program: CompiledGraph
    program = desk(store, lambda: deleted.append(program.delete(["t", "u"])))
    program.thread("u").run({"say": "first"})
    before = store.thread("u")
    deleted.clear()
    assert program.thread("t").run({"say": "x"}, key="order 7").status == "completed"
    assert [(report.threads, report.busy) for report in deleted] == [(("u",), ("t",))]
    assert program.thread("t").run({"say": "x"}, key="order 7").status == "completed"
    assert len(deleted) == 1, "the key is known"
    assert program.delete(["t"]).threads == ("t",)
    thread = program.thread("t")
    assert (thread.status, thread.run({"say": "x"}, key="order 7").status, len(deleted)) == ("new", "completed", 2)
    after = store.thread("t")
    assert before is not None
    assert after is not None
    assert after.epoch > before.epoch


def test_what_is_no_list_of_names_or_no_time_is_refused() -> None:
    compiled = program(store := Memory(), "t", "u")
    store.write(Change("u", 1, head=None))
    with pytest.raises(ThreadError, match=re.escape("delete('t') takes the names of several threads: delete(['t'])")):
        compiled.delete("t")
    wrong: list[Any] = [["t", ""], ["t", 7], b"t"]
    for names in wrong:
        with pytest.raises(ThreadError, match=r"is no name of a thread.*delete\(\['t-42'\]\)"):
            compiled.delete(names)
    idle: list[Any] = [90, -DAYS, "90 days", 1.5]
    for time in idle:
        for call in (compiled.threads, lambda *, idle: compiled.delete(["t"], idle=idle)):
            with pytest.raises(ValueError, match=re.escape(f"idle={time!r}: a timedelta that is not negative")):
                call(idle=time)
    assert compiled.delete([]) == ((), 0, 0, {}, True, ()), "it searches nothing"
    assert compiled.threads() == ["t", "u"]
