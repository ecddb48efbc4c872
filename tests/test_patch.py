"""Merge patches: RFC 7396, the two markers, diffs, and what a patch leaves alone."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import DELETE, END, START, Graph, ImmutableState, Replace
from dspyer.errors import ImmutableError, PatchError, UnsupportedValueError, brief
from dspyer.events import Committed
from tests.plain_values import MAX_DEPTH, FrozenDict, frozen, same
from tests.rows import each

freeze = ImmutableState


def apply(state: ImmutableState, patch: Any) -> ImmutableState:
    return state.apply_patch(patch)


def committed(before: dict[str, Any], patch: Any) -> tuple[Mapping[str, Any], ImmutableState]:
    """The patch and the state that a run records of a node which returns `patch`."""
    graph = Graph(inputs=list(before)).add_node("write", lambda: patch).add_path(START, "write", END)
    run = graph.compile().run(before)
    run.raise_error()
    commits = [event.commit for event in run.events if isinstance(event, Committed)]
    return commits[-1].patch, run.state


# The examples of RFC 7396, appendix A; those whose target or patch is no object are put under a key.
RFC_7396: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, DELETE),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@each(("target", "patch", "result"), RFC_7396)
def test_examples_of_the_rfc(target: Any, patch: Any, result: Any) -> None:
    expected = {} if result is DELETE else {"doc": result}
    assert apply(freeze({"doc": target}), {"doc": patch}) == expected
    if isinstance(target, dict) and isinstance(patch, dict):
        assert apply(freeze(target), patch) == result


def reference(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2, on plain values."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = reference(result.get(name), value)
    return result


leaves = st.one_of(
    st.integers(-2, 2), st.booleans(), st.just("x"), st.just(0.5), st.lists(st.integers(0, 2), max_size=2)
)
names = st.sampled_from("abc")
documents = st.dictionaries(
    names, st.recursive(leaves | st.none(), lambda below: st.dictionaries(names, below, max_size=3)), max_size=3
)


@given(target=documents, patch=documents, extra=st.sampled_from([0, 100]))
def test_apply_follows_the_rfc(target: dict[str, Any], patch: dict[str, Any], extra: int) -> None:
    target |= {f"n{i}": i for i in range(extra)}  # above the size of small maps
    before, given_patch = copy.deepcopy(target), copy.deepcopy(patch)
    frozen = freeze(target)
    after = apply(frozen, patch)
    expected = reference(target, patch)
    assert same(after, expected)
    assert list(after) == list(expected)
    assert frozen == before
    assert patch == given_patch


@given(old=documents, new=documents, extra=st.sampled_from([0, 100]))
def test_applying_the_diff_gives_the_new_value(old: dict[str, Any], new: dict[str, Any], extra: int) -> None:
    old |= {f"n{i}": i for i in range(extra)}
    a, b = freeze(old), freeze(new)
    assert same(apply(a, a.diff(b)), b)


@given(old=documents, new=documents)
def test_no_part_of_a_diff_can_be_left_out(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Without any one of its entries the patch gives another result, and it holds no `None` outside `Replace`."""
    a, b = freeze(old), freeze(new)
    patch = a.diff(b)
    for shorter in shortened(patch):
        assert not same(apply(a, shorter), b)


def shortened(patch: Any) -> list[Any]:
    found = []
    for key, update in patch.items():
        assert update is not None
        rest = {other: value for other, value in patch.items() if other != key}
        found.append(rest)
        if isinstance(update, dict):
            found.extend({**rest, key: less} for less in shortened(update))
    return found


@given(value=documents)
def test_unchanged_values_keep_their_identity(value: dict[str, Any]) -> None:
    frozen = freeze({"a": value, "b": value, "c": 1})
    assert apply(frozen, {}) is frozen
    assert apply(frozen, {"c": 1, "zz": None}) is frozen
    assert apply(frozen, {"a": Replace(value)}) is frozen
    after = apply(frozen, {"c": 2})
    assert after.raw("a") is frozen.raw("a")
    assert after.raw("b") is frozen.raw("b")


marked = st.dictionaries(
    names,
    st.recursive(
        leaves | st.none() | st.just(DELETE) | documents.map(Replace) | st.none().map(Replace),
        lambda below: st.dictionaries(names, below, max_size=3),
    ),
    max_size=3,
)


