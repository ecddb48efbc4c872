"""Finding runs by what they hold, with a bound on what is read for a page."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import END, START, Archive, Budget, Graph
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Row
from dspyer.testing import ScriptedLM

LONG = 'the "key"\n' + "long " * 400 + "tail of it"


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
    ({"contains": 'the "key"\n'}, "two"),
    ({"contains": "prompt_tokens"}, ""),
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
    ({"contains": ", "}, "lm bad"),
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


@pytest.mark.parametrize("hides", ["patterns", "a function"])
def test_a_hidden_value_is_not_found(hides: str) -> None:
    def hide(path: tuple[Any, ...], value: Any) -> Any:
        return "hidden" if path[0] == "key" else value

    def fail(key: str) -> dict[str, Any]:
        raise ValueError(f"refused {key!r}, of Ada")

    store = Memory()
    graph = Graph(name="Vault", inputs=["key", "by"]).add_node("use", fail, writes=["a"]).add_path(START, "use", END)
    made = graph.compile(store=store, redact=["key"] if hides == "patterns" else hide)
    made.thread("t").run({"key": "sesame-9", "by": "Ada"})
    for text, shown in (("SESAME", False), ("Vault", True), ("Ada", hides == "patterns")):
        for archive, expected in ((Archive(store), shown), (Archive(store, redact=False), True)):
            assert (len(archive.runs(contains=text)) == 1) is expected, text
    assert "sesame" not in str(Archive(store).overview())


def test_of_a_damaged_run_the_rest_is_shown_and_found(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLite(path) as store:
        graph = Graph().add_node("one", lambda n: {"a": "first word"}, writes=["a"])
        graph.add_node("two", lambda n: {"b": "second word"}, writes=["b"]).add_path(START, "one", "two", END)
        graph.compile(store=store).thread("t").run({"n": 1})
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE entry SET body = 'no body' WHERE seq = 3")
    with Archive(path) as archive:
        steps = archive.thread("t").record().steps
        assert [(step.node, step.status) for step in steps[:2]] == [("START", "done"), ("one", "done")]
        assert [bool(step.reason) for step in steps] == [False, False, True]
        assert (steps[2].status, len(archive.runs(contains="first"))) == ("unreadable", 1)
        assert archive.runs(contains="second") == ()


class Counting(Memory):
    """Notes the runs of which many rows are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        found = super().rows(run, first, last)
        self.read += [run] if len(found) > 100 else []
        return found


def test_a_page_reads_a_bounded_number_of_commits() -> None:
    store = Counting()
    graph = Graph().add_map("each", lambda item: {"found": item}, over="items", item="item", into="found")
    thread = graph.add_path(START, "each", END).compile(store=store).thread("t0")
    run, archive, after, pages = thread.run({"items": [1] * 4_500}), Archive(store), None, list[list[str]]()
    for number in range(1, 4):
        thread.copy(f"t{number}")
    while not pages or after is not None:
        store.read.clear()
        page = archive.threads(contains="each", after=after, limit=10)
        after = page.next
        pages.append([info.thread for info in page])
        assert store.read == [run.run_id] * 2
    assert [sorted(page) for page in pages] == [["t2", "t3"], ["t0", "t1"]]
    store.read.clear()
    assert (len(archive.runs(contains="1", status="failed")), len(archive.runs(contains="")), store.read) == (0, 1, [])


def test_a_short_run_has_taken_no_time_or_more() -> None:
    store = Memory()
    program = Graph().add_node("a", lambda n: {"n": 1}, writes=["n"]).add_path(START, "a", END).compile(store=store)
    for number in range(40):
        program.thread(f"t{number}").run({"n": 0})
    assert len(Archive(store).runs(min_seconds=0)) == 40


@pytest.mark.parametrize("method", ["runs", "threads"])
def test_filters_that_can_be_none_are_refused(method: str) -> None:
    listing = getattr(Archive(Memory()), method)
    for option, value, error in (
        *[(name, -1, ValueError) for name in ("min_cost", "min_seconds")],
        *[(name, float("nan"), ValueError) for name in ("min_cost", "min_seconds")],
        *[(name, 3, TypeError) for name in ("contains", "node", "model")],
        *[(name, "cheap", TypeError) for name in ("min_cost", "min_seconds")],
        *[("after", f"1,{place}", ValueError) for place in ("", "x\0,t", "\ud800,t", "x,\ud800")],
    ):
        with pytest.raises(error, match=f"{option}="):
            listing(**{option: value})
    with pytest.raises(TypeError, match=r"archive\.runs\(contains=\.\.\.\)"):
        listing(text="x")
    with pytest.raises(TypeError, match=r"no (option|filter) 'contain'.* Did you mean 'contains'"):
        listing(contain="x")


# --- questions and examples


def test_questions_are_what_last_runs_wait_for_the_longest_first() -> None:
    store = Counting()
    graph = Graph(name="Desk").add_node("plan", lambda n: {"m": n}, writes=["m"])
    graph.add_interrupt("ok", question="Send {m}?", answer=bool, into="sent", expires=3_600).add_path(
        START, "plan", "ok", END
    )
    made = graph.compile(store=store)
    runs = [made.thread(f"t{n}").run({"n": n}) for n in range(4)]
    made.thread("t1").resume({"ok": True})
    made.thread("t2").run({"n": 9}, if_open="abandon")
    made.thread("t0").copy("copy")
    found = Archive(store).questions()
    assert [(one.thread, one.question.text) for one in found] == [
        ("t0", "Send 0?"),
        ("t3", "Send 3?"),
        ("t2", "Send 9?"),
    ]
    assert found[0].question == runs[0].questions[0]
    assert [one.since for one in found] == sorted(one.since for one in found)
    assert found[0].to_dict() == {
        "thread": "t0",
        "run_id": runs[0].run_id,
        "question": runs[0].questions[0].to_dict(),
        "since": found[0].since.isoformat(),
        "graph": made.graph.name,
    }
    made.thread("t0").resume({"ok": False})
    assert [one.thread for one in Archive(store).questions()] == ["t3", "t2"]


def test_examples_are_of_the_runs_that_are_chosen() -> None:
    store = Memory()
    inner = Graph(name="In").add_node("judge", dspy.Predict("text -> label")).add_path(START, "judge", END)
    graph = Graph(name="Out").add_node("sort", dspy.Predict("text -> topic")).add_node("lead", inner)
    made = graph.add_path(START, "sort", "lead", END).compile(store=store)
    with ScriptedLM([one for n in range(3) for one in ({"topic": f"topic {n}"}, {"label": f"label {n}"})]):
        for n in range(3):
            made.thread(f"t{n}").run({"text": f"text {n}"})
    made.thread("t0").copy("copy")
    archive = Archive(store)
    assert [dict(one) for one in archive.examples("sort")] == [
        {"text": f"text {n}", "topic": f"topic {n}"} for n in range(3)
    ]
    assert [(one.inputs().keys(), one.label) for one in archive.examples("lead/judge", contains="topic 1")] == [
        (["text"], "label 1")
    ]
    assert [one.topic for one in archive.examples("sort", limit=1)] == ["topic 2"]
    assert archive.examples("sort", status="failed") == archive.examples("gone", graph="gone") == []
    with pytest.raises(LookupError, match=r"'judge'.*'sort', 'lead/judge'|'judge'.*'lead/judge'"):
        archive.examples("judge")
    with pytest.raises(TypeError, match=r"no filter 'statu'.* Did you mean 'status'"):
        archive.examples("sort", statu="failed")
    assert len(archive.examples("sort", graph="Out", limit=2)) == 2
