"""Reducers: laws that hold for each row of one table, with plain values; folds, refusals, and types of updates."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import DELETE, END, START, Graph, Replace, reducers
from dspyer.errors import ImmutableError, NodeOutputError, UnsupportedValueError
from dspyer.reducers import Reducer, Updates
from tests.plain_values import FrozenDict, FrozenList, plain, same
from tests.plain_values import frozen as freeze
from tests.rows import each

words = st.sampled_from(["a", "b", "c", ""])
numbers = st.integers(-5, 5)


class Row(NamedTuple):
    """A reducer with the values of its laws.

    Attributes:
        reducer: the reducer.
        values: values of a field.
        updates: updates of it.
        neutral: an update that changes nothing; None if there is none.
        regroups: whether folding two updates one after the other equals folding their combination in.
    """

    reducer: Reducer
    values: st.SearchStrategy[Any]
    updates: st.SearchStrategy[Any]
    neutral: Any = None
    regroups: bool = False


message = st.builds(lambda key, text: {"id": key, "text": text}, words, words)
said = st.builds(lambda key: {"id": key, "role": "user", "content": key}, words)

ROWS = [
    Row(reducers.append, st.lists(words), words),
    Row(reducers.log, st.lists(words), words),
    Row(reducers.extend, st.lists(words), st.lists(words), [], regroups=True),
    Row(reducers.update, st.dictionaries(words, numbers), st.dictionaries(words, numbers), {}, regroups=True),
    Row(reducers.increment, numbers, numbers, 0, regroups=True),
    Row(reducers.union, st.sets(words), st.sets(words), set(), regroups=True),
    Row(
        reducers.add_messages,
        st.lists(message, unique_by=lambda each: each["id"]),
        st.lists(message),
        [],
        regroups=True,
    ),
    Row(
        reducers.conversation,
        st.lists(said, unique_by=lambda each: each["id"]),
        st.lists(said),
        [],
        regroups=True,
    ),
    Row(reducers.min, numbers, numbers, regroups=True),
    Row(reducers.max, numbers, numbers, regroups=True),
    Row(reducers.patch, st.dictionaries(words, numbers), st.dictionaries(words, numbers | st.none()), {}),
    Row(reducers.replace, numbers, numbers),
    Row(
        reducers.conversations,
        st.dictionaries(words, st.lists(said, unique_by=lambda each: each["id"])),
        st.dictionaries(words, st.lists(said)),
        {},
        regroups=True,
    ),
    Row(Reducer.of(operator.add), st.lists(words), st.lists(words), [], regroups=True),
    Row(Reducer.of(lambda current, update: current * 2 + update), numbers, numbers),
]


def rows(choose: Callable[[Row], bool] = lambda row: True) -> pytest.MarkDecorator:
    chosen = [row for row in ROWS if choose(row)]
    return pytest.mark.parametrize("row", chosen, ids=[row.reducer.name for row in chosen])


def test_every_built_in_is_in_the_table() -> None:
    assert {row.reducer.name for row in ROWS} >= set(reducers.BUILT_IN)
    assert all(getattr(reducers, name) is reducer for name, reducer in reducers.BUILT_IN.items())
    checked = [one for one in reducers.BUILT_IN.values() if one.folds]  # the others are as a field without one
    assert not [one for one in checked if one.check is None or one.update_type is None]


@rows()
@given(data=st.data())
def test_law_a_fold_does_not_change_its_arguments(row: Row, data: st.DataObject) -> None:
    value, update = data.draw(row.values), data.draw(row.updates)
    given_value, given_update = copy.deepcopy(value), copy.deepcopy(update)
    new = row.reducer(value, update)
    assert (value, update) == (given_value, given_update)
    assert same(new, freeze(new))
    assert same(new, row.reducer(value, update))


@rows(lambda row: row.neutral is not None)
@given(data=st.data())
def test_law_a_neutral_update_changes_nothing(row: Row, data: st.DataObject) -> None:
    value = freeze(data.draw(row.values))
    assert same(row.reducer(value, row.neutral), value)


@rows(lambda row: row.regroups)
@given(data=st.data())
def test_law_updates_can_be_combined_where_the_row_claims_it(row: Row, data: st.DataObject) -> None:
    """fold(fold(v, a), b) == fold(v, fold(a, b)): so that a subgraph can return one update."""
    value, one, two = data.draw(row.values), data.draw(row.updates), data.draw(row.updates)
    in_turn = row.reducer(row.reducer(value, one), two)
    if row.reducer is reducers.add_messages:  # an update may hold one id twice, a value may not
        one = plain(row.reducer([], one))
    at_once = row.reducer(value, row.reducer(one, two))
    assert same(in_turn, at_once)


@given(updates=st.lists(st.dictionaries(words, st.lists(said)), max_size=4))
def test_law_each_key_folds_like_a_field_of_its_own(updates: Any) -> None:
    value: Any = DELETE
    alone: dict[str, Any] = {}
    for update in updates:
        value = reducers.conversations(value, update)
        alone |= {key: reducers.conversation(alone.get(key, DELETE), part) for key, part in update.items()}
    assert (value if updates else {}) == alone


def test_conversations_by_key_two_branches_write_one_key_and_new_keys() -> None:
    class Pads(BaseModel):
        pads: Annotated[dict[str, list[dict[str, Any]]], reducers.conversations] = {}

    def said_by(*names: str) -> Callable[[], dict[str, Any]]:
        return lambda: {"pads": {name: {"role": "user", "content": name} for name in names}}

    graph = Graph(Pads).add_node("one", said_by("a", "b"), writes=["pads"])
    graph.add_node("two", said_by("b", "c"), writes=["pads"]).add_node("end", lambda: None, writes=[])
    graph.add_edge(START, ["one", "two"]).add_edge(["one", "two"], "end").add_edge("end", END)
    run = graph.compile(store=":memory:").thread("t").run({})
    assert {key: len(chat) for key, chat in run.state["pads"].items()} == {"a": 1, "b": 2, "c": 1}
    assert len({message["id"] for message in run.state["pads"]["b"]}) == 2
    assert not run.conflicts
    drop = Graph(Pads).add_node("drop", lambda: {"pads": Replace({})}, writes=["pads"]).add_path(START, "drop", END)
    with pytest.raises(NodeOutputError, match="never removed"):
        drop.compile()()


def test_a_mapping_of_conversations_that_is_handed_from_run_to_run_loses_no_message() -> None:
    """The commits of both runs have the same ids."""

    class Pads(BaseModel):
        pads: Annotated[dict[str, list[dict[str, Any]]], reducers.conversations] = {}

    said = {"pads": {"a": {"role": "user", "content": "hi"}}}
    graph = Graph(Pads, inputs=["pads"]).add_node("say", lambda: said, writes=["pads"])
    program = graph.add_path(START, "say", END).compile()
    run = program.run({"pads": program.run({}).state["pads"]})
    assert run.status == "completed", run.error
    assert len({message["id"] for message in run.state["pads"]["a"]}) == 2


@each(
    ("reducer", "update", "value"),
    [
        (reducers.append, "a", ["a"]),
        (reducers.extend, ["a"], ["a"]),
        (reducers.update, {"a": 1}, {"a": 1}),
        (reducers.increment, 2, 2),
        (reducers.union, {"a"}, {"a"}),
        (reducers.add_messages, [{"id": "1"}], [{"id": "1"}]),
        (reducers.min, 3, 3),
        (reducers.max, "x", "x"),
        (reducers.replace, None, None),
        (Reducer.of(operator.add), ["first"], ["first"]),
    ],
)
def test_the_start_value_of_a_field_without_a_value(reducer: Reducer, update: Any, value: Any) -> None:
    assert plain(reducer(DELETE, update)) == value


@each(
    ("reducer", "current", "update", "expected"),
    [
        (reducers.append, ["a"], ["b"], ["a", ["b"]]),
        (reducers.extend, ["a"], ("b",), ["a", "b"]),
        (reducers.update, {"a": {"x": 1}, "b": 1}, {"a": {"y": 2}, "c": None}, {"a": {"y": 2}, "b": 1, "c": None}),
        (reducers.increment, 0.5, 1, 1.5),
        (reducers.increment, Decimal("0.1"), Decimal("0.2"), Decimal("0.3")),
        (reducers.union, {"a"}, ["b", "a"], {"a", "b"}),
        (reducers.union, frozenset("a"), {"b"}, frozenset("ab")),
        (reducers.min, 3, 2, 2),
        (reducers.max, "a", "b", "b"),
        (reducers.patch, {"a": {"x": 1}, "b": 1}, {"a": {"y": 2}, "b": None}, {"a": {"x": 1, "y": 2}}),
        (reducers.patch, {"a": 1}, 5, 5),
        (Reducer.of(max), 3, 4, 4),
    ],
)
def test_each_reducer_folds_as_documented(reducer: Reducer, current: Any, update: Any, expected: Any) -> None:
    result = plain(reducer(current, update))
    assert result == expected
    assert type(result) is type(expected)


@each(
    ("reducer", "update", "text"),
    [
        (reducers.extend, "abc", "reducer 'extend' takes a list of items, not str 'abc'; return ['abc']"),
        (reducers.extend, 5, "return [5], or give the field reducers.append"),
        (reducers.extend, {"a": 1}, "return [{'a': 1}]"),
        (reducers.extend, {"b", "a"}, "in the order that is meant"),
        (reducers.extend, iter("ab"), "return them as a list"),
        (reducers.extend, None, "leave the field out to change nothing, or return DELETE to reset it"),
        (reducers.update, ["a"], "reducer 'update' takes a dict of the keys to set, not list ['a']"),
        (reducers.update, {"a": DELETE}, "Replace({...}) with the whole dict"),
        (reducers.conversations, ["a"], "reducer 'conversations' takes a dict of messages by key, not list ['a']"),
        (reducers.conversations, {"k": "a"}, "not str 'a'"),
        (reducers.conversations, {"k": DELETE}, "not _Delete DELETE"),
        (reducers.increment, "5", "reducer 'increment' takes the amount to add, not str '5'"),
        (reducers.increment, True, "return a number"),
        (reducers.increment, None, "leave the field out"),
        (reducers.increment, [1], "return a number"),
        (reducers.union, "abc", "return {'abc'}"),
        (reducers.add_messages, "hello", "a message is a dict such as"),
        (reducers.add_messages, [{"id": "1"}, 5], "not int 5"),
    ],
)
def test_an_invalid_update_is_refused_with_the_fix(reducer: Reducer, update: Any, text: str) -> None:
    with pytest.raises(NodeOutputError) as refusal:
        reducer(DELETE, update)
    assert text in str(refusal.value)


def test_long_lists_are_not_copied() -> None:
    many = freeze([{"n": n} for n in range(5000)])
    longer = reducers.extend(many, [{"n": -1}])
    assert len(longer) == 5001
    assert all(one is two for one, two in zip(many, longer, strict=False))
    assert reducers.extend(many, []) is many
    assert reducers.union(frozen := freeze({"a", "b"}), {"a"}) is frozen
    assert reducers.update(frozen_dict := freeze({"a": 1}), {}) is frozen_dict


def test_a_message_with_a_known_id_replaces_the_earlier_one() -> None:
    before = [{"id": "1", "text": "a"}, {"id": "2", "text": "b"}]
    after = reducers.add_messages(
        before, [{"id": "3", "text": "c"}, {"id": "1", "text": "A"}, {"id": "3", "text": "C"}]
    )
    assert plain(after) == [{"id": "1", "text": "A"}, {"id": "2", "text": "b"}, {"id": "3", "text": "C"}]


def assign_ids(update: Any, commit_id: str, current: Any = DELETE) -> Any:
    """An update of `add_messages` with the ids that a commit gives it."""
    assert reducers.add_messages.assign_ids is not None
    return reducers.add_messages.assign_ids(update, commit_id, current)


def test_missing_ids_are_derived_from_the_commit() -> None:
    given_message = {"text": "hi"}
    with_ids = assign_ids([given_message, {"id": "own"}], "0.1:4")
    assert [each["id"] for each in with_ids] == ["0.1:4/0", "own"]
    assert with_ids == assign_ids([given_message, {"id": "own"}], "0.1:4")
    assert given_message == {"text": "hi"}
    frozen = assign_ids(freeze({"text": "hi"}), "c")
    assert isinstance(frozen[0], FrozenDict)
    assert frozen == [{"text": "hi", "id": "c/0"}]


def test_a_derived_id_is_never_in_use() -> None:
    """A conversation handed from run to run, whose commits have the same ids, loses no message."""
    current = freeze([{"id": "c/0"}, {"id": "c/0~2"}])
    with_ids = assign_ids([{"text": "a"}, {"text": "b"}, {"id": "c/1"}], "c", current)
    assert [each["id"] for each in with_ids] == ["c/0~3", "c/1~2", "c/1"]
    assert len(reducers.add_messages(current, {"text": "new"})) == 3


def test_messages_as_objects() -> None:
    class Message(BaseModel):
        text: str
        id: str | None = None

    @dataclass
    class Note:
        text: str
        id: str | None = None

    for kind in (Message, Note):
        one = kind(text="a")
        with_ids = assign_ids(one, "c")
        assert [each.id for each in with_ids] == ["c/0"]
        assert one.id is None
        both = reducers.add_messages(reducers.add_messages([], with_ids), kind(text="A", id="c/0"))
        assert [(each.id, each.text) for each in both] == [("c/0", "A")]
    with pytest.raises(NodeOutputError, match="without an id"):
        assign_ids(type("Odd", (), {"id": None})(), "c")


class Anonymous(TypedDict):
    text: str


class Bare(BaseModel):
    text: str


@pytest.mark.parametrize("kind", [Anonymous, Bare, str])
def test_message_types_without_an_id_are_refused_at_once(kind: Any) -> None:
    assert reducers.add_messages.update_type is not None
    with pytest.raises(TypeError, match=f"{kind.__name__} has none: add `id"):
        reducers.add_messages.update_type(list[kind])


def test_ids_in_long_lists_are_found_by_an_index() -> None:
    """The places of the ids are right after many folds, also for lists that were folded long before."""
    history = [freeze([])]
    for n in range(300):
        history.append(reducers.add_messages.fold(history[-1], freeze([{"id": str(n % 200), "n": n}])))
    assert [each["n"] for each in history[-1]] == [*range(200, 300), *range(100, 200)]
    old = reducers.add_messages.fold(history[150], freeze([{"id": "70", "n": -1}, {"id": "new", "n": -2}]))
    assert len(old) == 151
    assert old[70]["n"] == -1
    assert history[150][70]["n"] == 70


def test_a_function_that_mutates_is_caught() -> None:
    def mutate(current: Any, update: Any) -> Any:
        current.append(update)
        return current

    with pytest.raises(ImmutableError):
        Reducer.of(mutate)(["a"], "b")


def test_a_result_that_a_state_cannot_hold_is_refused() -> None:
    with pytest.raises(UnsupportedValueError):
        Reducer.of(lambda current, update: iter(current))(["a"], "b")


def test_a_function_gets_frozen_values() -> None:
    seen: list[Any] = []

    def spy(current: Any, update: Any) -> Any:
        seen.extend([current, update])
        return current + update

    assert Reducer.of(spy)(["a"], ["b"]) == ["a", "b"]
    assert all(isinstance(each, FrozenList) for each in seen)


def one_argument(current: Any) -> Any:
    return current


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        ("extend", "reducers.extend"),
        (5, "5 is no reducer"),
        (list, "is no reducer"),
        (one_argument, "'one_argument' must take two arguments"),
        (lambda: None, "must take two arguments"),
    ],
)
def test_objects_that_are_no_reducers_are_refused(thing: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Reducer.of(thing)


@each(
    ("reducer", "annotation", "expected"),
    [
        (reducers.extend, list[str], list[str]),
        (reducers.extend, list, list[Any]),
        (reducers.extend, list[str] | None, list[str]),
        (reducers.extend, Any, list[Any]),
        (reducers.append, list[int], int),
        (reducers.update, dict[str, int], dict[str, int]),
        (reducers.union, frozenset[str], set[str]),
        (reducers.increment, int | None, int),
        (reducers.max, float, float),
        (reducers.conversations, dict[str, list[dict[str, Any]]], dict[str, list[dict[str, Any]]]),
        (reducers.conversations, list[int], TypeError),
        (reducers.conversations, dict[str, int], TypeError),
        (reducers.extend, str, TypeError),
        (reducers.append, dict[str, int], TypeError),
        (reducers.update, list[int], TypeError),
        (reducers.union, list[int], TypeError),
        (reducers.increment, str, TypeError),
        (reducers.increment, bool, TypeError),
    ],
)
def test_the_type_of_an_update(reducer: Reducer, annotation: Any, expected: Any) -> None:
    assert reducer.update_type is not None
    if expected is TypeError:
        with pytest.raises(TypeError, match=r"reducer '.*' needs a field of"):
            reducer.update_type(annotation)
    else:
        assert reducer.update_type(annotation) == expected


def test_updates_is_a_value() -> None:
    assert Updates(1, Updates(2, 3)) == Updates(1, 2, 3)
    assert Updates(1, 2).updates == (1, 2)
    assert Updates(1) != 1
    assert hash(Updates(1)) == hash(Updates(1))
    assert pickle.loads(pickle.dumps(Updates(1, Replace([2])))) == Updates(1, Replace([2]))
    assert repr(Updates(1, "a")) == "Updates(1, 'a')"
    with pytest.raises(UnsupportedValueError, match="field with a reducer"):
        freeze({"a": Updates(1)})


def test_reducers_can_be_copied_and_pickled() -> None:
    for reducer in reducers.BUILT_IN.values():
        assert copy.deepcopy(reducer) is reducer
        assert pickle.loads(pickle.dumps(reducer)) is reducer
        assert repr(reducer) == f"reducers.{reducer.name}"
    assert pickle.loads(pickle.dumps(Reducer.of(operator.add))) == Reducer.of(operator.add)
