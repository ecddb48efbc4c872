"""Short functions that make and write changes, for the tests of stores."""

from __future__ import annotations

from typing import Any

from dspyer.stores import Store
from dspyer.stores.base import Change, Owner, Point, Row, RunRow, Snapshot
from dspyer.stores.base import Content as Content  # type: ignore[attr-defined]  # what a row holds
from tests.plain_values import frozen

OWNER = Owner("here", 7, "today", "a")
OTHER = Owner("there", 8, "today", "b")


def content(value: Any) -> Content:
    return Content(frozen(value))


def row(seq: int, value: Any = None) -> Row:
    return Row(seq, "commit", {"id": f"node:{seq}"}, content(value if value is not None else {"seq": seq}))


def rows(first: int, last: int) -> tuple[Row, ...]:
    return tuple(row(seq) for seq in range(first, last + 1))


def run(name: str, thread: str = "", *parents: Point) -> RunRow:
    return RunRow(name, thread, parents, {"nodes": ["a", "b"]})


def snapshot(name: str, seq: int, value: Any = "state") -> Snapshot:
    return Snapshot(Point(name, seq), content(value))


def begin(store: Store, thread: str, name: str, count: int, *parents: Point, epoch: int = 0) -> Point:
    """A run of a thread with rows, which becomes its head; the thread is made with epoch 1, or has `epoch`."""
    head = Point(name, count - 1)
    begun = run(name, thread, *parents)
    store.write(Change(thread, epoch, run=begun, rows_of=name, rows=rows(0, count - 1), head=head))
    return head


def append(thread: str, name: str, seq: int, value: Any = None, epoch: int = 1, **more: Any) -> Change:
    return Change(thread, epoch, rows_of=name, rows=(row(seq, value),), head=Point(name, seq), **more)


def numbers(store: Store, name: str) -> list[int]:
    return [found.seq for found in store.rows(name)]
