"""LangGraph's workloads: a field of the state is a channel; a fan-out is `Send` with an `operator.add` reducer."""

# mypy: disable-error-code="import-not-found,misc,no-any-return,untyped-decorator,operator"
# (langgraph is installed in an environment of its own, where mypy does not run)

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from bench.peers.measure import Round, Watch, Work, allocated, at_once, expect, filler, message, timed

PACKAGES = ["langgraph", "langgraph-checkpoint"]


def compiled(graph: Any, history: bool = False) -> Any:
    """The program, with a saver where the history is kept."""
    return graph.compile(checkpointer=InMemorySaver()) if history else graph.compile()


def config(steps: int, history: bool = False) -> dict[str, Any]:
    """A fresh thread and enough steps."""
    thread = {"configurable": {"thread_id": "bench"}} if history else {}
    return {"recursion_limit": steps + 10, **thread}


def loop(keys: int, steps: int, history: bool = False, one_field: bool = False) -> Round:
    """One node in a loop. `one_field`: the keys that nothing touches are one dict in one channel."""
    watch = Watch()
    rest = filler(keys)
    inputs: dict[str, Any] = {"rest": rest, "n": 0} if one_field else {**rest, "n": 0}

    def step(state: dict[str, Any]) -> dict[str, int]:
        if state["n"] == 0:
            watch.start()
        return {"n": state["n"] + 1}

    def route(state: dict[str, Any]) -> str:
        return "again" if state["n"] < steps else "done"

    graph = StateGraph(TypedDict("Loop", dict.fromkeys(inputs, Any)))
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", route, {"again": "step", "done": END})

    def measure() -> float:
        program = compiled(graph, history)
        result = program.invoke(inputs, config(steps, history), output_keys="n")
        value = watch.per(steps)
        expect(result if isinstance(result, int) else result["n"], steps)
        return value

    return measure


