"""`ImmutableState`: the algebra of states and patches, structural sharing, order of keys, merge, JSON."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from dspyer import DELETE, ImmutableState, Replace
from dspyer.errors import (
    ImmutableError,
    MergeConflictError,
    PatchError,
    StateError,
    UnsetFieldError,
    UnsupportedValueError,
)
from tests.plain_values import MAX_DEPTH, FrozenDict, FrozenList, frozen, same
from tests.rows import each
from tests.value_samples import SAMPLES, TYPES, spoil


def test_the_example_of_the_design() -> None:
    state = ImmutableState({"user": {"name": "Ada", "theme": "dark"}, "tags": ["a"]})
    after = state.apply_patch({"user": {"theme": "light"}, "tags": None})
    assert after.to_dict() == {"user": {"name": "Ada", "theme": "light"}}
    assert state | {"user": {"theme": "light"}, "tags": None} == after
    patch = state.diff(after)
    assert patch == {"user": {"theme": "light"}, "tags": DELETE}
    assert state | patch == after
    assert state.to_dict() == {"user": {"name": "Ada", "theme": "dark"}, "tags": ["a"]}


def test_a_state_is_a_mapping() -> None:
    state = ImmutableState({"a": 1, "b": [1]})
    assert isinstance(state, Mapping)
    assert state == {"a": 1, "b": [1]}
    assert dict(a=1, b=[1]) == state  # noqa: C408  # a plain dict on the left
    assert state == ImmutableState({"b": [1], "a": 1}) == frozen({"a": 1, "b": [1]})
    assert state != {"a": 1}
    assert state.get("a") == 1
    assert state.get("z", 5) == 5
    assert list(state.items()) == [("a", 1), ("b", [1])]
    assert repr(state) == "ImmutableState({'a': 1, 'b': FrozenList([1])})"
    assert ImmutableState() == {}
    assert ImmutableState([("a", 1)]) == {"a": 1}
    assert ImmutableState(state) == state
    with pytest.raises(UnsetFieldError, match="Did you mean 'answer'"):
        ImmutableState({"answer": 1})["anwser"]


def test_setting_a_key_in_place_says_what_to_do() -> None:
    state = ImmutableState({"a": {"b": [1]}})
    changes: list[Callable[[], Any]] = [
        lambda: state.__setitem__("a", 1),
        lambda: state.__delitem__("a"),
        lambda: state.update({"a": 1}),
        lambda: state["a"].__setitem__("b", 1),
        lambda: state["a"]["b"].append(2),
    ]
    for change in changes:
        with pytest.raises(ImmutableError, match="return"):
            change()
    assert state == {"a": {"b": [1]}}


def test_binding_a_name_to_the_next_state() -> None:
    first = state = ImmutableState({"a": 1})
    state |= {"b": 2}
    assert state == {"a": 1, "b": 2}
    assert first == {"a": 1}


def test_none_is_a_value_when_a_state_is_built_and_deletes_in_a_patch() -> None:
    state = ImmutableState({"a": None, "b": {"c": None}})
    assert state.to_dict() == {"a": None, "b": {"c": None}}
    assert (state | {"a": None}).to_dict() == {"b": {"c": None}}


class Field(StrEnum):
    QUESTION = "question"


def test_keys_are_plain_strings() -> None:
    for state in (ImmutableState([(Field.QUESTION, 1)]), ImmutableState() | {Field.QUESTION: 1}):
        assert type(next(iter(state))) is str
        assert state == {"question": 1}


@pytest.mark.parametrize(
    "build",
    [
        lambda: ImmutableState({1: "a"}),  # type: ignore[arg-type]
        lambda: ImmutableState({None: "a"}),  # type: ignore[arg-type]
        lambda: ImmutableState(frozen({(1, 2): "a"})),
        lambda: ImmutableState({"a": 1}) | {2: "b"},  # type: ignore[dict-item]
        lambda: ImmutableState({"a": 1}).set(b"x", 1),
    ],
)
def test_other_keys_are_refused(build: Any) -> None:
    with pytest.raises(UnsupportedValueError, match="names of fields: strings"):
        build()


@pytest.mark.parametrize("value", [[1], "ab", 5, None, object()])
def test_a_state_of_no_mapping(value: Any) -> None:
    for cls in (ImmutableState, FrozenDict):
        with pytest.raises(
            UnsupportedValueError, match=f"^an? {cls.__name__} is built from a mapping or from pairs, not"
        ):
            cls(value)


@pytest.mark.parametrize("patch", [None, [("a", 1)], "a", 5])
def test_a_patch_that_is_no_mapping(patch: Any) -> None:
    for apply in (ImmutableState().apply_patch, ImmutableState().__or__):
        with pytest.raises(PatchError, match="a patch is a mapping"):
            apply(patch)


def test_a_cyclic_dict_is_refused() -> None:
    cyclic: dict[str, Any] = {"a": {"b": [1]}}
    cyclic["a"]["b"].append(cyclic)
    with pytest.raises(UnsupportedValueError, match="contains itself"):
        ImmutableState(cyclic)
    with pytest.raises(PatchError, match="contains itself"):
        ImmutableState() | cyclic


def test_ten_thousand_levels_are_refused() -> None:
    deep: Any = {}
    for _ in range(10_000):
        deep = {"a": deep}
    with pytest.raises(UnsupportedValueError, match=f"deeper than {MAX_DEPTH}"):
        ImmutableState(deep)
    with pytest.raises(PatchError, match=f"deeper than {MAX_DEPTH}"):
        ImmutableState() | deep
    state = ImmutableState()
    for _ in range(MAX_DEPTH - 1):
        state = ImmutableState() | {"a": Replace(state)}
    with pytest.raises(PatchError, match="deeper"):
        ImmutableState() | {"a": Replace(state)}
    with pytest.raises(StateError, match="deeper"):
        ImmutableState.from_json('{"a":' * 300 + "1" + "}" * 300)


def test_untouched_values_are_the_same_objects() -> None:
    state = ImmutableState({"a": {"x": {"y": 1}, "z": [1]}, "b": [{"c": 1}], **{f"k{n}": [n] for n in range(200)}})
    after = state | {"a": {"x": {"y": 2}}, "new": 1}
    assert after["a"]["z"] is state["a"]["z"]
    assert all(after[key] is state[key] for key in state if key != "a")
    assert state | {} is state
    assert state | {"b": [{"c": 1}], "missing": None} is state
    assert copy.deepcopy(state) is state
    assert copy.copy(state) is state


def test_a_state_inside_a_value_becomes_a_mapping() -> None:
    inner = ImmutableState({"a": [1]})
    state = ImmutableState({"inner": inner, "list": [inner]})
    assert type(state["inner"]) is FrozenDict
    assert state["inner"]["a"] is inner["a"]
    assert type(state["list"][0]) is FrozenDict
    assert state.to_dict() == {"inner": {"a": [1]}, "list": [{"a": [1]}]}


@pytest.mark.parametrize(
    "kind", [dict, OrderedDict, MappingProxyType, frozen], ids=["dict", "OrderedDict", "proxy", "frozen"]
)
def test_built_from_any_mapping(kind: Any) -> None:
    plain = {"b": 1, "a": {"c": [2]}}
    state = ImmutableState(kind(plain))
    assert list(state) == ["b", "a"]
    plain["a"]["c"].append(3)  # type: ignore[index]
    assert state == {"b": 1, "a": {"c": [2]}}


@each("make", [SAMPLES[name] for name in SAMPLES if name != "None"])
def test_changing_the_source_or_a_read_value_does_not_change_a_state(make: Any) -> None:
    given_dict = {"x": make(), "deep": {"list": [make()]}}
    given_patch = {"y": make(), "deep": {"more": make()}}
    before = ImmutableState(given_dict)
    after = before | given_patch
    merged = before.merge(after)
    patch = before.diff(after)
    for held in (
        given_dict,
        given_patch,
        patch,
        before.to_dict(),
        after["deep"],
        after["y"],
        merged.to_dict(),
        dict(after),
    ):
        spoil(held)
    expected = ImmutableState({"x": make(), "deep": {"list": [make()], "more": make()}, "y": make()})
    assert same(before, ImmutableState({"x": make(), "deep": {"list": [make()]}}))
    assert same(after, expected)
    assert same(merged, expected)
    assert same(ImmutableState.from_json(after.to_json(), types=TYPES), expected)


def test_order_is_the_order_of_insertion() -> None:
    keys = [f"k{n * 7919 % 500}" for n in range(500)]
    state = ImmutableState()
    for key in keys:
        state |= {key: 0}
    state |= {keys[3]: 1, keys[10]: None}
    state |= {keys[10]: 1}
    expected = [key for key in keys if key != keys[10]] + [keys[10]]
    assert list(state) == list(state.to_dict()) == list(dict(state)) == expected
    assert list(ImmutableState.from_json(state.to_json())) == expected
    assert list(pickle.loads(pickle.dumps(state))) == expected
    assert repr(state).index(repr(keys[0])) < repr(state).index(repr(keys[1]))


def test_hashable_where_the_values_are() -> None:
    a, b = ImmutableState({"a": [1, {"b": (2,)}], "c": {1}}), ImmutableState({"c": {1}, "a": [1, {"b": (2,)}]})
    assert len({a, b, frozen(a.to_dict())}) == 1


leaves = st.none() | st.integers(-2, 2) | st.booleans() | st.text(max_size=2) | st.lists(st.integers(0, 3), max_size=2)
states = st.dictionaries(
    st.sampled_from("abcd"),
    st.recursive(leaves, lambda below: st.dictionaries(st.sampled_from("abc"), below, max_size=3)),
    max_size=4,
)


@given(one=states, two=states)
def test_diff_and_patch_are_inverse(one: dict[str, Any], two: dict[str, Any]) -> None:
    a, b = ImmutableState(one), ImmutableState(two)
    patch = a.diff(b)
    assert same(a | patch, b)
    assert (patch == {}) is same(a, b)
    assert (a | {}) is a
    assert same(a | b.diff(b), a)


@given(value=states)
def test_copies_pickles_and_json_restore_a_state(value: dict[str, Any]) -> None:
    state = ImmutableState(value)
    assert same(state.to_dict(), value)
    assert type(state.to_dict()) is dict
    assert same(ImmutableState.from_json(state.to_json()), state)
    assert type(ImmutableState.from_json(state.to_json())) is ImmutableState
    restored = pickle.loads(pickle.dumps(state))
    assert type(restored) is ImmutableState
    assert same(restored, state)


# Merging


def test_the_example_of_the_seed_page(capsys: pytest.CaptureFixture[str]) -> None:
    """S001-18, S001-19."""
    a = ImmutableState({"user_id": 123, "tags": ["active"]})
    b = ImmutableState({"user_id": 123, "tags": ["premium"], "score": 95})
    print(a.merge(b, policy="combine_lists").to_dict())
    assert capsys.readouterr().out == "{'user_id': 123, 'tags': ['active', 'premium'], 'score': 95}\n"


@each(
    ("policy", "expected"),
    [
        (None, {"n": 2, "tags": ["b"], "d": {"x": 1, "y": 2, "z": 9}, "only a": 1, "only b": 2}),
        ("last_write_wins", {"n": 2, "tags": ["b"], "d": {"x": 1, "y": 2, "z": 9}, "only a": 1, "only b": 2}),
        ("first_write_wins", {"n": 1, "tags": ["a"], "d": {"x": 1, "y": 2, "z": 8}, "only a": 1, "only b": 2}),
        ("combine_lists", {"n": 2, "tags": ["a", "b"], "d": {"x": 1, "y": 2, "z": 9}, "only a": 1, "only b": 2}),
        (
            lambda conflict: conflict.path[-1],
            {"n": "n", "tags": "tags", "d": {"x": 1, "y": 2, "z": "z"}, "only a": 1, "only b": 2},
        ),
        (
            {"tags": "combine_lists", "**": "first_write_wins"},
            {"n": 1, "tags": ["a", "b"], "d": {"x": 1, "y": 2, "z": 8}, "only a": 1, "only b": 2},
        ),
    ],
)
def test_two_way_merge(policy: Any, expected: dict[str, Any]) -> None:
    a = ImmutableState({"n": 1, "tags": ["a"], "d": {"x": 1, "z": 8}, "only a": 1})
    b = ImmutableState({"n": 2, "tags": ["b"], "d": {"y": 2, "z": 9}, "only b": 2})
    merged = a.merge(b) if policy is None else a.merge(b, policy=policy)
    assert type(merged) is ImmutableState
    assert merged == expected
    assert a.merge(a) is a
    assert a.merge({}) is a


def test_three_way_merge_counts_only_what_changed() -> None:
    base = ImmutableState({"n": 1, "gone": 1, "tags": ["x"], "d": {"a": 1, "b": 1}})
    left = base | {"gone": None, "tags": ["x", "l"], "d": {"a": 2}}
    right = base | {"n": 5, "tags": ["x", "r"], "d": {"b": 2}}
    merged = left.merge(right, policy="combine_lists", base=base)
    assert merged == {"n": 5, "tags": ["x", "l", "r"], "d": {"a": 2, "b": 2}}
    assert left.merge(base, base=base) is left
    assert base.merge(right, base=base) == right


def test_a_conflict_names_both_sides() -> None:
    a, b = ImmutableState({"user": {"name": "Ada"}}), ImmutableState({"user": {"name": "Bob"}})
    with pytest.raises(MergeConflictError, match=r"^Conflict detected at key 'user.name'") as caught:
        a.merge(b, policy="raise")
    assert caught.value.writers == ("left", "right")
    assert caught.value.path == ("user", "name")
    assert isinstance(caught.value, ValueError)
    for text in ("'Ada'", "'Bob'", "left", "right"):
        assert text in str(caught.value)


def test_a_policy_gets_plain_values_and_their_authors() -> None:
    seen = []

    def decide(conflict: Any) -> Any:
        seen.append((conflict.base, conflict.left, conflict.right, conflict.left_author, conflict.right_author))
        conflict.left.append("spoilt")
        return DELETE

    a, b = ImmutableState({"l": [1]}), ImmutableState({"l": [2]})
    assert a.merge(b, policy=decide) == {}
    assert seen == [(DELETE, [1, "spoilt"], [2], "left", "right")]
    assert a == {"l": [1]}


def test_an_unknown_policy() -> None:
    with pytest.raises(ValueError, match="combine_lists"):
        ImmutableState().merge({}, policy="newest")


@given(one=states, two=states)
def test_merge_keeps_the_keys_of_only_one_side(one: dict[str, Any], two: dict[str, Any]) -> None:
    a, b = ImmutableState(one), ImmutableState(two)
    merged = a.merge(b)
    assert list(merged) == [*a, *(key for key in b if key not in a)]
    assert same(a.merge(b, base=a), b)
    assert same(a.merge(b, base=b), a)
    assert all(same(merged[key], a[key]) for key in a if key not in b)
    assert all(same(merged[key], b[key]) for key in b if not isinstance(b[key], FrozenDict))


# Pydantic


class Holder(BaseModel):
    state: ImmutableState
    nested: dict[str, Any] = {}


def test_states_in_models() -> None:
    state = ImmutableState({"a": [1], "b": {1}})
    holder = Holder(state=state, nested=state)
    assert holder.state is state
    assert holder.nested == state
    assert Holder(state={"a": 1}).state == ImmutableState({"a": 1})
    assert holder.model_dump()["state"] == {"a": [1], "b": {1}}
    assert Holder.model_validate_json(Holder(state=ImmutableState({"a": [1]})).model_dump_json()).state == {"a": [1]}
    assert TypeAdapter(ImmutableState).validate_python({"a": 1}) == {"a": 1}


def test_a_state_with_views_in_values() -> None:
    state = ImmutableState({"messages": [{"role": "user"}]})
    after = state | {"messages": state["messages"] + [{"role": "assistant"}]}
    assert after["messages"] == [{"role": "user"}, {"role": "assistant"}]
    assert after["messages"][0] is state["messages"][0]
    assert type(after["messages"][:1]) is FrozenList
    assert [*after["messages"], 1][-1] == 1
