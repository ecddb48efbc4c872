"""Types that cannot fit are refused when the graph is built; an item that does not fit stops its map at once."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import dspy
import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
)
from typing_extensions import TypedDict

from dspyer import END, START, Graph, Messages, Run, reducers
from dspyer.errors import GraphError, NodeOutputError
from dspyer.testing import ScriptedLM
from tests.nodes.kit import MODES
from tests.rows import each


class Point(BaseModel):
    x: int = 0


@dataclass
class Record:
    x: int = 0


class Open(BaseModel):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return TypeAdapter(Any).core_schema


class Row(TypedDict):
    a: int


class Colour(Enum):
    RED = "red"


MISFITS: list[tuple[Any, Any]] = [
    (str, list[dict[str, Any]]),
    (str, int),
    (str, float),
    (str, bool),
    (str, Point),
    (str, Row),
    (int, str),
    (bool, list[int]),
    (list[str], str),
    (list[str], dict[str, str]),
    (list[str], list[dict[str, Any]]),
    (list[str], set[int]),
    (dict[str, str], list[str]),
    (dict[str, str], dict[str, int]),
    (Point, str),
    (Point, dict[str, Any]),
    (Record, dict),
    (Decimal, str),
    (list[date], list[str]),
    (str | None, list[str]),
    (str | None, int),
    (str, list[str] | dict[str, str]),
    (Annotated[str, "a text"], Annotated[int, Field(ge=0)]),
]
FITS: list[tuple[Any, Any]] = [
    (str, str),
    (str, Any),
    (Any, int),
    (object, int),
    (str, str | None),
    (str | None, str),
    (str, list[str] | str),
    (str | list[str], list[str]),
    (int, float),
    (float, int),
    (bool, int),
    (str, Literal["a", "b"]),
    (Literal["1"], int),
    (str, Colour),
    (Colour, str),
    (str, bytes),
    (list[str], set[str]),
    (list[Any], list[int]),
    (list, list[int]),
    (dict[str, Any], Point),
    (dict[str, Any], Row),
    (Row, dict[str, int]),
    (Point, Point),
    (Record, Point),
    (date, date),
    (date, int),
    (Point, list[Any]),
    (dict[str, Any], Messages),  # a message alone is as good as a list of one
    (str, Open),
    (str, Annotated[int, BeforeValidator(int)]),
    (str, Annotated[list[str], BeforeValidator(str.split)]),
    (list[str], list[Annotated[int, BeforeValidator(int)]]),
    (list[Annotated[str, AfterValidator(int)]], list[int]),
]


def refused(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The pairs of which a build refuses that an output of the first type is written to a field of the second."""
    fields: dict[str, Any] = {f"f{place}": (wanted, None) for place, (_, wanted) in enumerate(pairs)}
    outputs: dict[str, Any] = {f"a{place}": (given, dspy.OutputField()) for place, (given, _) in enumerate(pairs)}
    node = dspy.Predict(dspy.Signature({"text": (str, dspy.InputField()), **outputs}))
    writes = dict(zip(outputs, fields, strict=True))
    graph = Graph(create_model("Fields", text=(str, ""), **fields), inputs=["text"]).add_node("it", node, writes=writes)
    try:
        graph.add_path(START, "it", END).compile()
    except GraphError as error:
        return [pairs[int(place)] for place in re.findall(r"its output 'a(\d+)' is ", "\n".join(error.problems))]
    return []


def test_types_that_never_fit_are_refused() -> None:
    assert refused(MISFITS) == MISFITS


def test_types_that_may_fit_are_accepted() -> None:
    assert refused(FITS) == []


SAMPLES: dict[Any, list[Any]] = {
    str: ["", "a", "[]", "{}", "null"],
    int: [0, 1, 7],
    float: [0.0, 1.5],
    bool: [True, False],
    list: [[], ["a"], [("a", 1)]],
    tuple: [(), ("a",)],
    set: [set(), {"a"}],
    frozenset: [frozenset(), frozenset("a")],
    dict: [{}, {"x": 1}],
    Point: [Point()],
    Record: [Record()],
    date: [date(2026, 1, 1)],
    datetime: [datetime(2026, 1, 1, tzinfo=UTC)],
    time: [time()],
    timedelta: [timedelta(1)],
    Decimal: [Decimal(1)],
    UUID: [UUID(int=1)],
    type(None): [None],
}


