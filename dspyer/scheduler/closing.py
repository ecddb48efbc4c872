"""When a live field is closed: whom to tell that nothing more comes. Pure, like the rest of the scheduler.

A field is *open* while somebody may still write it: an execution that goes on, or what it may start, or one that waits
on an open field, for it goes on with the next entry. What is open is the least set with that property, so those who
wait for each other are not held up by each other. Of such a ring, the first in path order is released.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from dspyer.events import Path
from dspyer.scheduler.rounds import components
from dspyer.scheduler.topology import Topology

MayWrite = Callable[[str], Collection[str]]
"""The fields that a branch at a node may write, there or anywhere behind it."""


class Waiting(NamedTuple):
    """An execution that waits for the next entry of a live field."""

    execution: str
    node: str
    path: Path
    field: str


def reachable_writes(topology: Topology, writes: Mapping[str, Collection[str]], node: str) -> frozenset[str]:
    """The fields that a branch at a node may write, there or anywhere behind it.

    Args:
        topology: the graph.
        writes: the fields that each node writes.
        node: where the branch stands.
    """
    found: set[str] = set()
    seen = {node}
    work = [node]
    while work:
        place = work.pop()
        found.update(writes.get(place, ()))
        for target in topology.targets(place):
            if target not in seen:
                seen.add(target)
                work.append(target)
    return frozenset(found)


def released(waiting: Sequence[Waiting], able: Iterable[str], may_write: MayWrite) -> list[Waiting]:
    """Those to whom nothing more comes unless they go on.

    Args:
        waiting: the executions that wait, each without an entry to read.
        able: the nodes at which branches stand that can go on.
        may_write: what a branch at a node may still write.
    """
    open_fields: set[str] = set()
    for node in able:
        open_fields.update(may_write(node))
    stuck = sorted(waiting, key=lambda one: (one.path, one.execution))
    while True:
        going_on = [one for one in stuck if one.field in open_fields]
        if not going_on:
            break
        stuck = [one for one in stuck if one.field not in open_fields]
        for one in going_on:
            open_fields.update(may_write(one.node))
    held_by = {
        one.execution: [other.execution for other in stuck if other is not one and one.field in may_write(other.node)]
        for one in stuck
    }
    known = {one.execution: one for one in stuck}
    order = {name: number for number, name in enumerate(known)}
    return [
        known[min(ring, key=order.__getitem__)]
        for ring in components(list(known), held_by)
        if all(other in ring for name in ring for other in held_by[name])
    ]
