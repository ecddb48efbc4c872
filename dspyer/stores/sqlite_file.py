"""The file of an SQLite store: its connections and its write-ahead log.

How SQLite is used, and why:

- *Write-ahead log* (WAL, https://sqlite.org/wal.html): a commit appends pages to the `-wal` file, readers keep reading
  the older state, and one writer at a time holds the write lock of the file. `synchronous=NORMAL`: a commit is in the
  operating system's memory when it returns, so the end of this process loses nothing; a change with `flush` sets FULL
  for its transaction and waits for the disk.
- *Checkpoints* copy the log back into the file, so that the log can start again from its beginning. By default the
  commit that makes the log too long does this and pays for it. Here, a thread of its own does (`wal_autocheckpoint=0`).
  SQLite before 3.51.3 can lose a commit if a checkpoint starts on a log that is already copied as a whole while another
  connection commits. So checkpoints of all processes run one after the other, under a lock on the log file, and each
  one first writes a page, so that there is always something to copy.
- *Connections*: each thread has its own. A connection whose thread has ended is used by the next new thread.
- *Fork*: SQLite's locks are POSIX locks, which belong to one process, while its memory of them would be copied into the
  child: using an inherited connection there can damage the file (https://sqlite.org/howtocorrupt.html). So before a
  fork all connections are closed, as soon as each is idle, and both processes open new ones when they need them.
- *Lock order*: `checkpoint_lock`, then `write_lock`, then the lock of a thread's connection, then that of the pool.
  The exception is a commit that starts a checkpoint: it holds other locks when it tries `checkpoint_lock`, and does not
  wait for it.
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
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeVar

from dspyer.clock import now
from dspyer.ctrl_c import at_fork, gives_up, held_back
from dspyer.errors import StoreError
from dspyer.stores.sqlite_tables import APPLICATION, application_and_version, check_version, create_tables

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

LOG_LIMIT = 2 * 1024 * 1024
"""Bytes of the log at which a checkpoint starts. Commits continue meanwhile, so the log becomes a little longer."""

KEPT_LOG = 3 * 1024 * 1024
"""Bytes to which a checkpoint cuts the log file: space for the next commits that need not be allocated again."""

COMMIT_SIZE = 8 * 1024
"""Bytes that a commit usually adds to the log, besides its contents: two pages."""

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
        self.local = threading.local()
        self.pool = Pool()
        # Writers of this process wait here, in turn, and not at the lock of the file, where they would poll.
        self.write_lock = threading.Lock()
        self.checkpoint_lock = threading.Lock()
        self._log_growth = 0
        self._has_written = False
        self._erase_pending = False

    def read(self, work: Work[T]) -> T:
        """Call `work`, which only reads, with the connection of this thread. A file that is not there is not made."""
        empty = None if self.closed else self._connect.empty_tables()
        if empty is not None:
            with closing(empty):
                return work(empty)
        return self._retry(work)

    def write(self, work: Work[T], flush: bool = False, size: int = 0) -> T:
        """Call `work` in a transaction, which is committed unless `work` raises.

        `work` is called again if another process held the write lock. With `flush` the commit is on the disk at the
        end. `size` is about how many bytes it writes.
        """
        with self._only_writer():
            return self._retry(lambda connection: self._transaction(connection, work, flush, size))

    def write_now(self, work: Work[object], flush: bool = False, size: int = 0) -> bool:
        """Do the same, but return False, without a change, where `write` would wait."""
        if not self.write_lock.acquire(blocking=False):
            return False
        try:
            held = self._connection_of_thread()
            with held.lock:
                self._transaction(self._opened(held), work, flush, size)
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
        with self.checkpoint_lock:
            self._erase_pending = True
            for _ in _backoff(ERASE_PATIENCE):
                with self._only_writer():
                    if self._checkpoint("TRUNCATE") and self._log_is_empty():
                        self._erase_pending = False
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
            with self.checkpoint_lock, self.write_lock:
                if self._has_written:
                    self._checkpoint("TRUNCATE")
                self.closed = True
            with _all_idle([self.pool]):
                self.pool.close()

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
        """Call `action` with this thread's connection, again and again while another process holds the file's lock.

        SQLite's own busy timeout would wait within the call, with the connection's lock held: a fork or a close would
        wait as long.
        """
        held = self._connection_of_thread()
        pauses = None
        while True:
            try:
                with held.lock:
                    return action(self._opened(held))
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

    def _transaction(self, connection: sqlite3.Connection, work: Work[T], flush: bool, size: int) -> T:
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
        self._count_log(COMMIT_SIZE + size)
        return done

    def _connection_of_thread(self) -> ThreadConnection:
        held: ThreadConnection | None = getattr(self.local, "held", None)
        if held is None:
            held = self.local.held = ThreadConnection(self.pool)
        return held

    def _opened(self, held: ThreadConnection) -> sqlite3.Connection:
        """The connection of a thread, opened if need be; the caller holds its lock."""
        if self.closed:
            raise StoreClosedError(
                f"the store {self.path} is closed: open it again with open_store({str(self.path)!r})"
            )
        if held.connection is None:
            connection = self.pool.take()
            if connection is None:
                connection = self._connect()
                self.pool.add(connection)
            held.connection = connection
        return held.connection

    # --- the log

    def _count_log(self, size: int) -> None:
        """Count the bytes that go to the log, and start a checkpoint once they are many."""
        self._log_growth += size
        if self._log_growth > LOG_LIMIT and self.checkpoint_lock.acquire(blocking=False):
            self._log_growth = 0
            try:
                threading.Thread(target=self._checkpoint_in_thread, name="dspyer-checkpoint", daemon=True).start()
            except RuntimeError:  # the interpreter is shutting down and starts no thread; close() empties the log
                self.checkpoint_lock.release()

    def _checkpoint_in_thread(self) -> None:
        """Copy most of the log while others commit, then the short rest with the writers of this process held up.

        PASSIVE waits for no reader or writer. RESTART and TRUNCATE copy everything, so that the next commit starts the
        log from its beginning; with busy readers they fail, and are tried again.
        """
        try:
            self._checkpoint("PASSIVE")
            for _ in _backoff(1.0):
                with self.write_lock:
                    if self._checkpoint("TRUNCATE" if self._erase_pending else "RESTART"):
                        self._erase_pending = self._erase_pending and not self._log_is_empty()
                        return
        except StoreClosedError:
            return
        except sqlite3.Error:
            logger.warning("the log of %s could not be emptied and continues to grow", self.path, exc_info=True)
        finally:
            self.checkpoint_lock.release()

    def _checkpoint(self, mode: str) -> bool:
        """Run a checkpoint; True if the whole log was copied, or another process is copying it."""

        def work(connection: sqlite3.Connection) -> bool:
            with _lock_checkpoints(self.log) as alone:
                return not alone or checkpoint(connection, mode)

        return self._retry(work)

    def _log_is_empty(self) -> bool:
        """Whether the log file is empty; a checkpoint of another process may have kept it."""
        try:
            return not self.log.stat().st_size
        except FileNotFoundError:
            return True


class ThreadConnection:
    """The connection of one thread, and the lock under which it works: a thread that holds the lock may close it.

    It lives as long as the thread, as a thread-local value; then the connection goes back to the pool.
    """

    __slots__ = ("__weakref__", "connection", "lock", "pool")

    def __init__(self, pool: Pool) -> None:
        self.lock = threading.RLock()
        self.connection: sqlite3.Connection | None = None
        self.pool = pool
        with pool.lock:
            pool.held.add(self)

    def __del__(self) -> None:
        if self.connection is not None and not sys.is_finalizing():  # see `Pool`
            self.pool.give_back(self.connection)


class Pool:
    """The open connections of a process to one file.

    Its lock is the last in the lock order: a thread that holds it waits for no other lock. Nothing waits for it once
    Python is shutting down: Python ends daemon threads then, without releasing the locks that they hold.
    """

    def __init__(self) -> None:
        # Reentrant: the garbage collector may run `ThreadConnection.__del__` in a thread that holds the lock.
        self.lock = threading.RLock()
        self.held: weakref.WeakSet[ThreadConnection] = weakref.WeakSet()
        self._open: set[sqlite3.Connection] = set()
        self._spare: sqlite3.Connection | None = None

    def take(self) -> sqlite3.Connection | None:
        """The connection of a thread that has ended, if there is one."""
        with self.lock:
            spare, self._spare = self._spare, None
        return spare

    def add(self, connection: sqlite3.Connection) -> None:
        with self.lock:
            self._open.add(connection)

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Keep a connection for the next thread, or close it if one is kept already."""
        with self.lock:
            if self._spare is None and connection in self._open:
                self._spare = connection
            else:
                self._open.discard(connection)
                connection.close()

    def close(self) -> None:
        """Close all connections; the caller holds the locks of all of them."""
        with self.lock:
            for held in list(self.held):
                held.connection = None
            self._spare = None
            while self._open:
                self._open.pop().close()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


