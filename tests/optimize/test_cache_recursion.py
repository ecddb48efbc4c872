"""What is called for a key of `optimize.cache` may call its own program again, with the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph, optimize
from tests.optimize.cached import caching
from tests.runtime.conftest import PLAYS, Play


class Twice(dspy.Module):
    """Calls the program that it is in once more, which nothing in its key shows."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        if not dspy.settings.get("_deeper"):
            with dspy.context(_deeper=True):
                dspy.settings._again(question=question)
        return self.ask(question=question)


def directly(program: Any) -> Any:
    return program


def in_threads(program: Any) -> Callable[..., Any]:
    return lambda **inputs: dspy.Parallel(num_threads=2, disable_progress_bar=True)([(program, inputs)] * 2)


@pytest.mark.parametrize("play", PLAYS.values(), ids=list(PLAYS))
@pytest.mark.parametrize("way", [directly, in_threads], ids=lambda way: way.__name__)
def test_a_module_that_calls_its_own_program_does_not_wait_for_itself(
    play: Play, way: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = Graph(name="Twice").add_node("answer", Twice(), writes=["answer"])
    program = graph.add_path(START, "answer", END).compile()
    with dspy.context(_again=way(program)), caching(), optimize.cache(tmp_path):
        assert play(program, {"question": "Where?"}).status == "completed"
    assert "uses" not in caplog.text  # it has a key