@given(before=documents, patch=marked, extra=st.sampled_from([0, 100]))
def test_the_net_change_of_a_patch_is_the_diff(before: dict[str, Any], patch: dict[str, Any], extra: int) -> None:
    """What a commit records is the smallest patch, whatever the node has returned."""
    old = {**before, **{f"k{n}": n for n in range(extra)}}
    net, new = committed(old, patch)
    assert new == apply(freeze(old), patch)
    assert same(apply(freeze(old), net), new)
    for shorter in shortened(net):
        assert not same(apply(freeze(old), shorter), new)


def test_a_patch_changes_only_the_paths_that_it_names() -> None:
    before = freeze({"a": {"b": {"c": 1}, "d": {}}, "e": {"f": [1]}, "g": [{"h": 1}]})
    after = apply(before, {"a": {"b": {"c": 2}}})
    assert after["a"]["b"]["c"] == 2
    assert after["a"]["d"] is before["a"]["d"]
    assert after["e"] is before["e"]
    assert after["g"][0] is before["g"][0]
    assert before["a"]["b"]["c"] == 1


def test_an_equal_value_keeps_the_old_object_but_another_type_does_not() -> None:
    before = freeze({"list": [1, 2], "n": 1, "zero": 0.0})
    assert apply(before, {"list": [1, 2], "n": 1, "zero": 0.0}) is before
    after = apply(before, {"list": [1, True], "n": True, "zero": -0.0})
    assert after["n"] is True
    assert str(after["zero"]) == "-0.0"
    assert after["list"] is not before["list"]


@each(
    ("before", "patch", "after"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": DELETE}}, {"a": {"c": 2}}),
        ({"a": {"b": 1}}, {"a": DELETE}, {}),
        ({}, {"a": DELETE}, {}),
        ({}, {"a": {"b": DELETE}}, {"a": {}}),
        ({"a": {"b": 1}}, {"a": Replace({"c": 2})}, {"a": {"c": 2}}),
        ({"a": {"b": 1}}, {"a": Replace({})}, {"a": {}}),
        ({"a": 1}, {"a": Replace(None)}, {"a": None}),
        ({}, {"a": {"b": Replace(None)}}, {"a": {"b": None}}),
        ({}, {"a": Replace({"b": None})}, {"a": {"b": None}}),
        ({"a": 1}, {"a": Replace([None])}, {"a": [None]}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": Replace({"e": 3})}}, {"a": {"b": {"e": 3}}}),
        ({"a": [1]}, {"a": [None, {"b": None}]}, {"a": [None, {"b": None}]}),
        ({"a": {1: "x", None: "y"}}, {"a": {True: "z", None: None}}, {"a": {1: "z"}}),
    ],
)
def test_markers_and_none(before: dict[Any, Any], patch: dict[Any, Any], after: dict[Any, Any]) -> None:
    assert apply(freeze(before), patch) == after


@pytest.mark.parametrize("kind", [dict, OrderedDict, MappingProxyType, FrozenDict], ids=lambda kind: kind.__name__)
def test_any_mapping_is_a_patch(kind: Any) -> None:
    patch: Mapping[str, Any] = kind({"a": kind({"b": None, "c": 2})})
    assert apply(freeze({"a": {"b": 1}}), patch) == {"a": {"c": 2}}


def test_models_are_whole_values() -> None:
    class User(BaseModel):
        name: str
        nick: str | None = None

    before = freeze({"user": {"name": "Ada", "theme": "dark"}})
    after = apply(before, {"user": User(name="Bob")})
    assert after["user"] == User(name="Bob")
    assert apply(after, {"user": {"name": "Eve"}}) == {"user": {"name": "Eve"}}


@pytest.mark.parametrize(
    "patch", [None, 5, "text", ["a"], [("a", 1)], {"a"}, object()], ids=lambda patch: type(patch).__name__
)
def test_a_patch_that_is_not_a_mapping_is_refused(patch: Any) -> None:
    with pytest.raises(PatchError, match=f"not an? {type(patch).__name__}.*return a dict"):
        apply(freeze({}), patch)


@pytest.mark.parametrize(
    "place", [lambda marker: [marker], lambda marker: {"b": [1, {"c": marker}]}, lambda marker: (marker,)]
)
@pytest.mark.parametrize("marker", [DELETE, Replace(1)])
def test_markers_inside_values_are_refused(place: Any, marker: Any) -> None:
    with pytest.raises(UnsupportedValueError, match="markers DELETE and Replace"):
        apply(freeze({}), {"a": place(marker)})


def test_errors_name_the_path() -> None:
    with pytest.raises(UnsupportedValueError, match=r"'a\.b\.1' is of type object"):
        apply(freeze({}), {"a": {"b": [1, object()]}})


def nested(levels: int, innermost: Any = 1) -> Any:
    value = innermost
    for _ in range(levels):
        value = {"a": value}
    return value


def test_a_bad_patch_changes_nothing() -> None:
    before = freeze({"a": 1})
    with pytest.raises(UnsupportedValueError):
        apply(before, {"a": 2, "b": object()})
    assert before == {"a": 1}


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 10_000])
def test_a_patch_that_is_too_deep(levels: int) -> None:
    with pytest.raises(PatchError, match=f"deeper than {MAX_DEPTH} levels"):
        apply(freeze({}), nested(levels))
    assert apply(freeze({}), nested(MAX_DEPTH)) == nested(MAX_DEPTH)


