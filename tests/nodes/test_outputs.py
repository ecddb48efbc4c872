"""Results of functions as updates: patches, models, predictions, Commands; declared writes and targets."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, TypedDict

import dspy
import pytest
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, computed_field

from dspyer import END, START, Command, Graph, ImmutableState, Replace, Send, reducers
from dspyer.errors import GraphError, NodeOutputError, RouteError
from tests.nodes.kit import MODES, facts, facts_in, problems, run_node, with_targets, written
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


class Noted(BaseModel):
    notes: dict[str, int]


@MODES
@each(
    ("result", "updates", "route"),
    [
        (None, {}, ("END",)),
        ({"title": "a"}, {"title": "a"}, ("END",)),
        (Draft(title="a"), {"title": "a", "body": Replace(None), "tags": []}, ("END",)),
        (Draft(body="b", tags=["x"], title="a"), {"title": "a", "body": "b", "tags": ["x"]}, ("END",)),
        (Loose(title="a", more=1), {"title": "a", "more": 1}, ("END",)),
        (dspy.Prediction(title="a", body=None), {"title": "a", "body": Replace(None)}, ("END",)),
        (dspy.Prediction(items="a"), {"items": "a"}, ("END",)),
        (Command(), {}, ("END",)),
        (Command({"title": "a"}), {"title": "a"}, ("END",)),
        (Command(Draft(title="a", body="b")), {"title": "a", "body": "b", "tags": []}, ("END",)),
        (Command(goto="judge"), {}, ("judge",)),
        (Command({"title": "a"}, ["judge", "more"]), {"title": "a"}, ("judge", "more")),
        (Command(goto=[Send("judge", {"n": 1})]), {}, ("judge",)),
    ],
)
def test_what_a_function_returns_becomes_updates(
    result: object, updates: dict[str, Any], route: tuple[str, ...], mode: str
) -> None:
    run = run_node(lambda: result, mode=mode, goto=["judge", "more", "END"])
    assert written(run) == updates
    assert [commit.route for commit in run.commits if commit.node == "node"] == [route]


@each(
    ("result", "notes"),
    [
        ({"notes": {"b": 2}}, {"a": 1, "b": 2}),
        ({"notes": None}, None),
        (Noted(notes={"b": 2}), {"a": 1, "b": 2}),
        (Command(Noted(notes={"b": 2})), {"a": 1, "b": 2}),
        (dspy.Prediction(notes={"b": 2}), {"b": 2}),
    ],
)
def test_models_are_merged_like_dicts_and_predictions_are_whole(result: object, notes: Any) -> None:
    assert run_node(lambda: result, {"notes": {"a": 1}}).state.get("notes") == notes


class Page(BaseModel):
    title: str = "old"
    size: int = 3
    note: str | None = "kept"
    meta: dict[str, int] = {"a": 1}
    log: Annotated[list[str], reducers.append] = []
    length: int = 0


class Part(BaseModel):
    """A part of a page: none of it is set but its title."""

    title: str
    size: int = 0
    note: str | None = None
    meta: dict[str, int] = {}

    @computed_field
    def length(self) -> int:
        return len(self.title)


class Hidden(BaseModel):
    title: str
    size: int = Field(default=9, exclude=True)


class Logged(BaseModel):
    title: str
    log: str = "default"


BEFORE = {"title": "old", "size": 3, "note": "kept", "meta": {"a": 1}, "log": ["first"], "length": 0}


@MODES
@each(
    ("result", "changed"),
    [
        (Part(title="new"), {"title": "new", "size": 0, "note": None, "length": 3}),
        (
            Part(title="b", note="n", meta={"b": 2}),
            {"title": "b", "size": 0, "note": "n", "meta": {"a": 1, "b": 2}, "length": 1},
        ),
        (Command(Part(title="new", size=4)), {"title": "new", "size": 4, "note": None, "length": 3}),
        (Hidden(title="new", size=4), {"title": "new"}),
        (Loose(title="new", size=5), {"title": "new", "size": 5}),
    ],
)
def test_a_model_is_a_patch_equal_to_its_dump(result: Any, changed: dict[str, Any], mode: str) -> None:
    model: Any = result.update if isinstance(result, Command) else result
    for given in (result, model.model_dump()):
        run = run_node(partial(lambda one: one, given), {"log": "first"}, schema=Page, mode=mode)
        assert dict(run.state) == {**BEFORE, **changed}


@MODES
@each(
    ("result", "changed"),
    [
        (Logged(title="new"), {"title": "new"}),  # an unset field with a reducer
        (Logged(title="new", log="second"), {"title": "new", "log": ["first", "second"]}),
        (Page(size=4), {"size": 4}),  # the schema of the state
    ],
)
def test_unset_fields_with_a_reducer_and_of_the_state_itself_are_no_update(
    result: Any, changed: dict[str, Any], mode: str
) -> None:
    run = run_node(lambda: result, {"log": "first"}, schema=Page, mode=mode)
    assert dict(run.state) == {**BEFORE, **changed}


def test_unset_defaults_need_permission_too() -> None:
    with pytest.raises(NodeOutputError, match="returned 'size', which it does not write"):
        run_node(lambda: Part(title="new"), schema=Page, writes=["title"])


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
        assert written(run_node(calls_later, mode=mode)) == {"title": "a"}


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
    assert written(run_node(lambda: result, schema=Draft, writes=writes)) == expected


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
        run_node(lambda: result, schema=Draft, writes=writes)
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
        (returns_typed, "title, tags"),
        (returns_optional, "title, tags"),
        (returns_schema, "?"),
        (returns_other_model, "title"),
        (returns_dict, "?"),
        (returns_nothing, "nothing"),
        (returns_typed_or_dict, "?"),
        (returns_bare_command, "?"),
        (lambda: None, "?"),
    ],
)
def test_a_return_annotation_declares_writes(fn: Any, writes: str) -> None:
    assert facts(fn, schema=Draft) == f"reads nothing; writes {writes}; -> END"


def test_a_typed_dict_may_name_what_only_type_checkers_import() -> None:
    class Base(TypedDict):
        title: Unknown  # type: ignore[name-defined]  # noqa: F821

    class Found(Base):
        tags: list[str]

    def node() -> Any:
        return {}

    node.__annotations__["return"] = Found
    assert "writes title, tags;" in facts(node, schema=Draft)


def test_a_declared_return_is_a_permission() -> None:
    def node() -> Patch:
        return {"body": "b"}  # type: ignore[typeddict-unknown-key]

    with pytest.raises(NodeOutputError, match="'body', which it does not write"):
        run_node(node, schema=Draft)


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
    found = problems(fn, schema=Draft, writes=writes)
    assert any(message in problem for problem in found), found


# --- goto


@each(
    ("fn", "goto", "targets"),
    [
        (returns_command, [], ["judge", "END"]),
        (returns_dict, ["a"], ["a"]),
        (returns_command, ["more"], ["more", "judge", "END"]),
    ],
)
def test_targets_of_a_command_come_from_the_annotation_or_from_goto(
    fn: Any, goto: list[str], targets: list[str]
) -> None:
    graph = with_targets(Graph().add_node("node", fn, goto=goto).add_edge(START, "node"), targets)
    assert facts_in(graph, "node") == f"reads nothing; writes ?; -> {', '.join(targets)}"


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
    return Command(goto=Send("judge", {"doc": "d"}))


def test_only_what_a_send_brings_need_not_be_a_field() -> None:
    def around(fn: Any) -> Graph:
        graph = Graph(Draft).add_node("node", fn).add_node("judge", lambda doc: None, writes=[])
        return graph.add_path(START, "node", "judge", END)

    assert around(sends_by_global).compile().run({}).status == "completed"
    with pytest.raises(GraphError, match="'doc' is no field"):
        around(returns_command).compile()


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
    assert "writes answer;" in facts(search)
