"""Four agents and one scratchpad: the same nodes in sequence, and in parallel, where each reads the others' posts.

python examples/scratchpad.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/scratchpad.py   # with a real model
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Annotated, Any

import dspy
from model import language_model
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, Run, live, reducers

TEAM = ["researcher", "analyst", "coder", "reviewer"]
THINKING = 0.05  # seconds for each call, so that the offline model shows what waiting costs


class Pad(BaseModel):
    """The shared state. Each field is written by one agent; the others read its posts at once."""

    task: str
    research: Annotated[list[str], reducers.append, live] = []
    analysis: Annotated[list[str], reducers.append, live] = []
    code: Annotated[dict[str, str], reducers.update, live] = {}
    review: Annotated[list[str], reducers.append, live] = []


class Thinking(dspy.Module):
    """A predictor with the delay of a model behind a network."""

    def __init__(self, signature: str) -> None:
        super().__init__()
        self.predict = dspy.Predict(signature)

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """Wait, then call the predictor."""
        time.sleep(THINKING)
        return self.predict(**inputs)


def researcher(task: str, ctx: Context, look_up: dspy.Module) -> None:
    """Post a finding for each part of the task as soon as it is found."""
    for part in task.split(", "):
        ctx.doing(f"looking up {part}")
        ctx.post("research", look_up(topic=part).finding)


def analyst(ctx: Context, analyse: dspy.Module) -> None:
    """Draw a conclusion from each finding; the loop ends when no node can add a finding any more."""
    for finding in ctx.live("research"):
        ctx.post("analysis", analyse(finding=finding.value).conclusion)


def coder(ctx: Context, write: dspy.Module) -> None:
    """Write a function for each conclusion."""
    for conclusion in ctx.live("analysis"):
        ctx.post("code", {f"step_{conclusion.seq}": write(conclusion=conclusion.value).function})


def reviewer(ctx: Context, judge: dspy.Module) -> None:
    """Review each function."""
    for function in ctx.live("code"):
        ctx.post("review", judge(function=function.value).remark)


def team(at_once: bool) -> CompiledGraph:
    """Build the graph of the four nodes: parallel branches if `at_once`, else a path."""
    graph = Graph(Pad, name="Scratchpad")
    graph.add_node(
        "researcher", researcher, modules={"look_up": Thinking("topic -> finding")}, reads=["task"], writes=["research"]
    )
    graph.add_node(
        "analyst",
        analyst,
        modules={"analyse": Thinking("finding -> conclusion")},
        reads=["research"],
        writes=["analysis"],
    )
    graph.add_node(
        "coder", coder, modules={"write": Thinking("conclusion -> function")}, reads=["analysis"], writes=["code"]
    )
    graph.add_node(
        "reviewer", reviewer, modules={"judge": Thinking("function -> remark")}, reads=["code"], writes=["review"]
    )
    if at_once:
        graph.add_edge(START, TEAM).add_edge(TEAM, END)
    else:
        graph.add_path(START, *TEAM, END)
    return graph.compile()


def posts_of(run: Run) -> list[tuple[int, str, str]]:
    """Return all posts of a run in order of arrival: number, author, field."""
    found = [
        (seq, commit.node, field)
        for commit in run.commits
        if commit.live is not None
        for field, seqs in commit.live.posts.items()
        for seq in seqs
    ]
    return sorted(found)


def main() -> None:
    dspy.configure(lm=language_model())
    task = "tide tables, pump schedules, dike heights, storm warnings"
    runs: dict[str, Run] = {}
    for name, at_once in (("in sequence", False), ("live", True)):
        run = runs[name] = team(at_once).run({"task": task})
        run.raise_error()
        authors = [author for _, author, _ in posts_of(run)]
        changes = sum(1 for one, two in pairwise(authors) if one != two)
        print(f"{name:<12} {run.duration:4.1f} s, {len(authors)} posts, the author changed {changes} times")
        print(f"  {' '.join(author[:3] for author in authors)}")

    print("\nhow far each agent had read when it ended (live)")
    for commit in runs["live"].commits:
        if commit.live is not None:
            read = ", ".join(f"{field} up to post {seq}" for field, seq in commit.live.reads.items()) or "nothing"
            print(f"  {commit.node:<11} {read}")
    sizes = {
        name: {field: len(run.state[field]) for field in ("research", "analysis", "code", "review")}
        for name, run in runs.items()
    }
    print(f"\nthe same pad both times: {sizes['live'] == sizes['in sequence']}, {sizes['live']}")


if __name__ == "__main__":
    main()
