"""Items of a map on a thread: each has a row, the commit of the map refers to them, nothing is called twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, reducers
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.base import Row
from tests.log.failing import Crash, FailingMemory, crash

Open = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Gives the store as another process would open it, as far as it can be."""
    memory = Memory()
    return lambda: memory if request.param == "memory" else SQLite(str(tmp_path / "runs.db"))


class Card(BaseModel):
    doc: str
    problem: str = ""


@dataclass
class Size:
    words: int


class Docs(BaseModel):
    docs: list[str] = []
    cards: list[Card] = []
    known: Annotated[list[Card], reducers.extend] = []
    counts: list[Size] = []
    texts: list[str] = []
    sizes: list[float] = []
    log: Annotated[list[str], reducers.extend] = ["begun"]


def rows(store: Store, kind: str, name: str) -> list[Row]:
    thread = store.thread(name)
    assert thread is not None
    assert thread.head is not None
    return [row for row in store.rows(thread.head.run, 0, thread.head.seq) if row.kind == kind]


def stored(row: Row) -> str:
    return "" if row.content is None else row.content.data.decode()


def mapping(into: str, node: Callable[..., Any], store: Store) -> CompiledGraph:
    graph = Graph(Docs, inputs=["docs"]).add_map("work", node, over="docs", item="doc", into=into)
    return graph.add_node("end", lambda: None, writes=[]).add_path(START, "work", "end", END).compile(store=store)


MAPS: dict[str, tuple[str, Callable[[str], Any], list[Any], bool]] = {
    "values": ("texts", lambda doc: doc * 3, ["aaa", "bbb"], True),
    "updates of a reducer": ("log", lambda doc: f"read {doc}", ["begun", "read a", "read b"], True),
    "models": ("cards", lambda doc: Card(doc=doc), [Card(doc="a"), Card(doc="b")], True),
    "models and a reducer": ("known", lambda doc: {"card": Card(doc=doc)}, [Card(doc="a"), Card(doc="b")], True),
    "dataclasses": ("counts", lambda doc: Size(len(doc)), [Size(1), Size(1)], True),
    "values that validation changes": ("sizes", lambda doc: str(len(doc)), [1.0, 1.0], False),
}


def test_the_commit_of_a_map_refers_to_its_items(opened: Open) -> None:
    for name, (into, node, expected, refers) in MAPS.items():
        run = mapping(into, node, opened()).thread(name).run({"docs": ["a", "b"]})
        assert run.state[into] == expected, name
        items, commits = rows(opened(), "item", name), rows(opened(), "commit", name)
        assert {row.header["execution"] for row in items} == {"trunk:1[0]", "trunk:1[1]"}, (
            name
        )  # in the order of their ends
        assert (into not in stored(commits[1])) is refers, name
        thread = mapping(into, node, opened()).thread(name)
        assert thread.state == run.state, name
        assert [commit.patch for commit in thread.history()] == [commit.patch for commit in run.commits], name


def test_a_map_without_items_has_an_empty_result() -> None:
    store = Memory()
    assert mapping("texts", lambda doc: doc, store).thread("t").run({"docs": []}).state["texts"] == []
    assert mapping("texts", lambda doc: doc, store).thread("t").state["texts"] == []


def test_a_map_is_resumed_as_often_as_it_likes_while_its_items_finish() -> None:
    """Its process ends again and again, each time after one more item."""
    store = FailingMemory()
    graph = Graph(Docs, inputs=["docs"]).add_map("work", lambda doc: doc, over="docs", item="doc", into="texts")
    thread = graph.add_path(START, "work", END).compile(store=store, max_concurrency=1).thread("t")
    for resumes in range(3):
        store.arm(crash, 3, after=True)
        with pytest.raises(Crash):
            thread.resume(max_resumes=1) if resumes else thread.run({"docs": list("abcd")})
        assert len(rows(store, "item", "t")) == resumes + 1
    store.rest()
    assert thread.resume(max_resumes=1).state["texts"] == list("abcd")


