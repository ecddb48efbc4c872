"""Graphs about the flow: edges, routers, `Send`, `Command`, loops and subgraphs."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from tests.migrate.cases import Case, Seen, case

CASES: list[Case] = []


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    word: str
    count: int


def logs(seen: Seen, *names: str) -> StateGraph:
    """A builder with nodes that log their names."""
    builder = StateGraph(Log)
    for name in names:
        builder.add_node(name, seen.node(name, {"log": [name]}))
    return builder


def edges(builder: StateGraph, *pairs: str) -> StateGraph:
    """Adds edges, written as "a b"; "a+b c" is one that waits for both."""
    for pair in pairs:
        before, after = (START if end == "^" else END if end == "$" else end for end in pair.split())
        builder.add_edge(before.split("+") if "+" in before else before, after)
    return builder


@case(CASES, {"log": []}, {"log": ["a", "m", "z", "end"]}, "a m z end")
def names_are_sorted(seen: Seen) -> Any:
    return edges(logs(seen, "z", "a", "m", "end"), "^ z", "^ m", "^ a", "m end", "z end", "a end", "end $")


@case(CASES, {"log": []}, {"log": ["n1", "n10", "n2"]}, "n1 n2 n10")
def n10_comes_before_n2(seen: Seen) -> Any:
    return edges(logs(seen, "n1", "n2", "n10"), "^ n1", "^ n2", "^ n10")


@case(CASES, {"log": []}, {"log": ["a", "b", "b2", "join"]}, "a b b2 join")
def a_barrier(seen: Seen) -> Any:
    return edges(logs(seen, "a", "b", "b2", "join"), "^ a", "^ b", "b b2", "a+b2 join", "join $")


@case(
    CASES,
    {"log": []},
    {"log": ["a", "b", "a2", "join"]},
    "a b a2 join",
    dspyer={"log": ["a", "a2", "b", "join"]},
    why="rule 14: updates fold by branch, not by super-step",
)
def branches_of_unequal_length_behind_a_barrier(seen: Seen) -> Any:
    return edges(logs(seen, "a", "a2", "b", "join"), "^ a", "^ b", "a a2", "a2+b join")


@case(
    CASES,
    {"log": []},
    {"log": ["a", "b", "b2", "join", "after", "join", "after"]},
    "a b b2 join join after after",
    dspyer={"log": ["a", "b", "b2", "join", "after"]},
    dspyer_calls="a b b2 join after",
    why="LangGraph runs a node without a barrier once for each arrival",
)
def branches_of_unequal_length_without_a_barrier(seen: Seen) -> Any:
    names = ("a", "b", "b2", "join", "after")
    return edges(logs(seen, *names), "^ a", "^ b", "b b2", "a join", "b2 join", "join after")


@case(
    CASES,
    {"log": []},
    {"log": ["src", "a"]},
    "src a",
    dspyer={"log": ["src", "a", "join"]},
    dspyer_calls="src a join",
    why="in LangGraph, a barrier waits for a node that was never routed to, and the run ends without a word",
)
def a_barrier_whose_source_is_not_routed_to(seen: Seen) -> Any:
    builder = logs(seen, "src", "a", "b", "join")
    builder.add_conditional_edges("src", lambda state: ["a"], ["a", "b"])
    return edges(builder, "^ src", "a+b join")


@case(CASES, {"log": []}, {"log": ["a", "b", "late"]}, "a b late")
def a_deferred_node(seen: Seen) -> Any:
    builder = logs(seen, "a", "b")
    builder.add_node("late", seen.node("late", {"log": ["late"]}), defer=True)
    return edges(builder, "^ a", "a b", "a late", "b late")


@case(
    CASES,
    {"word": "x"},
    None,
    "a b",
    error="InvalidUpdateError",
    dspyer={"word": "y", "log": []},
    why="rule 14: equal writes are no conflict",
)
def equal_writes_in_parallel(seen: Seen) -> Any:
    builder = StateGraph(Log)
    builder.add_node("a", seen.node("a", {"word": "y"}))
    builder.add_node("b", seen.node("b", {"word": "y"}))
    return edges(builder, "^ a", "^ b")


@case(
    CASES, {}, None, "a b", error="InvalidUpdateError", dspyer_error="MergeConflictError", why="the class of the error"
)
def different_writes_in_parallel(seen: Seen) -> Any:
    builder = StateGraph(Log)
    builder.add_node("a", seen.node("a", {"word": "y"}))
    builder.add_node("b", seen.node("b", {"word": "z"}))
    return edges(builder, "^ a", "^ b")


@case(CASES, {"word": "no"}, {"word": "no", "log": ["b", "c"]}, "b c")
def a_router_with_a_path_map(seen: Seen) -> Any:
    builder = logs(seen, "a", "b", "c")
    builder.add_conditional_edges(START, lambda state: state["word"] == "yes", {True: "a", False: "b"})
    builder.add_conditional_edges("b", lambda state: ["x", "end"], {"x": "c", "end": END})
    return builder


def by_word(state: Log) -> Literal["left", "right"]:
    return "right" if state["word"] == "r" else "left"


@case(CASES, {"word": "r"}, {"word": "r", "log": ["right"]}, "right")
def a_router_with_literals(seen: Seen) -> Any:
    builder = logs(seen, "left", "right")
    builder.set_conditional_entry_point(by_word)
    builder.set_finish_point("right")
    return builder


@case(CASES, {"word": "r"}, {"word": "r", "log": ["first", "left", "right"]}, "first left right")
def a_router_whose_targets_are_in_its_code(seen: Seen) -> Any:
    builder = logs(seen, "first", "left", "right", "never")
    builder.add_conditional_edges("first", lambda state: ["right", "left"] if state["word"] == "r" else END)
    return edges(builder, "^ first")


def anywhere(state: Log) -> str:
    return state["word"]


@case(CASES, {"word": "b"}, {"word": "b", "log": ["a", "b"]}, "a b")
def a_router_that_computes_its_target(seen: Seen) -> Any:
    builder = logs(seen, "a", "b", "c")
    builder.add_conditional_edges("a", anywhere)
    return edges(builder, "^ a")


@case(CASES, {"word": "b"}, {"word": "b", "log": ["a", "b"]}, "a b", options={"routes": {"a": ["b", "c"]}})
def a_router_whose_targets_are_given(seen: Seen) -> Any:
    builder = logs(seen, "a", "b", "c")
    builder.add_conditional_edges("a", anywhere)
    return edges(builder, "^ a")


@case(
    CASES,
    {"word": "zz"},
    {"word": "zz", "log": ["a"]},
    "a",
    dspyer_error="RouteError",
    why="LangGraph ends the run with a line in the log",
)
def a_router_that_names_no_node(seen: Seen) -> Any:
    builder = logs(seen, "a", "b", "c")
    builder.add_conditional_edges("a", anywhere)
    return edges(builder, "^ a")


@case(CASES, {}, {"log": ["a"]}, "a")
def a_router_that_returns_no_target(seen: Seen) -> Any:
    builder = logs(seen, "a", "b")
    builder.add_conditional_edges("a", lambda state: [], ["b", END])
    return edges(builder, "^ a")


def to_b(state: Log) -> str:
    return "b"


def to_d(state: Log) -> str:
    return "to d"


@case(CASES, {}, {"log": ["a", "b", "c", "d"]}, "a b c d")
def two_routers_and_an_edge(seen: Seen) -> Any:
    builder = logs(seen, "a", "b", "c", "d")
    builder.add_conditional_edges("a", to_b, ["b", END])
    builder.add_conditional_edges("a", to_d, {"to d": "d"})
    return edges(builder, "^ a", "a c")


@case(CASES, {"word": "x"}, {"word": "y", "count": 1, "log": ["yes"]}, "a yes")
def a_router_sees_what_its_node_wrote(seen: Seen) -> Any:
    builder = logs(seen, "yes", "no")
    builder.add_node("a", seen.node("a", {"word": "y", "count": 1}))
    builder.add_conditional_edges("a", lambda s: "yes" if (s["word"], s["count"]) == ("y", 1) else "no", ["yes", "no"])
    return edges(builder, "^ a")


class Jokes(TypedDict):
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]
    best: str


@case(
    CASES,
    {"subjects": ["cat", "ant", "cow"]},
    {"subjects": ["cat", "ant", "cow"], "jokes": ["joke of cat", "joke of ant", "joke of cow"], "best": "joke of ant"},
    "joke joke joke pick",
)
def map_and_reduce(seen: Seen) -> Any:
    builder = StateGraph(Jokes)
    builder.add_node("joke", seen.node("joke", lambda state: {"jokes": [f"joke of {state['subject']}"]}))
    builder.add_node("pick", seen.node("pick", lambda state: {"best": min(state["jokes"])}))
    builder.add_conditional_edges(
        START, lambda state: [Send("joke", {"subject": subject}) for subject in state["subjects"]], ["joke"]
    )
    builder.add_edge("joke", "pick")
    return builder


@case(CASES, {}, {"log": ["src", "plain", "3 ['word']", "1 ['word']"]}, "src plain each each")
def sends_next_to_a_name(seen: Seen) -> Any:
    builder = logs(seen, "src", "plain")
    builder.add_node("each", seen.node("each", lambda state: {"log": [f"{state['word']} {sorted(state)}"]}))
    sends = [Send("each", {"word": "3"}), Send("each", {"word": "1"}), "plain"]
    builder.add_conditional_edges("src", lambda state: sends, ["each", "plain"])
    return edges(builder, "^ src")


@case(
    CASES,
    {},
    {"log": ["1", "2", "10", "20", "end"]},
    "one one two two end",
    dspyer={"log": ["1", "10", "2", "20", "end"]},
    why="updates fold by branch: each `Send` is a branch, here of two nodes",
)
def sends_that_send(seen: Seen) -> Any:
    def one(state: Any) -> Any:
        seen.append("one")
        return Command(update={"log": [state["word"]]}, goto=Send("two", {"word": state["word"] + "0"}))

    builder = logs(seen, "end")
    builder.add_node("one", one, destinations=("two",))
    builder.add_node("two", seen.node("two", lambda state: {"log": [state["word"]]}))
    builder.add_conditional_edges(START, lambda s: [Send("one", {"word": "1"}), Send("one", {"word": "2"})], ["one"])
    return edges(builder, "two end")


@case(CASES, {"word": "x"}, {"word": "x", "log": ["text", "number"]}, "each each")
def sends_of_values_that_are_no_dicts(seen: Seen) -> Any:
    builder = StateGraph(Log)
    builder.add_node("each", seen.node("each", lambda value: {"log": ["text" if value == "t" else "number"]}))
    builder.add_conditional_edges(START, lambda state: [Send("each", "t"), Send("each", 3)], ["each"])
    return builder


def go(target: Any, **update: Any) -> Any:
    return Command(goto=target, update=update)


@case(CASES, {}, {"log": ["a", "c"], "word": "w"}, "a c")
def a_command(seen: Seen) -> Any:
    def a(state: Log) -> Command[Literal["b", "c"]]:
        seen.append("a")
        return Command(goto="c", update={"log": ["a"], "word": "w"})

    builder = logs(seen, "b", "c")
    builder.add_node("a", a)
    return edges(builder, "^ a")


@case(CASES, {}, {"log": ["a", "b", "c"]}, "a b c")
def a_command_and_a_static_edge(seen: Seen) -> Any:
    builder = logs(seen, "b", "c")
    builder.add_node("a", seen.node("a", go("c", log=["a"])), destinations=("c",))
    return edges(builder, "^ a", "a b")


@case(CASES, {}, {"log": ["a", "a2", "b", "x", "y"]}, "a b each each")
def a_list_of_commands_with_sends(seen: Seen) -> Any:
    builder = logs(seen, "b")
    builder.add_node("each", seen.node("each", lambda state: {"log": [state["word"]]}))
    commands = [go([Send("each", {"word": "x"}), "b"], log=["a"]), go(Send("each", {"word": "y"}), log=["a2"])]
    builder.add_node("a", seen.node("a", lambda state: commands), destinations=("b", "each"))
    return edges(builder, "^ a")


@case(CASES, {}, {"log": ["a"]}, "a")
def a_command_to_the_end(seen: Seen) -> Any:
    builder = logs(seen, "b")
    builder.add_node("a", seen.node("a", go(END, log=["a"])), destinations=("b", END))
    return edges(builder, "^ a", "b $")


@case(CASES, {}, {"log": ["b"]}, "a b", options={"goto": {"a": ["b"]}})
def a_command_whose_targets_are_given(seen: Seen) -> Any:
    builder = logs(seen, "b")
    builder.add_node("a", seen.node("a", lambda state: go("".join("b"))))
    return edges(builder, "^ a")


@case(CASES, {}, {"log": ["made", "b"]}, "b")
def a_command_that_was_made_before(seen: Seen) -> Any:
    command = Command(goto="b", update={"log": ["made"]})
    builder = logs(seen, "b")
    builder.add_node("a", lambda state: command)
    return edges(builder, "^ a")


@case(CASES, {"count": 0}, {"count": 5, "log": ["again"] * 4}, "add add add add add again again again again")
def a_loop(seen: Seen) -> Any:
    builder = logs(seen, "again")
    builder.add_node("add", seen.node("add", lambda state: {"count": state["count"] + 1}))
    builder.add_conditional_edges("add", lambda state: "again" if state["count"] < 5 else END, ["again", END])
    return edges(builder, "^ add", "again add")


@case(CASES, {"count": 0}, {"count": 3, "log": []}, "add add add")
def a_node_that_loops_to_itself(seen: Seen) -> Any:
    builder = StateGraph(Log)
    builder.add_node("add", seen.node("add", lambda state: {"count": state["count"] + 1}))
    builder.add_conditional_edges("add", lambda state: "add" if state["count"] < 3 else END)
    return edges(builder, "^ add")


@case(CASES, {"count": 0}, {"count": 2, "log": ["a", "b", "join", "a", "b", "join"]}, "a b join a b join")
def a_fork_in_a_loop(seen: Seen) -> Any:
    builder = logs(seen, "a", "b")
    builder.add_node("join", seen.node("join", lambda state: {"count": state["count"] + 1, "log": ["join"]}))
    builder.add_conditional_edges("join", lambda state: ["a", "b"] if state["count"] < 2 else END, ["a", "b", END])
    return edges(builder, "^ a", "^ b", "a join", "b join")


@case(
    CASES,
    {"count": 0},
    None,
    "add " * 6,
    error="GraphRecursionError",
    dspyer_error="StepLimitError",
    why="the class of the error",
    invoke={"config": {"recursion_limit": 6}},
    limits={"max_steps": 6},
)
def a_loop_without_end(seen: Seen) -> Any:
    builder = StateGraph(Log)
    builder.add_node("add", seen.node("add", lambda state: {"count": state["count"] + 1}))
    builder.add_conditional_edges("add", lambda state: "add" if state["count"] >= 0 else END)
    return edges(builder, "^ add")


class Managed(TypedDict):
    log: Annotated[list[str], operator.add]
    left: RemainingSteps
    last: IsLastStep


@case(
    CASES,
    {},
    {"log": ["3 False", "2 False", "1 True"]},
    "a b c",
    invoke={"config": {"recursion_limit": 4}},
    limits={"max_steps": 4},
)
def managed_values(seen: Seen) -> Any:
    builder = StateGraph(Managed)
    for name in "abc":
        builder.add_node(name, seen.node(name, lambda state: {"log": [f"{state['left']} {state['last']}"]}))
    return edges(builder, "^ a", "a b", "b c")


class Part(TypedDict, total=False):
    word: str
    inner: str


def part(seen: Seen, **compile_options: Any) -> Any:
    """A subgraph that shares a field and has one of its own."""
    builder = StateGraph(Part)
    builder.add_node("one", seen.node("one", lambda state: {"inner": state["word"] + "1"}))
    builder.add_node("two", seen.node("two", lambda state: {"word": state["inner"] + "2"}))
    return edges(builder, "^ one", "one two").compile(**compile_options)


@case(CASES, {"word": "w"}, {"word": "w12", "log": ["after"]}, "one two after")
def a_subgraph(seen: Seen) -> Any:
    builder = logs(seen, "after")
    builder.add_node("part", part(seen))
    return edges(builder, "^ part", "part after")


@case(
    CASES,
    {"log": ["in"]},
    {"log": ["in", "in", "a", "b"]},
    "a b",
    dspyer={"log": ["in", "a", "b"]},
    why="rule 14: LangGraph adds the whole list of the subgraph to that of the graph",
)
def a_subgraph_with_a_reducer_of_both(seen: Seen) -> Any:
    builder = logs(seen, "b")
    builder.add_node("part", edges(logs(seen, "a"), "^ a").compile())
    return edges(builder, "^ part", "part b")


@case(
    CASES,
    {"messages": [HumanMessage("secret", id="1")]},
    {"messages": [("human", "secret", "1"), ("ai", "hi", "2")]},
    "forget",
    dspyer={"messages": [("ai", "hi", "2")]},
    why="LangGraph passes on what the subgraph has left, and merges it with what the graph still has",
)
def a_subgraph_that_removes_a_message(seen: Seen) -> Any:
    inner = StateGraph(MessagesState)
    inner.add_node("forget", seen.node("forget", {"messages": [RemoveMessage("1"), AIMessage("hi", id="2")]}))
    builder = StateGraph(MessagesState)
    builder.add_node("part", edges(inner, "^ forget").compile())
    return edges(builder, "^ part")


@case(
    CASES,
    {"messages": []},
    {"messages": []},
    "a b",
    dspyer_error="ValueError",
    why="a branch does not see what a branch next to it writes: add_messages of LangGraph refuses the unknown id",
)
def a_branch_that_removes_a_message_of_another_branch(seen: Seen) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("a", seen.node("a", {"messages": [AIMessage("hi", id="1")]}))
    builder.add_node("b", seen.node("b", {"messages": [RemoveMessage("1")]}))
    return edges(builder, "^ a", "^ b")


@case(CASES, {"word": "w"}, {"word": "w12!", "log": ["w12"]}, "call one two")
def a_graph_called_in_a_function(seen: Seen) -> Any:
    return calling(seen, part(seen))


@case(CASES, {"word": "w"}, {"word": "w12!", "log": ["w12"]}, "call one two")
def a_graph_without_checkpoints_called_in_a_function(seen: Seen) -> Any:
    return calling(seen, part(seen, checkpointer=False))


def calling(seen: Seen, inner: Any) -> Any:
    def call(state: Log) -> Any:
        seen.append("call")
        found = inner.invoke({"word": state["word"]})  # with `inner`, which is no field here
        return {**found, "word": found["word"] + "!", "log": [found["word"]]}

    builder = StateGraph(Log)
    builder.add_node("call", call)
    return edges(builder, "^ call")


@case(CASES, {"word": "w"}, {"word": "w", "log": ["x", "y"]}, "keep keep")
def sends_to_a_subgraph(seen: Seen) -> Any:
    class Inner(TypedDict):
        item: str
        log: Annotated[list[str], operator.add]

    inner = StateGraph(Inner)
    inner.add_node("keep", seen.node("keep", lambda state: {"log": [state["item"]]}))
    builder = StateGraph(Log)
    builder.add_node("part", edges(inner, "^ keep").compile())
    builder.add_conditional_edges(START, lambda s: [Send("part", {"item": "x"}), Send("part", {"item": "y"})], ["part"])
    return builder


@case(CASES, {"word": "w"}, {"word": "w1212", "log": []}, "one two one two")
def subgraphs_in_a_subgraph(seen: Seen) -> Any:
    middle = StateGraph(Log)
    middle.add_node("first", part(seen))
    middle.add_node("second", part(seen))
    builder = StateGraph(Log)
    builder.add_node("middle", edges(middle, "^ first", "first second").compile())
    return edges(builder, "^ middle")


@case(CASES, {}, {"log": ["a", "b"]}, "a b")
def an_unreachable_node(seen: Seen) -> Any:
    builder = logs(seen, "a", "b", "never", "ever")
    return edges(builder, "^ a", "a b", "never ever")


@case(CASES, {}, {"log": ["1", "2", "3"]}, "1 2 3")
def a_sequence(seen: Seen) -> Any:
    builder = StateGraph(Log)
    builder.add_sequence([(name, seen.node(name, {"log": [name]})) for name in "123"])
    builder.set_entry_point("1")
    builder.set_finish_point("3")
    return builder
