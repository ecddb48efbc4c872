"""When the loop over a live field ends. Pure, like the rest of the scheduler.

The rule. A *listener* waits for the next entry of a field. An entry may still come as long as an *origin* may write the
field before the listener ends. An origin is a branch that can go on: its node works, or may start, or waits for an
entry that may still come, or has ended and commits as soon as others have that can go on. It may write what its node
writes and what the nodes behind it write, up to a join: a node at which the listener's own branch may still arrive does
not start before the listener has ended, so it holds no listener up, however the graph leads back.

A listener that no origin can reach any more is *released*. Listeners may hold each other up and nothing else does: of
such a ring, the first in path order is released. What decides is a stable property of the recorded order: nothing that
is not in it can change who is stuck.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from dspyer.events import BranchPath
from dspyer.scheduler.loops import Round, components
from dspyer.scheduler.run_state import Position
from dspyer.scheduler.topology import Topology

_MOST = 4096


class PossibleWriter(NamedTuple):
    """A branch that may write the field. `works`: whether its own node may, and not only the nodes after it."""

    position: Position
    works: bool = True


class WaitingReader(NamedTuple):
    """An execution that waits for the next entry of a live field."""

    execution: str
    position: Position
    path: BranchPath
    field: str


class HeldCommit(NamedTuple):
    """An execution that has ended, and commits when the executions have whose posts it has used."""

    execution: str
    position: Position
    path: BranchPath
    needs: frozenset[str]


class WriteReach:
    """What a branch may write before a listener ends.

    Args:
        topology: the graph.
        writes: the live fields that each node writes.
    """

    def __init__(self, topology: Topology, writes: Mapping[str, Collection[str]]) -> None:
        self._rounds = topology.rounds
        self._writes = {node: frozenset(fields) for node, fields in writes.items()}
        self._out: dict[str, list[tuple[str, bool]]] = {}
        for edge in topology.edges:
            self._out.setdefault(edge.source, []).append((edge.target, edge.conditional))
        self._anywhere: dict[str, frozenset[str]] = {}
        self._before: dict[tuple[Position, Position, bool], frozenset[str]] = {}

    def may_write(self, origin: PossibleWriter, field: str, listener: Position, sends: bool = True) -> bool:
        """Whether an entry may come from a branch before a listener at some position ends.

        Args:
            origin: the branch.
            field: what the listener waits for.
            listener: the position of the listener.
            sends: whether routers may answer with a `Send`, which starts at once and waits at no join.
        """
        node = origin.position[0]
        if origin.works and field in self._writes.get(node, ()):
            return True
        return field in self._behind(node) and field in self._until(origin.position, listener, sends)

    def _behind(self, node: str) -> frozenset[str]:
        """The fields that nodes behind a node write."""
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

    def _until(self, position: Position, listener: Position, sends: bool) -> frozenset[str]:
        """The same, up to the nodes that wait for a listener. It is enough to look at the least round of each node:
        what waits for the listener in one round waits in later ones too.
        """
        key = (position, listener, sends)
        known = self._before.get(key)
        if known is None:
            found: set[str] = set()
            least: dict[str, Round] = {}
            work = [position]
            while work:
                node, at = work.pop()
                for target, conditional in self._out.get(node, ()):
                    to = self._rounds.move(node, at, target)
                    if self._waits((target, to), listener) and not (sends and conditional):
                        continue
                    if target not in least or to < least[target]:
                        least[target] = to
                        found |= self._writes.get(target, frozenset())
                        work.append((target, to))
            if len(self._before) >= _MOST:  # the rounds of a loop are never asked for again
                self._before.clear()
            known = self._before[key] = frozenset(found)
        return known

    def _waits(self, position: Position, listener: Position) -> bool:
        """Whether a group at a position waits for a listener: the scheduler's own rule for joins."""
        return position != listener and self._rounds.can_reach(listener[0], listener[1], position[0], position[1])


def readers_to_release(
    waiting: Sequence[WaitingReader], origins: Iterable[PossibleWriter], held: Iterable[HeldCommit], reach: WriteReach
) -> list[WaitingReader]:
    """The listeners to which no entry comes unless they go on, of a ring the first.

    Args:
        waiting: the executions that wait, each without an entry to read.
        origins: the branches that can go on by themselves.
        held: the executions that have ended and not committed.
        reach: what a branch may write.
    """
    stuck = sorted(waiting, key=_order)
    kept = sorted(held, key=_order)
    fresh = list(origins)
    while fresh:
        going = {
            one.execution for one in stuck if any(reach.may_write(origin, one.field, one.position) for origin in fresh)
        }
        fresh = [PossibleWriter(one.position) for one in stuck if one.execution in going]
        stuck = [one for one in stuck if one.execution not in going]
        behind = _behind(stuck, kept)
        fresh += [PossibleWriter(one.position, False) for one in kept if one.execution not in behind]
        kept = [one for one in kept if one.execution in behind]
    if not stuck:
        return []
    holders = _holders(stuck, kept, reach, True)
    found = []
    for ring in _ends(list(holders), holders):
        members = [one for one in stuck if one.execution in ring]
        if len(members) > 1:  # what is certain decides before what a router might send
            certain = _holders(members, [one for one in kept if one.execution in ring], reach, False)
            ends = {name for end in _ends(list(certain), certain) for name in end}
            members = [one for one in members if one.execution in ends]
        found.append(members[0])
    return found


def _behind(stuck: Sequence[WaitingReader], kept: Sequence[HeldCommit]) -> set[str]:
    """Those that have ended and cannot commit before one that is stuck. Any others commit: also those that need each
    other, once all that they need besides has ended.
    """
    needed_by: dict[str, list[str]] = {}
    for one in kept:
        for name in one.needs:
            needed_by.setdefault(name, []).append(one.execution)
    found: set[str] = set()
    work = [one.execution for one in stuck]
    while work:
        more = [name for name in needed_by.get(work.pop(), ()) if name not in found]
        found.update(more)
        work += more
    return found


def _holders(
    stuck: Sequence[WaitingReader], kept: Sequence[HeldCommit], reach: WriteReach, sends: bool
) -> dict[str, list[str]]:
    """Who holds whom up, of those that cannot go on: those who may write what it waits for, or whose posts it used."""
    names = {one.execution for one in stuck} | {one.execution for one in kept}
    needs = {one.execution: [name for name in sorted(one.needs) if name in names] for one in kept}
    found = dict(needs)
    for one in stuck:
        holders = [
            other.execution
            for other in stuck
            if other is not one and reach.may_write(PossibleWriter(other.position), one.field, one.position, sends)
        ]
        holders += [
            other.execution
            for other in kept
            if not _needs(other.execution, one.execution, needs)
            and reach.may_write(PossibleWriter(other.position, False), one.field, one.position, sends)
        ]
        found[one.execution] = holders
    return found


def _order(one: WaitingReader | HeldCommit) -> tuple[BranchPath, str]:
    return one.path, one.execution


def _needs(execution: str, other: str, needs: Mapping[str, Sequence[str]]) -> bool:
    """Whether an execution that has ended cannot commit before another one has."""
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


def _ends(names: list[str], holders: dict[str, list[str]]) -> list[set[str]]:
    """The rings that nothing outside of them holds up."""
    rings = [set(ring) for ring in components(names, holders)]
    return [ring for ring in rings if all(other in ring for name in ring for other in holders[name])]
