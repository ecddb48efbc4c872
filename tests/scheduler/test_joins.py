"""Joins compared with a reference that uses only commits and their parents; blame compared with the states."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import DELETE, END, START, Graph, ImmutableState, reducers
from dspyer.scheduler.lineage import LogEntry
from dspyer.scheduler.run_state import Execution
from dspyer.schema.schema import Schema
from tests.scheduler.simulation import graph, simulate

VALUES: list[Any] = [0, 1, 2, [1], [1, 2], DELETE, {"a": 1}, {"a": {"b": 1}}, {"a": DELETE, "c": 3}]


@st.composite
def layers(draw: st.DrawFn) -> dict[str, str]:
    """Edges of a graph without loops: each node forks to some nodes of the next layers, so that branches cross."""
    names = [[f"n{i}{k}" for k in range(draw(st.integers(1, 3)))] for i in range(draw(st.integers(2, 4)))]
    edges = {START: " ".join(names[0])}
    for i, layer in enumerate(names):
        ahead = [name for later in names[i + 1 : i + 3] for name in later]
        for name in layer:
            targets = draw(st.lists(st.sampled_from([*ahead, END]), min_size=1, max_size=3, unique=True))
            edges[name] = " ".join(targets)
    return edges


def behind(log: Sequence[LogEntry], head: int) -> set[int]:
    found: set[int] = set()
    work = [head]
    while work:
        place = work.pop()
        if place not in found:
            found.add(place)
            work += log[place].parents
    return found


def merged(log: Sequence[LogEntry], heads: Sequence[int], policy: str) -> ImmutableState | None:
    """The branches folded with `state.merge`; None if no single state has all of their common commits."""
    state, known = log[heads[0]].state, behind(log, heads[0])
    for head in heads[1:]:
        common = known & behind(log, head)
        last = common - {parent for place in common for parent in log[place].parents}
        if len(last) != 1:
            return None
        state = state.merge(log[head].state, policy=policy, base=log[last.pop()].state)
        known |= behind(log, head)
    return state


def leaves(value: Mapping[Any, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from leaves(inner, (*path, key))
        else:
            yield (*path, key), inner


POLICIES = st.sampled_from(["last_write_wins", "first_write_wins", "combine_lists"])


@given(layers(), POLICIES, st.integers(0, 2**32))
def test_a_join_is_the_three_way_merge_of_its_branches(edges: dict[str, str], policy: str, seed: int) -> None:
    def behave(execution: Execution) -> tuple[dict[str, Any], list[str]]:
        rng = random.Random(f"{seed}{execution.id}")
        return {key: rng.choice(VALUES) for key in "xn" if execution.node != START and rng.random() < 0.6}, []

    nodes = " ".join(name for name in edges if name != START)
    order = random.Random(seed)
    outcome = simulate(graph(nodes, edges, merge=policy), behave, order.randrange, {"x": 0, "n": {"a": 0}})
    log = list(outcome.run.log)
    assert outcome.run.ended
    for entry in log:
        if len(entry.parents) > 1:
            expected = merged(log, entry.parents, policy)
            if expected is not None:
                assert expected == entry.state
                first = [name for name in log[entry.parents[0]].state if name in expected]
                assert list(entry.state) == [*first, *(name for name in expected if name not in first)]


@given(layers(), POLICIES, st.integers(0, 2**32))
def test_blame_names_a_commit_that_left_the_value(edges: dict[str, str], policy: str, seed: int) -> None:
    def node(name: str) -> Any:
        def work(ctx: Any) -> dict[str, Any]:
            rng = random.Random(f"{seed}{ctx.execution}")
            return {key: rng.choice(VALUES) for key in "xn" if rng.random() < 0.6}

        return work

    reached = {START}
    built = Graph(merge=policy, inputs=["x", "n"])
    for source, targets in edges.items():  # the layers come in order
        if source in reached:
            reached |= set(targets.split())
            built.add_edge(source, targets.split())
    for name in edges:
        if name in reached - {START}:
            built.add_node(name, node(name))
    run = built.compile().run({"x": 0, "n": {"a": 0}})
    assert [commit.version for commit in run.commits] == list(range(len(run.commits)))
    assert len({commit.id for commit in run.commits}) == len(run.commits)
    for path, value in leaves(run.state):
        left: Any = run.at(run.blame(path).id)
        for key in path:
            left = left[key]
        assert left == value


def chain(*names: str) -> dict[str, str]:
    return dict(itertools.pairwise(names))


def writes(table: Mapping[str, Any], field: str = "x") -> Any:
    return lambda execution: ({field: table[execution.node]} if execution.node in table else {}, [])


@pytest.mark.parametrize("order", ["B C", "C B"])
def test_a_branch_that_restores_a_value_is_not_blamed_for_anothers(order: str) -> None:
    table = {"B": 2, "C": 1, "C2": 0}
    built = Graph(inputs=["x"])
    for name in ("B", "C", "C2"):
        built.add_node(name, lambda name=name: {"x": table[name]})
    built.add_edge(START, order.split()).add_path("C", "C2", END).add_edge("B", END)
    run = built.compile().run({"x": 0})
    assert run.state["x"] == 2
    assert run.blame("x").node == "B"


def test_the_author_of_a_conflict_is_not_a_branch_that_restored_the_value() -> None:
    edges = {START: "B C D", "B": END, **chain("C", "C2", END), "D": END}
    outcome = simulate(
        graph("B C C2 D", edges, merge="last_write_wins"), writes({"B": 2, "C": 1, "C2": 0, "D": 3}), inputs={"x": 0}
    )
    (conflict,) = outcome.conflicts
    assert conflict.values == (("B", 2), ("D", 3))


def test_the_base_of_branches_that_joined_before_is_their_joined_state() -> None:
    """B and C join at J, where C has restored what it wrote; then J forks, and T has joined no other branch yet."""
    edges = {START: "B C T", "B": "J", **chain("C", "C2", "J"), "J": "L R", "L": "Z", "R": "Z", "T": "Z", "Z": END}
    table = {"B": ["a", "x"], "C": ["a", "y"], "C2": ["a"], "L": ["a", "x", "l"], "R": ["a", "x", "r"]}
    topology = graph("B C C2 T J L R Z", edges, merge="combine_lists")
    outcome = simulate(topology, writes(table), inputs={"x": ["a"]})
    assert outcome.run.trunk_state["x"] == ["a", "x", "l", "r"]
    (conflict,) = outcome.conflicts
    assert conflict.base == ["a", "x"]


def test_a_conflict_lists_a_later_branch_that_overwrote_its_resolution() -> None:
    """The policy gives the base back, so that the third branch is the only one that changed it."""
    edges = {START: "B C D", "B": END, "C": END, "D": END}
    topology = graph("B C D", edges, merge=lambda conflict: conflict.base)
    outcome = simulate(topology, writes({"B": 1, "C": 2, "D": 3}), inputs={"x": 0})
    assert outcome.run.trunk_state["x"] == 3
    (conflict,) = outcome.conflicts
    assert (conflict.values, conflict.value, conflict.winner) == ((("B", 1), ("C", 2), ("D", 3)), 3, "D")


def test_a_conflict_lists_a_value_that_was_built_on_an_earlier_resolution() -> None:
    """A and B conflict, C builds on B, and D conflicts with the value of C."""
    built = Graph(merge="last_write_wins", inputs=["x"], outputs=["x"])
    for name in "ABCD":
        built.add_node(name, lambda name=name: {"x": name}, writes=["x"])
    built.add_edge(START, ["A", "B", "D"]).add_edge("A", END).add_edge("B", [END, "C"]).add_edge(["C", "D"], END)
    run = built.compile().run({"x": ""})
    (conflict,) = run.conflicts
    assert conflict.values == (("A", "A"), ("B", "B"), ("C", "C"), ("D", "D"))


@pytest.mark.parametrize(("last", "patch"), [(5, {"x": 5}), (DELETE, {"x": DELETE})])
def test_a_later_branch_may_replace_the_mapping_around_a_resolved_value(last: Any, patch: dict[str, Any]) -> None:
    """A and B differ at `x.a`; C builds on B, and leaves no `x.a` at all."""
    built = Graph(merge="last_write_wins", inputs=["x"], outputs=["x"])
    for name, value in {"A": {"a": 1}, "B": {"a": 2, "b": 2}, "C": last}.items():
        built.add_node(name, lambda value=value: {"x": value}, writes=["x"])
    built.add_node("J", lambda: None, writes=[])
    built.add_edge(START, ["A", "B"]).add_edge("A", "J").add_edge("B", ["J", "C"]).add_path("C", "J", END)
    run = built.compile().run({"x": {"a": 0}})
    (join,) = [commit for commit in run.commits if commit.node == "join:J"]
    assert run.state.to_dict() == ({} if last is DELETE else {"x": last})
    assert join.patch == patch
    assert run.blame("x").node == "C"
    (conflict,) = run.conflicts
    assert (conflict.values, conflict.winner) == ((("A", 1), ("B", 2), ("C", last)), "C")


def test_a_plain_value_in_the_middle_of_a_path_is_not_the_value_at_its_end() -> None:
    """L makes `x.a.b` 1; R and R2 restore what was there, 1 for `x.a`."""
    built = Graph(inputs=["x"], outputs=["x"], merge="last_write_wins")
    built.add_node("L", lambda: {"x": {"a": {"b": 1}}}, writes=["x"])
    built.add_node("R", lambda: {"x": {"a": 2}}, writes=["x"])
    built.add_node("R2", lambda: {"x": {"a": 1}}, writes=["x"])
    built.add_edge(START, ["L", "R"]).add_edge("L", END).add_path("R", "R2", END)
    run = built.compile().run({"x": {"a": 1}})
    assert not run.conflicts
    assert run.state.to_dict() == {"x": {"a": {"b": 1}}}
    assert run.blame("x.a.b").node == "L"


class LineageCounts(BaseModel):
    """A state whose fields all have reducers."""

    log: Annotated[list[str], reducers.extend] = []
    count: Annotated[int, reducers.increment] = 0


@given(layers(), st.integers(0, 2**32))
def test_crossing_branches_fold_each_update_once(edges: dict[str, str], seed: int) -> None:
    nodes = " ".join(name for name in edges if name != START)
    topology = graph(nodes, edges, schema=Schema.of(LineageCounts))

    def update(execution: Execution) -> tuple[dict[str, Any], list[str]]:
        return ({"log": [execution.id], "count": 1} if execution.node != START else {}), []

    outcome = simulate(topology, update, random.Random(seed).randrange)
    assert outcome.run.trunk_state["count"] == len(outcome.calls)
    made = [commit.id for commit in outcome.commits if commit.node in nodes.split()]
    assert sorted(outcome.run.trunk_state["log"]) == sorted(made)
