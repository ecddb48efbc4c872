"""The values of a `Send` arrive at its target, or are refused where they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import (
    END,
    START,
    Command,
    Entry,
    Graph,
    ImmutableState,
    Run,
    Send,
    fill,
    reducers,
    view,
)
from dspyer.errors import GraphError, RouteError
from dspyer.testing import ScriptedLM, route, stub


class State(BaseModel):
    docs: list[str] = []
    text: str = "of the state"
    notes: Annotated[list[str], reducers.append] = []
    out: Annotated[list[Any], reducers.append] = []


@dataclass
class Client:
    """A resource that may come with a `Send`."""

    name: str


class Summarize(dspy.Module):
    """A module with an input that may be left out."""

    def forward(self, doc: str = "none", words: int = 3) -> dspy.Prediction:
        return dspy.Prediction(out=f"{doc} {words}")


class Anything(dspy.Module):
    """A module that takes whatever it is given."""

    def forward(self, doc: str = "none", **more: Any) -> dspy.Prediction:
        return dspy.Prediction(out=f"{doc} {more}")


class Inside(BaseModel):
    doc: str = "none"
    words: int = 3
    out: str = ""


def inside() -> Graph:
    graph = Graph(Inside, inputs=["doc", "words"], outputs=["out"])
    graph.add_node("ask", lambda doc, words: {"out": f"{doc} {words}"}, writes=["out"])
    return graph.add_path(START, "ask", END)


def optional(doc: str = "none", words: int = 3) -> dict[str, Any]:
    return {"out": f"{doc} {words}"}


def kwargs(**fields: Any) -> dict[str, Any]:
    return {"out": f"{fields['doc']} {fields['words']}"}


def whole(state: ImmutableState) -> dict[str, Any]:
    return {"out": f"{state['doc']} {state['words']}"}


def typed(state: State) -> dict[str, Any]:
    return {"out": state.text}


def client(doc: str, server: Client) -> dict[str, Any]:
    return {"out": f"{doc} {server.name}"}


def shown(seen: list[str]) -> dict[str, Any]:
    return {"out": " ".join(seen)}


def in_words(seen: str) -> dict[str, Any]:
    return {"out": seen}


def in_entries(seen: list[Entry]) -> dict[str, Any]:
    return {"out": [(entry.value, entry.author) for entry in seen]}


def node(work: object, **options: Any) -> Callable[[Graph], object]:
    return lambda graph: graph.add_node("work", work, writes=["out"], **options)


def mapped(work: object, **options: Any) -> Callable[[Graph], object]:
    return lambda graph: graph.add_map("work", work, over="docs", item="doc", into="out", **options)


def asking(graph: Graph) -> object:
    return graph.add_interrupt("work", question="Is {doc} {words}?", answer=str, into="out")


def routed(graph: Graph) -> object:
    """What the router behind the target decides by."""
    graph.add_node("work", lambda doc: {"out": doc}, writes=["out"]).add_node(
        "more", lambda text: {"out": text}, writes=["out"]
    )
    graph.add_conditional_edges("work", lambda text: text, {"b": END, "of the state": "more"})
    return graph.add_edge("more", END)


DOC = {"doc": "a", "words": 5}
NOTES = {"notes": ["p", "q"]}
BROUGHT: dict[str, tuple[Callable[[Graph], object], dict[str, Any], Any]] = {
    "an optional parameter": (node(optional), DOC, "a 5"),
    "one of two parameters": (node(optional), {"doc": "a"}, "a 3"),
    "a renamed field": (node(lambda given: {"out": given}, reads={"given": "text"}), {"text": "b"}, "b"),
    "**kwargs": (node(kwargs), DOC, "a 5"),
    "the state": (node(whole), DOC, "a 5"),
    "the state as its model": (node(typed), {"text": "b"}, "b"),
    "a resource": (node(client), {"doc": "a", "server": Client("mine")}, "a mine"),
    "an optional input of a module": (node(Summarize()), DOC, "a 5"),
    "an input of a module beside reads": (node(Summarize(), reads={"doc": "text"}), {"text": "b", "words": 5}, "b 5"),
    "**kwargs of a module": (node(Anything()), DOC, "a {'words': 5}"),
    "an optional input of a graph": (node(inside().compile()), DOC, "a 5"),
    "an input of a graph beside reads": (
        node(inside().compile(), reads={"doc": "text"}),
        {"text": "b", "words": 5},
        "b 5",
    ),
    "a graph that reads the state as a whole": (
        lambda graph: graph.add_node(
            "work",
            Graph().add_node("ask", whole, writes=["out"]).add_path(START, "ask", END).compile(),
            writes=["out"],
        ),
        DOC,
        "a 5",
    ),
    "a map over a function": (mapped(optional, writes=["out"]), {"docs": ["x"], "words": 5}, ["x 5"]),
    "a map over a module": (mapped(Summarize(), writes=["out"]), {"docs": ["x"], "words": 5}, ["x 5"]),
    "a map over a graph": (mapped(inside().compile()), {"docs": ["x"], "words": 5}, ["x 5"]),
    "a template": (node(lambda seen: {"out": seen}, reads={"seen": fill("{doc} {words}")}), DOC, "a 5"),
    "a view of values": (node(shown, reads={"seen": view("notes").new()}), NOTES, "p q"),
    "a view of its own": (node(shown, reads={"seen": view("notes").own()}), NOTES, "p q"),
    "a view as text": (node(in_words, reads={"seen": view("notes").own()}), NOTES, "- p\n- q"),
    "a view of the last": (node(in_words, reads={"seen": view("notes").new().last(1)}), NOTES, "q"),
    "a view that fits": (node(shown, reads={"seen": view("notes").fit(1)}), {"notes": ["long" * 9, "q"]}, "q"),
    "a view of entries": (node(in_entries, reads={"seen": view("notes").new()}), NOTES, [("p", ""), ("q", "")]),
    "a view made into something": (
        node(lambda seen: {"out": seen}, reads={"seen": view("notes").then(len)}),
        NOTES,
        2,
    ),
    "a router behind the target": (routed, {"doc": "a", "text": "b"}, "a"),
}


def sending(add: Callable[[Graph], object], brought: dict[str, Any], by: str = "router") -> Graph:
    graph = Graph(State)
    add(graph)
    if by == "router":
        graph.add_node("plan", lambda text: None, writes=["notes"])
        graph.add_conditional_edges("plan", lambda text: [Send("work", brought)], ["work"])
    else:
        graph.add_node("plan", lambda text: Command(None, Send("work", brought)), writes=["notes"], goto=["work"])
    graph.add_edge(START, "plan")
    return graph if add is routed else graph.add_edge("work", END)


WAYS = pytest.mark.parametrize(("by", "mode"), [("router", "sync"), ("command", "async")])


def outcome(mode: str, graph: Graph) -> Run:
    program = graph.compile()
    return program.run({}) if mode == "sync" else asyncio.run(program.arun({}))


@WAYS
def test_the_values_of_a_send_arrive(by: str, mode: str) -> None:
    for name, (add, brought, expected) in BROUGHT.items():
        run = outcome(mode, sending(add, brought, by))
        assert run.error is None, name
        assert run.state["out"] == [expected], name


ANY = {"**kwargs", "the state", "**kwargs of a module", "a graph that reads the state as a whole"}


@WAYS
def test_values_that_the_target_does_not_read_are_refused_where_they_are_sent(by: str, mode: str) -> None:
    for name, (add, brought, _) in BROUGHT.items():
        if name in ANY:
            continue
        run = outcome(mode, sending(add, {**brought, "wrods": 1}, by))
        assert isinstance(run.error, RouteError), name
        text = str(run.error)
        assert "the Send from node 'plan' to node 'work' brings 'wrods'" in text, name
        assert all(repr(key) in text for key in brought), name
        assert [commit.node for commit in run.commits] == ["START"], name


def test_the_error_lists_what_is_read_and_suggests_a_name() -> None:
    for add, key, text in (
        (node(optional), "wrods", "it reads 'doc', 'words'. Did you mean 'words'?"),
        (node(optional), "zzz", "Leave it out, or read it there."),
        (node(Summarize(), reads={"doc": "text"}), "doc", "What it calls 'doc' is the field 'text': send that."),
        (node(lambda: None), "doc", "it reads nothing."),
        (node(lambda ctx: None, reads=["text"]), "text", "the function does not take it: add a parameter 'text'"),
        (mapped(optional, writes=["out"]), "doc", "it reads 'docs', 'words'."),
    ):
        with pytest.raises(RouteError) as caught:
            sending(add, {key: "x"}).compile()()
        assert text in str(caught.value)


def test_a_question_template_is_filled_from_a_send() -> None:
    run = sending(asking, DOC).compile().run({})
    assert [question.text for question in run.questions] == ["Is a 5?"]


def test_an_instruction_template_is_filled_from_a_send() -> None:
    class Short(dspy.Signature):
        """Shorten for {reader}."""

        text: str = dspy.InputField()
        out: str = dspy.OutputField()

    lm = ScriptedLM(lambda prompt: {"out": prompt.instructions})
    with dspy.context(lm=lm):
        prediction = sending(node(dspy.Predict(Short)), {"reader": "Ada"}).compile()()
    assert prediction.out == ["Shorten for Ada."]


def test_a_module_gets_a_sent_value_that_only_reads_declares() -> None:
    """`max_iters` is given to an agent only where the graph says so."""
    agent = dspy.ReAct("text -> out", tools=[len], max_iters=9)
    asked: list[int] = []

    def step(prompt: Any) -> dict[str, Any]:
        asked.append(1)
        if "next_tool_name" in prompt.asks:
            return {"next_thought": "again", "next_tool_name": "len", "next_tool_args": {"obj": "x"}}
        return {"reasoning": "", "out": "done"}

    with dspy.context(lm=ScriptedLM(step)):
        prediction = sending(node(agent), {"text": "b", "max_iters": 2}).compile()()
    assert prediction.out == ["done"]
    assert len(asked) == 3


def test_unit_tests_of_routes_and_stubs_check_what_the_node_reads() -> None:
    wrong = sending(node(optional), {"wrods": 1}).compile()
    with pytest.raises(RouteError, match="brings 'wrods'"):
        route(wrong, "plan", {})
    right = sending(node(optional), DOC).compile()
    assert stub(right, work={"out": "stubbed"})().out == ["stubbed"]
    assert stub(right, work=lambda doc: {"out": doc})().out == ["a"]


def test_the_error_of_a_router_names_the_router() -> None:
    """A target that is named and not sent to goes by the state alone."""
    graph = Graph(State).add_node("work", lambda text: {"out": text}, writes=["out"])
    graph.add_conditional_edges(START, lambda docs: ["work", Send("work", {"text": "sent"})], ["work"])
    assert sorted(graph.add_edge("work", END).compile()().out) == ["of the state", "sent"]


elsewhere: dict[str, Any] = {"Send": Send, "Command": Command}
exec(  # as a file of its own
    "def spread(docs): return [Send('work', {'doc': doc}) for doc in docs]\n"
    "def command(docs): return Command({}, spread(docs))",
    elsewhere,
)


def test_sends_made_by_other_functions_are_declared() -> None:
    def silent(docs: list[str]) -> Any:
        return elsewhere["spread"](docs)

    def promising(docs: list[str]) -> list[Send]:
        return silent(docs)  # type: ignore[no-any-return]

    def commanding(docs: list[str]) -> Any:
        return elsewhere["command"](docs)

    def promised(docs: list[str]) -> Command[Send]:
        return commanding(docs)  # type: ignore[no-any-return]

    def routed(route: Any) -> Graph:
        graph = Graph(State).add_node("work", lambda doc: {"out": doc}, writes=["out"]).add_edge("work", END)
        return graph.add_conditional_edges(START, route, ["work"])

    def sent(plan: Any) -> Graph:
        graph = Graph(State).add_node("work", lambda doc: {"out": doc}, writes=["out"]).add_edge("work", END)
        return graph.add_node("plan", plan, goto=["work"], writes=[]).add_edge(START, "plan")

    for graph in (routed(promising), sent(promised)):
        assert sorted(graph.compile()(docs=["a", "b"]).out) == ["a", "b"]
    for graph in (routed(silent), sent(commanding)):
        with pytest.raises(GraphError) as caught:
            graph.compile()
        (problem,) = caught.value.problems
        assert "its parameter 'doc' is no field of the state" in problem
        assert (
            "declare that in the return annotation of the router, `-> list[Send]`, or of the node, `-> Command[Send]`"
            in problem
        )
