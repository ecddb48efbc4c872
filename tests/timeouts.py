"""Timeouts of nodes that end when a test says so: on a slow machine an attempt that must be in time always is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dspyer.testing import FakeClock, clock

PATIENCE = 20.0  # seconds after which a test gives up


class TimeIsOver:
    """What a test does with its clock."""

    def __init__(self, time: FakeClock) -> None:
        self._time = time

    def __call__(self) -> None:
        """Ends the timeouts below a second of all attempts that have begun."""
        self._time.advance(1.0)

    def wait_for_workers(self, count: int = 1) -> None:
        """Waits until so many worker threads, one of which was left running, have done what they were doing."""
        self._time.wait_for("idle", count, PATIENCE)


@pytest.fixture
def time_is_over() -> Iterator[TimeIsOver]:
    """Ends the timeouts below a second of all attempts that have begun; none ends by itself."""
    with clock() as time:
        yield TimeIsOver(time)
