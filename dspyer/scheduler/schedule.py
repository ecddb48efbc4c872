"""The scheduler: what may start, and what follows when a node has finished. Pure: values in, values out.

A `RunState` is a frozen value. `plan` says what may start next, `begin` starts it, `advance` folds one finished node
in. Nothing here knows of threads, tasks, clocks or language models, so any order of completion can be tested by
calling these functions in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dspyer.errors import CallLimitError, StepLimitError
from dspyer.events import (
    Asked,
    Commit,
    Committed,
    ConflictFound,
    Event,
    Forked,
    Joined,
    NodeFailed,
    NodeStarted,
)
from dspyer.patch import seal
from dspyer.scheduler.join import Join, JoinFailedError, PolicyLookup, RecordedResolutions
from dspyer.scheduler.lineage import LogEntry, extra_counts
from dspyer.scheduler.run_state import (
    NOTHING_READY,
    Branch,
    Execution,
    Failure,
    Group,
    Position,
    ReadyQueue,
    RunState,
    Suspended,
    Target,
    Transition,
    active_branches,
    collapse_forks,
    execution_id,
    path_of,
    path_text,
)
from dspyer.scheduler.topology import END, START, Topology
from dspyer.state import ImmutableState
from dspyer.values.persistent import PersistentMap, PersistentVector

Advanced = tuple[RunState, list[Event]]
NO_POSITIONS: PersistentMap[Position, int] = PersistentMap()
_NONE: PersistentMap[Any, Any] = PersistentMap()
_EMPTY = ImmutableState()
_TRUNK = Branch((), ((),), _EMPTY, -1, "", -1, _NONE)


def start(topology: Topology, state: ImmutableState = _EMPTY, first: int = 0, node: str = START) -> RunState:
    """A run that is about to commit its inputs.

    Args:
        topology: the graph.
        state: the state that it goes on from.
        first: the version of its first commit.
        node: its first execution: `START`, or a node that somebody commits by hand.
    """
    position: Position = (node, topology.rounds.first(node))
    ready = ReadyQueue.of([Group(position, (_TRUNK._replace(state=state),))])
    positions = NO_POSITIONS.set(position, 1)
    return RunState(topology, PersistentVector(), _NONE, ready, _NONE, positions, trunk_state=state, first=first)


def plan(run: RunState) -> ReadyQueue:
    """What may start now, in path order. After a failure nothing does."""
    return NOTHING_READY if run.failures else run.ready


def begin(
    run: RunState, position: int = 0, deciding: PolicyLookup | None = None
) -> tuple[RunState, Execution | None, list[Event]]:
    """Starts a group of `plan`: joins its branches and makes an execution.

    Args:
        run: the run.
        position: which group.
        deciding: what decides the conflicts of a join; by default the merge policies of the graph.

    Returns:
        The next run, the execution to call (None if the run has ended, or if the join or a limit failed), and the
        events.
    """
    group, ready = run.ready.taken(position)
    branch = group.branches[0]
    events: list[Event] = []
    node = group.position[0]
    if len(group.branches) > 1:
        run = run._replace(ready=ready)
        try:
            run, branch, events = _join(run, group, deciding)
        except JoinFailedError as raised:
            return _join_failed(run, group, raised)  # the traceback refers to this frame, which keeps no exception
    if node == END:
        return (
            run._replace(
                ready=ready, ended=True, trunk_state=branch.state, positions=_leave(run.positions, group.position)
            ),
            None,
            events,
        )
    path, counts = branch.path, branch.counts
    name = execution_id(path, counts.get(path, 0))
    execution = Execution(name, node, branch, path, counts.get(node, 0) + 1, group.position, group.overlay)
    calls = run.calls
    if node != START:
        limit = limit_error(run, branch, node)
        if limit is not None:
            failure = Failure(path, node, name, limit, (branch,), group.position)
            run, failed = _fail(run._replace(ready=ready), failure)
            return run, None, events + failed
        events.append(NodeStarted(node, path, execution.visit, name))
        calls += 1
    running = run.running.set(name, execution)
    topology, log, waiting, _, _, positions, _, failures, trunk_state, ended, suspended, first = run
    run = RunState(
        topology, log, waiting, ready, running, positions, calls, failures, trunk_state, ended, suspended, first
    )
    return run, execution, events


def advance(run: RunState, execution_id: str, outcome: Transition | Suspended | BaseException) -> Advanced:
    """Folds one finished execution in.

    Args:
        run: the run.
        execution_id: which execution has finished.
        outcome: its transition, its questions, or what it raised.

    Returns:
        The next run and what happened.
    """
    execution = run.running[execution_id]
    topology, log, waiting, ready, running, positions, calls, failures, trunk_state, ended, suspended, first = run
    running = running.discard(execution_id)
    if isinstance(outcome, Suspended):
        events: list[Event] = [Asked(question) for question in outcome.questions]
        return run._replace(running=running, suspended=suspended.set(execution_id, (execution, outcome))), events
    if isinstance(outcome, BaseException):
        failure = Failure(
            execution.path, execution.node, execution.id, outcome, (execution.branch,), execution.position
        )
        return _fail(run._replace(running=running), failure)
    branch, targets = execution.branch, outcome.targets
    alone = not waiting and not ready and not running and not failures and not suspended
    path, index, step = execution.path, len(log), branch.step + 1
    route = (targets[0].node,) if len(targets) == 1 else tuple([target.node for target in targets])
    counts = branch.counts.update({execution.node: execution.visit, path: branch.counts.get(path, 0) + 1})
    commit = Commit(
        execution.id,
        first + index if alone else None,
        execution.node,
        path,
        execution.visit,
        step,
        seal(outcome.patch),
        (branch.id,) if step else (),
        1,
        route,
        outcome.reason,
        outcome.started,
        outcome.duration,
        outcome.live,
        outcome.calls,
    )
    commit = topology.schema.with_sizes(commit, branch.state, (outcome.patch,), outcome.state)
    more = extra_counts(commit, topology.schema.none_by_default, counts.get)
    if more:
        counts = counts.update(more)
    entry = LogEntry(commit, outcome.state, (branch.head,) if step else (), counts if len(targets) > 1 else None)
    moved = Branch(path, branch.fork_children, outcome.state, index, execution.id, step, counts)
    log = log.append(entry)
    events = [Committed(commit, first + index)]
    if alone:
        trunk_state = outcome.state
        if len(targets) == 1 and targets[0].overlay is None:
            spot = _move(topology, execution.position, targets[0])
            group = Group(spot, (moved,))
            positions = positions if spot == execution.position else NO_POSITIONS.set(spot, 1)
            ready = ReadyQueue((path, group, 1, None, None))
            run = RunState(
                topology, log, waiting, ready, running, positions, calls, failures, trunk_state, ended, suspended, first
            )
            return run, events
    children = [moved] if len(targets) == 1 else _fork(moved, len(targets))
    if len(children) > 1:
        paths = tuple([child.path for child in children])
        events.append(Forked(path, route, paths))
    run = RunState(
        topology, log, waiting, ready, running, positions, calls, failures, trunk_state, ended, suspended, first
    )
    return _arrive(run, execution.position, zip(targets, children, strict=True)), events


def force_ready(run: RunState, position: Position) -> RunState:
    """Lets a group start that still waits: a run that was cut may lack what had settled that nobody else comes.

    Args:
        run: the run.
        position: where the group waits.
    """
    return run._replace(waiting=run.waiting.discard(position), ready=run.ready.added([run.waiting[position]]))


def append_commit(run: RunState, commit: Commit, state: ImmutableState) -> RunState:
    """Puts a commit behind the last one of the only live branch. Where the branch goes stays as it is.

    Args:
        run: a run in which one branch is positions.
        commit: the commit.
        state: the state after it.
    """
    (branch,) = active_branches(run)
    commit = run.topology.schema.with_sizes(commit, branch.state, (commit.patch,), state)
    counts = branch.counts.update(extra_counts(commit, run.topology.schema.none_by_default, branch.counts.get))
    moved = branch._replace(state=state, head=len(run.log), id=commit.id, step=commit.step, counts=counts)
    running = {name: execution._replace(branch=moved) for name, execution in run.running.items()}
    return run._replace(
        log=run.log.append(LogEntry(commit, state, (branch.head,), None)),
        ready=ReadyQueue.of([group._replace(branches=(moved,)) for group in run.ready]),
        running=PersistentMap(running),
        trunk_state=state,
    )


def limit_error(run: RunState, branch: Branch, node: str) -> Exception | None:
    """The error of the limit that a run has reached where a branch would start a node; None if there is none."""
    topology = run.topology
    if branch.step >= topology.max_steps:
        calls = {name: branch.counts.get(name, 0) for name in topology.nodes if branch.counts.get(name, 0)}
        counts = ", ".join(f"{name} {count}x" for name, count in calls.items())
        return StepLimitError(
            f"the run reached max_steps={topology.max_steps} before node {node!r} (branch {path_text(branch.path)}): "
            f"{counts}. Check what ends the loop, or raise the limit with compile(max_steps=...)",
            calls,
        )
    if topology.max_calls is not None and run.calls >= topology.max_calls:
        return CallLimitError(
            f"the run reached max_calls={topology.max_calls} before node {node!r} (branch {path_text(branch.path)}). "
            "Raise the limit with compile(max_calls=...)"
        )
    return None


def _join(run: RunState, group: Group, deciding: PolicyLookup | None) -> tuple[RunState, Branch, list[Event]]:
    """Merges the branches of a group into one and commits the resolutions."""
    branches = tuple(sorted(group.branches, key=lambda branch: branch.path))
    node = group.position[0]
    index = len(run.log)
    topology = run.topology
    join = Join(run.log, node, topology.schema, deciding or topology.policies_at(node).decider_for, index)
    merged = join.merge([branch.head for branch in branches], [branch.state for branch in branches])
    if not isinstance(join.deciding, RecordedResolutions):  # what is replayed is never refused
        join.check_whole(merged)
    fork_children = collapse_forks([spot for branch in branches for spot in branch.fork_children])
    path = path_of(fork_children)
    alone = not run.waiting and not run.ready and not run.running and not run.failures and not run.suspended
    count, visit = merged.counts.get(path, 0), merged.counts.get(join.author, 0) + 1
    step = 1 + max([branch.step for branch in branches])
    commit_id = execution_id(path, count)
    commit = Commit(
        commit_id,
        run.first + index if alone else None,
        join.author,
        path,
        visit,
        step,
        seal(merged.patch),
        tuple([branch.id for branch in branches]),
        route=(node,),
        started=max([run.log[branch.head].commit.ended for branch in branches]),
    )
    commit = join.measured(commit, merged)
    heads = tuple([branch.head for branch in branches])
    entry = LogEntry(commit, merged.state, heads, None, merged.winners, merged.conflicts, merged.resolutions)
    counts = merged.counts.update({join.author: visit, path: count + 1})
    run = run._replace(log=run.log.append(entry), trunk_state=merged.state if alone else run.trunk_state)
    events: list[Event] = [ConflictFound(conflict) for conflict in merged.conflicts]
    events += [Joined(node, tuple([branch.path for branch in branches]), path), Committed(commit, run.first + index)]
    return run, Branch(path, fork_children, merged.state, index, commit_id, step, counts), events


def _join_failed(run: RunState, group: Group, raised: JoinFailedError) -> tuple[RunState, None, list[Event]]:
    found: list[Event] = [ConflictFound(conflict) for conflict in raised.conflicts]
    path = min(branch.path for branch in group.branches)
    name = f"join:{group.position[0]}"
    failure = Failure(path, name, "", raised.error, tuple(group.branches), group.position, raised.conflicts)
    run, failed = _fail(run, failure)
    return run, None, found + failed


def _fork(branch: Branch, width: int) -> list[Branch]:
    """The children of a fork extend the smallest path; the first keeps the others."""
    path, (first, *rest), state, head, commit_id, step, counts = branch
    children = []
    for child in range(width):
        spot = (*first, (child, width))
        fork_children = tuple(sorted((spot, *rest))) if rest and not child else (spot,)
        children.append(Branch((*path, child), fork_children, state, head, commit_id, step, counts))
    return children


def _move(topology: Topology, position: Position, target: Target) -> Position:
    return target.node, topology.rounds.move(position[0], position[1], target.node)


def _arrive(run: RunState, left: Position, moves: Iterable[tuple[Target, Branch]]) -> RunState:
    """Puts branches where they go, and settles what may start now that one group has left its position."""
    topology, log, waiting, ready, running, positions, calls, failures, trunk_state, ended, suspended, first = run
    positions = _leave(positions, left)
    sent: list[Group] = []
    fresh: list[Position] = []
    for target, branch in moves:
        position = _move(topology, left, target)
        if target.overlay is not None:
            positions = positions.set(position, positions.get(position, 0) + 1)
            sent.append(Group(position, (branch,), target.overlay))
            continue
        group = waiting.get(position)
        if group is None:
            positions = positions.set(position, positions.get(position, 0) + 1)
            waiting = waiting.set(position, Group(position, (branch,)))
            fresh.append(position)
        else:
            here = group.branches
            here = here if isinstance(here, PersistentVector) else PersistentVector(here)
            waiting = waiting.set(position, Group(position, here.append(branch), None, group.blocker))
    if fresh or left not in positions:
        waiting, settled = _settle(topology, waiting, positions, left, fresh)
        sent += settled
    if sent:
        ready = ready.added(sent)
    return RunState(
        topology, log, waiting, ready, running, positions, calls, failures, trunk_state, ended, suspended, first
    )


def _leave(positions: PersistentMap[Position, int], position: Position) -> PersistentMap[Position, int]:
    count = positions[position]
    return positions.set(position, count - 1) if count > 1 else positions.discard(position)


def _settle(
    topology: Topology,
    waiting: PersistentMap[Position, Group],
    positions: PersistentMap[Position, int],
    left: Position,
    fresh: list[Position],
) -> tuple[PersistentMap[Position, Group], list[Group]]:
    """Takes groups that no other live branch can reach any more out of those that wait.

    A group remembers one position that blocks it and is checked again only when that position is left: what blocks can
    only move on, and whatever it could reach before includes what it can reach then.
    """
    released = [] if left in positions else [position for position, group in waiting.items() if group.blocker == left]
    settled: list[Group] = []
    for position in dict.fromkeys((*fresh, *released)):
        group = waiting[position]
        blocker = _blocker(topology, positions, position)
        if blocker is None:
            settled.append(group)
            waiting = waiting.discard(position)
        elif blocker != group.blocker:
            waiting = waiting.set(position, group._replace(blocker=blocker))
    return waiting, settled


def _blocker(topology: Topology, positions: PersistentMap[Position, int], position: Position) -> Position | None:
    """The position of another group from which `position` can be reached, in its round or an earlier one."""
    can_reach = topology.rounds.can_reach
    for other in positions:
        if other != position and can_reach(other[0], other[1], position[0], position[1]):
            return other
    return None


def _fail(run: RunState, failure: Failure) -> Advanced:
    failures = tuple(sorted((*run.failures, failure), key=lambda failed: failed.path))
    event = NodeFailed(failure.node, failure.path, failure.execution, failure.error)
    return run._replace(failures=failures, positions=_leave(run.positions, failure.position)), [event]
