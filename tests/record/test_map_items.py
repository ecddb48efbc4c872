"""`items(node)` of a run, a thread and an archived thread: how far a map is, wherever and however it stopped."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Archive, Budget, Context, Failure, Graph, Run, Send, reducers
from dspyer.errors import ThreadError
from dspyer.record import Items
from dspyer.stores import Memory
from tests.children import run_python

modes = pytest.mark.parametrize("mode", ["sync", "async"])


class Book(BaseModel):
    pages: list[int] = []
    halves: list[Any] = []
    lost: list[Failure] = []


def half(page: int, ctx: Context) -> float:
    if page == -1:
        raise KeyboardInterrupt
    if page == -2 and not ctx.interrupt("blank", "Blank?", bool):
        raise ValueError("blank")
    return 6 / page


def book(**options: Any) -> Graph:
    graph = Graph(Book, name="Book", inputs=["pages"])
    handler = options.pop("handler", None)
    graph.add_map("read", half, over="pages", item="page", into="halves", max_concurrency=1, **options)
    if handler:
        graph.add_node(handler, lambda: None, writes=[]).add_error_edge("read", handler).add_edge(handler, END)
    return graph.add_path(START, "read", END)


Case = tuple[list[int], dict[str, Any], str, tuple[int, int, int, int], dict[int, Any], dict[int, str]]
CASES: dict[str, Case] = {
    "completed": ([1, 2, 3], {}, "completed", (3, 3, 0, 0), {0: 6.0, 1: 3.0, 2: 2.0}, {}),
    "empty": ([], {}, "completed", (0, 0, 0, 0), {}, {}),
    "failed": ([1, 0, 3], {}, "failed", (3, 1, 1, 0), {0: 6.0}, {1: "ZeroDivisionError"}),
    "let pass": (
        [0, 2, 0],
        {"failures": "lost"},
        "completed",
        (3, 1, 2, 0),
        {1: 3.0},
        {0: "ZeroDivisionError", 2: "ZeroDivisionError"},
    ),
    "lost": (
        [0, 0],
        {"failures": "lost"},
        "failed",
        (2, 0, 2, 0),
        {},
        {0: "ZeroDivisionError", 1: "ZeroDivisionError"},
    ),
    "taken": ([1, -2, 0, 3], {"handler": "skip"}, "completed", (4, 1, 1, 0), {0: 6.0}, {2: "ZeroDivisionError"}),
    "waits": ([1, -2, 3], {}, "interrupted", (3, 2, 0, 1), {0: 6.0, 2: 2.0}, {}),
}


def figures(items: Items) -> tuple[tuple[int, int, int, int], dict[int, Any], dict[int, str]]:
    failures = {index: failure.type for index, failure in items.failures.items()}
    return (items.total, items.done, items.failed, items.waiting), dict(items.results), failures


@modes
@pytest.mark.parametrize("case", CASES)
def test_a_run_a_thread_and_an_archive_say_the_same(case: str, mode: str, tmp_path: Path) -> None:
    pages, options, status, *expected = CASES[case]
    store = tmp_path / "runs.db"
    stored, plain = book(**options).compile(store=store), book(**options).compile()
    thread = stored.thread("t")
    for target in (thread, plain):
        run: Run = target.run({"pages": pages}) if mode == "sync" else asyncio.run(target.arun({"pages": pages}))
        assert run.status == status
        assert list(figures(run.items("read"))) == expected
    with Archive(store) as archive:
        for reader in (thread, stored.thread("t"), archive.thread("t")):
            assert list(figures(reader.items("read"))) == expected
            assert figures(reader.items("read", "t.1")) == figures(run.items("read"))
            with pytest.raises(ThreadError, match="no run"):
                reader.items("read", "t.9")


def test_the_items_of_a_stopped_run_and_of_its_resume(tmp_path: Path) -> None:
    calls: list[int] = []

    def count(page: int) -> int:
        calls.append(page)
        if len(calls) == 3:
            thread.stop()
        return page

    graph = Graph(Book, inputs=["pages"])
    graph.add_map("read", count, over="pages", item="page", into="halves", max_concurrency=1).add_path(
        START, "read", END
    )
    thread = graph.compile(store=tmp_path / "runs.db").thread("t")
    run = thread.run({"pages": [7, 8, 9, 10, 11]})
    assert (run.status, str(thread.items("read"))) == ("stopped", "read: 2 of 5 items")
    assert thread.items("read").results == run.items("read").results == {0: 7, 1: 8}
    assert str(thread.resume().items("read")) == str(thread.items("read")) == "read: 5 of 5 items"
    assert calls == [7, 8, 9, 9, 10, 11], "the item that ended after the stop was not kept"


def test_of_a_damaged_list_the_items_that_are_left_are_counted(tmp_path: Path) -> None:
    program = book().compile(store=tmp_path / "runs.db")
    assert program.thread("t").run({"pages": [1, 2, 0]}).status == "failed"
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE entry SET body = 'no body' WHERE seq = 0")
    with Archive(tmp_path / "runs.db") as archive:
        items = archive.thread("t").items("read")
    assert figures(items) == ((3, 2, 1, 0), {0: 6.0, 1: 3.0}, {2: "ZeroDivisionError"})


CHILD = """
import os, sys
from dspyer import END, START, Graph
from dspyer import Archive

