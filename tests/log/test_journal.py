"""How a run writes its rows, and what it takes from a store: between its calls, where no user can look.

A journal that writes on after a failed write, or loses what another branch has handed over, shows in few interleavings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dspyer.errors import StoreError
from dspyer.log.journal import CheckedStore, Journal, NewRows
from dspyer.log.reader import rows_through
from dspyer.log.rows import DraftRow
from dspyer.stores import Memory, Store
from dspyer.stores.base import Change, Point, Row, RunRow
from tests.log.failing import DiskError, FailingMemory, disk_full
from tests.log.test_durability import Recorder, loop, run
from tests.log.test_interleavings import program


def test_nothing_is_written_after_a_write_has_failed() -> None:
    store = Recorder()
    run(loop(store), "sync")
    row = store.thread("t")
    assert row is not None
    assert row.head is not None
    journal = Journal(store, "t", row.epoch, row.head.run, row.head.seq + 1)
    store.fails = True
    with pytest.raises(StoreError, match="no space left"):
        journal.write(NewRows([DraftRow("note", {})]))
    store.fails = False
    with pytest.raises(StoreError, match="no space left"):
        journal.write(NewRows([DraftRow("note", {})]))
    assert store.rows(row.head.run)[-1].kind == "end"


def test_rows_written_by_another_branch_stay_written_when_the_next_write_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two branches write at once, one of them for both; the next write fails before the other has looked."""
    store = FailingMemory()
    store.write(Change("t", run=RunRow("r", "t", (), {}), rows_of="r", rows=[Row(0, "open", {})], head=Point("r", 0)))
    store.inline = False
    journal = Journal(store, "t", 1, "r", 1)

    async def both() -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def in_order(work: Callable[..., None], *args: Any, **options: Any) -> None:
            if not asked.is_set():
                asked.set()
                await go_on.wait()
            work(*args)

        monkeypatch.setattr("dspyer.log.journal.run_in_thread", in_order)
        first = asyncio.create_task(journal.awrite(NewRows([DraftRow("commit", {"id": "a"})])))
        await asked.wait()
        await journal.awrite(NewRows([DraftRow("commit", {"id": "b"})]))
        store.arm(disk_full, 1, after=False)
        with pytest.raises(StoreError):
            journal.write(NewRows([DraftRow("commit", {"id": "c"})]))
        go_on.set()
        await first

    asyncio.run(both())
    assert [row.header for row in store.rows("r")] == [{}, {"id": "a"}, {"id": "b"}]


def test_every_method_of_a_store_raises_store_errors() -> None:
    def fail(*args: Any) -> None:
        raise DiskError("no disk")

    inner = Memory()
    assert CheckedStore(inner).address == inner.address
    for name in sorted((Store.__abstractmethods__ | {"write_now"}) - {"address"}):
        inner = Memory()
        setattr(inner, name, fail)
        arguments = [Change()] if name.startswith("write") else [Point("r", 0)] if name == "snapshot" else ["t"]
        takes_none = name in ("threads", "drop_snapshots", "vacuum", "close")
        with pytest.raises(StoreError, match="DiskError: no disk") as caught:
            getattr(CheckedStore(inner), name)(*([] if takes_none else arguments))
        assert isinstance(caught.value.__cause__, DiskError), name


def test_rows_deleted_behind_a_snapshot_while_it_is_read_raise_a_store_error() -> None:
    store = Memory()
    thread = program(store).thread("a")
    thread.run({"log": ["one"]})
    row = store.thread("a")
    assert row is not None
    assert row.head is not None
    assert rows_through(store, row.head.run, 1, row.head.seq)
    thread.delete()
    with pytest.raises(StoreError, match=f"has no row {row.head.seq} of run"):
        rows_through(store, row.head.run, 1, row.head.seq)