class StoreClosedError(StoreError):
    """The store is closed."""


def is_busy(error: sqlite3.Error) -> bool:
    """Whether SQLite refused because another connection holds a lock."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY  # the low byte: there are extended codes of it


def checkpoint(connection: sqlite3.Connection, mode: str) -> bool:
    """Copy the log into the file, as far as readers allow; return whether all of it was copied."""
    try:
        # Writes a page, so that the log has something that is not copied yet: see the module docstring.
        connection.execute(f"PRAGMA application_id={APPLICATION}")
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return False
        raise
    busy, *_ = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    return not busy


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


@contextmanager
def _all_idle(pools: Sequence[Pool]) -> Iterator[None]:
    """Hold the locks of all connections, and keep threads from adding new ones.

    The locks of the connections are taken first, then those of the pools: a thread at work holds its connection and may
    need the pool for a moment. A thread may have added a connection before the pools were locked; then, once more.
    """
    with ExitStack() as stack:
        locked: set[ThreadConnection] = set()
        while True:
            for pool in pools:
                with pool.lock:
                    held = set(pool.held)
                for one in held - locked:
                    stack.enter_context(one.lock)
                locked |= held
            with ExitStack() as inner:
                for pool in pools:
                    inner.enter_context(pool.lock)
                if all(one in locked for pool in pools for one in pool.held):
                    yield
                    return


def _before_fork() -> None:
    """Close every connection, as soon as it is idle, and keep the locks until the fork is done."""
    _HELD_FOR_FORK.enter_context(_ALL_LOCK)
    pools = [connections.pool for connections in list(_ALL)]
    _HELD_FOR_FORK.enter_context(_all_idle(pools))
    for pool in pools:
        pool.close()


def _after_fork_in_child() -> None:
    _HELD_FOR_FORK.close()
    for connections in list(_ALL):
        connections.reset()  # other threads of the parent may have held `write_lock`; they are not in this process


at_fork(_after_fork_in_child, _before_fork, _HELD_FOR_FORK.close)


# --- opening the file


class ConnectionOpener:
    """Opens connections to a file; the first one checks the file and makes its tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._first_seen: tuple[int, int] | None = None

    def empty_tables(self) -> sqlite3.Connection | None:
        """Tables in memory, to be read while there is no file: the first write creates it. None if there is one."""
        if self._first_seen is not None or self.path.exists():
            return None
        check_path(self.path)
        connection = sqlite3.connect(":memory:", isolation_level=None)
        create_tables(connection, self.path)
        return connection

    def __call__(self) -> sqlite3.Connection:
        """Open a connection that may be used by any thread, waits for no lock and begins no transaction itself.

        Raise `StoreError` if the file is not a store, has tables of another version, or was removed or replaced.
        """
        if self._first_seen is None:
            check_path(self.path)
            check_file(self.path)
        else:
            self.check_same_file()
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        self._first_seen = self._first_seen or _identity(self.path)
        return connection

    def check_same_file(self) -> None:
        """Raise if the file was removed or replaced since it was opened: writes to it would be lost.

        An open connection keeps working on a removed file, which no other process can open any more.
        """
        found = _identity(self.path)
        if found != self._first_seen:
            what = "was removed" if found is None else "is another file than before"
            raise StoreError(
                f"the store {str(self.path)!r} {what}, while this program had it open: nothing more is written to it. "
                "Put the file back if it was moved, or compile the program again to use the file that is there now"
            )

    def _set_up(self, connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{str(self.path)!r} cannot have a write-ahead log (mode {mode!r}): use another disk")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA secure_delete=ON")  # deleted rows are overwritten with zeros
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute(f"PRAGMA journal_size_limit={KEPT_LOG}")
        create_tables(connection, self.path)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode, which identify a file under any name; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


