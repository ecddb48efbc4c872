"""The writer of one run: numbers rows, writes them for the owner of the thread, and keeps the lease alive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Literal, get_args

from dspyer.blocking import run_in_thread
from dspyer.errors import ConcurrentRunError, DspyerError, GraphError, suggestion, without_traceback
from dspyer.persistence.rows import NewRow
from dspyer.persistence.snapshot_encoding import SnapshotEncoder
from dspyer.persistence.snapshots import AT_END, EVERY, SnapshotState, new_snapshot
from dspyer.persistence.store_errors import Guarded
from dspyer.stores.base import Change, Point, Row, Store

logger = logging.getLogger("dspyer")

Durability = Literal["sync", "flush"]
"""When a transition counts as written: once the store has it, or once it is flushed to the disk."""


def check_durability(durability: str) -> Durability:
    """Return the durability of this name; raise `GraphError` if there is none."""
    for known in get_args(Durability):
        if durability == known:
            level: Durability = known
            return level
    raise GraphError(
        f"durability={durability!r} is unknown. There are two: 'sync' writes each transition before anything that "
        "depends on it starts (a crash of the process loses nothing, a power cut perhaps the last transitions); "
        "'flush' also flushes each to the disk (a power cut loses nothing either)"
        + suggestion(str(durability), get_args(Durability))
    )


class Journal:
    """Writes the rows of one run.

    Rows that are given together are one transaction. After a write that failed nothing is written any more: what came
    after it would stand on what is not there.

    Args:
        store: where to.
        thread: the thread that the run belongs to; `""` for a run that no thread stands at.
        epoch: the epoch in which this run owns the thread; 0 as long as it does not, see `owns`.
        run: the id of the run.
        seq: the number of its next row.
        durability: whether each write is flushed to the disk.

    Attributes:
        tail: how many rows there are since the last snapshot.
        encoder: what is known of the encoder of earlier states.
        refused_row: the last row that cannot be stored whatever the store's condition is; later ones are written.
    """

    def __init__(
        self, store: Store, thread: str, epoch: int, run: str, seq: int, durability: Durability = "sync"
    ) -> None:
        self.tail = 0
        self.encoder = SnapshotEncoder()
        self.store = store if isinstance(store, Guarded) else Guarded(store)
        self.thread = thread
        self.epoch = epoch
        self.run = run
        self.seq = seq
        self.durability = durability
        self.broken: DspyerError | None = None
        self.refused_row: Row | None = None
        self._lock = Lock()
        self._released = not thread
        self._pending: Change | None = None

    def continue_after(self, tail: int, encoder: SnapshotEncoder) -> None:
        """Goes on from what earlier runs have written.

        Args:
            tail: how many rows there are since the last snapshot.
            encoder: what is known of the encoder of earlier states.
        """
        self.tail, self.encoder = tail, encoder

    def set_epoch(self, epoch: int) -> None:
        """Writes as the owner of the thread from now on.

        Args:
            epoch: the epoch in which the run owns it.
        """
        with self._lock:
            self.epoch = epoch

    def snapshot_is_due(self, rows: int, ended: bool = False) -> bool:
        """Whether a snapshot is due with the next rows.

        Args:
            rows: how many they are.
            ended: whether they end the run.
        """
        return self.tail + rows >= (AT_END if ended else EVERY)

    def write(
        self,
        drafts: Sequence[NewRow],
        rested: SnapshotState | None = None,
        *,
        flush: bool = False,
        release: bool = False,
    ) -> None:
        """Writes rows as one transaction.

        Args:
            drafts: the rows, in order.
            rested: what the run has come to with the last of them, if a snapshot is to be taken.
            flush: whether they must be on the disk when this returns.
            release: whether the run gives the thread back with it.

        Raises:
            StoreError: if the store fails; its exception is the cause.
            StateError: if a row holds what cannot be stored; none of them counts, and later rows are written.
            ConcurrentRunError: if another run has taken the thread over.
        """
        with self._lock:
            self._accept(drafts, rested, flush, release)
            self._send(self.store.write)

    async def awrite(
        self,
        drafts: Sequence[NewRow],
        rested: SnapshotState | None = None,
        *,
        flush: bool = False,
        release: bool = False,
    ) -> None:
        """The same in async code, without blocking the event loop.

        A cancellation that arrives meanwhile is held back until the rows are written: see `dspyer.blocking`.
        """
        if not self._lock.acquire(blocking=False):
            await run_in_thread(lambda: self.write(drafts, rested, flush=flush, release=release))
            return
        try:
            self._accept(drafts, rested, flush, release)
            end = self.seq
            done = self._send(self.store.write_now)
        finally:
            self._lock.release()
        if not done:
            await run_in_thread(lambda: self._send_up_to(end))

    def _accept(self, drafts: Sequence[NewRow], rested: SnapshotState | None, flush: bool, release: bool) -> None:
        """Numbers rows and adds them to the pending change. The lock is held."""
        if self.broken is not None:
            raise self.broken
        seq = self.seq
        rows = [draft.numbered(seq + place) for place, draft in enumerate(drafts)]
        self._check(rows)
        self.seq = seq + len(rows)
        self.tail += len(rows)
        taken = None
        if rested is not None and rows:
            taken = new_snapshot(Point(self.run, self.seq - 1), rested, self.encoder)
            self.tail = 0
        pending = self._pending
        if pending is not None:  # rows of an `awrite` that has not reached the store yet: one transaction with these
            rows = [*pending.rows, *rows]
            taken = taken or pending.snapshot
            flush = flush or pending.flush
            release = release or pending.lease is not None
        thread = self.thread
        lease = 0.0 if release and thread else None
        head = Point(self.run, rows[-1].seq) if thread and rows else None
        flush = flush or self.durability == "flush"
        self._pending = Change(thread, self.epoch, None, None, lease, head, None, None, self.run, rows, taken, flush)

    def _check(self, rows: Sequence[Row]) -> None:
        """Refuses rows that cannot be stored before any of them counts: the run can still write how it ended."""
        for row in rows:
            try:
                self.store.check(Change(self.thread, self.epoch, rows_of=self.run, rows=[row]))
            except DspyerError:
                self.refused_row = row
                raise

    def _send(self, write: Callable[[Change], object]) -> bool:
        """Writes the pending change; returns False if `write` would have to wait. The lock is held."""
        pending = self._pending
        if pending is None:
            return True
        try:
            if write(pending) is False:
                return False
        except DspyerError as error:
            self.broken = error
            raise
        if pending.lease is not None:
            self._released = True
        self._pending = None
        return True

    def _send_up_to(self, end: int) -> None:
        with self._lock:
            pending = self._pending
            if pending is None or pending.rows[0].seq >= end:
                return  # another writer has sent these rows with its own, whatever has failed since
            if self.broken is not None:
                raise self.broken
            self._send(self.store.write)

    def drop_traceback(self) -> None:
        """Keeps no traceback of what has failed, once the run is over: it refers to the journal. Writes still raise."""
        if self.broken is not None:
            self.broken = without_traceback(self.broken)

    def renew(self, lease: float) -> None:
        """Renews the lease, from any thread; nothing is renewed that was given back.

        Args:
            lease: seconds.
        """
        # Without the lock: a write of the run may wait long, and its lease must not end meanwhile. A renewal that comes
        # after the thread was given back finds no owner to keep alive, and changes nothing.
        if self.broken is not None or self._released or not self.epoch:
            return
        try:
            self.store.write(Change(self.thread, self.epoch, lease=lease))
        except ConcurrentRunError as error:
            if not self._released:
                self.broken = error
        except Exception as error:  # noqa: BLE001 - the run itself finds out when it writes
            logger.warning("the lease of thread %r could not be renewed: %s", self.thread, error)

    def release(self) -> None:
        """Gives the thread back. A store that fails now is only logged: something else is on its way up."""
        with self._lock:
            if self._released or not self.epoch:
                return
            change = Change(self.thread, self.epoch, lease=0.0)
            if self.broken is None and self._pending is not None:
                change = self._pending._replace(lease=0.0)
            try:
                self.store.write(change)
                self._pending = None
            except ConcurrentRunError:
                pass  # another run owns the thread
            except Exception as error:  # noqa: BLE001 - see above
                logger.warning("thread %r could not be given back, its lease runs out: %s", self.thread, error)
            self._released = True
