"""A search that is killed at any write, and resumed, finds the same tree and makes no call that is recorded again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import CompiledGraph, Run
from dspyer.search import mcts
from dspyer.testing import Prompt
from tests.log.failing import FailingSQLite, kill
from tests.log.processes import end_of, fork
from tests.search.kit import MODES, RolloutLM, digest

PER_ROUND = 2


class Calls:
    """LM calls in a file, which survives the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def note(self, what: str) -> None:
        handle = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(handle, f"{what}\n".encode())
        os.close(handle)

    def read(self) -> Counter[str]:
        return Counter(self.path.read_text().split("\n")[:-1])


def noting(calls: Calls, deadly: int = 0) -> RolloutLM:
    """Notes its calls; the one with the number `deadly` kills the process."""

    def answer(prompt: Prompt, rollout: int) -> Any:
        text = str(dict(prompt.inputs))
        calls.note(f"{text} {rollout}")
        if deadly and calls.read().total() >= deadly:
            kill()
        if "quality" in str(prompt.output_fields):
            return {"quality": digest(text) % 9 / 8}
        if digest(text, rollout) % 5 == 0:
            raise ValueError(text)
        return {"next_line": f"{prompt.inputs['line']}.{digest(text, rollout) % 100}"}

    return RolloutLM(answer)


def program(store: Any) -> CompiledGraph:
    graph = mcts(
        dspy.Predict("line -> next_line"),
        dspy.Predict("line -> quality: float"),
        writes={"next_line": "line"},
        done=lambda line: len(line) > 8,
        branch=2,
        depth=3,
        max_trials=5,
        per_round=PER_ROUND,
    )
    return graph.compile(store=store)


def go(program: CompiledGraph, name: str, mode: str, resume: bool = False) -> Run:
    thread = program.thread(name)
    if mode == "sync":
        return thread.resume() if resume else thread.run({"line": "a"})
    return asyncio.run(thread.aresume() if resume else thread.arun({"line": "a"}))


@pytest.mark.slow("a process is killed after each write of a search, and the search resumed from the file")
@pytest.mark.parametrize("mode", MODES)
def test_kill_9_at_any_write(mode: str, tmp_path: Path) -> None:
    """Both modes together die after each write: one before those with an odd number, the other after them."""
    store = FailingSQLite(tmp_path / "runs.db")
    searching, other = program(store), program(store)
    whole_calls = Calls(tmp_path / "whole")
    with dspy.context(lm=noting(whole_calls)):
        whole = go(searching, "whole", mode)
    assert whole.status == "completed"
    assert {entry["failure"] is None for entry in whole.state["tree"].values()} == {True, False}
    expected = whole_calls.read()
    after = mode == "async"
    for at in count(1, 2):
        name, calls = f"t {at}", Calls(tmp_path / f"calls {at}")

        def child(name: str = name, calls: Calls = calls, at: int = at) -> None:
            store.arm(kill, at, after)
            with dspy.context(lm=noting(calls)):
                go(searching, name, mode)

        ended = end_of(fork(child))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        thread = other.thread(name)
        if name not in other.threads():
            continue  # nothing was written
        if thread.status != "completed":  # else it was killed after its last write
            with dspy.context(lm=noting(calls)):
                assert go(other, name, mode, resume=True).status == "completed"
        assert thread.state == whole.state
        called = calls.read()
        assert called.keys() == expected.keys()
        # Of each trial that was running, the one call whose result was not written yet is made again.
        assert sum(called.values()) <= sum(expected.values()) + PER_ROUND
    assert at > 10


@pytest.mark.slow("a process is killed in each LM call of a search, and the search resumed from the file")
def test_kill_9_in_any_lm_call(tmp_path: Path) -> None:
    store = FailingSQLite(tmp_path / "runs.db")
    searching, other = program(store), program(store)
    whole_calls = Calls(tmp_path / "whole")
    with dspy.context(lm=noting(whole_calls)):
        whole = go(searching, "whole", "sync")
    expected = whole_calls.read()
    for at in range(1, expected.total() + 1):
        calls = Calls(tmp_path / f"calls {at}")

        def child(calls: Calls = calls, at: int = at) -> None:
            with dspy.context(lm=noting(calls, at)):
                go(searching, f"t {at}", "sync")

        assert end_of(fork(child)) == -signal.SIGKILL
        with dspy.context(lm=noting(calls)):
            resumed = go(other, f"t {at}", "sync", resume=True)
        assert resumed.state == whole.state
        assert calls.read().total() <= expected.total() + PER_ROUND
