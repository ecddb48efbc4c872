"""What may be written, and what was written already."""

from __future__ import annotations

import pytest

from dspyer.errors import ConcurrentRunError
from dspyer.stores.base import Change, Point, ThreadRow
from dspyer.stores.writes import CurrentRows, WritePlan, plan_write
from tests.stores.kit import OTHER, OWNER, row, rows, run

FREE = ThreadRow("t", None, 3)
OWNED = ThreadRow("t", Point("r", 5), 3, OWNER, 30.0)
TAKEN = ThreadRow("t", Point("r", 5), 4, OTHER, 30.0)
TAKE = Change("t", 3, 4, OWNER, 30.0)


@pytest.mark.parametrize(
    ("change", "found", "expected"),
    [
        pytest.param(Change("t"), CurrentRows(), WritePlan(1, False, ()), id="a new thread"),
        pytest.param(
            Change("t", 0, 7),
            CurrentRows(max_deleted_epoch=4),
            WritePlan(5, False, ()),
            id="a new thread after deleted ones",
        ),
        pytest.param(Change("t", 3), CurrentRows(FREE), WritePlan(3, False, ()), id="the epoch stays"),
        pytest.param(TAKE, CurrentRows(FREE), WritePlan(4, False, ()), id="the epoch rises"),
        pytest.param(TAKE, CurrentRows(TAKEN._replace(owner=OWNER)), None, id="taken by the same owner: a repeat"),
        pytest.param(Change(run=run("r")), CurrentRows(), WritePlan(1, True, ()), id="a run without a thread"),
        pytest.param(Change("t", 3, run=run("r")), CurrentRows(FREE), WritePlan(3, True, ()), id="a run"),
        pytest.param(
            Change("t", 3, run=run("r")), CurrentRows(FREE, run("r")), WritePlan(3, False, ()), id="a run, repeated"
        ),
        pytest.param(
            Change("t", 2, 3, run=run("r")), CurrentRows(FREE, run("r")), None, id="a run and an epoch, repeated"
        ),
        pytest.param(
            Change("t", run=run("r", "t")), CurrentRows(ThreadRow("t", None, 1), run("r", "t")), None, id="a start"
        ),
        pytest.param(
            Change(run=run("r", "t")),
            CurrentRows(run=run("r")),
            WritePlan(1, False, ()),
            id="orphaned since",
        ),
        pytest.param(
            Change("t", 3, rows_of="r", rows=rows(0, 1), run=run("r")),
            CurrentRows(FREE),
            WritePlan(3, True, rows(0, 1)),
            id="a run with rows",
        ),
        pytest.param(
            Change("t", 3, rows_of="r", rows=rows(6, 7)),
            CurrentRows(OWNED, last=5),
            WritePlan(3, False, rows(6, 7)),
            id="rows",
        ),
        pytest.param(
            Change("t", 3, rows_of="r", rows=rows(4, 5)),
            CurrentRows(OWNED, last=5, rows=rows(4, 5)),
            WritePlan(3, False, ()),
            id="rows, repeated",
        ),
        pytest.param(
            Change("t", 3, rows_of="r", rows=rows(5, 7)),
            CurrentRows(OWNED, last=5, rows=rows(5, 5)),
            WritePlan(3, False, rows(6, 7)),
            id="rows of which some are there",
        ),
        pytest.param(
            Change("t", 2, 3, rows_of="r", rows=rows(5, 5), head=Point("r", 5)),
            CurrentRows(OWNED, last=5, rows=rows(5, 5)),
            None,
            id="rows, head and epoch, repeated",
        ),
    ],
)
def test_plan_write(change: Change, found: CurrentRows, expected: WritePlan | None) -> None:
    assert plan_write(change, found) == expected


@pytest.mark.parametrize(
    ("change", "found", "words"),
    [
        pytest.param(Change("t"), CurrentRows(FREE), "'t' exists already", id="made before"),
        pytest.param(
            Change("t"), CurrentRows(ThreadRow("t", None, 1)), "'t' exists already", id="nothing to know it by"
        ),
        pytest.param(Change("t", 3), CurrentRows(), "deleted", id="gone"),
        pytest.param(Change("t", 2), CurrentRows(OWNED), "process 7 on host 'here' owns it", id="another owner"),
        pytest.param(Change("t", 2), CurrentRows(FREE), "has no owner at the moment", id="released since"),
        pytest.param(TAKE, CurrentRows(TAKEN), "process 8 on host 'there'", id="both took it, the other was first"),
        pytest.param(
            Change("t", 3, run=run("r")), CurrentRows(FREE, run("r", "t", Point("q", 1))), "is another one", id="a run"
        ),
        pytest.param(
            Change("t", 2, 3, rows_of="r", rows=rows(6, 6)),
            CurrentRows(OWNED, last=5),
            "taken over",
            id="its rows are not there",
        ),
        pytest.param(
            Change("t", 2, 3, rows_of="r", rows=rows(5, 5), head=Point("q", 5)),
            CurrentRows(OWNED, last=5, rows=rows(5, 5)),
            "taken over",
            id="another head",
        ),
        pytest.param(
            Change("t", 3, rows_of="r", rows=(row(5, "mine"),)),
            CurrentRows(OWNED, last=5, rows=(row(5, "yours"),)),
            "row 5 of run 'r'",
            id="another content",
        ),
        pytest.param(
            Change("t", 3, rows_of="r", rows=(row(5)._replace(header=(True,)),)),
            CurrentRows(OWNED, last=5, rows=(row(5)._replace(header=(1,)),)),
            "row 5",
            id="another head of a row: 1 is not true",
        ),
        pytest.param(
            Change("t", 3, rows_of="r", rows=rows(2, 2)),
            CurrentRows(OWNED, last=5),
            "row 2",
            id="a row that was deleted since",
        ),
    ],
)
def test_conflicts_are_refused(change: Change, found: CurrentRows, words: str) -> None:
    with pytest.raises(ConcurrentRunError) as caught:
        plan_write(change, found)
    assert words in str(caught.value)
    assert "othing was written" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "last", "words"),
    [
        pytest.param(Change(rows_of="r", rows=rows(7, 7)), 5, "the next row has the number 6", id="before them"),
        pytest.param(Change(rows_of="r", rows=(row(6), row(8))), 5, "rows [6, 8]", id="between them"),
        pytest.param(Change(rows_of="r", rows=(row(7), row(6))), 5, "rows [7, 6]", id="order"),
        pytest.param(Change(rows_of="r", rows=(row(-1),)), -1, "number 0", id="below 0"),
        pytest.param(Change(rows_of="r", rows=rows(0, 0)), None, "'r', which does not exist", id="no such run"),
        pytest.param(Change(rows_of="r", rows=rows(0, 0), run=run("q")), None, "'r'", id="another run is begun"),
    ],
)
def test_gaps_are_errors(change: Change, last: int | None, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        plan_write(change, CurrentRows(last=last))
    assert words in str(caught.value)
