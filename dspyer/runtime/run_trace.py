"""The DSPy trace of a run, made of those of its executions: which steps led to the result, and what became of others.

The steps of a trial of a search are kept apart from those of the node that made it: they are in the trace only if the
search has picked the trial, or one below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dspyer.dspy_module.tracing import Steps, is_apart, is_rejected, rejected_step
from dspyer.events import TraceStep
from dspyer.graph.spec import GraphSpec
from dspyer.runtime.lineage_order import credited_in, executions_in_order, rejected_in
from dspyer.scheduler.run_state import RunState, execution_id, last_attempt


class LostSteps(NamedTuple):
    """The DSPy trace of an attempt that raised: of a node, or of the item of a map with this index."""

    execution: str
    item: int
    attempt: int
    steps: Steps


def trace_of(run: RunState, graph: GraphSpec, traces: Mapping[str, Steps]) -> list[Any]:
    """The trace in lineage order, whichever node finished first; a failed node's steps follow its branch."""
    if not traces:
        return []
    last = len(run.log) - 1
    rejected = rejected_in(run, graph.rejecting)
    never_forked = run.ended and run.log[last].commit.id == execution_id((), last)
    if never_forked and not rejected and not graph.searches:
        return [step for steps in traces.values() for step in steps]
    trials = credited_in(run, graph.searches) if graph.searches else {}
    copies: dict[int, Any] = {}  # one of each predictor: two steps of one predictor stay steps of one
    trace: list[Any] = []
    for execution in executions_in_order(run):
        steps = traces.get(execution, ())
        trace += steps if execution not in rejected else [rejected_step(step, copies) for step in steps]
        for trial, led in trials.get(execution, ()):
            trace += traces.get(trial, ()) if led else ()
    return trace


def trace_steps_of(
    run: RunState, graph: GraphSpec, traces: Mapping[str, Steps], lost: Mapping[str, Sequence[LostSteps]]
) -> list[TraceStep]:
    """All steps of the trace, in its order, each with what became of it."""
    if not traces and not lost:
        return []
    found: list[TraceStep] = []
    rejected, commits = rejected_in(run, graph.rejecting), {entry.commit.id: entry.commit for entry in run.log}
    trials = credited_in(run, graph.searches) if graph.searches else {}
    failed = {failure.execution: failure for failure in run.failures}
    for execution in executions_in_order(run):
        commit = commits.get(execution)
        node = failed[execution].node if commit is None else commit.node
        attempt = last_attempt(failed[execution].failed_attempts) if commit is None else commit.attempt
        for one in sorted(lost.get(execution, ()), key=lambda one: one.item):
            found += [TraceStep(execution, node, *step, one.attempt, "lost") for step in one.steps]
        for part, led in ((execution, True), *trials.get(execution, ())):
            for predictor, inputs, outputs in traces.get(part, ()):
                refused = execution in rejected or is_rejected(predictor)  # the latter by a check inside the node
                status: Literal["used", "rejected", "lost"] = "rejected" if refused else "used"
                status = status if led and not is_apart(predictor) else "lost"
                found.append(TraceStep(part, node, predictor, inputs, outputs, attempt, status))
    return found


def uncredited(run: RunState, graph: GraphSpec, traces: Mapping[str, Steps]) -> list[Steps]:
    """The traces of the trials that did not lead to the result, in their order."""
    trials = credited_in(run, graph.searches) if graph.searches else {}
    return [traces[trial] for execution in trials for trial, led in trials[execution] if not led and trial in traces]
