"""The parts of `optimize.GEPA` whose mistakes an optimization hides: what is selected and what is reused.

An optimization that reuses a wrong score, or edits one culprit less, ends too: only with a worse program.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dspy
from gepa.core.adapter import EvaluationBatch
from hypothesis import given
from hypothesis import strategies as st

from dspyer import optimize
from dspyer.optimize.gepa import CulpritSelector, Responsible
from dspyer.optimize.gepa_adapter import Components, KnownRuns, ReusingAdapter
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


# --- which runs are made


class Inner:
    """DSPy's adapter, of a program whose score is a function of the texts that it uses: those of its side."""

    reflection_lm = None
    student = dspy.Module()

    def __init__(self) -> None:
        self.made: list[Any] = []

    def build_program(self, candidate: Any) -> dspy.Module:
        return self.student

    def evaluate(self, batch: Any, candidate: Any, capture_traces: bool = False) -> Any:
        outputs, scores = [], []
        for example in batch:
            used = "left" if example["n"] % 2 else "right"
            self.made.append((example["n"], used, candidate[used]))
            outputs.append(dspy.Prediction(used=used, value=(example["n"], candidate[used])))
            scores.append(hash((example["n"], candidate[used])) % 7 / 7)
        trajectories = [{"example_ind": i, "score": score} for i, score in enumerate(scores)]
        return EvaluationBatch(outputs, scores, trajectories if capture_traces else None)

    def batch_evaluate(self, items: Any) -> Any:
        return [self.evaluate(batch, candidate, capture_traces=True) for candidate, batch in items]


class UsedSide(Components):
    def used_in(self, prediction: Any) -> tuple[str, ...]:
        return (prediction.used,)


SET = [{"n": n} for n in range(4)]
TEXTS = st.fixed_dictionaries({"left": st.sampled_from("ab"), "right": st.sampled_from("ab")})
STEP = st.tuples(
    TEXTS, st.lists(st.sampled_from(range(4)), min_size=1, max_size=5), st.sampled_from(["all", "one", "ids"])
)


@given(st.lists(STEP, max_size=8))
def test_any_order_of_evaluations_gives_the_scores_of_runs_made_anew(steps: list[Any]) -> None:
    inner, plain = Inner(), Inner()
    stats = GEPAStats([], [])
    adapter = ReusingAdapter(inner, UsedSide(dspy.Module(), ["left", "right"]), stats, SET, reuse=True)
    asked = 0
    for candidate, ids, way in steps:
        batch = [SET[n] for n in ids]
        expected = plain.evaluate(batch, candidate, capture_traces=True)
        if way == "ids":

            class Loader:
                def fetch(self, ids: Any) -> Any:
                    return [SET[n] for n in ids]

            found, missing = KnownRuns(adapter, Loader()).get_batch(candidate, sorted(set(ids)))
            wanted = dict(zip(ids, expected.scores, strict=True))
            assert {key: one.score for key, one in found.items()} == {key: wanted[key] for key in found}
            assert {*found, *missing} == set(ids)
            asked += len(found)
            continue
        before = len(inner.made)
        result = adapter.batch_evaluate([(candidate, batch)])[0] if way == "all" else adapter.evaluate(batch, candidate)
        asked += len(batch)
        assert result.scores == expected.scores
        assert result.outputs == expected.outputs
        assert result.trajectories == (expected.trajectories if way == "all" else None)
        assert result.num_metric_calls == len(inner.made) - before
    assert len(set(inner.made)) == len(inner.made), "no run is made twice"
    assert stats.metric_calls == len(inner.made)
    assert stats.metric_calls + stats.metric_spared == asked
