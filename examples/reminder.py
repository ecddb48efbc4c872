"""Questions that expire, and the cron job that goes on with them. No process waits meanwhile.

python examples/reminder.py      # offline; the days pass at once

A buyer approves an order within a day; else the buyer is reminded, and after two more days the order is not sent. An
order that is approved cools down for an hour first: a timer.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dspyer import END, START, Archive, CompiledGraph, Graph
from dspyer.errors import QuestionExpired, ThreadError
from dspyer.testing import clock

HOUR, DAY = 3600, 24 * 3600


class Order(BaseModel):
    """An order that a person approves."""

    text: str
    approved: bool | None = None
    said: str | None = None
    outcome: str | None = None


def remind(text: str) -> dict[str, Any]:
    print(f"  mail: {text!r} still waits for your approval")
    return {"said": "reminded"}


def send(text: str) -> dict[str, Any]:
    return {"outcome": f"{text} is on its way"}


def drop(text: str) -> dict[str, Any]:
    return {"outcome": f"{text} is not sent"}


def office(store: Path) -> CompiledGraph:
    """The graph: ask, remind, ask for the last time, cool down, send."""
    graph = Graph(Order, inputs=["text"], name="Orders")
    graph.add_interrupt("approve", question="Send {text}?", answer=bool, into="approved", expires=DAY)
    graph.add_node("remind", remind, writes=["said"])
    graph.add_interrupt("last", question="Send {text}?", answer=bool, into="approved", expires=2 * DAY, default=False)
    graph.add_interrupt("cool_down", question="Waits an hour.", answer=None, expires=HOUR)
    graph.add_node("send", send, writes=["outcome"]).add_node("drop", drop, writes=["outcome"])
    graph.add_edge(START, "approve").add_edge("remind", "last")
    graph.add_error_edge("approve", "remind", on=QuestionExpired)
    for node in ("approve", "last"):
        graph.add_conditional_edges(node, "approved", {True: "cool_down", False: "drop"})
    return graph.add_path("cool_down", "send", END).add_edge("drop", END).compile(store=store)


def cron(store: Path) -> None:
    """What cron starts every minute: each thread that can go on by itself is resumed. Two at once do no harm."""
    with Archive(store) as archive:
        due = archive.due(graph="Orders")
    for name in due:
        try:
            run = office(store).thread(name).resume()
        except ThreadError:  # the other one has it
            continue
        print(f"  {name}: {run.status}, {run.state['outcome'] or [question.key for question in run.questions]}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, clock() as time:
        store = Path(folder) / "orders.db"
        program = office(store)
        for name, text in (("lamp", "a lamp"), ("sofa", "a sofa")):
            program.thread(name).run({"text": text})
        program.thread("lamp").resume({"approve": True}, by="ada")
        for hours in (2, 24, 49):
            time.advance(hours * HOUR)
            print(f"{hours} hours later")
            cron(store)
        for name in ("lamp", "sofa"):
            answers = program.thread(name).answers
            print(f"{name}: {', '.join(f'{answer.question.key} by {answer.by}' for answer in answers)}")


if __name__ == "__main__":
    main()
