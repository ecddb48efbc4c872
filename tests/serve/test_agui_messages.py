"""Messages of states, as a page shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph import MessagesState, StateGraph
from pydantic import BaseModel

from dspyer import END, START, Graph, Messages
from dspyer.migrate import from_langgraph
from tests.rows import each
from tests.serve.posting import Page, app_of, body, kinds, of_kind, send


class Talk(BaseModel):
    messages: Messages = []


def turn(name: str, **more: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {"id": "m", "role": "assistant", "content": "I think.", "tool_calls": [call], **more}


def result(name: str, **more: Any) -> dict[str, Any]:
    return {"id": "r", "role": "tool", "tool_call_id": "c1", "name": name, "content": "done", **more}


PARTS: list[Any] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image_url"}]
AGENT = {"turn": {"next_thought": "I think."}}  # such messages are those of an agent: it thinks, and it submits
LOOK = AIMessage("I look.", id="m", tool_calls=[{"id": "c1", "name": "look", "args": {"n": 1}}])
SEEN: dict[str, tuple[list[Any], dict[str, str]]] = {
    "user": ([{"id": "m", "role": "user", "content": "Hi"}], {}),
    "summary": ([{"id": "m", "role": "assistant", "name": "compact", "content": "S", "covers": "a"}], {}),
    "no content": ([turn("look", content=None)], {"m/c1": "look{}"}),
    "parts": ([{"id": "m", "role": "assistant", "content": PARTS}], {"m": "ab"}),
    "turn": ([turn("look", **AGENT)], {"m/c1": "look{}"}),
    "last turn": ([turn("submit", **AGENT)], {}),
    "not an agent's turn": ([turn("submit")], {"m": "I think.", "m/c1": "submit{}"}),
    "result": ([turn("look", **AGENT), result("look", value=1)], {"m/c1": "look{}", "r": "done"}),
    "last result": ([turn("submit", **AGENT), result("submit", value={})], {}),
    "not an agent's result": ([turn("submit"), result("submit")], {"m": "I think.", "m/c1": "submit{}", "r": "done"}),
    "LangChain: user": ([HumanMessage("Hi", id="m")], {}),
    "LangChain: parts": ([AIMessage(["a", *PARTS[1:]], id="m")], {"m": "ab"}),
    "LangChain: call": ([LOOK], {"m": "I look.", "m/c1": 'look{"n": 1}'}),
    "LangChain: result": (
        [LOOK, ToolMessage("done", id="r", tool_call_id="c1")],
        {"m": "I look.", "m/c1": 'look{"n": 1}', "r": "done"},
    ),
}


def giving(messages: list[Any]) -> Callable[[], dict[str, Any]]:
    return lambda: {"messages": messages}


def events_of(*written: list[Any]) -> list[dict[str, Any]]:
    """The events of a graph, or of one of LangGraph, whose nodes write these messages."""
    if isinstance(written[0][0], dict):
        graph = Graph(Talk, inputs=[])
        for number, messages in enumerate(written):
            graph.add_node(f"n{number}", giving(messages), writes=["messages"])
        graph.add_path(START, *(f"n{number}" for number in range(len(written))), END)
    else:
        state = StateGraph(MessagesState)
        for number, messages in enumerate(written):
            state.add_node(f"n{number}", lambda state, give=giving(messages): give())
            state.add_edge(f"n{number - 1}" if number else "__start__", f"n{number}")
        graph = from_langgraph(state.compile())
    events = send(app_of(graph.compile(store=":memory:"), inputs=lambda body: {}), body())
    assert kinds(events)[-1] == "RUN_FINISHED", events
    return events


@each(("messages", "shown"), SEEN.values(), ids=SEEN)
def test_what_a_page_shows_of_a_message(messages: list[Any], shown: dict[str, str]) -> None:
    assert Page().read(events_of(messages)).messages == shown


def test_a_page_hears_that_a_call_has_failed() -> None:
    """With all messages, once one was taken back: the protocol has no place for it before."""
    failed = ToolMessage("done", id="r", tool_call_id="c1", status="error")
    events = events_of([LOOK, failed, AIMessage("Draft.", id="d")], [RemoveMessage("d")])
    (found,) = of_kind(events, "MESSAGES_SNAPSHOT")
    assert [one["error"] for one in found["messages"] if one["role"] == "tool"] == ["done"]
