"""`optimize.dataset`: what becomes gold of stored runs and their corrections, and what must not."""

from __future__ import annotations

import gc
import logging
import sqlite3
from collections import Counter
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Archive, CompiledGraph, Graph, Kept
from dspyer.errors import StoreError
from dspyer.optimize import by_field, dataset, equals
from dspyer.stores import Memory, Store
from dspyer.stores.encrypted import Encrypted
from tests.rows import each

GOLD = {"gold_label": "label", "gold_answer": "answer"}


class State(BaseModel):
    text: str = ""
    label: str = ""
    answer: str = ""
    notes: dict[str, Any] = {}
    turns: Kept[int] = 0


def sort(text: str, turns: int) -> dict[str, Any]:
    if text == "bad":
        raise ValueError("cannot sort it")
    return {"label": f"label {text}", "notes": {"by": "sort", "words": {"n": 1}}, "turns": turns + 1}


def program(store: Any, name: str = "Desk", **options: Any) -> CompiledGraph:
    """text -> label, notes -> answer."""
    graph = Graph(State, name=name, inputs=["text"]).add_node("sort", sort, writes=["label", "notes", "turns"])
    graph.add_node("reply", lambda label: {"answer": f"re: {label}"}, writes=["answer"])
    return graph.add_path(START, "sort", "reply", END).compile(store=store, **options)


def rows(store: Store | str, gold: Any = GOLD, **options: Any) -> list[tuple[Any, ...]]:
    """The values of each example in short, and what was corrected."""
    with Archive(store) as archive:
        found = dataset(archive, gold, **options)
    return [(*(one[name] for name in ("text", *gold)), one.corrected) for one in found]


