"""Runs that start beside others, without owning their thread, and land at their end: `on_conflict="merge"`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from dspyer.errors import ConcurrentRunError, StoreError, ThreadError
from dspyer.events import Commit
from dspyer.persistence.journal import Journal
from dspyer.persistence.reader import read_run
from dspyer.persistence.rows import CommitContent, RowKind, digest, end_row, manual_commit_row
from dspyer.persistence.snapshots import SnapshotState, load_snapshot_head, snapshot
from dspyer.runtime.request import Request
from dspyer.runtime.run import Run
from dspyer.scheduler.topology import END, START
from dspyer.state import ImmutableState
from dspyer.stores.base import Change, Point, RunRow, ThreadRow
from dspyer.threads.cuts import ManualCommit
from dspyer.threads.owning import busy, is_alive, new_owner, pauses
from dspyer.threads.rest import ThreadHead
from dspyer.threads.starting import OwnedRun
from dspyer.threads.travel import Travel

SNAPSHOT = 24
"""Rows since the last snapshot after which a merge takes one."""


class MergeOnFinish(Travel):
    """Starts runs that own no thread, and merges what they have done into it."""

    def _begin_beside(self, inputs: Mapping[str, Any], request: Request, abandon: bool) -> OwnedRun:
        """Begins a run that goes on from where the thread stands, and leaves it to others meanwhile."""
        starter, rest = self._starter, self._ground(abandon)
        label = f"{self.name}.{token_hex(4)}"  # others begin at the same time
        ahead = starter.ahead(rest, inputs, request, label)
        rows = [draft.numbered(seq) for seq, draft in enumerate(ahead.drafts)]
        starter.store.write(Change(run=ahead.run, rows_of=ahead.run.id, rows=rows))
        journal = Journal(starter.store, "", 0, ahead.run.id, len(rows), starter.blueprint.durability)
        if rest.forms is not None:
            journal.goes_on(rest.tail + len(rows), rest.forms)
        request.opening, request.memo, request.journal = ahead.opening, ahead.memo, journal
        return OwnedRun(request, journal, new_owner())

    def _ground(self, abandon: bool) -> ThreadHead:
        """What a run goes on from: all that start together need one commit that they have in common."""
        starter = self._starter
        row = starter.store.thread(self.name)
        if row is None or row.head is None:
            self._found(row or ThreadRow(self.name, None, 0))
        rest = starter.rest()
        if rest.broken:
            raise rest.broken_error()
        if not rest.open or rest.row.head is None:
            return rest
        if not is_alive(rest.row):
            if not abandon:
                raise rest.open_error()
            return rest
        running = read_run(starter.store, rest.row.head)
        if not running.parents:
            raise busy(rest.row)  # there is nothing yet that both could go on from
        at = running.parents[0]
        found = load_snapshot_head(starter.reader, at)
        return ThreadHead(rest.row._replace(head=at), found.last, found.state, found.first, found.tail, found.forms)

    def _found(self, row: ThreadRow) -> None:
        """Begins a thread with the defaults of its fields."""
        starter, label = self._starter, f"{self.name}.{row.runs + 1}"
        schema = starter.blueprint.topology.schema
        patch, state = schema.begin(ImmutableState(), {}, keep=None, commit_id=f"{label}/trunk:0")
        commit = Commit("trunk:0", 0, START, (), 1, 0, patch, (), route=(END,), started=time.time())
        begun = manual_commit_row(RowKind.UPDATE, commit, CommitContent(patch), starter.fitting.beside)
        drafts = [begun, end_row("completed", digest(state), ())]
        self._write(
            row, ManualCommit(RunRow(token_hex(16), self.name, (), starter.header(0, label)), drafts), self.name
        )

    def _landed(self, run: Run, request: Request, patience: float) -> Run:
        """Brings what a run has done into the thread; one that owns its thread is there already."""
        journal = request.journal
        if journal is None or journal.thread or run.status in ("failed", "stopped"):
            return run
        try:
            if run.status != "completed":
                raise ThreadError(
                    f'the run waits for answers, and a run with on_conflict="merge" is nowhere that '
                    f'resume() could find it: use on_conflict="wait" on thread {self.name!r}, or supply the answers '
                    "with compile(interrupts={...})"
                )
            self._land(Point(journal.run, journal.seq - 1), patience)
        except Exception as error:  # noqa: BLE001 - it is the run's
            run.status, run.error = "failed", error
            if not isinstance(error, StoreError):
                journal.write([end_row("failed", None, [(f"join:{self.name}", (), "", error)])], flush=True)
        return run

    def _land(self, tip: Point, patience: float) -> None:
        for pause in pauses(patience):
            try:
                self._land_once(tip)
            except ConcurrentRunError:
                time.sleep(pause)
            else:
                return
        self._land_once(tip)

    def _land_once(self, tip: Point) -> None:
        starter, store = self._starter, self._starter.store
        row = store.thread(self.name)
        if row is None or row.head is None:
            raise ThreadError(f"thread {self.name!r} was removed while a run went on beside it")
        if is_alive(row):
            raise busy(row)
        if row.head in read_run(store, tip).parents:
            store.write(Change(self.name, row.epoch, row.epoch + 1, lease=0.0, head=tip, flush=True))
            return
        rest = starter.rest()
        head = rest.row.head
        if rest.open or head is None:
            raise rest.open_error()
        starter.fitting.check_graph(rest.last)
        beside = row._replace(head=tip)
        met = self._meet(rest.row, beside, self.name, self._deciding(starter.blueprint.topology.policies))
        if met is None:
            return
        by_hand = self._merged(rest, (head, tip), met, self.name)
        kept = None
        if rest.tail >= SNAPSHOT and rest.forms is not None:
            at = Point(by_hand.run.id, len(by_hand.drafts) - 1)
            kept = snapshot(at, SnapshotState(met.state, 0), rest.forms)
        self._write(rest.row, by_hand, self.name, kept)
        self._log(met)
