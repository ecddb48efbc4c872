"""The workloads of this repository's stored runs: threads in memory and in SQLite files."""

from __future__ import annotations

import asyncio
import gzip
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import httpx
from opentelemetry.metrics import _internal as meters
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pydantic import BaseModel, create_model

import dspyer.inspector
from bench.peers.measure import Round, Watch, Work, expect, filler, flushed_write, said, stored_bytes, timed
from dspyer import END, START, Archive, Graph, reducers
from dspyer.stores import Memory, SQLite, open_store

PACKAGES: list[str] = []


class Chat(BaseModel):
    """Messages, and how many there are to be."""

    messages: Annotated[list[dict[str, str]], reducers.extend] = []
    wanted: int = 0
    more: int = 0


def looped(watch: Watch, steps: int, mode: str = "sync", unread: Sequence[str] = ()) -> Graph:
    """One trivial node in a loop, with inputs that no node reads."""

    def step(n: int) -> dict[str, int]:
        if n == 0:
            watch.start()
        return {"n": n + 1}

    async def astep(n: int) -> dict[str, int]:
        return step(n)

    fields: dict[str, Any] = {"n": (int, 0), **dict.fromkeys(unread, (Any, None))}
    graph = Graph(create_model("Looped", **fields), inputs=["n", *unread], outputs=["n"])
    graph.add_node("step", step if mode == "sync" else astep, writes=["n"])
    graph.add_edge(START, "step")
    return graph.add_conditional_edges(
        "step", lambda n: "again" if n < steps else "done", {"again": "step", "done": END}
    )


def stored_loop(store: str, steps: int, durability: str = "sync", mode: str = "sync", state: Any = None) -> Round:
    """A step of a loop; with `flush`, what it takes above one and a half bare writes of the same round."""
    watch = Watch()
    graph = looped(watch, steps, mode)

    def measure() -> float:
        bare = flushed_write() if durability == "flush" else 0.0
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / store
            with Memory() if store == ":memory:" else SQLite(file, flush=durability == "flush") as opened:
                program = graph.compile(store=opened, max_steps=steps + 1)
                inputs = {"n": 0, **(state or {})}
                t = program.thread("t")
                run = t.run(inputs) if mode == "sync" else asyncio.run(t.arun(inputs))
                value = watch.per(steps)
                expect(run.state["n"], steps)
        return value - 1.5 * bare

    return measure


def metered(steps: int) -> Round:
    """A step of a loop in SQLite that is counted, in multiples of one that is not: the best of nine pairs."""
    step, provider = stored_loop("runs.db", steps), MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)

    def counted() -> float:
        meters._METER_PROVIDER = provider
        try:
            return step()
        finally:
            meters._METER_PROVIDER = None

    def measure() -> float:
        pairs = [(step(), counted()) for _ in range(9)]
        return min(after for _, after in pairs) / min(before for before, _ in pairs)

    return measure


def chat() -> Graph:
    """One message a step."""

    def say(messages: list[Any]) -> dict[str, Any]:
        return {"messages": [said(len(messages))]}

    graph = Graph(Chat, inputs=["wanted"]).add_node(say, writes=["messages"]).add_edge(START, "say")
    return graph.add_conditional_edges(
        "say", lambda messages, wanted: "again" if len(messages) < wanted else "done", {"again": "say", "done": END}
    )


def message_bytes(messages: int, when: str) -> Round:
    """Bytes of a file after a message a step: closed in multiples of the final value, open in bytes above that."""
    final = len(json.dumps([said(i) for i in range(messages)], separators=(",", ":")))

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "runs.db")
            with open_store(path) as store:
                run = chat().compile(store=store, max_steps=messages + 1).thread("t").run({"wanted": messages})
                expect(len(run.state["messages"]), messages)
                opened = stored_bytes(path)
            closed = stored_bytes(path)
        return closed / final if when == "closed" else float(opened - closed)

    return measure


