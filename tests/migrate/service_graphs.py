"""Graphs about what surrounds a node: questions, policies, the runtime, tools and agents."""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.config import get_config, get_store, get_stream_writer
from langgraph.errors import NodeError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, create_react_agent, tools_condition
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, StreamWriter, interrupt
from langgraph.warnings import LangGraphDeprecatedSinceV10

from dspyer.migrate import from_langgraph, langgraph_inputs
from tests.migrate.cases import Case, Seen, case
from tests.migrate.flow_graphs import Log, Part, edges, logs

CASES: list[Case] = []


def asking(seen: Seen, name: str, *texts: str) -> Any:
    """A node that asks each of the texts, and logs the answers."""

    def ask(state: Any) -> Any:
        seen.append(name)
        return {"log": [f"{text} {interrupt(text)}" for text in texts]}

    return ask


@case(CASES, {}, {"log": ["a", "ok? yes", "b"]}, "a ask ask b", answers=[{"ok?": "yes"}])
def a_question(seen: Seen) -> Any:
    builder = logs(seen, "a", "b")
    builder.add_node("ask", asking(seen, "ask", "ok?"))
    return edges(builder, "^ a", "a ask", "ask b")


@case(CASES, {}, {"log": ["ok? None"]}, "ask ask", answers=[{"ok?": None}])
def the_answer_none(seen: Seen) -> Any:
    builder = StateGraph(Log)
    builder.add_node("ask", asking(seen, "ask", "ok?"))
    return edges(builder, "^ ask")


@case(
    CASES,
    {},
    {"log": ["name? Ann", "age? 41"]},
    "ask ask ask",
    answers=[{"name?": "Ann"}, {"age?": 41}],
)
def two_questions_of_one_node(seen: Seen) -> Any:
    builder = StateGraph(Log)
    builder.add_node("ask", asking(seen, "ask", "name?", "age?"))
    return edges(builder, "^ ask")


@case(
    CASES,
    {},
    {"log": ["a? 1", "b? 2", "side", "end"]},
    "a b side a b end",
    answers=[{"a?": 1, "b?": 2}],
)
def questions_of_parallel_nodes(seen: Seen) -> Any:
    builder = logs(seen, "side", "end")
    for name in "ab":
        builder.add_node(name, asking(seen, name, f"{name}?"))
    return edges(builder, "^ a", "^ b", "^ side", "a end", "b end", "side end")


@case(CASES, {}, {"log": ["before"], "word": "yes!"}, "before ask ask shout", answers=[{"sure?": "yes"}])
def a_question_in_a_subgraph(seen: Seen) -> Any:
    inner = StateGraph(Part)
    inner.add_node("ask", seen.node("ask", lambda state: {"word": interrupt("sure?")}))
    inner.add_node("shout", seen.node("shout", lambda state: {"word": state["word"] + "!"}))
    builder = logs(seen, "before")
    builder.add_node("part", edges(inner, "^ ask", "ask shout").compile())
    return edges(builder, "^ before", "before part")


@case(CASES, {"word": "w"}, {"word": "yes", "log": ["end"]}, "choose choose end", answers=[{"go?": "yes"}])
def a_question_that_routes(seen: Seen) -> Any:
    builder = logs(seen, "end")

    def choose(state: Log) -> Any:
        seen.append("choose")
        answer = interrupt("go?")
        return Command(goto="end" if answer == "yes" else END, update={"word": answer})

    builder.add_node("choose", choose, destinations=("end", END))
    return edges(builder, "^ choose")


@case(
    CASES,
    {},
    {"log": ["tried", "end"]},
    "flaky flaky flaky end",
)
def a_retry(seen: Seen) -> Any:
    def flaky(state: Log) -> Any:
        seen.append("flaky")
        if seen.count("flaky") < 3:
            raise ConnectionError("again")
        return {"log": ["tried"]}

    builder = logs(seen, "end")
    policy = RetryPolicy(initial_interval=0.001, max_attempts=3, jitter=False)
    builder.add_node("flaky", flaky, retry_policy=policy)
    return edges(builder, "^ flaky", "flaky end")


@case(CASES, {}, None, "flaky flaky", error="OSError")
def a_retry_that_gives_up(seen: Seen) -> Any:
    def flaky(state: Log) -> Any:
        seen.append("flaky")
        raise OSError("again")

    builder = StateGraph(Log)
    policy = RetryPolicy(initial_interval=0.001, max_attempts=2, jitter=False, retry_on=OSError)
    builder.add_node("flaky", flaky, retry_policy=policy)
    return edges(builder, "^ flaky")


