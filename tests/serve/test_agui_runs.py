"""A run behind AG-UI: its steps, texts, tool calls and state, and how it ends."""

from __future__ import annotations

import asyncio
import json
import selectors
from typing import Any

import dspy
import pytest
from langchain_core.messages import AIMessage, RemoveMessage, ToolMessage
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel, field_serializer

from dspyer import END, START, Context, Graph, Messages, agents
from dspyer.migrate import from_langgraph
from dspyer.testing import ScriptedLM, no_pauses
from tests.log.failing import FailingMemory
from tests.serve.posting import Page, app_of, body, events_in, kinds, of_kind, send, user


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def find_order(order: str) -> str:
    """Finds an order."""
    return f"order {order} was shipped"


def test_the_texts_of_a_program_arrive_as_they_are_written() -> None:
    graph = Graph(inputs=["message"]).add_node("answer", dspy.Predict("message -> reply"))
    app = app_of(graph.add_path(START, "answer", END).compile(store=":memory:"))
    with ScriptedLM([{"reply": "The moon."}]):
        events = send(app, body("Why are there tides?"))
    assert kinds(events) == [
        "RUN_STARTED",
        "STATE_SNAPSHOT",
        "STEP_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "STATE_SNAPSHOT",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]
    assert "".join(event["delta"] for event in of_kind(events, "TEXT_MESSAGE_CONTENT")) == "The moon."
    assert {event["messageId"] for event in of_kind(events, "TEXT_MESSAGE_CONTENT")} == {"r1/0"}
    assert events[-1] == {"type": "RUN_FINISHED", "threadId": "t", "runId": "r1", "outcome": {"type": "success"}}


@pytest.mark.parametrize("text", ["reply", "messages"])
def test_tool_calls_of_an_agent_have_their_results(text: str) -> None:
    app = app_of(agents.tool_loop("message -> reply", tools=[find_order]).compile(store=":memory:"), text=text)
    script = [
        {"next_thought": "I look.", "tool_calls": [call("find_order", order="7")]},
        {"next_thought": "Done.", "tool_calls": [call("submit", reply="It was shipped.")]},
    ]
    with ScriptedLM(script):
        events = send(app, body("Where is 7?"))
    calls = of_kind(events, "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT")
    call_id = calls[0]["toolCallId"]
    assert calls == [
        {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": "find_order"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": '{"order": "7"}'},
        {"type": "TOOL_CALL_END", "toolCallId": call_id},
        {
            "type": "TOOL_CALL_RESULT",
            "messageId": calls[3]["messageId"],
            "toolCallId": call_id,
            "content": "order 7 was shipped",
        },
    ]
    assert "".join(event["delta"] for event in of_kind(events, "TEXT_MESSAGE_CONTENT")) == "It was shipped."
    # Neither what the agent thinks nor the tokens of an argument are texts for the user.
    assert "I look." not in str(events)


class Talk(BaseModel):
    question: str
    draft: str = ""
    messages: Messages = []


def test_turns_of_a_conversation_are_messages_that_arrive_as_they_are_written() -> None:
    graph = Graph(Talk, inputs=["question"])
    graph.add_node("write", dspy.ChainOfThought("question -> draft"), writes=["draft", "messages"])
    graph.add_node("note", lambda: {"messages": {"role": "assistant", "content": "Ask me more."}}, writes=["messages"])
    app = app_of(graph.add_path(START, "write", "note", END).compile(store=":memory:"))
    with ScriptedLM([{"reasoning": "Think.", "draft": "The moon."}]):
        events = send(app, body("Why?"))
    assert list(Page().read(events).messages.values()) == ["The moon.", "Ask me more."]
    assert kinds(events).count("TEXT_MESSAGE_CONTENT") == 3  # two tokens, and a text of a function
    assert (Page().read(events).state, "Think." in str(events)) == ({"draft": "The moon."}, False)
    with ScriptedLM([{"reasoning": "Think.", "draft": "The sun."}]):
        again = send(app, body("And?", run="r2"))  # what the thread holds already is not sent again
    assert list(Page().read(again).messages.values()) == ["The sun.", "Ask me more."]


def test_an_agent_that_is_a_node_shows_the_texts_that_its_node_writes() -> None:
    inner = agents.tool_loop("message -> reply", tools=[find_order], name="Inner")
    graph = Graph(inputs=["message"])
    graph.add_node("desk", dspy.Predict("message -> desk")).add_node("agent", inner)
    program = graph.add_path(START, "desk", "agent", END).compile(store=":memory:")
    with ScriptedLM(
        [{"desk": "orders"}, {"next_thought": "Done.", "tool_calls": [call("submit", reply="It is here.")]}]
    ):
        events = send(app_of(program, text="reply"), body("Where?"))
    assert [event["delta"] for event in of_kind(events, "TEXT_MESSAGE_CONTENT")] == ["It", " is", " here."]
    assert list(Page().read(events).messages.values()) == ["It is here."]


def test_a_text_that_a_check_rejected_is_taken_back() -> None:
    loop = agents.tool_loop(
        "message -> reply",
        tools=[find_order],
        check=lambda reply: [] if reply.endswith("!") else ["no mark"],
        max_fixes=1,
    )
    script = [
        {"next_thought": "Done.", "tool_calls": [call("submit", reply="It is here.")]},
        {"next_thought": "Louder.", "tool_calls": [call("submit", reply="It is here!")]},
    ]
    with ScriptedLM(script):
        events = send(app_of(loop.compile(store=":memory:")), body("Where?"))
    assert kinds(events).count("TEXT_MESSAGE_START") == 2
    shown = Page([user("Where?")]).read(events).messages
    assert list(shown.values()) == ["Where?", "It is here!"]


def test_a_page_hears_that_a_call_of_an_agent_has_failed() -> None:
    """With all messages, once one was taken back."""

    def short(reply: str) -> list[str]:
        return [] if len(reply) < 5 else ["too long"]

    loop = agents.tool_loop("message -> reply", tools=[find_order], check=short, max_fixes=1)
    script = [
        {"next_thought": "I look.", "tool_calls": [call("nothing")]},
        {"next_thought": "Done.", "tool_calls": [call("submit", reply="It is here.")]},
        {"next_thought": "Done.", "tool_calls": [call("submit", reply="Here")]},
    ]
    with ScriptedLM(script):
        events = send(app_of(loop.compile(store=":memory:")), body("Where?"))
    (error,) = [one["error"] for one in of_kind(events, "MESSAGES_SNAPSHOT")[0]["messages"] if one["role"] == "tool"]
    assert "nothing" in error


def test_the_graph_of_another_library_is_served_like_any_other() -> None:
    state = StateGraph(MessagesState)

    def agent(state: dict[str, Any]) -> dict[str, Any]:
        last = state["messages"][-1]
        if last.type != "human":
            return {"messages": [AIMessage("Found.")]}
        return {
            "messages": [AIMessage("I look.", tool_calls=[{"name": "find", "args": {"q": last.content}, "id": "c1"}])]
        }

    def tools(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [ToolMessage(f"here, {interrupt('May I?')}", tool_call_id="c1")]}

    state.add_node("agent", agent).add_node("tools", tools).add_edge("__start__", "agent")
    state.add_conditional_edges("agent", lambda now: "tools" if now["messages"][-1].tool_calls else "__end__")
    app = app_of(from_langgraph(state.add_edge("tools", "agent").compile()).compile(store=":memory:"))
    first = send(app, body("cats"))
    (question,) = first[-1]["outcome"]["interrupts"]
    assert (question["message"], list(Page().read(first).messages.values())) == (
        "May I?",
        ["I look.", 'find{"q": "cats"}'],
    )
    resume = [{"interruptId": question["id"], "status": "resolved", "payload": "yes"}]
    done = send(app, body(run="r2", resume=resume))
    (result,) = of_kind(done, "TOOL_CALL_RESULT")
    (made,) = of_kind(first, "TOOL_CALL_START")
    assert (result["content"], result["toolCallId"]) == ("here, yes", made["toolCallId"])
    assert [event["delta"] for event in of_kind(done, "TEXT_MESSAGE_CONTENT")] == ["Found."]


def test_questions_about_calls_of_one_tool_at_once_refer_to_theirs() -> None:
    def refund(order: str) -> str:
        """Pays money back."""
        return f"paid {order}"

    tools = [find_order, agents.tool(refund, approve=True)]
    app = app_of(agents.tool_loop("message -> reply", tools=tools).compile(store=":memory:"))
    calls = [call("refund", order="7"), call("find_order", order="8"), call("refund", order="9")]
    script = [
        {"next_thought": "Pay.", "tool_calls": calls},
        {"next_thought": "Done.", "tool_calls": [call("submit", reply="Paid.")]},
    ]
    with ScriptedLM(script):
        first = send(app, body("Pay."))
        questions = first[-1]["outcome"]["interrupts"]
        answers = [{"interruptId": one["id"], "status": "resolved", "payload": True} for one in questions]
        done = send(app, body(run="r2", resume=answers))
    made = {one["toolCallId"]: one["delta"] for one in of_kind(first, "TOOL_CALL_ARGS")}
    assert [(one["message"], one["reason"], made[one["toolCallId"]]) for one in questions] == [
        ("refund(order='7')?", "tool_call", '{"order": "7"}'),
        ("refund(order='9')?", "tool_call", '{"order": "9"}'),
    ]
    results = [[one["content"] for one in of_kind(events, "TOOL_CALL_RESULT")] for events in (first, done)]
    assert (results[0], sorted(results[1])) == (["order 8 was shipped"], ["paid 7", "paid 9"])


def test_equal_calls_of_one_tool_have_a_question_each_and_those_of_earlier_requests_none() -> None:
    def refund(order: str) -> str:
        """Pays money back."""
        return f"paid {order}"

    loop = agents.tool_loop("message -> reply", tools=[agents.tool(refund, approve=True)])
    app = app_of(loop.compile(store=":memory:"))
    calls = [call("refund", order="7"), call("refund", order="7")]
    turns = [
        {"next_thought": "Pay.", "tool_calls": calls},
        {"next_thought": "Done.", "tool_calls": [call("submit", reply="Paid.")]},
    ]
    with ScriptedLM([*turns, *turns]):
        for request in ("a", "b"):
            asked = send(app, body("Pay.", run=f"{request}1", messages=[user("Pay.", request)]))
            questions = asked[-1]["outcome"]["interrupts"]
            made = [one["toolCallId"] for one in of_kind(asked, "TOOL_CALL_START")]
            assert len(made) == 2
            assert sorted(one["toolCallId"] for one in questions) == sorted(made)
            answers = [{"interruptId": one["id"], "status": "resolved", "payload": True} for one in questions]
            send(app, body(run=f"{request}2", resume=answers))


@pytest.mark.parametrize("ends", ["attempt", "node", "graph"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_an_attempt_wrote_before_it_failed_is_taken_back(depth: int, ends: str) -> None:
    """At once, and not when the run ends; also inside of graphs that are nodes."""

    class Answer(BaseModel):
        message: str
        reply: str = ""

    graph = Graph(Answer, inputs=["message"], outputs=["reply"])
    signature, last = "message -> reply: str, sure: bool", "answer"
    graph.add_node("answer", dspy.Predict(signature), writes={"reply": "reply"}, retry=2 if ends == "attempt" else None)
    if ends == "node":
        graph.add_node(last := "again", dspy.Predict(signature), writes={"reply": "reply"})
        graph.add_edge("answer", END).add_error_edge("answer", "again")
    graph.add_edge(START, "answer").add_edge(last, END)
    for level in range(depth):
        name = f"part{level}"
        around = Graph(Answer, inputs=["message"], outputs=["reply"])
        graph = around.add_node(name, graph.compile(), retry=2 if ends == "graph" else None).add_path(START, name, END)
    program = graph.compile(store=":memory:")
    program.set_lm(ScriptedLM([{"reply": "Well, no.", "sure": "maybe"}, {"reply": "Yes.", "sure": True}]))
    with no_pauses():
        events = send(app_of(program, text="reply"), body("Is it?"))
    if (depth, ends) == (0, "graph"):  # nothing tries again: the run fails
        assert list(Page([user("Is it?")]).read(events).messages.values()) == ["Is it?"]
        return
    first, second = (at for at, kind in enumerate(kinds(events)) if kind == "TEXT_MESSAGE_START")
    (taken_back,) = of_kind(events[first:second], "MESSAGES_SNAPSHOT")
    assert [one["content"] for one in taken_back["messages"]] == ["Is it?"]
    assert list(Page([user("Is it?")]).read(events).messages.values()) == ["Is it?", "Yes."]


def test_what_a_node_wrote_stays_while_its_router_is_asked_again() -> None:
    class Answer(BaseModel):
        message: str
        reply: str = ""

    graph = Graph(Answer, inputs=["message"])
    graph.add_node("answer", dspy.Predict("message -> reply"), retry=2).add_edge(START, "answer")
    route = dspy.Predict("reply -> next: Literal['stop']")
    program = graph.add_conditional_edges("answer", route, {"stop": END}).compile(store=":memory:")
    program.set_lm(ScriptedLM([{"reply": "Yes."}, {"next": "on"}, {"next": "stop"}]))
    with no_pauses():
        events = send(app_of(program, text="reply"), body("Is it?"))
    assert len(of_kind(events, "TEXT_MESSAGE_START")) == 1
    assert not of_kind(events, "MESSAGES_SNAPSHOT")  # which would take the text back
    assert list(Page([user("Is it?")]).read(events).messages.values()) == ["Is it?", "Yes."]


def test_what_a_branch_said_before_a_question_is_not_said_again() -> None:
    made = {"id": "c", "type": "function", "function": {"name": "find", "arguments": ""}}
    said = [{"role": "assistant", "content": "I look.", "tool_calls": [made]}]
    said.append({"role": "tool", "name": "find", "tool_call_id": "c", "content": "found"})
    graph = Graph(Talk, inputs=["question"]).add_node("look", lambda: {"messages": said}, writes=["messages"])
    graph.add_node("other", lambda: {"messages": {"role": "assistant", "content": "Other."}}, writes=["messages"])
    graph.add_node("ask", lambda ctx: {"draft": ctx.interrupt("q", "Go on?", str)}, writes=["draft"])
    graph.add_node("end", lambda: {"messages": {"role": "assistant", "content": "Done."}}, writes=["messages"])
    graph.add_path(START, "look", "ask", "end", END).add_path(START, "other", "end")
    app = app_of(graph.compile(store=":memory:"))
    first = send(app, body("Look."))
    (question,) = first[-1]["outcome"]["interrupts"]
    assert sorted(Page().read(first).messages.values()) == ["I look.", "Other.", "find", "found"]
    resume = [{"interruptId": question["id"], "status": "resolved", "payload": "yes"}]
    done = send(app, body(run="r2", resume=resume))
    assert list(Page().read(done).messages.values()) == ["Done."]


def test_a_message_that_a_later_node_replaces_or_removes_is_taken_back() -> None:
    state = StateGraph(MessagesState)
    state.add_node("write", lambda state: {"messages": [AIMessage("My draft", id="a"), AIMessage("Psst", id="b")]})
    state.add_node("guard", lambda state: {"messages": [AIMessage("My text", id="a"), RemoveMessage("b")]})
    state.add_edge("__start__", "write").add_edge("write", "guard")
    events = send(app_of(from_langgraph(state.compile()).compile(store=":memory:")), body("Write."))
    assert Page([user("Write.")]).read(events).messages == {"m1": "Write.", "a": "My text"}


def test_a_field_of_messages_that_is_hidden_shows_none() -> None:
    graph = Graph(Talk, inputs=["question"])
    graph.add_node("note", lambda: {"messages": {"role": "assistant", "content": "Secret."}}, writes=["messages"])
    program = graph.add_path(START, "note", END).compile(store=":memory:", redact=["messages"])
    events = send(app_of(program), body("Why?"))
    assert ("Secret" in str(events), events[-1]["outcome"]) == (False, {"type": "success"})


class Odd(BaseModel):
    number: int = 1

    @field_serializer("number")
    def _raise(self, number: int) -> int:
        raise TypeError(number)


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("\ud83d", "?"),  # a client could not send it back
        ({"\ud83d": [float("nan"), "\ud83d"]}, {"?": [None, "?"]}),
        (nested(300), nested(300)),
        ([Odd()], ["<Odd>"]),
    ],
)
def test_a_value_that_json_does_not_have_ends_no_response(value: Any, shown: Any) -> None:
    def work(message: str, ctx: Context) -> dict[str, Any]:
        ctx.emit(value)
        return {"reply": message}

    graph = Graph(inputs=["message"]).add_node(work, writes=["reply"])
    events = send(app_of(graph.add_path(START, "work", END).compile(store=":memory:")), body())
    assert (of_kind(events, "CUSTOM")[0]["value"], kinds(events)[-1]) == (shown, "RUN_FINISHED")


@pytest.mark.parametrize("begun", [False, True])
def test_a_store_that_fails_ends_the_run_and_its_text_is_for_the_log(begun: bool) -> None:
    def fail() -> None:
        raise OSError("no space left on /mnt/secret")

    def work(message: str) -> dict[str, str]:
        store.arm(fail, at=1, after=False)
        return {"reply": message}

    store = FailingMemory()
    graph = Graph(inputs=["message"]).add_node(work, writes=["reply"])
    app = app_of(graph.add_path(START, "work", END).compile(store=store))
    if not begun:
        store.arm(fail, at=1, after=False)
    last = send(app, body())[-1]
    message = "The request has failed. The log of the server says why."
    assert last == {"type": "RUN_ERROR", "message": message, "code": "failed"}


def test_no_client_replaces_a_message_of_the_assistant_and_one_that_is_sent_again_is_one() -> None:
    state = StateGraph(MessagesState)
    state.add_node("answer", lambda state: {"messages": [AIMessage(f"{len(state['messages'])} so far", id="ai")]})
    program = from_langgraph(state.add_edge("__start__", "answer").compile()).compile(store=":memory:")
    app, thread = app_of(program), program.thread("ada/t")
    send(app, body("Hi"))
    send(app, body("Hi", run="r2"))
    assert [(one.id, one.content) for one in thread.state["messages"]] == [("client:m1", "Hi"), ("ai", "2 so far")]
    send(app, body(messages=[user("You said yes.", "ai")], run="r3"))
    ids = [(one.type, one.id) for one in thread.state["messages"]]
    assert ids == [("human", "client:m1"), ("ai", "ai"), ("human", "client:ai")]


class FastLoop(asyncio.SelectorEventLoop):
    """A loop whose time runs ten thousand times as fast."""

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            return super().select(timeout and timeout / 10_000)

    def __init__(self) -> None:
        super().__init__(self.Selector())

    def time(self) -> float:
        return 10_000 * super().time()


def test_a_silence_is_filled_with_comments() -> None:
    go = asyncio.Event()

    async def work(message: str) -> dict[str, str]:
        await go.wait()
        return {"reply": message}

    graph = Graph(inputs=["message"]).add_node(work, writes=["reply"])
    app = app_of(graph.add_path(START, "work", END).compile(store=":memory:"))
    headers = [(b"content-type", b"application/json"), (b"x-user", b"ada")]
    scope = {"type": "http", "method": "POST", "path": "/agui", "headers": headers, "query_string": b""}
    request = [{"type": "http.request", "body": json.dumps(body()).encode()}]
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if request:
            return request.pop()
        await asyncio.Event().wait()  # the client stays
        return {}

    async def keep(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent[-1].startswith(b":"):
            go.set()

    with asyncio.Runner(loop_factory=FastLoop) as runner:
        runner.run(app(scope, receive, keep))
    assert b":\n\n" in sent
    assert kinds(events_in(b"".join(sent).decode()))[-1] == "RUN_FINISHED"
