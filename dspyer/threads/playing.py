"""Own a thread while a run is played on it: acquire it, play the run, release it; stop the run of another owner.

At most one run writes to a thread at a time. The owner is a row in the store: host, process and a random token, with a
lease that a background thread renews while the run works. A write names the epoch under which its owner acquired the
thread (a fencing token); a run that replaces the owner raises the epoch, so that an owner that was taken for dead by
mistake cannot write any more. `leases` decides whether an owner is alive.

A start has three steps, in this order, which makes it safe against crashes and other processes:

1. Load the head of the thread. A thread with a live owner is refused.
2. Check all that the caller gave (inputs, answers, graph) and build the run in memory: a `FirstWrite`. Up to here
   nothing is written, so a refused call leaves no open run.
3. Write owner, head and first rows in one transaction, guarded by the epoch of the thread, its fencing token. Of two
   processes that come this far one succeeds; the other gets `ConcurrentRunError`, and has written nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from dspyer.clock import now, wall
from dspyer.errors import ConcurrentRunError, DspyerError, RunStoppedError, ThreadError, brief
from dspyer.log.journal import LEASE, STOPPING, CheckedStore, Journal, NewRows, is_alive, leases, new_owner
from dspyer.log.reader import read_run
from dspyer.log.rows import RowKind, end_row
from dspyer.log.time_travel import due_since, due_threads
from dspyer.runtime.drivers import arun_program, resources_of_call, run_program, stored_run
from dspyer.runtime.request import Request, new_request
from dspyer.runtime.run import Run
from dspyer.runtime.run_log import node_times
from dspyer.runtime.streams import AsyncEvents, Events
from dspyer.stores.base import Change, Owner, Point
from dspyer.threads.changes import first_write_of_rerun
from dspyer.threads.keyed_runs import KeyedRun
from dspyer.threads.start import MAX_RESUMES, REPLACE, Delivery, FirstWrite, StoredThread, ThreadHead
from dspyer.values.scalars import check_flags
from dspyer.waiting import cancellation_count
from dspyer.worker_threads import run_in_thread

if TYPE_CHECKING:
    from dspyer.threads.thread import Thread

logger = logging.getLogger("dspyer")

LONGEST_PAUSE = 0.05
"""Most seconds between two attempts to acquire a thread."""

WAIT_OR_REPLACE = 'wait with on_conflict="wait", or replace the owner with take_over=True'


# --- the three starts: each checks a call, and returns the run to play


def new_play(
    thread: StoredThread,
    inputs: Mapping[str, Any],
    request: Request,
    if_open: str,
    take_over: bool,
    on_conflict: str,
    lock_timeout: float,
    key: str | None,
) -> Play:
    """Return the play of a new run, or of the run that a key identifies."""
    if on_conflict not in ("raise", "wait"):
        new = 'in the place of "merge", copy = thread.copy(to=...) and thread.merge(copy)'
        raise ThreadError(f'on_conflict={on_conflict!r}: it is "raise" or "wait"; {new}')
    if if_open not in ("refuse", "amend", "abandon"):
        raise ValueError(f'if_open={brief(if_open)}: it is "refuse", "amend" or "abandon"')
    patience = 0.0 if on_conflict == "raise" else lock_timeout
    if key is not None:
        keyed = KeyedRun(thread, key, inputs, request, if_open)
        return Play(thread, inputs, request, keyed.first_write, take_over, WAIT_OR_REPLACE, patience, keyed.as_stored)
    first = partial(thread.new_run, inputs=inputs, request=request, if_open=if_open)
    return Play(thread, inputs, request, first, take_over, WAIT_OR_REPLACE, patience)


def resumed_play(
    thread: StoredThread,
    delivery: Delivery,
    request: Request,
    take_over: bool,
    max_resumes: int,
    allow: bool,
) -> Play:
    """Return the play of the last run, to be resumed."""
    check_flags(allow_changed_graph=allow)
    first = partial(thread.resumed_run, delivery=delivery, request=request, max_resumes=max_resumes, allow=allow)
    return Play(thread, {}, request, first, take_over)


def recover_threads(store: CheckedStore, graph: str, thread: Callable[[str], Thread]) -> list[str]:
    """Resume the runs of a graph that are due, one by one, and return the names of their threads."""
    resumed = []
    for name in due_threads(store, graph):
        stored, request = thread(name)._stored, new_request(None, True, None)
        try:
            Play(stored, {}, request, partial(_first_write_if_due, stored, request), take_over=False).run()
        except ConcurrentRunError:
            continue  # its owner lives, or another process was faster
        except DspyerError as error:  # one thread that cannot go on must not keep the others from it
            logger.error("the run of thread %r cannot be resumed: %s", name, error, exc_info=error)
            continue
        resumed.append(name)
    return resumed


def _first_write_if_due(thread: StoredThread, request: Request, head: ThreadHead) -> FirstWrite | Request:
    """A run that has crashed, or of which a question has expired, resumed."""
    # Asked again where the thread is acquired: another process may have resumed the run, and it may have failed.
    last = head.last_run
    rows = () if last is None else last.rows
    since = due_since(last and last.status, next((row for row in reversed(rows) if row.kind == RowKind.END), None))
    if last is not None and last.status is not None and (since is None or since > wall()):
        raise ConcurrentRunError(f"another process has resumed the run of thread {thread.name!r}")
    return thread.resumed_run(head, Delivery(permits=False), request, MAX_RESUMES, allow=False)


def rerun_play(thread: StoredThread, version: int | str, request: Request, take_over: bool) -> Play:
    """Return the play of a run that repeats what came after a commit."""
    return Play(thread, {}, request, partial(first_write_of_rerun, thread, version), take_over)


# --- play


@dataclass(eq=False, repr=False)
class Play:
    """A run to play, with the four ways to do so. The thread is owned while it is played, and released in any case.

    Attributes:
        thread: the thread.
        inputs: those of the run.
        request: what asks for the run.
        first_write: checks everything and builds the run on a head; it is called again if the head was read again. It
            may return a request instead: of a run that is returned as it is stored, and needs no ownership.
        take_over: whether a live owner is replaced.
        remedy: what the error about a live owner advises.
        patience: the seconds to wait for another owner.
        as_stored: the request of a run that is returned as it is stored though another run owns the thread, if any.
    """

    thread: StoredThread
    inputs: Mapping[str, Any]
    request: Request
    first_write: Callable[[ThreadHead], FirstWrite | Request]
    take_over: bool
    remedy: str = REPLACE
    patience: float = 0.0
    as_stored: Callable[[], Request | None] = lambda: None
    # Set by `_acquire` and not its result, which a Ctrl-C could drop before it is assigned.
    _started: Request | None = field(default=None, init=False)
    _owned: tuple[Journal, Owner] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.take_over is not False:  # else, as mostly, there is nothing to find fault with
            check_flags(take_over=self.take_over)
        resources_of_call(self.thread.program, self.request)

    # These hold no run in a variable: the traceback of its error refers to their frames, and would keep it alive.

    def run(self) -> Run:
        """Play it."""
        program = self.thread.program
        with self.request.until_ctrl_c(), self._held() as started:
            if self._owned is None:
                return stored_run(program, started)
            return run_program(program, self.inputs, started)

    async def arun(self) -> Run:
        """Play it in async code."""
        program = self.thread.program
        async with self._aheld() as started:
            if self._owned is None:
                return stored_run(program, started)
            return await arun_program(program, self.inputs, started)

    def stream(self) -> Events:
        """Return its events; it begins with the first one that is asked for."""
        return Events(self.run, self.request)

    def astream(self) -> AsyncEvents:
        """Return its events in async code."""
        return AsyncEvents(self.arun, self.request)

    @contextmanager
    def _held(self) -> Iterator[Request]:
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
            assert self._started is not None
            yield self._started
        finally:
            self._release()

    @asynccontextmanager
    async def _aheld(self) -> AsyncIterator[Request]:
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
                await anyio.sleep(pause)  # between two attempts, as in `_held`
            else:
                await run_in_thread(self._acquire)
            if cancellation_count() > before:
                raise asyncio.CancelledError
            assert self._started is not None
            yield self._started
        finally:
            if self._owned is None or self._has_ended():
                self._release()  # writes nothing: no worker thread is needed
            else:
                await run_in_thread(self._release)  # however often the task is cancelled

    def _pauses(self) -> Iterator[float]:
        """Yield the seconds to sleep before each next attempt; raise if the run was stopped meanwhile."""
        end, pause = now() + self.patience, 0.001
        while (left := end - now()) > 0:
            reason = self.request.stop_signal.reason
            if reason is not None:
                raise RunStoppedError(
                    f"the run was stopped while it waited for its thread: {reason}. Nothing was started", reason
                )
            yield min(pause, left)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _try_acquire(self) -> bool:
        try:
            self._acquire()
        except ConcurrentRunError:
            return False
        return True

    def _acquire(self) -> None:
        """Acquire the thread and write the first rows of the run, or find that it is returned as it is stored."""
        thread = self.thread
        try:
            head = thread.load_head() if self.take_over else thread.load_free_head(self.remedy)
            first = self.first_write(head)  # all checks come before the first write
            if isinstance(first, Request):
                self._started = first
            else:
                self._write(head, first)
        except ConcurrentRunError:
            self._started = self.as_stored()
            if self._started is None:
                raise

    def _write(self, head: ThreadHead, first: FirstWrite) -> None:
        """Own the thread, and write the first rows, on a head that was read before."""
        owner = new_owner()
        replacing: Journal | None = None
        try:
            if head.row.owner is not None:
                # It may still be writing. Fence it off, then read again: all that it wrote until then is kept.
                replacing = leases.acquire(self.thread.store, head.row.name, head.row.epoch, owner)
                head = self.thread.load_head()
                again = self.first_write(head)
                if isinstance(again, Request):  # the other owner was alive, and has finished the run
                    replacing.release()
                    leases.let_go(owner.token)
                    self._started = again
                    return
                first = again
                first.records.took_over = True
            self._write_first(head, first, owner)
        except BaseException:
            leases.let_go(owner.token)
            if replacing is not None:
                replacing.release()
            raise

    def _write_first(self, head: ThreadHead, first: FirstWrite, owner: Owner) -> None:
        """Write owner, head and first rows in one transaction."""
        thread, row, run, seq = self.thread, head.row, first.run, first.first_seq
        rows = [one.numbered(seq + index) for index, one in enumerate(first.rows)]
        journal = Journal(thread.store, thread.name, 0, run.id, seq + len(rows))
        earlier = thread.store.rows(run.id, 0, seq - 1) if seq else ()
        journal.continue_after(run, rows, earlier, head.tail)
        # The lease is held before the write makes the owner visible: another thread of this process that saw the owner
        # and no lease would take it for dead.
        leases.hold(owner.token, journal)
        change = Change(
            thread.name,
            row.epoch,
            row.epoch + 1 if row.epoch else None,
            owner,
            LEASE,
            head=Point(run.id, rows[-1].seq),
            run=None if seq else run,
            rows_of=run.id,
            rows=rows,
            flush=True,
        )
        journal.set_epoch(thread.store.write(change))
        self._owned = journal, owner
        # The signal and not the request, which refers to the sessions and so to the journal: they would form a cycle.
        journal.lost = partial(self.request.stop_signal.stop, "its thread was stopped or taken over")
        first.records.journal = journal
        options = self.request.options._replace(live=run.header.get("live", True))  # of a resumed run as it was begun
        self._started = replace(self.request, options=options, run_start=first.start, records=first.records)

    def _has_ended(self) -> bool:
        """Return whether the run has written its end, which releases the thread in the same transaction."""
        sessions = self.request.outcome.sessions
        log = sessions[-1].log if sessions else None
        return log is not None and log.end_written

    def _release(self) -> None:
        """Release the thread.

        A run that was stopped before its first step is written as stopped; one that could not write its end (a store
        that fails, an exception that tears it out) only releases the thread, and counts as crashed.
        """
        if self._owned is None:
            return
        journal, owner = self._owned
        try:
            started = self._started
            if started is not None and not started.outcome.sessions:
                with suppress(DspyerError):  # the thread is released below, or its lease runs out
                    records, start = started.records, started.run_start
                    assert records is not None
                    assert start is not None
                    steps = len(start.run.log)
                    used, totals, nodes = records.used_before, records.totals_before, records.nodes_before
                    commits = node_times(start.run.log)
                    end = end_row("stopped", None, (), used, steps, totals, commits=commits, nodes=nodes)
                    journal.write(NewRows([end], flush=True, release=True))
            if not self._has_ended():
                journal.release()
        finally:
            leases.let_go(owner.token)


# --- stop


def stop_run(thread: StoredThread) -> None:
    """Write the end of the run that owns a thread, under a new epoch: the owner can commit nothing more.

    Raises `ThreadError` if no run owns the thread.
    """
    owner = new_owner()
    owner = owner._replace(token=STOPPING + owner.token)
    fenced = False  # whether the run that owned the thread can write no more
    while True:
        row = thread.store.thread(thread.name)
        if fenced and (row is None or row.owner is None or not row.owner.token.startswith(STOPPING)):
            return  # another call has written the end, or a later run has the thread
        if row is None or not is_alive(row):
            raise ThreadError(f"no run works on thread {thread.name!r}: there is nothing to stop")
        journal: Journal | None = None
        try:
            # First the fence, then the head: the owner may commit until then, and all of that is kept.
            journal = leases.acquire(thread.store, row.name, row.epoch, owner)
            fenced = True
            head = thread.load_head()
            if head.last_run is not None and head.last_run.status is None:
                _write_stopped(thread, head, journal.epoch)
        except ConcurrentRunError:
            continue  # another process was faster
        finally:
            if journal is not None:
                journal.release()  # of no effect after the write, which has released the thread
            leases.let_go(owner.token)
        if row.owner is not None:
            leases.renew_now(row.owner.token)
        return


def _write_stopped(thread: StoredThread, head: ThreadHead, epoch: int, next_epoch: int | None = None) -> None:
    """Write that the last run of a thread was stopped; the thread has no owner then."""
    at = head.row.head
    assert at is not None
    end = thread.end_of_open(read_run(thread.store, at), head.row.root).numbered(at.seq + 1)
    point = Point(at.run, end.seq)
    thread.store.write(
        Change(thread.name, epoch, next_epoch, lease=0.0, head=point, rows_of=at.run, rows=[end], flush=True)
    )


def stop_waiting(handle: Thread) -> None:
    """End the last run of a thread if it waits for answers: it is stopped then, as by its user.

    Raises `ConcurrentRunError` if a run owns the thread.
    """
    thread = handle._stored
    head = thread.load_head_without_owner()
    if head.last_run is not None and head.last_run.status == "interrupted":
        _write_stopped(thread, head, head.row.epoch, head.row.epoch + 1)
