"""Parts of a history, each read from the snapshot before it: no more is read than is asked for.

A commit has a *number* here: the versions before its run and its place in the run. So numbers count on over all runs,
and a commit has a higher one than those that it builds on. It is the version of the commit, save that inside a fork
versions count in canonical order, and numbers in order of arrival.

Nothing here knows histories that were merged: there a part is `None`, and the whole history has to be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import NamedTuple

from dspyer.events import Commit
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
from dspyer.persistence.rows import COMMITS, CommitHeader, RowKind
from dspyer.persistence.snapshot_encoding import SnapshotEncoder
from dspyer.persistence.snapshots import (
    EVERY,
    LogSegment,
    RecoveredState,
    SnapshotState,
    fold_segment,
    latest_snapshot,
    recover_state,
    rows_of_part,
    segments_before,
)
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.topology import START
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Row, RunRow, Store

BlockStart = tuple[Point, SnapshotState, SnapshotEncoder]
"""A snapshot: its row, and what the run had come to there."""

FEW = 8
"""Runs that are read one by one; who looks further back gets all of the thread at once."""

PAGE = 64
"""Rows that are read at once, at first; then twice as many."""


class Block:
    """Commits that follow each other: all from a snapshot, or from the first run, up to a row.

    Args:
        reader: reads rows.
        segments: the rows with what they say.
        base: the row that they begin behind; None if they begin with the first run.
        root: the row at which the history begins, if older history was pruned.

    Attributes:
        snapshot_at: the same.
        first: the number of its first commit.
        state: the state before that.
        entries: the commits in the order of their numbers. Parents and winners are numbers too; ids name the runs.
        fingerprints: for each of them, the ids of the fingerprints of the graphs that made its run.
        is_complete: whether all of it can be read, and comes from one history; if not, nothing else of it counts.
    """

    def __init__(
        self, reader: HistoryReader, segments: list[LogSegment], base: Point | None, root: Point | None = None
    ) -> None:
        self.snapshot_at = base
        self._root = root
        self.entries: list[LogEntry] = []
        self.fingerprints: list[frozenset[str]] = []
        self.state = segments[0].before
        self.first = _first(segments[0])
        self._reader = reader
        self._pieces = segments
        self.is_complete = all(self._add(segment) for segment in segments)

    def _add(self, segment: LogSegment) -> bool:
        part, folded, _, place = segment
        if folded.broken or len(part.parents) > 1 or _first(segment) != self.end:
            return False
        begins = _first(segment) - (place is not None)  # the number of its first entry
        names, shapes = _names(part, folded), frozenset(part.fingerprints.values())
        for index, entry in enumerate(folded.entries[: folded.last_settled + 1]):
            if place is None or index:
                parents = tuple([begins + parent for parent in entry.parents]) or ((begins - 1,) if begins else ())
                winners = {path: begins + winner for path, winner in entry.winners.items()}
                commit = entry.commit._replace(id=names[index])
                self.entries.append(entry._replace(commit=commit, parents=parents, winners=winners))
                self.fingerprints.append(shapes)
        return True

    @property
    def end(self) -> int:
        """The number after its last commit."""
        return self.first + len(self.entries)

    @cached_property
    def commits(self) -> list[Commit]:
        """The commits as people read them: in canonical order, with versions. Those of forks that have not joined come
        last in their run, without a version.
        """
        found: list[Commit] = []
        last = self._tip()
        for segment in self._pieces:
            part, folded, _, place = segment
            names, cut = _names(part, folded), place is not None
            own: list[Commit] = []
            for index, entry in enumerate(folded.entries):
                before = [names[parent] for parent in entry.parents] or ([last] if last else [])
                own.append(entry.commit._replace(id=names[index], parents=tuple(before)))
            found += _in_order(own[cut:], folded.last_settled + 1 - cut, _first(segment))
            last = names[folded.last_settled] if folded.last_settled >= 0 and (not cut or folded.last_settled) else last
        return found

    @cached_property
    def states(self) -> Mapping[str, ImmutableState]:
        """The state after each of the commits, by id."""
        found: dict[str, ImmutableState] = {}
        for part, folded, _, place in self._pieces:
            names = _names(part, folded)
            found |= {names[index]: entry.state for index, entry in enumerate(folded.entries) if place is None or index}
        return found

    def _tip(self) -> str:
        """The id of the commit before the first one; "" if there is none."""
        part, _, _, place = self._pieces[0]
        if place is not None:
            return tip_id(self._reader.store, part.points[0], self._root)
        return tip_id(self._reader.store, part.parents[0], self._root) if part.parents else ""


def _first(segment: LogSegment) -> int:
    """The number of the first commit of a segment."""
    return int(segment.part.run.header.get("first", 0)) + (0 if segment.place is None else segment.place + 1)


def _names(part: RunRows, folded: FoldedRun) -> list[str]:
    """The ids of the commits of a run, with the name of the run in front."""
    runs = [
        point.run
        for number, (row, point) in enumerate(zip(part.rows, part.points, strict=True))
        if not number or (row.kind in COMMITS and not CommitHeader.parse(row.header).scope)
    ]
    if len(runs) > len(folded.entries):  # the first row is no commit
        runs = runs[1:]
    return [f"{part.labels.get(run, run)}/{entry.commit.id}" for run, entry in zip(runs, folded.entries, strict=True)]


def _in_order(found: list[Commit], settled: int, first: int) -> list[Commit]:
    """The commits of a run in canonical order, with versions as far as they have any."""
    known = sorted(found[:settled], key=lambda commit: (commit.step, commit.branch))
    others = sorted(found[settled:], key=lambda commit: (commit.step, commit.branch))
    return [
        *[commit._replace(version=first + number) for number, commit in enumerate(known)],
        *[commit._replace(version=None) for commit in others],
    ]


def tip_id(store: Store, at: Point, root: Point | None = None) -> str:
    """The id of the last commit up to a row after which one branch was live; "" if there is none.

    Args:
        store: where the row is kept.
        at: the row.
        root: the row at which the history begins, if older history was pruned.
    """
    ancestry = RunAncestry(store)
    while True:
        run, row = load_run(store, at.run), None
        ancestry.visit(run.id)
        if at == root:
            return f"{run.header.get('label', run.id)}/{PRUNED}"
        for run, row in newest_rows(store, at):
            head = CommitHeader.parse(row.header) if row.kind in COMMITS else None
            if head is not None and head.settled and not head.scope:
                return f"{run.header.get('label', run.id)}/{head.id}"
        if row is not None and row.kind == RowKind.OPEN and row.header[0] != START:
            return f"{run.header.get('label', run.id)}/trunk:0"  # made in the name of a node, and not resumed yet
        if not run.parents:
            return ""
        at = run.parents[0]


class RunSpan(NamedTuple):
    """A run of a history.

    Attributes:
        at: its last row there.
        run: its newest part.
        begun: its oldest part.
    """

    at: Point
    run: RunRow
    begun: RunRow

    @property
    def first(self) -> int:
        """The number of its first commit."""
        return int(self.run.header.get("first", 0))

    @property
    def labels(self) -> tuple[str, str]:
        """The names of its newest and of its oldest part."""
        return str(self.run.header.get("label", "")), str(self.begun.header.get("label", ""))


def runs_back(store: Store, head: Point | None, root: Point | None = None) -> Iterator[RunSpan]:
    """The runs behind a row, newest first, up to one that goes on from several, or to pruned history.

    Args:
        store: where they are kept.
        head: the row.
        root: the row at which the history begins, if older history was pruned.
    """
    known: dict[str, RunRow] = {}
    ancestry = RunAncestry(store)
    at, steps = head, 0
    while at is not None and at != root:
        run = begun = known.get(at.run) or load_run(store, at.run)
        ancestry.visit(run.id)
        while begun.header.get("continues"):
            ancestry.visit(begun.parents[0].run)
            begun = known.get(begun.parents[0].run) or load_run(store, begun.parents[0].run)
        yield RunSpan(at, run, begun)
        steps += 1
        if steps >= FEW and run.thread and run.id not in known:
            known |= {other.id: other for other in store.runs(run.thread)}
        at = begun.parents[0] if len(begun.parents) == 1 else None


def block_around(reader: HistoryReader, at: RunSpan, number: int, count: int = 1, root: Point | None = None) -> Block:
    """The commits around a number: from the nearest snapshot up to a moment at which one branch was live, or the end.

    Args:
        reader: reads rows.
        at: the run.
        number: the number of one of its commits.
        count: how many commits from there on are wanted.
        root: the row at which the history begins, if older history was pruned.
    """
    store, run = reader.store, at.run
    if run.header.get("continues"):
        part = read_run(store, at.at)
        state = recover_state(reader, part.parents[0]).state if part.parents else ImmutableState()
        return Block(reader, [fold_segment(reader, part, None, state)], part.parents[0] if part.parents else None, root)
    wanted = number - at.first
    found = _snapshot_before(reader, run.id, wanted, at.at.seq)
    place, begin = (-1, 0) if found is None else (found[1].commit_index, found[0].seq)
    rows = _rows_until(store, Point(run.id, begin), at.at.seq, wanted + count - 1 - place, found is not None)
    earlier = partial(store.rows, run.id, 0, begin)
    part = rows_of_part(run, tuple(with_map_results(rows, earlier)))
    if found is not None:
        return Block(reader, [fold_segment(reader, part, found, found[1].state)], found[0], root)
    state = recover_state(reader, run.parents[0]).state if run.parents else ImmutableState()
    return Block(reader, [fold_segment(reader, part, None, state)], None, root)


def recovered_block(reader: HistoryReader, found: RecoveredState, root: Point | None) -> Block | None:
    """The commits up to a row, as far as they were read to know its state; None where they are not one history.

    Args:
        reader: reads rows.
        found: what was read.
        root: the row at which the history begins, if older history was pruned.
    """
    block = None if found.broken else Block(reader, list(found.segments), found.snapshot_at, root)
    return block if block is not None and block.is_complete else None


def _snapshot_before(reader: HistoryReader, run: str, wanted: int, last: int) -> BlockStart | None:
    """The last snapshot that comes before the commit of some number of a run; None if there is none.

    That commit is in the row of its number at the earliest, and in the next one if the run has made nothing but
    commits of its own. Where other rows lie between, it is looked for by halves.
    """
    low, high = min(wanted - 1, last), last
    best = latest_snapshot(reader.store, Point(run, low), reader.decode)
    near = reader.store.rows(run, wanted + 1, wanted + 1)
    head = CommitHeader.parse(near[0].header) if near and near[0].kind in COMMITS else None
    if head is not None and not head.scope and head.step == wanted:
        return best
    while high - low > EVERY:
        middle = (low + high) // 2
        found = latest_snapshot(reader.store, Point(run, middle), reader.decode)
        if found is not None and found[1].commit_index >= wanted:
            high = min(found[0].seq, middle - 1)
        else:
            low, best = middle, found or best
    return best


def _rows_until(store: Store, begin: Point, last: int, commits: int, behind: bool) -> list[Row]:
    """The rows of a run from one on, until it has had some commits, and one branch is live.

    Args:
        store: where they are kept.
        begin: the first row.
        last: the last one.
        commits: how many commits.
        behind: whether the first row does not count: that of a snapshot.
    """
    rows: list[Row] = store.rows(begin.run, begin.seq, begin.seq) if behind else []
    first, count = begin.seq + len(rows), PAGE
    while first <= last:
        for row in store.rows(begin.run, first, min(first + count - 1, last)):
            rows.append(row)
            head = CommitHeader.parse(row.header) if row.kind in COMMITS else None
            if head is not None and not head.scope:
                commits -= 1
                if head.settled and commits <= 0:
                    return rows
        first, count = first + count, 2 * count
    return rows


class LinearHistory:
    """The commits behind a row by their numbers, as far back as one history goes. What is asked for is read, in blocks.

    Args:
        reader: reads rows.
        newest: the block up to the row.
        root: the row at which the history begins, if older history was pruned.
    """

    def __init__(self, reader: HistoryReader, newest: Block, root: Point | None) -> None:
        self._reader = reader
        self._root = root
        self._blocks = [newest]

    def block(self, number: int) -> Block | None:
        """The block of a commit; None where it cannot be read so: before two histories were merged, or pruned history.

        Args:
            number: the number of the commit.
        """
        while self._blocks[-1].first > number:
            last = self._blocks[-1]
            if last.snapshot_at is None or last.snapshot_at == self._root:
                return None
            earlier = Block(self._reader, *segments_before(self._reader, last.snapshot_at), self._root)
            if not earlier.is_complete or earlier.end != last.first:
                return None
            self._blocks.append(earlier)
        return next(block for block in self._blocks if block.first <= number)

    @property
    def oldest(self) -> Block:
        """The oldest block that was read."""
        return self._blocks[-1]
