"""Turns of module nodes: their content, so that prompts grow by new messages only, and their owner."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Conversations, Entry, Graph, Messages, Send, fill, view
from dspyer.errors import GraphError
from dspyer.testing import ScriptedLM
from tests.budget import deep
from tests.rows import each


class Talk(BaseModel):
    q: str = "hi"
    answer: str = ""
    other: str = ""
    score: int | None = None
    messages: Messages = []


def looped(graph: Graph, last: str, first: str, visits: int) -> CompiledGraph:
    graph.add_edge(START, first)
    graph.add_conditional_edges(last, lambda ctx: first if ctx.visit < visits else END, [first, END])
    return graph.compile(max_steps=10_000)


def sizes(lm: ScriptedLM) -> list[int]:
    return [sum(len(str(turn.content)) for turn in call.prompt.turns) for call in lm.calls]


WHOLE = ["messages", view("messages"), view("messages").own(), view("messages").others(), fill("{messages}")]
BOUNDED = [
    view("messages").new(),
    view("messages").last(3),
    view("messages").fit(12),
    view("messages").others().last(1),
]
KINDS: list[Any] = [str, list[dict[str, Any]], Any]


@settings(max_examples=500 if deep else 6)
@given(
    st.sampled_from(WHOLE + BOUNDED),
    st.sampled_from(KINDS),
    st.sampled_from(WHOLE + BOUNDED),
    st.sampled_from(KINDS),
    st.booleans(),
)
def test_prompts_grow_by_the_new_messages_however_a_node_reads_the_conversation(
    read: Any, kind: Any, other_read: Any, other_kind: Any, history: bool
) -> None:
    """Each visit adds two messages of a few words; nothing is in a prompt because it was in a prompt before."""
    fields: dict[str, Any] = {"seen": (kind, dspy.InputField()), "answer": (str, dspy.OutputField())}
    reads: dict[str, Any] = {"seen": read}
    if history:
        fields = {"history": (dspy.History, dspy.InputField()), **fields}
        reads["history"] = view("messages").own()
    second = {"seen": (other_kind, dspy.InputField()), "other": (str, dspy.OutputField())}
    graph = Graph(Talk)
    graph.add_node("a", dspy.Predict(dspy.make_signature(fields)), reads=reads, writes=["answer", "messages"])
    graph.add_node(
        "b", dspy.Predict(dspy.make_signature(second)), reads={"seen": other_read}, writes=["other", "messages"]
    )
    graph.add_edge("a", "b")
    lm = ScriptedLM(lambda prompt: {name: f"said {len(lm.calls):3}" for name in prompt.asks})
    with dspy.context(lm=lm):
        looped(graph, "b", "a", 10).run({}).raise_error()
    prompts = sizes(lm)[::2]
    early, late = prompts[6] - prompts[5], prompts[9] - prompts[8]  # by then every window of a view is full
    assert late <= 1.1 * early + 20, prompts


def test_a_turn_holds_messages_without_their_turns() -> None:
    """However they came to it: here in what a `Send` brings."""
    graph = Graph(Talk)

    def hand_over(messages: list[dict[str, Any]], ctx: Any) -> list[Send]:
        return [Send("a", {"before": messages[-1:]})]

    graph.add_node("begin", lambda: {"messages": {"role": "user", "content": "hello"}}, writes=["messages"])
    graph.add_node("a", dspy.Predict("before: list[dict] -> answer"), writes=["answer", "messages"])
    graph.add_edge(START, "begin").add_conditional_edges("begin", hand_over, ["a"])

    def again(messages: list[dict[str, Any]], ctx: Any) -> Any:
        return hand_over(messages, ctx) if ctx.visit < 8 else END

    graph.add_conditional_edges("a", again, ["a", END])
    with dspy.context(lm=ScriptedLM(lambda prompt: {"answer": "yes"})):
        run = graph.compile().run({})
    run.raise_error()
    turns = [message["turn"] for message in run.state.to_dict()["messages"][1:]]
    assert all("turn" not in turn["before"][0] for turn in turns)
    assert len({len(json.dumps(turn)) for turn in turns[1:]}) == 1


class WithScore(dspy.Signature):
    q: str = dspy.InputField()
    history: dspy.History = dspy.InputField()
    answer: str = dspy.OutputField()
    score: int | None = dspy.OutputField()


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()], ids=["chat", "json"])
def test_a_turn_with_an_answer_of_none_is_in_the_history_as_dspy_shows_it(adapter: Any) -> None:
    answers: list[dict[str, Any]] = [{"answer": "one", "score": None}, {"answer": "two", "score": 2}]
    graph = Graph(Talk).add_node(
        "w",
        dspy.Predict(WithScore),
        reads={"q": "q", "history": view("messages").own()},
        writes=["answer", "score", "messages"],
    )
    lm, plain = ScriptedLM([*answers, *answers]), ScriptedLM(answers[1:])
    with dspy.context(lm=lm, adapter=adapter):
        looped(graph, "w", "w", 3).run({}).raise_error()
    with dspy.context(lm=plain, adapter=adapter):
        past = dspy.History(messages=[{"q": "hi", **answer} for answer in answers])
        dspy.Predict(WithScore)(q="hi", history=past)
    assert lm.calls[2].prompt.turns == plain.calls[0].prompt.turns


class Ask(dspy.Signature):
    q: str = dspy.InputField()
    history: dspy.History = dspy.InputField()
    answer: str = dspy.OutputField()


def asking(**options: Any) -> Graph:
    graph = Graph(Talk, **options)
    reads = {"q": "q", "history": view("messages").own()}
    graph.add_node("w", dspy.Predict(Ask), reads=reads, writes=["answer", "messages"])
    return graph


def test_a_node_of_a_subgraph_recognizes_its_own_turns() -> None:
    inner = asking(inputs=["q", "messages"]).add_path(START, "w", END).compile()
    outer = Graph(Talk).add_node("inner", inner)
    outer.add_node("critic", lambda: {"messages": {"role": "user", "content": "more"}}, writes=["messages"])
    outer.add_edge("inner", "critic")
    lm = ScriptedLM([{"answer": str(number)} for number in range(3)])
    with dspy.context(lm=lm):
        run = looped(outer, "critic", "inner", 3).run({})
    run.raise_error()
    said = [turn.content for turn in lm.calls[2].prompt.turns if turn.role == "assistant"]
    assert [text.split("\n")[1] for text in said] == ["0", "1"]
    assert len(run.state["messages"]) == 6


def test_turns_in_the_inputs_of_a_run_belong_to_their_nodes() -> None:
    found: list[list[Entry]] = []

    def look(own: list[Entry], others: list[Entry]) -> None:
        found.append([entry for entry in others if entry.author != "START"])

    graph = asking(inputs=["q", "messages"])
    graph.add_node("look", look, reads={"own": view("messages").own(), "others": view("messages").others()}, writes=[])
    program = graph.add_path(START, "w", "look", END).compile()
    lm = ScriptedLM([{"answer": "one"}, {"answer": "two"}])
    with dspy.context(lm=lm):
        first = program.run({"q": "hi"})
        program.run({"q": "hi", "messages": first.state.to_dict()["messages"]}).raise_error()
    assert len(lm.calls[1].prompt.turns) == 4
    assert [entry.author for entry in found[1]] == ["w", "w"]


# --- tools

CALLS = [{"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}} for number in (1, 2)]


def tool_talk(reads: Any) -> list[list[str]]:
    """A model that calls two tools at its second visit, the tools, and a reader: what the reader saw at each visit."""
    found: list[list[str]] = []

    def model(ctx: Any) -> Any:
        if ctx.visit == 2:
            return {"messages": {"role": "assistant", "content": None, "tool_calls": CALLS, "id": "call"}}
        return {"messages": {"role": "assistant", "content": "text", "id": f"text{ctx.visit}"}}

    def tools(ctx: Any) -> Any:
        if ctx.visit != 2:
            return {}
        results = [{"role": "tool", "content": "31", "tool_call_id": call["id"], "id": call["id"]} for call in CALLS]
        return {"messages": results}

    def reader(seen: list[Entry]) -> None:
        found.append([entry.value["id"] for entry in seen])

    graph = Graph(Talk).add_node("model", model, writes=["messages"]).add_node("tools", tools, writes=["messages"])
    graph.add_node("reader", reader, reads={"seen": reads}, writes=[])
    graph.add_edge("model", "reader").add_edge("reader", "tools")
    run = looped(graph, "tools", "model", 3).run({})
    run.raise_error()
    return found


TOOL_VIEWS: dict[str, tuple[Any, list[list[str]]]] = {
    "whole": (view("messages"), [["text1"], ["text1", "call"], ["text1", "call", "c1", "c2", "text3"]]),
    "a cut in the results": (view("messages").last(2), [["text1"], ["text1", "call"], ["text3"]]),
    "a cut before the call": (view("messages").last(4), [["text1"], ["text1", "call"], ["call", "c1", "c2", "text3"]]),
    "tokens": (view("messages").fit(3), [["text1"], [], ["text3"]]),
    "new results come with their call": (
        view("messages").new(),
        [["text1"], ["call"], ["call", "c1", "c2", "text3"]],
    ),
    "results belong to who called": (
        view("messages").by("model"),
        [["text1"], ["text1", "call"], ["text1", "call", "c1", "c2", "text3"]],
    ),
    "and to no other node": (view("messages").by("tools"), [[], [], []]),
    "new among the last": (view("messages").last(4).new(), [["text1"], ["call"], ["call", "c1", "c2", "text3"]]),
    "the last of what is new": (view("messages").new().last(2), [["text1"], ["call"], ["text3"]]),
}


@each(("reads", "expected"), TOOL_VIEWS.values(), ids=TOOL_VIEWS)
def test_no_view_separates_results_of_tools_from_their_call(reads: Any, expected: list[list[str]]) -> None:
    assert tool_talk(reads) == expected


# --- the warning near the limit

ANSWERS = [{"answer": str(number)} for number in range(3)]


@pytest.mark.parametrize("make", [dspy.Predict, dspy.ChainOfThought])
@pytest.mark.parametrize("history", [True, False])
def test_the_warning_is_in_the_prompt_of_the_turn_that_it_warns(make: Any, history: bool) -> None:
    """S003-21: what the language model really gets, also where no step is left."""
    graph = Graph(Talk)
    module = make(Ask) if history else make("q -> answer")
    reads = {"q": "q", "history": view("messages").own()} if history else {"q": "q"}
    graph.add_node("w", module, reads=reads, writes=["answer", "messages"]).add_edge(START, "w")
    graph.add_conditional_edges("w", lambda ctx: "w" if ctx.visit < 3 else END, ["w", END])
    lm, unwarned = ScriptedLM(ANSWERS), ScriptedLM(ANSWERS)
    with dspy.context(lm=lm, trace=[]):
        program = graph.compile(max_steps=3, layers=[Conversations(warn_at=1)])
        run = program.run({"q": "hi"})
        instructions = [predictor.signature.instructions for predictor in program.predictors()]
        traced = [predictor.signature.instructions for predictor, _, _ in dspy.settings.trace]
    with dspy.context(lm=unwarned):
        graph.compile(max_steps=3)(q="hi")
    run.raise_error()
    systems = [call.prompt.turns[0].content for call in lm.calls]
    told = ["", "1 step is left of 3: come to an end.", "No step is left of 3: come to an end."]
    plain = unwarned.calls[0].prompt.turns[0].content
    assert systems[0] == plain
    assert [system.removeprefix(plain).strip() for system in systems] == told
    assert [call.prompt.turns[1:] for call in lm.calls] == [call.prompt.turns[1:] for call in unwarned.calls]
    assert [message["content"] for message in run.state["messages"]] == ["0", told[1], "1", told[2], "2"]
    assert not any("left of" in text for text in (*instructions, *traced)), "nothing of it is tuned or saved"


def test_predictors_that_cannot_be_warned_are_named() -> None:
    class Own(dspy.Predict):
        def forward(self, **kwargs: Any) -> Any:
            return super().forward(**kwargs)

    graph = Graph(Talk).add_node("w", Own("q -> answer"), writes=["answer", "messages"]).add_path(START, "w", END)
    with pytest.raises(GraphError, match="warn_at: node 'w': nothing can be added to the instructions of 'Own'"):
        graph.compile(layers=[Conversations(warn_at=1)])
