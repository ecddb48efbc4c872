"""A support chat that remembers its customers from one conversation to the next, and forgets one who asks for it.

python examples/memory.py                                # offline, by a script of answers
DSPYER_MODEL=openai/gpt-4o-mini python examples/memory.py
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from typing import Any

import dspy
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph, agents
from dspyer.testing import ScriptedLM


# --8<-- [start:memory]
class Memory:
    """Notes on users, in any store with `search`, `put` and `delete`."""

    def __init__(self, store):
        self.store = store

    def recall(self, ctx, user, query, limit=5, name="recall"):
        """The notes that fit; a step called again reads the same ones."""
        return ctx.once(name, lambda: self.store.search(user, query, limit))

    def remember(self, ctx, user, text, name="remember"):
        """Keeps a note, once: equal notes of a user have one id."""
        key = hashlib.sha256(repr((user, text)).encode()).hexdigest()
        ctx.once(name, lambda: self.store.put(user, key, text))

    def forget(self, user):
        self.store.delete(user)


# --8<-- [end:memory]


# --8<-- [start:store]
NOTES = "notes USING fts5(user UNINDEXED, text, tokenize = 'porter')"
ANY_THREAD = {"check_same_thread": False}


class InSQLite:
    """Notes in an SQLite file, found by their words."""

    def __init__(self, path):
        self.db = sqlite3.connect(path, isolation_level=None, **ANY_THREAD)
        self.db.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS {NOTES}")

    def search(self, user, query, limit):
        words = " OR ".join(f'"{w}"' for w in re.findall(r"\w+", query))
        sql = "SELECT text FROM notes WHERE text MATCH ? AND user = ?"
        sql += " ORDER BY rank LIMIT ?"
        found = self.db.execute(sql, (words, user, limit)) if words else []
        return [text for (text,) in found]

    def put(self, user, key, text):
        sql = "REPLACE INTO notes (rowid, user, text) VALUES (?, ?, ?)"
        self.db.execute(sql, (int(key[:15], 16), user, text))

    def delete(self, user):
        self.db.execute("DELETE FROM notes WHERE user = ?", (user,))
        self.db.execute("INSERT INTO notes (notes) VALUES ('optimize')")


# --8<-- [end:store]


# --8<-- [start:langgraph]
class InLangGraph:
    """Notes in a `BaseStore` of LangGraph."""

    def __init__(self, store):
        self.store = store

    def search(self, user, query, limit):
        found = self.store.search(("notes", user), query=query, limit=limit)
        return [item.value["text"] for item in found]

    def put(self, user, key, text):
        self.store.put(("notes", user), key, {"text": text})

    def delete(self, user):
        while items := self.store.search(("notes", user), limit=100):
            for item in items:
                self.store.delete(item.namespace, item.key)


# --8<-- [end:langgraph]


# --8<-- [start:graph]
class Chat(BaseModel):
    user: str
    message: str
    known: list[str] = []
    reply: str = ""
    notes: list[str] = []


def recall(user, message, memory: Memory, ctx: Context):
    return {"known": memory.recall(ctx, user, message)}


def remember(user, notes, memory: Memory, ctx: Context):
    for number, note in enumerate(notes):
        memory.remember(ctx, user, note, name=f"note {number}")


graph = Graph(Chat, inputs=["user", "message"], name="Chat")
graph.add_node(recall, writes=["known"])
graph.add_node("answer", dspy.Predict("message, known -> reply"))
graph.add_node("learn", dspy.Predict("message -> notes: list[str]"))
graph.add_node(remember, writes=[])
graph.add_path(START, "recall", "answer", "learn", "remember", END)
# --8<-- [end:graph]


# --8<-- [start:tools]
def look_up(topic: str, user: str, memory: Memory, ctx: Context) -> list:
    """What is known of the user about a topic."""
    return memory.recall(ctx, user, topic)


def note(fact: str, user: str, memory: Memory, ctx: Context) -> str:
    """Remembers a fact about the user."""
    memory.remember(ctx, user, fact)
    return "noted"


tools = [agents.tool(each, reads=["user"]) for each in (look_up, note)]
agent = agents.tool_loop("user, message -> reply", tools)
# --8<-- [end:tools]


# --8<-- [start:forget]
def forget(user: str, program: CompiledGraph, memory: Memory) -> list[str]:
    """Deletes threads and notes; returns the threads that keep a part."""
    names = [n for n in program.threads() if n.startswith(f"{user}/")]
    kept: set[str] = set()
    for name in names:
        kept |= set(program.thread(name).delete(take_over=True).kept)
    memory.forget(user)
    return sorted(kept - set(names))


# --8<-- [end:forget]


def turn(name: str, **args: Any) -> dict[str, Any]:
    return {"next_thought": "", "tool_calls": [{"name": name, "args": args}]}


SCRIPT: list[dict[str, Any]] = [
    {"reply": "Noted."},
    {"notes": ["wants answers by mail", "owns kettle K-2"]},
    {"reply": "By mail."},
    {"notes": []},
    {"reply": "How would you like it?"},
    {"notes": []},
    turn("note", fact="moved to Oslo"),
    turn("look_up", topic="move"),
    turn("submit", reply="I have noted your move."),
]


def main() -> None:
    name = os.environ.get("DSPYER_MODEL")
    dspy.configure(lm=dspy.LM(name) if name else ScriptedLM(SCRIPT))
    # --8<-- [start:use]
    program = graph.compile(store="chats.db")
    memory = Memory(InSQLite("notes.db"))

    def ask(user, day, message):
        thread = program.thread(f"{user}/{day}")
        given = {"user": user, "message": message}
        return thread.run(given, resources=[memory]).state["known"]

    ask("ada", "monday", "I own kettle K-2. Please answer by mail.")
    print("ada", *ask("ada", "tuesday", "How will you answer me?"))
    print("bob", *ask("bob", "tuesday", "How will you answer me?"))
    # --8<-- [end:use]
    mover = agent.compile(store="chats.db").thread("cleo/monday")
    run = mover.run({"user": "cleo", "message": "I have moved to Oslo."}, resources=[memory])
    for message in run.state["messages"]:
        if message["role"] == "tool":
            print("tool", message["content"])
    # --8<-- [start:forgotten]
    program.thread("ada/tuesday").copy(to="a bug to look at")
    print("kept", forget("ada", program, memory))
    print("left", program.threads())
    # --8<-- [end:forgotten]


if __name__ == "__main__":
    main()
