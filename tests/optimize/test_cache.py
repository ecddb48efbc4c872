"""`optimize.cache`: no module is called again for what it was called for before, and all results are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import optimize
from tests.optimizers.lm import NotingLM
from tests.optimizers.programs import PAIRS


@pytest.fixture(autouse=True)
def _own_dspy_cache() -> Any:
    """DSPy's cache off: what is spared is spared by the block."""
    before = dspy.cache
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    yield
    dspy.cache = before


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_run_with_results_from_the_folder_is_the_same_run(pair: Any, tmp_path: Path) -> None:
    program, inputs = pair.graph(), dict(pair.trainset[0].inputs())

    def facts() -> Any:
        lm = NotingLM(cache=True)
        with dspy.context(lm=lm):
            run = program.run(inputs)
        commits = [(one.id, one.node, dict(one.patch), one.route, one.reason) for one in run.commits]
        steps = [(step.node, step.predictor, step.inputs, dict(step.outputs), step.status) for step in run.trace_steps]
        return commits, run.state.to_dict(), steps, len(lm.sent)

    plain = facts()
    with optimize.cache(tmp_path):
        cold, warm = facts(), facts()
    assert cold[:3] == warm[:3] == plain[:3]
    assert cold[3] <= plain[3]
