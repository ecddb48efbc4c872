"""Ownership of a thread: at most one run writes to it at a time.

The owner is a row in the store: host, process and a random token, with a lease that a background thread renews while
the run works. A write names the epoch under which its owner acquired the thread (a fencing token); a run that replaces
the owner raises the epoch, so that an owner that was taken for dead by mistake cannot write any more. `leases`
decides whether an owner is alive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple, TypeAlias

import anyio

from dspyer.clock import now
from dspyer.errors import ConcurrentRunError, DspyerError, RunStoppedError, ThreadError
from dspyer.log.journal import Journal, is_alive, leases
from dspyer.log.rows import end_row
from dspyer.runtime.request import Request
from dspyer.stores.base import Owner, Store, ThreadRow
from dspyer.waiting import cancellation_count
from dspyer.worker_threads import run_in_thread

LONGEST_PAUSE = 0.05
"""Most seconds between two attempts to acquire a thread."""

# What an error about a live owner advises, by the options that the refused call has.
WAIT = "try again when it has ended (t.status)"
REPLACE = f"{WAIT}, or replace the owner with take_over=True"
WAIT_OR_REPLACE = 'wait with on_conflict="wait", or replace the owner with take_over=True'


# --- acquire and release


class OwnedRun(NamedTuple):
    """A run that was started by this process, with what is needed to play it and to release its thread."""

    request: Request
    journal: Journal
    owner: Owner


class StoredRun(NamedTuple):
    """A run of an earlier call, which is returned as it is stored: it owns no thread, and calls no node."""

    request: Request


HandOver: TypeAlias = Callable[[OwnedRun | StoredRun], None]
"""Called with a run as soon as it owns its thread, or with one that needs none."""


class ThreadLock:
    """Owns a thread for the duration of one run: acquired at once or after waiting, released in any case.

    `acquire` acquires the thread and starts the run in the store, or raises `ConcurrentRunError`. It hands the run over
    by a call and not as its result, which a Ctrl-C could drop before it is assigned. It is called again for up to
    `lock_timeout` seconds, unless `on_conflict` is `"raise"`. With `"merge"` it acquires nothing, since such a run owns
    no thread (`threads.merge_on_finish`).

    Attributes:
        request: what asks for the run.
        patience: seconds to wait, here and for a merge at the end; 0 for `"raise"`.
        owned: the run, once it was started.
        stored: the run, if it is returned as it is stored.
    """

    def __init__(
        self, acquire: Callable[[HandOver], object], request: Request, on_conflict: str, lock_timeout: float
    ) -> None:
        if on_conflict not in ("raise", "wait", "merge"):
            raise ThreadError(f'on_conflict={on_conflict!r}: it is "raise", "wait" or "merge"')
        self._acquire_run = acquire
        self.request = request
        self.patience = 0.0 if on_conflict == "raise" else lock_timeout
        self.owned: OwnedRun | None = None
        self.stored: StoredRun | None = None

    @contextmanager
    def held(self) -> Iterator[OwnedRun | StoredRun]:
        """Own the thread for the block."""
        try:
            for pause in self._pauses():
                if self._try_acquire():
                    break
                # Wait for the owner to release the thread: 1 ms doubling to 50 ms, `patience` seconds in all. Polling,
                # since the owner may be any process on any host. No jitter: an attempt on an owned thread reads
                # one row, and the epoch decides between attempts that collide.
                time.sleep(pause)
            else:
                self._acquire()  # the time is over: a last attempt, which raises
            held = self.owned or self.stored
            assert held is not None
            yield held
        finally:
            if self.owned is not None:
                _release(self.owned)

    @asynccontextmanager
    async def aheld(self) -> AsyncIterator[OwnedRun | StoredRun]:
        """Own the thread for the block, in async code.

        `run_in_thread` completes a step in a worker thread although the task is cancelled: only then is it known
        whether the thread is owned and must be released. The cancellation is raised after the step.
        """
        before = cancellation_count()
        try:
            for pause in self._pauses():
                if await run_in_thread(self._try_acquire):
                    break
                if cancellation_count() > before:
                    raise asyncio.CancelledError
                await anyio.sleep(pause)  # between two attempts, as in `held`
            else:
                await run_in_thread(self._acquire)
            if cancellation_count() > before:
                raise asyncio.CancelledError
            held = self.owned or self.stored
            assert held is not None
            yield held
        finally:
            owned = self.owned
            if owned is not None and _has_ended(owned):
                _release(owned)  # writes nothing: no worker thread is needed
            elif owned is not None:
                await run_in_thread(lambda: _release(owned))  # however often the task is cancelled

    def _acquire(self) -> None:
        self._acquire_run(self._keep)

    def _keep(self, run: OwnedRun | StoredRun) -> None:
        if isinstance(run, StoredRun):
            self.stored = run
        else:
            self.owned = run

    def _try_acquire(self) -> bool:
        try:
            self._acquire()
        except ConcurrentRunError:
            return False
        return True

    def _pauses(self) -> Iterator[float]:
        """The pauses between attempts; raises if the run was stopped meanwhile."""
        for pause in pauses(self.patience):
            reason = self.request.stop_signal.reason
            if reason is not None:
                raise RunStoppedError(
                    f"the run was stopped while it waited for its thread: {reason}. Nothing was started", reason
                )
            yield pause


def _has_ended(owned: OwnedRun) -> bool:
    """Whether the run has written its end, which releases the thread in the same transaction."""
    sessions = owned.request.outcome.sessions
    log = sessions[-1].log if sessions else None
    return log is not None and log.end_written


def _release(owned: OwnedRun) -> None:
    """Release the thread.

    A run that was stopped before its first step is written as stopped; one that could not write its end (a store that
    fails, an exception that tears it out) only releases the thread, and counts as crashed.
    """
    try:
        if not owned.request.outcome.sessions:
            with suppress(DspyerError):  # the thread is released below, or its lease runs out
                records, start = owned.request.records, owned.request.run_start
                assert records is not None
                assert start is not None
                steps = len(start.run.log)
                end = end_row("stopped", None, (), records.used_before, steps, records.totals_before)
                owned.journal.write([end], flush=True, release=True)
        if not _has_ended(owned):
            owned.journal.release()
    finally:
        leases.let_go(owned.owner.token)


def pauses(patience: float) -> Iterator[float]:
    """The seconds to sleep before each next attempt, from 1 ms doubling to 50 ms, until `patience` seconds are over."""
    end, pause = now() + patience, 0.001
    while (left := end - now()) > 0:
        yield min(pause, left)
        pause = min(2 * pause, LONGEST_PAUSE)


# --- refuse a thread that has a live owner


def check_no_owner(row: ThreadRow, remedy: str = WAIT) -> None:
    """Raise `ConcurrentRunError` if a thread has a live owner."""
    if is_alive(row):
        raise busy(row, remedy)


def existing_row(store: Store, thread: str, take_over: bool) -> ThreadRow:
    """The row of a thread; raises if there is none, or if it has a live owner that may not be replaced."""
    row = store.thread(thread)
    if row is None:
        raise ThreadError(f"there is no thread {thread!r}")
    if not take_over:
        check_no_owner(row, REPLACE)
    return row


def busy(row: ThreadRow, remedy: str = WAIT) -> ConcurrentRunError:
    """The error that a thread has a live owner; `remedy` says what the caller can do."""
    owner = row.owner
    where = "unknown" if owner is None else f"process {owner.pid} on {owner.host!r}"
    return ConcurrentRunError(
        f"thread {row.name!r} is owned by another run ({where}; its lease ends in {max(row.lease, 0):.0f} s unless it "
        f"is renewed): {remedy}"
    )
