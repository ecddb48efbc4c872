"""A graph of four nodes and a question, whose calls are noted in a file that outlives the processes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph
from dspyer.stores.base import Store


class Order(BaseModel):
    number: int
    read: int | None = None
    checked: int | None = None
    approved: bool | None = None
    receipt: str | None = None
    sent: str | None = None
    audited: str | None = None


class Note(NamedTuple):
    """Something that a process did, at a time of the wall clock."""

    time: float
    pid: int
    what: str
    thread: str
    text: str


class Notes:
    """Lines in a file: what several processes did, in the order in which they did it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, what: str, thread: str, text: str = "-") -> None:
        line = f"{time.time():.6f} {os.getpid()} {what} {thread} {text}\n"
        with self.path.open("a", encoding="utf-8") as file:  # one write at the end of the file: lines do not mix
            file.write(line)

    def all(self) -> list[Note]:
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        rows = [line.split(" ", 4) for line in lines]
        return [Note(float(when), int(pid), what, thread, text) for when, pid, what, thread, text in rows]


def orders(
    store: str | Store,
    notes: Notes,
    seconds: float = 0.0,
    ask: bool = True,
    gate: Path | None = None,
    asynchronous: bool = False,
    audited: bool = False,
) -> CompiledGraph:
    """read, check, (approve), pay, send; each node lasts so many seconds, and `pay` has an effect.

    With a gate, `check` lasts until there is such a file; it is an `async def` if it is to be asynchronous.
    """

    def slow(name: str, ctx: Context) -> None:
        notes.add(name, thread_of(ctx))
        time.sleep(seconds)

    def read(number: int, ctx: Context) -> dict[str, Any]:
        slow("read", ctx)
        return {"read": number}

    def check(read: int, ctx: Context) -> dict[str, Any]:
        slow("check", ctx)
        while gate is not None and not gate.exists():
            time.sleep(0.01)
        return {"checked": read}

    async def acheck(read: int, ctx: Context) -> dict[str, Any]:
        notes.add("check", thread_of(ctx))
        while gate is not None and not gate.exists():  # noqa: ASYNC110, ASYNC240 - another process opens it
            await asyncio.sleep(0.01)
        return {"checked": read}

    def pay(ctx: Context) -> dict[str, Any]:
        def transfer(key: str) -> str:
            notes.add("transfer", thread_of(ctx), key)
            return key

        receipt = ctx.once("transfer", transfer)
        slow("pay", ctx)
        return {"receipt": receipt}

    def send(receipt: str, ctx: Context) -> dict[str, Any]:
        slow("send", ctx)
        return {"sent": receipt}

    graph = Graph(Order, inputs=["number"])
    graph.add_node("read", read, writes=["read"])
    graph.add_node("check", acheck if asynchronous else check, writes=["checked"])
    graph.add_node("pay", pay, writes=["receipt"]).add_node("send", send, writes=["sent"])
    if ask:
        graph.add_interrupt("approve", question="Pay for {number}?", answer=bool, into="approved")
    if audited:
        graph.add_node("audit", lambda sent: {"audited": sent}, writes=["audited"])
    last = ["audit"] if audited else []
    graph.add_path(START, "read", "check", *(["approve"] if ask else []), "pay", "send", *last, END)
    return graph.compile(store=store)


def thread_of(ctx: Context) -> str:
    """The thread in `"order-3.1/trunk:2"`."""
    return ctx.execution.partition("/")[0].rpartition(".")[0]
