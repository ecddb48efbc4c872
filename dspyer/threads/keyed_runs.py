"""Runs with an idempotency key: `t.run(inputs, key="order-7")` starts one run, however often it is called.

The key determines the id of the run, so that one look-up by primary key finds it, and a store never holds two. Of two
calls at the same time, both may find nothing; then the epoch of the thread decides, as between any two starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from json import dumps
from typing import Any

from dspyer.errors import ThreadError, brief
from dspyer.persistence.execution_records import ExecutionRecords, RecordKey
from dspyer.persistence.journal import Journal
from dspyer.persistence.reader import RunRows, load_run, read_run
from dspyer.persistence.rows import RowKind, effect_row
from dspyer.persistence.status import last_end
from dspyer.runtime.request import Request, RunStart
from dspyer.scheduler.run_state import Suspended
from dspyer.scheduler.schedule import advance, start
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, RunRow, ThreadRow
from dspyer.threads.ownership import WAIT_OR_REPLACE, HandOver, StoredRun
from dspyer.threads.start import FirstWrite, RunStarter, ThreadHead
from dspyer.values import json as encoding
from dspyer.values.freezing import freeze
from dspyer.values.persistent import PersistentVector

INPUTS = RecordKey("", "inputs")
"""Where a run has the digest of its inputs: recorded as the result of an effect, so that encryption hides it."""

MAX_RESUMES = 10
"""How often a key resumes its run without progress, as `resume(max_resumes=)`."""


def run_id_of(thread: str, key: str) -> str:
    """The id of the run that a key identifies."""
    return _digest(dumps([thread, key]))


def check_key(key: object, on_conflict: str) -> None:
    """Raise `ThreadError` for a key that is no text, or empty, or where it has no meaning."""
    if not isinstance(key, str) or not key:
        raise ThreadError(
            f"key={brief(key)}: a key is any text, not empty, which names this run among those of the thread: the id "
            "of the request or message that asks for it"
        )
    if on_conflict == "merge":
        raise ThreadError(
            f'key={key!r} with on_conflict="merge": a run that is merged at its end cannot be resumed, so a key could '
            'not continue it. Use on_conflict="wait"'
        )


class KeyedRuns:
    """Starts, resumes or returns the run of a key."""

    def __init__(self, starter: RunStarter) -> None:
        self._starter = starter
        self._store = starter.store

    def start(
        self,
        inputs: Mapping[str, Any],
        key: str,
        request: Request,
        hand_over: HandOver,
        *,
        abandon: bool,
        take_over: bool,
    ) -> None:
        """Hand over the run of a key: a new one, the open one resumed, or the ended one as it is stored."""
        starter, run_id = self._starter, run_id_of(self._starter.thread, key)
        digest = _digest(encoding.to_json(freeze(dict(sorted(inputs.items())))))
        known = self._store.run(run_id)
        if known is not None:
            self._check_inputs(known, key, digest)
            row = self._store.thread(starter.thread)
            stored = None if row is None else self._stored(known, key, row, request)
            if stored is not None:  # whoever owns the thread: nothing is written
                hand_over(stored)
                return

        def first_write(head: ThreadHead) -> FirstWrite | StoredRun:
            if known is not None:
                stored = self._stored(known, key, head.row, request)
                return stored or starter.resumed_run(head, {}, MAX_RESUMES, allow=False)
            # If another delivery has begun the run since, the thread has another epoch, and the store a run of this id.
            first = starter.first_of_new(head, inputs, request, abandon)
            run = first.run._replace(id=run_id)
            rows = [*first.rows, effect_row(INPUTS, digest)]
            return first._replace(run=run, rows=rows, start=first.start._replace(run_id=run_id))

        starter.acquire(first_write, request, hand_over, take_over, WAIT_OR_REPLACE)

    def _check_inputs(self, known: RunRow, key: str, digest: str) -> None:
        records = ExecutionRecords()
        records.read(self._store.rows(known.id, 1, 1), self._starter.reader.fetch)
        if records.effects.get(INPUTS) != digest:
            raise ThreadError(
                f"key {key!r} identifies a run of thread {self._starter.thread!r} that began with other inputs: a "
                "key is for one request. Give a new request a new key"
            )

    def _stored(self, known: RunRow, key: str, row: ThreadRow, request: Request) -> StoredRun | None:
        """The run as it is stored; None if it is to be resumed."""
        end = self._end_of(known, row)
        ending = None if end is None else last_end(self._store, end)
        status = None if ending is None else ending.header[0]
        if end is not None and (status == "completed" or (status == "interrupted" and end == row.head)):
            return self._as_stored(read_run(self._store, end), request)
        if end is None or end != row.head:
            raise ThreadError(
                f"the run of key {key!r} on thread {self._starter.thread!r} was abandoned before it had completed: a "
                "key starts no second run. To repeat the request, give it a new key"
            )
        return None

    def _end_of(self, known: RunRow, row: ThreadRow) -> Point | None:
        """The last row of the run in the history of the thread; None if it is not in there."""
        last = self._store.rows(known.id)[-1]
        if last.kind == RowKind.END and last.header[0] == "completed":
            return Point(known.id, last.seq)
        end = at = row.head
        while at is not None and at.run != known.id:
            run = load_run(self._store, at.run)
            at = run.parents[0] if run.parents else None
            if not run.header.get("continues"):
                end = at
        return None if at is None else end

    def _as_stored(self, found: RunRows, request: Request) -> StoredRun:
        starter = self._starter
        records = starter.read_records(found)
        if found.status == "completed":
            run_start = self._completed(found)
        else:
            run_start = starter.rebuild(found, records)
            run = run_start.run
            for execution in list(run.running):
                run, _ = advance(run, execution, Suspended(()))
            run_start = run_start._replace(run=run)
        journal = Journal(self._store, starter.thread, 0, found.run.id, 0)  # writes nothing
        live = found.run.header.get("live", True)
        return StoredRun(replace(request, live=live, run_start=run_start, records=records, journal=journal))

    def _completed(self, found: RunRows) -> RunStart:
        """A completed run, from its rows alone: whatever has become of the graph since."""
        starter = self._starter
        before, first = starter.state_before(found)
        folded = starter.reader.fold(found, before)
        log, state = folded.entries, folded.trunk_state
        run = start(starter.graph.topology, before, first)._replace(
            log=PersistentVector(log), trunk_state=state, ended=True
        )
        begun = log[0].state if log else ImmutableState()
        patch = log[0].commit.patch if log else {}
        return starter.run_start(found, run, patch, begun, before, first)


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
