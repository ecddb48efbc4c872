"""Stored runs to look at: an agent with two sub-agents, a copy with an edited task, one that failed, one that waits.

python examples/look.py            # makes demo.db here, and says how to look at it in a terminal and in a browser
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
from pydantic import BaseModel
from tenacity import wait_fixed

from dspyer import END, START, Archive, Budget, CompiledGraph, Graph, Retry, agents
from dspyer.testing import Prompt, ScriptedLM

FILE = "demo.db"
MODEL = "openai/gpt-5-mini"  # by name and price alone: rules answer for it, offline
PACE = 0.0002  # seconds for each token of a response
THINKS = 0.4  # seconds until the editor answers

ARTICLES = {
    "bees": "Honey bees dance on the comb. The angle of the waggle run gives the direction of food relative to the "
    "sun; its length gives the distance.",
    "ants": "Foraging ants lay a trail of pheromone. Short paths are walked more often, so their trails become "
    "stronger and evaporate less.",
}
LONG = (
    "Bees dance: the angle of the waggle run gives the direction. Its length gives the distance. "
    "Ants lay trails of pheromone. Short paths become stronger because they are walked more often. "
    "Both repeat what works."
)
SHORT = "Bees dance the way to food and ants mark it, and both repeat what works."
REFUSAL = "The report does not say how far the food is."


class Report(BaseModel):
    """What is known of a question for readers."""

    question: str
    task: str = ""
    report: str = ""
    claims: list[str] = []
    grades: list[bool] = []
    summary: str = ""


class Plan(dspy.Signature):
    """Turn the question of a reader into a task for a small team of writers."""

    question: str = dspy.InputField()
    task: str = dspy.OutputField()


class Review(dspy.Signature):
    """What does this report lack, by its task? Say each problem in a sentence, or none."""

    task: str = dspy.InputField()
    report: str = dspy.InputField()
    problems: list[str] = dspy.OutputField()


Split = dspy.Signature("report -> claims: list[str]", "Take the report apart into claims to be checked one by one.")
Grade = dspy.Signature("claim -> right: bool", "Is the claim right?")
Summarize = dspy.Signature("claims: list[str], grades: list[bool] -> summary", "Summarize what is right in a line.")


def read(topic: str) -> str:
    """Reads an article."""
    return ARTICLES[topic]


def calculate(expression: str) -> float:
    """Works out an expression of numbers."""
    if re.search(r"[^0-9.+*/() -]", expression):
        raise ValueError(f"only numbers and + - * / ( ), not {expression!r}")
    return float(eval(expression))  # of digits and operators alone


def publish(title: str) -> str:
    """Publishes the report."""
    return f"https://reports.example/{re.sub('[^a-z]+', '-', title.lower())}"


def program() -> CompiledGraph:
    """Plan a report, have an agent write it, grade its claims one by one, and summarize it.

    The command line and the inspector call this function too, when they act on the runs.
    """
    dspy.configure(lm=ScriptedLM(rules, model=MODEL))
    reader = agents.tool_loop("topic -> finding", [read], name="Reader")
    tools = [agents.tool(reader, name="research", desc="Reads on one topic."), calculate]
    lead = agents.tool_loop(
        dspy.Signature("task -> report", "Lead the writers: research each topic, publish the report, submit it."),
        [*tools, agents.tool(publish, approve=True, effect=True)],
        check=dspy.Predict(Review),
        name="Lead",
    )
    graph = Graph(Report, name="Report", inputs=["question"])
    graph.add_node("plan", dspy.Predict(Plan), retry=Retry(attempts=2, wait=wait_fixed(0.02)))
    graph.add_node("lead", lead)
    graph.add_node("split", dspy.Predict(Split))
    graph.add_map("grade", dspy.Predict(Grade), over="claims", item="claim", into="grades")
    graph.add_node("summarize", dspy.Predict(Summarize))
    graph.add_path(START, "plan", "lead", "split", "grade", "summarize", END)
    return graph.compile(store=FILE, record_lm_calls="full", budget=Budget(cost=1.0, prices={MODEL: (0.25, 2.0)}))


# --- what answers for the model


def rules(prompt: Prompt) -> dict[str, Any]:
    """An answer by the fields that are asked for."""
    given, asks = prompt.inputs, prompt.asks
    answer = turn_of(prompt) if "tool_calls" in asks else answer_of(given, asks)
    time.sleep(PACE * len(str(answer)))
    return answer


tried: set[str] = set()


def answer_of(given: Mapping[str, str], asks: tuple[str, ...]) -> dict[str, Any]:
    if "task" in asks:
        if "no article" in given["question"] or given["question"] not in tried:
            tried.add(given["question"])
            raise dspy.LMServerError("the provider closed the connection")
        return {"task": f"Compare {given['question'].rstrip('?')}, for readers without a background in biology."}
    if "problems" in asks:
        return {"problems": [] if "distance" in given["report"] or "one sentence" in given["task"] else [REFUSAL]}
    if "claims" in asks:
        return {"claims": re.findall(r"[^. ][^.]*\.", given["report"])}
    if "right" in asks:
        return {"right": "repeat" not in given["claim"]}
    return {"summary": "Bees tell the way by a dance, ants by a trail."}


def turn_of(prompt: Prompt) -> dict[str, Any]:
    """A turn of the lead, or of a reader, by what it has seen."""
    seen, topic = "\n".join([turn.content for turn in prompt.turns[1:]]), prompt.inputs.get("topic")
    if topic is None and (first := re.search(r"## topic ## \]\]\n(\w+)", seen)):
        topic = first[1]
    if topic:
        if ARTICLES[topic] in seen:
            return turn("This answers the question.", submit={"finding": ARTICLES[topic]})
        return turn(f"I read about {topic}.", read={"topic": topic})
    if ARTICLES["bees"] not in seen:
        found = [name for name in ARTICLES if name in seen]
        calls = [("research", {"topic": name}) for name in found]
        thought = "I need both species. I can read about them at the same time, and work out the share of recruits."
        return turn(thought, *calls, calculate={"expression": "recruits / foragers"})
    brief = "one sentence" in seen
    if not brief and REFUSAL not in seen:
        return turn("I have both findings. The sum failed, but I do not need it.", submit={"report": SHORT})
    if "reports.example" not in seen and "too short" not in seen:
        return turn("The report is ready for the public channel.", publish={"title": "How bees and ants share food"})
    return turn("Now it can be submitted.", submit={"report": SHORT if brief else LONG})


def turn(thought: str, *calls: tuple[str, dict[str, Any]], **more: dict[str, Any]) -> dict[str, Any]:
    named = [{"name": name, "args": args} for name, args in (*calls, *more.items())]
    return {"next_thought": thought, "tool_calls": {"tool_calls": named}}


# --- the runs

QUESTION = "how bees and ants tell nest mates where food is?"
SHORTER = "Compare in one sentence how bees and ants tell nest mates where food is."


def make() -> None:
    """Two runs that the editor lets pass, a copy of one with an edited task, one that fails, and one that waits."""
    for suffix in ("", "-wal", "-shm"):
        Path(FILE + suffix).unlink(missing_ok=True)
    desk = program()
    for name, question in (("reader-16", "how bees and ants find food?"), ("reader-17", QUESTION)):
        thread = desk.thread(name)
        thread.run({"question": question})
        time.sleep(THINKS)
        run = thread.resume({"publish": True}, by="editor", comment="fine for the public channel")
    (planned,) = [commit.id for commit in run.commits if commit.node == "plan"]
    copy = thread.copy("reader-17-short", at=planned, patch={"task": SHORTER})
    copy.resume()
    copy.resume({"publish": agents.Approval(False, "too short")}, by="editor", comment="too short for our readers")
    desk.thread("reader-18").run({"question": "why is there no article?"})
    desk.thread("reader-19").run({"question": "how bees and ants call others to food?"})


def main() -> None:
    make()
    print(f"The runs in {FILE}:")
    with Archive(FILE) as archive:
        for info in archive.runs():
            print(f"  {info.thread:<16} {info.status:<12} {info.cost:.4f} USD")
        run, short = [archive.thread(name).record() for name in ("reader-17", "reader-17-short")]
        examples = archive.examples("grade", status="completed")
    print("\nThe run and its copy with a shorter task:")
    print(run.compare(short))
    print("\nTen examples for an optimizer, from the items of the map:")
    for example in examples[:10]:
        print(f"  {example.right!s:<6} {example.claim}")
    command = os.path.relpath(Path(sys.executable).parent / "dspyer")
    print("\nLook at them in the terminal, or in a browser, where you can answer, edit a copy and run on:")
    print(f"  {command} runs --store {FILE}")
    print(f"  PYTHONPATH={os.path.relpath(Path(__file__).parent)} {command} inspect {FILE} --program look:program")


if __name__ == "__main__":
    main()
