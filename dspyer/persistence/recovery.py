"""Recovery: the state at a row, from the last snapshot before it and the log behind that snapshot.

This is the recovery of a database with checkpoints and a write-ahead log: load the last checkpoint, redo the log behind
it. It is the redo pass of ARIES (Mohan et al. 1992); there is nothing to undo, since an execution writes its commit
whole or not at all. The log of a thread is a chain of runs, so it is read backwards, run by run, to the first snapshot.
Then its parts, the *segments*, are folded forwards. A lost snapshot makes the segments longer and changes nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from dspyer.ids import FIRST
from dspyer.persistence.reader import (
    FoldedRun,
    HistoryReader,
    RunAncestry,
    RunRows,
    load_run,
    read_run,
    rows_through,
    with_map_results,
)
from dspyer.persistence.rows import (
    COMMITS,
    CommitRow,
    RowKind,
    fingerprint_id,
    first_version,
    run_label,
)
from dspyer.persistence.snapshots import LoadedSnapshot, SinceSnapshot, latest_snapshot
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Row, RunRow, Store


class RecoveredState(NamedTuple):
    """The state at a row, and the log that was read for it.

    Attributes:
        state: the last state at which a single branch was active.
        next_version: the version of the next commit.
        last_run: the run of the row, as far as it was read.
        tail: what was written since the last snapshot.
        broken: why a commit before the row cannot be read; "" if all can. State and version are those before it.
        last_good: the row of the last readable commit, if one is not readable; None for none.
        segments: what was read.
        snapshot_at: the row of the snapshot before the segments; None if they begin with the first run.
    """

    state: ImmutableState
    next_version: int
    last_run: RunRows
    tail: SinceSnapshot
    broken: str = ""
    last_good: Point | None = None
    segments: tuple[LogSegment, ...] = ()
    snapshot_at: Point | None = None


class LogSegment(NamedTuple):
    """The rows of a run, or those behind a snapshot of it, folded.

    Attributes:
        run_rows: the rows.
        folded: their commits with states; behind a snapshot, the first is an empty commit at the snapshot.
        before: the state before them.
        snapshot_index: the index of the snapshot's commit among those of the run; None for a whole run.
    """

    run_rows: RunRows
    folded: FoldedRun
    before: ImmutableState
    snapshot_index: int | None


def recover_state(reader: HistoryReader, at: Point) -> RecoveredState:
    """Return the state at a row; raise `StoreError` if a run is missing."""
    parts, snapshot = _read_back(reader, at)
    segments = _fold(reader, parts, snapshot)
    run_rows, folded, _, snapshot_index = segments[-1]
    last_index = folded.last_settled + (snapshot_index or 0)
    next_version = first_version(run_rows.run) + last_index + 1
    tail = SinceSnapshot(snapshot=0 if snapshot is None else snapshot.size)
    for part in parts:
        tail = tail.with_rows(part.rows)
    if folded.broken:
        good = _last_good(run_rows, folded.last_settled, snapshot_index is not None)
        return RecoveredState(folded.trunk_state, next_version, parts[-1], tail, folded.broken, good)
    begin = None if snapshot is None else snapshot.at
    return RecoveredState(
        folded.trunk_state, next_version, parts[-1], tail, segments=tuple(segments), snapshot_at=begin
    )


def segments_before(reader: HistoryReader, base: Point) -> tuple[list[LogSegment], Point | None]:
    """Return the log before a snapshot, from the snapshot before it on, and the row of that one."""
    parts, snapshot = _read_back(reader, base, before=True)
    return _fold(reader, parts, snapshot), None if snapshot is None else snapshot.at


def fold_segment(
    reader: HistoryReader, run_rows: RunRows, snapshot: LoadedSnapshot | None, state: ImmutableState
) -> LogSegment:
    """Fold a run from its beginning, or, with the snapshot at its first row, from there."""
    index = None if snapshot is None else snapshot.content.commit_index
    rebased = run_rows if index is None else _rebased(run_rows, index)
    return LogSegment(run_rows, reader.fold(rebased, state), state, index)


def _read_back(reader: HistoryReader, at: Point, before: bool = False) -> tuple[list[RunRows], LoadedSnapshot | None]:
    """Read the runs up to a row, oldest first, from the last snapshot at (with `before`, before) the row on."""
    store = reader.store
    parts: list[RunRows] = []
    ancestry = RunAncestry(store)
    while True:
        run = load_run(store, at.run)
        ancestry.visit(run.id)
        snapshot = latest_snapshot(store, Point(at.run, at.seq - before), reader.decode)
        before = False
        if snapshot is not None:
            return [rows_from_snapshot(store, run, snapshot.at.seq, at.seq), *reversed(parts)], snapshot
        part = read_run(store, at)
        parts.append(part)
        if not part.parents:
            return parts[::-1], None
        at = part.parents[0]


def _fold(reader: HistoryReader, parts: list[RunRows], snapshot: LoadedSnapshot | None) -> list[LogSegment]:
    """Fold successive runs, up to the first with an unreadable commit."""
    segments: list[LogSegment] = []
    state = ImmutableState() if snapshot is None else snapshot.content.state
    for number, part in enumerate(parts):
        segment = fold_segment(reader, part, None if number else snapshot, state)
        segments.append(segment)
        state = segment.folded.trunk_state
        if segment.folded.broken:
            break
    return segments


def rows_from_snapshot(store: Store, run: RunRow, first: int, last: int) -> RunRows:
    """Read the rows of a run from that of a snapshot on; raise `StoreError` if the last one is missing."""
    rows = rows_through(store, run, first, last)
    return rows_of_part(run, tuple(with_map_results(rows, lambda: read_run(store, Point(run.id, first)).rows)))


def rows_of_part(run: RunRow, rows: tuple[Row, ...]) -> RunRows:
    """Return some rows of one part of a run, with its label and fingerprint."""
    points = tuple([Point(run.id, row.seq) for row in rows])
    labels, fingerprints = {run.id: run_label(run)}, {run.id: fingerprint_id(run)}
    return RunRows(run, run.parents, rows, points, labels, fingerprints)


def _last_good(part: RunRows, last_settled: int, from_snapshot: bool) -> Point | None:
    """Return the row of the last settled commit; without one, the row that the run continues from."""
    points = [part.points[0]] if from_snapshot else []
    points += [
        point
        for row, point in zip(part.rows, part.points, strict=True)
        if row.kind in COMMITS and not CommitRow.of(row).scope and point not in points
    ]
    if last_settled >= 0:
        return points[last_settled]
    return part.parents[0] if part.parents else None


def _rebased(part: RunRows, index: int) -> RunRows:
    """Return the rows behind a snapshot as those of a run that begins there, with an empty commit.

    Parents are indexes among the commits of the run, so they are counted from the snapshot's commit.
    """
    first, *rest = part.rows
    shifted = [_shifted(row, index) if row.kind in COMMITS else row for row in rest]
    header = CommitRow.of(first) if first.kind in COMMITS else CommitRow(id=FIRST, node="START")
    header = CommitRow(id=header.id, node=header.node, step=0, visit=1)
    opening = header.row().numbered(first.seq)
    ended = [Row(first.seq, RowKind.END, first.header, first.content)] if first.kind == RowKind.END else []
    return part._replace(rows=(opening, *ended, *shifted))


def _shifted(row: Row, index: int) -> Row:
    header = CommitRow.of(row)
    if header.scope or header.parents is None:
        return row
    return row._replace(header=replace(header, parents=tuple([parent - index for parent in header.parents])).header())
