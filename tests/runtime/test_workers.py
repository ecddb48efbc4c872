"""Ctrl-C may be raised between any two lines: then nothing waits for work that is gone, and no thread stays."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import dspyer
from dspyer import END, START, CompiledGraph, Graph

LIBRARY = str(Path(dspyer.__file__).parent)
HANDING_OVER = ("start", "next")  # functions that give work to a thread, and take its outcome


class CtrlC:
    """Raises `KeyboardInterrupt` at a line of these functions, as the handler of a signal does."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_name not in HANDING_OVER or not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def interrupted_at(program: CompiledGraph, at: int) -> bool:
    """A run with Ctrl-C at a line; returns whether there is such a line."""
    raised: list[bool] = []

    def work() -> None:
        sys.settrace(CtrlC(at))
        try:
            program.run({})
            raised.append(False)
        except KeyboardInterrupt:
            raised.append(True)
        finally:
            sys.settrace(None)

    before = {*threading.enumerate()}
    runs = threading.Thread(target=work, daemon=True)
    runs.start()
    runs.join(20)
    assert raised, f"it waits for an outcome that is gone, after line {at}"
    assert {*threading.enumerate()} <= before, f"a thread is left that nothing ends, after line {at}"
    return raised[0]


def test_nothing_waits_for_an_outcome_that_ctrl_c_has_lost() -> None:
    graph = Graph(merge="last_write_wins").add_node("a", lambda: {"x": 1}).add_node("b", lambda: {"x": 2})
    program = graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END).compile()
    at = 1
    while interrupted_at(program, at):
        at += 1
    assert at > 15  # the last one was behind the end of the run
