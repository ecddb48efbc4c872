"""LangGraph's workloads with its savers: in memory, and SQLite, with `durability="sync"` but for the kill."""

# mypy: disable-error-code="import-not-found,misc,no-any-return,untyped-decorator,operator"
# (langgraph is installed in an environment of its own, where mypy does not run)

from __future__ import annotations

import asyncio
import json
import multiprocessing
import operator
import os
import signal
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.peers.measure import Round, UnsupportedError, Watch, Work, expect, said, stored_bytes

PACKAGES = ["langgraph-checkpoint-sqlite"]
CONFIG: dict[str, Any] = {"configurable": {"thread_id": "t"}, "recursion_limit": 100_000}


class Counted(TypedDict, total=False):
    """A counter, and a text that nothing touches."""

    n: int
    text: str


def looped(watch: Watch, steps: int, mode: str = "sync") -> Any:
    """One trivial node in a loop."""

    def step(state: Counted) -> dict[str, int]:
        if state["n"] == 0:
            watch.start()
        return {"n": state["n"] + 1}

    async def astep(state: Counted) -> dict[str, int]:
        return step(state)

    graph = StateGraph(Counted)
    graph.add_node("step", step if mode == "sync" else astep)
    graph.add_edge(START, "step")
    graph.add_conditional_edges(
        "step", lambda state: "again" if state["n"] < steps else "done", {"again": "step", "done": END}
    )
    return graph


def stored_loop(store: str, steps: int, durability: str = "sync", mode: str = "sync") -> Round:
    """A step of a loop."""
    if durability != "sync":
        raise UnsupportedError("its SQLite saver has one way to commit")
    watch = Watch()
    graph = looped(watch, steps, mode)

    async def arun(path: str) -> Any:
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            return await graph.compile(checkpointer=saver).ainvoke({"n": 0}, CONFIG, durability="sync")

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / store)
            if store == ":memory:":
                result = graph.compile(checkpointer=InMemorySaver()).invoke({"n": 0}, CONFIG, durability="sync")
            elif mode == "async":
                result = asyncio.run(arun(path))
            else:
                with SqliteSaver.from_conn_string(path) as saver:
                    result = graph.compile(checkpointer=saver).invoke({"n": 0}, CONFIG, durability="sync")
            value = watch.per(steps)
        expect(result["n"], steps)
        return value

    return measure


class Chat(TypedDict):
    """Messages."""

    messages: Annotated[list[dict[str, str]], operator.add]


def message_bytes(messages: int, when: str) -> Round:
    """Bytes of a file after a message a step: closed in multiples of the final value, open in bytes above that."""
    final = len(json.dumps([said(i) for i in range(messages)], separators=(",", ":")))
    graph = StateGraph(Chat)
    graph.add_node("say", lambda state: {"messages": [said(len(state["messages"]))]})
    graph.add_edge(START, "say")
    graph.add_conditional_edges(
        "say",
        lambda state: "again" if len(state["messages"]) < messages else "done",
        {"again": "say", "done": END},
    )

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "runs.db")
            with SqliteSaver.from_conn_string(path) as saver:
                program = graph.compile(checkpointer=saver)
                expect(len(program.invoke({"messages": []}, CONFIG, durability="sync")["messages"]), messages)
                opened = stored_bytes(path)
            closed = stored_bytes(path)
        return closed / final if when == "closed" else float(opened - closed)

    return measure


def idle_bytes(size: int, steps: int) -> Round:
    """Bytes of a file, in multiples of a text that no node touches."""
    text = "".join(said(i)["content"] for i in range(size // 68 + 1))[:size]

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "runs.db")
            with SqliteSaver.from_conn_string(path) as saver:
                program = looped(Watch(), steps).compile(checkpointer=saver)
                expect(program.invoke({"n": 0, "text": text}, CONFIG, durability="sync")["n"], steps)
            return stored_bytes(path) / size

    return measure


def fork_stored(items: int, forks: int) -> Round:
    """Bytes of a fork of a thread that changes one message of many."""
    first = [said(i) for i in range(items)]
    graph = StateGraph(TypedDict("Listed", {"messages": list}))
    graph.add_node("keep", lambda state: {})
    graph.add_edge(START, "keep")
    graph.add_edge("keep", END)

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "runs.db")
            with SqliteSaver.from_conn_string(path) as saver:
                graph.compile(checkpointer=saver).invoke({"messages": first}, CONFIG, durability="sync")
            before = stored_bytes(path)
            changed = [*first[: items // 2], said(-1), *first[items // 2 + 1 :]]
            with SqliteSaver.from_conn_string(path) as saver:
                program = graph.compile(checkpointer=saver)
                where = program.get_state(CONFIG).config
                for _ in range(forks):
                    forked = program.update_state(where, {"messages": changed})
                expect(program.get_state(forked).values["messages"], changed)
            return (stored_bytes(path) - before) / forks

    return measure


def _killed(path: str, steps: int) -> None:
    def step(state: Counted) -> dict[str, int]:
        if state["n"] == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"n": state["n"] + 1}

    graph = StateGraph(Counted)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: "step" if state["n"] < 2 * steps else END, ["step", END])
    with SqliteSaver.from_conn_string(path) as saver:
        graph.compile(checkpointer=saver).invoke({"n": 0}, CONFIG)


def killed(steps: int) -> Round:
    """How many of the steps before a kill -9 are lost, with the default durability."""

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "runs.db")
            process = multiprocessing.get_context("fork").Process(target=_killed, args=(path, steps))
            process.start()
            process.join()
            expect(process.exitcode, -signal.SIGKILL)
            with SqliteSaver.from_conn_string(path) as saver:
                kept = looped(Watch(), steps).compile(checkpointer=saver).get_state(CONFIG).values.get("n", 0)
            return float(steps - kept)

    return measure


WORKS: dict[str, Work] = {
    "stored_loop": stored_loop,
    "message_bytes": message_bytes,
    "idle_bytes": idle_bytes,
    "fork_stored": fork_stored,
    "killed": killed,
}
