"""An idempotency key: one run of a thread for each key, however often and from wherever it is delivered."""

from __future__ import annotations

from typing import Any

import pytest

from dspyer import END, START, CompiledGraph, Graph
from dspyer.errors import ThreadError
from dspyer.stores import Store
from dspyer.stores.memory import Memory


class Calls:
    """Counts the calls of a node; the first `failures` of them raise."""

    def __init__(self, failures: int = 0) -> None:
        self.made: list[int] = []
        self.failures = failures

    def add(self, n: int) -> dict[str, Any]:
        self.made.append(n)
        if len(self.made) <= self.failures:
            raise ValueError(f"call {len(self.made)}")
        return {"n": n + 1}

    def program(self, store: Store) -> CompiledGraph:
        graph = Graph(inputs=["n"]).add_node("add", self.add, writes=["n"])
        return graph.add_path(START, "add", END).compile(store=store)


def test_a_key_starts_one_run_and_returns_it_as_stored() -> None:
    store, calls = Memory(), Calls()
    t = calls.program(store).thread("t")
    first = t.run({"n": 1}, key="a")
    t.run({"n": 7}, key="b")
    again = t.run({"n": 1}, key="a")
    assert calls.made == [1, 7]
    assert (again.run_id, again.status, again.state, again.prediction.n) == (first.run_id, "completed", first.state, 2)
    assert t.state["n"] == 8


def test_a_key_resumes_its_failed_run() -> None:
    calls = Calls(failures=1)
    t = calls.program(Memory()).thread("t")
    failed, done = t.run({"n": 1}, key="a"), t.run({"n": 1}, key="a")
    assert (failed.status, done.status, failed.run_id) == ("failed", "completed", done.run_id)
    assert calls.made == [1, 1]


def test_other_inputs_under_a_used_key_are_refused() -> None:
    calls = Calls()
    t = calls.program(Memory()).thread("t")
    t.run({"n": 1}, key="a")
    with pytest.raises(ThreadError, match="began with other inputs"):
        t.run({"n": 2}, key="a")
    assert calls.made == [1]
