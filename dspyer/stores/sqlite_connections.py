"""Connections to one SQLite file: one for each thread and process, and the log of the file kept short.

SQLite's log (the `-wal` file) is emptied into the file by a *checkpoint*. Whoever appends makes none: a thread of its
own does, when the log is long. SQLite before 3.51.3 can lose a commit if a checkpoint begins while all of the log is in
the file already and another connection commits in that moment. So the checkpoints of all processes run one after the
other, and each writes first.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from dspyer.errors import StoreError

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

APPLICATION = 0x64737079
"""The application id in the file's header, by which a file is known as ours: the letters "dspy"."""

LOG_LIMIT = 2 * 1024 * 1024
"""Bytes of the log from which on it is emptied; appends go on meanwhile, so it becomes a little longer."""

KEPT_LOG = 3 * 1024 * 1024
"""Bytes of an emptied log that stay for the next entries."""

ERASING = 1.0
"""Seconds that a removal waits for readers before it leaves what it has removed in the log."""

COMMIT = 8 * 1024
"""Bytes that a commit adds to the log as a rule: two pages."""

logger = logging.getLogger("dspyer")


class ThreadConnection:
    """The connection of a thread, with the lock that keeps others from closing it while it works.

    Args:
        pool: where the connection comes from, and goes when the thread has ended.
    """

    __slots__ = ("__weakref__", "connection", "lock", "pool")

    def __init__(self, pool: Pool) -> None:
        self.lock = threading.RLock()
        self.connection: sqlite3.Connection | None = None
        self.pool = pool
        with pool.lock:
            pool.opened.add(self)

    def __del__(self) -> None:
        if self.connection is not None:
            self.pool.give_back(self.connection)


class Pool:
    """The open connections of a process to a file. Its lock is never held by somebody who waits for another one."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.opened: weakref.WeakSet[ThreadConnection] = weakref.WeakSet()
        self._alive: set[sqlite3.Connection] = set()
        self._spare: sqlite3.Connection | None = None

    def take(self) -> sqlite3.Connection | None:
        """The connection of a thread that has ended, if one is left."""
        with self.lock:
            spare, self._spare = self._spare, None
        return spare

    def add(self, connection: sqlite3.Connection) -> None:
        """Notes a new connection."""
        with self.lock:
            self._alive.add(connection)

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Keeps a connection for the next thread, or closes it if there is one already."""
        with self.lock:
            if self._spare is None and connection in self._alive:
                self._spare = connection
            else:
                self._alive.discard(connection)
                connection.close()

    def close(self) -> None:
        """Closes all connections. The locks of all threads' connections are held."""
        with self.lock:
            for opened in list(self.opened):
                opened.connection = None
            self._spare = None
            while self._alive:
                self._alive.pop().close()

    def __del__(self) -> None:
        self.close()


