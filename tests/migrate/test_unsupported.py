"""What cannot be converted is refused with one sentence each, and all sentences at once."""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Annotated, Any

import dspy
import pytest
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import (
    DeltaChannel,
    LastValue,
    NamedBarrierValue,
    Topic,
)
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import push_message
from langgraph.graph.ui import push_ui_message
from langgraph.prebuilt import ToolNode
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from dspyer.errors import GraphError
from dspyer.migrate import explain_langgraph, from_langgraph
from tests.rows import each


class State(TypedDict, total=False):
    x: int


CLASSIFY = dspy.Predict("letter -> desk")
PARENT = Command.PARENT


class Desk:
    """An object with a node as method."""

    def __init__(self) -> None:
        self.classify = CLASSIFY
        self.other = dspy.Predict("a -> b")

    def node(self, state: State) -> State:
        return self._ask(state)

    def plain(self, state: State) -> State:
        return {}

    def _ask(self, state: State) -> State:
        self.classify(letter=str(state))
        return {}


DESK = Desk()


def plain(state: State) -> State:
    return {"x": 1}


async def aplain(state: State) -> State:
    return {"x": 1}


def to_parent(state: State) -> Any:
    return Command(graph=Command.PARENT, goto="b")


def to_parent_by_name(state: State) -> Any:
    return Command(graph="__parent__", goto="b")


def to_parent_by_global(state: State) -> Any:
    return Command(graph=PARENT, goto="b")


def to_parent_below(state: State) -> Any:
    return _one(state)


def _one(state: State) -> Any:
    return to_parent(state)


def pushes(state: State) -> State:
    push_message(("ai", "hi"))
    return {}


def dispatches(state: State) -> State:
    dispatch_custom_event("thought", {})
    return {}


def pushes_ui(state: State) -> State:
    push_ui_message("card", {})
    return {}


def uses_module(state: State) -> State:
    CLASSIFY(letter="x")
    return {}


def enclosing(p: Any) -> Callable[[State], Any]:
    return lambda state: {"x": p(letter="x")}


def uses_object(state: State) -> State:
    DESK.node(state)
    return {}


def hand_over() -> Any:
    """Hands over."""
    return Command(graph=Command.PARENT, goto="b")


def one_node(fn: Any, schema: Any = State, **kwargs: Any) -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(schema, **kwargs)
    builder.add_node("x", fn)
    builder.add_edge(START, "x")
    return builder


def one_field(channel: Any, name: str = "t") -> StateGraph[Any, Any, Any, Any]:
    return one_node(plain, TypedDict("Fields", {name: Annotated[list, channel]}))  # type: ignore[operator]


def one_router(route: Callable[..., Any], fn: Any = plain, source: str = "x") -> StateGraph[Any, Any, Any, Any]:
    builder = one_node(fn)
    builder.add_conditional_edges(source, route, {"x": "x", "end": END})
    return builder


REMEMBERS = one_node(plain).compile(checkpointer=True)
FORGETS = one_node(plain).compile()


def calls_graph(state: State) -> Any:
    return REMEMBERS.invoke(state)


async def aroute(state: State) -> str:
    await asyncio.sleep(0)
    return "x"


async def never_waits(state: State, config: RunnableConfig) -> str:
    return "end" if config["metadata"]["langgraph_node"] == "x" else "x"


async def defines_one_that_waits(state: State) -> str:
    async def unused() -> None:
        await asyncio.sleep(0)

    return "end"


async def iterates(state: State) -> str:
    async for name in one_name():
        return name
    return "end"


async def one_name() -> AsyncIterator[str]:
    yield "x"


class Always:
    """An object whose methods are async."""

    async def go(self, state: State) -> str:
        return "end"

    async def __call__(self, state: State) -> str:
        return "end"


def route_by_key(state: Any) -> Any:
    return state["route"]


def typed_by_key(state: State) -> Any:
    return state["route"]  # type: ignore[typeddict-item]  # LangGraph passes it no such key either


def writes_route(state: State) -> Any:
    found: dict[str, Any] = {"x": 1}
    found["route"] = "end"
    return found


def has_defaults(state: State, tone: str = "dry", p: dspy.Module = CLASSIFY) -> Any:
    return p(letter=tone)


def has_keyword_default(state: State, *, parts: Any = {"p": CLASSIFY}) -> Any:
    return parts["p"](letter="a")


def modules(name: str, argument: str = "") -> str:
    return f"node 'x' calls the module {name!r}: pass it as from_langgraph(nodes={{'x': {argument or name}}})"


