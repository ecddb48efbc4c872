"""A sample of every type of value that a state supports, and `spoil`, which changes everything that can be changed."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import dspy
import numpy as np
from pydantic import AnyUrl, BaseModel, ConfigDict, HttpUrl, PrivateAttr, RootModel


class Color(enum.Enum):
    RED = "red"
    BLUE = ("blue", len)  # a value that JSON cannot say: the name counts


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    HI = "hi"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Point(NamedTuple):
    x: int
    y: Any = None


OldPoint = namedtuple("OldPoint", "x y")  # noqa: PYI024  # the untyped form


class Marked(namedtuple("Marked", "x y")):  # noqa: PYI024, SLOT002  # instances that can be given attributes
    pass


class UserId(str):
    __slots__ = ()


class Celsius(float):
    __slots__ = ()


class Moment(datetime):
    __slots__ = ()


@dataclasses.dataclass
class Doc:
    title: str
    tags: list[Any] = dataclasses.field(default_factory=list)
    child: Any = None

    @cached_property
    def size(self) -> int:
        return len(self.tags)


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    row: int
    column: int


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    row: int
    column: int


class Profile(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    links: list[HttpUrl] = []
    data: Any = None
    _seen: list[int] = PrivateAttr(default_factory=list)


class Tags(RootModel[list[str]]):
    pass


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    items: tuple[int, ...] = ()
    by_name: dict[str, list[int]] = {}


def profile() -> Profile:
    value = Profile(name="Ada", links=["https://example.org/a"], data={"k": (1, {2})}, more=[1])
    value._seen.append(3)
    return value


def prediction() -> Any:
    return dspy.Prediction.from_completions({"answer": ["a", "b"]})


SCALARS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "bool": lambda: True,
    "int": lambda: -7,
    "large int": lambda: 3**9000,
    "float": lambda: 0.1,
    "minus zero": lambda: -0.0,
    "infinity": lambda: float("-inf"),
    "nan": lambda: float("nan"),
    "str": lambda: 'text "quoted" ☃ \U0001f600 \x00',
    "lone surrogate": lambda: "\ud800\udc00",
    "bytes": lambda: b"\x00\xff",
    "complex": lambda: complex(-0.0, float("inf")),
    "Decimal": lambda: Decimal("1.10"),
    "Decimal nan": lambda: Decimal("-NaN"),
    "Fraction": lambda: Fraction(1, 3),
    "range": lambda: range(1, 9, 2),
    "datetime": lambda: datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001  # naive ones too
    "datetime utc": lambda: datetime(2026, 1, 2, tzinfo=UTC),
    "datetime zone": lambda: datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    "date": lambda: date(2026, 1, 2),
    "time": lambda: time(1, 2, 3, tzinfo=timezone(timedelta(hours=-3, seconds=1), "here")),
    "timedelta": lambda: timedelta(days=-1, microseconds=5),
    "timezone": lambda: timezone(timedelta(hours=5, minutes=30)),
    "ZoneInfo": lambda: ZoneInfo("Asia/Tokyo"),
    "Path": lambda: Path("/a/b"),
    "PurePosixPath": lambda: PurePosixPath("a/b"),
    "UUID": lambda: UUID(int=5),
    "IP": lambda: ip_address("::1"),
    "Enum": lambda: Color.RED,
    "Enum of an object": lambda: Color.BLUE,
    "IntEnum": lambda: Level.LOW,
    "StrEnum": lambda: Word.HI,
    "Flag": lambda: Access.READ | Access.WRITE,
    "safe str subclass": lambda: UserId("u1"),
    "safe float subclass": lambda: Celsius(1.5),
    "safe datetime subclass": lambda: Moment(2026, 1, 2, 3, tzinfo=UTC),
    "numpy int": lambda: np.int16(-3),
    "numpy float": lambda: np.float64(0.1),
    "numpy bool": lambda: np.bool_(True),
    "numpy datetime": lambda: np.datetime64("2026-01-02T03", "ns"),
    "numpy str": lambda: np.str_("é"),
}

CONTAINERS: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"b": 1, "a": {"c": [None]}},
    "dict with odd keys": lambda: {1: "a", None: "b", (1, b"x"): "c", Color.RED: "d", date(2026, 1, 1): "e", 1.5: "f"},
    "dict that looks tagged": lambda: {"$type": "set", "value": [1]},
    "dict with a lone surrogate": lambda: {"\udc00": 1},
    "large dict": lambda: {f"k{n}": [n] for n in range(100)},
    "OrderedDict": lambda: OrderedDict(b=[1], a=2),
    "defaultdict": lambda: defaultdict(list, {"a": [1]}),
    "list": lambda: [1, [2, {"a": 3}], []],
    "large list": lambda: [[n] for n in range(100)],
    "tuple": lambda: (1, ("a",), ()),
    "tuple of lists": lambda: ([1], {"a": [2]}),
    "tuple of models": lambda: (Doc("t", [1]), (np.arange(2),)),
    "namedtuple": lambda: Point(1, [2]),
    "old namedtuple": lambda: OldPoint(1, {"a": 2}),
    "namedtuple with attributes": lambda: Marked(1, [2]),
    "namedtuple of a model": lambda: Point(1, Doc("t")),
    "set": lambda: {1, "a", (2, "b")},
    "empty set": set,
    "frozenset": lambda: frozenset({1, 2}),
    "set of models": lambda: {Cell(1, 2), Cell(3, 4)},
}

MODELS: dict[str, Callable[[], Any]] = {
    "dataclass": lambda: Doc("t", [1, {"a": {2}}], Doc("u", child=(1, 2))),
    "frozen dataclass with slots": lambda: Cell(1, 2),
    "model": profile,
    "root model": lambda: Tags(["a"]),
    "frozen model": lambda: Strict(items=(1, 2), by_name={"a": [1]}),
    "url": lambda: AnyUrl("https://example.org/x"),
    "pattern": lambda: re.compile("a+", re.IGNORECASE),
    "Example": lambda: dspy.Example(q="x", docs=[1]).with_inputs("q"),
    "Prediction": lambda: dspy.Prediction(answer="a", parts=[{"b": 1}]),
    "Prediction of several": prediction,
    "History": lambda: dspy.History(messages=[{"question": "q", "answer": ["a"]}]),
    "Image": lambda: dspy.Image("https://example.org/i.png"),
    "ToolCalls": lambda: dspy.ToolCalls.from_dict_list([{"name": "search", "args": {"q": ["x"]}}]),
    "array": lambda: np.arange(6, dtype=">i4").reshape(2, 3),
    "float array with nan": lambda: np.array([0.0, -0.0, np.nan]),
    "structured array": lambda: np.array([(1, "a")], dtype=[("n", "<i4"), ("s", "<U3")]),
    "empty array": lambda: np.zeros((0, 3), dtype="datetime64[s]"),
}

SAMPLES: dict[str, Callable[[], Any]] = {**SCALARS, **CONTAINERS, **MODELS}
TYPES = [Color, Level, Word, Access, Point, OldPoint, Marked, UserId, Celsius, Moment, Doc, Cell, Profile, Tags, Strict]


def spoil(value: Any, seen: set[int] | None = None) -> int:
    """Change everything in a value and its parts that can be changed in place; return the number of changes."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    changes = sum(spoil(part, seen) for part in parts(value))
    for change in (
        lambda: value.__setitem__("spoilt", 1),
        lambda: value.append("spoilt"),
        lambda: value.add("spoilt"),
        lambda: value.fill(77) if value.dtype.kind in "if" else value.__setitem__(0, value[0]),
        lambda: setattr(value, "title", "spoilt"),
        lambda: setattr(value, "name", "spoilt"),
        lambda: setattr(value, "spoilt", 1),
        lambda: value.messages.append({}),
    ):
        try:
            change()
        except (TypeError, AttributeError, ValueError, IndexError, NotImplementedError):
            continue
        changes += 1
    return changes


def parts(value: Any) -> list[Any]:
    if isinstance(value, type) or callable(value):
        return []
    if isinstance(value, enum.Enum):
        return []
    if hasattr(value, "items") and callable(value.items) and not isinstance(value, dspy.Example):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    attributes = list(getattr(value, "__dict__", {}).values())
    return attributes + list((getattr(value, "__pydantic_private__", None) or {}).values())
