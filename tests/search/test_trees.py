"""S002-37: `beam` and `mcts` against the same searches written by hand, whatever the order in which trials end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspyer import Graph, Run
from dspyer.search import Tree, beam, mcts
from tests.search.kit import MODES, Extend, Rater, run

SEEDS = st.integers(0, 10**6)


@dataclass
class Node:
    """A trial of a search by hand."""

    name: str
    path: str
    reward: float | None = None
    done: bool = False
    value: float = 0.0
    visits: int = 1
    children: list[Node] = field(default_factory=list)
    dead: bool = False  # all below it is tried


class ByHand:
    """A tree that is searched by hand, with the module of a test."""

    def __init__(self, module: Extend) -> None:
        self.module = module
        self.rater = Rater(module.seed)
        self.root = Node("0", "r")
        self.made: list[Node] = []

    def make(self, parent: Node, place: int) -> Node:
        node = Node(f"{parent.name}.{place}", parent.path)
        try:
            node.path = self.module.extended(parent.path, len(self.made))
            node.reward = node.value = self.rater.reward(node.path)
            node.done = self.rater.done(node.path)
        except ValueError:
            node.done = True
        self.made.append(node)
        return node

    def best(self) -> Node | None:
        rated = [node for node in self.made if node.reward is not None]
        pool = [node for node in rated if node.done] or rated
        best = None
        for node in pool:
            if best is None or (node.reward or 0) > (best.reward or 0):
                best = node
        return best


def beam_by_hand(module: Extend, width: int, branch: int, depth: int, threshold: float | None) -> ByHand:
    search = ByHand(module)
    level = [search.root]
    for _ in range(depth):
        made = [search.make(parent, place) for parent in level for place in range(branch)]
        if threshold is not None and any(one.done and (one.reward or 0) >= threshold for one in made if one.reward):
            break
        alive = [node for node in made if not node.done]
        level = sorted(alive, key=lambda node: node.reward or 0.0, reverse=True)[:width]
        if not level:
            break
    return search


def mcts_by_hand(module: Extend, branch: int, depth: int, max_trials: int, c: float, per_round: int) -> ByHand:
    search = ByHand(module)
    search.root.visits = 0
    while len(search.made) < max_trials:
        picked: list[tuple[list[Node], int]] = []
        extra: dict[str, int] = {}
        pending: dict[str, int] = {}
        while len(picked) < min(per_round, max_trials - len(search.made)):
            found = select(search.root, [search.root], branch, depth, c, extra, pending)
            if found is None:
                break
            picked.append(found)
            above, _ = found
            for node in above:
                extra[node.name] = extra.get(node.name, 0) + 1
            pending[above[-1].name] = pending.get(above[-1].name, 0) + 1
        if not picked:
            break
        for above, place in picked:
            node = search.make(above[-1], place)
            above[-1].children.append(node)
            for one in above:
                one.visits += 1
                one.value += node.value
    return search


def select(
    node: Node, above: list[Node], branch: int, depth: int, c: float, extra: dict[str, int], pending: dict[str, int]
) -> tuple[list[Node], int] | None:
    count = len(node.children) + pending.get(node.name, 0)
    if count < branch:
        return above, count
    parent_visits = node.visits + extra.get(node.name, 0)

    def score(child: Node) -> float:
        visits = child.visits + extra.get(child.name, 0)
        return child.value / visits + c * math.sqrt(math.log(parent_visits) / visits)

    order = sorted(range(len(node.children)), key=lambda index: (-score(node.children[index]), index))
    for index in order:
        child = node.children[index]
        if child.done or child.name.count(".") == depth:
            continue
        found = select(child, [*above, child], branch, depth, c, extra, pending)
        if found is not None:
            return found
    return None


def check(graph: Graph, module: Extend, by_hand: ByHand, mode: str, max_concurrency: int) -> Run:
    calls = [*module.calls]
    module.calls.clear()
    done = run(graph.compile(max_concurrency=max_concurrency), {"path": "r"}, mode)
    assert sorted(module.calls) == sorted(calls)
    best = by_hand.best()
    if best is None:
        assert done.status == "failed"
        return done
    assert done.status == "completed", done.error
    entries = done.state["tree"]
    assert [*entries] == [node.name for node in by_hand.made]
    for node in by_hand.made:
        entry = entries[node.name]
        assert (entry["reward"], entry["done"]) == (node.reward, node.done)
        assert (entry["value"], entry["visits"]) == (pytest.approx(node.value), node.visits)
    assert (done.state["best"], done.state["path"]) == (best.name, best.path)
    return done


@pytest.mark.parametrize("mode", MODES)
@given(seed=SEEDS, width=st.integers(1, 3), branch=st.integers(1, 3), depth=st.integers(1, 4), most=st.integers(1, 4),
       threshold=st.sampled_from([None, 0.5, 1.0]))  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_beam(mode: str, seed: int, width: int, branch: int, depth: int, most: int, threshold: Any) -> None:
    module, rater = Extend(seed), Rater(seed)
    by_hand = beam_by_hand(module, width, branch, depth, threshold)
    for one in by_hand.made:  # of a tree by hand, only the trials themselves
        one.value, one.visits = total(by_hand, one)
    graph = beam(module, rater.reward, width=width, branch=branch, depth=depth, done=rater.done, writes=["path"],
                 threshold=threshold)  # fmt: skip
    check(graph, module, by_hand, mode, most)


@given(places=st.integers(0, 70))
@settings(max_examples=20)
def test_the_next_place_is_the_number_of_children(places: int) -> None:
    assert Tree({f"0.{place}": {} for place in range(places)}).next_place("0") == places


def total(search: ByHand, node: Node) -> tuple[float, int]:
    below = [one for one in search.made if f"{one.name}.".startswith(f"{node.name}.")]
    return sum(one.reward or 0.0 for one in below), len(below)


@pytest.mark.parametrize("mode", MODES)
@given(seed=SEEDS, branch=st.integers(1, 3), depth=st.integers(1, 4), max_trials=st.integers(1, 25),
       c=st.sampled_from([0.0, 1.4]), per_round=st.integers(1, 4), most=st.integers(1, 4))  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_mcts(
    mode: str, seed: int, branch: int, depth: int, max_trials: int, c: float, per_round: int, most: int
) -> None:
    module, rater = Extend(seed), Rater(seed)
    by_hand = mcts_by_hand(module, branch, depth, max_trials, c, per_round)
    graph = mcts(module, rater.reward, branch=branch, depth=depth, max_trials=max_trials, c=c, per_round=per_round,
                 done=rater.done, writes=["path"])  # fmt: skip
    assert len(by_hand.made) <= max_trials
    check(graph, module, by_hand, mode, most)
