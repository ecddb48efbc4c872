"""Counts, durations and costs as texts, where reports, timelines and figures show them."""

from __future__ import annotations

from dataclasses import replace

import dspy

from dspyer import END, START, Budget, Graph, Run
from dspyer.testing import ScriptedLM
from tests.rows import each


def lasting(seconds: float, commits: int = 2) -> Run:
    """A run of one node, which took so long, with some commits more."""
    run = Graph().add_node("add", lambda n: {"n": n}, writes=["n"]).add_path(START, "add", END).compile().run({"n": 1})
    record = run.record()
    first, last = record.steps
    more = [replace(first, id=f"trunk:{at}") for at in range(2, commits)]
    last = replace(last, seconds=seconds)
    run.record = lambda: replace(record, steps=(first, *more, last))  # type: ignore[method-assign]
    return run


@each(
    ("seconds", "text"),
    [
        (1e-9, "0 µs"),
        (-0.1, "0 µs"),
        (0.00099, "990 µs"),
        (0.0009997, "1 ms"),
        (0.05, "50 ms"),
        (0.9996, "1.0 s"),
        (59.96, "1 min 0 s"),
        (3599.7, "1 h 0 min"),
        (90_000.0, "25 h 0 min"),
    ],
)
def test_durations_have_a_fitting_unit(seconds: float, text: str) -> None:
    assert f"add → END  (step 1, {text})" in lasting(seconds).report()


@each(
    ("cost", "text"),
    [
        (1e-7, "<0.000001"),
        (0.0000512, "0.000051"),
        (0.000123, "0.000123"),
        (0.5, "0.5"),
        (1234.5, "1,234.50"),
    ],
)
def test_a_small_cost_is_not_shown_as_none(cost: float, text: str) -> None:
    tokens, table = 1, list[str]()
    for price in (0.0, cost):
        budget = Budget(cost=1e9, prices={"scripted": (price * 1e6 / tokens,) * 2})
        graph = Graph().add_node("say", dspy.Predict("question -> answer")).add_path(START, "say", END)
        with ScriptedLM([{"answer": "The moon."}]):
            run = graph.compile(budget=budget).run({"question": "Why?"})
        tokens = sum(call.tokens for call in run.lm_calls)
        table = str(run.stats()).splitlines()
        assert ("USD" in table[0]) == (price > 0)
    assert table[1].endswith(f"  {text}")


def test_counts_have_their_plural() -> None:
    assert "graph 'Graph', 2 commits, 1 node call\n" in lasting(1.0).report()
    assert "graph 'Graph', 1,000 commits, " in lasting(1.0, commits=1000).report()
