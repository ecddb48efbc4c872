"""Graphs about the state: schemas, channels, messages, and what a node may return."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableLambda
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, Overwrite
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.migrate.cases import Case, Seen, case

CASES: list[Case] = []
NAMES = "the errors have other names"


class Letter(TypedDict):
    text: str
    desk: NotRequired[str]
    log: Annotated[list[str], operator.add]


def chain(schema: Any, *nodes: tuple[str, Any], **schemas: Any) -> Any:
    """A graph whose nodes follow each other."""
    builder = StateGraph(schema, **schemas)
    for name, runnable in nodes:
        builder.add_node(name, runnable)
    names = [START, *(name for name, _ in nodes), END]
    for before, after in pairwise(names):
        builder.add_edge(before, after)
    return builder


@case(CASES, {"text": "hi", "log": ["in"]}, {"text": "HI", "desk": "sales", "log": ["in", "a", "b"]}, "a b")
def typed_dict(seen: Seen) -> Any:
    return chain(
        Letter,
        ("a", seen.node("a", lambda state: {"text": state["text"].upper(), "log": ["a"]})),
        ("b", seen.node("b", lambda state: {"desk": "sales" if state["text"] == "HI" else "none", "log": ["b"]})),
    )


@dataclass
class Parcel:
    weight: int
    notes: Annotated[list[str], operator.add] = field(default_factory=list)
    price: float = 1.5


@case(CASES, {"weight": 2}, {"weight": 2, "notes": ["weighed"], "price": 3.0}, "weigh")
def dataclass_schema(seen: Seen) -> Any:
    def weigh(state: Parcel) -> dict[str, Any]:
        seen.append("weigh")
        assert type(state) is Parcel
        return {"price": state.weight * state.price, "notes": ["weighed"]}

    return chain(Parcel, ("weigh", weigh))


class Order(BaseModel):
    item: str
    count: int = 1
    parts: dict[str, int] = {}


@case(CASES, {"item": "tea", "count": "3"}, {"item": "tea", "count": 4, "parts": {"tea": 3}}, "a")
def pydantic_schema(seen: Seen) -> Any:
    def a(state: Order) -> dict[str, Any]:
        seen.append("a")
        return {"count": state.count + 1, "parts": {state.item: state.count}}

    return chain(Order, ("a", a))


@case(CASES, Order(item="tea"), {"item": "tea", "count": 1, "parts": {"x": 1}}, "a")
def a_model_as_input_and_output(seen: Seen) -> Any:
    return chain(Order, ("a", seen.node("a", lambda state: state.model_copy(update={"parts": {"x": 1}}))))


@case(CASES, ["in"], {"root": ["in", "a 1", "b 2"]}, "a b")
def a_state_without_keys(seen: Seen) -> Any:
    return chain(
        Annotated[list[str], operator.add],
        ("a", seen.node("a", lambda state: [f"a {len(state)}"])),
        ("b", seen.node("b", lambda state: [f"b {len(state)}"])),
    )


class Question(TypedDict):
    question: str


class Answer(TypedDict):
    answer: str


class Everything(Question, Answer):
    thought: str


@case(CASES, {"question": "why"}, {"question": "why", "thought": "why?", "answer": "why?!"}, "think reply")
def input_and_output_schema(seen: Seen) -> Any:
    return chain(
        Everything,
        ("think", seen.node("think", lambda state: {"thought": state["question"] + "?"})),
        ("reply", seen.node("reply", lambda state: {"answer": state["thought"] + "!"})),
        input_schema=Question,
        output_schema=Answer,
    )


class Private(TypedDict):
    draft: str


@case(CASES, {"question": "why"}, {"question": "why", "draft": "d why", "answer": "D WHY"}, "write publish")
def private_schema_between_two_nodes(seen: Seen) -> Any:
    class Public(TypedDict):
        question: str
        answer: str

    def write(state: Public) -> Private:
        seen.append("write")
        return {"draft": "d " + state["question"]}

    def publish(state: Private) -> dict[str, str]:
        seen.append("publish")
        assert state == {"draft": "d why"}, "a node sees the keys of its own schema"
        return {"answer": state["draft"].upper()}

    builder = StateGraph(Public)
    builder.add_node("write", write, input_schema=Public)
    builder.add_node("publish", publish, input_schema=Private)
    builder.add_edge(START, "write")
    builder.add_edge("write", "publish")
    return builder


@case(CASES, {"log": []}, {"log": ["nothing ['log']"]}, "a")
def unset_stays_unset(seen: Seen) -> Any:
    return chain(Letter, ("a", seen.node("a", lambda s: {"log": [f"{s.get('desk', 'nothing')} {sorted(s)}"]})))


@case(CASES, {"log": []}, None, "a", error="KeyError")
def reading_what_is_unset(seen: Seen) -> Any:
    return chain(Letter, ("a", seen.node("a", lambda state: {"desk": state["desk"]})))


class Bag(TypedDict):
    data: dict[str, Any]


@case(CASES, {"data": {"a": 1, "deep": {"x": 1}}}, {"data": {"b": None, "deep": {}}}, "a")
def a_mapping_is_replaced_and_never_merged(seen: Seen) -> Any:
    return chain(Bag, ("a", seen.node("a", {"data": {"b": None, "deep": {}}})))


class MaybeBag(TypedDict):
    data: dict[str, Any] | None


@case(CASES, {"data": {"a": 1}}, {"data": None}, "a")
def none_is_a_value(seen: Seen) -> Any:
    return chain(MaybeBag, ("a", seen.node("a", {"data": None})))


def larger(left: int, right: int) -> int:
    return max(left, right)


class Totals(TypedDict):
    total: Annotated[int, operator.add]
    best: Annotated[int, larger]
    seen: Annotated[set[str], operator.or_]
    flat: Annotated[dict[str, Any], operator.or_]
    first: Annotated[str, lambda left, right: left or right]


@case(
    CASES,
    {"total": 5, "flat": {"a": {"x": 1}, "z": 1}},
    {"total": 7, "best": 3, "seen": {"a"}, "flat": {"a": {"y": 2}, "z": 1}, "first": "one"},
    "a b",
)
def reducers_start_from_the_empty_value_of_their_type(seen: Seen) -> Any:
    first = {"total": 1, "best": 3, "seen": {"a"}, "flat": {"a": {"y": 2}}, "first": "one"}
    return chain(
        Totals,
        ("a", seen.node("a", first)),
        ("b", seen.node("b", {"total": 1, "best": -2, "first": "two"})),
    )


def push(items: list[str], more: list[str]) -> list[str]:
    """A reducer that changes its first argument."""
    items.extend(more)
    return items


class Pushed(TypedDict):
    log: Annotated[list[str], push]


@case(
    CASES,
    {"log": ["in"]},
    {"log": ["in", "a", "a", "b"]},
    "a b",
    dspyer={"log": ["in", "a", "b"]},
    why="LangGraph calls the reducer once for the router and once for the commit, on the same list",
)
def a_reducer_that_changes_its_argument(seen: Seen) -> Any:
    builder = StateGraph(Pushed)
    builder.add_node("a", seen.node("a", {"log": ["a"]}))
    builder.add_node("b", seen.node("b", {"log": ["b"]}))
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", lambda state: "b" if state["log"] else END, ["b", END])
    return builder


def all_at_once(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Delta(TypedDict):
    log: Annotated[list[str], DeltaChannel(all_at_once)]


@case(CASES, {"log": ["in"]}, {"log": ["in", "a", "b"]}, "a b")
def delta_channel(seen: Seen) -> Any:
    return chain(Delta, ("a", seen.node("a", {"log": ["a"]})), ("b", seen.node("b", {"log": ["b"]})))


@case(
    CASES,
    {"messages": [("user", "hi"), {"role": "assistant", "content": "yes", "id": "m2"}]},
    {"messages": [("human", "hi", "generated"), ("ai", "no", "m2"), ("ai", "more", "generated")]},
    "a b",
)
def messages_are_merged_by_id(seen: Seen) -> Any:
    return chain(
        MessagesState,
        ("a", seen.node("a", {"messages": AIMessage("no", id="m2")})),
        ("b", seen.node("b", {"messages": [AIMessage("more")]})),
    )


@case(
    CASES,
    {"messages": [HumanMessage("one", id="1"), HumanMessage("two", id="2")]},
    {"messages": [("human", "two", "2"), ("ai", "3", "3")]},
    "forget reply",
)
def messages_are_removed(seen: Seen) -> Any:
    return chain(
        MessagesState,
        ("forget", seen.node("forget", lambda state: {"messages": [RemoveMessage(state["messages"][0].id)]})),
        ("reply", seen.node("reply", {"messages": [AIMessage("3", id="3")]})),
    )


@case(CASES, {"messages": [HumanMessage("one", id="1")]}, {"messages": [("ai", "2", "2")]}, "a")
def all_messages_are_removed(seen: Seen) -> Any:
    update = {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), AIMessage("2", id="2")]}
    return chain(MessagesState, ("a", seen.node("a", update)))


@case(CASES, {"messages": [("user", "hi")]}, None, "a", error="ValueError")
def an_unknown_message_is_removed(seen: Seen) -> Any:
    return chain(MessagesState, ("a", seen.node("a", {"messages": [RemoveMessage("none")]})))


@case(CASES, {"log": ["in"]}, {"log": ["only", "b"]}, "a b")
def overwrite(seen: Seen) -> Any:
    return chain(Pushed, ("a", seen.node("a", {"log": Overwrite(["only"])})), ("b", seen.node("b", {"log": ["b"]})))


@case(
    CASES,
    {"log": ["in"]},
    {"log": ["only"]},
    "a b",
    dspyer_error="MergeConflictError",
    why="rule 14: LangGraph drops the write that happens at the same time as an Overwrite",
)
def overwrite_and_a_write_in_parallel(seen: Seen) -> Any:
    builder = StateGraph(Pushed)
    builder.add_node("a", seen.node("a", {"log": Overwrite(["only"])}))
    builder.add_node("b", seen.node("b", {"log": ["lost"]}))
    for name in "ab":
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder


@case(
    CASES,
    {"text": "hi", "log": []},
    {"text": "hi", "log": ["a"]},
    "a",
    dspyer_error="NodeOutputError",
    why="rule 8: LangGraph drops a key that is no field",
)
def a_key_that_is_no_field(seen: Seen) -> Any:
    key = "".join(["te", "xts"])
    return chain(Letter, ("a", seen.node("a", {key: "lost", "log": ["a"]})))


@case(CASES, {"text": "hi", "log": []}, {"text": "hi", "log": ["a"]}, "a", options={"extra": "drop"})
def a_key_that_is_no_field_dropped(seen: Seen) -> Any:
    key = "".join(["te", "xts"])
    return chain(Letter, ("a", seen.node("a", {key: "lost", "log": ["a"]})))


@case(
    CASES,
    {"data": {"list": [1]}},
    {"data": {"list": [1, 2]}},
    "a",
    dspyer={"data": {"list": [1]}},
    why="rule 7: a node gets a copy, so what it changes in place is not part of the state",
)
def a_node_that_changes_its_state_in_place(seen: Seen) -> Any:
    return chain(Bag, ("a", seen.node("a", lambda state: state["data"]["list"].append(2))))


@case(CASES, {"log": []}, {"log": ["in place", "a"]}, "a b")
def a_node_that_returns_what_it_has_changed(seen: Seen) -> Any:
    def a(state: Any) -> Any:
        seen.append("a")
        state["text"] = "in place"
        return {"log": [state["text"]]}

    return chain(Letter, ("a", a), ("b", seen.node("b", {"log": ["a"]})))


@case(
    CASES, {"text": "x", "log": []}, None, "a", error="InvalidUpdateError", dspyer_error="NodeOutputError", why="text"
)
def a_list_of_dicts(seen: Seen) -> Any:
    return chain(Letter, ("a", seen.node("a", [{"log": ["1"]}, {"log": ["2"]}])))


@case(CASES, {"text": "x", "log": []}, {"text": "x", "log": ["1", "2"]}, "nothing twice")
def none_and_a_list_of_updates(seen: Seen) -> Any:
    return chain(
        Letter,
        ("nothing", seen.node("nothing")),
        ("twice", seen.node("twice", [Command(update={"log": ["1"]}), {"log": ["2"]}])),
    )


@case(
    CASES, {"text": "x", "log": []}, None, "a", error="InvalidUpdateError", dspyer_error="NodeOutputError", why="text"
)
def a_result_that_is_no_update(seen: Seen) -> Any:
    return chain(Letter, ("a", seen.node("a", "text")))


@case(CASES, {"text": "x", "log": []}, {"text": "X", "log": ["chained"]}, "upper")
def a_chain_of_runnables(seen: Seen) -> Any:
    upper = RunnableLambda(seen.node("upper", lambda state: state["text"].upper()))
    return chain(Letter, ("chained", upper | (lambda text: {"text": text, "log": ["chained"]})))


@case(CASES, {"text": "x", "log": []}, {"text": "x", "log": ["await", "plain"]}, "wait plain", only_async=True)
def async_nodes(seen: Seen) -> Any:
    async def wait(state: Any) -> Any:
        seen.append("wait")
        return {"log": ["await"]}

    return chain(Letter, ("wait", wait), ("plain", seen.node("plain", {"log": ["plain"]})))


@case(CASES, {"item": "tea"}, None, "a", error="ValidationError", dspyer_error="NodeOutputError", why="rule 4")
def an_invalid_value(seen: Seen) -> Any:
    """LangGraph calls `b`, which cannot read what `a` has committed; dspyer refuses to commit it."""
    return chain(Order, ("a", seen.node("a", {"count": "many"})), ("b", seen.node("b", {})))


@case(
    CASES,
    {"data": {"a": 1}},
    {"data": None},
    "a",
    dspyer_error="NodeOutputError",
    why="rule 4: LangGraph validates no field of a TypedDict",
)
def a_value_of_another_type(seen: Seen) -> Any:
    return chain(Bag, ("a", seen.node("a", {"data": None})))


@case(CASES, {"data": {"a": 1}}, {"data": None}, "a", options={"validate": False})
def a_value_of_another_type_without_validation(seen: Seen) -> Any:
    return chain(Bag, ("a", seen.node("a", {"data": None})))


@case(CASES, {"item": "tea"}, {"item": "tea", "count": 2}, "a")
def defaults_of_a_model_are_no_part_of_the_state(seen: Seen) -> Any:
    return chain(Order, ("a", seen.node("a", lambda state: {"count": state.count + 1})))


class Chat(MessagesState):
    summary: str


@case(
    CASES,
    {"messages": "hi"},
    {"messages": [("human", "hi", "generated"), ("ai", "1", "a1")], "summary": "1 message"},
    "summarize reply",
)
def a_schema_that_extends_messages(seen: Seen) -> Any:
    return chain(
        Chat,
        ("summarize", seen.node("summarize", lambda state: {"summary": f"{len(state['messages'])} message"})),
        ("reply", seen.node("reply", lambda state: {"messages": AIMessage(state["summary"][:1], id="a1")})),
    )


class Parallel(TypedDict):
    messages: Annotated[list[Any], add_messages]


@case(
    CASES,
    {"messages": [HumanMessage("q", id="q")]},
    {"messages": [("human", "q", "q"), ("ai", "from a", "a"), ("ai", "from b", "b")]},
    "a b",
)
def messages_of_parallel_nodes(seen: Seen) -> Any:
    builder = StateGraph(Parallel)
    for name in "ba":
        builder.add_node(name, seen.node(name, {"messages": [AIMessage(f"from {name}", id=name)]}))
        builder.add_edge(START, name)
    return builder