@case(
    CASES,
    {},
    {"log": ["a", "end"]},
    "a route a route end",
    dspyer_error="ConnectionError",
    dspyer_calls="a route",
    why="a router is a pure function, which another attempt does not mend: a decision that may fail belongs in a node",
)
def a_router_that_fails_under_a_retry(seen: Seen) -> Any:
    def route(state: Log) -> str:
        seen.append("route")
        if seen.count("route") == 1:
            raise ConnectionError("again")
        return "end"

    builder = logs(seen, "end")
    policy = RetryPolicy(initial_interval=0.001, max_attempts=2, jitter=False)
    builder.add_node("a", seen.node("a", {"log": ["a"]}), retry_policy=policy)
    builder.add_conditional_edges("a", route, ["end"])
    return edges(builder, "^ a")


@case(CASES, {}, None, "flaky", error="ValueError")
def an_error_that_is_not_retried(seen: Seen) -> Any:
    def flaky(state: Log) -> Any:
        seen.append("flaky")
        raise ValueError("never again")

    builder = StateGraph(Log)
    builder.add_node("flaky", flaky, retry_policy=RetryPolicy(initial_interval=0.001, max_attempts=2, jitter=False))
    return edges(builder, "^ flaky")


@case(CASES, {"word": "x"}, {"word": "x", "log": ["handled", "after"]}, "bad handle after")
def an_error_handler(seen: Seen) -> Any:
    def bad(state: Log) -> Any:
        seen.append("bad")
        raise RuntimeError("boom")

    def handle(state: Log) -> Any:
        seen.append("handle")
        return Command(update={"log": ["handled"]}, goto="after")

    builder = logs(seen, "after", "other")
    builder.add_node("bad", bad, error_handler=handle)
    return edges(builder, "^ bad", "bad other")


@case(CASES, {"word": "x"}, {"word": "boom", "log": []}, "bad handle")
def an_error_handler_that_only_writes(seen: Seen) -> Any:
    """The edges of the node that failed are not followed."""

    def bad(state: Log) -> Any:
        seen.append("bad")
        raise RuntimeError("boom")

    def handle(state: Log, error: NodeError) -> Any:
        seen.append("handle")
        return {"word": str(error.error)}

    builder = logs(seen, "after")
    builder.add_node("bad", bad, error_handler=handle)
    return edges(builder, "^ bad", "bad after")


@case(CASES, {}, {"log": ["handled", "side", "end"]}, "flaky flaky handle side end")
def an_error_handler_after_retries_next_to_another_branch(seen: Seen) -> Any:
    def flaky(state: Log) -> Any:
        seen.append("flaky")
        raise ConnectionError("again")

    def handle(state: Log) -> Any:
        seen.append("handle")
        return Command(update={"log": ["handled"]}, goto="end")

    builder = logs(seen, "side", "end")
    policy = RetryPolicy(initial_interval=0.001, max_attempts=2, jitter=False)
    builder.add_node("flaky", flaky, retry_policy=policy, error_handler=handle, destinations=("end",))
    return edges(builder, "^ flaky", "^ side", "side end")


@case(CASES, {}, None, "slow", error="NodeTimeoutError", only_async=True)
def a_timeout(seen: Seen) -> Any:
    async def slow(state: Log) -> Any:
        seen.append("slow")
        await asyncio.Event().wait()

    builder = StateGraph(Log)
    builder.add_node("slow", slow, timeout=0.01)
    return edges(builder, "^ slow")


@case(CASES, {"word": "x"}, {"word": "x", "log": ["cached"]}, "cached")
def a_cache_policy(seen: Seen) -> Any:
    builder = StateGraph(Log)
    builder.add_node("cached", seen.node("cached", {"log": ["cached"]}), cache_policy=CachePolicy())
    return edges(builder, "^ cached")


@dataclass
class User:
    name: str


@case(
    CASES,
    {},
    {"log": ["Ann from Oslo", "Ann Oslo", "tea"]},
    "typed asks stored",
    invoke={"context": User("Ann"), "config": {"configurable": {"city": "Oslo"}}},
    options={"context": User("Ann"), "configurable": {"city": "Oslo"}},
)
def runtime_config_and_store(seen: Seen) -> Any:
    def typed(state: Log, config: RunnableConfig, runtime: Runtime[User], *, store: BaseStore) -> Any:
        seen.append("typed")
        assert runtime.store is store
        store.put(("drinks",), runtime.context.name, {"drink": "tea"})
        return {"log": [f"{runtime.context.name} from {config['configurable']['city']}"]}

    def asks(state: Log) -> Any:
        seen.append("asks")
        return {"log": [f"{get_runtime(User).context.name} {get_config()['configurable']['city']}"]}

    def stored(state: Log) -> Any:
        seen.append("stored")
        return {"log": [get_store().get(("drinks",), "Ann").value["drink"]]}

    builder = StateGraph(Log, context_schema=User)
    builder.add_sequence([typed, asks, stored])
    return edges(builder, "^ typed").compile(store=InMemoryStore())


