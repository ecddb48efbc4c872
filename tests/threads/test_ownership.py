"""Who may work on a thread: one owner, who is found out when it has gone, and who notices when it was replaced."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from dspyer import END, START, CompiledGraph, Graph, Run, reducers
from dspyer.errors import ConcurrentRunError, OpenRunError, RunStoppedError
from dspyer.persistence.journal import Journal
from dspyer.persistence.rows import end_row
from dspyer.stores.base import NO_EPOCHS, Change, DeletionReport, Owner, Store, ThreadRow
from dspyer.stores.memory import Memory
from dspyer.stores.sqlite import SQLite
from dspyer.testing.store_samples import begin
from dspyer.threads.ownership import Leases, leases
from dspyer.threads.thread import Thread
from tests.persistence.failing import Crash, FailingMemory, crash
from tests.persistence.processes import end_of, fork


class Count(BaseModel):
    n: Annotated[int, reducers.increment] = 0
    log: Annotated[list[str], reducers.extend] = []


class Gate:
    """A node waits in it until a test lets it pass."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.opened = threading.Event()
        self.calls = 0

    def work(self, state: Any) -> dict[str, Any]:
        self.calls += 1
        self.inside.set()
        assert self.opened.wait(20)
        return {"log": ["gate"]}

    async def awork(self, state: Any) -> dict[str, Any]:
        self.calls += 1
        self.inside.set()
        await asyncio.sleep(3600)
        return {"log": ["gate"]}


def gated(gate: Gate, store: Store, work: Callable[..., Any] | None = None) -> CompiledGraph:
    graph = Graph(Count, inputs=["n"]).add_node("before", lambda state: {"log": ["before"]})
    graph.add_node("gate", work or gate.work).add_node("after", lambda state: {"log": ["after"]})
    return graph.add_path(START, "before", "gate", "after", END).compile(store=store)


class Beside:
    """Work in a thread of its own."""

    def __init__(self, work: Callable[[], Run]) -> None:
        self.result: Run | None = None
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def end(self) -> Run:
        self._thread.join(20)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Memory() if request.param == "memory" else SQLite(tmp_path / "runs.db")


