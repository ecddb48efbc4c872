"""A run in lineage order, whichever branch was faster: its executions, its changes, its DSPy trace.

The trace is made of those of the executions: which steps led to the result, and what became of others. The steps of a
trial of a search are kept apart from those of the node that made it: they are in the trace only if the search has
picked the trial, or one below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

from dspyer.errors import CheckError
from dspyer.events import BranchPath, TraceStep
from dspyer.graph.spec import GraphSpec
from dspyer.ids import execution_id
from dspyer.lm.tracing import Steps, is_apart, is_rejected, rejected_step
from dspyer.nodes.check import FinderNode, rejected_executions
from dspyer.patch import DELETE
from dspyer.reducers import Updates
from dspyer.scheduler.lineage import LogEntry, ancestry
from dspyer.scheduler.schedule import Branch, FailedBranch, RunState, active_branches, last_attempt
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import same
from dspyer.values.persistent import PersistentVector


def executions_in_order(run: RunState) -> Iterator[str]:
    """The executions of a run in lineage order; those that failed follow their branches."""
    heads: list[int] = [len(run.log) - 1]
    failures: tuple[FailedBranch, ...] = ()
    if not run.ended:
        branches, failures = unfinished_branches(run), run.failures
        heads = [branches[path].head for path in sorted(branches) if branches[path].head >= 0]
    done: set[str] = set()
    # Of a stopped run, branches that wait at one join have ancestors in common: `ancestry` gives each commit once.
    for index in ancestry(run.log, heads):
        done.add(run.log[index].commit.id)
        yield run.log[index].commit.id
    for failure in failures:
        if failure.execution not in done:
            yield failure.execution


def changes_of(
    log: PersistentVector[LogEntry], schema: Schema, after: ImmutableState, before: ImmutableState
) -> dict[str, object]:
    """Changes by the commits of a completed run: raw updates of fields with a reducer, net change of others.

    `before` and `after` are the states with which it began and ended.
    """
    begun, *later = ancestry(log, [len(log) - 1])
    found: dict[str, Any] = {}  # a list of updates; None for a field without reducer, which is compared below
    for index in (begun, *later):
        for name, update in log[index].commit.patch.items():
            if schema.reducer(name) is None:
                found[name] = None
            elif index != begun:
                found.setdefault(name, []).append(update)
            elif isinstance(update, Updates):  # the input, and what a router at START wrote
                found[name] = list(update.updates[1:])
    return {
        name: after.raw(name, DELETE) if updates is None else Updates(*updates)
        for name, updates in found.items()
        if updates is not None or not same(before.raw(name, DELETE), after.raw(name, DELETE))
    }


def rejected_in(run: RunState, checks: Mapping[str, FinderNode]) -> set[str]:
    """The executions of a run whose output a check has refused."""
    if not checks:
        return set()
    failed = [
        (failure.node, failure.branches[0].head)
        for failure in run.failures
        if failure.node in checks and isinstance(failure.error, CheckError)
    ]
    return rejected_executions(run.log, checks, failed)


def unfinished_branches(run: RunState) -> dict[BranchPath, Branch]:
    """The branches that have not reached their end, those that failed included, by path."""
    failed = [branch for failure in run.failures for branch in failure.branches]
    return {branch.path: branch for branch in (*active_branches(run), *failed)}


# --- the trace


class LostSteps(NamedTuple):
    """The DSPy trace of an attempt that raised: of a node, or of the item of a map with this index."""

    item: int
    attempt: int
    steps: Steps


def _parts(run: RunState, graph: GraphSpec) -> Iterator[tuple[str, str, bool, bool]]:
    """The executions in lineage order, each followed by its trials of a search: whatever has a trace of its own.

    Of each, the execution, the part, whether it led to the result, which no trial does before the search has ended, and
    whether a check has refused the output.
    """
    rejected = rejected_in(run, graph.rejecting)
    trials = dict(chain.from_iterable(node.trials_in(run.log).items() for node in graph.searches.values()))
    for execution in executions_in_order(run):
        for part, led in ((execution, True), *trials.get(execution, ())):
            yield execution, part, led, execution in rejected


def trace_of(run: RunState, graph: GraphSpec, traces: Mapping[str, Steps]) -> list[Any]:
    """The trace in lineage order, whichever node finished first; a failed node's steps follow its branch."""
    last = len(run.log) - 1
    never_forked = run.ended and run.log[last].commit.id == execution_id((), last)
    # The traces are in the order of arrival, which is that of the lineage as long as there is one branch.
    if never_forked and not graph.searches and not rejected_in(run, graph.rejecting):
        return [step for steps in traces.values() for step in steps]
    copies: dict[int, Any] = {}  # one of each predictor: two steps of one predictor stay steps of one
    found = [(traces.get(part, ()), refused) for _, part, led, refused in _parts(run, graph) if led]
    return [rejected_step(step, copies) if refused else step for steps, refused in found for step in steps]


def trace_steps_of(
    run: RunState, graph: GraphSpec, traces: Mapping[str, Steps], lost: Mapping[str, Sequence[LostSteps]]
) -> list[TraceStep]:
    """All steps of the trace, in its order, each with what became of it."""
    found: list[TraceStep] = []
    commits = {entry.commit.id: entry.commit for entry in run.log}
    failed = {failure.execution: failure for failure in run.failures}
    for execution, part, led, rejected in _parts(run, graph):
        commit = commits.get(execution)
        node = failed[execution].node if commit is None else commit.node
        attempt = last_attempt(failed[execution].failed_attempts) if commit is None else commit.attempt
        for one in sorted(lost.get(part, ()), key=lambda one: one.item):
            found += [TraceStep(part, node, *step, one.attempt, "lost") for step in one.steps]
        for predictor, inputs, outputs in traces.get(part, ()):
            refused = rejected or is_rejected(predictor)  # the latter by a check inside the node
            status: Literal["used", "rejected", "lost"] = "rejected" if refused else "used"
            status = status if led and not is_apart(predictor) else "lost"
            found.append(TraceStep(part, node, predictor, inputs, outputs, attempt, status))
    return found


def uncredited(run: RunState, graph: GraphSpec, traces: Mapping[str, Steps]) -> list[Steps]:
    """The traces of the trials that did not lead to the result, in their order."""
    if not graph.searches:
        return []
    return [traces[part] for _, part, led, _ in _parts(run, graph) if not led and part in traces]
