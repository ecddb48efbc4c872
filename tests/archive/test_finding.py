"""Finding runs by what they hold, with a bound on what is read for a page."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from dspyer import END, START, Archive, Budget, Graph
from dspyer.record import Record
from dspyer.stores import Memory
from dspyer.testing import ScriptedLM

LONG = "long " * 400 + "tail of it"


def filled() -> Memory:
    """Five runs: three that are completed, one that has failed, one that waits."""
    store = Memory()
    inner = Graph(name="Inner").add_node("tidy", lambda q: {"a": q.strip()}, writes=["a"]).add_path(START, "tidy", END)
    made = (
        Graph(name="Desk")
        .add_node("lead", inner)
        .add_node("sort", lambda a, n: {"r": {f"Key of{n}": [n / n]}}, writes=["r"])
    )
    made.add_node("ask", lambda q, ctx: {"ok": ctx.interrupt("ok", "Send Ärger?") if q == "wait" else 1}, writes=["ok"])
    desk = made.add_path(START, "lead", "sort", "ask", END).compile(store=store)
    for name, q, n in (("one", "refund 4711", 3), ("two", LONG, 5), ("bad", "nothing", 0), ("open", "wait", 7)):
        desk.thread(name).run({"q": q, "n": n})
    said = Graph(name="Talk").add_node("talk", dspy.Predict("q -> answer")).add_path(START, "talk", END)
    with ScriptedLM([{"answer": "Lisbon"}]):
        budget = Budget(cost=9.0, prices={"scripted": (1_000.0, 1_000.0)})
        said.compile(store=store, record_lm_calls="full").thread("lm").run({"q": "where?"}, budget=budget)
    return store


FOUND: list[tuple[dict[str, Any], str]] = [
    ({"contains": "REFUND"}, "one"),
    ({"contains": "TAIL of"}, "two"),
    ({"contains": "key OF7"}, "open"),
    ({"contains": "lambda a, n:"}, "bad"),
    ({"contains": "4711"}, "one"),
    ({"contains": "division by"}, "bad"),
    ({"contains": "send ärger"}, "open"),
    ({"contains": "lisbon"}, "lm"),
    ({"contains": "Your input fields are"}, "lm"),
    ({"contains": "desk"}, "open bad two one"),
    ({"contains": "tidy"}, "open bad two one"),
    ({"contains": "no such text"}, ""),
    ({"contains": "wait", "status": "completed"}, ""),
    ({"node": "ask"}, "open two one"),
    ({"node": "tidy"}, "open bad two one"),
    ({"node": "lead/tidy", "contains": "refund"}, "one"),
    ({"node": "gone"}, ""),
    ({"model": "scripted"}, "lm"),
    ({"model": "other"}, ""),
    ({"min_cost": 0.001}, "lm"),
    ({"min_cost": 0, "graph": "Desk"}, "open bad two one"),
    ({"min_cost": 1e9}, ""),
    ({"min_seconds": 0.0}, "lm open bad two one"),
    ({"min_seconds": 1e9}, ""),
]


@pytest.mark.parametrize(("method", "limit"), [("runs", 100), ("runs", 1), ("threads", 2)])
def test_runs_are_found_by_what_they_hold(method: str, limit: int) -> None:
    archive = Archive(filled())
    for filters, names in FOUND:
        found, after = list[str](), None
        while True:
            page = getattr(archive, method)(**filters, after=after, limit=limit)
            found += [info.thread for info in page]
            if (after := page.next) is None:
                break
        assert " ".join(found) == names, filters


def test_a_page_reads_a_bounded_number_of_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = Memory(), list[str]()
    graph = Graph().add_node("add", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "add", END)
    for number in range(7):
        graph.compile(store=store).thread(f"t{number}").run({"n": 100 * (number == 1)})
    archive, of = Archive(store), Record.of
    monkeypatch.setattr("dspyer.archive.archive.MOST_COMMITS", 6)
    monkeypatch.setattr(Record, "of", lambda steps, *rest: read.append(steps.label) or of(steps, *rest))
    pages, after = [], None
    while not pages or after is not None:
        page = archive.runs(contains="101", after=after)
        after = page.next
        pages.append([info.thread for info in page])
    assert (pages, read) == ([[], ["t1"], []], [f"t{number}.1" for number in range(6, -1, -1)])
    read.clear()
    assert len(archive.runs(contains="101", status="failed")) == len(archive.runs(contains="")) - 7 == len(read) == 0


@pytest.mark.parametrize("method", ["runs", "threads"])
def test_filters_that_can_be_none_are_refused(method: str) -> None:
    listing = getattr(Archive(Memory()), method)
    for option, value, error in (
        *[(name, -1, ValueError) for name in ("min_cost", "min_seconds")],
        *[(name, float("nan"), ValueError) for name in ("min_cost", "min_seconds")],
        *[(name, 3, TypeError) for name in ("contains", "node", "model")],
        *[(name, "cheap", TypeError) for name in ("min_cost", "min_seconds")],
    ):
        with pytest.raises(error, match=f"{option}="):
            listing(**{option: value})
    with pytest.raises(TypeError, match=r"archive\.runs\(contains=\.\.\.\)"):
        listing(text="x")
    with pytest.raises(TypeError, match=r"no (option|filter) 'contain'.* Did you mean 'contains'"):
        listing(contain="x")
