"""Who works on a thread: owners, whether they are still there, and leases that are renewed while a run works."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from threading import Event, Lock, Thread

from dspyer.errors import ConcurrentRunError
from dspyer.persistence.journal import Journal
from dspyer.stores.base import Owner, ThreadRow

AT = "@"
"""Between when and where a process began."""

LEASE = 30.0
"""Seconds that an owner counts as alive after it was last heard of."""

LONGEST_PAUSE = 0.05
"""Seconds between two looks at a thread that somebody else owns."""


def new_owner() -> Owner:
    """This process, as the owner of one run."""
    return Owner(socket.gethostname(), os.getpid(), _started(os.getpid()), token_hex(8))


def is_alive(row: ThreadRow) -> bool:
    """Whether the owner of a thread still works on it, as far as can be told."""
    owner = row.owner
    if owner is None or row.lease <= 0:
        return False
    if owner.host != socket.gethostname() or owner.started.partition(AT)[2] != _place():
        return True
    if owner.pid == os.getpid():
        return leases.holds(owner.token)
    return _runs(owner.pid) and _started(owner.pid) == owner.started


WAIT = "try again when it has ended (t.status)"
REPLACE = f"{WAIT}, or replace the owner with take_over=True"
WAIT_OR_REPLACE = 'wait with on_conflict="wait", or replace the owner with take_over=True'
"""What to do about an owner, by the options of the call."""


def busy(row: ThreadRow, fix: str = WAIT) -> ConcurrentRunError:
    """The error that a thread has an owner.

    Args:
        row: the row of the thread.
        fix: what the caller can do.
    """
    owner = row.owner
    where = "nobody" if owner is None else f"process {owner.pid} on {owner.host!r}"
    return ConcurrentRunError(
        f"thread {row.name!r} is owned by another run ({where}; its lease ends in {max(row.lease, 0):.0f} s unless it "
        f"is renewed): {fix}"
    )


def pauses(patience: float) -> Iterator[float]:
    """How long to wait before each next look at a thread that somebody else owns, until the time is over.

    Args:
        patience: seconds in all.
    """
    end, pause = time.monotonic() + patience, 0.001
    while (left := end - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(2 * pause, LONGEST_PAUSE)


def _started(pid: int) -> str:
    """When and where a process began, in the system's own words; "ended" for one that has ended."""
    when = ""
    with suppress(OSError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if state in "ZX":
            return "ended"  # its parent has not asked yet how it ended
        when = rest[18]
    return f"{when}{AT}{_place()}"


def _place() -> str:
    """Where the number of a process means something, as far as the system says: containers of one host name, and
    machines, have numbers of their own.
    """
    with suppress(OSError):
        return f"{_boot()} {Path('/proc/self/ns/pid').readlink()}"
    return ""


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class _Renewer:
    """Renews the leases of the runs that this process works on in one store.

    Args:
        all_leases: says how long a lease lasts, and forgets the renewer when it has nothing to do.
        store: the identity of the store.
    """

    def __init__(self, all_leases: Leases, store: int) -> None:
        self.held: dict[str, Journal] = {}
        self._all = all_leases
        self._store = store
        self._waiting: set[str] = set()  # tokens of owners whose renewal has not come back yet

    def run(self) -> None:
        """Renews now and then, until there is nothing to renew."""
        pause = Event()
        while not self._all.forget_idle(self._store, self):
            pause.wait(self._all.lease / 3)
            self.renew()

    def renew(self) -> None:
        """Renews all; one that does not come back holds up no other."""
        queue = deque(item for item in list(self.held.items()) if item[0] not in self._waiting)
        while queue:
            worker = Thread(target=self._work, args=(queue,), name="dspyer-lease", daemon=True)
            worker.start()
            worker.join(self._all.lease / 30)

    def _work(self, queue: deque[tuple[str, Journal]]) -> None:
        while queue:
            with suppress(IndexError):  # another worker was faster
                token, journal = queue.popleft()
                self._waiting.add(token)
                try:
                    journal.renew(self._all.lease)
                finally:
                    self._waiting.discard(token)


class Leases:
    """Renews the leases of the runs that this process works on, those of each store apart from the others'.

    Args:
        lease: seconds that a lease lasts.
    """

    def __init__(self, lease: float = LEASE) -> None:
        self._lease = lease
        self.forget()

    @property
    def lease(self) -> float:
        """Seconds that a lease lasts."""
        return self._lease

    def hold(self, token: str, journal: Journal) -> None:
        """Keeps an owner alive until `let_go`: from before it owns the thread, so that no other run finds it gone."""
        store = id(journal.store.store)
        with self._lock:
            renewer = self._renewers.get(store)
            if renewer is None:
                renewer = self._renewers[store] = _Renewer(self, store)
                Thread(target=renewer.run, name="dspyer-leases", daemon=True).start()
            renewer.held[token] = journal
            self._tokens[token] = renewer

    def holds(self, token: str) -> bool:
        """Whether a run of this process is at work."""
        return token in self._tokens

    def let_go(self, token: str) -> None:
        """Renews an owner no longer."""
        with self._lock:
            renewer = self._tokens.pop(token, None)
            if renewer is not None:
                renewer.held.pop(token, None)

    def renew(self) -> None:
        """Renews all leases now; a run that was replaced notices at its next write."""
        for renewer in list(self._renewers.values()):
            renewer.renew()

    def forget_idle(self, store: int, renewer: _Renewer) -> bool:
        """Whether a renewer has nothing to do; the next run in its store gets another one.

        Args:
            store: the identity of its store.
            renewer: the renewer.
        """
        with self._lock:
            idle = self._renewers.get(store) is not renewer or not renewer.held
            if idle and self._renewers.get(store) is renewer:
                del self._renewers[store]
        return idle

    def forget(self) -> None:
        """Holds nothing: a process that was forked owns none of its parent's runs."""
        self._lock = Lock()
        self._renewers: dict[int, _Renewer] = {}
        self._tokens: dict[str, _Renewer] = {}


leases = Leases()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=leases.forget)
