"""Reads of a thread whose older history was pruned: nothing is read behind the pruning."""

from __future__ import annotations

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
    graph = Graph(inputs=["n"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    program = graph.compile(store=":memory:")
    thread = program.thread("t")
    thread.run({"n": 1})
    thread.update({"old": 1})
    for _ in range(4):
        thread.run({"n": 1})
    thread.prune(before=5)
    again = program.thread("t")
    assert {field: again.blame(field).node for field in ("n", "old")} == {"n": "add", "old": "pruned"}
