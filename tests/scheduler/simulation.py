"""Runs the pure scheduler without a driver: the test decides which node finishes next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspyer import START, ImmutableState
from dspyer.events import Commit, MergedConflict
from dspyer.policies import Policies
from dspyer.scheduler.schedule import Execution, RunState, Target, Transition, advance, begin, plan, start
from dspyer.scheduler.topology import Edge, Topology
from dspyer.schema.schema import Schema

Behaviour = Callable[[Execution], tuple[Mapping[str, Any], Sequence[str | Target]]]
Choose = Callable[[int], int]


def graph(
    nodes: str,
    edges: Mapping[str, str],
    conditional: Mapping[str, str] | None = None,
    schema: Schema | None = None,
    merge: object = "last_write_wins",
    max_steps: int = 60,
) -> Topology:
    """A topology from names with spaces between them: `graph("A B", {"START": "A", "A": "B", "B": "END"})`."""
    fixed = [Edge(source, target) for source, targets in edges.items() for target in targets.split()]
    routed = [
        Edge(source, target, True) for source, targets in (conditional or {}).items() for target in targets.split()
    ]
    return Topology(
        "test", tuple(nodes.split()), (*fixed, *routed), schema or Schema.of(None), Policies.of(merge), {}, max_steps
    )


@dataclass
class Outcome:
    """The outcome of a simulated run."""

    run: RunState
    calls: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    @property
    def commits(self) -> list[Commit]:
        """All commits in canonical order; versions are compared elsewhere."""
        return sorted((entry.commit for entry in self.run.log), key=lambda commit: (commit.step, commit.branch))

    @property
    def conflicts(self) -> list[MergedConflict]:
        ordered = sorted(self.run.log, key=lambda entry: (entry.commit.step, entry.commit.branch))
        return [conflict for entry in ordered for conflict in entry.conflicts]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.calls)

    def summary(self) -> tuple[Any, ...]:
        """Everything that must not depend on the order of completion."""
        commits = [(c.id, c.node, c.branch, c.visit, c.step, dict(c.patch), c.parents, c.route) for c in self.commits]
        states = [
            entry.state.to_dict() for entry in sorted(self.run.log, key=lambda e: (e.commit.step, e.commit.branch))
        ]
        return self.run.ended, self.run.trunk_state.to_dict(), commits, states, self.conflicts, sorted(self.calls)


def simulate(
    topology: Topology,
    behave: Behaviour,
    choose: Choose = lambda count: 0,
    inputs: Mapping[str, Any] | None = None,
    eager: bool = True,
    width: int | None = None,
) -> Outcome:
    """Runs a graph.

    Args:
        topology: the graph.
        behave: a node's updates and targets (no targets: all its static ones).
        choose: which of `count` running executions finishes next.
        inputs: the first state.
        eager: whether everything that may start is started before something finishes.
        width: the most executions at the same time.
    """
    outcome = Outcome(start(topology))
    while True:
        while plan(outcome.run) and (width is None or len(outcome.run.running) < width):
            outcome.run, execution, _ = begin(outcome.run)
            if execution is not None and execution.node != START:
                outcome.calls.append(execution.node)
            if not eager and outcome.run.running:
                break
        running = list(outcome.run.running.values())
        if not running:
            return outcome
        running.sort(key=lambda execution: (execution.path, execution.node))
        execution = running[choose(len(running))]
        outcome.finished.append(execution.node)
        outcome.run, _ = advance(outcome.run, execution.id, step(topology, execution, behave, inputs or {}))


def step(
    topology: Topology, execution: Execution, behave: Behaviour, inputs: Mapping[str, Any]
) -> Transition | BaseException:
    """The outcome of one node, as a session makes it."""
    if execution.node == START:
        state = topology.schema.initial_state(inputs)
        updates, goto = behave(execution)
        return Transition(ImmutableState().diff(state), state, targets(topology, START, goto))
    try:
        updates, goto = behave(execution)
    except Exception as error:  # noqa: BLE001 - whatever a node of a test raises
        return error
    patch, state = topology.schema.commit(execution.branch.state, updates, node=execution.node, commit_id=execution.id)
    return Transition(patch, state, targets(topology, execution.node, goto))


def targets(topology: Topology, node: str, goto: Sequence[str | Target]) -> tuple[Target, ...]:
    chosen = goto or [edge.target for edge in topology.edges if edge.source == node and not edge.conditional]
    sends = [way for way in chosen if isinstance(way, Target)]
    names = dict.fromkeys(way for way in chosen if isinstance(way, str))
    return (*map(Target, names), *sends)
