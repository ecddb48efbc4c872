"""The generated class of a graph: its source text, and its lifetime."""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import inspect
import linecache
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cloudpickle
import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph
from dspyer.graph.compile import source_text
from dspyer.graph.spec import Declarations, EdgeDeclaration
from dspyer.lm.source import parsed, reduce_program, source_class
from dspyer.nodes.node import MapOptions
from dspyer.nodes.options import node_options
from dspyer.nodes.router import RouterOptions
from dspyer.schema.schema import Schema
from tests.rows import each


class Numbered(BaseModel):
    x: int = 0


def count(x: int) -> dict[str, int]:
    return {"x": x + 1}


def text_of(nodes: dict[str, Any], edges: Any = (), *, schema: type[BaseModel] | None = None, name: str = "G") -> str:
    """The text of a graph; a node may be given as the arguments of `node_options`."""
    options = Graph(schema, name=name)._options
    given = {one: node if isinstance(node, dict) else {"node": node} for one, node in nodes.items()}
    made = [node_options(one, schema=Schema.of(None), **node) for one, node in given.items()]
    return source_text(Declarations(options, tuple(made), tuple(edges)))


TEXT = "class Chain(dspy.Module):\n    'a -> b'\n"


class Base(dspy.Module):
    """A stand-in for the compiled graph."""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_program(self)


class Other(Base):
    """A second base."""


def test_source_is_the_text_and_survives_an_emptied_cache() -> None:
    chain = source_class("Chain", Base, TEXT)

    for forget in (gc.collect, linecache.clearcache, linecache.checkcache):
        forget()
        assert inspect.getsource(chain) == TEXT
    assert issubclass(chain, Base)
    assert chain.__name__ == chain.__qualname__ == "Chain"


def test_same_graph_has_one_class() -> None:
    chain = source_class("Chain", Base, TEXT)
    assert source_class("Chain", Base, TEXT) is chain
    assert source_class("Chain", Base, TEXT + "    1\n") is not chain
    other = source_class("Chain", Other, TEXT)
    assert other is not chain
    assert inspect.getsource(other) == inspect.getsource(chain)


def test_a_graph_that_is_made_again_parses_no_source_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some versions of Python the source of a class is found by parsing its whole file."""

    def text() -> str:
        again: Callable[[int], str] = lambda x: "count" if x < 3 else END  # noqa: E731 - it stands on a line of its own
        edges = [EdgeDeclaration(("START",), ("count",)), RouterOptions("count", again, ["count", "END"])]
        return text_of({"count": count}, edges, schema=Numbered)

    first = text()
    assert "x: int = 0" in first
    assert "'count' if x < 3 else END" in first
    parse = Mock(side_effect=ast.parse)
    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", parse)
        second = text()
    assert second == first
    assert not parse.called


def test_an_unused_class_is_removed() -> None:
    text = TEXT + "    'left behind?'\n"
    chain = source_class("Chain", Base, text)
    module = chain.__module__
    assert module in sys.modules
    del chain
    gc.collect()
    assert module not in sys.modules


@pytest.mark.parametrize(
    ("name", "expected"), [("My graph!", "My_graph_"), ("", "Graph"), ("1st", "Graph_1st"), ("Übung", "Übung")]
)
def test_any_name_of_a_graph_gives_a_class(name: str, expected: str) -> None:
    text = text_of({}, name=name)
    assert source_class(name, Base, text).__name__ == expected
    assert inspect.getsource(source_class(name, Base, text)) == text
    compile(text, "text", "exec")


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps], ids=["pickle", "cloudpickle"])
def test_a_program_is_pickled_as_base_name_and_text(dumps: Callable[[Any], bytes]) -> None:
    program = source_class("Chain", Base, TEXT)()
    program.mark = {"a": [1]}
    twin = pickle.loads(dumps(program))

    assert type(twin) is type(program)
    assert twin.mark == {"a": [1]}
    assert twin.history == []


class Doc(BaseModel):
    """What is known."""

    question: str
    notes: list[str] = []


def named(question: str) -> dict[str, str]:
    """Names it."""
    return {"name": question}


class Judge:
    def __call__(self, name: str) -> str:
        return "again" if name else "done"


def line_of(node: Any) -> str:
    text = text_of({"x": node})
    return next(line.strip() for line in text.splitlines() if '"x"' in line)


made = eval("lambda question, name: None")  # no source anywhere


class Sig(dspy.Signature):
    """S."""

    a: str = dspy.InputField()
    b: list[int] = dspy.OutputField()


@each(
    ("node", "line"),
    [
        (named, 'graph.add_node("x", named)'),
        (functools.partial(named, question="?"), 'graph.add_node("x", partial(named))'),
        (Judge(), 'graph.add_node("x", Judge())'),
        (len, 'graph.add_node("x", len)'),
        (lambda question: {"a": 1}, "graph.add_node(\"x\", lambda question: {'a': 1})"),
        (made, 'graph.add_node("x", lambda question, name: ...)'),
        (dspy.Predict("a, b: int -> c"), 'graph.add_node("x", dspy.Predict("a, b: int -> c"))'),
        (dspy.ChainOfThought(Sig), 'graph.add_node("x", dspy.ChainOfThought("a -> b: list[int]"))'),
        (Base(), 'graph.add_node("x", Base())'),
        (
            {"node": named, "modules": {"ask": dspy.Predict("a -> b")}},
            'graph.add_node("x", named, modules={"ask": dspy.Predict("a -> b")})',
        ),
        (
            {"node": named, "map": MapOptions("docs", "doc", "found", None, None, 0.0)},
            'graph.add_map("x", named, over="docs", item="doc", into="found")',
        ),
    ],
)
def test_every_kind_of_node_is_one_call(node: object, line: str) -> None:
    assert line_of(node) == line


def test_edges_are_the_users_calls() -> None:
    edges = [
        EdgeDeclaration(("START",), ("a",)),
        EdgeDeclaration(("a",), ("b", "c")),
        RouterOptions("b", Judge(), {"again": "a", True: "END"}),
        RouterOptions("c", "category", ["a", "END"]),
        RouterOptions("d", named),
    ]
    text = text_of({}, edges, schema=Doc)

    assert [line.strip() for line in text.splitlines() if "graph.add" in line] == [
        'graph.add_edge(START, "a")',
        'graph.add_edge("a", ["b", "c"])',
        'graph.add_conditional_edges("b", Judge(), {\'again\': "a", True: END})',
        'graph.add_conditional_edges("c", \'category\', ["a", END])',
        'graph.add_conditional_edges("d", named)',
    ]
    assert "graph = Graph(Doc)" in text
    assert inspect.getsource(Doc).strip().splitlines()[-1] in text
    assert 'return {"name": question}' in text
    assert text.startswith('class G(dspy.Module):\n    """A graph of nodes')
    assert "0x" not in text
    compile(text, "text", "exec")


