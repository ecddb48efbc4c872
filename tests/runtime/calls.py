"""What cached functions of tests call: functions of another file, whose variables are no part of a key."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

CALLS: Counter[Any] = Counter()


class Gate:
    """A node that waits until the test lets it go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()


GATES: dict[str, Gate] = {}


def count_call(name: Any) -> int:
    """How often it was called with this name, this call included."""
    CALLS[name] += 1
    return CALLS[name]


def gate_of(name: str) -> Gate:
    return GATES[name]


def wait_at_gate(name: str) -> None:
    GATES[name].entered.release()
    assert GATES[name].open.wait(20)
