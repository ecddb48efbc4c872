"""Which inputs of two deliveries of a key are the same, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, Field, field_validator

from dspyer import END, START, Graph, Run, Thread, reducers
from dspyer.errors import InputError, ThreadError
from tests.rows import each
from tests.threads.test_keyed_runs import Counted, astream

VALUES: list[tuple[Any, Any, bool]] = [
    ({"n": 1}, {"n": 2}, False),
    ({"n": 1}, {"n": True}, False),
    ({"n": 1}, {"n": "1"}, False),
    ({"n": {"a": 1, "b": [1, 2]}}, {"n": {"b": [1, 2], "a": 1}}, True),
    ({"n": [1, 2]}, {"n": [2, 1]}, False),
    ({"n": {1, 2, 3}}, {"n": {3, 2, 1}}, True),
    ({"n": {1: "a", 2: [{3: 4, "b": 5}]}}, {"n": {2: [{"b": 5, 3: 4}], 1: "a"}}, True),
    ({"n": {"$type": 1, "b": 2}}, {"n": {"b": 2, "$type": 1}}, True),
    ({"n": {1: 2, 3: 4}}, {"n": {1: 4, 3: 2}}, False),
    ({"n": float("nan")}, {"n": float("nan")}, True),
    ({"n": "\ud800"}, {"n": "\ud800"}, True),
    ({"n": None}, {}, False),
]


def is_same_delivery(t: Thread, first: Any, later: Any, key: str) -> bool:
    """Whether the later inputs are those of the run of the key; if they are not, they are refused."""
    run = t.run(first, key=key)
    try:
        return t.run(later, key=key).run_id == run.run_id
    except ThreadError as error:
        refused = str(error)
    return f"key {key!r} identifies a run of thread 't' that began with other inputs" not in refused


def test_inputs_are_compared_by_their_values() -> None:
    calls: list[int] = []
    graph = Graph().add_node("note", lambda state: calls.append(1), writes=[]).add_path(START, "note", END)
    wrong = []
    for first, later, same in VALUES:
        t = graph.compile(store=":memory:").thread("t")
        calls.clear()
        if is_same_delivery(t, first, later, "a") != same or calls != [1]:
            wrong.append((first, later))
    assert not wrong


class Line(BaseModel):
    price: float
    count: int = 1


class Order(BaseModel):
    amount: float = 0
    when: datetime | None = None
    note: str = ""
    tags: tuple[str, ...] = ()
    names: set[str] = set()
    lines: list[Line] = []
    log: Annotated[list[str], reducers.extend] = ["begun"]
    made: list[str] = Field(default_factory=lambda: ["x"])
    id: str = Field(default_factory=lambda: uuid4().hex)
    size: int = 0
    lasts: str = ""
    out: str = ""

    @field_validator("size")
    @classmethod
    def is_small(cls, size: int) -> int:
        if size > 9:
            raise ValueError("too large")
        return size


NOON = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))
PARIS = NOON.replace(tzinfo=ZoneInfo("Europe/Paris"))


READ: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"amount": 20}, {"amount": 20.0}, True),
    ({"amount": 20}, {"amount": "20"}, True),
    ({"amount": 20}, {"amount": 21}, False),
    ({"when": PARIS}, {"when": "2026-01-01T12:00:00+01:00"}, True),
    ({"when": NOON}, {"when": PARIS}, True),
    ({"when": NOON}, {"when": NOON.replace(tzinfo=None)}, False),
    ({"tags": ("a", "b")}, {"tags": ["a", "b"]}, True),
    ({"tags": ("a", "b")}, {"tags": ("b", "a")}, False),
    ({"names": {"a", "b"}}, {"names": ["b", "a"]}, True),
    ({"lines": [Line(price=1)]}, {"lines": [{"price": 1, "count": 1}]}, True),
    ({"lines": [Line(price=1, count=1)]}, {"lines": [{"price": 1.0}]}, True),
    ({"lines": [Line(price=1)]}, {"lines": [{"price": 1, "count": 2}]}, False),
    ({"amount": 5}, {"amount": 5.0, "note": "", "when": None, "lines": [], "made": ["x"]}, True),
    ({"amount": 5}, {"lasts": "", "amount": 5}, False),
    ({"amount": 5, "note": ""}, {"amount": 5, "note": "x"}, False),
    ({"log": ["begun"]}, {}, False),
    ({"log": []}, {}, True),
    ({"id": "7"}, {"id": "7"}, True),
    ({}, {"id": "7"}, False),
    ({"size": 7}, {"size": "7"}, True),
    ({"size": 7}, {"size": 8}, False),
]


@each("turned", [False, True])
def test_inputs_are_compared_as_the_graph_reads_them(turned: bool) -> None:
    graph = Graph(Order, inputs=[name for name in Order.model_fields if name != "out"], keep=["lasts"])
    graph.add_node("note", lambda amount: {"out": str(amount)}, writes=["out"]).add_path(START, "note", END)
    program = graph.compile(store=":memory:")
    wrong = []
    for number, (first, later, same) in enumerate(READ):
        one, other = (later, first) if turned else (first, later)
        if is_same_delivery(program.thread("t"), one, other, f"{number}") != same:
            wrong.append((one, other))
    assert not wrong


@pytest.mark.parametrize("deliver", [Thread.run, astream])
def test_inputs_that_the_graph_refuses_raise_before_the_key_is_looked_up(deliver: Callable[..., Run]) -> None:
    store, calls = Counted(), []

    def note(amount: float) -> None:
        calls.append(amount)

    wrong: list[Any] = [{"amount": "much"}, {"amount": 1, "note": 2}, {"amuont": 1}]
    for keep in ([], ["lasts"]):
        graph = Graph(Order, inputs=["amount", "size"], keep=keep).add_node("note", note, writes=[])
        t = graph.add_path(START, "note", END).compile(store=store).thread("t")
        deliver(t, {"amount": 1}, key="a")
        before = store.runs_read, store.rows_read, store.writes
        for inputs in wrong if keep else [*wrong, {"amount": 1, "size": 10}]:
            with pytest.raises(InputError):
                deliver(t, inputs, key="a")
        assert (store.runs_read, store.rows_read, store.writes) == before
    for key in "ab":  # a validator may read what lasts in the thread: it is asked when that was read
        with pytest.raises(InputError, match="too large"):
            deliver(t, {"amount": 1, "size": 10}, key=key)
    assert (store.writes, calls) == (before[-1], [1])
