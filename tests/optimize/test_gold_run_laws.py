"""Laws of `culprits` on random graphs with planted faults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspyer.optimize import by_field, culprits
from tests.optimize.faulty_graphs import FaultyGraph, Plan, plans

DEFAULT: Any = settings.default
SETTINGS = settings(max_examples=DEFAULT.max_examples // 2, deadline=None)


@SETTINGS
@given(plans(3))
def test_every_planted_node_that_runs_on_right_inputs_is_a_culprit_and_no_other(plan: Plan) -> None:
    graph = FaultyGraph(plan)
    found = culprits(graph.program, graph.example, by_field(graph.metrics, goal="fgoal"))
    assert set(found.shares) == graph.blamed, f"{found}\n{graph.faults}"
    assert sum(found.shares.values()) == pytest.approx(1 if found.shares else 0)
    assert not found.not_tunable
    assert graph.runs == 1 or found.shares, "a gold run without need"


@SETTINGS
@given(plans(1), st.sets(st.integers(0, 30)))
def test_where_some_fields_are_unknown_the_planted_node_is_among_the_suspects(plan: Plan, compared: set[int]) -> None:
    graph = FaultyGraph(plan)
    kept = {field for at, field in enumerate(graph.metrics) if at in compared or field == "fgoal"}
    metric = by_field({field: graph.metrics[field] for field in kept}, goal="fgoal")
    found = culprits(graph.program, graph.example, metric)
    assert not found.shares or graph.culprits <= found.shares.keys(), f"{found}\n{graph.faults}"
    assert {*found.suspects} <= found.shares.keys()
