"""Fields whose values are models, and fields with validators, constraints and options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, List, Literal  # noqa: UP035 - as users write it

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
)

from dspyer import DELETE, END, START, Graph, ImmutableState, Replace, reducers
from dspyer.errors import (
    InputError,
    NodeOutputError,
)
from tests.rows import each
from tests.schema.research import Address, Research, User, program_of, write, written


class TestModels:
    def test_a_field_holds_a_copy_of_the_whole_model(self) -> None:
        user = User(name="Ada", serial=7)
        state = written({"user": user})[1]
        user.name = "changed"
        assert state["user"] == User(name="Ada", serial=7)
        state["user"].name = "changed"
        assert state["user"].name == "Ada"

    def test_a_dict_becomes_the_model(self) -> None:
        state = written({"user": {"name": "Ada", "nick": None}})[1]
        assert isinstance(state["user"], User)
        assert state["user"].nick is None, "in a model None is a value"

    def test_a_patch_merges_into_the_fields(self) -> None:
        user = User(name="Ada", address=Address(street="Main", town="Bonn"), tags={"a": 1})
        updates: list[Any] = [{"user": user}, {"user": {"nick": "A", "address": {"street": "Side"}, "tags": {"b": 2}}}]
        patch, state = written(*updates)
        merged = state["user"]
        assert (merged.name, merged.nick, merged.serial) == ("Ada", "A", user.serial)
        assert merged.address == Address(street="Side", town="Bonn")
        assert merged.tags == {"a": 1, "b": 2}
        assert patch["user"] == merged
        assert merged.model_fields_set == {"name", "nick", "address", "tags"}
        updates.append({"user": {"nick": DELETE, "tags": Replace({})}})
        reset = written(*updates)[1]["user"]
        assert (reset.nick, reset.tags) == ("N", {})
        assert written(*updates, {"user": {"name": "Ada"}})[0] == {}

    @each("wrong", [{"name": 5}, {"name": DELETE}, {"address": {"street": 1}}])
    def test_a_patch_is_validated(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(NodeOutputError, match="field 'user'"):
            written({"user": User(name="Ada")}, {"user": wrong})

    def test_a_patch_names_fields_and_validation_uses_their_aliases(self) -> None:
        class Item(BaseModel):
            name: str = Field(alias="itemName")
            size: int = 0

        class Model(BaseModel):
            item: Item | None = None
            other: int = Field(default=0, alias="otherName")

        inputs = {"item": {"itemName": "a"}, "other": 2}
        state = write(Model, {"item": {"size": 3}, "other": 4}, inputs=inputs).state
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

        inputs = {"pet": Cat(name="Tom")}
        assert write(Model, {"pet": {"kind": "dog", "name": "Rex"}}, inputs=inputs).state["pet"] == Dog(name="Rex")
        with pytest.raises(NodeOutputError, match="expected tags"):
            write(Model, {"pet": {"kind": "cow"}}, inputs=inputs)

    def test_extra_values_of_a_model_are_kept(self) -> None:
        class Loose(BaseModel):
            model_config = ConfigDict(extra="allow")
            name: str = ""

        class Model(BaseModel):
            loose: Loose | None = None

        state = write(Model, {"loose": {"name": "b"}}, inputs={"loose": {"name": "a", "more": 1}}).state
        assert state["loose"].model_dump() == {"name": "b", "more": 1}

    def test_dataclasses(self) -> None:
        @dataclass
        class Point:
            x: int
            y: int = 0

        class Model(BaseModel):
            point: Point | None = None

        assert write(Model, inputs={"point": {"x": "1"}}).state["point"] == Point(1)

    def test_a_list_of_models(self) -> None:
        class Model(BaseModel):
            users: Annotated[list[Address], reducers.extend] = []

        state = write(Model, {"users": [Address(street="b")]}, inputs={"users": [{"street": "a"}]}).state
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
    def test_validators_of_a_field_are_honoured(self) -> None:
        assert write(Validated, {"name": " x "}).commits[-1].patch == {"name": "x"}
        with pytest.raises(NodeOutputError, match="must not be below low"):
            write(Validated, {"low": 5, "high": 3})
        assert write(Validated, {"low": 5, "high": 7}).state["high"] == 7
        with pytest.raises(InputError, match="must not be below low"):
            write(Validated, inputs={"low": 5, "high": 3})

    def test_what_a_validator_adds_to_a_patched_mapping_is_in_the_patch(self) -> None:
        run = write(Validated, {"totals": {"a": 1}}, {"totals": {"b": 2}})
        assert run.commits[1].patch == {"totals": {"a": 1, "sum": 1}}
        assert run.commits[2].patch == {"totals": {"b": 2, "sum": 3}}

    def test_the_validated_result_of_a_fold_is_the_same_in_a_replay(self) -> None:
        run = write(Validated, {"words": ["A"]}, {"words": ["B"]}, thread="t")
        assert run.state["words"] == ["a", "b"]
        assert program_of(Validated)[0].thread("t").replay() == run.state

    def test_a_frozen_field_is_set_by_inputs_only(self) -> None:
        assert write(Validated, inputs={"fixed": "5"}).state["fixed"] == 5
        for name in ("fixed", "settled"):
            with pytest.raises(NodeOutputError, match="only inputs of a run set it"):
                write(Validated, {name: 6})

    def test_updates_that_fit_alone_but_not_together(self) -> None:
        graph = Graph(Research, inputs=[]).add_node("a", lambda: {"short": ["a", "b"]}, writes=["short"])
        graph.add_node("b", lambda: {"short": ["c", "d"]}, writes=["short"]).add_node("c", lambda: None, writes=[])
        run = graph.add_edge(START, ["a", "b"]).add_edge(["a", "b"], "c").add_edge("c", END).compile().run({})
        assert isinstance(run.error, NodeOutputError)
        assert "'short' fold to a value that it refuses: List should have at most 3 items" in str(run.error)

    def test_a_list_without_a_type_of_items_accepts_any(self) -> None:
        class Model(BaseModel):
            steps: List = []  # type: ignore[type-arg]  # noqa: UP006 - it has an origin, and no argument
            log: Annotated[List, reducers.extend] = []  # type: ignore[type-arg]  # noqa: UP006

        state = write(Model, inputs={"steps": [1, "a"], "log": frozen([None])}).state
        assert (state["steps"], state["log"]) == ([1, "a"], [None])

    def test_the_configuration_of_the_model_applies(self) -> None:
        class Model(BaseModel):
            model_config = ConfigDict(str_strip_whitespace=True, strict=True)
            name: str = ""
            number: int = 0
            names: list[str] = []

        state = write(Model, inputs={"name": " x ", "names": frozen([" y "])}).state
        assert (state["name"], state["names"]) == ("x", ["y"])
        with pytest.raises(NodeOutputError):
            write(Model, {"number": "5"})


def frozen(value: Any) -> Any:
    """A value as a state gives it to nodes."""
    return ImmutableState({"value": value})["value"]


class Choice(BaseModel):
    many: set[str] | list[str] = []
    bounded: Annotated[frozenset[str] | list[str], Field(max_length=9)] = []
    inside: dict[str, tuple[str, ...] | list[str]] = {}


@each("field", ["many", "bounded"])
def test_a_frozen_list_stays_a_list_where_a_set_is_valid_too(field: str) -> None:
    """A node that returns what it has read must not change the kind of the value, and with it the order."""
    read = frozen(["b", "a"])
    run = write(Choice, {field: read}, inputs={field: ["b", "a"]})
    assert run.commits[-1].patch == {}
    assert write(Choice, inputs={field: read}).state[field] == ["b", "a"]


def test_a_frozen_list_in_a_mapping_stays_a_list() -> None:
    run = write(Choice, {"inside": {"b": frozen(["x"])}}, inputs={"inside": {"a": ["x"]}})
    assert run.state.to_dict()["inside"] == {"a": ["x"], "b": ["x"]}
