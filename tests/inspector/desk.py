"""A store with runs of each kind for the tests of the page, and a process that runs a graph step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import dspy
from pydantic import BaseModel, Field

from dspyer import END, START, CompiledGraph, Graph, Run, live, reducers
from dspyer.testing import ScriptedLM
from tests.children import Child

HOSTILE = "<img src=x onerror=window.hacked=1></script><script>window.hacked=1</script>javascript:window.hacked=1 'x'"
LONG = 700  # steps of the thread "long"


class Desk(BaseModel):
    text: str
    amount: Annotated[int, Field(ge=0)] = 0
    both: list[str] = []
    notes: Annotated[list[str], reducers.extend, live] = []
    reply: str = ""
    ok: bool | None = None
    sent: str = ""
    extra: dict[str, Any] = {}


def look(text: str, ctx: Any) -> dict[str, Any]:
    ctx.post("notes", [f"looked at {text}"])
    return {"both": ["look"], "extra": {text: [text, {"deep": text}]}}


def send(text: str, amount: int) -> dict[str, Any]:
    if "fail" in text:
        raise ValueError(f"cannot send {text}")
    return {"sent": f"sent {amount}"}


def desk_graph() -> Graph:
    """A fork with a conflict, a language model, a question, and a route with a hostile label."""
    graph = Graph(Desk, name="Desk", merge={"both": "last_write_wins"})
    graph.add_node("look", look, reads=["text"], writes=["both", "extra", "notes"])
    graph.add_node("weigh", lambda text: {"both": ["weigh"], "amount": len(text)}, writes=["both", "amount"])
    graph.add_node("draft", dspy.Predict("text -> reply"))
    graph.add_interrupt("ask", question=lambda text: f"Send {text}?", answer=bool, into="ok")
    graph.add_node("send", send, writes=["sent"])
    graph.add_edge(START, ["look", "weigh"]).add_edge(["look", "weigh"], "draft").add_edge("draft", "ask")
    routes = {HOSTILE: "send", "no": END}
    graph.add_conditional_edges("ask", lambda ok: HOSTILE if ok else "no", routes).add_edge("send", END)
    return graph


def long_graph(steps: int) -> Graph:
    """A loop."""
    graph = Graph(name="Long", inputs=["n", "text"])
    graph.add_node("step", lambda n: {"n": n + 1}, writes=["n"]).add_path(START, "step")
    graph.add_conditional_edges("step", lambda n: "step" if n < steps else END, ["step", END])
    return graph


def fill(path: Path) -> tuple[CompiledGraph, Run]:
    """Fill a store; gives the program that acts, and the run of the thread "long"."""
    program = desk_graph().compile(store=str(path), record_lm_calls="full")
    texts = {
        "waits-1": "a letter",
        "waits-2": "a card",
        HOSTILE: HOSTILE,
        "failed": "fail",
        "hostile-error": f"fail {HOSTILE}",
    }
    with dspy.context(lm=ScriptedLM(lambda prompt: {"reply": f"dear {prompt.inputs['text']}"})):
        for name, text in texts.items():
            thread = program.thread(name)
            thread.run({"text": text})
            if "fail" in text:
                thread.resume({"ask": True})
    long = long_graph(LONG).compile(store=str(path), max_steps=LONG + 2).thread("long")
    return program, long.run({"n": 0, "text": HOSTILE})


STEPPING = """
import sys
from dspyer import END, START, Graph

def step(n):
    line = sys.stdin.readline()  # one step for each line
    if line.startswith("fail"):
        raise ValueError("told to fail")
    return {"n": n + 1}

graph = Graph(name="Watched", inputs=["n"]).add_node("step", step, writes=["n"]).add_path(START, "step")
graph.add_conditional_edges("step", lambda n: "step" if n < 5 else END, ["step", END])
program = graph.compile(store=sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
program.thread("watched").run({"n": 0})
"""


class Stepping:
    """Another process that runs the thread "watched", one step for each `go`."""

    def __init__(self, path: Path) -> None:
        self._process = Child(STEPPING, str(path))

    def ready(self) -> None:
        """Wait until it has imported everything."""
        assert self._process.stdout.readline() == "ready\n"

    def go(self, word: str = "go") -> None:
        """Let it make a step; the first one starts the run."""
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill it in the middle of a step."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Wait for its end."""
        self._process.stdin.close()
        self._process.wait()
