"""The whole history behind some rows: the commits of all runs as one log, whose parents lead from run to run.

`History` is that log; it only grows. `CommitListing` is what people see of it from one row: commits in canonical order,
with versions. A commit is *settled* if no other branch was active after it; a version counts the commits up to the last
settled one. The last section reads a part of a long history without the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from threading import Lock
from typing import Any, NamedTuple

from dspyer.errors import StoreError
from dspyer.events import Commit
from dspyer.ids import FIRST, Address, commit_name, full_id, outermost_execution
from dspyer.log.reader import (
    EVERY,
    PRUNED,
    UNKNOWN,
    HistoryReader,
    LoadedSnapshot,
    OwnCommit,
    RecoveredState,
    RunAncestry,
    RunRows,
    SinceSnapshot,
    commit_header,
    latest_snapshot,
    load_run,
    newest_rows,
    own_commit,
    parents_first,
    read_run,
    read_runs,
    rows_of_part,
    rows_through,
    with_map_results,
    with_opening,
)
from dspyer.log.rows import (
    COMMITS,
    RECORDS,
    CommitRow,
    OpenRow,
    RowKind,
    UnreadablePatch,
    first_version,
    is_settled,
)
from dspyer.patch import Replace, apply, seal
from dspyer.record_codec import changed
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.provenance import FieldIndex, FieldIndexes, IndexedField, Writers
from dspyer.scheduler.topology import START
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, Row, RunRow, Store
from dspyer.stores.sql import DAMAGED
from dspyer.values.frozen import FrozenDict
from dspyer.values.persistent import PersistentMap
from dspyer.values.scalars import KeyPath

# --- One log


@dataclass(slots=True)
class LoggedRun:
    """A run in the log. It grows while rows of it are folded.

    Attributes:
        state: the state that it continues from.
        heads: the log indexes of the commits that it continues from.
        first: the version of its first commit in the log.
        parents: the rows that it continues from.
        broken: why one of its commits, or an ancestor, cannot be read; "" if all can.
        trunk_index: the log index of the last settled commit, if need be of an earlier run; None without one.
        fingerprints: the ids of the fingerprints of the graphs that made it.
        settled_count: number of its commits up to the last settled one.
        ids: the local ids of its commits, in the order of writing.
        log_indexes: their log indexes.
    """

    state: ImmutableState
    heads: list[int]
    first: int
    parents: tuple[Point, ...]
    broken: str
    trunk_index: int | None
    fingerprints: frozenset[str]
    settled_count: int = 0
    ids: list[str] = field(default_factory=list)
    log_indexes: list[int] = field(default_factory=list)


class History:
    """The commits of many runs as one log. It grows with `read`; what is in it never changes, but for the
    route of a manual commit whose run is resumed later.

    The id of a commit is its global id, for example `"t-42.1/trunk:3"`: what `ctx.execution` is in its node. It has no
    version here, since that depends on the row from which the history is listed, and its `step` is the length of the
    longest chain of commits up to it over all runs.

    A part of a history may begin at a snapshot. Then its first entry is no commit of it: it has the state and the id of
    the commit before the part.

    Attributes:
        log: the commits.
        points: the row of each.
        steps: the step of each within its run.
        settled: whether no other branch was active after it, for each.
        runs: the runs in the log, by their last row.
        roots: the rows at which a pruned history begins: the commit there has the whole state as its patch.
        snapshot_at: the row of the snapshot at which this part begins; None if it begins with a first run.
        ends_open: whether a part ends with a manual commit whose run was not resumed yet: a resume finds out its route.
        is_line: whether each run continues the one before it, and all commits can be read.
    """

    def __init__(self, reader: HistoryReader) -> None:
        self.reader = reader
        self.log: list[LogEntry] = []
        self.points: list[Point] = []
        self.steps: list[int] = []
        self.settled: list[bool] = []
        self.runs: dict[Point, LoggedRun] = {}
        self.roots: set[Point] = set()
        self.snapshot_at: Point | None = None
        self.is_line = True
        self.ends_open = False
        self._index_of: dict[Point, int] = {}

    def read(self, heads: Sequence[Point], root: Point | None = None) -> None:
        """Add the runs behind some rows; `root` is the row at which a pruned history begins."""
        for run_rows in read_runs(self.reader.store, heads, root, self.runs):
            snapshot = None
            if root is not None and run_rows.points[-1] == root:
                snapshot = latest_snapshot(self.reader.store, root, self.reader.decode)
                if snapshot is None or snapshot.at != root:
                    raise StoreError(
                        f"older history was pruned at row {root.seq} of run {root.run!r}, and its snapshot is lost"
                    )
                self.roots.add(root)
            self.add(run_rows._replace(snapshot=snapshot), root)

    def state(self, log_index: int | None) -> ImmutableState:
        """Return the state after a commit; an empty one for None."""
        return ImmutableState() if log_index is None else self.log[log_index].state

    def runs_behind(self, heads: Iterable[Point]) -> list[Point]:
        """Return the last rows of the runs behind some rows, parents first, as `read_runs` orders them."""
        return parents_first(self.reader.store, list(heads), lambda at: self.runs[at].parents)

    def canonical_order(self, at: Point) -> list[int]:
        """Return the log indexes of a run's commits in canonical order, those of forks that have not joined last."""
        run = self.runs[at]
        settled = set(run.log_indexes[: run.settled_count])

        def order(index: int) -> tuple[bool, int, tuple[int, ...]]:
            return index not in settled, self.steps[index], self.log[index].commit.branch

        return sorted(dict.fromkeys(run.log_indexes), key=order)

    def count_settled_not_in(self, left: Point, right: Point) -> int:
        """Return the number of commits with a version behind `right` that are not behind `left`."""
        left_runs = self.runs_behind([left])
        right_runs = [self.runs[at] for at in self.runs_behind([right]) if at not in set(left_runs)]
        known = {index for at in left_runs for index in self.runs[at].log_indexes}
        return len({index for run in right_runs for index in run.log_indexes[: run.settled_count]} - known)

    def add(
        self, run_rows: RunRows, root: Point | None = None, before: tuple[ImmutableState, str] | None = None
    ) -> LoggedRun:
        """Fold a run whose parents were added, or what is behind a snapshot of a run, to commits with their states.

        `before` is the state before a run whose parents were not added, and why it cannot be read; "" if it can.

        The first commit that cannot be read, and those after it, have an `UnreadablePatch` and the state of their
        parent. Rows that it shares with a run in the log, which it continues, are in the log already.
        """
        parents = tuple([parent for parent in run_rows.parents if parent in self.runs])
        trunks = [self.runs[parent].trunk_index for parent in parents]
        broken = next((self.runs[parent].broken for parent in parents if self.runs[parent].broken), "")
        state, broken = before or (self.state(trunks[0] if trunks else None), broken)
        snapshot = run_rows.snapshot
        heads = [index for index in trunks if index is not None]
        last = next(reversed(self.runs.values()), None)
        trunk, graphs = next(iter(trunks), None), frozenset(run_rows.fingerprints.values())
        if (
            len(graphs) < 2
        ):  # if that graph cannot be read, no commit can: of a store without its key, one error says so
            self.reader.schema_of(run_rows.fingerprint)
        run = LoggedRun(state, heads, first_version(run_rows.run), parents, broken, trunk, graphs)
        commits = list(run_rows.own_commits())
        if snapshot is not None:
            run.first += snapshot.content.commit_index
            if snapshot.at not in self.roots:
                self.snapshot_at = snapshot.at
            self._add_snapshot(run, run_rows, snapshot, root)
        else:
            commits = self._from_opening(run_rows, commits)
        self.grow(run, run_rows, commits)
        self.runs[run_rows.points[-1]] = run
        self.is_line &= not run.broken and (snapshot is not None or parents == run_rows.parents)
        self.is_line &= last is None or run.first == last.first + last.settled_count
        return run

    def grow(self, run: LoggedRun, rows: RunRows, commits: Iterable[OwnCommit]) -> None:
        """Fold commits of a run that come after those that were folded; `rows` are those with which it was added."""
        for row, point, header in commits:
            index = self._index_of.get(point)
            if index is None:
                index = self._fold(run, rows, row, point, header)
            elif header.route != self.log[index].commit.route:
                self._set_route(index, row, header)
            patch = self.log[index].commit.patch
            run.broken = run.broken or (patch.error if isinstance(patch, UnreadablePatch) else "")
            run.ids.append(header.id)
            run.log_indexes.append(index)
            if header.settled and not run.broken:
                run.settled_count, run.trunk_index = len(run.log_indexes), index

    def _from_opening(self, run_rows: RunRows, commits: list[OwnCommit]) -> list[OwnCommit]:
        """Return the commits of a whole run, the first of which is in its open row, too.

        Its point is that of the open row: a manual commit had this point already before its run was resumed, when there
        was no commit row.
        """
        rows = zip(run_rows.rows, run_rows.points, strict=True)
        row, at = next(((row, at) for row, at in rows if row.kind == RowKind.OPEN), (None, None))
        if row is None or at is None:
            return commits
        if commits:
            self.ends_open = False
            return [(commits[0][0], at, commits[0][2]), *commits[1:]]
        with suppress(StoreError):  # what the first commit needs of it is read again, and says what is wrong
            if (node := OpenRow.of(row).node) != START:
                self.ends_open = True
                return [(row, at, CommitRow(id=FIRST, node=node))]
        return []

    def _add_snapshot(self, run: LoggedRun, rows: RunRows, snapshot: LoadedSnapshot, root: Point | None) -> None:
        """Add the state of a snapshot as a commit that has the whole of it as its patch."""
        row, at, name = rows.rows[0], rows.points[0], snapshot.content.commit
        if root is not None and snapshot.at == root:
            name = full_id(rows.labels[root.run], PRUNED)
        index = self._index_of.get(at)
        if index is None:
            state = snapshot.content.state
            patch = seal({field: Replace(value) for field, value in state.raw_items()})
            commit = Commit(name, None, PRUNED, (), 1, 0, patch, self._ids(run.heads))
            index = self._append(LogEntry(commit, state, tuple(run.heads), _NO_COUNTS), at, is_settled(row))
        run.ids.append(name)
        run.log_indexes.append(index)
        run.settled_count, run.trunk_index = 1, index

    def _fold(self, run: LoggedRun, rows: RunRows, row: Row, at: Point, header: CommitRow) -> int:
        """Add a commit of a run, and return its index."""
        heads, state, broken = run.log_indexes[-1:] or run.heads, run.state, run.broken
        name = full_id(rows.labels.get(at.run, at.run), header.id)
        try:
            if header.parents:  # as indexes among the commits of the run, of which a snapshot has left out some
                offset = 0 if rows.snapshot is None else rows.snapshot.content.commit_index
                heads = [run.log_indexes[parent - offset] for parent in header.parents]
            if run.log_indexes:
                state = self.log[heads[0]].state
            if not broken:
                schema = self.reader.schema_of(rows.fingerprints.get(at.run, rows.fingerprint))
                entry = self._entry(run, rows, row, schema, header, name, heads, state)
                return self._append(entry, at, is_settled(row))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this row, the others stay readable
            which = f"commit {header.id} of {header.node!r} cannot be read: {type(error).__name__}: "
            broken = str(error) if header.node == UNKNOWN else f"{which}{error}"
        # One of an unknown author is shown after the commit before it.
        step = self.steps[run.log_indexes[-1]] + 1 if header.node == UNKNOWN and run.log_indexes else header.step
        lost = replace(header, step=step, patch=UnreadablePatch(broken), reason=None, failure=None, failed=())
        commit = self.reader.commit(lost, name, self._ids(heads))
        return self._append(LogEntry(commit, state, tuple(heads), _NO_COUNTS), at, is_settled(row))

    def _entry(
        self,
        run: LoggedRun,
        rows: RunRows,
        row: Row,
        schema: Schema,
        header: CommitRow,
        name: str,
        heads: list[int],
        state: ImmutableState,
    ) -> LogEntry:
        reader = self.reader
        if header.node == UNKNOWN:
            CommitRow.of(row)  # raises what is wrong with it
        record = header.filled(row, reader.fetch, reader.decode)
        if record.patch is None or row.kind == RowKind.OPEN:
            opening = reader.opening(rows.rows)
            record = with_opening(record, opening) if opening else replace(record, patch=FrozenDict())
        commit = reader.commit(record, name, self._ids(heads))
        if row.kind in (RowKind.JOIN, RowKind.MERGE):
            after = apply(state, record.made)
            commit = schema.with_sizes(commit, record.made, after)
            winners = self._winners(run, record, heads)
            return LogEntry(commit, after, tuple(heads), _NO_COUNTS, winners, record.plain_conflicts())
        patch = record.patch or {}
        after = schema.replay(state, patch, record.made)
        commit = schema.with_sizes(commit, patch, after)
        return LogEntry(commit, after, tuple(heads), _NO_COUNTS, sends=record.sent)

    def _winners(self, run: LoggedRun, record: CommitRow, heads: list[int]) -> dict[KeyPath, int]:
        """Return by path the commit whose value a join, or a merge of threads, has kept."""
        here = len(self.log)
        if record.kind == RowKind.MERGE:  # of which a part of a history lacks one side
            return record.winner_indexes(here, lambda at: self.log[at].commit.id) if len(heads) > 1 else {}
        found = record.winner_indexes(len(run.ids), run.ids.__getitem__)
        return {path: here if at == len(run.ids) else run.log_indexes[at] for path, at in found.items()}

    def _set_route(self, index: int, row: Row, header: CommitRow) -> None:
        """Note where a manual commit led that was read before its run was resumed: its route was not known then."""
        with suppress(Exception):  # a resume, which needs the content, says what is wrong with it
            header.filled(row, self.reader.fetch, self.reader.decode)
        known = self.log[index]
        commit = changed(known.commit, route=header.route, reason=header.reason)
        self.log[index] = known._replace(commit=commit, sends=header.sent)
        self.settled[index] = is_settled(row)

    def _ids(self, indexes: Iterable[int]) -> tuple[str, ...]:
        return tuple([self.log[index].commit.id for index in indexes])

    def _append(self, entry: LogEntry, at: Point, settled: bool) -> int:
        """Add an entry, and return its index."""
        self._index_of[at] = index = len(self.log)
        self.log.append(entry._replace(commit=changed(entry.commit, step=self._step(entry))))
        self.points.append(at)
        self.steps.append(entry.commit.step)
        self.settled.append(settled)
        return index

    def _step(self, entry: LogEntry) -> int:
        """Return the step of a commit in the whole log."""
        return 1 + max([self.log[parent].commit.step for parent in entry.parents], default=-1)