@pytest.fixture(params=["memory", "sqlite", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return Memory()
    path = str(tmp_path / "runs.db")
    return path if request.param == "sqlite" else Encrypted(path, Encrypted.new_key())


def test_corrections_of_a_run_are_gold_until_the_next_run_begins(store: Any) -> None:
    desk = program(store)
    thread = desk.thread("a")
    thread.run({"text": "a1"})
    thread.update({"label": "first"}, as_node="sort")
    thread.update({"answer": "better"}, as_node="reply")
    thread.update({"label": "second"}, as_node="sort")
    thread.run({"text": "a2"}, if_open="abandon")
    thread = desk.thread("b")
    thread.run({"text": "b1"})
    thread = desk.thread("a")
    thread.update({"answer": "late"}, as_node="reply")
    expected = [
        ("a1", "second", "better", ["label", "answer"]),
        ("a2", "label a2", "late", ["answer"]),
        ("b1", "label b1", "re: label b1", []),
    ]
    assert rows(store) == expected
    assert rows(store, corrected=True) == expected[:2]
    assert rows(store, {"gold_label": "label"}, corrected=True) == [("a1", "second", ["label"])]


def test_the_examples_fit_the_program_that_made_the_runs() -> None:
    store = Memory()
    desk = program(store)
    desk.thread("a").run({"text": "x"})
    desk.thread("a").update({"label": "y"}, as_node="sort")
    (example,) = dataset(Archive(store), GOLD)
    assert example.inputs().keys() == ["text"]
    metric = by_field({"label": equals("gold_label"), "answer": equals("gold_answer")}, goal="label")
    metric.validate(desk, [example])
    assert metric(example, desk(**example.inputs())) == 0


def test_a_run_that_a_correction_continues_has_what_followed_from_it() -> None:
    store = Memory()
    thread = program(store).thread("a")
    thread.run({"text": "x"})
    thread.update({"label": "right"}, as_node="sort")
    assert thread.status == "stopped"
    assert rows(store) == [("x", "right", "re: label x", ["label"])], "nothing was made of the correction yet"
    thread.resume()
    assert rows(store) == [("x", "right", "re: right", ["label"])]


def test_a_value_that_was_written_again_after_an_edit_is_not_corrected() -> None:
    store = Memory()
    thread = program(store).thread("a")
    thread.run({"text": "x"})
    thread.update({"answer": "mine", "label": "right"}, as_node="sort")
    thread.resume()
    assert rows(store) == [("x", "right", "re: right", ["label"])]


def test_an_edit_within_an_open_run_is_a_correction() -> None:
    store, known = Memory(), list[str]()

    def reply(label: str) -> dict[str, str]:
        if label not in known:
            raise LookupError(label)
        return {"answer": f"re: {label}"}

    graph = Graph(State, name="Desk", inputs=["text"]).add_node("sort", sort, writes=["label", "notes", "turns"])
    graph.add_node("reply", reply, writes=["answer"]).add_path(START, "sort", "reply", END)
    thread = graph.compile(store=store).thread("a")
    assert thread.run({"text": "x"}).status == "failed"
    thread.update({"label": "right"})
    known.append("right")
    assert thread.resume().status == "completed"
    assert rows(store) == [("x", "right", "re: right", ["label"])]


def test_a_part_of_a_field_can_be_corrected() -> None:
    store = Memory()
    thread = program(store).thread("a")
    thread.run({"text": "x"})
    thread.update({"notes": {"words": {"n": 7}}}, as_node="sort")
    ((_, notes, corrected),) = rows(store, {"gold_notes": "notes"})
    assert (notes, type(notes), corrected) == ({"by": "sort", "words": {"n": 7}}, dict, ["notes"])


def test_only_completed_runs_and_only_what_they_were_given() -> None:
    store = Memory()
    graph = Graph(State, name="Asks", inputs=["text"]).add_interrupt("ask", question="Well?", answer=str, into="label")
    asks = graph.add_path(START, "ask", END).compile(store=store)
    asks.thread("open").run({"text": "open"})
    asks.thread("answered").run({"text": "answered"})
    asks.thread("answered").resume({"ask": "good"})
    desk = program(store)
    thread = desk.thread("desk")
    thread.run({"text": "one"})
    thread.update({"label": "two"}, as_node="sort")
    assert thread.run({"text": "bad"}, if_open="abandon").status == "failed"
    thread.update({"label": "of what failed"}, as_node="sort")
    thread.run({"text": "three"}, if_open="abandon")
    found = dataset(Archive(store), {"gold_label": "label"})
    assert [(one.text, one.gold_label) for one in found] == [
        ("answered", "good"),
        ("one", "two"),
        ("three", "label three"),
    ]
    assert all(one.inputs().keys() == ["text"] for one in found), "what a run carries over is no input"


def test_runs_are_chosen_by_time_and_graph_and_their_corrections_are_not() -> None:
    store = Memory()
    desk, other = program(store), program(store, "Other")
    times = []
    for text in ("one", "two", "three"):
        (other if text == "two" else desk).thread(text).run({"text": text})
        times += [Archive(store).runs(limit=1)[0].started]
        sleep(0.002)  # starts are known to the millisecond
    for text in ("one", "two", "three"):
        (other if text == "two" else desk).thread(text).update({"label": "right"}, as_node="sort")
    gold = {"gold": "label"}
    one, two, three = [(text, "right", ["label"]) for text in ("one", "two", "three")]
    assert rows(store, gold, until=times[1]) == [one]
    assert rows(store, gold, since=times[1]) == [two, three]
    assert rows(store, gold, since=times[1], until=times[2]) == [two]
    assert rows(store, gold, graph="Desk") == [one, three]
    assert rows(store, gold, graph="Desk", since=times[1]) == [three]


class SameTime(Memory):
    """A store whose runs have all begun in the same millisecond."""

    def write(self, change: Any) -> Any:
        if change.run is not None:
            change = change._replace(run=change.run._replace(header={**change.run.header, "started": 1.5e9}))
        return super().write(change)


def test_runs_of_one_millisecond_are_in_the_order_of_their_thread() -> None:
    store = SameTime()
    for name in "abcdefgh":
        thread = program(store).thread(name)
        thread.run({"text": "1"})
        for label in "xyz":
            thread.update({"label": label}, as_node="sort")
        thread.run({"text": "2"}, if_open="abandon")
    assert rows(store, {"gold": "label"}) == [("1", "z", ["label"]), ("2", "label 2", [])] * 8


def test_threads_of_which_runs_are_gone() -> None:
    store = Memory()
    for name in "ab":
        program(store).thread(name).run({"text": name})
    program(store).thread("a").delete()
    assert [text for text, *_ in rows(store)] == ["b"]

    class Deleting(Archive):
        def thread(self, name: str) -> Any:
            program(store).thread(name).delete()
            return super().thread(name)

    assert dataset(Deleting(store), GOLD) == []


# --- what must not become gold


def routed(store: Any) -> CompiledGraph:
    """A graph without a schema, whose route leaves `answer` unwritten."""
    graph = Graph(name="Routed").add_node("sort", lambda text: {"label": text}, writes=["label"])
    graph.add_node("reply", lambda label: {"answer": label}, writes=["answer"]).add_edge("reply", END)
    graph.add_edge(START, "sort").add_conditional_edges(
        "sort", lambda label: "reply" if label == "x" else END, ["reply", END]
    )
    return graph.compile(store=store)


def test_a_run_without_a_value_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    store = Memory()
    for at, text in enumerate("xyxy"):
        routed(store).thread(f"t-{at}").run({"text": text})
    with caplog.at_level(logging.WARNING, "dspyer"):
        assert rows(store) == [("x", "x", "x", [])] * 2
    (record,) = caplog.records
    assert "2 runs are left out, which have no value of 'label', 'answer' that may be used" in record.getMessage()


@each(
    ("redact", "text", "label", "left"),
    [
        (["label"], "x", "y", 0),
        (["notes.secret"], "x", "y", 1),
        (["text"], "x", "y", 0),
        (["**.secret"], "x", "y", 1),
        ([("label",)], "x", "y", 0),
        (lambda path, value: "***" if value == "never" else value, "x", "y", 0),
        (["answer"], "x", "y", 1),
    ],
)
def test_what_is_redacted_is_no_gold_and_no_input(redact: Any, text: str, label: str, left: int) -> None:
    store = Memory()
    thread = program(store, redact=redact).thread("a")
    thread.run({"text": text})
    thread.update({"label": label}, as_node="sort")
    assert rows(store, {"gold": "label"}) == [(text, label, ["label"])] * left


def test_a_part_that_is_redacted_hides_its_field() -> None:
    store = Memory()
    program(store, redact=["notes.words.n"]).thread("a").run({"text": "x"})
    assert rows(store, {"gold": "notes"}) == []
    assert rows(store, {"gold": "label"}) == [("x", "label x", [])]


def test_a_value_of_an_unknown_class_is_no_gold(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")

    def elsewhere() -> None:
        class Person(BaseModel):
            name: str

        graph = Graph(name="Finds").add_node("find", lambda text: {"who": Person(name=text)}, writes=["who"])
        graph.add_path(START, "find", END).compile(store=store).thread("a").run({"text": "ada"})

    elsewhere()
    gc.collect()
    assert dataset(Archive(store), {"gold": "who"}) == []


@each(
    ("gold", "options", "error", "says"),
    [
        ({"gold": "lable"}, {}, ValueError, "no field 'lable'. Did you mean 'label'"),
        ({"text": "label"}, {}, ValueError, "column 'text' is an input of graph 'Desk'"),
        ({"corrected": "label"}, {}, ValueError, "column 'corrected' is what the examples add"),
        ({"gold": "label"}, {"archive": "runs.db"}, TypeError, "takes an Archive, and got 'runs.db'"),
        ({"gold": "label"}, {"since": "today"}, TypeError, "since='today': give a datetime"),
    ],
)
def test_wrong_arguments(gold: Any, options: Any, error: type[Exception], says: str) -> None:
    store = Memory()
    program(store).thread("a").run({"text": "x"})
    with pytest.raises(error, match=says):
        dataset(**{"archive": Archive(store), "gold": gold, **options})


def test_without_the_key_of_an_encrypted_store_it_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with Encrypted(str(path), Encrypted.new_key()) as store:
        program(store).thread("a").run({"text": "x"})
    with Archive(path) as archive, pytest.raises(StoreError, match="DSPYER_STORE_KEY"):
        dataset(archive, GOLD)


@each("statement", ["UPDATE entry SET body = 'no body' WHERE seq = 2 AND", "DELETE FROM entry WHERE"])
def test_a_damaged_run_is_no_gold_and_leaves_the_others(statement: str, tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    for name in "ab":
        program(path).thread(name).run({"text": name})
    with sqlite3.connect(path) as connection:
        connection.execute(f"{statement} run = (SELECT id FROM run WHERE thread = 'a')")
    connection.close()
    assert [text for text, *_ in rows(path)] == ["b"]


# --- many runs


class Counted(Memory):
    """A store that counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def list_runs(self, query: Any) -> Any:
        found = super().list_runs(query)
        self.reads["listed"] += len(found)
        return found

    def rows(self, run: str, first: int = 0, last: int | None = None) -> Any:
        found = super().rows(run, first, last)
        self.reads["rows"] += len(found)
        return found


@pytest.mark.parametrize("in_one_thread", [True, False])
def test_the_cost_grows_with_the_number_of_runs(in_one_thread: bool) -> None:
    store, costs, made = Counted(), list[int](), 0
    desk = program(store)
    for size in (10, 20, 40):
        while made < size:
            thread = desk.thread("one" if in_one_thread else f"t-{made}")
            thread.run({"text": f"{made}"})
            thread.update({"answer": "right"}, as_node="reply")
            made += 1
        store.reads.clear()
        assert len(dataset(Archive(store), GOLD, corrected=True)) == size
        costs.append(store.reads.total())
    assert costs[2] - costs[1] < 2.6 * (costs[1] - costs[0]), costs


def test_more_runs_than_a_page() -> None:
    class SmallPages(Archive):
        def runs(self, **options: Any) -> Any:
            return super().runs(**{**options, "limit": 7})

    store = Memory()
    for n in range(25):
        thread = program(store).thread(f"t-{n}")
        thread.run({"text": f"{n}"})
        if n % 10 == 0:
            thread.update({"label": "right"}, as_node="sort")
    found = dataset(SmallPages(store), {"gold": "label"})
    assert {one.text: one.gold for one in found} == {
        f"{n}": "right" if n % 10 == 0 else f"label {n}" for n in range(25)
    }
    assert len(found) == 25
