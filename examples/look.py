"""Stored runs to look at: two that are done, one that failed, one that waits for an answer.

python examples/look.py            # makes demo.db here, and says how to look at it in a terminal and in a browser
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import dspy
from model import language_model
from pydantic import BaseModel
from tenacity import wait_fixed
from triage import STEP_OF, Category, Classify, Extract, Judge, Urgency, tickets

from dspyer import END, START, CompiledGraph, Context, Graph, Retry

FILE = "demo.db"
PRICES = {"tallow": 18.0, "quillbox": 9.0, "parcelhen": 12.0}  # per month; the one of "rotawing" is missing


class Case(BaseModel):
    """A ticket that may cost money."""

    text: str
    product: str
    category: Category | None = None
    wish: str | None = None
    urgency: Urgency | None = None
    price: float | None = None
    offer: str | None = None
    approved: bool | None = None
    outcome: str | None = None


def look_up(product: str) -> dict[str, Any]:
    """Write the price of a product; of one that is new, the price may come a moment later."""
    if product not in PRICES:
        raise ConnectionError(f"the price list does not know {product!r} yet")
    return {"price": PRICES[product]}


def draft(category: str, wish: str, price: float) -> dict[str, Any]:
    return {"offer": f"{STEP_OF[category]}, and take {price:.2f} off the next invoice. You wrote: {wish}"}


def send(offer: str, ctx: Context) -> dict[str, Any]:
    return {"outcome": ctx.once("letter", lambda: f"a letter of {len(offer)} characters was sent")}


def refuse() -> dict[str, Any]:
    return {"outcome": "nothing was sent"}


def desk() -> CompiledGraph:
    """The program: read a ticket in three branches, look the price up, draft an offer, ask a person, send it.

    The command line and the inspector call this function too, when they act on the runs.
    """
    dspy.configure(lm=language_model())
    graph = Graph(Case, name="Offers", inputs=["text", "product"])
    graph.add_node("classify", dspy.Predict(Classify))
    graph.add_node("extract", dspy.Predict(Extract))
    graph.add_node("urgency", dspy.Predict(Judge))
    graph.add_node("look_up", look_up, writes=["price"], retry=Retry(attempts=3, wait=wait_fixed(0.2)))
    graph.add_node("draft", draft, writes=["offer"])
    graph.add_interrupt("approve", question="Send this? {offer}", answer=bool, into="approved")
    graph.add_node("send", send, writes=["outcome"])
    graph.add_node("refuse", refuse, writes=["outcome"])
    graph.add_edge(START, ["classify", "extract", "urgency", "look_up"])
    graph.add_edge(["classify", "extract", "urgency", "look_up"], "draft")
    graph.add_edge("draft", "approve")
    graph.add_conditional_edges("approve", "approved", {True: "send", False: "refuse"})
    graph.add_edge(["send", "refuse"], END)
    return graph.compile(store=FILE, record_lm_calls="full")


def make() -> None:
    """Run four tickets, each on a thread of its own: the answers are yes, no, none yet, and none that is needed."""
    for suffix in ("", "-wal", "-shm"):
        Path(FILE + suffix).unlink(missing_ok=True)
    program = desk()
    by_product = {ticket.product: ticket for ticket in tickets("dev")}
    for product, answer in (("tallow", True), ("quillbox", False), ("parcelhen", None), ("rotawing", None)):
        ticket = by_product[product]
        thread = program.thread(f"{product}-{ticket.id}")
        run = thread.run({"text": ticket.text, "product": product})
        if answer is not None:
            run = thread.resume({"approve": answer})
        print(f"  {thread.name:<16} {run.status:<12} {run.state['outcome'] or run.error or run.questions[0].text}")


def main() -> None:
    print(f"Four tickets, in {FILE}:")
    make()
    command = os.path.relpath(Path(sys.executable).parent / "dspyer")
    print("\nLook at them in the terminal, or in a browser, where you can answer, edit a copy and run on:")
    print(f"  {command} runs --store {FILE}")
    print(f"  PYTHONPATH={os.path.relpath(Path(__file__).parent)} {command} inspect {FILE} --program look:desk")


if __name__ == "__main__":
    main()