class FileConnections:
    """All connections of this process to one file.

    Args:
        path: the file.
        connect: makes a connection, for any thread, that waits for no lock and begins no transaction by itself.
        patience: seconds that somebody waits for another connection's lock.
    """

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection], patience: float) -> None:
        self.path = path
        self.log = path.with_name(f"{path.name}-wal")
        self.closed = False
        self._connect = connect
        self._patience = patience
        self.start_anew()
        with _every:
            _ALL.add(self)

    def start_anew(self) -> None:
        """Forgets who held locks: in a new process nobody does."""
        self.local = threading.local()
        self.pool = Pool()
        self.writing = threading.Lock()
        self.checkpointing = threading.Lock()
        self._unsaved = 0
        self._written = False
        self._erasing = False

    def read(self, work: Work[T]) -> T:
        """What `work` returns, which only reads."""
        return self._patiently(work)

    def write(self, work: Work[T], flush: bool = False, size: int = 0) -> T:
        """What `work` returns, all of it in one transaction, which is kept if it raises nothing.

        Args:
            work: what is done.
            flush: whether it must be on the disk afterwards.
            size: bytes that it brings.
        """
        with self._alone():
            return self._patiently(lambda connection: self._transaction(connection, work, flush, size))

    def write_now(self, work: Work[object], flush: bool = False, size: int = 0) -> bool:
        """Does the same, unless it would have to wait for somebody: then False."""
        if not self.writing.acquire(blocking=False):
            return False
        try:
            opened = self._opened()
            with opened.lock:
                self._transaction(self._connection(opened), work, flush, size)
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return False
            raise
        finally:
            self.writing.release()
        return True

    def exclusively(self, work: Work[T]) -> T:
        """What `work` returns, which makes its own transaction; nobody else of this process writes meanwhile."""
        with self._alone():
            self._written = True
            return self._patiently(work)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other thread of this process writes."""
        if not self.writing.acquire(timeout=self._patience):
            raise StoreError(
                f"other threads of this process have been writing to {self.path} for {self._patience:g} s: nothing was "
                "written. See what holds them up, or allow more: SQLite(path, patience=...)"
            )
        try:
            yield
        finally:
            self.writing.release()

    def _grow(self, size: int) -> None:
        """Counts what went to the log; when it has become long, a thread begins to empty it."""
        self._unsaved += size
        if self._unsaved > LOG_LIMIT and self.checkpointing.acquire(blocking=False):
            self._unsaved = 0
            try:
                threading.Thread(target=self._empty_log, name="dspyer-checkpoint", daemon=True).start()
            except RuntimeError:  # the interpreter is about to end; closing empties the log
                self.checkpointing.release()

    def erase(self) -> bool:
        """Empties the log, with what was removed from the file, and says whether that was done.

        A reader that began before the removal needs the log. It is waited for, but not for long; then the next
        checkpoint empties the log.
        """
        with self.checkpointing:
            self._erasing = True
            for _ in _breaks(ERASING):
                with self._alone():
                    if self._checkpoint("TRUNCATE") and self._is_empty():
                        self._erasing = False
                        return True
        logger.warning(
            "what was removed from %s is still in its log, %s, since another program reads the file; it goes when the "
            "log is emptied next: vacuum() and close() do that",
            self.path,
            self.log.name,
        )
        return False

    def _is_empty(self) -> bool:
        """Whether the log is empty: another process may have been about to empty it, and have kept it."""
        try:
            return not self.log.stat().st_size
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Empties the log and closes the connections, each as soon as it rests."""
        if self.closed:
            return
        with self.checkpointing, self.writing:
            if self._written:
                self._checkpoint("TRUNCATE")
            self.closed = True
        with _at_rest([self.pool]):
            self.pool.close()

    def _patiently(self, action: Work[T]) -> T:
        """What `action` returns, done again as long as another connection holds the lock that it needs."""
        opened = self._opened()
        breaks = None
        while True:
            try:
                with opened.lock:
                    return action(self._connection(opened))
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                breaks = breaks or _breaks(self._patience)
                if not next(breaks, False):
                    error.add_note(
                        f"Another connection has held the lock of {self.path} for {self._patience:g} s. See which "
                        "process does (a tool that has the file open?), or allow more: SQLite(path, patience=...)."
                    )
                    raise

    def _transaction(self, connection: sqlite3.Connection, work: Work[T], flush: bool, size: int) -> T:
        if flush:
            connection.execute("PRAGMA synchronous=FULL")
        try:
            connection.execute("BEGIN IMMEDIATE")
            done = work(connection)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if flush:
                connection.execute("PRAGMA synchronous=NORMAL")
        self._written = True
        self._grow(COMMIT + size)
        return done

    def _empty_log(self) -> None:
        """Puts most of the log into the file while others append; then the rest, which is short, while they wait."""
        try:
            self._checkpoint("PASSIVE")
            for _ in _breaks(1.0):
                with self.writing:
                    if self._checkpoint("TRUNCATE" if self._erasing else "RESTART"):
                        self._erasing = self._erasing and not self._is_empty()
                        return
        except StoreClosedError:
            return
        except sqlite3.Error:
            logger.warning("the log of %s could not be emptied and goes on growing", self.path, exc_info=True)
        finally:
            self.checkpointing.release()

    def _checkpoint(self, mode: str) -> bool:
        """Whether the log is in the file, or another process is at it."""

        def work(connection: sqlite3.Connection) -> bool:
            with _locked(self.log) as alone:
                return not alone or checkpoint(connection, mode)

        return self._patiently(work)

    def _opened(self) -> ThreadConnection:
        """The place of this thread's connection."""
        opened: ThreadConnection | None = getattr(self.local, "opened", None)
        if opened is None:
            opened = self.local.opened = ThreadConnection(self.pool)
        return opened

    def _connection(self, opened: ThreadConnection) -> sqlite3.Connection:
        """The connection, made now if need be. Its lock is held."""
        if self.closed:
            raise StoreClosedError(
                f"the store {self.path} is closed: open it again with open_store({str(self.path)!r})"
            )
        if opened.connection is None:
            connection = self.pool.take()
            if connection is None:
                connection = self._connect()
                self.pool.add(connection)
            opened.connection = connection
        return opened.connection


class StoreClosedError(StoreError):
    """The store is closed."""


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds a lock."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY


def checkpoint(connection: sqlite3.Connection, mode: str) -> bool:
    """Puts the log into the file, as far as others let it, and says whether all of it is there."""
    try:
        connection.execute(f"PRAGMA application_id={APPLICATION}")  # something new for the log, see above
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return False
        raise
    busy, *_ = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    return not busy


@contextmanager
def _locked(log: Path) -> Iterator[bool]:
    """Whether no other process empties the log. The lock is on the log itself, which SQLite never locks."""
    if sys.platform == "win32":
        yield True
        return
    try:
        number = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(number)


def _breaks(patience: float) -> Iterator[bool]:
    """Longer and longer breaks, until somebody has waited long enough. The first comes at once."""
    end = time.monotonic() + patience
    pause = 0.0005
    while True:
        yield True
        if time.monotonic() > end:
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


@contextmanager
def _at_rest(pools: Sequence[Pool]) -> Iterator[None]:
    """While all connections rest, and nobody can begin with a new one.

    First the locks of the connections, then those of the pools: whoever works may need the lock of a pool for a moment.
    """
    with ExitStack() as stack:
        held: set[ThreadConnection] = set()
        while True:
            for pool in pools:
                with pool.lock:
                    opened = set(pool.opened)
                for one in opened - held:
                    stack.enter_context(one.lock)
                held |= opened
            with ExitStack() as inner:
                for pool in pools:
                    inner.enter_context(pool.lock)
                if all(one in held for pool in pools for one in pool.opened):
                    yield
                    return


_ALL: weakref.WeakSet[FileConnections] = weakref.WeakSet()
_every = threading.Lock()
_forking = ExitStack()


def _before_fork() -> None:
    """Closes every connection, as soon as it rests: what SQLite knows of its locks must not reach another process."""
    _every.acquire()
    pools = [connections.pool for connections in list(_ALL)]
    _forking.enter_context(_at_rest(pools))
    for pool in pools:
        pool.close()


def _after_fork_in_parent() -> None:
    _forking.close()
    _every.release()


def _after_fork_in_child() -> None:
    _forking.close()
    for connections in list(_ALL):
        connections.start_anew()
    _every.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
