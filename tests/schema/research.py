"""The schema of the tests in this folder, with one field for each kind of reducer, type and constraint."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from datetime import date
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
)
from typing_extensions import TypedDict

from dspyer import END, START, CompiledGraph, Context, Graph, ImmutableState, Run, reducers


class Address(BaseModel):
    street: str
    town: str = "Ulm"


class User(BaseModel):
    name: str
    nick: str | None = "N"
    address: Address | None = None
    tags: dict[str, int] = {}
    serial: int = Field(default_factory=count().__next__)


class Options(TypedDict, total=False):
    colour: str
    size: int


def double(current: int, update: int) -> int:
    return 2 * current + update


class Research(BaseModel):
    """A schema with a field for each reducer and kind of type."""

    question: str
    findings: Annotated[list[str], reducers.extend] = []
    log: Annotated[list[str], reducers.append] = []
    calls: Annotated[int, reducers.increment] = 0
    best: Annotated[float | None, reducers.max] = None
    seen: Annotated[set[str], reducers.union] = set()
    table: Annotated[dict[str, int], reducers.update] = {}
    messages: Annotated[list[dict[str, Any]], reducers.add_messages] = []
    doubled: Annotated[int, double] = 1
    answer: str | None = None
    score: float = 0.0
    risk: Literal["low", "high"] | None = None
    free: dict[str, Any] = {}
    typed: dict[str, int] = {}
    nested: dict[int, dict[str, int]] = {}
    options: Options = {}
    user: User | None = None
    replaced: Annotated[dict[str, int], reducers.replace] = {}
    tags: list[str] = Field(default=[], max_length=3)
    short: Annotated[list[str], reducers.extend, Field(max_length=3)] = []
    born: date | None = None
    anything: Any = None

    def shout(self) -> str:
        return f"{self.question}!"

    @property
    def size(self) -> int:
        return len(self.findings)


@functools.lru_cache(maxsize=1)  # the rows of a table have one model
def program_of(model: type[BaseModel] | None, **options: Any) -> tuple[CompiledGraph, list[Any]]:
    """A program whose node `search` returns the updates of the list, one after another."""
    updates: list[Any] = []

    def search(ctx: Context) -> Any:
        update = updates[ctx.visit - 1] if updates else None
        return update() if callable(update) else update

    graph = Graph(model, inputs=[] if model is None else list(model.model_fields), outputs=[], **options)
    graph.add_node("search", search).add_edge(START, "search")
    graph.add_conditional_edges("search", lambda ctx: "search" if ctx.visit < len(updates) else END, ["search", END])
    return graph.compile(store=":memory:"), updates


def write(
    model: type[BaseModel] | None,
    *updates: Any,
    inputs: Mapping[str, Any] | None = None,
    thread: str = "",
    **options: Any,
) -> Run:
    """A run over a model in which a node writes these updates; it raises what the run raises."""
    program, writes = program_of(model, **options)
    writes[:] = updates
    run = (program.thread(thread) if thread else program).run(inputs or {})
    run.raise_error()
    return run


def written(*updates: Any, **inputs: Any) -> tuple[Mapping[str, Any], ImmutableState]:
    """The patch of the last of these updates of a `Research`, and the state after it."""
    run = write(Research, *updates, inputs={"question": "why", **inputs})
    return run.commits[-1].patch, run.state


def calls_of_a_write(model: type[BaseModel] | None, *updates: Any, **options: Any) -> int:
    """How many functions of Python are called to commit the last one of these updates: its cost on any machine."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    def last() -> Any:
        sys.setprofile(count)
        return updates[-1]

    before = sys.getprofile()
    try:
        write(model, *updates[:-1], last, lambda: sys.setprofile(before), **options)
    finally:
        sys.setprofile(before)
    return calls