def idle_bytes(size: int, steps: int) -> Round:
    """Bytes of a file, in multiples of a text that no node touches."""
    text = "".join(said(i)["content"] for i in range(size // 68 + 1))[:size]

    def measure() -> float:
        watch = Watch()
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "runs.db")
            with open_store(path) as store:
                graph = looped(watch, steps, unread=["text"])
                run = graph.compile(store=store).thread("t").run({"n": 0, "text": text})
                expect(len(run.state["text"]), size)
            return stored_bytes(path) / size

    return measure


def idle_step(size: int, steps: int) -> Round:
    """The median step of a loop with a large text in the state, in multiples of one without."""
    times: list[float] = []

    def step(n: int) -> dict[str, int]:
        times.append(perf_counter())
        return {"n": n + 1}

    graph = Graph(inputs=["n", "text"], required=["n"], outputs=["n"]).add_node(step).add_edge(START, "step")
    graph.add_conditional_edges("step", lambda n: "step" if n < steps else END, ["step", END])

    def one(state: dict[str, str]) -> float:
        times.clear()
        with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "runs.db") as store:
            run = graph.compile(store=store).thread("t").run({"n": 0, **state})
            expect(run.state["n"], steps)
        return median(after - before for before, after in pairwise(times))

    def measure() -> float:
        without = median(one({}) for _ in range(5))
        return median(one({"text": "x" * size}) for _ in range(5)) / without

    return measure


class Listed(BaseModel):
    """Messages, known by their ids."""

    messages: Annotated[list[dict[str, str]], reducers.add_messages] = []


def keep() -> dict[str, Any]:
    """Changes nothing."""
    return {}


