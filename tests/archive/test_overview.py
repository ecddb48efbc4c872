"""What runs come to: figures by graph, node and model, over processes, and what is not read for them."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dspy
import pytest

from dspyer import END, START, Archive, Graph
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Row
from dspyer.testing import ScriptedLM
from tests.log.failing import Crash, FailingMemory, crash


def test_figures_are_those_of_the_runs_whatever_processes_have_worked_on_them() -> None:
    store = FailingMemory()
    inner = Graph(name="Inner").add_node("say", dspy.Predict("q -> a")).add_path(START, "say", END)
    graph = Graph(name="Outer", inputs=["q"]).add_node("lead", inner).add_node("again", dspy.Predict("a -> b"))
    thread = graph.add_path(START, "lead", "again", END).compile(store=store).thread("t")
    with ScriptedLM([{"a": "x"}, {"b": "y"}, {"a": "x"}, {"b": "y"}]):
        store.arm(crash, 4, after=True)
        with pytest.raises(Crash):
            thread.run({"q": "?"})
        store.rest()
        thread.resume()
        thread.run({"q": "!"})
    thread.update({"b": "z"}, as_node="again")
    found = Archive(store).overview()
    used = thread.usage["scripted"]
    tokens = used["prompt_tokens"], used["completion_tokens"]
    assert (found.runs, found.failed, found.tokens, [one.name for one in found.graphs]) == (2, 0, tokens, ["Outer"])
    assert found.graphs[0][1:] == found.models[0][1:] == (2, 0, found.p50, found.p95, tokens, found.cost)
    assert {one.name: one.runs for one in found.nodes} == {"lead": 2, "again": 2}
    assert tuple(map(sum, zip(*[one.tokens for one in found.nodes], strict=True))) == tokens
    assert all(one.p50 is not None and 0 < one.p50 <= (found.p95 or 0) for one in found.nodes)


def test_a_run_that_comes_to_no_node_counts_and_a_correction_does_not() -> None:
    store = Memory()
    graph = Graph(keep=["n"]).add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_edge("add", END)
    thread = (
        graph.add_conditional_edges(START, lambda n: "add" if n else END, ["add", END]).compile(store=store).thread("t")
    )
    for n in (0, 1):
        thread.run({"n": n})
    thread.update({"n": 5})
    assert (Archive(store).overview().runs, len(Archive(store).runs())) == (2, 3)


class NoValues(SQLite):
    """Refuses to read rows that say nothing of an end."""

    closed = False

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        found = super().rows(run, first, last)
        assert not self.closed or [row.kind for row in found] == ["end"]
        return found

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        assert not self.closed
        return super().blobs(ids)


def test_failures_are_grouped_by_what_they_have_in_common(tmp_path: Path) -> None:
    def read(n: int) -> dict[str, int]:
        if n % 2:
            raise ValueError(f"page {n} of 4,711.5 is gone" if n < 7 else "no page")
        return {"m": n}

    store = NoValues(tmp_path / "runs.db")
    for name, last in (("A", 9), ("B", 4)):
        program = Graph(name=name).add_node("read", read, writes=["m"]).add_path(START, "read", END)
        for n in range(last):
            program.compile(store=store).thread(f"{name}{n}").run({"n": n})
    archive = Archive(store)
    store.closed = True
    found = archive.overview()
    assert [(one.graph, one.node, one.type, one.message, one.count) for one in found.failures] == [
        ("A", "read", "ValueError", "page # of # is gone", 3),
        ("B", "read", "ValueError", "page # of # is gone", 2),
        ("A", "read", "ValueError", "no page", 1),
    ]
    assert [(one.name, one.runs, one.failed) for one in (*found.graphs, *found.nodes)] == [
        ("A", 9, 4),
        ("B", 4, 2),
        ("read", 13, 6),
    ]
    assert archive.overview(graph="B")[1:3] == (4, 2)
    assert (sum(one.runs for one in found.buckets), sum(one.failed for one in found.buckets)) == (13, 6)
    assert found.since is not None
    day = timedelta(days=1)
    later = archive.overview(since=found.since - 9 * day)
    assert (later.since, later.runs, later.to_dict()["buckets"][-1]["runs"]) == (found.since - 9 * day, 13, 13)
    assert later.buckets[0].until - later.buckets[0].since == timedelta(hours=12)
    assert archive.overview(since=datetime.now(UTC) + day) == archive.overview(until=found.since - day)
    assert archive.overview(graph="gone").to_dict()["since"] is None
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    assert [line.split()[:3] for line in str(found).splitlines()[-4:]] == [
        ["node", "read", "13"],
        ["3", "x", "A,"],
        ["2", "x", "B,"],
        ["1", "x", "A,"],
    ]
