"""Replay: fold the rows of an unfinished run to the scheduler's `RunState`, so that it can be resumed.

This is event sourcing: the state of a run is the fold of its log. The scheduler's pure functions that made the log
(`begin`, `advance`) are called again with what the rows have recorded: patches, routes, overlays of a `Send`, and what
joins have made. Neither nodes nor routers, policies, reducers of users or LMs are called, and nothing is merged: replay
is deterministic and costs no tokens. Of an open fork it has the lineage, which the next join needs.

A log may have been cut at a past version. It may lack the commits that proved that no other branch could still reach a
join; where the log has the commit of a group that the scheduler would let wait, the group is forced to start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from sys import maxsize
from typing import Any

from dspyer.errors import ChangedGraphError
from dspyer.events import Commit
from dspyer.ids import Address
from dspyer.log.rows import CommitRow, EndRow, RowKind
from dspyer.patch import apply, seal
from dspyer.record_codec import DecodeValue
from dspyer.scheduler.join import JoinResult
from dspyer.scheduler.lineage import decided_by, joined_counts, merge_base
from dspyer.scheduler.schedule import (
    Branch,
    Execution,
    Group,
    Position,
    RunState,
    Target,
    Transition,
    active_branches,
    advance,
    append_commit,
    begin,
    force_ready,
    plan,
)
from dspyer.scheduler.topology import END as END_NODE
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.stores.base import Row
from dspyer.stores.content import Fetch
from dspyer.values import json as encoding

InputsAndState = tuple[Mapping[str, Any], ImmutableState]
"""The patch with which a run begins, and the state after it."""


def replay(
    run: RunState,
    rows: Iterable[Row],
    opening: InputsAndState,
    fetch: Fetch,
    decode: DecodeValue = encoding.decode,
    schema_at: Callable[[Row], Schema] | None = None,
) -> RunState:
    """Fold the rows of one scope, in the order of writing, and return the run as they left it.

    Args:
        run: the run at its start.
        rows: its rows; those that are no commits are ignored.
        opening: the patch of its first commit, and the state after it.
        fetch: returns blobs.
        decode: makes frozen values of their JSON form.
        schema_at: returns the schema that folds a row, if other graphs have written some.

    Raises:
        ChangedGraphError: if the graph cannot have written these rows.
        StoreError: if a row is malformed.
    """
    topology = run.topology
    # The limit of steps is for what is new: a run that reached it, and got a higher one, must replay.
    run = run._replace(topology=replace(topology, max_steps=maxsize))
    left: dict[str, Position] = {}  # where the node of each commit was
    for row in rows:
        kind = row.kind
        schema = run.topology.schema if schema_at is None else schema_at(row)
        if schema is not run.topology.schema:
            run = run._replace(topology=replace(run.topology, schema=schema))
        if kind == RowKind.COMMIT:
            run = _replay_commit(run, CommitRow.read(row, fetch, decode), opening, left)
        elif kind == RowKind.JOIN:
            run = _replay_join(run, CommitRow.read(row, fetch, decode))
        elif kind == RowKind.UPDATE:
            run = _replay_update(run, CommitRow.read(row, fetch, decode), left)
        elif kind == RowKind.END and EndRow.of(row).status == "completed":
            # The step to `END` makes no commit, so the row of the end stands for it. Rows of other ends say nothing of
            # where the run is: their branches wait where their commits have led.
            ready = [index for index, group in enumerate(plan(run)) if group.position[0] == END_NODE]
            run = begin(run, ready[0])[0] if ready else run
    return run._replace(topology=topology)


def _replay_commit(run: RunState, record: CommitRow, opening: InputsAndState, left: dict[str, Position]) -> RunState:
    run, execution = _execution_of(run, record)
    if execution is None or execution.node != record.node:
        raise _impossible(record)
    left[record.id] = execution.position
    # The patch of the first commit is in the open row, which was written before any node ran.
    if record.patch is None:
        patch, state = opening
    else:
        state = run.topology.schema.replay(execution.branch.state, record.patch, record.made)
        patch = record.patch
    targets = _targets_of(run, record, record.node)
    times, attempts = record.seconds, record.attempts
    transition = Transition(patch, state, targets, record.reason, *times, record.live, record.calls, **attempts)
    return advance(run, execution.id, transition)[0]


def _targets_of(run: RunState, record: CommitRow, node: str) -> tuple[Target, ...]:
    """The targets to which a commit has led from a node."""
    # The route is taken from the row: routers are functions of users, and may decide otherwise today.
    allowed = run.topology.targets(node)
    gone = [name for name in record.route if name not in allowed]
    if gone:
        raise ChangedGraphError(
            f"commit {record.id} of node {node!r} went to {gone[0]!r}, which is none of its targets in this graph",
            [f"node {node!r} cannot go to {gone[0]!r}"],
        )
    overlays = record.sent or (None,) * len(record.route)
    return tuple([Target(name, overlay) for name, overlay in zip(record.route, overlays, strict=True)])


def _execution_of(run: RunState, record: CommitRow) -> tuple[RunState, Execution | None]:
    """Return the execution of a commit: that of a join has begun with the join's commit, any other begins here."""
    if record.id in run.running:
        return run, run.running[record.id]
    run, index = _ready_index(run, lambda group: len(group.branches) == 1 and group.branches[0].path == record.branch)
    if index is None:
        return run, None
    run, execution, _ = begin(run, index)
    return run, execution


