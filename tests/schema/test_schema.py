"""Schemas: reading models, initial states, commits that are validated field by field, replay, and typed views."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from datetime import date
from itertools import count
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    create_model,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from dspyer import reducers
from dspyer.errors import (
    DspyerError,
    GraphError,
    ImmutableError,
    InputError,
    NodeOutputError,
    UnsetFieldError,
    UnsupportedValueError,
)
from dspyer.patch import DELETE, Replace
from dspyer.reducers import Updates
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, FrozenList, thaw


class Address(BaseModel):
    street: str
    town: str = "Ulm"


class User(BaseModel):
    name: str
    nick: str | None = "N"
    address: Address | None = None
    tags: dict[str, int] = {}
    serial: int = Field(default_factory=count().__next__)


class Options(TypedDict, total=False):
    colour: str
    size: int


def double(current: int, update: int) -> int:
    return 2 * current + update


class Research(BaseModel):
    """A typical schema."""

    question: str
    findings: Annotated[list[str], reducers.extend] = []
    log: Annotated[list[str], reducers.append] = []
    calls: Annotated[int, reducers.increment] = 0
    best: Annotated[float | None, reducers.max] = None
    seen: Annotated[set[str], reducers.union] = set()
    table: Annotated[dict[str, int], reducers.update] = {}
    messages: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    doubled: Annotated[int, double] = 1
    answer: str | None = None
    score: float = 0.0
    risk: Literal["low", "high"] | None = None
    free: dict[str, Any] = {}
    typed: dict[str, int] = {}
    nested: dict[int, dict[str, int]] = {}
    options: Options = {}
    user: User | None = None
    replaced: Annotated[dict[str, int], reducers.replace] = {}
    tags: list[str] = Field(default=[], max_length=3)
    short: Annotated[list[str], reducers.extend, Field(max_length=3)] = []
    born: date | None = None
    anything: Any = None

    def shout(self) -> str:
        return f"{self.question}!"

    @property
    def size(self) -> int:
        return len(self.findings)


SCHEMA = Schema.of(Research)
START = SCHEMA.initial_state({"question": "why"})


def commit(updates: dict[str, Any], state: ImmutableState = START, **options: Any) -> Any:
    return SCHEMA.commit(state, updates, node="search", commit_id="trunk:1", **options)


def after(*updates: dict[str, Any]) -> ImmutableState:
    state = START
    for update in updates:
        state = commit(update, state)[1]
    return state


class TestReading:
    def test_fields(self) -> None:
        assert list(SCHEMA.fields) == list(Research.model_fields)
        assert SCHEMA.model is Research
        assert not SCHEMA.accepts_any_key
        assert SCHEMA.fields["question"].required
        assert SCHEMA.fields["question"].default() is DELETE
        assert not SCHEMA.fields["findings"].required
        assert SCHEMA.fields["findings"].default() == []
        assert SCHEMA.reducer("findings") is reducers.extend
        assert SCHEMA.reducer("answer") is None
        assert SCHEMA.reducer("replaced") is None, "its updates conflict, they do not fold"
        assert SCHEMA.reducer("unknown") is None

    def test_an_open_schema(self) -> None:
        schema = Schema.of(None)
        assert schema.accepts_any_key
        assert not schema.fields
        assert schema.model is None
        assert schema.reducer("any") is None
        with pytest.raises(GraphError, match="Graph\\(Research\\)"):
            schema.view(ImmutableState(), None)

    def test_a_schema_is_shared_by_copies(self) -> None:
        assert copy.deepcopy(SCHEMA) is SCHEMA
        assert copy.copy(SCHEMA) is SCHEMA
        assert list(pickle.loads(pickle.dumps(SCHEMA)).fields) == list(SCHEMA.fields)

    def test_optional_metadata_is_no_reducer(self) -> None:
        class Marker:
            pass

        class Model(BaseModel):
            a: Annotated[int, Field(gt=0), Marker()] = 1
            b: Annotated[str, AfterValidator(str.strip)] = ""

        schema = Schema.of(Model)
        assert schema.reducer("a") is schema.reducer("b") is None
        with pytest.raises(NodeOutputError, match="greater than 0"):
            schema.commit(schema.initial_state({}), {"a": 0}, node="n", commit_id="c")
        assert schema.commit(schema.initial_state({}), {"b": " x "}, node="n", commit_id="c")[0] == {"b": "x"}


def model_with(annotation: Any, default: Any = ..., **config: Any) -> type[BaseModel]:
    namespace: dict[str, Any] = {"__annotations__": {"field": annotation}, "__module__": __name__}
    if default is not ...:
        namespace["field"] = default
    namespace["model_config"] = {"arbitrary_types_allowed": True, **config}
    return type("Model", (BaseModel,), namespace)


class Checked(BaseModel):
    a: int = 0

    @model_validator(mode="after")
    def check_all(self) -> Checked:
        return self


class Private(BaseModel):
    _count: int = 0


class Reserved(BaseModel):
    run: int = 0
    state: int = 0
    ctx: int = 0


class Later(BaseModel):
    field: NotDefinedYet  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (model_with(Annotated[list[str], "extend"]), ["field 'field' of schema Model", "reducers.extend"]),
        (model_with(Annotated[list[str], "extnd"]), ["Did you mean 'extend'", "Field(description=...)"]),
        (model_with(Annotated[list[str], len]), ["'len' must take two arguments"]),
        (model_with(Annotated[list[str], lambda current: current]), ["two arguments"]),
        (model_with(Annotated[list[str], {"reducer": "extend"}]), ["is no reducer"]),
        (model_with(Annotated[str, reducers.extend]), ["reducer 'extend' needs a field of type list, not str"]),
        (model_with(Annotated[list[str], reducers.increment]), ["reducer 'increment' needs a field of numbers"]),
        (model_with(Annotated[list[str], reducers.extend, reducers.append]), ["2 reducers (extend, append)"]),
        (
            model_with(Annotated[list[str], reducers.extend] | None, None),
            ["Annotated[list[str] | None, reducers.extend]"],
        ),
        (model_with(Annotated[list[str], reducers.add_messages]), ["messages with an `id`"]),
        (model_with(Any, object()), ["its default cannot be part of a state"]),
        (model_with(int, "x", validate_default=True), ["its default is not valid"]),
        (Checked, ["'check_all'", "@field_validator"]),
        (Private, ["'_count' is a private attribute", "without the leading underscore"]),
        (Reserved, ["3 problems", "'run'", "'state'", "'ctx'", "rename it"]),
        (Later, ["'NotDefinedYet'", "not defined yet"]),
        (RootModel[int], ["a class of pydantic's BaseModel"]),
        (User(name="a"), ["a class of pydantic's BaseModel"]),
        (Options, ["a class of pydantic's BaseModel"]),
        (int, ["a class of pydantic's BaseModel"]),
    ],
)
def test_models_that_a_graph_cannot_use(model: Any, words: list[str]) -> None:
    with pytest.raises(GraphError) as refusal:
        Schema.of(model)
    assert all(word in str(refusal.value) for word in words)


class TestInitial:
    def test_defaults_in_the_order_of_the_schema(self) -> None:
        assert list(START) == list(Research.model_fields)
        assert START["question"] == "why"
        assert START["findings"] == []

    def test_inputs_are_validated_and_folded(self) -> None:
        state = SCHEMA.initial_state({"calls": 5, "question": "why", "findings": ["a"], "score": "1.5", "best": 1})
        assert (state["calls"], state["findings"], state["score"], state["best"]) == (5, ["a"], 1.5, 1.0)
        assert type(state["best"]) is float
        assert SCHEMA.initial_state({"doubled": 3})["doubled"] == 5
        assert SCHEMA.initial_state({"doubled": Replace(3)})["doubled"] == 3

    def test_a_field_without_default_may_stay_unset(self) -> None:
        assert "question" not in SCHEMA.initial_state({})

    def test_a_dict_is_a_whole_value(self) -> None:
        class Model(BaseModel):
            settings: dict[str, Any] = {"a": 1}

        assert Schema.of(Model).initial_state({"settings": {"b": None}})["settings"] == {"b": None}

    def test_factories_are_called_for_each_state(self) -> None:
        class Model(BaseModel):
            first: int = 5
            numbers: list[int] = Field(default_factory=lambda data: [data["first"]])
            serial: int = Field(default_factory=count().__next__)

        schema = Schema.of(Model)
        assert schema.initial_state({})["numbers"] == [5]
        assert schema.initial_state({})["serial"] != schema.initial_state({})["serial"]

    @pytest.mark.parametrize(
        ("inputs", "required", "words"),
        [
            ({"score": 1}, ["question", "user"], ["missing inputs: 'question', 'user'", "given: 'score'"]),
            ({}, ["question"], ["given: none"]),
            ({"qestion": "x"}, None, ["'qestion'", "Did you mean 'question'", "Fields: 'question', 'findings'"]),
            ({"question": 5}, None, ["field 'question'", "5", "valid string"]),
            ({"findings": "x"}, None, ["field 'findings'", "return ['x']"]),
        ],
    )
    def test_refusals(self, inputs: dict[str, Any], required: list[str] | None, words: list[str]) -> None:
        with pytest.raises(InputError) as refusal:
            SCHEMA.initial_state(inputs, required)
        assert all(word in str(refusal.value) for word in words)

    def test_without_a_schema_inputs_are_whole_values(self) -> None:
        state = Schema.of(None).initial_state({"a": None, "b": {"c": None}})
        assert state == {"a": None, "b": {"c": None}}
        with pytest.raises(InputError, match="missing inputs: 'a'"):
            Schema.of(None).initial_state({}, ["a"])


class TestCommit:
    @pytest.mark.parametrize(
        ("update", "patch", "value"),
        [
            pytest.param({"answer": "yes"}, {"answer": "yes"}, "yes", id="scalar"),
            pytest.param({"score": "2.5"}, {"score": 2.5}, 2.5, id="coerced"),
            pytest.param({"score": 3}, {"score": 3.0}, 3.0, id="int to float"),
            pytest.param({"answer": None}, {}, None, id="no net change"),
            pytest.param({"question": "why"}, {}, "why", id="equal value"),
            pytest.param({"born": "2020-01-02"}, {"born": date(2020, 1, 2)}, date(2020, 1, 2), id="date"),
            pytest.param({"risk": "low"}, {"risk": "low"}, "low", id="literal"),
            pytest.param({"tags": ["a"]}, {"tags": ["a"]}, ["a"], id="list"),
            pytest.param({"findings": ["a"]}, {"findings": ["a"]}, ["a"], id="extend"),
            pytest.param({"log": "a"}, {"log": "a"}, ["a"], id="append"),
            pytest.param({"calls": 2}, {"calls": 2}, 2, id="increment"),
            pytest.param({"calls": "2"}, None, None, id="increment by text"),
            pytest.param({"best": 2}, {"best": 2.0}, 2.0, id="max starts from None"),
            pytest.param({"seen": ["a", "a"]}, {"seen": {"a"}}, {"a"}, id="union of a list"),
            pytest.param({"table": {"a": "1"}}, {"table": {"a": 1}}, {"a": 1}, id="update"),
            pytest.param({"doubled": 3}, {"doubled": 3}, 5, id="own reducer"),
            pytest.param(
                {"free": {"a": {"b": 1}}}, {"free": {"a": Replace({"b": 1})}}, {"a": {"b": 1}}, id="free dict"
            ),
            pytest.param({"typed": {"a": "1"}}, {"typed": {"a": 1}}, {"a": 1}, id="typed dict"),
            pytest.param(
                {"nested": {"1": {"a": 1}}}, {"nested": {1: Replace({"a": 1})}}, {1: {"a": 1}}, id="coerced key"
            ),
            pytest.param({"options": {"size": "3"}}, {"options": {"size": 3}}, {"size": 3}, id="TypedDict"),
            pytest.param({"anything": {"a": 1}}, {"anything": Replace({"a": 1})}, {"a": 1}, id="Any"),
            pytest.param({"answer": Replace("x")}, {"answer": "x"}, "x", id="Replace"),
            pytest.param(
                {"findings": Replace(["x"])}, {"findings": Replace(["x"])}, ["x"], id="Replace of a reducer's field"
            ),
            pytest.param({"findings": DELETE}, {"findings": DELETE}, [], id="DELETE of a reducer's field"),
            pytest.param({"calls": Updates(1, 2)}, {"calls": Updates(1, 2)}, 3, id="Updates"),
            pytest.param(
                {"calls": Updates(1, DELETE, 2)}, {"calls": Updates(1, DELETE, 2)}, 2, id="Updates with DELETE"
            ),
        ],
    )
    def test_patch_and_value(self, update: dict[str, Any], patch: dict[str, Any] | None, value: Any) -> None:
        (name,) = update
        if patch is None:
            with pytest.raises(NodeOutputError):
                commit(update)
            return
        got, state = commit(update)
        assert got == patch
        assert same(state.raw(name), freeze(value))
        assert state is START or patch

    def test_one_patch_may_touch_several_fields(self) -> None:
        patch, state = commit({"findings": ["a"], "calls": 1, "answer": "x"})
        assert patch == {"findings": ["a"], "calls": 1, "answer": "x"}
        assert (state["findings"], state["calls"], state["answer"]) == (["a"], 1, "x")

    def test_none_is_a_value_and_delete_resets(self) -> None:
        state = after({"answer": "x", "score": 2.0})
        assert commit({"answer": None}, state)[0] == {"answer": Replace(None)}
        assert commit({"score": DELETE}, state)[1]["score"] == 0.0
        assert commit({"question": DELETE}, state)[0] == {"question": DELETE}
        assert "question" not in commit({"question": DELETE}, state)[1]

    def test_none_deletes_inside_free_mappings(self) -> None:
        state = after({"free": {"a": 1, "b": {"c": 1, "d": 2}}})
        patch, state = commit({"free": {"a": None, "b": {"c": DELETE}}}, state)
        assert patch == {"free": {"a": DELETE, "b": {"c": DELETE}}}
        assert state["free"] == {"b": {"d": 2}}

    def test_a_reducer_called_replace_puts_whole_mappings(self) -> None:
        state = after({"replaced": {"a": 1}}, {"replaced": {"b": 2}})
        assert state["replaced"] == {"b": 2}

    def test_whole_values_are_not_merged(self) -> None:
        state = after({"free": {"a": 1}, "answer": "x"})
        patch, state = commit({"free": {"b": None}, "answer": None, "findings": ["f"]}, state, whole_values=True)
        assert patch == {"free": {"a": DELETE, "b": Replace(None)}, "answer": Replace(None), "findings": ["f"]}
        assert state["free"] == {"b": None}
        assert state["findings"] == ["f"]

    def test_messages_get_ids_from_the_commit(self) -> None:
        patch, state = commit({"messages": {"text": "hi"}})
        assert patch == {"messages": [{"text": "hi", "id": "trunk:1/0"}]}
        assert state["messages"] == patch["messages"]
        patch, _ = commit({"messages": Updates({"text": "a"}, {"text": "b"})})
        ids = [part[0]["id"] for part in patch["messages"].updates]
        assert ids == ["trunk:1/0", "trunk:1/1/0"]

    def test_a_message_never_takes_the_id_of_another(self) -> None:
        state = after({"messages": {"text": "a"}}, {"messages": {"text": "b"}}, {"messages": {"text": "c"}})
        assert [each["text"] for each in state["messages"]] == ["a", "b", "c"]
        assert [each["id"] for each in state["messages"]] == ["trunk:1/0", "trunk:1/0~2", "trunk:1/0~3"]

    def test_a_factory_makes_the_default_of_a_reset_once(self) -> None:
        serial = count()

        class Model(BaseModel):
            numbers: Annotated[list[int], reducers.extend] = Field(default_factory=lambda: [next(serial)])

        schema = Schema.of(Model)
        state = schema.initial_state({})
        patch, state = schema.commit(state, {"numbers": DELETE}, node="n", commit_id="c")
        assert patch == {"numbers": Replace([1])}
        assert state["numbers"] == schema.fold("numbers", freeze([9]), patch["numbers"]) == [1]

    @pytest.mark.parametrize(
        ("update", "words"),
        [
            (
                {"fidings": ["a"]},
                ["'fidings'", "no field", "Did you mean 'findings'", "Fields: 'question', 'findings'"],
            ),
            ({"question": None}, ["field 'question'", "None", "DELETE resets the field to its default"]),
            ({"question": 5}, ["field 'question'", "gives", "5", "valid string"]),
            ({"calls": "x"}, ["field 'calls'", "reducer 'increment'", "return a number"]),
            ({"calls": 0.5}, ["field 'calls'", "0.5", "integer"]),
            ({"log": ["a"]}, ["field 'log'", "for a list of items give the field reducers.extend"]),
            ({"findings": ["a", 1]}, ["field 'findings'", "[1]: Input should be a valid string"]),
            ({"typed": {"a": "x"}}, ["field 'typed'", "['a']: Input should be a valid integer"]),
            ({"typed": [1]}, ["field 'typed'", "dictionary"]),
            ({"free": {1: "x"}}, ["field 'free'", "[1]['[key]']"]),
            ({"nested": {1: {"a": "x"}}}, ["[1]['a']"]),
            ({"options": {"size": "x"}}, ["['size']"]),
            ({"risk": "medium"}, ["'low' or 'high'"]),
            ({"user": {"nick": "x"}}, ["['name']: Field required"]),
            ({"tags": list("abcd")}, ["field 'tags'", "at most 3 items"]),
            ({"short": list("abcd")}, ["field 'short'", "at most 3 items"]),
            ({"question": ["x" * 500] * 3}, ["list of 3 items"]),
            ({"answer": Updates("a")}, ["Updates(...) is for fields with a reducer"]),
            ({"findings": Replace("x")}, ["valid list"]),
        ],
    )
    def test_refusals_name_node_field_value_and_reason(self, update: dict[str, Any], words: list[str]) -> None:
        with pytest.raises(NodeOutputError) as refusal:
            commit({"answer": "x", **update})
        text = str(refusal.value)
        assert "node 'search'" in text
        assert all(word.replace("gives", "writes") in text for word in words)
        assert len(text) < 700
        assert refusal.value.__cause__ is None
        assert refusal.value.__context__ is None or refusal.value.__suppress_context__

    def test_values_that_a_state_cannot_hold(self) -> None:
        with pytest.raises(UnsupportedValueError, match="anything"):
            commit({"anything": object()})

    def test_a_reducer_of_ones_own_starts_from_an_empty_container(self) -> None:
        def newest_first(current: Any, item: str) -> Any:
            return [item, *current]

        class Model(BaseModel):
            items: Annotated[list[str], newest_first]
            total: Annotated[int, double]

        schema = Schema.of(Model)
        state = schema.commit(schema.initial_state({}), {"items": "a", "total": 3}, node="n", commit_id="c")[1]
        assert (state["items"], state["total"]) == (["a"], 3)

    def test_an_error_of_a_reducer_says_where(self) -> None:
        class Model(BaseModel):
            total: Annotated[int, lambda current, update: current // update] = 1

        schema = Schema.of(Model)
        state = schema.initial_state({"total": Replace(1)})
        with pytest.raises(ZeroDivisionError) as raised:
            schema.commit(state, {"total": 0}, node="n", commit_id="c")
        assert any("reducer '<lambda>' of field 'total'" in note for note in raised.value.__notes__)

    def test_untouched_and_equal_values_keep_their_identity(self) -> None:
        state = after({"free": {"big": {"x": [1]}}, "typed": {"a": 1, "b": 2}, "findings": ["a"]})
        patched = commit({"free": {"n": 1}, "typed": {"a": 5}}, state)[1]
        assert patched.raw("free").raw("big") is state.raw("free").raw("big")
        assert patched.raw("findings") is state.raw("findings")
        assert commit({"free": {"big": {"x": [1]}}}, state)[1] is state
        assert commit({"tags": state["findings"]}, state)[1].raw("tags") is state.raw("findings")
        assert commit({"anything": state["free"]}, state, whole_values=True)[1].raw("anything") is state.raw("free")

    def test_what_was_written_can_be_changed_afterwards(self) -> None:
        items, inner = ["a"], {"k": ["v"]}
        patch, state = commit({"findings": items, "tags": items, "free": inner})
        items.append("b")
        inner["k"].append("w")
        assert state["findings"] == state["tags"] == patch["findings"] == ["a"]
        assert state["free"] == {"k": ["v"]}

    def test_only_what_a_patch_names_is_validated(self) -> None:
        seen: list[Any] = []

        def spy(value: int) -> int:
            seen.append(value)
            return value

        class Model(BaseModel):
            items: Annotated[list[Annotated[int, AfterValidator(spy)]], reducers.extend] = []
            table: dict[str, Annotated[int, AfterValidator(spy)]] = {}

        schema = Schema.of(Model)
        state = schema.commit(
            schema.initial_state({}), {"items": [1, 2], "table": {"a": 1, "b": 2}}, node="n", commit_id="c"
        )[1]
        seen.clear()
        schema.commit(state, {"items": [3], "table": {"a": 4}}, node="n", commit_id="c")
        assert seen == [3, 4]

    def test_a_value_of_the_right_scalar_type_is_taken_as_it_is(self) -> None:
        text = "".join(["long", "text"])
        assert commit({"answer": text})[1].raw("answer") is text


class TestModels:
    def test_a_field_holds_a_copy_of_the_whole_model(self) -> None:
        user = User(name="Ada", serial=7)
        state = commit({"user": user})[1]
        user.name = "changed"
        assert state["user"] == User(name="Ada", serial=7)
        state["user"].name = "changed"
        assert state["user"].name == "Ada"

    def test_a_dict_becomes_the_model(self) -> None:
        state = commit({"user": {"name": "Ada", "nick": None}})[1]
        assert isinstance(state["user"], User)
        assert state["user"].nick is None, "in a model None is a value"

    def test_a_patch_merges_into_the_fields(self) -> None:
        user = User(name="Ada", address=Address(street="Main", town="Bonn"), tags={"a": 1})
        state = commit({"user": user})[1]
        patch, state = commit({"user": {"nick": "A", "address": {"street": "Side"}, "tags": {"b": 2}}}, state)
        merged = state["user"]
        assert (merged.name, merged.nick, merged.serial) == ("Ada", "A", user.serial)
        assert merged.address == Address(street="Side", town="Bonn")
        assert merged.tags == {"a": 1, "b": 2}
        assert patch["user"] == merged
        assert merged.model_fields_set == {"name", "nick", "address", "tags"}
        state = commit({"user": {"nick": DELETE, "tags": Replace({})}}, state)[1]
        assert (state["user"].nick, state["user"].tags) == ("N", {})
        assert commit({"user": {"name": "Ada"}}, state)[1] is state

    def test_a_patch_is_validated(self) -> None:
        state = commit({"user": User(name="Ada")})[1]
        for wrong in ({"name": 5}, {"name": DELETE}, {"address": {"street": 1}}):
            with pytest.raises(NodeOutputError, match="field 'user'"):
                commit({"user": wrong}, state)

    def test_aliases(self) -> None:
        class Item(BaseModel):
            name: str = Field(alias="itemName")
            size: int = 0

        class Model(BaseModel):
            item: Item | None = None
            other: int = Field(default=0, alias="otherName")

        schema = Schema.of(Model)
        state = schema.initial_state({"item": {"itemName": "a"}, "other": 2})
        state = schema.commit(state, {"item": {"size": 3}, "other": 4}, node="n", commit_id="c")[1]
        assert (state["item"].name, state["item"].size, state["other"]) == ("a", 3, 4)

    def test_a_union_of_models_is_validated_as_a_whole(self) -> None:
        class Cat(BaseModel):
            kind: Literal["cat"] = "cat"
            name: str = ""

        class Dog(BaseModel):
            kind: Literal["dog"] = "dog"
            name: str = ""

        class Model(BaseModel):
            pet: Annotated[Cat | Dog, Field(discriminator="kind")]

        schema = Schema.of(Model)
        state = schema.initial_state({"pet": Cat(name="Tom")})
        state = schema.commit(state, {"pet": {"kind": "dog", "name": "Rex"}}, node="n", commit_id="c")[1]
        assert state["pet"] == Dog(name="Rex")
        with pytest.raises(NodeOutputError, match="expected tags"):
            schema.commit(state, {"pet": {"kind": "cow"}}, node="n", commit_id="c")

    def test_extra_values_of_a_model_are_kept(self) -> None:
        class Loose(BaseModel):
            model_config = ConfigDict(extra="allow")
            name: str = ""

        class Model(BaseModel):
            loose: Loose | None = None

        schema = Schema.of(Model)
        state = schema.initial_state({"loose": {"name": "a", "more": 1}})
        state = schema.commit(state, {"loose": {"name": "b"}}, node="n", commit_id="c")[1]
        assert state["loose"].model_dump() == {"name": "b", "more": 1}

    def test_dataclasses(self) -> None:
        @dataclass
        class Point:
            x: int
            y: int = 0

        class Model(BaseModel):
            point: Point | None = None

        schema = Schema.of(Model)
        state = schema.initial_state({"point": {"x": "1"}})
        assert state["point"] == Point(1)

    def test_a_list_of_models(self) -> None:
        class Model(BaseModel):
            users: Annotated[list[Address], reducers.extend] = []

        schema = Schema.of(Model)
        state = schema.initial_state({"users": [{"street": "a"}]})
        state = schema.commit(state, {"users": [Address(street="b")]}, node="n", commit_id="c")[1]
        assert state["users"] == [Address(street="a"), Address(street="b")]


class Validated(BaseModel):
    model_config = ConfigDict(frozen=True)

    low: int = 0
    high: int = 10
    name: str = ""
    words: Annotated[list[str], reducers.extend] = []
    fixed: int = Field(default=1, frozen=True, gt=0)
    settled: int = Field(default=1, frozen=True)
    totals: dict[str, int] = {}

    @field_validator("high")
    @classmethod
    def above_low(cls, value: int, info: Any) -> int:
        if value < info.data["low"]:
            raise ValueError("must not be below low")
        return value

    @field_validator("totals")
    @classmethod
    def add_up(cls, value: dict[str, int]) -> dict[str, int]:
        return {**value, "sum": sum(number for key, number in value.items() if key != "sum")}

    @field_validator("name")
    @classmethod
    def strip(cls, value: str) -> str:
        return value.strip()

    @field_validator("words")
    @classmethod
    def lower(cls, value: list[str]) -> list[str]:
        return [word.lower() for word in value]


class TestValidators:
    schema = Schema.of(Validated)

    def write(self, updates: dict[str, Any], state: ImmutableState | None = None) -> Any:
        start = self.schema.initial_state({}) if state is None else state
        return self.schema.commit(start, updates, node="n", commit_id="c")

    def test_validators_of_a_field_are_honoured(self) -> None:
        assert self.write({"name": " x "})[0] == {"name": "x"}
        with pytest.raises(NodeOutputError, match="must not be below low"):
            self.write({"low": 5, "high": 3})
        assert self.write({"low": 5, "high": 7})[1]["high"] == 7
        with pytest.raises(InputError, match="must not be below low"):
            self.schema.initial_state({"low": 5, "high": 3})

    def test_what_a_validator_adds_to_a_patched_mapping_is_in_the_patch(self) -> None:
        patch, state = self.write({"totals": {"a": 1}})
        assert patch == {"totals": {"a": 1, "sum": 1}}
        assert self.write({"totals": {"b": 2}}, state)[0] == {"totals": {"b": 2, "sum": 3}}

    def test_the_result_of_a_fold_is_validated_and_replayed_alike(self) -> None:
        patch, state = self.write({"words": ["A"]})
        assert state["words"] == ["a"]
        assert same(self.schema.fold("words", freeze([]), patch["words"]), state.raw("words"))

    def test_a_frozen_field_is_set_by_inputs_alone(self) -> None:
        state = self.schema.initial_state({"fixed": "5"})
        assert state["fixed"] == 5
        with pytest.raises(NodeOutputError, match="only inputs of a run set it"):
            self.write({"fixed": 6}, state)
        with pytest.raises(NodeOutputError, match="only inputs of a run set it"):
            self.write({"settled": 6}, state)

    def test_updates_that_fit_alone_but_not_together(self) -> None:
        _, state = commit({"short": ["a", "b"]})
        two, _ = commit({"short": ["c", "d"]})
        with pytest.raises(
            NodeOutputError, match=r"'short' fold to a value that it refuses: List should have at most 3 items"
        ):
            SCHEMA.fold("short", state.raw("short"), two["short"])

    def test_options_of_the_model_hold(self) -> None:
        class Model(BaseModel):
            model_config = ConfigDict(str_strip_whitespace=True, strict=True)
            name: str = ""
            number: int = 0
            names: list[str] = []

        schema = Schema.of(Model)
        state = schema.initial_state({"name": " x ", "names": freeze([" y "])})
        assert (state["name"], state["names"]) == ("x", ["y"])
        with pytest.raises(NodeOutputError):
            schema.commit(state, {"number": "5"}, node="n", commit_id="c")


class TestOpen:
    schema = Schema.of(None)

    @pytest.mark.parametrize(
        ("state", "updates", "whole", "patch", "expected"),
        [
            ({"a": 1}, {"a": 2, "b": {"c": 1}}, False, {"a": 2, "b": Replace({"c": 1})}, {"a": 2, "b": {"c": 1}}),
            ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, False, {"a": {"b": DELETE}}, {"a": {"c": 2}}),
            ({"a": 1}, {"a": None}, False, {"a": DELETE}, {}),
            ({"a": 1}, {"a": None}, True, {"a": Replace(None)}, {"a": None}),
            ({"a": {"b": 1}}, {"a": {"c": 2}}, True, {"a": {"b": DELETE, "c": 2}}, {"a": {"c": 2}}),
            ({"a": {"b": 1}}, {"a": Replace({"c": 2})}, False, {"a": {"b": DELETE, "c": 2}}, {"a": {"c": 2}}),
            ({"a": 1}, {"a": 1, "b": None}, False, {}, {"a": 1}),
            ({"a": 1}, {"a": DELETE}, True, {"a": DELETE}, {}),
        ],
    )
    def test_commit(self, state: Any, updates: Any, whole: bool, patch: Any, expected: Any) -> None:
        before = ImmutableState(state)
        got, after_it = self.schema.commit(before, updates, node="n", commit_id="c", whole_values=whole)
        assert got == patch
        assert after_it == expected
        assert before | got == after_it
        assert (after_it is before) == (not patch)

    def test_large_mappings_are_not_compared_as_a_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What changed is found by what the update names."""
        state = ImmutableState({"big": {str(number): number for number in range(200)}})
        start = SCHEMA.initial_state({"free": state["big"]})

        def walk(self: FrozenDict[Any, Any]) -> Any:
            raise AssertionError("all keys were read")

        monkeypatch.setattr(FrozenDict, "raw_items", walk)
        patch, _ = self.schema.commit(state, {"big": {"7": -1, "8": 8}}, node="n", commit_id="c")
        assert patch == {"big": {"7": -1}}
        patch, _ = SCHEMA.commit(start, {"free": {"7": None, "x": 1}}, node="n", commit_id="c")
        assert patch == {"free": {"7": DELETE, "x": 1}}


