"""The `Messages` field: a conversation that only grows, the turns of a node, and histories made from it."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import (
    DELETE,
    END,
    START,
    Conversations,
    Entry,
    Graph,
    Messages,
    Replace,
    from_chat,
    to_chat,
    view,
)
from dspyer.errors import GraphError, NodeOutputError
from dspyer.testing import ScriptedLM
from tests.rows import each


class Talk(BaseModel):
    text: str
    kind: str | None = None
    report: str | None = None
    notes: list[str] = []
    messages: Messages = []


class Report(dspy.Signature):
    """Report."""

    text: str = dspy.InputField()
    previous: str = dspy.InputField()
    history: dspy.History = dspy.InputField()
    report: str = dspy.OutputField()


READS = {"text": "text", "previous": view("messages").others().last(1), "history": view("messages").own()}


def talk(reporter: Any = None, reads: Any = None, writes: Any = ("report", "messages")) -> Graph:
    graph = Graph(Talk)
    graph.add_node("sort", dspy.Predict("text -> kind"), writes=["kind", "messages"])
    graph.add_node("report", reporter or dspy.Predict(Report), reads=reads or READS, writes=writes)
    graph.add_path(START, "sort", "report")
    graph.add_conditional_edges("report", lambda ctx: "report" if ctx.visit < 3 else END, ["report", END])
    return graph


def contents(call: Any) -> list[tuple[str, str]]:
    """What is said in a call after the instructions, without the frame of DSPy."""
    return [(turn.role, turn.content.split("\n\nRespond")[0]) for turn in call.prompt.turns[1:]]


@pytest.mark.parametrize("make", [dspy.Predict, dspy.ChainOfThought])
def test_a_node_gets_its_own_turns_as_history_and_the_last_message_of_others(make: Any) -> None:
    """S003-18, S003-19, S003-20, S003-27."""
    lm = ScriptedLM([{"kind": "fire"}, {"report": "one"}, {"report": "two"}, {"report": "three"}])
    with dspy.context(lm=lm, trace=[]):
        run = talk(make(Report)).compile().run({"text": "help"})
    *_, last = lm.calls
    said = contents(last)
    asked = "[[ ## text ## ]]\nhelp\n\n[[ ## previous ## ]]\nsort: fire"
    assert [role for role, _ in said] == ["user", "assistant", "user", "assistant", "user"]
    assert said[0] == said[2] == said[4] == ("user", asked)
    assert "[[ ## report ## ]]\none" in said[1][1]
    assert "None" not in said[1][1]
    assert "[[ ## report ## ]]\ntwo" in said[3][1]
    messages = run.state["messages"].to_list() if hasattr(run.state["messages"], "to_list") else run.state["messages"]
    assert [(m["name"], m["role"], m["content"]) for m in messages] == [
        ("sort", "assistant", "fire"),
        *[("report", "assistant", text) for text in ("one", "two", "three")],
    ]
    assert len({message["id"] for message in messages}) == 4


def test_the_history_is_a_copy_and_stays_in_the_trace() -> None:
    histories: list[dspy.History] = []

    class Greedy(dspy.Predict):
        def forward(self, **kwargs: Any) -> Any:
            prediction = super().forward(**kwargs)
            histories.append(kwargs["history"])
            kwargs["history"].messages.append({"text": "mine", "report": "mine"})
            return prediction

    lm = ScriptedLM([{"kind": "fire"}, {"report": "one"}, {"report": "two"}, {"report": "three"}])
    with dspy.context(lm=lm, trace=[]):
        talk(Greedy(Report)).compile()(text="help")
        inputs = [inputs for _, inputs, _ in dspy.settings.trace if "history" in inputs]
    assert [len(history.messages) for history in histories] == [1, 2, 3]
    assert [given["history"] for given in inputs] == histories


def test_a_turn_without_an_answer_is_no_part_of_a_history() -> None:
    def speak() -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "plain"}]}

    graph = Graph(Talk).add_node("report", dspy.Predict(Report), reads=READS, writes=["report", "messages"])
    graph.add_node("speak", speak, writes=["messages"]).add_path(START, "speak", "report", END)
    lm = ScriptedLM([{"report": "done"}])
    with dspy.context(lm=lm):
        graph.compile()(text="help")
    assert contents(lm.calls[0]) == [("user", "[[ ## text ## ]]\nhelp\n\n[[ ## previous ## ]]\nspeak: plain")]


def test_a_function_gets_its_histories_too() -> None:
    def answer(history: dspy.History, speak: Any) -> dict[str, Any]:
        said = speak(question="again?", history=history).answer
        turn = {"question": "again?", "answer": said}
        return {"messages": {"role": "assistant", "content": said, "turn": turn}}

    signature = dspy.Signature("question, history: dspy.History -> answer", custom_types={"History": dspy.History})
    graph = Graph(Talk, inputs=["text"])
    graph.add_node(
        "answer",
        answer,
        modules={"speak": dspy.Predict(signature)},
        reads={"history": view("messages").own()},
        writes=["messages"],
    )
    graph.add_edge(START, "answer")
    graph.add_conditional_edges("answer", lambda ctx: "answer" if ctx.visit < 2 else END, ["answer", END])
    lm = ScriptedLM([{"answer": "one"}, {"answer": "two"}])
    with dspy.context(lm=lm):
        run = graph.compile().run({"text": "help"})
    assert run.error is None
    assert [role for role, _ in contents(lm.calls[1])] == ["user", "assistant", "user"]


# --- what is refused

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@each(
    ("message", "said"),
    [
        ({"role": "system", "content": "x"}, "system messages are not kept"),
        ({"role": "developer", "content": "x"}, "system messages are not kept"),
        ({"role": "ai", "content": "x"}, "has the role 'ai'"),
        ({"content": "x"}, "has the role None"),
        ({"role": "user"}, "has no content"),
        ({"role": "tool", "content": "x"}, "lacks its tool_call_id"),
        ("hello", "a message is a dict"),
        ([{"role": "user", "content": "x"}, 3], "a message is a dict"),
        ({"role": "user", "content": "other", "id": "first"}, "is there already with another content"),
        ([{"role": "user", "content": text, "id": "two"} for text in "ab"], "is there already with another content"),
        (Replace([]), "never removed"),
        (DELETE, "never removed"),
    ],
)
def test_an_invalid_message_is_refused(message: Any, said: str) -> None:
    """S003-8, S003-15, S003-16."""
    first = [{"role": "user", "content": "hi", "id": "first"}]
    graph = Graph(Talk, inputs=["text", "messages"])
    graph.add_node("speak", lambda: {"messages": message}, writes=["messages"]).add_path(START, "speak", END)
    run = graph.compile().run({"text": "help", "messages": first})
    assert isinstance(run.error, NodeOutputError)
    assert said in str(run.error)
    assert len(run.state["messages"]) == 1


def test_the_same_message_twice_is_one_and_branches_add_theirs_in_order() -> None:
    one = {"role": "user", "content": "hi", "id": "first"}
    graph = Graph(Talk, inputs=["text", "messages"])
    graph.add_node("left", lambda: {"messages": [one, {"role": "user", "content": "left"}]}, writes=["messages"])
    graph.add_node("right", lambda: {"messages": [one, {"role": "user", "content": "right"}]}, writes=["messages"])
    graph.add_node("end", lambda: None, writes=[])
    graph.add_edge(START, ["left", "right"]).add_edge(["left", "right"], "end").add_edge("end", END)
    run = graph.compile().run({"text": "help"})
    assert [message["content"] for message in run.state["messages"]] == ["hi", "left", "right"]


class Optional(dspy.Signature):
    text: str = dspy.InputField()
    history: dspy.History | None = dspy.InputField()
    report: str = dspy.OutputField()


class Two(dspy.Signature):
    text: str = dspy.InputField()
    history: dspy.History = dspy.InputField()
    more: dspy.History = dspy.InputField()
    report: str = dspy.OutputField()


OWN = {"text": "text", "history": view("messages").own()}


@each(
    ("make", "said"),
    [
        (lambda: talk(dspy.Predict(Optional), OWN), "which DSPy shows as JSON: write dspy.History alone"),
        (
            lambda: talk(dspy.Predict(Two), {**OWN, "more": view("messages").own()}),
            "it has the histories 'history', 'm",
        ),
        (lambda: talk(dspy.Predict("text -> report"), OWN), "has no input 'history' for its own turns: add history"),
        (lambda: talk(reads={**READS, "history": view("messages")}), "in the node's own fields only"),
        (lambda: talk(reads={**READS, "history": view("messages").others()}), "in the node's own fields only"),
        (lambda: talk(reads={**READS, "history": view("notes").last(1)}), "is no field of the type dspyer.Messages"),
        (lambda: talk(reads={**READS, "history": view("messages").own().then(list)}), "is no list of turns"),
        (lambda: talk(dspy.ReAct(Report, tools=[])), "its predictor 'react' answers in 'next_thought'"),
    ],
)
def test_histories_that_dspy_cannot_show_are_named_at_build(make: Any, said: str) -> None:
    with pytest.raises(GraphError) as raised:
        make().compile()
    assert said in str(raised.value)


def test_messages_cannot_be_condensed() -> None:
    short = {"messages": dspy.Predict("text -> short")}
    graph = Graph(Talk).add_node("sort", lambda: None, writes=["messages"], condense=short)
    with pytest.raises(GraphError, match="messages are never changed"):
        graph.add_path(START, "sort", END).compile()


# --- the conversation of all nodes


def test_the_conversation_of_all_nodes_is_in_the_order_of_their_turns() -> None:
    """S003-17: modules, functions, graphs inside and branches, each with its author; nothing is ever taken away."""

    def say(text: str) -> Any:
        return lambda: {"messages": {"role": "user", "content": text}}

    inner = Graph(Talk, inputs=["text", "messages"]).add_node("inner", say("inside"), writes=["messages"])
    graph = Graph(Talk, inputs=["text", "messages"])
    graph.add_node("sort", dspy.Predict("text -> kind"), writes=["kind", "messages"])
    graph.add_node("nested", inner.add_path(START, "inner", END).compile())
    seen: list[list[tuple[str, str]]] = []

    def hear(messages: list[Entry]) -> dict[str, Any]:
        seen.append([(entry.author, entry.value["content"]) for entry in messages])
        return {"messages": [{"role": "assistant", "content": f"heard {len(messages)}"}]}

    for name in ("left", "right"):
        graph.add_node(name, say(name), writes=["messages"])
    graph.add_node("hear", hear, reads={"messages": view("messages")}, writes=["messages"])
    graph.add_path(START, "sort", "nested").add_edge("nested", ["left", "right"]).add_edge(["left", "right"], "hear")
    graph.add_conditional_edges("hear", lambda ctx: "nested" if ctx.visit < 2 else END, ["nested", END])
    with dspy.context(lm=ScriptedLM([{"kind": "fire"}])):
        run = graph.compile().run({"text": "help", "messages": [{"role": "user", "content": "begin"}]})
    run.raise_error()
    once = [("nested", "inside"), ("left", "left"), ("right", "right")]
    first = [("START", "begin"), ("sort", "fire"), *once]
    assert seen == [first, [*first, ("hear", "heard 5"), *once]]
    said = [message["content"] for message in run.state["messages"]]
    assert said == [text for _, text in seen[1]] + ["heard 9"]


@pytest.mark.parametrize("how", ["as a list with one more", "alone", "with a parallel branch"])
def test_a_message_that_is_returned_again_is_no_change(how: str) -> None:
    """It is not new, and keeps its author: also where another branch brings it too."""
    found: list[list[tuple[str, str]]] = []

    def write(messages: list[dict[str, Any]], ctx: Any) -> dict[str, Any]:
        more = [{"role": "assistant", "content": f"w{ctx.visit}"}]
        return {"messages": [*messages, *more] if how == "as a list with one more" else [*messages[-1:], *more]}

    def echo(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"messages": messages}

    def read(news: list[Entry]) -> dict[str, Any]:
        found.append([(entry.author, entry.value["content"]) for entry in news])
        return {"messages": {"role": "user", "content": f"r{len(found)}"}}

    graph = Graph(Talk, inputs=[]).add_node("write", write, reads=["messages"], writes=["messages"])
    graph.add_node("read", read, reads={"news": view("messages").new()}, writes=["messages"])
    graph.add_node("echo", echo, reads=["messages"], writes=["messages"])
    if how == "with a parallel branch":
        graph.add_node("meet", lambda: None, writes=[])
        graph.add_edge(START, "read").add_edge("read", ["write", "echo"]).add_edge(["write", "echo"], "meet")
        last = "meet"
    else:
        graph.add_path(START, "read", "echo", "write")
        last = "write"
    graph.add_conditional_edges(last, lambda ctx: "read" if ctx.visit < 4 else END, ["read", END])
    graph.compile().run({}).raise_error()
    assert found == [[], [("write", "w1")], [("write", "w2")], [("write", "w3")]]


# --- chat dicts


def test_conversion_from_and_to_chat_dicts() -> None:
    """S003-15: with calls of tools and their results; system messages stay outside."""
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "How hot?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "31", "tool_call_id": "c1"},
        {"role": "assistant", "content": "31 degrees"},
    ]
    graph = Graph(Talk, inputs=["text", "messages"])
    graph.add_node("sort", dspy.Predict("text -> kind"), writes=["kind", "messages"]).add_path(START, "sort", END)
    given = from_chat([{"role": "system", "content": "Be brief."}, *chat])
    with dspy.context(lm=ScriptedLM([{"kind": "warm"}])):
        found = graph.compile()(text="help", messages=given).messages
    said = [{"role": "user", "content": "help"}, {"role": "assistant", "name": "sort", "content": "warm"}]
    assert to_chat(found) == [*chat, *said]
    assert all("id" in message for message in found)
    with pytest.raises(NodeOutputError, match="has the role 'ai'"):
        from_chat([{"role": "ai", "content": "x"}])


class Ask(dspy.Signature):
    """Answer."""

    question: str = dspy.InputField()
    picture: dspy.Image | None = dspy.InputField()
    history: dspy.History = dspy.InputField()
    said: str = dspy.InputField()
    answer: str = dspy.OutputField()


class Chat(BaseModel):
    question: str = ""
    picture: Any = None
    answer: str = ""
    messages: Messages = []


@pytest.mark.parametrize("adds", [False, True])
def test_a_chat_has_the_words_of_the_user(adds: bool) -> None:
    """Also if a node has added them itself, and no view of the conversation again."""
    graph = Graph(Chat, inputs=["question", "picture"])
    reads = {
        "question": "question",
        "picture": "picture",
        "history": view("messages").own(),
        "said": view("messages").others().last(2),
    }
    graph.add_node("answer", dspy.Predict(Ask), reads=reads, writes=["answer", "messages"])
    if adds:
        graph.add_node(
            "hear", lambda question: {"messages": {"role": "user", "content": question}}, writes=["messages"]
        )
    graph.add_path(START, *(["hear"] if adds else []), "answer", END)
    thread = graph.compile(store=":memory:").thread("t")
    with dspy.context(lm=ScriptedLM([{"answer": "The moon."}, {"answer": "At 9:40."}])):
        picture = dspy.Image("data:image/png;base64,iVBORw0KGgo=")
        thread.run({"question": "What makes tides?", "picture": picture}).raise_error()
        thread.run({"question": "When?"}).raise_error()
    assert [(one["role"], one["content"]) for one in to_chat(thread.state["messages"])] == [
        ("user", "What makes tides?"),
        ("assistant", "The moon."),
        ("user", "When?"),
        ("assistant", "At 9:40."),
    ]


def test_several_inputs_are_named_in_a_chat() -> None:
    graph = Graph(Talk, inputs=["text", "notes"])
    graph.add_node("sort", dspy.Predict("text, notes: list[str] -> kind"), writes=["kind", "messages"])
    with dspy.context(lm=ScriptedLM([{"kind": "fire"}])):
        found = graph.add_path(START, "sort", END).compile()(text="help", notes=["a", "b"]).messages
    assert to_chat(found)[0] == {"role": "user", "content": 'text: help\nnotes: ["a", "b"]'}


def test_a_conversation_continues_over_the_runs_of_a_thread() -> None:
    program = talk().compile(store=":memory:")
    answers = [{"kind": "fire"}, *[{"report": str(number)} for number in range(3)]]
    lm = ScriptedLM([*answers, *answers])
    thread = program.thread("t")
    with dspy.context(lm=lm):
        thread.run({"text": "help"})
        run = thread.run({"text": "again"})
    assert run.error is None
    assert len(run.state["messages"]) == 8
    assert len(contents(lm.calls[-1])) == 11


# --- demos


def demo_of(history: Any, number: int) -> dict[str, Any]:
    return {"text": f"t{number}", "previous": "p", "history": history, "report": f"r{number}"}


@pytest.mark.parametrize("plain", [False, True], ids=["as recorded", "as saved"])
def test_demos_show_the_last_turns_of_their_histories(plain: bool) -> None:
    """Only in demos: the trace and the history of the call itself stay whole."""
    turns = [{"text": f"t{number}", "previous": "p", "report": f"r{number}"} for number in range(5)]
    demo = demo_of({"messages": turns} if plain else dspy.History(messages=turns), 5)
    shown = {}
    for limit in (None, 2):
        program: Any = talk().compile(layers=[Conversations(max_demo_turns=limit)]).deepcopy()
        program.report.demos = [demo if plain else dspy.Example(**demo)]
        lm = ScriptedLM([{"kind": "fire"}, *[{"report": text} for text in ("one", "two", "three")]])
        with dspy.context(lm=lm, trace=[]):
            program(text="help")
            inputs = [inputs["history"] for _, inputs, _ in dspy.settings.trace if "history" in inputs]
        assert [len(history.messages) for history in inputs] == [0, 1, 2]
        assert len(program.report.demos[0]["history"]["messages"] if plain else demo["history"].messages) == 5
        shown[limit] = [number for number in range(5) if f'"r{number}"' in str(contents(lm.calls[-1])[0])]
    assert shown == {None: [0, 1, 2, 3, 4], 2: [3, 4]}


def test_demos_that_cannot_be_shortened_are_named() -> None:
    class Own(dspy.Predict):
        def forward(self, **kwargs: Any) -> Any:
            return super().forward(**kwargs)

    with pytest.raises(GraphError, match="max_demo_turns: the demos of 'Own' in node 'report'"):
        talk(Own(Report)).compile(layers=[Conversations(max_demo_turns=2)])
    with pytest.raises(GraphError, match="max_demo_turns=0"):
        talk().compile(layers=[Conversations(max_demo_turns=0)])


def test_near_its_limit_a_run_warns_in_the_conversation() -> None:
    """S003-21: a user message of the framework begins each turn that is made when few steps are left; that the turn's
    prompt has it, `test_turns.py` shows.
    """
    answers = [{"kind": "fire"}, {"report": "one"}, {"report": "two"}, {"report": "three"}]
    with dspy.context(lm=ScriptedLM(answers), trace=[]):
        run = talk().compile(max_steps=4, layers=[Conversations(warn_at=1)]).run({"text": "help"})
    assert run.status == "completed"
    shown = [(message["role"], message["name"], message["content"]) for message in run.state["messages"]]
    assert shown == [
        ("assistant", "sort", "fire"),
        ("assistant", "report", "one"),
        ("user", "dspyer", "1 step is left of 4: come to an end."),
        ("assistant", "report", "two"),
        ("user", "dspyer", "No step is left of 4: come to an end."),
        ("assistant", "report", "three"),
    ]
    assert len({message["id"] for message in run.state["messages"]}) == 6


def test_a_warning_needs_a_conversation() -> None:
    graph = Graph(Talk).add_node("sort", dspy.Predict("text -> kind"), writes=["kind"]).add_path(START, "sort", END)
    with pytest.raises(GraphError, match="warn_at: no node commits turns"):
        graph.compile(layers=[Conversations(warn_at=2)])
    with pytest.raises(GraphError, match="warn_at=0"):
        talk().compile(layers=[Conversations(warn_at=0)])
