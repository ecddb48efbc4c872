"""Error edges on threads: what a resume calls, what a store keeps, what a redacted program shows."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Failure, Graph, reducers
from dspyer.errors import ChangedGraphError
from dspyer.events import AttemptFailed, NodeFailed
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Store
from dspyer.stores.encrypted import Encrypted
from dspyer.testing import no_pauses
from tests.rows import each

SECRET = "the SECRET-123 of a customer"


class State(BaseModel):
    q: str = ""
    a: str = ""
    text: str = ""
    problem: Failure | None = None
    problems: Annotated[list[Failure], reducers.append] = []


class Desk:
    """A graph whose `ask` always fails, and whose `handle` and `last` fail as long as they are told to.

    Attributes:
        calls: how often each node was called.
        down: the nodes that fail.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.down: set[str] = set()

    def ask(self, q: str) -> dict[str, Any]:
        self.calls["ask"] += 1
        raise ConnectionError(f"{q} is refused: {SECRET}")

    def handle(self, problem: Failure | None, q: str) -> dict[str, Any]:
        self._note("handle")
        return {"text": "" if problem is None else f"{problem.node} {problem.attempt}"}

    def last(self, text: str) -> dict[str, Any]:
        self._note("last")
        return {"a": f"{text}!"}

    def _note(self, name: str) -> None:
        self.calls[name] += 1
        if name in self.down:
            raise OSError(f"{name} is down")

    def graph(self, schema: type[BaseModel] | None = State, into: str | None = "problem", **options: Any) -> Graph:
        graph = self.without_edge(schema, **options).add_node("handle", self.handle, writes=["text"])
        return graph.add_edge("handle", "last").add_error_edge("ask", "handle", on=ConnectionError, into=into)

    def without_edge(self, schema: type[BaseModel] | None = State, **options: Any) -> Graph:
        """Only `ask` and `last`."""
        graph = Graph(schema, name="desk", inputs=["q"]).add_node("ask", self.ask, writes=["a"], **options)
        return graph.add_node("last", self.last, writes=["a"]).add_path(START, "ask", "last", END)

    def with_plain_edge(self) -> Graph:
        """The handler is reached without an error."""
        graph = self.without_edge().add_node("handle", self.handle, writes=["text"])
        return graph.add_edge("ask", "handle").add_edge("handle", "last")

    def program(self, store: Store | Path | None = None, *, redact: Any = None, **options: Any) -> CompiledGraph:
        return self.graph(**options).compile(store=store, redact=redact)


@each(("down", "is_async"), [("handle", False), ("last", True)])
def test_a_resume_calls_neither_the_failed_node_nor_a_finished_handler(store: Store, down: str, is_async: bool) -> None:
    """LangGraph calls the handler again (#9002)."""
    desk = Desk()
    desk.down = {down}
    t = desk.program(store).thread("t")
    run = t.run({"q": "x"})
    assert (run.status, [failure.node for failure in run.failures]) == ("failed", [down])
    assert [(failure.node, failure.type) for failure in t.failures] == [(down, "OSError")]
    assert t.state["problem"] == run.commits[1].failure
    desk.down = set()
    desk.calls.clear()
    again = desk.program(store).thread("t")
    run = asyncio.run(again.aresume()) if is_async else again.resume()
    assert (run.status, run.state["a"]) == ("completed", "ask 1!")
    assert desk.calls == (Counter(handle=1, last=1) if down == "handle" else Counter(last=1))
    assert run.commits[1].failure == run.state["problem"] == t.replay()["problem"]
    assert t.failures == ()


@pytest.mark.parametrize(("kind", "schema"), [("sqlite", None), ("encrypted", State), ("memory", State)])
def test_a_stored_failure_is_read_as_it_was_written(tmp_path: Path, kind: str, schema: type[BaseModel] | None) -> None:
    stores: dict[str, Any] = {
        "sqlite": lambda: SQLite(tmp_path / "runs.db"),
        "encrypted": lambda: Encrypted(SQLite(tmp_path / "runs.db"), KEY),
        "memory": lambda memory=Memory(): memory,
    }
    run = Desk().program(stores[kind](), schema=schema).thread("t").run({"q": "x"})
    assert run.status == "completed", run.error
    t = Desk().program(stores[kind](), schema=schema).thread("t")
    assert t.state["problem"] == run.state["problem"]
    assert isinstance(t.state["problem"], Failure)
    commits = t.history()
    assert [commit.failure for commit in commits if commit.node == "ask"] == [run.state["problem"]]
    assert t.blame("problem").id == "t.1/trunk:1"
    assert t.blame("problem").failure == run.state["problem"]
    if kind == "encrypted":
        assert SECRET.encode() not in (tmp_path / "runs.db").read_bytes()


