"""Merge policies: laws that hold for each row of one table; patterns of paths; the texts of errors."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspyer import DELETE
from dspyer.errors import MergeConflictError
from dspyer.policies import (
    Conflict,
    Policies,
    Policy,
    combine_lists,
    first_write_wins,
    last_write_wins,
    merge_values,
    policy_of,
    prefer,
    raise_,
    resolve_conflict,
)
from tests.plain_values import frozen as freeze
from tests.plain_values import plain, same
from tests.rows import each


def longest(conflict: Conflict) -> Any:
    """A user's policy: the value with the longer repr."""
    return max(conflict.left, conflict.right, key=lambda value: len(repr(value)))


def drop(conflict: Conflict) -> Any:
    return DELETE


# A new policy is a row: its spec, its decision between 1 and 2, and between [0, 1] and [0, 2] with base [0].
POLICIES: list[tuple[Any, Any, Any]] = [
    ("raise", MergeConflictError, MergeConflictError),
    ("last_write_wins", 2, [0, 2]),
    ("first_write_wins", 1, [0, 1]),
    ("combine_lists", 2, [0, 1, 2]),
    (prefer("right"), 2, [0, 2]),
    (prefer("nobody", "left"), 1, [0, 1]),
    (prefer("nobody"), MergeConflictError, MergeConflictError),
    (longest, 1, [0, 1]),
    (drop, DELETE, DELETE),
]
ROWS = pytest.mark.parametrize(("spec", "scalar", "listed"), POLICIES, ids=[str(policy_of(row[0])) for row in POLICIES])
SPECS = pytest.mark.parametrize("spec", [row[0] for row in POLICIES], ids=[str(policy_of(row[0])) for row in POLICIES])

items = st.lists(st.sampled_from([0, 1, 2, True, "x"]), max_size=5)
keyed = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2) | items, max_size=3)


def merge(base: Any, left: Any, right: Any, spec: Any) -> Any:
    resolve = Policies.of(spec).resolve
    result = merge_values(freeze(base), freeze(left), freeze(right), (), resolve)
    return result if result is DELETE else plain(result)


def outcome(base: Any, left: Any, right: Any, spec: Any) -> Any:
    try:
        return merge(base, left, right, spec)
    except MergeConflictError as error:
        return error.path, error.writers


@ROWS
def test_the_decision_of_each_policy(spec: Any, scalar: Any, listed: Any) -> None:
    for left, right, base, expected in ((1, 2, 0, scalar), ([0, 1], [0, 2], [0], listed)):
        if expected is MergeConflictError:
            with pytest.raises(MergeConflictError):
                merge({"k": base}, {"k": left}, {"k": right}, spec)
        else:
            assert merge({"k": base}, {"k": left}, {"k": right}, spec) == (
                {} if expected is DELETE else {"k": expected}
            )


@SPECS
@given(base=keyed, side=keyed)
def test_law_no_policy_is_called_without_a_conflict(spec: Any, base: Any, side: Any) -> None:
    assert merge(base, side, base, spec) == side
    assert merge(base, base, side, spec) == side
    assert merge(base, side, side, spec) == side


@SPECS
@given(base=keyed, left=keyed, right=keyed)
def test_law_a_merge_is_determined_by_its_values(spec: Any, base: Any, left: Any, right: Any) -> None:
    assert outcome(base, left, right, spec) == outcome(base, left, right, spec)
    frozen = [freeze(value) for value in (base, left, right)]
    before = repr(frozen)
    outcome(frozen[0], frozen[1], frozen[2], spec)
    assert repr(frozen) == before


@SPECS
def test_policies_can_be_copied_and_pickled(spec: Any) -> None:
    policies = Policies.of({"a.*": spec})
    assert copy.deepcopy(policies) == policies
    assert pickle.loads(pickle.dumps(policies)) == policies


@given(items, items, items)
def test_law_combine_lists_counts_base_items_once(base: list[Any], left: list[Any], right: list[Any]) -> None:
    result = plain(resolve_conflict(combine_lists, Conflict(("k",), freeze(base), freeze(left), freeze(right))))

    def count(values: list[Any], item: Any) -> int:
        return sum(same(value, item) for value in values)

    if same(left, right):
        return
    for item in [*base, *left, *right]:
        before, ours, theirs = (count(values, item) for values in (base, left, right))
        kept = min(before, ours, theirs)
        assert count(result, item) == kept + max(ours - before, 0) + max(theirs - before, 0)


