"""Views over the runs of a thread: after a crash, with concurrent runs, and where authors are not known any more."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, create_model

from dspyer import END, START, CompiledGraph, Context, Entry, Graph, Thread, reducers, view
from dspyer.stores import open_store
from dspyer.stores.base import Store
from tests.log.counting import Counting
from tests.rows import each


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


def keep(log: list[str]) -> None:
    SEEN.append(log)


READS = {"new": view("log").new(), "mine": view("own").own(), "calls": view("calls").new()}


def program(store: Store | str = ":memory:", **options: Any) -> CompiledGraph:
    graph = (
        Graph(Board, **{"keep": "all", **options}).add_node(write).add_node("look", look, reads=READS, writes=["own"])
    )
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


def test_fields_that_are_not_kept_start_anew_in_each_run() -> None:
    """Their default comes with each run, from `START`."""
    assert ask(program(keep=["own"]).thread("t"), "a", "b") == [
        (["default", "a"], [], 1),
        (["default", "b"], ["r0"], 1),
    ]


def test_a_resumed_run_gets_the_same_views() -> None:
    store = open_store(":memory:")
    thread = program(store).thread("t")
    ask(thread, "a")
    FAIL.add("look")
    assert thread.run({"question": "b"}).status == "failed"
    FAIL.clear()
    assert program(store).thread("t").resume().status == "completed"
    assert [SPANNING[0], SPANNING[1], SPANNING[1]] == SEEN


def test_a_copy_of_a_thread_has_read_what_the_thread_has_read() -> None:
    thread = program().thread("t")
    ask(thread, "a", "b")
    copy = thread.copy(to="u")
    assert ask(copy, "c")[-1] == SPANNING[2]
    assert ask(thread, "c")[-1] == SPANNING[2]


def test_a_manual_update_is_new_and_has_an_author() -> None:
    found: list[list[Entry]] = []

    def read(log: list[Entry]) -> dict[str, Any]:
        found.append(log)
        return {}

    graph = Graph(Board, keep="all").add_node("read", read, reads={"log": view("log").by("update", "START")}, writes=[])
    thread = graph.add_path(START, "read", END).compile(store=":memory:").thread("t")
    thread.run({"question": "a"})
    thread.update({"log": "manual"})
    thread.run({"question": "b"})
    assert [entry[:2] for entry in found[1]] == [("default", "START"), ("manual", "update")]
    assert len({entry.commit for entry in found[1]}) == 2


def test_the_entries_of_a_merged_thread_are_new() -> None:
    made = program(merge="last_write_wins")
    left = made.thread("left")
    ask(left, "a")
    right = left.copy(to="right")
    ask(left, "l")
    ask(right, "r")
    left.merge(right)
    assert sorted(ask(left, "z")[-1][0]) == ["z"]  # the node has seen both sides, each on its own
    assert sorted(SEEN[-1][1]) == ["r0", "r1", "r1"]


def test_authors_are_unknown_where_an_earlier_graph_had_another_reducer(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(":memory:")

    def thread_of(kind: Any) -> Thread:
        graph = Graph(create_model("Board", log=(kind, [])), keep="all")

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
    assert "it is unknown who wrote what to 'log' in older runs" in caplog.text


def test_authors_of_pruned_history_are_unknown_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_store(":memory:")
    thread = program(store).thread("t")
    ask(thread, "a", "b")
    thread.prune(before="t.2/trunk:0")
    with caplog.at_level(logging.WARNING, "dspyer"):
        assert ask(program(store).thread("t"), "c")[-1] == (["c"], ["r1"], 1)  # r0 was its own too
    assert caplog.text.count("since older history was pruned") == 3
    caplog.clear()
    thread.prune(before="t.3/trunk:0")
    graph = Graph(Board, keep="all").add_node("other", look, reads=READS, writes=["own"]).add_path(START, "other", END)
    with caplog.at_level(logging.WARNING, "dspyer"):
        graph.compile(store=store).thread("t").run({"question": "d"}).raise_error()
    assert SEEN[-1] == (["default", "a", "b", "c"], [], 3)
    assert caplog.text.count("since older history was pruned") == 3


@pytest.mark.parametrize("handles", ["one handle", "a handle for each run"])
def test_a_run_reads_the_same_number_of_rows_after_many_runs(handles: str) -> None:
    store = Counting()
    made = program(store)
    thread, read = made.thread("t"), []
    for number in range(100):
        store.read = 0
        thread = thread if handles == "one handle" else made.thread("t")
        thread.run({"question": str(number)}).raise_error()
        read.append(store.read)
    assert max(read[50:]) <= max(read[:50]) <= 400
    assert SEEN[-1][:1] == (["99"],)
    assert SEEN[-1][1] == [f"r{number}" for number in range(99)]


def test_a_new_process_reads_the_history_of_a_thread_once() -> None:
    store = Counting()
    older = program(store)
    for number in range(60):
        made = program(store) if number > 57 else older
        made.thread("t").run({"question": str(number)}).raise_error()
    assert SEEN[-1] == (["59"], [f"r{number}" for number in range(59)], 1)
    store.read = 0
    made = program(store)
    made.thread("t").run({"question": "x"}).raise_error()
    first, store.read = store.read, 0
    made.thread("t").run({"question": "y"}).raise_error()
    assert first <= 60 * 5 + 500
    assert store.read <= 400


@each("change", ["merged", "rerun", "manual", "a fork", "a copy", "resumed"])
def test_the_cache_agrees_with_the_whole_history(change: str) -> None:
    """A program that has run the thread shows the same as one that reads it anew."""
    store = open_store(":memory:")

    def compiled() -> CompiledGraph:
        graph = Graph(Board, keep="all", merge="last_write_wins", inputs=["question", "log"])
        graph.add_node(write).add_node("look", look, reads=READS, writes=["own"])
        graph.add_node("all", keep, reads={"log": view("log").last(99)}, writes=[])
        return graph.add_path(START, "write", "look", "all", END).compile(store=store)

    def ask(thread: Thread, *questions: str) -> None:
        for question in questions:
            thread.run({"question": question, "log": f"{question}?"}).raise_error()

    made = compiled()
    thread = made.thread("t")
    ask(thread, "a", "b")
    if change == "merged":
        twin = thread.copy(to="twin")
        ask(twin, "x")
        ask(thread, "y")
        thread.merge(twin)
    elif change == "rerun":
        thread.rerun(from_version=5).raise_error()
    elif change == "manual":
        thread.update({"log": "manual"})
        thread.update({"own": "look"}, as_node="look")
        thread.resume()
    elif change == "a copy":
        thread = thread.copy(to="u", at=3)
        ask(thread, "c")
    elif change == "resumed":
        FAIL.add("look")
        thread.run({"question": "f"})
        FAIL.clear()
        thread.resume().raise_error()
    ask(thread, "p", "q")
    twins = [thread.copy(to="one"), compiled().thread(thread.name).copy(to="two")]
    for other, owner in zip(twins, (made, compiled()), strict=True):
        ask(owner.thread(other.name), "r", "s")
    assert SEEN[-8:-4] == SEEN[-4:]
    assert SEEN[-1][-4:] == ["r?", "r", "s?", "s"]


def test_without_views_no_history_is_read() -> None:
    """What a later run reads does not grow with the runs before."""
    store = Counting()
    thread = Graph(Board, keep="all").add_node(write).add_path(START, "write", END).compile(store=store).thread("t")
    read = []
    for number in range(120):
        store.read = 0
        thread.run({"question": str(number)}).raise_error()
        read.append(store.read)
    assert max(read[80:]) <= max(read[:80])


@pytest.mark.parametrize("process", ["the same", "another"])
def test_after_pruning_each_process_gives_the_same_views(process: str) -> None:
    """The cache of a program has authors from before the pruning, which another process cannot read any more."""
    store = open_store(":memory:")
    made = program(store)
    ask(made.thread("t"), "a", "b")
    made.thread("t").prune(before="t.2/trunk:0")
    thread = (made if process == "the same" else program(store)).thread("t")
    thread.rerun(from_version="t.2/trunk:0").raise_error()
    assert SEEN[-1] == (["default", "a", "b"], [], 2)
    assert thread.replay() == thread.state


@pytest.mark.parametrize("change", ["rerun", "copy", "a rerun of a rerun", "a copy of a rerun"])
def test_views_of_a_rerun_or_copy_name_the_commits_of_the_history(change: str) -> None:
    """They keep their ids, as in `thread.history()`."""
    found: dict[str, list[str]] = {}

    def step(ctx: Context) -> dict[str, str]:
        found[ctx.execution] = [entry.commit for entry in ctx.view(view("log"))]
        return {"log": ctx.node}

    graph = Graph(Board, keep="all")
    for name in "abcd":
        graph.add_node(name, step, reads=["log"], writes=["log"])
    thread = graph.add_path(START, *"abcd", END).compile(store=":memory:").thread("t")
    thread.run({})
    if change.endswith("of a rerun"):
        thread.rerun(from_version=1).raise_error()
    if "copy" in change:
        thread = thread.copy(to="u", at=2)
        thread.resume().raise_error()
    else:
        thread.rerun(from_version=2).raise_error()
    history = [commit.id for commit in thread.history()]
    assert [found[name] for name in history[1:]] == [history[:count] for count in range(1, 5)]


def test_a_new_run_reads_no_earlier_rows_unless_a_view_looks_back() -> None:
    """This process has written the head of the thread. A view reads the runs since the last snapshot, each once."""

    def note(question: str, lines: list[str]) -> dict[str, Any]:
        return {"log": f"{question} after {len(lines)}"}

    read: dict[object, list[int]] = {"log": [], view("log").own(): []}
    for lines, counts in read.items():
        graph = Graph(Board, keep="all").add_node("note", note, reads={"question": "question", "lines": lines})
        store = Counting()
        program = graph.add_path(START, "note", END).compile(store=store)
        for number in range(3):
            store.read = 0
            run = program.thread("t").run({"question": str(number)})
            counts.append(store.read)
    assert list(run.state["log"]) == ["default", "0 after 0", "1 after 1", "2 after 2"]
    whole, own = read.values()
    assert whole == [0, 0, 0]
    assert own
