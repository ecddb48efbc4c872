"""The two drivers, and the calls of programs: what a session starts runs in threads, and for async code in tasks.

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

Below the drivers, `call_program` is one call of a program, from the request in DSPy's settings to its prediction;
`run_program` puts the request there, and makes a `Run` of what comes of the call.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NoReturn

import anyio
import dspy

from dspyer import tracing
from dspyer.errors import DspyerError, InputError, Interrupt, Interrupted, RunStoppedError, is_lost_work
from dspyer.events import Asked
from dspyer.executors import ExecutorCall, lost
from dspyer.graph.spec import GraphSpec, check_inputs, check_inputs_by_name
from dspyer.ids import full_id, new_run_id
from dspyer.layers.layer import Layer, layers_around
from dspyer.layers.redacted import Streaming
from dspyer.lm.not_public import SEND_STREAM
from dspyer.lm.tap import LMRecorder, LMRetryNotes, Subscriber, subscriber, subscribing
from dspyer.lm.token_stream import StreamedCall, TokenCallback
from dspyer.lm.tracing import (
    Executing,
    append_to_trace,
    count_calls,
    executing,
    executing_here,
    executing_id,
    is_rejected,
    recording,
)
from dspyer.log.execution_records import no_answer
from dspyer.log.journal import NewRows
from dspyer.log.replay import replay
from dspyer.nodes.attempt import first_of
from dspyer.nodes.binding import check_resources
from dspyer.nodes.steps import arun_script, async_bridge, run_script
from dspyer.patch import DELETE, diff_value, seal
from dspyer.runtime.execution import TaskWorkers, ThreadWorkers, WorkOutcome, run_here, script, straight_paths
from dspyer.runtime.inner_runs import check_same_inputs, is_part
from dspyer.runtime.request import CALLED, CANCELLED, INTERRUPTED, REQUEST, UNFINISHED, Request, RunStart
from dspyer.runtime.run import ATTRIBUTE as LINK
from dspyer.runtime.run import Prediction, Run, RunLink, take_run
from dspyer.runtime.run_log import RunLog
from dspyer.runtime.session import Session, lm_watchers
from dspyer.scheduler.schedule import Execution, start
from dspyer.scheduler.topology import Topology
from dspyer.state import ImmutableState
from dspyer.values.freezing import same
from dspyer.values.frozen import thaw
from dspyer.waiting import cancellation_count, gives_up

_NOTHING_AROUND: AbstractContextManager[None] = nullcontext()

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
            session.stop_signal.stop(f"{type(error).__name__} was raised")
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
        if session.log is not None:
            _write(session, session.log)
            started = _that_may_be_called(session, session.log, started)
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


def _write(session: Session, log: RunLog) -> None:
    """Writes the rows of everything since the last write, and publishes their events; stops the run if it fails.

    A run in a node that timed out and was left running writes nothing: `writing` raises.
    """
    new: NewRows | None = None
    try:
        with nullcontext() if session.limit is None else session.limit.writing():
            rows = log.new_rows(session.run)
            if rows:
                new = NewRows(rows, log.snapshot_state(session.run, rows))
                log.journal.write(new)
            log.run = session.run  # in the block: what is written is what the run would hand over
    except DspyerError as error:
        session.write_failed(log, error)
    except BaseException:  # the handler of a signal
        if new is not None and new.accepted:
            session.written(log)
        raise
    else:
        session.written(log)


def _write_end(session: Session, log: RunLog) -> None:
    """Writes the end row of the run, and releases its thread in the same transaction."""
    if session.scope or log.cannot_write:
        return  # a run inside another one ends with the commit of its node
    try:
        rows = session.end_rows(log)
        log.journal.write(NewRows(rows, log.snapshot_state(session.run, rows), flush=True, release=True))
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
        session.stop_signal.stop(CANCELLED if cancelled else f"{type(error).__name__} was raised")
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
            await _awrite(session, session.log)
            held_back = cancellation_count() > before
            if held_back:
                session.stop_signal.stop(CANCELLED)
            started = _that_may_be_called(session, session.log, started)
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


async def _awrite(session: Session, log: RunLog) -> None:
    new: NewRows | None = None
    try:
        rows = log.new_rows(session.run)
        if rows:
            new = NewRows(rows, log.snapshot_state(session.run, rows))
            await log.journal.awrite(new)
    except DspyerError as error:
        session.write_failed(log, error)
    except BaseException:  # Ctrl-C, while the store wrote on the event loop
        if new is not None and new.accepted:
            session.written(log)
        raise
    else:
        session.written(log)


async def _awrite_end(session: Session, log: RunLog) -> None:
    if session.scope or log.cannot_write:
        return
    try:
        rows = session.end_rows(log)
        await log.journal.awrite(NewRows(rows, log.snapshot_state(session.run, rows), flush=True, release=True))
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
    session.finish(execution, transition if error is None else error, steps)


def _that_may_be_called(session: Session, log: RunLog, started: list[Execution]) -> list[Execution]:
    """The executions that have begun; none if the write failed or the run was stopped: then they are left open."""
    if not session.stopped or (session.only_begins and log.error is None):
        return started
    for execution in started:
        session.leave_open(execution)
    return []


def _raise(error: BaseException) -> NoReturn:
    """Raises an exception that was held back, without a cycle between its traceback and this frame."""
    try:
        raise error
    finally:
        del error


# --- one call of a program, from its request to its result


def call_program(program: Any, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> dspy.Prediction:
    """Runs the graph of a program as the request in DSPy's settings says, and returns its outputs."""
    request = _request_of(program, args)
    if vars(program).get("_executor") is not None and not _stays_here():
        return _executor_call(program, request, inputs, is_async=False).run()
    with request.until_ctrl_c():
        session = _open(program, request, inputs)
        try:
            with session.layers.running(session) if session.layers.runs else _NOTHING_AROUND:
                drive(session, **settings_inside(session))
        finally:
            _close(session, request)
        return _result(session, request)


