"""Maps: one result per item in order, errors that name the item, options that are refused."""

from __future__ import annotations

import threading
from typing import Any, Literal, TypedDict

import dspy
import pytest
from pydantic import BaseModel

from dspyer import Command, Run, Send
from dspyer.errors import NodeOutputError, UnsetFieldError
from tests.nodes.kit import MODES, answering, facts, problems, run_node
from tests.rows import each


class Digest(BaseModel):
    docs: list[str] = []
    title: str = ""
    summaries: list[Any] = []
    count: int = 0


class Summary(BaseModel):
    text: str


class Two(TypedDict, total=False):
    text: str
    length: int


class One(TypedDict):
    text: str


STATE = {"docs": ["b", "a"], "title": "t"}
MAP = {"name": "digest", "over": "docs", "item": "doc", "into": "summaries"}


def run_map(node: object, mode: str = "sync", state: Any = None, **options: Any) -> Run:
    given = {"schema": Digest, **MAP, **options}
    return run_node(node, STATE if state is None else state, mode, **given)


def results(node: object, mode: str = "sync", state: Any = None, **options: Any) -> Any:
    return run_map(node, mode, state, **options).state["summaries"]


def bare(doc: str) -> str:
    return doc.upper()


async def bare_async(doc: str) -> str:
    return doc.upper()


def patch(doc: str, title: str) -> dict[str, str]:
    return {"text": title + doc}


def two(doc: str) -> Two:
    return {"text": doc, "length": 1}


def one_of_two(doc: str) -> Two:
    return {"text": doc}


def typed_one(doc: str) -> One:
    return {"text": doc}


def model(doc: str) -> Summary:
    return Summary(text=doc)


def nothing(doc: str) -> None:
    return None


def prediction(doc: str) -> dspy.Prediction:
    return dspy.Prediction(text=doc)


@MODES
@each(
    ("fn", "expected"),
    [
        (bare, ["B", "A"]),
        (bare_async, ["B", "A"]),
        (patch, ["tb", "ta"]),
        (two, [{"text": "b", "length": 1}, {"text": "a", "length": 1}]),
        (one_of_two, [{"text": "b"}, {"text": "a"}]),
        (typed_one, ["b", "a"]),
        (model, [Summary(text="b"), Summary(text="a")]),
        (nothing, [None, None]),
        (prediction, ["b", "a"]),
        (lambda state: state["doc"], ["b", "a"]),
        (lambda **fields: sorted(fields), [["count", "doc", "docs", "summaries", "title"]] * 2),
    ],
)
def test_a_map_commits_one_result_per_item_in_their_order(fn: Any, expected: list[Any], mode: str) -> None:
    assert results(fn, mode) == expected


@MODES
def test_an_empty_list_commits_an_empty_list(mode: str) -> None:
    run = run_map(bare, mode, {"docs": [], "summaries": ["old"]})
    assert run.state["summaries"] == []


@MODES
def test_a_module_per_item(mode: str) -> None:
    with dspy.context(lm=answering({"text": "B!"}, {"text": "A!"})):
        run = run_map(dspy.Predict("title, doc -> text"), mode, max_concurrency=1)
    assert [inputs for _, inputs, _ in run.trace] == [{"title": "t", "doc": "b"}, {"title": "t", "doc": "a"}]
    assert run.state["summaries"] == ["B!", "A!"]


def test_a_module_per_item_by_another_name() -> None:
    with dspy.context(lm=answering({"reasoning": "r", "text": "B!"}, {"reasoning": "r", "text": "A!"})):
        given = results(
            dspy.ChainOfThought("document -> text"),
            reads={"document": "doc"},
            writes=["text", "reasoning"],
            max_concurrency=1,
        )
    assert given == [{"text": "B!", "reasoning": "r"}, {"text": "A!", "reasoning": "r"}]
    assert results(lambda document: document, reads={"document": "doc"}) == ["b", "a"]


