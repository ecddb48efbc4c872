"""Plain copies of frozen values: each is independent of the others, and few calls make one."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr

from tests.plain_values import frozen as frozen_value
from tests.plain_values import plain, same
from tests.rows import each


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str = "a"
    tags: list[str] = []
    more: dict[str, Any] = {}


class Closed(BaseModel):
    parts: list[Open] = []
    seen: set[int] = {1}
    pair: tuple[int, list[int]] = (1, [2])
    _notes: list[str] = PrivateAttr(default_factory=list)


@dataclass
class Record:
    rows: list[list[float]] = field(default_factory=lambda: [[1.0], []])
    inner: Open = field(default_factory=Open)


def spoil(value: Any) -> None:
    """Change a plain value, and everything in it, in place."""
    if isinstance(value, dict):
        for part in list(value.values()):
            spoil(part)
        value["spoilt"] = True
    elif isinstance(value, (list, tuple)):
        for part in list(value):
            spoil(part)
        if isinstance(value, list):
            value.append("spoilt")
    elif isinstance(value, set):
        value.add("spoilt")
    elif isinstance(value, BaseModel):
        spoil(value.__dict__)
        for part in (value.__pydantic_fields_set__, value.__pydantic_extra__, value.__pydantic_private__):
            spoil(part)
    elif isinstance(value, Record):
        spoil(vars(value))


VALUES: dict[str, Callable[[], Any]] = {
    "empty": lambda: [{}, [], set(), (), [[]], {"a": {}}],
    "flat": lambda: {"n": 1, "x": 1.5, "none": None},
    "nested": lambda: {"a": [{"b": [1, {"c": (1, [2])}]}], "d": {1, 2}},
    "long": lambda: [{"n": [n]} for n in range(200)],
    "long and flat": lambda: list(range(200)),
    "wide": lambda: {str(n): [n] for n in range(200)},
    "wide and flat": lambda: {str(n): n for n in range(200)},
    "model": lambda: Open(name="b", tags=["c"], more={"d": [1]}, other=[1]),
    "model with defaults": Open,
    "model with all fields": lambda: Open(name="b", tags=[], more={}),
    "nested models": lambda: Closed(parts=[Open(), Open(other={})], seen={2}),
    "dataclass": Record,
    "models in containers": lambda: [{"a": Open()}, (Closed(),), [Record()]],
}


@each("name", VALUES)
def test_copies_are_independent(name: str) -> None:
    frozen = frozen_value(VALUES[name]())
    for _ in range(3):  # what a first copy prepares is used by the later ones
        copy = plain(frozen)
        assert same(frozen_value(copy), frozen_value(VALUES[name]()))
        assert type(copy) is type(VALUES[name]())
        spoil(copy)


def test_a_copied_model_is_complete() -> None:
    given = Closed(parts=[Open(name="b", other=1)])
    given._notes.append("kept")
    frozen = frozen_value(given)
    for _ in range(2):
        copy = plain(frozen)
        assert copy == given
        assert copy.model_fields_set == {"parts"}
        assert copy._notes == ["kept"]
        assert copy.parts[0].model_extra == {"other": 1}
        assert copy.parts[0].model_fields_set == {"name", "other"}
        assert Closed.model_validate_json(copy.model_dump_json()) == Closed.model_validate_json(given.model_dump_json())


def calls(function: Callable[[], Any]) -> int:
    """How many calls of Python functions a call makes."""
    count = 0

    def profile(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()  # what is called when garbage is collected would count, too
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize(
    ("item", "most"),
    [
        (lambda n: n, 0),  # Python's own list copy
        (lambda n: {"n": n, "text": "x"}, 2),
        (lambda n: [n, n], 2),
        (lambda n: Open(name=str(n)), 6),
        (lambda n: Open(name=str(n), tags=["a"], more={"n": n}), 6),
    ],
)
def test_a_second_copy_makes_few_calls_for_each_item(item: Callable[[int], Any], most: int) -> None:
    frozen = frozen_value([item(n) for n in range(1000)])
    plain(frozen)
    assert calls(lambda: plain(frozen)) <= most * 1000 + 60  # and a few to read the list
