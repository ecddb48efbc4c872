"""Trials of a search: what a late one costs, what one stores, and how long a round of them takes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import dspy

from bench.peers.measure import Round, Work, expect, stored_bytes, timed
from dspyer import search
from dspyer.stores import open_store
from dspyer.testing import ScriptedLM

PACKAGES = ["dspyer", "dspy"]


class Add(dspy.Module):  # type: ignore[misc]  # DSPy is untyped
    """A step without an LM."""

    def forward(self, n: int) -> dspy.Prediction:
        return dspy.Prediction(n=n + 1)


def tree(trials: int) -> Any:
    """A tree search of so many trials, one per round."""
    options: dict[str, Any] = {"branch": 4, "depth": 8, "max_trials": trials, "writes": ["n"]}
    return search.mcts(Add(), lambda n: n % 7 / 7, done=lambda n: False, **options)


def late_trial(trials: int) -> Round:
    """Seconds of `choose` and `grow` for a trial, of the last tenth of them."""
    program = tree(trials).compile()

    def measure() -> float:
        run = program.run({"n": 0})
        expect(len(run.state["tree"]), trials)
        last = max(trials // 10, 1)
        return sum(
            float(sum([commit.duration for commit in run.commits if commit.node == node][-last:])) / last
            for node in ("choose", "grow")
        )

    return measure


def trial_bytes(trials: int, text: int) -> Round:
    """Bytes in a file of a trial whose state has a text that it does not change."""

    def size(count: int) -> int:
        graph = search.tree(Add(), lambda n, text: n, tree_of(count), writes=["n"])
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "runs.db")
            with open_store(path) as store:
                run = graph.compile(store=store).thread("t").run({"n": 0, "text": "x" * text})
                expect(len(run.state["tree"]), count)
            return stored_bytes(path)

    def tree_of(count: int) -> Any:
        return lambda found: [] if len(found) == count else [("0", len(found))]

    def measure() -> float:
        return (size(3 * trials) - size(trials)) / (2 * trials)

    return measure


def round_of_trials(trials: int, seconds: float, by_hand: bool) -> Round:
    """Seconds of so many trials of one LM call each, made at once; by hand, one after the other."""
    module = dspy.Predict("question -> answer")
    program: Any = search.best_of(module, trials, lambda answer: 0.0, per_round=trials).compile()
    if by_hand:
        program = dspy.BestOfN(module, trials, lambda args, found: 0.0, 1.0)

    def answer(_prompt: object) -> dict[str, str]:
        time.sleep(seconds)
        return {"answer": "so"}

    def measure() -> float:
        with ScriptedLM(answer):
            return timed(lambda: program(question="Why?"), check=lambda result: expect(result.answer, "so"))

    return measure


WORKS: dict[str, Work] = {"late_trial": late_trial, "trial_bytes": trial_bytes, "round_of_trials": round_of_trials}