MOUNTS = Path("/proc/self/mounts")

NETWORK_FILE_SYSTEMS = {
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "davfs",
    "fuse.ceph",
    "fuse.davfs",
    "fuse.glusterfs",
    "fuse.gcsfuse",
    "fuse.s3fs",
    "fuse.sshfs",
    "gfs2",
    "glusterfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
}
"""File systems that several machines may share, where SQLite's locks and shared memory do not work."""


def check_path(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise `StoreError` if the folder of a file does not exist, or is on a network file system."""
    if not path.parent.is_dir():
        raise StoreError(f"no folder {str(path.parent)!r} for the store {path.name!r}: make it first")
    if path.is_dir():
        raise StoreError(f"{str(path)!r} is a folder: name a file in it, such as {str(path / 'runs.db')!r}")
    kind = file_system(path, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{str(path)!r} is on a network file system ({kind}), on which SQLite loses data: use a local disk, or "
            "PostgreSQL for several machines (store='postgresql://...')"
        )


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """The kind of file system that a path is on; `""` where the system does not list them."""
    try:
        lines = mounts.read_bytes().splitlines()
    except OSError:
        return ""
    place = os.fsencode(os.path.realpath(path))
    best, kind = b"", b""
    for line in lines:
        _, point, system, *_ = line.split(b" ")
        # The kernel writes blanks, tabs and backslashes of a mount point as octal numbers.
        point = point.replace(b"\\040", b" ").replace(b"\\011", b"\t").replace(b"\\134", b"\\")
        inside = place == point or place.startswith(point.rstrip(b"/") + b"/")
        if inside and len(point) >= len(best):  # the innermost mount; of two at one place, the later one
            best, kind = point, system
    return kind.decode()


def check_file(path: Path) -> None:
    """Raise `StoreError` if a file is not a store, or one of another version; nothing in it is changed."""
    if not path.exists() or not path.stat().st_size:
        return
    try:
        application, version, tables = _contents(path, "ro")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
            raise
        # A process was killed while it made the file. Only a connection that may write can undo its transaction.
        application, version, tables = _contents(path, "rw")
    if application == APPLICATION:
        check_version(path, version)
    elif application or version or tables:
        raise StoreError(
            f"{str(path)!r} is a SQLite file of something else than dspyer: nothing was changed. Name another file."
        )


def _contents(path: Path, mode: str) -> tuple[int, int, int]:
    """The application id and version of a SQLite file, and its number of tables; `StoreError` for any other file."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=5)
    try:
        connection.execute("BEGIN")  # one snapshot for all three reads: another process may be making the file
        application, version = application_and_version(connection)
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_NOTADB:
            raise
        raise StoreError(f"{str(path)!r} is no SQLite file: nothing was changed. Name another file.") from error
    finally:
        connection.close()
    return application, version, tables
