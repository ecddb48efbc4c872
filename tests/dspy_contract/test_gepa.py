"""What `optimize.GEPA` takes from `dspy.GEPA` and `gepa`, and would silently lack if they changed."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import dspy
import pytest
from dspy.teleprompt.gepa import gepa_utils
from gepa.api import optimize as gepa_optimize
from gepa.core import engine, state
from gepa.core.adapter import EvaluationBatch
from gepa.proposer.reflective_mutation import reflective_mutation
from gepa.strategies import component_selector

from tests.optimize.skills import SkillLM, chain, examples, stepwise


def test_compile_imports_gepa_optimize_when_it_is_called_and_passes_its_adapter_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`optimize.GEPA` gives it another function under that name."""
    given: dict[str, Any] = {}

    class StopHereError(Exception):
        pass

    def noted(**arguments: Any) -> None:
        given.update(arguments)
        raise StopHereError

    monkeypatch.setattr("gepa.optimize", noted)
    plain = dspy.GEPA(stepwise, reflection_lm=SkillLM(), max_metric_calls=1)
    with pytest.raises(StopHereError):
        plain.compile(chain(), trainset=examples(2), valset=examples(2))

    assert isinstance(given["adapter"], gepa_utils.DspyAdapter)
    assert {"seed_candidate", "trainset", "valset", "module_selector", "max_metric_calls"} <= set(given)
    assert set(given) <= set(inspect.signature(gepa_optimize).parameters)
    assert {"callbacks", "stop_callbacks"} <= set(inspect.signature(gepa_optimize).parameters)


def test_the_adapter_has_what_the_one_around_it_calls() -> None:
    adapter = gepa_utils.DspyAdapter(chain(), stepwise, {}, reflection_lm=SkillLM())

    for name in ("student", "reflection_lm", "custom_instruction_proposer", "add_format_failure_as_feedback"):
        assert hasattr(adapter, name)
    for name in ("evaluate", "batch_evaluate", "make_reflective_dataset", "propose_new_texts", "build_program"):
        assert callable(getattr(adapter, name))
    names = {field.name for field in dataclasses.fields(EvaluationBatch)}
    assert names == {"outputs", "scores", "trajectories", "objective_scores", "num_metric_calls"}


def test_gepa_asks_its_evaluation_cache_before_it_evaluates_and_counts_what_is_missing() -> None:
    evaluation = inspect.getsource(engine.GEPAEngine._evaluate_programs_on_valset)
    merge = inspect.getsource(state.EvaluationCache.evaluate_with_cache_full)

    assert "cache = state.evaluation_cache" in evaluation
    assert "cache.get_batch(" in evaluation
    assert "self.get_batch(" in merge
    assert "num_metric_calls" in inspect.getsource(reflective_mutation.ReflectiveMutationProposer.propose)


def test_round_robin_keeps_its_turns_in_the_state() -> None:
    source = inspect.getsource(component_selector.RoundRobinReflectionComponentSelector)

    for name in ("named_predictor_id_to_update_next_for_program_candidate", "list_of_named_predictors"):
        assert name in source