def fork_stored(items: int, forks: int) -> Round:
    """Bytes of a copy of a thread that changes one message of many."""
    first = [{**said(i), "id": str(i)} for i in range(items)]

    def measure() -> float:
        graph = Graph(Listed, inputs=["messages"]).add_node("keep", keep, writes=[]).add_path(START, "keep", END)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "runs.db")
            with open_store(path) as store:
                graph.compile(store=store).thread("t").run({"messages": first})
            before = stored_bytes(path)
            with open_store(path) as store:
                program = graph.compile(store=store)
                for fork in range(forks):
                    changed = {**said(-1), "id": str(items // 2)}
                    program.thread("t").copy(f"t{fork}").update({"messages": [changed]})
                expect(program.thread("t0").state["messages"][items // 2]["content"], said(-1)["content"])
                expect(len(program.thread("t0").state["messages"]), items)
            return (stored_bytes(path) - before) / forks

    return measure


def head(commits: int, what: str) -> Round:
    """Reading the state of a thread with a new connection."""
    folder = tempfile.mkdtemp()
    path = str(Path(folder) / "runs.db")
    inputs: dict[str, Any] = {"wanted": commits} if what == "messages" else {"n": 0, **filler(1_000)}
    graph = chat() if what == "messages" else looped(Watch(), commits, unread=[name for name in inputs if name != "n"])
    with open_store(path) as store:
        graph.compile(store=store, max_steps=commits + 1).thread("t").run(inputs)

    def measure() -> float:
        with open_store(path) as store:
            t = graph.compile(store=store).thread("t")
            return timed(
                lambda: t.state, 1, lambda state: expect(len(state[what]) if what != "n" else state[what], commits)
            )

    weakref.finalize(measure, shutil.rmtree, folder, ignore_errors=True)
    return measure


def archived(threads: int, what: str) -> Round:
    """What an archive needs for a list of threads, for a text that one of them has, or to sum up all runs.

    With a new connection; a run has three commits.
    """
    folder = tempfile.mkdtemp()
    path = str(Path(folder) / "runs.db")
    with open_store(path) as store:
        program = looped(Watch(), 2).compile(store=store)
        for number in range(threads):
            program.thread(f"t-{number}").run({"n": 0})

    def measure() -> float:
        with Archive(path) as archive:
            reads: dict[str, tuple[Callable[[], int], int]] = {
                "list": (lambda: len(archive.threads(limit=threads)), threads),
                "contains": (lambda: len(archive.runs(contains=f"T-{threads - 1}.", limit=threads)), 1),
                "overview": (lambda: archive.overview().runs, threads),
            }
            read, count = reads[what]
            return timed(read, 1, lambda found: expect(found, count))

    weakref.finalize(measure, shutil.rmtree, folder, ignore_errors=True)
    return measure


def recorded(commits: int, what: str) -> Round:
    """The record of a long run with a new connection, its JSON form without values, or it beside one with a step less.

    The comparison is of two records that were read before.
    """
    folder = tempfile.mkdtemp()
    path = str(Path(folder) / "runs.db")
    with open_store(path) as store:
        for name, steps in (("t", commits), ("shorter", commits - 1)):
            looped(Watch(), steps).compile(store=store, max_steps=commits + 1).thread(name).run({"n": 0})

    def measure() -> float:
        with Archive(path) as archive:
            if what == "read":
                return timed(archive.thread("t").record, 1, lambda record: expect(len(record.steps), commits + 1))
            record, shorter = archive.thread("t").record(), archive.thread("shorter").record()
            if what == "compare":
                return timed(
                    lambda: record.compare(shorter), 1, lambda both: expect(len(both.pairs), len(record.steps))
                )
            steps = {name: value for name, value in record.to_dict().items() if name != "values"}
            return float(len(gzip.compress(json.dumps(steps).encode())))

    weakref.finalize(measure, shutil.rmtree, folder, ignore_errors=True)
    return measure


INSPECTED = {
    "first page": ("record?thread=t",),
    "step": ("values?thread=t&id={value}",),
}
"""What the inspector's page asks for: to show a run, and to open a step."""


def inspected(commits: int, what: str) -> Round:
    """What a page of a long run waits for, of a new app without a server in front: the sum of its requests."""
    folder = tempfile.mkdtemp()
    path = str(Path(folder) / "runs.db")
    with open_store(path) as store:
        graph = looped(Watch(), commits, unread=list(filler(20)))
        graph.compile(store=store, max_steps=commits + 1).thread("t").run({"n": 0, **filler(20)})

    async def ask() -> float:
        headers = {"X-Dspyer-Token": "bench"}
        transport = httpx.ASGITransport(dspyer.inspector.app(path, token="bench"))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            known: dict[str, str] = {}
            if what != "first page":
                found = (await client.get("/api/record?thread=t")).json()
                known = {"value": found["items"][-1]["wrote"]["n"]["value"]}
            start = perf_counter()
            for name in INSPECTED[what]:
                response = await client.get(f"/api/{name.format(**known)}")
                expect(response.status_code, 200)
            return perf_counter() - start

    weakref.finalize(ask, shutil.rmtree, folder, ignore_errors=True)
    return lambda: asyncio.run(ask())


def _killed(path: str, steps: int, calls: Any) -> None:
    def step(n: int) -> dict[str, int]:
        calls.value += 1
        if n == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"n": n + 1}

    Graph().add_node(step).add_edge(START, "step").add_conditional_edges(
        "step", lambda n: "step" if n < 2 * steps else END, ["step", END]
    ).compile(store=path).thread("t").run({"n": 0})


def killed(steps: int) -> Round:
    """How many of the steps before a kill -9 are called again by `resume`."""

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path, fork = str(Path(folder) / "runs.db"), multiprocessing.get_context("fork")
            process = fork.Process(target=_killed, args=(path, steps, fork.Value("i", 0)))
            process.start()
            process.join()
            expect(process.exitcode, -signal.SIGKILL)
            calls: list[int] = []

            def step(n: int) -> dict[str, int]:
                calls.append(n)
                return {"n": n + 1}

            graph = Graph().add_node(step).add_edge(START, "step")
            graph.add_conditional_edges("step", lambda n: "step" if n < 2 * steps else END, ["step", END])
            with open_store(path) as store:
                expect(graph.compile(store=store).thread("t").resume().state["n"], 2 * steps)
            return float(len([n for n in calls if n < steps]))

    return measure


WORKS: dict[str, Work] = {
    "stored_loop": stored_loop,
    "message_bytes": message_bytes,
    "metered": metered,
    "idle_bytes": idle_bytes,
    "idle_step": idle_step,
    "fork_stored": fork_stored,
    "head": head,
    "archived": archived,
    "recorded": recorded,
    "inspected": inspected,
    "killed": killed,
}
