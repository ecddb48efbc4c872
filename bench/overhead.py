"""What dspyer itself takes, beside LangGraph or a module written by hand, in one process. `python -m bench.overhead`.

Both take turns, round by round, in seconds of the processor; a figure is the smallest of the rounds, since whatever
disturbs a round only adds to it. Two libraries in one process see the same machine: their ratio says more than either
figure. What can be counted is counted.
"""

from __future__ import annotations

import argparse
import gc
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal
from unittest import mock

from bench import growth_runs
from bench.machine import calibrate, describe, spread
from bench.peers import (
    dspyer_bench,
    dspyer_overhead,
    dspyer_service_bench,
    dspyer_stored_bench,
    handwritten_bench,
    langgraph_bench,
    langgraph_overhead,
    langgraph_stored_bench,
    measure,
)
from bench.peers.measure import Round, timed
from bench.report import NO, SCALE, markdown, number, put_section

UNITS = {**SCALE, "KB": 1e-3, "calls": 1.0, "threads": 1.0, "SELECTs": 1.0}
NEARLY = 1.1  # a goal is missed by what is further off: so much may two runs differ

Make = Callable[[], Round]


@dataclass(frozen=True)
class Row:
    """One work, by dspyer and by what it is compared with.

    Attributes:
        title: what is done.
        unit: of the figures.
        goal: of the ratio, or of dspyer's figure.
        compare: `faster`: how many times as fast dspyer is; `share`: how many times as much it takes; `alone`: the
            goal is one of dspyer's figure.
        ours: prepares the measurement of dspyer.
        theirs: prepares that of the other; None if there is none.
        against: who that is.
        rounds: how often it is measured at most.
    """

    title: str
    unit: str
    goal: float | None
    compare: Literal["faster", "share", "alone"]
    ours: Make
    theirs: Make | None = None
    against: str = "LangGraph"
    rounds: int = 1_000

    def cells(self, rounds: int, noise: list[float]) -> list[str]:
        """Measures the row: figures, ratio, goal and verdict."""
        works = [make() for make in (self.ours, self.theirs) if make is not None]
        values: list[list[float]] = [[] for _ in works]
        rounds = min(rounds, self.rounds)
        for turn in range(rounds + 1 if rounds > 1 else 1):  # the first one warms up
            noise.append(calibrate(time.process_time))
            for work, found in zip(works, values, strict=True):
                gc.collect()
                value = work()
                if turn or rounds == 1:
                    found.append(value)
        ours, *others = (UNITS[self.unit] * min(found) for found in values)
        theirs = others[0] if others else None
        beside = "–" if theirs is None else f"{self.against}: {number(theirs)} {self.unit}"
        return [self.title, f"{number(ours)} {self.unit}", beside, *self.verdict(ours, theirs)]

    def verdict(self, ours: float, theirs: float | None) -> tuple[str, str, str]:
        """The ratio, the goal, and whether it was met."""
        got, unit, sign = ours, self.unit, "≤"
        if theirs is not None and self.compare != "alone":
            got, unit = (ours / theirs, "×") if self.compare == "share" else (theirs / ours, "× as fast")
            sign = "≤" if self.compare == "share" else "≥"
        ratio = "" if got is ours else f"{number(got)} {unit}"
        if self.goal is None:
            return ratio, "–", ""
        low, high = (got, self.goal) if sign == "≤" else (self.goal, got)
        return ratio, f"{sign} {self.goal:g} {unit}", "yes" if low <= high else "nearly" if low <= high * NEARLY else NO


Turn = Callable[[str, int], None]


def turns(turning: Callable[[ExitStack, str], Turn], store: str, count: int, new: bool = False) -> Round:
    """Turns of a thread that has had some, or first turns of new threads: seconds for each."""

    def run() -> float:
        with ExitStack() as stack:
            turn = turning(stack, store)
            for turned in range(5):
                turn("t", turned)
            names = [f"new{i}" if new else "t" for i in range(count)]
            return timed(lambda: [turn(name, i) for i, name in enumerate(names, 5)], count)

    return run


@contextmanager
def statements() -> Iterator[list[str]]:
    """A block whose new connections to SQLite tell each statement that they run."""
    seen: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **named)
        connection.set_trace_callback(seen.append)
        return connection

    with mock.patch.object(sqlite3, "connect", traced):
        yield seen


def reads(turning: Callable[[ExitStack, str], Turn], turned: int) -> Round:
    """How many SELECTs a turn on a SQLite thread makes: the most of so many after the first."""

    def run() -> float:
        most = 0
        with statements() as seen, ExitStack() as stack:
            turn = turning(stack, "runs.db")
            turn("t", 0)
            for number in range(1, turned + 1):
                seen.clear()
                turn("t", number)
                most = max(most, sum(statement.lstrip().upper().startswith("SELECT") for statement in seen))
        return float(most)

    return run


