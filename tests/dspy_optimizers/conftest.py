"""Quiet optimizers whose logged errors fail the test: DSPy's evaluation only logs the exceptions of a program."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import optuna
import pytest


class Listener(logging.Handler):
    """Keeps what DSPy logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True)
def logged() -> Iterator[Listener]:
    """What DSPy logs from WARNING on; an ERROR fails the test."""
    listener = Listener()
    loggers = [logging.getLogger("dspy"), logging.getLogger()]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for logger in loggers:
        logger.addHandler(listener)
    yield listener
    for logger in loggers:
        logger.removeHandler(listener)
    errors = [record.getMessage() for record in listener.records if record.levelno >= logging.ERROR]
    assert not errors, errors
