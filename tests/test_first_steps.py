"""Frequent mistakes of new users, and what the errors say about them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict, cast

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Command, CompiledGraph, Graph, ImmutableState, reducers
from dspyer.testing import Asks, ScriptedLM
from tests.rows import each


class Person(BaseModel):
    name: str
    age: int = 0


class Card(BaseModel):
    text: str
    person: Person | None = None


class Debate(BaseModel):
    topic: str
    turns: Annotated[list[str], reducers.append] = []
    decision: Literal["on", "stop"] = "on"


class Client:
    def ask(self) -> str:
        return "asked"


def of(node: Any, schema: type[BaseModel] | None = None) -> CompiledGraph:
    return Graph(schema).add_node("node", node).add_path(START, "node", END).compile()


def test_a_label_of_a_router_may_fork() -> None:
    graph = Graph(Debate)
    graph.add_node("pro", lambda topic: {"turns": f"for {topic}"}, writes=["turns"])
    graph.add_node("contra", lambda topic: {"turns": f"against {topic}"}, writes=["turns"])
    graph.add_node("moderate", lambda turns: {"decision": "stop" if len(turns) > 2 else "on"}, writes=["decision"])
    graph.add_edge(START, ["pro", "contra"]).add_edge(["pro", "contra"], "moderate")
    graph.add_conditional_edges("moderate", "decision", {"on": ["pro", "contra"], "stop": END})
    program = graph.compile()
    assert program(topic="tea").turns == ["for tea", "against tea"] * 2
    ways = """add_conditional_edges("moderate", 'decision', {'on': ["pro", "contra"], 'stop': END})"""
    assert ways in inspect.getsource(type(program))
    assert '"on"' in program.graph.to_mermaid()


def returns_a_model(text: str) -> Any:
    return Person(name=text)


def promises_a_model(text: str) -> Person:
    return Person(name=text)


def needs_a_client(client: Client) -> dict[str, str]:
    return {"reply": client.ask()}


def takes_s(s: Any) -> dict[str, int]:
    return {"n": s["n"] + 1}


def commands(s: Any) -> Any:
    return Command({"n": 1}, goto="b")


def takes_an_option(text: str, limit: int = 3) -> dict[str, int]:
    return {"n": limit}


class Loose(TypedDict):
    """A `TypedDict`, which is a schema in LangGraph."""

    text: str


def asking() -> Any:
    """A thread that waits for an answer."""
    graph = Graph().add_interrupt("ok", question="Go on?", answer=bool, into="good").add_path(START, "ok", END)
    thread = graph.compile(store=":memory:").thread("t")
    thread.run({})
    return thread


class Silent(dspy.Module):
    """A module that does not declare its outputs."""

    def forward(self, text: str) -> Any:
        return dspy.Prediction(reply=text)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a model that is meant as a value": (lambda: of(returns_a_model, Card)(text="Ada"), "return {'field': ...}"),
    "a model promised that is meant as a value": (lambda: of(promises_a_model, Card), "return {'field': ...}"),
    "one resource": (
        lambda: of(needs_a_client).with_resources(cast(Any, Client())),
        r"not as one Client: write resources=\[...\]",
    ),
    "a class as resource": (
        lambda: of(needs_a_client).run({}, resources=[Client]),
        "Client is a class",
    ),
    "a state called s": (lambda: of(takes_s)(n=1), "'s', read by 'node'; for the state as a whole .* `state`"),
    "a missing input": (of(takes_an_option), r"'text', read by 'node' \(given: none\)$"),
    "a misspelt input": (
        lambda: of(takes_an_option)(txt="a"),
        r"Did you mean 'text'.*read by 'node' \(given: 'txt'\)$",
    ),
    "a dead end alone": (
        lambda: Graph().add_node("a", takes_s).add_node("b", takes_s).add_path(START, "a", "b").compile(),
        r"^node 'b' is a dead end: add an edge from it, add_edge\('b', END\) if the branch ends there$",
    ),
    "a TypedDict as schema": (lambda: Graph(cast(Any, Loose)), r"write class Loose\(BaseModel\)"),
    "a run of a graph that is not compiled": (
        lambda: Graph().run({}),
        r"a Graph has no 'run'.*Call .compile\(\)",
    ),
    "a picture of a graph that is not compiled": (
        lambda: Graph().explain(),
        r"a Graph has no 'explain': compile\(\) it, and ask its program, program.graph.explain",
    ),
    "a bare answer": (lambda: asking().resume(True), r"resume\({'key': answer}\), not as True. Open questions: 'ok'"),
    "a field as an attribute": (lambda: ImmutableState({"n": 1}).n, r"read as state\['n'\]"),
    "an edge to START": (
        lambda: Graph().add_node("a", takes_s).add_edge(START, "a").add_edge("a", START).compile(),
        "'a' -> 'START' goes to the start: name the first node",
    ),
    "an edge from END": (
        lambda: Graph().add_node("a", takes_s).add_edge(START, "a").add_edge(END, "a").compile(),
        "'END' -> 'a' begins where a branch ends",
    ),
    "a router without a Literal": (
        lambda: (
            Graph()
            .add_node("a", takes_s)
            .add_edge(START, "a")
            .add_conditional_edges("a", dspy.Predict("q -> a"))
            .compile()
        ),
        "^the router of 'a' is a Predict with no Literal output: a router has exactly one",
    ),
    "too much to read": (
        lambda: Graph().add_node("a", dspy.Predict("q -> a"), reads=["q", "z"]).add_path(START, "a", END).compile(),
        "'z' in reads is none of its inputs .* Leave it out",
    ),
    "START and END in small letters": (
        lambda: Graph().add_node("a", takes_s).add_path("start", "a", "end").compile(),
        r"(?s)nothing starts.*names no node 'end'. Did you mean 'END'\?.*names no node 'start'. Did you mean 'START'\?",
    ),
    "START and END of LangGraph": (
        lambda: Graph().add_node("a", takes_s).add_path("__start__", "a", "__end__").compile(),
        r"(?s)'__end__'\. It is the END of LangGraph: .* END from dspyer.*'__start__'\. It is the START of LangGraph",
    ),
    "an edge to a function": (
        lambda: Graph().add_node(takes_s).add_edge(START, cast(Any, takes_s)),
        r"add the function with add_node\(takes_s\) and write 'takes_s' here",
    ),
    "a router after two nodes": (
        lambda: Graph().add_conditional_edges(cast(Any, ["a", "b"]), "s", {"x": "c"}),
        "a router follows one node, not 'a', 'b': lead them to one node, and add it there",
    ),
    "a router after a function": (
        lambda: Graph().add_node(takes_s).add_conditional_edges(cast(Any, takes_s), "s", {"x": "c"}),
        r"add the function with add_node\(takes_s\) and write 'takes_s' here",
    ),
    "modules in a list": (
        lambda: (
            Graph()
            .add_node("a", lambda p: None, modules=cast(Any, [dspy.Predict("q -> a")]))
            .add_path(START, "a", END)
            .compile()
        ),
        "modules takes a dict from parameters to modules",
    ),
    "a Command without targets": (
        lambda: Graph().add_node("a", commands).add_edge(START, "a").compile(),
        r"'a' is a dead end: .*; declare where its Command goes with add_node\(goto=\[...\]\)",
    ),
    "invoke": (lambda: cast(Any, of(returns_a_model)).invoke({}), r"write|call the program, program\(question=...\)"),
    "invoke of a graph": (lambda: cast(Any, Graph()).invoke({}), r"compile\(\) it, and call what that returns"),
    "an entry point": (
        lambda: cast(Any, Graph()).set_entry_point("a"),
        r"no attribute 'set_entry_point': write add_edge\(START, 'first'\)",
    ),
    "a field of a run": (
        lambda: cast(Any, of(takes_s).run({"s": {"n": 1}})).n,
        r"'Run' object has no attribute 'n': a field of the state is read as run.state\['n'\]",
    ),
    "inputs of a run by name": (
        lambda: cast(Any, of(takes_s)).run(s={"n": 1}),
        r"run\(\) has no option 's'. Inputs are given as one dict: run\({'s': ...}\)$",
    ),
    "inputs of a run on a thread by name": (
        lambda: (
            cast(Any, Graph().add_node("a", takes_s).add_path(START, "a", END))
            .compile(store=":memory:")
            .thread("t")
            .run(s={})
        ),
        r"run\(\) has no option 's'. Inputs are given as one dict",
    ),
    "inputs of a stream by name": (
        lambda: cast(Any, of(takes_s)).stream(s={"n": 1}),
        r"stream\(\) has no option 's'. Inputs are given as one dict: stream\({'s': ...}\)$",
    ),
    "inputs of an async run by name": (
        lambda: asyncio.run(cast(Any, of(takes_s)).arun(s={"n": 1})),
        r"arun\(\) has no option 's'. Inputs are given as one dict: arun\({'s': ...}\)$",
    ),
    "a retry policy of LangGraph": (
        lambda: cast(Any, Graph()).add_node("a", takes_s, retry_policy=3),
        r"add_node\(retry_policy=\) is a name of LangGraph: write add_node\('node', retry=3\)$",
    ),
    "a misspelt option of add_node": (
        lambda: cast(Any, Graph()).add_node("a", takes_s, write=["n"]),
        r"add_node\(\) has no option 'write'. Did you mean 'writes'\?$",
    ),
    "a misspelt option of a run": (
        lambda: cast(Any, of(takes_s)).run({"s": {"n": 1}}, buget=None),
        r"run\(\) has no option 'buget'. Did you mean 'budget'\?$",
    ),
    "a misspelt attribute of a run": (
        lambda: cast(Any, of(takes_s).run({"s": {"n": 1}})).failure,
        r"read as run.state\['failure'\]. Did you mean 'failures'\?$",
    ),
    "tokens of a run": (
        lambda: cast(Any, of(takes_s).run({"s": {"n": 1}})).tokens(),
        r"'Run' object has no attribute 'tokens': what views save is run.view_tokens\(\), and run.usage is per model$",
    ),
    "one name of several inputs": (lambda: Graph(inputs="s", required="t").compile(), "required names 't'"),
    "a misspelt option of a node": (lambda: of(takes_an_option)(text="x", limt=3), "Did you mean 'limit'"),
    "a class of modules without outputs": (
        lambda: of(Silent(), Card),
        "a module of class Silent does not say what it gives",
    ),
    "pairs and answers in one script": (
        lambda: ScriptedLM([(Asks("a"), {"a": "1"}), {"b": "2"}]),
        r"not both: its item \[1\] is no pair",
    ),
}


@each(("make", "text"), MISTAKES.values(), ids=MISTAKES)
def test_the_error_of_a_frequent_mistake_says_what_to_do(make: Callable[[], Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError), match=text):
        make()


def failing_route(text: str) -> str:
    raise KeyError("mine")


def test_the_note_of_an_exception_names_the_router() -> None:
    graph = Graph().add_node("read", lambda text: None, writes=[]).add_edge(START, "read")
    run = graph.add_conditional_edges("read", failing_route, [END]).compile().run({"text": "a"})
    assert run.error is not None
    assert run.error.__notes__[0] == "in the router of 'read'"


def test_the_note_of_an_exception_names_the_lm_router() -> None:
    graph = Graph().add_node("read", lambda text: None, writes=[]).add_edge(START, "read")
    graph.add_conditional_edges("read", dspy.Predict("text -> way: Literal['END']"), [END])
    with ScriptedLM([ConnectionError("no LM")]) as lm:
        run = graph.compile().run({"text": "a"})
    assert lm.calls
    assert run.error is not None
    assert run.error.__notes__[0] == "in the router of 'read'"


def test_blame_of_a_branch_that_did_not_join_says_where_to_look() -> None:
    def fails(text: str) -> None:
        raise RuntimeError(text)

    graph = Graph().add_node(fails).add_node("notes", lambda text: {"note": text}, writes=["note"])
    run = graph.add_edge(START, ["fails", "notes"]).add_edge(["fails", "notes"], END).compile().run({"text": "a"})
    with pytest.raises(
        LookupError, match=r"'note' was written by 'notes' \(commit '1:0'\), but its branch never joined"
    ):
        run.blame("note")
