"""The programs of these tests: `tests.cli.orders:graph` and others, as `--program` names them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Context, Graph
from dspyer.stores import Sharded, SQLite

GRAPH = "tests.cli.orders:graph"


class Order(BaseModel):
    text: str
    amount: float = 0
    paid: bool | None = None
    notes: list[str] = []


def read(text: str) -> dict[str, Any]:
    print("this goes to stderr")
    if "boom" in text:
        raise ValueError(f"cannot read {text}")
    return {"amount": float(len(text))}


graph = Graph(Order, name="Orders")
graph.add_node("read", read)
graph.add_interrupt("pay", question="Pay {amount} USD?", answer=bool, into="paid")
graph.add_path(START, "read", "pay", END)

program = graph.compile()
not_a_program = 42


def make() -> Graph:
    return graph


def sharded() -> CompiledGraph:
    return graph.compile(store=Sharded({"t": "runs.db", "u": "others.db"}, shard=lambda thread: thread[0]))


def broken() -> Graph:
    raise RuntimeError("no network")


@dataclass(frozen=True)
class Place:
    street: str


class Odd(BaseModel):
    number: float = float("nan")
    data: bytes = b"\xff"
    place: Place | None = None


odd = (
    Graph(Odd, name="Odd")
    .add_node("fill", lambda: {"place": Place("Main \x1b[31mStreet")}, writes=["place"])
    .add_path(START, "fill", END)
)


def fail(text: str) -> dict[str, Any]:
    raise ValueError(text)


hostile = Graph(Order, name="Hostile")
hostile.add_node("note", lambda text: {"notes": [text], "amount": 1.0}, writes=["notes", "amount"])
hostile.add_node("again", lambda text: {"notes": [text, text]}, writes=["notes"])
hostile.add_node("fail", fail)
hostile.add_path(START, "note", "again", "fail", END)


def _lose(text: str) -> dict[str, Any]:
    """Takes the thread `t` over from the run that this node belongs to, as another process would."""
    with SQLite("runs.db") as store:
        other = Graph(Order, name="Losing").add_node("keep", lambda: {"amount": 2.0}).add_path(START, "keep", END)
        taken = other.compile(store=store).thread("t").run({"text": text}, take_over=True, if_open="abandon")
        assert taken.status == "completed"
    return {"amount": 1.0}


losing = Graph(Order, name="Losing").add_node("lose", _lose).add_path(START, "lose", END)


def _slow() -> CompiledGraph:
    """Says through a pipe when it works, and then works for a minute, or until there is a file `enough`."""

    def wait(text: str) -> dict[str, Any]:
        Path(text).write_text("working")
        for _ in range(3000):
            if Path("enough").exists():
                break
            time.sleep(0.02)
        return {"amount": 1.0}

    return Graph(Order, name="Slow").add_node("wait", wait).add_path(START, "wait", END).compile()


slow: Callable[[], CompiledGraph] = _slow


class Form(BaseModel):
    ok: Any = None
    name: Any = None
    text: Any = None
    plus: Any = None
    eq: Any = None
    code: str = ""
    n: int = 0


def _asking(name: str, kind: object) -> Callable[[Context], dict[str, Any]]:
    return lambda ctx: {name: ctx.interrupt(name, f"{name}?", answer=kind)}


form = Graph(Form, name="Form")
for _name, _field in Form.model_fields.items():
    form.add_node(f"ask_{_name}", _asking(_name, _field.annotation), writes=[_name])
    form.add_edge(START, f"ask_{_name}").add_edge(f"ask_{_name}", END)
loose = Graph(name="Loose").add_node("keep", lambda state: {"seen": True}).add_path(START, "keep", END)
add = (
    Graph(name="Add")
    .add_node("add", lambda n: {"n": n + 1}, writes=["n"])
    .add_edge(START, "add")
    .add_conditional_edges("add", lambda n: END if n % 10 == 0 else "add", [END, "add"])
)
