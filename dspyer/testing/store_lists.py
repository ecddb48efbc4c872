"""The promises of a store for its lists of runs: `StoreConformance` calls `check_lists`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from dspyer.stores import Store
from dspyer.stores.base import Change, ListedRun, Point, Row, RunPlace, RunQuery, RunRow
from dspyer.testing.store_samples import content, owner

Written = tuple[str, dict[str, Any]]
"""Kind and header of a row."""

ENDED: Written = ("end", {"status": "failed", "usage": {"lm": {"prompt_tokens": 7}}})
RESUMED: Written = ("resume", {"attempt": 1})
COMMITTED: Written = ("commit", {"node": "node"})

# By run: its thread, when it was started, its graph, and its rows. Two runs were started at the same time.
RUNS: dict[str, tuple[str, float, str | None, list[Written]]] = {
    "1": ("b", 1_000.5, "One", [COMMITTED, ENDED]),
    "2": ("a", 2_000.0, "One", [COMMITTED, ENDED, RESUMED]),
    "3": ("a", 2_000.0, "Two", [COMMITTED, ENDED, RESUMED, COMMITTED, ("end", {"status": "completed"})]),
    "4": ("a", 3_000.0, "Two", [COMMITTED]),
    "5": ("c\x01é", 500.0, "Two", []),
    "6": ("b", 4_000.0, None, [COMMITTED, ("end", {"status": "stopped"})]),
}


def write_runs(store: Store) -> None:
    """Write the runs, row by row: a run may end in a write of its own, and be resumed in another."""
    epochs: dict[str, int] = {}
    for name, (thread, started, graph, rows) in RUNS.items():
        header = {"started": started} if graph is None else {"started": started, "graph": graph}
        begun = Change(thread, epochs.get(thread, 0), run=RunRow(name, thread, (), header))
        epochs[thread] = epoch = store.write(begun)
        for seq, (kind, head) in enumerate(rows):
            row = Row(seq, kind, head, content([name, seq]))
            change = Change(thread, epoch, rows_of=name, rows=[row], head=Point(name, seq))
            store.write(change)
            store.write(change)  # a caller repeats a write whose answer was lost
    # Copies: of the end of a run, of a place before it, and of a place where it had failed and was not resumed yet.
    for thread, at in (("copy", Point("3", 4)), ("part", Point("3", 3)), ("failed part", Point("3", 1))):
        store.write(Change(thread, head=at))
    write_run(store, "owned", "7", 9_000.0, ("end", {"status": "interrupted"}))
    epoch = store.write(Change("owned", 1, 2, owner=owner(), lease=60.0))
    store.write(Change("owned", epoch, rows_of="7", rows=[Row(1, *RESUMED)], head=Point("7", 1)))


def write_run(
    store: Store,
    thread: str,
    name: str,
    started: float,
    *rows: Written,
    epoch: int = 0,
    after: str = "",
) -> int:
    """Write a run with its rows at once, its end among them; the head of its thread is its first row."""
    entries = [Row(seq, *row) for seq, row in enumerate(rows)]
    run = RunRow(name, thread, (Point(after, 0),) if after else (), {"started": started})
    return store.write(Change(thread, epoch, run=run, rows_of=name, rows=entries, head=Point(name, 0)))


def listed(found: Iterable[ListedRun]) -> list[tuple[str, str, str, int, int | None]]:
    """Return what a list has of each run: thread, run, status, its last row, and its end."""
    return [(one.thread.name, one.run.id, one.status, one.last, one.end and one.end.seq) for one in found]


def check_lists(store: Store) -> None:
    """Check the lists of a store that is empty."""
    assert store.list_runs(RunQuery()) == store.list_runs(RunQuery(last=True)) == []
    write_runs(store)
    (owned,) = store.list_runs(RunQuery("owned"))
    assert (owned.thread.owner, owned.thread.head) == (owner(), Point("7", 1))
    assert 0 < owned.thread.lease <= 60
    (whole,) = store.list_runs(RunQuery("b", "One"))
    assert (whole.run, whole.started) == (store.run("1"), 1_000.5)
    assert whole.end == Row(1, *ENDED)
    check_queries(store)
    check_pages(store)
    # What a deletion takes away is in no list; the end of a run may be among it.
    store.delete(["b"])
    assert not store.list_runs(RunQuery("b"))
    store.write(Change("a", 1, root=Point("3", 4)))
    epoch = write_run(store, "tail", "8", 1.0, COMMITTED, ENDED)
    assert listed(store.list_runs(RunQuery("tail"))) == [("tail", "8", "failed", 1, 1)]
    write_run(store, "tail", "9", 2.0, ENDED, epoch=epoch, after="8")
    store.delete_unreachable("tail")
    assert listed(store.list_runs(RunQuery("tail"))) == [("tail", "9", "failed", 0, 0), ("tail", "8", "", 0, None)]


def check_queries(store: Store) -> None:
    """Check that each query is answered as `Store.list_runs` does, which reads all rows."""
    for thread, graph, statuses, since, until, last in product(
        (None, "a", "missing"),
        (None, "Two", "missing"),
        (None, frozenset(["failed"]), frozenset([""]), frozenset(["", "completed"]), frozenset[str]()),
        (None, 2_000.0),
        (None, 2_000.0, 3_000.5),
        (False, True),
    ):
        query = RunQuery(thread, graph, statuses, since, until, last=last)
        assert listed(store.list_runs(query)) == listed(Store.list_runs(store, query)), query


def check_pages(store: Store) -> None:
    """Check that pages of any length are the whole list, also if a run is added between two of them."""
    for last in (False, True):
        whole = store.list_runs(RunQuery(last=last))
        for limit in (1, 2, 100):
            pages: list[ListedRun] = []
            after: RunPlace | None = None
            while page := store.list_runs(RunQuery(after=after, limit=limit, last=last)):
                assert len(page) <= limit
                pages += page
                after = page[-1].place
            assert [one.place for one in pages] == [one.place for one in whole]
    # A page begins behind the place of a run, and not at a number: a new run would shift all of them.
    first = store.list_runs(RunQuery(limit=2))
    store.write(Change("new", run=RunRow("91", "new", (), {"started": 10_000.0})))
    rest = store.list_runs(RunQuery(after=first[-1].place))
    assert [one.run.id for one in (*first, *rest)] == ["7", "6", "4", "3", "2", "1", "5"]
    store.delete(["new"])


def check_names(store: Store, names: Iterable[str]) -> None:
    """Check the pages of the names of threads, in a store that has threads of exactly these names."""
    ordered = sorted(names)
    # Names that no thread has: a page may begin after one that was deleted since.
    between = [name[:-1] for name in ordered] + [f"{name}\x00" for name in ordered] + ["\U0010ffff" * 3]
    for after in ["", *ordered, *between]:
        follow = [name for name in ordered if name > after]
        assert store.threads(after) == follow, after
        for limit in (1, 2, len(follow) or 1, len(follow) + 1):
            assert store.threads(after=after, limit=limit) == follow[:limit], (after, limit)
