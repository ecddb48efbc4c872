"""Views over the runs of a thread, after a crash, beside other runs, and where nobody knows any more."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, create_model

from dspyer import END, START, CompiledGraph, Context, Entry, Graph, Thread, reducers, view
from dspyer.stores import open_store
from dspyer.stores.base import Store


class Board(BaseModel):
    question: str = ""
    log: Annotated[list[str], reducers.append] = ["default"]
    own: Annotated[list[str], reducers.append] = []
    calls: Annotated[int, reducers.increment] = 0


SEEN: list[Any] = []
FAIL: set[str] = set()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SEEN.clear()
    FAIL.clear()


def write(question: str) -> dict[str, Any]:
    return {"log": question, "own": question, "calls": 1}


def look(new: list[str], mine: list[str], calls: int, ctx: Context) -> dict[str, Any]:
    SEEN.append((new, mine, calls))
    if "look" in FAIL:
        raise ValueError("no")
    return {"own": f"r{len(mine)}"}


READS = {"new": view("log").new(), "mine": view("own").own(), "calls": view("calls").new()}


def program(store: Store | str = ":memory:", **options: Any) -> CompiledGraph:
    graph = Graph(Board, **options).add_node(write).add_node("look", look, reads=READS, writes=["own"])
    return graph.add_path(START, "write", "look", END).compile(store=store)


def ask(thread: Thread, *questions: str) -> list[Any]:
    for question in questions:
        thread.run({"question": question}).raise_error()
    return list(SEEN)


SPANNING = [(["default", "a"], [], 1), (["b"], ["r0"], 1), (["c"], ["r0", "r1"], 1)]


@pytest.mark.parametrize("handles", ["one handle", "a handle for each run"])
def test_new_and_own_span_the_runs_of_a_thread(handles: str) -> None:
    made = program()
    thread = made.thread("t")
    for question in "abc":
        thread = thread if handles == "one handle" else made.thread("t")
        ask(thread, question)
    assert SEEN == SPANNING
    assert thread.replay() == thread.state


def test_fields_that_are_not_kept_begin_anew() -> None:
    """Their default comes with each run, from `START`."""
    assert ask(program(keep=["own"]).thread("t"), "a", "b") == [
        (["default", "a"], [], 1),
        (["default", "b"], ["r0"], 1),
    ]


def test_a_run_that_is_taken_up_again_sees_the_same() -> None:
    store = open_store(":memory:")
    thread = program(store).thread("t")
    ask(thread, "a")
    FAIL.add("look")
    assert thread.run({"question": "b"}).status == "failed"
    FAIL.clear()
    assert program(store).thread("t").resume().status == "completed"
    assert [SPANNING[0], SPANNING[1], SPANNING[1]] == SEEN


def test_a_copy_of_a_thread_has_seen_what_the_thread_has() -> None:
    thread = program().thread("t")
    ask(thread, "a", "b")
    copy = thread.copy(to="u")
    assert ask(copy, "c")[-1] == SPANNING[2]
    assert ask(thread, "c")[-1] == SPANNING[2]


def test_what_was_changed_by_hand_is_new_and_has_an_author() -> None:
    found: list[list[Entry]] = []

    def read(log: list[Entry]) -> dict[str, Any]:
        found.append(log)
        return {}

    graph = Graph(Board).add_node("read", read, reads={"log": view("log").by("update", "START")}, writes=[])
    thread = graph.add_path(START, "read", END).compile(store=":memory:").thread("t")
    thread.run({"question": "a"})
    thread.update({"log": "by hand"})
    thread.run({"question": "b"})
    assert [entry[:2] for entry in found[1]] == [("default", "START"), ("by hand", "update")]
    assert len({entry.commit for entry in found[1]}) == 2


def test_runs_that_merge_into_a_thread_are_seen_once() -> None:
    thread = program().thread("t")
    ask(thread, "a")
    run = thread.run({"question": "b"}, on_conflict="merge")
    run.raise_error()
    ask(thread, "c")
    assert SEEN == SPANNING


def test_threads_that_were_merged_bring_what_is_new() -> None:
    made = program(merge="last_write_wins")
    left = made.thread("left")
    ask(left, "a")
    right = left.copy(to="right")
    ask(left, "l")
    ask(right, "r")
    left.merge(right)
    assert sorted(ask(left, "z")[-1][0]) == ["z"]  # the node has seen both sides, each on its own
    assert sorted(SEEN[-1][1]) == ["r0", "r1", "r1"]


def test_where_an_earlier_graph_folded_otherwise_nobody_knows(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(":memory:")

    def thread_of(kind: Any) -> Thread:
        graph = Graph(create_model("Board", log=(kind, [])))

        def write(ctx: Context) -> dict[str, Any]:
            return {"log": ["x"]}

        def look(log: list[Entry]) -> dict[str, Any]:
            SEEN.append([entry[:2] for entry in log])
            return {}

        graph.add_node("write", write, writes=["log"])
        reads = {"log": view("log").new()} if kind != list[str] else None
        graph.add_node("look", look if reads else lambda: None, reads=reads, writes=[])
        return graph.add_path(START, "write", "look", END).compile(store=store).thread("t")

    thread_of(list[str]).run({}).raise_error()
    with caplog.at_level(logging.WARNING, "dspyer"):
        thread_of(Annotated[list[str], reducers.extend]).run({}).raise_error()
    assert SEEN == [[("x", ""), ("x", "write")]]
    assert "nobody knows any more who brought what to 'log'" in caplog.text


def test_after_older_history_is_gone_all_of_it_is_new_and_it_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = program()
    thread = made.thread("t")
    ask(thread, "a")
    store = thread._store
    find = type(store).thread

    def pruned(self: Any, name: str) -> Any:
        row = find(self, name)
        return row if row is None else row._replace(root=row.head)

    monkeypatch.setattr(type(store), "thread", pruned)
    with caplog.at_level(logging.WARNING, "dspyer"):
        assert ask(made.thread("t"), "b")[-1] == (["default", "a", "b"], [], 2)
    assert caplog.text.count("since older history was pruned") == 3


def test_a_loop_in_a_run_reads_the_history_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from dspyer.durable.history import History

    made = program()
    ask(made.thread("t"), "a", "b")
    reads: list[Any] = []
    read = History.read

    def counting(self: Any, *args: Any) -> None:
        reads.append(args)
        read(self, *args)

    monkeypatch.setattr(History, "read", counting)
    ask(made.thread("t"), "c")
    assert len(reads) == 1


def test_without_views_no_history_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from dspyer.durable.history import History

    monkeypatch.setattr(History, "read", lambda *args: pytest.fail("nobody asked"))
    thread = Graph(Board).add_node(write).add_path(START, "write", END).compile(store=":memory:").thread("t")
    for question in "ab":
        thread.run({"question": question}).raise_error()
