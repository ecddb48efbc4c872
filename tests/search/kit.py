"""An LM whose response depends on the rollout, and what it was asked."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import dspy

from dspyer import CompiledGraph, Graph, Run
from dspyer.testing import Prompt, ScriptedLM

MODES = ["sync", "async"]


class Asked(NamedTuple):
    """One request: its prompt, and how it was asked."""

    prompt: str
    rollout: int | None
    temperature: float


ASKED: ContextVar[Asked] = ContextVar("asked")


def asked_here() -> Asked:
    """How the request is made that is answered here."""
    return ASKED.get()


class RolloutLM(ScriptedLM):
    """Answers by a function of the prompt and the rollout id, and notes what it and its copies were asked."""

    def __init__(self, answer: Callable[[Prompt, int], Any], model: str = "fake/rollouts", **kwargs: Any) -> None:
        self.asked: list[Asked] = []

        def answered(prompt: Prompt) -> Any:
            text = "\n".join(turn.content for turn in prompt.turns)
            here = ASKED.get()._replace(prompt=text)
            self.asked.append(here)
            return answer(prompt, here.rollout or 0)

        super().__init__(answered, model=model, **kwargs)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        token = ASKED.set(self.asking(kwargs))
        try:
            return super().__call__(prompt, messages=messages, **kwargs)
        finally:
            ASKED.reset(token)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        token = ASKED.set(self.asking(kwargs))
        try:
            return await super().acall(prompt, messages=messages, **kwargs)
        finally:
            ASKED.reset(token)

    def asking(self, kwargs: dict[str, Any]) -> Asked:
        settings = {**self.kwargs, **kwargs}
        return Asked("", settings.get("rollout_id"), settings.get("temperature") or 0.0)

    @property
    def rollouts(self) -> list[int | None]:
        return [one.rollout for one in self.asked]


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
    """The rollout id that an LM gets here."""
    with dspy.context(lm=TELLING, trace=[]):
        return int(WHICH(q="?").rollout)


WHICH = dspy.Predict("q -> rollout")
TELLING = RolloutLM(lambda prompt, rollout: {"rollout": str(rollout)})


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
