"""`Graph(conversation=True)`: the same requests and messages as with the declarations by hand."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from typing import Any

import dspy
import pytest
from pydantic import BaseModel

from dspyer import END, START, Graph, Messages, Send, agents, errors, fill, to_chat, view
from dspyer.testing import ScriptedLM
from tests.rows import each


class Plain(BaseModel):
    """An alert."""

    text: str
    kind: str | None = None
    report: str | None = None


class Talk(Plain):
    messages: Messages = []


class Sort(dspy.Signature):
    """Sort this alert."""

    text: str = dspy.InputField(desc="what has happened")
    kind: str = dspy.OutputField()


class SortHeard(dspy.Signature):
    """Sort this alert."""

    text: str = dspy.InputField(desc="what has happened")
    last_message: str = dspy.InputField()
    history: dspy.History = dspy.InputField()
    kind: str = dspy.OutputField()


REPORT = "text, kind -> report"
REPORT_HEARD = dspy.Signature(
    "text, kind, last_message, history: dspy.History -> report", custom_types={"History": dspy.History}
)
SHARED = {"last_message": view("messages").others().last(1), "history": view("messages").own()}


def ways(graph: Graph) -> Graph:
    graph.add_path(START, "sort", "report")
    return graph.add_conditional_edges("report", lambda ctx: "sort" if ctx.visit < 3 else END, ["sort", END])


def by_hand(make: Any) -> Graph:
    graph = Graph(Talk)
    graph.add_node("sort", make(SortHeard), reads={"text": "text", **SHARED}, writes=["kind", "messages"])
    reads = {"text": "text", "kind": "kind", **SHARED}
    graph.add_node("report", make(REPORT_HEARD), reads=reads, writes=["report", "messages"])
    return ways(graph)


def shared(make: Any, schema: Any = Plain, **options: Any) -> Graph:
    graph = Graph(schema, conversation=True, **options)
    graph.add_node("sort", make(Sort)).add_node("report", make(REPORT))
    return ways(graph)


def refine(signature: Any) -> dspy.Module:
    return dspy.Refine(dspy.ChainOfThought(signature), N=2, reward_fn=lambda args, found: 1.0, threshold=0.5)


def answer(prompt: Any) -> dict[str, str]:
    return {name: f"{name} of {len(prompt.turns)}" for name in prompt.asks}


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()], ids=["chat", "json"])
@pytest.mark.parametrize("make", [dspy.Predict, dspy.ChainOfThought, refine])
def test_requests_are_those_of_the_declarations_by_hand(make: Any, adapter: Any) -> None:
    """Byte for byte, over three visits, on a second run of the thread, sync and async; with equal messages."""
    sent, told, explained = [], [], []
    for graph in (by_hand(make), shared(make), shared(make, Talk)):
        lm, program = ScriptedLM(answer), graph.compile(store=":memory:")
        with dspy.context(lm=lm, adapter=adapter):
            thread = program.thread("t")
            thread.run({"text": "smoke"}).raise_error()
            asyncio.run(thread.arun({"text": "fire"})).raise_error()
        sent.append([call.messages for call in lm.calls])
        told.append(thread.state.to_dict()["messages"])
        explained.append(program.graph.explain().replace("Plain", "Talk"))
    assert sent[0] == sent[1] == sent[2]
    assert len(sent[0]) == 12
    assert told[0] == told[1] == told[2]
    assert explained[0] == explained[1] == explained[2]


# --- modules with tools, agents, functions, graphs inside


def look(place: str) -> str:
    """Looks up a place."""
    if not place:
        raise ValueError("no place")
    return f"seen in {place}"


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"next_thought": f"I call {name}.", "tool_calls": {"tool_calls": [{"name": name, "args": args}]}}


def step(name: str, **args: Any) -> dict[str, Any]:
    return {"next_thought": f"I call {name}.", "next_tool_name": name, "next_tool_args": args}


def searching(node: Any, **options: Any) -> Graph:
    graph = Graph(Plain, conversation=True).add_node("search", node, **options)
    graph.add_node("report", dspy.Predict(REPORT), reads={"text": "text", "kind": "kind"})
    return graph.add_path(START, "search", "report", END)


V2 = [call("look", place="Dover"), call("look", place=""), call("submit", kind="fire"), {"report": "r"}]
V1 = [step("look", place="Dover"), step("look", place=""), step("finish"), {"reasoning": "", "kind": "fire"}]
TOOLS = [
    (lambda: dspy.ReAct("text -> kind", [look]), [*V1, {"report": "r"}]),
    (lambda: dspy.ReActV2("text -> kind", [look]), V2),
    (lambda: agents.tool_loop("text -> kind", [look]), V2),
]


@each(("make", "answers"), TOOLS, ids=["ReAct", "ReActV2", "agent"])
def test_tool_calls_and_their_results_are_in_the_conversation(make: Any, answers: Any) -> None:
    """Each call with its result, before the answer; the reader is shown the last message alone."""
    lm, program = ScriptedLM(answers * 2), searching(make()).compile(store=":memory:")
    with dspy.context(lm=lm):
        thread = program.thread("t")
        thread.run({"text": "smoke"}).raise_error()
        run = thread.run({"text": "smoke"})
        run.raise_error()
    messages = run.state.to_dict()["messages"]
    chat = to_chat(messages)
    ids = [one["id"] for message in messages for one in message.get("tool_calls", ())]
    assert len(set(ids)) == len(ids), "over the runs of a thread, too"
    assert [one["role"] for one in chat[:5]] == ["user", "assistant", "tool", "assistant", "tool"]
    assert (chat[0]["content"], chat[2]["content"]) == ("smoke", "seen in Dover")
    assert "no place" in chat[4]["content"]
    assert "finish" not in str(messages), "which ends the loop of a ReAct, and is no tool of the user"
    assert chat[1]["tool_calls"][0]["function"]["arguments"] == '{"place": "Dover"}'
    assert lm.calls[-1].prompt.inputs["last_message"] in ("search: fire", 'search: {"kind": "fire"}')
    assert [one.calls[0].value for one in run.trajectory][:1] == ["seen in Dover"]


def test_an_agent_is_shown_its_own_turns_and_not_those_of_another() -> None:
    class Two(BaseModel):
        text: str
        plan: str = ""
        deed: str = ""

    graph = Graph(Two, conversation=True)
    graph.add_node("planner", agents.tool_loop("text -> plan", [look]))
    graph.add_node("worker", agents.tool_loop("plan, last_message -> deed", [look]))
    graph.add_path(START, "planner", "worker", END)
    answers = [call("look", place="Dover"), call("submit", plan="go"), call("submit", deed="done")]
    lm = ScriptedLM(answers * 2)
    with dspy.context(lm=lm):
        thread = graph.compile(store=":memory:").thread("t")
        thread.run({"text": "smoke"}).raise_error()
        thread.run({"text": "fire"}).raise_error()
    first, second = lm.calls[2], lm.calls[5]
    assert first.prompt.inputs["last_message"] == 'planner: {"plan": "go"}'
    assert "Dover" not in str(first.messages)
    assert "Dover" in str(lm.calls[4].messages), "its own turn of the run before"
    assert "done" in str(second.messages)
    assert "Dover" not in str(second.messages)


def test_nodes_of_a_graph_inside_share_the_conversation() -> None:
    """They go on with their own turns, and hear the nodes around them."""
    inner = Graph(Plain, conversation=True).add_node("sort", dspy.Predict(Sort)).add_path(START, "sort", END)
    graph = Graph(Plain, conversation=True).add_node("inside", inner).add_node("report", dspy.Predict(REPORT))
    graph.add_path(START, "inside", "report")
    graph.add_conditional_edges("report", lambda ctx: "inside" if ctx.visit < 2 else END, ["inside", END])
    lm = ScriptedLM(answer)
    with dspy.context(lm=lm):
        run = graph.compile().run({"text": "smoke"})
    run.raise_error()
    assert [message["name"] for message in run.state["messages"]] == ["sort", "report"] * 2
    assert lm.calls[2].prompt.inputs["last_message"].endswith(": report of 2")
    assert [turn.role for turn in lm.calls[2].prompt.turns] == ["system", "user", "assistant", "user"]


def test_functions_add_what_they_return() -> None:
    """And nodes that name the conversation, or are left out, do what they say."""

    def hear(text: str) -> dict[str, Any]:
        return {"messages": {"role": "user", "content": f"heard: {text}"}}

    graph = Graph(Plain, conversation=True).add_node(hear, writes=["messages"])
    graph.add_node("sort", dspy.Predict(Sort), conversation=False)
    reads = {"text": "text", "kind": view("messages").last(1)}
    graph.add_node("report", dspy.Predict(REPORT), reads=reads)
    lm = ScriptedLM(answer)
    with dspy.context(lm=lm):
        run = graph.add_path(START, "hear", "sort", "report", END).compile().run({"text": "smoke"})
    run.raise_error()
    assert [message["content"] for message in run.state["messages"]] == ["heard: smoke"]
    assert [call.prompt.inputs for call in lm.calls] == [
        {"text": "smoke"},
        {"text": "smoke", "kind": "hear: heard: smoke"},
    ]


def test_inputs_that_a_signature_has_or_reads_names_keep_their_meaning() -> None:
    class Own(dspy.Signature):
        text: str = dspy.InputField()
        past: dspy.History = dspy.InputField()
        last_message: str = dspy.InputField(desc="what was said")
        kind: str = dspy.OutputField()

    class Named(BaseModel):
        text: str
        kind: str = ""
        last_message: str = "a field"

    graph = Graph(Plain, conversation=True).add_node("sort", dspy.Predict(Own)).add_path(START, "sort", END)
    assert list(graph.compile().sort.signature.input_fields) == ["text", "past", "last_message"]
    graph = Graph(Plain, conversation=True)
    graph.add_node("sort", dspy.Predict(Sort), reads={"text": "text", "last_message": fill("of {text}")})
    named = Graph(Named, conversation=True).add_node("sort", dspy.Predict(Own)).add_path(START, "sort", END)
    lm = ScriptedLM(answer)
    with dspy.context(lm=lm):
        graph.add_path(START, "sort", END).compile()(text="smoke")
        named.compile()(text="smoke")
    assert [call.prompt.inputs["last_message"] for call in lm.calls] == ["of smoke", "a field"]


class Crossed(BaseModel):
    text: str
    history: str = "a field"
    last_message: str = "a field"


def test_fields_and_outputs_of_the_names_of_the_inputs_are_no_conversation() -> None:
    """What a `Send` brings comes too."""
    graph = Graph(Crossed, conversation=True).add_node("begin", lambda: None, writes=[])
    graph.add_node("told", dspy.Predict("topic, text -> last_message"), writes=["last_message"])
    graph.add_node("end", dspy.Predict("text -> history")).add_edge(START, "begin").add_path("told", "end", END)

    def send(text: str) -> list[Send]:
        return [Send("told", {"topic": "tides"})]

    lm = ScriptedLM(answer)
    with dspy.context(lm=lm):
        run = graph.add_conditional_edges("begin", send, ["told"]).compile().run({"text": "smoke"})
    run.raise_error()
    assert [call.prompt.inputs for call in lm.calls] == [
        {"text": "smoke", "topic": "tides"},
        {"text": "smoke", "last_message": "told: last_message of 2"},
    ]


def test_a_module_with_tools_adds_the_calls_of_this_call_alone() -> None:
    """Not those of a history that it is given."""

    class Past(Plain):
        past: dspy.History = dspy.History(messages=[])

    earlier = dspy.ToolCalls.from_dict_list([{"name": "look", "args": {"place": "Rye"}}])
    results = dspy.ToolCallResults.from_tool_calls_and_values(earlier, ["seen in Rye"], [False])
    event = {"text": "x", "tool_calls": earlier.model_copy(update={"tool_call_results": results})}
    graph = Graph(Past, conversation=True, inputs=["text", "past"])
    graph.add_node("search", dspy.ReActV2("text -> kind", [look]), reads={"text": "text", "history": "past"})
    with dspy.context(lm=ScriptedLM(V2)):
        run = (
            graph.add_path(START, "search", END)
            .compile()
            .run({"text": "smoke", "past": dspy.History(messages=[event])})
        )
    run.raise_error()
    assert [message["content"] for message in run.state["messages"] if message["role"] == "tool"][:1] == [
        "seen in Dover"
    ]


# --- what is given, stored and tuned


def test_nothing_that_was_given_is_changed() -> None:
    """One module of two nodes is one in the program, too."""
    module = dspy.ChainOfThought("text -> kind")
    before = module.predict.signature
    graph = Graph(Plain, conversation=True).add_node("one", module).add_node("two", module)
    graph.add_path(START, "one", "two", END)
    program = graph.compile()
    assert module.predict.signature is before
    assert "messages" not in Plain.model_fields
    assert [name for name, _ in program.named_predictors()] == ["one.predict"]
    assert program.one is program.two
    again: Any = graph.compile()
    assert list(again.one.predict.signature.input_fields) == ["text", "last_message", "history"]


def test_a_function_that_takes_or_returns_the_schema_means_the_state() -> None:
    def mark(state: Plain) -> Plain:
        return Plain(text=f"{state.text} {len(state.messages)}")  # type: ignore[attr-defined]

    graph = Graph(Plain, conversation=True).add_node("sort", dspy.Predict(Sort)).add_node(mark)
    with dspy.context(lm=ScriptedLM(answer)):
        run = graph.add_path(START, "sort", "mark", END).compile().run({"text": "smoke"})
    run.raise_error()
    assert (run.state["text"], run.state["kind"]) == ("smoke 1", "kind of 2")


def test_programs_are_saved_loaded_copied_and_sent_to_workers(tmp_path: Any) -> None:
    program: Any = shared(dspy.Predict).compile()
    program.sort.demos = [dspy.Example(text="t", kind="k")]
    program.save(tmp_path / "program.json")
    loaded: Any = shared(dspy.Predict).compile()
    loaded.load(tmp_path / "program.json")
    assert [dict(demo) for demo in loaded.sort.demos] == [{"text": "t", "kind": "k"}]
    by_hand(dspy.Predict).compile().load(tmp_path / "program.json")
    schema = pickle.loads(pickle.dumps(program.graph.topology.schema))
    assert list(schema.fields) == [*Plain.model_fields, "messages"]
    assert schema.model is Plain
    assert list(program.deepcopy().sort.signature.input_fields) == ["text", "last_message", "history"]
    text = inspect.getsource(type(program))
    assert "graph = Graph(Plain, conversation=True)" in text
    assert 'graph.add_node("sort", dspy.Predict("text, last_message, history' in text


def test_optimizers_tune_each_node_and_demos_have_the_history() -> None:
    program = shared(dspy.Predict).compile()
    tuner = dspy.BootstrapFewShot(metric=lambda *_: True, max_bootstrapped_demos=4)
    lm = ScriptedLM(answer)
    with dspy.context(lm=lm):
        tuned: Any = tuner.compile(program, trainset=[dspy.Example(text="smoke").with_inputs("text")])
        tuned(text="fire")
    assert [len(demo["history"].messages) for demo in tuned.sort.demos] == [2]
    assert "last_message" in tuned.report.demos[0]


# --- what is refused


class Wrong(BaseModel):
    text: str
    messages: list[str] = []


def checked() -> Graph:
    return Graph(Plain, conversation=True).add_node("sort", dspy.Predict(Sort)).add_check("check", Plain, of="sort")


class Own(dspy.Module):
    def forward(self, text: str) -> Any:
        return {"kind": text}


@each(
    ("make", "said"),
    [
        (lambda: Graph(conversation=True), "write Graph(Schema, ...)"),
        (lambda: Graph(Wrong, conversation=True), "'messages' of another type: give it the type dspyer.Messages"),
        (lambda: Graph(Plain, conversation="yes"), "conversation='yes': give True or False"),  # type: ignore[arg-type]
        (lambda: searching(dspy.Predict(Sort), conversation=1), "node 'search': conversation=1: give True or False"),
        (checked, "or leave it out of the conversation, conversation=False"),
        (lambda: searching(Own(), writes=["kind"]), "add_node(..., conversation=False)"),
        (lambda: searching(dspy.Predict("txt -> kind")), "its input 'txt' is not in reads"),
    ],
)
def test_what_cannot_share_a_conversation_is_refused(make: Any, said: str) -> None:
    with pytest.raises(errors.GraphError) as raised:
        make().compile()
    assert said in str(raised.value)


def test_a_node_with_an_lm_of_its_own_shares_the_conversation() -> None:
    own, other = ScriptedLM(answer), ScriptedLM(answer)
    graph = Graph(Plain, conversation=True).add_node("sort", dspy.Predict(Sort), lm=own)
    graph.add_node("report", dspy.Predict(REPORT))
    with dspy.context(lm=other):
        graph.add_path(START, "sort", "report", END).compile()(text="smoke")
    assert (len(own.calls), len(other.calls)) == (1, 1)
    assert other.calls[0].prompt.inputs["last_message"] == "sort: kind of 2"
