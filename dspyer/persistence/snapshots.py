"""Snapshots: what a run had come to at one of its rows, so that not all of its history is read again.

They are a cache. One that is not there, or cannot be read, costs time and nothing else.
"""

from __future__ import annotations

import json
import logging
import zlib
from functools import partial
from typing import NamedTuple

from dspyer.errors import StateError, StoreError
from dspyer.persistence.reader import (
    FoldedRun,
    HistoryReader,
    RunAncestry,
    RunRows,
    load_run,
    read_run,
    with_map_results,
)
from dspyer.persistence.rows import COMMITS, CommitContent, CommitHeader, RowKind, encode_commit_content
from dspyer.persistence.snapshot_encoding import Decode, SnapshotEncoder
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Row, RunRow, Snapshot, Store
from dspyer.stores.content import Content, Fetch, ReadBudget

EVERY = 480
"""Rows after which a run takes a snapshot, as soon as one branch is live."""

AT_END = 100
"""Rows after which it takes one when it has ended."""

VERSION = 1
"""Of the form in which snapshots are written; one of another form is passed over."""

logger = logging.getLogger("dspyer")

_UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, zlib.error, StateError)


class SnapshotState(NamedTuple):
    """What a run had come to at a row at which one branch was live.

    Attributes:
        state: the state.
        commit_index: of its last commit among those of the run.
    """

    state: ImmutableState
    commit_index: int


class SnapshotContent(Content):
    """What a snapshot holds: the state itself as long as nobody asks for bytes.

    Args:
        rested: what the run has come to.
        encoder: what is known of its earlier states.
    """

    __slots__ = ("_encoder",)

    def __init__(self, rested: SnapshotState, encoder: SnapshotEncoder) -> None:
        super().__init__(rested)
        self._encoder = encoder

    @property
    def data(self) -> bytes:
        """The bytes: compressed."""
        if self._data is None:
            form = self._encoder.encode(self._value.state)
            self._refs, self._blobs = form.refs, self._encoder.take_new_blobs(form)
            self._data = zlib.compress(f"[{VERSION},{self._value.commit_index},{form.text}]".encode())
        return self._data


def new_snapshot(at: Point, rested: SnapshotState, encoder: SnapshotEncoder) -> Snapshot:
    """A snapshot to be written.

    Args:
        at: the row: a commit after which one branch was live, or the end of a completed run.
        rested: what the run has come to there.
        encoder: what is known of its earlier states.
    """
    return Snapshot(at, SnapshotContent(rested, encoder))


def latest_snapshot(store: Store, at: Point, decode: Decode) -> tuple[Point, SnapshotState, SnapshotEncoder] | None:
    """The last snapshot of a run at or before a row that can be read."""
    while at.seq >= 0:
        found = store.snapshot(at)
        if found is None:
            return None
        encoder = SnapshotEncoder()
        try:
            return found.at, _rested(found.content, store.blobs, decode, encoder), encoder
        except _UNREADABLE as error:
            logger.warning("the snapshot at row %d of run %s is passed over: %s", found.at.seq, at.run, error)
        at = Point(at.run, found.at.seq - 1)
    return None


def check_snapshot(content: Content, fetch: Fetch, decode: Decode) -> None:
    """Makes sure that a snapshot can be read.

    Args:
        content: what it holds.
        fetch: where blobs come from.
        decode: what makes frozen values of their JSON form.

    Raises:
        StoreError: if it cannot.
    """
    try:
        _rested(Content.stored(content.data, content.refs), fetch, decode, SnapshotEncoder())
    except _UNREADABLE as error:
        raise StoreError(f"a state at which a history is to begin cannot be read: {error}") from error


def _rested(content: Content, fetch: Fetch, decode: Decode, encoder: SnapshotEncoder) -> SnapshotState:
    if not content.is_encoded:
        rested: SnapshotState = content.value(fetch)
        return rested
    budget = ReadBudget()
    try:
        version, place, form = json.loads(budget.inflate(content.data))
        if version != VERSION:
            raise StateError(f"its form has version {version}, this dspyer knows version {VERSION}")
        return SnapshotState(encoder.load(form, content.refs, fetch, decode, budget), place)
    except RecursionError:
        raise StateError("its form is nested too deep") from None


class RecoveredState(NamedTuple):
    """What is behind a row.

    Attributes:
        state: the last state that all branches of its run shared.
        next_version: the version that the next commit gets.
        last_run: the run that the row belongs to, as far as it was read.
        tail: how many rows were read.
        encoder: what is known of the encoder of earlier states.
        broken: why a commit behind the row cannot be read; "" if all can. State and version are those before it.
        last_good: the row of the last commit that can be read, if one cannot; None if there is none.
        segments: what was read.
        snapshot_at: the row of the snapshot behind which that begins; None if it begins with the first run.
    """

    state: ImmutableState
    next_version: int
    last_run: RunRows
    tail: int
    encoder: SnapshotEncoder
    broken: str = ""
    last_good: Point | None = None
    segments: tuple[LogSegment, ...] = ()
    snapshot_at: Point | None = None


class LogSegment(NamedTuple):
    """The rows of a run, or those behind a snapshot of it, with what they say.

    Attributes:
        part: the rows.
        folded: their commits with states; behind a snapshot, the first is that of the snapshot, as an empty
            one.
        before: the state before them.
        place: the number of the snapshot's commit among those of the run; None for a run that is there as a whole.
    """

    part: RunRows
    folded: FoldedRun
    before: ImmutableState
    place: int | None


