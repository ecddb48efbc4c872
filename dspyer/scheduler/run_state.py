"""A run as a value: its branches, groups and executions, and their ids. No decision is made here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from dspyer.events import BranchPath, Exchange, MergedConflict, Question
from dspyer.failure import Failure
from dspyer.ids import Address, outermost_execution
from dspyer.scheduler.lineage import LineageCounts, LogEntry
from dspyer.scheduler.loops import Round
from dspyer.scheduler.topology import Topology
from dspyer.state import ImmutableState
from dspyer.values.frozen import FrozenDict
from dspyer.values.persistent import PersistentMap, PersistentVector

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
    """Where a branch goes. With an overlay it is a `Send`: it starts at once, as a group of its own."""

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
    """Whether the commit of an execution is in the lineage of a branch.

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

# A node of a leftist heap (Crane, "Linear Lists and Priority Queues as Balanced Binary Trees", 1972): path, group,
# length of the right spine, left heap, right heap. Two heaps are merged along their right spines, whose length is at
# most logarithmic, and merging shares what it does not change: an older queue stays as it was.
Heap: TypeAlias = "tuple[BranchPath, Group, int, Heap | None, Heap | None]"


class ReadyQueue:
    """Groups by the smallest path among their branches, smallest first: a priority queue that is a value.

    Adding and taking cost logarithmic time; taking the first of groups that were added together costs constant time.
    """

    __slots__ = ("_heap",)

    def __init__(self, heap: Heap | None = None) -> None:
        self._heap = heap

    @classmethod
    def of(cls, groups: Iterable[Group]) -> ReadyQueue:
        """A queue of groups, given in any order."""
        heap: Heap | None = None
        # From the last to the first, each the parent of the one before: a chain of left children, so that taking the
        # first needs no merging.
        for path, group in sorted(
            [(_smallest_path(group), group) for group in groups], key=itemgetter(0), reverse=True
        ):
            heap = (path, group, 1, heap, None)
        return cls(heap)

    def added(self, groups: Iterable[Group]) -> ReadyQueue:
        """The queue with more groups, given in any order."""
        return ReadyQueue(_merged_heaps(self._heap, ReadyQueue.of(groups)._heap))

    def taken(self, index: int = 0) -> tuple[Group, ReadyQueue]:
        """The group at an index (0 for the smallest path, others in a replay), and the queue without it."""
        heap = self._heap
        if not index and heap is not None:
            _, group, _, left, right = heap
            rest = left if right is None else _merged_heaps(left, right)
            return group, NOTHING_READY if rest is None else ReadyQueue(rest)
        before: list[Group] = []
        while heap is not None:
            _, group, _, left, right = heap
            heap = _merged_heaps(left, right)
            if len(before) == index:
                return group, ReadyQueue(heap).added(before) if before else ReadyQueue(heap)
            before.append(group)
        raise IndexError(f"no group at {index}: {len(before)} may start")

    def __iter__(self) -> Iterator[Group]:
        heap = self._heap
        while heap is not None:
            yield heap[1]
            heap = _merged_heaps(heap[3], heap[4])

    def __bool__(self) -> bool:
        return self._heap is not None

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, ReadyQueue) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compares by value, and values of groups are not hashable

    def __repr__(self) -> str:
        return f"ReadyQueue.of({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadyQueue.of, (list(self),)


NOTHING_READY = ReadyQueue()


def _merged_heaps(one: Heap | None, two: Heap | None) -> Heap | None:
    if one is None:
        return two
    if two is None:
        return one
    if two[0] < one[0]:
        one, two = two, one
    path, group, _, left, right = one
    right = _merged_heaps(right, two)
    if left is None or (right is not None and left[2] < right[2]):  # leftist: the right spine is the shorter one
        left, right = right, left
    return path, group, 1 if right is None else right[2] + 1, left, right


def _smallest_path(group: Group) -> BranchPath:
    branches = group.branches
    return branches[0].path if len(branches) == 1 else min([branch.path for branch in branches])
