"""`optimize.cache` with agents, searches, and runs on threads: stored, resumed and replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph, agents, optimize, search
from dspyer.testing import ScriptedLM
from tests.agents.kit import turn
from tests.optimize.cached import Desk, caching, facts, own_steps

pytestmark = pytest.mark.usefixtures("no_dspy_cache")


def script() -> list[Any]:
    """A turn that looks, one whose output is refused, and one whose output is good."""
    return [
        turn(("look", {"place": "harbour"})),
        turn(("submit", {"answer": "bad"})),
        turn(("submit", {"answer": "good"})),
    ]


def is_good(answer: str) -> list[str]:
    return [] if answer == "good" else ["look again"]


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
def test_the_turns_of_an_agent_are_cached_and_its_tools_are_called(native: bool, tmp_path: Path) -> None:
    looked: list[str] = []

    def look(place: str) -> str:
        """Looks at a place."""
        looked.append(place)
        return f"at {place}"

    program = agents.tool_loop("question -> answer", [look], check=is_good).compile()
    adapter = dspy.ChatAdapter(use_native_function_calling=native)
    with dspy.context(adapter=adapter), ScriptedLM(script(), cache=True):
        plain = program.run({"question": "Where?"})
    with optimize.cache(tmp_path) as spared, dspy.context(adapter=adapter):
        with ScriptedLM(script(), cache=True):
            cold = program.run({"question": "Where?"})
        with ScriptedLM([], cache=True):
            warm = program.run({"question": "Where?"})
    assert facts(plain) == facts(cold) == facts(warm)
    assert own_steps(warm, program) == own_steps(plain, program)
    assert looked == ["harbour"] * 3
    assert not warm.usage
    (turns,) = [one for name, one in spared.to_dict().items() if one["lm_calls"]]
    assert turns == {"calls": 3, "spared": 3, "lm_calls": 3, "lm_spared": 3}


def longer(answer: str) -> float:
    return float(len(answer))


def test_trials_of_a_search_are_cached_each_under_its_number(tmp_path: Path) -> None:
    program = search.best_of(dspy.Predict("question -> answer"), 3, longer).compile()
    with caching() as lm:
        plain = program.run({"question": "Where?"})
    with optimize.cache(tmp_path), caching() as cold_lm:
        cold = program.run({"question": "Where?"})
    with optimize.cache(tmp_path), caching() as warm_lm:
        warm = program.run({"question": "Where?"})
    assert facts(plain) == facts(cold) == facts(warm)
    assert len(cold_lm.calls) == len(lm.calls) == 3
    assert not warm_lm.calls


def fragile(answer: str) -> dict[str, Any]:
    if BROKEN:
        raise ConnectionError("no line")
    return {"kind": answer.upper()}


BROKEN: list[bool] = []


def test_runs_on_threads_are_stored_resumed_and_replayed_with_hits(tmp_path: Path) -> None:
    graph = Graph(Desk, name="Stored", inputs=["question", "docs"])
    graph.add_map("notes", dspy.Predict("item -> note"), over="docs", item="item", into="notes")
    graph.add_node("answer", dspy.ChainOfThought("question, notes: list[str] -> answer"))
    graph.add_node("shout", fragile, writes=["kind"])
    program = graph.add_path(START, "notes", "answer", "shout", END).compile(store=str(tmp_path / "runs.db"))
    inputs = {"question": "Where?", "docs": ["a", "b"]}
    with caching() as lm:
        with optimize.cache(tmp_path / "tuning"):
            plain = program.thread("plain").run(inputs)
            BROKEN.append(True)
            failed = program.thread("failed").run(inputs)
        BROKEN.clear()
        assert (failed.status, [one.cached for one in failed.commits]) == ("failed", [False, True, True])
        resumed = program.thread("failed").resume()  # outside of the block: what it has committed is kept
    assert len(lm.calls) == 3
    assert (resumed.status, resumed.state.to_dict()) == ("completed", plain.state.to_dict())
    stored = [one.cached for one in program.thread("failed").history()]
    assert sorted(stored) == [False, False, True, True]
    with ScriptedLM([], cache=True), optimize.cache(tmp_path / "tuning"):
        again = program.thread("again").run(inputs)
    assert again.state.to_dict() == plain.state.to_dict()
    replayed = program.thread("again")
    assert replayed.state.to_dict() == plain.state.to_dict()
