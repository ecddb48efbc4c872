"""Modules that finish in an order that the test chooses, without a clock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import anyio.to_thread
import dspy

PATIENCE = 20.0  # seconds until a test that hangs fails


class Turns:
    """Lets named parts go one after another. One at a time is in use: what modules hold would be copied with them."""

    current: Turns

    def __init__(self, order: Sequence[str]) -> None:
        self.order = list(order)
        self.done = {name: threading.Event() for name in order}
        Turns.current = self

    def wait(self, name: str) -> None:
        place = self.order.index(name)
        if place and not self.done[self.order[place - 1]].wait(PATIENCE):
            raise TimeoutError(f"{name} waited in vain for {self.order[place - 1]}: do the branches run in parallel?")

    def finish(self, name: str) -> None:
        self.done[name].set()


class Gate(dspy.Module):
    """Runs its predictor when it is its turn."""

    def __init__(self, name: str, fails: bool = False) -> None:
        super().__init__()
        self.name = name
        self.fails = fails
        self.predict = dspy.Predict(f"question -> {name}")

    def forward(self, question: str) -> Any:
        Turns.current.wait(self.name)
        try:
            return self.outcome(self.predict(question=question))
        finally:
            Turns.current.finish(self.name)

    async def aforward(self, question: str) -> Any:
        await anyio.to_thread.run_sync(Turns.current.wait, self.name)
        try:
            return self.outcome(await self.predict.acall(question=question))
        finally:
            Turns.current.finish(self.name)

    def outcome(self, prediction: Any) -> Any:
        if self.fails:
            raise KeyError(f"{self.name} fails")
        return prediction
