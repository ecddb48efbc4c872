"""How the cost of one operation grows with what is already there: history, threads, width. `python -m bench.growth`.

Each row measures one operation after 1, 10 and 100 times the work, in turn, and prints microseconds per operation and
the ratio of the largest size to the smallest. A ratio near 1 means that the cost does not grow; near 100, that the
whole is quadratic.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any

from pydantic import BaseModel

from bench import growth_runs
from bench.growth_threads import VIEWS, after_runs, again, reading, replaying
from bench.growth_views import READS, asking_what_changed, forking, visiting
from bench.machine import calibrate, describe, spread
from dspyer import END, START, Archive, Context, Graph, Replace, limit, live, reducers
from dspyer.schema.limits import size_of
from dspyer.schema.schema import Schema
from dspyer.stores.base import Point, Snapshot, Store
from dspyer.stores.content import Content
from dspyer.stores.memory import Memory
from dspyer.stores.sqlite import SQLite
from dspyer.testing.store_samples import begin


@dataclass(frozen=True)
class Growth:
    """An operation that is measured at several sizes.

    Args:
        title: what one operation is, and what grows.
        sizes: how much there is already, smallest first.
        measure: makes what one size needs, runs the operation and returns the seconds of one operation.
        goal: the largest allowed ratio of the last size to the first; None if the row only shows.
    """

    title: str
    sizes: tuple[int, ...]
    measure: Callable[[int], float]
    goal: float | None = None


DELETED = 20


def deleting_at_once(size: int) -> float:
    """Deletes so many threads in one call, as `program.delete` does; the seconds of one of them."""
    with TemporaryDirectory() as folder, _sqlite(Path(folder), size) as store:
        names = [f"t{number}" for number in range(size)]
        for number, name in enumerate(names):
            store.write(begin(name, f"r{number}", 2))
        start = perf_counter()
        store.delete(names)
        return (perf_counter() - start) / size


def deleting(make: Callable[[Path, int], Store]) -> Callable[[int], float]:
    """Deletes single threads of many, as `Thread.delete` does."""

    def measure(size: int) -> float:
        with TemporaryDirectory() as folder, make(Path(folder), size) as store:
            for number in range(size):
                store.write(begin(f"other {number}", f"o{number}", 2))
            for number in range(DELETED):
                store.write(begin(f"t{number}", f"r{number}", 2))
            start = perf_counter()
            for number in range(DELETED):
                store.delete([f"t{number}"])
            return (perf_counter() - start) / DELETED

    return measure


def evicting(size: int) -> float:
    """Creates threads in a full `Memory(max_threads=...)`: each deletes the oldest one."""
    store = Memory(max_threads=size)
    for number in range(size):
        store.write(begin(f"t{number}", f"r{number}", 2)._replace(lease=0.0))
    start = perf_counter()
    for number in range(DELETED):
        store.write(begin(f"new {number}", f"n{number}", 2)._replace(lease=0.0))
    return (perf_counter() - start) / DELETED


def pruning(size: int) -> float:
    """Releases a thread that has become longer than `max_commits`, in a store with many others."""
    store = Memory(max_commits=20)
    for number in range(size):
        store.write(begin(f"t{number}", f"r{number}", 2)._replace(lease=0.0))
    head: list[Point] = []
    start = perf_counter()
    for number in range(DELETED):
        change = begin("hot", f"h{number}", 10, *head, epoch=number)
        head = [Point(f"h{number}", 9)]
        store.write(change._replace(lease=0.0, snapshot=Snapshot(head[0], Content(None))))
    return (perf_counter() - start) / DELETED


class Limited(BaseModel):
    """Fields with a limit that is never reached."""

    table: Annotated[dict[str, str], reducers.update, limit(kb=10**6)] = {}
    notes: Annotated[list[str], reducers.append, limit(kb=10**6)] = []
    said: Annotated[list[dict[str, str]], reducers.add_messages, limit(kb=10**6)] = []


def writing_under_a_limit(field: str, many: Callable[[int], Any], one: Callable[[int], Any]) -> Callable[[int], float]:
    """Commits small updates to a field with a limit that holds much already."""

    def measure(size: int) -> float:
        schema = Schema.of(Limited)
        state = schema.initial_state({field: many(size)})
        size_of(state.raw(field))
        start = perf_counter()
        for number in range(DELETED):
            _, state = schema.commit(state, {field: one(number)}, node="node", commit_id=f"trunk:{number}")
            size_of(state.raw(field))
        return (perf_counter() - start) / DELETED

    return measure


class Shared(BaseModel):
    """Live fields, and one that is not."""

    plain: Annotated[list[int], reducers.append] = []
    notes: Annotated[list[int], reducers.append, live] = []
    table: Annotated[dict[str, int], reducers.update, live] = {}


def posting(field: str) -> Callable[[int], float]:
    """Posts of one node."""

    def measure(size: int) -> float:
        def node(ctx: Context) -> None:
            for number in range(size):
                ctx.post(field, number)

        program = Graph(Shared).add_node("node", node, writes=[field]).add_path(START, "node", END).compile()
        start = perf_counter()
        program.run({}).raise_error()
        return (perf_counter() - start) / size

    return measure


def posting_in_rounds(size: int) -> float:
    """Two nodes in a loop post to the same keys of a live field, and each reads the posts of the other."""

    def node(ctx: Context) -> None:
        for entry in ctx.live("table"):
            assert entry.author != ctx.node
        for key in range(5):
            ctx.post("table", {f"k{key}": ctx.visit})

    graph = Graph(Shared).add_node("one", node, writes=["table"]).add_node("two", node, writes=["table"])
    graph.add_path(START, "one", "two")
    graph.add_conditional_edges("two", lambda ctx: "one" if ctx.visit < size else END, ["one", END])
    program = graph.compile(max_steps=10 * size)
    start = perf_counter()
    program.run({}).raise_error()
    return (perf_counter() - start) / (10 * size)


def listing_what_is_due(size: int) -> float:
    """Lists the threads that are due among so many that wait for an answer; the seconds of one of them."""
    graph = Graph().add_interrupt("ok", question="?", answer=bool, into="sent", expires=24 * 3600, default=False)
    graph.add_path(START, "ok", END)
    with TemporaryDirectory() as folder, _sqlite(Path(folder), size) as store:
        program = graph.compile(store=store)
        for number in range(size):
            program.thread(f"t{number}").run({})
        with Archive(store) as archive:
            start = perf_counter()
            archive.due()
            return (perf_counter() - start) / size


def _sqlite(folder: Path, _: int) -> Store:
    return SQLite(folder / "runs.db")


ROWS: list[Growth] = [
    *[
        Growth(f"{what} of a program that was called N times", (10, 1_000, 10_000), growth_runs.after_calls(operate), 2)
        for what, operate in growth_runs.AFTER_CALLS.items()
    ],
    Growth("a step that writes another hidden text, after N", (30, 300, 3_000), growth_runs.hidden_steps, 3),
    Growth("one of N posts of a node", (100, 1_000, 10_000), posting("plain"), 3),
    Growth("one of N posts of a node to a live field", (30, 300, 3_000), posting("notes"), 3),
    Growth("a post to a live key that was posted to in N rounds", (3, 30, 300), posting_in_rounds, 3),
    Growth("a branch of a Send to N that send on", (300, 1_000, 3_000), growth_runs.sent_on, 1.3),
    Growth("a branch of N that go round a loop", (300, 1_000, 3_000), growth_runs.laps, 1.3),
    Growth("a fork and join of a graph of N, compiled", (10, 100, 500), growth_runs.diamonds_compiled, 3),
    Growth("a fork and join of a graph of N, run", (10, 100, 500), growth_runs.diamonds_run, 3),
    Growth("an item of a map over N", (1_000, 3_000, 10_000), growth_runs.mapped, 1.1),
    # The goals in time: 50 µs and 10 µs at the largest size.
    Growth("a turn of a trajectory of N, read", (100, 300, 1_000), growth_runs.turns_read, 1.5),
    Growth("an item of N, read of a run", (1_000, 3_000, 10_000), growth_runs.items_read(stored=False), 1.5),
    Growth("an item of N, read of a file", (1_000, 3_000, 10_000), growth_runs.items_read(stored=True), 1.5),
    Growth(
        "one key into a dict of N keys with a limit",
        (100, 1_000, 10_000),
        writing_under_a_limit("table", lambda n: {f"k{i}": "v" for i in range(n)}, lambda n: {f"new{n}": "v"}),
        3,
    ),
    Growth(
        "one item to a list of N items with a limit",
        (100, 1_000, 10_000),
        writing_under_a_limit("notes", lambda n: Replace(["v"] * n), lambda n: "v"),
        3,
    ),
    Growth(
        "one message to N messages with a limit",
        (100, 1_000, 10_000),
        writing_under_a_limit("said", lambda n: [{"id": f"m{i}"} for i in range(n)], lambda n: {"id": f"new{n}"}),
        3,
    ),
    Growth("delete one of N threads, in memory", (100, 1_000, 10_000), deleting(lambda *_: Memory()), 3),
    Growth("delete one of N threads, in SQLite", (100, 1_000, 10_000), deleting(_sqlite), 3),
    Growth("delete N threads at once, in SQLite, each", (50, 500, 5_000), deleting_at_once, 1.5),
    # The goal in time: 150 µs at the largest size.
    Growth("what is due among N waiting threads, each", (100, 1_000, 10_000), listing_what_is_due, 3),
    Growth("begin a thread in Memory(max_threads=N)", (100, 1_000, 10_000), evicting, 3),
    Growth("a run of 10 rows in Memory(max_commits=20), beside N threads", (100, 1_000, 10_000), pruning, 3),
    *[
        Growth(f"a visit that reads {name}, after N visits", (30, 300, 3_000), visiting(read), 3)
        for name, read in READS.items()
    ],
    Growth("a visit that asks for a delta, after N visits", (30, 300, 3_000), asking_what_changed, 3),
    Growth("a round of two branches with views, after N rounds", (20, 200, 1_000), forking, 3),
]


LONG = (100, 1_000, 10_000)
MANY = (10, 100, 1_000)
THREADS = [
    Growth("t.replay() of a run of N steps, for each step", LONG, replaying, 3),
    Growth("t.status after a run of N steps", LONG, reading(lambda t, _: t.status), 3),
    Growth("t.questions after a run of N steps", LONG, reading(lambda t, _: t.questions), 3),
    Growth("t.at(...) in the middle of a run of N steps", LONG, reading(lambda t, n: t.at(n // 2)), 10),
    Growth("t.blame(...) after a run of N steps", LONG, reading(lambda t, _: t.blame("n")), 10),
    Growth(
        "the newest 20 commits after a run of N steps", LONG, reading(lambda t, _: t.history(count=20, newest=True)), 10
    ),
    Growth("a run of a thread that has had N", MANY, after_runs("", again), 3),
    Growth("t.at(...) of a thread that has had N runs", MANY, after_runs("", lambda t, n: t.at(n))),
    Growth("t.usage of a thread that has had N runs", MANY, after_runs("", lambda t, _: t.usage), 2),
    *[Growth(f"a run with a view ({v}) of a thread that has had N", MANY, after_runs(v, again), 3) for v in VIEWS],
]

ROWS += THREADS


def main(arguments: list[str] | None = None) -> int:
    """Prints a line per row."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.growth", description="Costs after 1, 10 and 100 times the work."
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each size (3)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="only rows with one of these in their title"
    )
    given = parser.parse_args(arguments)
    noise = [calibrate()]
    for row in ROWS:
        if given.only and not any(word in row.title for word in given.only):
            continue
        times: dict[int, list[float]] = {size: [] for size in row.sizes}
        for _ in range(max(1, given.rounds)):  # sizes take turns, so that a slow minute slows all of them
            for size in row.sizes:
                times[size].append(row.measure(size))
            noise.append(calibrate())
        middle = [median(times[size]) for size in row.sizes]
        ratio = middle[-1] / middle[0]
        verdict = "" if row.goal is None else f", goal {row.goal:g}: {'yes' if ratio <= row.goal else 'NO'}"
        shown = "  ".join(f"{size:,}: {1e6 * each:,.1f} µs" for size, each in zip(row.sizes, middle, strict=True))
        print(f"{row.title}\n  {shown}  ({ratio:.2f} x{verdict})", flush=True)
    print(f"{describe()}; noise ±{100 * spread(noise):.0f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
