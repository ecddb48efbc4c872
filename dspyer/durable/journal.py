"""The writer of one run: numbers rows, writes them for the owner of the thread, and keeps the lease alive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TypeVar

import anyio.to_thread

from dspyer.durable.rows import Draft
from dspyer.errors import DspyerError, StoreError
from dspyer.stores.base import Change, Point, Store

T = TypeVar("T")


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
    """

    def __init__(self, store: Store, thread: str, epoch: int, run: str, seq: int) -> None:
        self.store = store
        self.thread = thread
        self.epoch = epoch
        self.run = run
        self.seq = seq
        self.broken: DspyerError | None = None
        self._lock = Lock()

    def write(self, drafts: Sequence[Draft], *, flush: bool = False, release: bool = False) -> None:
        """Writes rows.

        Args:
            drafts: the rows, in order.
            flush: whether they must be on the disk when this returns.
            release: whether the run gives the thread back with it.

        Raises:
            StoreError: if the store fails; its exception is the cause.
            ConcurrentRunError: if another run has taken the thread over.
        """
        with self._lock:
            change = self._change(drafts, flush, release)
            self._guard(lambda: self.store.write(change))
            self.seq += len(drafts)

    async def awrite(self, drafts: Sequence[Draft], *, flush: bool = False, release: bool = False) -> None:
        """The same in async code: the event loop waits for nobody."""
        if self._lock.acquire(blocking=False):
            try:
                change = self._change(drafts, flush, release)
                if self._guard(lambda: self.store.write_now(change)):
                    self.seq += len(drafts)
                    return
            finally:
                self._lock.release()
        await anyio.to_thread.run_sync(lambda: self.write(drafts, flush=flush, release=release))

    def leave(self) -> None:
        """Gives the thread back without waiting; if the store is busy, the lease runs out."""
        if self.thread and self.broken is None:
            self._guard(lambda: self.store.write_now(Change(self.thread, self.epoch, lease=0.0)))

    def _change(self, drafts: Sequence[Draft], flush: bool, release: bool) -> Change:
        if self.broken is not None:
            raise self.broken
        rows = [draft.numbered(self.seq + place) for place, draft in enumerate(drafts)]
        head = Point(self.run, self.seq + len(rows) - 1) if self.thread and rows else None
        lease = 0.0 if release and self.thread else None
        return Change(self.thread, self.epoch, lease=lease, head=head, rows_of=self.run, rows=rows, flush=flush)

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
