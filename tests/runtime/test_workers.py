"""Ctrl-C may be raised between any two instructions: then nothing waits for work whose outcome is gone."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from dspyer.runtime.workers import ThreadWorkers


class CtrlC:
    """Raises `KeyboardInterrupt` at one instruction of a function, as the handler of a signal does."""

    def __init__(self, function: str, at: int) -> None:
        self.function = function
        self.left = at
        self.raised = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_name != self.function or not frame.f_code.co_filename.endswith("workers.py"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self.raised = True
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("function", ["start", "next"])
def test_nothing_waits_for_an_outcome_that_ctrl_c_has_lost(function: str) -> None:
    at = 0
    while interrupted_at(at := at + 1, function):
        pass
    assert at > 15  # the last one was behind the end of the function


def interrupted_at(at: int, function: str) -> bool:
    """Runs two pieces of work with Ctrl-C at an instruction; returns whether there is such an instruction."""
    ctrl_c = CtrlC(function, at)
    outcomes: list[Any] = []
    with ThreadWorkers(2) as workers:
        before = sys.gettrace()
        sys.settrace(ctrl_c)
        try:
            for number in range(2):
                workers.start(number, str, number)
            outcomes.append(workers.next())
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        rest = threading.Thread(target=lambda: take_all(workers, outcomes), daemon=True)
        rest.start()
        rest.join(20)
        hangs = rest.is_alive()
        workers.wake()
        assert not hangs, f"it waits for an outcome that is gone, after instruction {at}"
    keys = [key for key, _ in outcomes]
    assert len(set(keys)) == len(keys) >= (2 - ctrl_c.raised if function == "next" else 0)
    return ctrl_c.raised


def take_all(workers: ThreadWorkers, outcomes: list[Any]) -> None:
    while workers.busy:
        outcomes.append(workers.next())
