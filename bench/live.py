"""Live fields: 50 agents, 5,000 posts, no store. `python -m bench.live` prints what one post costs.

Each agent posts 100 times and reads what all others have posted, so that there are 245,000 deliveries too. And
messages to a thread in SQLite, alone and beside a run that works, with a row written by hand as the rival.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, agents, live, reducers
from dspyer.testing import ScriptedLM

AGENTS, POSTS = 50, 100
MESSAGES = 300


class Pad(BaseModel):
    """What the agents share."""

    notes: Annotated[list[str], reducers.append, live] = []


def team(listening: bool, asynchronous: bool) -> tuple[CompiledGraph, list[list[int]], list[float]]:
    """The program, what each agent received, and how long each took to post."""
    received: list[list[int]] = []
    took: list[float] = []

    def post(ctx: Context) -> None:
        began = time.perf_counter()
        for number in range(POSTS):
            ctx.post("notes", f"{ctx.node} {number}")
        took.append(time.perf_counter() - began)

    def agent(ctx: Context) -> None:
        post(ctx)
        if listening:
            received.append([note.seq for note in ctx.live("notes")])

    async def aagent(ctx: Context) -> None:
        post(ctx)
        if listening:
            received.append([note.seq async for note in ctx.live("notes")])

    graph = Graph(Pad)
    names = [f"a{number}" for number in range(AGENTS)]
    for name in names:
        graph.add_node(name, aagent if asynchronous else agent, writes=["notes"])
    return graph.add_edge(START, names).add_edge(names, END).compile(), received, took


def measure(listening: bool, asynchronous: bool) -> tuple[float, float]:
    """Seconds for a whole run, and for its posts where they are made one after the other."""
    program, received, took = team(listening, asynchronous)
    began = time.perf_counter()
    run = asyncio.run(program.arun({})) if asynchronous else program.run({})
    seconds = time.perf_counter() - began
    run.raise_error()
    seqs = sorted(seq for commit in run.commits if commit.live for seq in commit.live.posts["notes"])
    assert seqs == list(range(1, AGENTS * POSTS + 1)), "a post was lost"
    assert len(run.state["notes"]) == AGENTS * POSTS
    assert all(len(one) == (AGENTS - 1) * POSTS and one == sorted(one) for one in received), (
        "the agents received different orders"
    )
    return seconds, sum(took)


def agent(folder: str) -> Any:
    """An agent that submits at once, stored in SQLite."""
    submit = {"next_thought": "", "tool_calls": {"tool_calls": [{"name": "submit", "args": {"answer": "4"}}]}}
    lm = ScriptedLM(lambda prompt: submit)
    return agents.tool_loop("question -> answer", [], lm=lm).compile(store=str(Path(folder) / "runs.db"))


def work(given: Any, begun: Any, over: Any) -> None:
    """Runs a program, or the one of a folder, again and again on another thread of the store, without a pause."""
    program = agent(given) if isinstance(given, str) else given
    while not over.is_set():
        program.thread("other").run({"question": "Why?"})
        begun.set()


@contextmanager
def working(program: Any, folder: str, where: str) -> Iterator[None]:
    """A block beside which a run works: in another process, of the same program in this one, or nowhere."""
    context = multiprocessing.get_context("spawn")
    event: Any = threading.Event if where == "in this process" else context.Event
    begun, over = event(), event()
    make: Any = threading.Thread if where == "in this process" else context.Process
    worker = make(target=work, args=(program if where == "in this process" else folder, begun, over))
    if where:
        worker.start()
        begun.wait()
    try:
        yield
    finally:
        over.set()
        if where:
            worker.join()


def by_hand_in(folder: str) -> Callable[[str], object]:
    """Writes a text as a row of its own to a file of the same kind."""
    connection = sqlite3.connect(Path(folder) / "rows.db", isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("create table rows (text)")
    return lambda text: connection.execute("insert into rows values (?)", (text,))


def milliseconds(act: Callable[[str], object]) -> float:
    """The median of what one message takes."""
    took = []
    for number in range(MESSAGES):
        began = time.perf_counter()
        act(f"message {number}")
        took.append(time.perf_counter() - began)
    return 1000 * median(took)


def messages() -> None:
    """Prints what `thread.send` takes, and a row that is written by hand to the same kind of file."""
    for where in ("", "in another process", "in this process"):
        with TemporaryDirectory() as folder:
            program = agent(folder)
            program.thread("t").run({"question": "What?"})
            with working(program, folder, where):
                sent, row = milliseconds(program.thread("t").send), milliseconds(by_hand_in(folder))
        beside = f"beside a run {where}" if where else "alone"
        print(f"  {beside:<32} send {sent:5.2f} ms, a row by hand {row:5.2f} ms ({sent / row:.1f} x)")


def main() -> None:
    """Prints the best of three for both drivers."""
    print(f"{AGENTS} live agents, {AGENTS * POSTS:,} posts, no store; the whole run, microseconds for each post")
    for asynchronous in (False, True):
        for listening in (False, True):
            seconds, posting = min(measure(listening, asynchronous) for _ in range(3))
            what = "all hear all" if listening else "posts alone"
            each = 1e6 / (AGENTS * POSTS)
            alone = f", ctx.post itself {posting * each:.1f}" if asynchronous else ""
            print(f"  {'tasks' if asynchronous else 'threads':<8} {what:<13} {seconds * each:6.1f}{alone}")
    print(f"{MESSAGES} messages to a thread in SQLite, the median of one")
    messages()


if __name__ == "__main__":
    main()
