"""No library at all: a plain loop, and states as dicts that are copied."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.peers.measure import (
    Round,
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

State = dict[str, Any]
PACKAGES: list[str] = []


def loop(keys: int, steps: int, history: bool = False) -> Round:
    """A while loop over a dict; with history every version is kept as a copy."""
    watch = Watch()

    def step(n: int) -> dict[str, int]:
        return {"n": n + 1}

    def measure() -> float:
        state: State = {**filler(keys), "n": 0}
        kept = [state]
        watch.start()
        while state["n"] < steps:
            if history:
                state = {**state, **step(state["n"])}
                kept.append(state)
            else:
                state.update(step(state["n"]))
        value = watch.per(steps)
        expect(state["n"], steps)
        return value

    return measure


def fan_out(branches: int, mode: str = "sync") -> Round:
    """A thread pool, or tasks on an event loop."""

    def square(i: int) -> int:
        return i * i

    async def asquare(i: int) -> int:
        return i * i

    wanted = sum(i * i for i in range(branches))

    def sync() -> int:
        with ThreadPoolExecutor() as pool:
            return sum(pool.map(square, range(branches)))

    async def gathered() -> int:
        return sum(await asyncio.gather(*map(asquare, range(branches))))

    def measure() -> float:
        work: Callable[[], int] = sync if mode == "sync" else lambda: asyncio.run(gathered())
        return timed(work, branches, lambda total: expect(total, wanted))

    return measure


def copied_leaf(state: State, depth: int, value: int) -> State:
    """A copy of each dict on the way to the leaf."""
    if depth == 1:
        return {**state, "leaf": value}
    return {**state, "down": copied_leaf(state["down"], depth - 1, value)}


def deep_leaf(state: State, depth: int, value: int) -> State:
    """A deep copy, changed in place."""
    new = inner = copy.deepcopy(state)
    for _ in range(depth - 1):
        inner = inner["down"]
    inner["leaf"] = value
    return new


def patch_key(keys: int, alive: int, ops: int, how: str) -> Round:
    """Sets one key of many."""

    def change(state: State, i: int) -> State:
        if how == "deepcopy":
            new = copy.deepcopy(state)
            new[f"k{i}"] = -i
            return new
        return {**state, f"k{i}": -i}

    return versions_alive(filler(keys + 1), change, lambda state: expect(state[f"k{ops - 1}"], 1 - ops), alive, ops)


def append_message(messages: int, alive: int, ops: int, how: str) -> Round:
    """Appends one message to many."""

    def change(state: State, i: int) -> State:
        if how == "deepcopy":
            new = copy.deepcopy(state)
            new["messages"].append(message(i))
            return new
        return {**state, "messages": [*state["messages"], message(i)]}

    base = {"messages": [message(i) for i in range(messages)]}
    return versions_alive(base, change, lambda state: expect(len(state["messages"]), messages + ops), alive, ops)


def patch_leaf(depth: int, alive: int, ops: int, how: str) -> Round:
    """Sets one leaf of a deep tree."""
    change = deep_leaf if how == "deepcopy" else copied_leaf

    def check(state: State) -> None:
        expect(leaf_of(state, depth), ops - 1)

    return versions_alive(nested(depth), lambda state, i: change(state, depth, i), check, alive, ops)


def memory(keys: int, versions: int) -> Round:
    """What `versions` dict copies hold, each with one key set and one item appended."""

    def work() -> list[State]:
        kept = [base]
        for i in range(versions):
            state = kept[-1]
            kept.append({**state, f"k{i % (keys - 1)}": -i, "log": [*state["log"], i]})
        expect(len(kept[-1]["log"]), versions)
        return kept

    base: State = {**filler(keys), "log": []}
    return lambda: allocated(work)


WORKS: dict[str, Work] = {
    "loop": loop,
    "fan_out": fan_out,
    "map": fan_out,
    "patch_key": patch_key,
    "append_message": append_message,
    "patch_leaf": patch_leaf,
    "memory": memory,
}
