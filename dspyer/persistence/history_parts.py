"""Parts of a long history, each read from the snapshot before it: reading costs what is asked for, not what is there.

A part is a listing as the whole history is one, but it begins at a snapshot. Where threads were merged, and for commits
that cannot be read, the functions return `None`, and their callers read the whole history.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from dspyer.ids import Address, outermost_execution
from dspyer.persistence.history import CommitListing, History
from dspyer.persistence.reader import (
    HistoryReader,
    RunAncestry,
    RunRows,
    commit_header,
    load_run,
    newest_rows,
    own_commit,
    read_run,
    rows_of_part,
    rows_through,
    with_map_results,
)
from dspyer.persistence.recovery import read_back
from dspyer.persistence.rows import (
    COMMITS,
    CommitRow,
    MapCommitContent,
    RowKind,
    first_version,
    read_commit_content,
)
from dspyer.persistence.snapshots import EVERY, LoadedSnapshot, latest_snapshot
from dspyer.stores.base import Point, Row, RunRow, Store
from dspyer.stores.columns import DAMAGED

FEW = 8
"""Runs that are read one by one, before all runs of the thread are read at once."""

PAGE = 64
"""Rows that are read first; each further page is twice as long."""


# --- Runs, newest first


class RunSpan(NamedTuple):
    """A run of a history: its last row there, its newest part, and its oldest part."""

    at: Point
    run: RunRow
    oldest: RunRow

    @property
    def first(self) -> int:
        """The number of its first commit."""
        return first_version(self.run)


def runs_back(store: Store, head: Point | None, root: Point | None = None) -> Iterator[RunSpan]:
    """Yield the runs behind a row, newest first, back to one with several parents, or to pruned history at `root`."""
    known: dict[str, RunRow] = {}
    ancestry = RunAncestry(store)
    at, count = head, 0
    while at is not None and at != root:
        run = oldest = known.get(at.run) or load_run(store, at.run)
        ancestry.visit(run.id)
        while oldest.header.get("continues"):
            ancestry.visit(oldest.parents[0].run)
            oldest = known.get(oldest.parents[0].run) or load_run(store, oldest.parents[0].run)
        yield RunSpan(at, run, oldest)
        count += 1
        if count >= FEW and run.thread and run.id not in known:
            known |= {other.id: other for other in store.runs(run.thread)}
        at = oldest.parents[0] if len(oldest.parents) == 1 else None


# --- Parts


def rows_from(store: Store, run: str, first: int, last: int) -> Iterator[Row]:
    """Yield rows of a run from one number to another, read in pages of doubling length: callers mostly need a few."""
    count = PAGE
    while first <= last:
        yield from rows_through(store, run, first, min(first + count - 1, last))
        first, count = first + count, 2 * count


def commit_row(store: Store, last: Point, execution: str) -> Point | None:
    """Return the row of a commit. In a whole run it has at least as many rows before it as its id says."""
    index = Address.parse(outermost_execution(execution)).index
    first = 0 if load_run(store, last.run).header.get("continues") else max(index, 0)
    for row in rows_from(store, last.run, first, last.seq):
        if row.kind in COMMITS and commit_header(row).execution == execution:
            return Point(last.run, row.seq)
    return None


def part_of(reader: HistoryReader, runs: Sequence[RunRows], root: Point | None) -> CommitListing | None:
    """List the commits of successive runs, oldest first; None if they are not one line, or one cannot be read."""
    history = History(reader)
    for run in runs:
        history.add(run, root)
    return CommitListing(history, runs[-1].points[-1:]) if history.is_line else None


def part_around(
    reader: HistoryReader, span: RunSpan, root: Point | None, version: int = -1, count: int = 1, row: int = -1
) -> CommitListing | None:
    """Read some commits of a run: from the snapshot before them to the next settled commit, or the end of the run.

    Args:
        reader: reads rows.
        span: the run.
        root: the row at which a pruned history begins.
        version: the version of the first of them.
        count: how many.
        row: the row of the first of them, in place of its version.
    """
    store, run, wanted = reader.store, span.run, version - span.first
    if run.header.get("continues"):
        rows = read_run(store, span.at)
    else:
        if row < 0:
            snapshot = _snapshot_before(reader, run.id, wanted, span.at.seq)
            count += wanted - (-1 if snapshot is None else snapshot.content.commit_index) - 1
        else:
            snapshot = latest_snapshot(store, Point(run.id, row - 1), reader.decode)
        begin = 0 if snapshot is None else snapshot.at.seq
        found = _rows_until(store, Point(run.id, begin), span.at.seq, count, row, snapshot is not None)
        rows = rows_of_part(run, with_map_results(found, partial(store.rows, run.id, 0, begin)), snapshot)
    before = read_back(reader, rows.parents[0]) if rows.snapshot is None and rows.parents else []
    return part_of(reader, [*before, rows], root)


def part_before(reader: HistoryReader, part: CommitListing, root: Point | None) -> CommitListing | None:
    """Read the commits before a part; None where a merge of threads or pruned history is before it, or nothing."""
    at = part.history.snapshot_at
    if at is None or at == root:
        return None
    earlier = part_of(reader, read_back(reader, at, earlier=True), root)
    return earlier if earlier is not None and earlier.next_version == part.first else None


def _snapshot_before(reader: HistoryReader, run: str, wanted: int, last: int) -> LoadedSnapshot | None:
    """Return the last snapshot before the commit of some index of a run; None without one.

    Row 0 is the open row, so that commit is in row `wanted + 1` if the run has nothing but commits of its own. Where
    other rows lie between, the snapshot is found by binary search.
    """
    low, high = min(wanted - 1, last), last
    best = latest_snapshot(reader.store, Point(run, low), reader.decode)
    near = reader.store.rows(run, wanted + 1, wanted + 1)
    header = own_commit(near[0]) if near else None
    if header is not None and header.step == wanted:
        return best
    while high - low > EVERY:
        middle = (low + high) // 2
        found = latest_snapshot(reader.store, Point(run, middle), reader.decode)
        if found is not None and found.content.commit_index >= wanted:
            high = min(found.at.seq, middle - 1)
        else:
            low, best = middle, found or best
    return best


def _rows_until(store: Store, begin: Point, last: int, commits: int, least: int, from_snapshot: bool) -> list[Row]:
    """Read rows from `begin` on to a settled commit, with at least so many commits and row `least`, or to row `last`.

    With `from_snapshot` the first row is that of a snapshot, whose commit does not count.
    """
    rows: list[Row] = store.rows(begin.run, begin.seq, begin.seq) if from_snapshot else []
    for row in rows_from(store, begin.run, begin.seq + len(rows), last):
        rows.append(row)
        header = own_commit(row)
        commits -= header is not None and row.seq >= least
        if header is not None and header.settled and commits <= 0 and row.seq >= least:
            break
    return rows


def writing_part(reader: HistoryReader, at: Point, fields: Collection[Any], root: Point | None) -> CommitListing | None:
    """Read the last commits up to a row that may have written one of some fields; None where `part_before` has none.

    The rows on the way are looked at, and not folded: a field that was written long ago is found without the states.
    """
    marks = [json.dumps(field, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") for field in fields]
    ancestry = RunAncestry(reader.store)
    while at != root:
        run, settled = load_run(reader.store, at.run), at
        ancestry.visit(run.id)
        if len(run.parents) > 1:
            return None
        for _, row in newest_rows(reader.store, at):
            if row.kind in COMMITS and not run.header.get("continues"):  # such a run is read whole
                header = own_commit(row)
                settled = Point(run.id, row.seq) if header is not None and header.settled else settled
            if _may_write(reader, row, fields, marks):
                return part_of(reader, read_back(reader, settled, earlier=True), root)
        if not run.parents:
            return None
        at = run.parents[0]
    return None


def _may_write(reader: HistoryReader, row: Row, fields: Collection[Any], marks: Iterable[bytes]) -> bool:
    """Return whether a commit, or the first one of a run, may write one of some fields, given their names in JSON."""
    content = row.content
    if row.kind not in (*COMMITS, RowKind.OPEN):
        return False
    if DAMAGED in row.header:  # its kind is unknown: the part is read, and says what is wrong
        return True
    items = CommitRow.of(row).items if row.kind in COMMITS and "items" in row.header else None
    if items is not None and items.field in fields:  # the results of a map are in rows of their own
        return True
    if content is None:
        return False
    if content.original is None and not isinstance(content, MapCommitContent) and content.data[:1] == b"{":
        return any(mark in content.data for mark in marks)
    patch = read_commit_content(content, reader.fetch, reader.decode).patch or {}
    return any(field in patch for field in fields)