@each(
    ("base", "left", "right", "expected"),
    [
        (DELETE, ["active"], ["premium"], ["active", "premium"]),
        (DELETE, [1], [1, 2], [1, 1, 2]),
        ([1], [1, 2], [1, 3], [1, 2, 3]),
        ([1, 2], [2], [1, 2, 3], [2, 3]),
        ([1, 1], [1], [1, 1, 2], [1, 2]),
        ([1], [1, True], [1, 1.0], [1, True, 1.0]),
        ([{"a": 1}], [{"a": 1}, {"b": 1}], [], [{"b": 1}]),
        ("text", [1], [2], [1, 2]),
        ([1], "text", [2], [2]),
        ([1], [2], DELETE, DELETE),
    ],
)
def test_combine_lists(base: Any, left: Any, right: Any, expected: Any) -> None:
    assert combine_lists(Conflict(("k",), base, left, right)) == expected


def test_prefer_asks_its_nodes_in_order() -> None:
    conflict = Conflict(("title",), "-", "A", "B", "writer", "editor")
    assert prefer("editor", "writer")(conflict) == "B"
    assert prefer("writer", "editor")(conflict) == "A"
    with pytest.raises(MergeConflictError):
        prefer("critic")(conflict)


def test_a_function_gets_plain_values_and_its_answer_is_frozen() -> None:
    seen: list[Conflict] = []

    def keep(conflict: Conflict) -> Any:
        seen.append(conflict)
        return [*conflict.left, "more"]

    result = resolve_conflict(
        policy_of(keep), Conflict(("k",), DELETE, freeze(["a"]), freeze({"x": [1]}), "one", "two")
    )
    assert seen == [Conflict(("k",), DELETE, ["a"], {"x": [1]}, "one", "two")]
    assert type(seen[0].left) is list
    assert type(seen[0].right["x"]) is list
    assert result == ["a", "more"]
    assert type(result) is not list


def test_the_chosen_side_keeps_its_identity() -> None:
    left, right = freeze({"deep": [1]}), freeze([2])
    conflict = Conflict(("k",), DELETE, left, right)
    assert resolve_conflict(policy_of(lambda asked: asked.left), conflict) is left
    assert resolve_conflict(policy_of(lambda asked: asked.right), conflict) is right
    assert resolve_conflict(last_write_wins, conflict) is right
    assert resolve_conflict(first_write_wins, conflict) is left


PATTERNS: dict[Any, Any] = {
    "**": "first_write_wins",
    "draft.*": "raise",
    "draft.**": "combine_lists",
    "draft.title": "last_write_wins",
    "*.title": prefer("titles"),
    "notes.**.text": prefer("notes"),
    ("a.b", 1): prefer("literal"),
    "7": prefer("seven"),
    "**.owner": prefer("owners"),
}


@each(
    ("path", "name"),
    [
        (("draft", "title"), "last_write_wins"),
        (("draft", "body"), "raise"),
        (("draft", "body", "deep"), "combine_lists"),
        (("draft",), "combine_lists"),
        (("other", "title"), "prefer('titles')"),
        (("other",), "first_write_wins"),
        (("notes", "text"), "prefer('notes')"),
        (("notes", "a", "b", "text"), "prefer('notes')"),
        (("notes", "a", "b"), "first_write_wins"),
        (("a.b", 1), "prefer('literal')"),
        (("a", "b", 1), "first_write_wins"),
        ((7,), "prefer('seven')"),
        (("owner",), "prefer('owners')"),
        (("x", "y", "owner"), "prefer('owners')"),
        (("draft", "title", "deep"), "last_write_wins"),  # below the key that a pattern ends with
        (("a.b", 1, "deep", 2), "prefer('literal')"),
        (("x", "owner", "deep"), "prefer('owners')"),
        (("7", "deep"), "prefer('seven')"),
    ],
)
def test_the_policy_of_the_most_specific_pattern_holds(path: tuple[Any, ...], name: str) -> None:
    assert Policies.of(PATTERNS).policy_for(path).name == name