class FoldedRun(History):
    """The commits of one run, folded alone, in the order of writing, with ids, indexes and steps within the run.

    Args:
        reader: folds rows.
        run_rows: its rows.
        state: that before it.
        broken: why that cannot be read; "" if it can.

    Attributes:
        run: the run as a log has it.
    """

    def __init__(self, reader: HistoryReader, run_rows: RunRows, state: ImmutableState, broken: str = "") -> None:
        super().__init__(reader)
        self._rows = run_rows._replace(labels=dict.fromkeys(run_rows.labels, ""))
        self.run = self.add(self._rows, before=(state, broken))

    @property
    def trunk_state(self) -> ImmutableState:
        """The last state at which a single branch was active."""
        at = self.run.trunk_index
        return self.run.state if at is None else self.log[at].state

    def read_on(self, rows: Iterable[Row], last: Point) -> None:
        """Fold rows of its newest part that were written since; `last` is the last one."""
        found = [(row, own_commit(row)) for row in rows]
        self.grow(
            self.run,
            self._rows,
            [(row, Point(last.run, row.seq), header) for row, header in found if header is not None],
        )

    def _step(self, entry: LogEntry) -> int:
        return entry.commit.step


_NO_COUNTS: PersistentMap[Any, int] = PersistentMap()


# --- Commits inside a node


