"""When a run is written: at each transition, flushed or not, in batches, or at its end; reported is what is flushed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dspyer import END, START, Context, Graph
from dspyer.errors import GraphError, StoreError
from dspyer.persistence.journal import BATCH_SIZE, Journal
from dspyer.persistence.rows import NewRow, RowKind
from dspyer.runtime.program import CompiledGraph
from dspyer.stores import Store, open_store
from dspyer.stores.base import Change
from dspyer.stores.memory import Memory

MODES = ["sync", "async"]


class Recorder(Memory):
    """Remembers what it was given, and fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self.fails = False

    def write(self, change: Change) -> int:
        """Keeps a change."""
        if self.fails:
            raise OSError("no space left")
        epoch = super().write(change)
        self.changes.append(change)
        return epoch

    def rows_of(self) -> list[list[str]]:
        """The kinds of the rows of each change that has any."""
        return [[row.kind for row in change.rows] for change in self.changes if change.rows]


class Clock:
    """Time that goes on when it is told to, and what is to happen at some time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.alarms: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float, work: Callable[[], None]) -> Callable[[], None]:
        """Keeps an alarm."""
        assert seconds > 0
        self.alarms.append(work)
        return lambda: self.alarms.remove(work) if work in self.alarms else None

    def ring(self) -> None:
        """Time is over."""
        for work in list(self.alarms):
            work()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still."""
    made = Clock()
    monkeypatch.setattr("dspyer.persistence.journal.monotonic", made)
    monkeypatch.setattr("dspyer.persistence.journal.later", made.later)
    return made


def loop(store: Store, durability: Any, during: Callable[[int], None] = lambda n: None, last: int = 5) -> CompiledGraph:
    """A loop of `last` steps."""

    def step(n: int) -> dict[str, int]:
        during(n)
        return {"n": n + 1}

    graph = Graph(outputs=["n"]).add_node(step).add_edge(START, "step")
    graph.add_conditional_edges("step", lambda n: "step" if n < last else END, ["step", END])
    return graph.compile(store=store, durability=durability)


def run(program: CompiledGraph, mode: str) -> Any:
    """A run in a mode, from 0."""
    t = program.thread("t")
    return t.run({"n": 0}) if mode == "sync" else asyncio.run(t.arun({"n": 0}))


