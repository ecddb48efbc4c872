"""The program of a fleet: it classifies and verifies a request, asks a person above 50 USD, and pays.

Each of `fleet_tasks.py` (Procrastinate), `celery_tasks.py` and `temporal_activities.py` puts a queue in front of it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import dspy
from model import language_model
from pydantic import BaseModel
from triage import Classify

from dspyer import END, START, CompiledGraph, Context, Graph

DATABASE = os.environ.get("DATABASE_URL", "postgresql://localhost/desk")
BANK = Path("bank.txt")  # stands for a bank: a line for each request that reached it


class Refund(BaseModel):
    """A customer wants money back."""

    text: str
    amount: float
    category: str | None = None
    covered: bool | None = None
    approved: bool | None = None
    receipt: str | None = None


def verify(amount: float) -> dict[str, Any]:
    """Ask the bank, which takes a while."""
    tell_the_bank(f"verify {amount:.2f} by process {os.getpid()}")
    time.sleep(0.2)
    return {"covered": True}


def pay(amount: float, ctx: Context) -> dict[str, Any]:
    """Pay once: the receipt is stored before the node goes on, and the bank gets the same key from every attempt."""

    def transfer(key: str) -> str:
        tell_the_bank(f"transfer {amount:.2f} key {key}")
        return f"receipt {key[:8]}"

    return {"receipt": ctx.once("pay", transfer)}


def tell_the_bank(line: str) -> None:
    with BANK.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def refunds() -> CompiledGraph:
    """The graph: classify and verify a request, ask a person above 50 USD, pay."""
    dspy.configure(lm=language_model())
    graph = Graph(Refund, inputs=["text", "amount"])
    graph.add_node("classify", dspy.Predict(Classify))
    graph.add_node("verify", verify, writes=["covered"])
    graph.add_interrupt("approve", question="Pay back {amount} USD?", answer=bool, into="approved")
    graph.add_node("pay", pay, writes=["receipt"])
    graph.add_path(START, "classify", "verify")
    graph.add_conditional_edges(
        "verify", lambda amount: "approve" if amount > 50 else "pay", {"approve": "approve", "pay": "pay"}
    )
    graph.add_conditional_edges("approve", "approved", {True: "pay", False: END})
    graph.add_edge("pay", END)
    return graph.compile(store=DATABASE)
