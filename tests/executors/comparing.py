"""What a call of a program gives: the same for a local call and for one of `with_executor`."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import dspy
from dspy.utils.usage_tracker import track_usage

from dspyer import CompiledGraph, Run
from dspyer.events import TraceStep
from tests.executors.programs import Case
from tests.log.equality import outcome

NOT_EQUAL = {"at", "seconds", "started", "duration", "run_id", "root", "run", "pause", "position", "time"}
"""Times, ids of runs, and the order of arrival."""


def plain(value: Any) -> Any:
    """A value without times, ids of runs and identities, to be compared."""
    if isinstance(value, BaseException):
        return error_of(value)
    if hasattr(value, "_asdict"):
        return type(value).__name__, plain(value._asdict())
    if dataclasses.is_dataclass(value):
        parts = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.compare}
        return type(value).__name__, plain(parts)
    if isinstance(value, dspy.Prediction | dspy.Example):
        return type(value).__name__, plain(value.toDict())
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items() if key not in NOT_EQUAL}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if callable(value) and not isinstance(value, type):
        return type(value).__name__
    return value


def error_of(error: BaseException | None) -> Any:
    """Type, text, arguments, attributes, notes and causes of an error."""
    if error is None:
        return None
    # Notes name the graph of a node that is inside another one. A worker is not told that its graph is inside.
    notes = [re.sub(r" of graph '\w+' \(branch ", " (branch ", note) for note in getattr(error, "__notes__", [])]
    cause = error.__cause__
    if type(cause).__name__ == "WorkerTraceback":  # where it was raised: the traceback itself stays in the worker
        cause = None
    return type(error).__name__, str(error), plain(error.args), notes, error_of(cause)


def step_of(program: CompiledGraph, step: tuple[Any, Any, Any]) -> Any:
    """A step of a trace; a predictor by its name in the program, found by identity, as optimizers do.

    The step of an answer that a check has refused has a copy of its predictor, so that they skip it.
    """
    predictor, inputs, outputs = step
    names = {id(parameter): name for name, parameter in program.named_parameters()}
    return names.get(id(predictor), "a copy"), str(predictor.signature), plain(inputs), plain(outputs)


def parts_of(step: TraceStep) -> tuple[Any, ...]:
    """A step as DSPy's trace has it."""
    return step.predictor, step.inputs, step.outputs


def run_of(program: CompiledGraph, run: Run) -> dict[str, Any]:
    """Everything that a run tells, except times."""
    steps = [
        (
            step.execution,
            step.node,
            step_of(program, parts_of(step)),
            step.attempt,
            step.status,
        )
        for step in run.trace_steps
    ]
    same = {id(outputs) for _, _, outputs in run.trace} <= {id(step.outputs) for step in run.trace_steps}
    found = {
        "outcome": outcome(run),
        "error": error_of(run.error),
        "questions": plain(run.questions),
        "failures": plain(run.failures),
        "trace": [step_of(program, step) for step in run.trace],
        "trace_steps": steps,
        "identity of outputs": same,
        "usage": plain(run.usage),
        "cost": run.cost,
        "lm_calls": sorted(map(repr, plain(run.lm_calls))),
        "events": sorted(map(repr, plain(run.events))),
        "counts": [commit.calls for commit in run.commits],
        "reason": run.routing_reason,
        "repairs": plain(run.repairs()),
        "branches": {path: state.to_dict() for path, state in run.branches.items()},
        "sources": [run.sources(commit.id) for commit in run.commits],
        "diffs": [run.diff(commit.id, run.commits[0].id) for commit in run.commits],
        "stats": [line.split()[0] for line in str(run.stats()).splitlines() if line.strip()],
        "picture": run.to_svg(),
    }
    if run.status == "completed":
        found["prediction"] = plain(run.prediction)
        assert Run.of(run.prediction) is run
    return found


def called(program: CompiledGraph, case: Case, mode: str) -> dict[str, Any]:
    """`program(...)` or `acall` as the tools of DSPy see it: prediction or error, trace, usage, the run."""
    trace: list[Any] = []
    prediction = error = None
    with dspy.context(lm=case.lm(), trace=trace, track_usage=True), track_usage() as tracker:
        try:
            prediction = program(**case.inputs) if mode == "sync" else asyncio.run(program.acall(**case.inputs))
        except Exception as raised:  # noqa: BLE001 - compared
            error = raised
    found = {
        "prediction": plain(prediction),
        "error": error_of(error),
        "trace": [step_of(program, step) for step in trace],
        "usage": tracker.get_total_tokens(),
        "entries": plain(tracker.usage_data),
    }
    if prediction is not None:
        found["own usage"] = prediction.get_lm_usage()
        run = Run.of(prediction)
        found["run"] = run_of(program, run)
        outputs = {id(step.outputs) for step in run.trace_steps}
        found["identity of outputs"] = {id(outputs_of) for _, _, outputs_of in trace} <= outputs
    return found


def ran(program: CompiledGraph, case: Case, mode: str) -> dict[str, Any]:
    """`run` or `arun`, or the error that it raises."""
    trace: list[Any] = []
    with dspy.context(lm=case.lm(), trace=trace), track_usage() as tracker:
        try:
            if mode == "sync":
                run = program.run(dict(case.inputs), **case.options)
            else:
                run = asyncio.run(program.arun(dict(case.inputs), **case.options))
        except Exception as raised:  # noqa: BLE001 - compared
            return {"raised": error_of(raised)}
    around = [step_of(program, step) for step in trace]
    return {**run_of(program, run), "around": around, "entries": plain(tracker.usage_data)}


def differences(local: Mapping[str, Any], far: Mapping[str, Any]) -> dict[str, Any]:
    """What is not equal, by name, for a short report."""
    return {
        name: (local.get(name, "nothing"), far.get(name, "nothing"))
        for name in {**local, **far}
        if local.get(name, "nothing") != far.get(name, "nothing")
    }
