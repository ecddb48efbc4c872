"""A stored run as reports and pictures show it, read from its rows: they need no program and no `Run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dspyer.archive.run_info import RunInfo
from dspyer.display.report import MapCount, RunFacts
from dspyer.display.run_rows import DisplayRow, ErrorText, FailedAt, active_at_end, display_rows
from dspyer.events import BranchPath, Commit, MergedConflict, Question
from dspyer.failure import Failure
from dspyer.ids import Address, full_id, outermost_execution, path_of_id, path_text
from dspyer.log.reader import RunRows, commit_header
from dspyer.log.rows import COMMITS, RowKind

_ALL_KNOWN = ("completed", "failed", "interrupted")
"""How a run has ended in which every execution that was begun has left a row."""


_NOT_BEGUN = ("StepLimitError",)
"""Failures of an execution that was not begun."""


class StoredRunDisplay(NamedTuple):
    """What displays show of a stored run.

    Attributes:
        rows: its commits, and where it ended.
        facts: what the first line of its report says.
    """

    rows: list[DisplayRow]
    facts: RunFacts


def stored_run_display(
    info: RunInfo,
    commits: Sequence[Commit],
    conflicts: Mapping[str, tuple[MergedConflict, ...]],
    failures: Sequence[Failure],
    stored: RunRows,
) -> StoredRunDisplay:
    """Puts together what is shown of a run.

    Args:
        info: what lists say of it.
        commits: its commits, in canonical order.
        conflicts: those of its joins, by the id of the commit.
        failures: those with which it ended, with their tracebacks.
        stored: its rows.
    """
    local = [_local(commit) for commit in commits]
    resolved = {_own_id(name): found for name, found in conflicts.items()}
    active = {} if info.status == "completed" else active_at_end(local)
    failed = [_failed_at(failure, active) for failure in failures]
    rows = display_rows(local, resolved, failed, info.questions, active)
    ended = None if info.ended is None else info.ended.timestamp()
    last = max([commit.ended for commit in commits], default=info.started.timestamp())
    facts = RunFacts(
        info.graph,
        info.status,
        max(0.0, (ended or last) - info.started.timestamp()),
        _calls(local, failed, info.questions) if info.status in _ALL_KNOWN else None,
        info.usage,
        _maps(stored, local, failed, active),
        _whole_error(failures),
    )
    return StoredRunDisplay(rows, facts)


class StoppedExecution(NamedTuple):
    """Where a run has ended: an execution that has left no commit.

    Attributes:
        execution: its id, with the label of its run in front.
        node: its node; `"join:NAME"` of a join.
        branch: its branch.
        parents: the ids of the commits that it follows.
    """

    execution: str
    node: str
    branch: BranchPath
    parents: tuple[str, ...]


def stopped_executions(
    info: RunInfo, failures: Sequence[Failure], commits: Sequence[Commit]
) -> dict[str, StoppedExecution]:
    """Where the executions were that failed or ask, by their id and by those of their questions.

    Args:
        info: what lists say of the run.
        failures: those with which it ended.
        commits: its commits, in canonical order, at least from the last settled one on.
    """
    local = [_local(commit) for commit in commits]
    ids = {own.id: commit.id for own, commit in zip(local, commits, strict=True)}
    active = {} if info.status == "completed" else active_at_end(local)
    names = {_own_id(failure.execution): failure.execution for failure in failures}
    found: dict[str, StoppedExecution] = {}
    for row in display_rows(local, {}, [_failed_at(one, active) for one in failures], info.questions, active):
        parents = tuple([ids[parent] for parent in row.parents])
        if row.error is not None:
            name = names[row.execution]
            found[name] = StoppedExecution(name, row.node, row.branch, parents)
        for question in row.questions:
            name = full_id(question.run, question.execution)
            node, branch = (question.node, question.branch) if question.key == "after" else (row.node, row.branch)
            found[name] = found[question.id] = StoppedExecution(name, node, branch, parents)
    return found


def _local(commit: Commit) -> Commit:
    """A commit as its run knows it: without the name of the run in front of ids."""
    return replace(commit, id=_own_id(commit.id), parents=tuple(map(_own_id, commit.parents)))


def _own_id(name: str) -> str:
    return Address.parse(name).own


# --- failures


def _failed_at(failure: Failure, active: Mapping[BranchPath, str]) -> FailedAt:
    """Where a failure was: at the end of its branch, or at the join of all branches that led there."""
    came: tuple[BranchPath, ...] = (failure.branch,)
    if failure.node.startswith("join:"):
        node = failure.node.removeprefix("join:")
        came = tuple([path for path, goal in active.items() if goal == node])
    return FailedAt(failure.node, failure.branch, came, _error_text(failure), (), _own_id(failure.execution))


def _error_text(failure: Failure) -> ErrorText:
    """The text of an exception; its notes are what follows the text in the traceback."""
    _, notes = _around_text(failure)
    return ErrorText(failure.type, failure.message, tuple([note for note in notes.split("\n") if note]))


def _around_text(failure: Failure) -> tuple[str, str]:
    """What a traceback has before the last line with the exception, on that line, and after its text."""
    text = f"{failure.type}: {failure.message}" if failure.message else failure.type
    before, found, after = failure.traceback.rpartition(text)
    return (before.rpartition("\n")[2], after) if found else ("", "")


def _whole_error(failures: Sequence[Failure]) -> ErrorText | None:
    """The first failure, with the others in its notes, as in `Run.error`."""
    if not failures:
        return None
    first, *others = failures
    error = _error_text(first)
    notes = []
    for other in others:
        what = f"{_around_text(other)[0]}{_error_text(other)}".partition("\n")[0]
        notes.append(f"also failed: {other.node!r} (branch {path_text(other.branch)}): {what}")
    return error._replace(notes=(*error.notes, *notes))


# --- counts


def _calls(commits: Iterable[Commit], failed: Iterable[FailedAt], questions: Iterable[Question]) -> int:
    """How many executions of nodes were begun; those that were asked are called again by a resume."""
    nodes = [commit.id for commit in commits if commit.node != "START" and not commit.node.startswith("join:")]
    begun = [one for one in failed if not one.node.startswith("join:") and one.error.type not in _NOT_BEGUN]
    nodes += [one.execution for one in begun]
    nodes += [outermost_execution(question.execution) for question in questions if question.key != "after"]
    return len(set(nodes))


def _maps(
    stored: RunRows, commits: Sequence[Commit], failed: Sequence[FailedAt], active: Mapping[BranchPath, str]
) -> list[MapCount]:
    """The items of each map that have a result, and those of its commits that have failed."""
    nodes = {commit.id: commit.node for commit in commits} | {one.execution: one.node for one in failed}
    completed, lost = Counter[str](), Counter[str]()
    for row in stored.rows:
        if row.kind == RowKind.ITEM and not Address.parse(str(row.header.get("execution"))).scope:
            completed[_node_of(outermost_execution(str(row.header.get("execution"))), nodes, active)] += 1
        elif row.kind in COMMITS:
            header = commit_header(row)
            if header.items is not None and not header.scope:
                lost[header.node] += len(header.items.failed)
    return [MapCount(node, count, lost[node]) for node, count in completed.items()]


def _node_of(execution: str, nodes: Mapping[str, str], active: Mapping[BranchPath, str]) -> str:
    """The node of an execution; of one that has not ended, the one to which its branch led."""
    if execution in nodes:
        return nodes[execution]
    return active.get(path_of_id(execution), execution)
