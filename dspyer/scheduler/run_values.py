"""Run values: facts about a run that nodes can read like fields, such as `run.count`.

They come from the counts of a branch's lineage, which are kept up to date as commits are made.

- `run.count`: how many nodes have run in the lineage of the branch.
- `run.remaining`: how many steps it may take after this one, up to `max_steps`.
- `run.routing_reason`: the reason given by the last router that gave one.
- `run.NODE.visits`: how often a node has run in the lineage.
- `run.NODE.calls`: how often it has called predictors.
- `run.NODE.tool_calls`: how often it has called tools.
"""

from __future__ import annotations

from collections.abc import Collection

from dspyer.errors import suggestion
from dspyer.scheduler.lineage import CALL_KINDS, REASON_KEY, calls_key
from dspyer.scheduler.run_state import Branch
from dspyer.scheduler.topology import Topology

RUN_VALUES = ("count", "remaining", "routing_reason")
NODE_VALUES = ("visits", *CALL_KINDS)


def is_counted(name: str) -> bool:
    """Whether a run value needs the calls of predictors or tools to be counted."""
    return name.endswith((".calls", ".tool_calls"))


def run_value(name: str, topology: Topology, branch: Branch) -> int | str | None:
    """The value of a valid name that begins with `run.`, for a branch before its next commit.

    `run.routing_reason` is None if no router has given a reason; the others are numbers.
    """
    _, first, *rest = name.split(".")
    if rest:
        if rest[0] == "visits":
            return int(branch.counts.get(first, 0))
        return int(branch.counts.get(calls_key(rest[0], first), 0))
    if first == "count":
        return int(sum([branch.counts.get(node, 0) for node in topology.nodes]))
    if first == "remaining":
        return max(topology.max_steps - branch.step - 1, 0)
    reason: str | None = branch.counts.get(REASON_KEY)
    return reason


def run_value_problem(name: str, nodes: Collection[str]) -> str | None:
    """What is wrong with a name that begins with `run.`, given the names of the nodes; None for a valid one."""
    _, first, *rest = name.split(".")
    if not rest:
        if first in RUN_VALUES:
            return None
        known = ", ".join([f"run.{each}" for each in RUN_VALUES] + [f"run.NODE.{each}" for each in NODE_VALUES])
        return f"is no run value.{suggestion(first, RUN_VALUES)} There are {known}"
    if first not in nodes:
        return f"names no node {first!r}.{suggestion(first, nodes)}"
    if rest[0] not in NODE_VALUES:
        return f"is no value of a node.{suggestion(rest[0], NODE_VALUES)} There are {', '.join(NODE_VALUES)}"
    return None
