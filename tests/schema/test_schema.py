"""Initial states and commits: validation field by field, the patch that is stored, replay, and their laws."""

from __future__ import annotations

from datetime import date
from itertools import count
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    create_model,
)

from dspyer import reducers
from dspyer.errors import (
    DspyerError,
    InputError,
    NodeOutputError,
    UnsupportedValueError,
)
from dspyer.patch import DELETE, Replace
from dspyer.reducers import Updates
from dspyer.schema.schema import Schema
from dspyer.state import ImmutableState
from dspyer.values.freezing import freeze, same
from dspyer.values.frozen import FrozenDict, FrozenList, thaw
from tests.rows import each
from tests.schema.research import SCHEMA, START, Research, User, after, commit, double


class TestValuesOfAnotherState:
    """The inputs of a graph inside a graph."""

    class Chat(BaseModel):
        messages: Annotated[list[dict[str, Any]], reducers.add_messages] = []
        tags: Annotated[list[str], reducers.extend] = ["old"]
        hint: str = ""

    def test_they_are_whole_values_and_messages_get_the_ids_that_they_lack(self) -> None:
        schema = Schema.of(self.Chat)
        given = {"messages": [{"content": "a"}, {"content": "b", "id": "mine"}], "tags": ["new"], "hint": "h"}
        state = schema.initial_state(schema.as_replacements(given, "1.1/0:0/inputs"))
        assert [message["id"] for message in state["messages"]] == ["1.1/0:0/inputs/0", "mine"]
        assert (list(state["tags"]), state["hint"]) == (["new"], "h")

    @pytest.mark.parametrize("value", [None, 7, [7]])
    def test_values_that_are_no_messages_are_refused_as_any_input(self, value: object) -> None:
        schema = Schema.of(self.Chat)
        with pytest.raises(InputError, match="for field 'messages', which is refused"):
            schema.initial_state(schema.as_replacements({"messages": value}))


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

    def test_a_dict_as_input_is_a_new_value(self) -> None:
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
    def test_invalid_inputs(self, inputs: dict[str, Any], required: list[str] | None, words: list[str]) -> None:
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

    @each(
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
    def test_errors_name_node_field_value_and_reason(self, update: dict[str, Any], words: list[str]) -> None:
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

    def test_a_user_defined_reducer_starts_from_an_empty_container(self) -> None:
        def newest_first(current: Any, item: str) -> Any:
            return [item, *current]

        class Model(BaseModel):
            items: Annotated[list[str], newest_first]
            total: Annotated[int, double]

        schema = Schema.of(Model)
        state = schema.commit(schema.initial_state({}), {"items": "a", "total": 3}, node="n", commit_id="c")[1]
        assert (state["items"], state["total"]) == (["a"], 3)

    def test_an_exception_of_a_reducer_gets_a_note_with_its_field(self) -> None:
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

    def test_changing_a_written_value_afterwards_does_not_change_the_state(self) -> None:
        items, inner = ["a"], {"k": ["v"]}
        patch, state = commit({"findings": items, "tags": items, "free": inner})
        items.append("b")
        inner["k"].append("w")
        assert state["findings"] == state["tags"] == patch["findings"] == ["a"]
        assert state["free"] == {"k": ["v"]}

    def test_only_the_entries_that_a_patch_names_are_validated(self) -> None:
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

    def test_a_scalar_of_the_declared_type_is_not_validated(self) -> None:
        text = "".join(["long", "text"])
        assert commit({"answer": text})[1].raw("answer") is text


class TestWithoutModel:
    schema = Schema.of(None)

    @each(
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
        """Only the keys that an update names are compared."""
        state = ImmutableState({"big": {str(number): number for number in range(200)}})
        start = SCHEMA.initial_state({"free": state["big"]})

        def walk(self: FrozenDict[Any, Any]) -> Any:
            raise AssertionError("all keys were read")

        monkeypatch.setattr(FrozenDict, "raw_items", walk)
        patch, _ = self.schema.commit(state, {"big": {"7": -1, "8": 8}}, node="n", commit_id="c")
        assert patch == {"big": {"7": -1}}
        patch, _ = SCHEMA.commit(start, {"free": {"7": None, "x": 1}}, node="n", commit_id="c")
        assert patch == {"free": {"7": DELETE, "x": 1}}


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


def test_frozen_values_are_accepted_like_plain_ones() -> None:
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
