"""Whatever is wrong with an entry of a thread: what came before it can be read, and there is a way on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, reducers
from dspyer.errors import StoreError
from dspyer.reducers import Reducer
from dspyer.stores import SQLite
from dspyer.stores.sqlite_columns import pack
from dspyer.threads.thread import Thread

LONG = "long " * 9_000


class State(BaseModel):
    q: str = ""
    log: Annotated[list[str], reducers.extend] = []
    long: str = ""


def graph(store: Any, schema: type[BaseModel] = State) -> CompiledGraph:
    built = Graph(schema, inputs=["q"]).add_node("first", lambda q: {"log": [q]}, writes=["log"])
    built.add_node("second", lambda q: {"log": [q + q], "long": LONG + q}, writes=["log", "long"])
    built.add_node("third", lambda q: {"log": ["end"]}, writes=["log"])
    return built.add_path(START, "first", "second", "third", END).compile(store=store)


def entries(connection: sqlite3.Connection) -> list[int]:
    """The ids of the rows of commits of the second run, in order."""
    found = connection.execute("SELECT id FROM entry WHERE kind = 'commit' ORDER BY id").fetchall()
    return [row[0] for row in found][4:]


def garbage(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entry SET content = ? WHERE id = ?", (b'{"patch": [', entries(connection)[2]))


def no_bytes(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entry SET content = ? WHERE id = ?", (b"\xff\xfe\x00", entries(connection)[2]))


def another_form(connection: sqlite3.Connection) -> None:
    content = pack([{"log": {"$type": "updates", "value": 7}}])
    connection.execute("UPDATE entry SET content = ? WHERE id = ?", (content, entries(connection)[2]))


def no_fold(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entry SET content = ? WHERE id = ?", (pack([{"log": 7}]), entries(connection)[2]))


def lost_blob(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM blob WHERE substr(data, -1) = x'62'")


def too_deep(connection: sqlite3.Connection) -> None:
    content = b'[{"log": ' + b"[" * 5_000 + b"]" * 5_000 + b"}]"
    connection.execute("UPDATE entry SET content = ? WHERE id = ?", (content, entries(connection)[2]))


SPOIL = [garbage, no_bytes, another_form, no_fold, lost_blob, too_deep]


@pytest.fixture
def spoiled(tmp_path: Path) -> Callable[[Callable[[sqlite3.Connection], None]], Thread]:
    def make(spoil: Callable[[sqlite3.Connection], None]) -> Thread:
        path = tmp_path / "runs.db"
        with SQLite(path) as store:
            for q in "ab":
                assert graph(store).thread("t").run({"q": q}).status == "completed"
        connection = sqlite3.connect(path)
        spoil(connection)
        connection.execute("DELETE FROM snapshot")
        assert connection.total_changes
        connection.commit()
        connection.close()
        return graph(path).thread("t")

    return make


@pytest.mark.parametrize("spoil", SPOIL, ids=lambda spoil: spoil.__name__)
def test_the_history_is_readable_up_to_there(spoil: Any, spoiled: Callable[[Any], Thread]) -> None:
    t = spoiled(spoil)
    history = t.history()
    assert [commit.node for commit in history] == ["START", "first", "second", "third"] * 2, "the structure of all"
    assert t.at(5)["log"] == ["a", "aa", "end", "b"]
    assert t.state == t.at(5)
    broken, behind = history[6:]
    assert "commit trunk:2 of 'second' cannot be read" in repr(broken.patch)
    assert repr(behind.patch) == repr(broken.patch), "what builds on it is not known"
    assert not broken.patch
    assert broken.version is None
    with pytest.raises(StoreError, match=r"commit trunk:2 of 'second' cannot be read"):
        t.at(broken.id)
    with pytest.raises(StoreError, match="cannot be read"):
        t.replay()
    assert t.status == "completed"


@pytest.mark.parametrize("spoil", SPOIL, ids=lambda spoil: spoil.__name__)
def test_there_is_a_way_on(spoil: Any, spoiled: Callable[[Any], Thread]) -> None:
    t = spoiled(spoil)
    with pytest.raises(StoreError, match=r"go on from version 5 with t.run\(..., abandon=True\)"):
        t.run({"q": "c"})
    twin = t.copy("twin", at=3)
    assert twin.run({"q": "d"}).state["log"] == ["a", "aa", "end", "d", "dd", "end"]
    run = t.run({"q": "c"}, abandon=True)
    assert run.state["log"] == ["a", "aa", "end", "b", "c", "cc", "end"]
    assert [commit.version for commit in t.history()] == list(range(10))
    assert t.replay() == t.state
    assert t.run({"q": "d"}).commits[0].version == 10


def test_an_unreadable_open_run_is_not_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    def fail(q: str) -> dict[str, Any]:
        raise RuntimeError("boom")

    def built(store: Any) -> CompiledGraph:
        made = Graph(State, inputs=["q"]).add_node("first", lambda q: {"log": [q]}, writes=["log"])
        return made.add_node("fail", fail, writes=[]).add_path(START, "first", "fail", END).compile(store=store)

    with SQLite(path) as store:
        assert built(store).thread("t").run({"q": "a"}).status == "failed"
    connection = sqlite3.connect(path)
    connection.execute("UPDATE entry SET content = x'00' WHERE kind = 'commit' AND content IS NOT NULL")
    connection.commit()
    connection.close()
    t = built(path).thread("t")
    with pytest.raises(StoreError, match="cannot be read"):
        t.resume()
    assert [commit.node for commit in t.history()] == ["START", "first"]
    assert t.error is not None
    assert t.delete().threads == ("t",)


def counts(current: Any, update: Any) -> Any:
    return (current or 0) + update


def test_a_reducer_that_is_gone_leaves_an_opaque_value(tmp_path: Path) -> None:
    class Before(State):
        n: Annotated[int, Reducer("counts", counts)] = 0

    class After(State):
        pass

    def built(schema: type[BaseModel]) -> CompiledGraph:
        made = Graph(schema, inputs=["q"])
        made.add_node("count", lambda q: {"n": 1} if schema is Before else {}, writes=["n"] if schema is Before else [])
        return made.add_path(START, "count", END).compile(store=tmp_path / "runs.db")

    for _ in range(2):
        built(Before).thread("t").run({"q": "a"})
    t = built(After).thread("t")
    assert "it was folded by reducer 'counts', which is not there" in t.at(3)["n"].reason
    assert t.run({"q": "b"}).state.to_dict() == {"q": "b", "log": [], "long": ""}
    assert built(Before).thread("t").at(3)["n"] == 2