def test_each_source_is_shown_once() -> None:
    text = text_of({"a": named, "b": named, "c": Judge(), "d": Judge()})
    assert text.count("def named(") == 1
    assert text.count("class Judge") == 1


def test_functions_of_equal_code_have_the_texts_of_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("first_file", "second_file"):
        (tmp_path / f"{name}.py").write_text(f"def add(x: int):\n    return {{'x': x + 1}}  # {name}\n")
    first, second = (importlib.import_module(name).add for name in ("first_file", "second_file"))
    assert first.__code__ == second.__code__
    for name, function in (("first_file", first), ("second_file", second)):
        assert f"# {name}" in text_of({"add": function})


def test_the_source_of_a_function_that_is_made_again_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(n: int) -> Callable[[int], dict[str, int]]:
        def add(x: int) -> dict[str, int]:
            return {"x": x + n}

        return add

    getsource = Mock(wraps=inspect.getsource)
    monkeypatch.setattr(inspect, "getsource", getsource)
    texts = {text_of({"add": make(n)}) for n in range(3)}
    assert len(texts) == getsource.call_count == 1


def test_one_thread_parses_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ast.parse
    inside: list[int] = []
    most: list[int] = []
    monkeypatch.syspath_prepend(tmp_path)
    names = [f"counting_{number}" for number in range(40)]
    for number, name in enumerate(names):  # each is another function, or the first graph alone would be parsed
        text = f"def count(x: int) -> dict[str, int]:\n    return {{'x': x + {number}}}\n"
        (tmp_path / f"{name}.py").write_text(text)

    def parse(*args: Any, **options: Any) -> Any:
        inside.append(1)
        most.append(len(inside))
        for _ in range(1000):  # room for a switch to another thread
            pass
        tree = whole(*args, **options)
        inside.pop()
        return tree

    def build(function: Callable[..., Any]) -> str:
        graph = Graph(Numbered).add_node("count", function, writes=["x"])
        program = graph.add_path(START, "count", END).compile()
        return str(reduce_program(program)[1][2])  # `inspect.getsource` of a class parses by itself

    functions = [importlib.import_module(name).count for name in names]
    monkeypatch.setattr(ast, "parse", parse)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            made = [found.result() for found in [threads.submit(build, each_one) for each_one in functions]]
    finally:
        sys.setswitchinterval(interval)
    assert len(most) >= 40
    assert max(most) == 1
    assert "def count(x: int)" in made[0]
    assert len(set(made)) == 40


@pytest.mark.parametrize("disturbance", [SystemError, RecursionError])
def test_a_parse_that_another_thread_breaks_is_tried_again(
    disturbance: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ast.parse
    calls: list[str] = []

    def parse(*args: Any, **options: Any) -> Any:
        calls.append(args[0])
        if len(calls) % 3:
            raise disturbance("AST constructor recursion depth mismatch")
        return whole(*args, **options)

    monkeypatch.setattr(ast, "parse", parse)
    assert "count" in ast.unparse(parsed("count(1)"))
    monkeypatch.setattr(ast, "parse", Mock(side_effect=disturbance("each time")))
    with pytest.raises(disturbance):
        parsed("count(1)")
