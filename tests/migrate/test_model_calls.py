"""Which nodes call an LM is found in functions, closures, objects and chains, and each gets a line to write."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import dspy
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from pydantic import Field

from dspyer import Budget
from dspyer.events import Token
from dspyer.migrate import explain_langgraph, from_langgraph
from dspyer.migrate.langgraph_report import LMNode
from tests.rows import each


class State(MessagesState):
    letter: str
    desk: Literal["support", "billing"]
    urgent: bool
    scores: dict[str, float]
    notes: Annotated[list[str], operator.add]


class Model(FakeListChatModel):
    """A chat model that takes tools."""

    responses: list[str] = Field(default=["yes"])
    model_name: str = "m-1"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, Any]:
        return self.bind(tools=[{"type": "function", "function": {"name": each.name}} for each in tools])


@tool
def search(query: str) -> str:
    """Searches."""
    return query


LLM = Model()
BOUND = LLM.bind_tools([search])
PROMPT = ChatPromptTemplate.from_messages([("user", "Which desk is {letter} for?")])
CHAIN = PROMPT | LLM
PREDICT = dspy.Predict("letter -> desk")
TOOLS = [search]
DATA: list[object] = [*range(1_000), LLM]  # data is not read, and so the model not found


class Desk:
    """An object that holds models, and nodes that use them."""

    def __init__(self) -> None:
        self.llm = LLM
        self.rules = {"a": 1}

    def asks(self, state: State) -> Any:
        return {"desk": self.llm.invoke(state["letter"])}

    def counts(self, state: State) -> Any:
        return {"urgent": bool(self.rules)}

    def __call__(self, state: State) -> Any:
        return self.asks(state)


def in_a_chain(state: State) -> Any:
    return {"desk": CHAIN.invoke({"letter": state["letter"]}), "urgent": True}


def by_get(state: State) -> Any:
    other = {"urgent": True}
    assert other
    found = {"scores": {"a": float(LLM.invoke(state.get("letter", "")).content)}}
    found["notes"] = ["seen"]  # type: ignore[assignment]
    return found


def in_a_command(state: State) -> Any:
    return Command(update={"desk": LLM.invoke(state["letter"])}, goto="__end__")


def ask(model: Any, text: str) -> Any:
    return model.invoke(text)


def ask_twice(text: str) -> Any:
    return ask(LLM, text)


def two_deep(state: State) -> Any:
    return {"desk": ask_twice(state["letter"])}


def makes_one(state: State) -> Any:
    return {"desk": Model().invoke(state["letter"])}


def chats(state: State) -> Any:
    return {"messages": [LLM.invoke(state["messages"])]}


def chats_about(state: State) -> Any:
    return {"messages": [LLM.invoke(state["letter"])], "notes": ["asked"]}


def with_tools(state: State) -> Any:
    return {"messages": [BOUND.invoke(state["messages"])]}


def binds_tools(state: State) -> Any:
    return {"desk": LLM.bind_tools(TOOLS).invoke(state["letter"])}


def book(day: str) -> str:
    """Books."""
    return day


PLAIN = [book]


def binds_functions(state: State) -> Any:
    return {"desk": LLM.bind_tools(PLAIN).invoke(state["letter"])}


def rewrites(state: State) -> Any:
    return {"letter": LLM.invoke(state["letter"])}


def uses_dspy(state: State) -> Any:
    return {"desk": PREDICT(letter=state["letter"]).desk}


def makes_dspy(state: State) -> Any:
    return {"desk": dspy.Predict("letter -> desk")(letter=state["letter"]).desk}


def names_base(state: State) -> Any:
    return {"urgent": isinstance(state["letter"], BaseChatModel), "notes": [str(len(DATA))]}


def silent(state: State) -> Any:
    LLM.invoke("hi")


def plain(state: State) -> Any:
    return {"urgent": "urgent" in state["letter"]}


async def asks_async(state: State) -> Any:
    return {"desk": await LLM.ainvoke(state["letter"])}


def enclosing(model: Any) -> Callable[[State], Any]:
    def inside(state: State) -> Any:
        return {"desk": model.invoke(state["letter"])}

    return inside


class Team(Desk):
    """An object that inherits what asks."""

    def node(self, state: State) -> Any:
        return {"desk": self.asks(state)["desk"], "notes": [state["letter"]]}


def says(model: Any) -> Callable[[str], str]:
    return lambda text: str(model)


QUIET, LOUD = says(None), says(LLM)


def two_of_one_kind(state: State) -> Any:
    return {"desk": QUIET(state["letter"]) + LOUD(state["letter"])}


@tool
def ask_expert(question: str) -> str:
    """Asks."""
    return str(LLM.invoke(question).content)


LETTER_TO_DESK = "dspy.Predict(\"letter -> desk: Literal['support', 'billing']\")"
M1 = "Model m-1"
CASES: dict[str, tuple[Any, LMNode]] = {
    "chain in a function": (
        in_a_chain,
        LMNode("x", M1, "dspy.Predict(\"letter -> desk: Literal['support', 'billing'], urgent: bool\")"),
    ),
    "state.get and a variable": (
        by_get,
        LMNode("x", M1, 'dspy.Predict("letter -> scores: dict[str, float], notes: list[str]")'),
    ),
    "Command": (
        in_a_command,
        LMNode(
            "x",
            M1,
            LETTER_TO_DESK,
            remark="x also says where to go: call the module in a function that returns a dspyer.Command",
        ),
    ),
    "two functions deep": (two_deep, LMNode("x", M1, LETTER_TO_DESK)),
    "made in the node": (makes_one, LMNode("x", "Model", LETTER_TO_DESK)),
    "async": (asks_async, LMNode("x", M1, LETTER_TO_DESK)),
    "closure": (enclosing(LLM), LMNode("x", M1, LETTER_TO_DESK)),
    "partial": (
        partial(lambda model, state: {"desk": model.invoke(state["letter"])}, LLM),
        LMNode("x", M1, LETTER_TO_DESK),
    ),
    "method": (Desk().asks, LMNode("x", M1, LETTER_TO_DESK)),
    "inherited method": (
        Team().node,
        LMNode("x", M1, "dspy.Predict(\"letter -> desk: Literal['support', 'billing'], notes: list[str]\")"),
    ),
    "two closures of one function": (two_of_one_kind, LMNode("x", M1, LETTER_TO_DESK)),
    "callable object": (Desk(), LMNode("x", M1, 'dspy.Predict("... -> ...")')),
    "lambda": (lambda state: {"desk": LLM.invoke(state["letter"])}, LMNode("x", M1, LETTER_TO_DESK)),
    "chain as a node": (
        PROMPT | LLM | RunnableLambda(lambda message: {"desk": message.content}),
        LMNode("x", M1, 'dspy.Predict("letter -> ...")'),
    ),
    "conversation": (chats, LMNode("x", M1, 'dspy.Predict("conversation -> reply")', adds_message=True)),
    "message and a field": (
        chats_about,
        LMNode("x", M1, 'dspy.Predict("letter -> notes: list[str]")', also_writes=("messages",)),
    ),
    "tools": (
        with_tools,
        LMNode(
            "x",
            M1,
            'dspy.ReAct("conversation -> reply", tools=[search.func])',
            adds_message=True,
            remark="the module calls its tools itself",
        ),
    ),
    "tools bound in the node": (
        binds_tools,
        LMNode(
            "x",
            M1,
            "dspy.ReAct(\"letter -> desk: Literal['support', 'billing']\", tools=[search.func])",
            remark="the module calls its tools itself",
        ),
    ),
    "functions as tools": (
        binds_functions,
        LMNode(
            "x",
            M1,
            "dspy.ReAct(\"letter -> desk: Literal['support', 'billing']\", tools=[book])",
            remark="the module calls its tools itself",
        ),
    ),
    "a field that is rewritten": (
        rewrites,
        LMNode(
            "x",
            M1,
            'dspy.Predict("letter -> new_letter")',
            remark="an input and an output of a signature have different names: letter is both",
        ),
    ),
    "module of DSPy, made in the node": (makes_dspy, LMNode("x", "dspy.Predict", LETTER_TO_DESK)),
    "module of DSPy": (uses_dspy, LMNode("x", "dspy.Predict", "PREDICT")),
    "no field named": (silent, LMNode("x", M1, 'dspy.Predict("... -> ...")')),
    "tool that asks": (ToolNode([ask_expert]), LMNode("x", M1, 'dspy.Predict("... -> ...")')),
}


def one_node(node: Any) -> StateGraph[Any, Any, Any, Any]:
    return StateGraph(State).add_node("x", node).add_edge(START, "x")


@each("case", CASES, items=2)
def test_a_node_that_calls_an_lm_is_found_and_gets_a_line(case: str) -> None:
    node, expected = CASES[case]
    (found,) = explain_langgraph(one_node(node)).lm_calls
    assert found == expected


def replies(messages: Any, predict: Any) -> Any:
    return {"messages": [("ai", predict(conversation=str(messages)).reply)]}


@each("case", [name for name, (_, found) in CASES.items() if "..." not in found.suggestion], items=2)
def test_the_line_can_be_written_as_it_is(case: str) -> None:
    node, found = CASES[case]
    module = eval(found.suggestion, {"dspy": dspy, "search": search, "book": book, "PREDICT": PREDICT})
    new = {"node": replies, "modules": {"predict": module}} if found.adds_message else module
    if found.remark.startswith("an input and an output"):
        new = {"node": module, "writes": {"new_letter": "letter"}}
    if "Command" in case:  # a module goes nowhere
        return
    program = from_langgraph(one_node(node), nodes={"x": new}).compile()
    assert program.predictors()


@pytest.mark.parametrize("node", [plain, names_base, Desk().counts, ToolNode([search]), RunnableLambda(plain)])
def test_other_nodes_are_not_listed(node: Any) -> None:
    assert explain_langgraph(one_node(node)).lm_calls == ()


def test_calls_of_a_chat_model_of_langchain_have_no_tokens_and_no_place_in_a_budget() -> None:
    builder = StateGraph(MessagesState).add_node("one", lambda state: {"messages": LLM.invoke(state["messages"])})
    builder.add_node("two", lambda state: {"messages": LLM.invoke(state["messages"])})
    program = from_langgraph(builder.add_edge(START, "one").add_edge("one", "two")).compile()
    inputs = {"messages": [("user", "Hello")]}
    assert not [event for event in program.stream(inputs, tokens=True) if isinstance(event, Token)]
    run = program.run(inputs, budget=Budget(requests=1))
    assert (run.status, len(run.state["messages"]), run.usage) == ("completed", 3, {})


def test_nodes_of_graphs_inside_are_listed() -> None:
    builder = StateGraph(State).add_node("inner", one_node(chats).compile()).add_node("far", chats)
    builder.add_edge(START, "inner")
    assert [(call.node, call.lm) for call in explain_langgraph(builder).lm_calls] == [("inner.x", M1)]
