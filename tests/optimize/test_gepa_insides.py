"""The selection of `optimize.GEPA`: an optimization that edits one culprit less ends too, only with a worse program."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dspy

from dspyer import optimize
from dspyer.optimize.gepa import CulpritSelector, Responsible
from dspyer.optimize.gepa_adapter import Components
from dspyer.optimize.gepa_stats import GEPAStats
from tests.optimize.skills import RULES

BY_FIELD = optimize.by_field({field: optimize.equals(field) for field in RULES}, goal="c")


def test_a_run_with_a_culprit_adds_no_suspect_and_one_without_adds_one_of_its_own() -> None:
    def responsible(culprits: str = "", suspects: str = "") -> Responsible:
        return Responsible(frozenset(culprits), frozenset(suspects))

    class Told(CulpritSelector):
        def __init__(self) -> None:
            adapter: Any = SimpleNamespace(components=Components(dspy.Module(), "abcd"))
            super().__init__(adapter, BY_FIELD, GEPAStats("abcd", "abcd"))

        def _responsible(self, trajectory: Any) -> Responsible:
            told: Responsible = trajectory["told"]
            return told

        def _reflectable(self, candidate: Any, trajectories: Any) -> list[str]:
            return list(candidate)

    def select(*told: Responsible, turn: int = 0) -> str:
        state = SimpleNamespace(
            list_of_named_predictors=list("abcd"), named_predictor_id_to_update_next_for_program_candidate=[turn]
        )
        return "".join(Told()(state, [{"told": one} for one in told], [], 0, dict.fromkeys("abcd", "text")))

    assert select(responsible("a", "b")) == "a"
    assert select(responsible("a"), responsible("c"), responsible()) == "ac"
    assert select(responsible("a"), responsible("", "bc")) == "ab"
    assert select(responsible("a"), responsible("", "bc"), turn=2) == "ac"
    assert select(responsible("b"), responsible("", "bc")) == "b"
    assert select(responsible("", "bc"), responsible("", "cd")) == "bc"
    assert select(responsible(), turn=3) == "d"
    assert select(responsible("x")) == ""
    assert select(responsible("xd")) == "d"
