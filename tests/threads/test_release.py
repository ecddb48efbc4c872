"""A thread is released whatever ends its run: an interrupt, a cancellation, an error before the first step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph
from dspyer.errors import RunStoppedError
from dspyer.stores.base import Change, Store
from tests.log.failing import Crash
from tests.threads.owned_runs import BackgroundRun, Count, Gate, WatchedStore, gated, owner_of


@pytest.mark.parametrize("place", ["alone", "in a fork", "in a subgraph", "in a map"])
def test_a_keyboard_interrupt_releases_the_thread(place: str, store: Store) -> None:
    """Ctrl-C in a notebook. Results of siblings that had finished are kept."""
    stop = [True]
    calls: list[str] = []

    def torn(state: Any) -> dict[str, Any]:
        calls.append("torn")
        if stop:
            raise KeyboardInterrupt
        return {"log": ["torn"]}

    thread = graph_with(place, torn, calls, store).thread("t")
    with pytest.raises(KeyboardInterrupt):
        thread.run({"n": 1})
    assert owner_of(store) is None
    assert thread.status == "stopped"
    stop.clear()
    assert thread.resume().state["log"] == {"in a fork": ["torn", "beside"]}.get(place, ["torn"])
    assert calls.count("torn") == 2


def graph_with(place: str, torn: Callable[..., Any], calls: list[str], store: Store) -> CompiledGraph:
    graph = Graph(Count, inputs=["n"])
    if place == "alone":
        graph.add_node("torn", torn).add_path(START, "torn", END)
    elif place == "in a fork":
        graph.add_node("torn", torn).add_node("beside", lambda state: {"log": ["beside"]})
        graph.add_edge(START, ["torn", "beside"]).add_edge(["torn", "beside"], END)
    elif place == "in a subgraph":
        inner = Graph(Count).add_node("torn", torn).add_path(START, "torn", END)
        graph.add_node("inner", inner.compile()).add_path(START, "inner", END)
    else:

        def one(state: Any, item: int) -> str:
            torn(state)
            return "torn"

        graph = Graph(StateWithItems, inputs=["n"]).add_map("items", one, over="items", item="item", into="log")
        graph.add_path(START, "items", END)
    return graph.compile(store=store)


class StateWithItems(BaseModel):
    n: int = 0
    items: list[int] = [1]
    log: list[str] = []


def test_results_finished_before_a_sibling_aborts_the_run_are_kept() -> None:
    """Both end while the driver is writing: the result of the first is not lost with the second."""
    store = WatchedStore()
    store.writes_at_once = False
    go_on = threading.Event()
    calls: list[str] = []

    async def torn_out() -> None:
        loop = asyncio.get_running_loop()
        begin, done = asyncio.Event(), asyncio.Event()

        def hold(change: Change) -> None:
            if change.rows and change.rows[-1].seq == 2:
                loop.call_soon_threadsafe(begin.set)
                assert go_on.wait(20)

        async def finishes(state: Any) -> dict[str, Any]:
            calls.append("finishes")
            await begin.wait()
            done.set()
            return {"log": ["finishes"]}

        async def tears(state: Any) -> dict[str, Any]:
            calls.append("tears")
            await done.wait()
            for _ in range(5):
                await asyncio.sleep(0)
            go_on.set()
            raise Crash

        store.before = hold
        await graph_of_three(finishes, tears, store).thread("t").arun({"n": 1})

    with pytest.raises(Crash):
        asyncio.run(torn_out())
    store.before = lambda change: None

    def again(name: str) -> Callable[..., Any]:
        async def node(state: Any) -> dict[str, Any]:
            calls.append(name)
            return {"log": [name]}

        return node

    run = graph_of_three(again("finishes"), again("tears"), store).thread("t").resume()
    assert run.state["log"] == ["first", "finishes", "tears"]
    assert (calls.count("finishes"), calls.count("tears")) == (1, 2)


def graph_of_three(finishes: Callable[..., Any], tears: Callable[..., Any], store: Store) -> CompiledGraph:
    async def first(state: Any) -> dict[str, Any]:
        return {"log": ["first"]}

    graph = Graph(Count, inputs=["n"]).add_node("first", first).add_node("finishes", finishes).add_node("tears", tears)
    names = ["first", "finishes", "tears"]
    return graph.add_edge(START, names).add_edge(names, END).compile(store=store)


@pytest.mark.parametrize("where", ["in a node", "in a write", "in a write that goes to a thread"])
def test_a_cancelled_run_releases_the_thread(where: str) -> None:
    store, gate = WatchedStore(), Gate()
    given_back, writing, go_on = threading.Event(), threading.Event(), threading.Event()

    def after(change: Change) -> None:
        if change.lease == 0.0:
            given_back.set()

    def hold(change: Change) -> None:
        if change.rows and change.rows[-1].seq == 2:
            writing.set()
            assert go_on.wait(20)

    store.after = after
    store.writes_at_once = where != "in a write that goes to a thread"
    if where != "in a node":
        store.before = hold if not store.writes_at_once else (lambda change: None)

    async def cancelled() -> None:
        task = asyncio.create_task(gated(gate, store, gate.awork).thread("t").arun({"n": 1}))
        waited = writing if where == "in a write that goes to a thread" else gate.inside
        await asyncio.to_thread(waited.wait, 20)
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert given_back.wait(20)
    assert owner_of(store) is None
    store.before = lambda change: None
    gate.opened.set()
    thread = gated(gate, store).thread("t")
    assert thread.status == "stopped"
    assert thread.resume().state["log"] == ["before", "gate", "after"]


@pytest.mark.parametrize("where", ["while it waits", "while it gets hold"])
def test_a_run_that_is_cancelled_while_it_acquires_the_thread_owns_nothing(where: str) -> None:
    store, gate = WatchedStore(), Gate()
    owning_it, go_on, given_back = threading.Event(), threading.Event(), threading.Event()
    first: BackgroundRun | None = None
    if where == "while it waits":
        first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
        assert gate.inside.wait(20)

    def hold(change: Change) -> None:
        if change.run is not None:
            owning_it.set()
            assert go_on.wait(20)

    def after(change: Change) -> None:
        if change.lease == 0.0:
            given_back.set()

    store.before, store.after = hold, after

    async def cancelled() -> None:
        task = asyncio.create_task(gated(gate, store).thread("t").arun({"n": 1}, on_conflict="wait"))
        await asyncio.to_thread(lambda: store.wait_for_reads(2) if first else owning_it.wait(20))
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    store.before = lambda change: None
    gate.opened.set()
    if first is not None:
        assert first.end().status == "completed"
    assert given_back.wait(20)
    assert owner_of(store) is None
    assert gate.calls == (1 if first else 0)


def test_closing_a_stream_that_waits_for_its_thread_ends_the_wait() -> None:
    store, gate = WatchedStore(), Gate()
    first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(20)
    stream = gated(gate, store).thread("t").stream({"n": 1}, on_conflict="wait")
    events: list[list[object]] = []
    reader = threading.Thread(target=lambda: events.append(list(stream)))
    reader.start()
    store.wait_for_reads(2)
    stream.close()
    reader.join(20)
    assert events == [[]]
    with pytest.raises(RunStoppedError):
        _ = stream.run
    gate.opened.set()
    assert first.end().state["n"] == 1
    assert gate.calls == 1
