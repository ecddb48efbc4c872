"""Fixtures of the tests of threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspyer.stores.base import Store
from dspyer.stores.memory import Memory
from dspyer.stores.sqlite import SQLite
from tests.stores.conftest import postgres, postgres_address  # noqa: F401 - fixtures


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Memory() if request.param == "memory" else SQLite(tmp_path / "runs.db")