class TestView:
    state = SCHEMA.initial_state({"question": "why", "findings": ["a"], "user": {"name": "Ada", "serial": 1}})

    def view(self, readable: frozenset[str] | None = None) -> Any:
        return SCHEMA.view(self.state, readable)

    def test_it_is_an_instance_of_the_model(self) -> None:
        view = self.view()
        assert isinstance(view, Research)
        assert type(view).__name__ == "Research"
        assert view.question == "why"
        assert view.shout() == "why!"
        assert view.size == 1
        assert view.user == User(name="Ada", serial=1)

    def test_it_cannot_be_changed(self) -> None:
        view = self.view()
        with pytest.raises(ImmutableError, match=r"return \{'question': ...\} from the node"):
            view.question = "x"
        with pytest.raises(ImmutableError):
            del view.question
        with pytest.raises(ImmutableError):
            view.findings.append("b")
        view.user.name = "changed"
        assert self.state["user"].name == "Ada"
        assert self.state["findings"] == ["a"]

    def test_what_cannot_be_read(self) -> None:
        with pytest.raises(UnsetFieldError, match="field 'question' of Research"):
            _ = SCHEMA.view(SCHEMA.initial_state({}), None).question  # type: ignore[attr-defined]
        with pytest.raises(UnsetFieldError, match="reads="):
            _ = self.view(frozenset({"question"})).findings
        assert self.view(frozenset({"question"})).question == "why"
        with pytest.raises(AttributeError, match="Did you mean 'question'"):
            _ = self.view().qestion
        assert not hasattr(self.view(), "absent")

    def test_dumps_are_plain_and_hold_what_is_readable(self) -> None:
        view = self.view(frozenset({"question", "findings"}))
        assert view.model_dump() == {"question": "why", "findings": ["a"]}
        assert type(view.model_dump()["findings"]) is list
        assert view.model_dump_json() == '{"question":"why","findings":["a"]}'

    def test_a_changed_copy_counts_what_was_changed_alone(self) -> None:
        view = self.view()
        assert view.model_fields_set == set()
        assert view.model_copy(update={"answer": "x"}).model_fields_set == {"answer"}

    def test_keys_that_are_no_fields_are_not_shown(self) -> None:
        assert "item" not in SCHEMA.view({**self.state, "item": 1}, None).__dict__


