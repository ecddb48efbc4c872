"""Recovery: the state at a row, from the last snapshot before it and the log behind that snapshot.

This is the recovery of a database with checkpoints and a write-ahead log: load the last checkpoint, redo the log behind
it. It is the redo pass of ARIES (Mohan et al. 1992); there is nothing to undo, since an execution writes its commit
whole or not at all. The log of a thread is a chain of runs, so it is read backwards, run by run, to the first snapshot.
Then it is folded forwards. A lost snapshot makes it longer and changes nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from dspyer.persistence.history import History
from dspyer.persistence.reader import (
    HistoryReader,
    RunAncestry,
    RunRows,
    load_run,
    read_run,
    rows_of_part,
    rows_through,
    with_map_results,
)
from dspyer.persistence.snapshots import LoadedSnapshot, SinceSnapshot, latest_snapshot
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, RunRow, Store


class RecoveredState(NamedTuple):
    """The state at a row.

    Attributes:
        state: the last state at which a single branch was active.
        next_version: the version of the next commit.
        last_run: the run of the row, as far as it was read.
        tail: what was written since the last snapshot.
        broken: why a commit before the row cannot be read; "" if all can. State and version are those before it.
        last_good: the row of the last readable commit, if one is not readable; None for none.
    """

    state: ImmutableState
    next_version: int
    last_run: RunRows
    tail: SinceSnapshot
    broken: str = ""
    last_good: Point | None = None


def recover_state(reader: HistoryReader, at: Point) -> RecoveredState:
    """Return the state at a row; raise `StoreError` if a run is missing."""
    runs, history = read_back(reader, at), History(reader)
    tail = SinceSnapshot(snapshot=0 if runs[0].snapshot is None else runs[0].snapshot.size)
    for run in runs:
        history.add(run)
        tail = tail.with_rows(run.rows)
    last = next((run for run in runs if history.runs[run.points[-1]].broken), runs[-1])
    logged, good = history.runs[last.points[-1]], None
    if logged.broken:  # the last commit before it, or the row that the run continues from
        points = [point for _, point, _ in last.own_commits()]
        points = points if last.snapshot is None else [last.points[0], *points]
        good = points[logged.settled_count - 1] if logged.settled_count else next(iter(last.parents), None)
    state, version = history.state(logged.trunk_index), logged.first + logged.settled_count
    return RecoveredState(state, version, runs[-1], tail, logged.broken, good)


def read_back(reader: HistoryReader, at: Point, earlier: bool = False) -> list[RunRows]:
    """Read the runs up to a row along first parents, oldest first, from the last snapshot at the row on.

    With `earlier` from the last one before the row.
    """
    store = reader.store
    runs: list[RunRows] = []
    ancestry = RunAncestry(store)
    while True:
        run = load_run(store, at.run)
        ancestry.visit(run.id)
        snapshot = latest_snapshot(store, Point(at.run, at.seq - earlier), reader.decode)
        earlier = False
        if snapshot is not None:
            return [rows_from_snapshot(store, run, snapshot, at.seq), *reversed(runs)]
        runs.append(read_run(store, at))
        if not runs[-1].parents:
            return runs[::-1]
        at = runs[-1].parents[0]


def rows_from_snapshot(store: Store, run: RunRow, snapshot: LoadedSnapshot, last: int) -> RunRows:
    """Read the rows of a run from that of a snapshot on; raise `StoreError` if the last one is missing."""
    rows = rows_through(store, run.id, snapshot.at.seq, last)
    rows = with_map_results(rows, lambda: read_run(store, snapshot.at).rows)
    return rows_of_part(run, rows, snapshot)
