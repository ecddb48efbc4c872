"""Modules written by hand around graphs: who is the culprit, and what optimizers make of them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import dspy
import pytest

from dspyer.optimize import by_field, culprits, equals
from tests.optimize.hand_written import MODULES
from tests.optimize.planted import Planting

FIELDS = ("a", "b", "answer")
METRIC = by_field({field: equals(field) for field in FIELDS}, goal="answer")
BESIDE = "a predictor, a graph, a predictor"
EXAMPLE = dspy.Example(q="?", a="ok a", b="ok b", answer="ok answer").with_inputs("q")


@pytest.mark.parametrize("name", MODULES)
def test_the_culprits_are_where_faults_were_planted(name: str) -> None:
    build, names = MODULES[name]
    for size in (0, 1, 2):
        for faults in combinations(FIELDS, size):
            plant = Planting(faults)
            steps: Any = {
                "a": plant.predictor("a", "q -> a"),
                "b": plant.predictor("b", "a -> b"),
                "answer": plant.predictor("answer", "b -> answer"),
            }
            program = build(steps)
            assert {*names} <= {one for one, _ in program.named_predictors()}
            paths = {f"{one}.{field}": equals(field) for field, one in zip(FIELDS, names, strict=True)}
            by_path = culprits(program, EXAMPLE, by_field({**paths, "answer": equals("answer")}, goal="answer"))
            found = culprits(program, EXAMPLE, METRIC)
            assert by_path == found, "a key may be a path, as the predictors are named"
            # No gold is put in for what is called outside of graphs: what has read it is excused.
            planted = [field for field in faults if field != "b" or name != BESIDE or "a" not in faults]
            expected = {one for field, one in zip(FIELDS, names, strict=True) if field in planted}
            assert set(found.shares) == expected, f"{faults}: {found}"
