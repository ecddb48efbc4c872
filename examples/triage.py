"""The graph of `quickstart.py` and `optimize.py`: what a support desk does with a ticket.

START ─┬─ classify ─┐                 ┌──── again ────┐
       ├─ extract  ─┼─ triage ─┬─ plan_step ── check ─┴─ answer ─┬─ END
       ├─ urgency  ─┤          └─ escalate ──────────────────────┘
       └─ contract ─┘
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import dspy
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Conflict, Graph, Run, reducers

DATA = Path(__file__).parent / "data"
INBOX = ["T035", "T139", "T154", "T207", "T014", "T162", "T041", "T037", "T189", "T279", "T158", "T151"]
RANK = {"low": 0, "normal": 1, "high": 2}

Category = Literal["billing", "bug", "how_to", "account_access", "feature_request", "cancellation"]
Urgency = Literal["low", "normal", "high"]


Step = Literal[
    "correct the charge",
    "report a fault",
    "send the instructions",
    "restore the access",
    "note the wish",
    "end the contract",
]
STEP_OF: dict[str, Step] = {
    "billing": "correct the charge",
    "bug": "report a fault",
    "how_to": "send the instructions",
    "account_access": "restore the access",
    "feature_request": "note the wish",
    "cancellation": "end the contract",
}


class Ticket(BaseModel):
    """One ticket on its way through the desk."""

    text: str
    product: str = ""
    plan: str = "free"
    category: Category | None = None
    wish: str | None = None
    urgency: Urgency | None = None
    step: Step | None = None
    remarks: Annotated[list[str], reducers.extend] = []
    tries: Annotated[int, reducers.increment] = 0
    reply: str | None = None


class Classify(dspy.Signature):
    """What does the writer of this support ticket want? Of several wishes, take the one that would close the ticket."""

    text: str = dspy.InputField()
    category: Category = dspy.OutputField()


class Extract(dspy.Signature):
    """Which sentence of this support ticket says what the writer wants?"""

    text: str = dspy.InputField()
    wish: str = dspy.OutputField()


class Judge(dspy.Signature):
    """How urgent is this support ticket? What counts is what waiting would do, never the tone."""

    text: str = dspy.InputField()
    urgency: Urgency = dspy.OutputField()


class PlanStep(dspy.Signature):
    """What do we do about this support ticket next? Heed the remarks on earlier tries."""

    text: str = dspy.InputField()
    category: str = dspy.InputField()
    remarks: list[str] = dspy.InputField()
    step: Step = dspy.OutputField()


def contract(plan: str) -> dict[str, Any]:
    """Write the urgency 'normal' for the business plan, which promises an answer within a day."""
    return {"urgency": "normal"} if plan == "business" else {}


def more_urgent(conflict: Conflict) -> Any:
    """Keep the more urgent of two judgements: the merge policy for `urgency`."""
    return max(conflict.left, conflict.right, key=lambda urgency: RANK.get(urgency, -1))


def triage(category: str, urgency: str) -> Literal["escalate", "answer"]:
    """Route an urgent ticket about access or a bug to a person."""
    return "escalate" if urgency == "high" and category in ("account_access", "bug") else "answer"


def escalate(product: str) -> dict[str, Any]:
    return {"reply": f"A colleague of the {product} team is looking at this now and writes within the hour."}


def check(category: str, step: str) -> dict[str, Any]:
    """Count the try, and add a remark if the step does not suit the category."""
    suits = STEP_OF[category]
    remarks = [] if step == suits else [f"To {step} does not help with {category}; rather {suits}."]
    return {"remarks": remarks, "tries": 1}


def good_enough(remarks: list[str], tries: int) -> Literal["yes", "again"]:
    """Route to the answer if the last try got no remark, and after three tries in any case."""
    return "yes" if len(remarks) < tries or tries == 3 else "again"


def answer(step: str, wish: str, urgency: str) -> dict[str, Any]:
    when = {"high": "within the hour", "normal": "tomorrow", "low": "this week"}[urgency]
    return {"reply": f"You wrote: \u201c{wish}\u201d We will {step} and write to you {when}."}


def desk() -> CompiledGraph:
    """Build and compile the graph."""
    graph = Graph(Ticket, name="Desk", inputs=["text", "product", "plan"], merge={"urgency": more_urgent})
    graph.add_node("classify", dspy.Predict(Classify))
    graph.add_node("extract", dspy.Predict(Extract))
    graph.add_node("urgency", dspy.Predict(Judge))
    graph.add_node("contract", contract, writes=["urgency"])
    graph.add_node("triage", lambda: None, writes=[])
    graph.add_node("escalate", escalate, writes=["reply"])
    graph.add_node("plan_step", dspy.Predict(PlanStep))
    graph.add_node("check", check, writes=["remarks", "tries"])
    graph.add_node("answer", answer, writes=["reply"])

    graph.add_edge(START, ["classify", "extract", "urgency", "contract"])  # fork: all at once
    graph.add_edge(["classify", "extract", "urgency", "contract"], "triage")  # join: once, with what all four wrote
    graph.add_conditional_edges("triage", triage, {"escalate": "escalate", "answer": "plan_step"})
    graph.add_edge("plan_step", "check")
    graph.add_conditional_edges("check", good_enough, {"again": "plan_step", "yes": "answer"})
    graph.add_edge(["answer", "escalate"], END)
    return graph.compile(max_steps=50)


def tickets(split: Literal["train", "dev", "test"]) -> list[dspy.Example]:
    """Return the labelled tickets of one split, as DSPy examples."""
    lines = (DATA / "tickets.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["split"] == split]
    return [dspy.Example(**row).with_inputs("text", "product", "plan") for row in rows]


def inbox() -> list[dspy.Example]:
    """Return the held-out tickets that the examples print, two of each category."""
    by_id = {ticket.id: ticket for ticket in tickets("test")}
    return [by_id[name] for name in INBOX]


def line(ticket: dspy.Example, *runs: Run) -> str:
    """Return a line with a ticket and each run's category and urgency, marked right or wrong by the labels."""
    cells = [
        f"{run.state[field] or '-'} {mark(run, ticket, field)}" for run in runs for field in ("category", "urgency")
    ]
    text = ticket.text if len(ticket.text) < 46 else f"{ticket.text[:45]}…"
    return f"  {text:<46}  " + "".join(f"{cell:<{19 if i % 2 == 0 else 11}}" for i, cell in enumerate(cells)).rstrip()


def mark(run: Run, ticket: dspy.Example, field: str) -> str:
    return "✓" if run.state[field] == ticket[field] else "✗"
