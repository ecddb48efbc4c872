"""Reading a thread: history, blame, diff, commits inside of nodes, replay."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Kept, Replace, reducers
from dspyer.errors import StoreError
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Point, Row, Snapshot, Store
from tests.log.kinds import INPUTS, KINDS
from tests.rows import each


class Notes(BaseModel):
    q: str = ""
    log: Kept[Annotated[list[str], reducers.extend]] = []
    answer: Kept[str] = ""
    user: Kept[dict[str, Any]] = {}


def program(store: Store) -> CompiledGraph:
    seen = []

    def ask(q: str, ctx: Context) -> dict[str, Any]:
        seen.append(ctx.execution)
        return {"log": [f"ask {q}"], "user": {q: {"by": "ask"}}}

    def tell(log: list[str], q: str) -> dict[str, Any]:
        if q == "bad":
            raise RuntimeError(q)
        return {"answer": log[-1]}

    return Graph(Notes).add_node(ask).add_node(tell).add_path(START, "ask", "tell", END).compile(store=store)


def test_the_history_says_who_changed_what_in_which_order() -> None:
    thread = program(Memory()).thread("t")
    assert thread.history() == []
    assert thread.replay() == {}
    thread.run({"q": "a"})
    second = thread.run({"q": "b"})
    found = [(c.version, c.id, c.node, c.parents) for c in thread.history()]
    assert found == [
        (0, "t.1/trunk:0", "START", ()),
        (1, "t.1/trunk:1", "ask", ("t.1/trunk:0",)),
        (2, "t.1/trunk:2", "tell", ("t.1/trunk:1",)),
        (3, "t.2/trunk:0", "START", ("t.1/trunk:2",)),
        (4, "t.2/trunk:1", "ask", ("t.2/trunk:0",)),
        (5, "t.2/trunk:2", "tell", ("t.2/trunk:1",)),
    ]
    assert all(commit.started > 0 for commit in thread.history())
    assert thread.blame("user.a").id == "t.1/trunk:1"
    assert thread.blame(("user", "b", "by")).id == "t.2/trunk:1"
    assert thread.blame("q").id == "t.2/trunk:0"
    assert thread.diff(1, 2) == {"answer": "ask a"}
    assert thread.diff("t.1/trunk:1", thread.at(2)) == thread.diff(1, {**thread.at(1), "answer": "ask a"})
    assert thread.at("trunk:1") == thread.at(4)  # an id without a run is one of the last run
    with pytest.raises(LookupError, match="go from 0 to 5"):
        thread.at(6)
    with pytest.raises(LookupError, match=r"no commit has the id 'x'; ids look like 't.2/trunk:2'"):
        thread.at("x")
    with pytest.raises(LookupError, match="no commit has written 'nobody'"):
        thread.blame("nobody")
    with pytest.raises(LookupError, match=r"has written .user.a.: ask its thread, thread.blame\("):
        second.blame("user.a")


def test_commits_of_an_unjoined_fork_have_an_id_and_no_version() -> None:
    def bad(state: Any) -> None:
        raise RuntimeError

    graph = Graph().add_node("a", lambda state: {"by": "a"}).add_node(bad).add_node("j", lambda state: None)
    graph.add_edge(START, ["a", "bad"]).add_edge(["a", "bad"], "j").add_edge("j", END)
    thread = graph.compile(store=Memory()).thread("t")
    thread.run({})
    thread.run({}, if_open="abandon")
    assert [(c.version, c.id) for c in thread.history()] == [
        (0, "t.1/trunk:0"),
        (None, "t.1/0:0"),
        (1, "t.2/trunk:0"),
        (None, "t.2/0:0"),
    ]
    assert thread.at("t.1/0:0") == {"by": "a"}
    assert thread.state == {}
    with pytest.raises(LookupError, match="never joined"):
        thread.blame("by")


@pytest.mark.parametrize("name", ["subgraph", "map of graphs", "parallel subgraphs"])
def test_the_commits_inside_of_a_node_are_listed(name: str) -> None:
    thread = KINDS[name].compile("sync", Memory()).thread("t")
    thread.run(INPUTS)
    nodes = {"subgraph": "middle", "map of graphs": "measure", "parallel subgraphs": "left"}
    (commit, *_) = [commit for commit in thread.history() if commit.node == nodes[name]]
    inner = thread.history(inside=commit.id)
    assert {found.node for found in inner} == {
        "subgraph": {"START", "m", "inner"},
        "map of graphs": {"START", "size", "twice"},
        "parallel subgraphs": {"START", "a", "b"},
    }[name]
    assert len({found.id for found in inner}) == len(inner)
    assert all(found.version is None and found.id.startswith(commit.id) for found in inner)
    if name == "subgraph":
        deeper = thread.history(inside=next(found.id for found in inner if found.node == "inner"))
        assert [found.node for found in deeper] == ["START", "a", "b", "join:j", "j"]
        assert thread.history(inside=commit.version or 0) == inner
    assert thread.history(inside="t.1/trunk:99") == []


class Altered(SQLite):
    """Gives other patches than were stored."""

    alter = False

    def rows(self, run: str, first: int = 0, last: int | None = None) -> list[Row]:
        found = super().rows(run, first, last)
        return [altered(row) for row in found] if self.alter else found


def altered(row: Row) -> Row:
    """A row with another answer."""
    if row.content is None:
        return row
    data = re.sub(rb'"answer":"[^"]*"', b'"answer":"forged"', row.content.data)
    return row._replace(content=row.content.stored(data, row.content.refs))


def test_replay_names_the_first_state_that_differs(tmp_path: Path) -> None:
    with Altered(tmp_path / "runs.db") as store:
        thread = program(store).thread("t")
        thread.run({"q": "a"})
        thread.run({"q": "b"})
        assert thread.replay() == thread.state
        store.alter = True
        with pytest.raises(StoreError, match=r"state after version 2 \(commit 't.1/trunk:2'\) is not the one"):
            program(store).thread("t").replay()


def test_another_process_reads_the_same(tmp_path: Path) -> None:
    with SQLite(tmp_path / "runs.db") as store:
        thread = program(store).thread("t")
        thread.run({"q": "a"})
        thread.run({"q": "b"})
        commits, states = thread.history(), [thread.at(version) for version in range(6)]
    with SQLite(tmp_path / "runs.db") as store:
        thread = program(store).thread("t")
        assert thread.history() == commits
        assert [thread.at(version) for version in range(6)] == states


class Swapped(Memory):
    """Gives the snapshots of another run in place of its own."""

    other = ""

    def snapshot(self, at: Point) -> Snapshot | None:
        found = super().snapshot(at)
        of_other = super().snapshot(Point(self.other, at.seq)) if self.other else None
        return found if of_other is None else of_other._replace(at=at)


def test_replay_compares_snapshots_too() -> None:
    store = Swapped()
    graph = Graph(Notes).add_node("step", lambda: None, writes=[]).add_edge(START, "step")
    graph.add_conditional_edges("step", lambda ctx: "step" if ctx.visit < 500 else END, ["step", END])
    compiled = graph.compile(store=store, max_steps=1_000)
    for name in ("forged", "t"):
        compiled.thread(name).run({"q": name})
    thread = compiled.thread("t")
    assert thread.replay() == thread.state
    (store.other,) = [run.id for run in store.runs("forged")]
    with pytest.raises(StoreError, match=r"state after version \d+ .* in its snapshot"):
        compiled.thread("t").replay()
    store.drop_snapshots()
    assert compiled.thread("t").replay()["q"] == "t"


def test_the_errors_of_a_thread_without_a_run() -> None:
    thread = program(Memory()).thread("new")
    with pytest.raises(
        KeyError, match=r"no key 'answer' here\. It is empty, as the state of a thread without a run is"
    ):
        thread.state["answer"]
    with pytest.raises(LookupError, match="no commit has version 1: no commit has one yet"):
        thread.at(1)
    with pytest.raises(LookupError, match="no commit has written 'answer'; fields of the state: none"):
        thread.blame("answer")


@each("name", [None, 1.5, ["t.1/trunk:0"]])
def test_what_names_no_commit_is_refused_by_every_method_that_takes_one(name: Any) -> None:
    thread = program(Memory()).thread("t")
    run = thread.run({"q": "a"})
    calls: list[Callable[[Any], Any]] = [thread.at, thread.lm_calls, thread.rerun, thread.prune, run.at]
    for call in calls:
        with pytest.raises(TypeError, match=r"names no commit: give its version, a number, or its id, a text"):
            call(name)
    index: Any = numpy.int64(1)
    assert thread.at(index) == thread.at(1)


def giving(user: object) -> Graph:
    return Graph(Notes, name="Inner").add_node("give", lambda q: {"user": user}).add_path(START, "give", END)


TURNED = Replace({"b": {"y": 1, "x": 2}, "a": 2})


@pytest.mark.parametrize("schema", [Notes, None])
@pytest.mark.parametrize(
    "node", [lambda q: {"user": TURNED}, lambda q: {"user": {"b": Replace({"y": 1})}}, giving(TURNED)]
)
def test_keys_of_a_mapping_have_one_order_for_who_wrote_it_and_who_reads_it(node: Any, schema: Any) -> None:
    """Else a run that is resumed elsewhere would send other prompts than one without interruption."""
    graph = Graph(schema, inputs=["q"]).add_node("first", lambda q: {"user": {"a": 1, "b": {"x": 1, "y": 2}}})
    graph.add_node("second", node, reads=["q"], writes=["user"]).add_path(START, "first", "second", END)
    thread = graph.compile(store=Memory()).thread("t")
    run = thread.run({"q": "a"})
    assert str(run.state["user"]) == str(thread.at(run.commits[-1].id)["user"]) == str(thread.replay()["user"])
