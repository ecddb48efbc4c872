"""Leases: when an owner on another host counts as dead, and that a working owner renews its lease in time.

A lease that nobody lets go would be renewed for ever, which no other process can see: so the last tests look at the
leases of this process, after runs that were cancelled, interrupted or stopped as they began.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from dspyer import END, START, Graph, Thread
from dspyer.errors import ConcurrentRunError, ThreadError
from dspyer.log.journal import STOPPING, Journal, Leases, NewRows, leases
from dspyer.log.rows import end_row
from dspyer.runtime.streams import AsyncEvents
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Change, Owner, Store, ThreadRow
from dspyer.testing import clock
from dspyer.testing.store_samples import begin
from tests.children import run_python
from tests.threads.owned_runs import BackgroundRun, Clock, Count, Gate, WatchedStore, gated, owner_of
from tests.threads.test_stop import Stage


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_an_owner_on_another_host_is_replaced_only_after_its_lease_has_expired(
    kind: str, tmp_path: Path, late_clock: Clock
) -> None:
    store: Store = Memory() if kind == "memory" else SQLite(tmp_path / "runs.db")
    gate = Gate()

    def fails(state: Any) -> dict[str, Any]:
        raise RuntimeError("boom")

    assert gated(gate, store, fails).thread("t").run({"n": 1}).status == "failed"
    set_owner_on_another_host(store)
    gate.opened.set()
    thread = gated(gate, store).thread("t")
    late_clock.ahead += 29
    with pytest.raises(ConcurrentRunError, match="'set_owner_on_another_host'; its lease ends in 1 s"):
        thread.resume()
    late_clock.ahead += 2
    assert thread.resume().status == "completed"
    assert gate.calls == 1


def set_owner_on_another_host(store: Store, lease: float = 30.0) -> None:
    """Give the thread an owner on another host."""
    row = store.thread("t")
    assert row is not None
    owner = Owner("set_owner_on_another_host", 1, "0", "token")
    store.write(Change("t", row.epoch, row.epoch + 1, owner, lease))


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="the system has no PID namespaces")
def test_an_owner_in_another_container_of_the_same_host_name_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process ids there belong to another PID namespace, so only the lease counts."""
    store, gate = Memory(), Gate()
    first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(20)
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


def no_such_process(pid: int, number: int) -> None:
    raise ProcessLookupError(pid, number)


DIES = """
import os, sys
def no_proc(path): raise FileNotFoundError(path)
os.readlink = no_proc
sys.platform = sys.argv[2]
from dspyer import END, START, Graph
graph = Graph(inputs=["n"]).add_node("node", lambda n: os._exit(7), writes=[]).add_path(START, "node", END)
graph.compile(store=sys.argv[1]).thread("t").run({"n": 1})
"""


@pytest.mark.parametrize("system", ["linux", "win32"])
def test_no_process_of_windows_gets_a_signal(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_clock: Clock
) -> None:
    """There `os.kill(pid, 0)` is Ctrl-C, so only the lease says whether another process is at work."""
    path = tmp_path / "runs.db"
    assert run_python(DIES, str(path), system).returncode == 7
    store = SQLite(path)
    row = store.thread("t")
    assert row is not None
    assert row.owner is not None
    monkeypatch.setattr("os.readlink", no_proc)
    if system == "win32":
        monkeypatch.setattr("sys.platform", system)
        monkeypatch.setattr("os.kill", lambda pid, number: pytest.fail("a process has got a signal"))
    graph = Graph(inputs=["n"]).add_node("node", lambda n: None, writes=[]).add_path(START, "node", END)
    thread = graph.compile(store=store).thread("t")
    if system == "win32":
        with pytest.raises(ConcurrentRunError, match=r"its lease ends in (30|29) s"):
            thread.resume()
        late_clock.ahead += 31
    assert thread.resume().status == "completed"


def no_proc(path: object) -> str:
    raise FileNotFoundError(path)


def test_a_lease_is_renewed_while_a_run_works(monkeypatch: pytest.MonkeyPatch, late_clock: Clock) -> None:
    store, gate = Memory(), Gate()
    first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(20)
    with monkeypatch.context() as patched:
        patched.setattr("socket.gethostname", lambda: "set_owner_on_another_host")
        thread = gated(gate, store).thread("t")
        for _ in range(3):
            late_clock.ahead += 20
            leases.renew()
            with pytest.raises(ConcurrentRunError):
                thread.resume()
    gate.opened.set()
    assert first.end().status == "completed"
    leases.renew()
    assert owner_of(store) is None


