"""Agents of `langchain.agents.create_agent` beside LangChain: three turns on a thread, with each middleware."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pytest

pytest.importorskip("langchain.agents")

from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
    hook_config,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain.tools import InjectedState, InjectedToolCallId, ToolRuntime
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from dspyer.migrate import from_langgraph, langgraph_inputs
from tests.rows import each

# What the model calls for each request; it answers anything else in words.
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "sum": [("add", {"a": 1, "b": 2})],
    "both": [("add", {"a": 3, "b": 4}), ("send", {"to": "bob"})],
    "mail ann@post.org": [("send", {"to": "ann"})],
    "plan": [("write_todos", {"todos": [{"content": "x", "status": "pending"}]})],
    "number": [("Number", {"n": 7})],
    "bob": [("transfer_to_bob", {})],
}


class Scripted(BaseChatModel):
    """A model whose answers, with their ids, depend on the conversation alone.

    Attributes:
        seen: the conversations that it was given.
        failing: how many calls after the first one fail.
    """

    seen: list[Any]
    failing: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.seen.append([(one.type, one.content) for one in messages])
        if self.failing and len(self.seen) > 1:
            self.failing -= 1
            raise ConnectionError("down")
        last, number = messages[-1], len(messages)
        asked = CALLS.get(str(last.content), []) if last.type == "human" else []
        made = [{"name": name, "args": args, "id": f"{name}-{number}"} for name, args in asked]
        text = '{"n": 7}' if last.content == "json" else "" if made else f"{number}. {last.content}"
        message = AIMessage(text, tool_calls=made, id=f"ai-{number}")
        return ChatResult(generations=[ChatGeneration(message=message)])


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def send(to: str) -> str:
    """Send."""
    return f"sent to {to}"


class Number(BaseModel):
    n: int


class Marked(AgentState[Any]):
    mark: NotRequired[str]


@dataclass
class Person:
    name: str = "Ann"


class Jumping(AgentMiddleware[Any, Any]):
    """Answers "hi" itself, and shouts what tools return."""

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> Any:
        if state["messages"][-1].content == "hi":
            return {"jump_to": "end", "messages": [AIMessage("hello", id=f"hi-{len(state['messages'])}")]}
        return None

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        found = handler(request)
        return found.model_copy(update={"content": f"{found.content}!"})


@dataclass
class Agent:
    """An agent, three or more turns, and the answers to its questions."""

    middleware: Callable[[Scripted], Sequence[Any]] = lambda model: ()
    turns: Sequence[str] = ("sum", "hi", "both")
    answers: Sequence[Any] = ()
    tools: Any = (add, send)  # or what gives them, from the model
    options: dict[str, Any] = field(default_factory=dict)
    context: Any = None
    asynchronous: bool = False
    failing: int = 0
    around: Callable[[Any], Any] = lambda agent: agent


def decisions(*kinds: str, **more: Any) -> dict[str, Any]:
    return {"decisions": [{"type": kind, **more} for kind in kinds]}


def flaky(model: Scripted) -> Sequence[BaseTool]:
    fails = [True, False, True, False]

    @tool("add")
    def failing(a: int, b: int) -> int:
        """Add."""
        if fails.pop(0):
            raise ConnectionError("down")
        return a + b

    return [failing]


APPROVE = decisions("approve")
EDIT = decisions("edit", edited_action={"name": "add", "args": {"a": 5, "b": 6}})
NOW: dict[str, Any] = {"initial_delay": 0, "jitter": False}

MIDDLEWARE: dict[str, Agent] = {
    "none": Agent(),
    "human in the loop": Agent(
        lambda model: [HumanInTheLoopMiddleware({"add": True, "send": True})],
        ("sum", "sum", "sum", "both", "both"),
        [
            APPROVE,
            EDIT,
            decisions("respond", message="42"),
            decisions("reject", "approve"),
            decisions("approve", "approve"),
        ],
    ),
    "human in the loop, per call": Agent(
        lambda model: [HumanInTheLoopMiddleware({"add": True, "send": True}, interrupt_mode="per_call")],
        ("sum", "hi", "both"),
        [EDIT["decisions"][0], {"type": "approve"}, {"type": "reject", "message": "no"}],
    ),
    "summarization": Agent(
        lambda model: [SummarizationMiddleware(model, trigger=("messages", 4), keep=("messages", 2))]
    ),
    "limit of model calls": Agent(lambda model: [ModelCallLimitMiddleware(run_limit=1, thread_limit=3)]),
    "limit of model calls, an error": Agent(
        lambda model: [ModelCallLimitMiddleware(run_limit=1, exit_behavior="error")], ("hi", "there", "sum")
    ),
    "limit of tool calls": Agent(
        lambda model: [ToolCallLimitMiddleware(run_limit=1, thread_limit=2)], ("sum", "both", "sum")
    ),
    "limit of tool calls, the end": Agent(
        lambda model: [ToolCallLimitMiddleware(tool_name="add", thread_limit=1, exit_behavior="end")], ("sum",) * 3
    ),
    "PII": Agent(lambda model: [PIIMiddleware("email", apply_to_output=True)], ("mail ann@post.org", "a@b.org", "sum")),
    "PII, an error": Agent(lambda model: [PIIMiddleware("email", strategy="block")], ("sum", "hi", "a@b.org")),
    "to-do list": Agent(lambda model: [TodoListMiddleware()], ("plan", "hi", "plan")),
    "tool retry": Agent(lambda model: [ToolRetryMiddleware(**NOW)], ("sum", "hi", "sum"), tools=flaky),
    "model retry": Agent(lambda model: [ModelRetryMiddleware(**NOW)], failing=2),
    "model fallback": Agent(lambda model: [ModelFallbackMiddleware(model)], failing=1),
    "context editing": Agent(
        lambda model: [ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=0)])], ("sum", "both", "sum")
    ),
    "its own": Agent(lambda model: [Jumping()]),
    "four": Agent(
        lambda model: [
            HumanInTheLoopMiddleware({"add": True}),
            PIIMiddleware("email"),
            ModelCallLimitMiddleware(run_limit=2),
            Jumping(),
        ],
        ("both", "hi", "sum"),
        [APPROVE, APPROVE],
    ),
}

# Tools, as agents' users write them.


@tool("add")
def commanding(a: int, b: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
    """Add."""
    answer = ToolMessage(f"{a + b}", tool_call_id=tool_call_id, id=f"command-{a}")
    return Command(update={"messages": [answer], "mark": "set"})


@tool("add")
def asking(a: int, b: int) -> str:
    """Add."""
    return f"{interrupt({'sum': a + b})}"


@tool("send")
def asking_too(to: str) -> str:
    """Send."""
    return f"{interrupt({'to': to})}"


@tool("add")
def reading(a: int, b: int, runtime: ToolRuntime[Person]) -> str:
    """Add."""
    get_stream_writer()("written")
    found = runtime.state["messages"][-1].id, runtime.context, runtime.config["configurable"]["thread_id"]
    return f"{a + b} {found} {runtime.tool_call_id}"


@tool("send")
def injected(to: str, state: Annotated[Any, InjectedState]) -> str:
    """Send."""
    return f"{to} {len(state['messages'])}"


@tool("add")
async def awaited(a: int, b: int) -> int:
    """Add."""
    await asyncio.sleep(0)
    return a + b


@tool("transfer_to_bob")
def hand_over(state: Annotated[Any, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
    """Hand over to bob."""
    said = ToolMessage("handed over", tool_call_id=tool_call_id, id=f"over-{tool_call_id}")
    return Command(goto="bob", graph=Command.PARENT, update={"messages": [*state["messages"], said]})


def calls_an_agent(model: Scripted) -> Sequence[BaseTool]:
    inner = create_agent(model, [add], middleware=[HumanInTheLoopMiddleware({"add": True})])

    @tool("send")
    def delegate(to: str) -> Any:
        """Send."""
        return inner.invoke({"messages": [HumanMessage("sum", id="inner")]})["messages"][-1].content

    return [add, delegate]


def as_node(agent: Any) -> Any:
    builder = StateGraph(MessagesState).add_node("agent", agent)
    builder.add_node("after", lambda state: {"messages": [AIMessage("done", id=f"done-{len(state['messages'])}")]})
    return builder.add_edge(START, "agent").add_edge("agent", "after")


def with_memory(agent: Any) -> Any:
    agent.checkpointer = True
    return as_node(agent)


def with_a_number(agent: Any) -> Any:
    class Answered(MessagesState):
        structured_response: Number | None

    agent.checkpointer = True
    return StateGraph(Answered).add_node("agent", agent).add_edge(START, "agent")


def with_bob(agent: Any) -> Any:
    builder = as_node(agent)
    builder.add_node("bob", lambda state: {"messages": [AIMessage("I am bob", id=f"bob-{len(state['messages'])}")]})
    return builder


HUMAN: Callable[[Scripted], Sequence[Any]] = lambda model: [HumanInTheLoopMiddleware({"add": True})]  # noqa: E731

FORMS: dict[str, Agent] = {
    "no tools": Agent(tools=(), turns=("hi", "you", "there")),
    "tool strategy": Agent(options={"response_format": ToolStrategy(Number)}, turns=("number", "sum", "number")),
    "tool strategy in a node with a memory": Agent(
        options={"response_format": ToolStrategy(Number)}, turns=("number", "sum", "number"), around=with_a_number
    ),
    "provider strategy": Agent(options={"response_format": ProviderStrategy(Number)}, turns=("json", "json", "json")),
    "state": Agent(options={"state_schema": Marked}, tools=[commanding]),
    "context": Agent(options={"context_schema": Person}, tools=[reading], context=Person("Bob")),
    "prompt and name": Agent(options={"system_prompt": "Be brief.", "name": "desk"}),
    "two tools that ask": Agent(tools=[asking, asking_too], answers=["yes", "one", "two"]),
    "injected": Agent(tools=[add, injected]),
    "async tools in a node with a memory": Agent(
        HUMAN, tools=[awaited, send], around=with_memory, answers=[APPROVE, APPROVE], asynchronous=True
    ),
    "async tools": Agent(HUMAN, tools=[awaited, send], answers=[APPROVE, APPROVE], asynchronous=True),
    "a node": Agent(HUMAN, around=as_node, answers=[APPROVE, EDIT]),
    "a node with a memory": Agent(HUMAN, around=with_memory, answers=[APPROVE, EDIT]),
    "a hand-over": Agent(HUMAN, around=with_bob, tools=[add, hand_over], turns=("sum", "bob", "hi"), answers=[APPROVE]),
    "a tool that calls an agent": Agent(tools=calls_an_agent, turns=("both", "hi", "both"), answers=[APPROVE, EDIT]),
}


def plain(value: Any) -> Any:
    """A value in which all generated ids are equal."""
    if isinstance(value, BaseMessage):
        known = value.id is not None and not value.id.startswith("lc_") and "/" not in value.id and len(value.id) < 30
        return {**value.model_dump(exclude={"response_metadata", "id"}), "id": value.id if known else "generated"}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def made(row: Agent) -> tuple[Any, Scripted]:
    model = Scripted(seen=[], failing=row.failing)
    tools = row.tools(model) if callable(row.tools) else row.tools
    return row.around(create_agent(model, tools, middleware=row.middleware(model), **row.options)), model


# Values of a run alone, which LangGraph keeps in no checkpoint; and where dspyer keeps the memory of graphs inside.
OWN = {"run_model_call_count", "run_tool_call_count", "langgraph_checkpoints"}


@each("name", [*MIDDLEWARE, *FORMS], items=8)
def test_three_turns_are_those_of_langchain(name: str, tmp_path: Path) -> None:
    row = (MIDDLEWARE | FORMS)[name]
    (there, its_model), (here, our_model) = made(row), made(row)
    app = getattr(there, "builder", there).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    graph = from_langgraph(here, context=row.context)
    thread = graph.compile(store=tmp_path / "t.db" if "strategy" in name else ":memory:").thread("t")
    left, left_here = list(row.answers), list(row.answers)

    def invoke(value: Any) -> Any:
        if row.asynchronous:
            return asyncio.run(app.ainvoke(value, config, context=row.context))
        return app.invoke(value, config, context=row.context)

    for number, turn in enumerate(row.turns):
        value = {"messages": [HumanMessage(turn, id=f"human-{number}")]}
        asked: list[Any] = []
        error: Exception | None = None
        try:
            invoke(value)
            while pending := app.get_state(config).interrupts:
                asked += [one.value for one in pending]
                invoke(Command(resume={one.id: left.pop(0) for one in pending}))
        except Exception as raised:  # noqa: BLE001 - the class of any error is the outcome
            error = raised
        inputs = langgraph_inputs(here, value)
        run = asyncio.run(thread.arun(inputs)) if row.asynchronous else thread.run(inputs)
        texts: list[Any] = []
        while run.questions:
            texts += [json.loads(question.text) for question in run.questions]
            given = {question.id: left_here.pop(0) for question in run.questions}
            run = asyncio.run(thread.aresume(given)) if row.asynchronous else thread.resume(given)
        assert texts == asked
        assert (type(run.error), str(run.error or "")) == (type(error), str(error or ""))
        assert plain({key: one for key, one in thread.state.to_dict().items() if key not in OWN}) == plain(
            {key: one for key, one in app.get_state(config).values.items() if key not in OWN}
        )
        assert our_model.seen == its_model.seen
        if error is not None:
            break
    assert not left_here
    assert (error is not None) == name.endswith("error")
