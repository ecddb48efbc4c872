"""An LM whose response depends on the rollout, and what it was asked."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import dspy

from dspyer import CompiledGraph, Graph, Run
from dspyer.dspy_module.lm_requests import _ROLLOUT
from dspyer.testing.prompt import Prompt, write_answer
from dspyer.testing.text_engine import Sampling, TextLM

MODES = ["sync", "async"]


class Asked(NamedTuple):
    """One request: its prompt, and how it was asked."""

    prompt: str
    rollout: int | None
    temperature: float


class RolloutWriter:
    """Answers by a function of the prompt and the rollout id, and notes what it was asked."""

    def __init__(self, answer: Callable[[Prompt, int], Any]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> RolloutWriter:
        return self  # all copies of the LM note in one place

    def write(self, prompt: Prompt, sampling: Sampling, /) -> str:
        with self._lock:
            text = "\n".join(turn.content for turn in prompt.turns)
            self.asked.append(Asked(text, sampling.rollout, sampling.temperature))
        answer = self.answer(prompt, sampling.rollout or 0)
        if isinstance(answer, BaseException):
            raise answer
        return write_answer(prompt, answer)


class RolloutLM(TextLM):
    """An LM of the test's own."""

    def __init__(self, answer: Callable[[Prompt, int], Any], model: str = "fake/rollouts", **kwargs: Any) -> None:
        self.writer = RolloutWriter(answer)
        super().__init__(model, self.writer, **kwargs)

    @property
    def asked(self) -> list[Asked]:
        return self.writer.asked

    @property
    def rollouts(self) -> list[int | None]:
        return [one.rollout for one in self.writer.asked]


def digest(*parts: object) -> int:
    """A number that looks random, and is the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "big")


def run(graph: Graph | CompiledGraph, inputs: dict[str, Any], mode: str = "sync", **options: Any) -> Run:
    program = graph.compile() if isinstance(graph, Graph) else graph
    return program.run(inputs, **options) if mode == "sync" else asyncio.run(program.arun(inputs, **options))


class Step(dspy.Module):
    """A module without an LM: calls a function of `n`."""

    def __init__(self, step: Callable[[Any], Any]) -> None:
        super().__init__()
        self.step = step

    def forward(self, n: Any) -> dspy.Prediction:
        return dspy.Prediction(n=self.step(n))


def rollout_here() -> int:
    """The rollout id that an LM would get here."""
    number: int = getattr(dspy.settings.adapter, _ROLLOUT).number
    return number


class Extend(dspy.Module):
    """Adds its rollout to a path, without an LM. Trials fail, end and are rated by a seed.

    Async calls end in an order of their own: each gives way to the others so many times.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.calls: list[str] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Extend:
        return self  # the program counts its calls here

    def forward(self, path: str) -> dspy.Prediction:
        return dspy.Prediction(path=self.extended(path, rollout_here()))

    async def aforward(self, path: str) -> dspy.Prediction:
        rollout = rollout_here()
        for _ in range(digest("turns", self.seed, rollout) % 9):
            await asyncio.sleep(0)
        return dspy.Prediction(path=self.extended(path, rollout))

    def extended(self, path: str, rollout: int) -> str:
        new = f"{path}/{rollout}"
        self.calls.append(new)
        if digest("fails", self.seed, new) % 7 == 0:
            raise ValueError(new)
        return new


class Rater:
    """Rates a path by a seed, and says whether it is a solution."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def reward(self, path: str) -> float:
        return digest("reward", self.seed, path) % 5 / 4

    def done(self, path: str) -> bool:
        return digest("done", self.seed, path) % 6 == 0
