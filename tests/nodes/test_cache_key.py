"""Keys of the node cache: equal exactly where the function, its node and what a call reads are the same."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import json
import linecache
import math
import os
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import dspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, Cache, Command, Context, Graph, ImmutableState
from dspyer.errors import GraphError
from dspyer.nodes.cache_key import key_of
from dspyer.values.freezing import freeze, same
from tests.nodes.kit import call_of
from tests.rows import each

# --- what a call reads


def reader(value: Any) -> Any:
    """Any function of one field."""


NODE = Graph(name="g").add_node("node", reader, writes=[], cache=True).add_path(START, "node", END).compile().graph


def key(value: Any, overlay: dict[str, Any] | None = None) -> str:
    plan = NODE.policies["node"].cache
    assert plan is not None
    return key_of(plan, NODE.nodes["node"], call_of({"value": value}, overlay=overlay))


class Color(enum.Enum):
    RED = 1


class Shade(enum.IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int


class Spot(NamedTuple):
    x: int


class Doc(BaseModel):
    text: str = "a"


class Page(BaseModel):
    text: str = "a"


@dataclasses.dataclass
class Row:
    text: str = "a"


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

DIFFERENT: dict[str, list[Any]] = {
    "bool, int, float, decimal": [True, 1, 1.0, Decimal(1), "1", "True", Color.RED, Shade.RED, np.int64(1), 1 + 0j],
    "zeros": [False, 0, 0.0, -0.0, None, "", b"", Decimal("0.0"), Decimal("0.00"), timedelta(0)],
    "not a number": [math.nan, math.inf, -math.inf, "nan"],
    "text and bytes": ["a", b"a", ["a"], ("a",), {"a"}, frozenset({"a"}), {"a": "a"}, {"a": None}],
    "empty": [[], (), {}, set(), frozenset(), "", None],
    "nesting": [[[1], 2], [1, [2]], [1, 2], [[1, 2]], [[1], [2]], ["[1, 2]"], "[1, 2]"],
    "order": [[1, 2], [2, 1], {"a": 1, "b": 2}, {"b": 2, "a": 1}, (1, 2), (2, 1)],
    "keys": [{"1": 0}, {1: 0}, {True: 0}, {1.0: 0}, {(1,): 0}],
    "the tag of JSON": [{"$type": "tuple", "value": [1]}, (1,), {"$type": "tuple"}],
    "times": [
        NOON,
        NOON.replace(tzinfo=None),
        NOON.astimezone(timezone(timedelta(hours=1))),
        NOON.astimezone(ZoneInfo("Europe/Paris")),
        NOON.date(),
        NOON.timetz(),
        NOON.isoformat(),
    ],
    "classes": [Doc(), Page(), Row(), Point(1), Spot(1), (1,), {"text": "a"}],
    "fields that were set": [Doc(), Doc(text="a")],
    "arrays": [
        np.zeros(2, "int64"),
        np.zeros(2, "float64"),
        np.zeros(2, "uint64"),
        np.zeros(2, "<M8[s]"),
        np.zeros((2, 1), "int64"),
        np.zeros(4, "int32"),
        [0, 0],
    ],
    "scalars of numpy": [np.float32(1), np.float64(1), np.int32(1), np.int64(1), np.bool_(True)],
    "surrogates": ["\ud800", "\\ud800", "?"],
    "large": [2**1030, float(2**1000), 2**1000, str(2**1000)],
}


@each("values", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_different_reads_have_different_keys(values: list[Any]) -> None:
    assert len({key(value) for value in values}) == len(values)
    assert len({key(0, {"value": value}) for value in values}) == len(values), "of a Send, too"
    assert [key(value) for value in values] == [key(0, {"value": value}) for value in values]


def test_equal_reads_have_equal_keys() -> None:
    large = {f"k{index}": index for index in range(200)}
    for one, other in [
        (math.nan, float("nan")),
        ({1, 2, 3}, {3, 2, 1}),
        ({"abc", "b", 1}, {1, "b", "abc"}),
        (large, dict(large)),
        (Doc(text="x"), Doc(text="x")),
        (np.arange(3), np.arange(3)),
        ([Row()], freeze([Row()])),
        (NOON, datetime.fromisoformat(NOON.isoformat())),
    ]:
        assert key(one) == key(other)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([0.0, -0.0, 1.0, 2.0, math.nan, math.inf])
    | st.sampled_from(["", "a", "1", "$type", "tuple", "\ud800"])
    | st.sampled_from([b"", b"a", Decimal(1), Decimal("1.0"), Color.RED, Shade.RED, NOON])
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.lists(inner, max_size=3)
    keys = st.sampled_from(["a", "b", "$type", "value", 1, True])
    hashable = st.lists(st.sampled_from([0, 1, "a", b"a", None, (1,)]), max_size=3)
    return (
        parts
        | parts.map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | hashable.map(set)
        | hashable.map(frozenset)
    )


VALUES = st.recursive(SCALARS, _containers, max_leaves=6)


def ordered(value: Any) -> Any:
    """The value with the order of its dicts in view, which `same` does not compare."""
    if isinstance(value, dict):
        return [(name, ordered(part)) for name, part in value.items()]
    return type(value)(map(ordered, value)) if isinstance(value, list | tuple) else value


@given(st.lists(VALUES, min_size=2, max_size=12))
def test_keys_are_equal_exactly_for_equal_reads(values: list[Any]) -> None:
    for one, other in itertools.combinations(values, 2):
        equal = same(one, other) and same(freeze(ordered(one)), freeze(ordered(other)))
        assert (key(one) == key(other)) is equal


# --- which function it is


def plan_of(fn: Any, node: str = "node", graph: str = "g", cache: Any = True, **options: Any) -> str:
    built = Graph(name=graph).add_node(node, fn, cache=cache, **{"writes": [], **options})
    plan = built.add_path(START, node, END).compile().graph.policies[node].cache
    assert plan is not None
    return plan.identity


class Search:
    def __init__(self, index: Any, **more: Any) -> None:
        self.index = index
        self.__dict__.update(more)

    def __call__(self, value: Any) -> None:
        self.look(value)

    def look(self, value: Any) -> None:
        """Looks it up."""


class Slotted:
    __slots__ = ("index",)

    def __init__(self, index: Any) -> None:
        self.index = index

    def __call__(self, value: Any) -> None: ...


def takes_index(value: Any, index: Any) -> None: ...


def closes_over(index: Any) -> Callable[..., None]:
    def reads(value: Any) -> None:
        print(index)

    return reads


def defaults_to(index: Any) -> Callable[..., None]:
    def reads(value: Any, index: Any = index) -> None: ...

    return reads


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "callable object": Search,
    "slots": Slotted,
    "method": lambda index: Search(index).look,
    "partial": lambda index: functools.partial(takes_index, index=index),
    "partial of an object": lambda index: functools.partial(Search(index)),
    "closure": closes_over,
    "default": defaults_to,
    "function in a closure": lambda index: closes_over(closes_over(index)),
    "decorated": lambda index: functools.wraps(takes_index)(closes_over(index)),
    "cached by functools": lambda index: functools.lru_cache(closes_over(index)),
}


@each("hold", HOLDERS.values(), ids=HOLDERS.keys())
def test_two_callables_that_hold_different_values_have_different_keys(hold: Callable[[Any], Any]) -> None:
    values = ["a", b"a", 1, True, 1.0, ["a"], {"a": 1}, Doc(), Page(), np.zeros(2, "i8"), np.zeros(2, "f8"), Color.RED]
    options: dict[str, Any] = {"writes": None} if hold is HOLDERS["decorated"] else {}
    identities = [plan_of(hold(value), **options) for value in values]
    assert len(set(identities)) == len(values)
    assert identities == [plan_of(hold(value), **options) for value in values]


@each("hold", HOLDERS.values(), ids=HOLDERS.keys())
def test_an_object_that_the_key_cannot_know_needs_a_version(hold: Callable[[Any], Any]) -> None:
    class Client: ...

    with pytest.raises(GraphError, match=r"for .*\(a Client\).*Cache\(version=\.\.\.\)"):
        plan_of(hold(Client()))
    first, second = [plan_of(hold(Client()), cache=Cache(version=version)) for version in ("1", "2")]
    assert first != second
    assert first == plan_of(hold(Client()), cache=Cache(version="1"))


def compiled(
    text: str, name: str = "fn", module: str = "somewhere", skip: int = 0, file: bool = True, **used: Any
) -> Any:
    """A function of a file of its own, or of no file, with the globals that it uses."""
    source = "\n" * skip + textwrap.dedent(text)
    path = f"/no/{module}{blake2b(source.encode()).hexdigest() if file else None}.py"
    if file:  # where `inspect` finds it
        linecache.cache[path] = len(source), None, source.splitlines(keepends=True), path
    sys.modules[module] = types.ModuleType(module)
    namespace = vars(sys.modules[module])
    namespace |= {"__file__": path, **used}
    exec(compile(source, path, "exec", dont_inherit=True), namespace)
    return namespace[name]


BASE = """
    import decimal, enum, functools, pydantic, re, typing
    import json as form
    from statistics import mean as middle

    LIMIT = 3
    RATE = decimal.Decimal("0.19")
    clean = str.strip
    EMPTY = object()
    WORDS = ("the", "a")
    NAMES = {"low": ["ebb"]}
    PATTERN = re.compile("x+")

    class Tide(enum.Enum):
        HIGH = "flood"

    NOW = Tide.HIGH

    class Line(pydantic.BaseModel):
        price: int

    class Page(pydantic.BaseModel):
        size: int = 7
        lines: list[Line] = pydantic.Field(default_factory=lambda: ["line 1"], max_length=5)
        title: typing.Annotated[str, pydantic.AfterValidator(lambda text: text + "!")] = "Tides"

    class Record(form.JSONDecoder):
        pass

    class Held:
        LIMIT = 30

    STEPS = [middle, lambda value: value + 5, EMPTY]
    STEPS.append(STEPS)
    STEPS.append(STEPS)

    class Reader:
        def read(self, client=object()):
            return [Reader, self.first, self.last, "unread"]

        @functools.cached_property
        def first(self):
            return "page 1"

        @functools.lru_cache
        def last(self):
            return "page 9"

    @functools.lru_cache
    def slow(value):
        return value * 10

    fast = functools.partial(slow, value=11)

    def helper(value):
        return [value + 1, LIMIT]

    def fn(value, k=2, held=Held):
        '''Text.'''
        slow, fast, WORDS, NAMES, PATTERN, NOW, Reader().read(), Page(), RATE, STEPS, Record, clean, form, middle
        for part in helper(value):
            print(part, "a", 1, EMPTY)
        return {"found": sorted([x for x in (1, 2) if x in {"p", "q", "r"}], key=lambda x: -x)}
