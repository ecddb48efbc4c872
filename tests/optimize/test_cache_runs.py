"""`optimize.cache` with agents, searches, and runs on threads: stored, resumed and replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from dspyer import END, START, Graph, agents, optimize, search
from dspyer.testing import ScriptedLM
from tests.agents.kit import turn
from tests.optimize.cached import Desk, caching, facts, look, own_steps
from tests.runtime.conftest import PLAYS, Play

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


def ordering(**options: Any) -> Graph:
    return Graph(Desk, name="Ordering", inputs=["question"]).add_node(
        "answer", dspy.ReAct("question -> answer", tools=[look], max_iters=1), writes=["answer"], **options
    )


def as_a_node(**options: Any) -> Any:
    graph = ordering(**options)
    after = dspy.Predict("answer -> next: Literal['stop', 'end']")
    graph.add_conditional_edges("answer", after, {"stop": END, "end": END})
    return graph.add_edge(START, "answer").compile()


def with_a_check(**options: Any) -> Any:
    graph = ordering(retry=2, **options)
    graph.add_check("good", lambda answer: ["again"], of="answer", max_fixes=1, accept=True)
    return graph.add_edge(START, "answer").add_edge("answer", END).compile()


def as_a_graph(**options: Any) -> Any:
    inner = ordering().add_path(START, "answer", END)
    graph = Graph(Desk, name="Outer", inputs=["question"]).add_node("inner", inner, **options)
    return graph.add_path(START, "inner", END).compile()


def in_a_function(**options: Any) -> Any:
    def answer(question: str, ask: Any) -> dict[str, Any]:
        return {"answer": ask(question=question).answer}

    graph = Graph(Desk, name="Outer", inputs=["question"])
    agent = ordering().add_path(START, "answer", END).compile()
    graph.add_node("answer", answer, modules={"ask": agent}, writes=["answer"], **options)
    return graph.add_path(START, "answer", END).compile()


@pytest.mark.parametrize("make", [as_a_node, with_a_check, as_a_graph, in_a_function], ids=lambda make: make.__name__)
@pytest.mark.parametrize("play", PLAYS.values(), ids=list(PLAYS))
def test_a_node_with_cache_false_is_called_each_time(make: Any, play: Play, tmp_path: Path) -> None:
    with caching() as lm:
        play(make(), {"question": "Where?"})
    each = len(lm.calls)
    for options, expected in (({}, each), ({"cache": False}, 3 * each), ({"cache": None}, 0)):
        program = make(**options)
        with caching() as lm, optimize.cache(tmp_path):
            runs = [play(program, {"question": "Where?"}) for _ in range(3)]
        assert {run.status for run in runs} == {"completed"}
        assert len(lm.calls) == expected
        if options.get("cache") is False:
            assert not any(commit.cached for run in runs for commit in run.commits)
            assert len({repr(facts(run)) for run in runs}) == 1