# Writes of every kind, valid or not, for the laws.
WRITES: dict[str, st.SearchStrategy[Any]] = {
    "question": st.text(max_size=2) | st.none() | st.integers(),
    "findings": st.lists(st.sampled_from("ab"), max_size=2) | st.just("text") | st.just(DELETE),
    "log": st.sampled_from(["a", "b", 1]),
    "calls": st.integers(-2, 2) | st.sampled_from(["1", True, Replace(5), DELETE, Updates(1, 2)]),
    "best": st.floats(-1, 1) | st.none(),
    "seen": st.sets(st.sampled_from("ab")) | st.just("ab"),
    "table": st.dictionaries(st.sampled_from("ab"), st.integers(0, 2), max_size=2),
    "messages": st.lists(st.fixed_dictionaries({"text": st.sampled_from("ab")}), max_size=2),
    "doubled": st.integers(-2, 2),
    "answer": st.sampled_from(["x", "y", None, DELETE, 5]),
    "free": st.dictionaries(st.sampled_from("ab"), st.none() | st.integers(0, 1) | st.just({"c": None}), max_size=2),
    "typed": st.dictionaries(st.sampled_from("ab"), st.sampled_from([1, "2", "x", None, DELETE]), max_size=2),
    "user": st.sampled_from(
        [{"name": "A"}, {"nick": None}, None, User(name="B", serial=0), {"address": {"street": "s"}}]
    ),
    "tags": st.lists(st.sampled_from("ab"), max_size=4),
    "short": st.lists(st.sampled_from("ab"), max_size=2),
}
writes = st.fixed_dictionaries({}, optional=WRITES)


