"""Keys of the node cache: equal exactly where the function, its node and what a call reads are the same.

Of two calls with one key the second one comes from the cache, and of two with different keys both are made.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import linecache
import math
import sys
import textwrap
import types
from collections.abc import Callable, Iterable
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

from dspyer import END, START, Cache, Command, CompiledGraph, Context, Graph, ImmutableState, Send
from dspyer.errors import GraphError
from tests.rows import each

NUMBERS = itertools.count()  # in the names of graphs: the tests share a folder, and no keys


class Calls:
    """Calls of nodes in graphs of one name; each tells whether it came from the cache."""

    def __init__(self, folder: Path | None, name: str | None = None) -> None:
        self.folder = folder
        self.name = name or f"g{next(NUMBERS)}"

    def program(self, fn: Any, node: str = "node", graph: str = "", cache: Any = True, **options: Any) -> CompiledGraph:
        kept = dataclasses.replace(Cache() if cache is True else cache, folder=self.folder)
        built = Graph(name=self.name + graph).add_node(node, fn, cache=kept, **{"writes": ["found"], **options})
        return built.add_path(START, node, END).compile()

    def __call__(self, fn: Any, field: str = "value", value: Any = 0, **options: Any) -> bool:
        return is_hit(self.program(fn, **options), {field: value})


def is_hit(program: CompiledGraph, inputs: dict[str, Any]) -> bool:
    run = program.run(inputs)
    run.raise_error()
    return run.commits[1].cached


def differ(call: Callable[[Any], bool], given: Iterable[Any]) -> bool:
    """Whether all of these have keys of their own, which the first and the last one have again."""
    given = list(given)
    hits = [call(one) for one in [*given, given[0], given[-1]]]
    return hits == [False] * len(given) + [True] * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def calls(folder: Path) -> Calls:
    return Calls(folder)


def refused(fn: Any, text: str, **options: Any) -> None:
    with pytest.raises(GraphError, match=text):
        Calls(None).program(fn, **options)


# --- what a call reads


def reader(value: Any) -> Any:
    """Any function of one field."""


def reading(folder: Path, name: str | None = None) -> Callable[[Any], bool]:
    """Calls of one node that reads a value."""
    program = Calls(folder, name).program(reader)
    return lambda value: is_hit(program, {"value": value})


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


@each("values", DIFFERENT.values(), ids=DIFFERENT.keys(), items=2)
def test_different_reads_have_different_keys(values: list[Any], folder: Path) -> None:
    name = f"g{next(NUMBERS)}"
    assert differ(reading(folder, name), values)
    sends = Graph(name=name).add_node("node", reader, cache=Cache(folder=folder), writes=["found"])
    sends.add_edge("node", END).add_conditional_edges(START, lambda sent: [Send("node", {"value": sent})], ["node"])
    program = sends.compile()
    assert all(is_hit(program, {"sent": value}) for value in values), "of a Send, too"


def test_equal_reads_have_equal_keys(folder: Path) -> None:
    large = {f"k{index}": index for index in range(200)}
    for one, other in [
        (math.nan, float("nan")),
        ({1, 2, 3}, {3, 2, 1}),
        ({"abc", "b", 1}, {1, "b", "abc"}),
        (large, dict(large)),
        (Doc(text="x"), Doc(text="x")),
        (np.arange(3), np.arange(3)),
        ([Row()], ImmutableState({"rows": [Row()]})["rows"]),
        (NOON, datetime.fromisoformat(NOON.isoformat())),
    ]:
        call = reading(folder)
        assert [call(one), call(other)] == [False, True]


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


def written(value: Any) -> str:
    """A text that is equal for equal values: of the same types, and dicts in the same order."""
    parts: Iterable[str] = [repr(value)]
    if isinstance(value, dict):
        parts = [written(part) for pair in value.items() for part in pair]
    elif isinstance(value, list | tuple):
        parts = map(written, value)
    elif isinstance(value, set | frozenset):
        parts = sorted(map(written, value))
    return f"{type(value).__name__}({', '.join(parts)})"


@given(st.lists(VALUES, min_size=2, max_size=6))
def test_keys_are_equal_exactly_for_equal_reads(folder: Path, values: list[Any]) -> None:
    texts = [written(value) for value in values]
    assert [*map(reading(folder), values)] == [text in texts[:place] for place, text in enumerate(texts)]


# --- which function it is


class Search:
    def __init__(self, index: Any, **more: Any) -> None:
        self.index = index
        self.__dict__.update(more)

    def __call__(self, value: Any) -> None:
        self.look(value)

    def look(self, value: Any) -> None:
        """Looks it up."""


def takes_index(value: Any, index: Any) -> None: ...


def closes_over(index: Any) -> Callable[..., None]:
    def reads(value: Any) -> None:
        print(index)

    return reads


def defaults_to(index: Any) -> Callable[..., None]:
    def reads(value: Any, index: Any = index) -> None: ...

    return reads


def decorated(index: Any) -> Callable[..., None]:
    @functools.wraps(takes_index)
    def calls(*args: Any, **kwargs: Any) -> None:
        print(index)

    return calls


def decorated_elsewhere(index: Any) -> Callable[..., None]:
    text = """
        def bind(fn, index):
            def calls(value):
                return fn(value, index)
            return calls
    """
    found: Callable[..., None] = functools.wraps(reader)(compiled(text, "bind", "tools")(takes_index, index))
    return found


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "partial": lambda index: functools.partial(takes_index, index=index),
    "closure": closes_over,
    "default": defaults_to,
    "function in a closure": lambda index: closes_over(closes_over(index)),
    "decorated": decorated,
    "decorated by a function of another file": decorated_elsewhere,
    "cached by functools": lambda index: functools.lru_cache(closes_over(index)),
}


@each("hold", HOLDERS.values(), ids=HOLDERS.keys(), items=2)
def test_two_callables_that_hold_different_values_have_different_keys(hold: Callable[[Any], Any], calls: Calls) -> None:
    values = ["a", b"a", 1, True, 1.0, ["a"], {"a": 1}, Doc(), Page(), np.zeros(2, "i8"), np.zeros(2, "f8"), Color.RED]
    assert differ(lambda value: is_hit(calls.program(hold(value), writes=[]), inputs_of(hold)), values)


def inputs_of(hold: Callable[[Any], Any]) -> dict[str, Any]:
    """A decorated function takes the parameters of the other one."""
    return {"value": 0, "index": 0} if hold is decorated else {"value": 0}


OBJECTS: dict[str, Callable[[Any], Any]] = {
    "callable object": Search,
    "method": lambda client: Search(client).look,
    "partial of an object": lambda client: functools.partial(Search(client)),
}


@each("hold", {**HOLDERS, **OBJECTS}.values(), ids={**HOLDERS, **OBJECTS}.keys())
def test_an_object_that_the_key_cannot_know_needs_a_version(hold: Callable[[Any], Any], calls: Calls) -> None:
    class Client: ...

    refused(hold(Client()), r"for .*\(a (Client|Search)\).*Cache\(version=\.\.\.\)", writes=[])
    versions = [Cache(version=version) for version in ("1", "2")]
    assert differ(
        lambda cache: is_hit(calls.program(hold(Client()), cache=cache, writes=[]), inputs_of(hold)), versions
    )


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
        return [(value, 1), LIMIT]

    def fn(value, k=2, held=Held):
        '''Text.'''
        slow, fast, WORDS, NAMES, PATTERN, NOW, Reader().read(), Page(), RATE, STEPS, Record, clean, form, middle
        for part in helper(value):
            print((part, "a", 1, EMPTY))
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
    "a function of the file": ("(value, 1)", "(value, 2)"),
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


@pytest.fixture(scope="module")
def changed(folder: Path) -> Calls:
    """The calls of a graph that has called `BASE`."""
    calls = Calls(folder)
    assert not calls(compiled(BASE), value=[0])
    return calls


@each(("old", "new"), CHANGES.values(), ids=CHANGES.keys(), items=3)
def test_a_changed_function_has_another_key(old: str, new: str, changed: Calls) -> None:
    assert old in BASE
    assert not changed(compiled(BASE.replace(old, new)), value=[0])


def test_a_moved_function_has_its_key(changed: Calls, calls: Calls) -> None:
    assert changed(compiled(BASE), value=[0])
    assert changed(compiled(BASE, skip=7), value=[0])
    assert not changed(compiled(BASE, module="elsewhere"), value=[0])
    refused(compiled(BASE, file=False), r"'Page' \(without source text\).*Cache\(version=")


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
        return {"found": bool([VALUE, takes_index])}
"""


