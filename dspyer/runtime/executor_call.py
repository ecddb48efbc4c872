"""A call of a program with an executor, as the process sees it that makes the call: a task, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

import dspy

from dspyer.dspy_module.executing import executing
from dspyer.dspy_module.lm_records import NO_PRICES, current_recorder
from dspyer.dspy_module.tracing import append_to_trace, rejected_copy
from dspyer.errors import ExecutorLost, ThreadError, error_text, with_article
from dspyer.runtime.executor_bytes import Parts, decode, encode, parts_of, what_fails
from dspyer.runtime.executor_task import Returned, SentCall, SentProgram, result_parts, work
from dspyer.runtime.request import FAILED_RUNS, Request
from dspyer.runtime.run import Run
from dspyer.runtime.run_link import ATTRIBUTE as LINK
from dspyer.runtime.run_link import KeptPrediction, RunLink

SENT_SETTINGS = (
    "lm",
    "adapter",
    "rm",
    "interpreter_factory",
    "async_max_workers",
    "num_threads",
    "max_errors",
    "disable_history",
    "max_history_size",
    "max_trace_size",
    "track_usage",
    "provide_traceback",
    "allow_tool_async_sync_conversion",
    "warn_on_type_mismatch",
)
"""The settings of DSPy that a worker gets, unless they are None: then those of the worker hold."""


def check_executor(executor: object) -> Executor:
    """Refuses what is no executor."""
    if isinstance(executor, Executor):
        return executor
    kind = "a class" if isinstance(executor, type) else with_article(type(executor).__name__)
    raise TypeError(
        f"with_executor takes a concurrent.futures.Executor, such as ProcessPoolExecutor() or "
        f"dask.distributed.Client().get_executor(), not {kind}. A library without one, such as Ray, needs a class with "
        "submit(function, *args) that returns a concurrent.futures.Future"
    )


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
        if dspy.settings.send_stream is not None:
            raise refused_stream(program)
        self._program = program
        self._executor = executor
        self._request = request
        recorder = current_recorder()
        self._parts = parts_of(program)
        settings = {name: value for name in SENT_SETTINGS if (value := dspy.settings.get(name)) is not None}
        resources = {} if request.inside else request.resources
        call = SentCall(
            dict(inputs),
            is_async,
            request.keeps_events,
            resources,
            request.answer,
            request.live,
            request.budget,
            NO_PRICES if recorder is None else recorder.prices,
            recorder is not None and recorder.wants_texts,
        )
        sent = SentProgram(program._with(_store=None), settings, program._resources)
        self._bytes = self._encoded(sent), self._encoded(call)

    def _encoded(self, sent: SentProgram | SentCall) -> bytes:
        try:
            return encode(sent)
        except Exception as error:
            raise ExecutorLost(self._not_sent(sent) or f"{self._who} was not sent: {error_text(error)}") from error

    def _not_sent(self, sent: SentProgram | SentCall) -> str:
        named: dict[str, Any] = {}
        if isinstance(sent, SentCall):
            named |= {f"input {name!r}": value for name, value in sent.inputs.items()}
            named["answers="] = sent.answer
        else:
            named |= {f"the setting {name} of DSPy": value for name, value in sent.settings.items()}
            named |= {f"node {name!r}": node for name, node in self._program._graph.nodes.items()}
            named |= {f"the module {name!r}": part for name, part in vars(self._program).items() if name[0] != "_"}
        named |= {f"the resource {kind.__name__}": value for kind, value in sent.resources.items()}
        found = what_fails(named)
        return found and f"{self._who} was not sent to a worker: {found}"

    @property
    def _who(self) -> str:
        return f"a call of graph {self._program._graph.name!r}"

    # --- waiting

    def run(self) -> dspy.Prediction:
        """Makes the call, and returns its prediction or raises what it has raised."""
        future = self._submit()
        try:
            with suppress(Exception, FutureCancelledError):
                future.exception()
        except BaseException:  # Ctrl-C
            future.cancel()
            raise
        return self._settle(future)

    async def arun(self) -> dspy.Prediction:
        """The same in async code. If the task is cancelled, so is the call, unless a worker has begun it."""
        future = self._submit()
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def wake(_: Future[bytes]) -> None:
            with suppress(RuntimeError):  # the loop has been closed: nothing waits any more
                loop.call_soon_threadsafe(_complete, ended)

        future.add_done_callback(wake)
        try:
            await ended
        except BaseException:
            future.cancel()
            raise
        return self._settle(future)

    def _submit(self) -> Future[bytes]:
        try:
            return self._executor.submit(work, *self._bytes)
        except Exception as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> ExecutorLost:
        found = error_text(error)
        text = f"{type(error).__qualname__}: {found}" if found else type(error).__qualname__
        return ExecutorLost(f"the executor has lost {self._who}, so its result is not known: {text}")

    # --- what has become of it

    def _settle(self, future: Future[bytes]) -> dspy.Prediction:
        try:
            parts = _Returning(self._parts)
            returned: Returned = decode(future.result(), parts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise self._lost(error) from error
        request = self._request
        append_to_trace(returned.steps)
        _add_usage(returned)
        failures = None if request.inside else dspy.settings.get(FAILED_RUNS)
        if failures is not None:
            failures += returned.failures
        prediction, raised = returned.prediction, returned.error
        link = self._link(returned, parts)
        if request.keeps_events and link is not None:
            request.outcome.returned = link.run(prediction)
        if raised is not None:
            raise raised
        assert prediction is not None
        if link is not None:
            vars(prediction)[LINK] = link
        return prediction

    def _link(self, returned: Returned, parts: Parts) -> RunLink | None:
        """The run, which is decoded when it is first asked for."""
        data = returned.run
        if data is None:
            return None
        known = result_parts(returned)

        def make(prediction: dspy.Prediction | None) -> Run:
            kept = None if prediction is None else KeptPrediction(prediction)
            parts.update({**known, "prediction": kept})
            run: Run = decode(data, parts)
            return run

        return RunLink(make)


class _Returning(dict[Any, Any]):
    """The parts of a program, and the copies of its predictors whose outputs a check has refused."""

    def __missing__(self, name: Any) -> Any:
        _, origin, _ = name
        twin = self[name] = rejected_copy(self[origin])
        return twin


def _add_usage(returned: Returned) -> None:
    """Adds what a call has used to the tracker, and to the LM calls of the run, around the caller."""
    tracker, recorder = dspy.settings.usage_tracker, current_recorder()
    if tracker is not None:
        for model, entries in returned.usage.items():
            tracker.usage_data[model] += entries
    if recorder is not None:
        recorder.add_returned(returned.lm_calls, executing.get())


def _complete(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def refused_stream(program: Any) -> ThreadError:
    """The error for a stream of a program with an executor."""
    return ThreadError(
        f"graph {program._graph.name!r} has an executor, and a worker returns nothing while a run goes on: stream it, "
        "or run it on a thread, with the program that with_executor was called on"
    )
