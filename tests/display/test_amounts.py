"""Counts, durations and costs as texts."""

from __future__ import annotations

from dspyer.display.amounts import cost_text, count_of, duration_text, elapsed_text
from tests.rows import each


@each(
    ("seconds", "text"),
    [
        (None, ""),
        (0.0, "0 µs"),
        (-0.1, "0 µs"),
        (0.00099, "990 µs"),
        (0.0009997, "1 ms"),
        (0.05, "50 ms"),
        (0.9996, "1.0 s"),
        (59.96, "1 min 0 s"),
        (3599.7, "1 h 0 min"),
        (90_000.0, "25 h 0 min"),
    ],
)
def test_durations_have_a_fitting_unit(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_time_of_an_axis_goes_on_after_a_minute() -> None:
    assert [elapsed_text(one) for one in (0, 2.0, 59.94, 59.96, 3599.7)] == ["0", "2 s", "59.9 s", "1:00", "1:00:00"]


@each(
    ("cost", "text"),
    [
        (None, ""),
        (0.0, "0"),
        (1e-7, "<0.000001"),
        (0.0000512, "0.000051"),
        (0.000123, "0.000123"),
        (0.5, "0.5"),
        (1234.5, "1,234.50"),
    ],
)
def test_a_small_cost_is_not_shown_as_none(cost: float | None, text: str) -> None:
    assert cost_text(cost) == text


def test_counts_have_their_plural() -> None:
    assert [count_of(one, "run") for one in (0, 1, 1000)] == ["0 runs", "1 run", "1,000 runs"]
    assert count_of(2, "retry", "retries") == "2 retries"
