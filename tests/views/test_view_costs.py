"""The cost of views, measured in function calls and bytes, never in seconds."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from typing import Any

import pytest

from bench.growth_views import READS, Board
from dspyer import END, START, Context, Graph, Run, View, view


def played(rounds: int, read: Any, **more: Any) -> Run:
    """A writer and a reader, one after the other."""

    def write(ctx: Context) -> dict[str, Any]:
        visit = ctx.visit
        said = {"role": "user", "content": f"message {visit}"}
        return {"log": f"entry {visit}", "table": {f"key {visit}": visit}, "total": 1, "messages": said}

    graph = Graph(Board).add_node("write", more.get("write", write), writes=["log", "table", "total", "messages"])
    graph.add_node("look", more.get("look", lambda seen: {"log": "seen"}), reads={"seen": read}, writes=["log"])
    graph.add_path(START, "write", "look")
    graph.add_conditional_edges("look", lambda ctx: "write" if ctx.visit < rounds else END, ["write", END])
    run = graph.compile(max_steps=10_000).run({})
    run.raise_error()
    return run


def calls_of_a_late_round(rounds: int, read: Any) -> int:
    """How many functions of Python are called from one visit of the writer, near the end, to the next."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    def write(ctx: Context) -> dict[str, Any]:
        sys.setprofile(count if ctx.visit == rounds - 1 else None)
        said = {"role": "user", "content": f"message {ctx.visit}"}
        return {"log": f"entry {ctx.visit}", "table": {f"key {ctx.visit}": 1}, "total": 1, "messages": said}

    try:
        played(rounds, read, write=write)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_visit_makes_as_many_calls_after_many_visits(read: Any) -> None:
    few, many = calls_of_a_late_round(70, read), calls_of_a_late_round(560, read)
    assert few > 50
    assert many < 1.5 * few


WHOLE: list[View | str] = [view("log").others(), view("log").own(), view("messages"), "log"]


@pytest.mark.parametrize("read", WHOLE, ids=repr)
def test_memory_grows_with_the_commits_of_a_run(read: Any) -> None:
    """Nothing is kept of what a view has shown, however large that was."""

    def held(rounds: int) -> int:
        gc.collect()
        tracemalloc.start()
        try:
            run = played(rounds, read)
            gc.collect()
            size = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert run.view_tokens().full > 0
        return size

    held(10)
    few, many = held(30), held(120)
    assert many < 4.6 * few
