"""A run in lineage order, whichever branch was faster: its executions, and what checks have refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dspyer.errors import CheckError
from dspyer.events import BranchPath
from dspyer.nodes.check import rejected_executions
from dspyer.nodes.node import Node
from dspyer.scheduler.lineage import ancestry
from dspyer.scheduler.run_state import Branch, FailedBranch, RunState


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


def rejected_in(run: RunState, checks: Mapping[str, Node]) -> set[str]:
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