def scoped_logs(
    reader: HistoryReader, run_rows: RunRows, wanted: Callable[[tuple[str, ...]], bool] = lambda _: True
) -> dict[tuple[str, ...], list[LogEntry]]:
    """Return the commits of a run by the executions around them, those of its own graph under `()`.

    They have no states, since what a graph inside of a node began with is not stored.
    """
    logs: dict[tuple[str, ...], list[LogEntry]] = {}
    for row, point in zip(run_rows.rows, run_rows.points, strict=True):
        header = CommitRow.of(row) if row.kind in COMMITS else None
        if header is None or not wanted(header.scope):
            continue
        # Rows without parents follow the one before them in their scope, whatever was written between the two.
        log = logs.setdefault(header.scope, [])
        before = (len(log) - 1,) if log else ()
        parents = before if header.parents is None else header.parents
        name = full_id(run_rows.labels.get(point.run, point.run), header.execution)
        record = header.filled(row, reader.fetch, reader.decode)
        commit = reader.commit(record, name, [log[parent].commit.id for parent in parents])
        log.append(LogEntry(commit, _NO_STATE, parents, None, sends=record.sent))
    return logs


_NO_STATE = ImmutableState()


# --- Listing


class CommitListing:
    """The commits behind a row in canonical order run by run, with versions over all of them.

    Order and versions of the commits behind a row never change: a thread that continues adds commits behind later rows.

    Args:
        history: has read what is behind the heads.
        heads: the row; two where threads are about to be merged.

    Attributes:
        history: the history.
        heads: the heads.
        commits: the commits. Those of forks that have not joined have no version and come last in their run.
        log_indexes: the index of each in the log of the history.
        runs: the last row of the run of each, as far as it is known here.
        first: the version of the first commit.
        before: of a part: by path, the commit before it that last wrote it, as far as it was asked for.
    """

    def __init__(self, history: History, heads: Sequence[Point]) -> None:
        self.history = history
        self.heads = tuple(heads)
        self.log_indexes: list[int] = []
        self.commits: list[Commit] = []
        self.runs: list[Point] = []
        runs = history.runs_behind(heads)
        self.first = history.runs[runs[0]].first + (history.snapshot_at is not None) if runs else 0
        self.before: dict[KeyPath, Commit] = {}
        self._by_version: list[int] = []
        self._by_id: dict[str, int] = {}
        self._places: dict[int, int] = {}  # the index of each commit by its log index
        self._indexes: dict[str, FieldIndexes | None] = {}
        self._lock = Lock()
        for at in runs:
            self._add(at)

    def _add(self, at: Point) -> None:
        history, run = self.history, self.history.runs[at]
        in_part = history.snapshot_at is not None
        settled = set(run.log_indexes[: run.settled_count])
        for log_index in history.canonical_order(at):
            if log_index in self._places or (in_part and not log_index):
                continue
            commit = history.log[log_index].commit
            version = None
            if log_index in settled:
                version = self.first + len(self._by_version)
                self._by_version.append(len(self.commits))
            self._places[log_index] = len(self.commits)
            self._by_id.setdefault(commit.id, len(self.commits))
            self.log_indexes.append(log_index)
            self.runs.append(at)
            self.commits.append(changed(commit, version=version, step=history.steps[log_index]))

    @property
    def next_version(self) -> int:
        """The version of the next commit."""
        return self.first + len(self._by_version)

    @property
    def trunk_index(self) -> int | None:
        """The log index of the last settled commit."""
        return self.history.runs[self.heads[-1]].trunk_index if self.heads else None

    def has(self, version: int | str, settled: bool = False) -> bool:
        """Return whether one of the commits, or of those with a version, has an id, global or within the last run."""
        try:
            index = self.index_of(version)
        except LookupError:
            return False
        return not settled or self.commits[index].version is not None

    def index_of(self, version: int | str) -> int:
        """Return the index in `commits` of a version or an id; an id without a run is one of the last run.

        Raises:
            LookupError: if there is no such commit.
            TypeError: if it is neither.
        """
        version = commit_name(version)
        if isinstance(version, str):
            if version in self._by_id:
                return self._by_id[version]
            newest: Sequence[int] = self.history.runs[self.heads[-1]].log_indexes if self.heads else ()
            for log_index in reversed(newest):
                name = self.history.log[log_index].commit.id
                if name.endswith(version) and Address.parse(name).own == version and name in self._by_id:
                    return self._by_id[name]
            like = f"; ids look like {self.commits[-1].id!r}" if self.commits else ""
            raise LookupError(f"no commit has the id {version!r}{like}")
        if self.first <= version < self.next_version:
            return self._by_version[version - self.first]
        if not self._by_version:
            raise LookupError(f"no commit has version {version}: no commit has one yet")
        span = f"they go from {self.first} to {self.next_version - 1}"
        raise LookupError(f"no commit has version {version}: {span}; others are known by their id")

    def log_index_of(self, version: int | str) -> int:
        """Return the index in the history's log of a version or an id."""
        return self.log_indexes[self.index_of(version)]

    def state(self, index: int) -> ImmutableState:
        """Return the state after a commit; raise `StoreError` if it, or an ancestor, cannot be read."""
        patch = self.commits[index].patch
        if isinstance(patch, UnreadablePatch):
            raise StoreError(patch.error)
        return self.history.log[self.log_indexes[index]].state

    def by_version(self, version: int) -> tuple[LogEntry, frozenset[str]]:
        """Return a commit with versions for log indexes, and the fingerprints of the graphs that made its run."""
        index = self._by_version[version - self.first]
        entry = self.history.log[self.log_indexes[index]]
        parents = tuple([self._version_at(parent) for parent in entry.parents])
        winners = {path: self._version_at(winner) for path, winner in entry.winners.items()}
        fingerprints = self.history.runs[self.runs[index]].fingerprints
        return entry._replace(commit=self.commits[index], parents=parents, winners=winners), fingerprints

    def _version_at(self, log_index: int) -> int:
        version = self.commits[self._places[log_index]].version if log_index in self._places else None
        return self.first - 1 if version is None else version

    @cached_property
    def writers(self) -> Writers:
        """The index of who wrote what."""
        return Writers(self.history.log, [] if self.history.snapshot_at is None else [0], self._parts)

    def last_writers(self, paths: Iterable[KeyPath], last: int | None) -> dict[KeyPath, Commit]:
        """Return by path the commit, up to one at a log index, that last wrote it; without those that none has."""
        writers = {} if last is None else {path: self.writers.of(last, path) for path in paths}
        return {path: self.commits[self._places[at]] for path, at in writers.items() if at is not None}

    def _parts(self, field: str, at: int) -> tuple[IndexedField, FieldIndex] | None:
        """The parts of a field; None if it has none, or graphs of these runs have folded it in different ways."""
        with self._lock:
            if field not in self._indexes:
                graphs = {graph for run in self.history.runs.values() for graph in run.fingerprints}
                found = [self.history.reader.schema_of(graph).fields.get(field) for graph in graphs]
                alike = all(one is not None and found[0] is not None and one.folds_like(found[0]) for one in found)
                of = IndexedField.of(found[0]) if found and alike else None
                self._indexes[field] = None if of is None else FieldIndexes(of)
            indexes = self._indexes[field]
            return None if indexes is None else (indexes.of, indexes.at(self.history.log, at))


# Recovery: the state at a row, from the last snapshot before it and the log behind that snapshot.
#
# This is the recovery of a database with checkpoints and a write-ahead log: load the last checkpoint, redo the log
# behind it. It is the redo pass of ARIES (Mohan et al. 1992); there is nothing to undo, since an execution writes its
# commit whole or not at all. The log of a thread is a chain of runs, so it is read backwards, run by run, to the
# first snapshot. Then it is folded forwards. A lost snapshot makes it longer and changes nothing else.


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


# Parts of a long history, each read from the snapshot before it: reading costs what is asked for, not what is there.
#
# A part is a listing as the whole history is one, but it begins at a snapshot. Where threads were merged, and for
# commits that cannot be read, the functions return `None`, and their callers read the whole history.


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
    if content.original is None and content.data[:1] == b"{":
        return any(mark in content.data for mark in marks)
    written: Any = RECORDS[row.kind].read(row, reader.fetch, reader.decode)
    return any(field in (written.patch or ()) for field in fields)
