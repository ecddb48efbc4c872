"""Run values: what a run knows of itself, from the commits behind a branch. They are counted as commits are made.

- `run.count`: how many nodes have run in the lineage of the branch.
- `run.remaining`: how many steps are left for it after this one, up to `max_steps`.
- `run.routing_reason`: why the last router that gave a reason chose its way.
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
    """Whether a run value is known only if calls are counted during the run."""
    return name.endswith((".calls", ".tool_calls"))


def run_value(name: str, topology: Topology, branch: Branch) -> int | str | None:
    """A run value.

    Args:
        name: its name, from `run.` on; one that `run_value_problem` lets pass.
        topology: the graph.
        branch: where the reader stands, before its own commit.

    Returns:
        A number; for `run.routing_reason` a text, or None if no router has given a reason.
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
    """Why a name is no run value; None if it is one.

    Args:
        name: a name from `run.` on.
        nodes: the names of the nodes.
    """
    _, first, *rest = name.split(".")
    if not rest:
        if first in RUN_VALUES:
            return None
        known = ", ".join([f"run.{each}" for each in RUN_VALUES] + [f"run.NODE.{each}" for each in NODE_VALUES])
        return f"is no run value.{suggestion(first, RUN_VALUES)} There are {known}"
    if first not in nodes:
        return f"names no node {first!r}.{suggestion(first, nodes)}"
    if rest[0] not in NODE_VALUES:
        return (
            f"is nothing that is known of a node.{suggestion(rest[0], NODE_VALUES)} There are {', '.join(NODE_VALUES)}"
        )
    return None
