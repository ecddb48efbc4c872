"""A run in lineage order, whichever branch was faster: its executions, its changes, its DSPy trace.

The trace is made of those of the executions: which steps led to the result, and what became of others. The steps of a
trial of a search are kept apart from those of the node that made it: they are in the trace only if the search has
picked the trial, or one below it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import dspy

from dspyer.errors import CheckError
from dspyer.events import BranchPath, TraceStep
from dspyer.graph.spec import GraphSpec
from dspyer.ids import execution_id, id_order
from dspyer.lm.tracing import Steps, is_apart, is_rejected, rejected_step
from dspyer.nodes.check import PROBLEMS, CheckedCommit, FinderNode, Repair, rejected_executions
from dspyer.nodes.node import Node
from dspyer.patch import DELETE, Replace
from dspyer.redaction import Redactor
from dspyer.reducers import Updates
from dspyer.scheduler.lineage import LogEntry, ancestry
from dspyer.scheduler.schedule import Branch, FailedBranch, RunState, Transition, last_attempt
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import same
from dspyer.values.frozen import thaw
from dspyer.values.persistent import PersistentVector


def executions_in_order(run: RunState) -> Iterator[str]:
    """The executions of a run in lineage order; those that failed follow their branches."""
    heads: list[int] = [len(run.log) - 1]
    failures: tuple[FailedBranch, ...] = ()
    if not run.ended:
        branches, failures = unfinished_branches(run), run.failures
        heads = [branches[path].head for path in sorted(branches) if branches[path].head >= 0]
    done: set[str] = set()
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
    begun, *order = ancestry(log, [len(log) - 1])
    found: dict[str, Any] = {}  # a list of updates; None for a field without reducer, which is compared below
    for name, update in log[begun].commit.patch.items():  # the inputs, and what a router at START wrote
        if schema.reducer(name) is None:
            found[name] = None
        elif isinstance(update, Updates):
            found[name] = list(update.updates[1:])  # the first one is the input
    for index in order:
        for name, update in log[index].commit.patch.items():
            if schema.reducer(name) is None:
                found[name] = None
            else:
                found.setdefault(name, []).append(update)
    for name, updates in list(found.items()):
        if updates is not None:
            found[name] = Updates(*updates)
        elif same(before.raw(name, DELETE), after.raw(name, DELETE)):
            del found[name]
        else:
            found[name] = after.raw(name, DELETE)
    return found


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
    branches = [branch for group in (*run.waiting.values(), *run.ready) for branch in group.branches]
    branches += [execution.branch for execution in run.running.values()]
    branches += [execution.branch for execution, _ in run.suspended.values()]
    branches += [branch for failure in run.failures for branch in failure.branches]
    return {branch.path: branch for branch in branches}


def credited_in(run: RunState, searches: Mapping[str, Node]) -> dict[str, list[tuple[str, bool]]]:
    """The trials of each execution that made some: the execution of each, and whether it led to the best trial.

    Before the search has ended, none of them did.
    """
    found: dict[str, list[tuple[str, bool]]] = {}
    for node in searches.values():
        found |= node.trials_in(run.log)
    return found


# --- the trace


class LostSteps(NamedTuple):
    """The DSPy trace of an attempt that raised: of a node, or of the item of a map with this index."""

    execution: str
    item: int
    attempt: int
    steps: Steps


def trace_of(run: RunState, graph: GraphSpec, traces: Mapping[str, Steps]) -> list[Any]:
    """The trace in lineage order, whichever node finished first; a failed node's steps follow its branch."""
    last = len(run.log) - 1
    rejected = rejected_in(run, graph.rejecting)
    never_forked = run.ended and run.log[last].commit.id == execution_id((), last)
    if never_forked and not rejected and not graph.searches:
        return [step for steps in traces.values() for step in steps]
    trials = credited_in(run, graph.searches)
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
    found: list[TraceStep] = []
    rejected, commits = rejected_in(run, graph.rejecting), {entry.commit.id: entry.commit for entry in run.log}
    trials = credited_in(run, graph.searches)
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
    trials = credited_in(run, graph.searches)
    return [traces[trial] for execution in trials for trial, led in trials[execution] if not led and trial in traces]


