"""A thread as it stood at one of its commits: what of its run counts there, and how somebody changes it by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any, NamedTuple

from dspyer.errors import ThreadError, suggestion
from dspyer.events import Commit
from dspyer.persistence.execution_records import ExecutionRecords
from dspyer.persistence.history import ListedCommit
from dspyer.persistence.reader import RowNumbers, RunRows, left_out, outermost, read_run, read_runs, spans, without
from dspyer.persistence.replay import update_commit
from dspyer.persistence.rows import (
    COMMITS,
    CommitContent,
    CommitHeader,
    NewRow,
    RowKind,
    digest,
    end_row,
    manual_commit_row,
    open_row,
)
from dspyer.scheduler.run_state import Branch, active_branches, execution_id
from dspyer.scheduler.topology import END
from dspyer.state import ImmutableState
from dspyer.stores.base import Point, RunRow
from dspyer.threads.rest import ThreadHead
from dspyer.threads.starting import RunStarter

BY_HAND = "update"
"""The author of a commit that somebody makes by hand."""


class HistoryPrefix(NamedTuple):
    """A thread up to one of its commits.

    Attributes:
        run: its run up to there; what executions without a commit up to there have left behind is not in it.
        point: the last row that counts.
        gone: spans of the rows before it that do not.
        number: which of the thread's commits it is; -1 for the last one.
        inside: whether it is inside of a run, and something is left to be done.
    """

    run: RunRows
    point: Point
    gone: list[RowNumbers]
    number: int
    inside: bool


def prefix_at(starter: RunStarter, listed: ListedCommit, version: int | str) -> HistoryPrefix:
    """A thread as it stood at a commit.

    Args:
        starter: of the thread.
        listed: its commits.
        version: version or id of the commit.

    Raises:
        LookupError: if there is no such commit.
    """
    number = listed.number(version)
    at, place = listed.runs[number], listed.places[number]
    if at in listed.history.roots:  # what came before it was pruned
        return HistoryPrefix(read_runs(starter.store, [at], at)[0], at, [], number, False)
    whole = read_run(starter.store, at)
    order = listed.history.in_order(at)
    if whole.status == "completed" and order[-1] == place:
        return HistoryPrefix(whole, at, [], number, False)
    kept = set(order[: order.index(place) + 1])
    rows = [
        (row_place, told)
        for row_place, told in zip(_commit_rows(whole), listed.history.runs[at].places, strict=True)
        if told in kept
    ]
    last, gone = left_out(whole.rows, {row_place for row_place, _ in rows})
    left, places = without(whole.rows[: last + 1], gone)
    points = tuple([whole.points[row_place] for row_place in places])
    if points[-1].run != at.run:  # a part before this one goes on otherwise: there rows count that this one leaves out
        counting = set(points)
        before = read_run(starter.store, points[-1]).points
        gone = spans(place for place, point in enumerate(before) if point not in counting)
    return HistoryPrefix(whole._replace(rows=tuple(left), points=points), points[-1], gone, number, True)


def prefix_here(starter: RunStarter, head: Point) -> HistoryPrefix:
    """A thread as it stands, with all that is left to be done."""
    whole = read_run(starter.store, head)
    return HistoryPrefix(whole, head, [], -1, whole.status != "completed")


def _commit_rows(of: RunRows) -> list[int]:
    found = [place for place, row in enumerate(of.rows) if row.kind in COMMITS and not CommitHeader.of(row.head).scope]
    return found or [place for place, row in enumerate(of.rows) if row.kind == RowKind.OPEN]


def memo_of(starter: RunStarter, cut: HistoryPrefix) -> ExecutionRecords:
    """What the executions of a run have left behind."""
    memo = ExecutionRecords()
    memo.read(cut.run.rows, starter.reader.fetch, starter.reader.decode)
    return memo


def lone_branch(starter: RunStarter, listed: Callable[[], ListedCommit], cut: HistoryPrefix) -> Branch:
    """The only live branch of an open run.

    Args:
        starter: of the thread.
        listed: gives the commits of the thread that the run is from.
        cut: the place in the run.

    Raises:
        ThreadError: if several branches are live, with the nearest versions at which only one was.
    """
    run = starter.again(cut.run, memo_of(starter, cut)).run
    branches = active_branches(run)
    if len(branches) != 1:
        raise ThreadError(
            f"{len(branches)} branches of thread {starter.thread!r} are live there, and a change by hand must be one "
            f"that all of them share. {nearest(listed(), cut.number)}"
        )
    (branch,) = branches
    if branch.head < 0:
        raise ThreadError(
            f"the last run of thread {starter.thread!r} has not come to its first commit: call t.resume(), or start "
            "another run with t.run(..., abandon=True)"
        )
    return branch


def _check_not_begun(starter: RunStarter, cut: HistoryPrefix, branch: Branch) -> None:
    """A node that has done a part of its work has done it with the state as it is."""
    memo = memo_of(starter, cut)
    comes = execution_id(branch.path, branch.tally.get(branch.path, 0))
    begun = [*memo.items, *[head.scope[0] for head in map(CommitHeader.of, _heads(cut)) if head.scope]]
    if any(outermost(name) == comes for name in begun):
        raise ThreadError(
            f"the node that comes next in thread {starter.thread!r} has done a part of its work already, with the "
            "state as it is. Let it finish with t.resume(), or commit in its place with t.update(..., as_node=...)"
        )


def _heads(cut: HistoryPrefix) -> list[tuple[Any, ...]]:
    return [row.head for row in cut.run.rows if row.kind in COMMITS]


def nearest(listed: ListedCommit, number: int) -> str:
    """The versions nearest to a commit at which one branch was live, as an error names them."""
    history, number = listed.history, number % len(listed.commits)

    def lone(other: int) -> bool:
        commit = listed.commits[other]
        return commit.version is not None and history.alone[listed.places[other]] and len(commit.route) <= 1

    before = next((listed.commits[other].version for other in range(number - 1, -1, -1) if lone(other)), None)
    after = next(
        (listed.commits[other].version for other in range(number + 1, len(listed.commits)) if lone(other)), None
    )
    found = [str(version) for version in (before, after) if version is not None]
    return f"Nearest versions with one branch: {' and '.join(found)}" if found else "No version has one branch alone"


class ManualCommit(NamedTuple):
    """What somebody changes: rows to be written, at the end of a run or as a new one.

    Attributes:
        run: the run.
        drafts: its rows.
    """

    run: RunRow
    drafts: list[NewRow]


def at_rest(
    starter: RunStarter, rest: ThreadHead, parents: tuple[Point, ...], patch: Mapping[str, Any]
) -> ManualCommit:
    """A run that is one commit by hand, and after which the thread is at rest.

    Args:
        starter: of the thread that gets it.
        rest: what that thread has come to, with the state to change and the version of the commit.
        parents: the row that the run goes on from.
        patch: the change.

    Raises:
        NodeOutputError: if the change does not fit the schema.
        InputError: the same for a thread without any run.
    """
    label = starter.label(rest)
    update, state = _fitting(starter, rest, patch, BY_HAND, f"{label}/trunk:0", fresh=not parents)
    commit = Commit("trunk:0", rest.first, BY_HAND, (), 1, 0, update, (), route=(END,), started=time.time())
    begun = manual_commit_row(RowKind.UPDATE, commit, CommitContent(update), starter.fitting.beside)
    drafts = [begun, end_row("completed", digest(state), ())]
    return ManualCommit(RunRow(token_hex(16), starter.thread, parents, starter.header(rest.first, label)), drafts)


def within(
    starter: RunStarter, listed: Callable[[], ListedCommit], cut: HistoryPrefix, label: str, patch: Mapping[str, Any]
) -> list[NewRow]:
    """The rows of a commit by hand in an open run, between its last commit and the node that comes next.

    Args:
        starter: of the thread.
        listed: gives the commits of the thread that the run is from.
        cut: where the run stands.
        label: the name of the run for people.
        patch: the change.

    Raises:
        ThreadError: if several branches are live.
        NodeOutputError: if the change does not fit the schema.
    """
    starter.fitting.check_graph(cut.run)
    branch = lone_branch(starter, listed, cut)
    _check_not_begun(starter, cut, branch)
    commit = update_commit(branch, 0, BY_HAND, {}, time.time())
    update, _ = validated(starter, branch.state, patch, BY_HAND, f"{label}/{commit.id}")
    status = cut.run.status or "stopped"
    return [
        manual_commit_row(RowKind.UPDATE, commit._replace(patch=update), CommitContent(update)),
        end_row(status, None, ()),
    ]


def in_the_name_of(
    starter: RunStarter, rest: ThreadHead, parents: tuple[Point, ...], patch: Mapping[str, Any], node: str
) -> ManualCommit:
    """A run that begins with a commit in the name of a node, and goes on along its edges when it is resumed.

    Raises:
        ThreadError: if there is no such node, or no edge that leads on from it.
        NodeOutputError: if the change does not fit the schema.
    """
    blueprint = starter.blueprint
    if node not in blueprint.nodes:
        hint, known = suggestion(node, blueprint.nodes), ", ".join(map(repr, blueprint.nodes))
        raise ThreadError(f"as_node={node!r} is no node of graph {blueprint.name!r}.{hint} Nodes: {known}")
    if not blueprint.exits.get(node):
        raise ThreadError(
            f"no edge leads on from node {node!r}: it says itself where to go, with Command(goto=...), and cannot be "
            "asked. Take the node before it, or t.update(...) without as_node"
        )
    label = starter.label(rest)
    update, _ = _fitting(starter, rest, patch, node, f"{label}/trunk:0", fresh=not parents)
    drafts = [open_row(node, update, time.time(), starter.fitting.beside), end_row("stopped", None, ())]
    return ManualCommit(RunRow(token_hex(16), starter.thread, parents, starter.header(rest.first, label)), drafts)


def _fitting(
    starter: RunStarter, rest: ThreadHead, patch: Mapping[str, Any], author: str, commit_id: str, fresh: bool
) -> tuple[dict[str, Any], ImmutableState]:
    """A change of what a thread has come to, with what makes that fit the graph, if it has changed."""
    starter.fitting.check_graph(rest.last)
    fitted = starter.fitting.adapted(rest.state, rest.last)
    update, _ = validated(starter, fitted.state, patch, author, commit_id, fresh)
    schema = starter.blueprint.topology.schema
    update = fitted.patch(schema, update)
    return update, schema.replay(rest.state, update)


def validated(
    starter: RunStarter,
    state: ImmutableState,
    patch: Mapping[str, Any],
    author: str,
    commit_id: str,
    fresh: bool = False,
) -> tuple[dict[str, Any], ImmutableState]:
    """A change as a commit holds it, and the state after it; a thread without any run gets the defaults with it."""
    schema = starter.blueprint.topology.schema
    if fresh:
        update, after = schema.begin(state, patch, keep=None, commit_id=commit_id)
    else:
        update, after = schema.commit(state, patch, node=author, commit_id=commit_id)
    schema.check_whole(None if fresh else author, state, update, after)
    return update, after