"""

CHANGES = {
    "a constant": ('"a", 1', '"a", 2'),
    "its type": ('"a", 1', '"a", True'),
    "to a float": ('"a", 1', '"a", 1.0'),
    "to bytes": ('"a", 1', 'b"a", 1'),
    "a name": ("print", "repr"),
    "a default": ("k=2", "k=3"),
    "a nested function": ("-x", "+x"),
    "a set": ('{"p", "q", "r"}', '{"p", "q", "s"}'),
    "a function of the file": ("value + 1", "value + 2"),
    "a constant of the file": ("LIMIT = 3", "LIMIT = 4"),
    "a tuple of the file": ('("the", "a")', '("the",)'),
    "a part of a dict of the file": ('["ebb"]', '["ebb", "neap"]'),
    "a pattern of the file": ('"x+"', '"x*"'),
    "an enum of the file": ('"flood"', '"spring"'),
    "a decimal of the file": ("0.19", "0.16"),
    "a function in a list of the file": ("value + 5", "value + 6"),
    "a model of the file": ("size: int = 7", "size: int = 8"),
    "a type in a model of the file": ("size: int = 7", "size: bool = 7"),
    "a model in a model of the file": ("price: int", "price: float"),
    "a rule of a model of the file": ("max_length=5", "max_length=6"),
    "a factory of a model of the file": ('"line 1"', '"line 2"'),
    "a validator of a model of the file": ('"!"', '"?"'),
    "a base of a class of the file": ("(form.JSONDecoder)", "(Exception)"),
    "a class that is a default": ("LIMIT = 30", "LIMIT = 31"),
    "the module that a name stands for": ("import json as form", "import json.decoder as form"),
    "the function that a name stands for": ("mean as middle", "median as middle"),
    "the method that a name stands for": ("str.strip", "str.lower"),
    "a method of a class of the file": ('"unread"', '"read"'),
    "a cached property": ('"page 1"', '"page 2"'),
    "a cached method": ('"page 9"', '"page 10"'),
    "a cached function of the file": ("value * 10", "value * 20"),
    "a bound argument in the file": ("value=11", "value=12"),
    "the name of a parameter": ("k=2", "j=2"),
    "a branch": ("for part in", "for part in [] or"),
    "a plain copy instead of a frozen view": ("def fn(value,", "def fn(value: list,"),
}


@pytest.mark.parametrize(("old", "new"), CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_function_has_another_key(old: str, new: str) -> None:
    assert old in BASE
    assert plan_of(compiled(BASE)) != plan_of(compiled(BASE.replace(old, new)))


def test_a_moved_function_has_its_key() -> None:
    base = plan_of(compiled(BASE))
    assert plan_of(compiled(BASE, skip=7)) == base
    assert plan_of(compiled(BASE, module="elsewhere")) != base
    with pytest.raises(GraphError, match=r"'Page' \(a class without source text\).*Cache\(version="):
        plan_of(compiled(BASE, file=False))
    no_text = "def fn(value): return {'found': value in {'a', 'b', 'c'}}"
    assert plan_of(compiled(no_text, file=False)) == plan_of(compiled(no_text, file=False, skip=7))


NAMED = """
    import array, collections, dataclasses, enum, logging, threading, types, typing
    from contextvars import ContextVar
    from pydantic import BaseModel
    from dspyer import DELETE
    from tests.nodes.test_cache_key import Doc, takes_index

    class Kind(enum.Enum):
        A = 1
        B = 2

    @dataclasses.dataclass
    class Part:
        size: int
        def twice(self):
            return self.size * 2

    class Limits(BaseModel):
        most: int

    class Pair(typing.NamedTuple):
        first: int

    class Plain:
        def __init__(self, size):
            self.size = size

    VALUE = {}

    def fn(value):
        return {"found": [VALUE, takes_index]}