KEY = Encrypted.new_key()


def test_a_rerun_from_the_failure_calls_the_handler_alone(store: Store) -> None:
    desk = Desk()
    t = desk.program(store).thread("t")
    t.run({"q": "x"})
    desk.calls.clear()
    assert t.rerun(1).state["a"] == "ask 1!"
    assert desk.calls == Counter(handle=1, last=1)
    assert t.rerun(0).status == "completed"
    assert desk.calls["ask"] == 1


def test_failed_attempts_are_stored_with_the_failure(store: Store) -> None:
    desk = Desk()
    with no_pauses():
        desk.program(store, retry=3).thread("t").run({"q": "x"})
    commit = Desk().program(store).thread("t").history()[1]
    assert (commit.attempt, [each.attempt for each in commit.failed_attempts]) == (3, [1, 2])
    assert commit.failure is not None
    assert commit.failure.attempt == 3


# --- another graph continues


def test_a_run_that_took_a_removed_error_edge_cannot_continue(store: Store) -> None:
    desk = Desk()
    desk.down = {"last"}
    desk.program(store).thread("t").run({"q": "x"})
    changed = Desk().with_plain_edge()
    desk.down = set()
    t = changed.compile(store=store).thread("t")
    with pytest.raises(
        ChangedGraphError, match="error edge 'ask' -> 'handle' on ConnectionError into 'problem' is gone"
    ):
        t.resume()
    graph = Desk().without_edge()
    with pytest.raises(ChangedGraphError, match="went to 'handle', which is none of its targets"):
        graph.compile(store=store).thread("t").resume(allow_changed_graph=True)


def test_an_added_error_edge_lets_a_failed_run_continue(store: Store) -> None:
    """A run has failed; with an error edge for it the resume calls the node again, and goes on."""
    t = Desk().with_plain_edge().compile(store=store).thread("t")
    assert t.run({"q": "x"}).status == "failed"
    desk = Desk()
    t = desk.program(store).thread("t")
    with pytest.raises(
        ChangedGraphError, match="error edge 'ask' -> 'handle' on ConnectionError into 'problem' is new"
    ):
        t.resume()
    assert t.resume(allow_changed_graph=True).state["a"] == "ask 1!"


# --- redaction


def by_function(path: tuple[Any, ...], value: Any) -> Any:
    return "hidden" if isinstance(value, str) and "SECRET" in value else value


@pytest.mark.parametrize(
    ("redact", "long"),
    [(["problem.message"], True), (["problem"], False), (["**.message"], False), (by_function, True)],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_a_message_is_hidden_by_its_path_wherever_it_leaves_the_run(
    redact: Any, long: bool, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    desk.down = {"last"}
    question = "y" * 600 if long else "x"
    t = desk.program(Memory(), redact=redact, retry=2).thread("t")
    with caplog.at_level(logging.DEBUG, "dspyer"), no_pauses():
        run = t.run({"q": question})
    events = run.events
    assert {AttemptFailed, NodeFailed} <= {type(event) for event in events}
    shown = [str(event.to_dict()) for event in events]
    failures = [failure for step in run.record().steps if step.failure for failure in (step.failure, *step.failed)]
    for text in (*shown, caplog.text, run.report(), run.to_svg(), str(failures)):
        assert "SECRET-123" not in text
    kept = run.state["problem"].message
    assert kept == (f"{question} is refused: {SECRET}")[:500]
    assert [failure.node for failure in failures] == ["ask", "ask", "last"]


def test_a_message_that_no_pattern_hides_is_shown() -> None:
    run = Desk().program(redact=["text"]).run({"q": "x"})
    assert [str(event.error) for event in run.events if isinstance(event, NodeFailed)] == [f"x is refused: {SECRET}"]
    assert run.record().steps[1].failure == run.state["problem"]


def test_messages_of_a_list_are_hidden_by_its_path() -> None:
    for redact in (["problems"], ["**.message"]):
        graph = Desk().graph(into="problems")
        run = graph.compile(redact=redact).run({"q": "x"})
        shown = [run.report(), str(run.record().to_dict()), *[str(event.to_dict()) for event in run.events]]
        assert not [text for text in shown if "SECRET-123" in text]
        assert "SECRET-123" in run.state["problems"][0].message
