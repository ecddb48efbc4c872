"""The join rule, case by case, and confluence: the order in which nodes finish does not change the run."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import DELETE, END, START, reducers
from dspyer.errors import MergeConflictError, StepLimitError
from dspyer.scheduler.schedule import Execution, RunState, Target, advance, begin, collapse_forks, plan, start
from dspyer.scheduler.topology import Edge, Rounds, Topology
from dspyer.schema.schema import Schema
from dspyer.values.frozen import FrozenDict
from tests.scheduler.simulation import Outcome, graph, simulate, step


def orders(topology: Topology, behave: Any, count: int = 12) -> Outcome:
    """Runs in several orders of completion, eager and not, and checks that all have the same outcome."""
    first = simulate(topology, behave)
    for seed in range(count):
        rng = random.Random(seed)
        eager, width = seed % 2 == 0, [None, 1, 2][seed % 3]
        other = simulate(topology, behave, lambda n, rng=rng: rng.randrange(n), eager=eager, width=width)  # type: ignore[misc]
        assert other.summary() == first.summary()
    return first


class Case(NamedTuple):
    """A graph, where its routers go at each visit, and how often each node then runs."""

    nodes: str
    edges: Mapping[str, str]
    conditional: Mapping[str, str]
    routes: Mapping[str, Sequence[str]]
    calls: str
    heads: str = ""


def router(routes: Mapping[str, Sequence[str]]) -> Any:
    """A behaviour that follows a fixed list of routes; a target in brackets is a Send."""

    def behave(execution: Execution) -> tuple[dict[str, Any], list[str | Target]]:
        node = execution.node
        ways = routes.get(node)
        chosen = ways[min(execution.visit, len(ways)) - 1].split() if ways else []
        goto = [Target(way.strip("()"), FrozenDict()) if way.startswith("(") else way for way in chosen]
        key = f"{node}{'.'.join(map(str, execution.path))}"
        return {} if node == START else {"seen": {f"{key}:{execution.visit}": 1}}, goto

    return behave


CASES = {
    # reference/execution.md, table 1, row by row
    "row1: fork in a loop runs in parallel": Case(
        "L B C J", {START: "L", "L": "B C", "B": "J", "C": "J"}, {"J": "L END"}, {"J": ["L", "L", "END"]}, "L3 B3 C3 J3"
    ),
    "row2: the same, J declared first": Case(
        "J L B C", {START: "L", "L": "B C", "B": "J", "C": "J"}, {"J": "L END"}, {"J": ["L", "L", "END"]}, "L3 B3 C3 J3"
    ),
    "row3: unequal branches in a loop": Case(
        "L J B B2 C",
        {START: "L", "L": "B C", "B": "B2", "B2": "J", "C": "J"},
        {"J": "L END"},
        {"J": ["L", "END"]},
        "L2 B2 B22 C2 J2",
    ),
    "row4: a node beside a loop that leads to it": Case(
        "X S L B C J",
        {START: "S", "S": "X L", "L": "B C", "B": "J", "C": "J", "X": "END"},
        {"J": "L X"},
        {"J": ["L", "X"]},
        "S1 L2 B2 C2 J2 X1",
    ),
    "row5: Sends of unequal length in a loop": Case(
        "L J W V U",
        {START: "L", "W": "J", "V": "U", "U": "J"},
        {"L": "W V", "J": "L END"},
        {"L": ["(W) (V)", "(W) (V)"], "J": ["L", "END"]},
        "L2 W2 V2 U2 J2",
    ),
    "row6: a Send to a node that is also reached normally": Case(
        "A B", {START: "A", "B": "A"}, {"A": "A B END"}, {"A": ["(A) (B)", "END"]}, "A3 B1"
    ),
    "row7: a loop beside an unrelated slow branch": Case(
        "S U L B C J",
        {START: "S", "S": "U L", "U": "END", "L": "B C", "B": "J", "C": "J"},
        {"J": "L END"},
        {"J": ["L", "END"]},
        "S1 U1 L2 B2 C2 J2",
    ),
    "row8: an exit that is reached only by going back": Case(
        "S L X body exit",
        {START: "S", "S": "L X", "body": "L", "X": "exit", "exit": "END"},
        {"L": "body exit"},
        {"L": ["body", "body", "exit"]},
        "S1 L3 X1 body2 exit1",
    ),
    "row9: a branch that goes round while its sibling does not": Case(
        "L B C J",
        {START: "L", "L": "B C", "B": "J"},
        {"C": "L J", "J": "END"},
        {"C": ["L", "J"], "J": ["END", "END"]},
        "L2 B1 C2 J1",
    ),
    # joins
    "unequal branches": Case(
        "A B B2 C J", {START: "A", "A": "B C", "B": "B2", "B2": "J", "C": "J", "J": "END"}, {}, {}, "A1 B1 B21 C1 J1"
    ),
    "a branch that is not taken": Case(
        "A B C J", {START: "A", "B": "J", "C": "J", "J": "END"}, {"A": "B C"}, {"A": ["B"]}, "A1 B1 J1"
    ),
    "nested forks": Case(
        "A B C D E F J",
        {START: "A", "A": "B C", "B": "D E", "D": "F", "E": "F", "F": "J", "C": "J", "J": "END"},
        {},
        {},
        "A1 B1 C1 D1 E1 F1 J1",
    ),
    "an edge across branches": Case(
        "A B C D J", {START: "A", "A": "B C", "B": "D J", "C": "D", "D": "J", "J": "END"}, {}, {}, "A1 B1 C1 D1 J1"
    ),
    "criss-cross joins": Case(
        "A B J K Z", {START: "A B", "A": "J K", "B": "J K", "J": "Z", "K": "Z", "Z": "END"}, {}, {}, "A1 B1 J1 K1 Z1"
    ),
    "START forks": Case("A B J", {START: "A B", "A": "J", "B": "J", "J": "END"}, {}, {}, "A1 B1 J1"),
    "a branch at END while others go on": Case(
        "A B C", {START: "A", "A": "END B", "B": "C", "C": "END"}, {}, {}, "A1 B1 C1"
    ),
    "Send inside a fork": Case(
        "A B W C J",
        {START: "A", "A": "B C", "W": "J", "C": "J", "J": "END"},
        {"B": "W"},
        {"B": ["(W) (W) (W)"]},
        "A1 B1 W3 C1 J1",
    ),
    "two Send groups to one node": Case(
        "A B W J",
        {START: "A B", "W": "J", "J": "END"},
        {"A": "W", "B": "W"},
        {"A": ["(W) (W)"], "B": ["(W)"]},
        "A1 B1 W3 J1",
    ),
    "Send beside an edge to the same node": Case(
        "A W J", {START: "A", "W": "J", "J": "END"}, {"A": "W"}, {"A": ["W (W)"]}, "A1 W2 J1"
    ),
    "two joins in one cycle": Case(
        "L A B J C D K",
        {START: "L", "L": "A B", "A": "J", "B": "J", "J": "C D", "C": "K", "D": "K"},
        {"K": "L END"},
        {"K": ["L", "END"]},
        "L2 A2 B2 J2 C2 D2 K2",
    ),
    "nested loops": Case(
        "O I B X",
        {START: "O", "O": "I", "B": "I"},
        {"I": "B X", "X": "O END"},
        {"I": ["B", "X", "B", "X"], "X": ["O", "END"]},
        "O2 I4 B2 X2",
    ),
    "a loop in one branch of a fork": Case(
        "A L B J", {START: "A", "A": "L B", "B": "J", "J": "END"}, {"L": "L J"}, {"L": ["L", "L", "J"]}, "A1 L3 B1 J1"
    ),
    # loops that are entered in several places: heads by conditional edges, in any order of declaration
    "a loop with two entries": Case(
        "R D F", {START: "D F", "D": "R", "F": "R"}, {"R": "D END"}, {"R": ["D", "END"]}, "D2 F1 R2", "D"
    ),
    "a debate": Case(
        "A B T", {START: "A B", "A": "T", "B": "T"}, {"T": "A B END"}, {"T": ["A B", "END"]}, "A2 B2 T2", "A B"
    ),
    "two that hand over": Case("A B", {START: "A B", "A": "B"}, {"B": "A END"}, {"B": ["A", "END"]}, "A2 B2", "A"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_join_rule(case: Case) -> None:
    """Each node runs once per round, in any order of completion and of declaration."""
    names = case.nodes.split()
    for nodes in itertools.islice(itertools.permutations(names), 0, 120, 11):
        topology = graph(" ".join(nodes), case.edges, case.conditional)
        outcome = orders(topology, router(case.routes))
        assert outcome.run.ended
        assert " ".join(f"{name}{outcome.counts[name]}" for name in sorted(outcome.counts)) == " ".join(
            sorted(case.calls.split())
        )
        assert len(outcome.run.trunk_state["seen"]) == sum(outcome.counts.values()), "every write is in the final state"
        if case.heads:
            assert sorted(topology.rounds.loops[0].heads) == case.heads.split()


def test_fork_in_a_loop_is_parallel() -> None:
    topology = graph("L B C J", {START: "L", "L": "B C", "B": "J", "C": "J"}, {"J": "L END"})
    run = simulate(topology, router({"J": ["L", "END"]}), width=None)
    assert run.finished == ["START", "L", "B", "C", "J", "L", "B", "C", "J"]
    state = start(topology)
    together = 0
    while plan(state) or state.running:
        while plan(state):
            state, _, _ = begin(state)
        together = max(together, len(state.running))
        if not state.running:
            break
        running = next(iter(state.running.values()))
        state, _ = advance(state, running.id, step(topology, running, router({"J": ["L", "END"]}), {}))
    assert together == 2


def test_a_branch_of_several_paths_keeps_them_when_it_forks() -> None:
    edges = {START: "A", "A": "B C D", "B": "J", "C": "J", "J": "K M", "K": "Z", "M": "Z", "D": "Z", "Z": "END"}
    outcome = orders(graph("A B C D J K M Z", edges), router({}))
    named = {commit.node: commit.branch for commit in outcome.commits}
    assert named == {
        "START": (),
        "A": (),
        "B": (0,),
        "C": (1,),
        "D": (2,),
        "join:J": (0,),
        "J": (0,),
        "K": (0, 0),
        "M": (0, 1),
        "join:Z": (),
        "Z": (),
    }


def test_the_least_round_decides_whether_a_node_can_still_be_reached() -> None:
    """From `a` the node `b` is reached in this round through `c`, although going back to `L` leads there too."""
    fixed = [Edge(*pair) for pair in (("START", "L"), ("L", "a"), ("L", "b"), ("a", "c"), ("c", "b"))]
    back = [Edge("a", "L", True), Edge("b", "L", True), Edge("b", "END", True)]
    for edges in ([*fixed, *back], [*back, *fixed]):
        rounds = Rounds(("START", "L", "a", "c", "b", "END"), edges)
        assert rounds.can_reach("a", (0,), "b", (0,))
        assert not rounds.can_reach("b", (0,), "b", (0,))
        assert rounds.can_reach("b", (0,), "b", (1,))


class Folded(BaseModel):
    """A state with reducers, which counts how often each update is applied."""

    log: Annotated[list[str], reducers.extend] = []
    count: Annotated[int, reducers.increment] = 0
    seen: Annotated[dict[str, int], reducers.update] = {}
    value: Any = None
    nested: dict[str, Any] = {}


def test_criss_cross_applies_each_update_once() -> None:
    schema = Schema.of(Folded)
    edges = {START: "A B", "A": "J K", "B": "J K", "J": "Z", "K": "Z", "Z": "END"}
    topology = graph("A B J K Z", edges, schema=schema, merge="raise")
    outcome = orders(topology, lambda e: ({"log": [e.node], "count": 1} if e.node != START else {}, []))
    assert outcome.run.trunk_state["log"] == ["A", "B", "J", "K", "Z"]
    assert outcome.run.trunk_state["count"] == 5


def test_conflict_names_both_writers_and_stops_the_run() -> None:
    topology = graph("A B C J", {START: "A", "A": "B C", "B": "J", "C": "J", "J": "END"}, merge="raise")
    outcome = orders(topology, lambda e: ({"x": e.node} if e.node in "BC" else {}, []))
    (failure,) = outcome.run.failures
    assert isinstance(failure.error, MergeConflictError)
    assert str(failure.error).startswith("Conflict detected at key 'x'")
    assert failure.error.writers == ("B", "C")
    assert "J" not in outcome.calls


def test_conflict_of_three_is_recorded_once_and_the_winner_stays_the_author() -> None:
    topology = graph(
        "A B C D J", {START: "A", "A": "B C D", "B": "J", "C": "J", "D": "J", "J": "END"}, merge="first_write_wins"
    )
    outcome = orders(topology, lambda e: ({"x": e.node} if e.node in "BCD" else {}, []))
    (conflict,) = outcome.conflicts
    assert conflict.values == (("B", "B"), ("C", "C"), ("D", "D"))
    assert (conflict.value, conflict.winner, conflict.join, conflict.base) == ("B", "B", "J", DELETE)


def test_failure_lets_siblings_finish_and_starts_nothing() -> None:
    def behave(execution: Execution) -> tuple[dict[str, Any], list[str]]:
        if execution.node in ("B", "D"):
            raise ValueError(execution.node)
        return {execution.node: 1}, []

    edges = {START: "A", "A": "B C D", "B": "J", "C": "J", "D": "J", "J": "END"}
    topology = graph("A B C D J", edges)
    for seed in range(6):
        rng = random.Random(seed)
        outcome = simulate(topology, behave, lambda n, rng=rng: rng.randrange(n))  # type: ignore[misc]
        assert [failure.node for failure in outcome.run.failures] == ["B", "D"]
        assert sorted(outcome.calls) == ["A", "B", "C", "D"]
        assert outcome.run.trunk_state.to_dict() == {"A": 1}
        assert [entry.commit.node for entry in outcome.run.log] == ["START", "A", "C"]


def test_step_limit_counts_the_longest_chain() -> None:
    loop = graph("L", {START: "L"}, {"L": "L END"}, max_steps=10)
    outcome = simulate(loop, router({"L": ["L"]}))
    (failure,) = outcome.run.failures
    assert isinstance(failure.error, StepLimitError)
    assert failure.error.calls == {"L": 10}
    wide = graph("A W J", {START: "A", "W": "J", "J": "END"}, {"A": "W"}, max_steps=10)
    assert simulate(wide, router({"A": ["(W) " * 50]})).run.ended


def test_wide_fan_out_is_one_step_and_keeps_order() -> None:
    schema = Schema.of(Folded)
    topology = graph("A W J", {START: "A", "W": "J", "J": "END"}, {"A": "W"}, schema=schema)

    def behave(execution: Execution) -> tuple[dict[str, Any], list[str | Target]]:
        if execution.node == "A":
            return {}, [Target("W", FrozenDict({"i": i})) for i in range(200)]
        return ({"log": [str(execution.overlay["i"])]} if execution.overlay else {}), []

    rng = random.Random(1)
    outcome = simulate(topology, behave, rng.randrange)
    assert outcome.run.trunk_state["log"] == [str(i) for i in range(200)]
    assert max(commit.step for commit in outcome.commits) == 4


def test_a_run_is_a_value_that_pickles_at_every_step() -> None:
    topology = graph("A B B2 C J", {START: "A", "A": "B C", "B": "B2", "B2": "J", "C": "J", "J": "END"})
    expected = simulate(topology, router({})).summary()
    state = start(topology)
    calls: list[str] = []
    while plan(state) or state.running:
        state = pickle.loads(pickle.dumps(state))
        if plan(state):
            state, execution, _ = begin(state)
            calls += [execution.node] if execution and execution.node != START else []
            continue
        running = next(iter(state.running.values()))
        before = pickle.loads(pickle.dumps(state))
        following, _ = advance(state, running.id, step(topology, running, router({}), {}))
        assert values(state) == values(before), "advance changes nothing that it was given"
        state = following
    assert Outcome(state, calls).summary() == expected


def values(state: RunState) -> tuple[Any, ...]:
    return (
        list(state.log),
        list(state.ready),
        dict(state.waiting.items()),
        dict(state.running.items()),
        state.positions.items(),
    )


def test_all_children_of_a_fork_collapse_into_their_parent() -> None:
    assert collapse_forks([((0, 2),), ((1, 2),)]) == ((),)
    assert collapse_forks([((0, 3),), ((1, 3),)]) == (((0, 3),), ((1, 3),))
    assert collapse_forks([((0, 2), (0, 2)), ((0, 2), (1, 2)), ((1, 2),)]) == ((),)


# --- confluence: random graphs, random writes, random orders

NODES = ["A", "B", "C", "D", "E", "F"]
WRITES: list[dict[str, Any]] = [
    {"value": 1},
    {"value": 2},
    {"value": DELETE},
    {"nested": {"a": 1}},
    {"nested": {"a": {"b": 2}}},
    {"nested": {"a": DELETE, "c": 3}},
    {"nested": {"c": 4}},
    {},
]


class Plan(NamedTuple):
    """A random graph and what its nodes do at each visit."""

    nodes: list[str]
    edges: dict[str, str]
    conditional: dict[str, str]
    routes: dict[str, list[str]]
    writes: dict[str, int]
    merge: str


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    nodes = NODES[: draw(st.integers(2, 6))]
    edges = {START: " ".join(draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=2, unique=True)))}
    conditional: dict[str, str] = {}
    routes: dict[str, list[str]] = {}
    for i, node in enumerate(nodes):
        forward = [*nodes[i + 1 :], END]
        if draw(st.booleans()):
            edges[node] = " ".join(draw(st.lists(st.sampled_from(forward), min_size=1, max_size=3, unique=True)))
            continue
        ways = draw(st.lists(st.sampled_from([*nodes, END]), min_size=1, max_size=3, unique=True))
        out = draw(st.sampled_from(forward))
        conditional[node] = " ".join(dict.fromkeys([*ways, out]))
        chosen = []
        for _ in range(draw(st.integers(0, 2))):
            some = draw(st.lists(st.sampled_from(ways), min_size=1, max_size=2, unique=True))
            sends = draw(st.booleans())
            chosen.append(" ".join(f"({way})" if sends and way != END else way for way in some))
        routes[node] = [*chosen, out]
    return Plan(
        nodes,
        edges,
        conditional,
        routes,
        {node: draw(st.integers(0, len(WRITES) - 1)) for node in nodes},
        draw(st.sampled_from(["last_write_wins", "first_write_wins", "combine_lists", "raise"])),
    )


@given(plans(), st.integers(0, 2**32))
def test_confluence(plan: Plan, seed: int) -> None:
    """State, commits, conflicts and calls of a completed run depend on the graph and the outcomes alone."""
    schema = Schema.of(Folded)
    topology = graph(" ".join(plan.nodes), plan.edges, plan.conditional, schema, plan.merge, max_steps=40)
    route = router(plan.routes)

    def behave(execution: Execution) -> tuple[dict[str, Any], list[str | Target]]:
        _, goto = route(execution)
        if execution.node == START:
            return {}, goto
        update = {"log": [execution.id], "count": 1, **WRITES[plan.writes[execution.node]]}
        return update, goto

    first = simulate(topology, behave)
    for order in range(6):
        rng = random.Random(seed + order)
        width = [None, 1, 2, 3][order % 4]
        other = simulate(topology, behave, lambda n, rng=rng: rng.randrange(n), eager=order % 2 == 0, width=width)  # type: ignore[misc]
        if not first.run.failures:
            assert other.summary() == first.summary()
        else:
            assert other.run.failures
    if first.run.ended:
        assert first.run.trunk_state["count"] == len(first.calls), "each increment is applied exactly once"
        assert sorted(first.run.trunk_state["log"]) == sorted(
            commit.id for commit in first.commits if commit.node in NODES
        )
        assert len({(c.step, c.branch) for c in first.commits}) == len(first.commits)
        assert len({c.id for c in first.commits}) == len(first.commits)
        assert first.commits[-1].branch == (), "at the end all branches are the trunk again"
    assert first.run.ended or first.run.failures, "no two branches ever wait for each other"
