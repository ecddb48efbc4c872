"""A branch that fails stops the graphs inside of nodes beside it, before their next node; a resume continues there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dspyer import END, START, CompiledGraph, Context, Graph, Run, search
from dspyer.events import Event, NodeFailed
from dspyer.stores import Memory
from tests.rows import each


class Desk:
    """A guard beside a graph that pays in two steps: the guard raises while the first one works, until it is mended."""

    def __init__(self, kind: str, mode: str) -> None:
        self.mode = mode
        self.mended = False
        self.calls: list[str] = []
        self.begun, self.failed = threading.Event(), threading.Event()
        self.thread = self.program(kind).thread("t")

    def guard(self) -> None:
        assert self.begun.wait(20)
        if not self.mended:
            raise PermissionError("refused")

    def hold(self, amount: int) -> dict[str, int]:
        self.calls.append(f"hold {amount}")
        self.begun.set()
        assert self.failed.wait(20)
        return {"held": amount}

    async def ahold(self, amount: int) -> dict[str, int]:
        """Async code is not cancelled, but finished, as the node beside a failure is."""
        self.calls.append(f"hold {amount}")
        self.begun.set()
        assert await asyncio.to_thread(self.failed.wait, 20)
        return {"held": amount}

    def pay(self, held: int) -> dict[str, int]:
        self.calls.append(f"pay {held}")
        return {"paid": held}

    def inner(self, hold: Callable[..., Any]) -> Graph:
        graph = Graph(inputs=["amount"], outputs=["paid"])
        graph.add_node("hold", hold, writes=["held"]).add_node("pay", self.pay, writes=["paid"])
        return graph.add_path(START, "hold", "pay", END)

    def program(self, kind: str) -> CompiledGraph:
        inner = self.inner(self.ahold if kind == "async" else self.hold).compile()
        if kind == "deeper":
            graph = Graph(inputs=["amount"], outputs=["paid"]).add_node("below", inner, writes=["paid"])
            inner = graph.add_path(START, "below", END).compile()
        outer = Graph(inputs=["amount", "amounts"]).add_node("guard", self.guard)
        if kind == "items":
            outer.add_map("desk", inner, over="amounts", item="amount", into="all_paid", max_concurrency=1)
        elif kind == "trials":
            best = search.best_of(inner, reward=lambda paid: 1.0 if paid else 0.0, n=2)
            outer.add_node("desk", best, writes=["paid"])
        elif kind == "called":

            def desk(amount: int, ctx: Context, inner: CompiledGraph) -> dict[str, Any]:
                return {"paid": ctx.call(inner, {"amount": amount}).paid}

            outer.add_node("desk", desk, writes=["paid"], modules={"inner": inner})
        else:
            outer.add_node("desk", inner, writes=["paid"])
        outer.add_edge(START, ["guard", "desk"]).add_edge(["guard", "desk"], END)
        return outer.compile(store=Memory())

    def run(self) -> Run:
        """Runs until the guard has failed; the graph beside it goes on only when the run knows of the failure."""
        inputs = {"amount": 1, "amounts": [1, 2, 3]}
        if self.mode == "sync":
            stream = self.thread.stream(inputs)
            with suppress(PermissionError):
                for event in stream:
                    self.note(event)
            return stream.run

        async def arun() -> Run:
            stream = self.thread.astream(inputs)
            with suppress(PermissionError):
                async for event in stream:
                    self.note(event)
            return stream.run

        return asyncio.run(arun())

    def note(self, event: Event) -> None:
        if isinstance(event, NodeFailed):
            self.failed.set()

    def resume(self) -> Run:
        self.mended = True
        return self.thread.resume() if self.mode == "sync" else asyncio.run(self.thread.aresume())


@each(
    ("kind", "mode"),
    [
        ("nested", "sync"),
        ("nested", "async"),
        ("async", "async"),
        ("async", "sync"),
        ("deeper", "async"),
        ("items", "sync"),
        ("trials", "async"),
        ("called", "sync"),
    ],
)
def test_a_graph_beside_a_failure_ends_before_its_next_node(kind: str, mode: str) -> None:
    desk = Desk(kind, mode)
    failed = desk.run()
    assert (failed.status, [failure.node for failure in failed.failures]) == ("failed", ["guard"])
    assert desk.calls == ["hold 1"]
    assert desk.thread.status == "failed"
    assert desk.resume().status == "completed"
    assert desk.calls[:2] == ["hold 1", "pay 1"]
    if kind == "items":
        assert sorted(desk.calls) == [f"{what} {amount}" for what in ("hold", "pay") for amount in (1, 2, 3)]
    else:
        assert len(desk.calls) == (4 if kind == "trials" else 2)


def test_a_map_beside_a_failure_starts_no_further_item() -> None:
    begun, failed = threading.Event(), threading.Event()
    calls: list[int] = []
    mended: list[bool] = []

    def guard() -> None:
        assert begun.wait(20)
        if not mended:
            raise PermissionError("refused")

    def pay(amount: int) -> int:
        calls.append(amount)
        begun.set()
        assert failed.wait(20)
        return amount

    graph = Graph(inputs=["amounts"]).add_node("guard", guard)
    graph.add_map("pay", pay, over="amounts", item="amount", into="paid", max_concurrency=1)
    graph.add_edge(START, ["guard", "pay"]).add_edge(["guard", "pay"], END)
    thread = graph.compile(store=Memory()).thread("t")
    with suppress(PermissionError):
        for event in thread.stream({"amounts": [1, 2, 3]}):
            if isinstance(event, NodeFailed):
                failed.set()
    assert calls == [1]
    mended.append(True)
    assert thread.resume().state["paid"] == [1, 2, 3]
    assert calls == [1, 2, 3]
