"""The order in which the tools of a turn finish changes nothing: messages and requests are those of any other order."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import anyio.lowlevel
import dspy

from dspyer import agents
from tests.agents.parity import ADAPTERS
from tests.agents.recording import RecordingLM
from tests.agents.scripts import submit, turn
from tests.budget import deep

TAGS = ("a", "b", "c")


class Queue:
    """A tool whose calls finish in a given order, whichever starts first."""

    def __init__(self, order: Sequence[str]) -> None:
        self.before = dict(zip(order[1:], order, strict=False))
        self.done: list[str] = []
        self.changed = threading.Condition()

    def step(self, tag: str) -> str:
        """Waits for the one before."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.before.get(tag, tag) in (tag, *self.done), timeout=20)
            self.done.append(tag)
            self.changed.notify_all()
        return f"{tag} is done"

    async def astep(self, tag: str) -> str:
        """Waits for the one before."""
        while self.before.get(tag, tag) not in (tag, *self.done):
            await anyio.lowlevel.checkpoint()
        self.done.append(tag)
        return f"{tag} is done"


def talk(order: tuple[str, ...], mode: str, is_async: bool) -> tuple[Any, list[str]]:
    """The messages and the requests of a run whose three calls finish in an order."""
    queue = Queue(order)
    tool = dspy.Tool(queue.astep if is_async else queue.step, name="step")
    program = agents.tool_loop("question -> answer", tools=[tool]).compile()
    lm = RecordingLM([turn(*(("step", {"tag": tag}) for tag in TAGS)), submit()])
    with lm, dspy.context(adapter=ADAPTERS["chat, native"]()):
        run = program.run({"question": "q"}) if mode == "sync" else asyncio.run(program.arun({"question": "q"}))
    assert tuple(queue.done) == order
    run.raise_error()
    return run.state.to_dict()["messages"], lm.requests


def test_any_order_of_completion_gives_equal_messages_and_requests() -> None:
    """Also if a sync program calls async tools, and an async program sync ones."""
    messages, requests = first = talk(TAGS, "sync", is_async=False)
    called = [call["id"] for call in messages[1]["tool_calls"]]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"][:3] == called
    assert len(requests) == 2
    ways = list(itertools.product(("sync", "async"), (False, True)))
    for number, order in enumerate(itertools.permutations(TAGS)):
        for mode, is_async in ways if deep else ways[number % 2 :: 2]:
            assert talk(order, mode, is_async) == first, (order, mode, is_async)
