"""Parts of a long history, each read from the snapshot before it: reading costs what is asked for, not what is there.

A commit has a *number* here: the number of versions before its run plus its index in the run. Numbers increase over all
runs, and a commit has a higher one than its ancestors. The number is the commit's version, except inside a fork: there
versions are in canonical order and numbers in order of arrival.

Histories with merges of threads, and pruned ones, are not covered. For these the functions return `None`, and their
callers read the whole history (`history`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple

from dspyer.events import Commit, MergedConflict
from dspyer.ids import FIRST, full_id
from dspyer.persistence.history import PRUNED
from dspyer.persistence.reader import (
    FoldedRun,
    HistoryReader,
    RunAncestry,
    RunRows,
    load_run,
    newest_rows,
    read_run,
    with_map_results,
)
from dspyer.persistence.recovery import (
    LogSegment,
    RecoveredState,
    fold_segment,
    recover_state,
    rows_of_part,
    segments_before,
)
from dspyer.persistence.rows import (
    COMMITS,
    CommitRow,
    MapCommitContent,
    OpenRow,
    RowKind,
    first_version,
    read_commit_content,
    run_label,
)
from dspyer.persistence.snapshots import EVERY, LoadedSnapshot, latest_snapshot
from dspyer.record_codec import changed
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.topology import START
from dspyer.scheduler.writers import Writers
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Row, RunRow, Store
from dspyer.values.frozen import FrozenDict
from dspyer.values.refusals import KeyPath

FEW = 8
"""Runs that are read one by one, before all runs of the thread are read at once."""

PAGE = 64
"""Rows that are read first; each further page is twice as long."""


_BEFORE = Commit("", None, "", (), 1, 0, {}, ())


class LoggedCommit(NamedTuple):
    """A commit with the states before and after it (before a join, that of its first branch), and what it sends."""

    commit: Commit
    before: ImmutableState
    after: ImmutableState
    conflicts: tuple[MergedConflict, ...]
    sends: tuple[FrozenDict[str, Any] | None, ...] = ()


class BlockLog:
    """The settled commits of a block by number; of the one before the first, only the state is known.

    It is apart from the block, whose index of writers reads it: a cycle would wait for the collector.
    """

    def __init__(self, first: int, state: ImmutableState) -> None:
        self.first = first
        self.entries: list[LogEntry] = []
        self._before = LogEntry(_BEFORE, state, (), None)

    def __getitem__(self, number: int, /) -> LogEntry:
        return self._before if number < self.first else self.entries[number - self.first]


class Block:
    """Successive commits: all from a snapshot, or from the first run, up to a row.

    Args:
        reader: reads rows.
        segments: the folded rows.
        snapshot_at: the row of the snapshot that they begin behind; or that the run continues; None if
            they begin with the first run.
        root: the row at which a pruned history begins.

    Attributes:
        snapshot_at: the row of the snapshot.
        first: the number of its first commit.
        state: the state before that.
        entries: the settled commits by number. Parents and winners are numbers too; ids are global.
        fingerprints: for each of them, the ids of the fingerprints of the graphs that made its run.
        before: by path, the commit before the block that last wrote it, as far as it was asked for.
        is_complete: whether all of it can be read, and comes from one history; if not, nothing else of it is valid.
    """

    def __init__(
        self, reader: HistoryReader, segments: list[LogSegment], snapshot_at: Point | None, root: Point | None = None
    ) -> None:
        self.snapshot_at = snapshot_at
        self.fingerprints: list[frozenset[str]] = []
        self.before: dict[KeyPath, Commit] = {}
        self.state = segments[0].before
        self.first = _first_number(segments[0])
        self._log = BlockLog(self.first, self.state)
        self.entries = self._log.entries
        self._root = root
        self._reader = reader
        self._segments = segments
        self._writers = Writers(self._log, [self.first - 1])
        self.is_complete = all(self._add(segment) for segment in segments)

    def _add(self, segment: LogSegment) -> bool:
        run_rows, folded, _, snapshot_index = segment
        if folded.broken or len(run_rows.parents) > 1 or _first_number(segment) != self.end:
            return False
        offset = _first_number(segment) - (snapshot_index is not None)  # the number of its first entry
        ids, fingerprints = _global_ids(run_rows, folded), frozenset(run_rows.fingerprints.values())
        for index, entry in enumerate(folded.entries[: folded.last_settled + 1]):
            if snapshot_index is None or index:  # behind a snapshot, the first entry is not a commit
                parents = tuple([offset + parent for parent in entry.parents]) or ((offset - 1,) if offset else ())
                winners = {path: offset + winner for path, winner in entry.winners.items()}
                commit = changed(entry.commit, id=ids[index])
                self.entries.append(entry._replace(commit=commit, parents=parents, winners=winners))
                self.fingerprints.append(fingerprints)
        return True

    def last_writers(self, paths: Iterable[KeyPath], last: int) -> dict[KeyPath, Commit]:
        """By path, the commit of the block, up to a number, that last wrote it; without those that none has written."""
        written = self._writers.at(last)
        writers = {path: written.under(*path).writer for path in paths}
        ids = {path: self._log[writer].commit.id for path, writer in writers.items() if writer is not None}
        return {path: self.logged[commit_id].commit for path, commit_id in ids.items()}

    @property
    def end(self) -> int:
        """The number after its last commit."""
        return self.first + len(self.entries)

    @property
    def has_open_manual_commit(self) -> bool:
        """Whether it ends with a manual commit whose run was not resumed yet: a resume finds out its route."""
        last = self._segments[-1]
        return last.snapshot_index is None and bool(last.folded.entries) and not any(last.run_rows.own_commits())

    @cached_property
    def logged(self) -> dict[str, LoggedCommit]:
        """The commits by id, in canonical order and with versions; those of forks that have not joined are last in
        their run, without a version.
        """
        found: dict[str, LoggedCommit] = {}
        last = self._id_before()
        for segment in self._segments:
            (run_rows, folded, before, snapshot_index), version = segment, _first_number(segment)
            entries, ids, settled = folded.entries, _global_ids(run_rows, folded), folded.last_settled
            first = int(snapshot_index is not None)  # behind a snapshot, the first entry is not a commit
            order = [(index > settled, one.commit.step, one.commit.branch, index) for index, one in enumerate(entries)]
            for is_open, _, _, index in sorted(order[first:]):
                entry = entries[index]
                parents = [ids[parent] for parent in entry.parents] or ([last] if last else [])
                number = None if is_open else version
                commit = changed(entry.commit, id=ids[index], parents=tuple(parents), version=number)
                state = entries[entry.parents[0]].state if entry.parents else before
                found[ids[index]] = LoggedCommit(commit, state, entry.state, entry.conflicts, entry.sends)
                version += 1
            last = ids[settled] if settled >= first else last
        return found

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The numbers of the settled commits by id."""
        return {entry.commit.id: number for number, entry in enumerate(self.entries, self.first)}

    def _id_before(self) -> str:
        """Return the id of the commit before the first one; "" without one."""
        run_rows, _, _, snapshot_index = self._segments[0]
        if snapshot_index is not None:
            return tip_id(self._reader.store, run_rows.points[0], self._root)
        return tip_id(self._reader.store, run_rows.parents[0], self._root) if run_rows.parents else ""


