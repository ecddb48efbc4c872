"""What every test runs under: no network, no cache left behind by another run, one event loop."""

from __future__ import annotations

import gc
import os
import tempfile

# Both are read when dspy is imported, so they are set before any test module is.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("DSPY_CACHEDIR", tempfile.mkdtemp(prefix="dspyer-tests-"))

import pytest
from hypothesis import HealthCheck, settings

from tests.browser import chromium, page  # noqa: F401 - fixtures for every folder

# No property is judged by how fast a busy machine draws its examples. In CI the examples are the same in every run.
settings.register_profile(
    "dspyer", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("dspyer")


def pytest_collection_finish() -> None:
    """Leaves modules and collected tests out of every later garbage collection: they take 0.3 s each time, and stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    """Async tests (`@pytest.mark.anyio`) run under asyncio, as DSPy does."""
    return "asyncio"
