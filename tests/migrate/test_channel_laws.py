"""Random writes: a converted field holds what LangGraph's own channel holds, one by one and from parallel branches."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, _messages_delta_reducer, add_messages
from langgraph.managed import RemainingSteps
from langgraph.types import Command, Overwrite
from pydantic import BaseModel
from typing_extensions import TypedDict

from dspyer.errors import NodeOutputError
from dspyer.migrate import from_langgraph
from tests.budget import deep

numbers = st.integers(-9, 9)
words = st.text("ab", max_size=2)
lists = st.lists(numbers, max_size=3)
tables = st.dictionaries(words, st.one_of(numbers, lists, st.none()), max_size=3)
ids = st.sampled_from([None, "a", "b", "c"])


def messages() -> st.SearchStrategy[Any]:
    """A message in one of the notations that LangGraph takes."""
    return st.one_of(
        words,
        st.tuples(st.sampled_from(["user", "ai"]), words),
        st.builds(lambda text: {"role": "user", "content": text}, words),
        st.builds(lambda text, id_: AIMessage(text, id=id_), words, ids),
        st.builds(lambda text, id_: HumanMessage(text, id=id_), words, ids),
    )


chunks = st.builds(lambda text, id_: AIMessageChunk(text, id=id_), words, ids)
removals = st.builds(lambda id_: RemoveMessage(id=id_), st.sampled_from(["a", "b", REMOVE_ALL_MESSAGES]))


def extend_in_place(current: list[Any], update: list[Any]) -> list[Any]:
    current.extend(update)
    return current


def keep_three(current: list[Any] | None, update: list[Any]) -> list[Any]:
    return [*(current or []), *update][-3:]


def merge_deep(current: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    for key, value in update.items():
        if isinstance(value, list):
            current.setdefault(key, []).append(value) if isinstance(current.get(key), list) else current.update(
                {key: [value]}
            )
            value.append("seen")
        else:
            current[key] = value
    return current


def latest_messages(current: list[Any], update: Any) -> list[Any]:
    return list(add_messages(current, update))[-2:]


def batch_of_lists(current: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*current, *[item for write in writes for item in write]]


def batch_in_place(current: dict[str, Any], writes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for write in writes:
        current.update(write)
    return current


class Picky:
    """A type that cannot be made without arguments: the first update is the value."""

    def __init__(self, content: str) -> None:
        self.content = content


class Kind(NamedTuple):
    """A kind of channel: its annotation, the writes, the values of `Overwrite`, and whether branches may write it."""

    annotation: Any
    writes: st.SearchStrategy[Any]
    overwrites: st.SearchStrategy[Any] | None = None
    parallel: bool = True


KINDS = {
    "number": Kind(int, numbers, parallel=False),
    "dict": Kind(dict, tables, parallel=False),
    "dict of fields": Kind(dict[str, Any], st.one_of(tables, st.just({"__overwrite__": 1})), parallel=False),
    "optional": Kind(int | None, st.none() | numbers, parallel=False),
    "lists added": Kind(Annotated[list, operator.add], lists, lists),
    "lists added by a function": Kind(Annotated[list, lambda old, new: old + new], lists, lists),
    "numbers added": Kind(Annotated[int, operator.add], numbers, numbers),
    "numbers added by a function": Kind(Annotated[int, lambda old, new: old + new], numbers, numbers),
    "texts added": Kind(Annotated[str, operator.add], words, words),
    "tuples added": Kind(Annotated[tuple, operator.add], st.builds(tuple, lists), st.builds(tuple, lists)),
    "dicts merged": Kind(Annotated[dict, operator.or_], tables, tables),
    "sets merged": Kind(Annotated[set, operator.or_], st.sets(numbers), st.sets(numbers)),
    "in place": Kind(Annotated[list, extend_in_place], lists, lists),
    "deep, in place": Kind(Annotated[dict, merge_deep], tables, tables),
    "the last three": Kind(Annotated[Sequence[int], keep_three], lists, lists),
    "no start": Kind(Annotated[Picky, lambda current, update: f"{current}-{update}"], words),
    "optional with reducer": Kind(Annotated[list | None, keep_three], lists),
    "messages": Kind(
        Annotated[list, add_messages],
        messages() | st.lists(messages() | chunks | removals, max_size=4),
        st.lists(messages(), max_size=2),
    ),
    "messages for OpenAI": Kind(Annotated[list, add_messages(format="langchain-openai")], st.lists(messages())),
    "the last two messages": Kind(Annotated[list, latest_messages], st.lists(messages(), max_size=2)),
    "batches": Kind(Annotated[list, DeltaChannel(batch_of_lists)], lists, lists),
    "batches in place": Kind(Annotated[dict, DeltaChannel(batch_in_place)], tables, st.none() | tables),
    "batches of messages": Kind(
        Annotated[list, DeltaChannel(_messages_delta_reducer)], messages() | st.lists(messages() | removals, max_size=3)
    ),
}


def kinds(include: Callable[[Kind], bool] = lambda kind: True) -> Any:
    rows = [pytest.param(kind, id=name) for name, kind in KINDS.items() if include(kind)]
    return pytest.mark.parametrize("kind", rows)


def builder_of(kind: Kind) -> Any:
    make: Any = TypedDict
    return StateGraph(make("Values", {"x": kind.annotation}))


GIVEN_IDS = {"a", "b", "c"}


def shown(value: Any) -> Any:
    """A value of which the ids that an engine made are left out."""
    if isinstance(value, BaseMessage):
        return type(value), value.content, value.id if value.id in GIVEN_IDS else None
    if isinstance(value, list):
        return [shown(each) for each in value]
    return value


class Writing:
    """A converted graph whose node makes one write after the other, and keeps what it finds before each."""

    def __init__(self, kind: Kind) -> None:
        self.writes: list[Any] = []
        self.found: list[Any] = []
        builder = builder_of(kind)
        builder.add_node("n", self.write).add_edge(START, "n")
        builder.add_conditional_edges("n", lambda state: "n" if self.writes else END, ["n", END])
        self.program = from_langgraph(builder).compile(store=":memory:")
        self.runs = 0

    def write(self, state: Any) -> Any:
        self.found.append(state.get("x", MISSING))
        return {"x": self.writes.pop(0)}

    def run(self, writes: list[Any]) -> Any:
        """The thread after a run with these writes, and the run."""
        self.writes, self.found, self.runs = list(writes), [], self.runs + 1
        run = self.program.thread(f"{self.runs}").run({})
        return self.program.thread(f"{self.runs}"), run


MISSING = object()
WRITING: dict[int, Writing] = {}  # for all examples of a kind


def given_value(write: Any) -> Any:
    return shown(write.value if isinstance(write, Overwrite) else write)


@kinds()
@given(data=st.data())
def test_law_writes_one_by_one(kind: Kind, data: st.DataObject) -> None:
    write = kind.writes if kind.overwrites is None else kind.writes | st.builds(Overwrite, kind.overwrites)
    channel = builder_of(kind).channels["x"]
    channel = channel.from_checkpoint(channel.checkpoint())
    expected: list[Any] = []
    writes, failed = [], False
    for value in data.draw(st.lists(write, max_size=6)):
        if isinstance(value, Overwrite) and not channel.is_available():
            continue  # LangGraph keeps the Overwrite itself as the first value
        expected.append(copy.deepcopy(channel.get()) if channel.is_available() else MISSING)
        writes.append(value)
        try:
            channel.update([copy.deepcopy(value)])
        except Exception:  # noqa: BLE001 - whatever the reducer raises
            failed = True
            break
    if not writes:
        return
    if id(kind) not in WRITING:
        WRITING[id(kind)] = Writing(kind)
    before = list(map(given_value, copy.deepcopy(writes)))
    thread, run = WRITING[id(kind)].run(writes)
    assert (run.error is not None) == failed, run.error
    if not failed:
        expected.append(channel.get() if channel.is_available() else MISSING)
    found = [*WRITING[id(kind)].found, *([] if failed else [run.state.to_dict().get("x", MISSING)])]
    assert list(map(type, found)) == list(map(type, expected))
    assert list(map(shown, found)) == list(map(shown, expected))
    assert list(map(given_value, writes)) == before, "a fold changes no value that a node has returned"
    assert thread.state == run.state  # ids of messages too: a replay makes the same ones


@kinds(lambda kind: kind.parallel)
@settings(max_examples=500 if deep else 6)
@given(data=st.data())
def test_law_writes_of_parallel_branches(kind: Kind, data: st.DataObject) -> None:
    writes = data.draw(st.lists(kind.writes, min_size=1, max_size=3))
    builder = builder_of(kind)
    for number, value in enumerate(writes):
        builder.add_node(f"n{number}", lambda state, value=value: {"x": copy.deepcopy(value)})
        builder.add_edge(START, f"n{number}")
    try:
        expected = shown(builder.compile().invoke({})["x"])
    except Exception as error:  # noqa: BLE001 - whatever the reducer raises
        expected = error
    run = from_langgraph(builder).compile().run({})
    if isinstance(expected, Exception):
        assert type(run.error) in (type(expected), NodeOutputError)
    elif run.error is not None:  # a branch does not see, and cannot remove, what only a branch next to it has written
        assert "delete a message with an ID that doesn't exist" in str(run.error)
    else:
        assert shown(run.state.to_dict()["x"]) == expected


class Sheet(TypedDict):
    x: int
    log: Annotated[list[int], operator.add]
    left: RemainingSteps


@dataclass
class SheetObject:
    x: int | None = None
    log: list[int] = field(default_factory=list)
    other: int = 0


class SheetModel(BaseModel):
    x: int | None = None
    log: list[int] | None = None
    y: int = 3


tuples = st.lists(st.tuples(st.sampled_from(["x", "log", "left", "other"]), lists), max_size=3)
some = st.dictionaries(st.sampled_from(["x", "log", "left", "other"]), st.none() | lists, max_size=3)
objects = st.one_of(
    st.builds(SheetObject, x=st.none() | numbers, log=lists),
    st.fixed_dictionaries({}, optional={"x": st.none() | numbers, "log": st.none() | lists}).map(
        lambda given: SheetModel(**given)
    ),
)
commands = st.builds(lambda update: Command(update=update), st.one_of(st.none(), some, tuples, objects, numbers))
results = st.one_of(
    st.none(),
    some,
    objects,
    commands,
    st.lists(st.one_of(st.none(), some, objects, commands), max_size=3),
    tuples,
    numbers,
)


class Returning:
    """A graph whose node returns what a test says, in LangGraph and converted."""

    def __init__(self) -> None:
        self.result: Any = None
        builder = StateGraph(Sheet).add_node("n", lambda state: copy.deepcopy(self.result)).add_edge(START, "n")
        self.there = builder.compile()
        self.here = from_langgraph(builder, validate=False, extra="drop").compile()


@pytest.fixture(scope="module")
def returning() -> Returning:
    return Returning()


@given(result=results)
def test_law_a_result_stands_for_the_updates_that_langgraph_reads(returning: Returning, result: Any) -> None:
    returning.result = result
    try:
        expected = returning.there.invoke({"log": [0]})
    except Exception:  # noqa: BLE001 - what is no result, or what no reducer folds
        expected = None
    run = returning.here.run({"log": [0]})
    assert (run.error is not None) == (expected is None)
    assert expected is None or run.state.to_dict() == expected
