"""From the rows of a run back to the run as the scheduler knows it. No node, router, policy or LM is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from sys import maxsize
from typing import Any

from dspyer.errors import ChangedGraphError
from dspyer.events import Commit
from dspyer.patch import seal
from dspyer.persistence.rows import CommitContent, CommitHeader, MapCommitContent, RowKind, decode_commit_content
from dspyer.scheduler.join import RecordedResolutions
from dspyer.scheduler.run_state import Branch, Execution, Group, RunState, Target, Transition, active_branches
from dspyer.scheduler.schedule import advance, append_commit, begin, force_ready, plan
from dspyer.scheduler.topology import END as END_NODE
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.stores.base import Row
from dspyer.stores.content import Content, Fetch
from dspyer.values import json as encoding

InputsAndState = tuple[Mapping[str, Any], ImmutableState]
"""The patch with which a run begins, and the state after it."""


def replay(
    run: RunState,
    rows: Iterable[Row],
    opening: InputsAndState,
    fetch: Fetch,
    decode: Callable[[Any], Any] = encoding.decode,
    schema_at: Callable[[Row], Schema] | None = None,
) -> RunState:
    """Folds the rows of one scope into a run, in the order in which they were written.

    Args:
        run: the run as it was begun.
        rows: its rows; those that are no commits are passed over.
        opening: the patch of its first commit, and the state after it.
        fetch: where blobs come from.
        decode: what makes frozen values of their JSON form.
        schema_at: what folds each row, if other graphs have written some.

    Returns:
        The run as the rows left it. What its joins have begun is among `running`.

    Raises:
        ChangedGraphError: if the graph cannot have made these rows.
        StoreError: if the rows contradict themselves.
    """
    topology = run.topology
    run = run._replace(topology=replace(topology, max_steps=maxsize, max_calls=None))  # limits are for what is new
    for row in rows:
        schema = run.topology.schema if schema_at is None else schema_at(row)
        if schema is not run.topology.schema:
            run = run._replace(topology=replace(run.topology, schema=schema))
        if row.kind == RowKind.JOIN:
            run = _joined(run, CommitHeader.parse(row.header), read_commit_content(row.content, fetch, decode))
        elif row.kind == RowKind.UPDATE:
            run = _updated(run, CommitHeader.parse(row.header), read_commit_content(row.content, fetch, decode))
        elif row.kind == RowKind.COMMIT:
            run = _committed(
                run, CommitHeader.parse(row.header), read_commit_content(row.content, fetch, decode), opening
            )
        elif row.kind == RowKind.END and row.header[0] == "completed":
            ready = [place for place, group in enumerate(plan(run)) if group.position[0] == END_NODE]
            run = begin(run, ready[0])[0] if ready else run
    return run._replace(topology=topology)


def read_commit_content(content: Content | None, fetch: Fetch, decode: Callable[[Any], Any]) -> CommitContent:
    """What a commit holds."""
    if content is None:
        return CommitContent({})
    written: CommitContent = content.value(fetch, lambda found: decode_commit_content(found, decode))
    return content.completed(written, fetch, decode) if isinstance(content, MapCommitContent) else written


def _joined(run: RunState, head: CommitHeader, written: CommitContent) -> RunState:
    parents, node = set(head.parents or ()), head.node.removeprefix("join:")

    def meant(group: Group) -> bool:
        heads = {branch.head for branch in group.branches}
        return len(group.branches) > 1 and group.position[0] == node and heads == parents

    run, place = _place_of(run, meant)
    if place is None:
        raise _unknown(head)
    run, _, _ = begin(run, place, RecordedResolutions(written.resolutions))
    if run.failures:
        raise run.failures[0].error
    return run


def _place_of(run: RunState, meant: Callable[[Group], bool]) -> tuple[RunState, int | None]:
    """Where a group is among those that may start. If it seems to wait, the log knows better: it has started."""
    for place, group in enumerate(plan(run)):
        if meant(group):
            return run, place
    wanted = [group.position for group in run.waiting.values() if meant(group)]
    if not wanted:
        return run, None
    run = force_ready(run, wanted[0])
    return run, next(place for place, group in enumerate(plan(run)) if meant(group))


def _updated(run: RunState, head: CommitHeader, written: CommitContent) -> RunState:
    branches = active_branches(run)
    if len(branches) != 1:
        raise _unknown(head)
    (branch,) = branches
    patch = written.patch or {}
    times = (head.started / 1_000, head.duration / 1_000_000)
    commit = update_commit(branch, run.first + len(run.log), head.node, patch, *times)
    return append_commit(run, commit, run.topology.schema.replay(branch.state, patch))


def update_commit(
    branch: Branch, version: int, author: str, patch: Mapping[str, Any], started: float, duration: float = 0.0
) -> Commit:
    """A commit that somebody makes by hand, behind the last one of a branch: `"trunk:3+1"` behind `"trunk:3"`.

    It takes no number of its own, so the executions that come next keep their names, and what they have left behind.
    """
    behind, _, count = branch.id.partition("+")
    number = int(count or 0) + 1
    return Commit(
        f"{behind}+{number}",
        version,
        author,
        branch.path,
        number,
        branch.step + 1,
        seal(patch),
        (branch.id,),
        started=started,
        duration=duration,
    )


def _committed(run: RunState, head: CommitHeader, written: CommitContent, opening: InputsAndState) -> RunState:
    run, execution = _begun(run, head)
    if execution is None or execution.node != head.node:
        raise _unknown(head)
    if written.patch is None:
        patch, state = opening
    else:
        patch, state = written.patch, run.topology.schema.replay(execution.branch.state, written.patch)
    allowed = run.topology.targets(head.node)
    gone = [name for name in head.route if name not in allowed]
    if gone:
        raise ChangedGraphError(
            f"commit {head.id} of node {head.node!r} went to {gone[0]!r}, which is none of its targets in this graph",
            [f"node {head.node!r} cannot go to {gone[0]!r}"],
        )
    overlays = written.overlays or (None,) * len(head.route)
    targets = tuple([Target(name, overlay) for name, overlay in zip(head.route, overlays, strict=True)])
    times = (head.started / 1_000, head.duration / 1_000_000)
    found = Transition(patch, state, targets, written.reason, *times, head.live, head.calls)
    return advance(run, execution.id, found)[0]


def _begun(run: RunState, head: CommitHeader) -> tuple[RunState, Execution | None]:
    """The execution that made a commit: a join has begun it already, or it is among what may start."""
    if head.id in run.running:
        return run, run.running[head.id]
    run, place = _place_of(run, lambda group: len(group.branches) == 1 and group.branches[0].path == head.branch)
    if place is None:
        return run, None
    run, execution, _ = begin(run, place)
    return run, execution


def _unknown(head: CommitHeader) -> ChangedGraphError:
    return ChangedGraphError(
        f"this graph cannot have made commit {head.id} of {head.node!r}: its nodes or edges were others",
        [f"commit {head.id} of {head.node!r} has no place in it"],
    )
