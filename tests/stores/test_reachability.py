"""What threads reach: by a table, and compared with a walk over single rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspyer.stores.base import Point
from dspyer.stores.reachability import (
    DeletionPlan,
    RowSpan,
    RunSummary,
    ThreadBounds,
    plan_delete_unreachable,
    plan_deletion,
)

# t1 made a, and went on with b from a:2. t2 is a copy of t1 at a:1, t3 made c from b:0.
RUNS = {
    "a": RunSummary("t1", (), 4),
    "b": RunSummary("t1", (Point("a", 2),), 3),
    "c": RunSummary("t3", (Point("b", 0),), 1),
}
T1 = ThreadBounds(Point("b", 3))
T2 = ThreadBounds(Point("a", 1))
T3 = ThreadBounds(Point("c", 1))
NOTHING = DeletionPlan((), (), (), (), {})


def in_order(found: DeletionPlan) -> DeletionPlan:
    return found._replace(rows=tuple(sorted(found.rows)))


@pytest.mark.parametrize(
    ("threads", "gone", "expected"),
    [
        pytest.param({"t1": T1, "t2": T2, "t3": T3}, (), NOTHING, id="nothing is unreachable"),
        pytest.param({"t1": T1, "t3": T3}, ("t9",), NOTHING, id="an unknown name"),
        pytest.param({"t1": T1}, (), DeletionPlan((), ("c",), (), (), {}), id="a run whose thread is not there"),
        pytest.param({"t1": T1}, ("t1",), DeletionPlan(("t1",), ("a", "b", "c"), (), (), {}), id="the only thread"),
        pytest.param({"t1": T1, "t3": T3}, ("t3",), DeletionPlan(("t3",), ("c",), (), (), {}), id="a child"),
        pytest.param(
            {"t1": T1, "t2": T2, "t3": T3},
            ("t1",),
            DeletionPlan(
                ("t1",), (), (RowSpan("a", 3, 4), RowSpan("b", 1, 3)), ("a", "b"), {"t2": ("a",), "t3": ("a", "b")}
            ),
            id="others keep a part",
        ),
        pytest.param(
            {"t1": ThreadBounds(Point("b", 3), Point("b", 1)), "t3": ThreadBounds(Point("c", 1), Point("c", 0))},
            (),
            DeletionPlan((), (), (RowSpan("b", 0, 0),), (), {}),
            id="before the root, but whole runs that were made for it stay",
        ),
        pytest.param(
            {"t2": ThreadBounds(Point("b", 3), Point("b", 2)), "t4": ThreadBounds(Point("b", 0), Point("b", 0))},
            (),
            DeletionPlan((), ("a", "c"), (RowSpan("b", 1, 1),), (), {}),
            id="a gap between two parts",
        ),
    ],
)
def test_plan_deletion(threads: Mapping[str, ThreadBounds], gone: Collection[str], expected: DeletionPlan) -> None:
    assert in_order(plan_deletion(threads, RUNS, gone)) == expected


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        pytest.param({"t1": T1, "t3": T3}, DeletionPlan((), (), (RowSpan("a", 3, 4),), (), {}), id="what it went past"),
        pytest.param(
            {"t1": ThreadBounds(Point("b", 3), Point("b", 1)), "t2": T2},
            DeletionPlan((), ("c",), (RowSpan("a", 2, 4), RowSpan("b", 0, 0)), ("a",), {"t2": ("a",)}),
            id="before its root, but what a copy reaches",
        ),
        pytest.param(
            {"t1": ThreadBounds(Point("b", 3), Point("b", 3))},
            DeletionPlan((), ("a", "c"), (RowSpan("b", 0, 2),), (), {}),
            id="all but its head",
        ),
        pytest.param(
            {"t1": ThreadBounds(Point("b", 1)), "t3": T3},
            DeletionPlan((), (), (RowSpan("a", 3, 4), RowSpan("b", 2, 3)), (), {}),
            id="behind its head",
        ),
    ],
)
def test_plan_delete_unreachable(threads: Mapping[str, ThreadBounds], expected: DeletionPlan) -> None:
    assert in_order(plan_delete_unreachable(threads, RUNS, "t1")) == expected


def test_a_path_around_the_root_is_kept() -> None:
    """A merge has two parents; the root cuts one of the two ways."""
    runs = {
        "a": RunSummary("", (), 3),
        "b": RunSummary("", (Point("a", 1),), 0),
        "m": RunSummary("t", (Point("a", 3), Point("b", 0)), 0),
    }
    found = plan_delete_unreachable({"t": ThreadBounds(Point("m", 0), Point("a", 3))}, runs, "t")
    assert found.rows == (RowSpan("a", 2, 2),)


def test_a_run_without_rows_belongs_to_its_thread() -> None:
    runs = {"a": RunSummary("t", (), -1)}
    assert plan_deletion({"t": ThreadBounds()}, runs) == NOTHING
    assert plan_deletion({"t": ThreadBounds()}, runs, ["t"]).runs == ("a",)


@st.composite
def stores(draw: st.DrawFn) -> tuple[dict[str, ThreadBounds], dict[str, RunSummary]]:
    names = [f"t{number}" for number in range(draw(st.integers(1, 4)))]
    runs: dict[str, RunSummary] = {}

    def point() -> Point:
        run = draw(st.sampled_from(sorted(runs)))
        return Point(run, draw(st.integers(0, max(0, runs[run].last))))

    for number in range(draw(st.integers(1, 6))):
        count = min(len(runs), draw(st.integers(0, 2)))
        parents = tuple(point() for _ in range(count))
        runs[f"r{number}"] = RunSummary(draw(st.sampled_from(["", *names])), parents, draw(st.integers(-1, 4)))
    ends = {}
    for name in names:
        head = point() if draw(st.booleans()) else None
        ends[name] = ThreadBounds(head, point() if head and draw(st.booleans()) else None)
    return ends, runs


def walk(ends: ThreadBounds, runs: Mapping[str, RunSummary], starts: Collection[Point]) -> set[Point]:
    """Row by row: to the row before, or to the parents."""
    found: set[Point] = set()
    waiting = list(starts)
    while waiting:
        at = waiting.pop()
        if at in found:
            continue
        found.add(at)
        if at != ends.root:
            waiting.extend([Point(at.run, at.seq - 1)] if at.seq > 0 else runs[at.run].parents)
    return found


def rows_of(runs: Mapping[str, RunSummary]) -> set[Point]:
    return {Point(name, seq) for name, extent in runs.items() for seq in range(extent.last + 1)}


def left(runs: Mapping[str, RunSummary], gone: DeletionPlan) -> set[Point]:
    cut = {Point(span.run, seq) for span in gone.rows for seq in range(span.first, span.last + 1)}
    return {at for at in rows_of(runs) if at.run not in gone.runs} - cut


@given(stores(), st.data())
def test_exactly_the_unreachable_rows_are_deleted(
    store: tuple[dict[str, ThreadBounds], dict[str, RunSummary]], data: st.DataObject
) -> None:
    threads, runs = store
    gone = data.draw(st.sets(st.sampled_from(sorted(threads))))
    found = plan_deletion(threads, runs, gone)
    reached: set[Point] = set()
    for name, ends in threads.items():
        if name not in gone:
            made = [Point(run, extent.last) for run, extent in runs.items() if extent.thread == name]
            reached |= walk(ends, runs, [*made, *([ends.head] if ends.head else [])])
    assert left(runs, found) == reached & rows_of(runs)
    assert {run for ids in found.kept.values() for run in ids} <= set(found.orphans)


@given(stores())
def test_a_second_deletion_finds_nothing(store: tuple[dict[str, ThreadBounds], dict[str, RunSummary]]) -> None:
    threads, runs = store
    first = plan_delete_unreachable(threads, runs, "t0")
    kept = {name: extent for name, extent in runs.items() if name not in first.runs}
    for run in first.orphans:
        kept[run] = kept[run]._replace(thread="")
    again = plan_deletion(threads, kept)
    assert not again.runs
    assert left(kept, again) >= left(runs, first)