def try_commit(state: ImmutableState, updates: dict[str, Any], number: int) -> tuple[dict[str, Any], ImmutableState]:
    try:
        return SCHEMA.commit(state, updates, node="n", commit_id=f"trunk:{number}")
    except DspyerError:
        return {}, state


@settings(max_examples=100)
@given(st.lists(writes, max_size=4))
def test_law_a_commit_raises_or_gives_a_valid_state(updates: list[dict[str, Any]]) -> None:
    state = START
    for number, update in enumerate(updates):
        before = state.to_dict()
        _, new = try_commit(state, update, number)
        assert state.to_dict() == before
        Research.model_validate(new.to_dict())
        state = new


@settings(max_examples=100)
@given(st.lists(writes, max_size=4))
def test_law_replaying_the_stored_patches_gives_the_same_state(updates: list[dict[str, Any]]) -> None:
    state = START
    for number, update in enumerate(updates):
        patch, new = try_commit(state, update, number)
        replayed = state | {name: part for name, part in patch.items() if SCHEMA.reducer(name) is None}
        for name, part in patch.items():
            if SCHEMA.reducer(name) is not None:
                value = SCHEMA.fold(name, state.raw(name, DELETE), part)
                replayed = replayed.set(name, value)
        assert same(replayed, new)
        state = new


