"""Timeouts of nodes that end when a test says so: on a slow machine an attempt that must be in time always is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dspyer.testing import clock

TimeIsOver = Callable[[], None]
PATIENCE = 20.0  # seconds after which a test gives up


@pytest.fixture
def time_is_over() -> Iterator[TimeIsOver]:
    """Ends the timeouts below a second of all attempts that have begun; none ends by itself."""
    with clock() as time:
        yield lambda: time.advance(1.0)
