"""`explain_langgraph` prints what a conversion would do, and `nodes=` replaces nodes as it suggests."""

from __future__ import annotations

import logging
import operator
from typing import Annotated, Any, Literal

import dspy
import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from typing_extensions import TypedDict

from dspyer.errors import GraphError, InputError
from dspyer.migrate import explain_langgraph, from_langgraph
from dspyer.testing import ScriptedLM


class State(MessagesState):
    letter: str
    desk: Literal["support", "billing"]
    notes: Annotated[list[str], operator.add]


LLM = FakeListChatModel(responses=["support"])


@tool
def search(query: str) -> str:
    """Searches."""
    return query


def classify(state: State) -> Any:
    return {"desk": LLM.invoke(state["letter"]).content, "notes": ["classified"]}


def support(state: State) -> Any:
    return {"messages": [LLM.invoke(state["messages"])]}


def billing(state: State) -> Any:
    return {"notes": [f"billed {state['letter']}"]}


def by_desk(state: State) -> Any:
    return state["desk"]


def letters() -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(State)
    for node in (classify, support, billing):
        builder.add_node(node)
    builder.add_node("tools", ToolNode([search]))
    builder.add_edge(START, "classify")
    builder.add_conditional_edges("classify", by_desk, ["support", "billing"])
    builder.add_edge("support", "tools")
    return builder


TEXT = """\
This graph can be converted: from_langgraph(graph).

Nodes
  node      what it is  calls the LM       reads     writes       goes to
  classify  function    FakeListChatModel  letter    desk, notes  support, billing
  support   function    FakeListChatModel  messages  messages     tools
  billing   function                       letter    notes        END
  tools     ToolNode                       ?         ?            END
  ?: its code does not name fields

These nodes call the model directly. They run unchanged; to tune and count
them, replace them with predictors, one by one:
  from_langgraph(graph, nodes={
      'classify': dspy.Predict("letter -> desk: Literal['support', 'billing'], notes: list[str]"),
      # def support(messages, predict): ... return {'messages': [('ai', predict(conversation=...).reply)]}
      'support': {'node': support, 'modules': {'predict': dspy.Predict("conversation -> reply")}},
  })"""


def test_the_report_is_a_table() -> None:
    assert str(explain_langgraph(letters())) == TEXT
    assert explain_langgraph(letters().compile()).problems == ()


@tool
def hand_over() -> Any:
    """Hands over."""
    raise AssertionError


def test_problems_come_first_and_notes_last() -> None:
    builder = letters()

    async def route(state: State) -> Any:
        return await LLM.ainvoke(state["letter"])

    builder.add_conditional_edges("billing", route)
    builder.add_node("alone", classify)
    lines = str(explain_langgraph(builder)).splitlines()
    assert lines[0] == "This graph cannot be converted as it is: 1 problem."
    assert lines[2] == "Problems"
    assert lines[3].startswith("  1. the router 'route' of 'billing' is async: a router is a plain function;")
    assert lines[-3] == "Notes"


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (42, "what was given is an int, which has no nodes and edges to convert"),
        (None, "what was given is a NoneType, which has no nodes and edges to convert"),
        (StateGraph(State), "the graph does not compile in LangGraph: "),
        (StateGraph, "what was given is a "),
    ],
)
def test_it_raises_nothing(graph: Any, problem: str) -> None:
    report = explain_langgraph(graph)
    (found,) = report.problems
    assert found.startswith(problem)
    assert found.split(":")[0] in str(report).replace("\n     ", " ")
    with pytest.raises(GraphError) as caught:
        from_langgraph(graph)
    assert tuple(caught.value.problems) == report.problems


class Proxy:
    """An object that loads what it stands for when it is looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Named(TypedDict, total=False):
    items: str


def test_a_warning_is_a_note() -> None:
    builder = StateGraph(Named).add_node("x", lambda state: {"items": "a"}).add_edge(START, "x")
    (note,) = explain_langgraph(builder).notes
    assert "dspy.Prediction has methods called items" in note


@pytest.mark.filterwarnings("ignore:graph .*dspy.Prediction has methods")
def test_what_nodes_use_is_not_asked_for_anything() -> None:
    proxy = Proxy()
    builder = StateGraph(Named).add_node("x", lambda state: proxy.items()).add_edge(START, "x")
    assert explain_langgraph(builder).problems == ()
    from_langgraph(builder).compile()


# --- nodes=


def test_nodes_are_replaced_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dspyer.migrate"):
        graph = from_langgraph(
            letters(), nodes={"classify": dspy.Predict("letter -> desk: Literal['support', 'billing']")}
        )
    assert [record.getMessage() for record in caplog.records] == [
        ("from_langgraph: 4 nodes converted; node 'classify' is replaced by Predict; its function also wrote notes")
    ]
    program = graph.compile()
    with pytest.raises(InputError, match="missing inputs: 'letter'"):
        program()
    assert [name for name, _ in program.named_predictors()] == ["classify"]
    with ScriptedLM([{"desk": "billing"}]) as lm:
        found = program.run({"letter": "I paid twice"})
    assert len(lm.calls) == 1
    assert found.state.to_dict() == {
        "letter": "I paid twice",
        "desk": "billing",
        "messages": [],
        "notes": ["billed I paid twice"],
    }


def wrote(text: str, letter: str) -> Any:
    return {"desk": text + letter}


REPLACEMENTS: dict[str, tuple[Any, str]] = {
    "module": (dspy.ChainOfThought("letter -> desk"), "is replaced by ChainOfThought; its function also wrote notes"),
    "all outputs": (dspy.Predict("letter -> desk, notes: list[str]"), "is replaced by Predict"),
    "function": (billing, "is replaced by billing; its function wrote desk, notes"),
    "function with writes": (
        {"node": billing, "writes": ["desk"]},
        "is replaced by billing; its function also wrote notes",
    ),
    "renamed outputs": (
        {"node": dspy.Predict("letter -> a"), "writes": {"a": "notes"}},
        "is replaced by Predict; its function also wrote desk",
    ),
}


@pytest.mark.parametrize("case", REPLACEMENTS)
def test_a_note_says_what_the_old_function_wrote_else(case: str, caplog: pytest.LogCaptureFixture) -> None:
    given, note = REPLACEMENTS[case]
    with caplog.at_level(logging.INFO, "dspyer.migrate"):
        from_langgraph(letters(), nodes={"classify": given})
    assert caplog.records[0].getMessage().split("; ", 1)[1] == f"node 'classify' {note}"


def test_a_node_inside_is_replaced_by_its_path() -> None:
    class Inner(TypedDict, total=False):
        letter: str
        desk: str

    inner = StateGraph(Inner).add_node("x", classify).add_edge(START, "x").compile()
    builder = StateGraph(Inner).add_node("inner", inner).add_edge(START, "inner")
    program = from_langgraph(builder, nodes={"inner.x": dspy.Predict("letter -> desk")}).compile()
    with ScriptedLM([{"desk": "billing"}]):
        assert program(letter="I paid twice").desk == "billing"


def test_a_conversation_in_a_graph_inside_converts() -> None:
    inner = StateGraph(MessagesState).add_node("x", support).add_edge(START, "x").compile()
    builder = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
    program = from_langgraph(builder).compile()
    assert [message.content for message in program(messages=[("user", "hi")]).messages] == ["hi", "support"]