def _first_number(segment: LogSegment) -> int:
    before = 0 if segment.snapshot_index is None else segment.snapshot_index + 1
    return first_version(segment.run_rows.run) + before


def _global_ids(run_rows: RunRows, folded: FoldedRun) -> list[str]:
    """Return the ids of the commits of a run, each with the label of its part in front."""
    runs = [
        point.run
        for index, (row, point) in enumerate(zip(run_rows.rows, run_rows.points, strict=True))
        if not index or (row.kind in COMMITS and not CommitRow.of(row).scope)
    ]
    if len(runs) > len(folded.entries):
        # Of the open row and the first commit, which are one commit, the former names the part: a resume or a rerun of
        # a manual commit writes the latter into a part of its own. Any other first row is no commit.
        del runs[1 if folded.entries and run_rows.rows[0].kind == RowKind.OPEN else 0]
    labels = run_rows.labels
    return [full_id(labels.get(run, run), entry.commit.id) for run, entry in zip(runs, folded.entries, strict=True)]


def tip_id(store: Store, at: Point, root: Point | None = None) -> str:
    """Return the id of the last settled commit up to a row; "" without one. A pruned history begins at `root`."""
    ancestry = RunAncestry(store)
    while True:
        run, row = load_run(store, at.run), None
        ancestry.visit(run.id)
        if at == root:
            return full_id(run_label(run), PRUNED)
        for run, row in newest_rows(store, at):
            header = CommitRow.of(row) if row.kind in COMMITS else None
            if header is not None and header.settled and not header.scope:
                is_first = row.kind == RowKind.COMMIT and not header.step and run.header.get("continues")
                # The part of the open row names the first commit, as in `_global_ids`.
                part = load_run(store, read_run(store, at).points[0].run) if is_first else run
                return full_id(run_label(part), header.id)
        if row is not None and row.kind == RowKind.OPEN and OpenRow.of(row).node != START:
            return full_id(run_label(run), FIRST)  # a manual commit whose run was not resumed yet
        if not run.parents:
            return ""
        at = run.parents[0]


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

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of its newest and of its oldest part."""
        return str(self.run.header.get("label", "")), str(self.oldest.header.get("label", ""))


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


# --- Blocks


def block_around(reader: HistoryReader, at: RunSpan, number: int, count: int = 1, root: Point | None = None) -> Block:
    """Read some commits of a run: from the snapshot before them to the next settled commit, or the end of the run.

    Args:
        reader: reads rows.
        at: the run.
        number: the number of the first of them.
        count: how many.
        root: the row at which a pruned history begins.
    """
    store, run = reader.store, at.run
    if run.header.get("continues"):
        run_rows = read_run(store, at.at)
        state = recover_state(reader, run_rows.parents[0]).state if run_rows.parents else ImmutableState()
        before = run_rows.parents[0] if run_rows.parents else None
        return Block(reader, [fold_segment(reader, run_rows, None, state)], before, root)
    wanted = number - at.first
    snapshot = _snapshot_before(reader, run.id, wanted, at.at.seq)
    index, begin = (-1, 0) if snapshot is None else (snapshot.content.commit_index, snapshot.at.seq)
    rows = _rows_until(store, Point(run.id, begin), at.at.seq, wanted + count - 1 - index, snapshot is not None)
    earlier = partial(store.rows, run.id, 0, begin)
    run_rows = rows_of_part(run, tuple(with_map_results(rows, earlier)))
    if snapshot is not None:
        segment = fold_segment(reader, run_rows, snapshot, snapshot.content.state)
        return Block(reader, [segment], snapshot.at, root)
    state = recover_state(reader, run.parents[0]).state if run.parents else ImmutableState()
    before = run.parents[0] if run.parents else None
    return Block(reader, [fold_segment(reader, run_rows, None, state)], before, root)


def recovered_block(reader: HistoryReader, recovered: RecoveredState, root: Point | None) -> Block | None:
    """Return the commits that a recovery has read; None if they are not one history."""
    if recovered.broken:
        return None
    block = Block(reader, list(recovered.segments), recovered.snapshot_at, root)
    return block if block.is_complete else None


def _snapshot_before(reader: HistoryReader, run: str, wanted: int, last: int) -> LoadedSnapshot | None:
    """Return the last snapshot before the commit of some index of a run; None without one.

    Row 0 is the open row, so that commit is in row `wanted + 1` if the run has nothing but commits of its own. Where
    other rows lie between, the snapshot is found by binary search.
    """
    low, high = min(wanted - 1, last), last
    best = latest_snapshot(reader.store, Point(run, low), reader.decode)
    near = reader.store.rows(run, wanted + 1, wanted + 1)
    header = CommitRow.of(near[0]) if near and near[0].kind in COMMITS else None
    if header is not None and not header.scope and header.step == wanted:
        return best
    while high - low > EVERY:
        middle = (low + high) // 2
        found = latest_snapshot(reader.store, Point(run, middle), reader.decode)
        if found is not None and found.content.commit_index >= wanted:
            high = min(found.at.seq, middle - 1)
        else:
            low, best = middle, found or best
    return best


def _rows_until(store: Store, begin: Point, last: int, commits: int, from_snapshot: bool) -> list[Row]:
    """Read rows from `begin` on until there are at least so many commits and the last is settled, or to row `last`.

    With `from_snapshot` the first row is that of a snapshot, whose commit does not count.
    """
    rows: list[Row] = store.rows(begin.run, begin.seq, begin.seq) if from_snapshot else []
    first, count = begin.seq + len(rows), PAGE
    while first <= last:
        for row in store.rows(begin.run, first, min(first + count - 1, last)):
            rows.append(row)
            header = CommitRow.of(row) if row.kind in COMMITS else None
            if header is not None and not header.scope:
                commits -= 1
                if header.settled and commits <= 0:
                    return rows
        first, count = first + count, 2 * count
    return rows


def block_before(reader: HistoryReader, block: Block, root: Point | None) -> Block | None:
    """Read the commits before a block; None where a merge of threads or pruned history is before it, or nothing."""
    if block.snapshot_at is None or block.snapshot_at == root:
        return None
    earlier = Block(reader, *segments_before(reader, block.snapshot_at), root)
    return earlier if earlier.is_complete and earlier.end == block.first else None


def writing_block(reader: HistoryReader, at: Point, fields: Collection[Any], root: Point | None) -> Block | None:
    """Read the last commits up to a row that may have written one of some fields; None where `block_before` has none.

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
                header = CommitRow.of(row)
                settled = Point(run.id, row.seq) if header.settled and not header.scope else settled
            if _may_write(reader, row, fields, marks):
                block = Block(reader, *segments_before(reader, settled), root)
                return block if block.is_complete else None
        if not run.parents:
            return None
        at = run.parents[0]
    return None


