"""Fixtures of the tests of threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dspyer.stores import SQLite
from dspyer.stores.base import Store
from dspyer.testing import clock
from tests.stores.conftest import postgres, postgres_address  # noqa: F401 - fixtures
from tests.threads.owned_runs import Clock


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """In a file: the suite of stores shows that others do the same, and many tests here are over one in memory."""
    return SQLite(tmp_path / "runs.db")


@pytest.fixture
def late_clock() -> Iterator[Clock]:
    """The clock of the process during the test."""
    with clock() as time:
        yield Clock(time)
