"""The JSON form of every event, commit, question and conflict; and the position of a commit in its run."""

from __future__ import annotations

import json
import operator
from dataclasses import replace
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import DELETE, END, START, Graph, ImmutableState, Replace, Updates, reducers
from dspyer.events import (
    Asked,
    Committed,
    ConflictFound,
    Emitted,
    Event,
    ItemFinished,
    ItemStarted,
    NodeFailed,
    NodeStarted,
    Question,
)
from tests.event_samples import RECORDS, event_types, names_of, sample
from tests.plain_values import frozen

VALUE = {"when": date(2024, 5, 17), "members": {1, 2}, "pair": (1, b"x"), "none": None}


def test_every_type_becomes_json() -> None:
    for cls in (*event_types(), *RECORDS):
        record = sample(cls, frozen(VALUE))
        found = record.to_dict()
        assert json.loads(json.dumps(found, allow_nan=False)) == found, "plain JSON, through text and back"
        names = {name for name, value in vars(cls).items() if isinstance(value, property)} | set(names_of(cls))
        assert set(found) == (names if cls in RECORDS else names | {"event"}), cls
        if cls not in RECORDS:
            assert next(iter(found.items())) == ("event", cls.__name__)
        for name in names_of(cls):
            if getattr(record, name) == frozen(VALUE):
                assert ImmutableState.from_json(json.dumps({"value": found[name]})).raw("value") == frozen(VALUE), name


UPDATES: list[tuple[Any, Any]] = [
    (None, None),
    (DELETE, {"$type": "delete"}),
    (Replace(frozen({"a": 1})), {"$type": "replace", "value": {"a": 1}}),
    (
        Updates(1, DELETE, Replace(frozen([2]))),
        {"$type": "updates", "value": [1, {"$type": "delete"}, {"$type": "replace", "value": [2]}]},
    ),
    (
        {"deep": {"x": DELETE, "y": frozen({"z": 1})}},
        {
            "$type": "patch",
            "value": [["deep", {"$type": "patch", "value": [["x", {"$type": "delete"}], ["y", {"z": 1}]]}]],
        },
    ),
]


def test_patches_have_a_form_for_each_kind_of_update() -> None:
    for update, expected in UPDATES:
        commit = replace(sample(RECORDS[0], 1), patch={"field": update})
        assert json.loads(json.dumps(commit.to_dict()))["patch"]["field"] == expected
    commit = replace(sample(RECORDS[0], 1), patch={"value": frozen(VALUE)})
    assert ImmutableState.from_json(json.dumps(commit.to_dict()["patch"])).raw("value") == frozen(VALUE)


def test_a_question_shows_its_id_and_the_schema_of_its_answer() -> None:
    question = Question("ok", "Go?", {"type": "object", "properties": {"x": {"type": "integer"}}}, "ask", (0, 1), "0:2")
    assert question.to_dict() == {
        "key": "ok",
        "text": "Go?",
        "answer": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "node": "ask",
        "branch": [0, 1],
        "execution": "0:2",
        "run": "",
        "call": None,
        "expires": None,
        "id": "0:2/ok",
    }
    assert Asked(question).to_dict() == {"event": "Asked", "question": question.to_dict(), "scope": [], "at": 0.0}


def test_a_conflict_shows_absent_sides() -> None:
    conflict = replace(sample(RECORDS[1], 1), base=DELETE, values=(("a", DELETE), ("b", 2)), path=("user", 3))
    found = ConflictFound(conflict).to_dict()["conflict"]
    assert (found["base"], found["path"]) == ({"$type": "delete"}, ["user", 3])
    assert found["values"] == [["a", {"$type": "delete"}], ["b", 2]]


