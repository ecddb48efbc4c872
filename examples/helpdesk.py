"""A help desk over three messages of one customer: tools, a refund that a person approves, and a killed process.

python examples/helpdesk.py          # offline: a script responds for the model

The first process is killed by SIGKILL while one of three calls of a turn runs. The second one resumes: it repeats that
call alone, and no LM call. The refund waits for a person, and is made once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
from model import language_model

from dspyer import CompiledGraph, Run, Thread, agents, view
from dspyer.testing import ScriptedLM
from dspyer.testing.prompt import Prompt

OFFLINE = not os.environ.get("DSPYER_MODEL")
ORDERS = {"A-17": {"item": "kettle", "price": 79.0}, "A-18": {"item": "toaster", "price": 35.0}}


class Journal:
    """Notes each call in a file that outlives the process; kills the process when it notes the call `kill_at`."""

    def __init__(self, path: Path, kill_at: str = "") -> None:
        self.path = path
        self.kill_at = kill_at

    def note(self, call: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{call}\n")
        if call == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)  # no exception and no cleanup: the process ends at once

    def counted(self) -> Counter[str]:
        return Counter(self.path.read_text(encoding="utf-8").splitlines())


def help_desk(journal: Journal, store: Path) -> CompiledGraph:
    """The agent. `refund` asks above 50 USD, and its effect is recorded before anything else goes on."""

    def find_order(number: str) -> dict[str, Any]:
        """Finds an order by its number."""
        journal.note(f"find_order {number}")
        return ORDERS[number]

    def stock(item: str) -> str:
        """Says how many of an item there are."""
        journal.note(f"stock {item}")
        return f"3 {item}s"

    def refund(number: str, amount: float, key: str) -> str:
        """Pays money back, in USD."""
        journal.note(f"refund {number} {amount:.2f}")
        return f"refunded {amount:.2f}; receipt {key[-4:]}"

    desk = agents.tool_loop(
        "message -> reply",
        tools=[find_order, stock, agents.tool(refund, approve=lambda amount: amount > 50, effect=True, retry=3)],
        context=view("messages").turns(20),
        name="HelpDesk",
    )
    return desk.compile(
        store=store, max_concurrency=1
    )  # one call after the other: the demonstration is always the same


# --- offline, a script responds for the model


def turn(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The answer of a model that calls tools."""
    return {"next_thought": "", "tool_calls": {"tool_calls": [{"name": name, "args": args} for name, args in calls]}}


MESSAGES = [
    "Hello, do you sell toasters?",
    "My kettle of order A-17 is broken, and the toaster of A-18, too. Are there other kettles?",
    "Thank you!",
]
SCRIPT = {
    ("tool_call_results", "3 toasters"): turn(("submit", {"reply": "Yes, three are in stock."})),
    ("tool_call_results", "refunded"): turn(("submit", {"reply": "You get 79 and 35 USD back; kettles are in stock."})),
    ("tool_call_results", "3 kettles"): turn(
        ("refund", {"number": "A-17", "amount": 79.0}), ("refund", {"number": "A-18", "amount": 35.0})
    ),
    ("message", "toasters?"): turn(("stock", {"item": "toaster"})),
    ("message", "broken"): turn(
        ("find_order", {"number": "A-17"}), ("find_order", {"number": "A-18"}), ("stock", {"item": "kettle"})
    ),
    ("message", "Thank you"): turn(("submit", {"reply": "You are welcome."})),
}


def answer(prompt: Prompt) -> dict[str, Any]:
    """Answers by the results of the last turn, or else by the message."""
    return next(answer for (field, text), answer in SCRIPT.items() if text in prompt.inputs.get(field, ""))


# --- the two processes


def work(folder: Path, kill_at: str = "") -> None:
    """Answer the messages that the thread has no reply to yet; resume what another process has left."""
    journal = Journal(folder / "calls.txt", kill_at)

    def counted(prompt: Prompt) -> dict[str, Any]:
        journal.note("LM call")
        return answer(prompt)

    dspy.configure(lm=ScriptedLM(counted) if OFFLINE else language_model())
    thread = help_desk(journal, folder / "runs.db").thread("customer-3")
    if thread.status == "crashed":
        print("  the thread is 'crashed': resume")
        show(thread.resume(), thread)
    asked = sum(message["role"] == "user" for message in thread.state["messages"]) if thread.status != "new" else 0
    for message in MESSAGES[asked:]:
        print(f"customer: {message}")
        show(thread.run({"message": message}), thread)


def show(run: Run, thread: Thread) -> None:
    """The reply of a run; what it asks is asked of the person at the desk."""
    while run.status == "interrupted":
        question = run.questions[0]
        answer = OFFLINE or input(f"{question.text} [y/n] ") == "y"
        print(f"    the desk is asked: {question.text} {'yes' if answer else 'no'}")
        run = thread.resume({question.id: answer})
    run.raise_error()
    print(f"desk:     {run.state['reply']}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, __file__, str(folder), "find_order A-18"]
        print("The first process:", flush=True)
        child = subprocess.run(command, check=False)
        before = Journal(folder / "calls.txt").counted()
        print(f"  {'killed by SIGKILL' if child.returncode == -signal.SIGKILL else child.returncode}\n")
        print("The second process:")
        work(folder)
        print("\ncalls of both processes:")
        for call, count in Journal(folder / "calls.txt").counted().items():
            print(f"  {count} x {call}{f' ({before[call]} before the kill)' if before[call] else ''}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(Path(sys.argv[1]), sys.argv[2])
    else:
        main()
