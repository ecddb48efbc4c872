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

_Place = tuple[int, int]
"""A store and the clock that its leases are renewed by, as their `id()`."""


class Leases:
    """Renews the leases of the runs that this process owns, with one background thread per store.

    A lease lasts `lease` seconds.
    """

    def __init__(self, lease: float = LEASE) -> None:
        self.lease = lease
        self.forget()

    def hold(self, token: str, journal: Journal) -> None:
        """Renew the lease of an owner until `let_go`."""
        place = id(journal.store.store), id(clock.current())
        with self._lock:
            self._held[token] = place, journal
            if place not in self._renewing:
                self._renewing.add(place)
                Thread(target=self._keep_renewing, args=(place,), name="dspyer-leases", daemon=True).start()

    def holds(self, token: str) -> bool:
        """Whether the owner is a run of this process that has not ended."""
        return token in self._held

    def renew_now(self, token: str) -> None:
        """Renew the lease of an owner in this process now, by which it finds out whether it still owns its thread."""
        held = self._held.get(token)
        if held is not None:
            held[1].renew(self.lease)

    def let_go(self, token: str) -> None:
        """Stop renewing the lease of an owner."""
        with self._lock:
            self._held.pop(token, None)

    def renew(self) -> None:
        """Renew all leases now. A run whose owner was replaced finds out at its next write."""
        for place in list(self._renewing):
            self._renew(place)

    def forget(self) -> None:
        """Drop all leases, and the lock, which may be held. For a forked process: the runs are its parent's."""
        self._lock = Lock()
        self._held: dict[str, tuple[_Place, Journal]] = {}
        self._renewing: set[_Place] = set()  # those that have a background thread
        self._unfinished: set[str] = set()  # tokens of owners whose last renewal has not returned

    def _keep_renewing(self, place: _Place) -> None:
        """Renew every third of a lease, so that one failed renewal ends no lease; until there is nothing to renew."""
        nothing: SimpleQueue[None] = SimpleQueue()
        while not self._is_idle(place):
            clock.get(nothing, clock.now() + self.lease / 3, "lease")
            self._renew(place)

    def _is_idle(self, place: _Place) -> bool:
        """Return whether a store has no lease to renew; then its thread ends, and the next run there starts another.

        Under the lock: else `hold` could rely on a thread that is ending.
        """
        with self._lock:
            idle = all(at != place for at, _ in self._held.values())
            if idle:
                self._renewing.discard(place)
        return idle

    def _renew(self, place: _Place) -> None:
        """Renew the leases of a store in a worker; if a write hangs for a 30th of one, another goes on."""
        held = list(self._held.items())
        due = deque((token, journal) for token, (at, journal) in held if at == place and token not in self._unfinished)
        while due:
            worker = Thread(target=self._work, args=(due,), name="dspyer-lease", daemon=True)
            worker.start()
            worker.join(self.lease / 30)

    def _work(self, due: deque[tuple[str, Journal]]) -> None:
        while due:
            with suppress(IndexError):  # another worker has removed the last item
                token, journal = due.popleft()
                self._unfinished.add(token)
                try:
                    journal.renew(self.lease)
                finally:
                    self._unfinished.discard(token)


leases = Leases()
at_fork(leases.forget)
at_fork(_own_start.cache_clear)  # an ancestor may have had the process id of this one