def test_a_lease_is_renewed_so_early_that_one_renewal_may_fail() -> None:
    store, gate = Memory(), Gate()
    with clock() as time:
        first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
        assert gate.inside.wait(20)
        for _ in range(3):
            (left,) = time.wait_for("lease")
            row = store.thread("t")
            assert row is not None
            assert 0 < 2 * left <= row.lease
            time.advance(left)
        gate.opened.set()
        assert first.end().status == "completed"


def test_an_owner_whose_lease_has_expired_fails_at_its_next_write(late_clock: Clock) -> None:
    """A machine was suspended, and another process has resumed the run meanwhile."""
    store, gate, other = Memory(), Gate(), Gate()
    other.opened.set()
    first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(20)
    late_clock.ahead += 31
    assert gated(other, store).thread("t").resume().status == "completed"
    leases.renew()
    gate.opened.set()
    assert isinstance(first.end().error, ConcurrentRunError)


def test_a_lease_is_not_renewed_after_the_thread_was_released() -> None:
    """The renewal comes during the last write of the run."""
    store = WatchedStore()
    renewing: list[threading.Thread] = []

    def renew_meanwhile(change: Change) -> None:
        if change.lease == 0.0:
            renewing.append(threading.Thread(target=leases.renew))
            renewing[0].start()

    store.before = renew_meanwhile
    gate = Gate()
    gate.opened.set()
    assert gated(gate, store).thread("t").run({"n": 1}).status == "completed"
    store.before = lambda change: None
    renewing[0].join(20)
    assert owner_of(store) is None


class StoreWithSlowRenewal(Memory):
    """Renewals of some threads wait until the test lets them pass."""

    def __init__(self, slow: Collection[str]) -> None:
        super().__init__()
        self.slow = slow
        self.go_on = threading.Event()
        self.renewed: dict[str, threading.Event] = {name: threading.Event() for name in "abc"}

    def write(self, change: Change) -> int:
        renews = change.lease and change.run is None
        if renews and change.thread in self.slow:
            assert self.go_on.wait(20)
        epoch = super().write(change)
        if renews:
            self.renewed[change.thread].set()
        return epoch


@pytest.mark.parametrize("stores", [("ab", "c"), ("ab",)], ids=["of another store", "of the same store"])
def test_a_renewal_that_hangs_delays_no_other(stores: tuple[str, ...]) -> None:
    """The renewals of two threads hang; that of a third one, in the same or another store, is on time."""
    found = {names: StoreWithSlowRenewal("ab") for names in stores}
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


def test_a_lease_is_renewed_while_a_write_of_its_run_is_slow() -> None:
    """A renewal before the thread is acquired writes nothing, and is no error."""
    store = StoreWithSlowRenewal("")
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

    def write(change: Change) -> int:
        return slow(change) if change.rows else StoreWithSlowRenewal.write(store, change)

    journal.store.store.write = write  # type: ignore[method-assign]
    writing = threading.Thread(target=journal.write, args=(NewRows([end_row("stopped", None, ())]),))
    writing.start()
    assert inside.wait(20)
    journal.renew(30.0)
    assert store.renewed["a"].is_set()
    go_on.set()
    writing.join(20)
    assert [row.seq for row in store.rows("r")] == [0, 1]


# --- leases are let go


class Storm(Memory):
    """A store that async code waits for. From its nth call on, the task is cancelled in each pass of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_left = 0
        self.cancel: Callable[[], object] = lambda: None

    def write_now(self, change: Change) -> bool:
        del change
        return False

    def write(self, change: Change) -> int:
        self._count()  # before the write, and after it
        epoch = super().write(change)
        self._count()
        return epoch

    def thread(self, name: str) -> ThreadRow | None:
        self._count()
        return super().thread(name)

    def _count(self) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            self.cancel()


OPENINGS: dict[str, Callable[[Thread], Awaitable[Any]]] = {
    "arun": lambda t: t.arun({"n": 1}, if_open="abandon"),
    "wait": lambda t: t.arun({"n": 1}, if_open="abandon", on_conflict="wait"),
    "take over": lambda t: t.arun({"n": 1}, if_open="abandon", take_over=True),
    "astream": lambda t: last_of(t.astream({"n": 1}, if_open="abandon")),
    "aresume": lambda t: t.aresume(),
    "astream_resume": lambda t: last_of(t.astream_resume()),
    "arerun": lambda t: t.arerun(0),
}


async def last_of(events: AsyncEvents) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_run_that_is_cancelled_again_and_again_while_it_opens_releases_the_thread(
    opening: str, held: list[str]
) -> None:
    for at in range(1, 9):
        check_storm(opening, at, held)


def check_storm(opening: str, at: int, held: list[str]) -> None:
    store, calls = Storm(), list[int]()

    def node(state: Any) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("not yet")
        return {"log": ["ran"]}

    graph = Graph(Count, inputs=["n"]).add_node("node", node).add_path(START, "node", END)
    thread = graph.compile(store=store).thread("t")
    assert thread.run({"n": 1}).status == "failed"

    async def opened() -> None:
        task = asyncio.ensure_future(OPENINGS[opening](thread))
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            if not task.done():
                task.cancel()
                loop.call_soon(cancel)

        store.calls_left, store.cancel = at, lambda: loop.call_soon_threadsafe(cancel)
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), 20)

    asyncio.run(opened())
    assert owner_of(store) is None, at
    assert not [token for token in held if leases.holds(token)], at
    run = thread.run({"n": 1}, if_open="abandon")
    assert (run.status, run.error) == ("completed", None)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens of all leases that are held from now on, let go or not."""
    tokens: list[str] = []
    hold = leases.hold

    def noted(token: str, journal: Journal) -> None:
        tokens.append(token)
        hold(token, journal)

    monkeypatch.setattr(leases, "hold", noted)
    return tokens


