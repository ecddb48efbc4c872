"""An alert is classified and investigated: messages, named fields and templates in one program.

python examples/alerts.py                                   # offline: with the scripted answers below
DSPYER_MODEL=openai/gpt-4o-mini python examples/alerts.py   # with a real model
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import dspy
from model import language_model
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Messages, fill, view
from dspyer.testing import ScriptedLM

LOGINS = {"203.0.113.7": "14 failed logins as root in 2 minutes, then one that went well"}

ANSWERS = [
    {"classification": "intrusion", "severity": "high"},
    {"finding": "Passwords are being guessed. What else came from there?", "address": "203.0.113.7", "done": False},
    {"finding": "The password was found: lock the account of root.", "address": "203.0.113.7", "done": True},
]


class Alert(BaseModel):
    """One alert, and what the nodes find out about it."""

    alert_text: str
    classification: str | None = None
    severity: str | None = None
    finding: str | None = None
    address: str | None = None
    done: bool = False
    messages: Messages = []


class Classify(dspy.Signature):
    """Classify an alert of a server."""

    alert_text: str = dspy.InputField()
    classification: Literal["intrusion", "outage", "noise"] = dspy.OutputField()
    severity: Literal["low", "high"] = dspy.OutputField()


class Investigate(dspy.Signature):
    """Investigate this {classification} alert, severity {severity}. {run.remaining} steps are left after this one.

    An address is one such as {"ip": "192.0.2.1"}.
    """

    request: str = dspy.InputField()
    news: str = dspy.InputField(desc="the last message of another node")
    history: dspy.History = dspy.InputField()
    finding: str = dspy.OutputField()
    address: str = dspy.OutputField(desc="the address to look up")
    done: bool = dspy.OutputField(desc="whether all is known that is needed")


def look_up(address: str) -> dict[str, Any]:
    """Return the log entries of an address, as the message of a tool."""
    return {"messages": {"role": "tool", "tool_call_id": address, "content": LOGINS.get(address, "nothing")}}


def desk() -> CompiledGraph:
    """Build the graph: classify the alert, then investigate and look up addresses until the investigator is done."""
    graph = Graph(Alert)
    graph.add_node("classifier", dspy.Predict(Classify), writes=["classification", "severity", "messages"])
    graph.add_node(
        "investigator",
        dspy.Predict(Investigate),
        reads={
            "request": fill("The alert: {alert_text}"),  # a template
            "news": view("messages").others().last(1),  # the last message of another node, as text
            "history": view("messages").own().fit(4000),  # its own turns, as DSPy's history
        },
        writes=["finding", "address", "done", "messages"],
    )
    graph.add_node("look_up", look_up, writes=["messages"])
    graph.add_path(START, "classifier", "investigator")
    graph.add_conditional_edges("investigator", "done", {True: END, False: "look_up"})
    graph.add_edge("look_up", "investigator")
    return graph.compile(max_steps=8)


def show(turns: Sequence[Any]) -> None:
    """Print the prompt of a call, without DSPy's instructions on the output format."""
    print("  system:", turns[0].content.partition("your objective is:")[2].strip().splitlines()[0])
    for turn in turns[1:]:
        body = turn.content.partition("\n\nRespond with")[0].replace("\n\n[[ ## completed ## ]]", "")
        parts = [part.strip().replace(" ## ]]\n", " = ") for part in body.split("[[ ## ") if part.strip()]
        print(f"  {turn.role}:", " | ".join(parts))


def main() -> None:
    """Run the program on one alert; print the conversation, the last prompt and the result."""
    scripted = None if os.environ.get("DSPYER_MODEL") else ScriptedLM(ANSWERS)
    with dspy.context(lm=scripted or language_model()):
        run = desk().run({"alert_text": "many failed logins from 203.0.113.7"})
    if run.error is not None:
        raise run.error
    print("the conversation")
    for message in run.state["messages"]:
        who = message.get("name", message["role"])
        print(f"  {who}: {str(message['content']).replace(chr(10), ', ')}")
    if scripted is not None:
        print("what the investigator was sent the second time")
        show(scripted.calls[-1].prompt.turns)
    print(f"{run.state['severity']}: {run.state['finding']}")


if __name__ == "__main__":
    main()
