"""Leases: when an owner on another host counts as dead, and that a working owner renews its lease in time."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from dspyer.errors import ConcurrentRunError
from dspyer.persistence.journal import Journal
from dspyer.persistence.leases import Leases, _started, is_marked_alive, leases, mark_of, new_owner
from dspyer.persistence.rows import end_row
from dspyer.stores import Memory, SQLite
from dspyer.stores.base import Change, Owner, Store
from dspyer.testing.store_samples import begin
from tests.threads.owned_runs import BackgroundRun, Clock, Gate, WatchedStore, gated


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_an_owner_on_another_host_is_replaced_only_after_its_lease_has_expired(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    store: Store = Memory(clock=clock) if kind == "memory" else SQLite(tmp_path / "runs.db", clock=clock)
    gate = Gate()

    def fails(state: Any) -> dict[str, Any]:
        raise RuntimeError("boom")

    assert gated(gate, store, fails).thread("t").run({"n": 1}).status == "failed"
    set_owner_on_another_host(store)
    gate.opened.set()
    thread = gated(gate, store).thread("t")
    clock.now += 29
    with pytest.raises(ConcurrentRunError, match="'set_owner_on_another_host'; its lease ends in 1 s"):
        thread.resume()
    clock.now += 2
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
    clock = Clock()
    store, gate = Memory(clock=clock), Gate()
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


@pytest.mark.parametrize("system", ["posix", "win32"])
def test_no_process_of_windows_gets_a_signal(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There `os.kill(pid, 0)` is Ctrl-C, so only the lease says whether another process is at work."""
    clock = Clock()
    store, gate = Memory(clock=clock), Gate()
    gate.opened.set()
    thread = gated(gate, store).thread("t")
    thread.run({"n": 1})
    row, ended = store.thread("t"), subprocess.Popen([sys.executable, "-c", ""])
    assert row is not None
    ended.wait()
    monkeypatch.setattr("os.readlink", no_proc)
    if system == "win32":
        monkeypatch.setattr("sys.platform", system)
        monkeypatch.setattr("os.kill", lambda pid, number: pytest.fail("a process has got a signal"))
    with monkeypatch.context() as elsewhere:  # what the other process has written before it ended
        elsewhere.setattr("dspyer.persistence.leases._THIS_PROCESS", "another one", raising=False)
        owner = new_owner()._replace(pid=ended.pid, started=_started(ended.pid))
        mark = mark_of(owner)
    store.write(Change("t", row.epoch, row.epoch + 1, owner, 30.0))
    assert is_marked_alive(mark) is (None if system == "win32" else False)
    if system == "win32":
        with pytest.raises(ConcurrentRunError, match="its lease ends in 30 s"):
            thread.run({"n": 2})
        clock.now += 31
    assert thread.run({"n": 2}).status == "completed"


def no_proc(path: object) -> str:
    raise FileNotFoundError(path)


def test_a_lease_is_renewed_while_a_run_works(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store, gate = Memory(clock=clock), Gate()
    first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(20)
    with monkeypatch.context() as patched:
        patched.setattr("socket.gethostname", lambda: "set_owner_on_another_host")
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


def test_an_owner_whose_lease_has_expired_fails_at_its_next_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine was suspended, and another process has resumed the run meanwhile."""
    clock = Clock()
    store, gate, other = Memory(clock=clock), Gate(), Gate()
    other.opened.set()
    first = BackgroundRun(lambda: gated(gate, store).thread("t").run({"n": 1}))
    assert gate.inside.wait(20)
    clock.now += 31
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
    row = store.thread("t")
    assert row is not None
    assert row.owner is None


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
    writing = threading.Thread(target=journal.write, args=([end_row("stopped", None, ())],))
    writing.start()
    assert inside.wait(20)
    journal.renew(30.0)
    assert store.renewed["a"].is_set()
    go_on.set()
    writing.join(20)
    assert [row.seq for row in store.rows("r")] == [0, 1]
