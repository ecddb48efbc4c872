"""The store in memory: what only it does. The promises of all stores are in the conformance suite."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from dspyer.stores import Memory
from dspyer.stores.base import Change, Point, Snapshot
from dspyer.testing import clock
from tests.stores.kit import OWNER, Content, append, begin, content, numbers, row, run, snapshot


class FailsWhenCalled:
    """An encoder that must not be called."""

    def __call__(self, value: Any) -> Any:
        raise AssertionError("encoded")


def test_values_are_kept_without_encoding() -> None:
    store = Memory()
    value = content("x").value(store.blobs)
    kept = Content(value, FailsWhenCalled())
    rows = (row(0)._replace(content=kept),)
    store.write(Change("t", run=run("r", "t"), rows_of="r", rows=rows, head=Point("r", 0)))
    store.write(Change("t", 1, snapshot=Snapshot(Point("r", 0), kept)))
    store.delete_unreachable("t")
    (found,) = store.rows("r")
    assert found.content is kept
    assert found.content.value(store.blobs) is value


def test_blobs_of_contents_encoded_after_the_write() -> None:
    """An export encodes stored contents, and then asks for their blobs."""
    store = Memory()
    begin(store, "t", "r", 1)
    store.write(append("t", "r", 1, "x" * 20_000))
    long = store.rows("r", 1)[0].content
    assert long is not None
    (name,) = long.refs
    assert store.blobs([name, "none"]) == {name: b"x" * 20_000}
    store.delete(["t"])
    assert store.blobs([name]) == {}


def test_max_threads_deletes_the_least_recently_written() -> None:
    store = Memory(max_threads=2)
    for number in range(2):
        begin(store, f"t{number}", f"r{number}", 2)
    store.write(append("t0", "r0", 2))
    begin(store, "t2", "r2", 1)
    assert store.threads() == ["t0", "t2"]
    assert store.run("r1") is None
    assert repr(store) == "Memory(2, None)"


def test_max_threads_keeps_threads_with_an_owner() -> None:
    store = Memory(max_threads=1)
    store.write(Change("t0", owner=OWNER, lease=30.0))
    store.write(Change("t1", owner=OWNER, lease=30.0))
    assert store.threads() == ["t0", "t1"]
    store.write(Change("t1", 1, lease=0.0))
    assert store.threads() == ["t0", "t1"]  # the thread of the write itself is never deleted
    store.write(Change("t2", owner=OWNER, lease=30.0))
    assert store.threads() == ["t0", "t2"]


@pytest.mark.parametrize(
    ("snapshots", "expected"),
    [
        pytest.param((), {"r0": 4, "r1": 4, "r2": 4}, id="none to begin with"),
        pytest.param((0, 1), {"r1": 1, "r2": 4}, id="the last that fits"),
        pytest.param((0,), {"r0": 1, "r1": 4, "r2": 4}, id="the last there is"),
    ],
)
def test_max_commits_prunes_on_release(snapshots: tuple[int, ...], expected: dict[str, int]) -> None:
    store = Memory(max_commits=5)
    head = None
    for number in range(3):
        name = f"r{number}"
        head = begin(store, "t", name, 4, *([head] if head else []), epoch=int(number > 0))
        if number in snapshots:
            store.write(Change("t", 1, snapshot=snapshot(name, 3)))
    assert {run.id: len(store.rows(run.id)) for run in store.runs("t")} == {"r0": 4, "r1": 4, "r2": 4}
    store.write(Change("t", 1, lease=0.0))
    assert {run.id: len(store.rows(run.id)) for run in store.runs("t")} == expected
    thread = store.thread("t")
    assert thread is not None
    assert thread.root == (Point(min(expected), 3) if snapshots else None)
    store.write(Change("t", 1, lease=0.0))
    assert {run.id: len(store.rows(run.id)) for run in store.runs("t")} == expected
    if thread.root:
        assert store.snapshot(thread.root) is not None


def test_a_copy_keeps_rows_that_its_source_pruned() -> None:
    store = Memory(max_commits=1)
    head = begin(store, "t", "r0", 4)
    store.write(Change("t", 1, snapshot=snapshot("r0", 3)))
    store.write(Change("copy", head=Point("r0", 2)))
    begin(store, "t", "r1", 1, head, epoch=1)
    store.write(Change("t", 1, lease=0.0))
    assert numbers(store, "r0") == [0, 1, 2, 3]
    store.delete(["copy"])
    assert numbers(store, "r0") == [3]


def test_leases_expire_by_the_clock() -> None:
    store = Memory()
    with clock() as time:
        store.write(Change("t", owner=OWNER, lease=30.0))
        time.advance(40)
        thread = store.thread("t")
    assert thread is not None
    assert (thread.owner, round(thread.lease, 3)) == (OWNER, -10.0)


def test_copies_are_shared_and_pickles_are_empty() -> None:
    store = Memory(max_threads=3)
    begin(store, "t", "r", 1)
    assert copy.deepcopy({"store": store})["store"] is store
    assert copy.copy(store) is store
    again = pickle.loads(pickle.dumps(store))
    assert (repr(again), again.address, again.threads()) == (repr(store), ":memory:", [])


@pytest.mark.parametrize("limits", [(0, None), (None, -1)])
def test_limits_below_one_are_errors(limits: tuple[int | None, int | None]) -> None:
    with pytest.raises(ValueError) as caught:
        Memory(*limits)
    assert "at least 1" in str(caught.value)
