"""A run is killed and resumed by another process: nodes that had finished are not called again.

python examples/killed.py          # kills a child process with SIGKILL, then resumes its run
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
from pydantic import BaseModel
from triage import Classify, Judge, tickets

from dspyer import END, START, CompiledGraph, Graph

TICKETS = 12
CALLS_BEFORE_THE_KILL = 14
AT_ONCE = 2  # tickets that each branch handles at the same time


class Night(BaseModel):
    """The tickets of one night."""

    inbox: list[str]
    categories: list[str] = []
    urgencies: list[str] = []
    summary: str | None = None


class Calls:
    """Count calls in a file that outlives the process, and kill the process at one of them."""

    def __init__(self, path: Path, kill_at: int | None) -> None:
        self.path = path
        self.kill_at = kill_at

    def note(self, node: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{node}\n")
        if self.kill_at is not None and sum(self.counted().values()) >= self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)  # no exception and no cleanup: the process ends at once

    def counted(self) -> Counter[str]:
        return Counter(self.path.read_text(encoding="utf-8").split()) if self.path.exists() else Counter()


def night_desk(calls: Calls, store: Path) -> CompiledGraph:
    """The graph: categories and urgencies of all tickets in two branches, then one summary."""

    def category(ticket: str, ask: dspy.Module) -> str:
        calls.note("category")
        return str(ask(text=ticket).category)

    def urgency(ticket: str, ask: dspy.Module) -> str:
        calls.note("urgency")
        return str(ask(text=ticket).urgency)

    def summarize(categories: list[str], urgencies: list[str]) -> dict[str, Any]:
        calls.note("summarize")
        urgent = Counter(name for name, rank in zip(categories, urgencies, strict=True) if rank == "high")
        return {"summary": ", ".join(f"{name} {count}" for name, count in sorted(urgent.items())) or "nothing"}

    graph = Graph(Night)
    graph.add_map(
        "categorize", category, over="inbox", item="ticket", into="categories", modules={"ask": dspy.Predict(Classify)}
    )
    graph.add_map("judge", urgency, over="inbox", item="ticket", into="urgencies", modules={"ask": dspy.Predict(Judge)})
    graph.add_node("summarize", summarize, writes=["summary"])
    graph.add_edge(START, ["categorize", "judge"])
    graph.add_edge(["categorize", "judge"], "summarize")
    graph.add_edge("summarize", END)
    return graph.compile(store=store, max_concurrency=AT_ONCE)


def work(folder: Path, kill_at: int | None) -> None:
    """Start the run in the first process, which is killed; resume it in the second one."""
    calls = Calls(folder / "calls.txt", kill_at)
    thread = night_desk(calls, folder / "runs.db").thread("tonight")
    if thread.status == "new":
        thread.run({"inbox": [ticket.text for ticket in tickets("dev")[:TICKETS]]})
    else:
        print(f"  thread 'tonight' is {thread.status!r}: resume")
        run = thread.resume()
        print(f"  {run.status}; urgent: {run.state['summary']}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        child = subprocess.run([sys.executable, __file__, str(folder), str(CALLS_BEFORE_THE_KILL)], check=False)
        before = Calls(folder / "calls.txt", None).counted()
        print(f"The first process: {'killed by SIGKILL' if child.returncode == -signal.SIGKILL else child.returncode}")
        print("The second process:")
        subprocess.run([sys.executable, __file__, str(folder)], check=True)
        after = Calls(folder / "calls.txt", None).counted()
        print(f"\n{'calls':<12}{'first':>7}{'second':>8}{'needed':>8}")
        needed = {"category": TICKETS, "urgency": TICKETS, "summarize": 1}
        for node, least in needed.items():
            print(f"{node:<12}{before[node]:>7}{after[node] - before[node]:>8}{least:>8}")
        again = sum(after.values()) - sum(needed.values())
        print(f"\ncalled twice: {again}, which ran when the process was killed; at most {2 * AT_ONCE} do")


if __name__ == "__main__":
    dspy.configure(lm=language_model())
    if len(sys.argv) > 1:
        work(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
    else:
        main()
