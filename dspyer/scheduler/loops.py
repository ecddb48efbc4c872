"""The loops of a graph, and which positions of branches can still reach which.

A *loop* is a strongly connected component of the graph. Its rounds begin at its *heads*: at the only node that edges
from outside enter; if there are several, at those whose every edge from inside the loop is conditional; if that is none
of them, at the first declared. An edge from inside the loop to a head *goes back*: it starts the next round. The same
search without these edges finds the loops inside the loop. This is a loop nesting forest, found by repeated search for
components as in Bourdoncle, "Efficient Chaotic Iteration Strategies with Widenings" (FMPA 1993).

The position of a branch is a node and a *round*: one counter per loop around the node, outermost first. Going back adds
1 to the counter of that loop, leaving a loop drops its counter, entering one appends 0. Rounds of one node are compared
lexicographically. These are the pointstamps of timely dataflow (Murray et al., "Naiad: A Timely Dataflow System", SOSP
2013, section 2.3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Round = tuple[int, ...]


class Edge(NamedTuple):
    """A transition that a branch may take.

    Attributes:
        source: the node that it leaves.
        target: the node that it enters.
        conditional: whether it may be left out: an edge of a router, a `goto`, or an error edge.
        on_error: whether it is taken only after a failure of its source.
        into: the field that gets the failure, if there is one; the source writes nothing else then.
    """

    source: str
    target: str
    conditional: bool = False
    on_error: bool = False
    into: str | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """A strongly connected component of the graph.

    Attributes:
        nodes: its nodes, in the order of declaration.
        heads: the nodes at which a round begins.
        entries: the nodes that edges from outside enter.
    """

    nodes: tuple[str, ...]
    heads: tuple[str, ...]
    entries: tuple[str, ...]


def components(nodes: Sequence[str], successors: dict[str, list[str]]) -> list[list[str]]:
    """Strongly connected components, each after those that it leads to.

    Tarjan's algorithm (SIAM J. Comput. 1972), with an explicit stack: graphs may be deeper than Python's recursion
    limit.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(successors.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for successor in rest:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(successors.get(successor, ()))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    found.append(component)
    return found


def descendants(nodes: Sequence[str], successors: dict[str, list[str]], own: Mapping[str, int]) -> dict[str, int]:
    """For each node, its own bits and those of all nodes that can be reached from it. `own` may leave nodes out."""
    found: dict[str, int] = {}
    for part in components(nodes, successors):  # a component comes after those that it leads to
        bits = 0
        for node in part:
            bits |= own.get(node, 0)
            for successor in successors.get(node, ()):
                bits |= found.get(successor, 0)
        found.update(dict.fromkeys(part, bits))
    return found


def find_loops(nodes: Sequence[str], edges: Collection[Edge]) -> list[tuple[Loop, int]]:
    """Finds all loops, outer before inner, each with its depth (0 for an outermost loop)."""
    order = {node: i for i, node in enumerate(nodes)}
    found: list[tuple[Loop, int]] = []
    pending: list[tuple[list[str], list[Edge], int]] = [(list(nodes), list(edges), 0)]
    while pending:
        part, inside, depth = pending.pop()
        successors: dict[str, list[str]] = {}
        for edge in inside:
            successors.setdefault(edge.source, []).append(edge.target)
        for component in components(part, successors):
            members = set(component)
            within = [edge for edge in inside if edge.source in members and edge.target in members]
            if not within:
                continue
            loop = _loop(sorted(members, key=order.__getitem__), members, within, edges)
            found.append((loop, depth))
            forward = [edge for edge in within if edge.target not in loop.heads]
            pending.append((list(loop.nodes), forward, depth + 1))
    return sorted(found, key=lambda item: (item[1], order[item[0].nodes[0]]))


def _loop(members: list[str], inside: set[str], within: list[Edge], edges: Collection[Edge]) -> Loop:
    entered = {edge.target for edge in edges if edge.target in inside and edge.source not in inside}
    entries = tuple(node for node in members if node in entered)
    heads = entries
    if len(entries) != 1:
        fixed = {edge.target for edge in within if not edge.conditional}
        heads = tuple(node for node in entries if node not in fixed) or (entries or tuple(members))[:1]
    return Loop(tuple(members), heads, entries)


@dataclass(slots=True)
class Rounds:
    """The loops of a graph, and how edges change the rounds of branches.

    Built once per graph. Reachability is computed when it is first needed, and kept. For a target outside of loops, a
    bit mask per source is enough; for one inside a loop, the least round in which each source reaches it is needed too.
    """

    nodes: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()
    loops: tuple[Loop, ...] = ()
    _around: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the loops around each node, outermost first
    _moves: dict[tuple[str, str], tuple[int, Round]] = field(default_factory=dict)  # `_move` of each edge
    _out: dict[str, list[str]] = field(default_factory=dict)  # the targets of each node
    _reach: dict[str, dict[str, tuple[int, Round]]] = field(default_factory=dict)  # `_least_rounds` of each source
    _bits: dict[str, int] = field(default_factory=dict)  # the bit of each node
    _below: dict[str, int] = field(default_factory=dict)  # the bits of each node and of all that it can reach

    @classmethod
    def of(cls, nodes: Iterable[str], edges: Iterable[Edge]) -> Rounds:
        """Analyses a graph, given its nodes and edges in the order of declaration."""
        rounds = cls(tuple(nodes), tuple(edges))
        found = find_loops(rounds.nodes, rounds.edges)
        rounds.loops = tuple(loop for loop, _ in found)
        around: dict[str, list[int]] = {node: [] for node in rounds.nodes}
        for i, loop in enumerate(rounds.loops):
            for node in loop.nodes:
                around[node].append(i)
        rounds._around = {node: tuple(loops) for node, loops in around.items()}
        for edge in rounds.edges:
            rounds._moves[edge.source, edge.target] = rounds._move(edge.source, edge.target)
            rounds._out.setdefault(edge.source, []).append(edge.target)
        return rounds

    def _move(self, source: str, target: str) -> tuple[int, Round]:
        """The change of the round along an edge, as (number of counters kept, counters appended).

        For an edge that goes back the number is negative: -n keeps n counters and adds 1 to the last of them.
        """
        around, ahead = self._around[source], self._around[target]
        common = 0
        while common < min(len(around), len(ahead)) and around[common] == ahead[common]:
            common += 1
        if common and common == len(ahead) and target in self.loops[around[common - 1]].heads:
            return -common, ()
        return common, (0,) * (len(ahead) - common)

    def goes_back(self, source: str, target: str) -> bool:
        """Whether the edge starts the next round of a loop."""
        return self._moves[source, target][0] < 0

    def first(self, node: str) -> Round:
        """The first round of a node."""
        return (0,) * len(self._around[node])

    def move(self, source: str, at: Round, target: str) -> Round:
        """The round of a branch that takes the edge from `source`, where it is in round `at`, to `target`."""
        kept, rest = self._moves[source, target]
        if kept < 0:
            return (*at[: -kept - 1], at[-kept - 1] + 1)
        return at[:kept] + rest

    def can_reach(self, source: str, at: Round, target: str, by: Round) -> bool:
        """Whether a branch at `source` in round `at` can reach `target` in round `by` or an earlier one."""
        if not by:  # no loop is around the target, so it has only one round
            return self._reaches(source, target)
        reach = self._reach.get(source)
        if reach is None:
            reach = self._reach[source] = self._least_rounds(source)
        found = reach.get(target)
        if found is None:
            return False
        shared, least = found
        if not shared:
            return least <= by
        return (*at[: shared - 1], at[shared - 1] + least[0], *least[1:]) <= by

    def _reaches(self, source: str, target: str) -> bool:
        """Whether edges lead from a node to another one that is in no loop."""
        if not self._below:
            self._bits = {node: 1 << number for number, node in enumerate(self._around)}
            self._below = descendants(list(self._around), self._out, self._bits)
        return source != target and bool(self._below[source] & self._bits[target])

    def _least_rounds(self, source: str) -> dict[str, tuple[int, Round]]:
        """For each node that `source` can reach: the number of loops around both, and the least round in which it does.

        The round is given from the innermost shared loop inwards, relative to a source in round zero. That is enough:
        on a least path the counters of outer shared loops do not change, because the innermost shared loop is strongly
        connected, and the counters of loops further in do not depend on the round of the source.
        """
        least: dict[str, Round] = {}
        zero = (0,) * len(self._around[source])
        work = [(source, zero)]
        while work:
            node, at = work.pop()
            for target in self._out.get(node, ()):
                found = self.move(node, at, target)
                if target not in least or found < least[target]:
                    least[target] = found
                    work.append((target, found))
        around = self._around[source]
        result = {}
        for target, at in least.items():
            shared = sum(1 for a, b in zip(around, self._around[target], strict=False) if a == b)
            result[target] = (shared, at[max(shared - 1, 0) :])
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Rounds:
        return self
