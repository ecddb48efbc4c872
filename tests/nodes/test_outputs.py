"""Results of functions as updates: patches, models, predictions, Commands; declared writes and targets."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import dspy
import pytest
import typing_extensions
from pydantic import BaseModel, ConfigDict

from dspyer.errors import NodeOutputError, RouteError
from dspyer.nodes.node import Command, Reply, Send
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from tests.nodes.kit import MODES, built, good, run_node
from tests.rows import each


class Draft(BaseModel):
    title: str = ""
    body: str | None = None
    tags: list[str] = []


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    title: str = ""


class Patch(TypedDict, total=False):
    title: str
    tags: list[str]


class Other(TypedDict):
    elsewhere: str


DRAFT = Schema.of(Draft)


@MODES
@each(
    ("result", "expected"),
    [
        (None, Reply({})),
        ({"title": "a"}, Reply({"title": "a"})),
        ({"tags": None}, Reply({"tags": None})),
        (Draft(title="a"), Reply({"title": "a"}, None, True)),
        (Draft(body=None), Reply({"body": None}, None, True)),
        (Draft(tags=["x"], title="a"), Reply({"title": "a", "tags": ["x"]}, None, True)),
        (Loose(title="a", more=1), Reply({"title": "a", "more": 1}, None, True)),
        (dspy.Prediction(title="a", body=None), Reply({"title": "a", "body": None}, None, True)),
        (dspy.Prediction(items="a"), Reply({"items": "a"}, None, True)),
        (Command(), Reply({})),
        (Command({"title": "a"}), Reply({"title": "a"})),
        (Command(Draft(title="a")), Reply({"title": "a"}, None, True)),
        (Command(goto="judge"), Reply({}, ("judge",))),
        (Command({"title": "a"}, ["judge", "END"]), Reply({"title": "a"}, ("judge", "END"))),
        (Command(goto=[Send("judge", {"n": 1})]), Reply({}, (Send("judge", {"n": 1}),))),
    ],
)
def test_what_a_function_returns_becomes_updates(result: object, expected: Reply, mode: str) -> None:
    assert run_node(lambda: result, mode=mode, goto=["judge", "END"]) == expected


@MODES
@each(
    ("result", "messages"),
    [
        ("text", ["node 'node' returned 'text', of type str", "return a dict of what changed"]),
        (3, ["of type int"]),
        ([{"a": 1}], ["of type list"]),
        ((1, 2), ["of type tuple"]),
        (dspy.Example(a=1), ["of type Example"]),
        (Send("judge"), ["of type Send", "return Command(goto=...)"]),
        ([Send("judge")], ["return Command(goto=...)"]),
        ({1: "a"}, ["the key 1"]),
        (Command("text"), ["of type str"]),
        (
            Command({"title": "a"}, result="seen"),
            ["node 'node' returned Command(result='seen')", "return the value in update={...}", "agents.tool_loop"],
        ),
        (ImmutableState({"title": "a"}), ["returned the whole state", "state.diff(new)"]),
    ],
)
def test_anything_else_is_an_error_that_says_what_to_return(result: object, messages: list[str], mode: str) -> None:
    with pytest.raises(NodeOutputError) as caught:
        run_node(lambda: result, mode=mode)
    assert all(message in str(caught.value) for message in messages), caught.value


def test_a_function_that_returns_an_awaitable_is_awaited() -> None:
    async def later() -> dict[str, str]:
        return {"title": "a"}

    def calls_later() -> Any:
        return later()

    for mode in ("sync", "async"):
        assert run_node(calls_later, mode=mode) == Reply({"title": "a"})


# --- writes


@pytest.mark.parametrize(
    ("writes", "result", "expected"),
    [
        (["title"], {"title": "a"}, {"title": "a"}),
        ({"name": "title"}, {"name": "a"}, {"title": "a"}),
        ({"name": "title", "body": "body"}, {"body": "b"}, {"body": "b"}),
        ([], None, {}),
    ],
)
def test_writes_map_own_names_to_fields(writes: Any, result: object, expected: dict[str, str]) -> None:
    assert run_node(lambda: result, schema=DRAFT, writes=writes).updates == expected


@pytest.mark.parametrize(
    ("writes", "result", "messages"),
    [
        (["title"], {"titel": "a"}, ["returned 'titel', which it does not write", "'title'", "Did you mean 'title'?"]),
        (["title"], {"body": "a"}, ["returned 'body', which it does not write"]),
        ({"name": "title"}, {"title": "a"}, ["its writes are 'name'"]),
        ([], {"title": "a"}, ["its writes are none"]),
        (["title"], dspy.Prediction(body="a"), ["returned 'body'"]),
    ],
)
def test_what_a_node_may_not_write_is_an_error_and_nothing_is_dropped(
    writes: Any, result: object, messages: list[str]
) -> None:
    with pytest.raises(NodeOutputError) as caught:
        run_node(lambda: result, schema=DRAFT, writes=writes)
    assert all(message in str(caught.value) for message in messages), caught.value


def returns_typed() -> Patch:
    return {"title": "a"}


def returns_optional() -> Patch | None:
    return None


def returns_schema() -> Draft:
    return Draft(title="a")


def returns_other_model() -> Loose:
    return Loose()


def returns_dict() -> dict[str, str]:
    return {}


def returns_nothing() -> None:
    return None


def returns_typed_or_dict() -> Patch | dict[str, str]:
    return {}


def returns_command() -> Command[Literal["judge", "END"]]:
    return Command(goto="judge")


def returns_bare_command() -> Command:
    return Command()


@each(
    ("fn", "writes"),
    [
        (returns_typed, ("title", "tags")),
        (returns_optional, ("title", "tags")),
        (returns_schema, None),
        (returns_other_model, ("title",)),
        (returns_dict, None),
        (returns_nothing, ()),
        (returns_typed_or_dict, None),
        (returns_command, None),
        (returns_bare_command, None),
        (lambda: None, None),
    ],
)
def test_a_return_annotation_declares_writes(fn: Any, writes: tuple[str, ...] | None) -> None:
    expected = None if writes is None else {name: name for name in writes}
    assert good(built(fn, schema=DRAFT)).writes == expected


def test_a_typed_dict_may_name_what_only_type_checkers_import() -> None:
    class Base(TypedDict):
        title: Unknown  # type: ignore[name-defined]  # noqa: F821

    class Found(Base):
        tags: list[str]

    def node() -> Any:
        return {}

    node.__annotations__["return"] = Found
    assert good(built(node, schema=DRAFT)).writes == {"title": "title", "tags": "tags"}


def test_a_declared_return_is_a_permission() -> None:
    def node() -> Patch:
        return {"body": "b"}  # type: ignore[typeddict-unknown-key]

    with pytest.raises(NodeOutputError, match="'body', which it does not write"):
        run_node(node, schema=DRAFT)


def returns_elsewhere() -> Other:
    return {"elsewhere": "a"}


@each(
    ("fn", "writes", "message"),
    [
        (returns_elsewhere, None, "its return annotation has 'elsewhere', none of which is a field of the state"),
        (returns_dict, ["titel"], "Did you mean 'title'?"),
        (returns_dict, {"title": "name"}, "write writes={'name': 'title'}"),
        (returns_typed, {"titel": "title"}, "'titel' in writes is none of its outputs ('title', 'tags')"),
        (returns_elsewhere, {"title": "elsewhere"}, "write writes={'elsewhere': 'title'}"),
        (returns_dict, {"a": "title", "b": "title"}, "names the field 'title' more than once"),
        (returns_dict, "title", "write writes=['title']"),
    ],
)
def test_writes_that_name_no_field_or_output_are_problems(fn: Any, writes: Any, message: str) -> None:
    problems = built(fn, schema=DRAFT, writes=writes).problems
    assert any(message in problem for problem in problems), problems


# --- goto


def test_targets_of_a_command_come_from_the_annotation_or_from_goto() -> None:
    assert good(built(returns_command)).goto == ("judge", "END")
    assert good(built(returns_dict, goto=["a"])).goto == ("a",)
    assert good(built(returns_command, goto=["more"])).goto == ("more", "judge", "END")
    assert good(built(returns_bare_command)).goto == ()


@pytest.mark.parametrize(
    ("goto", "messages"),
    [
        ("jugde", ["went to 'jugde'", "its targets are 'judge', 'END'", "Did you mean 'judge'?"]),
        (["judge", "elsewhere"], ["went to 'elsewhere'"]),
        (Send("elsewhere"), ["went to 'elsewhere'"]),
        ([], ["Command(goto=[])"]),
        ([1], ["of type int"]),
    ],
)
def test_an_unknown_target_raises_and_lists_the_declared_ones(goto: Any, messages: list[str]) -> None:
    with pytest.raises(RouteError) as caught:
        run_node(lambda: Command(goto=goto), goto=["judge", "END"])
    assert all(message in str(caught.value) for message in messages), caught.value


def sends_by_global() -> Command[Literal["judge"]]:
    return Command(goto=Send("judge", {}))


def test_a_node_declares_whether_it_may_send() -> None:
    assert good(built(sends_by_global)).sends
    assert good(built(sends_by_global)).send_targets == ("judge",)
    assert not good(built(returns_command)).sends
    assert good(built(returns_command)).send_targets == ()


def test_a_send_keeps_its_overlay_from_changes() -> None:
    docs = ["a"]
    send = Send("judge", {"docs": docs})
    docs.append("b")
    assert send.overlay == {"docs": ["a"]}
    assert send == Send("judge", {"docs": ["a"]})
    assert hash(send) == hash(Send("judge", {"docs": ["a"]}))
    assert repr(send) == "Send('judge', overlay of ['docs'])"
    with pytest.raises(AttributeError, match="cannot be changed"):
        send.node = "other"
    with pytest.raises(TypeError, match="takes the name of a node"):
        Send({"docs": docs})  # type: ignore[arg-type]


def test_the_typed_dict_of_typing_extensions_declares_writes_too() -> None:
    class Found(typing_extensions.TypedDict):
        answer: str

    def search(question: str) -> dict[str, str]:
        return {"answer": question}

    search.__annotations__["return"] = Found
    node = built(search, "search").node
    assert node is not None
    assert node.writes == {"answer": "answer"}
