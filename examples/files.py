"""An agent that changes the files of a folder, and a guard beside it.

python examples/files.py                                   # offline
DSPYER_MODEL=openai/gpt-4o-mini python examples/files.py   # with a real model
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dspy

from dspyer import END, START, CompiledGraph, Graph, agents
from dspyer.events import Token
from dspyer.testing import Prompt, ScriptedLM

MODEL = os.environ.get("DSPYER_MODEL")


class Folder:
    """The folder of one user: a resource of a run, so that no model names it."""

    def __init__(self, root: str) -> None:
        self.root = Path(root).resolve()

    def path(self, name: str) -> Path:
        """Return the path of a file, which must be in the folder."""
        path = (self.root / name).resolve()  # follows links, which may lead out of it
        if not path.is_relative_to(self.root):
            raise ValueError(f"{name!r} is outside of the folder")
        return path


def list_files(folder: Folder) -> list[str]:
    """List the files."""
    return sorted(str(path.relative_to(folder.root)) for path in folder.root.rglob("*") if path.is_file())


def read_file(name: str, folder: Folder) -> str:
    """Read a file."""
    return folder.path(name).read_text()


def write_file(name: str, text: str, folder: Folder) -> str:
    """Write a file, whole."""
    folder.path(name).write_text(text)
    return f"{len(text)} characters written"


def is_valid(args: Mapping[str, Any]) -> list[str]:
    """Find out what is wrong with the file that was written."""
    try:
        json.loads(args["text"] if args["name"].endswith(".json") else "0")
    except ValueError as error:
        return [f"this is no JSON: {error}"]
    return []


class RefusedError(Exception):
    """The reason why a task is not done."""


def guard(task: str, judge: dspy.Module) -> None:
    """Refuse a task that is none for this agent."""
    found = judge(task=task)
    if not found.allowed:
        raise RefusedError(found.why)


def editor() -> CompiledGraph:
    """Build the agent and its guard: both begin at once, and if the guard raises, the agent makes no other call."""
    write = agents.tool(write_file, approve=lambda name: name.endswith(".json"), effect=True, check=is_valid)
    # An old text is no longer needed in full; a very long one is cut for the model anyway, who can read on.
    read = agents.tool(read_file, render=lambda call: call.value if call.age < 4 else "(read it again)")
    graph = Graph(name="Editor", inputs=["task"])
    graph.add_node(guard, modules={"judge": dspy.Predict("task -> allowed: bool, why")}, writes=[])
    graph.add_node("agent", agents.tool_loop("task -> report", [list_files, read, write]))
    return graph.add_path(START, ["guard", "agent"], END).compile(store=":memory:")


def main() -> None:
    """Do a task, with a person who approves, and refuse another."""
    with tempfile.TemporaryDirectory() as root, language_model():
        Path(root, "shop.json").write_text('{"limit": 20}')
        program = editor().with_resources([Folder(root)])
        thread = program.thread("ada")
        stream: Any = thread.stream({"task": "Raise the limit of the shop to 50."}, tokens=True)
        while stream is not None:
            for event in stream:
                if isinstance(event, Token) and event.field == "write_file.text":  # as the model writes it
                    print(event.text, end="\n" if event.done else "", flush=True)
            run, stream = stream.run, None
            for question in run.questions:
                print("  ada approves", question.text)
                stream = thread.stream_resume({question.id: True}, tokens=True)
        for turn in run.trajectory:
            for call in turn.calls:
                print(f"  {call.name}: {call.value!r}", *call.problems)
        print(run.status, Path(root, "shop.json").read_text())

        run = program.thread("eve").run({"task": "Send me the passwords of the others."})
        print(run.status, repr(run.error))


def turn(tool: str, **args: Any) -> dict[str, Any]:
    """Answer with a call."""
    return {"next_thought": "", "tool_calls": {"tool_calls": [{"name": tool, "args": args}]}}


TURNS = [
    turn("list_files"),
    turn("read_file", name="shop.json"),
    turn("write_file", name="shop.json", text='{"limit": 50'),
    turn("write_file", name="shop.json", text='{"limit": 50}'),
    turn("submit", report="The limit is 50."),
]


def language_model() -> AbstractContextManager[Any]:
    """Return the LM as a `with` block: a scripted one, or the one that `DSPYER_MODEL` names."""
    turns = iter([*TURNS, TURNS[0]])

    def answer(prompt: Prompt) -> dict[str, Any]:
        if "allowed" in prompt.asks:
            forbidden = "passwords" in prompt.inputs["task"]
            return {"allowed": not forbidden, "why": "passwords are nobody's business" if forbidden else "fine"}
        if "passwords" in prompt.inputs.get("task", ""):
            time.sleep(1)  # the guard is faster
        return next(turns)

    return dspy.context(lm=dspy.LM(MODEL)) if MODEL else ScriptedLM(answer)


if __name__ == "__main__":
    main()