def recover_state(reader: HistoryReader, at: Point) -> RecoveredState:
    """What is behind a row: read back to the last snapshot, or to the first run.

    Args:
        reader: reads rows.
        at: the row.

    Raises:
        StoreError: if a run is not there.
    """
    parts, found = _back(reader, at)
    segments = _told(reader, parts, found)
    *_, (part, folded, _, behind) = segments
    place = folded.last_settled + (behind or 0)
    first = int(part.run.header.get("first", 0)) + place + 1
    encoder = SnapshotEncoder() if found is None else found[2]
    if folded.broken:
        last_good = _last_good(part, folded.last_settled, behind is not None)
        return RecoveredState(folded.trunk_state, first, parts[-1], len(part.rows), encoder, folded.broken, last_good)
    tail = sum(len(part.rows) for part in parts)
    base = None if found is None else found[0]
    return RecoveredState(
        folded.trunk_state, first, parts[-1], tail, encoder, segments=tuple(segments), snapshot_at=base
    )


def segments_before(reader: HistoryReader, base: Point) -> tuple[list[LogSegment], Point | None]:
    """What comes before a snapshot, from the snapshot before it on; and the row of that one.

    Args:
        reader: reads rows.
        base: the row of the snapshot.
    """
    parts, found = _back(reader, base, before=True)
    return _told(reader, parts, found), None if found is None else found[0]


def fold_segment(
    reader: HistoryReader,
    part: RunRows,
    found: tuple[Point, SnapshotState, SnapshotEncoder] | None,
    state: ImmutableState,
) -> LogSegment:
    """A run, or a part of it, with what it says.

    Args:
        reader: reads rows.
        part: the rows.
        found: the snapshot at the first of them; None if the run is there from its beginning.
        state: the state before them.
    """
    place = None if found is None else found[1].commit_index
    return LogSegment(part, reader.fold(part if place is None else _after(part, place), state), state, place)


def _told(
    reader: HistoryReader, parts: list[RunRows], found: tuple[Point, SnapshotState, SnapshotEncoder] | None
) -> list[LogSegment]:
    """What runs that follow each other say, up to the first that cannot be read."""
    segments: list[LogSegment] = []
    state = ImmutableState() if found is None else found[1].state
    for number, part in enumerate(parts):
        segment = fold_segment(reader, part, None if number else found, state)
        segments.append(segment)
        state = segment.folded.trunk_state
        if segment.folded.broken:
            break
    return segments


def rows_from_snapshot(store: Store, run: RunRow, first: int, last: int) -> RunRows:
    """The rows of a run from a snapshot on, its own row first.

    Args:
        store: where they are kept.
        run: the run.
        first: the row of the snapshot.
        last: the last row.

    Raises:
        StoreError: if the last row is not there: another process may have removed it since the snapshot was read.
    """
    at = Point(run.id, first)
    found = store.rows(run.id, first, last)
    if not found or found[-1].seq != last:
        raise StoreError(f"the store {store.address!r} has no row {last} of run {run.id!r}, which a thread needs")
    return rows_of_part(run, tuple(with_map_results(found, partial(_rows_up_to, store, at))))


def rows_of_part(run: RunRow, rows: tuple[Row, ...]) -> RunRows:
    """Some rows of one part of a run."""
    header, points = run.header, tuple([Point(run.id, row.seq) for row in rows])
    labels, shapes = {run.id: str(header.get("label", run.id))}, {run.id: str(header.get("shape", ""))}
    return RunRows(run, run.parents, rows, points, labels, shapes)


def _back(
    reader: HistoryReader, at: Point, before: bool = False
) -> tuple[list[RunRows], tuple[Point, SnapshotState, SnapshotEncoder] | None]:
    """The runs behind a row, oldest first, from the last snapshot on: with `before`, from the one before the row."""
    store = reader.store
    parts: list[RunRows] = []
    ancestry = RunAncestry(store)
    while True:
        run = load_run(store, at.run)
        ancestry.visit(run.id)
        found = latest_snapshot(store, Point(at.run, at.seq - before), reader.decode)
        before = False
        if found is not None:
            return [rows_from_snapshot(store, run, found[0].seq, at.seq), *reversed(parts)], found
        part = read_run(store, at)
        parts.append(part)
        if not part.parents:
            return parts[::-1], None
        at = part.parents[0]


def _last_good(part: RunRows, settled: int, cut: bool) -> Point | None:
    """The row of a commit of a run by its number; that which the run goes on from, if it has none."""
    points = [part.points[0]] if cut else []
    points += [
        point
        for row, point in zip(part.rows, part.points, strict=True)
        if row.kind in COMMITS and not CommitHeader.parse(row.header).scope and point not in points
    ]
    if settled >= 0:
        return points[settled]
    return part.parents[0] if part.parents else None


def _rows_up_to(store: Store, at: Point) -> tuple[Row, ...]:
    return read_run(store, at).rows


def _after(part: RunRows, place: int) -> RunRows:
    """The rows of a run from a snapshot on, as rows of a run that begins there: with an empty commit."""
    began, *rest = part.rows
    shifted = [_shifted(row, place) if row.kind in COMMITS else row for row in rest]
    name, node = ("", "") if began.kind not in COMMITS else CommitHeader.parse(began.header)[:2]
    head = CommitHeader(name or "trunk:0", node or "START", 0, 1, True, (), None, (), 0, 0)
    opening = Row(began.seq, RowKind.COMMIT, head.pack(), Content(CommitContent({}), encode_commit_content))
    ended = [Row(began.seq, RowKind.END, began.header, began.content)] if began.kind == RowKind.END else []
    return part._replace(rows=(opening, *ended, *shifted))


def _shifted(row: Row, place: int) -> Row:
    head = CommitHeader.parse(row.header)
    if head.scope or head.parents is None:
        return row
    return row._replace(header=head._replace(parents=tuple([parent - place for parent in head.parents])).pack())