STEPS = [["commit"]] * 6
WRITTEN: dict[str, tuple[list[list[str]], list[bool]]] = {
    "sync": ([["open"], *STEPS, ["end"]], [True, *[False] * 6, True]),
    "flush": ([["open"], *STEPS, ["end"]], [True] * 8),
    "batch": ([["open"], [*["commit"] * 6, "end"]], [True, True]),
    "exit": ([["open"], [*["commit"] * 6, "end"]], [True, True]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("durability", WRITTEN)
@pytest.mark.usefixtures("clock")
def test_what_is_written_together_and_what_is_flushed(durability: str, mode: str) -> None:
    store = Recorder()
    assert run(loop(store, durability), mode).status == "completed"
    rows, flushed = WRITTEN[durability]
    assert store.rows_of() == rows
    assert [change.flush for change in store.changes if change.rows] == flushed


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_is_written_when_its_time_is_over(clock: Clock, mode: str) -> None:
    store = Recorder()

    def during(n: int) -> None:
        if n == 2:
            clock.ring()  # the timer, while a node works
        if n == 4:
            clock.now += 1.0  # the timer is late: the next transition does not wait for it

    assert run(loop(store, "batch", during), mode).status == "completed"
    assert store.rows_of() == [["open"], ["commit"] * 3, ["commit"] * 3, ["end"]]
    assert clock.alarms == []


def test_a_batch_is_written_when_it_is_full(clock: Clock) -> None:
    store = Recorder()
    assert run(loop(store, "batch", last=BATCH_SIZE), "sync").status == "completed"
    assert store.rows_of() == [["open"], ["commit"] * BATCH_SIZE, ["commit", "end"]]
    assert clock.alarms == []


def test_the_timer_writes_a_batch() -> None:
    store = Recorder()
    written: list[int] = []

    def during(n: int) -> None:
        while n == 3 and not written:  # as long as it takes
            written.extend(len(change.rows) for change in store.changes[1:])

    assert run(loop(store, "batch", during), "sync").status == "completed"
    assert written[0] <= 4


def interrupt(n: int) -> None:
    """Ctrl-C, in the middle of a node."""
    if n == 3:
        raise KeyboardInterrupt


def fail(n: int) -> None:
    """A failure."""
    if n == 3:
        raise RuntimeError("boom")


@pytest.mark.parametrize("durability", WRITTEN)
@pytest.mark.usefixtures("clock")
def test_a_failure_is_written_with_all_before_it(durability: str) -> None:
    store = Recorder()
    failed = run(loop(store, durability, fail), "sync")
    assert failed.status == "failed"
    assert [row.kind for row in store.rows(store.runs("t")[0].id)][-1] == RowKind.END
    calls: list[int] = []
    done = loop(store, durability, calls.append).thread("t").resume()
    assert (done.status, done.state["n"], calls) == ("completed", 5, [3, 4])


@pytest.mark.parametrize("durability", WRITTEN)
@pytest.mark.usefixtures("clock")
def test_a_run_that_is_interrupted_by_ctrl_c_is_written_and_stopped(durability: str) -> None:
    store = Recorder()
    with pytest.raises(KeyboardInterrupt):
        run(loop(store, durability, interrupt), "sync")
    calls: list[int] = []
    t = loop(store, durability, calls.append).thread("t")
    assert t.status == "stopped"
    assert t.state["n"] == 3
    assert t.resume().state["n"] == 5
    assert calls == [3, 4]


@pytest.mark.parametrize(("durability", "kept"), [("batch", 2), ("exit", 0)])
def test_a_process_that_dies_loses_what_waits(clock: Clock, durability: str, kept: int) -> None:
    store = Recorder()

    def during(n: int) -> None:
        if n == kept and durability == "batch":
            clock.ring()
        if n == 3:
            store.write = lambda change: change.epoch  # type: ignore[method-assign]  # nothing reaches it any more
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(loop(store, durability, during), "sync")
    del store.write
    calls: list[int] = []
    done = loop(store, durability, calls.append).thread("t").resume(take_over=True)
    assert done.state["n"] == 5
    assert calls == list(range(kept, 5))


@pytest.mark.parametrize("durability", WRITTEN)
@pytest.mark.usefixtures("clock")
def test_effects_and_questions_are_flushed(durability: str) -> None:
    store = Recorder()
    seen: list[bool] = []

    def effect() -> int:
        return 7

    def charge(ctx: Context, n: int) -> dict[str, int]:
        got = ctx.once("charge", effect)
        row = store.rows(store.runs("t")[0].id)[-1]
        seen.append(row.kind == RowKind.ONCE and store.changes[-1].flush)
        return {"n": got + ctx.interrupt("sure", "how many?", int)}

    graph = Graph(outputs=["n"]).add_node(charge, writes=["n"]).add_path(START, "charge", END)
    program = graph.compile(store=store, durability=durability)  # type: ignore[arg-type]
    t = program.thread("t")
    assert t.run({"n": 0}).status == "interrupted"
    assert store.changes[-1].flush
    assert [question.key for question in program.thread("t").questions] == ["sure"]
    done = t.resume({"sure": 1})
    assert done.state["n"] == 8
    assert seen[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("durability", ["batch", "exit"])
def test_a_late_write_that_fails_takes_back_what_waited(clock: Clock, durability: str, mode: str) -> None:
    store = Recorder()

    def during(n: int) -> None:
        if n == 2 and durability == "batch":
            clock.ring()
        if n == 3:
            store.fails = True
        if n == 4:
            clock.ring()

    calls: list[int] = []

    def both(n: int) -> None:
        calls.append(n)
        during(n)

    failed = run(loop(store, durability, both), mode)
    assert isinstance(failed.error, StoreError)
    assert isinstance(failed.error.__cause__, OSError)
    assert [commit.node for commit in failed.commits] == (["START", "step", "step"] if durability == "batch" else [])
    assert len(calls) == 5
    store.fails = False
    calls.clear()
    done = loop(store, durability, calls.append).thread("t").resume(take_over=True)
    assert done.state["n"] == 5
    assert calls == ([2, 3, 4] if durability == "batch" else [0, 1, 2, 3, 4])


def test_nothing_is_written_after_a_late_write_has_failed(clock: Clock) -> None:
    store = Recorder()
    run(loop(store, "sync"), "sync")
    row = store.thread("t")
    assert row is not None
    assert row.head is not None
    journal = Journal(store, "t", row.epoch, row.head.run, row.head.seq + 1, "batch")
    journal.write([NewRow("note", ())])
    store.fails = True
    clock.ring()
    store.fails = False
    with pytest.raises(StoreError, match="no space left"):
        journal.write([NewRow("note", ())])
    assert store.rows(row.head.run)[-1].kind == RowKind.END


def test_an_unknown_durability_is_refused() -> None:
    with pytest.raises(GraphError, match=r"it is .sync., .flush., .batch., .exit. Did you mean .flush."):
        loop(open_store(":memory:"), "flash")
