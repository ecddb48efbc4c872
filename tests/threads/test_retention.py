"""The job of the guide that deletes old threads, as it stands there: it deletes those, and no other ones."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dspyer import END, START, Archive, CompiledGraph, Context, Graph, Run
from dspyer.stores import Memory, Store
from dspyer.stores.base import Change, Owner
from dspyer.testing import clock
from tests.pages import ROOT

job: Callable[..., int] = runpy.run_path(str(ROOT / "examples" / "retention.py"))["delete_completed"]


def answer(question: str, ctx: Context) -> dict[str, str]:
    if question == "ask":
        ctx.interrupt("sure", "yes?")
    if question == "fail":
        raise ValueError(question)
    return {"answer": question}


def compiled(store: Store | str, name: str = "Invoices") -> CompiledGraph:
    graph = Graph(name=name, keep=["answer"]).add_node(answer, writes=["answer"])
    return graph.add_path(START, "answer", END).compile(store=store)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_only_what_completed_before_is_deleted(kind: str, tmp_path: Path) -> None:
    store: Any = Memory() if kind == "memory" else str(tmp_path / "runs.db")
    program = compiled(store)
    for name in ("done", "twice", "ask", "fail", *(f"many {number}" for number in range(12))):
        program.thread(name).run({"question": name})
    program.thread("done").copy(to="copy of done")
    compiled(store, "Billing").thread("of another graph").run({"question": "pay"})
    program.thread("changed by hand").run({"question": "x"})
    before = datetime.now(UTC)
    while datetime.now(UTC) < before + timedelta(milliseconds=2):  # the times of commits are whole milliseconds
        pass
    program.thread("changed by hand").update({"answer": "y"})
    program.thread("twice").run({"question": "again"})
    program.thread("new").run({"question": "new"})
    program.thread("twice").copy(to="copy of twice")
    assert job(program, store, before) == 14
    assert program.threads() == sorted(
        ["ask", "changed by hand", "copy of twice", "fail", "new", "of another graph", "twice"]
    )
    assert job(program, store, before) == 0


def test_a_thread_that_runs_is_kept() -> None:
    store = Memory()
    program = compiled(store)
    for name in ("t", "u"):
        program.thread(name).run({"question": name})
    head = store.thread("t")
    assert head is not None
    elsewhere = Owner("another host", 7, "today", "token")
    store.write(Change("t", head.epoch, head.epoch + 1, owner=elsewhere, lease=30.0))
    before = datetime.now(UTC)
    assert job(program, store, before) == 1
    assert program.threads() == ["t"]


def test_a_run_that_starts_between_check_and_deletion_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Memory()
    program = compiled(store)
    delete, runs = store.delete, list[Run]()

    def late(threads: Any, busy: Any) -> Any:
        runs.append(program.thread("t").run({"question": "meanwhile"}))
        return delete(threads, busy)

    monkeypatch.setattr(store, "delete", late)
    with clock() as time:
        program.thread("t").run({"question": "old"})
        before = datetime.now(UTC)
        time.advance(3_600)
        assert job(program, store, before) == 0
    assert [info.status for info in Archive(store).runs(thread="t")] == ["completed", "completed"]
    assert runs[0].status == "completed"


def test_a_page_is_read_after_the_one_that_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Memory()
    program = compiled(store)
    for number in range(7):
        program.thread(f"t{number}").run({"question": "ask" if number in (2, 5) else "x"})
    asked = []
    threads = Archive.threads

    def small(self: Archive, **options: Any) -> Any:
        asked.append(options["after"])
        return threads(self, **{**options, "limit": 2})

    monkeypatch.setattr(Archive, "threads", small)
    assert job(program, store, datetime.now(UTC)) == 5
    assert len(asked) == 3
    assert program.threads() == ["t2", "t5"]