def test_pydantic_refuses_what_never_fits() -> None:
    found = refused([(given, wanted) for given in SAMPLES for wanted in SAMPLES])
    assert len(found) > 100
    for given, wanted in found:
        for value in SAMPLES[given]:
            with pytest.raises(ValidationError):
                TypeAdapter(wanted).validate_python(value)


class State(BaseModel):
    text: str = ""
    number: int = 0
    rows: list[dict[str, Any]] = []
    notes: Annotated[list[str], reducers.append] = []
    many: Annotated[list[dict[str, Any]], reducers.extend] = []
    table: Annotated[dict[str, int], reducers.update] = {}
    own: Annotated[list[int], lambda current, update: current] = []
    counts: list[int] = []
    sums: Annotated[list[int], reducers.extend] = []
    split: list[str] = []
    docs: list[str] = []

    @field_validator("split", mode="before")
    @classmethod
    def words(cls, value: Any) -> Any:
        return value.split() if isinstance(value, str) else value


def inner(kind: Any) -> Any:
    graph = Graph(create_model("Inner", text=(str, ""), found=(kind, ...)), inputs=["text"], outputs=["found"])
    graph.add_node("work", lambda text: {"found": text}, writes=["found"])
    return graph.add_path(START, "work", END).compile()


BUILDS: dict[str, tuple[Any, dict[str, str], str]] = {
    "a number": (dspy.Predict("text -> number"), {"number": "number"}, "'number' is str, and field 'number' takes int"),
    "renamed": (dspy.Predict("text -> a"), {"a": "rows"}, r"'a' is str, and field 'rows' takes list\[dict"),
    "of several": (dspy.ChainOfThought("text -> a, b"), {"a": "text", "b": "number"}, "'b' is str"),
    "an item": (
        dspy.Predict("text -> a: list[str]"),
        {"a": "notes"},
        r"'a' is list\[str\], and field 'notes' takes by its reducer 'append' str",
    ),
    "items": (dspy.Predict("text -> a"), {"a": "many"}, r"takes by its reducer 'extend' list\[dict"),
    "keys": (dspy.Predict("text -> a: dict[str, str]"), {"a": "table"}, r"reducer 'update' dict\[str, int\]"),
    "a graph": (inner(str), {"found": "number"}, "'found' is str, and field 'number' takes int"),
}


@each(("node", "writes", "text"), BUILDS.values(), ids=BUILDS)
def test_a_type_that_never_fits_is_a_problem_of_the_build(node: Any, writes: dict[str, str], text: str) -> None:
    graph = Graph(State, inputs=["text"]).add_node("it", node, writes=writes).add_path(START, "it", END)
    with pytest.raises(GraphError, match=f"node 'it': .*{text}"):
        graph.compile()


@pytest.mark.parametrize("writes", [{"a": "own"}, {"a": "split"}, {"a": "text"}, {"a": "notes"}], ids=str)
def test_types_are_not_checked_for_fields_with_a_validator_or_custom_reducer(writes: dict[str, str]) -> None:
    node = dspy.Predict("docs -> a")
    Graph(State, inputs=["docs"]).add_node("it", node, writes=writes).add_path(START, "it", END).compile()


class ManualCommit(dspy.Module):
    """Its signature says what the LM is asked for, not what the module gives."""

    def __init__(self) -> None:
        super().__init__()
        self.signature = dspy.Signature("text -> number")
        self.ask = dspy.Predict(self.signature)

    def forward(self, text: str) -> dspy.Prediction:
        return dspy.Prediction(number=int(self.ask(text=text).number))


class Thinking(dspy.ChainOfThought):
    def forward(self, **inputs: Any) -> dspy.Prediction:
        return dspy.Prediction(number=int(super().forward(**inputs).number))


class Called(dspy.Predict):
    def __call__(self, **inputs: Any) -> dspy.Prediction:
        return dspy.Prediction(number=int(super().__call__(**inputs).number))


class Converted(BaseModel):
    text: str = ""
    number: Annotated[str, AfterValidator(int)] = ""


class Checked(BaseModel):
    text: str = ""
    number: str = ""

    @field_validator("number")
    @classmethod
    def whole(cls, value: str) -> Any:
        return int(value)


def converting(schema: type[BaseModel]) -> Any:
    graph = Graph(schema, inputs=["text"], outputs=["number"])
    graph.add_node("work", lambda text: {"number": "3"}, writes=["number"])
    return graph.add_path(START, "work", END).compile()


