"""A run in lineage order, whichever branch was faster: its executions, its changes, and what checks have refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dspyer.errors import CheckError
from dspyer.events import BranchPath
from dspyer.nodes.check import FinderNode, rejected_executions
from dspyer.nodes.node import Node
from dspyer.patch import DELETE
from dspyer.reducers import Updates
from dspyer.scheduler.lineage import LogEntry, ancestry
from dspyer.scheduler.run_state import Branch, FailedBranch, RunState
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
    for index in ancestry(run.log, heads):
        done.add(run.log[index].commit.id)
        yield run.log[index].commit.id
    for failure in failures:
        if failure.execution not in done:
            yield failure.execution


def changes_of(
    log: PersistentVector[LogEntry], schema: Schema, after: ImmutableState, before: ImmutableState
) -> dict[str, object]:
    """What the commits of a completed run changed: raw updates of fields with a reducer, net change of others.

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
