"""Maps: one result per item in order, errors that name the item, options that are refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypedDict, TypeVar

import dspy
import pytest
from pydantic import BaseModel

from dspyer.errors import NodeOutputError, UnsetFieldError
from dspyer.nodes.map import MapNode
from dspyer.nodes.node import Built, Command, OneByOne, Reply, Send, StartRule
from dspyer.schema.schema import Schema
from tests.nodes.kit import MODES, OPEN, answering, built_map, call_of, good, holder, reply
from tests.rows import each

T = TypeVar("T")


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


DIGEST = Schema.of(Digest)
STATE = {"docs": ["b", "a"], "title": "t"}


def mapped(node: object, schema: Schema = DIGEST, **options: Any) -> Built:
    given = {"over": "docs", "item": "doc", "into": "summaries", **options}
    return built_map(node, "digest", schema=schema, **given)


def results(node: object, mode: str, state: dict[str, Any] = STATE, **options: Any) -> Reply:
    found = mapped(node, **options)
    return reply(good(found), call_of(state, program=holder(digest=found.module or dspy.Module())), mode)


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
        (lambda **fields: sorted(fields), [["doc", "docs", "title"]] * 2),
    ],
)
def test_a_map_commits_one_result_per_item_in_their_order(fn: Any, expected: list[Any], mode: str) -> None:
    assert results(fn, mode) == Reply({"summaries": expected})


@MODES
def test_an_empty_list_commits_an_empty_list(mode: str) -> None:
    assert results(bare, mode, {"docs": []}) == Reply({"summaries": []})


@MODES
def test_a_module_per_item(mode: str) -> None:
    with dspy.context(lm=answering({"text": "B!"}, {"text": "A!"}), trace=[]):
        given = results(dspy.Predict("title, doc -> text"), mode)
        assert [step[1] for step in dspy.settings.trace] == [{"title": "t", "doc": "b"}, {"title": "t", "doc": "a"}]
    assert given.updates == {"summaries": ["B!", "A!"]}


def test_a_module_per_item_by_another_name() -> None:
    with dspy.context(lm=answering({"reasoning": "r", "text": "B!"}, {"reasoning": "r", "text": "A!"})):
        given = results(
            dspy.ChainOfThought("document -> text"), "sync", reads={"document": "doc"}, writes=["text", "reasoning"]
        )
    assert given.updates["summaries"] == [{"text": "B!", "reasoning": "r"}, {"text": "A!", "reasoning": "r"}]
    assert good(mapped(lambda document: document, reads={"document": "doc"})).reads == {"docs": "docs"}


def test_bound_modules_per_item() -> None:
    def fn(doc: str, ask: Any) -> str:
        return str(ask(doc=doc).text)

    found = mapped(fn, modules={"ask": dspy.Predict("doc -> text")})
    with dspy.context(lm=answering({"text": "1"}, {"text": "2"})):
        call = call_of(STATE, program=holder(digest=found.module or dspy.Module()), node="digest")
        assert reply(good(found), call).updates == {"summaries": ["1", "2"]}


def test_reads_writes_and_modules_of_a_map() -> None:
    node = good(mapped(patch, max_concurrency=2))
    assert isinstance(node, MapNode)
    assert node.reads == {"title": "title", "docs": "docs"}
    assert node.writes == {"summaries": "summaries"}
    assert node.max_concurrency == 2
    assert good(mapped(lambda state: state["doc"])).reads is None


@MODES
def test_the_list_may_come_with_a_send(mode: str) -> None:
    call = call_of(STATE, overlay={"docs": ["sent"]}, program=holder())
    assert reply(good(mapped(bare)), call, mode).updates == {"summaries": ["SENT"]}


class Recorder(OneByOne):
    """Runs the calls backwards and notes how many were asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int | None]] = []

    def gather(
        self, calls: Sequence[Callable[[], T]], max_concurrency: int | None, rule: StartRule | None = None
    ) -> list[T]:
        self.asked.append((len(calls), max_concurrency))
        return [call() for call in reversed(calls)][::-1]

    async def agather(
        self, calls: Sequence[Callable[[], Awaitable[T]]], max_concurrency: int | None, rule: StartRule | None = None
    ) -> list[T]:
        self.asked.append((len(calls), max_concurrency))
        return [await call() for call in reversed(calls)][::-1]


@MODES
def test_the_runner_of_the_call_runs_the_items(mode: str) -> None:
    runner = Recorder()
    node = good(mapped(bare, max_concurrency=3))
    given = reply(node, call_of(STATE)._replace(runner=runner), mode)
    assert runner.asked == [(2, 3)]
    assert given.updates == {"summaries": ["B", "A"]}


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
    assert caught.value.__notes__ == ["in docs[1] of the map 'digest' (2 items)"]


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
        results(fn, mode, state, schema=OPEN)


@each(
    ("fn", "options", "message"),
    [
        (bare, {"over": "doc"}, "over='doc' is no field of the state"),
        (bare, {"into": "summary"}, "Did you mean 'summaries'?"),
        (bare, {"over": "title"}, "is a field of type str: a map needs a list"),
        (lambda title: title, {}, "never reads its item: give it a parameter or input 'doc'"),
        (dspy.Predict("title -> text"), {}, "never reads its item"),
        (lambda dok: dok, {}, "'dok' is no field"),
        (bare, {"max_concurrency": 0}, "max_concurrency=0 lets no item run"),
        (bare, {"max_concurrency": "4"}, "max_concurrency='4': give the most items that run at once, or None"),
        ("doc -> text", {}, "a signature needs a module"),
        (dspy.Predict("doc -> text"), {"writes": ["txt"]}, "Did you mean 'text'?"),
    ],
)
def test_wrong_options_of_a_map_are_problems(fn: Any, options: dict[str, Any], message: str) -> None:
    found = mapped(fn, **options)
    text = "\n".join((*found.problems, *found.unknown))
    assert message in text


def test_an_item_changed_in_place_changes_nothing_else() -> None:
    def fn(doc: dict[str, int]) -> int:
        doc["n"] += 1
        return doc["n"]

    state = {"docs": [{"n": 1}, {"n": 5}]}
    assert results(fn, "sync", state, schema=OPEN).updates == {"summaries": [2, 6]}
