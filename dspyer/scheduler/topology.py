"""A compiled graph as the scheduler sees it: names, edges and rules, but no code of nodes."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

from dspyer.errors import suggestion
from dspyer.policies import Policies
from dspyer.schema.schema import Schema
from dspyer.values.scalars import Uncopied

# --- the loops of a graph, and which positions of branches can still reach which

# A *loop* is a strongly connected component of the graph. Its rounds begin at its *heads*: at the only node that edges
# from outside enter; if there are several, at those whose every edge from inside the loop is conditional; if that is
# none of them, at the first declared. An edge from inside the loop to a head *goes back*: it starts the next round. The
# same search without these edges finds the loops inside the loop. This is a loop nesting forest, found by repeated
# search for components as in Bourdoncle, "Efficient Chaotic Iteration Strategies with Widenings" (FMPA 1993).
#
# The position of a branch is a node and a *round*: one counter per loop around the node, outermost first. Going back
# adds 1 to the counter of that loop, leaving a loop drops its counter, entering one appends 0. Rounds of one node are
# compared lexicographically. These are the pointstamps of timely dataflow (Murray et al., "Naiad: A Timely Dataflow
# System", SOSP 2013, section 2.3).


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


Passes = Callable[[Edge, Round], bool]
"""Says that a branch takes an edge into a round of its target."""


class Loop(NamedTuple):
    """A strongly connected component of the graph: its nodes in the order of declaration, those that begin a round."""

    nodes: tuple[str, ...]
    heads: tuple[str, ...]


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


def _successors(edges: Collection[Edge]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for edge in edges:
        found.setdefault(edge.source, []).append(edge.target)
    return found


def find_loops(nodes: Sequence[str], edges: Collection[Edge]) -> tuple[Loop, ...]:
    """Finds all loops, outer before inner."""
    order = {node: i for i, node in enumerate(nodes)}
    found: list[tuple[int, int, Loop]] = []  # with the depth, and the place of the first node
    pending: list[tuple[list[str], list[Edge], int]] = [(list(nodes), list(edges), 0)]
    while pending:
        part, inside, depth = pending.pop()
        for component in components(part, _successors(inside)):
            members = set(component)
            within = [edge for edge in inside if edge.source in members and edge.target in members]
            if not within:
                continue
            loop = _loop(sorted(members, key=order.__getitem__), members, within, edges)
            found.append((depth, order[loop.nodes[0]], loop))
            forward = [edge for edge in within if edge.target not in loop.heads]
            pending.append((list(loop.nodes), forward, depth + 1))
    return tuple([loop for *_, loop in sorted(found)])


def _loop(members: list[str], inside: set[str], within: list[Edge], edges: Collection[Edge]) -> Loop:
    entered = {edge.target for edge in edges if edge.target in inside and edge.source not in inside}
    entries = tuple(node for node in members if node in entered)
    heads = entries
    if len(entries) != 1:
        fixed = {edge.target for edge in within if not edge.conditional}
        heads = tuple(node for node in entries if node not in fixed) or (entries or tuple(members))[:1]
    return Loop(tuple(members), heads)


class Rounds:
    """The loops of a graph, and how edges change the rounds of branches.

    Built once per graph. Reachability is computed when it is first needed, and kept. For a target outside of loops, a
    bit mask per source is enough; for one inside a loop, the least round in which each source reaches it is needed too.

    Args:
        nodes: the nodes, in the order of declaration.
        edges: the edges, in that order.
    """

    def __init__(self, nodes: Iterable[str], edges: Collection[Edge]) -> None:
        self.edges = tuple(edges)
        around: dict[str, list[int]] = {node: [] for node in nodes}
        self.loops = find_loops([*around], edges)
        for i, loop in enumerate(self.loops):
            for node in loop.nodes:
                around[node].append(i)
        self._around = {node: tuple(loops) for node, loops in around.items()}  # the outermost loop first
        self._moves = {(edge.source, edge.target): self._move(edge.source, edge.target) for edge in edges}
        self._out: dict[str, list[Edge]] = {}
        for edge in edges:
            self._out.setdefault(edge.source, []).append(edge)
        self._reach: dict[str, dict[str, tuple[int, Round]]] = {}  # `_least_rounds` of each source
        self._bits: dict[str, int] = {}  # the bit of each node
        self._below: dict[str, int] = {}  # the bits of each node and of all that it can reach

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
        """Return whether the edge starts the next round of a loop."""
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
        """Return whether a branch at `source` in round `at` can reach `target` in round `by` or an earlier one."""
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
        """Return whether edges lead from a node to another one that is in no loop."""
        if not self._below:
            self._bits = {node: 1 << number for number, node in enumerate(self._around)}
            self._below = descendants(list(self._around), _successors(self.edges), self._bits)
        return source != target and bool(self._below[source] & self._bits[target])

    def least(self, source: str, at: Round, passes: Passes | None = None) -> dict[str, Round]:
        """The least round in which a branch reaches each node, along edges that let it pass into these rounds."""
        least: dict[str, Round] = {}
        work = [(source, at)]
        while work:
            node, at = work.pop()
            for edge in self._out.get(node, ()):
                target, found = edge.target, self.move(node, at, edge.target)
                if (target not in least or found < least[target]) and (passes is None or passes(edge, found)):
                    least[target] = found
                    work.append((target, found))
        return least

    def _least_rounds(self, source: str) -> dict[str, tuple[int, Round]]:
        """For each node that `source` can reach: the number of loops around both, and the least round in which it does.

        The round is given from the innermost shared loop inwards, relative to a source in round zero. That is enough:
        on a least path the counters of outer shared loops do not change, because the innermost shared loop is strongly
        connected, and the counters of loops further in do not depend on the round of the source.
        """
        around = self._around[source]
        result = {}
        for target, at in self.least(source, self.first(source)).items():
            shared = sum(1 for a, b in zip(around, self._around[target], strict=False) if a == b)
            result[target] = (shared, at[max(shared - 1, 0) :])
        return result


START = "START"
"""Where a run begins: `add_edge(START, "first")`."""

END = "END"
"""Where a branch ends: `add_edge("last", END)`."""

NO_ROUNDS = Rounds((), ())

ERROR_MARK = "✕"
"""In the label of an edge, what comes before the errors that it takes."""


@dataclass(frozen=True, slots=True)
class Topology(Uncopied):  # optimizers copy programs deeply
    """Nodes, edges and rules of a graph.

    Attributes:
        name: name of the graph.
        nodes: names of the nodes in the order of declaration, without `START` and `END`.
        edges: every transition that a branch may take, in the order of declaration.
        schema: types and reducers of the fields.
        policies: the merge policies of conflicts, by path.
        join_policies: the merge policies of joins at single nodes, which replace `policies` there.
        max_steps: the longest chain of commits that a run may have.
        uncounted: nodes whose commits do not count towards that.
        rounds: the loops of the graph.
    """

    name: str
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    schema: Schema
    policies: Policies
    join_policies: Mapping[str, Policies] = dataclasses.field(default_factory=dict)
    max_steps: int = 1000
    uncounted: frozenset[str] = frozenset()
    rounds: Rounds = dataclasses.field(default=NO_ROUNDS, compare=False)  # those that follow from the edges
    _targets: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, repr=False)
    _own_targets: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.rounds is NO_ROUNDS:
            object.__setattr__(self, "rounds", Rounds((START, *self.nodes, END), self.edges))
        object.__setattr__(self, "_targets", _by_source(self.edges))
        object.__setattr__(self, "_own_targets", _by_source(edge for edge in self.edges if not edge.on_error))

    def targets(self, node: str) -> tuple[str, ...]:
        """The nodes that a branch at `node` may go to, each once; those after a failure, too."""
        return self._targets.get(node, ())

    def own_targets(self, node: str) -> tuple[str, ...]:
        """The nodes that `node` itself may choose when it has returned, each once."""
        return self._own_targets.get(node, ())

    def has_policy(self, field: str) -> bool:
        """Tell if a merge policy was chosen for a field: only then may nodes that run in parallel both write it."""
        return any(policies.covers(field) for policies in (self.policies, *self.join_policies.values()))


def _by_source(edges: Iterable[Edge]) -> dict[str, tuple[str, ...]]:
    """The targets of each source, each once, in the order of the edges."""
    found: dict[str, dict[str, None]] = {}
    for edge in edges:
        found.setdefault(edge.source, {})[edge.target] = None
    return {source: tuple(names) for source, names in found.items()}


# --- the checks of `compile()` that concern a graph as a whole: each yields problems as texts that say how to fix them

# Sets of nodes or fields are bit masks, so that each check is one pass along the edges also for large graphs.


class GraphFacts(NamedTuple):
    """The facts about a graph that its checks need.

    Attributes:
        nodes: names in the order of declaration.
        edges: every transition that a branch may take.
        forks: for each node, the sets of targets that one transition may take together.
        reads: for each node, the fields that it needs.
        writes: for each node, the fields that it may write; None for unknown.
        given: fields that have a value from the start.
        folded: fields with a reducer or a merge policy: parallel writes to them are meant.
        left_out: inputs without a default that a run may leave out.
        commands: nodes that may return a `Command` and do not declare its targets.
        no_nodes: names of other parts of the graph, with what to say if an edge names one.
    """

    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    forks: Mapping[str, Sequence[Sequence[str]]]
    reads: Mapping[str, Collection[str]]
    writes: Mapping[str, Collection[str] | None]
    given: Collection[str]
    folded: Collection[str]
    left_out: Collection[str] = ()
    commands: Collection[str] = ()
    no_nodes: Mapping[str, str] = MappingProxyType({})


_OF_LANGGRAPH = {
    "__start__": " It is the START of LangGraph: import START from dspyer",
    "__end__": " It is the END of LangGraph: import END from dspyer",
}


def check_targets(facts: GraphFacts) -> Iterator[str]:
    """Edges from or to unknown nodes, and a missing edge from `START`."""
    if not any(edge.source == START for edge in facts.edges):
        yield "nothing starts: add an edge from START, for example add_edge(START, 'first')"
    known = {*facts.nodes, START, END}
    for edge in facts.edges:
        kind = "error edge" if edge.on_error else "edge"
        if edge.source == END:
            yield f"the edge 'END' -> {edge.target!r} begins where a branch ends: begin it at a node, or at START"
        if edge.target == START:
            yield f"the {kind} {edge.source!r} -> 'START' goes to the start: name the first node itself, or END"
        for end in (edge.source, edge.target):
            if end not in known:
                hint = facts.no_nodes.get(end) or _OF_LANGGRAPH.get(end)
                hint = hint or f"{suggestion(end, known)} Add it with add_node({end!r}, ...)"
                yield f"the {kind} {edge.source!r} -> {edge.target!r} names no node {end!r}.{hint}"


def repaired_edges(edges: Collection[Edge], nodes: Collection[str]) -> list[Edge]:
    """The edges as they were probably meant, so that one wrong edge does not hide problems of the others.

    An unknown name is replaced by the known one most like it. If there is none, an unknown target becomes `END`, and an
    unknown source `START`.
    """
    found: dict[tuple[object, ...], Edge] = {}
    for edge in edges:
        source = edge.source if edge.source in nodes or edge.source == START else _nearest(edge.source, nodes, START)
        target = edge.target if edge.target in nodes or edge.target == END else _nearest(edge.target, nodes, END)
        key = (source, target, edge.on_error, edge.into)
        if (source, target) == (edge.source, edge.target):
            found[key] = edge
        elif edge.source == START or (source, target) != (START, END):
            found.setdefault(key, edge._replace(source=source, target=target, conditional=True))
    return list(found.values())


def _nearest(name: str, nodes: Collection[str], other: str) -> str:
    known = [*nodes, START, END]
    near = [node for node in known if node.lower() == name.lower()] or get_close_matches(name, nodes, n=1)
    return near[0] if near and near[0] != (END if other == START else START) else other


def with_missing_starts(edges: Collection[Edge], nodes: Sequence[str]) -> list[Edge]:
    """The edges, plus edges from `START` until all nodes are reached: `check_paths` has reported the unreached ones."""
    found = list(edges)
    entered = {edge.target for edge in edges}
    successors = _successors(edges)
    reached = _reached(successors, [START], set())
    for node in sorted(nodes, key=entered.__contains__):  # nodes that no edge leads to come first
        if node not in reached:
            found.append(Edge(START, node, True))
            reached.add(node)
            _reached(successors, [node], reached)
    return found


def check_paths(facts: GraphFacts) -> Iterator[str]:
    """Nodes that no branch can reach, and nodes from which no branch can reach `END`."""
    starts = any(edge.source == START for edge in facts.edges)
    reached = _reached(_successors(facts.edges), [START], set()) if starts else set(facts.nodes)
    sources = {edge.source for edge in facts.edges if not edge.on_error}
    caught = {edge.source for edge in facts.edges if edge.on_error}
    backwards: dict[str, list[str]] = {}
    for edge in facts.edges:
        backwards.setdefault(edge.target, []).append(edge.source)
    # A dead end is reported itself; the nodes that lead to it reach END once it does, so they are no problem of their
    # own.
    ends = _reached(backwards, [END, *(node for node in facts.nodes if node not in sources)], set())
    for node in facts.nodes:
        if node not in reached:
            handled = next((edge.target for edge in facts.edges if edge.on_error and edge.source == node), None)
            hint = (
                ""
                if handled is None
                else (
                    f"; if it handles failures of {handled!r}, the arguments are the other way round: "
                    f"add_error_edge({handled!r}, {node!r})"
                )
            )
            yield f"node {node!r} is never reached: add an edge to it, or leave it out{hint}"
        elif node not in sources:
            hint = "; declare where its Command goes with add_node(goto=[...])" if node in facts.commands else ""
            when = " unless it fails, since an error edge is its only edge" if node in caught else ""
            yield (
                f"node {node!r} is a dead end{when}: add an edge from it, add_edge({node!r}, END) if the branch ends "
                f"there{hint}"
            )
        elif node not in ends:
            yield f"no way leads from node {node!r} to END, so a run would never end: add one, like a route to END"


def check_parallel_writers(facts: GraphFacts, rounds: Rounds) -> Iterator[str]:
    """Pairs of nodes that may write one field in parallel, where neither a reducer nor a policy says how to join it."""
    writers: dict[str, int] = {}  # for each field the set of nodes that write it, bit i for the i-th node
    failures: dict[str, set[str]] = {}  # the fields into which error edges write, by source
    for edge in facts.edges:
        if edge.into is not None:
            failures.setdefault(edge.source, set()).add(edge.into)
    folded = set(facts.folded)
    for number, node in enumerate(facts.nodes):
        for field in {*(facts.writes[node] or ()), *failures.get(node, ())} - folded:
            writers[field] = writers.get(field, 0) | 1 << number
    contested = {field: nodes for field, nodes in writers.items() if nodes & (nodes - 1)}  # more than one bit
    forks = [groups for groups in facts.forks.values() if len(groups) > 1]
    if not contested or not forks:
        return
    reported: set[tuple[str, str, str]] = set()
    after = _writers_after(facts, rounds, contested)
    for groups in forks:
        for left, right in _pairs(groups):
            mine, other = after.get(left, 0), after.get(right, 0)
            # What both sides reach comes after their join, so it is parallel to neither.
            for a, b, field in _parallel_writes(mine & ~other, other & ~mine, contested):
                first, second = facts.nodes[min(a, b)], facts.nodes[max(a, b)]
                if (first, second, field) not in reported:
                    reported.add((first, second, field))
                    failed = any(field in failures.get(node, ()) for node in (first, second))
                    typed = "list[Failure], reducers.append" if failed else "..., reducers.extend"
                    yield (
                        f"nodes {first!r} and {second!r} run in parallel and both write {field!r}: give the "
                        f"field a reducer (Annotated[{typed}]), say what wins with Graph(..., "
                        f"merge={{{field!r}: 'last_write_wins'}}), or let one of them write another field"
                    )


def _writers_after(facts: GraphFacts, rounds: Rounds, contested: Mapping[str, int]) -> dict[str, int]:
    """For each node, the writers of contested fields among it and the nodes that a branch reaches in the same round."""
    writing = 0
    for nodes in contested.values():
        writing |= nodes
    own = {node: writing & 1 << number for number, node in enumerate(facts.nodes)}
    forward = [edge for edge in facts.edges if not rounds.goes_back(edge.source, edge.target)]
    return descendants((*facts.nodes, START, END), _successors(forward), own)


def _parallel_writes(left: int, right: int, contested: Mapping[str, int]) -> Iterator[tuple[int, int, str]]:
    """(number of a node of the left set, of a node of the right set, field that both write), in declaration order."""
    if not (left and right):
        return
    both = {field: nodes for field, nodes in contested.items() if nodes & left and nodes & right}
    if both:
        for a in _bits(left):
            shared = {field: nodes & right for field, nodes in both.items() if nodes >> a & 1}
            partners = 0
            for nodes in shared.values():
                partners |= nodes
            for b in _bits(partners):
                yield from ((a, b, field) for field in sorted(shared) if shared[field] >> b & 1)


def _bits(nodes: int) -> Iterator[int]:
    """The numbers of the bits that are set, lowest first."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


