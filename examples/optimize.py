"""The same graph under three optimizers: scores before and after on held-out tickets, saved and loaded again.

python examples/optimize.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/optimize.py   # with a real model: some 3,000 calls
"""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import dspy
from model import language_model
from triage import desk, inbox, line, tickets

TRAIN, DEV, TEST = 144, 24, 96
CANDIDATES, TRIALS = 4, 6


def score(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> float | bool:
    """Half a point each for category and urgency; a demonstration must have both right."""
    right = [prediction.category == example.category, prediction.urgency == example.urgency]
    return all(right) if trace is not None else sum(right) / 2


def optimizers() -> dict[str, Any]:
    """Return functions that tune a program, by the name of the optimizer."""
    train, dev = tickets("train")[:TRAIN], tickets("dev")[:DEV]
    few = dspy.BootstrapFewShot(metric=score, max_bootstrapped_demos=8, max_labeled_demos=64)
    search = dspy.BootstrapFewShotWithRandomSearch(
        metric=score, max_bootstrapped_demos=4, max_labeled_demos=48, num_candidate_programs=CANDIDATES, num_threads=4
    )
    mipro = dspy.MIPROv2(
        metric=score,
        auto=None,
        num_candidates=CANDIDATES,
        max_bootstrapped_demos=4,
        max_labeled_demos=48,
        seed=7,
        num_threads=4,
        verbose=False,
    )
    return {
        "BootstrapFewShot": lambda program: few.compile(program, trainset=train),
        "BootstrapFewShotWithRandomSearch": lambda program: search.compile(program, trainset=train, valset=dev),
        "MIPROv2": lambda program: mipro.compile(
            program, trainset=train, valset=dev, num_trials=TRIALS, minibatch=False, requires_permission_to_run=False
        ),
    }


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the optimizers, which print and log a page each; only the scores matter here."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def main() -> None:
    lm = language_model()
    dspy.configure(lm=lm)
    held_out = tickets("test")[:TEST]
    evaluate = dspy.Evaluate(devset=held_out, metric=score, num_threads=4, display_progress=False)
    program = desk()
    with quietly():
        before = evaluate(program).score
    print(f"\nTuning the desk with {lm.model}: {TRAIN} tickets to learn from, {TEST} held out\n")
    print(f"  {'as written':<34} {before:5.1f} %")
    best, best_score, best_name = program, before, "as written"
    with quietly():
        tuners = optimizers()
    for name, tune in tuners.items():
        with quietly():
            tuned = tune(desk())
            after = evaluate(tuned).score
        demos = {node: len(predictor.demos) for node, predictor in tuned.named_predictors()}
        print(f"  {name:<34} {after:5.1f} %   demonstrations: {demos}")
        if after > best_score:
            best, best_score, best_name = tuned, after, name

    print(f"\n  {'the tickets of quickstart.py, held out too':<46}  {'as written':<30}{best_name}")
    with quietly():
        lines = [line(ticket, *(one.run(ticket.inputs().toDict()) for one in (program, best))) for ticket in inbox()]
    print("\n".join(lines))

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "desk.json"
        best.save(file)
        loaded = desk()
        loaded.load(file)
        with quietly():
            again = evaluate(loaded).score
        print(f"\n  the best, saved ({file.stat().st_size:,} bytes) and loaded into a new graph: {again:.1f} %")


if __name__ == "__main__":
    main()
