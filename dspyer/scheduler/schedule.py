"""The scheduler: which nodes may start, and what follows when one has finished. Pure: values in, values out.

A `RunState` is a frozen value. `plan` returns what may start, `begin` starts one group of it, `advance` folds a
finished node into the state. Nothing here knows threads, tasks, clocks or language models: a test calls these functions
in any order of completion, and a stored run is replayed by calling them again.

Branches do not wait for each other, except at a join. A group of branches at a position (a node in a round of its
loops) may start as soon as no branch at another position can still reach it, in the same round or an earlier one. This
is the progress tracking of timely dataflow (Murray et al., "Naiad: A Timely Dataflow System", SOSP 2013, section 2.3):
positions are pointstamps, `RunState.positions` holds their occurrence counts, and "can still reach" is could-result-in,
which `loops.Rounds` answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from dspyer.errors import DspyerError, StepLimitError, suggestion
from dspyer.events import (
    Asked,
    BranchPath,
    Commit,
    Committed,
    ConflictFound,
    Event,
    Exchange,
    Forked,
    Joined,
    MergedConflict,
    NodeFailed,
    NodeStarted,
    Numbered,
    Question,
)
from dspyer.failure import Failure
from dspyer.ids import Address, execution_id, outermost_execution, path_text
from dspyer.patch import DELETE, seal
from dspyer.scheduler.join import Join, JoinFailedError, JoinResult
from dspyer.scheduler.lineage import (
    CALL_KINDS,
    NO_CALLS,
    REASON_KEY,
    LineageCounts,
    LogEntry,
    ancestry,
    extra_counts,
)
from dspyer.scheduler.topology import END, START, Edge, Round, Topology
from dspyer.state import ImmutableState
from dspyer.values.frozen import FrozenDict
from dspyer.values.persistent import PersistentMap, PersistentVector

# --- a run as a value: its branches, groups and executions, and their ids

ForkPoint = tuple[int, int]  # (which child of a fork, how many children it has)
Position = tuple[str, Round]  # a node, in a round of the loops around it


class RunState(NamedTuple):
    """A run as a value.

    Attributes:
        topology: the graph.
        log: the commits in order of arrival.
        waiting: groups at a position that other branches may still reach, by position.
        ready: groups that may start, in path order.
        running: executions by id.
        positions: how many groups are at each position, whether they wait, are ready, run or are suspended; branches
            that wait at one position are one group.
        failures: what raised, in path order.
        trunk_state: the last state at which only one branch was active.
        ended: whether all branches have reached `END`.
        suspended: executions that wait for answers, with their questions, by id.
        first: the version of the first commit: the runs of a thread share one numbering.
    """

    topology: Topology
    log: PersistentVector[LogEntry]
    waiting: PersistentMap[Position, Group]
    ready: ReadyQueue
    running: PersistentMap[str, Execution]
    positions: PersistentMap[Position, int]
    failures: tuple[FailedBranch, ...] = ()
    trunk_state: ImmutableState = ImmutableState()
    ended: bool = False
    suspended: PersistentMap[str, tuple[Execution, Suspended]] = PersistentMap()
    first: int = 0


class Target(NamedTuple):
    """The target of a branch. With an overlay it is a `Send`: it starts at once, as a group of its own."""

    node: str
    overlay: FrozenDict[str, Any] | None = None


class Transition(NamedTuple):
    """The outcome of a finished node: its patch, the state with it, the targets. Applied whole or not at all.

    `started` is a Unix time, `duration` is in seconds, `calls` counts calls of predictors and of tools. `failure` is
    set where the node failed and an error edge leads on; `failed_attempts` are the attempts of the node, of its
    condensers and of its routers that another one followed; `attempt` is the number of the node's own attempt.
    """

    patch: Mapping[str, Any]
    state: ImmutableState
    targets: tuple[Target, ...]
    reason: str | None = None
    started: float = 0.0
    duration: float = 0.0
    live: Exchange | None = None
    calls: tuple[int, int] = (0, 0)
    attempt: int = 1
    failure: Failure | None = None
    failed_attempts: tuple[Failure, ...] = ()
    cached: bool = False


class Suspended(NamedTuple):
    """The outcome of a node that asked questions: its execution is called again once they are answered."""

    questions: tuple[Question, ...]


class Branch(NamedTuple):
    """An active branch.

    A fork extends the path of the branch by the index of each child. A joined branch holds the paths of all its
    branches, where the paths of all children of one fork are replaced by the path of their parent.

    Attributes:
        path: the path that names the branch: the smallest that it holds.
        fork_children: the paths that it holds, smallest first, as pairs of a child's index and the width of the fork.
        state: its state.
        head: index of its last commit in the log, -1 before the first.
        id: the id of that commit.
        step: the step of that commit, -1 before the first.
        counts: commits per node and per path in its lineage, and the other facts of `lineage.extra_counts`.
    """

    path: BranchPath
    fork_children: tuple[tuple[ForkPoint, ...], ...]
    state: ImmutableState
    head: int
    id: str
    step: int
    counts: LineageCounts


class Group(NamedTuple):
    """Branches at one position, which join there. A `Send` branch, with its overlay, is a group of its own.

    `blocker`: for a waiting group, a position from which another branch can still reach it.
    """

    position: Position
    branches: tuple[Branch, ...] | PersistentVector[Branch]  # a vector where many wait: it grows without a copy
    overlay: FrozenDict[str, Any] | None = None
    blocker: Position | None = None


class Execution(NamedTuple):
    """One node that runs: what a driver needs to call it."""

    id: str
    node: str
    branch: Branch
    path: BranchPath
    visit: int
    position: Position
    overlay: FrozenDict[str, Any] | None


class FailedBranch(NamedTuple):
    """A node, router or join that raised, with the branches that it stopped.

    `failed_attempts` are the attempts before the last one: of the node, and of items of a map.
    """

    path: BranchPath
    node: str
    execution: str
    error: BaseException
    branches: tuple[Branch, ...]
    position: Position
    conflicts: tuple[MergedConflict, ...] = ()
    failed_attempts: tuple[Failure, ...] = ()

    @property
    def all_attempts(self) -> tuple[Failure, ...]:
        """The attempts before the last one, and those of the parts of a node that have failed it, as items of a map."""
        inside = getattr(self.error, "failures", ()) if isinstance(self.error, DspyerError) else ()
        return (*self.failed_attempts, *inside)

    @property
    def failure(self) -> Failure:
        """The record of what it raised."""
        attempt = last_attempt(self.failed_attempts)
        return Failure.of(self.error, node=self.node, branch=self.path, execution=self.execution, attempt=attempt)


def last_attempt(failed_attempts: Iterable[Failure]) -> int:
    """The number of the attempt after those that failed: of the node, or of its condensers or its router.

    Each of these is retried by itself, so their attempts begin with 1.
    """
    return 1 + next((failure.attempt for failure in reversed(tuple(failed_attempts)) if failure.index is None), 0)


def active_branches(run: RunState) -> list[Branch]:
    """The branches that have neither reached `END` nor failed, in path order."""
    branches = [branch for group in (*run.waiting.values(), *run.ready) for branch in group.branches]
    branches += [execution.branch for execution in run.running.values()]
    branches += [execution.branch for execution, _ in run.suspended.values()]
    return sorted(branches, key=lambda branch: branch.path)


# --- paths


def contains_commit(branch: Branch, execution: str) -> bool:
    """Return whether the commit of an execution is in the lineage of a branch.

    The commits of one path are a chain, numbered from 0, so their count in the lineage decides.
    """
    commit = Address.parse(outermost_execution(execution))
    known: int = branch.counts.get(commit.path, 0)
    return commit.index < known


def path_of(fork_children: tuple[tuple[ForkPoint, ...], ...]) -> BranchPath:
    """The path that names a branch: the smallest of those that it united."""
    return tuple([child for child, _ in fork_children[0]])


def collapse_forks(paths: Iterable[tuple[ForkPoint, ...]]) -> tuple[tuple[ForkPoint, ...], ...]:
    """The paths with all children of a fork replaced by their parent, repeatedly, until no fork is complete."""
    held = set(paths)
    while True:
        families: dict[tuple[ForkPoint, ...], list[tuple[ForkPoint, ...]]] = {}
        for path in held:
            if path:
                families.setdefault(path[:-1], []).append(path)
        complete = {parent: children for parent, children in families.items() if len(children) == children[0][-1][1]}
        if not complete:
            return tuple(sorted(held))
        for parent, children in complete.items():
            held.difference_update(children)
            held.add(parent)


# --- the ready queue

# A chain: path, group, and the chain after it. An older queue stays as it was, since what is added is put in front of
# the rest that both share.
Chain: TypeAlias = "tuple[BranchPath, Group, Chain] | None"


class ReadyQueue:
    """Groups by the smallest path among their branches, smallest first: a queue that is a value.

    Taking the first costs constant time, and adding a group a step for each one that will be taken before it. Those are
    few: what is added follows what was running, and that was taken first.
    """

    __slots__ = ("_chain",)

    def __init__(self, chain: Chain = None) -> None:
        self._chain = chain

    @staticmethod
    def of(groups: Iterable[Group]) -> ReadyQueue:
        """A queue of groups, given in any order."""
        named = [(min([branch.path for branch in group.branches]), group) for group in groups]
        return _in_front(sorted(named, key=itemgetter(0)), None)

    def added(self, groups: Iterable[Group]) -> ReadyQueue:
        """The queue with more groups, given in any order."""
        # Merged as sorted lists are, up to where one of them ends: what is behind it is shared with the older queue.
        before: list[tuple[BranchPath, Group]] = []
        rest, more = self._chain, ReadyQueue.of(groups)._chain
        while rest is not None and more is not None:
            if more[0] < rest[0]:
                rest, more = more, rest
            path, group, rest = rest
            before.append((path, group))
        return _in_front(before, rest or more)

    def taken(self, index: int = 0) -> tuple[Group, ReadyQueue]:
        """The group at an index (0 for the smallest path, others in a replay), and the queue without it."""
        before: list[tuple[BranchPath, Group]] = []
        rest = self._chain
        while rest is not None:
            path, group, rest = rest
            if len(before) == index:
                return group, _in_front(before, rest) if before or rest else NOTHING_READY
            before.append((path, group))
        raise IndexError(f"no group at {index}: {len(before)} may start")

    def __iter__(self) -> Iterator[Group]:
        chain = self._chain
        while chain is not None:
            _, group, chain = chain
            yield group

    def __bool__(self) -> bool:
        return self._chain is not None


NOTHING_READY = ReadyQueue()


def _in_front(groups: Sequence[tuple[BranchPath, Group]], rest: Chain) -> ReadyQueue:
    for path, group in reversed(groups):
        rest = path, group, rest
    return ReadyQueue(rest)


Advanced = tuple[RunState, list[Event]]
NO_POSITIONS: PersistentMap[Position, int] = PersistentMap()
_NONE: PersistentMap[Any, Any] = PersistentMap()
_EMPTY = ImmutableState()
_NOTHING: FrozenDict[Any, Any] = FrozenDict()

# `begin` and `advance` run for every node, and most nodes do little. So they make their tuples by `tuple.__new__` (the
# constructor of a named tuple is a Python function, and `_replace` is three), name all attributes, and ask the maps for
# their data: together a fifth of a step.
_new = tuple.__new__


def start(topology: Topology, state: ImmutableState = _EMPTY, first: int = 0, node: str = START) -> RunState:
    """A run whose next execution commits the inputs.

    It continues from `state`. `first` is the version of its first commit: the runs of a thread share one numbering.
    `node` is the node of its first execution: `START`, or the one under whose name a manual commit is made.
    """
    position: Position = (node, topology.rounds.first(node) if topology.rounds.loops else ())
    trunk = Branch((), ((),), state, -1, "", -1, _NONE)
    ready = ReadyQueue(((), Group(position, (trunk,)), None))
    positions = NO_POSITIONS.set(position, 1)
    return RunState(topology, PersistentVector(), _NONE, ready, _NONE, positions, trunk_state=state, first=first)


def plan(run: RunState) -> ReadyQueue:
    """The groups that may start, in path order; none after a failure, when the run waits only for what is running."""
    return NOTHING_READY if run.failures else run.ready


def only_end_is_left(run: RunState) -> bool:
    """Return whether all branches have arrived at `END`: then nothing more is called."""
    return not run.running and [group.position[0] for group in run.ready] == [END]


def begin(
    run: RunState, index: int = 0, recorded: JoinResult | None = None, heard: bool = True
) -> tuple[RunState, Execution | None, list[Event]]:
    """Starts the group at `index` of `plan`: joins its branches and makes an execution for the driver to call.

    A replay passes the `recorded` result of the join: nothing is merged then. There is no execution if the group has
    reached `END`, or if the join or a limit failed. If no events are heard, `heard=False` leaves out the one of every
    execution, as in `advance`.
    """
    group, ready = run.ready.taken(index)
    position, branches, overlay, _ = group
    branch = branches[0]
    events: list[Event] = []
    node = position[0]
    if len(branches) > 1:
        run = run._replace(ready=ready)
        try:
            run, branch, events = _join(run, group, recorded)
            if heard:
                events += _numbered(run)
        except JoinFailedError as error:
            # The traceback of the error refers to this frame. If a local of it referred to the error in turn, that
            # cycle would keep both alive: so the failure is made in another function.
            return _join_failed(run, group, error)
    topology, log, waiting, _, running, positions, failures, trunk_state, ended, suspended, first = run
    if node == END:
        state, positions = branch.state, _without_one(positions, position)
        done = (topology, log, waiting, ready, running, positions, failures, state, True, suspended, first)
        return _new(RunState, done), None, events
    path, counted = branch.path, branch.counts._data.get
    visit, number = counted(node, 0) + 1, counted(path, 0)
    commit_id = execution_id(path, number)
    if node != START:
        if branch.step >= topology.max_steps and (limit := limit_error(topology, branch, node)) is not None:
            failure = FailedBranch(path, node, commit_id, limit, (branch,), position)
            run, failed = _fail(run._replace(ready=ready), failure)
            return run, None, events + failed
        if heard:
            events.append(NodeStarted(node, path, visit, commit_id))
    execution = _new(Execution, (commit_id, node, branch, path, visit, position, overlay))
    running = running.set(commit_id, execution)
    begun = (topology, log, waiting, ready, running, positions, failures, trunk_state, ended, suspended, first)
    return _new(RunState, begun), execution, events


def advance(
    run: RunState,
    execution_id: str,
    outcome: Transition | Suspended | BaseException,
    failed_attempts: tuple[Failure, ...] = (),
    heard: bool = True,
) -> Advanced:
    """Folds a finished execution into the run: its transition, its questions, or the exception that it raised.

    `failed_attempts` are those before an exception; a transition has its own. Without `heard`, the commit has no event.
    """
    topology, log, waiting, ready, running, positions, failures, trunk_state, ended, suspended, first = run
    execution = running._data[execution_id]
    running = running.discard(execution_id)
    if isinstance(outcome, Suspended):
        suspended = suspended.set(execution_id, (execution, outcome))
        return run._replace(running=running, suspended=suspended), [Asked(question) for question in outcome.questions]
    if isinstance(outcome, BaseException):
        where = (execution.path, execution.node, execution.id)
        raised = FailedBranch(*where, outcome, (execution.branch,), execution.position, failed_attempts=failed_attempts)
        return _fail(run._replace(running=running), raised)
    commit_id, node, branch, path, visit, left, _ = execution
    patch, state, targets, reason, started, duration, live, made, attempt, failure, failed_attempts, cached = outcome
    _, fork_children, _, head, parent, last, counts = branch
    alone = ready._chain is None and not (waiting._data or running._data) and not failures and not suspended._data
    index, step, one, schema = log._count, last + 1, len(targets) == 1, topology.schema
    number = first + index
    version = number if alone else None  # other branches may commit before this one: none until they join
    route = (targets[0].node,) if one else tuple([target.node for target in targets])
    parents = (parent,) if step else ()
    who = (commit_id, version, node, path, visit, step, seal(patch), parents, attempt, route, reason)
    commit = Commit(*who, started, duration, live, made, _NOTHING, failure, failed_attempts, cached)
    if schema.limited_fields:
        commit = schema.with_sizes(commit, patch, state)
    changed: dict[Any, Any] = {node: visit, path: counts._data.get(path, 0) + 1}
    if made != NO_CALLS or reason is not None or live is not None:
        changed |= extra_counts(commit, counts.get)
    counts = counts.update(changed)
    overlays: tuple[FrozenDict[str, Any] | None, ...] = ()
    if not one or targets[0].overlay is not None:
        overlays = tuple([target.overlay for target in targets])
        overlays = overlays if any(one is not None for one in overlays) else ()
    parents_at = (head,) if step else ()
    entry: LogEntry = _new(LogEntry, (commit, state, parents_at, None if one else counts, _NOTHING, (), overlays))
    moved: Branch = _new(Branch, (path, fork_children, state, index, commit_id, step, counts))
    log = log.append(entry)
    events: list[Event] = [Committed(commit, number, _operations(topology, patch, state, step))] if heard else []
    if alone and one and targets[0].overlay is None:
        # The only branch goes to one node. It can neither block nor be blocked, so the bookkeeping of `_arrive` has a
        # known result. Most commits of most runs take this path.
        target = targets[0].node
        rounds = topology.rounds
        position = target, rounds.move(left[0], left[1], target) if rounds.loops else left[1]
        positions = positions if position == left else NO_POSITIONS.set(position, 1)
        ready = ReadyQueue((path, _new(Group, (position, (moved,), None, None)), None))
        then = (topology, log, waiting, ready, running, positions, failures, state, ended, suspended, first)
        return _new(RunState, then), events
    children = [moved] if one else _fork(moved, len(targets))
    if len(children) > 1:
        events.append(Forked(path, route, tuple([child.path for child in children])))
    run = run._replace(log=log, running=running, trunk_state=state if alone else trunk_state)
    return _arrive(run, left, zip(targets, children, strict=True)), events


def steps_taken(topology: Topology, branch: Branch) -> int:
    """The steps of a branch that count towards `max_steps`."""
    if not topology.uncounted:
        return branch.step
    counted: int = sum([branch.counts.get(name, 0) for name in topology.nodes if name not in topology.uncounted])
    return min(branch.step, counted)  # the nodes of branches that were joined are in the counts of all


def limit_error(topology: Topology, branch: Branch, node: str) -> Exception | None:
    """The error of the limit of steps, if a branch has reached it before a node."""
    if steps_taken(topology, branch) >= topology.max_steps:
        visits = {name: branch.counts.get(name, 0) for name in topology.nodes if branch.counts.get(name, 0)}
        listed = ", ".join(f"{name} {count}x" for name, count in visits.items())
        return StepLimitError(
            f"the run reached max_steps={topology.max_steps} before node {node!r} (branch {path_text(branch.path)}): "
            f"{listed}. Check what ends the loop, or raise the limit with compile(max_steps=...)",
            visits,
        )
    return None


def _fail(run: RunState, failure: FailedBranch) -> Advanced:
    failures = tuple(sorted((*run.failures, failure), key=lambda failed: failed.path))
    event = NodeFailed(failure.node, failure.path, failure.execution, failure.error)
    return run._replace(failures=failures, positions=_without_one(run.positions, failure.position)), [event]


# --- forks, and branches that move to their next position


def _fork(branch: Branch, width: int) -> list[Branch]:
    """The children of a fork. Their paths extend the smallest path of the branch; the first child keeps the others.

    A branch that joined children of different forks without completing any of them holds several paths. They must stay
    with exactly one child, because a fork counts as joined once all of its children have arrived.
    """
    path, (first, *rest), state, head, commit_id, step, counts = branch
    children = []
    for child in range(width):
        own = (*first, (child, width))
        fork_children = tuple(sorted((own, *rest))) if rest and not child else (own,)
        children.append(Branch((*path, child), fork_children, state, head, commit_id, step, counts))
    return children


def _arrive(run: RunState, left: Position, moves: Iterable[tuple[Target, Branch]]) -> RunState:
    """Moves branches from the position `left` to their targets, then settles which groups may start."""
    topology, waiting = run.topology, run.waiting
    positions = _without_one(run.positions, left)
    ready: list[Group] = []
    arrived: list[Position] = []
    for target, branch in moves:
        position = target.node, topology.rounds.move(left[0], left[1], target.node)
        if target.overlay is not None:  # a `Send` joins with no other branch, so it waits for none
            positions = positions.set(position, positions.get(position, 0) + 1)
            ready.append(Group(position, (branch,), target.overlay))
            continue
        group = waiting.get(position)
        if group is None:
            positions = positions.set(position, positions.get(position, 0) + 1)
            waiting = waiting.set(position, Group(position, (branch,)))
            arrived.append(position)
        else:
            here = group.branches
            # A vector, once a second branch arrives: appending to a tuple would be quadratic in the width of a fork.
            here = here if isinstance(here, PersistentVector) else PersistentVector(here)
            waiting = waiting.set(position, Group(position, here.append(branch), None, group.blocker))
    # Only a new group, or a position that the last group has left, can change which groups may start.
    if arrived or left not in positions:
        waiting, settled = _settle(topology, waiting, positions, left, arrived)
        ready += settled
    return run._replace(waiting=waiting, ready=run.ready.added(ready) if ready else run.ready, positions=positions)


def _without_one(positions: PersistentMap[Position, int], position: Position) -> PersistentMap[Position, int]:
    """The occurrence counts after one group has left a position."""
    count = positions[position]
    return positions.set(position, count - 1) if count > 1 else positions.discard(position)


def _settle(
    topology: Topology,
    waiting: PersistentMap[Position, Group],
    positions: PersistentMap[Position, int],
    left: Position,
    arrived: list[Position],
) -> tuple[PersistentMap[Position, Group], list[Group]]:
    """Splits the waiting groups into those that still wait and those that no other branch can reach any more.

    To check each group against each position after each commit would be quadratic. So a waiting group remembers one
    position that blocks it, and is checked again only when that position is left. This is sound because reachability
    only shrinks: what a branch can reach from its next position, it could reach from the one before.
    """
    unblocked, can_reach = [], topology.rounds.can_reach
    if left not in positions:
        unblocked = [position for position, group in waiting.items() if group.blocker == left]
    settled: list[Group] = []
    for position in dict.fromkeys((*arrived, *unblocked)):
        group = waiting[position]
        # The position of another group from which this one can be reached, in its round or an earlier one.
        blocker = next((one for one in positions if one != position and can_reach(*one, *position)), None)
        if blocker is None:
            settled.append(group)
            waiting = waiting.discard(position)
        elif blocker != group.blocker:
            waiting = waiting.set(position, group._replace(blocker=blocker))
    return waiting, settled


# --- joins


def _join(run: RunState, group: Group, merged: JoinResult | None) -> tuple[RunState, Branch, list[Event]]:
    """Merges the branches of a group into one, and commits what the merge policies decided."""
    branches = tuple(sorted(group.branches, key=lambda branch: branch.path))
    node = group.position[0]
    index = len(run.log)
    topology, author, first = run.topology, f"join:{node}", branches[0].state
    heads, schema = tuple([branch.head for branch in branches]), topology.schema
    if merged is None:
        join = Join(run.log, node, schema, topology.join_policies.get(node, topology.policies).decider_for, index)
        merged = join.merge(heads, [branch.state for branch in branches])
    fork_children = collapse_forks([path for branch in branches for path in branch.fork_children])
    path = path_of(fork_children)
    alone = not run.waiting and not run.ready and not run.running and not run.failures and not run.suspended
    count, visit = merged.counts.get(path, 0), merged.counts.get(author, 0) + 1
    step = 1 + max([branch.step for branch in branches])
    commit_id = execution_id(path, count)
    commit = Commit(
        commit_id,
        run.first + index if alone else None,
        author,
        path,
        visit,
        step,
        seal(merged.patch),
        tuple([branch.id for branch in branches]),
        route=(node,),
        started=max([run.log[branch.head].commit.ended for branch in branches]),
    )
    if schema.limited_fields:
        commit = schema.with_sizes(commit, schema.made(first, merged.state, None), merged.state)
    entry = LogEntry(commit, merged.state, heads, None, merged.winners, merged.conflicts)
    counts = merged.counts.update({author: visit, path: count + 1})
    run = run._replace(log=run.log.append(entry), trunk_state=merged.state if alone else run.trunk_state)
    events: list[Event] = [ConflictFound(conflict) for conflict in merged.conflicts]
    events += [Joined(node, tuple([branch.path for branch in branches]), path)]
    events.append(Committed(commit, run.first + index, _operations(topology, commit.patch, merged.state, step)))
    return run, Branch(path, fork_children, merged.state, index, commit_id, step, counts), events


def _operations(topology: Topology, patch: Mapping[str, Any], state: ImmutableState, step: int) -> Mapping[str, str]:
    """The way in which each update of a commit is folded in, for its event."""
    schema = topology.schema
    # The first commit of a run that is not on a thread has whole values.
    whole = () if step else [name for name, update in patch.items() if update is state.raw(name, DELETE)]
    return {name: "replace" if name in whole else schema.operation(name, patch[name]) for name in patch}


def _numbered(run: RunState) -> list[Event]:
    """The event that numbers the commits of a fork whose last join has been made; none if others are still open.

    That join has its version, which is the last one; those before the fork have theirs.
    """
    log, last = run.log, len(run.log) - 1
    if log[last].commit.version is None:
        return []
    first = last
    while first and log[first - 1].commit.version is None:
        first -= 1
    inside = sorted([log[index].commit for index in range(first, last)], key=lambda one: (one.step, one.branch))
    return [Numbered({commit.id: run.first + first + i for i, commit in enumerate(inside)})]


def _join_failed(run: RunState, group: Group, raised: JoinFailedError) -> tuple[RunState, None, list[Event]]:
    found: list[Event] = [ConflictFound(conflict) for conflict in raised.conflicts]
    path = min(branch.path for branch in group.branches)
    author = f"join:{group.position[0]}"
    # The id that its commit would have had, and has if the run is resumed.
    joined = path_of(collapse_forks([one for branch in group.branches for one in branch.fork_children]))
    behind = [run.log[index].commit for index in ancestry(run.log, sorted(branch.head for branch in group.branches))]
    execution = execution_id(joined, sum(one.branch == joined and not one.is_manual() for one in behind))
    failure = FailedBranch(
        path, author, execution, raised.error, tuple(group.branches), group.position, raised.conflicts
    )
    run, failed = _fail(run, failure)
    return run, None, found + failed


# --- changes from outside of a run: replay and threads


def force_ready(run: RunState, position: Position) -> RunState:
    """Lets the group that waits at a position start.

    Needed when a truncated log is replayed: it may lack the commits that proved that no other branch could arrive.
    """
    return run._replace(waiting=run.waiting.discard(position), ready=run.ready.added([run.waiting[position]]))


def append_commit(
    run: RunState,
    commit: Commit,
    state: ImmutableState,
    left: Position | None = None,
    targets: Sequence[Target] = (),
) -> RunState:
    """Adds a manual commit on top of the only active branch, with the state after it.

    The branch keeps its target, or continues to `targets` from the position `left`, where its last node was.
    """
    (branch,) = active_branches(run)
    commit = run.topology.schema.with_sizes(commit, commit.patch, state)
    counts = branch.counts.update(extra_counts(commit, branch.counts.get))
    moved = branch._replace(state=state, head=len(run.log), id=commit.id, step=commit.step, counts=counts)
    if left is not None:
        overlays = tuple([target.overlay for target in targets])
        several, sends = len(targets) > 1, overlays if any(one is not None for one in overlays) else ()
        entry = LogEntry(commit, state, (branch.head,), counts if several else None, sends=sends)
        run = run._replace(log=run.log.append(entry), waiting=_NONE, ready=NOTHING_READY, trunk_state=state)
        children = _fork(moved, len(targets)) if several else [moved]
        return _arrive(run._replace(positions=NO_POSITIONS.set(left, 1)), left, zip(targets, children, strict=True))
    running = {name: execution._replace(branch=moved) for name, execution in run.running.items()}
    return run._replace(
        log=run.log.append(LogEntry(commit, state, (branch.head,), None)),
        ready=ReadyQueue.of([group._replace(branches=(moved,)) for group in run.ready]),
        running=PersistentMap(running),
        trunk_state=state,
    )


# --- run values: facts about a run that nodes can read like fields, such as `run.count`

# They come from the counts of a branch's lineage, which are kept up to date as commits are made.
#
# - `run.count`: how many nodes have run in the lineage of the branch.
# - `run.remaining`: how many steps it may take after this one, up to `max_steps`.
# - `run.routing_reason`: the reason given by the last router that gave one.
# - `run.NODE.visits`: how often a node has run in the lineage.
# - `run.NODE.calls`: how often it has called predictors.
# - `run.NODE.tool_calls`: how often it has called tools.


RUN_VALUES = ("count", "remaining", "routing_reason")
NODE_VALUES = ("visits", *CALL_KINDS)


def is_counted(name: str) -> bool:
    """Return whether a run value needs the calls of predictors or tools to be counted."""
    return name.endswith((".calls", ".tool_calls"))


def run_value(name: str, topology: Topology, branch: Branch) -> int | str | None:
    """The value of a valid name that begins with `run.`, for a branch before its next commit.

    `run.routing_reason` is None if no router has given a reason; the others are numbers.
    """
    _, first, *rest = name.split(".")
    if rest:
        if rest[0] == "visits":
            return int(branch.counts.get(first, 0))
        return int(branch.counts.get((rest[0], first), 0))
    if first == "count":
        return int(sum([branch.counts.get(node, 0) for node in topology.nodes]))
    if first == "remaining":
        return max(topology.max_steps - steps_taken(topology, branch) - 1, 0)
    reason: str | None = branch.counts.get(REASON_KEY)
    return reason


def run_value_problem(name: str, nodes: Collection[str]) -> str | None:
    """The problem with a name that begins with `run.`, given the names of the nodes; None for a valid one."""
    _, first, *rest = name.split(".")
    if not rest:
        if first in RUN_VALUES:
            return None
        known = ", ".join([f"run.{each}" for each in RUN_VALUES] + [f"run.NODE.{each}" for each in NODE_VALUES])
        return f"is no run value.{suggestion(first, RUN_VALUES)} There are {known}"
    if first not in nodes:
        return f"names no node {first!r}.{suggestion(first, nodes)}"
    if rest[0] not in NODE_VALUES:
        return f"is no value of a node.{suggestion(rest[0], NODE_VALUES)} There are {', '.join(NODE_VALUES)}"
    return None


# --- which of the nodes that wait for posts goes on first, when no one else works: its loop ends, the others still wait

# One for whose field nothing more can come from those that wait: none of them writes it, nor a node after one of them
# up to a join that waits for this reader, which starts only after it has ended. If there is none, they wait for each
# other, and the first in path order goes on. It may write what another one waits for.

_CACHE_SIZE = 4096


class ReleaseOrder:
    """The order for one graph. `writes` has the fields that each node writes."""

    def __init__(self, topology: Topology, writes: Mapping[str, Collection[str]]) -> None:
        self._rounds = topology.rounds
        self._writes = writes
        self._known: dict[tuple[Position, Position, bool], frozenset[str]] = {}

    def first(self, waiting: Iterable[tuple[Execution, Collection[str]]]) -> Execution:
        """The reader that goes on first, of those that wait for posts to these fields."""
        readers = sorted(waiting, key=lambda one: (one[0].path, one[0].id))
        # A router may answer with a `Send`, which starts at once and waits at no join. First each router counts as one
        # that does; if then all wait for each other, none does.
        for sends in (True, False):
            for reader, fields in readers:
                others = [one.position for one, _ in readers if one is not reader]
                if all(self._written(at, reader.position, sends).isdisjoint(fields) for at in others):
                    return reader
        return readers[0][0]

    def _written(self, position: Position, reader: Position, sends: bool) -> frozenset[str]:
        """The fields that a node and those after it write without waiting for a reader.

        The least round in which each node is reached is enough: what waits for the reader in one round waits for it in
        later ones too.
        """
        key = (position, reader, sends)
        known = self._known.get(key)
        if known is None:

            def passes(edge: Edge, at: Round) -> bool:
                # The scheduler's own rule for joins: a group waits for a branch that can reach it.
                waits = (edge.target, at) != reader and self._rounds.can_reach(*reader, edge.target, at)
                return not waits or (sends and edge.conditional)

            nodes = (position[0], *self._rounds.least(*position, passes))
            found = [field for node in nodes for field in self._writes.get(node, ())]
            if len(self._known) >= _CACHE_SIZE:  # a loop asks for new rounds, never again for old ones
                self._known.clear()
            known = self._known[key] = frozenset(found)
        return known
