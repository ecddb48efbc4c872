"""A steering agent: it plans, works with a researcher, is sent back by a judge, and asks before it mails.

python examples/agent.py                                   # offline: a script responds for the model
DSPYER_MODEL=openai/gpt-4o-mini python examples/agent.py   # with a real model; it asks you before it mails
"""

from __future__ import annotations

import json
import os
from textwrap import indent
from typing import Any

import dspy
from model import language_model
from pydantic import BaseModel

from dspyer import Command, Run, agents, view
from dspyer.testing import Asks, ScriptedLM

TASK = "Tell Ada in a mail when tomorrow's low tide is, and whether the ferry can land then."
NOTES = {
    "tides": "Tomorrow, harbour: high tide 03:20, low tide 09:40, 0.4 m.",
    "ferry": "The ferry lands at every hour while the water is at least 0.6 m high.",
}


def look_up(topic: str) -> str:
    """Looks up a topic in the notes of the harbour: tides or ferry."""
    return NOTES[topic]


def mail(to: str, text: str) -> str:
    """Sends a mail."""
    return f"sent to {to}, {len(text)} characters"


# --- the agent


class Work(BaseModel):
    """What the agent keeps besides its conversation."""

    plan: list[str] = []


def report_plan(steps: list[str]) -> Command:
    """Reports the plan, and begins the work."""
    return Command(update={"plan": steps}, goto="work", result="noted")


def has_plan(plan: list[str]) -> bool:
    """Report a plan first."""
    return bool(plan)


researcher = agents.tool_loop("topic -> findings: list[str]", [look_up], max_turns=4, name="Researcher")
agent = agents.modes(
    "task -> report",
    {
        "plan": agents.Mode("Make a plan of few steps, and report it.", tools=[report_plan], to=["work"]),
        "work": agents.Mode(
            "Carry out this plan: {plan}",
            tools=[
                agents.tool(researcher, name="research", desc="Finds out all about a topic."),
                agents.tool(mail, approve=True, effect=True, retry=3),
            ],
            to=["plan"],
            guard=has_plan,
            context=view("messages").turns(8),
        ),
    },
    schema=Work,
    check=dspy.Predict("task, report -> problems: list[str]"),
)

# --- its stack, as a person reads it


def print_stack(run: Run) -> None:
    """The messages: who, what was thought, what was called, what came back."""
    for message in run.state["messages"]:
        if message["role"] == "tool":
            print(f"{'':10}{message['name']}: {message['content']}")
            continue
        text = indent(message["content"], " " * 10).lstrip()
        print(f"{message.get('name', message['role']):10}{text}")
        for call in message.get("tool_calls", ()):
            args = json.loads(call["function"]["arguments"])
            print(f"{'':10}-> {call['function']['name']}({', '.join(f'{key}={args[key]!r}' for key in args)})")


# --- offline, a script responds for the model


def turn(thought: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The response of a model that calls tools."""
    return {
        "next_thought": thought,
        "tool_calls": {"tool_calls": [{"name": name, "args": args} for name, args in calls]},
    }


LETTER = "Low tide is at 09:40. The water is too low then (0.4 m): the ferry cannot land."
SCRIPT = [
    (
        Asks("tool_calls", task="Ada"),
        [
            turn("Two facts, then the mail.", ("report_plan", {"steps": ["find tide and ferry", "mail Ada"]})),
            turn("Both at once.", ("research", {"topic": "tides"}), ("research", {"topic": "ferry"})),
            turn("That is all I need.", ("submit", {"report": LETTER})),
            turn("The mail was part of the task.", ("mail", {"to": "Ada", "text": LETTER})),
            turn("Now it is done.", ("submit", {"report": "Ada knows: low tide at 09:40, and no ferry then."})),
        ],
    ),
    (
        Asks("tool_calls", topic="tides"),
        [turn("", ("look_up", {"topic": "tides"})), turn("", ("submit", {"findings": [NOTES["tides"]]}))],
    ),
    (
        Asks("tool_calls", topic="ferry"),
        [turn("", ("look_up", {"topic": "ferry"})), turn("", ("submit", {"findings": [NOTES["ferry"]]}))],
    ),
    (Asks("problems"), [{"problems": ["no mail was sent to Ada"]}, {"problems": []}]),
]


def main() -> None:
    offline = not os.environ.get("DSPYER_MODEL")
    dspy.configure(lm=ScriptedLM(SCRIPT) if offline else language_model())
    thread = agent.compile(store=":memory:").thread("harbour")
    run = thread.run({"task": TASK})
    while run.status == "interrupted":
        question = run.questions[0]
        answer = True if offline else input(f"{question.text} [y/n] ") == "y"
        print(f"{question.text} {'yes' if answer else 'no'}")
        run = thread.resume({question.id: answer})
    run.raise_error()
    print()
    print_stack(run)
    print()
    print(thread.stats())


if __name__ == "__main__":
    main()
