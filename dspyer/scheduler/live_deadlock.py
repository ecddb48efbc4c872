"""When a loop over a live field ends: no other branch can write the field any more, or the readers are deadlocked.

The rule. A *reader* waits for the next entry of a field. An entry may still come as long as a *possible writer* can
write the field before the reader ends. A possible writer is a branch that can continue: its node runs or may start, or
waits for an entry that may still come, or has returned and commits as soon as others have committed that can continue.
It may write what its node writes and what the nodes after it write, up to a join at which the reader's own branch may
still arrive: a node after that join starts only after the reader has ended, so the reader must not wait for it.

A reader for whose field there is no possible writer is *stuck*. Stuck readers are *released*, which ends their loops,
but not all at once: a released reader continues, and may write what another one waits for. Which one comes first
follows from the wait-for graph of what is stuck. Its knots are the strongly connected components that no edge leaves
(Holt, "Some Deadlock Properties of Computer Systems", ACM Computing Surveys 1972): a single reader that waits for no
other one, or a deadlock of readers that wait for each other. Of each knot the first reader in path order is released.
A knot is stable: nothing outside of it can change its members, so the choice depends on the recorded order of commits
and posts, and not on when the check runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from dspyer.events import BranchPath
from dspyer.scheduler.loops import Round, components
from dspyer.scheduler.run_state import Position
from dspyer.scheduler.topology import Topology

_CACHE_SIZE = 4096


class PossibleWriter(NamedTuple):
    """A branch that may write a field. `works`: whether its own node may write too, and not only the nodes after it."""

    position: Position
    works: bool = True


class WaitingReader(NamedTuple):
    """An execution that waits for the next entry of a live field."""

    execution: str
    position: Position
    path: BranchPath
    field: str


class HeldCommit(NamedTuple):
    """An execution that has returned, and commits once those in `needs` have, whose posts it has read."""

    execution: str
    position: Position
    path: BranchPath
    needs: frozenset[str]


def readers_to_release(
    waiting: Sequence[WaitingReader], writers: Iterable[PossibleWriter], held: Iterable[HeldCommit], reach: WriteReach
) -> list[WaitingReader]:
    """The readers whose loops must end now: of the stuck readers, one for each knot.

    `waiting` are the readers that have no entry to read, `writers` the branches that can continue without one, `held`
    the executions that have returned and cannot commit yet.
    """
    stuck = sorted(waiting, key=_order)
    stuck_commits = sorted(held, key=_order)
    active = list(writers)
    while active:  # a reader that can get an entry can continue, and so may write in turn
        continuing = {
            one.execution for one in stuck if any(reach.may_write(writer, one.field, one.position) for writer in active)
        }
        active = [PossibleWriter(one.position) for one in stuck if one.execution in continuing]
        stuck = [one for one in stuck if one.execution not in continuing]
        blocked = _blocked_commits(stuck, stuck_commits)
        active += [PossibleWriter(one.position, False) for one in stuck_commits if one.execution not in blocked]
        stuck_commits = [one for one in stuck_commits if one.execution in blocked]
    if not stuck:
        return []
    waits_for = _wait_for_graph(stuck, stuck_commits, reach, sends=True)
    found = []
    for knot in _knots(waits_for):
        members = [one for one in stuck if one.execution in knot]
        if len(members) > 1:
            # Each `Send` that a router may return counts as a possible write, so the knot may be larger than the
            # deadlock. Without sends, the knots inside this one are the readers that the others certainly wait for.
            certain = _wait_for_graph(members, [one for one in stuck_commits if one.execution in knot], reach, False)
            inner = {name for inner_knot in _knots(certain) for name in inner_knot}
            members = [one for one in members if one.execution in inner]
        found.append(members[0])
    return found


class WriteReach:
    """Which live fields a branch may write before a reader ends. `writes` has the live fields that each node writes."""

    def __init__(self, topology: Topology, writes: Mapping[str, Collection[str]]) -> None:
        self._rounds = topology.rounds
        self._writes = {node: frozenset(fields) for node, fields in writes.items()}
        self._out: dict[str, list[tuple[str, bool]]] = {}
        for edge in topology.edges:
            self._out.setdefault(edge.source, []).append((edge.target, edge.conditional))
        self._anywhere: dict[str, frozenset[str]] = {}
        self._before: dict[tuple[Position, Position, bool], frozenset[str]] = {}

    def may_write(self, writer: PossibleWriter, field: str, reader: Position, sends: bool = True) -> bool:
        """Whether a branch may write a field before the reader at some position ends.

        `sends`: whether routers may answer with a `Send`, which starts at once and waits at no join.
        """
        node = writer.position[0]
        if writer.works and field in self._writes.get(node, ()):
            return True
        # The first check needs no rounds and is nearly always cached; mostly it says no.
        return field in self._written_after(node) and field in self._written_before(writer.position, reader, sends)

    def _written_after(self, node: str) -> frozenset[str]:
        """The fields that nodes after a node write, joins or not."""
        known = self._anywhere.get(node)
        if known is None:
            found: set[str] = set()
            seen: set[str] = set()
            work = [node]
            while work:
                for target, _ in self._out.get(work.pop(), ()):
                    if target not in seen:
                        seen.add(target)
                        found |= self._writes.get(target, frozenset())
                        work.append(target)
            known = self._anywhere[node] = frozenset(found)
        return known

    def _written_before(self, position: Position, reader: Position, sends: bool) -> frozenset[str]:
        """The fields that nodes after a position write without waiting for a reader.

        The least round in which each node is reached is enough: what waits for the reader in one round waits for it in
        later ones too.
        """
        key = (position, reader, sends)
        known = self._before.get(key)
        if known is None:
            found: set[str] = set()
            least: dict[str, Round] = {}
            work = [position]
            while work:
                node, at = work.pop()
                for target, conditional in self._out.get(node, ()):
                    to = self._rounds.move(node, at, target)
                    if self._waits((target, to), reader) and not (sends and conditional):
                        continue
                    if target not in least or to < least[target]:
                        least[target] = to
                        found |= self._writes.get(target, frozenset())
                        work.append((target, to))
            if len(self._before) >= _CACHE_SIZE:  # a loop asks for new rounds, never again for old ones
                self._before.clear()
            known = self._before[key] = frozenset(found)
        return known

    def _waits(self, position: Position, reader: Position) -> bool:
        """Whether a group at a position waits for the branch of a reader: the scheduler's own rule for joins."""
        return position != reader and self._rounds.can_reach(reader[0], reader[1], position[0], position[1])