"""


def naming(value: str) -> Any:
    return compiled(NAMED.replace("{}", value))


@each(
    "value",
    [
        "1",
        "collections.OrderedDict(a=1)",
        "collections.defaultdict(int, a=1)",
        "collections.Counter(a=1)",
        "collections.ChainMap({'a': 1}, {})",
        "collections.deque([1])",
        "collections.deque([7], maxlen=1)",
        "collections.deque(['a', collections.deque([{'b': 1}])])",
        "types.SimpleNamespace(a=types.SimpleNamespace(b=[1]))",
        "types.MappingProxyType({'a': 1})",
        "{Kind.A: 'x', Kind.B: {1, 2}}",
        "frozenset({('a', 1), ('b', 2)})",
        "Part(1)",
        "[Part(1), Part(2)]",
        "Limits(most=1)",
        "Pair(1)",
        "Doc(text='1')",
        "Kind(1)",
        "typing.Literal['1', '2']",
        "(lambda size: size + 1)",
        "[lambda size: size, lambda size: size + 1]",
    ],
)
def test_a_constant_that_the_function_names_is_in_the_key(value: str) -> None:
    base = plan_of(naming(value))
    assert plan_of(naming(value)) == base
    assert plan_of(naming(value.replace("1", "3", 1) if value != "Kind(1)" else "Kind(2)")) != base


def test_kinds_of_equal_collections_have_different_keys() -> None:
    kinds = ["{}({{'a': 1}})".format(f"collections.{kind}") for kind in ("OrderedDict", "Counter", "ChainMap")]
    values = [
        "{'a': 1}",
        *kinds,
        "collections.defaultdict(int, a=1)",
        "collections.defaultdict(str, a=1)",
        "[1]",
        "(1,)",
    ]
    assert len({plan_of(naming(value)) for value in values}) == len(values)


@pytest.mark.parametrize(
    "value", ["Plain(1)", "[Plain(1)]", "{'a': Plain(1)}", "ContextVar('a')", "array.array('i', [1])"]
)
def test_an_object_that_the_function_names_needs_a_version(value: str) -> None:
    """Its state may change where its text does not: an equal key would give a result of before."""
    with pytest.raises(GraphError, match=r"cannot tell one object from another for '.*' \(an? \w+\).*version="):
        plan_of(naming(value))
    assert plan_of(naming(value), cache=Cache(version="1")) == plan_of(naming(value), cache=Cache(version="1"))


@pytest.mark.parametrize("fn", [lambda value, index=ContextVar("a"): {}, lambda value, *, index=[ContextVar("a")]: {}])
def test_the_error_names_the_variable_that_holds_the_object(fn: Any) -> None:
    with pytest.raises(GraphError, match=r"for 'index' \(a ContextVar\): "):
        plan_of(fn)


@pytest.mark.parametrize(
    "value", ["object()", "DELETE", "logging.getLogger('a')", "threading.Lock()", "threading.RLock()"]
)
def test_an_object_that_decides_nothing_needs_no_version(value: str) -> None:
    assert plan_of(naming(value)) == plan_of(naming(value))


CLASSES = """
    import collections, dataclasses, decimal, enum, functools, operator, re, typing
    from typing import Annotated
    from pydantic import AfterValidator, BaseModel, Field

    ONE = 1
    RATE = decimal.Decimal("1")
    def check(value):
        return value + 1
    class Other:
        def look(self):
            return 1
    class Listed(BaseModel):
        a: int = 1
    class Table(dict):
        pass
    @dataclasses.dataclass
    class Rule:
        run: typing.Any
    {}
    def fn(value):
        return {"found": VALUE}