def test_an_error_has_class_text_and_notes() -> None:
    error = ValueError("odd")
    error.add_note("in node 'a'")
    found = NodeFailed("a", (), "trunk:1", error).to_dict()
    assert found["error"] == {"type": "ValueError", "message": "odd", "notes": ["in node 'a'"]}

    class MuteError(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    found = NodeFailed("a", (), "trunk:1", MuteError()).to_dict()
    assert found["error"]["message"] == "<MuteError.__str__ raised KeyError>"


def test_an_emitted_object_that_no_state_can_hold_has_class_and_text() -> None:
    found = Emitted("a", (), "trunk:1", operator.itemgetter(1)).to_dict()
    assert found["value"] == {"$type": "object", "class": "operator:itemgetter", "value": "operator.itemgetter(1)"}


def fork() -> Graph:
    def say(name: str) -> Any:
        def node(log: list[str]) -> dict[str, Any]:
            return {"log": [name]}

        return node

    class State(BaseModel):
        log: Annotated[list[str], reducers.extend] = []

    graph = Graph(State, inputs=["log"])
    for name in ("a", "b", "b2", "c", "d", "e"):
        graph.add_node(name, say(name), writes=["log"])
    graph.add_edge(START, "a").add_edge("a", ["b", "c"]).add_edge("b", "b2").add_edge(["b2", "c"], "d")
    return graph.add_path("d", "e", END)


def test_a_commit_without_a_version_has_a_position() -> None:
    run = fork().compile().run({"log": []})
    seen = [event for event in run.events if isinstance(event, Committed)]
    assert [event.position for event in seen] == list(range(len(seen))), "the order in which they were made"
    known = [(event.commit.version, event.position) for event in seen if event.commit.version is not None]
    assert known
    assert all(version == position for version, position in known)
    inside = [event.commit.node for event in seen if event.commit.version is None]
    assert sorted(inside) == ["b", "b2", "c"]


def test_positions_continue_over_the_runs_of_a_thread_and_after_a_failure() -> None:
    fail: list[bool] = [True]

    def odd(n: int) -> dict[str, Any]:
        if fail:
            raise ValueError("odd")
        return {"n": n + 1}

    graph = Graph(inputs=["n"]).add_node("a", lambda n: {"n": n}, writes=["n"]).add_node("odd", odd, writes=["n"])
    t = graph.add_path(START, "a", "odd", END).compile(store=":memory:").thread("t")
    first = t.run({"n": 1})
    fail.clear()
    events: list[Event] = [*first.events, *t.stream_resume(), *t.run({"n": 2}).events]
    found = [(event.position, event.commit.node) for event in events if isinstance(event, Committed)]
    assert found == [(0, "START"), (1, "a"), (2, "odd"), (3, "START"), (4, "a"), (5, "odd")]


def test_the_events_of_a_whole_run_are_json() -> None:
    run = fork().compile().run({"log": []})
    lines = [json.dumps(event.to_dict()) for event in run.events]
    assert [json.loads(line)["event"] for line in lines] == [type(event).__name__ for event in run.events]
    started = [event.to_dict()["execution"] for event in run.events if isinstance(event, NodeStarted)]
    assert started == [event.execution for event in run.events if isinstance(event, NodeStarted)]


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_the_events_of_a_map_name_its_items(colour: str) -> None:
    def read(item: int) -> int:
        if item == 2:
            raise ValueError("odd")
        return item

    async def aread(item: int) -> int:
        return read(item)

    graph = Graph(inputs=["items"]).add_map(
        "read", aread if colour == "async" else read, over="items", item="item", into="out"
    )
    run = graph.add_path(START, "read", END).compile(max_concurrency=1).run({"items": [0, 1, 2, 3]})
    items = [event for event in run.events if isinstance(event, ItemStarted | ItemFinished)]
    shown = [(type(one).__name__, one.item, one.items, getattr(one, "status", "")) for one in items]
    assert shown == [
        ("ItemStarted", 0, 4, ""),
        ("ItemFinished", 0, 4, "completed"),
        ("ItemStarted", 1, 4, ""),
        ("ItemFinished", 1, 4, "completed"),
        ("ItemStarted", 2, 4, ""),
        ("ItemFinished", 2, 4, "failed"),
    ]
    assert items[0].execution == "trunk:1[0]"
    assert "in items[2] of the map 'read' (4 items)" in run.report()
