"""`python -m bench.views`: what views send to three agents over thirty rounds, against whole fields, in tokens.

Nothing here is a time. The tokens are those of the fixed estimate, so that the figures are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import dspy
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, View, reducers, view
from dspyer.testing import ScriptedLM
from dspyer.views import estimate_tokens


class Team(BaseModel):
    topic: str
    findings: Annotated[list[str], reducers.extend] = []
    analysis: Annotated[list[str], reducers.append] = []
    report: str = ""


class Saving(NamedTuple):
    """What one size of items comes to.

    Attributes:
        item: tokens of an item.
        sent: tokens of all inputs with views.
        full: tokens of all inputs with whole fields.
        prompts: tokens of all prompts with views: instructions and names of fields included.
        full_prompts: the same with whole fields.
    """

    item: int
    sent: int
    full: int
    prompts: int
    full_prompts: int


def team(read: Callable[[str], str | View], rounds: int) -> CompiledGraph:
    """Three agents in a loop."""
    graph = Graph(Team)
    researcher = dspy.Predict("topic, analysis: list[str] -> findings: list[str]")
    graph.add_node("researcher", researcher, reads={"topic": "topic", "analysis": read("analysis")})
    graph.add_node("analyst", dspy.Predict("findings: list[str] -> analysis"), reads={"findings": read("findings")})
    writer = dspy.Predict("draft, findings: list[str], analysis: list[str] -> report")
    reads = {"draft": "report", "findings": read("findings"), "analysis": read("analysis")}
    graph.add_node("writer", writer, reads=reads).add_path(START, "researcher", "analyst", "writer")

    def go_on(ctx: Context) -> str:
        return "researcher" if ctx.visit < rounds else END

    return graph.add_conditional_edges("writer", go_on, ["researcher", END]).compile()


def measure(item: int, rounds: int = 30) -> Saving:
    """Runs the team with views and with whole fields.

    Args:
        item: tokens of an item.
        rounds: how often each agent works.
    """
    text = "tide" * item
    counts: list[int] = []
    for read in (lambda field: view(field).new(), lambda field: field):
        prompts = 0

        def answer(prompt: Any) -> dict[str, Any]:
            nonlocal prompts
            prompts += sum(estimate_tokens(turn.content) for turn in prompt.turns)
            asked = prompt.output_fields[0].name
            return {asked: {"findings": [text], "analysis": text, "report": "So far so good."}[asked]}

        with ScriptedLM(answer):
            run = team(read, rounds).run({"topic": "tides"})
        run.raise_error()
        counts += [run.view_tokens().sent, prompts]
    return Saving(item, counts[0], counts[2], counts[1], counts[3])


def main() -> None:
    """Prints the table."""
    print("3 agents, 30 rounds; tokens     with views   whole fields          whole prompts")
    for saving in map(measure, (50, 150, 500)):
        share, prompts = 100 * saving.sent / saving.full, 100 * saving.prompts / saving.full_prompts
        print(
            f"items of {saving.item:>3} tokens         {saving.sent:>10,}   {saving.full:>12,}  {share:>4.1f} %"
            f"   {saving.prompts:,} of {saving.full_prompts:,}, {prompts:.1f} %"
        )


if __name__ == "__main__":
    main()
