"""Every optimizer finds the same with `optimize.cache` as without, on a new folder and on one that has all results."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import dspy
import pytest

from dspyer import optimize
from tests.dspy_optimizers.lm import NotingLM
from tests.dspy_optimizers.programs import PAIRS
from tests.dspy_optimizers.table import ROWS
from tests.dspy_optimizers.test_table import Tuned

GRAPHS = {pair.name: pair for pair in PAIRS}
OPTIMIZERS = {row.name: row for row in ROWS}


@pytest.fixture(autouse=True)
def _quiet(quiet: None, own_dspy_cache: None) -> None:
    """Each test configures DSPy's cache."""


class Found(NamedTuple):
    """What an optimizer has made: all that must not depend on a cache, and the LM calls."""

    state: Any
    evaluation: Any
    candidates: Any
    trained_on: Any
    calls: int


def optimized(graph: str, optimizer: str, dspy_caches: bool) -> Found:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=dspy_caches)
    pair, row, lm = GRAPHS[graph], OPTIMIZERS[optimizer], NotingLM(cache=True)
    program = pair.graph()
    with dspy.context(lm=lm):
        if row.pins_lm:
            program.set_lm(lm)
        tuned = Tuned(row.tune(program, pair.trainset, lm), lm, list(lm.sent))
    details = getattr(tuned.program, "detailed_results", None)
    shown = details and (
        details.val_aggregate_scores,
        details.parents,
        [[predictor.signature.instructions for predictor in one.predictors()] for one in details.candidates],
    )
    return Found(tuned.state, tuned.evaluate(pair), shown, lm.provider.jobs, len(tuned.sent))


CASES = [
    ("loop", "BootstrapFewShot_rounds", 1.0, 0.0),
    ("loop", "MIPROv2", 1.0, 0.2),
    ("fork", "GEPA", 0.65, 0.2),
    ("chain", "SIMBA", 1.0, 0.1),
    ("chain", "COPRO", 0.65, 0.1),
    ("map", "BootstrapFewShotWithRandomSearch", 1.0, 0.0),
    ("chain", "BootstrapFinetune", 1.0, 0.0),
]
"""Graph, optimizer, and of the LM calls without the block those with a new folder, and with one that has all."""


@pytest.mark.parametrize(("graph", "optimizer", "new", "known"), CASES, ids=str)
def test_an_optimizer_finds_the_same_with_fewer_calls(
    graph: str, optimizer: str, new: float, known: float, tmp_path: Path
) -> None:
    plain = optimized(graph, optimizer, dspy_caches=False)
    with optimize.cache(tmp_path):
        cold = optimized(graph, optimizer, dspy_caches=False)
        warm = optimized(graph, optimizer, dspy_caches=False)
    assert cold[:-1] == plain[:-1]
    assert warm[:-1] == plain[:-1]
    assert cold.calls <= new * plain.calls
    assert warm.calls <= known * plain.calls


@pytest.mark.parametrize(("graph", "optimizer"), [("chain", "GEPA"), ("bound", "MIPROv2"), ("chain", "COPRO")])
def test_with_the_caches_of_dspy_no_call_is_made_more(graph: str, optimizer: str, tmp_path: Path) -> None:
    plain = optimized(graph, optimizer, dspy_caches=True)
    with optimize.cache(tmp_path):
        cold = optimized(graph, optimizer, dspy_caches=True)
    assert cold[:-1] == plain[:-1]
    assert cold.calls == plain.calls
