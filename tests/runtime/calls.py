"""What cached functions of tests call: functions of another file, whose variables are no part of a key."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from tenacity import wait_fixed

from dspyer import END, START, Graph, Retry

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


def let_pass(seconds: float) -> None:
    """Moves the clock of `no_pauses` by a pause between two attempts, in a thread that no deadline of a run is in."""
    attempts = iter([ConnectionError(), None])

    def again() -> None:
        if (error := next(attempts)) is not None:
            raise error

    graph = Graph().add_node("again", again, writes=[], retry=Retry(2, wait=wait_fixed(seconds)))
    program = graph.add_path(START, "again", END).compile()
    thread = threading.Thread(target=program)
    thread.start()
    thread.join()
