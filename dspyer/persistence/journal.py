"""The writer of one run: numbers rows, writes them for the owner of the thread, and keeps the lease alive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, Timer
from time import monotonic
from typing import Any, Literal, get_args

from dspyer.blocking import finish
from dspyer.errors import ConcurrentRunError, DspyerError, GraphError, anew, suggestion
from dspyer.persistence.rows import NewRow
from dspyer.persistence.snapshot_encoding import SnapshotEncoder
from dspyer.persistence.snapshots import AT_END, EVERY, SnapshotState, snapshot
from dspyer.persistence.store_errors import Guarded, guarded
from dspyer.stores.base import Change, Point, Row, Snapshot, Store

__all__ = ["BATCH_SECONDS", "BATCH_SIZE", "Before", "Durability", "Journal", "checked", "guarded", "later"]

logger = logging.getLogger("dspyer")

Before = tuple[tuple[str, ...], Any]
"""The scope of a session, and its run."""


class _Waiting:
    """What waits to be written: one transaction.

    Attributes:
        rows: the rows.
        snapshot: the last snapshot.
        count: how many transitions they are.
        since: when the first of them came.
        flush: whether they must be on the disk.
        release: whether the thread is given back with them.
    """

    __slots__ = ("count", "flush", "release", "rows", "since", "snapshot")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.snapshot: Snapshot | None = None
        self.count = 0
        self.since = 0.0
        self.flush = False
        self.release = False


Durability = Literal["sync", "flush", "batch", "exit"]
"""When what a run does is written: at once; at once and flushed to the disk; many transitions together; at its end.