def _blocked_commits(stuck: Sequence[WaitingReader], held: Sequence[HeldCommit]) -> set[str]:
    """The executions that cannot commit before a stuck reader has.

    All other held executions do commit, also those that need each other: once the others that they need have committed,
    they commit together.
    """
    needed_by: dict[str, list[str]] = {}
    for one in held:
        for name in one.needs:
            needed_by.setdefault(name, []).append(one.execution)
    found: set[str] = set()
    work = [one.execution for one in stuck]
    while work:
        more = [name for name in needed_by.get(work.pop(), ()) if name not in found]
        found.update(more)
        work += more
    return found


def _wait_for_graph(
    stuck: Sequence[WaitingReader], held: Sequence[HeldCommit], reach: WriteReach, sends: bool
) -> dict[str, list[str]]:
    """For each stuck execution, those that it waits for: they may write its field, or it has read their posts."""
    names = {one.execution for one in stuck} | {one.execution for one in held}
    needs = {one.execution: [name for name in sorted(one.needs) if name in names] for one in held}
    found = dict(needs)
    for one in stuck:
        writers = [
            other.execution
            for other in stuck
            if other is not one and reach.may_write(PossibleWriter(other.position), one.field, one.position, sends)
        ]
        writers += [
            other.execution
            for other in held
            # What commits only after this reader cannot write before it ends.
            if not _needs(other.execution, one.execution, needs)
            and reach.may_write(PossibleWriter(other.position, False), one.field, one.position, sends)
        ]
        found[one.execution] = writers
    return found


def _needs(execution: str, other: str, needs: Mapping[str, Sequence[str]]) -> bool:
    """Whether a held execution can only commit after another one."""
    seen = {execution}
    work = [execution]
    while work:
        for name in needs.get(work.pop(), ()):
            if name == other:
                return True
            if name not in seen:
                seen.add(name)
                work.append(name)
    return False


def _knots(waits_for: dict[str, list[str]]) -> list[set[str]]:
    """The strongly connected components that no edge leaves."""
    rings = [set(ring) for ring in components(list(waits_for), waits_for)]
    return [ring for ring in rings if all(other in ring for name in ring for other in waits_for[name])]


def _order(one: WaitingReader | HeldCommit) -> tuple[BranchPath, str]:
    return one.path, one.execution
