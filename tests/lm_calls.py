"""One call of a predictor in three ways: sync, async and streamed. For tests that must hold for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dspy

QA = "question -> answer"
ANSWER = "[[ ## answer ## ]]\none two three\n\n[[ ## completed ## ]]"


@dataclass
class Outcome:
    """What a call gave: its prediction or its exception, the tokens that were shown, the usage that was counted."""

    prediction: Any = None
    error: BaseException | None = None
    tokens: list[str] = field(default_factory=list)
    usage: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def answer(self) -> str | None:
        return None if self.prediction is None else self.prediction.answer

    @property
    def total_tokens(self) -> dict[str, int]:
        """By model."""
        return {name: sum(one["total_tokens"] for one in entries) for name, entries in self.usage.items()}


def call_sync(lm: Any, question: str = "a question") -> Outcome:
    return _outcome(lm, lambda outcome: setattr(outcome, "prediction", dspy.Predict(QA)(question=question)))


def call_async(lm: Any, question: str = "a question") -> Outcome:
    async def call(outcome: Outcome) -> None:
        try:
            outcome.prediction = await dspy.Predict(QA).acall(question=question)
        finally:
            await lm.aclose()

    return _outcome(lm, lambda outcome: asyncio.run(call(outcome)))


def call_streamed(lm: Any, question: str = "a question") -> Outcome:
    return _streamed(lm, question, is_async=False)


def call_streamed_async(lm: Any, question: str = "a question") -> Outcome:
    return _streamed(lm, question, is_async=True)


CALLS: list[Callable[..., Outcome]] = [call_sync, call_async, call_streamed, call_streamed_async]


def _streamed(lm: Any, question: str, is_async: bool) -> Outcome:
    async def collect(outcome: Outcome) -> None:
        program = dspy.streamify(dspy.Predict(QA), is_async_program=is_async)  # without listeners: every raw chunk
        try:
            async for item in program(question=question):
                if isinstance(item, dspy.Prediction):
                    outcome.prediction = item
                elif text := item["choices"][0]["delta"]["content"]:
                    outcome.tokens.append(text)
        finally:
            await lm.aclose()

    return _outcome(lm, lambda outcome: asyncio.run(collect(outcome)))


def _outcome(lm: Any, work: Callable[[Outcome], object]) -> Outcome:
    outcome = Outcome()
    with dspy.context(lm=lm), dspy.track_usage() as usage:
        try:
            work(outcome)
        except BaseException as error:  # noqa: BLE001 - the tests look at it
            outcome.error = _first(error)
    outcome.usage = {name: entries for name, entries in usage.usage_data.items() if entries}
    return outcome


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
