"""Fixtures of the contract tests: one LM per test, and a check of what DSPy logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import dspy
import pytest

from tests.dspy_optimizers.lm import NotingLM


@pytest.fixture
def lm() -> Iterator[NotingLM]:
    made = NotingLM()
    with dspy.context(lm=made):
        yield made


@pytest.fixture(autouse=True)
def no_warnings_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """DSPy logs instead of raising: a copy that fell back, an input that it does not know, a type that differs."""
    loggers = [logging.getLogger("dspy"), logging.getLogger("dspyer")]
    for logger in loggers:
        logger.addHandler(caplog.handler)
    yield
    for logger in loggers:
        logger.removeHandler(caplog.handler)
    found = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.WARNING]
    assert not [text for text in found if "untrusted .pkl" not in text], found
