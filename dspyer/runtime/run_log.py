"""The work of a session since its last write, and the rows that the next write stores.

A stored run has a `RunLog`. A run inside a node that may be attempted again has `KeptCommits`: the next attempt of the
node continues with what this one has committed, whether the run is stored or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from dspyer.errors import ConcurrentRunError, LMCallError
from dspyer.events import BranchPath, Commit, Event, LMCall
from dspyer.failure import Failure
from dspyer.ids import RunIds, is_manual_id, path_of_id, prefix_at, whole_execution
from dspyer.lm.tap import calls_so_far, usage_so_far
from dspyer.lm.tracing import Steps
from dspyer.log.execution_records import MISSING, ExecutionRecords, KeptRun, LMCallLog, StoredCalls, usage_by_node
from dspyer.log.journal import Journal
from dspyer.log.reader import HistoryReader, RecoveredState, SnapshotState, rows_of_part
from dspyer.log.rows import (
    COMMITS,
    NO_BLOBS,
    CommitRow,
    DraftRow,
    MapItems,
    RowKind,
    content_without,
    counted,
    end_row,
    fingerprint_id,
    frozen_conflicts,
    sum_usage,
)
from dspyer.nodes.node import Node
from dspyer.redaction import Redaction
from dspyer.runtime.request import Inside, RunStart
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.schedule import RunState
from dspyer.schema.schema import Schema
from dspyer.stores.base import Point, Row
from dspyer.values.freezing import same
from dspyer.values.frozen import FrozenList


def _commit_rows(
    first_patch: Mapping[str, Any],
    records: ExecutionRecords,
    ids: RunIds,
    nodes: Mapping[str, Node],
    first: int,
    run: RunState,
    lm_calls: LMCallLog | None = None,
    packed: list[LMCall] | None = None,
) -> list[DraftRow]:
    """The rows of the commits of a run from an index on.

    `lm_calls` has the LM calls that go with the commits; those in the rows are added to `packed`.
    """
    found: list[DraftRow] = []
    packed = [] if packed is None else packed
    for index in range(first, len(run.log)):
        entry = run.log[index]
        commit = entry.commit
        execution = ids.local_id(commit.id)
        calls: StoredCalls = (), NO_BLOBS
        if lm_calls is not None and lm_calls.waits:
            # Before the commit: whatever keeps the commit keeps these, too.
            found += lm_calls.rows_inside(execution, packed)
            calls = lm_calls.calls_of(execution, packed)
        if records.with_commit:  # before it, as these
            found += [row.row() for row in records.with_commit.get(execution, ())]
        made, schema, joined = {}, run.topology.schema, len(entry.parents) > 1
        if joined or (schema.user_folded and entry.parents):
            before, written = run.log[entry.parents[0]].state, None if joined else commit.patch
            made = schema.made(before, entry.state, written)
        winners = {path: run.log[winner].commit.id for path, winner in entry.winners.items()}
        items = _item_results(commit, nodes.get(commit.node), records, execution)
        record = CommitRow.of_commit(
            commit,
            kind=RowKind.JOIN if joined else RowKind.COMMIT,
            parents=None if entry.parents == ((index - 1,) if index else ()) else entry.parents,
            scope=ids.scope,
            items=items,
            sent=entry.sends,
            lm_calls=calls[0],
            made=made,
            conflicts=frozen_conflicts(entry.conflicts),
            winners=winners,
        )
        if commit.patch is first_patch:
            record.patch = None  # the open row of the run has it already
        # A store in memory, and the next attempt of the node around the run, read the results of a map in the record.
        found.append(record.row(calls[1], None if items is None else partial(content_without, items.field)))
    return found


class RunLog:
    """The rows that a stored run has still to write, and how its writes went.

    Attributes:
        journal: writes the rows.
        run: the run as it was last written: a failed write returns to it.
        events: the events to publish after the next write.
        error: that of a write: the store failed, or refused a row. The run has failed with it.
        end_written: whether the row that ends the run is written.
        stopped_at: the number of the row with which `thread.stop()` has ended the run; None if it has not.
    """

    def __init__(
        self, start: RunStart, records: ExecutionRecords, journal: Journal, ids: RunIds, nodes: Mapping[str, Node]
    ) -> None:
        self.journal = journal
        self.run = start.run
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self.end_written = False
        self.stopped_at: int | None = None
        self._records = records
        self._inside = bool(ids.scope)
        self._prefixes = start.id_prefixes, ids.prefix
        self._rows_since = partial(_commit_rows, start.patch, records, ids, nodes)
        self._lm_calls: list[LMCall] = []  # those in the rows of the commits

    @property
    def cannot_write(self) -> bool:
        """Tell if the store has failed, or another run owns the thread. A refused value lets later rows be written."""
        return self.error is not None and self.journal.broken is not None

    def lm_call_error(self) -> BaseException | None:
        """The reason why a recorded LM call cannot be stored; None if each can."""
        lm_calls = self._records.lm_calls
        return None if lm_calls is None else lm_calls.take_error()

    def new_rows(self, run: RunState) -> list[DraftRow]:
        """The rows of everything since the last write."""
        if (error := self.lm_call_error()) is not None:
            raise error
        commits = self._rows_since(len(self.run.log), run, self._records.lm_calls, self._lm_calls)
        return [*commits, *self._records.take_unwritten()]

    def failures(self) -> list[tuple[Failure, BaseException]]:
        """The words in the end row of a write that was refused."""
        error, refused = self.error, self.journal.refused_row
        if error is not None and refused is not None:
            node, path, execution = _origin(refused)
            return [(Failure.of(error, node=node, branch=path, execution=execution), error)]
        if isinstance(error, LMCallError):
            call = error.call
            shown = LMCallError(call, error.cause)  # without __cause__, which a traceback would show
            path, execution = path_of_id(call.execution), call.execution
            return [(Failure.of(shown, node=call.node, branch=path, execution=execution), shown)]
        return []

    def end_rows(
        self,
        run: RunState,
        status: str,
        failures: Sequence[tuple[Failure, BaseException]],
        hidden: list[Any] | str | None,
    ) -> list[DraftRow]:
        """The last rows of the run; `hidden` is what its program hides, as in these failures."""
        rows = self.new_rows(run)
        if self._records.lm_calls is not None:
            rows += self._records.lm_calls.rows_of()
        digest = self.journal.digest(rows)
        records = self._records
        usage = sum_usage((records.used_before, usage_so_far()))
        attempts = [attempt for failed in run.failures for attempt in failed.all_attempts]
        expires = records.first_expiry() if status == "interrupted" else None
        made = usage_by_node(calls_so_far(), (entry.commit for entry in run.log))
        nodes = sum_usage((records.nodes_before, made))
        steps, before = len(run.log), records.totals_before
        times = node_times(run.log)
        end = end_row(status, digest, failures, usage, steps, before, attempts, expires, times, nodes, hidden)
        return [*rows, end]

    def snapshot_state(self, run: RunState, rows: Sequence[DraftRow]) -> SnapshotState | None:
        """The state to store as a snapshot with some rows; None if none is due, or the rows end inside a fork."""
        ended = rows[-1].kind == RowKind.END
        if self._inside or not self.journal.tail.snapshot_is_due(counted(rows), ended):
            return None
        index = len(run.log) - 1
        last = run.log[index]
        if not (run.ended if ended else rows[-1].kind in COMMITS and last.commit.version is not None):
            return None
        return SnapshotState(last.state, index, prefix_at(index, *self._prefixes) + last.commit.id)

    def ended(self, run: RunState, end: DraftRow) -> None:
        """Marks the end of the run as written; the head that it has made of its thread is remembered."""
        self.end_written, journal = True, self.journal
        if run.ended and journal.thread and journal.run_row is not None:
            at = Point(journal.run, journal.seq - 1)
            last_run, model = rows_of_part(journal.run_row, (end.numbered(at.seq),)), run.topology.schema.model
            next_version = run.first + len(run.log)
            end_of_thread = RecoveredState(run.trunk_state, next_version, last_run, journal.tail)
            journal.store.heads.put(journal.thread, (at, journal.epoch, model), end_of_thread)

    def source(self, schema: Schema, redaction: Redaction | None) -> tuple[HistoryReader, str, Point] | None:
        """The place where the run can be read, up to its last row: none while its end is not written.

        The end is there if this run has written it, `thread.stop()` has, or the run was read as it was stored.
        """
        journal = self.journal
        ended = self.end_written or journal.epoch == 0
        last = journal.seq - 1 if ended else self.stopped_at
        if self._inside or last is None:
            return None
        shape = "" if journal.run_row is None else fingerprint_id(journal.run_row)
        return (
            HistoryReader(journal.store, schema, self._records.fetch_and_decode[1], shape, redaction),
            journal.thread,
            Point(journal.run, last),
        )

    def written(self, run: RunState) -> list[Event]:
        """Marks a run as written; returns the events that waited for it."""
        events, self.events, self.run = self.events, [], run
        self._lm_calls.clear()
        return events

    def failed(self, error: BaseException) -> RunState:
        """Notes that the store failed, or refused a value; returns the run as it was last written."""
        self.error = error
        if self._records.lm_calls is not None:
            self._records.lm_calls.put_back(self._lm_calls)
        if isinstance(error, ConcurrentRunError) and not self._inside:
            self.stopped_at = self.journal.stopped_at()
        self.written(self.run)  # drops the events: what they report was not stored
        return self.run


class KeptCommits:
    """The commits of a run inside a node, kept for the next attempt of the node, if there may be one.

    Attributes:
        posts: its posts to live fields, by arrival number.
        handed_over: whether that attempt has got it: the run goes on in a thread, and nothing counts any more.
    """

    def __init__(
        self,
        start: RunStart,
        records: ExecutionRecords,
        ids: RunIds,
        nodes: Mapping[str, Node],
        inside: Inside,
    ) -> None:
        self.posts = start.kept.posts
        self.handed_over = False
        self._before, self._known = start.kept, len(start.run.log)  # what earlier attempts have committed
        self._records, self._inside = records, inside
        self._rows_since = partial(_commit_rows, start.patch, records, ids, nodes)

    def keep(self, run: RunState, traces: Mapping[str, Steps]) -> None:
        """Keeps what a run has committed."""
        if self.handed_over or not self._inside.keeps_commits:
            return
        # Rows, and not the run: an attempt continues from what it would find after a crash, by the same replay.
        rows = [row.numbered(seq) for seq, row in enumerate(self._rows_since(self._known, run))]
        committed = {entry.commit.id for entry in run.log}
        # Of the trials of a node that has not committed, those that have ended are not made again.
        found = {
            name: steps for name, steps in list(traces.items()) if name in committed or whole_execution(name) != name
        }
        self._records.kept[self._inside.scope] = KeptRun(
            self._inside.attempts, (*self._before.rows, *rows), found, self.posts
        )


def _item_results(commit: Commit, node: Node | None, records: ExecutionRecords, execution: str) -> MapItems | None:
    """The results of a map, if item rows hold them already, so that the row of its commit does not repeat them."""
    if node is None or (mapped := node.mapped) is None:
        return None
    into, failures = mapped.into, mapped.failures
    results = commit.patch.get(into)
    if not isinstance(results, FrozenList) or not results:
        return None
    failed = () if failures is None else commit.patch.get(failures, ())
    found = MapItems(into, len(results), tuple([failure.index for failure in failed]))
    items = [records.items.get(name, MISSING) for name in found.ids(execution)]
    fits = all(one is two or same(one, two) for one, two in zip(items, results.raw_items(), strict=True))
    return found if fits else None


def _origin(row: Row) -> tuple[str, BranchPath, str]:
    """The node, branch and execution that an end row names for a refused row; its kind as the node if no commit."""
    if row.kind not in COMMITS:
        return row.kind, (), str(row.header.get("execution", ""))
    header = CommitRow.of(row)
    return header.node, header.branch, header.execution


def node_times(log: Iterable[LogEntry]) -> list[tuple[str, float]]:
    """The node of each commit that a node has made, and how many seconds it took."""
    commits = [entry.commit for entry in log if len(entry.parents) == 1]
    return [(one.node, one.duration) for one in commits if not is_manual_id(one.id)]
