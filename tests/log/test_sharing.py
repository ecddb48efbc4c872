"""A program with a store among DSPy's tools: only threads write, copies share the store, files hold its address."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Kept, reducers
from dspyer.stores import Memory, SQLite, Store
from dspyer.stores.postgres import Postgres
from dspyer.testing import NearestLM

TRAIN = [
    dspy.Example(text=text, mood=mood).with_inputs("text")
    for text, mood in [("we won the cup", "glad"), ("my dog died", "sad"), ("what a lovely day", "glad")]
]


class State(BaseModel):
    text: str = ""
    mood: str = ""
    log: Kept[Annotated[list[str], reducers.extend]] = []


def program(store: Any) -> CompiledGraph:
    graph = Graph(State, name="Moods", inputs=["text"], outputs=["mood"])
    graph.add_node("judge", dspy.Predict("text -> mood: Literal['glad', 'sad']"))
    graph.add_node("note", lambda mood: {"log": [mood]}, writes=["log"])
    return graph.add_path(START, "judge", "note", END).compile(store=store)


def right(example: Any, found: Any, trace: Any = None) -> bool:
    return bool(example.mood == found.mood)


def rows(store: Store) -> int:
    return sum(len(store.rows(run.id)) for name in store.threads() for run in store.runs(name))


class Counting(Memory):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, change: Any) -> int:
        self.writes += 1
        return super().write(change)


def test_only_threads_write(tmp_path: Path) -> None:
    store = Counting()
    plain = program(store)
    with dspy.context(lm=NearestLM()):
        plain(text="we won")
        plain.run({"text": "we won"})
        list(plain.stream({"text": "we won"}))
        dspy.Evaluate(devset=TRAIN, metric=right, num_threads=2)(plain)
        tuned = dspy.BootstrapFewShot(metric=right).compile(plain, trainset=TRAIN)
        assert store.writes == 0
        assert store.threads() == []
        plain.thread("t").run({"text": "we won"})
    assert store.writes > 0
    assert tuned._store is store


def test_a_tuned_program_continues_the_threads_of_the_original(tmp_path: Path) -> None:
    plain = program(tmp_path / "runs.db")
    failing = program(tmp_path / "runs.db")
    with dspy.context(lm=NearestLM()):
        plain.thread("t").run({"text": "we won"})
        tuned = dspy.BootstrapFewShot(metric=right).compile(plain, trainset=TRAIN)
        assert tuned.judge.demos
        t = tuned.thread("t")
        t.run({"text": "my dog died"})
        assert t.state["log"] == ["glad", "sad"]
    with dspy.context(lm=None):
        assert failing.thread("u").run({"text": "what a day"}).status == "failed"
    with dspy.context(lm=NearestLM()):
        assert tuned.thread("u").resume().status == "completed", "prompts and demos are not in the fingerprint"


def test_copies_share_the_store(tmp_path: Path) -> None:
    with SQLite(tmp_path / "runs.db") as store:
        plain = program(store)
        for twin in (plain.deepcopy(), plain.reset_copy(), plain.with_resources({int: 1})):
            assert twin._store is store


@pytest.mark.parametrize("how", ["pickle", "save_program"])
def test_a_pickle_knows_where_the_store_is(tmp_path: Path, how: str) -> None:
    plain = program(tmp_path / "runs.db")
    with dspy.context(lm=NearestLM()):
        plain.thread("t").run({"text": "we won"})
        if how == "pickle":
            twin = pickle.loads(pickle.dumps(program_of_functions(tmp_path / "runs.db")))
            assert twin.threads() == ["t"]
            return
        plain.save(tmp_path / "program", save_program=True)
        twin = dspy.load(str(tmp_path / "program"), allow_pickle=True)
        assert twin.thread("t").state["log"] == ["glad"]
        twin.thread("t").run({"text": "my dog died"})
    assert len(plain.thread("t").state["log"]) == 2


def shout(text: str) -> dict[str, Any]:
    return {"mood": text.upper()}


def program_of_functions(store: Any) -> CompiledGraph:
    graph = Graph(State, inputs=["text"]).add_node("shout", shout, writes=["mood"]).add_path(START, "shout", END)
    return graph.compile(store=store)


def test_a_pickle_holds_no_password() -> None:
    pytest.importorskip("psycopg")
    store = Postgres("postgresql://ada:hunter2@localhost:1/nowhere")
    pickled = pickle.dumps(store)
    assert b"hunter2" not in pickled
    assert "hunter2" not in store.address + repr(store)


def test_saved_parameters_know_no_store(tmp_path: Path) -> None:
    plain = program(tmp_path / "runs.db")
    plain.save(tmp_path / "moods.json")
    assert "runs.db" not in (tmp_path / "moods.json").read_text()
    assert not (tmp_path / "runs.db").exists(), "nothing was opened"
    other = program(Memory())
    other.load(tmp_path / "moods.json")
    assert isinstance(other._store, Memory)


class Client:
    """A resource: nothing could store it."""

    def __init__(self) -> None:
        self.secret = "SECRET-123"

    def __reduce__(self) -> Any:
        raise AssertionError("a resource would be stored")


def test_resources_are_never_stored(tmp_path: Path) -> None:
    fails = [True]

    def use(text: str, client: Client) -> dict[str, Any]:
        if fails:
            fails.pop()
            raise RuntimeError("boom")
        return {"mood": "with " + type(client).__name__}

    graph = Graph(State, inputs=["text"]).add_node("use", use, writes=["mood"]).add_path(START, "use", END)
    with SQLite(tmp_path / "runs.db") as store:
        plain = graph.compile(store=store)
        t = plain.thread("t")
        assert t.run({"text": "a"}, resources=[Client()]).status == "failed"
        with pytest.raises(Exception, match="Client"):
            t.resume()
        assert t.resume(resources=[Client()]).state["mood"] == "with Client"
    assert b"SECRET-123" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
