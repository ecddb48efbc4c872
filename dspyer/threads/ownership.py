"""Ownership of a thread: at most one run writes to it at a time.

The owner is a row in the store: host, process and a random token, with a lease that a background thread renews while
the run works. A write names the epoch under which its owner acquired the thread (a fencing token); a run that replaces
the owner raises the epoch, so that an owner that was taken for dead by mistake cannot write any more. Whether an owner
lives is decided in this order:

- on this host and among processes that this one can see: whether the process, or the run in this process, is there;
- anywhere else: whether the lease has ended, by the clock of the store.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from threading import Event, Lock, Thread
from typing import NamedTuple, TypeAlias

import anyio

from dspyer.blocking import cancellation_count, finish_in_thread, run_in_thread
from dspyer.errors import ConcurrentRunError, DspyerError, RunStoppedError, ThreadError
from dspyer.persistence.journal import Journal
from dspyer.persistence.rows import end_row
from dspyer.runtime.request import Request
from dspyer.stores.base import Owner, Store, ThreadRow

LEASE = 30.0
"""Seconds after its last sign of life for which an owner on another host counts as alive."""

LONGEST_PAUSE = 0.05
"""Most seconds between two attempts to acquire a thread."""

AT = "@"
"""Separates when a process started from the place in which its process id is unique."""

# What an error about a live owner advises, by the options that the refused call has.
WAIT = "try again when it has ended (t.status)"
REPLACE = f"{WAIT}, or replace the owner with take_over=True"
WAIT_OR_REPLACE = 'wait with on_conflict="wait", or replace the owner with take_over=True'


# --- acquire and release


class OwnedRun(NamedTuple):
    """A run that was started by this process, with what is needed to play it and to release its thread."""

    request: Request
    journal: Journal
    owner: Owner


HandOver: TypeAlias = Callable[[OwnedRun], None]
"""Called with a run as soon as it owns its thread."""


class ThreadLock:
    """Owns a thread for the duration of one run: acquired at once or after waiting, released in any case.

    `acquire` acquires the thread and starts the run in the store, or raises `ConcurrentRunError`. It hands the run over
    by a call and not as its result, which a Ctrl-C could drop before it is assigned. It is called again for up to
    `lock_timeout` seconds, unless `on_conflict` is `"raise"`. With `"merge"` it acquires nothing, since such a run owns
    no thread (`threads.merge_on_finish`).

    Attributes:
        patience: seconds to wait, here and for a merge at the end; 0 for `"raise"`.
        owned: the run, once it was started.
    """

    def __init__(
        self, acquire: Callable[[HandOver], object], request: Request, on_conflict: str, lock_timeout: float
    ) -> None:
        if on_conflict not in ("raise", "wait", "merge"):
            raise ThreadError(f'on_conflict={on_conflict!r}: it is "raise", "wait" or "merge"')
        self._acquire_run = acquire
        self._request = request
        self.patience = 0.0 if on_conflict == "raise" else lock_timeout
        self.owned: OwnedRun | None = None

    @contextmanager
    def held(self) -> Iterator[OwnedRun]:
        """Own the thread for the block."""
        try:
            for pause in self._pauses():
                if self._try_acquire():
                    break
                # Wait for the owner to release the thread: 1 ms doubling to 50 ms, `patience` seconds in all. Polling,
                # since the owner may be any process on any host. No jitter: an attempt on an owned thread reads
                # one row, and the epoch decides between attempts that collide.
                time.sleep(pause)
            else:
                self._acquire()  # the time is over: a last attempt, which raises
            assert self.owned is not None
            yield self.owned
        finally:
            if self.owned is not None:
                _release(self.owned)

    @asynccontextmanager
    async def aheld(self) -> AsyncIterator[OwnedRun]:
        """Own the thread for the block, in async code.

        `run_in_thread` completes a step in a worker thread although the task is cancelled: only then is it known
        whether the thread is owned and must be released. The cancellation is raised after the step.
        """
        before = cancellation_count()
        try:
            for pause in self._pauses():
                if await run_in_thread(self._try_acquire):
                    break
                if cancellation_count() > before:
                    raise asyncio.CancelledError
                await anyio.sleep(pause)  # between two attempts, as in `held`
            else:
                await run_in_thread(self._acquire)
            if cancellation_count() > before:
                raise asyncio.CancelledError
            assert self.owned is not None
            yield self.owned
        finally:
            owned = self.owned
            if owned is not None and _has_ended(owned):
                _release(owned)  # writes nothing: no worker thread is needed
            elif owned is not None:
                await finish_in_thread(lambda: _release(owned))  # however often the task is cancelled

    def _acquire(self) -> None:
        self._acquire_run(self._keep)

    def _keep(self, owned: OwnedRun) -> None:
        self.owned = owned

    def _try_acquire(self) -> bool:
        try:
            self._acquire()
        except ConcurrentRunError:
            return False
        return True

    def _pauses(self) -> Iterator[float]:
        """The pauses between attempts; raises if the run was stopped meanwhile."""
        for pause in pauses(self.patience):
            reason = self._request.stop_signal.reason
            if reason is not None:
                raise RunStoppedError(
                    f"the run was stopped while it waited for its thread: {reason}. Nothing was started", reason
                )
            yield pause


def _has_ended(owned: OwnedRun) -> bool:
    """Whether the run has written its end, which releases the thread in the same transaction."""
    return bool(owned.request.outcome.sessions) and owned.request.outcome.sessions[-1].end_written


def _release(owned: OwnedRun) -> None:
    """Release the thread.

    A run that was stopped before its first step is written as stopped; one that could not write its end (a store that
    fails, an exception that tears it out) only releases the thread, and counts as crashed.
    """
    try:
        if not owned.request.outcome.sessions:
            with suppress(DspyerError):  # the thread is released below, or its lease runs out
                owned.journal.write([end_row("stopped", None, ())], flush=True, release=True)
        if not _has_ended(owned):
            owned.journal.release()
    finally:
        leases.let_go(owned.owner.token)


def pauses(patience: float) -> Iterator[float]:
    """The seconds to sleep before each next attempt, from 1 ms doubling to 50 ms, until `patience` seconds are over."""
    end, pause = time.monotonic() + patience, 0.001
    while (left := end - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(2 * pause, LONGEST_PAUSE)


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


def check_no_owner(row: ThreadRow, remedy: str = WAIT) -> None:
    """Raise `ConcurrentRunError` if a thread has a live owner."""
    if is_alive(row):
        raise busy(row, remedy)


def existing_row(store: Store, thread: str, take_over: bool) -> ThreadRow:
    """The row of a thread; raises if there is none, or if it has a live owner that may not be replaced."""
    row = store.thread(thread)
    if row is None:
        raise ThreadError(f"there is no thread {thread!r}")
    if not take_over:
        check_no_owner(row, REPLACE)
    return row


def busy(row: ThreadRow, remedy: str = WAIT) -> ConcurrentRunError:
    """The error that a thread has a live owner; `remedy` says what the caller can do."""
    owner = row.owner
    where = "unknown" if owner is None else f"process {owner.pid} on {owner.host!r}"
    return ConcurrentRunError(
        f"thread {row.name!r} is owned by another run ({where}; its lease ends in {max(row.lease, 0):.0f} s unless it "
        f"is renewed): {remedy}"
    )


def new_owner() -> Owner:
    """This process as the owner of one run."""
    return Owner(socket.gethostname(), os.getpid(), _started(os.getpid()), token_hex(8))


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

    Containers may share a host name, and each has process ids of its own.
    """
    with suppress(OSError):
        return f"{_boot_id()} {Path('/proc/self/ns/pid').readlink()}"
    return ""


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
        store = id(journal.store.store)
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

    def forget_idle(self, store: int, renewer: _Renewer) -> bool:
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
        self._renewers: dict[int, _Renewer] = {}
        self._tokens: dict[str, _Renewer] = {}


class _Renewer:
    """The background thread that renews the leases in one store, which is identified by its `id()`."""

    def __init__(self, all_leases: Leases, store: int) -> None:
        self.held: dict[str, Journal] = {}
        self._all = all_leases
        self._store = store
        self._unfinished: set[str] = set()  # tokens of owners whose last renewal has not returned

    def run(self) -> None:
        """Renew every third of a lease, so that one failed renewal ends no lease; until there is nothing to renew."""
        timer = Event()  # never set: a wait with a timeout
        while not self._all.forget_idle(self._store, self):
            timer.wait(self._all.lease / 3)
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
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=leases.forget)
