"""Deliveries of one key, or of one answer, at every point of the schedule, in every store, and by real processes.

`Stepped` stops a delivery before and after each operation of its store. Between two steps another delivery is made, or
the process ends there. Whatever the schedule: the run is one run, no finished node is called again, and who is refused
has called nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspyer import END, START, CompiledGraph, Context, Graph, Run, Thread
from dspyer.errors import ConcurrentRunError
from dspyer.stores import Memory, SQLite, Store, open_store
from dspyer.stores.encrypted import Encrypted
from tests.log.failing import Crash
from tests.log.processes import end_of, fork
from tests.threads.owned_runs import BackgroundRun


def _passed_on(name: str, steps: bool = True) -> Any:
    def call(self: Stepped, /, *args: Any, **options: Any) -> Any:
        if not steps:
            return getattr(self.store, name)(*args, **options)
        self.step()
        found = getattr(self.store, name)(*args, **options)
        self.step()
        return found

    return call


class Stepped(Store):
    """A store that calls a function of the test before and after each operation on a run."""

    def __init__(self, store: Store, step: Callable[[], None]) -> None:
        self.store = store
        self.step = step

    write = _passed_on("write")
    write_now = _passed_on("write_now")
    thread = _passed_on("thread")
    run = _passed_on("run")
    rows = _passed_on("rows")
    blobs = _passed_on("blobs")
    snapshot = _passed_on("snapshot")
    threads = _passed_on("threads", steps=False)
    runs = _passed_on("runs", steps=False)
    list_runs = _passed_on("list_runs", steps=False)
    delete = _passed_on("delete", steps=False)
    delete_unreachable = _passed_on("delete_unreachable", steps=False)
    drop_snapshots = _passed_on("drop_snapshots", steps=False)
    vacuum = _passed_on("vacuum", steps=False)
    close = _passed_on("close", steps=False)
    address = "memory:steps"


class Nodes:
    """The calls of the nodes of a graph, with a question between them if it asks one."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = False

    def before(self, n: int) -> dict[str, Any]:
        self.calls.append("before")
        return {"n": n + 1}

    def after(self, n: int) -> dict[str, Any]:
        self.calls.append("after")
        if self.fails:
            raise ValueError("not yet")
        return {"n": n * 10}

    def program(self, store: Store, asks: bool) -> CompiledGraph:
        graph = Graph(inputs=["n"]).add_node("before", self.before, writes=["n"])
        if asks:
            graph.add_interrupt("ask", question="Go on?", answer=bool, into="answer").add_edge("before", "ask")
        graph.add_node("after", self.after, writes=["n"]).add_edge("ask" if asks else "before", "after")
        return graph.add_edge(START, "before").add_edge("after", END).compile(store=store)


Act = Callable[[Thread], Run]


def deliver(t: Thread) -> Run:
    return t.run({"n": 1}, key="k")


def adeliver(t: Thread) -> Run:
    return asyncio.run(t.arun({"n": 1}, key="k"))


def answer(t: Thread) -> Run:
    return t.resume({f"{t.name}.1/trunk:2/ask": True})


def fail(nodes: Nodes, t: Thread) -> None:
    nodes.fails = True
    assert deliver(t).status == "failed"
    nodes.fails = False


class Case(NamedTuple):
    """What is there before the deliveries, and what they do.

    Attributes:
        prepare: makes what is there.
        act: a delivery.
        asks: whether the graph asks a question.
        calls: the nodes that all deliveries together call.
        status: of the run afterwards.
    """

    prepare: Callable[[Nodes, Thread], object]
    act: Act
    asks: bool
    calls: tuple[str, ...]
    status: str = "completed"


CASES = {
    "new": Case(lambda nodes, t: None, deliver, False, ("before", "after")),
    "new in an old thread": Case(lambda nodes, t: t.run({"n": 7}), deliver, False, ("before", "after")),
    "new, async": Case(lambda nodes, t: None, adeliver, False, ("before", "after")),
    "failed": Case(fail, deliver, False, ("after",)),
    "completed": Case(lambda nodes, t: deliver(t), deliver, False, ()),
    "new, and asks": Case(lambda nodes, t: None, deliver, True, ("before",), "interrupted"),
    "waits": Case(lambda nodes, t: deliver(t), deliver, True, (), "interrupted"),
    "answer": Case(lambda nodes, t: deliver(t), answer, True, ("after",)),
    "answered": Case(lambda nodes, t: (deliver(t), answer(t)), answer, True, ()),
}