PARENT_REFUSED = (
    "node 'x' returns Command(graph=Command.PARENT): return the value and route in the parent graph, or let a function "
    "that is the node call this graph"
)
CASES: dict[str, tuple[StateGraph[Any, Any, Any, Any], str]] = {
    "async router": (
        one_router(aroute),
        (
            "the router 'aroute' of 'x' is async: a router is a plain function; await in a node, and route by what it "
            "wrote"
        ),
    ),
    "parent": (one_node(to_parent), PARENT_REFUSED),
    "parent as text": (one_node(to_parent_by_name), PARENT_REFUSED),
    "parent in a global": (one_node(to_parent_by_global), PARENT_REFUSED),
    "parent two functions deep": (one_node(to_parent_below), PARENT_REFUSED),
    "parent of a lambda": (one_node(lambda state: Command(graph=Command.PARENT, goto="b")), PARENT_REFUSED),
    "parent in a tool": (one_node(ToolNode([hand_over]), MessagesState), PARENT_REFUSED),
    "push_message": (one_node(pushes), "node 'x' calls push_message: return the message"),
    "push_ui_message": (one_node(pushes_ui), "node 'x' calls push_ui_message: return the message"),
    "dispatch_custom_event": (
        one_node(dispatches),
        "node 'x' calls dispatch_custom_event, which needs a run of LangChain: call get_stream_writer()(value)",
    ),
    "Topic": (
        one_field(Topic(int)),
        "field 't' is a Topic: a list emptied after each step; use reducers.extend, and DELETE to empty it",
    ),
    "barrier": (
        one_field(NamedBarrierValue(list, {"a"})),
        (
            "field 't' is a NamedBarrierValue: a barrier; leave it out: a node waits for all branches that can still "
            "reach it"
        ),
    ),
    "field run": (
        one_field(LastValue(list), "run"),
        "field 'run' has the name of a parameter that nodes have: rename it",
    ),
    "field _x": (
        one_field(operator.add, "_x"),
        "field '_x' begins with an underscore, as private attributes do: rename it",
    ),
    "field no-name": (
        one_field(operator.add, "no-name"),
        "field 'no-name' is no identifier, as names of fields are: rename it",
    ),
    "module": (one_node(uses_module), modules("CLASSIFY")),
    "module in a closure": (one_node(enclosing(CLASSIFY)), modules("p")),
    "module of an object": (one_node(Desk().node), modules("self.classify")),
    "module as a default": (one_node(has_defaults), modules("p")),
    "module as a keyword's default in a dict": (one_node(has_keyword_default), modules("parts['p']")),
    "module of an object that is called": (one_node(uses_object), modules("self.classify")),
    "module in a partial": (one_node(functools.partial(lambda p, state: {}, CLASSIFY)), modules("Predict", "...")),
    "router that reads what is no field": (
        one_router(route_by_key, writes_route),
        "the router 'route_by_key' of 'x' reads 'route': 'route' is no field; add it to the state",
    ),
    "router of START that reads what is no field": (
        one_router(route_by_key, source=START),
        "the router 'route_by_key' of '__start__' reads 'route': 'route' is no field; add it to the state",
    ),
}


def problems(builder: StateGraph[Any, Any, Any, Any], *replaced: str) -> list[str]:
    """Why a graph is not converted; the replaced nodes get functions of dspyer."""
    try:
        from_langgraph(builder, nodes=dict.fromkeys(replaced, plain)).compile()
    except GraphError as error:
        return list(error.problems)
    return []


@each("case", CASES)
def test_each_row_is_refused_with_its_sentence(case: str) -> None:
    builder, sentence = CASES[case]
    assert problems(builder) == [sentence]


# --- what runs is not refused


def names_parent_in_words(state: State) -> State:
    return {"x": len("to the parent")}


def keeps_a_command(state: State) -> Any:
    return Command(update={"x": 1}, goto=END)


def reads_unknown_key(state: State) -> str:
    return "x" if state.get("route") else "end"


def typed_route(state: State) -> str:
    return "end"


def reads_own_dict(state: State) -> str:
    table = {"route": "end"}
    return table["route"]


def calls_a_graph(state: State) -> Any:
    return FORGETS.invoke(state)


SIMPLE = SimpleNamespace(limit=3)

CONVERTED = {
    "plain": one_node(plain),
    "async": one_node(aplain),
    "lambda": one_node(lambda state: {"x": SIMPLE.limit}),
    "word parent": one_node(names_parent_in_words),
    "Command": one_node(keeps_a_command),
    "graph": one_node(FORGETS),
    "called graph": one_node(calls_a_graph),
    "graph with a checkpointer": one_node(REMEMBERS),
    "graph with a checkpointer, called": one_node(calls_graph),
    "ToolNode": one_node(ToolNode([len]), MessagesState),
    "reducer": one_field(operator.add),
    "delta": one_field(DeltaChannel(lambda old, writes: old)),
    "root": one_node(lambda state: state, Annotated[list, operator.add]),
    "router that may read what is no field": one_router(reads_unknown_key, writes_route),
    "router that reads another dict": one_router(reads_own_dict, writes_route),
    "router with a schema": one_router(typed_by_key, writes_route),
    "router of a node that writes fields": one_router(route_by_key, plain),
    "router": one_router(typed_route),
    "async router that never waits": one_router(never_waits),
    "method": one_node(Desk().plain),
}


@each("case", CONVERTED)
def test_what_can_run_is_not_refused(case: str) -> None:
    assert problems(CONVERTED[case]) == []