# Corrections as training examples: what a checked node has read, and the output that its check accepted in the end.
#
# Everything is read from commits: a check that refuses an output sends the fix what the node has read, the refused
# output and the problems, and these values are a part of the check's commit. So a run and a stored thread give the same
# examples, of graphs inside nodes too.
#
# The check of an agent has no fix: the agent resumes. Its example is one of the whole task, from its inputs, which are
# a part of the user message, to the outputs that were accepted. No single turn leads from the one to the other.


logger = logging.getLogger("dspyer")


class LoggedChecks(NamedTuple):
    """The commits of one graph within a run, and its checks."""

    scope: tuple[str, ...]
    commits: Sequence[CheckedCommit]
    nodes: Mapping[str, Node]
    checks: Mapping[str, FinderNode]


def checks_in(
    scope: tuple[str, ...],
    log: Iterable[LogEntry],
    prefix: str,
    nodes: Mapping[str, Node],
    checks: Mapping[str, FinderNode],
) -> list[LoggedChecks]:
    """The commits of one log, if a check has refused something there; `prefix` is what their ids begin with."""
    for entry in log:
        check = checks.get(entry.commit.node)
        if check is not None and check.rejects(entry.commit.route):
            return [LoggedChecks(scope, [CheckedCommit.of(one, prefix) for one in log], nodes, checks)]
    return []


def log_rejection(check: FinderNode, transition: Transition, redact: Callable[[str], str]) -> None:
    """Logs what a check has found, if its branch goes to a correction."""
    if transition.failure is not None:
        return
    if check.rejects(tuple([target.node for target in transition.targets])):
        problems = redact("; ".join(transition.state[check.into]))
        logger.info("check %r refused %s, a correction follows: %s", check.name, check.what, problems)


def repairs_in(logged: Sequence[LoggedChecks], redactor: Redactor | None) -> list[dspy.Example]:
    """The repairs in the graphs of a run: those of one graph in the order of its commits, outer graphs first."""
    found: list[dspy.Example] = []
    for one in sorted(logged, key=lambda one: [id_order(execution) for execution in one.scope]):
        for index, commit in sorted(enumerate(one.commits), key=lambda pair: id_order(pair[1].id)):
            check = one.checks.get(commit.node)
            if check is None or check.rejects(commit.route):
                continue
            if _is_empty(commit.patch.get(check.into)):
                repair = check.repair_in(one.commits, index, one.nodes)
                found += [] if repair is None else [_example(repair, commit.id, check.into, redactor)]
    return found


def _is_empty(update: Any) -> bool:
    """Return whether a check has emptied its list of problems: it passed after it had found some."""
    value = update.value if isinstance(update, Replace) else update
    return value is not None and value is not DELETE and not len(value)


def _example(repair: Repair, commit: str, into: str, redactor: Redactor | None) -> dspy.Example:
    shown = _Shown(redactor, repair.reads, repair.writes)
    values = {
        PROBLEMS: [shown.problems(into, found) for found in repair.problems],
        "rejected": [shown.outputs(one) for one in repair.rejected],
        "commit": commit,
        **shown.inputs(repair.inputs),
        **shown.outputs(repair.accepted),
    }
    return dspy.Example(**shown.texts(values)).with_inputs(*repair.inputs)


class _Shown:
    """Plain values of an example, without what `compile(redact=...)` hides: by path, and in texts that repeat it."""

    def __init__(self, redactor: Redactor | None, reads: Mapping[str, str], writes: Mapping[str, str]) -> None:
        self._redactor = redactor
        self._reads = reads
        self._writes = writes

    def inputs(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._plain(self._reads[name], value) for name, value in values.items()}

    def outputs(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._plain(self._writes[name], value) for name, value in values.items()}

    def problems(self, into: str, value: Any) -> Any:
        return self._plain(into, value)

    def texts(self, values: dict[str, Any]) -> dict[str, Any]:
        """Hides what is hidden in one value also where the texts of others repeat it."""
        return values if self._redactor is None else {name: self._redactor.redact(one) for name, one in values.items()}

    def _plain(self, field: str, value: Any) -> Any:
        if self._redactor is None:
            return thaw(value)
        self._redactor.learn_value((field,), value)
        return thaw(self._redactor.redaction.value((field,), value))
