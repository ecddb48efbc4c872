"""The workloads of dspyer 0.3.6 from the package index, for which this library is the successor."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from bench.peers.measure import (
    Round,
    UnsupportedError,
    Watch,
    Work,
    allocated,
    expect,
    filler,
    leaf_of,
    message,
    nested,
    timed,
    versions_alive,
)

dspyer: Any = importlib.import_module("dspyer")  # not this repository's: mypy must not take one for the other
PACKAGES = ["dspyer", "dspy"]


class Nothing(BaseModel):
    """The models of a function node, which does not use them."""


def function_node(name: str, function: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A node that calls a plain function, as its own converter from LangGraph makes it."""
    node = dspyer.StatefulNode(name, Nothing, Nothing)
    node.is_passthrough = True
    node.callable = function
    return node


def loop(keys: int, steps: int, history: bool = False) -> Round:
    """One node in a loop."""
    if history:
        raise UnsupportedError("keeps no history")
    watch = Watch()

    def step(state: dict[str, Any]) -> dict[str, int]:
        if state["n"] == 0:
            watch.start()
        return {"n": state["n"] + 1}

    graph = dspyer.Graph()
    graph.add_node(function_node("step", step))
    graph.set_entry_point("step")
    graph.add_conditional_edges(
        "step", lambda s: "again" if s["n"] < steps else "done", {"again": "step", "done": "END"}
    )
    program = dspyer.AgentTranspiler.compile(graph)
    inputs = {**filler(keys), "n": 0}

    def measure() -> float:
        result = program(**inputs, _max_steps=steps + 1)
        value = watch.per(steps)
        expect(result.n, steps)
        return value

    return measure


def chain(nodes: int) -> Any:
    """A graph of `nodes` nodes."""
    graph = dspyer.Graph()
    for i in range(nodes):
        graph.add_node(function_node(f"step{i}", lambda state: {"n": state["n"] + 1}))
    graph.set_entry_point("step0")
    for i in range(nodes):
        graph.add_edge(f"step{i}", f"step{i + 1}" if i + 1 < nodes else "END")
    return graph


def call(keys: int) -> Round:
    """One call of a graph of one node."""
    program = dspyer.AgentTranspiler.compile(chain(1))
    inputs = {**filler(keys), "n": 0}
    calls = max(1, 100 // keys)

    def work() -> Any:
        for _ in range(calls):
            result = program(**inputs)
        return result

    return lambda: timed(work, calls, lambda result: expect(result.n, 1))


def compile_chain(nodes: int) -> Round:
    """Building and compiling a chain."""

    def check(program: Any) -> None:
        expect(program(n=0, _max_steps=nodes + 1).n, nodes)

    return lambda: timed(lambda: dspyer.AgentTranspiler.compile(chain(nodes)), 1, check)


def patch_key(keys: int, alive: int, ops: int) -> Round:
    """`apply_patch` of one key."""
    return versions_alive(
        dspyer.ImmutableState(filler(keys + 1)),
        lambda state, i: state.apply_patch({f"k{i}": -i}),
        lambda state: expect(state.to_dict()[f"k{ops - 1}"], 1 - ops),
        alive,
        ops,
    )


def append_message(messages: int, alive: int, ops: int) -> Round:
    """`apply_patch` of the longer list: the class has no other way, and none to read one value."""
    return versions_alive(
        dspyer.ImmutableState({"messages": [message(i) for i in range(messages)]}),
        lambda state, i: state.apply_patch({"messages": [*state.to_dict()["messages"], message(i)]}),
        lambda state: expect(len(state.to_dict()["messages"]), messages + ops),
        alive,
        ops,
    )


def patch_leaf(depth: int, alive: int, ops: int) -> Round:
    """`apply_patch` of one leaf of a deep tree."""

    def change(state: Any, i: int) -> Any:
        patch: dict[str, Any] = {"leaf": i}
        for _ in range(depth - 1):
            patch = {"down": patch}
        return state.apply_patch(patch)

    def check(state: Any) -> None:
        expect(leaf_of(state.to_dict(), depth), ops - 1)

    return versions_alive(dspyer.ImmutableState(nested(depth)), change, check, alive, ops)


def memory(keys: int, versions: int) -> Round:
    """What the states hold, each with one key set and one item appended."""

    def work() -> list[Any]:
        log: list[int] = []
        kept = [dspyer.ImmutableState({**filler(keys), "log": log})]
        for i in range(versions):
            log = [*log, i]
            kept.append(kept[-1].apply_patch({f"k{i % (keys - 1)}": -i, "log": log}))
        expect(len(kept[-1].to_dict()["log"]), versions)
        return kept

    return lambda: allocated(work)


WORKS: dict[str, Work] = {
    "loop": loop,
    "call": call,
    "compile_chain": compile_chain,
    "patch_key": patch_key,
    "append_message": append_message,
    "patch_leaf": patch_leaf,
    "memory": memory,
}