What was reported is written and flushed before it is: the end of a run, a question, the result of an effect.
"""


def checked(durability: str) -> Durability:
    """The durability of this name.

    Raises:
        GraphError: if there is none.
    """
    for known in get_args(Durability):
        if durability == known:
            level: Durability = known
            return level
    raise GraphError(
        f"durability={durability!r} is none: it is {', '.join(map(repr, get_args(Durability)))}"
        + suggestion(str(durability), get_args(Durability))
    )


BATCH_SECONDS = 0.05
"""How long a transition waits for others with `"batch"`."""

BATCH_SIZE = 100
"""How many transitions wait with `"batch"`, the last of them not for long."""


def later(seconds: float, work: Callable[[], None]) -> Callable[[], None]:
    """Does something on a thread after a while; what it returns prevents that."""
    timer = Timer(seconds, work)
    timer.daemon = True
    timer.start()
    return timer.cancel


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
        durability: when rows are written.

    Attributes:
        tail: how many rows there are since the last snapshot.
        forms: what is known of the forms of earlier states.
        lost: by scope, what its session goes back to if the rows that wait cannot be written.
        refused: the last row that cannot be stored whatever the store's condition is; later ones are written.
    """

    def __init__(
        self, store: Store, thread: str, epoch: int, run: str, seq: int, durability: Durability = "sync"
    ) -> None:
        self.tail = 0
        self.forms = SnapshotEncoder()
        self.store = store if isinstance(store, Guarded) else Guarded(store)
        self.thread = thread
        self.epoch = epoch
        self.run = run
        self.seq = seq
        self.durability = durability
        self.lost: dict[tuple[str, ...], Any] = {}
        self.broken: DspyerError | None = None
        self.refused: Row | None = None
        self._lock = Lock()
        self._released = not thread
        self._waiting = _Waiting()
        self._prevent: Callable[[], None] | None = None

    def goes_on(self, tail: int, forms: SnapshotEncoder) -> None:
        """Goes on from what earlier runs have written.

        Args:
            tail: how many rows there are since the last snapshot.
            forms: what is known of the forms of earlier states.
        """
        self.tail, self.forms = tail, forms

    def owns(self, epoch: int) -> None:
        """Writes as the owner of the thread from now on.

        Args:
            epoch: the epoch in which the run owns it.
        """
        with self._lock:
            self.epoch = epoch

    def wants_snapshot(self, rows: int, ended: bool = False) -> bool:
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
        before: Before | None = None,
        *,
        flush: bool = False,
        release: bool = False,
    ) -> None:
        """Writes rows, now or with later ones.

        Args:
            drafts: the rows, in order.
            rested: what the run has come to with the last of them, if a snapshot is to be taken.
            before: whose session they are of, and what it goes back to if they cannot be written after all.
            flush: whether they must be on the disk when this returns.
            release: whether the run gives the thread back with it.

        Raises:
            StoreError: if the store fails; its exception is the cause.
            StateError: if a row holds what cannot be stored; none of them counts, and later rows are written.
            ConcurrentRunError: if another run has taken the thread over.
        """
        with self._lock:
            self._accept(drafts, rested, before, flush, release)
            if self._is_due():
                self._send(self.store.write)

    async def awrite(
        self,
        drafts: Sequence[NewRow],
        rested: SnapshotState | None = None,
        before: Before | None = None,
        *,
        flush: bool = False,
        release: bool = False,
    ) -> None:
        """The same in async code, without blocking the event loop.

        A cancellation that arrives meanwhile is held back until the rows are written: see `dspyer.blocking`.
        """
        if not self._lock.acquire(blocking=False):
            await finish(lambda: self.write(drafts, rested, before, flush=flush, release=release))
            return
        try:
            self._accept(drafts, rested, before, flush, release)
            mine = self._waiting
            done = not self._is_due() or self._send(self.store.write_now)
        finally:
            self._lock.release()
        if not done:
            await finish(lambda: self._send_late(mine))

    def _accept(
        self, drafts: Sequence[NewRow], rested: SnapshotState | None, before: Before | None, flush: bool, release: bool
    ) -> None:
        """Takes rows that are to be written. The lock is held."""
        if self.broken is not None:
            raise self.broken
        seq = self.seq
        rows = [draft.numbered(seq + place) for place, draft in enumerate(drafts)]
        self._check(rows)
        waiting = self._waiting
        if not waiting.count and self.durability == "batch":
            waiting.since = monotonic()
            self._prevent = later(BATCH_SECONDS, self._send_in_time)
        if before is not None:
            self.lost.setdefault(*before)
        waiting.rows += rows
        self.seq = seq + len(rows)
        self.tail += len(rows)
        if rested is not None and rows:
            waiting.snapshot = snapshot(Point(self.run, self.seq - 1), rested, self.forms)
            self.tail = 0
        waiting.count += 1
        if flush:
            waiting.flush = True
        if release:
            waiting.release = True

    def _check(self, rows: Sequence[Row]) -> None:
        """Refuses rows that cannot be stored before any of them counts: the run can still write how it ended."""
        for row in rows:
            try:
                self.store.check(Change(self.thread, self.epoch, rows_of=self.run, rows=[row]))
            except DspyerError:
                self.refused = row
                raise

    def _is_due(self) -> bool:
        """Whether what waits is to be written now."""
        durability = self.durability
        if durability == "sync" or durability == "flush":
            return True
        waiting = self._waiting
        if waiting.flush or waiting.release:
            return True
        if durability == "exit":
            return False
        return waiting.count >= BATCH_SIZE or monotonic() - waiting.since >= BATCH_SECONDS

    def _send(self, write: Callable[[Change], object]) -> bool:
        """Writes what waits, and says whether that was done: `write` may say no. The lock is held."""
        waiting = self._waiting
        if not waiting.count:
            return True
        try:
            if write(self._change(waiting)) is False:
                return False
        except DspyerError as error:
            self.broken = error
            raise
        finally:
            if self._prevent is not None:
                self._prevent()
                self._prevent = None
        if waiting.release:
            self._released = True
        self._waiting = _Waiting()
        self.lost.clear()
        return True

    def _send_late(self, mine: _Waiting) -> None:
        with self._lock:
            if self._waiting is mine:  # else another writer has sent it with its own rows, whatever failed since
                if self.broken is not None:
                    raise self.broken
                self._send(self.store.write)

    def _send_in_time(self) -> None:
        """Writes what has waited long enough. If that fails, the next write raises."""
        with suppress(DspyerError):
            self._send_late(self._waiting)

    def _change(self, waiting: _Waiting) -> Change:
        rows, thread = waiting.rows, self.thread
        lease = 0.0 if waiting.release and thread else None
        head = Point(self.run, rows[-1].seq) if thread and rows else None
        flush = waiting.flush or self.durability == "flush"
        return Change(thread, self.epoch, None, None, lease, head, None, None, self.run, rows, waiting.snapshot, flush)

    def release_error(self) -> None:
        """Keeps no traceback of what has failed, once the run is over: it refers to the journal. Writes still raise."""
        if self.broken is not None:
            self.broken = anew(self.broken)

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

    def leave(self) -> None:
        """Gives the thread back. A store that fails now is only logged: something else is on its way up."""
        with self._lock:
            if self._released or not self.epoch:
                return
            change = Change(self.thread, self.epoch, lease=0.0)
            if self.broken is None and self._waiting.count:  # what has waited until now
                change = self._change(self._waiting)._replace(lease=0.0)
            try:
                self.store.write(change)
                self._waiting = _Waiting()
            except ConcurrentRunError:
                pass  # another run owns the thread
            except Exception as error:  # noqa: BLE001 - see above
                logger.warning("thread %r could not be given back, its lease runs out: %s", self.thread, error)
            self._released = True