def new_threads(work: Callable[[], object], again: Callable[[], object]) -> Round:
    """How many threads a work starts after it has been done often."""

    def run() -> float:
        work()
        started = []
        start = threading.Thread.start

        def counted(thread: threading.Thread) -> None:
            started.append(thread)
            start(thread)

        with mock.patch.object(threading.Thread, "start", counted):
            again()
        return float(len(started))

    return run


def works_of(peer: Any) -> dict[str, Callable[..., Round]]:
    """The workloads of a module that has what they are made of."""
    return {
        "loop": peer.loop,
        "call": peer.call,
        "fork": lambda mode, calls: partial(timed, peer.fork(8, mode, calls), calls),
        "fork_threads": lambda: new_threads(peer.fork(8, "sync", 30), peer.fork(8, "sync", 1)),
        "turn": partial(turns, peer.turning),
        "turn_reads": partial(reads, peer.turning),
        "kept": peer.kept,
    }


DSPYER: dict[str, Callable[..., Round]] = {
    **dspyer_bench.WORKS,
    **handwritten_bench.WORKS,
    "stored_loop": dspyer_stored_bench.stored_loop,
    **works_of(dspyer_overhead),
    "request": partial(dspyer_service_bench.request, "router"),
    "request_by_hand": partial(dspyer_service_bench.request, "hand"),
    "copied": partial(dspyer_overhead.copied, by_hand=False),
    "copied_by_hand": partial(dspyer_overhead.copied, by_hand=True),
}
LANGGRAPH = {
    **langgraph_bench.WORKS,
    "stored_loop": langgraph_stored_bench.stored_loop,
    **works_of(langgraph_overhead),
}


def rows(share: float = 1.0) -> list[Row]:
    """Everything that is measured, or a share of its steps, branches and calls."""

    def size(whole: int) -> int:
        return max(2, round(whole * share))

    def both(work: str, given: dict[str, Any], few: dict[str, int]) -> tuple[Make, Make]:
        return partial(DSPYER[work], **given), partial(LANGGRAPH[work], **{**given, **few})

    def faster(title: str, goal: float | None, work: str, few: dict[str, int] | None = None, **given: Any) -> Row:
        return Row(title, "µs", goal, "faster", *both(work, given, few or {}))

    def loop(title: str, goal: float | None, fields: int, mode: str) -> Row:
        few = {"turns": size(100)}
        return faster(f"loop, {title}, a step", goal, "loop", few, turns=size(1_500), fields=fields, mode=mode)

    def send(title: str, goal: float, mode: str) -> Row:
        made = faster(f"`Send` to 1,000 {title}, a branch", goal, "fan_out", branches=size(1_000), mode=mode)
        return replace(made, rounds=8)

    def by_hand(title: str, goal: float, work: str, hand: str = "") -> Row:
        ours, theirs = DSPYER[work], DSPYER[f"{hand or work}_by_hand"]
        calls = {"calls": size(15)}
        return Row(
            f"{title} / by hand", "µs", goal, "share", partial(ours, **calls), partial(theirs, **calls), "by hand"
        )

    def grown(
        title: str, goal: float, work: Callable[[int], float], large: int, small: int, times: int, rounds: int = 4
    ) -> Row:
        def often() -> float:  # for as long as the large one, so that both have the same chance of a quiet moment
            return fmean(work(size(small)) for _ in range(times))

        return Row(title, "µs", goal, "share", lambda: partial(work, size(large)), lambda: often, f"{small:,}", rounds)

    def counted(title: str, unit: str, goal: float, ours: Make, theirs: Make | None = None) -> Row:
        return Row(title, unit, goal, "alone", ours, theirs, rounds=1)

    turn: dict[str, Any] = {"count": size(20)}
    on_old, on_new = (partial(DSPYER["turn"], store="runs.db", new=new, **turn) for new in (False, True))
    step, few = {"steps": size(400)}, {"steps": size(70)}
    return [
        loop("1 field and a router", 10, 1, "sync"),
        loop("3 fields and a router", 8.5, 3, "sync"),
        loop("1 field, async nodes", None, 1, "async"),
        loop("3 fields, async nodes", 13, 3, "async"),
        loop("1 field, sync nodes in an async run", None, 1, "mixed"),
        loop("3 fields, sync nodes in an async run", 4, 3, "mixed"),
        counted("loop, 1 field: calls of dspyer, a step", "calls", 51, lambda: dspyer_overhead.loop_calls(size(100))),
        Row(
            "`program(...)`, one trivial node",
            "µs",
            120,
            "alone",
            *both("call", {"calls": size(200)}, {"calls": size(70)}),
        ),
        counted("`program(...)`: calls of dspyer", "calls", 170, dspyer_overhead.call_calls),
        faster("fork of 8 sync nodes", 1.8, "fork", mode="sync", calls=size(15)),
        counted("fork of 8: threads that the 31st starts", "threads", 0, *both("fork_threads", {}, {})),
        faster("fork of 8 async nodes", 1.6, "fork", mode="async", calls=size(15)),
        send("sync nodes", 2.5, "sync"),
        send("async nodes", 4, "async"),
        send("sync nodes in an async run", 3, "mixed"),
        faster("stored step, in memory", 7, "stored_loop", few, store=":memory:", **step),
        faster("stored step, SQLite", 5, "stored_loop", few, store="runs.db", **step),
        faster("turn on a SQLite thread", 2, "turn", store="runs.db", **turn),
        counted("turn on a SQLite thread: most SELECTs", "SELECTs", 15, *both("turn_reads", {"turned": size(40)}, {})),
        Row("turn on a SQLite thread / on a new one", "µs", 1.2, "share", on_old, on_new, "new"),
        faster("turn on a thread in memory", 3, "turn", store=":memory:", **turn),
        by_hand("graph of 2 predictors", 1.35, "modules_pair"),
        by_hand("graph of 4 predictors", 1.25, "modules_four"),
        by_hand("`run()` of 2 predictors", 1.6, "modules_pair_run", "modules_pair"),
        by_hand("`deepcopy` of 2 predictors", 3, "copied"),
        by_hand("a request to `serve.router`", 2, "request"),
        Row(
            "a request to `serve.router`, beyond its run",
            "ms",
            2,
            "alone",
            partial(DSPYER["request"], calls=size(100), beyond=True),
        ),
        Row("compile 20 nodes", "ms", 2.5, "alone", *both("compile_chain", {"nodes": size(20)}, {})),
        Row("import, after DSPy", "ms", 120, "alone", lambda: dspyer_overhead.imported, rounds=5),
        grown("loop, a step beside 1,000 keys / 10", 1.3, growth_runs.step_beside_keys, 1_000, 10, 1, 20),
        grown("`Send` to 10,000 / 1,000, a branch", 1.1, growth_runs.sent("sync"), 10_000, 1_000, 10),
        grown("`Send` to 10,000 / 1,000, async run, a branch", 1.1, growth_runs.sent("async"), 10_000, 1_000, 10),
        grown("loop of 100,000 steps / 1,000, a step", 1.1, growth_runs.steps, 100_000, 1_000, 100),
        counted("kept by `run()`, a commit", "KB", 1.4, *both("kept", {"steps": size(1_000)}, {})),
    ]


