"""An extraction that corrects itself: the lines of an invoice must add up to its total.

python examples/extract.py                                   # offline: with the reader of invoices below
DSPYER_MODEL=openai/gpt-4o-mini python examples/extract.py   # with a real model

START ── extract ── adds_up ─┬─ END
                     │   │   │
                     └ extract_fix
"""

from __future__ import annotations

import os
import re
from typing import Any

import dspy
from model import language_model
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Thread
from dspyer.testing import ScriptedLM
from dspyer.testing.prompt import Prompt

TRAIN = [
    "Hi, for the pump we owe you: valve 12.50; 3 x seal 2.00; labour 40.00. Total 58.50",
    "invoice 77 // oil 9.90 // 2 x filter 7.10 // total 24.10",
    "Roof repair: tiles 120.00, 4 x hook 1.50, nails 3.20. TOTAL 129.20",
    "paint 30.00 and brushes 8.00. Total 38.00",
]
TEST = [
    "Dear all, 2 x desk 15.00, cable 4.40. Total: 34.40",
    "cement 11.00; sand 6.00; total 17.00",
    "5 x screw 0.20, plate 3.00 -- total 4.00",
    "soap 2.00; 3 x towel 5.00; total 17.00",
    "2 x ticket 9.00; fee 1.00; total 24.00",  # its writer has added up wrongly
]


class Line(BaseModel):
    """One line of an invoice; the amount is that of all pieces."""

    item: str
    amount: float


class Invoice(BaseModel):
    """An invoice as text, and what was found in it."""

    text: str
    lines: list[Line] = []
    total: float = 0.0
    problems: list[str] = []


class Extract(dspy.Signature):
    """Find the lines and the total of an invoice."""

    text: str = dspy.InputField()
    lines: list[Line] = dspy.OutputField(desc="each with the amount of all its pieces")
    total: float = dspy.OutputField()


def adds_up(lines: list[Line], total: float) -> list[str]:
    """The check: strict, and without the right answer."""
    missing = total - sum(line.amount for line in lines)
    return [] if abs(missing) < 0.005 else [f"the lines miss the total by {missing:.2f}"]


def invoice_program() -> CompiledGraph:
    graph = Graph(Invoice)
    graph.add_node("extract", dspy.Predict(Extract))
    graph.add_check("adds_up", adds_up, of="extract", max_fixes=1, accept=True)
    return graph.add_path(START, "extract", END).compile(store=":memory:")


def read_invoice(prompt: Prompt) -> dict[str, Any]:
    """Answers as a small model might: it takes the price of one piece for all, until the prompt shows that it matters.

    A demonstration with pieces shows it, and so does the problem of a correction.
    """
    careful = "problems" in prompt.inputs or any(" x " in str(demo) for demo in prompt.demos)
    text = prompt.inputs["text"]
    body, _, total = re.split(r"(total)\W*", text, flags=re.IGNORECASE)
    lines = [
        {"item": item, "amount": round(float(price) * (int(pieces or 1) if careful else 1), 2)}
        for pieces, item, price in re.findall(r"(?:(\d+) x )?([a-z]+) (\d+\.\d\d)", body)
    ]
    return {"lines": lines, "total": float(total)}


def figures(letters: Thread) -> str:
    """How often the first output passed, how often a correction helped, and what is left."""
    one = letters.stats().nodes["extract"]
    return f"first try {one.first_try} of {one.visits}, corrected {one.corrected}, left {one.accepted}"


def main() -> None:
    dspy.configure(lm=language_model() if os.environ.get("DSPYER_MODEL") else ScriptedLM(read_invoice))
    program = invoice_program()
    print(program.graph.explain(), "\n")

    train, written, tuned = (program.thread(name) for name in ("train", "as written", "tuned"))
    for text in TRAIN:
        train.run({"text": text})
    print("the letters to learn from:", figures(train))
    repairs = train.repairs()
    for repair in repairs[:1]:
        print("  ", repair.text)
        print("   refused ", [line.amount for line in repair.rejected[0]["lines"]], repair.problems[0][0])
        print("   accepted", [line.amount for line in repair.lines])

    for text in TEST:
        written.run({"text": text})
    print("the others, as written:   ", figures(written))
    program.extract = dspy.LabeledFewShot(k=2).compile(program.extract, trainset=repairs)
    left = [run.state for run in [tuned.run({"text": text}) for text in TEST] if run.state["problems"]]
    print(f"tuned with {len(repairs)} repairs:     ", figures(tuned))
    for state in left:
        print("   to be looked at:", state["text"], "--", *state["problems"])
    print()
    print(tuned.stats())


if __name__ == "__main__":
    main()