class World:
    """A thread in which a case is prepared, and its deliveries. All but those over another store share one program."""

    def __init__(self, case: Case, store: Store, name: str, like: World | None = None) -> None:
        self.case, self.store, self.name = case, store, name
        self.nodes: Nodes = like.nodes if like else Nodes()
        self.program: CompiledGraph = like.program if like else self.nodes.program(store, case.asks)
        case.prepare(self.nodes, self.thread(store))
        self.runs_before = len(store.runs(name)) if case.act is not answer else 0
        self.nodes.calls.clear()
        self.returned: list[Run] = []

    def thread(self, store: Store) -> Thread:
        program = self.program if store is self.store else self.nodes.program(store, self.case.asks)
        return program.thread(self.name)

    def act(self, store: Store) -> None:
        """A delivery, which may be refused since another one is at work."""
        with suppress(ConcurrentRunError):
            self.returned.append(self.case.act(self.thread(store)))

    def act_elsewhere(self) -> None:
        """The same as another process would do it: with nothing of this one around it."""
        BackgroundRun(lambda: self.act(self.store)).wait()

    def check(self, lost_calls: int = 0) -> None:
        """Checks that there is one run, which one more delivery returns without a call.

        Args:
            lost_calls: how many calls a process may have made whose end it did not write.
        """
        expected = Counter(self.case.calls)
        assert not expected - Counter(self.nodes.calls)
        assert len(self.nodes.calls) <= expected.total() + lost_calls, self.nodes.calls
        assert self.returned, "all deliveries were refused"
        called = len(self.nodes.calls)
        again = self.case.act(self.thread(self.store))
        assert len(self.nodes.calls) == called
        for run in (*self.returned, again):
            assert (run.status, run.error, run.run_id) == (self.case.status, None, again.run_id)
            assert (run.state["n"], run.state) == (2 if run.questions else 20, again.state)
        assert len(self.store.runs(self.name)) <= self.runs_before + 1


@contextmanager
def opened(kind: str, folder: Path, postgres: str) -> Iterator[Store]:
    """A store of a kind."""
    made = open_store(postgres) if kind == "postgres" else SQLite(folder / "runs.db")
    with Encrypted(made, key=Encrypted.new_key()) if kind == "encrypted" else made as store:
        yield store


class Steps:
    """Counts the steps of a delivery, and does something at one of them."""

    def __init__(self, at: int = 0) -> None:
        self.count = 0
        self.dead = False
        self.do: Callable[[], None] = lambda: None
        self._at = at

    def __call__(self) -> None:
        if self.dead:
            raise Crash
        self.count += 1
        if self.count == self._at:
            self.do()

    def die(self) -> None:
        """Ends the process, as far as one process can play it: nothing that follows reaches the store."""
        self.dead = True
        raise Crash


EVERY = {"sqlite": 5, "encrypted": 9, "postgres": 9}
"""At which of the steps the other delivery comes: every fifth or ninth one; in memory before each operation."""


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_two_deliveries_at_every_step(case: str, crashes: bool) -> None:
    """The other delivery comes while this one is between two steps, or after this one has died there."""
    two_deliveries(Memory(), case, crashes, every=2)


