"""A support desk on 336 tickets: tuned, resumed after a failure, read. The home page shows its parts.

python examples/home.py    # offline, 10 s
"""
# ruff: noqa: E402

import json
import os
import tempfile
from pathlib import Path

os.chdir(tempfile.mkdtemp())  # where desk.db goes

# fmt: off
# --8<-- [start:graph]
from typing import Literal

import dspy

from dspyer import END, START, Graph

Category = Literal["billing", "bug", "how_to", "account_access",
                   "feature_request", "cancellation"]
Urgency = Literal["low", "normal", "high"]

graph = Graph(name="Desk")
graph.add_node("sort", dspy.Predict("text -> category: Category"))
graph.add_node("rate", dspy.Predict("text -> urgency: Urgency"))
graph.add_node("reply", dspy.Predict("text, category, urgency -> reply"))
graph.add_edge(START, ["sort", "rate"])    # both run at once
graph.add_edge(["sort", "rate"], "reply")  # once, with both results
graph.add_edge("reply", END)

program = graph.compile(store="desk.db")   # a dspy.Module
# --8<-- [end:graph]

from dspyer.testing import Asks, NearestLM, ScriptedLM

dspy.configure(lm=NearestLM())
tickets: dict[str, list[dspy.Example]] = {"train": [], "dev": [], "test": []}
for line in (Path(__file__).resolve().parent / "data" / "tickets.jsonl").open():
    row = json.loads(line)
    fields = {name: row[name] for name in ("text", "category", "urgency")}
    example = dspy.Example(**fields, reply="We look into it.")
    tickets[row["split"]].append(example.with_inputs("text"))
train, test = tickets["train"], tickets["test"]


# --8<-- [start:tune]
def right(ticket, prediction, trace=None):
    return prediction.category == ticket.category


tuned = dspy.LabeledFewShot(k=144).compile(program, trainset=train)
evaluate = dspy.Evaluate(devset=test, metric=right)
print(evaluate(program).score, "->", evaluate(tuned).score)
# --8<-- [end:tune]

lm = ScriptedLM([
    (Asks("category"), [{"category": "billing"}]),
    (Asks("urgency"), [{"urgency": "high"}]),
    (Asks("reply"), [OSError("overloaded"), {"reply": "Refunded."}]),
])
with lm:
    # --8<-- [start:resume]
    ticket = tuned.thread("ticket-4711")
    run = ticket.run({"text": "You charged my card twice!"})
    print(run.status, "|", run.error, "|", len(lm.calls), "LM calls")

    run = ticket.resume()  # a minute or a week later, in any process
    print(run.state["reply"], "|", len(lm.calls), "LM calls")
    # --8<-- [end:resume]
