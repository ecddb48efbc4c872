"""One program of all parts: a support desk whose agent refunds with approval, stored, looked at, and tuned.

python examples/whole.py                                   # offline: a script responds for the models
DSPYER_MODEL=openai/gpt-4o-mini python examples/whole.py   # with a real model
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import dspy
from model import language_model
from pydantic import BaseModel

from dspyer import (
    END,
    START,
    Archive,
    Breakpoints,
    Budget,
    Cache,
    Context,
    Graph,
    Kept,
    agents,
    live,
    optimize,
    reducers,
)
from dspyer.extend import Call, Event, Layer, Output, using
from dspyer.testing import Asks, ScriptedLM


class Pad(BaseModel):
    """The facts that agents and nodes write while they work."""

    facts: Annotated[list[str], reducers.append, live] = []


class Desk(Pad):
    """A message of a customer, and what becomes of it."""

    message: str
    card: str = ""
    files: list[str] = []
    found: list[str] = []
    policy: str = ""
    draft: str = ""
    doubts: list[str] = []
    sent: bool | None = None
    reply: str = ""
    answered: Kept[int] = 0


# --- an event and a layer: how long each node took


@dataclass(frozen=True)
class Took(Event):
    """The seconds of an execution."""

    node: str
    execution: str
    seconds: float

    def label(self) -> str:
        """Return the event as people read it."""
        return f"took {self.seconds:.1f} s"


class Timed(Layer):
    """Publishes how long each execution took, with all its attempts."""

    def around(self, call: Call, inner: Any) -> Iterator[Any]:
        """Surround an execution."""
        began = time.perf_counter()
        output: Output = yield from inner(call)
        call.publish(Took(call.node, call.execution, time.perf_counter() - began))
        return output


# --- what the desk works with

ORDERS = {"A-17": "a kettle for 45.00, delivered on Monday"}


def find_order(order: str) -> str:
    """Finds an order by its number."""
    return ORDERS[order]


def pay(order: str, amount: float) -> str:
    """Pays an amount back for an order."""
    return f"{amount:.2f} paid back for {order}"


def note(text: str, ctx: Context) -> str:
    """Writes a fact to the pad."""
    ctx.post("facts", text)
    return "noted"


def load_policy() -> dict[str, str]:
    """Read what the shop grants."""
    return {"policy": "Refunds within 30 days; more than 50.00 only with approval."}


# --- the program

refund = agents.tool(pay, name="refund", approve=lambda amount: amount > 50, effect=True, retry=3)
clerk = agents.tool_loop(
    "message, policy -> draft",
    [find_order, refund, agents.tool(note, writes=["facts"])],
    schema=Pad,
    check=dspy.Predict("message, draft -> problems: list[str]"),
    name="Clerk",
)


def desk(folder: str) -> Graph:
    """Return the graph of the desk; what `load` has read once is kept in a folder."""
    graph = Graph(Desk, name="Desk", inputs=["message", "card", "files"])
    graph.add_node("load", load_policy, writes=["policy"], cache=Cache(version="3", folder=folder))
    graph.add_map("read", dspy.Predict("file -> fact"), over="files", item="file", into="found", layers=[Timed()])
    graph.add_node("clerk", clerk, reads=["message", "policy"], writes=["draft", "facts"])
    graph.add_node("audit", dspy.Predict("message, policy -> doubts: list[str]"))
    graph.add_interrupt("approve", question="Send {draft}?", answer=bool, into="sent")
    graph.add_node("count", lambda answered: {"answered": answered + 1}, writes=["answered"])
    graph.add_node("write", dspy.Predict("draft, found: list[str], doubts: list[str] -> reply"))
    graph.add_path(START, "load", "read").add_edge("read", ["clerk", "audit"])
    graph.add_edge(["clerk", "audit"], "approve").add_path("approve", "count", "write", END)
    return graph


# --- offline, a script responds for the models


def turn(thought: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The response of a model that calls tools."""
    return {
        "next_thought": thought,
        "tool_calls": {"tool_calls": [{"name": name, "args": args} for name, args in calls]},
    }


DRAFT = "We pay 45.00 back for the kettle."
SCRIPT = [
    (
        Asks("tool_calls"),
        [
            turn("First the order.", ("find_order", {"order": "A-17"})),
            turn(
                "It broke: all of it, and a fact.",
                ("refund", {"order": "A-17", "amount": 60}),
                ("note", {"text": "A-17 broke"}),
            ),
            turn("That was too much.", ("submit", {"draft": DRAFT})),
        ],
    ),
    (Asks("problems"), {"problems": []}),
    (Asks("fact"), {"fact": "a photo of a broken kettle"}),
    (Asks("doubts"), {"doubts": ["the photo has no date"]}),
    (Asks("reply"), {"reply": f"Dear Ada, {DRAFT}"}),
]


def main() -> None:
    offline = not os.environ.get("DSPYER_MODEL")
    dspy.configure(lm=ScriptedLM(SCRIPT) if offline else language_model())
    prices = {"scripted": (0.1, 0.4)} if offline else {}
    with TemporaryDirectory() as folder:
        store = f"{folder}/desk.db"
        program = desk(folder).compile(
            store=store,
            budget=Budget(cost=0.5, node_calls=500, prices=prices),
            record_lm_calls="full",
            redact=["card"],
            layers=[Breakpoints(before=["write"])],
        )
        thread = program.thread("ada")
        run = thread.run({"message": "Refund A-17.", "card": "4111 1111 1111 1111", "files": ["photo.jpg"]}, key="m-1")
        print([f"{event.node} {event.label()}" for event in run.events if isinstance(event, Took)])
        while run.status == "interrupted":
            question = run.questions[0]
            half = agents.Approval(True, args={"order": "A-17", "amount": 45})
            print(f"{question.text} ->", end=" ")
            if question.key == "before":  # the breakpoint: there is nothing to answer
                print("goes on")
                run = thread.resume()
            else:
                answer: Any = half if question.text.startswith("refund") else True
                print("half of it" if answer is half else "yes")
                run = thread.resume({question.id: answer})
        run.raise_error()
        print(run.state["reply"], list(run.state["facts"]))
        thread.update({"reply": "Dear Ada, the money is on its way."}, as_node="write")  # a correction
        print(f"the reply is by {thread.blame('reply').id}, that of the run was by {run.blame('reply').id}")

        print("\nThe run, from its rows alone")
        with Archive(store) as archive:
            record = archive.thread("ada").record("ada.1")
        depth = {None: 0}
        for step in record.steps:
            depth[step.id] = depth[step.parent] + 1
            if step.kind not in ("start", "join"):
                print(f"{'  ' * depth[step.id]}{step.node} ({step.kind})", *[call.model for call in step.lm])
        print(thread.stats())

        metric = optimize.by_field({"reply": optimize.equals("best")}, goal="reply")
        example = dspy.Example(message="Refund A-17.", files=["photo.jpg"], best="Dear Ada, no.").with_inputs(
            "message", "files"
        )
        tuned = desk(folder).compile(answers={"approve": True, "refund": True})  # nobody is asked
        with using(Timed()), dspy.context(lm=ScriptedLM(SCRIPT) if offline else dspy.settings.lm):
            run = tuned.run({**example.inputs()})
        print(len([event for event in run.events if isinstance(event, Took)]), "executions were timed")
        with dspy.context(lm=ScriptedLM(SCRIPT) if offline else dspy.settings.lm):
            print(optimize.culprits(tuned, example, metric))


if __name__ == "__main__":
    main()
