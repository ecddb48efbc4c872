"""The workloads of `bench.overhead` in LangGraph: typed states, nodes that do almost nothing, its own savers."""

# mypy: disable-error-code="import-not-found,misc,no-any-return,untyped-decorator,operator"
# (langgraph is not checked: it would double the time of a check)

from __future__ import annotations

import asyncio
import operator
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.peers.measure import Round, Watch, allocated, expect, timed


class Count(TypedDict):
    """A counter, and where it ends."""

    goal: int
    turn: int


class Agent(Count):
    """The state of a small program."""

    note: str
    score: float


def looping(watch: Watch, fields: int, mode: str) -> Any:
    """A loop as programs have it: a node that reads and writes one field or three, a router."""

    def one(state: Count) -> dict[str, Any]:
        turn = state["turn"]
        if not turn:
            watch.start()
        return {"turn": turn + 1}

    def three(state: Agent) -> dict[str, Any]:
        turn, note = state["turn"], state["note"]
        if not turn:
            watch.start()
        return {"turn": turn + 1, "note": f"turn {turn}", "score": state["score"] + len(note)}

    async def aone(state: Count) -> dict[str, Any]:
        return one(state)

    async def athree(state: Agent) -> dict[str, Any]:
        return three(state)

    node: Callable[..., Any] = ((aone, athree) if mode == "async" else (one, three))[fields > 1]
    graph = StateGraph(Agent if fields > 1 else Count)
    graph.add_node("work", node)
    graph.add_edge(START, "work")
    graph.add_conditional_edges(
        "work", lambda state: "on" if state["turn"] < state["goal"] else "off", {"on": "work", "off": END}
    )
    return graph


def loop(turns: int, fields: int, mode: str = "sync") -> Round:
    """A step of a loop. `mixed`: sync nodes in an async run."""
    watch = Watch()
    program = looping(watch, fields, mode).compile()
    inputs = {"goal": turns, "turn": 0, **({"note": "", "score": 0.0} if fields > 1 else {})}
    config = {"recursion_limit": turns + 10}

    def measure() -> float:
        result = program.invoke(inputs, config) if mode == "sync" else asyncio.run(program.ainvoke(inputs, config))
        value = watch.per(turns)
        expect(result["turn"], turns)
        return value

    return measure


class Number(TypedDict):
    """One field."""

    n: int


def call(calls: int) -> Round:
    """A whole call of one trivial node."""
    graph = StateGraph(Number)
    graph.add_node("step", lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "step")
    graph.add_edge("step", END)
    program = graph.compile()

    def work() -> Any:
        for _ in range(calls):
            result = program.invoke({"n": 0})
        return result

    return lambda: timed(work, calls, lambda result: expect(result["n"], 1))


def branch(i: int, name: str, mode: str) -> Callable[..., Any]:
    """A node that writes a field of its own."""

    def node(state: dict[str, int]) -> dict[str, int]:
        return {name: state["n"] + i}

    async def anode(state: dict[str, int]) -> dict[str, int]:
        return {name: state["n"] + i}

    return anode if mode == "async" else node


def fork(branches: int, mode: str, calls: int) -> Callable[[], Any]:
    """Calls of a program that is one fork and its join."""
    names = [f"b{i}" for i in range(branches)]
    graph = StateGraph(TypedDict("Forked", dict.fromkeys(["n", *names], int)))
    for i, name in enumerate(names):
        graph.add_node(name, branch(i, name, mode))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    program = graph.compile()

    def work() -> None:
        for _ in range(calls):
            expect(program.invoke({"n": 1})[names[-1]], branches)

    async def awork() -> None:
        for _ in range(calls):
            expect((await program.ainvoke({"n": 1}))[names[-1]], branches)

    return work if mode == "sync" else lambda: asyncio.run(awork())


class Talk(TypedDict):
    """A conversation."""

    question: str
    said: Annotated[list[str], operator.add]


def turning(stack: ExitStack, store: str) -> Callable[[str, int], None]:
    """Makes a turn of the named thread, in a new store."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    if store == ":memory:":
        saver: Any = InMemorySaver()
    else:
        saver = stack.enter_context(SqliteSaver.from_conn_string(str(folder / store)))
    graph = StateGraph(Talk)
    graph.add_node("ask", lambda state: {"said": [state["question"]]})
    graph.add_node("answer", lambda state: {"said": [f"that is {len(state['said'])}"]})
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "answer")
    graph.add_edge("answer", END)
    program = graph.compile(checkpointer=saver)

    def turn(thread: str, number: int) -> None:
        config = {"configurable": {"thread_id": thread}}
        result = program.invoke({"question": str(number)}, config, durability="sync")
        expect(result["said"][-2], str(number))

    return turn


def kept(steps: int) -> Round:
    """What the saver in memory keeps, for each step."""
    graph = looping(Watch(), 1, "sync")

    def work() -> Any:
        program = graph.compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "t"}, "recursion_limit": steps + 10}
        expect(program.invoke({"goal": steps, "turn": 0}, config)["turn"], steps)
        return program

    return lambda: allocated(work) / steps
