"""Live fields: 50 agents, 5,000 posts, no store. `python -m bench.live` prints what one post costs.

Each agent posts 100 times and reads what all others have posted, so that there are 245,000 deliveries too.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, live, reducers

AGENTS, POSTS = 50, 100


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


if __name__ == "__main__":
    main()
