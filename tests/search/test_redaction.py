"""What a search holds of a field that `compile(redact=...)` hides is hidden too."""

from __future__ import annotations

import itertools
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph
from dspyer.events import Token
from dspyer.search import beam, best_of
from tests.rows import each
from tests.search.kit import RolloutLM, Step


@pytest.mark.parametrize("nested", [False, True])
@each(
    ("change", "redact"),
    itertools.product(
        [lambda n: f"{n}-secret", lambda n: {"key": None, "text": f"{n}-secret"}],
        ["n", lambda path, value: "***" if path == ("n",) else value],
    ),
)
def test_the_trials_of_a_search_hide_what_its_fields_hide(change: Any, redact: Any, nested: bool) -> None:
    graph = best_of(Step(change), 2, lambda n: 1.0, writes=["n"])
    if nested:
        graph = Graph(name="Outer", inputs=["n"]).add_node("search", graph, writes=["n"]).add_path(START, "search", END)
    program = graph.compile(redact=redact, store=":memory:")
    stream = program.thread("t").stream({"n": "secret"})
    events = list(stream)
    run = stream.run
    run.raise_error()
    assert "secret" in str(run.state["n"])
    texts = [str(run.record().to_dict()), run.report(), *[str(one.to_dict()) for one in (*events, *run.events)]]
    assert not [text for text in texts if "secret" in text]


def test_the_tokens_of_a_trial_are_those_of_the_field_that_gets_them() -> None:
    graph = beam(
        dspy.Predict("line -> next_line"),
        lambda line: 1.0,
        width=1,
        branch=2,
        depth=1,
        writes={"next_line": "line"},
    )
    program = graph.compile(redact="line")
    with dspy.context(lm=RolloutLM(lambda prompt, rollout: {"next_line": "secret"})):
        tokens = [event for event in program.stream({"line": "a"}, tokens=True) if isinstance(event, Token)]
    assert tokens
    assert "secret" not in repr(tokens)
