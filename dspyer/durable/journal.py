"""The writer of one run: numbers rows, writes them for the owner of the thread, and keeps the lease alive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock, Thread
from typing import TypeVar

import anyio.to_thread

from dspyer.durable.forms import Forms
from dspyer.durable.rows import Draft
from dspyer.durable.snapshots import AT_END, EVERY, Rested, snapshot
from dspyer.errors import ConcurrentRunError, DspyerError, StoreError
from dspyer.stores.base import Change, Point, Store

T = TypeVar("T")

logger = logging.getLogger("dspyer")

logger = logging.getLogger("dspyer")


class Journal:
    """Writes the rows of one run.

    Rows that are given together are one transaction. After a write that failed nothing is written any more: what came
    after it would stand on what is not there.

    Args:
        store: where to.
        thread: the thread that the run belongs to; `""` for a run that no thread stands at.
        epoch: the epoch in which this run owns the thread.
        run: the id of the run.
        seq: the number of its next row.

    Attributes:
        tail: how many rows there are since the last snapshot.
        forms: what is known of the forms of earlier states.
    """

    def __init__(self, store: Store, thread: str, epoch: int, run: str, seq: int) -> None:
        self.tail = 0
        self.forms = Forms()
        self.store = store
        self.thread = thread
        self.epoch = epoch
        self.run = run
        self.seq = seq
        self.broken: DspyerError | None = None
        self._lock = Lock()
        self._left = False
        self._released = not thread
        self._left = False
        self._released = not thread

    def goes_on(self, tail: int, forms: Forms) -> None:
        """Goes on from what earlier runs have written.

        Args:
            tail: how many rows there are since the last snapshot.
            forms: what is known of the forms of earlier states.
        """
        self.tail, self.forms = tail, forms

    def wants_snapshot(self, rows: int, ended: bool = False) -> bool:
        """Whether a snapshot is due with the next rows.

        Args:
            rows: how many they are.
            ended: whether they end the run.
        """
        return self.tail + rows >= (AT_END if ended else EVERY)

    def write(
        self, drafts: Sequence[Draft], rested: Rested | None = None, *, flush: bool = False, release: bool = False
    ) -> None:
        """Writes rows.

        Args:
            drafts: the rows, in order.
            rested: what the run has come to with the last of them, if a snapshot is to be taken.
            flush: whether they must be on the disk when this returns.
            release: whether the run gives the thread back with it.

        Raises:
            StoreError: if the store fails; its exception is the cause.
            ConcurrentRunError: if another run has taken the thread over.
        """
        with self._lock:
            change = self._change(drafts, rested, flush, release)
            self._guard(lambda: self.store.write(change))
            self._written(change)
        self._leave_late()

    async def awrite(
        self, drafts: Sequence[Draft], rested: Rested | None = None, *, flush: bool = False, release: bool = False
    ) -> None:
        """The same in async code: the event loop waits for nobody."""
        if self._lock.acquire(blocking=False):
            try:
                change = self._change(drafts, rested, flush, release)
                if self._guard(lambda: self.store.write_now(change)):
                    self._written(change)
                    return
            finally:
                self._lock.release()
        await anyio.to_thread.run_sync(lambda: self.write(drafts, rested, flush=flush, release=release))

    def renew(self, lease: float) -> None:
        """Renews the lease, from any thread; nothing is renewed that was given back.

        Args:
            lease: seconds.
        """
        with self._lock:
            if self.broken is not None or self._released:
                return
            try:
                self.store.write(Change(self.thread, self.epoch, lease=lease))
            except ConcurrentRunError as error:
                self.broken = error
            except Exception as error:  # noqa: BLE001 - the run itself finds out when it writes
                logger.warning("the lease of thread %r could not be renewed: %s", self.thread, error)
        self._leave_late()

    def leave(self) -> None:
        """Gives the thread back. A store that fails now is only logged: something else is on its way up."""
        with self._lock:
            self._leave(self.store.write)

    def leave_soon(self) -> None:
        """The same without waiting: whoever writes at the moment does it, or a thread."""
        self._left = True
        if self._lock.acquire(blocking=False):
            try:
                self._leave(self.store.write_now)
                late = not self._released
            finally:
                self._lock.release()
            if late:
                Thread(target=self.leave, name="dspyer-leave").start()

    def _leave_late(self) -> None:
        if self._left:  # somebody wanted to leave while a write was under way
            self.leave()

    def _leave(self, write: Callable[[Change], bool | None]) -> None:
        if self._released or not self.thread:
            return
        try:
            self._released = write(Change(self.thread, self.epoch, lease=0.0)) is not False
        except ConcurrentRunError:
            self._released = True  # it is somebody else's
        except Exception as error:  # noqa: BLE001 - see above
            self._released = True
            logger.warning("thread %r could not be given back, its lease runs out: %s", self.thread, error)

    def _written(self, change: Change) -> None:
        self.seq += len(change.rows)
        self.tail = self.tail + len(change.rows) if change.snapshot is None else 0
        self._released = self._released or change.lease == 0.0

    def _change(self, drafts: Sequence[Draft], rested: Rested | None, flush: bool, release: bool) -> Change:
        if self.broken is not None:
            raise self.broken
        rows = [draft.numbered(self.seq + place) for place, draft in enumerate(drafts)]
        head = Point(self.run, self.seq + len(rows) - 1) if self.thread and rows else None
        lease = 0.0 if release and self.thread else None
        taken = None
        if rested is not None and rows:
            taken = snapshot(Point(self.run, rows[-1].seq), rested, self.forms)
        return Change(
            self.thread,
            self.epoch,
            lease=lease,
            head=head,
            rows_of=self.run,
            rows=rows,
            snapshot=taken,
            flush=flush,
        )

    def _guard(self, work: Callable[[], T]) -> T:
        try:
            return guarded(self.store, work)
        except DspyerError as error:
            self.broken = error
            raise


def guarded(store: Store, work: Callable[[], T]) -> T:
    """Does something with a store; what goes wrong there is a `StoreError`.

    Args:
        store: the store.
        work: what to do.

    Raises:
        StoreError: with the exception of the store as its cause.
    """
    try:
        return work()
    except DspyerError:
        raise
    except Exception as error:
        raise StoreError(
            f"the store {store.address!r} failed: {type(error).__name__}: {error}. What was reported before is kept; "
            "mend the store, then call resume() on the thread"
        ) from error
