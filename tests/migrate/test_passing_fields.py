"""Fields that last for a step or for a run: `EphemeralValue`, `AnyValue` and `UntrackedValue` of LangGraph."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import dspy
import pytest
from langgraph.channels import AnyValue, EphemeralValue, UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from dspyer.errors import MergeConflictError
from dspyer.migrate import explain_langgraph, from_langgraph, langgraph_inputs
from dspyer.testing import ScriptedLM


class Passing(TypedDict, total=False):
    jump: Annotated[str, EphemeralValue(str)]
    either: Annotated[str, AnyValue(str)]
    newest: Annotated[str, EphemeralValue(str, guard=False)]
    calls: Annotated[int, UntrackedValue(int)]


class State(Passing, total=False):
    log: Annotated[list[str], operator.add]
    text: str


def seen_by(name: str, state: Any) -> str:
    return " ".join([name, *(str(state.get(key)) for key in Passing.__annotations__)])


def found(name: str, **update: Any) -> Any:
    """A node that logs what it reads of the passing fields."""
    return lambda state: {"log": [seen_by(name, state)], **update}


class Inner(Passing, total=False):
    text: str


def inner(**update: Any) -> Any:
    """A graph inside, which has another log: LangGraph would double that of the outer one."""

    def noted(name: str, **update: Any) -> Any:
        return lambda state: {"text": f"{state['text']} {seen_by(name, state)}", **update}

    builder = StateGraph(Inner).add_node("one", noted("one")).add_node("two", noted("two", **update))
    return builder.add_edge(START, "one").add_edge("one", "two").add_edge("two", END).compile()


def every_way() -> Any:
    """A chain with a fork, a `Command`, a `Send`, graphs inside, and routers that read what their node wrote."""
    builder = StateGraph(State)
    builder.add_node("first", found("first", jump="from first", either="first", calls=1))
    for name, update in {"p": {"jump": "p", "newest": "p"}, "q": {"either": "q", "newest": "q"}, "r": {}}.items():
        builder.add_node(name, found(name, **update))
        builder.add_edge("first", name).add_edge(name, "join")
    builder.add_node("join", found("join", jump="part"))
    builder.add_conditional_edges("join", lambda state: state["jump"], ["part"])
    builder.add_node("part", inner())
    builder.add_node("next", lambda state: Command(update=found("next", jump="x")(state), goto="loud"))
    builder.add_node("loud", inner(jump="from loud", calls=9))
    builder.add_node("route", lambda state: [Command(update=found("route", newest=n)(state)) for n in "12"])
    builder.add_conditional_edges("route", lambda state: [Send("sent", {"jump": str(state.get("jump"))})], ["sent"])
    builder.add_node("sent", found("sent", jump="last"))
    builder.add_edge(START, "first").add_edge("part", "next").add_edge("loud", "route").add_edge("sent", END)
    return builder


def test_each_node_and_each_run_of_a_thread_finds_what_it_finds_in_langgraph() -> None:
    app = every_way().compile(checkpointer=InMemorySaver())
    graph = from_langgraph(app)
    thread = graph.compile(store=":memory:").thread("1")
    config: Any = {"configurable": {"thread_id": "1"}}
    for value in ({"jump": "in", "calls": 5, "text": ""}, {"text": ""}, {"newest": "in"}):
        ended = app.invoke(value, config)
        run = thread.run(langgraph_inputs(app, value))
        run.raise_error()
        assert run.state.to_dict() == ended
    assert run.state["log"][0] == "first in None None 5"
    assert run.state["log"][9] == "first None None None None", "no value of the run before"
    (note,) = [note for note in explain_langgraph(app).notes if "each run" in note]
    assert note == "each run of a thread begins without 'calls', which is stored here, and must be data"
    assert thread.state == thread.at(run.commits[-1].id), "a replay empties them alike"


def test_a_module_in_the_place_of_a_node_empties_them_too() -> None:
    builder = StateGraph(State)
    builder.add_node("first", found("first", jump="on")).add_node("say", lambda state: {"text": "a"})
    builder.add_node("last", found("last"))
    builder.add_edge(START, "first").add_edge("first", "say").add_edge("last", END)
    builder.add_conditional_edges("say", lambda state: "first" if "jump" in state else "last", ["first", "last"])
    program = from_langgraph(builder, nodes={"say": dspy.Predict("log -> text")}).compile()
    with dspy.context(lm=ScriptedLM(lambda prompt: {"text": "b"})):
        assert program().log[-1] == "last None None None None"


def test_two_writes_at_once_are_a_conflict_where_langgraph_guards_the_field() -> None:
    builder = StateGraph(State)
    for name in "ab":
        builder.add_node(name, found(name, jump=name)).add_edge(START, name)
    assert isinstance(from_langgraph(builder).compile().run({"jump": "in"}).error, MergeConflictError)
    assert from_langgraph(builder, merge={"jump": "first_write_wins"}).compile().run({}).state["jump"] == "a"


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "another program"])
def test_a_question_comes_between_a_write_and_its_reader(tmp_path: Path, stored: bool) -> None:
    builder = StateGraph(State)
    builder.add_node("first", found("first", jump="on", calls=1))
    builder.add_node("ask", lambda state: {"text": interrupt("ok?"), **found("ask")(state)})
    builder.add_edge(START, "first").add_edge("first", "ask").add_edge("ask", END)
    app = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    app.invoke({}, config)
    ended = app.invoke(Command(resume="yes"), config)
    path = tmp_path / "runs.db" if stored else ":memory:"
    program = from_langgraph(builder).compile(store=path)
    program.thread("1").run({})
    if stored:
        program = from_langgraph(builder).compile(store=path)
    run = program.thread("1").resume({"ask-0": "yes"})
    assert ended["log"][-1] == "ask on None None None", "LangGraph does not store it"
    assert run.state["log"][-1] == "ask on None None 1", "an untracked value is still there after a stop"
    assert run.state["text"] == ended["text"] == "yes"
