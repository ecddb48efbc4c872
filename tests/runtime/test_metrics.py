"""Metrics: what each kind of program counts, in every way in which a run may end, fail or go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest.mock import ANY

import dspy
import pytest
from opentelemetry import metrics
from opentelemetry.sdk import metrics as sdk
from opentelemetry.sdk.metrics.export import AggregationTemporality

from dspyer import END, START, Budget, CompiledGraph, Context, Graph, Retry
from dspyer.errors import ConcurrentRunError
from dspyer.extend import Layer, Stop
from dspyer.stores import Memory, Sharded, SQLite, Store
from dspyer.stores.encrypted import Encrypted
from dspyer.testing import ScriptedLM, no_pauses
from tests.children import run_python
from tests.executors.pools import BytesExecutor
from tests.log.failing import DiskError, FailingMemory
from tests.runtime.traces import metering

SECRET = "canary"  # the name of each thread, and each value


def one(node: Any, name: str = "One", **options: Any) -> Graph:
    return Graph(name=name).add_node("a", node, writes=["n"], **options).add_path(START, "a", END)


def add(n: str) -> dict[str, str]:
    return {"n": n}


def flaky(ctx: Context) -> dict[str, str]:
    if ctx.attempt < 3:
        raise ConnectionError(SECRET)
    return {"n": SECRET}


def fail() -> dict[str, str]:
    raise ValueError(SECRET)


def items(store: Store | None = None, **options: Any) -> CompiledGraph:
    def read(doc: str) -> str:
        if doc == "bad":
            raise ValueError(SECRET)
        return doc

    graph = Graph(name="Map").add_map("each", read, over="docs", item="doc", into="read", **options)
    return graph.add_path(START, "each", END).compile(store=store)


def whole(store: Store) -> CompiledGraph:
    """A fork, a join, a map, further attempts, a graph inside, a loop."""
    inner = Graph(name="Inner").add_node("x", add, writes=["n"]).add_node("y", flaky, writes=["n"], retry=3)
    graph = Graph(name="Whole").add_node("left", lambda: {"l": 1}, writes=["l"])
    graph.add_node("right", lambda: {"r": 1, "docs": ["a", "bad"]}, writes=["r", "docs"])
    graph.add_map(
        "each", lambda doc: fail() if doc == "bad" else doc, over="docs", item="doc", into="read", failures="f"
    )
    graph.add_node("sub", inner.add_path(START, "x", "y", END).compile(), writes={"n": "n"}, retry=2)
    graph.add_node("loop", lambda i=0: {"i": i + 1}, writes=["i"])
    graph.add_edge(START, ["left", "right"]).add_edge(["left", "right"], "each").add_path("each", "sub", "loop")
    return graph.add_conditional_edges("loop", lambda i: "loop" if i < 3 else END, ["loop", END]).compile(store=store)


def answered() -> None:
    thread = one(lambda ctx: {"n": ctx.interrupt("ok", "?", str)}).compile(store=Memory()).thread(SECRET)
    assert thread.run({}).status == "interrupted"
    assert thread.resume({"ok": SECRET}).status == "completed"


def resumed() -> None:
    broken = [True]

    def once(n: str) -> dict[str, str]:
        if broken.pop() if broken else False:
            raise ValueError(n)
        return {"n": n}

    graph = Graph(name="Two").add_node("a", add, writes=["n"]).add_node("b", once, writes=["n"])
    thread = graph.add_path(START, "a", "b", END).compile(store=Memory()).thread(SECRET)
    assert (thread.run({"n": SECRET}).status, thread.resume().status) == ("failed", "completed")


def stopped() -> None:
    class Closed(Layer):
        def admit(self, call: Any) -> None:
            raise Stop("closed")

    assert one(add).compile(layers=[Closed()]).run({"n": SECRET}).status == "stopped"


def broken_layer() -> None:
    class Broken(Layer):
        def run(self, run: Any) -> Any:
            raise ValueError(SECRET)

    assert one(add).compile(layers=[Broken()]).run({"n": SECRET}).status == "failed"


def interrupted() -> None:
    def press() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one(press).compile().run({})


def cancelled() -> None:
    async def forever() -> Any:
        tasks[0].cancel()
        await asyncio.sleep(60)

    async def main() -> None:
        tasks.append(asyncio.create_task(one(forever).compile().arun({})))
        with suppress(asyncio.CancelledError):
            await tasks[0]

    tasks: list[asyncio.Task[Any]] = []
    asyncio.run(main())


def closed() -> None:
    endless = Graph(name="Two").add_node("a", add, writes=["n"]).add_edge(START, "a")
    program = endless.add_conditional_edges("a", lambda: "a", ["a", END]).compile(max_steps=10**6)
    with program.stream({"n": SECRET}) as events:
        next(iter(events))

    async def left() -> None:
        stream = program.astream({"n": SECRET})
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(left())


def taken_over() -> None:
    def take() -> dict[str, str]:
        taken.append("")
        if len(taken) == 1:
            taken.append(program.thread(SECRET).resume(take_over=True).status)
        return {"n": SECRET}

    taken: list[str] = []
    program = one(take).compile(store=Memory())
    run = program.thread(SECRET).run({})
    assert (taken, type(run.error)) == (["", "", "completed"], ConcurrentRunError)


def keyed() -> None:
    thread = one(add).compile(store=Memory()).thread(SECRET)
    assert {thread.run({"n": SECRET}, key="k").status for _ in range(2)} == {"completed"}


def retried() -> None:
    with no_pauses():
        assert one(flaky, retry=Retry(3)).compile().run({}).status == "completed"


def edge() -> None:
    graph = one(fail).add_node("b", add, writes=["n"]).add_error_edge("a", "b").add_edge("b", END)
    graph.compile().run({"n": SECRET}).raise_error()


def below() -> None:
    """A graph in a node that is attempted twice, one that a node calls as a part, and one called as a run."""
    attempts: list[int] = []

    def second(n: str) -> dict[str, str]:
        attempts.append(1)
        return {"n": n} if len(attempts) > 1 else fail()

    inner = Graph(name="Inner").add_node("x", add, writes=["n"]).add_node("y", second, writes=["n"])
    helper, apart = one(add, "Helper").compile(), one(add, "Apart").compile()
    graph = Graph(name="Outer").add_node(
        "sub", inner.add_path(START, "x", "y", END).compile(), retry=Retry(2, on=(ValueError,))
    )
    graph.add_node("call", lambda n, ctx, helper: ctx.call(helper, {"n": n}), modules={"helper": helper}, writes=["n"])
    graph.add_node("own", lambda n, apart: apart(n=n), modules={"apart": apart}, writes=["n"])
    with no_pauses():
        graph.add_path(START, "sub", "call", "own", END).compile().run({"n": SECRET}).raise_error()


def sent() -> None:
    with BytesExecutor() as pool:
        worker = one(add, "Sent").compile().with_executor(pool)
        graph = Graph(name="Outer").add_node("sub", worker, writes={"n": "n"})
        graph.add_path(START, "sub", END).compile().run({"n": SECRET}).raise_error()
        worker(n=SECRET)


def played() -> dict[str, tuple[Callable[[], object], dict[str, float]]]:
    """What is called -> what is counted."""
    done = ended("completed") | {"steps One.a": 1}
    return {
        "a call": (lambda: one(add).compile()(n=SECRET), done),
        "a run": (lambda: one(add).compile().run({"n": SECRET}), done),
        "a stored run": (lambda: one(add).compile(store=Memory()).thread(SECRET).run({"n": SECRET}), done),
        "one that is shown as it is stored": (keyed, done),
        "an async call": (lambda: asyncio.run(one(add).compile().acall(n=SECRET)), done),
        "one that fails": (lambda: one(fail).compile().run({}), ended("failed") | {"node.errors One.a": 1}),
        "further attempts": (retried, done | {"node.errors One.a": 2}),
        "an error edge": (edge, done | {"node.errors One.a": 1, "steps One.b": 1}),
        "one that is stopped": (stopped, ended("stopped")),
        "one whose layer fails": (broken_layer, ended("failed")),
        "ctrl-c": (interrupted, ended("stopped")),
        "a cancelled task": (cancelled, ended("stopped")),
        "two closed streams": (closed, {"runs Two.stopped": 2, "run.duration Two.stopped": 2, "steps Two.a": ANY}),
        "a question": (answered, done | ended("interrupted") | {"resumes One": 1}),
        "a resume": (
            resumed,
            ended("failed", "Two")
            | ended("completed", "Two")
            | {"resumes Two": 1, "steps Two.a": 1, "steps Two.b": 1, "node.errors Two.b": 1},
        ),
        "a lost thread": (taken_over, done | ended("failed") | {"resumes One": 1, "takeovers One": 1}),
        "a map": (
            lambda: items(failures="f").run({"docs": [SECRET, "bad", "bad"]}),
            ended("completed", "Map") | {"steps Map.each": 1, "node.errors Map.each": 2},
        ),
        "a map that fails": (
            lambda: items().run({"docs": ["bad"]}),
            ended("failed", "Map") | {"node.errors Map.each": 1},
        ),
        "graphs inside": (
            below,
            ended("completed", "Outer")
            | ended("completed", "Apart")
            | {f"steps {name}": 1 for name in ("Inner.x", "Inner.y", "Outer.sub", "Outer.call", "Outer.own")}
            | {"steps Helper.a": 1, "steps Apart.a": 1, "node.errors Inner.y": 1, "node.errors Outer.sub": 1},
        ),
        "an executor": (
            sent,
            ended("completed", "Outer") | ended("completed", "Sent") | {"steps Outer.sub": 1, "steps Sent.a": 2},
        ),
    }


def ended(status: str, graph: str = "One") -> dict[str, float]:
    return {f"runs {graph}.{status}": 1, f"run.duration {graph}.{status}": 1}


def test_what_is_counted() -> None:
    for name, (play, expected) in played().items():
        with metering() as meter:
            play()
            assert meter.counted() == expected, name
            for instrument, told, _ in meter.points():
                assert told.keys() <= {"graph", "node", "status", "model", "direction", "store"}, instrument
                assert SECRET not in str(told), "no thread and no value"


def test_tokens_and_cost_are_those_of_the_usage() -> None:
    inner = one(dspy.Predict("q -> n"), "Inner").compile()
    graph = Graph(name="Asks").add_node("a", dspy.Predict("q -> n"), retry=Retry(2, on=(Exception,)))
    graph.add_node("sub", inner, writes={"n": "n"}).add_path(START, "a", "sub", END)
    budget = Budget(tokens=10**6, prices={"m": (1e6, 2e6)})
    answers = [RuntimeError(SECRET), *[{"n": SECRET}] * 6]
    with metering() as meter, dspy.context(lm=ScriptedLM(answers, model="m")), no_pauses():
        thread = graph.compile(store=Memory(), budget=budget).thread(SECRET)
        thread.run({"q": SECRET})
        thread.run({"q": SECRET})
        graph.compile(budget=budget)(q=SECRET)
        found = meter.counted()
    usage = thread.usage["m"]
    tokens = {name: value for name, value in found.items() if name.startswith("tokens")}
    assert tokens.keys() == {f"tokens {graph}.m.{way}" for graph in ("Asks", "Inner") for way in ("input", "output")}
    assert sum(tokens.values()) == usage["total_tokens"] * 3 // 2
    assert found["cost Asks.m"] + found["cost Inner.m"] == pytest.approx(usage["cost"] * 1.5)
    assert found["node.errors Asks.a"] == 1


def test_whatever_write_fails_run_and_resume_count_together_what_one_run_counts() -> None:
    def steps(store: FailingMemory, *others: str) -> dict[str, float]:
        with metering() as meter:
            thread = whole(store).thread(SECRET)
            if thread.run({"n": SECRET}).status == "failed":
                store.rest()
                assert thread.resume().status == "completed"
            found = meter.counted()
        assert store.writes <= sum(value for name, _, value in meter.points() if name == "store.writes")
        return {name: value for name, value in found.items() if name.startswith(("steps", *others))}

    store = FailingMemory()
    with no_pauses():
        expected = steps(store, "node.errors")
        assert expected == {
            **{f"steps Whole.{name}": 1 for name in ("left", "right", "each", "sub")},
            "steps Whole.loop": 3,
            "steps Inner.x": 1,
            "steps Inner.y": 1,
            "node.errors Inner.y": 2,
            "node.errors Whole.each": 1,
        }
        for at in range(2, store.writes, 3):
            for after in (False, True):
                store = FailingMemory()
                store.arm(broken, at, after=after)
                found = steps(store)
                # What the store has written although it failed is in the history, and was never told to this process.
                lost = sum(expected.values()) - 3 - sum(found.values())
                assert found.keys() <= expected.keys()
                assert lost in ((0, 1, 2) if after else (0,)), (at, after)


def broken() -> None:
    raise DiskError(SECRET)


def test_writes_of_stores_are_counted_by_the_kind_of_the_store(tmp_path: Any) -> None:
    file = SQLite(tmp_path / SECRET)
    encrypted, sharded = Encrypted(file, key=Encrypted.new_key()), Sharded({SECRET: file}, shard=lambda _: SECRET)
    for store, kind in ((Memory(), "memory"), (file, "sqlite"), (encrypted, "sqlite"), (sharded, "sharded")):
        with metering() as meter:
            one(add).compile(store=store).thread(f"{SECRET}{type(store).__name__}").run({"n": SECRET})
            found = {(name, told.get("store")): value for name, told, value in meter.points() if name[:5] == "store"}
        assert found.keys() == {("store.writes", kind), ("store.write.time", kind)}
        assert found["store.writes", kind] == 4, "the run, its first commit, the step, its end"
        assert 0 < found["store.write.time", kind] < 5


def test_each_provider_has_numbers_of_its_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, delta = one(add).compile(), {sdk.ObservableCounter: AggregationTemporality.DELTA}
    with metering() as first:
        program(n=SECRET)
        assert first.counted() == first.counted() != {}

        def look() -> dict[str, Any]:
            return {"seen": {name: value for name, told, value in first.points() if told.get("graph") == "Two"}}

        two = Graph(name="Two").add_node("a", add, writes=["n"]).add_node("look", look, writes=["seen"])
        seen = two.add_path(START, "a", "look", END).compile(store=Memory()).thread(SECRET).run({"n": SECRET}).state
        expected = {"runs.active": 1, "resumes": 0, "takeovers": 0, "steps": 1, "node.errors": 0}
        assert seen["seen"] == expected, "a reader sees what has happened so far"
        with metering(preferred_temporality=delta) as second:
            for _ in range(2):
                program(n=SECRET)
                assert second.counted()["steps One.a"] == 1
            assert first.counted()["steps One.a"] == 1
            threads = [threading.Thread(target=program.run, args=({"n": SECRET},)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert second.counted()["runs One.completed"] == 8
            metrics.get_meter_provider().shutdown()  # type: ignore[attr-defined]  # of the SDK
            assert program.run({"n": SECRET}).status == "completed"
    monkeypatch.setattr(metrics, "get_meter_provider", broken)
    assert program.run({"n": SECRET}).status == program.run({"n": SECRET}).status == "completed"
    assert caplog.text.count("no usable meter provider") == 1


PROCESS = """
import os
from dspyer import END, START, Graph
program = Graph(name="One").add_node("a", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "a", END).compile()
program(n=1)
from tests.runtime.traces import metrics, MeterProvider, InMemoryMetricReader, Meter
program(n=1)
meter = Meter(InMemoryMetricReader())
metrics.set_meter_provider(MeterProvider([meter.reader]))
program(n=1)
def fork(one):
    if not os.fork():
        one(n=1)
        found = meter.counted()
        os._exit(found["steps One.a"] != 2)
    assert os.wait()[1] == 0
Graph().add_node("fork", fork, modules={"one": program}).add_path(START, "fork", END).compile()()
assert meter.counted()["steps One.a"] == 1
"""


def test_a_program_is_counted_from_when_it_sets_a_provider_and_a_forked_one_counts_its_own_runs() -> None:
    run_python(PROCESS, check=True)