def test_a_deep_value_in_a_deep_place() -> None:
    place = nested(60, {"x": 1})
    with pytest.raises(PatchError, match="deeper"):
        apply(freeze(place), nested(60, {"x": frozen(nested(60))}))


def test_the_markers_themselves() -> None:
    assert pickle.loads(pickle.dumps(DELETE)) is DELETE
    assert copy.deepcopy(DELETE) is DELETE
    assert repr(DELETE) == "DELETE"
    assert Replace([1]) == Replace([1]) != Replace([True])
    assert Replace(None) != None  # noqa: E711  # it is the comparison that is tested
    assert pickle.loads(pickle.dumps(Replace({"a": [1]}))) == Replace({"a": [1]})
    assert repr(Replace(None)) == "Replace(None)"
    assert len({Replace(1), Replace(1)}) == 1
    with pytest.raises(AttributeError):
        Replace(1).frozen = 2
    with pytest.raises(UnsupportedValueError):
        Replace(object())


def test_replace_keeps_a_copy() -> None:
    value = {"tags": ["a"]}
    marker = Replace(value)
    value["tags"].append("b")
    assert apply(freeze({}), {"x": marker}) == {"x": {"tags": ["a"]}}
    assert marker.value == {"tags": ["a"]}


@each(
    ("old", "new", "update"),
    [
        (1, 2, 2),
        (1, DELETE, DELETE),
        (DELETE, None, Replace(None)),
        (1, {"a": 1}, {"a": 1}),
        (DELETE, {}, {}),
        ({"a": 1}, {"a": 1, "b": None}, {"b": Replace(None)}),
        ({"a": 1}, 5, 5),
        ({"a": {"b": 1}}, {"a": {"c": 1}}, {"a": {"b": DELETE, "c": 1}}),
        ([1], [1, 2], [1, 2]),
    ],
)
def test_diff_of_one_value(old: Any, new: Any, update: Any) -> None:
    a, b = (freeze({} if value is DELETE else {"x": value}) for value in (old, new))
    found = a.diff(b)
    assert found == {"x": update}
    assert type(found["x"]) is type(update)
    assert same(apply(a, found), b)


def test_thawed_results_are_plain() -> None:
    after = apply(freeze({}), {"a": {"b": [1, {"c": {1}}]}})
    assert type(after.to_dict()["a"]["b"][1]["c"]) is set


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.__setitem__("n", 5),
        lambda patch: patch.pop("n"),
        lambda patch: patch.update(n=5),
        lambda patch: patch.__ior__({"n": 5}),
        lambda patch: patch["user"].clear(),
        lambda patch: patch["user"].setdefault("name", "Eve"),
        lambda patch: patch.popitem(),
        lambda patch: patch.__delitem__("n"),
    ],
)
def test_a_committed_patch_cannot_be_changed(change: Callable[[Any], object]) -> None:
    patch: Any = committed({"user": {"name": "Ada"}}, {"n": 1, "user": {"theme": "dark"}})[0]
    with pytest.raises(ImmutableError, match="make a copy"):
        change(patch)
    assert patch == {"n": 1, "user": {"theme": "dark"}}
    assert copy.deepcopy(patch) is patch
    assert pickle.loads(pickle.dumps(patch)) == patch
    assert isinstance(pickle.loads(pickle.dumps(patch)), type(patch))


def test_a_sealed_patch_is_a_dict_in_what_users_read() -> None:
    """The report of a search shows what it has added to its tree."""
    patch, _ = committed({}, {"n": Replace({"name": "0.0", "text": "x" * 80})})
    assert brief(patch) == "dict of 1 key: 'n'"
