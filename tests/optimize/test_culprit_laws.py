"""Laws of `culprits` and of feedback, on random graphs with planted faults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspyer.optimize import by_field, culprits
from tests.optimize.faulty_graphs import FaultyGraph, Plan, is_right, plans

DEFAULT: Any = settings.default
SETTINGS = settings(max_examples=DEFAULT.max_examples // 2, deadline=None)


@SETTINGS
@given(plans(2))
def test_where_all_fields_are_compared_the_planted_nodes_are_the_culprits(plan: Plan) -> None:
    """And so no node after them, nor one that a wrong decision led to (2.1, 2.2)."""
    graph = FaultyGraph(plan)
    run = graph.run()
    metric = by_field(graph.metrics, goal="fgoal")
    found = culprits(run, graph.example, metric)
    assert set(found.shares) == graph.culprits, f"{found}\n{graph.faults}"
    assert sum(found.shares.values()) == pytest.approx(1 if found.shares else 0)
    assert not found.not_tunable
    told = tell(run, graph.example, metric)
    for step, text in zip(run.trace, told, strict=True):
        read = [value for name, value in step[1].items() if name not in ("previous_out", "problems")]  # of a fix
        if not all(map(is_right, read)):
            assert "ok" not in text, f"the expected value is shown to who has read something wrong: {text}"


def tell(run: Any, example: Any, metric: Any) -> list[str]:
    """The feedback for each step of a run."""
    trace = list(run.trace)
    return [metric(example, run.prediction, trace, "any", [step]).feedback for step in trace]


@SETTINGS
@given(plans(1), st.sets(st.integers(0, 30)))
def test_where_some_fields_are_unknown_the_planted_node_is_a_suspect(plan: Plan, compared: set[int]) -> None:
    graph = FaultyGraph(plan)
    run = graph.run()
    metrics = {
        field: metric for at, (field, metric) in enumerate(graph.metrics.items()) if at in compared or field == "fgoal"
    }
    found = culprits(run, graph.example, by_field(metrics, goal="fgoal"))
    if any(note.verdict == "wrong" for note in found.notes):
        assert sum(found.shares.values()) == pytest.approx(1)
        assert graph.culprits <= found.shares.keys(), f"{found}\n{graph.faults}"
    else:
        assert not found.shares
