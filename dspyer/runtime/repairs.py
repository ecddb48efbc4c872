"""Corrections as training examples: what a checked node has read, and the output that its check accepted in the end.

Everything is read from commits: a check that refuses an output sends the fix what the node has read, the refused output
and the problems, and these values are a part of the check's commit. So a run and a stored thread give the same
examples, of graphs inside nodes too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import dspy

from dspyer.display.redaction import Redaction, Redactor
from dspyer.nodes.check import PREVIOUS, PROBLEMS, CheckNode
from dspyer.nodes.node import Node
from dspyer.patch import DELETE, Replace, apply_value
from dspyer.scheduler.lineage import LogEntry, is_manual
from dspyer.scheduler.run_state import Target
from dspyer.values.frozen import FrozenDict, thaw

logger = logging.getLogger("dspyer")


class CheckedCommit(NamedTuple):
    """A commit, as far as repairs are read from it.

    Attributes:
        id: its id, as the example names it.
        node: its author.
        route: where its branch went.
        patch: what it changed.
        sent: what the node that follows was sent.
        parent: the index of its parent; -1 for none.
        manual: whether no node made it (`t.update`).
    """

    id: str
    node: str
    route: tuple[str, ...]
    patch: Mapping[str, Any]
    sent: FrozenDict[str, Any] | None
    parent: int
    manual: bool

    @classmethod
    def of(cls, entry: LogEntry, prefix: str) -> CheckedCommit:
        """Return what repairs need of an entry of a log; `prefix` is what ids in its run begin with."""
        commit = entry.commit
        parent = entry.parents[0] if entry.parents else -1
        return cls(prefix + commit.id, commit.node, commit.route, commit.patch, entry.sent, parent, is_manual(commit))


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
    checks: Mapping[str, CheckNode]


def checks_in(
    scope: tuple[str, ...],
    log: Iterable[LogEntry],
    prefix: str,
    nodes: Mapping[str, Node],
    checks: Mapping[str, CheckNode],
) -> list[LoggedChecks]:
    """The commits of one log, if a check has refused something there; `prefix` is what their ids begin with."""
    for entry in log:
        check = checks.get(entry.commit.node)
        if check is not None and check.rejects(entry.commit.route):
            return [LoggedChecks(scope, [CheckedCommit.of(one, prefix) for one in log], nodes, checks)]
    return []


def log_rejection(check: CheckNode, target: Target, redactor: Redactor | None) -> None:
    """Logs what a check has found, if its branch goes to the fix."""
    if target.node == check.fix and target.overlay is not None:
        problems = "; ".join(target.overlay[PROBLEMS])
        shown = problems if redactor is None else redactor.redact(problems)
        logger.info("check %r refused the output of %r, a correction follows: %s", check.name, check.of, shown)


def repairs_in(logged: Sequence[LoggedChecks], redaction: Redaction | None) -> list[dspy.Example]:
    """The repairs in the graphs of a run: those of one graph in the order of its commits, outer graphs first."""
    found: list[dspy.Example] = []
    for one in sorted(logged, key=lambda one: [_natural(execution) for execution in one.scope]):
        for index, commit in sorted(enumerate(one.commits), key=lambda pair: _natural(pair[1].id)):
            check = one.checks.get(commit.node)
            if check is not None and not check.rejects(commit.route) and _is_empty(commit.patch.get(check.into)):
                found += _repair(one, index, check, redaction)
    return found


def _natural(execution: str) -> list[tuple[int, str]]:
    """Sorts `trunk:2` before `trunk:10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", execution)]


def _is_empty(update: Any) -> bool:
    """Whether a check has emptied its list of problems: it passed after it had found some."""
    value = update.value if isinstance(update, Replace) else update
    return value is not None and value is not DELETE and not len(value)


def _repair(logged: LoggedChecks, index: int, check: CheckNode, redaction: Redaction | None) -> Iterator[dspy.Example]:
    """The example of the corrections before a check that passed; none if the check found nothing before."""
    refused: list[FrozenDict[str, Any]] = []
    since: list[Mapping[str, Any]] = []  # the patches after the last refusal, newest first
    at = logged.commits[index].parent
    while at >= 0:
        commit = logged.commits[at]
        if commit.node == check.of and not commit.manual:
            break
        if commit.node == check.name and commit.sent is not None:
            refused.append(commit.sent)
        elif not refused:
            since.append(commit.patch)
        at = commit.parent
    if at < 0 or not refused:
        return
    refused.reverse()
    own = {name: f"{PREVIOUS}{name}" for name in check.outputs}
    inputs = {name: value for name, value in refused[0].raw_items() if name != PROBLEMS and name not in own.values()}
    accepted = {name: refused[-1].raw(sent, DELETE) for name, sent in own.items()}
    for patch in reversed(since):
        for name, field in check.outputs.items():
            if field in patch:
                accepted[name] = apply_value(accepted[name], patch[field])
    rejected = [{name: sent.raw(key) for name, key in own.items() if key in sent} for sent in refused]
    reads = logged.nodes[check.of].reads or {}
    shown = _Shown(redaction, {name: reads.get(name, name) for name in inputs}, check.outputs)
    values = {
        PROBLEMS: [shown.problems(check.into, sent.raw(PROBLEMS)) for sent in refused],
        "rejected": [shown.outputs(one) for one in rejected],
        "commit": logged.commits[index].id,
        **shown.inputs(inputs),
        **shown.outputs({name: value for name, value in accepted.items() if value is not DELETE}),
    }
    yield dspy.Example(**shown.texts(values)).with_inputs(*inputs)


class _Shown:
    """Plain values of an example, without what `compile(redact=...)` hides: by path, and in texts that repeat it."""

    def __init__(self, redaction: Redaction | None, reads: Mapping[str, str], writes: Mapping[str, str]) -> None:
        self._redaction = redaction
        self._redactor = None if redaction is None else Redactor(redaction, {})
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
        if self._redaction is None or self._redactor is None:
            return thaw(value)
        self._redactor.learn_value((field,), value)
        return thaw(self._redaction.value((field,), value))
