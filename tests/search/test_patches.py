"""A trial stores what it changed, and its state is that of its path, whatever the fields and their updates are."""

from __future__ import annotations

import gc
import itertools
import sqlite3
import sys
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import DELETE, END, START, Graph, Replace, Updates, reducers
from dspyer.search import Tree, best_of, mcts, tree
from dspyer.stores import SQLite
from tests.search.kit import Step, run


class Point(BaseModel):
    x: int
    label: str | None = None


class Fields(BaseModel):
    n: int
    text: str | None = "t"
    facts: dict[str, Any] = {}
    point: Point | None = None
    log: Annotated[list[Any], reducers.extend] = []
    total: Annotated[int, reducers.increment] = 0
    names: Annotated[dict[str, Any], reducers.update] = {}


FACTS = st.recursive(
    st.one_of(st.none(), st.integers(0, 2), st.lists(st.integers(0, 2), max_size=2)),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)
ANY = st.one_of(FACTS, st.just(DELETE), FACTS.map(Replace))
UPDATE = st.fixed_dictionaries(
    {},
    optional={
        "text": st.sampled_from([None, "t", "u", DELETE]),
        "facts": st.dictionaries(st.sampled_from("abc"), ANY, max_size=3),
        "point": st.sampled_from([None, Point(x=1), Point(x=2, label="p")]),
        "log": st.one_of(
            st.lists(FACTS, max_size=2),
            st.lists(FACTS, max_size=1).map(lambda items: Updates(items, items)),
            st.just(Replace([1])),
            st.just(DELETE),
        ),
        "total": st.integers(0, 3),
        "names": st.dictionaries(st.sampled_from("ab"), FACTS, max_size=2),
    },
)  # fmt: skip


@given(updates=st.lists(UPDATE, min_size=1, max_size=4))
@settings(max_examples=settings().max_examples // 4)  # two graphs are built for each
def test_the_state_of_a_trial_is_that_of_the_steps_on_its_path(updates: list[dict[str, Any]]) -> None:
    """As a graph that makes the same steps one after the other."""

    def step(n: int) -> dict[str, Any]:
        return {**updates[n], "n": n + 1}

    fields = list(Fields.model_fields)
    one = Graph(Fields, inputs=fields, required=["n"], outputs=fields)
    one.add_node("step", step).add_path(START, "step", END)
    chain = Graph(Fields, inputs=fields, required=["n"], outputs=fields).add_node("step", step).add_edge(START, "step")
    chain.add_conditional_edges("step", lambda n: n < len(updates), {True: "step", False: END})
    expected = run(chain, {"n": 0})

    def deeper(tree: Tree) -> list[tuple[str, int]]:
        return [] if len(tree) == len(updates) else [("0" + ".0" * len(tree), 0)]

    found = run(tree(one, lambda n: n, deeper), {"n": 0})
    assert found.status == expected.status == "completed", (found.error, expected.error)
    assert {name: found.state[name] for name in fields if name in found.state} == dict(expected.state)


def test_what_a_trial_changed_can_be_read() -> None:
    fields = ["facts", "log", "text"]
    graph = Graph(Fields, inputs=fields, outputs=fields, required=[])
    graph.add_node("step", lambda: {"facts": {"a": 1}, "log": ["x"], "text": None}, writes=fields)
    found = run(best_of(graph.add_path(START, "step", END), 1, lambda log: 1.0), {"facts": {"b": 2}, "log": ["w"]})
    entry = found.state["tree"]["0.0"]
    assert entry == {
        "name": "0.0", "parent": "0", "reward": 1.0, "value": 1.0, "visits": 1, "done": False, "failure": None,
        "patch": {"facts": {"a": 1}, "log": [["x"]]}, "whole": {"text": None},
    }  # fmt: skip
    assert (found.state["facts"], found.state["log"], found.state["text"]) == ({"a": 1, "b": 2}, ["w", "x"], None)


def test_classes_of_fields_are_read_from_a_store(tmp_path: Path) -> None:
    graph = Graph(Fields, inputs=["n", "point"], required=["n"], outputs=["point"])
    graph.add_node("step", lambda n: {"point": Point(x=n)}).add_path(START, "step", END)
    program = best_of(graph, 2, lambda point: point.x).compile(store=str(tmp_path / "runs.db"))
    assert program.thread("t").run({"n": 3}).status == "completed"
    state = program.thread("t").state
    assert (state["point"], state["tree"]["0.1"]["patch"]["point"]) == (Point(x=3), Point(x=3))


def calls_of(trials: int) -> int:
    """How many calls of functions a search of so many trials makes in this thread."""
    program = best_of(Step(lambda n: n + 1), trials, lambda n: 0.0, per_round=5, writes=["n"]).compile()
    counted = itertools.count()
    gc.collect()  # the finalizers of what earlier tests left are calls too
    gc.disable()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: next(counted) if event == "call" else None)
    try:
        found = program.run({"n": 1})
    finally:
        sys.setprofile(before)
        gc.enable()
    assert len(found.state["tree"]) == trials
    return next(counted)


def test_no_trial_copies_the_tree() -> None:
    """A copy calls a function for each of the trials so far: later trials would cost a quarter more."""
    calls_of(5)
    few, more, most = map(calls_of, (20, 100, 180))
    assert most - more < 1.15 * (more - few)  # the persistent map of the tree gets one level deeper


@pytest.mark.parametrize("per_round", [1, 8])
def test_a_trial_with_a_large_state_is_small_on_disk(per_round: int, tmp_path: Path) -> None:
    numbers = itertools.count()

    class Reader(dspy.Module):
        def forward(self, n: int, board: list[int], text: str) -> dspy.Prediction:
            return dspy.Prediction(n=n + next(numbers))

    def size(trials: int) -> int:
        path = tmp_path / f"{trials}.db"
        graph = mcts(Reader(), lambda n: n, branch=4, depth=5, max_trials=trials, per_round=per_round, writes=["n"],
                     done=lambda n: False)  # fmt: skip
        store = SQLite(path)
        program = graph.compile(store=store)
        done = program.thread("t").run({"n": 0, "board": [*range(10_000)], "text": "x" * 100_000})
        assert len(done.state["tree"]) == trials
        store.close()
        with sqlite3.connect(path) as file:
            file.execute("VACUUM")
        return path.stat().st_size

    assert (size(64) - size(32)) / 32 <= 1024
