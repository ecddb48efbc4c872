"""A call of a program with an executor, as the process sees it that makes the call: a task, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from concurrent.futures import CancelledError as FutureCancelledError
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import dspy

from dspyer import Run
from dspyer.errors import ExecutorLost, InputError, Interrupted, ThreadError, error_text, with_article
from dspyer.events import LMCall
from dspyer.executors.pickling import Parts, decode, encode_sent, large_inputs, parts_of, what_fails
from dspyer.executors.task import CACHES, NodeCalls, Returned, SentCall, SentProgram, result_parts, work
from dspyer.ids import id_prefix
from dspyer.layers.layer import layers_around
from dspyer.layers.run_limits import Spends
from dspyer.lm.not_public import DEFAULT_CONFIG, HISTORY_OFF, HISTORY_SIZE, SEND_STREAM, TRACE_SIZE, TRACKER
from dspyer.lm.parameters import parameter_names, walk_parameters
from dspyer.lm.tap import LMRecorder, current_gate, prices_here, subscriber, subscribers
from dspyer.lm.tracing import Executing, append_to_trace, executing, executing_id
from dspyer.nodes.binding import find_resource
from dspyer.runtime.request import CallOptions, Inside, Request
from dspyer.runtime.run import KeptPrediction, RunLink
from dspyer.waiting import Outcome, end_of, may_raise, result_of, task_signal

SENT_SETTINGS = (
    "lm",
    "adapter",
    "rm",
    "interpreter_factory",
    "async_max_workers",
    "num_threads",
    "max_errors",
    HISTORY_OFF,
    HISTORY_SIZE,
    TRACE_SIZE,
    "track_usage",
    "provide_traceback",
    "allow_tool_async_sync_conversion",
    "warn_on_type_mismatch",
)
"""The settings of DSPy itself that a worker gets. Others that DSPy has are of the caller: callbacks, streams, trackers,
the trace."""


# --- what may have an executor


def check_executor(executor: object) -> Executor:
    """Refuses what is no executor."""
    if isinstance(executor, Executor):
        return executor
    kind = "a class" if isinstance(executor, type) else with_article(type(executor).__name__)
    raise TypeError(
        "with_executor takes a concurrent.futures.Executor, such as ProcessPoolExecutor() or "
        f"dask.distributed.Client().get_executor(), and got {kind}. For a library without one, such as Ray, write a "
        "subclass whose submit(function, *args) returns a concurrent.futures.Future; program(...) without an executor "
        "is the program that with_executor was called on"
    )


def check_sent(program: Any) -> None:
    """Refuses a program that no worker could run: a part cannot be pickled, or a resource is missing."""
    graph, resources = program._graph, program._resources
    parts = (*graph.nodes.values(), *graph.routers) if graph.needs_resources else ()
    for part in parts:
        for parameter, kind in part.resources.items():
            if not find_resource(kind, resources)[0]:
                raise InputError(
                    f"{part.who} needs a resource of type {kind.__name__} for its parameter {parameter!r}, and no "
                    "worker has one: let the node make its own, or, if it can be pickled, give it to every worker: "
                    f"program.with_resources({{{kind.__name__}: ...}}).with_executor(...)"
                )
    try:
        encode_sent((program._with(_store=None), dict(resources)))
    except Exception as error:
        found = what_fails(_parts_sent(program)) or error_text(error)
        raise InputError(f"graph {graph.name!r} cannot be sent to a worker: {found}") from error


def lost(who: str, error: BaseException) -> ExecutorLost:
    """The error for a call that an executor has lost, or for one whose node had given work to an executor."""
    text = error_text(error)
    text = f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__
    text = f"the executor has lost {who}, so its result is not known: {text}"
    if isinstance(error, BrokenExecutor):
        text = (
            f"{text.rstrip('.')}. A pool that is broken stays so: make another one, and call the program with it. If "
            "each breaks at its first call, see what its processes have printed: a spawned process runs the script "
            "again, so the script must make its pool below `if __name__ == '__main__':`, and a function that a node "
            "submits must be one of a module"
        )
    elif isinstance(error, FutureCancelledError):
        text = f"{text}. Something has cancelled the call, such as a shutdown: keep the pool open while calls are made"
    return ExecutorLost(text)


def refused(program: Any) -> ThreadError:
    """The error for a stream or a thread of a program with an executor."""
    return ThreadError(
        f"graph {program._graph.name!r} has an executor: a worker returns nothing while a run goes on, and stores "
        "nothing. Stream it, or run it on a thread, with the program that with_executor was called on"
    )


def _parts_sent(program: Any) -> dict[str, Any]:
    """The parts of a program by their names, to say which of them cannot be pickled."""
    graph = program._graph
    named = {f"module {name!r}": part for name, part in vars(program).items() if isinstance(part, dspy.Module)}
    named |= {f"node {name!r}": node for name, node in graph.nodes.items()}
    named |= {f"router {router.name!r}": router for router in graph.routers}
    return named | _resources_sent(program._resources)


def _resources_sent(resources: Mapping[type, object]) -> dict[str, Any]:
    return {f"the resource {kind.__name__}": value for kind, value in resources.items()}


# --- a call


class ExecutorCall:
    """One call that an executor makes.

    Args:
        program: the program.
        executor: makes the call.
        request: its options.
        inputs: the inputs by name.
        is_async: whether the caller awaits it.
    """

    def __init__(
        self, program: Any, executor: Executor, request: Request, inputs: Mapping[str, Any], *, is_async: bool
    ) -> None:
        # `dspy.streamify` sets it for the call that it makes; in a node, it is that of a call around the run.
        if dspy.settings.get(SEND_STREAM) is not None and not executing_id():
            raise refused(program)
        self._program = program
        self._executor = executor
        self._request = request
        self._parts = {**parts_of(program), **large_inputs(inputs)}
        recorder, here = subscriber(LMRecorder), executing.get() or Executing()
        self._caller = None if request.inside is not None or not here.id else here.program
        settings = {name: value for name, value in dspy.settings.copy().items() if value is not None}
        # Settings of the user, which code of nodes may read: they are none of DSPy's, and none of this package's.
        own = [name for name in settings if not (name in DEFAULT_CONFIG or name.startswith(("_", "dspyer_")))]
        sent = SentProgram(
            program._with(_store=None),
            {name: settings[name] for name in (*SENT_SETTINGS, *own) if name in settings},
            program._resources,
        )
        self._id = uuid4().bytes
        options, inside = request.options, request.inside
        bounded = [one.spending for one in options.layers if isinstance(one, Spends)]
        self._spent = [spending for spending in bounded if spending.budget.node_calls is not None]
        counting = (NodeCalls(),) if self._spent else ()
        options = options._replace(layers=counting)
        if inside is not None:  # what belongs to the run around it stays here
            options = CallOptions(live=options.live, layers=counting, keeps_events=options.keeps_events)
            inside = Inside(own_inputs=inside.own_inputs, max_concurrency=inside.max_concurrency)
        call = SentCall(
            self._id,
            dict(inputs),
            is_async,
            options,
            inside,
            (here.id, here.node, here.attempt),
            prices_here(),
            recorder is not None and recorder.wants_texts,
            layers_around(),
            # Not `dspy.cache`, which would be made now, with all switches on.
            tuple([switch for switch in CACHES if not getattr(vars(dspy).get("cache"), switch, True)]),
        )
        self._bytes: tuple[bytes, ...] = (self._encoded(sent), self._encoded(call))

    # --- what is sent

    def _encoded(self, sent: SentProgram | SentCall) -> bytes:
        try:
            return encode_sent(sent)
        except Exception as error:
            named: dict[str, Any] = {}
            if isinstance(sent, SentCall):
                named |= {f"the input {name!r}": value for name, value in sent.inputs.items()}
                named |= _resources_sent(sent.options.resources)
                named |= {
                    "what answers= was given": sent.options.answer,
                    **{type(one).__name__: one for one in sent.layers},
                }
            else:
                named |= {f"the setting {name!r} of DSPy": value for name, value in sent.settings.items()}
                named |= _parts_sent(self._program)
            found = what_fails(named) or error_text(error)
            raise ExecutorLost(f"{self._who} was not sent to a worker: {found}") from error

    @property
    def _who(self) -> str:
        return f"a call of graph {self._program._graph.name!r}"

    # --- waiting

    @may_raise
    def run(self) -> dspy.Prediction:
        """Makes the call, and returns its prediction or raises what it has raised."""
        with self._request.until_ctrl_c():
            future = self._submit()
            # A run that is stopped waits for a call that a worker has begun, as for a sync node.
            with self._request.stop_signal.on_stop(lambda _: future.cancel()):
                try:
                    end_of(future).get()
                finally:
                    future.cancel()  # it has ended, unless an exception has ended the wait
            found: dspy.Prediction = result_of(self._settled(future))
        return found

    async def arun(self) -> dspy.Prediction:
        """The same in async code. If the task is cancelled, so is the call, unless a worker has begun it."""
        future = self._submit()
        ended, end = task_signal()
        future.add_done_callback(end)
        try:
            await ended
        except BaseException:
            future.cancel()
            raise
        found: dspy.Prediction = result_of(self._settled(future))
        return found

    def _submit(self) -> Future[bytes]:
        gate = current_gate()
        if gate is not None:  # a budget that is used up allows no further LM call
            gate.raise_if_used_up()
        task, self._bytes = self._bytes, ()  # the executor has it, until a worker does
        try:
            future: Any = self._executor.submit(work, *task)
            if not isinstance(future, Future):
                kind = with_article(type(future).__name__)
                raise TypeError(f"submit of {type(self._executor).__name__} returned {kind}, and no Future")
        except Exception as error:
            raise lost(self._who, error) from error
        return cast(Future[bytes], future)

    # --- what has become of it

    def _settled(self, future: Future[bytes]) -> Outcome:
        """The prediction of a call, or what it has raised: the latter here would keep the frame, and so itself."""
        try:
            failed = future.exception()
        except FutureCancelledError as error:
            if self._request.stop_signal.reason is not None:
                return None, asyncio.CancelledError()
            failed = error
        if failed is None:
            try:
                returned = decode(future.result(), self._parts)
                if returned.id != self._id:
                    raise RuntimeError("it returned the result of another call")
                return self._accept(returned)
            except Exception as error:  # noqa: BLE001 - whatever a class of the user raises when it is loaded
                failed = error
        loss = lost(self._who, failed)
        loss.__cause__ = failed
        return None, loss

    def _accept(self, returned: Returned) -> Outcome:
        """Passes on what a call has given, to where a call in this process would have put it."""
        request, prediction, link = self._request, returned.prediction, _link(self._who, returned, self._parts)
        error = returned.error
        if link is not None and (request.options.keeps_events or request.inside is not None):
            request.outcome.returned = link.run(prediction)
        request.outcome.lost += returned.lost
        for spending in self._spent:
            spending.add_node_calls(returned.calls)
        if request.inside is not None and isinstance(error, Interrupted):
            error = Interrupted.of(error.questions, self._program._graph.name, stored=False, elsewhere=True)
        if self._caller is not None:  # the code of a node
            returned = returned._replace(lm_calls=_named_in(self._caller, self._program, returned.lm_calls))
        if request.inside is not None and request.inside.scope:  # as the runs inside of nodes name their executions
            around = id_prefix(*request.inside.scope)
            calls = [replace(call, execution=around + call.execution) for call in returned.lm_calls]
            returned = returned._replace(lm_calls=tuple(calls))
        append_to_trace(returned.steps)
        _add_usage(returned)
        if link is not None and prediction is not None:
            link.give(prediction)
        return prediction, error


def _link(who: str, returned: Returned, parts: Parts) -> RunLink | None:
    """The run, which is decoded when it is first asked for; None if none began."""
    data = returned.run
    if data is None:
        return None
    known = {**parts, **result_parts(returned)}

    def make(prediction: dspy.Prediction | None) -> Run:
        names = known if prediction is None else {**known, "prediction": KeptPrediction(prediction)}
        try:
            run: Run = decode(data, names)
        except Exception as error:
            raise lost(who, error) from error  # in a metric, any other exception would be a failure of the program
        return run

    return RunLink(make)


def _add_usage(returned: Returned) -> None:
    """Adds what a call has used to the tracker around the caller, and its LM calls to all that count them."""
    tracker = dspy.settings.get(TRACKER)
    if tracker is not None:
        for model, entries in returned.usage.items():
            tracker.usage_data[model] += entries
    if returned.lm_calls:
        for one in subscribers():
            one.returned(returned.lm_calls)


def _named_in(caller: Any, program: Any, calls: Iterable[LMCall]) -> tuple[LMCall, ...]:
    """LM calls with the names that their predictors have in the program whose node has called this one."""
    here, there = dict(walk_parameters(program)), parameter_names(caller)
    names = {name: there.get(id(one), type(one).__name__) for name, one in here.items()}
    return tuple([replace(call, predictor=names.get(call.predictor, call.predictor)) for call in calls])