def test_order_of_declaration_decides_between_equal_patterns() -> None:
    assert Policies.of({"a.*.x": "raise", "a.*.*": "first_write_wins"}).policy_for(("a", "b", "x")).name == "raise"
    assert Policies.of({"*": "first_write_wins"}).policy_for(("a",)).name == "first_write_wins"


def test_the_default_and_the_fallback_table() -> None:
    assert Policies.of(None).policy_for(("a",)) is raise_
    assert Policies.of({"b": "combine_lists"}).policy_for(("a",)) is raise_
    graph = Policies.of({"a": "first_write_wins"})
    join = Policies.of({"b": "combine_lists"}, otherwise=graph)
    assert [join.policy_for((key,)).name for key in "abc"] == ["first_write_wins", "combine_lists", "raise"]


def test_fields_for_which_a_user_chose_a_policy() -> None:
    policies = Policies.of({"draft.title": "raise", ("tags", "x"): "combine_lists"})
    assert [policies.covers(key) for key in ("draft", "tags", "other")] == [True, True, False]
    assert Policies.of("raise").covers("other")
    assert not Policies.of(None).covers("other")
    assert Policies.of({"a": "raise"}, otherwise=Policies.of("last_write_wins")).covers("b")


def test_policies_of_policies_is_itself() -> None:
    policies = Policies.of("raise")
    assert Policies.of(policies) is policies
    assert policy_of(raise_) is raise_
    assert isinstance(policy_of(longest), Policy)
    assert policy_of(longest).name == "longest"


@each(
    ("spec", "words"),
    [
        ("last_write_win", ["last_write_win", "Did you mean 'last_write_wins'", "'combine_lists'", "prefer(*nodes)"]),
        ("typo", ["'raise'", "'last_write_wins'", "'first_write_wins'", "'combine_lists'"]),
        (5, ["5 is no merge policy", "'raise'"]),
        (prefer, ["prefer('editor', 'writer')"]),
        (lambda: None, ["exactly one argument"]),
        (lambda a, b: None, ["exactly one argument"]),
        ({"a": "typo"}, ["'typo'"]),
        ({"a..b": "raise"}, ["malformed pattern 'a..b'"]),
        ({"a*": "raise"}, ["malformed pattern 'a*'", "tuple"]),
        ({"": "raise"}, ["malformed pattern ''"]),
        ({(): "raise"}, ["'**'"]),
        ({3: "raise"}, ["a tuple of keys, not 3"]),
    ],
)
def test_invalid_policies_are_refused_at_once(spec: Any, words: list[str]) -> None:
    with pytest.raises(ValueError, match=re.escape(words[0])) as refusal:
        Policies.of(spec)
    assert all(word in str(refusal.value) for word in words)


def test_prefer_needs_nodes() -> None:
    with pytest.raises(ValueError, match="names of nodes"):
        prefer()


def test_the_text_of_a_conflict_names_path_sides_and_ways_out() -> None:
    with pytest.raises(MergeConflictError) as raised:
        merge({"a": {"b": 0}}, {"a": {"b": 1}}, {"a": {"b": "two"}}, "raise")
    error = raised.value
    assert isinstance(error, ValueError)
    assert str(error).startswith("Conflict detected at key 'a.b'")
    assert error.path == ("a", "b")
    assert error.writers == ("left", "right")
    for word in ("left has 1", "right has 'two'", "started from 0", "reducer", "policy", "one node alone", "'a.b'"):
        assert word in str(error)
    assert pickle.loads(pickle.dumps(error)).path == ("a", "b")


def test_text_of_a_conflict_shows_sizes_of_big_values() -> None:
    with pytest.raises(MergeConflictError) as raised:
        merge({}, {"a": "x" * 5000}, {"a": list(range(1000))}, "raise")
    assert "5000 characters" in str(raised.value)
    assert "list of 1000 items" in str(raised.value)
    assert "started from nothing" in str(raised.value)
    assert len(str(raised.value)) < 600


def test_text_of_a_conflict_at_a_key_with_a_dot_offers_a_tuple() -> None:
    with pytest.raises(MergeConflictError, match=r"\('a\.b', 'c'\)"):
        merge({}, {"a.b": {"c": 1}}, {"a.b": {"c": 2}}, "raise")
