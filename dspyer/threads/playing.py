"""Play a run while holding its thread; stop the run that holds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from dspyer.blocking import cancellation_count
from dspyer.errors import ConcurrentRunError, ThreadError
from dspyer.event_queue import EventQueue
from dspyer.events import Event
from dspyer.persistence.journal import STOPPING, Journal
from dspyer.persistence.leases import is_alive, leases, new_owner
from dspyer.persistence.reader import read_run
from dspyer.persistence.rows import end_row
from dspyer.persistence.time_travel import ThreadReader
from dspyer.persistence.totals import run_usage, totals_at
from dspyer.runtime.request import Request
from dspyer.runtime.run import Run
from dspyer.runtime.streams import AsyncEvents, Events
from dspyer.stores.base import Change, Point
from dspyer.threads.changes import first_write_of_rerun
from dspyer.threads.graph_changes import AllowChanged
from dspyer.threads.keyed_runs import KeyedRuns, RunKey
from dspyer.threads.merge_on_finish import MergeOnFinish
from dspyer.threads.ownership import WAIT_OR_REPLACE, StoredRun, ThreadLock
from dspyer.threads.start import RunStarter, ThreadHead
from dspyer.threads.thread_program import AnswersByKey, ThreadProgram
from dspyer.values.scalars import check_flags
from dspyer.worker_threads import run_in_thread

if TYPE_CHECKING:
    from dspyer.threads.thread import Thread


class Play(NamedTuple):
    """A run to play: with which inputs, under which lock, and as which request."""

    player: RunPlayer
    inputs: Mapping[str, Any]
    lock: ThreadLock
    request: Request

    def run(self) -> Run:
        """Play it."""
        return self.player.play(self.inputs, self.lock)

    async def arun(self) -> Run:
        """Play it in async code."""
        return await self.player.aplay(self.inputs, self.lock)

    def stream(self) -> Events:
        """Its events; it begins with the first one that is asked for."""
        return Events(lambda queue: self.player.play(self.inputs, self.lock, queue), self.request)

    def astream(self) -> AsyncEvents:
        """The same in async code."""
        return AsyncEvents(lambda queue: self.player.aplay(self.inputs, self.lock, queue), self.request)


class RunPlayer:
    """Plays the runs of one thread.

    `new`, `last` and `rerun` check a call, and return the run to play.
    """

    def __init__(
        self, program: ThreadProgram, starter: RunStarter, reader: ThreadReader, merge_on_finish: MergeOnFinish
    ) -> None:
        self._program = program
        self._starter = starter
        self._reader = reader
        self._merge_on_finish = merge_on_finish
        self._keyed_runs = KeyedRuns(starter)

    def new(
        self,
        inputs: Mapping[str, Any],
        request: Request,
        abandon: bool,
        take_over: bool,
        on_conflict: str,
        lock_timeout: float,
        key: str | None,
    ) -> Play:
        """The play of a new run, or of the run that a key identifies."""
        check_flags(abandon=abandon, take_over=take_over)
        self._program._check_resources(request)
        first = partial(self._starter.first_of_new, inputs=inputs, request=request, abandon=abandon)
        acquire = partial(self._starter.acquire, first, request, take_over=take_over, remedy=WAIT_OR_REPLACE)
        if key is not None:
            run_key = RunKey.of(key, inputs, on_conflict, self._starter.graph)
            acquire = partial(self._keyed_runs.start, inputs, run_key, request, abandon=abandon, take_over=take_over)
        elif on_conflict == "merge":
            acquire = partial(self._merge_on_finish.start, inputs, request, abandon=abandon)
        return Play(self, inputs, ThreadLock(acquire, request, on_conflict, lock_timeout), request)

    def last(
        self, answers: AnswersByKey, request: Request, take_over: bool, max_resumes: int, allow: AllowChanged
    ) -> Play:
        """The play of the last run, to be resumed."""
        check_flags(take_over=take_over)
        self._program._check_resources(request)
        resume = self._starter.first_of_last
        first = partial(resume, answers=answers, request=request, max_resumes=max_resumes, allow=allow)
        acquire = partial(self._starter.acquire, first, request, take_over=take_over)
        return Play(self, {}, ThreadLock(acquire, request, "raise", 0.0), request)

    def rerun(self, version: int | str, request: Request, take_over: bool) -> Play:
        """The play of a run that repeats what came after a commit."""
        check_flags(take_over=take_over)
        self._program._check_resources(request)
        first_write = partial(first_write_of_rerun, self._starter, self._reader, version)
        acquire = partial(self._starter.acquire, first_write, request, take_over=take_over)
        return Play(self, {}, ThreadLock(acquire, request, "raise", 0.0), request)

    # These hold no run in a variable: the traceback of its error refers to their frames, and would keep it alive.

    def play(self, inputs: Mapping[str, Any], lock: ThreadLock, queue: EventQueue[Event] | None = None) -> Run:
        """The run, once it has ended."""
        return self._finish(self._play_held(inputs, lock, queue), lock)

    async def aplay(self, inputs: Mapping[str, Any], lock: ThreadLock, queue: EventQueue[Event] | None = None) -> Run:
        """The same in async code."""
        return await self._afinish(await self._aplay_held(inputs, lock, queue), lock)

    def _play_held(self, inputs: Mapping[str, Any], lock: ThreadLock, queue: EventQueue[Event] | None) -> Run:
        with lock.request.until_ctrl_c(), lock.held() as held:
            if isinstance(held, StoredRun):
                return self._program._as_stored(held.request, queue)
            return self._program._run(inputs, held.request, queue)

    async def _aplay_held(self, inputs: Mapping[str, Any], lock: ThreadLock, queue: EventQueue[Event] | None) -> Run:
        async with lock.aheld() as held:
            if isinstance(held, StoredRun):
                return self._program._as_stored(held.request, queue)
            return await self._program._arun(inputs, held.request, queue)

    def _finish(self, run: Run, lock: ThreadLock) -> Run:
        for pause in self._merge_on_finish.attempts(run, lock):
            time.sleep(pause)
        return run

    async def _afinish(self, run: Run, lock: ThreadLock) -> Run:
        if lock.owned is None or lock.owned.journal.thread:  # it owns its thread: no worker thread is needed
            return run
        before = cancellation_count()
        attempt = partial(next, self._merge_on_finish.attempts(run, lock), None)
        while True:
            pause = await run_in_thread(attempt)
            if cancellation_count() > before:
                raise asyncio.CancelledError  # held back until the attempt has ended: none is made any more
            if pause is None:
                return run
            await anyio.sleep(pause)


def stop_run(starter: RunStarter) -> None:
    """Write the end of the run that owns a thread, under a new epoch: the owner can commit nothing more.

    Raises `ThreadError` if no run owns the thread.
    """
    owner = new_owner()
    owner = owner._replace(token=STOPPING + owner.token)
    fenced = False  # whether the run that owned the thread can write no more
    while True:
        row = starter.store.thread(starter.thread)
        if fenced and (row is None or row.owner is None or not row.owner.token.startswith(STOPPING)):
            return  # another call has written the end, or a later run has the thread
        if row is None or not is_alive(row):
            raise ThreadError(f"no run works on thread {starter.thread!r}: there is nothing to stop")
        journal: Journal | None = None
        try:
            # First the fence, then the head: the owner may commit until then, and all of that is kept.
            journal = starter.replace_owner(row, owner)
            fenced = True
            head = starter.load_head()
            if head.last_run is not None and head.last_run.status is None:
                _write_stopped(starter, head, journal.epoch)
        except ConcurrentRunError:
            continue  # another process was faster
        finally:
            if journal is not None:
                journal.release()  # of no effect after the write, which has released the thread
            leases.let_go(owner.token)
        if row.owner is not None:
            leases.renew_now(row.owner.token)
        return


def _write_stopped(starter: RunStarter, head: ThreadHead, epoch: int, next_epoch: int | None = None) -> None:
    """Write that the last run of a thread was stopped; the thread has no owner then."""
    at = head.row.head
    assert at is not None
    run = read_run(starter.store, at)
    steps = sum(1 for _ in run.own_commits())
    before = totals_at(starter.store, run.parents, head.row.root)
    end = end_row("stopped", None, (), run_usage(run.rows), steps, before).numbered(at.seq + 1)
    point = Point(at.run, end.seq)
    starter.store.write(
        Change(starter.thread, epoch, next_epoch, lease=0.0, head=point, rows_of=at.run, rows=[end], flush=True)
    )


def stop_waiting(thread: Thread) -> None:
    """End the last run of a thread if it waits for answers: it is stopped then, as by its user.

    Raises `ConcurrentRunError` if a run owns the thread.
    """
    starter = thread._starter
    head = starter.load_head_without_owner()
    if head.last_run is not None and head.last_run.status == "interrupted":
        _write_stopped(starter, head, head.row.epoch, head.row.epoch + 1)
