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

from dspyer import reducers
from dspyer.errors import (
    InputError,
    NodeOutputError,
)
from dspyer.patch import DELETE, Replace
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from tests.schema.research import SCHEMA, Address, User, commit


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

    def test_a_patch_names_fields_and_validation_uses_their_aliases(self) -> None:
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

    def test_the_validated_result_of_a_fold_is_the_same_in_a_replay(self) -> None:
        patch, state = self.write({"words": ["A"]})
        assert state["words"] == ["a"]
        assert same(self.schema.fold("words", freeze([]), patch["words"]), state.raw("words"))

    def test_a_frozen_field_is_set_by_inputs_only(self) -> None:
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

    def test_a_list_without_a_type_of_items_accepts_any(self) -> None:
        class Model(BaseModel):
            steps: List = []  # type: ignore[type-arg]  # noqa: UP006 - it has an origin, and no argument
            log: Annotated[List, reducers.extend] = []  # type: ignore[type-arg]  # noqa: UP006

        schema = Schema.of(Model)
        state = schema.initial_state({"steps": [1, "a"], "log": freeze([None])})
        assert (state["steps"], state["log"]) == ([1, "a"], [None])

    def test_the_configuration_of_the_model_applies(self) -> None:
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


class Choice(BaseModel):
    many: set[str] | list[str] = []
    bounded: Annotated[frozenset[str] | list[str], Field(max_length=9)] = []
    inside: dict[str, tuple[str, ...] | list[str]] = {}


@pytest.mark.parametrize("field", ["many", "bounded"])
def test_a_frozen_list_stays_a_list_where_a_set_is_valid_too(field: str) -> None:
    """A node that returns what it has read must not change the kind of the value, and with it the order."""
    schema = Schema.of(Choice)
    before = schema.initial_state({field: ["b", "a"]})
    assert schema.commit(before, {field: before[field]}, node="n", commit_id="c")[1] is before
    assert schema.initial_state({field: before[field]})[field] == ["b", "a"]


def test_a_frozen_list_in_a_mapping_stays_a_list() -> None:
    schema = Schema.of(Choice)
    before = schema.initial_state({"inside": {"a": ["x"]}})
    after = schema.commit(before, {"inside": {"b": before["inside"]["a"]}}, node="n", commit_id="c")[1]
    assert after.to_dict()["inside"] == {"a": ["x"], "b": ["x"]}