TITLE = "Overhead"
ABOUT = """\
What dspyer itself takes where nodes do almost nothing: `python -m bench.overhead`. dspyer and what stands beside it
take turns in one process, in seconds of the processor; a figure is the smallest of the rounds. States are typed,
`BaseModel` here and `TypedDict` there. LangGraph stores with its own savers and `durability="sync"`."""
GOALS = "A goal that is missed by less than 10 % is met nearly."  # what is printed has goals, what is written has none


@contextmanager
def quiet() -> Iterator[None]:
    """A block that measures in seconds of the processor, without what is none of a workload's."""
    with mock.patch.object(measure, "clock", time.process_time), mock.patch.dict(os.environ, LANGSMITH_TRACING="false"):
        gc.collect()
        gc.freeze()  # what one library has imported must not lengthen the collections of the other
        try:
            yield
        finally:
            gc.unfreeze()


def main(arguments: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description="What dspyer itself takes.")
    parser.add_argument(
        "--rounds", type=int, default=20, help="measurements of each figure (20), fewer of those that take long"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="only rows with one of these in their title"
    )
    parser.add_argument("--share", type=float, default=1.0, help="how much of the steps, items and calls is done (1)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the section of bench/results.md")
    given = parser.parse_args(arguments)
    lines, noise = [["work", "dspyer", "beside", "ratio", "goal", "met"]], [calibrate(time.process_time)]
    with quiet():
        for row in rows(given.share):
            if not given.only or any(word in row.title for word in given.only):
                began = time.perf_counter()
                lines.append(row.cells(max(1, given.rounds), noise))
                print(f"... {' | '.join(lines[-1])} ({time.perf_counter() - began:.1f} s)", file=sys.stderr, flush=True)
    measured = (
        f"{datetime.now(UTC).date()}. {describe()}; a fixed loop of pure Python took {1e3 * median(noise):.1f} ms ± "
        f"{spread(noise):.0%}, {os.getloadavg()[0]:.1f} processes ran or waited.\n"
    )
    print(f"## {TITLE}\n\n{ABOUT} {GOALS}\n\n{markdown(lines)}\n\n{measured}")
    if given.write:
        table = markdown([line[:4] for line in lines])  # all but the goal
        text = f"## {TITLE}\n\n{ABOUT}\n\n{table}\n\n{measured}"
        given.write.write_text(put_section(given.write.read_text(), text))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
