"""The file of an SQLite store: its connections and its write-ahead log.

How SQLite is used, and why:

- *Write-ahead log* (WAL, https://sqlite.org/wal.html): a commit appends pages to the `-wal` file, readers keep reading
  the older state, and one writer at a time holds the write lock of the file. `synchronous=NORMAL`: a commit is in the
  operating system's memory when it returns, so the end of this process loses nothing; a change with `flush` sets FULL
  for its transaction and waits for the disk.
- *Checkpoints* copy the log back into the file, so that the log can start again from its beginning. The commit that
  makes the log too long does this, and pays for it: SQLite does so itself (`wal_autocheckpoint`), from 3.51.3 on.
  SQLite before that can lose a commit if a checkpoint starts on a log that is already copied as a whole while another
  connection commits. There, the checkpoints of all processes run one after the other, under a lock on the log file, and
  each one first writes a page, so that there is always something to copy. A process that finds a log that is too long
  empties it: one that was killed may have left it.
- *Connections*: a call takes one that no other call uses, and gives it back.
- *Fork*: SQLite's locks are POSIX locks, which belong to one process, while its memory of them would be copied into the
  child: using an inherited connection there can damage the file (https://sqlite.org/howtocorrupt.html). So before a
  fork all connections are closed, as soon as each is idle, and both processes open new ones when they need them.
- *Lock order*: `write_lock`, then `opening`, then the locks of connections.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from dspyer.clock import now
from dspyer.ctrl_c import at_fork, gives_up, held_back
from dspyer.errors import StoreError
from dspyer.stores.sqlite_opening import (
    APPLICATION,
    CHECKPOINTS_ITSELF,
    LOG_PAGES,
    ConnectionOpener,
    StoreClosedError,
    T,
    Work,
    is_busy,
)

if sys.platform != "win32":
    import fcntl

LOG_LIMIT = LOG_PAGES * 4096
"""Bytes of the log from which a commit empties it, where SQLite does not."""

ERASE_PATIENCE = 1.0
"""Seconds that a deletion waits for readers before it leaves the deleted bytes in the log."""

logger = logging.getLogger("dspyer")


# --- connections


class FileConnections:
    """All connections of this process to one file.

    `connect` opens a connection that may be used by any thread, waits for no lock and begins no transaction itself. A
    call waits for the locks of other connections for `patience` seconds.
    """

    def __init__(self, path: Path, connect: ConnectionOpener, patience: float) -> None:
        self.path = path
        self.log = path.with_name(f"{path.name}-wal")
        self.closed = False
        self._connect = connect
        self._patience = patience
        self.reset()
        with _ALL_LOCK:
            _ALL.add(self)

    def reset(self) -> None:
        """Start with no connections and free locks, as a new process must: the holders of locks are not in it."""
        self.opening = threading.RLock()  # keeps calls from opening further connections
        self.connections: list[HeldConnection] = []
        self._idle: list[HeldConnection] = []
        # Writers of this process wait here, in turn, and not at the lock of the file, where they would poll.
        self.write_lock = threading.Lock()
        self._has_written = False
        self._log_left = 0  # bytes of the log that the last checkpoint could not empty

    def read(self, work: Work[T]) -> T:
        """Call `work`, which only reads. A file that is not there is not made."""
        empty = None if self.closed else self._connect.empty_tables()
        if empty is not None:
            with closing(empty):
                return work(empty)
        return self._retry(work)

    def write(self, work: Work[T], flush: bool = False) -> T:
        """Call `work` in a transaction, which is committed unless `work` raises.

        `work` is called again if another process held the write lock. With `flush` the commit is on the disk then.
        """
        with self._only_writer():
            return self._retry(lambda connection: self._transaction(connection, work, flush))

    def write_now(self, work: Work[object], flush: bool = False) -> bool:
        """Do the same, but return False, without a change, where `write` would wait."""
        if not self.write_lock.acquire(blocking=False):
            return False
        try:
            self._use(lambda connection: self._transaction(connection, work, flush))
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return False
            raise
        finally:
            self.write_lock.release()
        return True

    def exclusively(self, work: Work[T]) -> T:
        """Call `work` outside of a transaction while no other thread of this process writes."""
        with self._only_writer():
            self._has_written = True
            return self._retry(work)

    def erase(self) -> bool:
        """Empty the log, which still has the deleted rows; return whether that was possible.

        A reader that began before the deletion needs the log. It is waited for, but only for `ERASE_PATIENCE`; after
        that, the next checkpoint empties the log.
        """
        for _ in _backoff(ERASE_PATIENCE):
            with self._only_writer():
                if self._retry(self._checkpoint):
                    return True
        logger.warning(
            "what was deleted from %s is still in its log, %s, since another program reads the file; it goes when the "
            "log is emptied next: vacuum() and close() do that",
            self.path,
            self.log.name,
        )
        return False

    def close(self) -> None:
        """Empty the log and close all connections, each as soon as it is idle."""
        if self.closed:
            return
        with held_back():
            with self.write_lock:
                if self._has_written:
                    self._retry(self._checkpoint)
                self.closed = True
            with ExitStack() as stack:
                self.close_idle(stack)

    @contextmanager
    def _only_writer(self) -> Iterator[None]:
        """Keep other threads of this process from writing."""
        with held_back():
            if not self.write_lock.acquire(timeout=self._patience):
                raise StoreError(
                    f"other threads of this process have been writing to {self.path} for {self._patience:g} s: nothing "
                    "was written. See what delays them, or allow more: SQLite(path, patience=...)"
                )
            try:
                yield
            finally:
                self.write_lock.release()

    def _retry(self, action: Work[T]) -> T:
        """Call `action` with a connection, again and again while another process holds the file's lock.

        SQLite's own busy timeout would wait within the call, with the connection's lock held: a fork or a close would
        wait as long.
        """
        pauses = None
        while True:
            try:
                return self._use(action)
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                pauses = pauses or _backoff(self._patience)
                if not next(pauses, False):
                    error.add_note(
                        f"Another connection has held the lock of {self.path} for {self._patience:g} s. See which "
                        "process does (a tool that has the file open?), or allow more: SQLite(path, patience=...)."
                    )
                    raise

    def _transaction(self, connection: sqlite3.Connection, work: Work[T], flush: bool) -> T:
        if flush:
            connection.execute("PRAGMA synchronous=FULL")
        try:
            # IMMEDIATE takes the write lock before anything is read: what `work` reads is current when it writes.
            connection.execute("BEGIN IMMEDIATE")
            done = work(connection)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if flush:
                connection.execute("PRAGMA synchronous=NORMAL")
        self._has_written = True
        if not CHECKPOINTS_ITSELF:
            self._limit_log(connection)
        return done

    def _use(self, action: Work[T]) -> T:
        """Call `action` with a connection that no other call uses meanwhile."""
        try:
            held = self._idle.pop()
        except IndexError:
            with self.opening:
                self.connections.append(held := HeldConnection())
        try:
            with held.lock:
                if self.closed:
                    raise StoreClosedError(
                        f"the store {self.path} is closed: open it again with open_store({str(self.path)!r})"
                    )
                if held.connection is None:
                    held.connection = self._connect()
                return action(held.connection)
        finally:
            self._idle.append(held)

    def close_idle(self, stack: ExitStack) -> None:
        """Close every connection as soon as it is idle; none is opened before the end of the stack."""
        stack.enter_context(self.opening)
        for held in self.connections:
            stack.enter_context(held.lock)
            held.close()

    # --- the log

    def _limit_log(self, connection: sqlite3.Connection) -> None:
        """Empty the log if commits have made it too long. The last commit stands, whatever comes of this.

        While a reader needs the log, it is tried again each time that the log has grown by a part of its limit.
        """
        size = self._log_size()
        self._log_left = min(self._log_left, size)
        if size > max(LOG_LIMIT, self._log_left + LOG_LIMIT // 4):
            try:
                self._checkpoint(connection)
            except (sqlite3.Error, OSError):
                logger.warning("the log of %s could not be emptied and continues to grow", self.path, exc_info=True)
            self._log_left = self._log_size()

    def _checkpoint(self, connection: sqlite3.Connection) -> bool:
        """Run a checkpoint, unless another process runs one; return whether the log is empty then."""
        with _lock_checkpoints(self.log) as alone:
            if alone:
                checkpoint(connection)
        return not self._log_size()

    def _log_size(self) -> int:
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0


class HeldConnection:
    """A connection, and the lock under which it works: a thread that holds the lock may close it."""

    __slots__ = ("connection", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.connection: sqlite3.Connection | None = None

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def __del__(self) -> None:
        if not sys.is_finalizing():  # Python ends daemon threads then, in the middle of their work
            self.close()


def checkpoint(connection: sqlite3.Connection) -> None:
    """Copy the log into the file, and empty it if all of it was copied: readers may still need it."""
    try:
        # Writes a page, so that the log has something that is not copied yet: see the module docstring.
        connection.execute(f"PRAGMA application_id={APPLICATION}")
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return
        raise
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


@contextmanager
def _lock_checkpoints(log: Path) -> Iterator[bool]:
    """Keep other processes from running checkpoints; False if one of them is running one.

    `flock` on the log file is free for this: SQLite itself locks ranges of the `-shm` file, never the log. Windows has
    no `flock`; there, checkpoints are only kept apart within a process.
    """
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


def _backoff(patience: float) -> Iterator[bool]:
    """Yield True at once, and again after ever longer pauses (0.5 to 20 ms) until `patience` seconds have passed.

    Each pause waits for another process to release a lock of the file. SQLite cannot notify a waiting process, so it
    has to ask again. A commit holds the lock for well under a millisecond, hence the short first pauses.
    """
    end = now() + patience
    pause = 0.0005
    while True:
        yield True
        if now() > end or gives_up():
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


# --- fork

_ALL: weakref.WeakSet[FileConnections] = weakref.WeakSet()
_ALL_LOCK = threading.Lock()
_HELD_FOR_FORK = ExitStack()


def _before_fork() -> None:
    """Close every connection, as soon as it is idle, and keep the locks until the fork is done."""
    _HELD_FOR_FORK.enter_context(_ALL_LOCK)
    for connections in list(_ALL):
        connections.close_idle(_HELD_FOR_FORK)


def _after_fork_in_child() -> None:
    _HELD_FOR_FORK.close()
    for connections in list(_ALL):
        connections.reset()  # other threads of the parent may have held `write_lock`; they are not in this process


at_fork(_after_fork_in_child, _before_fork, _HELD_FOR_FORK.close)
