"""The journal of one run: the only writer of its rows, as a write-ahead log.

- *Write-ahead*: the rows of a transition are written before anything that depends on it starts. After a crash the log
  is replayed: what was reported is in it, and a node that has no commit there is called again.
- *One transaction per write*: the rows of a write, the thread's head and a snapshot are one `Change`, applied whole.
- *Fencing token*: each write names the epoch in which this run owns the thread. A store refuses a write with an older
  epoch (`ConcurrentRunError`), so a process that was paused and replaced cannot write over its successor.
- *Lease*: ownership ends unless it is renewed in time. The lease says when another process may take the thread over;
  the log stays correct without it, by the fencing token.
- *No write after a failed one*: later rows would refer to rows that the store does not have.
- *A write that Ctrl-C broke off is repeated with the next one*: the store may have it, and recognizes its rows.

See Gray and Reuter, "Transaction Processing" (1992), for write-ahead logs; Gray and Cheriton, "Leases" (1989); and
Burrows, "The Chubby lock service" (2006), whose sequencers are fencing tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Literal, get_args

from dspyer.errors import ConcurrentRunError, DspyerError, GraphError, suggestion, without_traceback
from dspyer.persistence.checked_store import CheckedStore
from dspyer.persistence.row_codec import DraftRow
from dspyer.persistence.row_digest import RowDigest
from dspyer.persistence.rows import EndRow, RowKind
from dspyer.persistence.snapshots import SinceSnapshot, SnapshotContent, SnapshotState
from dspyer.stores.base import Change, Point, Row, RunRow, Snapshot, Store
from dspyer.worker_threads import run_in_thread

logger = logging.getLogger("dspyer")

STOPPING = "stop-"
"""Begins the token of an owner that has acquired the thread only to end its run."""

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
    """Writes the rows of one run. May be used from any thread.

    Args:
        store: the store.
        thread: the thread of the run; "" for a run that does not own one: it is merged into the thread at its end.
        epoch: the fencing token; 0 until the run owns the thread, see `set_epoch`.
        run: the id of the run.
        seq: the number of its next row.
        durability: whether each write is flushed to the disk.

    Attributes:
        tail: what was written since the last snapshot.
        run_row: the row of the run, once it has begun.
        broken: the error after which nothing is written any more: a failed write, or the loss of the thread.
        refused_row: the last row whose content cannot be stored. The store itself works, so later rows are written.
        lost: called when a renewal finds that the thread is lost, so that the run need not wait for its next write.
    """

    def __init__(
        self, store: Store, thread: str, epoch: int, run: str, seq: int, durability: Durability = "sync"
    ) -> None:
        self.tail = SinceSnapshot()
        self.store = store if isinstance(store, CheckedStore) else CheckedStore(store)
        self.thread = thread
        self.epoch = epoch
        self.run = run
        self.seq = seq
        self.durability = durability
        self.broken: DspyerError | None = None
        self.refused_row: Row | None = None
        self.lost: Callable[[], object] | None = None
        # Rows are numbered under the lock, and written under it: they reach the store in the order of their numbers.
        self._lock = Lock()
        self._released = not thread
        self._pending: Change | None = None  # accepted, and not in the store yet
        self.run_row: RunRow | None = None
        self._digest = RowDigest()

    def continue_after(self, run: RunRow, rows: Sequence[Row], before: Sequence[Row], tail: SinceSnapshot) -> None:
        """Take over a run whose rows so far are those `before`, and then the first ones of this process.

        `tail` is what was written since the last snapshot, without the first rows.
        """
        self.run_row, self.tail = run, tail.with_rows(rows)
        if self._encodes:
            self._digest.add((*before, *rows))

    @property
    def _encodes(self) -> bool:
        """Whether the store encodes what it gets; one in memory keeps the values, which cannot change there."""
        return self.store.check is not None

    def digest(self, new_rows: Sequence[DraftRow]) -> str | None:
        """Return the digest of what the run has written, with these rows, for its end; None for a store in memory.

        Raises `StateError` like `write` if one of the rows cannot be stored.
        """
        if not self._encodes:
            return None
        rows = self._numbered(new_rows)
        self._check(rows)
        return self._digest.followed_by(rows)

    def set_epoch(self, epoch: int) -> None:
        """Write as the owner of the thread from now on, with this fencing token."""
        with self._lock:
            self.epoch = epoch

    # --- Writing

    def raise_if_broken(self) -> None:
        """Raise `broken`, if anything is known that lets no row be written any more."""
        if self.broken is not None:
            raise self.broken

    def write(
        self,
        new_rows: Sequence[DraftRow],
        state: SnapshotState | None = None,
        *,
        flush: bool = False,
        release: bool = False,
        accepted: list[bool] | None = None,
    ) -> None:
        """Write rows as one transaction.

        Args:
            new_rows: the rows, in order.
            state: the state at the last of them, if a snapshot is to be taken.
            flush: whether they must be on the disk when this returns.
            release: whether the run releases the thread in the same transaction.
            accepted: gets an entry once the rows have their numbers. If this then raises no `DspyerError` but Ctrl-C,
                the next write stores them, so they must not be given again.

        Raises:
            StoreError: if the store fails, with its exception as the cause.
            StateError: if the content of a row cannot be stored; none of the rows is written, later ones are.
            ConcurrentRunError: if another run has taken the thread over.
        """
        with self._lock:
            self._accept(new_rows, state, flush, release, accepted)
            self._send(self.store.write)

    async def awrite(
        self,
        new_rows: Sequence[DraftRow],
        state: SnapshotState | None = None,
        *,
        flush: bool = False,
        release: bool = False,
        accepted: list[bool] | None = None,
    ) -> None:
        """Write rows without blocking the event loop.

        A cancellation that arrives meanwhile is held back until the rows are written: see `dspyer.worker_threads`.
        """
        if not self._lock.acquire(blocking=False):
            await run_in_thread(lambda: self.write(new_rows, state, flush=flush, release=release, accepted=accepted))
            return
        try:
            self._accept(new_rows, state, flush, release, accepted)
            end = self.seq
            done = self._send(self.store.write_now)
        finally:
            self._lock.release()
        if not done:
            await run_in_thread(lambda: self._send_up_to(end))

    def _accept(
        self,
        new_rows: Sequence[DraftRow],
        state: SnapshotState | None,
        flush: bool,
        release: bool,
        accepted: list[bool] | None,
    ) -> None:
        """Number rows and add them to the pending change. The lock is held."""
        self.raise_if_broken()
        rows = self._numbered(new_rows)
        self._check(rows)
        self.seq += len(rows)
        self.tail = self.tail.with_rows(rows)
        if self._encodes:
            self._digest.add(rows)
        snapshot = None
        if state is not None and rows:
            content = SnapshotContent(state)
            snapshot = Snapshot(Point(self.run, self.seq - 1), content)
            self.tail = SinceSnapshot(snapshot=len(content.data) if self._encodes else 0)
        pending = self._pending
        if pending is not None:  # Ctrl-C broke it off, or it is of an `awrite` whose store has to wait: one transaction
            rows = [*pending.rows, *rows]
            snapshot = snapshot or pending.snapshot
            flush = flush or pending.flush
            release = release or pending.lease is not None
        thread = self.thread
        lease = 0.0 if release and thread else None
        head = Point(self.run, rows[-1].seq) if thread and rows else None
        flush = flush or self.durability == "flush"
        # By position: keywords cost 1 µs more, and this is done for every commit.
        self._pending = Change(thread, self.epoch, None, None, lease, head, None, None, self.run, rows, snapshot, flush)
        if accepted is not None:
            accepted.append(True)

    def _numbered(self, new_rows: Sequence[DraftRow]) -> list[Row]:
        return [row.numbered(seq) for seq, row in enumerate(new_rows, self.seq)]

    def _check(self, rows: Sequence[Row]) -> None:
        """Raise for rows that cannot be stored before any is numbered: the run can still write how it ended."""
        check = self.store.check
        if check is None:
            return
        for row in rows:
            try:
                check(Change(self.thread, self.epoch, rows_of=self.run, rows=[row]))
            except DspyerError:
                self.refused_row = row
                raise

    def _send(self, write: Callable[[Change], object]) -> bool:
        """Write the pending change; return False if `write` would have to wait. The lock is held."""
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
        """Write the rows below a number, unless another writer has written them with its own since."""
        with self._lock:
            pending = self._pending
            if pending is None or pending.rows[0].seq >= end:
                return  # before `broken`: these rows are in the store, even if a later write has failed
            self.raise_if_broken()
            self._send(self.store.write)

    # --- Ownership

    def renew(self, lease: float) -> None:
        """Renew the lease of the thread for so many seconds; a released one is not renewed.

        The lock is not taken: a write of the run may wait for long, and its lease must not end meanwhile. A renewal
        that arrives after the release finds no owner in the store, and has no effect: only an owner holds a thread.
        """
        if self.broken is not None or self._released or not self.epoch:
            return
        try:
            self.store.write(Change(self.thread, self.epoch, lease=lease))
        except ConcurrentRunError as error:
            if not self._released:
                self.broken = error
                if self.lost is not None:
                    self.lost()
        except Exception as error:  # noqa: BLE001 - a store that stays broken fails the next write of the run
            logger.warning("the lease of thread %r could not be renewed: %s", self.thread, error)

    def was_stopped(self) -> bool:
        """Return whether another one has ended the run as stopped (`t.stop()`), and nothing has continued it since."""
        try:
            thread = self.store.thread(self.thread) if self.thread else None
            head = None if thread is None else thread.head
            if thread is not None and thread.owner is not None and thread.owner.token.startswith(STOPPING):
                return True  # it has fenced this run off, and writes the end now
            if head is None or head.run != self.run:
                return False
            (last,) = self.store.rows(self.run, head.seq, head.seq)
        except DspyerError:
            return False  # the run has failed already, and raises that error
        return last.kind == RowKind.END and EndRow.of(last).status == "stopped"

    def release(self) -> None:
        """Release the thread. A failure is only logged: another error is being raised already, and the lease ends."""
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
                logger.warning("thread %r could not be released, its lease runs out: %s", self.thread, error)
            self._released = True

    def drop_traceback(self) -> None:
        """Drop the traceback of `broken` once the run is over: its frames refer to the journal. Writes still raise."""
        if self.broken is not None:
            self.broken = without_traceback(self.broken)
