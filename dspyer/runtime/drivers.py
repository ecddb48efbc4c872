"""The two drivers: they run what a session starts, in threads for sync code and in tasks for async code.

The split is that of a sans-I/O protocol, as in h11: the scheduler and the session decide without waiting, a driver
waits without deciding. Both drivers have the same loop:

1. `start_ready`: begin what may start.
2. Write the rows of everything that has happened. Only after that does anything start that depends on it.
3. Run what has begun. A lone branch runs in the caller's thread or task: most graphs never fork, and a switch of
   threads costs more than the rest of a step.
4. Wait for one outcome, and `_settle` it. A stored run also settles the others that have arrived by then, so that one
   write holds them all.

A stop or an exception lets nothing new start. What runs is awaited, committed and written before the exception is
raised: a result that was paid for is not lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NoReturn

import anyio

from dspyer.blocking import cancellation_count
from dspyer.ctrl_c import gives_up
from dspyer.dspy_module.executing import Executing, executing, executing_here
from dspyer.dspy_module.tracing import count_calls, recording
from dspyer.errors import DspyerError, Interrupt, RunStoppedError
from dspyer.nodes.steps import arun_script, run_script
from dspyer.nodes.sync_async import async_bridge
from dspyer.runtime.execution import script
from dspyer.runtime.request import CANCELLED, INTERRUPTED
from dspyer.runtime.run_log import RunLog
from dspyer.runtime.session import Session
from dspyer.runtime.straight import straight_paths
from dspyer.runtime.workers import TaskWorkers, ThreadWorkers, WorkOutcome, run_here
from dspyer.scheduler.run_state import Execution

# --- sync


def drive(session: Session, **overrides: Any) -> None:
    """Runs a session to its end with threads, under DSPy's settings with `overrides`."""
    raised: list[BaseException] = []  # a list, since a variable would form a cycle with the traceback of the error
    with (
        executing_here(session.program) as here,
        recording(**overrides) as steps,
        async_bridge() as cancel,
        session.stop_signal.on_stop(partial(_cancel_async, session, cancel)),
        ThreadWorkers() as threads,
        nullcontext() if session.limit is None else session.limit.on_leave(session.hand_over),
    ):
        session.together.wake = threads.wake
        try:
            _drive(session, threads, steps, here)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C too is raised after what runs has finished
            raised.append(error)
            session.stop(f"{type(error).__name__} was raised")
            if not gives_up():
                _drive(session, threads, steps, here)
    if session.log is not None:
        _write_end(session, session.log)
    if raised:
        _raise(raised.pop())


def _drive(session: Session, threads: ThreadWorkers, steps: list[Any], here: Executing) -> None:
    straight = straight_paths(session)
    while True:
        if session.events.queue is not None and not session.stopped:
            session.events.queue.wait_for_room()
        started = session.start_ready()
        if session.log is not None and _must_not_start(session, started, _write(session, session.log)):
            started = []
        if len(started) == 1 and not threads.busy and not session.more_to_start:
            if not session.ids.called_in:
                here.enter(session.ids.around + started[0].id, started[0].node)
            path = straight.get(started[0].node)
            job = (run_script, script(session, started[0])) if path is None else (path.call, session, started[0])
            _settle(session, started[0], run_here(steps, *job))
            continue
        for execution in started:
            if not session.ids.called_in:
                executing.set(Executing(session.ids.around + execution.id, execution.node, session.program))
            path = straight.get(execution.node)
            job = (run_script, script(session, execution)) if path is None else (path.call, session, execution)
            threads.start(execution, *job)
        if not threads.busy:
            return
        _settle(session, *threads.next())
        while session.log is not None and threads.done:
            _settle(session, *threads.next())


def _cancel_async(session: Session, cancel: Callable[[str], None], reason: str) -> None:
    """Cancels the async nodes of a stopped run, unless they are to be finished."""
    if session.stop_signal.error is None:
        cancel(reason)


def _write(session: Session, log: RunLog) -> bool:
    """Writes the rows of everything since the last write, and publishes their events; returns whether it succeeded.

    A run in a node that timed out and was left running writes nothing: `writing` raises.
    """
    accepted: list[bool] = []
    try:
        with nullcontext() if session.limit is None else session.limit.writing():
            rows = log.new_rows(session.run)
            if rows:
                log.journal.write(rows, log.snapshot_state(session.run, rows), accepted=accepted)
            log.run = session.run  # in the block: what is written is what the run would hand over
    except DspyerError as error:
        session.write_failed(log, error)
        return False
    except BaseException:  # the handler of a signal
        if accepted:
            session.written(log)
        raise
    session.written(log)
    return True


def _write_end(session: Session, log: RunLog) -> None:
    """Writes the end row of the run, and releases its thread in the same transaction."""
    if session.scope or log.cannot_write:
        return  # a run inside another one ends with the commit of its node
    try:
        rows = session.end_rows(log)
        log.journal.write(rows, log.snapshot_state(session.run, rows), flush=True, release=True)
        log.ended(session.run, rows[-1])
        if gives_up():  # nodes may be left running: nothing that they do counts any more
            log.journal.broken = RunStoppedError("", INTERRUPTED).told(session.graph.name, "Its end is written")
    except DspyerError as error:
        session.write_failed(log, error)


# --- async