@pytest.mark.parametrize(
    ("kind", "case", "crashes"),
    [
        ("sqlite", "new in an old thread", False),
        ("sqlite", "failed", True),
        ("sqlite", "answer", False),
        ("encrypted", "answered", True),
        ("encrypted", "new, async", False),
        ("postgres", "new, and asks", True),
        ("postgres", "failed", False),
    ],
)
def test_two_deliveries_in_other_stores(
    kind: str, case: str, crashes: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    postgres = request.getfixturevalue("postgres") if kind == "postgres" else ""
    with opened(kind, tmp_path, postgres) as store:
        two_deliveries(store, case, crashes, EVERY[kind])


def two_deliveries(store: Store, case: str, crashes: bool, every: int) -> None:
    dry, counted = World(CASES[case], store, "dry"), Steps()
    dry.act(Stepped(store, counted))
    dry.check()
    assert counted.count > 4
    for at in range(1, counted.count + 1, every):
        world = World(CASES[case], store, f"t{at}", dry)
        steps = Steps(at)
        steps.do = steps.die if crashes else world.act_elsewhere
        with suppress(Crash):
            world.act(Stepped(store, steps))
        if crashes:
            world.act(store)
        world.check(lost_calls=1 if crashes else 0)


class Turns:
    """Lets one thread at a time go on, by a list of choices."""

    def __init__(self, choices: list[int]) -> None:
        self._choices = choices
        self._changed = threading.Condition()
        self._waiting: dict[int, bool] = {}

    def add(self, number: int) -> None:
        """A delivery that takes turns from now on."""
        self._waiting[number] = False

    def step(self, number: int) -> None:
        """Waits for its turn."""
        with self._changed:
            self._waiting[number] = True
            self._next()
            assert self._changed.wait_for(lambda: not self._waiting[number], timeout=20)

    def end(self, number: int) -> None:
        """It has ended."""
        with self._changed:
            del self._waiting[number]
            self._next()

    def _next(self) -> None:
        if self._waiting and all(self._waiting.values()):
            ready = sorted(self._waiting)
            chosen = ready[self._choices.pop() % len(ready)] if self._choices else ready[0]
            self._waiting[chosen] = False
            self._changed.notify_all()


@pytest.mark.slow("a law: 50 schedules of two or three deliveries, step by step in threads")
@settings(max_examples=2 * settings().max_examples)
@given(
    case=st.sampled_from(sorted(CASES)), choices=st.lists(st.integers(0, 2), max_size=120), deliveries=st.integers(2, 3)
)
def test_deliveries_in_any_order(case: str, choices: list[int], deliveries: int) -> None:
    world, turns = World(CASES[case], Memory(), "t"), Turns(choices)

    def act(number: int) -> None:
        def step() -> None:
            if threading.get_ident() in mine:
                turns.step(number)

        mine = {threading.get_ident()}
        try:
            world.act(Stepped(world.store, step))
        finally:
            turns.end(number)

    for number in range(deliveries):
        turns.add(number)
    threads = [BackgroundRun(lambda number=number: act(number)) for number in range(deliveries)]  # type: ignore[misc]
    for thread in threads:
        thread.wait()
    world.check()


# --- real processes


def work(store: Store, who: str, folder: Path) -> CompiledGraph:
    """A program that notes its calls in a file, and whose process is killed at the first call of some nodes."""

    def note(name: str, n: int) -> None:
        with (folder / "calls").open("a") as calls:
            calls.write(f"{name}{n}\n")
        if n % 2 and name == "after":
            with suppress(FileExistsError):
                (folder / f"killed{n}").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)

    def before(n: int, ctx: Context) -> dict[str, Any]:
        note("before", n)
        ctx.once("paid", lambda: note("paid", n))
        return {"who": who}

    def after(n: int) -> dict[str, Any]:
        note("after", n)
        return {"done": n}

    graph = Graph(inputs=["n"]).add_node("before", before, writes=["who"]).add_node("after", after, writes=["done"])
    return graph.add_path(START, "before", "after", END).compile(store=store)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
@pytest.mark.parametrize(("kind", "keys"), [("sqlite", 4), ("postgres", 2)])
def test_processes_that_deliver_the_same_keys_and_are_killed(
    kind: str, keys: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    postgres = request.getfixturevalue("postgres") if kind == "postgres" else ""

    def deliver_all(who: str) -> None:
        with opened(kind, tmp_path, postgres) as store:
            program, chance = work(store, who, tmp_path), random.Random(who)
            waiting = chance.sample(range(keys), keys)
            while waiting:  # as a queue: what is refused, behind a run that was killed, comes again after the others
                n = waiting.pop(0)
                try:
                    run = program.thread(f"t{n // 2}").run({"n": n}, key=str(n), on_conflict="wait", lock_timeout=0.05)
                except ConcurrentRunError:
                    waiting.append(n)
                else:
                    assert (run.status, run.state["done"]) == ("completed", n)

    with opened(kind, tmp_path, postgres):
        pass  # makes the tables
    ends: list[int] = []
    for attempt in range(keys):
        children = [fork(lambda who=who: deliver_all(who)) for who in (f"x{attempt}", f"y{attempt}")]  # type: ignore[misc]
        ends = [end_of(child) for child in children]
        if ends == [0, 0]:
            break
    assert ends == [0, 0]
    calls = Counter((tmp_path / "calls").read_text().split())
    assert calls == Counter(
        {
            f"{name}{n}": 2 if n % 2 and name == "after" else 1
            for n in range(keys)
            for name in ("before", "paid", "after")
        }
    )
    with opened(kind, tmp_path, postgres) as store:
        assert [len(store.runs(f"t{n}")) for n in range(keys // 2)] == [2] * (keys // 2)