def test_a_later_node_fails_and_the_map_is_not_called_again(opened: Open) -> None:
    calls: list[str] = []
    broken = [True]

    def read(doc: str) -> str:
        calls.append(doc)
        return doc.upper()

    def end(texts: list[str]) -> dict[str, Any]:
        if broken:
            raise ConnectionError("lost")
        return {"log": ["-".join(texts)]}

    def program() -> CompiledGraph:
        graph = Graph(Docs, inputs=["docs"]).add_map("work", read, over="docs", item="doc", into="texts")
        return graph.add_node("end", end, writes=["log"]).add_path(START, "work", "end", END).compile(store=opened())

    assert program().thread("t").run({"docs": ["a", "b"]}).status == "failed"
    broken.clear()
    run = program().thread("t").resume()
    assert (run.state["log"], sorted(calls)) == (["begun", "A-B"], ["a", "b"])


def test_recorded_models_of_an_earlier_attempt_fit_their_field(opened: Open) -> None:
    broken = [True]

    def read(doc: str) -> Card:
        if doc == "c" and broken:
            raise ConnectionError("lost")
        return Card(doc=doc)

    assert mapping("cards", read, opened()).thread("t").run({"docs": ["a", "b", "c"]}).status == "failed"
    broken.clear()
    run = mapping("cards", read, opened()).thread("t").resume()
    assert run.error is None
    assert "3 commits, 2 node calls, 3 items of 'work'" in " ".join(run.report().split())
    assert run.state["cards"] == [Card(doc="a"), Card(doc="b"), Card(doc="c")]
    assert mapping("cards", read, opened()).thread("t").state == run.state


def test_when_an_item_fails_finished_items_are_kept(opened: Open) -> None:
    calls: list[str] = []
    broken = [True]

    def read(doc: str, ctx: Context) -> str:
        calls.append(doc)
        if doc == "c" and broken:
            raise ConnectionError("lost")
        return f"{doc} in {ctx.execution.rpartition('/')[2]}"

    def program() -> CompiledGraph:
        graph = Graph(Docs, inputs=["docs"])
        graph.add_map("work", read, over="docs", item="doc", into="texts", max_concurrency=1)
        return graph.add_path(START, "work", END).compile(store=opened())

    assert program().thread("t").run({"docs": list("abcd")}).status == "failed"
    assert calls == ["a", "b", "c"]
    broken.clear()
    texts = program().thread("t").resume().state["texts"]
    assert (texts, calls) == ([f"{doc} in trunk:1[{i}]" for i, doc in enumerate("abcd")], list("abc") + list("cd"))


def test_a_map_inside_a_graph_inside_an_item(opened: Open) -> None:
    def letters(word: str) -> dict[str, Any]:
        return {"letters": list(word)}

    def check(letter: str, ctx: Context) -> list[Any]:
        return [letter, ctx.interrupt("ok", f"{letter}?")]

    def program() -> CompiledGraph:
        inner = Graph().add_node("split", letters)
        inner.add_map("each", check, over="letters", item="letter", into="out")
        inner.add_path(START, "split", "each", END)
        graph = Graph().add_map("work", inner.compile(), over="words", item="word", into="all", writes=["out"])
        return graph.add_path(START, "work", END).compile(store=opened())

    run = program().thread("t").run({"words": ["ab", "c"]})
    names = [f"t.1/trunk:1[{one}]/trunk:2[{two}]/ok" for one, two in ((0, 0), (0, 1), (1, 0))]
    assert sorted(question.id for question in run.questions) == names
    for name, answer in zip(names, (False, True, True), strict=True):
        run = program().thread("t").resume({name: answer})
    assert (run.status, run.error) == ("completed", None)
    assert run.state["all"] == [[["a", False], ["b", True]], [["c", True]]]
    assert program().thread("t").state == run.state
