"""Yesterday's failed run: an archive finds it, shows what it read, asked and spent, and a corrected copy of it goes on.

python examples/read.py                                   # offline: a script responds for the model
DSPYER_MODEL=openai/gpt-4o-mini python examples/read.py   # with a real model
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dspy
from model import language_model

from dspyer import END, START, Archive, Budget, CompiledGraph, Graph
from dspyer.testing import ScriptedLM

PAID = {"A-17": 40.0, "B-4": 12.5}
LETTERS = {
    "ada": "My kettle, order A-17, came broken.",
    "bob": "The order A-71 never came. - No, wait: it is A-17!",
    "cy": "Where is my order B-4?",
}


# --- the program, and a day of its work


def look_up(order: str) -> dict[str, Any]:
    """What was paid for an order; one that is not there is an error."""
    return {"paid": PAID[order]}


def support(store: str) -> CompiledGraph:
    """Finds the order in a letter, looks it up, and replies."""
    graph = Graph(name="Support")
    graph.add_node("find", dspy.Predict("letter -> order"))
    graph.add_node("look_up", look_up, writes=["paid"])
    graph.add_node("answer", dspy.Predict("letter, paid: float -> reply"))
    graph.add_path(START, "find", "look_up", "answer", END)
    budget = Budget(cost=1, prices={"scripted": (0.15, 0.60)})
    return graph.compile(store=store, record_lm_calls="full", budget=budget)


def respond(prompt: Any) -> dict[str, Any]:
    """The offline model. It takes the first number that it finds, and never reads on."""
    if "paid" in prompt.inputs:
        return {"reply": f"We are sorry. {prompt.inputs['paid']} are on their way to you."}
    number = next(word.strip(",.?!") for word in prompt.inputs["letter"].split() if "-" in word and len(word) > 1)
    return {"order": number}


@contextmanager
def a_model() -> Iterator[None]:
    """A script, or the model that the environment names."""
    with dspy.context(lm=language_model() if os.environ.get("DSPYER_MODEL") else ScriptedLM(respond)):
        yield


def work(file: str) -> None:
    """One thread for each letter."""
    for name, letter in LETTERS.items():
        print(f"  {name:4}{support(file).thread(name).run({'letter': letter}).status}")


# --- the next day: an archive needs the file alone


def read(file: str) -> tuple[str, str] | None:
    """Show the failed run; return its thread and its last commit."""
    with Archive(file) as archive:
        failed = archive.runs(status="failed", since=datetime.now().astimezone() - timedelta(days=1))
        for info in failed:
            print(f"  {info.thread}, {info.steps} steps, {info.cost or 0:.6f} USD: {info.failure}")
        if not failed or failed[0].failure is None:
            return None
        info = failed[0]
        thread = archive.thread(info.thread)
        last = thread.history(run=info.run_id, newest=True, count=1)[0]
        record = thread.record(info.run_id)
        step = record.step(last.id)
        print(f"  it had read       {record.state(step.after[0])['letter']}")
        print(f"  and written       {thread.diff(step.after[0], step.id)}")
        for call in thread.lm_calls(last.id):
            messages = call.messages or []
            print(f"  it had asked      {call.model}, {len(messages)} messages, {call.prompt_tokens} tokens")
        print(f"  order comes from  {thread.blame('order', at=last.id).node}")
        return info.thread, last.id


def go_on(file: str, name: str, at: str) -> None:
    """Acting needs the program: a copy begins where the run failed, with another order."""
    copy = support(file).thread(name).copy(to="try-1", at=at, patch={"order": "A-17"})
    run = copy.resume()
    print(f"  {run.status}: {run.state['reply']}")
    with Archive(file) as archive:
        for info in archive.threads():
            print(f"  {info.thread:6}{info.status}, {info.steps} steps")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, a_model():
        database = str(Path(folder) / "support.db")
        print("a day of work")
        work(database)
        print("what failed since yesterday")
        found = read(database)
        if found is not None:
            print("a corrected copy")
            go_on(database, *found)