def call(keys: int) -> Round:
    """One call of a graph of one node."""

    def step(state: dict[str, Any]) -> dict[str, int]:
        return {"n": state["n"] + 1}

    inputs = {**filler(keys), "n": 0}
    graph = StateGraph(TypedDict("One", dict.fromkeys(inputs, Any)))
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_edge("step", END)
    program = graph.compile()
    calls = max(1, 100 // keys)

    def work() -> Any:
        for _ in range(calls):
            result = program.invoke(inputs)
        return result

    return lambda: timed(work, calls, lambda result: expect(result["n"], 1))


def crowd(runs: int, mode: str = "sync") -> Round:
    """Runs of one program at once: threads, or tasks of one event loop. Each goes through a router."""

    def plan(state: dict[str, int]) -> dict[str, int]:
        return {"half": state["n"] // 2}

    async def aplan(state: dict[str, int]) -> dict[str, int]:
        return plan(state)

    graph = StateGraph(TypedDict("Crowd", {"n": int, "half": int, "found": int}))
    graph.add_node("plan", plan if mode == "sync" else aplan)
    graph.add_node("even", lambda state: {"found": 2 * state["half"]})
    graph.add_node("odd", lambda state: {"found": 2 * state["half"] + 1})
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda state: "odd" if state["n"] % 2 else "even", ["even", "odd"])
    graph.add_edge("even", END)
    graph.add_edge("odd", END)
    program = graph.compile()

    def one(n: int) -> Any:
        return program.invoke({"n": n})["found"]

    async def aone(n: int) -> Any:
        return (await program.ainvoke({"n": n}))["found"]

    return lambda: timed(at_once(one, aone, runs, mode), runs, lambda found: expect(found, list(range(runs))))


class Fan(TypedDict):
    """The state of a fan-out."""

    squares: Annotated[list[int], operator.add]
    total: int


def fan_out(branches: int, mode: str = "sync", history: bool = False) -> Round:
    """`Send` to one node, and a join."""

    def square(state: dict[str, int]) -> dict[str, list[int]]:
        return {"squares": [state["i"] * state["i"]]}

    async def asquare(state: dict[str, int]) -> dict[str, list[int]]:
        return {"squares": [state["i"] * state["i"]]}

    def join(state: Fan) -> dict[str, int]:
        return {"total": sum(state["squares"])}

    graph = StateGraph(Fan)
    graph.add_node("square", asquare if mode == "async" else square)
    graph.add_node("join", join)
    graph.add_conditional_edges(START, lambda _: [Send("square", {"i": i}) for i in range(branches)], ["square"])
    graph.add_edge("square", "join")
    graph.add_edge("join", END)
    wanted = sum(i * i for i in range(branches))

    def measure() -> float:
        program = compiled(graph, history)

        def sync() -> Any:
            return program.invoke({}, config(10, history))

        def run_async() -> Any:
            return asyncio.run(program.ainvoke({}, config(10, history)))

        work = sync if mode == "sync" else run_async
        return timed(work, branches, lambda result: expect(result["total"], wanted))

    return measure


class Pair(TypedDict):
    """The state of a fork in two."""

    n: int
    left: int
    right: int


def fork(keys: int, steps: int, mode: str = "sync") -> Round:
    """A loop of a fork in two branches and their join; one round is three nodes and one join."""
    watch = Watch()

    def start(state: dict[str, int]) -> dict[str, int]:
        if state["n"] == 0:
            watch.start()
        return {"n": state["n"] + 1}

    def left(state: dict[str, int]) -> dict[str, int]:
        return {"left": state["n"]}

    def right(state: dict[str, int]) -> dict[str, int]:
        return {"right": -state["n"]}

    async def aleft(state: dict[str, int]) -> dict[str, int]:
        return left(state)

    async def aright(state: dict[str, int]) -> dict[str, int]:
        return right(state)

    def join(state: dict[str, int]) -> dict[str, int]:
        expect(state["left"] + state["right"], 0)
        return {}

    inputs = {**filler(keys), "n": 0, "left": 0, "right": 0}
    graph = StateGraph(TypedDict("Forked", dict.fromkeys(inputs, Any)))
    graph.add_node("start", start)
    graph.add_node("left", left if mode == "sync" else aleft)
    graph.add_node("right", right if mode == "sync" else aright)
    graph.add_node("join", join)
    graph.add_edge(START, "start")
    graph.add_edge("start", "left")
    graph.add_edge("start", "right")
    graph.add_edge(["left", "right"], "join")
    graph.add_conditional_edges(
        "join", lambda s: "again" if s["n"] < steps else "done", {"again": "start", "done": END}
    )
    program = graph.compile()

    def measure() -> float:
        if mode == "sync":
            result = program.invoke(inputs, config(3 * steps))
        else:
            result = asyncio.run(program.ainvoke(inputs, config(3 * steps)))
        value = watch.per(steps)
        expect(result["n"], steps)
        return value

    return measure


def compile_chain(nodes: int) -> Round:
    """Building and compiling a chain; seconds for the whole."""

    def step(state: dict[str, int]) -> dict[str, int]:
        return {"n": state["n"] + 1}

    def work() -> Any:
        graph = StateGraph(TypedDict("Chain", {"n": int}))
        for i in range(nodes):
            graph.add_node(f"step{i}", step)
            graph.add_edge(f"step{i - 1}" if i else START, f"step{i}")
        graph.add_edge(f"step{nodes - 1}", END)
        return graph.compile()

    def check(program: Any) -> None:
        expect(program.invoke({"n": 0}, config(nodes))["n"], nodes)

    return lambda: timed(work, 1, check)


def memory(keys: int, versions: int) -> Round:
    """What the in-memory saver holds after a loop that sets a key and appends an item a step."""

    def step(state: dict[str, Any]) -> dict[str, Any]:
        i = len(state["log"])
        return {f"k{i % (keys - 1)}": -i, "log": [i]}

    fields: dict[str, Any] = dict.fromkeys(filler(keys), Any)
    graph = StateGraph(TypedDict("Kept", {**fields, "log": Annotated[list[int], operator.add]}))
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges(
        "step", lambda s: "again" if len(s["log"]) < versions else "done", {"again": "step", "done": END}
    )

    def work() -> Any:
        program = compiled(graph, True)
        result = program.invoke({**filler(keys), "log": []}, config(versions, True))
        expect(len(result["log"]), versions)
        return program

    return lambda: allocated(work)


def fork_bytes(items: int) -> Round:
    """What a saver stores for a fork of a thread that changes one item of a list."""

    def keep(state: dict[str, Any]) -> dict[str, Any]:
        return {}

    graph = StateGraph(TypedDict("Listed", {"items": list}))
    graph.add_node("keep", keep)
    graph.add_edge(START, "keep")
    graph.add_edge("keep", END)

    def measure() -> float:
        program = compiled(graph, True)
        where = config(10, True)
        program.invoke({"items": [message(i) for i in range(items)]}, where)
        state = program.get_state(where)
        changed = [*state.values["items"][:-1], message(-1)]
        forked: list[Any] = []

        def work() -> Any:
            forked.append(program.update_state(state.config, {"items": changed}))
            return forked

        value = allocated(work)
        expect(program.get_state(forked[0]).values["items"][-1], message(-1))
        return value

    return measure


WORKS: dict[str, Work] = {
    "loop": loop,
    "call": call,
    "crowd": crowd,
    "fan_out": fan_out,
    "map": fan_out,
    "fork": fork,
    "compile_chain": compile_chain,
    "memory": memory,
    "fork_bytes": fork_bytes,
}
