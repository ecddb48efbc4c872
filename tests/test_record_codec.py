"""Records as JSON and back: what a class declares is what is written and read, strictly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from dspyer import DELETE, Failure, ImmutableState, Replace
from dspyer.events import Commit, Exchange, FieldShape, LMCall, MergedConflict, Question
from dspyer.record_codec import Update, decode, encode, short_encoder
from tests.event_samples import sample
from tests.plain_values import frozen
from tests.rows import each

if TYPE_CHECKING:
    from decimal import Decimal

EMPTY = ImmutableState()
VALUES = frozen({"pair": (1, b"x"), "members": {1, 2}})


@dataclass(frozen=True)
class Inner:
    """A record in another one."""

    n: int
    at: datetime = datetime(2024, 5, 17, tzinfo=UTC)


@dataclass(frozen=True)
class Sample:
    """A record with a field of each type."""

    name: str
    update: Update
    ratio: float = 0.0
    ok: bool = False
    value: Any = None
    pair: tuple[str, int] = ("", 0)
    inner: tuple[Inner, ...] = ()
    by_name: Mapping[str, int] = field(default_factory=dict, metadata={"key": "by"})
    failure: Failure | None = None
    state: ImmutableState = EMPTY
    cost: Decimal | None = None  # a type that is not there when the program runs

    @property
    def loud(self) -> str:
        """The name, loud."""
        return self.name.upper()


FULL = Sample(
    "a",
    {"x": DELETE, "y": Replace(frozen([1]))},
    0.5,
    True,
    VALUES,
    ("b", 2),
    (Inner(1), Inner(2, datetime(2025, 1, 1, tzinfo=UTC))),
    {"k": 3},
    Failure(node="n", type="ValueError", message="odd"),
    ImmutableState({"n": (1, 2)}),
)


RECORDS: list[Any] = [FULL, Sample("a", None), Sample("a", None, math.inf)]
RECORDS += [sample(cls, VALUES) for cls in (Commit, Exchange, FieldShape, LMCall, MergedConflict, Question)]


@each("omit", [False, True])
@each("record", RECORDS, lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: Any, omit: bool) -> None:
    cls: Any = type(record)
    found = json.loads(json.dumps((short_encoder(cls) if omit else encode)(record), allow_nan=False))
    assert decode(cls, found) == record


def test_defaults_and_fields_are_left_out_on_demand() -> None:
    assert short_encoder(Sample)(Sample("a", 1)) == {"name": "a", "update": 1}
    found = short_encoder(Sample, ("name",))(Sample("a", 1, value=0, by_name={"k": 1}))
    assert found == {"update": 1, "value": 0, "by": {"k": 1}}
    assert encode(FULL)["loud"] == "A"


def test_values_are_read_by_the_function_that_is_given() -> None:
    found = short_encoder(Sample)(Sample("a", {"x": 5}, value=6))
    read = decode(Sample, found, lambda value: ("read", value))
    assert (read.value, read.update) == (("read", 6), {("read", "x"): ("read", 5)})


@each(
    "data, error",
    [
        ([], r"Inner: \[\] is no JSON object"),
        ({"n": 1, "m": 2}, "Inner: the key 'm' is unknown"),
        ({}, "Inner: .*'n'"),
        ({"n": "1"}, "Inner.n: '1' cannot be read: it is no int"),
        ({"n": True}, "it is no int"),
        ({"n": 1, "at": "today"}, "Inner.at: 'today' cannot be read"),
    ],
)
def test_malformed_data_is_named(data: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        decode(Inner, data)


@each("key, value", [("ratio", "x"), ("by", [1]), ("inner", {}), ("failure", {})])
def test_malformed_parts_are_named(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"Sample\.{key}: "):
        decode(Sample, {"name": "a", "update": 1, key: value})


def test_an_exception_is_written_and_not_read() -> None:
    @dataclass(frozen=True)
    class Broken:
        error: BaseException

    assert encode(Broken(ValueError("odd"))) == {"error": {"type": "ValueError", "message": "odd", "notes": []}}
    with pytest.raises(ValueError, match="declare a Failure"):
        decode(Broken, {"error": {}})
