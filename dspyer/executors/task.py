"""The work for a program with an executor: it makes one call of the program, and returns bytes.

A task raises only if the call could not be made, or its result could not be sent. What the run itself has raised is a
part of the result. So the caller takes everything that a task raises, and everything that the executor raises for it,
for the loss of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from contextvars import Context
from functools import lru_cache, partial
from typing import Any, NamedTuple

import dspy

from dspyer import Run
from dspyer.errors import error_text, unwrap_stop_iteration
from dspyer.events import LMCall
from dspyer.executors.pickling import Parts, decode, encode_returned, large_inputs, parts_of
from dspyer.extend import Call, Layer, using
from dspyer.lm.not_public import TRACE, TRACKER, UsageTracker
from dspyer.lm.requests import with_own_adapters
from dspyer.lm.tap import PRICES, LMRetryNotes, Prices, record_lm_calls, subscribing
from dspyer.lm.tracing import Executing, Steps, executing
from dspyer.nodes.steps import call_async
from dspyer.runtime.request import REQUEST, CallOptions, Inside, Request
from dspyer.waiting import DaemonLoop

KEPT_PROGRAMS = 8


class NodeCalls(Layer):
    """Counts the node calls in a worker, for a budget that bounds those of the caller."""

    def __init__(self) -> None:
        self.called: list[str] = []  # threads of runs inside append to it, which needs no lock

    def admit(self, call: Call) -> None:
        """Counts one."""
        self.called.append(call.execution)


class SentProgram(NamedTuple):
    """A program as a worker gets it: with what is the same in many calls."""

    program: Any
    settings: Mapping[str, Any]
    resources: Mapping[type, object]


class SentCall(NamedTuple):
    """One call as a worker gets it.

    Attributes:
        id: unlike that of any other call. Dask makes one task of those that have the same arguments.
        inputs: the inputs by name.
        is_async: whether the caller awaits the call.
        options: what the call asks for.
        inside: of a program inside a node of another graph, what a worker needs of where the run is.
        caller: id, node and attempt of the execution whose code makes the call; of none for a run.
        prices: prices of the run around the call, which come before those of DSPy.
        wants_texts: whether the run around the call stores the messages and responses of LM calls.
        layers: those that `using` gives to the programs that are called around the call.
        caches_off: the switches of DSPy's cache that are off for the caller.
    """

    id: bytes
    inputs: Mapping[str, Any]
    is_async: bool
    options: CallOptions
    inside: Inside | None
    caller: tuple[str, str, int]
    prices: Prices
    wants_texts: bool
    layers: tuple[Layer, ...]
    caches_off: tuple[str, ...]


class Returned(NamedTuple):
    """The result of a call.

    Attributes:
        id: that of the call.
        prediction: the result; None for a run that is not completed.
        error: what it has raised; None if nothing.
        steps: the DSPy trace.
        usage: what a usage tracker has got, by language model.
        lm_calls: the LM calls, with messages and responses if the run around the call wants them.
        calls: how many node calls it has made, if a budget around it bounds them.
        lost: of a program that is a node, the steps that led to nothing, which its run has nowhere else.
        run: the bytes of the `Run`; None if the call was refused before one began.
    """

    id: bytes
    prediction: dspy.Prediction | None
    error: BaseException | None
    steps: Steps
    usage: Mapping[str, list[Any]]
    lm_calls: tuple[LMCall, ...]
    calls: int
    lost: tuple[Steps, ...]
    run: bytes | None = None


def work(program_bytes: bytes, call_bytes: bytes) -> bytes:
    """The task of an executor: makes a call of a program, and returns the bytes of a `Returned`."""
    try:
        sent, parts = _program_of(program_bytes)
        call: SentCall = decode(call_bytes)
    except Exception as error:
        raise _not_done("could not load what it was sent", error) from error
    returned, run = Context().run(_call, sent, call)  # apart from what the thread of the worker did before
    if isinstance(returned.error, KeyboardInterrupt):  # the worker was interrupted, and not the run
        raise _not_done("was interrupted", returned.error)
    try:
        return _encode_returned(returned, run, {**parts, **large_inputs(call.inputs)})
    except Exception as error:
        raise _not_done("could not send back what the call has given", error) from error


def _not_done(what: str, error: BaseException) -> RuntimeError:
    hint = ""
    if isinstance(error, ModuleNotFoundError | AttributeError):
        hint = (
            ". A worker must be able to import the modules of the caller, in the same version; functions and classes "
            "of a module that it cannot import are sent with it after cloudpickle.register_pickle_by_value(module)"
        )
    return RuntimeError(f"a worker {what}: {type(error).__qualname__}: {error_text(error)}{hint}")


@lru_cache(KEPT_PROGRAMS)  # a caller sends one program again and again
def _program_of(data: bytes) -> tuple[SentProgram, Parts]:
    """The program of some bytes, with its parts."""
    sent: SentProgram = decode(data)
    sent.program._resources = sent.resources
    return sent, parts_of(sent.program)


# --- the call


def _call(sent: SentProgram, call: SentCall) -> tuple[Returned, Run | None]:
    program = sent.program
    request = Request(call.options, call.inside)
    outcome, steps, tracker = request.outcome, list[Any](), UsageTracker()
    prediction, error = None, None
    kind = type(program)  # `__call__` of the program was called by the caller, with its callbacks
    settings = {
        **sent.settings,
        REQUEST: request,
        PRICES: call.prices,
        _CACHES_OFF: call.caches_off,
        TRACE: steps,
        TRACKER: tracker,
    }
    if call.caller[0]:  # a node, which may be attempted again
        callbacks = with_own_adapters(dspy.settings.callbacks or [], sent.settings.get("adapter"))
        settings |= {"callbacks": callbacks, **subscribing(LMRetryNotes(), callbacks=callbacks)}
    if any(getattr(dspy.cache, switch, False) for switch in call.caches_off):
        _limit_cache()
    with ExitStack() as stack:
        stack.enter_context(dspy.context(**settings))
        if call.wants_texts:
            stack.enter_context(record_lm_calls(keeps_texts=True))
        stack.enter_context(using(*call.layers))
        recorder = stack.enter_context(request.recording(program._graph))
        if not call.options.keeps_events and call.caller[0]:
            execution, node, attempt = call.caller
            executing.set(Executing(execution, node, program, attempt))
        try:
            if call.is_async:
                stack.enter_context(_loop.joined())
                prediction = call_async(partial(kind.aforward, program), call.inputs)
            else:
                prediction = kind.forward(program, **call.inputs)
        except BaseException as raised:  # noqa: BLE001 - the caller raises it
            error = raised
    run = None
    if outcome.sessions and outcome.ended is not None:
        run = Run(*outcome.take(), recorder)
    elif prediction is not None:
        with suppress(LookupError):
            run = Run.of(prediction)
    returned = Returned(
        call.id,
        prediction,
        error,
        steps,
        dict(tracker.usage_data),
        tuple([kept if call.wants_texts else usage for usage, _, kept in recorder.made]),
        sum([len(layer.called) for layer in call.options.layers if isinstance(layer, NodeCalls)]),
        tuple([steps for session in outcome.sessions for steps in session.lost_steps()])
        if call.inside is not None
        else (),
    )
    return returned, run


# --- the cache of DSPy

CACHES = ("enable_memory_cache", "enable_disk_cache")
"""The switches of DSPy's cache of LM responses."""