@case(CASES, {}, {"log": ["wrote"]}, "write")
def a_stream_writer(seen: Seen) -> Any:
    def write(state: Log, writer: StreamWriter) -> Any:
        seen.append("write")
        writer({"custom": 1})
        get_stream_writer()({"custom": 2})
        return {"log": ["wrote"]}

    builder = StateGraph(Log)
    builder.add_node("write", write)
    return edges(builder, "^ write")


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


class Chat(MessagesState):
    turns: int


@tool
def count(state: Annotated[dict[str, Any], InjectedState]) -> int:
    """How many messages there are."""
    return len(state["messages"])


def calling(*calls: tuple[str, dict[str, Any]], text: str = "") -> AIMessage:
    """A message of a model that calls tools."""
    made = [{"name": name, "args": args, "id": f"call-{name}"} for name, args in calls]
    return AIMessage(text, tool_calls=made, id="ask")


@case(
    CASES,
    {"messages": [("user", "weather?")]},
    {
        "messages": [
            ("human", "weather?", "generated"),
            ("ai", "", "ask"),
            ("tool", "sunny in Oslo", "generated"),
            ("tool", "2", "generated"),
            ("ai", "done", "done"),
        ]
    },
    "model model",
)
def a_tool_node(seen: Seen) -> Any:
    def model(state: MessagesState) -> Any:
        seen.append("model")
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage("done", id="done")]}
        return {"messages": [calling(("weather", {"city": "Oslo"}), ("count", {}))]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([weather, count]))
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge(START, "model")
    builder.add_edge("tools", "model")
    return builder


@case(
    CASES,
    {"messages": [("user", "count")], "turns": 3},
    {
        "messages": [("human", "count", "generated"), ("ai", "", "ask"), ("tool", "2", "generated")],
        "turns": 3,
        "read": "messages turns",
    },
)
def a_tool_call_that_is_sent_reads_the_state_around_it(seen: Seen) -> Any:
    class Read(Chat):
        read: str

    def read(state: Any, config: RunnableConfig) -> Any:
        channels = config["configurable"]["__pregel_read"]  # as a `ToolNode` of LangGraph 1.2.22 does
        assert channels("turns") == 3
        found = channels(list(channels.args[1]), True)
        return {"read": " ".join(sorted(name for name in found if name in ("messages", "turns")))}

    builder = StateGraph(Read)
    builder.add_node("model", lambda state: {"messages": [calling(("count", {}))]})
    builder.add_node("tools", ToolNode([count])).add_node("read", read)
    builder.add_edge(START, "model").add_edge("tools", "read")
    builder.add_conditional_edges(
        "model", lambda state: [Send("tools", [call]) for call in state["messages"][-1].tool_calls], ["tools"]
    )
    return builder


class Model(GenericFakeChatModel):
    """A model that says what a script says, with any tools."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


@case(
    CASES,
    {"messages": [("user", "weather?")]},
    {
        "messages": [
            ("human", "weather?", "generated"),
            ("ai", "", "ask"),
            ("tool", "sunny in Oslo", "generated"),
            ("ai", "It is sunny.", "done"),
        ]
    },
)
def a_prebuilt_agent(seen: Seen) -> Any:
    script = iter([calling(("weather", {"city": "Oslo"})), AIMessage("It is sunny.", id="done")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangGraphDeprecatedSinceV10)  # of which there are many in use
        return create_react_agent(Model(messages=script), [weather])


def approving(seen: Seen) -> Any:
    """A graph that asks in a subgraph, between two nodes with side effects."""
    inner = StateGraph(Chat)
    inner.add_node("ask", seen.node("ask", lambda state: {"messages": [AIMessage(f"you said {interrupt('ok?')}")]}))
    inner.add_edge(START, "ask")
    builder = StateGraph(Chat)
    builder.add_node("first", seen.node("first", lambda state: {"turns": state.get("turns", 0) + 1}))
    builder.add_node("asking", inner.compile())
    builder.add_node("last", seen.node("last", lambda state: {"messages": [AIMessage(f"turn {state['turns']}")]}))
    for before, after in pairwise((START, "first", "asking", "last", END)):
        builder.add_edge(before, after)
    return builder


def start_and_stop(path: str) -> None:
    """In another process: the first turn of a thread, up to its question."""
    seen = Seen()
    app = approving(seen).compile()
    program = from_langgraph(app).compile(store=path)
    run = program.thread("1").run(langgraph_inputs(app, {"messages": [("user", "hi")]}))
    assert [question.key for question in run.questions] == ["ask-0"]
    assert seen == ["first", "ask"]
