"""What a store is about to write or to delete: decided on rows in memory, apart from any store.

Of most wrong plans a store would show nothing: rows that stay for ever, or that go with the next deletion.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Change, CurrentRows, Point, ThreadRow, WritePlan, plan_write
from dspyer.stores.reachability import DeletionPlan, RunSummary, plan_delete_unreachable, plan_deletion
from tests.stores.kit import OTHER, OWNER, row, rows, run

FREE = ThreadRow("t", None, 3)
OWNED = ThreadRow("t", Point("r", 5), 3, OWNER, 30.0)
TAKEN = ThreadRow("t", Point("r", 5), 4, OTHER, 30.0)
TAKE = Change("t", 3, 4, OWNER, 30.0)


PLANS: dict[str, tuple[Change, CurrentRows, WritePlan | None]] = {
    "a new thread": (Change("t"), CurrentRows(), WritePlan(1, False, ())),
    "a new thread after deleted ones": (Change("t", 0, 7), CurrentRows(max_deleted_epoch=4), WritePlan(5, False, ())),
    "the epoch stays": (Change("t", 3), CurrentRows(FREE), WritePlan(3, False, ())),
    "the epoch rises": (TAKE, CurrentRows(FREE), WritePlan(4, False, ())),
    "taken by the same owner: a repeat": (TAKE, CurrentRows(TAKEN._replace(owner=OWNER)), None),
    "a run without a thread": (Change(run=run("r")), CurrentRows(), WritePlan(1, True, ())),
    "a run": (Change("t", 3, run=run("r")), CurrentRows(FREE), WritePlan(3, True, ())),
    "a run, repeated": (Change("t", 3, run=run("r")), CurrentRows(FREE, run("r")), WritePlan(3, False, ())),
    "a run and an epoch, repeated": (Change("t", 2, 3, run=run("r")), CurrentRows(FREE, run("r")), None),
    "a start": (Change("t", run=run("r", "t")), CurrentRows(ThreadRow("t", None, 1), run("r", "t")), None),
    "orphaned since": (Change(run=run("r", "t")), CurrentRows(run=run("r")), WritePlan(1, False, ())),
    "a run with rows": (
        Change("t", 3, rows_of="r", rows=rows(0, 1), run=run("r")),
        CurrentRows(FREE),
        WritePlan(3, True, rows(0, 1)),
    ),
    "rows": (Change("t", 3, rows_of="r", rows=rows(6, 7)), CurrentRows(OWNED, last=5), WritePlan(3, False, rows(6, 7))),
    "rows, repeated": (
        Change("t", 3, rows_of="r", rows=rows(4, 5)),
        CurrentRows(OWNED, last=5, rows=rows(4, 5)),
        WritePlan(3, False, ()),
    ),
    "rows of which some are there": (
        Change("t", 3, rows_of="r", rows=rows(5, 7)),
        CurrentRows(OWNED, last=5, rows=rows(5, 5)),
        WritePlan(3, False, rows(6, 7)),
    ),
    "rows, head and epoch, repeated": (
        Change("t", 2, 3, rows_of="r", rows=rows(5, 5), head=Point("r", 5)),
        CurrentRows(OWNED, last=5, rows=rows(5, 5)),
        None,
    ),
}


def test_plan_write() -> None:
    plans = {name: plan_write(change, found) for name, (change, found, _) in PLANS.items()}
    assert plans == {name: expected for name, (_, _, expected) in PLANS.items()}


CONFLICTS: dict[str, tuple[Change, CurrentRows, str]] = {
    "made before": (Change("t"), CurrentRows(FREE), "'t' exists already"),
    "nothing to know it by": (Change("t"), CurrentRows(ThreadRow("t", None, 1)), "'t' exists already"),
    "gone": (Change("t", 3), CurrentRows(), "deleted"),
    "another owner": (Change("t", 2), CurrentRows(OWNED), "process 7 on host 'here' owns it"),
    "released since": (Change("t", 2), CurrentRows(FREE), "has no owner at the moment"),
    "both took it, the other was first": (TAKE, CurrentRows(TAKEN), "process 8 on host 'there'"),
    "a run": (Change("t", 3, run=run("r")), CurrentRows(FREE, run("r", "t", Point("q", 1))), "is another one"),
    "its rows are not there": (
        Change("t", 2, 3, rows_of="r", rows=rows(6, 6)),
        CurrentRows(OWNED, last=5),
        "taken over",
    ),
    "another head": (
        Change("t", 2, 3, rows_of="r", rows=rows(5, 5), head=Point("q", 5)),
        CurrentRows(OWNED, last=5, rows=rows(5, 5)),
        "taken over",
    ),
    "another content": (
        Change("t", 3, rows_of="r", rows=(row(5, "mine"),)),
        CurrentRows(OWNED, last=5, rows=(row(5, "yours"),)),
        "row 5 of run 'r'",
    ),
    "another head of a row: 1 is not true": (
        Change("t", 3, rows_of="r", rows=(row(5)._replace(header={"x": True}),)),
        CurrentRows(OWNED, last=5, rows=(row(5)._replace(header={"x": 1}),)),
        "row 5",
    ),
    "a row that was deleted since": (Change("t", 3, rows_of="r", rows=rows(2, 2)), CurrentRows(OWNED, last=5), "row 2"),
}


def test_conflicts_are_refused() -> None:
    for name, (change, found, words) in CONFLICTS.items():
        with pytest.raises(ConcurrentRunError) as caught:
            plan_write(change, found)
        assert words in str(caught.value), name
        assert "othing was written" in str(caught.value), name


GAPS: dict[str, tuple[Change, int | None, str]] = {
    "before them": (Change(rows_of="r", rows=rows(7, 7)), 5, "the next row has the number 6"),
    "between them": (Change(rows_of="r", rows=(row(6), row(8))), 5, "rows [6, 8]"),
    "order": (Change(rows_of="r", rows=(row(7), row(6))), 5, "rows [7, 6]"),
    "below 0": (Change(rows_of="r", rows=(row(-1),)), -1, "number 0"),
    "no such run": (Change(rows_of="r", rows=rows(0, 0)), None, "'r', which does not exist"),
    "another run is begun": (Change(rows_of="r", rows=rows(0, 0), run=run("q")), None, "'r'"),
}


def test_gaps_are_errors() -> None:
    for name, (change, last, words) in GAPS.items():
        with pytest.raises(ValueError) as caught:
            plan_write(change, CurrentRows(last=last))
        assert words in str(caught.value), name


# --- what threads reach: by a table, and compared with a walk over single rows

# t1 made a, and went on with b from a:2. t2 is a copy of t1 at a:1, t3 made c from b:0.
RUNS = {
    "a": RunSummary("t1", (), 4),
    "b": RunSummary("t1", (Point("a", 2),), 3),
    "c": RunSummary("t3", (Point("b", 0),), 1),
}


def ends(head: Point | None = None, root: Point | None = None) -> ThreadRow:
    """A thread of which only head and root matter."""
    return ThreadRow("", head, 1, root=root)


T1 = ends(Point("b", 3))
T2 = ends(Point("a", 1))
T3 = ends(Point("c", 1))
NOTHING = DeletionPlan((), (), (), (), {})


def in_order(found: DeletionPlan) -> DeletionPlan:
    return found._replace(rows=tuple(sorted(found.rows)))


DELETIONS: dict[str, tuple[Mapping[str, ThreadRow], Collection[str], DeletionPlan]] = {
    "nothing is unreachable": ({"t1": T1, "t2": T2, "t3": T3}, (), NOTHING),
    "an unknown name": ({"t1": T1, "t3": T3}, ("t9",), NOTHING),
    "a run whose thread is not there": ({"t1": T1}, (), DeletionPlan((), ("c",), (), (), {})),
    "the only thread": ({"t1": T1}, ("t1",), DeletionPlan(("t1",), ("a", "b", "c"), (), (), {}, epoch=1)),
    "a child": ({"t1": T1, "t3": T3}, ("t3",), DeletionPlan(("t3",), ("c",), (), (), {}, epoch=1)),
    "others keep a part": (
        {"t1": T1, "t2": T2, "t3": T3},
        ("t1",),
        DeletionPlan(("t1",), (), (("a", 3, 4), ("b", 1, 3)), ("a", "b"), {"t2": ("a",), "t3": ("a", "b")}, epoch=1),
    ),
    "before the root, but whole runs that were made for it stay": (
        {"t1": ends(Point("b", 3), Point("b", 1)), "t3": ends(Point("c", 1), Point("c", 0))},
        (),
        DeletionPlan((), (), (("b", 0, 0),), (), {}),
    ),
    "a gap between two parts": (
        {"t2": ends(Point("b", 3), Point("b", 2)), "t4": ends(Point("b", 0), Point("b", 0))},
        (),
        DeletionPlan((), ("a", "c"), (("b", 1, 1),), (), {}),
    ),
}


def test_plan_deletion() -> None:
    found = {name: in_order(plan_deletion(threads, RUNS, gone)) for name, (threads, gone, _) in DELETIONS.items()}
    assert found == {name: expected for name, (_, _, expected) in DELETIONS.items()}


UNREACHABLE: dict[str, tuple[Mapping[str, ThreadRow], DeletionPlan]] = {
    "what it went past": ({"t1": T1, "t3": T3}, DeletionPlan((), (), (("a", 3, 4),), (), {})),
    "before its root, but what a copy reaches": (
        {"t1": ends(Point("b", 3), Point("b", 1)), "t2": T2},
        DeletionPlan((), ("c",), (("a", 2, 4), ("b", 0, 0)), ("a",), {"t2": ("a",)}),
    ),
    "all but its head": (
        {"t1": ends(Point("b", 3), Point("b", 3))},
        DeletionPlan((), ("a", "c"), (("b", 0, 2),), (), {}),
    ),
    "behind its head": (
        {"t1": ends(Point("b", 1)), "t3": T3},
        DeletionPlan((), (), (("a", 3, 4), ("b", 2, 3)), (), {}),
    ),
}


def test_plan_delete_unreachable() -> None:
    found = {name: in_order(plan_delete_unreachable(threads, RUNS, "t1")) for name, (threads, _) in UNREACHABLE.items()}
    assert found == {name: expected for name, (_, expected) in UNREACHABLE.items()}


def test_a_path_around_the_root_is_kept() -> None:
    """A merge has two parents; the root cuts one of the two ways."""
    runs = {
        "a": RunSummary("", (), 3),
        "b": RunSummary("", (Point("a", 1),), 0),
        "m": RunSummary("t", (Point("a", 3), Point("b", 0)), 0),
    }
    found = plan_delete_unreachable({"t": ends(Point("m", 0), Point("a", 3))}, runs, "t")
    assert found.rows == (("a", 2, 2),)


def test_a_run_without_rows_belongs_to_its_thread() -> None:
    runs = {"a": RunSummary("t", (), -1)}
    assert plan_deletion({"t": ends()}, runs) == NOTHING
    assert plan_deletion({"t": ends()}, runs, ["t"]).runs == ("a",)


@st.composite
def stores(draw: st.DrawFn) -> tuple[dict[str, ThreadRow], dict[str, RunSummary]]:
    names = [f"t{number}" for number in range(draw(st.integers(1, 4)))]
    runs: dict[str, RunSummary] = {}

    def point() -> Point:
        run = draw(st.sampled_from(sorted(runs)))
        return Point(run, draw(st.integers(0, max(0, runs[run].last))))

    for number in range(draw(st.integers(1, 6))):
        count = min(len(runs), draw(st.integers(0, 2)))
        parents = tuple(point() for _ in range(count))
        runs[f"r{number}"] = RunSummary(draw(st.sampled_from(["", *names])), parents, draw(st.integers(-1, 4)))
    found = {}
    for name in names:
        head = point() if draw(st.booleans()) else None
        found[name] = ends(head, point() if head and draw(st.booleans()) else None)
    return found, runs


def walk(thread: ThreadRow, runs: Mapping[str, RunSummary], starts: Collection[Point]) -> set[Point]:
    """Row by row: to the row before, or to the parents."""
    found: set[Point] = set()
    waiting = list(starts)
    while waiting:
        at = waiting.pop()
        if at in found:
            continue
        found.add(at)
        if at != thread.root:
            waiting.extend([Point(at.run, at.seq - 1)] if at.seq > 0 else runs[at.run].parents)
    return found


def rows_of(runs: Mapping[str, RunSummary]) -> set[Point]:
    return {Point(name, seq) for name, extent in runs.items() for seq in range(extent.last + 1)}


def left(runs: Mapping[str, RunSummary], gone: DeletionPlan) -> set[Point]:
    cut = {Point(run, seq) for run, first, last in gone.rows for seq in range(first, last + 1)}
    return {at for at in rows_of(runs) if at.run not in gone.runs} - cut


@given(stores(), st.data())
def test_exactly_the_unreachable_rows_are_deleted(
    store: tuple[dict[str, ThreadRow], dict[str, RunSummary]], data: st.DataObject
) -> None:
    threads, runs = store
    gone = data.draw(st.sets(st.sampled_from(sorted(threads))))
    found = plan_deletion(threads, runs, gone)
    reached: set[Point] = set()
    for name, thread in threads.items():
        if name not in gone:
            made = [Point(run, extent.last) for run, extent in runs.items() if extent.thread == name]
            reached |= walk(thread, runs, [*made, *([thread.head] if thread.head else [])])
    assert left(runs, found) == reached & rows_of(runs)
    assert {run for ids in found.kept.values() for run in ids} <= set(found.orphans)


@given(stores())
def test_a_second_deletion_finds_nothing(store: tuple[dict[str, ThreadRow], dict[str, RunSummary]]) -> None:
    threads, runs = store
    first = plan_delete_unreachable(threads, runs, "t0")
    kept = {name: extent for name, extent in runs.items() if name not in first.runs}
    for orphan in first.orphans:
        kept[orphan] = kept[orphan]._replace(thread="")
    again = plan_deletion(threads, kept)
    assert not again.runs
    assert left(kept, again) >= left(runs, first)