def look(page):
    if page == 2:
        print(Archive(sys.argv[1]).thread("t").items("read"), flush=True)  # while it runs
        os._exit(9)
    return page * 10

graph = Graph(inputs=["pages"], name="Book")
graph.add_map("read", look, over="pages", item="page", into="tens", max_concurrency=1).add_path(START, "read", END)
graph.compile(store=sys.argv[1]).thread("t").run({"pages": [0, 1, 2, 3]})
"""


def test_while_another_process_runs_it_and_after_it_died(tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "runs.db")
    done = run_python(CHILD, path)
    assert done.stdout.strip() == "read: 2 of 4 items"
    with Archive(path) as archive:
        items = archive.thread("t").items("read")
    assert (str(items), items.results) == ("read: 2 of 4 items", {0: 0, 1: 10})


def test_a_thread_that_is_asked_again_reads_on() -> None:
    store, seen = Memory(), list[str]()

    def look(page: int) -> int:
        seen.append(str(reader.items("read")))
        return page

    graph = Graph(Book, inputs=["pages"])
    graph.add_map("read", look, over="pages", item="page", into="halves", max_concurrency=1).add_path(
        START, "read", END
    )
    reader = graph.compile(store=store).thread("t")
    graph.compile(store=store).thread("t").run({"pages": [1, 2, 3]})
    assert seen == ["read: 0 of 3 items", "read: 1 of 3 items", "read: 2 of 3 items"]
    assert str(reader.items("read")) == "read: 3 of 3 items"


def test_what_is_no_map_and_a_map_that_was_not_reached() -> None:
    thread = book().compile(store=":memory:").thread("t")
    run = thread.run({"pages": [1]})
    for reader in (run, thread):
        with pytest.raises(KeyError, match=r"'reed' is no map of graph 'Book'; its maps: 'read'"):
            reader.items("reed")
    first = Graph(Book, inputs=["pages"]).add_node("fail", lambda pages: 1 / 0, writes=["halves"])
    first.add_map("read", half, over="pages", item="page", into="halves").add_path(START, "fail", "read", END)
    assert figures(first.compile().run({"pages": [1]}).items("read")) == ((0, 0, 0, 0), {}, {})


def test_the_list_of_a_send_and_the_last_of_several_visits() -> None:
    class Sent(Book):
        halves: Annotated[list[Any], reducers.append] = []

    graph = Graph(Sent, inputs=["pages"])
    graph.add_node("split", lambda pages: {}, reads=["pages"], writes=[])
    graph.add_map("read", half, over="pages", item="page", into="halves", max_concurrency=1)
    graph.add_edge(START, "split").add_conditional_edges(
        "split", lambda pages: [Send("read", {"pages": pages[:1]}), Send("read", {"pages": pages[1:]})], ["read"]
    ).add_edge("read", END)
    run = graph.compile().run({"pages": [1, 2, 0]})
    assert figures(run.items("read")) == ((2, 1, 1, 0), {0: 3.0}, {1: "ZeroDivisionError"})


def test_values_are_whole_where_the_record_hides_them() -> None:
    run = book().compile(redact="halves").run({"pages": [1]})
    assert run.items("read").results == {0: 6.0}
    assert run.record().steps[-1].wrote["result"].value == "[redacted]"


def test_a_budget_that_stops_a_run_without_a_store_leaves_its_results() -> None:
    inner = Graph(inputs=["page"]).add_node("half", lambda page: {"value": 6 / page}, writes=["value"])
    graph = Graph(Book, inputs=["pages"])
    graph.add_map(
        "read", inner.add_path(START, "half", END), over="pages", item="page", into="halves", max_concurrency=1
    )
    run = graph.add_path(START, "read", END).compile(budget=Budget(node_calls=3)).run({"pages": [1, 2, 3]})
    assert run.status == "stopped"
    assert run.items("read").total == 3
    assert run.items("read").done == len(run.items("read").results) > 0
