"""Runs with `on_conflict="merge"`: they start at once next to other runs, and are merged into the thread at their end.

Such a run owns nothing. It begins with a commit that it has in common with the thread, so that its end can be merged
like a copy of the thread (`threads.merging`). The merge is a compare-and-swap loop: read the head, merge, write under
the epoch that was read; if another run wrote meanwhile, start over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any

from dspyer.errors import ConcurrentRunError, StoreError, ThreadError
from dspyer.events import Commit
from dspyer.failure import Failure
from dspyer.ids import FIRST, full_id, label_of
from dspyer.log.journal import MARK, Journal, is_alive, leases, mark_of, new_owner
from dspyer.log.reader import AT_END, SnapshotState, read_run, snapshot_content
from dspyer.log.rows import end_row
from dspyer.runtime.request import Request
from dspyer.runtime.run import Run
from dspyer.scheduler.topology import END, START
from dspyer.state import ImmutableState
from dspyer.stores.base import Change, Point, Snapshot, ThreadRow
from dspyer.threads.changes import ThreadMerger, one_commit_run, write_manual_commit
from dspyer.threads.ownership import HandOver, OwnedRun, ThreadLock, busy, check_no_owner, pauses
from dspyer.threads.start import RunStarter, ThreadHead

SNAPSHOT_ROWS = 24
"""Rows since the last snapshot after which a merge writes one."""


class MergeOnFinish:
    """Starts runs that own no thread, and merges each into the thread when it has finished."""

    def __init__(self, starter: RunStarter, merger: ThreadMerger) -> None:
        self._starter = starter
        self._merger = merger

    def start(self, inputs: Mapping[str, Any], request: Request, hand_over: HandOver, *, abandon: bool) -> None:
        """Write a new run that continues from the head of the thread, without acquiring the thread."""
        starter = self._starter
        label = label_of(starter.thread, token_hex(4))  # not numbered: other runs may start at the same time
        row = starter.store.thread(starter.thread) or ThreadRow(starter.thread, None, 0)
        if row.head is None:
            starter.new_run(starter.load_head(), inputs, request, label)  # refused inputs must not begin a thread
            self._write_first_commit(row)
        head = self._common_head(abandon)
        first, owner = starter.new_run(head, inputs, request, label), new_owner()
        run = first.run._replace(header={**first.run.header, MARK: mark_of(owner)})
        rows = [row.numbered(seq) for seq, row in enumerate(first.rows)]
        journal = Journal(starter.store, "", 0, run.id, len(rows))
        journal.continue_after(run, rows, (), head.tail)
        # Nothing is renewed: it owns no thread. Readers in this process learn from it that the run is at work.
        leases.hold(owner.token, journal)
        try:
            starter.store.write(Change(run=run, rows_of=run.id, rows=rows))
            first.records.journal = journal
            started = replace(request, run_start=first.start, records=first.records)
            hand_over(OwnedRun(started, journal, owner))
        except BaseException:
            leases.let_go(owner.token)
            raise

    def attempts(self, run: Run, lock: ThreadLock) -> Iterator[float]:
        """Merge a finished run that does not own its thread into it; nothing to do for a run that owns it.

        Yields the seconds to sleep before each next attempt: the caller sleeps, and may give up there. A run that
        cannot be merged becomes a failed one; its commits stay in the store.
        """
        journal = None if lock.owned is None else lock.owned.journal
        if lock.owned is None or journal is None or journal.thread or run.status in ("failed", "stopped"):
            return
        thread = self._starter.thread
        try:
            if run.status != "completed":
                raise ThreadError(
                    'the run waits for answers, and resume() cannot find a run with on_conflict="merge": use '
                    f'on_conflict="wait" on thread {thread!r}, or supply the answers with compile(answers={{...}})'
                )
            yield from self._merge(Point(journal.run, journal.seq - 1), lock.patience)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the error of the run
            run.status, run.error = "failed", error
            if not isinstance(error, StoreError):  # a store that fails cannot be written to
                # In a function of its own: its locals refer to the error, whose traceback refers to this frame.
                _write_failed(journal, f"join:{thread}", error, run, lock.owned.request)
        finally:
            del run, lock  # the traceback of an error refers to this frame

    def _merge(self, run_end: Point, patience: float) -> Iterator[float]:
        """Merge the run that ends at a row, as soon as no run owns the thread; yields the pauses between attempts."""
        for pause in pauses(patience):
            with suppress(ConcurrentRunError):
                self._try_merge(run_end)
                return
            # Wait for the owner of the thread to finish, or try again after another merge: 1 ms doubling to 50 ms,
            # `patience` seconds in all. No jitter: of merges that collide, one has succeeded.
            yield pause
        self._try_merge(run_end)  # the time is over: a last attempt, whose error is raised

    def _try_merge(self, run_end: Point) -> None:
        """Merge once, or raise `ConcurrentRunError` if the thread has an owner, or a new head since it was read."""
        starter, store = self._starter, self._starter.store
        row = store.thread(starter.thread)
        if row is None or row.head is None:
            raise ThreadError(f"thread {starter.thread!r} was deleted while a run with on_conflict='merge' was at work")
        check_no_owner(row)
        if row.head in read_run(store, run_end).parents:  # nothing was written meanwhile: a fast-forward
            store.write(Change(starter.thread, row.epoch, row.epoch + 1, lease=0.0, head=run_end, flush=True))
            return
        head = starter.load_head()
        thread_end = head.row.head
        if head.open or thread_end is None:
            raise head.open_error()
        starter.compatibility.check_graph(head.last_run)
        side = row._replace(head=run_end)
        merged = self._merger.merge_commits(head.row, side, starter.thread, starter.graph.topology.policies)
        if merged is None:
            return
        commit = self._merger.merge_commit(head, (thread_end, run_end), merged, starter.thread)
        taken = None
        if head.tail.rows >= SNAPSHOT_ROWS and head.tail.snapshot_is_due(AT_END, ended=True):
            at = Point(commit.run.id, len(commit.rows) - 1)
            taken = Snapshot(
                at, snapshot_content(SnapshotState(merged.state, 0, full_id(commit.run.header["label"], FIRST)))
            )
        write_manual_commit(store, head.row, commit, taken)
        self._merger.log_conflicts(merged)

    def _common_head(self, abandon: bool) -> ThreadHead:
        """The head to continue from: while a run owns the thread, the commit with which that run began.

        The thread keeps this commit whatever becomes of the owner's run, so that all runs have it in common.
        """
        starter = self._starter
        head = starter.readable_head()
        if not head.open or head.row.head is None:
            return head
        if not is_alive(head.row):
            if not abandon:
                raise head.open_error()
            return head
        running = read_run(starter.store, head.row.head)
        if not running.parents:
            raise busy(head.row)  # the first run of the thread: there is no commit before it to start from
        before = starter.head_at(head.row._replace(head=running.parents[0]), running.parents[0])
        if before.broken:
            raise before.broken_error()
        return before

    def _write_first_commit(self, row: ThreadRow) -> None:
        """Begin a thread with a commit of the defaults of its fields, which all runs then have in common."""
        starter, label = self._starter, label_of(row.name, row.runs + 1)
        schema = starter.graph.topology.schema
        patch, state = schema.begin(ImmutableState(), {}, keep=None, commit_id=full_id(label, FIRST))
        commit = Commit(FIRST, 0, START, (), 1, 0, patch, (), route=(END,), started=time.time())
        write_manual_commit(starter.store, row, one_commit_run(starter, None, label, (), commit, state))


def _write_failed(journal: Journal, node: str, error: Exception, run: Run, request: Request) -> None:
    """Write the end of a run that could not be merged."""
    assert request.records is not None
    failures = [(Failure.of(error, node=node), error)]
    end = end_row("failed", None, failures, run.usage, len(run.commits), request.records.totals_before)
    journal.write([end], flush=True)
