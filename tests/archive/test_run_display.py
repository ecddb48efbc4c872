"""Reports and pictures of stored runs are those that the run itself gives, for any graph and any end."""

from __future__ import annotations

import random
import re
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspyer import END, START, Archive, Budget, Context, Graph, Run
from dspyer.errors import MergeConflictError
from dspyer.stores import Memory
from dspyer.testing import no_pauses
from tests.log.kinds import KINDS
from tests.log.test_error_edges_of_random_graphs import Behaviour, Faults, faulty_plans
from tests.scheduler.test_schedule import Plan

TIMES = re.compile(r"\d[\d.,]* (µs|ms|s)\b|\d+:\d\d")


def without_times(text: str) -> str:
    return " ".join(TIMES.sub("T", text).split())  # the width of times moves line breaks


def check_displays(run: Run, store: Any, thread: str) -> None:
    """Compare what a run and the archive say."""
    with Archive(store) as archive:
        stored = archive.thread(thread)
        report = run.report()
        if run.status == "stopped":  # why is not stored
            report = report.rpartition("\n\n")[0]
        if isinstance(run.error, MergeConflictError):
            commits = [without_times(line) for line in report.splitlines() if "●" in line]
            assert [without_times(line) for line in stored.report().splitlines() if "●" in line] == commits
            assert f"MergeConflictError: {str(run.error)[:40]}" in stored.report()
        else:
            assert without_times(stored.report(run.run_id)) == without_times(report)
            # The order of edges is not stored, so with an error edge beside another one a round may begin elsewhere.
            pictures = [
                re.sub(", the next round|, a round begins here", "", svg)
                for svg in (stored.to_svg(run.run_id), run.to_svg())
            ]
            drawn, shown = (sorted(re.findall("<title>.*</title>", svg)) for svg in pictures)
            assert drawn == shown
        assert {name: node.visits for name, node in stored.stats().nodes.items()} == {
            name: node.visits for name, node in run.stats().nodes.items()
        }


@settings(max_examples=settings().max_examples * 3 // 5, report_multiple_bugs=False)
@given(faulty_plans(), st.integers(0, 2**32))
def test_any_graph_with_failures(plan: tuple[Plan, Faults], seed: int) -> None:
    store = Memory()
    with no_pauses():
        run = Behaviour(*plan).program(random.Random(seed), store, is_async=False).thread("t").run({})
    check_displays(run, store, "t")


def test_every_kind_of_graph() -> None:
    for name, kind in KINDS.items():
        store = Memory()
        with kind.lm():
            run = kind.compile("sync", store).thread("t").run({"q": "why"})
        assert run.status == "completed", (name, run.error)
        check_displays(run, store, "t")


def test_a_node_of_less_than_a_microsecond_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cut to 0 microseconds when it was stored, and a report says nothing of those."""
    store = Memory()
    monkeypatch.setattr("time.perf_counter", partial(next, count(0.0, 4e-7)))
    run = two_sides().compile(store=store).thread("t").run({"n": 1})
    monkeypatch.undo()
    check_displays(run, store, "t")
    assert "(step 0, " in Archive(store).thread("t").report()


def two_sides(ask: bool = False, fail: bool = False, stop: bool = False) -> Graph:
    def left(n: int, ctx: Context) -> dict[str, Any]:
        return {"a": ctx.interrupt("go", "Go on?", int) if ask else n}

    def right(n: int) -> dict[str, Any]:
        if fail:
            raise ValueError(f"cannot <b>do</b> it {n}\nreally")
        return {"b": n}

    graph = Graph(name="Sides").add_node("plan", lambda n: {"m": n}, writes=["m"])
    graph.add_node(left, writes=["a"]).add_node(right, writes=["b"]).add_node("judge", lambda a, b: {"c": a + b})
    graph.add_path(START, "plan").add_edge("plan", ["left", "right"]).add_edge(["left", "right"], "judge")
    return graph.add_edge("judge", END)


@pytest.mark.parametrize("options", [{"ask": True}, {"fail": True}, {"ask": True, "fail": True}], ids=str)
def test_runs_that_ask_and_fail(options: dict[str, bool]) -> None:
    store = Memory()
    run = two_sides(**options).compile(store=store).thread("t").run({"n": 1})
    assert run.status in ("interrupted", "failed")
    check_displays(run, store, "t")


def test_a_second_run_of_a_thread_and_a_resumed_one() -> None:
    store = Memory()
    thread = two_sides(ask=True).compile(store=store).thread("t")
    thread.run({"n": 1})
    thread.resume({"go": 3})
    second = thread.run({"n": 2})
    check_displays(second, store, "t")
    resumed = thread.resume({"go": 4})
    with Archive(store) as archive:
        stored = archive.thread("t")
        whole = without_times(stored.report()).partition("●")
        assert whole[0].startswith("Run completed in T: graph 'Sides', 6 commits, 4 node calls")
        assert whole[2] == without_times(resumed.report()).partition("●")[2]
        assert stored.to_svg("t.1").count(": function, ran 1 time<") == 4


def test_a_stopped_run() -> None:
    store = Memory()
    program = two_sides().compile(store=store)
    run = program.thread("t").run({"n": 1}, budget=Budget(seconds=1e-9))
    assert run.status == "stopped"
    check_displays(run, store, "t")


def test_items_of_a_map() -> None:
    def read(doc: int) -> int:
        return 10 // doc

    store = Memory()
    graph = Graph(name="Corpus").add_map("read", read, over="docs", item="doc", into="facts", failures="unread")
    run = graph.add_path(START, "read", END).compile(store=store).thread("t").run({"docs": [1, 0, 2, 0, 3]})
    assert "3 items of 'read', 2 failed" in run.report()
    check_displays(run, store, "t")