async def acall_program(program: Any, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> dspy.Prediction:
    """The same in async code."""
    request = _request_of(program, args)
    if vars(program).get("_executor") is not None and not _stays_here():
        return await _executor_call(program, request, inputs, is_async=True).arun()
    session = _open(program, request, inputs)
    try:
        with session.layers.running(session) if session.layers.runs else _NOTHING_AROUND:
            await adrive(session, **settings_inside(session))
    finally:
        _close(session, request)
    return _result(session, request)


def run_program(program: Any, inputs: Mapping[str, Any], request: Request) -> Run:
    """Calls a program with a request, and returns its run, however it has ended."""
    with _as_asked(program, inputs, request) as recorder:
        program(**inputs)
    return take_run(request.outcome, recorder)


async def arun_program(program: Any, inputs: Mapping[str, Any], request: Request) -> Run:
    """The same in async code."""
    with _as_asked(program, inputs, request) as recorder:
        await program.acall(**inputs)
    return take_run(request.outcome, recorder)


@contextmanager
def _as_asked(program: Any, inputs: Mapping[str, Any], request: Request) -> Iterator[LMRecorder]:
    """A block that calls a program with a request. What its run ends with is not raised: its `Run` has it."""
    graph, outcome = vars(program)["_graph"], request.outcome
    check_inputs_by_name(graph, inputs)
    with dspy.context(**{REQUEST: request}), request.recording(graph) as recorder:
        try:
            with tracing.continued_trace(request) if tracing.OPENTELEMETRY in sys.modules else _NOTHING_AROUND:
                yield recorder
        except asyncio.CancelledError:
            if outcome.ended is not None:
                outcome.cut_off = Run(*outcome.take(), recorder)
            raise
        except Exception as error:
            if not outcome.ended_with(error):
                raise


def stored_run(program: Any, request: Request) -> Run:
    """The run that a thread has read from its store: nothing is called, nothing is written."""
    outcome, run_start = request.outcome, request.run_start
    assert run_start is not None
    with request.recording(vars(program)["_graph"]) as recorder:
        session = _session(program, request, run_start, request.options.layers)
        for question in session.questions():
            session.publish(Asked(question))
        outcome.ended = session.end()
        if session.run.ended:
            _result(session, request)
    return Run(*outcome.take(), recorder)


def _request_of(program: Any, args: tuple[Any, ...]) -> Request:
    if args:
        graph: GraphSpec = vars(program)["_graph"]
        name = graph.inputs[0] if graph.inputs else "name"
        raise InputError(f"graph {graph.name!r} takes its inputs by name: write program({name}=...)")
    request: Request = dspy.settings.get(REQUEST) or Request(CALLED)
    return request


def _stays_here() -> bool:
    """Tell if a layer around this call has to be in the process of its run."""
    return any(layer.stays_here for layer in layers_around())


def _executor_call(program: Any, request: Request, inputs: Mapping[str, Any], is_async: bool) -> ExecutorCall:
    check_inputs(vars(program)["_graph"], inputs, inside=request.inside is not None)
    return ExecutorCall(program, vars(program)["_executor"], request, inputs, is_async=is_async)


def _open(program: Any, request: Request, inputs: Mapping[str, Any]) -> Session:
    """Checks the inputs, and makes the session, with the layers of the call."""
    graph: GraphSpec = vars(program)["_graph"]
    run_start = request.run_start or _run_start(graph, request, inputs)
    layers = (*request.options.layers, *request.limits(graph))
    if tracing.OPENTELEMETRY in sys.modules:
        layers = (*layers, *tracing.layers_of_call(request.inside))
    return _session(program, request, run_start, layers)


def _session(program: Any, request: Request, run_start: RunStart, layers: tuple[Layer, ...]) -> Session:
    answer, of_graph = request.options.answer, vars(program)["_graph"].answer
    if of_graph is not no_answer:
        answer = first_of(answer, of_graph)
    session = Session(program, run_start, request, layers, resources_of_call(program, request), answer)
    request.outcome.sessions.append(session)
    return session


def resources_of_call(program: Any, request: Request) -> Mapping[type, object]:
    """The resources of a call, checked against what the nodes need."""
    graph, own, asked = vars(program)["_graph"], vars(program)["_resources"], request.options.resources
    resources: Mapping[type, object] = {**own, **asked} if own and asked else own or asked
    if graph.needs_resources:
        check_resources((*graph.nodes.values(), *graph.routers), resources)
    return resources


def _run_start(graph: GraphSpec, request: Request, inputs: Mapping[str, Any]) -> RunStart:
    """A run from the inputs; inside a node of a stored run, with the commits that an earlier attempt has made."""
    if graph.required != inputs.keys():  # else there is nothing to find fault with
        check_inputs(graph, inputs, inside=request.inside is not None)
    inside, topology, schema = request.inside, graph.topology, graph.topology.schema
    if inside is None:
        return _new_run(topology, schema.initial_state(inputs, commit_id="inputs"))
    commit_id = full_id(*inside.label, *inside.scope, "inputs")
    state = schema.initial_state(
        inputs if inside.own_inputs else schema.as_replacements(inputs, commit_id),
        commit_id=commit_id,
        # A wrapper of the program, or a callback of DSPy, may have given it other inputs.
        valid={name: value for name, value in inside.valid.items() if inputs.get(name) is value},
    )
    run_start, records = _new_run(topology, state, inside.label), request.records
    if records is None or (records.journal is None and not inside.keeps_commits):
        return run_start
    run_start = run_start.to_replay()
    kept = records.take_kept(inside.scope, inside.attempts)
    rows = [*records.commits(inside.scope), *kept.rows]
    if inside.own_inputs:
        check_same_inputs(inside, records, inputs, begun=bool(rows))
    run = replay(run_start.run, rows, run_start[1:3], *records.fetch_and_decode)
    return run_start._replace(run=run, kept=kept)


def _close(session: Session, request: Request) -> None:
    """Appends the trace to the caller's trace, also when a node has failed."""
    trace = session.trace(session.run, whole=request.inside is not None)
    if trace:
        accepted_only = vars(session.program).get("_accepted_only")
        append_to_trace([step for step in trace if not is_rejected(step[0])] if accepted_only else trace)
    session.keep_commits()
    request.outcome.ended = session.end()


def _result(session: Session, request: Request) -> dspy.Prediction:
    """The outputs of a completed run; raises the error of any other one.

    A question or a stop is no fault. Where the caller finds it in `outcome`, the module that DSPy traces returns, so
    that its span is no error.
    """
    outcome, keeps_events = request.outcome, request.options.keeps_events
    ended = outcome.ended
    assert ended is not None
    if ended.status in UNFINISHED and (keeps_events or is_part(request)):
        return Prediction()
    if not keeps_events:  # no `Run` will be made of it
        outcome.ended = None
    if ended.error is not None:
        try:
            if is_lost_work(ended.error) and not keeps_events and request.inside is None:
                raise lost(f"what a node of graph {session.graph.name!r} gave it", ended.error) from ended.error
            raise ended.error
        finally:
            del ended  # of a stopped run, whose error its `Run` keeps: the traceback refers to this frame
    if ended.status == "interrupted":
        direct = request.inside is None and bool(executing_id())
        raise Interrupted.of(ended.questions, session.graph.name, session.log is not None, direct)
    state, inputs, outputs = session.run.trunk_state._map, session.run_start.state._map, session.graph.outputs
    if outputs is None:
        # What is the same object is not compared: most inputs are.
        changed = [
            name
            for name, value in state.items()
            if name not in inputs or (value is not inputs[name] and not same(value, inputs[name]))
        ]
        outputs = tuple(changed)
    prediction: dspy.Prediction = Prediction(**{name: thaw(state[name]) for name in outputs if name in state})
    # If the run is asked for before `run_program` makes it: within a wrapper.
    link = RunLink(lambda prediction: Run(ended, prediction, subscriber(LMRecorder) if keeps_events else None))
    vars(prediction)[LINK] = link
    outcome.predictions[session.ids.run_id] = prediction
    return prediction


def _new_run(topology: Topology, state: ImmutableState, label: tuple[str, ...] = ()) -> RunStart:
    """A run whose first commit sets the inputs."""
    patch = {name: diff_value(DELETE, value) for name, value in state.raw_items()}
    return RunStart(start(topology), seal(patch), state, new_run_id(), label)


def settings_inside(session: Session) -> dict[str, Any]:
    """DSPy's settings for the nodes of a run: the request was for the program alone."""
    found: dict[str, Any] = {REQUEST: None}
    callbacks, stream = dspy.settings.callbacks or [], dspy.settings.get(SEND_STREAM)
    # The tokens of the run are not those of the node that has called it, unless they are asked for.
    if (callbacks or stream is not None) and not any(isinstance(layer, Streaming) for layer in session.layers.asked):
        others = [one for one in callbacks if not isinstance(one, TokenCallback)]
        found |= {"callbacks": others} if len(others) < len(callbacks) else {}
        found |= {SEND_STREAM: stream.around} if isinstance(stream, StreamedCall) else {}
    # An LM call is shown for the innermost of the runs that it is a part of.
    hearing: list[Subscriber] = [] if session.ids.scope else [*lm_watchers(session.ids.root)]
    if session.graph.attempts:
        hearing.append(LMRetryNotes())
    if hearing:
        found |= subscribing(*hearing, instead_of=(*map(type, hearing),), callbacks=found.get("callbacks"))
    return found