def _may_write(reader: HistoryReader, row: Row, fields: Collection[Any], marks: Iterable[bytes]) -> bool:
    """Return whether a commit, or the first one of a run, may write one of some fields, given their names in JSON."""
    content = row.content
    if row.kind not in (*COMMITS, RowKind.OPEN):
        return False
    items = CommitRow.of(row).items if row.kind in COMMITS and "items" in row.header else None
    if items is not None and items.field in fields:  # the results of a map are in rows of their own
        return True
    if content is None:
        return False
    if content.original is None and not isinstance(content, MapCommitContent) and content.data[:1] == b"{":
        return any(mark in content.data for mark in marks)
    patch = read_commit_content(content, reader.fetch, reader.decode).patch or {}
    return any(field in patch for field in fields)


class LinearHistory:
    """The commits behind a row by number, back to the first merge of threads or to pruned history.

    Args:
        reader: reads rows, block by block, when a number is asked for.
        newest: the block up to the row.
        root: the row at which a pruned history begins.

    Attributes:
        oldest: the oldest block that was read.
    """

    def __init__(self, reader: HistoryReader, newest: Block, root: Point | None) -> None:
        self.oldest = newest
        self._reader = reader
        self._root = root
        self._blocks = [newest]

    def block(self, number: int) -> Block | None:
        """Return the block of a commit; None if it is before a merge of threads, or in pruned history."""
        while self.oldest.first > number:
            earlier = block_before(self._reader, self.oldest, self._root)
            if earlier is None:
                return None
            self.oldest = earlier
            self._blocks.append(earlier)
        return next(block for block in self._blocks if block.first <= number)
