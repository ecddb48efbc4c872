"""Hand-written programs of DSPy modules, with which graphs of the same modules are compared in one process."""

# mypy: allow-subclassing-any
# (DSPy has no type information)

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import dspy
from dspy.utils import DummyLM

from bench.peers.measure import Round, Work, expect, timed

PACKAGES = ["dspy"]
FOUR = {
    "ask": "question -> query",
    "find": "query -> findings",
    "audit": "findings -> risk",
    "answer": "findings, risk -> answer",
}
CHAIN = ("question -> query", "query -> findings", "findings -> answer")
ANSWER = {"query": "a query", "findings": "some findings", "answer": "an answer", "risk": "low", "reasoning": "because"}


def lm() -> Any:
    """An LM that answers everything at once, every field with the same text."""
    return DummyLM([ANSWER] * 10_000)


class Pair(dspy.Module):
    """Two predictors, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.ask, self.answer = dspy.Predict("question -> query"), dspy.Predict("query -> answer")

    def forward(self, question: str) -> Any:
        return dspy.Prediction(answer=self.answer(query=self.ask(question=question).query).answer)


class Four(dspy.Module):
    """Four predictors, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        for name, signature in FOUR.items():
            setattr(self, name, dspy.Predict(signature))

    def forward(self, question: str) -> Any:
        query = self.ask(question=question).query
        findings = self.find(query=query).findings
        risk = self.audit(findings=findings).risk
        return dspy.Prediction(answer=self.answer(findings=findings, risk=risk).answer)


class Chain(dspy.Module):
    """Three predictors, one after the other, in an async call."""

    def __init__(self) -> None:
        super().__init__()
        self.ask, self.find, self.answer = (dspy.Predict(signature) for signature in CHAIN)

    async def aforward(self, question: str) -> Any:
        query = (await self.ask.acall(question=question)).query
        findings = (await self.find.acall(query=query)).findings
        return dspy.Prediction(answer=(await self.answer.acall(findings=findings)).answer)


class Loop(dspy.Module):
    """One predictor, ten times."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        for _ in range(10):
            answer = self.ask(question=question).answer
        return dspy.Prediction(answer=answer)


class Fork(dspy.Module):
    """Two predictors that do not need each other."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")
        self.audit = dspy.Predict("question -> risk")

    def forward(self, question: str) -> Any:
        answer = self.answer(question=question).answer
        return dspy.Prediction(verdict=f"{answer}: {self.audit(question=question).risk}")

    async def aforward(self, question: str) -> Any:
        answer, audit = await asyncio.gather(self.answer.acall(question=question), self.audit.acall(question=question))
        return dspy.Prediction(verdict=f"{answer.answer}: {audit.risk}")


def called(program: Any, calls: int, output: str, wanted: str, mode: str = "sync") -> Round:
    """Times calls of a program, sync or async or by `run()`; seconds for each call."""

    def check(result: Any) -> None:
        expect(result[output], wanted)

    def sync() -> Any:
        for _ in range(calls):
            result = program(question="What?")
        return result

    def runs() -> Any:
        for _ in range(calls):
            run = program.run({"question": "What?"})
        return run.state

    async def on_loop() -> Any:
        for _ in range(calls):
            result = await program.acall(question="What?")
        return result

    def measure() -> float:
        work: Callable[[], Any] = {"sync": sync, "run": runs}.get(mode) or (lambda: asyncio.run(on_loop()))
        with dspy.context(lm=lm()):
            return timed(work, calls, check)

    return measure


def evaluated(program: Any, examples: int) -> Round:
    """`dspy.Evaluate` over examples whose LM calls cost nothing, as cached ones; seconds for each example."""
    devset = [
        dspy.Example(question=f"What is {i}?", answer="an answer").with_inputs("question") for i in range(examples)
    ]
    evaluate = dspy.Evaluate(devset=devset, metric=lambda one, found, *_: one.answer == found.answer, num_threads=1)

    def measure() -> float:
        with dspy.context(lm=DummyLM([ANSWER] * (4 * examples))):
            return timed(lambda: evaluate(program), examples, lambda result: expect(result.score, 100.0))

    return measure


def by_hand(module: type[Any], output: str, wanted: str, mode: str = "sync") -> Work:
    """The workload of a module."""
    return lambda calls: called(module(), calls, output, wanted, mode)


WORKS: dict[str, Work] = {
    "modules_pair_by_hand": by_hand(Pair, "answer", "an answer"),
    "modules_four_by_hand": by_hand(Four, "answer", "an answer"),
    "modules_evaluate_by_hand": lambda examples: evaluated(Four(), examples),
    "modules_chain_async_by_hand": by_hand(Chain, "answer", "an answer", "async"),
    "modules_loop_by_hand": by_hand(Loop, "answer", "an answer"),
    "modules_fork_by_hand": by_hand(Fork, "verdict", "an answer: low"),
    "modules_fork_async_by_hand": by_hand(Fork, "verdict", "an answer: low", "async"),
}
