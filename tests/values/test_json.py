"""The JSON form: round trips of every supported value, in any process, without pickle and without importing by name."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, tzinfo
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspyer import ImmutableState, register_value_type
from dspyer.errors import StateError
from tests.plain_values import MAX_DEPTH, plain, same
from tests.plain_values import frozen as frozen_value
from tests.rows import each
from tests.value_samples import SAMPLES, TYPES, Access, Color, Doc, Point, Profile

TAG = "$type"  # the key of a value that JSON does not have


def to_json(value: object) -> str:
    return ImmutableState({"root": value}).to_json()


def from_json(text: str, types: Iterable[type] = ()) -> Any:
    return ImmutableState.from_json(text, types=types).raw("root")


make_of = each("make", SAMPLES.values(), ids=SAMPLES.keys())


@make_of
def test_every_supported_value_survives_a_round_trip(make: Callable[[], Any]) -> None:
    frozen = frozen_value({"x": make(), "l": [make()], "t": (make(), 1)})
    text = to_json(frozen)
    back = from_json(text, types=TYPES)
    assert same(back, frozen)
    assert list(back["x"]) == list(frozen["x"]) if isinstance(make(), dict) else True
    assert to_json(back) == text


@make_of
def test_the_text_is_strict_json_in_utf8(make: Callable[[], Any]) -> None:
    text = to_json(frozen_value({"x": make()}))
    text.encode()

    def no_constant(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    json.loads(text, parse_constant=no_constant)


def test_values_that_json_has_are_written_unchanged() -> None:
    value = {"s": "é", "n": 1, "f": 0.5, "b": [True, None], "d": {"a": {}}}
    assert json.loads(to_json(frozen_value(value))) == {"root": value}
    assert "é" in to_json(frozen_value(value))


@each(
    "value",
    [
        {TAG: "set", "value": [1]},
        {TAG: "dict", "value": []},
        {TAG: {TAG: None}},
        {TAG: "unknown"},
        {"a": [{TAG: "tuple", "value": []}]},
        {1: {TAG: "tuple"}},
        {"\ud800": 1},
    ],
)
def test_a_dict_with_the_key_of_tags_survives_a_round_trip(value: Any) -> None:
    assert same(from_json(to_json(frozen_value(value))), frozen_value(value))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=4)
    | st.binary(max_size=3)
    | st.complex_numbers()
    | st.decimals()
    | st.fractions()
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=False)
    | st.times()
    | st.timedeltas()
    | st.sampled_from([*Color, Access.READ, Access(0)]),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(st.sampled_from(["a", TAG, "value", 1, None, (1, "b")]), below, max_size=3)
        | st.tuples(below, below)
        | st.builds(Point, below, below)
        | st.frozensets(st.integers() | st.text(max_size=2), max_size=3)
        | st.builds(Doc, st.text(max_size=2), st.lists(below, max_size=2), below)
        | st.builds(lambda data: Profile.model_construct(name="n", data=data), below)
    ),
    max_leaves=10,
)


@given(value=values)
def test_arbitrary_values_survive_a_round_trip(value: Any) -> None:
    frozen = frozen_value({"x": value})
    assert same(from_json(to_json(frozen), types=TYPES), frozen)


def test_values_of_the_greatest_depth_survive_a_round_trip() -> None:
    value: Any = 1
    for level in range(MAX_DEPTH - 1):
        value = {level: value} if level % 2 else (value,)
    frozen = frozen_value(value)
    assert same(from_json(to_json(frozen)), frozen)


class Other(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=2)

    def dst(self, when: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, when: datetime | None) -> str:
        return "other"


def test_a_foreign_time_zone_becomes_its_offset() -> None:
    when = datetime(2026, 1, 2, tzinfo=Other())
    back = from_json(to_json(frozen_value({"x": when})))["x"]
    assert back == when
    assert back.utcoffset() == timedelta(hours=2)


UNKNOWN = [
    (
        '{"x": {"$type": "dataclass", "class": "os:system", "value": {}}}',
        r"names the class os:system.*types=\[system\]",
    ),
    ('{"x": {"$type": "model", "class": "dspy:settings", "value": {}}}', "dspy:settings, which is unknown"),
    ('{"x": {"$type": "model", "class": "dspy.primitives.example:Nope", "value": {}}}', "unknown"),
    ('{"x": {"$type": "enum", "class": "m:Color", "value": "RED"}}', "register_value_type"),
    ('{"x": {"$type": "registered", "class": "m:C", "value": 1}}', "register_value_type"),
    ('{"x": {"$type": "nonsense", "value": 1}}', "tagged 'nonsense'"),
    (
        '{"x": {"$type": "dataclass", "class": "tests.value_samples:Color", "value": {}}}',
        "Color as a dataclass, which the class is not",
    ),
    ('{"x": {"$type": "uuid", "value": "zz"}}', "not the JSON form"),
    ('{"x": {"$type": "set"}}', "not the JSON form"),
    ('{"x": {"$type": "dict", "value": 5}}', "not the JSON form"),
    ('{"x": {"$type": ["set"]}}', "not the JSON form"),
    ('{"x": {"$type": "enum", "class": "tests.value_samples:Color", "value": "GREEN"}}', "not the JSON form"),
    ("{", "not the JSON form"),
    ("[" * 100_000, "deeper than"),
    ("[" * 500 + "]" * 500, "deeper than"),
]


@each(("text", "error"), UNKNOWN)
def test_text_of_unknown_or_malformed_values_raises(text: str, error: str) -> None:
    with pytest.raises(StateError, match=error):
        ImmutableState.from_json(text, types=[Color])


@pytest.mark.parametrize("text", ["[]", "1", '{"$type": "set", "value": []}'])
def test_a_state_is_read_from_a_json_object_only(text: str) -> None:
    with pytest.raises(StateError, match="is an object, not a"):
        ImmutableState.from_json(text)


def test_a_class_is_found_by_name_once_it_is_registered() -> None:
    class Grade(Point):
        __slots__ = ()

    text = to_json(frozen_value({"x": Grade(1, [2])}))
    with pytest.raises(StateError, match="Grade"):
        from_json(text)
    register_value_type(Grade)
    assert type(from_json(text)["x"]) is Grade


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def test_a_registered_type_survives_a_round_trip() -> None:
    register_value_type(Money, encode=lambda money: (money.cents, {"x"}), decode=lambda parts: Money(parts[0]))
    back = from_json(to_json(frozen_value({"x": Money(7)})))
    assert back["x"].cents == 7


def test_arrays_are_read_only_if_numpy_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    text = to_json(frozen_value({"x": np.arange(2)}))
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(StateError, match="import numpy first"):
        from_json(text)


def test_arrays_that_were_read_are_writable() -> None:
    back = plain(from_json(to_json(frozen_value({"x": np.arange(2)}))))
    back["x"][0] = 5
    assert back["x"].tolist() == [5, 1]


def test_numbers_keep_their_type() -> None:
    back = from_json(to_json(frozen_value({"a": 1, "b": 1.0, "c": True, "d": -0.0, "e": 3**10_000})))
    assert [type(value) for value in back.values()] == [int, float, bool, float, int]
    assert math.copysign(1, back["d"]) == -1
    assert back["e"] == 3**10_000
