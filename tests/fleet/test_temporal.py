"""The activity of `examples/temporal_activities.py`, in Temporal's own test environment: there is no server."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections import Counter
from typing import Any

import dspy
import pytest
from temporalio.testing import ActivityEnvironment

from dspyer import END, START, CompiledGraph, Graph
from tests.fleet.fleet import EXAMPLES


class Desk:
    """A program whose second node waits until it is let go, and fails once."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.inside, self.go = asyncio.Event(), asyncio.Event()
        self.errors: list[Exception] = [ConnectionError("down")]

    def read(self, number: int) -> dict[str, Any]:
        self.calls["read"] += 1
        return {"read": number}

    async def check(self, read: int) -> dict[str, Any]:
        self.calls["check"] += 1
        self.inside.set()
        await self.go.wait()
        if self.errors:
            raise self.errors.pop()
        return {"checked": read}

    def program(self) -> CompiledGraph:
        graph = Graph(inputs=["number"]).add_node("read", self.read, writes=["read"])
        graph.add_node("check", self.check, writes=["checked"])
        return graph.add_path(START, "read", "check", END).compile(store=":memory:")


@pytest.mark.anyio
async def test_a_cancelled_activity_stops_its_run_and_the_next_attempt_resumes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delitem(sys.modules, "temporal_activities", raising=False)
    activities: Any = importlib.import_module("temporal_activities")
    dspy.configure(lm=None)
    desk = Desk()
    activities.program = program = desk.program()
    activities.BEAT = 0
    beaten = asyncio.Event()

    def attempt(environment: ActivityEnvironment) -> asyncio.Task[str]:
        environment.on_heartbeat = lambda *_: beaten.set()
        return asyncio.create_task(environment.run(activities.advance, "t", "key", {"number": 1}))

    environment = ActivityEnvironment()
    first = attempt(environment)
    await desk.inside.wait()
    beaten.clear()
    await beaten.wait()  # while a node is at work
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert program.thread("t").status == "stopped"
    assert desk.calls == {"read": 1, "check": 1}
    desk.go.set()
    with pytest.raises(ConnectionError, match="down"):  # Temporal tries it again
        await attempt(ActivityEnvironment())
    for _ in range(2):  # also if the answer of an attempt has not reached the server
        assert await attempt(ActivityEnvironment()) == "completed"
    assert desk.calls == {"read": 1, "check": 3}
    beaten.clear()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not beaten.is_set(), "nothing beats after the end"