def naming(value: str) -> Any:
    return compiled(NAMED.replace("{}", value))


@each(
    "value",
    [
        "1",
        "collections.OrderedDict(a=1)",
        "collections.Counter(a=1)",
        "collections.ChainMap({'a': 1}, {})",
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
    items=2,
)
def test_a_constant_that_the_function_names_is_in_the_key(value: str, calls: Calls) -> None:
    other = value.replace("1", "3", 1) if value != "Kind(1)" else "Kind(2)"
    assert differ(lambda text: calls(naming(text)), [value, other])


def test_kinds_of_equal_collections_have_different_keys(calls: Calls) -> None:
    kinds = ["{}({{'a': 1}})".format(f"collections.{kind}") for kind in ("OrderedDict", "Counter", "ChainMap")]
    assert differ(lambda text: calls(naming(text)), ["{'a': 1}", *kinds, "[1]", "(1,)"])


@each(
    "value",
    ["Plain(1)", "[Plain(1)]", "{'a': Plain(1)}", "ContextVar('a')", "array.array('i', [1])", "collections.deque([1])"],
)
def test_an_object_that_the_function_names_needs_a_version(value: str, calls: Calls) -> None:
    """Its state may change where its text does not: an equal key would give a result of before."""
    refused(naming(value), r"cannot tell one object from another for '.*' \(an? \w+\).*version=")
    assert differ(lambda version: calls(naming(value), cache=Cache(version=version)), ["1"])


@each("fn", [lambda value, index=ContextVar("a"): {}, lambda value, *, index=[ContextVar("a")]: {}])
def test_the_error_names_the_variable_that_holds_the_object(fn: Any) -> None:
    refused(fn, r"for 'index(\[0\])?' \(a ContextVar\): ")


@each("value", ["object()", "DELETE", "logging.getLogger('a')", "threading.Lock()", "threading.RLock()"])
def test_an_object_that_decides_nothing_needs_no_version(value: str, calls: Calls) -> None:
    assert differ(lambda text: calls(naming(text)), [value])


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
    {}
    def fn(value):
        return {"found": bool([VALUE])}
"""

PARTS = {
    "a default of a model": ("class VALUE(BaseModel): a: int = ONE", "ONE = 1"),
    "a default of a frozen model": ("class VALUE(BaseModel, frozen=True): a: int = ONE", "ONE = 1"),
    "a limit of a field": ("class VALUE(BaseModel): a: int = Field(0, gt=ONE)", "ONE = 1"),
    "a factory": ("class VALUE(BaseModel): a: int = Field(default_factory=lambda: ONE)", "ONE = 1"),
    "a validator in a type": ("class VALUE(BaseModel): a: Annotated[int, AfterValidator(check)]", "value + 1"),
    "a model in a type": ("VALUE = list[Listed]", "a: int = 1"),
    "a constant of a class": ("class VALUE: rate = RATE", '"1"'),
    "a pattern of a class": ("class VALUE: words = re.compile(str(ONE))", "ONE = 1"),
    "a class of a class": ("class VALUE: kind = Other", "return 1"),
    "a method of a class in a class": ("class VALUE:\n        class Inner:\n            f = lambda s: ONE", "ONE = 1"),
    "a bound argument of a class": ("class VALUE: f = functools.partial(int, ONE)", "ONE = 1"),
    "an argument of a class": ("class VALUE(Other, metaclass=functools.partial(type)): rate = RATE", '"1"'),
    "a default of a dataclass": ("@dataclasses.dataclass\n    class VALUE: rate: object = RATE", '"1"'),
    "the name of another function": (
        "VALUE = functools.wraps(len)(functools.partial(check))",
        "value + 1",
    ),
}


@each(("text", "old"), PARTS.values(), ids=PARTS.keys(), items=2)
def test_what_is_behind_a_class_type_or_object_is_in_the_key(text: str, old: str, calls: Calls) -> None:
    text = CLASSES.replace("{}", text, 1)
    assert text.count(old) == 1
    assert differ(lambda text: calls(compiled(text)), [text, text.replace(old, old.replace("1", "2"))])


@each("answer", ["return self", "raise RuntimeError('no request')"])
def test_a_client_that_has_any_attribute_is_not_asked_for_a_name(answer: str, folder: Path) -> None:
    text = f"""
        class Client:
            def __getattr__(self, name):
                {answer}
        VALUE = Client()
        def fn(value):
            return {{"found": value and VALUE.search(value)}}
    """
    refused(compiled(text), r"for 'VALUE' \(a Client\).*version=")
    calls = Calls(folder)
    assert differ(lambda version: calls(compiled(text), cache=Cache(version=version)), ["1", "2"])


def test_a_function_that_is_defined_later_is_not_in_the_key() -> None:
    later = compiled("def fn(value): return {'found': later(value)}")
    refused(later, r"cannot tell .* for 'later' \(not defined yet\).*version=")


def test_what_a_class_is_counts_for_its_objects(calls: Calls) -> None:
    assert not calls(naming("Part(1)"))
    for old, new in [("self.size * 2", "self.size * 3"), ("most: int", "most: float")]:
        changed = compiled(NAMED.replace("{}", "Part(1)").replace(old, new))
        assert calls(changed) is (old == "most: int"), "a class that nothing names is no part of it"


def test_a_method_of_the_class_that_is_used_counts(calls: Calls) -> None:
    text = """
        class Tool:
            LIMIT = 1
            def __call__(self, value):
                return self.look(value)
            def look(self, value):
                return {"found": self.LIMIT}
        fn = Tool()
    """
    texts = [text, text.replace("self.LIMIT", "self.LIMIT + 1"), text.replace("LIMIT = 1", "LIMIT = 2")]
    assert differ(lambda text: calls(compiled(text), cache=Cache(version="1")), texts)


def test_functions_that_call_themselves_or_each_other(calls: Calls) -> None:
    text = """
        def even(value):
            return value == 0 or odd(value - 1)
        def odd(value):
            return value != 0 and even(value - 1)
        def fn(value):
            return {"found": even(value) or fn(value - 1)}
    """
    assert differ(lambda text: calls(compiled(text)), [text, text.replace("value != 0", "value != 1")])


def test_names_versions_and_writes_are_parts_of_the_key(calls: Calls) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"node": "other"},
        {"graph": "other"},
        {"cache": Cache(version="2")},
        {"writes": ["a"]},
        {"writes": {"a": "b"}},
        {"reads": {"value": "other"}, "writes": ["value"], "field": "other"},
    ]
    assert differ(lambda given: calls(reader, **given), options)
    assert calls(reader, cache=Cache(ttl=500)), "an age is no part of it"
    assert calls(reader, reads={"value": "other"}, field="other"), "the value counts, not the field"


def all_calls(folder: Path) -> list[bool]:
    """Calls with keys of all kinds."""
    calls, call = Calls(folder, "every process"), reading(folder, "every process")
    hits = [call(value) for row in DIFFERENT.values() for value in row]
    for place, hold in enumerate(HOLDERS.values()):
        program = calls.program(hold({"a", "b", "c"}), node=f"n{place}", writes=[])
        hits.append(is_hit(program, inputs_of(hold)))
    return [*hits, calls(compiled(BASE), value=[0])]


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
    with pytest.raises(ValueError, match="is a file: give the path of a folder"):
        Cache(folder=file)
    wrong: Any = 7
    with pytest.raises(TypeError, match=r"folder=7.*: give the path of a folder"):
        Cache(folder=wrong)


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
