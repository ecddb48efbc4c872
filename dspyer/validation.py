"""What `compile()` checks of a whole graph: pure functions of its shape, each giving problems with their fix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from .errors import suggestion
from .rounds import Edge, Rounds
from .topology import END, START


class Facts(NamedTuple):
    """What is known of a graph before it runs.

    Attributes:
        nodes: names in the order of declaration.
        edges: every way that a branch may take.
        forks: for each node, the sets of targets that one transition may take together.
        reads: for each node, the fields that it needs.
        writes: for each node, the fields that it may write; None for unknown.
        given: fields that are there from the start.
        folded: fields of which parallel writes never conflict, or for which the user has said what happens.
    """

    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    forks: Mapping[str, Sequence[Sequence[str]]]
    reads: Mapping[str, Collection[str]]
    writes: Mapping[str, Collection[str] | None]
    given: Collection[str]
    folded: Collection[str]


def check_targets(facts: Facts) -> Iterator[str]:
    """Edges that name no node."""
    known = (*facts.nodes, START, END)
    for edge in facts.edges:
        for end in (edge.source, edge.target):
            if end not in known:
                hint = f"{suggestion(end, known)} Add it with add_node({end!r}, ...)"
                yield f"the edge {edge.source!r} -> {edge.target!r} names no node {end!r}.{hint}"


def check_paths(facts: Facts) -> Iterator[str]:
    """Nodes that no branch can come to, and nodes that no branch can leave."""
    if not any(edge.source == START for edge in facts.edges):
        yield "nothing starts: add an edge from START, for example add_edge(START, 'first')"
        return
    reached = reach(facts.edges, START)
    ends = reach([Edge(edge.target, edge.source) for edge in facts.edges], END)
    sources = {edge.source for edge in facts.edges}
    for node in facts.nodes:
        if node not in reached:
            yield f"node {node!r} is never reached: add an edge to it, or leave it out"
        elif node not in sources:
            yield f"node {node!r} is a dead end: add an edge from it, add_edge({node!r}, END) if the branch ends there"
        elif node not in ends:
            yield f"no way leads from node {node!r} to END, so a run would never end: add one, like a route to END"


def check_parallel_writers(facts: Facts, rounds: Rounds) -> Iterator[str]:
    """Pairs of nodes that may run in parallel and write one field, with nothing to say what a join makes of it."""
    reported: set[tuple[str, str, str]] = set()
    forward = [edge for edge in facts.edges if not rounds.goes_back(edge.source, edge.target)]
    for groups in facts.forks.values():
        for left, right in _pairs(groups):
            after_left, after_right = {left} | reach(forward, left), {right} | reach(forward, right)
            for a in facts.nodes:
                for b in facts.nodes:
                    if a not in after_left - after_right or b not in after_right - after_left:
                        continue
                    shared = set(facts.writes[a] or ()) & set(facts.writes[b] or ()) - set(facts.folded)
                    for field in sorted(shared):
                        first, second = sorted((a, b), key=facts.nodes.index)
                        if (first, second, field) not in reported:
                            reported.add((first, second, field))
                            yield (
                                f"nodes {first!r} and {second!r} run in parallel and both write {field!r}: give the "
                                f"field a reducer (Annotated[..., reducers.extend]), say what wins with Graph(..., "
                                f"merge={{{field!r}: 'last_write_wins'}}), or let one of them write another field"
                            )


def _pairs(groups: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    for i, group in enumerate(groups):
        for other in groups[i + 1 :]:
            yield from ((a, b) for a in group for b in other if a != b)


def check_reads(facts: Facts) -> Iterator[str]:
    """Reads that nothing can have written."""
    before: dict[str, set[str]] = {}
    backward = [Edge(edge.target, edge.source) for edge in facts.edges]
    for node, fields in facts.reads.items():
        missing = [field for field in fields if field not in facts.given]
        if not missing:
            continue
        earlier = before.setdefault(node, reach(backward, node) & set(facts.nodes))
        if any(facts.writes[other] is None for other in earlier):
            continue
        written = {field for other in earlier for field in facts.writes[other] or ()}
        for field in missing:
            if field not in written:
                later = [other for other in facts.nodes if field in (facts.writes[other] or ()) and other != node]
                hint = f"{', '.join(later)} writes it, but only afterwards" if later else "no node writes it"
                yield (
                    f"node {node!r} reads {field!r}, which nothing can have written by then ({hint}): make it an "
                    "input, give it a default, or put a node that writes it before"
                )


def reach(edges: Collection[Edge], start: str) -> set[str]:
    """The nodes that can be reached from one by at least one edge."""
    successors: dict[str, list[str]] = {}
    for edge in edges:
        successors.setdefault(edge.source, []).append(edge.target)
    found: set[str] = set()
    work = [start]
    while work:
        for target in successors.get(work.pop(), ()):
            if target not in found:
                found.add(target)
                work.append(target)
    return found
