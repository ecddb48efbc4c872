"""Corrections as training examples: what a checked node has read, and the output that its check accepted in the end.

Everything is read from commits: a check that refuses an output sends the fix what the node has read, the refused output
and the problems, and these values are a part of the check's commit. So a run and a stored thread give the same
examples, of graphs inside nodes too.

The check of an agent has no fix: the agent resumes. Its example is one of the whole task, from its inputs, which are a
part of the user message, to the outputs that were accepted. No single turn leads from the one to the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import dspy

from dspyer.display.redaction import Redactor
from dspyer.ids import id_order
from dspyer.nodes.check import PROBLEMS, CheckedCommit, FinderNode, Repair
from dspyer.nodes.node import Node
from dspyer.patch import DELETE, Replace
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.run_state import Transition
from dspyer.values.frozen import thaw

logger = logging.getLogger("dspyer")


class LoggedChecks(NamedTuple):
    """The commits of one graph within a run, and its checks.

    Attributes:
        scope: the executions around the graph.
        commits: its commits in the order of the log.
        nodes: its nodes.
        checks: its checks by name.
    """

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
    """Whether a check has emptied its list of problems: it passed after it had found some."""
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
