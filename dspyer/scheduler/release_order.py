"""Which of the nodes that wait for posts goes on first, when no one else works: its loop ends, the others still wait.

One for whose field nothing more can come from those that wait: none of them writes it, nor a node after one of them up
to a join that waits for this reader, which starts only after it has ended. If there is none, they wait for each other,
and the first in path order goes on. It may write what another one waits for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from dspyer.events import BranchPath
from dspyer.scheduler.loops import Round
from dspyer.scheduler.run_state import Position
from dspyer.scheduler.topology import Topology

_CACHE_SIZE = 4096


class WaitingReader(NamedTuple):
    """An execution that waits for the next entry of a live field."""

    position: Position
    path: BranchPath
    execution: str
    field: str


class ReleaseOrder:
    """The order for one graph. `writes` has the fields that each node writes."""

    def __init__(self, topology: Topology, writes: Mapping[str, Collection[str]]) -> None:
        self._rounds = topology.rounds
        self._writes = writes
        self._out: dict[str, list[tuple[str, bool]]] = {}
        for edge in topology.edges:
            self._out.setdefault(edge.source, []).append((edge.target, edge.conditional))
        self._known: dict[tuple[Position, Position, bool], frozenset[str]] = {}

    def first(self, waiting: Sequence[WaitingReader]) -> WaitingReader:
        """The reader that goes on first."""
        readers = sorted(waiting, key=lambda one: (one.path, one.execution))
        # A router may answer with a `Send`, which starts at once and waits at no join. First each router counts as one
        # that does; if then all wait for each other, none does.
        for sends in (True, False):
            for reader in readers:
                others = (one for one in readers if one is not reader)
                if not any(reader.field in self._written(one.position, reader.position, sends) for one in others):
                    return reader
        return readers[0]

    def _written(self, position: Position, reader: Position, sends: bool) -> frozenset[str]:
        """The fields that a node and those after it write without waiting for a reader.

        The least round in which each node is reached is enough: what waits for the reader in one round waits for it in
        later ones too.
        """
        key = (position, reader, sends)
        known = self._known.get(key)
        if known is None:
            found = set(self._writes.get(position[0], ()))
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
                        found.update(self._writes.get(target, ()))
                        work.append((target, to))
            if len(self._known) >= _CACHE_SIZE:  # a loop asks for new rounds, never again for old ones
                self._known.clear()
            known = self._known[key] = frozenset(found)
        return known

    def _waits(self, position: Position, reader: Position) -> bool:
        """Whether a group at a position waits for the branch of a reader: the scheduler's own rule for joins."""
        return position != reader and self._rounds.can_reach(reader[0], reader[1], position[0], position[1])