def _replay_join(run: RunState, record: CommitRow) -> RunState:
    parents, node = record.parents or (), record.node.removeprefix("join:")

    # By heads, not by name alone: in a loop a node is joined again, for other branches each time.
    def joins(group: Group) -> bool:
        heads = {branch.head for branch in group.branches}
        return len(group.branches) > 1 and group.position[0] == node and heads == set(parents)

    run, index = _ready_index(run, joins)
    if index is None:
        raise _impossible(record)
    log = run.log
    counts = joined_counts(log, *merge_base(log, parents))
    winners = record.winner_indexes(len(log), lambda at: log[at].commit.id)
    # What the join made is stored, from its first parent on: no merge policy is called again.
    state = apply(log[parents[0]].state, record.made)
    return begin(run, index, JoinResult(state, record.patch or {}, record.plain_conflicts(), winners, counts))[0]


def _ready_index(run: RunState, wanted: Callable[[Group], bool]) -> tuple[RunState, int | None]:
    """Return the index of a group among those that are ready. One that still waits is forced to start."""
    for index, group in enumerate(plan(run)):
        if wanted(group):
            return run, index
    waiting = [group.position for group in run.waiting.values() if wanted(group)]
    if not waiting:
        return run, None
    run = force_ready(run, waiting[0])
    return run, next(index for index, group in enumerate(plan(run)) if wanted(group))


def _replay_update(run: RunState, record: CommitRow, left: Mapping[str, Position]) -> RunState:
    branches = active_branches(run)
    if len(branches) != 1:
        raise _impossible(record)
    (branch,) = branches
    patch = record.patch or {}
    commit = update_commit(branch, run.first + len(run.log), record.node, patch, *record.seconds)
    state = run.topology.schema.replay(branch.state, patch, record.made)
    if not record.route:
        return append_commit(run, commit, state)
    before = decided_by(run.log, branch.head)
    if before.commit.id not in left:
        raise _impossible(record)
    targets = _targets_of(run, record, before.commit.node)
    return append_commit(run, replace(commit, route=record.route), state, left[before.commit.id], targets)


def update_commit(
    branch: Branch, version: int, author: str, patch: Mapping[str, Any], started: float, duration: float = 0.0
) -> Commit:
    """Return a manual commit after the last one of a branch: `"trunk:3+1"` after `"trunk:3"`.

    It takes no index of its own. So the ids of later executions stay the same, and with them their recorded effects.
    """
    change = Address.parse(branch.id).changed()
    return Commit(
        str(change),
        version,
        author,
        branch.path,
        change.change,
        branch.step + 1,
        seal(patch),
        (branch.id,),
        started=started,
        duration=duration,
    )


def _impossible(record: CommitRow) -> ChangedGraphError:
    return ChangedGraphError(
        f"this graph cannot have made commit {record.id} of {record.node!r}: its nodes or edges were others",
        [f"commit {record.id} of {record.node!r} has no place in it"],
    )