CONVERTING: dict[str, Any] = {
    "a module": ManualCommit,
    "a subclass": lambda: Thinking("text -> number"),
    "a call": lambda: Called("text -> number"),
    "tried again": lambda: dspy.BestOfN(ManualCommit(), N=1, reward_fn=lambda *_: 1.0, threshold=0.5),
    "a graph": lambda: converting(Converted),
    "a graph that validates": lambda: converting(Checked),
}


@pytest.mark.parametrize("mapped", [False, True], ids=["alone", "of a map"])
def test_outputs_that_user_code_converts_are_not_checked_at_build(mapped: bool) -> None:
    for name, make in CONVERTING.items():
        graph, node = Graph(State, inputs=["text", "docs"]), make()
        if mapped:
            graph.add_map("it", node, over="docs", item="text", into="counts", writes=["number"])
        else:
            graph.add_node("it", node, writes=["number"])
        program = graph.add_path(START, "it", END).compile()
        lm = ScriptedLM(lambda prompt: {field.name: "3" for field in prompt.output_fields})
        with dspy.context(lm=lm):
            run = program.run({"text": "a", "docs": ["a"]})
        assert run.error is None, name
        assert (run.state["counts"], run.state["number"]) == (([3], 0) if mapped else ([], 3))


@pytest.mark.parametrize("node", [dspy.Predict("doc -> a"), dspy.Predict("doc -> a, b: list[int]")], ids=["one", "two"])
def test_results_of_a_map_that_never_fit_are_a_problem_of_the_build(node: Any) -> None:
    into = "rows" if len(node.signature.output_fields) == 1 else "docs"
    graph = Graph(State, inputs=["docs"]).add_map("each", node, over="docs", item="doc", into=into)
    with pytest.raises(GraphError, match=f"node 'each': the list of its results is list.*field '{into}' takes"):
        graph.add_path(START, "each", END).compile()


def mapped(work: Any, mode: str, into: str = "counts", **options: Any) -> Run:
    graph = Graph(State, inputs=["docs"]).add_map("each", work, over="docs", item="doc", into=into, **options)
    program, inputs = graph.add_path(START, "each", END).compile(), {"docs": [str(n) for n in range(50)]}
    return program.run(inputs) if mode == "sync" else asyncio.run(program.arun(inputs))


@MODES
@pytest.mark.parametrize("into", ["counts", "sums"])
def test_the_first_bad_result_stops_a_map(mode: str, into: str) -> None:
    calls: list[str] = []

    def work(doc: str) -> Any:
        calls.append(doc)
        return "many" if doc == "2" else int(doc)

    run = mapped(work, mode, into, max_concurrency=1)
    assert isinstance(run.error, NodeOutputError)
    assert f"{into}[2], which is refused" in str(run.error)
    assert calls == ["0", "1", "2"]
    assert any("in docs[2] of the map 'each'" in note for note in run.error.__notes__)


def test_results_that_run_already_are_finished() -> None:
    bad, done = threading.Event(), []

    def work(doc: str) -> Any:
        if doc == "0":
            bad.set()
            return "many"
        assert bad.wait(20)
        done.append(doc)
        return 1

    run = mapped(work, "sync", max_concurrency=2)
    assert "counts[0], which is refused" in str(run.error)
    assert done in ([], ["1"])


class Chat(BaseModel):
    docs: list[str]
    said: Annotated[list[dict[str, Any]], reducers.add_messages] = []


@MODES
def test_items_that_give_different_messages_with_one_id_are_refused(mode: str) -> None:
    def run(work: Any) -> Run:
        graph = Graph(Chat, inputs=["docs"]).add_map("each", work, over="docs", item="doc", into="said")
        program = graph.add_path(START, "each", END).compile()
        return program.run({"docs": ["a", "b"]}) if mode == "sync" else asyncio.run(program.arun({"docs": ["a", "b"]}))

    refused = run(lambda doc: {"id": "m", "content": doc})
    assert "different messages with the id 'm' for docs[0] and docs[1]" in str(refused.error)
    assert len(run(lambda doc: {"id": "m", "content": "same"}).state["said"]) == 1
    assert [each["content"] for each in run(lambda doc: {"role": "user", "content": doc}).state["said"]] == ["a", "b"]
