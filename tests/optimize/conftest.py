"""Optimizers that print nothing, and programs that find nothing in DSPy's caches."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import dspy
import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log of DSPy below ERROR, and none of its caches; one that a test turns on is empty."""
    logger, level = logging.getLogger("dspy"), logging.getLogger("dspy").level
    logger.setLevel(logging.ERROR)
    stores = dspy.cache.enable_memory_cache, dspy.cache.enable_disk_cache
    dspy.cache.reset_memory_cache()
    dspy.cache.enable_memory_cache = dspy.cache.enable_disk_cache = False
    yield
    dspy.cache.enable_memory_cache, dspy.cache.enable_disk_cache = stores
    logger.setLevel(level)
