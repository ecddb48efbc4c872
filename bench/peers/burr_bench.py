"""Burr's workloads: actions over a state; a fan-out is a `MapStates` action, whose branches are applications."""

# mypy: disable-error-code="import-not-found,misc,no-any-return,untyped-decorator,override"
# (apache-burr is installed in an environment of its own, where mypy does not run)

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from itertools import pairwise
from typing import Any

from burr.core import ApplicationBuilder, State, action, default, expr
from burr.core.parallelism import MapStates
from burr.core.persistence import InMemoryPersister

from bench.peers.measure import Round, Watch, Work, allocated, expect, filler, message, timed, versions_alive

PACKAGES = ["apache-burr"]


def loop(keys: int, steps: int, history: bool = False) -> Round:
    """One action in a loop; with history an in-memory persister."""
    watch = Watch()

    @action(reads=["n"], writes=["n"])
    def step(state: State) -> State:
        if state["n"] == 0:
            watch.start()
        return state.update(n=state["n"] + 1)

    @action(reads=["n"], writes=[])
    def done(state: State) -> State:
        return state

    inputs = {**filler(keys), "n": 0}

    def measure() -> float:
        builder = (
            ApplicationBuilder()
            .with_actions(step=step, done=done)
            .with_transitions(("step", "step", expr(f"n < {steps}")), ("step", "done", default))
            .with_entrypoint("step")
            .with_state(**inputs)
        )
        if history:
            builder = builder.with_identifiers(app_id="bench", partition_key="p").with_state_persister(
                InMemoryPersister()
            )
        _, _, state = builder.build().run(halt_before=["done"])
        value = watch.per(steps)
        expect(state["n"], steps)
        return value

    return measure


def call(keys: int) -> Round:
    """An application of one action: a run needs a new one, so building it is part of the call."""

    @action(reads=["n"], writes=["n"])
    def step(state: State) -> State:
        return state.update(n=state["n"] + 1)

    inputs = {**filler(keys), "n": 0}
    calls = max(1, 100 // keys)

    def work() -> Any:
        for _ in range(calls):
            app = ApplicationBuilder().with_actions(step=step).with_entrypoint("step").with_state(**inputs).build()
            _, _, state = app.run(halt_after=["step"])
        return state

    return lambda: timed(work, calls, lambda state: expect(state["n"], 1))


@action(reads=["i"], writes=["square"])
def square(state: State) -> State:
    """One branch."""
    return state.update(square=state["i"] * state["i"])


@action(reads=["i"], writes=["square"])
async def asquare(state: State) -> State:
    """One branch of the asynchronous fan-out."""
    return state.update(square=state["i"] * state["i"])


class Squares(MapStates):
    """The fan-out and its join."""

    def __init__(self, branches: int) -> None:
        super().__init__()
        self.branches = branches

    def action(self, state: State, inputs: dict[str, Any]) -> Any:
        return square

    def states(self, state: State, context: Any, inputs: dict[str, Any]) -> Generator[State, None, None]:
        for i in range(self.branches):
            yield state.update(i=i)

    def reduce(self, state: State, states: Generator[State, None, None]) -> State:
        return state.update(total=sum(branch["square"] for branch in states))

    @property
    def reads(self) -> list[str]:
        return []

    @property
    def writes(self) -> list[str]:
        return ["total"]


class AsyncSquares(Squares):
    """The same on an event loop."""

    def action(self, state: State, inputs: dict[str, Any]) -> Any:
        return asquare

    def is_async(self) -> bool:
        return True

    async def states(self, state: State, context: Any, inputs: dict[str, Any]) -> AsyncGenerator[State, None]:
        for i in range(self.branches):
            yield state.update(i=i)

    async def reduce(self, state: State, states: AsyncGenerator[State, None]) -> State:
        return state.update(total=sum([branch["square"] async for branch in states]))


def fan_out(branches: int, mode: str = "sync") -> Round:
    """`MapStates` over the branches."""
    mapper = Squares(branches) if mode == "sync" else AsyncSquares(branches)
    wanted = sum(i * i for i in range(branches))

    def measure() -> float:
        builder = ApplicationBuilder().with_actions(squares=mapper).with_entrypoint("squares").with_state(total=0)

        def sync() -> Any:
            return builder.build().run(halt_after=["squares"])

        async def on_loop() -> Any:
            return await (await builder.abuild()).arun(halt_after=["squares"])

        def run_async() -> Any:
            return asyncio.run(on_loop())

        work = sync if mode == "sync" else run_async
        return timed(work, branches, lambda result: expect(result[2]["total"], wanted))

    return measure


def compile_chain(nodes: int) -> Round:
    """Building an application of a chain."""

    @action(reads=["n"], writes=["n"])
    def step(state: State) -> State:
        return state.update(n=state["n"] + 1)

    def work() -> Any:
        names = [f"step{i}" for i in range(nodes)]
        return (
            ApplicationBuilder()
            .with_actions(**dict.fromkeys(names, step))
            .with_transitions(*pairwise(names))
            .with_entrypoint(names[0])
            .with_state(n=0)
            .build()
        )

    def check(app: Any) -> None:
        expect(app.run(halt_after=[f"step{nodes - 1}"])[2]["n"], nodes)

    return lambda: timed(work, 1, check)


def patch_key(keys: int, alive: int, ops: int) -> Round:
    """`State.update` of one key."""
    base = State(filler(keys + 1))
    return versions_alive(
        base,
        lambda state, i: state.update(**{f"k{i}": -i}),
        lambda state: expect(state[f"k{ops - 1}"], 1 - ops),
        alive,
        ops,
    )


def append_message(messages: int, alive: int, ops: int) -> Round:
    """`State.append` of one message."""
    base = State({"messages": [message(i) for i in range(messages)]})
    return versions_alive(
        base,
        lambda state, i: state.append(messages=message(i)),
        lambda state: expect(len(state["messages"]), messages + ops),
        alive,
        ops,
    )


def memory(keys: int, versions: int) -> Round:
    """What the states hold, each with one key set and one item appended."""
    base = State({**filler(keys), "log": []})

    def work() -> list[State]:
        kept = [base]
        for i in range(versions):
            kept.append(kept[-1].update(**{f"k{i % (keys - 1)}": -i}).append(log=i))
        expect(len(kept[-1]["log"]), versions)
        return kept

    return lambda: allocated(work)


WORKS: dict[str, Work] = {
    "loop": loop,
    "call": call,
    "fan_out": fan_out,
    "map": fan_out,
    "compile_chain": compile_chain,
    "patch_key": patch_key,
    "append_message": append_message,
    "memory": memory,
}
