"""Graphs that cannot be converted, each with the sentence that says why and what to do."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from typing import Annotated, Any

import dspy
from langgraph.channels import Topic
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import NodeInterrupt
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import push_message
from langgraph.types import CachePolicy, Command, RetryPolicy, interrupt
from typing_extensions import TypedDict

from tests.migrate.cases import Seen
from tests.migrate.flow_graphs import Log, edges, part

typed_dict: Any = TypedDict  # with fields that mypy need not know

REFUSED: list[tuple[Callable[[], Any], str]] = []


def refused(sentence: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Adds a row."""

    def add(build: Callable[[], Any]) -> Callable[[], Any]:
        REFUSED.append((build, sentence))
        return build

    return add


def of(node: Any, schema: Any = Log, **options: Any) -> Any:
    """A graph of one node, `x`."""
    builder = StateGraph(schema)
    builder.add_node("x", node, **options)
    builder.add_edge(START, "x")
    return builder


def nothing(state: Any) -> Any:
    return {}


@refused(
    "the router 'later' of 'x' is async: a router is a plain function; await in a node, and route by what it wrote"
)
def an_async_router() -> Any:
    async def later(state: Log) -> str:
        await asyncio.sleep(0)
        return "y"

    builder = of(nothing)
    builder.add_node("y", nothing)
    builder.add_conditional_edges("x", later, ["y"])
    return builder


@refused(
    "node 'x' returns Command(graph=Command.PARENT): return the value and route in the parent graph, or let a function "
    "that is the node call this graph"
)
def a_command_for_the_parent() -> Any:
    def up(state: Log) -> Any:
        return Command(graph=Command.PARENT, goto="y")

    return of(up)


def field_of(annotation: Any) -> Any:
    """A graph with a field `t` of such a channel."""
    return of(nothing, typed_dict("Odd", {"t": annotation, "log": Annotated[list, operator.add]}))


@refused("field 't' is a Topic: a list emptied after each step; use reducers.extend, and DELETE to empty it")
def a_topic() -> Any:
    return field_of(Annotated[list[str], Topic(str)])


@task(retry_policy=RetryPolicy(max_attempts=2))
def fetched(word: str) -> str:
    return word


@task(cache_policy=CachePolicy())
def counted(word: str) -> int:
    return len(word)


@task(timeout=5.0)
async def awaited(word: str) -> str:
    return word


@task
def fetched_by_another(word: str) -> str:
    return str(fetched(word).result())


OF_TASKS = ": make it a node with that policy, or call a plain function"


@refused(f"node 'x' calls the task 'fetched', which has a retry_policy{OF_TASKS}")
def a_task_that_is_retried() -> Any:
    return of(lambda state: {"word": fetched(state["word"]).result()})


@refused(f"node 'x' calls the task 'fetched', which has a retry_policy{OF_TASKS}")
def a_task_that_calls_one() -> Any:
    return of(lambda state: {"word": fetched_by_another(state["word"]).result()})


@refused(f"node 'x' calls the task 'counted', which has a cache_policy{OF_TASKS}")
def a_task_that_is_cached() -> Any:
    return of(lambda state: {"word": str(counted(state["word"]).result())})


@refused(f"node 'x' calls the task 'awaited', which has a timeout{OF_TASKS}")
def a_task_with_a_timeout() -> Any:
    async def call(state: Log) -> Any:
        return {"word": await awaited(state["word"])}

    return of(call)


@refused("node 'x' raises NodeInterrupt: call interrupt(value), which returns the answer")
def a_node_interrupt() -> Any:
    def ask(state: Log) -> Any:
        raise NodeInterrupt("Well?")

    return of(ask)


@refused("the router 'by_answer' of 'x' calls interrupt(): ask in a node, and route by the answer")
def a_router_that_asks() -> Any:
    def by_answer(state: Log) -> str:
        return str(interrupt("Where?"))

    builder = of(nothing)
    builder.add_conditional_edges("x", by_answer, ["x", "__end__"])
    return builder


@refused("node 'x' calls push_message: return the message")
def a_pushed_message() -> Any:
    def say(state: MessagesState) -> Any:
        push_message(("ai", "hi"))

    return of(say, MessagesState)


@refused("what was given is a Pregel, which has no nodes and edges to convert")
def an_entrypoint() -> Any:
    @entrypoint(checkpointer=InMemorySaver())
    def work(value: int) -> int:
        return value

    return work


@refused("field 'run' has the name of a parameter that nodes have: rename it")
def a_field_called_run() -> Any:
    return of(nothing, typed_dict("Named", {"run": str}))


@refused("field 'self' has the name of a parameter that nodes have: rename it")
def a_field_called_self() -> Any:
    return of(nothing, typed_dict("Named", {"self": str}))


@refused("field 'model_config' has the name of the configuration of pydantic models: rename it")
def a_field_called_model_config() -> Any:
    return of(nothing, typed_dict("Named", {"model_config": str}))


@refused("field '_x' begins with an underscore, as private attributes do: rename it")
def a_field_that_starts_with_an_underscore() -> Any:
    return of(nothing, typed_dict("Named", {"_x": str}))


@refused("field 'two words' is no identifier, as names of fields are: rename it")
def a_field_of_two_words() -> Any:
    return of(nothing, typed_dict("Named", {"two words": str}))


@refused("field 't' of 'x' is a Topic: ")
def a_channel_of_a_graph_inside() -> Any:
    inner = field_of(Annotated[str, Topic(str)])
    return of(inner.compile())


@refused("the graph does not compile in LangGraph: ")
def a_graph_without_an_entry() -> Any:
    return StateGraph(Log).add_node("x", nothing)


@refused(
    "node 'x' is a graph with an error_handler: handle the error in a node of that graph, or convert it without the "
    "handler and write graph.add_error_edge(...)"
)
def an_error_handler_of_a_graph() -> Any:
    return of(part(Seen()), error_handler=nothing)


classify = dspy.Predict("letter -> desk")


@refused("node 'x' calls the module 'classify': pass it as from_langgraph(nodes={'x': classify})")
def a_module_among_the_globals() -> Any:
    def ask(state: Log) -> Any:
        return {"word": classify(letter=state["word"]).desk}

    return of(ask)


@refused("node 'x' calls the module 'sort': pass it as from_langgraph(nodes={'x': sort})")
def a_module_in_a_closure() -> Any:
    sort = dspy.Predict("letter -> desk")

    def helper(text: str) -> str:
        return str(sort(letter=text).desk)

    return of(lambda state: {"word": helper(state["word"])})


@refused("the router 'by_hidden' of 'x' reads 'hidden': 'hidden' is no field; add it to the state")
def a_router_that_reads_what_is_no_field() -> Any:
    def write(state: Log) -> Any:
        return {"word": "w", "hidden": True}

    def by_hidden(state) -> str:  # type: ignore[no-untyped-def]  # a schema would hide the key from it
        return "y" if state["hidden"] else "__end__"

    builder = of(write)
    builder.add_node("y", nothing)
    builder.add_conditional_edges("x", by_hidden, ["y", "__end__"])
    return builder


def all_problems() -> Any:
    """A graph with three of them."""
    builder = an_async_router()
    builder.add_node("up", lambda state: Command(graph=Command.PARENT))
    builder.add_node("asks", lambda state: classify(letter=state["word"]))
    return edges(builder, "^ up", "^ asks")
