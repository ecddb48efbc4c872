"""A run as a value: branches, groups, executions and what they are called. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from dspyer.events import BranchPath, Exchange, MergedConflict, Question
from dspyer.scheduler.lineage import LineageCounts, LogEntry
from dspyer.scheduler.loops import Round
from dspyer.scheduler.topology import Topology
from dspyer.state import ImmutableState
from dspyer.values.frozen import FrozenDict
from dspyer.values.persistent import PersistentMap, PersistentVector

ForkPoint = tuple[int, int]  # (which child of a fork, how many children it has)
Position = tuple[str, Round]  # where a branch stands


class Target(NamedTuple):
    """Where a branch goes. With an overlay it is a `Send`: a branch of its own that starts at once."""

    node: str
    overlay: FrozenDict[str, Any] | None = None


class Transition(NamedTuple):
    """What a finished node gives: patch, state with it, and where the branch goes. Applied whole or not at all."""

    patch: Mapping[str, Any]
    state: ImmutableState
    targets: tuple[Target, ...]
    reason: str | None = None
    started: float = 0.0
    duration: float = 0.0
    live: Exchange | None = None
    calls: tuple[int, int] = (0, 0)


class Branch(NamedTuple):
    """A live branch.

    Attributes:
        path: its name: the smallest of the paths that it united.
        fork_children: these paths, smallest first, with the width of each fork.
        state: its state.
        head: index of its last commit in the log, -1 before the first.
        id: the id of that commit.
        step: the step of that commit, -1 before the first.
        counts: commits per node and per path in its lineage, and what else is known of that.
    """

    path: BranchPath
    fork_children: tuple[tuple[ForkPoint, ...], ...]
    state: ImmutableState
    head: int
    id: str
    step: int
    counts: LineageCounts


class Group(NamedTuple):
    """Branches at one position. A `Send` branch is a group of its own; from `blocker` more branches may come."""

    position: Position
    branches: tuple[Branch, ...] | PersistentVector[Branch]  # the vector where many wait: it grows without a copy
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


class Failure(NamedTuple):
    """A node, router or join that raised, the branches that it stopped, and their position."""

    path: BranchPath
    node: str
    execution: str
    error: BaseException
    branches: tuple[Branch, ...]
    position: Position
    conflicts: tuple[MergedConflict, ...] = ()


class Suspended(NamedTuple):
    """An execution that has suspended and gives way until it is answered. It is no transition: its branch stays."""

    questions: tuple[Question, ...]


class RunState(NamedTuple):
    """A run as a value.

    Attributes:
        topology: the graph.
        log: the commits in order of arrival.
        waiting: branches that have arrived at a position where more may come.
        ready: groups that may start, in path order.
        running: executions by id.
        positions: how many groups stand at each position; those that wait at one position count once.
        calls: nodes that were started.
        failures: what raised.
        trunk_state: the last state that all branches shared.
        ended: whether all branches have come to `END`.
        suspended: executions that wait for an answer, with their questions, by id.
        first: the version of the first commit: runs of a thread go on counting.
    """

    topology: Topology
    log: PersistentVector[LogEntry]
    waiting: PersistentMap[Position, Group]
    ready: ReadyQueue
    running: PersistentMap[str, Execution]
    positions: PersistentMap[Position, int]
    calls: int = 0
    failures: tuple[Failure, ...] = ()
    trunk_state: ImmutableState = ImmutableState()
    ended: bool = False
    suspended: PersistentMap[str, tuple[Execution, Suspended]] = PersistentMap()
    first: int = 0


def active_branches(run: RunState) -> list[Branch]:
    """The branches that have not come to their end, in path order. None has failed."""
    branches = [branch for group in (*run.waiting.values(), *run.ready) for branch in group.branches]
    branches += [execution.branch for execution in run.running.values()]
    branches += [execution.branch for execution, _ in run.suspended.values()]
    return sorted(branches, key=lambda branch: branch.path)


def execution_id(path: BranchPath, index: int) -> str:
    """The id of the commit number `index` of a branch path, and of the execution that makes it."""
    return f"{path_text(path)}:{index}" if path else f"trunk:{index}"


def contains_commit(branch: Branch, execution: str) -> bool:
    """Whether a commit is in the lineage of a branch. The commits of one path are a chain, which `counts` counts.

    Args:
        branch: the branch.
        execution: the id of the commit.
    """
    text, _, index = execution.rpartition(":")
    path = () if text == "trunk" else tuple(map(int, text.split(".")))
    known: int = branch.counts.get(path, 0)
    return int(index) < known


def path_text(path: BranchPath) -> str:
    """A branch path as errors show it."""
    return ".".join(map(str, path)) or "trunk"


def path_of(fork_children: tuple[tuple[ForkPoint, ...], ...]) -> BranchPath:
    """The path that names a branch: the smallest of those that it united."""
    return tuple([child for child, _ in fork_children[0]])


def collapse_forks(fork_children: Iterable[tuple[ForkPoint, ...]]) -> tuple[tuple[ForkPoint, ...], ...]:
    """Puts all children of a fork together as their parent, as often as it goes."""
    held = set(fork_children)
    while True:
        families: dict[tuple[ForkPoint, ...], list[tuple[ForkPoint, ...]]] = {}
        for spot in held:
            if spot:
                families.setdefault(spot[:-1], []).append(spot)
        whole = {parent: children for parent, children in families.items() if len(children) == children[0][-1][1]}
        if not whole:
            return tuple(sorted(held))
        for parent, children in whole.items():
            held.difference_update(children)
            held.add(parent)


# --------------------------------------------------------------------------------------------------------------------
# The groups that may start, as a priority queue that is a value: who keeps an older queue keeps what was in it.

# A leftist heap (Crane 1972): path, group, length of the right spine, left and right heap. Two heaps are merged along
# their right spines, which are never longer than a logarithm.
Heap: TypeAlias = "tuple[BranchPath, Group, int, Heap | None, Heap | None]"


class ReadyQueue:
    """Groups by the smallest path among their branches, the smallest first.

    Groups come and go in logarithmic time; of those that came together, the first goes in constant time.
    """

    __slots__ = ("_heap",)

    def __init__(self, heap: Heap | None = None) -> None:
        self._heap = heap

    @classmethod
    def of(cls, groups: Iterable[Group]) -> ReadyQueue:
        """A queue of some groups, in any order."""
        heap: Heap | None = None
        for path, group in sorted([(_first_path(group), group) for group in groups], key=_path, reverse=True):
            heap = (path, group, 1, heap, None)
        return cls(heap)

    def added(self, groups: Iterable[Group]) -> ReadyQueue:
        """A queue with further groups, in any order."""
        return ReadyQueue(_merged(self._heap, ReadyQueue.of(groups)._heap))

    def taken(self, position: int = 0) -> tuple[Group, ReadyQueue]:
        """The group at a position, and the queue without it.

        Raises:
            IndexError: if there are not so many groups.
        """
        heap = self._heap
        if not position and heap is not None:
            rest = _merged(heap[3], heap[4])
            return heap[1], NOTHING_READY if rest is None else ReadyQueue(rest)
        before: list[Group] = []
        while heap is not None:
            _, group, _, left, right = heap
            heap = _merged(left, right)
            if len(before) == position:
                return group, ReadyQueue(heap).added(before) if before else ReadyQueue(heap)
            before.append(group)
        raise IndexError(f"no group at {position}: {len(before)} may start")

    def __iter__(self) -> Iterator[Group]:
        heap = self._heap
        while heap is not None:
            yield heap[1]
            heap = _merged(heap[3], heap[4])

    def __bool__(self) -> bool:
        return self._heap is not None

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, ReadyQueue) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ReadyQueue.of({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadyQueue.of, (list(self),)


NOTHING_READY = ReadyQueue()


def _merged(one: Heap | None, two: Heap | None) -> Heap | None:
    if one is None:
        return two
    if two is None:
        return one
    if two[0] < one[0]:
        one, two = two, one
    path, group, _, left, right = one
    right = _merged(right, two)
    if left is None or (right is not None and left[2] < right[2]):
        left, right = right, left
    return path, group, 1 if right is None else right[2] + 1, left, right


def _path(one: tuple[BranchPath, Group]) -> BranchPath:
    return one[0]


def _first_path(group: Group) -> BranchPath:
    branches = group.branches
    return branches[0].path if len(branches) == 1 else min([branch.path for branch in branches])
