"""Turns of an agent whose LM takes no time, compared with `dspy.ReActV2`, and what they cost on disk."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import dspy

from bench.peers.measure import Round, Work, expect, stored_bytes, timed
from dspyer import agents
from dspyer.state import ImmutableState
from dspyer.stores import open_store
from dspyer.testing import ScriptedLM

PACKAGES = ["dspyer", "dspy"]


def look_up(word: str) -> str:
    """Looks a word up."""
    return word


def lm(turns: int, size: int) -> Any:
    """An LM that calls a tool in every turn but the last, with an argument of so many bytes, and then submits."""

    def text(call: dict[str, Any]) -> str:
        calls = json.dumps({"tool_calls": [call]})
        return f"[[ ## next_thought ## ]]\nso\n\n[[ ## tool_calls ## ]]\n{calls}\n\n[[ ## completed ## ]]"

    calls = text({"name": "look_up", "args": {"word": "w" * size}})
    submits = text({"name": "submit", "args": {"answer": "done"}})
    count = 0

    def answer(_prompt: object) -> str:
        nonlocal count
        count += 1
        return submits if count % turns == 0 else calls

    return ScriptedLM(answer)


def agent_turns(turns: int, by_hand: bool) -> Round:
    """Seconds of a turn."""
    program: Any
    if by_hand:
        program = dspy.ReActV2("question -> answer", [look_up], max_iters=turns)
    else:
        program = agents.tool_loop("question -> answer", [look_up], max_turns=turns).compile(max_steps=4 * turns + 10)

    def measure() -> float:
        with lm(turns, 200):
            return timed(lambda: program(question="What?"), turns, lambda result: expect(result.answer, "done"))

    return measure


def agent_bytes(turns: int, size: int) -> Round:
    """The bytes of a file after a run of so many turns, in multiples of its final state."""
    graph = agents.tool_loop("question -> answer", [look_up], max_turns=turns)

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "runs.db")
            with open_store(path) as store, lm(turns, size):
                run = graph.compile(store=store, max_steps=4 * turns + 10).thread("t").run({"question": "What?"})
                expect(run.state["answer"], "done")
            final = ImmutableState.to_json(run.state)
            return stored_bytes(path) / len(final)

    return measure


WORKS: dict[str, Work] = {"agent_turns": agent_turns, "agent_bytes": agent_bytes}