@settings(max_examples=50)
@given(writes, writes)
def test_law_committing_again_the_values_of_a_state_changes_nothing(one: dict[str, Any], two: dict[str, Any]) -> None:
    state = try_commit(try_commit(START, one, 1)[1], two, 2)[1]
    plain = {name: value for name, value in state.to_dict().items() if SCHEMA.reducer(name) is None}
    patch, after_it = SCHEMA.commit(state, plain, node="n", commit_id="c", whole_values=True)
    assert patch == {}
    assert after_it is state


def test_frozen_values_are_accepted_where_plain_ones_are() -> None:
    plain: dict[str, Any] = {"findings": ["a"], "tags": ["t"], "typed": {"a": 1}, "free": {"x": [1]}, "seen": {"s"}}
    frozen = {name: freeze(value) for name, value in plain.items()}
    assert isinstance(frozen["findings"], FrozenList)
    assert same(commit(plain)[1], commit(frozen)[1])
    state = commit({"user": User(name="Ada", serial=1)})[1]
    assert commit({"user": state.raw("user")})[1]["user"] == thaw(state.raw("user"))


ENTRIES = {
    "a number": (dict[str, int], 1),
    "a text": (dict[str, str], "x"),
    "a list": (dict[str, list[int]], [1]),
    "a mapping": (dict[str, dict[str, Any]], {"k": 1}),
    "anything": (dict[str, Any], 1),
}


@pytest.mark.parametrize("gone", [DELETE, None], ids=repr)
@pytest.mark.parametrize(("kind", "value"), ENTRIES.values(), ids=ENTRIES)
def test_an_entry_of_a_mapping_is_removed_whatever_its_type(kind: Any, value: Any, gone: Any) -> None:
    schema = Schema.of(create_model("Model", table=(kind, {})))
    state = schema.initial_state({"table": {"a": value, "b": value}})
    patch, after = schema.commit(state, {"table": {"a": gone, "c": value}}, node="n", commit_id="c")
    assert {key: part is DELETE for key, part in patch["table"].items()} == {"a": True, "c": False}
    assert after.to_dict() == {"table": {"b": value, "c": value}} == schema.replay(state, patch).to_dict()
    assert schema.commit(state, {"table": {"absent": gone}}, node="n", commit_id="c") == ({}, state)
