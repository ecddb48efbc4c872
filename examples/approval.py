"""A person approves in the middle of a run. The process that asked ends; another one continues with the answer.

python examples/approval.py                       # both processes, one after the other
python examples/approval.py ask                   # or separately: runs until it asks, and ends
python examples/approval.py answer yes            # tomorrow, in another process
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dspy
from model import language_model
from pydantic import BaseModel
from triage import STEP_OF, Classify, Extract, tickets

from dspyer import END, START, CompiledGraph, Context, Graph

FILE = "approval.db"


class Case(BaseModel):
    """A ticket that may cost money."""

    text: str
    category: str | None = None
    wish: str | None = None
    offer: str | None = None
    approved: bool | None = None
    outcome: str | None = None


def draft(category: str, wish: str) -> dict[str, Any]:
    return {"offer": f"{STEP_OF[category]}, since you wrote: {wish}"}


def send(offer: str, ctx: Context) -> dict[str, Any]:
    """Send the letter once: the result of the effect is stored, so a second attempt does not send it again."""
    receipt = ctx.once("letter", lambda: f"letter {len(offer)} sent by process {os.getpid()}")
    return {"outcome": receipt}


def refuse() -> dict[str, Any]:
    return {"outcome": "nothing was sent"}


def desk() -> CompiledGraph:
    """The graph: read a ticket, draft an offer, ask a person, send it."""
    graph = Graph(Case, inputs=["text"])
    graph.add_node("classify", dspy.Predict(Classify))
    graph.add_node("extract", dspy.Predict(Extract))
    graph.add_node("draft", draft, writes=["offer"])
    graph.add_interrupt("approve", question="Send this? {offer}", answer=bool, into="approved")
    graph.add_node("send", send, writes=["outcome"])
    graph.add_node("refuse", refuse, writes=["outcome"])
    graph.add_edge(START, ["classify", "extract"])
    graph.add_edge(["classify", "extract"], "draft")
    graph.add_edge("draft", "approve")
    graph.add_conditional_edges("approve", "approved", {True: "send", False: "refuse"})
    graph.add_edge(["send", "refuse"], END)
    return graph.compile(store=FILE)


def ask() -> None:
    """Run until the question; then the process ends, and nothing waits."""
    ticket = tickets("dev")[3]
    run = desk().thread("case-7").run({"text": ticket.text})
    print(f"process {os.getpid()}: {run.status} after {len(run.commits)} commits")
    for question in run.questions:
        print(f"  {question.key}: {question.text}")


def answer(said: str) -> None:
    """Resume the run with the answer: the LM is not called again."""
    thread = desk().thread("case-7")
    print(f"process {os.getpid()}: the thread is {thread.status}, it asks {[q.key for q in thread.questions]}")
    run = thread.resume(answers={"approve": said == "yes"})
    print(f"  {run.status}: {run.state['outcome']}; LM calls of this process: {len(run.trace)}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for words in (["ask"], ["answer", "yes"]):
            subprocess.run([sys.executable, str(Path(__file__).resolve()), *words], cwd=folder, check=True)


if __name__ == "__main__":
    dspy.configure(lm=language_model())
    match sys.argv[1:]:
        case ["ask"]:
            ask()
        case ["answer", said]:
            answer(said)
        case _:
            main()