def _pairs(groups: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    for group, other in combinations(groups, 2):
        yield from ((a, b) for a in group for b in other if a != b)


def check_reads(facts: GraphFacts) -> Iterator[str]:
    """Reads of fields that no node before can have written."""
    return (
        f"node {node!r} reads {field!r}, {unwritten_reason(facts, node, field)}" for node, field in unset_reads(facts)
    )


def unset_reads(facts: GraphFacts) -> Iterator[tuple[str, str]]:
    """(node, field) for each read of a field that no node before can have written."""
    earlier = WritesBefore(facts.edges, facts.writes)
    for node, fields in facts.reads.items():
        missing = [field for field in fields if field not in facts.given]
        if missing and not earlier.unknown(node):
            yield from ((node, field) for field in missing if not earlier.wrote(node, field))


def unwritten_reason(facts: GraphFacts, node: str, field: str) -> str:
    """The reason why a field is unset at a node, and how to fix it, as the rest of a sentence."""
    if field in facts.left_out:
        return (
            f"an input that a run may leave out: name it in required=[{field!r}], give the field a default, or take it "
            "as a parameter with a default"
        )
    later = [other for other in facts.nodes if field in (facts.writes[other] or ()) and other != node]
    failed = {edge.source for edge in facts.edges if edge.on_error and edge.target == node}
    when = "not when it fails" if failed.intersection(later) else "only afterwards"
    alone = f"only {node} itself writes it" if field in (facts.writes.get(node) or ()) else "no node writes it"
    hint = f"{', '.join(later)} writes it, but {when}" if later else alone
    return (
        f"which nothing can have written by then ({hint}): make it an input, Graph(..., inputs=[..., {field!r}]), give "
        "it a default, or put a node that writes it before"
    )


class WritesBefore:
    """The fields that may have been written before each node starts. `writes` is None for a node that does not say.

    After a failure the node has written nothing but the failure, so an error edge passes on less than another edge.
    """

    def __init__(self, edges: Collection[Edge], writes: Mapping[str, Collection[str] | None]) -> None:
        self._bits: dict[str, int] = {}
        own = {node: self._mask(fields) for node, fields in writes.items()}
        successors: dict[str, list[tuple[str, int]]] = {}  # by source: the target, and what is written on the way
        for edge in edges:
            written = own.get(edge.source, 0)
            if edge.on_error:
                written = self._mask(() if edge.into is None else (edge.into,))
            successors.setdefault(edge.source, []).append((edge.target, written))
        self._before = {START: 0}
        work = deque([START])
        while work:
            source = work.popleft()
            for target, written in successors.get(source, ()):
                known = self._before.get(target)
                grown = self._before[source] | written | (known or 0)
                if grown != known:
                    self._before[target] = grown
                    work.append(target)

    def _mask(self, fields: Collection[str] | None) -> int:
        if fields is None:
            return 1  # the lowest bit means: unknown fields
        return sum(1 << self._bits.setdefault(field, len(self._bits) + 1) for field in set(fields))

    def unknown(self, node: str) -> bool:
        """Return whether a node before this one does not say what it writes."""
        return bool(self._before.get(node, 0) & 1)

    def wrote(self, node: str, field: str) -> bool:
        """Return whether a node before this one may have written a field."""
        return field in self._bits and bool(self._before.get(node, 0) >> self._bits[field] & 1)


def _reached(successors: Mapping[str, Collection[str]], work: list[str], found: set[str]) -> set[str]:
    """Adds to `found` what can be reached from the nodes in `work`, passing only through new nodes."""
    while work:
        for target in successors.get(work.pop(), ()):
            if target not in found:
                found.add(target)
                work.append(target)
    return found