_CACHES_OFF = "dspyer_caches_off"


def _limit_cache() -> None:
    """Lets each call in this process use DSPy's cache only as its caller does.

    There is one cache for all calls, and several may be made at once: a switch is off for those whose settings name it.
    """
    cache, kind = dspy.cache, type(dspy.cache)

    def get(self: Any, name: str) -> Any:
        is_off = name in CACHES and name in (dspy.settings.get(_CACHES_OFF) or ())
        return False if is_off else kind.__getattribute__(self, name)  # type: ignore[call-arg]  # an object's

    if not hasattr(kind, _CACHES_OFF):
        cache.__class__ = type(kind.__name__, (kind,), {"__getattribute__": get, _CACHES_OFF: True})


_loop = DaemonLoop("dspyer-worker")  # one for all calls: clients of async LMs keep their connections per loop


# --- the result as bytes


def _encode_returned(returned: Returned, run: Run | None, parts: Parts) -> bytes:
    if run is not None:
        known = result_parts(returned)
        if run._prediction is not None:
            known["prediction"] = run._prediction
        returned = returned._replace(run=encode_returned(run, {**known, **parts}))
    return encode_returned(returned, parts)


def result_parts(returned: Returned) -> Parts:
    """Parts that the bytes of a run hold as names, since the result has it already."""
    found: Parts = {}
    for index, (_, inputs, outputs) in enumerate(returned.steps):
        found[index, "inputs"], found[index, "outputs"] = inputs, outputs
    if returned.error is not None:
        found["error"] = unwrap_stop_iteration(returned.error)
    return found
