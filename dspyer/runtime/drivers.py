"""The two drivers, threads for sync code and tasks for async code: they start calls and decide nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, NoReturn, cast

import anyio

from dspyer.blocking import cancellation_count
from dspyer.dspy_module.tracing import count_calls, recording
from dspyer.errors import DspyerError, Interrupt
from dspyer.nodes.node import Decision, Reply
from dspyer.nodes.router import Router
from dspyer.nodes.sync_async import async_bridge
from dspyer.runtime.execution import CallScript, script
from dspyer.runtime.request import CANCELLED
from dspyer.runtime.session import Session
from dspyer.runtime.workers import TaskWorkers, ThreadWorkers, WorkOutcome, aattempt_here, attempt_here
from dspyer.scheduler.run_state import Execution, Transition
from dspyer.scheduler.schedule import plan


def follow(calls: CallScript) -> Transition:
    """Makes the calls of a script in sync code."""
    reply: Reply | Decision | None = None
    while True:
        try:
            step, call = calls.send(reply)
        except StopIteration as done:
            return cast(Transition, done.value)
        reply = step.decide(call) if isinstance(step, Router) else step.call(call)


async def afollow(calls: CallScript) -> Transition:
    """Makes the calls of a script in async code."""
    reply: Reply | Decision | None = None
    while True:
        try:
            step, call = calls.send(reply)
        except StopIteration as done:
            return cast(Transition, done.value)
        reply = await (step.adecide(call) if isinstance(step, Router) else step.acall(call))


def drive(session: Session, **overrides: Any) -> None:
    """Runs a session to its end with threads. A lone branch runs on the caller's thread.

    Args:
        session: the run.
        overrides: DSPy settings for it.
    """
    raised: list[BaseException] = []  # no variable keeps it: its traceback refers to this frame
    with (
        recording(**overrides) as steps,
        async_bridge() as cancel,
        session.stop_signal.on_stop(cancel),
        ThreadWorkers(session.most_threads) as threads,
        session.driven(threads.nudge),
    ):
        try:
            _drive(session, threads, steps)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C: what runs comes to its end first
            raised.append(error)
            session.stop(f"{type(error).__name__} was raised")
            _drive(session, threads, steps)
    if session.unsaved is not None:
        end(session)
    if raised:
        reraise(raised.pop())


def _drive(session: Session, threads: ThreadWorkers, steps: list[Any]) -> None:
    while True:
        started = session.start_ready()
        if session.unsaved is not None and started_in_vain(session, started, save(session)):
            started = []
        if len(started) == 1 and not threads.busy and not plan(session.run):
            calls = script(session, started[0])
            settle(session, started[0], attempt_here(steps, follow, calls))
            continue
        for execution in started:
            calls = script(session, execution)
            threads.start(execution, follow, calls)
        if not threads.busy:
            return
        settle(session, *threads.next())
        while session.unsaved is not None and threads.done:
            settle(session, *threads.next())


async def adrive(session: Session, **overrides: Any) -> None:
    """Runs a session to its end with tasks. A lone branch runs in the caller's task.

    Args:
        session: the run.
        overrides: DSPy settings for it.
    """
    before = cancellation_count()
    with recording(**overrides) as steps:
        async with TaskWorkers() as tasks:
            with session.driven(tasks.nudge):
                raised = await _until_end(session, tasks, steps, before)
    if session.unsaved is not None:
        with anyio.CancelScope(shield=True):
            await aend(session)
    if raised:
        reraise(raised.pop())
    if cancellation_count() > before:  # held back while a thread worked or the store wrote
        raise asyncio.CancelledError


async def _until_end(session: Session, tasks: TaskWorkers, steps: list[Any], before: int) -> list[BaseException]:
    """Drives a session until nothing runs any more; gives what cut that off.

    Args:
        session: the run.
        tasks: what runs.
        steps: the trace.
        before: how many cancellation_count of the task there were before.
    """
    raised: list[BaseException] = []  # no variable keeps it: its traceback refers to this frame
    try:
        await _adrive(session, tasks, steps, before)
    except BaseException as error:  # noqa: BLE001 - raised by the caller, once what runs has come to its end
        cancelled = isinstance(error, asyncio.CancelledError)
        if not (
            cancelled and session.stopped and cancellation_count() <= before
        ):  # else a call cut off by the stop itself
            raised.append(error)
        session.stop(CANCELLED if cancelled else f"{type(error).__name__} was raised")
    else:
        return raised
    going = True
    with anyio.CancelScope(shield=True):
        while going:
            tasks.cancel()
            # a further cancellation goes to the async nodes; sync ones come to their end nevertheless
            with suppress(asyncio.CancelledError, SystemExit):
                await _adrive(session, tasks, steps, cancellation_count())
                going = False
    return raised


async def _adrive(session: Session, tasks: TaskWorkers, steps: list[Any], before: int) -> None:
    while True:
        if cancellation_count() > before:
            raise asyncio.CancelledError  # it was held back while a sync node worked
        started = session.start_ready()
        if session.unsaved is not None:
            saved = await asave(session)
            held_back = cancellation_count() > before
            if held_back:
                session.stop(CANCELLED)
            if started_in_vain(session, started, saved):
                started = []
            if held_back:
                raise asyncio.CancelledError
        if len(started) == 1 and not tasks.busy and not plan(session.run):
            calls = script(session, started[0])
            try:
                outcome = await aattempt_here(steps, afollow, calls)
            except asyncio.CancelledError:
                session.leave(started[0])
                raise
            settle(session, started[0], outcome)
            continue
        for execution in started:
            calls = script(session, execution)
            tasks.start(execution, afollow, calls)
        if not tasks.busy:
            return
        settle(session, *await tasks.next())
        while session.unsaved is not None and tasks.done:
            settle(session, *await tasks.next())


def reraise(error: BaseException) -> NoReturn:
    """Raises an exception that was held back; its traceback refers to frames that should not refer to it."""
    try:
        raise error
    finally:
        del error


def started_in_vain(session: Session, started: list[Execution], saved: bool) -> bool:
    """Whether what was about to start does not: the store failed, or the run was stopped while it wrote."""
    if saved and not session.stopped:
        return False
    for execution in started:
        session.leave(execution)
    return True


def save(session: Session) -> bool:
    """Writes down what has happened, before anything that depends on it starts; says whether that went well."""
    assert session.journal is not None
    drafts = session.drafts()
    try:
        if drafts:
            session.journal.write(drafts, session.rested(drafts))
    except DspyerError as error:
        session.lose(error)
        return False
    session.saved()
    return True


async def asave(session: Session) -> bool:
    """The same in async code."""
    assert session.journal is not None
    drafts = session.drafts()
    try:
        if drafts:
            await session.journal.awrite(drafts, session.rested(drafts))
    except DspyerError as error:
        session.lose(error)
        return False
    session.saved()
    return True


def end(session: Session) -> None:
    """Writes down how the run ended; a run inside another one ends with the commit of its node."""
    if session.journal is None or session.scope or session.cut_off:
        return
    try:
        drafts = session.last_drafts()
        session.journal.write(drafts, session.rested(drafts), flush=True, release=True)
        session.end_written = True
    except DspyerError as error:
        session.lose(error)


async def aend(session: Session) -> None:
    """The same in async code."""
    if session.journal is None or session.scope or session.cut_off:
        return
    try:
        drafts = session.last_drafts()
        await session.journal.awrite(drafts, session.rested(drafts), flush=True, release=True)
        session.end_written = True
    except DspyerError as error:
        session.lose(error)


def settle(session: Session, execution: Execution | None, outcome: WorkOutcome) -> None:
    """Hands an outcome to the session; what is no `Exception` (an interrupt of the process) goes on up at once."""
    if execution is None:
        return  # a nudge
    transition, error, steps = outcome
    if isinstance(error, asyncio.CancelledError) and session.stopped:
        session.leave(execution)
        return
    if error is not None and not isinstance(error, (Exception, Interrupt)):
        session.leave(execution)
        if session.unsaved is not None:
            save(session)  # what has finished beside it
        raise error
    if steps and error is None:
        transition = transition._replace(calls=count_calls(steps))
    session.finish(execution, transition if error is None else error, steps)
