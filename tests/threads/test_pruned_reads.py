"""Reads of a thread whose older history was pruned: nothing is read behind the pruning."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspyer import END, START, Graph


def test_history_inside_of_a_pruned_thread() -> None:
    inner = Graph(inputs=["n"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    graph = Graph(inputs=["n"]).add_node("inner", inner).add_path(START, "inner", END)
    thread = graph.compile(store=":memory:").thread("t")
    for _ in range(3):
        thread.run({"n": 1})
    thread.prune(before=4)
    assert [commit.node for commit in thread.history(inside=5)] == ["START", "add"]


def test_writers_of_a_pruned_thread_whose_fields_are_older() -> None:
    graph = Graph(inputs=["n"], keep="all").add_node("add", lambda n: {"n": n + 1}, writes=["n"])
    program = graph.add_path(START, "add", END).compile(store=":memory:")
    thread = program.thread("t")
    thread.run({"n": 1})
    thread.update({"old": 1})
    for _ in range(4):
        thread.run({"n": 1})
    thread.prune(before=5)
    again = program.thread("t")
    assert {field: again.blame(field).node for field in ("n", "old")} == {"n": "add", "old": "pruned"}


def test_a_record_of_a_run_that_a_copy_shares_with_a_pruned_thread(caplog: pytest.LogCaptureFixture) -> None:
    graph = Graph(inputs=["n"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    program = graph.compile(store=":memory:")
    thread = program.thread("t")
    thread.run({"n": 1})
    thread.run({"n": 1})
    copy = thread.copy("copy", at="t.1/trunk:0")
    thread.prune(before="t.2/trunk:0")
    record = copy.record("t.1")
    assert record.status == "crashed", "its end was pruned"
    assert [(step.node, step.status) for step in record.steps] == [("START", "done"), ("add", "stopped")]
    assert not caplog.records


def test_a_record_of_a_run_behind_a_merge_that_a_copy_has() -> None:
    graph = Graph(keep=["seen"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    program = graph.compile(store=":memory:")
    thread = program.thread("t")
    thread.run({"n": 1})
    other = thread.copy("other")
    other.run({"n": 5})
    thread.update({"seen": 1})
    thread.merge(other)
    copy = thread.copy("copy")
    assert {copy.record(run).id for run in ("t.1", "other.1")} == {"t.1", "other.1"}


def test_a_record_of_the_run_at_which_a_loaded_history_begins(tmp_path: Path) -> None:
    graph = (
        Graph(keep=["old"])
        .add_node("add", lambda n: {"n": n + 1}, writes=["n"])
        .add_node("last", lambda n: {"m": 1 // n})
    )
    program = graph.add_path(START, "add", "last", END).compile(store=":memory:")
    thread = program.thread("t")
    thread.update({"old": 1})
    thread.run({"n": 1})
    thread.run({"n": 1})
    assert thread.run({"n": -1}).status == "failed"
    thread.run({"n": 1}, if_open="abandon")
    whole = thread.copy("whole")
    thread.prune(before=thread.history()[-3].id)
    thread.export(tmp_path / "t.jsonl")
    program.thread("loaded").load(tmp_path / "t.jsonl")
    whole.prune(before="t.4/trunk:0")
    for name in ("t", "loaded"):
        assert [step.node for step in program.thread(name).record("t.4").steps] == ["pruned", "last"]
