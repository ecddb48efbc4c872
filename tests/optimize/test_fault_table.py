"""The table of faulty graphs: the culprits are the nodes in which faults were planted, for every one and every pair."""

from __future__ import annotations

from itertools import combinations

import pytest

from dspyer.optimize import culprits
from tests.optimize.faulty_rows import ROWS
from tests.optimize.planted import Planting


@pytest.mark.parametrize("name", ROWS)
def test_the_culprits_are_where_faults_were_planted(name: str) -> None:
    row = ROWS[name]
    for size in (1, 2):
        for faults in combinations(row.nodes, size):
            for example, runs in row.examples:
                found = culprits(row.build(Planting(faults)), example, row.metric)
                expected = row.expected({*faults}, runs)
                assert set(found.shares) == expected, f"{faults}: {found}"
                assert sum(found.shares.values()) == pytest.approx(1 if expected else 0)


@pytest.mark.parametrize("name", ROWS)
def test_without_a_fault_there_is_no_gold_run(name: str) -> None:
    row = ROWS[name]
    for example, _ in row.examples:
        alone, judged = Planting(), Planting()
        row.build(alone)(**example.inputs())
        found = culprits(row.build(judged), example, row.metric)
        assert (found.shares, found.suspects, found.not_tunable) == ({}, (), ())
        assert str(found) == "culprits: none, nothing is known to be wrong"
        assert judged.calls == alone.calls, "one run, and no second one"
