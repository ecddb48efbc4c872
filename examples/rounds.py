"""Three research agents over thirty rounds: each reads only what is new to it, and the tokens show what that saves.

python examples/rounds.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/rounds.py   # with a real model, three rounds
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any

import dspy
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, View, reducers, view
from dspyer.testing import ScriptedLM

MODEL = os.environ.get("DSPYER_MODEL")
ROUNDS = 3 if MODEL else 30
WORDS = "the flood tide runs stronger than the ebb where the bay is shallow and wide, as the gauges show; "

Read = Callable[[str], str | View]  # what an agent reads of a field of another agent


class Team(BaseModel):
    """The findings of the team."""

    topic: str
    findings: Annotated[list[str], reducers.extend] = []
    analysis: Annotated[list[str], reducers.append] = []
    report: str = ""


def new(field: str) -> View:
    """Return a view of the entries that are new since the node last ran."""
    return view(field).new()


def whole(field: str) -> str:
    """Return the name of the field: the node reads the whole of it."""
    return field


def team(read: Read) -> CompiledGraph:
    """Build the graph: `read` decides how much the agents read of each other's fields."""
    graph = Graph(Team)
    graph.add_node(
        "researcher",
        dspy.Predict("topic, analysis: list[str] -> findings: list[str]"),
        reads={"topic": "topic", "analysis": read("analysis")},
    )
    graph.add_node("analyst", dspy.Predict("findings: list[str] -> analysis"), reads={"findings": read("findings")})
    graph.add_node(
        "writer",
        dspy.Predict("draft, findings: list[str], analysis: list[str] -> report"),
        reads={"draft": "report", "findings": read("findings"), "analysis": read("analysis")},
    )
    graph.add_path(START, "researcher", "analyst", "writer")

    def next_round(ctx: Context) -> str:
        return "again" if ctx.visit < ROUNDS else "done"

    return graph.add_conditional_edges("writer", next_round, {"again": "researcher", "done": END}).compile()


class Offline:
    """A model that writes entries of about 150 tokens, and counts the tokens that it was sent."""

    def __init__(self) -> None:
        self.sent = 0
        self.asked = 0

    def answer(self, prompt: Any) -> dict[str, Any]:
        """Return an entry or a report, whichever field the prompt asks for."""
        self.sent += sum(len(turn.content.encode()) // 4 for turn in prompt.turns)
        self.asked += 1
        entry = f"{self.asked}: {WORDS * 6}"[:600]
        asked = {field.name for field in prompt.output_fields}
        answers = {"findings": [entry], "analysis": entry, "report": f"Report of {self.asked // 3} rounds."}
        return {name: answer for name, answer in answers.items() if name in asked}


def main() -> None:
    """Run the team twice: with views, and with whole fields."""
    prompts: list[int] = []
    for title, read in (("with views", new), ("with whole fields", whole)):
        offline = Offline()
        model: AbstractContextManager[Any] = dspy.context(lm=dspy.LM(MODEL)) if MODEL else ScriptedLM(offline.answer)
        with model:
            run = team(read).run({"topic": "tides"})
        run.raise_error()
        prompts.append(offline.sent)
        print(f"{title}\n{run.view_tokens()}\n")
    if not MODEL:
        print(f"whole prompts: {prompts[0]:,} tokens with views, {prompts[1]:,} with whole fields")
        print(f"that is {100 * prompts[0] / prompts[1]:.1f} %")


if __name__ == "__main__":
    main()
