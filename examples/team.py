"""Four agents on one pad, each with a model of its own, and a person who speaks to them while they work.

python examples/team.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/team.py   # with a real model
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Annotated, Any

import dspy
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, agents, events, live, reducers
from dspyer.testing import Prompt, ScriptedLM

MODEL = os.environ.get("DSPYER_MODEL")
THINKING = 0.1  # seconds for each call of an offline model: the agents work at the same time
TIDES = {"Hook": "9:40", "Delfzijl": "11:15", "Hull": "6:10"}

Lines = Annotated[list[str], reducers.append, live]


class Notes(BaseModel):
    """The pad: an agent writes a line, and the others are shown it at their next turn."""

    tides: Lines = []
    warnings: Lines = []
    doubts: Lines = []


class Pad(Notes):
    """The state of the team."""

    task: str
    found: str = ""
    advice: str = ""
    verdict: str = ""
    letter: str = ""


def look_up(place: str) -> str:
    """Looks up the time of high tide at a place."""
    return TIDES.get(place, "unknown")


def writes(field: str) -> Any:
    """Return the tool that writes a line to a field of the pad."""

    def note(text: str, ctx: Context) -> str:
        """Writes a line to the pad."""
        ctx.post(field, text)
        return "on the pad"

    return agents.tool(note, writes=[field])


def team(model: Callable[[str], dspy.BaseLM]) -> CompiledGraph:
    """Build the graph: who may write what, who is shown what, and who thinks with which model."""
    wait = agents.wait_for_posts
    graph = Graph(Pad, name="Team")
    for name, (task, tools, field) in {
        "researcher": ("task -> found", [look_up, writes("tides")], "tides"),
        "skipper": ("task -> advice", [writes("warnings")], "warnings"),
        "reviewer": ("task -> verdict", [writes("doubts")], "doubts"),
        "writer": ("task -> letter", [], ""),
    }.items():
        signature = dspy.Signature(task, JOBS[name])
        agent = agents.tool_loop(signature, [*tools, wait], schema=Notes, lm=model(name), name=name)
        shown = [other for other in Notes.model_fields if other != field]
        graph.add_node(name, agent, reads=["task", *shown], writes=[OUTPUT[name], *([field] if field else [])])
    return graph.add_edge(START, list(JOBS)).add_edge(list(JOBS), END).compile(store=":memory:")


JOBS = {
    "researcher": "Look up the tide at each place of the task, and note each as 'place: time'. Wait for posts once.",
    "skipper": "Note a warning for each tide before ten. Wait for posts until no one else works.",
    "reviewer": "Note a doubt about each warning. Wait for posts until no one else works.",
    "writer": "Wait for posts until no one else works, then write a letter with all that is on the pad.",
}


def offline(name: str) -> ScriptedLM:
    """A model that plays one of the four: it decides by what its prompt shows, as a real one does."""

    def answer(prompt: Prompt) -> dict[str, Any]:
        time.sleep(THINKING)
        said = "\n".join(each.content for each in prompt.turns[1:])
        done = said.count("on the pad")
        if name == "researcher":
            return research(said, done)
        seen = re.findall(rf"^(?:{READS[name]}): (.+)$", said, re.MULTILINE)
        if name == "skipper":
            seen = [f"early: {line}" for line in seen if ": 9:" in line or ": 6:" in line]
        if name == "reviewer":
            seen = [f"who says so? {line}" for line in seen]
        if name != "writer" and done < len(seen):
            return calls("note", text=seen[done])
        if "No one else works" not in said:
            return calls("wait_for_posts")
        return calls("submit", **{OUTPUT[name]: ", ".join(sorted(seen)) or "nothing"})

    return ScriptedLM(answer)


def calls(tool: str, **args: str) -> dict[str, Any]:
    """A response of a model that calls a tool."""
    return {"next_thought": "", "tool_calls": {"tool_calls": [{"name": tool, "args": args}]}}


READS = {"skipper": "tides", "reviewer": "warnings", "writer": "tides|warnings|doubts"}
OUTPUT = {"researcher": "found", "skipper": "advice", "reviewer": "verdict", "writer": "letter"}


def research(said: str, done: int) -> dict[str, Any]:
    """The next turn of the offline researcher: Hull comes last, after it has looked at the pad once."""
    places = [place for place in TIDES if not (place == "Hull" and "Leave out Hull" in said)]
    if done == len(places):
        return calls("submit", found=", ".join(places))
    if done == 2 and "you are shown it" not in said and "No one else works" not in said:
        return calls("wait_for_posts")
    place = places[done]
    return calls("note", text=f"{place}: {look_up(place)}")


def main() -> None:
    """Stream one run, and speak to the team after the first post."""
    program = team(lambda name: dspy.LM(MODEL) if MODEL else offline(name))
    thread = program.thread("t-1")
    sent = None
    with thread.stream({"task": "When is high tide at Hook, Delfzijl and Hull?"}) as stream:
        for event in stream:
            if not isinstance(event, events.Posted):
                continue
            print(f"{event.node}: {event.value}")
            if sent is None:
                sent = thread.send("Leave out Hull.", by="ada")
                print(f"ada sends message {sent.number}, open: {sent.open}")
    state = thread.state
    print(f"found: {state['found']}")
    print(f"letter: {state['letter']}")
    print(f"unread: {len(thread.unread)}")


if __name__ == "__main__":
    main()
