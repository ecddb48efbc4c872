"""An optimization that is killed and started again ends as one that was not: with DSPy's request cache, for real."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.optimize.killable import Outcome, Work, optimize_in


def asked(outcome: Outcome) -> Counter[str]:
    """How often each request was made."""
    return Counter({what: count for (kind, what), count in outcome.notes.items() if kind == "asked"})


WORKS = [Work("BootstrapFewShot"), Work("dspy.GEPA"), Work("MIPROv2"), Work("SIMBA")]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.optimizer)
def test_a_killed_optimization_ends_as_one_that_was_not(tmp_path: Path, work: Work) -> None:
    whole = optimize_in(tmp_path / "whole", work)
    assert whole.status == 0
    killed = optimize_in(tmp_path / "killed", work, kill_at=2 * whole.events // 3)
    assert (killed.status, killed.result) == (-9, None)
    again = optimize_in(tmp_path / "killed", work)
    assert again.result == whole.result
    assert (asked(again) - asked(whole)).total() <= 1
    assert not asked(whole) - asked(again)
