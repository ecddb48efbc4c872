"""A run on a thread is a call of the program like any other: callbacks, usage and trace of DSPy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils.callback import BaseCallback

from dspyer import END, START, CompiledGraph, Graph, Thread
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Row, Store
from dspyer.testing import ScriptedLM
from tests.log.failing import Crash, FailingMemory, crash
from tests.log.kinds import State
from tests.log.processes import end_of, fork


class Seen(BaseCallback):
    """Notes which modules were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.calls.append(type(instance).__name__)


def build(store: Store) -> CompiledGraph:
    graph = Graph(State, name="Asking", inputs=["q"]).add_node("ask", dspy.Predict("q -> verdict"))
    graph.add_node("again", dspy.Predict("verdict -> x"))
    return graph.add_path(START, "ask", "again", END).compile(store=store)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_callbacks_of_a_run_and_of_its_resume_fire_once(mode: str) -> None:
    seen = Seen()
    program = build(Memory())
    thread = program.thread("t")
    with dspy.context(callbacks=[seen], lm=ScriptedLM([{"verdict": "v"}, TimeoutError("busy")])):
        run = thread.run({"q": "?"}) if mode == "sync" else asyncio.run(thread.arun({"q": "?"}))
        assert "busy" in str(run.error)
    name = type(program).__name__
    assert seen.calls == [name, "Predict", "Predict"]
    seen.calls.clear()
    with dspy.context(callbacks=[seen], lm=ScriptedLM([{"x": "done"}])):
        run = thread.resume() if mode == "sync" else asyncio.run(thread.aresume())
    assert seen.calls == [name, "Predict"]
    assert [step[2] for step in run.trace] == [dspy.Prediction(x="done")]


def test_usage_of_a_run_is_of_this_process_and_of_a_thread_of_all_processes(tmp_path: Path) -> None:
    program = build(SQLite(tmp_path / "runs.db"))
    thread = program.thread("t")
    assert thread.usage == {}

    def child() -> None:
        with dspy.context(lm=ScriptedLM([{"verdict": "v"}, TimeoutError("busy")])):
            assert program.thread("t").run({"q": "?"}).status == "failed"

    assert end_of(fork(child)) == 0
    first = thread.usage
    assert first["scripted"]["total_tokens"] > 0
    with dspy.context(lm=ScriptedLM([{"x": "done"}])):
        run = thread.resume()
    assert run.usage["scripted"]["total_tokens"] > 0
    assert thread.usage["scripted"]["total_tokens"] == sum(
        usage["scripted"]["total_tokens"] for usage in (first, run.usage)
    )
    with dspy.context(lm=ScriptedLM([{"verdict": "v"}, {"x": "done"}])):
        more = thread.run({"q": "?"})
    assert thread.usage["scripted"]["prompt_tokens"] == sum(
        usage["scripted"]["prompt_tokens"] for usage in (first, run.usage, more.usage)
    )
    assert thread.replay() == more.state


def test_a_program_that_is_called_stores_nothing() -> None:
    store = Memory()
    program = build(store)
    lm = ScriptedLM([{"verdict": "v"}, {"x": "done"}] * 4)
    with dspy.context(lm=lm):
        program(q="?")
        program.run({"q": "?"})
        list(program.stream({"q": "?"}))
    assert store.threads() == []
    with dspy.context(lm=lm):
        build(store).deepcopy().thread("t").run({"q": "?"})
    assert store.threads() == ["t"]


class Counting(SQLite):
    """Counts the rows that are read."""

    read = 0

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        found = super().rows(run, first, last)
        self.read += len(found)
        return found


def asked(thread: Thread, times: int) -> Thread:
    with dspy.context(lm=ScriptedLM([{"verdict": "v"}, {"x": "done"}] * times)):
        for _ in range(times):
            assert thread.run({"q": "?"}).status == "completed"
    return thread


def requests(thread: Thread) -> int:
    found: int = thread.usage["scripted"]["requests"]
    return found


def test_totals_stay_right_whatever_is_done_to_a_thread(tmp_path: Path) -> None:
    program = build(SQLite(tmp_path / "runs.db"))
    thread = asked(program.thread("t"), 3)
    assert requests(thread) == 6
    third = next(commit for commit in thread.history() if commit.id.startswith("t.3/"))
    thread.update({"x": "by hand"}, as_node="again")
    assert requests(thread) == 6
    assert requests(thread.copy("all")) == 6
    second = max(commit.version or 0 for commit in thread.history() if commit.id.startswith("t.2/"))
    early = asked(thread.copy("early", at=second), 1)
    assert requests(early) == 6
    thread.prune(before=third.id)
    assert requests(thread) == 6, "what was pruned was paid"
    assert requests(asked(thread, 1)) == 8
    failing = FailingMemory()
    crashed = asked(build(failing).thread("t"), 1)
    for goes_on, total in (("resume", 4), ("abandon", 7)):
        failing.arm(crash, 4, after=False)  # the commit of the second node: its request is lost
        with dspy.context(lm=ScriptedLM([{"verdict": "v"}, {"x": "done"}])), pytest.raises(Crash):
            crashed.run({"q": "?"})
        failing.rest()
        with dspy.context(lm=ScriptedLM([{"verdict": "v"}, {"x": "done"}][goes_on == "resume" :])):
            done = crashed.resume() if goes_on == "resume" else crashed.run({"q": "?"}, if_open="abandon")
        assert (done.status, requests(crashed)) == ("completed", total), "a crashed run counts once"


def test_totals_cost_the_same_at_any_length(tmp_path: Path) -> None:
    with Counting(tmp_path / "runs.db") as store:
        thread, read = build(store).thread("t"), []
        for more in (2, 28):
            asked(thread, more)
            store.read = 0
            assert thread.cost is not None or thread.usage
            read.append(store.read)
        assert read[1] <= read[0]


def test_a_merge_counts_what_was_pruned_before_it() -> None:
    store = Memory()
    thread = build(store).thread("t")
    lm = ScriptedLM([{"verdict": "v"}, {"x": "done"}] * 6)
    with dspy.context(lm=lm):
        for _ in range(3):
            assert thread.run({"q": "?"}).status == "completed"
        thread.prune(before="t.3/trunk:0")
        left, right = thread.copy(to="left"), thread.copy(to="right")
        for other in (left, right):
            assert other.run({"q": "?"}).status == "completed"
        assert (left.usage["scripted"]["requests"], right.usage["scripted"]["requests"]) == (8, 8)
        assert left.merge(right, policy="last_write_wins") is not None
        assert left.usage["scripted"]["requests"] == 10
        assert left.run({"q": "?"}).status == "completed"
    assert build(store).thread("left").usage["scripted"]["requests"] == len(lm.calls) == 12
