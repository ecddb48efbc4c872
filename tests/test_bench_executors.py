"""The workloads of `bench.executors` check their results, and its section is put into the page. No time is judged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest

from bench.executors import Pools, Row, Sizes, as_section, evaluate, measure, program_of
from bench.report import put_section, section_of


def test_every_row_is_measured_and_shown() -> None:
    with ThreadPoolExecutor(2) as pool, dspy.context(disable_history=True):
        sizes = Sizes(1, cpu_calls=2, lm_calls=8, cost_calls=1, cpu_seconds=0.001, lm_seconds=0.001)
        rows, noise = measure(sizes, Pools(pool, pool, pool, pool), wide=2)
    assert len(rows) == 13
    assert all(row.values[0] > 0 for row in rows)
    section = as_section(rows, noise, 1)
    page = "Tables.\n\n## Libraries that were faster\n\nNone was.\n"
    assert section_of(put_section(page, section), "Executors") == section


def test_a_row_shows_median_spread_and_range() -> None:
    assert Row("a", values=[1.0, 2.0, 3.0]).cells() == ["a", "2.00 × ± 25%", "1.00–3.00"]


def test_a_wrong_result_is_an_error_and_no_time() -> None:
    with pytest.raises(AssertionError, match="the score is 0"):
        evaluate(program_of(lambda n, seconds: {"m": 0}, 0), 2, 1)
