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
from dspyer.patch import sealed
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
    place: Position = (node, topology.rounds.first(node))
    ready = ReadyQueue.of([Group(place, (_TRUNK._replace(state=state),))])
    live = NO_POSITIONS.set(place, 1)
    return RunState(topology, PersistentVector(), _NONE, ready, _NONE, live, resting=state, first=first)


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
    node = group.place[0]
    if len(group.branches) > 1:
        run = run._replace(ready=ready)
        try:
            run, branch, events = _join(run, group, deciding)
        except JoinFailedError as raised:
            return _join_failed(run, group, raised)  # the traceback refers to this frame, which keeps no exception
    if node == END:
        return (
            run._replace(ready=ready, ended=True, resting=branch.state, live=_leave(run.live, group.place)),
            None,
            events,
        )
    path, tally = branch.path, branch.tally
    name = execution_id(path, tally.get(path, 0))
    execution = Execution(name, node, branch, path, tally.get(node, 0) + 1, group.place, group.overlay)
    calls = run.calls
    if node != START:
        limit = limit_error(run, branch, node)
        if limit is not None:
            failure = Failure(path, node, name, limit, (branch,), group.place)
            run, failed = _fail(run._replace(ready=ready), failure)
            return run, None, events + failed
        events.append(NodeStarted(node, path, execution.visit, name))
        calls += 1
    running = run.running.set(name, execution)
    topology, log, waiting, _, _, live, _, failures, resting, ended, asked, first = run
    run = RunState(topology, log, waiting, ready, running, live, calls, failures, resting, ended, asked, first)
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
    topology, log, waiting, ready, running, live, calls, failures, resting, ended, asked, first = run
    running = running.discard(execution_id)
    if isinstance(outcome, Suspended):
        events: list[Event] = [Asked(question) for question in outcome.questions]
        return run._replace(running=running, asked=asked.set(execution_id, (execution, outcome))), events
    if isinstance(outcome, BaseException):
        failure = Failure(execution.path, execution.node, execution.id, outcome, (execution.branch,), execution.place)
        return _fail(run._replace(running=running), failure)
    branch, targets = execution.branch, outcome.targets
    alone = not waiting and not ready and not running and not failures and not asked
    path, place, step = execution.path, len(log), branch.step + 1
    route = (targets[0].node,) if len(targets) == 1 else tuple([target.node for target in targets])
    tally = branch.tally.update({execution.node: execution.visit, path: branch.tally.get(path, 0) + 1})
    commit = Commit(
        execution.id,
        first + place if alone else None,
        execution.node,
        path,
        execution.visit,
        step,
        sealed(outcome.patch),
        (branch.id,) if step else (),
        1,
        route,
        outcome.reason,
        outcome.started,
        outcome.duration,
        outcome.live,
        outcome.calls,
    )
    commit = topology.schema.measured(commit, branch.state, (outcome.patch,), outcome.state)
    more = extra_counts(commit, topology.schema.nullable, tally.get)
    if more:
        tally = tally.update(more)
    entry = LogEntry(commit, outcome.state, (branch.head,) if step else (), tally if len(targets) > 1 else None)
    moved = Branch(path, branch.spots, outcome.state, place, execution.id, step, tally)
    log = log.append(entry)
    events = [Committed(commit, first + place)]
    if alone:
        resting = outcome.state
        if len(targets) == 1 and targets[0].overlay is None:
            spot = _move(topology, execution.place, targets[0])
            group = Group(spot, (moved,))
            live = live if spot == execution.place else NO_POSITIONS.set(spot, 1)
            ready = ReadyQueue((path, group, 1, None, None))
            run = RunState(topology, log, waiting, ready, running, live, calls, failures, resting, ended, asked, first)
            return run, events
    children = [moved] if len(targets) == 1 else _fork(moved, len(targets))
    if len(children) > 1:
        paths = tuple([child.path for child in children])
        events.append(Forked(path, route, paths))
    run = RunState(topology, log, waiting, ready, running, live, calls, failures, resting, ended, asked, first)
    return _arrive(run, execution.place, zip(targets, children, strict=True)), events


def force_ready(run: RunState, place: Position) -> RunState:
    """Lets a group start that still waits: a run that was cut may lack what had settled that nobody else comes.

    Args:
        run: the run.
        place: where the group waits.
    """
    return run._replace(waiting=run.waiting.discard(place), ready=run.ready.added([run.waiting[place]]))


def append_commit(run: RunState, commit: Commit, state: ImmutableState) -> RunState:
    """Puts a commit behind the last one of the only live branch. Where the branch goes stays as it is.

    Args:
        run: a run in which one branch is live.
        commit: the commit.
        state: the state after it.
    """
    (branch,) = active_branches(run)
    commit = run.topology.schema.measured(commit, branch.state, (commit.patch,), state)
    tally = branch.tally.update(extra_counts(commit, run.topology.schema.nullable, branch.tally.get))
    moved = branch._replace(state=state, head=len(run.log), id=commit.id, step=commit.step, tally=tally)
    running = {name: execution._replace(branch=moved) for name, execution in run.running.items()}
    return run._replace(
        log=run.log.append(LogEntry(commit, state, (branch.head,), None)),
        ready=ReadyQueue.of([group._replace(branches=(moved,)) for group in run.ready]),
        running=PersistentMap(running),
        resting=state,
    )


