"""pydantic-graph's workloads: steps of a `GraphBuilder` over a dataclass that they change in place; asyncio only."""

# mypy: disable-error-code="import-not-found,misc,no-any-return,untyped-decorator,operator"
# (pydantic-graph is installed in an environment of its own, where mypy does not run)

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic_graph import GraphBuilder, StepContext, TypeExpression, reduce_list_append

from bench.peers.measure import Round, UnsupportedError, Watch, Work, expect, filler, timed

PACKAGES = ["pydantic-graph"]


@dataclass
class Counter:
    """The state: the keys that nothing touches are one dict."""

    n: int = 0
    rest: dict[str, int] = field(default_factory=dict)


Again = Literal["again"]
Done = Literal["done"]


def loop(keys: int, steps: int, history: bool = False) -> Round:
    """One step and a decision."""
    if history:
        raise UnsupportedError("2.x keeps no history")
    watch = Watch()
    builder = GraphBuilder(state_type=Counter, output_type=int)

    @builder.step
    async def step(ctx: StepContext[Counter, None, Any]) -> Literal["again", "done"]:
        if ctx.state.n == 0:
            watch.start()
        ctx.state.n += 1
        return "again" if ctx.state.n < steps else "done"

    @builder.step
    async def finish(ctx: StepContext[Counter, None, Any]) -> int:
        return ctx.state.n

    decision = builder.decision()
    decision = decision.branch(builder.match(TypeExpression[Again]).to(step))
    decision = decision.branch(builder.match(TypeExpression[Done]).to(finish))
    builder.add(
        builder.edge_from(builder.start_node).to(step),
        builder.edge_from(step).to(decision),
        builder.edge_from(finish).to(builder.end_node),
    )
    graph = builder.build()

    async def run() -> float:
        result = await graph.run(state=Counter(0, filler(keys)))
        value = watch.per(steps)
        expect(result, steps)
        return value

    return lambda: asyncio.run(run())


def call(keys: int) -> Round:
    """One call of a graph of one step."""
    builder = GraphBuilder(state_type=Counter, output_type=int)

    @builder.step
    async def step(ctx: StepContext[Counter, None, Any]) -> int:
        ctx.state.n += 1
        return ctx.state.n

    builder.add(
        builder.edge_from(builder.start_node).to(step),
        builder.edge_from(step).to(builder.end_node),
    )
    graph = builder.build()
    rest = filler(keys)
    calls = max(1, 100 // keys)

    async def run() -> Any:
        for _ in range(calls):
            result = await graph.run(state=Counter(0, rest))
        return result

    return lambda: timed(lambda: asyncio.run(run()), calls, lambda result: expect(result, 1))


def fan_out(branches: int, mode: str = "async") -> Round:
    """A mapping edge and a join."""
    if mode == "sync":
        raise UnsupportedError("asyncio only")
    builder = GraphBuilder(output_type=int)

    @builder.step
    async def items(ctx: StepContext[None, None, None]) -> list[int]:
        return list(range(branches))

    @builder.step
    async def square(ctx: StepContext[None, None, int]) -> int:
        return ctx.inputs * ctx.inputs

    @builder.step
    async def total(ctx: StepContext[None, None, list[int]]) -> int:
        return sum(ctx.inputs)

    collect = builder.join(reduce_list_append, initial_factory=list[int])
    builder.add(
        builder.edge_from(builder.start_node).to(items),
        builder.edge_from(items).map().to(square),
        builder.edge_from(square).to(collect),
        builder.edge_from(collect).to(total),
        builder.edge_from(total).to(builder.end_node),
    )
    graph = builder.build()
    wanted = sum(i * i for i in range(branches))
    return lambda: timed(lambda: asyncio.run(graph.run()), branches, lambda result: expect(result, wanted))


def compile_chain(nodes: int) -> Round:
    """Building a chain of steps."""

    async def add(ctx: StepContext[Counter, None, Any]) -> int:
        ctx.state.n += 1
        return ctx.state.n

    def work() -> Any:
        builder = GraphBuilder(state_type=Counter, output_type=int)
        last: Any = builder.start_node
        for i in range(nodes):
            step = builder.step(add, node_id=f"step{i}")
            builder.add_edge(last, step)
            last = step
        builder.add_edge(last, builder.end_node)
        return builder.build()

    def check(graph: Any) -> None:
        expect(asyncio.run(graph.run(state=Counter())), nodes)

    return lambda: timed(work, 1, check)


WORKS: dict[str, Work] = {
    "loop": loop,
    "call": call,
    "fan_out": fan_out,
    "map": fan_out,
    "compile_chain": compile_chain,
}