@cache
def is_of_the_opening(code: CodeType) -> bool:
    """Whether a function belongs to what acquires a thread and starts a run on it."""
    return Path(code.co_filename).name == "playing.py"


@pytest.mark.parametrize("on_conflict", ["raise", "wait"])
def test_a_keyboard_interrupt_at_any_instruction_of_the_opening_leaves_no_owner(
    on_conflict: Any, held: list[str]
) -> None:
    """The signal is handled between two instructions: also between a call and what keeps its result."""
    store, begun = Memory(), list[int]()
    graph = Graph(Count, inputs=["n"]).add_node("node", lambda state: begun.append(1), writes=[])
    program = graph.add_path(START, "node", END).compile(store=store)
    at, interrupted = 0, True
    while interrupted:
        at += 1
        thread, seen = program.thread(f"t{at}"), [0]
        begun.clear()

        def trace(frame: FrameType, event: str, arg: object, seen: list[int] = seen, at: int = at) -> Any:
            del arg
            if begun or not is_of_the_opening(frame.f_code):
                return None
            frame.f_trace_opcodes = True
            seen[0] += event == "opcode"
            if seen[0] == at:
                raise KeyboardInterrupt
            return trace

        interrupted = False
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            thread.run({"n": 1}, on_conflict=on_conflict)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(before)
        assert not [token for token in held if leases.holds(token)], at
        assert thread.status != "running", at
        assert not begun or not interrupted
    assert at > 100


# --- two stops at once, and one that is cut short


class Meddled(Memory):
    """Calls a function once, before a write: of the new owner of a thread, or of the end of its run."""

    before: Callable[[], None] | None = None
    at = ""
    calls = 0

    def write(self, change: Change) -> int:
        """Writes a change."""
        found = (
            "fence" if change.owner is not None else "end" if [row for row in change.rows if row.kind == "end"] else ""
        )
        if self.before is not None and found == self.at:
            call, self.before = self.before, None
            self.calls += 1
            call()
        return super().write(change)


@pytest.mark.parametrize("at", ["fence", "end"])
def test_two_stops_at_once(at: str, held: list[str]) -> None:
    """The run is stopped once; the call that finds nothing more to do says so, as it would after the other one."""
    store: Any = Meddled()
    stage = Stage("sync", store)
    running = stage.start()
    t = stage.program.thread("t")
    store.at, store.before = at, stage.program.thread("t").stop
    if at == "fence":  # the other call is faster from the beginning
        with pytest.raises(ThreadError, match="nothing to stop"):
            t.stop()
    else:
        t.stop()
    assert t.status == "stopped"
    assert store.calls == 1
    assert not [token for token in held if token.startswith(STOPPING) and leases.holds(token)]
    stage.go_on.set()
    running.join(20)
    assert stage.runs[0].status == "stopped"
    assert t.resume().state["log"] == ["first", "slow", "late"]


def test_a_stop_that_is_cut_short_has_fenced_the_run() -> None:
    """By Ctrl-C, before the end of the run is written: the run commits nothing more, and nobody owns the thread."""
    store: Any = Meddled()
    stage = Stage("sync", store)
    running = stage.start()

    def crash() -> None:
        raise KeyboardInterrupt

    t = stage.program.thread("t")
    store.at, store.before = "end", crash
    with pytest.raises(KeyboardInterrupt):
        t.stop()
    stage.go_on.set()
    running.join(20)
    assert (stage.runs[0].status, stage.calls, t.status) == ("failed", ["first", "slow"], "crashed")
    assert t.resume().state["log"] == ["first", "slow", "late"]
