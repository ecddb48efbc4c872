"""The three-way merge of values: laws over random states, and the cases that are easy to get wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspyer import DELETE
from dspyer.policies import Conflict, merge_values
from tests.plain_values import MAX_DEPTH, FrozenDict, frozen, plain, same

scalars = st.sampled_from([0, 1, True, 1.0, "", "x", None])
keys = st.sampled_from("abcd")
values = st.recursive(
    scalars | st.lists(scalars, max_size=2),
    lambda inner: st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
states = st.dictionaries(keys, values, max_size=4).map(frozen)


def left_wins(path: tuple[Any, ...], base: Any, left: Any, right: Any) -> Any:
    return left


def right_wins(path: tuple[Any, ...], base: Any, left: Any, right: Any) -> Any:
    return right


def never(path: tuple[Any, ...], base: Any, left: Any, right: Any) -> Any:
    raise AssertionError(f"no conflict expected, got one at {path}: {base!r} {left!r} {right!r}")


def merged(base: Any, left: Any, right: Any, resolve: Any = never) -> Any:
    base, left, right = (value if value is DELETE else frozen(value) for value in (base, left, right))
    result = merge_values(base, left, right, (), resolve)
    return result if result is DELETE else plain(result)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """Paths and values of a nested mapping; a mapping itself counts as a path, so that empty ones are seen."""
    if not isinstance(value, FrozenDict):
        return {path: value}
    found: dict[tuple[Any, ...], Any] = {path: "mapping"}
    for key, inner in value.raw_items():
        found |= leaves(inner, (*path, key))
    return found


@pytest.mark.parametrize(
    ("base", "left", "right", "expected"),
    [
        pytest.param({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}, {"a": 1, "b": 2, "c": 3}, id="both add"),
        pytest.param(
            {"a": 1, "b": 2}, {"b": 2}, {"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 3}, id="a deletion is not resurrected"
        ),
        pytest.param({"a": 1}, {}, {}, {}, id="both delete"),
        pytest.param({"a": 1}, {"a": 2}, {"a": 2}, {"a": 2}, id="both write the same"),
        pytest.param({"a": 1}, {"a": 1}, {"a": 5}, {"a": 5}, id="only the right side"),
        pytest.param({"a": 1}, {"a": 5}, {"a": 1}, {"a": 5}, id="only the left side"),
        pytest.param({}, {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}, id="both create a mapping"),
        pytest.param(
            {"a": 5}, {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}, id="a base that is no mapping is empty"
        ),
        pytest.param({}, {"a": {}}, {}, {"a": {}}, id="an empty mapping is kept"),
        pytest.param({"a": {"x": 1, "y": 1}}, {"a": {"y": 1}}, {"a": {"x": 1}}, {"a": {}}, id="deletions below meet"),
        pytest.param({"a": 1}, DELETE, {"a": 1}, DELETE, id="the whole is deleted"),
        pytest.param({"n": [1]}, {"n": [1], "m": 1}, {"n": [1, 2]}, {"n": [1, 2], "m": 1}, id="lists are one value"),
    ],
)
def test_without_conflict(base: Any, left: Any, right: Any, expected: Any) -> None:
    assert merged(base, left, right) == expected


@pytest.mark.parametrize(
    ("base", "left", "right", "path", "sides"),
    [
        pytest.param({}, {"a": 1}, {"a": 2}, ("a",), (DELETE, 1, 2), id="both create"),
        pytest.param({"a": 0}, {"a": 1}, {"a": 2}, ("a",), (0, 1, 2), id="both change"),
        pytest.param({"a": 0}, {}, {"a": 2}, ("a",), (0, DELETE, 2), id="deletion against change"),
        pytest.param(
            {"a": {"b": 1}}, {}, {"a": {"b": 2}}, ("a",), ({"b": 1}, DELETE, {"b": 2}), id="prefix: the shorter path"
        ),
        pytest.param(
            {"a": {"b": 1}}, {"a": 7}, {"a": {"b": 2}}, ("a",), ({"b": 1}, 7, {"b": 2}), id="scalar against inner"
        ),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 2}}, {"a": {"b": 3}}, ("a", "b"), (1, 2, 3), id="deep"),
        pytest.param({}, {"a": 1}, {"a": True}, ("a",), (DELETE, 1, True), id="1 and True differ"),
        pytest.param({}, {"a": 1}, {"a": 1.0}, ("a",), (DELETE, 1, 1.0), id="1 and 1.0 differ"),
    ],
)
def test_conflict(base: Any, left: Any, right: Any, path: tuple[str, ...], sides: tuple[Any, ...]) -> None:
    asked: list[Any] = []

    def resolve(*conflict: Any) -> Any:
        asked.append(conflict)
        return conflict[3]

    merged(base, left, right, resolve)
    assert len(asked) == 1
    assert asked[0][0] == path
    assert all(
        same(got, want if want is DELETE else frozen(want)) for got, want in zip(asked[0][1:], sides, strict=True)
    )


def test_delete_as_an_answer_removes_the_key() -> None:
    assert merged({}, {"a": 1, "b": 1}, {"a": 2}, lambda *conflict: DELETE) == {"b": 1}


def test_right_wins_takes_the_whole_value_at_the_shorter_path() -> None:
    base = {"a": {"b": 1, "c": 2}}
    assert merged(base, {}, {"a": {"b": 5, "c": 2}}, right_wins) == {"a": {"b": 5, "c": 2}}


def test_key_order_is_left_then_new_keys_of_right() -> None:
    base = {"a": 1, "b": 1}
    result = merged(base, {"b": 1, "a": 1, "l": 1}, {"y": 1, "b": 2, "x": 1, "a": 1})
    assert list(result) == ["b", "a", "l", "y", "x"]


def test_untouched_values_keep_their_identity() -> None:
    base = frozen({"big": {"x": [1]}, "n": 1})
    left, right = base.set("l", 1), base.set("r", frozen({"k": 1}))
    result = merge_values(base, left, right, (), never)
    assert result.raw("big") is base.raw("big")
    assert result.raw("r") is right.raw("r")
    assert merge_values(base, left, base, (), never) is left


def test_values_nested_as_deep_as_a_state_may_be() -> None:
    def nested(leaf: str) -> Any:
        value: dict[str, Any] = {"leaf": leaf}
        for _ in range(MAX_DEPTH - 2):  # a field of the state is the first level
            value = {"in": value}
        return value

    assert merged(nested("base"), nested("left"), nested("base")) == nested("left")
    assert merged(nested("base"), nested("left"), nested("right"), right_wins) == nested("right")


def test_conflicts_are_values() -> None:
    assert Conflict(("a",), 1, 2, 3) == Conflict(("a",), 1, 2, 3)
    with pytest.raises(AttributeError):
        Conflict(("a",), 1, 2, 3).path = ()  # type: ignore[misc]


@given(states, states)
def test_law_an_unchanged_side_adds_nothing(base: Any, side: Any) -> None:
    assert merge_values(base, side, base, (), never) is side
    assert same(merge_values(base, base, side, (), never), side)
    assert merge_values(base, side, side, (), never) is side


@given(states, states, states, st.sampled_from([left_wins, right_wins]))
def test_law_nothing_is_resurrected_lost_or_doubled(base: Any, left: Any, right: Any, resolve: Any) -> None:
    """Each path of the result comes from a side, and a path that only one side changed is as that side has it."""
    result = leaves(merge_values(base, left, right, (), resolve))
    old, ours, theirs = leaves(base), leaves(left), leaves(right)
    for path, value in result.items():
        assert any(path in side and same(side[path], value) for side in (ours, theirs))
    top = FrozenDict(base), FrozenDict(left), FrozenDict(right)
    for key in {*top[0], *top[1], *top[2]}:
        before, mine, other = (side.raw(key, DELETE) for side in top)
        if same(before, mine):
            assert same(
                result_of(result, key), result_of(leaves(frozen({}) if other is DELETE else frozen({key: other})), key)
            )
        elif same(before, other):
            assert same(
                result_of(result, key), result_of(leaves(frozen({}) if mine is DELETE else frozen({key: mine})), key)
            )
    assert old == leaves(base)


def result_of(found: dict[tuple[Any, ...], Any], key: str) -> Any:
    return frozen([[list(path), value] for path, value in sorted(found.items(), key=repr) if path[:1] == (key,)])


@given(states, states, states)
def test_law_sides_may_be_swapped_with_their_policy(base: Any, left: Any, right: Any) -> None:
    one = merge_values(base, left, right, (), left_wins)
    two = merge_values(base, right, left, (), right_wins)
    assert same(one, two)


@given(states, states, states)
def test_law_merging_again_adds_nothing(base: Any, left: Any, right: Any) -> None:
    once = merge_values(base, left, right, (), right_wins)
    assert same(merge_values(right, once, right, (), never), once)