def test_a_second_run_is_refused_before_any_call(store: Store) -> None:
    gate, other = Gate(), Gate()
    first = Beside(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(10)
    thread = gated(other, store).thread("t")
    assert thread.status == "running"
    for ask in (
        lambda: thread.run({"n": 1}),
        lambda: thread.run({"n": 1}, abandon=True),
        thread.resume,
        lambda: asyncio.run(thread.arun({"n": 1})),
        lambda: asyncio.run(thread.aresume()),
        lambda: thread.run({"n": 1}, on_conflict="wait", timeout=0.0),
        lambda: list(thread.stream({"n": 1})),
    ):
        with pytest.raises(ConcurrentRunError, match=r"owned by another run.*take_over=True"):
            ask()
    assert other.calls == 0
    gate.opened.set()
    assert first.end().state.to_dict() == {"n": 1, "log": ["before", "gate", "after"]}
    other.opened.set()
    assert thread.run({"n": 1}).state["n"] == 2


class Watched(Memory):
    """Says how often somebody has looked who owns a thread, and what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = threading.Semaphore(0)
        self.before: Callable[[Change], None] = lambda change: None
        self.after: Callable[[Change], None] = lambda change: None
        self.at_once = True

    def thread(self, name: str) -> ThreadRow | None:
        found = super().thread(name)
        self.looks.release()
        return found

    def write(self, change: Change) -> int:
        self.before(change)
        epoch = super().write(change)
        self.after(change)
        return epoch

    def write_now(self, change: Change) -> bool:
        if self.at_once:
            self.write(change)
        return self.at_once

    def look(self, times: int) -> None:
        """Waits until somebody has looked some more times."""
        while self.looks.acquire(blocking=False):
            pass
        for _ in range(times):
            assert self.looks.acquire(timeout=10)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_waiting_for_the_end_of_another_run(colour: str) -> None:
    store, gate = Watched(), Gate()
    first = Beside(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(10)
    thread = gated(gate, store).thread("t")
    if colour == "sync":
        second = Beside(lambda: thread.run({"n": 10}, on_conflict="wait"))
    else:
        second = Beside(lambda: asyncio.run(thread.arun({"n": 10}, on_conflict="wait")))
    store.look(3)
    assert gate.calls == 1
    gate.opened.set()
    assert first.end().state["n"] == 1
    assert second.end().state["n"] == 11


def test_many_that_wait_in_one_event_loop_keep_no_worker_thread() -> None:
    """More tasks wait than AnyIO has worker threads, and the run that they wait for needs one to write."""
    store = Watched()
    store.at_once = False

    async def step(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"log": ["step"]}

    graph = Graph(Count, inputs=["n"]).add_node("step", step).add_path(START, "step", END)
    thread = graph.compile(store=store).thread("t")

    async def all_of_them() -> None:
        await asyncio.gather(*[thread.arun({"n": 1}, on_conflict="wait") for _ in range(44)])

    asyncio.run(all_of_them())
    assert thread.state["n"] == 44


@pytest.mark.parametrize("how", ["resume", "run"])
def test_an_owner_that_is_replaced_commits_nothing_more(store: Store, how: str) -> None:
    gate, other = Gate(), Gate()
    other.opened.set()
    first = Beside(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(10)
    thread = gated(other, store).thread("t")
    if how == "resume":
        run = thread.resume(take_over=True)
    else:
        with pytest.raises(OpenRunError):
            thread.run({"n": 10}, take_over=True)
        run = thread.run({"n": 10}, take_over=True, abandon=True)
    state = run.state
    assert (run.status, state["n"]) == ("completed", 1 if how == "resume" else 11)
    gate.opened.set()
    replaced = first.end()
    assert isinstance(replaced.error, ConcurrentRunError)
    assert [commit.node for commit in replaced.commits] == ["START", "before"]
    assert (thread.state, thread.status) == (state, "completed")
    assert other.calls == 1


def test_what_the_old_owner_writes_while_it_is_being_replaced_is_kept() -> None:
    """It commits between the moment at which the new owner has read the thread and the one at which it owns it."""
    store, gate, other = Watched(), Gate(), Gate()
    written, replaced = threading.Event(), threading.Event()
    first = Beside(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(10)

    def before(change: Change) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert not written.is_set() or replaced.wait(10)
        elif not written.is_set():
            gate.opened.set()
            assert written.wait(10)

    def after(change: Change) -> None:
        done = replaced if threading.current_thread() is threading.main_thread() else written
        done.set()

    store.before, store.after = before, after
    run = gated(other, store).thread("t").resume(take_over=True)
    assert run.state["log"] == ["before", "gate", "after"]
    assert other.calls == 0
    assert isinstance(first.end().error, ConcurrentRunError)


def test_an_owner_is_never_seen_as_gone_while_it_begins() -> None:
    """Somebody in the same process looks at the very moment at which the first row is there."""
    store, gate = Watched(), Gate()
    gate.opened.set()
    program = gated(gate, store)
    seen: list[BaseException] = []

    def look(change: Change) -> None:
        store.after = lambda change: None
        asked: list[Callable[[], Run]] = [lambda: program.thread("t").run({"n": 1}), program.thread("t").resume]
        for ask in asked:
            with pytest.raises(ConcurrentRunError) as caught:
                ask()
            seen.append(caught.value)

    store.after = look
    assert program.thread("t").run({"n": 1}).status == "completed"
    assert len(seen) == 2


class Stale(Watched):
    """Does something just before and just after the main thread looks for the second time who owns a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: Callable[[], None] | None = None
        self.ends: Callable[[], None] | None = None
        self.count = 0

    def thread(self, name: str) -> ThreadRow | None:
        if threading.current_thread() is not threading.main_thread() or self.turns is None or self.ends is None:
            return super().thread(name)
        self.count += 1
        if self.count != 2:
            return super().thread(name)
        self.turns()
        found = super().thread(name)
        self.ends()
        return found


def test_an_owner_that_has_just_come_to_its_end_has_not_crashed() -> None:
    """The run begins and ends while another one looks whether its owner is alive."""
    store, gate = Stale(), Gate()
    runs: list[Beside] = []

    def begins() -> None:
        runs.append(Beside(lambda: gated(gate, store).thread("t").run({"n": 1})))
        assert gate.inside.wait(10)

    def ends() -> None:
        gate.opened.set()
        runs[0].end()

    store.turns, store.ends = begins, ends
    assert gated(gate, store).thread("t").run({"n": 10}).state["n"] == 11
    assert len(runs) == 1


def elsewhere(store: Store, lease: float = 30.0) -> None:
    """Makes an owner on another host of a thread that has crashed."""
    row = store.thread("t")
    assert row is not None
    owner = Owner("elsewhere", 1, "0", "token")
    store.write(Change("t", row.epoch, row.epoch + 1, owner, lease))


class Clock:
    """Time that a test makes."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_an_owner_on_another_host_is_replaced_only_when_its_lease_has_ended(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    store: Store = Memory(clock=clock) if kind == "memory" else SQLite(tmp_path / "runs.db", clock=clock)
    gate = Gate()

    def fails(state: Any) -> dict[str, Any]:
        raise RuntimeError("boom")

    assert gated(gate, store, fails).thread("t").run({"n": 1}).status == "failed"
    elsewhere(store)
    gate.opened.set()
    thread = gated(gate, store).thread("t")
    clock.now += 29
    with pytest.raises(ConcurrentRunError, match="'elsewhere'; its lease ends in 1 s"):
        thread.resume()
    clock.now += 2
    assert thread.resume().status == "completed"
    assert gate.calls == 1


def test_a_lease_is_renewed_while_a_run_works(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store, gate = Memory(clock=clock), Gate()
    first = Beside(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(10)
    with monkeypatch.context() as patched:
        patched.setattr("socket.gethostname", lambda: "elsewhere")
        thread = gated(gate, store).thread("t")
        for _ in range(3):
            clock.now += 20
            leases.renew()
            with pytest.raises(ConcurrentRunError):
                thread.resume()
    gate.opened.set()
    assert first.end().status == "completed"
    leases.renew()
    row = store.thread("t")
    assert row is not None
    assert row.owner is None


def no_such_process(pid: int, number: int) -> None:
    raise ProcessLookupError(pid, number)


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="the system does not say where a process is")
def test_an_owner_in_another_container_of_the_same_host_name_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the numbers of processes are others: nothing can be told from them."""
    clock = Clock()
    store, gate = Memory(clock=clock), Gate()
    first = Beside(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(10)
    with monkeypatch.context() as patched:
        patched.setattr("os.readlink", lambda path: "pid:[1]")
        patched.setattr("os.getpid", lambda: 1)
        patched.setattr("os.kill", no_such_process)
        thread = gated(gate, store).thread("t")
        assert thread.status == "running"
        with pytest.raises(ConcurrentRunError, match="its lease ends in 30 s"):
            thread.resume()
    gate.opened.set()
    assert first.end().status == "completed"
    assert gate.calls == 1


def test_an_owner_whose_lease_has_ended_notices_at_its_next_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slept: somebody else has gone on meanwhile."""
    clock = Clock()
    store, gate, other = Memory(clock=clock), Gate(), Gate()
    other.opened.set()
    first = Beside(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(10)
    clock.now += 31
    assert gated(other, store).thread("t").resume().status == "completed"
    leases.renew()
    gate.opened.set()
    assert isinstance(first.end().error, ConcurrentRunError)


def test_a_lease_is_not_renewed_after_the_run_has_given_it_back() -> None:
    """The renewal waits for the last write of the run, and finds that nothing is to be renewed."""
    store = Watched()
    renewing: list[threading.Thread] = []

    def renew_beside(change: Change) -> None:
        if change.lease == 0.0:
            renewing.append(threading.Thread(target=leases.renew))
            renewing[0].start()

    store.before = renew_beside
    gate = Gate()
    gate.opened.set()
    assert gated(gate, store).thread("t").run({"n": 1}).status == "completed"
    store.before = lambda change: None
    renewing[0].join(10)
    row = store.thread("t")
    assert row is not None
    assert row.owner is None


@pytest.mark.parametrize("place", ["alone", "in a fork", "in a subgraph", "in a map"])
def test_a_run_that_is_torn_out_gives_the_thread_back(place: str, store: Store) -> None:
    """Ctrl-C in a notebook. What had finished beside is kept."""
    stop = [True]
    calls: list[str] = []

    def torn(state: Any) -> dict[str, Any]:
        calls.append("torn")
        if stop:
            raise KeyboardInterrupt
        return {"log": ["torn"]}

    thread = build(place, torn, calls, store).thread("t")
    with pytest.raises(KeyboardInterrupt):
        thread.run({"n": 1})
    row = store.thread("t")
    assert row is not None
    assert row.owner is None
    assert thread.status == "stopped"
    stop.clear()
    assert thread.resume().state["log"] == {"in a fork": ["torn", "beside"]}.get(place, ["torn"])
    assert calls.count("torn") == 2


def build(place: str, torn: Callable[..., Any], calls: list[str], store: Store) -> CompiledGraph:
    graph = Graph(Count, inputs=["n"])
    if place == "alone":
        graph.add_node("torn", torn).add_path(START, "torn", END)
    elif place == "in a fork":
        graph.add_node("torn", torn).add_node("beside", lambda state: {"log": ["beside"]})
        graph.add_edge(START, ["torn", "beside"]).add_edge(["torn", "beside"], END)
    elif place == "in a subgraph":
        inner = Graph(Count).add_node("torn", torn).add_path(START, "torn", END)
        graph.add_node("inner", inner.compile()).add_path(START, "inner", END)
    else:

        def one(state: Any, item: int) -> str:
            torn(state)
            return "torn"

        graph = Graph(Mapped, inputs=["n"]).add_map("items", one, over="items", item="item", into="log")
        graph.add_path(START, "items", END)
    return graph.compile(store=store)


def test_what_has_finished_before_a_sibling_tears_the_run_out_is_kept() -> None:
    """Both have ended while the driver was writing: the first is not lost with the second."""
    store = Watched()
    store.at_once = False
    go_on = threading.Event()
    calls: list[str] = []

    async def torn_out() -> None:
        loop = asyncio.get_running_loop()
        begin, done = asyncio.Event(), asyncio.Event()

        def hold(change: Change) -> None:
            if change.rows and change.rows[-1].seq == 2:
                loop.call_soon_threadsafe(begin.set)
                assert go_on.wait(10)

        async def finishes(state: Any) -> dict[str, Any]:
            calls.append("finishes")
            await begin.wait()
            done.set()
            return {"log": ["finishes"]}

        async def tears(state: Any) -> dict[str, Any]:
            calls.append("tears")
            await done.wait()
            for _ in range(5):
                await asyncio.sleep(0)
            go_on.set()
            raise Crash

        store.before = hold
        await three(finishes, tears, store).thread("t").arun({"n": 1})

    with pytest.raises(Crash):
        asyncio.run(torn_out())
    store.before = lambda change: None

    def again(name: str) -> Callable[..., Any]:
        async def node(state: Any) -> dict[str, Any]:
            calls.append(name)
            return {"log": [name]}

        return node

    run = three(again("finishes"), again("tears"), store).thread("t").resume()
    assert run.state["log"] == ["first", "finishes", "tears"]
    assert (calls.count("finishes"), calls.count("tears")) == (1, 2)


def three(finishes: Callable[..., Any], tears: Callable[..., Any], store: Store) -> CompiledGraph:
    async def first(state: Any) -> dict[str, Any]:
        return {"log": ["first"]}

    graph = Graph(Count, inputs=["n"]).add_node("first", first).add_node("finishes", finishes).add_node("tears", tears)
    names = ["first", "finishes", "tears"]
    return graph.add_edge(START, names).add_edge(names, END).compile(store=store)


class Mapped(BaseModel):
    n: int = 0
    items: list[int] = [1]
    log: list[str] = []


@pytest.mark.parametrize("where", ["in a node", "in a write", "in a write that goes to a thread"])
def test_a_run_that_is_cancelled_gives_the_thread_back(where: str) -> None:
    store, gate = Watched(), Gate()
    given_back, writing, go_on = threading.Event(), threading.Event(), threading.Event()

    def after(change: Change) -> None:
        if change.lease == 0.0:
            given_back.set()

    def hold(change: Change) -> None:
        if change.rows and change.rows[-1].seq == 2:
            writing.set()
            assert go_on.wait(10)

    store.after = after
    store.at_once = where != "in a write that goes to a thread"
    if where != "in a node":
        store.before = hold if not store.at_once else (lambda change: None)

    async def cancelled() -> None:
        task = asyncio.create_task(gated(gate, store, gate.awork).thread("t").arun({"n": 1}))
        waited = writing if where == "in a write that goes to a thread" else gate.inside
        await asyncio.to_thread(waited.wait, 10)
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert given_back.wait(10)
    row = store.thread("t")
    assert row is not None
    assert row.owner is None
    store.before = lambda change: None
    gate.opened.set()
    thread = gated(gate, store).thread("t")
    assert thread.status == "stopped"
    assert thread.resume().state["log"] == ["before", "gate", "after"]


@pytest.mark.parametrize("where", ["while it waits", "while it gets hold"])
def test_a_run_that_is_cancelled_before_it_begins_owns_nothing(where: str) -> None:
    store, gate = Watched(), Gate()
    owning_it, go_on, given_back = threading.Event(), threading.Event(), threading.Event()
    first: Beside | None = None
    if where == "while it waits":
        first = Beside(lambda: gated(gate, store).thread("t").run({"n": 1}))
        assert gate.inside.wait(10)

    def hold(change: Change) -> None:
        if change.run is not None:
            owning_it.set()
            assert go_on.wait(10)

    def after(change: Change) -> None:
        if change.lease == 0.0:
            given_back.set()

    store.before, store.after = hold, after

    async def cancelled() -> None:
        task = asyncio.create_task(gated(gate, store).thread("t").arun({"n": 1}, on_conflict="wait"))
        await asyncio.to_thread(lambda: store.look(2) if first else owning_it.wait(10))
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    store.before = lambda change: None
    gate.opened.set()
    if first is not None:
        assert first.end().status == "completed"
    assert given_back.wait(10)
    row = store.thread("t")
    assert row is not None
    assert row.owner is None
    assert gate.calls == (1 if first else 0)


def test_closing_a_stream_that_waits_for_its_thread_ends_the_waiting() -> None:
    store, gate = Watched(), Gate()
    first = Beside(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(10)
    stream = gated(gate, store).thread("t").stream({"n": 1}, on_conflict="wait")
    found: list[BaseException] = []

    def read() -> None:
        try:
            next(stream)
        except RunStoppedError as error:
            found.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    store.look(2)
    stream.close()
    reader.join(10)
    assert len(found) == 1
    gate.opened.set()
    assert first.end().state["n"] == 1
    assert gate.calls == 1


def test_a_crashed_owner_of_this_process_is_replaced_at_once() -> None:
    store, gate = FailingMemory(), Gate()
    gate.opened.set()
    store.arm(crash, 3, after=False)
    with pytest.raises(Crash):
        gated(gate, store).thread("t").run({"n": 1})
    row = store.thread("t")
    assert row is not None
    assert row.owner is not None
    assert row.owner.pid == os.getpid()
    store.rest()
    assert gated(gate, store).thread("t").resume().status == "completed"


@pytest.mark.parametrize("how", ["wait", "raise"])
def test_no_increment_of_eight_processes_is_lost(how: str, tmp_path: Path) -> None:
    graph = Graph(Count, inputs=["n"]).add_node("step", lambda state: None).add_path(START, "step", END)
    program = graph.compile(store=SQLite(tmp_path / "runs.db"))

    def increment(thread: Thread) -> None:
        if how == "wait":
            thread.run({"n": 1}, on_conflict="wait")
            return
        while True:
            try:
                thread.run({"n": 1})
            except ConcurrentRunError:
                os.sched_yield()
                continue
            return

    def work() -> None:
        for _ in range(25):
            increment(program.thread("t"))

    children = [fork(work) for _ in range(8)]
    assert [end_of(child) for child in children] == [0] * 8
    assert program.thread("t").state["n"] == 200


def test_two_processes_on_one_thread(tmp_path: Path) -> None:
    """The child owns the thread; the parent is refused until the child has ended."""
    gate = Gate()
    program = gated(gate, SQLite(tmp_path / "runs.db"))
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()

    def child() -> None:
        def waits(state: Any) -> dict[str, Any]:
            os.write(to_parent, b"x")
            os.read(from_parent, 1)
            return {"log": ["gate"]}

        assert gated(gate, SQLite(tmp_path / "runs.db"), waits).thread("t").run({"n": 1}).status == "completed"

    pid = fork(child)
    assert os.read(from_child, 1) == b"x"
    with pytest.raises(ConcurrentRunError, match=f"process {pid} on "):
        program.thread("t").run({"n": 1})
    assert program.thread("t").status == "running"
    os.write(to_child, b"x")
    assert end_of(pid) == 0
    assert gate.calls == 0
    gate.opened.set()
    assert program.thread("t").run({"n": 1}).state["n"] == 2


@pytest.mark.parametrize("kept", [True, False], ids=["a copy keeps its rows", "its rows are gone"])
@pytest.mark.parametrize("stale_first", [True, False], ids=["the stale owner first", "the new owner first"])
def test_the_owner_of_a_deleted_thread_writes_nothing_to_its_successor(
    store: Store, kept: bool, stale_first: bool
) -> None:
    """Neither rows nor head, and it does not release what another owns now."""
    old, new = Gate(), Gate()
    stale = Beside(lambda: gated(old, store).thread("t").run({"n": 1}))
    assert old.inside.wait(10)
    thread = gated(Gate(), store).thread("t")
    if kept:
        thread.copy(to="kept")
    thread.delete(take_over=True)
    owner = Beside(lambda: gated(new, store).thread("t").run({"n": 2}))
    assert new.inside.wait(10)
    for gate, run in ((old, stale), (new, owner)) if stale_first else ((new, owner), (old, stale)):
        before = store.thread("t")
        gate.opened.set()
        ended = run.end()
        after = store.thread("t")
        assert before is not None
        assert after is not None
        if run is stale:
            assert isinstance(ended.error, ConcurrentRunError)
            assert (after.epoch, after.head, after.owner) == (before.epoch, before.head, before.owner)
    assert owner.end().status == "completed"
    assert thread.state.to_dict() == {"n": 2, "log": ["before", "gate", "after"]}
    assert thread.status == "completed"


def test_a_thread_that_a_run_has_got_since_is_not_deleted() -> None:
    """Who deletes has looked whether a run is at work; the store looks again when it removes."""
    gate = Gate()
    begun: list[Beside] = []

    class Late(Memory):
        def delete(self, threads: Collection[str] = (), epochs: Mapping[str, int] = NO_EPOCHS) -> DeletionReport:
            if not begun:
                begun.append(Beside(lambda: gated(gate, self).thread("t").run({"n": 1}, abandon=True)))
                assert gate.inside.wait(10)
            return super().delete(threads, epochs)

    store = Late()
    thread = gated(gate, store).thread("t")
    thread.update({"n": 1})
    with pytest.raises(ConcurrentRunError, match="Nothing was removed"):
        thread.delete()
    gate.opened.set()
    assert begun[0].end().status == "completed"
    assert thread.state["n"] == 2
    gate.inside.clear()
    gate.opened.clear()
    begun.clear()
    assert thread.delete(take_over=True).threads == ("t",)
    gate.opened.set()
    assert isinstance(begun[0].end().error, ConcurrentRunError)
    assert store.threads() == []


class Stuck(Memory):
    """Renews no lease before a test lets it."""

    def __init__(self, stuck: Collection[str]) -> None:
        super().__init__()
        self.stuck = stuck
        self.go_on = threading.Event()
        self.renewed: dict[str, threading.Event] = {name: threading.Event() for name in "abc"}

    def write(self, change: Change) -> int:
        renews = change.lease and change.run is None
        if renews and change.thread in self.stuck:
            assert self.go_on.wait(20)
        epoch = super().write(change)
        if renews:
            self.renewed[change.thread].set()
        return epoch


@pytest.mark.parametrize("stores", [("ab", "c"), ("ab",)], ids=["of another store", "of the same store"])
def test_a_renewal_that_does_not_come_back_holds_up_no_other(stores: tuple[str, ...]) -> None:
    """Of two threads of one store that is stuck, and of a thread of any store that is not."""
    found = {names: Stuck("ab") for names in stores}
    blocked = found["ab"]
    other = found.get("c", blocked)
    some = Leases(lease=0.3)
    journals = {}
    for store, name in ((blocked, "a"), (blocked, "b"), (other, "c")):
        change = begin(name, f"run of {name}", 1)
        journals[name] = Journal(store, name, store.write(change), f"run of {name}", 1)
        some.hold(name, journals[name])
    try:
        assert other.renewed["c"].wait(20)
        assert not blocked.renewed["a"].is_set()
        other.renewed["c"].clear()
        assert other.renewed["c"].wait(20), "renewed once only"
    finally:
        blocked.go_on.set()
    assert blocked.renewed["a"].wait(20)
    assert blocked.renewed["b"].wait(20)
    for name in journals:
        assert some.holds(name)
        some.let_go(name)
        assert not some.holds(name)


def test_a_lease_is_renewed_while_a_write_of_its_run_waits() -> None:
    """And an owner that is about to own its thread renews nothing yet, and is not refused for it."""
    store = Stuck("")
    journal = Journal(store, "a", 0, "r", 1)
    journal.renew(30.0)
    assert store.threads() == []
    assert journal.broken is None
    journal.set_epoch(store.write(begin("a", "r", 1)))
    inside, go_on = threading.Event(), threading.Event()

    def slow(change: Change) -> int:
        inside.set()
        assert go_on.wait(20)
        return Memory.write(store, change)

    journal.store.store.write = lambda change: slow(change) if change.rows else Stuck.write(store, change)  # type: ignore[method-assign]
    writing = threading.Thread(target=journal.write, args=([end_row("stopped", None, ())],))
    writing.start()
    assert inside.wait(10)
    journal.renew(30.0)
    assert store.renewed["a"].is_set()
    go_on.set()
    writing.join(10)
    assert [row.seq for row in store.rows("r")] == [0, 1]
