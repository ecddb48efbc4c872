"""Two nodes write one key of a live field: a lost update is reported, merged or rejected."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, Context, Graph, live, reducers
from dspyer.errors import MergeConflictError
from dspyer.events import LiveConflict
from tests.live.kit import finished, team
from tests.rows import each


@each(
    ("mark", "first", "second", "expected"),
    [
        (live, {"k": {"a": 1}}, {"k": {"b": 2}}, {"k": {"a": 1, "b": 2}}),
        (live, {"k": [1]}, {"k": [2]}, {"k": [1, 2]}),
        (live, {"k": "x"}, {"k": "y"}, {"k": "y"}),
        (live, {"k": "x"}, {"j": "y"}, {"k": "x", "j": "y"}),
        (live(on_conflict="last_write_wins"), {"k": {"a": 1}}, {"k": {"b": 2}}, {"k": {"b": 2}}),
        (live(on_conflict="reject"), {"k": "x"}, {"k": "y"}, {"k": "x"}),
    ],
)
def test_overwriting_an_unread_post_is_a_conflict(
    mark: Any, first: dict[str, Any], second: dict[str, Any], expected: dict[str, Any]
) -> None:
    """S004-18, S004-19, S004-29."""
    for reads in (False, True):
        check_overwriting(mark, first, second, expected, reads)


def check_overwriting(
    mark: Any, first: dict[str, Any], second: dict[str, Any], expected: dict[str, Any], reads: bool
) -> None:

    class Code(BaseModel):
        code: Annotated[dict[str, Any], reducers.update, mark] = {}

    posted = threading.Event()

    def one(ctx: Context) -> None:
        ctx.post("code", first)
        posted.set()

    def two(ctx: Context) -> None:
        assert posted.wait(20)
        if reads:
            next(ctx.live("code"))
        ctx.post("code", second)

    graph = Graph(Code).add_node("one", one, writes=["code"]).add_node("two", two, writes=["code"])
    run = graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END).compile().run({})
    found = [event for event in run.events if isinstance(event, LiveConflict)]
    if reads or set(first) != set(second):
        assert found == []
        assert finished(run).state.to_dict()["code"] == {**first, **second}
        return
    assert found == [LiveConflict("code", "k", "two", "one", 1, mark.on_conflict)]
    if mark.on_conflict == "reject":
        assert isinstance(run.error, MergeConflictError)
        assert (run.error.writers, run.error.path) == (("one", "two"), ("code", "k"))
        assert "read ctx.live('code') up to there" in str(run.error)
    else:
        assert finished(run).state.to_dict()["code"] == expected


def message(**parts: Any) -> dict[str, Any]:
    return {"id": "m", **parts}


MESSAGES: list[tuple[Any, dict[str, Any], dict[str, Any], list[dict[str, Any]], Any]] = [
    (live, message(text="x"), message(text="y"), [message(text="y")], "m"),
    (live, message(a=1), message(b=2), [message(a=1, b=2)], "m"),
    (live(on_conflict="last_write_wins"), message(a=1), message(b=2), [message(b=2)], "m"),
    (live(on_conflict="reject"), message(text="x"), message(text="y"), [message(text="x")], None),
    (live, message(parts=[1]), message(parts=[1]), [message(parts=[1])], "no conflict"),
    (live, message(a=1), {"id": "n"}, [message(a=1), {"id": "n"}], "no conflict"),
    (live, {"text": "x"}, {"text": "x"}, [{"text": "x"}, {"text": "x"}], "no conflict"),
]


@each(("mark", "first", "second", "expected", "key"), MESSAGES)
def test_two_messages_with_one_id_are_a_conflict(
    mark: Any, first: Any, second: Any, expected: list[Any], key: Any
) -> None:
    """None of them is lost in silence: each conflict is an event by the rule of the field, in a resumed run too."""
    for colour, how in (("sync", "post"), ("async", "return")):
        check_messages(colour, how, mark, first, second, expected, key)


def check_messages(colour: str, how: str, mark: Any, first: Any, second: Any, expected: list[Any], key: Any) -> None:

    class Chat(BaseModel):
        said: Annotated[list[dict[str, Any]], reducers.add_messages, mark] = []

    posted = threading.Event()

    def one(ctx: Context) -> None:
        ctx.post("said", first)
        posted.set()

    def two(ctx: Context) -> Any:
        assert posted.wait(20)
        if how == "return":
            return {"said": second}
        ctx.post("said", second)
        return None

    def three(ctx: Context) -> None:
        ctx.interrupt("go", "go on?")

    graph = Graph(Chat).add_node("one", one, writes=["said"]).add_node("two", two, writes=["said"])
    graph.add_node("three", three, writes=[]).add_edge(START, ["one", "two"]).add_edge(["one", "two"], "three")
    thread = graph.add_edge("three", END).compile(store=":memory:").thread("t")
    run = thread.run({}) if colour == "sync" else asyncio.run(thread.arun({}))
    found = [event for event in run.events if isinstance(event, LiveConflict)]
    if key == "no conflict":
        assert found == []
    else:
        assert found == [LiveConflict("said", key, "two", "one", 1, mark.on_conflict)]
    if mark.on_conflict == "reject":
        assert isinstance(run.error, MergeConflictError)
        assert run.error.writers == ("one", "two")
        return
    run = finished(thread.resume({run.questions[0].id: True}))
    said = [{name: part for name, part in one.items() if "/" not in str(part)} for one in run.state.to_dict()["said"]]
    assert said == expected
    assert thread.replay() == run.state


def test_a_list_can_reject_posts_by_nodes_that_have_not_read_it() -> None:
    class Code(BaseModel):
        notes: Annotated[list[str], reducers.append, live(on_conflict="reject")] = []

    posted = threading.Event()

    def one(ctx: Context) -> None:
        ctx.post("notes", "1")
        posted.set()

    def two(ctx: Context) -> None:
        assert posted.wait(20)
        with pytest.raises(MergeConflictError):
            ctx.post("notes", "2")
        heard = next(ctx.live("notes")).value
        ctx.post("notes", f"2 after {heard}")

    graph = Graph(Code).add_node("one", one, writes=["notes"]).add_node("two", two, writes=["notes"])
    program = graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], END).compile()
    assert finished(program.run({})).state.to_dict()["notes"] == ["1", "2 after 1"]


@pytest.mark.parametrize("sequence", [False, True])
def test_posts_in_the_lineage_of_a_node_are_no_conflict(sequence: bool) -> None:
    """A node has in its state what earlier nodes of its branch have written."""
    run = (
        team(
            sequence=True,
            one=(lambda ctx: {"code": {"k": 1}}, ["code"]),
            two=(lambda ctx: {"code": {"k": 2}}, ["code"]),
        )
        .compile()
        .run({}, live=not sequence)
    )
    assert finished(run).state.to_dict()["code"] == {"k": 2}
    assert not [event for event in run.events if isinstance(event, LiveConflict)]