"""

PARTS = {
    "a default of a model": ("class VALUE(BaseModel): a: int = ONE", "ONE = 1"),
    "a default of a frozen model": ("class VALUE(BaseModel, frozen=True): a: int = ONE", "ONE = 1"),
    "an item getter": ("VALUE = operator.itemgetter(ONE)", "ONE = 1"),
    "a limit of a field": ("class VALUE(BaseModel): a: int = Field(0, gt=ONE)", "ONE = 1"),
    "a factory": ("class VALUE(BaseModel): a: int = Field(default_factory=lambda: ONE)", "ONE = 1"),
    "a validator in a type": ("class VALUE(BaseModel): a: Annotated[int, AfterValidator(check)]", "value + 1"),
    "a validator in an alias": ("VALUE = Annotated[int, AfterValidator(check)]", "value + 1"),
    "a model in a type": ("VALUE = list[Listed]", "a: int = 1"),
    "a constant of a class": ("class VALUE: rate = RATE", '"1"'),
    "a pattern of a class": ("class VALUE: words = re.compile(str(ONE))", "ONE = 1"),
    "a class of a class": ("class VALUE: kind = Other", "return 1"),
    "a method of a class in a class": ("class VALUE:\n        class Inner:\n            f = lambda s: ONE", "ONE = 1"),
    "a bound argument of a class": ("class VALUE: f = functools.partial(int, ONE)", "ONE = 1"),
    "an argument of a class": ("class VALUE(Other, metaclass=functools.partial(type)): rate = RATE", '"1"'),
    "a default of a dataclass": ("@dataclasses.dataclass\n    class VALUE: rate: object = RATE", '"1"'),
    "an attribute of a dict": ("VALUE = Table()\n    VALUE.size = ONE", "ONE = 1"),
    "an attribute of a function": ("def VALUE(): return 0\n    VALUE.size = ONE", "ONE = 1"),
    "a function in a dataclass": ("VALUE = Rule(check)", "value + 1"),
    "the name of another function": (
        "VALUE = functools.wraps(len)(functools.partial(check))",
        "value + 1",
    ),
}


@each(("text", "old"), PARTS.values(), ids=PARTS.keys())
def test_what_is_behind_a_class_type_or_object_is_in_the_key(text: str, old: str) -> None:
    text = CLASSES.replace("{}", text, 1)
    assert text.count(old) == 1
    assert plan_of(compiled(text)) == plan_of(compiled(text))
    assert plan_of(compiled(text)) != plan_of(compiled(text.replace(old, old.replace("1", "2"))))


@pytest.mark.parametrize("answer", ["return self", "raise RuntimeError('no request')"])
def test_a_client_that_has_any_attribute_is_not_asked_for_a_name(answer: str) -> None:
    text = f"""
        class Client:
            def __getattr__(self, name):
                {answer}
        VALUE = Client()
        def fn(value):
            return {{"found": VALUE.search(value)}}
    """
    with pytest.raises(GraphError, match=r"for 'VALUE' \(a Client\).*version="):
        plan_of(compiled(text))
    assert plan_of(compiled(text), cache=Cache(version="1")) != plan_of(compiled(text), cache=Cache(version="2"))


def test_a_function_that_is_defined_later_is_not_in_the_key() -> None:
    with pytest.raises(GraphError, match=r"cannot tell .* for 'later' \(not defined yet\).*version="):
        plan_of(compiled("def fn(value): return {'found': later(value)}"))


def test_what_a_class_is_counts_for_its_objects() -> None:
    base = plan_of(naming("Part(1)"))
    for old, new in [("self.size * 2", "self.size * 3"), ("most: int", "most: float")]:
        changed = compiled(NAMED.replace("{}", "Part(1)").replace(old, new))
        assert (plan_of(changed) == base) is (old == "most: int"), "a class that nothing names is no part of it"


def test_the_file_may_be_edited_while_its_code_runs() -> None:
    """The text is that of the file now; the code that runs is another one than that of the next process."""
    text = "def fn(value): return {'found': 1}"
    running = compiled(text)
    path = running.__code__.co_filename
    edited = text.replace("1", "2")
    linecache.cache[path] = len(edited), None, [edited], path
    assert plan_of(running) != plan_of(compiled(edited))


def test_two_lambdas_of_one_line_have_different_keys() -> None:
    first, second = (lambda value: {"found": 1}), (lambda value: {"found": 2})
    assert plan_of(first, writes=["found"]) != plan_of(second, writes=["found"])


def test_a_method_of_the_class_that_is_used_counts() -> None:
    text = """
        class Tool:
            LIMIT = 1
            def __call__(self, value):
                return self.look(value)
            def look(self, value):
                return {"found": self.LIMIT}
        fn = Tool()
    """
    base = plan_of(compiled(text))
    assert plan_of(compiled(text)) == base
    assert plan_of(compiled(text.replace("self.LIMIT", "self.LIMIT + 1"))) != base
    assert plan_of(compiled(text.replace("LIMIT = 1", "LIMIT = 2"))) != base


def test_functions_that_call_themselves_or_each_other() -> None:
    text = """
        def even(value):
            return value == 0 or odd(value - 1)
        def odd(value):
            return value != 0 and even(value - 1)
        def fn(value):
            return {"found": even(value) or fn(value - 1)}
    """
    assert plan_of(compiled(text)) == plan_of(compiled(text))
    assert plan_of(compiled(text)) != plan_of(compiled(text.replace("value != 0", "value != 1")))


def test_names_versions_and_writes_are_parts_of_the_key() -> None:
    identities = [
        plan_of(reader),
        plan_of(reader, node="other"),
        plan_of(reader, graph="other"),
        plan_of(reader, cache=Cache(version="2")),
        plan_of(reader, writes=["a"]),
        plan_of(reader, writes={"a": "b"}),
        plan_of(reader, reads={"value": "other"}, writes=["value"]),
    ]
    assert len(set(identities)) == len(identities)
    assert plan_of(reader, cache=Cache(ttl=5)) == identities[0], "an age is no part of it"
    assert plan_of(reader, reads={"value": "other"}) == identities[0], "the value counts, not the field"


PROCESS = """
import json
from tests.nodes import test_cache_key as keys
values = [value for row in keys.DIFFERENT.values() for value in row]
holders = [keys.plan_of(hold({"a", "b", "c"})) for name, hold in keys.HOLDERS.items() if name != "decorated"]
print(json.dumps([keys.key(value) for value in values] + holders + [keys.plan_of(keys.compiled(keys.BASE))]))
"""


@pytest.mark.slow("processes of other hash seeds")
def test_keys_are_the_same_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[2]
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # another than that of this process
    other = subprocess.run(
        [sys.executable, "-c", PROCESS],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
    )
    exec(PROCESS, {})
    found = [json.loads(printed.splitlines()[-1]) for printed in (other.stdout, capsys.readouterr().out)]
    assert found[0] == found[1]
    assert len(found[0]) > 60


# --- what cannot be cached


class Client:
    """A resource."""


def asks(value: Any, ctx: Context) -> None: ...
def whole(state: ImmutableState) -> None: ...
def everything(**fields: Any) -> None: ...
def of_a_schema(record: Doc) -> None: ...
def with_client(text: str, client: Client) -> None: ...
def commands(value: Any) -> Command[Any]:
    return Command(goto="node")


def plain(text: str) -> None: ...
def with_module(text: str, predict: Any) -> None: ...


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "ctx": (asks, {}, r"node 'node': cache: it takes 'ctx', by which it may ask, post and have effects"),
    "state": (whole, {}, "it reads the state as a whole.*name the fields as parameters"),
    "kwargs": (everything, {}, "it reads the state as a whole"),
    "the schema": (of_a_schema, {}, "it reads the state as a whole"),
    "a resource": (with_client, {}, r"it takes the resource 'client', which differs from run to run"),
    "a command": (commands, {"goto": ["node"]}, "it returns a Command, and only a patch is kept"),
    "a module": (dspy.Predict("text -> more"), {}, r"DSPy caches .*dspy\.LM\("),
    "a bound module": (with_module, {"modules": {"predict": dspy.Predict("a -> b")}}, r"DSPy caches"),
    "a module without predictors": (dspy.Module(), {}, r"DSPy caches"),
    "a graph": (
        Graph(Doc).add_node("inner", plain, writes=[]).add_path(START, "inner", END).compile(),
        {},
        "this node is a graph: cache nodes of it that are functions",
    ),
    "a wrong policy": (plain, {"cache": 60}, r"cache=60: give True, a dspyer\.Cache or False"),
}  # fmt: skip


@each(("node", "options", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_cached_is_refused_when_the_graph_is_compiled(node: Any, options: Any, why: str) -> None:
    graph = Graph(Doc).add_node("node", node, **{"cache": True, "writes": None, **options})
    with pytest.raises(GraphError, match=why):
        graph.add_path(START, "node", END).compile()


def test_a_folder_is_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    graph = Graph().add_node("node", reader, cache=True).add_path(START, "node", END)
    with pytest.raises(GraphError, match="is a file: give the path of a folder"):
        graph.compile(cache_dir=file)
    wrong: Any = 7
    with pytest.raises(GraphError, match="cache_dir=7: give the path of a folder"):
        graph.compile(cache_dir=wrong)


@each("ttl", [0, -1, math.nan, math.inf, True, "1h"])
def test_a_time_to_live_is_a_number_of_seconds(ttl: Any) -> None:
    with pytest.raises(ValueError, match="give seconds, more than 0"):
        Cache(ttl=ttl)


def test_a_version_is_a_text() -> None:
    wrong: Any = 2
    with pytest.raises(TypeError, match="takes a text, and got an int"):
        Cache(version=wrong)


def test_explain_shows_what_surrounds_a_call() -> None:
    graph = (
        Graph().add_node("one", reader, cache=True).add_node("two", reader, cache=Cache(ttl=90), retry=3, timeout=2.5)
    )
    graph.add_map("many", lambda item: item, over="value", item="item", into="found", timeout=4)
    lines = graph.add_path(START, "one", "two", "many", END).compile().graph.explain().splitlines()
    assert [line.partition("; -> ")[2] for line in lines[4:7]] == [
        "two; cached",
        "many; timeout 2.5 s; up to 3 attempts; cached for 90 s",
        "END; timeout 4 s per item",
    ]