def test_all_problems_are_found_at_once_and_each_once() -> None:
    builder = StateGraph(TypedDict("Fields", {"run": int, "t": Annotated[list, Topic(int)]}))  # type: ignore[operator]
    builder.add_node("a", to_parent).add_edge(START, "a")
    builder.add_node("b", uses_module).add_edge(START, "b")
    builder.add_conditional_edges("a", aroute)
    assert [text.split(":")[0] for text in problems(builder)] == [
        "field 'run' has the name of a parameter that nodes have",
        "field 't' is a Topic",
        "node 'a' returns Command(graph=Command.PARENT)",
        "node 'b' calls the module 'CLASSIFY'",
        "the router 'aroute' of 'a' is async",
    ]


def test_the_function_of_a_replaced_node_is_not_checked() -> None:
    assert problems(one_node(uses_module), "x") == []
    assert problems(one_router(route_by_key, writes_route), "x") == []
    assert len(problems(one_router(aroute), "x")) == 1
    assert len(problems(one_router(iterates), "x")) == 1


def test_names_of_graphs_inside_begin_with_that_of_their_node() -> None:
    inner = one_node(uses_module)
    inner.add_conditional_edges("x", aroute)
    builder = one_node(inner.compile())
    builder.add_node("far", to_parent)  # no edge leads there, so it is left out
    with pytest.raises(GraphError) as caught:
        from_langgraph(builder)
    assert list(caught.value.problems) == [
        "node 'x.x' calls the module 'CLASSIFY': pass it as from_langgraph(nodes={'x.x': CLASSIFY})",
        (
            "the router 'aroute' of 'x.x' is async: a router is a plain function; await in a node, and route by what "
            "it wrote"
        ),
    ]


@pytest.mark.parametrize("route", [never_waits, defines_one_that_waits, Always().go, Always()])
def test_an_async_router_that_never_waits_is_called(route: Any) -> None:
    program = from_langgraph(one_router(route)).compile(max_steps=5)
    assert program.run({"x": 0}).state["x"] == 1


def test_options_that_name_no_node_are_refused() -> None:
    with pytest.raises(GraphError) as caught:
        from_langgraph(one_node(FORGETS), nodes={"x.x": plain, "y": plain}, routes={"z": ["x"]}, goto={"x.q": ["x"]})
    assert list(caught.value.problems) == [
        "nodes= names 'y': the graph has no such node ('x').",
        "routes= names 'z': the graph has no such node ('x').",
        "goto= names 'x.q': the graph has no such node ('x').",
    ]


def answers(state: State) -> Any:
    return {"x": 1, "junk": 2} if state else AIMessage(content="no dict")


def test_keys_that_are_no_fields_are_a_note() -> None:
    report = explain_langgraph(one_node(answers))
    assert report.problems == ()
    (note,) = report.notes
    assert note == (
        "node 'x' may return 'junk', which is no field: LangGraph drops it, and a run here fails; add it to the "
        "state, or write from_langgraph(extra='drop')"
    )


def test_a_state_that_is_one_value_has_no_keys() -> None:
    assert explain_langgraph(one_node(answers, Annotated[dict, operator.or_])).notes == ()


def test_an_error_handler_is_checked() -> None:
    builder = StateGraph(State)
    builder.add_node("x", aplain, error_handler=uses_module).add_edge(START, "x")
    assert problems(builder) == [modules("CLASSIFY")]


def test_what_is_wrong_with_an_error_handler_is_said_once_with_the_name_of_its_node() -> None:
    def handle(state: Any) -> Any:
        push_message(("ai", "failed"))
        return {"other": 1}

    builder = StateGraph(State).add_node("x", plain, error_handler=handle).add_edge(START, "x")
    report = explain_langgraph(builder)
    assert report.problems == ("node 'x' calls push_message: return the message",)
    (note,) = report.notes
    assert note.startswith("node 'x' may return 'other', which is no field")
    from_langgraph(builder, nodes={"x": plain})  # whose error handler is left out, too


# --- what is no graph


@entrypoint()
def workflow(value: int) -> int:
    return value


REMOTE = RemoteGraph("agent", url="http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (
            workflow,
            (
                "what was given is a Pregel, which has no nodes and edges to convert: write its steps as nodes of a "
                "StateGraph or of a dspyer.Graph, or call it in the function of a node"
            ),
        ),
        (
            REMOTE,
            (
                "'agent' is a RemoteGraph, which has no nodes and edges to convert: write its steps as nodes of a "
                "StateGraph or of a dspyer.Graph, or call it in the function of a node"
            ),
        ),
        (
            42,
            (
                "what was given is an int, which has no nodes and edges to convert: pass a StateGraph, or what its "
                "compile() returns"
            ),
        ),
        (one_node(plain), ""),
        (FORGETS, ""),
    ],
)
def test_what_is_no_graph_is_refused(graph: Any, sentence: str) -> None:
    assert explain_langgraph(graph).problems == ((sentence,) if sentence else ())


def test_a_remote_graph_as_a_node_is_a_note() -> None:
    report = explain_langgraph(one_node(REMOTE))
    assert report.problems == ()
    assert report.notes == (
        "node 'x' is a RemoteGraph, which has no nodes and edges to convert: it is called as a function",
    )