def limit_error(run: RunState, branch: Branch, node: str) -> Exception | None:
    """The error of the limit that a run has reached where a branch would start a node; None if there is none."""
    topology = run.topology
    if branch.step >= topology.max_steps:
        calls = {name: branch.tally.get(name, 0) for name in topology.nodes if branch.tally.get(name, 0)}
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
    node = group.place[0]
    index = len(run.log)
    topology = run.topology
    join = Join(run.log, node, topology.schema, deciding or topology.policies_at(node).decider_for, index)
    merged = join.merge([branch.head for branch in branches], [branch.state for branch in branches])
    if not isinstance(join.deciding, RecordedResolutions):  # what is replayed is never refused
        join.check_whole(merged)
    spots = collapse_forks([spot for branch in branches for spot in branch.spots])
    path = path_of(spots)
    alone = not run.waiting and not run.ready and not run.running and not run.failures and not run.asked
    count, visit = merged.tally.get(path, 0), merged.tally.get(join.author, 0) + 1
    step = 1 + max([branch.step for branch in branches])
    commit_id = execution_id(path, count)
    commit = Commit(
        commit_id,
        run.first + index if alone else None,
        join.author,
        path,
        visit,
        step,
        sealed(merged.patch),
        tuple([branch.id for branch in branches]),
        route=(node,),
        started=max([run.log[branch.head].commit.ended for branch in branches]),
    )
    commit = join.measured(commit, merged)
    heads = tuple([branch.head for branch in branches])
    entry = LogEntry(commit, merged.state, heads, None, merged.winners, merged.conflicts, merged.resolutions)
    tally = merged.tally.update({join.author: visit, path: count + 1})
    run = run._replace(log=run.log.append(entry), resting=merged.state if alone else run.resting)
    events: list[Event] = [ConflictFound(conflict) for conflict in merged.conflicts]
    events += [Joined(node, tuple([branch.path for branch in branches]), path), Committed(commit, run.first + index)]
    return run, Branch(path, spots, merged.state, index, commit_id, step, tally), events


def _join_failed(run: RunState, group: Group, raised: JoinFailedError) -> tuple[RunState, None, list[Event]]:
    found: list[Event] = [ConflictFound(conflict) for conflict in raised.conflicts]
    path = min(branch.path for branch in group.branches)
    name = f"join:{group.place[0]}"
    failure = Failure(path, name, "", raised.error, tuple(group.branches), group.place, raised.conflicts)
    run, failed = _fail(run, failure)
    return run, None, found + failed


def _fork(branch: Branch, width: int) -> list[Branch]:
    """The children of a fork extend the smallest path; the first keeps the others."""
    path, (first, *rest), state, head, commit_id, step, tally = branch
    children = []
    for child in range(width):
        spot = (*first, (child, width))
        spots = tuple(sorted((spot, *rest))) if rest and not child else (spot,)
        children.append(Branch((*path, child), spots, state, head, commit_id, step, tally))
    return children


def _move(topology: Topology, place: Position, target: Target) -> Position:
    return target.node, topology.rounds.move(place[0], place[1], target.node)


def _arrive(run: RunState, left: Position, moves: Iterable[tuple[Target, Branch]]) -> RunState:
    """Puts branches where they go, and settles what may start now that one group has left its place."""
    topology, log, waiting, ready, running, live, calls, failures, resting, ended, asked, first = run
    live = _leave(live, left)
    sent: list[Group] = []
    fresh: list[Position] = []
    for target, branch in moves:
        place = _move(topology, left, target)
        if target.overlay is not None:
            live = live.set(place, live.get(place, 0) + 1)
            sent.append(Group(place, (branch,), target.overlay))
            continue
        group = waiting.get(place)
        if group is None:
            live = live.set(place, live.get(place, 0) + 1)
            waiting = waiting.set(place, Group(place, (branch,)))
            fresh.append(place)
        else:
            here = group.branches
            here = here if isinstance(here, PersistentVector) else PersistentVector(here)
            waiting = waiting.set(place, Group(place, here.append(branch), None, group.blocker))
    if fresh or left not in live:
        waiting, settled = _settle(topology, waiting, live, left, fresh)
        sent += settled
    if sent:
        ready = ready.added(sent)
    return RunState(topology, log, waiting, ready, running, live, calls, failures, resting, ended, asked, first)


def _leave(live: PersistentMap[Position, int], place: Position) -> PersistentMap[Position, int]:
    count = live[place]
    return live.set(place, count - 1) if count > 1 else live.discard(place)


def _settle(
    topology: Topology,
    waiting: PersistentMap[Position, Group],
    live: PersistentMap[Position, int],
    left: Position,
    fresh: list[Position],
) -> tuple[PersistentMap[Position, Group], list[Group]]:
    """Takes groups that no other live branch can reach any more out of those that wait.

    A group remembers one place that blocks it and is looked at again only when that place is left: what blocks can
    only move on, and whatever it could reach before includes what it can reach then.
    """
    released = [] if left in live else [place for place, group in waiting.items() if group.blocker == left]
    settled: list[Group] = []
    for place in dict.fromkeys((*fresh, *released)):
        group = waiting[place]
        blocker = _blocker(topology, live, place)
        if blocker is None:
            settled.append(group)
            waiting = waiting.discard(place)
        elif blocker != group.blocker:
            waiting = waiting.set(place, group._replace(blocker=blocker))
    return waiting, settled


def _blocker(topology: Topology, live: PersistentMap[Position, int], place: Position) -> Position | None:
    """A place of another live group from which `place` can still be reached, in its round or an earlier one."""
    can_reach = topology.rounds.can_reach
    for other in live:
        if other != place and can_reach(other[0], other[1], place[0], place[1]):
            return other
    return None


def _fail(run: RunState, failure: Failure) -> Advanced:
    failures = tuple(sorted((*run.failures, failure), key=lambda failed: failed.path))
    event = NodeFailed(failure.node, failure.path, failure.execution, failure.error)
    return run._replace(failures=failures, live=_leave(run.live, failure.place)), [event]
