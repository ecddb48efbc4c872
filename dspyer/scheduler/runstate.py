"""A run as a value: branches, groups, executions and what they are called. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dspyer.events import BranchPath, Exchange, MergedConflict, Question
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.ready import Ready
from dspyer.scheduler.rounds import Round
from dspyer.scheduler.tallies import LineageCounts
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
        spots: these paths, smallest first, with the width of each fork.
        state: its state.
        head: place of its last commit in the log, -1 before the first.
        id: the id of that commit.
        step: the step of that commit, -1 before the first.
        tally: commits per node and per path in its lineage, and what else is known of that.
    """

    path: BranchPath
    spots: tuple[tuple[ForkPoint, ...], ...]
    state: ImmutableState
    head: int
    id: str
    step: int
    tally: LineageCounts


class Group(NamedTuple):
    """Branches at one place. A `Send` branch is a group of its own; `blocker` is a place from which more may come."""

    place: Position
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
    place: Position
    overlay: FrozenDict[str, Any] | None


class Failure(NamedTuple):
    """A node, router or join that raised, the branches that it stopped, and their place."""

    path: BranchPath
    node: str
    execution: str
    error: BaseException
    branches: tuple[Branch, ...]
    place: Position
    conflicts: tuple[MergedConflict, ...] = ()


class Asking(NamedTuple):
    """An execution that has asked and gives way until it is answered. It is no transition: its branch stays."""

    questions: tuple[Question, ...]


class RunState(NamedTuple):
    """A run as a value.

    Attributes:
        topology: the graph.
        log: the commits in order of arrival.
        waiting: branches that have arrived at a place where more may come.
        ready: groups that may start, in path order.
        running: executions by id.
        live: how many groups stand at each place; those that wait at one place count once.
        calls: nodes that were started.
        failures: what raised.
        resting: the last state that all branches shared.
        ended: whether all branches have come to `END`.
        asked: executions that wait for an answer, with their questions, by id.
        first: the version of the first commit: runs of a thread go on counting.
    """

    topology: Topology
    log: PersistentVector[LogEntry]
    waiting: PersistentMap[Position, Group]
    ready: Ready
    running: PersistentMap[str, Execution]
    live: PersistentMap[Position, int]
    calls: int = 0
    failures: tuple[Failure, ...] = ()
    resting: ImmutableState = ImmutableState()
    ended: bool = False
    asked: PersistentMap[str, tuple[Execution, Asking]] = PersistentMap()
    first: int = 0


def active_branches(run: RunState) -> list[Branch]:
    """The branches that have not come to their end, in path order. None has failed."""
    branches = [branch for group in (*run.waiting.values(), *run.ready) for branch in group.branches]
    branches += [execution.branch for execution in run.running.values()]
    branches += [execution.branch for execution, _ in run.asked.values()]
    return sorted(branches, key=lambda branch: branch.path)


def execution_id(path: BranchPath, index: int) -> str:
    """The id of the commit number `index` of a branch path, and of the execution that makes it."""
    return f"{path_text(path)}:{index}" if path else f"trunk:{index}"


def is_behind(branch: Branch, execution: str) -> bool:
    """Whether a commit is in the lineage of a branch. The commits of one path are a chain, which `tally` counts.

    Args:
        branch: the branch.
        execution: the id of the commit.
    """
    text, _, index = execution.rpartition(":")
    path = () if text == "trunk" else tuple(map(int, text.split(".")))
    known: int = branch.tally.get(path, 0)
    return int(index) < known


def path_text(path: BranchPath) -> str:
    """A branch path as errors show it."""
    return ".".join(map(str, path)) or "trunk"


def path_of(spots: tuple[tuple[ForkPoint, ...], ...]) -> BranchPath:
    """The path that names a branch: the smallest of those that it united."""
    return tuple([child for child, _ in spots[0]])


def collapse(spots: Iterable[tuple[ForkPoint, ...]]) -> tuple[tuple[ForkPoint, ...], ...]:
    """Puts all children of a fork together as their parent, as often as it goes."""
    held = set(spots)
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
