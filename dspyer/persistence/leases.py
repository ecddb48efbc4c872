"""Leases: who owns a thread, and whether that owner is alive. It is decided in this order:

- on this host and among processes that this one can ask: whether the process, or the run in this process, is there;
- anywhere else: whether the lease has ended, by the clock of the store.

A background thread renews the leases of the runs of this process while they work.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from threading import Lock, Thread
from typing import Any

from dspyer import clock
from dspyer.ctrl_c import at_fork
from dspyer.persistence.journal import Journal
from dspyer.stores.base import Owner, ThreadRow

LEASE = 30.0
"""Seconds after its last sign of life for which an owner on another host counts as alive."""

AT = "@"
"""Separates when a process started from the place in which its process id is unique."""

_THIS_PROCESS = token_hex(8)

MARK = "worker"
"""Where the header of a run that owns no thread has the mark of its process."""


# --- is the owner alive?


def is_alive(row: ThreadRow) -> bool:
    """Whether the owner of a thread is alive, as far as this process can know."""
    owner = row.owner
    if owner is None or row.lease <= 0:
        return False
    if owner.host != socket.gethostname() or owner.started.partition(AT)[2] != _pid_namespace():
        return True  # its process cannot be asked, and its lease has not ended
    if owner.pid == os.getpid():
        return leases.holds(owner.token)
    return _process_exists(owner.pid) and _started(owner.pid) == owner.started


def mark_of(owner: Owner) -> list[Any]:
    """What a run that owns no thread has in its header, so that readers know whether it is at work.

    It is a part of exports: host and boot are digests.
    """
    return [_digest(owner.host, owner.started.partition(AT)[2]), owner.pid, _digest(owner.started), owner.token]


def is_marked_alive(mark: Sequence[Any]) -> bool | None:
    """Whether the process that has marked a run is at work on it; None if it is not on this host."""
    place, pid, started, token = mark
    if place != _digest(socket.gethostname(), _pid_namespace()):
        return None
    if pid == os.getpid():
        return leases.holds(token)
    return _process_exists(pid) and _digest(_started(pid)) == started


def _digest(*texts: str) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:16]


def new_owner() -> Owner:
    """This process as the owner of one run."""
    return Owner(socket.gethostname(), os.getpid(), _own_start(os.getpid()), token_hex(8))


@cache
def _own_start(pid: int) -> str:
    return _started(pid)


def _started(pid: int) -> str:
    """When a process started, in clock ticks since boot, and where; `"ended"` for a zombie.

    A process id is used again after its process has ended; the start time distinguishes the two.
    """
    when = ""
    with suppress(OSError):
        # The fields of /proc/PID/stat after the command, which is in parentheses and may hold spaces: the state is
        # the first, the start time the 20th of them.
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if state in "ZX":
            return "ended"  # only its parent has not yet read its exit status
        when = rest[18]
    return f"{when}{AT}{_pid_namespace()}"


def _pid_namespace() -> str:
    """The boot and the PID namespace in which process ids are unique; `""` where the system does not say.

    Containers may share a host name, and each has process ids of its own. On Windows each process counts as a place of
    its own: another one cannot be asked, since `os.kill(pid, 0)` would send it a Ctrl-C.
    """
    with suppress(OSError):
        return f"{_boot_id()} {Path('/proc/self/ns/pid').readlink()}"
    return _THIS_PROCESS if sys.platform == "win32" else ""


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it exists, and belongs to another user
    return True


# --- renewal of leases


class Leases:
    """Renews the leases of the runs that this process owns, with one background thread per store.

    A lease lasts `lease` seconds.
    """

    def __init__(self, lease: float = LEASE) -> None:
        self.lease = lease
        self.forget()

    def hold(self, token: str, journal: Journal) -> None:
        """Renew the lease of an owner until `let_go`."""
        store = id(journal.store.store), id(clock.current())  # a renewer waits by one clock
        with self._lock:
            renewer = self._renewers.get(store)
            if renewer is None:
                renewer = self._renewers[store] = _Renewer(self, store)
                Thread(target=renewer.run, name="dspyer-leases", daemon=True).start()
            renewer.held[token] = journal
            self._tokens[token] = renewer

    def holds(self, token: str) -> bool:
        """Whether the owner is a run of this process that has not ended."""
        return token in self._tokens

    def renew_now(self, token: str) -> None:
        """Renew the lease of an owner in this process now, by which it finds out whether it still owns its thread."""
        renewer = self._tokens.get(token)
        journal = None if renewer is None else renewer.held.get(token)
        if journal is not None:
            journal.renew(self.lease)

    def let_go(self, token: str) -> None:
        """Stop renewing the lease of an owner."""
        with self._lock:
            renewer = self._tokens.pop(token, None)
            if renewer is not None:
                renewer.held.pop(token, None)

    def renew(self) -> None:
        """Renew all leases now. A run whose owner was replaced finds out at its next write."""
        for renewer in list(self._renewers.values()):
            renewer.renew()

    def forget_idle(self, store: tuple[int, int], renewer: _Renewer) -> bool:
        """Drop a renewer that has nothing to renew; return whether it was dropped, so that its thread can end.

        The check and the removal are under one lock: else `hold` could add a run to a renewer whose thread is ending.
        The next run in the store gets a new renewer.
        """
        with self._lock:
            idle = self._renewers.get(store) is not renewer or not renewer.held
            if idle and self._renewers.get(store) is renewer:
                del self._renewers[store]
        return idle

    def forget(self) -> None:
        """Drop all leases, and the lock, which may be held. For a forked process: the runs are its parent's."""
        self._lock = Lock()
        self._renewers: dict[tuple[int, int], _Renewer] = {}
        self._tokens: dict[str, _Renewer] = {}


class _Renewer:
    """The background thread that renews the leases in one store; store and clock are identified by their `id()`."""

    def __init__(self, all_leases: Leases, store: tuple[int, int]) -> None:
        self.held: dict[str, Journal] = {}
        self._all = all_leases
        self._store = store
        self._unfinished: set[str] = set()  # tokens of owners whose last renewal has not returned

    def run(self) -> None:
        """Renew every third of a lease, so that one failed renewal ends no lease; until there is nothing to renew."""
        nothing: SimpleQueue[None] = SimpleQueue()
        while not self._all.forget_idle(self._store, self):
            clock.get(nothing, clock.now() + self._all.lease / 3, "lease")
            self.renew()

    def renew(self) -> None:
        """Renew all leases in a worker thread; if a write hangs for a 30th of a lease, another one renews the rest."""
        queue = deque(item for item in list(self.held.items()) if item[0] not in self._unfinished)
        while queue:
            worker = Thread(target=self._work, args=(queue,), name="dspyer-lease", daemon=True)
            worker.start()
            worker.join(self._all.lease / 30)

    def _work(self, queue: deque[tuple[str, Journal]]) -> None:
        while queue:
            with suppress(IndexError):  # another worker has removed the last item
                token, journal = queue.popleft()
                self._unfinished.add(token)
                try:
                    journal.renew(self._all.lease)
                finally:
                    self._unfinished.discard(token)


leases = Leases()
at_fork(leases.forget)
at_fork(_own_start.cache_clear)  # an ancestor may have had the process id of this one
