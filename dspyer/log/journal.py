"""The journal of one run: the only writer of its rows, as a write-ahead log.

- *Write-ahead*: the rows of a transition are written before anything that depends on it starts. After a crash the log
  is replayed: what was reported is in it, and a node that has no commit there is called again.
- *One transaction per write*: the rows of a write, the thread's head and a snapshot are one `Change`, applied whole.
- *Fencing token*: each write names the epoch in which this run owns the thread. A store refuses a write with an older
  epoch (`ConcurrentRunError`), so a process that was paused and replaced cannot write over its successor.
- *Lease*: ownership ends unless it is renewed in time. The lease says when another process may take the thread over;
  the log stays correct without it, by the fencing token.
- *No write after a failed one*: later rows would refer to rows that the store does not have.
- *A write that Ctrl-C broke off is repeated with the next one*: the store may have it, and recognizes its rows.

See Gray and Reuter, "Transaction Processing" (1992), for write-ahead logs; Gray and Cheriton, "Leases" (1989); and
Burrows, "The Chubby lock service" (2006), whose sequencers are fencing tokens.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from threading import Lock, Thread
from typing import Any

from dspyer import clock
from dspyer.errors import ConcurrentRunError, DspyerError, StateError, StoreError
from dspyer.log.reader import RecoveredState, SinceSnapshot, SnapshotState, snapshot_content
from dspyer.log.rows import DraftRow, EndRow, RowKind
from dspyer.stores.base import ABOUT, INBOX, Change, Owner, Point, Row, RunRow, Snapshot, Store, StoreAround, ThreadRow
from dspyer.stores.content import blob_id
from dspyer.waiting import at_fork, held_back
from dspyer.worker_threads import run_in_thread

# The digest of what a run has written: the row of its end carries it, and `thread.replay()` compares it.
#
# It is a hash over the rows of the run in order, as they are stored. So it costs what is written, whatever the size
# of the state. The state at the end follows from the rows, by the folds that readers make.


_dump = json.JSONEncoder(separators=(",", ":")).encode


class RowDigest:
    """A hash of rows, to which later ones are added. It encodes their contents, unless that is done already."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._hash = blake2b(digest_size=16)
        self.add(rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Add the next rows."""
        for row in rows:
            data = b"" if row.content is None else row.content.data
            self._hash.update(f"{row.seq} {row.kind} {_dump(row.header)} {len(data)} ".encode())
            self._hash.update(data)

    def followed_by(self, rows: Iterable[Row]) -> str:
        """Return the digest of the rows so far and these."""
        copy = RowDigest()
        copy._hash = self._hash.copy()
        copy.add(rows)
        return copy._hash.hexdigest()


# Remembered heads: the ends of histories that this process has written, so that its next turn reads none of them.
#
# A store object carries what this process has written to it. A remembered head counts only if the row of the thread
# still names it, under the fencing token with which it was written: so what another process has written is always
# read. Any failure of the store forgets all of them, as does a deletion.


MOST = 1_000
"""Heads that are remembered for a store; of more, those that were written longest ago are forgotten."""


Place = tuple[Point, int, type | None]
"""A head: its row, the fencing token under which that was written, and the class of the states of the graph.

Another graph may read the values as other classes.
"""


class Heads:
    """The heads of the threads of one store, to which it does not refer. A pickle and a forked process have none.

    Attributes:
        inboxes: of inboxes by id, the number and the id of the last message that was read, and the numbers by their
            keys. Messages are only added: as long as that one is there, so are those before it.
    """

    def __init__(self) -> None:
        self.forget()

    @classmethod
    def of(cls, store: Store) -> Heads:
        """Return those of a store object."""
        kept = vars(store)
        found: Heads = kept.get("_dspyer_heads") or kept.setdefault("_dspyer_heads", cls())
        return found

    def get(self, row: ThreadRow, model: type | None) -> RecoveredState | None:
        """Return the end of a thread's history, if this process has written what the row of the thread names."""
        at, found = self._heads.get(row.name, (None, None)) if self._process == os.getpid() else (None, None)
        return found if at == (row.head, row.epoch, model) else None

    def put(self, thread: str, at: Place, end: RecoveredState) -> None:
        """Remember the end that a completed run has left; of the run, its last row alone is needed."""
        if self._process != os.getpid():
            self.forget()
        with self._lock:
            self._heads[thread] = at, end
            self._heads.move_to_end(thread)
            if len(self._heads) > MOST:
                self._heads.popitem(last=False)

    def forget(self) -> None:
        """Forget all heads."""
        self._heads: OrderedDict[str, tuple[Place, RecoveredState]] = OrderedDict()
        self.inboxes: dict[str, tuple[int, str, dict[str, int]]] = {}
        self._lock = Lock()  # after a fork the old one may be held for good
        self._process = os.getpid()

    def __reduce__(self) -> tuple[type[Heads], tuple[()]]:
        return Heads, ()


# A store whose failures are raised as `StoreError`.
#
# A `Store` raises whatever its database raises (`sqlite3.OperationalError`, `OSError`, an error of a driver). The
# library works with a `CheckedStore`, so that users catch one exception, with the original one as its cause.


CheckChange = Callable[[Change], None]
"""Raises for a change that must not be written."""


class CheckedStore(StoreAround):
    """Delegates to a store, raises its failures as `StoreError`, and checks changes before they are written.

    Args:
        store: the store.
        check: raises for a change that must not be written; None for no check.
        thread: the thread whose runs alone are looked up by their ids; `""` for any.

    Attributes:
        heads: what this process remembers of the threads of the store. A failure or a deletion forgets all of it.
    """

    def __init__(self, store: Store, check: CheckChange | None = None, thread: str = "") -> None:
        super().__init__(store)
        self.check, self._about = check, thread
        self.heads: Heads = store.heads if isinstance(store, CheckedStore) else Heads.of(store)

    def blobs(self, ids: Collection[str]) -> dict[str, bytes]:
        """Return large values by id. One that is not what its id says is damaged, and counts as lost."""
        return {name: data for name, data in super().blobs(ids).items() if blob_id(data) == name}

    def runs(self, thread: str) -> list[RunRow]:
        """Return the stored runs that were made for a thread, in the order of their start: without its inbox."""
        return [run for run in super().runs(thread) if not run.id.startswith(INBOX)]

    def pass_on(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the store, and convert what it raises."""
        if name in ("delete", "delete_unreachable"):
            self.heads.forget()
        before = ABOUT.set(self._about)
        try:
            if self.check is not None and name in ("write", "write_now"):
                self.check(args[0])
            with held_back():
                began = clock.now()
                found = getattr(self.store, name)(*args, **kwargs)
                if name in ("write", "write_now") and found is not False:
                    clock.report_time("write.time", self.store, began)
                return found
        except DspyerError:
            self.heads.forget()
            raise
        except Exception as error:
            self.heads.forget()
            raise StoreError(
                f"the store {self.store.address!r} failed: {type(error).__name__}: {error}. What was reported before "
                "is kept; repair the store, then call resume() on the thread"
            ) from error
        finally:
            ABOUT.reset(before)


logger = logging.getLogger("dspyer")

STOPPING = "stop-"
"""Begins the token of an owner that has acquired the thread only to end its run."""


@dataclass(slots=True)
class NewRows:
    """Rows that are written as one transaction.

    Attributes:
        rows: the rows, in order.
        state: the state at the last of them, if a snapshot is to be taken.
        flush: whether they must be on the disk when the write returns.
        release: whether the run releases the thread in the same transaction.
        accepted: set once they have their numbers. If the write then raises no `DspyerError` but Ctrl-C, the next write
            stores them, so they must not be given again.
    """

    rows: Sequence[DraftRow]
    state: SnapshotState | None = None
    flush: bool = False
    release: bool = False
    accepted: bool = False


class Journal:
    """Writes the rows of one run. May be used from any thread.

    Args:
        store: the store.
        thread: the thread of the run.
        epoch: the fencing token; 0 until the run owns the thread, see `set_epoch`.
        run: the id of the run.
        seq: the number of its next row.

    Attributes:
        tail: what was written since the last snapshot.
        run_row: the row of the run, once it has begun.
        broken: the error after which nothing is written any more: a failed write, or the loss of the thread.
        refused_row: the last row whose content cannot be stored. The store itself works, so later rows are written.
        lost: called when a renewal finds that the thread is lost, so that the run need not wait for its next write.
    """

    def __init__(self, store: Store, thread: str, epoch: int, run: str, seq: int) -> None:
        self.tail = SinceSnapshot()
        self.store = store if isinstance(store, CheckedStore) else CheckedStore(store)
        self.thread = thread
        self.epoch = epoch
        self.run = run
        self.seq = seq
        self.broken: DspyerError | None = None
        self.refused_row: Row | None = None
        self.lost: Callable[[], object] | None = None
        # Rows are numbered under the lock, and written under it: they reach the store in the order of their numbers.
        self._lock = Lock()
        self._released = False
        self._pending: Change | None = None  # accepted, and not in the store yet
        self.run_row: RunRow | None = None
        self._digest = RowDigest()

    def continue_after(self, run: RunRow, rows: Sequence[Row], before: Sequence[Row], tail: SinceSnapshot) -> None:
        """Take over a run whose rows so far are those `before`, and then the first ones of this process.

        `tail` is what was written since the last snapshot, without the first rows.
        """
        self.run_row, self.tail = run, tail.with_rows(rows)
        if self._encodes:
            self._digest.add((*before, *rows))

    @property
    def _encodes(self) -> bool:
        """True for a store that encodes what it gets; one in memory keeps the values, which cannot change there."""
        return self.store.check is not None

    def digest(self, new_rows: Sequence[DraftRow]) -> str | None:
        """Return the digest of what the run has written, with these rows, for its end; None for a store in memory.

        Raises `StateError` like `write` if one of the rows cannot be stored.
        """
        if not self._encodes:
            return None
        rows = self._numbered(new_rows)
        self._check(rows)
        return self._digest.followed_by(rows)

    def set_epoch(self, epoch: int) -> None:
        """Write as the owner of the thread from now on, with this fencing token."""
        with self._lock:
            self.epoch = epoch

    # --- Writing

    def raise_if_broken(self) -> None:
        """Raise `broken`, if anything is known that lets no row be written any more."""
        if self.broken is not None:
            raise self.broken

    def write(self, new: NewRows) -> None:
        """Write rows as one transaction.

        Raises:
            StoreError: if the store fails, with its exception as the cause.
            StateError: if the content of a row cannot be stored; none of the rows is written, later ones are.
            ConcurrentRunError: if another run has taken the thread over.
        """
        with self._lock:
            self._accept(new)
            self._send(self.store.write)

    async def awrite(self, new: NewRows) -> None:
        """Write rows without blocking the event loop.

        A cancellation that arrives meanwhile is held back until the rows are written: see `dspyer.worker_threads`.
        """
        if not self._lock.acquire(blocking=False):
            await run_in_thread(lambda: self.write(new))
            return
        try:
            self._accept(new)
            end = self.seq
            done = self._send(self.store.write_now)
        finally:
            self._lock.release()
        if not done:
            await run_in_thread(lambda: self._send_up_to(end))

    def _accept(self, new: NewRows) -> None:
        """Number rows and add them to the pending change. The lock is held."""
        self.raise_if_broken()
        rows, flush, release = self._numbered(new.rows), new.flush, new.release
        self._check(rows)
        self.seq += len(rows)
        self.tail = self.tail.with_rows(rows)
        if self._encodes:
            self._digest.add(rows)
        snapshot = None
        if new.state is not None and rows:
            snapshot, size = Snapshot(Point(self.run, self.seq - 1), snapshot_content(new.state)), 0
            if self._encodes:
                try:
                    size = len(snapshot.content.data)
                except StateError as error:  # too large to be read again: the log has all that is in it
                    logger.warning("a snapshot of run %s is left out: %s", self.run, error)
                    snapshot = None
            self.tail = SinceSnapshot(snapshot=size)
        pending = self._pending
        if pending is not None:  # Ctrl-C broke it off, or it is of an `awrite` whose store has to wait: one transaction
            rows = [*pending.rows, *rows]
            snapshot = snapshot or pending.snapshot
            flush = flush or pending.flush
            release = release or pending.lease is not None
        thread = self.thread
        lease = 0.0 if release else None
        head = Point(self.run, rows[-1].seq) if rows else None
        # By position: keywords cost 1 µs more, and this is done for every commit.
        self._pending = Change(thread, self.epoch, None, None, lease, head, None, None, self.run, rows, snapshot, flush)
        new.accepted = True

    def _numbered(self, new_rows: Sequence[DraftRow]) -> list[Row]:
        return [row.numbered(seq) for seq, row in enumerate(new_rows, self.seq)]

    def _check(self, rows: Sequence[Row]) -> None:
        """Raise for rows that cannot be stored before any is numbered: the run can still write how it ended."""
        check = self.store.check
        if check is None:
            return
        for row in rows:
            try:
                check(Change(self.thread, self.epoch, rows_of=self.run, rows=[row]))
            except DspyerError:
                self.refused_row = row
                raise

    def _send(self, write: Callable[[Change], object]) -> bool:
        """Write the pending change; return False if `write` would have to wait. The lock is held."""
        pending = self._pending
        if pending is None:
            return True
        try:
            if write(pending) is False:
                return False
        except DspyerError as error:
            self.broken = error
            raise
        if pending.lease is not None:
            self._released = True
        self._pending = None
        return True

    def _send_up_to(self, end: int) -> None:
        """Write the rows below a number, unless another writer has written them with its own since."""
        with self._lock:
            pending = self._pending
            if pending is None or pending.rows[0].seq >= end:
                return  # before `broken`: these rows are in the store, even if a later write has failed
            self.raise_if_broken()
            self._send(self.store.write)

    # --- Ownership

    def renew(self, lease: float) -> None:
        """Renew the lease of the thread for so many seconds; a released one is not renewed.

        The lock is not taken: a write of the run may wait for long, and its lease must not end meanwhile. A renewal
        that arrives after the release finds no owner in the store, and has no effect: only an owner holds a thread.
        """
        if self.broken is not None or self._released or not self.epoch:
            return
        try:
            self.store.write(Change(self.thread, self.epoch, lease=lease))
        except ConcurrentRunError as error:
            if not self._released:
                self.broken = error
                if self.lost is not None:
                    self.lost()
        except Exception as error:  # noqa: BLE001 - a store that stays broken fails the next write of the run
            logger.warning("the lease of thread %r could not be renewed: %s", self.thread, error)

    def stopped_at(self) -> int | None:
        """Return the number of the row with which `thread.stop()` ends the run; None if nothing stopped it.

        It is not the next number of this journal, which has given numbers to rows that the fence has refused.
        """
        try:
            thread = self.store.thread(self.thread)
            head = None if thread is None else thread.head
            owner = None if thread is None else thread.owner
            # It has fenced this run off, and writes the end now.
            stopping = owner is not None and owner.token.startswith(STOPPING)
            if head is None or head.run != self.run:
                return self.seq if stopping else None
            if stopping:
                return head.seq + 1
            (last,) = self.store.rows(self.run, head.seq, head.seq)
        except DspyerError:
            return None  # the run has failed already, and raises that error
        return head.seq if last.kind == RowKind.END and EndRow.of(last).status == "stopped" else None

    def release(self) -> None:
        """Release the thread. A failure is only logged: another error is being raised already, and the lease ends."""
        with self._lock:
            if self._released or not self.epoch:
                return
            change = Change(self.thread, self.epoch, lease=0.0)
            if self.broken is None and self._pending is not None:
                change = self._pending._replace(lease=0.0)
            try:
                self.store.write(change)
                self._pending = None
            except ConcurrentRunError:
                pass  # another run owns the thread
            except Exception as error:  # noqa: BLE001 - see above
                logger.warning("thread %r could not be released, its lease runs out: %s", self.thread, error)
            self._released = True


# Leases: who owns a thread, and whether that owner is alive. It is decided in this order:
#
# - on this host and among processes that this one can ask: whether the process, or the run in this process, is there;
# - anywhere else: whether the lease has ended, by the clock of the store.
#
# A background thread renews the leases of the runs of this process while they work.


LEASE = 30.0
"""Seconds after its last sign of life for which an owner on another host counts as alive."""

AT = "@"
"""Separates when a process started from the place in which its process id is unique."""

_THIS_PROCESS = token_hex(8)


# --- is the owner alive?


def is_alive(row: ThreadRow) -> bool:
    """Return whether the owner of a thread is alive, as far as this process can know."""
    owner = row.owner
    if owner is None or row.lease <= 0:
        return False
    if owner.host != socket.gethostname() or owner.started.partition(AT)[2] != _pid_namespace():
        return True  # its process cannot be asked, and its lease has not ended
    if owner.pid == os.getpid():
        return leases.holds(owner.token)
    return _process_exists(owner.pid) and _started(owner.pid) == owner.started


def new_owner() -> Owner:
    """This process as the owner of one run."""
    return Owner(socket.gethostname(), os.getpid(), _own_start(os.getpid()), token_hex(8))


@cache
def _own_start(pid: int) -> str:
    return _started(pid)


def _started(pid: int) -> str:
    """Return when a process started, in clock ticks since boot, and where; `"ended"` for a zombie.

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

    def acquire(self, store: Store, thread: str, epoch: int, owner: Owner) -> Journal:
        """Make an owner that of a thread, and hold its lease; the one before can write nothing more."""
        journal = Journal(store, thread, 0, "", 0)
        # Before the write makes the owner visible: this process would take one without a lease for dead.
        self.hold(owner.token, journal)
        journal.set_epoch(store.write(Change(thread, epoch, epoch + 1 if epoch else None, owner, LEASE)))
        return journal

    def hold(self, token: str, journal: Journal) -> None:
        """Renew the lease of an owner until `let_go`."""
        place = id(journal.store.store), id(clock.current())
        with self._lock:
            self._held[token] = place, journal
            if place not in self._renewing:
                self._renewing.add(place)
                Thread(target=self._keep_renewing, args=(place,), name="dspyer-leases", daemon=True).start()

    def holds(self, token: str) -> bool:
        """Return whether the owner is a run of this process that has not ended."""
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
