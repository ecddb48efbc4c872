"""What converted graphs of LangGraph cost: `python -m bench.converted`. One process, CPU time, round by round.

LangGraph runs each graph without a checkpointer and with two of its own; dspyer runs what `from_langgraph` makes of it,
without a store and on threads in a SQLite file.
"""

from __future__ import annotations

import argparse
import operator
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Send
from pydantic import BaseModel

from bench.machine import calibrate, describe, spread
from bench.report import markdown, number, put_section
from dspyer.migrate import from_langgraph, langgraph_inputs

SECTION = "Converted graphs"
ABOUT = """\
What a graph costs in LangGraph, and converted: `python -m bench.converted`.
Milliseconds of CPU time, all columns in turn in one process, medians of {rounds} rounds ± half the distance of their
quartiles. It is no wall-clock time, because the machine had other work to do, which slows CPU time as well, though
less. A run counts from `invoke` or `run` to its result. `SqliteSaver` and SQLite write a file.

{machine}, load {load:.0f}. Noise: a fixed loop of pure Python took {noise}."""
COLUMNS = ("LangGraph", "with InMemorySaver", "with SqliteSaver", "converted", "converted, SQLite")
LIMIT = 100_000  # steps of a run


# --- the graphs


class Plain(TypedDict):
    """A counter, and two lists that nodes add to."""

    n: int
    messages: Annotated[list[Any], add_messages]
    log: Annotated[list[Any], operator.add]


class Model(BaseModel):
    """The same with a model."""

    n: int = 0
    log: Annotated[list[Any], operator.add] = []


class Sent(TypedDict):
    """What a node gets that was sent to."""

    item: int


def loop(steps: int, state: Any = Plain, step: Callable[[Any], Any] | None = None, seen: Any = Any) -> Any:
    """A node that runs again until the counter has reached the number of steps, which a router finds in `seen`."""

    def route(value: Any) -> str:
        return END if counter(value) >= steps else "step"

    route.__annotations__["value"] = seen  # of which LangGraph makes its input schema
    builder = StateGraph(state)
    builder.add_node("step", step or (lambda seen: {"n": seen["n"] + 1}))
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", route, ["step", END])
    return builder


def counter(seen: Any) -> int:
    """The counter of a state."""
    return int(seen.n if isinstance(seen, BaseModel) else seen["n"])


def talk(seen: Any) -> dict[str, Any]:
    """A node that adds a message and a dict."""
    n = seen["n"]
    return {"n": n + 1, "messages": [AIMessage(f"answer {n}")], "log": [{"step": n, "tags": ["a", "b"]}]}


class Counter(TypedDict):
    """What a node sees that needs no list."""

    n: int


def talk_unseen(seen: Counter) -> dict[str, Any]:
    """The same of a node that sees the counter only."""
    return talk(seen)


def note(seen: Any) -> dict[str, Any]:
    """A node of a model that adds a dict."""
    return {"n": seen.n + 1, "log": [{"step": seen.n}]}


def fan(width: int) -> Any:
    """A `Send` to so many branches."""
    builder = StateGraph(Plain)
    builder.add_node("work", lambda seen: {"log": [seen["item"]]}, input_schema=Sent)
    builder.add_conditional_edges(START, lambda seen: [Send("work", {"item": i}) for i in range(width)], ["work"])
    return builder


def chain(length: int) -> Any:
    """So many nodes, one after the other."""
    builder = StateGraph(Plain)
    previous = START
    for position in range(length):
        builder.add_node(f"n{position}", lambda seen: {"n": seen["n"] + 1})
        builder.add_edge(previous, f"n{position}")
        previous = f"n{position}"
    return builder


def nested(steps: int) -> Any:
    """A loop whose node is a graph of two nodes."""
    inner = StateGraph(Plain)
    inner.add_node("one", lambda seen: {"n": seen["n"] + 1})
    inner.add_node("two", lambda seen: {})
    inner.add_edge(START, "one")
    inner.add_edge("one", "two")
    return loop(steps, step=inner.compile())


@dataclass(frozen=True)
class Work:
    """A row: a graph, and how many steps of it one run makes."""

    title: str
    make: Callable[[], Any]
    steps: int


