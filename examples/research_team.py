"""What did Python decide about a switch statement? A planner, two researchers, a critic, and two facts that conflict.

python examples/research_team.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/research_team.py   # with a real model: some 10 calls

START ── plan ─┬─ past ──┬─ critic ── write ── END
           │   └─ today ─┘    │
           └───── again ──────┘
"""

from __future__ import annotations

import os
import re
from typing import Any, Literal

import dspy
from documents import PEPS, TEXTS, bm25, fate_of
from model import language_model
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Conflict, Context, Graph
from dspyer.testing import Prompt, ScriptedLM

QUESTION = "What did Python decide about a switch statement?"


# --8<-- [start:state]
class Research(BaseModel):
    """What the team shares."""

    question: str
    past_topic: str = ""
    today_topic: str = ""
    past_source: str = ""
    today_source: str = ""
    decision: str = ""
    remark: str = ""
    report: str = ""


# --8<-- [end:state]


# --8<-- [start:signatures]
class Plan(dspy.Signature):
    """Give each researcher a topic of two to five words. One reads about
    ideas that were dropped, the other about what holds today."""

    question: str = dspy.InputField()
    remark: str = dspy.InputField(desc="what the critic misses")
    past_topic: str = dspy.OutputField()
    today_topic: str = dspy.OutputField()


class Read(dspy.Signature):
    """Which of the proposals decides the topic?"""

    topic: str = dspy.InputField()
    proposals: list[str] = dspy.InputField()
    number: int = dspy.OutputField()


# --8<-- [end:signatures]


# --8<-- [start:judges]
class Criticize(dspy.Signature):
    """Name a source that is off its topic, or leave the remark empty."""

    past_topic: str = dspy.InputField()
    past_source: str = dspy.InputField()
    today_topic: str = dspy.InputField()
    today_source: str = dspy.InputField()
    remark: str = dspy.OutputField()


class Write(dspy.Signature):
    """Answer in two sentences, from the decision and the sources."""

    question: str = dspy.InputField()
    decision: str = dspy.InputField()
    past_source: str = dspy.InputField()
    today_source: str = dspy.InputField()
    report: str = dspy.OutputField()


# --8<-- [end:judges]


# --8<-- [start:researcher]
def researcher(period: str) -> CompiledGraph:
    def search(topic: str) -> dict[str, Any]:
        adopted = period == "today"
        fits = [n for n in PEPS if (fate_of(n) == "adopted") == adopted]
        best = sorted(fits, key=lambda number: -bm25(topic, number))[:3]
        return {"proposals": [f"[PEP {n}] {TEXTS[n]}" for n in best]}

    def given(number: int, proposals: list[str]) -> list[str]:
        cited = any(f"[PEP {number}]" in each for each in proposals)
        return [] if cited else [f"PEP {number} is not among the proposals"]

    def note(number: int) -> dict[str, Any]:
        pep = PEPS[number]
        version = pep["python_version"] or "?"
        decision = f"{pep['status']} for Python {version}"
        source = f"[PEP {number}] {pep['title']}"
        return {"decision": decision, "source": source}

    graph = Graph(name=period.title(), inputs=["topic"])
    graph.add_node("search", search, writes=["proposals"])
    graph.add_node("read", dspy.Predict(Read))
    graph.add_check("given", given, of="read", max_fixes=1)
    graph.add_node("note", note, writes=["decision", "source"])
    graph.add_path(START, "search", "read", "note", END)
    return graph.compile()


# --8<-- [end:researcher]


# --8<-- [start:policy]
def newest(conflict: Conflict) -> str:
    """A merge policy: the decision for the later Python holds."""

    def version(decision: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", decision)]

    return max(conflict.left, conflict.right, key=version)


# --8<-- [end:policy]


# --8<-- [start:plan]
def plan(question: str, remark: str, planner: Any) -> dict[str, Any]:
    return {**planner(question=question, remark=remark), "decision": ""}


def verdict(remark: str, ctx: Context) -> Literal["plan", "write"]:
    return "plan" if remark and ctx.visit < 3 else "write"


# --8<-- [end:plan]


# --8<-- [start:team]
def team(store: str = "team.db") -> CompiledGraph:
    graph = Graph(Research, inputs=["question"], merge={"decision": newest})
    topics = ["past_topic", "today_topic", "decision"]
    planner = {"planner": dspy.Predict(Plan)}
    graph.add_node("plan", plan, modules=planner, writes=topics)
    for period in ("past", "today"):
        graph.add_node(
            period,
            researcher(period),
            reads={"topic": f"{period}_topic"},
            writes={"decision": "decision", "source": f"{period}_source"},
        )
    graph.add_node("critic", dspy.Predict(Criticize))
    graph.add_node("write", dspy.Predict(Write))
    graph.add_edge(START, "plan")
    graph.add_edge("plan", ["past", "today"])
    graph.add_edge(["past", "today"], "critic")
    graph.add_conditional_edges("critic", verdict)
    graph.add_edge("write", END)
    return graph.compile(store=store)


# --8<-- [end:team]


# --8<-- [start:model]
def rules(prompt: Prompt) -> dict[str, Any]:
    """Four rules in place of a model: they know one other name."""
    given = prompt.inputs
    outputs = [field.name for field in prompt.output_fields]
    if outputs == ["past_topic", "today_topic"]:
        past = today = given["question"].rpartition(" a ")[2].rstrip("?")
        if given["remark"]:
            today = "match a value against patterns"
        return {"past_topic": past, "today_topic": today}
    if outputs == ["number"]:
        return {"number": re.findall(r"PEP (\d+)\]", given["proposals"])[0]}
    past, today = given["past_source"], given["today_source"]
    if outputs == ["report"]:
        return {"report": f"{given['decision']}: {today}. Before: {past}."}
    topic = re.findall(r"\w{6}", given["today_topic"])
    fits = any(stem in today.lower() for stem in topic)
    return {"remark": "" if fits else f"{today}: off topic"}


# --8<-- [end:model]


def main() -> None:
    real = os.environ.get("DSPYER_MODEL")
    dspy.configure(lm=language_model() if real else ScriptedLM(rules))
    # --8<-- [start:run]
    program = team()
    run = program.thread("switch").run({"question": QUESTION})
    print(*[commit.node for commit in run.commits[1:]])
    print(run.state["report"].replace(". ", ".\n"))
    # --8<-- [end:run]
    # --8<-- [start:read]
    print(run.report())
    # --8<-- [end:read]
    # --8<-- [start:blame]
    print("decision by", run.blame("decision").node)
    for conflict in run.conflicts:
        wrote = [f"{author} {value!r}" for author, value in conflict.values]
        print(*wrote, "->", conflict.winner)
    # --8<-- [end:blame]


if __name__ == "__main__":
    main()