async def adrive(session: Session, **overrides: Any) -> None:
    """Runs a session to its end with tasks, under DSPy's settings with `overrides`."""
    before = cancellation_count()
    with executing_here(session.program) as here, recording(**overrides) as steps:
        async with TaskWorkers() as tasks:
            session.together.wake = tasks.wake
            stopping = partial(_cancel_async, session, tasks.cancel_from_any_thread)
            with session.stop_signal.on_stop(stopping):
                raised = await _until_end(session, tasks, steps, here, before)
    if session.log is not None:
        with anyio.CancelScope(shield=True):
            await _awrite_end(session, session.log)
    if raised:
        _raise(raised.pop())
    if cancellation_count() > before:  # held back while a thread worked or the store wrote
        raise asyncio.CancelledError


async def _until_end(
    session: Session, tasks: TaskWorkers, steps: list[Any], here: Executing, before: int
) -> list[BaseException]:
    """Drives a session until nothing runs any more; returns the exception that ended it early, if one did.

    `before` is the number of cancellations of the task when the run began: a higher one means that the caller has
    cancelled this run.
    """
    raised: list[BaseException] = []  # a list, since a variable would form a cycle with the traceback of the error
    try:
        await _adrive(session, tasks, steps, here, before)
    except BaseException as error:  # noqa: BLE001 - raised by the caller after what runs has finished
        cancelled = isinstance(error, asyncio.CancelledError)
        # A node may have raised it since the run was stopped, as a graph within a graph does: nothing has cancelled
        # this task, so nothing is raised.
        by_the_stop = cancelled and session.stopped and cancellation_count() <= before
        if not by_the_stop:
            raised.append(error)
        session.stop(CANCELLED if cancelled else f"{type(error).__name__} was raised")
    else:
        return raised
    running = True
    with anyio.CancelScope(shield=True):
        while running:
            tasks.cancel()
            # A further cancellation cancels the async nodes again; sync nodes cannot be cancelled and are awaited.
            # `raised` has the exception to raise, so a later `SystemExit` of a node is dropped. A later Ctrl-C is not:
            # it ends this wait.
            with suppress(asyncio.CancelledError, SystemExit):
                await _adrive(session, tasks, steps, here, cancellation_count())
                running = False
    return raised


async def _adrive(session: Session, tasks: TaskWorkers, steps: list[Any], here: Executing, before: int) -> None:
    straight = straight_paths(session)
    while True:
        if cancellation_count() > before:
            raise asyncio.CancelledError  # it was held back while a sync node worked
        if session.events.queue is not None and not session.stopped:
            await session.events.queue.room()
        started = session.start_ready()
        if session.log is not None:
            written = await _awrite(session, session.log)
            held_back = cancellation_count() > before
            if held_back:
                session.stop(CANCELLED)
            if _must_not_start(session, started, written):
                started = []
            if held_back:
                raise asyncio.CancelledError
        if len(started) == 1 and not tasks.busy and not session.more_to_start:
            try:
                if not session.ids.called_in:
                    here.enter(session.ids.around + started[0].id, started[0].node)
                path = straight.get(started[0].node)
                job = (arun_script, script(session, started[0])) if path is None else (path.acall, session, started[0])
                outcome = await tasks.run_here(steps, *job)
            except asyncio.CancelledError:
                session.leave_open(started[0])
                raise
            _settle(session, started[0], outcome)
            continue
        for execution in started:
            if not session.ids.called_in:
                executing.set(Executing(session.ids.around + execution.id, execution.node, session.program))
            path = straight.get(execution.node)
            job = (arun_script, script(session, execution)) if path is None else (path.acall, session, execution)
            tasks.start(execution, *job)
        if not tasks.busy:
            return
        _settle(session, *await tasks.next())
        while session.log is not None and tasks.done:
            _settle(session, *await tasks.next())


async def _awrite(session: Session, log: RunLog) -> bool:
    accepted: list[bool] = []
    try:
        rows = log.new_rows(session.run)
        if rows:
            await log.journal.awrite(rows, log.snapshot_state(session.run, rows), accepted=accepted)
    except DspyerError as error:
        session.write_failed(log, error)
        return False
    except BaseException:  # Ctrl-C, while the store wrote on the event loop
        if accepted:
            session.written(log)
        raise
    session.written(log)
    return True


async def _awrite_end(session: Session, log: RunLog) -> None:
    if session.scope or log.cannot_write:
        return
    try:
        rows = session.end_rows(log)
        await log.journal.awrite(rows, log.snapshot_state(session.run, rows), flush=True, release=True)
        log.ended(session.run, rows[-1])
    except DspyerError as error:
        session.write_failed(log, error)


# --- both


def _settle(session: Session, execution: Execution | None, outcome: WorkOutcome) -> None:
    """Passes an outcome to the session; raises at once what is neither an `Exception` nor an `Interrupt`: Ctrl-C."""
    if execution is None:
        return  # a wake-up
    transition, error, steps = outcome
    if isinstance(error, asyncio.CancelledError) and (session.stopped or session.cuts_off):
        session.leave_open(execution)
        return
    if error is not None and not isinstance(error, (Exception, Interrupt)):
        session.leave_open(execution)
        raise error
    if steps and error is None:
        transition = transition._replace(calls=count_calls(steps))
    if session.layers.writes and error is None:
        error = session.add_rows(execution, transition)
    session.finish(execution, transition if error is None else error, steps)


def _must_not_start(session: Session, started: list[Execution], written: bool) -> bool:
    """Whether the write failed or the run was stopped; then the executions are left open, and must not be called."""
    if written and not session.stopped:
        return False
    for execution in started:
        session.leave_open(execution)
    return True


def _raise(error: BaseException) -> NoReturn:
    """Raises an exception that was held back, without a cycle between its traceback and this frame."""
    try:
        raise error
    finally:
        del error