def test_bound_modules_per_item() -> None:
    def fn(doc: str, ask: Any) -> str:
        return str(ask(doc=doc).text)

    with dspy.context(lm=answering({"text": "1"}, {"text": "2"})):
        assert results(fn, modules={"ask": dspy.Predict("doc -> text")}, max_concurrency=1) == ["1", "2"]


def test_reads_and_writes_of_a_map() -> None:
    assert facts(patch, schema=Digest, **MAP) == "reads title, docs; writes summaries; -> END"
    assert facts(lambda state: state["doc"], schema=Digest, **MAP).startswith("reads ?;")


@MODES
def test_the_list_may_come_with_a_send(mode: str) -> None:
    assert results(bare, mode, sent={"docs": ["sent"]}) == ["SENT"]


@MODES
@each(("most", "met"), [(1, False), (2, True), (None, True)])
def test_max_concurrency_bounds_how_many_items_run_at_once(most: int | None, met: bool, mode: str) -> None:
    second = threading.Event()

    def fn(doc: str) -> bool:
        if doc == "a":
            return second.wait(20 if met else 0.03)
        second.set()
        return met

    assert results(fn, mode, {"docs": ["a", "b"]}, max_concurrency=most) == [met, met]


@MODES
def test_a_failing_item_is_named_and_its_error_kept(mode: str) -> None:
    error = RuntimeError("mine")

    def fn(doc: str) -> str:
        if doc == "a":
            raise error
        return doc

    with pytest.raises(RuntimeError) as caught:
        results(fn, mode)
    assert caught.value is error
    assert caught.value.__notes__[0] == "in docs[1] of the map 'digest' (2 items)"


def goes(doc: str) -> Command[Literal["a"]]:
    return Command(goto="a")


@each(
    ("fn", "state", "error", "message"),
    [
        (goes, STATE, NodeOutputError, "an item, which goes nowhere"),
        (lambda doc: Send("a"), STATE, NodeOutputError, "of type Send"),
        (bare, {}, UnsetFieldError, "node 'digest' reads 'docs'"),
        (bare, {"docs": "text"}, NodeOutputError, "which holds 'text': add_map needs a list"),
        (bare, {"docs": {"a": 1}}, NodeOutputError, "add_map needs a list"),
        (bare, {"docs": 3}, NodeOutputError, "add_map needs a list"),
    ],
)
@MODES
def test_items_that_cannot_be_mapped_raise_in_the_run(
    fn: Any, state: dict[str, Any], error: type[Exception], message: str, mode: str
) -> None:
    with pytest.raises(error, match=message):
        results(fn, mode, state, schema=None)


@each(
    ("fn", "options", "message"),
    [
        (bare, {"over": "doc"}, "over='doc' is no field of the state"),
        (bare, {"into": "summary"}, "Did you mean 'summaries'?"),
        (bare, {"over": "title"}, "is a field of type str: a map needs a list"),
        (lambda title: title, {}, "never reads its item: give it a parameter or input 'doc'"),
        (dspy.Predict("title -> text"), {}, "never reads its item"),
        (lambda dok: dok, {}, "'dok' is no field"),
        (bare, {"max_concurrency": 0}, "max_concurrency=0: give the most items that run at once, 1 or more"),
        (bare, {"max_concurrency": "4"}, "max_concurrency='4': give the most items that run at once, 1 or more"),
        ("doc -> text", {}, "a signature needs a module"),
        (dspy.Predict("doc -> text"), {"writes": ["txt"]}, "Did you mean 'text'?"),
    ],
)
def test_wrong_options_of_a_map_are_problems(fn: Any, options: dict[str, Any], message: str) -> None:
    assert message in "\n".join(problems(fn, schema=Digest, **{**MAP, **options}))


def test_an_item_changed_in_place_changes_nothing_else() -> None:
    def fn(doc: dict[str, int]) -> int:
        doc["n"] += 1
        return doc["n"]

    state = {"docs": [{"n": 1}, {"n": 5}]}
    run = run_map(fn, "sync", state, schema=None)
    assert run.state["summaries"] == [2, 6]
    assert run.state["docs"] == state["docs"]
