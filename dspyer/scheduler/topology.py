"""A compiled graph as the scheduler sees it: names, edges and rules, but no code of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dspyer.policies import Policies
from dspyer.scheduler.loops import Edge, Rounds
from dspyer.schema.schema import Schema

START = "START"
END = "END"


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes, edges and rules of a graph.

    Attributes:
        name: name of the graph.
        nodes: names of the nodes in the order of declaration, without `START` and `END`.
        edges: every transition that a branch may take, in the order of declaration.
        schema: types and reducers of the fields.
        policies: the merge policies of conflicts, by path.
        join_policies: the merge policies of joins at single nodes, which replace `policies` there.
        max_steps: the longest chain of commits that a run may have.
        rounds: the loops of the graph.
    """

    name: str
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    schema: Schema
    policies: Policies
    join_policies: Mapping[str, Policies] = field(default_factory=dict)
    max_steps: int = 1000
    rounds: Rounds = field(default_factory=Rounds)
    _targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    _own_targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.rounds.nodes:
            object.__setattr__(self, "rounds", Rounds.of((START, *self.nodes, END), self.edges))
        object.__setattr__(self, "_targets", _by_source(self.edges))
        object.__setattr__(self, "_own_targets", _by_source(edge for edge in self.edges if not edge.on_error))

    def targets(self, node: str) -> tuple[str, ...]:
        """The nodes that a branch at `node` may go to, each once; those after a failure, too."""
        return self._targets.get(node, ())

    def own_targets(self, node: str) -> tuple[str, ...]:
        """The nodes that `node` itself may choose when it has returned, each once."""
        return self._own_targets.get(node, ())

    def has_policy(self, field: str) -> bool:
        """Whether a merge policy was chosen for a field: only then may nodes that run in parallel both write it."""
        return any(policies.covers(field) for policies in (self.policies, *self.join_policies.values()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Topology:
        return self  # frozen; optimizers copy programs deeply


def _by_source(edges: Iterable[Edge]) -> dict[str, tuple[str, ...]]:
    """The targets of each source, each once, in the order of the edges."""
    found: dict[str, dict[str, None]] = {}
    for edge in edges:
        found.setdefault(edge.source, {})[edge.target] = None
    return {source: tuple(names) for source, names in found.items()}