WORKS = (
    Work("a run of one node", lambda: loop(1), 1),
    Work("a step of a loop of 400", lambda: loop(400), 400),
    Work("a step that adds a message and a dict, 100 steps", lambda: loop(100, step=talk), 100),
    Work("the same, 400 steps", lambda: loop(400, step=talk), 400),
    Work("the same, 800 steps", lambda: loop(800, step=talk), 800),
    Work("the same, 800 steps, seeing the counter only", lambda: loop(800, Plain, talk_unseen, Counter), 800),
    Work("a step of a pydantic model that adds a dict, 400 steps", lambda: loop(400, Model, note), 400),
    Work("`Send` to 100 branches, a branch", lambda: fan(100), 100),
    Work("`Send` to 1,000 branches, a branch", lambda: fan(1000), 1000),
    Work("a chain of 100 nodes, a node", lambda: chain(100), 100),
    Work("a step that is a graph of two nodes, 100 steps", lambda: nested(100), 100),
)


# --- measuring


def runs_of(work: Work, folder: Path, stack: ExitStack) -> dict[str, Callable[[], Any]]:
    """For each column, a function that runs the graph and returns its counter and the length of its lists."""
    builder, threads = work.make(), count()
    saver = stack.enter_context(SqliteSaver.from_conn_string(str(folder / "langgraph.db")))
    apps = [builder.compile(), builder.compile(checkpointer=InMemorySaver()), builder.compile(checkpointer=saver)]
    graph = from_langgraph(builder)
    program = graph.compile(max_steps=LIMIT)
    stored = graph.compile(max_steps=LIMIT, store=str(folder / "dspyer.db"))
    inputs = {"n": 0, "log": []}

    def invoked(app: Any) -> Callable[[], Any]:
        def run() -> Any:
            config = {"recursion_limit": LIMIT, "configurable": {"thread_id": str(next(threads))}}
            return app.invoke(inputs, config)

        return run

    return dict(
        zip(
            COLUMNS,
            [
                *map(invoked, apps),
                lambda: program.run(langgraph_inputs(builder, inputs)).state,
                lambda: stored.thread(str(next(threads))).run(langgraph_inputs(builder, inputs)).state,
            ],
            strict=True,
        )
    )


def outcome(state: Any) -> tuple[Any, ...]:
    """What must be the same in all columns."""
    return tuple(state[key] if key == "n" else len(state[key]) for key in ("n", "messages", "log") if key in state)


def measure(work: Work, rounds: int) -> tuple[list[list[float]], list[float]]:
    """The seconds of one step, for each column a list of rounds; and the noise. The first round warms up."""
    cells: list[list[float]] = [[] for _ in COLUMNS]
    noise = []
    with TemporaryDirectory() as folder, ExitStack() as stack:
        runs = list(runs_of(work, Path(folder), stack).values())
        for turn in range(rounds + 1):
            noise.append(calibrate())
            found = set()
            for column in range(len(COLUMNS)) if turn % 2 else reversed(range(len(COLUMNS))):
                start = time.process_time()
                state = runs[column]()
                seconds = time.process_time() - start
                found.add(outcome(state))
                if turn:
                    cells[column].append(seconds / work.steps)
            if len(found) != 1:
                raise AssertionError(f"{work.title}: the columns end in different states: {found}")
    return cells, noise


def as_section(rows: list[tuple[str, list[list[float]]]], noise: list[float], rounds: int) -> str:
    """The section of the page."""
    grid = [["work, ms", *COLUMNS]]
    for title, cells in rows:
        grid.append([title, *(f"{number(median(cell) * 1e3)} ± {spread(cell):.0%}" for cell in cells)])
    about = ABOUT.format(
        rounds=rounds,
        machine=describe(),
        load=os.getloadavg()[0],
        noise=f"{median(noise) * 1e3:.1f} ms ± {spread(noise):.0%} (slowest {max(noise) * 1e3:.1f} ms)",
    )
    return f"## {SECTION}\n\n{about}\n\n{markdown(grid)}\n"


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.converted", description="What converted graphs cost.")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each row (5)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the section of bench/results.md")
    given = parser.parse_args(arguments)
    rows, noise = [], []
    for work in WORKS:
        cells, own = measure(work, max(1, given.rounds))
        rows.append((work.title, cells))
        noise += own
        print(work.title, *(f"{median(cell) * 1e3:.2f}" for cell in cells), flush=True)
    section = as_section(rows, noise, given.rounds)
    print(section)
    if given.write:
        given.write.write_text(put_section(given.write.read_text(), section))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
